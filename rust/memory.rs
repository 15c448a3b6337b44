//! Memory that reads at the same time share.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::{Error, Result};

/// A single read takes at most this fraction of the memory, if pages allow.
pub(crate) const READS_IN_MEMORY: u64 = 8;

/// Memory is handed out in units of this size, because a semaphore counts in `u32`.
const PERMIT_BYTES: u64 = 1024;

/// Memory of a limited size, for as many reads as fit.
#[derive(Debug)]
pub(crate) struct Memory {
    free: Semaphore,
    num_permits: u32,
}

impl Memory {
    /// Returns free memory of `num_bytes`.
    pub(crate) fn new(num_bytes: u64) -> Self {
        let num_permits = permits(num_bytes);
        Self { free: Semaphore::new(num_permits as usize), num_permits }
    }

    /// Waits until `num_bytes` are free, or all of the memory if they are more, and takes them.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`].
    pub(crate) async fn take(&self, num_bytes: u64) -> Result<SemaphorePermit<'_>> {
        let wanted = permits(num_bytes).min(self.num_permits);
        self.free.acquire_many(wanted).await.map_err(|_| Error::Closed { reason: "cancelled" })
    }
}

fn permits(num_bytes: u64) -> u32 {
    u32::try_from(num_bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn what_is_larger_than_the_memory_gets_all_of_it() {
        let memory = Memory::new(10 * PERMIT_BYTES);
        let half = memory.take(5 * PERMIT_BYTES).now_or_never().unwrap().unwrap();
        let rest = memory.take(5 * PERMIT_BYTES).now_or_never().unwrap().unwrap();
        assert!(memory.take(1).now_or_never().is_none());
        drop(half);
        assert!(memory.take(u64::MAX).now_or_never().is_none());
        drop(rest);
        let all = memory.take(u64::MAX).now_or_never().unwrap().unwrap();
        assert!(memory.take(0).now_or_never().is_none());
        drop(all);
    }
}
