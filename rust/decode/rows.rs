//! The rows that a read wants, in order.

use std::ops::Range;

/// Ascending rows that are still wanted.
#[derive(Debug)]
pub(super) struct Rows {
    runs: std::vec::IntoIter<Range<u32>>,
    run: Range<u32>,
}

impl Rows {
    /// Returns `runs`, or all of `num_rows` without; empty ones count for nothing.
    pub(super) fn new(runs: Option<&[Range<u32>]>, num_rows: u32) -> Self {
        let all = 0..num_rows;
        let mut runs = runs.unwrap_or(std::slice::from_ref(&all)).to_vec();
        runs.retain(|run| !run.is_empty());
        Self { runs: runs.into_iter(), run: 0..0 }
    }

    /// Returns the first row that is wanted.
    pub(super) fn first(&mut self) -> Option<u32> {
        if self.run.is_empty() {
            self.run = self.runs.next()?;
        }
        Some(self.run.start)
    }

    /// Takes the first wanted rows that lie together, before the row `end` and at most so many.
    pub(super) fn take(&mut self, end: u32, most: usize) -> Range<u32> {
        let Some(start) = self.first() else { return 0..0 };
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let stop = self.run.end.min(end.max(start)).min(start.saturating_add(most));
        self.run.start = stop;
        start..stop
    }
}
