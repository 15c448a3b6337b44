//! The body of a response, without bytes outside the range.

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
    /// Receives the rest of the response; a store may send more than was requested.
    async fn receive(&mut self) -> reqwest::Result<Option<Bytes>> {
        while self.num_missing > 0 {
            let Some(mut bytes) = self.response.chunk().await? else { return Ok(None) };
            let skipped = self.skip.min(bytes.len() as u64);
            self.skip -= skipped;
            // Both are at most the length of bytes in memory.
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
