//! Set algebra on the kept rows of one row group, and finding kept rows by number.
//!
//! Runs are merged run by run; masks are processed word by word. Nothing here looks at single rows of a run.

use std::ops::Range;

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};

use crate::rows::RowSet;

/// An operation on two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetOperation {
    /// Rows in both.
    And,
    /// Rows in either.
    Or,
    /// Rows of the left set that are not in the right one.
    Minus,
    /// Rows in exactly one of them.
    Xor,
}

impl SetOperation {
    /// Returns whether a row is in the result, given whether it is in each operand.
    const fn keeps(self, left: bool, right: bool) -> bool {
        match self {
            Self::And => left && right,
            Self::Or => left || right,
            Self::Minus => left && !right,
            Self::Xor => left != right,
        }
    }
}

impl RowSet {
    /// Returns the smallest form of `runs`: sorted, disjoint and not adjacent, in a row group of `num_rows` rows.
    pub(crate) fn from_runs(runs: Vec<Range<u32>>, num_rows: u32) -> Self {
        match &runs[..] {
            [] => Self::None,
            [only] if *only == (0..num_rows) => Self::All,
            runs if runs.len() > Self::max_runs(num_rows) => Self::Mask(mask_of(runs.iter().cloned(), num_rows)),
            _ => Self::Runs(runs.into()),
        }
    }

    /// Returns the rows of a row group of `num_rows` that the operation keeps.
    pub fn combine(&self, other: &Self, operation: SetOperation, num_rows: u32) -> Self {
        let constant = |set: &Self| match set {
            Self::None => Some(false),
            Self::All => Some(true),
            Self::Runs(_) | Self::Mask(_) => None,
        };
        // Combined with none or all rows, the other set is unchanged, complemented, or irrelevant.
        let against = |set: &Self, of_absent: bool, of_present: bool| match (of_absent, of_present) {
            (false, false) => Self::None,
            (true, true) => Self::All,
            (false, true) => set.clone(),
            (true, false) => set.complement(num_rows),
        };
        match (constant(self), constant(other)) {
            (_, Some(right)) => against(self, operation.keeps(false, right), operation.keeps(true, right)),
            (Some(left), None) => against(other, operation.keeps(left, false), operation.keeps(left, true)),
            (None, None) => self.merge(other, operation, num_rows),
        }
    }

    /// Returns the rows of a row group of `num_rows` that are not in this set.
    fn complement(&self, num_rows: u32) -> Self {
        match self {
            Self::None => Self::All,
            Self::All => Self::None,
            Self::Runs(runs) => {
                let starts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
                let ends = runs.iter().map(|run| run.start).chain([num_rows]);
                let between = starts.zip(ends).map(|(start, end)| start..end).filter(|run| run.start < run.end);
                Self::from_runs(between.collect(), num_rows)
            }
            Self::Mask(mask) => Self::from_mask(!mask),
        }
    }

    fn merge(&self, other: &Self, operation: SetOperation, num_rows: u32) -> Self {
        if let (Self::Runs(left), Self::Runs(right)) = (self, other) {
            return Self::from_runs(merge_runs(left, right, operation), num_rows);
        }
        let (left, right) = (self.to_mask(num_rows), other.to_mask(num_rows));
        Self::from_mask(match operation {
            SetOperation::And => &left & &right,
            SetOperation::Or => &left | &right,
            SetOperation::Minus => &left & &!&right,
            SetOperation::Xor => &left ^ &right,
        })
    }

    /// Returns one bit for each row of a row group of `num_rows`.
    fn to_mask(&self, num_rows: u32) -> BooleanBuffer {
        match self {
            Self::None => BooleanBuffer::new_unset(num_rows as usize),
            Self::All => BooleanBuffer::new_set(num_rows as usize),
            Self::Runs(runs) => mask_of(runs.iter().cloned(), num_rows),
            Self::Mask(mask) => mask.clone(),
        }
    }

    /// Returns the kept rows of a row group of `num_rows` that `chosen` marks by their numbers, from bit `first` on.
    pub(super) fn choose(&self, chosen: &BooleanBuffer, first: usize, num_rows: u32) -> Self {
        let num_kept = self.count(0..num_rows) as usize;
        let of_kept = chosen.slice(first, num_kept);
        match (self, of_kept.count_set_bits()) {
            (_, 0) => Self::None,
            (_, all) if all == num_kept => self.clone(),
            (Self::All, _) => {
                let mut own = BooleanBufferBuilder::new(num_kept);
                own.append_buffer(&of_kept);
                Self::from_mask(own.finish())
            }
            _ => {
                let mut mask = BooleanBufferBuilder::new(num_rows as usize);
                let mut taken = 0;
                for run in self.runs(0..num_rows) {
                    mask.append_n(run.start as usize - mask.len(), false);
                    mask.append_buffer(&of_kept.slice(taken, run.len()));
                    taken += run.len();
                }
                mask.append_n(num_rows as usize - mask.len(), false);
                Self::from_mask(mask.finish())
            }
        }
    }

    /// Returns the rows at the ascending `numbers` among the kept ones; fewer if there are not as many.
    pub(crate) fn nth(&self, numbers: &[u32]) -> Vec<u32> {
        match self {
            Self::None => Vec::new(),
            Self::All => numbers.to_vec(),
            Self::Runs(runs) => {
                let (mut runs, mut before) = (runs.iter(), 0);
                let mut run = runs.next();
                let find = |number: &u32| {
                    while let Some(passed) = run.filter(|run| number - before >= run.end - run.start) {
                        before += passed.end - passed.start;
                        run = runs.next();
                    }
                    run.map(|run| run.start + number - before)
                };
                numbers.iter().map_while(find).collect()
            }
            Self::Mask(mask) => nth_of_mask(mask, numbers),
        }
    }

    /// Returns whether `row` is kept.
    pub(crate) fn contains(&self, row: u32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Runs(runs) => {
                let place = runs.partition_point(|run| run.end <= row);
                runs.get(place).is_some_and(|run| run.start <= row)
            }
            Self::Mask(mask) => (row as usize) < mask.len() && mask.value(row as usize),
        }
    }

    /// Returns the set of the ascending `rows` of a row group of `num_rows`.
    pub(crate) fn from_rows(rows: &[u32], num_rows: u32) -> Self {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for &row in rows {
            match runs.last_mut() {
                Some(last) if last.end == row => last.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        Self::from_runs(runs, num_rows)
    }
}

fn mask_of(runs: impl Iterator<Item = Range<u32>>, num_rows: u32) -> BooleanBuffer {
    let mut mask = BooleanBufferBuilder::new(num_rows as usize);
    for run in runs {
        mask.append_n(run.start as usize - mask.len(), false);
        mask.append_n(run.len(), true);
    }
    mask.append_n(num_rows as usize - mask.len(), false);
    mask.finish()
}

/// Returns the rows at the ascending `numbers` among the set bits, by counting words.
fn nth_of_mask(mask: &BooleanBuffer, numbers: &[u32]) -> Vec<u32> {
    let chunks = mask.inner().bit_chunks(mask.offset(), mask.len());
    let mut numbers = numbers.iter().copied().peekable();
    let (mut found, mut before, mut first_row) = (Vec::with_capacity(numbers.len()), 0, 0);
    for word in chunks.iter_padded() {
        if numbers.peek().is_none() {
            break;
        }
        let end = before + word.count_ones();
        let (mut rest, mut passed) = (word, before);
        while let Some(number) = numbers.next_if(|number| *number < end) {
            while passed < number {
                rest &= rest - 1;
                passed += 1;
            }
            found.push(first_row + rest.trailing_zeros());
        }
        before = end;
        first_row += u64::BITS;
    }
    found
}

/// Walks the ends of all runs, and records where the result begins and ends.
fn merge_runs(left: &[Range<u32>], right: &[Range<u32>], operation: SetOperation) -> Vec<Range<u32>> {
    let mut edges = [left, right].map(|runs| runs.iter().flat_map(|run| [run.start, run.end]).peekable());
    let mut is_in = [false, false];
    let mut out: Vec<Range<u32>> = Vec::new();
    let mut open: Option<u32> = None;
    loop {
        let next = edges.iter_mut().filter_map(|edges| edges.peek().copied()).min();
        let Some(row) = next else { return out };
        for (edges, is_in) in edges.iter_mut().zip(&mut is_in) {
            if edges.next_if_eq(&row).is_some() {
                *is_in = !*is_in;
            }
        }
        match (operation.keeps(is_in[0], is_in[1]), open) {
            (true, None) => open = Some(row),
            (false, Some(start)) => {
                out.push(start..row);
                open = None;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPERATIONS: [SetOperation; 4] = [SetOperation::And, SetOperation::Or, SetOperation::Minus, SetOperation::Xor];

    /// Returns bits in runs of all lengths: none, all, clustered and scattered ones.
    fn bits(len: usize) -> impl Strategy<Value = Vec<bool>> {
        let clustered = prop::collection::vec((any::<bool>(), 1_usize..400), 0..9);
        let scattered = prop::collection::vec((any::<bool>(), 1_usize..4), 0..300);
        prop_oneof![clustered, scattered].prop_map(move |runs| {
            let mut bits: Vec<bool> = runs.iter().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len)).collect();
            bits.resize(len, runs.last().is_some_and(|run| run.0));
            bits
        })
    }

    fn two() -> impl Strategy<Value = (Vec<bool>, Vec<bool>)> {
        (0_usize..1500).prop_flat_map(|len| (bits(len), bits(len)))
    }

    fn set(bits: &[bool]) -> RowSet {
        RowSet::from_mask(bits.iter().copied().collect())
    }

    fn len_of(bits: &[bool]) -> u32 {
        u32::try_from(bits.len()).unwrap()
    }

    fn kept(bits: &[bool]) -> Vec<u32> {
        (0..).zip(bits).filter(|(_, keep)| **keep).map(|(row, _)| row).collect()
    }

    proptest! {
        #[test]
        fn sets_combine_as_their_bits_do((left, right) in two()) {
            for operation in OPERATIONS {
                let expected: Vec<bool> =
                    left.iter().zip(&right).map(|(&left, &right)| operation.keeps(left, right)).collect();
                let combined = set(&left).combine(&set(&right), operation, len_of(&left));
                // Equal in form, too: there is one representation of a set.
                prop_assert_eq!(&combined, &set(&expected), "{:?}", operation);
            }
        }

        #[test]
        fn kept_rows_are_found_by_number_and_by_row((bits, wanted) in two()) {
            let (set, rows) = (set(&bits), kept(&bits));
            let numbers: Vec<u32> = kept(&wanted).into_iter().filter(|number| (*number as usize) < rows.len()).collect();
            let expected: Vec<u32> = numbers.iter().map(|&number| rows[number as usize]).collect();
            prop_assert_eq!(set.nth(&numbers), expected);
            for (row, kept) in (0..).zip(&bits) {
                prop_assert_eq!(set.contains(row), *kept);
            }
            prop_assert!(!matches!(set, RowSet::Mask(_)) || !set.contains(len_of(&bits)));
            prop_assert_eq!(RowSet::from_rows(&rows, len_of(&bits)), set);
        }

        #[test]
        fn rows_are_chosen_by_their_numbers((bits, chosen) in two(), before in 0_usize..70) {
            let rows = kept(&bits);
            let marks: Vec<bool> = std::iter::repeat_n(true, before).chain(chosen.iter().copied()).collect();
            let got = set(&bits).choose(&marks.iter().copied().collect(), before, len_of(&bits));
            let expected: Vec<u32> = rows.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(row, _)| *row).collect();
            prop_assert_eq!(got.runs(0..len_of(&bits)).flatten().collect::<Vec<_>>(), expected.clone());
            let mut as_bits = vec![false; bits.len()];
            expected.iter().for_each(|row| as_bits[*row as usize] = true);
            prop_assert_eq!(got, set(&as_bits));
        }
    }

    #[test]
    fn a_number_beyond_the_kept_rows_is_not_found() {
        for bits in [vec![true, false, true], (0..999).map(|row| row % 2 == 0).collect()] {
            let num_kept = u32::try_from(kept(&bits).len()).unwrap();
            assert_eq!(set(&bits).nth(&[0, num_kept]), [0]);
        }
    }
}
