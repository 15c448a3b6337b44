//! Reads ranges of one object: few requests, many at a time, each response checked.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::future::try_join_all;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore};

use super::coalesce::{coalesce, merge, num_bytes, split};
use super::files::is_unchanged;
use super::recover::Notes;
use super::traffic::Slot;
use super::{CHANGED, Connection, Object, Written, error, room};
use crate::error::{Error, Result};
use crate::metrics::During;
use crate::past_caches;

/// Returns the bytes of `ranges`, one buffer each, in their order.
///
/// Nearby ranges are read in one request, large ones in several, all concurrently as far as the connection allows.
/// Ranges that were read together share one buffer; nothing is copied after it arrived. Ranges that were read
/// [ahead](super::ahead) are not read again.
///
/// # Errors
///
/// [`Error::Read`], [`Error::ShortRead`], and [`Error::ObjectChanged`] if the object is not the one that was opened.
pub(crate) async fn read_ranges(connection: &Connection, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let num_wanted = num_bytes(&coalesce(ranges, 0));
    connection.metrics.want(connection.place.stage, num_wanted);
    let Some(ahead) = &connection.ahead else { return fetch_ranges(connection, object, ranges).await };
    let held = ahead.take(object, ranges).await?;
    let is_missing = |(_, held): &(&Range<u64>, &Option<Bytes>)| held.is_none();
    let missing: Vec<_> = ranges.iter().zip(&held).filter(is_missing).map(|(range, _)| range.clone()).collect();
    connection.metrics.hit(connection.place.stage, (ranges.len() - missing.len()) as u64);
    let mut fetched = fetch_ranges(connection, object, &missing).await?.into_iter();
    Ok(held.into_iter().map(|held| held.or_else(|| fetched.next()).unwrap_or_default()).collect())
}

/// Returns the bytes of `ranges` like [`read_ranges`], from the store.
async fn fetch_ranges(connection: &Connection, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let merged = merge(ranges, connection.traffic.gap());
    let answers = try_join_all(merged.iter().map(|range| read_merged(connection, object, range.clone()))).await?;
    Ok(ranges.iter().map(|range| cut_out(&merged, &answers, range)).collect())
}

/// Slices `range` out of the one of `merged` that contains it.
pub(super) fn cut_out(merged: &[Range<u64>], answers: &[Bytes], range: &Range<u64>) -> Bytes {
    if range.start >= range.end {
        return Bytes::new();
    }
    let holder = merged.partition_point(|merged| merged.end <= range.start);
    let start = merged[holder].start;
    answers[holder].slice(index(range.start - start)..index(range.end - start))
}

/// Reads one range, in several requests into one buffer if it is large and remote.
pub(super) async fn read_merged(connection: &Connection, object: &Object, range: Range<u64>) -> Result<Bytes> {
    let max_bytes = connection.traffic.max_request_bytes(range.end - range.start);
    let parts = split(std::slice::from_ref(&range), max_bytes);
    if parts.len() == 1 && (connection.is_local || range.end - range.start < room::LEAST_BYTES) {
        return read_part(connection, object, range, BytesMut::new(), |result, _| collect(result)).await;
    }
    let mut rest = BytesMut::with_capacity(index(range.end - range.start));
    let mut buffers = Vec::with_capacity(parts.len());
    for part in &parts {
        let after = rest.split_off(index(part.end - part.start));
        buffers.push(std::mem::replace(&mut rest, after));
    }
    let reads =
        parts.into_iter().zip(buffers).map(|(part, buffer)| read_part(connection, object, part, buffer, collect_into));
    let mut filled = try_join_all(reads).await?.into_iter();
    let mut whole = filled.next().unwrap_or_default();
    // Adjacent in one allocation, so this moves nothing.
    filled.for_each(|part| whole.unsplit(part));
    Ok(whole.freeze())
}

/// Converts an offset into a buffer in memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Makes one request and collects its body with `take`, into the room for it.
async fn read_part<B: AsRef<[u8]>, F: Future<Output = Result<B, object_store::Error>>>(
    connection: &Connection,
    object: &Object,
    range: Range<u64>,
    room: BytesMut,
    take: impl FnOnce(GetResult, BytesMut) -> F,
) -> Result<B> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        // A weak tag never matches with `If-Match`; the response's is compared below.
        if_match: object.e_tag.clone().filter(|tag| connection.has_preconditions && !tag.starts_with("W/")),
        ..Written::options(object.written.as_ref())
    };
    let num_wanted = range.end - range.start;
    let request = Request::start(connection, num_wanted).await?;
    let (answer, room) = room::meanwhile(&connection.io, room, request.get(object, options)).await;
    let (request, result) = answer.map_err(|failed| match failed {
        // It had these bytes when it was opened.
        Error::Store { source, .. } if is_unsatisfiable(&source) && object.size_bytes >= Some(range.end) => {
            changed(object)
        }
        failed => of_range(failed, &range),
    })?;
    check_unchanged(object, &result)?;
    let bytes = take(result, room).await.map_err(|source| of_range(of_object(object, source), &range))?;
    let num_bytes = bytes.as_ref().len() as u64;
    request.finish(num_bytes);
    if num_bytes != num_wanted {
        return Err(Error::ShortRead { url: object.url.clone(), range, got: num_bytes });
    }
    Ok(bytes)
}

/// Adds the range for which the store failed.
pub(super) fn of_range(failed: Error, range: &Range<u64>) -> Error {
    match failed {
        Error::Store { url, source } => Error::Read { url, range: range.clone(), source },
        Error::Impatient { url, range: None, limit, option, source } => {
            Error::Impatient { url, range: Some(range.clone()), limit, option, source }
        }
        other => other,
    }
}

/// A request in flight. Dropping it makes room for another.
struct Request<'a> {
    connection: &'a Connection,
    slot: Slot,
    notes: Notes,
    first_byte: Duration,
    _during: During<'a>,
}

impl<'a> Request<'a> {
    /// Waits until the store has room for one more request.
    async fn start(connection: &'a Connection, num_bytes: u64) -> Result<Self> {
        let during = connection.metrics.during(connection.place.stage);
        let slot = connection.traffic.slot(connection.slack, num_bytes).await?;
        connection.metrics.ask(connection.place);
        let notes = Notes::default();
        Ok(Self { connection, slot, notes, first_byte: Duration::ZERO, _during: during })
    }

    /// Waits for the beginning of the response.
    async fn get(mut self, object: &Object, mut options: GetOptions) -> Result<(Self, GetResult)> {
        options.extensions.insert(self.notes.clone());
        let answer = self.connection.client.get_opts(&object.path, options).await;
        self.first_byte = self.slot.elapsed();
        Ok((self, answer.map_err(|source| of_object(object, source))?))
    }

    /// Records that the response has arrived, with a body of `num_bytes`.
    fn finish(self, num_bytes: u64) {
        self.connection.metrics.answer(self.connection.place.stage, num_bytes, self.first_byte);
        self.slot.answered(num_bytes, self.first_byte, !self.notes.counted().is_plain());
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        // Also for a request that failed, or is no longer awaited.
        self.connection.metrics.recover(self.connection.place.stage, self.notes.counted());
    }
}

/// Converts a store's error about the object, as it was opened, into one of ours.
fn of_object(object: &Object, source: object_store::Error) -> Error {
    match source {
        object_store::Error::Precondition { .. } => {
            let expected = object.e_tag.clone().unwrap_or_else(|| "that of its first bytes".into());
            Error::ObjectChanged { url: object.url.clone(), expected }
        }
        source => error(&object.url, source),
    }
}

/// Collects a body; small ones arrive in one piece and are not copied.
async fn collect(result: GetResult) -> Result<Bytes, object_store::Error> {
    let range = result.range;
    let mut stream = match result.payload {
        GetResultPayload::Stream(stream) => stream,
        GetResultPayload::File(file, _) => {
            let meta = result.meta;
            return tokio::task::spawn_blocking(move || read_file(file, range, &meta)).await?;
        }
    };
    let capacity = index(range.end - range.start);
    let Some(first) = stream.try_next().await? else { return Ok(Bytes::new()) };
    if first.len() == capacity && stream.try_next().await?.is_none() {
        return Ok(first);
    }
    let mut body = BytesMut::with_capacity(capacity);
    body.extend_from_slice(&first);
    while let Some(chunk) = stream.try_next().await? {
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Reads a range of a file, as far as it exists, into uninitialized memory; refuses one that has changed since it was
/// opened.
fn read_file(mut file: File, range: Range<u64>, meta: &ObjectMeta) -> Result<Bytes, object_store::Error> {
    let num_bytes = range.end - range.start;
    let mut body = Vec::with_capacity(index(num_bytes));
    let mut read = || {
        file.seek(SeekFrom::Start(range.start))?;
        (&file).take(num_bytes).read_to_end(&mut body)?;
        is_unchanged(&file, meta)
    };
    match read() {
        Ok(true) => Ok(body.into()),
        Ok(false) => {
            let (path, said) = (meta.location.to_string(), "it was written over while it was read");
            Err(object_store::Error::Precondition { path, source: said.into() })
        }
        Err(source) => Err(object_store::Error::Generic { store: "LocalFileSystem", source: source.into() }),
    }
}

/// Collects a body into `buffer`. It is not read before it is complete, while others beside it are filled.
async fn collect_into(result: GetResult, mut buffer: BytesMut) -> Result<BytesMut, object_store::Error> {
    let mut stream = result.into_stream();
    while let Some(chunk) = stream.try_next().await? {
        past_caches::append(&mut buffer, &chunk);
    }
    Ok(buffer)
}

/// Returns the value of an e-tag: a store's listings and responses may differ in quotes and weakness.
fn opaque(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// Returns an object's tag: its e-tag or, if there is none, the time of its last change.
pub(super) fn tag_of(meta: &ObjectMeta) -> Option<String> {
    meta.e_tag.clone().or_else(|| time_of(meta))
}

/// Returns the time of the last change as a tag, if the store reports it.
fn time_of(meta: &ObjectMeta) -> Option<String> {
    let is_told = meta.last_modified.timestamp() != 0;
    is_told.then(|| format!("{CHANGED}{}\"", meta.last_modified.to_rfc2822()))
}

/// Returns whether a [`tag_of`] an object is that of `meta`, too.
pub(super) fn has_tag(meta: &ObjectMeta, tag: &str) -> bool {
    let theirs = if tag.starts_with(CHANGED) { time_of(meta) } else { meta.e_tag.clone() };
    theirs.is_some_and(|theirs| opaque(tag) == opaque(&theirs))
}

/// Refuses a response with another version of the object, for stores that ignore `If-Match`. Either all responses for
/// an object have tags or none has: if one is now missing, it is another version.
pub(super) fn check_unchanged(object: &Object, result: &GetResult) -> Result<()> {
    let is_other_tag = object.e_tag.as_ref().is_some_and(|ours| !has_tag(&result.meta, ours));
    let is_other_size = object.size_bytes.is_some_and(|size| size != result.meta.size);
    if is_other_tag || is_other_size {
        return Err(changed(object));
    }
    Ok(())
}

/// How clients report that a store has none of the requested bytes.
pub(super) const UNSATISFIABLE: &str = "416 Range Not Satisfiable";

/// Returns whether a store says that it has none of the requested bytes.
pub(crate) fn is_unsatisfiable(error: &(dyn std::error::Error + 'static)) -> bool {
    error.to_string().contains(UNSATISFIABLE)
}

/// Returns the error for another version of the object.
pub(super) fn changed(object: &Object) -> Error {
    let expected = object.e_tag.clone().unwrap_or_else(|| format!("size {}", object.size_bytes.unwrap_or(0)));
    Error::ObjectChanged { url: object.url.clone(), expected }
}

/// Reads the last `num_bytes` of an object, or all of a smaller one; fills in its size and e-tag.
///
/// # Errors
///
/// As for [`read_ranges`].
pub(crate) async fn read_suffix(connection: &Connection, object: &mut Object, num_bytes: u64) -> Result<Bytes> {
    let mut connection = connection.clone();
    if object.size_bytes.is_none() && !connection.has_suffixes {
        head(&connection, object).await?;
        connection = connection.then();
    }
    let range = match object.size_bytes {
        Some(0) => return Ok(Bytes::new()),
        Some(size) => GetRange::Bounded(size.saturating_sub(num_bytes)..size),
        None => GetRange::Suffix(num_bytes),
    };
    let options = GetOptions { range: Some(range), ..Written::options(object.written.as_ref()) };
    let request = Request::start(&connection, num_bytes).await?;
    let (request, result) = request.get(object, options).await?;
    note(object, &result)?;
    let range = result.range.clone();
    let bytes = collect(result).await.map_err(|source| of_range(of_object(object, source), &range))?;
    connection.metrics.want(connection.place.stage, bytes.len() as u64);
    request.finish(bytes.len() as u64);
    if bytes.len() as u64 != range.end - range.start {
        return Err(Error::ShortRead { url: object.url.clone(), range, got: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// Requests the size and the e-tag of an object, for stores without suffix ranges (Azure).
async fn head(connection: &Connection, object: &mut Object) -> Result<()> {
    let options = GetOptions { head: true, ..Written::options(object.written.as_ref()) };
    let request = Request::start(connection, 0).await?;
    let (request, result) = request.get(object, options).await?;
    note(object, &result)?;
    request.finish(0);
    Ok(())
}

/// Requests the size and the e-tag of an object by its first byte: a signed URL may not allow `HEAD`.
///
/// # Errors
///
/// As for [`read_ranges`].
pub(crate) async fn measure(connection: &Connection, object: &mut Object) -> Result<()> {
    let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..Written::options(object.written.as_ref()) };
    let request = Request::start(connection, 1).await?;
    let (request, result) = match request.get(object, options).await {
        Err(Error::Store { source, .. }) if is_unsatisfiable(&source) => {
            if object.size_bytes.is_some_and(|listed| listed > 0) {
                return Err(changed(object));
            }
            object.size_bytes = Some(0);
            return Ok(());
        }
        answer => answer?,
    };
    note(object, &result)?;
    let bytes = collect(result).await.map_err(|source| of_range(of_object(object, source), &(0..1)))?;
    request.finish(bytes.len() as u64);
    Ok(())
}

/// Fills in what the response says about the object, if it is the one that was listed.
fn note(object: &mut Object, result: &GetResult) -> Result<()> {
    if result.meta.e_tag.is_none() {
        // Listings may report what responses do not.
        object.e_tag = None;
    }
    check_unchanged(object, result)?;
    (object.size_bytes, object.e_tag) = (Some(result.meta.size), tag_of(&result.meta));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use futures::StreamExt;
    use object_store::path::Path;
    use proptest::prelude::*;

    use super::*;
    use crate::config;
    use crate::io::Io;
    use crate::source::files::write_over;
    use crate::source::recording::Recording;
    use crate::source::{Store, StoreKey};

    const BODY: usize = 3000;

    fn body() -> Vec<u8> {
        (0..BODY).map(|place| u8::try_from(place % 251).unwrap()).collect()
    }

    fn object(size_bytes: Option<u64>, e_tag: Option<&str>) -> Object {
        let (url, e_tag) = ("s3://b/x".into(), e_tag.map(str::to_owned));
        Object { path: Path::from("x"), url, written: None, size_bytes, e_tag }
    }

    fn with_store<T>(test: impl AsyncFnOnce(&Connection, &Recording) -> T) -> T {
        let io = Io::current().unwrap();
        io.block_on(async {
            let recording = Recording::of([("x", body())]).await;
            let connection = Store::of_client(Arc::clone(&recording) as _).connect().unwrap();
            test(&connection, &recording).await
        })
    }

    #[test]
    fn a_file_that_is_written_over_before_it_is_read_is_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, body()).unwrap();
        let store = Store::try_new(StoreKey::Local, &BTreeMap::new()).unwrap().connect().unwrap();
        Io::current().unwrap().block_on(async {
            let key = Path::from_absolute_path(&path).unwrap();
            let opened = || store.client.get_opts(&key, GetOptions::default());
            let (read, written_over) = (opened().await.unwrap(), opened().await.unwrap());
            assert_eq!(collect(read).await.unwrap(), body());
            write_over(&path);
            let failed = collect(written_over).await.unwrap_err();
            assert!(matches!(failed, object_store::Error::Precondition { .. }), "{failed:?}");
        });
    }

    #[test]
    fn a_range_beyond_the_object_is_a_short_read() {
        with_store(async |connection, _| {
            let failed = read_ranges(connection, &object(None, None), std::slice::from_ref(&(2990..3100))).await;
            assert!(matches!(failed, Err(Error::ShortRead { got: 10, .. })), "{failed:?}");
            let failed = read_ranges(connection, &object(None, None), std::slice::from_ref(&(4000..4100))).await;
            assert!(matches!(failed, Err(Error::Read { .. })), "{failed:?}");
        });
    }

    #[test]
    fn an_object_of_another_size_or_tag_is_not_read() {
        with_store(async |connection, recording| {
            let other_size = read_ranges(connection, &object(Some(1), None), std::slice::from_ref(&(0..1))).await;
            assert!(matches!(other_size, Err(Error::ObjectChanged { .. })));
            recording.take();
            // A weak tag cannot be a condition, but is compared all the same.
            let weak = read_ranges(connection, &object(None, Some("W/\"7\"")), std::slice::from_ref(&(0..1))).await;
            assert!(matches!(weak, Err(Error::ObjectChanged { .. })));
            assert_eq!(recording.take(), ["get 0..1 of x"]);
            let same = read_ranges(connection, &object(None, Some("W/\"0\"")), std::slice::from_ref(&(0..1))).await;
            assert_eq!(same.unwrap(), [&body()[..1]]);
        });
    }

    #[test]
    fn without_an_e_tag_the_time_of_the_last_change_tells_versions_apart() {
        let answer = |e_tag: Option<&str>, seconds: i64| GetResult {
            payload: GetResultPayload::Stream(futures::stream::empty().boxed()),
            meta: ObjectMeta {
                location: Path::from("x"),
                last_modified: chrono::DateTime::from_timestamp(seconds, 0).unwrap(),
                size: 3000,
                e_tag: e_tag.map(str::to_owned),
                version: None,
            },
            range: 0..0,
            attributes: object_store::Attributes::default(),
            extensions: object_store::Extensions::default(),
        };
        let opened = |first: &GetResult| {
            let mut object = object(None, Some("\"of the listing\""));
            object.e_tag = object.e_tag.filter(|_| first.meta.e_tag.is_none());
            note(&mut object, first).unwrap();
            object
        };
        let is_same = |first: GetResult, then: GetResult| check_unchanged(&opened(&first), &then).is_ok();
        assert!(is_same(answer(None, 7), answer(None, 7)) && is_same(answer(None, 7), answer(Some("\"1\""), 7)));
        assert!(!is_same(answer(None, 7), answer(None, 8)) && !is_same(answer(None, 7), answer(None, 0)));
        assert!(is_same(answer(Some("\"1\""), 7), answer(Some("\"1\""), 8)));
        assert!(!is_same(answer(Some("\"1\""), 7), answer(None, 7)), "a tag that is gone");
        assert!(is_same(answer(None, 0), answer(None, 0)) && is_same(answer(None, 0), answer(Some("\"1\""), 7)));
        let of_time = opened(&answer(None, 7));
        assert!(of_time.entity_tag().is_none() && of_time.e_tag.is_some_and(|tag| tag.starts_with("W/")));
    }

    #[test]
    fn a_suffix_longer_than_the_object_is_all_of_it() {
        with_store(async |connection, _| {
            let mut object = object(None, None);
            assert_eq!(read_suffix(connection, &mut object, 1 << 20).await.unwrap(), body());
            assert_eq!(object.size_bytes, Some(3000));
            assert_eq!(read_suffix(connection, &mut object, 7).await.unwrap(), &body()[BODY - 7..]);
        });
    }

    #[test]
    fn the_first_byte_tells_the_size() {
        with_store(async |connection, recording| {
            let mut object = object(None, None);
            measure(connection, &mut object).await.unwrap();
            assert_eq!((object.size_bytes, object.e_tag.as_deref()), (Some(3000), Some("\"0\"")));
            assert_eq!(recording.take(), ["get 0..1 of x"]);
        });
    }

    #[test]
    fn requests_and_bytes_are_counted() {
        with_store(async |connection, _| {
            read_ranges(connection, &object(None, None), &[0..10, 20..30]).await.unwrap();
            let counted = connection.metrics.snapshot();
            assert_eq!((counted.requests, counted.bytes_fetched, counted.bytes_wanted), (1, 30, 20));
            assert_eq!((counted.depth, counted.recovered.retries()), (1, 0));
        });
    }

    #[test]
    fn a_large_range_is_one_buffer_whatever_the_requests() {
        let len = usize::try_from(config::MAX_REQUEST_BYTES * 7 / 2).unwrap();
        let body: Vec<u8> = (0..len).map(|place| u8::try_from(place % 251).unwrap()).collect();
        let io = Io::current().unwrap();
        io.block_on(async {
            let recording = Recording::of([("x", body.clone())]).await;
            let connection = Store::of_client(Arc::clone(&recording) as _).connect().unwrap();
            recording.take();
            let middle = config::MAX_REQUEST_BYTES;
            let end = len as u64;
            let ranges = [0..middle, middle..end - 1, end - 1..end];
            let bytes = read_ranges(&connection, &object(None, None), &ranges).await.unwrap();
            assert_eq!(recording.take().len(), 3);
            assert_eq!(bytes.concat(), body);
            let neighbours = bytes.windows(2);
            assert!(
                neighbours.map(|pair| (pair[0].as_ptr_range().end, pair[1].as_ptr())).all(|(end, next)| end == next)
            );
        });
    }

    proptest! {
        #[test]
        fn every_range_gets_its_own_bytes(
            ranges in prop::collection::vec((0u64..2900, 0u64..100), 0..12), gap in 0u64..300,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let merged = coalesce(&ranges, gap);
            let whole = Bytes::from(body());
            let answers: Vec<_> = merged.iter().map(|range| whole.slice(index(range.start)..index(range.end))).collect();
            for range in &ranges {
                prop_assert_eq!(cut_out(&merged, &answers, range), whole.slice(index(range.start)..index(range.end)));
            }
        }
    }
}
