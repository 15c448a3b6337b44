//! Fetches and parses footers: one suffix request each, one more if the tail was too short.
//!
//! The offset index is loaded, because spans and page-exact reads need it; the column index is not, because its bounds
//! take more memory than everything else together.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use parquet::DecodeResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataBuilder,
    ParquetMetaDataOptions, ParquetMetaDataPushDecoder, RowGroupMetaData,
};
use parquet::schema::types::SchemaDescPtr;
use sha2::{Digest, Sha256};

use super::packed::Tail;
use super::thrift;
use crate::config;
use crate::error::{Error, Result, without_kinds};
use crate::panics;
use crate::source::{Connection, Object, is_unsatisfiable, measure, read_ranges, read_suffix};

/// Minimum size of a Parquet file: two magic numbers and the length of the footer.
const LEAST_BYTES: u64 = 12;

/// Maximum bytes read before a footer on the assumption that they are the index.
const MAX_GUESSED_BYTES: u64 = 64 << 20;

/// Number of footers after which their size is considered known.
const LEARNED_FROM: usize = 64;

/// Bounds of requests once the footers' size is known.
const LEARNED_BYTES: (u64, u64) = (16 << 10, 8 << 20);

const MAGIC: &[u8] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// Prefix of the pointer that Git LFS leaves in place of a file.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// A parsed footer, the digest of its bytes, and those of its schema.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) metadata: ParquetMetaData,
    pub(super) digest: [u8; 32],
    /// Equal bytes mean equal schemas; `None` unless there is exactly one schema.
    pub(super) schema_bytes: Option<Bytes>,
}

/// The result of parsing the end of an object.
#[derive(Debug)]
pub(super) enum Parsed {
    /// Everything was available.
    Footer(Box<Footer>),
    /// These bytes are missing.
    Needs(Vec<Range<u64>>),
}

/// How many bytes at the end of an object to request: a fixed number at first, then what nearly all of the objects so
/// far needed.
#[derive(Debug, Default)]
pub(super) struct TailSize {
    learned: AtomicU64,
    seen: Mutex<Vec<u64>>,
}

impl TailSize {
    fn get(&self) -> u64 {
        match self.learned.load(Ordering::Relaxed) {
            0 => config::FOOTER_BYTES,
            learned => learned,
        }
    }

    /// Records how many bytes at its end one more object needed.
    pub(super) fn learn(&self, num_bytes: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(num_bytes);
        if seen.len() >= LEARNED_FROM && seen.len().is_power_of_two() {
            seen.sort_unstable();
            let nearly_all = seen[seen.len() - 1 - seen.len() / 100];
            let with_margin = (nearly_all + nearly_all / 4).next_multiple_of(4 << 10);
            self.learned.store(with_margin.clamp(LEARNED_BYTES.0, LEARNED_BYTES.1), Ordering::Relaxed);
        }
    }
}

/// Reads the end of `object` that `parse` needs, fills in the object's size and e-tag, and returns the result of
/// `parse`.
///
/// Costs one request of the size given by [`TailSize`], one more if the footer or the index is larger, and two more if
/// the store does not support suffix ranges.
///
/// # Errors
///
/// Those of reading and of `parse`.
pub(super) async fn read<T: Send + 'static>(
    connection: &Connection,
    object: &mut Object,
    tail_size: &TailSize,
    parse: impl Fn(&Object, &Tail) -> Result<Result<T, Vec<Range<u64>>>> + Clone + Send + 'static,
) -> Result<T> {
    let mut connection = connection.clone();
    if connection.must_measure(object) {
        measure(&connection, object).await?;
        connection = connection.then();
    }
    let bytes = match read_suffix(&connection, object, tail_size.get()).await {
        // An empty object cannot satisfy a suffix range; and some servers support none.
        Err(Error::Store { source, .. }) if is_unsatisfiable(&source) => {
            connection = connection.then();
            measure(&connection, object).await?;
            connection = connection.then();
            read_suffix(&connection, object, tail_size.get()).await?
        }
        tail => tail?,
    };
    let size = object.size_bytes.unwrap_or(bytes.len() as u64);
    let mut tail = Tail { size, pieces: vec![(size - bytes.len() as u64..size, bytes)] };
    loop {
        // Parsing may take long for wide files, so it does not run on the runtime's thread.
        let (parse, parsed_object) = (parse.clone(), object.clone());
        let work = move || {
            let parsed = parse(&parsed_object, &tail);
            (tail, parsed)
        };
        let (returned, parsed) = connection.io.blocking(work).await?;
        tail = returned;
        match parsed? {
            Ok(parsed) => return Ok(parsed),
            Err(missing) if missing.iter().all(|range| tail.get(range).is_some()) => {
                return Err(not_parquet(object, "its footer is corrupt".into()));
            }
            Err(missing) => {
                connection = connection.then();
                let bytes = read_ranges(&connection, object, &missing).await?;
                for (range, bytes) in missing.into_iter().zip(bytes) {
                    tail.pieces.retain(|(held, _)| held.start < range.start || range.end < held.end);
                    tail.pieces.push((range, bytes));
                }
            }
        }
    }
}

/// Returns the range for an offset and length from a footer.
pub(super) fn extent(offset: i64, len: i32) -> Option<Range<u64>> {
    let start = u64::try_from(offset).ok()?;
    Some(start..start.checked_add(u64::try_from(len).ok()?)?)
}

fn not_parquet(object: &Object, reason: String) -> Error {
    Error::NotParquet { url: object.url.clone(), reason }
}

/// Parses the footer and the offset indexes of an object, given `tail`.
///
/// `schema_of` returns the schema for these bytes, if it is known.
///
/// # Errors
///
/// [`Error::NotParquet`].
pub(super) fn parse(
    object: &Object,
    tail: &Tail,
    schema_of: impl FnOnce(&[u8]) -> Option<SchemaDescPtr>,
) -> Result<Parsed> {
    let size = tail.size;
    // An index may claim to end there, too.
    let ends = tail.pieces.iter().filter(|(range, _)| range.end == size).map(|(_, bytes)| bytes);
    let end = ends.max_by_key(|bytes| bytes.len()).cloned().unwrap_or_default();
    let footer_bytes = footer_bytes(object, size, &end)?;
    let Some(start) = usize::try_from(footer_bytes).ok().and_then(|footer| end.len().checked_sub(footer)) else {
        // The index is right before the footer, and about as large.
        let with_index = (footer_bytes + footer_bytes.min(MAX_GUESSED_BYTES)).min(size);
        let range = size - with_index..size;
        return Ok(Parsed::Needs(vec![range]));
    };
    let footer = end.slice(start..);
    let digest = Sha256::digest(&footer).into();
    let schema = thrift::check_footer(&footer).map_err(|reason| not_parquet(object, reason))?;
    let schema_bytes = schema.map(|range| footer.slice(range));
    let options =
        schema_bytes.as_deref().and_then(schema_of).map(|schema| ParquetMetaDataOptions::new().with_schema(schema));
    let options = options.map(std::sync::Arc::new);
    let of_footer = || {
        let decoder = ParquetMetaDataPushDecoder::try_new(size)
            .map_err(|error| not_parquet(object, error.to_string()))?
            .with_page_index_policy(PageIndexPolicy::Skip)
            .with_metadata_options(options.clone());
        match decode(object, decoder, tail, &[])? {
            DecodeResult::Data(metadata) => Ok(metadata),
            _ => Err(not_parquet(object, "its footer is corrupt".into())),
        }
    };
    let metadata = of_footer()?;
    thrift::check_chunks(&footer, metadata.file_metadata().schema_descr())
        .map_err(|reason| not_parquet(object, reason))?;
    let metadata = match with_indexes(object, tail, metadata) {
        // A malformed index is ignored: the pages are found without it.
        Err(Error::NotParquet { .. }) => of_footer()?,
        Ok(DecodeResult::NeedsData(ranges)) => return Ok(Parsed::Needs(ranges)),
        Ok(DecodeResult::Data(metadata)) => metadata,
        Ok(DecodeResult::Finished) => return Err(not_parquet(object, "its footer is empty".into())),
        Err(other) => return Err(other),
    };
    let metadata = with_row_count(metadata);
    let metadata = without_false_dictionaries(metadata).map_err(|error| not_parquet(object, error.to_string()))?;
    Ok(Parsed::Footer(Box::new(Footer { metadata, digest, schema_bytes })))
}

/// Returns the part of `tail` that [`parse`] needs for the object whose footer is `metadata`.
pub(super) fn trim(tail: &Tail, metadata: &ParquetMetaData) -> Tail {
    let columns = || metadata.row_groups().iter().flat_map(|group| group.columns()).filter_map(offset_index_range);
    let index = columns().map(|range| range.start).min().zip(columns().map(|range| range.end).max());
    let length = tail.get(&(tail.size.saturating_sub(8)..tail.size.saturating_sub(4)));
    let length = length.and_then(|bytes| Some(u64::from(u32::from_le_bytes(*bytes.first_chunk()?))));
    let footer = length.map(|length| tail.size.saturating_sub(length + 8)..tail.size);
    // Separate ranges are found as they were requested.
    let wanted = index.map(|(start, end)| start..end).into_iter().chain(footer);
    let pieces = wanted.filter_map(|range| tail.get(&range).map(|bytes| (range, bytes)));
    Tail { size: tail.size, pieces: pieces.collect() }
}

/// Adds the offset indexes to a parsed footer.
fn with_indexes(object: &Object, tail: &Tail, metadata: ParquetMetaData) -> Result<DecodeResult<ParquetMetaData>> {
    let columns = metadata.row_groups().iter().flat_map(|group| group.columns());
    let indexes: Vec<Range<u64>> = columns.filter_map(offset_index_range).collect();
    let decoder = ParquetMetaDataPushDecoder::try_new_with_metadata(tail.size, metadata)
        .map_err(|error| not_parquet(object, error.to_string()))?
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional);
    let parsed = decode(object, decoder, tail, &indexes)?;
    if let DecodeResult::NeedsData(ranges) = &parsed {
        check_inside(object, ranges, tail.size)?;
    }
    Ok(parsed)
}

fn offset_index_range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    extent(column.offset_index_offset()?, column.offset_index_length()?)
}

/// Runs a decoder on what was read. The offset `indexes` are validated before it sees them.
fn decode(
    object: &Object,
    mut decoder: ParquetMetaDataPushDecoder,
    tail: &Tail,
    indexes: &[Range<u64>],
) -> Result<DecodeResult<ParquetMetaData>> {
    for index in indexes.iter().filter_map(|index| tail.get(index)) {
        thrift::check_offset_index(&index)
            .map_err(|claim| not_parquet(object, format!("a page index is corrupt: {claim}")))?;
    }
    for (range, bytes) in &tail.pieces {
        let pushed = decoder.push_range(range.clone(), bytes.clone());
        pushed.map_err(|error| not_parquet(object, error.to_string()))?;
    }
    // Hostile footers make the decoder panic.
    panics::caught(|| decoder.try_decode())
        .unwrap_or_else(|_| Err(ParquetError::General("its footer is corrupt".into())))
        .map_err(|error| not_parquet(object, footer_reason(&error)))
}

/// Returns the footer with the row count of its row groups, which some writers leave at 0: the decoder makes no batch
/// larger than that.
fn with_row_count(metadata: ParquetMetaData) -> ParquetMetaData {
    let num_rows = metadata.row_groups().iter().fold(0_i64, |sum, group| sum.saturating_add(group.num_rows()));
    let file = metadata.file_metadata();
    if file.num_rows() == num_rows {
        return metadata;
    }
    let file = FileMetaData::new(
        file.version(),
        num_rows,
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    let mut parts = metadata.into_builder();
    let (row_groups, offset_index) = (parts.take_row_groups(), parts.take_offset_index());
    ParquetMetaDataBuilder::new(file).set_row_groups(row_groups).set_offset_index(offset_index).build()
}

/// Returns the footer without offsets of dictionaries that are not before their chunk's data, such as the 0 that some
/// writers put where there is no dictionary. Other readers ignore them, too.
fn without_false_dictionaries(metadata: ParquetMetaData) -> Result<ParquetMetaData, ParquetError> {
    let is_false = |column: &ColumnChunkMetaData| {
        column.dictionary_page_offset().is_some_and(|offset| offset <= 0 || offset > column.data_page_offset())
    };
    if !metadata.row_groups().iter().flat_map(RowGroupMetaData::columns).any(is_false) {
        return Ok(metadata);
    }
    let of_column = |column: ColumnChunkMetaData| match is_false(&column) {
        true => column.into_builder().set_dictionary_page_offset(None).build(),
        false => Ok(column),
    };
    let of_group = |group: RowGroupMetaData| {
        let mut parts = group.into_builder();
        let columns = parts.take_columns().into_iter().map(of_column).collect::<Result<_, ParquetError>>()?;
        parts.set_column_metadata(columns).build()
    };
    let mut parts = metadata.into_builder();
    let row_groups = parts.take_row_groups().into_iter().map(of_group).collect::<Result<_, ParquetError>>()?;
    Ok(parts.set_row_groups(row_groups).build())
}

/// Returns the parser's message, and advice about files that no parser accepts.
fn footer_reason(error: &ParquetError) -> String {
    let said = error.to_string();
    let said = without_kinds(&said);
    let hint = if said.contains("Row group ordinal") { "; rewrite it with fewer, larger row groups" } else { "" };
    format!("{said}{hint}")
}

/// Checks the file's end and returns the length of the footer with everything after it.
fn footer_bytes(object: &Object, size: u64, tail: &Bytes) -> Result<u64> {
    let refuse = |reason: String| Err(Error::NotParquet { url: object.url.clone(), reason });
    if size < LEAST_BYTES || tail.len() < 8 || tail.len() as u64 > size {
        return refuse(format!("it has {size} bytes, fewer than any Parquet file"));
    }
    let (rest, magic) = tail.split_at(tail.len() - MAGIC.len());
    match magic {
        MAGIC => {}
        ENCRYPTED_MAGIC => return refuse("its footer is encrypted, which is not supported".into()),
        _ if tail.starts_with(LFS_POINTER) => {
            return refuse(
                "it is a Git LFS pointer, not the file itself, which was not downloaded; run `git lfs pull`".into(),
            );
        }
        _ => return refuse("it does not end in `PAR1`: it is truncated, or another kind of file".into()),
    }
    let length = rest.last_chunk::<4>().map_or(0, |length| u64::from(u32::from_le_bytes(*length)));
    if length + LEAST_BYTES > size {
        return refuse(format!("its footer claims {length} bytes, but the object has {size}"));
    }
    Ok(length + 8)
}

fn check_inside(object: &Object, ranges: &[Range<u64>], size: u64) -> Result<()> {
    match ranges.iter().find(|range| range.end > size || range.start > range.end) {
        None => Ok(()),
        Some(range) => {
            let reason =
                format!("its footer points to bytes {}..{}, but the object has {size}", range.start, range.end);
            Err(Error::NotParquet { url: object.url.clone(), reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nearly_all_objects_needed_is_asked_for_once_there_are_some() {
        let size = TailSize::default();
        (1..LEARNED_FROM as u64).for_each(|number| size.learn(30_000 + number));
        assert_eq!(size.get(), config::FOOTER_BYTES);
        size.learn(100);
        assert_eq!(size.get(), 40_960);
        (0..LEARNED_FROM).for_each(|_| size.learn(100));
        assert_eq!(size.get(), 40_960);
        // One in a hundred may cost a second request.
        (0..10_000).for_each(|_| size.learn(100));
        assert_eq!(size.get(), 16 << 10);
        (0..20_000).for_each(|_| size.learn(1 << 40));
        assert_eq!(size.get(), 8 << 20);
    }
}
