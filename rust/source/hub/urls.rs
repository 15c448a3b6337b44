//! Resolves files to URLs, once in the lifetime of a URL for all readers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::path::Path;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LOCATION, RANGE};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;
use url::Url;

use super::Hub;
use super::fetch::total_size;
use super::pace::{self, Patience};
use super::trouble;
use crate::source::recover::{Kind, after, causes, is_of_certificates, sent_at};

/// Redirects within the Hub: a repository that was renamed.
const MAX_REDIRECTS: usize = 4;

/// A URL is not used for reads that begin less than this before it expires, or a quarter of its lifetime if that is
/// shorter.
const MARGIN: Duration = Duration::from_secs(30);

/// The location of a file's bytes.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) url: Url,
    /// Whether the Hub itself has them.
    pub(super) is_direct: bool,
    pub(super) size: Option<u64>,
    /// Tags that may identify its contents.
    pub(super) tags: Vec<String>,
    refresh_at: Option<Instant>,
}

impl Resolved {
    /// Returns it with what the Hub said about the file on the way, which takes precedence.
    fn after(self, told: Option<Self>) -> Self {
        let Some(Self { size, tags, .. }) = told else { return self };
        Self { size: size.or(self.size), tags: tags.into_iter().chain(self.tags).collect(), ..self }
    }
}

/// A resolved file; locked while it is being resolved.
type Entry = Arc<tokio::sync::Mutex<Option<Arc<Resolved>>>>;

/// The files of a store.
#[derive(Debug, Default)]
pub(super) struct Urls {
    entries: Mutex<HashMap<Path, Entry>>,
}

impl Urls {
    fn entry(&self, path: &Path) -> Entry {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(entries.entry(path.clone()).or_default())
    }
}

impl Hub {
    /// Returns the location of a file's bytes: another than `refused`, which is no longer valid.
    ///
    /// Asks the Hub unless the location is known; meanwhile, all others who need the same file wait for the answer.
    pub(super) async fn resolve(
        &self,
        path: &Path,
        refused: Option<&Arc<Resolved>>,
        patience: &mut Patience,
    ) -> object_store::Result<Arc<Resolved>> {
        let entry = self.urls.entry(path);
        let mut known = patience.watch.run(entry.lock()).await;
        let is_good = |known: &Arc<Resolved>| {
            refused.is_none_or(|refused| !Arc::ptr_eq(known, refused))
                && known.refresh_at.is_none_or(|at| Instant::now() < at)
        };
        known.take_if(|known| !is_good(known));
        if let Some(known) = known.as_ref() {
            return Ok(Arc::clone(known));
        }
        let resolved = Arc::new(self.ask(path, patience).await?);
        *known = Some(Arc::clone(&resolved));
        Ok(resolved)
    }

    /// Has a file resolved again by the next request, unless it has another location than `found` by then.
    pub(super) fn forget(&self, path: &Path, found: &Arc<Resolved>) {
        // While it is locked, it is being resolved.
        if let Ok(mut known) = self.urls.entry(path).try_lock() {
            known.take_if(|known| Arc::ptr_eq(known, found));
        }
    }

    /// Asks the Hub where a file is, until it answers.
    async fn ask(&self, path: &Path, patience: &mut Patience) -> object_store::Result<Resolved> {
        let mut url = self.settings.file_url(path);
        let (mut num_redirects, mut num_failed, mut told) = (0, 0, None);
        loop {
            let slot = self.enter(patience).await?;
            // A file that the Hub serves itself need not be sent for this.
            let sent = patience.watch.run(self.request(&url).header(RANGE, "bytes=0-0").send()).await;
            drop(slot);
            num_failed += 1;
            let response = match sent {
                Ok(response) => response,
                // Certificates do not change by retrying.
                Err(error) if causes(&error).any(is_of_certificates) => return Err(trouble::broken(error)),
                Err(error) => {
                    let kind = if error.is_timeout() { Kind::Stalled } else { Kind::Broken };
                    let said = trouble::of_client(error);
                    self.asks_again(kind, &said, patience);
                    patience.pause(num_failed, &said).await?;
                    continue;
                }
            };
            let (status, headers) = (response.status(), response.headers());
            if status.is_redirection() {
                self.pace.note(headers);
                let target = headers.get(LOCATION).and_then(|to| url.join(to.to_str().ok()?).ok());
                let target =
                    target.ok_or_else(|| trouble::generic("the Hub redirects without saying where to".into()))?;
                let is_linked = headers.contains_key("x-linked-etag");
                if !self.settings.is_ours(&target) || is_linked && is_signed(&target) {
                    return Ok(resolved(target, false, headers));
                }
                if is_linked {
                    // The Hub has it itself, elsewhere: the token still decides about access.
                    told = Some(resolved(target.clone(), true, headers));
                }
                num_redirects += 1;
                if num_redirects > MAX_REDIRECTS {
                    return Err(trouble::generic("the Hub redirects endlessly".into()));
                }
                url = target;
            } else if status.is_success() {
                self.pace.note(headers);
                return direct(url, status, headers, told);
            } else {
                self.wait_after(path, status, headers, num_failed, patience).await?;
            }
        }
    }

    /// Waits until a request to the Hub may be sent.
    pub(super) async fn enter(&self, patience: &mut Patience) -> object_store::Result<SemaphorePermit<'_>> {
        if self.pace.held_until().is_some() {
            self.policy().tell(Kind::Throttled, "its quota of requests is used up");
        }
        self.pace.enter(patience).await
    }

    /// Waits after a response that may change later; all others are errors.
    pub(super) async fn wait_after(
        &self,
        path: &Path,
        status: StatusCode,
        headers: &HeaderMap,
        num_failed: u32,
        patience: &mut Patience,
    ) -> object_store::Result<()> {
        let said = trouble::refusal(status, headers);
        if status == StatusCode::TOO_MANY_REQUESTS {
            let wait = pace::refused_for(headers).unwrap_or_else(|| pace::pause_after(num_failed));
            patience.check(wait, &said)?;
            self.asks_again(Kind::Throttled, &said, patience);
            self.pace.hold(wait);
            return Ok(());
        }
        if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            self.asks_again(Kind::Failed, &said, patience);
            return patience.pause(num_failed, &said).await;
        }
        Err(trouble::of_status(path, status, said))
    }

    /// Starts a request to the Hub itself, with the token if the URL is its own.
    pub(super) fn request(&self, url: &Url) -> reqwest::RequestBuilder {
        let request = self.asking.get(url.clone());
        match &self.settings.token {
            Some(token) if self.settings.is_ours(url) => request.bearer_auth(token),
            _ => request,
        }
    }
}

/// Returns what a redirect says about a file.
fn resolved(url: Url, is_direct: bool, headers: &HeaderMap) -> Resolved {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    // The redirect's own tag is used if there is none for its target.
    let tags = ["x-linked-etag", "x-xet-hash"].into_iter().filter_map(text);
    let tags: Vec<String> = tags.chain(text(ETAG.as_str())).collect();
    let size = text("x-linked-size").and_then(|size| size.parse().ok());
    let refresh_at = lifetime(&url, sent_at(headers)).map(|left| after(left.saturating_sub(MARGIN.min(left / 4))));
    Resolved { url, is_direct, size, tags, refresh_at }
}

/// Returns a file that the Hub serves itself, with what it `told` on the way.
///
/// Others may have answered in its place: without a tag or a commit, it is no file of a Hub.
fn direct(url: Url, status: StatusCode, headers: &HeaderMap, told: Option<Resolved>) -> object_store::Result<Resolved> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let total = text(CONTENT_RANGE).and_then(total_size);
    let is_file = status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT && total.is_some();
    let found = resolved(url, true, headers);
    if found.tags.is_empty() && text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html")) {
        return Err(trouble::wrong("the Hub answered with a page of HTML instead of a file".into()));
    }
    let size = found.size.or(total).or_else(|| text(CONTENT_LENGTH)?.parse().ok());
    let found = Resolved { size, ..found }.after(told);
    if !is_file || found.tags.is_empty() && !headers.contains_key("x-repo-commit") {
        return Err(trouble::wrong(format!("the Hub answered {status} without what it says of a file")));
    }
    Ok(found)
}

/// Returns how long a signed URL remains valid at the time `now` of the signer's clock, if it says so.
fn lifetime(url: &Url, now: DateTime<Utc>) -> Option<Duration> {
    let now = Duration::from_secs(u64::try_from(now.timestamp()).unwrap_or_default());
    let until = number_in(url, "Expires").map(|at| Duration::from_secs(at).saturating_sub(now));
    until.into_iter().chain(number_in(url, "X-Amz-Expires").map(Duration::from_secs)).min()
}

/// Returns whether a URL grants access by itself.
fn is_signed(url: &Url) -> bool {
    let is_signature = |name: &str| ["signature", "x-amz-signature"].contains(&name.to_ascii_lowercase().as_str());
    url.query_pairs().any(|(name, _)| is_signature(&name))
}

fn number_in(url: &Url, wanted: &str) -> Option<u64> {
    let mut pairs = url.query_pairs().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
    pairs.next()?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(query: &str) -> Option<u64> {
        lifetime(&url(query), Utc::now()).map(|left| left.as_secs())
    }

    fn url(query: &str) -> Url {
        Url::parse(&format!("https://cdn.test/x?{query}")).unwrap()
    }

    #[test]
    fn it_is_good_as_long_as_the_clock_of_who_signed_it_says() {
        let date = "Thu, 01 Jan 2026 00:00:00 GMT";
        let headers = HeaderMap::from_iter([(reqwest::header::DATE, date.parse().unwrap())]);
        let expires = sent_at(&headers).timestamp() + 600;
        let found = resolved(url(&format!("Expires={expires}&Signature=a")), false, &headers);
        let left = found.refresh_at.unwrap() - Instant::now();
        assert!((560..=570).contains(&left.as_secs()), "{left:?}");
    }

    #[test]
    fn a_signature_is_known_by_its_name() {
        assert!(is_signed(&url("Expires=1&Signature=a")) && is_signed(&url("X-Amz-Signature=a")));
        assert!(!is_signed(&url("etag=Signature")));
    }

    #[test]
    fn a_signed_url_says_how_long_it_is_good() {
        let now = u64::try_from(Utc::now().timestamp()).unwrap();
        assert_eq!(left("X-Amz-Expires=3600&X-Amz-Signature=a"), Some(3600));
        assert!((90..=100).contains(&left(&format!("Expires={}&Signature=a", now + 100)).unwrap()));
        assert!((90..=100).contains(&left(&format!("X-Amz-Expires=3600&Expires={}", now + 100)).unwrap()));
        assert_eq!(left(&format!("Expires={}", now - 100)), Some(0));
        assert_eq!(left("Expires=soon"), None);
        assert_eq!(left(""), None);
    }
}
