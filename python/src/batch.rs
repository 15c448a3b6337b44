//! `forebay._lib.Batch` and `Column`: one gathered batch, handed out without copies.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow_schema::{Field, FieldRef, Schema};
use forebay::{Conversion, SchemaRef, display, forms, unknown_column};
use pyo3::exceptions::{PyAttributeError, PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyString, PyTuple};
use pyo3_arrow::error::{PyArrowError, PyArrowResult};
use pyo3_arrow::ffi::{ArrayIterator, to_array_pycapsules, to_schema_pycapsule, to_stream_pycapsule};
use pyo3_arrow::{PyField, PySchema};

use crate::block::{self, PyParts};
use crate::dlpack;
use crate::error::to_py;
use crate::forms::{PyForms, TensorMaker};
use crate::objects;
use crate::parcel;

/// The rows of one step, as one Arrow record batch.
///
/// Any Arrow library can take it without a copy: `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)`. It owns its
/// memory and outlives the stream and the dataset.
// A mapping: with `__getitem__` it would otherwise pass as a sequence, from which NumPy makes arrays.
#[pyclass(name = "Batch", module = "forebay._lib", frozen, mapping)]
pub(crate) struct PyBatch {
    batch: RecordBatch,
}

impl PyBatch {
    pub(crate) fn new(batch: RecordBatch) -> Self {
        Self { batch }
    }

    /// Returns the rows.
    pub(crate) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    fn numbered(&self, number: usize) -> PyColumn {
        PyColumn::new(Arc::clone(self.batch.column(number)), Arc::clone(&self.batch.schema_ref().fields()[number]))
    }

    fn named(&self, name: &Bound<'_, PyString>) -> PyResult<PyColumn> {
        let (name, schema) = (name.to_str()?, self.batch.schema());
        let number = schema.index_of(name).map_err(|_| to_py(&unknown_column(name.to_owned(), name, &schema)))?;
        Ok(self.numbered(number))
    }

    /// Returns the batch in the schema that a consumer requested.
    fn converted(&self, py: Python<'_>, requested: Option<&Bound<'_, PyCapsule>>) -> PyResult<RecordBatch> {
        match conversion(&self.batch.schema(), requested)? {
            None => Ok(self.batch.clone()),
            Some(conversion) => py.detach(|| conversion.convert(&self.batch)).map_err(|error| to_py(&error)),
        }
    }
}

#[pymethods]
impl PyBatch {
    /// The number of rows; `len()` of the batch.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Names of the columns, in order.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The columns' types, as a `pyarrow.Schema`.
    #[getter]
    fn schema<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let pyarrow = slf.py().import("forebay.packages")?.call_method1("import_for", ("`schema`", "pyarrow"))?;
        pyarrow.call_method1("schema", (slf,))
    }

    /// Returns a column by its name, or by its number from 0, without a copy. `batch["path"]` is the same.
    ///
    /// Raises:
    ///     ColumnNotFoundError: there is no column of that name; the message lists similar names.
    ///     IndexError: there is no column of that number.
    ///     TypeError: `column` is neither a name nor a number.
    fn column(&self, column: &Bound<'_, PyAny>) -> PyResult<PyColumn> {
        if let Ok(name) = column.cast::<PyString>() {
            return self.named(name);
        }
        let number = match column.extract::<usize>() {
            Err(error) if !error.is_instance_of::<PyOverflowError>(column.py()) => {
                return Err(PyTypeError::new_err(format!(
                    "expected the name of a column, or its number from 0, got {}; `column_names` has them in their order",
                    column.repr()?
                )));
            }
            number => number.ok(),
        };
        match number {
            Some(number) if number < self.batch.num_columns() => Ok(self.numbered(number)),
            _ => {
                let there = self.batch.num_columns();
                Err(PyIndexError::new_err(format!("no column {column}: the batch has {there}, counted from 0")))
            }
        }
    }

    /// Returns `length` rows from `offset` on, without a copy; fewer at the end of the batch.
    ///
    /// Raises:
    ///     OverflowError: `offset` or `length` is negative.
    fn slice(&self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.batch.num_rows());
        Self::new(self.batch.slice(offset, length.min(self.batch.num_rows() - offset)))
    }

    /// Columns by name, in the forms chosen for them. Tensors are made by `make_tensor`, which is called with a
    /// `Tensor` or its DLPack capsule.
    #[pyo3(signature = (forms, make_tensor, *, takes_capsules=false))]
    fn convert<'py>(
        &self,
        py: Python<'py>,
        forms: &PyForms,
        make_tensor: &Bound<'py, PyAny>,
        takes_capsules: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        forms.convert(py, &self.batch, &TensorMaker { call: make_tensor, takes_capsules })
    }

    /// Returns the columns by name, as lists of Python objects. They are what pyarrow makes of them, several times as
    /// fast.
    ///
    /// Raises:
    ///     DataError: Python has no object for a value.
    fn to_pydict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (schema, columns) = (self.batch.schema(), PyDict::new(py));
        for (field, column) in schema.fields().iter().zip(self.batch.columns()) {
            columns.set_item(field.name(), objects::to_list(py, field, column)?)?;
        }
        Ok(columns)
    }

    /// Returns the rows as dicts of Python objects; see `to_pydict`.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        objects::to_dicts(py, &self.batch)
    }

    /// Whether a column is of an extension type, or holds one.
    #[getter]
    fn has_extensions(&self) -> bool {
        self.batch.schema().fields().iter().any(|field| objects::has_extension(field))
    }

    /// From protocol 5 on, buffers travel beside the pickle (PEP 574), without a copy.
    fn __reduce_ex__<'py>(&self, py: Python<'py>, protocol: u32) -> PyResult<Bound<'py, PyTuple>> {
        parcel::reduce(py, &self.batch, protocol)
    }

    /// Restores a batch from what `__reduce_ex__` wrote.
    #[staticmethod]
    fn from_parts(
        py: Python<'_>,
        schema: &[u8],
        num_rows: usize,
        arrays: &[u8],
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        parcel::restore(py, schema, num_rows, arrays, buffers).map(Self::new)
    }

    /// The buffers of the batch, to be written to a block; `None` for types without a fixed number of buffers.
    fn take_apart(&self, py: Python<'_>) -> PyResult<Option<PyParts>> {
        PyParts::of(py, &self.batch)
    }

    /// Restores the batch that `Parts.write` wrote, from the memory that it took, and in it.
    #[staticmethod]
    fn from_block(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<Self> {
        block::restore(py, memory).map(Self::new)
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns the column of a name; rows are left to the libraries that have objects for them.
    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<PyColumn> {
        if let Ok(name) = key.cast::<PyString>() {
            return self.named(name);
        }
        let key = key.repr()?;
        Err(PyTypeError::new_err(format!(
            "expected the name of a column, got {key}; `pyarrow.record_batch(batch)[{key}]` and \
             `polars.DataFrame(batch)[{key}]` take other items from its memory, and `to_torch`, and `batches` of \
             `ds.with_format('numpy')`, yield dicts of columns"
        )))
    }

    /// Called for attributes that do not exist.
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        let instead = "; instead: `pyarrow.record_batch(batch)` or `polars.DataFrame(batch)`, and their methods";
        let instead = if name.starts_with('_') { "" } else { instead };
        Err(PyAttributeError::new_err(format!("a batch has no `{name}`{instead}")))
    }

    fn __repr__(&self) -> String {
        display::text(&self.batch)
    }

    fn _repr_html_(&self) -> String {
        display::html(&self.batch)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.batch.schema().as_ref())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyArrowResult<Bound<'py, PyTuple>> {
        let batch = self.converted(py, requested_schema.as_ref())?;
        let field = struct_field(&batch.schema());
        to_array_pycapsules(py, field, struct_array(batch).as_ref(), None)
    }

    /// A stream of this one batch, for consumers that only take streams.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyArrowResult<Bound<'py, PyCapsule>> {
        let batch = self.converted(py, requested_schema.as_ref())?;
        let field = struct_field(&batch.schema());
        let arrays = std::iter::once(Ok(struct_array(batch)));
        to_stream_pycapsule(py, Box::new(ArrayIterator::new(arrays, field)), None)
    }
}

/// One column of a batch: an Arrow array, and a tensor if its type allows.
///
/// `pyarrow.array(column)` shares its memory, and so do `torch.from_dlpack(column)` and `numpy.from_dlpack(column)` for
/// numbers and fixed-length lists without NULLs; Booleans are copied, since tensors use one byte for each.
#[pyclass(name = "Column", module = "forebay._lib", frozen)]
pub(crate) struct PyColumn {
    array: ArrayRef,
    field: FieldRef,
}

impl PyColumn {
    pub(crate) fn new(array: ArrayRef, field: FieldRef) -> Self {
        Self { array, field }
    }
}

#[pymethods]
impl PyColumn {
    /// The name of the column.
    #[getter]
    fn name(&self) -> &str {
        self.field.name()
    }

    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// Called for attributes that do not exist.
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        let instead = "; instead: `pyarrow.array(column)`, and its methods";
        let instead = if name.starts_with('_') { "" } else { instead };
        Err(PyAttributeError::new_err(format!("a column has no `{name}`{instead}")))
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
        dlpack::check_request(stream.as_ref(), dl_device, copy)?;
        let tensor = forms::dense(&self.field, &self.array).map_err(|error| to_py(&error))?;
        dlpack::to_capsule(py, tensor, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.field.as_ref())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyArrowResult<Bound<'py, PyTuple>> {
        let (mut array, mut field) = (Arc::clone(&self.array), Arc::clone(&self.field));
        if let Some(capsule) = &requested_schema {
            let wanted = PyField::from_arrow_pycapsule(capsule)?.into_inner();
            // The name does not matter: a column is passed on its own.
            let wanted = Field::clone(&wanted).with_name(field.name());
            let conversion = Conversion::try_new(&one_column(&field), &one_column(&Arc::new(wanted)));
            let conversion = conversion.map_err(|error| to_py(&error))?;
            let batch = RecordBatch::try_new(one_column(&field), vec![array]).map_err(PyArrowError::from)?;
            let converted = py.detach(|| conversion.convert(&batch)).map_err(|error| to_py(&error))?;
            array = Arc::clone(converted.column(0));
            field = Arc::clone(&conversion.schema().fields()[0]);
        }
        to_array_pycapsules(py, field, &array, None)
    }
}

fn one_column(field: &FieldRef) -> SchemaRef {
    Arc::new(Schema::new(vec![Arc::clone(field)]))
}

/// Returns the field that describes batches of `schema` as structs.
pub(crate) fn struct_field(schema: &Schema) -> FieldRef {
    let field = Field::new_struct("", schema.fields().clone(), false);
    Arc::new(field.with_metadata(schema.metadata().clone()))
}

/// Returns the batch as a struct array, which is how the C interface carries it.
pub(crate) fn struct_array(batch: RecordBatch) -> ArrayRef {
    Arc::new(StructArray::from(batch))
}

/// Returns the conversion from `schema` to the schema that a consumer requested; `None` if none is needed.
pub(crate) fn conversion(schema: &Schema, requested: Option<&Bound<'_, PyCapsule>>) -> PyResult<Option<Conversion>> {
    let Some(capsule) = requested else { return Ok(None) };
    // `PySchema` imports a copy, so the capsule stays the caller's.
    let wanted = PySchema::from_arrow_pycapsule(capsule)?.into_inner();
    Conversion::try_new(schema, &wanted).map(Some).map_err(|error| to_py(&error))
}
