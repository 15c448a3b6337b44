//! Packs all tokens end to end.

use super::{Mark, Piece, Sequence, beyond};
use crate::error::Result;

/// Concatenates documents and cuts the tokens every `length`.
#[derive(Debug)]
pub(super) struct Concat {
    length: usize,
    drop_last: bool,
    /// Tokens of the first document that were already delivered.
    skipped: usize,
    open: Sequence,
    open_len: usize,
}

impl Concat {
    pub(super) fn new(length: usize, drop_last: bool, mark: Mark) -> Self {
        let skipped = usize::try_from(mark.done).unwrap_or(usize::MAX);
        Self { length, drop_last, skipped, open: Sequence::new(), open_len: 0 }
    }

    /// Adds a document; returns the sequences that it fills, each with the mark after it.
    pub(super) fn push(&mut self, document: u64, len: usize) -> Result<Vec<(Sequence, Mark)>> {
        let mut filled = Vec::new();
        let mut start = self.take_skipped(len)?;
        while start < len {
            let taken = (len - start).min(self.length - self.open_len);
            self.open.push(Piece { document, start, len: taken });
            self.open_len += taken;
            start += taken;
            if self.open_len == self.length {
                let mark = if start == len {
                    Mark { document: document + 1, done: 0 }
                } else {
                    Mark { document, done: start as u64 }
                };
                filled.push((std::mem::take(&mut self.open), mark));
                self.open_len = 0;
            }
        }
        Ok(filled)
    }

    /// Returns how many tokens of a document of `len` were already delivered. After all of them, the mark would be
    /// after it.
    fn take_skipped(&mut self, len: usize) -> Result<usize> {
        match std::mem::take(&mut self.skipped) {
            skipped if skipped > 0 && skipped >= len => Err(beyond(skipped as u64, len as u64, "tokens")),
            skipped => Ok(skipped),
        }
    }

    /// Returns the remainder at the end, if it is to be delivered.
    pub(super) fn end(&mut self, num_documents: u64) -> Result<Vec<(Sequence, Mark)>> {
        self.take_skipped(0)?;
        let open = std::mem::take(&mut self.open);
        let is_wanted = !open.is_empty() && !self.drop_last;
        Ok(is_wanted.then_some((open, Mark { document: num_documents, done: 0 })).into_iter().collect())
    }

    /// Returns whether there are tokens that are not in a sequence yet.
    pub(super) fn has_tokens(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the first document with tokens that are not in a sequence yet.
    pub(super) fn first_needed(&self) -> u64 {
        self.open.first().map_or(u64::MAX, |piece| piece.document)
    }
}
