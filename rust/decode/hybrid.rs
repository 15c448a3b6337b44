//! Reads Parquet's hybrid of runs and packed bits, in which levels and dictionary keys are stored.
//!
//! Runs are returned as runs. A [`Hybrid`] is only a position in bytes that its owner passes each time.

use super::{Fit, Misfit};

/// Some of the numbers, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// `len` times the same.
    Same { value: u32, len: usize },
    /// `len` numbers in packed bits that start at byte `start`, after the `first` of them.
    Packed { start: usize, first: usize, len: usize },
}

/// A position in numbers of `width` bits each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hybrid {
    at: usize,
    width: usize,
    run: Run,
    /// Whether the current run claims more than there is.
    is_cut: bool,
}

impl Hybrid {
    /// Returns the start of numbers of `width` bits at byte `at`.
    pub(super) fn new(at: usize, width: usize) -> Fit<Self> {
        if width > 32 {
            return Err(Misfit("numbers of more than 32 bits"));
        }
        Ok(Self { at, width, run: Run::Same { value: 0, len: 0 }, is_cut: false })
    }

    /// Returns the start of `num_bytes` of purely packed numbers of `width` bits.
    pub(super) fn of_packed(num_bytes: usize, width: usize) -> Fit<Self> {
        let len = num_bytes.saturating_mul(8).checked_div(width).unwrap_or(0);
        Ok(Self { run: Run::Packed { start: 0, first: 0, len }, ..Self::new(num_bytes, width)? })
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Returns the next numbers, at least one and at most `most`, as far as they are stored in the same way.
    #[inline]
    pub(super) fn next(&mut self, bytes: &[u8], most: usize) -> Fit<Run> {
        if let Run::Same { len: 0, .. } | Run::Packed { len: 0, .. } = self.run {
            self.run = self.begin(bytes)?;
        }
        let taken;
        (taken, self.run) = match self.run {
            Run::Same { value, len } => {
                let now = len.min(most);
                (Run::Same { value, len: now }, Run::Same { value, len: len - now })
            }
            Run::Packed { start, first, len } => {
                let now = len.min(most);
                (Run::Packed { start, first, len: now }, Run::Packed { start, first: first + now, len: len - now })
            }
        };
        Ok(taken)
    }

    /// Skips numbers.
    pub(super) fn skip(&mut self, bytes: &[u8], mut num: usize) -> Fit<()> {
        while num > 0 {
            let (Run::Same { len, .. } | Run::Packed { len, .. }) = self.next(bytes, num)?;
            num -= len;
        }
        Ok(())
    }

    /// Returns whether the current run is the last of `bytes`, and not cut.
    pub(super) fn is_last(&self, bytes: &[u8]) -> bool {
        self.at == bytes.len() && !self.is_cut
    }

    /// Reads the header of a run, which has at least one number.
    #[inline]
    fn begin(&mut self, bytes: &[u8]) -> Fit<Run> {
        const SHORT: Misfit = Misfit("a page has fewer numbers than it claims");
        let (head, rest) = varint(bytes.get(self.at..).ok_or(SHORT)?).ok_or(SHORT)?;
        let start = bytes.len() - rest.len();
        let len = usize::try_from(head >> 1).map_err(|_| SHORT)?;
        let run = if head & 1 == 0 {
            let value_bytes = self.width.div_ceil(8);
            let stored = rest.get(..value_bytes).ok_or(SHORT)?;
            let value = stored.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            self.at = start + value_bytes;
            Run::Same { value, len }
        } else {
            // Some writers cut the last group where its numbers end.
            let claimed_bytes = len.saturating_mul(self.width);
            let run_bytes = claimed_bytes.min(rest.len());
            self.is_cut = run_bytes < claimed_bytes;
            self.at = start + run_bytes;
            let held = (run_bytes * 8).checked_div(self.width).unwrap_or(usize::MAX);
            Run::Packed { start, first: 0, len: len.saturating_mul(8).min(held) }
        };
        match run {
            Run::Same { len: 0, .. } | Run::Packed { len: 0, .. } => Err(SHORT),
            run => Ok(run),
        }
    }
}

/// Splits off a variable-length number; `None` if it is longer than 32 bits.
#[inline]
fn varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    if let Some((&byte, rest)) = bytes.split_first()
        && byte < 0x80
    {
        return Some((u32::from(byte), rest));
    }
    long_varint(bytes)
}

fn long_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0_u64;
    for (place, &byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some((u32::try_from(value).ok()?, &bytes[place + 1..]));
        }
    }
    None
}

/// Unpacks numbers of `width` bits, from the number `first` of `packed` on; those beyond the end are 0.
pub(super) fn unpack(packed: &[u8], width: usize, first: usize, out: &mut [u32]) {
    let head = ((8 - first % 8) % 8).min(out.len());
    let (unaligned, out) = out.split_at_mut(head);
    unpack_slowly(packed, width, first, unaligned);
    let first = first + head;
    let aligned = packed.get(first / 8 * width..).unwrap_or_default();
    let groups = out.as_chunks_mut::<8>().0;
    let num_done = 8 * groups_of_width(aligned, width, groups);
    unpack_slowly(packed, width, first + num_done, &mut out[num_done..]);
}

fn unpack_slowly(packed: &[u8], width: usize, first: usize, out: &mut [u32]) {
    for (place, number) in out.iter_mut().enumerate() {
        let bit = (first + place) * width;
        let mut word = [0; 8];
        let bytes = packed.get(bit / 8..).unwrap_or_default();
        let len = bytes.len().min(8);
        word[..len].copy_from_slice(&bytes[..len]);
        *number = low_bits(u64::from_le_bytes(word) >> (bit % 8), width);
    }
}

#[inline(always)]
fn low_bits(word: u64, width: usize) -> u32 {
    let bytes = (word & ((1_u64 << width) - 1)).to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Unpacks as many groups of eight numbers as can be read in whole words; returns how many.
fn groups_of<const WIDTH: usize>(packed: &[u8], groups: &mut [[u32; 8]]) -> usize {
    for (number, group) in groups.iter_mut().enumerate() {
        let start = number * WIDTH;
        let Some(bytes) = packed.get(start..start + WIDTH + 8) else { return number };
        for (place, number) in group.iter_mut().enumerate() {
            let bit = place * WIDTH;
            let word = bytes[bit / 8..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            *number = low_bits(word >> (bit % 8), WIDTH);
        }
    }
    groups.len()
}

/// The same with eight numbers in one register: the bytes of each are moved to its lane, and shifted by its bits. Known
/// as horizontal bit unpacking: Willhalm et al., "SIMD-Scan: Ultra Fast in-Memory Table Scan using on-Chip Vector
/// Processing Units", PVLDB 2 (2009).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "registers are loaded and stored by pointers")]
fn groups_with_avx2<const WIDTH: usize>(packed: &[u8], groups: &mut [[u32; 8]]) -> usize {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_loadu_si256, _mm256_set_m128i, _mm256_set1_epi32,
        _mm256_shuffle_epi8, _mm256_srlv_epi32, _mm256_storeu_si256,
    };

    /// Bytes of half a register, which holds the bytes of four numbers.
    const HALF: usize = 16;
    // The bits of the upper four begin within this byte.
    let upper = WIDTH / 2;
    let (mut places, mut shifts) = ([0_u8; 2 * HALF], [0_u32; 8]);
    for (number, shift) in shifts.iter_mut().enumerate() {
        let bit = number * WIDTH - if number < 4 { 0 } else { 8 * upper };
        for byte in 0..4 {
            places[4 * number + byte] = (bit / 8 + byte).to_le_bytes()[0];
        }
        *shift = u32::from((bit % 8).to_le_bytes()[0]);
    }
    // SAFETY: both arrays are as long as a register.
    let (places, shifts) = unsafe {
        (_mm256_loadu_si256(places.as_ptr().cast::<__m256i>()), _mm256_loadu_si256(shifts.as_ptr().cast::<__m256i>()))
    };
    let mask = _mm256_set1_epi32(low_bits(u64::MAX, WIDTH).cast_signed());
    for (number, group) in groups.iter_mut().enumerate() {
        let start = number * WIDTH;
        let Some(bytes) = packed.get(start..start + upper + HALF) else { return number };
        let (low, high) = (bytes.as_ptr(), bytes[upper..].as_ptr());
        // SAFETY: there are enough bytes from both on.
        let halves = unsafe { _mm256_set_m128i(_mm_loadu_si128(high.cast()), _mm_loadu_si128(low.cast())) };
        let numbers = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(halves, places), shifts), mask);
        // SAFETY: a group is as long as a register.
        unsafe { _mm256_storeu_si256(group.as_mut_ptr().cast::<__m256i>(), numbers) };
    }
    groups.len()
}

macro_rules! by_width {
    ($unpack:ident, $width:expr, $packed:expr, $groups:expr; $($known:literal)*) => {
        match $width {
            $($known => $unpack::<$known>($packed, $groups),)*
            _ => 0,
        }
    };
}

fn groups_of_width(packed: &[u8], width: usize, groups: &mut [[u32; 8]]) -> usize {
    let num_done = groups_in_registers(packed, width, groups);
    let (packed, groups) = (packed.get(num_done * width..).unwrap_or_default(), &mut groups[num_done..]);
    num_done
        + by_width!(groups_of, width, packed, groups;
            1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
}

/// Unpacks groups in registers, if the processor supports it and each number fits within four bytes; returns how many.
#[cfg(target_arch = "x86_64")]
fn groups_in_registers(packed: &[u8], width: usize, groups: &mut [[u32; 8]]) -> usize {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return 0;
    }
    #[expect(unsafe_code, reason = "it is compiled for some processors only")]
    // SAFETY: the processor has the instructions.
    unsafe {
        by_width!(groups_with_avx2, width, packed, groups; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn groups_in_registers(_: &[u8], _: usize, _: &mut [[u32; 8]]) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack(numbers: &[u32], width: usize) -> Vec<u8> {
        let mut packed = vec![0; (numbers.len() * width).div_ceil(8)];
        for (place, number) in numbers.iter().enumerate() {
            for bit in (0..width).filter(|bit| number >> bit & 1 == 1) {
                packed[(place * width + bit) / 8] |= 1 << ((place * width + bit) % 8);
            }
        }
        packed
    }

    fn read(bytes: &[u8], width: usize, steps: &[usize]) -> Fit<Vec<u32>> {
        let mut hybrid = Hybrid::new(0, width)?;
        let mut all = Vec::new();
        for &step in steps {
            let mut missing = step;
            while missing > 0 {
                missing -= match hybrid.next(bytes, missing)? {
                    Run::Same { value, len } => {
                        all.extend(std::iter::repeat_n(value, len));
                        len
                    }
                    Run::Packed { start, first, len } => {
                        let end = all.len();
                        all.resize(end + len, 0);
                        unpack(&bytes[start..], width, first, &mut all[end..]);
                        len
                    }
                };
            }
        }
        Ok(all)
    }

    #[test]
    fn runs_without_numbers_are_refused() {
        for bytes in [&[][..], &[0, 1], &[1], &[0x80], &[0xff, 0xff, 0xff, 0xff, 0x7f, 0]] {
            assert!(Hybrid::new(0, 3).unwrap().next(bytes, 1).is_err(), "{bytes:?}");
        }
        assert!(Hybrid::new(0, 33).is_err());
    }

    proptest! {
        #[test]
        fn numbers_come_out_as_they_went_in(
            width in 0_usize..=32, groups in prop::collection::vec((any::<bool>(), 1_usize..40, any::<u32>()), 1..8),
            step in 1_usize..100,
        ) {
            let mask = u32::try_from((1_u64 << width) - 1).unwrap();
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for (is_run, len, seed) in groups {
                if is_run {
                    bytes.push(u8::try_from(len << 1).unwrap());
                    bytes.extend(&(seed & mask).to_le_bytes()[..width.div_ceil(8)]);
                    expected.extend(std::iter::repeat_n(seed & mask, len));
                } else {
                    let numbers: Vec<_> = (0..8 * u32::try_from(len).unwrap())
                        .map(|place| seed.wrapping_mul(place.wrapping_add(seed)).rotate_left(place) & mask)
                        .collect();
                    bytes.push(u8::try_from(len << 1 | 1).unwrap());
                    bytes.extend(pack(&numbers, width));
                    expected.extend(numbers);
                }
            }
            let mut steps = vec![step; expected.len() / step];
            steps.push(expected.len() % step);
            prop_assert_eq!(read(&bytes, width, &steps).unwrap(), expected.clone());
            let mut hybrid = Hybrid::new(0, width).unwrap();
            hybrid.skip(&bytes, step.min(expected.len())).unwrap();
            prop_assert!(read(&bytes, width, &[expected.len() + 8]).is_err());
        }

        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..100), width in 0_usize..=32) {
            drop(read(&noise, width, &[1, 7, 8, 300]));
        }
    }
}
