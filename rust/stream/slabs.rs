//! Consumer-owned memory that batches are gathered into: pinned memory, which a GPU reads.
//!
//! The consumer supplies slabs ahead of time, one for each batch. A gathering thread takes one, if available, and lays
//! out the buffers of its batch in it; those that do not fit, and those that are made by other means, go to plain
//! memory, as all do without slabs. A slab serves one batch, and its owner is released with the last of its buffers:
//! only the owner knows whether a copy to a GPU still reads from it, so nothing is reused here.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_buffer::{Buffer, MutableBuffer};

/// Alignment of each buffer, the same as that of arrow's own allocations.
const ALIGNMENT: usize = 64;

/// Memory for the buffers of one batch.
#[derive(Debug)]
pub struct Slab(Buffer);

impl Slab {
    /// Returns a slab over the memory of a buffer, which will be written to.
    ///
    /// # Safety
    ///
    /// The memory must be writable, and only the buffer's owner may refer to it. It must be neither read nor written
    /// before it has become a batch, and never through this buffer or clones of it.
    #[expect(unsafe_code, reason = "a buffer does not know who else has its memory")]
    pub unsafe fn new(memory: Buffer) -> Self {
        Self(memory)
    }
}

/// Slabs that wait for batches.
#[derive(Debug, Default)]
pub(super) struct Slabs(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    slabs: VecDeque<Slab>,
    /// Whether anybody will supply some.
    are_wanted: bool,
    needed_bytes: usize,
}

impl Slabs {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of waiting slabs, and the bytes needed by the largest batch gathered since the first call.
    pub(super) fn ask(&self) -> (usize, usize) {
        let mut waiting = self.lock();
        waiting.are_wanted = true;
        (waiting.slabs.len(), waiting.needed_bytes)
    }

    /// Adds a slab, and drops smaller ones.
    pub(super) fn supply(&self, slab: Slab) {
        let len = slab.0.len();
        let mut waiting = self.lock();
        waiting.slabs.push_back(slab);
        let all = std::mem::take(&mut waiting.slabs);
        let (large, small): (VecDeque<Slab>, VecDeque<Slab>) = all.into_iter().partition(|slab| slab.0.len() >= len);
        waiting.slabs = large;
        drop(waiting);
        // Their owners may be anything, so they are dropped without holding the lock.
        drop(small);
    }

    /// Takes the next slab, for one batch; an empty one if there is none. `None` if slabs are not wanted.
    pub(super) fn take(&self) -> Option<Room> {
        let mut waiting = self.lock();
        if !waiting.are_wanted {
            return None;
        }
        let memory = waiting.slabs.pop_front().map_or_else(Buffer::default, |Slab(memory)| memory);
        Some(Room { memory, used: Cell::new(0), needed: Cell::new(0) })
    }

    /// Records what a batch needed.
    pub(super) fn note(&self, room: &Room) {
        let needed_bytes = &mut self.lock().needed_bytes;
        *needed_bytes = room.needed.get().max(*needed_bytes);
    }

    /// Drops all slabs.
    pub(super) fn clear(&self) {
        let slabs = std::mem::take(&mut self.lock().slabs);
        drop(slabs);
    }
}

/// What is left of the slab of one batch.
#[derive(Debug)]
pub(crate) struct Room {
    memory: Buffer,
    used: Cell<usize>,
    /// The bytes that would have sufficed so far, in an aligned slab.
    needed: Cell<usize>,
}

impl Room {
    /// Takes the next `len` aligned bytes; `None` if there are not enough left.
    pub(crate) fn take(&self, len: usize) -> Option<Block> {
        self.needed.set(self.needed.get().saturating_add(len.checked_next_multiple_of(ALIGNMENT)?));
        let start = self.memory.as_ptr().addr();
        let from = start.checked_add(self.used.get())?.checked_next_multiple_of(ALIGNMENT)? - start;
        let end = from.checked_add(len).filter(|end| len > 0 && *end <= self.memory.len())?;
        self.used.set(end);
        Some(Block { memory: self.memory.slice_with_length(from, len), len: 0 })
    }
}

/// A writable part of a slab.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Buffer,
    /// Number of bytes written.
    len: usize,
}

impl Block {
    /// Returns all of its bytes, with unspecified contents.
    #[expect(unsafe_code, reason = "a buffer does not say that its memory may be written to")]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let (start, len) = (self.memory.as_ptr().cast_mut(), self.memory.len());
        // SAFETY: the slab's creator promised that it is writable and that nobody else refers to it, and no other block
        // has this part of it: what was taken is not taken again.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Returns its first `len` bytes as a buffer of that size, which keeps the slab alive.
    #[expect(
        unsafe_code,
        reason = "parts of one allocation are counted as the whole of it each, unless they are their own"
    )]
    fn freeze(self, len: usize) -> Buffer {
        let memory = self.memory.slice_with_length(0, len);
        // A buffer's pointer is never null.
        let Some(start) = NonNull::new(memory.as_ptr().cast_mut()) else { return memory };
        // SAFETY: the bytes are valid as long as the slab, which the new buffer shares ownership of.
        unsafe { Buffer::from_custom_allocation(start, len, Arc::new(memory)) }
    }

    /// Returns all of it as a buffer.
    pub(crate) fn whole(self) -> Buffer {
        let len = self.memory.len();
        self.freeze(len)
    }
}

/// A destination that values are appended to, with the capacity for all of them.
pub(crate) trait Sink: Sized {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Truncates to `len` bytes.
    fn cut(&mut self, len: usize);

    /// Returns how many bytes there are.
    fn num_bytes(&self) -> usize;

    /// Returns them.
    fn into_buffer(self) -> Buffer;
}

impl Sink for MutableBuffer {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn cut(&mut self, len: usize) {
        self.truncate(len);
    }

    #[inline]
    fn num_bytes(&self) -> usize {
        self.len()
    }

    fn into_buffer(self) -> Buffer {
        self.into()
    }
}

impl Sink for Block {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        let from = std::mem::replace(&mut self.len, end);
        self.bytes()[from..end].copy_from_slice(bytes);
    }

    #[inline]
    fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    #[inline]
    fn num_bytes(&self) -> usize {
        self.len
    }

    fn into_buffer(self) -> Buffer {
        let len = self.len;
        self.freeze(len)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a slab of this many bytes, and its owner.
    pub(crate) fn slab(len: usize) -> (Slab, Arc<Vec<u8>>) {
        let mut owner = vec![0xaa_u8; len];
        let start = NonNull::new(owner.as_mut_ptr()).unwrap();
        let owner = Arc::new(owner);
        #[expect(unsafe_code, reason = "memory of somebody else's is what it is about")]
        // SAFETY: the vector stays where it is, and only its reference count is used here.
        let slab = unsafe { Slab::new(Buffer::from_custom_allocation(start, len, Arc::clone(&owner) as _)) };
        (slab, owner)
    }

    /// Returns room in a slab of this many bytes.
    pub(crate) fn room(len: usize) -> Room {
        let slabs = Slabs::default();
        slabs.ask();
        slabs.supply(slab(len).0);
        slabs.take().unwrap()
    }

    impl Room {
        /// Returns whether a buffer lies in the slab.
        pub(crate) fn holds(&self, buffer: &Buffer) -> bool {
            let memory = self.memory.as_ptr_range();
            memory.contains(&buffer.as_ptr()) && buffer.as_ptr_range().end <= memory.end
        }
    }

    #[test]
    fn blocks_lie_side_by_side_and_hold_on_to_the_slab() {
        let (slab, owner) = slab(1000);
        let slabs = Slabs::default();
        assert_eq!(slabs.ask(), (0, 0));
        slabs.supply(slab);
        assert_eq!(slabs.ask(), (1, 0));
        let room = slabs.take().unwrap();
        let mut first = room.take(100).unwrap();
        first.put(&[1; 60]);
        first.put(&[2; 40]);
        first.cut(70);
        let first = first.into_buffer();
        let mut second = room.take(64).unwrap();
        second.bytes().fill(3);
        let second = second.whole();
        assert_eq!(first.as_slice(), [[1; 60].as_slice(), &[2; 10]].concat());
        assert_eq!(second.as_slice(), [3; 64]);
        for buffer in [&first, &second] {
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT) && room.holds(buffer));
            assert_eq!(buffer.capacity(), buffer.len());
        }
        assert!(room.take(0).is_none());
        slabs.note(&room);
        assert_eq!(slabs.ask(), (0, 128 + 64));
        assert!(room.take(1000).is_none());
        assert!(room.take(usize::MAX).is_none());
        assert!(slabs.take().unwrap().take(1).is_none());
        drop(room);
        drop(first);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn smaller_slabs_make_way_for_larger_ones() {
        let slabs = Slabs::default();
        assert!(slabs.take().is_none());
        let (small, owner) = slab(100);
        let supplied = |slab| {
            slabs.supply(slab);
            slabs.ask().0
        };
        assert_eq!(supplied(small), 1);
        assert_eq!(supplied(slab(100).0), 2);
        assert_eq!(supplied(slab(200).0), 1);
        assert_eq!(Arc::strong_count(&owner), 1);
        assert_eq!(supplied(slab(100).0), 2);
        slabs.clear();
        assert_eq!(slabs.ask().0, 0);
    }
}
