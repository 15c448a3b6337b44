//! Floats with one bit pattern per value, and as integers of the same order.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, ArrowNativeTypeOp, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    PrimitiveArray, RecordBatch, StructArray,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};

use crate::batch;
use arrow_schema::{ArrowError, DataType};

/// Returns whether a type is or contains floats.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Map, Struct};
    match data_type {
        List(item) | LargeList(item) | FixedSizeList(item, _) | Map(item, _) => has_floats(item.data_type()),
        Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        Dictionary(_, values) => has_floats(values),
        other => other.is_floating(),
    }
}

/// Gives the floats of `batch` one bit pattern per value, at any depth. Copies only columns with other patterns.
pub(crate) fn canonical_columns(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let column = |column: &ArrayRef| Ok(canonical(column)?.unwrap_or_else(|| Arc::clone(column)));
    let columns = batch.columns().iter().map(column).collect::<Result<_, ArrowError>>()?;
    batch::of_columns(batch.schema(), columns, batch.num_rows())
}

/// Returns an array with one bit pattern per float value; `None` if it already is one.
pub(crate) fn canonical(array: &ArrayRef) -> Result<Option<ArrayRef>, ArrowError> {
    if !has_floats(array.data_type()) {
        return Ok(None);
    }
    Ok(match array.data_type() {
        DataType::Float16 => canonical_numbers::<Float16Type>(array),
        DataType::Float32 => canonical_numbers::<Float32Type>(array),
        DataType::Float64 => canonical_numbers::<Float64Type>(array),
        DataType::List(_) => canonical_items::<i32>(array)?,
        DataType::LargeList(_) => canonical_items::<i64>(array)?,
        DataType::FixedSizeList(field, len) => match canonical(array.as_fixed_size_list().values())? {
            Some(items) => {
                let nulls = array.nulls().cloned();
                let lists =
                    FixedSizeListArray::try_new_with_length(Arc::clone(field), *len, items, nulls, array.len())?;
                Some(Arc::new(lists))
            }
            None => None,
        },
        DataType::Struct(_) => canonical_fields(array.as_struct())?.map(|fields| Arc::new(fields) as ArrayRef),
        DataType::Map(field, is_ordered) => {
            let map = array.as_map();
            let (entries, offsets) = within(map.entries(), map.offsets())?;
            match canonical_fields(entries.as_struct())? {
                Some(entries) => {
                    let nulls = map.nulls().cloned();
                    let map = MapArray::try_new(Arc::clone(field), offsets, entries, nulls, *is_ordered)?;
                    Some(Arc::new(map))
                }
                None => None,
            }
        }
        DataType::Dictionary(..) => {
            let coded = array.as_any_dictionary();
            canonical(coded.values())?.map(|values| coded.with_values(values))
        }
        _ => None,
    })
}

fn canonical_numbers<T: Float>(array: &ArrayRef) -> Option<ArrayRef> {
    /// Number of values processed at a time, which the compiler vectorizes.
    const AT_ONCE: usize = 256;
    let numbers = array.as_primitive::<T>();
    let is_other = |number: &T::Native| !T::is_canonical(*number);
    let has_others =
        numbers.values().chunks(AT_ONCE).any(|chunk| chunk.iter().fold(false, |any, number| any | is_other(number)));
    has_others.then(|| Arc::new(numbers.unary::<_, T>(T::canonical)) as ArrayRef)
}

fn canonical_items<O: OffsetSizeTrait>(array: &ArrayRef) -> Result<Option<ArrayRef>, ArrowError> {
    let lists = array.as_list::<O>();
    let (items, offsets) = within(lists.values(), lists.offsets())?;
    let (Some(items), DataType::List(field) | DataType::LargeList(field)) = (canonical(&items)?, array.data_type())
    else {
        return Ok(None);
    };
    let lists = GenericListArray::try_new(Arc::clone(field), offsets, items, lists.nulls().cloned())?;
    Ok(Some(Arc::new(lists)))
}

fn canonical_fields(array: &StructArray) -> Result<Option<StructArray>, ArrowError> {
    let columns = array.columns().iter().map(canonical).collect::<Result<Vec<_>, _>>()?;
    if columns.iter().all(Option::is_none) {
        return Ok(None);
    }
    let columns = columns.into_iter().zip(array.columns());
    let columns = columns.map(|(canonical, column)| canonical.unwrap_or_else(|| Arc::clone(column))).collect();
    StructArray::try_new(array.fields().clone(), columns, array.nulls().cloned()).map(Some)
}

/// Returns the items that offsets point to, and where they are: an array may be a small part of another.
fn within<O: OffsetSizeTrait>(
    items: &dyn Array,
    offsets: &OffsetBuffer<O>,
) -> Result<(ArrayRef, OffsetBuffer<O>), ArrowError> {
    let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
        return Err(ArrowError::ComputeError("a list without offsets".into()));
    };
    let items = items.slice(first.as_usize(), (*last - *first).as_usize());
    if *first == O::default() {
        return Ok((items, offsets.clone()));
    }
    let offsets: ScalarBuffer<O> = offsets.iter().map(|offset| *offset - *first).collect();
    Ok((items, OffsetBuffer::new(offsets)))
}

/// Converts canonical floats to integers of the same order, or such integers back to floats.
pub(super) fn in_order(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    fn of<T: Float>(array: &ArrayRef) -> ArrayRef {
        let order: PrimitiveArray<T::Order> = array.as_primitive::<T>().unary(T::order);
        Arc::new(order)
    }
    fn back<T: Float>(array: &ArrayRef) -> ArrayRef {
        let floats: PrimitiveArray<T> = array.as_primitive::<T::Order>().unary(T::of_order);
        Arc::new(floats)
    }
    Ok(match array.data_type() {
        DataType::Float16 => of::<Float16Type>(array),
        DataType::Float32 => of::<Float32Type>(array),
        DataType::Float64 => of::<Float64Type>(array),
        DataType::Int16 => back::<Float16Type>(array),
        DataType::Int32 => back::<Float32Type>(array),
        DataType::Int64 => back::<Float64Type>(array),
        other => return Err(ArrowError::ComputeError(format!("{other} has no order of floats"))),
    })
}

/// Floats, and integers of the same order.
trait Float: ArrowPrimitiveType {
    type Order: ArrowPrimitiveType;

    fn is_canonical(number: Self::Native) -> bool;

    fn canonical(number: Self::Native) -> Self::Native;

    fn order(number: Self::Native) -> <Self::Order as ArrowPrimitiveType>::Native;

    fn of_order(order: <Self::Order as ArrowPrimitiveType>::Native) -> Self::Native;
}

type Half = <Float16Type as ArrowPrimitiveType>::Native;

macro_rules! impl_float {
    ($float:ident, $number:ident, $order:ident, $bits:ident) => {
        impl Float for $float {
            type Order = $order;

            fn is_canonical(number: $number) -> bool {
                let bits = number.to_bits();
                (!number.is_nan() | (bits == $number::NAN.to_bits())) & (bits != (-$number::ZERO).to_bits())
            }

            fn canonical(number: $number) -> $number {
                if number.is_nan() { $number::NAN } else { number + $number::ZERO }
            }

            fn order(number: $number) -> $bits {
                let bits = number.to_bits().cast_signed();
                // The integers of negative numbers would be in reverse order.
                if bits < 0 { bits ^ $bits::MAX } else { bits }
            }

            fn of_order(order: $bits) -> $number {
                let bits = if order < 0 { order ^ $bits::MAX } else { order };
                $number::from_bits(bits.cast_unsigned())
            }
        }
    };
}

impl_float!(Float16Type, Half, Int16Type, i16);
impl_float!(Float32Type, f32, Int32Type, i32);
impl_float!(Float64Type, f64, Int64Type, i64);

#[cfg(test)]
mod tests {
    use arrow_array::builder::{Float32Builder, ListBuilder};
    use arrow_array::{DictionaryArray, Float64Array, UInt8Array};
    use arrow_schema::{Field, Fields};

    use super::*;

    fn negative_nan() -> f64 {
        f64::from_bits(f64::NAN.to_bits() | (1 << 63))
    }

    fn bits(array: &ArrayRef) -> Vec<u64> {
        array.as_primitive::<Float64Type>().values().iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn floats_get_one_bit_pattern_for_each_value() {
        let array: ArrayRef = Arc::new(Float64Array::from(vec![negative_nan(), f64::NAN, -0.0, 0.0, -1.5]));
        let canonical = canonical(&array).unwrap().unwrap();
        assert_eq!(bits(&canonical), [f64::NAN, f64::NAN, 0.0, 0.0, -1.5].map(f64::to_bits));
    }

    #[test]
    fn what_is_canonical_is_not_copied() {
        let array: ArrayRef = Arc::new(Float64Array::from(vec![Some(f64::NAN), None, Some(0.0), Some(-1.5)]));
        assert!(canonical(&array).unwrap().is_none());
    }

    #[test]
    fn floats_within_lists_structs_and_dictionaries_are_found() {
        let mut lists = ListBuilder::new(Float32Builder::new());
        for items in [Some(vec![1.0]), Some(vec![-0.0, 2.0]), None, Some(vec![]), Some(vec![0.0])] {
            lists.append_option(items.map(|items: Vec<f32>| items.into_iter().map(Some)));
        }
        let lists: ArrayRef = Arc::new(lists.finish());
        // Only the given part of an array is examined.
        assert!(canonical(&lists.slice(2, 3)).unwrap().is_none());
        let part = canonical(&lists.slice(1, 3)).unwrap().unwrap();
        assert_eq!((part.len(), part.is_null(1)), (3, true));
        let items = part.as_list::<i32>().value(0);
        assert_eq!(items.as_primitive::<Float32Type>().value(0).to_bits(), 0);
        let fields = Fields::from(vec![Field::new("l", part.data_type().clone(), true)]);
        let inside: ArrayRef = Arc::new(StructArray::new(fields, vec![lists], None));
        let inside = canonical(&inside).unwrap().unwrap();
        assert_eq!(inside.as_struct().column(0).as_list::<i32>().value(1).as_ref(), items.as_ref());
        let values: ArrayRef = Arc::new(Float64Array::from(vec![negative_nan(), 1.0]));
        let coded: ArrayRef = Arc::new(DictionaryArray::new(UInt8Array::from(vec![1, 0, 1]), values));
        let coded = canonical(&coded).unwrap().unwrap();
        assert_eq!(bits(coded.as_any_dictionary().values()), [f64::NAN, 1.0].map(f64::to_bits));
    }

    #[test]
    fn integers_are_ordered_as_their_floats_and_become_them_again() {
        let ascending =
            vec![f64::NEG_INFINITY, f64::MIN, -1.5, -f64::MIN_POSITIVE, 0.0, 1e-300, 2.0, f64::INFINITY, f64::NAN];
        let floats: ArrayRef = Arc::new(Float64Array::from(ascending));
        let order = in_order(&floats).unwrap();
        assert!(order.as_primitive::<Int64Type>().values().is_sorted());
        assert_eq!(bits(&in_order(&order).unwrap()), bits(&floats));
    }
}
