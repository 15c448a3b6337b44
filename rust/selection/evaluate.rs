//! Evaluates an expression on batches of the columns that it reads, and on reads of them.

use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, new_null_array};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use arrow_schema::{ArrowError, Field, FieldRef, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::PhysicalExpr;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::compared::Compared;
use crate::batch;
use crate::engine::floats::canonical_columns;
use crate::engine::{self, advice};
use crate::error::{Error, Result};
use crate::panics;
use crate::snapshot::{Coded, RowGroupRead, RowGroupRef, Snapshot};

/// Dictionary values are evaluated instead of rows if there are at least this many rows per value.
const ROWS_PER_VALUE: usize = 2;

/// A filter, or a part of one, ready to run on batches of its columns.
#[derive(Debug, Clone)]
pub(super) struct Evaluator {
    snapshot: Arc<Snapshot>,
    /// The dataset columns that the filter reads.
    columns: Arc<[usize]>,
    predicate: Arc<dyn PhysicalExpr>,
    /// The same filter, if it only compares floats.
    compared: Option<Compared>,
    /// The result for a row of NULLs, once requested.
    passes_nulls: Arc<OnceLock<Option<bool>>>,
}

impl Evaluator {
    /// Compiles `filter` for batches of `columns`.
    ///
    /// [Tries it out](try_out), so that what would fail on every row (a literal that cannot be cast) fails now.
    pub(super) fn try_new(snapshot: &Arc<Snapshot>, filter: &Expr, columns: &[usize], text: &str) -> Result<Self> {
        let unusable = |reason| Error::Sql { sql: engine::shortened(text), reason };
        let schema = Schema::new(columns.iter().map(|&i| snapshot.columns.field(i).clone()).collect::<Vec<_>>());
        let df_schema = DFSchema::try_from(schema.clone()).map_err(|error| unusable(engine::reason(&error)))?;
        let planned = panics::caught(|| engine::session().create_physical_expr(filter.clone(), &df_schema));
        let predicate = planned.map_err(unusable)?.map_err(|error| unusable(engine::reason(&error)))?;
        let compared = Compared::of(filter).filter(|_| columns.len() == 1);
        let (snapshot, columns) = (Arc::clone(snapshot), columns.into());
        let this = Self { snapshot, columns, predicate, compared, passes_nulls: Arc::default() };
        aside(|| try_out(&Arc::new(schema), |rows| this.caught_mask(rows))).map_err(unusable)?;
        Ok(this)
    }

    /// Returns the same without the native comparison of floats.
    #[cfg(any(test, fuzzing))]
    pub(super) fn without_compared(mut self) -> Self {
        self.compared = None;
        self
    }

    /// Returns the dataset columns that it reads.
    pub(super) fn columns(&self) -> &Arc<[usize]> {
        &self.columns
    }

    /// Returns one bit for each row of a read, given the fetched `bytes`.
    ///
    /// # Errors
    ///
    /// Those of decoding, and [`Error::Evaluate`] if the expression fails on a value.
    pub(super) fn evaluate(
        &self,
        row_group: RowGroupRef,
        read: RowGroupRead,
        bytes: Vec<Bytes>,
    ) -> Result<BooleanBuffer> {
        if let Some(mask) = self.evaluate_coded(&read, &bytes) {
            return Ok(mask);
        }
        let mut mask = BooleanBufferBuilder::new(row_group.num_rows as usize);
        for batch in read.decode(bytes)? {
            let passed = self.mask(&batch?).map_err(|reason| Error::Evaluate {
                url: self.snapshot.fragment(row_group).object.url.clone(),
                row_group: row_group.index as usize,
                reason: advice::with_column(reason, self.fields()),
            })?;
            mask.append_buffer(&passed);
        }
        Ok(mask.finish())
    }

    /// Returns the fields of the columns that it reads.
    fn fields(&self) -> impl Iterator<Item = FieldRef> {
        self.columns.iter().map(|&column| Arc::clone(&self.snapshot.columns.fields()[column]))
    }

    /// Like [`Self::evaluate`], for a column with a dictionary that has fewer values than there are rows: each value is
    /// evaluated once. `None` if that is not possible, or fails: perhaps no row has the value that failed.
    fn evaluate_coded(&self, read: &RowGroupRead, bytes: &[Bytes]) -> Option<BooleanBuffer> {
        let mut rows = read.decode_coded(bytes, read.num_rows() / ROWS_PER_VALUE)?;
        let mut passing: Option<Vec<bool>> = None;
        let mut mask = BooleanBufferBuilder::new(read.num_rows());
        while rows.has_more() {
            let numbers = match rows.read_next()? {
                Coded::Numbers(numbers) => numbers,
                Coded::Values(batch) => {
                    mask.append_buffer(&self.mask(&batch).ok()?);
                    continue;
                }
            };
            let passing = match &passing {
                Some(passing) => passing,
                None => passing.insert(self.mask(&rows.dictionary()?).ok()?.iter().collect()),
            };
            let passes = |row| passing.get(numbers.value(row) as usize).is_some_and(|passes| *passes);
            let passed = BooleanBuffer::collect_bool(numbers.len(), passes);
            mask.append_buffer(&match numbers.nulls() {
                None => passed,
                Some(valid) if self.passes_nulls()? => &passed | &!valid.inner(),
                Some(valid) => &passed & valid.inner(),
            });
        }
        Some(mask.finish())
    }

    /// Returns whether a row of NULLs is kept; `None` if the filter fails on it.
    fn passes_nulls(&self) -> Option<bool> {
        if let Some(passes) = self.passes_nulls.get() {
            return *passes;
        }
        let fields = self.columns.iter().map(|&column| self.snapshot.columns.field(column).clone());
        let row = row_of_nulls(fields).ok();
        let passes = row.and_then(|row| self.mask(&row).ok()).map(|mask| mask.count_set_bits() > 0);
        // Not computed inside `get_or_init`: a child forked meanwhile would wait for it forever.
        *self.passes_nulls.get_or_init(|| passes)
    }

    /// Returns whether a row of NULLs is not kept.
    pub(super) fn rejects_nulls(&self) -> bool {
        aside(|| self.passes_nulls()) == Some(false)
    }

    /// Returns one bit for each row of `batch`: set if the filter is true, clear if it is false or NULL.
    pub(super) fn mask(&self, batch: &RecordBatch) -> Result<BooleanBuffer, String> {
        // Some functions fail without rows.
        if batch.num_rows() == 0 { Ok(BooleanBuffer::new_unset(0)) } else { self.caught_mask(batch) }
    }

    fn caught_mask(&self, batch: &RecordBatch) -> Result<BooleanBuffer, String> {
        // Functions panic on some values, such as those that make a text of more than 2 GiB.
        panics::caught(|| self.evaluate_mask(batch)).unwrap_or_else(Err)
    }

    fn evaluate_mask(&self, batch: &RecordBatch) -> Result<BooleanBuffer, String> {
        let compared = self.compared.as_ref().zip(batch.columns().first());
        if let Some(mask) = compared.and_then(|(compared, column)| compared.mask(column)) {
            return Ok(mask);
        }
        let batch = canonical_columns(batch).map_err(|error| error.to_string())?;
        let value = self
            .predicate
            .evaluate(&batch)
            .and_then(|value| value.into_array(batch.num_rows()))
            .map_err(|error| engine::reason(&error))?;
        let Some(passed) = value.as_boolean_opt() else {
            return Ok(BooleanBuffer::new_unset(batch.num_rows())); // the untyped NULL
        };
        Ok(match passed.nulls() {
            Some(valid) => passed.values() & valid.inner(),
            None => passed.values().clone(),
        })
    }
}

/// Evaluates an expression on no rows, or on a row of NULLs if a function needs some.
///
/// # Errors
///
/// Why it fails on no rows, if it also fails on NULLs.
pub(crate) fn try_out<T>(
    schema: &SchemaRef,
    evaluate: impl Fn(&RecordBatch) -> Result<T, String>,
) -> Result<(), String> {
    let Err(reason) = evaluate(&RecordBatch::new_empty(Arc::clone(schema))) else { return Ok(()) };
    let row = row_of_nulls(schema.fields().iter().map(|field| field.as_ref().clone()));
    if row.is_ok_and(|row| evaluate(&row).is_ok()) { Ok(()) } else { Err(reason) }
}

fn row_of_nulls(fields: impl Iterator<Item = Field>) -> Result<RecordBatch, ArrowError> {
    let schema = Schema::new(fields.map(|field| field.with_nullable(true)).collect::<Vec<_>>());
    let nulls = schema.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
    batch::of_columns(Arc::new(schema), nulls, 1)
}

/// Runs work that may wait for requests, such as Python functions that read another dataset, so that tasks of this
/// runtime thread continue elsewhere.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    let is_of_requests =
        Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_of_requests { tokio::task::block_in_place(work) } else { work() }
}
