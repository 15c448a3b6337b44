//! What the consumer takes, and where delivery ends.

use super::super::piece::{PieceKey, PlannedBatch, Progress};
use super::super::{Most, Taken};
use super::gathering::MAX_READY_BATCHES;
use super::{Scheduler, index_of};

impl Scheduler {
    /// Returns whether the next batch is ready.
    pub(in crate::stream) fn has_ready(&self) -> bool {
        self.batches.front().is_some_and(|batch| matches!(batch.progress, Progress::Ready(..)))
    }

    /// Returns whether enough batches are ready for more to wait: waking a thread for each costs the consumer more than
    /// everything else it does for a batch.
    pub(in crate::stream) fn is_well_ahead(&self) -> bool {
        self.num_ready > MAX_READY_BATCHES / 2
    }

    /// Takes the next batches that are ready; none if the next one is not.
    pub(in crate::stream) fn deliver(&mut self, most: Most) -> Vec<Taken> {
        let (mut taken, mut taken_bytes) = (Vec::new(), 0);
        while taken.len() < most.batches
            && let Some(Progress::Ready(_, bytes)) = self.batches.front().map(|batch| &batch.progress)
            && (taken.is_empty() || taken_bytes + bytes <= most.bytes)
            && let Some(planned) = self.batches.pop_front()
            && let PlannedBatch { progress: Progress::Ready(batch, bytes), slice, skipped, .. } = planned
        {
            taken_bytes += bytes;
            self.last_bytes = bytes;
            taken.push(Taken { batch, position: slice.next, skipped });
        }
        self.num_delivered += taken.len() as u64;
        self.num_ready -= taken.len();
        self.ready_bytes -= taken_bytes;
        if !taken.is_empty() {
            // On receiving this one, the consumer drops what it had before.
            self.budget.release(std::mem::replace(&mut self.delivered_bytes, taken_bytes));
        }
        taken
    }

    /// Records that the consumer wants more than is ready: it may still hold the last batch it took, which becomes its
    /// own once there are no more. Returns whether this frees memory.
    pub(in crate::stream) fn asked(&mut self) -> bool {
        let left = if self.is_done() { 0 } else { self.last_bytes };
        let released = self.delivered_bytes.saturating_sub(left);
        self.delivered_bytes -= released;
        self.budget.release(released);
        released > 0
    }

    /// Drops everything held, when a stream has ended.
    pub(in crate::stream) fn give_up(&mut self) {
        self.batches.clear();
        self.residents.clear();
        self.queue.clear();
        self.to_decode.clear();
        (self.num_ready, self.ready_bytes, self.delivered_bytes) = (0, 0, 0);
        self.budget.release(self.budget.used());
    }

    /// Ends delivery before batch `number`: it and later ones are no longer wanted.
    pub(super) fn end_before(&mut self, number: u64) {
        self.end = number;
        self.is_planned_to_end = true;
        self.end_walk();
        let index = index_of(number, self.num_delivered).min(self.batches.len());
        for batch in self.batches.split_off(index) {
            let planned = batch.planned_bytes();
            match batch.progress {
                Progress::Planned { .. } => self.budget.release(planned),
                Progress::Gathering(reserved) | Progress::Gathered(_, reserved, _) => {
                    self.budget.release(reserved.saturating_add(planned))
                }
                Progress::Ready(_, bytes) => {
                    self.budget.release(bytes);
                    self.num_ready -= 1;
                    self.ready_bytes -= bytes;
                }
            }
            for key in batch.pieces {
                if let Some(resident) = self.residents.get_mut(&key) {
                    resident.num_users -= 1;
                    resident.is_finished = true;
                }
                self.drop_if_unwanted(key);
            }
        }
        let is_wanted = |key: &PieceKey| {
            let first_needed = self.residents.get(key).and_then(|resident| resident.waiting.first());
            first_needed.is_some_and(|&first_needed| first_needed < number)
        };
        self.queue.retain(is_wanted);
    }
}
