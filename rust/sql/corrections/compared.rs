//! What a total compares with the row around it: `(SELECT count(*) FROM t WHERE t.s['x'] = d.id)`.
//!
//! The engine groups rows by what is compared, and joins the totals by it. It does so only for columns, and for casts of
//! them, as if each value had another cast. So whatever else is compared becomes a column.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, Result as PlanResult};
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Subquery};

use super::correlated;
use crate::engine::walk::{Walk, WalkPlan};

/// What the names of the columns begin with. No column of a dataset has a NUL in its name.
const COMPARED: &str = "\0compared";

/// Computes what totals compare with rows around them in columns.
pub(crate) fn with_compared_columns(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let mut num_columns = 0;
    let compared = plan.transform_nodes(|node| {
        let LogicalPlan::Subquery(subquery) = node else { return Ok(Transformed::no(node)) };
        let rows = Arc::unwrap_or_clone(subquery.subquery);
        let rows = of_total(rows, &mut num_columns)?;
        let subquery = Subquery { subquery: Arc::new(rows.data), ..subquery };
        Ok(Transformed::new(LogicalPlan::Subquery(subquery), rows.transformed, TreeNodeRecursion::Continue))
    })?;
    Ok(compared.data)
}

fn of_total(rows: LogicalPlan, num_columns: &mut usize) -> PlanResult<Transformed<LogicalPlan>> {
    let mut is_in_total = false;
    rows.transform_down(|node| {
        Ok(match node {
            LogicalPlan::Filter(filter) if is_in_total => {
                let filter = with_columns(filter, num_columns)?;
                Transformed::new(filter.data, filter.transformed, TreeNodeRecursion::Jump)
            }
            LogicalPlan::Aggregate(_) => {
                is_in_total = true;
                Transformed::no(node)
            }
            // Its columns are only those that it returns.
            LogicalPlan::SubqueryAlias(_) | LogicalPlan::Subquery(_) => {
                Transformed::new(node, false, TreeNodeRecursion::Jump)
            }
            other => Transformed::no(other),
        })
    })
}

fn with_columns(filter: Filter, num_columns: &mut usize) -> PlanResult<Transformed<LogicalPlan>> {
    let (mut own, mut around) = (Vec::new(), Vec::new());
    for condition in split_conjunction_owned(filter.predicate.clone()) {
        if condition.contains_outer() { around.push(condition) } else { own.push(condition) }
    }
    let mut columns: Vec<Expr> = filter.input.schema().columns().into_iter().map(Expr::Column).collect();
    let returned = columns.clone();
    for condition in &mut around {
        let Some(compared) = computed_in(condition)? else { continue };
        let name = format!("{COMPARED}{num_columns}");
        *num_columns += 1;
        let column = Expr::Column(Column::new_unqualified(&name));
        columns.push(std::mem::replace(compared, column).alias(name));
    }
    if columns.len() == returned.len() {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    // Nothing is computed of rows that are left out.
    let rows = LogicalPlanBuilder::from(Arc::unwrap_or_clone(filter.input));
    let rows = own.into_iter().try_fold(rows, LogicalPlanBuilder::filter)?.project(columns)?;
    // The engine knows the columns of one filter.
    let rows = around.into_iter().reduce(Expr::and).into_iter().try_fold(rows, LogicalPlanBuilder::filter)?;
    Ok(Transformed::yes(rows.project(returned)?.build()?))
}

/// Returns the side of an equation with a row around that is computed from the rows of the total.
fn computed_in(condition: &mut Expr) -> PlanResult<Option<&mut Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else { return Ok(None) };
    let compared = match (left.any_column_refs(), right.any_column_refs()) {
        (true, false) => left,
        (false, true) => right,
        _ => return Ok(None),
    };
    let is_computed = !matches!(**compared, Expr::Column(_)) && !compared.contains_outer();
    let has_subquery = compared.exists(|part| Ok(correlated::subquery_of(part).is_some()))?;
    Ok((is_computed && !has_subquery).then_some(compared))
}
