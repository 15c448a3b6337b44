//! How fast to send requests to a Hub: it says so itself, and all requests wait together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until};

use super::trouble;
use crate::source::in_use::InUse;
use crate::source::recover::{Impatient, Kind, Limit, Notes, Stopwatch, Trouble, after, retry_after};

/// Concurrent requests to one Hub.
const MAX_ASKING: usize = 64;

/// After a refusal that does not say how long to wait, and after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A Hub counts whole seconds: zero means less than one.
const LEAST_REFUSED: Duration = Duration::from_millis(500);

/// This process's requests to one Hub.
#[derive(Debug)]
pub(super) struct Pace {
    slots: Semaphore,
    /// No requests before then.
    held_until: Mutex<Option<Instant>>,
}

/// The Hubs that this process is using.
static CURRENT: InUse<String, Pace> = InUse::new();

impl Pace {
    /// Returns what this process's requests to the Hub at `origin` share. After a fork, the child makes its own.
    pub(super) fn current(origin: String) -> Arc<Self> {
        CURRENT.get(origin, || Self { slots: Semaphore::new(MAX_ASKING), held_until: Mutex::new(None) })
    }

    /// Waits until a request may be sent.
    pub(super) async fn enter(&self, patience: &mut Patience) -> object_store::Result<SemaphorePermit<'_>> {
        loop {
            let slot =
                patience.watch.run(self.slots.acquire()).await.map_err(|_| trouble::generic("it is closed".into()))?;
            let Some(until) = self.held_until() else { return Ok(slot) };
            drop(slot);
            patience.check(until - Instant::now(), "the Hub refuses requests (429): there were too many")?;
            patience.watch.run(sleep_until(until)).await;
        }
    }

    /// Holds back all requests for a time.
    pub(super) fn hold(&self, time: Duration) {
        let until = after(time);
        let mut held = self.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(held.map_or(until, |before| before.max(until)));
    }

    /// Records what a response says about the quota.
    pub(super) fn note(&self, headers: &HeaderMap) {
        if let Some(time) = quota_reset(headers) {
            self.hold(time);
        }
    }

    pub(super) fn held_until(&self) -> Option<Instant> {
        let held = self.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        held.filter(|until| *until > Instant::now())
    }
}

/// Returns how long a refusal asks to wait.
pub(super) fn refused_for(headers: &HeaderMap) -> Option<Duration> {
    let time = retry_after(headers).or_else(|| quota_reset(headers));
    time.map(|time| time.max(LEAST_REFUSED))
}

/// Returns when an exhausted quota is renewed: `RateLimit: "resolvers";r=0;t=17`.
fn quota_reset(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("ratelimit")?.to_str().ok()?;
    let number = |name: &str| {
        let mut parts = text.split(';').filter_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
        parts.next()?.trim().parse::<u64>().ok()
    };
    (number("r") == Some(0)).then(|| number("t").map(Duration::from_secs)).flatten()
}

/// How long one read may be refused and fail.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Limit,
    /// The counts of the read.
    pub(super) notes: Notes,
    /// The time that the read has spent waiting.
    pub(super) watch: Stopwatch,
}

impl Patience {
    pub(super) fn new(limit: Limit, notes: Notes) -> Self {
        Self { limit, notes, watch: Stopwatch::default() }
    }

    fn left(&self) -> Duration {
        self.limit.time.saturating_sub(self.watch.shown())
    }

    /// Refuses a wait that takes too long; `said` is the reason to wait.
    pub(super) fn check(&self, wait: Duration, said: &str) -> object_store::Result<()> {
        if wait > self.left() {
            let cause = Box::new(Trouble::new(Kind::Throttled, said));
            let Limit { time, option, .. } = self.limit;
            return Err(trouble::boxed(Impatient { limit: time, option, cause }));
        }
        Ok(())
    }

    /// Waits before the next of several attempts.
    pub(super) async fn pause(&mut self, num_failed: u32, said: &str) -> object_store::Result<()> {
        // No pause goes beyond the end, but leaves the next response as much time as it takes.
        let time = pause_after(num_failed).min((self.left() / 2).max(FIRST_PAUSE));
        self.check(time, said)?;
        self.watch.run(sleep(time)).await;
        Ok(())
    }
}

/// Returns how long to wait after this many failures.
pub(super) fn pause_after(num_failed: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << num_failed.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let parse = |(name, value): &(&'static str, &'static str)| {
            (reqwest::header::HeaderName::from_static(name), reqwest::header::HeaderValue::from_static(value))
        };
        pairs.iter().map(parse).collect()
    }

    fn patience(time: Duration) -> Patience {
        Patience::new(Limit { time, option: "hf_patience", is_given: true }, Notes::default())
    }

    #[test]
    fn a_refusal_says_how_long() {
        let seconds = |pairs| refused_for(&headers(pairs)).map(|time| time.as_secs_f64());
        assert_eq!(seconds(&[("retry-after", "7")]), Some(7.0));
        assert_eq!(seconds(&[("ratelimit", r#""resolvers";r=0;t=17"#)]), Some(17.0));
        assert_eq!(seconds(&[("ratelimit", r#""api"; r=0; t=0"#)]), Some(0.5));
        assert_eq!(seconds(&[("retry-after", "2"), ("ratelimit", r#""api";r=0;t=17"#)]), Some(2.0));
        assert_eq!(seconds(&[("ratelimit", r#""api";r=12;t=17"#)]), None);
        assert_eq!(seconds(&[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")]), Some(0.5));
        assert_eq!(seconds(&[("retry-after", "soon")]), None);
        assert_eq!(seconds(&[("ratelimit", "nonsense")]), None);
    }

    #[test]
    fn everybody_is_held_and_patience_ends() {
        crate::Io::current().unwrap().block_on(async {
            let pace = Pace::current("https://held.test".into());
            let start = Instant::now();
            pace.hold(Duration::from_millis(60));
            let patient = || patience(Duration::from_secs(9));
            let (mut one, mut other) = (patient(), patient());
            let (first, second) = tokio::join!(pace.enter(&mut one), pace.enter(&mut other));
            assert!(first.is_ok() && second.is_ok() && start.elapsed() >= Duration::from_millis(60));
            pace.hold(Duration::from_secs(3600));
            let refused = pace.enter(&mut patience(Duration::from_secs(1))).await.unwrap_err();
            assert!(refused.to_string().contains("429"), "{refused}");
        });
    }

    #[test]
    fn no_time_is_too_long_for_the_clock() {
        crate::Io::current().unwrap().block_on(async {
            let forever = refused_for(&headers(&[("retry-after", "18446744073709551615")])).unwrap();
            let pace = Pace::current("https://forever.test".into());
            pace.hold(forever);
            assert!(pace.enter(&mut patience(Duration::from_secs(1))).await.is_err());
            assert!(patience(Duration::MAX).check(Duration::from_secs(9), "").is_ok());
        });
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        assert_eq!(pause_after(1), FIRST_PAUSE);
        assert_eq!(pause_after(2), 2 * FIRST_PAUSE);
        assert_eq!(pause_after(40), LONGEST_PAUSE);
    }
}
