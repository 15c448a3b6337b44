//! Converts pages of values stored in streams or as differences to plain ones: without kernels of their own, they are
//! copied once more, within the cache. Texts after their lengths stay in place.

use std::ops::Range;

use arrow_buffer::ToByteSlice;

use super::delta::{self, Number};
use super::header::Encoding;
use super::values::Stored;
use super::{Fit, Misfit};

/// Maximum size of a page: larger ones are left to the `parquet` crate.
const MOST_BYTES: usize = 1 << 26;

/// What is added to each text.
const LENGTH_BYTES: usize = size_of::<u32>();

const TOO_MUCH: Misfit = Misfit("the values of a page take much memory");
const MALFORMED: Misfit = Misfit("differences of values are malformed");
const NOT_SO_MANY: Misfit = Misfit("differences are for a different number of values");
const UNEVEN: Misfit = Misfit("streams of values have different lengths");

/// Writes the values of a page to `plain`; returns whether they were not plain before.
pub(super) fn make_plain(
    encoding: Encoding,
    values: &[u8],
    stored: Stored,
    num_values: usize,
    plain: &mut Vec<u8>,
) -> Fit<bool> {
    plain.clear();
    match (encoding, stored) {
        (Encoding::Streams, Stored::Fixed(width)) => join(values, width, plain)?,
        (Encoding::Differences, Stored::Fixed(4)) => {
            add_up::<u32>(values, num_values, plain).or_else(|_| add_up_wide(values, num_values, plain))?;
        }
        (Encoding::Differences, Stored::Fixed(8)) => add_up::<u64>(values, num_values, plain)?,
        (Encoding::Prefixes, Stored::Any) => add_prefixes(values, num_values, plain)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Joins values whose first bytes are stored before all second ones, and so on.
fn join(streams: &[u8], width: usize, values: &mut Vec<u8>) -> Fit<()> {
    if !streams.len().is_multiple_of(width) {
        return Err(UNEVEN);
    }
    reserve(values, streams.len())?;
    values.resize(streams.len(), 0);
    match width {
        2 => join_each::<2>(streams, values),
        4 => join_each::<4>(streams, values),
        8 => join_each::<8>(streams, values),
        _ => return Err(UNEVEN),
    }
    Ok(())
}

fn join_each<const WIDTH: usize>(streams: &[u8], values: &mut [u8]) {
    let values = values.as_chunks_mut::<WIDTH>().0;
    let streams: [&[u8]; WIDTH] = std::array::from_fn(|byte| &streams[byte * values.len()..(byte + 1) * values.len()]);
    for (place, value) in values.iter_mut().enumerate() {
        *value = std::array::from_fn(|byte| streams[byte][place]);
    }
}

/// Sums up delta-encoded numbers.
fn add_up<T: Number>(differences: &[u8], num_values: usize, values: &mut Vec<u8>) -> Fit<()> {
    let (header, rest) = delta::Header::parse(differences).ok_or(MALFORMED)?;
    if header.num_numbers != num_values as u64 {
        return Err(NOT_SO_MANY);
    }
    reserve(values, num_values.saturating_mul(size_of::<T>()))?;
    header.read(rest, |numbers: &[T]| values.extend_from_slice(numbers.to_byte_slice())).ok_or(MALFORMED)?;
    Ok(())
}

/// Sums up numbers of four bytes whose differences have more, because DuckDB does not let them wrap around.
fn add_up_wide(differences: &[u8], num_values: usize, values: &mut Vec<u8>) -> Fit<()> {
    /// All numbers of four bytes, with a sign or without: which of them a column has is not known here.
    const NUMBERS: Range<i64> = -(1 << 31)..1 << 32;
    let mut wide = Vec::new();
    add_up::<u64>(differences, num_values, &mut wide)?;
    let wide = wide.as_chunks::<8>().0;
    if !wide.iter().all(|number| NUMBERS.contains(&i64::from_le_bytes(*number))) {
        return Err(MALFORMED);
    }
    values.clear();
    values.extend(wide.iter().flat_map(|&[a, b, c, d, ..]| [a, b, c, d]));
    Ok(())
}

/// Restores texts that are stored without what they share with the previous one.
fn add_prefixes(bytes: &[u8], num_texts: usize, values: &mut Vec<u8>) -> Fit<()> {
    let (mut prefixes, mut suffixes) = (Vec::new(), Vec::new());
    let rest = read_lengths(bytes, num_texts, &mut prefixes)?;
    let mut rest = read_lengths(rest, num_texts, &mut suffixes)?;
    let num_bytes = prefixes
        .iter()
        .chain(&suffixes)
        .try_fold(num_texts.saturating_mul(LENGTH_BYTES), |sum, length| sum.checked_add(*length as usize));
    reserve(values, num_bytes.ok_or(TOO_MUCH)?)?;
    let mut last = 0..0;
    for (prefix, suffix) in prefixes.into_iter().zip(suffixes) {
        let (text, after) = rest.split_at_checked(suffix as usize).ok_or(MALFORMED)?;
        if prefix as usize > last.len() {
            return Err(MALFORMED);
        }
        let length = prefix.checked_add(suffix).ok_or(TOO_MUCH)?;
        values.extend_from_slice(&length.to_le_bytes());
        let start = values.len();
        values.extend_from_within(last.start..last.start + prefix as usize);
        values.extend_from_slice(text);
        last = start..values.len();
        rest = after;
    }
    Ok(())
}

/// Reads the lengths of this many texts at the start of `bytes` into `lengths`; returns what follows them.
pub(super) fn read_lengths<'p>(bytes: &'p [u8], num_texts: usize, lengths: &mut Vec<u32>) -> Fit<&'p [u8]> {
    let (header, rest) = delta::Header::parse(bytes).ok_or(MALFORMED)?;
    if header.num_numbers != num_texts as u64 {
        return Err(NOT_SO_MANY);
    }
    lengths.clear();
    lengths.try_reserve_exact(num_texts).map_err(|_| Misfit::MEMORY)?;
    let rest = header.read(rest, |some: &[u32]| lengths.extend_from_slice(some)).ok_or(MALFORMED)?;
    if lengths.iter().any(|length| i32::try_from(*length).is_err()) {
        return Err(MALFORMED);
    }
    Ok(rest)
}

fn reserve(values: &mut Vec<u8>, num_bytes: usize) -> Fit<()> {
    if num_bytes > MOST_BYTES {
        return Err(TOO_MUCH);
    }
    values.try_reserve(num_bytes).map_err(|_| Misfit::MEMORY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::delta::tests::encode;
    use super::*;

    proptest! {
        #[test]
        fn numbers_of_four_bytes_may_have_wider_differences(numbers in prop::collection::vec(any::<i32>(), 0..400)) {
            let wide: Vec<i64> = numbers.iter().copied().map(i64::from).collect();
            let mut plain = Vec::new();
            let is_made = make_plain(Encoding::Differences, &encode(&wide), Stored::Fixed(4), numbers.len(), &mut plain);
            prop_assert_eq!((is_made, &plain[..]), (Ok(true), numbers.to_byte_slice()));
        }

        #[test]
        fn numbers_of_more_than_four_bytes_are_not_cut_off(
            number in prop_oneof![any::<i64>(), -5_i64..5, (1_i64 << 32) - 3..(1 << 32) + 3],
        ) {
            let mut plain = Vec::new();
            let is_made = make_plain(Encoding::Differences, &encode(&[7, number]), Stored::Fixed(4), 2, &mut plain);
            let is_short = i32::try_from(number).is_ok() || u32::try_from(number).is_ok();
            prop_assert_eq!(is_made, if is_short { Ok(true) } else { Err(MALFORMED) });
        }
    }
}
