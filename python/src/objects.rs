//! Columns as lists of Python objects, with `None` for NULL.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::display::array_value_to_string;
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field, FieldRef, Fields};
use arrow_select::take::take;
use pyo3::exceptions::{PyException, PyImportError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::batch::PyColumn;
use crate::error::raise;

/// Maximum number of characters of a value in an error.
const MOST_CHARS: usize = 80;

/// Returns the values of a column. Those of types that Python has, and lists, structs and maps of them, are converted
/// here, others by pyarrow, which is the reference: what fails here is left to it.
pub(crate) fn to_list<'py>(py: Python<'py>, field: &FieldRef, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    match own(py, field, array) {
        Err(error) if !error.is_instance_of::<PyException>(py) || error.is_instance_of::<PyMemoryError>(py) => {
            return Err(error);
        }
        Err(_) => {}
        converted => return converted,
    }
    let list = |array: &ArrayRef| of_arrow(py, field, array);
    list(array).map_err(|error| {
        let is_of_value = error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyImportError>(py);
        if !is_of_value || error.is_instance_of::<PyMemoryError>(py) {
            return error;
        }
        // Types that pyarrow cannot convert are refused even if there are no values.
        let has_objects = list(&array.slice(0, 0)).is_ok();
        let row = (0..array.len()).find(|&row| has_objects && list(&array.slice(row, 1)).is_err());
        no_object(py, field, array, row, error)
    })
}

/// Returns the rows of a batch as dicts.
pub(crate) fn to_dicts<'py>(py: Python<'py>, batch: &RecordBatch) -> PyResult<Bound<'py, PyList>> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| to_list(py, field, column));
    let rows = Dicts::new(py, schema.fields(), columns.collect::<PyResult<_>>()?)?;
    PyList::new(py, (0..batch.num_rows()).map(|row| rows.get(row)).collect::<PyResult<Vec<_>>>()?)
}

/// Returns whether a field or one within it is of an extension type.
pub(crate) fn has_extension(field: &Field) -> bool {
    is_extension(field)
        || match field.data_type() {
            DataType::Struct(fields) => fields.iter().any(|field| has_extension(field)),
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::FixedSizeList(item, _)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::Map(item, _) => has_extension(item),
            _ => false,
        }
}

fn is_extension(field: &Field) -> bool {
    field.metadata().contains_key(EXTENSION_TYPE_NAME_KEY)
}

/// Returns the values that pyarrow makes of an array.
fn of_arrow<'py>(py: Python<'py>, field: &FieldRef, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let what = format!("column `{}` of type `{}` as Python objects", field.name(), field.data_type());
    let arrow = py.import("forebay.packages")?.call_method1("import_for", (what, "pyarrow"))?;
    let column = PyColumn::new(ArrayRef::clone(array), FieldRef::clone(field));
    Ok(arrow.call_method1("array", (column,))?.call_method0("to_pylist")?.cast_into()?)
}

/// Returns the exception for a column, or for one row of it, for which pyarrow raised `error`.
fn no_object(py: Python<'_>, field: &FieldRef, array: &ArrayRef, row: Option<usize>, error: PyErr) -> PyErr {
    let (name, data_type) = (field.name(), field.data_type());
    let what = match row {
        None => format!("column `{name}` of type `{data_type}`: Python has no objects for its values"),
        Some(row) => {
            let shown = |value: String| format!("`{}`", value.chars().take(MOST_CHARS).collect::<String>());
            let value = array_value_to_string(array, row).map_or_else(|_| "its value".to_owned(), shown);
            format!("column `{name}` of type `{data_type}`, row {row} of the batch: Python has no object for {value}")
        }
    };
    let text = format!("{what}: {}; leave it out, or read `ds.batches(n)`", error.value(py));
    let raised = raise(py, "DataError", text);
    raised.set_cause(py, Some(error));
    raised
}

/// Returns the values as in [`to_list`], or whatever went wrong.
fn own<'py>(py: Python<'py>, field: &FieldRef, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let text = |value: Option<&str>| value.map(|value| PyString::new(py, value));
    let data = |value: Option<&[u8]>| value.map(|value| PyBytes::new(py, value));
    match array.data_type() {
        DataType::Null => PyList::new(py, (0..array.len()).map(|_| py.None())),
        DataType::Utf8 => PyList::new(py, array.as_string::<i32>().iter().map(text)),
        DataType::LargeUtf8 => PyList::new(py, array.as_string::<i64>().iter().map(text)),
        DataType::Utf8View => PyList::new(py, array.as_string_view().iter().map(text)),
        DataType::Binary => PyList::new(py, array.as_binary::<i32>().iter().map(data)),
        DataType::LargeBinary => PyList::new(py, array.as_binary::<i64>().iter().map(data)),
        DataType::BinaryView => PyList::new(py, array.as_binary_view().iter().map(data)),
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            decimals(py, array)
        }
        DataType::List(item) => {
            let list = array.as_list::<i32>();
            let range = |row: usize| (list.offsets()[row] as usize, list.offsets()[row + 1] as usize);
            rows(py, array, range, |first, len| own(py, item, &list.values().slice(first, len)))
        }
        DataType::LargeList(item) => {
            let list = array.as_list::<i64>();
            let at = |row: usize| usize::try_from(list.offsets()[row]).unwrap_or(0);
            let range = |row: usize| (at(row), at(row + 1));
            rows(py, array, range, |first, len| own(py, item, &list.values().slice(first, len)))
        }
        DataType::FixedSizeList(item, len) => {
            let len = usize::try_from(*len).unwrap_or(0);
            let items = array.as_fixed_size_list().values();
            rows(py, array, |row| (row * len, (row + 1) * len), |first, len| own(py, item, &items.slice(first, len)))
        }
        DataType::Dictionary(_, values) => {
            let dictionary = array.as_any_dictionary();
            let field = Arc::new(Field::new(field.name(), values.as_ref().clone(), true));
            if dictionary.values().len() > array.len() {
                // The dictionary may hold more values of other batches than of this one.
                let decoded = take(dictionary.values(), dictionary.keys(), None);
                return own(py, &field, &decoded.map_err(|error| PyValueError::new_err(error.to_string()))?);
            }
            let values = own(py, &field, dictionary.values())?;
            // Without values, all rows are NULL and keys have no valid range.
            let has_values = !dictionary.values().is_empty();
            let keys = if has_values { dictionary.normalized_keys() } else { Vec::new() };
            let item = |row: usize| {
                if array.is_null(row) { Ok(py.None()) } else { values.get_item(keys[row]).map(Bound::unbind) }
            };
            PyList::new(py, (0..array.len()).map(item).collect::<PyResult<Vec<_>>>()?)
        }
        // Of these, an extension type may make something else.
        _ if is_extension(field) => of_arrow(py, field, array),
        DataType::Boolean => PyList::new(py, array.as_boolean().iter()),
        DataType::Int8 => PyList::new(py, array.as_primitive::<Int8Type>().iter()),
        DataType::Int16 => PyList::new(py, array.as_primitive::<Int16Type>().iter()),
        DataType::Int32 => PyList::new(py, array.as_primitive::<Int32Type>().iter()),
        DataType::Int64 => PyList::new(py, array.as_primitive::<Int64Type>().iter()),
        DataType::UInt8 => PyList::new(py, array.as_primitive::<UInt8Type>().iter()),
        DataType::UInt16 => PyList::new(py, array.as_primitive::<UInt16Type>().iter()),
        DataType::UInt32 => PyList::new(py, array.as_primitive::<UInt32Type>().iter()),
        DataType::UInt64 => PyList::new(py, array.as_primitive::<UInt64Type>().iter()),
        DataType::Float32 => PyList::new(py, array.as_primitive::<Float32Type>().iter()),
        DataType::Float64 => PyList::new(py, array.as_primitive::<Float64Type>().iter()),
        DataType::FixedSizeBinary(_) => PyList::new(py, array.as_fixed_size_binary().iter().map(data)),
        DataType::Struct(fields) if has_distinct_names(fields) => {
            let parts = fields.iter().zip(array.as_struct().columns()).map(|(field, part)| own(py, field, part));
            let dicts = Dicts::new(py, fields, parts.collect::<PyResult<_>>()?)?;
            let dict = |row: usize| if array.is_null(row) { Ok(py.None()) } else { dicts.get(row) };
            PyList::new(py, (0..array.len()).map(dict).collect::<PyResult<Vec<_>>>()?)
        }
        DataType::Map(entries, _) if let DataType::Struct(parts) = entries.data_type() => {
            let map = array.as_map();
            let range = |row: usize| (map.offsets()[row] as usize, map.offsets()[row + 1] as usize);
            rows(py, array, range, |first, len| {
                let part = |number: usize| own(py, &parts[number], &map.entries().column(number).slice(first, len));
                let (keys, values) = (part(0)?, part(1)?);
                let pair = |(key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>)| PyTuple::new(py, [key, value]);
                PyList::new(py, keys.iter().zip(values.iter()).map(pair).collect::<PyResult<Vec<_>>>()?)
            })
        }
        _ => of_arrow(py, field, array),
    }
}

/// Returns the rows of a list column, as slices of its items, which `items` makes from the first to the last of them.
fn rows<'py>(
    py: Python<'py>,
    array: &ArrayRef,
    range: impl Fn(usize) -> (usize, usize),
    items: impl FnOnce(usize, usize) -> PyResult<Bound<'py, PyList>>,
) -> PyResult<Bound<'py, PyList>> {
    // Items before the first row and after the last one belong to other slices.
    let (first, last) = if array.is_empty() { (0, 0) } else { (range(0).0, range(array.len() - 1).1) };
    let items = items(first, last - first)?;
    let row = |row: usize| {
        let (start, end) = range(row);
        if array.is_null(row) { py.None() } else { items.get_slice(start - first, end - first).into_any().unbind() }
    };
    PyList::new(py, (0..array.len()).map(row).collect::<Vec<_>>())
}

/// Structs, or the rows of a batch, as dicts, whose keys they share.
struct Dicts<'py> {
    /// A dict with all keys: its copies do not grow while they are filled.
    empty: Bound<'py, PyDict>,
    parts: Vec<(Bound<'py, PyString>, Bound<'py, PyList>)>,
}

impl<'py> Dicts<'py> {
    fn new(py: Python<'py>, fields: &Fields, parts: Vec<Bound<'py, PyList>>) -> PyResult<Self> {
        let (empty, names) = (PyDict::new(py), fields.iter().map(|field| PyString::new(py, field.name())));
        let parts: Vec<_> = names.zip(parts).collect();
        parts.iter().try_for_each(|(name, _)| empty.set_item(name, py.None()))?;
        Ok(Self { empty, parts })
    }

    fn get(&self, row: usize) -> PyResult<Py<PyAny>> {
        let dict = self.empty.copy()?;
        for (name, part) in &self.parts {
            dict.set_item(name, part.get_item(row)?)?;
        }
        Ok(dict.into_any().unbind())
    }
}

fn has_distinct_names(fields: &Fields) -> bool {
    fields.iter().map(|field| field.name()).collect::<HashSet<_>>().len() == fields.len()
}

fn decimals<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let import = || Ok::<_, PyErr>(py.import("decimal")?.getattr("Decimal")?.unbind());
    let decimal = DECIMAL.get_or_try_init(py, import)?.bind(py);
    let value = |row: usize| {
        if array.is_null(row) {
            return Ok(py.None());
        }
        let text = array_value_to_string(array, row).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(decimal.call1((text,))?.unbind())
    };
    PyList::new(py, (0..array.len()).map(value).collect::<PyResult<Vec<_>>>()?)
}
