//! Checks the head of a response before its body is trusted.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, FixedOffset, NaiveDateTime, Utc};
use futures::StreamExt;
use object_store::client::{HttpError, HttpErrorKind, HttpResponse, HttpResponseBody};
use reqwest::StatusCode;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue,
    LAST_MODIFIED, RETRY_AFTER,
};

use super::redirect::Elsewhere;
use super::trouble::{Kind, Trouble};
use crate::secrets::{Sent, redacted};

/// Statuses by which stores report too many requests.
const THROTTLED: [StatusCode; 2] = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];

/// Bytes of a failure's body that are read for its message.
const READ_BYTES: usize = 16 << 10;

/// The longest wait for them.
const READ_TIME: Duration = Duration::from_secs(2);

/// Bytes of them that may be shown.
const SHOWN_BYTES: usize = 1000;

/// Maximum of a response that is read whole: a page of a listing has a few thousand keys, of a kilobyte at most.
const MOST_WHOLE_BYTES: usize = 64 << 20;

/// Obsolete date formats, which must still be understood.
const OLD_DATES: [&str; 2] = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

/// Permanent server failures: the request is not supported.
const LASTING: [StatusCode; 2] = [StatusCode::NOT_IMPLEMENTED, StatusCode::HTTP_VERSION_NOT_SUPPORTED];

/// Returns the kind of trouble for a status that may be temporary.
pub(in crate::source) fn kind_of(status: StatusCode) -> Option<Kind> {
    if THROTTLED.contains(&status) {
        return Some(Kind::Throttled);
    }
    (status.is_server_error() && !LASTING.contains(&status) || status == StatusCode::REQUEST_TIMEOUT)
        .then_some(Kind::Failed)
}

/// Returns the kind of trouble for a code that may be temporary, whatever the status is.
fn kind_of_code(code: &str) -> Option<Kind> {
    match code {
        // Amazon reports a connection that was too slow this way.
        "RequestTimeout" => Some(Kind::Failed),
        // And too many requests, to itself or to its key management service.
        _ if code.contains("Throttl") || ["SlowDown", "RequestLimitExceeded"].contains(&code) => Some(Kind::Throttled),
        _ => None,
    }
}

/// Returns how long a refusal asks to wait: seconds, or until a date.
pub(in crate::source) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let asked = text(headers, &RETRY_AFTER)?.trim();
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    Some(date(asked)?.signed_duration_since(sent_at(headers)).to_std().unwrap_or_default())
}

/// Returns the time of a response by the sender's clock, if given: this machine's may be hours wrong.
pub(in crate::source) fn sent_at(headers: &HeaderMap) -> DateTime<Utc> {
    text(headers, &DATE).and_then(date).map_or_else(Utc::now, |sent| sent.to_utc())
}

fn date(text: &str) -> Option<DateTime<FixedOffset>> {
    DateTime::parse_from_rfc2822(text.trim()).ok()
}

/// Passes on the response to a request for `range`, if it is one: temporary failures and bytes that were not requested
/// become errors with a message. For all other failures, the body is cut to what may be shown.
pub(super) async fn check(range: Option<&str>, mut response: HttpResponse) -> Result<HttpResponse, HttpError> {
    if !response.status().is_success() {
        let (head, body) = response.into_parts();
        let said = beginning(head.extensions.get(), body).await;
        let kind = kind_of(head.status).or_else(|| kind_of_code(element(&said, "Code")?));
        let elsewhere: Option<&Elsewhere> = head.extensions.get();
        return match (kind, elsewhere) {
            (Some(kind), None) => Err(failure(kind, head.status, &head.headers, &said)),
            (Some(kind), Some(to)) => Err(to.explain(failure(kind, head.status, &head.headers, &said))),
            (None, None) => Ok(HttpResponse::from_parts(head, said.into())),
            (None, Some(to)) => {
                let said = if said.is_empty() { to.to_string() } else { format!("{to}: {said}") };
                Ok(HttpResponse::from_parts(head, said.into()))
            }
        };
    }
    tidy(response.headers_mut());
    let Some(range) = range else { return Ok(response) };
    if is_without_range(range, response.status(), response.headers()) {
        let (mut head, _) = response.into_parts();
        head.status = StatusCode::RANGE_NOT_SATISFIABLE;
        head.headers.remove(CONTENT_LENGTH);
        return Ok(HttpResponse::from_parts(head, String::new().into()));
    }
    match check_range(range, response.status(), response.headers()) {
        Ok((first, last, size)) => {
            let headers = response.headers_mut();
            // Clients want it said twice, and in one form.
            headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(last - first + 1));
            if let Ok(content_range) = HeaderValue::try_from(format!("bytes {first}-{last}/{size}")) {
                headers.insert(CONTENT_RANGE, content_range);
            }
            Ok(response)
        }
        Err(said) => Err(wrong(said)),
    }
}

/// Returns whether a response to a suffix request is the whole object, or a response to a request for the first byte is
/// empty. Servers without suffix ranges, such as Azure's, may answer so, and many do if the object is empty; others
/// report an unsatisfiable range, and are asked for the size.
fn is_without_range(range: &str, status: StatusCode, headers: &HeaderMap) -> bool {
    let is_empty = text(headers, &CONTENT_LENGTH) == Some("0");
    let may_be = range.starts_with("bytes=-") || range == "bytes=0-0" && is_empty;
    may_be && status == StatusCode::OK && !is_page(headers)
}

/// Refuses an HTML page where data is expected.
pub(super) fn check_data(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    match is_page(response.headers()) && response.status().is_success() {
        true => Err(wrong("it sent a page of HTML instead of an answer".into())),
        false => Ok(response),
    }
}

fn is_page(headers: &HeaderMap) -> bool {
    text(headers, &CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html"))
}

pub(super) fn wrong(said: String) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, Trouble::new(Kind::Wrong, said))
}

/// Reads a whole body, up to a maximum.
pub(super) async fn whole(body: HttpResponseBody) -> Result<Bytes, HttpError> {
    let (mut stream, mut whole) = (body.bytes_stream(), BytesMut::new());
    while let Some(bytes) = stream.next().await {
        whole.extend_from_slice(&bytes?);
        if whole.len() > MOST_WHOLE_BYTES {
            return Err(wrong(format!("its answer is longer than {} MiB", MOST_WHOLE_BYTES >> 20)));
        }
    }
    Ok(whole.freeze())
}

/// Returns the beginning of a failure's body, as much as arrived in time and may be shown; clients refuse non-text.
async fn beginning(sent: Option<&Sent>, body: HttpResponseBody) -> String {
    let (mut stream, mut said) = (body.bytes_stream(), Vec::new());
    let read = async {
        // A bit more is read than is shown: most bodies end then, so their connections can be reused.
        while said.len() < READ_BYTES
            && let Some(Ok(bytes)) = stream.next().await
        {
            said.extend_from_slice(&bytes);
        }
    };
    // What has arrived until then says enough.
    drop(tokio::time::timeout(READ_TIME, read).await);
    let said = String::from_utf8_lossy(&said);
    // First: half a secret would not be recognized.
    let said = redacted(&sent.map_or(said.to_string(), |sent| sent.hidden_in(&said)));
    page_in_short(&said).unwrap_or_else(|| shown(&said).to_owned())
}

/// Returns the title of an HTML page: the rest is for browsers. `None` for other text.
fn page_in_short(said: &str) -> Option<String> {
    // Of the same length in bytes.
    let lower = said.to_ascii_lowercase();
    let is_page = ["<!doctype html", "<html"].iter().any(|start| lower.trim_start().starts_with(start));
    let titled = || {
        let start = lower.find("<title>")? + "<title>".len();
        let title = said[start..].get(..lower[start..].find("</title>")?)?.trim();
        Some(format!("a page of HTML, \"{}\"", shown(title)))
    };
    is_page.then(|| titled().unwrap_or_else(|| "a page of HTML".to_owned()))
}

/// Returns as much of a text as may be shown.
pub(super) fn shown(said: &str) -> &str {
    &said[..said.floor_char_boundary(SHOWN_BYTES)]
}

/// Makes headers readable for clients: they refuse responses with non-ASCII text, which servers send in file names, and
/// with other date formats.
fn tidy(headers: &mut HeaderMap) {
    let is_odd = |value: &HeaderValue| value.to_str().is_err();
    let odd: Vec<_> = headers.iter().filter(|(_, value)| is_odd(value)).map(|(name, _)| name.clone()).collect();
    for name in odd {
        headers.remove(name);
    }
    let date = text(headers, &LAST_MODIFIED).filter(|date| DateTime::parse_from_rfc2822(date).is_err());
    let Some(date) = date else { return };
    let parsed = OLD_DATES.iter().find_map(|form| NaiveDateTime::parse_from_str(date, form).ok());
    match parsed.and_then(|date| HeaderValue::from_str(&date.and_utc().to_rfc2822()).ok()) {
        Some(date) => drop(headers.insert(LAST_MODIFIED, date)),
        None => drop(headers.remove(LAST_MODIFIED)),
    }
}

/// Returns the content encoding of a body, if it has one.
pub(in crate::source) fn coding(headers: &HeaderMap) -> Option<&str> {
    text(headers, &CONTENT_ENCODING).map(str::trim).filter(|coding| !coding.eq_ignore_ascii_case("identity"))
}

/// Returns the error for a failure, with the store's message.
fn failure(kind: Kind, status: StatusCode, headers: &HeaderMap, body: &str) -> HttpError {
    let retry_after = retry_after(headers);
    // If longer than the user's patience, it is why there was no wait.
    let asked = retry_after.map(|time| time.as_secs()).filter(|seconds| *seconds > 0);
    let asked = asked.map_or_else(String::new, |seconds| format!(", to be asked again in {seconds} s"));
    let said = format!("the store answered {status}{}{asked}", reason(body));
    let kind_of_client = if kind == Kind::Throttled { HttpErrorKind::Interrupted } else { HttpErrorKind::Unknown };
    HttpError::new(kind_of_client, Trouble { kind, said, retry_after })
}

/// Returns the text of the first element called `name`, if it has any.
pub(super) fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0.trim()).filter(|text| !text.is_empty())
}

/// Returns code and message of an XML error; other bodies may hold anything, and are left out.
pub(super) fn reason(body: &str) -> String {
    match (element(body, "Code"), element(body, "Message")) {
        (Some(code), Some(message)) => format!(" ({code}: {message})"),
        (Some(code), None) => format!(" ({code})"),
        _ => String::new(),
    }
}

/// Checks that a response has the requested bytes and the length it claims; returns their first, their last, and the
/// size of the object.
fn check_range(range: &str, status: StatusCode, headers: &HeaderMap) -> Result<(u64, u64, u64), String> {
    if status == StatusCode::OK {
        return Err(match is_page(headers) {
            true => format!("it sent a page of HTML when asked for {range}"),
            false => format!(
                "it sent the whole object when asked for {range}: a server must support range requests; otherwise copy \
                 its files"
            ),
        });
    }
    if status != StatusCode::PARTIAL_CONTENT {
        return Err(format!("it answered {status} when asked for {range}"));
    }
    let answered = text(headers, &CONTENT_RANGE).unwrap_or("no `Content-Range`");
    let parsed = parse(answered).ok_or_else(|| format!("it answered {range} with `{answered}`"))?;
    if !is_answer(range, parsed) {
        return Err(format!("it answered {range} with `{answered}`"));
    }
    let (first, last, _) = parsed;
    let num_bytes = last - first + 1;
    let length = text(headers, &CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    match (length, coding(headers)) {
        (Some(length), _) if length != num_bytes => Err(format!("it announced {length} bytes for `{answered}`")),
        // If the length matches the range, the object itself is encoded: stores repeat the header they were given.
        (None, Some(coding)) => Err(format!("it answered {range} with encoded bytes (`{coding}`)")),
        _ => Ok(parsed),
    }
}

/// Parses `bytes 5-9/20`; units are case-insensitive (RFC 9110, 14.1).
fn parse(content_range: &str) -> Option<(u64, u64, u64)> {
    let (unit, rest) = content_range.trim().split_at_checked("bytes".len())?;
    let (range, size) = rest.trim().split_once('/').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size) = (first.trim().parse().ok()?, last.trim().parse().ok()?, size.trim().parse().ok()?);
    (first <= last && last < size).then_some((first, last, size))
}

/// Returns whether these are the bytes of `bytes=5-9`, `bytes=5-` or `bytes=-5`, as far as the object has them.
fn is_answer(range: &str, (first, last, size): (u64, u64, u64)) -> bool {
    let Some((from, to)) = range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return true;
    };
    match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(to)) => first == from && last == to.min(size - 1),
        (Ok(from), Err(_)) => first == from && last == size - 1,
        (Err(_), Ok(len)) => first == size.saturating_sub(len) && last == size - 1,
        (Err(_), Err(_)) => true,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn checked(range: &str, content_range: &str, length: &str) -> Result<u64, String> {
        let headers = headers(&[(&CONTENT_RANGE, content_range), (&CONTENT_LENGTH, length)]);
        check_range(range, StatusCode::PARTIAL_CONTENT, &headers).map(|(first, last, _)| last - first + 1)
    }

    #[test]
    fn an_answer_is_of_what_was_asked_for() {
        for (range, content_range, length) in [
            ("bytes=5-9", "bytes 5-9/20", "5"),
            ("bytes=5-99", "Bytes 5-19/20", "15"),
            ("bytes=5-", "bytes 5-19/20", "15"),
            ("bytes=-5", "bytes 15-19/20", "5"),
            ("bytes=-50", "bytes 0-19/20", "20"),
        ] {
            assert_eq!(checked(range, content_range, length), Ok(length.parse().unwrap()), "{range}");
        }
    }

    #[test]
    fn an_answer_of_something_else_says_what_it_is() {
        for (range, content_range, length) in [
            ("bytes=5-9", "bytes 4-8/20", "5"),
            ("bytes=5-9", "bytes 5-8/20", "4"),
            ("bytes=5-9", "bytes 5-9/20", "3"),
            ("bytes=5-9", "bytes 5-9/*", "5"),
            ("bytes=5-9", "bytes 9-5/20", "5"),
            ("bytes=-5", "bytes 0-19/20", "20"),
            ("bytes=5-9", "nonsense", "5"),
        ] {
            let said = checked(range, content_range, length).unwrap_err();
            assert!(said.contains(content_range), "{said}");
        }
        let whole = check_range("bytes=5-9", StatusCode::OK, &HeaderMap::new()).unwrap_err();
        assert!(whole.contains("whole object"), "{whole}");
        let page = headers(&[(&CONTENT_TYPE, "text/html; charset=utf-8")]);
        let page = check_range("bytes=5-9", StatusCode::OK, &page).unwrap_err();
        assert!(page.contains("a page of HTML"), "{page}");
        for status in [202, 203, 204].map(|status| StatusCode::from_u16(status).unwrap()) {
            let other = check_range("bytes=5-9", status, &HeaderMap::new()).unwrap_err();
            assert!(other.contains(status.as_str()), "{other}");
        }
        let bare = check_range("bytes=5-9", StatusCode::PARTIAL_CONTENT, &HeaderMap::new()).unwrap_err();
        assert!(bare.contains("no `Content-Range`"), "{bare}");
    }

    #[test]
    fn refusals_for_now_are_known_by_their_codes_too() {
        for code in ["ThrottlingException", "KMS.ThrottlingException", "RequestThrottled", "SlowDown"] {
            assert_eq!(kind_of_code(code), Some(Kind::Throttled), "{code}");
        }
        assert_eq!(kind_of_code("RequestTimeout"), Some(Kind::Failed));
        assert_eq!(["RequestTimeTooSkewed", "InvalidRequest", "AccessDenied"].map(kind_of_code), [None; 3]);
    }

    #[test]
    fn what_a_server_does_not_know_is_not_asked_for_again() {
        let kind = |status| kind_of(StatusCode::from_u16(status).unwrap());
        assert_eq!([429, 503].map(kind), [Some(Kind::Throttled); 2]);
        assert_eq!([408, 500, 502, 504, 520].map(kind), [Some(Kind::Failed); 5]);
        assert_eq!([400, 404, 501, 505].map(kind), [None; 4]);
    }

    #[test]
    fn all_of_an_object_is_no_end_of_it_and_nothing_is_no_first_byte() {
        let (empty, full) = (headers(&[(&CONTENT_LENGTH, "0")]), headers(&[(&CONTENT_LENGTH, "1")]));
        let is_without = |range, headers: &HeaderMap| is_without_range(range, StatusCode::OK, headers);
        assert!(is_without("bytes=-9", &empty) && is_without("bytes=-9", &full) && is_without("bytes=0-0", &empty));
        // It always sends everything, or had more when it was opened.
        assert!(!is_without("bytes=0-0", &full) && !is_without("bytes=5-9", &empty));
        assert!(!is_without("bytes=-9", &headers(&[(&CONTENT_TYPE, "text/html")])));
        assert!(!is_without_range("bytes=-9", StatusCode::PARTIAL_CONTENT, &full));
    }

    #[test]
    fn bytes_that_a_server_codes_are_not_those_of_the_object() {
        let mut answer = headers(&[(&CONTENT_RANGE, "bytes 5-9/20"), (&CONTENT_ENCODING, "gzip")]);
        let said = check_range("bytes=5-9", StatusCode::PARTIAL_CONTENT, &answer).unwrap_err();
        assert!(said.contains("encoded bytes (`gzip`)"), "{said}");
        answer.insert(CONTENT_LENGTH, HeaderValue::from(5));
        assert_eq!(
            check_range("bytes=5-9", StatusCode::PARTIAL_CONTENT, &answer),
            Ok((5, 9, 20)),
            "as they are stored"
        );
        answer.remove(CONTENT_LENGTH);
        answer.insert(CONTENT_ENCODING, HeaderValue::from_static("Identity"));
        assert_eq!(check_range("bytes=5-9", StatusCode::PARTIAL_CONTENT, &answer), Ok((5, 9, 20)));
    }

    #[test]
    fn headers_that_clients_cannot_read_are_left_out_or_written_anew() {
        for (sent, read) in [
            ("Thu, 01 Jan 2026 00:00:00 GMT", Some("Thu, 01 Jan 2026 00:00:00 GMT")),
            ("Thursday, 01-Jan-26 00:00:00 GMT", Some("Thu, 1 Jan 2026 00:00:00 +0000")),
            ("Thu Jan  1 00:00:00 2026", Some("Thu, 1 Jan 2026 00:00:00 +0000")),
            ("yesterday", None),
        ] {
            let mut headers = headers(&[(&LAST_MODIFIED, sent), (&CONTENT_LENGTH, "5")]);
            headers.insert("content-disposition", HeaderValue::from_bytes("filename=é".as_bytes()).unwrap());
            tidy(&mut headers);
            assert_eq!(text(&headers, &LAST_MODIFIED), read, "{sent}");
            assert!(!headers.contains_key("content-disposition"));
            assert_eq!(text(&headers, &CONTENT_LENGTH), Some("5"));
        }
    }

    #[test]
    fn a_refusal_says_how_long() {
        let seconds = |text: &str| retry_after(&headers(&[(&RETRY_AFTER, text)])).map(|time| time.as_secs());
        assert_eq!(seconds("7"), Some(7));
        assert_eq!(seconds("Fri, 31 Dec 1999 23:59:59 GMT"), Some(0));
        assert!(seconds("Fri, 31 Dec 2100 23:59:59 GMT").unwrap() > 1_000_000_000);
        assert_eq!(seconds("soon"), None);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn the_time_of_a_refusal_is_the_store_s() {
        let wait = |sent: &str| {
            let headers = headers(&[(&DATE, sent), (&RETRY_AFTER, "Fri, 31 Dec 1999 23:59:59 GMT")]);
            retry_after(&headers).unwrap().as_secs()
        };
        // The clocks of both machines are decades apart.
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:57 GMT"), 2);
        assert_eq!(wait("Fri, 31 Dec 1999 22:59:59 GMT"), 3600);
        assert_eq!(wait("Sat, 01 Jan 2000 00:00:00 GMT"), 0);
        assert_eq!(wait("now"), 0);
    }

    #[test]
    fn of_pages_the_titles_are_shown() {
        let page = "\n<!DOCTYPE HTML>\n<html><head><TITLE> Not found: é </title></head><body>…</body></html>";
        assert_eq!(page_in_short(page).as_deref(), Some("a page of HTML, \"Not found: é\""));
        assert_eq!(page_in_short("<html><title>cut").as_deref(), Some("a page of HTML"));
        assert_eq!(page_in_short("<Error><title>x</title></Error>"), None);
    }

    #[test]
    fn xml_errors_are_told_and_pages_are_not() {
        let slow = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce it.</Message></Error>";
        assert_eq!(reason(slow), " (SlowDown: Reduce it.)");
        assert_eq!(reason("<Error><Code>InternalError</Code></Error>"), " (InternalError)");
        assert_eq!(reason("<html>down</html>"), "");
    }
}
