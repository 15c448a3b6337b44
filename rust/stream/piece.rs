//! What a stream's scheduler moves: pieces, batches, and the tasks for them.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use rustc_hash::FxHashMap;

use super::Skipped;
use super::gather::SourceRow;
use super::held::Held;
#[cfg(doc)]
use super::scheduler::Scheduler;
use super::slabs::Room;
use crate::decode::Body;
use crate::plan::{BatchSlice, PieceId};
use crate::reader::{Part, PartRead};

/// One fetch of one part of a piece; `block` distinguishes repeated fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PieceKey {
    pub(super) piece: PieceId,
    /// The part of the piece.
    pub(super) part: u32,
    pub(super) block: u32,
}

/// A task for a worker.
#[derive(Debug)]
pub(super) enum Task {
    /// Plan the read of the rows `kept` of a span, or of only `wanted` among them if given, and read them or start
    /// fetching them; then call [`Scheduler::found`] or [`Scheduler::fetched`]. The rows are needed when `num_ahead`
    /// other batches have been delivered.
    Fetch { key: PieceKey, kept: Range<u32>, wanted: Option<Arc<[u32]>>, num_ahead: u64 },
    /// Decode bytes into arrays; then call [`Scheduler::decoded`].
    Decode { key: PieceKey, fetched: Box<Fetched> },
    /// Keep only the rows `keep` of decoded arrays; then call [`Scheduler::compacted`].
    Compact { key: PieceKey, held: Held, keep: Arc<[u32]> },
    /// Gather the rows of a slice of the order from the sources, or return a view if that is allowed; then call
    /// [`Scheduler::gathered`], or [`Scheduler::unfinished`] if transforming it takes memory.
    Gather { number: u64, slice: BatchSlice, sources: Vec<Held>, rows: PlannedRows, may_be_view: bool },
    /// Transform a gathered batch; then call [`Scheduler::gathered`].
    Finish { number: u64, slice: BatchSlice, gathered: Gathered },
}

/// A gathered batch that is yet to be transformed.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) batch: RecordBatch,
    /// What is left of the consumer's memory for it.
    pub(super) room: Option<Room>,
}

/// The bytes of a piece, and how to read them.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) read: PartRead,
    /// The kept rows of the part.
    pub(super) kept: Range<u32>,
    /// The rows among them that are read, counted within the part; `None` for all.
    pub(super) wanted: Option<Arc<[u32]>>,
    pub(super) bodies: Vec<Body>,
    /// Whether the footer tells the decoded bytes.
    pub(super) is_told: bool,
}

/// The progress of a piece.
#[derive(Debug)]
pub(super) enum Stage {
    Queued,
    Fetching,
    Fetched(Box<Fetched>),
    Decoding,
    /// All rows of the piece, or those given, sorted.
    Ready(Held, Option<Arc<[u32]>>),
}

/// A part of a piece that planned batches need.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) stage: Stage,
    pub(super) part: Part,
    /// Bytes charged to the budget.
    pub(super) charge: u64,
    /// The bytes of the decoded arrays according to the footer.
    pub(super) estimate: u64,
    /// Rows planned so far.
    pub(super) num_planned: u32,
    /// Planned batches that have not been gathered yet.
    pub(super) num_users: usize,
    /// The batches among them that wait for the piece.
    pub(super) waiting: Vec<u64>,
    /// The rows that they need; recorded only if memory is short.
    pub(super) wanted: Vec<u32>,
    /// The rows that are read; `None` for all.
    pub(super) keep: Option<Arc<[u32]>>,
    /// Whether it could not be read, and so has no rows.
    pub(super) is_lost: bool,
    /// Whether no batch planned from now on will need it.
    pub(super) is_finished: bool,
}

impl Resident {
    /// Returns a part that no batch needs yet.
    pub(super) fn new(part: Part) -> Self {
        Self {
            stage: Stage::Queued,
            part,
            charge: 0,
            estimate: 0,
            num_planned: 0,
            num_users: 0,
            waiting: Vec::new(),
            wanted: Vec::new(),
            keep: None,
            is_lost: false,
            is_finished: false,
        }
    }

    /// Returns whether the arrays are available.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready(..))
    }

    /// Returns the number of rows in the part.
    pub(super) fn num_rows(&self) -> u32 {
        self.part.kept.end - self.part.kept.start
    }

    /// Returns the number of its rows that are read.
    pub(super) fn num_read(&self) -> usize {
        self.keep.as_ref().map_or(self.num_rows() as usize, |keep| keep.len())
    }
}

/// The progress of a batch.
#[derive(Debug)]
pub(super) enum Progress {
    Planned {
        rows: PlannedRows,
        num_missing: usize,
    },
    /// The bytes reserved for it.
    Gathering(u64),
    /// The bytes reserved for it, and what transforming it takes besides.
    Gathered(Gathered, u64, u64),
    Ready(RecordBatch, u64),
}

/// The rows of a batch: the part among those it needs, and the row within it.
#[derive(Debug)]
pub(super) enum PlannedRows {
    Each(Vec<SourceRow>),
    /// Consecutive rows, if they come in dataset order.
    Runs(Vec<(u32, Range<u32>)>),
}

impl PlannedRows {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Each(rows) => rows.len(),
            Self::Runs(runs) => runs.iter().map(|(_, run)| run.len()).sum(),
        }
    }

    /// Calls `visit` with each row.
    pub(super) fn for_each(&self, mut visit: impl FnMut(SourceRow)) {
        match self {
            Self::Each(rows) => rows.iter().copied().for_each(visit),
            Self::Runs(runs) => {
                for (place, run) in runs {
                    run.clone().for_each(|row| visit((*place, row)));
                }
            }
        }
    }

    /// Returns the rows one by one.
    pub(super) fn into_each(self) -> Vec<SourceRow> {
        if let Self::Each(rows) = self {
            return rows;
        }
        let mut rows = Vec::with_capacity(self.len());
        self.for_each(|row| rows.push(row));
        rows
    }

    /// Returns the rows as consecutive rows of one part, if they are.
    pub(super) fn as_run(&self) -> Option<(u32, Range<u32>)> {
        match self {
            Self::Each(rows) => {
                let (&(place, first), &(_, last)) = (rows.first()?, rows.last()?);
                rows.iter().copied().eq((first..=last).map(|row| (place, row))).then_some((place, first..last + 1))
            }
            Self::Runs(runs) => <&[_; 1]>::try_from(runs.as_slice()).ok().map(|[run]| run.clone()),
        }
    }
}

/// A batch, from planning to delivery.
#[derive(Debug)]
pub(super) struct PlannedBatch {
    pub(super) slice: BatchSlice,
    /// The number of planned rows, including those that turn out to be unreadable.
    pub(super) num_rows: usize,
    /// The rows of the slice that are left out, as far as is known.
    pub(super) skipped: Skipped,
    pub(super) pieces: Vec<PieceKey>,
    /// Number of rows needed of each part.
    pub(super) row_counts: Vec<u32>,
    /// Their bytes according to the footers.
    pub(super) expected: u64,
    pub(super) progress: Progress,
}

impl PlannedBatch {
    pub(super) fn is_missing_pieces(&self) -> bool {
        matches!(self.progress, Progress::Planned { num_missing: 1.., .. })
    }

    /// Returns the memory of the plan until the batch is gathered.
    pub(super) fn planned_bytes(&self) -> u64 {
        planned_bytes(self.num_rows, self.pieces.len())
    }
}

/// Memory of a planned batch itself: twice its size, for the unused places of the queue that it is in, and because even
/// its smallest lists take an allocation each.
const PLANNED_BATCH_BYTES: u64 = 2 * size_of::<PlannedBatch>() as u64;

/// Memory per row of a planned batch: its part and its number, and its name during planning.
const PLANNED_ROW_BYTES: u64 = 24;

/// Memory per part of a planned batch: the part's key, the number of needed rows, and the batch's number at the part.
const PLANNED_PIECE_BYTES: u64 = 32;

/// Returns the memory of the plan of a batch.
pub(super) fn planned_bytes(num_rows: usize, num_pieces: usize) -> u64 {
    PLANNED_BATCH_BYTES.saturating_add(listed_bytes(num_rows, num_pieces))
}

/// Returns the memory of the lists of a batch's rows and pieces.
pub(super) fn listed_bytes(num_rows: usize, num_pieces: usize) -> u64 {
    let of_rows = PLANNED_ROW_BYTES.saturating_mul(num_rows as u64);
    of_rows.saturating_add(PLANNED_PIECE_BYTES.saturating_mul(num_pieces as u64))
}

/// Records for each of `pieces` which of its rows are needed.
pub(super) fn note_wanted(residents: &mut FxHashMap<PieceKey, Resident>, pieces: &[PieceKey], rows: &PlannedRows) {
    rows.for_each(|(place, row)| {
        if let Some(resident) = residents.get_mut(&pieces[place as usize]) {
            resident.wanted.push(row);
        }
    });
}

/// Returns the rows to keep of a piece of `num_rows`, sorted; `None` if dropping the others saves little.
pub(super) fn wanted_rows(wanted: &mut Vec<u32>, num_rows: usize) -> Option<Arc<[u32]>> {
    let mut rows = std::mem::take(wanted);
    rows.sort_unstable();
    rows.dedup();
    (rows.len() * 4 < num_rows * 3).then(|| rows.into())
}
