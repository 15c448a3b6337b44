//! Measures a store: its time to the first byte, and its speed from then on.

use std::time::Duration;

use super::preset::Preset;

/// Minimum of samples to report a value.
const LEAST_SAMPLES: u32 = 8;

/// Smaller bodies come with the first packet, and say nothing about speed.
const LEAST_TIMED_BYTES: u64 = 256 << 10;

/// The weight of a sample, once there are many.
const WEIGHT: f64 = 1.0 / 16.0;

/// A sample counts for at most this many times the known value.
const MAX_OUTLIER: f64 = 4.0;

/// A number that follows its samples without jumping.
#[derive(Debug, Clone, Copy, Default)]
struct Smoothed {
    value: f64,
    num_samples: u32,
}

impl Smoothed {
    fn note(&mut self, sample: f64) {
        let sample = if self.num_samples < LEAST_SAMPLES { sample } else { sample.min(self.value * MAX_OUTLIER) };
        self.num_samples = self.num_samples.saturating_add(1);
        self.value += (sample - self.value) * WEIGHT.max(1.0 / f64::from(self.num_samples));
    }

    fn get(&self) -> Option<f64> {
        (self.num_samples >= LEAST_SAMPLES).then_some(self.value)
    }
}

/// First-byte latency and speed per connection, as observed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    first_byte_seconds: Smoothed,
    bytes_per_second: Smoothed,
}

impl Measured {
    /// Records a request that was answered without retries after `first_byte`, and whose body of `num_bytes` took
    /// `body`.
    pub(super) fn note(&mut self, num_bytes: u64, first_byte: Duration, body: Duration) {
        self.first_byte_seconds.note(first_byte.as_secs_f64());
        if num_bytes >= LEAST_TIMED_BYTES && !body.is_zero() {
            self.bytes_per_second.note(num_bytes as f64 / body.as_secs_f64());
        }
    }

    /// Returns the time to the first byte, once enough requests have been answered.
    pub(super) fn first_byte(&self) -> Option<Duration> {
        self.first_byte_seconds.get().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Returns the bytes per second of one connection, once enough large bodies have been received.
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        self.bytes_per_second.get()
    }

    /// Returns how many bytes a connection delivers in the time to the first byte, once both are known.
    pub(super) fn round_trip_bytes(&self) -> Option<u64> {
        let bytes = self.first_byte_seconds.get()? * self.bytes_per_second.get()?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float saturates, and users clamp it"
        )]
        Some(bytes as u64)
    }

    /// Returns the largest gap that is better read than skipped, within what `preset` allows: what arrives in the time
    /// to the first byte of another request.
    pub(super) fn gap_bytes(&self, preset: &Preset) -> u64 {
        self.round_trip_bytes().map_or(preset.gap_bytes, |bytes| bytes.clamp(preset.least_gap_bytes, preset.gap_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(num_bytes: u64, first_byte_ms: u64, body_ms: u64) -> Measured {
        let mut measured = Measured::default();
        for _ in 0..LEAST_SAMPLES {
            measured.note(num_bytes, Duration::from_millis(first_byte_ms), Duration::from_millis(body_ms));
        }
        measured
    }

    #[test]
    fn the_gap_is_latency_times_speed_within_bounds() {
        let preset = Preset::object_storage();
        let gap = |num_bytes, first_byte_ms, body_ms| measured(num_bytes, first_byte_ms, body_ms).gap_bytes(&preset);
        // 1 MiB in 100 ms, after 20 ms.
        let between = gap(1 << 20, 20, 100);
        assert!((200_000..220_000).contains(&between), "{between}");
        assert_eq!(gap(8 << 20, 100, 80), preset.gap_bytes, "far and fast");
        assert_eq!(gap(1 << 20, 1, 100), preset.least_gap_bytes, "near and slow");
    }

    #[test]
    fn without_enough_large_bodies_the_preset_counts() {
        let preset = Preset::object_storage();
        assert_eq!(Measured::default().gap_bytes(&preset), preset.gap_bytes);
        let small = measured(1000, 1, 1);
        assert_eq!(small.gap_bytes(&preset), preset.gap_bytes);
        assert_eq!((small.first_byte(), small.bytes_per_second()), (Some(Duration::from_millis(1)), None));
    }

    #[test]
    fn one_slow_answer_changes_little_and_many_change_everything() {
        let mut measured = measured(1 << 20, 20, 100);
        measured.note(1 << 20, Duration::from_secs(60), Duration::from_millis(100));
        let first_byte = |measured: &Measured| measured.first_byte().unwrap().as_millis();
        assert!(first_byte(&measured) < 30, "{measured:?}");
        for _ in 0..200 {
            measured.note(1 << 20, Duration::from_millis(200), Duration::from_millis(100));
        }
        assert!(first_byte(&measured) > 190, "{measured:?}");
    }
}
