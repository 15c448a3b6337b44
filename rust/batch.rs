//! Record batches of a known number of rows, which they keep if they have no columns.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};

/// Returns a batch of `num_rows` rows.
///
/// # Errors
///
/// If the columns do not have this many rows, or other types than the schema.
pub(crate) fn of_columns(
    schema: SchemaRef,
    columns: Vec<ArrayRef>,
    num_rows: usize,
) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(num_rows));
    RecordBatch::try_new_with_options(schema, columns, &options)
}
