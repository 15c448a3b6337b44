//! Counts the bytes that a stream holds: in flight, decoded, and ready for the consumer.

/// Bytes in use against a limit.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    used: u64,
    peak: u64,
}

impl Budget {
    /// Returns an empty budget of `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, used: 0, peak: 0 }
    }

    /// Returns the limit.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the most bytes that were ever in use.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns whether `bytes` more fit.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.limit
    }

    /// Takes `bytes`, whether they fit or not.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
        self.peak = self.peak.max(self.used);
    }

    /// Gives `bytes` back.
    pub(super) fn release(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}
