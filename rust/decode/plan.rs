//! Decides from the footer which columns may be decoded here, and which of their bytes to fetch.

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, TimeUnit as ArrowUnit};
use parquet::basic::{ConvertedType, Encoding, LogicalType, TimeUnit, Type as PhysicalType};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::schema::types::ColumnDescriptor;

use super::Column;
use super::binary::BinaryValues;
use super::body::Body;
use super::codec::{Codec, Scratch};
use super::coded::CodedValues;
use super::fixed::FixedValues;
use super::flags::FlagValues;
use super::flat::Flat;
use super::group::{Chain, Group, chains};
use super::header::{Kind, PageHeader};
use super::list::List;
use super::pages::{Pages, Piece};
use super::rows::Rows;
use super::values::{Leaf, Values};
use crate::rows::RowSet;
use crate::snapshot::Fragment;

/// How a value is stored.
#[derive(Debug, Clone, Copy)]
enum Width {
    /// In one bit.
    Bit,
    /// In four bytes, of which only the first matters.
    One,
    /// In four bytes, of which only the first two matter.
    Two,
    Half,
    Four,
    Eight,
    Any,
}

/// Maximum leaves of a column, which are read together: pages of all are decompressed at the same time.
const MOST_LEAVES: usize = 32;

/// A column of a read: what to fetch, and how to decode it.
#[derive(Debug)]
pub(crate) struct ColumnPlan {
    field: FieldRef,
    leaves: Vec<LeafPlan>,
    /// The ranges of all leaves.
    ranges: Vec<Range<u64>>,
}

/// A leaf of a column.
#[derive(Debug)]
struct LeafPlan {
    /// The rows of the page in each range, if the index tells.
    rows: Vec<Option<Range<u32>>>,
    /// Whether an index says which rows the pages begin with, needed or not.
    is_indexed: bool,
    codec: Codec,
    chain: Chain,
    width: Width,
    num_rows: u32,
    /// Number of levels in the whole chunk.
    num_levels: u64,
    /// Approximate bytes of its values, if they have variable length.
    value_bytes: u64,
}

/// Plans a column of a row group, of which the rows `wanted` are to be read; `None` if it is left to the `parquet` crate.
pub(crate) fn plan(fragment: &Fragment, row_group: u32, column: usize, wanted: &RowSet) -> Option<ColumnPlan> {
    let field = fragment.field(column);
    let chains = chains(field, fragment.inner(column).map_or(0, |inner| inner.level))?;
    let places = fragment.leaves(column);
    if chains.len() != places.len() || chains.len() > MOST_LEAVES {
        return None;
    }
    let (mut leaves, mut ranges) = (Vec::new(), Vec::new());
    for (chain, place) in chains.into_iter().zip(places) {
        leaves.push(plan_leaf(fragment, row_group, place, chain, wanted, &mut ranges)?);
    }
    // Fetched ranges come in the order of the object.
    ranges.is_sorted_by_key(|range| range.start).then(|| ColumnPlan { field: Arc::clone(field), leaves, ranges })
}

/// Plans a leaf, and appends what to fetch for it.
fn plan_leaf(
    fragment: &Fragment,
    row_group: u32,
    leaf: usize,
    chain: Chain,
    wanted: &RowSet,
    ranges: &mut Vec<Range<u64>>,
) -> Option<LeafPlan> {
    let metadata = fragment.row_group(row_group);
    let column = metadata.column(leaf);
    let descriptor = column.column_descr();
    let levels = (i16::try_from(chain.depths.len()).ok()?, i16::from(chain.value));
    if levels != (descriptor.max_rep_level(), descriptor.max_def_level()) || !column.encodings().all(is_known) {
        return None;
    }
    let num_rows = u32::try_from(metadata.num_rows()).ok()?;
    let (needed, rows) = match (wanted, fragment.offset_indexes(row_group)) {
        (RowSet::All, _) | (_, None) => (vec![chunk(column)], vec![None]),
        (some, Some(indexes)) => pages_of(chunk(column).start, indexes.get(leaf)?.page_locations(), some, num_rows)?,
    };
    ranges.extend(needed);
    Some(LeafPlan {
        rows,
        is_indexed: fragment.offset_indexes(row_group).is_some(),
        codec: Codec::of(column.compression())?,
        width: width(&chain.value_type, descriptor)?,
        chain,
        num_rows,
        num_levels: u64::try_from(column.num_values()).ok()?,
        value_bytes: value_bytes(column),
    })
}

/// Returns whether an encoding is supported; a chunk's encodings include those of levels.
fn is_known(encoding: Encoding) -> bool {
    #[expect(deprecated, reason = "old writers name it for levels that they do not store")]
    let of_levels = Encoding::BIT_PACKED;
    encoding == of_levels
        || matches!(
            encoding,
            Encoding::PLAIN
                | Encoding::RLE
                | Encoding::PLAIN_DICTIONARY
                | Encoding::RLE_DICTIONARY
                | Encoding::BYTE_STREAM_SPLIT
                | Encoding::DELTA_BINARY_PACKED
                | Encoding::DELTA_LENGTH_BYTE_ARRAY
                | Encoding::DELTA_BYTE_ARRAY
        )
}

fn chunk(column: &ColumnChunkMetaData) -> Range<u64> {
    let (start, len) = column.byte_range();
    start..start.saturating_add(len)
}

/// Returns the ranges of the dictionary of a chunk that begins at `start`, and of the pages with rows of `wanted`, with
/// the rows of each page.
#[expect(clippy::type_complexity, reason = "two lists of equal length")]
fn pages_of(
    start: u64,
    locations: &[PageLocation],
    wanted: &RowSet,
    num_rows: u32,
) -> Option<(Vec<Range<u64>>, Vec<Option<Range<u32>>>)> {
    let first = u64::try_from(locations.first()?.offset).ok()?;
    let (mut ranges, mut rows) = (Vec::new(), Vec::new());
    if first != start {
        ranges.push(start..first);
        rows.push(None);
    }
    let first_row = |page: &PageLocation| u32::try_from(page.first_row_index).ok();
    for (place, page) in locations.iter().enumerate() {
        let end = locations.get(place + 1).map_or(Some(num_rows), first_row)?;
        let of_page = first_row(page)?..end;
        // Pages without rows are requested within a run by the `parquet` crate, which may have to read on.
        if !wanted.has(of_page.start..end.max(of_page.start.saturating_add(1))) {
            continue;
        }
        let (at, len) = (u64::try_from(page.offset).ok()?, u64::try_from(page.compressed_page_size).ok()?);
        ranges.push(at..at.checked_add(len)?);
        rows.push(Some(of_page));
    }
    Some((ranges, rows))
}

/// Returns the storage of values whose bits are those of the Arrow type.
fn width(data_type: &DataType, column: &ColumnDescriptor) -> Option<Width> {
    match (data_type, column.physical_type()) {
        (DataType::Boolean, PhysicalType::BOOLEAN) => Some(Width::Bit),
        (DataType::Int8 | DataType::UInt8, PhysicalType::INT32) => Some(Width::One),
        (DataType::Int16 | DataType::UInt16, PhysicalType::INT32) => Some(Width::Two),
        (DataType::Float16, PhysicalType::FIXED_LEN_BYTE_ARRAY) if column.type_length() == 2 => Some(Width::Half),
        (DataType::Int32 | DataType::UInt32 | DataType::Date32, PhysicalType::INT32)
        | (DataType::Float32, PhysicalType::FLOAT) => Some(Width::Four),
        (DataType::Int64 | DataType::UInt64, PhysicalType::INT64) | (DataType::Float64, PhysicalType::DOUBLE) => {
            Some(Width::Eight)
        }
        (DataType::Timestamp(unit, _), PhysicalType::INT64) if is_unit(*unit, column) => Some(Width::Eight),
        (DataType::Time32(unit), PhysicalType::INT32) if is_unit(*unit, column) => Some(Width::Four),
        (DataType::Time64(unit), PhysicalType::INT64) if is_unit(*unit, column) => Some(Width::Eight),
        (DataType::Duration(_), PhysicalType::INT64) if column.logical_type_ref().is_none() => Some(Width::Eight),
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary, PhysicalType::BYTE_ARRAY) => {
            Some(Width::Any)
        }
        _ => None,
    }
}

/// Returns whether timestamps or times of day are stored in a unit.
fn is_unit(unit: ArrowUnit, column: &ColumnDescriptor) -> bool {
    let stored = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Timestamp(stored)), _) => &stored.unit,
        (Some(LogicalType::Time(stored)), _) => &stored.unit,
        (None, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIME_MILLIS) => &TimeUnit::MILLIS,
        (None, ConvertedType::TIMESTAMP_MICROS | ConvertedType::TIME_MICROS) => &TimeUnit::MICROS,
        _ => return false,
    };
    matches!(
        (unit, stored),
        (ArrowUnit::Millisecond, TimeUnit::MILLIS)
            | (ArrowUnit::Microsecond, TimeUnit::MICROS)
            | (ArrowUnit::Nanosecond, TimeUnit::NANOS)
    )
}

/// Returns the approximate bytes of a chunk's variable-length values: as recorded by the writer or, without a
/// dictionary, the size of the pages without lengths.
fn value_bytes(column: &ColumnChunkMetaData) -> u64 {
    let noted = column.unencoded_byte_array_data_bytes().and_then(|bytes| u64::try_from(bytes).ok());
    let plain = || {
        let lengths = column.num_values().saturating_mul(4);
        u64::try_from(column.uncompressed_size().saturating_sub(lengths)).unwrap_or(0)
    };
    noted.unwrap_or_else(|| if column.dictionary_page_offset().is_none() { plain() } else { 0 })
}

impl ColumnPlan {
    /// Returns the byte ranges to fetch.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns whether its pages may be read one by one; those of texts are read together.
    pub(crate) fn may_read_pages(&self) -> bool {
        self.leaves.iter().all(|leaf| !matches!(leaf.width, Width::Any))
    }

    /// Returns a reader of the rows `wanted`, whose values take at most `memory_bytes` at once; `bodies` holds the
    /// bytes of each of [`Self::ranges`].
    pub(crate) fn open(
        &self,
        wanted: &Arc<RowSet>,
        bodies: Vec<Body>,
        memory_bytes: u64,
        scratch: Scratch,
    ) -> Box<dyn Column> {
        let mut bodies = bodies.into_iter();
        let mut scratch = Some(scratch);
        let mut open = |leaf: &LeafPlan| {
            let pieces = bodies.by_ref().take(leaf.rows.len()).zip(&leaf.rows);
            let pieces = pieces.map(|(body, rows)| Piece { body, rows: rows.clone() }).collect();
            leaf.open(wanted, pieces, memory_bytes, scratch.take().unwrap_or_default())
        };
        match &self.leaves[..] {
            [leaf] if leaf.chain.data_type == *self.field.data_type() => open(leaf),
            leaves => {
                let leaves = leaves.iter().map(open).collect();
                Box::new(Group::new(Arc::clone(&self.field), leaves))
            }
        }
    }

    /// Returns a reader of the rows `wanted` of text or bytes as keys of their [dictionary](Column::dictionary): 32-bit
    /// integers if they have keys, else values. `None` for other columns, and if the dictionary has more than
    /// `most_values`.
    pub(crate) fn open_coded(
        &self,
        wanted: &Arc<RowSet>,
        bodies: Vec<Body>,
        memory_bytes: u64,
        most_values: usize,
    ) -> Option<Box<dyn Column>> {
        let [leaf] = &self.leaves[..] else { return None };
        let Some(Body::Here(first)) = bodies.first() else { return None };
        let (first, _) = PageHeader::parse(first).ok()?;
        let is_small = first.kind == Kind::Dictionary && first.num_values <= most_values;
        if !is_small || !matches!(leaf.width, Width::Any) || leaf.chain.data_type != *self.field.data_type() {
            return None;
        }
        if !leaf.chain.depths.is_empty() || leaf.chain.hidden != 0 {
            return None;
        }
        let pieces = bodies.into_iter().zip(&leaf.rows).map(|(body, rows)| Piece { body, rows: rows.clone() });
        let values = Box::new(CodedValues::new(leaf.texts(memory_bytes)));
        Some(leaf.open_values(values, wanted, pieces.collect(), Scratch::default()))
    }
}

impl LeafPlan {
    fn texts(&self, memory_bytes: u64) -> BinaryValues {
        BinaryValues::new(self.chain.value_type.clone(), (self.value_bytes, self.num_levels), memory_bytes)
    }

    fn open(&self, wanted: &Arc<RowSet>, pieces: Vec<Piece>, memory_bytes: u64, scratch: Scratch) -> Box<dyn Column> {
        let value_type = self.chain.value_type.clone();
        let values: Box<dyn Values> = match self.width {
            Width::Bit => Box::new(FlagValues::new()),
            Width::One => Box::new(FixedValues::<u8, 4>::new(value_type)),
            Width::Two => Box::new(FixedValues::<u16, 4>::new(value_type)),
            Width::Half => Box::new(FixedValues::<u16, 2>::new(value_type)),
            Width::Four => Box::new(FixedValues::<u32, 4>::new(value_type)),
            Width::Eight => Box::new(FixedValues::<u64, 8>::new(value_type)),
            Width::Any => Box::new(self.texts(memory_bytes)),
        };
        self.open_values(values, wanted, pieces, scratch)
    }

    fn open_values(
        &self,
        values: Box<dyn Values>,
        wanted: &Arc<RowSet>,
        pieces: Vec<Piece>,
        scratch: Scratch,
    ) -> Box<dyn Column> {
        let (pages, leaf) = (Pages::new(pieces, self.is_indexed, self.codec, scratch), Leaf::new(values));
        let is_whole = **wanted == RowSet::All;
        let wanted = Rows::new(Arc::clone(wanted), self.num_rows);
        if self.chain.depths.is_empty() {
            return Box::new(Flat::new(pages, leaf, wanted, (self.chain.value, self.chain.hidden)));
        }
        // All rows, or the wanted rows' lengths are unknown.
        let num_levels = if is_whole { Some((self.num_levels, u64::from(self.num_rows))) } else { None };
        Box::new(List::new(pages, leaf, wanted, &self.chain, num_levels))
    }
}

#[cfg(test)]
mod tests {
    use parquet::arrow::arrow_reader::RowSelection;
    use proptest::prelude::*;

    use super::*;

    const PAGE_BYTES: i32 = 10;

    proptest! {
        /// If values cannot be decoded here, the `parquet` crate decodes the same bytes.
        #[test]
        fn the_parquet_crate_asks_for_no_other_pages(
            rows_of_pages in prop::collection::vec(0u32..4, 1..20),
            gaps in prop::collection::vec((0u32..6, 1u32..6), 1..8),
        ) {
            let num_rows: u32 = rows_of_pages.iter().sum();
            let mut end = 0;
            let runs = gaps.iter().map(|(gap, len)| {
                let start = end + gap;
                end = start + len;
                start..end.min(num_rows)
            });
            let runs: Vec<_> = runs.take_while(|run| run.start < run.end).collect();
            prop_assume!(!runs.is_empty());
            let mut first_row = 0;
            let locations: Vec<_> = rows_of_pages.iter().zip(0..).map(|(len, place)| {
                let page = PageLocation {
                    offset: place * i64::from(PAGE_BYTES),
                    compressed_page_size: PAGE_BYTES,
                    first_row_index: i64::from(first_row),
                };
                first_row += len;
                page
            }).collect();
            let wanted = RowSet::Runs(runs.clone().into());
            let (ranges, rows) = pages_of(0, &locations, &wanted, num_rows).unwrap();
            let mask = (0..num_rows).map(|row| wanted.has(row..row + 1)).collect();
            prop_assert_eq!(&pages_of(0, &locations, &RowSet::Mask(mask), num_rows).unwrap().0, &ranges);
            let selected = runs.iter().map(|run| run.start as usize..run.end as usize);
            let selection = RowSelection::from_consecutive_ranges(selected, num_rows as usize);
            for asked in selection.scan_ranges(&locations) {
                prop_assert!(ranges.contains(&asked), "{asked:?} is not among {ranges:?}");
            }
            for (range, rows) in ranges.iter().zip(&rows) {
                let rows = rows.clone().unwrap();
                let is_wanted = runs.iter().any(|run| run.start < rows.end && rows.start < run.end);
                prop_assert!(is_wanted || rows.is_empty(), "{range:?} holds none of {runs:?}");
            }
        }
    }
}
