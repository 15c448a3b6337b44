//! Measures what a stream's consumer waits for.

use std::time::{Duration, Instant};

/// What a batch may be waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Requested bytes.
    Store,
    /// Memory, to request bytes or to gather.
    Memory,
    /// A thread that decodes.
    Decoding,
    /// A thread that plans batches or gathers their rows.
    Gathering,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Store, Self::Memory, Self::Decoding, Self::Gathering];

    /// Returns the cause's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Memory => "memory",
            Self::Decoding => "decoding",
            Self::Gathering => "gathering",
        }
    }
}

/// Times that the consumer has waited, by cause.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    times: [Duration; Cause::ALL.len()],
    since: Option<(Instant, Cause)>,
}

impl Waiting {
    /// Records that from now on the consumer waits for `cause`, or for nothing.
    pub(super) fn note(&mut self, now: Instant, cause: Option<Cause>) {
        if let Some((since, cause)) = self.since.take() {
            self.times[cause as usize] += now.saturating_duration_since(since);
        }
        self.since = cause.map(|cause| (now, cause));
    }

    /// Returns whether the consumer is waiting.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the times until now, in the order of [`Cause::ALL`].
    pub(super) fn times(&self, now: Instant) -> [Duration; Cause::ALL.len()] {
        let mut times = self.times;
        if let Some((since, cause)) = self.since {
            times[cause as usize] += now.saturating_duration_since(since);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_for_what_was_waited_for() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut waiting = Waiting::default();
        waiting.note(at(0), Some(Cause::Store));
        waiting.note(at(30), Some(Cause::Decoding));
        assert!(waiting.is_on());
        waiting.note(at(40), None);
        assert!(!waiting.is_on());
        waiting.note(at(100), Some(Cause::Store));
        assert_eq!(waiting.times(at(105)).map(|time| time.as_millis()), [35, 0, 10, 0]);
    }
}
