//! Tests the limiter against simulated stores: it finds what they can deliver, without overloading them.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::config;

/// A simulated store with various limits.
#[derive(Debug, Clone, Copy)]
struct Simulated {
    first_byte: f64,
    request_bytes: u64,
    /// Bytes per second of one connection, and of all together.
    connection_rate: f64,
    total_rate: f64,
    /// Requests per second above which it refuses.
    max_requests_per_second: f64,
}

/// The result of a simulation.
#[derive(Debug)]
struct Outcome {
    /// Bytes per second in the second half.
    rate: f64,
    /// The average limit in the second half.
    mean_limit: f64,
    limit: usize,
    /// The fraction of requests refused in the second half.
    refused: f64,
}

/// A request in flight: seconds until its first byte, and the bytes after that. A refused one ends at its first byte.
struct Request {
    started: f64,
    waits: f64,
    num_bytes: u64,
    bytes: f64,
    num_refused: u32,
}

/// Returns a factor between 0.7 and 1.3, in thousandths.
fn around(rng: &mut ChaCha8Rng) -> u32 {
    700 + rng.next_u32() % 601
}

impl Simulated {
    const SLOW: Self = Self {
        first_byte: 0.05,
        request_bytes: 8_000_000,
        connection_rate: 50e6,
        total_rate: 1e9,
        max_requests_per_second: f64::INFINITY,
    };

    /// Returns the bytes per second with `limit` requests always in flight.
    fn rate_of(&self, limit: usize) -> f64 {
        let request_bytes = self.request_bytes as f64;
        let each = request_bytes / (self.first_byte + request_bytes / self.connection_rate);
        (each * limit as f64).min(self.total_rate).min(self.max_requests_per_second * request_bytes)
    }

    /// Runs `limiter` for `seconds` with work for as many requests as it allows.
    fn run(&self, limiter: &mut Limiter, seconds: f64) -> Outcome {
        let step = (self.first_byte / 20.0).clamp(0.0005, 0.005);
        let (mut now, mut tokens) = (0.0, 0.0);
        let mut under_way: Vec<Request> = Vec::new();
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let (mut bytes, mut limits, mut num_steps, mut num_refused, mut num_asked) = (0.0, 0.0, 0.0, 0.0, 0.0);
        while now < seconds {
            let is_counted = now >= seconds / 2.0;
            while under_way.len() < limiter.limit() {
                let waits = self.first_byte * f64::from(around(&mut rng)) / 1000.0;
                let num_bytes = self.request_bytes * u64::from(around(&mut rng)) / 1000;
                under_way.push(Request { started: now, waits, num_bytes, bytes: num_bytes as f64, num_refused: 0 });
            }
            now += step;
            tokens = (tokens + step * self.max_requests_per_second).min(self.max_requests_per_second);
            let num_sending = under_way.iter().filter(|request| request.waits <= 0.0).count();
            let rate = self.connection_rate.min(self.total_rate / num_sending.max(1) as f64);
            let num_under_way = under_way.len();
            let mut still = Vec::new();
            for mut request in std::mem::take(&mut under_way) {
                let was_waiting = request.waits > 0.0;
                if was_waiting {
                    request.waits -= step;
                } else {
                    request.bytes -= rate * step;
                }
                let begins = was_waiting && request.waits <= 0.0;
                num_asked += f64::from(begins && is_counted);
                if begins && tokens < 1.0 {
                    limiter.throttled(Duration::from_secs_f64(now));
                    num_refused += f64::from(is_counted);
                    request.num_refused += 1;
                    request.waits = self.first_byte + 0.1 * f64::from(1 << request.num_refused.min(6));
                } else if begins {
                    tokens -= 1.0;
                }
                if request.waits <= 0.0 && request.bytes <= 0.0 {
                    bytes += if is_counted { request.num_bytes as f64 } else { 0.0 };
                    let elapsed = Duration::from_secs_f64(now - request.started);
                    let num_bytes = request.num_bytes;
                    let ended = Ended { num_bytes, elapsed, num_under_way, is_crowded: true };
                    limiter.finished(Duration::from_secs_f64(now), ended);
                } else {
                    still.push(request);
                }
            }
            under_way = still;
            limits += if is_counted { limiter.limit() as f64 } else { 0.0 };
            num_steps += f64::from(is_counted);
        }
        Outcome {
            rate: bytes / (seconds / 2.0),
            mean_limit: limits / num_steps,
            limit: limiter.limit(),
            refused: num_refused / f64::max(num_asked, 1.0),
        }
    }
}

fn limiter() -> Limiter {
    Limiter::new(config::REQUESTS_IN_FLIGHT, config::LEAST_REQUESTS_IN_FLIGHT..=config::MAX_REQUESTS_IN_FLIGHT)
}

#[test]
fn a_store_that_gives_more_for_more_requests_gets_them() {
    let store = Simulated { total_rate: f64::INFINITY, ..Simulated::SLOW };
    let outcome = store.run(&mut limiter(), 30.0);
    assert_eq!(outcome.limit, config::MAX_REQUESTS_IN_FLIGHT, "{outcome:?}");
}

#[test]
fn a_network_that_is_full_is_kept_full_with_few_requests() {
    // 26 requests saturate it; it starts with 64.
    let outcome = Simulated::SLOW.run(&mut limiter(), 60.0);
    assert!(outcome.rate > 0.93e9, "{outcome:?}");
    assert!(outcome.mean_limit < 50.0, "{outcome:?}");
}

#[test]
fn a_fast_network_is_filled_by_many_requests() {
    // 262 requests saturate it.
    let outcome = Simulated { total_rate: 10e9, ..Simulated::SLOW }.run(&mut limiter(), 60.0);
    assert!(outcome.rate > 9e9, "{outcome:?}");
}

#[test]
fn a_store_that_refuses_is_asked_less_and_gives_nearly_all_it_can() {
    // 64 concurrent requests are 293 per second.
    let store = Simulated { total_rate: f64::INFINITY, max_requests_per_second: 100.0, ..Simulated::SLOW };
    let outcome = store.run(&mut limiter(), 120.0);
    assert!(outcome.rate > 0.7 * store.rate_of(512), "{outcome:?}");
    assert!(outcome.refused < 0.1, "{outcome:?}");
}

#[test]
fn many_refusals_at_once_are_one_storm() {
    let mut limiter = limiter();
    for millis in 0..400 {
        limiter.throttled(Duration::from_millis(millis));
    }
    assert_eq!(limiter.limit(), config::REQUESTS_IN_FLIGHT / 2);
    for seconds in 1..100 {
        limiter.throttled(Duration::from_secs(seconds));
    }
    assert_eq!(limiter.limit(), config::LEAST_REQUESTS_IN_FLIGHT);
}

#[test]
fn a_store_that_has_recovered_is_asked_for_more_again() {
    let mut limiter = limiter();
    for seconds in 0..10 {
        limiter.throttled(Duration::from_secs(seconds));
    }
    assert_eq!(limiter.limit(), config::LEAST_REQUESTS_IN_FLIGHT);
    // The simulation's clock restarts; the storm is over when it gets there.
    limiter.storm_until = None;
    limiter.window = Window::default();
    let outcome = Simulated::SLOW.run(&mut limiter, 60.0);
    assert!(outcome.limit >= 20, "{outcome:?}");
}

#[test]
fn requests_that_nobody_waits_for_tell_nothing() {
    let mut limiter = limiter();
    for millis in (0..60_000).step_by(10) {
        let elapsed = Duration::from_millis(50);
        let ended = Ended { num_bytes: 1 << 20, elapsed, num_under_way: 64, is_crowded: false };
        limiter.finished(Duration::from_millis(millis), ended);
    }
    assert_eq!(limiter.limit(), config::REQUESTS_IN_FLIGHT);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_the_store_most_of_what_it_gives_is_taken(
        first_byte in 0.005f64..0.15, request_bytes in 100_000u64..16_000_000, connection_rate in 20e6f64..200e6,
        fill in 4.0f64..600.0,
    ) {
        let each = request_bytes as f64 / (first_byte + request_bytes as f64 / connection_rate);
        let store = Simulated {
            first_byte,
            request_bytes,
            connection_rate,
            total_rate: each * fill,
            max_requests_per_second: f64::INFINITY,
        };
        // On a slow network, the initial requests take long to be answered.
        let round = config::REQUESTS_IN_FLIGHT as f64 * request_bytes as f64 / store.total_rate;
        let outcome = store.run(&mut limiter(), f64::max(60.0, 30.0 * round));
        let possible = store.rate_of(config::MAX_REQUESTS_IN_FLIGHT);
        prop_assert!(outcome.rate > 0.7 * possible, "{outcome:?} of {possible}");
        prop_assert!(outcome.mean_limit < fill.max(16.0) * 2.5, "{outcome:?}, {fill} would fill it");
    }

    #[test]
    fn the_bounds_hold_whatever_happens(
        events in prop::collection::vec((0u64..2000, 0u64..1 << 24, 1u64..3000, any::<bool>(), 0usize..60, 0u8..10), 0..400),
    ) {
        let mut limiter = Limiter::new(9, 3..=40);
        let mut now = Duration::ZERO;
        for (wait, num_bytes, elapsed, is_crowded, num_under_way, kind) in events {
            now += Duration::from_millis(wait);
            match kind {
                0 => limiter.throttled(now),
                _ => {
                    let elapsed = Duration::from_millis(elapsed);
                    limiter.finished(now, Ended { num_bytes, elapsed, num_under_way, is_crowded });
                }
            }
            prop_assert!((3..=40).contains(&limiter.limit()));
        }
    }
}
