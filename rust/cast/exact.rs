//! Casts of single values that fail if a value would change.
//!
//! Arrow truncates and rounds. So the result is cast once more, usually back, to a type in which it can be compared
//! with the original. Floats are equal as in SQL: there is one zero.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_cast::can_cast_types;
use arrow_cast::display::array_value_to_string;
use arrow_schema::{ArrowError, DataType, TimeUnit};
use datafusion::arrow::compute::kernels::cmp::distinct;

use super::strict;
use crate::engine::floats::canonical;

/// Casts to a type that can represent every value exactly.
pub(super) fn exact(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let array = match array.data_type() {
        DataType::Dictionary(_, values) => &strict(array, values)?,
        _ => array,
    };
    let there = strict(array, to)?;
    if let DataType::Timestamp(_, zone) = to
        && array.data_type().is_string()
    {
        check_offsets(array, zone.is_some())?;
    }
    for witness in witnesses(array.data_type(), to) {
        let (before, after) = (seen_as(array, &witness)?, seen_as(&there, &witness)?);
        let differs = distinct(&before, &after)?;
        if let Some(row) = differs.values().set_indices().find(|&row| before.is_valid(row)) {
            let value = array_value_to_string(array, row)?;
            return Err(ArrowError::CastError(format!("`{value}` has no exact equivalent in `{to}`")));
        }
    }
    Ok(there)
}

/// Refuses text without a UTC offset if an instant is required, and text with one if a wall-clock time is.
///
/// Only text with an offset means the same instant everywhere.
fn check_offsets(array: &ArrayRef, is_wanted: bool) -> Result<(), ArrowError> {
    let read_in = |zone: &str| {
        let instants = arrow_cast::cast(array, &DataType::Timestamp(TimeUnit::Microsecond, Some(zone.into())))?;
        // Times of two zones are not compared.
        arrow_cast::cast(&instants, &DataType::Int64)
    };
    let has_none = distinct(&read_in("+00:00")?, &read_in("+01:00")?)?;
    let is_wrong = |row: &usize| array.is_valid(*row) && has_none.value(*row) == is_wanted;
    let Some(row) = (0..array.len()).find(is_wrong) else { return Ok(()) };
    let value = array_value_to_string(array, row)?;
    Err(ArrowError::CastError(match is_wanted {
        true => format!(
            "`{value}` names no time zone; cast it to a timestamp without one, and then to one with a time zone"
        ),
        false => format!("`{value}` names a time zone; cast it to a timestamp with one, and then to one without"),
    }))
}

/// Returns values in a type for comparison, NULL if they cannot be converted.
fn seen_as(array: &ArrayRef, witness: &DataType) -> Result<ArrayRef, ArrowError> {
    let seen = if array.data_type() == witness { Arc::clone(array) } else { arrow_cast::cast(array, witness)? };
    Ok(canonical(&seen)?.unwrap_or(seen))
}

/// Returns the types in which values and results are compared; if there are none, arrow's errors are the only check.
fn witnesses(from: &DataType, to: &DataType) -> Vec<DataType> {
    use DataType::{Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Null, Time32, Time64, Timestamp};
    let is_text = from.is_string();
    match (from, to) {
        // As many digits before the point, and all that are left after it.
        (
            _,
            Decimal32(digits, scale) | Decimal64(digits, scale) | Decimal128(digits, scale) | Decimal256(digits, scale),
        ) if is_text => {
            let before_point = i16::from(*digits) - i16::from(*scale);
            let most = i16::from(arrow_schema::DECIMAL256_MAX_PRECISION);
            let behind_point =
                i8::try_from((most - before_point).clamp(0, most)).unwrap_or(arrow_schema::DECIMAL256_MAX_SCALE);
            vec![Decimal256(arrow_schema::DECIMAL256_MAX_PRECISION, behind_point)]
        }
        (_, Date32 | Date64) if is_text => vec![Timestamp(TimeUnit::Microsecond, None)],
        // Timestamps in nanoseconds cover few centuries, those in microseconds all.
        (_, Timestamp(_, zone)) if is_text => {
            [TimeUnit::Microsecond, TimeUnit::Nanosecond].map(|unit| Timestamp(unit, zone.clone())).into()
        }
        (from, Time32(_) | Time64(_)) if is_text || matches!(from, Timestamp(_, _)) => {
            vec![Time64(TimeUnit::Nanosecond)]
        }
        // Another zone may show other dates and times: those of the new one are compared.
        (Timestamp(unit, _), Timestamp(_, zone)) => vec![Timestamp(*unit, zone.clone())],
        (Timestamp(unit, _), Date64) => vec![Timestamp(*unit, None)],
        _ if !is_text && *from != Null && can_cast_types(to, from) => vec![from.clone()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float64Array, Int64Array, StringArray, TimestampMicrosecondArray, UInt64Array};

    use super::*;

    fn lost(array: impl Array + 'static, to: &DataType) -> String {
        exact(&(Arc::new(array) as ArrayRef), to).unwrap_err().to_string()
    }

    fn kept(array: impl Array + 'static, to: &DataType) -> ArrayRef {
        exact(&(Arc::new(array) as ArrayRef), to).unwrap()
    }

    #[test]
    fn numbers_that_would_change_are_errors() {
        let floats = Float64Array::from(vec![Some(-0.0), None, Some(3.0), Some(2.5)]);
        assert!(lost(floats.clone(), &DataType::Int32).contains("`2.5` has no exact equivalent in `Int32`"));
        assert_eq!(kept(floats.slice(0, 3), &DataType::Int32).null_count(), 1);
        assert!(lost(Float64Array::from(vec![f64::NAN]), &DataType::Int32).contains("NaN"));
        let last = (1_i64 << 53) + 1;
        assert!(
            lost(Int64Array::from(vec![1, last]), &DataType::Float64)
                .contains(&format!("`{last}` has no exact equivalent"))
        );
        assert!(lost(Int64Array::from(vec![i64::MAX]), &DataType::Float64).contains("has no exact equivalent"));
        assert!(lost(UInt64Array::from(vec![u64::MAX]), &DataType::Float32).contains("has no exact equivalent"));
        kept(Int64Array::from(vec![1 << 53, i64::MIN]), &DataType::Float64);
    }

    #[test]
    fn text_that_says_more_than_the_type_holds_is_an_error() {
        let decimal = DataType::Decimal128(10, 2);
        assert!(lost(StringArray::from(vec!["1.550", "1.555"]), &decimal).contains("`1.555` has no exact equivalent"));
        kept(StringArray::from(vec!["1.550", "-12345678.9", " 7 "]), &decimal);
        let date = DataType::Date32;
        assert!(
            lost(StringArray::from(vec!["2020-01-01T05:00:00"]), &date).contains("has no exact equivalent in `Date32`")
        );
        kept(StringArray::from(vec!["2020-01-01", "2020-01-01T00:00:00", "0001-01-01"]), &date);
        let second = DataType::Timestamp(TimeUnit::Second, None);
        assert!(lost(StringArray::from(vec!["2020-01-01T05:00:00.5"]), &second).contains("has no exact equivalent"));
        kept(StringArray::from(vec!["2020-01-01T05:00:00", "0001-01-01T00:00:00"]), &second);
        let time = DataType::Time32(TimeUnit::Second);
        assert!(lost(StringArray::from(vec!["05:00:00.5"]), &time).contains("has no exact equivalent"));
    }

    #[test]
    fn text_has_a_zone_where_its_type_has() {
        let with = DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into()));
        let without = DataType::Timestamp(TimeUnit::Second, None);
        let (zoned, plain) =
            (vec!["2020-01-01T00:00:00Z", "2020-01-01 05:00:00+02:00"], vec!["2020-01-01", "9999-12-31"]);
        for (texts, fits, other, words) in
            [(zoned, &with, &without, "names a time zone"), (plain, &without, &with, "names no time zone")]
        {
            kept(StringArray::from(texts.clone()), fits);
            kept(StringArray::from(vec![None::<&str>, Some(texts[1])]), fits);
            assert!(lost(StringArray::from(vec![None, Some(texts[1])]), other).contains(words));
        }
    }

    #[test]
    fn a_timestamp_of_another_zone_is_compared_in_it() {
        let local = |value| TimestampMicrosecondArray::from(vec![value]);
        let zoned = DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into()));
        kept(local(1_577_836_800_000_000), &zoned);
        assert!(lost(local(1_577_836_800_000_005), &zoned).contains("has no exact equivalent"));
        // Midnight in Berlin.
        let instants = |value| local(value).with_timezone("Europe/Berlin");
        kept(instants(1_577_833_200_000_000), &DataType::Date32);
        kept(instants(1_577_833_200_000_000), &DataType::Date64);
        assert!(lost(instants(1_577_836_800_000_000), &DataType::Date32).contains("has no exact equivalent"));
    }
}
