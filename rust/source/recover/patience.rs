//! How long one read may go on without a byte, and how long it waits between its requests.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use object_store::Error;
use tokio::time::{Instant, sleep_until};

use super::trouble::Kind;

/// Pauses between requests of one read.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A store that has never answered this process is asked so long, unless the user said how long: more likely than not
/// its name is misspelt.
const FIRST_CONTACT: Duration = Duration::from_secs(10);

/// How long a request may be without a byte: to connect, and to be answered. Shorter where the user's patience is.
pub(in crate::source) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(in crate::source) const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// So late no timer is while a process runs.
const AWAY: Duration = Duration::from_secs(1);

/// Wrong answers to one read after which another is not hoped for.
const MAX_WRONG: u32 = 3;

/// A user, a store or a URL may name any time; none is waited for so long.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the moment after some time from now.
pub(in crate::source) fn after(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST)
}

/// Returns a number from 0 to 1, another one each time: requests that failed together are not made again together.
pub(super) fn random() -> f64 {
    // As many bits as a float has.
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// How long a read may go on, and which option says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) struct Limit {
    pub(in crate::source) time: Duration,
    pub(in crate::source) option: &'static str,
    /// Whether it is the user's own.
    pub(in crate::source) is_given: bool,
}

/// A read was refused or failed for longer than it may.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(in crate::source) struct Impatient {
    pub(in crate::source) limit: Duration,
    pub(in crate::source) option: &'static str,
    /// What went wrong last.
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
    since: Instant,
    /// When the request was made that is under way.
    asked: Instant,
    pause: Duration,
    num_failed: u32,
    num_wrong: u32,
    /// Whether other credentials were tried.
    pub(super) has_refreshed: bool,
}

impl Patience {
    /// Begins at `since`, when the read began or had its last byte.
    pub(super) fn new(limit: Limit, since: Instant) -> Self {
        let pause = FIRST_PAUSE;
        Self { limit, since, asked: since, pause, num_failed: 0, num_wrong: 0, has_refreshed: false }
    }

    /// Returns when it ends.
    pub(super) fn until(&self) -> Instant {
        self.since + self.limit.time.min(LONGEST)
    }

    /// Returns whether a request of the read has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.num_failed > 0
    }

    /// Notes that a request is made.
    pub(super) fn asks(&mut self) {
        self.asked = Instant::now();
    }

    /// Begins anew if it is far later than it can be, `expected` at most: this process was stopped, or its machine slept, and
    /// nobody was asked in the meantime. Returns whether it was so.
    pub(super) fn returns(&mut self, expected: Instant) -> bool {
        let now = Instant::now();
        let was_away = now > expected + AWAY;
        if was_away {
            self.since = now;
        }
        was_away
    }

    /// Notes that a request failed. Refuses to go on if that is in vain.
    pub(super) fn note(&mut self, kind: Kind, is_known: bool, error: Error) -> Result<Error, Error> {
        if self.num_failed == 0 {
            // Once only: a user may have set longer time-outs than these.
            self.returns(self.asked + CONNECT_TIMEOUT.min(self.limit.time) + STALL_TIMEOUT.min(self.limit.time));
        }
        self.num_failed += 1;
        self.num_wrong += u32::from(kind == Kind::Wrong);
        let is_lost = kind == Kind::Broken || kind == Kind::Stalled;
        let is_nowhere =
            is_lost && !is_known && !self.limit.is_given && self.since.elapsed() >= FIRST_CONTACT.min(self.limit.time);
        if self.num_wrong >= MAX_WRONG || is_nowhere {
            return Err(error);
        }
        Ok(error)
    }

    /// Refuses a wait that takes too long.
    pub(super) fn check(&self, until: Instant, cause: impl FnOnce() -> Error) -> Result<(), Error> {
        if until <= self.until() { Ok(()) } else { Err(self.end(cause())) }
    }

    /// Returns the error of a read that has taken too long, because of `cause`.
    pub(super) fn end(&self, cause: Error) -> Error {
        let Limit { time, option, .. } = self.limit;
        Impatient { limit: time, option, cause: Box::new(cause) }.of("store")
    }

    /// Waits before the next request, after `error`: for a time between the shortest pause and three times the last one.
    pub(super) async fn pause(&mut self, error: Error) -> Result<(), Error> {
        let most = self.pause.saturating_mul(3).min(LONGEST_PAUSE);
        self.pause = FIRST_PAUSE + (most - FIRST_PAUSE).mul_f64(random());
        let until = after(self.pause);
        self.check(until, || error)?;
        sleep_until(until).await;
        self.returns(until);
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
            let mut patience = Patience::new(limit(Duration::from_secs(3600)), Instant::now());
            for _ in 0..3 {
                patience.pause(error()).await.unwrap();
                assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&patience.pause));
            }
            let mut short = Patience::new(limit(Duration::from_millis(50)), Instant::now());
            let ended = short.pause(error()).await.unwrap_err();
            assert!(ended.to_string().contains("503"), "{ended}");
        });
        assert_ne!(random().to_bits(), random().to_bits());
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random())));
    }

    #[test]
    fn no_time_is_too_long_for_the_clock() {
        let patience = Patience::new(limit(Duration::MAX), Instant::now());
        assert!(patience.until() > Instant::now() && after(Duration::MAX) > Instant::now());
        assert!(patience.check(after(Duration::from_secs(9)), error).is_ok());
    }

    #[test]
    fn who_was_stopped_begins_anew_and_who_only_waited_does_not() {
        let limit = limit(Duration::from_secs(60));
        let left_after = |seconds: u64| {
            let mut patience = Patience::new(limit, Instant::now() - Duration::from_secs(seconds));
            patience.note(Kind::Stalled, true, error()).unwrap();
            patience.until() - Instant::now()
        };
        // To connect and to be answered takes forty seconds at most; two more show that it did not run.
        assert!(left_after(39) < Duration::from_secs(22));
        assert!(left_after(42) > Duration::from_secs(59));
    }

    #[test]
    fn wrong_answers_end_it_and_so_does_a_store_that_never_answered() {
        let mut patience = Patience::new(limit(LONGEST), Instant::now());
        let wrong: Vec<_> = (0..MAX_WRONG).map(|_| patience.note(Kind::Wrong, true, error()).is_ok()).collect();
        assert_eq!(wrong, [true, true, false]);
        let long_ago = Instant::now() - FIRST_CONTACT;
        let note = |is_given, is_known| {
            let limit = Limit { is_given, ..limit(LONGEST) };
            Patience::new(limit, long_ago).note(Kind::Broken, is_known, error()).is_ok()
        };
        assert!(!note(false, false));
        assert!(note(true, false) && note(false, true));
    }
}
