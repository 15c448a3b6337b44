//! Core errors to the exceptions of `forebay.exceptions`.

use std::error::Error as _;

use forebay::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Returns the Python exception for `error`: the class says what kind, the text says what, where and why.
pub(crate) fn to_py(error: &Error) -> PyErr {
    Python::attach(|py| {
        let text = describe(error);
        let raised = py
            .import("forebay.exceptions")
            .and_then(|module| module.getattr(class_of(error)))
            .and_then(|class| Ok(class.cast_into::<PyType>()?));
        match raised {
            Ok(class) => PyErr::from_type(class, text),
            Err(import) => {
                let failed = PyRuntimeError::new_err(text);
                failed.set_cause(py, Some(import));
                failed
            }
        }
    })
}

fn class_of(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } | Error::NoObjects { .. } => "NotFoundError",
        Error::PermissionDenied { .. } => "AccessDeniedError",
        Error::Store { .. } | Error::Read { .. } | Error::ShortRead { .. } => "StoreError",
        Error::ObjectChanged { .. } => "ObjectChangedError",
        Error::NotParquet { .. } | Error::Decode { .. } | Error::Cast { .. } => "DataError",
        Error::SchemaMismatch { .. } | Error::DuplicateColumn { .. } => "SchemaError",
        Error::UnknownColumn { .. } => "ColumnNotFoundError",
        Error::Sql { .. } | Error::NotBoolean { .. } | Error::Evaluate { .. } => "QueryError",
        Error::Uri { .. } | Error::Setting { .. } | Error::UnknownSplit { .. } => "SettingError",
        Error::StateMismatch { .. } | Error::NotAState { .. } => "StateError",
        Error::MemoryLimit { .. } | Error::BatchMemory { .. } => "MemoryLimitError",
        Error::NoTensor { .. } => "TensorError",
        Error::Closed { .. } => "ClosedError",
        _ => "ForebayError",
    }
}

/// Returns the message with its causes, since Python shows one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = source.source();
    }
    text
}
