//! Counters: what was asked of the stores, and how far a long call has got.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts requests and bytes; one for each stream or selection.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: AtomicU64,
    bytes_fetched: AtomicU64,
}

/// The counts of a [`Metrics`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests made.
    pub requests: u64,
    /// Bytes received.
    pub bytes_fetched: u64,
}

impl Metrics {
    /// Counts one answered request.
    pub(crate) fn count(&self, num_bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes_fetched.fetch_add(num_bytes, Ordering::Relaxed);
    }

    /// Returns the counts now.
    pub fn snapshot(&self) -> Counted {
        Counted {
            requests: self.requests.load(Ordering::Relaxed),
            bytes_fetched: self.bytes_fetched.load(Ordering::Relaxed),
        }
    }
}

/// How far a long call has got, for whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Begins again, with `total` steps.
    pub(crate) fn start(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Counts `steps` more.
    pub(crate) fn advance(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// Returns the steps done and the steps in all; 0 in all before they are known.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}
