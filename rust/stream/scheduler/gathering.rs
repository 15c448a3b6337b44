//! Which batches are gathered, and how they are counted.

use arrow_array::RecordBatch;

use super::super::piece::{Gathered, PieceKey, PlannedBatch, PlannedRows, Progress, Resident, Stage, Task};
use super::{Scheduler, Step, index_of};
use crate::finish::Finished;
use crate::plan::PieceId;
use crate::reader::TooLarge;

/// The fraction of the limit for batches that wait for the consumer.
const READY_SHARE: u64 = 8;

/// A view may keep at most this fraction of the limit alive beyond the rows it shows; otherwise they are copied, if
/// there is room.
const HIDDEN_SHARE: u64 = 8;

/// Minimum of batches gathered ahead of the consumer, so that gathering overlaps with training.
pub(super) const MIN_READY_BATCHES: usize = 2;

/// Maximum of batches gathered ahead of the consumer: more would leave the caches.
pub(super) const MAX_READY_BATCHES: usize = 8;

impl Scheduler {
    /// Gathers batches in order; several at a time, a bounded number ahead of the consumer.
    pub(super) fn next_gather(&mut self) -> Result<Step, TooLarge> {
        let is_planned = |batch: &PlannedBatch| matches!(batch.progress, Progress::Planned { .. });
        let Some(index) = self.batches.iter().position(is_planned) else { return Ok(Step::Wait) };
        let is_enough = self.ready_bytes >= self.budget.limit() / READY_SHARE && index >= MIN_READY_BATCHES;
        let max_ready = if self.is_resting { 1 } else { MAX_READY_BATCHES };
        if is_enough || index >= max_ready || self.batches[index].is_missing_pieces() {
            return Ok(Step::Wait);
        }
        let bytes = self.gathered_bytes(&self.batches[index]);
        if !self.budget.has_room(bytes) {
            if !self.is_stuck() {
                return Ok(Step::Wait);
            }
            let piece = self.batches[index].pieces.first().map_or(PieceId { lane: 0, span: 0 }, |key| key.piece);
            if let Some(step) = self.make_room(piece, bytes)? {
                return Ok(step);
            }
        }
        Ok(self.gather(index, bytes).map_or(Step::Wait, Step::Do))
    }

    /// Gathers the next batch whether there is room or not, if its parts are available.
    pub(super) fn gather_next(&mut self) -> Option<Task> {
        let next = self.batches.front().filter(|batch| !batch.is_missing_pieces())?;
        let bytes = self.gathered_bytes(next);
        self.gather(0, bytes)
    }

    /// Estimates the memory needed to gather a batch whose parts are available.
    fn gathered_bytes(&self, batch: &PlannedBatch) -> u64 {
        let Progress::Planned { rows, .. } = &batch.progress else { return 0 };
        let Some(row_bytes) = self.finished_row_bytes else {
            return if self.is_view(batch, rows) { 0 } else { self.copied_bytes(batch) };
        };
        self.copied_bytes(batch).saturating_add(row_bytes.saturating_mul(rows.len() as u64))
    }

    /// Returns whether a batch of `rows`, which is not transformed, is a slice of decoded rows.
    fn is_view(&self, batch: &PlannedBatch, rows: &PlannedRows) -> bool {
        let (PlannedRows::Runs(runs), [key]) = (rows, &*batch.pieces) else { return false };
        let is_as_decoded = |part: &Resident| matches!(&part.stage, Stage::Ready(held, None) if held.can_be_seen());
        runs.len() == 1 && self.residents.get(key).is_some_and(is_as_decoded) && self.may_be_view(batch)
    }

    /// Returns whether a batch that is a slice of decoded rows may keep all of them alive until the consumer is done
    /// with it.
    ///
    /// Not if a row may be drawn again: consumers may write to their batches, so each must have a copy of its own.
    fn may_be_view(&self, batch: &PlannedBatch) -> bool {
        if self.plan.is_drawn() {
            return false;
        }
        let [key] = &*batch.pieces else { return false };
        let Some(Resident { stage: Stage::Ready(held, _), .. }) = self.residents.get(key) else { return false };
        let shown = self.copied_bytes(batch);
        let hidden = held.memory_bytes().saturating_sub(shown);
        hidden <= self.budget.limit() / HIDDEN_SHARE || !self.budget.has_room(shown)
    }

    /// Estimates the memory of the rows of a batch whose parts are available.
    fn copied_bytes(&self, batch: &PlannedBatch) -> u64 {
        let of_part = |(key, &count): (&PieceKey, &u32)| {
            let Some(Resident { stage: Stage::Ready(source, _), .. }) = self.residents.get(key) else { return 0 };
            let bytes = u128::from(source.gathered_bytes()) * u128::from(count) / (source.num_rows() as u128).max(1);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        batch.pieces.iter().zip(&batch.row_counts).map(of_part).fold(0, u64::saturating_add)
    }

    fn gather(&mut self, index: usize, bytes: u64) -> Option<Task> {
        let may_be_view = self.may_be_view(&self.batches[index]);
        let planned = &mut self.batches[index];
        if !matches!(planned.progress, Progress::Planned { .. }) {
            return None;
        }
        let gathering = Progress::Gathering(bytes);
        let Progress::Planned { rows, .. } = std::mem::replace(&mut planned.progress, gathering) else { return None };
        self.budget.reserve(bytes);
        let mut sources = Vec::with_capacity(planned.pieces.len());
        // For each part, its index among the sources, unless it is lost, and the rows that are left of it.
        let mut parts = Vec::with_capacity(planned.pieces.len());
        let mut is_as_planned = true;
        for key in &planned.pieces {
            let Some(Resident { stage: Stage::Ready(held, keep), is_lost, .. }) = self.residents.get(key) else {
                return None;
            };
            let place = u32::try_from(sources.len()).ok().filter(|_| !is_lost);
            parts.push((place, keep.as_deref()));
            is_as_planned &= !is_lost && keep.is_none();
            if !is_lost {
                sources.push(held.clone());
            }
        }
        let num_planned = rows.len();
        let rows = if is_as_planned { rows } else { left_of(rows, &parts) };
        self.num_under_way += 1;
        let planned = &mut self.batches[index];
        planned.skipped.rows += (num_planned - rows.len()) as u64;
        let (number, slice) = (self.num_delivered + index as u64, planned.slice);
        Some(Task::Gather { number, slice, sources, rows, may_be_view })
    }

    /// Reports a gathered batch that takes this many bytes besides to be transformed: it waits for them.
    pub(in crate::stream) fn unfinished(&mut self, number: u64, gathered: Gathered, bytes: u64) {
        self.num_under_way -= 1;
        self.finishing_bytes = bytes.max(self.finishing_bytes / 8 * 7);
        let Some(planned) = self.batches.get_mut(index_of(number, self.num_delivered)) else { return };
        let Progress::Gathering(reserved) = planned.progress else { return };
        planned.progress = Progress::Gathered(gathered, reserved, bytes);
    }

    /// Transforms the first batch that waits for memory, if there is enough, or if the consumer waits for it and
    /// nothing else is going on.
    pub(super) fn next_finish(&mut self) -> Result<Step, TooLarge> {
        let needed = |batch: &PlannedBatch| match batch.progress {
            Progress::Gathered(_, _, bytes) => Some(bytes),
            _ => None,
        };
        let mut waiting = self.batches.iter().take(MAX_READY_BATCHES).map(needed).enumerate();
        let Some((index, bytes)) = waiting.find_map(|(index, bytes)| Some((index, bytes?))) else {
            return Ok(Step::Wait);
        };
        if !self.budget.has_room(bytes) {
            if index > 0 || self.num_under_way > 0 {
                return Ok(Step::Wait);
            }
            // In blocks, there is nothing to give up but other batches' rows, which are few.
            if self.block == 0 && self.is_stuck() {
                let piece = self.batches[index].pieces.first().map_or(PieceId { lane: 0, span: 0 }, |key| key.piece);
                if let Some(step) = self.make_room(piece, bytes)? {
                    return Ok(step);
                }
            }
        }
        let (number, planned) = (self.num_delivered + index as u64, &mut self.batches[index]);
        let progress = std::mem::replace(&mut planned.progress, Progress::Gathering(0));
        let Progress::Gathered(gathered, reserved, bytes) = progress else { return Ok(Step::Wait) };
        planned.progress = Progress::Gathering(reserved.saturating_add(bytes));
        self.budget.reserve(bytes);
        self.num_under_way += 1;
        Ok(Step::Do(Task::Finish { number, slice: planned.slice, gathered }))
    }

    /// Reports a gathered batch, and whether it is a view of a part; drops the pieces that no batch needs any more.
    ///
    /// A view counts as the rows it shows once its part may have been dropped, although it keeps the part alive until
    /// the consumer is done with it: of large parts, [few batches are views](Self::may_be_view).
    pub(in crate::stream) fn gathered(&mut self, number: u64, finished: Finished, is_view: bool) {
        let Finished { batch, num_skipped } = finished;
        self.num_under_way -= 1;
        let index = index_of(number, self.num_delivered);
        let Some(planned) = self.batches.get(index) else { return };
        let Progress::Gathering(reserved) = planned.progress else { return };
        let bytes = if is_view { self.copied_bytes(planned) } else { memory_bytes(&batch) };
        let copied = if is_view { 0 } else { bytes };
        self.budget.release(reserved.saturating_add(planned.planned_bytes()));
        self.budget.reserve(copied);
        self.num_ready += 1;
        self.ready_bytes += bytes;
        let planned = &mut self.batches[index];
        planned.progress = Progress::Ready(batch, bytes);
        planned.skipped.images = num_skipped;
        for key in std::mem::take(&mut planned.pieces) {
            if let Some(resident) = self.residents.get_mut(&key) {
                resident.num_users -= 1;
                // Rows that have left may have been the last on their shelf.
                if let Stage::Ready(held, _) = &resident.stage {
                    let left = held.memory_bytes();
                    self.budget.release(resident.charge.saturating_sub(left));
                    resident.charge = resident.charge.min(left);
                }
            }
            self.drop_if_unwanted(key);
        }
        self.budget.reserve(bytes - copied);
    }
}

/// Returns the `rows` that are not lost, relative to what is left of each part: its index, and the rows that it kept,
/// or `None` for all.
fn left_of(rows: PlannedRows, parts: &[(Option<u32>, Option<&[u32]>)]) -> PlannedRows {
    let mut rows = rows.into_each();
    rows.retain_mut(|(place, row)| {
        let (source, keep) = parts[*place as usize];
        let left = keep.map_or(Ok(*row as usize), |keep| keep.binary_search(row));
        let (Some(source), Some(left)) = (source, left.ok().and_then(|left| u32::try_from(left).ok())) else {
            return false;
        };
        (*place, *row) = (source, left);
        true
    });
    PlannedRows::Each(rows)
}

fn memory_bytes(batch: &RecordBatch) -> u64 {
    batch.get_array_memory_size() as u64
}
