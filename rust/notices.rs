//! What a user should know and nobody waits for: kept until whoever may speak asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Notices beyond these are dropped.
const MOST: usize = 64;

/// Notices, and the process that they are of.
type Queue = (u32, Vec<String>);

static QUEUE: Mutex<Queue> = Mutex::new((0, Vec::new()));
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// Keeps a notice of this process.
pub(crate) fn push(text: String) {
    let process = std::process::id();
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.0 != process {
        *queue = (process, Vec::new());
    }
    if queue.1.len() < MOST {
        queue.1.push(text);
    }
    HAS_ANY.store(true, Ordering::Release);
}

/// Takes the notices of this process since the last call. Costs nothing where there are none.
pub fn take_notices() -> Vec<String> {
    if !HAS_ANY.load(Ordering::Acquire) {
        return Vec::new();
    }
    // Not waited for: a forked child may find it locked for ever.
    let Ok(mut queue) = QUEUE.try_lock() else { return Vec::new() };
    HAS_ANY.store(false, Ordering::Release);
    let taken = std::mem::take(&mut queue.1);
    if queue.0 == std::process::id() { taken } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_taken_once() {
        push("of this test".into());
        assert!(take_notices().contains(&"of this test".to_owned()));
        assert!(!take_notices().contains(&"of this test".to_owned()));
    }
}
