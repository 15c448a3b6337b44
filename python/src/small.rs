//! Small blocks of the extension's allocator: jemalloc's.
//!
//! Batches are made by our threads and freed by the loop's. The C library takes the lock of the other thread's arena for that:
//! small batches of many columns waited for it most of the time. Of the allocators that do not wait, jemalloc lets a process
//! fork while its threads allocate.
#![expect(unsafe_code, reason = "jemalloc's configuration is a symbol, and the clock is the C library's")]

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use tikv_jemalloc_ctl::{epoch, stats};
use tikv_jemallocator::Jemalloc;

pub(crate) const SMALL: Jemalloc = Jemalloc;

/// How old an answer of [`bytes`] may be, in milliseconds: jemalloc takes all its locks to make one.
const MOST_AGE: i64 = 8;

/// What jemalloc reads when it begins: free pages go back to the system after a tenth of a second, not after ten, in which
/// they would be the process's beyond its memory limit.
// SAFETY: jemalloc declares it as this, a pointer to text that ends with a NUL, and weakly, for programs to define.
#[unsafe(export_name = "_rjem_malloc_conf")]
static CONFIGURATION: &[u8; 36] = b"dirty_decay_ms:100,muzzy_decay_ms:0\0";

/// Returns the memory that small blocks take, a moment ago.
pub(crate) fn bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    static NEXT: AtomicI64 = AtomicI64::new(0);
    let (now, next) = (milliseconds(), NEXT.load(Ordering::Relaxed));
    // One thread at a time asks.
    if now >= next && NEXT.compare_exchange(next, now + MOST_AGE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let counted = epoch::advance().and_then(|_| stats::resident::read());
        BYTES.store(counted.unwrap_or(0), Ordering::Relaxed);
    }
    BYTES.load(Ordering::Relaxed)
}

fn milliseconds() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is there on every Linux, and writes the time and nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
