//! Lists objects and reads their bytes, wherever they are stored.
//!
//! [`uri`] parses locations, [`store`] and [`clients`] make clients, from [`options`] that are dealt out to the stores
//! that have them, [`authorized`] ones for web servers; [`list`] finds objects, on disk by a [`walk`],
//! [`split`] names their splits, [`coalesce`] plans requests and [`read`] makes them, into prepared [`room`], some of
//! them [`ahead`] of need; what the page cache has is read at once by [`cached`]. [`hub`] is the store of the Hugging
//! Face Hub, [`files`] that of local files, [`file_system`] supports user-supplied ones.
//!
//! All requests to one store pass through its [`traffic`]: a [`queue`] in order of need, whose concurrency the
//! [`limiter`] adapts to the store. [`measure`] observes how fast responses arrive, [`preset`] has the initial values,
//! and [`recover`] retries failed requests, within the [`settings`].

mod ahead;
mod authorized;
mod cached;
mod clients;
mod coalesce;
mod file_system;
mod files;
mod hub;
mod in_use;
mod limiter;
mod list;
mod measure;
mod options;
mod preset;
mod queue;
mod read;
#[cfg(test)]
pub(crate) mod recording;
mod recover;
mod room;
mod settings;
mod split;
mod store;
mod tables;
#[cfg(test)]
mod tests;
mod traffic;
mod uri;
mod values;
mod walk;
mod whole;

pub(crate) use self::ahead::Ahead;
pub(crate) use self::cached::{CachedFile, Missed, read_cached};
pub(crate) use self::coalesce::{coalesce, num_bytes, part_of, planned};
pub use self::file_system::{
    FileAnswer, FileCall, FileError, FileErrorKind, FileInfo, FileReply, FileSystem, OpenFileSystem, set_file_systems,
};
pub(crate) use self::files::status_changed;
pub(crate) use self::hub::token_of_user;
pub(crate) use self::list::{Listed, list, list_below};
pub(crate) use self::options::{share, share_unseen};
pub(crate) use self::preset::Preset;
pub(crate) use self::read::{is_unsatisfiable, measure, read_ranges, read_suffix};
pub(crate) use self::recover::Written;
pub(crate) use self::settings::AS_JSON;
pub use self::settings::{bytes_of, duration};
pub(crate) use self::split::infer as infer_splits;
pub use self::store::{Connection, Store};
pub use self::tables::refuse_tables;
pub use self::traffic::Known;
pub(crate) use self::uri::{Location, StoreKey};
pub use self::whole::WholeObject;

use std::io::ErrorKind;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;

use self::recover::{Impatient, Kind, NoCredentials, Trouble, causes, distrust, is_out_of_descriptors, is_refusal};
use crate::error::{ARCHIVED, Error};

/// One key in object storage, as it was when the dataset was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The key, within its store.
    pub path: Path,
    /// The key as people write it; never with credentials.
    pub url: String,
    /// What is sent instead of the key, if a web URL has more than that: objects that differ in it are distinct.
    pub(crate) written: Option<Written>,
    /// Its size, once known.
    pub size_bytes: Option<u64>,
    /// Its entity tag, once known; if the store has none, the time of its last change, if reported.
    pub e_tag: Option<String>,
}

/// Prefix of a tag that is the time of the last change: a weak one, of whole seconds.
pub(crate) const CHANGED: &str = "W/\"changed ";

impl Object {
    /// Returns the entity tag, if the store has one.
    pub(crate) fn entity_tag(&self) -> Option<&str> {
        self.e_tag.as_deref().filter(|tag| !tag.starts_with(CHANGED))
    }
}

/// Converts a store's error about an object into one of ours, according to its kind.
pub(crate) fn error(url: &str, source: object_store::Error) -> Error {
    let url = url.to_owned();
    let source = match source {
        // Clients report every 409 as this, whatever was requested.
        object_store::Error::AlreadyExists { source, .. } => object_store::Error::Generic { store: "store", source },
        other => other,
    };
    let said = source.to_string();
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match source {
        object_store::Error::NotFound { .. } => Error::NotFound { url, source: Some(Box::new(source)) },
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Error::PermissionDenied { url, source: Box::new(source) }
        }
        // First: neither a setting nor an error of a metadata service says anything about objects.
        _ if let Some(refused) = setting_in(&source) => refused,
        _ if causes(&source).any(|cause| cause.is::<NoCredentials>()) => {
            let hint = about_profile(&url);
            Error::NoCredentials { url, hint, source: Box::new(source) }
        }
        // Listing reports every status as a generic error.
        _ if says(&["404 Not Found", "410 Gone", "NoSuchBucket"]) => {
            Error::NotFound { url, source: Some(Box::new(source)) }
        }
        _ if is_refusal(&said) || says(&["Permission denied (os error"]) || says(&ARCHIVED) => {
            Error::PermissionDenied { url, source: Box::new(source) }
        }
        _ if let Some(reason) = said_by_file_system(&source, FileErrorKind::Unusable) => {
            Error::Setting { name: "source", reason }
        }
        _ if let Some(reason) = said_by_file_system(&source, FileErrorKind::Stale) => Error::StaleCache { url, reason },
        // No object is at fault for these, nor the time that was waited.
        _ if let Some(reason) = distrust(&source) => Error::Untrusted { url, reason, source: Box::new(source) },
        _ if is_out_of_descriptors(&source) => Error::NoDescriptors { url, source: Box::new(source) },
        _ if let Some((limit, option)) = patience_of(&source) => {
            Error::Impatient { url, range: None, limit, option, source: Box::new(source) }
        }
        _ if is_timeout(&source) => Error::TimedOut { url, source: Box::new(source) },
        _ => Error::Store { url, source: Box::new(source) },
    }
}

/// Returns the error of a setting that proved unusable when it was needed, if that is what `error` is.
fn setting_in(error: &object_store::Error) -> Option<Error> {
    causes(error).find_map(|cause| match cause.downcast_ref() {
        Some(Error::Setting { name, reason }) => Some(Error::Setting { name, reason: reason.clone() }),
        _ => None,
    })
}

/// Returns what is said of missing credentials to those who name a profile.
fn about_profile(url: &str) -> &'static str {
    if url.starts_with("s3://") && std::env::var_os("AWS_PROFILE").is_some() {
        "; profiles (`AWS_PROFILE`) are not read: `eval \"$(aws configure export-credentials --format env)\"` puts one \
         into the environment"
    } else {
        ""
    }
}

/// Returns how long a store was retried, and the option that sets this, if that is what `error` is.
fn patience_of(error: &object_store::Error) -> Option<(Duration, &'static str)> {
    causes(error).find_map(|cause| cause.downcast_ref::<Impatient>()).map(|found| (found.limit, found.option))
}

/// Returns what a file system said, if `error` is of that kind.
fn said_by_file_system(error: &object_store::Error, kind: FileErrorKind) -> Option<String> {
    let mut found = causes(error).filter_map(|cause| cause.downcast_ref::<FileError>());
    found.find(|error| error.kind == kind).map(ToString::to_string)
}

/// Returns whether `error` or any of its causes is a timeout.
fn is_timeout(error: &object_store::Error) -> bool {
    causes(error).any(|cause| {
        let by_client = cause.downcast_ref::<HttpError>().is_some_and(|error| error.kind() == HttpErrorKind::Timeout);
        let by_system = cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::TimedOut);
        let by_us = cause.downcast_ref::<Trouble>().is_some_and(|trouble| trouble.kind == Kind::Stalled);
        let by_others = cause.downcast_ref::<FileError>().is_some_and(|error| error.kind == FileErrorKind::Stalled);
        by_client || by_system || by_us || by_others
    })
}
