//! Guesses how many rows pass a filter, where only the time of a read depends on it.
//!
//! A comparison of a number with literals is assumed to keep the fraction of a page's rows given by the literals' share
//! of the span between the page's bounds: exact for evenly distributed values, and good for sorted ones if pages are
//! small. Other expressions are not guessed.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Float64Array};
use arrow_schema::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Operator};

use crate::snapshot::PageBounds;

/// The numbers of a column that pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Between {
    column: usize,
    /// The type in which they are compared.
    data_type: DataType,
    low: f64,
    high: f64,
    /// The distance between adjacent numbers; 0 for floats.
    step: f64,
}

impl Between {
    /// Returns the numbers that pass `expr`, a conjunction of comparisons of one column of `schema` with literals.
    pub(super) fn of(expr: &Expr, schema: &Schema) -> Option<Self> {
        let mut between: Option<Self> = None;
        for conjunct in split_conjunction(expr) {
            let (name, op, literal) = comparison(conjunct)?;
            let column = schema.index_of(name).ok()?;
            let stored = schema.field(column).data_type();
            if !is_number(stored) {
                return None;
            }
            let data_type = literal.data_type();
            let value = numbers(&literal.to_array().ok()?, &data_type)?;
            let value = value.is_valid(0).then(|| value.value(0))?;
            let step = if data_type.is_floating() { 0.0 } else { 1.0 };
            let found = between.get_or_insert_with(|| Self {
                column,
                data_type: data_type.clone(),
                low: f64::NEG_INFINITY,
                high: f64::INFINITY,
                step,
            });
            if (found.column, &found.data_type) != (column, &data_type) {
                return None;
            }
            let (low, high) = match op {
                Operator::Eq => (value, value),
                Operator::Lt => (f64::NEG_INFINITY, value - step),
                Operator::LtEq => (f64::NEG_INFINITY, value),
                Operator::Gt => (value + step, f64::INFINITY),
                Operator::GtEq => (value, f64::INFINITY),
                _ => return None,
            };
            (found.low, found.high) = (found.low.max(low), found.high.min(high));
        }
        between
    }

    /// Returns the dataset column.
    pub(super) fn column(&self) -> usize {
        self.column
    }

    /// Returns the fraction of each page's rows that is likely to pass, in a row group of `num_rows` rows whose column
    /// has these bounds.
    pub(super) fn shares(&self, bounds: &PageBounds, num_rows: u32) -> Option<Shares> {
        let (mins, maxes) = (numbers(&bounds.mins, &self.data_type)?, numbers(&bounds.maxes, &self.data_type)?);
        let ends = bounds.first_rows.iter().skip(1).copied().chain([num_rows]);
        let share = |page: usize| match (mins.is_valid(page), maxes.is_valid(page)) {
            (true, true) => self.share(mins.value(page), maxes.value(page)),
            // All NULL, or unknown.
            _ => 0.0,
        };
        Some(Shares(ends.enumerate().map(|(page, end)| (end, share(page))).collect()))
    }

    /// Returns the fraction of the numbers from `min` to `max` that passes.
    fn share(&self, min: f64, max: f64) -> f64 {
        let (low, high) = (self.low.max(min), self.high.min(max));
        if low > high {
            0.0
        } else if max - min + self.step > 0.0 {
            ((high - low + self.step) / (max - min + self.step)).clamp(0.0, 1.0)
        } else {
            1.0
        }
    }
}

/// The fraction of rows that is likely to pass, per page, with the row at which it ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares(Vec<(u32, f64)>);

impl Shares {
    /// Returns the fraction of `rows` that is likely to pass.
    pub(super) fn of(&self, rows: &Range<u32>) -> f64 {
        let first = self.0.partition_point(|(end, _)| *end <= rows.start);
        let (mut start, mut passing) = (rows.start, 0.0);
        for &(end, share) in self.0.iter().skip(first) {
            let end = end.min(rows.end);
            passing += f64::from(end.saturating_sub(start)) * share;
            if end == rows.end {
                break;
            }
            start = end;
        }
        passing / f64::from(rows.end - rows.start).max(1.0)
    }
}

/// Returns column, operator and literal of a comparison, in this order.
fn comparison(expr: &Expr) -> Option<(&str, Operator, &ScalarValue)> {
    let Expr::BinaryExpr(binary) = expr else { return None };
    match (column_of(&binary.left), column_of(&binary.right), binary.left.as_ref(), binary.right.as_ref()) {
        (Some(name), _, _, Expr::Literal(value, _)) => Some((name, binary.op, value)),
        (_, Some(name), Expr::Literal(value, _), _) => Some((name, binary.op.swap()?, value)),
        _ => None,
    }
}

/// Returns the name of a column, possibly cast to the type it is compared with or with canonical floats.
fn column_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Column(column) => Some(&column.name),
        Expr::Cast(cast) => column_of(&cast.expr),
        Expr::ScalarFunction(call) if call.name() == "canonical_float" => column_of(call.args.first()?),
        _ => None,
    }
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric() || data_type.is_temporal()
}

/// Returns values, compared as `data_type`, as floats; `None` if they are not numbers.
fn numbers(values: &ArrayRef, data_type: &DataType) -> Option<Float64Array> {
    let values = arrow_cast::cast(values, data_type).ok()?;
    let values = match data_type {
        DataType::Date32 | DataType::Time32(_) => arrow_cast::cast(&values, &DataType::Int32).ok()?,
        _ if data_type.is_temporal() => arrow_cast::cast(&values, &DataType::Int64).ok()?,
        _ if data_type.is_numeric() => values,
        _ => return None,
    };
    Some(arrow_cast::cast(&values, &DataType::Float64).ok()?.as_primitive::<Float64Type>().clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, TimestampSecondArray};
    use arrow_schema::{Field, TimeUnit};
    use proptest::prelude::*;

    use super::super::parse;
    use super::*;

    fn between(text: &str) -> Option<Between> {
        let time = DataType::Timestamp(TimeUnit::Second, None);
        let fields = [("a", DataType::Int64), ("x", DataType::Float32), ("t", DataType::Utf8), ("at", time)];
        let schema = Arc::new(Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec()));
        Between::of(&parse::parse(text, &schema, &std::collections::BTreeMap::new()).unwrap().expr, &schema)
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn comparisons_with_literals_keep_their_part_of_a_span() {
        let share = |text: &str, min: f64, max: f64| between(text).expect(text).share(min, max);
        assert!(close(share("x < 0.25", 0.0, 1.0), 0.25));
        assert!(close(share("0.75 <= x", 0.0, 1.0), 0.25));
        assert!(close(share("x > 0.25 AND x <= 0.75", 0.0, 0.5), 0.5));
        assert!(close(share("x > 2", 0.0, 0.5), 0.0));
        // Integers have a width.
        assert!(close(share("a = 3", 1.0, 12.0), 1.0 / 12.0));
        assert!(close(share("a < 3", 1.0, 12.0), 2.0 / 12.0));
        assert!(close(share("a BETWEEN 7 AND 8", 1.0, 12.0), 2.0 / 12.0));
        assert!(close(share("a = 3", 3.0, 3.0), 1.0));
    }

    #[test]
    fn what_is_no_comparison_of_a_number_is_not_guessed() {
        for text in ["t > 'x'", "a % 7 = 3", "a = 3 OR a = 9", "a <> 3", "a IS NULL", "CAST(a AS DOUBLE) < x"] {
            assert_eq!(between(text), None, "{text}");
        }
    }

    #[test]
    fn pages_without_bounds_pass_nothing() {
        let times = |seconds: [Option<i64>; 3]| Arc::new(TimestampSecondArray::from(seconds.to_vec())) as ArrayRef;
        let bounds = PageBounds {
            first_rows: vec![0, 10, 20],
            mins: times([Some(0), None, Some(0)]),
            maxes: times([Some(9), None, Some(4)]),
            null_counts: None,
        };
        let found = between("at >= TIMESTAMP '1970-01-01T00:00:05'").unwrap();
        let shares = found.shares(&bounds, 30).unwrap();
        assert_eq!(shares, Shares(vec![(10, 0.5), (20, 0.0), (30, 0.0)]));
    }

    proptest! {
        #[test]
        fn shares_of_rows_are_those_of_their_pages(
            pages in prop::collection::vec((1_u32..40, -50_i64..50, 0_i64..30), 1..8), low in -60_i64..60, len in 0_i64..60,
            from in 0_u32..300, num in 1_u32..300,
        ) {
            let found = between(&format!("a >= {low} AND a <= {}", low + len)).unwrap();
            let mut rows = Vec::new();
            let mut first_rows = Vec::new();
            for &(num_rows, min, width) in &pages {
                first_rows.push(u32::try_from(rows.len()).unwrap());
                let passing = (min..=min + width).filter(|value| (low..=low + len).contains(value)).count();
                let share = f64::from(u32::try_from(passing).unwrap()) / f64::from(u32::try_from(width + 1).unwrap());
                rows.extend(std::iter::repeat_n(share, num_rows as usize));
            }
            let num_rows = u32::try_from(rows.len()).unwrap();
            let mins = Arc::new(Int64Array::from_iter_values(pages.iter().map(|page| page.1))) as ArrayRef;
            let maxes = Arc::new(Int64Array::from_iter_values(pages.iter().map(|page| page.1 + page.2))) as ArrayRef;
            let bounds = PageBounds { first_rows, mins, maxes, null_counts: None };
            let shares = found.shares(&bounds, num_rows).unwrap();
            let from = from % num_rows;
            let until = (from + num).min(num_rows);
            let expected: f64 = rows[from as usize..until as usize].iter().sum::<f64>() / f64::from(until - from);
            prop_assert!(close(shares.of(&(from..until)), expected));
        }
    }
}
