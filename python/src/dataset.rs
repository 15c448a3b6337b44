//! `forebay._lib.Dataset`: rows and columns of a snapshot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, OnceLock};

use arrow_array::RecordBatch;
use forebay::{
    Answer, Audience, Connection, Dataset, EpochReader, Error, FileRequest, FilesRequest, Filter, Io, Metrics,
    OpenRequest, OrderSettings, Progress, Reading, RowAccess, Selection, Snapshot, StreamOptions, Subset, ipc,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyTuple};
use pyo3_arrow::error::PyArrowResult;
use pyo3_arrow::ffi::to_schema_pycapsule;

use crate::batch::PyBatch;
use crate::datafusion::table_capsule;
use crate::error::to_py;
use crate::explain::explanation_dict;
use crate::reader::PyReader;
use crate::runtime::{wait, wait_and};
use crate::selection::PySelection;
use crate::sql::{self, PyFunction, Recipe};
use crate::weights::PyWeights;

/// A dataset: immutable, lazy.
#[pyclass(name = "Dataset", module = "forebay._lib", frozen)]
pub(crate) struct PyDataset {
    dataset: Dataset,
    /// How a query made the dataset, if one did.
    recipe: Option<Arc<Recipe>>,
    /// Created when rows are first requested by number.
    access: OnceLock<RowAccess>,
}

impl PyDataset {
    pub(crate) fn plain(dataset: Dataset) -> Self {
        Self::made(dataset, None)
    }

    fn made(dataset: Dataset, recipe: Option<Arc<Recipe>>) -> Self {
        Self { dataset, recipe, access: OnceLock::new() }
    }

    /// Returns access to rows by number, for a dataset whose selection is known.
    fn access(&self) -> PyResult<&RowAccess> {
        let answer = self.dataset.known_answer().ok_or_else(unknown_selection)?;
        let memory_bytes = forebay::config::SELECTION_MEMORY_BYTES;
        Ok(self.access.get_or_init(|| RowAccess::new(&self.dataset, answer, memory_bytes)))
    }

    pub(crate) fn dataset(&self) -> &Dataset {
        &self.dataset
    }
}

/// An answer's selection, order and kept values.
type AnswerBytes = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

/// URI, size, entity tag.
type FileArguments = (String, Option<u64>, Option<String>);

/// A split's name and its objects.
type SplitArguments = (String, Vec<FileArguments>);

/// Seed, shuffle bytes, and optionally lanes and window rows.
type ShuffleArguments = (u64, u64, Option<u32>, Option<u64>);

/// Waits for a dataset to open. What filters share is initialized while the store answers.
fn opened<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
    py: Python<'_>,
    on_progress: &Py<PyAny>,
    open: impl FnOnce(Arc<Progress>) -> F,
) -> PyResult<T> {
    let io = Io::current().map_err(|error| to_py(&error))?;
    let progress = Arc::new(Progress::default());
    let opening = open(Arc::clone(&progress));
    wait_and(py, &io, &progress, Some(on_progress), opening, Dataset::prepare)
}

#[pymethods]
impl PyDataset {
    #[staticmethod]
    fn open(
        py: Python<'_>,
        sources: Vec<String>,
        split: String,
        storage_options: BTreeMap<String, String>,
        hub_options: BTreeMap<String, String>,
        on_progress: Py<PyAny>,
    ) -> PyResult<Self> {
        let request = OpenRequest { sources, split: Some(split), storage_options, hub_options };
        let opening = |progress: Arc<Progress>| async move { Dataset::open(request, &progress).await };
        Ok(Self::plain(opened(py, &on_progress, opening)?))
    }

    /// Opens all splits of the sources, in order, with their names; lists the sources once.
    #[staticmethod]
    fn open_splits(
        py: Python<'_>,
        sources: Vec<String>,
        storage_options: BTreeMap<String, String>,
        hub_options: BTreeMap<String, String>,
        on_progress: Py<PyAny>,
    ) -> PyResult<Vec<(String, Self)>> {
        let request = OpenRequest { sources, split: None, storage_options, hub_options };
        let opening = |progress: Arc<Progress>| async move { Snapshot::open_splits(request, &progress).await };
        let splits = opened(py, &on_progress, opening)?;
        Ok(splits.into_iter().map(|(name, of)| (name, Self::plain(Dataset::new(Arc::new(of))))).collect())
    }

    /// Opens objects that were found elsewhere: the names of the datasets to open, and the splits of each; every object
    /// with its size and entity tag, if known.
    #[staticmethod]
    fn open_files(
        py: Python<'_>,
        splits: Vec<(String, Vec<SplitArguments>)>,
        commit: Option<String>,
        storage_options: BTreeMap<String, String>,
        hub_options: BTreeMap<String, String>,
        on_progress: Py<PyAny>,
    ) -> PyResult<Vec<(String, Self)>> {
        let file = |(uri, size_bytes, e_tag): FileArguments| FileRequest { uri, size_bytes, e_tag };
        let part = |(name, files): SplitArguments| (name, files.into_iter().map(file).collect());
        let splits = splits.into_iter().map(|(name, parts)| (name, parts.into_iter().map(part).collect())).collect();
        let request = FilesRequest { splits, commit, storage_options, hub_options };
        let opening = |progress: Arc<Progress>| async move { Snapshot::open_files(request, &progress).await };
        let splits = opened(py, &on_progress, opening)?;
        Ok(splits.into_iter().map(|(name, of)| (name, Self::plain(Dataset::new(Arc::new(of))))).collect())
    }

    /// Number of rows of each split that the dataset was opened from, in order.
    #[getter]
    fn parts(&self) -> Vec<(String, u64)> {
        self.dataset.snapshot().parts.clone()
    }

    /// The commit at which the repository was opened.
    #[getter]
    fn commit(&self) -> Option<String> {
        self.dataset.snapshot().commit.clone()
    }

    /// The tokens that repositories of datasets on the Hub were opened with, by name; an empty one means none.
    #[getter]
    fn hub_tokens(&self) -> BTreeMap<&str, &str> {
        self.dataset.snapshot().hub_tokens()
    }

    /// The rows whose numbers are in `ranges`, which are ascending and neither overlap nor touch.
    fn select_ranges(&self, ranges: Vec<(u64, u64)>) -> PyResult<Self> {
        let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
        self.restricted(self.dataset.select_ranges(&ranges))
    }

    /// What a user may want to know about how it was opened.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.dataset.snapshot().notes.clone()
    }

    #[pyo3(signature = (sql, parameters=BTreeMap::new()))]
    fn filter(this: &Bound<'_, Self>, sql: &str, parameters: BTreeMap<String, Py<PyAny>>) -> PyResult<Self> {
        // Initialized once: keep the GIL, so that no fork finds it half done.
        Dataset::prepare();
        let Self { dataset, recipe, .. } = this.get();
        let values = sql::values(this.py(), &parameters)?;
        let filtered = this.py().detach(|| dataset.filter_with(sql, values)).map_err(|error| to_py(&error))?;
        // The text that `reopen` takes has neither parameter values nor class numbers (classes may be renamed).
        let is_text = filtered.filters().iter().all(Filter::is_all_in_its_text);
        if recipe.is_none() && is_text {
            return Ok(Self::plain(filtered));
        }
        let recipe = Recipe::try_new(this, "filter", (sql, parameters))?;
        Ok(Self::made(filtered, Some(Arc::new(recipe))))
    }

    /// The rows that a query keeps, with the columns it selects.
    fn sql(
        this: &Bound<'_, Self>,
        text: String,
        parameters: BTreeMap<String, Py<PyAny>>,
        tables: BTreeMap<String, Py<PyAny>>,
        functions: Vec<Py<PyFunction>>,
    ) -> PyResult<Self> {
        Dataset::prepare();
        let (py, base) = (this.py(), this.get());
        let request = sql::request(py, &text, &parameters, &tables, &functions)?;
        let dataset = py.detach(|| base.dataset.sql(&request)).map_err(|error| to_py(&error))?;
        let recipe = Recipe::try_new(this, "sql", (text, parameters, tables, functions))?;
        Ok(Self::made(dataset, Some(Arc::new(recipe))))
    }

    /// The rows of any query: a `Dataset` if they are rows of this one, `Rows` otherwise.
    fn query(
        &self,
        py: Python<'_>,
        text: &str,
        parameters: BTreeMap<String, Py<PyAny>>,
        tables: BTreeMap<String, Py<PyAny>>,
        functions: Vec<Py<PyFunction>>,
        memory_limit: u64,
    ) -> PyResult<Py<PyAny>> {
        Dataset::prepare();
        let request = sql::request(py, text, &parameters, &tables, &functions)?;
        let rows = py.detach(|| self.dataset.query_rows(&request, memory_limit)).map_err(|error| to_py(&error))?;
        sql::rows_to_py(py, rows)
    }

    fn select_columns(&self, names: Vec<String>) -> PyResult<Self> {
        let dataset = self.dataset.select_columns(&names).map_err(|error| to_py(&error))?;
        Ok(Self::made(dataset, self.recipe.clone()))
    }

    /// The dataset with columns renamed, given new names by old names.
    fn rename_columns(this: &Bound<'_, Self>, names: BTreeMap<String, String>) -> PyResult<Self> {
        let dataset = this.get().dataset.rename_columns(&names).map_err(|error| to_py(&error))?;
        let recipe = Recipe::try_new(this, "rename_columns", (names,))?;
        Ok(Self::made(dataset, Some(Arc::new(recipe))))
    }

    /// The dataset with other Hugging Face features, given as a JSON object by column.
    fn with_features(&self, features: &str) -> PyResult<Self> {
        let dataset = self.dataset.with_features(features).map_err(|error| to_py(&error))?;
        Ok(Self::made(dataset, self.recipe.clone()))
    }

    /// The Hugging Face features as a JSON object, as far as they are known from the files or were given.
    #[getter]
    fn features(&self) -> Option<&str> {
        self.dataset.features()
    }

    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.dataset.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    #[getter]
    fn column_types(&self) -> Vec<String> {
        self.dataset.schema().fields().iter().map(|field| field.data_type().to_string()).collect()
    }

    /// Columns that some object stores as a type other than the dataset's.
    #[getter]
    fn mixed_columns(&self) -> Vec<String> {
        self.dataset.snapshot().mixed_columns()
    }

    #[getter]
    fn num_objects(&self) -> usize {
        self.dataset.snapshot().num_objects()
    }

    /// Number of rows in the objects, kept or not.
    #[getter]
    fn num_rows_total(&self) -> u64 {
        self.dataset.snapshot().num_rows
    }

    /// Number of kept rows, if the filters have been evaluated.
    #[getter]
    fn num_rows_known(&self) -> Option<u64> {
        self.dataset.known_selection().map(|selection| selection.num_rows())
    }

    /// Whether the kept rows are known, and in another order than the dataset's.
    #[getter]
    fn has_own_order(&self) -> bool {
        self.dataset.known_answer().is_some_and(|answer| answer.order().is_some())
    }

    /// A batch without rows.
    fn empty_batch(&self) -> PyBatch {
        PyBatch::new(RecordBatch::new_empty(Arc::clone(self.dataset.schema())))
    }

    /// Units of dates, times and durations, by column: `D`, `s`, `ms`, `us` or `ns`.
    #[getter]
    fn units(&self) -> BTreeMap<String, &'static str> {
        let units = forebay::forms::units(self.dataset.schema().fields());
        units.into_iter().map(|(path, unit)| (path, unit.code())).collect()
    }

    #[getter]
    fn filters(&self) -> Vec<String> {
        self.dataset.filter_texts()
    }

    /// Descriptions of the restrictions on the dataset's rows.
    #[getter]
    fn restrictions(&self) -> Vec<String> {
        self.dataset.restriction_texts()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        &self.dataset.snapshot().fingerprint
    }

    /// Number of kept rows; evaluates the filters if that has not been done, within `memory_limit` if given. `reading`
    /// is "later", or the order in which one reader is about to read all rows: "in order" or "shuffled".
    #[pyo3(signature = (on_progress, memory_limit=None, reading="later"))]
    fn num_rows(
        &self,
        py: Python<'_>,
        on_progress: Py<PyAny>,
        memory_limit: Option<u64>,
        reading: &str,
    ) -> PyResult<u64> {
        let reading = match reading {
            "later" => Reading::Later,
            "in order" => Reading::InOrder,
            "shuffled" => Reading::Shuffled,
            other => {
                let text = format!("reading: expected 'later', 'in order' or 'shuffled', got `{other}`");
                return Err(PyValueError::new_err(text));
            }
        };
        if let Some(selection) = self.dataset.known_selection() {
            return Ok(selection.num_rows());
        }
        let dataset = self.dataset.clone();
        let answer = self.select_by(py, on_progress, memory_limit, async move |connections, progress| {
            dataset.answer(connections, memory_limit, reading, &progress).await
        })?;
        Ok(answer.num_rows())
    }

    /// The part of the dataset that is known once the first kept rows, at least `num_rows`, are found; its selection
    /// has only these. `None` if there is no such part, or if the whole selection is already known.
    fn beginning(&self, py: Python<'_>, num_rows: u64, on_progress: Py<PyAny>) -> PyResult<Option<Self>> {
        let dataset = self.dataset.clone();
        let beginning = self.select_by(py, on_progress, None, async move |connections, progress| {
            dataset.beginning(num_rows, connections, None, &progress).await
        })?;
        Ok(beginning.map(|beginning| Self::made(beginning, self.recipe.clone())))
    }

    /// Facts for `Dataset.explain`, for a dataset whose selection is known.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let selection = self.dataset.known_selection().ok_or_else(unknown_selection)?;
        let facts = py.detach(|| self.dataset.explain(&selection)).map_err(|error| to_py(&error))?;
        explanation_dict(py, &facts)
    }

    /// What a user may want to know about how the selection was made.
    #[getter]
    fn selection_note(&self) -> Option<String> {
        self.dataset.known_selection().and_then(|selection| selection.note().map(str::to_owned))
    }

    /// The selected rows of a dataset whose selection is known.
    fn selection(&self) -> PyResult<PySelection> {
        let selection = self.dataset.known_selection().ok_or_else(unknown_selection)?;
        Ok(PySelection::new(self.dataset.subset(selection)))
    }

    /// Keeps only rows that are also in the selection.
    fn select(&self, py: Python<'_>, selection: &PySelection) -> PyResult<Self> {
        self.restricted(py.detach(|| self.dataset.select(selection.subset())))
    }

    /// Keeps only rows that are also in `other`, which has the same objects and whose selection is known.
    fn select_rows_of(&self, other: &Self) -> PyResult<Self> {
        let selection = other.dataset.known_selection().ok_or_else(unknown_selection)?;
        self.restricted(self.dataset.select(&Subset::of_rows(other.dataset.snapshot(), selection)))
    }

    /// The rows at `indices`, in that order, for a dataset whose selection is known.
    fn select_rows(&self, py: Python<'_>, indices: Vec<i64>) -> PyResult<Self> {
        let access = self.access()?;
        self.restricted(py.detach(|| self.dataset.select_rows(access, &indices)))
    }

    /// The rows numbered from `start` to `stop`, for a dataset whose selection is known.
    fn select_slice(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<Self> {
        let access = self.access()?;
        self.restricted(py.detach(|| self.dataset.select_slice(access, start..stop)))
    }

    /// The row groups of one shard out of `num_shards`.
    fn shard(&self, index: u32, num_shards: u32) -> PyResult<Self> {
        self.restricted(self.dataset.shard(index, num_shards))
    }

    /// The rows at `indices`, repeated as often as they are named, for a dataset whose selection is known.
    fn gather(&self, py: Python<'_>, indices: Vec<i64>, memory_limit: u64) -> PyResult<PyBatch> {
        let access = self.access()?.with_memory(memory_limit);
        #[cfg(target_os = "linux")]
        crate::alloc::set_memory_limit(memory_limit);
        // Connecting initializes process-wide state, which a fork must not find half done: keep the GIL.
        let connections = self.dataset.connect(&Arc::new(Metrics::default())).map_err(|error| to_py(&error))?;
        let io = Io::current().map_err(|error| to_py(&error))?;
        let reading = async move { access.gather(&connections, &indices).await };
        wait(py, &io, &Arc::new(Progress::default()), None, reading).map(PyBatch::new)
    }

    /// A reader for a dataset whose selection is known; unshuffled without `shuffle`.
    fn reader(
        &self,
        py: Python<'_>,
        shuffle: Option<ShuffleArguments>,
        memory_limit: u64,
        num_threads: Option<usize>,
        max_skipped: Option<u64>,
        weights: Option<PyRef<'_, PyWeights>>,
    ) -> PyResult<PyReader> {
        let weights = weights.map(|weights| Arc::clone(&weights.weights));
        let answer = self.dataset.known_answer().ok_or_else(unknown_selection)?;
        let settings = match shuffle {
            None => OrderSettings::Sequential,
            Some((seed, shuffle_bytes, num_lanes, window_rows)) => {
                OrderSettings::Shuffled { seed, shuffle_bytes, num_lanes, window_rows, weights }
            }
        };
        let reader = py
            .detach(|| EpochReader::try_new(&self.dataset, answer, settings, memory_limit))
            .map_err(|error| to_py(&error))?;
        let num_threads = num_threads.unwrap_or_else(forebay::config::num_threads);
        Ok(PyReader::new(reader, StreamOptions { memory_limit, num_threads, max_skipped, follows_parts: false }))
    }

    /// Opens what `__reduce__` wrote: the same objects, columns, filters and kept rows.
    #[staticmethod]
    fn reopen(
        py: Python<'_>,
        snapshot: Vec<u8>,
        columns: Vec<String>,
        filters: Vec<String>,
        answer: Option<AnswerBytes>,
        restriction: Option<Vec<u8>>,
        features: Option<String>,
    ) -> PyResult<Self> {
        let given: Option<BTreeMap<String, String>> =
            py.import("forebay.secrets")?.call_method0("given_options")?.extract()?;
        let io = Io::current().map_err(|error| to_py(&error))?;
        let progress = Arc::new(Progress::default());
        let opening = {
            let progress = Arc::clone(&progress);
            async move { Snapshot::reopen(snapshot, given.as_ref(), &progress).await }
        };
        let snapshot = Arc::new(wait(py, &io, &progress, None, opening)?);
        if !filters.is_empty() {
            Dataset::prepare();
        }
        let rebuild = || {
            let mut dataset = Dataset::new(snapshot);
            if let Some(features) = &features {
                dataset = dataset.with_features(features)?;
            }
            for filter in &filters {
                dataset = dataset.filter(filter)?;
            }
            if let Some(bytes) = &restriction {
                dataset = dataset.restricted(bytes)?;
            }
            dataset.select_columns(&columns)
        };
        let this = Self::plain(py.detach(rebuild).map_err(|error: forebay::Error| to_py(&error))?);
        this.adopt(answer);
        Ok(this)
    }

    /// Repeats the method call that `__reduce__` recorded, with the resulting dataset's columns and answer.
    #[staticmethod]
    fn rebuild(
        base: &Bound<'_, Self>,
        method: &str,
        arguments: Bound<'_, PyTuple>,
        columns: Vec<String>,
        answer: Option<AnswerBytes>,
        restriction: Option<Vec<u8>>,
        features: Option<String>,
    ) -> PyResult<Self> {
        let whole = base.call_method1(method, arguments)?.cast_into::<Self>()?;
        let whole = whole.get();
        let mut this = whole.select_columns(columns)?;
        if let Some(bytes) = &restriction {
            this = this.restricted(this.dataset.restricted(bytes))?;
        }
        if let Some(features) = &features {
            this = this.with_features(features)?;
        }
        this.adopt(answer);
        Ok(this)
    }

    /// Returns itself: datasets are immutable, and a copy made by pickling would lack the secrets.
    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (snapshot, class) = (self.dataset.snapshot(), py.get_type::<Self>());
        let answer = self.dataset.known_answer().and_then(|answer| {
            let order = answer.order().map(|order| order.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<u8>>());
            let written = answer.attached().map(|rows| ipc::write(&rows.schema(), std::slice::from_ref(rows)));
            // Without values that cannot be written, the query is evaluated again.
            let attached = written.transpose().ok()?;
            let selection = answer.selection().to_bytes(snapshot);
            let bytes = |bytes: Vec<u8>| PyBytes::new(py, &bytes).unbind();
            Some((bytes(selection), order.map(bytes), attached.map(bytes)))
        });
        let restriction = self.dataset.restriction_bytes().map(|bytes| PyBytes::new(py, &bytes));
        let Some(recipe) = &self.recipe else {
            let has_secrets = py.import("forebay.secrets")?.call_method0("are_pickled")?.extract()?;
            let audience = if has_secrets { Audience::OurOwn } else { Audience::Strangers };
            let saved = snapshot.to_bytes(audience).map_err(|error| to_py(&error))?;
            let saved = PyBytes::new(py, &saved);
            let features = self.dataset.given_features();
            let arguments = (saved, self.column_names(), self.filters(), answer, restriction, features);
            let arguments = arguments.into_pyobject(py)?;
            return Ok((class.getattr("reopen")?, arguments));
        };
        let Recipe { base, method, arguments } = recipe.as_ref();
        let (names, features) = (self.column_names(), self.features());
        let arguments = (base, *method, arguments, names, answer, restriction, features);
        let arguments = arguments.into_pyobject(py)?;
        Ok((class.getattr("rebuild")?, arguments))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.dataset.schema().as_ref())
    }

    /// The rows as a `datafusion` table, for the `datafusion` version that this library is built with.
    fn __datafusion_table_provider__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        // Filters and connections initialize process-wide state, which a fork must not find half done: keep the GIL.
        Dataset::prepare();
        self.dataset.connect(&Arc::new(Metrics::default())).map_err(|error| to_py(&error))?;
        table_capsule(py, self.dataset.table_provider())
    }
}

impl PyDataset {
    /// Waits while filters are evaluated, in memory that the following stream takes over.
    fn select_by<T, F>(
        &self,
        py: Python<'_>,
        on_progress: Py<PyAny>,
        memory_limit: Option<u64>,
        select: impl FnOnce(Vec<Connection>, Arc<Progress>) -> F,
    ) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, forebay::Error>> + Send + 'static,
    {
        // Connecting initializes process-wide state, which a fork must not find half done: keep the GIL.
        let connections = self.dataset.connect(&Arc::new(Metrics::default())).map_err(|error| to_py(&error))?;
        let io = Io::current().map_err(|error| to_py(&error))?;
        let progress = Arc::new(Progress::default());
        #[cfg(target_os = "linux")]
        let _memory =
            crate::kept::Kept::begin(forebay::config::SELECTION_MEMORY_BYTES.min(memory_limit.unwrap_or(u64::MAX)));
        #[cfg(not(target_os = "linux"))]
        let _ = memory_limit;
        let selecting = select(connections, Arc::clone(&progress));
        wait(py, &io, &progress, Some(&on_progress), selecting)
    }

    /// Returns the same dataset with fewer rows.
    fn restricted(&self, dataset: Result<Dataset, forebay::Error>) -> PyResult<Self> {
        Ok(Self::made(dataset.map_err(|error| to_py(&error))?, self.recipe.clone()))
    }

    /// Takes the answer that `__reduce__` wrote.
    fn adopt(&self, answer: Option<AnswerBytes>) {
        let snapshot = self.dataset.snapshot();
        let read = |(selection, order, attached): AnswerBytes| {
            let selection = Arc::new(Selection::from_bytes(snapshot, &selection)?);
            let order = order.map(|bytes| {
                bytes.chunks_exact(8).filter_map(|row| row.try_into().ok()).map(u64::from_le_bytes).collect()
            });
            let attached = match attached {
                Some(bytes) => Some(ipc::read(&bytes).ok()?.1.into_iter().next()?),
                None => None,
            };
            Answer::try_new(selection, order, attached)
        };
        if let Some(answer) = answer.and_then(read) {
            self.dataset.adopt_answer(answer);
        }
    }
}

fn unknown_selection() -> PyErr {
    to_py(&forebay::Error::Internal { reason: "the selection was not evaluated".into() })
}

/// Writes a manifest of the objects of several datasets, each as a named split.
#[pyfunction]
pub(crate) fn save_manifest(
    py: Python<'_>,
    splits: Vec<(Option<String>, Py<PyDataset>)>,
    uri: String,
    storage_options: BTreeMap<String, String>,
) -> PyResult<()> {
    let snapshot = |of: &Py<PyDataset>| Arc::clone(of.get().dataset.snapshot());
    let splits: Vec<_> = splits.into_iter().map(|(name, of)| (name, snapshot(&of))).collect();
    let io = Io::current().map_err(|error| to_py(&error))?;
    let saving = async move { Snapshot::save_manifest(&splits, &uri, &storage_options).await };
    wait(py, &io, &Arc::new(Progress::default()), None, saving)
}

/// Refuses to read files of a folder that may be some that their table no longer has; `names` are those of all there.
#[pyfunction]
pub(crate) fn refuse_tables(folder: &str, names: Vec<OsString>, wanted: Vec<OsString>) -> PyResult<()> {
    // Names need not be Unicode.
    let text = |name: &OsString| name.to_string_lossy().into_owned();
    let (names, wanted): (Vec<String>, Vec<String>) =
        (names.iter().map(text).collect(), wanted.iter().map(text).collect());
    let refused = forebay::refuse_tables(folder, names.iter().map(String::as_str), wanted.iter().map(String::as_str));
    refused.map_err(|error| to_py(&error))
}
