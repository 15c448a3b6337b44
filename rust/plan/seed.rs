//! Draws random numbers by counter: any number of any sequence, without drawing those before it.
//!
//! An order that must be resumable at every position cannot depend on how often a generator was used before. Here, a
//! number is a function of `(seed, epoch, purpose, stream, x)`:
//!
//! - key: SHA-256 of `"forebay"`, the seed and the epoch (each a `u64`, little-endian) and the purpose in ASCII
//!   ([`Purpose`]). Only the last part varies in length, so no two inputs collide.
//! - generator: ChaCha with 8 rounds and that key; a 64-bit block counter in words 12 and 13, and the
//!   stream (a lane's number, else 0) in words 14 and 15, low words first.
//! - number x: words `2x` (low half) and `2x + 1` (high half) of the key stream, as `v: u64`; the
//!   uniform is `(v >> 11) · 2⁻⁵³`, in `[0, 1)`.
//!
//! `rand_chacha` guarantees these values permanently, unlike `StdRng`. `tests/golden/order.py` computes them in plain
//! Python, and the golden orders next to it fail if anything here changes.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// Separates Forebay's keys from those of anything else that hashes a seed.
const DOMAIN: &[u8] = b"forebay";

/// The bits of a drawn number.
pub(super) const NUMBER_BITS: u32 = 53;

/// The step between neighbouring uniforms: 2⁻⁵³.
pub(super) const STEP: f64 = 1.0 / 9_007_199_254_740_992.0;

/// The purpose of random numbers. Purposes share no numbers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `"spans"`: the order in which spans are dealt into lanes.
    Spans,
    /// `"all"`: the full permutation of a small epoch.
    All,
    /// `"place"`: how far a row is moved within its lane; one stream per lane.
    Place,
    /// `"sample"`: which rows of a selection a sample takes.
    Sample,
    /// `"split"`: which rows of a selection a part of a split takes; one stream per part.
    Split,
    /// `"draws"`: which rows an epoch is drawn from, with replacement.
    Draws,
    /// `"image"`: how the images of a row are cropped and flipped; one stream per position.
    Image,
}

impl Purpose {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Spans => b"spans",
            Self::All => b"all",
            Self::Place => b"place",
            Self::Sample => b"sample",
            Self::Split => b"split",
            Self::Draws => b"draws",
            Self::Image => b"image",
        }
    }
}

/// The key of all numbers drawn for one purpose in one epoch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Hashes the inputs as defined in the module's documentation.
    pub fn new(seed: u64, epoch: u64, purpose: Purpose) -> Self {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(seed.to_le_bytes());
        hash.update(epoch.to_le_bytes());
        hash.update(purpose.name());
        Self(hash.finalize().into())
    }

    /// Returns the numbers of one stream, from number 0 on.
    pub fn draws(&self, stream: u64) -> Draws {
        let mut rng = ChaCha8Rng::from_seed(self.0);
        rng.set_stream(stream);
        Draws { rng }
    }
}

/// A sequence of random numbers that can be entered anywhere.
#[derive(Clone, Debug)]
pub struct Draws {
    rng: ChaCha8Rng,
}

impl Draws {
    /// Makes `x` the next number. Costs four ChaCha blocks; drawn in order, 32 numbers share them.
    pub fn seek(&mut self, x: u64) {
        self.rng.set_word_pos(2 * u128::from(x));
    }

    /// Draws the next number as a 53-bit integer, which orders in the same way as [`Draws::next_uniform`].
    #[inline]
    pub fn next_bits(&mut self) -> u64 {
        self.rng.next_u64() >> (u64::BITS - NUMBER_BITS)
    }

    /// Draws an integer below `bound`, each equally likely: 53 bits times the bound, without the low 53. Draws again if
    /// that would favour some. A `bound` of 0 counts as 1, one above 2⁵³ as 2⁵³.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        const RANGE: u64 = 1 << NUMBER_BITS;
        let bound = bound.clamp(1, RANGE);
        let num_refused = RANGE % bound;
        loop {
            let product = u128::from(self.next_bits()) * u128::from(bound);
            let (high, low) = (product >> NUMBER_BITS, product & u128::from(RANGE - 1));
            if low >= u128::from(num_refused) {
                return u64::try_from(high).unwrap_or(0);
            }
        }
    }

    /// Draws the next number, uniform in `[0, 1)`.
    #[inline]
    pub fn next_uniform(&mut self) -> f64 {
        self.next_bits() as f64 * STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sought_number_equals_the_one_drawn_in_order() {
        let key = Key::new(7, 3, Purpose::Place);
        let mut in_order = key.draws(5);
        let all: Vec<u64> = (0..300).map(|_| in_order.next_bits()).collect();
        let mut sought = key.draws(5);
        for x in [0_usize, 1, 7, 8, 31, 32, 33, 299, 2] {
            sought.seek(x as u64);
            assert_eq!(sought.next_bits(), all[x], "number {x}");
        }
    }

    #[test]
    fn every_input_changes_the_numbers() {
        let draw = |seed, epoch, purpose, stream| Key::new(seed, epoch, purpose).draws(stream).next_bits();
        let mut numbers = vec![
            draw(1, 2, Purpose::Spans, 0),
            draw(2, 2, Purpose::Spans, 0),
            draw(1, 3, Purpose::Spans, 0),
            draw(2, 1, Purpose::Spans, 0),
            draw(1, 2, Purpose::All, 0),
            draw(1, 2, Purpose::Place, 0),
            draw(1, 2, Purpose::Sample, 0),
            draw(1, 2, Purpose::Split, 0),
            draw(1, 2, Purpose::Spans, 1),
        ];
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 9);
    }

    #[test]
    fn bounded_numbers_are_equally_likely() {
        let mut draws = Key::new(3, 0, Purpose::Sample).draws(0);
        let mut counts = [0_u32; 6];
        for _ in 0..60_000 {
            counts[usize::try_from(draws.next_below(6)).unwrap()] += 1;
        }
        // Five standard deviations of 91.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 456), "{counts:?}");
        let large = (0..100).map(|_| draws.next_below((1 << 53) - 1)).max().unwrap();
        assert!(large > 1 << 52, "{large}");
        assert_eq!((draws.next_below(1), draws.next_below(0)), (0, 0));
    }

    #[test]
    fn numbers_beyond_four_billion_are_reachable() {
        let mut draws = Key::new(0, 0, Purpose::Place).draws(0);
        let x = 1_u64 << 40;
        draws.seek(x);
        let (first, second) = (draws.next_bits(), draws.next_bits());
        draws.seek(x + 1);
        assert_eq!(draws.next_bits(), second);
        draws.seek(x);
        assert_eq!(draws.next_bits(), first);
    }
}
