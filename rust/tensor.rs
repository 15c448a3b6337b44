//! The tensor form of a column: which types have one, and the view itself.
//!
//! | Arrow | tensor | copies |
//! |---|---|---|
//! | integers, floats (also 16 bit) | `(n,)`, same type | 0 |
//! | dates, times, timestamps, durations | `(n,)`, their integers in their unit | 0 |
//! | Boolean | `(n,)` bool | 1: bits become bytes |
//! | fixed-size list of the above | `(n, k)`, nested: `(n, k, l)` | 0 |
//! | list of the above, all rows of one length | `(n, k)` | 0 |
//!
//! Nulls have no tensor form yet: a tensor of another type or with invented values would hide them.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, GenericListArray, OffsetSizeTrait};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field};

use crate::error::{Error, Result};

/// The type of a tensor's elements, with its width in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Signed integer.
    Int(u8),
    /// Unsigned integer.
    UInt(u8),
    /// IEEE 754 floating point.
    Float(u8),
    /// One byte, 0 or 1.
    Bool,
}

impl Element {
    /// Returns the bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Int(bits) | Self::UInt(bits) | Self::Float(bits) => usize::from(bits) / 8,
            Self::Bool => 1,
        }
    }
}

/// A dense, row-major tensor over an Arrow buffer.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The type of the elements.
    pub element: Element,
    /// The extent of each dimension, rows first.
    pub shape: Vec<i64>,
    /// The elements; shares the column's buffer.
    pub values: Buffer,
}

/// How a column leaves in a batch of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A tensor.
    Tensor,
    /// A Python list of strings or bytes.
    Strings,
}

/// Returns the form of a column of type `field`.
///
/// # Errors
///
/// [`Error::NoTensor`] for types that have none, saying what would work.
pub fn form_of(field: &Field) -> Result<Form> {
    match field.data_type() {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => Ok(Form::Strings),
        data_type if has_tensor(data_type) => Ok(Form::Tensor),
        data_type => {
            let hint = match data_type {
                DataType::Struct(_) => "select its fields in another way, or iterate Arrow batches with `batches()`",
                DataType::Decimal128(..) | DataType::Decimal256(..) => "write it as float64, or use `batches()`",
                DataType::List(_) | DataType::LargeList(_) => "only lists of numbers have one; use `batches()`",
                _ => "leave it out with `select_columns`, or iterate Arrow batches with `batches()`",
            };
            Err(no_tensor(field, hint.into()))
        }
    }
}

fn has_tensor(data_type: &DataType) -> bool {
    match data_type {
        DataType::FixedSizeList(item, _) => has_tensor(item.data_type()),
        DataType::List(item) | DataType::LargeList(item) => element_of(item.data_type()).is_some(),
        other => element_of(other).is_some(),
    }
}

fn element_of(data_type: &DataType) -> Option<Element> {
    Some(match data_type {
        DataType::Boolean => Element::Bool,
        DataType::Int8 => Element::Int(8),
        DataType::Int16 => Element::Int(16),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Element::Int(32),
        DataType::Int64 | DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
            Element::Int(64)
        }
        DataType::UInt8 => Element::UInt(8),
        DataType::UInt16 => Element::UInt(16),
        DataType::UInt32 => Element::UInt(32),
        DataType::UInt64 => Element::UInt(64),
        DataType::Float16 => Element::Float(16),
        DataType::Float32 => Element::Float(32),
        DataType::Float64 => Element::Float(64),
        _ => return None,
    })
}

/// Returns the tensor over `array`, without a copy (Booleans: one).
///
/// # Errors
///
/// [`Error::NoTensor`] for types without a form, for nulls, and for lists of different lengths.
pub fn from_array(field: &Field, array: &ArrayRef) -> Result<Tensor> {
    let rows = dimension(array.len());
    if array.null_count() > 0 {
        let hint = format!(
            "this batch has {} nulls; filter with `{} IS NOT NULL`, or use `batches()`",
            array.null_count(),
            field.name()
        );
        return Err(no_tensor(field, hint));
    }
    if let Some(element) = element_of(array.data_type()) {
        return Ok(Tensor { element, shape: vec![rows], values: values_of(array, element) });
    }
    match array.data_type() {
        DataType::FixedSizeList(_, len) => {
            let list = array.as_fixed_size_list();
            nested(field, list.values(), rows, i64::from(*len))
        }
        DataType::List(_) => equal_lists(field, array.as_list::<i32>()),
        DataType::LargeList(_) => equal_lists(field, array.as_list::<i64>()),
        _ => Err(form_of(field).err().unwrap_or_else(|| no_tensor(field, "it is text; use it as a list".into()))),
    }
}

fn nested(field: &Field, items: &ArrayRef, rows: i64, len: i64) -> Result<Tensor> {
    let inner = from_array(field, items)?;
    let shape = [rows, len].into_iter().chain(inner.shape[1..].iter().copied()).collect();
    Ok(Tensor { shape, ..inner })
}

fn equal_lists<O: OffsetSizeTrait>(field: &Field, list: &GenericListArray<O>) -> Result<Tensor> {
    let offsets = list.value_offsets();
    let (first, last) = (offsets[0].as_usize(), offsets[list.len()].as_usize());
    let len = (last - first).checked_div(list.len()).unwrap_or(0);
    if let Some(row) = (0..list.len()).find(|&row| list.value_length(row).as_usize() != len) {
        let (one, other) = (list.value_length(0).as_usize(), list.value_length(row).as_usize());
        let hint =
            format!("its rows differ in length (here {one} and {other}); pad them when writing, or use `batches()`");
        return Err(no_tensor(field, hint));
    }
    let items = list.values().slice(first, last - first);
    nested(field, &items, dimension(list.len()), dimension(len))
}

/// Returns the elements of a flat array as they lie in memory; bits of Booleans as bytes.
fn values_of(array: &ArrayRef, element: Element) -> Buffer {
    if let Some(bits) = array.as_boolean_opt() {
        let bytes: Vec<u8> = bits.values().iter().map(u8::from).collect();
        return Buffer::from_vec(bytes);
    }
    let data = array.to_data();
    let size = element.size_bytes();
    data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size)
}

fn dimension(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn no_tensor(field: &Field, hint: String) -> Error {
    Error::NoTensor { column: field.name().clone(), data_type: Box::new(field.data_type().clone()), hint }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::{Float32Type, Int32Type};
    use arrow_array::{BooleanArray, FixedSizeListArray, Int32Array, ListArray, StringArray};

    use super::*;

    fn tensor(array: impl Array + 'static) -> Result<Tensor> {
        let field = Field::new("x", array.data_type().clone(), true);
        from_array(&field, &(Arc::new(array) as ArrayRef))
    }

    #[test]
    fn numbers_share_the_columns_buffer_even_when_sliced() {
        let array = Int32Array::from(vec![1, 2, 3, 4]);
        let tensor = tensor(array.slice(1, 2)).unwrap();
        assert_eq!((tensor.element, &tensor.shape[..]), (Element::Int(32), &[2][..]));
        assert_eq!(tensor.values.as_ptr(), array.values()[1..].as_ptr().cast());
    }

    #[test]
    fn lists_of_one_length_are_a_matrix_without_a_copy() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            Some(vec![Some(3), Some(4)]),
            Some(vec![Some(5), Some(6)]),
        ]);
        let sliced = tensor(lists.slice(1, 2)).unwrap();
        assert_eq!(sliced.shape, [2, 2]);
        assert_eq!(sliced.values.typed_data::<i32>(), [3, 4, 5, 6]);
        let fixed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0), Some(2.0)])], 2);
        assert_eq!(tensor(fixed).unwrap().shape, [1, 2]);
    }

    #[test]
    fn what_has_no_tensor_form_says_why() {
        let ragged = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), Some(vec![])]);
        assert!(tensor(ragged).unwrap_err().to_string().contains("differ in length"));
        assert!(tensor(Int32Array::from(vec![Some(1), None])).unwrap_err().to_string().contains("1 nulls"));
        assert!(tensor(StringArray::from(vec!["a"])).is_err());
    }

    #[test]
    fn booleans_become_bytes() {
        let tensor = tensor(BooleanArray::from(vec![true, false, true]).slice(1, 2)).unwrap();
        assert_eq!(tensor.values.as_slice(), [0, 1]);
    }
}
