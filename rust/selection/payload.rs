//! Reads the returned columns while the filter is still being evaluated.
//!
//! The kept rows of a row group can be read as soon as they are known, without waiting for those of others. And if what
//! would be read in vain of all that is undecided is little compared to what a store sends during a round trip, its
//! payload is read together with the predicate columns: that costs the bytes of pages without kept rows, and saves the
//! wait. How many those are is guessed ([`super::likely`]), or else assumed to be all of them. No more is read on a
//! guess than the network delivers until more is known, so that a wrong guess costs no more time than a right one
//! saves.

use std::ops::Range;
use std::sync::Arc;

use super::indexes::Judge;
use super::open::Open;
use crate::rows::RowSet;
use crate::snapshot::{RowGroupRef, Snapshot};
use crate::source::{Ahead, Connection, coalesce, num_bytes};

/// How many later requests may overtake one that may be in vain.
const SLACK: u64 = 256;

/// What will be read of the kept rows.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The dataset's columns.
    pub(crate) columns: Arc<[usize]>,
    /// For each store.
    pub(crate) connections: Vec<Connection>,
    pub(crate) ahead: Arc<Ahead>,
    /// Whether the first rows of the dataset are needed first, so that reading only them is worthwhile.
    pub(crate) is_in_order: bool,
}

/// What was requested before the filter's columns are read.
#[derive(Debug)]
pub(super) struct Started {
    /// From this index on, the payload of undecided row groups is read as soon as their kept rows are known.
    pub(super) first_known: usize,
    /// The indices of the earlier ones, and the requested byte ranges, of which some pages may have no kept rows.
    guessed: Vec<(usize, Range<u64>)>,
}

/// The wanted ranges of a row group.
type RowGroupRanges = (RowGroupRef, Vec<Range<u64>>);

impl Payload {
    /// Starts to read the decided row groups, whose kept rows are in `rows`, and the `open` ones if a round trip is
    /// worth more than what may be read in vain; `None` if nothing is to be read before the selection is complete.
    pub(super) fn start(
        &self,
        judge: &Judge,
        rows: &[RowSet],
        open: &[Open],
        round_trip_bytes: u64,
    ) -> Option<Started> {
        let is_open = |place: usize| open.binary_search_by_key(&place, |open| open.place).is_ok();
        let decided: Vec<(RowGroupRef, &RowSet)> = (self.snapshot.row_groups.iter().zip(rows).enumerate())
            .filter(|(place, (_, rows))| **rows != RowSet::None && !is_open(*place))
            .map(|(_, (row_group, rows))| (*row_group, rows))
            .collect();
        let of_open = || open.iter().map(|open| (open.row_group, &open.alive));
        if !self.is_in_order && !self.fit(decided.iter().copied().chain(of_open())) {
            return None;
        }
        let mut room = self.ahead.room();
        let decided = decided.into_iter().map_while(|(row_group, rows)| {
            let ranges = self.ranges(row_group, rows);
            room = room.checked_sub(num_bytes(&ranges))?;
            Some((row_group, ranges))
        });
        let decided: Vec<RowGroupRanges> = decided.collect();
        let (likely, first_known) = self.likely(judge, open, round_trip_bytes, room).unwrap_or_default();
        let at_once = decided.iter().chain(&likely).map(|(_, ranges)| num_bytes(ranges)).sum();
        decided.iter().for_each(|(row_group, ranges)| self.read_ranges(*row_group, ranges, 0, at_once));
        likely.iter().for_each(|(row_group, ranges)| self.read_ranges(*row_group, ranges, SLACK, at_once));
        let guessed = open.iter().zip(&likely).map(|(open, (_, ranges))| (open.place, span(ranges))).collect();
        Some(Started { first_known, guessed })
    }

    /// Drops what was requested but holds none of the kept rows.
    pub(super) fn forget_in_vain(&self, started: &Started, rows: &[RowSet]) {
        for (place, within) in &started.guessed {
            let row_group = self.snapshot.row_groups[*place];
            let wanted = coalesce(&self.ranges(row_group, &rows[*place]), 0);
            self.ahead.forget(&self.snapshot.fragment(row_group).object, within.clone(), &wanted);
        }
    }

    /// Starts to read kept rows of a row group.
    pub(super) fn read(&self, row_group: RowGroupRef, rows: &RowSet) {
        if self.ahead.room() > 0 {
            let ranges = self.ranges(row_group, rows);
            self.read_ranges(row_group, &ranges, 0, num_bytes(&ranges));
        }
    }

    /// Starts to read ranges of a row group, as part of `at_once` bytes that are requested together.
    fn read_ranges(&self, row_group: RowGroupRef, ranges: &[Range<u64>], slack: u64, at_once: u64) {
        let fragment = self.snapshot.fragment(row_group);
        let connection = self.connections[fragment.store].with_slack(slack);
        self.ahead.read(&connection, &fragment.object, ranges, at_once);
    }

    /// Returns whether there is room for the rows of all row groups.
    fn fit<'a>(&self, mut of: impl Iterator<Item = (RowGroupRef, &'a RowSet)>) -> bool {
        let left = of.try_fold(self.ahead.room(), |left, (row_group, rows)| {
            left.checked_sub(num_bytes(&coalesce(&self.ranges(row_group, rows), 0)))
        });
        left.is_some()
    }

    /// Returns the ranges of undecided row groups that will arrive before more is known, and the index of the first one
    /// that will not; `None` if more than `max_bytes` of their pages are likely to have no kept row.
    fn likely(&self, judge: &Judge, open: &[Open], max_bytes: u64, room: u64) -> Option<(Vec<RowGroupRanges>, usize)> {
        if max_bytes == 0 {
            return None;
        }
        let brought = self.connections.iter().filter_map(|connection| connection.known().round_trip_bytes()).max();
        let (mut left, mut likely) = (max_bytes, Vec::new());
        let mut room = room.min(brought.unwrap_or(u64::MAX));
        for open in open {
            let shares = judge.likely(open);
            let fragment = self.snapshot.fragment(open.row_group);
            let mut extents = fragment.extents(&self.columns, open.row_group.index);
            extents.retain(|extent| open.alive.has(extent.rows.clone()));
            let in_vain = extents.iter().map(|extent| {
                let unlikely = 1.0 - open.chance(&shares, &extent.rows);
                part(extent.bytes.end - extent.bytes.start, unlikely)
            });
            let in_vain: u64 = in_vain.sum();
            left = left.checked_sub(in_vain)?;
            // Whole columns, if everything is likely to be needed; else pages, so that needed ones do not wait for the
            // others.
            let ranges = match in_vain {
                0 => self.ranges(open.row_group, &open.alive),
                _ => extents.into_iter().map(|extent| extent.bytes).collect(),
            };
            let Some(still) = room.checked_sub(num_bytes(&ranges)) else { return Some((likely, open.place)) };
            room = still;
            likely.push((open.row_group, ranges));
        }
        Some((likely, usize::MAX))
    }

    /// Returns the ranges of some rows of a row group.
    fn ranges(&self, row_group: RowGroupRef, rows: &RowSet) -> Vec<Range<u64>> {
        let fragment = self.snapshot.fragment(row_group);
        match rows {
            RowSet::All => fragment.chunk_ranges(&self.columns, row_group.index),
            some => {
                let extents = fragment.extents(&self.columns, row_group.index).into_iter();
                extents.filter(|extent| some.has(extent.rows.clone())).map(|extent| extent.bytes).collect()
            }
        }
    }
}

/// Returns the smallest range that contains `ranges`.
fn span(ranges: &[Range<u64>]) -> Range<u64> {
    let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    start..ranges.iter().map(|range| range.end).max().unwrap_or(start)
}

/// Returns a fraction between 0 and 1 of some bytes.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a guess")]
fn part(num_bytes: u64, part: f64) -> u64 {
    (num_bytes as f64 * part) as u64
}
