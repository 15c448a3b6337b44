//! Row groups that cost more than their rows, because of how their files were written: what users are warned of.

use std::ops::Range;

use super::EpochReader;
use crate::config;
use crate::snapshot::{ReadCost, RowGroupRef};

/// Row groups whose parts are compared with the whole; files of a dataset are usually written alike.
const MOST_COMPARED: usize = 64;

/// Row groups that must be held whole, because no page index locates their pages, and that take much of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unindexed {
    /// The object with the largest one.
    pub url: String,
    /// The largest one's number within its object, from 0.
    pub row_group: usize,
    /// The bytes needed to read it.
    pub needed_bytes: u64,
    /// The number of such row groups.
    pub num_row_groups: u64,
}

/// A row group that is read in parts, of which each needs bytes that others have fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refetched {
    /// Its object.
    pub url: String,
    /// Its number within the object, from 0.
    pub row_group: usize,
    /// The number of parts.
    pub num_parts: usize,
    /// The bytes that all parts fetch.
    pub fetched_bytes: u64,
    /// The bytes that would be fetched if every span, or the row group in dataset order, were read at once.
    pub wanted_bytes: u64,
    /// The bytes of dictionaries, which each part needs, among those that are fetched again.
    pub dictionary_bytes: u64,
}

impl Refetched {
    /// Returns whether the bytes are one and a half times those that are wanted.
    fn is_much(&self) -> bool {
        self.fetched_bytes >= self.wanted_bytes.saturating_add(self.wanted_bytes / 2)
    }

    fn is_worse_than(&self, other: &Self) -> bool {
        let times = |one: u64, other: u64| u128::from(one) * u128::from(other);
        times(self.fetched_bytes, other.wanted_bytes) > times(other.fetched_bytes, self.wanted_bytes)
    }
}

/// A shuffle whose window has room for so few spans that rows stay near those that are stored beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coarse {
    /// The rows of the window.
    pub window_rows: u64,
    /// The mean rows of a span.
    pub span_rows: u64,
    /// The bytes to shuffle within.
    pub shuffle_bytes: u64,
    /// The least of them that mix rows well.
    pub needed_bytes: u64,
}

/// What was found while a reader was made.
#[derive(Debug, Default)]
pub(super) struct Costly {
    pub(super) unindexed: Option<Unindexed>,
    pub(super) refetched: Option<Refetched>,
    pub(super) coarse: Option<Coarse>,
    num_compared: usize,
}

impl EpochReader {
    /// Notes what costs more than its rows in a row group with kept rows, cut into spans at `starts`.
    pub(super) fn note_costs(&mut self, row_group: &RowGroupRef, index: usize, cost: &ReadCost, starts: &[u32]) {
        if cost.fetched == 0 {
            // NULLs for columns that the object lacks are made, not read.
            return;
        }
        if self.dataset.snapshot().fragment(*row_group).has_offset_index(row_group.index) {
            self.note_refetched(row_group, index, cost, starts);
        } else {
            self.note_unindexed(row_group, cost);
        }
    }

    fn note_unindexed(&mut self, row_group: &RowGroupRef, cost: &ReadCost) {
        if cost.total() <= self.memory_limit / config::UNINDEXED_SHARE {
            return;
        }
        if !self.can_read(row_group, &self.cut(row_group, 0..row_group.num_rows)) {
            return;
        }
        let (url, number) = self.place_of(row_group);
        let noted = self.costly.unindexed.get_or_insert_with(|| Unindexed {
            url: String::new(),
            row_group: 0,
            needed_bytes: 0,
            num_row_groups: 0,
        });
        noted.num_row_groups += 1;
        if cost.total() > noted.needed_bytes {
            (noted.url, noted.row_group, noted.needed_bytes) = (url, number, cost.total());
        }
    }

    fn note_refetched(&mut self, row_group: &RowGroupRef, index: usize, cost: &ReadCost, starts: &[u32]) {
        let num_rows = row_group.num_rows;
        let is_whole = cost.total() <= super::bounds_of_reads(self.memory_limit).0;
        // Of few kept rows, other bytes are read than of all.
        let keeps_most = || self.selection.rows(index).count(0..num_rows) >= num_rows / 2;
        if is_whole || self.costly.num_compared == MOST_COMPARED || !keeps_most() {
            return;
        }
        self.costly.num_compared += 1;
        let fetched = |rows: &Range<u32>| self.read_cost(row_group, rows).fetched;
        // In a fixed order, what is cut is the row group.
        let starts = if self.settings.are_fixed() { &[0][..] } else { starts };
        let ends = starts.iter().skip(1).copied().chain([num_rows]);
        let spans: Vec<Range<u32>> = starts.iter().zip(ends).map(|(&start, end)| start..end).collect();
        let parts: Vec<Range<u32>> = spans.iter().flat_map(|span| self.cut(row_group, span.clone())).collect();
        if !self.can_read(row_group, &parts) {
            return;
        }
        let fragment = self.dataset.snapshot().fragment(*row_group);
        let layout = &self.layouts[row_group.fragment as usize];
        let (url, number) = self.place_of(row_group);
        let num_again = (parts.len() - spans.len()) as u64;
        let found = Refetched {
            url,
            row_group: number,
            num_parts: parts.len(),
            fetched_bytes: parts.iter().map(fetched).sum(),
            wanted_bytes: spans.iter().map(fetched).sum(),
            dictionary_bytes: fragment.all_dictionary_bytes(layout, row_group.index).saturating_mul(num_again),
        };
        if found.is_much() && self.costly.refetched.as_ref().is_none_or(|worst| found.is_worse_than(worst)) {
            self.costly.refetched = Some(found);
        }
    }

    /// Returns whether the parts fit into memory: those that do not cause an error when they are due.
    fn can_read(&self, row_group: &RowGroupRef, parts: &[Range<u32>]) -> bool {
        parts.iter().all(|rows| self.read_cost(row_group, rows).total() <= self.memory_limit)
    }

    fn place_of(&self, row_group: &RowGroupRef) -> (String, usize) {
        (self.dataset.snapshot().fragment(*row_group).object.url.clone(), row_group.index as usize)
    }

    /// Returns what would be read better with a page index: row groups without one that take more than a
    /// [`config::UNINDEXED_SHARE`]th of the memory limit.
    pub fn unindexed(&self) -> Option<&Unindexed> {
        self.costly.unindexed.as_ref()
    }

    /// Returns the row group of which most is fetched repeatedly, if it is half of its bytes or more; one of the first
    /// that do not fit into a single read.
    pub fn refetched(&self) -> Option<&Refetched> {
        self.costly.refetched.as_ref()
    }

    /// Returns what keeps the shuffle from mixing rows well, if something does.
    pub fn coarse(&self) -> Option<&Coarse> {
        self.costly.coarse.as_ref()
    }
}
