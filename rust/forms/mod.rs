//! The forms that columns take in a batch of tensors, and the conversion to them, without copies where possible.
//!
//! | Arrow | form | copies |
//! |---|---|---|
//! | integers, floats (also 16 bit) | tensor `(n,)`, same type | 0 |
//! | dates, times, timestamps, durations | tensor `(n,)`, their integers in their [unit] | 0 |
//! | Boolean | tensor `(n,)` bool | 1: bits become bytes |
//! | `bool8`, `bfloat16` (extension types) | tensor `(n,)` | 0 |
//! | fixed-size list of the above | tensor `(n, k)`, nested: `(n, k, l)` | 0 |
//! | fixed-shape tensor (extension type) | tensor `(n, ...)`, strided by its permutation | 0 |
//! | fixed-size binary | tensor `(n, bytes)` of uint8 | 0 |
//! | list of the above, one length by the footers | tensor `(n, k)` | 0 |
//! | other list | ragged: the form of all items, offsets `(n + 1,)` of int64 | 0, offsets 1 |
//! | map | ragged: a struct of keys and values | 0, offsets 1 |
//! | struct | the forms of its fields, by name | as theirs |
//! | strings, binary, decimals, and lists of them | Python objects | 1 |
//! | strings, binary, on request | ragged: bytes of uint8 | 0, offsets 1 |
//! | dictionary | the form of its values | 1 |
//! | dictionary, on request | indices `(n,)`, and the form of the dictionary | 0, dictionary 1 |
//! | anything that may be NULL | masked: the form of its values, and a mask, true where there is one | + 1: the mask |
//!
//! The form of a column is chosen when a stream is created, from types, footers and filters, so that all batches have
//! the same one. A value that does not fit is an error, never another type or an invented value.
//!
//! [unit]: units

mod choose;
mod convert;
mod evidence;
mod tensor;
mod units;

use serde::{Deserialize, Serialize};

pub use self::choose::{Request, Target};
pub use self::convert::{Converted, convert, dense};
pub use self::tensor::{Element, Tensor};
pub use self::units::{Unit, units};

/// The form of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// One dense tensor, rows first.
    Tensor,
    /// One dense tensor of these elements: reinterpreted bytes, or converted decimals.
    Cast(Element),
    /// Python objects, with `None` for NULL.
    Objects,
    /// The bytes of strings or binary as one tensor, and offsets.
    Bytes,
    /// The items of lists in one form, and offsets.
    Ragged(Box<Self>),
    /// A `torch.nested` tensor of lists of numbers.
    Nested,
    /// The forms of a struct's fields.
    Struct(Vec<Self>),
    /// A dictionary's values, one for each row.
    Decoded(Box<Self>),
    /// Indices, and the form of the dictionary.
    Indices(Box<Self>),
    /// The form of the values, and which rows have one.
    Masked(Box<Self>),
    /// A dense tensor, and a mask of its elements.
    MaskedElements,
}

impl Form {
    /// Returns the form with a mask of rows.
    fn masked(self) -> Self {
        match self {
            // Objects use `None`, and elements have a mask of their own.
            Self::Objects | Self::MaskedElements => self,
            form => Self::Masked(Box::new(form)),
        }
    }
}
