//! Values that a forked child must not touch.
//!
//! A child has its parent's memory but none of its threads: a lock that one of them held stays locked, a task that one
//! of them ran never ends. So the child neither uses nor drops what threads share, and makes its own.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{config, panics};

/// Initializes what the whole process shares. Everything does so where it first needs it, too; callers whose other
/// threads may fork meanwhile must make sure that this has been done before: a child would wait for ever for what was
/// half done.
pub fn prepare() {
    current();
    panics::prepare();
    config::largest_read_bytes();
}

/// Returns a number that this process shares with no process that it was forked from.
///
/// The system's own numbers will not do: it gives that of a process that has ended to another, which may be the
/// grandchild that has its memory. Asking for them is also a system call.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no crate that is linked anyway is told of forks")]
pub(crate) fn current() -> u32 {
    use std::sync::Once;
    use std::sync::atomic::AtomicU32;

    static NUM_FORKS: AtomicU32 = AtomicU32::new(1);
    static COUNTED: Once = Once::new();

    extern "C" fn count() {
        NUM_FORKS.fetch_add(1, Ordering::Relaxed);
    }
    COUNTED.call_once(|| {
        // SAFETY: the handler only adds to a number, and lives as long as the process. If there is no memory for it, a
        // child is taken for its parent.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
    NUM_FORKS.load(Ordering::Relaxed)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn current() -> u32 {
    std::process::id()
}

/// A value that belongs to the process that made it; a forked child can neither get nor drop it.
pub struct OfProcess<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    /// Wraps `value` for the current process.
    pub fn new(value: T) -> Self {
        Self { process: current(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value as a forked child sees it.
    #[cfg(test)]
    pub(crate) fn into_other_process(mut self) -> Self {
        self.process = 0;
        self
    }

    fn is_ours(&self) -> bool {
        self.process == current()
    }

    /// Returns the value in the process that made it.
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&*self.value)
    }

    /// Returns the value in the process that made it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.is_ours().then_some(&mut *self.value)
    }
}

impl<T> Drop for OfProcess<T> {
    #[expect(unsafe_code, reason = "a forked child must not run the destructor")]
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here, where nobody else can reach the field any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A lock that a forked child finds free and in its initial state, whatever the parent's threads did with it.
pub(crate) struct LockOfProcess<T> {
    /// The value of the process that used it last, or null.
    held: AtomicPtr<Held<T>>,
    /// Threads may share it if they may share what it holds.
    holds: PhantomData<Box<Held<T>>>,
}

struct Held<T> {
    process: u32,
    value: Mutex<T>,
}

impl<T: Default> LockOfProcess<T> {
    /// Returns a lock that holds the default.
    pub(crate) const fn new() -> Self {
        Self { held: AtomicPtr::new(null_mut()), holds: PhantomData }
    }

    /// Returns a lock that holds `value`, in this process.
    pub(crate) fn holding(value: T) -> Self {
        let this = Self::new();
        *this.lock() = value;
        this
    }

    /// Locks this process's value.
    #[expect(unsafe_code, reason = "what it points to is shared by all who look at it")]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let process = current();
        let mut held = self.held.load(Ordering::Acquire);
        loop {
            // SAFETY: if not null, it came from `Box::into_raw` below, and is freed when `self` is dropped, or never.
            if let Some(held) = unsafe { held.as_ref() }
                && held.process == process
            {
                return held.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let ours = Box::into_raw(Box::new(Held { process, value: Mutex::new(T::default()) }));
            match self.held.compare_exchange(held, ours, Ordering::AcqRel, Ordering::Acquire) {
                // The parent's value is left alone: one of its threads may have been using it.
                Ok(_) => held = ours,
                Err(others) => {
                    // SAFETY: it came from `Box::into_raw` above, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(ours) });
                    held = others;
                }
            }
        }
    }
}

impl<T> Drop for LockOfProcess<T> {
    #[expect(unsafe_code, reason = "a forked child must not run the destructor of what its parent holds")]
    fn drop(&mut self) {
        let held = *self.held.get_mut();
        // SAFETY: as in `lock`; nobody else can reach it any more.
        if unsafe { held.as_ref() }.is_some_and(|held| held.process == current()) {
            // SAFETY: it came from `Box::into_raw`, and is freed once, here.
            drop(unsafe { Box::from_raw(held) });
        }
    }
}

impl<T> std::fmt::Debug for LockOfProcess<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockOfProcess").finish_non_exhaustive()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OfProcess").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_child_and_its_child_are_other_processes() {
        let ours = current();
        #[expect(unsafe_code, reason = "what a fork does is what it is about")]
        // SAFETY: children only read a number, fork, wait and end.
        let status = unsafe {
            let wait = |child| {
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                libc::WEXITSTATUS(status)
            };
            match libc::fork() {
                0 => {
                    let child = current();
                    let status = match libc::fork() {
                        0 => libc::_exit(i32::from([ours, child].contains(&current()))),
                        grandchild => wait(grandchild),
                    };
                    libc::_exit(status + i32::from(child == ours))
                }
                child => wait(child),
            }
        };
        assert_eq!((status, current()), (0, ours));
    }

    #[test]
    fn a_lock_is_one_for_all_threads() {
        let (lock, barrier) = (LockOfProcess::<u32>::new(), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    (0..1000).for_each(|_| *lock.lock() += 1);
                });
            }
        });
        assert_eq!(*lock.lock(), 8000);
    }

    #[test]
    fn what_another_process_has_locked_is_left_to_it() {
        let counted = Arc::new(());
        let lock = LockOfProcess::holding(Some(Arc::clone(&counted)));
        // As if another process had locked it first; this process's own value is leaked.
        let held = Box::new(Held { process: 0, value: Mutex::new(Some(Arc::clone(&counted))) });
        let held: &'static Held<_> = Box::leak(held);
        let _guard = held.value.lock();
        lock.held.store(std::ptr::from_ref(held).cast_mut(), Ordering::Release);
        assert!(lock.lock().is_none());
        *lock.lock() = Some(Arc::clone(&counted));
        drop(lock);
        assert_eq!(
            Arc::strong_count(&counted),
            3,
            "that of the other process, that which this one had before, and ours"
        );
    }

    #[test]
    fn a_value_is_used_and_dropped_in_its_own_process_only() {
        let counted = Arc::new(());
        let mut ours = OfProcess::new(Arc::clone(&counted));
        assert!(ours.get().is_some());
        assert!(ours.get_mut().is_some());
        drop(ours);
        assert_eq!(Arc::strong_count(&counted), 1);
        let mut parents = OfProcess { process: 0, value: ManuallyDrop::new(Arc::clone(&counted)) };
        assert!(parents.get().is_none());
        assert!(parents.get_mut().is_none());
        drop(parents);
        assert_eq!(Arc::strong_count(&counted), 2);
    }
}
