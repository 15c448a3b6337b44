//! Decides the order of an epoch: which row is at which position, and who reads it when.
//!
//! A plan is a pure function of the kept rows per span, the seed, the epoch and two settings. It does no IO, reads no
//! clock and knows neither ranks nor workers, so what training relies on is tested without a network. `docs/order.md`
//! is the contract; `tests/golden/` has orders that must never change.
//!
//! ```text
//!  row groups   ▐████████▌▐████████▌ ...      cut at page boundaries            span
//!  spans         a b c d   e f g h   ...      permuted by (seed, epoch),
//!  deal          f c h a   g b e d   ...      laid end to end, cut into         lane
//!  lanes        [f c h a] [g b e d]  ...      L lanes of equal length
//!  windows      [ f₂ c₁ f₁ h₁ c₂ …]           rows jittered within each lane    window
//!  positions    lane 0, lane 1, … lane L-1, lane 0, …                           walk
//!  ranks        r, r+N, r+2N, … in batches of b                                 share
//! ```
//!
//! Random numbers come from [`seed`]; an epoch's position is represented by [`cursor`]; the number of lanes and the
//! width of their windows are chosen by [`resolve`].

pub mod cursor;
mod drawn;
mod given;
mod lane;
mod leaving;
mod permuted;
pub mod resolve;
pub mod seed;
pub mod share;
pub mod span;
mod spread;
mod units;
mod walk;
mod window;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use cursor::{Hole, OrderState, State, VERSION as STATE_VERSION};
pub use drawn::Weights;
pub use leaving::Leaving;
pub use resolve::Mixing;
pub use share::{BatchSlice, Remainder, Share, ShareError};
pub use span::{Page, RowGroupLayout, Span, cut};
pub use units::HoleUnits;
pub use walk::Walk;

use drawn::Drawn;
use lane::Deal;
use permuted::Permutation;
use seed::{Key, Purpose};

/// The lane of a row that is read a second time to fill up a batch ([`EpochPlan::repeat`]).
pub const REPEAT_LANE: u32 = u32::MAX;

/// How the rows of an epoch are ordered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// In dataset order.
    Sequential,
    /// Shuffled, differently in every epoch.
    Shuffled {
        /// Chooses the order, together with the epoch.
        seed: u64,
        /// The number of lanes; 0 counts as 1.
        num_lanes: u32,
        /// The width of a lane's window in kept rows.
        window_rows: u64,
    },
}

/// Identifies a unit of reading: the part of one span in one lane, or a whole span if there are no lanes.
///
/// It is fetched once, when the first of its rows is due, and dropped when it is finished.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId {
    /// The lane; 0 if there are none, [`REPEAT_LANE`] for padding.
    pub lane: u32,
    /// The span's index in the list that the plan was made from.
    pub span: u32,
}

/// A unit of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its identifier.
    pub id: PieceId,
    /// Its rows, as numbers of the span's kept rows.
    pub kept: Range<u32>,
}

/// A row of a piece.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowRef {
    /// The piece.
    pub piece: PieceId,
    /// The row's number within the piece: 0 is its first kept row.
    pub row: u32,
}

/// Consecutive rows of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRun {
    /// The piece.
    pub piece: PieceId,
    /// The rows' numbers within the piece.
    pub rows: Range<u32>,
}

/// The order of one epoch. Clones share it.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    spans: Arc<[Span]>,
    num_rows: u64,
    arrangement: Arrangement,
    /// The rows of the spans, if they were drawn.
    drawn: Option<Drawn>,
}

/// The three ways to arrange an epoch.
#[derive(Debug)]
enum Arrangement {
    /// Spans in dataset order, given the number of rows before each, and finally all rows.
    Sequential { starts: Vec<u64> },
    /// Rows in any order: a permutation of all, for an epoch that the windows can hold, or a given order.
    Permuted(Permutation),
    /// Spans dealt into lanes.
    Lanes(Deal),
}

impl EpochPlan {
    /// Plans an epoch over spans in dataset order: fewer than 2³², each with at least one kept row.
    ///
    /// Costs a sort of the spans, or a pass over the numbers of all rows if the epoch is small enough to be permuted as
    /// a whole. Holds 16 bytes per span in addition to the spans, up to 24 for a permutation.
    pub fn new(spans: Arc<[Span]>, order: Order, epoch: u64) -> Self {
        Self::of_rows(spans, order, epoch, None)
    }

    fn of_rows(spans: Arc<[Span]>, order: Order, epoch: u64, drawn: Option<Drawn>) -> Self {
        let num_rows = spans.iter().map(|span| u64::from(span.num_kept)).sum();
        let arrangement = match order {
            Order::Sequential => Arrangement::Sequential { starts: starts(&spans) },
            Order::Shuffled { seed, num_lanes, window_rows } => {
                let num_lanes = u64::from(num_lanes.max(1));
                if num_rows <= num_lanes.saturating_mul(window_rows) {
                    Arrangement::Permuted(Permutation::drawn(&spans, &Key::new(seed, epoch, Purpose::All)))
                } else {
                    Arrangement::Lanes(Deal::new(&spans, seed, epoch, num_lanes, window_rows))
                }
            }
        };
        Self { inner: Arc::new(Inner { spans, num_rows, arrangement, drawn }) }
    }

    /// Returns the number of kept rows, which is the number of positions.
    pub fn num_rows(&self) -> u64 {
        self.inner.num_rows
    }

    /// Returns the spans that the plan was made from.
    pub fn spans(&self) -> &Arc<[Span]> {
        &self.inner.spans
    }

    /// Returns whether rows come in dataset order.
    pub fn is_sequential(&self) -> bool {
        matches!(self.inner.arrangement, Arrangement::Sequential { .. })
    }

    /// Returns whether the epoch is shuffled as a whole, without lanes.
    pub fn is_permuted(&self) -> bool {
        matches!(self.inner.arrangement, Arrangement::Permuted(_))
    }

    /// Returns the rows that a piece holds; none if there is no such piece.
    pub fn piece(&self, id: PieceId) -> Piece {
        let whole = || 0..self.inner.spans.get(id.span as usize).map_or(0, |span| span.num_kept);
        let kept = match &self.inner.arrangement {
            Arrangement::Lanes(deal) if id.lane != REPEAT_LANE => deal.piece(id),
            _ => whole(),
        };
        Piece { id, kept }
    }

    /// Starts to walk the positions from `from` on. The first rows cost a window of draws in each lane.
    pub fn walk(&self, from: u64) -> Walk {
        self.walk_within(from, 1, u64::MAX)
    }

    /// Like [`walk`](Self::walk), for every `step`th position, within this many bytes for drawn rows, of 8 bytes each.
    /// If they do not all fit, rows are drawn more than once: those of a permutation, or those around the next row of
    /// each lane, of which at least a thirty-second is kept.
    pub fn walk_within(&self, from: u64, step: u64, most_bytes: u64) -> Walk {
        Walk::new(self.clone(), from, step, most_bytes)
    }

    /// Returns the row at one position, at the cost of a window of draws; `None` beyond the end.
    pub fn locate(&self, position: u64) -> Option<RowRef> {
        let mut rows = Vec::with_capacity(1);
        // For a permutation, one bucket is enough.
        let most_bytes = if self.is_permuted() { 0 } else { u64::MAX };
        self.walk_within(position, 1, most_bytes).visit(position, 1, 1, &mut rows, &mut Vec::new());
        rows.pop()
    }

    /// Returns the row at one position as a row of a piece of its own: the whole span, in [`REPEAT_LANE`].
    ///
    /// A repeated row is not where the walk expects it, so it is read separately.
    pub fn repeat(&self, position: u64) -> Option<RowRef> {
        let found = self.locate(position)?;
        let row = self.piece(found.piece).kept.start + found.row;
        Some(RowRef { piece: PieceId { lane: REPEAT_LANE, span: found.piece.span }, row })
    }
}

/// Returns the rows before each span, and finally all of them.
fn starts(spans: &[Span]) -> Vec<u64> {
    let mut starts = Vec::with_capacity(spans.len() + 1);
    let mut rows = 0;
    starts.push(rows);
    for span in spans {
        rows += u64::from(span.num_kept);
        starts.push(rows);
    }
    starts
}
