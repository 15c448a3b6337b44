//! Comparisons with points in time that a column of timestamps or times of day cannot represent: `'9999-12-31'`, or a
//! fraction of its unit.
//!
//! DataFusion compares text, dates and timestamps of different units as 64-bit nanoseconds, which end in the year 2262,
//! although `'9999-12-31'` for "no end" and `'0001-01-01'` for "no beginning" are common. And if it uses the column's
//! unit instead, it truncates: a column of milliseconds could equal a timestamp in microseconds. So before type
//! checking, such a literal is replaced by the last value in the column's unit that is not after it, and the comparison
//! by one with the same result. A column of nanoseconds is compared with distant values as microseconds. Times of day
//! have no such range problem, but the engine does not compare different units: `TIME '12:30:00'` takes the column's.
//! Dates are compared with timestamps as days: a day is before a timestamp unless it begins after it.

use std::sync::Arc;

use arrow_schema::{DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue, plan_err};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, ExprSchemable, Operator, binary_expr, cast, lit, not};

use super::choices::{check_classes, of_call, of_case};
use super::depth::balance;
use super::floats::is_comparison;
use super::literals::{negated_if, of_between};
use super::printed;
use super::walk::Walk;

/// Rewrites comparisons with values that a column cannot represent to ones it can.
pub(crate) fn compared_in_their_unit(expr: Expr, schema: &DFSchema) -> PlanResult<Transformed<Expr>> {
    expr.transform_up(|node| {
        check_days(&node, schema)?;
        check_classes(&node, schema)?;
        if let Some(counted) = printed::of_node(&node, schema)? {
            return Ok(Transformed::yes(counted));
        }
        let replaced = match &node {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => of_two(left, *op, right, schema),
            Expr::Between(between) => of_between(between, |moment, op, bound| of_two(moment, op, bound, schema)),
            Expr::InList(list) => of_list(list, schema),
            Expr::Case(case) => of_case(case, schema),
            Expr::ScalarFunction(call) => of_call(call, schema),
            _ => None,
        };
        Ok(replaced.map_or_else(|| Transformed::no(node), Transformed::yes))
    })
}

/// Refuses a date beside an integer, which the engine takes for days since 1970: `day > 2020`.
fn check_days(node: &Expr, schema: &DFSchema) -> PlanResult<()> {
    let check = |day: &Expr, number: &Expr| match literal_of(number) {
        Some((value, None)) if value.data_type().is_integer() => match day.get_type(schema) {
            Ok(DataType::Date32 | DataType::Date64) => plan_err!(
                "`{day}` is a date, and {value} a number; write `DATE '2026-01-01'`, or `date_part('year', {day})`"
            ),
            _ => Ok(()),
        },
        _ => Ok(()),
    };
    match node {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
            check(left, right).and_then(|()| check(right, left))
        }
        Expr::Between(Between { expr, low, high, .. }) => check(expr, low).and_then(|()| check(expr, high)),
        Expr::InList(InList { expr, list, .. }) => list.iter().try_for_each(|item| check(expr, item)),
        _ => Ok(()),
    }
}

/// Returns the equivalent of a comparison for which the engine does not support the two types, or not all their values.
pub(super) fn of_two(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    compared(left, op, right, schema)
        .or_else(|| op.swap().and_then(|swapped| compared(right, swapped, left, schema)))
        .or_else(|| of_columns(left, op, right, schema))
}

fn of_list(list: &InList, schema: &DFSchema) -> Option<Expr> {
    let InList { expr, list, negated } = list;
    let is_never = |is_equal: &Expr| matches!(is_equal, Expr::BinaryExpr(both) if both.op == Operator::And);
    let (mut as_written, mut replaced, mut has_never) = (Vec::new(), Vec::new(), false);
    for item in list {
        let with_literal = compared(expr, Operator::Eq, item, schema);
        // One value that no row equals is as good as a thousand.
        if with_literal.as_ref().is_some_and(is_never) && std::mem::replace(&mut has_never, true) {
            continue;
        }
        match with_literal.or_else(|| of_columns(expr, Operator::Eq, item, schema)) {
            Some(is_equal) => replaced.push(is_equal),
            None => as_written.push(item.clone()),
        }
    }
    let replaced = balance(replaced.into_iter().reduce(Expr::or)?).ok()?;
    let among = (!as_written.is_empty()).then(|| Expr::InList(InList::new(expr.clone(), as_written, false)));
    Some(negated_if(*negated, among.map_or(replaced.clone(), |among| among.or(replaced))))
}

/// Returns the equivalent of a comparison of a column with a literal that it cannot represent.
fn compared(column: &Expr, op: Operator, literal: &Expr, schema: &DFSchema) -> Option<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    // Most are none, and computing the types of the other operands takes time.
    literal_of(literal)?;
    let (column, of_column) = in_its_own_unit(column, schema)?;
    let unit = unit_of(&of_column)?;
    let Moment { count, counted_in, of, is_foreign } = Moment::of(literal, &of_column)?;
    // A time without a zone is one of UTC beside an instant.
    let (of, is_foreign) = match (&of_column, of) {
        (DataType::Timestamp(_, None), Clock::Epoch(Some(_))) => (Clock::Epoch(None), true),
        (_, of) => (of, is_foreign),
    };
    // The engine would cast the column.
    let is_coarse = matches!(of_column, DataType::Timestamp(unit, _) if unit != TimeUnit::Nanosecond);
    let unit = unit.min(Unit::Of(counted_in));
    let parts = unit.nanoseconds() / Unit::Of(counted_in).nanoseconds();
    let is_exact = count.rem_euclid(parts) == 0;
    if is_exact && !is_foreign && !is_coarse {
        return None;
    }
    let before = of.at(count.div_euclid(parts), unit)?;
    if is_exact && !is_foreign {
        let same = before.cast_to(&of_column).ok().filter(|_| is_comparison(op))?;
        return Some(binary_expr(column.clone(), op, lit(same)));
    }
    let data_type = before.data_type();
    let (before, column) = (lit(before), column.clone());
    let column = if data_type == of_column { column } else { cast(column, data_type) };
    // It is between `before` and the next value.
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

/// Returns what a timestamp is cast to a finer unit from, which loses nothing, and its type.
fn in_its_own_unit<'a>(moment: &'a Expr, schema: &DFSchema) -> Option<(&'a Expr, DataType)> {
    use DataType::Timestamp;
    let data_type = moment.get_type(schema).ok()?;
    if let (Expr::Cast(Cast { expr, .. }), Timestamp(unit, zone)) = (moment, &data_type)
        && let Some((own, Timestamp(own_unit, own_zone))) = in_its_own_unit(expr, schema)
        && own_unit < *unit
        && own_zone == *zone
    {
        return Some((own, Timestamp(own_unit, own_zone)));
    }
    Some((moment, data_type))
}

/// Compares non-literals: dates with timestamps, times in UTC with instants, or times of day in two units.
fn of_columns(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    if !is_comparison(op) || literal_of(left).is_some() || literal_of(right).is_some() {
        return None;
    }
    let (of_left, of_right) = (left.get_type(schema).ok()?, right.get_type(schema).ok()?);
    match (&of_left, &of_right) {
        (Date32 | Date64, Timestamp(unit, _)) => of_day(left, op, right, *unit),
        (Timestamp(unit, _), Date32 | Date64) => of_day(right, op.swap()?, left, *unit),
        (Timestamp(_, None), Timestamp(unit, Some(_))) => Some(binary_expr(left.clone(), op, in_utc(right, *unit))),
        (Timestamp(unit, Some(_)), Timestamp(_, None)) => Some(binary_expr(in_utc(left, *unit), op, right.clone())),
        (Time32(left_unit) | Time64(left_unit), Time32(right_unit) | Time64(right_unit)) if left_unit != right_unit => {
            let finer = if left_unit < right_unit { &of_right } else { &of_left };
            let in_finer = |side: &Expr, of: &DataType| {
                if of == finer { side.clone() } else { cast(side.clone(), finer.clone()) }
            };
            Some(binary_expr(in_finer(left, &of_left), op, in_finer(right, &of_right)))
        }
        _ => None,
    }
}

/// Returns what clocks in UTC show at an instant.
fn in_utc(instant: &Expr, unit: TimeUnit) -> Expr {
    cast(cast(instant.clone(), DataType::Timestamp(unit, Some("+00:00".into()))), DataType::Timestamp(unit, None))
}

/// Compares the beginning of a day with a timestamp: in UTC if there is a zone, as the engine does.
fn of_day(day: &Expr, op: Operator, moment: &Expr, unit: TimeUnit) -> Option<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    if day.column_refs().is_empty() {
        // Statistics of a timestamp column can decide what the engine makes of a date literal.
        return None;
    }
    let moment = cast(moment.clone(), DataType::Timestamp(unit, None));
    let day = cast(day.clone(), DataType::Date32);
    let its_day = cast(moment.clone(), DataType::Date32);
    let midnight = lit(ScalarValue::Time64Nanosecond(Some(0)));
    let begins_it = cast(moment.clone(), DataType::Time64(TimeUnit::Nanosecond)).eq(midnight);
    // False, or NULL if one of them is NULL.
    let never = day.clone().lt(its_day.clone()).and(day.clone().gt(its_day.clone()));
    let is_equal = day.clone().eq(its_day.clone()).and(begins_it.clone().or(never));
    let is_after = day.clone().gt(its_day.clone());
    let is_distinct = || {
        let is_other = binary_expr(day.clone(), IsDistinctFrom, its_day.clone());
        is_other.or(moment.clone().is_not_null().and(not(begins_it.clone())))
    };
    Some(match op {
        Eq => is_equal,
        NotEq => not(is_equal),
        Gt => is_after,
        LtEq => not(is_after),
        GtEq => is_after.or(is_equal),
        Lt => not(is_after.or(is_equal)),
        IsDistinctFrom => is_distinct(),
        IsNotDistinctFrom => not(is_distinct()),
        _ => return None,
    })
}

/// The unit of a column, from coarse to fine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Day,
    Of(TimeUnit),
}

impl Unit {
    fn nanoseconds(self) -> i64 {
        match self {
            Self::Day => 86_400_000_000_000,
            Self::Of(TimeUnit::Second) => 1_000_000_000,
            Self::Of(TimeUnit::Millisecond) => 1_000_000,
            Self::Of(TimeUnit::Microsecond) => 1000,
            Self::Of(TimeUnit::Nanosecond) => 1,
        }
    }
}

/// The exact value of a literal.
struct Moment {
    count: i64,
    counted_in: TimeUnit,
    of: Clock,
    /// Whether it cannot be compared with the column as written.
    is_foreign: bool,
}

/// The origin of a count of units.
enum Clock {
    /// 1970, in a zone.
    Epoch(Option<Arc<str>>),
    Midnight,
}

impl Clock {
    /// Returns a timestamp, or a date.
    fn at(&self, count: i64, unit: Unit) -> Option<ScalarValue> {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        Some(match (self, unit) {
            (Self::Epoch(zone), Unit::Of(unit)) => {
                ScalarValue::Int64(Some(count)).cast_to(&DataType::Timestamp(unit, zone.clone())).ok()?
            }
            (Self::Epoch(_), Unit::Day) => ScalarValue::Date32(Some(count.try_into().ok()?)),
            (Self::Midnight, Unit::Of(Second)) => ScalarValue::Time32Second(Some(count.try_into().ok()?)),
            (Self::Midnight, Unit::Of(Millisecond)) => ScalarValue::Time32Millisecond(Some(count.try_into().ok()?)),
            (Self::Midnight, Unit::Of(Microsecond)) => ScalarValue::Time64Microsecond(Some(count)),
            (Self::Midnight, Unit::Of(Nanosecond)) => ScalarValue::Time64Nanosecond(Some(count)),
            (Self::Midnight, Unit::Day) => return None,
        })
    }
}

impl Moment {
    fn of(literal: &Expr, of_column: &DataType) -> Option<Self> {
        let (zone, is_day) = match of_column {
            DataType::Timestamp(_, zone) => (zone.clone(), false),
            // Text and dates are compared with dates directly.
            DataType::Date32 | DataType::Date64 if is_moment(literal) => (None, true),
            DataType::Time32(_) | DataType::Time64(_) => {
                let value = time_of(literal)?;
                let count = count(&value.cast_to(&DataType::Time64(TimeUnit::Nanosecond)).ok()?)?;
                let is_foreign = !value.data_type().is_string() && value.data_type() != *of_column;
                return Some(Self { count, counted_in: TimeUnit::Nanosecond, of: Clock::Midnight, is_foreign });
            }
            _ => return None,
        };
        let is_instant = zone.is_some() && is_of_its_own_zone(literal);
        let (value, own) = match literal_of(literal)? {
            (text, _) if is_instant => (text.clone(), zone.clone()),
            _ => timestamp_of(literal, zone.clone())?,
        };
        let counted =
            |unit| value.cast_to(&DataType::Timestamp(unit, own.clone())).ok().and_then(|moment| count(&moment));
        let (count, counted_in, is_far) = match counted(TimeUnit::Nanosecond) {
            Some(count) => (count, TimeUnit::Nanosecond, false),
            None => (counted(TimeUnit::Microsecond)?, TimeUnit::Microsecond, true),
        };
        // An instant is the same in every zone.
        let is_of_another_zone = own.is_some() && zone.is_some() && own != zone;
        let of = Clock::Epoch(if is_of_another_zone { zone } else { own });
        Some(Self { count, counted_in, of, is_foreign: is_far || is_day || is_instant || is_of_another_zone })
    }
}

/// Returns a literal date, timestamp or time of day as a value of `data_type`, a timestamp or time-of-day type, if that
/// can represent it exactly.
pub(super) fn of_type(literal: &Expr, data_type: &DataType) -> Option<ScalarValue> {
    let (written, to) = literal_of(literal)?;
    if to.unwrap_or(&written.data_type()).is_string() {
        return None;
    }
    let Unit::Of(unit) = unit_of(data_type)? else { return None };
    let Moment { count, counted_in, of, .. } = Moment::of(literal, data_type)?;
    let parts = Unit::Of(unit).nanoseconds() / Unit::Of(counted_in).nanoseconds();
    if parts == 0 || count.rem_euclid(parts) != 0 {
        return None;
    }
    let value = of.at(count.div_euclid(parts), Unit::Of(unit))?;
    match value.data_type() {
        held if held == *data_type => Some(value),
        // The local time in the zone.
        DataType::Timestamp(_, None) => value.cast_to(data_type).ok(),
        _ => None,
    }
}

/// Returns the value of a literal, and the type that it is cast to.
pub(super) fn literal_of(expr: &Expr) -> Option<(&ScalarValue, Option<&DataType>)> {
    let (expr, to) = match expr {
        Expr::Cast(Cast { expr, field }) => (expr.as_ref(), Some(field.data_type())),
        other => (other, None),
    };
    let Expr::Literal(value, _) = expr else { return None };
    (!value.is_null()).then_some((value, to))
}

/// Returns the value of text, a date or a timestamp that is a literal or bound to a parameter, and its zone: that of
/// the other operand, unless it is a timestamp.
fn timestamp_of(literal: &Expr, zone: Option<Arc<str>>) -> Option<(ScalarValue, Option<Arc<str>>)> {
    let (value, to) = literal_of(literal)?;
    match (value.data_type(), to) {
        (text, None) if text.is_string() => Some((value.clone(), zone)),
        (DataType::Utf8, Some(DataType::Timestamp(TimeUnit::Nanosecond, own))) => Some((value.clone(), own.clone())),
        (DataType::Utf8, Some(date @ DataType::Date32)) => Some((value.cast_to(date).ok()?, zone)),
        (DataType::Date32 | DataType::Date64, None) => Some((value.clone(), zone)),
        (DataType::Timestamp(_, own), None) => Some((value.clone(), own)),
        _ => None,
    }
}

/// Returns whether a literal is `TIMESTAMP '2024-01-01 00:00:00Z'`, or has another explicit UTC offset. It is an
/// instant if it is compared with instants; the engine would take its UTC clock time as local time in the column's
/// zone.
fn is_of_its_own_zone(literal: &Expr) -> bool {
    let Some((value, Some(DataType::Timestamp(_, None)))) = literal_of(literal) else { return false };
    let read_in = |zone: &str| value.cast_to(&DataType::Timestamp(TimeUnit::Microsecond, Some(zone.into()))).ok();
    let instants = [read_in("+00:00"), read_in("+01:00")].map(|instant| instant.as_ref().and_then(count));
    value.data_type().is_string() && instants[0].is_some() && instants[0] == instants[1]
}

/// Returns the value of text or a time of day that is a literal or bound to a parameter.
fn time_of(literal: &Expr) -> Option<ScalarValue> {
    let (value, to) = literal_of(literal)?;
    match (value.data_type(), to) {
        (text, None) if text.is_string() => Some(value.clone()),
        (DataType::Utf8, Some(time @ DataType::Time64(TimeUnit::Nanosecond))) => value.cast_to(time).ok(),
        (DataType::Time32(_) | DataType::Time64(_), None) => Some(value.clone()),
        _ => None,
    }
}

fn is_moment(literal: &Expr) -> bool {
    literal_of(literal).is_some_and(|(value, to)| matches!(to.unwrap_or(&value.data_type()), DataType::Timestamp(..)))
}

fn unit_of(data_type: &DataType) -> Option<Unit> {
    match data_type {
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => Some(Unit::Of(*unit)),
        DataType::Date32 | DataType::Date64 => Some(Unit::Day),
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
