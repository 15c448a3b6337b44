//! Waits for the core without holding the GIL, so that other threads can run and Ctrl-C works.

use std::ffi::{CString, c_int};
use std::future::Future;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay::{Error, Io, Notice, Progress, take_notices};
use pyo3::prelude::*;

use crate::error::to_py;

/// How often a waiting call checks for signals and shows progress.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// Runs `future` on the IO runtime; calls `on_progress(done, total)` while it runs.
///
/// On Ctrl-C, or if `on_progress` raises, drops the future and returns the exception.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    io: &Arc<Io>,
    progress: &Arc<Progress>,
    on_progress: Option<&Py<PyAny>>,
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> PyResult<T> {
    wait_and(py, io, progress, on_progress, future, || ())
}

/// Like [`wait`], and calls `meanwhile` with the GIL held, so that no fork finds its work half done.
pub(crate) fn wait_and<T: Send + 'static>(
    py: Python<'_>,
    io: &Arc<Io>,
    progress: &Arc<Progress>,
    on_progress: Option<&Py<PyAny>>,
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
    meanwhile: impl FnOnce(),
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let receiver = Mutex::new(receiver);
    let task = io.spawn(async move {
        // The receiver is gone only if the caller was interrupted; then nobody needs the result.
        drop(sender.send(future.await));
    });
    meanwhile();
    loop {
        match py.detach(|| lock(&receiver).recv_timeout(TICK)) {
            Ok(result) => {
                warn(py)?;
                return result.map_err(|error| to_py(&error));
            }
            Err(RecvTimeoutError::Timeout) => {
                let tick = py.check_signals().and_then(|()| warn(py)).and_then(|()| match on_progress {
                    Some(callback) => callback.call1(py, progress.get()).map(drop),
                    None => Ok(()),
                });
                if let Err(interrupt) = tick {
                    task.abort();
                    return Err(interrupt);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(to_py(&Error::Internal { reason: "a task ended without a result".into() }));
            }
        }
    }
}

/// Issues the core's pending messages as Python warnings, all of them; returns the first that the user made an error.
pub(crate) fn warn(py: Python<'_>) -> PyResult<()> {
    let mut issued = Ok(());
    for notice in take_notices() {
        issued = issued.and(issue(py, notice));
    }
    issued
}

fn issue(py: Python<'_>, notice: Notice) -> PyResult<()> {
    let (class, text) = match notice {
        Notice::Store(text) => ("StoreWarning", text),
        Notice::Performance(text) => ("PerformanceWarning", text),
    };
    let class = py.import("forebay.exceptions")?.getattr(class)?;
    // C strings cannot contain NUL.
    let text = CString::new(text.replace('\0', "\\0"))?;
    let level = py.import("forebay.frames")?.call_method0("level_of_loop")?.extract()?;
    PyErr::warn(py, &class, &text, level)
}

#[expect(unsafe_code, reason = "PyO3 does not ask: the function is not in the stable ABI, but every CPython has it")]
unsafe extern "C" {
    /// Returns 1 if the calling thread holds the GIL.
    safe fn PyGILState_Check() -> c_int;
}

/// Runs `work` without the GIL, which the caller may hold without PyO3 knowing: some libraries that take an Arrow stream
/// do while they wait for its batches, and our threads may need it to make them.
pub(crate) fn released<T: Send>(mut work: impl FnMut() -> T + Send) -> T {
    let is_held = PyGILState_Check() == 1;
    let done = if is_held { Python::try_attach(|py| py.detach(&mut work)) } else { None };
    done.unwrap_or_else(work)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
