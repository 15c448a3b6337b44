//! A column of a row group that our own decoders read, as long as they can.

use std::mem;

use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use super::parquet_columns::{Fetched, ParquetColumns, ParquetReader, WantedRows, damaged};
use crate::decode::{Column, ColumnPlan, Items, Misfit, Scratch};
use crate::error::Result;
use crate::panics;

/// A column that is read from its first wanted row to the last.
///
/// Where its pages turn out to be nothing for our decoders, the `parquet` crate reads the rest of the same bytes.
pub(super) struct OwnColumn {
    root: usize,
    plan: ColumnPlan,
    rows: WantedRows,
    /// For the other decoder, and for who begins again.
    fetched: Fetched,
    num_read: usize,
    state: State,
}

enum State {
    Own(Box<dyn Column>),
    Foreign(Box<ParquetReader>, Vec<ArrayRef>),
    /// It has failed.
    Failed,
    /// Nothing is read any more.
    Closed(Scratch),
}

impl OwnColumn {
    /// Returns the object's root column `root`, of which `fetched` holds what was planned.
    pub(super) fn new(root: usize, plan: ColumnPlan, rows: WantedRows, fetched: Fetched, scratch: Scratch) -> Self {
        let column = plan.open(&rows.set, fetched.bodies.clone(), rows.memory_bytes, scratch);
        let state = State::Own(column);
        Self { root, plan, rows, fetched, num_read: 0, state }
    }

    /// Returns the object's root column.
    pub(super) fn root(&self) -> usize {
        self.root
    }

    /// Returns the column's type in the object.
    pub(super) fn data_type(&self) -> &DataType {
        self.rows.snapshot.fragment(self.rows.row_group).reader.schema().field(self.root).data_type()
    }

    /// Returns the number of rows to read, from the first.
    pub(super) fn num_rows(&self) -> usize {
        self.rows.num_rows
    }

    /// Begins again with the first row.
    pub(super) fn rewind(&mut self) {
        let scratch = mem::replace(&mut self.state, State::Failed).into_scratch();
        let column = self.plan.open(&self.rows.set, self.fetched.bodies.clone(), self.rows.memory_bytes, scratch);
        (self.num_read, self.state) = (0, State::Own(column));
    }

    /// Gives back the bytes. Nothing is read any more.
    pub(super) fn close(&mut self) {
        self.fetched = Fetched::default();
        self.state = State::Closed(mem::replace(&mut self.state, State::Failed).into_scratch());
    }

    /// Returns the next rows.
    pub(super) fn read(&mut self, num_rows: usize) -> Result<ArrayRef> {
        if let State::Own(column) = &mut self.state {
            // What a decoder finds wrong is for the other one to say, a panic included.
            let read = panics::caught(|| column.read(num_rows));
            if let Ok(Ok(array)) = read {
                self.num_read += num_rows;
                return Ok(array);
            }
            self.state = State::Failed;
            match read {
                Ok(Err(Misfit::TOO_LARGE)) => return Err(self.rows.too_large(self.root, "values")),
                Ok(Err(said @ Misfit::TOO_HIGH)) => {
                    return Err(self.rows.column_error(self.root, damaged(&said.to_string())));
                }
                _ => {}
            }
            self.state = State::Foreign(Box::new(self.reopen()?), Vec::new());
        }
        let State::Foreign(reader, pending) = &mut self.state else {
            return Err(self.rows.error(None, damaged("a column is read after it failed")));
        };
        let left = self.rows.num_rows - self.num_read;
        let array = take(reader, pending, num_rows, left)
            .inspect_err(|_| self.state = State::Failed)?
            .map_err(|source| self.rows.error(None, source.into()))?;
        self.num_read += num_rows;
        Ok(array)
    }

    /// Takes some of the next rows, as [`Column::take_items`] does.
    pub(super) fn take_items(&mut self, num_rows: usize, row_len: usize, width: usize) -> Option<(usize, Items<'_>)> {
        let State::Own(column) = &mut self.state else { return None };
        let (num_taken, items) = column.take_items(num_rows, row_len, width)?;
        self.num_read += num_taken;
        Some((num_taken, items))
    }

    /// Hands what is left of the column to the other decoder.
    fn reopen(&self) -> Result<ParquetReader> {
        let rows = if self.num_read == 0 { self.rows.clone() } else { self.rows.after(self.num_read) };
        let (columns, ranges) = ParquetColumns::try_new(&rows, vec![self.root])?;
        let fetched = self.fetched.part(ranges)?;
        let fetched = fetched.ok_or_else(|| self.rows.error(None, damaged("it lists other pages than it has")))?;
        columns.open(rows, fetched)
    }

    /// Gives back the memory for the next column.
    pub(super) fn into_scratch(self) -> Scratch {
        self.state.into_scratch()
    }
}

impl State {
    fn into_scratch(self) -> Scratch {
        match self {
            Self::Own(column) => column.into_scratch(),
            Self::Closed(scratch) => scratch,
            Self::Foreign(..) | Self::Failed => Scratch::default(),
        }
    }
}

/// Returns exactly `num_rows` of a reader, whose batches are as large as it likes. `pending` is what is left of the last.
fn take(
    reader: &mut ParquetReader,
    pending: &mut Vec<ArrayRef>,
    num_rows: usize,
    remaining_rows: usize,
) -> Result<Result<ArrayRef, arrow_schema::ArrowError>> {
    let mut taken: Vec<ArrayRef> = Vec::new();
    let (mut missing, mut num_bytes) = (num_rows, 0);
    while missing > 0 {
        if pending.is_empty() {
            let left = remaining_rows.saturating_sub(num_rows - missing);
            let batch = reader.next_batch(left)?;
            num_bytes += batch.get_array_memory_size() as u64;
            if !taken.is_empty() {
                reader.check_bytes(num_bytes)?;
            }
            *pending = batch.into_parts().1;
        }
        for array in mem::take(pending) {
            let len = array.len().min(missing);
            missing -= len;
            if len < array.len() {
                pending.push(array.slice(len, array.len() - len));
            }
            taken.push(array.slice(0, len));
        }
    }
    if taken.len() == 1 {
        return Ok(Ok(taken.swap_remove(0)));
    }
    let arrays: Vec<&dyn Array> = taken.iter().map(AsRef::as_ref).collect();
    Ok(arrow_select::concat::concat(&arrays))
}
