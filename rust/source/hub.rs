//! The Hugging Face Hub as an object store: repositories at a commit, and buckets.
//!
//! The Hub does not send bytes: it resolves a file to a signed URL elsewhere, valid for about an hour. Each file is
//! resolved once in the lifetime of its URL, by the first request that needs it ([`urls`]); ranges are read from there
//! ([`fetch`], [`body`]), once each: failures are handled [above](super::recover). Requests to the Hub itself wait
//! together as long as it asks them to ([`pace`]). The token is sent only to the Hub's own origin ([`settings`]).
//!
//! Names are resolved to files, and branches to commits, before a store is opened: it never calls the Hub's API.

mod body;
mod fetch;
mod pace;
mod settings;
#[cfg(test)]
mod tests;
mod trouble;
mod urls;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use self::fetch::Asked;
use self::pace::{Pace, Patience};
use self::settings::Settings;
pub(crate) use self::settings::token_of_user;
use self::urls::Urls;
use super::in_use::InUse;
use super::recover::{Client, InTurn, Kind, Notes, Policy, Recovering, by_environment, said};
use super::settings::refused;
use super::traffic::Traffic;
use crate::error::{Error, Result};
use crate::secrets;

/// A repository at a commit, or a bucket.
pub(super) struct Hub {
    settings: Settings,
    /// The options that it was opened with.
    options: BTreeMap<String, String>,
    /// Reads signed URLs; follows redirects, and has no token.
    client: reqwest::Client,
    /// Asks the Hub, whose redirects are its answers.
    asking: reqwest::Client,
    pace: Arc<Pace>,
    urls: Urls,
    traffic: Arc<Traffic>,
}

/// A root with its options, and the token from these or from a login: users with different access have separate stores.
type Key = (String, BTreeMap<String, String>, Option<String>);

/// The stores that this process is reading.
static CURRENT: InUse<Key, Hub> = InUse::new();

impl Hub {
    /// Returns whether its stores have an option.
    pub(super) fn has(name: &str) -> bool {
        settings::OPTIONS.contains(&name)
    }

    /// Checks the options of the store `root`.
    pub(super) fn check(root: &str, options: &BTreeMap<String, String>) -> Result<()> {
        Settings::try_new(root, options).map(drop)
    }

    /// Returns this process's store `root`, shared by all its readers, with what was resolved. After a fork, the child
    /// makes its own.
    pub(super) fn current(root: &str, options: &BTreeMap<String, String>, traffic: &Arc<Traffic>) -> Result<Arc<Self>> {
        let settings = Settings::try_new(root, options)?;
        let key = (root.to_owned(), options.clone(), settings.token.clone());
        CURRENT.try_get(key, || Self::try_new(root, settings, options.clone(), Arc::clone(traffic)))
    }

    fn try_new(
        root: &str,
        settings: Settings,
        options: BTreeMap<String, String>,
        traffic: Arc<Traffic>,
    ) -> Result<Self> {
        // Another crate of the process may have installed a provider; any will do.
        drop(rustls::crypto::ring::default_provider().install_default());
        // It may come from a login.
        let token = settings.token.iter().map(|token| ("hf_token".to_owned(), token.clone()));
        secrets::remember(&token.collect());
        let client = |redirects| {
            let builder = reqwest::Client::builder()
                .connect_timeout(settings.connect_timeout)
                .read_timeout(settings.read_timeout)
                .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Arc::new(InTurn::default()))
                .tls_certs_merge(settings.certificates.iter().cloned())
                .redirect(redirects)
                // The referring URL is signed.
                .referer(false);
            let proxied = match &settings.proxy_url {
                Some(url) => reqwest::Proxy::all(url).map(|proxy| builder.proxy(proxy)),
                None => Ok(by_environment(builder)),
            };
            proxied.and_then(reqwest::ClientBuilder::build).map_err(|error| {
                let reason = format!("no client can be made from them for `{root}`: {}", said(&error.without_url()));
                Error::Setting { name: "storage_options", reason }
            })
        };
        let asking = client(reqwest::redirect::Policy::none())?;
        let client = client(reqwest::redirect::Policy::limited(4))?;
        let pace = Pace::current(settings.origin());
        Ok(Self { settings, options, client, asking, pace, urls: Urls::default(), traffic })
    }

    /// Returns the store for the token that the environment or a login names now.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if it is the same one, or if this store's token was given explicitly.
    fn renewed(&self) -> Result<Arc<Self>> {
        let Settings { root, token, is_of_user, .. } = &self.settings;
        let renewed = token_of_user().map(|token| token.trim().to_owned()).unwrap_or_default();
        if !is_of_user || token.as_deref().unwrap_or_default() == renewed {
            return Err(refused("the token is the one that was refused".into()));
        }
        let mut options = self.options.clone();
        options.insert("hf_token".to_owned(), renewed);
        Self::current(root, &options, &self.traffic)
    }

    fn policy(&self) -> Policy {
        let Settings { limit, is_hedging, root, .. } = &self.settings;
        Policy { traffic: Arc::clone(&self.traffic), limit: *limit, is_hedging: *is_hedging, root: root.clone() }
    }

    /// Counts a repeated request to the Hub, and warns of the first.
    fn asks_again(&self, kind: Kind, said: &str, patience: &Patience) {
        patience.notes.again(kind);
        self.policy().tell(kind, said);
    }
}

/// The store as an [`ObjectStore`].
#[derive(Debug, Clone)]
pub(super) struct HubStore(pub(super) Arc<Hub>);

impl HubStore {
    /// Returns the store of `hub`, with reads that retry failures, and use a new token if one is refused.
    pub(super) fn recovering(hub: Arc<Hub>) -> Arc<dyn ObjectStore> {
        let (policy, latest) = (hub.policy(), Mutex::new(Arc::clone(&hub)));
        let again = move || {
            let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
            *latest = latest.renewed()?;
            Ok(Arc::new(Self(Arc::clone(&latest))) as Arc<dyn ObjectStore>)
        };
        Arc::new(Recovering::new(Client::renewed(Arc::new(Self(hub)), Arc::new(again)), policy))
    }
}

#[async_trait::async_trait]
impl ObjectStore for HubStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let Self(hub) = self;
        let asked = Asked { path: location.clone(), range: options.range, if_match: options.if_match };
        let notes = options.extensions.get::<Notes>().cloned().unwrap_or_default();
        let opened = fetch::open(hub, &asked, &mut Patience::new(hub.settings.limit, notes)).await?;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: Default::default(),
            size: opened.size,
            e_tag: opened.e_tag.clone(),
            version: None,
        };
        let range = opened.range.clone();
        let payload = if options.head {
            GetResultPayload::Stream(stream::empty().boxed())
        } else {
            GetResultPayload::Stream(body::stream(opened))
        };
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        Err(not_supported("writes"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(not_supported("writes"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        stream::iter([Err(not_supported("deletes"))]).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        stream::iter([Err(not_supported("lists"))]).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(not_supported("lists"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(not_supported("copies"))
    }
}

fn not_supported(what: &str) -> object_store::Error {
    let source = format!("the Hub's files are read here, nothing {what}; `huggingface_hub` does all else").into();
    object_store::Error::NotSupported { source }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl fmt::Display for HubStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({})", self.0.settings.root)
    }
}
