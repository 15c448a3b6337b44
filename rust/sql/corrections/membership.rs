//! `x IN (SELECT ...)` where it matters whether it is false or NULL.
//!
//! It is NULL if `x` is, or if `x` is not among the values and one of these is NULL. The engine respects that only for
//! a condition that consists of `x NOT IN (SELECT ...)`. Inside others it uses a join, which has false for NULL, so
//! that `x NOT IN (SELECT ...) OR y` would keep too many rows. There, a `CASE` adds what the join omits; and for a
//! correlated `SELECT` or a constant, for which the engine has no join with NULL.
//!
//! The `CASE` counts the values once for all rows. For a correlated `SELECT`, it asks whether there are some.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result as PlanResult, ScalarValue};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, lit, scalar_subquery, when,
};

use crate::engine::walk::{Walk, WalkPlan};

/// Distinguishes NULL from false in the conditions of a plan.
pub(crate) fn with_unknown_members(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let told = plan.transform_nodes(|node| {
        let LogicalPlan::Filter(filter) = node else { return Ok(Transformed::no(node)) };
        let Filter { predicate, input, .. } = filter;
        let told = told(predicate, true)?;
        let filter = Filter::try_new(told.data, input)?;
        Ok(Transformed::new_transformed(LogicalPlan::Filter(filter), told.transformed))
    })?;
    Ok(told.data)
}

/// Rewrites a condition whose rows are kept if it is true; `is_whole` says whether it is one of the top-level
/// conjuncts.
fn told(condition: Expr, is_whole: bool) -> PlanResult<Transformed<Expr>> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let is_whole = is_whole && op == Operator::And;
            let (left, right) = (told(*left, is_whole)?, told(*right, is_whole)?);
            let is_new = left.transformed || right.transformed;
            let both = BinaryExpr { left: Box::new(left.data), op, right: Box::new(right.data) };
            Ok(Transformed::new_transformed(Expr::BinaryExpr(both), is_new))
        }
        Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_)) => {
            let Expr::InSubquery(inner) = *inner else { return Ok(Transformed::no(Expr::Not(inner))) };
            let flipped = Expr::InSubquery(InSubquery { negated: !inner.negated, ..inner });
            Ok(Transformed::new_transformed(told(flipped, is_whole)?.data, true))
        }
        Expr::InSubquery(inner)
            if inner.negated && (!inner.subquery.outer_ref_columns.is_empty() || !inner.expr.any_column_refs()) =>
        {
            three_valued(inner).map(Transformed::yes)
        }
        Expr::InSubquery(inner) if is_whole || !inner.negated => Ok(Transformed::no(Expr::InSubquery(inner))),
        other => other.transform_up(|node| match node {
            Expr::InSubquery(inner) => three_valued(inner).map(Transformed::yes),
            other => Ok(Transformed::no(other)),
        }),
    }
}

fn three_valued(inner: InSubquery) -> PlanResult<Expr> {
    let values = LogicalPlanBuilder::from(inner.subquery.subquery.as_ref().clone());
    let columns = values.schema().columns();
    // Others are refused by the type check.
    let [value] = columns.as_slice() else { return Ok(Expr::InSubquery(inner)) };
    let value = Expr::Column(value.clone());
    let InSubquery { expr, subquery, negated } = inner;
    let are_there = |rows: LogicalPlanBuilder| -> PlanResult<Expr> {
        if !subquery.outer_ref_columns.is_empty() {
            let rows = Subquery { subquery: rows.build()?.into(), ..subquery.clone() };
            return Ok(Expr::Exists(Exists { subquery: rows, negated: false }));
        }
        let counted = rows.aggregate(Vec::<Expr>::new(), [count(lit(1_i64))])?.build()?;
        Ok(scalar_subquery(counted.into()).gt(lit(0_i64)))
    };
    let (has_values, has_nulls) = (are_there(values.clone())?, are_there(values.filter(value.is_null())?)?);
    let is_unknown = expr.as_ref().clone().is_null().or(has_nulls);
    let is_there = Expr::InSubquery(InSubquery { expr, subquery, negated: false });
    when(is_there, lit(!negated))
        .when(!has_values, lit(negated))
        .when(is_unknown, lit(ScalarValue::Boolean(None)))
        .otherwise(lit(negated))
}
