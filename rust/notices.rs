//! What a user should know and nobody waits for: kept until whoever may speak asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::secrets::redacted;

/// Notices beyond these are dropped.
const MOST: usize = 64;

/// How often a lock is tried that is held for microseconds.
const TRIES: usize = 1000;

/// What a user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Of a store that does not answer as it should.
    Store(String),
    /// Of what makes a stream slow.
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

/// Notices, and the process that they are of.
type Queue = (u32, Vec<Notice>);

static QUEUE: Mutex<Queue> = Mutex::new((0, Vec::new()));
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// Keeps a notice of this process.
pub(crate) fn push(notice: Notice) {
    let process = std::process::id();
    let Some(mut queue) = (0..TRIES).find_map(|_| try_lock().or_else(pause)) else { return };
    if queue.0 != process {
        *queue = (process, Vec::new());
    }
    if queue.1.len() < MOST {
        queue.1.push(notice);
    }
    HAS_ANY.store(true, Ordering::Release);
}

/// Takes the notices of this process since the last call, without secrets. Costs nothing where there are none.
pub fn take_notices() -> Vec<Notice> {
    if !HAS_ANY.load(Ordering::Acquire) {
        return Vec::new();
    }
    let Some(mut queue) = try_lock() else { return Vec::new() };
    HAS_ANY.store(false, Ordering::Release);
    let taken = std::mem::take(&mut queue.1);
    let is_ours = queue.0 == std::process::id();
    drop(queue);
    taken.into_iter().filter(|_| is_ours).map(Notice::redacted).collect()
}

/// Locks the queue, which is never waited for: a forked child may find it locked for ever.
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

    /// One test: who takes notices takes those of all.
    #[test]
    fn notices_are_taken_once_and_tell_no_secrets() {
        // Other tests may have pushed as many as there is room for.
        take_notices();
        push(Notice::Store("https://user:secret@host refuses".into()));
        let told = Notice::Store("https://…@host refuses".into());
        assert!(take_notices().contains(&told));
        assert!(!take_notices().contains(&told));
    }
}
