//! Pickled batches: buffers travel beside the pickle if the pickler supports it (PEP 574), and are used in place on
//! arrival.
#![expect(unsafe_code, reason = "the buffer protocol is a C interface; memory of Python's is used where it is")]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use forebay::ipc;
use forebay::parts::{self, Buffer, Parts};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyTuple};
use pyo3::{ffi, intern};

use crate::batch::PyBatch;

/// The first pickle protocol with out-of-band buffers.
const WITH_BUFFERS: u32 = 5;

/// Bytes that describe an array in a pickle: its length, and whether it has a validity bitmap.
pub(crate) const ARRAY_BYTES: usize = 9;

/// A schema and its serialized bytes.
type Known = (SchemaRef, Arc<[u8]>);

static PICKLE_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The schema that was pickled or restored last: batches of a stream share one.
static LAST: Mutex<Option<Known>> = Mutex::new(None);

/// Memory of a batch, exposed in place.
#[pyclass(name = "Buffer", module = "forebay._lib", frozen)]
struct PyMemory(Buffer);

#[pymethods]
impl PyMemory {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let buffer = &slf.get().0;
        let len = isize::try_from(buffer.len())?;
        let start = buffer.as_ptr().cast_mut().cast();
        // Writable, since a read-only view would be read-only on arrival. Picklers only read, and other memory of
        // batches is writable, too.
        // SAFETY: Python passes a view to fill; it keeps a reference to the object, and so to the memory.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Returns what `__reduce_ex__` returns.
pub(crate) fn reduce<'py>(py: Python<'py>, batch: &RecordBatch, protocol: u32) -> PyResult<Bound<'py, PyTuple>> {
    let schema = batch.schema();
    let parts = py.detach(|| parts::take_apart(batch)).map_err(|error| wrong(&error))?;
    let (arrays, buffers) = match parts {
        Some(parts) => (bytes_of(&parts.arrays), parts.buffers),
        None => {
            let written = ipc::write(&schema, std::slice::from_ref(batch)).map_err(|error| wrong(&error))?;
            (Vec::new(), vec![Buffer::from_vec(written)])
        }
    };
    let outside = PICKLE_BUFFER.import(py, "pickle", "PickleBuffer")?;
    let buffers = buffers.into_iter().map(|buffer| {
        if protocol < WITH_BUFFERS {
            return Ok(PyBytes::new(py, &buffer).into_any());
        }
        outside.call1((PyMemory(buffer),))
    });
    let buffers = PyList::new(py, buffers.collect::<PyResult<Vec<_>>>()?)?;
    let schema = schema_bytes(&schema).map_err(|error| wrong(&error))?;
    let arguments = (PyBytes::new(py, &schema), batch.num_rows(), PyBytes::new(py, &arrays), buffers);
    (py.get_type::<PyBatch>().getattr(intern!(py, "from_parts"))?, arguments).into_pyobject(py)
}

/// Returns the batch for the arguments that [`reduce`] returned, using the memory of their buffers if it is writable.
pub(crate) fn restore(
    py: Python<'_>,
    schema: &[u8],
    num_rows: usize,
    arrays: &[u8],
    buffers: Vec<Bound<'_, PyAny>>,
) -> PyResult<RecordBatch> {
    let buffers = buffers.iter().map(memory_of).collect::<PyResult<Vec<_>>>()?;
    let restored = py.detach(|| {
        if let ([], [buffer]) = (arrays, buffers.as_slice()) {
            let batch = ipc::read(buffer)?.1.into_iter().next();
            return batch.ok_or_else(|| ArrowError::InvalidArgumentError("there is no batch".into()));
        }
        parts::put_together(&schema_of(schema)?, num_rows, Parts { arrays: arrays_of(arrays), buffers })
    });
    restored.map_err(|error| wrong(&error))
}

/// Alignment that suits numbers of any type.
const ALIGNMENT: usize = 16;

/// Returns the memory of an object. Read-only memory is copied, since tensors may be written to, and so is memory that
/// is not aligned for numbers, such as one piece of a network message.
pub(crate) fn memory_of(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let memory = PyBuffer::<u8>::get(object)?;
    let Some(start) = NonNull::new(memory.buf_ptr().cast::<u8>()).filter(|_| memory.is_c_contiguous()) else {
        return Ok(Buffer::default());
    };
    let len = memory.len_bytes();
    if memory.readonly() || !start.addr().get().is_multiple_of(ALIGNMENT) {
        // SAFETY: the view keeps the memory alive.
        return Ok(Buffer::from(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }));
    }
    // SAFETY: as above; the buffer keeps the view alive.
    Ok(unsafe { Buffer::from_custom_allocation(start, len, Arc::new(memory)) })
}

/// Returns the address of an object's memory.
#[pyfunction]
pub(crate) fn address_of(buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
    Ok(PyBuffer::<u8>::get(buffer)?.buf_ptr().addr())
}

pub(crate) fn bytes_of(arrays: &[(u64, bool)]) -> Vec<u8> {
    arrays
        .iter()
        .flat_map(|(len, has_nulls)| [len.to_le_bytes().as_slice(), &[u8::from(*has_nulls)]].concat())
        .collect()
}

pub(crate) fn arrays_of(bytes: &[u8]) -> Vec<(u64, bool)> {
    let (arrays, _) = bytes.as_chunks::<ARRAY_BYTES>();
    arrays.iter().map(|[len @ .., has_nulls]| (u64::from_le_bytes(*len), *has_nulls != 0)).collect()
}

pub(crate) fn schema_bytes(schema: &SchemaRef) -> Result<Arc<[u8]>, ArrowError> {
    if let Some((_, bytes)) = last(|(of, _)| Arc::ptr_eq(of, schema)) {
        return Ok(bytes);
    }
    let bytes: Arc<[u8]> = ipc::write(schema, &[])?.into();
    remember(schema, &bytes);
    Ok(bytes)
}

pub(crate) fn schema_of(bytes: &[u8]) -> Result<SchemaRef, ArrowError> {
    if let Some((schema, _)) = last(|(_, of)| **of == *bytes) {
        return Ok(schema);
    }
    let (schema, _) = ipc::read(bytes)?;
    remember(&schema, &bytes.into());
    Ok(schema)
}

/// Returns the last schema, if it is the wanted one.
fn last(is_wanted: impl FnOnce(&Known) -> bool) -> Option<Known> {
    try_lock()?.as_ref().filter(|known| is_wanted(known)).cloned()
}

fn remember(schema: &SchemaRef, bytes: &Arc<[u8]>) {
    if let Some(mut last) = try_lock() {
        *last = Some((Arc::clone(schema), Arc::clone(bytes)));
    }
}

/// Locks the last schema if the lock is free; never waits, since a forked child may find it locked forever.
fn try_lock() -> Option<MutexGuard<'static, Option<Known>>> {
    match LAST.try_lock() {
        Ok(last) => Some(last),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

pub(crate) fn wrong(error: &ArrowError) -> PyErr {
    PyValueError::new_err(format!("these are not the parts of a batch: {error}"))
}
