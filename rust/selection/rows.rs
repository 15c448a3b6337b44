//! The kept rows of one row group, as small as they come.

use std::ops::Range;

use arrow_buffer::BooleanBuffer;
use arrow_buffer::bit_iterator::BitSliceIterator;

/// Which rows of a row group a selection keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSet {
    /// No row.
    None,
    /// Every row.
    All,
    /// Sorted, disjoint, non-adjacent runs of rows.
    Runs(Box<[Range<u32>]>),
    /// One bit a row, where that is smaller than runs.
    Mask(BooleanBuffer),
}

impl RowSet {
    /// Returns the smallest form of `mask`, one bit for each row of the row group.
    pub fn from_mask(mask: BooleanBuffer) -> Self {
        let num_kept = mask.count_set_bits();
        if num_kept == 0 {
            return Self::None;
        }
        if num_kept == mask.len() {
            return Self::All;
        }
        let max_runs = Self::max_runs(row(mask.len()));
        let runs: Vec<_> = mask.set_slices().take(max_runs + 1).map(|(start, end)| row(start)..row(end)).collect();
        if runs.len() <= max_runs { Self::Runs(runs.into()) } else { Self::Mask(mask) }
    }

    /// Returns how many runs take less than a mask of `num_rows` bits.
    pub(super) fn max_runs(num_rows: u32) -> usize {
        ((num_rows as usize).div_ceil(8) / size_of::<Range<u32>>()).max(1)
    }

    /// Returns the number of kept rows among the rows `range`.
    pub fn count(&self, range: Range<u32>) -> u32 {
        match self {
            Self::None => 0,
            Self::All => range.end - range.start,
            Self::Runs(_) => self.runs(range).map(|run| run.end - run.start).sum(),
            Self::Mask(mask) => {
                row(mask.slice(range.start as usize, (range.end - range.start) as usize).count_set_bits())
            }
        }
    }

    /// Returns the runs of kept rows within the rows `range`, in order.
    pub fn runs(&self, range: Range<u32>) -> Box<dyn Iterator<Item = Range<u32>> + Send + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::All => Box::new(std::iter::once(range).filter(|run| run.start < run.end)),
            Self::Runs(runs) => {
                let first = runs.partition_point(|run| run.end <= range.start);
                let clipped = runs[first..].iter().take_while({
                    let end = range.end;
                    move |run| run.start < end
                });
                Box::new(clipped.map(move |run| run.start.max(range.start)..run.end.min(range.end)))
            }
            Self::Mask(mask) => Box::new(runs_of(mask, range)),
        }
    }

    /// Returns the runs of the kept rows numbered `kept` among the kept rows of `range`.
    pub fn nth_runs(&self, range: Range<u32>, kept: Range<u32>) -> Vec<Range<u32>> {
        match self {
            // There may be as many runs as half of the rows.
            Self::Mask(mask) => nth_of(runs_of(mask, range), kept),
            _ => nth_of(self.runs(range), kept),
        }
    }

    /// Returns the memory held outside the value itself, in bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::None | Self::All => 0,
            Self::Runs(runs) => size_of_val(runs.as_ref()),
            Self::Mask(mask) => mask.inner().capacity(),
        }
    }
}

/// Returns the runs of set bits within the bits `range`.
fn runs_of(mask: &BooleanBuffer, range: Range<u32>) -> impl Iterator<Item = Range<u32>> + Send + '_ {
    let (first, len) = (mask.offset() + range.start as usize, (range.end - range.start) as usize);
    let runs = BitSliceIterator::new(mask.values(), first, len);
    runs.map(move |(start, end)| range.start + row(start)..range.start + row(end))
}

/// Returns the runs of the rows numbered `kept` among those of `runs`.
fn nth_of(runs: impl Iterator<Item = Range<u32>>, kept: Range<u32>) -> Vec<Range<u32>> {
    let mut before = 0;
    let mut out = Vec::new();
    for run in runs {
        let len = run.end - run.start;
        let from = kept.start.max(before) - before;
        let to = kept.end.min(before + len).saturating_sub(before);
        if from < to {
            out.push(run.start + from..run.start + to);
        }
        before += len;
        if before >= kept.end {
            break;
        }
    }
    out
}

/// Narrows a row number within a row group; `dataset::footer` refuses row groups of 2^32 rows.
#[expect(clippy::cast_possible_truncation, reason = "row groups have fewer than 2^32 rows")]
const fn row(index: usize) -> u32 {
    index as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept_rows(set: &RowSet, range: Range<u32>) -> Vec<u32> {
        set.runs(range).flatten().collect()
    }

    proptest! {
        #[test]
        fn every_form_keeps_exactly_the_rows_of_its_mask(
            runs in prop::collection::vec((any::<bool>(), 1usize..200), 0..12), a in 0usize..500, b in 0usize..500,
        ) {
            let bits: Vec<bool> = runs.iter().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len)).collect();
            let set = RowSet::from_mask(BooleanBuffer::from(bits.clone()));
            let (a, b) = (a.min(bits.len()), b.min(bits.len()));
            let range = row(a.min(b))..row(a.max(b));
            let expected: Vec<u32> = range.clone().filter(|&r| bits[r as usize]).collect();
            prop_assert_eq!(kept_rows(&set, range.clone()), expected.clone());
            prop_assert_eq!(set.count(range.clone()) as usize, expected.len());
            for (from, to) in [(0, expected.len()), (expected.len() / 3, expected.len() / 2)] {
                let nth: Vec<u32> = set.nth_runs(range.clone(), row(from)..row(to)).into_iter().flatten().collect();
                prop_assert_eq!(&nth[..], &expected[from..to]);
            }
        }
    }

    #[test]
    fn clustered_rows_are_runs_and_scattered_rows_a_mask() {
        let clustered = RowSet::from_mask((0..1000).map(|row| row < 100).collect());
        assert_eq!(clustered.runs(0..1000).collect::<Vec<_>>(), std::iter::once(0..100).collect::<Vec<_>>());
        assert!(matches!(clustered, RowSet::Runs(_)));
        let scattered = RowSet::from_mask((0..1000).map(|row| row % 2 == 0).collect());
        assert!(matches!(scattered, RowSet::Mask(_)));
        assert_eq!(RowSet::from_mask((0..9).map(|_| true).collect()), RowSet::All);
        assert_eq!(RowSet::from_mask((0..9).map(|_| false).collect()), RowSet::None);
    }
}
