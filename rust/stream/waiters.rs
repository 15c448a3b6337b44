//! Condition variables that know whether threads wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// A [`Condvar`] that skips notifications nobody waits for: each would cost a system call, several times per batch.
///
/// Whoever changes the awaited state holds the lock meanwhile, before notifying: threads already counted are woken, and
/// later ones see the change.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    condvar: Condvar,
    num_waiting: AtomicUsize,
}

impl Waiters {
    /// Waits until it is woken.
    pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until notified with `is_pending` false, or for at most `timeout`; returns whether that was too short.
    pub(super) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        is_pending: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let wait =
            || self.condvar.wait_timeout_while(guard, timeout, is_pending).unwrap_or_else(PoisonError::into_inner);
        let (guard, waited) = self.counted(wait);
        (guard, waited.timed_out())
    }

    /// Waits until notified, or for at most `timeout`.
    pub(super) fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Wakes one waiting thread.
    pub(super) fn notify_one(&self) {
        if self.num_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }

    /// Wakes all waiting threads.
    pub(super) fn notify_all(&self) {
        if self.num_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }

    /// Counts the calling thread as waiting; the counter changes only with the lock held.
    fn counted<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.num_waiting.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.num_waiting.fetch_sub(1, Ordering::Relaxed);
        waited
    }
}
