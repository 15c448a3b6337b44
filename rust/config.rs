//! Named defaults.

use std::sync::LazyLock;
use std::time::Duration;

/// Footer bytes requested at first; if they are not enough, there is a second request.
pub const FOOTER_BYTES: u64 = 256 << 10;

/// Total size of column indexes and bloom filters kept if they came with the footers, over all objects.
pub const KEPT_INDEX_BYTES: u64 = 64 << 20;

/// Footers requested at the same time.
pub const FOOTERS_IN_FLIGHT: usize = 256;

/// Ranges of a remote object with a gap of up to this may be read in one request: the gap costs less than a round trip.
pub const REMOTE_GAP_BYTES: u64 = 1 << 20;

/// Ranges of a remote object with a gap of up to this are read in one request, however fast the store answers.
pub const LEAST_REMOTE_GAP_BYTES: u64 = 32 << 10;

/// Except for the smallest ones, gaps that are read add at most this percentage of the wanted bytes.
pub const MAX_OVER_READ_PERCENT: u64 = 20;

/// Ranges of a local file with a gap of up to this are read together.
pub const LOCAL_GAP_BYTES: u64 = 16 << 10;

/// Larger ranges are split, because one connection does not saturate a network.
pub const MAX_REQUEST_BYTES: u64 = 8 << 20;

/// No range is split into requests smaller than this.
pub const LEAST_REQUEST_BYTES: u64 = 1 << 20;

/// The body of such a smaller request takes this fraction of the time to its first byte.
pub const BODY_SHARE: u64 = 4;

/// Number of requests to one store up to which large ranges are split into smaller ones, to use more connections.
pub const FEW_REQUESTS_IN_FLIGHT: usize = 32;

/// Concurrent requests to one store, before the best number has been measured.
pub const REQUESTS_IN_FLIGHT: usize = 64;

/// The same for an object store, which spreads requests over many machines.
pub const OBJECT_STORE_REQUESTS_IN_FLIGHT: usize = 256;

/// Concurrent calls of a user-supplied file system: each takes a Python thread.
pub const FILE_SYSTEM_CALLS_IN_FLIGHT: usize = 16;

/// Minimum of concurrent requests to one store, however often it reports too many.
pub const LEAST_REQUESTS_IN_FLIGHT: usize = 4;

/// Maximum of concurrent requests to one object store.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 512;

/// Maximum of concurrent requests to one web server.
pub const MAX_HTTP_REQUESTS_IN_FLIGHT: usize = 128;

/// Bytes requested from one store at the same time, over all streams; a larger request is made alone.
pub const MAX_BYTES_IN_FLIGHT: u64 = 1 << 30;

/// How many later requests may overtake one that is not needed for a long time.
pub const MAX_SLACK: u64 = 4096;

/// What a remote store sends, over all connections, while a request waits for its first byte: what a request must save
/// if it has to wait for another one. Sixteen connections of 30 MB/s send as much in 35 ms.
pub const REMOTE_ROUND_TRIP_BYTES: u64 = 16 << 20;

/// The same for local files, where the wait is a system call.
pub const LOCAL_ROUND_TRIP_BYTES: u64 = 256 << 10;

/// Bytes of predicate columns in memory at once, if the memory limit allows.
pub const SELECTION_MEMORY_BYTES: u64 = 512 << 20;

/// Bytes of a stream that are requested or wait to be decoded, until decoders turn out to wait for them; for a store
/// that is not known to be distant and fast.
pub const FETCH_WINDOW_BYTES: u64 = 64 << 20;

/// The same for local files, which are usually in the page cache: data is still in the processor's cache when it is
/// decoded.
pub const LOCAL_FETCH_WINDOW_BYTES: u64 = 16 << 20;

/// Initial maximum of bytes of a stream that are requested or wait to be decoded, for a distant, fast store.
pub const MAX_FETCH_WINDOW_BYTES: u64 = 256 << 20;

/// If it began as what the network is expected to deliver, the window grows by one byte for this many that arrive while
/// decoders wait.
pub const MEASURED_WINDOW_GROWTH: u64 = 4;

/// Number of connections that a network is expected to serve as fast as it served a few.
pub const CONNECTIONS_OF_NETWORK: f64 = 64.0;

/// Maximum bytes per second that a network is expected to deliver: 25 Gbit/s. Faster ones show when decoders wait.
pub const FAST_NETWORK: f64 = 25e9 / 8.0;

/// Minimum of bytes of upcoming batches whose rows are decoded ahead, if they fit: what a loop takes in a burst.
pub const DECODED_AHEAD_BYTES: u64 = 64 << 20;

/// Parts that may be decoded ahead per thread, whatever their size: one in progress, and one waiting.
pub const PARTS_AHEAD_PER_THREAD: u64 = 2;

/// Before a selection is complete, at most this fraction of the memory limit is used to read returned columns ahead.
pub const READ_AHEAD_IN_MEMORY: u64 = 16;

/// Memory for a query that chooses rows: what it sorts and joins, what it reads, what it returns.
pub const QUERY_MEMORY_BYTES: u64 = 1 << 30;

/// Rows per batch of a query, if they are small.
pub const QUERY_BATCH_ROWS: u32 = 8192;

/// Rows per exported batch, if they are small: about as many as other engines use, since each batch costs its reader
/// some calls.
pub const ARROW_BATCH_ROWS: u32 = 1 << 16;

/// Maximum bytes of such a batch, if more than one row fits.
pub const ARROW_BATCH_BYTES: u64 = 16 << 20;

/// A batch of a query takes at most this fraction of the memory limit.
pub const QUERY_BATCHES_IN_MEMORY: u64 = 32;

/// A single read of a stream takes at most this fraction of the memory limit, if pages allow.
pub const STREAM_READS_IN_MEMORY: u64 = 16;

/// If pages of different columns begin at different rows, or columns have large dictionaries, smaller reads fetch more
/// bytes twice. A read may take this fraction of the memory limit to avoid fetching half of the wanted bytes again, and
/// other multiples of it to avoid less or more.
pub const LEAST_STREAM_READS_IN_MEMORY: u64 = 4;

/// A row group without a page index slows a stream down if it takes more than this fraction of the memory limit: what
/// is decoded, what is being read and what comes next then do not fit together.
pub const UNINDEXED_SHARE: u64 = 4;

/// How long a read may go on without receiving a byte, whatever the store does.
pub const RETRY_FOR: Duration = Duration::from_secs(300);

/// Returns the default limit for one read: half of the machine's or container's memory on Linux, unlimited elsewhere.
pub fn largest_read_bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let machine = total_memory(&text("/proc/meminfo"));
        // `max` if there is no limit.
        let container = text("/sys/fs/cgroup/memory.max").trim().parse().ok();
        machine.into_iter().chain(container).min().map_or(u64::MAX, |bytes| bytes / 2)
    });
    *BYTES
}

/// Returns the total memory according to `/proc/meminfo`, in bytes.
fn total_memory(text: &str) -> Option<u64> {
    let kib: u64 =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the number of cores that this process may use.
pub fn num_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_smaller_than_the_machine() {
        let text = "MemTotal:       24683656 kB\nMemFree:        20304180 kB\n";
        assert_eq!(total_memory(text), Some(24_683_656 * 1024));
        assert_eq!(total_memory("MemFree: 1 kB"), None);
        assert!(largest_read_bytes() > 64 << 20);
        #[cfg(target_os = "linux")]
        assert!(largest_read_bytes() < 1 << 50);
    }
}
