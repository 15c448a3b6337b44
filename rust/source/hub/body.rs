//! The body of an answer, without what lies beside the range.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use reqwest::Response;

use super::fetch::Opened;
use super::trouble;

struct Body {
    response: Response,
    skip: u64,
    num_missing: u64,
}

/// Returns the bytes of `opened`, until they end or break off.
pub(super) fn stream(opened: Opened) -> BoxStream<'static, object_store::Result<Bytes>> {
    let Opened { response, skip, range, .. } = opened;
    let body = Body { response, skip, num_missing: range.end - range.start };
    stream::try_unfold(body, |mut body| async move {
        let bytes = body.receive().await.map_err(trouble::broken)?;
        Ok(bytes.map(|bytes| (bytes, body)))
    })
    .boxed()
}

impl Body {
    /// Receives what is left of the answer; a store may send more than it was asked for.
    async fn receive(&mut self) -> reqwest::Result<Option<Bytes>> {
        while self.num_missing > 0 {
            let Some(mut bytes) = self.response.chunk().await? else { return Ok(None) };
            let skipped = self.skip.min(bytes.len() as u64);
            self.skip -= skipped;
            // Both are no more than the length of what is in memory.
            bytes = bytes.split_off(usize::try_from(skipped).unwrap_or(bytes.len()));
            bytes.truncate(usize::try_from(self.num_missing).unwrap_or(usize::MAX));
            self.num_missing -= bytes.len() as u64;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}
