//! Python's exit, which ends every other thread that runs Python's code, by unwinding its stack.
//!
//! With frames of ours below that aborts the process. So a hook of `atexit`, which runs before, waits for our threads
//! that run Python's code, and lets no other begin. It also has streams rest, whose threads would take the cores from
//! what Python and its packages still have to do.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the exit waits for them: functions of the user may take any time.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the exit looks for them.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that ends Python, once it does.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Threads that run Python's code, or are about to.
static NUM_INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Has Python call [`begin`] at its exit.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let begin = wrap_pyfunction!(begin, module)?;
    module.py().import("atexit")?.call_method1("register", (begin,)).map(drop)
}

/// Has streams rest and [`attached`] refuse other threads, and waits for those that it let in.
#[pyfunction]
fn begin(py: Python<'_>) {
    forebay::rest();
    ENDING.get_or_init(|| thread::current().id());
    fence(Ordering::SeqCst);
    // At the end of an interpreter beside the main one, threads can no longer come back to it.
    if NUM_INSIDE.load(Ordering::SeqCst) == 0 {
        return;
    }
    py.detach(|| {
        // In a forked child nobody is inside any more, whatever the number says.
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

/// Counts a thread among those for which the exit waits.
struct Inside;

impl Inside {
    /// `None` if Python ends on another thread.
    fn enter() -> Option<Self> {
        NUM_INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self;
        // The exit sees it now, or it sees the exit.
        fence(Ordering::SeqCst);
        ENDING.get().is_none_or(|ending| *ending == thread::current().id()).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        NUM_INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}
