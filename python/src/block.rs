//! Batches in blocks of memory that two processes share: all buffers in one block, and behind them what they are.
#![expect(unsafe_code, reason = "the block is memory of Python's, which a buffer of the batch may already be in")]

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use forebay::parts::{self, Buffer, Parts};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::parcel::{arrays_of, bytes_of, memory_of, schema_bytes, schema_of, wrong};

/// Alignment of each buffer in a block.
const ALIGNMENT: usize = 64;

/// Bytes of a length or a place.
const WORD: usize = size_of::<u64>();

/// The buffers of a batch, and what they are.
#[pyclass(name = "Parts", module = "forebay._lib", frozen)]
pub(crate) struct PyParts {
    parts: Parts,
    num_rows: usize,
    schema: Arc<[u8]>,
}

impl PyParts {
    /// Takes a batch apart; `None` for types without a fixed number of buffers.
    pub(crate) fn of(py: Python<'_>, batch: &RecordBatch) -> PyResult<Option<Self>> {
        let found = py.detach(|| match parts::take_apart(batch)? {
            None => Ok(None),
            Some(parts) => {
                let schema = schema_bytes(batch.schema_ref())?;
                Ok(Some(Self { parts, num_rows: batch.num_rows(), schema }))
            }
        });
        found.map_err(|error: ArrowError| wrong(&error))
    }

    /// Returns the bytes that say what the buffers at `places` in a block are.
    fn head(&self, places: &[(usize, usize)]) -> Vec<u8> {
        let arrays = bytes_of(&self.parts.arrays);
        let mut head = Vec::with_capacity(self.head_len());
        let mut put = |number: usize, bytes: &[u8]| {
            head.extend_from_slice(&(number as u64).to_le_bytes());
            head.extend_from_slice(bytes);
        };
        put(self.schema.len(), &self.schema);
        put(arrays.len(), &arrays);
        put(self.num_rows, &[]);
        places.iter().for_each(|&(start, len)| {
            put(start, &[]);
            put(len, &[]);
        });
        put(self.head_len(), &[]);
        head
    }

    fn head_len(&self) -> usize {
        let words = 4 + 2 * self.parts.buffers.len();
        words * WORD + self.schema.len() + self.parts.arrays.len() * crate::parcel::ARRAY_BYTES
    }
}

#[pymethods]
impl PyParts {
    /// The address of the largest buffer; 0 if there is none.
    #[getter]
    fn address(&self) -> usize {
        let largest = self.parts.buffers.iter().max_by_key(|buffer| buffer.len());
        largest.map_or(0, |buffer| buffer.as_ptr().addr())
    }

    /// The bytes that the batch takes in a block in which none of its buffers is.
    #[getter]
    fn num_bytes(&self) -> usize {
        let aligned = |buffer: &Buffer| buffer.len().next_multiple_of(ALIGNMENT);
        self.parts.buffers.iter().map(aligned).sum::<usize>() + self.head_len()
    }

    /// Writes the batch to a block, to which nobody else writes meanwhile; buffers that are there stay where they are.
    /// Returns how many bytes of the block it takes, `None` if it does not fit.
    fn write(&self, py: Python<'_>, block: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let view = PyBuffer::<u8>::get(block)?;
        if view.readonly() || !view.is_c_contiguous() {
            return Err(PyBufferError::new_err("expected writable memory in one piece"));
        }
        let (start, size) = (view.buf_ptr().cast::<u8>().expose_provenance(), view.len_bytes());
        let place_in = |buffer: &Buffer| {
            let place = buffer.as_ptr().addr().checked_sub(start)?;
            (place.checked_add(buffer.len())? <= size && !buffer.is_empty()).then_some(place)
        };
        let found: Vec<Option<usize>> = self.parts.buffers.iter().map(place_in).collect();
        let ends = self.parts.buffers.iter().zip(&found).filter_map(|(buffer, place)| Some((*place)? + buffer.len()));
        let mut end = ends.max().unwrap_or(0).next_multiple_of(ALIGNMENT);
        let (mut places, mut copies) = (Vec::new(), Vec::<(usize, &[u8])>::new());
        for (buffer, place) in self.parts.buffers.iter().zip(found) {
            let place = place.filter(|place| place.is_multiple_of(ALIGNMENT));
            places.push((place.unwrap_or(end), buffer.len()));
            if place.is_none() {
                copies.push((end, buffer));
                end += buffer.len().next_multiple_of(ALIGNMENT);
            }
        }
        let head = self.head(&places);
        copies.push((end, &head));
        end += head.len();
        if end > size {
            return Ok(None);
        }
        py.detach(|| {
            for (place, bytes) in copies {
                let target = std::ptr::with_exposed_provenance_mut::<u8>(start + place);
                // SAFETY: the view keeps the memory writable and mapped; all of `copies` lie behind the buffers that
                // are in the block, side by side, and end before it does, which was just checked; `copy` allows for
                // buffers that reach into it from outside.
                unsafe { std::ptr::copy(bytes.as_ptr(), target, bytes.len()) };
            }
        });
        Ok(Some(end))
    }
}

/// Returns the batch that [`PyParts::write`] wrote, in the memory that it took.
pub(crate) fn restore(py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let memory = memory_of(memory)?;
    let restored = py.detach(|| {
        let (schema, num_rows, parts) = read(&memory)
            .ok_or_else(|| ArrowError::InvalidArgumentError("the block does not have what it says".to_owned()))??;
        parts::put_together(&schema, num_rows, parts)
    });
    restored.map_err(|error| wrong(&error))
}

/// Reads what [`PyParts::head`] wrote; `None` if it cannot have written this.
fn read(memory: &Buffer) -> Option<Result<(SchemaRef, usize, Parts), ArrowError>> {
    let (_, last) = memory.split_last_chunk()?;
    let head = memory.get(memory.len().checked_sub(number(*last)?)?..)?;
    let mut head = head.get(..head.len() - WORD)?;
    let schema = take_bytes(&mut head)?;
    let arrays = arrays_of(take_bytes(&mut head)?);
    let num_rows = take_number(&mut head)?;
    let mut buffers = Vec::new();
    while !head.is_empty() {
        let (start, len) = (take_number(&mut head)?, take_number(&mut head)?);
        let is_inside = start.checked_add(len).is_some_and(|end| end <= memory.len());
        buffers.push((is_inside && start.is_multiple_of(ALIGNMENT)).then(|| memory.slice_with_length(start, len))?);
    }
    Some(schema_of(schema).map(|schema| (schema, num_rows, Parts { arrays, buffers })))
}

fn number(bytes: [u8; WORD]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

fn take_number(head: &mut &[u8]) -> Option<usize> {
    let (first, rest) = head.split_first_chunk()?;
    *head = rest;
    number(*first)
}

fn take_bytes<'a>(head: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_number(head)?;
    let (bytes, rest) = head.split_at_checked(len)?;
    *head = rest;
    Some(bytes)
}
