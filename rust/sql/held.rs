//! Counts the size of an answer while its rows arrive, so that one that is too large is refused early.

use arrow_array::{Array, RecordBatch};

use crate::error::Error;

/// A lower bound for the size of an answer, updated while its rows arrive.
#[derive(Debug, Default)]
pub(super) struct Held {
    limit_bytes: u64,
    is_ordered: bool,
    last: u64,
    is_out_of_order: bool,
    num_rows: u64,
    value_bytes: u64,
}

impl Held {
    pub(super) fn new(limit_bytes: u64, is_ordered: bool) -> Self {
        Self { limit_bytes, is_ordered, ..Self::default() }
    }

    /// Adds some rows and the values that are kept with them.
    pub(super) fn add(&mut self, numbers: &[u64], values: &RecordBatch) {
        for &number in numbers {
            self.is_out_of_order |= number < self.last;
            self.last = number;
        }
        self.num_rows += numbers.len() as u64;
        // Nested values and dictionaries are shared by batches; they are counted at the end.
        let flat = values.columns().iter().map(Array::to_data).filter(|data| data.child_data().is_empty());
        self.value_bytes += flat.map(|data| data.get_slice_memory_size().unwrap_or(0) as u64).sum::<u64>();
    }

    /// Returns the error for an answer that is already too large.
    pub(super) fn refusal(&self, sql: &str) -> Option<Error> {
        let has_order = self.is_ordered && self.is_out_of_order;
        let bytes = self.value_bytes + if has_order { self.num_rows * size_of::<u64>() as u64 } else { 0 };
        (bytes > self.limit_bytes).then(|| too_large(sql.to_owned(), self.limit_bytes, bytes))
    }
}

/// Returns the error for an answer that takes `bytes`.
pub(super) fn too_large(sql: String, limit_bytes: u64, bytes: u64) -> Error {
    let reason = format!("its order and the columns of other tables take at least {bytes} bytes");
    Error::QueryMemory { sql, limit_bytes, reason }
}
