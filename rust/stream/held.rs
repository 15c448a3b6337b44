//! Decoded rows as a stream holds them until their batches are gathered.
//!
//! A batch takes few rows of each of many parts. Where a row is a few bytes, each of its values costs a line of memory, of
//! which nothing else is used before it leaves the cache. So narrow columns are stored in the order in which their rows
//! leave ([`Leaving`](crate::plan::Leaving)): what a batch takes of a part then lies together.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::dictionary::has_dictionary;
use super::gather::{Rows, SourceRow, gather_array, gather_columns};
use super::runs::Runs;

/// Bytes of a row in a column that is stored as rows leave, at most: a line of memory.
const NARROW_BYTES: usize = 64;

/// Rows of a part that is stored as they leave, at least: those of fewer stay in the cache.
const LEAST_ROWS: usize = 1024;

/// Some decoded rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    columns: Arc<[ArrayData]>,
    num_rows: usize,
    arranged: Option<Arc<Arranged>>,
}

/// Which columns are stored as rows leave, and how.
#[derive(Debug)]
struct Arranged {
    columns: Vec<bool>,
    /// Where each row is stored.
    places: Vec<u32>,
}

impl Held {
    /// Holds rows as they are.
    fn new(batch: RecordBatch) -> Self {
        let num_rows = batch.num_rows();
        let columns = batch.into_parts().1.into_iter().map(|column| column.to_data()).collect();
        Self { columns, num_rows, arranged: None }
    }

    /// Holds rows so that narrow columns have them in `order`: numbers of all rows, each once, if there is an order.
    ///
    /// # Errors
    ///
    /// None for rows that were one batch.
    pub(super) fn arranged(batch: RecordBatch, order: impl FnOnce() -> Option<Vec<u32>>) -> Result<Self, ArrowError> {
        let held = Self::new(batch);
        let is_narrow: Vec<bool> = held.columns.iter().map(is_narrow).collect();
        if held.num_rows < LEAST_ROWS || !is_narrow.contains(&true) {
            return Ok(held);
        }
        let Some(order) = order().filter(|order| order.len() == held.num_rows) else { return Ok(held) };
        let mut places = vec![0; order.len()];
        for (place, row) in (0..).zip(&order) {
            places[*row as usize] = place;
        }
        let order = Order { rows: order, places };
        let mut columns = held.columns.to_vec();
        // So that each column is freed when there is another in its place.
        drop(held.columns);
        for (column, _) in columns.iter_mut().zip(&is_narrow).filter(|(_, is_narrow)| **is_narrow) {
            *column = order.apply(column)?;
        }
        let arranged = Some(Arc::new(Arranged { columns: is_narrow, places: order.places }));
        Ok(Self { columns: columns.into(), num_rows: held.num_rows, arranged })
    }

    /// Returns the number of rows.
    pub(super) fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Returns the bytes that the rows take.
    pub(super) fn memory_bytes(&self) -> u64 {
        let places = self.arranged.as_ref().map_or(0, |arranged| size_of_val(&arranged.places[..]));
        (self.columns.iter().map(ArrayData::get_array_memory_size).sum::<usize>() + places) as u64
    }

    /// Returns whether a column is stored as rows leave, where some are.
    fn is_arranged(&self, column: usize) -> Option<bool> {
        self.arranged.as_ref().map(|arranged| arranged.columns[column])
    }

    /// Returns where a row is stored in columns that are arranged.
    fn place(&self, row: u32) -> u32 {
        self.arranged.as_ref().map_or(row, |arranged| arranged.places[row as usize])
    }
}

/// An order of rows.
struct Order {
    /// The row at each place.
    rows: Vec<u32>,
    /// The place of each row.
    places: Vec<u32>,
}

impl Order {
    /// Returns a column in this order.
    fn apply(&self, column: &ArrayData) -> Result<ArrayData, ArrowError> {
        // Intervals of 8 bytes begin at multiples of 4.
        let is_word = !matches!(column.data_type(), DataType::Interval(_));
        let values = match column.data_type().primitive_width().filter(|_| is_word) {
            Some(4) => self.words(column.buffer::<u32>(0)),
            Some(8) => self.words(column.buffer::<u64>(0)),
            _ => {
                let rows: Vec<SourceRow> = self.rows.iter().map(|&row| (0, row)).collect();
                return gather_array(&[column], Rows::new(&rows));
            }
        };
        let nulls = column.nulls().map(|nulls| self.validity(nulls));
        ArrayData::builder(column.data_type().clone()).len(column.len()).add_buffer(values).nulls(nulls).build()
    }

    fn words<T: ArrowNativeType>(&self, values: &[T]) -> Buffer {
        Buffer::from_vec(self.rows.iter().map(|&row| values[row as usize]).collect::<Vec<T>>())
    }

    /// Returns which rows are not NULL; only those that are cost something.
    fn validity(&self, nulls: &NullBuffer) -> NullBuffer {
        let mut bits = vec![u64::MAX; nulls.len().div_ceil(64)];
        for (places, word) in self.places.chunks(64).zip(nulls.inner().bit_chunks().iter_padded()) {
            let mut unset = !word & (u64::MAX >> (64 - places.len()));
            while unset != 0 {
                let place = places[unset.trailing_zeros() as usize];
                bits[place as usize / 64] &= !(1 << (place % 64));
                unset &= unset - 1;
            }
        }
        NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(bits), 0, nulls.len()))
    }
}

/// Returns whether rows of a column take less than what memory is read by.
fn is_narrow(column: &ArrayData) -> bool {
    column.get_array_memory_size() <= column.len() * NARROW_BYTES && !has_dictionary(column.data_type())
}

/// Returns `rows` of `sources` as one batch of `schema`.
///
/// # Errors
///
/// As those of [`gather`](super::gather::gather).
pub(super) fn gather(schema: &SchemaRef, sources: &[Held], rows: &[SourceRow]) -> Result<RecordBatch, ArrowError> {
    let place = |&(source, row): &SourceRow| (source, sources[source as usize].place(row));
    let places: Vec<SourceRow> = rows.iter().map(place).collect();
    let runs =
        if sources.iter().any(|source| source.arranged.is_some()) { Runs::of(&places, sources.len()) } else { None };
    gather_columns(schema, rows.len(), |column| {
        let arrays: Vec<&ArrayData> = sources.iter().map(|source| &source.columns[column]).collect();
        if sources.iter().all(|source| source.is_arranged(column) != Some(false)) {
            return gather_array(&arrays, Rows { each: &places, runs: runs.as_ref() });
        }
        if sources.iter().all(|source| source.is_arranged(column) != Some(true)) {
            return gather_array(&arrays, Rows::new(rows));
        }
        // Texts can be short in one part and long in another.
        let is_arranged = |source: u32| sources[source as usize].is_arranged(column) == Some(true);
        let pairs = rows.iter().zip(&places);
        let mixed: Vec<SourceRow> = pairs.map(|(row, place)| if is_arranged(row.0) { *place } else { *row }).collect();
        gather_array(&arrays, Rows::new(&mixed))
    })
}

/// Returns `rows` of `sources` as a view, where they follow each other in one source: nothing is copied.
///
/// Dictionaries are left to [`gather`], which drops the values that no row has.
pub(super) fn view(schema: &SchemaRef, sources: &[Held], rows: &[SourceRow]) -> Option<RecordBatch> {
    let &(place, first) = rows.first()?;
    let follow = |(row, index): (&SourceRow, u32)| *row == (place, first + index);
    if !rows.iter().zip(0..).all(follow) || schema.fields().iter().any(|field| has_dictionary(field.data_type())) {
        return None;
    }
    let source = sources.get(place as usize).filter(|source| source.arranged.is_none())?;
    let columns = source.columns.iter().map(|column| make_array(column.clone()).slice(first as usize, rows.len()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns.collect(), &options).ok()
}

/// Returns the rows `keep`, in this order.
///
/// # Errors
///
/// As those of [`gather`].
pub(super) fn compact(schema: &SchemaRef, held: Held, keep: &[u32]) -> Result<Held, ArrowError> {
    let rows: Vec<SourceRow> = keep.iter().map(|&row| (0, row)).collect();
    gather(schema, &[held], &rows).map(Held::new)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int32Array, StringArray, StructArray};
    use proptest::prelude::*;

    use super::*;

    /// Returns rows of a nullable number, and of texts that are long or short.
    fn batch(numbers: std::ops::Range<i32>, has_long_texts: bool) -> RecordBatch {
        let text = |n: i32| (n % 7 > 0).then(|| if has_long_texts { format!("{n:0100}") } else { n.to_string() });
        let columns: [(&str, ArrayRef); 2] = [
            ("number", Arc::new(Int32Array::from_iter(numbers.clone().map(|n| (n % 5 > 0).then_some(n))))),
            ("text", Arc::new(StringArray::from_iter(numbers.map(text)))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
    }

    /// Returns the numbers of rows in an order that hangs on the seed.
    fn order(num_rows: usize, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(num_rows).collect();
        order.sort_by_key(|row| (u64::from(*row) + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        order
    }

    proptest! {
        #[test]
        fn rows_are_the_same_however_they_are_stored(
            kinds in prop::collection::vec((any::<bool>(), any::<bool>(), any::<u64>()), 1..4),
            picks in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..1500), 0..300),
        ) {
            let batches: Vec<RecordBatch> =
                kinds.iter().zip(0..).map(|(kind, at)| batch(at * 1500..(at + 1) * 1500, kind.0)).collect();
            let sources: Vec<Held> = batches.iter().zip(&kinds).map(|(batch, &(_, is_arranged, seed))| {
                Held::arranged(batch.clone(), || is_arranged.then(|| order(1500, seed))).unwrap()
            }).collect();
            for (source, kind) in sources.iter().zip(&kinds) {
                let expected = kind.1.then_some((true, !kind.0));
                prop_assert_eq!(source.is_arranged(0).zip(source.is_arranged(1)), expected);
            }
            let rows: Vec<SourceRow> =
                picks.iter().map(|(source, row)| (u32::try_from(source.index(sources.len())).unwrap(), *row)).collect();
            let schema = batches[0].schema();
            let expected = super::super::gather::gather(&schema, &batches, &rows).unwrap();
            prop_assert_eq!(&gather(&schema, &sources, &rows).unwrap(), &expected);
            let keep: Vec<u32> = picks.iter().map(|(_, row)| *row).collect();
            let of_first: Vec<SourceRow> = keep.iter().map(|row| (0, *row)).collect();
            let kept = compact(&schema, sources[0].clone(), &keep).unwrap();
            let all: Vec<SourceRow> = (0..).take(keep.len()).map(|row| (0, row)).collect();
            let expected = gather(&schema, &sources[..1], &of_first).unwrap();
            prop_assert_eq!(gather(&schema, &[kept], &all).unwrap(), expected);
        }
    }

    #[test]
    fn rows_that_are_taken_as_they_leave_are_the_same() {
        let orders = [order(1500, 1), order(1500, 2)];
        let batches = [batch(0..1500, false), batch(1500..3000, false)];
        let arranged = batches
            .iter()
            .zip(&orders)
            .map(|(batch, order)| Held::arranged(batch.slice(0, 1500), || Some(order.clone())).unwrap());
        let sources: Vec<Held> = arranged.collect();
        let rows: Vec<SourceRow> = (3..703).flat_map(|at| [(1, orders[1][at]), (0, orders[0][at + 50])]).collect();
        let places: Vec<SourceRow> = rows.iter().map(|&(s, row)| (s, sources[s as usize].place(row))).collect();
        assert!(Runs::of(&places, 2).is_some());
        let schema = batches[0].schema();
        let expected = super::super::gather::gather(&schema, &batches, &rows).unwrap();
        assert_eq!(gather(&schema, &sources, &rows).unwrap(), expected);
    }

    #[test]
    fn structs_can_be_seen_and_arranged() {
        let fields = |numbers| StructArray::from(batch(numbers, false));
        let rows = RecordBatch::try_from_iter([("both", Arc::new(fields(0..5000)) as ArrayRef)]).unwrap();
        let expected = RecordBatch::try_from_iter([("both", Arc::new(fields(7..9)) as ArrayRef)]).unwrap();
        let picks = [(0, 7), (0, 8)];
        let seen = Held::arranged(rows.clone(), || None).unwrap();
        assert_eq!(view(&rows.schema(), &[seen], &picks).unwrap(), expected);
        let arranged = Held::arranged(rows.clone(), || Some(order(5000, 3))).unwrap();
        assert_eq!(arranged.is_arranged(0), Some(true));
        assert_eq!(gather(&rows.schema(), &[arranged], &picks).unwrap(), expected);
    }

    #[test]
    fn few_rows_stay_as_they_are_and_can_be_seen() {
        let rows: Vec<SourceRow> = (3..12).map(|row| (0, row)).collect();
        let few = Held::arranged(batch(0..500, false), || Some(order(500, 1))).unwrap();
        let schema = batch(0..1, false).schema();
        assert_eq!(view(&schema, &[few], &rows).unwrap(), batch(3..12, false));
        let many = Held::arranged(batch(0..5000, false), || Some(order(5000, 1))).unwrap();
        assert_eq!(view(&schema, &[many], &rows), None);
    }
}
