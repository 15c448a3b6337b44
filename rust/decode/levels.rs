//! Interprets levels: where rows begin, and what is NULL.

use arrow_buffer::BooleanBuffer;

use super::bits::{Bits, word_at};
use super::hybrid::{Hybrid, Run, unpack};
use super::{Fit, Misfit};

const TOO_FEW: Misfit = Misfit("a page has fewer levels than it claims");

/// Returns the number of bits of levels up to `max`.
pub(super) fn width_of(max: u8) -> usize {
    (u8::BITS - max.leading_zeros()) as usize
}

/// Appends the positions of the zeros among one-bit repetition levels, where rows begin.
pub(super) fn row_starts(reps: &[u8], num_levels: usize, starts: &mut Vec<u32>) -> Fit<()> {
    let place = |level: usize| u32::try_from(level).map_err(|_| Misfit("a page of too many levels"));
    let mut levels = Hybrid::new(0, 1)?;
    let mut done = 0;
    while done < num_levels {
        done += match levels.next(reps, num_levels - done)? {
            Run::Same { value: 0, len } => {
                starts.extend(place(done)?..place(done + len)?);
                len
            }
            Run::Same { value: 1, len } => len,
            Run::Same { .. } => return Err(Misfit::TOO_HIGH),
            Run::Packed { start, first, len } => {
                zeros(&reps[start..], first, len, place(done)?, starts)?;
                len
            }
        };
    }
    Ok(())
}

/// Appends the positions of zeros in packed bits, of which the one at `first` is at `place`.
fn zeros(packed: &[u8], first: usize, len: usize, place: u32, starts: &mut Vec<u32>) -> Fit<()> {
    if first + len > packed.len() * 8 {
        return Err(TOO_FEW);
    }
    let mut done = 0;
    while done < len {
        let step = (len - done).min(57);
        let mut rest = !word_at(packed, first + done) & ((1 << step) - 1);
        while rest != 0 {
            starts.push(place + u32::try_from(done).unwrap_or(u32::MAX) + rest.trailing_zeros());
            rest &= rest - 1;
        }
        done += step;
    }
    Ok(())
}

/// Returns one-bit definition levels as a validity bitmap; `None` if nothing is NULL.
pub(super) fn validity(defs: &[u8], num_levels: usize) -> Fit<Option<BooleanBuffer>> {
    let mut levels = Hybrid::new(0, 1)?;
    let mut bits: Option<Bits> = None;
    let mut done = 0;
    while done < num_levels {
        let run = levels.next(defs, num_levels - done)?;
        if let (Run::Same { value: 1, len }, None) = (run, &bits) {
            done += len;
            continue;
        }
        let bits = bits.get_or_insert_with(|| {
            let mut bits = Bits::with_capacity(num_levels);
            bits.push_same(true, done);
            bits
        });
        done += match run {
            Run::Same { value: value @ 0..=1, len } => {
                bits.push_same(value == 1, len);
                len
            }
            Run::Same { .. } => return Err(Misfit::TOO_HIGH),
            Run::Packed { start, first, len } => {
                bits.push_packed(&defs[start..], first, len);
                len
            }
        };
    }
    let bits = bits.map(Bits::finish);
    Ok(bits.filter(|bits| bits.count_set_bits() < num_levels))
}

/// Returns whether all definition levels are `max`, at least 1: nothing is NULL and no list is empty.
pub(super) fn are_all(defs: &[u8], num_levels: usize, max: u8) -> Fit<bool> {
    let width = width_of(max);
    // Numbers of one, two or four bits end at byte boundaries.
    let pattern = match (width, max) {
        (1, 1) | (2, 3) => 0xff,
        (2, 2) => 0xaa,
        _ => {
            return count(defs, Hybrid::new(0, width)?, num_levels, max.into(), max.into())
                .map(|num| num == num_levels);
        }
    };
    let mut levels = Hybrid::new(0, width)?;
    let mut done = 0;
    while done < num_levels {
        done += match levels.next(defs, num_levels - done)? {
            Run::Same { value, len } if value == u32::from(max) => len,
            Run::Packed { start, len, .. } => {
                let whole = len * width / 8;
                let bytes = defs.get(start..start + (len * width).div_ceil(8)).ok_or(TOO_FEW)?;
                let mask = (1_u8 << (len * width % 8)) - 1;
                let has_rest = bytes.get(whole).is_none_or(|rest| rest & mask == pattern & mask);
                if !has_rest || bytes[..whole].iter().any(|&byte| byte != pattern) {
                    return Ok(false);
                }
                len
            }
            Run::Same { .. } => return Ok(false),
        };
    }
    Ok(true)
}

/// Appends all levels, one by one.
pub(super) fn expand(bytes: &[u8], num_levels: usize, max: u8, all: &mut Vec<u8>) -> Fit<()> {
    let width = width_of(max);
    let mut levels = Hybrid::new(0, width)?;
    let mut block = [0; 256];
    let mut done = 0;
    let narrow = |level: u32| u8::try_from(level).ok().filter(|&level| level <= max).ok_or(Misfit::TOO_HIGH);
    while done < num_levels {
        done += match levels.next(bytes, (num_levels - done).min(block.len()))? {
            Run::Same { value, len } => {
                all.extend(std::iter::repeat_n(narrow(value)?, len));
                len
            }
            Run::Packed { start, first, len } => {
                let block = &mut block[..len];
                unpack(&bytes[start..], width, first, block);
                narrow(block.iter().copied().max().unwrap_or(0))?;
                all.extend(block.iter().map(|level| level.to_le_bytes()[0]));
                len
            }
        };
    }
    Ok(())
}

/// Refuses levels whose bits are in `hidden`: those of NULL structs.
pub(super) fn check_hidden(levels: &[u8], hidden: u64) -> Fit<()> {
    let is_hidden = |level: &u8| hidden >> (level & 63) & 1 == 1;
    if hidden != 0 && levels.iter().any(is_hidden) { Err(Misfit("a struct is NULL")) } else { Ok(()) }
}

/// Returns which levels are `wanted`.
pub(super) fn equal(levels: &[u8], wanted: u8) -> BooleanBuffer {
    BooleanBuffer::collect_bool(levels.len(), |place| levels[place] == wanted)
}

/// Returns whether `bytes` contain no levels or, as some writers store for columns without any, a run of nothing.
pub(super) fn are_none(bytes: &[u8], num_levels: usize) -> bool {
    let is_run = |mut levels: Hybrid| {
        let all = levels.next(bytes, num_levels.saturating_add(1));
        all == Ok(Run::Same { value: 0, len: num_levels }) && levels.is_last(bytes)
    };
    bytes.is_empty() || num_levels == 0 || Hybrid::new(0, 0).is_ok_and(is_run)
}

/// Returns whether levels of `width` bits end with `bytes`, as nearly all writers store them: the last group is whole.
pub(super) fn are_exact(bytes: &[u8], num_levels: usize, width: usize) -> bool {
    let ends = |mut levels: Hybrid| levels.skip(bytes, num_levels).is_ok() && levels.is_last(bytes);
    num_levels == 0 || Hybrid::new(0, width).is_ok_and(ends)
}

/// Returns how many of the next levels, which are at most `max`, are `wanted`.
pub(super) fn count(bytes: &[u8], mut levels: Hybrid, num_levels: usize, max: u32, wanted: u32) -> Fit<usize> {
    let mut block = [0; 256];
    let (mut done, mut found) = (0, 0);
    while done < num_levels {
        done += match levels.next(bytes, (num_levels - done).min(block.len()))? {
            Run::Same { value, .. } if value > max => return Err(Misfit::TOO_HIGH),
            Run::Same { value, len } => {
                found += if value == wanted { len } else { 0 };
                len
            }
            Run::Packed { start, first, len } => {
                let block = &mut block[..len];
                unpack(&bytes[start..], levels.width(), first, block);
                if block.iter().any(|&level| level > max) {
                    return Err(Misfit::TOO_HIGH);
                }
                found += block.iter().filter(|&&level| level == wanted).count();
                len
            }
        };
    }
    Ok(found)
}

/// Returns the number of set bits among those from `start` on.
pub(super) fn count_ones(bits: &BooleanBuffer, start: usize, len: usize) -> usize {
    bits.slice(start, len).count_set_bits()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Levels in runs, or in packed groups if they are too short for that.
    fn encode(levels: &[u8], width: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for chunk in levels.chunks(48) {
            if chunk.windows(2).all(|pair| pair[0] == pair[1]) {
                bytes.push(u8::try_from(chunk.len() << 1).unwrap());
                bytes.push(chunk[0]);
            } else {
                bytes.push(u8::try_from(chunk.len().div_ceil(8) << 1 | 1).unwrap());
                let mut packed = vec![0; chunk.len().div_ceil(8) * width];
                for (place, level) in chunk.iter().enumerate() {
                    for bit in (0..width).filter(|bit| level >> bit & 1 == 1) {
                        packed[(place * width + bit) / 8] |= 1 << ((place * width + bit) % 8);
                    }
                }
                bytes.extend(packed);
            }
        }
        bytes
    }

    fn levels(max: u8) -> impl Strategy<Value = Vec<u8>> {
        let run = prop_oneof![
            (0..=max, 1_usize..150).prop_map(|(level, len)| vec![level; len]),
            prop::collection::vec(0..=max, 1..100),
        ];
        prop::collection::vec(run, 1..6).prop_map(|runs| runs.concat())
    }

    #[test]
    fn levels_that_are_only_packed_are_as_many_as_their_bytes_hold() {
        let levels = Hybrid::of_packed(2, 2).unwrap();
        assert_eq!(count(&[0b10_01_00_10, 0b00_00_01_10], levels, 8, 2, 2), Ok(3));
        assert_eq!(count(&[0b10_01_00_11, 0], levels, 8, 2, 2), Err(Misfit::TOO_HIGH));
        assert!(count(&[0, 0], levels, 9, 2, 2).is_err());
    }

    #[test]
    fn levels_of_a_column_without_any_are_none_or_one_run() {
        assert!(are_none(&[], 68) && are_none(&[0x88, 1], 68) && are_none(&[2], 1));
        for others in [&[0x88, 1, 5][..], &[0x8a, 1], &[0x86, 1], &[0x88], &[0x89, 1], &[0, 0]] {
            assert!(!are_none(others, 68), "{others:?}");
        }
        assert!(!are_none(&[2, 1], 1));
    }

    #[test]
    fn levels_higher_than_their_column_are_told_from_missing_ones() {
        for high in [2, 142] {
            let bytes = [20, 0, 2, high];
            assert_eq!(row_starts(&bytes, 11, &mut Vec::new()), Err(Misfit::TOO_HIGH));
            assert_eq!(validity(&bytes, 11), Err(Misfit::TOO_HIGH));
            assert_eq!(expand(&bytes, 11, 1, &mut Vec::new()), Err(Misfit::TOO_HIGH));
            assert_eq!(count(&bytes, Hybrid::new(0, 1).unwrap(), 11, 1, 0), Err(Misfit::TOO_HIGH));
            assert!(validity(&bytes, 10).is_ok());
        }
    }

    proptest! {
        #[test]
        fn rows_begin_at_zeros(levels in levels(1)) {
            let mut starts = Vec::new();
            row_starts(&encode(&levels, 1), levels.len(), &mut starts).unwrap();
            let zeros = levels.iter().enumerate().filter(|(_, level)| **level == 0);
            prop_assert_eq!(starts, zeros.map(|(place, _)| u32::try_from(place).unwrap()).collect::<Vec<_>>());
        }

        #[test]
        fn ones_are_values(levels in levels(1)) {
            let bits = validity(&encode(&levels, 1), levels.len()).unwrap();
            prop_assert_eq!(bits.is_none(), levels.iter().all(|&level| level == 1));
            for (bit, level) in bits.iter().flatten().zip(&levels) {
                prop_assert_eq!(bit, *level == 1);
            }
        }

        #[test]
        fn levels_come_out_one_by_one_and_all_are_the_highest_or_not((max, levels) in (1_u8..=3).prop_flat_map(|max| (Just(max), levels(max)))) {
            let bytes = encode(&levels, width_of(max));
            let mut all = Vec::new();
            expand(&bytes, levels.len(), max, &mut all).unwrap();
            for (len, is_exact) in [(bytes.len() - 1, false), (bytes.len(), true), (bytes.len() + 1, false)] {
                let mut stored = bytes.clone();
                stored.resize(len, 1);
                prop_assert_eq!(are_exact(&stored, levels.len(), width_of(max)), is_exact);
            }
            prop_assert_eq!(are_all(&bytes, levels.len(), max).unwrap(), levels.iter().all(|&level| level == max));
            let of = |wanted: u8| levels.iter().filter(|&&level| level == wanted).count();
            let hybrid = Hybrid::new(0, width_of(max)).unwrap();
            for wanted in 0..=max {
                prop_assert_eq!(count(&bytes, hybrid, levels.len(), max.into(), wanted.into()), Ok(of(wanted)));
            }
            let highest = levels.iter().copied().max().unwrap();
            let lower = count(&bytes, hybrid, levels.len(), u32::from(highest) - u32::from(highest > 0), 0);
            prop_assert_eq!(lower.is_err(), highest > 0);
            prop_assert_eq!(all, levels);
        }

        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..60), num_levels in 0_usize..2000) {
            let _ = row_starts(&noise, num_levels, &mut Vec::new());
            drop(validity(&noise, num_levels));
            for levels in [Hybrid::new(0, 3), Hybrid::of_packed(noise.len(), 3)] {
                let _ = count(&noise, levels.unwrap(), num_levels, 5, 0);
            }
            for max in 1..=3 {
                let _ = are_all(&noise, num_levels, max);
                let _ = expand(&noise, num_levels, max, &mut Vec::new());
            }
        }
    }
}
