//! Packs whole documents into sequences by best-fit decreasing.
//!
//! Documents are examined in windows, counted from the beginning of the epoch, and each window is packed independently:
//! so its documents suffice to decide its sequences again. Pieces go, longest first, into the sequence with the least
//! sufficient room. Sequences leave in the order of their first documents, and documents within a sequence stay in
//! order: the order of rows changes as little as possible.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Mark, Piece, Sequence, beyond};
use crate::error::Result;

/// Packs the documents of one window after another.
#[derive(Debug)]
pub(super) struct BestFit {
    length: usize,
    window: u64,
    /// The first document of the window.
    begin: u64,
    /// Sequences of the first window that were already delivered.
    skipped: u64,
    pieces: Vec<Piece>,
}

impl BestFit {
    pub(super) fn new(length: usize, window: usize, mark: Mark) -> Self {
        Self { length, window: window as u64, begin: mark.document, skipped: mark.done, pieces: Vec::new() }
    }

    /// Adds a document; if it is the last of its window, returns the window's sequences, each with the mark after it.
    pub(super) fn push(&mut self, document: u64, len: usize) -> Result<Vec<(Sequence, Mark)>> {
        // Documents longer than a sequence are cut.
        let starts = (0..len).step_by(self.length);
        self.pieces.extend(starts.map(|start| Piece { document, start, len: self.length.min(len - start) }));
        if document + 1 - self.begin < self.window { Ok(Vec::new()) } else { self.end(document + 1) }
    }

    /// Returns the sequences of the window that ends before document `end`.
    pub(super) fn end(&mut self, end: u64) -> Result<Vec<(Sequence, Mark)>> {
        let sequences = pack(std::mem::take(&mut self.pieces), self.length);
        let num = sequences.len() as u64;
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 && skipped >= num {
            // After all of them, the mark would be after the window.
            return Err(beyond(skipped, num, "sequences"));
        }
        let begin = std::mem::replace(&mut self.begin, end);
        let mark = |done: u64| match done == num {
            true => Mark { document: end, done: 0 },
            false => Mark { document: begin, done },
        };
        let sequences = sequences.into_iter().zip(1..).map(|(sequence, done)| (sequence, mark(done)));
        Ok(sequences.skip(usize::try_from(skipped).unwrap_or(usize::MAX)).collect())
    }

    /// Returns whether there are tokens that are not in a sequence yet.
    pub(super) fn has_tokens(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Returns the first document that is not in a sequence yet.
    pub(super) fn first_needed(&self) -> u64 {
        self.begin
    }
}

/// Packs pieces of at most `length` tokens, given in order.
fn pack(pieces: Vec<Piece>, length: usize) -> Vec<Sequence> {
    let mut by_length: Vec<usize> = (0..pieces.len()).collect();
    by_length.sort_by_key(|&index| (Reverse(pieces[index].len), index));
    let mut sequences: Vec<Vec<usize>> = Vec::new();
    // The room of each sequence, and its number: among equal rooms, the sequence begun first.
    let mut rooms: BTreeSet<(usize, usize)> = BTreeSet::new();
    for index in by_length {
        let len = pieces[index].len;
        let (room, sequence) = match rooms.range((len, 0)..).next().copied() {
            Some(found) => {
                rooms.remove(&found);
                found
            }
            None => {
                sequences.push(Vec::new());
                (length, sequences.len() - 1)
            }
        };
        sequences[sequence].push(index);
        if room > len {
            rooms.insert((room - len, sequence));
        }
    }
    sequences.iter_mut().for_each(|sequence| sequence.sort_unstable());
    sequences.sort_unstable();
    sequences.iter().map(|sequence| sequence.iter().map(|&index| pieces[index]).collect()).collect()
}
