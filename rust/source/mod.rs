//! Lists objects and reads their bytes, wherever they lie.
//!
//! [`uri`] understands text, [`store`] builds clients, [`list`] finds objects, [`split`] names their
//! splits, [`coalesce`] plans requests and [`read`] makes them, some of them [`ahead`] of need. [`hub`] is the store of
//! the Hugging Face Hub.
//!
//! All requests to one store pass through its [`traffic`]: a [`queue`] in the order of need, which the [`limiter`] lets
//! through as fast as the store likes. [`watch`] sees refusals, [`measure`] how fast answers come, and [`preset`] says
//! what counts before anything is known.

mod ahead;
mod coalesce;
mod hub;
mod limiter;
mod list;
mod measure;
mod preset;
mod queue;
mod read;
#[cfg(test)]
pub(crate) mod recording;
mod split;
mod store;
#[cfg(test)]
mod tests;
mod traffic;
mod uri;
mod watch;
mod whole;

pub(crate) use self::ahead::Ahead;
pub(crate) use self::coalesce::{coalesce, planned};
pub(crate) use self::list::{Listed, list, list_below};
pub(crate) use self::preset::Preset;
pub(crate) use self::read::{read_ranges, read_suffix};
pub(crate) use self::split::infer as infer_splits;
pub use self::store::{Connection, Store};
pub use self::traffic::Known;
pub(crate) use self::uri::{Location, StoreKey};
pub use self::whole::WholeObject;

use std::io::ErrorKind;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;

use crate::error::Error;

/// One key in object storage, as it was when the dataset was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The key, within its store.
    pub path: Path,
    /// The key as people write it; never with credentials.
    pub url: String,
    /// Its size, once known.
    pub size_bytes: Option<u64>,
    /// Its entity tag, once known, where the store has them.
    pub e_tag: Option<String>,
}

/// Turns a store's error into ours, which says what kind it is and of which object.
pub(crate) fn error(url: &str, source: object_store::Error) -> Error {
    let url = url.to_owned();
    let said = source.to_string();
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match source {
        object_store::Error::NotFound { .. } => Error::NotFound { url, source: Some(Box::new(source)) },
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Error::PermissionDenied { url, source: Box::new(source) }
        }
        // Listing reports every status as a generic error.
        _ if says(&["404 Not Found", "NoSuchBucket"]) => Error::NotFound { url, source: Some(Box::new(source)) },
        _ if says(&["403 Forbidden", "401 Unauthorized", "Permission denied (os error"]) => {
            Error::PermissionDenied { url, source: Box::new(source) }
        }
        _ if let Some(limit) = patience_of(&source) => Error::Impatient { url, limit, source: Box::new(source) },
        _ if is_timeout(&source) => Error::TimedOut { url, source: Box::new(source) },
        _ => Error::Store { url, source: Box::new(source) },
    }
}

/// Returns how long a Hub was asked in vain, if that is what `error` is.
fn patience_of(error: &object_store::Error) -> Option<Duration> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // An error of the system hides the one that it was made of from `source`.
        let of_system = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(impatient) = of_system.and_then(|error| error.downcast_ref::<hub::Impatient>()) {
            return Some(impatient.limit);
        }
        cause = error.source();
    }
    None
}

/// Returns whether time ran out, as far down as the causes of `error` go.
fn is_timeout(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let by_client = error.downcast_ref::<HttpError>().is_some_and(|error| error.kind() == HttpErrorKind::Timeout);
        let by_system = error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::TimedOut);
        if by_client || by_system {
            return true;
        }
        cause = error.source();
    }
    false
}
