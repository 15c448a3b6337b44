//! Text to a location: which store, and what in it.

use std::path::PathBuf;

use object_store::path::Path;
use url::Url;

use crate::error::{Error, Result};

/// Identifies a store: sources with equal keys share a client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
}

impl StoreKey {
    /// Returns the URL of an object as people write it.
    pub(crate) fn url_of(&self, path: &Path) -> String {
        match self {
            Self::Local => format!("/{path}"),
            Self::S3(root) | Self::Gcs(root) | Self::Azure(root) | Self::Http(root) => format!("{root}/{path}"),
        }
    }
}

/// A folder, an object or a glob in a store.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) store: StoreKey,
    /// The object, or the folder to list.
    pub(crate) path: Path,
    /// The pattern, over whole keys, if there is one; `path` is its longest plain folder.
    pub(crate) glob: Option<String>,
    /// The text ends in `/`: certainly a folder.
    pub(crate) is_folder: bool,
    /// The text as it was given, for messages.
    pub(crate) text: String,
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
        let Some((scheme, rest)) = text.split_once("://") else { return Self::local(text, text) };
        let scheme = scheme.to_ascii_lowercase();
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains(':') && authority.contains('@') {
            return Err(refused(
                &format!("{scheme}://…"),
                "it holds credentials; pass them by `storage_options` or the environment",
            ));
        }
        if authority.is_empty() && scheme != "file" {
            return Err(refused(text, "it names no bucket or host"));
        }
        let root = format!("{scheme}://{authority}");
        match scheme.as_str() {
            "file" => Self::local(text, &local_path(text)?),
            "s3" | "s3a" => Self::remote(text, StoreKey::S3(format!("s3://{authority}")), key),
            "gs" | "gcs" => Self::remote(text, StoreKey::Gcs(format!("gs://{authority}")), key),
            "az" | "adl" | "azure" | "abfs" | "abfss" => Self::remote(text, StoreKey::Azure(root), key),
            "http" | "https" => Self::http(text, root, key),
            "hf" => Err(refused(text, "the Hugging Face Hub is not supported yet; download the files, or list their URLs")),
            _ => Err(refused(text, "expected a path, `file://`, `s3://`, `gs://`, `az://` or `http(s)://`")),
        }
    }

    fn local(text: &str, path: &str) -> Result<Self> {
        let path = match path.strip_prefix("~/") {
            Some(below) => std::env::home_dir().map_or_else(|| PathBuf::from(path), |home| home.join(below)),
            None => PathBuf::from(path),
        };
        let is_folder = path.to_string_lossy().ends_with('/');
        let absolute = std::path::absolute(&path).map_err(|error| refused(text, &error.to_string()))?;
        // A glob character in the name of something that exists is no glob.
        let plain = if absolute.exists() { Path::from_absolute_path(&absolute).ok() } else { None };
        if let Some(path) = plain {
            return Ok(Self { store: StoreKey::Local, path, glob: None, is_folder, text: text.into() });
        }
        let key = absolute.to_string_lossy();
        Self::from_key(text, StoreKey::Local, key.trim_start_matches('/'), is_folder)
    }

    fn remote(text: &str, store: StoreKey, key: &str) -> Result<Self> {
        Self::from_key(text, store, key, key.is_empty() || key.ends_with('/'))
    }

    fn http(text: &str, root: String, key: &str) -> Result<Self> {
        let is_plain_file = !key.is_empty() && !key.ends_with('/') && !is_glob(key);
        if !is_plain_file {
            let reason = "HTTP cannot list folders; list the files' URLs instead";
            return Err(refused(text, reason));
        }
        if key.contains('?') || key.contains('#') {
            return Err(refused(&format!("{root}/…"), "URLs with a query are not supported; the key would be lost"));
        }
        let path = Path::from_url_path(key).map_err(|error| refused(text, &error.to_string()))?;
        Ok(Self { store: StoreKey::Http(root), path, glob: None, is_folder: false, text: text.into() })
    }

    fn from_key(text: &str, store: StoreKey, key: &str, is_folder: bool) -> Result<Self> {
        let key = key.trim_matches('/');
        let (plain, glob) = if is_glob(key) {
            let special = key.find(['*', '?', '[', '{']).unwrap_or(0);
            (key[..special].rsplit_once('/').map_or("", |(folder, _)| folder), Some(key.to_owned()))
        } else {
            (key, None)
        };
        let path = Path::parse(plain).map_err(|error| refused(text, &error.to_string()))?;
        Ok(Self { store, path, glob, is_folder, text: text.into() })
    }
}

fn is_glob(key: &str) -> bool {
    key.contains(['*', '?', '[', '{'])
}

fn local_path(uri: &str) -> Result<String> {
    let path = Url::parse(uri).ok().and_then(|url| url.to_file_path().ok());
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
    }

    #[test]
    fn what_cannot_work_says_what_would() {
        for text in ["", "ftp://host/x", "s3://", "http://host/folder/", "https://host/*.parquet", "hf://datasets/a/b"] {
            assert!(matches!(Location::parse(text), Err(Error::Uri { .. })), "{text}");
        }
    }

    #[test]
    fn credentials_in_a_uri_are_refused_and_not_repeated() {
        let message = Location::parse("s3://key:secret@bucket/x").unwrap_err().to_string();
        assert!(!message.contains("secret"), "{message}");
    }
}
