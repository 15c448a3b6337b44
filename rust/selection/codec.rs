//! Serializes kept rows.
//!
//! A sequence of records: a byte for the form, then
//!
//! - 0, no row, and 1, every row: the number of consecutive row groups;
//! - 2, runs: their number, then for each the gap before it and its length;
//! - 3, a mask: one bit for each row, the first in the lowest bit of the first byte.
//!
//! Numbers are LEB128: seven bits per byte, low ones first. Whatever the bytes, reading takes memory in proportion to
//! them and to the row groups, and yields sets as [`RowSet`] makes them, or a refusal.

use std::ops::Range;

use arrow_buffer::{BooleanBuffer, Buffer};

use crate::rows::RowSet;

const NOTHING: u8 = 0;
const EVERYTHING: u8 = 1;
const RUNS: u8 = 2;
const MASK: u8 = 3;

/// Appends a number.
pub(super) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Takes a number from the front of `bytes`.
pub(super) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Appends the sets of row groups of `sizes` rows.
pub(super) fn put_sets(sets: &[RowSet], sizes: &[u32], out: &mut Vec<u8>) {
    for (sets, sizes) in chunks(sets, sizes) {
        match &sets[0] {
            RowSet::None => put_constant(NOTHING, sets.len(), out),
            RowSet::All => put_constant(EVERYTHING, sets.len(), out),
            RowSet::Runs(runs) => put_runs(runs, out),
            RowSet::Mask(mask) => {
                out.push(MASK);
                let aligned = BooleanBuffer::new(mask.sliced(), 0, mask.len());
                out.extend_from_slice(&aligned.values()[..num_bytes(sizes[0])]);
                // Bits of a mask beyond its last row are arbitrary, and equal sets must be equal bytes.
                if let (Some(last), rows @ 1..) = (out.last_mut(), sizes[0] % 8) {
                    *last &= (1 << rows) - 1;
                }
            }
        }
    }
}

/// Splits sets and sizes at the ends of records.
fn chunks<'a>(sets: &'a [RowSet], sizes: &'a [u32]) -> impl Iterator<Item = (&'a [RowSet], &'a [u32])> {
    let is_constant = |set: &RowSet| matches!(set, RowSet::None | RowSet::All);
    let mut before = 0;
    sets.chunk_by(move |a, b| is_constant(a) && a == b).map(move |chunk| {
        let first = before;
        before += chunk.len();
        (chunk, &sizes[first..before])
    })
}

fn put_constant(form: u8, num_row_groups: usize, out: &mut Vec<u8>) {
    out.push(form);
    put_number(num_row_groups as u64, out);
}

fn put_runs(runs: &[Range<u32>], out: &mut Vec<u8>) {
    out.push(RUNS);
    put_number(runs.len() as u64, out);
    let mut end = 0;
    for run in runs {
        put_number(u64::from(run.start - end), out);
        put_number(u64::from(run.end - run.start), out);
        end = run.end;
    }
}

/// Takes the sets of row groups of `sizes` rows from the front of `bytes`; `None` if they are not there.
pub(super) fn take_sets(bytes: &mut &[u8], sizes: &[u32]) -> Option<Vec<RowSet>> {
    let mut sets = Vec::with_capacity(sizes.len());
    while let Some(&num_rows) = sizes.get(sets.len()) {
        let (&form, rest) = bytes.split_first()?;
        *bytes = rest;
        match form {
            NOTHING | EVERYTHING => {
                let set = if form == NOTHING { RowSet::None } else { RowSet::All };
                let len = usize::try_from(take_number(bytes)?).ok()?;
                let is_sound = len > 0 && len <= sizes.len() - sets.len();
                sets.extend(is_sound.then(|| std::iter::repeat_n(set, len))?);
            }
            RUNS => sets.push(take_runs(bytes, num_rows)?),
            MASK => {
                let (mask, rest) = bytes.split_at_checked(num_bytes(num_rows))?;
                *bytes = rest;
                sets.push(RowSet::from_mask(BooleanBuffer::new(Buffer::from(mask), 0, num_rows as usize)));
            }
            _ => return None,
        }
    }
    Some(sets)
}

fn take_runs(bytes: &mut &[u8], num_rows: u32) -> Option<RowSet> {
    let num_runs = usize::try_from(take_number(bytes)?).ok()?;
    // Each takes at least two bytes.
    let mut runs = Vec::with_capacity(num_runs.min(bytes.len() / 2));
    let mut end = 0_u32;
    for number in 0..num_runs {
        let gap = u32::try_from(take_number(bytes)?).ok()?;
        let len = u32::try_from(take_number(bytes)?).ok()?;
        let start = end.checked_add(gap).filter(|_| gap > 0 || number == 0)?;
        end = start.checked_add(len).filter(|end| len > 0 && *end <= num_rows)?;
        runs.push(start..end);
    }
    Some(RowSet::from_runs(runs, num_rows))
}

fn num_bytes(num_rows: u32) -> usize {
    (num_rows as usize).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Vec<(RowSet, u32)>> {
        let bits = prop::collection::vec((any::<bool>(), 1_usize..200), 1..12);
        let set = bits.prop_map(|runs| {
            let mask: BooleanBuffer = runs.iter().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len)).collect();
            let num_rows = u32::try_from(mask.len()).unwrap();
            (RowSet::from_mask(mask), num_rows)
        });
        let constant = prop_oneof![Just((RowSet::All, 9)), Just((RowSet::None, 9))];
        prop::collection::vec(prop_oneof![set, constant], 0..12)
    }

    proptest! {
        #[test]
        fn sets_come_back(sets in sets(), rest in prop::collection::vec(any::<u8>(), 0..9)) {
            let (sets, sizes): (Vec<_>, Vec<_>) = sets.into_iter().unzip();
            let mut bytes = Vec::new();
            put_sets(&sets, &sizes, &mut bytes);
            for len in 0..bytes.len() {
                prop_assert_eq!(take_sets(&mut &bytes[..len], &sizes), None);
            }
            bytes.extend(&rest);
            let mut left = &bytes[..];
            prop_assert_eq!(take_sets(&mut left, &sizes), Some(sets));
            prop_assert_eq!(left, rest);
        }

        #[test]
        fn any_bytes_are_sets_or_refused(
            bytes in prop::collection::vec(prop_oneof![3 => 0_u8..6, 1 => any::<u8>()], 0..60),
            sizes in prop::collection::vec(1_u32..40, 0..6),
        ) {
            if let Some(sets) = take_sets(&mut &bytes[..], &sizes) {
                let mut again = Vec::new();
                put_sets(&sets, &sizes, &mut again);
                prop_assert_eq!(take_sets(&mut &again[..], &sizes), Some(sets));
            }
        }

        #[test]
        fn numbers_come_back(number in any::<u64>(), shift in 0_u32..64) {
            let mut bytes = Vec::new();
            put_number(number >> shift, &mut bytes);
            prop_assert_eq!(take_number(&mut &bytes[..]), Some(number >> shift));
        }
    }

    #[test]
    fn equal_sets_are_equal_bytes() {
        let bytes = |set: &RowSet| {
            let mut bytes = Vec::new();
            put_sets(std::slice::from_ref(set), &[1001], &mut bytes);
            bytes
        };
        let even: BooleanBuffer = (0..1001).map(|row| row % 2 == 0).collect();
        let odd: BooleanBuffer = (0..1001).map(|row| row % 2 == 1).collect();
        assert_eq!(bytes(&RowSet::from_mask(even)), bytes(&RowSet::from_mask(!&odd)));
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        assert_eq!(take_number(&mut &[0xff; 10][..]), None);
        assert_eq!(take_number(&mut &[&[0xff; 9][..], &[2]].concat()[..]), None);
        assert_eq!(take_number(&mut &[&[0xff; 9][..], &[1]].concat()[..]), Some(u64::MAX));
    }

    #[test]
    fn a_claim_of_many_runs_or_row_groups_takes_no_memory() {
        let mut bytes = vec![RUNS];
        put_number(u64::MAX, &mut bytes);
        assert_eq!(take_sets(&mut &bytes[..], &[100]), None);
        bytes[0] = EVERYTHING;
        assert_eq!(take_sets(&mut &bytes[..], &[100]), None);
    }
}
