//! Computes the order in which the rows of a piece leave it, for storing them in that order.
//!
//! No guarantee depends on it: rows stored in any other order are only further apart.

use std::ops::Range;

use super::seed::NUMBER_BITS;
use super::spread::{SpreadSort, bucket_of_bits};
use super::{Arrangement, EpochPlan, PieceId, REPEAT_LANE};

/// The orders in which rows leave the pieces of an epoch.
#[derive(Debug)]
pub struct Leaving {
    plan: EpochPlan,
    /// For a given order: the rows of each span, span after span, in the order in which they leave.
    rows: Vec<u32>,
    /// Where those of each span begin, and the last ones end.
    starts: Vec<usize>,
}

impl Leaving {
    /// Prepares the orders of a plan. For a given order, this is a pass over the rows, and holds 4 bytes per row.
    pub fn new(plan: &EpochPlan) -> Self {
        let mut leaving = Self { plan: plan.clone(), rows: Vec::new(), starts: Vec::new() };
        let Arrangement::Permuted(permutation) = &plan.inner.arrangement else { return leaving };
        let Some(rows) = permutation.as_given() else { return leaving };
        let mut ends = vec![0; plan.spans().len() + 1];
        rows.iter().for_each(|row| ends[row.span as usize + 1] += 1);
        for span in 1..ends.len() {
            ends[span] += ends[span - 1];
        }
        leaving.starts.clone_from(&ends);
        leaving.rows.resize(rows.len(), 0);
        for row in rows {
            let end = &mut ends[row.span as usize];
            leaving.rows[*end] = row.row;
            *end += 1;
        }
        leaving
    }

    /// Returns kept rows of a piece's span in the order in which they leave, counted from the first of them; `None` if
    /// that is their own order.
    pub fn order(&self, id: PieceId, kept: Range<u32>) -> Option<Vec<u32>> {
        match &self.plan.inner.arrangement {
            _ if id.lane == REPEAT_LANE || self.plan.is_drawn() => None,
            Arrangement::Sequential { .. } => None,
            Arrangement::Permuted(permutation) => {
                if let Some(numbers) = permutation.numbers(id.span, kept.clone()) {
                    return Some(by_key(numbers.map(|number| number as f64)));
                }
                let span = id.span as usize;
                let leaving = self.rows.get(*self.starts.get(span)?..*self.starts.get(span + 1)?)?;
                Some(of_range(leaving, &kept))
            }
            Arrangement::Lanes(deal) => Some(by_key(deal.keys(id, kept))),
        }
    }
}

/// Returns the rows that are in a range, counted from its start, followed by the others in it.
fn of_range(leaving: &[u32], kept: &Range<u32>) -> Vec<u32> {
    let mut order = Vec::with_capacity(kept.len());
    order.extend(leaving.iter().filter(|row| kept.contains(row)).map(|row| row - kept.start));
    if order.len() < kept.len() {
        let mut is_left = vec![true; kept.len()];
        order.iter().for_each(|&row| is_left[row as usize] = false);
        order.extend((0..).zip(is_left).filter(|(_, is_left)| *is_left).map(|(row, _)| row));
    }
    order
}

/// Returns indices sorted by key, as far as there are bits for the keys, equal ones by index.
fn by_key(keys: impl Iterator<Item = f64>) -> Vec<u32> {
    let keys: Vec<f64> = keys.collect();
    let (lowest, highest) = keys.iter().fold((f64::MAX, f64::MIN), |(low, high), &key| (low.min(key), high.max(key)));
    let place_bits = u64::BITS - (keys.len() as u64).leading_zeros();
    let key_bits = NUMBER_BITS.min(u64::BITS - place_bits);
    let most = ((1_u64 << key_bits) - 1) as f64;
    let scale = most / (highest - lowest).max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 on, and the cast saturates")]
    let bits = |key: f64| ((key - lowest) * scale).min(most) as u64;
    let mut keyed: Vec<u64> =
        keys.iter().zip(0..).map(|(&key, place)| bits(key) << (u64::BITS - key_bits) | place).collect();
    drop(keys);
    SpreadSort::default().sort(&mut keyed, bucket_of_bits, u64::cmp);
    let place = |keyed: u64| u32::try_from(keyed & ((1 << place_bits) - 1)).unwrap_or(u32::MAX);
    keyed.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::{Order, Span};
    use super::*;

    fn plan(sizes: &[u32], order: Order) -> EpochPlan {
        let spans =
            (0..).zip(sizes).map(|(row_group, &num_kept)| Span { row_group, start: 0, end: num_kept, num_kept });
        EpochPlan::new(spans.collect::<Vec<_>>().into(), order, 3)
    }

    /// Returns the rows of each piece in the order of a walk, counted from the piece's first.
    fn walked(plan: &EpochPlan) -> Vec<(PieceId, Vec<u32>)> {
        let mut refs = Vec::new();
        let num_rows = usize::try_from(plan.num_rows()).unwrap();
        plan.walk(0).visit(0, 1, num_rows, &mut refs, &mut Vec::new());
        let mut pieces: Vec<(PieceId, Vec<u32>)> = Vec::new();
        for row in refs {
            match pieces.iter_mut().find(|(id, _)| *id == row.piece) {
                Some((_, rows)) => rows.push(row.row),
                None => pieces.push((row.piece, vec![row.row])),
            }
        }
        pieces
    }

    proptest! {
        #[test]
        fn rows_are_ordered_as_a_walk_delivers_them(
            sizes in prop::collection::vec(1_u32..600, 1..8), num_lanes in 1_u32..4, window_rows in 0_u64..400,
        ) {
            let plan = plan(&sizes, Order::Shuffled { seed: 1, num_lanes, window_rows });
            let leaving = Leaving::new(&plan);
            for (id, expected) in walked(&plan) {
                let piece = plan.piece(id);
                let order = leaving.order(id, piece.kept.clone()).unwrap();
                prop_assert_eq!(order, expected.clone());
                let half = piece.kept.start + u32::try_from(expected.len() / 2).unwrap()..piece.kept.end;
                let mut part = leaving.order(id, half.clone()).unwrap();
                part.sort_unstable();
                prop_assert_eq!(part, (0..half.end - half.start).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn rows_that_a_given_order_leaves_out_come_last() {
        let spans = Arc::clone(plan(&[3, 5], Order::Sequential).spans());
        let plan = EpochPlan::in_order(spans, &[7, 0, 4]).unwrap();
        let leaving = Leaving::new(&plan);
        assert_eq!(leaving.order(PieceId { lane: 0, span: 0 }, 0..3), Some(vec![0, 1, 2]));
        assert_eq!(leaving.order(PieceId { lane: 0, span: 1 }, 0..5), Some(vec![4, 1, 0, 2, 3]));
        assert_eq!(leaving.order(PieceId { lane: 0, span: 1 }, 1..4), Some(vec![0, 1, 2]));
    }

    #[test]
    fn rows_of_a_dataset_in_its_order_leave_as_they_stand() {
        let plan = plan(&[3, 5], Order::Sequential);
        assert_eq!(Leaving::new(&plan).order(PieceId { lane: 0, span: 0 }, 0..3), None);
    }
}
