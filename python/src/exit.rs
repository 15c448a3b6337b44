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
use pyo3::types::PyDict;

use crate::runtime::TICK;

/// How long the exit waits for these threads at most: a user function may take its time, and is interrupted by Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the exit checks for them.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that ends Python, once that has begun.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Number of threads that run Python code, or are about to.
static NUM_INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Registers [`begin`] to be called at Python's exit.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let begin = wrap_pyfunction!(begin, module)?;
    let py = module.py();
    py.import("atexit")?.call_method1("register", (begin,))?;
    // A forked child has none of its parent's threads to wait for.
    let forget = PyDict::new(py);
    forget.set_item("after_in_child", wrap_pyfunction!(forget_threads, module)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&forget)).map(drop)
}

#[pyfunction]
fn forget_threads() {
    NUM_INSIDE.store(0, Ordering::SeqCst);
}

/// Pauses streams, has [`attached`] refuse other threads, and waits for those already let in.
#[pyfunction]
fn begin(py: Python<'_>) -> PyResult<()> {
    forebay::rest();
    ENDING.get_or_init(|| thread::current().id());
    fence(Ordering::SeqCst);
    let end = Instant::now() + PATIENCE;
    // Not even detached without need: at the end of a subinterpreter, threads can no longer come back to it.
    while is_anybody_inside() && Instant::now() < end {
        py.detach(|| {
            let pause = Instant::now() + TICK;
            while is_anybody_inside() && Instant::now() < pause {
                thread::sleep(LOOK);
            }
        });
        py.check_signals()?;
    }
    Ok(())
}

fn is_anybody_inside() -> bool {
    NUM_INSIDE.load(Ordering::SeqCst) > 0
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
        // In a child that this thread has forked meanwhile, it is not counted any more.
        let _ = NUM_INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |inside| inside.checked_sub(1));
    }
}
