//! Dense tensors over Arrow buffers.

use std::fmt;

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{Buffer, NullBuffer};
use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};

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

    /// Returns the element of a name such as `float32`, which NumPy and PyTorch share.
    pub fn named(name: &str) -> Option<Self> {
        let all = [8, 16, 32, 64].into_iter().flat_map(|bits| [Self::Int(bits), Self::UInt(bits)]);
        let all = all.chain([Self::Float(16), Self::Float(32), Self::Float(64), Self::BFloat16, Self::Bool]);
        all.into_iter().find(|element| element.to_string() == name)
    }

    /// Returns the element of a flat column that is one number a row, as it lies in memory.
    pub(super) fn of(field: &Field) -> Option<Self> {
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
    /// Returns the tensor of `shape` whose last dimension lies together.
    pub(super) fn row_major(element: Element, shape: Vec<i64>, values: Buffer) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        Self { element, shape, strides, values }
    }

    /// Returns the tensor `(n,)` of int64 of `values`.
    pub(super) fn int64(values: Vec<i64>) -> Self {
        Self::row_major(Element::Int(64), vec![dimension(values.len())], Buffer::from_vec(values))
    }

    /// Returns a mask of `shape`: true where there is a value.
    pub(super) fn mask(nulls: Option<&NullBuffer>, shape: Vec<i64>) -> Self {
        let num_values = shape.iter().product::<i64>();
        let bytes = match nulls {
            Some(nulls) => nulls.iter().map(u8::from).collect(),
            None => vec![1_u8; usize::try_from(num_values).unwrap_or(0)],
        };
        Self::row_major(Element::Bool, shape, Buffer::from_vec(bytes))
    }
}

/// Returns the elements of a flat array as they lie in memory; bits of Booleans as bytes.
pub(super) fn values_of(array: &ArrayRef, element: Element) -> Buffer {
    if let Some(bits) = array.as_boolean_opt() {
        let bytes: Vec<u8> = bits.values().iter().map(u8::from).collect();
        return Buffer::from_vec(bytes);
    }
    if element == Element::Bool
        && let Some(bytes) = array.as_primitive_opt::<Int8Type>()
        && bytes.values().iter().any(|byte| !matches!(byte, 0 | 1))
    {
        // Any value but 0 is true, but only 1 is in a tensor.
        return Buffer::from_vec(bytes.values().iter().map(|byte| u8::from(*byte != 0)).collect::<Vec<_>>());
    }
    let data = array.to_data();
    let size = element.size_bytes();
    data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size)
}

/// Returns a count as tensors say it.
pub(super) fn dimension(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
