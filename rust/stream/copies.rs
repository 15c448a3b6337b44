//! The kernels that gather values: from many sources into one buffer of exactly the right size.

use std::ops::Range;

use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer};
use arrow_schema::ArrowError;

use super::gather::SourceRow;

/// A range of values: which source, and which of its values.
pub(super) type SourceRange = (u32, Range<usize>);

/// Copies `width` bytes for each row; `values` starts at each source's row 0.
pub(super) fn copy_fixed<'a>(values: impl Iterator<Item = &'a [u8]>, rows: &[SourceRow], width: usize) -> Buffer {
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

/// Returns one bit for each row.
pub(super) fn copy_bits(bits: &[BooleanBuffer], rows: &[SourceRow]) -> BooleanBuffer {
    BooleanBuffer::collect_bool(rows.len(), |index| {
        let (source, row) = rows[index];
        bits[source as usize].value(row as usize)
    })
}

/// Returns the new offsets, and for each row the source and the range of its values there.
pub(super) fn offsets_of<O: ArrowNativeType>(
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

/// Copies the values of each range, `width` bytes each.
pub(super) fn copy_ranges(values: &[&[u8]], ranges: &[SourceRange], width: usize) -> Buffer {
    let total: usize = ranges.iter().map(|(_, range)| range.len() * width).sum();
    let mut out = MutableBuffer::with_capacity(total);
    for (source, range) in ranges {
        out.extend_from_slice(&values[*source as usize][range.start * width..range.end * width]);
    }
    out.into()
}
