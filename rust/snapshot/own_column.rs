//! A column of a row group that is read by our own decoders, as far as they can.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, new_empty_array};
use arrow_schema::{ArrowError, DataType};

use super::parquet_columns::{FetchedRanges, ParquetColumns, ParquetReader, WantedRows, damaged};
use super::row_group::ColumnReader;
use crate::decode::{Column, ColumnPlan, Items, Misfit, Scratch};
use crate::error::Result;
use crate::panics;
use crate::rows::{RowSet, row};

/// A column that is read from its first wanted row to the last.
///
/// If its pages turn out to be unsupported, the `parquet` crate reads the rest from the same bytes. For lists it then
/// reads whole pages, from which the wanted rows are taken: it counts the levels of pages that it reads completely, but
/// takes those of other rows when it skips some.
pub(super) struct OwnColumn {
    root: usize,
    plan: ColumnPlan,
    rows: WantedRows,
    /// For the other decoder, and for rewinding.
    fetched: FetchedRanges,
    num_read: usize,
    state: State,
}

enum State {
    Own(Box<dyn Column>),
    Foreign(Box<ForeignColumn>),
    /// It has failed.
    Failed,
    /// Nothing is read any more.
    Closed(Scratch),
}

impl OwnColumn {
    /// Returns the object's root column `root`, given what was planned in `fetched`.
    pub(super) fn new(
        root: usize,
        plan: ColumnPlan,
        rows: WantedRows,
        fetched: FetchedRanges,
        scratch: Scratch,
    ) -> Self {
        let column = plan.open(&rows.set, fetched.bodies.clone(), rows.memory_bytes, scratch);
        let state = State::Own(column);
        Self { root, plan, rows, fetched, num_read: 0, state }
    }

    /// Returns the object's root column.
    pub(super) fn root(&self) -> usize {
        self.root
    }

    /// Passes the rest of the column to the other decoder.
    fn reopen(&self) -> Result<ForeignColumn> {
        let wanted = if self.num_read == 0 { self.rows.clone() } else { self.rows.after(self.num_read) };
        let fragment = wanted.snapshot.fragment(wanted.row_group);
        let leaves = fragment.leaves(self.root);
        let leaf = leaves.start;
        // Pages of several leaves end at different rows.
        let is_of_lists = leaves.len() == 1 && fragment.reader.parquet_schema().column(leaf).max_rep_level() > 0;
        let read = if is_of_lists { wanted.of_whole_pages(leaf) } else { wanted.clone() };
        let (columns, ranges) = ParquetColumns::try_new(&read, vec![self.root])?;
        let fetched = self.fetched.part(ranges)?;
        let fetched = fetched.ok_or_else(|| wanted.error(None, damaged("it lists other pages than it has")))?;
        let runs = || read.set.runs(0..read.row_group.num_rows).collect::<Vec<_>>().into_iter();
        let sieve =
            is_of_lists.then(|| Sieve { wanted: wanted.set, num_left: wanted.num_rows, runs: runs(), run: 0..0 });
        let num_left = read.num_rows;
        Ok(ForeignColumn { reader: columns.open(read, fetched)?, num_left, sieve, pending: Vec::new() })
    }

    /// Returns the memory for the next column.
    pub(super) fn into_scratch(self) -> Scratch {
        self.state.into_scratch()
    }
}

impl ColumnReader for OwnColumn {
    fn data_type(&self) -> &DataType {
        self.rows.snapshot.fragment(self.rows.row_group).field(self.root).data_type()
    }

    fn num_rows(&self) -> usize {
        self.rows.num_rows
    }

    /// Reading no rows checks whether anything follows the last one.
    fn read(&mut self, num_rows: usize) -> Result<ArrayRef> {
        if let State::Own(column) = &mut self.state {
            // A decoder's errors, including panics, are left for the other one to report.
            let read = panics::caught(|| column.read(num_rows));
            if let Ok(Ok(array)) = read {
                self.num_read += num_rows;
                return Ok(array);
            }
            self.state = State::Failed;
            match read {
                Ok(Err(Misfit::TOO_LARGE)) => return Err(self.rows.too_large(self.root, "values")),
                Ok(Err(said @ (Misfit::TOO_HIGH | Misfit::TOO_SHORT | Misfit::OF_NONE))) => {
                    return Err(self.rows.column_error(self.root, damaged(&said.to_string())));
                }
                // The other decoder would have to read the last rows, too, to see what follows.
                _ if num_rows == 0 => return Err(self.rows.error(None, damaged("more follows its rows"))),
                _ => {}
            }
            self.state = State::Foreign(Box::new(self.reopen()?));
        }
        if num_rows == 0 && matches!(self.state, State::Foreign(_)) {
            return Ok(new_empty_array(self.data_type()));
        }
        let State::Foreign(column) = &mut self.state else {
            return Err(self.rows.error(None, damaged("a column is read after it failed")));
        };
        let array = column
            .read(num_rows)
            .inspect_err(|_| self.state = State::Failed)?
            .map_err(|source| self.rows.error(None, source.into()))?;
        self.num_read += num_rows;
        Ok(array)
    }

    fn take_items(&mut self, num_rows: usize, row_len: usize, width: usize) -> Option<(usize, Items<'_>)> {
        let State::Own(column) = &mut self.state else { return None };
        let (num_taken, items) = column.take_items(num_rows, row_len, width)?;
        self.num_read += num_taken;
        Some((num_taken, items))
    }

    fn rewind(&mut self) {
        let scratch = mem::replace(&mut self.state, State::Failed).into_scratch();
        let column = self.plan.open(&self.rows.set, self.fetched.bodies.clone(), self.rows.memory_bytes, scratch);
        (self.num_read, self.state) = (0, State::Own(column));
    }

    fn close(&mut self) {
        self.fetched = FetchedRanges::default();
        self.state = State::Closed(mem::replace(&mut self.state, State::Failed).into_scratch());
    }
}

impl State {
    fn into_scratch(self) -> Scratch {
        match self {
            Self::Own(column) => column.into_scratch(),
            Self::Closed(scratch) => scratch,
            Self::Foreign(_) | Self::Failed => Scratch::default(),
        }
    }
}

/// A column that the `parquet` crate reads.
struct ForeignColumn {
    reader: ParquetReader,
    /// Rows that it has not read yet.
    num_left: usize,
    /// Picks the wanted rows; `None` if all are wanted.
    sieve: Option<Sieve>,
    /// What is left of the last batch.
    pending: Vec<ArrayRef>,
}

impl ForeignColumn {
    /// Returns exactly the next `num_rows` requested rows.
    fn read(&mut self, num_rows: usize) -> Result<Result<ArrayRef, ArrowError>> {
        let mut taken: Vec<ArrayRef> = Vec::new();
        let (mut missing, mut num_bytes) = (num_rows, 0);
        while missing > 0 {
            if self.pending.is_empty() {
                for array in self.next_batch()? {
                    let kept = match &mut self.sieve {
                        Some(sieve) => sieve.kept(&array),
                        None => Ok(array),
                    };
                    match kept {
                        Ok(kept) => self.pending.push(kept),
                        Err(error) => return Ok(Err(error)),
                    }
                }
                num_bytes += self.pending.iter().map(|array| array.get_array_memory_size() as u64).sum::<u64>();
                if !taken.is_empty() {
                    self.reader.check_bytes(num_bytes)?;
                }
            }
            for array in mem::take(&mut self.pending) {
                let len = array.len().min(missing);
                missing -= len;
                if len < array.len() {
                    self.pending.push(array.slice(len, array.len() - len));
                }
                if len > 0 {
                    taken.push(array.slice(0, len));
                }
            }
        }
        if let Some(sieve) = &mut self.sieve {
            sieve.num_left = sieve.num_left.saturating_sub(num_rows);
            // What follows the last row shows whether its page is complete.
            let is_done = sieve.num_left == 0;
            while is_done && self.num_left > 0 {
                self.next_batch()?;
            }
        }
        if taken.len() == 1 {
            return Ok(Ok(taken.swap_remove(0)));
        }
        let arrays: Vec<&dyn Array> = taken.iter().map(AsRef::as_ref).collect();
        Ok(arrow_select::concat::concat(&arrays))
    }

    fn next_batch(&mut self) -> Result<Vec<ArrayRef>> {
        let batch = self.reader.next_batch(self.num_left)?;
        self.num_left = self.num_left.saturating_sub(batch.num_rows());
        Ok(batch.into_parts().1)
    }
}

/// Wanted rows among those that are read.
struct Sieve {
    wanted: Arc<RowSet>,
    num_left: usize,
    /// The rows of the next batches.
    runs: std::vec::IntoIter<Range<u32>>,
    run: Range<u32>,
}

impl Sieve {
    /// Returns the wanted rows of the next batch.
    fn kept(&mut self, array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        let (mut kept, mut num_passed) = (Vec::new(), 0);
        while num_passed < array.len() {
            if self.run.is_empty() {
                // There are as many as are read.
                let Some(run) = self.runs.next() else { break };
                self.run = run;
            }
            let len = self.run.len().min(array.len() - num_passed);
            let rows = self.run.start..self.run.start + row(len);
            for run in self.wanted.runs(rows.clone()) {
                kept.push(array.slice(num_passed + (run.start - rows.start) as usize, run.len()));
            }
            (self.run.start, num_passed) = (rows.end, num_passed + len);
        }
        match &kept[..] {
            [] => Ok(array.slice(0, 0)),
            some => arrow_select::concat::concat(&some.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{ListArray, RecordBatch};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::decode::{self, Body, tests::open};

    #[test]
    fn no_rows_after_the_last_are_no_error_of_either_decoder() {
        let lists = (0..100).map(|row| Some(vec![Some(row); 4]));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let batch = RecordBatch::try_from_iter([("lists", Arc::clone(&lists))]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let body = Bytes::from(writer.into_inner().unwrap());
        let snapshot = open(&body).unwrap();
        let row_group = snapshot.row_groups[0];
        let plan = decode::plan(snapshot.fragment(row_group), row_group.index, 0, &RowSet::All).unwrap();
        let at = |offset: u64| usize::try_from(offset).unwrap();
        let bytes_of = |range: &Range<u64>| Body::Here(body.slice(at(range.start)..at(range.end)));
        let bodies = plan.ranges().iter().map(bytes_of).collect();
        let fetched = FetchedRanges { ranges: plan.ranges().to_vec(), bodies };
        let rows = WantedRows::new(&snapshot, row_group, RowSet::All, usize::MAX);
        let mut column = OwnColumn::new(0, plan, rows, fetched, Scratch::default());
        for is_foreign in [false, true] {
            column.rewind();
            if is_foreign {
                column.state = State::Foreign(Box::new(column.reopen().unwrap()));
            }
            assert_eq!(column.read(8).unwrap().len(), 8);
            assert_eq!(&column.read(92).unwrap(), &lists.slice(8, 92));
            let none = column.read(0).unwrap();
            assert_eq!((none.len(), none.data_type()), (0, lists.data_type()));
        }
    }
}
