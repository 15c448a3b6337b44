//! Which rows of the dataset a query keeps: exact, known before training.
//!
//! [`mod@parse`] turns text into a typed expression, [`conjuncts`] splits it, [`prune`] decides row groups by
//! statistics, [`indexes`] more of them, and some of their rows, by [`pages`] and [`bloom`] filters, [`scan`] reads the
//! predicate columns of the rest for [`evaluate`], [`payload`] starts to read the kept rows, and [`rows`] keeps the
//! answer small. A [`subset`] is an answer on its own: it can be combined ([`algebra`]), sampled ([`sample`]) and saved
//! ([`saved`], [`codec`]); [`kept`] caches selections on disk for the next run.

mod algebra;
mod bloom;
mod codec;
mod compared;
mod conjuncts;
pub(crate) mod evaluate;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod indexes;
mod kept;
mod likely;
mod long_list;
mod open;
mod pages;
pub(crate) mod parse;
mod payload;
mod prune;
mod sample;
mod saved;
mod scan;
mod subset;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::split_conjunction;

pub use self::algebra::SetOperation;
use self::evaluate::Evaluator;
pub(crate) use self::kept::SelectionCache;
pub(crate) use self::payload::Payload;
pub(crate) use self::scan::Limits;
pub use self::subset::{Shard, Subset};
use crate::engine::{self, digest};
use crate::error::Result;
use crate::metrics::{Counted, Metrics, Progress, Stage};
use crate::nested;
use crate::rows::RowSet;
use crate::snapshot::{Snapshot, inner};
use crate::source::Connection;

/// A Boolean SQL expression over the columns of one dataset, checked and ready to run.
#[derive(Debug, Clone)]
pub struct Filter {
    text: String,
    /// What the text leaves open: values of parameters, numbers of classes.
    comment: String,
    expr: Expr,
    /// The columns of the snapshot that it reads.
    columns: Vec<usize>,
    /// Whether its identity describes it completely, which is not so for a part of a query.
    is_plain: bool,
}

impl Filter {
    /// Initializes what all filters of a process share.
    pub fn prepare() {
        engine::session();
    }

    /// Parses and type-checks `text` against the columns of `snapshot`. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`](crate::Error::Sql), [`Error::UnknownColumn`](crate::Error::UnknownColumn) and
    /// [`Error::NotBoolean`](crate::Error::NotBoolean).
    pub fn parse(text: &str, snapshot: &Arc<Snapshot>) -> Result<Self> {
        Self::parse_with(text, &BTreeMap::new(), &snapshot.schema, snapshot)
    }

    /// Like [`Self::parse`], with values for `$name`, and with the features of `schema`, whose columns are those of
    /// `snapshot`.
    pub(crate) fn parse_with(
        text: &str,
        parameters: &BTreeMap<String, ScalarValue>,
        schema: &SchemaRef,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Self> {
        let parse::Parsed { expr, comment } = parse::parse(text, schema, parameters)?;
        let comment = digest::comment_of(parameters) + &comment;
        let filter = Self { is_plain: true, comment, ..Self::from_expr(text.into(), expr, snapshot) };
        Evaluator::try_new(snapshot, &filter.expr, &filter.columns, text)?;
        Ok(filter)
    }

    /// Returns a checked expression over the columns of `snapshot` as a filter; `text` is the query that contains it.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`](crate::Error::Sql) if it cannot be evaluated.
    pub(crate) fn try_from_expr(text: String, expr: Expr, snapshot: &Arc<Snapshot>) -> Result<Self> {
        let filter = Self::from_expr(text, expr, snapshot);
        Evaluator::try_new(snapshot, &filter.expr, &filter.columns, &filter.text)?;
        Ok(filter)
    }

    /// Returns the filter with a comment for what its text leaves open.
    pub(crate) fn with_comment(self, comment: String) -> Self {
        Self { comment, ..self }
    }

    fn from_expr(text: String, expr: Expr, snapshot: &Snapshot) -> Self {
        let columns: BTreeSet<usize> =
            expr.column_refs().into_iter().filter_map(|column| snapshot.columns.index_of(&column.name).ok()).collect();
        Self { text, comment: String::new(), expr, columns: columns.into_iter().collect(), is_plain: false }
    }

    /// Returns the expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the text alone determines what is kept: without parameters or names of classes.
    pub fn is_all_in_its_text(&self) -> bool {
        self.comment.is_empty()
    }

    /// Returns the text that identifies this filter.
    pub(crate) fn identity(&self) -> String {
        format!("{}{}", self.text, self.comment)
    }

    /// Returns whether the identity describes the filter completely.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Returns whether no row with a NULL in the snapshot's column `column`, or field of structs, can pass.
    pub(crate) fn rejects_null(&self, column: usize, snapshot: &Arc<Snapshot>) -> bool {
        let name = snapshot.columns.field(column).name();
        if !snapshot.schema.index_of(inner::column_of(name)).is_ok_and(|column| self.columns.contains(&column)) {
            return false;
        }
        let rejects_null = |part: &Expr| {
            let read = part.column_refs();
            !read.is_empty()
                && read.iter().all(|read| read.name == *name)
                && Evaluator::try_new(snapshot, part, &[column], &self.text)
                    .is_ok_and(|evaluator| evaluator.rejects_nulls())
        };
        split_conjunction(&self.expr).into_iter().any(|part| {
            rejects_null(part) || nested::of_fields(part, &snapshot.columns).is_some_and(|part| rejects_null(&part))
        })
    }

    /// Returns the conjunction of filters, which reads only those fields of structs that it needs.
    fn all_of(filters: &[Self], snapshot: &Snapshot) -> Self {
        let text = filters.iter().map(|filter| format!("({})", filter.text)).collect::<Vec<_>>().join(" AND ");
        let exprs: Vec<_> = filters.iter().map(|filter| filter.expr.clone()).collect();
        let expr = engine::all_of(&exprs);
        Self::from_expr(text, nested::of_fields(&expr, &snapshot.columns).unwrap_or(expr), snapshot)
    }
}

/// The kept rows of every row group of a snapshot.
#[derive(Debug)]
pub struct Selection {
    rows: Vec<RowSet>,
    num_rows: u64,
    report: Report,
    /// What a user may want to know about how it was made.
    note: Option<String>,
    /// The number of kept rows before each row group, and finally of all; computed on demand.
    starts: OnceLock<Box<[u64]>>,
}

/// The rows to find.
#[derive(Debug)]
pub(crate) struct Sought<'a> {
    /// A kept row passes all of them.
    pub(crate) filters: &'a [Filter],
    /// The rows that may be kept; `None` for all.
    pub(crate) within: Option<&'a Selection>,
    /// How many of the first kept rows are enough: later ones may then be missing; `None` for all.
    pub(crate) enough: Option<u64>,
    /// What to read of the kept rows meanwhile.
    pub(crate) payload: Option<Payload>,
}

/// The cost of making a selection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Row groups excluded without reading them: by their statistics, those of their pages, or bloom filters.
    pub num_pruned: u64,
    /// The number of these that bloom filters excluded.
    pub num_pruned_by_bloom: u64,
    /// Row groups taken whole because of their statistics, without reading them.
    pub num_whole: u64,
    /// Row groups whose predicate columns were read.
    pub num_read: u64,
    /// Row groups that were not examined, because they are outside a previous selection, or after those with enough
    /// rows.
    pub num_outside: u64,
    /// Whether rows after the examined ones may be kept, too.
    pub is_partial: bool,
    /// Runs of rows between page bounds that were judged by the statistics of their pages.
    pub num_pages: u64,
    /// The number of these in which no row passes.
    pub num_pages_pruned: u64,
    /// Number of sequential waits for predicate columns.
    pub num_stages: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Requests made.
    pub requests: u64,
    /// Whether it was made in an earlier run, or by another process, and cached.
    pub is_cached: bool,
    /// Requests for column indexes and bloom filters.
    pub indexes: Counted,
    /// Requests for predicate columns.
    pub predicates: Counted,
    /// Time for deciding by statistics; `None` if row groups were not judged, because it was not made from filters.
    pub pruning: Option<Duration>,
    /// Total time; `None` if it was made elsewhere, at unknown cost.
    pub elapsed: Option<Duration>,
}

impl Selection {
    /// Returns the selection of all rows.
    pub fn all(snapshot: &Snapshot) -> Self {
        let num_whole = snapshot.row_groups.len() as u64;
        let report =
            Report { num_whole, pruning: Some(Duration::ZERO), elapsed: Some(Duration::ZERO), ..Report::default() };
        Self::of_sets(snapshot, vec![RowSet::All; snapshot.row_groups.len()], report)
    }

    /// Returns the rows whose numbers, over all row groups, are in `ranges`, which are ascending and disjoint.
    pub(crate) fn of_ranges(snapshot: &Snapshot, ranges: &[Range<u64>]) -> Self {
        let mut start = 0;
        let sets = snapshot.row_groups.iter().map(|row_group| {
            let end = start + u64::from(row_group.num_rows);
            let within = |range: &Range<u64>| {
                let (from, to) = (range.start.max(start) - start, range.end.min(end).max(start) - start);
                // Both are within the row group.
                Some(u32::try_from(from).ok()?..u32::try_from(to).ok()?).filter(|run| run.start < run.end)
            };
            let runs: Vec<Range<u32>> = ranges.iter().filter_map(within).collect();
            let set = RowSet::from_runs(runs, row_group.num_rows);
            start = end;
            set
        });
        let sets = sets.collect();
        Self::of_sets(snapshot, sets, Self::all(snapshot).report)
    }

    /// Returns the rows `within`, or all.
    pub(crate) fn unfiltered(snapshot: &Snapshot, within: Option<&Self>) -> Self {
        let Some(within) = within else { return Self::all(snapshot) };
        let num_outside = within.rows.iter().filter(|set| **set == RowSet::None).count() as u64;
        let num_whole = within.rows.iter().filter(|set| **set == RowSet::All).count() as u64;
        Self::of_sets(snapshot, within.rows.clone(), Report { num_outside, num_whole, ..Self::all(snapshot).report })
    }

    /// Returns the selection of the rows in `rows`, one set for each row group of the snapshot.
    pub(crate) fn of_sets(snapshot: &Snapshot, rows: Vec<RowSet>, report: Report) -> Self {
        let num_rows =
            rows.iter().zip(&snapshot.row_groups).map(|(set, of)| u64::from(set.count(0..of.num_rows))).sum();
        Self { rows, num_rows, report, note: None, starts: OnceLock::new() }
    }

    /// Returns the selection of these sets, for row groups of `sizes` rows.
    pub(crate) fn of_sizes(rows: Vec<RowSet>, sizes: &[u32]) -> Self {
        let num_rows = rows.iter().zip(sizes).map(|(set, &size)| u64::from(set.count(0..size))).sum();
        Self { rows, num_rows, report: Report::default(), note: None, starts: OnceLock::new() }
    }

    /// Returns the kept rows of each row group.
    pub(crate) fn sets(&self) -> &[RowSet] {
        &self.rows
    }

    /// Returns the number of kept rows before each row group of the snapshot, and finally of all.
    pub(crate) fn starts(&self, snapshot: &Snapshot) -> &[u64] {
        if let Some(starts) = self.starts.get() {
            return starts;
        }
        let counts = self.rows.iter().zip(&snapshot.row_groups);
        let counts = counts.map(|(set, of)| u64::from(set.count(0..of.num_rows)));
        let ends = counts.scan(0, |before, count| {
            *before += count;
            Some(*before)
        });
        let made = std::iter::once(0).chain(ends).collect();
        // Not computed inside `get_or_init`: a child forked meanwhile would wait for it forever.
        self.starts.get_or_init(|| made)
    }

    /// Returns those of the kept rows whose numbers among them are in `range`, as far as there are any.
    pub(crate) fn slice(&self, snapshot: &Snapshot, range: &Range<u64>) -> Self {
        let bounds = self.starts(snapshot).windows(2);
        let sets = self.rows.iter().zip(&snapshot.row_groups).zip(bounds).map(|((set, of), bounds)| {
            // The row group's own number for a kept row.
            let own = |number: u64| u32::try_from(number.clamp(bounds[0], bounds[1]) - bounds[0]).unwrap_or(u32::MAX);
            let extent = set.extent(0..of.num_rows, own(range.start)..own(range.end));
            match set.within(extent, of.num_rows) {
                // What is left may be smaller as runs.
                RowSet::Mask(mask) => RowSet::from_mask(mask),
                other => other,
            }
        });
        Self::of_sets(snapshot, sets.collect(), self.report)
    }

    /// Evaluates the conjunction of the filters.
    ///
    /// Reads the predicate columns of the rows that statistics do not decide: in one round trip, and up to two more if
    /// what they save is worth it; again for each batch of row groups if a number of rows is enough. Starts to read the
    /// payload.
    ///
    /// # Errors
    ///
    /// Those of reading, and [`Error::Evaluate`](crate::Error::Evaluate) if the filter fails on a value.
    pub(crate) async fn evaluate(
        snapshot: &Arc<Snapshot>,
        Sought { filters, within, enough, payload }: Sought<'_>,
        connections: Vec<Connection>,
        limits: Limits,
        progress: &Progress,
    ) -> Result<Self> {
        if filters.is_empty() {
            return Ok(Self::unfiltered(snapshot, within));
        }
        let start = Instant::now();
        let filter = Filter::all_of(filters, snapshot);
        let metrics = Arc::new(Metrics::default());
        let at_stage = |connection: Connection| connection.with_metrics(&metrics).at(Stage::Predicates);
        let connections: Vec<_> = connections.into_iter().map(at_stage).collect();
        let within = within.map(|within| &within.rows[..]);
        let wanted = scan::Wanted { filter: &filter, within, enough, payload };
        let (rows, mut report) =
            scan::select(snapshot, wanted, &connections, limits, Connection::round_trip_bytes, progress).await?;
        let counted = metrics.snapshot();
        (report.bytes, report.requests) = (counted.bytes_fetched, counted.requests);
        (report.indexes, report.predicates) = (metrics.of(Stage::Indexes), metrics.of(Stage::Predicates));
        report.elapsed = Some(start.elapsed());
        Ok(Self::of_sets(snapshot, rows, report))
    }

    /// Returns the selection as bytes, for [`Self::from_bytes`] in another process.
    pub fn to_bytes(&self, snapshot: &Snapshot) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::put_sets(&self.rows, &sizes(snapshot), &mut bytes);
        bytes
    }

    /// Restores the selection that [`Self::to_bytes`] wrote for the same snapshot; `None` for other bytes.
    pub fn from_bytes(snapshot: &Snapshot, mut bytes: &[u8]) -> Option<Self> {
        let rows = codec::take_sets(&mut bytes, &sizes(snapshot))?;
        bytes.is_empty().then(|| Self::of_sets(snapshot, rows, Report::default()))
    }

    /// Returns the kept rows of row group `index` of the snapshot.
    pub fn rows(&self, index: usize) -> &RowSet {
        &self.rows[index]
    }

    /// Returns the number of kept rows.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// Returns what a user may want to know about how the selection was made.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Returns the cost of making the selection.
    pub fn report(&self) -> Report {
        self.report
    }
}

/// Returns the number of rows of each row group.
fn sizes(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.row_groups.iter().map(|row_group| row_group.num_rows).collect()
}
