//! `forebay._lib.Reader`: a dataset made ready to deliver epochs.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::plan::{EpochPlan, Hole, Order, Remainder, Share, Span};
use forebay::{BatchStream, EpochReader, Error, Finish, FinishSettings, StreamOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::to_py;
use crate::forms::PyForms;
use crate::stream::PyStream;

/// A loader's selection, spans and resolved order.
#[pyclass(name = "Reader", module = "forebay._lib", frozen)]
pub(crate) struct PyReader {
    reader: Arc<EpochReader>,
    options: StreamOptions,
}

impl PyReader {
    pub(crate) fn new(reader: EpochReader, options: StreamOptions) -> Self {
        Self { reader: Arc::new(reader), options }
    }

    /// Returns what to make of batches, given settings in JSON.
    fn finish(&self, settings: Option<&str>) -> PyResult<Option<Finish>> {
        let Some(settings) = settings else { return Ok(None) };
        let settings: FinishSettings =
            serde_json::from_str(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Finish::try_new(self.reader.schema(), &settings).map(Some).map_err(|error| to_py(&error))
    }
}

/// The part of an epoch that one reader delivers, as passed from Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ShareArguments {
    rank: u32,
    world_size: u32,
    batch_size: u32,
    position: u64,
    remainder: String,
    drop_last: bool,
    worker: u32,
    num_workers: u32,
    /// The position to stop at, if before the end of the epoch.
    #[pyo3(default)]
    end: Option<u64>,
    /// Whether batches may be shorter so as to end where parts of the data end.
    #[pyo3(default)]
    follows_parts: bool,
    /// Parts of the epoch that could not be read earlier.
    #[pyo3(default)]
    holes: Vec<HoleArguments>,
}

impl ShareArguments {
    fn share(&self, num_rows: u64) -> PyResult<Share> {
        let remainder = match self.remainder.as_str() {
            "drop" => Remainder::Drop,
            "pad" => Remainder::Pad,
            "keep" => Remainder::Keep,
            other => {
                let text = format!("remainder: expected 'drop', 'pad' or 'keep', got `{other}`");
                return Err(PyValueError::new_err(text));
            }
        };
        Share::try_new(Share {
            rank: self.rank,
            world_size: self.world_size,
            batch_rows: self.batch_size,
            from: self.position,
            num_rows: self.end.map_or(num_rows, |end| end.min(num_rows)),
            remainder,
            drop_last: self.drop_last,
            worker: self.worker,
            num_workers: self.num_workers,
        })
        .map_err(|error| to_py(&Error::Setting { name: error.name, reason: error.reason }))
    }
}

/// Rows that could not be read, as listed in a state.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct HoleArguments {
    span: u32,
    start: u32,
    end: u32,
    object: String,
    row_group: usize,
    cause: String,
}

impl From<HoleArguments> for Hole {
    fn from(hole: HoleArguments) -> Self {
        let HoleArguments { span, start, end, object, row_group, cause } = hole;
        Self { span, start, end, object, row_group, cause }
    }
}

#[pymethods]
impl PyReader {
    #[getter]
    fn num_rows(&self) -> u64 {
        self.reader.num_rows()
    }

    /// The tokens that repositories of datasets on the Hub were opened with; see `Dataset.hub_tokens`.
    #[getter]
    fn hub_tokens(&self) -> BTreeMap<&str, &str> {
        self.reader.dataset().snapshot().hub_tokens()
    }

    /// Number of batches of the rank, over all workers, from the share's position on.
    fn num_batches(&self, share: ShareArguments) -> PyResult<u64> {
        Ok(share.share(self.reader.num_rows())?.num_batches())
    }

    /// Number of rows of the epoch that no rank delivers.
    fn num_dropped(&self, share: ShareArguments) -> PyResult<u64> {
        Ok(share.share(self.reader.num_rows())?.num_dropped())
    }

    /// The largest row group that is read whole for lack of a page index and takes much of the memory limit: its
    /// object, its number, the bytes it takes, and the number of such row groups.
    fn unindexed(&self) -> Option<(&str, usize, u64, u64)> {
        let found = self.reader.unindexed()?;
        Some((&found.url, found.row_group, found.needed_bytes, found.num_row_groups))
    }

    /// A row group that is read in parts, of which each fetches bytes of the others again: its object, its number, the
    /// number of parts, the bytes that they fetch and those that are wanted, and those of dictionaries fetched again.
    fn refetched(&self) -> Option<(&str, usize, usize, u64, u64, u64)> {
        let found = self.reader.refetched()?;
        let (fetched, wanted) = (found.fetched_bytes, found.wanted_bytes);
        Some((&found.url, found.row_group, found.num_parts, fetched, wanted, found.dictionary_bytes))
    }

    /// The shuffle if it leaves rows near their neighbours: the rows of its window and of a span, the bytes to shuffle
    /// within, and those that would be needed.
    fn coarse(&self) -> Option<(u64, u64, u64, u64)> {
        let found = self.reader.coarse()?;
        Some((found.window_rows, found.span_rows, found.shuffle_bytes, found.needed_bytes))
    }

    /// Batch size for callers that did not choose one.
    #[getter]
    fn fitting_batch_rows(&self) -> u32 {
        self.reader.fitting_batch_rows()
    }

    fn order<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        if let Order::Shuffled { seed, num_lanes, window_rows } = self.reader.order() {
            dict.set_item("seed", seed)?;
            dict.set_item("num_lanes", num_lanes)?;
            dict.set_item("window_rows", window_rows)?;
        }
        Ok(dict)
    }

    /// The forms that columns take in batches for a library; raises for the first column without one, or without the
    /// requested one. `finish` describes, in JSON, how batches are transformed before that.
    #[pyo3(signature = (requests, target, finish=None))]
    fn forms(
        &self,
        py: Python<'_>,
        requests: BTreeMap<String, String>,
        target: &str,
        finish: Option<&str>,
    ) -> PyResult<PyForms> {
        let finish = self.finish(finish)?;
        py.detach(|| PyForms::choose(&self.reader, &requests, target, finish.as_ref()))
    }

    fn state(&self, epoch: u64, position: u64) -> String {
        self.reader.state(epoch, position).to_json()
    }

    /// Checks a state in JSON; returns its epoch and position.
    fn read_state(&self, json: &str) -> PyResult<(u64, u64)> {
        let state = self.reader.read_state(json).map_err(|error| to_py(&error))?;
        Ok((state.epoch, state.position))
    }

    #[pyo3(signature = (epoch, share, finish=None))]
    fn stream(
        &self,
        py: Python<'_>,
        epoch: u64,
        mut share: ShareArguments,
        finish: Option<&str>,
    ) -> PyResult<PyStream> {
        let finish = self.finish(finish)?.map(Arc::new);
        let holes = std::mem::take(&mut share.holes).into_iter().map(Hole::from).collect();
        let options = StreamOptions { follows_parts: share.follows_parts, ..self.options };
        let share = share.share(self.reader.num_rows())?;
        py.detach(|| self.reader.plan(epoch));
        // Connecting initializes process-wide state, which a fork must not find half done: keep the GIL.
        let stream = BatchStream::resume(&self.reader, epoch, share, options, holes, finish);
        let stream = stream.map_err(|error| to_py(&error))?;
        Ok(PyStream::new(stream, Arc::clone(self.reader.schema()), self.reader.brings_functions(), self.options))
    }
}

/// Returns the number of bytes that a text such as `2 GiB` says; `None` if it says none.
#[pyfunction]
pub(crate) fn bytes_of(text: &str) -> Option<u64> {
    forebay::bytes_of(text)
}

/// Returns the seconds that the value of a storage option says, such as `300`, `30 seconds` or `1m 30s`.
#[pyfunction]
pub(crate) fn seconds_of(name: &str, text: &str) -> PyResult<f64> {
    forebay::duration(name, text).map(|time| time.as_secs_f64()).map_err(|error| to_py(&error))
}

/// Returns the order of an epoch as (span, kept row) pairs; for tests and tools, O(rows).
#[pyfunction]
#[pyo3(signature = (kept_rows, epoch, *, seed=None, num_lanes=1, window_rows=1))]
pub(crate) fn plan_order(
    py: Python<'_>,
    kept_rows: Vec<u32>,
    epoch: u64,
    seed: Option<u64>,
    num_lanes: u32,
    window_rows: u64,
) -> Vec<(u32, u32)> {
    py.detach(|| {
        let spans: Vec<Span> =
            kept_rows.iter().map(|&num_kept| Span { row_group: 0, start: 0, end: num_kept, num_kept }).collect();
        let order = seed.map_or(Order::Sequential, |seed| Order::Shuffled { seed, num_lanes, window_rows });
        let plan = EpochPlan::new(spans.into(), order, epoch);
        let num_rows = usize::try_from(plan.num_rows()).unwrap_or(usize::MAX);
        let (mut rows, mut finished) = (Vec::with_capacity(num_rows), Vec::new());
        plan.walk(0).visit(0, 1, num_rows, &mut rows, &mut finished);
        rows.iter().map(|row| (row.piece.span, plan.piece(row.piece).kept.start + row.row)).collect()
    })
}
