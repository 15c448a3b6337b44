//! Counters: what was asked of the stores, at which stage, and how far a long call has got.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a request is for. Stages follow each other; the requests of one run beside each other.
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
    /// All stages, in their order.
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

/// Where requests stand in the chain of those that had to wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stage: Stage,
    /// How many requests of the stage had to be answered before one could be made: 0 for those known from the start.
    pub(crate) step: u32,
}

/// Counts requests and bytes by stage; one for each stream or selection.
#[derive(Debug, Default)]
pub struct Metrics {
    stages: Mutex<[Running; Stage::ALL.len()]>,
}

/// The counts of a [`Metrics`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests made.
    pub requests: u64,
    /// Bytes received.
    pub bytes_fetched: u64,
    /// Bytes of the ranges that were asked for; what was received beyond them lay in gaps.
    pub bytes_wanted: u64,
    /// What requests had to be made again for.
    pub recovered: Recovered,
    /// Ranges that were there already.
    pub hits: u64,
    /// Most requests that had to be made one after another.
    pub depth: u32,
    /// Time from making a request to the beginning of its answer, over all answered requests together.
    pub first_bytes: Duration,
    /// Time during which at least one request was waiting or under way.
    pub busy: Duration,
}

/// What requests to a store went through before they were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Times that a request was made again because the store said that there are too many (429, 503).
    pub throttled: u64,
    /// The same because the store failed (another 5xx), or answered something else than it was asked.
    pub failed: u64,
    /// The same because there was no connection, or it broke.
    pub broken: u64,
    /// The same because nothing came for too long.
    pub stalled: u64,
    /// Bodies that broke off and went on in another answer.
    pub resumed: u64,
    /// Second requests for what a first one was slow with.
    pub hedges: u64,
    /// Those that were answered first.
    pub hedges_won: u64,
}

impl Recovered {
    /// Returns how often requests were made again, for whatever reason.
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

/// The counts of one stage, and whether it is at work.
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
    /// Returns both together, of stages that follow each other.
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
    /// Notes that a stage is at work until the result is dropped.
    pub(crate) fn during(&self, stage: Stage) -> During<'_> {
        self.change(stage, |running| {
            running.num_under_way += 1;
            running.since.get_or_insert_with(Instant::now);
        });
        During { metrics: self, stage }
    }

    /// Counts bytes that somebody asks for.
    pub(crate) fn want(&self, stage: Stage, num_bytes: u64) {
        self.change(stage, |running| running.counted.bytes_wanted += num_bytes);
    }

    /// Counts a request that is made.
    pub(crate) fn ask(&self, place: Place) {
        self.change(place.stage, |Running { counted, .. }| {
            counted.requests += 1;
            counted.depth = counted.depth.max(place.step + 1);
        });
    }

    /// Counts what a request went through.
    pub(crate) fn recover(&self, stage: Stage, recovered: Recovered) {
        if !recovered.is_plain() {
            self.change(stage, |Running { counted, .. }| counted.recovered = counted.recovered.and(recovered));
        }
    }

    /// Counts ranges that need not be asked for.
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

    /// Adds what was counted elsewhere, beside this.
    pub(crate) fn add(&self, stage: Stage, counted: Counted) {
        self.change(stage, |running| {
            let depth = running.counted.depth.max(counted.depth);
            running.counted = Counted { depth, ..running.counted.and(counted) };
        });
    }

    /// Returns the counts of all stages together now.
    pub fn snapshot(&self) -> Counted {
        self.lock().iter().map(Running::snapshot).fold(Counted::default(), Counted::and)
    }

    /// Returns the counts of one stage now.
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

/// A stage at work.
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

    /// Tells of `steps` more that there are to do.
    pub(crate) fn expect(&self, steps: u64) {
        self.total.fetch_add(steps, Ordering::Relaxed);
    }

    /// Counts `steps` more as done.
    pub(crate) fn advance(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// Returns the steps done and the steps in all; 0 in all before they are known.
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
