//! Evaluates a filter on the rows that statistics leave open.
//!
//! The predicate columns of all those row groups are requested at once, as far as memory allows, so
//! the number of dependent round trips does not grow with the row groups. Decoding and evaluation run
//! on blocking threads, never on the IO runtime.

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
use crate::dataset::{RowGroupRead, RowGroupRef, Snapshot};
use crate::error::{Error, Result};
use crate::metrics::Progress;
use crate::panics;
use crate::source::{Connection, read_ranges};

/// Row groups whose bytes are asked for at the same time, memory permitting.
const MAX_ROW_GROUPS_IN_FLIGHT: usize = 256;

/// Rows evaluated at a time: large enough to amortise the expression's overhead, small enough for the cache.
const EVALUATION_BATCH_ROWS: usize = 8192;

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
        let mut done: Vec<(usize, RowSet)> = stream::iter(row_groups.iter().copied().enumerate())
            .map(|(place, row_group)| {
                let (memory, cores) = (Arc::clone(&memory), Arc::clone(&cores));
                async move {
                    let rows = self.evaluate_one(connections, row_group, limits, &memory, cores).await?;
                    progress.advance(1);
                    Ok::<_, Error>((place, rows))
                }
            })
            .buffer_unordered(MAX_ROW_GROUPS_IN_FLIGHT)
            .try_collect()
            .await?;
        done.sort_unstable_by_key(|(place, _)| *place);
        Ok(done.into_iter().map(|(_, rows)| rows).collect())
    }

    async fn evaluate_one(
        &self,
        connections: &[Connection],
        row_group: RowGroupRef,
        limits: Limits,
        memory: &Semaphore,
        cores: Arc<Semaphore>,
    ) -> Result<RowSet> {
        let fragment = self.snapshot.fragment(row_group);
        let read = RowGroupRead::try_new(&self.snapshot, row_group, &self.columns, None, EVALUATION_BATCH_ROWS)?;
        let num_bytes: u64 = read.ranges().iter().map(|range| range.end - range.start).sum();
        // A row group larger than the limit goes alone rather than never.
        let wanted = permits(num_bytes).min(permits(limits.memory_bytes));
        let _memory = memory.acquire_many(wanted).await.map_err(|_| Error::Closed { reason: "cancelled" })?;
        let bytes = read_ranges(&connections[fragment.store], &fragment.object, read.ranges()).await?;
        let _core = cores.acquire_owned().await.map_err(|_| Error::Closed { reason: "cancelled" })?;
        let this = self.clone();
        let evaluated =
            connections[fragment.store].io.spawn_blocking(move || this.evaluate_bytes(row_group, read, bytes));
        evaluated.await.map_err(|panic| Error::Internal { reason: panic.to_string() })?
    }

    fn evaluate_bytes(&self, row_group: RowGroupRef, read: RowGroupRead, bytes: Vec<bytes::Bytes>) -> Result<RowSet> {
        let mut mask = BooleanBufferBuilder::new(row_group.num_rows as usize);
        for batch in read.decode(bytes)? {
            let passed = self.mask(&batch?).map_err(|reason| Error::Evaluate {
                url: self.snapshot.fragment(row_group).object.url.clone(),
                row_group: row_group.index as usize,
                reason,
            })?;
            mask.append_buffer(&passed);
        }
        Ok(RowSet::from_mask(mask.finish()))
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

/// What an evaluation may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Compressed bytes in hand at once.
    pub(crate) memory_bytes: u64,
    /// Row groups decoded at once.
    pub(crate) num_threads: usize,
}

fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}
