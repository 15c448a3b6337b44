//! Reads rows of one row group: which bytes, then which arrays.
//!
//! Sans-IO: a [`RowGroupRead`] names the byte ranges it needs, somebody fetches them, and
//! [`RowGroupRead::decode`] turns them into batches of the dataset's types on whatever thread it is
//! called. With an offset index only the pages that hold wanted rows are named.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::Schema;
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowSelection};
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use parquet::errors::ParquetError;

use super::{RowGroupRef, Snapshot, schema};
use crate::error::{Error, Result};
use crate::panics;

/// One read of some rows and columns of one row group.
#[derive(Debug)]
pub(crate) struct RowGroupRead {
    snapshot: Arc<Snapshot>,
    row_group: RowGroupRef,
    /// The dataset's columns to return, in this order.
    projection: Arc<[usize]>,
    /// `None` where the object has none of the columns.
    decoder: Option<ParquetPushDecoder>,
    ranges: Vec<Range<u64>>,
    num_rows: usize,
}

impl RowGroupRead {
    /// Plans the read of the rows `runs` (`None`: all) and the dataset columns `projection`, in batches of at most
    /// `batch_rows`.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] when the footer or the offset index contradicts itself.
    pub(crate) fn try_new(
        snapshot: &Arc<Snapshot>,
        row_group: RowGroupRef,
        projection: &Arc<[usize]>,
        runs: Option<&[Range<u32>]>,
        batch_rows: usize,
    ) -> Result<Self> {
        let fragment = snapshot.fragment(row_group);
        let roots: Vec<_> = projection.iter().filter_map(|&column| fragment.columns[column]).collect();
        let num_rows = runs
            .map_or(row_group.num_rows as usize, |runs| runs.iter().map(|run| (run.end - run.start) as usize).sum());
        let (mut decoder, mut ranges) = (None, Vec::new());
        if !roots.is_empty() && num_rows > 0 {
            let failed = |source| decode_error(snapshot, row_group, source);
            let plan = || {
                let mut planned = decoder_for(snapshot, row_group, roots, runs, batch_rows)?;
                let needed = planned.try_next_reader()?;
                Ok((planned, needed))
            };
            let (planned, needed) = caught(plan).map_err(failed)?;
            if let DecodeResult::NeedsData(needed) = needed {
                check_inside(&needed, snapshot, row_group).map_err(failed)?;
                ranges = needed;
            }
            decoder = Some(planned);
        }
        Ok(Self {
            snapshot: Arc::clone(snapshot),
            row_group,
            projection: Arc::clone(projection),
            decoder,
            ranges,
            num_rows,
        })
    }

    /// Returns the byte ranges to fetch, in the order in which [`Self::decode`] wants them.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns the batches of the rows and columns asked for; `bytes` holds one buffer for each of [`Self::ranges`].
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] on corrupt pages, [`Error::Cast`] on values that do not fit the dataset's type.
    pub(crate) fn decode(mut self, bytes: Vec<Bytes>) -> Result<Batches> {
        let ranges = std::mem::take(&mut self.ranges);
        let mut reader = None;
        if let Some(decoder) = &mut self.decoder {
            let failed = |source| decode_error(&self.snapshot, self.row_group, source);
            decoder.push_ranges(ranges, bytes).map_err(failed)?;
            reader = match caught(|| decoder.try_next_reader()).map_err(failed)? {
                DecodeResult::Data(reader) => Some(reader),
                DecodeResult::Finished => None,
                DecodeResult::NeedsData(more) => {
                    let source = ParquetError::General(format!("the decoder asked twice for bytes, then for {more:?}"));
                    return Err(failed(source));
                }
            };
        }
        self.decoder = None;
        Ok(Batches { remaining_rows: self.num_rows, read: self, reader })
    }

    fn conform(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        schema::conform(&self.snapshot, self.row_group, &self.projection, batch)
    }
}

fn decoder_for(
    snapshot: &Snapshot,
    row_group: RowGroupRef,
    roots: Vec<usize>,
    runs: Option<&[Range<u32>]>,
    batch_rows: usize,
) -> Result<ParquetPushDecoder, ParquetError> {
    let reader = &snapshot.fragment(row_group).reader;
    let mut builder = ParquetPushDecoderBuilder::new_with_metadata(reader.clone())
        .with_row_groups(vec![row_group.index as usize])
        .with_projection(ProjectionMask::roots(reader.parquet_schema(), roots))
        .with_batch_size(batch_rows.max(1));
    if let Some(runs) = runs {
        let runs = runs.iter().map(|run| run.start as usize..run.end as usize);
        builder = builder.with_row_selection(RowSelection::from_consecutive_ranges(runs, row_group.num_rows as usize));
    }
    builder.build()
}

/// The batches of one [`RowGroupRead`], decoded as they are asked for.
pub(crate) struct Batches {
    read: RowGroupRead,
    reader: Option<ParquetRecordBatchReader>,
    remaining_rows: usize,
}

impl Batches {
    /// Returns all batches as one, without a copy where there is only one.
    ///
    /// # Errors
    ///
    /// As [`RowGroupRead::decode`].
    pub(crate) fn into_one(mut self) -> Result<RecordBatch> {
        let Some(first) = self.next().transpose()? else { return self.read.conform(&rows_without_columns(0)) };
        let Some(second) = self.next().transpose()? else { return Ok(first) };
        let (schema, row_group) = (first.schema(), self.read.row_group);
        let snapshot = Arc::clone(&self.read.snapshot);
        let mut batches = vec![first, second];
        for batch in self {
            batches.push(batch?);
        }
        arrow_select::concat::concat_batches(&schema, &batches)
            .map_err(|source| decode_error(&snapshot, row_group, source.into()))
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining_rows == 0 {
            return None;
        }
        let batch = match &mut self.reader {
            None => rows_without_columns(self.remaining_rows),
            Some(reader) => match caught(|| reader.next().transpose().map_err(ParquetError::from)) {
                Ok(Some(batch)) => batch,
                Err(source) => {
                    self.remaining_rows = 0;
                    return Some(Err(decode_error(&self.read.snapshot, self.read.row_group, source)));
                }
                Ok(None) => {
                    let missing = std::mem::take(&mut self.remaining_rows);
                    let source = ParquetError::EOF(format!("{missing} rows are missing from the pages"));
                    return Some(Err(decode_error(&self.read.snapshot, self.read.row_group, source)));
                }
            },
        };
        self.remaining_rows = self.remaining_rows.saturating_sub(batch.num_rows());
        let conformed = panics::caught(|| self.read.conform(&batch));
        Some(
            conformed
                .unwrap_or_else(|said| Err(decode_error(&self.read.snapshot, self.read.row_group, damaged(&said)))),
        )
    }
}

/// Decodes, and returns a panic as an error: the decoder has some left for corrupt pages. What it was at work on is not
/// used again.
fn caught<T>(decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    panics::caught(decode).unwrap_or_else(|said| Err(damaged(&said)))
}

fn damaged(said: &str) -> ParquetError {
    ParquetError::General(format!("a page or its index is corrupt: {said}"))
}

/// Refuses ranges outside of the object, which a corrupt offset index may claim.
fn check_inside(ranges: &[Range<u64>], snapshot: &Snapshot, row_group: RowGroupRef) -> Result<(), ParquetError> {
    let size = snapshot.fragment(row_group).object.size_bytes.unwrap_or(u64::MAX);
    match ranges.iter().find(|range| range.start > range.end || range.end > size) {
        None => Ok(()),
        Some(range) => Err(damaged(&format!("bytes {}..{} of {size}", range.start, range.end))),
    }
}

/// Returns a batch of `num_rows` rows and no columns.
fn rows_without_columns(num_rows: usize) -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(num_rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)
        .unwrap_or_else(|_| RecordBatch::new_empty(Arc::new(Schema::empty())))
}

fn decode_error(snapshot: &Snapshot, row_group: RowGroupRef, source: ParquetError) -> Error {
    Error::Decode {
        url: snapshot.fragment(row_group).object.url.clone(),
        row_group: row_group.index as usize,
        source: Box::new(source),
    }
}
