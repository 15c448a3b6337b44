//! Which store has which option, and what else a name may have meant.

use std::collections::BTreeMap;

use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use object_store::ClientConfigKey;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use super::StoreKey;
use super::hub::Hub;
use super::settings::{AS_JSON, AUTHORIZATION, CA_CERTIFICATE, HEDGE, RETRY_FOR, ROUND_TRIP_BYTES, refused};
use crate::error::{Error, Result};

/// Options that may have been meant by an unknown name.
const COMMON_OPTIONS: [&str; 31] = [
    "access_key_id",
    "account_key",
    "account_name",
    "allow_http",
    "allow_invalid_certificates",
    AUTHORIZATION,
    "aws_access_key_id",
    "aws_endpoint_url",
    "aws_region",
    "aws_request_payer",
    "aws_secret_access_key",
    "aws_session_token",
    "azure_storage_account_key",
    "azure_storage_account_name",
    "azure_storage_sas_token",
    "connect_timeout",
    "endpoint",
    "endpoint_url",
    "google_service_account",
    "google_service_account_key",
    "proxy_url",
    "read_timeout",
    "region",
    "request_payer",
    "sas_token",
    "secret_access_key",
    "service_account_key",
    "session_token",
    "skip_signature",
    "timeout",
    "virtual_hosted_style_request",
];

/// Options of `s3fs`, `adlfs` and `gcsfs` (used by `datasets`), of `boto3`, `pyarrow`, `pandas` and `aiohttp`, and
/// their names here.
const OF_OTHERS: [(&str, &[&str]); 35] = [
    ("access_key", &["aws_access_key_id"]),
    ("account_host", &["azure_storage_endpoint"]),
    ("account_url", &["azure_storage_endpoint"]),
    ("anon", &["aws_skip_signature"]),
    ("anon", &["azure_skip_signature"]),
    ("anon", &["google_skip_signature"]),
    ("anonymous", &["aws_skip_signature"]),
    ("anonymous", &["google_skip_signature"]),
    ("auth", &[AUTHORIZATION]),
    ("bearer_token", &[AUTHORIZATION]),
    ("client_kwargs", &["aws_endpoint_url"]),
    ("client_kwargs", &[AUTHORIZATION]),
    ("connection_string", &["azure_storage_account_name", "azure_storage_account_key"]),
    ("credential", &["azure_storage_account_key", "azure_storage_sas_token"]),
    ("default_headers", &[AUTHORIZATION]),
    ("endpoint_override", &["aws_endpoint_url"]),
    ("endpoint_override", &["google_base_url"]),
    ("endpoint_url", &["azure_storage_endpoint"]),
    ("endpoint_url", &["google_base_url"]),
    ("gcs_base_url", &["google_base_url"]),
    ("headers", &[AUTHORIZATION]),
    ("key", &["aws_access_key_id"]),
    ("password", &[AUTHORIZATION]),
    ("region_name", &["aws_region"]),
    ("requester_pays", &["aws_request_payer"]),
    ("secret", &["aws_secret_access_key"]),
    ("secret_key", &["aws_secret_access_key"]),
    ("token", &["google_service_account", "google_bearer_token"]),
    ("token", &[AUTHORIZATION]),
    ("url_style", &["aws_virtual_hosted_style_request"]),
    ("use_ssl", &["aws_endpoint_url"]),
    ("user", &[AUTHORIZATION]),
    ("username", &[AUTHORIZATION]),
    ("verify", &[CA_CERTIFICATE]),
    ("verify_ssl", &[CA_CERTIFICATE]),
];

/// Options by which others choose a profile of `~/.aws`.
const PROFILES: [&str; 3] = ["aws_profile", "profile", "profile_name"];

/// Returns the options for `key`, one of the `stores` of a dataset: what only others have is not for it.
///
/// # Errors
///
/// [`Error::Setting`] for an option that no store has, and for [`AUTHORIZATION`] if several web servers would see it.
pub(crate) fn share(
    key: &StoreKey,
    stores: &[&StoreKey],
    options: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let is_system = |store: &&StoreKey| matches!(store, StoreKey::FileSystem(_));
    let mut shared = BTreeMap::new();
    for (name, value) in options {
        let plain = plain(name);
        let mut web = stores.iter().filter(|store| matches!(store, StoreKey::Http(_)) && **store != key);
        if plain == AUTHORIZATION
            && matches!(key, StoreKey::Http(_))
            && let Some(other) = web.next()
        {
            let (this, other) = (key.root(), other.root());
            let reason = format!("`{AUTHORIZATION}` is for one server, and would be sent to `{this}` and `{other}`");
            return Err(refused(format!("{reason}; open their files separately")));
        }
        let is_known = stores.iter().any(|store| has(store, &plain));
        // Those of file systems have any names.
        if !is_known && !stores.iter().any(is_system) {
            let named = stores.iter().find(|store| !meant(store, &plain).is_empty()).or(stores.first());
            return Err(unknown(named.copied().unwrap_or(key), &plain));
        }
        if has(key, &plain) || !is_known && is_system(&key) {
            shared.insert(name.clone(), value.clone());
        }
    }
    Ok(shared)
}

/// Returns the options for an object at `key` that names other stores, which some of the options may be meant for.
pub(crate) fn share_unseen(key: &StoreKey, options: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const OTHERS: [fn(String) -> StoreKey; 5] =
        [StoreKey::S3, StoreKey::Gcs, StoreKey::Azure, StoreKey::Http, StoreKey::Hub];
    let is_of_another = |name: &str| OTHERS.iter().any(|other| has(&other(String::new()), name));
    let is_for_it = |name: &str| has(key, name) || !is_of_another(name);
    let for_it = options.iter().filter(|(name, _)| is_for_it(&plain(name)));
    for_it.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the error for an option that a store does not have.
pub(super) fn unknown(key: &StoreKey, name: &str) -> Error {
    if let StoreKey::Hub(root) = key
        && let Err(refused) = Hub::check(root, &BTreeMap::from([(name.to_owned(), String::new())]))
    {
        return refused;
    }
    let hint = match meant(key, name) {
        _ if matches!(key, StoreKey::S3(_)) && PROFILES.contains(&name) => {
            "profiles are not read: `eval \"$(aws configure export-credentials --profile NAME --format env)\"` puts one \
             into the environment"
                .to_owned()
        }
        near if near.is_empty() => "names are those of the `object_store` crate".to_owned(),
        near if of_others(key, name).is_some() => format!("here it is `{}`", near.join("`, `")),
        near => format!("did you mean `{}`?", near.join("`, `")),
    };
    refused(format!("`{name}` is not an option of `{}`; {hint}", key.root()))
}

/// Returns what may have been meant by an option that a store does not have.
fn meant(key: &StoreKey, name: &str) -> Vec<&'static str> {
    if let Some((_, ours)) = of_others(key, name) {
        return ours.to_vec();
    }
    let is_like = |known: &&str| normalized_levenshtein(known, name) > 0.6;
    let ours = [RETRY_FOR, HEDGE, ROUND_TRIP_BYTES, CA_CERTIFICATE];
    COMMON_OPTIONS.into_iter().chain(ours).filter(is_like).filter(|known| has(key, known)).collect()
}

fn of_others(key: &StoreKey, name: &str) -> Option<(&'static str, &'static [&'static str])> {
    OF_OTHERS.into_iter().find(|(theirs, ours)| *theirs == name && has(key, ours[0]))
}

/// Returns whether a store has an option; a file system may have any others.
fn has(key: &StoreKey, name: &str) -> bool {
    let is_ours = || [RETRY_FOR, HEDGE, ROUND_TRIP_BYTES].contains(&name);
    let is_of_client = || is_ours() || name == CA_CERTIFICATE;
    match key {
        StoreKey::Local => false,
        StoreKey::S3(_) => is_of_client() || name.parse::<AmazonS3ConfigKey>().is_ok(),
        StoreKey::Gcs(_) => is_of_client() || name.parse::<GoogleConfigKey>().is_ok(),
        StoreKey::Azure(_) => is_of_client() || name.parse::<AzureConfigKey>().is_ok(),
        StoreKey::Http(_) => is_of_client() || name == AUTHORIZATION || name.parse::<ClientConfigKey>().is_ok(),
        StoreKey::Hub(_) => Hub::has(name),
        StoreKey::FileSystem(_) => is_ours(),
    }
}

/// Returns the name of an option in small letters, however its value is given.
fn plain(name: &str) -> String {
    name.strip_suffix(AS_JSON).unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores() -> [StoreKey; 3] {
        [
            StoreKey::Azure("az://container".into()),
            StoreKey::S3("s3://bucket".into()),
            StoreKey::FileSystem("memory://".into()),
        ]
    }

    fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn shared(key: &StoreKey, stores: &[StoreKey], pairs: &[(&str, &str)]) -> Result<Vec<String>> {
        let stores: Vec<&StoreKey> = stores.iter().collect();
        Ok(share(key, &stores, &options(pairs))?.into_keys().collect())
    }

    #[test]
    fn each_store_gets_its_own_options() {
        let given = [
            ("AZURE_STORAGE_ACCOUNT_KEY", "a"),
            ("aws_region", "b"),
            ("aws_skip_signature", "True"),
            ("aws_skip_signature as JSON", "true"),
            ("retry_for", "1 s"),
            ("port", "22"),
            ("port as JSON", "22"),
        ];
        let stores = stores();
        let of = |key: &StoreKey| shared(key, &stores, &given).unwrap();
        assert_eq!(of(&stores[0]), ["AZURE_STORAGE_ACCOUNT_KEY", "retry_for"]);
        assert_eq!(of(&stores[1]), ["aws_region", "aws_skip_signature", "aws_skip_signature as JSON", "retry_for"]);
        assert_eq!(of(&stores[2]), ["port", "port as JSON", "retry_for"]);
    }

    #[test]
    fn what_no_store_has_is_refused_for_the_one_that_is_nearest() {
        let stores = &stores()[..2];
        let refused = |name| shared(&stores[0], stores, &[(name, "1")]).unwrap_err().to_string();
        let said = refused("aws_regoin");
        assert!(said.contains("`aws_regoin` is not an option of `s3://bucket`; did you mean `aws_region`"), "{said}");
        assert!(refused("nothing_like_it").contains("of `az://container`; names are those of"));
    }

    #[test]
    fn who_asks_one_web_server_is_told_to_no_other() {
        let web = ["https://a.test", "https://b.test"].map(|root| StoreKey::Http(root.into()));
        let s3 = StoreKey::S3("s3://bucket".into());
        let given = [(AUTHORIZATION, "Basic eDp5")];
        let said = shared(&web[0], &web, &given).unwrap_err().to_string();
        assert!(said.contains("`https://a.test` and `https://b.test`"), "{said}");
        let one = [web[0].clone(), s3.clone()];
        assert_eq!(shared(&web[0], &one, &given).unwrap(), [AUTHORIZATION]);
        assert!(shared(&s3, &one, &given).unwrap().is_empty());
    }

    #[test]
    fn a_manifest_may_be_in_another_store_than_its_objects() {
        let s3 = StoreKey::S3("s3://bucket".into());
        let given = options(&[("azure_storage_account_key", "a"), ("aws_region", "b"), ("aws_regoin", "c")]);
        let names: Vec<String> = share_unseen(&s3, &given).into_keys().collect();
        assert_eq!(names, ["aws_region", "aws_regoin"]);
    }
}
