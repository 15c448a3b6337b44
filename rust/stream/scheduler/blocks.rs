//! Handles a memory limit that is smaller than the shuffle window.
//!
//! Every resident part is needed sooner than the next one to fetch, so the case is detected when there is no room for
//! that one and nothing else is in progress. From then on batches are planned in blocks: each block fetches its parts
//! anew, and keeps only the rows of its own batches, at most a quarter of the limit, so that two blocks overlap. A
//! block that does not fit is planned again with half the length. Rows read more than once are counted.

use super::super::piece::{
    PieceKey, PlannedBatch, Progress, Resident, Stage, Task, listed_bytes, note_wanted, wanted_rows,
};
use super::planning::MAX_IDLE_PLANNED_ROWS;
use super::{Scheduler, Step, numbers_of};
use crate::plan::PieceId;
use crate::reader::TooLarge;

/// The fraction of the limit for the rows of one block, if the window does not fit.
const BLOCK_SHARE: u64 = 4;

/// How many sixteenths of the limit the consumer's batch may exceed it by: nearly the fifth that a process may take
/// beyond it.
const EXCESS_SIXTEENTHS: u64 = 3;

impl Scheduler {
    /// Plans the next block, if there is room for it.
    pub(super) fn plan_block(&mut self) -> Result<(), TooLarge> {
        if self.is_planned_to_end || !self.queue.is_empty() {
            return Ok(());
        }
        // One block ahead of the one that is being gathered, unless not even two batches fit.
        let block_len = self.block_len();
        let max_ungathered = if self.max_block_len == 1 { 0 } else { block_len };
        let num_ungathered = self.batches.len() - self.num_ready;
        if num_ungathered <= max_ungathered && !self.batches.iter().any(PlannedBatch::is_missing_pieces) {
            self.block += 1;
            for _ in 0..block_len {
                if !self.plan_batch()? {
                    break;
                }
            }
            let block = self.block;
            self.residents.iter_mut().filter(|(key, _)| key.block == block).for_each(|(_, r)| r.is_finished = true);
        }
        Ok(())
    }

    /// Returns the number of batches in a block, given their rows and the memory for planning them.
    fn block_len(&self) -> usize {
        let room = self.budget.limit().saturating_sub(self.largest_part).saturating_sub(self.walk_bytes) / BLOCK_SHARE;
        let num_rows = self.batch_rows();
        // The rows to keep are also recorded at the parts.
        let of_plans = self.planned_batch_bytes().saturating_add(listed_bytes(num_rows, self.num_batch_pieces));
        let batch_bytes = self.row_bytes.of(num_rows).saturating_add(of_plans);
        let num_batches = usize::try_from(room / batch_bytes).unwrap_or(usize::MAX);
        num_batches.min(MAX_IDLE_PLANNED_ROWS / num_rows).min(self.max_block_len).max(1)
    }

    /// Gives up what it can for `bytes` of a part or a batch. Returns `None` if they may be taken anyway, because only
    /// the room reserved for the next batch is in the way, or a little of the consumer's batch.
    pub(super) fn make_room(&mut self, piece: PieceId, bytes: u64) -> Result<Option<Step>, TooLarge> {
        if self.block == 0
            && let Some(task) = self.compact_finished()
        {
            return Ok(Some(Step::Do(task)));
        }
        let too_large = self.too_large(piece, bytes);
        let limit = self.budget.limit();
        let excess = self.delivered_bytes.min(limit / 16 * EXCESS_SIXTEENTHS);
        if too_large.needed_bytes <= limit.saturating_add(excess) {
            return Ok(None);
        }
        // The consumer will come for more, and keep at most the last of them.
        if self.delivered_bytes > self.last_bytes {
            return Ok(Some(Step::Wait));
        }
        if self.block > 0 && self.max_block_len == 1 {
            // The batch's rows, both decoded and gathered, although not all of them have arrived.
            let of_batches = self.room_for_batch().saturating_mul(2).saturating_add(self.delivered_bytes);
            let needed_bytes = self.limit_for(of_batches);
            // If that is more, fewer rows would fit, however large the parts are that they come from.
            return Err(match needed_bytes > too_large.needed_bytes && too_large.batch_rows > 1 {
                true => TooLarge { needed_bytes, part_bytes: 0, ..too_large },
                false => TooLarge { needed_bytes: needed_bytes.max(too_large.needed_bytes), ..too_large },
            });
        }
        self.plan_anew();
        Ok(Some(Step::Again))
    }

    /// Drops everything planned, and plans it anew in blocks, or in shorter ones.
    fn plan_anew(&mut self) {
        if self.block == 0 {
            for batch in &self.batches {
                let Progress::Planned { rows, .. } = &batch.progress else { continue };
                let is_ready = |key: &PieceKey| matches!(self.residents.get(key), Some(r) if r.is_ready());
                let is_ready: Vec<bool> = batch.pieces.iter().map(is_ready).collect();
                rows.for_each(|(place, _)| self.num_evicted_rows += u64::from(is_ready[place as usize]));
            }
            let unplanned = |r: &Resident| u64::from(r.num_rows().saturating_sub(r.num_planned));
            self.num_evicted_rows += self.residents.values().filter(|r| r.is_ready()).map(unplanned).sum::<u64>();
        } else {
            let block = self.block;
            let is_of_block = |batch: &&PlannedBatch| batch.pieces.iter().any(|key| key.block == block);
            self.max_block_len = (self.batches.iter().filter(is_of_block).count() / 2).max(1);
        }
        self.budget.release(self.residents.values().map(|resident| resident.charge).sum());
        for batch in &self.batches {
            match batch.progress {
                Progress::Planned { .. } => self.budget.release(batch.planned_bytes()),
                Progress::Gathered(_, reserved, _) => {
                    self.budget.release(reserved.saturating_add(batch.planned_bytes()));
                }
                Progress::Gathering(_) | Progress::Ready(..) => {}
            }
        }
        if let Some(first) = self.batches.front().map(|batch| batch.slice.first) {
            self.walk_from(first);
            self.position = self.position.map(|_| first);
        }
        let num_delivered = usize::try_from(self.num_delivered).unwrap_or(usize::MAX);
        self.numbers = numbers_of(self.share.worker_batches().skip(num_delivered));
        self.is_planned_to_end = false;
        self.batches.clear();
        self.residents.clear();
        self.undecoded_bytes = 0;
        self.parts.clear();
        self.queue.clear();
        self.to_decode.clear();
        self.block += 1;
    }

    /// Records which rows of passed parts are still to be gathered, and returns the first task to keep only those.
    fn compact_finished(&mut self) -> Option<Task> {
        let is_candidate = |r: &Resident| r.is_finished && matches!(r.stage, Stage::Ready(_, None));
        self.to_compact = self.residents.iter().filter(|(_, r)| is_candidate(r)).map(|(key, _)| *key).collect();
        self.to_compact.sort_unstable();
        self.residents.values_mut().for_each(|resident| resident.wanted.clear());
        for batch in &self.batches {
            if let Progress::Planned { rows, .. } = &batch.progress {
                note_wanted(&mut self.residents, &batch.pieces, rows);
            }
        }
        self.next_compact()
    }

    pub(super) fn next_compact(&mut self) -> Option<Task> {
        while let Some(key) = self.to_compact.pop() {
            let Some(resident) = self.residents.get_mut(&key) else { continue };
            let Stage::Ready(held, None) = &resident.stage else { continue };
            if let Some(keep) = wanted_rows(&mut resident.wanted, held.num_rows()) {
                self.num_under_way += 1;
                return Some(Task::Compact { key, held: held.for_another(), keep });
            }
        }
        None
    }
}
