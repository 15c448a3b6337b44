//! The extension's allocator: large blocks are mapped from the system and cached for reuse once freed.
//!
//! A memory limit is a promise about what the process holds. The C library keeps freed buffers of a few megabytes in
//! per-thread arenas, which add up to half of the limit again. Blocks of at least [`LARGE_BYTES`] are therefore mapped
//! here, in a few length classes, and grown by remapping pages instead of copying.
//!
//! Faulting a page in costs ten times as much as filling it, so freed blocks are kept. While streams run, and for a
//! little longer because the next epoch starts then, as many are kept as fit into the memory limit beside those in use;
//! otherwise a sixteenth of the limit. A request is served by a cached block of its length, by one of about that
//! length, which is resized, or by a piece cut off a longer one.
//!
//! `small.rs` handles smaller blocks. Python and its other extensions keep their own allocator.
#![expect(unsafe_code, reason = "an allocator is a set of unsafe promises")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::small::{self, SMALL};

/// Blocks of at least this size are mapped: a system call costs little compared to filling them. Pages of wide files
/// are often this small, and there are hundreds of them.
const LARGE_BYTES: usize = 64 << 10;

/// Mapped blocks are page-aligned, and whole pages: no kernel has larger ones.
const PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 << 10 };

/// The fraction of a memory limit (one in this many bytes) that freed blocks may always take.
const KEPT_SHARE: usize = 16;

/// Number of length classes between two powers of two.
const STEPS: usize = 8;

/// One list of freed blocks for each length up to 2^48 bytes.
const CLASSES: usize = STEPS * 33;

/// How many classes up or down to look for a block: it is cut or grown by half at most.
const NEAR: usize = 4;

/// How often a thread tries to lock the freed blocks before it does without them.
const TRIES: usize = 64;

/// See the module's documentation.
pub(crate) struct LargeBlocks;

static FREED: Mutex<Freed> = Mutex::new(Freed { classes: [NONE; CLASSES], newest: NONE, oldest: NONE, bytes: 0 });

/// Bytes of blocks in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The memory limit of the stream or selection that was started last.
static LIMIT: AtomicUsize = AtomicUsize::new(256 << 20);

/// Number of running streams and selections.
static STREAMS: AtomicUsize = AtomicUsize::new(0);

/// Bytes of blocks, large and small, that were in use when the first of these began: what open datasets hold does not
/// count towards the limit.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// Limits freed blocks to `memory_limit`.
pub(crate) fn set_memory_limit(memory_limit: u64) {
    LIMIT.store(usize::try_from(memory_limit).unwrap_or(usize::MAX), Ordering::Relaxed);
}

/// A stream or selection that runs, or ran a moment ago: freed blocks may take the rest of its memory limit.
#[derive(Debug)]
pub(crate) struct OfStream(());

impl OfStream {
    /// Begins a stream of `memory_limit` bytes, and gives back freed blocks that an earlier limit allowed and this one
    /// does not. Called with the GIL held, so that no fork finds it half done.
    pub(crate) fn begin(memory_limit: u64) -> Self {
        static IN_CHILDREN: Once = Once::new();
        IN_CHILDREN.call_once(forget_streams_in_children);
        set_memory_limit(memory_limit);
        if STREAMS.fetch_add(1, Ordering::Relaxed) == 0 {
            BEFORE.store(USED.load(Ordering::Relaxed).saturating_add(small::bytes()), Ordering::Relaxed);
        }
        shrink();
        Self(())
    }
}

impl Drop for OfStream {
    fn drop(&mut self) {
        STREAMS.fetch_sub(1, Ordering::Relaxed);
        shrink();
    }
}

/// Resets the stream count in forked children: the parent's streams do not run there and would never end.
fn forget_streams_in_children() {
    extern "C" fn forget() {
        STREAMS.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler only stores a number, and lives as long as the process. If registration fails, a child merely
    // keeps more memory.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
}

/// Gives back freed blocks beyond what may be kept now.
fn shrink() {
    if let Some(mut freed) = try_lock() {
        freed.fit();
    }
}

/// Returns how many bytes of freed blocks may be kept now, given that there are `freed` bytes of them.
fn kept_bytes(freed: usize) -> usize {
    let limit = LIMIT.load(Ordering::Relaxed);
    let share = limit / KEPT_SHARE;
    if STREAMS.load(Ordering::Relaxed) == 0 {
        return share;
    }
    let used = USED.load(Ordering::Relaxed);
    // Counting small blocks takes a while, and they rarely matter below half of the limit.
    let small = if used.saturating_add(freed) > limit / 2 { small::bytes() } else { 0 };
    let used = used.saturating_add(small).saturating_sub(BEFORE.load(Ordering::Relaxed));
    limit.saturating_add(share).saturating_sub(used)
}

/// Freed mappings, by length and by age. The lists are threaded through the blocks themselves.
///
/// Its lock is only ever tried: a thread that finds it taken, or a child forked while it was, does without.
struct Freed {
    /// The most recently freed block of each class.
    classes: [usize; CLASSES],
    newest: usize,
    oldest: usize,
    bytes: usize,
}

/// No block.
const NONE: usize = 0;

/// The header of a freed block: its length, and its neighbours in both lists.
#[derive(Clone, Copy)]
struct Node {
    len: usize,
    of_class: Links,
    of_all: Links,
}

#[derive(Clone, Copy)]
struct Links {
    newer: usize,
    older: usize,
}

/// Returns the header of a freed block.
fn node(block: usize) -> *mut Node {
    with_exposed_provenance_mut(block)
}

fn read(block: usize) -> Node {
    // SAFETY: the block is a mapping in our lists: nobody uses it, and it begins with the node that `keep` wrote.
    unsafe { node(block).read() }
}

fn change(block: usize, change: impl FnOnce(&mut Node)) {
    let mut changed = read(block);
    change(&mut changed);
    // SAFETY: as above.
    unsafe { node(block).write(changed) };
}

impl Freed {
    /// Takes the most recently freed block whose length is nearest to `len`, with its length; else cuts the beginning
    /// off a longer one.
    fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        let class = class_of(len);
        let near = (0..=NEAR).flat_map(|step| [class.checked_add(step), class.checked_sub(step)]).flatten();
        let longer = class + NEAR + 1..CLASSES;
        let mut classes = near.filter(|&class| class < CLASSES).chain(longer);
        let found = classes.find(|&class| self.classes[class] != NONE)?;
        let block = self.classes[found];
        let whole = self.remove(block);
        if found <= class + NEAR || whole - len < LARGE_BYTES {
            return Some((block, whole));
        }
        self.keep(block + len, whole - len);
        Some((block, len))
    }

    /// Removes a block from the lists and returns its length.
    fn remove(&mut self, block: usize) -> usize {
        let Node { len, of_class, of_all } = read(block);
        match of_class.newer {
            NONE => self.classes[class_of(len)] = of_class.older,
            newer => change(newer, |node| node.of_class.older = of_class.older),
        }
        if of_class.older != NONE {
            change(of_class.older, |node| node.of_class.newer = of_class.newer);
        }
        match of_all.newer {
            NONE => self.newest = of_all.older,
            newer => change(newer, |node| node.of_all.older = of_all.older),
        }
        match of_all.older {
            NONE => self.oldest = of_all.newer,
            older => change(older, |node| node.of_all.newer = of_all.newer),
        }
        self.bytes -= len;
        len
    }

    /// Puts a block at the front of the lists.
    fn keep(&mut self, block: usize, len: usize) {
        let class = &mut self.classes[class_of(len)];
        let of_class = Links { newer: NONE, older: std::mem::replace(class, block) };
        let of_all = Links { newer: NONE, older: std::mem::replace(&mut self.newest, block) };
        // SAFETY: the block is a mapping of ours that nobody uses any more, aligned to pages and longer than a node.
        unsafe { node(block).write(Node { len, of_class, of_all }) };
        if of_class.older != NONE {
            change(of_class.older, |node| node.of_class.newer = block);
        }
        match of_all.older {
            NONE => self.oldest = block,
            older => change(older, |node| node.of_all.newer = block),
        }
        self.bytes += len;
    }

    /// Unmaps the oldest blocks until the rest may be kept.
    fn fit(&mut self) {
        self.shrink(kept_bytes(self.bytes));
    }

    /// Unmaps the oldest blocks until at most `max_bytes` are left.
    fn shrink(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes && self.oldest != NONE {
            let oldest = self.oldest;
            let len = self.remove(oldest);
            unmap(oldest, len);
        }
    }
}

fn try_lock() -> Option<MutexGuard<'static, Freed>> {
    (0..TRIES).find_map(|_| {
        std::hint::spin_loop();
        FREED.try_lock().ok()
    })
}

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= PAGE_BYTES
}

/// Returns the length to map for `size` bytes: the next of eight steps between powers of two.
///
/// Untouched pages take no memory, so a fresh block costs its size, whatever its length.
fn mapped_len(size: usize) -> usize {
    let step = size.next_power_of_two() / (2 * STEPS);
    (size.div_ceil(step) * step).next_multiple_of(PAGE_BYTES)
}

/// Returns the class of a length that [`mapped_len`] returned.
fn class_of(len: usize) -> usize {
    let power = len.ilog2() as usize;
    let class =
        power.saturating_sub(LARGE_BYTES.ilog2() as usize) * STEPS + (len - (1 << power)) * STEPS / (1 << power);
    class.min(CLASSES - 1)
}

fn map(len: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an anonymous private mapping at an address chosen by the kernel touches nothing that exists.
    let block = unsafe {
        libc::mmap(without_provenance_mut(0), len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if block == libc::MAP_FAILED { null_mut() } else { block.cast() }
}

fn unmap(block: usize, len: usize) {
    // SAFETY: only called with whole pages of our own mappings, which nobody uses.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(block), len) };
}

/// Makes a mapping longer or shorter; the kernel moves its pages, not its bytes.
fn resize(block: usize, len: usize, new_len: usize) -> *mut u8 {
    if len == new_len {
        return with_exposed_provenance_mut(block);
    }
    // SAFETY: only called with whole mappings of ours, by their owner.
    let moved = unsafe { libc::mremap(with_exposed_provenance_mut(block), len, new_len, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED { null_mut() } else { moved.cast() }
}

/// Returns a freed block of `len` bytes, with its old contents.
fn reuse(len: usize) -> Option<*mut u8> {
    let (block, old_len) = try_lock()?.take(len)?;
    let resized = resize(block, old_len, len);
    if resized.is_null() {
        unmap(block, old_len);
        return None;
    }
    Some(resized)
}

/// Returns a block of `len` bytes, and whether it is all zeros.
fn acquire(len: usize) -> (*mut u8, bool) {
    USED.fetch_add(len, Ordering::Relaxed);
    let (block, is_zero) = match reuse(len) {
        Some(block) => (block, false),
        None => {
            // The new block takes the place of cached ones.
            shrink();
            (map(len), true)
        }
    };
    if block.is_null() {
        USED.fetch_sub(len, Ordering::Relaxed);
    }
    (block, is_zero)
}

fn free(block: *mut u8, len: usize) {
    USED.fetch_sub(len, Ordering::Relaxed);
    let block = block.expose_provenance();
    match try_lock() {
        Some(mut freed) => {
            freed.keep(block, len);
            freed.fit();
        }
        None => unmap(block, len),
    }
}

// SAFETY: every method decides by the layout alone whether a block is mapped, and how long it is; mappings are
// page-aligned and at least as long as requested; a block is in the cache only while nobody uses it; everything else is
// passed to `SMALL` unchanged.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return acquire(mapped_len(layout.size())).0;
        }
        // SAFETY: the caller's promises are those that `SMALL` requires.
        unsafe { SMALL.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            let (block, is_zero) = acquire(mapped_len(layout.size()));
            if !is_zero {
                // SAFETY: the block is at least as long as the layout's size.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            return block;
        }
        // SAFETY: as above.
        unsafe { SMALL.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(&layout) {
            return free(block, mapped_len(layout.size()));
        }
        // SAFETY: as above.
        unsafe { SMALL.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `new_size` is valid with the old alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (is_large(&layout), is_large(&new_layout)) {
            // SAFETY: as above.
            (false, false) => unsafe { SMALL.realloc(block, layout, new_size) },
            (true, true) => {
                let (len, new_len) = (mapped_len(layout.size()), mapped_len(new_size));
                // Copying costs less than faulting in new pages.
                if new_len > len
                    && let Some(reused) = reuse(new_len)
                {
                    // SAFETY: both are distinct blocks of ours, and the new one is longer.
                    unsafe { reused.copy_from_nonoverlapping(block, layout.size()) };
                    USED.fetch_add(new_len, Ordering::Relaxed);
                    free(block, len);
                    return reused;
                }
                let moved = resize(block.expose_provenance(), len, new_len);
                if !moved.is_null() {
                    USED.fetch_add(new_len, Ordering::Relaxed);
                    USED.fetch_sub(len, Ordering::Relaxed);
                }
                moved
            }
            // SAFETY: both blocks are at least as long as what is copied, and they are distinct.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tests share the counters.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn used() -> usize {
        USED.load(Ordering::Relaxed)
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).unwrap()
    }

    /// A block, and the byte that it is filled with.
    struct Block {
        start: *mut u8,
        size: usize,
        filled: u8,
    }

    impl Block {
        fn new(size: usize, is_zeroed: bool) -> Self {
            // SAFETY: sizes are not 0.
            let start = unsafe {
                if is_zeroed { LargeBlocks.alloc_zeroed(layout(size)) } else { LargeBlocks.alloc(layout(size)) }
            };
            assert!(!start.is_null() && start.addr().is_multiple_of(64));
            let mut block = Self { start, size, filled: 0 };
            if !is_zeroed {
                block.fill(1);
            }
            block
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: that many bytes were allocated and filled.
            unsafe { std::slice::from_raw_parts_mut(self.start, self.size) }
        }

        fn fill(&mut self, value: u8) {
            // SAFETY: that many bytes were allocated.
            unsafe { self.start.write_bytes(value, self.size) };
            self.filled = value;
        }

        fn check(&mut self, len: usize) {
            let filled = self.filled;
            assert!(self.bytes()[..len].iter().all(|&byte| byte == filled));
        }

        fn resize(&mut self, size: usize) {
            let kept = self.size.min(size);
            // SAFETY: the block is ours and has this layout; the size is not 0.
            self.start = unsafe { LargeBlocks.realloc(self.start, layout(self.size), size) };
            assert!(!self.start.is_null());
            self.size = size;
            self.check(kept);
            self.fill(self.filled.wrapping_add(1));
        }

        fn free(mut self) {
            self.check(self.size);
            // SAFETY: the block is ours, has this layout, and is not used any more.
            unsafe { LargeBlocks.dealloc(self.start, layout(self.size)) };
        }
    }

    fn sizes() -> impl Strategy<Value = usize> {
        prop_oneof![1..2 * LARGE_BYTES, LARGE_BYTES - 2..LARGE_BYTES + 2, LARGE_BYTES..8 << 20]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn blocks_hold_what_was_written_and_are_counted_until_they_are_freed(
            steps in prop::collection::vec((0_u8..6, any::<prop::sample::Index>(), sizes()), 1..60),
            limit in prop_oneof![Just(0_u64), Just(4 << 20), Just(1 << 30)],
        ) {
            let _alone = alone();
            let (before, stream) = (used(), OfStream::begin(limit));
            let mut blocks: Vec<Block> = Vec::new();
            for (number, (step, place, size)) in steps.into_iter().enumerate() {
                match step {
                    0..=2 => blocks.push(Block::new(size, step == 0)),
                    _ if blocks.is_empty() => {}
                    3 => blocks.swap_remove(place.index(blocks.len())).free(),
                    4 => {
                        let place = place.index(blocks.len());
                        blocks[place].resize(size);
                    }
                    _ => {
                        let place = place.index(blocks.len());
                        blocks[place].fill(u8::try_from(number % 256).unwrap());
                    }
                }
                let large = blocks.iter().filter(|block| block.size >= LARGE_BYTES);
                prop_assert_eq!(used() - before, large.map(|block| mapped_len(block.size)).sum::<usize>());
            }
            blocks.into_iter().for_each(Block::free);
            drop(stream);
            prop_assert_eq!(used(), before);
            let freed = FREED.lock().unwrap().bytes;
            prop_assert!(freed <= kept_bytes(freed));
        }
    }

    #[test]
    fn a_long_block_serves_several_short_ones() {
        let _alone = alone();
        let stream = OfStream::begin(64 << 20);
        FREED.lock().unwrap().shrink(0);
        let long = Block::new(8 << 20, false);
        let place = long.start.addr();
        long.free();
        let short: Vec<Block> = (0..4).map(|_| Block::new(2 << 20, false)).collect();
        let starts: Vec<usize> = short.iter().map(|block| block.start.addr()).collect();
        assert_eq!(starts, (0..4).map(|number| place + (number << 21)).collect::<Vec<_>>());
        // The test harness's threads may have freed something meanwhile.
        assert!(FREED.lock().unwrap().bytes < 2 << 20);
        short.into_iter().for_each(Block::free);
        drop(stream);
    }

    #[test]
    fn what_cannot_be_mapped_is_not_counted() {
        let _alone = alone();
        // Larger than the address space.
        let (before, impossible) = (used(), layout(1 << 60));
        // SAFETY: the size is not 0.
        assert!(unsafe { LargeBlocks.alloc(impossible) }.is_null());
        // SAFETY: as above.
        assert!(unsafe { LargeBlocks.alloc_zeroed(impossible) }.is_null());
        let block = Block::new(LARGE_BYTES, false);
        // SAFETY: the block has this layout, and stays where it is when no larger one can be allocated.
        assert!(unsafe { LargeBlocks.realloc(block.start, layout(LARGE_BYTES), 1 << 60) }.is_null());
        // Little compared to the impossible size; another test may have allocated a block meanwhile.
        assert!(used().abs_diff(before) < 1 << 40);
        block.free();
    }

    #[test]
    fn threads_do_not_get_each_others_blocks() {
        let _alone = alone();
        let before = used();
        std::thread::scope(|scope| {
            for value in 1..=4 {
                scope.spawn(move || {
                    for number in 0..200_usize {
                        let mut block = Block::new(LARGE_BYTES + number * 997, number % 2 == 0);
                        block.fill(value);
                        block.resize(LARGE_BYTES + number * 1499);
                        block.free();
                    }
                });
            }
        });
        // Another test may have allocated a block meanwhile, which is far less than these 800 together.
        assert!(used() <= before + 16 * LARGE_BYTES, "{before} bytes before, {} after", used());
    }
}
