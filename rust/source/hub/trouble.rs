//! Failures of a Hub, in words that never contain a token or a signature.

use object_store::Error;
use object_store::path::Path;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use crate::source::recover::{Kind, Trouble, causes, is_of_certificates};

/// The store's name in errors.
const STORE: &str = "Hub";

/// Describes a request that was not sent, or not answered.
pub(super) fn of_client(error: reqwest::Error) -> String {
    let error = error.without_url();
    let kind = if error.is_timeout() { "no answer in time" } else { "the connection failed" };
    let mut said = format!("{kind}: {error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        let text = source.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = source.source();
    }
    said
}

/// Returns the Hub's message when it did not provide a file.
pub(super) fn refusal(status: StatusCode, headers: &HeaderMap) -> String {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    let code = header("x-error-code").map(|code| format!(" ({code})")).unwrap_or_default();
    let said = header("x-error-message").map(|said| format!(": {said:.1000}")).unwrap_or_default();
    format!("the Hub answered {status}{code}{said}")
}

/// Returns the error for a status that retrying does not change.
pub(super) fn of_status(path: &Path, status: StatusCode, said: String) -> Error {
    let path = path.to_string();
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound { path, source: said.into() },
        StatusCode::UNAUTHORIZED => Error::Unauthenticated { path, source: said.into() },
        StatusCode::FORBIDDEN => Error::PermissionDenied { path, source: said.into() },
        _ => generic(said),
    }
}

/// Returns the error for a different version of a file than the expected one.
pub(super) fn changed(path: &Path, said: String) -> Error {
    Error::Precondition { path: path.to_string(), source: said.into() }
}

/// Returns the error for a response that does not match the request.
pub(super) fn wrong(said: String) -> Error {
    boxed(Trouble::new(Kind::Wrong, said))
}

pub(super) fn generic(said: String) -> Error {
    Error::Generic { store: STORE, source: said.into() }
}

/// Returns an error that carries its own kind.
pub(super) fn boxed(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: STORE, source: Box::new(source) }
}

/// Returns the error for a request without a complete response.
pub(super) fn broken(error: reqwest::Error) -> Error {
    if causes(&error).any(is_of_certificates) {
        return boxed(error.without_url());
    }
    let kind = if error.is_timeout() { Kind::Stalled } else { Kind::Broken };
    boxed(Trouble::new(kind, of_client(error)))
}
