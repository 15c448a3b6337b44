//! Decides when a request is late, by the durations of nearly all of its kind, and how many may be hedged.
//!
//! A request that takes far longer than nearly all of its kind has probably met a sick machine or a lost packet. It is
//! made a second time, and the first response wins. A budget bounds the cost: a fraction of all requests and of all
//! bytes. If every request is slow, nothing is gained, and the budget is soon spent.

use std::time::Duration;

/// Upper size bounds of the classes of requests; larger ones belong to the last class.
const CLASSES: [u64; 4] = [64 << 10, 512 << 10, 2 << 20, 5 << 20];

/// Minimum of requests of a class before anything is late.
const LEAST_SAMPLES: u32 = 64;

/// Number of samples after which half of them are forgotten, since stores change.
const MOST_SAMPLES: u32 = 1024;

/// The fraction of a class's requests that are not slow.
const QUANTILE: f64 = 0.95;

/// A request is late if it takes this many times longer than those.
const FACTOR: u32 = 2;

/// Shorter times are due to schedulers, not stores.
const LEAST_FIRST_BYTE: Duration = Duration::from_millis(20);
const LEAST_BODY: Duration = Duration::from_millis(100);

/// The fraction of requests and bytes that may be requested twice, and how much of it may be saved up.
const PART: f64 = 0.05;
const MOST_SAVED_REQUESTS: f64 = 8.0;
const MOST_SAVED_BYTES: f64 = 64.0 * 1024.0 * 1024.0;

/// Sample counts by size: each bucket is twice as wide as the last but one.
#[derive(Debug, Clone)]
struct Histogram {
    counts: [u32; 64],
    total: u32,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; 64], total: 0 }
    }
}

impl Histogram {
    fn add(&mut self, sample: Duration) {
        let micros = sample.as_micros().max(1) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of 128 bits; clamped")]
        let bucket = (micros.log2() * 2.0) as usize;
        self.counts[bucket.min(63)] += 1;
        self.total += 1;
        if self.total >= MOST_SAMPLES {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// Returns a time that this fraction of the samples stayed below, once there are enough.
    fn quantile(&self, part: f64) -> Option<Duration> {
        if self.total < LEAST_SAMPLES {
            return None;
        }
        let (wanted, mut seen) = (f64::from(self.total) * part, 0.0);
        let bucket = self.counts.iter().position(|&count| {
            seen += f64::from(count);
            seen >= wanted
        });
        let bound = 2f64.powf((bucket.unwrap_or(63) + 1) as f64 / 2.0);
        Some(Duration::from_secs_f64(bound / 1e6))
    }
}

/// Durations of one class of requests.
#[derive(Debug, Default)]
struct Class {
    first_byte: Histogram,
    body: Histogram,
}

/// Durations of requests to one store, and what is left of the budget.
#[derive(Debug, Default)]
pub(in crate::source) struct Tail {
    classes: [Class; CLASSES.len() + 1],
    saved_requests: f64,
    saved_bytes: f64,
}

impl Tail {
    fn class(&mut self, num_bytes: u64) -> &mut Class {
        &mut self.classes[CLASSES.partition_point(|&bound| bound < num_bytes)]
    }

    /// Records how long the beginning of a response took, or has not come.
    pub(super) fn began(&mut self, num_bytes: u64, first_byte: Duration) {
        self.class(num_bytes).first_byte.add(first_byte);
        self.saved_requests = (self.saved_requests + PART).min(MOST_SAVED_REQUESTS);
    }

    /// Records how long a body took, or has not ended.
    pub(super) fn ended(&mut self, num_bytes: u64, body: Duration) {
        self.class(num_bytes).body.add(body);
        self.saved_bytes = (self.saved_bytes + PART * num_bytes as f64).min(MOST_SAVED_BYTES);
    }

    /// Returns the time after which the beginning of a response is late.
    pub(super) fn late_first_byte(&mut self, num_bytes: u64) -> Option<Duration> {
        let usual = self.class(num_bytes).first_byte.quantile(QUANTILE)?;
        Some((usual * FACTOR).max(LEAST_FIRST_BYTE))
    }

    /// Returns the time after which the end of a body is late.
    pub(super) fn late_body(&mut self, num_bytes: u64) -> Option<Duration> {
        let usual = self.class(num_bytes).body.quantile(QUANTILE)?;
        Some((usual * FACTOR).max(LEAST_BODY))
    }

    /// Spends one request and `num_bytes`, if the budget has them.
    pub(super) fn spend(&mut self, num_bytes: u64) -> bool {
        let can = self.saved_requests >= 1.0 && self.saved_bytes >= num_bytes as f64;
        if can {
            self.saved_requests -= 1.0;
            self.saved_bytes -= num_bytes as f64;
        }
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn seen(num_bytes: u64, times: impl IntoIterator<Item = Duration>) -> Tail {
        let mut tail = Tail::default();
        for time in times {
            tail.began(num_bytes, time);
            tail.ended(num_bytes, time);
        }
        tail
    }

    #[test]
    fn what_few_requests_take_is_not_what_is_usual() {
        let mut tail = seen(1 << 20, (0..200).map(|n| if n % 100 == 7 { 3000 * MS } else { 30 * MS }));
        let late = tail.late_first_byte(1 << 20).unwrap();
        assert!(60 * MS <= late && late <= 100 * MS, "{late:?}");
        assert!(tail.late_body(1 << 20).unwrap() >= LEAST_BODY);
        assert_eq!(tail.late_first_byte(1 << 10), None, "of another kind nothing is known");
    }

    #[test]
    fn nothing_is_late_before_enough_is_known_nor_within_a_moment() {
        assert_eq!(seen(10, vec![MS; 63]).late_first_byte(10), None);
        assert_eq!(seen(10, vec![MS; 64]).late_first_byte(10), Some(LEAST_FIRST_BYTE));
    }

    #[test]
    fn a_store_that_becomes_slow_as_a_whole_is_not_late_for_long() {
        let mut tail = seen(10, vec![10 * MS; 1000]);
        for _ in 0..500 {
            tail.began(10, 500 * MS);
        }
        assert!(tail.late_first_byte(10).unwrap() > 500 * MS);
    }

    #[test]
    fn a_part_of_requests_and_bytes_may_be_asked_for_twice() {
        let mut tail = seen(1 << 20, vec![MS; 100]);
        let spent = (0..100).filter(|_| tail.spend(1 << 20)).count();
        assert!((4..=5).contains(&spent), "{spent}");
        assert!(!tail.spend(0));
        let mut idle = seen(1 << 20, vec![MS; 100_000]);
        assert!((0..1000).filter(|_| idle.spend(0)).count() <= 8, "nothing is saved up for ever");
    }

    #[test]
    fn times_of_any_size_have_a_place() {
        let mut tail = seen(u64::MAX, [Duration::ZERO, Duration::MAX, Duration::from_secs(1 << 40)]);
        assert_eq!(tail.late_first_byte(u64::MAX), None);
    }
}
