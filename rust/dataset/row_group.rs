//! Reads rows of one row group: which bytes, then which arrays.
//!
//! Sans-IO: a [`RowGroupRead`] names the byte ranges it needs, somebody fetches them, and
//! [`RowGroupRead::decode`] turns them into batches of the dataset's types on whatever thread it is
//! called. With an offset index only the pages that hold wanted rows are named.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema};
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
    /// Columns that are decoded together, in the object's order; none where it has none of the columns.
    groups: Vec<ColumnGroup>,
    /// Those of all groups.
    ranges: Vec<Range<u64>>,
    num_rows: usize,
}

/// Some columns of a read.
#[derive(Debug)]
struct ColumnGroup {
    decoder: ParquetPushDecoder,
    /// The object's root columns.
    roots: Vec<usize>,
    num_ranges: usize,
}

/// What was fetched of a group, to find the column that is to blame for an error. The decoder holds the same buffers.
#[derive(Debug, Default)]
struct FetchedGroup {
    roots: Vec<usize>,
    ranges: Vec<Range<u64>>,
    bytes: Vec<Bytes>,
}

impl FetchedGroup {
    /// Returns a range of the bytes; `None` if it was not fetched in one piece.
    fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        let place = self.ranges.iter().position(|have| have.start <= range.start && range.end <= have.end)?;
        let (have, bytes) = (&self.ranges[place], self.bytes.get(place)?);
        let start = usize::try_from(range.start - have.start).ok()?;
        let end = usize::try_from(range.end - have.start).ok()?;
        (end <= bytes.len()).then(|| bytes.slice(start..end))
    }
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
        Self::try_new_in_groups(snapshot, row_group, projection, vec![roots], runs, batch_rows)
    }

    /// Plans a read whose columns are decoded by [`Self::decode_at_once`], one of `groups` after another: root columns of
    /// the object that together are those of `projection`, ascending.
    ///
    /// # Errors
    ///
    /// As [`Self::try_new`].
    pub(crate) fn try_new_in_groups(
        snapshot: &Arc<Snapshot>,
        row_group: RowGroupRef,
        projection: &Arc<[usize]>,
        groups: Vec<Vec<usize>>,
        runs: Option<&[Range<u32>]>,
        batch_rows: usize,
    ) -> Result<Self> {
        let num_rows = runs
            .map_or(row_group.num_rows as usize, |runs| runs.iter().map(|run| (run.end - run.start) as usize).sum());
        let mut this = Self {
            snapshot: Arc::clone(snapshot),
            row_group,
            projection: Arc::clone(projection),
            runs: runs.map(Box::from),
            batch_rows: batch_rows.max(1),
            groups: Vec::new(),
            ranges: Vec::new(),
            num_rows,
        };
        for roots in groups.into_iter().filter(|roots| !roots.is_empty() && num_rows > 0) {
            let failed = |source| decode_error(snapshot, row_group, None, source);
            let plan = || {
                let mut decoder = decoder_for(snapshot, row_group, roots.clone(), runs, batch_rows)?;
                let needed = decoder.try_next_reader()?;
                Ok((decoder, needed))
            };
            let (decoder, needed) = caught(plan).map_err(failed)?;
            let mut num_ranges = 0;
            if let DecodeResult::NeedsData(needed) = needed {
                check_inside(&needed, snapshot, row_group).map_err(failed)?;
                num_ranges = needed.len();
                this.ranges.extend(needed);
            }
            this.groups.push(ColumnGroup { decoder, roots, num_ranges });
        }
        Ok(this)
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
        debug_assert!(self.groups.len() <= 1, "columns in groups are decoded at once");
        let mut ranges = std::mem::take(&mut self.ranges).into_iter();
        let (reader, fetched) = match self.groups.pop() {
            Some(group) => self.open(group, &mut ranges, &mut bytes.into_iter())?,
            None => (None, FetchedGroup::default()),
        };
        Ok(Batches { remaining_rows: self.num_rows, read: self, reader, fetched })
    }

    /// Returns all rows as one batch. Columns are decoded group by group, and the bytes of each are given back before the
    /// next; arrays hold no more memory than their values take.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    pub(crate) fn decode_at_once(mut self, bytes: Vec<Bytes>) -> Result<RecordBatch> {
        let (mut ranges, mut bytes) = (std::mem::take(&mut self.ranges).into_iter(), bytes.into_iter());
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for group in std::mem::take(&mut self.groups) {
            let (Some(mut reader), fetched) = self.open(group, &mut ranges, &mut bytes)? else { continue };
            let batch = self.read_to_end(&mut reader, &fetched)?;
            let (schema, decoded, _) = batch.into_parts();
            fields.extend(schema.fields().iter().cloned());
            let first = columns.len();
            columns.extend(decoded);
            // The decoder's buffers grow by doubling.
            columns[first..].iter_mut().for_each(Array::shrink_to_fit);
        }
        let failed = |source: ArrowError| decode_error(&self.snapshot, self.row_group, None, source.into());
        let options = RecordBatchOptions::new().with_row_count(Some(self.num_rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options);
        self.conform_caught(&batch.map_err(failed)?)
    }

    /// Gives a group its bytes, and returns what reads its columns (`None` where there are no rows) and those bytes.
    fn open(
        &self,
        group: ColumnGroup,
        ranges: &mut impl Iterator<Item = Range<u64>>,
        bytes: &mut impl Iterator<Item = Bytes>,
    ) -> Result<(Option<ParquetRecordBatchReader>, FetchedGroup)> {
        let ColumnGroup { mut decoder, roots, num_ranges } = group;
        let ranges: Vec<_> = ranges.take(num_ranges).collect();
        let bytes: Vec<_> = bytes.take(num_ranges).collect();
        let fetched = FetchedGroup { roots, ranges: ranges.clone(), bytes: bytes.clone() };
        let reader = decoder
            .push_ranges(ranges, bytes)
            .and_then(|()| caught(|| decoder.try_next_reader()))
            .and_then(reader_of)
            .map_err(|source| self.failed(&fetched, source))?;
        Ok((reader, fetched))
    }

    /// Returns the error for `source`, with the column of `fetched` that is to blame.
    fn failed(&self, fetched: &FetchedGroup, source: ParquetError) -> Error {
        let fragment = self.snapshot.fragment(self.row_group);
        let blamed = fetched.roots.iter().find_map(|&root| Some((root, self.error_of(root, fetched)?)));
        let (column, source) = match blamed {
            Some((root, own)) => (Some(fragment.reader.schema().field(root).name().clone()), own),
            None => (None, source),
        };
        decode_error(&self.snapshot, self.row_group, column, source)
    }

    /// Decodes one root column alone, of what was fetched; returns why that fails.
    fn error_of(&self, root: usize, fetched: &FetchedGroup) -> Option<ParquetError> {
        let decode = || {
            let mut decoder =
                decoder_for(&self.snapshot, self.row_group, vec![root], self.runs.as_deref(), self.batch_rows)?;
            if let DecodeResult::NeedsData(needed) = decoder.try_next_reader()? {
                let Some(bytes) = needed.iter().map(|range| fetched.get(range)).collect() else { return Ok(()) };
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

    /// Returns all rows of some columns, without a copy where the decoder gives them out in one batch.
    fn read_to_end(&self, reader: &mut ParquetRecordBatchReader, fetched: &FetchedGroup) -> Result<RecordBatch> {
        let mut batches: Vec<RecordBatch> = Vec::new();
        let mut num_rows = 0;
        while num_rows < self.num_rows {
            let batch = self.next_batch(reader, fetched, self.num_rows - num_rows)?;
            num_rows += batch.num_rows();
            batches.push(batch);
        }
        if batches.len() == 1 {
            return Ok(batches.swap_remove(0));
        }
        let schema = batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
        arrow_select::concat::concat_batches(&schema, &batches).map_err(|source| self.failed(fetched, source.into()))
    }

    /// Returns the next batch of `reader`, which has `remaining_rows` more.
    fn next_batch(
        &self,
        reader: &mut ParquetRecordBatchReader,
        fetched: &FetchedGroup,
        remaining_rows: usize,
    ) -> Result<RecordBatch> {
        let next = caught(|| reader.next().transpose().map_err(ParquetError::from));
        let next = next.and_then(|batch| batch.ok_or_else(|| rows_missing(remaining_rows)));
        next.map_err(|source| self.failed(fetched, source))
    }

    fn conform_caught(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        panics::caught(|| self.conform(batch))
            .unwrap_or_else(|said| Err(decode_error(&self.snapshot, self.row_group, None, damaged(&said))))
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
    fetched: FetchedGroup,
    remaining_rows: usize,
}

impl Batches {
    fn read_next(&mut self) -> Result<RecordBatch> {
        let batch = match &mut self.reader {
            // NULLs take memory, too.
            None => rows_without_columns(self.remaining_rows.min(self.read.batch_rows)),
            Some(reader) => self.read.next_batch(reader, &self.fetched, self.remaining_rows)?,
        };
        self.read.conform_caught(&batch)
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining_rows == 0 {
            return None;
        }
        let batch = self.read_next();
        self.remaining_rows = batch.as_ref().map_or(0, |batch| self.remaining_rows.saturating_sub(batch.num_rows()));
        Some(batch)
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
