//! Recovers from parts with damaged pages all rows that can be decoded individually.
//!
//! So which rows are missing depends only on the object, not on what was read at once. A row group without a page index
//! is lost as a whole: nothing tells where its pages begin.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;

use super::EpochReader;
use crate::dataset::{FetchedRanges, RowGroupRead, RowGroupRef};
use crate::plan::PieceId;
use crate::rows::RowSet;

/// What is left of a part.
#[derive(Debug)]
pub(crate) struct Salvage {
    /// The kept rows of the span that cannot be decoded: ascending runs that do not touch.
    pub(crate) damaged: Vec<Range<u32>>,
    /// The other requested rows, and their numbers in the part, ascending; `None` if there are none.
    pub(crate) left: Option<(RecordBatch, Vec<u32>)>,
}

impl EpochReader {
    /// Finds the rows of a failed part that cannot be decoded, and decodes the others of those `wanted`, or of all.
    /// Decodes each column once more, and the pages of damaged columns one by one.
    ///
    /// `None` if nothing can be told apart.
    pub(crate) fn salvage(
        &self,
        piece: PieceId,
        kept: &Range<u32>,
        wanted: Option<&[u32]>,
        fetched: &FetchedRanges,
    ) -> Option<Salvage> {
        let (_, row_group) = self.row_group_of(piece);
        let fragment = self.fragment_of(piece);
        if !fragment.has_offset_index(row_group.index) {
            return None;
        }
        let (raw, all) = self.rows_of_part(piece, kept, None);
        let (_, read) = self.rows_of_part(piece, kept, wanted);
        let mut damaged = Vec::new();
        for &column in self.dataset.projection().iter().filter(|column| fragment.columns[**column].is_some()) {
            let probe = Probe { reader: self, row_group, column, all: &all, fetched };
            if probe.is_sound(read.clone())? {
                continue;
            }
            let extents = fragment.extents(&[column], row_group.index);
            let mut starts: Vec<u32> = extents.iter().map(|extent| extent.rows.start).collect();
            starts.extend([raw.start, raw.end]);
            starts.retain(|start| (raw.start..=raw.end).contains(start));
            starts.sort_unstable();
            starts.dedup();
            // Pages that hold nothing of what is read were not fetched.
            for page in starts.windows(2).filter(|page| read.has(page[0]..page[1])) {
                let number = |row: u32| all.count(raw.start..row);
                probe.find_damaged(number(page[0])..number(page[1]), &mut damaged)?;
            }
        }
        // There may be none: unwanted rows can prevent others from being decoded.
        let damaged = joined(damaged);
        let wanted = wanted.map_or_else(|| (0..kept.end - kept.start).collect(), <[u32]>::to_vec);
        let is_left = |row: &u32| {
            let next = damaged.partition_point(|rows| rows.end <= *row);
            !damaged.get(next).is_some_and(|rows| rows.contains(row))
        };
        let left: Vec<u32> = wanted.into_iter().filter(is_left).collect();
        let damaged = damaged.iter().map(|rows| kept.start + rows.start..kept.start + rows.end).collect();
        if left.is_empty() {
            return Some(Salvage { damaged, left: None });
        }
        let mut batches = Vec::new();
        self.decode_some(piece, kept, &left, fetched, &mut batches)?;
        let batch = match <[RecordBatch; 1]>::try_from(batches) {
            Ok([batch]) => batch,
            Err(batches) => concat_batches(&batches.first()?.schema(), &batches).ok()?,
        };
        Some(Salvage { damaged, left: Some((batch, left)) })
    }

    /// Decodes the sound rows of a part, in several batches if damaged ones between them cannot be skipped.
    fn decode_some(
        &self,
        piece: PieceId,
        kept: &Range<u32>,
        rows: &[u32],
        fetched: &FetchedRanges,
        batches: &mut Vec<RecordBatch>,
    ) -> Option<()> {
        let read = self.read_part(piece, kept, Some(rows)).ok()?;
        let bodies = fetched.part(read.ranges().to_vec()).ok()??.bodies;
        match read.decode(bodies) {
            Ok(batch) => batches.push(batch),
            Err(_) if rows.len() == 1 => return None,
            Err(_) => {
                let (first, rest) = rows.split_at(rows.len() / 2);
                self.decode_some(piece, kept, first, fetched, batches)?;
                self.decode_some(piece, kept, rest, fetched, batches)?;
            }
        }
        Some(())
    }
}

/// Tries to decode rows of one column of a part.
struct Probe<'a> {
    reader: &'a EpochReader,
    row_group: RowGroupRef,
    column: usize,
    /// All kept rows of the part.
    all: &'a RowSet,
    fetched: &'a FetchedRanges,
}

impl Probe<'_> {
    /// Returns whether rows can be decoded; `None` if their bytes were not fetched.
    fn is_sound(&self, rows: RowSet) -> Option<bool> {
        let num_rows = rows.count(0..self.row_group.num_rows) as usize;
        let (snapshot, projection) = (self.reader.dataset.snapshot(), Arc::from([self.column]));
        let read = RowGroupRead::try_new(snapshot, self.row_group, &projection, rows, num_rows).ok()?;
        let read = read.within(self.reader.memory_limit);
        let bodies = self.fetched.part(read.ranges().to_vec()).ok()??.bodies;
        Some(read.decode_at_once(bodies).is_ok())
    }

    /// Collects those of some rows, counted within the part, that cannot be decoded: all of them if the first, middle
    /// and last one fail individually, as in a page with a wrong checksum; otherwise recurses into halves, as for a few
    /// values that are invalid for the type.
    fn find_damaged(&self, rows: Range<u32>, damaged: &mut Vec<Range<u32>>) -> Option<()> {
        let set_of =
            |rows: Range<u32>| RowSet::from_rows(&self.all.nth(&rows.collect::<Vec<_>>()), self.row_group.num_rows);
        if rows.is_empty() || self.is_sound(set_of(rows.clone()))? {
            return Some(());
        }
        let middle = rows.start + (rows.end - rows.start) / 2;
        for row in [rows.start, middle, rows.end - 1] {
            if rows.len() > 1 && self.is_sound(set_of(row..row + 1))? {
                self.find_damaged(rows.start..middle, damaged)?;
                return self.find_damaged(middle..rows.end, damaged);
            }
        }
        damaged.push(rows);
        Some(())
    }
}

/// Returns ranges in ascending order, with touching or overlapping ones merged.
fn joined(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_or_overlap_are_joined() {
        assert_eq!(joined(vec![5..9, 0..2, 2..4, 6..7, 20..21]), [0..4, 5..9, 20..21]);
        assert_eq!(joined(Vec::new()), []);
    }
}
