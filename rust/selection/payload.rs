//! Reads the columns that are returned while the filter is still at work.
//!
//! The kept rows of a row group can be read as soon as they are known, without waiting for those of others. And where what
//! would be in vain of all that is open is small beside what a store sends during a round trip, its payload is read
//! together with the predicate columns: that costs the bytes of pages which turn out to hold no kept row, and spares the
//! wait. How many those are is guessed ([`super::likely`]); where nothing tells, all of them.

use std::ops::Range;
use std::sync::Arc;

use super::open::Open;
use crate::dataset::{RowGroupRef, Snapshot};
use crate::rows::RowSet;
use crate::source::{Ahead, Connection, coalesce};

/// How many later requests may go before one that may be in vain.
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
    /// Whether the first rows of the dataset are needed first, so that it pays to have only them.
    pub(crate) is_in_order: bool,
}

/// When the payload of row groups that are open is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// After the selection.
    Later,
    /// As soon as their kept rows are known.
    Known,
    /// It has been asked for.
    Now,
}

impl Payload {
    /// Starts to read the row groups that are decided, of which `rows` holds the kept rows, and those that are `open` where
    /// a round trip is worth more than what may be read in vain. Returns when to read those.
    pub(super) fn start(&self, rows: &[RowSet], open: &[Open], round_trip_bytes: u64) -> When {
        let is_open = |place: usize| open.binary_search_by_key(&place, |open| open.place).is_ok();
        let decided: Vec<(RowGroupRef, &RowSet)> = (self.snapshot.row_groups.iter().zip(rows).enumerate())
            .filter(|(place, (_, rows))| **rows != RowSet::None && !is_open(*place))
            .map(|(_, (row_group, rows))| (*row_group, rows))
            .collect();
        let of_open = || open.iter().map(|open| (open.row_group, &open.alive));
        if !self.is_in_order && !self.fit(decided.iter().copied().chain(of_open())) {
            return When::Later;
        }
        let likely = self.likely(open, round_trip_bytes);
        decided.into_iter().for_each(|(row_group, rows)| self.read(row_group, rows));
        let Some(likely) = likely else { return When::Known };
        for (row_group, ranges) in likely {
            self.read_ranges(row_group, &ranges, SLACK);
        }
        When::Now
    }

    /// Starts to read kept rows of a row group.
    pub(super) fn read(&self, row_group: RowGroupRef, rows: &RowSet) {
        if self.ahead.room() > 0 {
            self.read_ranges(row_group, &self.ranges(row_group, rows), 0);
        }
    }

    fn read_ranges(&self, row_group: RowGroupRef, ranges: &[Range<u64>], slack: u64) {
        let fragment = self.snapshot.fragment(row_group);
        self.ahead.read(&self.connections[fragment.store].with_slack(slack), &fragment.object, ranges);
    }

    /// Returns whether there is room for the rows of all row groups.
    fn fit<'a>(&self, mut of: impl Iterator<Item = (RowGroupRef, &'a RowSet)>) -> bool {
        let left = of.try_fold(self.ahead.room(), |left, (row_group, rows)| {
            left.checked_sub(num_bytes(&coalesce(&self.ranges(row_group, rows), 0)))
        });
        left.is_some()
    }

    /// Returns the ranges of row groups that are open, as far as there is room; `None` if more than `max_bytes` of their
    /// pages are likely to hold no kept row.
    fn likely(&self, open: &[Open], max_bytes: u64) -> Option<Vec<(RowGroupRef, Vec<Range<u64>>)>> {
        let (mut left, mut room, mut likely) = (max_bytes, self.ahead.room(), Vec::new());
        for open in open {
            let fragment = self.snapshot.fragment(open.row_group);
            let mut extents = fragment.extents(&self.columns, open.row_group.index);
            extents.retain(|extent| open.alive.count(extent.rows.clone()) > 0);
            let in_vain = extents.iter().map(|extent| {
                let unlikely = 1.0 - open.chance(&extent.rows);
                part(extent.bytes.end - extent.bytes.start, unlikely)
            });
            let in_vain: u64 = in_vain.sum();
            left = left.checked_sub(in_vain)?;
            // Whole columns, if all is likely to be needed; else pages, so that those that are do not wait for the others.
            let ranges = match in_vain {
                0 => self.ranges(open.row_group, &open.alive),
                _ => extents.into_iter().map(|extent| extent.bytes).collect(),
            };
            let Some(still) = room.checked_sub(num_bytes(&ranges)) else { break };
            room = still;
            likely.push((open.row_group, ranges));
        }
        Some(likely)
    }

    /// Returns where rows of a row group are.
    fn ranges(&self, row_group: RowGroupRef, rows: &RowSet) -> Vec<Range<u64>> {
        let fragment = self.snapshot.fragment(row_group);
        match rows {
            RowSet::All => fragment.chunk_ranges(&self.columns, row_group.index),
            some => {
                let extents = fragment.extents(&self.columns, row_group.index).into_iter();
                extents.filter(|extent| some.count(extent.rows.clone()) > 0).map(|extent| extent.bytes).collect()
            }
        }
    }
}

fn num_bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns a part between 0 and 1 of some bytes.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a guess")]
fn part(num_bytes: u64, part: f64) -> u64 {
    (num_bytes as f64 * part) as u64
}
