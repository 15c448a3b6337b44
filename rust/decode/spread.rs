//! Puts the values of a page into the slots that are not NULL.

use arrow_buffer::BooleanBuffer;

use super::fixed::Word;

/// Slots at a time: those of a word of bits.
const SLOTS: usize = 64;

/// Maximum NULLs among that many slots for which copying runs of values is faster.
const FEW: u32 = 10;

/// Appends a slot for each bit: the next of `dense` for set bits, zero for others.
pub(super) fn spread<T: Word>(dense: &mut Vec<T>, slots: &BooleanBuffer, out: &mut Vec<T>) {
    // So that a full window of them always exists.
    dense.resize(dense.len() + SLOTS, T::default());
    let (mut next, mut left) = (0, slots.len());
    for bits in slots.bit_chunks().iter_padded() {
        let len = left.min(SLOTS);
        left -= len;
        let Some(window) = dense.get(next..).and_then(<[T]>::first_chunk::<SLOTS>) else { break };
        if bits == u64::MAX {
            out.extend_from_slice(window);
        } else {
            let mut word = [T::default(); SLOTS];
            if bits.count_zeros() <= FEW {
                spread_runs(bits, window, &mut word);
            } else if !spread_in_registers(bits, window, &mut word) {
                spread_each(bits, window, &mut word);
            }
            out.extend_from_slice(&word[..len]);
        }
        next += bits.count_ones() as usize;
    }
}

/// Puts values into the slots of set bits, run by run.
fn spread_runs<T: Word>(bits: u64, values: &[T; SLOTS], slots: &mut [T; SLOTS]) {
    let (mut rest, mut place, mut taken) = (bits, 0, 0);
    while rest != 0 {
        let passed = rest.trailing_zeros();
        rest >>= passed;
        place += passed as usize;
        let run = rest.trailing_ones();
        let end = place + run as usize;
        slots[place..end].copy_from_slice(&values[taken..taken + run as usize]);
        (taken, place) = (taken + run as usize, end);
        rest = rest.checked_shr(run).unwrap_or(0);
    }
}

/// Puts values into the slots of set bits without branches, which would be unpredictable.
fn spread_each<T: Word>(bits: u64, values: &[T; SLOTS], slots: &mut [T; SLOTS]) {
    let mut taken = 0;
    for (place, slot) in slots.iter_mut().enumerate() {
        let is_set = bits >> place & 1 == 1;
        *slot = if is_set { values[taken % SLOTS] } else { T::default() };
        taken += usize::from(is_set);
    }
}

/// The same if values of this width can be permuted in registers, and the processor supports it; returns whether it
/// did.
#[cfg(target_arch = "x86_64")]
fn spread_in_registers<T: Word>(bits: u64, values: &[T; SLOTS], slots: &mut [T; SLOTS]) -> bool {
    if !std::arch::is_x86_feature_detected!("avx2") || !std::arch::is_x86_feature_detected!("popcnt") {
        return false;
    }
    #[expect(unsafe_code, reason = "it is compiled for some processors only")]
    // SAFETY: the processor has the instructions.
    unsafe {
        match size_of::<T>() {
            4 => registers::spread(bits, values, slots, &registers::PLACES_OF_8),
            8 => registers::spread(bits, values, slots, &registers::PLACES_OF_4),
            _ => return false,
        }
    }
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn spread_in_registers<T: Word>(_: u64, _: &[T; SLOTS], _: &mut [T; SLOTS]) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_cmpeq_epi32, _mm256_loadu_si256, _mm256_permutevar8x32_epi32,
        _mm256_set1_epi32, _mm256_setr_epi32, _mm256_storeu_si256,
    };

    use super::{SLOTS, Word};

    /// The number of 4-byte words in a register.
    const WORDS: usize = 8;

    /// Which of the next eight values of 4 bytes, or four of 8, word by word, goes where the bits of a number are set.
    pub(super) static PLACES_OF_8: [[u32; WORDS]; 1 << 8] = places(1);
    pub(super) static PLACES_OF_4: [[u32; WORDS]; 1 << 4] = places(2);

    const fn places<const NUMBERS: usize>(value_words: usize) -> [[u32; WORDS]; NUMBERS] {
        let mut places = [[0; WORDS]; NUMBERS];
        let mut bits = 0;
        while bits < NUMBERS {
            let (mut word, mut next) = (0, 0);
            while word < WORDS {
                if bits >> (word / value_words) & 1 == 1 {
                    places[bits][word] = next;
                    next += 1;
                }
                word += 1;
            }
            bits += 1;
        }
        places
    }

    /// Puts values of 4 or 8 bytes into the slots of set bits, a register at a time: the next values are loaded
    /// together, and moved to their slots by a table. Known as expansion, for which later processors have an
    /// instruction.
    #[target_feature(enable = "avx2,popcnt")]
    #[expect(unsafe_code, reason = "registers are loaded and stored by pointers")]
    pub(super) fn spread<T: Word>(bits: u64, values: &[T; SLOTS], slots: &mut [T; SLOTS], places: &[[u32; WORDS]]) {
        let in_register = size_of::<__m256i>() / size_of::<T>();
        // The bits of a register's slots, and that of the slot of each word.
        let (all, lanes) = if in_register == WORDS {
            (0xff, _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128))
        } else {
            (0x0f, _mm256_setr_epi32(1, 1, 2, 2, 4, 4, 8, 8))
        };
        let (mut rest, mut taken) = (bits, 0);
        for slots in slots.chunks_exact_mut(in_register) {
            let set = rest.to_le_bytes()[0] & all;
            let next = &values[taken..taken + in_register];
            // SAFETY: both the values and the table entry are as long as a register.
            let (next, places) = unsafe {
                (_mm256_loadu_si256(next.as_ptr().cast()), _mm256_loadu_si256(places[usize::from(set)].as_ptr().cast()))
            };
            let is_set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(i32::from(set)), lanes), lanes);
            let moved = _mm256_and_si256(_mm256_permutevar8x32_epi32(next, places), is_set);
            // SAFETY: the slots are as long as a register.
            unsafe { _mm256_storeu_si256(slots.as_mut_ptr().cast(), moved) };
            taken += set.count_ones() as usize;
            rest >>= in_register;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check<T: Word>(slots: &[bool], skip: usize, value: impl Fn(usize) -> T) {
        let bits = BooleanBuffer::from(slots.to_vec()).slice(skip, slots.len() - skip);
        let mut dense: Vec<T> = (1..).take(bits.count_set_bits()).map(value).collect();
        let mut next = dense.clone().into_iter();
        let slot = |is_set: &bool| if *is_set { next.next().unwrap() } else { T::default() };
        let expected: Vec<T> = slots[skip..].iter().map(slot).collect();
        let mut out = Vec::new();
        spread(&mut dense, &bits, &mut out);
        assert_eq!(out, expected);
    }

    proptest! {
        #[test]
        fn values_go_to_the_slots_that_have_one(
            slots in prop::sample::select(vec![0.02, 0.2, 0.5, 0.8, 0.97])
                .prop_flat_map(|share| prop::collection::vec(prop::bool::weighted(share), 0..400)),
            skip in 0_usize..70,
        ) {
            let skip = skip.min(slots.len());
            check(&slots, skip, |n| u16::try_from(n).unwrap());
            check(&slots, skip, |n| u32::try_from(n).unwrap() | 1 << 31);
            check(&slots, skip, |n| n as u64 | 1 << 63);
        }
    }

    #[test]
    fn all_ways_do_the_same() {
        let values: [u64; SLOTS] = std::array::from_fn(|n| n as u64 + 1);
        for seed in 0..1000_u64 {
            let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
            let [mut each, mut in_runs, mut in_registers] = [[0; SLOTS]; 3];
            spread_each(bits, &values, &mut each);
            spread_runs(bits, &values, &mut in_runs);
            assert_eq!(in_runs, each);
            if spread_in_registers(bits, &values, &mut in_registers) {
                assert_eq!(in_registers, each);
            }
        }
    }
}
