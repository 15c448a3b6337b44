//! Defaults, named.

use std::sync::LazyLock;
use std::time::Duration;

/// Footer bytes asked for at first; one more request where that was not enough.
pub const FOOTER_BYTES: u64 = 256 << 10;

/// Column indexes and bloom filters that came with the footers are kept up to so many bytes over all objects.
pub const KEPT_INDEX_BYTES: u64 = 64 << 20;

/// Footers asked for at the same time.
pub const FOOTERS_IN_FLIGHT: usize = 256;

/// Ranges of a remote object that lie this close may be read in one request: the gap costs less than a round trip.
pub const REMOTE_GAP_BYTES: u64 = 1 << 20;

/// Ranges of a remote object that lie this close are read in one request, however fast the store answers.
pub const LEAST_REMOTE_GAP_BYTES: u64 = 32 << 10;

/// Gaps that are read along come to at most this part of what is wanted, in percent, but for the smallest gaps.
pub const MAX_OVER_READ_PERCENT: u64 = 20;

/// Ranges of a local file that lie this close are read together.
pub const LOCAL_GAP_BYTES: u64 = 16 << 10;

/// A larger range is split, because one connection does not fill a network.
pub const MAX_REQUEST_BYTES: u64 = 8 << 20;

/// Nothing is split in order to be read in requests below this size.
pub const LEAST_REQUEST_BYTES: u64 = 1 << 20;

/// The body of such a smaller request takes this part of the time until its answer.
pub const BODY_SHARE: u64 = 4;

/// Requests to one store up to which large ranges are split into smaller ones, so that more connections bring them.
pub const FEW_REQUESTS_IN_FLIGHT: usize = 32;

/// Requests to one store at the same time, before it has shown how many are best.
pub const REQUESTS_IN_FLIGHT: usize = 64;

/// The same of an object store, which spreads them over many machines.
pub const OBJECT_STORE_REQUESTS_IN_FLIGHT: usize = 256;

/// Calls of somebody else's file system at the same time: each takes a thread of Python's.
pub const FILE_SYSTEM_CALLS_IN_FLIGHT: usize = 16;

/// Requests to one store at the same time at least, however often it says that these are too many.
pub const LEAST_REQUESTS_IN_FLIGHT: usize = 4;

/// Requests to one object store at the same time at most.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 512;

/// Requests to one web server at the same time at most.
pub const MAX_HTTP_REQUESTS_IN_FLIGHT: usize = 128;

/// Bytes asked of one store at the same time, over all streams; a larger request goes alone.
pub const MAX_BYTES_IN_FLIGHT: u64 = 1 << 30;

/// How many later requests may go before one that is not needed for a long time.
pub const MAX_SLACK: u64 = 4096;

/// What a remote store sends, over all connections, while a request waits for its first byte: what one more request that
/// waits for another must save. Sixteen connections of 30 MB/s send as much in 35 ms.
pub const REMOTE_ROUND_TRIP_BYTES: u64 = 16 << 20;

/// The same of local files, where it is a system call.
pub const LOCAL_ROUND_TRIP_BYTES: u64 = 256 << 10;

/// Bytes of predicate columns in hand at once, if the memory limit allows as many.
pub const SELECTION_MEMORY_BYTES: u64 = 512 << 20;

/// Bytes of a stream that were asked for and wait to be decoded, before decoders are seen to wait for them: of a store that is
/// not known to be far away and fast.
pub const FETCH_WINDOW_BYTES: u64 = 64 << 20;

/// The same of local files, which are in the system's memory more often than not: what was read is still in the processor's
/// cache when it is decoded.
pub const LOCAL_FETCH_WINDOW_BYTES: u64 = 16 << 20;

/// Bytes of a stream that were asked for and wait to be decoded at first, at most: of a store that is far away and fast.
pub const MAX_FETCH_WINDOW_BYTES: u64 = 256 << 20;

/// What is under way grows by one in so many of the bytes that come while decoders wait, where it began as what the network brings.
pub const MEASURED_WINDOW_GROWTH: u64 = 4;

/// Connections that a network is expected to serve as fast as it served a few.
pub const CONNECTIONS_OF_NETWORK: f64 = 64.0;

/// Bytes per second that a network is expected to bring at most: 25 Gbit/s. What has more is seen to when decoders wait.
pub const FAST_NETWORK: f64 = 25e9 / 8.0;

/// Bytes of batches, from the next on, whose rows are decoded at least, if they fit: what a loop takes in a burst.
pub const DECODED_AHEAD_BYTES: u64 = 64 << 20;

/// Parts that may be decoded ahead for each thread, however large they are: one at work, and one that waits for it.
pub const PARTS_AHEAD_PER_THREAD: u64 = 2;

/// What a selection reads of the columns that are returned before it is complete is at most this part of the memory limit.
pub const READ_AHEAD_IN_MEMORY: u64 = 16;

/// Memory of a query that chooses rows: what it sorts and joins, what it reads, what it returns.
pub const QUERY_MEMORY_BYTES: u64 = 1 << 30;

/// Rows of a batch of a query, where they are small.
pub const QUERY_BATCH_ROWS: u32 = 8192;

/// Rows of a batch that is handed to others, where they are small: about as many as other engines hand out, since each
/// batch costs its reader some calls.
pub const ARROW_BATCH_ROWS: u32 = 1 << 16;

/// The bytes of such a batch at most, if rows are smaller.
pub const ARROW_BATCH_BYTES: u64 = 16 << 20;

/// A batch of a query takes at most this part of the memory limit.
pub const QUERY_BATCHES_IN_MEMORY: u64 = 32;

/// What is read at once takes at most this part of the memory limit, if pages allow.
pub const READS_IN_MEMORY: u64 = 16;

/// Where pages of different columns begin at different rows, smaller reads fetch more bytes twice. A read may take this
/// part of the memory limit rather than fetch twice as much in all, two and three times that rather than three and six times
/// as much.
pub const LEAST_READS_IN_MEMORY: u64 = 4;

/// A row group without a page index costs when it takes more than this part of the memory limit: what is decoded, what
/// is being read and what comes next do not fit beside each other then.
pub const UNINDEXED_SHARE: u64 = 4;

/// How long one read goes on without a byte, whatever the store does.
pub const RETRY_FOR: Duration = Duration::from_secs(300);

/// Returns what one read may take where nobody said how much: half of the machine's memory, or of the container's, where
/// Linux tells; any number elsewhere.
pub fn largest_read_bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let machine = total_memory(&text("/proc/meminfo"));
        // `max` where there is no limit.
        let container = text("/sys/fs/cgroup/memory.max").trim().parse().ok();
        machine.into_iter().chain(container).min().map_or(u64::MAX, |bytes| bytes / 2)
    });
    *BYTES
}

/// Returns the bytes that `/proc/meminfo` says.
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
