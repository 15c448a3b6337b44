//! Rows to and from bytes, in Arrow's IPC stream format.

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, SchemaRef};

use crate::panics;

/// Returns batches as bytes.
///
/// # Errors
///
/// For types that the format does not support.
pub fn write(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    batches.iter().try_for_each(|batch| writer.write(batch))?;
    writer.into_inner()
}

/// Returns the batches that [`write()`] wrote.
///
/// # Errors
///
/// For bytes that [`write()`] does not produce.
pub fn read(bytes: &[u8]) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    // The reader panics on types that no writer produces.
    let read = panics::caught(|| {
        let reader = StreamReader::try_new(bytes, None)?;
        let schema = reader.schema();
        Ok((schema, reader.collect::<Result<_, _>>()?))
    });
    read.unwrap_or_else(|panic| Err(ArrowError::IpcError(panic)))
}
