//! Options of remote stores that are ours, not their clients'.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::tls::Certificate;

use super::StoreKey;
use super::recover::Limit;
use crate::config;
use crate::error::{Error, Result};

/// The option for how long a read may go on without a byte.
pub(super) const RETRY_FOR: &str = "retry_for";

/// The option that allows late requests to be hedged.
pub(super) const HEDGE: &str = "hedge";

/// The option for how many bytes one more round trip must save.
pub(super) const ROUND_TRIP_BYTES: &str = "round_trip_bytes";

/// The option with trusted certificates, as a path or as text.
pub(super) const CA_CERTIFICATE: &str = "ca_certificate";

/// The option with the header that tells a web server who asks. No variable: in a CGI program, `HTTP_AUTHORIZATION` is
/// the header of somebody else's request.
pub(super) const AUTHORIZATION: &str = "authorization";

/// Other tools' variables for trusted certificates: Amazon's, and that of `requests`, which most Python clients use.
const AMAZON_BUNDLE: &str = "AWS_CA_BUNDLE";
const BUNDLES: [&str; 2] = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// Suffix of the name of an option whose value is JSON: file systems accept more than text.
pub(crate) const AS_JSON: &str = " as JSON";

/// Returns the options for the store of `key`: non-text values are given both as text and [as JSON](AS_JSON), which
/// only file systems read.
pub(super) fn options_of(key: &StoreKey, options: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_file_system = matches!(key, StoreKey::FileSystem(_));
    let is_ours = |name: &str| [RETRY_FOR, HEDGE, ROUND_TRIP_BYTES].contains(&name);
    let is_read = |name: &str| match name.strip_suffix(AS_JSON) {
        Some(plain) => is_file_system && !is_ours(plain),
        None => !is_file_system || is_ours(name) || !options.contains_key(&format!("{name}{AS_JSON}")),
    };
    options.iter().filter(|(name, _)| is_read(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The value of an option, under the name by which it was given: its own, or that of a variable.
#[derive(Debug, Clone)]
pub(super) struct Named {
    name: String,
    value: String,
}

impl Named {
    pub(super) fn new(name: &str, value: String) -> Self {
        Self { name: name.to_owned(), value }
    }

    /// Returns whether it was given as an option, not as a variable.
    pub(super) fn is_option(&self) -> bool {
        !is_variable(&self.name)
    }
}

/// A store's options that are ours, and the rest.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) limit: Limit,
    pub(super) is_hedging: bool,
    /// Additional trusted [certificates](certificates), or their path.
    pub(super) certificate: Option<Named>,
    /// Who asks a web server.
    pub(super) authorization: Option<HeaderValue>,
    /// For the client; names in lower case.
    pub(super) rest: Vec<(String, String)>,
}

impl Settings {
    /// Reads `options`, and the environment for missing ones.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for invalid values.
    pub(super) fn try_new(key: &StoreKey, options: &BTreeMap<String, String>) -> Result<Self> {
        let named = options.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        let mut rest: BTreeMap<String, String> = named.collect();
        let mut take =
            |name: &str| rest.remove(name).map(|value| Named::new(name, value)).or_else(|| of_environment(key, name));
        let retry_for = take(RETRY_FOR).map(|given| duration(&given.name, &given.value)).transpose()?;
        let (hedge, certificate) = (take(HEDGE), take(CA_CERTIFICATE));
        rest.remove(ROUND_TRIP_BYTES);
        let authorization = if matches!(key, StoreKey::Http(_)) { rest.remove(AUTHORIZATION) } else { None };
        Ok(Self {
            authorization: authorization.filter(|text| !text.is_empty()).map(|text| header(&text)).transpose()?,
            limit: Limit {
                time: retry_for.unwrap_or(config::RETRY_FOR),
                option: RETRY_FOR,
                is_given: retry_for.is_some(),
            },
            is_hedging: hedge.map_or(Ok(true), |given| flag(&given.name, &given.value))?,
            certificate,
            rest: rest.into_iter().collect(),
        })
    }
}

/// Returns how many bytes one more dependent round trip must save, if `options` or the environment say so.
///
/// # Errors
///
/// [`Error::Setting`] if it is not a number of bytes.
pub(super) fn round_trip_bytes(key: &StoreKey, options: &BTreeMap<String, String>) -> Result<Option<u64>> {
    let given = options.iter().find(|(name, _)| name.eq_ignore_ascii_case(ROUND_TRIP_BYTES));
    let given = given.map(|(_, value)| Named::new(ROUND_TRIP_BYTES, value.clone()));
    let given = given.or_else(|| of_environment(key, ROUND_TRIP_BYTES));
    given.map(|given| num_bytes(&given.name, &given.value)).transpose()
}

/// Returns the variable for an option, with the store's prefix: `AWS_RETRY_FOR`.
fn of_environment(key: &StoreKey, name: &str) -> Option<Named> {
    let of_store = format!("{}{}", prefix(key)?, name.to_ascii_uppercase());
    let of_amazon = || variable(AMAZON_BUNDLE).filter(|_| matches!(key, StoreKey::S3(_)));
    let of_tools = || (name == CA_CERTIFICATE).then(|| of_amazon().or_else(bundle_of_tools)).flatten();
    variable(&of_store).or_else(of_tools)
}

fn variable(name: &str) -> Option<Named> {
    let value = std::env::var(name).ok().filter(|value| !value.trim().is_empty())?;
    Some(Named::new(name, value))
}

/// Returns the certificates that other Python clients are configured to trust.
pub(super) fn bundle_of_tools() -> Option<Named> {
    BUNDLES.into_iter().find_map(variable)
}

/// Returns the prefix of a store's variables.
pub(super) fn prefix(key: &StoreKey) -> Option<&'static str> {
    match key {
        StoreKey::Local | StoreKey::FileSystem(_) => None,
        StoreKey::S3(_) => Some("AWS_"),
        StoreKey::Gcs(_) => Some("GOOGLE_"),
        StoreKey::Azure(_) => Some("AZURE_"),
        StoreKey::Http(_) => Some("HTTP_"),
        StoreKey::Hub(_) => Some("HF_"),
    }
}

/// Reads the value of an option that is a time: a number of seconds, or one with a unit, that is not zero.
///
/// # Errors
///
/// [`Error::Setting`] for other text.
pub fn duration(name: &str, text: &str) -> Result<Duration> {
    time(name, text).ok().filter(|time| !time.is_zero()).ok_or_else(|| no_time(name, text))
}

/// Reads a number of seconds, or numbers with units, such as `1m 30s`.
pub(super) fn time(name: &str, text: &str) -> Result<Duration> {
    let seconds = seconds(text.trim()).map(Duration::try_from_secs_f64);
    seconds.and_then(std::result::Result::ok).ok_or_else(|| no_time(name, text))
}

fn no_time(name: &str, text: &str) -> Error {
    let text = text.trim();
    unfit(name, format!("expected a time such as `300`, `30 seconds` or `10 minutes`, got `{text}`"))
}

fn seconds(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let seconds_per_unit = match text[number.len()..].trim() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "us" | "usec" => 1e-6,
        "ms" | "msec" | "millis" => 1e-3,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86400.0,
        _ => return None,
    };
    if let Ok(number) = number.parse::<f64>() {
        return Some(number * seconds_per_unit);
    }
    let is_next = |at: &usize| text[..*at].trim_end().ends_with(|c: char| c.is_ascii_alphabetic());
    let next = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).find(is_next)?;
    Some(seconds(text[..next].trim())? + seconds(&text[next..])?)
}

fn num_bytes(name: &str, text: &str) -> Result<u64> {
    let text = text.trim();
    bytes_of(text)
        .ok_or_else(|| unfit(name, format!("expected a number of bytes such as `0` or `16 MiB`, got `{text}`")))
}

/// Returns the number of bytes that a text says, alone or with a unit: `1024`, `16 MiB`, `2 GB`.
pub fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = text.trim()[digits.len()..].trim().to_ascii_lowercase();
    let bytes_per_unit = match unit.as_str() {
        "" | "b" => Some(1),
        "kb" => Some(1_000),
        "kib" => Some(1 << 10),
        "mb" => Some(1_000_000),
        "mib" => Some(1 << 20),
        "gb" => Some(1_000_000_000),
        "gib" => Some(1 << 30),
        _ => None,
    };
    digits.parse::<u64>().ok().zip(bytes_per_unit).and_then(|(number, unit)| number.checked_mul(unit))
}

/// Reads a Boolean.
pub(super) fn flag(name: &str, text: &str) -> Result<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "y" | "on" => Ok(true),
        "false" | "0" | "no" | "n" | "off" => Ok(false),
        _ => Err(unfit(name, format!("expected `true` or `false`, got `{text}`"))),
    }
}

/// Reads the value of [`AUTHORIZATION`], which is not repeated in messages.
fn header(text: &str) -> Result<HeaderValue> {
    let expected = || {
        let reason = "expected the value of the header of this name: `Basic ` and the base64 of `user:password`, or \
                      `Bearer ` and a token";
        unfit(AUTHORIZATION, reason)
    };
    text.split_once(' ').filter(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()).ok_or_else(expected)?;
    let mut value = HeaderValue::from_str(text).map_err(|_| expected())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads the PEM text of certificates.
fn pem(text: &str) -> std::io::Result<Vec<u8>> {
    if text.trim_start().starts_with("-----BEGIN") {
        return Ok(text.as_bytes().to_vec());
    }
    match std::fs::metadata(text) {
        // OpenSSL and `requests` accept a folder with a file for each certificate.
        Ok(found) if found.is_dir() => folder(text),
        _ => std::fs::read(text),
    }
}

fn folder(path: &str) -> std::io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_file() {
            whole.extend_from_slice(&std::fs::read(path)?);
            whole.push(b'\n');
        }
    }
    Ok(whole)
}

/// Returns the certificates of an option.
///
/// # Errors
///
/// [`Error::Setting`] if there are none, or they cannot be read.
pub(super) fn certificates(given: &Named) -> Result<Vec<Certificate>> {
    let Named { name, value } = given;
    let expected = |got: &str| {
        unfit(name, format!("expected certificates in PEM format, or the path of a file that holds them; {got}"))
    };
    let pem = pem(value).map_err(|error| unfit(name, format!("cannot read `{value}`: {error}")))?;
    let found = Certificate::from_pem_bundle(&pem).map_err(|_| expected("those given are damaged"))?;
    if found.is_empty() {
        return Err(expected("got none"));
    }
    Ok(found)
}

/// Returns the error for the value of an option or a variable.
pub(super) fn unfit(name: &str, reason: impl Display) -> Error {
    let given_in = if is_variable(name) { "environment" } else { "storage_options" };
    Error::Setting { name: given_in, reason: format!("`{name}`: {reason}") }
}

/// Returns whether a name is a variable's: those of options have no capital letters here.
fn is_variable(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
}

pub(super) fn refused(reason: String) -> Error {
    Error::Setting { name: "storage_options", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &StoreKey, pairs: &[(&str, &str)]) -> Result<Settings> {
        let options = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let settings = Settings::try_new(key, &options)?;
        settings.certificate.as_ref().map(certificates).transpose()?;
        Ok(settings)
    }

    #[test]
    fn what_is_ours_does_not_reach_the_client() {
        let s3 = StoreKey::S3("s3://bucket".into());
        let found = settings(&s3, &[("Retry_For", "2 minutes"), ("hedge", "off"), ("AWS_REGION", "here")]).unwrap();
        assert_eq!((found.limit.time, found.limit.is_given), (Duration::from_secs(120), true));
        assert!(!found.is_hedging);
        assert_eq!(found.rest, [("aws_region".to_owned(), "here".to_owned())]);
        let found = settings(&s3, &[("Round_Trip_Bytes", "0")]).unwrap();
        assert_eq!(found.rest, []);
        let default = settings(&s3, &[]).unwrap();
        assert_eq!((default.limit.time, default.is_hedging), (config::RETRY_FOR, true));
        assert!(!default.limit.is_given);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let s3 = StoreKey::S3("s3://bucket".into());
        for (name, text) in [
            ("retry_for", "soon"),
            ("retry_for", "0"),
            ("retry_for", "-1"),
            ("hedge", "perhaps"),
            ("ca_certificate", "/no/such/file"),
            ("ca_certificate", "-----BEGIN NONSENSE"),
        ] {
            let said = settings(&s3, &[(name, text)]).unwrap_err().to_string();
            assert!(said.contains(name), "{said}");
        }
    }

    #[test]
    fn who_asks_is_a_header_of_web_servers_and_never_shown() {
        let (web, s3) = (StoreKey::Http("https://host".into()), StoreKey::S3("s3://bucket".into()));
        let found = settings(&web, &[("Authorization", "Basic s3cr3t")]).unwrap();
        assert_eq!(found.authorization.as_ref().unwrap(), "Basic s3cr3t");
        assert!(found.rest.is_empty() && !format!("{found:?}").contains("s3cr3t"));
        assert_eq!(settings(&s3, &[("authorization", "Basic s3cr3t")]).unwrap().rest.len(), 1);
        for text in ["s3cr3t", "Basic s3cr3t\n", " s3cr3t"] {
            let said = settings(&web, &[("authorization", text)]).unwrap_err().to_string();
            assert!(said.contains("`Bearer ` and a token") && !said.contains("s3cr3t"), "{said}");
        }
    }

    #[test]
    fn bytes_are_numbers_with_or_without_a_unit() {
        let s3 = StoreKey::S3("s3://bucket".into());
        let found = |text: &str| round_trip_bytes(&s3, &BTreeMap::from([("Round_Trip_Bytes".into(), text.into())]));
        assert_eq!(round_trip_bytes(&s3, &BTreeMap::new()).unwrap(), None);
        for (text, expected) in [("0", 0), ("123", 123), (" 16 MiB ", 16 << 20), ("2kb", 2000), ("1GB", 1_000_000_000)]
        {
            assert_eq!(found(text).unwrap(), Some(expected), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5 MiB", "16 M", "99999999999 GiB", "1 2"] {
            let said = found(text).unwrap_err().to_string();
            assert!(said.contains("`round_trip_bytes`: expected a number of bytes"), "{text}: {said}");
        }
    }
}
