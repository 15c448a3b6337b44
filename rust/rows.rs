//! Sets of rows of one row group, in the smallest form.

use std::ops::Range;

use arrow_buffer::bit_iterator::BitSliceIterator;
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};

/// Some rows of a row group: those that a selection keeps, or that are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSet {
    /// No row.
    None,
    /// Every row.
    All,
    /// Sorted, disjoint, non-adjacent runs of rows.
    Runs(Box<[Range<u32>]>),
    /// One bit per row, if that is smaller than runs.
    Mask(BooleanBuffer),
}

impl RowSet {
    /// Returns the smallest form of `mask`, which has one bit for each row of the row group.
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

    /// Returns the largest number of runs that is smaller than a mask of `num_rows` bits.
    pub(crate) fn max_runs(num_rows: u32) -> usize {
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
            _ if range.is_empty() => Box::new(std::iter::empty()),
            Self::None => Box::new(std::iter::empty()),
            Self::All => Box::new(std::iter::once(range)),
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

    /// Returns whether a row of `range` is kept; `range` may be empty.
    pub(crate) fn has(&self, range: Range<u32>) -> bool {
        match self {
            Self::Mask(mask) => {
                let (start, end) = (range.start as usize, mask.len().min(range.end as usize));
                start < end && mask.slice(start, end - start).has_true()
            }
            _ => self.runs(range).next().is_some(),
        }
    }

    /// Returns the kept rows within the rows `range`, in a row group of `num_rows`.
    pub(crate) fn within(&self, range: Range<u32>, num_rows: u32) -> Self {
        let Self::Mask(mask) = self else {
            return Self::from_runs(self.runs(range).collect(), num_rows);
        };
        let (start, end) = (range.start as usize, range.end as usize);
        let (before, after) = (mask.slice(0, start), mask.slice(end, mask.len() - end));
        if !before.has_true() && !after.has_true() {
            return self.clone();
        }
        let mut bits = BooleanBufferBuilder::new(mask.len());
        bits.append_n(before.len(), false);
        bits.append_buffer(&mask.slice(start, end - start));
        bits.append_n(after.len(), false);
        Self::Mask(bits.finish())
    }

    /// Returns the rows from the first to the last of the kept rows numbered `kept` within `range`.
    pub(crate) fn extent(&self, range: Range<u32>, kept: Range<u32>) -> Range<u32> {
        if kept.is_empty() {
            return range.start..range.start;
        }
        match self {
            Self::Mask(_) => {
                let before = self.count(0..range.start);
                let ends = self.nth(&[before + kept.start, before + kept.end - 1]);
                ends.first().map_or(0, |first| *first)..ends.last().map_or(0, |last| last + 1)
            }
            _ => {
                let runs = nth_of(self.runs(range), kept);
                runs.first().map_or(0, |run| run.start)..runs.last().map_or(0, |run| run.end)
            }
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
pub(crate) const fn row(index: usize) -> u32 {
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
            for empty in [range.start..range.start, range.end..range.end] {
                prop_assert_eq!((set.count(empty.clone()), set.has(empty.clone())), (0, false));
                prop_assert_eq!(kept_rows(&set.within(empty, row(bits.len())), 0..row(bits.len())), Vec::<u32>::new());
            }
            let expected: Vec<u32> = range.clone().filter(|&r| bits[r as usize]).collect();
            prop_assert_eq!(kept_rows(&set, range.clone()), expected.clone());
            prop_assert_eq!(set.count(range.clone()) as usize, expected.len());
            prop_assert_eq!(set.has(range.clone()), !expected.is_empty());
            for (from, to) in [(0, expected.len()), (expected.len() / 3, expected.len() / 2)] {
                let kept = row(from)..row(to);
                let extent = set.extent(range.clone(), kept);
                if let (Some(first), Some(last)) = (expected[from..to].first(), expected[from..to].last()) {
                    prop_assert_eq!(extent.clone(), *first..last + 1);
                }
                let part = set.within(extent, row(bits.len()));
                prop_assert_eq!(part == RowSet::All, !bits.is_empty() && to - from == bits.len());
                prop_assert_eq!(&kept_rows(&part, 0..row(bits.len()))[..], &expected[from..to]);
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
