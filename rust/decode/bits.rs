//! Collects bits in words.

use arrow_buffer::{BooleanBuffer, Buffer};

/// A sequence of bits.
#[derive(Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Returns no bits, with room for this many.
    pub(super) fn with_capacity(num_bits: usize) -> Self {
        Self { words: Vec::with_capacity(num_bits.div_ceil(64)), len: 0 }
    }

    /// Appends the lowest `num_bits` of a word, at most 64.
    #[inline]
    pub(super) fn push(&mut self, word: u64, num_bits: usize) {
        if num_bits == 0 {
            return;
        }
        let word = word & (u64::MAX >> (64 - num_bits));
        let used = self.len % 64;
        match self.words.last_mut() {
            Some(last) if used > 0 => {
                *last |= word << used;
                if used + num_bits > 64 {
                    self.words.push(word >> (64 - used));
                }
            }
            _ => self.words.push(word),
        }
        self.len += num_bits;
    }

    /// Appends the same bit this many times.
    #[inline]
    pub(super) fn push_same(&mut self, is_set: bool, num_bits: usize) {
        let word = if is_set { u64::MAX } else { 0 };
        let mut left = num_bits;
        while left > 0 {
            let step = left.min(64);
            self.push(word, step);
            left -= step;
        }
    }

    /// Appends bits of packed bytes, from the bit `first` on; those beyond the end are 0.
    #[inline]
    pub(super) fn push_packed(&mut self, packed: &[u8], first: usize, num_bits: usize) {
        let mut done = 0;
        while done < num_bits {
            let step = (num_bits - done).min(57);
            self.push(word_at(packed, first + done), step);
            done += step;
        }
    }

    /// Appends the bits of a buffer.
    pub(super) fn push_buffer(&mut self, bits: &BooleanBuffer) {
        let mut left = bits.len();
        for word in bits.bit_chunks().iter_padded() {
            self.push(word, left.min(64));
            left = left.saturating_sub(64);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bits.
    pub(super) fn finish(self) -> BooleanBuffer {
        BooleanBuffer::new(Buffer::from_vec(self.words), 0, self.len)
    }
}

/// Returns at least the next 57 bits from a bit on; those beyond the end are 0.
#[inline]
pub(super) fn word_at(bytes: &[u8], bit: usize) -> u64 {
    let rest = bytes.get(bit / 8..).unwrap_or_default();
    let word = match rest.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    word >> (bit % 8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_come_out_as_they_went_in(
            parts in prop::collection::vec((0_u8..3, any::<u64>(), 0_usize..200, 0_usize..30), 0..20),
        ) {
            let (mut bits, mut expected) = (Bits::with_capacity(0), Vec::new());
            for (kind, seed, len, first) in parts {
                let bytes: Vec<u8> = (0..32).map(|place| seed.rotate_left(place * 7).to_le_bytes()[0]).collect();
                match kind {
                    0 => {
                        bits.push(seed, len.min(64));
                        expected.extend((0..len.min(64)).map(|bit| seed >> bit & 1 == 1));
                    }
                    1 => {
                        bits.push_same(seed % 2 == 1, len);
                        expected.extend(std::iter::repeat_n(seed % 2 == 1, len));
                    }
                    _ => {
                        let packed = |bit: usize| bytes[bit / 8] >> (bit % 8) & 1 == 1;
                        bits.push_packed(&bytes, first, len);
                        expected.extend((first..first + len).map(packed));
                        let buffer: BooleanBuffer = (0..256).map(packed).collect();
                        bits.push_buffer(&buffer.slice(first, len));
                        expected.extend((first..first + len).map(packed));
                    }
                }
            }
            prop_assert_eq!(bits.finish().iter().collect::<Vec<_>>(), expected);
        }
    }
}
