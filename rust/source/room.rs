//! Memory for bodies, prepared while their first bytes are awaited.
//!
//! Touching new memory takes longer than copying a body into it: the system allocates and clears it page by page.
//! Processors have time for that while a distant store prepares its response.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::future::{Either, join, select};
use tokio::sync::Semaphore;

use crate::io::Io;
use crate::process::LockOfProcess;

/// Smaller bodies are not worth it.
pub(super) const LEAST_BYTES: u64 = 256 << 10;

/// How long a response must take to count as slow. Until then, there are other requests to make.
const SOON: Duration = Duration::from_millis(2);

/// Distance of places to touch: no system has smaller pages.
const PAGE_BYTES: usize = 4096;

/// Number of bodies whose memory is prepared at the same time.
const MOST_AT_ONCE: usize = 2;

/// The turns of this process: those that its parent's threads have taken do not come back.
static TURNS: LockOfProcess<Turns> = LockOfProcess::new();

struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_AT_ONCE)))
    }
}

/// Awaits `answer`, and meanwhile prepares `room` as far as time allows.
pub(super) async fn meanwhile<T>(io: &Io, room: BytesMut, answer: impl Future<Output = T>) -> (T, BytesMut) {
    if room.capacity() == 0 {
        return (answer.await, room);
    }
    let turn = async {
        tokio::time::sleep(SOON).await;
        let turns = Arc::clone(&TURNS.lock().0);
        turns.acquire_owned().await
    };
    let answer = pin!(answer);
    let (turn, answer) = match select(answer, pin!(turn)).await {
        Either::Left((answer, _)) => return (answer, room),
        Either::Right(both) => both,
    };
    let touched = async {
        let touched = io.spawn_blocking(move || touch(room)).await;
        drop(turn);
        // Only the end of the runtime cancels it.
        touched.unwrap_or_default()
    };
    join(answer, touched).await
}

/// Writes to each page of the unfilled room.
fn touch(mut room: BytesMut) -> BytesMut {
    for page in room.spare_capacity_mut().chunks_mut(PAGE_BYTES) {
        page[0].write(0);
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(answer: impl Future<Output = u8>) -> u8 {
        let io = Io::current().unwrap();
        let room = BytesMut::with_capacity(1 << 20);
        let place = room.as_ptr();
        let (answer, room) = io.block_on(meanwhile(&io, room, answer));
        assert_eq!((room.as_ptr(), room.len(), room.capacity()), (place, 0, 1 << 20));
        answer
    }

    #[test]
    fn the_answer_and_the_room_come_back() {
        assert_eq!(wait(async { 1 }), 1);
        let late = async {
            tokio::time::sleep(20 * SOON).await;
            2
        };
        assert_eq!(wait(late), 2);
    }
}
