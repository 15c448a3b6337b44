//! Estimates the size of decoded rows.

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

    /// Returns the bytes of `num_rows` rows.
    pub(super) fn of(&self, num_rows: usize) -> u64 {
        let (bytes, of) = if self.seen_rows > 0 { (self.seen_bytes, self.seen_rows) } else { (self.estimate, 1) };
        u64::try_from(u128::from(bytes) * num_rows as u128 / u128::from(of)).unwrap_or(u64::MAX)
    }

    /// Returns an estimate from the footer, corrected by what was observed for others.
    pub(super) fn corrected(&self, estimate: u64) -> u64 {
        estimate.saturating_add(estimate / 100 * self.excess)
    }

    /// Records the bytes of decoded rows, and their estimate.
    pub(super) fn note(&mut self, num_rows: usize, bytes: u64, expected: u64) {
        self.seen_bytes += bytes;
        self.seen_rows += num_rows as u64;
        // The estimate had already been corrected.
        let uncorrected = (expected / (100 + self.excess)).max(1);
        let excess = (bytes / uncorrected).saturating_sub(100).min(10_000);
        self.excess = excess.max(self.excess * 7 / 8);
    }
}
