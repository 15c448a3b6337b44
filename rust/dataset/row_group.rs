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
    /// The rows to return; all without.
    runs: Option<Box<[Range<u32>]>>,
    batch_rows: usize,
    /// `None` where the object has none of the columns.
    decoder: Option<ParquetPushDecoder>,
    ranges: Vec<Range<u64>>,
    /// What was fetched of [`Self::ranges`], to find the column that is to blame for an error. The decoder holds the
    /// same buffers.
    bytes: Vec<Bytes>,
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
            let failed = |source| decode_error(snapshot, row_group, None, source);
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
            runs: runs.map(Box::from),
            batch_rows: batch_rows.max(1),
            decoder,
            ranges,
            bytes: Vec::new(),
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
        self.bytes.clone_from(&bytes);
        let reader = match self.decoder.take() {
            None => None,
            Some(mut decoder) => decoder
                .push_ranges(self.ranges.clone(), bytes)
                .and_then(|()| caught(|| decoder.try_next_reader()))
                .and_then(reader_of)
                .map_err(|source| self.failed(source))?,
        };
        Ok(Batches { remaining_rows: self.num_rows, read: self, reader })
    }

    /// Returns the error for `source`, with the column that is to blame.
    fn failed(&self, source: ParquetError) -> Error {
        let blamed = self.projection.iter().find_map(|&column| Some((column, self.error_of(column)?)));
        let column = blamed.as_ref().map(|(column, _)| self.snapshot.schema.field(*column).name().clone());
        let source = blamed.map_or(source, |(_, own)| own);
        decode_error(&self.snapshot, self.row_group, column, source)
    }

    /// Decodes one column alone, of what was fetched; returns why that fails.
    fn error_of(&self, column: usize) -> Option<ParquetError> {
        let root = self.snapshot.fragment(self.row_group).columns[column]?;
        let decode = || {
            let mut decoder =
                decoder_for(&self.snapshot, self.row_group, vec![root], self.runs.as_deref(), self.batch_rows)?;
            if let DecodeResult::NeedsData(needed) = decoder.try_next_reader()? {
                let Some(bytes) = needed.iter().map(|range| self.fetched(range)).collect() else { return Ok(()) };
                decoder.push_ranges(needed, bytes)?;
            }
            let mut missing = self.num_rows;
            for batch in reader_of(decoder.try_next_reader()?)?.into_iter().flatten() {
                missing = missing.saturating_sub(batch?.num_rows());
            }
            if missing > 0 { Err(rows_missing(missing)) } else { Ok(()) }
        };
        caught(decode).err()
    }

    /// Returns a range of what was fetched; `None` if it was not fetched in one piece.
    fn fetched(&self, range: &Range<u64>) -> Option<Bytes> {
        let place = self.ranges.iter().position(|have| have.start <= range.start && range.end <= have.end)?;
        let (have, bytes) = (&self.ranges[place], self.bytes.get(place)?);
        let start = usize::try_from(range.start - have.start).ok()?;
        let end = usize::try_from(range.end - have.start).ok()?;
        (end <= bytes.len()).then(|| bytes.slice(start..end))
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

/// Returns the reader of a decoder that has got what it asked for.
fn reader_of(found: DecodeResult<ParquetRecordBatchReader>) -> Result<Option<ParquetRecordBatchReader>, ParquetError> {
    match found {
        DecodeResult::Data(reader) => Ok(Some(reader)),
        DecodeResult::Finished => Ok(None),
        DecodeResult::NeedsData(more) => {
            Err(ParquetError::General(format!("the decoder asked twice for bytes, then for {more:?}")))
        }
    }
}

fn rows_missing(num_rows: usize) -> ParquetError {
    ParquetError::EOF(format!("{num_rows} rows are missing from the pages"))
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
        let schema = first.schema();
        let mut batches = vec![first, second];
        for batch in &mut self {
            batches.push(batch?);
        }
        arrow_select::concat::concat_batches(&schema, &batches).map_err(|source| self.read.failed(source.into()))
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining_rows == 0 {
            return None;
        }
        let batch = match &mut self.reader {
            // NULLs take memory, too.
            None => rows_without_columns(self.remaining_rows.min(self.read.batch_rows)),
            Some(reader) => match caught(|| reader.next().transpose().map_err(ParquetError::from)) {
                Ok(Some(batch)) => batch,
                Err(source) => {
                    self.remaining_rows = 0;
                    return Some(Err(self.read.failed(source)));
                }
                Ok(None) => {
                    let missing = std::mem::take(&mut self.remaining_rows);
                    return Some(Err(self.read.failed(rows_missing(missing))));
                }
            },
        };
        self.remaining_rows = self.remaining_rows.saturating_sub(batch.num_rows());
        let conformed = panics::caught(|| self.read.conform(&batch));
        Some(conformed.unwrap_or_else(|said| Err(self.read.failed(damaged(&said)))))
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

fn decode_error(snapshot: &Snapshot, row_group: RowGroupRef, column: Option<String>, source: ParquetError) -> Error {
    Error::Decode {
        url: snapshot.fragment(row_group).object.url.clone(),
        row_group: row_group.index as usize,
        column,
        source: Box::new(source),
    }
}
