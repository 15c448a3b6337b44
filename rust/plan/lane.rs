//! Deals spans into lanes: the streams of equal length that an epoch consists of.
//!
//! The spans, permuted by seed and epoch, are laid end to end and the rows cut into consecutive lanes, the first of
//! them one row longer if the rows do not divide evenly. A span that contains a cut is shared by two lanes, or by more
//! if it is longer than a lane. The part of a span in one lane is a *piece*.

use std::collections::VecDeque;
use std::ops::Range;

use super::seed::{Key, Purpose};
use super::span::Span;
use super::spread::SpreadSort;
use super::window::{self, Window};
use super::{PieceId, RowRef};

/// The spans of an epoch in the order dealt, and the lanes cut from them.
#[derive(Debug)]
pub(super) struct Deal {
    /// The span at each turn of the deal.
    order: Vec<u32>,
    /// The turn of each span: the inverse of `order`.
    turns: Vec<u32>,
    /// The rows dealt before each turn, and finally all of them.
    starts: Vec<u64>,
    num_lanes: u64,
    window_rows: u64,
    places: Key,
}

impl Deal {
    /// Permutes the spans and adds up their rows.
    pub(super) fn new(spans: &[Span], seed: u64, epoch: u64, num_lanes: u64, window_rows: u64) -> Self {
        let order = permute(spans.len(), &Key::new(seed, epoch, Purpose::Spans));
        let mut turns = vec![0; order.len()];
        let mut starts = Vec::with_capacity(order.len() + 1);
        let mut rows = 0;
        for (turn, &span) in (0..).zip(&order) {
            turns[span as usize] = turn;
            starts.push(rows);
            rows += u64::from(spans[span as usize].num_kept);
        }
        starts.push(rows);
        Self { order, turns, starts, num_lanes, window_rows, places: Key::new(seed, epoch, Purpose::Place) }
    }

    /// Returns the number of lanes, at least 1.
    pub(super) fn num_lanes(&self) -> u64 {
        self.num_lanes
    }

    /// Returns the rows of a lane, counted as dealt.
    fn lane(&self, lane: u64) -> Range<u64> {
        let num_rows = self.starts.last().copied().unwrap_or(0);
        let start = |lane: u64| {
            let lane = lane.min(self.num_lanes);
            lane * (num_rows / self.num_lanes) + lane.min(num_rows % self.num_lanes)
        };
        start(lane)..start(lane.saturating_add(1))
    }

    /// Returns the kept rows of a span in a lane; empty if there are none.
    pub(super) fn piece(&self, id: PieceId) -> Range<u32> {
        let lane = self.lane(u64::from(id.lane));
        let Some(&turn) = self.turns.get(id.span as usize) else { return 0..0 };
        let (start, end) = (self.starts[turn as usize], self.starts[turn as usize + 1]);
        let within = |row: u64| u32::try_from(row.clamp(start, end) - start).unwrap_or(u32::MAX);
        within(lane.start)..within(lane.end)
    }

    /// Returns the keys by which some kept rows of a span leave their lane.
    pub(super) fn keys(&self, id: PieceId, kept: Range<u32>) -> impl Iterator<Item = f64> {
        let turn = self.turns.get(id.span as usize).map_or(0, |&turn| turn as usize);
        let dealt = self.starts[turn] + u64::from(kept.start);
        let first = dealt.saturating_sub(self.lane(u64::from(id.lane)).start);
        let mut draws = self.places.draws(u64::from(id.lane));
        draws.seek(first);
        let window_rows = self.window_rows as f64;
        (first..).zip(kept).map(move |(row, _)| window::key(row, draws.next_uniform(), window_rows))
    }

    /// Returns the maximum number of a lane's rows that wait for their places, if it should be about `most_rows`.
    pub(super) fn num_waiting(&self, most_rows: u64) -> u64 {
        let longest = self.lane(0);
        window::num_waiting(self.window_rows, longest.end - longest.start, most_rows)
    }

    /// Prepares to walk a lane, in which about `most_rows` may wait for their places.
    pub(super) fn walk(&self, lane: u64, most_rows: u64) -> LaneWalk {
        let rows = self.lane(lane);
        let num_rows = rows.end - rows.start;
        let window = Window::new(self.places.draws(lane), self.window_rows, num_rows, most_rows);
        let turn = self.turn_of(rows.start);
        let lane = u32::try_from(lane).unwrap_or(u32::MAX);
        LaneWalk {
            window,
            pieces: Pieces { lane, origin: rows.start, num_rows, open: VecDeque::new(), turn, covered: 0 },
        }
    }

    /// Returns the turn at which a row was dealt.
    fn turn_of(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row).saturating_sub(1)
    }
}

/// Returns the numbers below `len` sorted by (number drawn, number). There are fewer than 2³² spans.
fn permute(len: usize, key: &Key) -> Vec<u32> {
    let mut draws = key.draws(0);
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let mut keyed: Vec<u128> = (0..len).map(|x| keyed(draws.next_bits(), x, 0)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|value| unkeyed(value).0).collect()
}

/// Packs a drawn number and what it was drawn for, so that one integer comparison sorts them.
pub(super) fn keyed(bits: u64, high: u32, low: u32) -> u128 {
    u128::from(bits) << 64 | u128::from(high) << 32 | u128::from(low)
}

/// Returns what the number was drawn for.
#[expect(clippy::cast_possible_truncation, reason = "takes the fields apart again")]
pub(super) fn unkeyed(value: u128) -> (u32, u32) {
    ((value >> 32) as u32, value as u32)
}

/// A place in one lane that moves forward.
#[derive(Clone, Debug)]
pub(super) struct LaneWalk {
    window: Window,
    pieces: Pieces,
}

impl LaneWalk {
    /// Returns the row at a place, and adds the pieces finished by it. Places must ascend.
    ///
    /// Skipped rows count as gone. A place more than a window ahead is reached by drawing anew.
    #[inline]
    pub(super) fn take(
        &mut self,
        deal: &Deal,
        place: u64,
        sort: &mut SpreadSort<u64>,
        finished: &mut Vec<PieceId>,
    ) -> Option<RowRef> {
        if place != self.window.place() {
            self.move_to(deal, place, sort, finished);
        }
        let row = self.window.next(sort)?;
        self.pieces.cover(deal, row);
        self.pieces.leave(row, true, finished)
    }

    fn move_to(&mut self, deal: &Deal, place: u64, sort: &mut SpreadSort<u64>, finished: &mut Vec<PieceId>) {
        let first = self.window.first_row_at(place).min(self.pieces.num_rows);
        // No caller goes back; doing so would yield the right rows but unreliable ends of pieces.
        if first > self.window.undrawn() || place < self.window.place() {
            self.window.restart(first);
            self.pieces.restart(deal, first, finished);
        }
        let Self { window, pieces } = self;
        window.skip_to(place, sort, |row| {
            pieces.cover(deal, row);
            pieces.leave(row, false, finished);
        });
    }
}

/// The pieces of a lane, from the first with remaining rows to the furthest that a row has left.
///
/// Rows are counted from the start of the lane.
#[derive(Clone, Debug)]
struct Pieces {
    lane: u32,
    /// The lane's first row, counted as dealt.
    origin: u64,
    num_rows: u64,
    open: VecDeque<Open>,
    /// The turn at which the first open piece was dealt, or will be.
    turn: usize,
    /// The end of the last open piece.
    covered: u64,
}

/// A piece that may have rows left.
#[derive(Clone, Debug)]
struct Open {
    span: u32,
    rows: Range<u64>,
    num_left: u64,
    is_touched: bool,
}

impl Pieces {
    /// Opens pieces up to the one that contains `row`.
    #[inline]
    fn cover(&mut self, deal: &Deal, row: u64) {
        while self.covered <= row {
            let turn = self.turn + self.open.len();
            let (Some(&span), Some(&end)) = (deal.order.get(turn), deal.starts.get(turn + 1)) else { return };
            let end = (end - self.origin).min(self.num_rows);
            let rows = self.covered..end;
            self.open.push_back(Open { span, num_left: end - self.covered, rows, is_touched: false });
            self.covered = end;
        }
    }

    /// Records that a row of an open piece has left, and returns it. Closes pieces that become empty.
    #[inline]
    fn leave(&mut self, row: u64, is_taken: bool, finished: &mut Vec<PieceId>) -> Option<RowRef> {
        let index = self.open.partition_point(|piece| piece.rows.end <= row);
        let piece = self.open.get_mut(index)?;
        let id = PieceId { lane: self.lane, span: piece.span };
        let row = u32::try_from(row - piece.rows.start).ok()?;
        piece.num_left -= 1;
        piece.is_touched |= is_taken;
        if piece.num_left == 0 {
            if piece.is_touched {
                finished.push(id);
            }
            while self.open.front().is_some_and(|piece| piece.num_left == 0) {
                self.open.pop_front();
                self.turn += 1;
            }
        }
        Some(RowRef { piece: id, row })
    }

    /// Marks all rows before `first` as having left. None from it on may have left.
    fn restart(&mut self, deal: &Deal, first: u64, finished: &mut Vec<PieceId>) {
        let turn = deal.turn_of(self.origin + first);
        let mut is_touched = false;
        for (at, piece) in (self.turn..).zip(self.open.drain(..)) {
            if piece.is_touched && piece.num_left > 0 {
                if at == turn {
                    is_touched = true;
                } else {
                    finished.push(PieceId { lane: self.lane, span: piece.span });
                }
            }
        }
        self.turn = turn;
        // The piece with `first` begins at the lane's start if a cut divides its span.
        self.covered = deal.starts.get(turn).map_or(0, |start| start.saturating_sub(self.origin));
        self.cover(deal, first);
        if let Some(piece) = self.open.front_mut() {
            piece.num_left = piece.rows.end - first;
            piece.is_touched = is_touched;
        }
    }
}
