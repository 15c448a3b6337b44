//! Keys that an order repeats: `ORDER BY id, id`.
//!
//! The repetition has no effect. But `first_value`, which is what `DISTINCT ON` becomes, panics on it, and the engine
//! miscounts `DISTINCT ON (id, id)`.

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::DistinctOn;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, SortExpr};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::engine::walk::{Walk, WalkPlan};

/// Removes repeated keys from each `DISTINCT ON`.
pub(crate) fn distinct_once(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let once = plan.transform_nodes(|node| {
        let LogicalPlan::Distinct(Distinct::On(distinct)) = node else { return Ok(Transformed::no(node)) };
        let DistinctOn { mut on_expr, select_expr, mut sort_expr, input, .. } = distinct;
        keep_first(&mut on_expr, |on| on);
        if let Some(sort_expr) = &mut sort_expr {
            keep_first(sort_expr, |sort: &SortExpr| &sort.expr);
        }
        let distinct = DistinctOn::try_new(on_expr, select_expr, sort_expr, input)?;
        Ok(Transformed::yes(LogicalPlan::Distinct(Distinct::On(distinct))))
    })?;
    Ok(once.data)
}

/// Removes repeated keys from the orders of aggregates, after all other rules, since these make keys equal: `id` and
/// `CAST(id AS BIGINT)`.
#[derive(Debug)]
pub(crate) struct OrderedOnce;

impl OptimizerRule for OrderedOnce {
    fn name(&self) -> &'static str {
        "ordered_once"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        if !matches!(plan, LogicalPlan::Aggregate(_)) {
            return Ok(Transformed::no(plan));
        }
        let names = NamePreserver::new(&plan);
        plan.transform_expressions(|expr| {
            let name = names.save(&expr);
            let once = expr.transform_up(|expr| {
                let Expr::AggregateFunction(mut function) = expr else { return Ok(Transformed::no(expr)) };
                let is_new = keep_first(&mut function.params.order_by, |sort| &sort.expr);
                Ok(Transformed::new_transformed(Expr::AggregateFunction(function), is_new))
            })?;
            Ok(once.update_data(|expr| name.restore(expr)))
        })
    }
}

/// Keeps the first of several items with the same key; returns whether there were any.
fn keep_first<T>(items: &mut Vec<T>, key: impl Fn(&T) -> &Expr) -> bool {
    let num_items = items.len();
    let mut kept: Vec<T> = Vec::with_capacity(num_items);
    for item in items.drain(..) {
        if kept.iter().all(|before| key(before) != key(&item)) {
            kept.push(item);
        }
    }
    *items = kept;
    items.len() < num_items
}
