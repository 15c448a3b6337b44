//! Where the bytes of some rows are.

use std::ops::Range;

use parquet::file::page_index::offset_index::PageLocation;

use super::Fragment;
use super::footer::extent;
use super::fragment::unsigned;

impl Fragment {
    /// Returns the ranges that hold rows of the dataset's `columns` in a row group: the pages with rows of which
    /// `is_any_kept`, and the dictionaries; whole columns where no index says where their pages are.
    pub(crate) fn page_ranges(
        &self,
        columns: &[usize],
        row_group: u32,
        is_any_kept: impl Fn(Range<u32>) -> bool,
    ) -> Vec<Range<u64>> {
        let group = self.row_group(row_group);
        let num_rows = u32::try_from(group.num_rows()).unwrap_or(u32::MAX);
        let index = self.reader.metadata().offset_index().and_then(|index| index.get(row_group as usize));
        let mut ranges = Vec::new();
        for leaf in columns.iter().filter_map(|&column| self.columns[column]).flat_map(|root| self.leaves(root)) {
            let (start, len) = group.column(leaf).byte_range();
            let index = index.filter(|_| self.has_offset_index(row_group)).and_then(|index| index.get(leaf));
            let Some(pages) = index.map(|index| index.page_locations()) else {
                ranges.push(start..start + len);
                continue;
            };
            let first = pages.first().map_or(start, |page| unsigned(page.offset));
            if first > start {
                ranges.push(start..first);
            }
            for (place, page) in pages.iter().enumerate() {
                let end = pages.get(place + 1).map_or(num_rows, first_row);
                if first_row(page) < end && is_any_kept(first_row(page)..end) {
                    ranges.extend(extent(page.offset, page.compressed_page_size));
                }
            }
        }
        ranges
    }

    /// Returns the ranges of whole columns of a row group.
    pub(crate) fn chunk_ranges(&self, columns: &[usize], row_group: u32) -> Vec<Range<u64>> {
        let leaves = columns.iter().filter_map(|&column| self.columns[column]).flat_map(|root| self.leaves(root));
        let chunk = |leaf| {
            let (start, len) = self.row_group(row_group).column(leaf).byte_range();
            start..start + len
        };
        leaves.map(chunk).collect()
    }
}

fn first_row(page: &PageLocation) -> u32 {
    u32::try_from(page.first_row_index).unwrap_or(u32::MAX)
}
