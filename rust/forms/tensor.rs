//! Dense tensors over Arrow buffers.

use std::fmt;

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};

/// The alignment that TensorFlow and JAX want; gathered buffers have it.
const ALIGNMENT: usize = 64;

/// The type of a tensor's elements, with its width in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Element {
    /// Signed integer.
    Int(u8),
    /// Unsigned integer.
    UInt(u8),
    /// IEEE 754 floating point.
    Float(u8),
    /// The upper half of a 32-bit float.
    BFloat16,
    /// One byte, 0 or 1.
    Bool,
}

impl Element {
    /// Returns the bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Int(bits) | Self::UInt(bits) | Self::Float(bits) => usize::from(bits) / 8,
            Self::BFloat16 => 2,
            Self::Bool => 1,
        }
    }

    /// Returns the element with a name such as `float32`, which NumPy and PyTorch share.
    pub fn named(name: &str) -> Option<Self> {
        let all = [8, 16, 32, 64].into_iter().flat_map(|bits| [Self::Int(bits), Self::UInt(bits)]);
        let all = all.chain([Self::Float(16), Self::Float(32), Self::Float(64), Self::BFloat16, Self::Bool]);
        all.into_iter().find(|element| element.to_string() == name)
    }

    /// Returns the element of a flat column with one number per row, as stored in memory.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        let extension = field.extension_type_name().unwrap_or_default();
        Some(match field.data_type() {
            DataType::Boolean => Self::Bool,
            DataType::Int8 if extension == "arrow.bool8" => Self::Bool,
            // No canonical type: Lance and others name theirs `<vendor>.bfloat16`.
            DataType::FixedSizeBinary(2) | DataType::UInt16 if extension.ends_with("bfloat16") => Self::BFloat16,
            DataType::Int8 => Self::Int(8),
            DataType::Int16 => Self::Int(16),
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Self::Int(32),
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_) => Self::Int(64),
            DataType::UInt8 => Self::UInt(8),
            DataType::UInt16 => Self::UInt(16),
            DataType::UInt32 => Self::UInt(32),
            DataType::UInt64 => Self::UInt(64),
            DataType::Float16 => Self::Float(16),
            DataType::Float32 => Self::Float(32),
            DataType::Float64 => Self::Float(64),
            _ => return None,
        })
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(bits) => write!(f, "int{bits}"),
            Self::UInt(bits) => write!(f, "uint{bits}"),
            Self::Float(bits) => write!(f, "float{bits}"),
            Self::BFloat16 => f.write_str("bfloat16"),
            Self::Bool => f.write_str("bool"),
        }
    }
}

/// A tensor over an Arrow buffer.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The type of the elements.
    pub element: Element,
    /// The extent of each dimension, rows first.
    pub shape: Vec<i64>,
    /// The distance between neighbours along each dimension, in elements.
    pub strides: Vec<i64>,
    /// The elements; shares the column's buffer.
    pub values: Buffer,
}

impl Tensor {
    /// Returns the contiguous tensor of `shape`, in row-major order.
    #[must_use]
    pub fn row_major(element: Element, shape: Vec<i64>, values: Buffer) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        Self { element, shape, strides, values }
    }

    /// Returns the tensor `(n,)` of int64 of `values`.
    pub(super) fn int64(values: impl ExactSizeIterator<Item = i64>) -> Self {
        let shape = vec![dimension(values.len())];
        Self::row_major(Element::Int(64), shape, values.collect::<MutableBuffer>().into())
    }

    /// Returns a mask of rows: true where there is a value.
    pub(super) fn mask_of_rows(nulls: Option<&NullBuffer>, num_rows: usize) -> Self {
        Self::row_major(Element::Bool, vec![dimension(num_rows)], bytes_of_mask(nulls, num_rows))
    }

    /// Returns a mask in the shape of this tensor, true where there is a value; each of `nulls` covers an equal number
    /// of consecutive elements.
    pub(super) fn mask(&self, nulls: Option<&NullBuffer>) -> Self {
        let num_values = usize::try_from(self.shape.iter().product::<i64>()).unwrap_or(0);
        let each = |nulls: &NullBuffer| nulls.expand(num_values.checked_div(nulls.len()).unwrap_or(0));
        let values = bytes_of_mask(nulls.map(each).as_ref(), num_values);
        Self { element: Element::Bool, shape: self.shape.clone(), strides: self.strides.clone(), values }
    }

    /// Returns whether all elements are within the buffer.
    pub fn is_whole(&self) -> bool {
        let furthest = self.shape.iter().zip(&self.strides).try_fold(0_i64, |furthest, (extent, stride)| {
            furthest.checked_add(extent.checked_sub(1)?.max(0).checked_mul(*stride)?)
        });
        let num_elements =
            if self.shape.contains(&0) { Some(0) } else { furthest.and_then(|last| last.checked_add(1)) };
        let num_bytes = num_elements.and_then(|num| usize::try_from(num).ok()?.checked_mul(self.element.size_bytes()));
        num_bytes.is_some_and(|num_bytes| num_bytes <= self.values.len())
    }

    /// Returns whether the elements are aligned enough for any library to take them without a copy.
    pub fn is_aligned(&self) -> bool {
        self.values.as_ptr().addr().is_multiple_of(ALIGNMENT)
    }

    /// Returns the tensor with its own copy of the elements, aligned for any library.
    #[must_use]
    pub fn to_owned(&self) -> Self {
        Self { values: Buffer::from_slice_ref(self.values.as_slice()), ..self.clone() }
    }
}

/// Returns bytes in a buffer that is aligned for any library, unlike that of a vector.
fn bytes(values: impl ExactSizeIterator<Item = u8>) -> Buffer {
    values.collect::<MutableBuffer>().into()
}

/// Returns a byte for each of `len` values: 1 where there is one.
fn bytes_of_mask(nulls: Option<&NullBuffer>, len: usize) -> Buffer {
    match nulls {
        Some(nulls) => bytes_of(nulls.inner()),
        None => bytes(std::iter::repeat_n(1, len)),
    }
}

/// Returns bits as bytes, 0 or 1, eight at a time.
fn bytes_of(bits: &BooleanBuffer) -> Buffer {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // The lowest bit of the first byte, the next one of the second, and so on.
    const DIAGONAL: u64 = 0x8040_2010_0804_0201;
    let mut out = MutableBuffer::from_len_zeroed(bits.len().next_multiple_of(64));
    for (word, slots) in bits.bit_chunks().iter_padded().zip(out.as_slice_mut().as_chunks_mut::<64>().0) {
        for (byte, slots) in word.to_le_bytes().into_iter().zip(slots.as_chunks_mut().0) {
            let apart = (u64::from(byte) * EACH) & DIAGONAL;
            // No byte carries into the next: 0x80 + 0x7f is 0xff.
            *slots = (((apart + 0x7f * EACH) >> 7) & EACH).to_le_bytes();
        }
    }
    Buffer::from(out).slice_with_length(0, bits.len())
}

/// Returns the elements of a flat array as stored in memory; bits of Booleans as bytes.
pub(super) fn values_of(array: &ArrayRef, element: Element) -> Buffer {
    if let Some(bits) = array.as_boolean_opt() {
        return bytes_of(bits.values());
    }
    if element == Element::Bool
        && let Some(truths) = array.as_primitive_opt::<Int8Type>()
        && truths.values().iter().any(|truth| !matches!(truth, 0 | 1))
    {
        // Any value but 0 is true, but tensors only have 1.
        return bytes(truths.values().iter().map(|truth| u8::from(*truth != 0)));
    }
    let data = array.to_data();
    let size = element.size_bytes();
    data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size)
}

/// Returns a length in the type that tensors use.
pub(super) fn dimension(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_become_bytes(bits in prop::collection::vec(any::<bool>(), 0..400), cut in 0_usize..70) {
            let cut = cut.min(bits.len());
            let buffer = BooleanBuffer::from(bits.clone()).slice(cut, bits.len() - cut);
            let expected: Vec<u8> = bits[cut..].iter().map(|bit| u8::from(*bit)).collect();
            prop_assert_eq!(bytes_of(&buffer), Buffer::from_vec(expected));
        }
    }
}
