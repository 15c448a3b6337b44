//! What queries exchange with Python: parameters, tables, functions, rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};
use forebay::{
    Error, Function, FunctionBody, OF_ANOTHER_PROCESS, OfProcess, QueryStream, Request, Rows, ScalarValue, Table,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyTuple};
use pyo3_arrow::PyArray;
use pyo3_arrow::PyDataType;
use pyo3_arrow::error::PyArrowResult;
use pyo3_arrow::ffi::to_schema_pycapsule;
use pyo3_arrow::input::{AnyArray, AnyRecordBatch};

use crate::batch::{PyBatch, conversion};
use crate::dataset::PyDataset;
use crate::error::to_py;
use crate::exit::attached;
use crate::runtime::TICK;
use crate::stream::{Poll, arrow_stream, closed};

/// An in-memory table for a query.
#[pyclass(name = "Table", module = "forebay._lib", frozen)]
pub(crate) struct PyTable {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

#[pymethods]
impl PyTable {
    /// Takes over the batches of an Arrow stream or array.
    #[new]
    fn new(py: Python<'_>, rows: AnyRecordBatch) -> PyResult<Self> {
        let reader = rows.into_reader()?;
        let schema = reader.schema();
        let checked = |batch: RecordBatch| {
            batch.columns().iter().try_for_each(check)?;
            Ok(batch)
        };
        let taken = py.detach(|| {
            let batches = reader.map(|batch| batch.and_then(checked)).collect::<Result<Vec<_>, _>>()?;
            forebay::plain_rows(&schema, batches)
        });
        let (schema, batches) = taken.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { schema, batches })
    }

    #[staticmethod]
    fn from_ipc(bytes: &[u8]) -> PyResult<Self> {
        let (schema, batches) = forebay::ipc::read(bytes).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { schema, batches })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let bytes = forebay::ipc::write(&self.schema, &self.batches);
        let bytes = bytes.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((py.get_type::<Self>().getattr("from_ipc")?, (PyBytes::new(py, &bytes),)))
    }
}

/// A user-defined function for a query.
#[pyclass(name = "Function", module = "forebay._lib", frozen)]
pub(crate) struct PyFunction {
    function: Arc<Function>,
    call: Py<PyAny>,
    arguments: Py<PyAny>,
    returns: Py<PyAny>,
}

#[pymethods]
impl PyFunction {
    /// `arguments` and `returns` are Arrow types from any library.
    #[new]
    fn new(
        py: Python<'_>,
        name: String,
        call: Py<PyAny>,
        arguments: Vec<Py<PyAny>>,
        returns: Py<PyAny>,
    ) -> PyResult<Self> {
        let types = arguments.iter().map(|argument| Ok(argument.extract::<PyDataType>(py)?.into_inner()));
        let types = types.collect::<PyResult<Vec<_>>>()?;
        let returned = returns.extract::<PyDataType>(py)?.into_inner();
        let body = body_of(call.clone_ref(py));
        let function = Arc::new(Function::new(name, types, returned, body));
        let arguments = PyTuple::new(py, arguments)?.into_any().unbind();
        Ok(Self { function, call, arguments, returns })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let arguments = (self.function.name(), &self.call, &self.arguments, &self.returns).into_pyobject(py)?;
        Ok((py.get_type::<Self>().into_any(), arguments))
    }
}

/// Calls a Python function with `pyarrow` arrays.
fn body_of(call: Py<PyAny>) -> Arc<FunctionBody> {
    Arc::new(move |arrays, num_rows| {
        // Exceptions, too, are Python's: nothing of one is left when Python may end.
        let answer = attached(|py| called(py, &call, arrays, num_rows).map_err(|error| describe_exception(py, &error)));
        answer.unwrap_or_else(|| Err("Python is shutting down".to_owned()))
    })
}

fn called(py: Python<'_>, call: &Py<PyAny>, arrays: &[ArrayRef], num_rows: usize) -> PyResult<ArrayRef> {
    let to_pyarrow = |array: &ArrayRef| Ok(PyArray::from_array_ref(Arc::clone(array)).to_pyarrow(py)?.unbind());
    let arrays = arrays.iter().map(to_pyarrow);
    let arguments = match arrays.len() {
        0 => PyTuple::new(py, [num_rows])?,
        _ => PyTuple::new(py, arrays.collect::<PyResult<Vec<_>>>()?)?,
    };
    let returned = call.call1(py, arguments)?;
    one_array(returned.bind(py))
}

fn one_array(returned: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let array: AnyArray = returned.extract().map_err(|_| {
        let class = returned.get_type();
        PyTypeError::new_err(format!("it returned {class}, expected an Arrow array such as `pyarrow.array(...)`"))
    })?;
    let refused = |error: ArrowError| PyValueError::new_err(error.to_string());
    let chunks = match array {
        AnyArray::Array(array) => vec![array.into_inner().0],
        AnyArray::Stream(_) => array.into_chunked_array().map_err(PyErr::from)?.chunks().to_vec(),
    };
    chunks.iter().try_for_each(check).map_err(refused)?;
    // Copied: memory of NumPy's is freed with the GIL held, and our threads free it whenever they like, also at Python's
    // exit.
    let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
    forebay::parts::joined(&chunks).map_err(refused)
}

/// Validates an array of another library, which may have invalid UTF-8 or out-of-range indexes and offsets: all readers
/// trust it.
fn check(array: &ArrayRef) -> Result<(), ArrowError> {
    array.to_data().validate_full()
}

fn describe_exception(py: Python<'_>, error: &PyErr) -> String {
    let class = error.get_type(py).name().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
    format!("{class}: {}", error.value(py))
}

/// How a dataset was made: enough to make it again in another process.
pub(crate) struct Recipe {
    pub(crate) base: Py<PyDataset>,
    /// The method of `base` that made it.
    pub(crate) method: &'static str,
    pub(crate) arguments: Py<PyTuple>,
}

impl Recipe {
    /// Returns the dataset that calling `method` on `base` with `arguments` makes.
    pub(crate) fn try_new<'py>(
        base: &Bound<'py, PyDataset>,
        method: &'static str,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) -> PyResult<Self> {
        let arguments = arguments.into_pyobject(base.py())?.unbind();
        Ok(Self { base: base.clone().unbind(), method, arguments })
    }
}

/// Builds a request from Python arguments.
pub(crate) fn request(
    py: Python<'_>,
    text: &str,
    parameters: &BTreeMap<String, Py<PyAny>>,
    tables: &BTreeMap<String, Py<PyAny>>,
    functions: &[Py<PyFunction>],
) -> PyResult<Request> {
    let tables = tables.iter().map(|(name, table)| Ok((name.clone(), table_of(table.bind(py))?)));
    Ok(Request {
        text: text.to_owned(),
        parameters: values(py, parameters)?,
        tables: tables.collect::<PyResult<_>>()?,
        functions: functions.iter().map(|function| Arc::clone(&function.get().function)).collect(),
    })
}

/// Returns the values of parameters.
pub(crate) fn values(
    py: Python<'_>,
    parameters: &BTreeMap<String, Py<PyAny>>,
) -> PyResult<BTreeMap<String, ScalarValue>> {
    let value = |(name, value): (&String, &Py<PyAny>)| match forebay::scalar(&parameter(value.bind(py))?) {
        Ok(value) => Ok((name.clone(), value)),
        Err(reason) => Err(to_py(&Error::Setting { name: "params", reason: format!("`{name}`: {reason}") })),
    };
    parameters.iter().map(value).collect()
}

fn parameter(value: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    Ok(value.extract::<PyArray>()?.into_inner().0)
}

fn table_of(table: &Bound<'_, PyAny>) -> PyResult<Table> {
    if let Ok(dataset) = table.cast::<PyDataset>() {
        return Ok(Table::Dataset(Box::new(dataset.get().dataset().clone())));
    }
    let table = table.cast::<PyTable>()?.get();
    Ok(Table::Batches(Arc::clone(&table.schema), table.batches.clone()))
}

/// The rows returned by a query.
#[pyclass(name = "Rows", module = "forebay._lib", frozen)]
pub(crate) struct PyRows {
    /// `None` once the rows were closed or handed over. A forked child may find it locked forever.
    stream: OfProcess<Mutex<Option<QueryStream>>>,
    schema: SchemaRef,
}

impl Poll for QueryStream {
    fn poll(&mut self, timeout: Duration) -> forebay::Result<Option<Option<RecordBatch>>> {
        Self::poll(self, timeout)
    }
}

const CLOSED: &str = "it was closed or consumed before; query again";

impl PyRows {
    fn new(stream: QueryStream) -> Self {
        let schema = Arc::clone(stream.schema());
        Self { stream: OfProcess::new(Mutex::new(Some(stream))), schema }
    }

    fn take(&self) -> Option<QueryStream> {
        self.stream.get()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl PyRows {
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    #[getter]
    fn column_types(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.data_type().to_string()).collect()
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        let stream = self.stream.get().ok_or_else(|| closed(OF_ANOTHER_PROCESS))?;
        loop {
            let polled = py.detach(|| {
                let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                stream.as_mut().map(|stream| stream.poll(TICK))
            });
            let polled = polled.ok_or_else(|| closed(CLOSED))?;
            match polled.map_err(|error| to_py(&error))? {
                Some(batch) => return Ok(batch.map(PyBatch::new)),
                None => py.check_signals()?,
            }
        }
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
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
        let conversion = conversion(&self.schema, requested_schema.as_ref())?;
        let stream = self.take().ok_or_else(|| closed(CLOSED))?;
        arrow_stream(py, &self.schema, conversion, stream)
    }
}

/// Returns rows of the dataset as a `Dataset`, and others as `Rows`.
pub(crate) fn rows_to_py(py: Python<'_>, rows: Rows) -> PyResult<Py<PyAny>> {
    Ok(match rows {
        Rows::Dataset(dataset) => Py::new(py, PyDataset::plain(*dataset))?.into_any(),
        Rows::Stream(stream) => Py::new(py, PyRows::new(stream))?.into_any(),
    })
}
