//! `forebay._lib.Packer` and `PackedBatch`: documents packed into sequences of one length.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::{Mark, PackSettings, PackedBatch, Packer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::to_py;
use crate::forms::TensorMaker;
use crate::stream::PyStream;

/// Packs the documents of one rank's stream.
#[pyclass(name = "Packer", module = "forebay._lib", frozen)]
pub(crate) struct PyPacker {
    packer: Mutex<Packer>,
}

impl PyPacker {
    fn lock(&self) -> MutexGuard<'_, Packer> {
        self.packer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyPacker {
    /// Packs by settings in JSON, from a mark on: a document, and what was delivered of it and those behind it.
    #[new]
    fn new(settings: &str, document: u64, done: u64) -> PyResult<Self> {
        let settings: PackSettings =
            serde_json::from_str(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let packer = Packer::try_new(settings, Mark { document, done }).map_err(|error| to_py(&error))?;
        Ok(Self { packer: Mutex::new(packer) })
    }

    /// Waits for the next documents of `stream` and takes them.
    fn feed(&self, py: Python<'_>, stream: &PyStream) -> PyResult<()> {
        let batch = stream.next_batch(py)?;
        let taken = py.detach(|| match batch {
            Some(batch) => self.lock().push(batch),
            None => self.lock().end(),
        });
        taken.map_err(|error| to_py(&error))
    }

    /// The next batch of sequences; `None` where more documents are needed, or at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PyPackedBatch>> {
        let batch = py.detach(|| self.lock().next_batch()).map_err(|error| to_py(&error))?;
        Ok(batch.map(|batch| PyPackedBatch { batch }))
    }

    #[getter]
    fn has_batch(&self) -> bool {
        self.lock().has_batch()
    }

    #[getter]
    fn is_done(&self) -> bool {
        self.lock().is_done()
    }

    /// Where packing stands, behind the last batch that was taken.
    #[getter]
    fn mark(&self) -> (u64, u64) {
        let Mark { document, done } = self.lock().mark();
        (document, done)
    }

    /// Tokens delivered, and places that hold none.
    #[getter]
    fn filled(&self) -> (u64, u64) {
        self.lock().filled()
    }
}

/// Sequences of one length, with what tells their documents apart.
#[pyclass(name = "PackedBatch", module = "forebay._lib", frozen)]
pub(crate) struct PyPackedBatch {
    batch: PackedBatch,
}

#[pymethods]
impl PyPackedBatch {
    fn __len__(&self) -> usize {
        self.batch.num_sequences
    }

    /// Columns by name, then `position_ids`, `cu_seqlens` and `max_seqlen`; tensors through `make_tensor`, which is called
    /// with a DLPack capsule.
    fn convert<'py>(&self, py: Python<'py>, make_tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let maker = TensorMaker { call: make_tensor, takes_capsules: true };
        let dict = PyDict::new(py);
        for (name, tensor) in &self.batch.columns {
            dict.set_item(name, maker.make(py, tensor.clone(), None)?)?;
        }
        dict.set_item("position_ids", maker.make(py, self.batch.position_ids.clone(), None)?)?;
        dict.set_item("cu_seqlens", maker.make(py, self.batch.cu_seqlens.clone(), None)?)?;
        dict.set_item("max_seqlen", self.batch.max_seqlen)?;
        Ok(dict)
    }
}
