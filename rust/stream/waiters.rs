//! Threads that wait until something happens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// A [`Condvar`] that knows whether anybody waits for it: one that wakes nobody asks the system all the same, several
/// times for each batch.
///
/// Who changes what is waited for holds the lock while it does, before it wakes anybody: who was counted by then is
/// woken, and who comes later sees the change.
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

    /// Waits until it is woken and `is_pending` no more, at most for `timeout`; returns whether it was too short.
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

    /// Waits until it is woken, at most for `timeout`.
    pub(super) fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        self.counted(|| self.condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Wakes one of those that wait.
    pub(super) fn notify_one(&self) {
        if self.num_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }

    /// Wakes all that wait.
    pub(super) fn notify_all(&self) {
        if self.num_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }

    /// Counts one that waits; both changes are made with the lock held.
    fn counted<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.num_waiting.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.num_waiting.fetch_sub(1, Ordering::Relaxed);
        waited
    }
}
