//! Chooses the number of concurrent requests to a store: as many as make it faster, fewer when it reports too many.
//!
//! A pure state machine. It is told when requests end and what the time is, and returns how many may be in flight. It
//! climbs: requests are judged in windows, each as many as were in flight; after a window in which requests had to
//! wait, it tries more of them, and keeps the increase if enough of it shows in the bytes per second; else it goes
//! back, rests, and tries fewer, which it keeps if the bytes per second do not drop. If a store answers 429 or 503, the
//! number is halved at once, once per storm, and grows only in small steps from then on.
//!
//! Windows in which no request waited say nothing about the store, and change nothing.

use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The shortest window: below, it would measure the system's scheduler rather than the store.
const LEAST_WINDOW: Duration = Duration::from_millis(50);

/// The shortest time between two cuts: requests that were in flight at the first belong to the same storm.
const LEAST_STORM: Duration = Duration::from_millis(500);

/// Minimum of requests that end in a window.
const LEAST_FINISHED: u32 = 16;

/// To keep an increase in requests, the bytes per second must increase by at least this fraction of it, relatively.
const LEAST_GAIN: f64 = 0.4;

/// The fraction of the bytes per second that may be lost by trying fewer requests, over all such steps together.
const MOST_LOSS: f64 = 0.04;

/// How much of the best rate is forgotten with each window, since stores change.
const FORGETTING: f64 = 0.005;

/// Fewer requests than this are not tried without need.
const LEAST_TRIED: usize = 8;

/// Windows without a trial after one that failed, at first and at most.
const RESTS: RangeInclusive<u32> = 4..=64;

/// Chooses a number of requests. See the module's documentation.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: usize,
    bounds: RangeInclusive<usize>,
    window: Window,
    /// Recent mean time of a request, from its start to its last byte.
    mean_seconds: f64,
    trial: Trial,
    /// The direction of the next trial.
    next: Direction,
    num_resting: u32,
    rest: u32,
    /// The best recent rate.
    best: f64,
    pace: Pace,
    /// The end of the storm in which the limit was last cut.
    storm_until: Option<Duration>,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) num_bytes: u64,
    /// From its start to its last byte.
    pub(super) elapsed: Duration,
    /// Requests in flight, including itself.
    pub(super) num_under_way: usize,
    /// Whether others were waiting for it to end.
    pub(super) is_crowded: bool,
}

/// Requests that started after a given time, and have ended.
#[derive(Debug, Default)]
struct Window {
    from: Duration,
    num_finished: u32,
    num_crowded: u32,
    sum_bytes: f64,
    sum_seconds: f64,
    sum_under_way: f64,
}

impl Window {
    fn add(&mut self, ended: &Ended, is_crowded: bool) {
        self.num_finished += 1;
        self.num_crowded += u32::from(is_crowded);
        self.sum_bytes += ended.num_bytes as f64;
        self.sum_seconds += ended.elapsed.as_secs_f64();
        self.sum_under_way += ended.num_under_way as f64;
    }

    /// Returns whether it was the limit that bounded the requests.
    fn was_crowded(&self) -> bool {
        u64::from(self.num_crowded) * 10 >= u64::from(self.num_finished) * 9
    }

    /// Returns the bytes per second of all requests together, by Little's law: the rate of one times their number.
    /// Unlike a count by the clock, this is not disturbed by requests in bursts.
    fn rate(&self) -> f64 {
        let num_under_way = self.sum_under_way / f64::from(self.num_finished.max(1));
        self.sum_bytes / self.sum_seconds.max(1e-9) * num_under_way
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    More,
    Fewer,
}

/// What is being tried, with the values to compare it to.
#[derive(Debug, Clone, Copy)]
enum Trial {
    None,
    More { limit: usize, rate: f64 },
    Fewer { limit: usize },
}

/// The size of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Nothing is known: doubles.
    Searching,
    /// A trial has exceeded the useful number.
    Climbing,
    /// The store has refused requests.
    Careful,
}

impl Limiter {
    /// Starts with `first` requests, and stays within `bounds`.
    pub(super) fn new(first: usize, bounds: RangeInclusive<usize>) -> Self {
        Self {
            limit: first.clamp(*bounds.start(), *bounds.end()),
            bounds,
            window: Window::default(),
            mean_seconds: 0.0,
            trial: Trial::None,
            next: Direction::More,
            num_resting: 0,
            rest: *RESTS.start(),
            best: 0.0,
            pace: Pace::Searching,
            storm_until: None,
        }
    }

    /// Returns how many requests may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Records that a request has ended.
    pub(super) fn finished(&mut self, now: Duration, ended: Ended) {
        let seconds = ended.elapsed.as_secs_f64();
        let weight = if self.mean_seconds == 0.0 { 1.0 } else { 0.125 };
        self.mean_seconds += weight * (seconds - self.mean_seconds);
        if now < self.window.from.saturating_add(ended.elapsed) {
            return; // started before the limit was changed
        }
        self.window.add(&ended, ended.is_crowded && ended.num_under_way >= self.limit);
        let is_long = now.saturating_sub(self.window.from) >= LEAST_WINDOW;
        let least_finished = u32::try_from(self.limit).unwrap_or(u32::MAX).max(LEAST_FINISHED);
        if is_long && self.window.num_finished >= least_finished {
            let window = std::mem::replace(&mut self.window, Window { from: now, ..Window::default() });
            if window.was_crowded() {
                self.judge(window.rate());
            } else {
                self.forget();
            }
        }
    }

    /// Records that the store refused a request because there are too many.
    pub(super) fn throttled(&mut self, now: Duration) {
        if self.storm_until.is_some_and(|until| now < until) {
            return;
        }
        self.forget();
        self.set(self.limit / 2);
        self.pace = Pace::Careful;
        self.best = 0.0;
        self.num_resting = self.rest;
        let storm = Duration::try_from_secs_f64(self.mean_seconds).unwrap_or_default().max(LEAST_STORM);
        self.storm_until = Some(now.saturating_add(storm));
        self.window = Window { from: now.saturating_add(storm), ..Window::default() };
    }

    /// Decides by the bytes per second of a crowded window.
    fn judge(&mut self, rate: f64) {
        self.best = (self.best * (1.0 - FORGETTING)).max(rate);
        match self.trial {
            Trial::None if self.num_resting > 0 => self.num_resting -= 1,
            Trial::None => self.start_trial(rate),
            Trial::More { limit, rate: before } => {
                if is_worth_it(limit, before, self.limit, rate) {
                    self.rest = *RESTS.start();
                    self.try_more(rate);
                } else {
                    self.give_up(limit, Direction::Fewer);
                }
            }
            Trial::Fewer { limit } => {
                if rate >= self.best * (1.0 - MOST_LOSS) {
                    self.try_fewer();
                } else {
                    self.give_up(limit, Direction::More);
                }
            }
        }
    }

    fn start_trial(&mut self, rate: f64) {
        match self.next {
            Direction::More => self.try_more(rate),
            Direction::Fewer => self.try_fewer(),
        }
    }

    fn try_more(&mut self, rate: f64) {
        let limit = self.limit;
        let step = match self.pace {
            Pace::Searching => limit,
            Pace::Climbing => limit / 4,
            Pace::Careful => limit / 8,
        };
        self.set(limit + step.max(1));
        self.next = Direction::Fewer;
        self.trial = if self.limit > limit { Trial::More { limit, rate } } else { Trial::None };
    }

    fn try_fewer(&mut self) {
        let limit = self.limit;
        let fewer = limit - limit / 4;
        self.next = Direction::More;
        self.trial = Trial::None;
        if fewer >= LEAST_TRIED && fewer < limit {
            self.set(fewer);
            if self.limit < limit {
                self.trial = Trial::Fewer { limit };
            }
        }
    }

    /// Goes back to `limit`, and tries nothing for a while; twice as long as the last time.
    fn give_up(&mut self, limit: usize, next: Direction) {
        self.set(limit);
        self.trial = Trial::None;
        self.next = next;
        self.num_resting = self.rest;
        self.rest = (self.rest * 2).min(*RESTS.end());
        if self.pace == Pace::Searching {
            self.pace = Pace::Climbing;
        }
    }

    /// Ends a trial that cannot be judged.
    fn forget(&mut self) {
        if let Trial::More { limit, .. } | Trial::Fewer { limit } = self.trial {
            self.set(limit);
        }
        self.trial = Trial::None;
    }

    fn set(&mut self, limit: usize) {
        self.limit = limit.clamp(*self.bounds.start(), *self.bounds.end());
    }
}

/// Returns whether enough of the step from `limit` to `more` requests shows in the rates.
fn is_worth_it(limit: usize, rate: f64, more: usize, new_rate: f64) -> bool {
    let growth = more as f64 / limit.max(1) as f64 - 1.0;
    new_rate / rate.max(1.0) - 1.0 >= LEAST_GAIN * growth
}
