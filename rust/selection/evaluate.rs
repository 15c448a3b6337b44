//! Evaluates a filter on the rows that statistics leave open.
//!
//! The predicate columns of all those row groups are requested at once, as far as memory allows, so
//! the number of dependent round trips does not grow with the row groups. Large row groups are cut at
//! their pages. Decoding and evaluation run
//! on blocking threads, never on the IO runtime.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, new_null_array};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use arrow_schema::Schema;
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::PhysicalExpr;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::floats::canonical_columns;
use super::rows::RowSet;
use super::sql;
use crate::dataset::{ColumnLayout, RowGroupRead, RowGroupRef, Snapshot};
use crate::error::{Error, Result};
use crate::metrics::Progress;
use crate::panics;
use crate::source::{Connection, read_ranges};

/// Reads whose bytes are asked for at the same time, memory permitting.
const MAX_READS_IN_FLIGHT: usize = 256;

/// Rows evaluated at a time: large enough to amortise the expression's overhead, small enough for the cache. Fewer where
/// they are large.
const EVALUATION_BATCH_ROWS: u64 = 8192;

/// What is read at once, and what is evaluated at a time, take at most this part of the memory, if pages allow.
const READS_IN_MEMORY: u64 = 8;

/// Memory is handed out in units of this size, because a semaphore counts in `u32`.
const PERMIT_BYTES: u64 = 1024;

/// A filter ready to run on batches of its columns.
#[derive(Debug, Clone)]
pub(super) struct Evaluator {
    snapshot: Arc<Snapshot>,
    /// The dataset columns that the filter reads.
    columns: Arc<[usize]>,
    predicate: Arc<dyn PhysicalExpr>,
}

impl Evaluator {
    /// Compiles `filter` for batches of `columns`.
    ///
    /// Evaluates it once on no rows, so that what must fail on every row (a literal that cannot be cast) fails now.
    pub(super) fn try_new(snapshot: &Arc<Snapshot>, filter: &Expr, columns: &[usize], text: &str) -> Result<Self> {
        let unusable = |reason| Error::Sql { sql: sql::shortened(text), reason };
        let schema = Schema::new(columns.iter().map(|&i| snapshot.schema.field(i).clone()).collect::<Vec<_>>());
        let df_schema = DFSchema::try_from(schema.clone()).map_err(|error| unusable(sql::reason(&error)))?;
        let predicate = sql::session()
            .create_physical_expr(filter.clone(), &df_schema)
            .map_err(|error| unusable(sql::reason(&error)))?;
        let this = Self { snapshot: Arc::clone(snapshot), columns: columns.into(), predicate };
        this.mask(&RecordBatch::new_empty(Arc::new(schema))).map_err(unusable)?;
        Ok(this)
    }

    /// Returns the kept rows of each of `row_groups`, in their order.
    pub(super) async fn evaluate(
        &self,
        connections: &[Connection],
        row_groups: &[RowGroupRef],
        limits: Limits,
        progress: &Progress,
    ) -> Result<Vec<RowSet>> {
        let memory = Arc::new(Semaphore::new(permits(limits.memory_bytes) as usize));
        let cores = Arc::new(Semaphore::new(limits.num_threads));
        let reads = self.reads(row_groups, limits)?;
        let mut done: Vec<(usize, BooleanBuffer)> = stream::iter(reads.into_iter().enumerate())
            .map(|(number, read)| {
                let (memory, cores) = (Arc::clone(&memory), Arc::clone(&cores));
                async move {
                    let passed = self.evaluate_one(connections, &read, limits, &memory, cores).await?;
                    progress.advance(u64::from(read.rows.end == read.row_group.num_rows));
                    Ok::<_, Error>((number, passed))
                }
            })
            .buffer_unordered(MAX_READS_IN_FLIGHT)
            .try_collect()
            .await?;
        done.sort_unstable_by_key(|(number, _)| *number);
        let mut done = done.into_iter().map(|(_, passed)| passed);
        let sets = row_groups.iter().map(|row_group| {
            let mut mask = BooleanBufferBuilder::new(row_group.num_rows as usize);
            while mask.len() < row_group.num_rows as usize {
                let Some(passed) = done.next() else { break };
                mask.append_buffer(&passed);
            }
            RowSet::from_mask(mask.finish())
        });
        Ok(sets.collect())
    }

    /// Cuts row groups into what is read at once, in their order.
    fn reads(&self, row_groups: &[RowGroupRef], limits: Limits) -> Result<Vec<Read>> {
        let layouts = ColumnLayout::of_all(&self.snapshot, &self.columns, limits.memory_bytes);
        let mut reads = Vec::with_capacity(row_groups.len());
        for &row_group in row_groups {
            let (fragment, layout) = (self.snapshot.fragment(row_group), &layouts[row_group.fragment as usize]);
            let gap = self.snapshot.gap_bytes(fragment);
            let bounds = (limits.memory_bytes / READS_IN_MEMORY, limits.memory_bytes / 4);
            for rows in fragment.cut_by_cost(layout, row_group.index, 0..row_group.num_rows, gap, bounds) {
                let cost = fragment.read_cost(layout, row_group.index, &rows, gap);
                let num_rows = u64::from(rows.end - rows.start).max(1);
                let of_rows = cost.working.saturating_add(cost.decoded);
                let row_bytes = of_rows.div_ceil(num_rows).max(1);
                let batch_rows = (limits.memory_bytes / READS_IN_MEMORY / row_bytes).clamp(1, EVALUATION_BATCH_ROWS);
                // Of the arrays there is one batch at a time, of the pages one for each column.
                let of_batch = row_bytes.saturating_mul(batch_rows.min(num_rows));
                let bytes = cost.fetched.saturating_add(of_batch).saturating_add(cost.working.min(cost.fetched));
                if let Some(limit_bytes) = limits.refused_above.filter(|limit| bytes > *limit) {
                    return Err(fragment.memory_error(row_group.index, limit_bytes, bytes));
                }
                let batch_rows = usize::try_from(batch_rows).unwrap_or(usize::MAX);
                reads.push(Read { row_group, rows, batch_rows, bytes });
            }
        }
        Ok(reads)
    }

    async fn evaluate_one(
        &self,
        connections: &[Connection],
        read: &Read,
        limits: Limits,
        memory: &Semaphore,
        cores: Arc<Semaphore>,
    ) -> Result<BooleanBuffer> {
        let &Read { row_group, batch_rows, bytes, .. } = read;
        let fragment = self.snapshot.fragment(row_group);
        let is_whole = read.rows == (0..row_group.num_rows);
        let runs = (!is_whole).then_some(std::slice::from_ref(&read.rows));
        let planned = RowGroupRead::try_new(&self.snapshot, row_group, &self.columns, runs, batch_rows)?;
        // What is larger than the memory and not refused goes alone.
        let wanted = permits(bytes).min(permits(limits.memory_bytes));
        let _memory = memory.acquire_many(wanted).await.map_err(|_| Error::Closed { reason: "cancelled" })?;
        let bytes = read_ranges(&connections[fragment.store], &fragment.object, planned.ranges()).await?;
        let _core = cores.acquire_owned().await.map_err(|_| Error::Closed { reason: "cancelled" })?;
        let this = self.clone();
        let evaluated =
            connections[fragment.store].io.spawn_blocking(move || this.evaluate_bytes(row_group, planned, bytes));
        evaluated.await.map_err(|panic| Error::Internal { reason: panic.to_string() })?
    }

    fn evaluate_bytes(
        &self,
        row_group: RowGroupRef,
        read: RowGroupRead,
        bytes: Vec<bytes::Bytes>,
    ) -> Result<BooleanBuffer> {
        let mut mask = BooleanBufferBuilder::new(row_group.num_rows as usize);
        for batch in read.decode(bytes)? {
            let passed = self.mask(&batch?).map_err(|reason| Error::Evaluate {
                url: self.snapshot.fragment(row_group).object.url.clone(),
                row_group: row_group.index as usize,
                reason,
            })?;
            mask.append_buffer(&passed);
        }
        Ok(mask.finish())
    }

    /// Returns whether a row of NULLs is not kept.
    pub(super) fn rejects_nulls(&self) -> bool {
        let fields = self.columns.iter().map(|&column| self.snapshot.schema.field(column).clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let nulls = schema.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
        RecordBatch::try_new(schema, nulls)
            .is_ok_and(|row| self.mask(&row).is_ok_and(|mask| mask.count_set_bits() == 0))
    }

    /// Returns one bit for each row of `batch`: set where the filter is true, clear where it is false or NULL.
    fn mask(&self, batch: &RecordBatch) -> Result<BooleanBuffer, String> {
        // Functions panic on some values, such as those that make a text of more than 2 GiB.
        panics::caught(|| self.evaluate_mask(batch)).unwrap_or_else(Err)
    }

    fn evaluate_mask(&self, batch: &RecordBatch) -> Result<BooleanBuffer, String> {
        let batch = canonical_columns(batch).map_err(|error| error.to_string())?;
        let value = self
            .predicate
            .evaluate(&batch)
            .and_then(|value| value.into_array(batch.num_rows()))
            .map_err(|error| sql::reason(&error))?;
        let Some(passed) = value.as_boolean_opt() else {
            return Ok(BooleanBuffer::new_unset(batch.num_rows())); // the untyped NULL
        };
        Ok(match passed.nulls() {
            Some(valid) => passed.values() & valid.inner(),
            None => passed.values().clone(),
        })
    }
}

/// Rows of a row group that are read at once.
struct Read {
    row_group: RowGroupRef,
    rows: Range<u32>,
    batch_rows: usize,
    /// Bytes that are held.
    bytes: u64,
}

/// What an evaluation may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes in hand at once.
    pub(crate) memory_bytes: u64,
    /// Bytes above which a read is an error instead of going alone.
    pub(crate) refused_above: Option<u64>,
    /// Row groups decoded at once.
    pub(crate) num_threads: usize,
}

fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}
