//! `fsspec` file systems: calls go to `forebay.file_systems`, which runs them on Python's own threads.
//!
//! If our threads ran Python code, Python could end one at its exit in the middle of a call. So ours only queue calls,
//! and Python's threads report the results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::{FileAnswer, FileCall, FileError, FileErrorKind, FileInfo, FileReply, FileSystem, set_file_systems};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::exit::attached;

/// Registers `fsspec` for URL schemes that the core does not know.
pub(crate) fn register() {
    set_file_systems(|options| Arc::new(Fsspec { options, calls: PyOnceLock::new() }));
}

struct Fsspec {
    options: BTreeMap<String, String>,
    /// Created by the first call.
    calls: PyOnceLock<Py<PyAny>>,
}

impl FileSystem for Fsspec {
    fn begin(&self, call: FileCall, reply: FileReply) {
        let mut reply = Some(reply);
        drop(attached(|py| {
            let reply = Bound::new(py, PyReply(Mutex::new(reply.take())))?;
            self.submit(py, call, &reply).or_else(|error| reply.get().fail(py, "final", error.into_value(py)))
        }));
        // Python is exiting, which is not reported as a failure: the caller waits until the process ends.
        std::mem::forget(reply);
    }
}

impl Fsspec {
    fn submit(&self, py: Python<'_>, call: FileCall, reply: &Bound<'_, PyReply>) -> PyResult<()> {
        let make = || {
            let class = py.import("forebay.file_systems")?.getattr("Calls")?;
            Ok::<_, PyErr>(class.call1((self.options.clone(),))?.unbind())
        };
        let calls = self.calls.get_or_try_init(py, make)?.bind(py);
        match call {
            FileCall::List { url } => calls.call_method1("submit", ("find", url, (), reply)),
            FileCall::Info { url } => calls.call_method1("submit", ("info", url, (), reply)),
            FileCall::Read { url, range } => {
                calls.call_method1("submit", ("read", url, (range.start, range.end), reply))
            }
            FileCall::Write { url, bytes } => {
                calls.call_method1("submit", ("write", url, (PyBytes::new(py, &bytes),), reply))
            }
        }
        .map(drop)
    }
}

impl fmt::Debug for Fsspec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Options may be secret, so only their names are shown.
        let names: Vec<&String> = self.options.keys().collect();
        f.debug_struct("Fsspec").field("options", &names).finish_non_exhaustive()
    }
}

/// Takes the answer to a call.
#[pyclass(name = "Reply", module = "forebay._lib", frozen)]
pub(crate) struct PyReply(Mutex<Option<FileReply>>);

/// Name, size, and a token that changes when the object does.
type InfoArguments = (String, u64, Option<String>);

#[pymethods]
impl PyReply {
    /// Whether the caller still waits.
    #[getter]
    fn is_wanted(&self) -> bool {
        self.lock().as_ref().is_some_and(FileReply::is_wanted)
    }

    /// Delivers the result of the call. The bytes are not copied.
    #[pyo3(signature = (infos, data=None))]
    fn send(&self, infos: Vec<InfoArguments>, data: Option<PyBackedBytes>) {
        let info = |(name, size_bytes, version)| FileInfo { name, size_bytes, version };
        let bytes = data.map(FileAnswer::owned).unwrap_or_default();
        self.tell(Ok(FileAnswer { infos: infos.into_iter().map(info).collect(), bytes }));
    }

    /// Reports a failure: an exception, and how to react to it.
    fn fail(&self, py: Python<'_>, kind: &str, error: Py<pyo3::exceptions::PyBaseException>) -> PyResult<()> {
        let kind = match kind {
            "not_found" => FileErrorKind::NotFound,
            "denied" => FileErrorKind::Denied,
            "throttled" => FileErrorKind::Throttled,
            "failed" => FileErrorKind::Failed,
            "broken" => FileErrorKind::Broken,
            "stalled" => FileErrorKind::Stalled,
            "unusable" => FileErrorKind::Unusable,
            "stale" => FileErrorKind::Stale,
            "final" => FileErrorKind::Final,
            _ => return Err(PyValueError::new_err(format!("no kind of error is called `{kind}`"))),
        };
        let raised = Raised::new(py, PyErr::from_value(error.into_bound(py).into_any()), kind);
        self.tell(Err(FileError { kind, source: Box::new(raised) }));
        Ok(())
    }
}

impl PyReply {
    fn tell(&self, answer: Result<FileAnswer, FileError>) {
        if let Some(reply) = self.lock().take() {
            reply.send(answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<FileReply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Python exception on its way through the core.
#[derive(Debug)]
pub(crate) struct Raised {
    /// Its text when it was raised: asking for it later would take the GIL.
    said: String,
    error: PyErr,
}

impl Raised {
    fn new(py: Python<'_>, error: PyErr, kind: FileErrorKind) -> Self {
        let class = error.get_type(py).name().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
        let said = error.value(py).str().map_or_else(|_| String::new(), |said| said.to_string());
        let said = match kind {
            _ if said.is_empty() => class,
            // They are sentences of our own.
            FileErrorKind::Unusable | FileErrorKind::Stale => said,
            _ => format!("{class}: {said}"),
        };
        Self { said, error }
    }

    /// Returns the exception, unless its text has something secret.
    pub(crate) fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        (forebay::redacted(&self.said) == self.said).then(|| self.error.clone_ref(py))
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Raised {}
