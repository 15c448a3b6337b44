//! Bytes that are asked for before the one who needs them asks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

use super::read::fetch_ranges;
use super::{Connection, Object};
use crate::metrics::Metrics;

/// A buffer for each range of a read; `None` where it failed.
type Answer = Shared<BoxFuture<'static, Option<Arc<[Bytes]>>>>;

/// Reads under way and done, for whoever [asks](Self::take) for their ranges next.
///
/// Those that nobody asks for are aborted when it is dropped.
#[derive(Debug)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    /// What counts the requests.
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that may still be asked for.
    room: u64,
    /// By URL and start of the range.
    held: HashMap<String, BTreeMap<u64, Held>>,
    reads: Vec<AbortHandle>,
}

/// One range of a read.
#[derive(Debug)]
struct Held {
    end: u64,
    answer: Answer,
    /// Which of the read's ranges it is.
    place: usize,
}

impl Held {
    /// Waits for the bytes, and returns those of `range`, which it holds, being the range that begins at `start`.
    async fn get(self, start: u64, range: &Range<u64>) -> Option<Bytes> {
        let answer = self.answer.await?;
        let bytes = answer.get(self.place)?;
        let from = usize::try_from(range.start - start).ok()?;
        let until = usize::try_from(range.end - start).ok()?;
        (until <= bytes.len()).then(|| bytes.slice(from..until))
    }
}

impl Ahead {
    /// Returns one that asks for at most `max_bytes`, with requests that `metrics` counts.
    pub(crate) fn new(max_bytes: u64, metrics: &Arc<Metrics>) -> Self {
        let state = State { room: max_bytes, ..State::default() };
        Self { state: Mutex::new(state), metrics: Arc::clone(metrics) }
    }

    /// Returns what counts the requests.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns how many bytes may still be asked for.
    pub(crate) fn room(&self) -> u64 {
        self.lock().room
    }

    /// Starts to read `ranges`, unless they are more than may be asked for: then nothing is any more.
    pub(crate) fn read(&self, connection: &Connection, object: &Object, ranges: &[Range<u64>]) {
        let num_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let mut state = self.lock();
        let room = state.room.checked_sub(num_bytes);
        state.room = room.unwrap_or(0);
        if room.is_none() {
            return;
        }
        let reading = {
            let connection = connection.with_metrics(&self.metrics);
            let (object, ranges) = (object.clone(), ranges.to_vec());
            // Who needs the bytes reads them again, and reports what goes wrong.
            async move { fetch_ranges(&connection, &object, &ranges).await.ok() }
        };
        let reading = connection.io.spawn(reading);
        state.reads.push(reading.abort_handle());
        let answer = reading.map(|answer| answer.ok().flatten().map(Arc::from)).boxed().shared();
        let held = state.held.entry(object.url.clone()).or_default();
        for (place, range) in ranges.iter().enumerate() {
            held.insert(range.start, Held { end: range.end, answer: answer.clone(), place });
        }
    }

    /// Waits for the bytes of `ranges` as far as they were asked for; those that are given out whole are not held any
    /// longer.
    pub(super) async fn take(&self, object: &Object, ranges: &[Range<u64>]) -> Vec<Option<Bytes>> {
        let found: Vec<_> = {
            let mut state = self.lock();
            let mut held = state.held.get_mut(&object.url);
            ranges.iter().map(|range| find(held.as_deref_mut()?, range)).collect()
        };
        let mut taken = Vec::with_capacity(ranges.len());
        for (range, found) in ranges.iter().zip(found) {
            taken.push(match found {
                Some((start, held)) => held.get(start, range).await,
                None => None,
            });
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.lock().reads.iter().for_each(AbortHandle::abort);
    }
}

/// Returns what holds `range`, with its start; taken out if the range is all of it.
fn find(held: &mut BTreeMap<u64, Held>, range: &Range<u64>) -> Option<(u64, Held)> {
    let (&start, found) = held.range(..=range.start).next_back()?;
    if found.end < range.end {
        return None;
    }
    if (start, found.end) == (range.start, range.end) {
        return Some((start, held.remove(&start)?));
    }
    Some((start, Held { end: found.end, answer: found.answer.clone(), place: found.place }))
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::super::recording::Recording;
    use super::super::{Store, read_ranges};
    use super::*;
    use crate::io::Io;

    fn object(name: &str) -> Object {
        Object { path: Path::from(name), url: format!("s3://b/{name}"), size_bytes: None, e_tag: None }
    }

    /// Runs a test with a store of one object `x`, whose bytes are `0..200`.
    fn with_store(test: impl AsyncFnOnce(Connection, &Recording)) {
        Io::current().unwrap().block_on(async {
            let recording = Recording::of([("x", (0..200).collect())]).await;
            let connection = Store::of_client(Arc::clone(&recording) as _).connect().unwrap();
            test(connection, &recording).await;
        });
    }

    #[test]
    fn what_was_asked_for_before_is_not_asked_for_again() {
        with_store(async |connection, recording| {
            let ahead = Arc::new(Ahead::new(1000, &connection.metrics));
            ahead.read(&connection, &object("x"), &[10..20, 20..30]);
            let reader = connection.with_ahead(Some(&ahead));
            let read = read_ranges(&reader, &object("x"), &[10..20, 22..25, 150..152]).await.unwrap();
            assert_eq!(read, [(10..20).collect::<Vec<u8>>(), (22..25).collect(), (150..152).collect()]);
            assert_eq!(recording.take(), ["get 10..30 of x", "get 150..152 of x"]);
            // What has been given out whole is gone, the rest is there.
            read_ranges(&reader, &object("x"), &[10..20, 20..30]).await.unwrap();
            assert_eq!(recording.take(), ["get 10..20 of x"]);
        });
    }

    #[test]
    fn no_more_is_asked_for_than_there_is_room_for() {
        with_store(async |connection, recording| {
            let ahead = Ahead::new(15, &connection.metrics);
            ahead.read(&connection, &object("x"), std::slice::from_ref(&(0..10)));
            assert_eq!(ahead.room(), 5);
            ahead.read(&connection, &object("x"), std::slice::from_ref(&(50..60)));
            assert_eq!(ahead.room(), 0);
            let taken = ahead.take(&object("x"), &[0..10, 50..60]).await;
            assert_eq!(taken.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
            assert_eq!(recording.take(), ["get 0..10 of x"]);
        });
    }

    #[test]
    fn what_failed_is_read_again_by_the_one_who_needs_it() {
        with_store(async |connection, _| {
            let ahead = Arc::new(Ahead::new(1000, &connection.metrics));
            ahead.read(&connection, &object("y"), std::slice::from_ref(&(0..10)));
            let reader = connection.with_ahead(Some(&ahead));
            let failed = read_ranges(&reader, &object("y"), std::slice::from_ref(&(0..10))).await.unwrap_err();
            assert!(failed.to_string().contains("s3://b/y"), "{failed}");
        });
    }
}
