//! Plans an epoch with an explicitly given order.

use std::sync::Arc;

use super::permuted::{Permutation, SpanRow};
use super::{Arrangement, EpochPlan, Inner, Span, starts};

impl EpochPlan {
    /// Plans an epoch over spans in dataset order that has kept row number `rows[p]` at position `p`: kept rows are
    /// counted in dataset order, over all spans. Rows may be left out.
    ///
    /// Costs a search among the spans for each row; holds 8 bytes per row and 8 per span.
    ///
    /// # Errors
    ///
    /// For a row out of range, and a row given twice; says which.
    pub fn in_order(spans: Arc<[Span]>, rows: &[u64]) -> Result<Self, String> {
        let starts = starts(&spans);
        let num_kept = starts.last().copied().unwrap_or(0);
        let mut given = Given { seen: vec![0; usize::try_from(num_kept.div_ceil(64)).unwrap_or(0)], span: 0 };
        let mut found = Vec::with_capacity(rows.len());
        for (&number, position) in rows.iter().zip(0..) {
            if number >= num_kept {
                return Err(format!("position {position} names row {number}, expected less than {num_kept}"));
            }
            if given.note(number) {
                return Err(format!("position {position} names row {number} again; expected every row at most once"));
            }
            found.push(given.find(&starts, number));
        }
        let num_rows = found.len() as u64;
        let arrangement = Arrangement::Permuted(Permutation::given(found, spans.len()));
        Ok(Self { inner: Arc::new(Inner { spans, num_rows, arrangement, drawn: None }) })
    }
}

/// The rows given so far.
struct Given {
    /// One bit for each kept row.
    seen: Vec<u64>,
    /// The span of the last row found: the next one is often in the same.
    span: usize,
}

impl Given {
    /// Marks a row; returns whether it was marked before.
    fn note(&mut self, number: u64) -> bool {
        let Some(word) = usize::try_from(number / 64).ok().and_then(|word| self.seen.get_mut(word)) else {
            return true;
        };
        let bit = 1 << (number % 64);
        let is_noted = *word & bit != 0;
        *word |= bit;
        is_noted
    }

    /// Returns the span of a row, and its number there.
    fn find(&mut self, starts: &[u64], number: u64) -> SpanRow {
        if !(starts[self.span]..starts[self.span + 1]).contains(&number) {
            self.span = starts.partition_point(|start| *start <= number) - 1;
        }
        let row = u32::try_from(number - starts[self.span]).unwrap_or(u32::MAX);
        SpanRow { span: u32::try_from(self.span).unwrap_or(u32::MAX), row }
    }
}
