//! Makes reads survive failures of stores and networks: the one layer through which every remote store is read.
//!
//! The clients below make each request once, by a [`transport`], which follows a [`redirect`]. Results are checked
//! before they are trusted ([`answer`], [`listing`]) and classified by what to do about them ([`trouble`]). [`policy`]
//! waits and retries: individually after a failure, together with all others after a refusal ([`pace`]), within the
//! user's [`patience`], by a clock that stops with the process ([`stopwatch`]). A [`body`] that breaks off is resumed;
//! a [`client`] whose credentials are refused is remade once. Requests that are far slower than nearly all of their
//! kind ([`tail`]) are hedged by a second one. [`notes`] count what happened.

mod answer;
mod body;
mod client;
mod connect;
mod http;
mod listing;
mod notes;
mod pace;
mod patience;
mod policy;
mod redirect;
mod stopwatch;
mod tail;
#[cfg(test)]
mod tests;
mod transport;
mod trouble;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, OBJECT_STORE_COALESCE_DEFAULT,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, coalesce_ranges,
};
use tokio::time::{Instant, timeout};

pub(super) use self::answer::{coding, kind_of, retry_after, sent_at};
pub(super) use self::client::Client;
pub(super) use self::connect::{InTurn, by_environment, said};
pub(super) use self::http::Connector;
pub(crate) use self::http::Written;
pub(super) use self::notes::Notes;
pub(super) use self::pace::Pace;
use self::patience::Patience;
pub(super) use self::patience::{CONNECT_TIMEOUT, Impatient, Limit, STALL_TIMEOUT, after};
pub(super) use self::policy::Policy;
pub(super) use self::stopwatch::Stopwatch;
pub(super) use self::tail::Tail;
pub(crate) use self::trouble::Kind;
pub(super) use self::trouble::{
    NoCredentials, Trouble, causes, distrust, is_of_certificates, is_out_of_descriptors, is_refusal,
};
use self::trouble::{Sorted, sort};

/// Concurrent requests for the same bytes.
const MOST_AT_ONCE: usize = 3;

/// A store with reads that retry failures.
#[derive(Debug)]
pub(super) struct Recovering(Arc<Reads>);

/// What the reads of one store have in common.
#[derive(Debug)]
struct Reads {
    client: Client,
    policy: Policy,
}

/// A request that may be repeated.
#[derive(Debug, Clone)]
struct Asked {
    location: Path,
    options: GetOptions,
    notes: Notes,
    num_bytes: u64,
}

impl Recovering {
    pub(super) fn new(client: Client, policy: Policy) -> Self {
        Self(Arc::new(Reads { client, policy }))
    }
}

impl Asked {
    fn new(location: &Path, mut options: GetOptions) -> Self {
        let num_bytes = match &options.range {
            _ if options.head => 0,
            Some(GetRange::Bounded(range)) => range.end.saturating_sub(range.start),
            Some(GetRange::Suffix(len)) => *len,
            Some(GetRange::Offset(_)) | None => u64::MAX,
        };
        let notes = options.extensions.get_or_insert_default::<Notes>().clone();
        Self { location: location.clone(), options, notes, num_bytes }
    }
}

impl Reads {
    /// Retries until the response begins.
    async fn open(&self, asked: &Asked, patience: &mut Patience) -> Result<GetResult> {
        loop {
            let pass = self.policy.traffic.pace().enter(patience).await?;
            let (client, generation) = self.client.get();
            let error = match self.ask(&*client, asked, patience).await {
                Ok(opened) => {
                    pass.answered();
                    self.policy.traffic.answered();
                    return Ok(opened);
                }
                Err(error) => error,
            };
            let may_renew = sort(&error) == Sorted::Refused && !patience.has_refreshed;
            if may_renew && self.client.renew(generation).await {
                patience.has_refreshed = true;
                pass.answered();
            } else {
                self.policy.recover(error, pass, &asked.notes, patience).await?;
            }
        }
    }

    /// Makes the request once, and again each time the response is late.
    async fn ask(&self, client: &dyn ObjectStore, asked: &Asked, patience: &mut Patience) -> Result<GetResult> {
        let request = || client.get_opts(&asked.location, asked.options.clone());
        if let Some(failure) = patience.failure.clone() {
            // A request cut off at the end of patience says less than the one before it.
            let late =
                || Trouble::new(Kind::Stalled, format!("{failure}, and then no answer in the time left")).of("store");
            return patience.wait(patience.left(), request()).await.unwrap_or_else(|| Err(late()));
        }
        let start = Instant::now();
        let answer = match self.late_first_byte(asked.num_bytes) {
            None => patience.watch.run(request()).await,
            Some(late) => patience.watch.run(self.race(request, late, &asked.notes)).await,
        };
        if answer.is_ok() {
            self.policy.traffic.tail().began(asked.num_bytes, start.elapsed());
        }
        answer
    }

    /// Returns the first good response to a request that is repeated each time `late` passes, as far as the budget
    /// allows; the first error if all fail.
    async fn race<F: Future<Output = Result<GetResult>> + Send>(
        &self,
        request: impl Fn() -> F + Send + Sync,
        late: Duration,
        notes: &Notes,
    ) -> Result<GetResult> {
        let numbered = |number: usize| request().map(move |answer| (number, answer));
        let mut requests: FuturesUnordered<_> = std::iter::once(numbered(0)).collect();
        let mut failed = None;
        loop {
            match timeout(late, requests.next()).await {
                Ok(Some((number, Ok(answer)))) => {
                    if number > 0 {
                        notes.won();
                    }
                    return Ok(answer);
                }
                Ok(Some((_, Err(error)))) => {
                    let first = failed.take().unwrap_or(error);
                    if requests.is_empty() {
                        return Err(first);
                    }
                    failed = Some(first);
                }
                Err(_) if requests.len() < MOST_AT_ONCE && self.may_hedge(0) => {
                    notes.hedged();
                    requests.push(numbered(requests.len()));
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn late_first_byte(&self, num_bytes: u64) -> Option<Duration> {
        self.policy.is_hedging.then(|| self.policy.traffic.tail().late_first_byte(num_bytes)).flatten()
    }

    fn late_body(&self, num_bytes: u64) -> Option<Duration> {
        self.policy.is_hedging.then(|| self.policy.traffic.tail().late_body(num_bytes)).flatten()
    }

    /// Spends one request and `num_bytes`, if the store is calm and the budget has them.
    fn may_hedge(&self, num_bytes: u64) -> bool {
        self.policy.traffic.pace().is_calm() && self.policy.traffic.tail().spend(num_bytes)
    }

    fn ended(&self, num_bytes: u64, time: Duration) {
        self.policy.traffic.tail().ended(num_bytes, time);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait::async_trait]
impl ObjectStore for Recovering {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Self(reads) = self;
        let is_head = options.head;
        let asked = Asked::new(location, options);
        let opened = reads.open(&asked, &mut reads.policy.patience()).await?;
        Ok(if is_head { opened } else { body::recovering(reads, asked, opened) })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        coalesce_ranges(ranges, |range| self.get_range(location, range), OBJECT_STORE_COALESCE_DEFAULT).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.client.get().0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.client.get().0.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.client.get().0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (reads, prefix) = (Arc::clone(&self.0), prefix.cloned());
        let listing = async move {
            let (client, generation) = reads.client.get();
            let mut listing = client.list(prefix.as_ref()).peekable();
            let first = Pin::new(&mut listing).peek().await;
            let is_refused = matches!(first, Some(Err(error)) if sort(error) == Sorted::Refused);
            match is_refused && reads.client.renew(generation).await {
                true => reads.client.get().0.list(prefix.as_ref()),
                false => listing.boxed(),
            }
        };
        stream::once(listing).flatten().boxed()
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.client.get().0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.client.get().0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.client.get().0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.client.get().0.rename_opts(from, to, options).await
    }
}

impl fmt::Display for Recovering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recovering({})", self.0.policy.root)
    }
}
