//! Copies that bypass the processor's caches.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use arrow_buffer::ArrowNativeType;
use bytes::BytesMut;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Copies to memory that is not read soon, bypassing the caches: whole lines are overwritten without being read first,
/// and the caches keep their contents.
#[derive(Debug)]
pub(crate) struct PastCaches {
    /// Writes become visible to others once this is dropped, on the thread that made them.
    _of_thread: PhantomData<*const ()>,
}

impl PastCaches {
    /// Lets `work` copy past the caches.
    pub(crate) fn with<R>(work: impl FnOnce(&Self) -> R) -> R {
        work(&Self { _of_thread: PhantomData })
    }

    /// Copies the bytes of values to a destination of the same size.
    ///
    /// # Panics
    ///
    /// If the destination has another size.
    #[inline]
    pub(crate) fn copy<T: ArrowNativeType>(&self, values: &[u8], room: &mut [MaybeUninit<T>]) {
        assert_eq!(values.len(), size_of_val(room), "a room for other values");
        let room = bytes_of(room);
        #[cfg(target_arch = "x86_64")]
        stream(values, room);
        #[cfg(not(target_arch = "x86_64"))]
        room.write_copy_of_slice(values);
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for PastCaches {
    #[expect(unsafe_code, reason = "it is an instruction of some processors")]
    fn drop(&mut self) {
        // SAFETY: every processor of this architecture has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// Returns the destination as bytes.
#[expect(unsafe_code, reason = "the standard library's is not stable yet")]
fn bytes_of<T: ArrowNativeType>(room: &mut [MaybeUninit<T>]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same size and lifetime, and bytes need no alignment. Numbers have no padding, and any bytes are a valid
    // number.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), size_of_val(room)) }
}

/// Copies bytes, whole lines of them by non-temporal stores. Those must be fenced before other threads may read them.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "such stores take pointers")]
fn stream(bytes: &[u8], room: &mut [MaybeUninit<u8>]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let before = room.as_ptr().align_offset(LINE).min(room.len());
    let ((first, room), (first_bytes, bytes)) = (room.split_at_mut(before), bytes.split_at(before));
    first.write_copy_of_slice(first_bytes);
    let (lines, left) = room.as_chunks_mut::<LINE>();
    let (stored, left_bytes) = bytes.as_chunks::<LINE>();
    for (line, stored) in lines.iter_mut().zip(stored) {
        let (from, to) = (stored.as_ptr().cast::<__m128i>(), line.as_mut_ptr().cast::<__m128i>());
        for part in 0..LINE / size_of::<__m128i>() {
            // SAFETY: both slices cover all parts, and the line is aligned as required.
            unsafe { _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part))) };
        }
    }
    left.write_copy_of_slice(left_bytes);
}

/// Appends bytes that are not read soon.
#[expect(unsafe_code, reason = "a buffer does not know what was written into it")]
pub(crate) fn append(buffer: &mut BytesMut, bytes: &[u8]) {
    buffer.reserve(bytes.len());
    let room = &mut buffer.spare_capacity_mut()[..bytes.len()];
    PastCaches::with(|past| past.copy(bytes, room));
    // SAFETY: that many bytes were just written.
    unsafe { buffer.set_len(buffer.len() + bytes.len()) };
}

#[cfg(test)]
mod tests {
    use arrow_buffer::ToByteSlice;
    use proptest::prelude::*;

    use super::*;

    /// Copies numbers past the caches into the middle of a larger buffer of zeros, and returns it.
    fn copied<T: ArrowNativeType>(values: &[T], before: usize, after: usize) -> Vec<T> {
        let mut room = vec![T::default(); before + values.len() + after];
        let mut place: Vec<MaybeUninit<T>> = room.iter().map(|value| MaybeUninit::new(*value)).collect();
        PastCaches::with(|past| past.copy(values.to_byte_slice(), &mut place[before..before + values.len()]));
        for (value, place) in room.iter_mut().zip(place) {
            #[expect(unsafe_code, reason = "all of it was filled before")]
            // SAFETY: every element was initialized from a value, and the copied ones are values, too.
            unsafe {
                *value = place.assume_init();
            }
        }
        room
    }

    proptest! {
        #[test]
        fn what_is_copied_past_the_caches_is_all_there_and_nothing_else(
            values in prop::collection::vec(1_u8.., 0..400), before in 0_usize..70, after in 0_usize..70,
        ) {
            let expected = |values: &[u8]| [vec![0; before], values.to_vec(), vec![0; after]].concat();
            prop_assert_eq!(copied(&values, before, after), expected(&values));
            let words: Vec<u64> = values.iter().map(|&value| u64::from(value) << 40 | 1).collect();
            let expected: Vec<u64> =
                expected(&values).iter().map(|&value| u64::from(value) << 40 | u64::from(value > 0)).collect();
            prop_assert_eq!(copied(&words, before, after), expected);
        }

        #[test]
        fn what_is_appended_is_there(
            capacity in 0_usize..1000, pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        ) {
            let mut buffer = BytesMut::with_capacity(capacity);
            pieces.iter().for_each(|piece| append(&mut buffer, piece));
            prop_assert_eq!(buffer, pieces.concat());
        }
    }
}
