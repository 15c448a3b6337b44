//! Recovers from parts with damaged pages all rows that can be decoded individually.
//!
//! So which rows are missing depends only on the object, not on what was read at once: those that cannot be decoded by
//! themselves. A row group without a page index is lost as a whole: nothing tells where its pages begin.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;

use super::EpochReader;
use crate::plan::PieceId;
use crate::rows::RowSet;
use crate::snapshot::{FetchedRanges, RowGroupRead, RowGroupRef};

/// Rows that are decoded individually before more are taken for damaged altogether.
const MOST_TRIED: u32 = 16;

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
    /// Decodes each column once more, and the pages of damaged columns one by one; a page with some invalid values many
    /// times. Ends with what it found so far if `go_on`, given the number of damaged rows of a column, returns `false`.
    ///
    /// `None` if nothing can be told apart.
    pub(crate) fn salvage(
        &self,
        piece: PieceId,
        kept: &Range<u32>,
        wanted: Option<&[u32]>,
        fetched: &FetchedRanges,
        go_on: &dyn Fn(u64) -> bool,
    ) -> Option<Salvage> {
        let (_, row_group) = self.row_group_of(piece);
        let fragment = self.fragment_of(piece);
        if !fragment.has_offset_index(row_group.index) {
            return None;
        }
        let (raw, all) = self.rows_of_part(piece, kept, None);
        let (_, read) = self.rows_of_part(piece, kept, wanted);
        let in_span = |damaged: &[Range<u32>]| {
            damaged.iter().map(|rows| kept.start + rows.start..kept.start + rows.end).collect::<Vec<_>>()
        };
        let mut damaged = Vec::new();
        for &column in self.dataset.projection().iter().filter(|column| fragment.columns[**column].is_some()) {
            let probe = Probe { reader: self, row_group, column, all: &all, fetched, go_on };
            if probe.is_sound(read.clone())? {
                continue;
            }
            let extents = fragment.extents(&[column], row_group.index);
            let mut starts: Vec<u32> = extents.iter().map(|extent| extent.rows.start).collect();
            starts.extend([raw.start, raw.end]);
            starts.retain(|start| (raw.start..=raw.end).contains(start));
            starts.sort_unstable();
            starts.dedup();
            let mut of_column = Damaged::default();
            // Pages that hold nothing of what is read were not fetched.
            for page in starts.windows(2).filter(|page| read.has(page[0]..page[1])) {
                let number = |row: u32| all.count(raw.start..row);
                // Whole pages are counted in any case: only the search within one takes long.
                if !go_on(0) || !probe.find_damaged(number(page[0])..number(page[1]), &mut of_column)? {
                    damaged.append(&mut of_column.runs);
                    return Some(Salvage { damaged: in_span(&joined(damaged)), left: None });
                }
            }
            damaged.append(&mut of_column.runs);
        }
        // There may be none: unwanted rows can prevent others from being decoded.
        let damaged = joined(damaged);
        let wanted = wanted.map_or_else(|| (0..kept.end - kept.start).collect(), <[u32]>::to_vec);
        let is_left = |row: &u32| {
            let next = damaged.partition_point(|rows| rows.end <= *row);
            !damaged.get(next).is_some_and(|rows| rows.contains(row))
        };
        let left: Vec<u32> = wanted.into_iter().filter(is_left).collect();
        let damaged = in_span(&damaged);
        if left.is_empty() {
            return Some(Salvage { damaged, left: None });
        }
        let mut batches = Vec::new();
        let mut decode = |rows: &[u32]| {
            let read = self.read_part(piece, kept, Some(rows)).ok()?;
            let bodies = fetched.part(read.ranges().to_vec()).ok()??.bodies;
            Some(read.decode(bodies).map(|batch| batches.push(batch)).is_ok())
        };
        in_halves(&left, &mut |rows| if go_on(0) { decode(rows) } else { None })?;
        let batch = match <[RecordBatch; 1]>::try_from(batches) {
            Ok([batch]) => batch,
            Err(batches) => concat_batches(&batches.first()?.schema(), &batches).ok()?,
        };
        Some(Salvage { damaged, left: Some((batch, left)) })
    }
}

/// Decodes the sound rows of a part, in several batches if damaged ones between them cannot be skipped; `None` if not
/// even a single one can be decoded. `decode` returns whether it could.
fn in_halves(rows: &[u32], decode: &mut dyn FnMut(&[u32]) -> Option<bool>) -> Option<()> {
    if decode(rows)? {
        return Some(());
    }
    let (first, rest) = rows.split_at(rows.len() / 2);
    if first.is_empty() {
        return None;
    }
    in_halves(first, decode)?;
    in_halves(rest, decode)
}

/// Rows of a column that cannot be decoded.
#[derive(Debug, Default)]
struct Damaged {
    runs: Vec<Range<u32>>,
    num_rows: u64,
}

/// Tries to decode rows of one column of a part.
struct Probe<'a> {
    reader: &'a EpochReader,
    row_group: RowGroupRef,
    column: usize,
    /// All kept rows of the part.
    all: &'a RowSet,
    fetched: &'a FetchedRanges,
    go_on: &'a dyn Fn(u64) -> bool,
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

    /// Collects those of some rows, counted within the part, that cannot be decoded: all of them if [`MOST_TRIED`] fail
    /// individually, as in a page with a wrong checksum; otherwise recurses into halves, as for a few values that are
    /// invalid for the type. Returns whether to go on.
    fn find_damaged(&self, rows: Range<u32>, damaged: &mut Damaged) -> Option<bool> {
        let set_of =
            |rows: Range<u32>| RowSet::from_rows(&self.all.nth(&rows.collect::<Vec<_>>()), self.row_group.num_rows);
        if rows.is_empty() || self.is_sound(set_of(rows.clone()))? {
            return Some(true);
        }
        for row in tried(&rows) {
            if rows.len() > 1 && self.is_sound(set_of(row..row + 1))? {
                if !(self.go_on)(damaged.num_rows) {
                    return Some(false);
                }
                let middle = rows.start + (rows.end - rows.start) / 2;
                let goes_on = self.find_damaged(rows.start..middle, damaged)?;
                return Some(goes_on && self.find_damaged(middle..rows.end, damaged)?);
            }
        }
        damaged.num_rows += rows.len() as u64;
        damaged.runs.push(rows);
        Some(true)
    }
}

/// Returns the rows to try of some that may all be damaged: the first and the last, where damage may not have begun or
/// be over, and others spread over them, in step with no pattern of rows (by the golden ratio).
fn tried(rows: &Range<u32>) -> Vec<u32> {
    const GOLDEN: u32 = 0x9e37_79b9;
    let num_rows = rows.end - rows.start;
    if num_rows <= MOST_TRIED {
        return rows.clone().collect();
    }
    let place = |number: u32| (u64::from(number.wrapping_mul(GOLDEN)) * u64::from(num_rows)) >> u32::BITS;
    let spread = |number| rows.start + u32::try_from(place(number)).unwrap_or(0);
    (0..MOST_TRIED - 1).map(spread).chain([rows.end - 1]).collect()
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
    use std::cell::Cell;

    use arrow_array::{ArrayRef, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    use super::*;
    use crate::decode::Body;
    use crate::{Dataset, Io, OpenRequest, OrderSettings, Progress};

    /// Writes 200 texts in pages of 25, of which the middle one is not UTF-8.
    fn write() -> Vec<u8> {
        let text = |row: u32| format!("{row:04}{}", if row % 25 == 12 { '~' } else { '.' });
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..200).map(text)));
        let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        let properties = WriterProperties::builder()
            .set_data_page_row_count_limit(25)
            .set_write_batch_size(25)
            .set_dictionary_enabled(false)
            .build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        let mut body = writer.into_inner().unwrap();
        for at in 2..body.len() {
            if body[at] == b'~' && body[at - 2..at].iter().all(u8::is_ascii_digit) {
                body[at] = 0xff;
            }
        }
        body
    }

    #[test]
    fn the_search_for_damaged_rows_ends_once_nobody_wants_to_know_more() {
        let folder = tempfile::tempdir().unwrap();
        let (path, body) = (folder.path().join("x.parquet"), write());
        std::fs::write(&path, &body).unwrap();
        let request = OpenRequest { sources: vec![path.to_str().unwrap().to_owned()], ..OpenRequest::default() };
        let dataset = Io::current().unwrap().block_on(Dataset::open(request, &Progress::default())).unwrap();
        let answer = dataset.known_answer().unwrap();
        let reader = EpochReader::try_new(&dataset, answer, OrderSettings::Sequential, 1 << 30).unwrap();
        let (piece, kept) = (PieceId { lane: 0, span: 0 }, 0..200);
        let ranges = reader.read_part(piece, &kept, None).unwrap().ranges().to_vec();
        let at = |offset: u64| usize::try_from(offset).unwrap();
        let bytes_of = |range: &Range<u64>| Body::Here(body[at(range.start)..at(range.end)].to_vec().into());
        let fetched = FetchedRanges { bodies: ranges.iter().map(bytes_of).collect(), ranges };
        let num_tries = Cell::new(0);
        let salvage = |most: u64| {
            num_tries.set(0);
            let go_on = |num_damaged| {
                num_tries.set(num_tries.get() + 1);
                num_damaged <= most
            };
            reader.salvage(piece, &kept, None, &fetched, &go_on).unwrap()
        };
        let damaged: Vec<Range<u32>> = (0..8).map(|page| 25 * page + 12..25 * page + 13).collect();
        let all = salvage(8);
        assert_eq!(all.damaged, damaged);
        let (rows, numbers) = all.left.unwrap();
        assert_eq!((rows.num_rows(), numbers.len()), (192, 192));
        let num_tries_for_all = num_tries.get();
        let some = salvage(2);
        assert_eq!(some.damaged, damaged[..3]);
        assert!(some.left.is_none());
        assert!(num_tries.get() < num_tries_for_all / 2);
    }

    #[test]
    fn rows_are_tried_at_both_ends_and_everywhere_between() {
        assert_eq!(tried(&(7..8)), [7]);
        assert_eq!(tried(&(3..19)), (3..19).collect::<Vec<_>>());
        for rows in [3..20, 0..4000, u32::MAX - 1000..u32::MAX, 0..u32::MAX] {
            let mut tried = tried(&rows);
            tried.sort_unstable();
            assert_eq!((tried[0], tried[tried.len() - 1]), (rows.start, rows.end - 1));
            assert!(tried.windows(2).all(|pair| pair[1] - pair[0] <= (rows.end - rows.start) / 7 + 1), "{tried:?}");
        }
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_joined() {
        assert_eq!(joined(vec![5..9, 0..2, 2..4, 6..7, 20..21]), [0..4, 5..9, 20..21]);
        assert_eq!(joined(Vec::new()), []);
    }
}
