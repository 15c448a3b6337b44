//! The process's IO runtime: it runs requests and nothing else.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::config;
use crate::error::{Error, Result};
use crate::process::{self, LockOfProcess};

/// Receiving threads: each copies about 0.6 GB/s out of the system's buffers.
const MAX_IO_THREADS: usize = 8;

/// Maximum of blocking threads: local reads, footers, predicates.
const MAX_BLOCKING_THREADS: usize = 32;

/// How long an idle blocking thread is kept.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Virtual stack size of a thread: expressions are evaluated on blocking threads.
const STACK_BYTES: usize = 16 << 20;

/// The process's one runtime, while anybody holds it.
static CURRENT: LockOfProcess<Weak<Io>> = LockOfProcess::new();

/// A runtime for requests, shared by the whole process and shut down with its last holder.
#[derive(Debug)]
pub struct Io {
    runtime: ManuallyDrop<Runtime>,
    process: u32,
}

impl Io {
    /// Returns the process's runtime, starting it if there is none. After a fork, the child starts its own.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] when the system refuses a thread.
    pub fn current() -> Result<Arc<Self>> {
        let mut current = CURRENT.lock();
        if let Some(io) = current.upgrade() {
            return Ok(io);
        }
        let io = Arc::new(Self::start("forebay-io", config::num_threads().min(MAX_IO_THREADS))?);
        *current = Arc::downgrade(&io);
        Ok(io)
    }

    /// Starts a runtime for the computations of one query, shut down with it.
    pub(crate) fn for_query() -> Result<Self> {
        Self::start("forebay-query", config::num_threads())
    }

    /// Starts a runtime for what one scan by another engine waits for, shut down with it.
    pub(crate) fn for_scan() -> Result<Self> {
        Self::start("forebay-scan", 1)
    }

    fn start(thread_name: &str, num_threads: usize) -> Result<Self> {
        // One more for a blocking thread.
        check_threads(num_threads + 1).map_err(|source| Error::Thread { source })?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(num_threads)
            .max_blocking_threads(MAX_BLOCKING_THREADS)
            .thread_keep_alive(BLOCKING_KEEP_ALIVE)
            .thread_stack_size(STACK_BYTES)
            .thread_name(thread_name)
            .enable_all()
            .build()
            .map_err(|source| Error::Thread { source })?;
        Ok(Self { runtime: ManuallyDrop::new(runtime), process: process::current() })
    }

    /// Starts `future` on the runtime.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.runtime.spawn(future)
    }

    /// Drops `what` after `delay`, or with the runtime if that ends first.
    pub fn drop_later(&self, delay: Duration, what: impl Send + 'static) {
        self.spawn(async move {
            tokio::time::sleep(delay).await;
            drop(what);
        });
    }

    /// Runs `work` on a thread that may block or compute.
    pub fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn_blocking(work)
    }

    /// Runs `work` on a thread that may block or compute, and returns its result.
    ///
    /// # Errors
    ///
    /// Those of [`unfinished`].
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.spawn_blocking(work).await.map_err(unfinished)
    }

    /// Runs `future` to completion, from a thread outside the runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Returns the runtime's handle.
    pub(crate) fn handle(&self) -> &Handle {
        self.runtime.handle()
    }
}

/// Returns the error for a task without a result: [`Error::Internal`] if it panicked, [`Error::Closed`] if its runtime
/// ended before it did.
pub(crate) fn unfinished(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => Error::internal(panic.as_ref()),
        Err(_) => Error::Closed { reason: "cancelled" },
    }
}

impl Drop for Io {
    #[expect(unsafe_code, reason = "a forked child must not run the runtime's destructor")]
    fn drop(&mut self) {
        if self.process == process::current() {
            // SAFETY: taken once, here, where nobody else can reach the field any more.
            end(unsafe { ManuallyDrop::take(&mut self.runtime) });
        }
        // In a forked child the threads do not exist and their locks may be held forever: leave everything as it is.
    }
}

/// Ends a runtime without waiting for its threads: another thread joins them.
///
/// [`Runtime::shutdown_background`] detaches them in the moment in which they end, and the GNU C library may then read the
/// stack of one that is unmapped already: `docs/decisions/0044-threads-are-joined-never-detached.md`.
fn end(runtime: Runtime) {
    let (sender, receiver) = sync_channel(1);
    let joining = thread::Builder::new().name("forebay-end".into()).spawn(move || drop(receiver.recv()));
    // This thread is detached before it gets the runtime, and cannot end before that.
    let is_started = joining.map(drop).is_ok();
    if !is_started {
        runtime.shutdown_background();
    } else if let Err(unsent) = sender.send(runtime) {
        unsent.0.shutdown_background();
    }
}

/// Returns an error if the system refuses that many threads: tokio would panic, or wait forever.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let _closed = gate.lock();
        for _ in 0..count {
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_shares_one_runtime_while_somebody_holds_it() {
        let first = Io::current().unwrap();
        let second = Io::current().unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(first.block_on(second.spawn(async { 7 })).unwrap(), 7);
    }

    #[test]
    fn a_panic_is_told_apart_from_the_end_of_the_runtime() {
        let io = Io::current().unwrap();
        assert_eq!(io.block_on(io.blocking(|| 7)).unwrap(), 7);
        let panicked = io.block_on(io.blocking::<()>(|| panic!("no row {}", 7))).unwrap_err();
        assert!(matches!(&panicked, Error::Internal { reason } if reason == "no row 7"), "{panicked}");
        let task = io.spawn(std::future::pending::<()>());
        task.abort();
        let cancelled = io.block_on(task).map_err(unfinished).unwrap_err();
        assert!(matches!(cancelled, Error::Closed { reason: "cancelled" }), "{cancelled}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn no_thread_is_left_after_the_last_holder() {
        const NAME: &str = "fb-io-of-a-test";
        let num_threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.filter(|name| name.trim_end() == NAME).count()
        };
        let io = Io::start(NAME, 1).unwrap();
        io.block_on(io.spawn_blocking(|| ())).unwrap();
        assert!(num_threads() >= 2);
        drop(io);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while num_threads() > 0 {
            assert!(std::time::Instant::now() < deadline, "{} threads are left", num_threads());
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_last_holder_waits_for_nobody() {
        let io = Io::start("fb-io-of-a-test", 1).unwrap();
        let ((begun, has_begun), (release, is_released)) = (sync_channel(1), sync_channel::<()>(1));
        drop(io.spawn_blocking(move || {
            begun.send(()).unwrap();
            is_released.recv()
        }));
        has_begun.recv().unwrap();
        drop(io);
        release.send(()).unwrap();
    }

    #[test]
    fn a_thread_of_the_runtime_may_be_the_last_holder() {
        let io = Arc::new(Io::start("fb-io-of-a-test", 1).unwrap());
        let ((release, is_released), (done, is_done)) = (tokio::sync::oneshot::channel(), sync_channel(1));
        let held = Arc::clone(&io);
        let task = io.spawn(async move {
            is_released.await.unwrap();
            drop(held);
            done.send(()).unwrap();
        });
        drop(io);
        release.send(()).unwrap();
        is_done.recv().unwrap();
        drop(task);
    }
}
