//! The order contract, slow and obvious: `tests/golden/order.py` in Rust.

use super::super::seed::{Key, Purpose};
use super::super::{Order, Remainder};

/// Returns the rows of an epoch by position, each as (span, kept row of the span).
pub(super) fn epoch(kept: &[u32], order: Order, epoch: u64) -> Vec<(u32, u32)> {
    let rows_of = |span: u32| (0..kept[span as usize]).map(move |row| (span, row));
    let num_spans = kept.len() as u32;
    let rows: Vec<_> = (0..num_spans).flat_map(rows_of).collect();
    let Order::Shuffled { seed, num_lanes, window_rows } = order else { return rows };
    let n = rows.len();
    if n as u64 <= u64::from(num_lanes) * window_rows {
        let mut keyed: Vec<_> = rows.into_iter().enumerate().collect();
        keyed.sort_by_key(|&(x, _)| (bits(seed, epoch, Purpose::All, 0, x), x));
        return keyed.into_iter().map(|(_, row)| row).collect();
    }
    let mut deal: Vec<u32> = (0..num_spans).collect();
    deal.sort_by_key(|&span| (bits(seed, epoch, Purpose::Spans, 0, span as usize), span));
    let rows: Vec<_> = deal.into_iter().flat_map(rows_of).collect();
    let lanes = num_lanes as usize;
    let cut = |lane: usize| lane * (n / lanes) + lane.min(n % lanes);
    let by_lane: Vec<Vec<_>> = (0..lanes)
        .map(|lane| {
            let part = &rows[cut(lane)..cut(lane + 1)];
            let uniform = |x| bits(seed, epoch, Purpose::Place, lane as u64, x) as f64 / (1_u64 << 53) as f64;
            let key = |x| x as f64 + (uniform(x) - 0.5) * window_rows as f64;
            let mut keyed: Vec<_> = (0..part.len()).map(|x| (key(x), x)).collect();
            keyed.sort_by(|a, b| a.partial_cmp(b).unwrap());
            keyed.into_iter().map(|(_, x)| part[x]).collect()
        })
        .collect();
    (0..n).map(|g| by_lane[g % lanes][g / lanes]).collect()
}

/// Draws one number, as if it were the only one.
fn bits(seed: u64, epoch: u64, purpose: Purpose, stream: u64, x: usize) -> u64 {
    let mut draws = Key::new(seed, epoch, purpose).draws(stream);
    draws.seek(x as u64);
    draws.next_bits()
}

/// Which rank requests batches, and from where.
#[derive(Copy, Clone, Debug)]
pub(super) struct Asked {
    pub(super) cursor: usize,
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) batch: usize,
    pub(super) remainder: Remainder,
    pub(super) drop_last: bool,
}

/// Returns the batches of one rank, from the cursor on.
pub(super) fn rank_batches<T: Copy>(positions: &[T], asked: Asked) -> Vec<Vec<T>> {
    let Asked { cursor, rank, world, batch, remainder, drop_last } = asked;
    let left = positions.len() - cursor;
    let end = if remainder == Remainder::Drop { cursor + left - left % world } else { positions.len() };
    let mut mine: Vec<T> = (cursor + rank..end).step_by(world).map(|g| positions[g]).collect();
    if remainder == Remainder::Pad && !left.is_multiple_of(world) && mine.len() < left.div_ceil(world) {
        mine.push(positions[rank % positions.len()]);
    }
    mine.chunks(batch).filter(|rows| !drop_last || rows.len() == batch).map(<[T]>::to_vec).collect()
}

/// Returns what a DataLoader delivers when worker w holds the batches t ≡ w (mod workers).
pub(super) fn loader<T>(workers: Vec<Vec<T>>) -> Vec<T> {
    let mut workers: Vec<_> = workers.into_iter().map(Vec::into_iter).collect();
    let mut batches = Vec::new();
    loop {
        let turn: Vec<T> = workers.iter_mut().filter_map(Iterator::next).collect();
        if turn.is_empty() {
            return batches;
        }
        batches.extend(turn);
    }
}
