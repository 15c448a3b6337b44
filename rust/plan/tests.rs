//! Tests the fast path against the slow, obvious one.

#![expect(clippy::cast_possible_truncation, reason = "layouts are small")]

mod given;
mod golden;
mod model;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// Spans with these numbers of kept rows.
pub(super) fn spans(kept: &[u32]) -> Arc<[Span]> {
    let span = |(row_group, &num_kept): (u32, &u32)| Span { row_group, start: 0, end: num_kept + 3, num_kept };
    (0..).zip(kept).map(span).collect()
}

/// One-row spans, even ones, uneven ones, giants, none.
pub(super) fn layouts() -> impl Strategy<Value = Vec<u32>> {
    let uneven = prop_oneof![4 => 1_u32..4, 3 => 5_u32..50, 1 => 100_u32..700];
    prop_oneof![
        prop::collection::vec(Just(1), 0..300),
        (1_u32..41, 0_usize..30).prop_map(|(rows, len)| vec![rows; len]),
        prop::collection::vec(uneven, 0..25),
        (500_u32..3000).prop_map(|rows| vec![rows]),
        (500_u32..3000, 1_u32..9).prop_map(|(giant, rows)| vec![rows, giant, rows, rows]),
    ]
}

pub(super) fn orders() -> impl Strategy<Value = Order> {
    let lanes = prop_oneof![1_u32..8, Just(24), Just(192)];
    let windows = prop_oneof![0_u64..4, 4_u64..40, 40_u64..400];
    prop_oneof![
        1 => Just(Order::Sequential),
        8 => (0_u64..1000, lanes, windows)
            .prop_map(|(seed, num_lanes, window_rows)| Order::Shuffled { seed, num_lanes, window_rows }),
    ]
}

/// A row as (span, kept row of the span).
pub(super) fn resolve_row(plan: &EpochPlan, row: RowRef) -> (u32, u32) {
    let piece = plan.piece(row.piece);
    assert!(row.row < piece.kept.end - piece.kept.start, "{row:?} is outside of {piece:?}");
    (row.piece.span, piece.kept.start + row.row)
}

/// Walks a plan, checking every promise about pieces on the way.
struct Checked {
    plan: EpochPlan,
    walk: Walk,
    expected: Vec<(u32, u32)>,
    /// The last position of every piece.
    ends: BTreeMap<PieceId, u64>,
    open: BTreeSet<PieceId>,
    finished: BTreeSet<PieceId>,
    /// The last position visited in each lane.
    visited: BTreeMap<u32, u64>,
}

impl Checked {
    fn new(kept: &[u32], order: Order, epoch: u64, from: u64) -> Self {
        let plan = EpochPlan::new(spans(kept), order, epoch);
        let expected = model::epoch(kept, order, epoch);
        assert_eq!(plan.num_rows(), expected.len() as u64);
        let mut all = Vec::new();
        plan.walk(0).visit(0, 1, usize::MAX, &mut all, &mut Vec::new());
        let ends = all.iter().zip(0..).map(|(row, position)| (row.piece, position)).collect();
        let walk = plan.walk(from);
        let visited = BTreeMap::new();
        Self { plan, walk, expected, ends, open: BTreeSet::new(), finished: BTreeSet::new(), visited }
    }

    /// Visits some positions and returns the one after the last of them.
    fn visit(&mut self, first: u64, step: u64, len: usize) -> u64 {
        let (mut rows, mut finished) = (Vec::new(), Vec::new());
        self.walk.visit(first, step, len, &mut rows, &mut finished);
        let num_rows = self.plan.num_rows();
        let positions: Vec<u64> = (first..num_rows).step_by(step as usize).take(len).collect();
        let expected: Vec<_> = positions.iter().map(|&position| self.expected[position as usize]).collect();
        let got: Vec<_> = rows.iter().map(|&row| resolve_row(&self.plan, row)).collect();
        assert_eq!(got, expected, "{first} + {step} x {len}");
        for (row, &position) in rows.iter().zip(&positions) {
            assert!(!self.finished.contains(&row.piece), "{row:?} comes after its piece was finished");
            self.open.insert(row.piece);
            self.visited.insert(row.piece.lane, position);
        }
        for piece in finished {
            assert!(self.open.remove(&piece), "{piece:?} is finished, but was not open");
            assert!(self.ends[&piece] <= self.visited[&piece.lane], "{piece:?} is not finished yet");
            self.finished.insert(piece);
        }
        for piece in &self.open {
            assert!(self.ends[piece] > self.visited[&piece.lane], "{piece:?} should be finished");
        }
        positions.last().map_or(first, |last| last + 1)
    }

    fn rows_open(&self) -> u64 {
        let len = |id: &PieceId| {
            let kept = self.plan.piece(*id).kept;
            u64::from(kept.end - kept.start)
        };
        self.open.iter().map(len).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_epoch_holds_every_row_once_in_the_models_order(kept in layouts(), order in orders(), epoch in 0_u64..4) {
        let mut checked = Checked::new(&kept, order, epoch, 0);
        let mut rows = checked.expected.clone();
        rows.sort_unstable();
        let all: Vec<_> = (0..).zip(&kept).flat_map(|(span, &kept)| (0..kept).map(move |row| (span, row))).collect();
        prop_assert_eq!(rows, all);
        let mut position = 0;
        while position < checked.plan.num_rows() {
            position = checked.visit(position, 1, 64);
        }
        prop_assert!(checked.open.is_empty());
    }

    #[test]
    fn any_visits_that_go_forward_give_the_models_rows(
        kept in layouts(), order in orders(), from in 0_u64..2000,
        visits in prop::collection::vec((prop_oneof![4 => 0_u64..3, 1 => 0_u64..1000], 1_u64..10, 0_usize..300), 1..12),
    ) {
        let mut checked = Checked::new(&kept, order, 0, from);
        let mut position = from;
        for (gap, step, len) in visits {
            position = checked.visit(position + gap, step, len);
        }
    }

    #[test]
    fn runs_are_the_rows_that_visits_give(
        kept in layouts(), from in 0_u64..2000,
        visits in prop::collection::vec((prop_oneof![4 => Just(0_u64), 1 => 0_u64..1000], 0_usize..300), 1..12),
    ) {
        let plan = EpochPlan::new(spans(&kept), Order::Sequential, 0);
        let (mut by_rows, mut by_runs, mut position) = (plan.walk(from), plan.walk(from), from);
        for (gap, len) in visits {
            position += gap;
            let (mut rows, mut finished, mut also_finished) = (Vec::new(), Vec::new(), Vec::new());
            by_rows.visit(position, 1, len, &mut rows, &mut finished);
            let runs = by_runs.visit_runs(position, len, &mut also_finished).unwrap();
            let of_run = |RowRun { piece, rows }: RowRun| rows.map(move |row| RowRef { piece, row });
            prop_assert_eq!(runs.into_iter().flat_map(of_run).collect::<Vec<_>>(), rows);
            prop_assert_eq!(also_finished, finished);
            position += len as u64;
        }
    }

    #[test]
    fn ranks_and_workers_take_strides_of_the_one_order(
        kept in layouts(), order in orders(), from in 0_u64..300,
        world in 1_u64..10, rank in 0_u64..10, batch in 1_usize..40, workers in 1_u64..5, worker in 0_u64..5,
    ) {
        let mut checked = Checked::new(&kept, order, 1, from);
        let per_batch = world * batch as u64;
        let mut first = from + rank % world + worker % workers * per_batch;
        while first < checked.plan.num_rows() {
            checked.visit(first, world, batch);
            first += workers * per_batch;
        }
    }

    #[test]
    fn pieces_divide_the_spans(kept in layouts(), order in orders()) {
        let plan = EpochPlan::new(spans(&kept), order, 0);
        let mut all = Vec::new();
        plan.walk(0).visit(0, 1, usize::MAX, &mut all, &mut Vec::new());
        let ids: BTreeSet<PieceId> = all.iter().map(|row| row.piece).collect();
        let mut pieces: Vec<_> = ids.into_iter().map(|id| plan.piece(id)).collect();
        pieces.sort_by_key(|piece| (piece.id.span, piece.kept.start));
        let mut held = vec![0; kept.len()];
        for piece in pieces {
            let held = &mut held[piece.id.span as usize];
            prop_assert_eq!(*held, piece.kept.start);
            *held = piece.kept.end;
        }
        prop_assert_eq!(held, kept);
    }
}

#[test]
fn a_walk_can_begin_at_every_position() {
    let kept = [1, 30, 7, 1, 1, 40, 12, 90, 3, 3, 60, 2, 17];
    let lanes = |num_lanes, window_rows| Order::Shuffled { seed: 5, num_lanes, window_rows };
    for order in [Order::Sequential, lanes(1, 20), lanes(4, 25), lanes(6, 1), lanes(8, 0), lanes(8, 100)] {
        for from in 0..=267 {
            let mut checked = Checked::new(&kept, order, 2, from);
            checked.visit(from, 1, 1000);
            assert!(checked.open.is_empty());
            let located = checked.plan.locate(from).map(|row| resolve_row(&checked.plan, row));
            assert_eq!(located.as_ref(), checked.expected.get(from as usize));
            let repeated = checked.plan.repeat(from);
            assert_eq!(repeated.map(|row| resolve_row(&checked.plan, row)), located);
            assert!(repeated.is_none_or(|row| row.piece.lane == REPEAT_LANE));
        }
    }
}

#[test]
fn the_rows_held_are_those_of_a_window_and_a_span() {
    let (num_lanes, window_rows, span_rows) = (12, 240, 40);
    let order = Order::Shuffled { seed: 1, num_lanes, window_rows };
    let mut checked = Checked::new(&[span_rows; 1200], order, 0, 0);
    let about = u64::from(num_lanes) * (window_rows + u64::from(span_rows));
    let (mut position, mut sum, mut visits) = (0, 0, 0);
    while position < 40_000 {
        position = checked.visit(position, 1, 256);
        let held = checked.rows_open();
        // A lane holds rows up to a window before its place and a window after, and the rest of their spans.
        assert!(held <= u64::from(num_lanes) * 2 * (window_rows + u64::from(span_rows)));
        if position > 5_000 {
            sum += held;
            visits += 1;
        }
    }
    let mean = sum / visits;
    assert!(mean > about * 85 / 100 && mean < about * 105 / 100, "{mean} rows are held, expected about {about}");
}

#[test]
fn ranks_read_disjoint_pieces_when_they_divide_the_lanes() {
    let order = Order::Shuffled { seed: 3, num_lanes: 12, window_rows: 20 };
    let plan = EpochPlan::new(spans(&[13; 100]), order, 0);
    for world in [2_u64, 3, 4, 6, 12] {
        let mut seen = BTreeSet::new();
        for rank in 0..world {
            let (mut rows, mut finished) = (Vec::new(), Vec::new());
            plan.walk(0).visit(rank, world, usize::MAX, &mut rows, &mut finished);
            let pieces: BTreeSet<PieceId> = rows.iter().map(|row| row.piece).collect();
            assert!(finished.iter().all(|piece| pieces.contains(piece)));
            assert_eq!(finished.len(), pieces.len());
            assert!(pieces.into_iter().all(|piece| seen.insert(piece)), "{world} ranks share a piece");
        }
    }
}

#[test]
fn a_trillion_rows_can_be_walked() {
    // 2²⁰ spans of a million rows; only the windows around the position are ever drawn.
    let order = Order::Shuffled { seed: 9, num_lanes: 192, window_rows: 240 };
    let plan = EpochPlan::new(spans(&vec![1_000_000; 1 << 20]), order, 0);
    let from = plan.num_rows() - 100_000;
    let (mut rows, mut finished) = (Vec::new(), Vec::new());
    plan.walk(from).visit(from, 1, usize::MAX, &mut rows, &mut finished);
    assert_eq!(rows.len(), 100_000);
    let mut distinct = rows.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), rows.len());
    assert_eq!(plan.locate(from + 99_999), rows.last().copied());
    assert_eq!(plan.locate(from + 100_000), None);
}

#[test]
fn a_walk_is_sent_between_threads() {
    fn assert_owned<T: Send + Sync + 'static>() {}
    assert_owned::<Walk>();
    assert_owned::<EpochPlan>();
}
