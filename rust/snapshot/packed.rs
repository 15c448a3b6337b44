//! What a catalogue stores for an object: the raw bytes of its footer and offset indexes, compressed.
//!
//! They pass the same checks as bytes from a store: nothing is stored in parsed form.

use std::ops::Range;

use bytes::Bytes;

use crate::source::part_of;

/// Compression of the bytes.
mod codec {
    pub(super) const RAW: u8 = 0;
    pub(super) const ZSTD: u8 = 1;
}

/// Fast, since bytes are compressed while an object is opened.
const ZSTD_LEVEL: i32 = 1;

/// Maximum claimed compression ratio. Footers are less repetitive.
const MAX_RATIO: usize = 1 << 10;

/// Maximum claimed uncompressed size: a footer's length has 31 bits.
const MAX_RAW_BYTES: usize = 2 << 30;

/// The end of an object: its size, and the ranges that were read, with their bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) size: u64,
    pub(super) pieces: Vec<(Range<u64>, Bytes)>,
}

impl Tail {
    /// Returns the bytes of `range`, if they were read in one piece.
    pub(super) fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        let (held, bytes) = self.pieces.iter().find(|(held, _)| held.start <= range.start && range.end <= held.end)?;
        part_of(bytes, held.start, range)
    }

    /// Returns the number of bytes from the first that was read to the object's end.
    pub(super) fn num_bytes(&self) -> u64 {
        let first = self.pieces.iter().map(|(range, _)| range.start).min();
        self.size.saturating_sub(first.unwrap_or(self.size))
    }

    /// Returns the tail as bytes, for [`Self::unpack`].
    pub(super) fn pack(&self) -> Bytes {
        let mut raw = Vec::new();
        raw.extend(self.size.to_le_bytes());
        raw.extend((self.pieces.len() as u64).to_le_bytes());
        for (range, bytes) in &self.pieces {
            raw.extend(range.start.to_le_bytes());
            raw.extend((bytes.len() as u64).to_le_bytes());
            raw.extend_from_slice(bytes);
        }
        let mut packed = vec![codec::ZSTD];
        packed.extend((raw.len() as u64).to_le_bytes());
        match zstd::bulk::compress(&raw, ZSTD_LEVEL) {
            Ok(compressed) if compressed.len() < raw.len() && may_unfold(compressed.len(), raw.len()) => {
                packed.extend(compressed);
            }
            _ => {
                packed[0] = codec::RAW;
                packed.extend(raw);
            }
        }
        packed.into()
    }

    /// Restores the tail from what [`Self::pack`] returned; `None` for other bytes.
    pub(super) fn unpack(packed: &[u8]) -> Option<Self> {
        let (&[codec], rest) = packed.split_first_chunk::<1>()?;
        let (raw_len, data) = rest.split_first_chunk::<8>()?;
        let raw_len = usize::try_from(u64::from_le_bytes(*raw_len)).ok()?;
        let raw = match codec {
            codec::RAW => data.to_vec(),
            codec::ZSTD if may_unfold(data.len(), raw_len) => zstd::bulk::decompress(data, raw_len).ok()?,
            _ => return None,
        };
        (raw.len() == raw_len).then_some(())?;
        Self::of_raw(&Bytes::from(raw))
    }

    fn of_raw(raw: &Bytes) -> Option<Self> {
        let mut place = 0;
        let size = number(raw, &mut place)?;
        let num_pieces = number(raw, &mut place)?;
        let mut pieces = Vec::new();
        for _ in 0..num_pieces {
            let start = number(raw, &mut place)?;
            let len = number(raw, &mut place)?;
            let end = start.checked_add(len).filter(|end| *end <= size)?;
            let until = place.checked_add(usize::try_from(len).ok()?).filter(|until| *until <= raw.len())?;
            pieces.push((start..end, raw.slice(place..until)));
            place = until;
        }
        (place == raw.len()).then_some(Self { size, pieces })
    }
}

/// Returns whether the claimed uncompressed length is plausible.
fn may_unfold(num_bytes: usize, raw_len: usize) -> bool {
    raw_len <= MAX_RAW_BYTES && raw_len / MAX_RATIO <= num_bytes
}

fn number(raw: &[u8], place: &mut usize) -> Option<u64> {
    let bytes = raw.get(*place..)?.first_chunk::<8>()?;
    *place += 8;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tails() -> impl Strategy<Value = Tail> {
        let piece = (0_u64..1000, prop::collection::vec(any::<u8>(), 0..300));
        (prop::collection::vec(piece, 0..4), any::<bool>()).prop_map(|(pieces, is_flat)| {
            let pieces = pieces.into_iter().map(|(start, mut bytes)| {
                if is_flat {
                    bytes.fill(7);
                }
                (start..start + bytes.len() as u64, Bytes::from(bytes))
            });
            Tail { size: 2000, pieces: pieces.collect() }
        })
    }

    proptest! {
        #[test]
        fn what_was_packed_is_unpacked(tail in tails()) {
            prop_assert_eq!(Tail::unpack(&tail.pack()), Some(tail));
        }

        #[test]
        fn noise_and_damage_are_refused_or_harmless(
            tail in tails(), place in any::<prop::sample::Index>(), value in any::<u8>(),
            noise in prop::collection::vec(any::<u8>(), 0..100), cut in any::<prop::sample::Index>(),
        ) {
            drop(Tail::unpack(&noise));
            let mut packed = tail.pack().to_vec();
            let place = place.index(packed.len());
            packed[place] = value;
            drop(Tail::unpack(&packed));
            prop_assert_eq!(Tail::unpack(&tail.pack()[..cut.index(tail.pack().len())]), None);
        }
    }

    #[test]
    fn a_claim_of_more_than_its_bytes_can_hold_reserves_nothing() {
        let claim = [&[codec::ZSTD][..], &u64::MAX.to_le_bytes(), &[0; 100]].concat();
        assert_eq!(Tail::unpack(&claim), None);
        let zeros = Tail { size: 1 << 24, pieces: vec![(0..1 << 24, Bytes::from(vec![0; 1 << 24]))] };
        assert_eq!(Tail::unpack(&zeros.pack()), Some(zeros));
    }
}
