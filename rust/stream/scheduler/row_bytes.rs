//! Estimates the size of decoded rows.

/// If parts recently exceeded their estimates by this percentage, footers do not tell the size of rows.
const UNRELIABLE_EXCESS: u64 = 100;

/// Decoded bytes per row, according to the footers and as observed.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowBytes {
    estimate: u64,
    seen_bytes: u64,
    seen_rows: u64,
    /// Percentage by which parts recently exceeded their estimates.
    excess: u64,
}

impl RowBytes {
    /// Starts with the bytes per row according to the footers.
    pub(super) fn new(estimate: u64) -> Self {
        Self { estimate, seen_bytes: 0, seen_rows: 0, excess: 0 }
    }

    /// Returns the bytes of all rows that were decoded.
    pub(super) fn seen_bytes(&self) -> u64 {
        self.seen_bytes
    }

    /// Returns whether the size of any rows was observed.
    pub(super) fn is_observed(&self) -> bool {
        self.seen_rows > 0
    }

    /// Returns the bytes of `num_rows` rows.
    pub(super) fn of(&self, num_rows: usize) -> u64 {
        let (bytes, of) = if self.seen_rows > 0 { (self.seen_bytes, self.seen_rows) } else { (self.estimate, 1) };
        u64::try_from(u128::from(bytes) * num_rows as u128 / u128::from(of)).unwrap_or(u64::MAX)
    }

    /// Returns an estimate from the footer, corrected by what was observed for others.
    pub(super) fn corrected(&self, estimate: u64) -> u64 {
        estimate.saturating_add((estimate / 100).saturating_mul(self.excess))
    }

    /// Returns the footer's estimate for `num_rows` rows, or what as many others took if footers do not tell.
    pub(super) fn likely(&self, num_rows: usize, estimate: u64) -> u64 {
        if self.excess < UNRELIABLE_EXCESS { estimate } else { estimate.max(self.of(num_rows)) }
    }

    /// Records the bytes of decoded rows, and the footer's estimate of them.
    pub(super) fn note(&mut self, num_rows: usize, bytes: u64, estimate: u64) {
        self.seen_bytes = self.seen_bytes.saturating_add(bytes);
        self.seen_rows += num_rows as u64;
        let excess = (bytes / (estimate / 100).max(1)).saturating_sub(100).min(10_000);
        self.excess = excess.max(self.excess * 7 / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_were_fetched_before_the_first_was_decoded_correct_estimates_only_once() {
        let mut row_bytes = RowBytes::new(100);
        for _ in 0..10 {
            row_bytes.note(1000, 150_000, 100_000);
            assert_eq!(row_bytes.corrected(100_000), 150_000);
        }
        assert_eq!(row_bytes.of(10), 1500);
    }

    #[test]
    fn a_correction_fades_as_estimates_are_right_again() {
        let mut row_bytes = RowBytes::new(100);
        row_bytes.note(1000, 300_000, 100_000);
        assert_eq!(row_bytes.corrected(100_000), 300_000);
        (0..50).for_each(|_| row_bytes.note(1000, 100_000, 100_000));
        assert_eq!(row_bytes.corrected(100_000), 100_000);
    }

    #[test]
    fn rows_are_taken_for_as_large_as_others_only_where_footers_are_far_off() {
        let mut row_bytes = RowBytes::new(100);
        row_bytes.note(1000, 150_000, 100_000);
        assert_eq!(row_bytes.likely(1000, 100_000), 100_000);
        row_bytes.note(1000, 50_000_000, 100_000);
        assert_eq!(row_bytes.likely(1000, 100_000), row_bytes.of(1000));
        assert_eq!(row_bytes.likely(1000, 90_000_000), 90_000_000);
    }
}
