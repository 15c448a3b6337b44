//! Decodes in-memory objects, to measure decoders and to compare them.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
#[cfg(any(test, fuzzing))]
use arrow_select::take::take_record_batch;
use bytes::Bytes;

use super::parquet_columns::WantedRows;
#[cfg(any(test, fuzzing))]
use super::row_group::{Coded, Storing};
use super::row_group::{Decoders, RowGroupRead};
use super::{RowGroupRef, Snapshot};
#[cfg(any(test, fuzzing))]
use crate::decode::{self, Body, Misfit, Scratch};
use crate::error::{Error, Result};
use crate::rows::RowSet;

/// A row group of an in-memory object, some rows and columns of which are read repeatedly.
#[derive(Debug, Clone)]
pub struct Trial {
    rows: WantedRows,
    projection: Arc<[usize]>,
    object: Bytes,
}

impl Trial {
    /// Returns a trial of the rows `set` of row group `place` of the snapshot, whose object is `object`.
    pub fn new(snapshot: &Arc<Snapshot>, place: usize, object: &Bytes, set: RowSet) -> Option<Self> {
        let row_group = *snapshot.row_groups.get(place)?;
        let rows = WantedRows::new(snapshot, row_group, set, usize::MAX);
        let projection = (0..snapshot.schema.fields().len()).collect();
        Some(Self { rows, projection, object: object.clone() })
    }

    /// Returns the row group that is read.
    pub fn row_group(&self) -> RowGroupRef {
        self.rows.row_group
    }

    /// Returns the trial with only one of the dataset's columns.
    #[must_use]
    pub fn of_column(mut self, column: usize) -> Self {
        self.projection = Arc::new([column]);
        self
    }

    /// Returns the same rows in batches of at most `batch_rows`, which [`Self::batches`] returns.
    #[must_use]
    pub fn with_batch_rows(mut self, batch_rows: usize) -> Self {
        self.rows.batch_rows = batch_rows.max(1);
        self
    }

    /// Returns the trial with a memory limit for pages and values.
    #[must_use]
    pub fn within(mut self, memory_bytes: u64) -> Self {
        self.rows.memory_bytes = memory_bytes;
        self
    }

    /// Decodes all rows at once, as streams do.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`], and [`Error::ShortRead`] if the object ends too early.
    pub fn at_once(&self, decoders: Decoders) -> Result<RecordBatch> {
        let (read, bytes) = self.read(decoders)?;
        read.decode_at_once(bytes)
    }

    /// Decodes all rows, and stores them with `storing`.
    ///
    /// # Errors
    ///
    /// As for [`Self::at_once`].
    #[cfg(any(test, fuzzing))]
    pub(crate) fn onto(&self, storing: &dyn Storing) -> Result<Vec<RecordBatch>> {
        let (read, bytes) = self.read(Decoders::Own)?;
        read.decode_onto(bytes, storing)
    }

    /// Decodes the rows batch by batch, as filters do.
    ///
    /// # Errors
    ///
    /// As for [`Self::at_once`].
    pub fn batches(&self, decoders: Decoders) -> Result<Vec<RecordBatch>> {
        let (read, bytes) = self.read(decoders)?;
        read.decode(bytes)?.collect()
    }

    /// Decodes the rows of one column as dictionary keys, batch by batch, as text filters do; `None` if that is not
    /// possible.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn coded(&self) -> Option<Vec<RecordBatch>> {
        let (read, bytes) = self.read(Decoders::Own).ok()?;
        let mut rows = read.decode_coded(&bytes, usize::MAX)?;
        let mut batches = Vec::new();
        while rows.has_more() {
            batches.push(match rows.read_next()? {
                Coded::Values(values) => values,
                Coded::Numbers(numbers) => take_record_batch(&rows.dictionary()?, &numbers).ok()?,
            });
        }
        Some(batches)
    }

    /// Returns why our own decoders would abandon a root column of the object to the `parquet` crate after starting
    /// with it, or refuse it.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn misfit(&self, root: usize) -> Option<Misfit> {
        let WantedRows { row_group, set, num_rows, memory_bytes, .. } = &self.rows;
        let plan = decode::plan(self.rows.snapshot.fragment(*row_group), row_group.index, root, set)?;
        let bodies = plan.ranges().iter().map(|range| self.slice(range).map(Body::Here)).collect::<Option<_>>()?;
        plan.open(set, bodies, *memory_bytes, Scratch::default()).read(*num_rows).err()
    }

    fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        (start <= end && end <= self.object.len()).then(|| self.object.slice(start..end))
    }

    fn read(&self, decoders: Decoders) -> Result<(RowGroupRead, Vec<Bytes>)> {
        let fragment = self.rows.snapshot.fragment(self.rows.row_group);
        let roots: Vec<_> = self.projection.iter().filter_map(|&column| fragment.columns[column]).collect();
        let read = RowGroupRead::plan(self.rows.clone(), &self.projection, vec![roots], decoders)?;
        let size = self.object.len() as u64;
        let bytes = read.ranges().iter().map(|range| {
            let short = || Error::ShortRead { url: fragment.object.url.clone(), range: range.clone(), got: size };
            self.slice(range).ok_or_else(short)
        });
        let bytes = bytes.collect::<Result<_>>()?;
        Ok((read, bytes))
    }
}
