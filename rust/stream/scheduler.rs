//! Decides what a stream does next, within its memory limit.
//!
//! Sans-IO: worker threads ask [`Scheduler::next_task`] for tasks and report the results. Batches are planned ahead
//! along the order; each names the parts of pieces (of spans) whose rows it needs; parts are fetched in the order in
//! which they are first needed, while the budget has room; a batch is gathered when its parts are available; a part is
//! dropped when the order has passed it.
//!
//! **What is counted.** A part, from the request until it is decoded, with everything that fetching and decoding take
//! according to the footer; then the memory of its arrays. A batch, from before it is gathered, unless it is a view of
//! a part, until the consumer has the next one; of several taken at once, only the last counts when the consumer comes
//! for more. What padding a batch takes, once its gathered rows tell: it waits for that. The rows of planned batches.
//! Fetches leave room for the next batch.
//!
//! **How far ahead bytes are fetched.** As far as keeps the decoders busy: bytes waiting to be decoded occupy newly
//! allocated memory that the next bytes could have reused. So bytes requested but not yet being decoded are limited by
//! a window, which grows by what arrives while nothing is being decoded, as in TCP's slow start (RFC 5681, 3.1).
//! Concurrent requests share the network and finish at about the same time. So what only later batches need waits until
//! most of the first batch has arrived.
//!
//! **How far ahead they are decoded.** From a remote store, as far as memory allows, to outlast a stall. From local
//! files, no further than a loop's bursts of batches and busy threads require: what is decoded earlier occupies newly
//! allocated memory, and has left the processor's caches when it is gathered. A resting stream does not work beyond the
//! next batch: while one thread gathers that, the others would decode all the rest.
//!
//! [`planning`] decides which batches come next and what they need, [`gathering`] which are gathered, [`delivery`]
//! handles what the consumer takes, [`blocks`] what happens if the window does not fit, and [`losing`] what happens if
//! a part cannot be read.

mod blocks;
mod delivery;
mod gathering;
mod losing;
mod planning;
mod row_bytes;

use std::collections::{BTreeSet, VecDeque};
use std::iter::Peekable;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub(super) use self::losing::Salvaged;
use self::row_bytes::RowBytes;
use super::budget::Budget;
use super::held::Held;
use super::holes::Holes;
use super::piece::{Fetched, PieceKey, PlannedBatch, Progress, Resident, Stage, Task, wanted_rows};
use super::waiting::Cause;
use crate::config;
use crate::plan::{EpochPlan, PieceId, Share, Walk};
use crate::reader::{Part, TooLarge};

/// Other parts wait while more than this many parts of the first batch are in flight: so few may be late without
/// delaying everything.
const FEW_PARTS: usize = 4;

/// They also wait while more than this many bytes are in flight: less does not burden a network.
const FEW_BYTES: u64 = 16 << 20;

/// The fraction of the limit for rows drawn from a permutation, and for lanes.
const PERMUTED_SHARE: u64 = 8;
const LANES_SHARE: u64 = 4;

/// The largest fraction of the limit that fetches leave free for transforming a batch.
const FINISHING_SHARE: u64 = 4;

/// How much a stream held, and read again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) memory_bytes: u64,
    pub(super) peak_memory_bytes: u64,
    /// Rows that were decoded, then dropped for lack of memory, to be read again.
    pub(super) num_evicted_rows: u64,
    pub(super) bytes_decoded: u64,
    pub(super) num_ready: usize,
}

/// Cuts a piece into the parts that are read one after another.
type Cut = dyn Fn(PieceId) -> Vec<Part> + Send;

/// The state of one stream. See the module's documentation.
pub(super) struct Scheduler {
    plan: Arc<EpochPlan>,
    walk: Walk,
    /// What is reserved for the walk, and what it would take without a limit.
    walk_bytes: u64,
    most_walk_bytes: u64,
    /// The fraction of the limit that it may take.
    walk_share: u64,
    share: Share,
    /// The batches of this rank that are still to be planned.
    numbers: Peekable<Box<dyn Iterator<Item = u64> + Send>>,
    /// Where the next batch begins, if batches end where parts do; `None` if all have the same size.
    position: Option<u64>,
    /// Returns the parts in which a piece is read.
    cut: Box<Cut>,
    /// The parts of the pieces that planned batches need.
    parts: FxHashMap<PieceId, Arc<[Part]>>,
    budget: Budget,
    /// Batches that are planned but not delivered; the first is number `num_delivered` of this stream.
    batches: VecDeque<PlannedBatch>,
    num_delivered: u64,
    /// Of the stream's first batch, the parts at its beginning that have arrived.
    num_first_arrived: usize,
    is_planned_to_end: bool,
    /// The number of a batch that cannot be made: delivery ends before it.
    end: u64,
    residents: FxHashMap<PieceKey, Resident>,
    /// Pieces to fetch, in the order in which they are first needed.
    queue: VecDeque<PieceKey>,
    /// Fetched pieces, by the batch that needs them first.
    to_decode: BTreeSet<(u64, PieceKey)>,
    to_compact: Vec<PieceKey>,
    /// Bytes that were requested and that no thread has begun to decode.
    undecoded_bytes: u64,
    /// The maximum of these bytes.
    fetch_window: u64,
    /// The window grows by one byte for this many that arrive while decoders wait.
    window_growth: u64,
    /// How many bytes of batches, and how many parts of any size, may be decoded ahead; `None` for all that fit.
    decoded_ahead: Option<(u64, u64)>,
    /// Whether nothing is decoded or gathered for batches after the next one.
    is_resting: bool,
    num_decoding: usize,
    /// Pieces being fetched or decoded, and batches being gathered.
    num_under_way: usize,
    num_ready: usize,
    ready_bytes: u64,
    /// Bytes of the batches that the consumer has.
    delivered_bytes: u64,
    /// Bytes of the last of these.
    last_bytes: u64,
    /// The number of the current block; 0 while the window fits.
    block: u32,
    /// Maximum number of batches in a block.
    max_block_len: usize,
    largest_part: u64,
    /// Number of pieces of the last planned batch.
    num_batch_pieces: usize,
    row_bytes: RowBytes,
    /// Additional bytes of a gathered row compared to its decoded form, if batches are transformed.
    finished_row_bytes: Option<u64>,
    /// What transforming the largest of the last batches took besides.
    finishing_bytes: u64,
    num_evicted_rows: u64,
    holes: Holes,
}

/// The outcome of an attempt to proceed.
enum Step {
    Do(Task),
    Wait,
    /// Batches were planned anew.
    Again,
}

/// The bytes that a part takes.
struct Demand {
    /// Its decoded rows, according to the footer.
    estimate: u64,
    /// The same, corrected by the rows seen so far.
    expected: u64,
    /// All that it takes at least.
    least: u64,
    /// All that it is expected to take.
    bytes: u64,
}

impl Demand {
    fn of(resident: &Resident, row_bytes: &RowBytes, limit: u64) -> Self {
        let cost = resident.part.cost;
        let decoded = u128::from(cost.decoded) * resident.num_read() as u128 / u128::from(resident.num_rows().max(1));
        let estimate = u64::try_from(decoded).unwrap_or(u64::MAX);
        let expected = row_bytes.corrected(estimate);
        let besides = cost.fetched.saturating_add(cost.working);
        let least = besides.saturating_add(estimate);
        Self { estimate, expected, least, bytes: besides.saturating_add(expected).min(limit.max(least)) }
    }
}

impl Scheduler {
    /// Prepares the delivery of `share` of `plan` within `limit` bytes; decoded rows take about `row_bytes` each, and
    /// pieces are read in the parts that `cut` returns.
    pub(super) fn new(
        plan: Arc<EpochPlan>,
        share: Share,
        limit: u64,
        row_bytes: u64,
        holes: Holes,
        cut: impl Fn(PieceId) -> Vec<Part> + Send + 'static,
    ) -> Self {
        let walk_share = if plan.is_permuted() { PERMUTED_SHARE } else { LANES_SHARE };
        let step = u64::from(share.world_size);
        let walk = plan.walk_within(share.from, step, limit / walk_share);
        let mut budget = Budget::new(limit);
        budget.reserve(walk.memory_bytes());
        Self {
            walk_bytes: walk.memory_bytes(),
            most_walk_bytes: plan.walk_within(share.from, step, u64::MAX).memory_bytes(),
            walk_share,
            walk,
            numbers: numbers_of(share.worker_batches()),
            position: None,
            plan,
            share,
            cut: Box::new(cut),
            parts: FxHashMap::default(),
            budget,
            batches: VecDeque::new(),
            num_delivered: 0,
            num_first_arrived: 0,
            is_planned_to_end: false,
            end: u64::MAX,
            residents: FxHashMap::default(),
            queue: VecDeque::new(),
            to_decode: BTreeSet::new(),
            to_compact: Vec::new(),
            undecoded_bytes: 0,
            fetch_window: config::FETCH_WINDOW_BYTES,
            window_growth: 1,
            decoded_ahead: None,
            is_resting: false,
            num_decoding: 0,
            num_under_way: 0,
            num_ready: 0,
            ready_bytes: 0,
            delivered_bytes: 0,
            last_bytes: 0,
            block: 0,
            max_block_len: usize::MAX,
            largest_part: 0,
            num_batch_pieces: 0,
            row_bytes: RowBytes::new(row_bytes),
            finished_row_bytes: None,
            finishing_bytes: 0,
            num_evicted_rows: 0,
            holes,
        }
    }

    /// Makes a gathered row take `bytes` more than its decoded form, if batches are transformed.
    pub(super) fn with_finished_row_bytes(mut self, bytes: Option<u64>) -> Self {
        self.finished_row_bytes = bytes;
        self
    }

    /// Makes batches end where parts do, if rows come as they are decoded and no other reader shares them.
    pub(super) fn following_parts(mut self) -> Self {
        let Share { world_size, num_workers, drop_last, from, .. } = self.share;
        let is_alone = world_size == 1 && num_workers == 1 && !drop_last;
        self.position = (is_alone && self.plan.is_sequential()).then_some(from);
        self
    }

    /// Sets the initial bytes in flight. If they are what the network was measured to deliver, more are rarely useful,
    /// so the window grows slowly.
    pub(super) fn with_fetch_window(self, bytes: u64, is_measured: bool) -> Self {
        let window_growth = if is_measured { config::MEASURED_WINDOW_GROWTH } else { 1 };
        Self { fetch_window: bytes, window_growth, ..self }
    }

    /// Declares the bytes to be local, for `num_threads` to decode: working far ahead gains nothing.
    pub(super) fn with_bytes_at_hand(mut self, num_threads: usize) -> Self {
        self.fetch_window = config::LOCAL_FETCH_WINDOW_BYTES;
        let num_parts = config::PARTS_AHEAD_PER_THREAD.saturating_mul(num_threads.max(1) as u64);
        self.decoded_ahead = Some((config::DECODED_AHEAD_BYTES, num_parts));
        self
    }

    /// From now on, decodes and gathers only for the next batch, unless nothing else can be done.
    pub(super) fn rest(&mut self) {
        self.is_resting = true;
    }

    /// Returns the next task; `None` until something is reported or delivered.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] if a part or a batch alone exceeds the limit.
    pub(super) fn next_task(&mut self) -> Result<Option<Task>, TooLarge> {
        'again: loop {
            self.plan_ahead()?;
            if let Some(task) = self.next_compact() {
                return Ok(Some(task));
            }
            for step in [Self::next_finish, Self::next_fetch, Self::next_gather, Self::next_decode] {
                match step(self)? {
                    Step::Do(task) => return Ok(Some(task)),
                    Step::Wait => {}
                    Step::Again => continue 'again,
                }
            }
            return Ok(None);
        }
    }

    /// Returns whether every batch has been delivered.
    pub(super) fn is_done(&self) -> bool {
        self.is_planned_to_end && self.batches.is_empty()
    }

    /// Returns whether, for lack of memory, the average row has been read at least twice.
    pub(super) fn rereads(&self) -> bool {
        self.block > 0 && self.num_evicted_rows > self.num_delivered.saturating_mul(self.batch_rows() as u64)
    }

    /// Returns how much is held and was read again.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            memory_bytes: self.budget.used(),
            peak_memory_bytes: self.budget.peak(),
            num_evicted_rows: self.num_evicted_rows,
            bytes_decoded: self.row_bytes.seen_bytes(),
            num_ready: self.num_ready,
        }
    }

    /// Returns what could not be read.
    pub(super) fn holes(&self) -> &Holes {
        &self.holes
    }

    /// Returns what the next batch waits for: what the stream is working on, since it works on what is needed first.
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

    /// Reports the bytes of a piece that had to be waited for.
    pub(super) fn fetched(&mut self, key: PieceKey, fetched: Fetched) {
        let is_idle = self.to_decode.is_empty() && self.num_decoding == 0;
        if is_idle && let Some(resident) = self.residents.get(&key) {
            // No decoder had anything to do: more must be requested at once.
            let growth = resident.part.cost.fetched / self.window_growth;
            self.fetch_window = self.fetch_window.saturating_add(growth);
        }
        self.found(key, fetched);
    }

    /// Reports the bytes of a piece that were available at once.
    pub(super) fn found(&mut self, key: PieceKey, fetched: Fetched) {
        self.num_under_way -= 1;
        let Some(resident) = self.residents.get_mut(&key) else { return };
        let first_needed = resident.waiting.first().copied().unwrap_or(u64::MAX);
        resident.stage = Stage::Fetched(Box::new(fetched));
        self.to_decode.insert((first_needed, key));
    }

    /// Reports the arrays of a part.
    pub(super) fn decoded(&mut self, key: PieceKey, held: Held) {
        self.num_under_way -= 1;
        self.num_decoding -= 1;
        let Some(resident) = self.residents.get_mut(&key) else { return };
        self.row_bytes.note(held.num_rows(), held.gathered_bytes(), resident.estimate);
        self.arrived(key, held);
    }

    /// Reports that a batch cannot be gathered or transformed: delivery ends before it. Returns `false` if it already
    /// ended earlier.
    pub(super) fn failed(&mut self, number: u64) -> bool {
        self.num_under_way -= 1;
        let is_first = number < self.end;
        if is_first {
            self.end_before(number);
        }
        is_first
    }

    /// Stores the decoded part for the batches that wait for it.
    fn arrived(&mut self, key: PieceKey, held: Held) {
        let Some(resident) = self.residents.get_mut(&key) else { return };
        let (waiting, keep) = (std::mem::take(&mut resident.waiting), resident.keep.take());
        self.hold(key, held, keep);
        for number in waiting {
            if let Some(PlannedBatch { progress: Progress::Planned { num_missing, .. }, .. }) =
                self.batches.get_mut(index_of(number, self.num_delivered))
            {
                *num_missing -= 1;
            }
        }
    }

    /// Reports the arrays of a decoded piece that now keeps fewer rows.
    pub(super) fn compacted(&mut self, key: PieceKey, held: Held, keep: Arc<[u32]>) {
        self.num_under_way -= 1;
        self.hold(key, held, Some(keep));
    }

    fn hold(&mut self, key: PieceKey, held: Held, keep: Option<Arc<[u32]>>) {
        let Some(resident) = self.residents.get_mut(&key) else { return };
        self.budget.release(resident.charge);
        resident.charge = held.memory_bytes();
        self.budget.reserve(resident.charge);
        resident.stage = Stage::Ready(held, keep);
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

    fn next_fetch(&mut self) -> Result<Step, TooLarge> {
        let Some(&key) = self.queue.front() else { return Ok(Step::Wait) };
        let Some(resident) = self.residents.get(&key) else {
            self.queue.pop_front();
            return Ok(Step::Again);
        };
        let fetched = resident.part.cost.fetched;
        let exceeds_window =
            self.undecoded_bytes > 0 && self.undecoded_bytes.saturating_add(fetched) > self.fetch_window;
        let is_of_first_batch = resident.waiting.first().is_none_or(|&first| first == 0);
        if exceeds_window || !is_of_first_batch && self.awaits_first_batch() {
            return Ok(Step::Wait);
        }
        let Some(resident) = self.residents.get_mut(&key) else { return Ok(Step::Again) };
        if self.block > 0 && !resident.wanted.is_empty() {
            let num_rows = resident.num_rows() as usize;
            resident.keep = wanted_rows(&mut resident.wanted, num_rows);
        }
        self.largest_part = self.largest_part.max(resident.part.cost.total());
        let demand = Demand::of(resident, &self.row_bytes, self.budget.limit());
        let room = self.room_for_batch();
        let is_due = self.batches.front().is_some_and(PlannedBatch::is_missing_pieces);
        if demand.least > self.budget.limit() {
            // After the batches before the first one that needs it.
            return if is_due && self.is_stuck() {
                Err(self.too_large(key.piece, demand.least))
            } else {
                Ok(Step::Wait)
            };
        }
        if !self.budget.has_room(demand.bytes.saturating_add(room).saturating_add(self.room_for_finishing())) {
            if !is_due || !self.is_stuck() {
                return Ok(Step::Wait);
            }
            // What is left of the part once it is decoded has to fit in addition to the batch.
            let due = demand.bytes.max(demand.expected.saturating_add(room));
            if let Some(step) = self.make_room(key.piece, due)? {
                return Ok(step);
            }
        }
        self.queue.pop_front();
        Ok(self.fetch(key, &demand))
    }

    /// Reserves what a part takes, and returns the task of fetching it.
    fn fetch(&mut self, key: PieceKey, demand: &Demand) -> Step {
        let Some(resident) = self.residents.get_mut(&key) else { return Step::Again };
        resident.stage = Stage::Fetching;
        (resident.charge, resident.estimate) = (demand.bytes, demand.estimate);
        self.budget.reserve(demand.bytes);
        self.undecoded_bytes = self.undecoded_bytes.saturating_add(resident.part.cost.fetched);
        self.num_under_way += 1;
        if self.block > 0 {
            self.num_evicted_rows += (resident.num_rows() as usize - resident.num_read()) as u64;
        }
        let num_ahead = resident.waiting.first().map_or(0, |first| first.saturating_sub(self.num_delivered));
        let (kept, wanted) = (resident.part.kept.clone(), resident.keep.clone());
        Step::Do(Task::Fetch { key, kept, wanted, num_ahead })
    }

    /// Returns whether the stream's first batch alone keeps the network busy.
    fn awaits_first_batch(&mut self) -> bool {
        // Most batches of many small parts end here, whatever is in flight.
        if self.num_delivered > 0 || self.undecoded_bytes <= FEW_BYTES {
            return false;
        }
        let Some(first) = self.batches.front().filter(|batch| batch.is_missing_pieces()) else { return false };
        let has_arrived =
            |key: &&PieceKey| self.residents.get(key).is_none_or(|resident| matches!(resident.stage, Stage::Ready(..)));
        // They arrive about in order. Those that have are passed over once, not for each part that may be fetched.
        let rest = first.pieces.get(self.num_first_arrived..).unwrap_or_default();
        self.num_first_arrived += rest.iter().take_while(has_arrived).count();
        let (mut num_parts, mut num_bytes) = (0, 0_u64);
        let rest = first.pieces.get(self.num_first_arrived..).unwrap_or_default();
        for resident in rest.iter().filter_map(|key| self.residents.get(key)) {
            if matches!(resident.stage, Stage::Fetching) {
                num_parts += 1;
                num_bytes = num_bytes.saturating_add(resident.part.cost.fetched);
                if num_parts > FEW_PARTS && num_bytes > FEW_BYTES {
                    return true;
                }
            }
        }
        false
    }

    /// Returns whether no progress is possible unless something is given up.
    fn is_stuck(&self) -> bool {
        self.num_under_way == 0 && self.num_ready == 0 && self.to_decode.is_empty()
    }

    /// Returns the bytes that fetches leave free, so that the next batch can be gathered.
    fn room_for_batch(&self) -> u64 {
        let next = self.batches.iter().find_map(|batch| match &batch.progress {
            Progress::Planned { .. } => Some((batch.num_rows, batch.expected)),
            _ => None,
        });
        // Rows seen so far may have been of another size.
        next.map_or(0, |(rows, expected)| self.row_bytes.of(rows).min(self.row_bytes.corrected(expected)))
    }

    /// Returns the bytes that fetches leave free, so that the next batch can be transformed: of exceptional batches a
    /// part, because they rarely come.
    fn room_for_finishing(&self) -> u64 {
        self.finishing_bytes.min(self.budget.limit() / FINISHING_SHARE)
    }

    /// Returns the limit that leaves room for this many bytes beside the walk.
    fn limit_for(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.most_walk_bytes.min(bytes.div_ceil(self.walk_share - 1)))
    }

    /// Restarts the walk at a position.
    fn walk_from(&mut self, position: u64) {
        self.end_walk();
        let step = u64::from(self.share.world_size);
        self.walk = self.plan.walk_within(position, step, self.budget.limit() / self.walk_share);
        self.walk_bytes = self.walk.memory_bytes();
        self.budget.reserve(self.walk_bytes);
    }

    /// Frees what the walk holds, at its end.
    fn end_walk(&mut self) {
        self.walk = self.plan.walk_within(0, 1, 0);
        self.budget.release(std::mem::take(&mut self.walk_bytes));
    }

    fn too_large(&self, piece: PieceId, bytes: u64) -> TooLarge {
        let needed_bytes = self.limit_for(self.budget.used().saturating_sub(self.walk_bytes).saturating_add(bytes));
        let batch_rows = self.batches.front().map_or(0, |batch| batch.slice.len);
        TooLarge { piece, part_bytes: bytes, needed_bytes, batch_rows }
    }

    /// Returns whether a part that is first needed by batch `first` may wait: for something in progress, or for the
    /// consumer to take a batch.
    fn is_far_ahead(&self, first: u64) -> bool {
        if self.num_under_way == 0 && self.num_ready == 0 {
            return false;
        }
        if self.is_resting {
            return first > self.num_delivered;
        }
        let Some((bytes, num_parts)) = self.decoded_ahead else { return false };
        let ahead = self.row_bytes.of(index_of(first, self.num_delivered).saturating_mul(self.batch_rows()));
        ahead > bytes.max(self.largest_part.saturating_mul(num_parts))
    }

    /// Decodes what is needed first. Where footers do not tell how large rows are, the first part does, and others wait
    /// until what is known by then has room.
    fn next_decode(&mut self) -> Result<Step, TooLarge> {
        let Some(&(first, key)) = self.to_decode.first() else { return Ok(Step::Wait) };
        if self.is_far_ahead(first) {
            return Ok(Step::Wait);
        }
        let Some(resident @ Resident { stage: Stage::Fetched(fetched), .. }) = self.residents.get(&key) else {
            self.to_decode.pop_first();
            return Ok(Step::Again);
        };
        let (missing, is_told) = (self.uncharged_bytes(resident), fetched.is_told);
        // What was reserved is less once it is decoded, however much else there is.
        let has_room = missing == 0 || self.budget.has_room(missing);
        if self.num_under_way > 0 || self.num_ready > 0 {
            let is_guess = !is_told && !self.row_bytes.is_observed();
            if !has_room || is_guess && self.num_decoding > 0 {
                return Ok(Step::Wait);
            }
        } else if !has_room && self.max_block_len > 1 {
            // A single batch is tried in any case: this may be less than it seems.
            if let Some(task) = self.gather_next() {
                return Ok(Step::Do(task));
            }
            if let Some(step) = self.make_room(key.piece, missing)? {
                return Ok(step);
            }
        }
        self.to_decode.pop_first();
        self.budget.reserve(missing);
        let Some(resident) = self.residents.get_mut(&key) else { return Ok(Step::Again) };
        resident.charge = resident.charge.saturating_add(missing);
        let Stage::Fetched(fetched) = std::mem::replace(&mut resident.stage, Stage::Decoding) else {
            return Ok(Step::Again);
        };
        self.undecoded_bytes = self.undecoded_bytes.saturating_sub(resident.part.cost.fetched);
        self.num_decoding += 1;
        self.num_under_way += 1;
        Ok(Step::Do(Task::Decode { key, fetched }))
    }

    /// Returns the bytes by which a fetched part exceeds what was reserved for it, as far as is known by now.
    fn uncharged_bytes(&self, resident: &Resident) -> u64 {
        let num_read = resident.keep.as_ref().map_or(resident.num_rows() as usize, |keep| keep.len());
        let cost = resident.part.cost;
        let likely = self.row_bytes.likely(num_read, resident.estimate);
        let needed = cost.fetched.saturating_add(cost.working).saturating_add(likely);
        needed.min(self.budget.limit()).saturating_sub(resident.charge)
    }
}

fn numbers_of(numbers: impl Iterator<Item = u64> + Send + 'static) -> Peekable<Box<dyn Iterator<Item = u64> + Send>> {
    (Box::new(numbers) as Box<dyn Iterator<Item = u64> + Send>).peekable()
}

fn index_of(number: u64, num_delivered: u64) -> usize {
    usize::try_from(number.wrapping_sub(num_delivered)).unwrap_or(usize::MAX)
}
