//! Estimates the memory for reading a row group, from footer and offset index alone.
//!
//! A read holds the fetched bytes, and in addition what the decoder needs (decompressed pages, levels, arrays before a
//! cast) and the arrays themselves. Pages of different columns begin at different rows, so the fewer rows a read has,
//! the more of the fetched bytes belong to other rows.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use arrow_schema::DataType;
use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::fragment::{decoded_bytes, dictionary_bytes, unsigned};
use super::{Constant, Fragment, Snapshot};
use crate::source::{coalesce, num_bytes};

/// Columns are decoded in groups whose decompressed pages take at most this fraction of the memory, unless those of a
/// single column are larger.
const GROUPS_IN_MEMORY: u64 = 64;

/// Bounds for a group: fewer columns would cost more time than they save memory.
const GROUP_BYTES: RangeInclusive<u64> = 256 << 10..=4 << 20;

/// The assumed size of a page without an index: the usual target of writers.
const USUAL_PAGE_BYTES: u64 = 1 << 20;

/// Parts are made so small that no offsets reach farther: three fourths of what 32 bits hold, since this is estimated.
const MOST_OFFSETS: u64 = 3 << 29;

/// Bytes per row while the order of rows is computed: a key and the row's number twice, to sort them, and buckets.
const ORDERING_BYTES: u64 = 17;

/// Bytes per row of an order: the row at each place while it is decoded, and the place of each row until it has left.
const ORDER_BYTES: u64 = 4;

/// Orders of fewer rows are not counted: each takes less than a small page.
const LEAST_ORDERED_ROWS: u32 = 1024;

/// Maximum number of parts that [`cut`] makes.
const MAX_PARTS: usize = 1024;

/// What a part may cost, in halves of the `most` of [`Fragment::cut_by_cost`], if smaller parts would fetch these
/// quarters of the wanted bytes in all, or more.
const CONCESSIONS: [(u64, u64); 4] = [(5, 1), (6, 2), (12, 4), (24, 6)];

/// Bytes that a read holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadCost {
    /// Bytes fetched.
    pub(crate) fetched: u64,
    /// Bytes needed only for decoding.
    pub(crate) working: u64,
    /// Bytes of the decoded arrays.
    pub(crate) decoded: u64,
    /// Bytes of the largest column.
    pub(crate) largest: u64,
    /// How far the offsets of 32 bits of a column reach: over bytes of texts, or items of lists.
    pub(crate) offsets: u64,
}

impl ReadCost {
    /// Returns all bytes that are held while the read is decoded.
    pub(crate) fn total(&self) -> u64 {
        self.fetched.saturating_add(self.working).saturating_add(self.decoded)
    }

    /// Returns the cost if rows are reordered: `largest` is temporarily held twice, while fetched bytes no longer are.
    pub(crate) fn in_another_order(self, largest: u64) -> Self {
        Self { working: self.working.max(largest.saturating_sub(self.fetched)), ..self }
    }

    /// Returns the cost with the order of `num_rows` rows, which is computed before they are decoded.
    pub(crate) fn with_order_of(self, num_rows: u32) -> Self {
        if num_rows < LEAST_ORDERED_ROWS {
            return self;
        }
        let bytes = |of_row: u64| u64::from(num_rows).saturating_mul(of_row);
        let decoded = self.decoded.saturating_add(bytes(ORDER_BYTES));
        let while_decoding = self.working.saturating_add(bytes(ORDER_BYTES));
        Self { working: while_decoding.max(bytes(ORDERING_BYTES).saturating_sub(decoded)), decoded, ..self }
    }
}

/// The columns of a read in one fragment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ColumnLayout {
    /// Root columns, ascending.
    roots: Vec<Root>,
    /// Decoded bytes per row of the columns that the fragment lacks.
    missing_row_bytes: u64,
    /// Of these, the bytes per row of the largest value of a folder that has offsets of 32 bits.
    missing_row_offsets: u64,
    /// Bytes of pages that are decompressed at the same time.
    group_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Root {
    index: usize,
    leaves: Range<usize>,
    is_cast: bool,
    has_small_offsets: bool,
}

/// The cost of reading some rows of a leaf column.
struct LeafCost {
    range: Range<u64>,
    decoded: u64,
    levels: u64,
    /// Bytes of its values if their lengths vary, otherwise their number if they are items of lists.
    offsets: u64,
    /// The largest page and the dictionary, decompressed, and the decompressor.
    pages: u64,
}

/// The cost of reading parts one after another.
#[derive(Default)]
struct CostOfParts {
    /// The largest part's, without and with reordering.
    largest: u64,
    needed: u64,
    /// The bytes that all parts fetch.
    fetched: u64,
    /// See [`ReadCost::offsets`].
    offsets: u64,
}

impl CostOfParts {
    fn and(self, part: ReadCost, num_rows: u32, is_shuffled: bool) -> Self {
        let (largest, needed) = match is_shuffled {
            true => (part.with_order_of(num_rows), part.in_another_order(part.largest).with_order_of(num_rows)),
            false => (part, part),
        };
        Self {
            largest: self.largest.max(largest.total()),
            needed: self.needed.max(needed.total()),
            fetched: self.fetched.saturating_add(part.fetched),
            offsets: self.offsets.max(part.offsets),
        }
    }
}

impl ColumnLayout {
    /// Returns the layout of the dataset's columns `projection` in a fragment, to be read within `memory_bytes`.
    pub(crate) fn new(snapshot: &Snapshot, fragment: &Fragment, projection: &[usize], memory_bytes: u64) -> Self {
        let group_bytes = (memory_bytes / GROUPS_IN_MEMORY).clamp(*GROUP_BYTES.start(), *GROUP_BYTES.end());
        let mut layout = Self { group_bytes, ..Self::default() };
        for &column in projection {
            let data_type = snapshot.columns.field(column).data_type();
            match fragment.columns[column] {
                Some(index) => {
                    let stored = fragment.field(index).data_type();
                    layout.roots.push(Root {
                        index,
                        leaves: fragment.leaves(index),
                        is_cast: stored != data_type,
                        has_small_offsets: has_small_offsets(stored) || has_small_offsets(data_type),
                    });
                }
                None => {
                    let constant = fragment.constant(column);
                    let bytes = constant.map_or_else(|| row_bytes(data_type), Constant::row_bytes);
                    layout.missing_row_bytes = layout.missing_row_bytes.saturating_add(bytes);
                    if constant.is_some() && has_small_offsets(data_type) {
                        layout.missing_row_offsets = layout.missing_row_offsets.max(bytes);
                    }
                }
            }
        }
        layout.roots.sort_unstable_by_key(|root| root.index);
        layout
    }

    /// Returns the layouts of all fragments; equal ones are shared.
    pub(crate) fn of_all(snapshot: &Snapshot, projection: &[usize], memory_bytes: u64) -> Vec<Arc<Self>> {
        let mut layouts: Vec<Arc<Self>> = Vec::with_capacity(snapshot.fragments.len());
        for fragment in &snapshot.fragments {
            let layout = Self::new(snapshot, fragment, projection, memory_bytes);
            let same = layouts.last().filter(|last| ***last == layout).cloned();
            layouts.push(same.unwrap_or_else(|| Arc::new(layout)));
        }
        layouts
    }
}

impl Fragment {
    /// Estimates the read of `rows` of a row group, with ranges at most `gap_bytes` apart fetched together.
    pub(crate) fn read_cost(
        &self,
        layout: &ColumnLayout,
        row_group: u32,
        rows: &Range<u32>,
        gap_bytes: u64,
    ) -> ReadCost {
        let is_indexed = self.has_offset_index(row_group);
        let num_rows = u64::from(rows.end - rows.start);
        let mut cost = ReadCost {
            decoded: num_rows.saturating_mul(layout.missing_row_bytes),
            offsets: num_rows.saturating_mul(layout.missing_row_offsets),
            ..ReadCost::default()
        };
        let (mut ranges, mut cast, mut group_pages, mut group_levels) = (Vec::new(), 0_u64, 0_u64, 0_u64);
        for root in &layout.roots {
            let (mut pages, mut levels, before) = (0_u64, 0_u64, cost.decoded);
            for leaf in root.leaves.clone().map(|leaf| self.leaf_cost(row_group, leaf, rows, is_indexed)) {
                ranges.push(leaf.range);
                cost.decoded = cost.decoded.saturating_add(leaf.decoded);
                cast = cast.saturating_add(if root.is_cast { leaf.decoded } else { 0 });
                pages = pages.saturating_add(leaf.pages);
                levels = levels.saturating_add(leaf.levels);
                cost.offsets = cost.offsets.max(if root.has_small_offsets { leaf.offsets } else { 0 });
            }
            cost.largest = cost.largest.max(cost.decoded - before);
            if group_pages.saturating_add(pages) > layout.group_bytes {
                (group_pages, group_levels) = (0, 0);
            }
            group_pages = group_pages.saturating_add(pages);
            group_levels = group_levels.saturating_add(levels);
            cost.working = cost.working.max(group_pages.saturating_add(group_levels));
        }
        cost.working = cost.working.saturating_add(cast);
        cost.fetched = num_bytes(&coalesce(&ranges, gap_bytes));
        cost
    }

    /// Returns the root columns of a read of `rows`, in the groups in which they are decoded.
    pub(crate) fn column_groups(&self, layout: &ColumnLayout, row_group: u32, rows: &Range<u32>) -> Vec<Vec<usize>> {
        let is_indexed = self.has_offset_index(row_group);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut group_pages = 0_u64;
        for root in &layout.roots {
            let leaves = root.leaves.clone().map(|leaf| self.leaf_cost(row_group, leaf, rows, is_indexed).pages);
            let pages = leaves.fold(0, u64::saturating_add);
            match groups.last_mut() {
                Some(group) if group_pages.saturating_add(pages) <= layout.group_bytes => {
                    group.push(root.index);
                    group_pages += pages;
                }
                _ => {
                    groups.push(vec![root.index]);
                    group_pages = pages;
                }
            }
        }
        groups
    }

    /// Returns the bytes of the dictionaries of the layout's columns, which every part of a row group needs.
    pub(crate) fn all_dictionary_bytes(&self, layout: &ColumnLayout, row_group: u32) -> u64 {
        let leaves = layout.roots.iter().flat_map(|root| root.leaves.clone());
        leaves.map(|leaf| dictionary_bytes(self.row_group(row_group).column(leaf))).fold(0, u64::saturating_add)
    }

    /// Cuts `rows` of a row group at pages, so that reading a part costs at most `target` bytes; if parts share pages
    /// or dictionaries, [more](CONCESSIONS) to avoid fetching these again and again. Cuts within pages, or without an
    /// index, only what would otherwise hardly fit (including reordering if `is_shuffled`), or what offsets of 32 bits
    /// do not reach: each part then fetches the same bytes.
    pub(crate) fn cut_by_cost(
        &self,
        layout: &ColumnLayout,
        row_group: u32,
        rows: Range<u32>,
        gap_bytes: u64,
        (target, most): (u64, u64),
        is_shuffled: bool,
    ) -> Vec<Range<u32>> {
        let measure = |parts: &[Range<u32>]| {
            let cost_of = |part: &Range<u32>| self.read_cost(layout, row_group, part, gap_bytes);
            let all = CostOfParts::default();
            parts.iter().fold(all, |all, part| all.and(cost_of(part), part.end - part.start, is_shuffled))
        };
        let mut best = vec![rows.clone()];
        let mut cost = measure(&best);
        let wanted = cost.fetched.max(1);
        let is_indexed = self.has_offset_index(row_group);
        let pages = if is_indexed { self.heaviest_pages(layout, row_group, &rows) } else { Vec::new() };
        // Rows within a page cost the whole page again, so this is a last resort.
        let most_of_pages = most.saturating_mul(if is_indexed { 2 } else { 4 });
        let (mut num_parts, mut num_stalled) = (2, 0);
        while (cost.largest > target || cost.offsets > MOST_OFFSETS) && num_parts <= MAX_PARTS {
            let is_at_pages = num_parts / 2 < pages.len();
            let fits = (is_indexed || cost.needed <= most_of_pages) && cost.offsets <= MOST_OFFSETS;
            if !is_at_pages && cost.largest <= most_of_pages && fits {
                break;
            }
            let parts = if is_at_pages { cut_pages(&pages, &rows, num_parts) } else { cut_rows(&rows, num_parts) };
            let theirs = measure(&parts);
            let is_cheaper = |&(quarters, halves): &(u64, u64)| {
                let fetch_much = theirs.fetched.saturating_mul(4) >= wanted.saturating_mul(quarters);
                fetch_much && cost.largest.saturating_mul(2) <= most.saturating_mul(halves)
            };
            if fits && CONCESSIONS.iter().any(is_cheaper) {
                break;
            }
            if theirs.largest < cost.largest - cost.largest / 16 {
                (best, cost, num_stalled) = (parts, theirs, 0);
            } else {
                // Uneven pages may take another round to separate; the rest is what every part costs.
                num_stalled += 1;
                if num_stalled == 2 {
                    break;
                }
            }
            num_parts *= 2;
        }
        best
    }

    /// Returns the pages in `rows` of the layout's largest leaf, as (first row, offset).
    fn heaviest_pages(&self, layout: &ColumnLayout, row_group: u32, rows: &Range<u32>) -> Vec<(u32, u64)> {
        let bytes = |leaf: &usize| self.row_group(row_group).column(*leaf).compressed_size();
        let heaviest = layout.roots.iter().flat_map(|root| root.leaves.clone()).max_by_key(bytes);
        let pages =
            heaviest.and_then(|leaf| self.offset_index(row_group, leaf)).map_or(&[][..], |i| i.page_locations());
        let first_row = |page: &PageLocation| u32::try_from(page.first_row_index).unwrap_or(u32::MAX);
        let inside = pages.iter().filter(|page| (rows.start..rows.end).contains(&first_row(page)));
        inside.map(|page| (first_row(page), unsigned(page.offset))).collect()
    }

    fn leaf_cost(&self, row_group: u32, leaf: usize, rows: &Range<u32>, is_indexed: bool) -> LeafCost {
        let group = self.row_group(row_group);
        let column = group.column(leaf);
        let chunk = self.chunk_range(row_group, leaf);
        let all_rows = u64::try_from(group.num_rows()).unwrap_or(1).max(1);
        let num_rows = u64::from(rows.end - rows.start);
        let is_whole = num_rows >= all_rows;
        let unpacked = |bytes: u64| match column.compression() {
            Compression::UNCOMPRESSED => 0,
            _ => scale(bytes, unsigned(column.uncompressed_size()), unsigned(column.compressed_size())),
        };
        let dictionary = dictionary_bytes(column);
        // A dictionary of strings is copied out of its page.
        let codec = codec_bytes(column.compression(), unsigned(column.uncompressed_size()));
        let held = unpacked(dictionary).saturating_mul(2).saturating_add(codec);
        let descriptor = column.column_descr();
        let is_flat = descriptor.max_rep_level() == 0;
        let is_text = column.column_type() == PhysicalType::BYTE_ARRAY;
        let index = self.offset_index(row_group, leaf).filter(|_| is_indexed);
        let Some(touched) = index.map(|index| Touched::new(index.page_locations(), rows, all_rows)) else {
            let decoded = scale(decoded_bytes(column), num_rows, all_rows);
            let values = scale(unsigned(column.num_values()), num_rows, all_rows);
            let longest = decoded_bytes(column) / unsigned(column.num_values()).max(1);
            let pages = unpacked(chunk.end - chunk.start).min(USUAL_PAGE_BYTES.max(longest));
            return LeafCost {
                range: chunk,
                decoded: decoded.saturating_add(if is_flat { 0 } else { num_rows * 4 }),
                levels: levels_bytes(column, values),
                offsets: if is_text { decoded } else { values },
                pages: pages.saturating_add(held),
            };
        };
        let by_rows = |all: u64| scale(all, num_rows, all_rows);
        let is_even = is_flat && !is_text;
        // Rows vary in length: the pages tell where the bytes are.
        let by_bytes = |all: u64| scale(all, touched.weight, touched.of).max(by_rows(all));
        let values =
            if is_flat { by_rows(unsigned(column.num_values())) } else { by_bytes(unsigned(column.num_values())) };
        let told = index.and_then(|index| index.unencoded_byte_array_data_bytes());
        let decoded = match told {
            Some(bytes) if is_text => touched.interpolate(bytes).saturating_add(values.saturating_mul(4)),
            _ if is_even => by_rows(decoded_bytes(column)),
            _ => by_bytes(decoded_bytes(column)),
        };
        let range = if is_whole { chunk } else { touched.start.saturating_sub(dictionary)..touched.end };
        LeafCost {
            range,
            decoded: decoded.saturating_add(if is_flat { 0 } else { num_rows * 4 }),
            levels: levels_bytes(column, values),
            offsets: if is_text { decoded } else { values },
            pages: unpacked(touched.largest).saturating_add(held),
        }
    }
}

/// The pages that contain some rows.
struct Touched {
    start: u64,
    end: u64,
    largest: u64,
    /// The bytes that belong to the rows, among the bytes `of` all pages.
    weight: u64,
    of: u64,
    /// For each page touched: its number, and the fraction that belongs to the rows, in 1024ths.
    shares: Vec<(usize, u64)>,
}

impl Touched {
    fn new(pages: &[PageLocation], rows: &Range<u32>, all_rows: u64) -> Self {
        let first_row = |page: usize| pages.get(page).map_or(all_rows, |page| unsigned(page.first_row_index));
        let bytes = |page: &PageLocation| u64::try_from(page.compressed_page_size).unwrap_or(0);
        let (from, to) = (u64::from(rows.start), u64::from(rows.end));
        let first = pages.partition_point(|page| unsigned(page.first_row_index) <= from).saturating_sub(1);
        let last = pages.partition_point(|page| unsigned(page.first_row_index) < to).max(first + 1).min(pages.len());
        let shares = (first..last).map(|page| {
            let (start, end) = (first_row(page), first_row(page + 1));
            let inside = end.min(to).saturating_sub(start.max(from));
            (page, scale(1024, inside, end.saturating_sub(start)))
        });
        let shares: Vec<_> = shares.collect();
        let end_of = |page: &PageLocation| unsigned(page.offset) + bytes(page);
        let start = pages.get(first).map_or(0, |page| unsigned(page.offset));
        let whole_start = pages.first().map_or(0, |page| unsigned(page.offset));
        Self {
            start,
            end: pages[first..last].last().map_or(start, end_of),
            largest: pages[first..last].iter().map(bytes).max().unwrap_or(0),
            weight: shares.iter().map(|&(page, share)| scale(bytes(&pages[page]), share, 1024)).sum(),
            of: pages.last().map_or(0, end_of).saturating_sub(whole_start),
            shares,
        }
    }

    /// Returns the portion of each page's content that belongs to the rows.
    fn interpolate(&self, of_pages: &[i64]) -> u64 {
        let of = |page: usize| of_pages.get(page).map_or(0, |bytes| unsigned(*bytes));
        self.shares.iter().map(|&(page, share)| scale(of(page), share, 1024)).sum()
    }
}

/// Cuts `rows` into at most `num_parts` parts of about equal bytes, at the pages given as (first row, offset).
fn cut_pages(pages: &[(u32, u64)], rows: &Range<u32>, num_parts: usize) -> Vec<Range<u32>> {
    let (Some(&(_, first)), Some(&(_, last))) = (pages.first(), pages.last()) else { return vec![rows.clone()] };
    let mut starts = vec![rows.start];
    for part in 1..num_parts as u64 {
        let offset = first + scale(last - first, part, num_parts as u64);
        let next = pages.partition_point(|page| page.1 < offset);
        if let Some(&(row, _)) = pages.get(next).filter(|page| starts.last().is_some_and(|last| page.0 > *last)) {
            starts.push(row);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([rows.end]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).collect()
}

/// Cuts `rows` into at most `num_parts` parts of equal length.
fn cut_rows(rows: &Range<u32>, num_parts: usize) -> Vec<Range<u32>> {
    let len = (rows.end - rows.start).div_ceil(u32::try_from(num_parts).unwrap_or(u32::MAX)).max(1);
    (rows.start..rows.end).step_by(len as usize).map(|start| start..start.saturating_add(len).min(rows.end)).collect()
}

/// Returns `all · part / of`, rounded up.
fn scale(all: u64, part: u64, of: u64) -> u64 {
    let product = u128::from(all) * u128::from(part);
    u64::try_from(product.div_ceil(u128::from(of.max(1)))).unwrap_or(u64::MAX)
}

/// Returns the size of a decompressor's state; every column has one, for `num_bytes` of uncompressed data.
fn codec_bytes(compression: Compression, num_bytes: u64) -> u64 {
    match compression {
        Compression::ZSTD(_) => 192 << 10,
        Compression::GZIP(_) => 48 << 10,
        // Its window is no longer than its content.
        Compression::BROTLI(_) => (128 << 10) + num_bytes.min(1 << 20),
        _ => 0,
    }
}

/// Returns the bytes of the levels of `values`, which the decoder holds if a validity bit is not enough.
fn levels_bytes(column: &ColumnChunkMetaData, values: u64) -> u64 {
    let descriptor = column.column_descr();
    let of_repetition = if descriptor.max_rep_level() > 0 { 2 } else { 0 };
    let of_definition = if of_repetition > 0 || descriptor.max_def_level() > 1 { 2 } else { 0 };
    values.saturating_mul(of_repetition + of_definition)
}

/// Returns whether arrays of a type have offsets of 32 bits.
fn has_small_offsets(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) => true,
        DataType::LargeList(item) | DataType::FixedSizeList(item, _) => has_small_offsets(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_small_offsets(field.data_type())),
        _ => false,
    }
}

/// Returns the size of a NULL in an array of `data_type`.
fn row_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeBinary(len) => u64::try_from(*len).unwrap_or(0),
        DataType::FixedSizeList(item, len) => {
            row_bytes(item.data_type()).saturating_mul(u64::try_from(*len).unwrap_or(0))
        }
        DataType::Struct(fields) => {
            fields.iter().map(|field| row_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        other => other.primitive_width().unwrap_or(4) as u64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_begin_at_pages_and_weigh_the_same() {
        let pages = [(0, 100), (10, 200), (20, 300), (25, 400), (40, 500)];
        assert_eq!(cut_pages(&pages, &(0..60), 2), [0..20, 20..60]);
        assert_eq!(cut_pages(&pages, &(0..60), 64), [0..10, 10..20, 20..25, 25..40, 40..60]);
        assert_eq!(cut_pages(&[], &(3..60), 4).len(), 1);
    }

    #[test]
    fn an_order_costs_what_its_rows_do_not_take_anyway() {
        let bytes = |of_row: u64| {
            let rows = ReadCost { fetched: 2000 * of_row, decoded: 2000 * of_row, ..ReadCost::default() };
            assert_eq!(rows.with_order_of(100), rows);
            rows.with_order_of(2000).total() - rows.total()
        };
        assert_eq!([0, 1, 8, 100].map(bytes), [17 * 2000, 16 * 2000, 9 * 2000, 8 * 2000]);
    }

    #[test]
    fn only_the_pages_of_the_rows_are_touched() {
        let pages = [(4, 100, 0), (104, 100, 10), (204, 50, 20)].map(|(offset, size, first_row_index)| PageLocation {
            offset,
            compressed_page_size: size,
            first_row_index,
        });
        let touched = Touched::new(&pages, &(15..20), 30);
        assert_eq!((touched.start, touched.end, touched.largest, touched.weight, touched.of), (104, 204, 100, 50, 250));
        let touched = Touched::new(&pages, &(15..22), 30);
        assert_eq!((touched.start, touched.end, touched.weight), (104, 254, 61));
        assert_eq!(touched.interpolate(&[7, 1000, 100]), 500 + 21);
    }

    proptest! {
        #[test]
        fn merged_pages_are_the_cheapest_way_to_read_them_and_never_dearer_than_the_chunk(
            pages in prop::collection::vec((1_u64..1000, any::<bool>()), 1..9), gap in 0_u64..1500,
        ) {
            let mut end = 4;
            let pages: Vec<_> = pages.into_iter().map(|(len, is_wanted)| { end += len; (end - len..end, is_wanted) }).collect();
            let wanted: Vec<_> = pages.iter().filter(|page| page.1).map(|page| page.0.clone()).collect();
            prop_assume!(!wanted.is_empty());
            // A request costs what is sent while it waits.
            let price = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start + gap).sum::<u64>();
            let merged = price(&coalesce(&wanted, gap));
            prop_assert!(merged <= end - 4 + gap);
            for bridged in 0_u32..1 << (wanted.len() - 1) {
                let mut other = vec![wanted[0].clone()];
                for (place, page) in wanted.iter().skip(1).enumerate() {
                    match other.last_mut() {
                        Some(last) if bridged >> place & 1 == 1 => last.end = page.end,
                        _ => other.push(page.clone()),
                    }
                }
                prop_assert!(merged <= price(&other));
            }
        }

        #[test]
        fn parts_tile_their_rows(
            start in 0_u32..1000, len in 1_u32..100_000, num_parts in 1_usize..3000,
            steps in prop::collection::vec((1_u32..3000, 1_u64..9_000_000), 0..50),
        ) {
            let rows = start..start + len;
            let mut page = (start, 4);
            let pages: Vec<_> = steps.iter().map(|step| {
                page = (page.0 + step.0, page.1 + step.1);
                page
            }).filter(|page| page.0 < rows.end).collect();
            for parts in [cut_rows(&rows, num_parts), cut_pages(&pages, &rows, num_parts)] {
                prop_assert!(parts.len() <= num_parts);
                prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (rows.start, rows.end));
                prop_assert!(parts.iter().all(|part| part.start < part.end));
                prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }
}
