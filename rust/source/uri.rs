//! Parses text into a location: a store, and what to read there.

use std::path::{self, Component, PathBuf};

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{Written, file_system};
use crate::error::{Error, Result};
use crate::secrets;

const AZURE_SCHEMES: [&str; 7] = ["az", "adl", "azure", "abfs", "abfss", "wasb", "wasbs"];

/// Characters of patterns.
const SPECIAL: [char; 4] = ['*', '?', '[', '{'];

/// Identifies a store: sources with equal keys share a client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum StoreKey {
    /// The file system of this machine.
    Local,
    /// `s3://bucket`.
    S3(String),
    /// `gs://bucket`.
    Gcs(String),
    /// `az://container` or `abfss://container@account.dfs.core.windows.net`.
    Azure(String),
    /// `http://host:port` or `https://...`.
    Http(String),
    /// `hf://datasets/org/name@commit` or `hf://buckets/org/name`.
    Hub(String),
    /// `memory://`, or `zip://::s3://bucket/key`: the text around the paths of a [file system](super::file_system).
    FileSystem(String),
}

impl StoreKey {
    /// Returns the URL of an object as people write it.
    pub(crate) fn url_of(&self, path: &Path) -> String {
        match self {
            Self::Local => format!("/{path}"),
            Self::S3(root) | Self::Gcs(root) | Self::Azure(root) | Self::Hub(root) => format!("{root}/{path}"),
            Self::Http(root) => format!("{root}/{}", escaped(path.as_ref())),
            Self::FileSystem(root) => {
                let (before, after) = root.split_once("://").unwrap_or((root, ""));
                let (slashes, after) = after.split_at(after.len() - after.trim_start_matches('/').len());
                format!("{before}://{slashes}{path}{after}")
            }
        }
    }

    /// Returns the URL of an object as it was `written`, without a query, which may be a signature.
    pub(crate) fn url_as(&self, path: &Path, written: Option<&Written>) -> String {
        match (self, written.filter(|written| !written.has_query())) {
            (Self::Http(root), Some(written)) => format!("{root}{}", written.as_str()),
            _ => self.url_of(path),
        }
    }

    /// Returns the URL of the store itself.
    pub(crate) fn root(&self) -> &str {
        match self {
            Self::Local => "/",
            Self::S3(root)
            | Self::Gcs(root)
            | Self::Azure(root)
            | Self::Http(root)
            | Self::Hub(root)
            | Self::FileSystem(root) => root,
        }
    }

    /// Returns whether [`Location::parse`] could have made the key, which may come from elsewhere.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Self::Local => true,
            Self::S3(root) | Self::Gcs(root) | Self::Azure(root) | Self::Http(root) | Self::Hub(root) => {
                Location::parse(&format!("{root}/x")).is_ok_and(|location| location.store == *self)
            }
            Self::FileSystem(_) => {
                Location::parse(&self.url_of(&Path::from("x"))).is_ok_and(|location| location.store == *self)
            }
        }
    }
}

/// A folder, an object or a glob in a store.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) store: StoreKey,
    /// The object, or the folder to list.
    pub(crate) path: Path,
    /// The pattern, over whole keys, if there is one; `path` is its longest literal folder.
    pub(crate) glob: Option<String>,
    /// Whether the text ends in `/`: certainly a folder.
    pub(crate) is_folder: bool,
    /// The text as given, for messages; without a query, which may be a signature.
    pub(crate) text: String,
    /// Path and query of a web URL, if the key does not represent them completely.
    pub(crate) written: Option<Written>,
}

impl Location {
    /// Parses a local path or a URI.
    ///
    /// # Errors
    ///
    /// [`Error::Uri`].
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(refused(text, "it is empty; expected a path or a URI such as `s3://bucket/folder/`"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            // For a URI with a slash missing, messages would repeat any credentials in it.
            return match text.split_once(":/") {
                Some((scheme, _)) if !scheme.is_empty() && is_native(&scheme.to_ascii_lowercase()) => {
                    Err(refused(&format!("{scheme}:/…"), &format!("a slash is missing; write `{scheme}://…`")))
                }
                _ => Self::local(text, text),
            };
        };
        let scheme = scheme.to_ascii_lowercase();
        if file_system::are_known() && !is_native(&scheme) {
            return Self::of_file_system(text);
        }
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if let Some((user, _)) = authority.rsplit_once('@') {
            // In Azure URIs, the container precedes the account.
            let is_container = AZURE_SCHEMES.contains(&scheme.as_str()) && !user.contains(':');
            if !is_container {
                let reason = match scheme.as_str() {
                    "http" | "https" => {
                        "it holds credentials; pass them as `authorization` in `storage_options`: `Basic ` and the \
                         base64 of `user:password`"
                    }
                    _ => "it holds credentials; pass them through `storage_options` or the environment",
                };
                return Err(refused(&format!("{scheme}://…"), reason));
            }
        }
        let is_web = matches!(scheme.as_str(), "http" | "https");
        // A query without a path belongs to the host.
        if is_web && authority.contains(['?', '#']) {
            let before = authority.split(['?', '#']).next().unwrap_or_default();
            return Err(refused(&format!("{scheme}://{before}/…"), "it names no file"));
        }
        let is_port = |port: &str| is_web && (port.parse::<u16>().is_ok() || authority.starts_with('['));
        if authority.split_once(':').is_some_and(|(_, port)| !is_port(port)) && scheme != "file" {
            // A password may contain a slash, and then the rest of it is not part of the authority.
            let reason = "a bucket or host name cannot contain `:`; pass credentials through `storage_options` or the \
                          environment";
            return Err(refused(&format!("{scheme}://…"), reason));
        }
        if let Some((before, query)) = text.split_once('?')
            && !is_web
            && scheme != "file"
            && secrets::has_signature(query)
        {
            let reason = "it is signed; pass signatures through `storage_options` or the environment";
            return Err(refused(&format!("{before}?…"), reason));
        }
        if authority.is_empty() && scheme != "file" {
            return Err(refused(text, "it names no bucket or host"));
        }
        let root = format!("{scheme}://{authority}");
        match scheme.as_str() {
            "file" => Self::local(text, &local_path(text)?),
            "s3" | "s3a" => Self::remote(text, StoreKey::S3(format!("s3://{authority}")), key),
            "gs" | "gcs" => Self::remote(text, StoreKey::Gcs(format!("gs://{authority}")), key),
            // An older name of the same stores.
            "wasb" | "wasbs" => Self::remote(text, StoreKey::Azure(format!("abfss://{authority}")), key),
            _ if AZURE_SCHEMES.contains(&scheme.as_str()) => Self::remote(text, StoreKey::Azure(root), key),
            "http" | "https" => Self::http(text, root, key),
            "hf" => Self::hub(text, rest),
            _ => Err(refused(text, "expected a path, `file://`, `s3://`, `gs://`, `az://`, `hf://` or `http(s)://`")),
        }
    }

    /// Returns the URL of the object or folder as people write it.
    pub(crate) fn url(&self) -> String {
        self.store.url_as(&self.path, self.written.as_ref())
    }

    fn local(text: &str, path: &str) -> Result<Self> {
        let is_folder = path.ends_with('/');
        let below_home = path.strip_prefix('~').filter(|below| below.is_empty() || below.starts_with('/'));
        let path = match below_home.zip(std::env::home_dir()) {
            Some((below, home)) => home.join(below.trim_start_matches('/')),
            None => PathBuf::from(path),
        };
        let absolute = path::absolute(&path).map_err(|error| refused(text, &error.to_string()))?;
        let absolute = without_dots(&absolute);
        // A glob character in the name of an existing path is literal.
        let plain = if absolute.exists() { Path::from_absolute_path(&absolute).ok() } else { None };
        if let Some(path) = plain {
            return Ok(Self { store: StoreKey::Local, path, glob: None, is_folder, text: text.into(), written: None });
        }
        let key = absolute.to_string_lossy();
        Self::from_key(text, StoreKey::Local, key.trim_start_matches('/'), is_folder)
    }

    fn remote(text: &str, store: StoreKey, key: &str) -> Result<Self> {
        if key.starts_with('/') {
            let reason = format!(
                "its key begins with `/`, and such objects are not read; write `{}/{}` for the key without it",
                store.root(),
                key.trim_start_matches('/')
            );
            return Err(refused(text, &reason));
        }
        Self::from_key(text, store, key, key.is_empty() || key.ends_with('/'))
    }

    fn http(text: &str, root: String, key: &str) -> Result<Self> {
        // What follows may be a signature, so it is not repeated.
        let shown = text.split_once(['?', '#']).map_or(text, |(before, _)| before);
        if text.contains('#') {
            return Err(refused(
                &format!("{shown}#…"),
                "a URL of a file has no fragment; write `#` in a name as `%23`",
            ));
        }
        let (key, query) = key.split_once('?').map_or((key, None), |(key, query)| (key, Some(query)));
        if root.contains('?') || key.is_empty() || key.ends_with('/') || is_glob(key) {
            let hint = key.chars().find(|character| SPECIAL.contains(character)).map_or_else(String::new, |special| {
                format!("; write `{special}` in a name as `%{:X}`", u32::from(special))
            });
            let reason = format!("HTTP has no folder listings and no patterns; list the files' URLs instead{hint}");
            return Err(refused(shown, &reason));
        }
        let path = Path::from_url_path(key).map_err(|error| {
            let hint = if key.contains('%') { "; write `%` in a name as `%25`" } else { "" };
            refused(shown, &format!("{error}{hint}"))
        })?;
        if path.as_ref().is_empty() {
            return Err(refused(shown, "it names no file"));
        }
        let written = match query.filter(|query| !query.is_empty()) {
            Some(query) => Some(format!("/{key}?{query}")),
            None => as_written(&root, key, &path),
        };
        let no_url = "it holds a space, a quote or another character that is not allowed in a URL; write it as `%20` \
                      or the like";
        let written = written.map(|written| Written::try_new(&written).ok_or_else(|| refused(shown, no_url)));
        let written = written.transpose()?;
        Ok(Self { store: StoreKey::Http(root), path, glob: None, is_folder: false, text: shown.into(), written })
    }

    /// Parses the name of a file in a repository at a commit, or in a bucket.
    fn hub(text: &str, rest: &str) -> Result<Self> {
        let mut parts = rest.splitn(4, '/');
        let (kind, owner, name, rest) = (parts.next(), parts.next(), parts.next(), parts.next().unwrap_or_default());
        let (Some(kind @ ("datasets" | "buckets")), Some(owner), Some(name)) = (kind, owner, name) else {
            return Err(refused(
                text,
                "expected `hf://datasets/owner/name@commit/path` or `hf://buckets/owner/name/path`",
            ));
        };
        // Revisions such as `refs/convert/parquet` contain slashes.
        let special = name.ends_with("@refs").then(|| rest.splitn(3, '/').collect::<Vec<_>>());
        let (name, key) = match special.as_deref() {
            Some([kind, number, key]) => (format!("{name}/{kind}/{number}"), *key),
            _ => (name.to_owned(), rest),
        };
        if (kind == "datasets") != name.split_once('@').is_some_and(|(_, revision)| !revision.is_empty()) {
            let reason = "expected a commit after the name of a repository, and none after that of a bucket: names of \
                          branches are looked up before files are opened";
            return Err(refused(text, reason));
        }
        if key.is_empty() || key.ends_with('/') {
            return Err(refused(text, "it is a folder of the Hub, which is listed before files are opened"));
        }
        let path = Path::parse(key).map_err(|error| refused(text, &error.to_string()))?;
        let store = StoreKey::Hub(format!("hf://{kind}/{owner}/{name}"));
        Ok(Self { store, path, glob: None, is_folder: false, text: text.into(), written: None })
    }

    /// Parses the URL of an object of a file system, which may be inside an object of another:
    /// `zip://a.parquet::s3://b/x.zip`.
    fn of_file_system(text: &str) -> Result<Self> {
        let hidden = || format!("{}://…", text.split("://").next().unwrap_or_default());
        for (_, link) in text.split("::").filter_map(|link| link.split_once("://")) {
            let authority = link.split('/').next().unwrap_or_default();
            let port = authority.split_once(':').map(|(_, port)| port);
            if authority.contains('@') || port.is_some_and(|port| port.parse::<u16>().is_err()) {
                let reason = "it holds credentials, or what looks like them; pass them through `storage_options`";
                return Err(refused(&hidden(), reason));
            }
            if link.split_once('?').is_some_and(|(_, query)| secrets::has_signature(query)) {
                return Err(refused(&hidden(), "it is signed; pass signatures through `storage_options`"));
            }
        }
        let (links, rest) = text.split_once("://").unwrap_or((text, ""));
        let (key, chain) = rest.find("::").map_or((rest, ""), |end| rest.split_at(end));
        let plain = key.trim_start_matches('/');
        let slashes = &key[..key.len() - plain.len()];
        let store = StoreKey::FileSystem(format!("{}://{slashes}{chain}", links.to_ascii_lowercase()));
        Self::from_key(text, store, plain, plain.is_empty() || plain.ends_with('/'))
    }

    fn from_key(text: &str, store: StoreKey, key: &str, is_folder: bool) -> Result<Self> {
        let key = key.trim_matches('/');
        let (plain, glob) = if is_glob(key) {
            let special = key.find(SPECIAL).unwrap_or(0);
            (key[..special].rsplit_once('/').map_or("", |(folder, _)| folder), Some(key.to_owned()))
        } else {
            (key, None)
        };
        let path = Path::parse(plain).map_err(|error| refused(text, &error.to_string()))?;
        Ok(Self { store, path, glob, is_folder, text: text.into(), written: None })
    }
}

/// Returns whether URLs of a scheme are read natively, whatever else can read them.
fn is_native(scheme: &str) -> bool {
    const NATIVE: [&str; 8] = ["file", "s3", "s3a", "gs", "gcs", "http", "https", "hf"];
    scheme.is_empty() || NATIVE.contains(&scheme) || AZURE_SCHEMES.contains(&scheme)
}

/// Returns the path of a URL as it is written, unless that is what the client sends for the key: it escapes only what
/// it must, while a server may tell `%2B` from `+`, and a slash from `%2F`.
fn as_written(root: &str, key: &str, path: &Path) -> Option<String> {
    let mut sent = Url::parse(root).ok()?;
    // In a URL, a backslash would become a slash.
    let written = Url::parse(&format!("{root}/{}", key.replace('\\', "%5C"))).ok()?;
    sent.path_segments_mut().ok()?.extend(path.parts());
    (!written.path().eq_ignore_ascii_case(sent.path())).then(|| written.path().to_owned())
}

/// Escapes characters that have a meaning in a URL or a pattern.
fn escaped(key: &str) -> String {
    let escape = |character: char| match character {
        '%' | '?' | '#' | '*' | '[' | '{' => format!("%{:02X}", u32::from(character)),
        plain => plain.to_string(),
    };
    key.chars().map(escape).collect()
}

fn is_glob(key: &str) -> bool {
    key.contains(SPECIAL)
}

/// Resolves `..` as the system does: after following links, as far as folders exist.
fn without_dots(path: &path::Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            resolved = resolved.canonicalize().unwrap_or(resolved);
            resolved.pop();
        } else {
            resolved.push(part);
        }
    }
    resolved
}

fn local_path(uri: &str) -> Result<String> {
    // A path has neither query nor fragment: these are literal characters.
    let path = Url::parse(&uri.replace('?', "%3F").replace('#', "%23")).ok().and_then(|url| url.to_file_path().ok());
    let path = path.ok_or_else(|| refused(uri, "expected `file:///absolute/path`"))?;
    Ok(path.to_string_lossy().into_owned())
}

fn refused(uri: &str, reason: &str) -> Error {
    Error::Uri { uri: uri.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Location {
        Location::parse(text).unwrap()
    }

    #[test]
    fn keys_are_taken_as_they_are_written() {
        let location = parse("s3://bucket/a b/100%/ü+=1.parquet");
        assert_eq!(location.store, StoreKey::S3("s3://bucket".into()));
        assert_eq!(location.path.as_ref(), "a b/100%/ü+=1.parquet");
        assert!(!location.is_folder && location.glob.is_none());
    }

    #[test]
    fn the_url_of_a_file_on_the_web_leads_to_it_again() {
        for (url, again) in [
            ("https://host/a b/x%2A%5B1%5D.parquet", "https://host/a%20b/x%2A%5B1%5D.parquet"),
            ("https://host/100%25%3Fx%23y%7Bz.parquet", "https://host/100%25%3Fx%23y%7Bz.parquet"),
            ("http://h/ü+=1.parquet", "http://h/ü+=1.parquet"),
        ] {
            let location = parse(url);
            assert_eq!((location.url().as_str(), parse(&location.url()).path), (again, location.path));
        }
    }

    #[test]
    fn what_a_server_may_tell_apart_is_sent_as_it_is_written() {
        let written = |key: &str| parse(&format!("https://host/d/{key}")).written.map(|text| text.as_str().to_owned());
        for escape in ["%2B", "%5B1%5D", "%7C", "%3B", "%26", "%3D", "%40", "%2C", "%24", "%21", "%27", "%5E", "%3A"] {
            assert_eq!(written(&format!("a{escape}")), Some(format!("/d/a{escape}")));
        }
        assert_eq!(written("a b%2B\\c").as_deref(), Some("/d/a%20b%2B%5Cc"));
        for plain in ["a b", "a%20b", "%c3%bc", "ü%20", "100%25", "%23%3F%7B", "a+b", "a|b", "a\\%20b"] {
            assert_eq!(written(plain), None, "{plain}");
        }
        let refused = Location::parse("https://host/a[1].parquet").unwrap_err().to_string();
        assert!(refused.ends_with("list the files' URLs instead; write `[` in a name as `%5B`"), "{refused}");
    }

    #[test]
    fn a_glob_is_listed_from_its_longest_plain_folder() {
        let location = parse("s3://bucket/data/2024/*/part-?.parquet");
        assert_eq!(location.path.as_ref(), "data/2024");
        assert_eq!(location.glob.as_deref(), Some("data/2024/*/part-?.parquet"));
    }

    #[test]
    fn local_paths_become_absolute() {
        let location = parse("some/folder");
        assert_eq!(location.store, StoreKey::Local);
        assert!(location.path.as_ref().ends_with("some/folder"));
        assert_eq!(parse("file:///data/a%20b").path.as_ref(), "data/a b");
        assert_eq!(parse("file:///data/part-?.parquet").glob.as_deref(), Some("data/part-?.parquet"));
    }

    #[test]
    fn dots_are_resolved_after_links() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("a/b")).unwrap();
        std::fs::create_dir(real.join("data")).unwrap();
        let path_of = |text: &str| parse(&format!("{}/{text}", real.display())).path;
        assert_eq!(path_of("a/../data"), path_of("data"));
        assert_eq!(path_of("missing/../data/*.parquet"), path_of("data"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(real.join("a/b"), real.join("link")).unwrap();
            assert_eq!(path_of("link/../b"), path_of("a/b"));
        }
    }

    #[test]
    fn the_home_folder_is_found() {
        let home = std::env::home_dir().unwrap();
        assert_eq!(parse("~").path, parse(home.to_str().unwrap()).path);
        assert!(parse("~/no such folder").path.as_ref().ends_with("no such folder"));
        assert!(parse("~nobody/x").path.as_ref().ends_with("~nobody/x"));
    }

    #[test]
    fn what_cannot_work_says_what_would() {
        for text in [
            "",
            "ftp://host/x",
            "s3://",
            "http://host/folder/",
            "http://host/%2F",
            "https://host/*.parquet",
            "hf://datasets/a/b",
            "hf://datasets/a/b/x.parquet",
            "hf://datasets/a/b@1/",
            "hf://buckets/a/b@1/x",
            "hf://models/a/b@1/x",
            "hf://a",
        ] {
            assert!(matches!(Location::parse(text), Err(Error::Uri { .. })), "{text}");
        }
    }

    #[test]
    fn a_file_of_the_hub_is_of_a_commit() {
        let location = parse("hf://datasets/a/b@0f/data/x[1]*.parquet");
        assert_eq!(location.store, StoreKey::Hub("hf://datasets/a/b@0f".into()));
        assert_eq!((location.path.as_ref(), location.glob), ("data/x[1]*.parquet", None));
        assert_eq!(parse("hf://buckets/a/b/x").url(), "hf://buckets/a/b/x");
        let convert = parse("hf://datasets/a/b@refs/convert/parquet/default/x.parquet");
        assert_eq!(convert.store, StoreKey::Hub("hf://datasets/a/b@refs/convert/parquet".into()));
        assert!(convert.store.is_sound() && location.store.is_sound());
        assert!(!StoreKey::Hub("hf://datasets/a/b".into()).is_sound());
    }

    #[test]
    fn a_query_goes_beside_the_file_and_into_no_message() {
        let signed = parse("https://host:1/a%20b%2Bc.parquet?X-Amz-Signature=s3cr3t&x=/");
        assert_eq!(signed.written.as_ref().map(Written::as_str), Some("/a%20b%2Bc.parquet?X-Amz-Signature=s3cr3t&x=/"));
        assert!(!format!("{signed:?}").contains("s3cr3t"));
        assert_eq!((signed.path.as_ref(), &*signed.text), ("a b+c.parquet", "https://host:1/a%20b%2Bc.parquet"));
        assert!(!signed.url().contains("s3cr3t"));
        assert_eq!(signed.store, StoreKey::Http("https://host:1".into()));
        assert_eq!(parse("https://host/x.parquet?").written, None);
        assert_eq!(parse("https://host/x.parquet").written, None);
        for query in ["secret\n", "secret secret", "a=\"secret\""] {
            let refused = Location::parse(&format!("https://host/x.parquet?{query}")).unwrap_err().to_string();
            assert!(refused.contains("not allowed in a URL") && !refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_slash_that_a_key_does_not_have_is_not_lost() {
        for url in ["https://host/d/a%2Fb.parquet", "https://host/d/a%2fb.parquet", "https://host//d/b.parquet"] {
            assert!(url.ends_with(parse(url).written.unwrap().as_str()), "{url}");
        }
        for uri in ["s3://bucket//d/x.parquet", "gs://bucket//d/*.parquet", "az://container//d/"] {
            let refused = Location::parse(uri).unwrap_err().to_string();
            let (scheme, rest) = uri.split_once("://").unwrap();
            assert!(refused.contains(&format!("`{scheme}://{}`", rest.replace("//", "/"))), "{refused}");
        }
    }

    #[test]
    fn a_store_has_one_name_whatever_its_scheme_is_called() {
        let account = "container@account.blob.core.windows.net";
        for (uri, store) in [
            ("s3a://bucket/x", StoreKey::S3("s3://bucket".into())),
            ("gcs://bucket/x", StoreKey::Gcs("gs://bucket".into())),
            (format!("wasbs://{account}/x").as_str(), StoreKey::Azure(format!("abfss://{account}"))),
            ("wasb://container/x", StoreKey::Azure("abfss://container".into())),
        ] {
            let location = parse(uri);
            assert!(location.store.is_sound(), "{uri}");
            assert_eq!((location.store, location.path.as_ref()), (store, "x"), "{uri}");
        }
    }

    #[test]
    fn credentials_in_a_uri_are_refused_and_not_repeated() {
        let uris = [
            "s3://key:secret@bucket/x",
            "https://secret@host/x.parquet",
            "abfss://user:secret@account.dfs.core.windows.net/x",
            "wasbs://user:secret@account.blob.core.windows.net/x",
            "https://host/folder/?X-Amz-Signature=secret",
            "https://host/*.parquet?X-Amz-Signature=secret",
            "https://host/x.parquet#secret",
            "https://host/x.parquet?signature=secret#secret",
            "https://host?secret",
            "https://host#secret",
            "s3://key:se/secret@bucket/x",
            "https://user:se/secret@host/x.parquet",
            "gs://key:/secret",
            "az://container/x?sv=2024&sig=secret",
            "s3://bucket/x?X-Amz-Signature=secret",
            "https:/user:secret@host/x.parquet",
        ];
        for uri in uris {
            let message = Location::parse(uri).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
        assert!(Location::parse("https://host:8080/x").is_ok() && Location::parse("http://[::1]:80/x").is_ok());
        assert!(Location::parse("s3://bucket/part-?.parquet").is_ok());
        assert!(Location::parse("abfss://container@account.dfs.core.windows.net/x").is_ok());
    }
}
