//! `forebay._lib.Tensor`: one tensor of a batch, to be passed to a library through DLPack.

use forebay::forms::{Element, Tensor, Unit};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::dlpack;
use crate::parcel::memory_of;

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

/// Returns a DLPack capsule over an object's memory, for one consumer; `None` for types that are not passed so.
/// Memory that is read-only is copied.
#[pyfunction]
pub(crate) fn tensor_over<'py>(
    py: Python<'py>,
    memory: &Bound<'py, PyAny>,
    dtype: &str,
    shape: Vec<i64>,
) -> PyResult<Option<Bound<'py, PyCapsule>>> {
    let element = match dtype {
        "int8" => Element::Int(8),
        "int16" => Element::Int(16),
        "int32" => Element::Int(32),
        "int64" => Element::Int(64),
        "uint8" => Element::UInt(8),
        "float16" => Element::Float(16),
        "bfloat16" => Element::BFloat16,
        "float32" => Element::Float(32),
        "float64" => Element::Float(64),
        "bool" => Element::Bool,
        _ => return Ok(None),
    };
    let tensor = Tensor::row_major(element, shape, memory_of(memory)?);
    dlpack::to_capsule(py, tensor, false).map(Some)
}
