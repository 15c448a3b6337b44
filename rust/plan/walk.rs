//! Walks the positions of an epoch and returns the row at each, and the pieces that are finished.
//!
//! A rank, or the stream that looks ahead for it, walks through an epoch forward, in equal steps or not. A walk holds a
//! window of every lane that it has visited and nothing of the others, so N ranks share the work if N divides the
//! number of lanes.

use std::ops::Range;

use super::lane::{Deal, LaneWalk};
use super::permuted::PermutedWalk;
use super::spread::SpreadSort;
use super::{Arrangement, EpochPlan, PieceId, RowRef, RowRun};

/// A walk over the positions of an epoch.
#[derive(Clone, Debug)]
pub struct Walk {
    plan: EpochPlan,
    state: WalkState,
    /// No position below this one is requested again.
    next: u64,
}

#[derive(Clone, Debug)]
enum WalkState {
    Sequential(SequentialWalk),
    Permuted(PermutedWalk),
    Lanes(LanesWalk),
}

impl Walk {
    pub(super) fn new(plan: EpochPlan, from: u64, step: u64, most_bytes: u64) -> Self {
        let state = match &plan.inner.arrangement {
            Arrangement::Sequential { .. } => WalkState::Sequential(SequentialWalk::default()),
            Arrangement::Permuted(permutation) => WalkState::Permuted(permutation.walk(most_bytes)),
            Arrangement::Lanes(deal) => WalkState::Lanes(LanesWalk::new(deal, step, most_bytes)),
        };
        Self { plan, state, next: from }
    }

    /// Returns the maximum bytes that the walk holds for drawn rows.
    pub fn memory_bytes(&self) -> u64 {
        match (&self.state, &self.plan.inner.arrangement) {
            (WalkState::Permuted(walk), Arrangement::Permuted(permutation)) => walk.memory_bytes(permutation),
            (WalkState::Lanes(walk), Arrangement::Lanes(deal)) => walk.memory_bytes(deal),
            _ => 0,
        }
    }

    /// Appends the rows at the positions `first`, `first + step`, … to `rows`: `len` of them, or as many as there are
    /// before the end of the epoch. A `step` of 0 counts as 1.
    ///
    /// Appends to `finished` every piece that the walk has returned a row of and will never return one of again, each
    /// once: all its rows are at passed positions. If the last of them was another rank's, the piece is reported when
    /// the walk next visits its lane.
    ///
    /// Calls must go forward: `first` is beyond every position requested before. A call that goes back gets the right
    /// rows, but `finished` is no longer reliable.
    pub fn visit(&mut self, first: u64, step: u64, len: usize, rows: &mut Vec<RowRef>, finished: &mut Vec<PieceId>) {
        debug_assert!(first >= self.next, "position {first} has been passed already: expected {} or later", self.next);
        let inner = &*self.plan.inner;
        if first >= inner.num_rows {
            return;
        }
        let step = step.max(1);
        let len = len_before(inner.num_rows, first, step, len);
        rows.reserve(len);
        let positions = Positions { next: first, step, len };
        match (&mut self.state, &inner.arrangement) {
            (WalkState::Sequential(walk), Arrangement::Sequential { starts }) => {
                walk.visit(starts, positions, rows, finished);
            }
            (WalkState::Permuted(walk), Arrangement::Permuted(permutation)) => {
                rows.extend(positions.map(|position| walk.take(permutation, position, finished)));
            }
            (WalkState::Lanes(walk), Arrangement::Lanes(deal)) => walk.visit(deal, positions, rows, finished),
            _ => {}
        }
        self.next = first.saturating_add(step.saturating_mul(len as u64).saturating_sub(step - 1));
    }

    /// Returns the rows at `len` positions from `first` on, or at as many as there are, if they are in dataset order:
    /// like [`visit`](Self::visit) with a step of 1, at the cost of the pieces instead of the rows. In any other order
    /// it returns `None`, and nothing is visited.
    pub fn visit_runs(&mut self, first: u64, len: usize, finished: &mut Vec<PieceId>) -> Option<Vec<RowRun>> {
        let (WalkState::Sequential(walk), Arrangement::Sequential { starts }) =
            (&mut self.state, &self.plan.inner.arrangement)
        else {
            return None;
        };
        debug_assert!(first >= self.next, "position {first} has been passed already: expected {} or later", self.next);
        let end = first + len_before(self.plan.inner.num_rows, first, 1, len) as u64;
        self.next = end.max(self.next);
        let mut runs = Vec::new();
        walk.visit_runs(starts, first..end, &mut runs, finished);
        Some(runs)
    }
}

/// Returns how many of `len` positions from `first` on are before the end of `num_rows`.
fn len_before(num_rows: u64, first: u64, step: u64, len: usize) -> usize {
    let rest = num_rows.saturating_sub(first).div_ceil(step);
    usize::try_from(rest).unwrap_or(usize::MAX).min(len)
}

/// The positions of one visit.
struct Positions {
    next: u64,
    step: u64,
    len: usize,
}

impl Iterator for Positions {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        let position = self.next;
        self.next = position.wrapping_add(self.step);
        Some(position)
    }
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

/// Memory of a row that waits in a lane: 8 bytes, plus an eighth for chunks that are partly filled or about to leave.
const WAITING_ROW_BYTES: u64 = 9;

/// A walk through lanes: those visited so far, and scratch memory for sorting.
#[derive(Clone, Debug)]
struct LanesWalk {
    lanes: Vec<Option<Box<LaneWalk>>>,
    /// How many will be visited, and about how many rows may wait in each.
    num_visited: u64,
    most_rows: u64,
    sort: SpreadSort<u64>,
}

impl LanesWalk {
    /// Prepares to visit every `step`th position, with this many bytes for waiting rows.
    fn new(deal: &Deal, step: u64, most_bytes: u64) -> Self {
        let num_visited = deal.num_lanes() / gcd(deal.num_lanes(), step.max(1));
        let most_rows = most_bytes / WAITING_ROW_BYTES / num_visited;
        Self { lanes: Vec::new(), num_visited, most_rows, sort: SpreadSort::default() }
    }

    /// Returns the maximum bytes of waiting rows.
    fn memory_bytes(&self, deal: &Deal) -> u64 {
        deal.num_waiting(self.most_rows).saturating_mul(self.num_visited).saturating_mul(WAITING_ROW_BYTES)
    }

    /// Walks the lanes in turn, without a division at every position.
    fn visit(&mut self, deal: &Deal, positions: Positions, rows: &mut Vec<RowRef>, finished: &mut Vec<PieceId>) {
        let Self { lanes, most_rows, sort, .. } = self;
        let num_lanes = deal.num_lanes();
        let Positions { next, step, len } = positions;
        let (mut place, mut lane) = (next / num_lanes, next % num_lanes);
        let (places, more_lanes) = (step / num_lanes, step % num_lanes);
        for _ in 0..len {
            let index = usize::try_from(lane).unwrap_or(usize::MAX);
            if lanes.len() <= index {
                lanes.resize(index + 1, None);
            }
            let walk = lanes[index].get_or_insert_with(|| Box::new(deal.walk(lane, *most_rows)));
            rows.extend(walk.take(deal, place, sort, finished));
            place = place.wrapping_add(places);
            lane += more_lanes;
            if lane >= num_lanes {
                lane -= num_lanes;
                place = place.wrapping_add(1);
            }
        }
    }
}

/// A walk in dataset order: at most one span is open.
#[derive(Clone, Debug, Default)]
struct SequentialWalk {
    /// The span of the last row returned.
    span: usize,
    is_open: bool,
}

impl SequentialWalk {
    fn visit(&mut self, starts: &[u64], positions: Positions, rows: &mut Vec<RowRef>, finished: &mut Vec<PieceId>) {
        if positions.step > 1 {
            rows.extend(positions.map(|position| self.take(starts, position, finished)));
            return;
        }
        let mut runs = Vec::new();
        self.visit_runs(starts, positions.next..positions.next + positions.len as u64, &mut runs, finished);
        for RowRun { piece, rows: run } in runs {
            rows.extend(run.map(|row| RowRef { piece, row }));
        }
    }

    fn visit_runs(
        &mut self,
        starts: &[u64],
        mut positions: Range<u64>,
        runs: &mut Vec<RowRun>,
        finished: &mut Vec<PieceId>,
    ) {
        while !positions.is_empty() {
            let RowRef { piece, row } = self.take(starts, positions.start, finished);
            let end = positions.end.min(starts[self.span + 1]);
            let num_more = u32::try_from(end - positions.start - 1).unwrap_or(u32::MAX);
            if num_more > 0 {
                // Those between the first and the last change nothing.
                self.take(starts, end - 1, finished);
            }
            runs.push(RowRun { piece, rows: row..row + num_more + 1 });
            positions.start = end;
        }
    }

    fn take(&mut self, starts: &[u64], position: u64, finished: &mut Vec<PieceId>) -> RowRef {
        let holds = |span: usize| starts[span] <= position && starts.get(span + 1).is_some_and(|end| position < *end);
        if !holds(self.span) {
            if std::mem::take(&mut self.is_open) {
                finished.push(whole(self.span));
            }
            let next = self.span + 1;
            self.span = if next < starts.len() && holds(next) {
                next
            } else {
                starts.partition_point(|start| *start <= position).saturating_sub(1)
            };
        }
        self.is_open = position + 1 < starts[self.span + 1];
        if !self.is_open {
            finished.push(whole(self.span));
        }
        let row = u32::try_from(position - starts[self.span]).unwrap_or(u32::MAX);
        RowRef { piece: whole(self.span), row }
    }
}

/// Returns the id of the piece that is a whole span.
fn whole(span: usize) -> PieceId {
    PieceId { lane: 0, span: u32::try_from(span).unwrap_or(u32::MAX) }
}
