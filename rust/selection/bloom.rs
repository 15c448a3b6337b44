//! Decides row groups by their bloom filters: whether a wanted value may be there.
//!
//! A filter has hashes of the values as Parquet encodes them, so literals are converted to exactly that encoding. Only
//! integers, dates and times, text and binary have a unique encoding: floats have two zeros and many `NaN`s, and
//! decimals may be encoded in several ways.

use std::collections::HashSet;
use std::ops::Range;

use arrow_array::{ArrayRef, BooleanArray};
use arrow_schema::{DataType, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use parquet::basic::Type as PhysicalType;
use parquet::bloom_filter::Sbbf;

use crate::snapshot::Fragment;

/// The bloom filters of some columns of one row group.
#[derive(Debug)]
pub(super) struct Blooms<'a> {
    pub(super) schema: &'a SchemaRef,
    pub(super) columns: Vec<Bloom>,
}

/// The bloom filter of a column of the dataset.
#[derive(Debug)]
pub(super) struct Bloom {
    column: usize,
    /// The object's encoding of the values.
    physical_type: PhysicalType,
    /// The type of the object's values.
    data_type: DataType,
    filter: Sbbf,
}

impl Bloom {
    /// Returns the range of a root column's bloom filter; `None` if there is no usable one.
    pub(super) fn range(fragment: &Fragment, row_group: u32, root: usize) -> Option<Range<u64>> {
        let column = fragment.row_group(row_group).column(fragment.flat_leaf(root)?);
        if !has_one_form(fragment.field(root).data_type()) {
            return None;
        }
        let start = u64::try_from(column.bloom_filter_offset()?).ok()?;
        let end = start.checked_add(u64::try_from(column.bloom_filter_length()?).ok()?)?;
        (start < end && end <= fragment.object.size_bytes.unwrap_or(u64::MAX)).then_some(start..end)
    }

    /// Parses the bloom filter of a root column; `None` if it is corrupt or of another kind.
    pub(super) fn parse(fragment: &Fragment, row_group: u32, root: usize, column: usize, bytes: &[u8]) -> Option<Self> {
        let leaf = fragment.flat_leaf(root)?;
        let physical_type = fragment.row_group(row_group).column(leaf).column_type();
        let data_type = fragment.field(root).data_type().clone();
        let filter = Sbbf::from_bytes(bytes).ok().filter(|filter| filter.num_blocks() > 0)?;
        Some(Self { column, physical_type, data_type, filter })
    }

    /// Returns whether `value` may be in the column; `true` if unknown.
    fn may_hold(&self, value: &ScalarValue) -> bool {
        let value = match value {
            ScalarValue::Dictionary(_, value) => value.as_ref(),
            value => value,
        };
        let narrowed = (value.data_type() != self.data_type).then(|| narrow(value, &self.data_type));
        match narrowed {
            None => self.may_hold_exactly(value),
            Some(Narrowed::Same(value)) => self.may_hold_exactly(&value),
            // The object's type has no such value.
            Some(Narrowed::Outside) => false,
            Some(Narrowed::Unknown) => true,
        }
    }

    fn may_hold_exactly(&self, value: &ScalarValue) -> bool {
        let integer = match value {
            ScalarValue::Int8(Some(x)) => i64::from(*x),
            ScalarValue::Int16(Some(x)) => i64::from(*x),
            ScalarValue::Int32(Some(x)) | ScalarValue::Date32(Some(x)) | ScalarValue::Time32Millisecond(Some(x)) => {
                i64::from(*x)
            }
            ScalarValue::Int64(Some(x)) | ScalarValue::Time64Microsecond(Some(x)) => *x,
            ScalarValue::TimestampMillisecond(Some(x), _)
            | ScalarValue::TimestampMicrosecond(Some(x), _)
            | ScalarValue::TimestampNanosecond(Some(x), _) => *x,
            ScalarValue::UInt8(Some(x)) => i64::from(*x),
            ScalarValue::UInt16(Some(x)) => i64::from(*x),
            ScalarValue::UInt32(Some(x)) => i64::from(*x),
            ScalarValue::UInt64(Some(x)) => x.cast_signed(),
            ScalarValue::Utf8(Some(text)) | ScalarValue::LargeUtf8(Some(text)) => {
                return self.physical_type != PhysicalType::BYTE_ARRAY || self.filter.check(text.as_str());
            }
            ScalarValue::Binary(Some(bytes)) | ScalarValue::LargeBinary(Some(bytes)) => {
                return self.physical_type != PhysicalType::BYTE_ARRAY || self.filter.check(bytes.as_slice());
            }
            ScalarValue::FixedSizeBinary(_, Some(bytes)) => {
                return self.physical_type != PhysicalType::FIXED_LEN_BYTE_ARRAY || self.filter.check(bytes.as_slice());
            }
            _ => return true,
        };
        match self.physical_type {
            PhysicalType::INT32 => match (i32::try_from(integer), u32::try_from(integer)) {
                (Ok(signed), _) => self.filter.check(&signed),
                (_, Ok(unsigned)) => self.filter.check(&unsigned.cast_signed()),
                _ => true,
            },
            PhysicalType::INT64 => self.filter.check(&integer),
            _ => true,
        }
    }
}

/// A value of the dataset's type, converted to the object's.
enum Narrowed {
    Same(ScalarValue),
    Outside,
    Unknown,
}

fn narrow(value: &ScalarValue, to: &DataType) -> Narrowed {
    let values = match to {
        DataType::Dictionary(_, values) => values.as_ref(),
        plain => plain,
    };
    let from = value.data_type();
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8);
    let is_binary = |kind: &DataType| matches!(kind, DataType::Binary | DataType::LargeBinary);
    let is_same_kind = from == *values
        || (is_text(&from) && is_text(values))
        || (is_binary(&from) && is_binary(values))
        || (from.is_integer() && values.is_integer());
    match value.cast_to(values) {
        _ if !is_same_kind => Narrowed::Unknown,
        // A cast that does not fit is an error, or NULL.
        Err(_) => Narrowed::Outside,
        Ok(cast) if cast.is_null() => Narrowed::Outside,
        Ok(cast) => Narrowed::Same(cast),
    }
}

/// Returns whether every value of the type has a unique encoding.
fn has_one_form(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => has_one_form(values),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => true,
        DataType::FixedSizeBinary(_) | DataType::Date32 => true,
        DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..) => true,
        other => other.is_integer(),
    }
}

impl PruningStatistics for Blooms<'_> {
    fn min_values(&self, _column: &Column) -> Option<ArrayRef> {
        None
    }

    fn max_values(&self, _column: &Column) -> Option<ArrayRef> {
        None
    }

    fn num_containers(&self) -> usize {
        1
    }

    fn null_counts(&self, _column: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }

    /// Returns whether the row group has none of `values`; that it has one is never known.
    fn contained(&self, column: &Column, values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        let column = self.schema.index_of(&column.name).ok()?;
        let bloom = self.columns.iter().find(|bloom| bloom.column == column)?;
        let is_absent = values.iter().all(|value| !value.is_null() && !bloom.may_hold(value));
        Some(BooleanArray::from(vec![is_absent.then_some(false)]))
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::TimeUnit;

    use super::*;

    fn bloom(physical_type: PhysicalType, data_type: DataType, insert: impl FnOnce(&mut Sbbf)) -> Bloom {
        let mut filter = Sbbf::new_with_num_of_bytes(1024);
        insert(&mut filter);
        Bloom { column: 0, physical_type, data_type, filter }
    }

    #[test]
    fn values_are_asked_about_as_the_object_writes_them() {
        let narrow = bloom(PhysicalType::INT32, DataType::Int16, |filter| filter.insert(&7_i32));
        assert!(narrow.may_hold(&ScalarValue::Int64(Some(7))) && narrow.may_hold(&ScalarValue::Int16(Some(7))));
        assert!(!narrow.may_hold(&ScalarValue::Int64(Some(8))));
        assert!(!narrow.may_hold(&ScalarValue::Int64(Some(7 + (1 << 32)))));
        let unsigned = bloom(PhysicalType::INT32, DataType::UInt32, |filter| filter.insert(&-1_i32));
        assert!(unsigned.may_hold(&ScalarValue::Int64(Some(4_294_967_295))));
        assert!(!unsigned.may_hold(&ScalarValue::Int64(Some(-1))));
        let wide = bloom(PhysicalType::INT64, DataType::UInt64, |filter| filter.insert(&-1_i64));
        assert!(wide.may_hold(&ScalarValue::UInt64(Some(u64::MAX))) && !wide.may_hold(&ScalarValue::UInt64(Some(1))));
        let text = bloom(PhysicalType::BYTE_ARRAY, DataType::Utf8, |filter| filter.insert("de"));
        assert!(text.may_hold(&ScalarValue::from("de")) && !text.may_hold(&ScalarValue::from("en")));
        assert!(text.may_hold(&ScalarValue::LargeUtf8(Some("de".into()))));
        let key = Box::new(DataType::Int32);
        assert!(!text.may_hold(&ScalarValue::Dictionary(key, Box::new(ScalarValue::from("en")))));
    }

    #[test]
    fn what_cannot_be_told_may_be_there() {
        let empty = |physical_type, data_type| bloom(physical_type, data_type, |_| ());
        assert!(empty(PhysicalType::DOUBLE, DataType::Float64).may_hold(&ScalarValue::from(1.5)));
        let decimal = ScalarValue::Decimal128(Some(1), 9, 2);
        assert!(empty(PhysicalType::INT32, DataType::Decimal128(9, 2)).may_hold(&decimal));
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        let moment = ScalarValue::TimestampMillisecond(Some(1), None);
        assert!(empty(PhysicalType::INT64, micros).may_hold(&moment));
        assert!(empty(PhysicalType::INT96, DataType::Timestamp(TimeUnit::Nanosecond, None)).may_hold(&moment));
        let text = empty(PhysicalType::BYTE_ARRAY, DataType::Utf8);
        assert!(text.may_hold(&ScalarValue::Int64(Some(1))));
    }
}
