//! The extension's allocator: large blocks come from the system, and wait for the next who needs one.
//!
//! A memory limit is a promise about what the process holds. The C library keeps freed buffers of a few megabytes in
//! one arena for each thread, where they add up to half of the limit again. Blocks from [`LARGE_BYTES`] on are mapped
//! here, in lengths of a few classes, and grown by the kernel's page tables instead of being copied.
//!
//! Faulting a page in costs ten times what filling it does, so freed blocks are kept: while streams run, and a little
//! longer, as the next epoch begins then, as many as fit into the memory limit beside those in use; otherwise a sixteenth of
//! it. A block is found by its length, or made of one of about that length, or cut off a longer one.
//!
//! `small.rs` has the smaller ones. Python and its other extensions keep their allocator.
#![expect(unsafe_code, reason = "an allocator is a set of unsafe promises")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::small::{self, SMALL};

/// Blocks at least this large are mapped: a system call costs little beside filling them. Pages of many columns are
/// often as small as that, and there are hundreds of them.
const LARGE_BYTES: usize = 64 << 10;

/// Mapped blocks begin at a page.
const PAGE_BYTES: usize = 4096;

/// The part of a memory limit that freed blocks may take in any case.
const KEPT_SHARE: usize = 16;

/// Lengths between two powers of two.
const STEPS: usize = 8;

/// One list of freed blocks for each length up to 2^48 bytes.
const CLASSES: usize = STEPS * 33;

/// How many lengths up or down a block is looked for: it is cut or grown by half at most.
const NEAR: usize = 4;

/// How often a thread tries to get at the freed blocks before it does without.
const TRIES: usize = 64;

/// See the module's documentation.
pub(crate) struct LargeBlocks;

static FREED: Mutex<Freed> = Mutex::new(Freed { classes: [NONE; CLASSES], newest: NONE, oldest: NONE, bytes: 0 });

/// Bytes of blocks in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The memory limit of the stream or selection that started last.
static LIMIT: AtomicUsize = AtomicUsize::new(256 << 20);

/// Streams and selections that run.
static STREAMS: AtomicUsize = AtomicUsize::new(0);

/// Bytes of blocks, large and small, that were in use when the first of them began: what opened datasets hold is beside the
/// limit.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// Keeps freed blocks within `memory_limit`.
pub(crate) fn set_memory_limit(memory_limit: u64) {
    LIMIT.store(usize::try_from(memory_limit).unwrap_or(usize::MAX), Ordering::Relaxed);
}

/// A stream or selection that runs, or ran a moment ago: freed blocks may take what it has left of its memory.
#[derive(Debug)]
pub(crate) struct OfStream {
    process: u32,
}

impl OfStream {
    /// Begins a stream of `memory_limit` bytes; what one before was allowed to keep beyond that is given back. Called with the
    /// GIL held, so that no fork finds it half done.
    pub(crate) fn begin(memory_limit: u64) -> Self {
        static IN_CHILDREN: Once = Once::new();
        IN_CHILDREN.call_once(forget_streams_in_children);
        set_memory_limit(memory_limit);
        if STREAMS.fetch_add(1, Ordering::Relaxed) == 0 {
            BEFORE.store(USED.load(Ordering::Relaxed).saturating_add(small::bytes()), Ordering::Relaxed);
        }
        shrink();
        Self { process: std::process::id() }
    }
}

impl Drop for OfStream {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            STREAMS.fetch_sub(1, Ordering::Relaxed);
            shrink();
        }
    }
}

/// Has forked children begin without streams: those of their parents do not run there, and never end.
fn forget_streams_in_children() {
    extern "C" fn forget() {
        STREAMS.store(0, Ordering::Relaxed);
    }
    // SAFETY: what a child calls stores a number, and is there as long as the process. Where the system refuses, a child keeps more.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
}

/// Gives back what may not be kept now.
fn shrink() {
    if let Some(mut freed) = try_lock() {
        freed.fit();
    }
}

/// Returns how many bytes of freed blocks may be kept now, where there are so many.
fn kept_bytes(freed: usize) -> usize {
    let limit = LIMIT.load(Ordering::Relaxed);
    let share = limit / KEPT_SHARE;
    if STREAMS.load(Ordering::Relaxed) == 0 {
        return share;
    }
    let used = USED.load(Ordering::Relaxed);
    // To count small blocks takes a while, and few are so many that they take what is left.
    let small = if used.saturating_add(freed) > limit / 2 { small::bytes() } else { 0 };
    let used = used.saturating_add(small).saturating_sub(BEFORE.load(Ordering::Relaxed));
    limit.saturating_add(share).saturating_sub(used)
}

/// Freed mappings, by length and by age. The lists run through the blocks themselves.
///
/// Its lock is only ever tried: a thread that finds it taken, or a child forked meanwhile, does without.
struct Freed {
    /// The block of each class that was freed last.
    classes: [usize; CLASSES],
    newest: usize,
    oldest: usize,
    bytes: usize,
}

/// No block.
const NONE: usize = 0;

/// What stands at the beginning of a freed block: its length, and its neighbours.
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

/// Returns the beginning of a freed block.
fn node(block: usize) -> *mut Node {
    with_exposed_provenance_mut(block)
}

fn read(block: usize) -> Node {
    // SAFETY: the block is a mapping in our lists: nobody uses it, and it begins with what `keep` wrote there.
    unsafe { node(block).read() }
}

fn change(block: usize, change: impl FnOnce(&mut Node)) {
    let mut changed = read(block);
    change(&mut changed);
    // SAFETY: as above.
    unsafe { node(block).write(changed) };
}

impl Freed {
    /// Takes the block of a length as near as possible to `len` that was freed last, with its length; else the beginning
    /// of a longer one.
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

    /// Takes a block out of the lists, and returns its length.
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

    /// Puts a block in front of the others.
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

    /// Unmaps the oldest blocks that may not be kept now.
    fn fit(&mut self) {
        self.shrink(kept_bytes(self.bytes));
    }

    /// Unmaps the oldest blocks beyond `max_bytes`.
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
/// What is never written takes no memory, so a fresh block costs its size, whatever its length.
fn mapped_len(size: usize) -> usize {
    let step = size.next_power_of_two() / (2 * STEPS);
    size.div_ceil(step) * step
}

/// Returns which of the lengths that [`mapped_len`] returns this is.
fn class_of(len: usize) -> usize {
    let power = len.ilog2() as usize;
    let class =
        power.saturating_sub(LARGE_BYTES.ilog2() as usize) * STEPS + (len - (1 << power)) * STEPS / (1 << power);
    class.min(CLASSES - 1)
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
    // SAFETY: only called with mappings of ours that nobody uses; whole pages of them.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(block), len) };
}

/// Makes a mapping longer or shorter; the kernel moves its pages, not its bytes.
fn resize(block: usize, len: usize, new_len: usize) -> *mut u8 {
    if len == new_len {
        return with_exposed_provenance_mut(block);
    }
    // SAFETY: only called with whole mappings of ours, by who owns them.
    let moved = unsafe { libc::mremap(with_exposed_provenance_mut(block), len, new_len, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED { null_mut() } else { moved.cast() }
}

/// Returns a freed block of `len` bytes, with old contents.
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
            // It takes the place of blocks that were kept.
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

// SAFETY: a block's layout says whether it was mapped and how long, in every method alike; mappings are page-aligned
// and at least as long as asked for; a block is in the cache only while nobody uses it; everything else is passed to
// `SMALL` unchanged.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return acquire(mapped_len(layout.size())).0;
        }
        // SAFETY: the caller's promises are `SMALL`'s.
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
                // Pages that were faulted in before cost a copy, new ones more than that.
                if new_len > len
                    && let Some(reused) = reuse(new_len)
                {
                    // SAFETY: both are blocks of ours, distinct, and the new one is longer.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// They share the counters.
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

    /// A block, and the byte that all of it is filled with.
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
            // SAFETY: so many bytes were allocated there, and filled.
            unsafe { std::slice::from_raw_parts_mut(self.start, self.size) }
        }

        fn fill(&mut self, value: u8) {
            // SAFETY: so many bytes were allocated there.
            unsafe { self.start.write_bytes(value, self.size) };
            self.filled = value;
        }

        fn check(&mut self, len: usize) {
            let filled = self.filled;
            assert!(self.bytes()[..len].iter().all(|&byte| byte == filled));
        }

        fn resize(&mut self, size: usize) {
            let kept = self.size.min(size);
            // SAFETY: the block is ours, of this layout; the size is not 0.
            self.start = unsafe { LargeBlocks.realloc(self.start, layout(self.size), size) };
            assert!(!self.start.is_null());
            self.size = size;
            self.check(kept);
            self.fill(self.filled.wrapping_add(1));
        }

        fn free(mut self) {
            self.check(self.size);
            // SAFETY: the block is ours, of this layout, and not used any more.
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
        // The threads of the harness may have freed something meanwhile.
        assert!(FREED.lock().unwrap().bytes < 2 << 20);
        short.into_iter().for_each(Block::free);
        drop(stream);
    }

    #[test]
    fn what_cannot_be_mapped_is_not_counted() {
        let _alone = alone();
        // More than there are addresses.
        let (before, impossible) = (used(), layout(1 << 60));
        // SAFETY: the size is not 0.
        assert!(unsafe { LargeBlocks.alloc(impossible) }.is_null());
        // SAFETY: as above.
        assert!(unsafe { LargeBlocks.alloc_zeroed(impossible) }.is_null());
        let block = Block::new(LARGE_BYTES, false);
        // SAFETY: the block is of this layout, and stays where it is when nothing larger is to be had.
        assert!(unsafe { LargeBlocks.realloc(block.start, layout(LARGE_BYTES), 1 << 60) }.is_null());
        // Little beside what there is not; a test that waits for its turn may have taken a block for itself meanwhile.
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
        // A test that waits for its turn may have taken a block for itself meanwhile, far less than these 800 together.
        assert!(used() <= before + 16 * LARGE_BYTES, "{before} bytes before, {} after", used());
    }
}
