//! Timestamps and times of day in functions that choose or compare values: `CASE`, `coalesce`, `nullif`, `greatest` and
//! `least`.
//!
//! The engine gives all of them one type. With `TIMESTAMP '...'`, that is one of nanoseconds, which end in the year
//! 2262: a column that contains `'9999-12-31'` fails. So literals take the type of what they are combined with, if it
//! can hold them. And `CASE x WHEN y` becomes the `CASE WHEN x = y` that it is short for, whose comparisons are [typed
//! here](super::moments).
//!
//! Class labels, which are numbers, are not mixed with text there.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::{DFSchema, ExprSchema, Result as PlanResult, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Case, Expr, ExprSchemable, Operator, binary_expr, lit};

use super::moments::{literal_of, of_two, of_type};
use crate::features;

/// Functions that return, or compare, any of their arguments.
const CHOICES: [&str; 5] = ["coalesce", "nvl", "nullif", "greatest", "least"];

/// Returns a `CASE` with its comparisons and results in types that hold them.
pub(super) fn of_case(case: &Case, schema: &DFSchema) -> Option<Expr> {
    let searched = searched(case, schema);
    let is_new = searched.is_some();
    let mut case = searched.unwrap_or_else(|| case.clone());
    let results: Vec<&Expr> = results(&case).collect();
    let Some(alike) = alike(&results, schema) else { return is_new.then_some(Expr::Case(case)) };
    let places = case.when_then_expr.iter_mut().map(|(_, then)| then).chain(&mut case.else_expr);
    places.zip(alike).for_each(|(place, result)| **place = result);
    Some(Expr::Case(case))
}

/// Returns a call of one of [`CHOICES`] with its arguments in a type that holds them.
pub(super) fn of_call(call: &ScalarFunction, schema: &DFSchema) -> Option<Expr> {
    if !CHOICES.contains(&call.name()) {
        return None;
    }
    let alike = alike(&call.args.iter().collect::<Vec<_>>(), schema)?;
    Some(Expr::ScalarFunction(ScalarFunction { func: Arc::clone(&call.func), args: alike }))
}

/// Refuses a `ClassLabel`, whose values are numbers, beside text: the engine would write some of the numbers as text.
pub(super) fn check_classes(node: &Expr, schema: &DFSchema) -> PlanResult<()> {
    let values: Vec<&Expr> = match node {
        Expr::Case(case) => results(case).collect(),
        Expr::ScalarFunction(call) if CHOICES.contains(&call.name()) => call.args.iter().collect(),
        _ => return Ok(()),
    };
    let classes = |value: &&Expr| match value {
        Expr::Column(column) => {
            let classes = features::classes(schema.field_from_column(column).ok()?)?;
            Some((column.name.clone(), classes))
        }
        _ => None,
    };
    let Some((label, classes)) = values.iter().find_map(classes) else { return Ok(()) };
    let Some(text) = values.iter().find(|value| value.get_type(schema).is_ok_and(|it| it.is_string())) else {
        return Ok(());
    };
    let name = literal_text(text);
    let number = name.and_then(|name| classes.iter().position(|class| class == name));
    let text = name.map_or_else(|| text.human_display().to_string(), |name| format!("'{name}'"));
    let number = number.map_or_else(|| "the number of a class".to_owned(), |number| format!("`{number}`"));
    plan_err!(
        "`{label}` is a `ClassLabel`, whose values are numbers, and cannot be mixed with the text `{text}`; write \
         {number} instead, or `CAST({label} AS VARCHAR)` for its number as text"
    )
}

fn literal_text(value: &Expr) -> Option<&str> {
    match value {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

/// Returns what a `CASE` may return.
fn results(case: &Case) -> impl Iterator<Item = &Expr> {
    case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr).map(AsRef::as_ref)
}

/// Returns the `CASE WHEN x = y` for a `CASE x WHEN y` on timestamps, dates or times of day.
fn searched(case: &Case, schema: &DFSchema) -> Option<Case> {
    use DataType::{Date32, Date64, FixedSizeBinary, Time32, Time64, Timestamp};
    let sought = case.expr.as_deref()?;
    let of_sought = sought.get_type(schema).ok()?;
    // The engine panics if bytes of a fixed length are looked up.
    if !matches!(of_sought, Timestamp(..) | Date32 | Date64 | Time32(_) | Time64(_) | FixedSizeBinary(_)) {
        return None;
    }
    let is_equal = |when: &Expr| {
        let as_written = || binary_expr(sought.clone(), Operator::Eq, when.clone());
        of_two(sought, Operator::Eq, when, schema).unwrap_or_else(as_written)
    };
    let when_then = case.when_then_expr.iter().map(|(when, then)| (Box::new(is_equal(when)), then.clone())).collect();
    Some(Case::new(None, when_then, case.else_expr.clone()))
}

/// Gives literals the type of the other values; `None` if that changes nothing.
fn alike(values: &[&Expr], schema: &DFSchema) -> Option<Vec<Expr>> {
    // Most have none, and computing the types of the others takes time.
    if !values.iter().any(|value| literal_of(value).is_some()) {
        return None;
    }
    let mut common: Option<DataType> = None;
    for value in values.iter().filter(|value| !is_literal(value)) {
        let data_type = value.get_type(schema).ok()?;
        common = Some(match common {
            None => data_type,
            Some(known) => finer(known, data_type)?,
        });
    }
    let common = common?;
    let typed: Vec<Option<Expr>> = values.iter().map(|value| of_type(value, &common).map(lit)).collect();
    if typed.iter().all(Option::is_none) {
        return None;
    }
    Some(typed.into_iter().zip(values).map(|(typed, &value)| typed.unwrap_or_else(|| value.clone())).collect())
}

fn is_literal(value: &Expr) -> bool {
    matches!(value, Expr::Literal(..)) || literal_of(value).is_some()
}

/// Returns the one of two timestamp types that has the finer unit; `None` for any other types.
fn finer(left: DataType, right: DataType) -> Option<DataType> {
    if left == right {
        return Some(left);
    }
    let order = match (&left, &right) {
        (DataType::Timestamp(left, of_left), DataType::Timestamp(right, of_right)) if of_left == of_right => {
            left.cmp(right)
        }
        _ => return None,
    };
    Some(if order == Ordering::Less { right } else { left })
}
