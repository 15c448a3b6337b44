//! Fetches and parses footers: one suffix request each, one more where the tail was too short.
//!
//! The offset index is loaded, because spans and page-exact reads need it; the column index is not,
//! because its bounds take more memory than everything else together.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::DecodeResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataBuilder,
    ParquetMetaDataPushDecoder,
};
use sha2::{Digest, Sha256};

use super::thrift;
use crate::config;
use crate::error::{Error, Result};
use crate::source::{Connection, Object, read_ranges, read_suffix};

/// The least bytes of a Parquet file: two magic numbers and the length of the footer.
const LEAST_BYTES: u64 = 12;

/// The most bytes read before a footer in the hope that they are the index.
const MAX_GUESSED_BYTES: u64 = 64 << 20;

const MAGIC: &[u8] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// A parsed footer and the digest of its bytes.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) metadata: ParquetMetaData,
    pub(super) digest: [u8; 32],
    /// What was read of the object.
    pub(super) held: Vec<(Range<u64>, Bytes)>,
}

/// Reads the footer of `object`, and fills in the object's size and e-tag.
///
/// Costs one request for the last [`config::FOOTER_BYTES`], and one more where the footer or the index is larger.
///
/// # Errors
///
/// Those of reading, and [`Error::NotParquet`].
pub(super) async fn read(connection: &Connection, object: &mut Object) -> Result<Footer> {
    let mut tail = match read_suffix(connection, object, config::FOOTER_BYTES).await {
        // A suffix of nothing cannot be satisfied.
        Err(Error::Store { source, .. }) if source.to_string().contains("416") => Bytes::new(),
        tail => tail?,
    };
    let size = object.size_bytes.unwrap_or(tail.len() as u64);
    let footer_bytes = footer_bytes(object, size, &tail)?;
    let mut connection = connection.then();
    if footer_bytes > tail.len() as u64 {
        // The index lies right before the footer, and is about as large.
        let end_bytes = (footer_bytes + footer_bytes.min(MAX_GUESSED_BYTES)).min(size);
        let mut bytes = read_ranges(&connection, object, std::slice::from_ref(&(size - end_bytes..size))).await?;
        tail = bytes.pop().unwrap_or_default();
        connection = connection.then();
    }
    let footer_start = usize::try_from(footer_bytes).ok().and_then(|footer| tail.len().checked_sub(footer));
    let digest = Sha256::digest(&tail[footer_start.unwrap_or(0)..]).into();
    let not_parquet = |reason: String| Error::NotParquet { url: object.url.clone(), reason };
    thrift::check_footer(&tail[footer_start.unwrap_or(0)..]).map_err(not_parquet)?;
    let tail_start = size - tail.len() as u64;
    let mut held = vec![(tail_start..size, tail)];
    let metadata = read_footer(&connection, object, size, &mut held).await?;
    let metadata = match read_indexes(&connection, object, size, &mut held, metadata).await {
        // An index that cannot be parsed is none: the pages are found without it.
        Err(Error::NotParquet { .. }) => read_footer(&connection, object, size, &mut held).await?,
        parsed => parsed?,
    };
    Ok(Footer { metadata: with_row_count(metadata), digest, held })
}

/// Returns the range that a footer tells by its offset and length.
pub(super) fn extent(offset: i64, len: i32) -> Option<Range<u64>> {
    let start = u64::try_from(offset).ok()?;
    Some(start..start.checked_add(u64::try_from(len).ok()?)?)
}

/// Parses the footer alone; `held` is what was read of the object.
async fn read_footer(
    connection: &Connection,
    object: &Object,
    size: u64,
    held: &mut Vec<(Range<u64>, Bytes)>,
) -> Result<ParquetMetaData> {
    let decoder = ParquetMetaDataPushDecoder::try_new(size)
        .map_err(|error| Error::NotParquet { url: object.url.clone(), reason: error.to_string() })?
        .with_page_index_policy(PageIndexPolicy::Skip);
    decode(connection, object, decoder, size, held, &[]).await
}

/// Adds the offset indexes to a parsed footer.
async fn read_indexes(
    connection: &Connection,
    object: &Object,
    size: u64,
    held: &mut Vec<(Range<u64>, Bytes)>,
    metadata: ParquetMetaData,
) -> Result<ParquetMetaData> {
    let columns = metadata.row_groups().iter().flat_map(|group| group.columns());
    let indexes: Vec<Range<u64>> = columns.filter_map(offset_index_range).collect();
    let decoder = ParquetMetaDataPushDecoder::try_new_with_metadata(size, metadata)
        .map_err(|error| Error::NotParquet { url: object.url.clone(), reason: error.to_string() })?
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional);
    decode(connection, object, decoder, size, held, &indexes).await
}

fn offset_index_range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    extent(column.offset_index_offset()?, column.offset_index_length()?)
}

/// Runs a decoder on the bytes in `held`, and on those that it asks for. The offset `indexes` that have been read are
/// checked before it sees them.
async fn decode(
    connection: &Connection,
    object: &Object,
    mut decoder: ParquetMetaDataPushDecoder,
    size: u64,
    held: &mut Vec<(Range<u64>, Bytes)>,
    indexes: &[Range<u64>],
) -> Result<ParquetMetaData> {
    let not_parquet = |reason: String| Error::NotParquet { url: object.url.clone(), reason };
    let check = |(range, bytes): &(Range<u64>, Bytes)| {
        let inside = indexes.iter().filter(|index| range.start <= index.start && index.end <= range.end);
        let place = |offset: u64| usize::try_from(offset - range.start).unwrap_or(bytes.len());
        inside
            .filter_map(|index| bytes.get(place(index.start)..place(index.end)))
            .try_for_each(thrift::check_offset_index)
            .map_err(|claim| not_parquet(format!("a page index is corrupt: {claim}")))
    };
    for read in held.iter() {
        check(read)?;
        decoder.push_range(read.0.clone(), read.1.clone()).map_err(|error| not_parquet(error.to_string()))?;
    }
    loop {
        // Parsing may take long for wide files, and may panic on hostile ones: not on the runtime's thread.
        let parse = move || {
            let parsed = catch_unwind(AssertUnwindSafe(|| decoder.try_decode()))
                .unwrap_or_else(|_| Err(ParquetError::General("its footer is corrupt".into())));
            (decoder, parsed)
        };
        let (returned, parsed) =
            connection.io.spawn_blocking(parse).await.map_err(|panic| not_parquet(panic.to_string()))?;
        decoder = returned;
        match parsed.map_err(|error| not_parquet(footer_reason(&error)))? {
            DecodeResult::Data(metadata) => return Ok(metadata),
            DecodeResult::NeedsData(ranges) => {
                check_inside(object, &ranges, size)?;
                let bytes = read_ranges(connection, object, &ranges).await?;
                for (range, bytes) in ranges.into_iter().zip(bytes) {
                    let read = (range, bytes);
                    check(&read)?;
                    decoder
                        .push_range(read.0.clone(), read.1.clone())
                        .map_err(|error| not_parquet(error.to_string()))?;
                    held.push(read);
                }
            }
            DecodeResult::Finished => return Err(not_parquet("its footer is empty".into())),
        }
    }
}

/// Returns the footer with the number of rows that its row groups have, which some writers leave at 0: the decoder makes
/// no batch larger than that.
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

/// Returns what the parser said, and what to do about what no parser takes.
fn footer_reason(error: &ParquetError) -> String {
    let said = error.to_string();
    let said = said.strip_prefix("Parquet error: ").unwrap_or(&said);
    let hint = if said.contains("Row group ordinal") { "; rewrite it with fewer, larger row groups" } else { "" };
    format!("{said}{hint}")
}

/// Checks the file's end and returns the length of the footer with all that follows it.
fn footer_bytes(object: &Object, size: u64, tail: &Bytes) -> Result<u64> {
    let refuse = |reason: String| Err(Error::NotParquet { url: object.url.clone(), reason });
    if size < LEAST_BYTES || tail.len() < 8 {
        return refuse(format!("it has {size} bytes, fewer than any Parquet file"));
    }
    let (rest, magic) = tail.split_at(tail.len() - MAGIC.len());
    match magic {
        MAGIC => {}
        ENCRYPTED_MAGIC => return refuse("its footer is encrypted, which is not supported".into()),
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
