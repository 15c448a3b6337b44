//! Computes the byte ranges of rows.

use std::ops::Range;

use parquet::file::page_index::offset_index::PageLocation;

use super::Fragment;
use super::footer::extent;
use super::fragment::unsigned;

/// Bytes that are read together, and the rows that need them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: Range<u64>,
    pub(crate) rows: Range<u32>,
}

impl Fragment {
    /// Returns the parts of the dataset's `columns` in a row group: pages, and the dictionaries, which all rows need;
    /// whole columns if there is no index of their pages.
    pub(crate) fn extents(&self, columns: &[usize], row_group: u32) -> Vec<Extent> {
        let num_rows = u32::try_from(self.row_group(row_group).num_rows()).unwrap_or(u32::MAX);
        let is_indexed = self.has_offset_index(row_group);
        let mut extents = Vec::new();
        for leaf in columns.iter().filter_map(|&column| self.columns[column]).flat_map(|root| self.leaves(root)) {
            let chunk = self.chunk_range(row_group, leaf);
            let Some(index) = self.offset_index(row_group, leaf).filter(|_| is_indexed) else {
                extents.push(Extent { bytes: chunk, rows: 0..num_rows });
                continue;
            };
            let pages = index.page_locations();
            let first = pages.first().map_or(chunk.start, |page| unsigned(page.offset));
            if first > chunk.start {
                extents.push(Extent { bytes: chunk.start..first, rows: 0..num_rows });
            }
            for (place, page) in pages.iter().enumerate() {
                let rows = first_row(page)..pages.get(place + 1).map_or(num_rows, first_row);
                if let Some(bytes) = extent(page.offset, page.compressed_page_size).filter(|_| !rows.is_empty()) {
                    extents.push(Extent { bytes, rows });
                }
            }
        }
        extents
    }

    /// Returns the ranges of whole columns of a row group.
    pub(crate) fn chunk_ranges(&self, columns: &[usize], row_group: u32) -> Vec<Range<u64>> {
        let leaves = columns.iter().filter_map(|&column| self.columns[column]).flat_map(|root| self.leaves(root));
        leaves.map(|leaf| self.chunk_range(row_group, leaf)).collect()
    }
}

fn first_row(page: &PageLocation) -> u32 {
    u32::try_from(page.first_row_index).unwrap_or(u32::MAX)
}
