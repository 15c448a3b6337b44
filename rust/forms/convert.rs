//! Converts arrays to their form.

use std::str::FromStr;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, GenericListArray, OffsetSizeTrait, UInt8Array, UInt64Array};
use arrow_buffer::{ArrowNativeType, BooleanBufferBuilder, Buffer, MutableBuffer, NullBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use serde::Deserialize;

use super::Form;
use super::tensor::{Element, Tensor, dimension, values_of};
use crate::error::{Error, Result};

/// A column of a batch in its chosen form.
#[derive(Debug)]
pub enum Converted {
    /// A tensor; the field has the unit of its elements.
    Tensor(FieldRef, Tensor),
    /// Values that become individual Python objects.
    Objects(FieldRef, ArrayRef),
    /// The items of all rows, and the offset of each row's items, including the end of the last.
    Ragged(Box<Self>, Tensor),
    /// Like [`Converted::Ragged`], for a `torch.nested` tensor.
    Nested(Box<Self>, Tensor),
    /// The fields of a struct.
    Struct(Vec<(String, Self)>),
    /// Indices into a dictionary, and the dictionary.
    Indices(Tensor, Box<Self>),
    /// Values, and a mask of those that exist.
    Masked(Box<Self>, Tensor),
}

/// Returns `array` in its chosen form.
///
/// # Errors
///
/// [`Error::NoTensor`] if the form cannot hold a value: a null that the footer denies, lists of different lengths.
pub fn convert(field: &FieldRef, array: &ArrayRef, form: &Form) -> Result<Converted> {
    convert_where(field, array, form, None)
}

/// Returns the tensor over `array`, without a copy (Booleans: one).
///
/// # Errors
///
/// [`Error::NoTensor`] for types that are not one dense tensor, for nulls, and for lists of different lengths.
pub fn dense(field: &Field, array: &ArrayRef) -> Result<Tensor> {
    dense_where(field, array, None)
}

/// Returns whether values of a type become Python objects by default.
pub(super) fn has_objects(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Null
            | DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..)
    )
}

/// Converts values that may be null only where `absent` says so: what is below a NULL does not matter.
fn convert_where(field: &FieldRef, array: &ArrayRef, form: &Form, absent: Option<&NullBuffer>) -> Result<Converted> {
    match form {
        Form::Masked(values) => {
            let nulls = NullBuffer::union(array.logical_nulls().as_ref(), absent);
            let mask = Tensor::mask_of_rows(nulls.as_ref(), array.len());
            Ok(Converted::Masked(Box::new(convert_where(field, array, values, nulls.as_ref())?), mask))
        }
        Form::MaskedElements => {
            let nulls = NullBuffer::union(elements(array).as_ref(), expanded(absent, array).as_ref());
            let values = dense_where(field, array, nulls.as_ref())?;
            let mask = values.mask(nulls.as_ref());
            Ok(Converted::Masked(Box::new(Converted::Tensor(Arc::clone(field), values)), mask))
        }
        Form::Tensor => {
            let absent = expanded(absent, array);
            Ok(Converted::Tensor(Arc::clone(field), dense_where(field, array, absent.as_ref())?))
        }
        Form::Objects => Ok(Converted::Objects(Arc::clone(field), Arc::clone(array))),
        form => {
            check_present(field, array, absent)?;
            convert_present(field, array, form, absent)
        }
    }
}

/// Converts values that have been checked for nulls.
fn convert_present(field: &FieldRef, array: &ArrayRef, form: &Form, absent: Option<&NullBuffer>) -> Result<Converted> {
    match (form, array.data_type()) {
        (Form::Cast(element), _) => Ok(Converted::Tensor(Arc::clone(field), cast(field, array, *element)?)),
        (Form::Bytes, data_type) => {
            let (offsets, bytes) = match data_type {
                DataType::Utf8 => bytes_of(array.as_string::<i32>().offsets(), array.as_string::<i32>().values()),
                DataType::LargeUtf8 => bytes_of(array.as_string::<i64>().offsets(), array.as_string::<i64>().values()),
                DataType::Binary => bytes_of(array.as_binary::<i32>().offsets(), array.as_binary::<i32>().values()),
                DataType::LargeBinary => {
                    bytes_of(array.as_binary::<i64>().offsets(), array.as_binary::<i64>().values())
                }
                _ => return Err(mismatch(field)),
            };
            let bytes: ArrayRef = Arc::new(UInt8Array::new(bytes.into(), None));
            let (bytes, offsets) = of_present_rows(field, bytes, offsets, absent)?;
            let element = Element::UInt(8);
            let bytes = Tensor::row_major(element, vec![dimension(bytes.len())], values_of(&bytes, element));
            Ok(Converted::Ragged(Box::new(Converted::Tensor(Arc::clone(field), bytes)), offsets))
        }
        (Form::Ragged(items), _) => {
            let (item, values, offsets) = items_of(array).ok_or_else(|| mismatch(field))?;
            let (values, offsets) = of_present_rows(field, values, offsets, absent)?;
            let items = convert_where(&item, &values, items, None);
            Ok(Converted::Ragged(Box::new(items.map_err(|error| below(error, item.name(), field.name()))?), offsets))
        }
        (Form::Nested, _) => {
            let (item, values, offsets) = items_of(array).ok_or_else(|| mismatch(field))?;
            let (values, offsets) = of_present_rows(field, values, offsets, absent)?;
            Ok(Converted::Nested(Box::new(convert_where(&item, &values, &Form::Tensor, None)?), offsets))
        }
        (Form::Struct(forms), DataType::Struct(fields)) => {
            let array = array.as_struct();
            // What is below a NULL struct is absent, too.
            let absent = NullBuffer::union(absent, array.nulls());
            let children = fields.iter().zip(array.columns()).zip(forms);
            let converted = children.map(|((field, child), form)| {
                Ok((field.name().clone(), convert_where(field, child, form, absent.as_ref())?))
            });
            let converted = converted.collect::<Result<_>>();
            Ok(Converted::Struct(converted.map_err(|error| below(error, "", &format!("{}.", field.name())))?))
        }
        (Form::Decoded(values), DataType::Dictionary(_, value_type)) => {
            let decoded = arrow_cast::cast(array, value_type).map_err(|error| no_tensor(field, error.to_string()))?;
            convert_where(&with_type(field, value_type), &decoded, values, array.logical_nulls().as_ref())
        }
        (Form::Indices(values), DataType::Dictionary(_, value_type)) => {
            let dictionary = array.as_any_dictionary();
            let indices = dictionary.keys().slice(0, array.len());
            let index_field = Field::new(field.name(), indices.data_type().clone(), true);
            let indices = dense_where(&index_field, &indices, array.nulls())?;
            // A tensor may be written to, and the dictionary is shared with other batches.
            let own = match **values {
                Form::Objects => Arc::clone(dictionary.values()),
                _ => copied(dictionary.values()).map_err(|error| no_tensor(field, error.to_string()))?,
            };
            // Rows with a NULL value are NULL themselves.
            let values = convert_where(&with_type(field, value_type), &own, values, own.logical_nulls().as_ref())?;
            Ok(Converted::Indices(indices, Box::new(values)))
        }
        _ => Err(mismatch(field)),
    }
}

/// Returns the field of the values of a dictionary column.
fn with_type(field: &Field, data_type: &DataType) -> FieldRef {
    Field::new(field.name(), data_type.clone(), field.is_nullable()).into()
}

/// Returns the items of lists or the entries of maps, without those before and after, and the offsets into them.
fn items_of(array: &ArrayRef) -> Option<(FieldRef, ArrayRef, Tensor)> {
    Some(match array.data_type() {
        DataType::List(item) => {
            let list = array.as_list::<i32>();
            let (first, len, offsets) = rebased(list.offsets());
            (Arc::clone(item), list.values().slice(first, len), offsets)
        }
        DataType::LargeList(item) => {
            let list = array.as_list::<i64>();
            let (first, len, offsets) = rebased(list.offsets());
            (Arc::clone(item), list.values().slice(first, len), offsets)
        }
        DataType::Map(entries, _) => {
            let map = array.as_map();
            let (first, len, offsets) = rebased(map.offsets());
            let values: ArrayRef = Arc::new(map.entries().slice(first, len));
            (Arc::clone(entries), values, offsets)
        }
        DataType::FixedSizeList(item, len) => {
            let list = array.as_fixed_size_list();
            let len = i64::from(*len);
            let offsets = Tensor::int64((0..list.len() + 1).map(|row| dimension(row) * len));
            (Arc::clone(item), Arc::clone(list.values()), offsets)
        }
        _ => return None,
    })
}

/// Returns items, and offsets into them, with none for absent rows. NULL lists may still have items: fixed-size ones,
/// and those that a query made NULL.
fn of_present_rows(
    field: &Field,
    items: ArrayRef,
    offsets: Tensor,
    absent: Option<&NullBuffer>,
) -> Result<(ArrayRef, Tensor)> {
    let Some(absent) = absent else { return Ok((items, offsets)) };
    let bounds = offsets.values.typed_data::<i64>();
    let length = |row: usize| usize::try_from(bounds[row + 1] - bounds[row]).unwrap_or(0);
    if (0..absent.len()).all(|row| absent.is_valid(row) || length(row) == 0) {
        return Ok((items, offsets));
    }
    let mut is_kept = BooleanBufferBuilder::new(items.len());
    let mut ends = vec![0];
    let mut end = 0;
    for row in 0..absent.len() {
        is_kept.append_n(length(row), absent.is_valid(row));
        end += if absent.is_valid(row) { dimension(length(row)) } else { 0 };
        ends.push(end);
    }
    let kept = arrow_select::filter::filter(&items, &BooleanArray::new(is_kept.finish(), None));
    Ok((kept.map_err(|error| no_tensor(field, error.to_string()))?, Tensor::int64(ends.into_iter())))
}

/// Returns a copy of an array in its own memory.
fn copied(array: &ArrayRef) -> std::result::Result<ArrayRef, ArrowError> {
    arrow_select::take::take(array, &UInt64Array::from_iter_values(0..array.len() as u64), None)
}

/// Returns the first item, the number of items, and the offsets relative to the first as int64.
fn rebased<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize, Tensor) {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    let rebased = offsets.iter().map(|offset| dimension(offset.as_usize() - first));
    (first, last - first, Tensor::int64(rebased))
}

fn bytes_of<O: OffsetSizeTrait>(offsets: &[O], values: &Buffer) -> (Tensor, Buffer) {
    let (first, len, offsets) = rebased(offsets);
    (offsets, values.slice_with_length(first, len))
}

/// Returns the dense tensor of an array in which only the elements of `absent` may be null.
fn dense_where(field: &Field, array: &ArrayRef, absent: Option<&NullBuffer>) -> Result<Tensor> {
    let rows = dimension(array.len());
    match array.data_type() {
        DataType::FixedSizeList(item, _) => {
            let list = array.as_fixed_size_list();
            // Lists of length 0 have no element that could be missed.
            if elements_in_a_row(array.data_type()) > 0 {
                check_present(field, array, rows_of(absent, array).as_ref())?;
            }
            let inner = dense_where(item, list.values(), absent).map_err(|error| renamed(error, field))?;
            let shape = [rows, i64::from(list.value_length())].into_iter().chain(inner.shape[1..].iter().copied());
            shaped(field, Tensor::row_major(inner.element, shape.collect(), inner.values))
        }
        DataType::List(item) => equal_lists(field, item, array.as_list::<i32>()),
        DataType::LargeList(item) => equal_lists(field, item, array.as_list::<i64>()),
        data_type => {
            check_present(field, array, absent)?;
            match (Element::of(field), data_type) {
                (Some(element), _) => Ok(Tensor::row_major(element, vec![rows], values_of(array, element))),
                (None, DataType::FixedSizeBinary(width)) => {
                    let data = array.to_data();
                    let size = usize::try_from(*width).unwrap_or(0);
                    let bytes = data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size);
                    Ok(Tensor::row_major(Element::UInt(8), vec![rows, i64::from(*width)], bytes))
                }
                _ => Err(no_tensor(
                    field,
                    "it is not a column of numbers; `to_torch` has other forms for it, and `batches()` Arrow's",
                )),
            }
        }
    }
}

fn equal_lists<O: OffsetSizeTrait>(field: &Field, item: &FieldRef, list: &GenericListArray<O>) -> Result<Tensor> {
    let num_nulls = list.null_count();
    if num_nulls > 0 {
        return Err(has_nulls(field, num_nulls));
    }
    let len = equal_length(field, list.offsets(), list.len())?;
    let first = list.value_offsets()[0].as_usize();
    let items = list.values().slice(first, len * list.len());
    let inner = dense_where(item, &items, None).map_err(|error| renamed(error, field))?;
    let shape = [dimension(list.len()), dimension(len)].into_iter().chain(inner.shape[1..].iter().copied()).collect();
    Ok(Tensor::row_major(inner.element, shape, inner.values))
}

/// Returns the common length of all rows.
fn equal_length<O: OffsetSizeTrait>(field: &Field, offsets: &[O], num_rows: usize) -> Result<usize> {
    let length = |row: usize| offsets[row + 1].as_usize() - offsets[row].as_usize();
    let len = if num_rows == 0 { 0 } else { length(0) };
    match (1..num_rows).find(|&row| length(row) != len) {
        None => Ok(len),
        Some(row) => {
            let other = length(row);
            Err(no_tensor(
                field,
                format!(
                    "its rows differ in length (here {len} and {other}); ask for the form \"ragged\" of it in `forms`, or \
                     pad them when writing"
                ),
            ))
        }
    }
}

/// The shape of a fixed-shape tensor, according to its field's metadata.
#[derive(Deserialize)]
struct FixedShape {
    shape: Vec<i64>,
    permutation: Option<Vec<usize>>,
}

/// Returns a tensor `(n, k)` in the shape of a fixed-shape tensor column; others unchanged.
fn shaped(field: &Field, flat: Tensor) -> Result<Tensor> {
    if field.extension_type_name() != Some("arrow.fixed_shape_tensor") {
        return Ok(flat);
    }
    let wrong = |said: String| no_tensor(field, format!("its extension metadata is not valid: {said}"));
    let metadata = field.extension_type_metadata().unwrap_or_default();
    let FixedShape { shape, permutation } = serde_json::from_str(metadata).map_err(|error| wrong(error.to_string()))?;
    let axes = permutation.unwrap_or_else(|| (0..shape.len()).collect());
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    let is_whole = shape.iter().product::<i64>() == flat.shape[1..].iter().product::<i64>();
    if !is_whole || shape.iter().any(|&extent| extent < 0) || sorted != (0..shape.len()).collect::<Vec<_>>() {
        return Err(wrong(metadata.to_owned()));
    }
    let physical = [flat.shape[0]].into_iter().chain(shape).collect();
    let tensor = Tensor::row_major(flat.element, physical, flat.values);
    let axes = || [0].into_iter().chain(axes.iter().map(|axis| axis + 1));
    let shape = axes().map(|axis| tensor.shape[axis]).collect();
    let strides = axes().map(|axis| tensor.strides[axis]).collect();
    Ok(Tensor { shape, strides, ..tensor })
}

/// Returns the nulls of each element of fixed-size lists, including those of whole lists.
fn elements(array: &ArrayRef) -> Option<NullBuffer> {
    let Some(list) = array.as_fixed_size_list_opt() else { return array.logical_nulls() };
    let rows = list.nulls().map(|nulls| nulls.expand(elements_in_a_row(array.data_type())));
    NullBuffer::union(rows.as_ref(), elements(list.values()).as_ref())
}

/// Returns the nulls of rows as those of their elements.
fn expanded(absent: Option<&NullBuffer>, array: &ArrayRef) -> Option<NullBuffer> {
    let per_row = elements_in_a_row(array.data_type());
    absent.map(|absent| if per_row == 1 { absent.clone() } else { absent.expand(per_row) })
}

/// Returns which rows of `array` have only absent elements.
fn rows_of(absent: Option<&NullBuffer>, array: &ArrayRef) -> Option<NullBuffer> {
    let absent = absent?;
    let per_row = elements_in_a_row(array.data_type());
    Some((0..array.len()).map(|row| (row * per_row..(row + 1) * per_row).any(|at| absent.is_valid(at))).collect())
}

fn elements_in_a_row(data_type: &DataType) -> usize {
    match data_type {
        DataType::FixedSizeList(item, len) => usize::try_from(*len).unwrap_or(0) * elements_in_a_row(item.data_type()),
        _ => 1,
    }
}

/// Reinterprets bytes as numbers, or converts decimals.
fn cast(field: &Field, array: &ArrayRef, element: Element) -> Result<Tensor> {
    let rows = dimension(array.len());
    let size = element.size_bytes();
    match array.data_type() {
        DataType::FixedSizeBinary(width) => {
            let width = usize::try_from(*width).unwrap_or(0);
            let data = array.to_data();
            let bytes = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
            let shape = if width == size { vec![rows] } else { vec![rows, dimension(width / size)] };
            Ok(Tensor::row_major(element, shape, aligned(bytes, size)))
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            equal_bytes(field, array.offsets(), array.values(), element)
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            equal_bytes(field, array.offsets(), array.values(), element)
        }
        _ if Element::of(field).is_some() => Ok(Tensor::row_major(element, vec![rows], values_of(array, element))),
        _ => Ok(Tensor::row_major(element, vec![rows], decimals(field, array, element)?)),
    }
}

fn equal_bytes<O: OffsetSizeTrait>(field: &Field, offsets: &[O], values: &Buffer, element: Element) -> Result<Tensor> {
    let (num_rows, size) = (offsets.len() - 1, element.size_bytes());
    let len = equal_length(field, offsets, num_rows)?;
    if !len.is_multiple_of(size) {
        return Err(no_tensor(field, format!("its rows of {len} bytes are not a whole number of {element}")));
    }
    let bytes = values.slice_with_length(offsets[0].as_usize(), len * num_rows);
    let shape = vec![dimension(num_rows), dimension(len / size)];
    Ok(Tensor::row_major(element, shape, aligned(bytes, size)))
}

/// Returns bytes aligned for elements of `size` bytes.
fn aligned(bytes: Buffer, size: usize) -> Buffer {
    if bytes.as_ptr().addr().is_multiple_of(size) { bytes } else { Buffer::from_slice_ref(bytes.as_slice()) }
}

/// Converts decimals to rounded floats, or to integers in units of the last digit.
fn decimals(field: &Field, array: &ArrayRef, element: Element) -> Result<Buffer> {
    let cast_to = |to: &DataType| {
        let options = arrow_cast::CastOptions { safe: false, ..arrow_cast::CastOptions::default() };
        arrow_cast::cast_with_options(array, to, &options).map_err(|error| no_tensor(field, error.to_string()))
    };
    Ok(match element {
        Element::Float(32) => floats::<f32>(field, array)?,
        Element::Float(64) => floats::<f64>(field, array)?,
        _ => {
            let scale = match array.data_type() {
                DataType::Decimal32(_, scale)
                | DataType::Decimal64(_, scale)
                | DataType::Decimal128(_, scale)
                | DataType::Decimal256(_, scale) => *scale,
                _ => return Err(mismatch(field)),
            };
            let wide = cast_to(&DataType::Decimal128(38, scale))?;
            let wide = wide.as_primitive::<Decimal128Type>();
            let narrow = wide.try_unary::<_, Int64Type, _>(|value| {
                i64::try_from(value)
                    .map_err(|_| no_tensor(field, format!("{value} units of its last digit do not fit int64")))
            })?;
            narrow.values().inner().clone()
        }
    })
}

/// Converts decimals to the nearest floats; 0 for NULL.
fn floats<F: Rounded>(field: &Field, array: &ArrayRef) -> Result<Buffer> {
    match array.data_type() {
        DataType::Decimal32(_, scale) => Ok(floats_of::<Decimal32Type, F>(array, *scale)),
        DataType::Decimal64(_, scale) => Ok(floats_of::<Decimal64Type, F>(array, *scale)),
        DataType::Decimal128(_, scale) => Ok(floats_of::<Decimal128Type, F>(array, *scale)),
        DataType::Decimal256(_, scale) => Ok(floats_of::<Decimal256Type, F>(array, *scale)),
        _ => Err(mismatch(field)),
    }
}

fn floats_of<D: DecimalType, F: Rounded>(array: &ArrayRef, scale: i8) -> Buffer {
    let array = array.as_primitive::<D>();
    let text = |row| array.value_as_string(row).parse().unwrap_or_default();
    let nearest = |row| {
        if array.is_null(row) {
            return F::default();
        }
        // A quotient of two exact floats is rounded once.
        let exact = array.value(row).to_i64().and_then(|units| F::quotient(units, scale));
        exact.unwrap_or_else(|| text(row))
    };
    (0..array.len()).map(nearest).collect::<MutableBuffer>().into()
}

/// A float type that decimals are rounded to.
trait Rounded: ArrowNativeType + FromStr {
    /// Returns `units` over ten to the power of `scale`, if both are exact.
    fn quotient(units: i64, scale: i8) -> Option<Self>;
}

impl Rounded for f64 {
    #[expect(clippy::cast_precision_loss, reason = "up to 2^53 nothing is lost")]
    fn quotient(units: i64, scale: i8) -> Option<Self> {
        let is_exact = units.unsigned_abs() <= 1 << 53 && (0..=22).contains(&scale);
        is_exact.then(|| units as Self / Self::powi(10.0, scale.into()))
    }
}

impl Rounded for f32 {
    #[expect(clippy::cast_precision_loss, reason = "up to 2^24 nothing is lost")]
    fn quotient(units: i64, scale: i8) -> Option<Self> {
        let is_exact = units.unsigned_abs() <= 1 << 24 && (0..=10).contains(&scale);
        is_exact.then(|| units as Self / Self::powi(10.0, scale.into()))
    }
}

/// Refuses nulls except where `absent` has them.
fn check_present(field: &Field, array: &ArrayRef, absent: Option<&NullBuffer>) -> Result<()> {
    let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
    let Some(nulls) = nulls else { return Ok(()) };
    let unexpected = match absent {
        None => nulls.null_count(),
        Some(absent) => (absent.inner() & &!nulls.inner()).count_set_bits(),
    };
    match unexpected {
        0 => Ok(()),
        count => Err(has_nulls(field, count)),
    }
}

fn has_nulls(field: &Field, count: usize) -> Error {
    no_tensor(field, format!("this batch has {count} nulls where its footer counts none; use `batches()`"))
}

fn no_tensor(field: &Field, hint: impl Into<String>) -> Error {
    Error::NoTensor { column: field.name().clone(), data_type: Box::new(field.data_type().clone()), hint: hint.into() }
}

/// Reports an error in a list's items as one of the list, whose name users know.
fn renamed(error: Error, field: &Field) -> Error {
    match error {
        Error::NoTensor { hint, .. } => no_tensor(field, hint),
        other => other,
    }
}

/// Reports an error inside a column with the path that users know: fields of structs as `struct.field`, items as their
/// list.
fn below(error: Error, inner: &str, outer: &str) -> Error {
    match error {
        Error::NoTensor { column, data_type, hint } => {
            let column = format!("{outer}{}", column.strip_prefix(inner).unwrap_or(&column));
            Error::NoTensor { column, data_type, hint }
        }
        other => other,
    }
}

fn mismatch(field: &Field) -> Error {
    no_tensor(field, "its type differs from the one that its form was chosen for")
}

#[cfg(test)]
mod tests;
