//! The threads of a stream, and what they share.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use futures::FutureExt;
use tokio::task::JoinSet;

use super::held::{self, Held};
use super::holes::Holes;
use super::narrow::Narrowing;
use super::piece::{Fetched, Gathered, PieceKey, PlannedRows, Task};
use super::scheduler::{Salvaged, Scheduler};
use super::shelves::Shelves;
use super::slabs::Slabs;
use super::waiters::Waiters;
use super::waiting::Waiting;
use super::{Most, StreamOptions, StreamStats, Taken};
use crate::decode::Body;
use crate::error::{Error, Result};
use crate::finish::{BatchRows, Fault, Finish, Finished};
use crate::metrics::Metrics;
use crate::plan::{BatchSlice, EpochPlan, Hole, Leaving, PieceId, Share};
use crate::reader::{EpochReader, PartRead, Salvage};
use crate::snapshot::FetchedRanges;
use crate::source::{CachedFile, Connection, Known, Missed, read_cached, read_ranges};

/// Whether streams rest while a batch is ready, and otherwise work on the next one only.
static RESTS: AtomicBool = AtomicBool::new(false);

/// From now on, streams of this process read ahead no further than to their next batch. For a process that is exiting:
/// it has better uses for its cores than batches that nobody will request, and requested ones are still delivered.
pub fn rest() {
    RESTS.store(true, Ordering::Relaxed);
}

/// Everything that a stream's threads, its requests and its consumer share.
pub(super) struct Shared {
    reader: Arc<EpochReader>,
    plan: Arc<EpochPlan>,
    /// Created for the first part that is stored by it.
    leaving: OnceLock<Leaving>,
    narrowing: Arc<Narrowing>,
    connections: Vec<Connection>,
    metrics: Arc<Metrics>,
    /// How gathered batches are transformed.
    finish: Option<Arc<Finish>>,
    /// Where the consumer wants batches.
    slabs: Slabs,
    memory_limit: u64,
    world_size: u32,
    epoch: u64,
    state: Mutex<State>,
    /// Signals tasks to workers.
    work: Waiters,
    /// Signals progress to the consumer.
    delivery: Waiters,
    /// Whether unreadable rows are left out.
    may_skip: bool,
    /// Whether requested bytes may be available at once.
    reads_at_once: AtomicBool,
    /// Requests in flight; dropping the set aborts them.
    requests: Mutex<JoinSet<()>>,
    decoding_nanos: AtomicU64,
    gathering_nanos: AtomicU64,
}

struct State {
    scheduler: Scheduler,
    /// What the consumer waits for.
    waiting: Waiting,
    error: Option<Error>,
    /// What delivery ends with, once the batches before it were taken.
    ending: Option<Error>,
    is_closed: bool,
}

impl State {
    /// Records what the consumer waits for now.
    fn wait_for_batch(&mut self) {
        let cause = self.scheduler.awaited();
        self.waiting.note(Instant::now(), Some(cause));
    }

    /// Updates that after an event, if the consumer waits.
    fn still_waits(&mut self) {
        if self.waiting.is_on() {
            self.wait_for_batch();
        }
    }
}

/// The kept rows of a part, and the rows among them that are read, counted within the part; `None` for all.
type PartRows = (Range<u32>, Option<Arc<[u32]>>);

/// What the consumer got.
pub(super) enum Delivered {
    Batches(Vec<Taken>),
    End,
    Pending,
}

impl Shared {
    pub(super) fn try_new(
        reader: &Arc<EpochReader>,
        epoch: u64,
        share: Share,
        options: StreamOptions,
        holes: Vec<Hole>,
        finish: Option<Arc<Finish>>,
        metrics: Option<&Arc<Metrics>>,
    ) -> Result<Arc<Self>> {
        let ahead = reader.claim_ahead();
        let metrics = metrics.or(ahead.as_ref().map(|ahead| ahead.metrics())).cloned().unwrap_or_default();
        let connections = reader.connect(&metrics)?;
        let plan = reader.plan(epoch);
        let scheduler = scheduler_for(reader, &plan, share, options, holes, &connections)
            .with_finished_row_bytes(finish.as_ref().map(|finish| finish.row_bytes()));
        let is_local = connections.iter().all(|store| store.is_local);
        let connections = connections.iter().map(|store| store.with_ahead(ahead.as_ref())).collect();
        Ok(Arc::new(Self {
            reader: Arc::clone(reader),
            plan,
            leaving: OnceLock::new(),
            narrowing: Arc::default(),
            connections,
            metrics,
            finish,
            slabs: Slabs::default(),
            memory_limit: options.memory_limit,
            world_size: share.world_size,
            epoch,
            state: Mutex::new(State {
                scheduler,
                waiting: Waiting::default(),
                error: None,
                ending: None,
                is_closed: false,
            }),
            work: Waiters::default(),
            delivery: Waiters::default(),
            may_skip: options.max_skipped.is_some(),
            reads_at_once: AtomicBool::new(is_local),
            requests: Mutex::new(JoinSet::new()),
            decoding_nanos: AtomicU64::new(0),
            gathering_nanos: AtomicU64::new(0),
        }))
    }

    /// Waits up to `timeout` for the next batch, and takes those that are ready.
    pub(super) fn deliver(&self, timeout: Duration, most: Most) -> Result<Delivered> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            state.waiting.note(Instant::now(), None);
            let taken = state.scheduler.deliver(most);
            if !taken.is_empty() {
                let (is_done, is_well_ahead) = (state.scheduler.is_done(), state.scheduler.is_well_ahead());
                let rereads = state.scheduler.rereads();
                drop(state);
                if rereads {
                    self.reader.tell_of_rereading(self.memory_limit, self.world_size);
                }
                // A thread that finds a task wakes the next one. In resting streams all threads rest, however far ahead
                // they are.
                if is_done {
                    self.work.notify_all()
                } else if !is_well_ahead || RESTS.load(Ordering::Relaxed) {
                    self.work.notify_one()
                }
                return Ok(Delivered::Batches(taken));
            }
            if state.scheduler.asked() {
                self.work.notify_one();
            }
            if let Some(error) = state.error.take() {
                state.is_closed = true;
                return Err(error);
            }
            if state.is_closed {
                return Err(Error::Closed { reason: "it was closed, or has failed before" });
            }
            if state.scheduler.is_done() {
                let Some(error) = state.ending.take() else { return Ok(Delivered::End) };
                state.is_closed = true;
                return Err(error);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Delivered::Pending);
            }
            state.wait_for_batch();
            state = self.delivery.wait_timeout(state, left);
        }
    }

    /// Waits up to `timeout` until [`Self::deliver`] would not have to wait.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let is_pending = |state: &mut State| {
            let has_nothing = !state.scheduler.has_ready() && state.error.is_none();
            has_nothing && !state.is_closed && !state.scheduler.is_done()
        };
        let mut state = self.lock();
        if is_pending(&mut state) {
            state.wait_for_batch();
            if state.scheduler.asked() {
                self.work.notify_one();
            }
        }
        let (mut state, is_too_short) = self.delivery.wait_while(state, timeout, is_pending);
        state.waiting.note(Instant::now(), None);
        !is_too_short
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.work.notify_all();
        self.delivery.notify_all();
    }

    /// Drops everything held, once no thread is working any more.
    pub(super) fn give_up(&self) {
        self.lock().scheduler.give_up();
        self.slabs.clear();
    }

    /// Returns where the consumer wants batches.
    pub(super) fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    pub(super) fn stats(&self) -> StreamStats {
        let (usage, waited_for) = {
            let state = self.lock();
            (state.scheduler.usage(), state.waiting.times(Instant::now()))
        };
        let counted = self.metrics.snapshot();
        StreamStats {
            requests: counted.requests,
            bytes_fetched: counted.bytes_fetched,
            bytes_wanted: counted.bytes_wanted,
            recovered: counted.recovered,
            cache_hits: counted.hits,
            bytes_decoded: usage.bytes_decoded,
            waited_for,
            fetching: counted.busy,
            num_evicted_rows: usage.num_evicted_rows,
            memory_bytes: usage.memory_bytes,
            peak_memory_bytes: usage.peak_memory_bytes,
            num_ready: usage.num_ready,
            decoding: Duration::from_nanos(self.decoding_nanos.load(Ordering::Relaxed)),
            gathering: Duration::from_nanos(self.gathering_nanos.load(Ordering::Relaxed)),
            ..StreamStats::default()
        }
    }

    /// Returns what could not be read so far.
    pub(super) fn holes(&self) -> Vec<Hole> {
        self.lock().scheduler.holes().found().to_vec()
    }

    /// Locks the state. Poison is ignored, since a panic of another thread is reported as an error.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        self.fail_locked(self.lock(), error);
    }

    /// Fails before anyone else sees the state that led to the error.
    fn fail_locked(&self, mut state: MutexGuard<'_, State>, error: Error) {
        if state.error.is_none() && !state.is_closed {
            state.error = Some(error);
        }
        drop(state);
        self.work.notify_all();
        self.delivery.notify_all();
    }

    /// Fails once the batches before the one that cannot be made were taken.
    fn end_with(&self, mut state: MutexGuard<'_, State>, error: Error) {
        state.ending = Some(error);
        drop(state);
        self.work.notify_all();
        self.delivery.notify_all();
    }

    /// Returns whether the stream was closed or has failed.
    fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_closed || state.error.is_some()
    }

    /// Finds the damaged rows of a part, until they are too many or the stream is over.
    fn salvage(
        &self,
        key: PieceKey,
        kept: &Range<u32>,
        wanted: Option<&[u32]>,
        fetched: &FetchedRanges,
    ) -> Option<Salvage> {
        let hole = |kept: &Range<u32>, cause| self.reader.hole(key.piece, kept, cause);
        let spare = self.lock().scheduler.spare(key.piece, kept, hole).unwrap_or(u64::MAX);
        let go_on = |num_damaged| num_damaged <= spare && !self.is_over();
        self.reader.salvage(key.piece, kept, wanted, fetched, &go_on)
    }

    /// Leaves out an unreadable part, or its damaged rows, if allowed; fails otherwise.
    fn lose(&self, key: PieceKey, salvage: Option<Salvage>, cause: Error) {
        let salvaged = salvage.map(|Salvage { damaged, left }| {
            let left = left.map(|(batch, rows)| (Held::new(self.reader.schema(), batch), rows.into()));
            Salvaged { damaged, left }
        });
        let mut state = self.lock();
        let hole = |kept: &Range<u32>, cause| self.reader.hole(key.piece, kept, cause);
        let lost = state.scheduler.lost(key, salvaged, hole, cause);
        state.still_waits();
        if let Err(error) = lost {
            return self.end_with(state, error);
        }
        drop(state);
        self.work.notify_one();
    }

    /// Changes the state, then wakes a worker, which wakes the next one if it finds a task.
    fn report(&self, change: impl FnOnce(&mut Scheduler)) {
        let mut state = self.lock();
        change(&mut state.scheduler);
        state.still_waits();
        drop(state);
        self.work.notify_one();
    }

    /// Waits for a task; returns `None` when the stream has ended, for whatever reason.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.is_closed || state.error.is_some() || state.scheduler.is_done() {
                return None;
            }
            if RESTS.load(Ordering::Relaxed) {
                state.scheduler.rest();
                if state.scheduler.has_ready() {
                    state = self.work.wait(state);
                    continue;
                }
            }
            match state.scheduler.next_task() {
                Ok(Some(task)) => {
                    state.still_waits();
                    // One event may give work to several threads.
                    self.work.notify_one();
                    return Some(task);
                }
                Ok(None) => {
                    if state.scheduler.is_done() {
                        drop(state);
                        self.delivery.notify_all();
                        self.work.notify_all();
                        return None;
                    }
                    state = self.work.wait(state);
                }
                Err(too_large) => {
                    let error = self.reader.memory_error(&too_large, self.memory_limit);
                    self.fail_locked(state, error);
                    return None;
                }
            }
        }
    }

    fn run_task(self: &Arc<Self>, task: Task) {
        match task {
            Task::Fetch { key, kept, wanted, num_ahead } => {
                match self.reader.read_part(key.piece, &kept, wanted.as_deref()) {
                    Ok(read) => self.fetch(key, read, (kept, wanted), num_ahead),
                    Err(error) => self.lose(key, None, error),
                }
            }
            Task::Decode { key, fetched } => self.decode_part(key, *fetched),
            Task::Compact { key, held, keep } => match held::compact(self.reader.schema(), held, &keep) {
                Ok(held) => self.report(|scheduler| scheduler.compacted(key, held, keep)),
                Err(source) => self.fail(Error::gather(&source)),
            },
            Task::Gather { number, slice, sources, rows, may_be_view } => {
                self.gather_batch(number, slice, sources, rows, may_be_view);
            }
            Task::Finish { number, slice, gathered } => self.finish(number, slice, gathered, false, Instant::now()),
        }
    }

    /// Decodes a part and reports it, or what is left of it if it is damaged.
    fn decode_part(&self, key: PieceKey, fetched: Fetched) {
        let start = Instant::now();
        let Fetched { read, kept, wanted, bodies, .. } = fetched;
        let fetched = self.may_skip.then(|| FetchedRanges { ranges: read.ranges().to_vec(), bodies: bodies.clone() });
        let shown = wanted.is_none().then(|| kept.clone());
        match self.decode(key, read, shown, bodies) {
            Ok(held) => {
                add_elapsed(&self.decoding_nanos, start);
                self.report(|scheduler| scheduler.decoded(key, held));
            }
            Err(error) => {
                let salvage = fetched
                    .filter(|_| error.is_of_object())
                    .and_then(|fetched| self.salvage(key, &kept, wanted.as_deref(), &fetched));
                // What was found until then is not what a state may list.
                if !self.is_over() {
                    self.lose(key, salvage, error);
                }
            }
        }
    }

    /// Gathers the rows of a batch and reports it, transformed unless that needs more memory.
    fn gather_batch(&self, number: u64, slice: BatchSlice, sources: Vec<Held>, rows: PlannedRows, may_be_view: bool) {
        let start = Instant::now();
        let gathered = self.gather(sources, rows, may_be_view).and_then(|(gathered, is_view)| {
            let finishing_bytes = self.finishing_bytes(&gathered.batch)?;
            Ok((gathered, is_view, finishing_bytes))
        });
        match gathered {
            Ok((gathered, is_view, 0)) => self.finish(number, slice, gathered, is_view, start),
            Ok((gathered, _, finishing_bytes)) => {
                add_elapsed(&self.gathering_nanos, start);
                // No wake-up: this thread transforms it next, if there is room.
                self.lock().scheduler.unfinished(number, gathered, finishing_bytes);
            }
            Err(error) => self.fail_batch(number, error),
        }
    }

    /// Reports that a batch cannot be made.
    fn fail_batch(&self, number: u64, error: Error) {
        let mut state = self.lock();
        if state.scheduler.failed(number) {
            self.end_with(state, error);
        } else {
            drop(state);
            self.work.notify_one();
        }
    }

    /// Gathers the rows of a batch; also returns whether it is a view of a part.
    fn gather(&self, sources: Vec<Held>, rows: PlannedRows, may_be_view: bool) -> Result<(Gathered, bool)> {
        let schema = self.reader.schema();
        // If nothing could be read, there is nothing to gather from.
        let nothing = sources.is_empty().then(|| RecordBatch::new_empty(Arc::clone(schema)));
        let room = self.slabs.take();
        let view = nothing.or_else(|| {
            // A view would have to be copied into a slab.
            let (place, run) = rows.as_run().filter(|_| may_be_view && room.is_none())?;
            held::view(schema, sources.get(place as usize)?, run)
        });
        let is_view = view.is_some();
        let leaves = |column| self.finish.as_ref().is_none_or(|finish| finish.leaves(column));
        let room_for = |column| room.as_ref().filter(|_| leaves(column));
        let gathered = view.map_or_else(|| held::gather_into(schema, &sources, &rows.into_each(), room_for), Ok);
        let batch = gathered.map_err(|source| Error::gather(&source))?;
        Ok((Gathered { batch, room }, is_view))
    }

    /// Returns the bytes needed to transform a gathered batch, as far as they are not reserved with its rows.
    ///
    /// # Errors
    ///
    /// [`Error::BatchMemory`] if they alone exceed the limit.
    fn finishing_bytes(&self, batch: &RecordBatch) -> Result<u64> {
        let finishing_bytes = self.finish.as_ref().map_or(0, |finish| finish.bytes_of(batch));
        if finishing_bytes > self.memory_limit {
            let needed_bytes = finishing_bytes.saturating_add(batch.get_array_memory_size() as u64);
            let (batch_rows, limit_bytes) = (batch.num_rows(), self.memory_limit);
            return Err(Error::BatchMemory { batch_rows, limit_bytes, needed_bytes });
        }
        Ok(finishing_bytes)
    }

    /// Transforms a gathered batch, if requested, and reports it.
    fn finish(&self, number: u64, slice: BatchSlice, gathered: Gathered, is_view: bool, start: Instant) {
        let Gathered { batch, room } = gathered;
        let finished = match &self.finish {
            None => Ok((Finished { batch, num_skipped: 0 }, is_view)),
            Some(finish) => {
                let rows = BatchRows { slice, seed: self.reader.seed(), epoch: self.epoch };
                let fault = |Fault { row, column, reason }| {
                    self.reader.value_error(&self.plan, rows.position(row), column, reason)
                };
                finish.apply(batch, &rows, room.as_ref()).map(|finished| (finished, false)).map_err(fault)
            }
        };
        match finished {
            Ok((finished, is_view)) => {
                if let Some(room) = &room {
                    self.slabs.note(room);
                }
                add_elapsed(&self.gathering_nanos, start);
                self.report(|scheduler| scheduler.gathered(number, finished, is_view));
                self.delivery.notify_all();
            }
            Err(error) => self.fail_batch(number, error),
        }
    }

    /// Decodes a part: stores all rows (`kept`) in the order in which they leave, a subset as it is.
    fn decode(&self, key: PieceKey, read: PartRead, kept: Option<Range<u32>>, bodies: Vec<Body>) -> Result<Held> {
        let leaving = || self.leaving.get_or_init(|| Leaving::new(&self.plan));
        let shelves = kept.and_then(|kept| {
            let (num_bytes, num_rows) = (read.decoded_bytes(), kept.len());
            let order = || leaving().order(key.piece, kept);
            let shelves = Shelves::new(self.reader.schema(), num_bytes, num_rows, order)?;
            Some(shelves.with_narrowing(&self.narrowing))
        });
        match shelves {
            None => read.decode(bodies).map(|batch| Held::new(self.reader.schema(), batch)),
            Some(shelves) => {
                let batches = read.decode_onto(bodies, &shelves)?;
                Ok(Held::on_shelves(self.reader.schema(), shelves, batches))
            }
        }
    }

    /// Reads a part that is in memory; passes requests for other parts to the IO runtime.
    fn fetch(self: &Arc<Self>, key: PieceKey, read: PartRead, (kept, wanted): PartRows, num_ahead: u64) {
        let fragment = self.reader.fragment_of(key.piece);
        let connection = &self.connections[fragment.store];
        let is_told = self.reader.tells_decoded_bytes(key.piece);
        if self.reads_at_once.load(Ordering::Relaxed) {
            let later = |range: usize, file: &Arc<CachedFile>| read.in_file(range, file);
            match read_cached(connection, &fragment.object, read.ranges(), later) {
                // No wake-up: this thread looks for more to do, and wakes another if it finds something.
                Ok(bodies) => return self.lock().scheduler.found(key, Fetched { read, kept, wanted, bodies, is_told }),
                Err(Missed::Always) => self.reads_at_once.store(false, Ordering::Relaxed),
                Err(Missed::Once) => {}
            }
        }
        let connection = connection.with_slack(num_ahead);
        let object = fragment.object.clone();
        let shared: Weak<Self> = Arc::downgrade(self);
        let io = Arc::clone(&connection.io);
        let reported_to = Weak::clone(&shared);
        let request = async move {
            let bytes = read_ranges(&connection, &object, read.ranges()).await;
            let Some(shared) = reported_to.upgrade() else { return };
            match bytes {
                Ok(bytes) => {
                    let bodies = bytes.into_iter().map(Body::Here).collect();
                    shared.report(|scheduler| scheduler.fetched(key, Fetched { read, kept, wanted, bodies, is_told }));
                }
                Err(error) => shared.lose(key, None, error),
            }
        };
        let request = AssertUnwindSafe(request).catch_unwind().map(move |done| {
            if let Err(panic) = done
                && let Some(shared) = shared.upgrade()
            {
                shared.fail(Error::internal(panic.as_ref()));
            }
        });
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        while requests.try_join_next().is_some() {}
        requests.spawn_on(request, io.handle());
    }
}

/// Returns the scheduler of a stream from the given stores.
fn scheduler_for(
    reader: &Arc<EpochReader>,
    plan: &Arc<EpochPlan>,
    share: Share,
    options: StreamOptions,
    holes: Vec<Hole>,
    connections: &[Connection],
) -> Scheduler {
    let (cut_by, planned) = (Arc::clone(reader), Arc::clone(plan));
    let cut = move |piece: PieceId| cut_by.parts_of(&planned.kept_piece(piece));
    let holes = Holes::new(holes, options.max_skipped, reader.hole_units().clone());
    let scheduler = Scheduler::new(Arc::clone(plan), share, options.memory_limit, reader.row_bytes(), holes, cut);
    let scheduler = if options.follows_parts { scheduler.following_parts() } else { scheduler };
    let is_local = connections.iter().all(|store| store.is_local);
    let known: Vec<Known> = connections.iter().map(Connection::known).collect();
    match known.iter().map(Known::window_bytes).max().filter(|_| !is_local) {
        None => scheduler.with_bytes_at_hand(options.num_threads),
        Some(window_bytes) => scheduler.with_fetch_window(window_bytes, known.iter().all(Known::is_measured)),
    }
}

fn add_elapsed(nanos: &AtomicU64, start: Instant) {
    nanos.fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Makes this thread wait for its turn if all cores are busy: when woken, it does not preempt the waking thread, which
/// is the consumer. If the system refuses, nothing changes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no crate that is linked anyway offers it")]
fn give_way() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: both calls affect only the calling thread, and read no memory but `parameter`.
    unsafe {
        if libc::sched_getscheduler(0) == libc::SCHED_OTHER {
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter);
        }
    }
}

/// Executes the scheduler's tasks until the stream ends.
pub(super) fn run(shared: &Arc<Shared>) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    give_way();
    let work = || {
        while let Some(task) = shared.next_task() {
            shared.run_task(task);
        }
    };
    // Finding the next task may panic, too: it plans batches.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        shared.fail(Error::internal(panic.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::BatchStream;
    use super::super::tests::{dataset, reader};
    use super::*;
    use crate::reader::Part;

    #[test]
    fn a_panic_while_batches_are_planned_is_an_error_to_the_consumer() {
        let folder = tempfile::tempdir().unwrap();
        let reader = reader(&dataset(folder.path()), &[0, 1, 2], 1 << 30);
        let share = Share::whole(3, 2);
        let options = StreamOptions { memory_limit: 1 << 30, num_threads: 2, max_skipped: None, follows_parts: false };
        let shared = Shared::try_new(&reader, 0, share, options, Vec::new(), None, None).unwrap();
        let broken = |_| -> Vec<Part> { panic!("it cannot be cut") };
        shared.lock().scheduler = Scheduler::new(reader.plan(0), share, 1 << 30, 8, Holes::default(), broken);
        let mut stream = BatchStream::start_shared(shared, share, options).unwrap();
        let polled = stream.poll(Duration::from_secs(10), Most::ONE);
        assert!(matches!(&polled, Err(Error::Internal { reason }) if reason == "it cannot be cut"), "{polled:?}");
    }
}
