//! This process's requests to one store: how many, which is next, and what was measured.
//!
//! All readers of a store share its [`Traffic`]: streams, selections and openings wait in one [`queue`], whose
//! concurrency the [`limiter`] sets.
//!
//! [`queue`]: super::queue
//! [`limiter`]: super::limiter

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::StoreKey;
use super::coalesce::Gap;
use super::in_use::InUse;
use super::limiter::{Ended, Limiter};
use super::measure::Measured;
use super::preset::Preset;
use super::queue::{Queue, Ticket};
use super::recover::{Kind, Pace, Tail};
use crate::config;
use crate::error::{Error, Result};

/// A store and the options it was opened with: other credentials or another endpoint make another store.
type Key = (StoreKey, BTreeMap<String, String>);

/// The stores that this process is reading.
static CURRENT: InUse<Key, Traffic> = InUse::new();

/// The requests to one store.
#[derive(Debug)]
pub(crate) struct Traffic {
    preset: Preset,
    since: Instant,
    state: Mutex<State>,
    pace: Pace,
    tail: Mutex<Tail>,
    has_answered: AtomicBool,
    /// Whether the machine's metadata service has given credentials.
    has_role: AtomicBool,
    /// Kinds of trouble that the user was told of.
    told: Mutex<BTreeSet<Kind>>,
}

#[derive(Debug)]
struct State {
    queue: Queue<oneshot::Sender<Slot>>,
    limiter: Limiter,
    measured: Measured,
}

/// What is known about a store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// Whether bytes come through user-supplied code, which is slower.
    pub is_file_system: bool,
    /// Maximum of concurrent requests.
    pub concurrency: usize,
    /// Ranges with gaps up to this are read together, within the limit on over-reading.
    pub gap_bytes: u64,
    /// Time to the first byte, once measured.
    pub first_byte: Option<Duration>,
    /// Bytes per second of one connection, once measured.
    pub bytes_per_second: Option<f64>,
}

impl Known {
    /// Returns whether enough requests have been answered to measure the store's speed.
    pub(crate) fn is_measured(&self) -> bool {
        self.first_byte.is_some() && self.bytes_per_second.is_some()
    }

    /// Returns how many bytes to have in flight, so that more arrive while those are used: what the network delivers
    /// before the first byte of a response. For a slow one that is little, and more would only delay what is needed
    /// first.
    pub(crate) fn window_bytes(&self) -> u64 {
        let bytes = self.round_trip_bytes().unwrap_or(config::FETCH_WINDOW_BYTES);
        bytes.clamp(config::FETCH_WINDOW_BYTES, config::MAX_FETCH_WINDOW_BYTES)
    }

    /// Returns how many bytes the network is likely to deliver before the first byte of a response, once both are
    /// measured.
    pub(crate) fn round_trip_bytes(&self) -> Option<u64> {
        let network = (self.bytes_per_second? * config::CONNECTIONS_OF_NETWORK).min(config::FAST_NETWORK);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
        Some((self.first_byte?.as_secs_f64() * network) as u64)
    }
}

impl Traffic {
    /// Returns what this process's requests to a store share, creating it if necessary. After a fork, the child makes
    /// its own.
    pub(super) fn current(key: &StoreKey, options: &BTreeMap<String, String>) -> Arc<Self> {
        CURRENT.get((key.clone(), options.clone()), || Self::new(Preset::of(key)))
    }

    /// Returns the traffic of a store with a single reader.
    pub(super) fn new(preset: Preset) -> Self {
        let limiter = Limiter::new(preset.first_concurrency, preset.concurrency.clone());
        let state = State { queue: Queue::default(), limiter, measured: Measured::default() };
        Self {
            preset,
            since: Instant::now(),
            state: Mutex::new(state),
            pace: Pace::default(),
            tail: Mutex::default(),
            has_answered: AtomicBool::new(false),
            has_role: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    /// Waits until there is room for a request for `num_bytes` that is needed after `slack` others.
    ///
    /// Dropping the future gives up the place, or the slot.
    pub(super) async fn slot(self: &Arc<Self>, slack: u64, num_bytes: u64) -> Result<Slot> {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.lock().queue.push(slack, num_bytes, sender);
        // Dropped before the receiver, which then gives back a slot that was on its way.
        let _waiting = Waiting { traffic: self, ticket };
        self.start();
        receiver.await.map_err(|_| Error::Closed { reason: "cancelled" })
    }

    /// Starts the requests for which there is room.
    fn start(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            let limit = state.limiter.limit();
            let Some((waiter, num_bytes)) = state.queue.start_next(limit, config::MAX_BYTES_IN_FLIGHT) else { return };
            drop(state);
            // If nobody waits for it any more, it comes back and is dropped.
            drop(waiter.send(Slot { traffic: Arc::clone(self), num_bytes, since: Instant::now() }));
        }
    }

    /// Records that the store refused a request because there are too many.
    pub(super) fn throttled(&self) {
        let now = self.since.elapsed();
        self.lock().limiter.throttled(now);
    }

    /// Returns how many requests are in flight, including those waiting to be retried.
    pub(super) fn num_under_way(&self) -> usize {
        self.lock().queue.num_under_way()
    }

    /// Returns the pace, which decides when requests may go.
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Locks the statistics of slow requests, for no longer than it takes to change some numbers.
    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the store has responded.
    pub(super) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Returns whether the store has ever responded to this process.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Records that the machine's metadata service has given credentials.
    pub(super) fn found_role(&self) {
        self.has_role.store(true, Ordering::Relaxed);
    }

    /// Returns whether the machine's metadata service has ever given credentials to this process, for this store.
    pub(super) fn has_role(&self) -> bool {
        self.has_role.load(Ordering::Relaxed)
    }

    /// Returns whether this is the first trouble of its kind.
    pub(super) fn is_first_of(&self, kind: Kind) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(kind)
    }

    /// Returns the gaps across which ranges are read together.
    pub(super) fn gap(&self) -> Gap {
        Gap { least_bytes: self.preset.least_gap_bytes, most_bytes: self.known().gap_bytes }
    }

    /// Returns the size above which a range of `num_bytes` is split. As long as few requests are in flight, it is split
    /// into more of them, down to what a connection delivers in a fraction of the time to the first byte.
    pub(super) fn max_request_bytes(&self, num_bytes: u64) -> u64 {
        let largest = self.preset.max_request_bytes;
        let state = self.lock();
        let Some(round_trip_bytes) = state.measured.round_trip_bytes().filter(|_| self.preset.is_measured()) else {
            return largest;
        };
        let num_idle = config::FEW_REQUESTS_IN_FLIGHT.saturating_sub(state.queue.len()).max(1);
        let share = num_bytes / num_idle as u64;
        share.max(round_trip_bytes / config::BODY_SHARE).clamp(config::LEAST_REQUEST_BYTES.min(largest), largest)
    }

    /// Returns how many bytes one more dependent round trip must save: at most what the network delivers in its time.
    pub(crate) fn round_trip_bytes(&self) -> u64 {
        let most = self.preset.round_trip_bytes;
        let measured = self.known().round_trip_bytes().filter(|_| self.preset.is_measured());
        measured.map_or(most, |bytes| bytes.min(most))
    }

    /// Returns what is known about the store now.
    pub(crate) fn known(&self) -> Known {
        let state = self.lock();
        let measured = state.measured;
        let gap_bytes =
            if self.preset.is_measured() { measured.gap_bytes(&self.preset) } else { self.preset.gap_bytes };
        Known {
            is_file_system: self.preset.is_file_system,
            concurrency: state.limiter.limit(),
            gap_bytes,
            first_byte: measured.first_byte(),
            bytes_per_second: measured.bytes_per_second(),
        }
    }

    /// Locks the state, for no longer than it takes to change some numbers.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue.
struct Waiting<'a> {
    traffic: &'a Traffic,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.traffic.lock().queue.remove(self.ticket);
    }
}

/// Room for one request, held until its body has arrived.
#[derive(Debug)]
pub(super) struct Slot {
    traffic: Arc<Traffic>,
    num_bytes: u64,
    since: Instant,
}

impl Slot {
    /// Returns how long the request has been in flight.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Records the response: `num_bytes`, of which the first came after `first_byte`. Only requests without retries are
    /// used to measure the store.
    pub(super) fn answered(&self, num_bytes: u64, first_byte: Duration, was_retried: bool) {
        let elapsed = self.elapsed();
        let now = self.traffic.since.elapsed();
        let mut state = self.traffic.lock();
        if !was_retried {
            state.measured.note(num_bytes, first_byte, elapsed.saturating_sub(first_byte));
        }
        let (num_under_way, is_crowded) = (state.queue.num_under_way(), state.queue.is_crowded());
        state.limiter.finished(now, Ended { num_bytes, elapsed, num_under_way, is_crowded });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.traffic.lock().queue.finish(self.num_bytes);
        self.traffic.start();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::future::join_all;
    use futures::{FutureExt, poll};

    use super::*;

    fn traffic(concurrency: usize) -> Arc<Traffic> {
        let preset = Preset { first_concurrency: concurrency, ..Preset::object_storage() };
        Arc::new(Traffic::new(preset.unmeasured()))
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        crate::Io::current().unwrap().block_on(future)
    }

    #[test]
    fn slots_go_to_what_is_needed_first() {
        let (traffic, order) = (traffic(1), Mutex::new(Vec::new()));
        block_on(async {
            let held = traffic.slot(0, 1).await.unwrap();
            let waiting = [40, 3, 20, 0].map(|slack| {
                let (traffic, order) = (&traffic, &order);
                async move {
                    let _slot = traffic.slot(slack, 1).await.unwrap();
                    order.lock().unwrap().push(slack);
                }
            });
            let mut waiting = pin!(join_all(waiting));
            assert!(poll!(&mut waiting).is_pending());
            drop(held);
            waiting.await;
        });
        assert_eq!(order.into_inner().unwrap(), [0, 3, 20, 40]);
    }

    #[test]
    fn a_dropped_request_gives_its_slot_or_its_place_back() {
        let traffic = traffic(2);
        block_on(async {
            for _ in 0..9 {
                let held = (traffic.slot(0, 1).await.unwrap(), traffic.slot(0, 1).await.unwrap());
                let mut given_up = Box::pin(traffic.slot(0, 1));
                assert!(poll!(&mut given_up).is_pending());
                let mut unread = Box::pin(traffic.slot(0, 1));
                assert!(poll!(&mut unread).is_pending());
                drop(given_up);
                // Its slot is on the way when it is dropped.
                drop(held.0);
                drop(unread);
                drop(traffic.slot(0, 1).now_or_never().unwrap());
                drop(held.1);
            }
            assert_eq!(traffic.lock().queue.num_under_way(), 0);
            assert!(!traffic.lock().queue.is_crowded());
        });
    }

    #[test]
    fn the_window_is_what_a_network_brings_before_an_answer() {
        let window = |first_byte_ms, megabytes_per_second| {
            let known = Known {
                first_byte: Some(Duration::from_millis(first_byte_ms)),
                bytes_per_second: Some(megabytes_per_second * 1e6),
                ..traffic(1).known()
            };
            known.window_bytes()
        };
        assert_eq!(window(100, 20.0), 128_000_000, "as 64 connections bring");
        assert_eq!(window(50, 300.0), 156_250_000, "no more than 25 Gbit/s");
        assert_eq!(window(1, 300.0), config::FETCH_WINDOW_BYTES, "near");
        assert_eq!(window(200, 0.5), config::FETCH_WINDOW_BYTES, "slow");
        assert_eq!(window(10_000, 300.0), config::MAX_FETCH_WINDOW_BYTES, "frozen");
        assert_eq!(traffic(1).known().window_bytes(), config::FETCH_WINDOW_BYTES, "unknown");
    }

    #[test]
    fn a_round_trip_is_worth_what_the_network_brings_in_it() {
        let worth = |preset: Preset, first_byte_ms, kilobytes_per_second: u64| {
            let traffic = Traffic::new(preset);
            for _ in 0..20 {
                let body = Duration::from_millis((1 << 20) / kilobytes_per_second);
                traffic.lock().measured.note(1 << 20, Duration::from_millis(first_byte_ms), body);
            }
            traffic.round_trip_bytes()
        };
        let remote = Preset::object_storage;
        assert_eq!(Traffic::new(remote()).round_trip_bytes(), config::REMOTE_ROUND_TRIP_BYTES, "nothing is known");
        assert_eq!(worth(remote(), 50, 80_000), config::REMOTE_ROUND_TRIP_BYTES, "far and fast");
        assert_eq!(worth(remote(), 50, 1_000) / 100_000, 32, "64 connections of 1 MB/s for 50 ms");
        assert_eq!(worth(remote(), 1, 1_000_000) / 100_000, 31, "near: 25 Gbit/s for 1 ms");
        assert_eq!(worth(remote().unmeasured(), 50, 1_000), config::REMOTE_ROUND_TRIP_BYTES, "not measured");
        assert_eq!(worth(Preset::local(), 50, 1_000), config::LOCAL_ROUND_TRIP_BYTES);
    }

    #[test]
    fn large_ranges_are_spread_over_idle_requests() {
        const MIB: u64 = 1 << 20;
        let traffic = Arc::new(Traffic::new(Preset::object_storage()));
        assert_eq!(traffic.max_request_bytes(64 * MIB), 8 * MIB, "nothing is known");
        let met = |megabytes_per_second: u64| {
            for _ in 0..200 {
                let body = Duration::from_micros(8 * MIB / megabytes_per_second);
                traffic.lock().measured.note(8 * MIB, Duration::from_millis(100), body);
            }
        };
        met(80);
        assert_eq!(traffic.max_request_bytes(16 * MIB) / 10_000, 200, "what comes in 25 of 100 ms");
        assert_eq!(traffic.max_request_bytes(5000) / 10_000, 200, "never less");
        assert_eq!(traffic.max_request_bytes(128 * MIB), 4 * MIB, "a share of 32");
        let busy: Vec<_> = (0..24).map(|_| traffic.slot(0, 1).now_or_never().unwrap().unwrap()).collect();
        assert_eq!(traffic.max_request_bytes(32 * MIB), 4 * MIB, "a share of the 8 that are left");
        assert_eq!(traffic.max_request_bytes(128 * MIB), 8 * MIB, "nothing larger");
        drop(busy);
        met(1000);
        assert_eq!(traffic.max_request_bytes(64 * MIB), 8 * MIB, "one connection is as good");
        met(5);
        assert_eq!(traffic.max_request_bytes(16 * MIB), MIB, "nothing smaller");
        let fixed = Traffic::new(Preset::local());
        assert_eq!(fixed.max_request_bytes(64 * MIB), u64::MAX);
    }

    #[test]
    fn everything_that_reads_a_store_shares_its_traffic() {
        let key = StoreKey::S3("s3://shared-by-everything".into());
        let options = |region: &str| BTreeMap::from([("aws_region".to_owned(), region.to_owned())]);
        let first = Traffic::current(&key, &options("a"));
        assert!(Arc::ptr_eq(&first, &Traffic::current(&key, &options("a"))));
        assert!(!Arc::ptr_eq(&first, &Traffic::current(&key, &options("b"))));
    }

    #[test]
    fn a_free_store_never_makes_anybody_wait() {
        let traffic = traffic(3);
        let slots: Vec<_> = (0..3).map(|_| traffic.slot(9, 1).now_or_never().unwrap().unwrap()).collect();
        assert!(traffic.slot(0, 1).now_or_never().is_none());
        drop(slots);
        assert!(traffic.slot(0, 1).now_or_never().is_some());
    }
}
