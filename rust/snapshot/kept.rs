//! Column indexes and bloom filters that were read with a footer.
//!
//! They are right before the footer, so the read of a small object's end includes them. Copies are kept, up to a number
//! of bytes: filters that can use them need not request them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::metadata::ParquetMetaData;

use super::footer::extent;
use crate::source::{coalesce, part_of};

/// Column indexes and bloom filters of an object, ascending.
#[derive(Debug, Clone, Default)]
pub(super) struct IndexBytes(Arc<[(Range<u64>, Bytes)]>);

impl IndexBytes {
    /// Copies the column indexes of the object of `metadata` that are among what was read, then its bloom filters,
    /// within `keep_bytes`.
    pub(super) fn of(metadata: &ParquetMetaData, read: &[(Range<u64>, Bytes)], mut keep_bytes: u64) -> Self {
        let columns = || metadata.row_groups().iter().flat_map(|group| group.columns());
        let indexes =
            columns().filter_map(|column| extent(column.column_index_offset()?, column.column_index_length()?));
        let blooms =
            columns().filter_map(|column| extent(column.bloom_filter_offset()?, column.bloom_filter_length()?));
        let mut kept = Vec::new();
        for ranges in [indexes.collect::<Vec<_>>(), blooms.collect()] {
            for range in coalesce(&ranges, 0) {
                let holder = read.iter().find(|(have, _)| have.start <= range.start && range.end <= have.end);
                let Some((have, bytes)) = holder.filter(|_| range.end - range.start <= keep_bytes) else { continue };
                let Some(part) = part_of(bytes, have.start, &range) else { continue };
                keep_bytes -= range.end - range.start;
                // A slice would keep everything alive that was read with it.
                kept.push((range, Bytes::copy_from_slice(&part)));
            }
        }
        kept.sort_unstable_by_key(|(range, _)| range.start);
        Self(kept.into())
    }

    /// Returns the bytes of `range`, if they were kept.
    pub(super) fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        let after = self.0.partition_point(|(have, _)| have.start <= range.start);
        let (have, bytes) = self.0.get(after.checked_sub(1)?)?;
        part_of(bytes, have.start, range)
    }
}
