//! Counters for requests by stage, and for the progress of long calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The purpose of a request. Stages follow one another; requests within a stage run concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Finding objects.
    Listing,
    /// Footers and offset indexes.
    Footers,
    /// Column indexes and bloom filters.
    Indexes,
    /// Columns that filters read.
    Predicates,
    /// Columns that are returned.
    Payload,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 5] = [Self::Listing, Self::Footers, Self::Indexes, Self::Predicates, Self::Payload];

    /// Returns the stage's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listing => "listing",
            Self::Footers => "footers",
            Self::Indexes => "indexes",
            Self::Predicates => "predicates",
            Self::Payload => "payload",
        }
    }
}

/// The position of a request in the chain of those that had to wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stage: Stage,
    /// How many requests of the stage had to be answered first: 0 for those known from the start.
    pub(crate) step: u32,
}

/// Counts requests and bytes by stage; one for each stream or selection.
#[derive(Debug, Default)]
pub struct Metrics {
    stages: Mutex<[Running; Stage::ALL.len()]>,
}

/// A snapshot of the counts of a [`Metrics`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests made.
    pub requests: u64,
    /// Bytes received.
    pub bytes_fetched: u64,
    /// Bytes of the requested ranges; what was received beyond them lay in gaps.
    pub bytes_wanted: u64,
    /// Failures that requests recovered from.
    pub recovered: Recovered,
    /// Ranges that were available without a request.
    pub hits: u64,
    /// The largest number of sequential requests.
    pub depth: u32,
    /// Time to first byte, summed over all answered requests.
    pub first_bytes: Duration,
    /// Time during which at least one request was in flight.
    pub busy: Duration,
}

/// Failures of requests to a store before they were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Requests repeated because the store was throttling (429, 503).
    pub throttled: u64,
    /// Requests repeated because the store failed (another 5xx), or answered something else.
    pub failed: u64,
    /// Requests repeated because there was no connection, or it broke.
    pub broken: u64,
    /// Requests repeated because nothing was received for too long.
    pub stalled: u64,
    /// Response bodies that broke off and were resumed by another request.
    pub resumed: u64,
    /// Second requests made because the first was slow.
    pub hedges: u64,
    /// Second requests that were answered first.
    pub hedges_won: u64,
}

impl Recovered {
    /// Returns how often requests were repeated, for any reason.
    pub fn retries(&self) -> u64 {
        self.throttled + self.failed + self.broken + self.stalled
    }

    /// Returns whether the request was made once, as nearly all are.
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    fn and(self, then: Self) -> Self {
        Self {
            throttled: self.throttled + then.throttled,
            failed: self.failed + then.failed,
            broken: self.broken + then.broken,
            stalled: self.stalled + then.stalled,
            resumed: self.resumed + then.resumed,
            hedges: self.hedges + then.hedges,
            hedges_won: self.hedges_won + then.hedges_won,
        }
    }
}

/// The counts of one stage, and whether it is running.
#[derive(Debug, Default)]
struct Running {
    counted: Counted,
    num_under_way: usize,
    since: Option<Instant>,
}

impl Running {
    fn snapshot(&self) -> Counted {
        let since = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        Counted { busy: self.counted.busy + since, ..self.counted }
    }
}

impl Counted {
    /// Returns the sum for stages that follow one another.
    fn and(self, then: Self) -> Self {
        Self {
            requests: self.requests + then.requests,
            bytes_fetched: self.bytes_fetched + then.bytes_fetched,
            bytes_wanted: self.bytes_wanted + then.bytes_wanted,
            recovered: self.recovered.and(then.recovered),
            hits: self.hits + then.hits,
            depth: self.depth + then.depth,
            first_bytes: self.first_bytes + then.first_bytes,
            busy: self.busy + then.busy,
        }
    }
}

impl Metrics {
    /// Marks a stage as running until the result is dropped.
    pub(crate) fn during(&self, stage: Stage) -> During<'_> {
        self.change(stage, |running| {
            running.num_under_way += 1;
            running.since.get_or_insert_with(Instant::now);
        });
        During { metrics: self, stage }
    }

    /// Counts requested bytes.
    pub(crate) fn want(&self, stage: Stage, num_bytes: u64) {
        self.change(stage, |running| running.counted.bytes_wanted += num_bytes);
    }

    /// Counts a request.
    pub(crate) fn ask(&self, place: Place) {
        self.change(place.stage, |Running { counted, .. }| {
            counted.requests += 1;
            counted.depth = counted.depth.max(place.step + 1);
        });
    }

    /// Counts what a request recovered from.
    pub(crate) fn recover(&self, stage: Stage, recovered: Recovered) {
        if !recovered.is_plain() {
            self.change(stage, |Running { counted, .. }| counted.recovered = counted.recovered.and(recovered));
        }
    }

    /// Counts ranges that need no request.
    pub(crate) fn hit(&self, stage: Stage, num_ranges: u64) {
        self.change(stage, |running| running.counted.hits += num_ranges);
    }

    /// Counts the answer to a request.
    pub(crate) fn answer(&self, stage: Stage, num_bytes: u64, first_byte: Duration) {
        self.change(stage, |Running { counted, .. }| {
            counted.bytes_fetched += num_bytes;
            counted.first_bytes += first_byte;
        });
    }

    /// Adds counts that were made elsewhere, concurrently.
    pub(crate) fn add(&self, stage: Stage, counted: Counted) {
        self.change(stage, |running| {
            let depth = running.counted.depth.max(counted.depth);
            running.counted = Counted { depth, ..running.counted.and(counted) };
        });
    }

    /// Returns the current counts of all stages together.
    pub fn snapshot(&self) -> Counted {
        self.lock().iter().map(Running::snapshot).fold(Counted::default(), Counted::and)
    }

    /// Returns the current counts of one stage.
    pub fn of(&self, stage: Stage) -> Counted {
        self.lock()[stage as usize].snapshot()
    }

    fn change(&self, stage: Stage, change: impl FnOnce(&mut Running)) {
        change(&mut self.lock()[stage as usize]);
    }

    fn lock(&self) -> MutexGuard<'_, [Running; Stage::ALL.len()]> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running stage.
#[derive(Debug)]
pub(crate) struct During<'a> {
    metrics: &'a Metrics,
    stage: Stage,
}

impl Drop for During<'_> {
    fn drop(&mut self) {
        self.metrics.change(self.stage, |running| {
            running.num_under_way -= 1;
            if running.num_under_way == 0
                && let Some(since) = running.since.take()
            {
                running.counted.busy += since.elapsed();
            }
        });
    }
}

/// The progress of a long call, to be displayed.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Restarts, with `total` steps.
    pub(crate) fn start(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Adds `steps` to the total.
    pub(crate) fn expect(&self, steps: u64) {
        self.total.fetch_add(steps, Ordering::Relaxed);
    }

    /// Adds `steps` to those done.
    pub(crate) fn advance(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// Returns the steps done and the total; the total is 0 until it is known.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_of_stages_add_up_and_those_of_their_requests_do_not() {
        let metrics = Metrics::default();
        for (stage, step) in [(Stage::Footers, 0), (Stage::Footers, 0), (Stage::Footers, 1), (Stage::Payload, 0)] {
            metrics.ask(Place { stage, step });
        }
        assert_eq!((metrics.of(Stage::Footers).depth, metrics.of(Stage::Predicates).depth), (2, 0));
        assert_eq!((metrics.snapshot().depth, metrics.snapshot().requests), (3, 4));
    }

    #[test]
    fn a_stage_is_busy_once_however_many_work_at_it() {
        let metrics = Metrics::default();
        let started = Instant::now();
        let both = (metrics.during(Stage::Payload), metrics.during(Stage::Payload));
        std::thread::sleep(Duration::from_millis(5));
        assert!(metrics.of(Stage::Payload).busy >= Duration::from_millis(5), "seen while it lasts");
        drop(both);
        let busy = metrics.of(Stage::Payload).busy;
        assert!(busy >= Duration::from_millis(5) && busy <= started.elapsed());
        assert_eq!(metrics.of(Stage::Payload).busy, busy, "nothing is at work any more");
    }
}
