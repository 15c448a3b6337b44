//! Chooses how many lanes an epoch has and how wide their windows are.
//!
//! Both depend on the footers and `shuffle_bytes`, never on the machine's memory or the number of ranks: they are part
//! of the order. The simulation in `benches/plan.rs` gave the numbers here; `docs/order.md` has its table.

use super::span::Span;

/// The default of `shuffle_bytes`: decoded bytes in the windows of all lanes together.
pub const DEFAULT_SHUFFLE_BYTES: u64 = 1 << 30;

/// The numbers of lanes to choose from. Every usual number of ranks divides 192, and each of the others divides those
/// before it: with N lanes or a multiple of N, N ranks share no span except at cuts.
pub const LANES: [u32; 8] = [192, 96, 48, 24, 12, 6, 3, 1];

/// A window has room for at least this many spans. Below that, the entropy of the order falls faster than more lanes
/// improve the variance of its batches.
pub const MIN_SPANS_PER_WINDOW: u64 = 3;

/// All windows together have room for at most this many spans: 6 in each of 192 lanes. Twice the memory would
/// bring batches from 1.06 to 1.02 of a full shuffle's variance.
pub const MAX_SPANS_IN_WINDOWS: u64 = 6 * 192;

/// Minimum cost of a row: its place in the window is kept in addition to its values.
pub const MIN_ROW_BYTES: u64 = 16;

/// How an epoch is mixed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mixing {
    /// The number of lanes.
    pub num_lanes: u32,
    /// Kept rows per window.
    pub window_rows: u64,
}

/// Derives the lanes and the window from the mean span in kept rows ([`mean_span_rows`]), the decoded bytes of a row
/// over all leaves, and the bytes to shuffle within.
///
/// Chooses the most lanes whose windows are still wide enough, such that `lanes · (window + span) · row ≤
/// shuffle_bytes`; a single lane with what is left if no number fits.
pub fn resolve(span_rows: u64, row_bytes: u64, shuffle_bytes: u64) -> Mixing {
    let span_rows = span_rows.max(1);
    let budget_rows = shuffle_bytes / row_bytes.max(MIN_ROW_BYTES);
    let min_window = span_rows.saturating_mul(MIN_SPANS_PER_WINDOW);
    let window = |lanes: u32| (budget_rows / u64::from(lanes)).saturating_sub(span_rows);
    let num_lanes = LANES.into_iter().find(|&lanes| window(lanes) >= min_window).unwrap_or(1);
    let most = MAX_SPANS_IN_WINDOWS.saturating_mul(span_rows) / u64::from(num_lanes);
    Mixing { num_lanes, window_rows: window(num_lanes).clamp(1, most.max(1)) }
}

/// Returns the least `shuffle_bytes` with which a window has room for [`MIN_SPANS_PER_WINDOW`] spans, or for all of
/// `num_rows`. With less, rows stay near those that are stored beside them.
pub fn least_shuffle_bytes(num_rows: u64, span_rows: u64, row_bytes: u64) -> u64 {
    let span_rows = span_rows.max(1);
    let window = num_rows.min(span_rows.saturating_mul(MIN_SPANS_PER_WINDOW));
    window.saturating_add(span_rows).saturating_mul(row_bytes.max(MIN_ROW_BYTES))
}

/// Returns the length in kept rows of the span that a row is in, averaged over the rows and rounded up.
///
/// Weighted by rows, because a few giant spans fill the windows however many tiny ones there are.
pub fn mean_span_rows(spans: &[Span]) -> u64 {
    let (rows, squares) = spans.iter().fold((0_u64, 0_u128), |(rows, squares), span| {
        let kept = u64::from(span.num_kept);
        (rows + kept, squares + u128::from(kept * kept))
    });
    // The mean lies between the shortest and the longest span, so it fits.
    u64::try_from(squares.div_ceil(u128::from(rows.max(1)))).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forty_row_spans_of_8_kb_get_192_lanes_at_the_default() {
        assert_eq!(resolve(40, 8_000, DEFAULT_SHUFFLE_BYTES), Mixing { num_lanes: 192, window_rows: 240 });
    }

    #[test]
    fn wide_spans_get_fewer_lanes() {
        let mixing = resolve(1000, 8_000, DEFAULT_SHUFFLE_BYTES);
        assert_eq!(mixing, Mixing { num_lanes: 24, window_rows: 4592 });
    }

    #[test]
    fn less_memory_narrows_the_windows_before_it_takes_lanes() {
        assert_eq!(resolve(40, 8_000, 256 << 20), Mixing { num_lanes: 192, window_rows: 134 });
        assert_eq!(resolve(40, 8_000, 128 << 20), Mixing { num_lanes: 96, window_rows: 134 });
    }

    #[test]
    fn a_span_beyond_the_budget_leaves_one_lane_and_one_row() {
        assert_eq!(resolve(1_000_000, 1 << 20, 1 << 30), Mixing { num_lanes: 1, window_rows: 1 });
        assert_eq!(resolve(1, 1, 0), Mixing { num_lanes: 1, window_rows: 1 });
    }

    #[test]
    fn the_mean_span_is_weighted_by_rows() {
        let span = |num_kept| Span { row_group: 0, start: 0, end: num_kept, num_kept };
        assert_eq!(mean_span_rows(&[span(40), span(40), span(20)]), 36);
        assert_eq!(mean_span_rows(&[span(1000), span(1), span(1)]), 999);
        assert_eq!(mean_span_rows(&[]), 1);
    }

    proptest! {
        #[test]
        fn the_windows_stay_within_the_budget(
            span_rows in 1_u64..100_000, row_bytes in 1_u64..1_000_000, shuffle_bytes in 0_u64..(1 << 40),
        ) {
            let mixing = resolve(span_rows, row_bytes, shuffle_bytes);
            let is_wide = mixing.window_rows >= MIN_SPANS_PER_WINDOW * span_rows;
            prop_assert_eq!(is_wide, shuffle_bytes >= least_shuffle_bytes(u64::MAX, span_rows, row_bytes));
            let lanes = u64::from(mixing.num_lanes);
            let used = lanes * (mixing.window_rows + span_rows) * row_bytes.max(MIN_ROW_BYTES);
            prop_assert!(used <= shuffle_bytes || (lanes == 1 && mixing.window_rows == 1));
            prop_assert!(lanes * mixing.window_rows <= MAX_SPANS_IN_WINDOWS * span_rows);
        }
    }
}
