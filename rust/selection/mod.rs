//! Which rows of the dataset a query keeps: exact, known before training.
//!
//! [`sql`] turns text into a typed expression, [`prune`] decides row groups by statistics, [`evaluate`]
//! reads the predicate columns of the rest, and [`rows`] keeps the answer small.

mod evaluate;
pub(crate) mod floats;
pub(crate) mod numbers;
mod prune;
mod rows;
pub(crate) mod sql;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::split_conjunction;

use self::evaluate::Evaluator;
pub(crate) use self::evaluate::Limits;
use self::prune::{Pruner, Verdict};
pub use self::rows::RowSet;
pub(crate) use self::sql::unknown_column;
use crate::dataset::{RowGroupRef, Snapshot};
use crate::error::Result;
use crate::metrics::{Counted, Metrics, Progress, Stage};
use crate::source::Connection;

/// A Boolean SQL expression over the columns of one dataset, checked and ready to run.
#[derive(Debug, Clone)]
pub struct Filter {
    text: String,
    expr: Expr,
    /// The dataset columns that it reads.
    columns: Vec<usize>,
}

impl Filter {
    /// Makes what all filters of a process share.
    pub fn prepare() {
        sql::session();
    }

    /// Parses and type-checks `text` against the columns of `snapshot`. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`](crate::Error::Sql), [`Error::UnknownColumn`](crate::Error::UnknownColumn) and
    /// [`Error::NotBoolean`](crate::Error::NotBoolean).
    pub fn parse(text: &str, snapshot: &Arc<Snapshot>) -> Result<Self> {
        let filter = Self::from_expr(text.into(), sql::parse(text, &snapshot.schema)?, snapshot);
        Evaluator::try_new(snapshot, &filter.expr, &filter.columns, text)?;
        Ok(filter)
    }

    /// Returns a checked expression over the columns of `snapshot` as a filter; `text` is the query it stands in.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`](crate::Error::Sql) where it cannot be evaluated.
    pub(crate) fn try_from_expr(text: String, expr: Expr, snapshot: &Arc<Snapshot>) -> Result<Self> {
        let filter = Self::from_expr(text, expr, snapshot);
        Evaluator::try_new(snapshot, &filter.expr, &filter.columns, &filter.text)?;
        Ok(filter)
    }

    fn from_expr(text: String, expr: Expr, snapshot: &Snapshot) -> Self {
        let columns: BTreeSet<usize> =
            expr.column_refs().into_iter().filter_map(|column| snapshot.schema.index_of(&column.name).ok()).collect();
        Self { text, expr, columns: columns.into_iter().collect() }
    }

    /// Returns the expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether no row with a NULL in the dataset's column `column` can pass.
    pub(crate) fn rejects_null(&self, column: usize, snapshot: &Arc<Snapshot>) -> bool {
        split_conjunction(&self.expr).into_iter().any(|part| {
            let part = Self::from_expr(self.text.clone(), part.clone(), snapshot);
            part.columns == [column]
                && Evaluator::try_new(snapshot, &part.expr, &part.columns, &part.text)
                    .is_ok_and(|evaluator| evaluator.rejects_nulls())
        })
    }

    fn all_of(filters: &[Self], snapshot: &Snapshot) -> Self {
        let text = filters.iter().map(|filter| format!("({})", filter.text)).collect::<Vec<_>>().join(" AND ");
        let exprs: Vec<_> = filters.iter().map(|filter| filter.expr.clone()).collect();
        Self::from_expr(text, sql::all_of(&exprs), snapshot)
    }
}

/// The kept rows of every row group of a snapshot.
#[derive(Debug)]
pub struct Selection {
    rows: Vec<RowSet>,
    num_rows: u64,
    report: Report,
}

/// What making a selection took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Row groups that statistics excluded.
    pub num_pruned: u64,
    /// Row groups that statistics took whole, unread.
    pub num_whole: u64,
    /// Row groups whose predicate columns were read.
    pub num_read: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Requests made.
    pub requests: u64,
    /// Whether it was made here: a selection that came from elsewhere tells nothing of what it took.
    pub is_known: bool,
    /// Requests for column indexes and bloom filters.
    pub indexes: Counted,
    /// Requests for predicate columns.
    pub predicates: Counted,
    /// Time for deciding by statistics.
    pub pruning: Duration,
    /// Time for all of it.
    pub elapsed: Duration,
}

impl Selection {
    /// Returns the selection of all rows.
    pub fn all(snapshot: &Snapshot) -> Self {
        let num_whole = snapshot.row_groups.len() as u64;
        let report = Report { num_whole, is_known: true, ..Report::default() };
        Self::of_sets(snapshot, vec![RowSet::All; snapshot.row_groups.len()], report)
    }

    /// Returns the selection of the rows in `rows`, one set for each row group of the snapshot.
    pub(crate) fn of_sets(snapshot: &Snapshot, rows: Vec<RowSet>, report: Report) -> Self {
        let num_rows =
            rows.iter().zip(&snapshot.row_groups).map(|(set, of)| u64::from(set.count(0..of.num_rows))).sum();
        Self { rows, num_rows, report }
    }

    /// Evaluates the conjunction of `filters`.
    ///
    /// Reads the predicate columns of the row groups that statistics do not decide: one round trip deep.
    ///
    /// # Errors
    ///
    /// Those of reading, and [`Error::Evaluate`](crate::Error::Evaluate) where the filter fails on a value.
    pub(crate) async fn evaluate(
        snapshot: &Arc<Snapshot>,
        filters: &[Filter],
        connections: Vec<Connection>,
        limits: Limits,
        progress: &Progress,
    ) -> Result<Self> {
        if filters.is_empty() {
            return Ok(Self::all(snapshot));
        }
        let start = Instant::now();
        let filter = Filter::all_of(filters, snapshot);
        let mut rows = judge(snapshot, &filter);
        let open: Vec<usize> = (0..rows.len()).filter(|&row_group| rows[row_group].is_none()).collect();
        let mut report = Report {
            num_pruned: rows.iter().filter(|set| **set == Some(RowSet::None)).count() as u64,
            num_whole: rows.iter().filter(|set| **set == Some(RowSet::All)).count() as u64,
            num_read: open.len() as u64,
            is_known: true,
            pruning: start.elapsed(),
            ..Report::default()
        };
        progress.start(open.len() as u64);
        let metrics = Arc::new(Metrics::default());
        let at_stage = |connection: Connection| connection.with_metrics(&metrics).at(Stage::Predicates);
        let connections: Vec<_> = connections.into_iter().map(at_stage).collect();
        let evaluator = Evaluator::try_new(snapshot, &filter.expr, &filter.columns, &filter.text)?;
        let targets: Vec<RowGroupRef> = open.iter().map(|&row_group| snapshot.row_groups[row_group]).collect();
        let found = evaluator.evaluate(&connections, &targets, limits, progress).await?;
        for (row_group, set) in open.into_iter().zip(found) {
            rows[row_group] = Some(set);
        }
        let counted = metrics.snapshot();
        (report.bytes, report.requests) = (counted.bytes_fetched, counted.requests);
        (report.indexes, report.predicates) = (metrics.of(Stage::Indexes), metrics.of(Stage::Predicates));
        report.elapsed = start.elapsed();
        Ok(Self::of_sets(snapshot, rows.into_iter().map(|set| set.unwrap_or(RowSet::None)).collect(), report))
    }

    /// Returns the selection as bytes, for [`Self::from_bytes`] in another process.
    pub fn to_bytes(&self, snapshot: &Snapshot) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (set, row_group) in self.rows.iter().zip(&snapshot.row_groups) {
            set.encode(row_group.num_rows, &mut bytes);
        }
        bytes
    }

    /// Returns the selection that [`Self::to_bytes`] wrote for the same snapshot; `None` for other bytes.
    pub fn from_bytes(snapshot: &Snapshot, mut bytes: &[u8]) -> Option<Self> {
        let rows = snapshot.row_groups.iter().map(|row_group| RowSet::decode(row_group.num_rows, &mut bytes));
        let rows = rows.collect::<Option<Vec<_>>>()?;
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

    /// Returns what making the selection took.
    pub fn report(&self) -> Report {
        self.report
    }
}

/// Returns what statistics decide of each row group of the snapshot; `None` where the rows must be read.
fn judge(snapshot: &Snapshot, filter: &Filter) -> Vec<Option<RowSet>> {
    let pruner = Pruner::new(&filter.expr, &snapshot.schema, &filter.columns);
    let mut verdicts: Vec<Vec<Verdict>> = Vec::with_capacity(snapshot.fragments.len());
    verdicts.extend(snapshot.fragments.iter().map(|fragment| pruner.judge(fragment)));
    let verdict_of = |row_group: &RowGroupRef| verdicts[row_group.fragment as usize][row_group.index as usize];
    snapshot
        .row_groups
        .iter()
        .map(|row_group| match verdict_of(row_group) {
            Verdict::Nothing => Some(RowSet::None),
            Verdict::Everything => Some(RowSet::All),
            Verdict::Unknown => None,
        })
        .collect()
}
