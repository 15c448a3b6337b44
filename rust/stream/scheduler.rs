//! Decides what a stream does next, within its memory.
//!
//! Sans-IO: worker threads ask [`Scheduler::next_task`] what to do and report what came of it. Batches
//! are planned ahead along the order; each names the pieces (parts of spans) whose rows it needs; pieces
//! are fetched in the order in which they are first needed, while the budget has room; a batch is
//! gathered when its pieces are there; a piece is dropped when the order has left it.
//!
//! **When the window does not fit.** Every resident piece is needed sooner than the next one to fetch,
//! so if that one has no room and nothing else is under way, the memory limit is smaller than the
//! shuffle window. From then on batches are planned in blocks: each block fetches its pieces anew and
//! keeps only the rows of its own batches, at most a quarter of the limit, so that two blocks overlap.
//! What is read more than once is counted.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::budget::Budget;
use super::piece::{
    Fetched, PieceKey, PlannedBatch, Progress, Resident, Stage, Task, TooLarge, note_wanted, wanted_rows,
};
use crate::plan::{BatchSlice, EpochPlan, Piece, PieceId, RowRef, Share, Walk};
use crate::reader::PieceCost;

/// The part of the limit for the rows of one block, when the window does not fit.
const BLOCK_SHARE: u64 = 4;

/// The part of the limit for batches that wait for the consumer.
const READY_SHARE: u64 = 8;

/// Batches gathered ahead of the consumer at least, so that gathering overlaps with training.
const MIN_READY_BATCHES: usize = 2;

/// Batches gathered ahead of the consumer at most: more would only grow cold.
const MAX_READY_BATCHES: usize = 8;

/// Rows planned ahead at most: bounds the bookkeeping, not the prefetch, which the budget bounds.
const MAX_PLANNED_ROWS: usize = 1 << 18;

/// How much a stream held and read again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) memory_bytes: u64,
    pub(super) peak_memory_bytes: u64,
    /// Rows that were decoded and dropped for lack of memory, to be read again.
    pub(super) num_evicted_rows: u64,
    pub(super) num_ready: usize,
}

/// The state of one stream. See the module's documentation.
pub(super) struct Scheduler {
    plan: Arc<EpochPlan>,
    walk: Walk,
    share: Share,
    /// The batches, of this rank's, still to plan.
    numbers: Box<dyn Iterator<Item = u64> + Send>,
    cost: Box<dyn Fn(&Piece) -> PieceCost + Send>,
    budget: Budget,
    /// Batches planned and not delivered; the first is number `num_delivered` of this stream.
    batches: VecDeque<PlannedBatch>,
    num_delivered: u64,
    is_planned_to_end: bool,
    residents: HashMap<PieceKey, Resident>,
    /// Pieces to fetch, first needed first.
    queue: VecDeque<PieceKey>,
    /// Pieces with bytes, by the batch that needs them first.
    to_decode: BTreeSet<(u64, PieceKey)>,
    to_compact: Vec<PieceKey>,
    /// Pieces being fetched or decoded, and batches being gathered.
    num_under_way: usize,
    num_ready: usize,
    ready_bytes: u64,
    /// 0 while the window fits.
    block: u32,
    largest_piece: u64,
    /// Decoded bytes of a row, about.
    row_bytes: u64,
    num_evicted_rows: u64,
}

impl Scheduler {
    /// Prepares the delivery of `share` of `plan` within `limit` bytes; decoded rows take about `row_bytes` each.
    pub(super) fn new(
        plan: Arc<EpochPlan>,
        share: Share,
        limit: u64,
        row_bytes: u64,
        cost: impl Fn(&Piece) -> PieceCost + Send + 'static,
    ) -> Self {
        Self {
            walk: plan.walk(share.from),
            numbers: Box::new(share.worker_batches()),
            plan,
            share,
            cost: Box::new(cost),
            budget: Budget::new(limit),
            batches: VecDeque::new(),
            num_delivered: 0,
            is_planned_to_end: false,
            residents: HashMap::new(),
            queue: VecDeque::new(),
            to_decode: BTreeSet::new(),
            to_compact: Vec::new(),
            num_under_way: 0,
            num_ready: 0,
            ready_bytes: 0,
            block: 0,
            largest_piece: 0,
            row_bytes,
            num_evicted_rows: 0,
        }
    }

    /// Returns what to do now; `None` until something is reported or delivered.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] where one piece alone exceeds the limit.
    pub(super) fn next_task(&mut self) -> Result<Option<Task>, TooLarge> {
        self.plan_ahead();
        if let Some(task) = self.next_compact() {
            return Ok(Some(task));
        }
        if let Some(task) = self.next_fetch()? {
            return Ok(Some(task));
        }
        Ok(self.next_gather().or_else(|| self.next_decode()))
    }

    /// Returns whether the next batch is ready.
    pub(super) fn has_ready(&self) -> bool {
        self.batches.front().is_some_and(|batch| matches!(batch.progress, Progress::Ready(..)))
    }

    /// Takes the next batch, if it is ready.
    pub(super) fn deliver(&mut self) -> Option<(RecordBatch, BatchSlice)> {
        if !self.has_ready() {
            return None;
        }
        let planned = self.batches.pop_front()?;
        let Progress::Ready(batch, bytes) = planned.progress else { return None };
        self.num_delivered += 1;
        self.num_ready -= 1;
        self.ready_bytes -= bytes;
        self.budget.release(bytes);
        Some((batch, planned.slice))
    }

    /// Returns whether every batch has been delivered.
    pub(super) fn is_done(&self) -> bool {
        self.is_planned_to_end && self.batches.is_empty()
    }

    /// Returns the memory limit in bytes.
    pub(super) fn memory_limit(&self) -> u64 {
        self.budget.limit()
    }

    /// Returns how much is held and was read again.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            memory_bytes: self.budget.used(),
            peak_memory_bytes: self.budget.peak(),
            num_evicted_rows: self.num_evicted_rows,
            num_ready: self.num_ready,
        }
    }

    /// Reports the bytes of a piece.
    pub(super) fn fetched(&mut self, key: PieceKey, fetched: Fetched) {
        self.num_under_way -= 1;
        let Some(resident) = self.residents.get_mut(&key) else { return };
        let first_needed = resident.waiting.first().copied().unwrap_or(u64::MAX);
        resident.stage = Stage::Fetched(Box::new(fetched));
        self.to_decode.insert((first_needed, key));
    }

    /// Reports the arrays of a piece, of which `keep` are there if given.
    pub(super) fn decoded(&mut self, key: PieceKey, batch: RecordBatch, keep: Option<Arc<[u32]>>) {
        self.num_under_way -= 1;
        self.hold(key, batch, keep);
        let Some(resident) = self.residents.get_mut(&key) else { return };
        for number in std::mem::take(&mut resident.waiting) {
            if let Some(PlannedBatch { progress: Progress::Planned { num_missing, .. }, .. }) =
                self.batches.get_mut(index_of(number, self.num_delivered))
            {
                *num_missing -= 1;
            }
        }
    }

    /// Reports the arrays of a piece that was ready and keeps fewer rows now.
    pub(super) fn compacted(&mut self, key: PieceKey, batch: RecordBatch, keep: Arc<[u32]>) {
        self.num_under_way -= 1;
        self.hold(key, batch, Some(keep));
    }

    /// Reports a gathered batch and drops the pieces that nobody wants any more.
    pub(super) fn gathered(&mut self, number: u64, batch: RecordBatch) {
        self.num_under_way -= 1;
        let bytes = memory_bytes(&batch);
        self.budget.reserve(bytes);
        self.num_ready += 1;
        self.ready_bytes += bytes;
        let Some(planned) = self.batches.get_mut(index_of(number, self.num_delivered)) else { return };
        planned.progress = Progress::Ready(batch, bytes);
        for key in std::mem::take(&mut planned.pieces) {
            if let Some(resident) = self.residents.get_mut(&key) {
                resident.num_users -= 1;
            }
            self.drop_if_unwanted(key);
        }
    }

    fn hold(&mut self, key: PieceKey, batch: RecordBatch, keep: Option<Arc<[u32]>>) {
        let Some(resident) = self.residents.get_mut(&key) else { return };
        self.budget.release(resident.charge);
        resident.charge = memory_bytes(&batch);
        self.budget.reserve(resident.charge);
        resident.stage = Stage::Ready(batch, keep);
        self.drop_if_unwanted(key);
    }

    fn drop_if_unwanted(&mut self, key: PieceKey) {
        let is_unwanted = self
            .residents
            .get(&key)
            .is_some_and(|r| r.is_finished && r.num_users == 0 && matches!(r.stage, Stage::Ready(..)));
        if is_unwanted && let Some(resident) = self.residents.remove(&key) {
            self.budget.release(resident.charge);
        }
    }

    fn plan_ahead(&mut self) {
        if self.block == 0 {
            let max_planned = (MAX_PLANNED_ROWS / self.batch_rows()).max(MIN_READY_BATCHES + 1);
            while self.queue.is_empty() && self.batches.len() < max_planned && self.plan_batch() {}
            return;
        }
        // One block ahead of the one that is being gathered.
        let num_waiting = self.batches.iter().filter(|batch| batch.is_missing_pieces()).count();
        let is_block_held = self.queue.is_empty() && num_waiting == 0;
        let num_ungathered = self.batches.len() - self.num_ready;
        let block_len = self.block_len();
        if is_block_held && num_ungathered <= block_len && !self.is_planned_to_end {
            self.block += 1;
            for _ in 0..block_len {
                if !self.plan_batch() {
                    break;
                }
            }
            let block = self.block;
            self.residents.iter_mut().filter(|(key, _)| key.block == block).for_each(|(_, r)| r.is_finished = true);
        }
    }

    fn batch_rows(&self) -> usize {
        (self.share.batch_rows as usize).max(1)
    }

    /// Returns how many batches the rows of one block fill.
    fn block_len(&self) -> usize {
        let room = self.budget.limit().saturating_sub(self.largest_piece) / BLOCK_SHARE;
        let room_rows = usize::try_from(room / self.row_bytes.max(1)).unwrap_or(usize::MAX);
        (room_rows.min(MAX_PLANNED_ROWS) / self.batch_rows()).max(1)
    }

    /// Plans one more batch; `false` at the end.
    fn plan_batch(&mut self) -> bool {
        let Some(slice) = self.numbers.next().and_then(|t| self.share.batch(t)) else {
            self.is_planned_to_end = true;
            return false;
        };
        let number = self.num_delivered + self.batches.len() as u64;
        let (mut refs, mut finished) = (Vec::with_capacity(slice.len + 1), Vec::new());
        self.walk.visit(slice.first, slice.step, slice.len, &mut refs, &mut finished);
        // A repeated row comes in a piece of its own, wanted just this once.
        let padding = slice.padding.and_then(|position| self.plan.repeat(position));
        refs.extend(padding);
        finished.extend(padding.map(|row| row.piece));
        let (pieces, rows) = self.want(number, &refs);
        let num_missing = pieces.iter().filter(|key| !self.is_held(key)).count();
        self.batches.push_back(PlannedBatch { slice, pieces, progress: Progress::Planned { rows, num_missing } });
        for piece in finished {
            let key = PieceKey { piece, block: self.block };
            if let Some(resident) = self.residents.get_mut(&key) {
                resident.is_finished = true;
            }
            self.drop_if_unwanted(key);
        }
        true
    }

    fn is_held(&self, key: &PieceKey) -> bool {
        self.residents.get(key).is_some_and(|resident| matches!(resident.stage, Stage::Ready(..)))
    }

    /// Notes that batch `number` wants `refs`; returns its pieces and its rows as (place in pieces, row).
    fn want(&mut self, number: u64, refs: &[RowRef]) -> (Vec<PieceKey>, Vec<(u32, u32)>) {
        let mut places: HashMap<PieceId, u32> = HashMap::with_capacity(refs.len());
        let mut pieces = Vec::new();
        let mut rows = Vec::with_capacity(refs.len());
        for row in refs {
            let key = PieceKey { piece: row.piece, block: self.block };
            let next_place = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
            let place = *places.entry(row.piece).or_insert_with(|| {
                pieces.push(key);
                next_place
            });
            rows.push((place, row.row));
        }
        for key in &pieces {
            let resident = self.residents.entry(*key).or_insert_with(|| {
                self.queue.push_back(*key);
                Resident {
                    stage: Stage::Queued,
                    charge: 0,
                    num_users: 0,
                    waiting: Vec::new(),
                    wanted: Vec::new(),
                    is_finished: false,
                }
            });
            resident.num_users += 1;
            if !matches!(resident.stage, Stage::Ready(..)) {
                resident.waiting.push(number);
            }
        }
        if self.block > 0 {
            note_wanted(&mut self.residents, &pieces, &rows);
        }
        (pieces, rows)
    }

    fn next_fetch(&mut self) -> Result<Option<Task>, TooLarge> {
        let Some(&key) = self.queue.front() else { return Ok(None) };
        let cost = (self.cost)(&self.plan.piece(key.piece));
        let bytes = cost.fetched + cost.decoded;
        self.largest_piece = self.largest_piece.max(bytes);
        if bytes > self.budget.limit() {
            return Err(TooLarge { piece: key.piece, needed_bytes: bytes });
        }
        if !self.budget.try_reserve(bytes) {
            let is_stuck = self.num_under_way == 0 && self.num_ready == 0 && self.to_decode.is_empty();
            if !is_stuck || self.batches.front().is_some_and(|batch| !batch.is_missing_pieces()) {
                return Ok(None);
            }
            if self.block == 0 {
                self.go_short_of_memory();
                if let Some(task) = self.next_compact() {
                    return Ok(Some(task));
                }
            }
            // Nothing more can be given up: the first batch goes on, one piece at a time.
            self.budget.reserve(bytes);
        }
        self.queue.pop_front();
        if let Some(resident) = self.residents.get_mut(&key) {
            resident.stage = Stage::Fetching;
            resident.charge = bytes;
        }
        self.num_under_way += 1;
        Ok(Some(Task::Fetch(key)))
    }

    /// Gives up holding the window: keeps of every piece only what is already planned.
    fn go_short_of_memory(&mut self) {
        for batch in &self.batches {
            if let Progress::Planned { rows, .. } = &batch.progress {
                note_wanted(&mut self.residents, &batch.pieces, rows);
            }
        }
        let keys: Vec<PieceKey> = self.residents.keys().copied().collect();
        for key in keys {
            if let Some(resident) = self.residents.get_mut(&key) {
                resident.is_finished = true;
                if matches!(resident.stage, Stage::Ready(..)) && resident.num_users > 0 {
                    self.to_compact.push(key);
                }
            }
            self.drop_if_unwanted(key);
        }
        self.to_compact.sort_unstable();
        self.block = 1;
    }

    fn next_compact(&mut self) -> Option<Task> {
        while let Some(key) = self.to_compact.pop() {
            let Some(resident) = self.residents.get_mut(&key) else { continue };
            let Stage::Ready(batch, None) = &resident.stage else { continue };
            if let Some(keep) = wanted_rows(&mut resident.wanted, batch.num_rows()) {
                self.num_under_way += 1;
                self.num_evicted_rows += (batch.num_rows() - keep.len()) as u64;
                return Some(Task::Compact { key, batch: batch.clone(), keep });
            }
        }
        None
    }

    fn next_decode(&mut self) -> Option<Task> {
        let (_, key) = self.to_decode.pop_first()?;
        let resident = self.residents.get_mut(&key)?;
        let Stage::Fetched(fetched) = std::mem::replace(&mut resident.stage, Stage::Decoding) else { return None };
        let piece = self.plan.piece(key.piece);
        let num_rows = (piece.kept.end - piece.kept.start) as usize;
        let keep = if self.block > 0 { wanted_rows(&mut resident.wanted, num_rows) } else { None };
        self.num_under_way += 1;
        self.num_evicted_rows += keep.as_ref().map_or(0, |keep| num_rows - keep.len()) as u64;
        Some(Task::Decode { key, fetched, keep })
    }

    /// Gathers batches in order; several at a time, a bounded number ahead of the consumer.
    fn next_gather(&mut self) -> Option<Task> {
        let index = self.batches.iter().position(|batch| matches!(batch.progress, Progress::Planned { .. }))?;
        let is_enough = self.ready_bytes >= self.budget.limit() / READY_SHARE && index >= MIN_READY_BATCHES;
        if is_enough || index >= MAX_READY_BATCHES {
            return None;
        }
        let planned = &mut self.batches[index];
        if planned.is_missing_pieces() {
            return None;
        }
        let Progress::Planned { mut rows, .. } = std::mem::replace(&mut planned.progress, Progress::Gathering) else {
            return None;
        };
        let mut sources = Vec::with_capacity(planned.pieces.len());
        let mut kept: Vec<Option<&Arc<[u32]>>> = Vec::with_capacity(planned.pieces.len());
        for key in &planned.pieces {
            let Some(Resident { stage: Stage::Ready(batch, keep), .. }) = self.residents.get(key) else { return None };
            sources.push(batch.clone());
            kept.push(keep.as_ref());
        }
        for (place, row) in &mut rows {
            if let Some(keep) = kept[*place as usize] {
                *row = u32::try_from(keep.partition_point(|kept| kept < row)).unwrap_or(u32::MAX);
            }
        }
        self.num_under_way += 1;
        Some(Task::Gather { number: self.num_delivered + index as u64, sources, rows })
    }
}

fn memory_bytes(batch: &RecordBatch) -> u64 {
    batch.get_array_memory_size() as u64
}

fn index_of(number: u64, num_delivered: u64) -> usize {
    usize::try_from(number.wrapping_sub(num_delivered)).unwrap_or(usize::MAX)
}
