//! Gathers rows that are consecutive in their sources, however the batch mixes them.
//!
//! Rows that are stored in the order in which they leave are taken in runs: the next few of each source. They are first
//! copied run by run, sequentially, to memory that stays in the cache, and mixed from there. Of a run's bits only those
//! that are not set are visited.

use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer};

use super::copies::prefetch;
use super::gather::SourceRow;
use super::slabs::{Room, Sink};
use crate::past_caches::LINE;

/// Minimum average rows per run: with shorter runs, a batch is gathered row by row.
const LEAST_ROWS: usize = 8;

/// How many runs ahead memory is prefetched.
const RUNS_AHEAD: usize = 8;

/// Number of values mixed at a time.
const BLOCK: usize = 64;

/// Bits that can be read at a time, whatever bit of a byte they start at.
const BITS_AT_ONCE: usize = 56;

/// The rows of a batch, split into runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Runs {
    runs: Vec<Run>,
    /// The position in the batch of each row, run by run.
    places: Vec<u32>,
    /// For each row of the batch, its index among the rows of all runs.
    order: Vec<u32>,
}

/// Consecutive rows of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    source: u32,
    first: u32,
    len: u32,
}

impl Runs {
    /// Splits `rows` of this many sources into runs; `None` if the runs would be short.
    pub(super) fn of(rows: &[SourceRow], num_sources: usize) -> Option<Self> {
        if rows.len() < num_sources * LEAST_ROWS || u32::try_from(rows.len()).is_err() {
            return None;
        }
        let mut by_source = of_sources(rows, num_sources);
        let mut runs: Vec<Run> = Vec::new();
        for (source, rows) in (0..).zip(&mut by_source) {
            // Already sorted if each source's rows come in stored order.
            rows.sort_unstable();
            let mut next = None;
            for &(row, _) in rows.iter() {
                match runs.last_mut() {
                    Some(run) if next == Some(row) => run.len += 1,
                    _ => runs.push(Run { source, first: row, len: 1 }),
                }
                next = row.checked_add(1);
            }
        }
        if runs.len() * LEAST_ROWS > rows.len() {
            return None;
        }
        let places: Vec<u32> = by_source.iter().flatten().map(|(_, place)| *place).collect();
        let mut order = vec![0; places.len()];
        for (&place, at) in places.iter().zip(0..) {
            order[place as usize] = at;
        }
        Some(Self { runs, places, order })
    }

    /// Visits each run, together with one that is visited soon.
    fn each(&self, mut visit: impl FnMut(Run, Option<&Run>)) {
        for (index, run) in self.runs.iter().enumerate() {
            visit(*run, self.runs.get(index + RUNS_AHEAD));
        }
    }

    /// Copies `N` bytes for each row, into `room` if they fit there; `values` starts at each source's row 0.
    pub(super) fn copy_words<const N: usize>(&self, values: &[&[[u8; N]]], room: Option<&Room>) -> Buffer {
        let mut in_runs: Vec<[u8; N]> = Vec::with_capacity(self.order.len());
        self.each(|run, soon| {
            if let Some(soon) = soon {
                let (values, first) = (values[soon.source as usize], soon.first as usize);
                (first..first + soon.len as usize).step_by(LINE / N).for_each(|row| prefetch(values, row));
            }
            in_runs.extend_from_slice(&values[run.source as usize][run.first as usize..][..run.len as usize]);
        });
        let num_bytes = self.order.len() * N;
        match room.and_then(|room| room.take(num_bytes)) {
            Some(block) => self.put_mixed(block, &in_runs),
            None => self.put_mixed(MutableBuffer::with_capacity(num_bytes), &in_runs),
        }
    }

    /// Copies the values of all runs to their positions in the batch.
    fn put_mixed<const N: usize>(&self, mut out: impl Sink, in_runs: &[[u8; N]]) -> Buffer {
        let mut mixed = [[0; N]; BLOCK];
        for order in self.order.chunks(BLOCK) {
            for (value, &at) in mixed.iter_mut().zip(order) {
                *value = in_runs[at as usize];
            }
            out.put(mixed[..order.len()].as_flattened());
        }
        out.into_buffer()
    }

    /// Returns one bit for each row: `bits` has each source's bytes and the number of bits before row 0; `None` means
    /// all set.
    pub(super) fn copy_bits(&self, bits: &[Option<(&[u8], usize)>]) -> BooleanBuffer {
        let len = self.places.len();
        let mut out = MutableBuffer::new(len.div_ceil(8)).with_bitset(len.div_ceil(8), true);
        let set = out.as_slice_mut();
        let mut rest = &self.places[..];
        self.each(|run, soon| {
            if let Some((soon, (bytes, before))) = soon.and_then(|soon| Some((soon, bits[soon.source as usize]?))) {
                prefetch(bytes, (before + soon.first as usize) / 8);
            }
            let places;
            (places, rest) = rest.split_at(run.len as usize);
            let Some((bytes, before)) = bits[run.source as usize] else { return };
            let starts = (before + run.first as usize..).step_by(BITS_AT_ONCE);
            for (places, start) in places.chunks(BITS_AT_ONCE).zip(starts) {
                let mut unset = !bits_from(bytes, start) & ((1 << places.len()) - 1);
                while unset != 0 {
                    let place = places[unset.trailing_zeros() as usize];
                    set[place as usize / 8] &= !(1 << (place % 8));
                    unset &= unset - 1;
                }
            }
        });
        BooleanBuffer::new(out.into(), 0, len)
    }
}

/// Returns the bits from `start` on, lowest first; only the first [`BITS_AT_ONCE`] are sure to be valid.
#[inline]
fn bits_from(bytes: &[u8], start: usize) -> u64 {
    let bytes = &bytes[start / 8..];
    let word = bytes.first_chunk().copied().unwrap_or_else(|| {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        padded
    });
    u64::from_le_bytes(word) >> (start % 8)
}

/// Returns each source's rows with their positions in the batch.
fn of_sources(rows: &[SourceRow], num_sources: usize) -> Vec<Vec<(u32, u32)>> {
    let mut counts = vec![0; num_sources];
    rows.iter().for_each(|&(source, _)| counts[source as usize] += 1);
    let mut by_source: Vec<_> = counts.into_iter().map(Vec::with_capacity).collect();
    for (&(source, row), place) in rows.iter().zip(0..) {
        by_source[source as usize].push((row, place));
    }
    by_source
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::copies::{Bits, copy_bits, copy_fixed};
    use super::super::slabs::tests::room;
    use super::*;

    /// Returns rows taken from the sources in runs, some of them backwards, mixed according to a seed.
    fn mixed(runs: &[(u32, u32, u32)], seed: u64) -> Vec<SourceRow> {
        let mut rows: Vec<(u64, SourceRow)> = Vec::new();
        for (number, &(source, first, len)) in (0..).zip(runs) {
            let key = |row: u32| seed.wrapping_mul(2 * u64::from(row + number) + 1) >> 20;
            rows.extend((first..first + len).map(|row| (key(row), (source, row))));
        }
        rows.sort_by_key(|(key, _)| *key);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    proptest! {
        #[test]
        fn rows_in_runs_are_those_that_are_gathered_one_by_one(
            runs in prop::collection::vec((0_u32..3, 0_u32..300, 0_u32..200), 1..8),
            seed in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 520), before in 0_usize..9,
            has_bits in any::<[bool; 3]>(),
        ) {
            let rows = mixed(&runs, seed);
            let Some(runs) = Runs::of(&rows, 3) else { return Ok(()) };
            prop_assert!(runs.runs.len() * LEAST_ROWS <= rows.len());
            let sources = [&bytes[..], &bytes[8..], &bytes[16..]];
            let words = sources.map(|source| source.as_chunks::<1>().0);
            let expected = copy_fixed(sources.into_iter(), &rows, 1, None);
            prop_assert_eq!(&runs.copy_words(&words, None), &expected);
            let room = room(rows.len() + 64);
            let in_room = runs.copy_words(&words, Some(&room));
            prop_assert!(room.holds(&in_room));
            prop_assert_eq!(in_room, expected);
            let bits: Vec<_> = sources.iter().zip(has_bits).map(|(source, has)| has.then_some((*source, before))).collect();
            let one_by_one: Vec<Bits<'_>> =
                bits.iter().map(|bits| bits.map_or(Bits::ALL_SET, |(bytes, before)| Bits::new(bytes, before))).collect();
            prop_assert_eq!(runs.copy_bits(&bits), copy_bits(&one_by_one, &rows));
        }
    }

    #[test]
    fn scattered_rows_have_no_runs() {
        let rows: Vec<SourceRow> = (0..500).map(|row| (0, row * 7 % 500)).collect();
        assert_eq!(Runs::of(&rows, 1).map(|runs| runs.runs), Some(vec![Run { source: 0, first: 0, len: 500 }]));
        let rows: Vec<SourceRow> = (0..500).map(|row| (0, row * 2)).collect();
        assert_eq!(Runs::of(&rows, 1), None);
        assert_eq!(Runs::of(&rows, 100), None);
    }
}
