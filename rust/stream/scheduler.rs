//! Decides what a stream does next, within its memory.
//!
//! Sans-IO: worker threads ask [`Scheduler::next_task`] what to do and report what came of it. Batches
//! are planned ahead along the order; each names the parts of pieces (of spans) whose rows it needs; parts
//! are fetched in the order in which they are first needed, while the budget has room; a batch is
//! gathered when its parts are there; a part is dropped when the order has left it.
//!
//! **What is counted.** A part, from the request until it is decoded, with all that fetching and decoding
//! take by the footer; then with the memory of its arrays. A batch, from before it is gathered until the
//! consumer comes back for the next one. The rows of planned batches. Fetches leave room for the next batch.
//!
//! **How far ahead bytes are fetched.** As far as keeps the decoders busy: bytes that wait to be decoded are memory that the
//! system has to give anew, and that the next bytes could have had. So those asked for and not yet being decoded are at
//! most a window, which grows by what arrives while nothing is being decoded, as TCP's does at its start (RFC 5681, 3.1).
//!
//! **When the window does not fit.** Every resident part is needed sooner than the next one to fetch,
//! so if that one has no room and nothing else is under way, the memory limit is smaller than the
//! shuffle window. From then on batches are planned in blocks: each block fetches its parts anew, and of
//! each only the rows of its own batches, at most a quarter of the limit, so that two blocks overlap. A
//! block that does not fit is planned again, half as long. What is read more than once is counted.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::budget::Budget;
use super::piece::{Fetched, PieceKey, PlannedBatch, Progress, Resident, Stage, Task, note_wanted, wanted_rows};
use super::waiting::Cause;
use crate::config;
use crate::plan::{BatchSlice, EpochPlan, Piece, PieceId, RowRef, Share, Walk};
use crate::reader::{Part, TooLarge};

/// The part of the limit for the rows of one block, when the window does not fit.
const BLOCK_SHARE: u64 = 4;

/// The part of the limit for batches that wait for the consumer.
const READY_SHARE: u64 = 8;

/// Batches gathered ahead of the consumer at least, so that gathering overlaps with training.
const MIN_READY_BATCHES: usize = 2;

/// Batches gathered ahead of the consumer at most: more would only grow cold.
const MAX_READY_BATCHES: usize = 8;

/// Rows planned ahead, while there is something else to do.
const MAX_PLANNED_ROWS: usize = 1 << 18;

/// Rows planned ahead at most, while there is nothing else to do: so that where rows are small, as many requests are under
/// way as the store likes.
const MAX_IDLE_PLANNED_ROWS: usize = 1 << 22;

/// The part of the limit for the rows that are planned then.
const PLANNED_SHARE: u64 = 16;

/// Memory of a row of a planned batch: its place and its number, and while it is planned its name.
const PLANNED_ROW_BYTES: u64 = 24;

/// How much a stream held and read again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) memory_bytes: u64,
    pub(super) peak_memory_bytes: u64,
    /// Rows that were decoded and dropped for lack of memory, to be read again.
    pub(super) num_evicted_rows: u64,
    pub(super) bytes_decoded: u64,
    pub(super) num_ready: usize,
}

/// Cuts a piece into the parts that are read one after another.
type Cut = dyn Fn(&Piece) -> Vec<Part> + Send;

/// The state of one stream. See the module's documentation.
pub(super) struct Scheduler {
    plan: Arc<EpochPlan>,
    walk: Walk,
    share: Share,
    /// The batches, of this rank's, still to plan.
    numbers: Box<dyn Iterator<Item = u64> + Send>,
    /// Returns the parts in which a piece is read.
    cut: Box<Cut>,
    /// Those of the pieces that planned batches want.
    parts: HashMap<PieceId, Arc<[Part]>>,
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
    /// Bytes that were asked for and that no thread has begun to decode.
    undecoded_bytes: u64,
    /// How many of them there may be.
    fetch_window: u64,
    num_decoding: usize,
    /// Pieces being fetched or decoded, and batches being gathered.
    num_under_way: usize,
    num_ready: usize,
    ready_bytes: u64,
    /// Of the batch that the consumer has.
    delivered_bytes: u64,
    /// 0 while the window fits.
    block: u32,
    /// Batches of a block at most.
    max_block_len: usize,
    largest_part: u64,
    row_bytes: RowBytes,
    num_evicted_rows: u64,
}

/// Decoded bytes of a row, by the footers and as seen.
#[derive(Debug, Clone, Copy)]
struct RowBytes {
    estimate: u64,
    seen_bytes: u64,
    seen_rows: u64,
    /// Percent by which parts exceeded their estimates, lately.
    excess: u64,
}

impl RowBytes {
    /// Returns the bytes of `num_rows` rows.
    fn of(&self, num_rows: usize) -> u64 {
        let (bytes, of) = if self.seen_rows > 0 { (self.seen_bytes, self.seen_rows) } else { (self.estimate, 1) };
        u64::try_from(u128::from(bytes) * num_rows as u128 / u128::from(of)).unwrap_or(u64::MAX)
    }

    /// Returns an estimate by the footer, corrected by what was seen of others.
    fn corrected(&self, estimate: u64) -> u64 {
        estimate.saturating_add(estimate / 100 * self.excess)
    }

    fn note(&mut self, num_rows: usize, bytes: u64, expected: u64) {
        self.seen_bytes += bytes;
        self.seen_rows += num_rows as u64;
        // What was expected was corrected already.
        let uncorrected = (expected / (100 + self.excess)).max(1);
        let excess = (bytes / uncorrected).saturating_sub(100).min(10_000);
        self.excess = excess.max(self.excess * 7 / 8);
    }
}

/// What became of the wish to go on.
enum Step {
    Do(Task),
    Wait,
    /// Batches were planned anew.
    Again,
}

impl Scheduler {
    /// Prepares the delivery of `share` of `plan` within `limit` bytes; decoded rows take about `row_bytes` each, and
    /// pieces are read in the parts that `cut` returns.
    pub(super) fn new(
        plan: Arc<EpochPlan>,
        share: Share,
        limit: u64,
        row_bytes: u64,
        cut: impl Fn(&Piece) -> Vec<Part> + Send + 'static,
    ) -> Self {
        Self {
            walk: plan.walk(share.from),
            numbers: Box::new(share.worker_batches()),
            plan,
            share,
            cut: Box::new(cut),
            parts: HashMap::new(),
            budget: Budget::new(limit),
            batches: VecDeque::new(),
            num_delivered: 0,
            is_planned_to_end: false,
            residents: HashMap::new(),
            queue: VecDeque::new(),
            to_decode: BTreeSet::new(),
            to_compact: Vec::new(),
            undecoded_bytes: 0,
            fetch_window: config::FETCH_WINDOW_BYTES,
            num_decoding: 0,
            num_under_way: 0,
            num_ready: 0,
            ready_bytes: 0,
            delivered_bytes: 0,
            block: 0,
            max_block_len: usize::MAX,
            largest_part: 0,
            row_bytes: RowBytes { estimate: row_bytes, seen_bytes: 0, seen_rows: 0, excess: 0 },
            num_evicted_rows: 0,
        }
    }

    /// Returns what to do now; `None` until something is reported or delivered.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] where a part or a batch alone exceeds the limit.
    pub(super) fn next_task(&mut self) -> Result<Option<Task>, TooLarge> {
        'again: loop {
            self.plan_ahead()?;
            if let Some(task) = self.next_compact() {
                return Ok(Some(task));
            }
            for step in [Self::next_fetch, Self::next_gather] {
                match step(self)? {
                    Step::Do(task) => return Ok(Some(task)),
                    Step::Wait => {}
                    Step::Again => continue 'again,
                }
            }
            return Ok(self.next_decode());
        }
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
        // The consumer gives up the batch before when it has this one.
        self.budget.release(std::mem::replace(&mut self.delivered_bytes, bytes));
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
            bytes_decoded: self.row_bytes.seen_bytes,
            num_ready: self.num_ready,
        }
    }

    /// Returns what the next batch waits for: what the stream is at work on, as what is needed first is done first.
    pub(super) fn awaited(&self) -> Cause {
        if !self.batches.front().is_some_and(PlannedBatch::is_missing_pieces) {
            Cause::Gathering
        } else if self.num_decoding > 0 || !self.to_decode.is_empty() {
            Cause::Decoding
        } else if self.undecoded_bytes > 0 {
            Cause::Store
        } else {
            Cause::Memory
        }
    }

    /// Reports the bytes of a piece.
    pub(super) fn fetched(&mut self, key: PieceKey, fetched: Fetched) {
        self.num_under_way -= 1;
        let Some(resident) = self.residents.get_mut(&key) else { return };
        let first_needed = resident.waiting.first().copied().unwrap_or(u64::MAX);
        resident.stage = Stage::Fetched(Box::new(fetched));
        if self.to_decode.is_empty() && self.num_decoding == 0 {
            // Nobody had anything to decode: more has to be asked for at once.
            self.fetch_window = self.fetch_window.saturating_add(resident.part.cost.fetched);
        }
        self.to_decode.insert((first_needed, key));
    }

    /// Reports the arrays of a part.
    pub(super) fn decoded(&mut self, key: PieceKey, batch: RecordBatch) {
        self.num_under_way -= 1;
        self.num_decoding -= 1;
        let Some(resident) = self.residents.get_mut(&key) else { return };
        self.row_bytes.note(batch.num_rows(), memory_bytes(&batch), resident.expected);
        let (waiting, keep) = (std::mem::take(&mut resident.waiting), resident.keep.take());
        self.hold(key, batch, keep);
        for number in waiting {
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

    /// Reports a gathered batch, and whether it is a view of a part; drops the pieces that nobody wants any more.
    ///
    /// A view is counted as what it shows, though it holds the part until the consumer is done with it.
    pub(super) fn gathered(&mut self, number: u64, batch: RecordBatch, is_view: bool) {
        self.num_under_way -= 1;
        let Some(planned) = self.batches.get_mut(index_of(number, self.num_delivered)) else { return };
        let Progress::Gathering(reserved) = planned.progress else { return };
        let bytes = if is_view { reserved } else { memory_bytes(&batch) };
        self.budget.release(reserved.saturating_add(planned_bytes(batch.num_rows())));
        self.budget.reserve(bytes);
        self.num_ready += 1;
        self.ready_bytes += bytes;
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

    fn plan_ahead(&mut self) -> Result<(), TooLarge> {
        if self.block == 0 {
            let max_planned = (self.max_planned_rows() / self.batch_rows()).max(MIN_READY_BATCHES + 1);
            while self.queue.is_empty() && self.batches.len() < max_planned && self.plan_batch()? {}
            return Ok(());
        }
        // One block ahead of the one that is being gathered, unless not even two batches fit.
        let num_waiting = self.batches.iter().filter(|batch| batch.is_missing_pieces()).count();
        let is_block_held = self.queue.is_empty() && num_waiting == 0;
        let num_ungathered = self.batches.len() - self.num_ready;
        let block_len = self.block_len();
        let max_ungathered = if self.max_block_len == 1 { 0 } else { block_len };
        if is_block_held && num_ungathered <= max_ungathered && !self.is_planned_to_end {
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

    /// Returns how many rows to plan ahead, where the window fits.
    fn max_planned_rows(&self) -> usize {
        if !self.to_decode.is_empty() {
            return MAX_PLANNED_ROWS;
        }
        let share = self.budget.limit() / PLANNED_SHARE / PLANNED_ROW_BYTES;
        usize::try_from(share).unwrap_or(usize::MAX).clamp(MAX_PLANNED_ROWS, MAX_IDLE_PLANNED_ROWS)
    }

    fn batch_rows(&self) -> usize {
        (self.share.batch_rows as usize).max(1)
    }

    /// Returns how many batches the rows of one block fill.
    fn block_len(&self) -> usize {
        let room = self.budget.limit().saturating_sub(self.largest_part) / BLOCK_SHARE;
        let batch_bytes = self.row_bytes.of(self.batch_rows()).max(1);
        let num_batches = usize::try_from(room / batch_bytes).unwrap_or(usize::MAX);
        num_batches.min(MAX_PLANNED_ROWS / self.batch_rows()).min(self.max_block_len).max(1)
    }

    /// Plans one more batch; `false` at the end.
    fn plan_batch(&mut self) -> Result<bool, TooLarge> {
        let Some(slice) = self.numbers.next().and_then(|t| self.share.batch(t)) else {
            self.is_planned_to_end = true;
            return Ok(false);
        };
        let batch_bytes = self.row_bytes.of(slice.len).saturating_add(planned_bytes(slice.len));
        if batch_bytes > self.budget.limit() {
            return Err(self.too_large_batch(&slice, batch_bytes));
        }
        let number = self.num_delivered + self.batches.len() as u64;
        let (mut refs, mut finished) = (Vec::with_capacity(slice.len + 1), Vec::new());
        self.walk.visit(slice.first, slice.step, slice.len, &mut refs, &mut finished);
        // A repeated row comes in a piece of its own, wanted just this once.
        let padding = slice.padding.and_then(|position| self.plan.repeat(position));
        refs.extend(padding);
        finished.extend(padding.map(|row| row.piece));
        let (pieces, rows) = self.want(number, &refs);
        self.budget.reserve(planned_bytes(rows.len()));
        let num_missing = pieces.iter().filter(|key| !self.is_held(key)).count();
        self.batches.push_back(PlannedBatch { slice, pieces, progress: Progress::Planned { rows, num_missing } });
        for piece in finished {
            let num_parts = self.parts.remove(&piece).map_or(0, |parts| parts.len());
            for part in (0..).take(num_parts) {
                let key = PieceKey { piece, part, block: self.block };
                if let Some(resident) = self.residents.get_mut(&key) {
                    resident.is_finished = true;
                }
                self.drop_if_unwanted(key);
            }
        }
        Ok(true)
    }

    /// Says of a batch that exceeds the limit what it needs; or of its first part, if not even that fits.
    fn too_large_batch(&self, slice: &BatchSlice, batch_bytes: u64) -> TooLarge {
        let piece = self.plan.locate(slice.first).map_or(PieceId { lane: 0, span: 0 }, |row| row.piece);
        let part_bytes = (self.cut)(&self.plan.piece(piece)).first().map_or(0, |part| part.cost.total());
        if part_bytes > self.budget.limit() {
            return TooLarge { piece, part_bytes, needed_bytes: part_bytes, batch_rows: slice.len };
        }
        let needed_bytes = batch_bytes.saturating_add(self.row_bytes.of(slice.len)).saturating_add(part_bytes);
        TooLarge { piece, part_bytes: 0, needed_bytes, batch_rows: slice.len }
    }

    fn is_held(&self, key: &PieceKey) -> bool {
        self.residents.get(key).is_some_and(|resident| matches!(resident.stage, Stage::Ready(..)))
    }

    /// Notes that batch `number` wants `refs`; returns the parts of pieces that it needs, and its rows as (place among
    /// them, row of the part).
    fn want(&mut self, number: u64, refs: &[RowRef]) -> (Vec<PieceKey>, Vec<(u32, u32)>) {
        const NO_PLACE: u32 = u32::MAX;
        let mut seen: HashMap<PieceId, usize> = HashMap::new();
        let mut places_of: Vec<(Arc<[Part]>, Vec<u32>)> = Vec::new();
        let mut last: Option<(PieceId, usize)> = None;
        let mut keys: Vec<(PieceKey, u32)> = Vec::new();
        let mut rows = Vec::with_capacity(refs.len());
        for &RowRef { piece, row } in refs {
            let index = match last {
                // In the order of the dataset nearly always.
                Some((same, index)) if same == piece => index,
                _ => *seen.entry(piece).or_insert_with(|| {
                    let cut = || (self.cut)(&self.plan.piece(piece)).into();
                    let parts = Arc::clone(self.parts.entry(piece).or_insert_with(cut));
                    let places = vec![NO_PLACE; parts.len()];
                    places_of.push((parts, places));
                    places_of.len() - 1
                }),
            };
            last = Some((piece, index));
            let (parts, places) = &mut places_of[index];
            let row = row + parts.first().map_or(0, |first| first.kept.start);
            let part = if parts.len() == 1 { 0 } else { parts.partition_point(|part| part.kept.end <= row) };
            if places[part] == NO_PLACE {
                places[part] = u32::try_from(keys.len()).unwrap_or(NO_PLACE);
                let key = PieceKey { piece, part: u32::try_from(part).unwrap_or(u32::MAX), block: self.block };
                keys.push((key, 0));
                if !self.residents.contains_key(&key) {
                    self.queue.push_back(key);
                    self.residents.insert(key, Resident::new(parts[part].clone()));
                }
            }
            keys[places[part] as usize].1 += 1;
            rows.push((places[part], row - parts[part].kept.start));
        }
        let mut pieces = Vec::with_capacity(keys.len());
        for (key, num_rows) in keys {
            if let Some(resident) = self.residents.get_mut(&key) {
                resident.num_users += 1;
                resident.num_planned += num_rows;
                // Each row is delivered once, so nobody is to come when all are planned.
                resident.is_finished |= resident.num_planned >= resident.num_rows();
                if !matches!(resident.stage, Stage::Ready(..)) {
                    resident.waiting.push(number);
                }
            }
            pieces.push(key);
        }
        if self.block > 0 {
            note_wanted(&mut self.residents, &pieces, &rows);
        }
        (pieces, rows)
    }

    fn next_fetch(&mut self) -> Result<Step, TooLarge> {
        let Some(&key) = self.queue.front() else { return Ok(Step::Wait) };
        let Some(resident) = self.residents.get_mut(&key) else {
            self.queue.pop_front();
            return Ok(Step::Again);
        };
        let (num_rows, cost) = (resident.num_rows(), resident.part.cost);
        if self.undecoded_bytes > 0 && self.undecoded_bytes.saturating_add(cost.fetched) > self.fetch_window {
            return Ok(Step::Wait);
        }
        if self.block > 0 && !resident.wanted.is_empty() {
            resident.keep = wanted_rows(&mut resident.wanted, num_rows as usize);
        }
        let num_read = resident.keep.as_ref().map_or(num_rows as usize, |keep| keep.len());
        let decoded = u128::from(cost.decoded) * num_read as u128 / u128::from(num_rows.max(1));
        let expected = self.row_bytes.corrected(u64::try_from(decoded).unwrap_or(u64::MAX));
        let least =
            cost.fetched.saturating_add(cost.working).saturating_add(u64::try_from(decoded).unwrap_or(u64::MAX));
        let bytes =
            cost.fetched.saturating_add(cost.working).saturating_add(expected).min(self.budget.limit().max(least));
        self.largest_part = self.largest_part.max(cost.total());
        let room = self.room_for_batch();
        let is_due = self.batches.front().is_some_and(PlannedBatch::is_missing_pieces);
        if least > self.budget.limit() {
            return Err(self.too_large(key.piece, least));
        }
        if !self.budget.has_room(bytes.saturating_add(room)) {
            if !is_due || !self.is_stuck() {
                return Ok(Step::Wait);
            }
            // What is left of the part when it is decoded has to fit beside the batch.
            let due = bytes.max(expected.saturating_add(room));
            if let Some(step) = self.make_room(key.piece, due)? {
                return Ok(step);
            }
        }
        self.queue.pop_front();
        self.budget.reserve(bytes);
        self.undecoded_bytes = self.undecoded_bytes.saturating_add(cost.fetched);
        self.num_under_way += 1;
        let Some(resident) = self.residents.get_mut(&key) else { return Ok(Step::Again) };
        resident.stage = Stage::Fetching;
        (resident.charge, resident.expected) = (bytes, expected);
        self.num_evicted_rows += (num_rows as usize - num_read) as u64;
        let num_ahead = resident.waiting.first().map_or(0, |first| first.saturating_sub(self.num_delivered));
        let (kept, wanted) = (resident.part.kept.clone(), resident.keep.clone());
        Ok(Step::Do(Task::Fetch { key, kept, wanted, num_ahead }))
    }

    /// Returns whether nothing happens any more unless something is given up.
    fn is_stuck(&self) -> bool {
        self.num_under_way == 0 && self.num_ready == 0 && self.to_decode.is_empty()
    }

    /// Returns the bytes that fetches leave free, so that the next batch can be gathered.
    fn room_for_batch(&self) -> u64 {
        let rows = self.batches.iter().find_map(|batch| match &batch.progress {
            Progress::Planned { rows, .. } => Some(rows.len()),
            _ => None,
        });
        self.row_bytes.of(rows.unwrap_or(0))
    }

    fn too_large(&self, piece: PieceId, bytes: u64) -> TooLarge {
        let held = self.budget.used().saturating_sub(self.delivered_bytes);
        let needed_bytes = held.saturating_add(bytes);
        let batch_rows = self.batches.front().map_or(0, |batch| batch.slice.len);
        TooLarge { piece, part_bytes: bytes, needed_bytes, batch_rows }
    }

    /// Gives up what can be given up for `bytes` of a part, or of a batch. Returns `None` if they may be taken, because only
    /// the consumer's batch is in the way, or the room that is left free for the next batch.
    fn make_room(&mut self, piece: PieceId, bytes: u64) -> Result<Option<Step>, TooLarge> {
        if self.block == 0
            && let Some(task) = self.compact_finished()
        {
            return Ok(Some(Step::Do(task)));
        }
        let too_large = self.too_large(piece, bytes);
        if too_large.needed_bytes <= self.budget.limit() {
            return Ok(None);
        }
        if self.block > 0 && self.max_block_len == 1 {
            return Err(too_large);
        }
        self.plan_anew();
        Ok(Some(Step::Again))
    }

    /// Drops everything that is planned, and plans it in blocks, or in shorter ones.
    fn plan_anew(&mut self) {
        if self.block == 0 {
            for batch in &self.batches {
                let Progress::Planned { rows, .. } = &batch.progress else { continue };
                let is_ready = |key: &PieceKey| matches!(self.residents.get(key), Some(r) if r.is_ready());
                let is_ready: Vec<bool> = batch.pieces.iter().map(is_ready).collect();
                self.num_evicted_rows += rows.iter().filter(|row| is_ready[row.0 as usize]).count() as u64;
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
            if let Progress::Planned { rows, .. } = &batch.progress {
                self.budget.release(planned_bytes(rows.len()));
            }
        }
        if let Some(first) = self.batches.front() {
            self.walk = self.plan.walk(first.slice.first);
        }
        let num_delivered = usize::try_from(self.num_delivered).unwrap_or(usize::MAX);
        self.numbers = Box::new(self.share.worker_batches().skip(num_delivered));
        self.is_planned_to_end = false;
        self.batches.clear();
        self.residents.clear();
        self.undecoded_bytes = 0;
        self.parts.clear();
        self.queue.clear();
        self.block += 1;
    }

    /// Notes of the parts that the order has left which of their rows are still to be gathered, and returns the first
    /// task to keep only those.
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

    fn next_compact(&mut self) -> Option<Task> {
        while let Some(key) = self.to_compact.pop() {
            let Some(resident) = self.residents.get_mut(&key) else { continue };
            let Stage::Ready(batch, None) = &resident.stage else { continue };
            if let Some(keep) = wanted_rows(&mut resident.wanted, batch.num_rows()) {
                self.num_under_way += 1;
                return Some(Task::Compact { key, batch: batch.clone(), keep });
            }
        }
        None
    }

    fn next_decode(&mut self) -> Option<Task> {
        let (_, key) = self.to_decode.pop_first()?;
        let resident = self.residents.get_mut(&key)?;
        let Stage::Fetched(fetched) = std::mem::replace(&mut resident.stage, Stage::Decoding) else { return None };
        self.undecoded_bytes = self.undecoded_bytes.saturating_sub(resident.part.cost.fetched);
        self.num_decoding += 1;
        self.num_under_way += 1;
        Some(Task::Decode { key, fetched })
    }

    /// Gathers batches in order; several at a time, a bounded number ahead of the consumer.
    fn next_gather(&mut self) -> Result<Step, TooLarge> {
        let is_planned = |batch: &PlannedBatch| matches!(batch.progress, Progress::Planned { .. });
        let Some(index) = self.batches.iter().position(is_planned) else { return Ok(Step::Wait) };
        let is_enough = self.ready_bytes >= self.budget.limit() / READY_SHARE && index >= MIN_READY_BATCHES;
        if is_enough || index >= MAX_READY_BATCHES || self.batches[index].is_missing_pieces() {
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

    /// Estimates the memory of a batch whose parts are there.
    fn gathered_bytes(&self, batch: &PlannedBatch) -> u64 {
        let Progress::Planned { rows, .. } = &batch.progress else { return 0 };
        let mut counts = vec![0_u64; batch.pieces.len()];
        rows.iter().for_each(|row| counts[row.0 as usize] += 1);
        let of_part = |(key, count): (&PieceKey, u64)| {
            let Some(Resident { stage: Stage::Ready(source, _), charge, .. }) = self.residents.get(key) else {
                return 0;
            };
            let bytes = u128::from(*charge) * u128::from(count) / (source.num_rows() as u128).max(1);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        batch.pieces.iter().zip(counts).map(of_part).fold(0, u64::saturating_add)
    }

    fn gather(&mut self, index: usize, bytes: u64) -> Option<Task> {
        let planned = &mut self.batches[index];
        let progress = std::mem::replace(&mut planned.progress, Progress::Gathering(bytes));
        let Progress::Planned { mut rows, .. } = progress else { return None };
        self.budget.reserve(bytes);
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

fn planned_bytes(num_rows: usize) -> u64 {
    PLANNED_ROW_BYTES.saturating_mul(num_rows as u64)
}

fn memory_bytes(batch: &RecordBatch) -> u64 {
    batch.get_array_memory_size() as u64
}

fn index_of(number: u64, num_delivered: u64) -> usize {
    usize::try_from(number.wrapping_sub(num_delivered)).unwrap_or(usize::MAX)
}
