//! Clients of object stores, from locations, options and the environment.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};

use super::StoreKey;
use super::authorized::Authorized;
use super::files::Files;
use super::options;
use super::recover::{CONNECT_TIMEOUT, Client, Connector, Policy, Recovering, STALL_TIMEOUT, causes};
use super::settings::{self, Settings};
use super::traffic::Traffic;
use super::values;
use crate::error::{Error, Result};

/// A body may take long while bytes keep arriving: only a stall ends it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// What clients say of settings that are missing, and their options.
const MISSING: [(&str, &str); 3] = [
    ("Account must be specified", "azure_storage_account_name"),
    ("Missing AccessKeyId", "aws_access_key_id"),
    ("Missing SecretAccessKey", "aws_secret_access_key"),
];

/// Checks the options for the store of `key`.
pub(super) fn check(key: &StoreKey, options: &BTreeMap<String, String>) -> Result<()> {
    match key {
        StoreKey::Local => build(key, options, None, || Unconnected).map(drop),
        _ => {
            let settings = Settings::try_new(key, options)?;
            // Environment variables apply to all stores of a kind: they are read when this one turns out to need them.
            settings.certificate.as_ref().filter(|given| given.is_option()).map(settings::certificates).transpose()?;
            build(key, options, Some(&settings), || Unconnected).map(drop)
        }
    }
}

/// Makes the store of `key`; reads of remote stores retry failures.
pub(super) fn connect(
    key: &StoreKey,
    options: &BTreeMap<String, String>,
    traffic: &Arc<Traffic>,
) -> Result<Arc<dyn ObjectStore>> {
    if *key == StoreKey::Local {
        return build(key, options, None, || Unconnected);
    }
    let Settings { limit, is_hedging, certificate, .. } = Settings::try_new(key, options)?;
    let policy = Policy { traffic: Arc::clone(traffic), limit, is_hedging, root: key.root().to_owned() };
    let connector = Connector { policy: policy.clone(), certificate };
    // A web server is never shown credentials that may be meant for others.
    let is_web = matches!(key, StoreKey::Http(_));
    let (key, of_make) = (key.clone(), options.clone());
    let make = move || build(&key, &of_make, Some(&Settings::try_new(&key, &of_make)?), || connector.clone());
    let client = if is_web { Client::fixed(make()?) } else { Client::try_new(options, Arc::new(make))? };
    Ok(Arc::new(Recovering::new(client, policy)))
}

/// Makes a store with HTTP clients from `connector`; remote ones make each request once.
fn build<C: HttpConnector>(
    key: &StoreKey,
    options: &BTreeMap<String, String>,
    settings: Option<&Settings>,
    connector: impl Fn() -> C,
) -> Result<Arc<dyn ObjectStore>> {
    // Another crate of the process may have installed a provider; any will do.
    drop(rustls::crypto::ring::default_provider().install_default());
    let Some(settings) = settings else {
        if let Some(name) = options.keys().next() {
            return Err(refused(&format!("`{name}` means nothing for local files")));
        }
        return Ok(Arc::new(Files::default()));
    };
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    Ok(match key {
        StoreKey::S3(root) => {
            let builder = AmazonS3Builder::new().with_url(root).with_http_connector(connector());
            let mut builder = builder.with_retry(once);
            for (name, value) in timeouts(settings) {
                builder = builder.with_config(AmazonS3ConfigKey::Client(name), value);
            }
            for (name, value) in told(key, settings)? {
                builder = builder.with_config(name, value);
            }
            let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
                .iter()
                .find_map(|key| builder.get_config_value(key))
                .unwrap_or_default();
            if endpoint.starts_with("http://") {
                builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp), "true");
            }
            Arc::new(builder.build().map_err(|error| unusable(root, &error))?)
        }
        StoreKey::Gcs(root) => {
            let builder = GoogleCloudStorageBuilder::new().with_url(root).with_http_connector(connector());
            let mut builder = builder.with_retry(once);
            // Another variable that the client would read.
            if let Some(path) = filled("SERVICE_ACCOUNT") {
                builder = builder.with_service_account_path(path);
            }
            for (name, value) in timeouts(settings) {
                builder = builder.with_config(GoogleConfigKey::Client(name), value);
            }
            for (name, value) in told(key, settings)? {
                builder = builder.with_config(name, value);
            }
            Arc::new(builder.build().map_err(|error| unusable(root, &error))?)
        }
        StoreKey::Azure(root) => {
            let builder = MicrosoftAzureBuilder::new().with_url(root).with_http_connector(connector());
            let mut builder = builder.with_retry(once);
            // Another variable that the client would read.
            if let Some(url) = filled("IDENTITY_ENDPOINT") {
                builder = builder.with_msi_endpoint(url);
            }
            for (name, value) in timeouts(settings) {
                builder = builder.with_config(AzureConfigKey::Client(name), value);
            }
            for (name, value) in told(key, settings)? {
                builder = builder.with_config(name, value);
            }
            let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint).unwrap_or_default();
            if endpoint.starts_with("http://") {
                builder = builder.with_config(AzureConfigKey::Client(ClientConfigKey::AllowHttp), "true");
            }
            Arc::new(builder.build().map_err(|error| unusable(root, &error))?)
        }
        StoreKey::Http(root) => {
            let connector = Authorized { connector: connector(), value: settings.authorization.clone() };
            let mut builder = HttpBuilder::new().with_url(root).with_http_connector(connector).with_retry(once);
            for (name, value) in timeouts(settings) {
                builder = builder.with_config(name, value);
            }
            if root.starts_with("http://") {
                builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            }
            for (name, value) in told(key, settings)? {
                builder = builder.with_config(name, value);
            }
            Arc::new(builder.build().map_err(|error| unusable(root, &error))?)
        }
        // Local files are handled above, the others where they are opened: none uses such a client.
        StoreKey::Local | StoreKey::Hub(_) | StoreKey::FileSystem(_) => {
            return Err(refused(&format!("`{}` is no store of `object_store`", key.root())));
        }
    })
}

/// Returns the settings from the environment, overridden by the options, each once, in the form that clients take.
///
/// # Errors
///
/// [`Error::Setting`] for options that the store does not have, and for values that clients would accept without
/// checking.
fn told<K: FromStr + AsRef<str> + PartialEq>(key: &StoreKey, settings: &Settings) -> Result<Vec<(K, String)>> {
    let mut said: Vec<(K, String, String)> = variables(key).collect();
    for (name, value) in &settings.rest {
        let known = name.parse().map_err(|_| options::unknown(key, name))?;
        said.push((known, name.clone(), value.clone()));
    }
    let mut told: Vec<(K, String)> = Vec::new();
    // Later settings take precedence.
    for (key, name, value) in said.into_iter().rev() {
        if !told.iter().any(|(other, _)| *other == key) {
            let value = values::checked(&name, key.as_ref(), value)?;
            told.push((key, value));
        }
    }
    // An empty value is none: clients would send an empty token.
    told.retain(|(_, value)| !value.is_empty());
    Ok(told)
}

/// Returns the store's options that the environment sets, by variables with the store's prefix.
fn variables<K: FromStr>(key: &StoreKey) -> impl Iterator<Item = (K, String, String)> {
    let prefix = settings::prefix(key).unwrap_or_default();
    // Options of a web server have no prefix of their own.
    let is_web = matches!(key, StoreKey::Http(_));
    std::env::vars_os().filter_map(move |(name, value)| {
        let name = name.into_string().ok()?;
        let option = name.strip_prefix(prefix)?;
        let key = if is_web { option } else { &name }.to_ascii_lowercase().parse().ok()?;
        Some((key, name, value.into_string().ok().filter(|value| !value.is_empty())?))
    })
}

/// Returns the value of a variable that is not empty.
fn filled(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns our default time-outs. None is longer than a read may take.
fn timeouts(settings: &Settings) -> impl Iterator<Item = (ClientConfigKey, String)> {
    let ours = [
        (ClientConfigKey::Timeout, REQUEST_TIMEOUT),
        (ClientConfigKey::ReadTimeout, STALL_TIMEOUT.min(settings.limit.time)),
        (ClientConfigKey::ConnectTimeout, CONNECT_TIMEOUT.min(settings.limit.time)),
    ];
    ours.into_iter().map(|(key, time)| (key, values::milliseconds(time)))
}

fn refused(reason: &str) -> Error {
    settings::refused(reason.into())
}

fn unusable(root: &str, error: &object_store::Error) -> Error {
    if let Some(refused) = super::setting_in(error) {
        return refused;
    }
    let said = error.to_string();
    if let Some((_, option)) = MISSING.iter().find(|(said_if_missing, _)| said.contains(said_if_missing)) {
        let variable = option.to_ascii_uppercase();
        return refused(&format!("`{option}` is missing for `{root}`, and so is `{variable}` in the environment"));
    }
    let cause = causes(error).last().map(ToString::to_string).filter(|cause| !said.contains(cause));
    let because = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    refused(&format!("no client can be made for `{root}` from them and the environment: {said}{because}"))
}

/// Makes useless clients, to check whether a store can be made from its options: a real one reads all certificates of
/// the system.
#[derive(Debug)]
struct Unconnected;

impl HttpConnector for Unconnected {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Self))
    }
}

impl HttpService for Unconnected {
    fn call<'s, 'f>(&'s self, _: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
    {
        Box::pin(async { Err(HttpError::new(HttpErrorKind::Connect, std::io::Error::other("it is not connected"))) })
    }
}
