//! Expressions that the engine types while planning, before literals are replaced: comparisons of times of day, `=
//! ANY`, and the type of an instant.
//!
//! It does not compare times of day in different units, and `TIME '12:30:00'` is in nanoseconds. In `WHERE` that is
//! noticed after planning; within `NOT`, in a `SELECT` list, in `GROUP BY` and in a join the type is required at once.
//! And `TIMESTAMPTZ` has no zone if a session has none: then an instant would be UTC clock time, and next to a column
//! in another zone, that zone's clock time.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{DFSchema, Result as PlanResult};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr, TypePlanner};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, binary_expr};
use datafusion::sql::sqlparser::ast::{self, BinaryOperator};

use super::parameters::value_of;
use super::parser::taken;
use super::walk;
use super::{any, moments};

/// Operators for which the planner would not ask [`Operators`].
const DISTINCT: &str = "IS DISTINCT FROM";
const NOT_DISTINCT: &str = "IS NOT DISTINCT FROM";

/// The zone of `TIMESTAMPTZ`.
const UTC: &str = "+00:00";

/// Makes [`Operators`] plan what it would not be asked about, and [`any`] what the planner types too early.
pub(crate) fn planned_here(node: &mut impl ast::VisitMut) {
    let _: ControlFlow<()> = walk::visit_expressions_mut(node, |expr| {
        match expr {
            ast::Expr::IsDistinctFrom(left, right) => *expr = operator(DISTINCT, left, right),
            ast::Expr::IsNotDistinctFrom(left, right) => *expr = operator(NOT_DISTINCT, left, right),
            ast::Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. }
                if !matches!(**right, ast::Expr::Subquery(_)) =>
            {
                *expr = ast::Expr::Function(call(any::NAME, vec![taken(right), taken(left)]));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
}

fn operator(name: &str, left: &mut ast::Expr, right: &mut ast::Expr) -> ast::Expr {
    let (left, right) = (Box::new(taken(left)), Box::new(taken(right)));
    ast::Expr::BinaryOp { left, op: BinaryOperator::Custom(name.to_owned()), right }
}

/// Returns a call of a function.
pub(crate) fn call(name: &str, arguments: Vec<ast::Expr>) -> ast::Function {
    let args =
        arguments.into_iter().map(|value| ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(value))).collect();
    ast::Function {
        name: ast::Ident::with_quote('"', name).into(),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}

/// Compares times of day in a common unit.
#[derive(Debug)]
pub(super) struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> PlanResult<PlannerResult<RawBinaryExpr>> {
        let Some(op) = comparison(&raw.op) else { return Ok(PlannerResult::Original(raw)) };
        let compared = || {
            let (left, right) = (bound(&raw.left), bound(&raw.right));
            // A literal, usually on the right, needs no search among the columns.
            let are_times = is_time(&right, schema) && is_time(&left, schema);
            if are_times { moments::of_two(&left, op, &right, schema) } else { None }
        };
        Ok(match compared() {
            Some(compared) => PlannerResult::Planned(compared),
            None if matches!(raw.op, BinaryOperator::Custom(_)) => {
                PlannerResult::Planned(binary_expr(raw.left, op, raw.right))
            }
            None => PlannerResult::Original(raw),
        })
    }
}

/// Gives `TIMESTAMPTZ` a zone.
#[derive(Debug)]
pub(super) struct Types;

impl TypePlanner for Types {
    fn plan_type_field(&self, written: &ast::DataType) -> PlanResult<Option<FieldRef>> {
        use ast::TimezoneInfo::{Tz, WithTimeZone};
        let ast::DataType::Timestamp(precision, Tz | WithTimeZone) = written else { return Ok(None) };
        let unit = match precision {
            Some(0) => TimeUnit::Second,
            Some(3) => TimeUnit::Millisecond,
            Some(6) => TimeUnit::Microsecond,
            None | Some(9) => TimeUnit::Nanosecond,
            // Refused by the planner.
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", DataType::Timestamp(unit, Some(UTC.into())), true))))
    }
}

/// Replaces a parameter by its value.
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
        BinaryOperator::Custom(name) if name == DISTINCT => Operator::IsDistinctFrom,
        BinaryOperator::Custom(name) if name == NOT_DISTINCT => Operator::IsNotDistinctFrom,
        _ => return None,
    })
}
