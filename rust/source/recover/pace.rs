//! Decides when requests to one store may go: at once, or all together later.
//!
//! A store that reports too many requests (429, 503) is left alone by all of them: for as long as it asks, or for a
//! moment. Then one request goes ahead, the probe. If it is refused, too, another one goes later, at most one a second;
//! if it is answered, the others follow, two at first, and one more with each response, until none is held back. If one
//! of those is refused again, their number is halved, and it waits alone: a store may refuse a part of all requests
//! forever, and answer the others. After several in a row, all are held back again.
//!
//! A store may serve requests one after another, and let the last ones in its queue time out. Immediate retries would
//! only lengthen the queue. So it also counts as a refusal when many requests time out without a response in between.
//!
//! How many then run concurrently is decided by the [limiter](crate::source::limiter).

mod stage;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::Error;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::stage::{Decision, Role, Stage};
use super::patience::{Patience, random};
use super::trouble::{Kind, Trouble};

/// Consecutive time-outs, without a response in between, after which all requests wait: this fraction of those in
/// flight, and at least the minimum below. A few get lost in a network, or meet a sick machine.
const MOST_STALLED_PART: usize = 4;
const MOST_STALLED: usize = 3;

/// For this long after a refusal, no request is hedged.
const CALM: Duration = Duration::from_secs(10);

/// The pace of the requests to one store.
#[derive(Debug)]
pub(in crate::source) struct Pace {
    is_open: AtomicBool,
    /// Requests that timed out since the last response.
    num_stalled: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// The reason shown to requests that were not refused themselves.
    said: String,
    kind: Kind,
    refused_at: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        let state = State { stage: Stage::Open, said: String::new(), kind: Kind::Throttled, refused_at: None };
        let (is_open, num_stalled) = (AtomicBool::new(true), AtomicUsize::new(0));
        Self { is_open, num_stalled, state: Mutex::new(state), changed: Notify::new() }
    }
}

impl Pace {
    /// Waits until a request may go.
    pub(super) async fn enter(&self, patience: &mut Patience) -> Result<Pass<'_>, Error> {
        loop {
            if self.is_open.load(Ordering::Acquire) {
                return Ok(Pass { pace: self, role: Role::Free });
            }
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on, changes after the decision are not missed.
            changed.as_mut().enable();
            let now = Instant::now();
            let decision = self.lock().stage.decide(now);
            let time = match decision {
                Decision::Go(role) => return Ok(Pass { pace: self, role }),
                Decision::Wait(Some(until)) => {
                    let time = until - now;
                    patience.check(time, || self.refusal())?;
                    time
                }
                Decision::Wait(None) => patience.left(),
                // The store is responding, just not to this request yet: that costs nothing, as long as it does.
                Decision::Turn => {
                    let watch = patience.watch;
                    let is_changed = patience.wait(patience.left(), changed).await.is_some();
                    patience.watch = watch;
                    if is_changed {
                        continue;
                    }
                    return Err(patience.end(self.refusal()));
                }
            };
            if patience.wait(time, changed).await.is_none() && patience.left().is_zero() {
                return Err(patience.end(self.refusal()));
            }
        }
    }

    /// Returns a pass for a request that was already sent.
    pub(super) fn gone(&self) -> Pass<'_> {
        Pass { pace: self, role: Role::Free }
    }

    /// Returns whether the store has refused nothing for a while.
    pub(super) fn is_calm(&self) -> bool {
        let state = self.lock();
        state.stage == Stage::Open && state.refused_at.is_none_or(|at| at.elapsed() >= CALM)
    }

    /// Returns the reason for requests to wait that were not refused themselves.
    fn refusal(&self) -> Error {
        let state = self.lock();
        Trouble::new(state.kind, state.said.clone()).of("store")
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        self.is_open.store(state.stage == Stage::Open, Ordering::Release);
        drop(state);
        self.changed.notify_waiters();
        changed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission to make one request; if dropped without a report, the request counts as not made.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pace: &'a Pace,
    role: Role,
}

/// The consequence of a request that timed out.
#[derive(Debug)]
pub(super) enum Stalled {
    /// It is one of few: it is retried, as after any failure.
    Ordinary,
    /// There are too many in flight: all are held back from now on.
    TooMany,
    /// All were already held back.
    Held,
}

impl<'a> Pass<'a> {
    /// Returns whether the request goes ahead to see whether others may follow.
    pub(super) fn is_probe(&self) -> bool {
        self.role == Role::Probe
    }

    /// Reports that the store refused the request because there are too many. Returns the pass if the request has to
    /// wait alone: until it is dropped, its slot stays taken.
    pub(super) fn refused(self, retry_after: Option<Duration>, said: String) -> Option<Self> {
        self.turned_away(Kind::Throttled, retry_after, said)
    }

    /// Reports that the request timed out, as one of `num_under_way`. Returns how to proceed.
    pub(super) fn stalled(self, num_under_way: usize, said: String) -> Stalled {
        let num_stalled = self.pace.num_stalled.fetch_add(1, Ordering::Relaxed) + 1;
        let most = match self.role {
            // It was in flight when the others were held back.
            Role::Free if !self.pace.is_open.load(Ordering::Acquire) => return Stalled::Held,
            Role::Free => MOST_STALLED.max(num_under_way / MOST_STALLED_PART),
            Role::Follower => MOST_STALLED,
            Role::Probe => 0,
        };
        if num_stalled < most {
            return Stalled::Ordinary;
        }
        let is_probe = self.is_probe();
        self.turned_away(Kind::Stalled, None, said);
        if is_probe { Stalled::Held } else { Stalled::TooMany }
    }

    fn turned_away(mut self, kind: Kind, retry_after: Option<Duration>, said: String) -> Option<Self> {
        let is_alone = self.pace.change(|state| {
            let now = Instant::now();
            (state.said, state.kind, state.refused_at) = (said, kind, Some(now));
            state.stage.refused(self.role, kind, now, retry_after, random())
        });
        if is_alone {
            return Some(self);
        }
        self.role = Role::Free;
        None
    }

    /// Reports that the store responded, whatever it said.
    pub(super) fn answered(mut self) {
        self.pace.num_stalled.store(0, Ordering::Relaxed);
        let role = std::mem::replace(&mut self.role, Role::Free);
        if role != Role::Free {
            self.pace.change(|state| state.stage.answered(role));
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.role != Role::Free {
            self.pace.change(|state| state.stage.given_up(self.role, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::patience::Limit;
    use super::stage::{FIRST_PROBE, MOST_REFUSED};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn patience(time: Duration) -> Patience {
        Patience::new(Limit { time, option: "retry_for", is_given: true })
    }

    #[test]
    fn everybody_waits_and_patience_ends() {
        crate::Io::current().unwrap().block_on(async {
            let pace = Pace::default();
            let (patient, start) = (|| patience(Duration::from_secs(9)), Instant::now());
            let pass = pace.enter(&mut patient()).await.unwrap();
            assert!(pace.is_calm());
            assert!(pass.refused(None, "503".into()).is_none());
            assert!(!pace.is_calm());
            let enter = async || pace.enter(&mut patient()).await.unwrap().answered();
            tokio::join!(enter(), enter(), enter());
            assert!(start.elapsed() >= FIRST_PROBE);
            let refused = |pass: Pass<'_>| pass.refused(Some(Duration::from_secs(3600)), "503 again".into()).is_some();
            let mut alone = Vec::new();
            for _ in 0..MOST_REFUSED {
                alone.push(refused(pace.enter(&mut patient()).await.unwrap()));
            }
            assert_eq!(alone, [true, true, false]);
            let refused = pace.enter(&mut patience(Duration::from_secs(1))).await.unwrap_err();
            assert!(refused.to_string().contains("503 again"), "{refused}");
        });
    }

    #[test]
    fn many_that_run_out_of_time_hold_all_back_and_a_few_do_not() {
        crate::Io::current().unwrap().block_on(async {
            let pace = Pace::default();
            let stalled = |num_under_way| pace.gone().stalled(num_under_way, "no answer".into());
            for _ in 0..9 {
                assert!((0..15).all(|_| matches!(stalled(64), Stalled::Ordinary)));
                // Others are answered.
                pace.gone().answered();
            }
            assert!((0..15).all(|_| matches!(stalled(64), Stalled::Ordinary)));
            assert!(matches!(stalled(64), Stalled::TooMany) && !pace.is_calm());
            assert!(matches!(stalled(64), Stalled::Held), "it was under way then");
            let ended = pace.enter(&mut patience(MS)).await.unwrap_err();
            assert!(ended.to_string().contains("no answer"), "{ended}");
            let mut patient = patience(Duration::from_secs(9));
            assert!(matches!(pace.enter(&mut patient).await.unwrap().stalled(64, "still".into()), Stalled::Held));
            pace.enter(&mut patient).await.unwrap().answered();
            for expected in [false, false, true] {
                let follower = pace.enter(&mut patient).await.unwrap();
                assert_eq!(matches!(follower.stalled(64, "too many again".into()), Stalled::TooMany), expected);
            }
        });
    }

    #[test]
    fn who_waits_for_others_loses_no_patience_as_long_as_they_are_answered() {
        crate::Io::current().unwrap().block_on(async {
            let pace = Pace::default();
            let mut patient = patience(Duration::from_secs(1));
            pace.gone().refused(None, "503".into());
            pace.enter(&mut patient).await.unwrap().answered();
            let followers: Vec<_> = [pace.enter(&mut patient).await, pace.enter(&mut patient).await].into();
            let mut short = patience(50 * MS);
            let ended = pace.enter(&mut short).await.unwrap_err();
            assert!(ended.to_string().contains("503"), "{ended}");
            let mut long = patience(500 * MS);
            let (entered, ()) = tokio::join!(pace.enter(&mut long), async {
                tokio::time::sleep(100 * MS).await;
                followers.into_iter().for_each(|pass| pass.unwrap().answered());
            });
            assert!(entered.is_ok());
            assert_eq!(long.left(), 500 * MS);
        });
    }

    #[test]
    fn no_time_is_too_long_for_the_clock() {
        crate::Io::current().unwrap().block_on(async {
            let pace = Pace::default();
            let mut patient = patience(Duration::from_secs(1));
            pace.enter(&mut patient).await.unwrap().refused(Some(Duration::MAX), "503".into());
            assert!(pace.enter(&mut patient).await.is_err());
        });
    }
}
