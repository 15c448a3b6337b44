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
        if_match: object.e_tag.clone().filter(|_| connection.has_preconditions),
        ..GetOptions::default()
    };
    let _slot = slot(connection).await?;
    let result = get(connection, object, options).await.map_err(|failed| match failed {
        Error::Store { url, source } => Error::Read { url, range: range.clone(), source },
        other => other,
    })?;
    check_unchanged(object, &result)?;
    let url = || object.url.clone();
    let num_wanted = range.end - range.start;
    let bytes = collect(result).await.map_err(|source| Error::Read { url: url(), range: range.clone(), source: Box::new(source) })?;
    connection.metrics.count(bytes.len() as u64);
    if bytes.len() as u64 != num_wanted {
        return Err(Error::ShortRead { url: url(), range, got: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// Waits until the store has room for one more request; held until its body is here.
async fn slot(connection: &Connection) -> Result<SemaphorePermit<'_>> {
    connection.slots.acquire().await.map_err(|_| Error::Closed { reason: "cancelled" })
}

async fn get(connection: &Connection, object: &Object, options: GetOptions) -> Result<GetResult> {
    connection.client.get_opts(&object.path, options).await.map_err(|source| match source {
        object_store::Error::Precondition { .. } => Error::ObjectChanged {
            url: object.url.clone(),
            expected: object.e_tag.clone().unwrap_or_default(),
        },
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

/// Refuses an answer of another version of the object, for stores that ignore `If-Match`.
fn check_unchanged(object: &Object, result: &GetResult) -> Result<()> {
    let is_other_tag = matches!((&object.e_tag, &result.meta.e_tag), (Some(ours), Some(theirs)) if ours != theirs);
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
    let bytes = collect(result)
        .await
        .map_err(|source| Error::Read { url: object.url.clone(), range: range.clone(), source: Box::new(source) })?;
    connection.metrics.count(bytes.len() as u64);
    if bytes.len() as u64 != range.end - range.start {
        return Err(Error::ShortRead { url: object.url.clone(), range, got: bytes.len() as u64 });
    }
    Ok(bytes)
}
