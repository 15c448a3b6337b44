//! One Parquet object of a dataset, and what its footer says of its row groups.

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{LogicalType, Type as PhysicalType};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::schema::types::ColumnDescPtr;

use super::footer::Footer;
use super::kept::Kept;
use crate::error::{Error, Result};
use crate::plan::{self, Page, RowGroupLayout};
use crate::source::Object;

/// One Parquet object of a dataset: its footer, and how its columns become the dataset's.
#[derive(Debug, Clone)]
pub struct Fragment {
    pub(crate) object: Object,
    /// The store, among the snapshot's.
    pub(crate) store: usize,
    /// Footer, offset index, and the Arrow types to decode to.
    pub(crate) reader: ArrowReaderMetadata,
    /// Those types, with the extension types that Parquet's own types stand for.
    pub(super) schema: SchemaRef,
    /// For each column of the dataset, the root column here; `None` where it is missing, and so NULL.
    pub(crate) columns: Arc<[Option<usize>]>,
    /// The place of each root column's first leaf, and the number of leaves.
    first_leaves: Arc<[u32]>,
    pub(crate) footer_digest: [u8; 32],
    /// Column indexes and bloom filters that were read with the footer.
    kept: Kept,
}

impl Fragment {
    /// Checks a footer and derives the Arrow types. Keeps up to `keep_bytes` of the indexes that were read with it.
    ///
    /// # Errors
    ///
    /// [`Error::NotParquet`] for footers that contradict themselves, [`Error::DuplicateColumn`].
    pub(super) fn try_new(object: Object, store: usize, footer: Footer, keep_bytes: u64) -> Result<Self> {
        let refuse = |reason: String| Error::NotParquet { url: object.url.clone(), reason };
        let size = object.size_bytes.unwrap_or(u64::MAX);
        check(&footer.metadata, size).map_err(refuse)?;
        let kept = Kept::of(&footer.metadata, &footer.held, keep_bytes);
        let metadata = Arc::new(footer.metadata);
        let load = |options| ArrowReaderMetadata::try_new(Arc::clone(&metadata), options);
        let mut reader = load(ArrowReaderOptions::new()).map_err(|error| refuse(error.to_string()))?;
        let readable = readable(reader.schema());
        if readable != **reader.schema() {
            let options = ArrowReaderOptions::new().with_schema(Arc::new(readable));
            reader = load(options).map_err(|error| refuse(error.to_string()))?;
        }
        let mut leaves = reader.parquet_schema().columns().iter();
        let fields = with_extensions(reader.schema().fields(), &mut leaves);
        let schema = Arc::new(Schema::new_with_metadata(fields, reader.schema().metadata().clone()));
        if let Some(column) = duplicate(reader.schema().fields()) {
            return Err(Error::DuplicateColumn { url: object.url.clone(), column });
        }
        let first_leaves = first_leaves(&reader);
        let (columns, footer_digest) = (Arc::default(), footer.digest);
        Ok(Self { object, store, reader, schema, columns, first_leaves, footer_digest, kept })
    }

    /// Forgets the indexes that came with the footer, as where the footer is large.
    #[cfg(test)]
    pub(crate) fn forget_kept(&mut self) {
        self.kept = Kept::default();
    }

    /// Returns a part of the column indexes and bloom filters, if it was kept.
    pub(crate) fn kept(&self, range: &Range<u64>) -> Option<Bytes> {
        self.kept.get(range)
    }

    /// Returns a row group's part of the footer.
    pub(crate) fn row_group(&self, index: u32) -> &RowGroupMetaData {
        self.reader.metadata().row_group(index as usize)
    }

    /// Returns the places of a root column's leaves, which lie together.
    pub(crate) fn leaves(&self, root: usize) -> Range<usize> {
        self.first_leaves[root] as usize..self.first_leaves[root + 1] as usize
    }

    /// Returns the leaf columns of a root column, in a row group.
    fn leaves_of(&self, root: usize, row_group: u32) -> &[ColumnChunkMetaData] {
        &self.row_group(row_group).columns()[self.leaves(root)]
    }

    /// Returns how many values of the dataset's column are NULL in a row group, at any depth; `None` if nobody counted.
    pub(crate) fn null_count(&self, column: usize, row_group: usize) -> Option<u64> {
        let index = u32::try_from(row_group).ok()?;
        let Some(root) = self.columns[column] else {
            return u64::try_from(self.row_group(index).num_rows()).ok();
        };
        let count = |leaf: &ColumnChunkMetaData| match leaf.column_descr().max_def_level() {
            0 => Some(0),
            _ => leaf.statistics()?.null_count_opt(),
        };
        self.leaves_of(root, index).iter().map(count).sum()
    }

    /// Returns the bytes of the dataset's column in a row group, as they are stored.
    pub(crate) fn column_bytes(&self, column: usize, row_group: u32) -> u64 {
        let leaves = self.columns[column].map_or(&[][..], |root| self.leaves_of(root, row_group));
        leaves.iter().map(|leaf| unsigned(leaf.compressed_size())).fold(0, u64::saturating_add)
    }

    /// Returns about what decoding the dataset's column takes in a row group: its decoded bytes, twice those of texts.
    pub(crate) fn decode_cost(&self, column: usize, row_group: u32) -> u64 {
        let leaves = self.columns[column].map_or(&[][..], |root| self.leaves_of(root, row_group));
        let cost = |leaf: &ColumnChunkMetaData| match leaf.column_type() {
            PhysicalType::BYTE_ARRAY => decoded_bytes(leaf).saturating_mul(2),
            _ => decoded_bytes(leaf),
        };
        leaves.iter().map(cost).fold(0, u64::saturating_add)
    }

    /// Returns the number of leaf values of the dataset's column in a row group; `None` where it is missing.
    pub(crate) fn num_leaf_values(&self, column: usize, row_group: usize) -> Option<u64> {
        let leaf = self.leaves_of(self.columns[column]?, u32::try_from(row_group).ok()?).first()?;
        u64::try_from(leaf.num_values()).ok()
    }

    /// Returns the decoded bytes of a row group over all columns.
    pub(crate) fn decoded_bytes(&self, row_group: u32) -> u64 {
        self.row_group(row_group).columns().iter().map(decoded_bytes).fold(0, u64::saturating_add)
    }

    /// Returns whether a row group's pages are listed, so that some of them can be read alone.
    pub(crate) fn has_offset_index(&self, row_group: u32) -> bool {
        let index = self.reader.metadata().offset_index().and_then(|index| index.get(row_group as usize));
        index.is_some_and(|leaves| !leaves.is_empty() && leaves.iter().all(|leaf| !leaf.page_locations().is_empty()))
    }

    /// Returns the error for a row group of which not even a part fits into memory.
    pub(crate) fn memory_error(&self, row_group: u32, limit_bytes: u64, needed_bytes: u64) -> Error {
        let hint = if self.has_offset_index(row_group) {
            "its pages are large; write smaller ones (pyarrow: `data_page_size`, `write_batch_size`), select fewer \
             columns, or raise the limit"
        } else {
            "it has no page index and is read whole; write it with one (pyarrow: `write_page_index=True`) or with \
             smaller row groups (`row_group_size`), select fewer columns, or raise the limit"
        };
        let url = self.object.url.clone();
        Error::MemoryLimit { url, row_group: row_group as usize, limit_bytes, needed_bytes, hint }
    }

    /// Returns the first rows of a row group's spans.
    pub(crate) fn cut(&self, row_group: u32) -> Vec<u32> {
        let group = self.row_group(row_group);
        let columns = group.columns();
        // The first of the heaviest: `max_by_key` would take the last.
        let heaviest = (0..columns.len()).rev().max_by_key(|&leaf| columns[leaf].compressed_size());
        let pages = heaviest
            .filter(|_| self.has_offset_index(row_group))
            .map_or(Vec::new(), |leaf| self.pages(row_group, leaf));
        let layout = RowGroupLayout {
            num_rows: u32::try_from(group.num_rows()).unwrap_or(u32::MAX),
            bytes: columns.iter().map(|column| unsigned(column.compressed_size())).sum(),
            dictionary_bytes: columns.iter().map(dictionary_bytes).sum(),
            pages: &pages,
        };
        plan::cut(&layout)
    }

    fn pages(&self, row_group: u32, leaf: usize) -> Vec<Page> {
        let index = self.reader.metadata().offset_index();
        let leaf = index.and_then(|index| index.get(row_group as usize)?.get(leaf));
        leaf.map_or(Vec::new(), |leaf| {
            let page = |location: &PageLocation| Page {
                first_row: u32::try_from(location.first_row_index).unwrap_or(u32::MAX),
                bytes: u64::try_from(location.compressed_page_size).unwrap_or(0),
            };
            leaf.page_locations().iter().map(page).collect()
        })
    }
}

/// Returns a name, with what it is in, that two of `fields` or of the fields within one of them have.
fn duplicate(fields: &Fields) -> Option<String> {
    let mut names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Some(pair[0].to_owned());
    }
    let within = |field: &FieldRef| {
        let mut data_type = field.data_type();
        loop {
            data_type = match data_type {
                DataType::Struct(fields) => return duplicate(fields),
                DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type(),
                DataType::Map(entries, _) => entries.data_type(),
                _ => return None,
            };
        }
    };
    fields.iter().find_map(|field| within(field).map(|name| format!("{}.{name}", field.name())))
}

/// Returns the place of each root column's first leaf, and the number of leaves.
fn first_leaves(reader: &ArrowReaderMetadata) -> Arc<[u32]> {
    let schema = reader.parquet_schema();
    let num_roots = schema.root_schema().get_fields().len();
    let mut first_leaves = vec![0_u32; num_roots + 1];
    for leaf in 0..schema.num_columns() {
        first_leaves[schema.get_column_root_idx(leaf) + 1] += 1;
    }
    for root in 0..num_roots {
        first_leaves[root + 1] += first_leaves[root];
    }
    first_leaves.into()
}

pub(super) fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// Returns the bytes of a chunk's dictionary page, which lies before its data pages.
pub(super) fn dictionary_bytes(column: &ColumnChunkMetaData) -> u64 {
    column
        .dictionary_page_offset()
        .map_or(0, |dictionary| unsigned(column.data_page_offset().saturating_sub(dictionary)))
}

/// Estimates the bytes of a chunk's decoded array.
///
/// The uncompressed size is that of the encoded pages, which dictionaries make much smaller than the values.
pub(super) fn decoded_bytes(column: &ColumnChunkMetaData) -> u64 {
    let values = unsigned(column.num_values());
    let fixed = match column.column_type() {
        PhysicalType::BOOLEAN => values.div_ceil(8),
        PhysicalType::INT32 | PhysicalType::FLOAT => values.saturating_mul(4),
        PhysicalType::INT64 | PhysicalType::DOUBLE | PhysicalType::INT96 => values.saturating_mul(8),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            values.saturating_mul(unsigned(i64::from(column.column_descr().type_length())))
        }
        PhysicalType::BYTE_ARRAY => {
            let bytes = unsigned(column.unencoded_byte_array_data_bytes().unwrap_or(0));
            values.saturating_mul(4).saturating_add(bytes)
        }
    };
    fixed.max(unsigned(column.uncompressed_size()))
}

/// Refuses what would make later arithmetic or the decoder go wrong.
fn check(metadata: &ParquetMetaData, size: u64) -> Result<(), String> {
    for (index, row_group) in metadata.row_groups().iter().enumerate() {
        let num_rows = row_group.num_rows();
        if u32::try_from(num_rows).is_err() {
            return Err(format!("row group {index} claims {num_rows} rows; expected 0 to 2^32 - 1"));
        }
        let pages = metadata.offset_index().and_then(|leaves| leaves.get(index));
        for (leaf, column) in row_group.columns().iter().enumerate() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let end = start.checked_add(column.compressed_size());
            let is_inside = start >= 0
                && column.data_page_offset() >= 0
                && column.compressed_size() >= 0
                && column.num_values() >= 0
                && end.is_some_and(|end| unsigned(end) <= size);
            if !is_inside {
                let name = column.column_path().string();
                return Err(format!(
                    "column `{name}` of row group {index} claims bytes outside of the object's {size}"
                ));
            }
            if column.num_values() < num_rows {
                let (name, values) = (column.column_path().string(), column.num_values());
                return Err(format!("column `{name}` of row group {index} claims {values} values for {num_rows} rows"));
            }
            if let Some(pages) = pages.and_then(|leaves| leaves.get(leaf))
                && !is_sound(pages.page_locations(), start..start + column.compressed_size(), num_rows)
            {
                let name = column.column_path().string();
                return Err(format!("the page index of column `{name}` of row group {index} contradicts its footer"));
            }
        }
    }
    Ok(())
}

/// Returns whether pages lie one after another in their chunk, and begin at ascending rows of the row group.
fn is_sound(pages: &[PageLocation], chunk: Range<i64>, num_rows: i64) -> bool {
    let (mut end, mut row) = (chunk.start, 0);
    for (number, page) in pages.iter().enumerate() {
        let first_row = page.first_row_index;
        let is_next = page.offset >= end && first_row >= row && first_row <= num_rows && (number > 0 || first_row == 0);
        let Some(page_end) = page.offset.checked_add(i64::from(page.compressed_page_size)) else { return false };
        if !is_next || page.compressed_page_size < 0 || page_end > chunk.end {
            return false;
        }
        (end, row) = (page_end, first_row);
    }
    true
}

/// Returns `fields` with Arrow's extension types where Parquet has a type of its own for the values; `leaves` are the
/// Parquet columns below them, in order.
fn with_extensions<'a>(fields: &Fields, leaves: &mut impl Iterator<Item = &'a ColumnDescPtr>) -> Fields {
    fields.iter().map(|field| with_extension(field, leaves)).collect()
}

fn with_extension<'a>(field: &FieldRef, leaves: &mut impl Iterator<Item = &'a ColumnDescPtr>) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(with_extension(item, leaves)),
        DataType::LargeList(item) => DataType::LargeList(with_extension(item, leaves)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(with_extension(item, leaves), *len),
        DataType::Map(entries, is_sorted) => DataType::Map(with_extension(entries, leaves), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(with_extensions(fields, leaves)),
        leaf => {
            let name = match (leaf, leaves.next().and_then(|column| column.logical_type_ref())) {
                (DataType::FixedSizeBinary(16), Some(LogicalType::Uuid)) => "arrow.uuid",
                (DataType::Utf8 | DataType::LargeUtf8, Some(LogicalType::Json)) => "arrow.json",
                _ => return Arc::clone(field),
            };
            if field.extension_type_name().is_some() {
                return Arc::clone(field);
            }
            let mut metadata = field.metadata().clone();
            metadata.insert(EXTENSION_TYPE_NAME_KEY.into(), name.into());
            metadata.insert(EXTENSION_TYPE_METADATA_KEY.into(), String::new());
            return Arc::new(Field::clone(field).with_metadata(metadata));
        }
    };
    if data_type == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(data_type))
    }
}

/// Returns `schema` with the types that batches have.
///
/// Views would pin whole pages in the shuffle, so strings, binary and lists are plain. Dictionaries have an index that
/// holds the values of all row groups; those that the decoder does not know are their values.
fn readable(schema: &Schema) -> Schema {
    let fields: Fields = schema.fields().iter().map(readable_field).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn readable_field(field: &FieldRef) -> FieldRef {
    let data_type = readable_type(field.data_type());
    if data_type == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(data_type))
    }
}

/// Returns whether the decoder makes dictionaries of such values.
fn has_dictionary_decoder(values: &DataType) -> bool {
    match values {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => true,
        DataType::Float16 => false,
        number => number.is_integer() || number.is_floating() || number.is_temporal(),
    }
}

fn readable_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(index, values) => {
            let values = readable_type(values);
            let index = match **index {
                DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16 => DataType::Int32,
                ref wide => wide.clone(),
            };
            if has_dictionary_decoder(&values) {
                DataType::Dictionary(Box::new(index), Box::new(values))
            } else {
                values
            }
        }
        DataType::RunEndEncoded(_, values) => readable_type(values.data_type()),
        DataType::List(item) | DataType::ListView(item) => DataType::List(readable_field(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(readable_field(item)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(readable_field(item), *len),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(readable_field).collect()),
        DataType::Map(entries, is_sorted) => DataType::Map(readable_field(entries), *is_sorted),
        other => other.clone(),
    }
}
