//! Kernels that gather values from many sources into one buffer of exactly the right size.

use std::ops::Range;

use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer, ToByteSlice};
use arrow_schema::ArrowError;

use super::gather::SourceRow;
use super::slabs::{Room, Sink};

/// How many values ahead memory is prefetched, and how many ranges, long and short ones.
const VALUES_AHEAD: usize = 64;
pub(super) const RANGES_AHEAD: usize = 2;
const SHORT_RANGES_AHEAD: usize = 16;

/// Bytes copied at once for ranges up to this length, as long as more follow in the source.
const SHORT: usize = 32;

/// A range of values: which source, and which of its values.
pub(super) type SourceRange = (u32, Range<usize>);

/// Copies `width` bytes for each row, into `room` if they fit there; `values` starts at each source's row 0.
pub(super) fn copy_fixed<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    rows: &[SourceRow],
    width: usize,
    room: Option<&Room>,
) -> Buffer {
    let values: Vec<&[u8]> = values.collect();
    match width {
        1 => copy_words::<1>(&values, rows, room),
        2 => copy_words::<2>(&values, rows, room),
        4 => copy_words::<4>(&values, rows, room),
        8 => copy_words::<8>(&values, rows, room),
        16 => copy_words::<16>(&values, rows, room),
        _ => match room.and_then(|room| room.take(rows.len() * width)) {
            Some(block) => put_fixed(block, &values, rows, width),
            None => put_fixed(MutableBuffer::with_capacity(rows.len() * width), &values, rows, width),
        },
    }
}

fn put_fixed(mut out: impl Sink, values: &[&[u8]], rows: &[SourceRow], width: usize) -> Buffer {
    for (place, &(source, row)) in rows.iter().enumerate() {
        if let Some(&(source, row)) = rows.get(place + RANGES_AHEAD) {
            prefetch(values[source as usize], row as usize * width);
        }
        let start = row as usize * width;
        out.put(&values[source as usize][start..start + width]);
    }
    out.into_buffer()
}

/// Copies `N` bytes for each row, which the compiler turns into one load and one store.
fn copy_words<const N: usize>(values: &[&[u8]], rows: &[SourceRow], room: Option<&Room>) -> Buffer {
    let values: Vec<&[[u8; N]]> = values.iter().map(|source| source.as_chunks::<N>().0).collect();
    let fill = |out: &mut [u8]| {
        for (place, slot) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            if let Some(&(source, row)) = rows.get(place + VALUES_AHEAD) {
                prefetch(values[source as usize], row as usize);
            }
            let (source, row) = rows[place];
            *slot = values[source as usize][row as usize];
        }
    };
    if let Some(mut block) = room.and_then(|room| room.take(rows.len() * N)) {
        fill(block.bytes());
        return block.whole();
    }
    let mut out = MutableBuffer::from_len_zeroed(rows.len() * N);
    fill(out.as_slice_mut());
    out.into()
}

/// Prefetches the memory of a value: only we know which one comes next.
#[inline]
pub(super) fn prefetch<T>(values: &[T], place: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(value) = values.get(place) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a hint to the processor takes a pointer")]
        // SAFETY: every processor of this architecture has the instruction; it has no visible effect, and the address
        // is that of a value.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, place);
}

/// The bits of a source, from its row 0 on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// Applied to the byte index; 0 if one byte stands for all.
    mask: usize,
}

impl<'a> Bits<'a> {
    /// A source whose bits are all set.
    pub(super) const ALL_SET: Self = Self { bytes: &[0xff], offset: 0, mask: 0 };

    /// Returns the bits of `bytes` after the first `offset`.
    pub(super) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset, mask: usize::MAX }
    }

    #[inline]
    fn get(&self, row: u32) -> u64 {
        let place = self.offset + row as usize;
        u64::from((self.bytes[(place / 8) & self.mask] >> (place % 8)) & 1)
    }
}

/// Returns one bit for each row.
pub(super) fn copy_bits(bits: &[Bits<'_>], rows: &[SourceRow]) -> BooleanBuffer {
    let mut out = MutableBuffer::from_len_zeroed(rows.len().div_ceil(64) * size_of::<u64>());
    for (word, rows) in out.as_slice_mut().as_chunks_mut().0.iter_mut().zip(rows.chunks(64)) {
        let of_row = |(place, &(source, row)): (usize, &SourceRow)| bits[source as usize].get(row) << place;
        *word = rows.iter().enumerate().map(of_row).fold(0, |word, bit| word | bit).to_le_bytes();
    }
    BooleanBuffer::new(out.into(), 0, rows.len())
}

/// Returns the new offsets, and for each row its source and the range of its values there.
pub(super) fn offsets_of<O: ArrowNativeType>(
    offsets: &[&[O]],
    rows: &[SourceRow],
    width: usize,
) -> Result<(Buffer, Vec<SourceRange>), ArrowError> {
    let mut out = MutableBuffer::with_capacity((rows.len() + 1) * size_of::<O>());
    out.push(O::default());
    let mut ranges = Vec::with_capacity(rows.len());
    let mut total = 0_usize;
    for (place, &(source, row)) in rows.iter().enumerate() {
        if let Some(&(source, row)) = rows.get(place + VALUES_AHEAD) {
            prefetch(offsets[source as usize], row as usize);
        }
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

/// Copies the values of each range, `width` bytes each, into `room` if they fit there.
pub(super) fn copy_ranges(values: &[&[u8]], ranges: &[SourceRange], width: usize, room: Option<&Room>) -> Buffer {
    let total: usize = ranges.iter().map(|(_, range)| range.len() * width).sum();
    if total <= ranges.len() * SHORT {
        return match room.and_then(|room| room.take(total + SHORT)) {
            Some(block) => put_short_ranges(block, values, ranges, width),
            None => put_short_ranges(MutableBuffer::with_capacity(total + SHORT), values, ranges, width),
        };
    }
    match room.and_then(|room| room.take(total)) {
        Some(block) => put_ranges(block, values, ranges, width),
        None => put_ranges(MutableBuffer::with_capacity(total), values, ranges, width),
    }
}

fn put_ranges(mut out: impl Sink, values: &[&[u8]], ranges: &[SourceRange], width: usize) -> Buffer {
    for (place, (source, range)) in ranges.iter().enumerate() {
        if let Some((source, ahead)) = ranges.get(place + RANGES_AHEAD) {
            prefetch(values[*source as usize], ahead.start * width);
        }
        out.put(&values[*source as usize][range.start * width..range.end * width]);
    }
    out.into_buffer()
}

/// Copies values of mostly short ranges: each takes two register moves instead of a call. The last range is followed by
/// [`SHORT`] spare bytes.
fn put_short_ranges(mut out: impl Sink, values: &[&[u8]], ranges: &[SourceRange], width: usize) -> Buffer {
    for (place, (source, range)) in ranges.iter().enumerate() {
        if let Some((source, ahead)) = ranges.get(place + SHORT_RANGES_AHEAD) {
            prefetch(values[*source as usize], ahead.start * width);
        }
        let (rest, len) = (&values[*source as usize][range.start * width..], range.len() * width);
        match rest.first_chunk::<SHORT>() {
            Some(bytes) if len <= SHORT => {
                let end = out.num_bytes() + len;
                out.put(bytes);
                out.cut(end);
            }
            _ => out.put(&rest[..len]),
        }
    }
    out.into_buffer()
}

/// Integers of a source, each of 2 bytes, 4, or the full output width.
#[derive(Debug, Clone, Copy)]
pub(super) struct Integers<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) width: usize,
}

/// Copies the integers of each range, widened to `width` bytes each, 4 or 8, into `room` if they fit there.
pub(super) fn widen_ranges(
    values: &[Integers<'_>],
    ranges: &[SourceRange],
    width: usize,
    room: Option<&Room>,
) -> Buffer {
    let total = ranges.iter().map(|(_, range)| range.len()).sum::<usize>() * width;
    match (width, room.and_then(|room| room.take(total))) {
        (4, Some(block)) => put_wide::<u32>(block, values, ranges),
        (4, None) => put_wide::<u32>(MutableBuffer::with_capacity(total), values, ranges),
        (_, Some(block)) => put_wide::<u64>(block, values, ranges),
        (_, None) => put_wide::<u64>(MutableBuffer::with_capacity(total), values, ranges),
    }
}

fn put_wide<T: ArrowNativeType + From<u16> + From<u32>>(
    mut out: impl Sink,
    values: &[Integers<'_>],
    ranges: &[SourceRange],
) -> Buffer {
    let mut wide: Vec<T> = Vec::new();
    for (place, (source, range)) in ranges.iter().enumerate() {
        if let Some((source, ahead)) = ranges.get(place + RANGES_AHEAD) {
            let Integers { bytes, width } = values[*source as usize];
            prefetch(bytes, ahead.start * width);
        }
        let Integers { bytes, width } = values[*source as usize];
        let bytes = &bytes[range.start * width..range.end * width];
        if width == size_of::<T>() {
            out.put(bytes);
            continue;
        }
        // One range stays in the cache; the whole buffer does not.
        wide.clear();
        match width {
            2 => wide.extend(bytes.as_chunks().0.iter().map(|n| T::from(u16::from_ne_bytes(*n)))),
            _ => wide.extend(bytes.as_chunks().0.iter().map(|n| T::from(u32::from_ne_bytes(*n)))),
        }
        out.put(wide.to_byte_slice());
    }
    out.into_buffer()
}
