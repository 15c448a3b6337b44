//! Packs documents into sequences of one length.
//!
//! A document is a row's list of tokens, possibly with parallel lists. Which pieces of which documents form a sequence
//! depends only on the lengths of a rank's documents, in order; [`concat`] and [`best_fit`] decide it, [`batch`]
//! copies. So a [`Mark`] of two numbers is enough to resume: a document from which the same decisions are repeated, and
//! how much of what follows was delivered. States contain no tokens.
//!
//! Sans-IO: the caller pushes documents, and takes batches as long as there are any.

mod batch;
mod best_fit;
mod concat;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use serde::{Deserialize, Serialize};

pub use self::batch::PackedBatch;
use self::best_fit::BestFit;
use self::concat::Concat;
use crate::error::{Error, Result};
use crate::finish::Pads;

/// How documents become sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackMode {
    /// All tokens end to end, cut every `length`.
    Concat,
    /// Whole documents, in as few sequences as best-fit decreasing finds for the documents of a window.
    BestFit,
}

/// How documents are packed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackSettings {
    /// Number of tokens in a sequence.
    pub length: usize,
    /// How documents become sequences.
    pub mode: PackMode,
    /// Number of documents that are packed together.
    pub window: usize,
    /// Number of sequences in a batch.
    pub batch_size: usize,
    /// Whether to leave out a final batch that is not full, and with [`PackMode::Concat`] a final sequence that is not
    /// full.
    pub drop_last: bool,
    /// Padding values by column; by default 0, or -100 for `labels`.
    pub values: BTreeMap<String, serde_json::Number>,
    /// Whether there are labels, in which the first token of each piece of a document is ignored.
    pub labels: bool,
    /// Whether the sequences of a batch are concatenated in one row.
    pub is_flat: bool,
}

/// The position of packing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The first document that is needed to continue.
    pub document: u64,
    /// How much of it and later documents was delivered: tokens in [`PackMode::Concat`], sequences in
    /// [`PackMode::BestFit`].
    pub done: u64,
}

/// A piece of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    document: u64,
    start: usize,
    len: usize,
}

/// The pieces of one sequence, in order; at most its length in all.
type Sequence = Vec<Piece>;

/// Decides which pieces form a sequence.
#[derive(Debug)]
enum Decider {
    Concat(Concat),
    BestFit(BestFit),
}

impl Decider {
    /// Returns whether there are tokens that are not in a sequence yet.
    fn has_tokens(&self) -> bool {
        match self {
            Self::Concat(concat) => concat.has_tokens(),
            Self::BestFit(best_fit) => best_fit.has_tokens(),
        }
    }
}

/// Documents that were read together.
#[derive(Debug)]
struct Source {
    /// The number of the first one.
    first: u64,
    batch: RecordBatch,
    bytes: u64,
    /// The start of each, and the end.
    offsets: Vec<usize>,
}

impl Source {
    /// Returns the number of the document after the last one.
    fn end(&self) -> u64 {
        self.first + self.batch.num_rows() as u64
    }
}

/// Packs the documents of one rank.
#[derive(Debug)]
pub struct Packer {
    settings: PackSettings,
    memory_bytes: u64,
    decider: Decider,
    /// Documents that are still needed, in order.
    sources: VecDeque<Source>,
    /// Number of documents pushed so far, including those before the first.
    num_documents: u64,
    /// Sequences that are decided but not delivered, each with the mark after it.
    sequences: VecDeque<(Sequence, Mark)>,
    mark: Mark,
    is_ended: bool,
    num_tokens: u64,
    num_padding: u64,
}

impl Packer {
    /// Prepares packing from a mark on: the first document pushed is the one that it names.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for empty sequences, batches or windows.
    pub fn try_new(settings: PackSettings, mark: Mark) -> Result<Self> {
        let numbers = [("length", settings.length), ("window", settings.window), ("batch_size", settings.batch_size)];
        for (name, number) in numbers {
            if number == 0 {
                return Err(Error::Setting { name, reason: "expected at least 1, got 0".to_owned() });
            }
        }
        let num_tokens = settings.length.checked_mul(settings.batch_size);
        if num_tokens.is_none_or(|num_tokens| i32::try_from(num_tokens).is_err()) {
            let reason = "a batch of that many tokens cannot be numbered by 32 bits; use a smaller one".to_owned();
            return Err(Error::Setting { name: "batch_size", reason });
        }
        let decider = match settings.mode {
            PackMode::Concat => Decider::Concat(Concat::new(settings.length, settings.drop_last, mark)),
            PackMode::BestFit => Decider::BestFit(BestFit::new(settings.length, settings.window, mark)),
        };
        Ok(Self {
            settings,
            memory_bytes: u64::MAX,
            decider,
            sources: VecDeque::new(),
            num_documents: mark.document,
            sequences: VecDeque::new(),
            mark,
            is_ended: false,
            num_tokens: 0,
            num_padding: 0,
        })
    }

    /// Returns the packer with a limit for the documents that it holds for a window. It changes no sequence; without
    /// windows, what is held is that of a batch and of one read.
    pub fn within(self, memory_bytes: u64) -> Self {
        Self { memory_bytes, ..self }
    }

    /// Adds the next documents: lists with the same offsets in all columns, as [`Finish`](crate::Finish) makes them.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`] if the mark claims more than there is, and [`Error::WindowMemory`] if the documents of a
    /// window take more memory than [allowed](Self::within).
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let Some(offsets) = offsets(&batch) else { return Ok(()) };
        let begin = self.first_undecided();
        for (document, pair) in (self.num_documents..).zip(offsets.windows(2)) {
            let decided = match &mut self.decider {
                Decider::Concat(concat) => concat.push(document, pair[1] - pair[0])?,
                Decider::BestFit(best_fit) => best_fit.push(document, pair[1] - pair[0])?,
            };
            self.sequences.extend(decided);
        }
        // Columns may be views of what was decoded, whose parts other documents hold.
        let sizes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        let bytes: u64 = sizes.map(|size| size.unwrap_or(0) as u64).sum();
        let source = Source { first: self.num_documents, batch, bytes, offsets };
        self.num_documents = source.end();
        self.sources.push_back(source);
        self.check_memory(begin)?;
        self.drop_delivered();
        Ok(())
    }

    /// Refuses too large a window that begins with document `begin`.
    fn check_memory(&self, begin: u64) -> Result<()> {
        if self.settings.mode != PackMode::BestFit {
            return Ok(());
        }
        let sources = self.sources.range(self.sources.partition_point(|source| source.end() <= begin)..);
        let held_bytes = sources.clone().map(|source| source.bytes).sum();
        if held_bytes <= self.memory_bytes {
            return Ok(());
        }
        Err(Error::WindowMemory {
            window: self.settings.window,
            limit_bytes: self.memory_bytes,
            num_documents: sources.map(|source| source.batch.num_rows()).sum(),
            held_bytes,
        })
    }

    /// Returns the first document that is not in a sequence yet.
    fn first_undecided(&self) -> u64 {
        match &self.decider {
            Decider::Concat(concat) => concat.first_needed(),
            Decider::BestFit(best_fit) => best_fit.first_needed(),
        }
    }

    /// Signals that there are no more documents.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`] if the mark claims more than there is.
    pub fn end(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_ended, true) {
            let has_rest = self.decider.has_tokens();
            let decided = match &mut self.decider {
                Decider::Concat(concat) => concat.end(self.num_documents)?,
                Decider::BestFit(best_fit) => best_fit.end(self.num_documents)?,
            };
            self.sequences.extend(decided);
            if !has_rest && let Some((_, mark)) = self.sequences.back_mut() {
                // Behind empty documents, too: the state after the last sequence is that of the end.
                *mark = Mark { document: self.num_documents, done: 0 };
            }
        }
        Ok(())
    }

    /// Returns whether there is a batch.
    pub fn has_batch(&self) -> bool {
        // The mark after the last sequence is known at the end only.
        let may_be_last = !self.is_ended && !self.decider.has_tokens();
        let is_whole = self.sequences.len() >= self.settings.batch_size + usize::from(may_be_last);
        is_whole || self.is_ended && !self.settings.drop_last && !self.sequences.is_empty()
    }

    /// Returns whether there is no batch and never will be.
    pub fn is_done(&self) -> bool {
        self.is_ended && !self.has_batch()
    }

    /// Returns the next batch; `None` if more documents are needed, or at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if a column cannot hold its padding value.
    pub fn next_batch(&mut self) -> Result<Option<PackedBatch>> {
        if !self.has_batch() {
            return Ok(None);
        }
        let num = self.settings.batch_size.min(self.sequences.len());
        let (sequences, marks): (Vec<_>, Vec<_>) = self.sequences.drain(..num).unzip();
        let schema = self.schema();
        let pads = Pads::of_schema(&schema, &self.settings.values, self.settings.labels)?;
        let batch = batch::pack(&self.settings, &schema, &self.sources, &sequences, &pads);
        self.mark = marks.last().copied().unwrap_or(self.mark);
        self.num_tokens += batch.num_tokens;
        self.num_padding += batch.num_padding;
        self.drop_delivered();
        Ok(Some(batch))
    }

    fn schema(&self) -> SchemaRef {
        self.sources.front().map_or_else(|| Arc::new(Schema::empty()), |source| source.batch.schema())
    }

    /// Drops documents that no sequence needs any more.
    fn drop_delivered(&mut self) {
        // Sequences leave in the order of their first documents.
        let decided = self.sequences.front().and_then(|(sequence, _)| sequence.first()).map(|piece| piece.document);
        let first_needed = decided.unwrap_or(u64::MAX).min(self.first_undecided());
        // The last one is kept for the columns' types.
        while self.sources.len() > 1 && self.sources.front().is_some_and(|source| source.end() <= first_needed) {
            self.sources.pop_front();
        }
    }

    /// Returns the position of packing after the last delivered batch.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Returns the number of tokens delivered, and of positions without one.
    pub fn filled(&self) -> (u64, u64) {
        (self.num_tokens, self.num_padding)
    }
}

/// Returns the error for a mark that claims more than there is, which packing never produces.
fn beyond(done: u64, there: u64, what: &str) -> Error {
    Error::NotAState { reason: format!("pack.done: {done} {what} were delivered, of which there are {there}") }
}

/// Returns the starts of a batch's documents, and the end; `None` for a batch without documents.
fn offsets(batch: &RecordBatch) -> Option<Vec<usize>> {
    let first = batch.columns().first()?.as_list_opt::<i64>()?;
    let offsets = first.offsets().iter().map(|&offset| usize::try_from(offset).unwrap_or(0));
    (batch.num_rows() > 0).then(|| offsets.collect())
}
