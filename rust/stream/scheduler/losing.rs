//! Handles parts that cannot be read.

use std::ops::Range;
use std::sync::Arc;

use super::super::held::Held;
#[cfg(doc)]
use super::super::holes::Holes;
use super::super::piece::{PieceKey, PlannedBatch, Progress, Resident, Stage};
use super::{Scheduler, index_of};
use crate::error::Error;
use crate::plan::{Hole, PieceId, REPEAT_LANE};

/// What is known about a part with damaged pages.
#[derive(Debug)]
pub(in crate::stream) struct Salvaged {
    /// The kept rows of its span that cannot be decoded.
    pub(in crate::stream) damaged: Vec<Range<u32>>,
    /// The other rows, and their numbers in the part; `None` if there are none.
    pub(in crate::stream) left: Option<(Held, Arc<[u32]>)>,
}

impl Scheduler {
    /// Reports that a part cannot be fetched or decoded: its rows, or only the damaged ones if these are known, are
    /// left out of all batches that are not gathered yet. If nothing is known about a damaged part of a block, only the
    /// rows of that block are left out: others were read, or may be later.
    ///
    /// # Errors
    ///
    /// As for [`Holes::add`], due after the batches before the first one that needs the part: delivery ends there. If
    /// only batches after such an end need it, there is no error.
    pub(in crate::stream) fn lost(
        &mut self,
        key: PieceKey,
        salvaged: Option<Salvaged>,
        hole: impl Fn(&Range<u32>, String) -> Hole,
        cause: Error,
    ) -> Result<(), Error> {
        self.num_under_way -= 1;
        let Some(resident) = self.residents.get(&key) else { return Ok(()) };
        let first_needed = resident.waiting.first().copied().unwrap_or(self.num_delivered);
        // What does not come from a store is not requested again and again.
        let is_of_block = key.block > 0 && matches!(resident.stage, Stage::Decoding);
        let rows = match &salvaged {
            Some(salvaged) => salvaged.damaged.clone(),
            None if is_of_block => self.waited_for(key, resident),
            None => vec![resident.part.kept.clone()],
        };
        let added = if first_needed >= self.end {
            Ok(())
        } else if key.piece.lane == REPEAT_LANE {
            // The row has a position of its own, where it is read again.
            self.holes.allowed(cause).map(drop)
        } else {
            let hole = |rows: &Range<u32>, cause: &str| hole(&self.plan.numbers(key.piece, rows), cause.to_owned());
            self.holes.add(|cause| rows.iter().map(|rows| hole(rows, &cause)).collect(), cause)
        };
        self.settle(key, salvaged.and_then(|salvaged| salvaged.left).filter(|_| added.is_ok()));
        added.inspect_err(|_| self.end_before(first_needed))
    }

    /// Returns how many of the rows `kept` of a piece may be damaged for [`Self::lost`] to be no error, if it counts
    /// them one by one.
    pub(in crate::stream) fn spare(
        &self,
        piece: PieceId,
        kept: &Range<u32>,
        hole: impl Fn(&Range<u32>, String) -> Hole,
    ) -> Option<u64> {
        let is_counted = piece.lane != REPEAT_LANE && !self.plan.is_drawn();
        is_counted.then(|| self.holes.spare(&hole(&self.plan.numbers(piece, kept), String::new())))
    }

    /// Makes batches wait only for what is left of a part.
    fn settle(&mut self, key: PieceKey, left: Option<(Held, Arc<[u32]>)>) {
        let Some(resident) = self.residents.get_mut(&key) else { return };
        if matches!(resident.stage, Stage::Decoding) {
            self.num_decoding -= 1;
        } else {
            self.undecoded_bytes = self.undecoded_bytes.saturating_sub(resident.part.cost.fetched);
        }
        resident.is_lost = left.is_none();
        let (held, keep) = left.unzip();
        resident.keep = keep.or(resident.keep.take());
        self.arrived(key, held.unwrap_or_default());
    }

    /// Returns the kept rows of a part that batches wait for.
    fn waited_for(&self, key: PieceKey, resident: &Resident) -> Vec<Range<u32>> {
        let mut due = Vec::new();
        for &number in &resident.waiting {
            let Some(PlannedBatch { pieces, progress: Progress::Planned { rows, .. }, .. }) =
                self.batches.get(index_of(number, self.num_delivered))
            else {
                continue;
            };
            let first = resident.part.kept.start;
            rows.for_each(|(place, row)| due.extend((pieces[place as usize] == key).then_some(first + row)));
        }
        due.sort_unstable();
        due.dedup();
        due.chunk_by(|one, next| one + 1 == *next).map(|run| run[0]..run[run.len() - 1] + 1).collect()
    }
}
