//! A response body that is resumed where it broke off, or from a second request if it is slow.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{self, BoxStream, StreamExt};
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectMeta, Result};
use tokio::time::{Instant, Sleep, sleep};

use super::patience::Patience;
use super::trouble::{Kind, Trouble};
use super::{Asked, Reads};
use crate::source::read::{has_tag, tag_of};

/// A body with less missing is not requested twice: its end is on the way.
const LEAST_HEDGED_BYTES: u64 = 64 << 10;

struct Body {
    reads: Arc<Reads>,
    /// Pinned to the version that was opened.
    asked: Asked,
    meta: ObjectMeta,
    stream: BoxStream<'static, Result<Bytes>>,
    /// Bytes of the stream before the missing ones.
    skip: u64,
    missing: Range<u64>,
    num_bytes: u64,
    began: Instant,
    /// Restarts with each byte.
    patience: Patience,
    late: Option<Pin<Box<Sleep>>>,
    hedge: Option<Hedge>,
    is_whole: bool,
}

/// A second request, for what was missing when it was made.
struct Hedge {
    range: Range<u64>,
    answer: BoxFuture<'static, Result<GetResult>>,
}

/// Returns `opened` with a body that is resumed by further responses, if necessary, until its range is complete.
pub(super) fn recovering(reads: &Arc<Reads>, asked: Asked, opened: GetResult) -> GetResult {
    let GetResult { payload: _, meta, range, attributes, extensions } = &opened;
    let (meta, range, attributes, extensions) = (meta.clone(), range.clone(), attributes.clone(), extensions.clone());
    let num_bytes = range.end - range.start;
    let late = (num_bytes >= 2 * LEAST_HEDGED_BYTES).then(|| reads.late_body(num_bytes)).flatten();
    let strong = meta.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
    let options = GetOptions { if_match: asked.options.if_match.clone().or(strong), ..asked.options.clone() };
    let body = Body {
        reads: Arc::clone(reads),
        asked: Asked { options, ..asked },
        meta: meta.clone(),
        stream: opened.into_stream(),
        skip: 0,
        missing: range.clone(),
        num_bytes,
        began: Instant::now(),
        patience: reads.policy.patience(),
        late: late.map(|time| Box::pin(sleep(time))),
        hedge: None,
        is_whole: true,
    };
    let chunks = stream::try_unfold(body, |mut body| async move { Ok(body.next().await?.map(|bytes| (bytes, body))) });
    let payload = object_store::GetResultPayload::Stream(chunks.boxed());
    GetResult { payload, meta, range, attributes, extensions }
}

impl Body {
    /// Returns the next bytes; patience restarts with each.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.missing.is_empty() {
            let mut watch = self.patience.watch;
            let received = watch.run(self.receive()).await;
            self.patience.watch = watch;
            let failed = match received {
                Some(Ok(bytes)) => match self.take(bytes).await {
                    Ok(Some(bytes)) => return Ok(Some(bytes)),
                    Ok(None) => continue,
                    Err(error) => error,
                },
                Some(Err(error)) => error,
                None => {
                    let said = format!("the body ended {} bytes early", self.missing.end - self.missing.start);
                    Trouble::new(Kind::Broken, said).of("store")
                }
            };
            self.go_on(failed).await?;
        }
        if self.is_whole {
            self.reads.ended(self.num_bytes, self.began.elapsed());
            self.is_whole = false;
        }
        Ok(None)
    }

    /// Receives what comes first: bytes, or the response to a second request, which then takes over.
    async fn receive(&mut self) -> Option<Result<Bytes>> {
        loop {
            let received = if let Some(Hedge { answer, .. }) = &mut self.hedge {
                match select(self.stream.next(), answer).await {
                    Either::Left((received, _)) => received,
                    Either::Right((answer, _)) => {
                        self.switch(answer);
                        continue;
                    }
                }
            } else if let Some(late) = &mut self.late {
                match select(self.stream.next(), late).await {
                    Either::Left((received, _)) => received,
                    Either::Right(_) => {
                        self.start_hedge();
                        continue;
                    }
                }
            } else {
                self.stream.next().await
            };
            if matches!(received, Some(Ok(_))) || !self.has_switched().await {
                return received;
            }
        }
    }

    /// Takes the missing bytes; none may follow them, so the last ones are taken only when the response has ended.
    async fn take(&mut self, mut bytes: Bytes) -> Result<Option<Bytes>> {
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        // At most the length of bytes in memory.
        bytes = bytes.split_off(usize::try_from(skipped).unwrap_or(bytes.len()));
        if bytes.is_empty() {
            return Ok(None);
        }
        let (num_bytes, num_missing) = (bytes.len() as u64, self.missing.end - self.missing.start);
        if num_bytes > num_missing || num_bytes == num_missing && self.has_more().await {
            let said = format!("the body is longer than the {} bytes that were asked for", self.num_bytes);
            return Err(Trouble::new(Kind::Wrong, said).of("store"));
        }
        self.missing.start += num_bytes;
        self.patience = self.reads.policy.patience();
        Ok(Some(bytes))
    }

    /// Requests the rest on a second connection, if the budget allows.
    fn start_hedge(&mut self) {
        self.late = None;
        let num_bytes = self.missing.end - self.missing.start;
        if num_bytes < LEAST_HEDGED_BYTES || !self.reads.may_hedge(num_bytes) {
            return;
        }
        self.asked.notes.hedged();
        let (reads, rest) = (Arc::clone(&self.reads), self.rest());
        let answer = async move {
            let (client, _) = reads.client.get();
            client.get_opts(&rest.location, rest.options).await
        };
        self.hedge = Some(Hedge { range: self.missing.clone(), answer: Box::pin(answer) });
    }

    /// Switches to the response to the second request, if it is good.
    fn switch(&mut self, answer: Result<GetResult>) -> bool {
        let Some(Hedge { range, .. }) = self.hedge.take() else { return false };
        let Ok(opened) = answer else { return false };
        if self.check(&opened, &range).is_err() {
            return false;
        }
        self.asked.notes.won();
        self.skip = self.missing.start - range.start;
        self.stream = opened.into_stream();
        true
    }

    /// Waits for the second request, if there is one, after the first has failed.
    async fn has_switched(&mut self) -> bool {
        let Some(Hedge { answer, .. }) = &mut self.hedge else { return false };
        let answer = answer.await;
        self.switch(answer)
    }

    /// Requests what is missing after `failed`.
    async fn go_on(&mut self, failed: Error) -> Result<()> {
        let (rest, reads) = (self.rest(), Arc::clone(&self.reads));
        let gone = reads.policy.traffic.pace().gone();
        reads.policy.recover(failed, gone, &self.asked.notes, &mut self.patience).await?;
        let opened = reads.open(&rest, &mut self.patience).await?;
        self.check(&opened, &self.missing)?;
        self.asked.notes.resumed();
        (self.late, self.is_whole) = (None, false);
        (self.stream, self.skip) = (opened.into_stream(), 0);
        Ok(())
    }

    /// Returns the request for what is missing.
    fn rest(&self) -> Asked {
        let range = Some(GetRange::Bounded(self.missing.clone()));
        Asked { options: GetOptions { range, ..self.asked.options.clone() }, ..self.asked.clone() }
    }

    /// Refuses bytes of another version of the object: stores may ignore `If-Match`.
    fn check(&self, opened: &GetResult, range: &Range<u64>) -> Result<()> {
        let is_same_tag = tag_of(&self.meta).is_none_or(|tag| has_tag(&opened.meta, &tag));
        if is_same_tag && opened.meta.size == self.meta.size && opened.range == *range {
            return Ok(());
        }
        let said = "it was replaced while it was read".to_owned();
        Err(Error::Precondition { path: self.asked.location.to_string(), source: said.into() })
    }

    /// Reads to the end of the response, so that its connection can be reused; returns whether there was more of it.
    async fn has_more(&mut self) -> bool {
        // All bytes are here: errors no longer matter.
        while let Some(Ok(bytes)) = self.stream.next().await {
            if !bytes.is_empty() {
                return true;
            }
        }
        false
    }
}
