//! Decoded rows, as a stream holds them until their batches are gathered.
//!
//! A batch takes a few rows of each of many parts. If rows are small, each of their values costs a cache line, the rest
//! of which is evicted unused. And a part would be held from its first row to its last, although on average half of its
//! rows have left by then. So rows are stored in the order in which they leave ([`Leaving`](crate::plan::Leaving)), on
//! [`shelves`](super::shelves): what a batch takes of a part then lies together, and a shelf is freed once its rows
//! have left, long before the part is.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, make_array};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, Field, FieldRef, Schema, SchemaRef};

use super::dictionary::{has_dictionary, shared_bytes};
use super::gather::{Rows, SourceRow, gather_as, gather_columns};
use super::narrow::saved_bytes;
use super::runs::Runs;
use super::shelves::{Places, Shelves};
use super::slabs::Room;
use crate::batch;

/// How many rows ahead the memory with their places is prefetched.
const ROWS_AHEAD: usize = 16;

/// Some decoded rows. Clones share them: rows that have left one have left all.
#[derive(Debug, Clone, Default)]
pub(super) struct Held(Arc<Stored>);

#[derive(Debug, Default)]
struct Stored {
    num_rows: usize,
    /// Where each row is stored; `None` if rows are in place, on a single shelf.
    places: Option<Places>,
    shelves: Box<[Shelf]>,
    /// Bytes of the remaining shelves, and of what they share.
    left_bytes: AtomicU64,
    /// Bytes of all rows once they are in batches.
    gathered_bytes: u64,
}

/// Rows that leave one after another.
#[derive(Debug)]
struct Shelf {
    /// `None` once all rows have left.
    columns: Mutex<Option<Columns>>,
    num_bytes: u64,
    num_left: AtomicU32,
}

type Columns = Arc<[ArrayData]>;

impl Held {
    /// Holds rows of `schema` as they are.
    pub(super) fn new(schema: &SchemaRef, batch: RecordBatch) -> Self {
        Self::stored(schema, None, vec![batch])
    }

    /// Holds rows of `schema`, given the part of them on each shelf. Each row is gathered at most once.
    pub(super) fn on_shelves(schema: &SchemaRef, shelves: Shelves, batches: Vec<RecordBatch>) -> Self {
        Self::stored(schema, Some(shelves.into_places()), batches)
    }

    fn stored(schema: &SchemaRef, places: Option<Places>, batches: Vec<RecordBatch>) -> Self {
        let num_rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut shelves: Box<[Shelf]> = batches.into_iter().map(Shelf::new).collect();
        let of_places = places.as_ref().map_or(0, Places::memory_bytes) as u64;
        let of_all = take_shared(&mut shelves);
        let stored_bytes = shelves.iter().map(|shelf| shelf.num_bytes).sum::<u64>() + of_places + of_all;
        let saved_bytes: u64 =
            shelves.iter().filter_map(Shelf::columns).map(|columns| saved_by(schema, &columns)).sum();
        let (left_bytes, gathered_bytes) = (AtomicU64::new(stored_bytes), stored_bytes + saved_bytes);
        Self(Arc::new(Stored { num_rows, places, shelves, left_bytes, gathered_bytes }))
    }

    /// Returns the number of rows, including those that have left.
    pub(super) fn num_rows(&self) -> usize {
        self.0.num_rows
    }

    /// Returns the bytes of the rows that have not left, or that share a shelf with one that has not.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.left_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that all rows take in batches, including those that have left.
    pub(super) fn gathered_bytes(&self) -> u64 {
        self.0.gathered_bytes
    }

    /// Returns whether consecutive rows can be a [`view`]: they are stored as they were decoded.
    ///
    /// Dictionaries are left to [`gather`], which drops unused values if there are many.
    pub(super) fn can_be_seen(&self) -> bool {
        let columns = self.0.shelves.first().filter(|_| self.0.places.is_none()).and_then(Shelf::columns);
        columns.is_some_and(|columns| !columns.iter().any(|column| has_dictionary(column.data_type())))
    }

    /// Returns the rows that have not left yet, for another reader: rows that leave here stay there.
    pub(super) fn for_another(&self) -> Self {
        let Stored { num_rows, places, shelves, left_bytes, gathered_bytes } = &*self.0;
        Self(Arc::new(Stored {
            num_rows: *num_rows,
            places: places.clone(),
            shelves: shelves.iter().map(Shelf::for_another).collect(),
            left_bytes: AtomicU64::new(left_bytes.load(Ordering::Relaxed)),
            gathered_bytes: *gathered_bytes,
        }))
    }

    /// Returns the schema in which rows of `schema` are stored.
    fn schema(&self, schema: &SchemaRef) -> SchemaRef {
        let shelves: Vec<Columns> = self.0.shelves.iter().filter_map(Shelf::columns).collect();
        let stored_as = |(column, field): (usize, &FieldRef)| {
            let mut types = shelves.iter().map(|columns| columns[column].data_type());
            let first = types.next().unwrap_or(field.data_type());
            let data_type = if types.all(|other| other == first) { first } else { field.data_type() };
            Field::clone(field).with_data_type(data_type.clone())
        };
        Arc::new(Schema::new(schema.fields().iter().enumerate().map(stored_as).collect::<Vec<_>>()))
    }

    /// Returns where a row is stored: its shelf, and its place on it.
    fn place(&self, row: u32) -> (usize, u32) {
        self.0.places.as_ref().map_or((0, row), |places| places.find(row))
    }

    /// Prefetches where a row is stored.
    fn prefetch_place(&self, row: u32) {
        if let Some(places) = &self.0.places {
            places.prefetch(row);
        }
    }
}

/// Removes dictionary values that shelves share from their byte counts; returns the bytes of those values, each counted
/// once.
fn take_shared(shelves: &mut [Shelf]) -> u64 {
    let Some((first, others)) = shelves.split_first_mut() else { return 0 };
    let Some(columns) = first.columns() else { return 0 };
    let mut of_all = 0;
    for shelf in others {
        let shared = shelf.columns().map_or(0, |others| {
            columns.iter().zip(others.iter()).map(|(column, other)| shared_bytes(column, other)).sum::<usize>() as u64
        });
        shelf.num_bytes -= shared;
        of_all = of_all.max(shared);
    }
    first.num_bytes -= of_all;
    of_all
}

/// Returns how many bytes smaller columns of `schema` are than in batches.
fn saved_by(schema: &SchemaRef, columns: &Columns) -> u64 {
    let of_column = |(field, column): (&FieldRef, &ArrayData)| saved_bytes(column, field.data_type());
    schema.fields().iter().zip(columns.iter()).map(of_column).sum()
}

impl Shelf {
    fn new(batch: RecordBatch) -> Self {
        let num_left = AtomicU32::new(u32::try_from(batch.num_rows()).unwrap_or(u32::MAX));
        let columns: Columns = batch.into_parts().1.into_iter().map(|column| column.to_data()).collect();
        let num_bytes = columns.iter().map(ArrayData::get_array_memory_size).sum::<usize>() as u64;
        Self { columns: Mutex::new(Some(columns)), num_bytes, num_left }
    }

    fn for_another(&self) -> Self {
        let num_left = AtomicU32::new(self.num_left.load(Ordering::Relaxed));
        Self { columns: Mutex::new(self.columns()), num_bytes: self.num_bytes, num_left }
    }

    fn columns(&self) -> Option<Columns> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Marks rows as having left; returns the number of bytes freed.
    fn leave(&self, num_rows: u32) -> u64 {
        if self.num_left.fetch_sub(num_rows, Ordering::AcqRel) > num_rows {
            return 0;
        }
        drop(self.columns.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.num_bytes
    }
}

/// The rows of a batch, and the shelves they are taken from.
struct Taken<'a> {
    shelves: Vec<TakenShelf<'a>>,
    /// The shelf of each row, and its place there.
    rows: Vec<SourceRow>,
    /// Whether some are stored in the order in which they leave.
    has_arranged: bool,
}

struct TakenShelf<'a> {
    of: &'a Stored,
    shelf: &'a Shelf,
    columns: Columns,
    num_rows: u32,
}

impl<'a> Taken<'a> {
    fn new(sources: &'a [Held], rows: &[SourceRow]) -> Result<Self, ArrowError> {
        const UNUSED: u32 = u32::MAX;
        let mut firsts = Vec::with_capacity(sources.len());
        let mut num_shelves = 0;
        for source in sources {
            firsts.push(num_shelves);
            num_shelves += source.0.shelves.len();
        }
        let mut numbers = vec![UNUSED; num_shelves];
        let mut shelves: Vec<TakenShelf<'_>> = Vec::with_capacity(sources.len());
        let mut taken = Vec::with_capacity(rows.len());
        for &(source, row) in rows.iter().take(ROWS_AHEAD) {
            sources[source as usize].prefetch_place(row);
        }
        for (index, &(source, row)) in rows.iter().enumerate() {
            if let Some(&(source, row)) = rows.get(index + ROWS_AHEAD) {
                sources[source as usize].prefetch_place(row);
            }
            let held = &sources[source as usize];
            let (shelf, place) = held.place(row);
            let number = &mut numbers[firsts[source as usize] + shelf];
            if *number == UNUSED {
                let shelf = &held.0.shelves[shelf];
                let gone = || ArrowError::ComputeError("rows are gathered that have left".into());
                *number = u32::try_from(shelves.len()).unwrap_or(UNUSED);
                shelves.push(TakenShelf {
                    of: &held.0,
                    shelf,
                    columns: shelf.columns().ok_or_else(gone)?,
                    num_rows: 0,
                });
            }
            shelves[*number as usize].num_rows += 1;
            taken.push((*number, place));
        }
        let has_arranged = sources.iter().any(|source| source.0.places.is_some());
        Ok(Self { shelves, rows: taken, has_arranged })
    }

    fn gather<'r>(
        &self,
        schema: &SchemaRef,
        room: impl Fn(usize) -> Option<&'r Room>,
        keeps_values: bool,
    ) -> Result<RecordBatch, ArrowError> {
        if self.rows.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(schema)));
        }
        let runs = if self.has_arranged { Runs::of(&self.rows, self.shelves.len()) } else { None };
        gather_columns(schema, self.rows.len(), |column| {
            let arrays: Vec<&ArrayData> = self.shelves.iter().map(|shelf| &shelf.columns[column]).collect();
            let rows = Rows { each: &self.rows, runs: runs.as_ref(), room: room(column), keeps_values };
            gather_as(schema.field(column).data_type(), &arrays, rows)
        })
    }

    /// Frees the shelves whose rows have all left. Rows stored as they were decoded may be drawn again.
    fn leave(self) {
        for TakenShelf { of, shelf, columns, num_rows } in self.shelves {
            drop(columns);
            if of.places.is_some() {
                of.left_bytes.fetch_sub(shelf.leave(num_rows), Ordering::Relaxed);
            }
        }
    }
}

/// Returns `rows` of `sources` as one batch of `schema`, and marks them as having left.
#[cfg(any(test, fuzzing))]
pub(super) fn gather(schema: &SchemaRef, sources: &[Held], rows: &[SourceRow]) -> Result<RecordBatch, ArrowError> {
    gather_into(schema, sources, rows, |_| None)
}

/// Returns `rows` of `sources` as one batch of `schema`, with the numbers of each column in its room, as far as they fit,
/// and marks them as having left.
///
/// # Errors
///
/// As for [`gather`](super::gather::gather).
pub(super) fn gather_into<'r>(
    schema: &SchemaRef,
    sources: &[Held],
    rows: &[SourceRow],
    room: impl Fn(usize) -> Option<&'r Room>,
) -> Result<RecordBatch, ArrowError> {
    let taken = Taken::new(sources, rows)?;
    let batch = taken.gather(schema, room, false)?;
    taken.leave();
    Ok(batch)
}

/// Returns `rows` of `source` as a view without copying, if they [can be seen](Held::can_be_seen).
pub(super) fn view(schema: &SchemaRef, source: &Held, rows: Range<u32>) -> Option<RecordBatch> {
    if !source.can_be_seen() {
        return None;
    }
    let (first, len) = (rows.start as usize, rows.len());
    let columns = source.0.shelves.first()?.columns()?;
    let columns = columns.iter().map(|column| make_array(column.clone()).slice(first, len));
    batch::of_columns(Arc::clone(schema), columns.collect(), len).ok()
}

/// Returns the rows `keep`, in this order. Dictionaries keep all their values: of the tables of several parts, only whole
/// ones tell the order of ordered categories.
///
/// # Errors
///
/// As for [`gather_into`].
pub(super) fn compact(schema: &SchemaRef, held: Held, keep: &[u32]) -> Result<Held, ArrowError> {
    let rows: Vec<SourceRow> = keep.iter().map(|&row| (0, row)).collect();
    let stored_as = held.schema(schema);
    let sources = [held];
    let taken = Taken::new(&sources, &rows)?;
    let batch = taken.gather(&stored_as, |_| None, true)?;
    taken.leave();
    Ok(Held::new(schema, batch))
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type};
    use arrow_array::{ArrayRef, DictionaryArray, Int32Array, ListArray, PrimitiveArray, StringArray, StructArray};
    use arrow_buffer::OffsetBuffer;
    use proptest::prelude::*;

    use super::super::shelves::tests::{on_shelves, order};
    use super::*;

    /// Returns rows with a nullable number, and with long or short texts.
    fn batch(numbers: std::ops::Range<i32>, has_long_texts: bool) -> RecordBatch {
        let text = |n: i32| (n % 7 > 0).then(|| if has_long_texts { format!("{n:0100}") } else { n.to_string() });
        let columns: [(&str, ArrayRef); 2] = [
            ("number", Arc::new(Int32Array::from_iter(numbers.clone().map(|n| (n % 5 > 0).then_some(n))))),
            ("text", Arc::new(StringArray::from_iter(numbers.map(text)))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
    }

    fn shelved(batch: &RecordBatch, seed: u64, num_shelves: usize) -> Held {
        on_shelves(batch, Shelves::of(order(batch.num_rows(), seed), num_shelves).unwrap())
    }

    /// Returns nullable keys of a dictionary with `len` values, from `first` on, one of which is NULL.
    fn categories<K: ArrowDictionaryKeyType>(numbers: impl Iterator<Item = usize>, first: usize, len: usize) -> ArrayRef
    where
        i8: Into<K::Native>,
    {
        let values: ArrayRef =
            Arc::new(StringArray::from_iter((0..len).map(|n| (n != 3).then(|| format!("value {}", first + n)))));
        let keys = numbers.map(|n| (n % 11 > 0).then(|| i8::try_from(n * 7 % len.min(128)).unwrap().into()));
        Arc::new(DictionaryArray::new(PrimitiveArray::<K>::from_iter(keys), values))
    }

    /// Returns rows like those of [`batch`], with dictionaries added: top-level, in structs and in lists.
    fn with_categories(rows: &RecordBatch, first: usize, len: usize) -> RecordBatch {
        let numbers = || 0..rows.num_rows();
        let words = categories::<Int16Type>(numbers(), first, len);
        let name = Arc::new(Field::new("kind", words.data_type().clone(), true));
        let structs = StructArray::new(vec![Arc::clone(&name)].into(), vec![Arc::clone(&words)], None);
        let items = categories::<Int32Type>(0..rows.num_rows() * 2, 0, 2000);
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        let ends = OffsetBuffer::from_lengths(numbers().map(|n| n % 3));
        let items = items.slice(0, ends.last().map_or(0, |end| usize::try_from(*end).unwrap()));
        let added: [(&str, ArrayRef); 4] = [
            ("byte", categories::<Int8Type>(numbers(), first, len.min(128))),
            ("word", words),
            ("struct", Arc::new(structs)),
            ("list", Arc::new(ListArray::new(item, ends, items, None))),
        ];
        let whole = rows.schema_ref().fields().iter().map(|field| field.name().as_str()).zip(rows.columns().to_vec());
        RecordBatch::try_from_iter_with_nullable(whole.chain(added).map(|(name, column)| (name, column, true))).unwrap()
    }

    proptest! {
        #[test]
        fn rows_are_the_same_however_they_are_held(
            kinds in prop::collection::vec((any::<bool>(), prop::option::of(1_usize..9), any::<u64>()), 1..4),
            categories in prop::option::of((0_usize..2, prop::sample::select(vec![4, 100, 30_000]))),
            picks in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..1500), 0..300),
            batch_rows in 1_usize..100,
        ) {
            let batches: Vec<RecordBatch> =
                kinds.iter().zip(0..).map(|(kind, at)| batch(at * 1500..(at + 1) * 1500, kind.0)).collect();
            let with = |(at, rows): (usize, RecordBatch)| match categories {
                Some((step, len)) => with_categories(&rows, at * step, len),
                None => rows,
            };
            let batches: Vec<RecordBatch> = batches.into_iter().enumerate().map(with).collect();
            let sources: Vec<Held> = batches.iter().zip(&kinds).map(|(batch, &(_, num_shelves, seed))| {
                num_shelves.map_or_else(|| Held::new(&batch.schema(), batch.clone()), |num| shelved(batch, seed, num))
            }).collect();
            let mut rows: Vec<SourceRow> =
                picks.iter().map(|(source, row)| (u32::try_from(source.index(sources.len())).unwrap(), *row)).collect();
            // Each once, and mixed.
            rows.sort_unstable_by_key(|(source, row)| (row.wrapping_mul(0x9e37_79b9), *source));
            rows.dedup();
            let schema = batches[0].schema();
            let kept = sources[0].for_another();
            for rows in rows.chunks(batch_rows) {
                let expected = super::super::gather::gather(&schema, &batches, rows).unwrap();
                prop_assert_eq!(&gather(&schema, &sources, rows).unwrap(), &expected);
            }
            let keep: Vec<u32> = rows.iter().filter(|row| row.0 == 0).map(|row| row.1).collect();
            let of_first: Vec<SourceRow> = keep.iter().map(|row| (0, *row)).collect();
            let kept = compact(&schema, kept, &keep).unwrap();
            let all: Vec<SourceRow> = (0..).take(keep.len()).map(|row| (0, row)).collect();
            let expected = super::super::gather::gather(&schema, &batches, &of_first).unwrap();
            prop_assert_eq!(gather(&schema, &[kept], &all).unwrap(), expected);
        }
    }

    #[test]
    fn a_shelf_is_given_back_when_its_last_row_has_left() {
        let rows = batch(0..1024, true);
        let held = shelved(&rows, 1, 4);
        let another = held.for_another();
        let (leaving, schema) = (order(1024, 1), rows.schema());
        let whole = held.memory_bytes();
        assert_eq!(whole, held.gathered_bytes());
        let take = |places: std::ops::Range<usize>| {
            let rows: Vec<SourceRow> = leaving[places].iter().map(|&row| (0, row)).collect();
            gather(&schema, std::slice::from_ref(&held), &rows)
        };
        take(10..256).unwrap();
        assert_eq!(held.memory_bytes(), whole);
        take(0..10).unwrap();
        let left = held.memory_bytes();
        assert!(left < whole - whole / 5, "{left} of {whole}");
        assert!(take(0..1).is_err());
        take(256..1024).unwrap();
        assert_eq!(held.memory_bytes(), 1024 * 4);
        assert_eq!((held.gathered_bytes(), another.memory_bytes()), (whole, whole));
        let first = [(0, leaving[0])];
        let expected = super::super::gather::gather(&schema, &[rows], &first).unwrap();
        assert_eq!(gather(&schema, &[another], &first).unwrap(), expected);
    }

    #[test]
    fn values_that_shelves_share_are_counted_and_held_once() {
        let rows = with_categories(&batch(0..1024, false), 0, 20_000);
        let table = |column: &dyn arrow_array::Array| column.to_data().child_data()[0].get_array_memory_size() as u64;
        let tables: u64 = ["byte", "word"].iter().map(|name| table(&rows[*name])).sum::<u64>()
            + table(rows["struct"].as_struct().column(0))
            + table(rows["list"].as_list::<i32>().values());
        let of_tables =
            |held: &Held| held.memory_bytes() - held.0.shelves.iter().map(|shelf| shelf.num_bytes).sum::<u64>();
        let held = shelved(&rows, 1, 4);
        assert_eq!(held.memory_bytes(), held.gathered_bytes());
        assert_eq!(of_tables(&held), tables + 1024 * 4);
        let whole = Held::new(&rows.schema(), rows.clone());
        let (whole, on_shelves) = (whole.memory_bytes(), held.memory_bytes());
        assert!(on_shelves < whole + whole / 8, "{on_shelves} on shelves, {whole} as they were decoded");
        let columns = held.0.shelves[3].columns().unwrap();
        assert!(columns[3].child_data()[0].ptr_eq(&rows["word"].to_data().child_data()[0]));
        let left: Vec<SourceRow> = order(1024, 1).into_iter().map(|row| (0, row)).collect();
        gather(&rows.schema(), std::slice::from_ref(&held), &left).unwrap();
        assert_eq!(held.memory_bytes(), tables + 1024 * 4);
    }

    #[test]
    fn rows_that_are_taken_as_they_leave_are_the_same() {
        let orders = [order(1500, 1), order(1500, 2)];
        let batches = [batch(0..1500, false), batch(1500..3000, false)];
        let sources = [shelved(&batches[0], 1, 1), shelved(&batches[1], 2, 1)];
        let rows: Vec<SourceRow> = (3..703).flat_map(|at| [(1, orders[1][at]), (0, orders[0][at + 50])]).collect();
        assert!(Runs::of(&Taken::new(&sources, &rows).unwrap().rows, 2).is_some());
        let schema = batches[0].schema();
        let expected = super::super::gather::gather(&schema, &batches, &rows).unwrap();
        assert_eq!(gather(&schema, &sources, &rows).unwrap(), expected);
    }

    #[test]
    fn structs_can_be_seen_and_put_on_shelves() {
        let fields = |numbers| StructArray::from(batch(numbers, false));
        let rows = RecordBatch::try_from_iter([("both", Arc::new(fields(0..5000)) as ArrayRef)]).unwrap();
        let expected = RecordBatch::try_from_iter([("both", Arc::new(fields(7..9)) as ArrayRef)]).unwrap();
        let picks = [(0, 7), (0, 8)];
        assert_eq!(view(&rows.schema(), &Held::new(&rows.schema(), rows.clone()), 7..9).unwrap(), expected);
        assert_eq!(gather(&rows.schema(), &[shelved(&rows, 3, 2)], &picks).unwrap(), expected);
    }

    #[test]
    fn rows_that_stand_as_they_were_decoded_can_be_seen() {
        let schema = batch(0..1, false).schema();
        let held = Held::new(&schema, batch(0..500, false));
        assert_eq!(view(&schema, &held, 3..12).unwrap(), batch(3..12, false));
        assert_eq!(view(&schema, &shelved(&batch(0..500, false), 1, 1), 3..12), None);
    }
}
