//! Counts what an answer takes while its rows arrive, so that one that takes too much is refused early.

use arrow_array::{Array, RecordBatch};

use crate::error::Error;

/// A lower bound for what an answer takes until it is made, updated while its rows arrive.
#[derive(Debug, Default)]
pub(super) struct AnswerSize {
    limit_bytes: u64,
    last: u64,
    is_out_of_order: bool,
    num_rows: u64,
    value_bytes: u64,
}

impl AnswerSize {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, ..Self::default() }
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
        // The rows' numbers are held until all are there, and then sorted beside them.
        let num_lists = if self.is_out_of_order { 2 } else { 1 };
        let bytes = self.value_bytes + self.num_rows * num_lists * size_of::<u64>() as u64;
        (bytes > self.limit_bytes).then(|| too_large(sql.to_owned(), self.limit_bytes, bytes))
    }
}

/// Returns the error for an answer that takes `bytes`.
pub(super) fn too_large(sql: String, limit_bytes: u64, bytes: u64) -> Error {
    let reason = format!("its rows, their order and the columns of other tables take at least {bytes} bytes");
    Error::QueryMemory { sql, limit_bytes, reason }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::Schema;

    use super::*;

    #[test]
    fn row_numbers_count_twice_once_they_have_to_be_sorted() {
        let none = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let mut size = AnswerSize::new(100);
        size.add(&(0..12).collect::<Vec<_>>(), &none);
        assert!(size.refusal("q").is_none());
        size.add(&[3], &none);
        assert!(size.refusal("q").unwrap().to_string().contains("at least 208 bytes"));
    }
}
