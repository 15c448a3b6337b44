//! Makes the value tables of dictionaries unique, which consumers such as pandas take for granted.
//!
//! A batch has rows of many row groups, each with a table of its own; arrow appends these, with what they share twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow_array::cast::AsArray;
use arrow_array::types::ArrowDictionaryKeyType;
use arrow_array::{Array, ArrayRef, DictionaryArray, UInt64Array, downcast_dictionary_array, make_array};
use arrow_buffer::ArrowNativeType;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};

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

/// Returns `data` with no value twice in any of its dictionaries.
///
/// # Errors
///
/// None that arrow does not find in sound arrays.
pub(super) fn with_unique_values(data: ArrayData) -> Result<ArrayData, ArrowError> {
    if !has_dictionary(data.data_type()) {
        return Ok(data);
    }
    if let DataType::Dictionary(..) = data.data_type() {
        let array = make_array(data);
        let array: &dyn Array = array.as_ref();
        return downcast_dictionary_array! {
            array => Ok(unique(array)?.to_data()),
            _ => Ok(array.to_data())
        };
    }
    let children = data.child_data().iter().cloned().map(with_unique_values).collect::<Result<Vec<_>, _>>()?;
    data.into_builder().child_data(children).build()
}

fn unique<K: ArrowDictionaryKeyType>(array: &DictionaryArray<K>) -> Result<DictionaryArray<K>, ArrowError> {
    let Some((places, firsts)) = repeated(array.values()) else { return Ok(array.clone()) };
    let keys = array.keys().unary_opt(|key| K::Native::from_usize(places[key.as_usize()]));
    DictionaryArray::try_new(keys, arrow_select::take::take(array.values(), &firsts, None)?)
}

/// Returns each value's place among the different ones, and where each of these stands first; `None` if all differ.
fn repeated(values: &ArrayRef) -> Option<(Vec<usize>, UInt64Array)> {
    let data = values.to_data();
    match values.data_type() {
        DataType::Utf8 => different(&data, |index| values.as_string::<i32>().value(index).as_bytes()),
        DataType::LargeUtf8 => different(&data, |index| values.as_string::<i64>().value(index).as_bytes()),
        DataType::Binary => different(&data, |index| values.as_binary::<i32>().value(index)),
        DataType::LargeBinary => different(&data, |index| values.as_binary::<i64>().value(index)),
        number => {
            let width = number.primitive_width()?;
            let bytes = data.buffers()[0].as_slice().get(data.offset() * width..)?;
            different(&data, |index| &bytes[index * width..(index + 1) * width])
        }
    }
}

fn different<'a>(values: &ArrayData, bytes: impl Fn(usize) -> &'a [u8]) -> Option<(Vec<usize>, UInt64Array)> {
    let mut known: HashMap<Option<&[u8]>, usize> = HashMap::with_capacity(values.len());
    let mut firsts = Vec::with_capacity(values.len());
    let mut places = Vec::with_capacity(values.len());
    for index in 0..values.len() {
        let value = values.is_valid(index).then(|| bytes(index));
        places.push(match known.entry(value) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(vacant) => {
                firsts.push(index as u64);
                *vacant.insert(firsts.len() - 1)
            }
        });
    }
    (firsts.len() < values.len()).then(|| (places, firsts.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, StringArray, StructArray};
    use arrow_schema::Field;

    use super::*;

    fn dictionary(keys: Vec<Option<i32>>, values: Vec<&str>) -> DictionaryArray<Int32Type> {
        DictionaryArray::new(Int32Array::from(keys), Arc::new(StringArray::from(values)))
    }

    #[test]
    fn values_that_repeat_are_merged_at_any_depth() {
        let column = dictionary(vec![Some(0), None, Some(2), Some(3)], vec!["a", "b", "a", "c"]);
        let field = Arc::new(Field::new("x", column.data_type().clone(), true));
        let nested = StructArray::from(vec![(field, Arc::new(column.clone()) as ArrayRef)]);
        let merged = make_array(with_unique_values(nested.to_data()).unwrap());
        let merged = merged.as_struct().column(0).as_dictionary::<Int32Type>().clone();
        assert_eq!(merged.values().len(), 3);
        assert_eq!(merged.keys(), &Int32Array::from(vec![Some(0), None, Some(0), Some(2)]));
        assert_eq!(merged.to_data(), column.to_data());
    }

    #[test]
    fn numbers_that_repeat_are_merged() {
        let values = Arc::new(Int32Array::from(vec![7, 8, 7]));
        let column = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![2, 1, 0]), values);
        let merged = make_array(with_unique_values(column.to_data()).unwrap());
        assert_eq!(merged.as_dictionary::<Int32Type>().values().len(), 2);
        assert_eq!(merged.to_data(), column.to_data());
    }

    #[test]
    fn values_that_all_differ_are_not_copied() {
        let column = dictionary(vec![Some(1)], vec!["a", "b"]);
        let same = make_array(with_unique_values(column.to_data()).unwrap());
        assert!(same.as_dictionary::<Int32Type>().values().to_data().ptr_eq(&column.values().to_data()));
    }
}
