//! Classifies failed requests by what to do about them.

use std::error::Error as StdError;
use std::time::Duration;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};
use rustls::CertificateError;

use super::patience::Impatient;
use crate::source::file_system::FileError;

/// `ENFILE` and `EMFILE`, of the machine and of the process: the same numbers on all Unix systems.
const OUT_OF_DESCRIPTORS: [i32; 2] = [23, 24];

/// What went wrong with a request that may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The store reports too many requests: 429 or 503.
    Throttled,
    /// The store failed: another 5xx, or 408.
    Failed,
    /// There was no connection, or it broke.
    Broken,
    /// Nothing was received for too long.
    Stalled,
    /// The response does not match the request.
    Wrong,
}

impl Kind {
    /// Returns what happened, for a sentence with the store as its subject.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Throttled => "refuses requests because there are too many",
            Self::Failed => "fails",
            Self::Broken => "cannot be reached, or breaks connections",
            Self::Stalled => "stalls",
            Self::Wrong => "gives answers that do not match the requests",
        }
    }
}

/// A cause that carries its own kind.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(in crate::source) struct Trouble {
    pub(in crate::source) kind: Kind,
    /// A message with neither URLs nor credentials.
    pub(in crate::source) said: String,
    /// How long the store asks to be left alone.
    pub(in crate::source) retry_after: Option<Duration>,
}

impl Trouble {
    pub(in crate::source) fn new(kind: Kind, said: impl Into<String>) -> Self {
        Self { kind, said: said.into(), retry_after: None }
    }

    /// Returns it as an error of the store called `store`.
    pub(in crate::source) fn of(self, store: &'static str) -> Error {
        Error::Generic { store, source: Box::new(self) }
    }
}

/// There is no source of credentials.
#[derive(Debug, thiserror::Error)]
#[error("no credentials were given, and none came from the machine's metadata service: {said}")]
pub(in crate::source) struct NoCredentials {
    pub(super) said: String,
}

/// A server redirects to something that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Astray(pub(super) String);

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sorted {
    /// Retry.
    Again(Kind, Option<Duration>),
    /// Retry with other credentials, if there are any.
    Refused,
    /// Report it.
    Final,
}

/// Returns an error and its causes, including those that an `io::Error` hides.
pub(in crate::source) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        let hidden = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        hidden.map(|hidden| hidden as &(dyn StdError + 'static)).or_else(|| error.source())
    })
}

/// Classifies the error of a store's client.
pub(super) fn sort(error: &Error) -> Sorted {
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => return Sorted::Refused,
        Error::Generic { .. } => {}
        _ => return Sorted::Final,
    }
    for cause in causes(error) {
        if cause.is::<NoCredentials>() || cause.is::<Impatient>() || cause.is::<Astray>() || is_hopeless(cause) {
            return Sorted::Final;
        }
    }
    // First: the client wraps such errors in its own.
    if let Some(trouble) = causes(error).find_map(|cause| cause.downcast_ref::<Trouble>()) {
        return Sorted::Again(trouble.kind, trouble.retry_after);
    }
    if let Some(failed) = causes(error).find_map(|cause| cause.downcast_ref::<FileError>()) {
        return failed.trouble().map_or(Sorted::Final, |kind| Sorted::Again(kind, None));
    }
    if is_out_of_descriptors(error) {
        return Sorted::Again(Kind::Broken, None);
    }
    if let Some(failed) = causes(error).find_map(|cause| cause.downcast_ref::<HttpError>()) {
        return Sorted::Again(of_client(failed.kind()), None);
    }
    if is_refusal(&error.to_string()) { Sorted::Refused } else { Sorted::Final }
}

/// Returns whether there was no file descriptor left: others end, and theirs become free.
pub(in crate::source) fn is_out_of_descriptors(error: &(dyn StdError + 'static)) -> bool {
    let mut codes = causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
    codes.any(|code| OUT_OF_DESCRIPTORS.contains(&code))
}

/// Returns whether a message says that credentials are refused: listings report every status as a generic error, and
/// expired tokens are a bad request.
pub(in crate::source) fn is_refusal(said: &str) -> bool {
    let refusals = ["403 Forbidden", "401 Unauthorized", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"];
    refusals.iter().any(|refusal| said.contains(refusal))
}

fn of_client(kind: HttpErrorKind) -> Kind {
    match kind {
        HttpErrorKind::Timeout => Kind::Stalled,
        _ => Kind::Broken,
    }
}

/// Returns whether retrying would fail again: certificates, invalid URLs and invalid settings do not change.
fn is_hopeless(cause: &(dyn StdError + 'static)) -> bool {
    let is_setting = matches!(cause.downcast_ref(), Some(crate::error::Error::Setting { .. }));
    is_setting
        || is_of_certificates(cause)
        || cause.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_builder)
}

/// Returns whether a server's certificate is not trusted.
pub(in crate::source) fn is_of_certificates(cause: &(dyn StdError + 'static)) -> bool {
    certificate_error(cause).is_some()
}

fn certificate_error<'a>(cause: &'a (dyn StdError + 'static)) -> Option<&'a CertificateError> {
    match cause.downcast_ref()? {
        rustls::Error::InvalidCertificate(error) => Some(error),
        _ => None,
    }
}

/// Returns what is wrong with a server's certificate and what to do, if that is what `error` is.
pub(in crate::source) fn distrust(error: &Error) -> Option<&'static str> {
    use CertificateError as Wrong;

    let reason = match causes(error).find_map(certificate_error)? {
        Wrong::UnknownIssuer => {
            "its certificate is not signed by a trusted authority; pass the authority's certificate as \
             `ca_certificate` in `storage_options`, or name a file of all trusted ones in `SSL_CERT_FILE`"
        }
        Wrong::Expired | Wrong::ExpiredContext { .. } => {
            "its certificate has expired, unless the clock of this machine is wrong"
        }
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => {
            "its certificate is not valid yet, unless the clock of this machine is wrong"
        }
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
            "its certificate is for another host; use a host name that the certificate contains"
        }
        // Private variants of the verifier's error are recognized by name.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is marked as an authority's (`CA:TRUE`), which servers must not use; make one for \
             the server (`basicConstraints=CA:FALSE`)"
        }
        _ => "its certificate cannot be used",
    };
    Some(reason)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn generic(source: impl StdError + Send + Sync + 'static) -> Error {
        Error::Generic { store: "S3", source: Box::new(source) }
    }

    #[test]
    fn causes_are_found_wherever_they_are() {
        let slow = Trouble { retry_after: Some(Duration::from_secs(3)), ..Trouble::new(Kind::Throttled, "503") };
        let hidden = io::Error::other(HttpError::new(HttpErrorKind::Decode, slow));
        assert_eq!(sort(&generic(hidden)), Sorted::Again(Kind::Throttled, Some(Duration::from_secs(3))));
        let stalled = HttpError::new(HttpErrorKind::Timeout, io::Error::other("slow"));
        assert_eq!(sort(&generic(stalled)), Sorted::Again(Kind::Stalled, None));
        let no_descriptor = HttpError::new(HttpErrorKind::Connect, io::Error::from_raw_os_error(24));
        assert_eq!(sort(&generic(no_descriptor)), Sorted::Again(Kind::Broken, None));
        assert_eq!(sort(&generic(io::Error::from_raw_os_error(23))), Sorted::Again(Kind::Broken, None));
        assert_eq!(sort(&generic(io::Error::from_raw_os_error(5))), Sorted::Final);
    }

    #[test]
    fn it_is_said_what_is_wrong_with_a_certificate() {
        let of = |error| {
            let source = io::Error::other(rustls::Error::InvalidCertificate(error));
            distrust(&generic(HttpError::new(HttpErrorKind::Connect, source))).unwrap()
        };
        assert!(of(CertificateError::UnknownIssuer).contains("`ca_certificate` in `storage_options`"));
        for (error, said) in [
            (CertificateError::Expired, "has expired"),
            (CertificateError::NotValidYet, "is not valid yet"),
            (CertificateError::NotValidForName, "for another host"),
            (CertificateError::BadSignature, "cannot be used"),
        ] {
            let reason = of(error);
            assert!(reason.contains(said) && !reason.contains("ca_certificate"), "{reason}");
        }
        assert_eq!(distrust(&generic(io::Error::other("nothing known"))), None);
    }

    #[test]
    fn what_would_happen_again_is_final() {
        let source = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let unknown = HttpError::new(HttpErrorKind::Connect, io::Error::other(source));
        assert_eq!(sort(&generic(unknown)), Sorted::Final);
        let nobody = HttpError::new(HttpErrorKind::Connect, NoCredentials { said: "timed out".into() });
        assert_eq!(sort(&generic(nobody)), Sorted::Final);
        assert_eq!(sort(&generic(io::Error::other("nothing known"))), Sorted::Final);
        assert_eq!(sort(&Error::NotFound { path: "x".into(), source: "404".into() }), Sorted::Final);
    }

    #[test]
    fn refusals_are_known_by_status_and_by_name() {
        assert_eq!(sort(&Error::PermissionDenied { path: "x".into(), source: "403".into() }), Sorted::Refused);
        assert_eq!(sort(&generic(io::Error::other("400 Bad Request: <Code>ExpiredToken</Code>"))), Sorted::Refused);
    }
}
