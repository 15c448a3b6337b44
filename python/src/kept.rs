//! Freed memory that a stream or selection leaves to the next one: one epoch follows another.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay::{Io, OfProcess};

use crate::alloc::OfStream;

/// How long freed memory is kept for the next stream.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// The freed memory that a stream or selection may keep, while it runs and for a little longer.
pub(crate) struct Kept {
    /// A forked child has none of its parent's streams, and must not enter its runtime.
    memory: OfProcess<Option<OfStream>>,
    /// The runtime that drops it later: looking it up in `drop` would take a lock that a fork on another thread could
    /// leave taken.
    io: Weak<Io>,
}

impl Kept {
    /// Begins a stream or a selection of `memory_limit` bytes.
    pub(crate) fn begin(memory_limit: u64) -> Self {
        let io = Io::current().map_or_else(|_| Weak::new(), |io| Arc::downgrade(&io));
        Self { memory: OfProcess::new(Some(OfStream::begin(memory_limit))), io }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.get_mut().and_then(Option::take)
            && let Some(io) = self.io.upgrade()
        {
            io.drop_later(AFTERWARDS, memory);
        }
    }
}
