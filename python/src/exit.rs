//! Handles Python's exit, which ends every other thread that runs Python code by unwinding its stack.
//!
//! Unwinding through our frames aborts the process. So an earlier `atexit` hook waits for our threads that run Python
//! code, and lets no others start. It also pauses streams, whose threads would take cores from what Python and its
//! packages still have to do.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the exit waits for these threads: user functions may take any time.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the exit checks for them.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that ends Python, once that has begun.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Number of threads that run Python code, or are about to.
static NUM_INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Registers [`begin`] to be called at Python's exit.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let begin = wrap_pyfunction!(begin, module)?;
    module.py().import("atexit")?.call_method1("register", (begin,)).map(drop)
}

/// Pauses streams, has [`attached`] refuse other threads, and waits for those already let in.
#[pyfunction]
fn begin(py: Python<'_>) {
    forebay::rest();
    ENDING.get_or_init(|| thread::current().id());
    fence(Ordering::SeqCst);
    // At the end of a subinterpreter, threads can no longer come back to it.
    if NUM_INSIDE.load(Ordering::SeqCst) == 0 {
        return;
    }
    py.detach(|| {
        // In a forked child no thread is inside any more, whatever the counter says.
        let end = Instant::now() + PATIENCE;
        while NUM_INSIDE.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep(LOOK);
        }
    });
}

/// Runs `work` with the GIL, from any thread; `None` at Python's exit.
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _inside = Inside::enter()?;
    Python::try_attach(work)
}

/// Counts a thread among those that the exit waits for.
struct Inside;

impl Inside {
    /// Returns `None` if Python is ending on another thread.
    fn enter() -> Option<Self> {
        NUM_INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self;
        // Either the exit sees this thread, or this thread sees the exit.
        fence(Ordering::SeqCst);
        ENDING.get().is_none_or(|ending| *ending == thread::current().id()).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        NUM_INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}
