//! The extension's allocator: large blocks come from the system and, beyond a small cache, go back to it.
//!
//! A memory limit is a promise about what the process holds. The C library keeps freed buffers of a few megabytes in
//! one arena for each thread, where they add up to half of the limit again. Blocks from [`LARGE_BYTES`] on are mapped
//! here, in lengths of a few classes, and grown by the kernel's page tables instead of being copied. The blocks freed
//! last wait in a cache for the next batch, because faulting pages in costs as much as filling them; it holds a
//! sixteenth of the memory limit. Smaller blocks are left to the C library. Python and its other extensions keep theirs.
#![expect(unsafe_code, reason = "an allocator is a set of unsafe promises")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Blocks at least this large are mapped: a system call costs little beside filling them. Pages of many columns are
/// often as small as that, and there are hundreds of them.
const LARGE_BYTES: usize = 64 << 10;

/// Mapped blocks begin at a page.
const PAGE_BYTES: usize = 4096;

/// The part of a stream's memory limit that freed blocks may take.
const CACHE_SHARE: u64 = 16;

/// Blocks in the cache at most.
const MAX_CACHED: usize = 256;

/// See the module's documentation.
pub(crate) struct LargeBlocks;

static CACHE: Mutex<Cache> = Mutex::new(Cache { blocks: [(0, 0); MAX_CACHED], len: 0, bytes: 0 });

/// Before the first stream a selection has some, too: without, it spends most of its time on faults.
static CACHE_BYTES: AtomicUsize = AtomicUsize::new(16 << 20);

/// Lets freed blocks take their part of `memory_limit`.
pub(crate) fn set_memory_limit(memory_limit: u64) {
    CACHE_BYTES.store(usize::try_from(memory_limit / CACHE_SHARE).unwrap_or(usize::MAX), Ordering::Relaxed);
}

/// Freed mappings as (address, length), oldest first.
///
/// Its lock is only ever tried: a thread that finds it taken, or a child forked meanwhile, does without.
struct Cache {
    blocks: [(usize, usize); MAX_CACHED],
    len: usize,
    bytes: usize,
}

impl Cache {
    /// Takes the block of exactly `len` bytes that was freed last.
    fn take(&mut self, len: usize) -> Option<usize> {
        let index = self.blocks[..self.len].iter().rposition(|&(_, cached)| cached == len)?;
        Some(self.remove(index).0)
    }

    fn remove(&mut self, index: usize) -> (usize, usize) {
        let block = self.blocks[index];
        self.blocks.copy_within(index + 1..self.len, index);
        self.len -= 1;
        self.bytes -= block.1;
        block
    }

    /// Keeps a block, and unmaps the oldest ones that have no room beside it.
    fn keep(&mut self, block: usize, len: usize, limit: usize) {
        while self.len == MAX_CACHED || (self.len > 0 && self.bytes + len > limit) {
            let (oldest, len) = self.remove(0);
            unmap(oldest, len);
        }
        self.blocks[self.len] = (block, len);
        self.len += 1;
        self.bytes += len;
    }
}

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= PAGE_BYTES
}

/// Returns the length to map for `size` bytes: the next of eight steps between powers of two.
///
/// What is never written takes no memory, so a fresh block costs its size, whatever its length.
fn mapped_len(size: usize) -> usize {
    let step = (size.next_power_of_two() / 16).max(PAGE_BYTES);
    size.div_ceil(step) * step
}

fn map(len: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing that exists.
    let block = unsafe {
        libc::mmap(without_provenance_mut(0), len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if block == libc::MAP_FAILED { null_mut() } else { block.cast() }
}

fn unmap(block: usize, len: usize) {
    // SAFETY: only called with whole mappings of ours that nobody uses; unmapping those cannot fail.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(block), len) };
}

/// Returns a cached block of `len` bytes, with old contents.
fn reuse(len: usize) -> Option<*mut u8> {
    CACHE.try_lock().ok()?.take(len).map(std::ptr::with_exposed_provenance_mut)
}

fn free(block: *mut u8, len: usize) {
    let (block, limit) = (block.expose_provenance(), CACHE_BYTES.load(Ordering::Relaxed));
    match CACHE.try_lock() {
        Ok(mut cache) if len <= limit => cache.keep(block, len, limit),
        _ => unmap(block, len),
    }
}

// SAFETY: a block's layout says whether it was mapped and how long, in every method alike; mappings are page-aligned
// and at least as long as asked for; a block is in the cache only while nobody uses it; everything else is passed to
// `System` unchanged.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            let len = mapped_len(layout.size());
            return reuse(len).unwrap_or_else(|| map(len));
        }
        // SAFETY: the caller's promises are `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            let len = mapped_len(layout.size());
            let Some(block) = reuse(len) else { return map(len) };
            // SAFETY: the block is `len` bytes long, which is at least the layout's size.
            unsafe { block.write_bytes(0, layout.size()) };
            return block;
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(&layout) {
            return free(block, mapped_len(layout.size()));
        }
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `new_size` is valid with the old alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (is_large(&layout), is_large(&new_layout)) {
            // SAFETY: as above.
            (false, false) => unsafe { System.realloc(block, layout, new_size) },
            (true, true) => {
                let (len, new_len) = (mapped_len(layout.size()), mapped_len(new_size));
                if len == new_len {
                    return block;
                }
                // SAFETY: the block is a whole mapping of `len` bytes; the kernel moves its pages, not its bytes.
                let moved = unsafe { libc::mremap(block.cast(), len, new_len, libc::MREMAP_MAYMOVE) };
                if moved == libc::MAP_FAILED { null_mut() } else { moved.cast() }
            }
            // SAFETY: both blocks hold what is copied, and they are distinct.
            _ => unsafe {
                let moved = self.alloc(new_layout);
                if !moved.is_null() {
                    moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}
