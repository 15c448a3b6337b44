//! Small blocks of the extension's allocator, served by jemalloc.
//!
//! Batches are allocated by our threads and freed by the training loop's. With the C library, freeing takes the lock of
//! the other thread's arena, which small batches of many columns waited for most of the time. Of the allocators that
//! avoid this, jemalloc lets a process fork while its threads allocate.
#![expect(unsafe_code, reason = "jemalloc's configuration is a symbol, and the clock is the C library's")]

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use tikv_jemalloc_ctl::{epoch, stats};
use tikv_jemallocator::Jemalloc;

pub(crate) const SMALL: Jemalloc = Jemalloc;

/// Maximum age of an answer of [`bytes`], in milliseconds: jemalloc takes all its locks to compute one.
const MOST_AGE: i64 = 8;

/// jemalloc's startup options: free pages go back to the system after a tenth of a second, not after ten seconds,
/// during which they would count towards the process beyond its memory limit.
// SAFETY: jemalloc declares this symbol, weakly, as a pointer to NUL-terminated text that programs may define.
#[unsafe(export_name = "_rjem_malloc_conf")]
static CONFIGURATION: &[u8; 36] = b"dirty_decay_ms:100,muzzy_decay_ms:0\0";

/// Returns the memory that small blocks take, as of a moment ago.
pub(crate) fn bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    static NEXT: AtomicI64 = AtomicI64::new(0);
    let (now, next) = (milliseconds(), NEXT.load(Ordering::Relaxed));
    // Only one thread at a time asks.
    if now >= next && NEXT.compare_exchange(next, now + MOST_AGE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let counted = epoch::advance().and_then(|_| stats::resident::read());
        BYTES.store(counted.unwrap_or(0), Ordering::Relaxed);
    }
    BYTES.load(Ordering::Relaxed)
}

fn milliseconds() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every Linux has this clock, and the call only writes the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
