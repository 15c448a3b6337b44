//! A pure state machine for the pace: it is told what happened, and says which requests may go.

use std::time::Duration;

use tokio::time::Instant;

use crate::source::recover::patience::LONGEST;
use crate::source::recover::trouble::Kind;

/// Times between a refusal and the next probe, initial and maximum, to which up to a quarter is added.
pub(super) const FIRST_PROBE: Duration = Duration::from_millis(200);
const LATER_PROBE: Duration = Duration::from_secs(1);

/// Concurrent requests after an answered probe, and the number from which none are held back any more.
const FIRST_FOLLOWERS: usize = 2;
const ALL_FOLLOWERS: usize = 32;

/// Above a number that was once too many, this many responses from all followers allow one more.
const SLOW_ROUNDS: usize = 4;

/// Consecutive refused followers, without a response in between, after which all wait.
pub(super) const MOST_REFUSED: u32 = 3;

/// Whether requests go, wait, or follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    Held {
        until: Instant,
        pause: Duration,
        is_probed: bool,
        ceiling: Option<usize>,
    },
    /// Includes those that were refused and wait alone.
    Following {
        allowed: usize,
        num_under_way: usize,
        num_refused: u32,
        /// Half of a number that was too many for a store that lets requests time out: above it, growth is slow.
        ceiling: Option<usize>,
        /// Responses since the last increase above it.
        num_answered: usize,
    },
}

/// The decision for a request that wants to go.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Go(Role),
    /// Wait until then, or until something changes.
    Wait(Option<Instant>),
    /// Wait for a turn: responses to others allow it.
    Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Free,
    Probe,
    Follower,
}

impl Stage {
    pub(super) fn decide(&mut self, now: Instant) -> Decision {
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

    /// Records that a request of `role` was refused; returns whether it waits alone and keeps its slot.
    pub(super) fn refused(
        &mut self,
        role: Role,
        kind: Kind,
        now: Instant,
        retry_after: Option<Duration>,
        random: f64,
    ) -> bool {
        let hold = |pause: Duration, ceiling: Option<usize>| {
            let wait = retry_after.unwrap_or(pause).max(pause.mul_f64(1.0 + random / 4.0));
            Self::Held { until: now + wait.min(LONGEST), pause, is_probed: false, ceiling }
        };
        match *self {
            Self::Held { pause, ceiling, .. } if role == Role::Probe => {
                *self = hold((pause * 2).min(LATER_PROBE), ceiling);
            }
            // It was in flight when the others were refused.
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

    /// Records that the store answered a request of `role`.
    pub(super) fn answered(&mut self, role: Role) {
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

    /// Records that a request of `role` ended without a response.
    pub(super) fn given_up(&mut self, role: Role, now: Instant) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_goes_ahead_and_the_others_follow_its_answer() {
        let (now, mut stage) = (Instant::now(), Stage::Open);
        assert_eq!(stage.decide(now), Decision::Go(Role::Free));
        stage.refused(Role::Free, Kind::Throttled, now, None, 0.0);
        // Requests already in flight are refused, too, or answered: neither changes anything.
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
        // The end of its wait then changes nothing for the others.
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
        // An unanswered probe forgets nothing.
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

    /// Returns how many of 64 concurrent requests, taking 20 ms each, are answered in ten seconds by a store that
    /// refuses every `refused`th; those that wait alone wait for 200 ms.
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
}
