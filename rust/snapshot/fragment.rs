//! One Parquet object of a dataset, and what its footer says about its row groups.

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{FieldRef, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::Type as PhysicalType;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};

use super::find::Source;
use super::footer::{self, Parsed};
use super::inner::Inner;
use super::kept::IndexBytes;
use super::packed::Tail;
use super::partition::Constant;
use super::types::Schemas;
use crate::error::{Error, Result};
use crate::panics;
use crate::plan::{self, Page, RowGroupLayout};
use crate::source::Object;

/// The message if the libraries that derive Arrow types panic; theirs follows, unless it only names Rust's functions.
const UNREADABLE_SCHEMA: &str =
    "its schema is corrupt, or has a type that cannot be read, such as Polars' 128-bit integers";

/// One Parquet object of a dataset: its footer, and the mapping of its columns to the dataset's.
#[derive(Debug, Clone)]
pub struct Fragment {
    pub(crate) object: Object,
    /// The store's index among the snapshot's.
    pub(crate) store: usize,
    /// Footer, offset index, and the Arrow types to decode to.
    pub(crate) reader: ArrowReaderMetadata,
    /// Those types, with the extension types that Parquet's logical types stand for.
    pub(super) schema: SchemaRef,
    /// For each column of the dataset, and each field of its structs, the [column](Self::field) here; `None` if it is
    /// missing, and so NULL.
    pub(crate) columns: Arc<[Option<usize>]>,
    /// The index of each root column's first leaf, and finally the number of leaves.
    first_leaves: Arc<[u32]>,
    /// The fields of structs.
    pub(super) inner: Arc<[Inner]>,
    pub(crate) footer_digest: [u8; 32],
    /// Column indexes and bloom filters that were read with the footer.
    kept: IndexBytes,
    /// The path relative to what was listed, whose folders may be partition columns.
    pub(super) relative: Box<str>,
    /// The values of the dataset's columns that come from the object's folders, in the order of the columns.
    pub(super) constants: Box<[(usize, Constant)]>,
    /// The bytes that the footer was parsed from, as catalogues store them.
    pub(super) packed: Bytes,
    /// How many bytes from the object's end they cover.
    pub(super) tail_bytes: u64,
}

impl Fragment {
    /// Parses the end of an object, checks its footer and derives the Arrow types. What schemas have in common with
    /// those of `schemas` is shared. Keeps up to `keep_bytes` of the indexes that were read with the footer.
    ///
    /// `packed` is what `tail` was unpacked from, if it was. Returns the missing bytes if `tail` does not have
    /// everything.
    ///
    /// # Errors
    ///
    /// [`Error::NotParquet`] for footers that contradict themselves, [`Error::DuplicateColumn`].
    pub(super) fn try_new(
        source: &Source,
        tail: &Tail,
        packed: Option<Bytes>,
        schemas: &Schemas,
        keep_bytes: u64,
    ) -> Result<Result<Self, Vec<Range<u64>>>> {
        let Source { store, object, relative } = source;
        let refuse = |reason: String| Error::NotParquet { url: object.url.clone(), reason };
        let footer = match footer::parse(object, tail, |bytes| schemas.parquet(bytes))? {
            Parsed::Needs(ranges) => return Ok(Err(ranges)),
            Parsed::Footer(footer) => *footer,
        };
        check(&footer.metadata, tail.size).map_err(refuse)?;
        let trimmed = footer::trim(tail, &footer.metadata);
        let packed = packed.unwrap_or_else(|| trimmed.pack());
        let kept = IndexBytes::of(&footer.metadata, &tail.pieces, keep_bytes);
        // Deriving types may panic on hostile footers, and on types that only their writer knows.
        let types = panics::caught(|| schemas.types(Arc::new(footer.metadata), footer.schema_bytes))
            .map_err(|said| refuse(unreadable(&said)))?
            .map_err(|error| refuse(error.to_string()))?;
        if let Some(column) = &types.duplicate {
            return Err(Error::DuplicateColumn { url: object.url.clone(), column: column.clone() });
        }
        Ok(Ok(Self {
            object: object.clone(),
            store: *store,
            reader: types.reader,
            schema: types.schema,
            columns: Arc::default(),
            first_leaves: types.first_leaves,
            inner: types.inner,
            footer_digest: footer.digest,
            kept,
            relative: relative.as_str().into(),
            constants: Box::default(),
            packed,
            tail_bytes: trimmed.num_bytes(),
        }))
    }

    /// Returns the fragment of an object whose end a catalogue stored; `None` if that is unusable.
    pub(super) fn of_packed(source: &Source, packed: &Bytes, schemas: &Schemas) -> Option<Self> {
        let tail = Tail::unpack(packed).filter(|tail| source.object.size_bytes == Some(tail.size))?;
        Self::try_new(source, &tail, Some(packed.clone()), schemas, 0).ok()?.ok()
    }

    /// Drops the indexes that came with the footer, for example if the footer is large.
    #[cfg(test)]
    pub(crate) fn forget_kept(&mut self) {
        self.kept = IndexBytes::default();
    }

    /// Returns a range of the column indexes and bloom filters, if it was kept.
    pub(crate) fn kept(&self, range: &Range<u64>) -> Option<Bytes> {
        self.kept.get(range)
    }

    /// Returns the value of the dataset's column if it comes from the object's folders.
    pub(crate) fn constant(&self, column: usize) -> Option<&Constant> {
        let place = self.constants.binary_search_by_key(&column, |(of, _)| *of).ok()?;
        Some(&self.constants[place].1)
    }

    /// Returns the footer's metadata of a row group.
    pub(crate) fn row_group(&self, index: u32) -> &RowGroupMetaData {
        self.reader.metadata().row_group(index as usize)
    }

    /// Returns the number of root columns.
    pub(super) fn num_roots(&self) -> usize {
        self.reader.schema().fields().len()
    }

    /// Returns the field of structs whose number follows those of the root columns and of the fields before it.
    pub(crate) fn inner(&self, column: usize) -> Option<&Inner> {
        self.inner.get(column.checked_sub(self.num_roots())?)
    }

    /// Returns the name and type to decode to of a column: a root column, or a [field of structs](Self::inner).
    pub(crate) fn field(&self, column: usize) -> &FieldRef {
        self.inner(column).map_or_else(|| &self.reader.schema().fields()[column], |inner| &inner.field)
    }

    /// Returns the indices of a [column](Self::field)'s leaves, which are contiguous.
    pub(crate) fn leaves(&self, column: usize) -> Range<usize> {
        match self.inner(column) {
            Some(inner) => inner.leaves.clone(),
            None => self.first_leaves[column] as usize..self.first_leaves[column + 1] as usize,
        }
    }

    /// Returns the metadata of a column's leaves in a row group.
    fn leaves_of(&self, root: usize, row_group: u32) -> &[ColumnChunkMetaData] {
        &self.row_group(row_group).columns()[self.leaves(root)]
    }

    /// Returns how many values of the dataset's column are NULL in a row group, at any depth; `None` if unknown.
    pub(crate) fn null_count(&self, column: usize, row_group: usize) -> Option<u64> {
        let index = u32::try_from(row_group).ok()?;
        let Some(root) = self.columns[column] else {
            let has_value = self.constant(column).is_some_and(|constant| !constant.is_null());
            return if has_value { Some(0) } else { u64::try_from(self.row_group(index).num_rows()).ok() };
        };
        self.leaves_of(root, index).iter().map(|leaf| self.nulls_of(root, leaf)).sum()
    }

    /// Returns how many values of a column's leaf are NULL, at any depth; `None` if unknown.
    pub(super) fn nulls_of(&self, column: usize, leaf: &ColumnChunkMetaData) -> Option<u64> {
        match leaf.column_descr().max_def_level() {
            0 => Some(0),
            // Some writers count no value of a dictionary below a NULL struct.
            _ if let Some(inner) = self.inner(column) => {
                let (_, mut below) = levels_of(leaf)?.split_last()?;
                if inner.is_presence() {
                    below = below.get(..=usize::from(inner.level))?;
                }
                below.iter().map(|&count| u64::try_from(count).ok()).sum()
            }
            _ => leaf.statistics()?.null_count_opt(),
        }
    }

    /// Returns the stored bytes of the dataset's column in a row group.
    pub(crate) fn column_bytes(&self, column: usize, row_group: u32) -> u64 {
        let leaves = self.columns[column].map_or(&[][..], |root| self.leaves_of(root, row_group));
        leaves.iter().map(|leaf| unsigned(leaf.compressed_size())).fold(0, u64::saturating_add)
    }

    /// Returns the approximate cost of decoding the dataset's column in a row group: its decoded bytes, doubled for
    /// text.
    pub(crate) fn decode_cost(&self, column: usize, row_group: u32) -> u64 {
        let leaves = self.columns[column].map_or(&[][..], |root| self.leaves_of(root, row_group));
        let cost = |leaf: &ColumnChunkMetaData| match leaf.column_type() {
            PhysicalType::BYTE_ARRAY => decoded_bytes(leaf).saturating_mul(2),
            _ => decoded_bytes(leaf),
        };
        leaves.iter().map(cost).fold(0, u64::saturating_add)
    }

    /// Returns the number of leaf values of the dataset's column in a row group; `None` if it is missing.
    pub(crate) fn num_leaf_values(&self, column: usize, row_group: usize) -> Option<u64> {
        let leaf = self.leaves_of(self.columns[column]?, u32::try_from(row_group).ok()?).first()?;
        u64::try_from(leaf.num_values()).ok()
    }

    /// Returns the decoded bytes of a row group over all columns.
    pub(crate) fn decoded_bytes(&self, row_group: u32) -> u64 {
        self.row_group(row_group).columns().iter().map(decoded_bytes).fold(0, u64::saturating_add)
    }

    /// Returns whether the footer tells the decoded bytes of the dataset's column in a row group: those of texts behind a
    /// dictionary only if the writer recorded them.
    pub(crate) fn tells_decoded_bytes(&self, column: usize, row_group: u32) -> bool {
        let leaves = self.columns[column].map_or(&[][..], |root| self.leaves_of(root, row_group));
        leaves.iter().all(|leaf| {
            leaf.column_type() != PhysicalType::BYTE_ARRAY
                || leaf.dictionary_page_offset().is_none()
                || leaf.unencoded_byte_array_data_bytes().is_some()
        })
    }

    /// Returns whether a row group's pages are listed, so that they can be read individually.
    pub(crate) fn has_offset_index(&self, row_group: u32) -> bool {
        let leaves = self.offset_indexes(row_group);
        leaves.is_some_and(|leaves| leaves.iter().all(|leaf| !leaf.page_locations().is_empty()))
    }

    /// Returns the page locations of a row group's leaves, if known.
    pub(crate) fn offset_indexes(&self, row_group: u32) -> Option<&[OffsetIndexMetaData]> {
        let leaves = self.reader.metadata().offset_index()?.get(row_group as usize)?;
        (!leaves.is_empty()).then_some(leaves)
    }

    /// Returns the page locations of a leaf of a row group, if known.
    pub(crate) fn offset_index(&self, row_group: u32, leaf: usize) -> Option<&OffsetIndexMetaData> {
        let index = self.offset_indexes(row_group)?.get(leaf)?;
        (!index.page_locations().is_empty()).then_some(index)
    }

    /// Returns the bytes of a leaf of a row group.
    pub(crate) fn chunk_range(&self, row_group: u32, leaf: usize) -> Range<u64> {
        let (start, len) = self.row_group(row_group).column(leaf).byte_range();
        start..start.saturating_add(len)
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
        // The first of the largest: `max_by_key` would return the last.
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

/// Returns how many values of a leaf have each definition level, if its footer says so.
pub(crate) fn levels_of(leaf: &ColumnChunkMetaData) -> Option<&[i64]> {
    let levels = leaf.definition_level_histogram()?.values();
    let num_levels = usize::try_from(leaf.column_descr().max_def_level()).unwrap_or(0) + 1;
    (levels.len() == num_levels).then_some(levels)
}

pub(super) fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// Returns the bytes of a chunk's dictionary page, which precedes its data pages.
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

/// Returns why an object is refused for whose types the libraries panicked, saying `said`.
fn unreadable(said: &str) -> String {
    let is_of_rust = said.contains("called `");
    if is_of_rust { UNREADABLE_SCHEMA.to_owned() } else { format!("{UNREADABLE_SCHEMA}: {said}") }
}

/// Refuses metadata that would break later arithmetic or the decoder.
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
                && u64::try_from(column.data_page_offset()).is_ok_and(|at| at <= size)
                && column.compressed_size() >= 0
                && column.num_values() >= 0
                && end.is_some_and(|end| unsigned(end) <= size);
            if !is_inside {
                let name = column.column_path().string();
                return Err(format!(
                    "column `{name}` of row group {index} claims bytes outside of the object's {size}"
                ));
            }
            let is_flat = column.column_descr().max_rep_level() == 0;
            if column.num_values() < num_rows || is_flat && column.num_values() > num_rows {
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

/// Returns whether pages follow one another in their chunk, and begin at ascending rows of the row group.
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
