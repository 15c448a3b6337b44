//! `forebay._lib.Forms`: the forms of a stream's columns, and batches in these forms as Python objects.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use forebay::forms::{self, Converted, Form, Request, Target, Tensor, Unit};
use forebay::{EpochReader, Error, Finish};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::dlpack;
use crate::error::to_py;
use crate::objects::to_list;
use crate::tensor::PyTensor;

/// The form of each column, chosen once for all batches.
#[pyclass(name = "Forms", module = "forebay._lib", frozen)]
pub(crate) struct PyForms {
    forms: Vec<Form>,
}

impl PyForms {
    pub(crate) fn choose(
        reader: &EpochReader,
        requests: &BTreeMap<String, String>,
        target: &str,
        finish: Option<&Finish>,
    ) -> PyResult<Self> {
        let choose = || {
            let parse = |(path, name): (&String, &String)| Ok((path.clone(), name.parse::<Request>()?));
            let requests = requests.iter().map(parse).collect::<Result<BTreeMap<_, _>, Error>>()?;
            let target = match target {
                "torch" => Target::Torch,
                "numpy" => Target::NumPy,
                "jax32" => Target::Jax32,
                _ => Target::Other,
            };
            let forms = reader.forms(&requests, target)?;
            Ok(match finish {
                Some(finish) => finish.forms(forms, reader.schema(), &requests)?,
                None => forms,
            })
        };
        Ok(Self { forms: choose().map_err(|error| to_py(&error))? })
    }

    /// Returns the columns of `batch` by name, with tensors made by `maker`.
    pub(crate) fn convert<'py>(
        &self,
        py: Python<'py>,
        batch: &RecordBatch,
        maker: &TensorMaker<'_, 'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let schema = batch.schema();
        if schema.fields().len() != self.forms.len() {
            return Err(PyValueError::new_err("these forms belong to other columns"));
        }
        let columns = schema.fields().iter().zip(batch.columns()).zip(&self.forms);
        let converted = py.detach(|| {
            columns
                .map(|((field, array), form)| Ok((field.name().clone(), forms::convert(field, array, form)?)))
                .collect::<Result<Vec<_>, Error>>()
        });
        fields(py, converted.map_err(|error| to_py(&error))?, maker)
    }
}

#[pymethods]
impl PyForms {
    /// Restores forms from the text that `__reduce__` wrote.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        let forms = serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { forms })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let text = serde_json::to_string(&self.forms).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((py.get_type::<Self>().getattr("from_json")?, (text,)))
    }
}

/// Makes a library's tensors.
pub(crate) struct TensorMaker<'a, 'py> {
    /// Called with each tensor.
    pub(crate) call: &'a Bound<'py, PyAny>,
    /// Whether it takes a capsule: asking a tensor for its capsule and device would cost as much as all the rest.
    pub(crate) takes_capsules: bool,
}

impl<'py> TensorMaker<'_, 'py> {
    pub(crate) fn make(&self, py: Python<'py>, tensor: Tensor, unit: Option<Unit>) -> PyResult<Bound<'py, PyAny>> {
        if self.takes_capsules {
            return self.call.call1((dlpack::to_capsule(py, tensor, false)?,));
        }
        self.call.call1((PyTensor::new(tensor, unit),))
    }
}

fn fields<'py>(
    py: Python<'py>,
    columns: Vec<(String, Converted)>,
    maker: &TensorMaker<'_, 'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, column) in columns {
        dict.set_item(name, value(py, column, maker)?)?;
    }
    Ok(dict)
}

fn value<'py>(py: Python<'py>, column: Converted, maker: &TensorMaker<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    let tensor = |tensor| maker.make(py, tensor, None);
    match column {
        Converted::Tensor(field, tensor) => maker.make(py, tensor, Unit::of(field.data_type())),
        Converted::Objects(field, array) => Ok(to_list(py, &field, &array)?.into_any()),
        Converted::Ragged(values, offsets) => {
            pair(py, &RAGGED, "Ragged", (value(py, *values, maker)?, tensor(offsets)?))
        }
        Converted::Nested(values, offsets) => {
            pair(py, &NESTED, "nested", (value(py, *values, maker)?, tensor(offsets)?))
        }
        Converted::Struct(columns) => Ok(fields(py, columns, maker)?.into_any()),
        Converted::Indices(indices, values) => {
            pair(py, &INDICES, "DictionaryEncoded", (tensor(indices)?, value(py, *values, maker)?))
        }
        Converted::Masked(values, mask) => pair(py, &MASKED, "Masked", (value(py, *values, maker)?, tensor(mask)?)),
    }
}

static RAGGED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static NESTED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static INDICES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static MASKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Calls a class or function of `forebay.columns` with two arguments.
fn pair<'py>(
    py: Python<'py>,
    cell: &PyOnceLock<Py<PyAny>>,
    name: &str,
    pair: (Bound<'py, PyAny>, Bound<'py, PyAny>),
) -> PyResult<Bound<'py, PyAny>> {
    let import = || Ok::<_, PyErr>(py.import("forebay.columns")?.getattr(name)?.unbind());
    cell.get_or_try_init(py, import)?.bind(py).call1(pair)
}
