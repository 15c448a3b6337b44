//! Comparisons that the engine types as it plans them, before literals are replaced: those of times of day.
//!
//! It compares no time of day with one of another unit, and `TIME '12:30:00'` is of nanoseconds. In `WHERE` that is found
//! after planning; within `NOT`, in a `SELECT` list, in `GROUP BY` and in a join the type is asked for at once.

use std::borrow::Cow;

use arrow_schema::DataType;
use datafusion::common::{DFSchema, Result as PlanResult};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::moments;
use super::parameters::value_of;

/// Compares times of day in a unit that both sides have.
#[derive(Debug)]
pub(crate) struct Times;

impl ExprPlanner for Times {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> PlanResult<PlannerResult<RawBinaryExpr>> {
        let compared = || {
            let op = comparison(&raw.op)?;
            let (left, right) = (bound(&raw.left), bound(&raw.right));
            // A literal, which is mostly on the right, needs no search among the columns.
            let are_times = is_time(&right, schema) && is_time(&left, schema);
            if are_times { moments::of_two(&left, op, &right, schema) } else { None }
        };
        Ok(match compared() {
            Some(compared) => PlannerResult::Planned(compared),
            None => PlannerResult::Original(raw),
        })
    }
}

/// Puts the value of a parameter in its place.
fn bound(side: &Expr) -> Cow<'_, Expr> {
    match value_of(side) {
        Some(value) => Cow::Owned(Expr::Literal(value.clone(), None)),
        None => Cow::Borrowed(side),
    }
}

fn is_time(side: &Expr, schema: &DFSchema) -> bool {
    matches!(side.get_type(schema), Ok(DataType::Time32(_) | DataType::Time64(_)))
}

fn comparison(op: &BinaryOperator) -> Option<Operator> {
    Some(match op {
        BinaryOperator::Eq => Operator::Eq,
        BinaryOperator::NotEq => Operator::NotEq,
        BinaryOperator::Lt => Operator::Lt,
        BinaryOperator::LtEq => Operator::LtEq,
        BinaryOperator::Gt => Operator::Gt,
        BinaryOperator::GtEq => Operator::GtEq,
        _ => return None,
    })
}
