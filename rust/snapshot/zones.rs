//! The time zones of timestamps whose unit in the file differs from the writer's.
//!
//! Parquet's own types record that a timestamp is an instant, but not its time zone. That is in the Arrow schema that
//! writers store beside it, from which the decoder takes a type as a whole or not at all: not if seconds, which Parquet
//! lacks, or nanoseconds became another unit.

use std::sync::Arc;

use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Returns `schema` with the time zones from `told`, the writer's Arrow schema as stored in a footer.
pub(super) fn with_zones(schema: Schema, told: &str) -> Schema {
    if !schema.fields().iter().any(|field| has_zone(field.data_type())) {
        return schema;
    }
    let bytes = STANDARD_NO_PAD.decode(told.trim_end_matches('='));
    let told = bytes.ok().and_then(|bytes| try_schema_from_ipc_buffer(&bytes).ok());
    match told {
        Some(told) => Schema::new_with_metadata(zoned_fields(schema.fields(), told.fields()), schema.metadata),
        None => schema,
    }
}

fn has_zone(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, zone) => zone.is_some(),
        DataType::Struct(fields) => fields.iter().any(|field| has_zone(field.data_type())),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_zone(item.data_type())
        }
        DataType::Map(entries, _) => has_zone(entries.data_type()),
        _ => false,
    }
}

fn zoned_fields(fields: &Fields, told: &Fields) -> Fields {
    if fields.len() != told.len() {
        return fields.clone();
    }
    fields.iter().zip(told).map(|(field, told)| zoned_field(field, told)).collect()
}

fn zoned_field(field: &FieldRef, told: &FieldRef) -> FieldRef {
    let data_type = zoned(field.data_type(), told.data_type());
    if data_type == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(data_type))
    }
}

fn zoned(data_type: &DataType, told: &DataType) -> DataType {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView, Map, Struct, Timestamp};
    match (data_type, told) {
        (Timestamp(unit, Some(_)), Timestamp(_, Some(zone))) => Timestamp(*unit, Some(Arc::clone(zone))),
        (Struct(fields), Struct(told)) => Struct(zoned_fields(fields, told)),
        (List(item), List(told) | ListView(told)) => List(zoned_field(item, told)),
        (LargeList(item), LargeList(told) | LargeListView(told)) => LargeList(zoned_field(item, told)),
        (FixedSizeList(item, len), FixedSizeList(told, _)) => FixedSizeList(zoned_field(item, told), *len),
        (Map(entries, is_sorted), Map(told, _)) => Map(zoned_field(entries, told), *is_sorted),
        _ => data_type.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::TimeUnit;
    use parquet::arrow::encode_arrow_schema;

    use super::*;

    fn schema(unit: TimeUnit, zone: &str) -> Schema {
        let item = Arc::new(Field::new("item", DataType::Timestamp(unit, Some(zone.into())), true));
        let fields = [
            ("at", item.data_type().clone()),
            ("list", DataType::List(Arc::clone(&item))),
            ("pair", DataType::FixedSizeList(Arc::clone(&item), 2)),
            ("struct", DataType::Struct(vec![Field::new("id", DataType::Int8, true), Field::clone(&item)].into())),
            ("local", DataType::Timestamp(unit, None)),
        ];
        Schema::new(fields.map(|(name, data_type)| Field::new(name, data_type, true)).to_vec())
    }

    #[test]
    fn zones_are_those_of_the_writer_in_the_unit_of_the_file() {
        let told = encode_arrow_schema(&schema(TimeUnit::Nanosecond, "Europe/Berlin"));
        let found = with_zones(schema(TimeUnit::Microsecond, "UTC"), &told);
        assert_eq!(found, schema(TimeUnit::Microsecond, "Europe/Berlin"));
    }

    #[test]
    fn a_schema_that_is_none_or_another_changes_nothing() {
        let have = schema(TimeUnit::Microsecond, "UTC");
        let other = encode_arrow_schema(&Schema::new(vec![Field::new("at", DataType::Int64, true)]));
        for told in ["", "=", "%", "AAAA", "/////w==", &other] {
            assert_eq!(with_zones(have.clone(), told), have, "{told}");
        }
    }
}
