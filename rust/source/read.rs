//! Reads ranges of one object: few requests, many at a time, each answer checked.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::future::try_join_all;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};
use tokio::sync::SemaphorePermit;

use super::coalesce::{coalesce, split};
use super::{Connection, Object, error};
use crate::config;
use crate::error::{Error, Result};

/// Returns the bytes of `ranges`, one buffer each, in their order.
///
/// Ranges that lie close are read in one request, large ones in several, all at the same time as far as the
/// connection allows. Without a copy, unless a range is put together of several answers.
///
/// # Errors
///
/// [`Error::Read`], [`Error::ShortRead`], and [`Error::ObjectChanged`] when the object is not the one that was opened.
pub(crate) async fn read_ranges(connection: &Connection, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let parts = if connection.is_local {
        coalesce(ranges, config::LOCAL_GAP_BYTES)
    } else {
        split(&coalesce(ranges, config::REMOTE_GAP_BYTES), config::MAX_REQUEST_BYTES)
    };
    let answers = try_join_all(parts.iter().map(|part| read_part(connection, object, part.clone()))).await?;
    Ok(ranges.iter().map(|range| assemble(&parts, &answers, range)).collect())
}

/// Cuts `range` out of the `parts` that cover it.
fn assemble(parts: &[Range<u64>], answers: &[Bytes], range: &Range<u64>) -> Bytes {
    let first = parts.partition_point(|part| part.end <= range.start);
    let covering = parts[first..].iter().zip(&answers[first..]).take_while(|(part, _)| part.start < range.end);
    let mut slices = covering.map(|(part, bytes)| {
        let from = range.start.max(part.start) - part.start;
        let to = range.end.min(part.end) - part.start;
        bytes.slice(index(from)..index(to))
    });
    let Some(only) = slices.next() else { return Bytes::new() };
    let Some(second) = slices.next() else { return only };
    let mut whole = BytesMut::with_capacity(index(range.end - range.start));
    whole.extend_from_slice(&only);
    whole.extend_from_slice(&second);
    slices.for_each(|slice| whole.extend_from_slice(&slice));
    whole.freeze()
}

/// Narrows an offset into a buffer in memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

async fn read_part(connection: &Connection, object: &Object, range: Range<u64>) -> Result<Bytes> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        // A weak tag matches nothing by `If-Match`; the answer's is compared below.
        if_match: object.e_tag.clone().filter(|tag| connection.has_preconditions && !tag.starts_with("W/")),
        ..GetOptions::default()
    };
    let _slot = slot(connection).await?;
    let result = get(connection, object, options).await.map_err(|failed| of_range(failed, &range))?;
    check_unchanged(object, &result)?;
    let url = || object.url.clone();
    let num_wanted = range.end - range.start;
    let bytes = collect(result).await.map_err(|source| of_range(error(&object.url, source), &range))?;
    connection.metrics.count(bytes.len() as u64);
    if bytes.len() as u64 != num_wanted {
        return Err(Error::ShortRead { url: url(), range, got: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// Says which range it was that the store failed for.
fn of_range(failed: Error, range: &Range<u64>) -> Error {
    match failed {
        Error::Store { url, source } => Error::Read { url, range: range.clone(), source },
        other => other,
    }
}

/// Waits until the store has room for one more request; held until its body is here.
async fn slot(connection: &Connection) -> Result<SemaphorePermit<'_>> {
    connection.slots.acquire().await.map_err(|_| Error::Closed { reason: "cancelled" })
}

async fn get(connection: &Connection, object: &Object, options: GetOptions) -> Result<GetResult> {
    connection.client.get_opts(&object.path, options).await.map_err(|source| match source {
        object_store::Error::Precondition { .. } => {
            Error::ObjectChanged { url: object.url.clone(), expected: object.e_tag.clone().unwrap_or_default() }
        }
        source => error(&object.url, source),
    })
}

/// Collects a body; small ones arrive in one piece and are not copied.
async fn collect(result: GetResult) -> Result<Bytes, object_store::Error> {
    if let object_store::GetResultPayload::Stream(mut stream) = result.payload {
        let capacity = index(result.range.end - result.range.start);
        let Some(first) = stream.try_next().await? else { return Ok(Bytes::new()) };
        if first.len() == capacity && stream.try_next().await?.is_none() {
            return Ok(first);
        }
        let mut body = BytesMut::with_capacity(capacity);
        body.extend_from_slice(&first);
        while let Some(chunk) = stream.try_next().await? {
            body.extend_from_slice(&chunk);
        }
        return Ok(body.freeze());
    }
    result.bytes().await
}

/// Returns the value of an e-tag: listings and answers of one store may differ in quotes and weakness.
fn opaque(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// Refuses an answer of another version of the object, for stores that ignore `If-Match`.
fn check_unchanged(object: &Object, result: &GetResult) -> Result<()> {
    let is_other_tag =
        matches!((&object.e_tag, &result.meta.e_tag), (Some(ours), Some(theirs)) if opaque(ours) != opaque(theirs));
    let is_other_size = object.size_bytes.is_some_and(|size| size != result.meta.size);
    if is_other_tag || is_other_size {
        let expected = object.e_tag.clone().unwrap_or_else(|| format!("size {}", object.size_bytes.unwrap_or(0)));
        return Err(Error::ObjectChanged { url: object.url.clone(), expected });
    }
    Ok(())
}

/// Reads the last `num_bytes` of an object, or all of a smaller one; fills in its size and e-tag.
///
/// # Errors
///
/// As [`read_ranges`].
pub(crate) async fn read_suffix(connection: &Connection, object: &mut Object, num_bytes: u64) -> Result<Bytes> {
    // A known size spares stores without suffix requests (Azure) from being asked for one.
    let range = match object.size_bytes {
        Some(0) => return Ok(Bytes::new()),
        Some(size) => GetRange::Bounded(size.saturating_sub(num_bytes)..size),
        None => GetRange::Suffix(num_bytes),
    };
    let options = GetOptions { range: Some(range), ..GetOptions::default() };
    let _slot = slot(connection).await?;
    let result = get(connection, object, options).await?;
    check_unchanged(object, &result)?;
    object.size_bytes = Some(result.meta.size);
    object.e_tag = result.meta.e_tag.clone().or(object.e_tag.take());
    let range = result.range.clone();
    let bytes = collect(result).await.map_err(|source| of_range(error(&object.url, source), &range))?;
    connection.metrics.count(bytes.len() as u64);
    if bytes.len() as u64 != range.end - range.start {
        return Err(Error::ShortRead { url: object.url.clone(), range, got: bytes.len() as u64 });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::path::Path;
    use proptest::prelude::*;

    use super::*;
    use crate::io::Io;
    use crate::source::Store;
    use crate::source::recording::Recording;

    const BODY: usize = 3000;

    fn body() -> Vec<u8> {
        (0..BODY).map(|place| u8::try_from(place % 251).unwrap()).collect()
    }

    fn object(size_bytes: Option<u64>, e_tag: Option<&str>) -> Object {
        Object { path: Path::from("x"), url: "s3://b/x".into(), size_bytes, e_tag: e_tag.map(str::to_owned) }
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
    fn a_suffix_longer_than_the_object_is_all_of_it() {
        with_store(async |connection, _| {
            let mut object = object(None, None);
            assert_eq!(read_suffix(connection, &mut object, 1 << 20).await.unwrap(), body());
            assert_eq!(object.size_bytes, Some(3000));
            assert_eq!(read_suffix(connection, &mut object, 7).await.unwrap(), &body()[BODY - 7..]);
        });
    }

    #[test]
    fn requests_and_bytes_are_counted() {
        with_store(async |connection, _| {
            read_ranges(connection, &object(None, None), &[0..10, 20..30]).await.unwrap();
            let counted = connection.metrics.snapshot();
            assert_eq!((counted.requests, counted.bytes_fetched), (1, 30));
        });
    }

    proptest! {
        #[test]
        fn every_range_gets_its_own_bytes(
            ranges in prop::collection::vec((0u64..2900, 0u64..100), 0..12), max_bytes in 1u64..200, gap in 0u64..300,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let parts = split(&coalesce(&ranges, gap), max_bytes);
            let whole = Bytes::from(body());
            let answers: Vec<_> = parts.iter().map(|part| whole.slice(index(part.start)..index(part.end))).collect();
            for range in &ranges {
                prop_assert_eq!(assemble(&parts, &answers, range), whole.slice(index(range.start)..index(range.end)));
            }
        }
    }
}
