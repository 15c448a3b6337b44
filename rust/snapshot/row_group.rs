//! Reads rows of one row group: first which bytes, then which arrays.
//!
//! Sans-IO: a [`RowGroupRead`] names the byte ranges it needs, its user fetches them, and [`RowGroupRead::decode`]
//! turns them into batches of the dataset's types on the calling thread. With an offset index, only pages with wanted
//! rows are named. Columns that [`decode`](crate::decode) supports are decoded there individually, the others by the
//! `parquet` crate.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array, new_empty_array};
use arrow_schema::DataType;
use bytes::Bytes;

use super::own_column::OwnColumn;
use super::parquet_columns::{FetchedRanges, ParquetColumns, ParquetReader, WantedRows, damaged};
use super::{RowGroupRef, Snapshot, schema};
use crate::decode::{self, Body, Column, ColumnPlan, FilePages, Items, Scratch};
use crate::error::Result;
use crate::panics;
use crate::rows::RowSet;
use crate::source::CachedFile;

/// What pages may take, however small the memory limit is: that bounds what is held, and a single page may be larger.
const LEAST_MEMORY_BYTES: u64 = 16 << 20;

/// Which decoders to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoders {
    /// Our own decoders, where possible.
    Own,
    /// The `parquet` crate alone, for comparison.
    Parquet,
}

/// One read of some rows and columns of one row group.
#[derive(Debug)]
pub(crate) struct RowGroupRead {
    /// The dataset's columns to return, in this order.
    projection: Arc<[usize]>,
    rows: WantedRows,
    /// Columns that are decoded together, in the object's order; empty if it has none of the columns.
    groups: Vec<ColumnGroup>,
    /// The ranges of all groups.
    ranges: Vec<Range<u64>>,
    /// Which ranges belong to columns whose pages may be read one by one.
    are_of_pages: Vec<bool>,
}

/// A column of a read, decoded on demand.
pub(crate) trait ColumnReader {
    /// Returns the column's type in the object.
    fn data_type(&self) -> &DataType;

    /// Returns the total number of rows.
    fn num_rows(&self) -> usize;

    /// Returns exactly the next `num_rows` rows.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) on corrupt pages.
    fn read(&mut self, num_rows: usize) -> Result<ArrayRef>;

    /// Takes at most `num_rows` of the next rows, if they are lists of `row_len` numbers each and that is cheaper than
    /// to [read](Self::read) them; returns how many, and their items in Arrow's layout. Integers may be of `width`
    /// bytes, if these suffice for all. `None` says nothing about the rows: [`Self::read`] returns them.
    fn take_items(&mut self, _num_rows: usize, _row_len: usize, _width: usize) -> Option<(usize, Items<'_>)> {
        None
    }

    /// Rewinds to the first row.
    fn rewind(&mut self);

    /// Releases its source. Nothing is read any more.
    fn close(&mut self) {}
}

/// Decides where the rows of a read are stored: in some batches, each row in one of them.
pub(crate) trait Storing {
    /// Returns the rows of each batch, given the total number of rows.
    fn batch_rows(&self, num_rows: usize) -> Vec<usize>;

    /// Returns whether a batch's part of a column may have another type than `data_type`, the dataset's.
    fn may_hold(&self, _stored: &ArrayRef, _data_type: &DataType) -> bool {
        false
    }

    /// Reads a column to its end, and returns each batch's part of it, in the column's type or one that [may be
    /// there](Self::may_hold).
    ///
    /// # Errors
    ///
    /// Those of the column.
    fn store(&self, column: &mut dyn ColumnReader) -> Result<Vec<ArrayRef>>;
}

/// Puts rows into one batch, as they are decoded.
struct AsDecoded;

impl Storing for AsDecoded {
    fn batch_rows(&self, num_rows: usize) -> Vec<usize> {
        vec![num_rows]
    }

    fn store(&self, column: &mut dyn ColumnReader) -> Result<Vec<ArrayRef>> {
        Ok(vec![column.read(column.num_rows())?])
    }
}

/// A column that is already decoded.
pub(crate) struct Decoded {
    column: ArrayRef,
    num_read: usize,
}

impl Decoded {
    /// Returns a column from its first row on.
    pub(crate) fn new(column: ArrayRef) -> Self {
        Self { column, num_read: 0 }
    }
}

impl ColumnReader for Decoded {
    fn data_type(&self) -> &DataType {
        self.column.data_type()
    }

    fn num_rows(&self) -> usize {
        self.column.len()
    }

    fn read(&mut self, num_rows: usize) -> Result<ArrayRef> {
        let read = self.column.slice(self.num_read, num_rows);
        self.num_read += num_rows;
        Ok(read)
    }

    fn rewind(&mut self) {
        self.num_read = 0;
    }
}

/// Some columns of a read.
#[derive(Debug)]
struct ColumnGroup {
    own: Vec<(usize, ColumnPlan)>,
    parquet: Option<ParquetColumns>,
    /// The owner of each range of the group: an index into `own`, or the `parquet` crate.
    owners: Vec<usize>,
}

impl RowGroupRead {
    /// Plans the read of the rows of `set` and the dataset columns `projection`, in batches of at most `batch_rows`.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) if the footer or the offset index contradicts itself.
    pub(crate) fn try_new(
        snapshot: &Arc<Snapshot>,
        row_group: RowGroupRef,
        projection: &Arc<[usize]>,
        set: RowSet,
        batch_rows: usize,
    ) -> Result<Self> {
        let fragment = snapshot.fragment(row_group);
        let roots: Vec<_> = projection.iter().filter_map(|&column| fragment.columns[column]).collect();
        Self::try_new_in_groups(snapshot, row_group, projection, vec![roots], set, batch_rows)
    }

    /// Plans a read whose columns are decoded by [`Self::decode_at_once`] in consecutive `groups`: ascending root
    /// columns of the object that together are those of `projection`.
    ///
    /// # Errors
    ///
    /// As for [`Self::try_new`].
    pub(crate) fn try_new_in_groups(
        snapshot: &Arc<Snapshot>,
        row_group: RowGroupRef,
        projection: &Arc<[usize]>,
        groups: Vec<Vec<usize>>,
        set: RowSet,
        batch_rows: usize,
    ) -> Result<Self> {
        let rows = WantedRows::new(snapshot, row_group, set, batch_rows);
        Self::plan(rows, projection, groups, Decoders::Own)
    }

    /// Plans the read of `rows` with the given decoders.
    ///
    /// # Errors
    ///
    /// As for [`Self::try_new`].
    pub(super) fn plan(
        rows: WantedRows,
        projection: &Arc<[usize]>,
        groups: Vec<Vec<usize>>,
        decoders: Decoders,
    ) -> Result<Self> {
        let fragment = rows.snapshot.fragment(rows.row_group);
        let own_plan = |root: usize| match decoders {
            Decoders::Own => decode::plan(fragment, rows.row_group.index, root, &rows.set),
            Decoders::Parquet => None,
        };
        let mut planned = Vec::new();
        let (mut all_ranges, mut are_of_pages) = (Vec::new(), Vec::new());
        for roots in groups.into_iter().filter(|roots| !roots.is_empty() && rows.num_rows > 0) {
            let (mut own, mut others, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
            for root in roots {
                match own_plan(root) {
                    Some(plan) => {
                        ranges.extend(plan.ranges().iter().map(|range| (range.clone(), own.len())));
                        own.push((root, plan));
                    }
                    None => others.push(root),
                }
            }
            let parquet = if others.is_empty() { None } else { Some(ParquetColumns::try_new(&rows, others)?) };
            let parquet = parquet.map(|(columns, needed)| {
                ranges.extend(needed.into_iter().map(|range| (range, own.len())));
                columns
            });
            ranges.sort_by_key(|(range, _)| range.start);
            let (ranges, owners): (Vec<_>, Vec<usize>) = ranges.into_iter().unzip();
            rows.check_inside(&ranges)?;
            are_of_pages
                .extend(owners.iter().map(|&owner| own.get(owner).is_some_and(|(_, plan)| plan.may_read_pages())));
            all_ranges.extend(ranges);
            planned.push(ColumnGroup { own, parquet, owners });
        }
        let projection = Arc::clone(projection);
        Ok(Self { projection, rows, groups: planned, ranges: all_ranges, are_of_pages })
    }

    /// Returns the read with a limit for decompressed pages and for the values of a column: what exceeds both the limit
    /// and the usual size of pages is refused.
    pub(crate) fn within(mut self, memory_bytes: u64) -> Self {
        self.rows.memory_bytes = memory_bytes.max(LEAST_MEMORY_BYTES);
        self
    }

    /// Returns the byte ranges to fetch, in the order that [`Self::decode`] expects.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns the pages of one of [`Self::ranges`] in the object's file, if they are better read one by one as they
    /// are decoded.
    pub(crate) fn in_file(&self, range: usize, file: &Arc<CachedFile>) -> Option<Body> {
        let is_of_pages = self.are_of_pages.get(range).is_some_and(|is| *is);
        let range = self.ranges.get(range).filter(|_| is_of_pages)?;
        FilePages::find(file, range).map(Body::InFile)
    }

    /// Returns the batches of the requested rows and columns; `bodies` holds the bytes of each of [`Self::ranges`].
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) on corrupt pages, [`Error::Cast`](crate::Error::Cast) on values that do not
    /// fit the dataset's type.
    pub(crate) fn decode(mut self, bodies: Vec<impl Into<Body>>) -> Result<Batches> {
        debug_assert!(self.groups.len() <= 1, "columns in groups are decoded at once");
        let fetched = std::mem::take(&mut self.ranges).into_iter().zip(bodies.into_iter().map(Into::into));
        let (own, parquet) = match self.groups.pop() {
            Some(group) => {
                let (parts, of_parquet) = group.share(&self.rows, &mut fetched.into_iter())?;
                let own = group.own.into_iter().zip(parts);
                let own = own.map(|((root, plan), part)| self.own_column(root, plan, part, Scratch::default()));
                let parquet = group.parquet.map(|columns| columns.open(self.rows.clone(), of_parquet)).transpose()?;
                (own.collect(), parquet)
            }
            None => (Vec::new(), None),
        };
        Ok(Batches { remaining_rows: self.rows.num_rows, read: self, own, parquet })
    }

    /// Returns the rows of a single-column read as dictionary keys, if it is text or bytes with a dictionary of at most
    /// `most_values`. `None` if [`Self::decode`] has to read them, or to report an error.
    pub(crate) fn decode_coded(&self, bytes: &[Bytes], most_values: usize) -> Option<CodedRows<'_>> {
        let ([_], [group]) = (&self.projection[..], &self.groups[..]) else { return None };
        let ([(root, plan)], None) = (&group.own[..], &group.parquet) else { return None };
        let bodies: Vec<Body> = bytes.iter().cloned().map(Body::from).collect();
        let column = plan.open_coded(&self.rows.set, bodies.clone(), self.rows.memory_bytes, most_values)?;
        let fetched = FetchedRanges { ranges: self.ranges.clone(), bodies };
        self.rows.check_pages(&[*root], &fetched, |_, _| Ok(())).ok()?;
        Some(CodedRows { read: self, root: *root, column, remaining_rows: self.rows.num_rows })
    }

    /// Returns the number of rows.
    pub(crate) fn num_rows(&self) -> usize {
        self.rows.num_rows
    }

    /// Returns all rows as one batch.
    ///
    /// # Errors
    ///
    /// As for [`Self::decode_onto`].
    pub(crate) fn decode_at_once(self, bodies: Vec<impl Into<Body>>) -> Result<RecordBatch> {
        let rows = self.rows.clone();
        let batch = self.decode_onto(bodies, &AsDecoded)?.pop();
        batch.ok_or_else(|| rows.error(None, damaged("nothing is left of what was decoded")))
    }

    /// Returns all rows in the batches that `storing` puts them in. Columns are decoded group by group, and the bytes
    /// of each are freed before the next; arrays hold no more memory than their values take.
    ///
    /// # Errors
    ///
    /// As for [`Self::decode`].
    pub(crate) fn decode_onto(
        mut self,
        bodies: Vec<impl Into<Body>>,
        storing: &dyn Storing,
    ) -> Result<Vec<RecordBatch>> {
        let mut fetched = std::mem::take(&mut self.ranges).into_iter().zip(bodies.into_iter().map(Into::into));
        let mut scratch = Scratch::default();
        let sizes = storing.batch_rows(self.rows.num_rows);
        let mut batches: Vec<Vec<(usize, ArrayRef)>> = vec![Vec::new(); sizes.len()];
        let mut store = |root: usize, column: &mut dyn ColumnReader| -> Result<()> {
            let stored = storing.store(column)?;
            batches.iter_mut().zip(stored).for_each(|(batch, array)| batch.push((root, array)));
            Ok(())
        };
        for group in std::mem::take(&mut self.groups) {
            let (parts, of_parquet) = group.share(&self.rows, &mut fetched)?;
            for ((root, plan), part) in group.own.into_iter().zip(parts) {
                let mut column = self.own_column(root, plan, part, std::mem::take(&mut scratch));
                store(root, &mut column)?;
                scratch = column.into_scratch();
            }
            if let Some(planned) = group.parquet {
                let mut reader = planned.open(self.rows.clone(), of_parquet)?;
                let arrays = reader.read_to_end()?;
                for (&root, mut array) in reader.roots().iter().zip(arrays) {
                    // The decoder's buffers grow by doubling.
                    array.shrink_to_fit();
                    store(root, &mut Decoded::new(array))?;
                }
            }
        }
        batches.into_iter().zip(sizes).map(|(columns, num_rows)| self.finish(columns, num_rows, storing)).collect()
    }

    fn own_column(&self, root: usize, plan: ColumnPlan, fetched: FetchedRanges, scratch: Scratch) -> OwnColumn {
        OwnColumn::new(root, plan, self.rows.clone(), fetched, scratch)
    }

    /// Converts columns of the object, by their roots, to the dataset's, except for what `storing` may hold instead.
    fn finish(
        &self,
        mut columns: Vec<(usize, ArrayRef)>,
        num_rows: usize,
        storing: &dyn Storing,
    ) -> Result<RecordBatch> {
        let fragment = self.rows.snapshot.fragment(self.rows.row_group);
        if num_rows == 0 {
            // Nothing was decoded.
            let roots = self.projection.iter().filter_map(|&column| fragment.columns[column]);
            columns = roots.map(|root| (root, new_empty_array(fragment.field(root).data_type()))).collect();
        }
        columns.sort_by_key(|(root, _)| *root);
        let arrays: Vec<ArrayRef> = columns.into_iter().map(|(_, array)| array).collect();
        let conform =
            || schema::conform(&self.rows.snapshot, self.rows.row_group, &self.projection, &arrays, num_rows, storing);
        panics::caught(conform).unwrap_or_else(|said| Err(self.rows.error(None, damaged(&said))))
    }
}

impl ColumnGroup {
    /// Distributes the group's fetched bytes to its own columns, and to the others.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) for pages with impossible claims, or that need more memory than allowed.
    fn share(
        &self,
        rows: &WantedRows,
        fetched: &mut impl Iterator<Item = (Range<u64>, Body)>,
    ) -> Result<(Vec<FetchedRanges>, FetchedRanges)> {
        let mut parts = vec![FetchedRanges::default(); self.own.len() + 1];
        for (&owner, (range, body)) in self.owners.iter().zip(fetched) {
            parts[owner].ranges.push(range);
            parts[owner].bodies.push(body);
        }
        let of_parquet = parts.pop().unwrap_or_default();
        for ((root, _), part) in self.own.iter().zip(&parts) {
            rows.check_pages(&[*root], part, |_, _| Ok(()))?;
        }
        Ok((parts, of_parquet))
    }
}

/// The batches of one [`RowGroupRead`], decoded on demand.
pub(crate) struct Batches {
    read: RowGroupRead,
    own: Vec<OwnColumn>,
    parquet: Option<ParquetReader>,
    remaining_rows: usize,
}

impl Batches {
    fn read_next(&mut self) -> Result<RecordBatch> {
        // NULLs take memory, too.
        let mut num_rows = self.remaining_rows.min(self.read.rows.batch_rows);
        let mut columns = Vec::new();
        if let Some(reader) = &mut self.parquet {
            let batch = reader.next_batch(self.remaining_rows)?;
            num_rows = batch.num_rows();
            columns.extend(reader.roots().iter().copied().zip(batch.into_parts().1));
        }
        for column in &mut self.own {
            columns.push((column.root(), column.read(num_rows)?));
        }
        self.read.finish(columns, num_rows, &AsDecoded)
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining_rows == 0 {
            return None;
        }
        let batch = self.read_next();
        self.remaining_rows = batch.as_ref().map_or(0, |batch| self.remaining_rows.saturating_sub(batch.num_rows()));
        Some(batch)
    }
}

/// Some rows of a dictionary-encoded column.
pub(crate) enum Coded {
    /// Keys into the dictionary.
    Numbers(UInt32Array),
    Values(RecordBatch),
}

/// The rows of a column as dictionary keys, decoded on demand. What it does not support, [`RowGroupRead::decode`] reads
/// from the beginning.
pub(crate) struct CodedRows<'a> {
    read: &'a RowGroupRead,
    root: usize,
    column: Box<dyn Column>,
    remaining_rows: usize,
}

impl CodedRows<'_> {
    /// Returns the dictionary's values in the dataset's type, once keys were read.
    pub(crate) fn dictionary(&self) -> Option<RecordBatch> {
        self.values(self.column.dictionary()?)
    }

    /// Returns whether there are more rows.
    pub(crate) fn has_more(&self) -> bool {
        self.remaining_rows > 0
    }

    /// Returns the next rows; `None` if they cannot be read this way.
    pub(crate) fn read_next(&mut self) -> Option<Coded> {
        let num_rows = self.remaining_rows.min(self.read.rows.batch_rows);
        let array = panics::caught(|| self.column.read(num_rows)).ok()?.ok()?;
        self.remaining_rows -= num_rows;
        match array.as_primitive_opt::<UInt32Type>() {
            Some(numbers) => Some(Coded::Numbers(numbers.clone())),
            None => self.values(array).map(Coded::Values),
        }
    }

    fn values(&self, values: ArrayRef) -> Option<RecordBatch> {
        let num_rows = values.len();
        self.read.finish(vec![(self.root, values)], num_rows, &AsDecoded).ok()
    }
}
