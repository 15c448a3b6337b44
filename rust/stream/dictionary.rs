//! Gathers rows of dictionaries: their keys, and the values.
//!
//! A batch has rows of many parts, each with its own table of values. If all share one that is not much longer than the
//! batch, the batch shares it, too. Otherwise it gets only the values of its rows, without duplicates, as consumers
//! such as pandas expect; they keep the order of their tables, which matters for ordered dictionaries.

use arrow_buffer::{ArrowNativeType, Buffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::gather::{Rows, SourceRow, gather_array};

/// A shared table is kept if it has at most this many values per row: it may have to be sent elsewhere.
const KEPT_VALUES_PER_ROW: usize = 16;

/// All values of the tables are examined if there are at most this many per row.
const VALUES_PER_ROW: usize = 4;

/// Marks a value without a place yet.
const NO_PLACE: u32 = u32::MAX;

/// Returns whether a type holds a dictionary at any depth.
pub(super) fn has_dictionary(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_dictionary(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_dictionary(field.data_type())),
        _ => false,
    }
}

/// Returns the bytes of the value tables that are shared with another column, at any depth.
pub(super) fn shared_bytes(column: &ArrayData, other: &ArrayData) -> usize {
    let children = column.child_data().iter().zip(other.child_data());
    match column.data_type() {
        DataType::Dictionary(..) => {
            let shared = children.filter(|(values, other)| values.ptr_eq(other));
            shared.map(|(values, _)| values.get_array_memory_size()).sum()
        }
        _ => children.map(|(child, other)| shared_bytes(child, other)).sum(),
    }
}

/// Returns the table of values that all `sources` share, if it is not much longer than a batch with this many rows and
/// comparing tables is cheap beside gathering; or that of the only source, if it is to be kept.
pub(super) fn common_values<'a>(sources: &[&'a ArrayData], rows: Rows<'_>) -> Option<&'a ArrayData> {
    let num_rows = rows.each.len();
    let values = &sources.first()?.child_data()[0];
    let is_short = values.len() <= num_rows.saturating_mul(KEPT_VALUES_PER_ROW);
    let others = || sources.iter().map(|source| &source.child_data()[0]).filter(|other| !values.ptr_eq(other));
    let num_others = others().count();
    let is_little = num_others == 0 || are_few(values.len().saturating_mul(num_others + 1), num_rows);
    let is_same = || others().all(|other| values.len() == other.len() && values == other);
    (num_others == 0 && rows.keeps_values || is_short && is_little && is_same()).then_some(values)
}

/// Returns whether all values of the tables may be examined for a batch with this many rows.
fn are_few(num_values: usize, num_rows: usize) -> bool {
    num_values <= num_rows.saturating_mul(VALUES_PER_ROW)
}

/// Returns the keys of `rows`, and only the values these use.
///
/// # Errors
///
/// If there are more values than this key type can distinguish, or than offsets can address.
pub(super) fn gather_merged(
    key_type: &DataType,
    sources: &[&ArrayData],
    rows: &[SourceRow],
) -> Result<(Buffer, ArrayData), ArrowError> {
    match key_type {
        DataType::Int8 => merged::<i8>(sources, rows),
        DataType::Int16 => merged::<i16>(sources, rows),
        DataType::Int32 => merged::<i32>(sources, rows),
        DataType::Int64 => merged::<i64>(sources, rows),
        DataType::UInt8 => merged::<u8>(sources, rows),
        DataType::UInt16 => merged::<u16>(sources, rows),
        DataType::UInt32 => merged::<u32>(sources, rows),
        DataType::UInt64 => merged::<u64>(sources, rows),
        other => Err(ArrowError::InvalidArgumentError(format!("no keys of a dictionary: {other}"))),
    }
}

fn merged<K: ArrowNativeType>(sources: &[&ArrayData], rows: &[SourceRow]) -> Result<(Buffer, ArrayData), ArrowError> {
    let keys: Vec<&[K]> = sources.iter().map(|source| source.buffer::<K>(0)).collect();
    let tables: Vec<&ArrayData> = sources.iter().map(|source| &source.child_data()[0]).collect();
    let mut merge = Merge::new(&tables, rows.len());
    let places = rows.iter().map(|&(source, row)| {
        let (index, row) = (source as usize, row as usize);
        if sources[index].is_null(row) { NO_PLACE } else { merge.place(source, keys[index][row].as_usize()) }
    });
    let places: Vec<u32> = places.collect();
    let (firsts, ranks) = merge.ordered();
    if firsts.len().checked_sub(1).is_some_and(|last| K::from_usize(last).is_none()) {
        return Err(ArrowError::DictionaryKeyOverflowError);
    }
    let key =
        |&place: &u32| ranks.get(place as usize).and_then(|rank| K::from_usize(*rank as usize)).unwrap_or_default();
    let keys: Vec<K> = places.iter().map(key).collect();
    Ok((Buffer::from_vec(keys), gather_array(&tables, Rows::new(&firsts))?))
}

/// What identifies a value.
#[derive(PartialEq, Eq, Hash)]
enum Value<'a> {
    Null,
    Bytes(&'a [u8]),
    /// A value of a type that is not compared, by its table and index.
    At(u32, usize),
}

/// The values of some rows.
struct Merge<'a> {
    tables: &'a [&'a ArrayData],
    /// Where each source's table begins in `places`, if there are few enough values.
    starts: Option<Vec<usize>>,
    places: Vec<u32>,
    known: FxHashMap<Value<'a>, u32>,
    /// Where each distinct value is.
    firsts: Vec<SourceRow>,
}

impl<'a> Merge<'a> {
    fn new(tables: &'a [&'a ArrayData], num_rows: usize) -> Self {
        let num_values: usize = tables.iter().map(|table| table.len()).sum();
        let is_small = are_few(num_values, num_rows);
        let starts = is_small.then(|| {
            let start = |end: &mut usize, table: &&ArrayData| Some(std::mem::replace(end, *end + table.len()));
            tables.iter().scan(0, start).collect()
        });
        let places = vec![NO_PLACE; if is_small { num_values } else { 0 }];
        Self {
            tables,
            starts,
            places,
            known: FxHashMap::with_capacity_and_hasher(num_values.min(num_rows), FxBuildHasher),
            firsts: Vec::new(),
        }
    }

    /// Returns the place of a value, a new one if it is seen for the first time.
    fn place(&mut self, source: u32, key: usize) -> u32 {
        let Some(index) = self.starts.as_ref().map(|starts| starts[source as usize] + key) else {
            return self.find(source, key);
        };
        if self.places[index] == NO_PLACE {
            self.places[index] = self.find(source, key);
        }
        self.places[index]
    }

    fn find(&mut self, source: u32, key: usize) -> u32 {
        let value = value_at(self.tables[source as usize], key).unwrap_or(Value::At(source, key));
        let next = u32::try_from(self.firsts.len()).unwrap_or(NO_PLACE);
        let place = *self.known.entry(value).or_insert(next);
        if place == next {
            self.firsts.push((source, u32::try_from(key).unwrap_or(u32::MAX)));
        }
        place
    }

    /// Returns where the values are, in the order of their tables, and the rank of each place.
    fn ordered(self) -> (Vec<SourceRow>, Vec<u32>) {
        let mut order: Vec<u32> = (0..).take(self.firsts.len()).collect();
        order.sort_unstable_by_key(|&place| {
            let (source, key) = self.firsts[place as usize];
            (key, source)
        });
        let mut ranks = vec![0; order.len()];
        for (rank, &place) in (0..).zip(&order) {
            ranks[place as usize] = rank;
        }
        (order.iter().map(|&place| self.firsts[place as usize]).collect(), ranks)
    }
}

/// Returns a value in comparable form; `None` if its type has none.
fn value_at(values: &ArrayData, index: usize) -> Option<Value<'_>> {
    if values.is_null(index) {
        return Some(Value::Null);
    }
    let width = match values.data_type() {
        DataType::Utf8 | DataType::Binary => return Some(Value::Bytes(text_at::<i32>(values, index))),
        DataType::LargeUtf8 | DataType::LargeBinary => return Some(Value::Bytes(text_at::<i64>(values, index))),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok()?,
        number => number.primitive_width()?,
    };
    let start = (values.offset() + index) * width;
    Some(Value::Bytes(&values.buffers()[0].as_slice()[start..start + width]))
}

fn text_at<O: ArrowNativeType>(values: &ArrayData, index: usize) -> &[u8] {
    let offsets = values.buffer::<O>(0);
    &values.buffers()[1].as_slice()[offsets[index].as_usize()..offsets[index + 1].as_usize()]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int8Type, Int32Type};
    use arrow_array::{Array, ArrayRef, DictionaryArray, Int8Array, Int32Array, StringArray, make_array};

    use super::*;

    fn dictionary(keys: Vec<Option<i32>>, values: Vec<Option<&str>>) -> ArrayData {
        DictionaryArray::<Int32Type>::new(Int32Array::from(keys), Arc::new(StringArray::from(values))).to_data()
    }

    fn gathered(sources: &[&ArrayData], rows: &[SourceRow]) -> (Vec<Option<i32>>, Vec<Option<String>>) {
        let data = gather_array(sources, Rows::new(rows)).unwrap();
        data.validate_full().unwrap();
        let array = make_array(data).as_dictionary::<Int32Type>().clone();
        let values = array.values().as_string::<i32>().iter().map(|value| value.map(str::to_owned)).collect();
        (array.keys().iter().collect(), values)
    }

    fn texts(values: &[&str]) -> Vec<Option<String>> {
        values.iter().map(|value| Some((*value).to_owned())).collect()
    }

    #[test]
    fn values_that_tables_share_are_there_once_and_others_not_at_all() {
        let one = dictionary(vec![Some(2), None, Some(1)], ["d", "c", "b"].map(Some).to_vec());
        let other = dictionary(vec![Some(0), Some(1)], ["b", "a"].map(Some).to_vec());
        let found = gathered(&[&one, &other], &[(1, 1), (0, 0), (0, 1), (1, 0)]);
        assert_eq!(found, (vec![Some(0), Some(1), None, Some(1)], texts(&["a", "b"])));
    }

    #[test]
    fn values_keep_the_order_of_their_table() {
        let sizes = ["smallest", "small", "medium", "large", "largest"].map(Some).to_vec();
        let sources = [vec![Some(4)], vec![Some(1)]].map(|keys| dictionary(keys, sizes.clone()));
        let found = gathered(&sources.each_ref(), &[(0, 0), (1, 0)]);
        assert_eq!(found, (vec![Some(1), Some(0)], texts(&["small", "largest"])));
    }

    #[test]
    fn a_short_table_that_all_have_is_that_of_the_batch() {
        let sources = [vec![Some(1)], vec![None]].map(|keys| dictionary(keys, ["b", "a"].map(Some).to_vec()));
        let found = gathered(&sources.each_ref(), &[(0, 0), (1, 0), (0, 0)]);
        assert_eq!(found, (vec![Some(1), None, Some(1)], texts(&["b", "a"])));
    }

    #[test]
    fn a_value_that_is_null_is_there_once() {
        let values = vec![Some("a"), None, Some("b"), Some("c"), Some("d")];
        let sources = [(); 2].map(|()| dictionary(vec![Some(1)], values.clone()));
        assert_eq!(gathered(&sources.each_ref(), &[(0, 0), (1, 0)]), (vec![Some(0), Some(0)], vec![None]));
    }

    #[test]
    fn rows_that_are_null_need_no_values() {
        let sources = [(); 2].map(|()| dictionary(vec![None], Vec::new()));
        assert_eq!(gathered(&sources.each_ref(), &[(0, 0), (1, 0)]), (vec![None, None], Vec::new()));
    }

    #[test]
    fn more_values_than_numbers_tell_apart_are_an_error() {
        let source = |from: i32| {
            let values: ArrayRef = Arc::new(Int32Array::from_iter_values(from..from + 100));
            DictionaryArray::<Int8Type>::new(Int8Array::from_iter_values(0..100), values).to_data()
        };
        let (one, other) = (source(0), source(100));
        let rows: Vec<SourceRow> = (0..100).flat_map(|row| [(0, row), (1, row)]).collect();
        assert!(gather_array(&[&one, &other], Rows::new(&rows[..128])).is_ok());
        assert!(gather_array(&[&one, &other], Rows::new(&rows[..129])).is_err());
    }
}
