//! Copies the rows of a batch together: the one copy between decoding and the consumer.
//!
//! Fixed-width values, fixed-size lists, lists of fixed-width values, strings and binary without nulls
//! have kernels here, which size the destination exactly and copy row by row into a fresh, 64-byte
//! aligned buffer. Everything else goes through arrow's [`MutableArrayData`].

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::{ArrowNativeType, Buffer, MutableBuffer};
use arrow_data::transform::{Capacities, MutableArrayData};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::dictionary::{has_dictionary, with_unique_values};

/// One row: which source, and which row of it.
pub(crate) type SourceRow = (u32, u32);

/// A range of values: which source, and which of its values.
type SourceRange = (u32, Range<usize>);

/// Returns `rows` of `sources` as one batch of `schema`.
///
/// Copies every value once. The buffers are new and owned by nobody else.
///
/// # Errors
///
/// When the values of a column exceed what its offsets can address (2 GiB for strings and lists).
pub(crate) fn gather(
    schema: &SchemaRef,
    sources: &[RecordBatch],
    rows: &[SourceRow],
) -> Result<RecordBatch, ArrowError> {
    let columns = (0..schema.fields().len()).map(|column| {
        let arrays: Vec<ArrayData> = sources.iter().map(|source| source.column(column).to_data()).collect();
        gather_array(&arrays, rows).map_err(|error| {
            let name = schema.field(column).name();
            ArrowError::ComputeError(format!("column `{name}`: {error}"))
        })
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

/// Returns `rows` of `sources` as a view, where they follow each other in one source: nothing is copied.
///
/// Dictionaries are left to [`gather`], which drops the values that no row has.
pub(super) fn view(schema: &SchemaRef, sources: &[RecordBatch], rows: &[SourceRow]) -> Option<RecordBatch> {
    let &(place, first) = rows.first()?;
    let follow = |(row, index): (&SourceRow, u32)| *row == (place, first + index);
    if !rows.iter().zip(0..).all(follow) || schema.fields().iter().any(|field| has_dictionary(field.data_type())) {
        return None;
    }
    let slice = sources.get(place as usize)?.slice(first as usize, rows.len());
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), slice.columns().to_vec(), &options).ok()
}

/// Returns the rows `keep` of `batch`.
pub(super) fn compact(batch: &RecordBatch, keep: &[u32]) -> Result<RecordBatch, ArrowError> {
    let rows: Vec<SourceRow> = keep.iter().map(|&row| (0, row)).collect();
    gather(&batch.schema(), std::slice::from_ref(batch), &rows)
}

fn gather_array(sources: &[ArrayData], rows: &[SourceRow]) -> Result<ArrayRef, ArrowError> {
    let Some(first) = sources.first() else {
        return Err(ArrowError::InvalidArgumentError("no sources to gather from".into()));
    };
    let has_nulls = sources.iter().any(|source| source.null_count() > 0);
    let data = match first.data_type() {
        data_type if has_nulls => generic(sources, rows, data_type)?,
        DataType::FixedSizeList(field, len) => match field.data_type().primitive_width() {
            Some(width) if sources.iter().all(|source| source.child_data()[0].null_count() == 0) => {
                let width = width * usize::try_from(*len).unwrap_or(0);
                let children: Vec<&ArrayData> = sources.iter().map(|source| &source.child_data()[0]).collect();
                fixed_size_lists(sources, &children, rows, width)?
            }
            _ => generic(sources, rows, first.data_type())?,
        },
        DataType::FixedSizeBinary(len) => {
            fixed_width(sources, rows, usize::try_from(*len).unwrap_or(0), first.data_type())?
        }
        DataType::Utf8 | DataType::Binary => bytes::<i32>(sources, rows, first.data_type())?,
        DataType::LargeUtf8 | DataType::LargeBinary => bytes::<i64>(sources, rows, first.data_type())?,
        DataType::List(field) => lists::<i32>(sources, rows, field.data_type())?,
        DataType::LargeList(field) => lists::<i64>(sources, rows, field.data_type())?,
        data_type => match data_type.primitive_width() {
            Some(width) => fixed_width(sources, rows, width, data_type)?,
            None => generic(sources, rows, data_type)?,
        },
    };
    Ok(make_array(data))
}

fn fixed_width(
    sources: &[ArrayData],
    rows: &[SourceRow],
    width: usize,
    data_type: &DataType,
) -> Result<ArrayData, ArrowError> {
    let values = |source: &ArrayData| source.offset() * width;
    let buffer = copy_fixed(sources.iter().map(|s| &s.buffers()[0].as_slice()[values(s)..]), rows, width);
    ArrayDataBuilder::new(data_type.clone()).len(rows.len()).add_buffer(buffer).build()
}

fn fixed_size_lists(
    sources: &[ArrayData],
    children: &[&ArrayData],
    rows: &[SourceRow],
    width: usize,
) -> Result<ArrayData, ArrowError> {
    let child_width = children[0].data_type().primitive_width().unwrap_or(0);
    let starts = sources.iter().zip(children).map(|(source, child)| {
        &child.buffers()[0].as_slice()[child.offset() * child_width + source.offset() * width..]
    });
    let buffer = copy_fixed(starts, rows, width);
    let len = buffer.len() / child_width.max(1);
    let child = ArrayDataBuilder::new(children[0].data_type().clone()).len(len).add_buffer(buffer).build()?;
    ArrayDataBuilder::new(sources[0].data_type().clone()).len(rows.len()).add_child_data(child).build()
}

/// Copies `width` bytes for each row; `values` starts at each source's row 0.
fn copy_fixed<'a>(values: impl Iterator<Item = &'a [u8]>, rows: &[SourceRow], width: usize) -> Buffer {
    let values: Vec<&[u8]> = values.collect();
    match width {
        1 => copy_words::<1>(&values, rows),
        2 => copy_words::<2>(&values, rows),
        4 => copy_words::<4>(&values, rows),
        8 => copy_words::<8>(&values, rows),
        16 => copy_words::<16>(&values, rows),
        _ => {
            let mut out = MutableBuffer::with_capacity(rows.len() * width);
            for &(source, row) in rows {
                let start = row as usize * width;
                out.extend_from_slice(&values[source as usize][start..start + width]);
            }
            out.into()
        }
    }
}

/// Copies `N` bytes for each row, which the compiler turns into one load and one store.
fn copy_words<const N: usize>(values: &[&[u8]], rows: &[SourceRow]) -> Buffer {
    let values: Vec<&[[u8; N]]> = values.iter().map(|source| source.as_chunks::<N>().0).collect();
    let mut out = MutableBuffer::from_len_zeroed(rows.len() * N);
    for (slot, &(source, row)) in out.as_slice_mut().as_chunks_mut::<N>().0.iter_mut().zip(rows) {
        *slot = values[source as usize][row as usize];
    }
    out.into()
}

/// Gathers strings or binary.
fn bytes<O: ArrowNativeType>(
    sources: &[ArrayData],
    rows: &[SourceRow],
    data_type: &DataType,
) -> Result<ArrayData, ArrowError> {
    let offsets: Vec<&[O]> = sources.iter().map(|source| source.buffer::<O>(0)).collect();
    let (offsets, ranges) = offsets_of(&offsets, rows, 1)?;
    let values: Vec<&[u8]> = sources.iter().map(|source| source.buffers()[1].as_slice()).collect();
    let builder = ArrayDataBuilder::new(data_type.clone()).len(rows.len());
    let data = builder.add_buffer(offsets).add_buffer(copy_ranges(&values, &ranges, 1));
    // The values were valid in the sources, and rows are copied whole.
    Ok(trusted(data))
}

/// Gathers lists; those of fixed-width values without nulls in one copy a row.
fn lists<O: ArrowNativeType>(
    sources: &[ArrayData],
    rows: &[SourceRow],
    item: &DataType,
) -> Result<ArrayData, ArrowError> {
    let has_nulls = sources.iter().any(|source| source.child_data()[0].null_count() > 0);
    let Some(width) = item.primitive_width().filter(|_| !has_nulls) else {
        return generic(sources, rows, sources[0].data_type());
    };
    let offsets: Vec<&[O]> = sources.iter().map(|source| source.buffer::<O>(0)).collect();
    let (offsets, ranges) = offsets_of(&offsets, rows, width)?;
    let values: Vec<&[u8]> = sources
        .iter()
        .map(|source| &source.child_data()[0])
        .map(|child| &child.buffers()[0].as_slice()[child.offset() * width..])
        .collect();
    let buffer = copy_ranges(&values, &ranges, width);
    let child = ArrayDataBuilder::new(item.clone()).len(buffer.len() / width.max(1)).add_buffer(buffer).build()?;
    let data_type = sources[0].data_type().clone();
    Ok(trusted(ArrayDataBuilder::new(data_type).len(rows.len()).add_buffer(offsets).add_child_data(child)))
}

/// Returns the new offsets, and for each row the source and the range of its values there.
fn offsets_of<O: ArrowNativeType>(
    offsets: &[&[O]],
    rows: &[SourceRow],
    width: usize,
) -> Result<(Buffer, Vec<SourceRange>), ArrowError> {
    let mut out = MutableBuffer::with_capacity((rows.len() + 1) * size_of::<O>());
    out.push(O::default());
    let mut ranges = Vec::with_capacity(rows.len());
    let mut total = 0_usize;
    for &(source, row) in rows {
        let of = offsets[source as usize];
        let range = of[row as usize].as_usize()..of[row as usize + 1].as_usize();
        total += range.len();
        let end = O::from_usize(total).filter(|end| end.as_usize() == total && total <= max_offset::<O>());
        out.push(end.ok_or_else(|| {
            let bytes = total * width;
            ArrowError::ComputeError(format!("{bytes} bytes do not fit one batch; use a smaller batch size"))
        })?);
        ranges.push((source, range));
    }
    Ok((out.into(), ranges))
}

fn max_offset<O>() -> usize {
    if size_of::<O>() == 4 { i32::MAX as usize } else { isize::MAX as usize }
}

fn copy_ranges(values: &[&[u8]], ranges: &[SourceRange], width: usize) -> Buffer {
    let total: usize = ranges.iter().map(|(_, range)| range.len() * width).sum();
    let mut out = MutableBuffer::with_capacity(total);
    for (source, range) in ranges {
        out.extend_from_slice(&values[*source as usize][range.start * width..range.end * width]);
    }
    out.into()
}

#[expect(unsafe_code, reason = "validating UTF-8 and offsets again would cost more than the copy")]
fn trusted(builder: ArrayDataBuilder) -> ArrayData {
    // SAFETY: offsets ascend from 0 to the length of the values, which is their sum; strings are whole strings of
    // valid sources, so every boundary is a character boundary.
    unsafe { builder.build_unchecked() }
}

/// Gathers any type by arrow's own copier, run by run.
fn generic(sources: &[ArrayData], rows: &[SourceRow], data_type: &DataType) -> Result<ArrayData, ArrowError> {
    if has_dictionary(data_type) {
        return interleaved(sources, rows);
    }
    let mut out = MutableArrayData::with_capacities(sources.iter().collect(), true, Capacities::Array(rows.len()));
    let mut rows = rows.iter().copied().peekable();
    while let Some((source, start)) = rows.next() {
        let mut end = start + 1;
        while rows.next_if_eq(&(source, end)).is_some() {
            end += 1;
        }
        out.try_extend(source as usize, start as usize, end as usize)?;
    }
    Ok(out.freeze())
}

/// Gathers types whose sources have value tables of their own, which `interleave` merges.
///
/// [`MutableArrayData`] would append the tables of all sources, until the index overflows.
fn interleaved(sources: &[ArrayData], rows: &[SourceRow]) -> Result<ArrayData, ArrowError> {
    let arrays: Vec<ArrayRef> = sources.iter().map(|source| make_array(source.clone())).collect();
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    let indices: Vec<(usize, usize)> = rows.iter().map(|&(source, row)| (source as usize, row as usize)).collect();
    let gathered = arrow_select::interleave::interleave(&arrays, &indices)?.to_data();
    if sources.len() == 1 { Ok(gathered) } else { with_unique_values(gathered) }
}
