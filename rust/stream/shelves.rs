//! Stores the rows of a part on shelves, in the order in which they leave.
//!
//! Most columns are decoded first and then picked apart. The largest ones, lists of numbers of equal length such as
//! tokens and embeddings, are put in place directly: from their pages if these hold them in Arrow's layout, and
//! otherwise as they are decoded, a few rows at a time, while they are still in the cache. The copies bypass the cache,
//! since they are not read soon. Integers take [fewer bytes](super::narrow) if these suffice.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::copies::prefetch;
use super::gather::{Rows, SourceRow, gather_array, gather_narrowed, trusted};
use super::narrow::{Narrowing, fewest_bytes, has_nulls, item_width, narrower, stands_for, with_item_width};
use crate::decode::Items;
use crate::error::{Error, Result};
use crate::past_caches::PastCaches;
use crate::snapshot::{ColumnReader, Storing};

/// Minimum rows of a part to be stored in leaving order for the sake of the cache: smaller parts stay in it anyway.
const LEAST_ROWS: usize = 1024;

/// Maximum shelves of a part. On average, half of a part is held, and half of a shelf.
const MAX_SHELVES: usize = 8;

/// Minimum average bytes of a column on a shelf: smaller blocks are not returned to the system individually.
const LEAST_COLUMN_BYTES: usize = 64 << 10;

/// Rows that are decoded first, to see how long their lists are.
const FIRST_ROWS: usize = 8;

/// Bytes that are decoded at a time after that: they stay in the cache.
const DECODED_BYTES: usize = 128 << 10;

/// Minimum bytes of a decoded row that is put in place individually.
const LEAST_ROW_BYTES: usize = 256;

/// An order of rows, cut into shelves.
#[derive(Debug)]
pub(super) struct Shelves {
    /// The row at each place: each row once.
    rows: Vec<u32>,
    places: Places,
    narrowing: Arc<Narrowing>,
}

/// The outcome of putting lists of equal length in place.
#[derive(Debug)]
pub(super) enum Filled {
    All(Result<Vec<ArrayData>, ArrowError>),
    /// There is no room, or offsets would overflow; with what was read.
    NoRoom(ArrayData),
    /// The lists differ in length.
    Uneven,
    /// An integer does not fit into the chosen bytes.
    TooLarge,
}

/// A column whose lists were to be put in place.
#[derive(Debug)]
enum Placed {
    /// Each shelf's part of it.
    OnShelves(Vec<ArrayData>),
    /// It has to be picked apart, with what was read of it: its lists are short, or differ in length.
    Not(Vec<ArrayData>),
}

/// Where the rows of a part are.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// The place of each row: each place once.
    of_rows: Arc<[u32]>,
    /// A shelf has two to this power places.
    shelf_bits: u32,
}

impl Places {
    /// Returns a row's shelf, and its place there.
    pub(super) fn find(&self, row: u32) -> (usize, u32) {
        self.split(self.of_rows[row as usize])
    }

    /// Prefetches where a row is.
    pub(super) fn prefetch(&self, row: u32) {
        prefetch(&self.of_rows, row as usize);
    }

    fn split(&self, place: u32) -> (usize, u32) {
        ((place >> self.shelf_bits) as usize, place & ((1 << self.shelf_bits) - 1))
    }

    /// Returns the bytes that this takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.of_rows[..])
    }
}

impl Shelves {
    /// Returns shelves for rows of `schema`, about `num_bytes` in all, that leave in `order`; `None` if they are better
    /// held as they are decoded.
    pub(super) fn new(
        schema: &SchemaRef,
        num_bytes: u64,
        num_rows: usize,
        order: impl FnOnce() -> Option<Vec<u32>>,
    ) -> Option<Self> {
        let least = (schema.fields().len() * LEAST_COLUMN_BYTES).max(1) as u64;
        let num_shelves = usize::try_from(num_bytes / least).unwrap_or(MAX_SHELVES).clamp(1, MAX_SHELVES);
        let helps = num_rows >= LEAST_ROWS || num_shelves > 1 && num_rows > 1;
        let has_columns = !schema.fields().is_empty();
        let order = (has_columns && helps).then(order)?.filter(|order| order.len() == num_rows)?;
        Self::of(order, num_shelves)
    }

    /// Cuts an order into at most this many shelves; `None` if it does not name each row once.
    pub(super) fn of(rows: Vec<u32>, num_shelves: usize) -> Option<Self> {
        let mut of_rows = vec![u32::MAX; rows.len()];
        for (place, row) in (0..).zip(&rows) {
            *of_rows.get_mut(*row as usize)? = place;
        }
        let shelf_bits = rows.len().div_ceil(num_shelves.max(1)).next_power_of_two().ilog2();
        let is_order = !of_rows.contains(&u32::MAX);
        let places = Places { of_rows: of_rows.into(), shelf_bits };
        is_order.then(|| Self { rows, places, narrowing: Arc::default() })
    }

    /// Uses the results of narrowing other parts.
    pub(super) fn with_narrowing(self, narrowing: &Arc<Narrowing>) -> Self {
        Self { narrowing: Arc::clone(narrowing), ..self }
    }

    /// Returns where the rows are.
    pub(super) fn into_places(self) -> Places {
        self.places
    }

    /// Returns the rows on each shelf.
    fn each(&self) -> std::slice::Chunks<'_, u32> {
        self.rows.chunks(1 << self.places.shelf_bits)
    }

    /// Returns each shelf's part of a column: its rows, starting with those of the first of `sources`. Of dictionaries,
    /// shelves hold keys, and all of the column's values, which are in memory once.
    fn pick(&self, sources: &[ArrayData]) -> Result<Vec<ArrayData>, ArrowError> {
        if let [column] = sources {
            let words = match column.data_type() {
                DataType::Dictionary(key, _) => key,
                data_type => data_type,
            };
            // Intervals of 8 bytes are aligned to 4.
            let is_word = !matches!(words, DataType::Interval(_));
            match words.primitive_width().filter(|_| is_word) {
                Some(1) => return Ok(self.words(column, column.buffer::<u8>(0))),
                Some(2) => return Ok(self.words(column, column.buffer::<u16>(0))),
                Some(4) => return Ok(self.words(column, column.buffer::<u32>(0))),
                Some(8) => return Ok(self.words(column, column.buffer::<u64>(0))),
                _ => {}
            }
        }
        let mut firsts = Vec::with_capacity(sources.len());
        let mut end = 0;
        for source in sources {
            firsts.push(end);
            end += u32::try_from(source.len()).unwrap_or(u32::MAX);
        }
        let of_source = |&row: &u32| {
            let after = firsts.partition_point(|&first| first <= row);
            (u32::try_from(after - 1).unwrap_or(u32::MAX), row - firsts[after - 1])
        };
        let sources: Vec<&ArrayData> = sources.iter().collect();
        let rows_of = |rows: &[u32]| rows.iter().map(of_source).collect::<Vec<SourceRow>>();
        if let Some(fewer) = self.fewer_bytes(&sources) {
            let narrowed = |rows: &[u32]| gather_narrowed(&sources, &rows_of(rows), fewer).transpose();
            let shelves: Option<Result<_, _>> = self.each().map(narrowed).collect();
            self.narrowing.tried(shelves.is_none());
            if let Some(shelves) = shelves {
                return shelves;
            }
        }
        let on_shelf = |rows: &[u32]| gather_array(&sources, Rows { keeps_values: true, ..Rows::new(&rows_of(rows)) });
        self.each().map(on_shelf).collect()
    }

    /// Returns the bytes that suffice for the integers of the first lists, if their type has more and all may use
    /// fewer.
    fn fewer_bytes(&self, sources: &[&ArrayData]) -> Option<usize> {
        let first = sources.first()?;
        let are_lists = matches!(first.data_type(), DataType::List(_) | DataType::LargeList(_));
        let width = item_width(first.data_type()).filter(|_| are_lists)?;
        if sources.iter().any(|lists| has_nulls(lists)) || !self.narrowing.is_worth_trying() {
            return None;
        }
        let fewest = fewest_bytes(&first.slice(0, first.len().min(FIRST_ROWS)));
        (fewest < width).then_some(fewest)
    }

    fn words<T: ArrowNativeType>(&self, column: &ArrayData, values: &[T]) -> Vec<ArrayData> {
        let mut nulls = column.nulls().map(|nulls| self.validity(nulls).into_iter());
        let on_shelf = |rows: &[u32]| {
            let words: Vec<T> = rows.iter().map(|&row| values[row as usize]).collect();
            let nulls = nulls.as_mut().and_then(Iterator::next).filter(|nulls| nulls.null_count() > 0);
            let builder = ArrayData::builder(column.data_type().clone()).len(rows.len()).nulls(nulls);
            trusted(builder.add_buffer(Buffer::from_vec(words)).child_data(column.child_data().to_vec()))
        };
        self.each().map(on_shelf).collect()
    }

    /// Returns the validity of each shelf's rows; only NULL rows cost time.
    fn validity(&self, nulls: &NullBuffer) -> Vec<NullBuffer> {
        let mut bits: Vec<Vec<u64>> = self.each().map(|rows| vec![u64::MAX; rows.len().div_ceil(64)]).collect();
        for (places, word) in self.places.of_rows.chunks(64).zip(nulls.inner().bit_chunks().iter_padded()) {
            let mut unset = !word & (u64::MAX >> (64 - places.len()));
            while unset != 0 {
                let (shelf, place) = self.places.split(places[unset.trailing_zeros() as usize]);
                bits[shelf][place as usize / 64] &= !(1 << (place % 64));
                unset &= unset - 1;
            }
        }
        let of_shelf = |(rows, bits): (&[u32], Vec<u64>)| {
            NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(bits), 0, rows.len()))
        };
        self.each().zip(bits).map(of_shelf).collect()
    }

    /// Puts lists of numbers in place as they are decoded, if they are long and of one length.
    fn place(&self, column: &mut dyn ColumnReader) -> Result<Placed> {
        let Some(width) = item_width(column.data_type()) else { return Ok(Placed::Not(Vec::new())) };
        let first = |column: &mut dyn ColumnReader| {
            let num_rows = column.num_rows().min(self.rows.len()).min(FIRST_ROWS);
            Ok(column.read(num_rows)?.to_data())
        };
        let mut lists = first(column)?;
        let Some(row_len) = even_len(&lists).filter(|row_len| row_len * width >= LEAST_ROW_BYTES) else {
            return Ok(Placed::Not(vec![lists]));
        };
        let fewest = if self.narrowing.is_worth_trying() { fewest_bytes(&lists) } else { width };
        let mut filled = match (width, fewest) {
            (4, 2) => self.fill(column, lists, row_len, narrower::<4, u32, u16>())?,
            (8, 2) => self.fill(column, lists, row_len, narrower::<8, u64, u16>())?,
            (8, 4) => self.fill(column, lists, row_len, narrower::<8, u64, u32>())?,
            _ => self.fill_as_stored(column, lists, row_len)?,
        };
        if fewest < width {
            self.narrowing.tried(matches!(filled, Filled::TooLarge));
            if matches!(filled, Filled::TooLarge) {
                column.rewind();
                lists = first(column)?;
                filled = self.fill_as_stored(column, lists, row_len)?;
            }
        }
        match filled {
            Filled::All(stored) => stored.map(Placed::OnShelves).map_err(|source| Error::gather(&source)),
            Filled::NoRoom(lists) => Ok(Placed::Not(vec![lists])),
            Filled::Uneven | Filled::TooLarge => {
                column.rewind();
                Ok(Placed::Not(Vec::new()))
            }
        }
    }

    /// Puts lists in place unchanged.
    fn fill_as_stored(&self, column: &mut dyn ColumnReader, lists: ArrayData, row_len: usize) -> Result<Filled> {
        match item_width(lists.data_type()) {
            Some(1) => self.fill(column, lists, row_len, |_, _, _: &mut [MaybeUninit<u8>]| false),
            Some(2) => self.fill(column, lists, row_len, |_, _, _: &mut [MaybeUninit<u16>]| false),
            Some(4) => self.fill(column, lists, row_len, |_, _, _: &mut [MaybeUninit<u32>]| false),
            Some(8) => self.fill(column, lists, row_len, |_, _, _: &mut [MaybeUninit<u64>]| false),
            _ => Ok(Filled::NoRoom(lists)),
        }
    }

    /// Puts lists in place, row by row, starting with `lists`. Rows whose items have another width than the target are
    /// passed to `put`, which returns whether they fit.
    fn fill<N: ArrowNativeType>(
        &self,
        column: &mut dyn ColumnReader,
        mut lists: ArrayData,
        row_len: usize,
        mut put: impl FnMut(&PastCaches, &[u8], &mut [MaybeUninit<N>]) -> bool,
    ) -> Result<Filled> {
        let Some(mut shelves) = self.room::<N>(row_len) else { return Ok(Filled::NoRoom(lists)) };
        let width = item_width(lists.data_type()).unwrap_or(0);
        let mut num_placed = 0;
        let mut place = |rows: Items<'_>| {
            PastCaches::with(|past| {
                rows.bytes.chunks_exact(row_len * rows.width).all(|row| {
                    let (shelf, place) = self.places.split(self.places.of_rows[num_placed]);
                    let start = place as usize * row_len;
                    num_placed += 1;
                    let room = &mut shelves[shelf].spare_capacity_mut()[start..start + row_len];
                    if rows.width == size_of::<N>() {
                        past.copy(row, room);
                        return true;
                    }
                    put(past, row, room)
                })
            })
            .then(|| self.rows.len() - num_placed)
        };
        let mut left = place(Items { bytes: items(&lists), width });
        while let Some(num_left @ 1..) = left {
            let num_next = (DECODED_BYTES / (row_len * width)).clamp(1, num_left);
            if let Some((_, rows)) = column.take_items(num_next, row_len, size_of::<N>()) {
                left = place(rows);
                continue;
            }
            lists = column.read(num_next)?.to_data();
            if even_len(&lists) != Some(row_len) {
                return Ok(Filled::Uneven);
            }
            left = place(Items { bytes: items(&lists), width });
        }
        if left.is_none() {
            return Ok(Filled::TooLarge);
        }
        // There are more rows than expected: reading them once more reports the error.
        if column.read(0).is_err() {
            return Ok(Filled::Uneven);
        }
        let data_type = with_item_width(lists.data_type(), size_of::<N>());
        let of_shelf = |(rows, mut values): (&[u32], Vec<N>)| {
            #[expect(unsafe_code, reason = "filling the memory before it is written would cost as much as the rows")]
            // SAFETY: there is room for this many, and each was written: the loop ended after as many rows as there are
            // places, each of which belongs to one row, and none of them was refused.
            unsafe {
                values.set_len(rows.len() * row_len);
            }
            lists_of(&data_type, rows.len(), row_len, Buffer::from_vec(values))
        };
        Ok(Filled::All(self.each().zip(shelves).map(of_shelf).collect()))
    }

    /// Returns room on each shelf for its rows of this many items; `None` if there is none, or offsets would overflow.
    fn room<T>(&self, row_len: usize) -> Option<Vec<Vec<T>>> {
        let on_shelf = |rows: &[u32]| {
            let num_items = rows.len().checked_mul(row_len).filter(|&num| i32::try_from(num).is_ok())?;
            let mut values = Vec::new();
            values.try_reserve_exact(num_items).ok()?;
            Some(values)
        };
        self.each().map(on_shelf).collect()
    }
}

impl Storing for Shelves {
    fn batch_rows(&self, _num_rows: usize) -> Vec<usize> {
        self.each().map(<[u32]>::len).collect()
    }

    fn may_hold(&self, stored: &ArrayRef, data_type: &DataType) -> bool {
        stands_for(stored.data_type(), data_type) && !has_nulls(&stored.to_data())
    }

    fn store(&self, column: &mut dyn ColumnReader) -> Result<Vec<ArrayRef>> {
        let stored = match self.place(column)? {
            Placed::OnShelves(stored) => stored,
            Placed::Not(mut read) => {
                let num_read: usize = read.iter().map(ArrayData::len).sum();
                if num_read < column.num_rows() {
                    read.push(column.read(column.num_rows() - num_read)?.to_data());
                }
                column.close();
                self.pick(&read).map_err(|source| Error::gather(&source))?
            }
        };
        Ok(stored.into_iter().map(make_array).collect())
    }
}

/// Returns the common length of lists, if they are equally long and not NULL.
fn even_len(lists: &ArrayData) -> Option<usize> {
    if has_nulls(lists) {
        return None;
    }
    match lists.data_type() {
        DataType::List(_) => even_steps(&lists.buffer::<i32>(0)[..=lists.len()]),
        DataType::LargeList(_) => even_steps(&lists.buffer::<i64>(0)[..=lists.len()]),
        DataType::FixedSizeList(_, len) => usize::try_from(*len).ok(),
        _ => None,
    }
    .filter(|&len| len > 0)
}

fn even_steps<O: ArrowNativeType>(offsets: &[O]) -> Option<usize> {
    let step = |pair: &[O]| pair[1].as_usize() - pair[0].as_usize();
    let first = step(offsets.get(..2)?);
    offsets.windows(2).all(|pair| step(pair) == first).then_some(first)
}

/// Returns the bytes of the items of lists of numbers.
pub(super) fn items(lists: &ArrayData) -> &[u8] {
    fn ends<O: ArrowNativeType>(offsets: &[O], len: usize) -> Range<usize> {
        offsets[0].as_usize()..offsets[len].as_usize()
    }
    let of_lists = match lists.data_type() {
        DataType::List(_) => ends::<i32>(lists.buffer(0), lists.len()),
        DataType::LargeList(_) => ends::<i64>(lists.buffer(0), lists.len()),
        DataType::FixedSizeList(_, len) => {
            let len = usize::try_from(*len).unwrap_or(0);
            lists.offset() * len..(lists.offset() + lists.len()) * len
        }
        _ => 0..0,
    };
    let (items, width) = (&lists.child_data()[0], item_width(lists.data_type()).unwrap_or(0));
    &items.buffers()[0].as_slice()[(items.offset() + of_lists.start) * width..(items.offset() + of_lists.end) * width]
}

/// Returns lists of one length.
fn lists_of(data_type: &DataType, num_rows: usize, row_len: usize, values: Buffer) -> Result<ArrayData, ArrowError> {
    let builder = ArrayData::builder(data_type.clone()).len(num_rows);
    let ends = (0..=num_rows).map(|row| row * row_len);
    let (item, builder) = match data_type {
        DataType::List(item) => {
            let offsets: Vec<i32> = ends.map(|end| i32::try_from(end).unwrap_or(i32::MAX)).collect();
            (item, builder.add_buffer(Buffer::from_vec(offsets)))
        }
        DataType::LargeList(item) => (item, builder.add_buffer(ends.map(|end| end as i64).collect())),
        DataType::FixedSizeList(item, _) => (item, builder),
        other => return Err(ArrowError::InvalidArgumentError(format!("`{other}` is no list"))),
    };
    let items = ArrayData::builder(item.data_type().clone()).len(num_rows * row_len).add_buffer(values).build()?;
    builder.add_child_data(items).build()
}

#[cfg(test)]
pub(super) mod tests {
    use arrow_array::types::{Float32Type, Int32Type, Int64Type};
    use arrow_array::{FixedSizeListArray, LargeListArray, ListArray, RecordBatch, UInt32Array};
    use arrow_schema::{Field, Fields, Schema};
    use proptest::prelude::*;

    use super::super::held::{self, Held};
    use super::super::shelved;
    use super::*;
    use crate::decode::tests::{cuts, open, set_of, shapes};
    use crate::snapshot::{Decoded, Decoders, Trial, field_of};

    /// Returns the numbers of rows in an order that depends on the seed.
    pub(in super::super) fn order(num_rows: usize, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(num_rows).collect();
        order.sort_by_key(|row| (u64::from(*row) + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        order
    }

    /// Puts rows on shelves.
    pub(in super::super) fn on_shelves(rows: &RecordBatch, shelves: Shelves) -> Held {
        let mut batches: Vec<Vec<ArrayRef>> = vec![Vec::new(); shelves.batch_rows(rows.num_rows()).len()];
        for column in rows.columns() {
            let stored = shelves.store(&mut Decoded::new(Arc::clone(column))).unwrap();
            batches.iter_mut().zip(stored).for_each(|(batch, column)| batch.push(column));
        }
        let batch = |columns: Vec<ArrayRef>| {
            let fields = rows.schema_ref().fields().iter().zip(&columns).map(|(field, array)| field_of(field, array));
            RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Fields>())), columns).unwrap()
        };
        Held::on_shelves(rows.schema_ref(), shelves, batches.into_iter().map(batch).collect())
    }

    /// Returns lists with the given numbers of items, NULL for `None`; items count up, except for one with another
    /// value.
    #[expect(clippy::cast_precision_loss, reason = "items are below 2^24, or powers of two")]
    fn lists(kind: usize, lens: &[Option<usize>], other: Option<(usize, i64)>) -> ArrayRef {
        let mut count = 0;
        let mut item = || {
            count += 1;
            other.filter(|(at, _)| *at == count).map_or(i64::try_from(count).unwrap(), |(_, value)| value)
        };
        let lists: Vec<Option<Vec<i64>>> =
            lens.iter().map(|len| len.map(|len| (0..len).map(|_| item()).collect())).collect();
        let words = lists.iter().map(|list| list.as_ref().map(|list| list.iter().map(|n| i32::try_from(*n).ok())));
        let len = lens.iter().flatten().next().map_or(1, |len| i32::try_from(*len).unwrap());
        match kind {
            0 => Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(words)),
            1 => {
                let lists = lists.iter().map(|list| list.as_ref().map(|list| list.iter().copied().map(Some)));
                Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(lists))
            }
            2 => Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(words, len)),
            _ => {
                let lists = lists.iter().map(|list| list.as_ref().map(|list| list.iter().map(|n| Some(*n as f32))));
                Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(lists, len))
            }
        }
    }

    proptest! {
        /// Lists of equal length are put in place as they are decoded, except for those that turn out to differ; their
        /// integers take fewer bytes, except for those that turn out too large.
        #[test]
        fn lists_on_shelves_are_those_that_were_decoded(
            kind in 0_usize..4, len in prop_oneof![1_usize..8, 60_usize..140], num_rows in 1_usize..200,
            odd in prop::option::of((any::<prop::sample::Index>(), prop::option::of(0_usize..9))),
            other in prop::option::of((
                any::<prop::sample::Index>(), prop::sample::select(vec![-1, 65_535, 65_536, 1 << 20, 1 << 31, 1 << 40]),
            )),
            num_shelves in 1_usize..9, seed in any::<u64>(), skip in 0_usize..3,
        ) {
            let mut lens = vec![Some(len); num_rows + skip];
            if let Some((at, other)) = odd {
                // Fixed-size lists can be NULL, but not shorter.
                lens[at.index(num_rows + skip)] = if kind >= 2 { None } else { other };
            }
            let largest = if kind == 1 { i64::MAX } else { i64::from(i32::MAX) };
            let num_items = lens.iter().flatten().sum::<usize>().max(1);
            let other = other.map(|(at, value)| (1 + at.index(num_items), value)).filter(|(_, value)| *value <= largest);
            let rows = lists(kind, &lens, other).slice(skip, num_rows);
            let leaving = order(num_rows, seed);
            let shelves = Shelves::of(leaving.clone(), num_shelves).unwrap();
            let stored = shelves.store(&mut Decoded::new(Arc::clone(&rows))).unwrap();
            prop_assert!(stored.len() <= num_shelves);
            prop_assert_eq!(stored.iter().map(|array| array.len()).collect::<Vec<_>>(), shelves.batch_rows(num_rows));
            stored.iter().for_each(|array| array.to_data().validate_full().unwrap());
            let width = item_width(rows.data_type()).unwrap();
            if odd.is_none() && kind < 3 && len * width >= LEAST_ROW_BYTES {
                let data = rows.to_data();
                let all = items(&data).chunks(width).map(|item| match width {
                    4 => u64::from(u32::from_ne_bytes(item.try_into().unwrap())),
                    _ => u64::from_ne_bytes(item.try_into().unwrap()),
                });
                let largest = all.max().unwrap();
                // A part with a number too large for 2 bytes is stored unchanged, even if 4 would suffice.
                let are_stored_in = |bytes: usize| stored.iter().all(|array| item_width(array.data_type()) == Some(bytes));
                match largest {
                    ..=0xffff => prop_assert!(are_stored_in(2)),
                    0x1_0000..=0xffff_ffff if width == 8 => prop_assert!(are_stored_in(4) || are_stored_in(8)),
                    _ => prop_assert!(are_stored_in(width)),
                }
            }
            let batch = RecordBatch::try_from_iter_with_nullable([("lists", Arc::clone(&rows), true)]).unwrap();
            let held = on_shelves(&batch, Shelves::of(leaving.clone(), num_shelves).unwrap());
            let picked: Vec<SourceRow> = leaving.iter().map(|row| (0, *row)).collect();
            let gathered = held::gather(&batch.schema(), &[held], &picked).unwrap();
            gathered.column(0).to_data().validate_full().unwrap();
            let picked: Vec<(usize, usize)> = leaving.iter().map(|row| (0, *row as usize)).collect();
            let expected = arrow_select::interleave::interleave(&[&*rows], &picked).unwrap();
            prop_assert_eq!(gathered.column(0), &expected);
        }
    }

    proptest! {
        /// Lists of differing lengths also store integers in fewer bytes, except for those that turn out too large.
        #[test]
        fn ragged_lists_on_shelves_are_those_that_were_decoded(
            kind in 0_usize..2, lens in prop::collection::vec(prop::option::weighted(0.999, 0_usize..60), 2..200),
            other in prop::option::of((any::<prop::sample::Index>(), prop::sample::select(vec![-1, 65_536, 1 << 31]))),
            num_shelves in 1_usize..9, seed in any::<u64>(), skip in 0_usize..3,
        ) {
            let num_items = lens.iter().flatten().sum::<usize>().max(1);
            let other = other.map(|(at, value)| (1 + at.index(num_items), value)).filter(|(_, value)| kind == 1 || *value < 1 << 31);
            let skip = skip.min(lens.len() - 1);
            let num_rows = lens.len() - skip;
            let rows = lists(kind, &lens, other).slice(skip, num_rows);
            let leaving = order(num_rows, seed);
            let stored = Shelves::of(leaving.clone(), num_shelves).unwrap().store(&mut Decoded::new(Arc::clone(&rows))).unwrap();
            stored.iter().for_each(|array| array.to_data().validate_full().unwrap());
            if other.is_none() && rows.null_count() == 0 {
                prop_assert!(stored.iter().all(|array| item_width(array.data_type()) == Some(2)));
            }
            let batch = RecordBatch::try_from_iter_with_nullable([("lists", Arc::clone(&rows), true)]).unwrap();
            let held = on_shelves(&batch, Shelves::of(leaving.clone(), num_shelves).unwrap());
            let picked: Vec<SourceRow> = leaving.iter().map(|row| (0, *row)).collect();
            let gathered = held::gather(&batch.schema(), &[held], &picked).unwrap();
            gathered.column(0).to_data().validate_full().unwrap();
            let picked: Vec<(usize, usize)> = leaving.iter().map(|row| (0, *row as usize)).collect();
            let expected = arrow_select::interleave::interleave(&[&*rows], &picked).unwrap();
            prop_assert_eq!(gathered.column(0), &expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Tests all that is put in place directly from a file's pages.
        #[test]
        fn rows_of_files_on_shelves_are_those_that_are_decoded_at_once(
            shape in shapes(), cuts in cuts(), num_shelves in 1_usize..9, seed in any::<u64>(),
        ) {
            let body = shape.write();
            let snapshot = open(&body).unwrap();
            let trial = Trial::new(&snapshot, 0, &body, set_of(&cuts, shape.num_rows)).unwrap();
            let whole = trial.at_once(Decoders::Own).unwrap();
            let leaving = order(whole.num_rows(), seed);
            let gathered = shelved(&trial, &whole.schema(), leaving.clone(), num_shelves).unwrap();
            let expected = arrow_select::take::take_record_batch(&whole, &UInt32Array::from(leaving)).unwrap();
            prop_assert_eq!(gathered, expected);
        }
    }

    #[test]
    fn what_names_a_row_twice_or_not_at_all_is_no_order() {
        assert!(Shelves::of(vec![0, 2, 1], 2).is_some());
        assert!(Shelves::of(vec![0, 2, 2], 2).is_none());
        assert!(Shelves::of(vec![0, 3, 1], 2).is_none());
    }

    #[test]
    fn few_rows_stay_as_they_are_decoded() {
        let of = |data_type: DataType, num_bytes, num_rows: usize| {
            let schema = Arc::new(Schema::new(vec![Field::new("x", data_type, true)]));
            Shelves::new(&schema, num_bytes, num_rows, || Some(order(num_rows, 1))).map(|shelves| shelves.each().len())
        };
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        assert_eq!(of(DataType::Int32, 400, 100), None);
        assert_eq!(of(DataType::Int32, 4 * 2000, 2000), Some(1));
        assert_eq!(of(DataType::Utf8, 1 << 20, 128), Some(8));
        assert_eq!(of(DataType::Utf8, 1 << 20, 1), None);
        assert_eq!(of(dictionary, 1 << 20, 128), Some(8));
    }
}
