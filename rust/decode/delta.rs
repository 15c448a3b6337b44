//! Delta-encoded numbers: `DELTA_BINARY_PACKED`. `DELTA_LENGTH_BYTE_ARRAY` and `DELTA_BYTE_ARRAY` begin with them, as
//! lengths of texts.
//!
//! The `parquet` crate allocates memory for as many lengths as are claimed, and for texts that repeat the beginning of
//! the previous one as often as they claim. So they are checked first. See
//! <https://github.com/apache/parquet-format/blob/master/Encodings.md>.

use arrow_buffer::ArrowNativeType;

use super::bits::word_at;
use super::hybrid::unpack;

/// Numbers that are unpacked at once; blocks have a multiple of this.
const STEP: usize = 128;

/// The parts of a block have a multiple of this many numbers.
const PART_STEP: u64 = 32;

/// The error for impossible lengths in a page.
const MALFORMED: &str = "lengths of texts are malformed";

/// The bits of a number.
pub(super) trait Number: ArrowNativeType {
    const BITS: u8;

    /// Returns the bits of a signed number, if they suffice.
    fn of(signed: i64) -> Option<Self>;

    /// Adds numbers, wrapping around.
    fn plus(self, other: Self) -> Self;

    /// Unpacks numbers of `width` bits, from the number `first` of `packed` on, a multiple of eight; those beyond the
    /// end are 0.
    fn unpack(packed: &[u8], width: usize, first: usize, out: &mut [Self]);
}

impl Number for u32 {
    const BITS: u8 = 32;

    fn of(signed: i64) -> Option<Self> {
        i32::try_from(signed).ok().map(i32::cast_unsigned)
    }

    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn unpack(packed: &[u8], width: usize, first: usize, out: &mut [Self]) {
        unpack(packed, width, first, out);
    }
}

impl Number for u64 {
    const BITS: u8 = 64;

    fn of(signed: i64) -> Option<Self> {
        Some(signed.cast_unsigned())
    }

    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn unpack(packed: &[u8], width: usize, first: usize, out: &mut [Self]) {
        /// The bits that a word has for certain, wherever it begins.
        const HALF: usize = 32;
        if width <= HALF {
            let mut halves = [0; STEP];
            let halves = &mut halves[..out.len()];
            unpack(packed, width, first, halves);
            out.iter_mut().zip(halves).for_each(|(number, half)| *number = u64::from(*half));
            return;
        }
        let (low, high) = (u64::MAX >> HALF, u64::MAX >> (2 * HALF - (width - HALF)));
        for (place, number) in out.iter_mut().enumerate() {
            let bit = (first + place) * width;
            *number = word_at(packed, bit) & low | (word_at(packed, bit + HALF) & high) << HALF;
        }
    }
}

/// The header of a sequence of numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    part_len: usize,
    num_parts: usize,
    pub(super) num_numbers: u64,
    first: i64,
}

impl Header {
    /// Parses the header at the start of `bytes`, and returns it with what follows it; `None` if it is invalid.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut rest = bytes;
        let (block_len, num_parts) = (varint(&mut rest)?, varint(&mut rest)?);
        let (num_numbers, first) = (varint(&mut rest)?, of_zigzag(varint(&mut rest)?));
        let part_len = block_len.checked_div(num_parts)?;
        if block_len % (4 * PART_STEP) > 0 || block_len % num_parts > 0 || part_len % PART_STEP > 0 {
            return None;
        }
        let (part_len, num_parts) = (usize::try_from(part_len).ok()?, usize::try_from(num_parts).ok()?);
        Some((Self { part_len, num_parts, num_numbers, first }, rest))
    }

    /// Passes on the numbers whose blocks `rest` begins with, some at a time; returns what follows them.
    pub(super) fn read<T: Number>(self, mut rest: &[u8], mut each: impl FnMut(&[T])) -> Option<&[u8]> {
        let Self { part_len, num_parts, num_numbers, first } = self;
        let mut last = T::of(first)?;
        let Some(left) = usize::try_from(num_numbers).ok()?.checked_sub(1) else { return Some(rest) };
        each(&[last]);
        let (mut left, mut block) = (left, [T::default(); STEP]);
        while left > 0 {
            let least = T::of(of_zigzag(varint(&mut rest)?))?;
            let (widths, mut parts) = rest.split_at_checked(num_parts)?;
            for &width in widths {
                if left == 0 {
                    break;
                }
                if width > T::BITS {
                    return None;
                }
                let (len, width) = (left.min(part_len), usize::from(width));
                let part_bytes = part_len.checked_mul(width)?.div_ceil(8).min(parts.len());
                if len.checked_mul(width)? > part_bytes * 8 {
                    return None;
                }
                for from in (0..len).step_by(STEP) {
                    let block = &mut block[..STEP.min(len - from)];
                    T::unpack(parts, width, from, block);
                    for number in &mut *block {
                        last = last.plus(least.plus(*number));
                        *number = last;
                    }
                    each(block);
                }
                left -= len;
                parts = &parts[part_bytes..];
            }
            if part_len == 0 {
                return None;
            }
            rest = parts;
        }
        Some(rest)
    }
}

/// Returns the longest of the lengths at the start of `bytes`, and what follows them. At most `most` may be claimed.
///
/// # Errors
///
/// If a claim is impossible; says which.
pub(super) fn longest(bytes: &[u8], most: usize) -> Result<(u32, &[u8]), String> {
    let mut longest = 0;
    let rest = read(bytes, most, |lengths| longest = lengths.iter().copied().map(length).fold(longest, u32::max))?;
    Ok((longest, rest))
}

/// Returns the bytes of the longest text of a page whose texts repeat the beginning of the previous one: `bytes` begin
/// with how much each repeats, and how much it adds. At most `most` of them may be claimed.
///
/// The crate takes the whole previous text if more is to be repeated than it has.
///
/// # Errors
///
/// If a claim is impossible; says which.
pub(super) fn longest_repeated(bytes: &[u8], most: usize) -> Result<u64, String> {
    let mut prefixes = Vec::new();
    let rest = read(bytes, most, |lengths| prefixes.extend_from_slice(lengths))?;
    let (mut place, mut last, mut longest, mut are_there) = (0, 0, 0, true);
    read(rest, most, |suffixes| {
        for (prefix, suffix) in prefixes[place..].iter().zip(suffixes) {
            are_there &= u64::from(*prefix) <= last && i32::try_from(*suffix).is_ok();
            last = u64::from(*prefix) + u64::from(*suffix);
            longest = longest.max(last);
        }
        place = (place + suffixes.len()).min(prefixes.len());
    })?;
    if are_there { Ok(longest) } else { Err("a text repeats more of the previous text than there is".to_owned()) }
}

/// Returns the lengths at the start of `bytes`, and what follows them. At most `most` may be claimed.
///
/// # Errors
///
/// If a claim is impossible; says which.
pub(super) fn lengths(bytes: &[u8], most: usize) -> Result<(Vec<u32>, &[u8]), String> {
    let mut all = Vec::new();
    let rest = read(bytes, most, |lengths| all.extend(lengths.iter().copied().map(length)))?;
    Ok((all, rest))
}

/// Returns a length of 32 bits; the crate refuses negative ones.
fn length(bits: u32) -> u32 {
    if bits > i32::MAX.cast_unsigned() { 0 } else { bits }
}

fn read(bytes: &[u8], most: usize, each: impl FnMut(&[u32])) -> Result<&[u8], String> {
    let (header, rest) = Header::parse(bytes).ok_or_else(|| MALFORMED.to_owned())?;
    if header.num_numbers > most as u64 {
        return Err(format!("a page claims {} lengths of {most} texts", header.num_numbers));
    }
    header.read(rest, each).ok_or_else(|| MALFORMED.to_owned())
}

/// Takes a variable-length number.
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

fn of_zigzag(number: u64) -> i64 {
    ((number >> 1) ^ (number & 1).wrapping_neg()).cast_signed()
}

#[cfg(test)]
pub(super) mod tests {
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

    /// Writes numbers in blocks of 128, in four parts, following the specification. Differences wrap around.
    pub(in crate::decode) fn encode(numbers: &[i64]) -> Vec<u8> {
        let mut out = Vec::new();
        let first = numbers.first().copied().unwrap_or(0);
        for number in [128, 4, numbers.len() as u64, to_zigzag(first)] {
            write_varint(number, &mut out);
        }
        let deltas: Vec<i64> = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        for block in deltas.chunks(128) {
            let least = *block.iter().min().unwrap();
            write_varint(to_zigzag(least), &mut out);
            let width = |part: &[i64]| {
                let above = part.iter().map(|delta| delta.wrapping_sub(least).cast_unsigned());
                let largest = above.max().unwrap_or(0);
                u8::try_from(u64::BITS - largest.leading_zeros()).unwrap()
            };
            let mut widths: Vec<u8> = block.chunks(32).map(width).collect();
            widths.resize(4, 0);
            out.extend(&widths);
            for (part, width) in block.chunks(32).zip(widths) {
                let mut packed = vec![0_u8; 32 * usize::from(width) / 8];
                for (index, delta) in part.iter().enumerate() {
                    for bit in (0..usize::from(width)).filter(|bit| delta.wrapping_sub(least) >> bit & 1 == 1) {
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
            let mut bytes = encode(&lengths.iter().map(|length| i64::from(*length)).collect::<Vec<_>>());
            bytes.extend(&after);
            let expected = lengths.iter().copied().max().unwrap_or(0);
            prop_assert_eq!(longest(&bytes, lengths.len()).unwrap(), (expected, &after[..]));
            prop_assert_eq!(super::lengths(&bytes, lengths.len()).unwrap(), (lengths.clone(), &after[..]));
            if !lengths.is_empty() {
                prop_assert!(longest(&bytes, lengths.len() - 1).unwrap_err().contains("claims"));
            }
        }

        #[test]
        fn numbers_of_all_widths_are_found(
            seeds in prop::collection::vec((any::<i64>(), 0_u32..64), 0..700), after in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let wide: Vec<i64> = seeds.iter().map(|(seed, shift)| seed >> shift).collect();
            let mut bytes = encode(&wide);
            bytes.extend(&after);
            let (header, rest) = Header::parse(&bytes).unwrap();
            let mut found = Vec::new();
            let rest = header.read(rest, |numbers: &[u64]| found.extend(numbers.iter().map(|number| number.cast_signed())));
            prop_assert_eq!((found, rest), (wide.clone(), Some(&after[..])));
            let narrow: Vec<i64> = wide.iter().map(|number| number >> 34).collect();
            let bytes = encode(&narrow);
            let (header, rest) = Header::parse(&bytes).unwrap();
            let mut found = Vec::new();
            let rest = header.read(rest, |numbers: &[u32]| found.extend(numbers.iter().map(|number| i64::from(number.cast_signed()))));
            prop_assert_eq!((found, rest), (narrow, Some(&[][..])));
        }

        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..80), most in 0_usize..1 << 40) {
            drop(longest(&noise, most.min(100_000)));
            if let Some((header, rest)) = Header::parse(&noise).filter(|(header, _)| header.num_numbers < 100_000) {
                let _ = header.read(rest, |_: &[u64]| {});
            }
        }
    }
}
