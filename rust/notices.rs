//! Messages that a user should see but no call returns: kept until a caller who can display them takes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::process;
use crate::secrets::redacted;

/// Maximum number of kept notices; more are dropped.
const MOST: usize = 64;

/// How often to try a lock that is only held for microseconds.
const TRIES: usize = 1000;

/// A message that a user should see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A store does not answer as it should.
    Store(String),
    /// Something slows a stream down.
    Performance(String),
}

impl Notice {
    fn redacted(self) -> Self {
        match self {
            Self::Store(text) => Self::Store(redacted(&text)),
            Self::Performance(text) => Self::Performance(redacted(&text)),
        }
    }
}

/// Notices, and the process that they belong to.
type Queue = (u32, Vec<Notice>);

static QUEUE: Mutex<Queue> = Mutex::new((0, Vec::new()));
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// Keeps a notice of this process.
pub(crate) fn push(notice: Notice) {
    let process = process::current();
    let Some(mut queue) = (0..TRIES).find_map(|_| try_lock().or_else(pause)) else { return };
    if queue.0 != process {
        *queue = (process, Vec::new());
    }
    if queue.1.len() < MOST {
        queue.1.push(notice);
    }
    HAS_ANY.store(true, Ordering::Release);
}

/// Takes this process's notices since the last call, without secrets. Costs nothing if there are none.
pub fn take_notices() -> Vec<Notice> {
    if !HAS_ANY.load(Ordering::Acquire) {
        return Vec::new();
    }
    let Some(mut queue) = try_lock() else { return Vec::new() };
    HAS_ANY.store(false, Ordering::Release);
    let taken = std::mem::take(&mut queue.1);
    let is_ours = queue.0 == process::current();
    drop(queue);
    taken.into_iter().filter(|_| is_ours).map(Notice::redacted).collect()
}

/// Locks the queue if the lock is free; never waits, since a forked child may find it locked forever.
fn try_lock() -> Option<MutexGuard<'static, Queue>> {
    match QUEUE.try_lock() {
        Ok(queue) => Some(queue),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn pause<T>() -> Option<T> {
    std::thread::yield_now();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the queue is shared: taking notices takes those of other tests, too.
    #[test]
    fn notices_are_taken_once_and_tell_no_secrets() {
        // Other tests may have filled the queue.
        take_notices();
        push(Notice::Store("https://user:secret@host refuses".into()));
        let told = Notice::Store("https://…@host refuses".into());
        assert!(take_notices().contains(&told));
        assert!(!take_notices().contains(&told));
    }
}
