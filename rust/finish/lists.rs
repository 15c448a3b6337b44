//! Columns of lists as plain numbers: offsets, and fixed-width items.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, UInt64Array, make_array};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow_cast::CastOptions;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use serde::{Deserialize, Serialize};

use super::Fault;
use crate::error::{Error, Result};

/// The type that integers are converted to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Integers {
    /// 64 bits, signed: what embeddings and losses take.
    #[default]
    Int64,
    /// 32 bits, signed.
    Int32,
    /// Unchanged.
    Stored,
}

/// What the items of a column become.
#[derive(Debug, Clone)]
pub(super) struct Items {
    pub(super) name: String,
    pub(super) data_type: DataType,
    is_bool: bool,
    pub(super) width: usize,
}

/// The lists of a column, one for each row.
#[derive(Debug)]
pub(super) struct Lists {
    /// The offset of each row's items, starting at 0, and finally their number.
    pub(super) offsets: Vec<usize>,
    pub(super) values: Buffer,
}

impl Items {
    /// Returns what the items of `field` become; `None` if it is not a list of numbers.
    pub(super) fn of(field: &Field, integers: Integers) -> Option<Self> {
        let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) = field.data_type()
        else {
            return None;
        };
        let data_type = match (item.data_type(), integers) {
            (DataType::Boolean, _) => DataType::Int8,
            (other, Integers::Int64) if other.is_integer() => DataType::Int64,
            (other, Integers::Int32) if other.is_integer() => DataType::Int32,
            (other, _) if other.is_integer() || other.is_floating() => other.clone(),
            _ => return None,
        };
        let width = data_type.primitive_width()?;
        let is_bool = *item.data_type() == DataType::Boolean;
        Some(Self { name: field.name().clone(), data_type, is_bool, width })
    }

    /// Like [`Self::of`], for a column that was requested by name.
    pub(super) fn require(field: &Field, integers: Integers, what: &str) -> Result<Self> {
        Self::of(field, integers).ok_or_else(|| Error::NoTensor {
            column: field.name().clone(),
            data_type: Box::new(field.data_type().clone()),
            hint: format!("only lists of numbers are {what}; name those that are, or select other columns"),
        })
    }

    /// Returns the same for a column with another name.
    pub(super) fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// Returns the field of an item.
    pub(super) fn item(&self) -> FieldRef {
        let item = Field::new("item", self.data_type.clone(), false);
        // Booleans as bytes, as in tensors.
        let bool8 = [("ARROW:extension:name", "arrow.bool8"), ("ARROW:extension:metadata", "")];
        let bool8 = bool8.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Arc::new(if self.is_bool { item.with_metadata(bool8.into()) } else { item })
    }

    /// Returns a number as the bytes of one item; `None` if it does not fit the type.
    pub(super) fn bytes_of(&self, number: &serde_json::Number) -> Option<Vec<u8>> {
        let array: ArrayRef = match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Arc::new(Int64Array::from(vec![whole])),
            (None, Some(whole)) => Arc::new(UInt64Array::from(vec![whole])),
            (None, None) if self.data_type.is_floating() => Arc::new(Float64Array::from(vec![number.as_f64()?])),
            (None, None) => return None,
        };
        if self.is_bool && !matches!(number.as_i64(), Some(0 | 1)) {
            return None;
        }
        let cast = arrow_cast::cast(&array, &self.data_type).ok().filter(|cast| cast.null_count() == 0)?;
        // Narrower floats turn values that are too large into infinity.
        let wide = arrow_cast::cast(&cast, &DataType::Float64).ok()?;
        if !wide.as_primitive::<Float64Type>().value(0).is_finite() {
            return None;
        }
        Some(cast.to_data().buffers().first()?.as_slice().get(..self.width)?.to_vec())
    }

    fn fault(&self, row: usize, reason: impl Into<String>) -> Fault {
        Fault { row, column: self.name.clone(), reason: reason.into() }
    }

    /// Splits a column into offsets and items. Only items that `kept` returns of those of a row must fit the type.
    pub(super) fn lists(&self, array: &ArrayRef, kept: impl Fn(Range<usize>) -> Range<usize>) -> Result<Lists, Fault> {
        if let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) {
            let row = nulls.iter().position(|valid| !valid).unwrap_or(0);
            let hint = format!("filter with `{} IS NOT NULL`", self.name);
            return Err(self.fault(row, format!("the list is NULL; {hint}")));
        }
        let Some((offsets, values)) = parts(array) else {
            return Err(self.fault(0, format!("expected lists, got `{}`", array.data_type())));
        };
        let row_with_null = |nulls: Option<&NullBuffer>| {
            let nulls = nulls.filter(|nulls| nulls.null_count() > 0)?;
            let has_null = |items: Range<usize>| nulls.slice(items.start, items.len()).null_count() > 0;
            offsets.windows(2).position(|pair| has_null(kept(pair[0]..pair[1])))
        };
        if let Some(row) = row_with_null(values.nulls()) {
            return Err(self.fault(row, "an item of the list is NULL, not a number"));
        }
        let options = CastOptions { safe: true, ..CastOptions::default() };
        let cast = arrow_cast::cast_with_options(&values, &self.data_type, &options)
            .map_err(|error| self.fault(0, error.to_string()))?;
        if let Some(row) = row_with_null(cast.nulls()) {
            let reason = format!("an item of the list does not fit into `{}`; ask for a wider dtype", self.data_type);
            return Err(self.fault(row, reason));
        }
        let data = cast.to_data();
        let values = data.buffers()[0].slice_with_length(data.offset() * self.width, data.len() * self.width);
        Ok(Lists { offsets, values })
    }

    /// Returns rows of `length` items each as a column.
    pub(super) fn column(
        &self,
        length: usize,
        num_rows: usize,
        values: Buffer,
    ) -> Result<(FieldRef, ArrayRef), ArrowError> {
        let size = i32::try_from(length).map_err(|_| ArrowError::OffsetOverflowError(length))?;
        let items = ArrayData::builder(self.data_type.clone()).len(num_rows * length).add_buffer(values).build()?;
        let data_type = DataType::FixedSizeList(self.item(), size);
        let lists = ArrayData::builder(data_type.clone()).len(num_rows).add_child_data(items).build()?;
        Ok((Arc::new(Field::new(&self.name, data_type, false)), make_array(lists)))
    }

    /// Returns all items of a column as one array.
    pub(super) fn array(&self, values: Buffer) -> Result<ArrayRef, ArrowError> {
        let len = values.len() / self.width.max(1);
        Ok(make_array(ArrayData::builder(self.data_type.clone()).len(len).add_buffer(values).build()?))
    }
}

/// Returns the offsets of each row's items, starting at 0, and all of the items.
fn parts(array: &ArrayRef) -> Option<(Vec<usize>, ArrayRef)> {
    Some(match array.data_type() {
        DataType::List(_) => rebased(array.as_list::<i32>().offsets(), array.as_list::<i32>().values()),
        DataType::LargeList(_) => rebased(array.as_list::<i64>().offsets(), array.as_list::<i64>().values()),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let offsets = (0..=array.len()).map(|row| row * size).collect();
            (offsets, Arc::clone(array.as_fixed_size_list().values()))
        }
        _ => return None,
    })
}

/// Returns the maximum number of items in a row of a list column.
pub(super) fn longest(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().offsets().lengths().max().unwrap_or(0),
        DataType::LargeList(_) => array.as_list::<i64>().offsets().lengths().max().unwrap_or(0),
        DataType::FixedSizeList(_, size) => usize::try_from(*size).unwrap_or(0),
        _ => 0,
    }
}

fn rebased<O: arrow_array::OffsetSizeTrait>(offsets: &OffsetBuffer<O>, values: &ArrayRef) -> (Vec<usize>, ArrayRef) {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    (offsets.iter().map(|offset| offset.as_usize() - first).collect(), values.slice(first, last - first))
}
