//! Columns of a row group that the `parquet` crate decodes.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowSelection};
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use parquet::errors::ParquetError;

use super::{RowGroupRef, Snapshot, fields_under_null, inner};
use crate::batch;
use crate::decode::{Body, Claims};
use crate::error::{Error, Result};
use crate::panics;
use crate::rows::RowSet;

/// Why texts that offsets of 32 bits do not reach cannot be read, and what to do.
pub(super) const TOO_MUCH_TEXT: &str = "the rows that are read at once have more than 2 GiB of text; ask for fewer \
                                        rows by number, or lower memory_limit, so that row groups are read in smaller \
                                        parts";

/// What the `parquet` crate says of sound columns that it cannot read, and what to say and advise instead.
const LIMITS: [(&str, &str); 2] = [
    // Of more bytes than offsets of 32 bits count: the size of texts behind a dictionary is unknown if the writer did
    // not record it.
    ("index overflow decoding byte array", TOO_MUCH_TEXT),
    (
        "MonthDayNano intervals not supported",
        "an INTERVAL of months, days and fractions of a day cannot be read; leave the column out by `select_columns`",
    ),
];

/// A batch of expanded dictionaries takes at most this fraction of the memory.
const BATCHES_IN_MEMORY: u64 = 4;

/// The rows of a row group to read, in batches of at most `batch_rows`.
#[derive(Debug, Clone)]
pub(super) struct WantedRows {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) row_group: RowGroupRef,
    pub(super) set: Arc<RowSet>,
    pub(super) num_rows: usize,
    pub(super) batch_rows: usize,
    /// Limit for the bytes of decompressed pages, and for the values of a column.
    pub(super) memory_bytes: u64,
}

impl WantedRows {
    /// Returns the rows of `set` of a row group, without a memory limit for pages.
    pub(super) fn new(snapshot: &Arc<Snapshot>, row_group: RowGroupRef, set: RowSet, batch_rows: usize) -> Self {
        let num_rows = set.count(0..row_group.num_rows) as usize;
        let (snapshot, batch_rows) = (Arc::clone(snapshot), batch_rows.max(1));
        Self { snapshot, row_group, set: Arc::new(set), num_rows, batch_rows, memory_bytes: u64::MAX }
    }

    /// Returns these rows without the first `num_read`.
    pub(super) fn after(&self, num_read: usize) -> Self {
        let RowGroupRef { num_rows, .. } = self.row_group;
        let end = self.set.count(0..num_rows);
        let first = u32::try_from(num_read).unwrap_or(end).min(end);
        let set = Arc::new(self.set.within(self.set.extent(0..num_rows, first..end), num_rows));
        Self { set, num_rows: (end - first) as usize, ..self.clone() }
    }

    /// Returns all rows of the pages of a leaf that contain some of these, or of its chunk if it has no index.
    pub(super) fn of_whole_pages(&self, leaf: usize) -> Self {
        let RowGroupRef { index, num_rows, .. } = self.row_group;
        let fragment = self.snapshot.fragment(self.row_group);
        let pages = fragment.offset_index(index, leaf).filter(|_| fragment.has_offset_index(index));
        let set = pages.map_or(RowSet::All, |pages| {
            let first_rows =
                pages.page_locations().iter().map(|page| u32::try_from(page.first_row_index).unwrap_or(u32::MAX));
            let ends: Vec<u32> = first_rows.chain([num_rows]).map(|row| row.min(num_rows)).collect();
            let mut runs: Vec<Range<u32>> = Vec::new();
            for page in ends.windows(2).filter(|page| self.set.has(page[0]..page[1])) {
                match runs.last_mut() {
                    Some(run) if run.end == page[0] => run.end = page[1],
                    _ => runs.push(page[0]..page[1]),
                }
            }
            RowSet::from_runs(runs, num_rows)
        });
        Self { num_rows: set.count(0..num_rows) as usize, set: Arc::new(set), ..self.clone() }
    }

    /// Returns the rows as the `parquet` crate represents them; `None` for all.
    pub(super) fn selection(&self) -> Option<RowSelection> {
        if *self.set == RowSet::All {
            return None;
        }
        let runs = self.set.runs(0..self.row_group.num_rows).map(|run| run.start as usize..run.end as usize);
        Some(RowSelection::from_consecutive_ranges(runs, self.row_group.num_rows as usize))
    }

    fn decoder(&self, columns: &[usize]) -> Result<ParquetPushDecoder, ParquetError> {
        let fragment = self.snapshot.fragment(self.row_group);
        let (reader, leaves) = (&fragment.reader, columns.iter().flat_map(|&column| fragment.leaves(column)));
        let mut builder = ParquetPushDecoderBuilder::new_with_metadata(reader.clone())
            .with_row_groups(vec![self.row_group.index as usize])
            .with_projection(ProjectionMask::leaves(reader.parquet_schema(), leaves))
            .with_batch_size(self.batch_rows.max(1));
        if let Some(selection) = self.selection() {
            builder = builder.with_row_selection(selection);
        }
        builder.build()
    }

    /// Returns the error for a decoder's message.
    pub(super) fn error(&self, column: Option<String>, source: ParquetError) -> Error {
        let said = source.to_string();
        let limit = LIMITS.iter().find(|(limit, _)| said.contains(limit));
        let source = limit.map_or(source, |(_, told)| ParquetError::General((*told).to_owned()));
        Error::Decode {
            url: self.snapshot.fragment(self.row_group).object.url.clone(),
            row_group: self.row_group.index as usize,
            column,
            source: Box::new(source),
        }
    }

    /// Returns the error for the contents of a root column.
    pub(super) fn column_error(&self, root: usize, source: ParquetError) -> Error {
        let column = inner::shown(self.snapshot.fragment(self.row_group).field(root).name());
        self.error(Some(column.into_owned()), source)
    }

    /// Returns the error for a root column that takes more memory than allowed.
    pub(super) fn too_large(&self, root: usize, what: &str) -> Error {
        let source = format!("{what} take more than the memory limit of {} bytes", self.memory_bytes);
        self.column_error(root, ParquetError::General(source))
    }

    /// Refuses invalid claims of pages of root columns that are decoded together, before they are decoded; passes the
    /// claims of each leaf to `each`, with its root.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] for impossible claims, and for pages that take more memory than allowed although the footer
    /// says otherwise; [`Error::MemoryLimit`] if the footer agrees.
    pub(super) fn check_pages(
        &self,
        roots: &[usize],
        fetched: &FetchedRanges,
        mut each: impl FnMut(usize, &mut Claims<'_>) -> Result<()>,
    ) -> Result<()> {
        let fragment = self.snapshot.fragment(self.row_group);
        let (mut unpacked_bytes, mut by_footer) = (0_u64, 0_u64);
        for &root in roots {
            for leaf in fragment.leaves(root) {
                let fetched = fetched.ranges.iter().zip(&fetched.bodies);
                let is_in_part = *self.set != RowSet::All;
                let claims = Claims::read(fragment, self.row_group.index, leaf, fetched, is_in_part, self.memory_bytes);
                let mut claims = claims.map_err(|said| self.column_error(root, damaged(&said)))?;
                unpacked_bytes = unpacked_bytes.saturating_add(claims.unpacked_bytes());
                let column = fragment.row_group(self.row_group.index).column(leaf);
                by_footer = by_footer.saturating_add(u64::try_from(column.uncompressed_size()).unwrap_or(0));
                if unpacked_bytes > self.memory_bytes {
                    return Err(match unpacked_bytes <= by_footer {
                        true => fragment.memory_error(self.row_group.index, self.memory_bytes, unpacked_bytes),
                        false => self.too_large(root, "pages out of their compression"),
                    });
                }
                each(root, &mut claims)?;
            }
        }
        Ok(())
    }

    /// Refuses ranges outside the object, which a corrupt offset index may claim.
    pub(super) fn check_inside(&self, ranges: &[Range<u64>]) -> Result<()> {
        let size = self.snapshot.fragment(self.row_group).object.size_bytes.unwrap_or(u64::MAX);
        match ranges.iter().find(|range| range.start > range.end || range.end > size) {
            None => Ok(()),
            Some(range) => Err(self.error(None, damaged(&format!("bytes {}..{} of {size}", range.start, range.end)))),
        }
    }
}

/// Columns that wait for their bytes.
#[derive(Debug)]
pub(super) struct ParquetColumns {
    decoder: ParquetPushDecoder,
    /// The object's columns, ascending.
    roots: Vec<usize>,
}

impl ParquetColumns {
    /// Plans the read of columns, in any order; also returns the ranges to fetch.
    pub(super) fn try_new(rows: &WantedRows, mut roots: Vec<usize>) -> Result<(Self, Vec<Range<u64>>)> {
        // The decoder returns them in the object's order, whatever the dataset's is.
        roots.sort_unstable();
        let plan = || {
            let mut decoder = rows.decoder(&roots)?;
            let needed = decoder.try_next_reader()?;
            Ok((decoder, needed))
        };
        let (decoder, needed) = caught(plan).map_err(|source| rows.error(None, source))?;
        let ranges = match needed {
            DecodeResult::NeedsData(ranges) => ranges,
            _ => Vec::new(),
        };
        Ok((Self { decoder, roots }, ranges))
    }

    /// Takes the fetched bytes.
    pub(super) fn open(self, mut rows: WantedRows, fetched: FetchedRanges) -> Result<ParquetReader> {
        let Self { mut decoder, roots } = self;
        let (mut row_bytes, num_rows) = (0_u64, u64::from(rows.row_group.num_rows));
        let fragment = rows.snapshot.fragment(rows.row_group);
        rows.check_pages(&roots, &fetched, |root, claims| {
            let checked = claims.check_memory().and_then(|()| claims.check_levels());
            checked.map_err(|said| rows.column_error(root, damaged(&said)))?;
            // A dictionary is not expanded.
            if matches!(fragment.field(root).data_type(), DataType::Dictionary(..)) {
                return Ok(());
            }
            let bytes = claims.text_bytes(num_rows);
            row_bytes = row_bytes.saturating_add(bytes);
            if claims.is_of_lists() && bytes > rows.memory_bytes {
                return Err(rows.too_large(root, "the texts of a row"));
            }
            Ok(())
        })?;
        if row_bytes.saturating_mul(rows.num_rows.min(rows.batch_rows) as u64) > rows.memory_bytes {
            // Expanded dictionaries are measured as they come: in small batches.
            let batch_rows = rows.memory_bytes / BATCHES_IN_MEMORY / row_bytes;
            rows.batch_rows = usize::try_from(batch_rows).unwrap_or(usize::MAX).clamp(1, rows.batch_rows);
            decoder = Self::try_new(&rows, roots.clone())?.0.decoder;
        }
        let bytes = fetched.bytes()?;
        let mut this = ParquetReader { rows, roots, fetched, reader: None };
        let ranges = this.fetched.ranges.clone();
        let opened =
            decoder.push_ranges(ranges, bytes).and_then(|()| caught(|| decoder.try_next_reader())).and_then(reader_of);
        this.reader = opened.map_err(|source| this.failed(source))?;
        Ok(this)
    }
}

/// Ranges and their fetched bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct FetchedRanges {
    pub(crate) ranges: Vec<Range<u64>>,
    pub(crate) bodies: Vec<Body>,
}

impl FetchedRanges {
    /// Returns a range of the bytes, without a copy if it was fetched in one piece; `None` unless all of it was
    /// fetched.
    fn get(&self, range: &Range<u64>) -> Option<Result<Bytes>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end || parts.is_empty() {
            // Of an empty range that was fetched, only an empty one is a part.
            let has_next =
                |have: &Range<u64>| have.start <= at && (at < have.end || range.is_empty() && at == have.start);
            let place = self.ranges.iter().position(has_next)?;
            let (have, body) = (&self.ranges[place], self.bodies.get(place)?);
            let start = usize::try_from(at - have.start).ok()?;
            at = range.end.min(have.end);
            let end = usize::try_from(at - have.start).ok()?;
            if end > body.num_bytes() || end < start {
                return None;
            }
            parts.push(body.part(start..end));
        }
        if parts.len() == 1 {
            return parts.pop();
        }
        let parts = parts.into_iter().collect::<Result<Vec<Bytes>>>();
        Some(parts.map(|parts| parts.concat().into()))
    }

    /// Returns the bytes of some ranges; `None` unless all were fetched.
    ///
    /// # Errors
    ///
    /// Those of reading what is still in a file.
    pub(crate) fn part(&self, ranges: Vec<Range<u64>>) -> Result<Option<Self>> {
        let Some(found) = ranges.iter().map(|range| self.get(range)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let bodies = found.into_iter().map(|bytes| bytes.map(Body::Here)).collect::<Result<_>>()?;
        Ok(Some(Self { ranges, bodies }))
    }

    /// Returns the bytes of all ranges.
    ///
    /// # Errors
    ///
    /// Those of reading what is still in a file.
    fn bytes(&self) -> Result<Vec<Bytes>> {
        self.bodies.iter().map(|body| body.part(0..body.num_bytes())).collect()
    }
}

/// Columns that are being read.
pub(super) struct ParquetReader {
    rows: WantedRows,
    roots: Vec<usize>,
    /// Shared with the reader, to find the column at fault for an error.
    fetched: FetchedRanges,
    /// `None` if there are no rows.
    reader: Option<ParquetRecordBatchReader>,
}

impl ParquetReader {
    /// Returns the object's columns, which are those of each batch.
    pub(super) fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// Returns the next batch, given that `remaining_rows` are left.
    pub(super) fn next_batch(&mut self, remaining_rows: usize) -> Result<RecordBatch> {
        let reader = self.reader.as_mut();
        let next = caught(|| reader.and_then(Iterator::next).transpose().map_err(ParquetError::from));
        let next = next.and_then(|batch| batch.ok_or_else(|| rows_missing(remaining_rows)));
        let masked = next.and_then(|batch| Ok(fields_under_null(&batch)?));
        masked.and_then(|batch| self.columns_of(batch)).map_err(|source| self.failed(source))
    }

    /// Returns the columns to read of a batch, which has whole root columns: of structs, with the fields to read.
    fn columns_of(&self, batch: RecordBatch) -> Result<RecordBatch, ParquetError> {
        let fragment = self.rows.snapshot.fragment(self.rows.row_group);
        if self.roots.iter().all(|&column| fragment.inner(column).is_none()) {
            return Ok(batch);
        }
        let column = |&column: &usize| {
            let name = fragment.field(column).name();
            let array = inner::find(&batch, name)?;
            Some((array, Arc::clone(fragment.field(column))))
        };
        let columns: Option<Vec<_>> = self.roots.iter().map(column).collect();
        let columns = columns.ok_or_else(|| damaged("a struct is read without its fields"))?;
        let (arrays, fields): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        Ok(batch::of_columns(Arc::new(Schema::new(fields)), arrays, batch.num_rows())?)
    }

    /// Returns the columns of all rows, without a copy if they come in one batch.
    pub(super) fn read_to_end(&mut self) -> Result<Vec<ArrayRef>> {
        let mut batches: Vec<RecordBatch> = Vec::new();
        let (mut num_rows, mut num_bytes) = (0, 0);
        while num_rows < self.rows.num_rows {
            let batch = self.next_batch(self.rows.num_rows - num_rows)?;
            num_rows += batch.num_rows();
            num_bytes += batch.get_array_memory_size() as u64;
            if !batches.is_empty() {
                self.check_bytes(num_bytes)?;
            }
            batches.push(batch);
        }
        if batches.len() == 1 {
            return Ok(batches.swap_remove(0).into_parts().1);
        }
        let schema = batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
        let batch = arrow_select::concat::concat_batches(&schema, &batches);
        Ok(batch.map_err(|source| self.failed(source.into()))?.into_parts().1)
    }

    /// Refuses batches that take more than the memory together.
    pub(super) fn check_bytes(&self, num_bytes: u64) -> Result<()> {
        match self.roots.first() {
            Some(&root) if num_bytes > self.rows.memory_bytes => Err(self.rows.too_large(root, "values")),
            _ => Ok(()),
        }
    }

    /// Returns the error for `source`, with the column at fault.
    fn failed(&self, source: ParquetError) -> Error {
        match self.roots.iter().find_map(|&root| Some((root, self.error_of(root)?))) {
            Some((root, own)) => self.rows.column_error(root, own),
            None => self.rows.error(None, source),
        }
    }

    /// Decodes only one root column from the fetched bytes; returns why that fails.
    fn error_of(&self, root: usize) -> Option<ParquetError> {
        let decode = || {
            let mut decoder = self.rows.decoder(&[root])?;
            if let DecodeResult::NeedsData(needed) = decoder.try_next_reader()? {
                let Ok(Some(fetched)) = self.fetched.part(needed) else { return Ok(()) };
                let Ok(bytes) = fetched.bytes() else { return Ok(()) };
                decoder.push_ranges(fetched.ranges, bytes)?;
            }
            let mut missing = self.rows.num_rows;
            for batch in reader_of(decoder.try_next_reader()?)?.into_iter().flatten() {
                missing = missing.saturating_sub(batch?.num_rows());
            }
            if missing > 0 { Err(rows_missing(missing)) } else { Ok(()) }
        };
        caught(decode).err()
    }
}

/// Returns the reader of a decoder that has all its input.
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

/// Decodes, and converts panics to errors: the decoder can still panic on corrupt pages. Its state is not used
/// afterwards.
fn caught<T>(decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    panics::caught(decode).unwrap_or_else(|said| Err(damaged(&said)))
}

/// Returns the error for bytes that no writer produces.
pub(super) fn damaged(said: &str) -> ParquetError {
    ParquetError::General(format!("a page or its index is corrupt: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_behind_a_range_without_any() {
        let body = Bytes::from_static(b"0123456789");
        let ranges = [4..4, 4..7, 7..10];
        let bodies = ranges.iter().map(|range| Body::Here(body.slice(range.start..range.end)));
        let fetched = FetchedRanges {
            bodies: bodies.collect(),
            ranges: ranges.iter().map(|range| range.start as u64..range.end as u64).collect(),
        };
        let get = |range: Range<u64>| fetched.get(&range).map(Result::unwrap);
        assert_eq!(get(4..7), Some(body.slice(4..7)));
        assert_eq!(get(5..9), Some(body.slice(5..9)));
        assert_eq!(get(4..4), Some(Bytes::new()));
        assert_eq!((get(3..5), get(9..11), get(10..10)), (None, None, None));
    }
}
