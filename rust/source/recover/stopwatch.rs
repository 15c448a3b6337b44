//! Time that passes while this process runs.
//!
//! A process may be stopped (`Ctrl-Z`, a frozen container) for longer than any patience. When it continues, all its
//! timers have expired, although no request was made meanwhile. So time is counted in ticks, and a late tick counts as
//! one.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

const TICK: Duration = Duration::from_millis(500);

/// How long this process has run while waiting.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::source) struct Stopwatch {
    shown: Duration,
}

impl Stopwatch {
    pub(in crate::source) fn shown(self) -> Duration {
        self.shown
    }

    /// Awaits `future` until the watch shows `limit`; returns `None` then.
    pub(in crate::source) async fn run_until<F: Future>(&mut self, limit: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            let (start, tick) = (Instant::now(), TICK.min(limit.saturating_sub(self.shown)));
            let output = timeout(tick, future.as_mut()).await;
            self.shown += start.elapsed().min(tick);
            match output {
                Ok(output) => return Some(output),
                Err(_) if self.shown >= limit => return None,
                Err(_) => {}
            }
        }
    }

    /// Awaits `future` however long it takes.
    pub(in crate::source) async fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Some(output) = self.run_until(self.shown + TICK, future.as_mut()).await {
                return output;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::task::Poll;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_shows_how_long_was_waited() {
        crate::Io::current().unwrap().block_on(async {
            let (mut watch, start) = (Stopwatch::default(), Instant::now());
            assert_eq!(watch.run(async { 7 }).await, 7);
            watch.run(tokio::time::sleep(40 * MS)).await;
            assert!((40 * MS..=start.elapsed()).contains(&watch.shown()), "{watch:?}");
            let limit = watch.shown() + 30 * MS;
            assert_eq!(watch.run_until(limit, pending::<()>()).await, None);
            assert_eq!(watch.shown(), limit);
            assert_eq!(watch.run_until(limit, async { 8 }).await, Some(8), "what is there already is taken");
        });
    }

    #[test]
    fn time_in_which_the_process_was_stopped_is_a_tick() {
        crate::Io::current().unwrap().block_on(async {
            let (mut watch, stopped) = (Stopwatch::default(), 2 * TICK);
            let mut num_polls = 0;
            let waiting = poll_fn(|_| {
                num_polls += 1;
                if num_polls == 1 {
                    // Blocks this thread, as if the whole process were stopped.
                    std::thread::sleep(stopped);
                }
                Poll::<()>::Pending
            });
            let start = Instant::now();
            assert_eq!(watch.run_until(TICK + 300 * MS, waiting).await, None);
            assert!(start.elapsed() >= stopped + 300 * MS, "{:?}", start.elapsed());
        });
    }
}
