//! The Hub's location, the user's token, and time limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use object_store::path::Path;
use reqwest::tls::Certificate;
use url::Url;

use crate::error::Result;
use crate::process::LockOfProcess;
use crate::source::recover::Limit;
use crate::source::settings::{
    CA_CERTIFICATE, HEDGE, Named, RETRY_FOR, ROUND_TRIP_BYTES, bundle_of_tools, certificates, duration, flag, refused,
};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// How long one read retries when a Hub refuses or fails. Its quotas cover five minutes.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(600);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A body may take long while bytes keep arriving: only a stall ends it.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The options of the Hub's store.
pub(super) const OPTIONS: [&str; 10] = [
    "hf_endpoint",
    "hf_token",
    PATIENCE,
    "connect_timeout",
    "read_timeout",
    "proxy_url",
    RETRY_FOR,
    HEDGE,
    ROUND_TRIP_BYTES,
    CA_CERTIFICATE,
];

/// The name of the Hub's own patience option; other stores use [`RETRY_FOR`], which is accepted, too.
const PATIENCE: &str = "hf_patience";

/// What requests to a repository or bucket have in common.
pub(super) struct Settings {
    /// `hf://datasets/org/name@commit` or `hf://buckets/org/name`.
    pub(super) root: String,
    /// The URL of the repository or bucket: files are below it.
    base: Url,
    pub(super) token: Option<String>,
    /// Whether the token came from the environment or a login, which may provide another one later.
    pub(super) is_of_user: bool,
    pub(super) limit: Limit,
    pub(super) is_hedging: bool,
    pub(super) certificates: Vec<Certificate>,
    pub(super) proxy_url: Option<String>,
    pub(super) connect_timeout: Duration,
    pub(super) read_timeout: Duration,
}

impl Settings {
    /// Reads options, and the environment for missing ones.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for unknown options and invalid values.
    pub(super) fn try_new(root: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        if let Some(name) = options.keys().find(|name| !OPTIONS.contains(&name.as_str())) {
            let names = OPTIONS.join("`, `");
            return Err(refused(format!("`{name}` is not an option of the Hub; expected `{names}`")));
        }
        let given = |name: &str| options.get(name).map(String::as_str);
        let endpoint = given("hf_endpoint").map(str::to_owned).or_else(|| variable("HF_ENDPOINT"));
        let of_user = tidy(token_of_user());
        let token = given("hf_token").map_or_else(|| of_user.clone(), |token| tidy(Some(token.to_owned())));
        let certificate = options.get(CA_CERTIFICATE).map(|value| Named::new(CA_CERTIFICATE, value.clone()));
        let time = |name: &str, default: Duration| given(name).map_or(Ok(default), |text| duration(name, text));
        let option = if given(PATIENCE).is_none() && given(RETRY_FOR).is_some() { RETRY_FOR } else { PATIENCE };
        let limit = Limit { time: time(option, DEFAULT_PATIENCE)?, option, is_given: true };
        Ok(Self {
            base: base(root, endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT))?,
            root: root.to_owned(),
            is_of_user: token.as_ref().is_some_and(|token| is_of_user(token, of_user)),
            token,
            limit,
            is_hedging: given(HEDGE).map_or(Ok(true), |text| flag(HEDGE, text))?,
            certificates: certificate.or_else(bundle_of_tools).as_ref().map_or(Ok(Vec::new()), certificates)?,
            proxy_url: given("proxy_url").map(str::to_owned),
            connect_timeout: time("connect_timeout", CONNECT_TIMEOUT.min(limit.time))?,
            read_timeout: time("read_timeout", READ_TIMEOUT.min(limit.time))?,
        })
    }

    /// Returns the Hub's origin, as text.
    pub(super) fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    /// Returns whether a URL belongs to the Hub itself, which may see the token.
    pub(super) fn is_ours(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Returns the URL at which the Hub resolves a file.
    pub(super) fn file_url(&self, path: &Path) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path.as_ref().split('/'));
        }
        url
    }
}

/// Returns the URL below which the Hub resolves the files of `root`.
fn base(root: &str, endpoint: &str) -> Result<Url> {
    let not_a_url = || refused(format!("`hf_endpoint`: expected a URL such as `{DEFAULT_ENDPOINT}`, got `{endpoint}`"));
    let mut url = Url::parse(endpoint).map_err(|_| not_a_url())?;
    if !["http", "https"].contains(&url.scheme()) || !url.username().is_empty() || url.password().is_some() {
        return Err(not_a_url());
    }
    let place = root.strip_prefix("hf://").unwrap_or(root);
    let (id, revision) = place.split_once('@').map_or((place, None), |(id, revision)| (id, Some(revision)));
    {
        let mut segments = url.path_segments_mut().map_err(|()| not_a_url())?;
        segments.pop_if_empty().extend(id.split('/')).push("resolve").extend(revision);
    }
    Ok(url)
}

/// Records the token that the environment or a login names now; returns whether `token` has ever been named that way in
/// this process.
fn is_of_user(token: &str, now: Option<String>) -> bool {
    static NAMED: LockOfProcess<BTreeSet<String>> = LockOfProcess::new();
    let mut named = NAMED.lock();
    named.extend(now);
    named.contains(token)
}

fn tidy(token: Option<String>) -> Option<String> {
    token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// Returns the token from the environment or a saved login.
pub(crate) fn token_of_user() -> Option<String> {
    let is_off =
        |name| variable(name).is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()));
    if is_off("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return None;
    }
    variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")).or_else(|| {
        let path = |name| variable(name).map(|text| expanded(&text));
        let cache = || path("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
        let home = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
        let path = path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))?;
        // An unreadable token counts as none: the Hub reports it if one is needed.
        std::fs::read_to_string(path).ok()
    })
}

/// Returns a path from the environment, with `~` and `$NAME` expanded as by a shell.
fn expanded(text: &str) -> PathBuf {
    let (mut found, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let in_braces = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let (name, following) = in_braces.unwrap_or_else(|| after.split_at(end));
        let named = &rest[before.len()..rest.len() - following.len()];
        found.push_str(before);
        found.push_str(&std::env::var(name).unwrap_or_else(|_| named.to_owned()));
        rest = following;
    }
    found.push_str(rest);
    match (found.strip_prefix("~/"), std::env::home_dir()) {
        (Some(below), Some(home)) => home.join(below),
        _ => PathBuf::from(found),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (endpoint, has_token) = (self.origin(), self.token.is_some());
        f.debug_struct("Settings")
            .field("root", &self.root)
            .field("endpoint", &endpoint)
            .field("has_token", &has_token)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(root: &str, pairs: &[(&str, &str)]) -> Result<Settings> {
        let mut options: BTreeMap<String, String> =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        options.entry("hf_token".into()).or_default();
        Settings::try_new(root, &options)
    }

    #[test]
    fn a_file_is_resolved_below_its_repository_and_its_name_is_quoted() {
        let hub = settings("hf://datasets/org/name@0a1b", &[("hf_endpoint", "http://127.0.0.1:9/hub/")]).unwrap();
        let url = hub.file_url(&Path::parse("data dir/a%b#?.parquet").unwrap());
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:9/hub/datasets/org/name/resolve/0a1b/data%20dir/a%25b%23%3F.parquet"
        );
        let bucket = settings("hf://buckets/org/name", &[("hf_endpoint", "https://hub.test")]).unwrap();
        assert_eq!(bucket.file_url(&Path::from("x")).as_str(), "https://hub.test/buckets/org/name/resolve/x");
        let convert =
            settings("hf://datasets/o/n@refs/convert/parquet", &[("hf_endpoint", "https://hub.test")]).unwrap();
        let expected = "https://hub.test/datasets/o/n/resolve/refs%2Fconvert%2Fparquet/x";
        assert_eq!(convert.file_url(&Path::from("x")).as_str(), expected);
    }

    #[test]
    fn only_the_hubs_own_origin_is_ours() {
        let hub = settings("hf://datasets/o/n@1", &[("hf_endpoint", "https://hub.test")]).unwrap();
        let is_ours = |url: &str| hub.is_ours(&Url::parse(url).unwrap());
        assert!(is_ours("https://hub.test/x") && is_ours("https://hub.test:443/x"));
        for url in ["http://hub.test/x", "https://cdn.hub.test/x", "https://hub.test:444/x", "https://hub.test.org/x"] {
            assert!(!is_ours(url), "{url}");
        }
    }

    #[test]
    fn times_have_units_and_nonsense_is_refused() {
        let patience = |text| settings("hf://datasets/o/n@1", &[("hf_patience", text)]).map(|found| found.limit.time);
        assert_eq!(patience("90").unwrap(), Duration::from_secs(90));
        assert_eq!(patience("2 minutes").unwrap(), Duration::from_secs(120));
        assert_eq!(patience("250ms").unwrap(), Duration::from_millis(250));
        for text in ["", "0", "-1", "soon", "5 parsecs", "NaN", "inf"] {
            assert!(patience(text).unwrap_err().to_string().contains("hf_patience"), "{text}");
        }
    }

    #[test]
    fn paths_of_the_environment_may_name_variables() {
        let path = std::env::var("PATH").unwrap();
        for text in ["$PATH/x", "${PATH}/x"] {
            assert_eq!(expanded(text), PathBuf::from(format!("{path}/x")), "{text}");
        }
        for text in ["/a/b", "$NO_SUCH_VARIABLE/x", "${NO_SUCH_VARIABLE}x", "a$", "$/x", "${", ""] {
            assert_eq!(expanded(text), PathBuf::from(text), "{text}");
        }
        assert_eq!(expanded("~/x"), std::env::home_dir().unwrap().join("x"));
    }

    #[test]
    fn a_token_is_never_shown() {
        let hub = settings("hf://datasets/o/n@1", &[("hf_token", "hf_s3cr3t")]).unwrap();
        assert_eq!(hub.token.as_deref(), Some("hf_s3cr3t"));
        assert!(!format!("{hub:?}").contains("s3cr3t"));
        let refused = settings("hf://datasets/o/n@1", &[("hf_tokn", "hf_s3cr3t")]).unwrap_err().to_string();
        assert!(refused.contains("hf_tokn") && !refused.contains("s3cr3t"), "{refused}");
    }
}
