//! The body of an answer, which goes on where it broke off.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use reqwest::Response;

use super::Hub;
use super::fetch::{self, Asked, Opened};
use super::trouble;

struct Body {
    hub: Arc<Hub>,
    asked: Asked,
    response: Option<Response>,
    skip: u64,
    missing: Range<u64>,
    size: u64,
}

/// Returns the bytes of `opened`, and of further answers where it breaks off.
pub(super) fn stream(hub: Arc<Hub>, asked: Asked, opened: Opened) -> BoxStream<'static, object_store::Result<Bytes>> {
    let Opened { response, skip, range, size, .. } = opened;
    let body = Body { hub, asked: pinned(asked, opened.e_tag), response: Some(response), skip, missing: range, size };
    stream::try_unfold(body, |mut body| async move { Ok(body.next().await?.map(|bytes| (bytes, body))) }).boxed()
}

/// Returns the request for more of the very version that was opened.
fn pinned(asked: Asked, e_tag: Option<String>) -> Asked {
    Asked { if_match: asked.if_match.or(e_tag), ..asked }
}

impl Body {
    /// Returns the next bytes; patience begins anew with each.
    async fn next(&mut self) -> object_store::Result<Option<Bytes>> {
        let patience = self.hub.patience();
        let mut num_failed = 0;
        while self.missing.start < self.missing.end {
            let said = match self.receive().await {
                Ok(Some(bytes)) if bytes.is_empty() => continue,
                Ok(Some(bytes)) => return Ok(Some(bytes)),
                Ok(None) => "the body ended before its end".to_owned(),
                Err(error) => trouble::of_client(error),
            };
            num_failed += 1;
            if num_failed > 1 {
                patience.pause(num_failed, &said).await?;
            }
            let opened = fetch::go_on(&self.hub, &self.asked, self.missing.clone(), self.size, &patience).await?;
            (self.response, self.skip) = (Some(opened.response), opened.skip);
        }
        Ok(None)
    }

    /// Receives what is left of the answer, without what lies beside the range.
    async fn receive(&mut self) -> reqwest::Result<Option<Bytes>> {
        let Some(response) = &mut self.response else { return Ok(None) };
        let Some(mut bytes) = response.chunk().await? else { return Ok(None) };
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        // Both are no more than the length of what is in memory.
        bytes = bytes.split_off(usize::try_from(skipped).unwrap_or(bytes.len()));
        let left = usize::try_from(self.missing.end - self.missing.start).unwrap_or(usize::MAX);
        bytes.truncate(left);
        self.missing.start += bytes.len() as u64;
        Ok(Some(bytes))
    }
}
