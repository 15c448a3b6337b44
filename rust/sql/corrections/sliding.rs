//! Sums, means, deviations and, in [`pairs`], what relates two columns, over frames with a moving start.
//!
//! The engine subtracts what leaves a frame from what it has added. That rounds twice, and a NaN or an infinity never
//! leaves. Here a frame is a queue of two stacks (Tangwongsan et al., "General incremental sliding-window aggregation",
//! VLDB 2015): each row that leaves next stores the aggregate of itself and the following ones, so nothing is ever
//! subtracted, and each row costs two additions. For `DISTINCT` integers, which are exact, what leaves is subtracted.

mod pairs;

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use datafusion::common::{Result as PlanResult, ScalarValue, not_impl_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

pub(super) use self::pairs::of_pairs;
use self::pairs::{PairFrame, PairStatistic};

/// Returns the replacement for an aggregate of doubles, if it needs one.
pub(super) fn of_floats(name: &str) -> Option<AggregateUDF> {
    let (name, statistic) = match name {
        "sum" => ("sum", Statistic::Sum),
        "avg" => ("avg", Statistic::Mean),
        "var" => ("var", Statistic::Variance { num_free: 1 }),
        "var_pop" => ("var_pop", Statistic::Variance { num_free: 0 }),
        "stddev" => ("stddev", Statistic::Deviation { num_free: 1 }),
        "stddev_pop" => ("stddev_pop", Statistic::Deviation { num_free: 0 }),
        _ => return None,
    };
    Some(AggregateUDF::new_from_impl(Sliding::new(name, statistic)))
}

/// Returns the replacement for the sum of distinct 128-bit decimals.
pub(super) fn of_different_decimals() -> AggregateUDF {
    AggregateUDF::new_from_impl(Sliding::new("sum", Statistic::DistinctSum))
}

/// The statistic of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Statistic {
    #[default]
    Sum,
    Mean,
    /// The sum of squares divided by the number of rows minus `num_free`.
    Variance {
        num_free: u8,
    },
    /// Its root.
    Deviation {
        num_free: u8,
    },
    DistinctSum,
    OfPairs(PairStatistic),
}

/// An aggregate only for windows.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sliding {
    name: &'static str,
    statistic: Statistic,
    signature: Signature,
}

impl Sliding {
    fn new(name: &'static str, statistic: Statistic) -> Self {
        let num_arguments = if matches!(statistic, Statistic::OfPairs(_)) { 2 } else { 1 };
        Self { name, statistic, signature: Signature::any(num_arguments, Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for Sliding {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        Ok(if self.statistic == Statistic::DistinctSum { arguments[0].clone() } else { DataType::Float64 })
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> PlanResult<Box<dyn Accumulator>> {
        Ok(match (arguments.return_type(), self.statistic) {
            (&DataType::Decimal128(precision, scale), _) => {
                Box::new(DistinctSum { precision, scale, counts: HashMap::new(), sum: 0 })
            }
            (_, Statistic::OfPairs(statistic)) => Box::new(PairFrame::new(statistic)),
            _ => Box::new(Frame { statistic: self.statistic, ..Frame::default() }),
        })
    }
}

/// What a frame knows of some rows.
trait Summary: Copy + Default {
    type Row: Copy;

    fn of(row: Self::Row) -> Self;

    /// Returns the summary of the rows of both.
    fn and(self, other: Self) -> Self;
}

/// The combined moments of some rows.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    num_values: f64,
    sum: f64,
    mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Summary for Moments {
    type Row = f64;

    fn of(value: f64) -> Self {
        let squares = if value.is_finite() { 0.0 } else { f64::NAN };
        Self { num_values: 1.0, sum: value, mean: value, squares }
    }

    /// Combines them as Chan et al. (1979) do.
    fn and(self, other: Self) -> Self {
        if self.num_values == 0.0 {
            return other;
        }
        if other.num_values == 0.0 {
            return self;
        }
        let num_values = self.num_values + other.num_values;
        let distance = other.mean - self.mean;
        Self {
            num_values,
            sum: self.sum + other.sum,
            mean: self.mean + distance * (other.num_values / num_values),
            squares: self.squares
                + other.squares
                + distance * distance * (self.num_values * other.num_values / num_values),
        }
    }
}

impl Moments {
    fn total_mean(&self) -> f64 {
        self.sum / self.num_values
    }

    /// Returns the number of rows minus `num_free`, if any remain.
    fn num_above(&self, num_free: u8) -> Option<f64> {
        Some(self.num_values - f64::from(num_free)).filter(|num| *num > 0.0)
    }
}

/// The rows of a frame, in order of arrival.
#[derive(Debug)]
struct Queue<S: Summary> {
    /// For each of the older rows, the next to leave last: the summary of it and the following older ones.
    older: Vec<S>,
    newer: Vec<S::Row>,
    of_newer: S,
}

impl<S: Summary> Default for Queue<S> {
    fn default() -> Self {
        Self { older: Vec::new(), newer: Vec::new(), of_newer: S::default() }
    }
}

impl<S: Summary> Queue<S> {
    fn push(&mut self, row: S::Row) {
        self.newer.push(row);
        self.of_newer = self.of_newer.and(S::of(row));
    }

    fn pop(&mut self) {
        if self.older.is_empty() {
            let mut behind = S::default();
            self.older.extend(self.newer.drain(..).rev().map(|row| {
                behind = S::of(row).and(behind);
                behind
            }));
            self.of_newer = S::default();
        }
        self.older.pop();
    }

    /// Returns the summary of all rows.
    fn summary(&self) -> S {
        self.older.last().copied().unwrap_or_default().and(self.of_newer)
    }

    fn capacity_bytes(&self) -> usize {
        self.older.capacity() * size_of::<S>() + self.newer.capacity() * size_of::<S::Row>()
    }
}

/// A frame of a column.
#[derive(Debug, Default)]
struct Frame {
    statistic: Statistic,
    values: Queue<Moments>,
}

impl Accumulator for Frame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        values[0].as_primitive::<Float64Type>().iter().flatten().for_each(|value| self.values.push(value));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        // Rows leave in the order in which they arrived.
        (values[0].null_count()..values[0].len()).for_each(|_| self.values.pop());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> PlanResult<ScalarValue> {
        let all = self.values.summary();
        let variance = |num_free: u8| all.num_above(num_free).map(|num| all.squares / num);
        let value = match self.statistic {
            Statistic::Variance { num_free } => variance(num_free),
            Statistic::Deviation { num_free } => variance(num_free).map(f64::sqrt),
            Statistic::Mean => (all.num_values > 0.0).then(|| all.total_mean()),
            Statistic::Sum | Statistic::DistinctSum | Statistic::OfPairs(_) => {
                (all.num_values > 0.0).then_some(all.sum)
            }
        };
        Ok(ScalarValue::Float64(value))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity_bytes()
    }

    fn state(&mut self) -> PlanResult<Vec<ScalarValue>> {
        not_impl_err!("frames are not computed in parts")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> PlanResult<()> {
        not_impl_err!("frames are not computed in parts")
    }
}

/// The sum of the distinct values of a frame.
#[derive(Debug)]
struct DistinctSum {
    precision: u8,
    scale: i8,
    counts: HashMap<i128, usize>,
    sum: i128,
}

impl Accumulator for DistinctSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        for value in values[0].as_primitive::<Decimal128Type>().iter().flatten() {
            let count = self.counts.entry(value).or_default();
            *count += 1;
            if *count == 1 {
                self.sum = self.sum.checked_add(value).ok_or_else(too_large)?;
            }
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        for value in values[0].as_primitive::<Decimal128Type>().iter().flatten() {
            let Some(count) = self.counts.get_mut(&value) else { continue };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&value);
                self.sum = self.sum.checked_sub(value).ok_or_else(too_large)?;
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> PlanResult<ScalarValue> {
        let sum = (!self.counts.is_empty()).then_some(self.sum);
        Ok(ScalarValue::Decimal128(sum, self.precision, self.scale))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i128, usize)>()
    }

    fn state(&mut self) -> PlanResult<Vec<ScalarValue>> {
        not_impl_err!("frames are not computed in parts")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> PlanResult<()> {
        not_impl_err!("frames are not computed in parts")
    }
}

fn too_large() -> DataFusionError {
    DataFusionError::Execution("a sum of different values has more than 38 digits".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Decimal128Array, Float64Array};
    use proptest::prelude::*;

    use super::*;

    /// Returns a statistic for each of the frames, whose starts and ends never go back.
    fn slide(state: impl Accumulator, column: &ArrayRef, frames: &[(usize, usize)]) -> Vec<ScalarValue> {
        slide_columns(state, std::slice::from_ref(column), frames)
    }

    pub(crate) fn slide_columns(
        mut state: impl Accumulator,
        columns: &[ArrayRef],
        frames: &[(usize, usize)],
    ) -> Vec<ScalarValue> {
        let (mut start, mut end) = (0, 0);
        let rows = |start, end| columns.iter().map(|column| column.slice(start, end - start)).collect::<Vec<_>>();
        let slid = frames.iter().map(|&frame| {
            state.update_batch(&rows(end, frame.1)).unwrap();
            state.retract_batch(&rows(start, frame.0)).unwrap();
            (start, end) = frame;
            state.evaluate().unwrap()
        });
        slid.collect()
    }

    /// Frames of up to `num_rows` rows whose starts and ends never go back.
    pub(crate) fn frames(num_rows: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
        let bounds = || prop::collection::vec(0..=num_rows, 1..20);
        (bounds(), bounds()).prop_map(|(mut starts, mut ends)| {
            starts.sort_unstable();
            ends.sort_unstable();
            starts.into_iter().zip(ends).map(|(start, end)| (start.min(end), end)).collect()
        })
    }

    proptest! {
        #[test]
        fn frames_have_the_statistics_of_their_rows(
            (values, frames) in prop::collection::vec(prop::option::of(-100_i16..100), 0..60)
                .prop_flat_map(|values| { let len = values.len(); (Just(values), frames(len)) }),
        ) {
            let values: Vec<Option<f64>> = values.into_iter().map(|value| value.map(f64::from)).collect();
            let column: ArrayRef = Arc::new(Float64Array::from(values.clone()));
            let mean = |rows: &[f64]| rows.iter().sum::<f64>() / rows.len() as f64;
            let variance = |rows: &[f64], num_free: usize| {
                let squares = rows.iter().map(|value| (value - mean(rows)).powi(2)).sum::<f64>();
                (rows.len() > num_free).then(|| squares / (rows.len() - num_free) as f64)
            };
            let has_rows = |rows: &[f64]| !rows.is_empty();
            type Model<'a> = (Statistic, &'a dyn Fn(&[f64]) -> Option<f64>);
            let models: [Model<'_>; 6] = [
                (Statistic::Sum, &|rows| has_rows(rows).then(|| rows.iter().sum())),
                (Statistic::Mean, &|rows| has_rows(rows).then(|| mean(rows))),
                (Statistic::Variance { num_free: 1 }, &|rows| variance(rows, 1)),
                (Statistic::Variance { num_free: 0 }, &|rows| variance(rows, 0)),
                (Statistic::Deviation { num_free: 1 }, &|rows| variance(rows, 1).map(f64::sqrt)),
                (Statistic::Deviation { num_free: 0 }, &|rows| variance(rows, 0).map(f64::sqrt)),
            ];
            for (statistic, model) in models {
                let found = slide(Frame { statistic, ..Frame::default() }, &column, &frames);
                for (found, &(start, end)) in found.into_iter().zip(&frames) {
                    let rows: Vec<f64> = values[start..end].iter().copied().flatten().collect();
                    let ScalarValue::Float64(found) = found else { panic!("{found:?}") };
                    let is_near = match (found, model(&rows)) {
                        (Some(found), Some(expected)) => (found - expected).abs() <= 1e-9 * expected.abs().max(1.0),
                        (found, expected) => found == expected,
                    };
                    prop_assert!(is_near, "{statistic:?} of {rows:?}: {found:?}");
                }
            }
        }

        #[test]
        fn different_values_are_summed_once(
            (values, frames) in prop::collection::vec(prop::option::of(-3_i128..4), 0..40)
                .prop_flat_map(|values| { let len = values.len(); (Just(values), frames(len)) }),
        ) {
            let column: ArrayRef = Arc::new(Decimal128Array::from(values.clone()));
            let state = DistinctSum { precision: 38, scale: 0, counts: HashMap::new(), sum: 0 };
            for (found, &(start, end)) in slide(state, &column, &frames).into_iter().zip(&frames) {
                let mut rows: Vec<i128> = values[start..end].iter().copied().flatten().collect();
                rows.sort_unstable();
                rows.dedup();
                let sum = (!rows.is_empty()).then(|| rows.iter().sum());
                prop_assert_eq!(found, ScalarValue::Decimal128(sum, 38, 0));
            }
        }
    }

    #[test]
    fn what_is_not_finite_leaves() {
        let column: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::NAN, f64::INFINITY, 1e20, 0.25, 0.5]));
        let frames = [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6)];
        let sums = slide(Frame::default(), &column, &frames);
        let shown: Vec<String> = sums.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["NaN", "NaN", "inf", "100000000000000000000", "0.75"]);
        let statistic = Statistic::Variance { num_free: 1 };
        let variances = slide(Frame { statistic, ..Frame::default() }, &column, &frames);
        assert_eq!(variances.last(), Some(&ScalarValue::Float64(Some(0.03125))));
    }
}
