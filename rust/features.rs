//! Hugging Face features: what a schema's `huggingface` metadata says about its columns.
//!
//! The metadata is one JSON text for all columns. While columns are chosen or a query is planned, each field carries
//! its own part ([`spread`]), so that selected, renamed and joined columns keep it; then the parts are merged into one
//! text again ([`collect`]). Features are passed on verbatim: only the names of a `ClassLabel` are interpreted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{Error, Result};

/// Schema metadata key under which `datasets` keeps features.
const SCHEMA_KEY: &str = "huggingface";

/// Prefix of the extension type names of `datasets`.
const ARRAYS: &str = "datasets.features.features.";

/// Field metadata key for a field's own feature.
const FIELD_KEY: &str = "forebay.feature";

/// Returns `schema` with each column's feature in its field.
pub(crate) fn spread(schema: &SchemaRef) -> SchemaRef {
    let Some(text) = text_of(schema) else { return Arc::clone(schema) };
    with(schema, members(text).unwrap_or_default())
}

/// Returns `schema` with the features of its fields moved to the schema's own metadata.
pub(crate) fn collect(schema: &Schema) -> SchemaRef {
    let mut metadata = schema.metadata().clone();
    if text_of(schema).is_some() {
        metadata.remove(SCHEMA_KEY);
    }
    let part = |field: &FieldRef| Some((quoted(field.name()), field.metadata().get(FIELD_KEY)?.clone()));
    let parts: Vec<String> =
        schema.fields().iter().filter_map(part).map(|(name, feature)| format!("{name}: {feature}")).collect();
    if !parts.is_empty() {
        metadata.insert(SCHEMA_KEY.into(), format!("{{\"info\": {{\"features\": {{{}}}}}}}", parts.join(", ")));
    }
    let fields: Fields = schema.fields().iter().map(bare).collect();
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// Returns the feature that a field carries.
pub(crate) fn carried(field: &Field) -> Option<&String> {
    field.metadata().get(FIELD_KEY)
}

/// Returns `field` with the feature that `from` carries, or without one.
pub(crate) fn carrying(field: Field, from: Option<&Field>) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.remove(FIELD_KEY);
    if let Some(feature) = from.and_then(carried) {
        metadata.insert(FIELD_KEY.into(), feature.clone());
    }
    field.with_metadata(metadata)
}

/// Returns `schema` with its features replaced by those of `text`, a JSON object by column.
///
/// # Errors
///
/// [`Error::Setting`] for text that is not a JSON object.
pub(crate) fn replaced(schema: &SchemaRef, text: &str) -> Result<SchemaRef> {
    let features = members(text).ok_or_else(|| Error::Setting {
        name: "features",
        reason: "expected a JSON object of features by column".into(),
    })?;
    let names: HashSet<String> = features.iter().map(|(name, _)| name.clone()).collect();
    let told = with(&spread(schema), features);
    let extended = |field: &FieldRef| if names.contains(field.name()) { extended(field) } else { Arc::clone(field) };
    let fields: Fields = told.fields().iter().map(extended).collect();
    Ok(collect(&Schema::new_with_metadata(fields, told.metadata().clone())))
}

/// Returns a field as `datasets` stores its feature: nullable, with the extension type.
fn extended(field: &FieldRef) -> FieldRef {
    #[derive(Deserialize)]
    struct Feature {
        _type: String,
        shape: Option<Vec<Option<u64>>>,
        dtype: Option<String>,
    }
    let feature = carried(field).and_then(|text| serde_json::from_str::<Feature>(text).ok());
    let extension = feature.and_then(|Feature { _type: kind, shape, dtype }| match kind.as_str() {
        "Json" => Some(("arrow.json".to_owned(), String::new())),
        "Array2D" | "Array3D" | "Array4D" | "Array5D" => {
            let told = serde_json::to_string(&(shape?, dtype?)).ok()?;
            Some((format!("{ARRAYS}{kind}ExtensionType"), told))
        }
        _ => None,
    });
    let is_ours = field.extension_type_name().is_some_and(|name| name == "arrow.json" || name.starts_with(ARRAYS));
    let mut metadata = field.metadata().clone();
    if is_ours {
        metadata.remove(EXTENSION_TYPE_NAME_KEY);
        metadata.remove(EXTENSION_TYPE_METADATA_KEY);
    }
    if let Some((name, told)) = extension {
        metadata.insert(EXTENSION_TYPE_NAME_KEY.into(), name);
        metadata.insert(EXTENSION_TYPE_METADATA_KEY.into(), told);
    }
    // As in `datasets`, a field with a feature is nullable.
    Arc::new(Field::clone(field).with_metadata(metadata).with_nullable(true))
}

/// Returns the features of a schema as a JSON object.
pub(crate) fn text_of(schema: &Schema) -> Option<&str> {
    let info = member(schema.metadata().get(SCHEMA_KEY)?, "info")?;
    member(info, "features").filter(|features| features.starts_with('{'))
}

/// Returns the names of a field's classes, if it is a `ClassLabel`.
pub(crate) fn classes(field: &Field) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Feature {
        _type: String,
        names: Vec<String>,
    }
    if *field.data_type() != DataType::Int64 {
        return None;
    }
    let feature: Feature = serde_json::from_str(carried(field)?).ok()?;
    (feature._type == "ClassLabel").then_some(feature.names)
}

fn with(schema: &Schema, features: Vec<(String, &str)>) -> SchemaRef {
    let features: HashMap<String, &str> = features.into_iter().collect();
    let field = |field: &FieldRef| match features.get(field.name()) {
        None => Arc::clone(field),
        Some(feature) => {
            let mut metadata = field.metadata().clone();
            metadata.insert(FIELD_KEY.into(), (*feature).to_owned());
            Arc::new(Field::clone(field).with_metadata(metadata))
        }
    };
    let fields: Fields = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn bare(field: &FieldRef) -> FieldRef {
    match carried(field) {
        None => Arc::clone(field),
        Some(_) => Arc::new(carrying(Field::clone(field), None)),
    }
}

fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    members(object)?.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Returns the names and raw values of a JSON object, in order.
fn members(object: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = object.trim_start().strip_prefix('{')?.trim_start();
    let mut found = Vec::new();
    if rest.starts_with('}') {
        return Some(found);
    }
    loop {
        let (name, after) = leading::<String>(rest)?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let (_, after) = leading::<IgnoredAny>(value)?;
        found.push((name, value.get(..value.len() - after.len())?));
        match after.trim_start().strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None => return after.trim_start().starts_with('}').then_some(found),
        }
    }
}

/// Returns the JSON value at the start of `text`, and the rest.
fn leading<'a, T: Deserialize<'a>>(text: &'a str) -> Option<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, text.get(values.byte_offset()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEATURES: &str = r#"{"info": {"version": null, "features": {
        "a\"b": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["cat", "dog, }"], "_type": "ClassLabel"}, "gone": {"z": 1, "a": [2, {"y": true}]}}}}"#;

    fn schema(text: &str) -> SchemaRef {
        let fields = vec![Field::new("label", DataType::Int64, true), Field::new("a\"b", DataType::Utf8, true)];
        Arc::new(Schema::new_with_metadata(fields, [(SCHEMA_KEY.to_owned(), text.to_owned())].into()))
    }

    #[test]
    fn features_go_with_their_columns_as_they_are_written() {
        let spread = spread(&schema(FEATURES));
        assert_eq!(classes(spread.field(0)), Some(vec!["cat".to_owned(), "dog, }".to_owned()]));
        assert_eq!(classes(spread.field(1)), None);
        let renamed = Field::clone(spread.field(0)).with_name("l");
        let collected = collect(&Schema::new_with_metadata(vec![renamed], spread.metadata().clone()));
        assert_eq!(text_of(&collected), Some(r#"{"l": {"names": ["cat", "dog, }"], "_type": "ClassLabel"}}"#));
        assert_eq!(carried(collected.field(0)), None);
    }

    #[test]
    fn what_is_no_features_stays_as_it_is() {
        for text in [
            "",
            "{",
            "[]",
            "{\"info\": null}",
            "{\"info\": {\"features\": null}}",
            "{\"info\": {\"features\": {\"label\"}}}",
        ] {
            let schema = schema(text);
            assert_eq!(carried(spread(&schema).field(0)), None, "{text}");
            assert_eq!(collect(&spread(&schema)), schema, "{text}");
        }
    }

    #[test]
    fn features_of_columns_that_are_gone_go_with_them() {
        let spread = spread(&schema(FEATURES));
        let gone = collect(&Schema::new_with_metadata(Fields::empty(), spread.metadata().clone()));
        assert_eq!(gone.metadata().len(), 0);
    }

    #[test]
    fn given_features_replace_those_of_their_columns_alone() {
        let replaced = replaced(&schema(FEATURES), r#"{"label": {"_type": "Value"}}"#).unwrap();
        assert_eq!(
            text_of(&replaced),
            Some(r#"{"label": {"_type": "Value"}, "a\"b": {"dtype": "string", "_type": "Value"}}"#)
        );
        assert!(super::replaced(&schema(FEATURES), "[]").is_err());
    }

    #[test]
    fn fields_with_given_features_may_be_null() {
        let fields = ["label", "other"].map(|name| Field::new(name, DataType::Int64, false));
        let required = Arc::new(Schema::new(fields.to_vec()));
        let replaced = replaced(&required, r#"{"label": {"names": ["cat"], "_type": "ClassLabel"}}"#).unwrap();
        assert_eq!(replaced.fields().iter().map(|field| field.is_nullable()).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn arrays_and_json_are_the_extension_types_of_datasets() {
        let array = r#"{"label": {"shape": [null, 3], "dtype": "int8", "_type": "Array2D"}}"#;
        let array = replaced(&schema(FEATURES), array).unwrap();
        assert_eq!(array.field(0).extension_type_name(), Some("datasets.features.features.Array2DExtensionType"));
        assert_eq!(array.field(0).extension_type_metadata(), Some(r#"[[null,3],"int8"]"#));
        let json =
            replaced(&array, r#"{"a\"b": {"_type": "Json"}, "label": {"dtype": "x", "_type": "Value"}}"#).unwrap();
        assert_eq!(json.field(1).extension_type_name(), Some("arrow.json"));
        assert_eq!(json.field(0).extension_type_name(), None);
    }
}
