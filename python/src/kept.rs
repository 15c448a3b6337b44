//! Memory that a stream or a selection leaves to the next one: epochs follow each other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay::Io;

use crate::alloc::OfStream;

/// How long memory waits for the next stream.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// What a stream or a selection may keep of freed memory, while it runs and a little longer.
pub(crate) struct Kept {
    memory: Option<OfStream>,
    /// Where it waits: to look that up in the end takes a lock, which a fork in another thread would leave taken.
    io: Weak<Io>,
}

impl Kept {
    /// Begins a stream or a selection of `memory_limit` bytes.
    pub(crate) fn begin(memory_limit: u64) -> Self {
        let io = Io::current().map_or_else(|_| Weak::new(), |io| Arc::downgrade(&io));
        Self { memory: Some(OfStream::begin(memory_limit)), io }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let (Some(memory), Some(io)) = (self.memory.take(), self.io.upgrade()) {
            io.drop_later(AFTERWARDS, memory);
        }
    }
}
