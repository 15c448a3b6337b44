//! How long one read may go on without a byte, and how long it waits between requests.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use object_store::Error;
use tokio::time::{Instant, sleep};

use super::stopwatch::Stopwatch;
use super::trouble::Kind;

/// Pauses between requests of one read.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long to retry a store that has never responded to this process, unless the user set a limit: its name is
/// probably misspelt.
const FIRST_CONTACT: Duration = Duration::from_secs(10);

/// How long a request may go without a byte: to connect, and to be answered. Shorter if the user's patience is.
pub(in crate::source) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(in crate::source) const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Wrong responses to one read after which it is given up.
const MAX_WRONG: u32 = 3;

/// Users, stores and URLs may name any time; no wait is longer than this.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the instant after some time from now.
pub(in crate::source) fn after(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST)
}

/// Returns a random number from 0 to 1, so that requests that failed together are not retried together.
pub(super) fn random() -> f64 {
    // As many bits as a float has.
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// How long a read may go on, and the option that sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) struct Limit {
    pub(in crate::source) time: Duration,
    pub(in crate::source) option: &'static str,
    /// Whether the user set it.
    pub(in crate::source) is_given: bool,
}

/// A read was refused or failed for longer than allowed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(in crate::source) struct Impatient {
    pub(in crate::source) limit: Duration,
    pub(in crate::source) option: &'static str,
    /// The last failure.
    #[source]
    pub(in crate::source) cause: Box<dyn std::error::Error + Send + Sync>,
}

impl Impatient {
    /// Returns it as an error of the store called `store`.
    pub(in crate::source) fn of(self, store: &'static str) -> Error {
        Error::Generic { store, source: Box::new(self) }
    }
}

/// The patience of one read since its last byte.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Limit,
    /// The time that the read has spent waiting.
    pub(super) watch: Stopwatch,
    pause: Duration,
    num_wrong: u32,
    /// Whether the store may not exist.
    is_doubtful: bool,
    /// The message of the last failed request.
    pub(super) failure: Option<String>,
    /// Whether other credentials were tried.
    pub(super) has_refreshed: bool,
}

impl Patience {
    pub(super) fn new(limit: Limit) -> Self {
        let (watch, pause) = (Stopwatch::default(), FIRST_PAUSE);
        Self { limit, watch, pause, num_wrong: 0, is_doubtful: false, failure: None, has_refreshed: false }
    }

    /// Returns the initial patience, given what is known about the store.
    pub(super) fn longest(&self) -> Duration {
        if self.is_doubtful { FIRST_CONTACT.min(self.limit.time) } else { self.limit.time }
    }

    /// Returns how much patience is left.
    pub(super) fn left(&self) -> Duration {
        self.limit.time.min(LONGEST).saturating_sub(self.watch.shown())
    }

    /// Awaits `future`, at the cost of patience, for at most `time`.
    pub(super) async fn wait<F: Future>(&mut self, time: Duration, future: F) -> Option<F::Output> {
        self.watch.run_until(self.watch.shown() + time.min(LONGEST), future).await
    }

    /// Records that a request failed. Refuses to continue if retrying is useless.
    pub(super) fn note(&mut self, kind: Kind, is_known: bool, error: Error) -> Result<Error, Error> {
        self.num_wrong += u32::from(kind == Kind::Wrong);
        let is_lost = kind == Kind::Broken || kind == Kind::Stalled;
        self.is_doubtful = is_lost && !is_known && !self.limit.is_given;
        let is_nowhere = self.is_doubtful && self.watch.shown() >= FIRST_CONTACT.min(self.limit.time);
        if self.num_wrong >= MAX_WRONG || is_nowhere {
            return Err(error);
        }
        Ok(error)
    }

    /// Refuses a wait that takes too long.
    pub(super) fn check(&self, wait: Duration, cause: impl FnOnce() -> Error) -> Result<(), Error> {
        if wait <= self.left() { Ok(()) } else { Err(self.end(cause())) }
    }

    /// Returns the error for a read that took too long because of `cause`.
    pub(super) fn end(&self, cause: Error) -> Error {
        let Limit { time, option, .. } = self.limit;
        // Generic wrappers are not repeated.
        let (store, cause) = match cause {
            Error::Generic { store, source } => (store, source),
            other => ("store", other.into()),
        };
        Impatient { limit: time, option, cause }.of(store)
    }

    /// Waits before the next request, after `error`: between the shortest pause and three times the last one.
    pub(super) async fn pause(&mut self, error: Error) -> Result<(), Error> {
        let most = self.pause.saturating_mul(3).min(LONGEST_PAUSE);
        self.pause = FIRST_PAUSE + (most - FIRST_PAUSE).mul_f64(random());
        // No pause goes beyond the end, but leaves the next response as much time as it takes. The last request to a
        // store that never responded is made at the end of its time.
        let most = match self.is_doubtful {
            true => FIRST_CONTACT.saturating_sub(self.watch.shown()),
            false => (self.left() / 2).max(FIRST_PAUSE),
        };
        self.sleep(self.pause.min(most), error).await
    }

    /// Waits before the next request, after a refusal while others are answered: for a first pause, or as long as the
    /// store asked for. The number of concurrent requests affects all of them, not just the one that is refused most
    /// often.
    pub(super) async fn rest(&mut self, asked: Option<Duration>, error: Error) -> Result<(), Error> {
        let time = FIRST_PAUSE.mul_f64(1.0 + 2.0 * random());
        self.sleep(asked.map_or(time, |asked| asked.max(time)), error).await
    }

    async fn sleep(&mut self, time: Duration, error: Error) -> Result<(), Error> {
        self.check(time, || error)?;
        self.watch.run(sleep(time)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(time: Duration) -> Limit {
        Limit { time, option: "retry_for", is_given: true }
    }

    fn error() -> Error {
        Error::Generic { store: "S3", source: "503".into() }
    }

    #[test]
    fn pauses_are_random_and_bounded_and_end_with_the_patience() {
        crate::Io::current().unwrap().block_on(async {
            let mut patience = Patience::new(limit(Duration::from_secs(3600)));
            for _ in 0..3 {
                patience.pause(error()).await.unwrap();
                assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&patience.pause));
            }
            let mut short = Patience::new(limit(Duration::from_millis(50)));
            let ended = short.pause(error()).await.unwrap_err();
            let ended = ended.to_string();
            assert!(ended.contains("503") && ended.matches("Generic").count() == 1, "{ended}");
        });
        assert_ne!(random().to_bits(), random().to_bits());
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random())));
    }

    #[test]
    fn requests_go_on_until_the_end() {
        crate::Io::current().unwrap().block_on(async {
            let mut patience = Patience::new(limit(8 * FIRST_PAUSE));
            // As after many failures.
            patience.pause = LONGEST_PAUSE;
            patience.pause(error()).await.unwrap();
            assert!(patience.left() >= FIRST_PAUSE, "there is time for an answer");
            while patience.pause(error()).await.is_ok() {}
            assert!(patience.left() < FIRST_PAUSE, "{patience:?}");
        });
    }

    #[test]
    fn no_time_is_too_long_for_the_clock() {
        assert!(after(Duration::MAX) > Instant::now());
        crate::Io::current().unwrap().block_on(async {
            let mut patience = Patience::new(limit(Duration::MAX));
            assert_eq!(patience.wait(Duration::MAX, async { 7 }).await, Some(7));
            assert!(patience.check(Duration::from_secs(9), error).is_ok());
        });
    }

    #[test]
    fn it_is_spent_by_what_is_waited_for() {
        crate::Io::current().unwrap().block_on(async {
            let (limit, time) = (Duration::from_secs(60), Duration::from_millis(20));
            let mut patience = Patience::new(self::limit(limit));
            assert_eq!(patience.wait(time, std::future::pending::<()>()).await, None);
            assert_eq!(patience.left(), limit - time);
            assert!(patience.check(limit - time, error).is_ok() && patience.check(limit, error).is_err());
        });
    }

    #[test]
    fn wrong_answers_end_it_and_so_does_a_store_that_never_answered() {
        let mut patience = Patience::new(limit(LONGEST));
        let wrong: Vec<_> = (0..MAX_WRONG).map(|_| patience.note(Kind::Wrong, true, error()).is_ok()).collect();
        assert_eq!(wrong, [true, true, false]);
        let note = |is_given, is_known| {
            // For one that has used up all of its short patience.
            let mut patience = Patience::new(Limit { is_given, ..limit(Duration::ZERO) });
            patience.note(Kind::Broken, is_known, error()).is_ok()
        };
        assert!(!note(false, false));
        assert!(note(true, false) && note(false, true));
    }
}
