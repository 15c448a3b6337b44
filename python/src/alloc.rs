//! The extension's allocator: large blocks come from the system and go back to it, one by one.
//!
//! A memory limit is a promise about what the process holds. The C library keeps freed buffers of a few megabytes in
//! one arena for each thread, where they add up to half of the limit again. Blocks from [`LARGE_BYTES`] on are mapped
//! and unmapped directly here, and grown in place by the kernel's page tables instead of being copied; smaller ones
//! are left to the C library. It serves this extension alone: Python and its other extensions keep theirs.
#![expect(unsafe_code, reason = "an allocator is a set of unsafe promises")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{null_mut, without_provenance_mut};

/// Blocks at least this large are mapped: a system call costs little beside filling them.
const LARGE_BYTES: usize = 256 << 10;

/// Mapped blocks begin at a page.
const PAGE_BYTES: usize = 4096;

/// See the module's documentation.
pub(crate) struct LargeBlocks;

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= PAGE_BYTES
}

fn map(len: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing that exists.
    let block = unsafe {
        libc::mmap(without_provenance_mut(0), len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if block == libc::MAP_FAILED { null_mut() } else { block.cast() }
}

// SAFETY: a block's layout says whether it was mapped, in every method alike; mappings are page-aligned, zeroed and
// as long as asked for; everything else is passed to `System` unchanged.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(&layout) {
            // SAFETY: the block was mapped with this length. Unmapping a whole mapping cannot fail.
            unsafe { libc::munmap(block.cast(), layout.size()) };
            return;
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
                // SAFETY: the block is a whole mapping of the old length; the kernel moves its pages, not its bytes.
                let moved = unsafe { libc::mremap(block.cast(), layout.size(), new_size, libc::MREMAP_MAYMOVE) };
                if moved == libc::MAP_FAILED { null_mut() } else { moved.cast() }
            }
            // SAFETY: the new block is at least as long as what is copied, and distinct from the old one.
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
