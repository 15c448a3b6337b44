//! Says in which order the rows of a piece leave it, for who stores them in that order.
//!
//! No promise hangs on it: rows that are stored in any other order are only further from each other.

use std::ops::Range;

use super::{Arrangement, EpochPlan, PieceId, REPEAT_LANE};

/// Rows that are sorted together, on average.
const BUCKET_ROWS: usize = 4;

/// The orders in which rows leave the pieces of an epoch.
#[derive(Debug)]
pub struct Leaving {
    plan: EpochPlan,
    /// Of a permutation: the rows of each span, span after span, as they leave.
    rows: Vec<u32>,
    /// Where those of each span begin, and the last ones end.
    starts: Vec<usize>,
}

impl Leaving {
    /// Prepares the orders of a plan. Of one that is permuted as a whole this is a pass over the rows, and 4 bytes of each.
    pub fn new(plan: &EpochPlan) -> Self {
        let mut leaving = Self { plan: plan.clone(), rows: Vec::new(), starts: Vec::new() };
        let Arrangement::Permuted { rows, last } = &plan.inner.arrangement else { return leaving };
        let mut ends = vec![0; last.len() + 1];
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

    /// Returns kept rows of a piece's span in the order in which they leave, counted from the first of them; `None`
    /// where they leave as they stand.
    pub fn order(&self, id: PieceId, kept: Range<u32>) -> Option<Vec<u32>> {
        match &self.plan.inner.arrangement {
            _ if id.lane == REPEAT_LANE || self.plan.is_drawn() => None,
            Arrangement::Sequential { .. } => None,
            Arrangement::Permuted { .. } => {
                let span = id.span as usize;
                let leaving = self.rows.get(*self.starts.get(span)?..*self.starts.get(span + 1)?)?;
                Some(of_range(leaving, &kept))
            }
            Arrangement::Lanes(deal) => Some(by_key(&deal.keys(id, kept).collect::<Vec<_>>())),
        }
    }
}

/// Returns those of the rows that are in a range, counted from its start, and then the others in it.
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

/// Returns the places of keys, sorted by these, equal ones by place: in buckets first, which costs less than a comparison each.
fn by_key(keys: &[f64]) -> Vec<u32> {
    let (lowest, highest) = keys.iter().fold((f64::MAX, f64::MIN), |(low, high), &key| (low.min(key), high.max(key)));
    let num_buckets = keys.len() / BUCKET_ROWS + 1;
    let scale = num_buckets as f64 / (highest - lowest).max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 on, and the cast saturates")]
    let bucket = |key: f64| (((key - lowest) * scale) as usize).min(num_buckets - 1);
    let mut ends = vec![0_u32; num_buckets + 1];
    keys.iter().for_each(|&key| ends[bucket(key) + 1] += 1);
    for at in 1..ends.len() {
        ends[at] += ends[at - 1];
    }
    let mut order = vec![0; keys.len()];
    for (place, &key) in (0..).zip(keys) {
        let end = &mut ends[bucket(key)];
        order[*end as usize] = place;
        *end += 1;
    }
    let mut start = 0;
    for &end in &ends[..num_buckets] {
        let leave_before = |a: &u32, b: &u32| keys[*a as usize].total_cmp(&keys[*b as usize]).then(a.cmp(b));
        order[start..end as usize].sort_unstable_by(leave_before);
        start = end as usize;
    }
    order
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

    /// Returns the rows of each piece as a walk delivers them, counted from the piece's first.
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
