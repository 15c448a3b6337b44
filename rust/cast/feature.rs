//! Casts of single values to the types of features: floats may be rounded, everything else is kept exactly, as in
//! [`exact`].
//!
//! This does within structs and lists what `Dataset.cast` has the engine do for top-level columns.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, StructArray, new_null_array};
use arrow_schema::{ArrowError, DataType, Fields, TimeUnit};

use super::exact::exact;
use super::{strict, wider};

/// The fields that a medium is stored as.
const BYTES: &str = "bytes";
const PATH: &str = "path";

/// Casts to the type of a feature.
pub(super) fn featured(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let array = match array.data_type() {
        DataType::Dictionary(_, values) => &strict(array, values)?,
        DataType::Null => return Ok(new_null_array(to, array.len())),
        _ => array,
    };
    if let DataType::Struct(fields) = to {
        return medium(array, fields);
    }
    let array = &in_utc(array, to)?;
    if may_round(array.data_type(), to) { strict(array, to) } else { exact(array, to) }
}

/// Returns whether non-struct values become structs: the bytes or paths of media.
pub(super) fn is_medium(from: &DataType, to: &DataType) -> bool {
    let DataType::Struct(fields) = to else { return false };
    let from: &DataType = if let DataType::Dictionary(_, values) = from { values } else { from };
    (from.is_string() || is_binary(from)) && [BYTES, PATH].iter().all(|name| fields.find(name).is_some())
}

/// Returns media structs for values that are only the bytes or only the paths.
fn medium(array: &ArrayRef, fields: &Fields) -> Result<ArrayRef, ArrowError> {
    let part = match array.data_type() {
        data_type if is_binary(data_type) => BYTES,
        data_type if data_type.is_string() => PATH,
        other => return Err(ArrowError::CastError(format!("`{other}` is no medium"))),
    };
    let children = fields.iter().map(|field| match field.name() == part {
        true => strict(array, field.data_type()),
        false => Ok(new_null_array(field.data_type(), array.len())),
    });
    let children = children.collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(StructArray::try_new(fields.clone(), children, array.nulls().cloned())?))
}

/// Returns times without a zone as UTC if they get one: arrow would take them as wall-clock times in that zone.
fn in_utc(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let unit = match (array.data_type(), to) {
        (DataType::Timestamp(unit, None), DataType::Timestamp(_, Some(_))) => *unit,
        (DataType::Date32, DataType::Timestamp(_, Some(_))) => TimeUnit::Second,
        (DataType::Date64, DataType::Timestamp(_, Some(_))) => TimeUnit::Millisecond,
        _ => return Ok(Arc::clone(array)),
    };
    wider::wider(array, &DataType::Timestamp(unit, Some("UTC".into())), &super::STRICT)
}

/// Returns whether values may be rounded, or converted to text.
fn may_round(from: &DataType, to: &DataType) -> bool {
    match to {
        DataType::Boolean => true,
        to if to.is_string() || is_binary(to) => true,
        to if to.is_floating() => from.is_floating() || from.is_decimal() || from.is_string(),
        to => to.is_decimal() && from.is_floating(),
    }
}

fn is_binary(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary};
    matches!(data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_))
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, Int32Type};
    use arrow_array::{DictionaryArray, Float64Array, Int64Array, StringArray};
    use arrow_buffer::NullBuffer;
    use arrow_schema::Field;

    use super::super::{can_be_feature, to_feature};
    use super::*;

    fn fields(fields: &[(&str, DataType)]) -> Fields {
        fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect()
    }

    #[test]
    fn fields_are_found_by_name_and_cast_and_those_that_are_not_there_are_null() {
        let have = fields(&[("b", DataType::Int64), ("a", DataType::Float64)]);
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(vec![1, 2])), Arc::new(Float64Array::from(vec![0.1, -0.0]))];
        let array: ArrayRef = Arc::new(StructArray::new(have, columns, None));
        let wanted =
            DataType::Struct(fields(&[("a", DataType::Float32), ("b", DataType::Int32), ("c", DataType::Utf8)]));
        let got = to_feature(&array, &wanted).unwrap();
        assert_eq!(got.data_type(), &wanted);
        let got = got.as_struct();
        assert_eq!(got.column(0).as_primitive::<Float32Type>().values(), &[0.1, -0.0]);
        assert_eq!(got.column(1).as_primitive::<Int32Type>().values(), &[1, 2]);
        assert_eq!(got.column(2).null_count(), 2);
    }

    #[test]
    fn dictionaries_of_bytes_or_paths_become_media() {
        let dictionary: DictionaryArray<Int32Type> = ["a.png", "b.png", "a.png"].into_iter().collect();
        let array: ArrayRef = Arc::new(dictionary);
        let wanted = DataType::Struct(fields(&[(BYTES, DataType::Binary), (PATH, DataType::Utf8)]));
        assert!(can_be_feature(array.data_type(), &wanted));
        let got = to_feature(&array, &wanted).unwrap();
        let paths = got.as_struct().column(1).as_string::<i32>();
        assert_eq!(paths.iter().flatten().collect::<Vec<_>>(), ["a.png", "b.png", "a.png"]);
    }

    #[test]
    fn what_stands_below_a_null_is_not_cast() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["7", ""]));
        let of = |nulls| -> ArrayRef {
            Arc::new(StructArray::new(fields(&[("a", DataType::Utf8)]), vec![Arc::clone(&texts)], nulls))
        };
        let wanted = DataType::Struct(fields(&[("a", DataType::Int32)]));
        assert!(to_feature(&of(None), &wanted).is_err());
        let got = to_feature(&of(Some(NullBuffer::from(vec![true, false]))), &wanted).unwrap();
        assert_eq!(got.as_struct().column(0).as_primitive::<Int32Type>().value(0), 7);
    }
}
