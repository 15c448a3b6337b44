//! Casts of single values from the types that objects store to the common type of a dataset.
//!
//! Times without a zone become UTC if they get one, as in pyarrow; arrow would take them as wall-clock times in that
//! zone. Conversions that arrow multiplies unchecked go through a type that it checks.

use arrow_array::ArrayRef;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, TimeUnit};

/// Casts to the dataset's type of a column.
pub(super) fn wider(array: &ArrayRef, to: &DataType, options: &CastOptions<'_>) -> Result<ArrayRef, ArrowError> {
    match between(array.data_type(), to) {
        Some(between) => wider(&cast_with_options(array, &between, options)?, to, options),
        None => cast_with_options(array, to, options),
    }
}

/// Returns an intermediate type that is nearer to the final one; `None` for the last step.
fn between(from: &DataType, to: &DataType) -> Option<DataType> {
    use DataType::{Date32, Date64, Dictionary, Int64, Timestamp};
    Some(match (from, to) {
        (Dictionary(_, values), to) if between(values, to).is_some() => DataType::clone(values),
        (Date64, Timestamp(_, _)) => Timestamp(TimeUnit::Millisecond, None),
        (Date32, Timestamp(unit, Some(_))) => Timestamp(*unit, None),
        (Timestamp(have, None), Timestamp(unit, Some(_))) => {
            if have == unit {
                Int64
            } else {
                Timestamp(*unit, None)
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int64Type, TimestampNanosecondType};
    use arrow_array::{Array, BinaryArray, Date32Array, Date64Array, TimestampMillisecondArray};

    use super::super::{STRICT, strict, widen_bounds};
    use super::*;

    fn numbers(array: &ArrayRef, to: &DataType) -> Vec<Option<i64>> {
        let cast = wider(array, to, &STRICT).unwrap();
        assert_eq!(cast.data_type(), to);
        strict(&cast, &DataType::Int64).unwrap().as_primitive::<Int64Type>().iter().collect()
    }

    #[test]
    fn times_without_a_zone_and_dates_are_utc() {
        let plain: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(1), None, Some(i64::MAX)]));
        for zone in ["UTC", "Europe/Berlin"] {
            let to = |unit| DataType::Timestamp(unit, Some(zone.into()));
            assert_eq!(numbers(&plain.slice(0, 2), &to(TimeUnit::Nanosecond)), [Some(1_000_000), None]);
            assert_eq!(numbers(&plain, &to(TimeUnit::Millisecond)), [Some(1), None, Some(i64::MAX)]);
            let dates: ArrayRef = Arc::new(Date32Array::from(vec![Some(1), None]));
            assert_eq!(numbers(&dates, &to(TimeUnit::Second)), [Some(86_400), None]);
            let dates: ArrayRef = Arc::new(Date64Array::from(vec![Some(86_400_000), None]));
            assert_eq!(numbers(&dates, &to(TimeUnit::Microsecond)), [Some(86_400_000_000), None]);
        }
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(plain.data_type().clone()));
        let zoned = DataType::Timestamp(TimeUnit::Millisecond, Some("Europe/Berlin".into()));
        assert_eq!(numbers(&strict(&plain, &dictionary).unwrap(), &zoned), [Some(1), None, Some(i64::MAX)]);
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_no_bound() {
        let far: [ArrayRef; 3] = [
            Arc::new(TimestampMillisecondArray::from(vec![253_402_214_400_000, 1])),
            Arc::new(Date32Array::from(vec![2_932_896, 1])),
            Arc::new(Date64Array::from(vec![253_402_214_400_000, 86_400_000])),
        ];
        for zone in [None, Some("UTC".into())] {
            let to = DataType::Timestamp(TimeUnit::Nanosecond, zone);
            for times in &far {
                wider(times, &to, &STRICT).unwrap_err();
                let bounds = widen_bounds(times, &to).unwrap();
                let bounds = bounds.as_primitive::<TimestampNanosecondType>();
                assert!(bounds.is_null(0) && bounds.is_valid(1), "{}", times.data_type());
            }
        }
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xc3"[..], b"ok"]));
        wider(&bytes, &DataType::Utf8, &STRICT).unwrap_err();
        let bounds = widen_bounds(&bytes, &DataType::LargeUtf8).unwrap();
        assert!(bounds.is_null(0) && bounds.is_valid(1));
    }
}
