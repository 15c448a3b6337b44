//! Recognizes secrets, and keeps them out of messages.
//!
//! We never write a secret into a message. But lower-level stores and clients quote what they sent, servers repeat it
//! in their answers, and people put credentials into URLs: so every message passes through [`redacted`] on its way out.

use std::collections::BTreeMap;
use std::iter;
use std::sync::OnceLock;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use reqwest::header::HeaderMap;
use serde_json::Value;
use url::form_urlencoded;

use crate::source::{AS_JSON, StoreKey, token_of_user};

/// Parts of names of options and URL parameters whose values are secret.
const WORDS: [&str; 17] = [
    "authoriz",
    "bearer",
    "conn_str",
    "connection_string",
    "connectionstring",
    "cookie",
    "cred",
    "header",
    "key",
    "login",
    "pass",
    "private",
    "pwd",
    "sas",
    "secret",
    "signature",
    "token",
];

/// Names of the same, which as a part of another word mean something else.
const NAMES: [&str; 5] = ["dsn", "jwt", "pw", "sig", "tok"];

/// Prefixes of environment variables that stores read.
const PREFIXES: [&str; 5] = ["AWS_", "AZURE_", "GOOGLE_", "HF_", "HUGGING_FACE_"];

/// A parameter that is called a token but is not secret: where a listing continues.
const CONTINUATION: &str = "continuation-token";

/// Replaces what is hidden.
const HIDDEN: &str = "…";

/// The shortest secret that is searched for in messages: shorter ones could be ordinary words.
const LEAST_LEN: usize = 8;

/// Values of secret options of this process's stores: the head of an append-only list, so that reading it takes no
/// lock, which a forked child could find locked forever.
static KNOWN: OnceLock<Known> = OnceLock::new();

#[derive(Debug)]
struct Known {
    secret: String,
    next: OnceLock<Box<Self>>,
}

/// Returns the secrets known now.
fn known() -> impl Iterator<Item = &'static Known> {
    iter::successors(KNOWN.get(), |known| known.next.get().map(Box::as_ref))
}

/// Adds a secret, unless it is known.
fn learn(secret: String) {
    if known().any(|known| known.secret == secret) {
        return;
    }
    let mut last = KNOWN.get_or_init(|| Known { secret: secret.clone(), next: OnceLock::new() });
    while last.secret != secret {
        last = last.next.get_or_init(|| Box::new(Known { secret: secret.clone(), next: OnceLock::new() }));
    }
}

/// Returns whether the value of an option must stay within this process.
pub(crate) fn is_secret(name: &str, value: &str) -> bool {
    let is_named = is_secret_name(name) || name.ends_with(AS_JSON) && is_secret_name(value);
    let has_secrets = || {
        let json = serde_json::from_str(value).ok().filter(|_| name.ends_with(AS_JSON));
        json.map_or_else(|| has_secret(value), |json| has_secrets(&json))
    };
    !value.trim().is_empty() && (is_named || has_secrets())
}

/// Returns whether `json` has a secret name or text.
fn has_secrets(json: &Value) -> bool {
    match json {
        Value::String(text) => has_secret(text),
        Value::Array(values) => values.iter().any(has_secrets),
        Value::Object(fields) => fields.iter().any(|(name, value)| is_secret_name(name) || has_secrets(value)),
        _ => false,
    }
}

/// Returns whether a text has a URL with credentials or a secret pair.
fn has_secret(text: &str) -> bool {
    without_credentials(text, |_| ()) != text || of_pairs(text).next().is_some()
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_auth = || name.contains("auth") && !name.contains("author");
    let has_name = || name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| NAMES.contains(&part));
    // Whether requests are signed is not a secret.
    !name.ends_with("skip_signature") && (WORDS.iter().any(|word| name.contains(word)) || is_auth() || has_name())
}

/// Returns whether a URL's query has a signature or grants access.
pub(crate) fn has_signature(query: &str) -> bool {
    let names = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name);
    names.into_iter().any(is_secret_name)
}

/// Makes [`redacted`] hide the secrets among `options`.
pub(crate) fn remember(options: &BTreeMap<String, String>) {
    let mut secrets = Vec::new();
    for (name, value) in options {
        match name.strip_suffix(AS_JSON).map(|name| (name, serde_json::from_str(value))) {
            Some((name, Ok(json))) => add_secrets(&json, is_secret_name(name), &mut secrets),
            _ => add_secrets_of_text(value, is_secret_name(name), &mut secrets),
        }
    }
    secrets.into_iter().filter(|secret| secret.trim().len() >= LEAST_LEN).for_each(learn);
}

/// Adds a whole text if its name says it is secret, and the credentials in a URL: where it leads may be shown.
fn add_secrets_of_text(text: &str, is_secret: bool, secrets: &mut Vec<String>) {
    if is_secret {
        secrets.push(text.to_owned());
        // Of `user:password`.
        secrets.extend(text.split_once(':').map(|(_, password)| password.to_owned()));
    }
    without_credentials(text, |user| {
        secrets.push(user.to_owned());
        secrets.extend(user.split_once(':').map(|(_, password)| password.to_owned()));
    });
    secrets.extend(of_query(text));
    secrets.extend(of_pairs(text).map(str::to_owned));
}

/// Adds the secret texts in `json`, including all under a secret name.
fn add_secrets(json: &Value, is_secret: bool, secrets: &mut Vec<String>) {
    match json {
        Value::String(text) => add_secrets_of_text(text, is_secret, secrets),
        Value::Number(number) if is_secret => secrets.push(number.to_string()),
        Value::Array(values) => {
            // In `[name, value]`, the first says whether the second is secret, and is none itself.
            let is_named = values.first().and_then(Value::as_str).is_some_and(is_secret_name);
            for (index, value) in values.iter().enumerate() {
                add_secrets(value, is_secret || is_named && index > 0, secrets);
            }
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| add_secrets(value, is_secret || is_secret_name(name), secrets));
        }
        _ => {}
    }
}

/// Returns the secrets in a query, raw and decoded: stores repeat either form, or a part of it.
fn of_query(query: &str) -> Vec<String> {
    if !has_signature(query) {
        return Vec::new();
    }
    let query = query.rsplit('?').next().unwrap_or(query);
    let mut secrets = vec![query.to_owned()];
    let signs = |(name, _): &(&str, &str)| is_secret_name(name) && !name.eq_ignore_ascii_case(CONTINUATION);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')).filter(signs) {
        // In base64, a plus is literal.
        let pair = format!("{name}={}", value.replace('+', "%2B"));
        let decoded = form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned());
        secrets.extend(decoded.chain([value.to_owned()]));
    }
    secrets
}

/// Returns the secrets in a text such as `AccountName=me;AccountKey=secret`.
fn of_pairs(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || " _-".contains(c));
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    let secret = pairs.filter(move |(name, _)| is_name(name) && is_secret_name(name.trim()));
    secret.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
}

/// The secrets in a request: credentials may come from a service, and the URL from a redirect.
#[derive(Clone)]
pub(crate) struct Sent(Vec<String>);

impl Sent {
    pub(crate) fn new(query: Option<&str>, headers: &HeaderMap) -> Self {
        let mut secrets = query.map(of_query).unwrap_or_default();
        for (name, value) in headers {
            let Some(value) = value.to_str().ok().filter(|_| is_secret_name(name.as_str())) else { continue };
            secrets.push(value.to_owned());
            // `AWS4-HMAC-SHA256 Credential=id/day/region, SignedHeaders=…, Signature=…`, `Bearer …`, `SharedKey name:…`
            for part in value.split([' ', ',', ':']).skip(1) {
                let secret = match part.split_once('=') {
                    Some(("Credential", scope)) => scope.split('/').next(),
                    Some(("Signature", signature)) => Some(signature),
                    // Base64 padding.
                    Some((_, "" | "=")) | None => Some(part),
                    Some(_) => None,
                };
                secrets.extend(secret.map(str::to_owned));
            }
        }
        secrets.retain(|secret| secret.len() >= LEAST_LEN);
        Self(secrets)
    }

    /// Returns a server's answer without them.
    pub(crate) fn hidden_in(&self, said: &str) -> String {
        hidden(said, self.0.clone())
    }
}

/// Returns whether the environment of this process has the same value for a store's option.
pub(crate) fn is_in_environment(key: &StoreKey, name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    match key {
        StoreKey::Local | StoreKey::Http(_) | StoreKey::FileSystem(_) => false,
        StoreKey::Hub(_) => name == "hf_token" && token_of_user().is_some(),
        StoreKey::S3(_) => name.parse().is_ok_and(|key| AmazonS3Builder::from_env().get_config_value(&key).is_some()),
        StoreKey::Gcs(_) => {
            name.parse().is_ok_and(|key| GoogleCloudStorageBuilder::from_env().get_config_value(&key).is_some())
        }
        StoreKey::Azure(_) => {
            name.parse().is_ok_and(|key| MicrosoftAzureBuilder::from_env().get_config_value(&key).is_some())
        }
    }
}

/// Returns `text` without secrets: those of stores and of the environment, user names and passwords in URLs, and queries
/// that sign them.
pub fn redacted(text: &str) -> String {
    // Non-Unicode values never appear verbatim in a message.
    let environment =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut secrets: Vec<String> = known().map(|known| known.secret.clone()).collect();
    for (name, value) in environment.filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix))) {
        add_secrets_of_text(&value, is_secret_name(&name), &mut secrets);
    }
    secrets.retain(|secret| secret.trim().len() >= LEAST_LEN);
    without_credentials(&hidden(text, secrets), |_| ())
}

fn hidden(text: &str, mut secrets: Vec<String>) -> String {
    // One may be a part of another.
    secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.iter().fold(text.to_owned(), |hidden, secret| hidden.replace(secret, HIDDEN))
}

/// Returns text with credentials and signatures removed from its URLs. Calls `found` with each user and password.
fn without_credentials(text: &str, mut found: impl FnMut(&str)) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    let mut scheme = clean.clone();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "\"'`<>()[]{}|\\,;".contains(c)).unwrap_or(part.len());
        let (url, after) = part.split_at(end);
        clean.push_str("://");
        clean.push_str(&clean_url(&scheme, url, &mut found));
        clean.push_str(after);
        scheme = part.to_owned();
    }
    clean
}

/// Returns what follows `scheme://`, without credentials. The scheme is the end of the preceding text.
fn clean_url(scheme: &str, url: &str, found: &mut impl FnMut(&str)) -> String {
    let (place, query) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
    // In Azure URLs, the container precedes the account.
    let is_container =
        ["az", "adl", "azure", "abfs", "abfss", "wasb", "wasbs"].iter().any(|known| scheme.ends_with(known));
    let authority = place.split('/').next().unwrap_or_default();
    let has_password = authority.split_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err());
    let has_user = authority.contains('@') && !is_container;
    // Secrets may contain slashes.
    let user_end = if has_password { place.rfind('@') } else { place.find('@').filter(|_| has_user) };
    user_end.into_iter().for_each(|end| found(&place[..end]));
    let place = user_end.map_or(place.to_owned(), |end| format!("{HIDDEN}{}", &place[end..]));
    match query {
        Some(query) if has_signature(query) => format!("{place}?{HIDDEN}"),
        Some(query) => format!("{place}?{query}"),
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_names_and_by_urls() {
        for name in ["aws_secret_access_key", "AZURE_STORAGE_SAS_TOKEN", "hf_token", "access_key_id", "client_secret"] {
            assert!(is_secret(name, "x"), "{name}");
            assert!(!is_secret(name, " "), "{name}");
        }
        for name in [
            "aws_region",
            "aws_skip_signature",
            "endpoint_url",
            "timeout",
            "user_agent",
            "account_name",
            "allow_http",
            "hf_patience",
            "azure_authority_host",
            "author",
            "design",
        ] {
            assert!(!is_secret(name, "x"), "{name}");
        }
        assert!(is_secret("proxy_url", "http://user:secret@proxy:80"));
        assert!(!is_secret("proxy_url", "http://proxy:80"));
    }

    #[test]
    fn secrets_are_told_in_every_spelling_of_options_and_then_hidden() {
        let is_secret_and_hidden = |name: &str, value: &str, secret: &str| {
            remember(&[(name.to_owned(), value.to_owned())].into());
            is_secret(name, value) && redacted(&format!("with {secret}!")) == "with …!"
        };
        for (number, name) in [
            "auth",
            "basic_auth",
            "account_key",
            "conn_str",
            "connection_string",
            "client-secret",
            "creds",
            "dsn",
            "jwt",
            "login",
            "oauth",
            "passphrase",
            "passwd",
            "pkey",
            "pw",
            "pwd",
            "sas_token",
            "tok",
        ]
        .into_iter()
        .enumerate()
        {
            let secret = format!("spelt-in-text-{number}");
            assert!(is_secret_and_hidden(name, &secret, &secret), "{name}");
            let secret = format!("spelt-in-json-{number}");
            for value in [
                format!(r#"{{"{name}": "{secret}"}}"#),
                format!(r#"{{"a": [{{"b": {{"{name}": ["me", "{secret}"]}}}}]}}"#),
                format!(r#"[["{name}", "{secret}"]]"#),
            ] {
                assert!(is_secret_and_hidden("client_kwargs as JSON", &value, &secret), "{value}");
            }
        }
        for (number, (name, value)) in [
            ("auth", "me:SECRET"),
            ("auth as JSON", r#"["me", "SECRET"]"#),
            ("token as JSON", r#"{"type": "service", "private_key": "SECRET"}"#),
            ("account", "AccountName=me;AccountKey=SECRET"),
            ("account", "AccountName=me; accountkey = SECRET ;EndpointSuffix=core.windows.net"),
            ("account", "SharedAccessSignature=sv=2020&sig=SECRET"),
            ("account as JSON", r#"{"name": ["UID=me;PWD=SECRET"]}"#),
            ("link as JSON", r#"{"url": "ftp://me:SECRET@host/"}"#),
        ]
        .into_iter()
        .enumerate()
        {
            let secret = format!("another-secret-{number}");
            assert!(is_secret_and_hidden(name, &value.replace("SECRET", &secret), &secret), "{name}: {value}");
        }
        assert!(is_secret_and_hidden("password as JSON", "1234567890123", "1234567890123"));
        for (name, value) in [
            ("path", "year=2020;month=1"),
            ("path", "a/key=5/b"),
            ("author as JSON", r#"{"author": "me", "ports": [22]}"#),
            ("account", "AccountName=me;AccountKey="),
        ] {
            assert!(!is_secret(name, value), "{name}: {value}");
        }
    }

    #[test]
    fn urls_keep_their_place_and_lose_what_lets_others_in() {
        for (text, expected) in [
            ("GET https://u:p@host:80/x failed", "GET https://…@host:80/x failed"),
            ("`s3://key:se/cr/et@bucket/x`, `b`", "`s3://…@bucket/x`, `b`"),
            ("(https://token@host)", "(https://…@host)"),
            ("url (http://host/x?sv=1&sig=abc%3D): no", "url (http://host/x?…): no"),
            ("http://host/x?X-Amz-Signature=abc&list-type=2", "http://host/x?…"),
            ("http://host/x?list-type=2&prefix=a", "http://host/x?list-type=2&prefix=a"),
            ("s3://bucket/part-?.parquet", "s3://bucket/part-?.parquet"),
            ("hf://datasets/a/b@0f/x", "hf://datasets/a/b@0f/x"),
            ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
            ("wasbs://container@account.blob.core.windows.net/x", "wasbs://container@account.blob.core.windows.net/x"),
            ("http://127.0.0.1:9/a@b and a@b", "http://127.0.0.1:9/a@b and a@b"),
            ("a://b://c:d@e", "a://b://…@e"),
        ] {
            assert_eq!(redacted(text), expected);
        }
    }

    #[test]
    fn what_several_threads_learn_at_once_is_known_once() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|n| learn(format!("learned at once {n}"))));
            }
        });
        let count = |n: i32| known().filter(|known| known.secret == format!("learned at once {n}")).count();
        assert!((0..50).all(|n| count(n) == 1));
    }

    #[test]
    fn a_signature_is_hidden_as_it_was_sent_and_as_it_is_read() {
        let sas = "?sv=2020&spr=https&sig=abcdefgh%2Bi%2F%3D";
        remember(&[("azure_storage_sas_token".to_owned(), sas.to_owned())].into());
        assert_eq!(redacted("abcdefgh+i/= abcdefgh%2Bi%2F%3D of 2020"), "… … of 2020");
        assert_eq!(redacted("/b/x?sv=2020&spr=https&sig=abcdefgh%2Bi%2F%3D"), "/b/x…");
        assert!(of_query("list-type=2&continuation-token=somewhere%2Fhere").len() < 2);
    }

    #[test]
    fn of_a_proxy_that_wants_a_password_the_place_is_shown() {
        remember(&[("proxy_url".to_owned(), "http://somebody:0f-th3-pr0xy@proxy:80".to_owned())].into());
        assert_eq!(redacted("`http://somebody:0f-th3-pr0xy@proxy:80`: no"), "`http://…@proxy:80`: no");
        assert_eq!(redacted("somebody:0f-th3-pr0xy, or 0f-th3-pr0xy"), "…, or …");
    }

    #[test]
    fn what_was_sent_is_hidden_in_the_answer() {
        let mut headers = HeaderMap::new();
        let signed = "AWS4-HMAC-SHA256 Credential=ASIAOFSERVICE/20260101/us-east-1/s3/aws4_request, \
                      SignedHeaders=host;x-amz-date, Signature=0123456789abcdef";
        headers.insert("authorization", signed.parse().unwrap());
        headers.insert("x-amz-security-token", "session/token+of==".parse().unwrap());
        headers.insert("x-amz-date", "20260101T000000Z".parse().unwrap());
        let sent = Sent::new(Some("X-Amz-Signature=fedcba9876543210&X-Amz-Expires=900"), &headers);
        for (said, shown) in [
            ("id ASIAOFSERVICE, 0123456789abcdef", "id …, …"),
            ("<Token-0>session/token+of==</Token-0>", "<Token-0>…</Token-0>"),
            ("at 20260101T000000Z by host;x-amz-date", "at 20260101T000000Z by host;x-amz-date"),
            ("fedcba9876543210", "…"),
        ] {
            assert_eq!(sent.hidden_in(said), shown);
        }
        headers.insert("authorization", "Bearer t0k3n.of-service_=".parse().unwrap());
        assert_eq!(Sent::new(None, &headers).hidden_in("t0k3n.of-service_="), "…");
        headers.insert("authorization", "SharedKey account:c2lnbmF0dXJl==".parse().unwrap());
        assert_eq!(Sent::new(None, &headers).hidden_in("c2lnbmF0dXJl=="), "…");
    }

    #[test]
    fn values_of_options_are_hidden_wherever_they_stand() {
        let options =
            [("aws_session_token", "k3pt/s3cr3t+"), ("aws_region", "us-east-17"), ("aws_access_key_id", "test")];
        remember(&options.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let nested = r#"{"place": "here-and-there", "auth": {"password": "n3st3d-s3cr3t"}}"#.to_owned();
        assert!(is_secret("client as JSON", &nested) && !is_secret("port as JSON", "22"));
        remember(&[("client as JSON".to_owned(), nested)].into());
        assert_eq!(redacted("n3st3d-s3cr3t of here-and-there"), "… of here-and-there");
        assert_eq!(
            redacted("<Token-0>k3pt/s3cr3t+</Token-0> of test in us-east-17"),
            "<Token-0>…</Token-0> of test in us-east-17"
        );
    }
}
