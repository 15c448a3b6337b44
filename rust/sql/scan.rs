//! Reads a dataset for a query: the selection first, then the kept rows' columns, in dataset order.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::Schema;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::sample::Sample;
use crate::batch;
use crate::config;
use crate::dataset::{Answer, Dataset, Reading};
use crate::engine::floats;
use crate::error::{Error, Result};
use crate::io::{Io, unfinished};
use crate::metrics::{Metrics, Progress, Stage};
use crate::plan::Share;
use crate::reader::{EpochReader, OrderSettings};
use crate::snapshot::Snapshot;
use crate::stream::{BatchStream, StreamOptions};

/// Rows per batch if only their identities are needed.
const IDENTITIES_PER_BATCH: usize = 65_536;

/// What the scans of one query share.
#[derive(Debug)]
pub(super) struct Scanning {
    pub(super) memory_limit: u64,
    pub(super) num_threads: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) progress: Arc<Progress>,
    /// For a dataset with its own order: the numbers of its rows, in that order.
    pub(super) ordered: Mutex<Vec<u64>>,
}

impl Scanning {
    pub(super) fn new(memory_limit: u64, metrics: &Arc<Metrics>, progress: &Arc<Progress>) -> Self {
        Self {
            memory_limit,
            num_threads: config::num_threads(),
            metrics: Arc::clone(metrics),
            progress: Arc::clone(progress),
            ordered: Mutex::default(),
        }
    }

    /// Returns what identifies and orders the rows of a dataset: their numbers, or their positions in
    /// [`Self::ordered`].
    fn identities(&self, answer: &Answer, snapshot: &Snapshot) -> Box<dyn Iterator<Item = u64> + Send> {
        let numbers = answer.row_numbers(snapshot);
        if answer.order().is_none() {
            return numbers;
        }
        let mut ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        let first = ordered.len() as u64;
        ordered.extend(numbers);
        Box::new(first..ordered.len() as u64)
    }
}

/// Some rows of a scan.
pub(super) struct Scanned {
    pub(super) batch: RecordBatch,
    /// Their identities, if requested.
    pub(super) rows: Option<UInt64Array>,
}

/// Evaluates the selection of `dataset`, as far as its first `limit` rows require, and starts to read them.
pub(super) async fn open(
    dataset: Dataset,
    sample: Option<Sample>,
    scanning: Arc<Scanning>,
    with_rows: bool,
    limit: Option<u64>,
) -> Result<stream::BoxStream<'static, Result<Scanned>>> {
    let io = Io::current()?;
    let connections = dataset.connect(&scanning.metrics)?;
    let is_new = dataset.known_answer().is_none();
    // Requests are made on their own runtime.
    let answering = {
        let (dataset, scanning) = (dataset.clone(), Arc::clone(&scanning));
        io.spawn(async move {
            let (memory, progress) = (Some(scanning.memory_limit), &scanning.progress);
            let enough = limit.filter(|_| sample.is_none());
            if let Some(num_rows) = enough
                && let Some(beginning) = dataset.beginning(num_rows, connections.clone(), memory, progress).await?
            {
                return beginning.answer(connections, memory, Reading::Later, progress).await;
            }
            let reading = if sample.is_some() || limit.is_some() { Reading::Later } else { Reading::InOrder };
            dataset.answer(connections, memory, reading, progress).await
        })
    };
    let mut answer = answering.await.map_err(unfinished)??;
    if is_new {
        let report = answer.selection().report();
        scanning.metrics.add(Stage::Indexes, report.indexes);
        scanning.metrics.add(Stage::Predicates, report.predicates);
    }
    if let Some(sample) = sample {
        answer = Arc::new(
            answer
                .only(dataset.snapshot(), sample.of(answer.selection().row_numbers(dataset.snapshot())))
                .map_err(|error| Error::Internal { reason: error.to_string() })?,
        );
    }
    let identities = with_rows.then(|| scanning.identities(&answer, dataset.snapshot()));
    let num_rows = answer.num_rows().min(limit.unwrap_or(u64::MAX));
    if dataset.schema().fields().is_empty() {
        return Ok(identities_alone(num_rows, identities).boxed());
    }
    let reader = EpochReader::try_new(&dataset, answer, OrderSettings::Sequential, scanning.memory_limit)?;
    let share = Share::whole(num_rows, reader.fitting_batch_rows().min(config::QUERY_BATCH_ROWS));
    let options = StreamOptions {
        memory_limit: scanning.memory_limit,
        num_threads: scanning.num_threads,
        max_skipped: None,
        follows_parts: false,
    };
    let reading = BatchStream::start_with(&Arc::new(reader), 0, share, options, Vec::new(), Some(&scanning.metrics))?;
    Ok(batches(reading, identities).boxed())
}

fn batches(
    reading: BatchStream,
    identities: Option<Box<dyn Iterator<Item = u64> + Send>>,
) -> impl Stream<Item = Result<Scanned>> {
    stream::try_unfold((reading, identities), |(mut reading, mut identities)| async move {
        // The stream blocks its thread while it waits.
        let read = tokio::task::spawn_blocking(move || {
            let next = reading.next().transpose();
            (reading, next)
        });
        let (reading, next) = read.await.map_err(unfinished)?;
        let Some(batch) = next? else { return Ok(None) };
        let batch = floats::canonical_columns(&batch).map_err(|error| Error::Internal { reason: error.to_string() })?;
        let rows = identities.as_mut().map(|rows| UInt64Array::from_iter_values(rows.take(batch.num_rows())));
        Ok(Some((Scanned { batch, rows }, (reading, identities))))
    })
    .into_stream()
}

/// Delivers rows of which nothing is read.
fn identities_alone(
    num_rows: u64,
    mut identities: Option<Box<dyn Iterator<Item = u64> + Send>>,
) -> impl Stream<Item = Result<Scanned>> {
    let mut rest = usize::try_from(num_rows).unwrap_or(usize::MAX);
    stream::iter(std::iter::from_fn(move || {
        let num_rows = rest.min(IDENTITIES_PER_BATCH);
        rest -= num_rows;
        let batch = batch::of_columns(Arc::new(Schema::empty()), Vec::new(), num_rows);
        let rows = identities.as_mut().map(|rows| UInt64Array::from_iter_values(rows.take(num_rows)));
        (num_rows > 0).then(|| {
            let batch = batch.map_err(|error| Error::Internal { reason: error.to_string() })?;
            Ok(Scanned { batch, rows })
        })
    }))
}
