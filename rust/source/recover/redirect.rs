//! Where a redirect leads, and what is sent there.
//!
//! A store's headers are between it and its user: tokens, signatures, encryption keys for objects. They stay within its
//! origin. Elsewhere, where a store's signature would be useless, only the description of the wanted data is sent, and
//! never the previous URL, which may be signed.

use std::fmt;

use object_store::client::{HttpError, HttpRequest, HttpResponse};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
    LOCATION, RANGE,
};
use reqwest::{Method, StatusCode};
use url::Url;

use super::trouble::Astray;

const REDIRECTS: [StatusCode; 5] = [
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::FOUND,
    StatusCode::SEE_OTHER,
    StatusCode::TEMPORARY_REDIRECT,
    StatusCode::PERMANENT_REDIRECT,
];

/// Headers that say what is wanted, not who wants it.
const WANTED: [HeaderName; 7] =
    [ACCEPT, ACCEPT_ENCODING, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE];

/// The origin that a request was redirected to, without what may be secret.
#[derive(Debug, Clone)]
pub(super) struct Elsewhere(String);

impl Elsewhere {
    /// Returns the origin of `next`, unless it is that of the `last` request.
    pub(super) fn of(last: &HttpRequest, next: &HttpRequest) -> Option<Self> {
        let origin = |request: &HttpRequest| Url::parse(&request.uri().to_string()).ok().map(|url| url.origin());
        let next = origin(next)?;
        (origin(last).as_ref() != Some(&next)).then(|| Self(next.ascii_serialization()))
    }

    /// Adds it to a failure, which is not of the server that was asked.
    pub(super) fn explain(&self, source: HttpError) -> HttpError {
        HttpError::new(source.kind(), Redirected { said: self.to_string(), source })
    }
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it redirects to `{}`", self.0)
    }
}

/// The target of a redirect failed.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
struct Redirected {
    said: String,
    #[source]
    source: HttpError,
}

/// Returns the request that a response asks to make instead. Only reads are redirected: writes and requests for
/// credentials are meant for the original recipient.
pub(super) fn next(request: &HttpRequest, response: &HttpResponse) -> Option<HttpRequest> {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    if !is_read || !REDIRECTS.contains(&response.status()) {
        return None;
    }
    let from = Url::parse(&request.uri().to_string()).ok()?;
    let to = target(&from, response.headers())?;
    let mut next = request.clone();
    *next.uri_mut() = to.as_str().parse().ok()?;
    if from.origin() != to.origin() {
        let headers = next.headers_mut();
        let kept = WANTED.map(|name| headers.get(&name).cloned().map(|value| (name, value)));
        *headers = kept.into_iter().flatten().collect();
    }
    Some(next)
}

/// Returns why a redirect is not followed, the last of `num_redirects`; `None` if it is not a redirect.
pub(super) fn astray(request: &HttpRequest, response: &HttpResponse, num_redirects: usize) -> Option<Astray> {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    if !is_read || !REDIRECTS.contains(&response.status()) || !response.headers().contains_key(LOCATION) {
        return None;
    }
    let status = response.status();
    Some(Astray(match next(request, response) {
        Some(_) => format!("it answers {status} again and again: {num_redirects} redirects lead to no object"),
        None => format!("it answers {status}, and the target is not a web URL"),
    }))
}

fn target(from: &Url, headers: &HeaderMap) -> Option<Url> {
    let location = std::str::from_utf8(headers.get(LOCATION)?.as_bytes()).ok()?;
    from.join(location).ok().filter(|to| ["http", "https"].contains(&to.scheme()))
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;
    use reqwest::header::HeaderValue;

    use super::*;

    fn request(method: Method) -> HttpRequest {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        *request.uri_mut() = "https://store.test/a/x?sig=s3cr3t".parse().unwrap();
        for name in ["range", "if-match", "authorization", "x-amz-security-token", "x-ms-encryption-key", "cookie"] {
            request.headers_mut().insert(name, HeaderValue::from_static("value"));
        }
        request
    }

    fn redirected(method: Method, status: u16, location: &str) -> Option<HttpRequest> {
        let mut response = HttpResponse::new(Vec::new().into());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response.headers_mut().insert(LOCATION, HeaderValue::from_str(location).unwrap());
        next(&request(method), &response)
    }

    #[test]
    fn what_a_store_is_told_is_told_to_nobody_else() {
        for elsewhere in ["http://store.test/y", "https://store.test:444/y", "//cdn.store.test/y", "https://x.test/y"] {
            let next = redirected(Method::GET, 307, elsewhere).unwrap();
            let names: Vec<_> = next.headers().keys().map(HeaderName::as_str).collect();
            assert_eq!((next.uri().path(), next.uri().query()), ("/y", None));
            assert_eq!(names, ["if-match", "range"], "{elsewhere}");
        }
        for here in ["y", "/y", "https://store.test/y", "https://STORE.test:443/y#z"] {
            let next = redirected(Method::HEAD, 302, here).unwrap();
            assert_eq!((next.headers().len(), next.method()), (6, &Method::HEAD), "{here}");
        }
    }

    #[test]
    fn who_failed_is_known_by_its_origin() {
        let elsewhere = |location: &str| {
            let next = redirected(Method::GET, 307, location).unwrap();
            Elsewhere::of(&request(Method::GET), &next).map(|elsewhere| elsewhere.to_string())
        };
        assert_eq!(elsewhere("https://store.test:443/y"), None);
        let expected = "it redirects to `http://cdn.test:81`";
        assert_eq!(elsewhere("http://me:s3cr3t@cdn.test:81/y?sig=s3cr3t").as_deref(), Some(expected));
    }

    #[test]
    fn only_reads_follow_and_only_on_the_web() {
        for (method, status, location) in [
            (Method::POST, 307, "/y"),
            (Method::PUT, 308, "/y"),
            (Method::GET, 200, "/y"),
            (Method::GET, 304, "/y"),
            (Method::GET, 302, "file:///etc/passwd"),
            (Method::GET, 302, "http://"),
        ] {
            assert!(redirected(method.clone(), status, location).is_none(), "{method} {status} {location}");
        }
    }
}
