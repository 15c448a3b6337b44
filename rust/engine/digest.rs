//! Digests of parameters and of tables in memory, by which states know a query.
//!
//! A digest is of names, types and values. It does not depend on how a library lays these out: in how many batches,
//! with which offsets and dictionaries, with which metadata, or with what under NULLs.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::ScalarValue;
use sha2::{Digest, Sha256};

use super::floats;
use crate::hex::hex;

/// About how many bytes are digested at a time: they are copied, and fit into the caches of a core.
const BYTES_AT_ONCE: usize = 256 << 10;

/// Returns a line of text that differs for different values.
pub(super) fn digest_of_value(value: &ScalarValue) -> String {
    const SHOWN: usize = 64;
    let data_type = value.data_type();
    let text = match value.try_as_str() {
        // Its quotes and line breaks are escaped.
        Some(Some(text)) => format!("{data_type}({text:?})"),
        _ if data_type.is_primitive() || data_type.is_null() || data_type == DataType::Boolean => format!("{value:?}"),
        // Lists and bytes are displayed truncated, and could look alike.
        _ => digest_of_array(value),
    };
    if text.len() <= SHOWN { text } else { hex(Sha256::digest(text)) }
}

/// Returns the values of parameters as comments to a query's text.
pub(crate) fn comment_of(parameters: &BTreeMap<String, ScalarValue>) -> String {
    parameters.iter().map(|(name, value)| format!("\n-- ${name} = {}", digest_of_value(value))).collect()
}

/// Returns a digest of a value and its type.
fn digest_of_array(value: &ScalarValue) -> String {
    let batch = value.to_array().map_err(ArrowError::from).and_then(|array| {
        let field = Field::new("value", array.data_type().clone(), true);
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array])
    });
    // Every parameter value can be an array.
    let digest = batch.and_then(|batch| digest_of_batches(&batch.schema(), &[batch]));
    digest.unwrap_or_else(|_| format!("{value:?}"))
}

/// Returns a digest of an in-memory table.
///
/// # Errors
///
/// If it has values of a type without an order.
pub(crate) fn digest_of_batches(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<String, ArrowError> {
    let mut hash = Sha256::new();
    for field in schema.fields() {
        hash.update(format!("{:?} {}\n", field.name(), laid_out_plainly(field.data_type())));
    }
    let fields = schema.fields().iter().map(|field| SortField::new(unpacked_type(field.data_type()).clone()));
    // The engine sorts by these bytes: equal values have equal ones, and no row begins like another.
    let converter = RowConverter::new(fields.collect())?;
    let mut num_rows = 0_u64;
    for batch in batches {
        num_rows += batch.num_rows() as u64;
        let sizes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        let bytes = sizes.sum::<Result<usize, _>>()?;
        let rows_at_once = (BYTES_AT_ONCE * batch.num_rows() / bytes.max(1)).max(1);
        for start in (0..batch.num_rows()).step_by(rows_at_once) {
            let slice = batch.slice(start, rows_at_once.min(batch.num_rows() - start));
            let columns = slice.columns().iter().map(as_the_query_sees_it).collect::<Result<Vec<_>, _>>()?;
            converter.convert_columns(&columns)?.iter().for_each(|row| hash.update(row));
        }
    }
    hash.update(num_rows.to_le_bytes());
    Ok(hex(hash.finalize()))
}

/// Returns the values of a column, without a dictionary and with one bit pattern per float.
fn as_the_query_sees_it(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let unpacked = arrow_cast::cast(column, unpacked_type(column.data_type()))?;
    Ok(floats::canonical(&unpacked)?.unwrap_or(unpacked))
}

/// Returns the type of values that may be in a dictionary or in runs.
fn unpacked_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => unpacked_type(values),
        DataType::RunEndEncoded(_, values) => unpacked_type(values.data_type()),
        other => other,
    }
}

/// Returns the type that stands for all those that hold the same values, laid out in other ways.
fn laid_out_plainly(data_type: &DataType) -> DataType {
    let plain = |field: &FieldRef| Field::new(field.name(), laid_out_plainly(field.data_type()), true);
    let item = |field: &FieldRef| Arc::new(plain(field).with_name(Field::LIST_FIELD_DEFAULT_NAME));
    match unpacked_type(data_type) {
        DataType::LargeUtf8 => DataType::Utf8,
        DataType::LargeBinary => DataType::Binary,
        DataType::List(items) | DataType::LargeList(items) => DataType::List(item(items)),
        DataType::FixedSizeList(items, len) => DataType::FixedSizeList(item(items), *len),
        DataType::Map(entries, _) => DataType::Map(item(entries), false),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain).collect()),
        other => other.clone(),
    }
}
