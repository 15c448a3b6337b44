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
    /// Called without the GIL: pushing drops batches, whose memory may be Python's.
    fn lock(&self) -> MutexGuard<'_, Packer> {
        self.packer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyPacker {
    /// Creates a packer from settings in JSON that starts at a mark: a document, and how much of it and the following
    /// ones was delivered. The documents of a window take at most `memory_limit` bytes.
    #[new]
    fn new(settings: &str, document: u64, done: u64, memory_limit: u64) -> PyResult<Self> {
        let settings: PackSettings =
            serde_json::from_str(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let packer = Packer::try_new(settings, Mark { document, done }).map_err(|error| to_py(&error))?;
        Ok(Self { packer: Mutex::new(packer.within(memory_limit)) })
    }

    /// Waits for the next documents of `stream` and adds them.
    fn feed(&self, py: Python<'_>, stream: &PyStream) -> PyResult<()> {
        let batch = stream.next_batch(py)?;
        let taken = py.detach(|| match batch {
            Some(batch) => self.lock().push(batch),
            None => self.lock().end(),
        });
        taken.map_err(|error| to_py(&error))
    }

    /// The next batch of sequences; `None` if more documents are needed, or at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PyPackedBatch>> {
        let batch = py.detach(|| self.lock().next_batch()).map_err(|error| to_py(&error))?;
        Ok(batch.map(|batch| PyPackedBatch { batch }))
    }

    #[getter]
    fn has_batch(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().has_batch())
    }

    #[getter]
    fn is_done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().is_done())
    }

    /// The position of packing after the last batch that was taken.
    #[getter]
    fn mark(&self, py: Python<'_>) -> (u64, u64) {
        let Mark { document, done } = py.detach(|| self.lock().mark());
        (document, done)
    }

    /// Number of tokens delivered, and of positions without one.
    #[getter]
    fn filled(&self, py: Python<'_>) -> (u64, u64) {
        py.detach(|| self.lock().filled())
    }
}

/// Sequences of one length, with what separates their documents.
#[pyclass(name = "PackedBatch", module = "forebay._lib", frozen)]
pub(crate) struct PyPackedBatch {
    batch: PackedBatch,
}

#[pymethods]
impl PyPackedBatch {
    fn __len__(&self) -> usize {
        self.batch.num_sequences
    }

    /// Columns by name, then `position_ids`, `cu_seqlens` and `max_seqlen`. Tensors are made by `make_tensor`, which is
    /// called with a DLPack capsule.
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
