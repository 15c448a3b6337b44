//! Carries out a plan: fetches, decodes, gathers, and delivers batches in order.
//!
//! ```text
//! scheduler ── Fetch ──► IO runtime ──► Decode ──► Gather ──► consumer
//!     ▲        (ranges)   (bytes)      (arrays)   (one copy)     │
//!     └──────────────────── memory given back ◄─────────────────┘
//! ```
//!
//! [`scheduler`] decides what happens to each [`piece`], [`budget`] counts the bytes in use, [`held`] holds decoded
//! rows, on [`shelves`] if they are shuffled, [`gather`] copies them, to [`slabs`] if the consumer supplied any,
//! [`holes`] are rows that cannot be read, and the threads here do what they are told. Decoding and gathering run on a
//! stream's own threads, requests on the process's IO runtime. Nothing outlives the stream.

mod budget;
mod copies;
mod dictionary;
mod gather;
mod held;
mod holes;
mod narrow;
mod piece;
mod runs;
mod scheduler;
mod shelves;
mod slabs;
mod waiters;
mod waiting;
mod worker;

#[cfg(test)]
mod tests;

use std::ops::AddAssign;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
#[cfg(any(test, fuzzing))]
use arrow_schema::{ArrowError, SchemaRef};

pub(crate) use self::gather::gather;
pub use self::slabs::Slab;
pub(crate) use self::slabs::{Room, Sink};
pub use self::waiting::Cause;
use self::worker::Shared;
pub use self::worker::rest;
use crate::error::{Error, Result};
use crate::finish::Finish;
use crate::metrics::{Metrics, Recovered};
use crate::plan::{Hole, Share};
use crate::process::OfProcess;
use crate::reader::EpochReader;

/// Puts decoded rows on shelves, as shuffled streams do, and gathers them in an order that names each row once.
///
/// # Errors
///
/// Those of decoding and of gathering.
#[cfg(any(test, fuzzing))]
pub(crate) fn shelved(
    trial: &crate::snapshot::Trial,
    schema: &SchemaRef,
    order: Vec<u32>,
    num_shelves: usize,
) -> Result<RecordBatch> {
    let rows: Vec<(u32, u32)> = order.iter().map(|&row| (0, row)).collect();
    let gather_error = |source| Error::gather(&source);
    let no_order = || gather_error(ArrowError::InvalidArgumentError("no order of the rows".into()));
    let shelves = shelves::Shelves::of(order, num_shelves).ok_or_else(no_order)?;
    let stored = trial.onto(&shelves)?;
    let held = held::Held::on_shelves(schema, shelves, stored);
    held::gather(schema, &[held], &rows).map_err(gather_error)
}

/// Why a forked child gets nothing from its parent's stream.
pub const OF_ANOTHER_PROCESS: &str = "it belongs to the process that this one was forked from";

/// The settings of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Limit for bytes in flight, decoded and ready, all together.
    pub memory_limit: u64,
    /// Number of threads that decode and gather.
    pub num_threads: usize,
    /// Maximum number of unreadable rows to leave out; if `None`, the first such row is an error.
    pub max_skipped: Option<u64>,
    /// Batches may be shorter than requested, so that in dataset order most are exactly what was decoded together, or a
    /// part of it, without copies. For a single reader of all rows that accepts any batch size.
    pub follows_parts: bool,
}

/// What a stream has done so far, and what it holds now.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamStats {
    /// Number of batches handed to the consumer.
    pub num_batches: u64,
    /// Number of rows in them.
    pub num_rows: u64,
    /// Number of requests.
    pub requests: u64,
    /// Bytes received.
    pub bytes_fetched: u64,
    /// Bytes of the requested ranges; what was received beyond them lay in gaps.
    pub bytes_wanted: u64,
    /// Failures that requests recovered from.
    pub recovered: Recovered,
    /// Ranges that were available without a request, because they were read with the selection.
    pub cache_hits: u64,
    /// Bytes of the arrays that were decoded.
    pub bytes_decoded: u64,
    /// Rows that were decoded, then dropped because the window does not fit in memory; they are read again.
    pub num_evicted_rows: u64,
    /// Rows left out of this share, up to the last batch handed to the consumer.
    pub skipped: Skipped,
    /// Bytes held now.
    pub memory_bytes: u64,
    /// Most bytes held at once.
    pub peak_memory_bytes: u64,
    /// Batches ready for the consumer.
    pub num_ready: usize,
    /// Time since the stream was started, until now or until it ended.
    pub elapsed: Duration,
    /// Time the consumer has waited.
    pub waited: Duration,
    /// The same by cause, in the order of [`Cause::ALL`].
    pub waited_for: [Duration; Cause::ALL.len()],
    /// Time during which at least one request was in flight.
    pub fetching: Duration,
    /// Time that threads spent decoding, in total.
    pub decoding: Duration,
    /// Time that threads spent gathering, in total.
    pub gathering: Duration,
}

/// The batches of one share of one epoch, in order.
///
/// Reads ahead on its own threads, within its memory limit. Dropping or [closing](Self::close) it ends them.
pub struct BatchStream {
    running: OfProcess<Running>,
    /// Whether no other stream keeps step with this one, so that batches without any remaining rows need not be
    /// delivered.
    is_alone: bool,
    position: u64,
    num_batches: u64,
    num_rows: u64,
    skipped: Skipped,
    /// Rows left out since the last batch handed to the consumer.
    passed_over: Skipped,
    started: Instant,
    ended: Option<Instant>,
    waited: Duration,
}

/// The threads of a stream and what they work on.
struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// How much the consumer takes at a time, of the batches that are ready; the first one is taken whatever its size.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Number of batches, at least one.
    pub batches: usize,
    /// Total bytes of these batches.
    pub bytes: u64,
}

impl Most {
    /// One batch.
    pub const ONE: Self = Self { batches: 1, bytes: 0 };
}

/// A batch that the consumer gets.
#[derive(Debug)]
pub struct Taken {
    /// The rows.
    pub batch: RecordBatch,
    /// The position after it.
    pub position: u64,
    /// The rows left out since the batch before.
    pub skipped: Skipped,
}

/// How many rows are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Rows that could not be read.
    pub rows: u64,
    /// Rows whose images could not be decoded.
    pub images: u64,
}

impl AddAssign for Skipped {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.images += other.images;
    }
}

/// What the consumer gets from [`poll`](BatchStream::poll).
#[derive(Debug)]
pub enum Polled {
    /// The next batches, at least one.
    Batches(Vec<Taken>),
    /// All batches have been delivered.
    End,
    /// Nothing yet; ask again.
    Pending,
}

impl BatchStream {
    /// Starts delivering `share` of `epoch`.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] if the system refuses a thread, [`Error::Setting`] if a store's settings do not work.
    pub fn start(reader: &Arc<EpochReader>, epoch: u64, share: Share, options: StreamOptions) -> Result<Self> {
        Self::start_with(reader, epoch, share, options, Vec::new(), None)
    }

    /// Like [`Self::start`], for the rest of an epoch that already has `holes`; `finish` transforms batches.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`]; [`Error::Setting`] if rows may be missing from batches that are transformed.
    pub fn resume(
        reader: &Arc<EpochReader>,
        epoch: u64,
        share: Share,
        options: StreamOptions,
        holes: Vec<Hole>,
        finish: Option<Arc<Finish>>,
    ) -> Result<Self> {
        if finish.is_some() && (options.max_skipped.is_some() || !holes.is_empty()) {
            let reason = "rows are transformed by their places in batches, so none of them may be left out";
            return Err(Error::Setting { name: "on_error", reason: reason.to_owned() });
        }
        let shared = Shared::try_new(reader, epoch, share, options, holes, finish, None)?;
        Self::start_shared(shared, share, options)
    }

    /// Like [`Self::resume`], counting requests in `metrics`, if given.
    pub(crate) fn start_with(
        reader: &Arc<EpochReader>,
        epoch: u64,
        share: Share,
        options: StreamOptions,
        holes: Vec<Hole>,
        metrics: Option<&Arc<Metrics>>,
    ) -> Result<Self> {
        let shared = Shared::try_new(reader, epoch, share, options, holes, None, metrics)?;
        Self::start_shared(shared, share, options)
    }

    fn start_shared(shared: Arc<Shared>, share: Share, options: StreamOptions) -> Result<Self> {
        let mut running = Running { shared: Arc::clone(&shared), threads: Vec::new() };
        for number in 0..options.num_threads.max(1) {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("forebay-cpu-{number}"));
            let thread = thread.spawn(move || worker::run(&shared)).map_err(|source| Error::Thread { source })?;
            running.threads.push(thread);
        }
        Ok(Self {
            running: OfProcess::new(running),
            is_alone: share.world_size == 1 && share.num_workers == 1,
            position: share.from,
            num_batches: 0,
            num_rows: 0,
            skipped: Skipped::default(),
            passed_over: Skipped::default(),
            started: Instant::now(),
            ended: None,
            waited: Duration::ZERO,
        })
    }

    /// Returns the next batches that are ready, at most `most`, or waits up to `timeout` for one.
    ///
    /// # Errors
    ///
    /// The first error of any thread, once the batches before it have been delivered; the stream is then closed.
    pub fn poll(&mut self, timeout: Duration, most: Most) -> Result<Polled> {
        let Some(running) = self.running.get() else {
            return Err(Error::Closed { reason: OF_ANOTHER_PROCESS });
        };
        let start = Instant::now();
        let polled = running.shared.deliver(timeout, most);
        self.waited += start.elapsed();
        match polled? {
            worker::Delivered::Batches(mut taken) => {
                self.position = taken.last().map_or(self.position, |taken| taken.position);
                taken.retain_mut(|taken| {
                    taken.skipped += std::mem::take(&mut self.passed_over);
                    // Nothing is left of the batch, and no other stream waits for it.
                    let is_passed_over = taken.batch.num_rows() == 0 && self.is_alone;
                    if is_passed_over {
                        self.passed_over = taken.skipped;
                    }
                    !is_passed_over
                });
                if taken.is_empty() {
                    return Ok(Polled::Pending);
                }
                self.num_batches += taken.len() as u64;
                self.num_rows += taken.iter().map(|taken| taken.batch.num_rows() as u64).sum::<u64>();
                taken.iter().for_each(|taken| self.skipped += taken.skipped);
                Ok(Polled::Batches(taken))
            }
            worker::Delivered::End => {
                self.skipped += std::mem::take(&mut self.passed_over);
                self.ended.get_or_insert_with(Instant::now);
                Ok(Polled::End)
            }
            worker::Delivered::Pending => Ok(Polled::Pending),
        }
    }

    /// Waits until [`poll`](Self::poll) has a result; returns `false` if there is none within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        // Another process's stream never delivers anything, but it returns an error at once.
        let is_ready = self.running.get().is_none_or(|running| running.shared.wait(timeout));
        self.waited += start.elapsed();
        is_ready
    }

    /// Supplies memory of the consumer for a batch that is yet to be gathered.
    ///
    /// Numbers are placed there, and so are pixels and padded lists. What does not fit goes to other memory.
    pub fn supply(&self, slab: Slab) {
        if let Some(running) = self.running.get() {
            running.shared.slabs().supply(slab);
        }
    }

    /// Returns how many slabs wait for a batch, and the bytes needed by the largest batch gathered since the first
    /// call. From that call on, no batch is a view of decoded rows: it would have to be copied.
    pub fn slabs(&self) -> (usize, usize) {
        self.running.get().map_or((0, 0), |running| running.shared.slabs().ask())
    }

    /// Returns the cursor: the position after the last batch that was taken.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the rows that are known to be unreadable, in the order in which they failed.
    pub fn holes(&self) -> Vec<Hole> {
        self.running.get().map(|running| running.shared.holes()).unwrap_or_default()
    }

    /// Returns what the stream has done so far and holds now.
    pub fn stats(&self) -> StreamStats {
        StreamStats {
            num_batches: self.num_batches,
            num_rows: self.num_rows,
            skipped: self.skipped,
            elapsed: self.ended.unwrap_or_else(Instant::now).saturating_duration_since(self.started),
            waited: self.waited,
            ..self.running.get().map(|running| running.shared.stats()).unwrap_or_default()
        }
    }

    /// Ends the stream's threads and frees its memory. Further calls are refused.
    pub fn close(&mut self) {
        if let Some(running) = self.running.get_mut() {
            running.close();
        }
    }
}

impl Running {
    fn close(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // A panic has already been reported to the consumer.
            drop(thread.join());
        }
        self.shared.give_up();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close();
    }
}

impl Iterator for BatchStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.poll(Duration::from_secs(60), Most::ONE) {
                Ok(Polled::Batches(mut batches)) => return batches.pop().map(|taken| Ok(taken.batch)),
                Ok(Polled::End) => return None,
                Ok(Polled::Pending) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl std::fmt::Debug for BatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchStream").field("position", &self.position).finish_non_exhaustive()
    }
}
