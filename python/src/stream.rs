//! `forebay._lib.Stream`: the batches of one share of an epoch.

use std::panic::AssertUnwindSafe;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use arrow_array::RecordBatch;
use forebay::parts::Buffer;
use forebay::plan::Hole;
use forebay::{
    BatchStream, Cause, Conversion, Most, OF_ANOTHER_PROCESS, OfProcess, Polled, SchemaRef, Skipped, Slab,
    StreamOptions, StreamStats, Taken,
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3_arrow::error::PyArrowResult;
use pyo3_arrow::ffi::{ArrayIterator, to_schema_pycapsule, to_stream_pycapsule};

use crate::batch::{PyBatch, conversion, struct_array, struct_field};
use crate::error::to_py;
use crate::exit::attached;
#[cfg(target_os = "linux")]
use crate::kept::Kept;
use crate::runtime::{TICK, released, warn};

/// Batches in order, each with the position after it.
#[pyclass(name = "Stream", module = "forebay._lib", frozen)]
pub(crate) struct PyStream {
    /// `None` once the stream was closed or handed over as an Arrow stream. A forked child may find it locked forever.
    running: OfProcess<Mutex<Option<Running>>>,
    ended: Arc<OnceLock<Ended>>,
    schema: SchemaRef,
}

/// What a stream left out and did, once it was closed, or has ended after being handed over.
struct Ended {
    holes: Vec<Hole>,
    stats: StreamStats,
}

/// A stream, and what is needed to end it.
struct Running {
    stream: Option<BatchStream>,
    /// Where to store its results at its end.
    ended: Arc<OnceLock<Ended>>,
    /// Whether its threads may be waiting for the GIL, to call a query's function.
    calls_python: bool,
    /// Dropped last: the stream's freed memory is kept until then, and for a little longer.
    #[cfg(target_os = "linux")]
    _memory: Kept,
}

impl Poll for Running {
    fn poll(&mut self, timeout: Duration) -> forebay::Result<Option<Option<RecordBatch>>> {
        let Some(stream) = &mut self.stream else { return Ok(Some(None)) };
        Ok(match stream.poll(timeout, Most::ONE)? {
            Polled::Batches(mut batches) => Some(batches.pop().map(|taken| taken.batch)),
            Polled::End => {
                // A thread that waits for a batch may be waiting for other threads to end. The stream may be released
                // by an interpreter at its exit.
                self.end();
                Some(None)
            }
            Polled::Pending => None,
        })
    }

    fn conclude(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.ended.get().filter(|ended| ended.stats.skipped.rows > 0);
        let Some(Ended { holes, stats }) = ended else { return Ok(()) };
        let warned = py.import("forebay.warned")?;
        warned.call_method1("warn_of_holes", (as_dicts(py, holes)?, stats.skipped.rows)).map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    /// Ends the rest of the stream.
    fn end(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        // Only in that case: another library's thread may end the stream while the GIL's holder waits for that thread.
        if self.calls_python {
            attached(|py| py.detach(|| stream.close()));
        } else {
            released(|| stream.close());
        }
        self.ended.get_or_init(|| Ended { holes: stream.holes(), stats: stream.stats() });
    }
}

impl PyStream {
    pub(crate) fn new(stream: BatchStream, schema: SchemaRef, calls_python: bool, options: StreamOptions) -> Self {
        let ended = Arc::default();
        let running = Running {
            stream: Some(stream),
            ended: Arc::clone(&ended),
            calls_python,
            #[cfg(target_os = "linux")]
            _memory: Kept::begin(options.memory_limit),
        };
        Self { running: OfProcess::new(Mutex::new(Some(running))), ended, schema }
    }

    /// Waits for the next batch without the GIL; `None` at the end.
    pub(crate) fn next_batch(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        Ok(self.next_batches(py, Most::ONE)?.pop().map(|taken| taken.batch))
    }

    /// Waits without the GIL for the next batch; returns all that are ready, none at the end.
    fn next_batches(&self, py: Python<'_>, most: Most) -> PyResult<Vec<Taken>> {
        loop {
            let polled = self.with(py, |stream| stream.poll(TICK, most))?.map_err(|error| to_py(&error));
            // First, since an error is easier to understand after the warnings that led to it.
            warn(py)?;
            match polled? {
                Polled::Batches(batches) => return Ok(batches),
                Polled::End => return Ok(Vec::new()),
                Polled::Pending => py.check_signals()?,
            }
        }
    }

    fn with<T>(&self, py: Python<'_>, call: impl FnOnce(&mut BatchStream) -> T + Send) -> PyResult<T>
    where
        T: Send,
    {
        let running = self.running.get().ok_or_else(|| closed(OF_ANOTHER_PROCESS))?;
        py.detach(|| lock(running).as_mut().and_then(|running| running.stream.as_mut()).map(call))
            .ok_or_else(|| closed("it was closed before"))
    }

    /// Like [`with`](Self::with), but falls back to what the stream left behind once it has [`Ended`].
    fn told<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&BatchStream) -> T + Send,
        at_end: impl FnOnce(&Ended) -> T,
    ) -> PyResult<T> {
        self.ended.get().map_or_else(|| self.with(py, |stream| call(stream)), |ended| Ok(at_end(ended)))
    }
}

/// Returns the memory of an object as a slab that keeps the object alive.
#[expect(unsafe_code, reason = "of memory that libraries allocate only the address is known")]
fn slab(address: usize, num_bytes: usize, owner: Py<PyAny>) -> Option<Slab> {
    let start = NonNull::new(with_exposed_provenance_mut::<u8>(address))?;
    // The last buffer may be dropped on any thread: without the GIL, Python's reference count is lowered later.
    let owner = Arc::new(AssertUnwindSafe(owner));
    // SAFETY: the only caller, a stage of ours, passes byte tensors that it has just allocated, and does not touch them
    // until they come back in a batch; their memory outlives the buffer.
    Some(unsafe { Slab::new(Buffer::from_custom_allocation(start, num_bytes, owner)) })
}

fn as_dicts<'py>(py: Python<'py>, holes: &[Hole]) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let as_dict = |hole: &Hole| {
        let dict = PyDict::new(py);
        dict.set_item("span", hole.span)?;
        dict.set_item("start", hole.start)?;
        dict.set_item("end", hole.end)?;
        dict.set_item("object", &hole.object)?;
        dict.set_item("row_group", hole.row_group)?;
        dict.set_item("cause", &hole.cause)?;
        Ok(dict)
    };
    holes.iter().map(as_dict).collect()
}

/// A batch, the position after it, and the numbers of rows left out before it: unreadable ones, and broken images.
type TakenTuple = (PyBatch, u64, (u64, u64));

/// Returns the exception for a stream whose batches are no longer available.
pub(crate) fn closed(reason: &'static str) -> PyErr {
    to_py(&forebay::Error::Closed { reason })
}

#[pymethods]
impl PyStream {
    fn next(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        Ok(self.next_batch(py)?.map(PyBatch::new))
    }

    /// Waits for a batch; returns all that are ready, each with the position after it and the numbers of rows left out
    /// since the one before, because they or their images are broken, and none at the end.
    fn take(&self, py: Python<'_>, most_batches: usize, most_bytes: u64) -> PyResult<Vec<TakenTuple>> {
        let most = Most { batches: most_batches.max(1), bytes: most_bytes };
        let batches = self.next_batches(py, most)?;
        let as_tuple = |Taken { batch, position, skipped }| {
            let Skipped { rows, images } = skipped;
            (PyBatch::new(batch), position, (rows, images))
        };
        Ok(batches.into_iter().map(as_tuple).collect())
    }

    /// Waits until there is something to take; returns `false` if there is nothing after `seconds`.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.with(py, |stream| stream.wait(timeout))
    }

    /// Number of slabs that wait for a batch, and the bytes needed by the largest batch gathered since the first call.
    fn slabs(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.with(py, |stream| stream.slabs())
    }

    /// Supplies memory for a batch that is yet to be gathered: `num_bytes` at `address`, belonging to `owner`, which is
    /// kept alive until that batch is dropped. Nobody else may read or write it until the batch is taken.
    fn supply(&self, py: Python<'_>, address: usize, num_bytes: usize, owner: Py<PyAny>) -> PyResult<()> {
        let slab = slab(address, num_bytes, owner).ok_or_else(|| PyValueError::new_err("no memory is at address 0"))?;
        self.with(py, |stream| stream.supply(slab))
    }

    /// The rows that could not be read and are left out, as listed in a state.
    fn holes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        // As in `stats`: a stream of another process reports nothing.
        let holes = match self.running.get() {
            Some(_) => self.told(py, BatchStream::holes, |ended| ended.holes.clone())?,
            None => Vec::new(),
        };
        as_dicts(py, &holes)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = match self.running.get() {
            Some(_) => self.told(py, BatchStream::stats, |ended| ended.stats)?,
            None => StreamStats::default(),
        };
        let dict = PyDict::new(py);
        dict.set_item("batches", stats.num_batches)?;
        dict.set_item("rows", stats.num_rows)?;
        dict.set_item("requests", stats.requests)?;
        dict.set_item("bytes_fetched", stats.bytes_fetched)?;
        dict.set_item("bytes_wanted", stats.bytes_wanted)?;
        dict.set_item("bytes_decoded", stats.bytes_decoded)?;
        dict.set_item("retries", stats.recovered.retries())?;
        dict.set_item("retries_throttled", stats.recovered.throttled)?;
        dict.set_item("retries_failed", stats.recovered.failed)?;
        dict.set_item("retries_broken", stats.recovered.broken)?;
        dict.set_item("retries_stalled", stats.recovered.stalled)?;
        dict.set_item("bodies_resumed", stats.recovered.resumed)?;
        dict.set_item("hedges", stats.recovered.hedges)?;
        dict.set_item("hedges_won", stats.recovered.hedges_won)?;
        dict.set_item("cache_hits", stats.cache_hits)?;
        dict.set_item("images_skipped", stats.skipped.images)?;
        dict.set_item("rows_evicted", stats.num_evicted_rows)?;
        dict.set_item("rows_skipped", stats.skipped.rows)?;
        dict.set_item("memory_bytes", stats.memory_bytes)?;
        dict.set_item("peak_memory_bytes", stats.peak_memory_bytes)?;
        dict.set_item("batches_ready", stats.num_ready)?;
        dict.set_item("seconds", stats.elapsed.as_secs_f64())?;
        dict.set_item("seconds_waited", stats.waited.as_secs_f64())?;
        for (cause, waited) in Cause::ALL.iter().zip(stats.waited_for) {
            dict.set_item(format!("seconds_waited_for_{}", cause.name()), waited.as_secs_f64())?;
        }
        dict.set_item("seconds_fetching", stats.fetching.as_secs_f64())?;
        dict.set_item("seconds_decoding", stats.decoding.as_secs_f64())?;
        dict.set_item("seconds_gathering", stats.gathering.as_secs_f64())?;
        Ok(dict)
    }

    fn close(&self, py: Python<'_>) {
        if let Some(running) = self.running.get() {
            py.detach(|| drop(lock(running).take()));
        }
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.schema.as_ref())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyArrowResult<Bound<'py, PyCapsule>> {
        // First, so that a refused schema leaves the stream unchanged.
        let conversion = conversion(&self.schema, requested_schema.as_ref())?;
        let running = self.running.get().ok_or_else(|| closed(OF_ANOTHER_PROCESS))?;
        let taken = py.detach(|| lock(running).take());
        let stream = taken.ok_or_else(|| closed("it was closed or consumed before"))?;
        arrow_stream(py, &self.schema, conversion, stream)
    }
}

/// A source of batches that can be waited for with a timeout.
pub(crate) trait Poll {
    /// Waits for at most `timeout`: `None` if there is nothing yet, `Some(None)` at the end.
    fn poll(&mut self, timeout: Duration) -> forebay::Result<Option<Option<RecordBatch>>>;

    /// Issues final messages at the end, on Python's main thread.
    fn conclude(&self, _py: Python<'_>) -> PyResult<()> {
        Ok(())
    }
}

/// The batches of a source, until Ctrl-C interrupts it.
struct Interruptible<S> {
    source: S,
    /// Python's main thread, which runs signal handlers; `None` if the stream was requested on another, as then it is
    /// not waited on there.
    main_thread: Option<ThreadId>,
}

impl<S> Interruptible<S> {
    /// Other threads must not wait for the GIL: its holder may be waiting for them.
    fn is_main_thread(&self) -> bool {
        self.main_thread == Some(thread::current().id())
    }
}

impl<S: Poll + Send> Iterator for Interruptible<S> {
    type Item = forebay::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match released(|| self.source.poll(TICK)) {
                Ok(Some(Some(batch))) => return Some(Ok(batch)),
                Ok(Some(None)) => {
                    if self.is_main_thread() {
                        // An exception that a warning filter raises cannot pass through C.
                        attached(|py| {
                            self.source.conclude(py).unwrap_or_else(|error| error.write_unraisable(py, None));
                        });
                    }
                    return None;
                }
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
            if self.is_main_thread()
                && let Some(Err(_)) = attached(check_signals)
            {
                return Some(Err(forebay::Error::Closed { reason: "it was interrupted" }));
            }
        }
    }
}

/// Runs pending signal handlers. Their exceptions cannot pass through C, so Ctrl-C is left for Python to find once the
/// consumer returns.
fn check_signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals().inspect_err(|error| {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            let interrupted = py.import("_thread").and_then(|module| module.call_method0("interrupt_main"));
            interrupted.map_or_else(|error| error.write_unraisable(py, None), drop);
        } else {
            error.clone_ref(py).write_unraisable(py, None);
        }
    })
}

/// Returns the current thread if it is Python's main thread.
fn main_thread(py: Python<'_>) -> PyResult<Option<ThreadId>> {
    let threading = py.import("threading")?;
    let is_main = threading.call_method0("current_thread")?.is(&threading.call_method0("main_thread")?);
    Ok(is_main.then(|| thread::current().id()))
}

/// Exports batches of `schema` as an Arrow stream, converted as the consumer requested.
pub(crate) fn arrow_stream<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    conversion: Option<Conversion>,
    source: impl Poll + Send + 'static,
) -> PyArrowResult<Bound<'py, PyCapsule>> {
    let field = struct_field(conversion.as_ref().map_or(&**schema, |conversion| conversion.schema()));
    let batches = Interruptible { source, main_thread: main_thread(py)? };
    let arrays = batches.map(move |batch| {
        let converted = batch.and_then(|batch| match &conversion {
            None => Ok(batch),
            Some(conversion) => conversion.convert(&batch),
        });
        // C strings cannot contain NUL.
        let failed = |error: forebay::Error| error.describe().replace('\0', "\\0");
        converted.map(struct_array).map_err(|error| arrow_schema::ArrowError::ExternalError(failed(error).into()))
    });
    to_stream_pycapsule(py, Box::new(ArrayIterator::new(arrays, field)), None)
}

fn lock(running: &Mutex<Option<Running>>) -> MutexGuard<'_, Option<Running>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
