//! A store of a dataset, and its connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::ObjectStore;

use super::ahead::Ahead;
use super::hub::{Hub, HubStore};
#[cfg(test)]
use super::preset::Preset;
use super::settings;
use super::traffic::{Known, Traffic};
use super::{Object, StoreKey, Written, clients, file_system};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::io::Io;
use crate::metrics::{Metrics, Place, Stage};
use crate::process::LockOfProcess;
use crate::secrets;

/// Suffixes of options and environment variables that locate a store.
const PLACE_OPTIONS: [&str; 6] =
    ["endpoint", "endpoint_url", "endpoint_url_s3", "account_name", "base_url", "use_emulator"];

/// One store of a dataset: where it is and how to reach it.
///
/// The client is made when first needed, and again in a forked process: sockets are never shared.
pub struct Store {
    key: StoreKey,
    options: BTreeMap<String, String>,
    connection: LockOfProcess<Option<Connection>>,
}

/// A client with its runtime, and the counters of its user.
#[derive(Clone)]
pub struct Connection {
    pub(crate) client: Arc<dyn ObjectStore>,
    pub(crate) io: Arc<Io>,
    pub(crate) metrics: Arc<Metrics>,
    /// The purpose of its requests.
    pub(crate) place: Place,
    /// How many later requests may overtake its own.
    pub(crate) slack: u64,
    /// Where to look before requesting bytes.
    pub(super) ahead: Option<Arc<Ahead>>,
    /// Shared with all readers of the store.
    pub(super) traffic: Arc<Traffic>,
    /// What one more dependent round trip must save, if the user set it.
    pub(super) given_round_trip_bytes: Option<u64>,
    pub(crate) is_local: bool,
    /// Whether the store honours `If-Match` on reads; tags are compared in any case.
    pub(crate) has_preconditions: bool,
    /// Whether the store supports suffix ranges: Azure does not.
    pub(crate) has_suffixes: bool,
}

impl Store {
    /// Checks `options` and keeps them for [`Self::connect`].
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for options that the store does not have or that contradict each other.
    pub(crate) fn try_new(key: StoreKey, options: &BTreeMap<String, String>) -> Result<Self> {
        let options = settings::options_of(&key, options);
        match &key {
            StoreKey::Hub(root) => Hub::check(root, &options)?,
            StoreKey::FileSystem(_) => file_system::check(&options)?,
            _ => clients::check(&key, &options)?,
        }
        settings::round_trip_bytes(&key, &options)?;
        secrets::remember(&options);
        Ok(Self { key, options, connection: LockOfProcess::new() })
    }

    /// Returns the same store for another dataset; they share the client, if there is one.
    pub(crate) fn again(&self) -> Self {
        let connection = LockOfProcess::holding(self.connection.lock().clone());
        Self { key: self.key.clone(), options: self.options.clone(), connection }
    }

    /// Returns a store over an existing client, for tests; its requests do not depend on measurements.
    #[cfg(test)]
    pub(crate) fn of_client(client: Arc<dyn ObjectStore>) -> Self {
        Self::of_client_with(client, Preset::object_storage().unmeasured())
    }

    /// Returns a store over an existing client, for tests.
    #[cfg(test)]
    pub(crate) fn of_client_with(client: Arc<dyn ObjectStore>, preset: Preset) -> Self {
        let connection = Connection::new(client, Io::current().unwrap(), Arc::new(Traffic::new(preset)), false);
        let key = StoreKey::S3("s3://memory".into());
        Self { key, options: BTreeMap::new(), connection: LockOfProcess::holding(Some(connection)) }
    }

    /// Returns which store this is.
    pub(crate) fn key(&self) -> &StoreKey {
        &self.key
    }

    /// Returns what is known about it, if this process has read it.
    pub(crate) fn known(&self) -> Option<Known> {
        self.connection.lock().as_ref().map(Connection::known)
    }

    /// Returns the options it was made with; they may contain secrets.
    pub(crate) fn options(&self) -> &BTreeMap<String, String> {
        &self.options
    }

    /// Returns the name of a dataset's repository on the Hub, and the token it was opened with; an empty one means none.
    pub(crate) fn hub_token(&self) -> Option<(&str, &str)> {
        let StoreKey::Hub(root) = &self.key else { return None };
        let name = root.strip_prefix("hf://datasets/")?.split('@').next()?;
        Some((name, self.options.get("hf_token")?.as_str()))
    }

    /// Returns what identifies this store, for hashing: its location, never its user.
    pub(crate) fn identity(&self) -> Vec<String> {
        let is_place = |name: &str| {
            let name = name.to_ascii_lowercase();
            PLACE_OPTIONS.iter().any(|place| name.ends_with(place))
        };
        // Non-Unicode values are not options.
        let environment =
            std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        let mut places: Vec<String> = environment
            .filter(|(name, _)| ["AWS_", "AZURE_", "GOOGLE_", "HF_"].iter().any(|prefix| name.starts_with(prefix)))
            .chain(self.options.clone())
            .filter(|(name, _)| is_place(name))
            .map(|(name, value)| format!("{}={value}", name.to_ascii_lowercase()))
            .collect();
        places.sort_unstable();
        let key = match &self.key {
            // Identical files at two commits have the same tags.
            StoreKey::Hub(root) => root.split('@').next().unwrap_or(root).to_owned(),
            key => format!("{key:?}"),
        };
        if self.key == StoreKey::Local { vec![key] } else { [vec![key], places].concat() }
    }

    /// Returns the client of this process.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if the options do not make a client, [`Error::Thread`] if no runtime can be started.
    pub fn connect(&self) -> Result<Connection> {
        let mut connection = self.connection.lock();
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let (traffic, io) = (Traffic::current(&self.key, &self.options), Io::current()?);
        let client = match &self.key {
            StoreKey::Hub(root) => HubStore::recovering(Hub::current(root, &self.options, &traffic)?),
            key @ StoreKey::FileSystem(_) => file_system::connect(key, &self.options, &traffic, &io)?,
            key => clients::connect(key, &self.options, &traffic)?,
        };
        let made = Connection {
            has_suffixes: has_suffixes(&self.key),
            given_round_trip_bytes: settings::round_trip_bytes(&self.key, &self.options)?,
            ..Connection::new(client, io, traffic, self.key == StoreKey::Local)
        };
        *connection = Some(made.clone());
        Ok(made)
    }
}

/// Returns whether a store supports suffix ranges, for objects of unknown size. Azure does not, not even by web URLs.
fn has_suffixes(key: &StoreKey) -> bool {
    match key {
        StoreKey::Azure(_) | StoreKey::FileSystem(_) => false,
        StoreKey::Http(root) => ![".blob.core.", ".blob.storage.azure.net"].iter().any(|azure| root.contains(azure)),
        _ => true,
    }
}

/// Returns whether a URL's query is a signature of Azure (SAS), whose stores have other hosts, too: behind names of their
/// users' own, and as emulators.
fn is_of_azure(written: &Written) -> bool {
    let has = |name: &str| query_of(written).any(|pair| pair.starts_with(name));
    has("sig=") && has("sv=")
}

fn query_of(written: &Written) -> impl Iterator<Item = &str> {
    written.as_str().split_once('?').into_iter().flat_map(|(_, query)| query.split('&'))
}

impl Connection {
    fn new(client: Arc<dyn ObjectStore>, io: Arc<Io>, traffic: Arc<Traffic>, is_local: bool) -> Self {
        Self {
            client,
            io,
            metrics: Arc::new(Metrics::default()),
            place: Place { stage: Stage::Payload, step: 0 },
            slack: 0,
            ahead: None,
            traffic,
            given_round_trip_bytes: None,
            is_local,
            has_preconditions: true,
            has_suffixes: true,
        }
    }

    /// Returns whether the end of an object must not be requested before its size is known, although its store supports
    /// suffix ranges otherwise.
    pub(crate) fn must_measure(&self, object: &Object) -> bool {
        self.has_suffixes && object.size_bytes.is_none() && object.written.as_ref().is_some_and(is_of_azure)
    }

    /// Returns the connection for requests of `stage` that depend on no others of it.
    pub(crate) fn at(&self, stage: Stage) -> Self {
        Self { place: Place { stage, step: 0 }, ..self.clone() }
    }

    /// Returns the connection for requests that depend on responses to some of this one's.
    pub(crate) fn then(&self) -> Self {
        Self { place: Place { step: self.place.step + 1, ..self.place }, ..self.clone() }
    }

    /// Returns the connection for requests that are needed after about `slack` others.
    pub(crate) fn with_slack(&self, slack: u64) -> Self {
        Self { slack, ..self.clone() }
    }

    /// Returns the connection for reads that use what was requested ahead.
    pub(crate) fn with_ahead(&self, ahead: Option<&Arc<Ahead>>) -> Self {
        Self { ahead: ahead.cloned(), ..self.clone() }
    }

    /// Returns the connection with its requests counted in `metrics`.
    pub(crate) fn with_metrics(&self, metrics: &Arc<Metrics>) -> Self {
        Self { metrics: Arc::clone(metrics), ..self.clone() }
    }

    /// Returns what is known about the store now.
    pub fn known(&self) -> Known {
        self.traffic.known()
    }

    /// Returns how many bytes one more dependent round trip must save.
    pub(crate) fn round_trip_bytes(&self) -> u64 {
        self.given_round_trip_bytes.unwrap_or_else(|| self.traffic.round_trip_bytes())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Options may be secret, so only their names are shown.
        let names: Vec<&String> = self.options.keys().collect();
        f.debug_struct("Store").field("key", &self.key).field("options", &names).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("is_local", &self.is_local).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = options(&[("aws_secret_access_key", "s3cr3t"), ("aws_access_key_id", "k3y")]);
        let store = Store::try_new(StoreKey::S3("s3://bucket".into()), &options).unwrap();
        let shown = format!("{store:?}");
        assert!(!shown.contains("s3cr3t") && !shown.contains("k3y") && shown.contains("aws_secret_access_key"));
    }

    #[test]
    fn the_end_of_an_object_is_not_asked_of_azure() {
        let of_web = |root: &str| has_suffixes(&StoreKey::Http(root.into()));
        assert!(of_web("https://example.org") && has_suffixes(&StoreKey::S3("s3://bucket".into())));
        assert!(!of_web("https://name.blob.core.windows.net") && !of_web("https://name.z1.blob.storage.azure.net"));
        assert!(!has_suffixes(&StoreKey::Azure("az://container".into())));
    }

    #[test]
    fn a_signature_of_azure_tells_its_store_by_any_name() {
        let is_of_azure = |query: &str| is_of_azure(&Written::try_new(&format!("/c/x.parquet{query}")).unwrap());
        assert!(is_of_azure("?sv=2026-01-01&sr=b&sp=r&sig=abc%3D") && is_of_azure("?sig=abc&sv=2026-01-01"));
        for query in ["", "?sig=abc", "?sv=2026-01-01", "?X-Amz-Signature=abc&sv=1", "?id=1"] {
            assert!(!is_of_azure(query), "{query}");
        }
    }

    #[test]
    fn a_store_is_identified_by_where_it_is_and_not_by_who_asks() {
        let identity = |pairs: &[(&str, &str)]| {
            Store::try_new(StoreKey::S3("s3://bucket".into()), &options(pairs)).unwrap().identity()
        };
        let ours = [("aws_secret_access_key", "s3cr3t"), ("aws_access_key_id", "k3y")];
        let theirs = [("aws_skip_signature", "true"), ("aws_region", "here")];
        let at = |place, options: &[(&'static str, &'static str)]| {
            identity(&[&[("aws_endpoint_url", place)], options].concat())
        };
        assert_eq!(at("http://here:1", &ours), at("http://here:1", &theirs));
        assert_ne!(at("http://here:1", &ours), at("http://there:1", &ours));
        assert!(!at("http://here:1", &ours).concat().contains("s3cr3t"));
    }

    #[test]
    fn an_option_that_no_store_has_is_named() {
        for key in [StoreKey::S3("s3://bucket".into()), StoreKey::Http("http://host".into()), StoreKey::Local] {
            let error = Store::try_new(key, &options(&[("no_such_option", "1")])).unwrap_err().to_string();
            assert!(error.contains("no_such_option"), "{error}");
        }
    }

    #[test]
    fn an_option_that_is_nearly_right_is_corrected() {
        let refused = |key, name| Store::try_new(key, &options(&[(name, "1")])).unwrap_err().to_string();
        let s3 = || StoreKey::S3("s3://bucket".into());
        assert!(refused(s3(), "acess_key_id").contains("`access_key_id`"));
        assert!(refused(s3(), "endpont").contains("`endpoint`"));
        let http = refused(StoreKey::Http("https://host".into()), "time_out");
        assert!(http.contains("`timeout`") && !http.contains("aws"), "{http}");
    }
}
