//! Draws the rows of an epoch with replacement, each in proportion to its weight.
//!
//! Draw k of an epoch is the first row at which the cumulative weight exceeds `u(k)` times the total, with u from
//! [`seed`](super::seed). Sorted by row, the draws take the place of the kept rows: spans have as many rows as were
//! drawn from them, and everything that the order contract says about kept rows holds for draws.

use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::seed::{Key, Purpose, STEP};
use super::{EpochPlan, Order, Piece, PieceId, Span};
use crate::config;
use crate::hex::hex;

/// Bytes of a hash that identifies a list of weights.
const DIGEST_BYTES: usize = 16;

/// Sums below this are multiplied by [`ENLARGED`]: a double would keep fewer digits of a fraction of them than a draw
/// has.
const LEAST_SUM: f64 = f64::MIN_POSITIVE / STEP;

/// A power of two, so that only exponents change.
const ENLARGED: f64 = f64::from_bits((1023 + 1000) << 52);

/// For each draw, while an epoch is drawn: its number, and its row.
const BYTES_OF_DRAW: u64 = 12;

/// The weights of kept rows, in dataset order, and the number of draws in an epoch.
#[derive(Debug)]
pub struct Weights {
    /// The cumulative weight of each row, including its own.
    sums: Vec<f64>,
    num_draws: u32,
    digest: [u8; DIGEST_BYTES],
}

impl PartialEq for Weights {
    fn eq(&self, other: &Self) -> bool {
        (self.digest, self.num_draws) == (other.digest, other.num_draws)
    }
}

impl Eq for Weights {}

impl Weights {
    /// Adds up the weights.
    ///
    /// # Errors
    ///
    /// Says which weight is invalid: negative, or not finite; or that there is nothing to draw from, or too much to
    /// draw.
    pub fn try_new(weights: impl IntoIterator<Item = f64>, num_draws: u32) -> Result<Self, String> {
        let needed = u64::from(num_draws) * BYTES_OF_DRAW;
        if needed > config::largest_read_bytes() {
            return Err(format!(
                "to draw {num_draws} rows takes {needed} bytes, more than half of the machine's memory; pass a \
                 smaller `num_samples`"
            ));
        }
        let (mut sum, mut sums, mut hash) = (0.0, Vec::new(), Sha256::new());
        for (weight, row) in weights.into_iter().zip(0_u64..) {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(format!("row {row} has the weight {weight}; expected a finite number of 0 or more"));
            }
            sum += weight;
            sums.push(sum);
            hash.update(weight.to_bits().to_le_bytes());
        }
        if !(sum.is_finite() && sum > 0.0) {
            return Err(format!(
                "all {} rows have weights that add up to {sum}; expected a finite number above 0",
                sums.len()
            ));
        }
        if sum < LEAST_SUM {
            sums.iter_mut().for_each(|sum| *sum *= ENLARGED);
        }
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&hash.finalize()[..DIGEST_BYTES]);
        Ok(Self { sums, num_draws, digest })
    }

    /// Returns the number of rows with a weight.
    pub fn num_rows(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Returns the number of draws in an epoch.
    pub fn num_draws(&self) -> u32 {
        self.num_draws
    }

    /// Describes the weights for a state.
    pub fn describe(&self) -> String {
        format!("{} rows drawn by weights {}", self.num_draws, hex(self.digest))
    }

    /// Returns the weights as bytes, for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let sums = self.sums.iter().flat_map(|sum| sum.to_bits().to_le_bytes());
        self.digest.into_iter().chain(self.num_draws.to_le_bytes()).chain(sums).collect()
    }

    /// Restores what [`Self::to_bytes`] wrote; `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&digest, rest) = bytes.split_first_chunk::<DIGEST_BYTES>()?;
        let (&num_draws, rest) = rest.split_first_chunk::<4>()?;
        let (sums, rest) = rest.as_chunks::<8>();
        let sums: Vec<f64> = sums.iter().map(|&sum| f64::from_bits(u64::from_le_bytes(sum))).collect();
        let is_sound = rest.is_empty() && sums.is_sorted() && sums.last().is_some_and(|sum| sum.is_finite());
        is_sound.then(|| Self { sums, num_draws: u32::from_le_bytes(num_draws), digest })
    }

    /// Draws the rows of an epoch, sorted.
    fn draw(&self, seed: u64, epoch: u64) -> impl Iterator<Item = u64> {
        let mut draws = Key::new(seed, epoch, Purpose::Draws).draws(0);
        let mut drawn: Vec<u64> = (0..self.num_draws).map(|_| draws.next_bits()).collect();
        // Ascending uniforms are ascending rows, so one pass finds them all.
        drawn.sort_unstable();
        let total = self.sums.last().copied().unwrap_or(0.0);
        // A product that rounds up to the total belongs to the last row with a weight.
        let last = self.sums.partition_point(|&sum| sum < total);
        let mut row = 0;
        drawn.into_iter().map(move |bits| {
            let target = bits as f64 * STEP * total;
            while row < last && self.sums[row] <= target {
                row += 1;
            }
            row as u64
        })
    }
}

/// The kept rows that were drawn from each span, repeated accordingly.
#[derive(Debug)]
pub(super) struct Drawn {
    rows: Vec<u32>,
    /// Where those of each span begin, and the last ones end.
    starts: Vec<usize>,
}

impl Drawn {
    fn of_span(&self, span: u32) -> &[u32] {
        let bounds = self.starts.get(span as usize).zip(self.starts.get(span as usize + 1));
        bounds.and_then(|(&start, &end)| self.rows.get(start..end)).unwrap_or_default()
    }
}

impl EpochPlan {
    /// Plans an epoch of the kept rows that `weights` draw, over spans in dataset order.
    ///
    /// Costs a sort of the draws and a pass over the weights; holds 4 bytes per draw in addition to what
    /// [`new`](Self::new) holds.
    pub fn drawn(spans: &[Span], order: Order, epoch: u64, weights: &Weights) -> Self {
        let seed = if let Order::Shuffled { seed, .. } = order { seed } else { 0 };
        let mut drawn = Drawn { rows: Vec::with_capacity(weights.num_draws as usize), starts: vec![0] };
        let mut draws = weights.draw(seed, epoch).peekable();
        let mut first = 0;
        let mut counted = spans.to_vec();
        for span in &mut counted {
            let end = first + u64::from(span.num_kept);
            while let Some(row) = draws.next_if(|&row| row < end) {
                drawn.rows.push(u32::try_from(row - first).unwrap_or(u32::MAX));
            }
            let start = drawn.starts.last().copied().unwrap_or(0);
            span.num_kept = u32::try_from(drawn.rows.len() - start).unwrap_or(u32::MAX);
            drawn.starts.push(drawn.rows.len());
            first = end;
        }
        Self::of_rows(counted.into(), order, epoch, Some(drawn))
    }

    /// Returns whether rows were drawn, so that a row of a span may be any kept one, and several may be the same.
    pub fn is_drawn(&self) -> bool {
        self.inner.drawn.is_some()
    }

    /// Returns the kept row that row `number` of a span is.
    pub fn kept_row(&self, span: u32, number: u32) -> u32 {
        match &self.inner.drawn {
            None => number,
            Some(drawn) => drawn.of_span(span).get(number as usize).copied().unwrap_or(u32::MAX),
        }
    }

    /// Returns a piece with the kept rows of its span from the first to the last drawn one.
    pub fn kept_piece(&self, id: PieceId) -> Piece {
        let piece = self.piece(id);
        let Some(drawn) = &self.inner.drawn else { return piece };
        let rows = drawn.of_span(id.span).get(piece.kept.start as usize..piece.kept.end as usize).unwrap_or_default();
        let kept = rows.first().zip(rows.last()).map_or(0..0, |(&first, &last)| first..last + 1);
        Piece { id, kept }
    }

    /// Returns the numbers, among the rows of its span, of a piece's rows that are in `kept`.
    pub fn numbers(&self, id: PieceId, kept: &Range<u32>) -> Range<u32> {
        let Some(drawn) = &self.inner.drawn else { return kept.clone() };
        let piece = self.piece(id).kept;
        let rows = drawn.of_span(id.span).get(piece.start as usize..piece.end as usize).unwrap_or_default();
        let number = |end: u32| piece.start + u32::try_from(rows.partition_point(|&row| row < end)).unwrap_or(u32::MAX);
        number(kept.start)..number(kept.end)
    }

    /// Returns which of some kept rows of a piece's span were drawn, counted from the first of them; `None` if all are
    /// read anyway.
    pub fn drawn_rows(&self, id: PieceId, kept: &Range<u32>) -> Option<Arc<[u32]>> {
        let drawn = self.inner.drawn.as_ref()?.of_span(id.span);
        let piece = self.piece(id).kept;
        let rows = drawn.get(piece.start as usize..piece.end as usize)?;
        let mut wanted: Vec<u32> = rows.iter().filter(|row| kept.contains(row)).map(|row| row - kept.start).collect();
        wanted.dedup();
        Some(wanted.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spans(lens: &[u32]) -> Vec<Span> {
        lens.iter().map(|&num_kept| Span { row_group: 0, start: 0, end: num_kept, num_kept }).collect()
    }

    /// Draws rows one by one, as defined above.
    fn slow(weights: &[f64], num_draws: u32, seed: u64, epoch: u64) -> Vec<u64> {
        let total: f64 = weights.iter().sum();
        let mut draws = Key::new(seed, epoch, Purpose::Draws).draws(0);
        let mut rows: Vec<u64> = (0..num_draws)
            .map(|_| {
                let target = draws.next_uniform() * total;
                let mut sum = 0.0;
                let found = weights.iter().position(|weight| {
                    sum += weight;
                    sum > target
                });
                found.unwrap() as u64
            })
            .collect();
        rows.sort_unstable();
        rows
    }

    fn order(seed: u64, num_lanes: u32, window_rows: u64) -> Order {
        Order::Shuffled { seed, num_lanes, window_rows }
    }

    proptest! {
        #[test]
        fn an_epoch_has_every_draw_once(
            lens in prop::collection::vec(1_u32..20, 1..12),
            (num_draws, seed, epoch) in (1_u32..300, any::<u64>(), 0_u64..4),
            (num_lanes, window_rows) in (1_u32..9, 1_u64..40),
            picks in prop::collection::vec(prop_oneof![Just(0.0), 0.01_f64..9.0], 240),
        ) {
            let num_rows: u32 = lens.iter().sum();
            let mut weights = picks[..num_rows as usize].to_vec();
            weights[0] += 0.5;
            let made = Weights::try_new(weights.iter().copied(), num_draws).unwrap();
            let plan = EpochPlan::drawn(&spans(&lens), order(seed, num_lanes, window_rows), epoch, &made);
            prop_assert_eq!(plan.num_rows(), u64::from(num_draws));
            let (mut rows, mut finished) = (Vec::new(), Vec::new());
            plan.walk(0).visit(0, 1, num_draws as usize + 1, &mut rows, &mut finished);
            let first: Vec<u64> =
                lens.iter().scan(0, |sum, &len| Some(std::mem::replace(sum, *sum + u64::from(len)))).collect();
            let mut delivered = Vec::new();
            for row in &rows {
                let number = plan.piece(row.piece).kept.start + row.row;
                let kept = plan.kept_row(row.piece.span, number);
                let piece = plan.kept_piece(row.piece).kept;
                prop_assert!(piece.contains(&kept));
                let wanted = plan.drawn_rows(row.piece, &piece).unwrap();
                prop_assert!(wanted.contains(&(kept - piece.start)));
                prop_assert!(plan.numbers(row.piece, &(kept..kept + 1)).contains(&number));
                prop_assert_eq!(plan.numbers(row.piece, &piece), plan.piece(row.piece).kept);
                delivered.push(first[row.piece.span as usize] + u64::from(kept));
            }
            delivered.sort_unstable();
            prop_assert_eq!(delivered, slow(&weights, num_draws, seed, epoch));
            // Every piece with rows ends exactly once.
            let mut pieces: Vec<PieceId> = rows.iter().map(|row| row.piece).collect();
            pieces.sort_unstable();
            pieces.dedup();
            finished.sort_unstable();
            prop_assert_eq!(finished, pieces);
        }
    }

    #[test]
    fn rows_are_drawn_as_often_as_they_weigh() {
        let weights = [1.0, 0.0, 2.0, 0.0, 5.0];
        let made = Weights::try_new(weights, 80_000).unwrap();
        let mut counts = [0.0; 5];
        made.draw(1, 0).for_each(|row| counts[usize::try_from(row).unwrap()] += 1.0);
        for (count, weight) in counts.into_iter().zip(weights) {
            let expected = 10_000.0 * weight;
            // Four standard deviations of a binomial.
            assert!((count - expected).abs() <= 4.0 * f64::sqrt(expected * (1.0 - weight / 8.0)), "{counts:?}");
        }
        assert!(made.draw(1, 0).ne(made.draw(1, 1)));
        assert!(made.draw(1, 0).ne(made.draw(2, 0)));
    }

    #[test]
    fn the_smallest_weights_are_drawn_as_any_others() {
        let weights = [1.0, 0.0, 2.0, 4.0];
        let drawn = |least: f64| -> Vec<u64> {
            Weights::try_new(weights.map(|weight| weight * least), 10_000).unwrap().draw(3, 1).collect()
        };
        let expected = drawn(1.0);
        for least in [f64::from_bits(1), f64::MIN_POSITIVE, LEAST_SUM / 8.0, LEAST_SUM / 4.0, LEAST_SUM] {
            assert_eq!(drawn(least), expected, "{least:e}");
        }
    }

    #[test]
    fn weights_survive_bytes() {
        let made = Weights::try_new([1.0, 0.0, 2.5], 7).unwrap();
        let bytes = made.to_bytes();
        let again = Weights::from_bytes(&bytes).unwrap();
        assert_eq!(again, made);
        assert!(again.draw(1, 2).eq(made.draw(1, 2)));
        assert_eq!(Weights::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Weights::from_bytes(&[]), None);
    }

    #[test]
    fn more_draws_than_the_machine_holds_are_refused() {
        let is_too_much = u64::from(u32::MAX) * BYTES_OF_DRAW > config::largest_read_bytes();
        assert_eq!(Weights::try_new([1.0], u32::MAX).is_err(), is_too_much);
    }

    #[test]
    fn what_is_no_weight_is_named() {
        for (weights, says) in [
            (vec![1.0, -2.0], "row 1 has the weight -2"),
            (vec![f64::NAN], "row 0 has the weight NaN"),
            (vec![f64::INFINITY], "row 0 has the weight inf"),
            (vec![0.0, 0.0], "all 2 rows have weights that add up to 0"),
            (vec![f64::MAX, f64::MAX], "all 2 rows have weights that add up to inf"),
            (vec![], "all 0 rows have weights"),
        ] {
            let refused = Weights::try_new(weights, 1).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
