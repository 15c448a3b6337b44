//! The bounds of a column's pages, from its column index.
//!
//! Column indexes are not kept with the footer: their bounds take more memory than everything else together. Callers
//! ask where one is, fetch its bytes, and have them parsed here, with their claims checked.

use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{ColumnOrder, SortOrder, Type as PhysicalType};
use parquet::file::metadata::{ColumnChunkMetaData, ColumnIndexBuilder};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::{SchemaDescriptor, Type};

use super::Fragment;
use super::thrift::{Reader, kind, zigzag};

const NULL_PAGES_FIELD: i16 = 1;
const MINS_FIELD: i16 = 2;
const MAXES_FIELD: i16 = 3;
const NULL_COUNTS_FIELD: i16 = 5;

/// The column index of one column chunk; one entry per page.
#[derive(Debug)]
pub(crate) struct PageBounds {
    /// The first rows of the pages, ascending from 0.
    pub(crate) first_rows: Vec<u32>,
    /// Lower bounds, of the object's type; NULL if there is none.
    pub(crate) mins: ArrayRef,
    /// Upper bounds.
    pub(crate) maxes: ArrayRef,
    /// The numbers of NULLs, if known.
    pub(crate) null_counts: Option<Vec<u64>>,
}

impl Fragment {
    /// Returns the range of a root column's column index; `None` if it could not decide more than the row group's
    /// statistics: for nested columns, for a single page, and for values whose order the writer left undefined.
    pub(crate) fn column_index_range(&self, row_group: u32, root: usize) -> Option<Range<u64>> {
        let leaf = self.flat_leaf(root)?;
        let column = self.row_group(row_group).column(leaf);
        let order = self.reader.metadata().file_metadata().column_order(leaf);
        let is_ordered = matches!(order, ColumnOrder::TYPE_DEFINED_ORDER(_)) && !has_deprecated_bounds(column);
        let num_pages = self.offset_index(row_group, leaf)?.page_locations().len();
        let start = u64::try_from(column.column_index_offset()?).ok()?;
        let end = start.checked_add(u64::try_from(column.column_index_length()?).ok()?)?;
        let is_inside = start < end && end <= self.object.size_bytes.unwrap_or(u64::MAX);
        (is_ordered && is_inside && num_pages > 1).then_some(start..end)
    }

    /// Parses the column index of a root column; `None` if it contradicts itself or the offset index.
    pub(crate) fn page_bounds(&self, row_group: u32, root: usize, index: &[u8]) -> Option<PageBounds> {
        let leaf = self.flat_leaf(root)?;
        let column = self.row_group(row_group).column(leaf);
        let descriptor = column.column_descr();
        let offset_index = self.offset_index(row_group, leaf)?;
        let parsed = ColumnIndex::parse(index)?;
        let first_rows: Vec<u32> = offset_index
            .page_locations()
            .iter()
            .map(|page| u32::try_from(page.first_row_index).ok())
            .collect::<Option<_>>()?;
        if parsed.null_pages.len() != first_rows.len() {
            return None;
        }
        let null_counts = match descriptor.max_def_level() {
            0 => Some(vec![0; first_rows.len()]),
            // Those below NULL structs may not be counted.
            _ if self.inner(root).is_some() => {
                let in_all = self.nulls_of(root, column);
                parsed.null_counts.clone().filter(|counts| Some(counts.iter().copied().sum()) == in_all)
            }
            _ => parsed.null_counts.clone(),
        };
        let bounds = parsed.bounds(descriptor.physical_type())?;
        // The schema has only this column, so that the converter finds it at 0.
        let root_type =
            Type::group_type_builder("schema").with_fields(vec![descriptor.self_type_ptr()]).build().ok()?;
        let alone = SchemaDescriptor::new(root_type.into());
        let converter = StatisticsConverter::from_column_index(0, self.field(root), &alone).ok()?;
        let (bounds, pages) = (vec![vec![bounds]], vec![vec![OffsetIndexMetaData::clone(offset_index)]]);
        let mins = converter.data_page_mins(&bounds, &pages, [&0]).ok()?;
        let maxes = converter.data_page_maxes(&bounds, &pages, [&0]).ok()?;
        let is_complete = mins.len() == first_rows.len() && maxes.len() == first_rows.len();
        is_complete.then_some(PageBounds { first_rows, mins, maxes, null_counts })
    }

    /// Returns the bounds of a root column in a row group as those of a single page; `None` if it has several.
    ///
    /// If the object does not list pages, every column is read whole, as if it were one page.
    pub(crate) fn chunk_bounds(&self, row_group: u32, root: usize) -> Option<PageBounds> {
        let leaf = self.flat_leaf(root)?;
        let group = self.row_group(row_group);
        let num_pages = self.offset_index(row_group, leaf).map_or(1, |index| index.page_locations().len());
        if num_pages > 1 || !self.has_usable_bounds(root, leaf, group.column(leaf)) {
            return None;
        }
        let parquet_schema = self.reader.parquet_schema();
        let converter = StatisticsConverter::from_column_index(leaf, self.field(root), parquet_schema).ok()?;
        let (mins, maxes) = (converter.row_group_mins([group]).ok()?, converter.row_group_maxes([group]).ok()?);
        Some(PageBounds { first_rows: vec![0], mins, maxes, null_counts: None })
    }

    /// Returns whether the bounds of a chunk of a root column's leaf are values of its type, and follow its order. Even
    /// if the footer does not say so, those of signed numbers do: they have no other order.
    pub(crate) fn has_usable_bounds(&self, root: usize, leaf: usize, column: &ColumnChunkMetaData) -> bool {
        use PhysicalType::{DOUBLE, FLOAT, INT32, INT64};
        let is_ordered = match self.reader.metadata().file_metadata().column_order(leaf) {
            ColumnOrder::TYPE_DEFINED_ORDER(_) => true,
            ColumnOrder::UNDEFINED => {
                let descriptor = column.column_descr();
                descriptor.sort_order() == SortOrder::SIGNED
                    && matches!(descriptor.physical_type(), INT32 | INT64 | FLOAT | DOUBLE)
            }
            _ => false,
        };
        is_ordered && !has_deprecated_bounds(column) && has_whole_decimals(self.field(root).data_type(), column)
    }

    /// Returns the only leaf of a root column that is not nested.
    pub(crate) fn flat_leaf(&self, root: usize) -> Option<usize> {
        let leaves = self.leaves(root);
        let is_flat = leaves.len() == 1 && !self.field(root).data_type().is_nested();
        is_flat.then_some(leaves.start)
    }
}

/// Returns whether a writer left only the deprecated bounds, whose order for bytes is not that of the type.
fn has_deprecated_bounds(column: &ColumnChunkMetaData) -> bool {
    // Statistics without bounds count as deprecated, too.
    let has_bound = |found: &Statistics| found.min_bytes_opt().is_some() || found.max_bytes_opt().is_some();
    column.statistics().is_some_and(|found| found.is_min_max_deprecated() && has_bound(found))
}

/// Returns whether bounds that are decimals in bytes have as many as a number of their type may have. The converter
/// panics on others.
fn has_whole_decimals(data_type: &DataType, column: &ColumnChunkMetaData) -> bool {
    let data_type = if let DataType::Dictionary(_, values) = data_type { values.as_ref() } else { data_type };
    let is_of_bytes = matches!(column.column_type(), PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY);
    if !is_of_bytes || !data_type.is_decimal() {
        return true;
    }
    let is_whole = |bound: &[u8]| data_type.primitive_width().is_some_and(|width| (1..=width).contains(&bound.len()));
    let bounds = column.statistics().map(|found| [found.min_bytes_opt(), found.max_bytes_opt()]);
    bounds.into_iter().flatten().flatten().all(is_whole)
}

/// A column index in its serialized form.
#[derive(Debug, Default)]
struct ColumnIndex<'a> {
    null_pages: Vec<bool>,
    mins: Vec<&'a [u8]>,
    maxes: Vec<&'a [u8]>,
    null_counts: Option<Vec<u64>>,
}

impl<'a> ColumnIndex<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (mut reader, mut index, mut last) = (Reader { bytes }, Self::default(), 0);
        loop {
            let head = *reader.bytes.first()?;
            match reader.field(&mut last) {
                Some((NULL_PAGES_FIELD, kind::LIST)) => {
                    index.null_pages = list(
                        &mut reader,
                        |kind| matches!(kind, kind::TRUE | kind::FALSE),
                        |reader| Some(reader.byte()? == kind::TRUE),
                    )?;
                }
                Some((MINS_FIELD, kind::LIST)) => index.mins = binaries(&mut reader)?,
                Some((MAXES_FIELD, kind::LIST)) => index.maxes = binaries(&mut reader)?,
                Some((NULL_COUNTS_FIELD, kind::LIST)) => {
                    let counts = list(
                        &mut reader,
                        |kind| kind == kind::I64,
                        |reader| u64::try_from(zigzag(reader.varint()?)).ok(),
                    );
                    index.null_counts = Some(counts?);
                }
                Some((_, kind)) => reader.skip(kind, 0)?,
                None if head == 0 => break,
                None => return None,
            }
        }
        let num_pages = index.null_pages.len();
        let has_all = index.mins.len() == num_pages
            && index.maxes.len() == num_pages
            && index.null_counts.as_ref().is_none_or(|counts| counts.len() == num_pages);
        has_all.then_some(index)
    }

    /// Returns the bounds in the column's type; `None` if one is not a valid value, for example if a page has only
    /// `NaN`.
    fn bounds(&self, physical_type: PhysicalType) -> Option<ColumnIndexMetaData> {
        let mut builder = ColumnIndexBuilder::new(physical_type);
        for ((&is_null, min), max) in self.null_pages.iter().zip(&self.mins).zip(&self.maxes) {
            builder.append(is_null, min.to_vec(), max.to_vec(), 0);
        }
        builder.build().ok()
    }
}

/// Reads arbitrary bytes as an index of each type.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let Some(index) = ColumnIndex::parse(bytes) else { return };
    for physical_type in [PhysicalType::BOOLEAN, PhysicalType::INT32, PhysicalType::INT96, PhysicalType::BYTE_ARRAY] {
        let bounds = index.bounds(physical_type);
        assert!(bounds.is_none_or(|bounds| bounds.num_pages() == index.null_pages.len() as u64));
    }
}

fn binaries<'a>(reader: &mut Reader<'a>) -> Option<Vec<&'a [u8]>> {
    list(reader, |kind| kind == kind::BINARY, Reader::binary)
}

/// Reads a list of items of a kind. Each takes at least a byte, so memory is bounded by what was read.
fn list<'a, T>(
    reader: &mut Reader<'a>,
    is_kind: impl Fn(u8) -> bool,
    item: impl Fn(&mut Reader<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let (kind, len) = reader.list()?;
    if (len > 0 && !is_kind(kind)) || len > reader.bytes.len() as u64 {
        return None;
    }
    (0..len).map(|_| item(reader)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two pages of Int32, the second all NULL, with counts.
    const INDEX: [u8; 28] = [
        0x19, 0x21, 2, 1, 0x19, 0x28, 4, 7, 0, 0, 0, 0, 0x19, 0x28, 4, 9, 0, 0, 0, 0, 0x15, 0, 0x19, 0x26, 2, 20, 0, 0,
    ];

    #[test]
    fn an_index_is_read_as_it_is_written() {
        let index = ColumnIndex::parse(&INDEX).unwrap();
        assert_eq!(index.null_pages, [false, true]);
        assert_eq!((index.mins[0], index.maxes[0]), (&[7, 0, 0, 0][..], &[9, 0, 0, 0][..]));
        assert_eq!(index.null_counts, Some(vec![1, 10]));
        assert_eq!(index.bounds(PhysicalType::INT32).unwrap().num_pages(), 2);
        assert!(index.bounds(PhysicalType::INT64).is_none());
    }

    #[test]
    fn what_is_cut_off_or_claims_too_much_is_no_index() {
        // The byte after the last field ends the struct; anything after that is ignored.
        assert!((0..INDEX.len() - 1).all(|len| ColumnIndex::parse(&INDEX[..len]).is_none()));
        assert!(ColumnIndex::parse(&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 7, 2, 0]).is_none());
    }

    proptest! {
        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..200), place in 0_usize..28, to: u8) {
            drop(ColumnIndex::parse(&noise));
            let mut damaged = INDEX;
            damaged[place] = to;
            drop(ColumnIndex::parse(&damaged).and_then(|index| index.bounds(PhysicalType::INT32)));
        }
    }
}
