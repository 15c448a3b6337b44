//! Fuzzes the reading of levels, numbers and page headers.

use super::Fit;
use super::header::PageHeader;
use super::hybrid::{Hybrid, Run, unpack};
use super::levels::{are_all, count, expand, row_starts, validity, width_of};
use crate::fuzz::Numbers;

/// Reads bytes as numbers of some width, in large steps and in small ones, and as levels in all ways: if two of them
/// accept the bytes, their results agree.
pub fn levels(data: &[u8]) {
    let mut numbers = Numbers(data);
    let (width, max, step) = (numbers.byte() % 34, numbers.byte() % 7 + 1, numbers.byte());
    let num_levels = usize::from(numbers.short() % 4096);
    let bytes = numbers.0;
    let header = PageHeader::parse(bytes);
    assert!(header.is_ok_and(|(_, len)| len <= bytes.len()) || header.is_err());
    let at_once = read(bytes, usize::from(width), num_levels, num_levels);
    assert_eq!(at_once, read(bytes, usize::from(width), num_levels, usize::from(step) + 1));
    skip(bytes, usize::from(width), num_levels, at_once.as_deref().ok());

    let mut all = Vec::new();
    let expanded = expand(bytes, num_levels, max, &mut all);
    if let (Ok(()), Ok(are_all)) = (expanded, are_all(bytes, num_levels, max)) {
        assert_eq!(are_all, all.iter().all(|&level| level == max), "{all:?}");
    }
    let hybrid = Hybrid::new(0, width_of(max));
    match (expanded, hybrid.and_then(|hybrid| count(bytes, hybrid, num_levels, max.into(), 0))) {
        (Ok(()), zeros) => assert_eq!(zeros, Ok(all.iter().filter(|level| **level == 0).count())),
        (Err(_), zeros) => assert!(zeros.is_err(), "{zeros:?}"),
    }
    let (mut starts, mut ones) = (Vec::new(), Vec::new());
    let found = (row_starts(bytes, num_levels, &mut starts), expand(bytes, num_levels, 1, &mut ones));
    if let (Ok(()), Ok(())) = found {
        let zeros = ones.iter().enumerate().filter(|(_, level)| **level == 0);
        assert!(zeros.map(|(place, _)| place).eq(starts.iter().map(|&start| start as usize)), "{starts:?}");
    }
    if let (Ok(bits), Ok(())) = (validity(bytes, num_levels), found.1) {
        let is_valid = |place: usize| bits.as_ref().is_none_or(|bits| bits.value(place));
        assert!(ones.iter().enumerate().all(|(place, &level)| is_valid(place) == (level == 1)), "{bits:?}");
    }
    assert!(all.len() <= num_levels + 256 && width_of(max) <= 3);
}

/// Returns `num` numbers, read `step` at a time.
fn read(bytes: &[u8], width: usize, num: usize, step: usize) -> Fit<Vec<u32>> {
    let mut hybrid = Hybrid::new(0, width)?;
    let mut all = Vec::new();
    while all.len() < num {
        match hybrid.next(bytes, step.min(num - all.len()))? {
            Run::Same { value, len } => all.extend(std::iter::repeat_n(value, len)),
            Run::Packed { start, first, len } => {
                let end = all.len();
                all.resize(end + len, 0);
                unpack(&bytes[start..], width, first, &mut all[end..]);
            }
        }
    }
    Ok(all)
}

/// Skips numbers, and finds the next ones where the others were read.
fn skip(bytes: &[u8], width: usize, num: usize, all: Option<&[u32]>) {
    let Ok(mut hybrid) = Hybrid::new(0, width) else { return };
    let skipped = hybrid.skip(bytes, num / 2);
    let Some(all) = all else { return };
    assert!(skipped.is_ok());
    let Some(&number) = all.get(num / 2) else { return };
    let next = hybrid.next(bytes, 1).map(|run| match run {
        Run::Same { value, .. } => value,
        Run::Packed { start, first, .. } => {
            let mut out = [0];
            unpack(&bytes[start..], width, first, &mut out);
            out[0]
        }
    });
    assert_eq!(next, Ok(number));
}
