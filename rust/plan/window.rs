//! Shuffles the rows of one lane: a window slides along it, and every row leaves at a jittered place.
//!
//! The row with index x in its lane gets the key `x + (u(x) − ½) · window_rows`, and rows leave by key, ties by x. A
//! key differs from its row's index by at most half a window, hence:
//!
//! - a row leaves less than `window_rows` places from its index, and the order from any place on depends only on a
//!   neighbourhood of that width ([`Window::restart`]);
//! - once the lowest possible key of row x is above some key, no row from x on can leave before that key. So rows are
//!   drawn in order, put into bins by key, and a bin is sorted when it is complete.
//!
//! About half a window of rows waits in bins. If that is too much, only those of a stretch of bins are kept, and after
//! it the rows around it are drawn again.
//!
//! Keys are `f64`, so that plain Python computes the same ones. The index is exact up to 2⁵³ rows per lane. Near an
//! index of 2⁴⁰, a key still has steps of 2⁻¹², thousands per row; should two keys round to one, the index decides, on
//! every machine alike. Everything here relies only on `x + c` and `c · w` being monotone in `x` and `c`, which
//! rounding preserves; Rust never fuses the two.

use std::collections::VecDeque;

use super::seed::Draws;
use super::spread::{SpreadSort, bucket_of_bits};

/// A bin spans at least this many rows, so that its bookkeeping is comparatively small.
const MIN_BIN_ROWS: u64 = 64;

/// A bin spans at most this many rows, so that sorting it stays in the cache.
const MAX_BIN_ROWS: u64 = 1 << 15;

/// A window has about this many bins, as far as the other limits allow.
const BINS_PER_WINDOW: u64 = 32;

/// A stretch spans at least this fraction of a window: that many times as much is drawn for it.
const MIN_STRETCH_SHARE: u64 = 32;

/// A bin grows by this fraction of the rows that it spans, so that little more is held than was drawn.
const CHUNKS_PER_BIN: u64 = 16;

/// Bits of a [`Drawn`] that hold the row's number.
const NUMBER_BITS: u32 = 40;

/// Bits of a [`Drawn`] that hold the key's position in its bin.
const PLACE_BITS: u32 = u64::BITS - NUMBER_BITS;

/// A drawn row: above [`NUMBER_BITS`] the position of its key within its bin, below it its number, counted from the
/// first that the bin can have. Half as many are held as a window has rows: numbers would overflow only with terabytes
/// of them.
type Drawn = u64;

/// Rows of a bin: full chunks, and the one that is being filled.
#[derive(Clone, Debug, Default)]
struct Bin {
    full: Vec<Vec<Drawn>>,
    last: Vec<Drawn>,
}

/// Returns the number of a drawn row.
fn number_of(drawn: Drawn) -> u64 {
    drawn & ((1 << NUMBER_BITS) - 1)
}

/// Returns the key of a row, given its drawn number.
pub(super) fn key(row: u64, uniform: f64, window_rows: f64) -> f64 {
    row as f64 + (uniform - 0.5) * window_rows
}

/// Returns the maximum number of rows waiting in bins, if it should be about `most_rows`.
pub(super) fn num_waiting(window_rows: u64, num_rows: u64, most_rows: u64) -> u64 {
    (window_rows / 2).min(num_rows).min(most_rows.max(window_rows / MIN_STRETCH_SHARE))
}

/// The rows of one lane in the order in which they leave.
#[derive(Clone, Debug)]
pub(super) struct Window {
    draws: Draws,
    window_rows: f64,
    /// `window_rows` as an integer.
    reach: u64,
    bin_rows: f64,
    /// `bin_rows` as an integer.
    num_bin_rows: u64,
    num_rows: u64,
    /// Rows before this one count as gone, whatever their keys are.
    first_row: u64,
    /// The next row to draw a key for.
    undrawn: u64,
    /// The place of the next row to leave.
    place: u64,
    /// The number of `bins[0]`.
    first_bin: u64,
    /// Drawn rows by key; each bin is unsorted.
    bins: VecDeque<Bin>,
    /// The maximum number of bins kept, and the first that is not.
    stretch_bins: u64,
    stretch_end: u64,
    chunk_rows: usize,
    /// Empty chunks.
    spare: Vec<Vec<Drawn>>,
    /// The bin that is leaving, sorted, the row that its numbers are counted from, and how many of its rows have left.
    leaving: Vec<Drawn>,
    first_leaving: u64,
    num_left: usize,
}

impl Window {
    /// Prepares a lane of `num_rows` rows, at its first place. It keeps about `most_rows` of those that it draws, or a
    /// [`MIN_STRETCH_SHARE`]th of a window.
    pub(super) fn new(draws: Draws, window_rows: u64, num_rows: u64, most_rows: u64) -> Self {
        let bin_rows = (window_rows / BINS_PER_WINDOW).clamp(MIN_BIN_ROWS, MAX_BIN_ROWS);
        let (num_kept, num_all) =
            (num_waiting(window_rows, num_rows, most_rows), num_waiting(window_rows, num_rows, u64::MAX));
        let stretch_bins = if num_kept < num_all { (num_kept / bin_rows).max(1) } else { u64::MAX };
        Self {
            draws,
            window_rows: window_rows as f64,
            reach: window_rows,
            bin_rows: bin_rows as f64,
            num_bin_rows: bin_rows,
            num_rows,
            first_row: 0,
            undrawn: 0,
            place: 0,
            first_bin: 0,
            bins: VecDeque::new(),
            stretch_bins,
            stretch_end: stretch_bins,
            chunk_rows: usize::try_from(bin_rows.div_ceil(CHUNKS_PER_BIN)).unwrap_or(usize::MAX),
            spare: Vec::new(),
            leaving: Vec::new(),
            first_leaving: 0,
            num_left: 0,
        }
    }

    /// Returns the place of the row that leaves next.
    pub(super) fn place(&self) -> u64 {
        self.place
    }

    /// Returns the first row that has not been drawn. Rows from it on have not left.
    pub(super) fn undrawn(&self) -> u64 {
        self.undrawn
    }

    /// Returns the first row that can leave at `place` or after it: all rows before it leave earlier.
    pub(super) fn first_row_at(&self, place: u64) -> u64 {
        // Row x follows every row up to x − window_rows, whatever is drawn (at equal keys by index).
        place.saturating_sub(self.reach.saturating_sub(1))
    }

    /// Forgets what was drawn and restarts with `row` as the first one, at the place of the same number.
    ///
    /// The order is the lane's from the place on where all rows before `row` have left. That holds at every place with
    /// [`Window::first_row_at`] `>= row`.
    pub(super) fn restart(&mut self, row: u64) {
        self.draws.seek(row);
        (self.first_row, self.undrawn, self.place) = (row, row, row);
        self.first_bin = self.bin(self.lowest_key(row));
        self.bins.clear();
        self.stretch_end = self.first_bin.saturating_add(self.stretch_bins);
        self.leaving.clear();
        self.num_left = 0;
    }

    /// Returns the next row and advances; `None` at the end of the lane.
    #[inline]
    pub(super) fn next(&mut self, sort: &mut SpreadSort<Drawn>) -> Option<u64> {
        while self.num_left == self.leaving.len() {
            self.next_bin()?;
            self.sort_leaving(sort);
        }
        let row = self.first_leaving + number_of(*self.leaving.get(self.num_left)?);
        self.num_left += 1;
        self.place += 1;
        Some(row)
    }

    /// Makes the rows up to `place` leave and passes them on, in any order.
    pub(super) fn skip_to(&mut self, place: u64, sort: &mut SpreadSort<Drawn>, mut left: impl FnMut(u64)) {
        while self.place < place {
            let rest = &self.leaving[self.num_left..];
            let count = usize::try_from(place - self.place).unwrap_or(usize::MAX).min(rest.len());
            rest[..count].iter().for_each(|&drawn| left(self.first_leaving + number_of(drawn)));
            self.num_left += count;
            self.place += count as u64;
            if self.place < place {
                if self.next_bin().is_none() {
                    return;
                }
                // A bin that leaves as a whole need not be sorted.
                if self.leaving.len() as u64 > place - self.place {
                    self.sort_leaving(sort);
                }
            }
        }
    }

    /// Replaces the empty `leaving` by the next bin, unsorted; `None` if no row is left.
    fn next_bin(&mut self) -> Option<()> {
        if self.first_bin == self.stretch_end {
            self.begin_stretch();
        }
        // Once the lowest possible key of a row is beyond the first bin, that bin is complete.
        while self.undrawn < self.num_rows && self.bin(self.lowest_key(self.undrawn)) <= self.first_bin {
            self.draw();
        }
        if self.place >= self.num_rows {
            self.spare.clear();
            return None;
        }
        self.leaving.clear();
        self.num_left = 0;
        if let Some(Bin { mut full, last }) = self.bins.pop_front() {
            self.first_leaving = self.first_row_of(self.first_bin);
            full.extend(Some(last).filter(|last| !last.is_empty()));
            self.leaving.reserve_exact(full.iter().map(Vec::len).sum());
            for mut chunk in full.drain(..) {
                self.leaving.append(&mut chunk);
                // In a steady state nothing is allocated.
                self.spare.push(chunk);
            }
            self.bins.push_back(Bin { full, last: Vec::new() });
        }
        self.first_bin += 1;
        Some(())
    }

    /// Goes back to the first row that may not have left. All kept rows from there on have left.
    fn begin_stretch(&mut self) {
        self.undrawn = self.first_row_of(self.first_bin).clamp(self.first_row, self.num_rows);
        self.draws.seek(self.undrawn);
        self.stretch_end = self.stretch_end.saturating_add(self.stretch_bins);
    }

    /// Sorts the leaving bin, whose keys are evenly distributed.
    fn sort_leaving(&mut self, sort: &mut SpreadSort<Drawn>) {
        sort.sort(&mut self.leaving, bucket_of_bits, u64::cmp);
        for equal in self.leaving.chunk_by_mut(|one, next| one >> NUMBER_BITS == next >> NUMBER_BITS) {
            if equal.len() > 1 {
                let mut draws = self.draws.clone();
                let mut key_of = |drawn: Drawn| {
                    let row = self.first_leaving + number_of(drawn);
                    draws.seek(row);
                    key(row, draws.next_uniform(), self.window_rows)
                };
                // Rows are already in order, which breaks ties between equal keys.
                equal.sort_by(|&one, &other| key_of(one).total_cmp(&key_of(other)));
            }
        }
    }

    /// Draws the key of the next row and puts the row into its bin, if that is in the stretch.
    fn draw(&mut self) {
        let row = self.undrawn;
        self.undrawn += 1;
        let key = key(row, self.draws.next_uniform(), self.window_rows);
        let number = self.bin(key);
        if number < self.first_bin || number >= self.stretch_end {
            return;
        }
        let drawn = self.place_in(number, key) << NUMBER_BITS | (row - self.first_row_of(number));
        let bin = usize::try_from(number - self.first_bin).unwrap_or(usize::MAX);
        if self.bins.len() <= bin {
            self.bins.resize_with(bin + 1, Bin::default);
        }
        let Bin { full, last } = &mut self.bins[bin];
        if last.len() == last.capacity() {
            let empty = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.chunk_rows));
            let chunk = std::mem::replace(last, empty);
            if !chunk.is_empty() {
                full.push(chunk);
            }
        }
        last.push(drawn);
    }

    /// Returns the position of a key within its bin, which is monotone in the key.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1, and the cast saturates")]
    fn place_in(&self, bin: u64, key: f64) -> u64 {
        let share = (key + self.window_rows) / self.bin_rows - bin as f64;
        ((share * f64::from(1 << PLACE_BITS)) as u64).min((1 << PLACE_BITS) - 1)
    }

    /// Returns a lower bound for the rows in a bin: bins are counted from a window before the lane's first row, and
    /// keys are within half a window of their rows, apart from rounding.
    fn first_row_of(&self, bin: u64) -> u64 {
        (bin * self.num_bin_rows).saturating_sub(self.reach + self.reach.div_ceil(2) + 4)
    }

    /// Returns the lowest possible key of `row`.
    fn lowest_key(&self, row: u64) -> f64 {
        row as f64 + (0.0 - 0.5) * self.window_rows
    }

    /// Returns the bin number of a key, which is monotone in the key.
    #[expect(clippy::cast_possible_truncation, reason = "a key is above -window_rows, and the cast saturates")]
    fn bin(&self, key: f64) -> u64 {
        ((key + self.window_rows) / self.bin_rows) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::seed::{Key, Purpose};
    use super::*;

    fn window(lane: u64, window_rows: u64, num_rows: u64) -> Window {
        window_of(lane, window_rows, num_rows, u64::MAX)
    }

    fn window_of(lane: u64, window_rows: u64, num_rows: u64, most_rows: u64) -> Window {
        Window::new(Key::new(1, 2, Purpose::Place).draws(lane), window_rows, num_rows, most_rows)
    }

    fn most_rows() -> impl Strategy<Value = u64> {
        prop_oneof![Just(u64::MAX), 0_u64..400]
    }

    fn rest(window: &mut Window) -> impl Iterator<Item = u64> {
        let mut sort = SpreadSort::default();
        std::iter::from_fn(move || window.next(&mut sort))
    }

    fn model(lane: u64, window_rows: u64, num_rows: u64) -> Vec<u64> {
        let mut draws = Key::new(1, 2, Purpose::Place).draws(lane);
        let mut keyed: Vec<(f64, u64)> =
            (0..num_rows).map(|x| (x as f64 + (draws.next_uniform() - 0.5) * window_rows as f64, x)).collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        keyed.into_iter().map(|(_, x)| x).collect()
    }

    proptest! {
        #[test]
        fn rows_leave_by_key(
            lane in 0_u64..4, window_rows in 0_u64..1000, num_rows in 0_u64..2000, most_rows in most_rows(),
        ) {
            let mut window = window_of(lane, window_rows, num_rows, most_rows);
            let rows: Vec<u64> = rest(&mut window).collect();
            prop_assert_eq!(rows, model(lane, window_rows, num_rows));
        }

        #[test]
        fn a_restart_reaches_every_place(
            window_rows in prop_oneof![0_u64..8, 0_u64..1000], num_rows in 1_usize..1500,
            at in any::<prop::sample::Index>(), most_rows in most_rows(),
        ) {
            let (at, num_rows) = (at.index(num_rows), num_rows as u64);
            let (expected, place) = (model(0, window_rows, num_rows), at as u64);
            let mut window = window_of(0, window_rows, num_rows, most_rows);
            let first = window.first_row_at(place);
            window.restart(first);
            let mut skipped = 0;
            window.skip_to(place, &mut SpreadSort::default(), |_| skipped += 1);
            prop_assert_eq!(skipped, place - first);
            let rest: Vec<u64> = rest(&mut window).collect();
            prop_assert_eq!(&rest[..], &expected[at..]);
        }
    }

    #[test]
    fn wide_windows_use_wide_bins_and_give_the_same_order() {
        let (window_rows, num_rows) = (100_000, 150_000);
        for most_rows in [u64::MAX, 20_000, 0] {
            let mut window = window_of(3, window_rows, num_rows, most_rows);
            let rows: Vec<u64> = rest(&mut window).collect();
            assert_eq!(rows, model(3, window_rows, num_rows), "{most_rows}");
        }
    }

    #[test]
    fn windows_beyond_all_rows_give_the_same_order() {
        for window_rows in [5000, 9999, 1 << 24] {
            let mut window = window(3, window_rows, 5000);
            let rows: Vec<u64> = rest(&mut window).collect();
            assert_eq!(rows, model(3, window_rows, 5000), "{window_rows}");
        }
    }

    #[test]
    fn little_more_is_held_than_eight_bytes_for_each_row_that_waits() {
        let held = |window: &Window| {
            let chunks = window.bins.iter().flat_map(|bin| bin.full.iter().chain([&bin.last])).chain(&window.spare);
            chunks.map(|chunk| chunk.capacity() * size_of::<Drawn>()).sum::<usize>() as u64
        };
        for (most_rows, num_waiting) in [(u64::MAX, 1 << 19), (1 << 17, 1 << 17), (0, 1 << 15)] {
            let mut window = window_of(0, 1 << 20, 1 << 22, most_rows);
            let (mut most, mut sort) = (0, SpreadSort::default());
            while let Some(row) = window.next(&mut sort) {
                if row % 1000 == 0 {
                    most = most.max(held(&window));
                }
            }
            assert!((num_waiting * 7..num_waiting * 10).contains(&most), "{most} bytes for {num_waiting} rows");
            assert_eq!(held(&window), 0, "at the end");
        }
    }

    #[test]
    fn a_trillion_rows_down_the_lane_the_order_is_still_a_permutation_of_a_window() {
        let place = 1_u64 << 40;
        let mut window = window(0, 240, place * 2);
        window.restart(window.first_row_at(place));
        window.skip_to(place, &mut SpreadSort::default(), |_| ());
        let mut rows: Vec<u64> = rest(&mut window).take(10_000).collect();
        assert!(rows.iter().zip(place..).all(|(&row, place)| row.abs_diff(place) < 240));
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 10_000);
    }
}
