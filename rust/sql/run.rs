//! Runs a plan: collects the rows of a dataset that a query keeps, or streams the rows that it returns.
//!
//! Everything runs on a separate runtime that ends with the query, within a memory limit; sorts that do not fit spill
//! to temporary files.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch, UInt64Array};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use arrow_select::take::take_record_batch;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, SendableRecordBatchStream, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::{FutureExt, StreamExt};

use super::corrections::{with_closed_sorts, with_large_firsts_sorted, with_views_copied};
use super::held::{AnswerSize, too_large};
use super::plan::{Planned, refuse_changing};
use super::scan::Scanning;
use crate::batch;
use crate::config;
use crate::dataset::{Answer, Dataset};
use crate::engine;
use crate::error::{Error, Result};
use crate::features;
use crate::io::Io;
use crate::metrics::{Metrics, Progress};
use crate::process::OfProcess;
use crate::selection::Report;
use crate::stream::OF_ANOTHER_PROCESS;

/// The memory has two parts: one for what the engine holds, one for what scans read.
const HALVES: u64 = 2;

/// The fraction of the memory that all sorts together reserve for merging what they have spilled.
const MERGES_IN_MEMORY: u64 = 4;

/// Memory per row of a batch within the engine: merging spilled data holds a batch of every run.
const MEMORY_PER_BATCH_ROW: u64 = 8 << 10;

/// Minimum rows of such a batch: fewer cost more time than they save memory.
const LEAST_BATCH_ROWS: u64 = 256;

/// Number of batches that wait for the consumer.
const READY_BATCHES: usize = 2;

/// An error of any library.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a query.
#[derive(Debug)]
pub enum Rows {
    /// Rows of the dataset, to be read as a dataset.
    Dataset(Box<Dataset>),
    /// Other rows.
    Stream(QueryStream),
}

/// A running query, and its limits.
pub(super) struct Running {
    state: SessionState,
    text: String,
    memory_limit: u64,
    metrics: Arc<Metrics>,
    scanning: Arc<Scanning>,
}

impl Running {
    pub(super) fn new(
        state: &SessionState,
        text: &str,
        memory_limit: u64,
        metrics: &Arc<Metrics>,
        progress: &Arc<Progress>,
    ) -> Result<Self> {
        let failed =
            |error: DataFusionError| Error::Sql { sql: engine::shortened(text), reason: engine::reason(&error) };
        let pool = FairSpillPool::new(usize::try_from(memory_limit / HALVES).unwrap_or(usize::MAX));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).build_arc().map_err(failed)?;
        let scanning = Arc::new(Scanning::new(memory_limit / HALVES, metrics, progress));
        let narrow = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let most_rows = u64::from(config::QUERY_BATCH_ROWS);
        let batch_rows = (memory_limit / MEMORY_PER_BATCH_ROW).clamp(LEAST_BATCH_ROWS, most_rows);
        let config = SessionConfig::from(state.config_options().as_ref().clone())
            .with_batch_size(narrow(batch_rows))
            // One partition, so that the same query gives the same rows in the same order.
            .with_target_partitions(1)
            .with_extension(Arc::clone(&scanning));
        let state =
            SessionStateBuilder::new_from_existing(state.clone()).with_config(config).with_runtime_env(runtime).build();
        Ok(Self { state, text: text.to_owned(), memory_limit, metrics: Arc::clone(metrics), scanning })
    }

    fn physical(&self, plan: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
        engine::with_large_stack(&self.text, || {
            let batch_rows = self.state.config().batch_size() as u64;
            futures::executor::block_on(self.state.create_physical_plan(plan))
                .and_then(with_closed_sorts)
                .and_then(|plan| with_large_firsts_sorted(plan, self.memory_limit / HALVES, batch_rows))
                .and_then(with_views_copied)
                .map_err(|error| self.failed(error))
        })
    }

    /// Returns the context in which `plan` runs. Each of its sorts gets a share of the memory reserved for merging, and
    /// together they leave as much for what they hold.
    fn context(&self, plan: &Arc<dyn ExecutionPlan>) -> Arc<TaskContext> {
        let reserved = self.memory_limit / MERGES_IN_MEMORY / num_sorts(plan).max(1);
        let reserved = usize::try_from(reserved).unwrap_or(usize::MAX);
        let config = self.state.config().clone().with_sort_spill_reservation_bytes(reserved);
        Arc::new(TaskContext::from(&self.state).with_session_config(config))
    }

    /// Converts one of the engine's errors to ours.
    fn failed(&self, error: DataFusionError) -> Error {
        let error = match ours(error) {
            Ok(error) => return of_whole(error, self.memory_limit),
            Err(error) => error,
        };
        let (sql, reason) = (engine::shortened(&self.text), engine::reason(&error));
        match error.find_root() {
            DataFusionError::ResourcesExhausted(_) => {
                Error::QueryMemory { sql, limit_bytes: self.memory_limit, reason }
            }
            root if is_of_system(root) => {
                Error::Spill { sql, folder: std::env::temp_dir().display().to_string(), reason }
            }
            _ => Error::Sql { sql, reason },
        }
    }

    /// Collects the rows of `dataset` that `plan` returns: their numbers, and the values that are kept with them.
    pub(super) async fn answer(&self, plan: &LogicalPlan, dataset: &Dataset, is_ordered: bool) -> Result<Answer> {
        let start = Instant::now();
        let physical = self.physical(plan)?;
        let io = Io::for_query()?;
        let context = self.context(&physical);
        let mut batches = {
            let _entered = io.handle().enter();
            execute_stream(physical, context).map_err(|error| self.failed(error))?
        };
        let schema = batches.schema();
        let mut size = AnswerSize::new(self.memory_limit);
        let (sql, num_rows) = (engine::shortened(&self.text), dataset.snapshot().num_rows);
        let collecting = io.spawn(async move {
            let (mut rows, mut found) = (Vec::new(), Vec::new());
            while let Some(batch) = batches.next().await {
                let batch = batch?;
                let numbers = batch.column(0).as_primitive::<UInt64Type>();
                if numbers.null_count() > 0 {
                    return Ok(None);
                }
                let values = without_numbers(&batch)?;
                size.add(numbers.values(), &values);
                if let Some(error) = size.refusal(&sql) {
                    return Err(DataFusionError::External(Box::new(error)));
                }
                rows.extend_from_slice(numbers.values());
                found.push(values);
                if rows.len() as u64 > num_rows {
                    // One occurs twice.
                    break;
                }
            }
            Ok::<_, DataFusionError>(Some((rows, found)))
        });
        let collected = Aborting(collecting).await?.map_err(|error| self.failed(error))?;
        let Some((rows, found)) = collected else {
            let reason =
                "a joined table has rows that are not rows of `dataset`; use INNER JOIN, or `dataset LEFT JOIN`";
            return Err(Error::ManyRows { sql: engine::shortened(&self.text), reason: reason.into() });
        };
        let attached_schema = Arc::new(Schema::new(schema.fields().iter().skip(1).cloned().collect::<Vec<_>>()));
        let attached = arrow_select::concat::concat_batches(&attached_schema, &found);
        let attached = attached.map_err(|error| self.failed(error.into()))?;
        drop(found);
        let in_order = self.in_order(rows, attached, is_ordered).map_err(|error| self.failed(error.into()))?;
        let (mut rows, attached, is_ordered) = in_order;
        rows.shrink_to_fit();
        let counted = self.metrics.snapshot();
        let report = Report {
            bytes: counted.bytes_fetched,
            requests: counted.requests,
            predicates: counted,
            elapsed: Some(start.elapsed()),
            ..Report::default()
        };
        if let Some(row) = twice(&rows) {
            let reason = format!(
                "it returns {} more than once, as a JOIN does that finds several matches; use `IN (SELECT ...)` or `DISTINCT ON`",
                dataset.describe_row(row)
            );
            return Err(Error::ManyRows { sql: engine::shortened(&self.text), reason });
        }
        let answer = Answer::of_rows(dataset.snapshot(), rows, attached, is_ordered, report)
            .map_err(|error| self.failed(error.into()))?;
        if answer.memory_bytes() > self.memory_limit {
            return Err(too_large(engine::shortened(&self.text), self.memory_limit, answer.memory_bytes()));
        }
        Ok(answer)
    }

    /// Returns the numbers of rows identified by a scan, the values that come with them, and whether they are ordered,
    /// by the query or by the dataset.
    fn in_order(
        &self,
        rows: Vec<u64>,
        attached: RecordBatch,
        is_ordered: bool,
    ) -> Result<(Vec<u64>, RecordBatch, bool), ArrowError> {
        let ordered = self.scanning.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        if ordered.is_empty() {
            return Ok((rows, attached, is_ordered));
        }
        let number = |&place: &u64| usize::try_from(place).ok().and_then(|place| ordered.get(place).copied());
        if is_ordered || rows.is_sorted() {
            return Ok((rows.iter().filter_map(number).collect(), attached, true));
        }
        let mut sorted: Vec<(u64, u64)> = rows.into_iter().zip(0..).collect();
        sorted.sort_unstable();
        let order = UInt64Array::from_iter_values(sorted.iter().map(|&(_, index)| index));
        let attached = if attached.num_columns() == 0 { attached } else { take_record_batch(&attached, &order)? };
        Ok((sorted.iter().filter_map(|(place, _)| number(place)).collect(), attached, true))
    }
}

/// Returns how many sorts of a plan may hold rows at the same time: one for each partition that is sorted separately. A
/// sort that only keeps the first rows needs no memory for merging.
fn num_sorts(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let of_inputs: u64 = plan.children().into_iter().map(num_sorts).sum();
    let of_itself = match plan.downcast_ref::<SortExec>() {
        Some(sort) if sort.fetch().is_none() => sort.input().output_partitioning().partition_count() as u64,
        _ => 0,
    };
    of_inputs + of_itself
}

/// Converts the error of a scan, which has one of the [`HALVES`], to refer to the whole limit, which is what can be
/// raised.
fn of_whole(error: Error, limit_bytes: u64) -> Error {
    match error {
        Error::MemoryLimit { url, row_group, needed_bytes, hint, .. } => {
            let needed_bytes = needed_bytes.saturating_mul(HALVES);
            Error::MemoryLimit { url, row_group, limit_bytes, needed_bytes, hint }
        }
        Error::BatchMemory { batch_rows, needed_bytes, .. } => {
            Error::BatchMemory { batch_rows, limit_bytes, needed_bytes: needed_bytes.saturating_mul(HALVES) }
        }
        Error::QueryMemory { sql, reason, .. } => Error::QueryMemory { sql, limit_bytes, reason },
        other => other,
    }
}

/// Returns a number that occurs twice.
fn twice(rows: &[u64]) -> Option<u64> {
    if rows.is_sorted_by(|a, b| a < b) {
        return None;
    }
    let mut sorted = rows.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn without_numbers(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = Schema::new(batch.schema().fields().iter().skip(1).cloned().collect::<Vec<_>>());
    batch::of_columns(Arc::new(schema), batch.columns()[1..].to_vec(), batch.num_rows())
}

/// Returns whether reading or writing a file failed: the engine only has temporary ones.
fn is_of_system(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::IoError(_) => true,
        DataFusionError::ArrowError(error, _) => matches!(**error, ArrowError::IoError(..)),
        _ => false,
    }
}

/// Extracts one of our errors that passed through the engine.
fn ours(error: DataFusionError) -> Result<Error, DataFusionError> {
    match error {
        DataFusionError::External(inner) => ours_within(inner).map_err(DataFusionError::External),
        DataFusionError::Context(said, inner) => {
            ours(*inner).map_err(|inner| DataFusionError::Context(said, Box::new(inner)))
        }
        DataFusionError::Diagnostic(said, inner) => {
            ours(*inner).map_err(|inner| DataFusionError::Diagnostic(said, Box::new(inner)))
        }
        DataFusionError::ArrowError(inner, backtrace) => {
            let found = match *inner {
                ArrowError::ExternalError(inner) => ours_within(inner).map_err(ArrowError::ExternalError),
                inner => Err(inner),
            };
            found.map_err(|inner| DataFusionError::ArrowError(Box::new(inner), backtrace))
        }
        DataFusionError::Shared(shared) => match Arc::try_unwrap(shared) {
            Ok(inner) => ours(inner),
            Err(shared) => copy_of_ours(&shared).ok_or(DataFusionError::Shared(shared)),
        },
        other => Err(other),
    }
}

/// Extracts one of our errors from one of any library.
fn ours_within(error: AnyError) -> Result<Error, AnyError> {
    match error.downcast::<Error>() {
        Ok(ours) => Ok(*ours),
        Err(error) => ours(*error.downcast::<DataFusionError>()?).map_err(Into::into),
    }
}

/// Returns a copy of our memory error that parts of a query share while they run.
fn copy_of_ours(shared: &DataFusionError) -> Option<Error> {
    let mut causes = std::iter::successors(Some(shared as &dyn std::error::Error), |error| error.source());
    match causes.find_map(|error| error.downcast_ref::<Error>())? {
        &Error::MemoryLimit { ref url, row_group, limit_bytes, needed_bytes, hint } => {
            Some(Error::MemoryLimit { url: url.clone(), row_group, limit_bytes, needed_bytes, hint })
        }
        &Error::BatchMemory { batch_rows, limit_bytes, needed_bytes } => {
            Some(Error::BatchMemory { batch_rows, limit_bytes, needed_bytes })
        }
        Error::QueryMemory { sql, limit_bytes, reason } => {
            Some(Error::QueryMemory { sql: sql.clone(), limit_bytes: *limit_bytes, reason: reason.clone() })
        }
        _ => None,
    }
}

/// A task that is aborted when dropped.
struct Aborting<T>(tokio::task::JoinHandle<T>);

impl<T> Future for Aborting<T> {
    type Output = Result<T>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        let polled = std::pin::Pin::new(&mut self.0).poll(context);
        polled.map(|joined| joined.map_err(|error| Error::Internal { reason: error.to_string() }))
    }
}

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The batches that a query returns, as they arrive.
pub struct QueryStream {
    schema: SchemaRef,
    running: OfProcess<Receiving>,
}

/// A batch of a query, or its end.
type Delivered = Result<Option<RecordBatch>>;

/// What produces the batches.
struct Receiving {
    /// `None` after the end or an error.
    batches: Option<Receiver<Delivered>>,
    has_failed: bool,
    task: tokio::task::JoinHandle<()>,
    /// Ends the threads.
    _io: Io,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.task.abort();
        // Unblocks a task that is waiting to deliver a batch.
        self.batches.take();
    }
}

impl QueryStream {
    /// Starts a planned query.
    pub(super) fn start(planned: &Planned, text: &str, memory_limit: u64) -> Result<Self> {
        engine::with_large_stack(text, || refuse_changing(&planned.plan, text))?;
        let (metrics, progress) = (Arc::default(), Arc::default());
        let running = Running::new(&planned.state, text, memory_limit, &metrics, &progress)?;
        let physical = running.physical(&planned.plan)?;
        let fields = physical
            .schema()
            .fields()
            .iter()
            .zip(planned.names())
            .map(|(field, name)| field.as_ref().clone().with_name(name))
            .collect::<Vec<_>>();
        let schema = Schema::new_with_metadata(fields, physical.schema().metadata().clone());
        let (schema, context) = (features::collect(&schema), running.context(&physical));
        let io = Io::for_query()?;
        let batches = {
            let _entered = io.handle().enter();
            execute_stream(physical, context).map_err(|error| running.failed(error))?
        };
        let (sender, receiver): (SyncSender<Delivered>, _) = sync_channel(READY_BATCHES);
        let task = io.spawn(async move {
            let delivered = AssertUnwindSafe(deliver(batches, &sender, &running)).catch_unwind().await;
            match delivered {
                Ok(Ok(())) => {}
                Ok(Err(error)) => drop(hand_over(&sender, Err(error)).await),
                Err(panic) => drop(hand_over(&sender, Err(Error::internal(panic.as_ref()))).await),
            }
        });
        Ok(Self {
            schema,
            running: OfProcess::new(Receiving { batches: Some(receiver), has_failed: false, task, _io: io }),
        })
    }

    /// Returns the columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the next batch; the inner `None` at the end, the outer one if there is none yet after `timeout`.
    ///
    /// # Errors
    ///
    /// The reason the query failed; [`Error::Closed`] after that.
    pub fn poll(&mut self, timeout: Duration) -> Result<Option<Option<RecordBatch>>> {
        let Some(running) = self.running.get_mut() else { return Err(Error::Closed { reason: OF_ANOTHER_PROCESS }) };
        let Some(batches) = &running.batches else {
            return if running.has_failed {
                Err(Error::Closed { reason: "the query has failed; query again" })
            } else {
                Ok(Some(None))
            };
        };
        let delivered = match batches.recv_timeout(timeout) {
            Ok(delivered) => delivered,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            // Not its end, which it tells.
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Internal { reason: "a query has ended without its last batch".to_owned() })
            }
        };
        let batch = delivered.and_then(|batch| batch.map(|batch| of_schema(&self.schema, &batch)).transpose());
        if !matches!(batch, Ok(Some(_))) {
            running.batches = None;
            running.has_failed = batch.is_err();
        }
        batch.map(Some)
    }
}

/// Returns the same columns with `schema`, which has other metadata.
fn of_schema(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch> {
    batch::of_columns(Arc::clone(schema), batch.columns().to_vec(), batch.num_rows())
        .map_err(|error| Error::Internal { reason: error.to_string() })
}

impl Iterator for QueryStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.poll(Duration::from_secs(60)) {
                Ok(Some(batch)) => return batch.map(Ok),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Delivers the batches of a query and its end, until the consumer wants no more.
async fn deliver(
    mut batches: SendableRecordBatchStream,
    sender: &SyncSender<Delivered>,
    running: &Running,
) -> Result<()> {
    while let Some(batch) = batches.next().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                // The sides of a join share an error; it is ours alone once they are dropped.
                drop(batches);
                return Err(running.failed(error));
            }
        };
        if !hand_over(sender, Ok(Some(batch))).await {
            return Ok(());
        }
    }
    hand_over(sender, Ok(None)).await;
    Ok(())
}

/// Waits until the consumer has room for what is delivered; returns `false` if the consumer is gone.
async fn hand_over(sender: &SyncSender<Delivered>, delivered: Delivered) -> bool {
    let sender = sender.clone();
    tokio::task::spawn_blocking(move || sender.send(delivered).is_ok()).await.unwrap_or(false)
}

impl std::fmt::Debug for QueryStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryStream").field("schema", &self.schema).finish_non_exhaustive()
    }
}
