//! What is still undecided in a row group: rows that may pass, and the conjuncts of the filter to evaluate on them.

use std::borrow::Cow;
use std::ops::Range;

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};

use super::likely::Shares;
use crate::rows::RowSet;
use crate::snapshot::RowGroupRef;

/// A row group that statistics do not decide.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Open {
    /// Its index in the snapshot.
    pub(super) place: usize,
    pub(super) row_group: RowGroupRef,
    /// Rows that no conjunct has excluded.
    pub(super) alive: RowSet,
    /// For each conjunct, the rows on which it must be evaluated: the others pass it.
    pub(super) unknown: Vec<RowSet>,
    /// For each conjunct, which rows are likely to pass, if an index tells.
    pub(super) likely: Vec<Option<Shares>>,
}

impl Open {
    /// Returns the kept rows, if all conjuncts are decided on all remaining rows.
    pub(super) fn decided(&self) -> Option<RowSet> {
        let is_decided = self.alive == RowSet::None || self.unknown.iter().all(|rows| *rows == RowSet::None);
        is_decided.then(|| self.alive.clone())
    }

    /// Returns the probability that any of `rows` is kept, given the `likely` shares of each conjunct. If that of an
    /// undecided conjunct is unknown, returns 0.
    pub(super) fn chance(&self, likely: &[Option<Cow<'_, Shares>>], rows: &Range<u32>) -> f64 {
        let open = likely.iter().zip(&self.unknown).filter(|(_, unknown)| **unknown != RowSet::None);
        let share: f64 = open.map(|(likely, _)| likely.as_ref().map_or(0.0, |shares| shares.of(rows))).product();
        1.0 - (1.0 - share).powf(f64::from(rows.end - rows.start))
    }
}

/// Returns the rows of `set` in `runs`, which are ascending and disjoint, of a row group of `num_rows` rows.
pub(super) fn intersect(set: &RowSet, runs: Vec<Range<u32>>, num_rows: u32) -> RowSet {
    let mut kept: Vec<Range<u32>> = Vec::with_capacity(runs.len());
    for run in runs.into_iter().flat_map(|run| set.runs(run).collect::<Vec<_>>()) {
        match kept.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => kept.push(run),
        }
    }
    RowSet::from_runs(kept, num_rows)
}

/// Returns one bit for each row of `rows`: set for those in `set`.
pub(super) fn mask(set: &RowSet, rows: &Range<u32>) -> BooleanBuffer {
    let len = (rows.end - rows.start) as usize;
    match set {
        RowSet::None => BooleanBuffer::new_unset(len),
        RowSet::All => BooleanBuffer::new_set(len),
        RowSet::Mask(mask) => mask.slice(rows.start as usize, len),
        RowSet::Runs(_) => {
            let mut mask = BooleanBufferBuilder::new(len);
            append(&mut mask, set.runs(rows.clone()), rows.clone());
            mask.finish()
        }
    }
}

fn append(mask: &mut BooleanBufferBuilder, runs: impl Iterator<Item = Range<u32>>, rows: Range<u32>) {
    let mut end = rows.start;
    for run in runs {
        mask.append_n((run.start - end) as usize, false);
        mask.append_n((run.end - run.start) as usize, true);
        end = run.end;
    }
    mask.append_n((rows.end - end) as usize, false);
}

/// Returns `rows` with those of its set bits cleared that are clear in `passed`, which has a bit for each of them.
pub(super) fn spread(rows: &BooleanBuffer, passed: &BooleanBuffer) -> BooleanBuffer {
    if passed.len() == rows.len() {
        return passed.clone();
    }
    let mut spread = BooleanBufferBuilder::new(rows.len());
    let mut taken = 0;
    for (start, end) in rows.set_slices() {
        spread.append_n(start - spread.len(), false);
        spread.append_buffer(&passed.slice(taken, end - start));
        taken += end - start;
    }
    spread.append_n(rows.len() - spread.len(), false);
    spread.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_and_runs_intersect_as_their_rows_do(
            bits in prop::collection::vec((any::<bool>(), any::<bool>()), 1..200), from in 0_usize..200, len in 0_usize..200,
        ) {
            let (set, other): (Vec<bool>, Vec<bool>) = bits.iter().copied().unzip();
            let num_rows = u32::try_from(bits.len()).unwrap();
            let runs = BooleanBuffer::from(other.clone()).set_slices()
                .map(|(start, end)| u32::try_from(start).unwrap()..u32::try_from(end).unwrap()).collect();
            let set = RowSet::from_mask(BooleanBuffer::from(set));
            let both = intersect(&set, runs, num_rows);
            let expected: Vec<bool> = bits.iter().map(|&(a, b)| a && b).collect();
            prop_assert_eq!(&both, &RowSet::from_mask(BooleanBuffer::from(expected.clone())));
            let rows = from.min(bits.len())..(from + len).min(bits.len());
            let part = mask(&both, &(u32::try_from(rows.start).unwrap()..u32::try_from(rows.end).unwrap()));
            prop_assert_eq!(part.iter().collect::<Vec<_>>(), &expected[rows]);
        }

        #[test]
        fn what_passed_among_some_rows_is_spread_to_their_places(
            bits in prop::collection::vec((any::<bool>(), any::<bool>()), 0..200),
        ) {
            let rows: BooleanBuffer = bits.iter().map(|bits| bits.0).collect();
            let passed: BooleanBuffer = bits.iter().filter(|bits| bits.0).map(|bits| bits.1).collect();
            let expected: Vec<bool> = bits.iter().map(|&(row, passed)| row && passed).collect();
            prop_assert_eq!(spread(&rows, &passed).iter().collect::<Vec<_>>(), expected);
        }
    }
}
