//! Column indexes and bloom filters: which to load, all in one pass, and what they decide.
//!
//! Both are small compared to the columns that they may save, but how much they save is not known in advance: page
//! bounds of unsorted values decide nothing. So they are loaded if half of the predicate columns' bytes are worth more
//! than the indexes and their round trip. Those that came with the footer are free.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::bloom::{Bloom, Blooms};
use super::conjuncts::Conjunct;
use super::likely::Shares;
use super::open::{Open, intersect};
use super::pages::IntervalStatistics;
use super::prune::{Pruner, Verdict};
use super::scan::RoundTripBytes;
use crate::error::{Error, Result};
use crate::panics;
use crate::rows::RowSet;
use crate::snapshot::{RowGroupRef, Snapshot};
use crate::source::{Connection, coalesce, num_bytes, read_ranges};

/// Indexes of an object are requested together up to this size: those of neighbouring row groups share one request.
const GROUP_BYTES: u64 = 8 << 20;

/// Groups of indexes that are requested at the same time.
const GROUPS_IN_FLIGHT: usize = 256;

/// An index is loaded only if it is at most this fraction of its row group's predicate columns.
const PART_OF_COLUMNS: u64 = 4;

/// An index or filter of one column of one row group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Index {
    /// The dataset column.
    column: usize,
    root: usize,
    is_bloom: bool,
    range: Range<u64>,
}

/// Row groups of one object, with the indexes to load for each.
type Group = Vec<(Open, Vec<Index>)>;

/// What indexes decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Decided {
    /// Row groups that a bloom filter excluded.
    pub(super) by_bloom: u64,
    /// Intervals between page bounds that were judged, over all conjuncts.
    pub(super) pages: u64,
    /// Those in which no row passes.
    pub(super) pages_pruned: u64,
}

/// A filter's conjuncts, with their statistics predicates.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) conjuncts: Vec<(Conjunct, Pruner)>,
}

impl Judge {
    /// Narrows the undecided rows of each row group by the indexes that are worth their bytes; holds about
    /// `memory_bytes` of them at once.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub(super) async fn narrow(
        self: &Arc<Self>,
        open: Vec<Open>,
        connections: &[Connection],
        round_trip_bytes: RoundTripBytes,
        memory_bytes: u64,
    ) -> Result<(Vec<Open>, Decided)> {
        let wanted = open.into_iter().map(|open| {
            let indexes = self.indexes(&open);
            (open, indexes)
        });
        let mut groups = groups(wanted);
        for (store, connection) in connections.iter().enumerate() {
            let (mut index_bytes, mut column_bytes) = (0_u64, 0_u64);
            for group in groups.iter().filter(|group| self.store(group) == store) {
                let (of_indexes, of_columns) = self.asked_bytes(group);
                index_bytes = index_bytes.saturating_add(of_indexes);
                column_bytes = column_bytes.saturating_add(of_columns);
            }
            if !is_worth(index_bytes, column_bytes, round_trip_bytes(connection)) {
                for (open, indexes) in groups.iter_mut().filter(|group| self.store(group) == store).flatten() {
                    let fragment = self.snapshot.fragment(open.row_group);
                    indexes.retain(|index| fragment.kept(&index.range).is_some());
                }
            }
        }
        let num_at_once = usize::try_from(memory_bytes / GROUP_BYTES).unwrap_or(usize::MAX);
        let judged = groups.into_iter().map(|group| self.judge_group(group, connections));
        let judged: Vec<_> = stream::iter(judged)
            .buffered(num_at_once.clamp(1, GROUPS_IN_FLIGHT))
            .map_ok(|group| stream::iter(group.into_iter().map(Ok::<_, Error>)))
            .try_flatten()
            .try_collect()
            .await?;
        let mut sum = Decided::default();
        let add = |(open, decided): (Open, Decided)| {
            sum.by_bloom += decided.by_bloom;
            sum.pages += decided.pages;
            sum.pages_pruned += decided.pages_pruned;
            open
        };
        Ok((judged.into_iter().map(add).collect(), sum))
    }

    /// For each conjunct, returns which rows of a row group are likely to pass, if known: from indexes, or from the row
    /// group's statistics if a column has only one page.
    pub(super) fn likely<'a>(&self, open: &'a Open) -> Vec<Option<Cow<'a, Shares>>> {
        let fragment = self.snapshot.fragment(open.row_group);
        let RowGroupRef { index, num_rows, .. } = open.row_group;
        let of_chunk = |conjunct: &Conjunct| {
            let between = conjunct.between.as_ref()?;
            let bounds = fragment.chunk_bounds(index, fragment.columns[between.column()]?)?;
            between.shares(&bounds, num_rows).map(Cow::Owned)
        };
        let conjuncts = self.conjuncts.iter().zip(&open.likely);
        conjuncts
            .map(|((conjunct, _), known)| known.as_ref().map(Cow::Borrowed).or_else(|| of_chunk(conjunct)))
            .collect()
    }

    fn store(&self, group: &Group) -> usize {
        group.first().map_or(0, |(open, _)| self.snapshot.fragment(open.row_group).store)
    }

    /// Returns the bytes of the indexes of a group that must be requested, and of the columns of their row groups.
    fn asked_bytes(&self, group: &Group) -> (u64, u64) {
        let (mut asked, mut gap_bytes, mut column_bytes) = (Vec::new(), 0, 0_u64);
        for (open, indexes) in group {
            let fragment = self.snapshot.fragment(open.row_group);
            let num_before = asked.len();
            let missing = indexes.iter().filter(|index| fragment.kept(&index.range).is_none());
            asked.extend(missing.map(|index| index.range.clone()));
            if asked.len() > num_before {
                gap_bytes = self.snapshot.gap_bytes(fragment);
                column_bytes = column_bytes.saturating_add(self.column_bytes(open));
            }
        }
        (num_bytes(&coalesce(&asked, gap_bytes)), column_bytes)
    }

    /// Returns the indexes that could decide something and are small enough.
    fn indexes(&self, open: &Open) -> Vec<Index> {
        let (fragment, row_group) = (self.snapshot.fragment(open.row_group), open.row_group.index);
        let column_bytes = self.column_bytes(open);
        let mut found: Vec<Index> = Vec::new();
        for ((_, pruner), rows) in self.conjuncts.iter().zip(&open.unknown) {
            if *rows == RowSet::None {
                continue;
            }
            let bounded = pruner.bounded_columns().iter().map(|&column| (column, false));
            for (column, is_bloom) in bounded.chain(pruner.sought_columns().into_iter().map(|column| (column, true))) {
                let Some(root) = fragment.columns[column] else { continue };
                let range = match is_bloom {
                    true => Bloom::range(fragment, row_group, root),
                    false => fragment.column_index_range(row_group, root),
                };
                let Some(range) = range.filter(|range| (range.end - range.start) * PART_OF_COLUMNS <= column_bytes)
                else {
                    continue;
                };
                let index = Index { column, root, is_bloom, range };
                if !found.contains(&index) {
                    found.push(index);
                }
            }
        }
        found
    }

    /// Returns the bytes of the columns of the conjuncts that are undecided in a row group.
    fn column_bytes(&self, open: &Open) -> u64 {
        let fragment = self.snapshot.fragment(open.row_group);
        let undecided = self.conjuncts.iter().zip(&open.unknown).filter(|(_, rows)| **rows != RowSet::None);
        let mut columns: Vec<usize> =
            undecided.flat_map(|((conjunct, _), _)| conjunct.columns.iter().copied()).collect();
        columns.sort_unstable();
        columns.dedup();
        columns.into_iter().map(|column| fragment.column_bytes(column, open.row_group.index)).sum()
    }

    async fn judge_group(self: &Arc<Self>, group: Group, connections: &[Connection]) -> Result<Vec<(Open, Decided)>> {
        let Some((first, _)) = group.first() else { return Ok(Vec::new()) };
        if group.iter().all(|(_, indexes)| indexes.is_empty()) {
            return Ok(group.into_iter().map(|(open, _)| (open, Decided::default())).collect());
        }
        let fragment = self.snapshot.fragment(first.row_group);
        let connection = &connections[fragment.store];
        let indexes = || group.iter().flat_map(|(_, indexes)| indexes);
        let mut bytes: Vec<Option<Bytes>> = indexes().map(|index| fragment.kept(&index.range)).collect();
        let missing = indexes().zip(&bytes).filter(|(_, bytes)| bytes.is_none());
        let ranges: Vec<_> = missing.map(|(index, _)| index.range.clone()).collect();
        let mut read = read_ranges(connection, &fragment.object, &ranges).await?.into_iter();
        bytes.iter_mut().filter(|bytes| bytes.is_none()).for_each(|bytes| *bytes = read.next());
        let this = Arc::clone(self);
        let judge = move || {
            let mut bytes = bytes.into_iter().flatten();
            let judge_one = |(open, indexes): (Open, Vec<Index>)| {
                let read: Vec<_> = bytes.by_ref().take(indexes.len()).collect();
                this.judge(open, &indexes, &read)
            };
            group.into_iter().map(judge_one).collect()
        };
        connection.io.blocking(judge).await
    }

    /// Narrows the undecided rows of one row group, given indexes and their bytes. Malformed ones decide nothing.
    fn judge(&self, mut open: Open, indexes: &[Index], bytes: &[Bytes]) -> (Open, Decided) {
        let fragment = self.snapshot.fragment(open.row_group);
        let (row_group, num_rows) = (open.row_group.index, open.row_group.num_rows);
        let (mut bounds, mut blooms, mut decided) = (Vec::new(), Vec::new(), Decided::default());
        for (index, bytes) in indexes.iter().zip(bytes) {
            if index.is_bloom {
                blooms.extend(Bloom::parse(fragment, row_group, index.root, index.column, bytes));
            } else {
                // The converter may panic on bounds that are not of their type.
                let found = panics::caught(|| fragment.page_bounds(row_group, index.root, bytes));
                bounds.extend(found.ok().flatten().map(|found| (index.column, found)));
            }
        }
        let schema = &self.snapshot.columns;
        let blooms = Blooms { schema, columns: blooms };
        let is_absent = |(_, pruner): &(Conjunct, Pruner)| pruner.ask(&blooms, |_| false) == [Verdict::Nothing];
        if !blooms.columns.is_empty() && self.conjuncts.iter().any(is_absent) {
            decided.by_bloom = 1;
            open.alive = RowSet::None;
            return (open, decided);
        }
        for (place, (conjunct, pruner)) in self.conjuncts.iter().enumerate() {
            let (ours, others) = std::mem::take(&mut bounds)
                .into_iter()
                .partition::<Vec<_>, _>(|(column, _)| conjunct.columns.contains(column));
            if !ours.is_empty() && open.unknown[place] != RowSet::None {
                let verdicts = IntervalStatistics::new(schema, num_rows, &ours).judge(pruner, &conjunct.columns);
                let rows_of = |is_wanted: fn(Verdict) -> bool| {
                    let wanted = verdicts.iter().filter(move |(_, verdict)| is_wanted(*verdict));
                    wanted.map(|(rows, _)| rows.clone()).collect::<Vec<_>>()
                };
                decided.pages += verdicts.len() as u64;
                decided.pages_pruned += rows_of(|verdict| verdict == Verdict::Nothing).len() as u64;
                open.alive = intersect(&open.alive, rows_of(|verdict| verdict != Verdict::Nothing), num_rows);
                let unknown = rows_of(|verdict| verdict == Verdict::Unknown);
                open.unknown[place] = intersect(&open.unknown[place], unknown, num_rows);
                open.likely[place] = conjunct.between.as_ref().and_then(|between| {
                    let (_, bounds) = ours.iter().find(|(column, _)| *column == between.column())?;
                    between.shares(bounds, num_rows)
                });
            }
            bounds = ours;
            bounds.extend(others);
        }
        (open, decided)
    }
}

/// Groups neighbouring row groups of an object, up to [`GROUP_BYTES`] of indexes.
fn groups(wanted: impl Iterator<Item = (Open, Vec<Index>)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut group_bytes = 0_u64;
    for (open, indexes) in wanted {
        let bytes: u64 = indexes.iter().map(|index| index.range.end - index.range.start).sum();
        group_bytes = group_bytes.saturating_add(bytes);
        let is_same = |last: &Open| last.row_group.fragment == open.row_group.fragment;
        match groups.last_mut() {
            Some(group) if group_bytes <= GROUP_BYTES && group.last().is_some_and(|(last, _)| is_same(last)) => {
                group.push((open, indexes));
            }
            _ => {
                group_bytes = bytes;
                groups.push(vec![(open, indexes)]);
            }
        }
    }
    groups
}

/// Returns whether loading indexes of `index_bytes`, which may save any fraction of `column_bytes` and cost one more
/// round trip, is worthwhile: whether they cost less than half of `column_bytes`.
fn is_worth(index_bytes: u64, column_bytes: u64, round_trip_bytes: u64) -> bool {
    column_bytes / 2 > index_bytes.saturating_add(round_trip_bytes)
}

#[cfg(test)]
mod tests {
    use super::is_worth;

    #[test]
    fn indexes_are_loaded_where_half_of_the_columns_is_worth_a_round_trip() {
        assert!(is_worth(10, 1000, 400));
        assert!(!is_worth(10, 1000, 490));
        assert!(!is_worth(600, 1000, 0));
        assert!(!is_worth(u64::MAX, u64::MAX, u64::MAX));
    }
}
