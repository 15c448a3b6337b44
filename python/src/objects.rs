//! Columns as lists of Python objects, with `None` for NULL.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, FieldRef};
use arrow_select::take::take;
use pyo3::exceptions::{PyException, PyImportError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::batch::PyColumn;
use crate::error::raise;

/// Maximum number of characters of a value in an error.
const MOST_CHARS: usize = 80;

/// Returns the values of a column. Strings, binary, decimals and lists of them are converted here, other types by
/// pyarrow.
pub(crate) fn to_list<'py>(py: Python<'py>, field: &FieldRef, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    if let Some(list) = own(py, array)? {
        return Ok(list);
    }
    let arrow = py.import("pyarrow").map_err(|error| {
        let (name, data_type) = (field.name(), field.data_type());
        let said = PyImportError::new_err(format!(
            "column `{name}` of type `{data_type}` as Python objects needs pyarrow: `pip install 'forebay[arrow]'`"
        ));
        said.set_cause(py, Some(error));
        said
    })?;
    let list = |array: ArrayRef| -> PyResult<Bound<'py, PyList>> {
        let column = PyColumn::new(array, FieldRef::clone(field));
        Ok(arrow.call_method1("array", (column,))?.call_method0("to_pylist")?.cast_into()?)
    };
    list(ArrayRef::clone(array)).map_err(|error| {
        if !error.is_instance_of::<PyException>(py) || error.is_instance_of::<PyMemoryError>(py) {
            return error;
        }
        // Types that pyarrow cannot convert are refused even if there are no values.
        let has_objects = list(array.slice(0, 0)).is_ok();
        let row = (0..array.len()).find(|&row| has_objects && list(array.slice(row, 1)).is_err());
        no_object(py, field, array, row, error)
    })
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

/// Returns the values for types that do not need pyarrow.
fn own<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Option<Bound<'py, PyList>>> {
    let text = |value: Option<&str>| value.map(|value| PyString::new(py, value));
    let data = |value: Option<&[u8]>| value.map(|value| PyBytes::new(py, value));
    Ok(Some(match array.data_type() {
        DataType::Null => PyList::new(py, (0..array.len()).map(|_| py.None()))?,
        DataType::Utf8 => PyList::new(py, array.as_string::<i32>().iter().map(text))?,
        DataType::LargeUtf8 => PyList::new(py, array.as_string::<i64>().iter().map(text))?,
        DataType::Utf8View => PyList::new(py, array.as_string_view().iter().map(text))?,
        DataType::Binary => PyList::new(py, array.as_binary::<i32>().iter().map(data))?,
        DataType::LargeBinary => PyList::new(py, array.as_binary::<i64>().iter().map(data))?,
        DataType::BinaryView => PyList::new(py, array.as_binary_view().iter().map(data))?,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            decimals(py, array)?
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            return rows(py, array, list.values(), |row| {
                (list.offsets()[row] as usize, list.offsets()[row + 1] as usize)
            });
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let at = |row: usize| usize::try_from(list.offsets()[row]).unwrap_or(0);
            return rows(py, array, list.values(), |row| (at(row), at(row + 1)));
        }
        DataType::FixedSizeList(_, len) => {
            let len = usize::try_from(*len).unwrap_or(0);
            return rows(py, array, array.as_fixed_size_list().values(), |row| (row * len, (row + 1) * len));
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            if dictionary.values().len() > array.len() {
                // The dictionary may hold more values of other batches than of this one.
                let decoded = take(dictionary.values(), dictionary.keys(), None);
                return own(py, &decoded.map_err(|error| PyValueError::new_err(error.to_string()))?);
            }
            let Some(values) = own(py, dictionary.values())? else { return Ok(None) };
            // Without values, all rows are NULL and keys have no valid range.
            let has_values = !dictionary.values().is_empty();
            let keys = if has_values { dictionary.normalized_keys() } else { Vec::new() };
            let item = |row: usize| {
                if array.is_null(row) { Ok(py.None()) } else { values.get_item(keys[row]).map(Bound::unbind) }
            };
            PyList::new(py, (0..array.len()).map(item).collect::<PyResult<Vec<_>>>()?)?
        }
        _ => return Ok(None),
    }))
}

/// Returns the rows of a list column, as slices of its items.
fn rows<'py>(
    py: Python<'py>,
    array: &ArrayRef,
    items: &ArrayRef,
    range: impl Fn(usize) -> (usize, usize),
) -> PyResult<Option<Bound<'py, PyList>>> {
    // Items before the first row and after the last one belong to other slices.
    let (first, last) = if array.is_empty() { (0, 0) } else { (range(0).0, range(array.len() - 1).1) };
    let Some(items) = own(py, &items.slice(first, last - first))? else { return Ok(None) };
    let row = |row: usize| {
        let (start, end) = range(row);
        if array.is_null(row) { py.None() } else { items.get_slice(start - first, end - first).into_any().unbind() }
    };
    Ok(Some(PyList::new(py, (0..array.len()).map(row).collect::<Vec<_>>())?))
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
