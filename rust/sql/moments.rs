//! Moments that a column of timestamps or times of day cannot hold, compared with it: `'9999-12-31'`, or a fraction of its unit.
//!
//! DataFusion compares text, dates and timestamps of different units as nanoseconds of 64 bits, which end in the year 2262,
//! though `'9999-12-31'` for "no end" and `'0001-01-01'` for "no beginning" are common. And where it takes the column's unit
//! instead, it cuts off what that does not count: a column of milliseconds would be equal to a moment of microseconds. So such
//! a literal becomes the last moment of the column's unit that is not after it, before types are checked, and the comparison
//! one that has the same answer. A column of nanoseconds is compared as microseconds with what is so far away.
//! Times of day are all near, but those of one unit are not compared with those of another: `TIME '12:30:00'` takes the column's.

use std::sync::Arc;

use arrow_schema::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, Operator, binary_expr, cast, lit, not};

use crate::selection::sql::balance;

/// Has moments that a column cannot hold compared as what it can.
pub(crate) fn compared_in_their_unit(expr: Expr, schema: &DFSchema) -> PlanResult<Transformed<Expr>> {
    expr.transform_up(|node| {
        let replaced = match &node {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => compared(left, *op, right, schema)
                .or_else(|| op.swap().and_then(|swapped| compared(right, swapped, left, schema))),
            Expr::Between(between) => of_between(between, schema),
            Expr::InList(list) => of_list(list, schema),
            _ => None,
        };
        Ok(replaced.map_or_else(|| Transformed::no(node), Transformed::yes))
    })
}

/// The bounds are compared one by one.
fn of_between(between: &Between, schema: &DFSchema) -> Option<Expr> {
    let Between { expr, negated, low, high } = between;
    let (from, to) = (compared(expr, Operator::GtEq, low, schema), compared(expr, Operator::LtEq, high, schema));
    if from.is_none() && to.is_none() {
        return None;
    }
    let as_written = |op, bound: &Expr| binary_expr(expr.as_ref().clone(), op, bound.clone());
    let from = from.unwrap_or_else(|| as_written(Operator::GtEq, low));
    let to = to.unwrap_or_else(|| as_written(Operator::LtEq, high));
    Some(negated_if(*negated, from.and(to)))
}

fn of_list(list: &InList, schema: &DFSchema) -> Option<Expr> {
    let InList { expr, list, negated } = list;
    let is_never = |is_equal: &Expr| matches!(is_equal, Expr::BinaryExpr(both) if both.op == Operator::And);
    let (mut as_written, mut replaced) = (Vec::new(), Vec::new());
    for item in list {
        match compared(expr, Operator::Eq, item, schema) {
            // One that no row is equal to says as much as a thousand.
            Some(is_equal) if is_never(&is_equal) && replaced.iter().any(is_never) => {}
            Some(is_equal) => replaced.push(is_equal),
            None => as_written.push(item.clone()),
        }
    }
    let replaced = balance(replaced.into_iter().reduce(Expr::or)?);
    let among = (!as_written.is_empty()).then(|| Expr::InList(InList::new(expr.clone(), as_written, false)));
    Some(negated_if(*negated, among.map_or(replaced.clone(), |among| among.or(replaced))))
}

fn negated_if(is_negated: bool, expr: Expr) -> Expr {
    if is_negated { not(expr) } else { expr }
}

/// Returns what says the same as a comparison of a column with a literal that is no moment of it.
fn compared(column: &Expr, op: Operator, literal: &Expr, schema: &DFSchema) -> Option<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    // Most are none, and the types of what they are compared with cost time.
    literal_of(literal)?;
    let of_column = column.get_type(schema).ok()?;
    let unit = unit_of(&of_column)?;
    let Moment { count, counted_in, of, is_foreign } = Moment::of(literal, &of_column)?;
    let unit = unit.min(counted_in);
    let parts = per_second(counted_in) / per_second(unit);
    let is_exact = count.rem_euclid(parts) == 0;
    if is_exact && !is_foreign {
        return None;
    }
    let before = of.at(count.div_euclid(parts), unit)?;
    let data_type = before.data_type();
    let (before, column) = (lit(before), column.clone());
    let column = if data_type == of_column { column } else { cast(column, data_type) };
    // It is between `before` and the moment after that.
    let is_equal = || column.clone().lt(before.clone()).and(column.clone().gt(before.clone()));
    Some(match op {
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom if is_exact => {
            binary_expr(column, op, before)
        }
        Lt | LtEq => column.lt_eq(before),
        Gt | GtEq => column.gt(before),
        Eq => is_equal(),
        NotEq => not(is_equal()),
        IsDistinctFrom => lit(true),
        IsNotDistinctFrom => lit(false),
        _ => return None,
    })
}

/// What a literal says, as exactly as can be told.
struct Moment {
    count: i64,
    counted_in: TimeUnit,
    of: Clock,
    /// Not comparable with the column as it is written.
    is_foreign: bool,
}

/// What a number of units counts from.
enum Clock {
    /// 1970, in a zone.
    Epoch(Option<Arc<str>>),
    Midnight,
}

impl Clock {
    /// Returns a moment.
    fn at(&self, count: i64, unit: TimeUnit) -> Option<ScalarValue> {
        Some(match (self, unit) {
            (Self::Epoch(zone), unit) => {
                ScalarValue::Int64(Some(count)).cast_to(&DataType::Timestamp(unit, zone.clone())).ok()?
            }
            (Self::Midnight, TimeUnit::Second) => ScalarValue::Time32Second(Some(count.try_into().ok()?)),
            (Self::Midnight, TimeUnit::Millisecond) => ScalarValue::Time32Millisecond(Some(count.try_into().ok()?)),
            (Self::Midnight, TimeUnit::Microsecond) => ScalarValue::Time64Microsecond(Some(count)),
            (Self::Midnight, TimeUnit::Nanosecond) => ScalarValue::Time64Nanosecond(Some(count)),
        })
    }
}

impl Moment {
    fn of(literal: &Expr, of_column: &DataType) -> Option<Self> {
        let DataType::Timestamp(_, zone) = of_column else {
            let value = time_of(literal)?;
            let count = count(&value.cast_to(&DataType::Time64(TimeUnit::Nanosecond)).ok()?)?;
            let is_foreign = !is_text(&value.data_type()) && value.data_type() != *of_column;
            return Some(Self { count, counted_in: TimeUnit::Nanosecond, of: Clock::Midnight, is_foreign });
        };
        let (value, zone) = timestamp_of(literal, zone.clone())?;
        let counted =
            |unit| value.cast_to(&DataType::Timestamp(unit, zone.clone())).ok().and_then(|moment| count(&moment));
        let (count, counted_in, is_foreign) = match counted(TimeUnit::Nanosecond) {
            Some(count) => (count, TimeUnit::Nanosecond, false),
            None => (counted(TimeUnit::Microsecond)?, TimeUnit::Microsecond, true),
        };
        Some(Self { count, counted_in, of: Clock::Epoch(zone), is_foreign })
    }
}

/// Returns the value of a literal, and the type that it is cast to.
fn literal_of(expr: &Expr) -> Option<(&ScalarValue, Option<&DataType>)> {
    let (expr, to) = match expr {
        Expr::Cast(Cast { expr, field }) => (expr.as_ref(), Some(field.data_type())),
        other => (other, None),
    };
    let Expr::Literal(value, _) = expr else { return None };
    (!value.is_null()).then_some((value, to))
}

/// Returns the value of text, a date or a moment as it is written in SQL, or bound to a parameter, and its zone: that of what it
/// is compared with, unless it is a moment.
fn timestamp_of(literal: &Expr, zone: Option<Arc<str>>) -> Option<(ScalarValue, Option<Arc<str>>)> {
    let (value, to) = literal_of(literal)?;
    match (value.data_type(), to) {
        (text, None) if is_text(&text) => Some((value.clone(), zone)),
        (DataType::Utf8, Some(DataType::Timestamp(TimeUnit::Nanosecond, own))) => Some((value.clone(), own.clone())),
        (DataType::Utf8, Some(date @ DataType::Date32)) => Some((value.cast_to(date).ok()?, zone)),
        (DataType::Date32 | DataType::Date64, None) => Some((value.clone(), zone)),
        (DataType::Timestamp(_, own), None) => Some((value.clone(), own)),
        _ => None,
    }
}

/// Returns the value of text or a time of day as it is written in SQL, or bound to a parameter.
fn time_of(literal: &Expr) -> Option<ScalarValue> {
    let (value, to) = literal_of(literal)?;
    match (value.data_type(), to) {
        (text, None) if is_text(&text) => Some(value.clone()),
        (DataType::Utf8, Some(time @ DataType::Time64(TimeUnit::Nanosecond))) => value.cast_to(time).ok(),
        (DataType::Time32(_) | DataType::Time64(_), None) => Some(value.clone()),
        _ => None,
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn unit_of(data_type: &DataType) -> Option<TimeUnit> {
    match data_type {
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => Some(*unit),
        _ => None,
    }
}

fn count(moment: &ScalarValue) -> Option<i64> {
    match moment {
        ScalarValue::TimestampMicrosecond(count, _) | ScalarValue::TimestampNanosecond(count, _) => *count,
        ScalarValue::Time64Nanosecond(count) => *count,
        _ => None,
    }
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}
