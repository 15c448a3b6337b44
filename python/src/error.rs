//! Converts core errors to the exceptions of `forebay.exceptions`.

use std::error::Error as _;

use forebay::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::file_system::Raised;

/// Returns the Python exception for `error`: the class is its kind, the text says what failed, where and why.
pub(crate) fn to_py(error: &Error) -> PyErr {
    Python::attach(|py| {
        let raised = raise(py, class_of(error), error.describe());
        raised.set_cause(py, error.source().map(|cause| cause_to_py(py, cause)));
        raised
    })
}

/// Returns the text without secrets: those of stores and of the environment, and those in URLs.
#[pyfunction]
pub(crate) fn redacted(text: &str) -> String {
    forebay::redacted(text)
}

/// Returns what a lower-level library said, and its causes, as a chain of exceptions.
fn cause_to_py(py: Python<'_>, cause: &(dyn std::error::Error + 'static)) -> PyErr {
    if let Some(raised) = raised_below(cause).and_then(|raised| raised.exception(py)) {
        return raised;
    }
    let of_system = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let raised = match of_system {
        Some(number) => PyErr::from(std::io::Error::from_raw_os_error(number)),
        None => raise(py, "Cause", forebay::redacted(&cause.to_string())),
    };
    raised.set_cause(py, cause.source().map(|below| cause_to_py(py, below)));
    raised
}

/// Returns the Python exception that caused `cause`, if there is one.
fn raised_below<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a Raised> {
    let mut causes =
        std::iter::successors(Some(cause), |&cause: &&'a (dyn std::error::Error + 'static)| cause.source());
    causes.find_map(|cause| cause.downcast_ref::<Raised>())
}

/// Returns an exception of `forebay.exceptions`, given the name of its class.
pub(crate) fn raise(py: Python<'_>, class: &str, text: String) -> PyErr {
    let found = py
        .import("forebay.exceptions")
        .and_then(|module| module.getattr(class))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, text),
        Err(import) => {
            let failed = PyRuntimeError::new_err(text);
            failed.set_cause(py, Some(import));
            failed
        }
    }
}

fn class_of(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } | Error::NoObjects { .. } => "NotFoundError",
        Error::PermissionDenied { .. } | Error::NoCredentials { .. } => "AccessDeniedError",
        Error::Store { .. } | Error::Read { .. } | Error::ShortRead { .. } | Error::NoDescriptors { .. } => {
            "StoreError"
        }
        Error::Untrusted { .. } => "StoreError",
        Error::TimedOut { .. } | Error::Impatient { .. } => "StoreTimeoutError",
        Error::ObjectChanged { .. } | Error::StaleCache { .. } => "ObjectChangedError",
        Error::NotParquet { .. } | Error::Decode { .. } | Error::Cast { .. } | Error::Manifest { .. } => "DataError",
        Error::Value { .. } => "DataError",
        Error::SchemaMismatch { .. } | Error::FolderMismatch { .. } | Error::DuplicateColumn { .. } => "SchemaError",
        Error::UnknownColumn { .. } => "ColumnNotFoundError",
        Error::Sql { .. } | Error::NotBoolean { .. } | Error::Evaluate { .. } => "QueryError",
        Error::ManyRows { .. } | Error::Function { .. } | Error::Spill { .. } => "QueryError",
        Error::UnknownClass { .. } | Error::UnorderedClass { .. } => "QueryError",
        Error::Uri { .. } | Error::Setting { .. } | Error::UnknownSplit { .. } => "SettingError",
        Error::RowIndex { .. } => "RowIndexError",
        Error::NotASelection { .. } | Error::SelectionMismatch { .. } => "SelectionError",
        Error::StateMismatch { .. } | Error::NotAState { .. } => "StateError",
        Error::MemoryLimit { .. }
        | Error::BatchMemory { .. }
        | Error::QueryMemory { .. }
        | Error::WindowMemory { .. } => "MemoryLimitError",
        Error::TooManySkipped { .. } => "SkipLimitError",
        Error::NoTensor { .. } => "TensorError",
        Error::Closed { .. } => "ClosedError",
        _ => "ForebayError",
    }
}
