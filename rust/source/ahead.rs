//! Bytes that are requested before they are needed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

use super::coalesce::{Gap, at_most, merge, num_bytes};
use super::read::read_merged;
use super::{Connection, Object, Written};
use crate::config;
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// With this many bytes at once, each connection brings many pages, and none arrives much sooner by a request of its
/// own: adjacent ranges are read into one piece of memory, and used from there without a copy.
const MANY_BYTES: u64 = config::FEW_REQUESTS_IN_FLIGHT as u64 * config::LEAST_REQUEST_BYTES;

/// The bytes of a read, unless it failed.
type Answer = Shared<BoxFuture<'static, Result<Bytes, Failed>>>;

/// What is kept of a failed read: the error if the store was retried for as long as it may be, for the first who needs
/// the bytes. After any other error, whoever needs them reads them again.
type Failed = Arc<Mutex<Option<Error>>>;

/// Reads in progress and completed, for whoever [takes](Self::take) their ranges next.
///
/// Reads that nobody takes are aborted when it is dropped.
#[derive(Debug)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    /// Counts the requests.
    metrics: Arc<Metrics>,
}

/// Identifies an object: its URL, and anything the URL does not show.
type Id = (String, Option<Written>);

#[derive(Debug, Default)]
struct State {
    /// Bytes that may still be requested.
    room: u64,
    /// By object and start of the range.
    held: HashMap<Id, BTreeMap<u64, Held>>,
    reads: Vec<AbortHandle>,
}

/// One range of a read.
#[derive(Debug, Clone)]
struct Held {
    end: u64,
    answer: Answer,
    /// The offset of the read's first byte.
    first: u64,
}

/// The reads that hold a range, each from the given offset on.
type Holders = Vec<(u64, Held)>;

impl Ahead {
    /// Returns an empty one that requests at most `max_bytes`, with requests counted in `metrics`.
    pub(crate) fn new(max_bytes: u64, metrics: &Arc<Metrics>) -> Self {
        let state = State { room: max_bytes, ..State::default() };
        Self { state: Mutex::new(state), metrics: Arc::clone(metrics) }
    }

    /// Returns the metrics that count the requests.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns how many bytes may still be requested.
    pub(crate) fn room(&self) -> u64 {
        self.lock().room
    }

    /// Starts to read `ranges`, unless they exceed what may be requested: then nothing is any more. Each range is
    /// available as soon as its request is answered, regardless of the others. They are part of `at_once` bytes that
    /// are requested together, which determines the size of requests.
    pub(crate) fn read(&self, connection: &Connection, object: &Object, ranges: &[Range<u64>], at_once: u64) {
        let mut state = self.lock();
        let room = state.room.checked_sub(num_bytes(ranges));
        state.room = room.unwrap_or(0);
        if room.is_none() {
            return;
        }
        let connection = connection.with_metrics(&self.metrics);
        let State { held, reads, .. } = &mut *state;
        let held = held.entry(id_of(object)).or_default();
        let traffic = &connection.traffic;
        let max_bytes = if at_once < MANY_BYTES { traffic.max_request_bytes(at_once) } else { u64::MAX };
        for part in parts(ranges, traffic.gap(), max_bytes) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let span = first.start..last.end;
            let reading = {
                let (connection, object, span) = (connection.clone(), object.clone(), span.clone());
                async move { read_merged(&connection, &object, span).await.map_err(keep) }
            };
            let reading = connection.io.spawn(reading);
            reads.push(reading.abort_handle());
            let answer = reading.map(|answer| answer.unwrap_or_else(|_| Err(Failed::default()))).boxed().shared();
            for range in part {
                held.insert(range.start, Held { end: range.end, answer: answer.clone(), first: span.start });
            }
        }
    }

    /// Waits for the bytes of `ranges`, as far as they were requested. What is returned is not kept: a single remaining
    /// range would keep the memory of its whole read.
    ///
    /// # Errors
    ///
    /// [`Error::Impatient`] of a read.
    pub(super) async fn take(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Option<Bytes>>> {
        let found: Vec<_> = {
            let mut state = self.lock();
            let mut held = state.held.get_mut(&id_of(object));
            ranges.iter().map(|range| take_out(held.as_deref_mut()?, range)).collect()
        };
        let mut taken = Vec::with_capacity(ranges.len());
        for (range, found) in ranges.iter().zip(found) {
            taken.push(match found {
                Some(holders) => piece_together(holders, range).await?,
                None => None,
            });
        }
        Ok(taken)
    }

    /// Drops reads `within` a range of an object that hold none of the `wanted` ranges, which are ascending and
    /// disjoint.
    pub(crate) fn forget(&self, object: &Object, within: Range<u64>, wanted: &[Range<u64>]) {
        let mut state = self.lock();
        let Some(held) = state.held.get_mut(&id_of(object)) else { return };
        let is_wanted = |start: u64, end: u64| {
            let next = wanted.partition_point(|range| range.end <= start);
            wanted.get(next).is_some_and(|range| range.start < end)
        };
        let in_vain = held.range(within).filter(|(start, held)| !is_wanted(**start, held.end)).map(|(start, _)| *start);
        for start in in_vain.collect::<Vec<_>>() {
            held.remove(&start);
        }
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

fn id_of(object: &Object) -> Id {
    (object.url.clone(), object.written.clone())
}

/// Divides disjoint ranges among reads: [merged](merge) ranges, if they span no more than [`at_most`] `max_bytes`.
fn parts(ranges: &[Range<u64>], gap: Gap, max_bytes: u64) -> Vec<Vec<Range<u64>>> {
    let merged = merge(ranges, gap);
    let holder = |range: &Range<u64>| merged.partition_point(|merged| merged.end <= range.start);
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut parts: Vec<Vec<Range<u64>>> = Vec::new();
    for range in sorted {
        let fits =
            |first: &Range<u64>| range.end - first.start <= at_most(max_bytes) && holder(first) == holder(&range);
        match parts.last_mut() {
            Some(part) if part.first().is_some_and(fits) => part.push(range),
            _ => parts.push(vec![range]),
        }
    }
    parts
}

/// Takes out the holders of `range`, if all of it is held; bytes around it stay.
fn take_out(held: &mut BTreeMap<u64, Held>, range: &Range<u64>) -> Option<Holders> {
    let (&first, _) = held.range(..=range.start).next_back()?;
    let (mut end, mut starts) = (first, Vec::new());
    for (&start, next) in held.range(first..) {
        if start != end || end >= range.end {
            break;
        }
        starts.push(start);
        end = next.end;
    }
    if end < range.end {
        return None;
    }
    let take = |start: u64| {
        let taken = held.remove(&start)?;
        if start < range.start {
            held.insert(start, Held { end: range.start, ..taken.clone() });
        }
        if range.end < taken.end {
            held.insert(range.end, taken.clone());
        }
        Some((start, taken))
    };
    starts.into_iter().map(take).collect()
}

/// Returns what is kept of an error.
fn keep(error: Error) -> Failed {
    Arc::new(Mutex::new(Some(error).filter(|error| matches!(error, Error::Impatient { .. }))))
}

/// Waits for the bytes of `range` from its holders; copies them if there are several reads.
async fn piece_together(holders: Holders, range: &Range<u64>) -> Result<Option<Bytes>> {
    // Joins adjacent ranges of the same read.
    let mut reads: Vec<(u64, Held)> = Vec::with_capacity(1);
    for (start, next) in holders {
        match reads.last_mut() {
            Some((_, last)) if last.first == next.first => last.end = next.end,
            _ => reads.push((start, next)),
        }
    }
    let mut pieces = Vec::with_capacity(reads.len());
    for (start, held) in reads {
        let bytes = match held.answer.await {
            Ok(bytes) => bytes,
            Err(failed) => {
                let error = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
                return error.map_or(Ok(None), Err);
            }
        };
        let index = |offset: u64| usize::try_from(offset - held.first).unwrap_or(usize::MAX);
        let (from, until) = (index(range.start.max(start)), index(range.end.min(held.end)));
        if from > until || until > bytes.len() {
            return Ok(None);
        }
        pieces.push(bytes.slice(from..until));
    }
    Ok(Some(match pieces.as_slice() {
        [piece] => piece.clone(),
        pieces => pieces.concat().into(),
    }))
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use proptest::prelude::*;

    use super::super::recording::Recording;
    use super::super::{Store, read_ranges};
    use super::*;
    use crate::io::Io;

    fn object(name: &str) -> Object {
        Object { path: Path::from(name), url: format!("s3://b/{name}"), written: None, size_bytes: None, e_tag: None }
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
            ahead.read(&connection, &object("x"), &[10..20, 20..30], 100);
            let reader = connection.with_ahead(Some(&ahead));
            let read = read_ranges(&reader, &object("x"), &[10..20, 22..25, 150..152]).await.unwrap();
            assert_eq!(read, [(10..20).collect::<Vec<u8>>(), (22..25).collect(), (150..152).collect()]);
            assert_eq!(recording.take(), ["get 10..30 of x", "get 150..152 of x"]);
            // What was returned is gone, the rest remains.
            let read = read_ranges(&reader, &object("x"), &[20..22, 25..30]).await.unwrap();
            assert_eq!((read, recording.take().len()), (vec![(20..22).collect(), (25..30).collect()], 0));
            read_ranges(&reader, &object("x"), &[10..20, 22..25]).await.unwrap();
            assert_eq!(recording.take(), ["get 10..25 of x"]);
            assert!(ahead.lock().held.values().all(BTreeMap::is_empty), "nor is its memory");
        });
    }

    #[test]
    fn what_is_asked_for_far_apart_comes_and_fails_by_itself() {
        with_store(async |connection, recording| {
            let ahead = Arc::new(Ahead::new(1000, &connection.metrics));
            let far = config::MAX_REQUEST_BYTES + 100;
            ahead.read(&connection, &object("x"), &[far..far + 5, 20..30, 10..20], 100);
            let taken = ahead.take(&object("x"), &[10..20, 20..30, far..far + 5]).await.unwrap();
            assert_eq!(taken.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
            let mut asked = recording.take();
            asked.sort_unstable();
            assert_eq!(asked, ["get 10..30 of x".to_owned(), format!("get {far}..{} of x", far + 5)]);
        });
    }

    proptest! {
        #[test]
        fn parts_hold_all_ranges_and_span_no_more_than_allowed(
            steps in prop::collection::vec((0u64..50, 1u64..60), 0..30), max_bytes in 1u64..200, most in 0u64..60,
        ) {
            let gap = Gap { least_bytes: most / 8, most_bytes: most };
            let mut end = 0;
            let mut apart = |(gap, len)| {
                end += gap + len;
                end - len..end
            };
            let mut ranges: Vec<_> = steps.into_iter().map(&mut apart).collect();
            ranges.reverse();
            let parts = parts(&ranges, gap, max_bytes);
            for part in &parts {
                let span = part[part.len() - 1].end - part[0].start;
                prop_assert!(part.len() == 1 || span <= at_most(max_bytes));
            }
            // Without a bound, each read is one merged range.
            let whole = super::parts(&ranges, gap, u64::MAX);
            let spans: Vec<_> = whole.iter().map(|part| part[0].start..part[part.len() - 1].end).collect();
            prop_assert_eq!(spans, merge(&ranges, gap));
            let mut sorted = ranges.clone();
            sorted.sort_unstable_by_key(|range| range.start);
            prop_assert_eq!(parts.concat(), sorted);
        }

        #[test]
        fn any_range_is_pieced_together_of_what_holds_it(
            lens in prop::collection::vec(0u64..9, 1..9), hole in 0usize..12, is_one_read in any::<bool>(),
            wanted in prop::collection::vec((0u64..60, 0u64..30), 1..6),
        ) {
            const FIRST: u64 = 5;
            let number = |byte: u64| u8::try_from(byte).unwrap();
            let whole = FIRST..FIRST + lens.iter().sum::<u64>();
            let (mut held, mut start, mut is_held) = (BTreeMap::new(), FIRST, [false; 200]);
            for (place, len) in lens.into_iter().enumerate() {
                let end = start + len;
                if place != hole && len > 0 {
                    let read = if is_one_read { whole.clone() } else { start..end };
                    let first = read.start;
                    let answer = futures::future::ready(Ok(read.map(number).collect())).boxed().shared();
                    held.insert(start, Held { end, answer, first });
                    (start..end).for_each(|byte| is_held[usize::from(number(byte))] = true);
                }
                start = end;
            }
            for (start, len) in wanted {
                let range = start..start + len;
                let is_whole = range.clone().all(|byte| is_held[usize::from(number(byte))]);
                let holders = take_out(&mut held, &range);
                prop_assert!(holders.is_some() == is_whole || range.is_empty());
                if let Some(holders) = holders {
                    range.clone().for_each(|byte| is_held[usize::from(number(byte))] = false);
                    let bytes = Io::current().unwrap().block_on(piece_together(holders, &range)).unwrap().unwrap();
                    prop_assert_eq!(bytes, range.map(number).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn what_was_retried_for_long_is_not_read_again_by_the_one_who_needs_it() {
        let source = || Box::new(object_store::Error::Generic { store: "S3", source: "503".into() });
        let (url, limit) = (|| "s3://b/x".to_owned(), std::time::Duration::from_secs(9));
        let impatient = Error::Impatient { url: url(), range: None, limit, option: "retry_for", source: source() };
        let failed =
            |error| Held { end: 10, answer: futures::future::ready(Err(keep(error))).boxed().shared(), first: 0 };
        let take = |held: &Held| {
            let holders = vec![(0, held.clone())];
            Io::current().unwrap().block_on(piece_together(holders, &(2..5)))
        };
        let (impatient, other) = (failed(impatient), failed(Error::Store { url: url(), source: source() }));
        assert!(matches!(take(&impatient), Err(Error::Impatient { .. })));
        assert!(take(&impatient).unwrap().is_none(), "it is told once");
        assert!(take(&other).unwrap().is_none());
    }

    #[test]
    fn no_more_is_asked_for_than_there_is_room_for() {
        with_store(async |connection, recording| {
            let ahead = Ahead::new(15, &connection.metrics);
            ahead.read(&connection, &object("x"), std::slice::from_ref(&(0..10)), 100);
            assert_eq!(ahead.room(), 5);
            ahead.read(&connection, &object("x"), std::slice::from_ref(&(50..60)), 100);
            assert_eq!(ahead.room(), 0);
            let taken = ahead.take(&object("x"), &[0..10, 50..60]).await.unwrap();
            assert_eq!(taken.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
            assert_eq!(recording.take(), ["get 0..10 of x"]);
        });
    }

    #[test]
    fn what_holds_nothing_that_is_wanted_is_forgotten() {
        with_store(async |connection, _| {
            let ahead = Ahead::new(1000, &connection.metrics);
            let asked = [0..10, 10..20, 20..30, 50..60, 60..70, 100..110];
            ahead.read(&connection, &object("x"), &asked, 100);
            ahead.forget(&object("x"), 10..70, &[5..10, 29..50, 65..66]);
            ahead.forget(&object("y"), 0..200, &[]);
            let taken = ahead.take(&object("x"), &asked).await.unwrap();
            let is_there: Vec<_> = taken.iter().map(Option::is_some).collect();
            assert_eq!(is_there, [true, false, true, false, true, true]);
        });
    }

    #[test]
    fn what_failed_is_read_again_by_the_one_who_needs_it() {
        with_store(async |connection, _| {
            let ahead = Arc::new(Ahead::new(1000, &connection.metrics));
            ahead.read(&connection, &object("y"), std::slice::from_ref(&(0..10)), 100);
            let reader = connection.with_ahead(Some(&ahead));
            let failed = read_ranges(&reader, &object("y"), std::slice::from_ref(&(0..10))).await.unwrap_err();
            assert!(failed.to_string().contains("s3://b/y"), "{failed}");
        });
    }
}
