//! Reads a range of a file from its actual location.

use std::ops::Range;

use object_store::path::Path;
use object_store::{Error, GetRange};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE};
use reqwest::{Response, StatusCode};

use super::Hub;
use super::pace::Patience;
use super::trouble;
use super::urls::Resolved;
use crate::source::read::UNSATISFIABLE;
use crate::source::recover::{Trouble, coding, kind_of, retry_after};

/// Responses to a signed URL that is no longer valid.
const STALE: [StatusCode; 4] =
    [StatusCode::FORBIDDEN, StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND, StatusCode::GONE];

/// The requested range.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) path: Path,
    pub(super) range: Option<GetRange>,
    pub(super) if_match: Option<String>,
}

/// A body that has begun to arrive.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) response: Response,
    /// Bytes of the body before the range: a store may send more than was requested.
    pub(super) skip: u64,
    pub(super) range: Range<u64>,
    pub(super) size: u64,
    pub(super) e_tag: Option<String>,
}

/// Why a location does not lead to a range.
enum Failed {
    /// Another may: the signature has expired, the bytes have moved, or another than the Hub answered in its place.
    Stale(Error),
    Other(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Requests a range once from its location; again only if the location is no longer valid, once for each kind.
pub(super) async fn open(hub: &Hub, asked: &Asked, patience: &mut Patience) -> object_store::Result<Opened> {
    let (mut refused, mut replaced) = (None, Vec::new());
    loop {
        let found = hub.resolve(&asked.path, refused.as_ref(), patience).await?;
        match request(hub, asked, &found, patience).await {
            Ok(opened) => return Ok(opened),
            Err(Failed::Stale(_)) if !replaced.contains(&found.is_direct) => {
                replaced.push(found.is_direct);
                refused = Some(found);
            }
            Err(Failed::Stale(error) | Failed::Other(error)) => {
                if found.is_direct {
                    hub.forget(&asked.path, &found);
                }
                return Err(error);
            }
        }
    }
}

/// Requests a range from one location; again while the Hub itself asks to wait.
async fn request(hub: &Hub, asked: &Asked, found: &Resolved, patience: &mut Patience) -> Result<Opened, Failed> {
    // What was answered without a redirect may have been another's.
    let other_version = |error| match error {
        Error::Precondition { .. } if found.is_direct => Failed::Stale(error),
        error => Failed::Other(error),
    };
    let e_tag = matching_tag(asked, found).map_err(other_version)?;
    let mut num_failed = 0;
    loop {
        num_failed += 1;
        let response = send(hub, asked, found, patience).await?.map_err(trouble::broken)?;
        let status = response.status();
        if status.is_success() {
            return opened(asked, found, response, e_tag).map_err(other_version);
        }
        let error = if found.is_direct {
            match hub.wait_after(&asked.path, status, response.headers(), num_failed, patience).await {
                Ok(()) => continue,
                Err(error) => error,
            }
        } else {
            of_cdn(asked, found, status, response.headers())
        };
        let is_stale = STALE.contains(&status) || found.is_direct && status.is_redirection();
        return Err(if is_stale { Failed::Stale(error) } else { Failed::Other(error) });
    }
}

/// Makes one request; the outer error is from waiting for the Hub.
async fn send(
    hub: &Hub,
    asked: &Asked,
    found: &Resolved,
    patience: &mut Patience,
) -> object_store::Result<reqwest::Result<Response>> {
    let with_range = |request: reqwest::RequestBuilder| match &asked.range {
        Some(range) => request.header(RANGE, range.to_string()).header(ACCEPT_ENCODING, "identity"),
        None => request,
    };
    if !found.is_direct {
        return Ok(patience.watch.run(with_range(hub.client.get(found.url.clone())).send()).await);
    }
    let _slot = hub.enter(patience).await?;
    Ok(patience.watch.run(with_range(hub.request(&found.url)).send()).await)
}

fn of_cdn(asked: &Asked, found: &Resolved, status: StatusCode, headers: &HeaderMap) -> object_store::Error {
    let said = format!("the store behind the Hub answered {status}");
    let total = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).and_then(total_size);
    let is_inside =
        matches!(&asked.range, Some(GetRange::Bounded(range)) if total.is_some_and(|size| range.end <= size));
    if status == StatusCode::RANGE_NOT_SATISFIABLE && is_inside && total == found.size {
        return trouble::wrong(format!("{said} to a range of the file, although it states the same size as the Hub"));
    }
    match kind_of(status) {
        Some(kind) => trouble::boxed(Trouble { kind, said, retry_after: retry_after(headers) }),
        None => trouble::of_status(&asked.path, status, said),
    }
}

/// Returns the file's tag: the expected one, if the file has several and it is among them.
fn matching_tag(asked: &Asked, found: &Resolved) -> object_store::Result<Option<String>> {
    let opaque = |tag: &str| tag.trim_start_matches("W/").trim_matches('"').to_owned();
    let Some(expected) = &asked.if_match else { return Ok(found.tags.first().cloned()) };
    if found.tags.is_empty() || found.tags.iter().any(|tag| opaque(tag) == opaque(expected)) {
        return Ok(Some(expected.clone()));
    }
    Err(trouble::changed(&asked.path, format!("the Hub has another version: {}", found.tags.join(", "))))
}

/// Checks the headers of the response.
fn opened(asked: &Asked, found: &Resolved, response: Response, e_tag: Option<String>) -> object_store::Result<Opened> {
    let headers = response.headers();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_page = text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html"));
    let is_part = response.status() == StatusCode::PARTIAL_CONTENT;
    if !is_part && response.status() != StatusCode::OK {
        return Err(trouble::wrong(format!("the store behind the Hub answered {}", response.status())));
    }
    let num_bytes = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    let total = if is_part { text(CONTENT_RANGE).and_then(total_size) } else { num_bytes };
    if is_page && found.size.is_some_and(|size| Some(size) != total) {
        return Err(trouble::wrong("the store behind the Hub answered with a page of HTML instead of a file".into()));
    }
    if let Some(coding) = coding(headers).filter(|_| num_bytes.is_none()) {
        return Err(trouble::wrong(format!("the store behind the Hub answered with encoded bytes (`{coding}`)")));
    }
    let size = total.or(found.size);
    let size = size.ok_or_else(|| trouble::generic("the answer does not say how large the file is".into()))?;
    if let Some(expected) = found.size.filter(|expected| *expected != size) {
        let said = format!("the Hub says that it has {expected} bytes, the store behind it {size}");
        // For a whole file, it is the length of the response that is wrong.
        return Err(if is_part { trouble::changed(&asked.path, said) } else { trouble::wrong(said) });
    }
    let range = match &asked.range {
        None => 0..size,
        Some(GetRange::Bounded(range)) => range.start..range.end.min(size),
        Some(GetRange::Offset(start)) => *start..size,
        Some(GetRange::Suffix(len)) => size.saturating_sub(*len)..size,
    };
    if range.start > range.end || range.start == size && size > 0 {
        return Err(trouble::generic(format!("{UNSATISFIABLE}: it has {size} bytes")));
    }
    // One who ignores ranges would send it again for each of them.
    if let Some(wanted) = &asked.range
        && !is_part
        && (range != (0..size) || num_bytes.is_none())
    {
        return Err(trouble::wrong(format!("the store behind the Hub sent the whole file when asked for {wanted}")));
    }
    let part = if is_part { text(CONTENT_RANGE).and_then(bytes_of) } else { Some(0..size) };
    match part.filter(|part| part.contains(&range.start) || range.is_empty()) {
        Some(part) => Ok(Opened { response, skip: range.start.saturating_sub(part.start), range, size, e_tag }),
        None => Err(trouble::wrong(format!(
            "the store behind the Hub answered with `{}`, which does not include byte {} of the file",
            text(CONTENT_RANGE).unwrap_or("no `Content-Range`"),
            range.start
        ))),
    }
}

/// Returns the size of the whole file from `bytes 5-9/20`.
pub(super) fn total_size(content_range: &str) -> Option<u64> {
    content_range.rsplit('/').next()?.trim().parse().ok()
}

/// Returns the range from `bytes 5-9/20`; units are case-insensitive (RFC 9110, 14.1).
fn bytes_of(content_range: &str) -> Option<Range<u64>> {
    let (unit, rest) = content_range.trim().split_at_checked("bytes".len())?;
    let (part, _) = rest.split_once('/').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    let (first, last) = part.trim().split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}
