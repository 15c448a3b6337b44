//! Keys of orders that the engine would not recognize: they become columns.
//!
//! Whether rows that are sorted by `sqrt(x)` are in the order of `sqrt(x)`, the engine asks what `sqrt(x)` is computed
//! from, too. If one function or operator has no answer, because it is undefined somewhere in the range of its operand
//! or because that has none (`x / 2`, `coalesce(x, 1)`, functions of ours), it takes the rows to be in no order. Then
//! it refuses the plan that it has made. Of a column it knows the order as soon as rows are sorted by it.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result as PlanResult};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection, Sort, Window};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalSortExpr};

use crate::engine;
use crate::engine::walk::{Walk, WalkPlan};

/// What the names of the columns begin with. No column of a dataset has a NUL in its name.
const KEY: &str = "\0key";

/// Computes the keys of sorts, windows and ordered aggregates below them, where the engine would not recognize them.
#[derive(Debug)]
pub(crate) struct KeyColumns;

impl OptimizerRule for KeyColumns {
    fn name(&self) -> &'static str {
        "key_columns"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        let (LogicalPlan::Aggregate(Aggregate { input, .. })
        | LogicalPlan::Sort(Sort { input, .. })
        | LogicalPlan::Window(Window { input, .. })) = &plan
        else {
            return Ok(Transformed::no(plan));
        };
        let keys = unrecognized_keys(&plan, input.schema())?;
        if keys.is_empty() {
            return Ok(Transformed::no(plan));
        }
        let named = |key: Expr| (key, Column::from_name(config.alias_generator().next(KEY)));
        let keys: Vec<(Expr, Column)> = keys.into_iter().map(named).collect();
        let computed = keys.iter().map(|(key, column)| key.clone().alias(column.name()));
        let below = columns_of(input.schema()).chain(computed).collect();
        let below = LogicalPlan::Projection(Projection::try_new(below, Arc::clone(input))?);
        let columns: Vec<Expr> = columns_of(plan.schema()).collect();
        let names = NamePreserver::new(&plan);
        let by_columns = plan
            .transform_expressions(|expr| match expr {
                // It has no name of its own.
                Expr::GroupingSet(_) => Ok(Transformed::no(expr)),
                expr => {
                    let name = names.save(&expr);
                    Ok(expr.transform_down(|part| Ok(replaced(part, &keys)))?.update_data(|expr| name.restore(expr)))
                }
            })?
            .data
            .map_children(|_| Ok(Transformed::yes(below.clone())))?
            .data
            .recompute_schema()?;
        if by_columns.schema().fields().len() == columns.len() {
            return Ok(Transformed::yes(by_columns));
        }
        let above = Projection::try_new(columns, Arc::new(by_columns))?;
        Ok(Transformed::yes(LogicalPlan::Projection(above)))
    }
}

fn columns_of(schema: &DFSchema) -> impl Iterator<Item = Expr> {
    schema.columns().into_iter().map(Expr::Column)
}

/// Returns the column of a key in its place.
fn replaced(expr: Expr, keys: &[(Expr, Column)]) -> Transformed<Expr> {
    match keys.iter().find(|(key, _)| *key == expr) {
        Some((_, column)) => Transformed::new(Expr::Column(column.clone()), true, TreeNodeRecursion::Jump),
        None => Transformed::no(expr),
    }
}

/// Returns the keys by which a node wants rows to be sorted, without those that the engine recognizes.
fn unrecognized_keys(plan: &LogicalPlan, schema: &DFSchema) -> PlanResult<Vec<Expr>> {
    let mut found = Vec::new();
    let mut note = |key: &Expr| -> PlanResult<()> {
        if !found.contains(key) && !is_recognized(key, schema)? {
            found.push(key.clone());
        }
        Ok(())
    };
    let is_sort = matches!(plan, LogicalPlan::Sort(_));
    plan.apply_expressions(|expr| {
        if is_sort {
            note(expr)?;
            return Ok(TreeNodeRecursion::Continue);
        }
        expr.apply(|part| {
            match part {
                Expr::AggregateFunction(function) => {
                    function.params.order_by.iter().try_for_each(|sort| note(&sort.expr))?;
                }
                Expr::WindowFunction(function) => {
                    let params = &function.params;
                    params.partition_by.iter().try_for_each(&mut note)?;
                    params.order_by.iter().try_for_each(|sort| note(&sort.expr))?;
                }
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(found)
}

/// Returns whether the engine takes rows that are sorted by `key` to be so.
fn is_recognized(key: &Expr, schema: &DFSchema) -> PlanResult<bool> {
    if matches!(key, Expr::Column(_) | Expr::Literal(..)) {
        return Ok(true);
    }
    // What only a whole plan can compute is a subquery.
    let Ok(key) = engine::session().create_physical_expr(key.clone(), schema) else { return Ok(false) };
    let key = PhysicalSortExpr::new_default(key);
    let sorted = EquivalenceProperties::new_with_orderings(Arc::clone(schema.inner()), [[key.clone()]]);
    sorted.ordering_satisfy([key])
}
