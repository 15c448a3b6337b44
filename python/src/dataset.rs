//! `forebay._lib.Dataset`: rows and columns of a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use forebay::{
    Dataset, EpochReader, Io, Metrics, OpenRequest, OrderSettings, Progress, Selection, Snapshot, StreamOptions,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyTuple};
use pyo3_arrow::error::PyArrowResult;
use pyo3_arrow::ffi::to_schema_pycapsule;

use crate::batch::PyBatch;
use crate::error::to_py;
use crate::reader::PyReader;
use crate::runtime::wait;

/// A dataset: immutable, lazy.
#[pyclass(name = "Dataset", module = "forebay._lib", frozen)]
pub(crate) struct PyDataset {
    dataset: Dataset,
}

/// Seed, shuffle bytes, and lanes and window rows where they are given.
type ShuffleArguments = (u64, u64, Option<u32>, Option<u64>);

#[pymethods]
impl PyDataset {
    #[staticmethod]
    fn open(
        py: Python<'_>,
        sources: Vec<String>,
        split: String,
        storage_options: BTreeMap<String, String>,
        on_progress: Py<PyAny>,
    ) -> PyResult<Self> {
        let request = OpenRequest { sources, split: Some(split), storage_options };
        let io = Io::current().map_err(|error| to_py(&error))?;
        let progress = Arc::new(Progress::default());
        let opening = {
            let progress = Arc::clone(&progress);
            async move { Dataset::open(request, &progress).await }
        };
        Ok(Self { dataset: wait(py, &io, &progress, Some(&on_progress), opening)? })
    }

    fn filter(&self, py: Python<'_>, sql: &str) -> PyResult<Self> {
        // Made once, which must not be under way in a fork: keep the GIL.
        Dataset::prepare_filters();
        let dataset = py.detach(|| self.dataset.filter(sql)).map_err(|error| to_py(&error))?;
        Ok(Self { dataset })
    }

    fn select_columns(&self, names: Vec<String>) -> PyResult<Self> {
        Ok(Self { dataset: self.dataset.select_columns(&names).map_err(|error| to_py(&error))? })
    }

    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.dataset.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    #[getter]
    fn column_types(&self) -> Vec<String> {
        self.dataset.schema().fields().iter().map(|field| field.data_type().to_string()).collect()
    }

    #[getter]
    fn num_objects(&self) -> usize {
        self.dataset.snapshot().num_objects()
    }

    /// Number of rows of the objects, kept or not.
    #[getter]
    fn num_rows_total(&self) -> u64 {
        self.dataset.snapshot().num_rows
    }

    /// Number of kept rows, if the filters have been evaluated.
    #[getter]
    fn num_rows_known(&self) -> Option<u64> {
        self.dataset.known_selection().map(|selection| selection.num_rows())
    }

    /// A batch of no rows.
    fn empty_batch(&self) -> PyBatch {
        PyBatch::new(RecordBatch::new_empty(Arc::clone(self.dataset.schema())))
    }

    /// What dates, times and durations count, by column: `D`, `s`, `ms`, `us` or `ns`.
    #[getter]
    fn units(&self) -> BTreeMap<String, &'static str> {
        let units = forebay::forms::units(self.dataset.schema().fields());
        units.into_iter().map(|(path, unit)| (path, unit.code())).collect()
    }

    #[getter]
    fn filters(&self) -> Vec<String> {
        self.dataset.filters().iter().map(|filter| filter.text().to_owned()).collect()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        &self.dataset.snapshot().fingerprint
    }

    /// Number of kept rows; evaluates the filters if that has not been done, within `memory_limit` if given.
    #[pyo3(signature = (on_progress, memory_limit=None))]
    fn num_rows(&self, py: Python<'_>, on_progress: Py<PyAny>, memory_limit: Option<u64>) -> PyResult<u64> {
        if let Some(selection) = self.dataset.known_selection() {
            return Ok(selection.num_rows());
        }
        // Connecting takes process-wide locks, which must not be held across a fork: keep the GIL.
        let connections = self.dataset.connect(&Arc::new(Metrics::default())).map_err(|error| to_py(&error))?;
        let io = Io::current().map_err(|error| to_py(&error))?;
        let progress = Arc::new(Progress::default());
        let selecting = {
            let (dataset, progress) = (self.dataset.clone(), Arc::clone(&progress));
            async move { dataset.selection(connections, memory_limit, &progress).await }
        };
        Ok(wait(py, &io, &progress, Some(&on_progress), selecting)?.num_rows())
    }

    /// Facts of `Dataset.explain`, of a dataset whose selection is known.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let selection = self.dataset.known_selection().ok_or_else(unknown_selection)?;
        let facts = py.detach(|| self.dataset.explain(&selection)).map_err(|error| to_py(&error))?;
        let dict = PyDict::new(py);
        dict.set_item("objects", facts.num_objects)?;
        dict.set_item("rows_total", facts.num_rows)?;
        dict.set_item("rows_kept", facts.num_kept)?;
        dict.set_item("row_groups_total", facts.num_row_groups)?;
        dict.set_item("row_groups_pruned", facts.selection.num_pruned)?;
        dict.set_item("row_groups_read", facts.selection.num_read)?;
        dict.set_item("row_groups_whole", facts.num_whole)?;
        dict.set_item("row_groups_partial", facts.num_partial)?;
        dict.set_item("row_groups_empty", facts.num_empty)?;
        dict.set_item("selection_bytes", facts.selection.bytes)?;
        dict.set_item("selection_requests", facts.selection.requests)?;
        dict.set_item("payload_bytes", facts.payload_bytes)?;
        dict.set_item("payload_requests", facts.payload_requests)?;
        Ok(dict)
    }

    /// A reader of a dataset whose selection is known; unshuffled without `shuffle`.
    fn reader(
        &self,
        py: Python<'_>,
        shuffle: Option<ShuffleArguments>,
        memory_limit: u64,
        num_threads: Option<usize>,
    ) -> PyResult<PyReader> {
        let selection = self.dataset.known_selection().ok_or_else(unknown_selection)?;
        let settings = match shuffle {
            None => OrderSettings::Sequential,
            Some((seed, shuffle_bytes, num_lanes, window_rows)) => {
                OrderSettings::Shuffled { seed, shuffle_bytes, num_lanes, window_rows }
            }
        };
        let reader = py
            .detach(|| EpochReader::try_new(&self.dataset, selection, settings, memory_limit))
            .map_err(|error| to_py(&error))?;
        let num_threads = num_threads.unwrap_or_else(forebay::config::num_threads);
        Ok(PyReader::new(reader, StreamOptions { memory_limit, num_threads }))
    }

    /// Opens what `__reduce__` took apart: the same objects, columns, filters and kept rows.
    #[staticmethod]
    fn reopen(
        py: Python<'_>,
        snapshot: String,
        columns: Vec<String>,
        filters: Vec<String>,
        selection: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let io = Io::current().map_err(|error| to_py(&error))?;
        let progress = Arc::new(Progress::default());
        let opening = {
            let progress = Arc::clone(&progress);
            async move { Snapshot::reopen(&snapshot, &progress).await }
        };
        let snapshot = Arc::new(wait(py, &io, &progress, None, opening)?);
        if !filters.is_empty() {
            Dataset::prepare_filters();
        }
        let rebuild = || {
            let mut dataset = Dataset::new(Arc::clone(&snapshot));
            for filter in &filters {
                dataset = dataset.filter(filter)?;
            }
            dataset = dataset.select_columns(&columns)?;
            if let Some(selection) = selection.and_then(|bytes| Selection::from_bytes(&snapshot, &bytes)) {
                dataset.adopt_selection(selection);
            }
            Ok(dataset)
        };
        Ok(Self { dataset: py.detach(rebuild).map_err(|error: forebay::Error| to_py(&error))? })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let snapshot = self.dataset.snapshot();
        let selection = self.dataset.known_selection().map(|known| PyBytes::new(py, &known.to_bytes(snapshot)));
        let arguments = (snapshot.to_json(), self.column_names(), self.filters(), selection).into_pyobject(py)?;
        Ok((py.get_type::<Self>().getattr("reopen")?, arguments))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.dataset.schema().as_ref())
    }
}

fn unknown_selection() -> PyErr {
    to_py(&forebay::Error::Internal { reason: "the selection was not evaluated".into() })
}

/// Names of the splits of the sources, in order.
#[pyfunction]
pub(crate) fn list_splits(
    py: Python<'_>,
    sources: Vec<String>,
    storage_options: BTreeMap<String, String>,
    on_progress: Py<PyAny>,
) -> PyResult<Vec<String>> {
    let request = OpenRequest { sources, split: None, storage_options };
    let io = Io::current().map_err(|error| to_py(&error))?;
    let progress = Arc::new(Progress::default());
    wait(py, &io, &progress, Some(&on_progress), async move { Snapshot::splits(&request).await })
}
