//! Covariances, correlations and regressions over frames with a moving start.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use datafusion::common::{Result as PlanResult, ScalarValue, not_impl_err};
use datafusion::logical_expr::{Accumulator, AggregateUDF};

use super::{Moments, Queue, Sliding, Statistic, Summary};

/// Returns the replacement for an aggregate of pairs of doubles, if it needs one.
pub(in crate::sql) fn of_pairs(name: &str) -> Option<AggregateUDF> {
    let (name, statistic) = match name {
        "covar_samp" => ("covar_samp", PairStatistic::Covariance { num_free: 1 }),
        "covar_pop" => ("covar_pop", PairStatistic::Covariance { num_free: 0 }),
        "corr" => ("corr", PairStatistic::Correlation),
        "regr_slope" => ("regr_slope", PairStatistic::Slope),
        "regr_intercept" => ("regr_intercept", PairStatistic::Intercept),
        "regr_r2" => ("regr_r2", PairStatistic::Determination),
        "regr_avgx" => ("regr_avgx", PairStatistic::MeanX),
        "regr_avgy" => ("regr_avgy", PairStatistic::MeanY),
        "regr_sxx" => ("regr_sxx", PairStatistic::SquaresX),
        "regr_syy" => ("regr_syy", PairStatistic::SquaresY),
        "regr_sxy" => ("regr_sxy", PairStatistic::Products),
        _ => return None,
    };
    Some(AggregateUDF::new_from_impl(Sliding::new(name, Statistic::OfPairs(statistic))))
}

/// The statistic of the pairs of a frame, whose first values are the `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PairStatistic {
    /// The sum of products divided by the number of pairs minus `num_free`.
    Covariance {
        num_free: u8,
    },
    Correlation,
    Slope,
    Intercept,
    Determination,
    MeanX,
    MeanY,
    SquaresX,
    SquaresY,
    Products,
}

/// The combined moments of some pairs.
#[derive(Debug, Clone, Copy, Default)]
struct PairMoments {
    y: Moments,
    x: Moments,
    /// Sum of the products of the distances from the means.
    products: f64,
}

impl Summary for PairMoments {
    type Row = (f64, f64);

    fn of((y, x): (f64, f64)) -> Self {
        let (y, x) = (Moments::of(y), Moments::of(x));
        // Zero, or NaN if a value is not finite.
        Self { y, x, products: y.squares + x.squares }
    }

    fn and(self, other: Self) -> Self {
        if self.y.num_values == 0.0 {
            return other;
        }
        if other.y.num_values == 0.0 {
            return self;
        }
        let (y, x) = (self.y.and(other.y), self.x.and(other.x));
        let distances = (other.y.mean - self.y.mean) * (other.x.mean - self.x.mean);
        let weight = self.y.num_values * other.y.num_values / y.num_values;
        Self { y, x, products: self.products + other.products + distances * weight }
    }
}

/// A frame of two columns. Pairs with a NULL do not count.
#[derive(Debug)]
pub(crate) struct PairFrame {
    statistic: PairStatistic,
    pairs: Queue<PairMoments>,
}

impl PairFrame {
    /// Returns a frame without rows.
    pub(crate) fn new(statistic: PairStatistic) -> Self {
        Self { statistic, pairs: Queue::default() }
    }
}

/// Returns the pairs of two columns that have no NULL.
fn pairs_of(values: &[ArrayRef]) -> impl Iterator<Item = (f64, f64)> {
    let [y, x] = [0, 1].map(|column| values[column].as_primitive::<Float64Type>().iter());
    y.zip(x).filter_map(|(y, x)| y.zip(x))
}

impl Accumulator for PairFrame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        pairs_of(values).for_each(|pair| self.pairs.push(pair));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        pairs_of(values).for_each(|_| self.pairs.pop());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> PlanResult<ScalarValue> {
        let PairMoments { y, x, products } = self.pairs.summary();
        let is_line = y.num_values > 1.0 && x.squares != 0.0;
        let slope = products / x.squares;
        let of_any = |value: f64| (y.num_values > 0.0).then_some(value);
        let value = match self.statistic {
            PairStatistic::Covariance { num_free } => y.num_above(num_free).map(|num| products / num),
            // As for the engine, NULL if only one column has a NaN.
            PairStatistic::Correlation if y.squares.is_nan() != x.squares.is_nan() => None,
            PairStatistic::Correlation => {
                (is_line && y.squares != 0.0).then(|| products / x.squares.sqrt() / y.squares.sqrt())
            }
            PairStatistic::Slope => is_line.then_some(slope),
            PairStatistic::Intercept => is_line.then_some(y.mean - slope * x.mean),
            PairStatistic::Determination => (is_line && y.squares != 0.0).then(|| slope * (products / y.squares)),
            PairStatistic::MeanX => of_any(x.total_mean()),
            PairStatistic::MeanY => of_any(y.total_mean()),
            PairStatistic::SquaresX => of_any(x.squares),
            PairStatistic::SquaresY => of_any(y.squares),
            PairStatistic::Products => of_any(products),
        };
        Ok(ScalarValue::Float64(value))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.pairs.capacity_bytes()
    }

    fn state(&mut self) -> PlanResult<Vec<ScalarValue>> {
        not_impl_err!("frames are not computed in parts")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> PlanResult<()> {
        not_impl_err!("frames are not computed in parts")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::Float64Array;
    use proptest::prelude::*;

    use super::super::tests::{frames, slide_columns};
    use super::*;

    /// Returns the statistic of pairs of small integers by its definition.
    fn of_rows(statistic: PairStatistic, rows: &[(f64, f64)]) -> Option<f64> {
        let num = rows.len() as f64;
        let sum = |of: &dyn Fn(f64, f64) -> f64| rows.iter().map(|&(y, x)| of(y, x)).sum::<f64>();
        let (mean_y, mean_x) = (sum(&|y, _| y) / num, sum(&|_, x| x) / num);
        // Exactly zero if all are equal.
        let squares_y = (num * sum(&|y, _| y * y) - sum(&|y, _| y).powi(2)) / num;
        let squares_x = (num * sum(&|_, x| x * x) - sum(&|_, x| x).powi(2)) / num;
        let products = sum(&|y, x| (y - mean_y) * (x - mean_x));
        let is_line = num > 1.0 && squares_x > 0.0;
        let slope = products / squares_x;
        let (holds, value) = match statistic {
            PairStatistic::Covariance { num_free } => {
                (num > f64::from(num_free), products / (num - f64::from(num_free)))
            }
            PairStatistic::Correlation => (is_line && squares_y > 0.0, products / (squares_x * squares_y).sqrt()),
            PairStatistic::Determination => (is_line && squares_y > 0.0, products * products / (squares_x * squares_y)),
            PairStatistic::Slope => (is_line, slope),
            PairStatistic::Intercept => (is_line, mean_y - slope * mean_x),
            PairStatistic::MeanX => (num > 0.0, mean_x),
            PairStatistic::MeanY => (num > 0.0, mean_y),
            PairStatistic::SquaresX => (num > 0.0, squares_x),
            PairStatistic::SquaresY => (num > 0.0, squares_y),
            PairStatistic::Products => (num > 0.0, products),
        };
        holds.then_some(value)
    }

    proptest! {
        #[test]
        fn frames_have_the_statistics_of_their_pairs(
            (pairs, frames) in prop::collection::vec(prop::option::of((-9_i8..9, prop::option::of(-9_i8..9))), 0..60)
                .prop_flat_map(|pairs| { let len = pairs.len(); (Just(pairs), frames(len)) }),
        ) {
            let ys: Vec<Option<f64>> = pairs.iter().map(|pair| pair.map(|(y, _)| y.into())).collect();
            let xs: Vec<Option<f64>> = pairs.iter().map(|pair| pair.and_then(|(_, x)| x).map(f64::from)).collect();
            let columns = [ys.clone(), xs.clone()].map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
            let statistics = [
                PairStatistic::Covariance { num_free: 1 },
                PairStatistic::Covariance { num_free: 0 },
                PairStatistic::Correlation,
                PairStatistic::Slope,
                PairStatistic::Intercept,
                PairStatistic::Determination,
                PairStatistic::MeanX,
                PairStatistic::MeanY,
                PairStatistic::SquaresX,
                PairStatistic::SquaresY,
                PairStatistic::Products,
            ];
            for statistic in statistics {
                let found = slide_columns(PairFrame::new(statistic), &columns, &frames);
                for (found, &(start, end)) in found.into_iter().zip(&frames) {
                    let rows = ys[start..end].iter().zip(&xs[start..end]);
                    let rows: Vec<(f64, f64)> = rows.filter_map(|(y, x)| y.zip(*x)).collect();
                    let expected = of_rows(statistic, &rows);
                    let ScalarValue::Float64(found) = found else { panic!("{found:?}") };
                    let is_near = match (found, expected) {
                        (Some(found), Some(expected)) => (found - expected).abs() <= 1e-9 * expected.abs().max(1.0),
                        (found, expected) => found == expected,
                    };
                    prop_assert!(is_near, "{statistic:?} of {rows:?}: {found:?}, expected {expected:?}");
                }
            }
        }
    }
}
