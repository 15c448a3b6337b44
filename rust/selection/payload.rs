//! Reads the columns that are returned while the filter is still at work.
//!
//! The kept rows of a row group can be read as soon as they are known, without waiting for those of others. And where what
//! is open is small beside what a store sends during a round trip, its payload is read together with the predicate
//! columns: that costs the bytes of pages which turn out to hold no kept row, and spares the wait.

use std::ops::Range;
use std::sync::Arc;

use super::open::Open;
use super::rows::RowSet;
use crate::dataset::{RowGroupRef, Snapshot};
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
        let open: Vec<_> = open.iter().map(|open| (open.row_group, &open.alive)).collect();
        if !self.is_in_order && self.ranges_within(self.ahead.room(), decided.iter().chain(&open)).is_none() {
            return When::Later;
        }
        let in_vain = self.ranges_within(round_trip_bytes, &open);
        decided.into_iter().for_each(|(row_group, rows)| self.read(row_group, rows));
        let Some(in_vain) = in_vain else { return When::Known };
        for ((row_group, _), ranges) in open.into_iter().zip(in_vain) {
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

    /// Returns the ranges of the rows of each row group; `None` if they are more than `max_bytes`.
    fn ranges_within<'a>(
        &self,
        max_bytes: u64,
        of: impl IntoIterator<Item = &'a (RowGroupRef, &'a RowSet)>,
    ) -> Option<Vec<Vec<Range<u64>>>> {
        let mut left = max_bytes;
        let ranges = of.into_iter().map(|(row_group, rows)| {
            let ranges = self.ranges(*row_group, rows);
            left = left.checked_sub(coalesce(&ranges, 0).iter().map(|range| range.end - range.start).sum())?;
            Some(ranges)
        });
        ranges.collect()
    }

    /// Returns where rows of a row group are.
    fn ranges(&self, row_group: RowGroupRef, rows: &RowSet) -> Vec<Range<u64>> {
        let fragment = self.snapshot.fragment(row_group);
        match rows {
            RowSet::All => fragment.chunk_ranges(&self.columns, row_group.index),
            some => fragment.page_ranges(&self.columns, row_group.index, |rows| some.count(rows) > 0),
        }
    }
}
