//! `forebay._lib.Tensor`: one tensor of a batch, to be passed to a library through DLPack.

use forebay::forms::{Tensor, Unit};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::dlpack;

/// A tensor that any library can take without a copy, with its `from_dlpack`.
#[pyclass(name = "Tensor", module = "forebay._lib", frozen)]
pub(crate) struct PyTensor {
    tensor: Tensor,
    unit: Option<Unit>,
}

impl PyTensor {
    pub(crate) fn new(tensor: Tensor, unit: Option<Unit>) -> Self {
        Self { tensor, unit }
    }
}

#[pymethods]
impl PyTensor {
    /// The NumPy type of dates, times and durations, which the tensor holds as integers.
    #[getter]
    fn time_type(&self) -> Option<String> {
        self.unit.and_then(Unit::numpy_type)
    }

    /// Whether its address is aligned enough for any library to take it without a copy.
    #[getter]
    fn is_aligned(&self) -> bool {
        self.tensor.is_aligned()
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A copy is allowed here, for libraries that only take aligned tensors.
        dlpack::check_request(stream.as_ref(), dl_device, copy.filter(|copy| !copy))?;
        let tensor = if copy == Some(true) { self.tensor.to_owned() } else { self.tensor.clone() };
        dlpack::to_capsule(py, tensor, max_version.is_some_and(|(major, _)| major >= 1))
    }
}
