//! The things that a stream's scheduler moves: pieces, batches, and what is to be done with them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;

#[cfg(doc)]
use super::scheduler::Scheduler;
use crate::dataset::RowGroupRead;
use crate::plan::{BatchSlice, PieceId};

/// One fetch of one piece; the block distinguishes repeated ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PieceKey {
    pub(super) piece: PieceId,
    pub(super) block: u32,
}

/// One thing for a worker to do.
#[derive(Debug)]
pub(super) enum Task {
    /// Plan the read of a piece and start fetching it; then [`Scheduler::fetched`].
    Fetch(PieceKey),
    /// Turn bytes into arrays, of which only the rows `keep` are wanted; then [`Scheduler::decoded`].
    Decode { key: PieceKey, fetched: Box<Fetched>, keep: Option<Arc<[u32]>> },
    /// Keep only the rows `keep` of decoded arrays; then [`Scheduler::compacted`].
    Compact { key: PieceKey, batch: RecordBatch, keep: Arc<[u32]> },
    /// Copy rows (source, row) together; then [`Scheduler::gathered`].
    Gather { number: u64, sources: Vec<RecordBatch>, rows: Vec<(u32, u32)> },
}

/// The bytes of a piece, and how to read them.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) read: RowGroupRead,
    pub(super) bytes: Vec<Bytes>,
}

/// A piece that cannot be held even alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub(super) piece: PieceId,
    pub(super) needed_bytes: u64,
}

/// How far a piece has got.
#[derive(Debug)]
pub(super) enum Stage {
    Queued,
    Fetching,
    Fetched(Box<Fetched>),
    Decoding,
    /// All rows of the piece, or those named, sorted.
    Ready(RecordBatch, Option<Arc<[u32]>>),
}

/// A piece that planned batches want.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) stage: Stage,
    /// Bytes charged to the budget.
    pub(super) charge: u64,
    /// Planned batches that are not gathered yet.
    pub(super) num_users: usize,
    /// Those of them that wait for the piece.
    pub(super) waiting: Vec<u64>,
    /// Rows that they want; kept only when the window does not fit.
    pub(super) wanted: Vec<u32>,
    /// No batch planned from now on will want it.
    pub(super) is_finished: bool,
}

/// How far a batch has got.
#[derive(Debug)]
pub(super) enum Progress {
    Planned { rows: Vec<(u32, u32)>, num_missing: usize },
    Gathering,
    Ready(RecordBatch, u64),
}

/// A batch from its planning to its delivery.
#[derive(Debug)]
pub(super) struct PlannedBatch {
    pub(super) slice: BatchSlice,
    pub(super) pieces: Vec<PieceKey>,
    pub(super) progress: Progress,
}

impl PlannedBatch {
    pub(super) fn is_missing_pieces(&self) -> bool {
        matches!(self.progress, Progress::Planned { num_missing: 1.., .. })
    }
}

/// Notes at each piece which of its rows are wanted: `rows` as (place in `pieces`, row).
pub(super) fn note_wanted(residents: &mut HashMap<PieceKey, Resident>, pieces: &[PieceKey], rows: &[(u32, u32)]) {
    for &(place, row) in rows {
        if let Some(resident) = residents.get_mut(&pieces[place as usize]) {
            resident.wanted.push(row);
        }
    }
}

/// Returns the rows to keep of a piece of `num_rows`, sorted; `None` where dropping the others saves little.
pub(super) fn wanted_rows(wanted: &mut Vec<u32>, num_rows: usize) -> Option<Arc<[u32]>> {
    let mut rows = std::mem::take(wanted);
    rows.sort_unstable();
    rows.dedup();
    (rows.len() * 4 < num_rows * 3).then(|| rows.into())
}
