//! Checks values of options and variables that clients accept without checking.

use std::time::Duration;

use object_store::client::{HttpRequest, HttpRequestBody};
use serde_json::Value;
use url::Url;

use super::settings::{self, unfit};
use crate::error::Result;

/// Options whose values are URLs, by the clients' names.
const URLS: [&str; 8] = [
    "aws_container_credentials_full_uri",
    "aws_endpoint",
    "aws_endpoint_url_s3",
    "aws_endpoint_url_sts",
    "aws_metadata_endpoint",
    "azure_msi_endpoint",
    "azure_storage_endpoint",
    "google_base_url",
];

/// Options whose values are times.
const TIMES: [&str; 3] = ["connect_timeout", "read_timeout", "timeout"];

/// Options whose values may have several lines: their own parsers check them.
const TEXTS: [&str; 2] = ["google_service_account_key", "proxy_ca_certificate"];

/// The option that names a token's file.
const TOKEN_FILE: &str = "aws_container_authorization_token_file";

const ABSOLUTE_URL: &str = "expected an absolute URL, with `http://` or `https://`, such as `http://localhost:9000`";

/// Returns the value of the option `key`, given as `name`, in the form that clients take.
///
/// # Errors
///
/// [`Error::Setting`](crate::error::Error::Setting) for a value that cannot make a valid request.
pub(super) fn checked(name: &str, key: &str, value: String) -> Result<String> {
    if TIMES.contains(&key) {
        return settings::duration(name, &value).map(milliseconds);
    }
    if !TEXTS.contains(&key) && value.contains(char::is_control) {
        let reason = "expected a single line of text; it holds a line break, or another control character";
        return Err(unfit(name, reason));
    }
    if URLS.contains(&key) && !is_url(&value) {
        return Err(unfit(name, ABSOLUTE_URL));
    }
    if base_url(key, &value).is_some_and(|url| !is_url(&url)) {
        return Err(unfit(name, format!("its `gcs_base_url`: {ABSOLUTE_URL}")));
    }
    // An unreadable file is reported when it is needed.
    if key == TOKEN_FILE && std::fs::read_to_string(&value).is_ok_and(|token| token.contains(char::is_control)) {
        let reason = "expected a file that holds a token and nothing else; it holds a line break, or another control \
                      character";
        return Err(unfit(name, format!("{reason}: `{value}`")));
    }
    Ok(value)
}

/// Returns the endpoint in a Google service account's key, if there is one.
fn base_url(key: &str, value: &str) -> Option<String> {
    let json = match key {
        "google_service_account_key" => value.to_owned(),
        "google_service_account" => std::fs::read_to_string(value).ok()?,
        _ => return None,
    };
    let account: Value = serde_json::from_str(&json).ok()?;
    account.get("gcs_base_url")?.as_str().map(str::to_owned)
}

/// Returns a time in the form that clients parse.
pub(super) fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis().max(1))
}

/// Returns whether a text is a web URL as it is: requests append a path to it.
fn is_url(text: &str) -> bool {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    let is_of_request = text.parse().map(|uri| *request.uri_mut() = uri).is_ok();
    let is_web = |url: Url| ["http", "https"].contains(&url.scheme()) && text.contains("://");
    is_of_request && Url::parse(text).is_ok_and(is_web)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_absolute_and_nothing_but_urls() {
        for url in ["http://localhost:9000", "https://[::1]:9/a/", "http://127.0.0.1", "https://user:s3cr3t@host"] {
            assert_eq!(checked("endpoint_url", "aws_endpoint", url.into()).unwrap(), url);
        }
        for url in
            ["", " ", "localhost:9000", "localhost", "//host", "http://", "ftp://host", "http://a b", "http:host"]
        {
            let said = checked("endpoint_url", "aws_endpoint", url.into()).unwrap_err().to_string();
            assert!(said.contains("`endpoint_url`: expected an absolute URL"), "{said}");
        }
    }

    #[test]
    fn what_fits_into_no_header_is_refused_and_not_shown() {
        for (key, value) in
            [("aws_access_key_id", "s3cr3t\n"), ("azure_storage_token", "s3\rcr3t"), ("region", "s3cr3t\0")]
        {
            let said = checked("an option", key, value.into()).unwrap_err().to_string();
            assert!(said.contains("`an option`") && !said.contains("cr3t"), "{said}");
        }
        for (key, value) in [("google_service_account_key", "{\n}"), ("aws_access_key_id", "é +/=")] {
            assert_eq!(checked("an option", key, value.into()).unwrap(), value);
        }
    }

    #[test]
    fn times_are_seconds_unless_they_have_a_unit() {
        for (text, expected) in
            [("10", "10000 ms"), ("1m 30s", "90000 ms"), ("250ms", "250 ms"), ("1hour 12min", "4320000 ms")]
        {
            assert_eq!(checked("timeout", "timeout", text.into()).unwrap(), expected);
        }
        for text in ["soon", "0", "-1", "", "1m 30 parsecs"] {
            let said = checked("AWS_TIMEOUT", "timeout", text.into()).unwrap_err().to_string();
            assert!(said.contains("`AWS_TIMEOUT`: expected a time"), "{said}");
        }
    }
}
