//! The rows that a read wants, in order.

use std::ops::Range;
use std::sync::Arc;

/// Ascending rows that are still wanted.
#[derive(Debug)]
pub(super) struct Rows {
    runs: Arc<[Range<u32>]>,
    /// The first run of which nothing was taken, but for `run`.
    next: usize,
    run: Range<u32>,
}

impl Rows {
    /// Returns `runs`, or all of `num_rows` without; empty ones count for nothing.
    pub(super) fn new(runs: Option<&Arc<[Range<u32>]>>, num_rows: u32) -> Self {
        let all = 0..num_rows;
        Self { runs: runs.map_or_else(|| [all].into(), Arc::clone), next: 0, run: 0..0 }
    }

    /// Returns the first row that is wanted.
    pub(super) fn first(&mut self) -> Option<u32> {
        while self.run.is_empty() {
            self.run = self.runs.get(self.next)?.clone();
            self.next += 1;
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

    /// Takes all wanted rows before the row `end`, at most so many; as slots of what begins with the row `first`.
    pub(super) fn take_slots(&mut self, first: u32, end: u32, most: usize, slots: &mut Vec<Range<usize>>) {
        slots.clear();
        let mut left = most;
        while left > 0 && self.first().is_some_and(|wanted| wanted < end) {
            let run = self.take(end, left);
            left -= run.len();
            slots.push((run.start - first) as usize..(run.end - first) as usize);
        }
    }
}
