//! Lengths of texts that are stored as differences: `DELTA_BINARY_PACKED`, as `DELTA_LENGTH_BYTE_ARRAY` and
//! `DELTA_BYTE_ARRAY` begin.
//!
//! The `parquet` crate decodes them, after it has taken memory for as many as there are said to be, and for texts that
//! repeat the beginning of the one before as often as they say. So they are looked at before.
//! See <https://github.com/apache/parquet-format/blob/master/Encodings.md>.

use super::bits::word_at;

/// A length has 32 bits.
const MAX_WIDTH: u8 = 32;

/// What is said about a page's lengths that cannot be.
const MALFORMED: &str = "lengths of texts are malformed";

/// Returns the longest of the lengths that `bytes` begin with, and what follows them. No more than `most` may be claimed.
///
/// # Errors
///
/// Says what cannot be.
pub(super) fn longest(bytes: &[u8], most: usize) -> Result<(u32, &[u8]), String> {
    let mut longest = 0;
    let rest = read(bytes, most, |length| longest = longest.max(length))?;
    Ok((longest, rest))
}

/// Returns the lengths that `bytes` begin with, and what follows them. No more than `most` may be claimed.
///
/// # Errors
///
/// Says what cannot be.
pub(super) fn lengths(bytes: &[u8], most: usize) -> Result<(Vec<u32>, &[u8]), String> {
    let mut lengths = Vec::new();
    let rest = read(bytes, most, |length| lengths.push(length))?;
    Ok((lengths, rest))
}

fn read(bytes: &[u8], most: usize, each: impl FnMut(u32)) -> Result<&[u8], String> {
    let mut rest = bytes;
    let mut number = || varint(&mut rest).ok_or_else(|| MALFORMED.to_owned());
    let (block_len, num_parts, num_lengths, first) = (number()?, number()?, number()?, number()?);
    if num_lengths > most as u64 {
        return Err(format!("a page claims {num_lengths} lengths of {most} texts"));
    }
    deltas(rest, [block_len, num_parts, num_lengths, first], each).ok_or_else(|| MALFORMED.to_owned())
}

/// Reads the blocks of differences behind the first number; returns what follows them.
fn deltas(mut rest: &[u8], header: [u64; 4], mut each: impl FnMut(u32)) -> Option<&[u8]> {
    let [block_len, num_parts, num_lengths, first] = header;
    // The crate refuses negative ones.
    let mut note = |length: i32| each(u32::try_from(length).unwrap_or(0));
    let part_len = usize::try_from(block_len.checked_div(num_parts)?).ok()?;
    let num_parts = usize::try_from(num_parts).ok()?;
    let mut length = of_zigzag(first);
    if num_lengths > 0 {
        note(length);
    }
    let mut left = usize::try_from(num_lengths).ok()?.saturating_sub(1);
    while left > 0 {
        let least = of_zigzag(varint(&mut rest)?);
        let (widths, mut parts) = rest.split_at_checked(num_parts)?;
        for &width in widths.iter().filter(|_| part_len > 0) {
            if left == 0 {
                break;
            }
            if width > MAX_WIDTH {
                return None;
            }
            let mask = u64::MAX.unbounded_shr(u64::BITS - u32::from(width));
            let (len, width) = (left.min(part_len), usize::from(width));
            let (packed, after) = parts.split_at(part_len.checked_mul(width)?.div_ceil(8).min(parts.len()));
            if len * width > packed.len() * 8 {
                return None;
            }
            for index in 0..len {
                // As the crate adds them up: in 32 bits, beyond which they wrap.
                length = length.wrapping_add(least).wrapping_add(low(word_at(packed, index * width) & mask));
                note(length);
            }
            left -= len;
            parts = after;
        }
        if part_len == 0 || num_parts == 0 {
            return None;
        }
        rest = parts;
    }
    Some(rest)
}

/// Takes a number of as many bytes as it needs.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Returns the low 32 bits of a signed number.
fn of_zigzag(number: u64) -> i32 {
    low((number >> 1) ^ (number & 1).wrapping_neg())
}

fn low(number: u64) -> i32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write_varint(mut number: u64, out: &mut Vec<u8>) {
        while number >= 0x80 {
            out.push(u8::try_from(number & 0x7f | 0x80).unwrap());
            number >>= 7;
        }
        out.push(u8::try_from(number).unwrap());
    }

    fn to_zigzag(number: i64) -> u64 {
        ((number << 1) ^ (number >> 63)).cast_unsigned()
    }

    /// Writes lengths in blocks of 128, in four parts, as the specification says.
    fn encode(lengths: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        let first = lengths.first().copied().unwrap_or(0);
        for number in [128, 4, lengths.len() as u64, to_zigzag(i64::from(first))] {
            write_varint(number, &mut out);
        }
        let deltas: Vec<i64> = lengths.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).collect();
        for block in deltas.chunks(128) {
            let least = *block.iter().min().unwrap();
            write_varint(to_zigzag(least), &mut out);
            let width = |part: &[i64]| {
                let largest = part.iter().map(|delta| (delta - least).cast_unsigned()).max().unwrap_or(0);
                u8::try_from(u64::BITS - largest.leading_zeros()).unwrap()
            };
            let mut widths: Vec<u8> = block.chunks(32).map(width).collect();
            widths.resize(4, 0);
            out.extend(&widths);
            for (part, width) in block.chunks(32).zip(widths) {
                let mut packed = vec![0_u8; 32 * usize::from(width) / 8];
                for (index, delta) in part.iter().enumerate() {
                    for bit in (0..usize::from(width)).filter(|bit| (delta - least) >> bit & 1 == 1) {
                        let at = index * usize::from(width) + bit;
                        packed[at / 8] |= 1 << (at % 8);
                    }
                }
                out.extend(packed);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn lengths_are_found_and_what_follows(
            lengths in prop::collection::vec(prop_oneof![0_u32..40, 0_u32..1 << 30], 0..400),
            after in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let mut bytes = encode(&lengths);
            bytes.extend(&after);
            let expected = lengths.iter().copied().max().unwrap_or(0);
            prop_assert_eq!(longest(&bytes, lengths.len()).unwrap(), (expected, &after[..]));
            prop_assert_eq!(super::lengths(&bytes, lengths.len()).unwrap(), (lengths.clone(), &after[..]));
            if !lengths.is_empty() {
                prop_assert!(longest(&bytes, lengths.len() - 1).unwrap_err().contains("claims"));
            }
        }

        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..80), most in 0_usize..1 << 40) {
            drop(longest(&noise, most.min(100_000)));
        }
    }
}
