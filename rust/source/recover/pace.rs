//! When requests to one store may go: at once, or all together later.
//!
//! A store that says that there are too many requests (429, 503) is left alone by everybody: for as long as it asks, or
//! for a moment. Then one request goes ahead, the probe. If it is refused, too, another one goes later, one a second at most;
//! if it is answered, the others follow, two at first, and one more with each answer, until none is held back. One of those
//! that is refused again halves their number, and waits alone: a store may refuse a part of all requests for ever, and
//! answer the others. Several in a row, and all are held back again.
//!
//! A store may answer one request after another, and leave those without an answer that come last in its row until
//! their time is up. Asked for again at once they only make the row longer. So it is held for a refusal, too, when many
//! requests run out of time without an answer between them.
//! How many then run beside each other is the [limiter](crate::source::limiter)'s to say.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::Error;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::patience::{LONGEST, Patience, random};
use super::trouble::{Kind, Trouble};

/// Times between a refusal and the next probe, at first and at last, to which up to a quarter is added.
const FIRST_PROBE: Duration = Duration::from_millis(200);
const LATER_PROBE: Duration = Duration::from_secs(1);

/// Requests that follow an answered probe at first, and those beside each other when none is held back any more.
const FIRST_FOLLOWERS: usize = 2;
const ALL_FOLLOWERS: usize = 32;

/// Beyond what was too many once, it takes so many answers of all followers until there is one more of them.
const SLOW_ROUNDS: usize = 4;

/// Followers that are refused one after another, without an answer between them, before all wait.
const MOST_REFUSED: u32 = 3;

/// Requests that run out of time one after another, without an answer between them, before all wait: this part of those
/// under way, and so many at least. A few lose their way in a network, or meet a sick machine.
const MOST_STALLED_PART: usize = 4;
const MOST_STALLED: usize = 3;

/// So long after a refusal nothing is asked for twice.
const CALM: Duration = Duration::from_secs(10);

/// The pace of the requests to one store.
#[derive(Debug)]
pub(in crate::source) struct Pace {
    is_open: AtomicBool,
    /// Requests that ran out of time since the last answer.
    num_stalled: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Told to those that never were refused themselves.
    said: String,
    kind: Kind,
    refused_at: Option<Instant>,
}

/// A pure state machine: it is told what happened, and says who may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Held {
        until: Instant,
        pause: Duration,
        is_probed: bool,
        ceiling: Option<usize>,
    },
    /// Those that were refused and wait alone are under way.
    Following {
        allowed: usize,
        num_under_way: usize,
        num_refused: u32,
        /// So many were too many for a store that leaves requests without an answer, halved: beyond it they grow slowly.
        ceiling: Option<usize>,
        /// Answers since one more was allowed beyond it.
        num_answered: usize,
    },
}

/// What a request is told that wants to go.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Go(Role),
    /// Not before then, or before something changes.
    Wait(Option<Instant>),
    /// After others, whose answers let it go.
    Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Free,
    Probe,
    Follower,
}

impl Stage {
    fn decide(&mut self, now: Instant) -> Decision {
        match self {
            Self::Open => Decision::Go(Role::Free),
            Self::Held { is_probed: true, .. } => Decision::Wait(None),
            Self::Held { until, .. } if now < *until => Decision::Wait(Some(*until)),
            Self::Held { is_probed, .. } => {
                *is_probed = true;
                Decision::Go(Role::Probe)
            }
            Self::Following { allowed, num_under_way, .. } if *num_under_way < *allowed => {
                *num_under_way += 1;
                Decision::Go(Role::Follower)
            }
            Self::Following { .. } => Decision::Turn,
        }
    }

    /// Takes in that a request of `role` was refused; returns whether it waits alone, and nobody goes in its place.
    fn refused(&mut self, role: Role, kind: Kind, now: Instant, retry_after: Option<Duration>, random: f64) -> bool {
        let hold = |pause: Duration, ceiling: Option<usize>| {
            let wait = retry_after.unwrap_or(pause).max(pause.mul_f64(1.0 + random / 4.0));
            Self::Held { until: now + wait.min(LONGEST), pause, is_probed: false, ceiling }
        };
        match *self {
            Self::Held { pause, ceiling, .. } if role == Role::Probe => {
                *self = hold((pause * 2).min(LATER_PROBE), ceiling);
            }
            // It was under way when the others were refused.
            Self::Held { until, pause, is_probed, ceiling } => {
                let asked = retry_after.map_or(until, |wait| until.max(now + wait.min(LONGEST)));
                *self = Self::Held { until: asked, pause, is_probed, ceiling };
            }
            Self::Following { allowed, .. } if kind == Kind::Stalled => {
                *self = hold(FIRST_PROBE, Some((allowed / 2).max(1)));
            }
            Self::Following { allowed, num_under_way, num_refused, ceiling, num_answered }
                if role == Role::Follower && num_refused + 1 < MOST_REFUSED =>
            {
                let (allowed, num_refused) = ((allowed / 2).max(1), num_refused + 1);
                *self = Self::Following { allowed, num_under_way, num_refused, ceiling, num_answered };
                return true;
            }
            Self::Open | Self::Following { .. } => *self = hold(FIRST_PROBE, None),
        }
        false
    }

    /// Takes in that the store answered a request of `role`.
    fn answered(&mut self, role: Role) {
        match self {
            Self::Held { ceiling, .. } if role == Role::Probe => {
                let allowed = ceiling.map_or(FIRST_FOLLOWERS, |ceiling| ceiling.min(FIRST_FOLLOWERS));
                let (num_refused, num_answered, ceiling) = (0, 0, *ceiling);
                *self = Self::Following { allowed, num_under_way: 0, num_refused, ceiling, num_answered };
            }
            Self::Following { allowed, num_under_way, num_refused, ceiling, num_answered }
                if role == Role::Follower =>
            {
                (*num_under_way, *num_refused) = (num_under_way.saturating_sub(1), 0);
                *num_answered += 1;
                if ceiling.is_none_or(|ceiling| *allowed < ceiling) || *num_answered >= *allowed * SLOW_ROUNDS {
                    (*allowed, *num_answered) = (*allowed + 1, 0);
                }
                if *allowed >= ALL_FOLLOWERS {
                    *self = Self::Open;
                }
            }
            _ => {}
        }
    }

    /// Takes in that a request of `role` ended without an answer.
    fn given_up(&mut self, role: Role, now: Instant) {
        match self {
            Self::Held { until, pause, is_probed, .. } if role == Role::Probe => {
                (*until, *is_probed) = (now + *pause, false);
            }
            Self::Following { num_under_way, .. } if role == Role::Follower => {
                *num_under_way = num_under_way.saturating_sub(1);
            }
            _ => {}
        }
    }
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
            // From here on: what changes after the decision is not missed.
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
                // The store is answering, and has not been asked for this one.
                Decision::Turn => {
                    changed.await;
                    continue;
                }
            };
            if patience.wait(time, changed).await.is_none() && patience.left().is_zero() {
                return Err(patience.end(self.refusal()));
            }
        }
    }

    /// Returns leave for a request that has gone already.
    pub(super) fn gone(&self) -> Pass<'_> {
        Pass { pace: self, role: Role::Free }
    }

    /// Returns whether the store has refused nothing for a while.
    pub(super) fn is_calm(&self) -> bool {
        let state = self.lock();
        state.stage == Stage::Open && state.refused_at.is_none_or(|at| at.elapsed() >= CALM)
    }

    /// Returns why those wait that were not refused themselves.
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

/// Leave to make one request; dropped without a word, it is as if the request had not been made.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pace: &'a Pace,
    role: Role,
}

/// What becomes of a request that ran out of time.
#[derive(Debug)]
pub(super) enum Stalled {
    /// It is one of few: it is made again, as after any failure.
    Ordinary,
    /// There are too many under way: all are held back from now on.
    TooMany,
    /// All are held back already.
    Held,
}

impl<'a> Pass<'a> {
    /// Returns whether the request goes ahead to see whether others may follow.
    pub(super) fn is_probe(&self) -> bool {
        self.role == Role::Probe
    }

    /// Notes that the store refused the request because there are too many. Returns the pass if the request is to wait
    /// alone: until it is dropped, nobody goes in its place.
    pub(super) fn refused(self, retry_after: Option<Duration>, said: String) -> Option<Self> {
        self.turned_away(Kind::Throttled, retry_after, said)
    }

    /// Notes that the request ran out of time, one of `num_under_way`. Returns how to go on.
    pub(super) fn stalled(self, num_under_way: usize, said: String) -> Stalled {
        let num_stalled = self.pace.num_stalled.fetch_add(1, Ordering::Relaxed) + 1;
        let most = match self.role {
            // It was under way when the others were held back.
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

    /// Notes that the store answered, whatever it said.
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
    use proptest::prelude::*;

    use super::super::patience::Limit;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn patience(time: Duration) -> Patience {
        Patience::new(Limit { time, option: "retry_for", is_given: true })
    }

    #[test]
    fn one_goes_ahead_and_the_others_follow_its_answer() {
        let (now, mut stage) = (Instant::now(), Stage::Open);
        assert_eq!(stage.decide(now), Decision::Go(Role::Free));
        stage.refused(Role::Free, Kind::Throttled, now, None, 0.0);
        // Those that were under way are refused, too, or answered: neither changes anything.
        stage.refused(Role::Free, Kind::Throttled, now + 10 * MS, None, 0.0);
        stage.answered(Role::Free);
        assert_eq!(stage.decide(now), Decision::Wait(Some(now + FIRST_PROBE)));
        assert_eq!(stage.decide(now + FIRST_PROBE), Decision::Go(Role::Probe));
        assert_eq!(stage.decide(now + 5 * FIRST_PROBE), Decision::Wait(None), "one at a time");
        stage.answered(Role::Probe);
        let goes = |stage: &mut Stage| matches!(stage.decide(now), Decision::Go(Role::Follower));
        assert_eq!([(); 3].map(|()| goes(&mut stage)), [true, true, false]);
        stage.answered(Role::Follower);
        assert_eq!([(); 3].map(|()| goes(&mut stage)), [true, true, false]);
        stage.given_up(Role::Follower, now);
        assert!(goes(&mut stage));
        for _ in 0..ALL_FOLLOWERS {
            stage.answered(Role::Follower);
        }
        assert_eq!(stage, Stage::Open);
    }

    #[test]
    fn a_follower_that_is_refused_waits_alone_and_several_in_a_row_hold_all_back() {
        let (now, num_refused, ceiling) = (Instant::now(), 0, None);
        let following = |allowed, num_under_way, num_refused, num_answered| Stage::Following {
            allowed,
            num_under_way,
            num_refused,
            ceiling,
            num_answered,
        };
        let mut stage = following(8, 8, num_refused, 0);
        assert!(stage.refused(Role::Follower, Kind::Throttled, now, None, 0.0));
        assert_eq!(stage, following(4, 8, 1, 0));
        (0..4).for_each(|_| stage.answered(Role::Follower));
        assert_eq!(stage, following(8, 4, num_refused, 0));
        assert!((1..MOST_REFUSED).all(|_| stage.refused(Role::Follower, Kind::Throttled, now, None, 0.0)));
        assert_eq!(stage.decide(now), Decision::Turn, "those that were refused keep their places");
        assert!(!stage.refused(Role::Follower, Kind::Throttled, now, None, 0.0));
        assert_eq!(stage.decide(now), Decision::Wait(Some(now + FIRST_PROBE)));
        // The end of its wait changes nothing for the others then.
        stage.given_up(Role::Follower, now);
        assert_eq!(stage.decide(now), Decision::Wait(Some(now + FIRST_PROBE)));
    }

    #[test]
    fn a_probe_that_ends_without_an_answer_leaves_its_place_to_another() {
        let (now, mut stage) = (Instant::now(), Stage::Open);
        stage.refused(Role::Free, Kind::Throttled, now, Some(3000 * MS), 0.0);
        assert_eq!(stage.decide(now + 2999 * MS), Decision::Wait(Some(now + 3000 * MS)), "as long as it asks");
        let then = now + 3000 * MS;
        assert_eq!(stage.decide(then), Decision::Go(Role::Probe));
        stage.given_up(Role::Probe, then);
        assert_eq!(stage.decide(then + FIRST_PROBE), Decision::Go(Role::Probe));
    }

    proptest! {
        #[test]
        fn a_storm_sees_a_probe_a_second_at_most_however_many_want_to_go(
            num_waiting in 1usize..500, random in 0.0..1.0f64,
        ) {
            let (start, mut stage, mut num_probes) = (Instant::now(), Stage::Open, 0u32);
            (0..num_waiting).for_each(|_| assert!(!stage.refused(Role::Free, Kind::Throttled, start, None, random)));
            for step in 0..60_000 {
                let now = start + MS * step;
                for _ in 0..num_waiting.min(5) {
                    if stage.decide(now) == Decision::Go(Role::Probe) {
                        num_probes += 1;
                        assert!(!stage.refused(Role::Probe, Kind::Throttled, now + 5 * MS, None, random));
                    }
                }
            }
            prop_assert!((45..=62).contains(&num_probes), "{num_probes}");
        }
    }

    #[test]
    fn what_was_too_many_is_come_back_to_by_halves_and_then_slowly() {
        let (now, mut stage) = (Instant::now(), Stage::Open);
        let allowed = |stage: &Stage| if let Stage::Following { allowed, .. } = stage { *allowed } else { 0 };
        stage.refused(Role::Free, Kind::Stalled, now, None, 0.0);
        let probe = |stage: &mut Stage| {
            assert_eq!(stage.decide(now + 2 * LATER_PROBE), Decision::Go(Role::Probe));
            stage.answered(Role::Probe);
        };
        probe(&mut stage);
        (0..6).for_each(|_| stage.answered(Role::Follower));
        assert_eq!(allowed(&stage), 8, "nothing is known");
        assert!(!stage.refused(Role::Follower, Kind::Stalled, now, None, 0.0));
        // A probe that is not answered forgets nothing.
        assert_eq!(stage.decide(now + LATER_PROBE), Decision::Go(Role::Probe));
        stage.refused(Role::Probe, Kind::Stalled, now, None, 0.0);
        probe(&mut stage);
        let after: Vec<_> = (0..19)
            .map(|_| {
                stage.answered(Role::Follower);
                allowed(&stage)
            })
            .collect();
        assert_eq!(after, [[3, 4].as_slice(), &[4; 15], &[5; 2]].concat());
    }

    /// Returns how many of 64 requests at once, of 20 ms each, are answered in ten seconds by a store that refuses every
    /// `refused`th; those that wait alone wait for 200 ms.
    fn answered_in_ten_seconds(refused: u32) -> u32 {
        let (start, mut stage) = (Instant::now(), Stage::Open);
        let (mut num_asked, mut num_answered, mut num_waiting) = (0, 0, 64);
        let mut ends: Vec<(u32, Role, bool)> = Vec::new();
        for step in 0..10_000 {
            let now = start + MS * step;
            let (ended, rest): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(end, ..)| *end <= step);
            ends = rest;
            for (_, role, was_alone) in ended {
                num_waiting += 1;
                if was_alone {
                    stage.given_up(role, now);
                    continue;
                }
                num_asked += 1;
                if num_asked % refused > 0 {
                    num_answered += 1;
                    stage.answered(role);
                } else if stage.refused(role, Kind::Throttled, now, None, 0.0) {
                    num_waiting -= 1;
                    ends.push((step + 200, role, true));
                }
            }
            while num_waiting > 0
                && let Decision::Go(role) = stage.decide(now)
            {
                num_waiting -= 1;
                ends.push((step + 20, role, false));
            }
        }
        num_answered
    }

    #[test]
    fn a_store_that_refuses_a_part_of_all_requests_for_ever_is_read_on() {
        let (tenth, half) = (answered_in_ten_seconds(10), answered_in_ten_seconds(2));
        assert!(tenth > 700 && half > 40, "{tenth}, {half}");
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
            let ended = pace.enter(&mut patience(FIRST_PROBE / 2)).await.unwrap_err();
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
    fn who_waits_for_others_to_be_answered_loses_no_patience() {
        crate::Io::current().unwrap().block_on(async {
            let pace = Pace::default();
            let mut patient = patience(Duration::from_secs(1));
            pace.gone().refused(None, "503".into());
            pace.enter(&mut patient).await.unwrap().answered();
            let followers: Vec<_> = [pace.enter(&mut patient).await, pace.enter(&mut patient).await].into();
            let mut short = patience(50 * MS);
            let (entered, ()) = tokio::join!(pace.enter(&mut short), async {
                tokio::time::sleep(100 * MS).await;
                followers.into_iter().for_each(|pass| pass.unwrap().answered());
            });
            assert!(entered.is_ok());
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
