//! The wanted rows of a read, in order.

use std::ops::Range;
use std::sync::Arc;

use arrow_buffer::BooleanBuffer;

use super::bits::word_at;
use crate::rows::{RowSet, row};

/// Ascending rows that are still wanted.
#[derive(Debug)]
pub(super) struct Rows {
    set: Arc<RowSet>,
    num_rows: u32,
    /// The first run of which nothing was taken, except for `run`; for a mask, the row after everything taken and
    /// `run`.
    next: u32,
    run: Range<u32>,
}

impl Rows {
    /// Returns the rows of `set`, in a row group of `num_rows`; empty runs are ignored.
    pub(super) fn new(set: Arc<RowSet>, num_rows: u32) -> Self {
        Self { set, num_rows, next: 0, run: 0..0 }
    }

    /// Returns the number of rows in the row group.
    pub(super) fn num_rows(&self) -> u32 {
        self.num_rows
    }

    /// Returns the first wanted row.
    pub(super) fn first(&mut self) -> Option<u32> {
        while self.run.is_empty() {
            (self.run, self.next) = match &*self.set {
                RowSet::None => return None,
                RowSet::All if self.next > 0 => return None,
                RowSet::All => (0..self.num_rows, 1),
                RowSet::Runs(runs) => (runs.get(self.next as usize)?.clone(), self.next + 1),
                RowSet::Mask(mask) => {
                    let run = next_run(mask, self.next)?;
                    (run.clone(), run.end)
                }
            }
        }
        Some(self.run.start)
    }

    /// Returns the first contiguous wanted rows, before the row `end` and at most `most`.
    pub(super) fn first_run(&mut self, end: u32, most: usize) -> Range<u32> {
        let Some(start) = self.first() else { return 0..0 };
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        start..self.run.end.min(end.max(start)).min(start.saturating_add(most))
    }

    /// Takes what [`Self::first_run`] returns.
    pub(super) fn take(&mut self, end: u32, most: usize) -> Range<u32> {
        let run = self.first_run(end, most);
        self.run.start = run.end.max(self.run.start);
        run
    }

    /// Takes all wanted rows before the row `end`, at most `most`, as slots relative to the row `first`.
    pub(super) fn take_slots(&mut self, first: u32, end: u32, most: usize, slots: &mut Vec<Range<usize>>) {
        slots.clear();
        let mut left = most;
        while left > 0 && self.first().is_some_and(|wanted| wanted < end) {
            let run = self.take(end, left);
            left -= run.len();
            slots.push((run.start - first) as usize..(run.end - first) as usize);
        }
    }

    /// Takes all wanted rows before the row `end`, at most `most`, if they are a mask: from the first of them on, a bit
    /// for each row.
    pub(super) fn take_bits(&mut self, end: u32, most: usize) -> Option<(u32, BooleanBuffer)> {
        let first = self.first()?;
        let RowSet::Mask(mask) = &*self.set else { return None };
        let rows = (end as usize).min(mask.len()).saturating_sub(first as usize);
        let mut bits = mask.slice(first as usize, rows);
        if rows > most && bits.count_set_bits() > most {
            bits = bits.slice(0, bits.find_nth_set_bit_position(0, most));
        }
        self.run = 0..0;
        self.next = first + row(bits.len());
        Some((first, bits))
    }
}

/// Returns the first run of set bits from the bit `at` on.
fn next_run(mask: &BooleanBuffer, at: u32) -> Option<Range<u32>> {
    let (first, end) = (mask.offset(), mask.offset() + mask.len());
    let find = |mut place: usize, is_set: bool| {
        while place < end {
            let num_bits = (end - place).min(57);
            let word = word_at(mask.values(), place);
            let others = if is_set { word.trailing_zeros() } else { word.trailing_ones() } as usize;
            if others < num_bits {
                return place + others;
            }
            place += num_bits;
        }
        end
    };
    let start = find(first + at as usize, true);
    (start < end).then(|| row(start - first)..row(find(start, false) - first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_form_is_taken_as_its_rows(
            runs in prop::collection::vec((any::<bool>(), 1_usize..150), 1..12), skip in 0_usize..20,
            takes in prop::collection::vec((0_usize..200, 1_usize..100, any::<bool>()), 1..20),
        ) {
            let bits: Vec<bool> = runs.iter().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len)).collect();
            let num_rows = row(bits.len());
            let mask = std::iter::repeat_n(true, skip).chain(bits.iter().copied()).collect::<BooleanBuffer>();
            let mask = RowSet::Mask(mask.slice(skip, bits.len()));
            let runs = RowSet::Runs(mask.runs(0..num_rows).collect());
            let mut left: Vec<u32> = (0..num_rows).filter(|&row| bits[row as usize]).collect();
            let [mut of_mask, mut of_runs] = [mask, runs].map(|set| Rows::new(Arc::new(set), num_rows));
            let (mut end, mut slots) = (0, Vec::new());
            for (ahead, most, as_bits) in takes {
                prop_assert_eq!(of_mask.first(), left.first().copied());
                prop_assert_eq!(of_runs.first(), left.first().copied());
                prop_assert!(of_runs.take_bits(num_rows, 1).is_none());
                end = num_rows.min(end + row(ahead));
                let num_taken = left.iter().take(most).filter(|row| **row < end).count();
                let expected: Vec<u32> = left.drain(..num_taken).collect();
                of_runs.take_slots(0, end, most, &mut slots);
                prop_assert_eq!(slots.iter().cloned().flatten().map(row).collect::<Vec<_>>(), &expected[..]);
                let taken: Vec<u32> = if as_bits {
                    let (first, bits) = of_mask.take_bits(end, most).unwrap_or((0, BooleanBuffer::new_unset(0)));
                    bits.set_indices_u32().map(|place| first + place).collect()
                } else {
                    of_mask.take_slots(0, end, most, &mut slots);
                    slots.iter().cloned().flatten().map(row).collect()
                };
                prop_assert_eq!(taken, expected);
            }
        }
    }
}
