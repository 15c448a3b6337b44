//! [`Dataset`]: the wanted rows and columns of a snapshot. Immutable and lazy.

pub(crate) mod access;
pub(crate) mod answer;
mod explain;
pub(crate) mod outputs;
pub(crate) mod restrict;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use arrow_schema::{Schema, SchemaRef};
use datafusion::common::ScalarValue;
use tokio::sync::OnceCell;

pub use self::access::RowAccess;
pub use self::answer::Answer;
pub use self::explain::Explanation;
use self::outputs::{Origin, Outputs};
use self::restrict::Restriction;
use crate::config;
use crate::engine::unknown_column;
use crate::error::{Error, Result};
use crate::features;
use crate::metrics::{Metrics, Progress, Stage};
use crate::process::{self, LockOfProcess, OfProcess};
use crate::selection::{Filter, Limits, Payload, Selection, SelectionCache, Sought};
use crate::snapshot::{OpenRequest, Snapshot};
use crate::source::{Ahead, Connection};
use crate::sql::Query;

/// Rows and columns of a [`Snapshot`] that a query keeps, not yet read.
///
/// Every method returns a new dataset; clones are cheap and share the selection once it is known.
#[derive(Debug, Clone)]
pub struct Dataset {
    snapshot: Arc<Snapshot>,
    /// The origin of each column, in the order in which they are returned.
    origins: Arc<[Origin]>,
    /// The columns of the snapshot that are read.
    projection: Arc<[usize]>,
    /// How they become the dataset's columns, if that takes more than passing them on.
    outputs: Option<Arc<Outputs>>,
    schema: SchemaRef,
    /// The columns of the snapshot, with the features given for them.
    stored: SchemaRef,
    /// What made the columns, and so determines the meaning of filters over them: renamings, and queries that chose no
    /// rows by themselves.
    views: Arc<[String]>,
    filters: Arc<[Filter]>,
    restriction: Arc<Restriction>,
    /// The query that chooses and orders the rows, instead of the filters.
    query: Option<Arc<(Query, Self)>>,
    answer: Arc<Known>,
    /// Whether user-defined functions of a query may run as rows are read.
    brings_functions: bool,
}

/// An answer once it is known: evaluated by the process that made the dataset, or by one forked from it, in which an
/// evaluation that was in progress would never finish.
#[derive(Debug)]
struct Known {
    ours: OfProcess<()>,
    /// That of the process that made the dataset.
    first: Arc<OnceCell<Arc<Answer>>>,
    /// That of another process.
    forked: LockOfProcess<Arc<OnceCell<Arc<Answer>>>>,
    /// A copy of that, for the children of that process.
    inherited: OnceCell<Arc<Answer>>,
    /// What was read along with it, by the process that evaluated it.
    ahead: OfProcess<Mutex<Option<Arc<Ahead>>>>,
}

impl Default for Known {
    fn default() -> Self {
        let ahead = OfProcess::new(Mutex::default());
        let (ours, forked, inherited) = (OfProcess::new(()), LockOfProcess::new(), OnceCell::new());
        Self { ours, first: Arc::default(), forked, inherited, ahead }
    }
}

/// Whether one reader will read all kept rows as soon as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Unknown.
    Later,
    /// Yes, in the order of the dataset.
    InOrder,
    /// Yes, in another order.
    Shuffled,
}

impl Known {
    fn get(&self) -> Option<Arc<Answer>> {
        self.first.get().or_else(|| self.inherited.get()).cloned().or_else(|| self.cell().get().cloned())
    }

    /// Sets the answer, if it is not known yet.
    fn set(&self, answer: Arc<Answer>) {
        drop(self.cell().set(Arc::clone(&answer)));
        self.bequeath(answer);
    }

    /// Returns the answer; one of this process's threads evaluates it if it is not known yet.
    async fn get_or_evaluate(&self, evaluate: impl Future<Output = Result<Arc<Answer>>>) -> Result<Arc<Answer>> {
        let answer = Arc::clone(self.cell().get_or_try_init(|| evaluate).await?);
        self.bequeath(Arc::clone(&answer));
        Ok(answer)
    }

    /// Keeps a forked process's answer where its own children find it. Never waits: in those, one that their parent was
    /// about to keep is never kept.
    fn bequeath(&self, answer: Arc<Answer>) {
        if self.ours.get().is_none() {
            drop(self.inherited.set(answer));
        }
    }

    /// Returns the cell that this process may fill.
    fn cell(&self) -> Arc<OnceCell<Arc<Answer>>> {
        if self.ours.get().is_some() { Arc::clone(&self.first) } else { Arc::clone(&self.forked.lock()) }
    }
}

impl Dataset {
    /// Opens a dataset: lists its objects and reads their footers, with one suffix request each.
    ///
    /// # Errors
    ///
    /// Those of listing and reading, and errors for objects that are not Parquet or do not fit together.
    pub async fn open(request: OpenRequest, progress: &Progress) -> Result<Self> {
        Ok(Self::new(Arc::new(Snapshot::open(request, progress).await?)))
    }

    /// Returns all rows and columns of `snapshot`.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        let projection: Arc<[usize]> = (0..snapshot.schema.fields().len()).collect();
        let origins = projection.iter().map(|&column| Origin::Stored(column)).collect();
        let (schema, stored) = (Arc::clone(&snapshot.schema), Arc::clone(&snapshot.schema));
        let (filters, answer) = (Arc::new([]), Arc::default());
        Self {
            snapshot,
            origins,
            projection,
            outputs: None,
            schema,
            stored,
            views: Arc::new([]),
            filters,
            restriction: Arc::default(),
            query: None,
            answer,
            brings_functions: false,
        }
    }

    /// Initializes what all datasets and filters of a process share, and what [`prepare`](crate::prepare) does. Callers
    /// whose other threads may fork call it for the same reason.
    pub fn prepare() {
        process::prepare();
        Filter::prepare();
    }

    /// Keeps the rows for which the SQL expression `text` is true, among those kept so far.
    ///
    /// The expression is parsed and type-checked now, against all columns, selected or not; it is evaluated once, when
    /// first needed.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`], [`Error::UnknownColumn`], [`Error::NotBoolean`].
    pub fn filter(&self, text: &str) -> Result<Self> {
        self.filter_with(text, BTreeMap::new())
    }

    /// Like [`Self::filter`], with a value for each `$name` in the text.
    ///
    /// # Errors
    ///
    /// Those of [`Self::filter`].
    pub fn filter_with(&self, text: &str, parameters: BTreeMap<String, ScalarValue>) -> Result<Self> {
        if self.is_view() {
            return self.filter_query(text, parameters);
        }
        Ok(self.with_filters([Filter::parse_with(text, &parameters, &self.stored, &self.snapshot)?]))
    }

    /// Returns the dataset with other Hugging Face features: those of `text`, a JSON object by column.
    ///
    /// Features change no value and no type. Columns that are not named keep theirs.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for text that is not a JSON object.
    pub fn with_features(&self, text: &str) -> Result<Self> {
        let stored = if self.is_view() { Arc::clone(&self.stored) } else { features::replaced(&self.stored, text)? };
        let schema = features::replaced(&self.schema, text)?;
        let outputs = |_| Arc::new(Outputs::new(&self.origins, Arc::clone(&schema), &self.snapshot));
        let outputs = self.outputs.as_ref().map(outputs);
        Ok(Self { schema, stored, outputs, ..self.clone() })
    }

    /// Returns the columns' features as a JSON object, if they are known from a schema's metadata or were given.
    pub fn features(&self) -> Option<&str> {
        features::text_of(&self.schema)
    }

    /// Returns the features given for columns of the snapshot.
    pub fn given_features(&self) -> Option<&str> {
        features::text_of(&self.stored).filter(|_| self.stored != self.snapshot.schema)
    }

    /// Returns whether a query chose the columns, so that those of the snapshot are hidden.
    fn is_view(&self) -> bool {
        self.query.is_some() || self.outputs.is_some()
    }

    /// Keeps the rows for which a checked expression over the snapshot's columns is true.
    pub(crate) fn keep(&self, text: String, expr: datafusion::logical_expr::Expr) -> Result<Self> {
        Ok(self.with_filters([Filter::try_from_expr(text, expr, &self.snapshot)?]))
    }

    pub(crate) fn with_filters(&self, filters: impl IntoIterator<Item = Filter>) -> Self {
        let num_filters = self.filters.len();
        let filters: Arc<[Filter]> = self.filters.iter().cloned().chain(filters).collect();
        let answer = if filters.len() == num_filters { Arc::clone(&self.answer) } else { Arc::default() };
        Self { filters, answer, ..self.clone() }
    }

    /// Returns the dataset of the rows that `query` chooses from those of `base`.
    pub(crate) fn with_query(&self, query: Query, base: &Self) -> Self {
        let query = Some(Arc::new((query, base.clone())));
        let (views, filters) = (Arc::new([]), Arc::new([]));
        Self { query, views, filters, restriction: Arc::default(), answer: Arc::default(), ..self.clone() }
    }

    /// Records what made the columns. If each column is the snapshot's column of the same name, there is nothing to
    /// record.
    pub(crate) fn with_view(self, identity: String) -> Self {
        let views: Arc<[String]> = match self.is_of_stored_names() {
            true => Arc::new([]),
            false => self.views.iter().cloned().chain([identity]).collect(),
        };
        Self { views, ..self }
    }

    /// Returns whether every column is the snapshot's column of the same name.
    fn is_of_stored_names(&self) -> bool {
        let stored = self.snapshot.schema.fields();
        let mut columns = self.origins.iter().zip(self.schema.fields());
        columns.all(|(origin, field)| matches!(origin, Origin::Stored(index) if stored[*index].name() == field.name()))
    }

    /// Returns what made the columns and chose no rows by itself.
    pub(crate) fn views(&self) -> &[String] {
        &self.views
    }

    /// Records that a query has user-defined functions.
    pub(crate) fn with_functions(self) -> Self {
        Self { brings_functions: true, ..self }
    }

    /// Returns whether user-defined functions of a query may run as rows are read.
    pub fn brings_functions(&self) -> bool {
        self.brings_functions
    }

    /// Returns the dataset with other columns.
    pub(crate) fn with_columns(&self, origins: Vec<Origin>, schema: SchemaRef) -> Self {
        let origins: Arc<[Origin]> = origins.into();
        let outputs = Outputs::new(&origins, Arc::clone(&schema), &self.snapshot);
        let projection = Arc::clone(outputs.projection());
        Self { origins, projection, outputs: Some(Arc::new(outputs)), schema, ..self.clone() }
    }

    /// Returns only the columns numbered `columns`, in that order.
    pub(crate) fn project(&self, columns: &[usize]) -> Self {
        let known = features::spread(&self.schema);
        let fields: Vec<_> = columns.iter().map(|&column| Arc::clone(&known.fields()[column])).collect();
        let schema = features::collect(&Schema::new_with_metadata(fields, self.schema.metadata().clone()));
        let origins: Vec<Origin> = columns.iter().map(|&column| self.origins[column].clone()).collect();
        if self.outputs.is_some() {
            return self.with_columns(origins, schema);
        }
        let projection = columns.iter().map(|&column| self.projection[column]).collect();
        Self { origins: origins.into(), projection, schema, ..self.clone() }
    }

    /// Returns only the columns `names`, in that order. Does not change rows or their order.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownColumn`], and [`Error::Setting`] for a name given twice.
    pub fn select_columns(&self, names: &[String]) -> Result<Self> {
        let fields = self.schema.fields().iter().enumerate();
        let places: HashMap<&str, usize> = fields.map(|(place, field)| (field.name().as_str(), place)).collect();
        let mut taken = HashSet::with_capacity(names.len());
        let mut columns = Vec::with_capacity(names.len());
        for name in names {
            let column = places.get(name.as_str()).ok_or_else(|| unknown_column(name.clone(), name, &self.schema))?;
            if !taken.insert(*column) {
                return Err(Error::Setting { name: "columns", reason: format!("`{name}` is named twice") });
            }
            columns.push(*column);
        }
        Ok(self.project(&columns))
    }

    /// Returns the dataset with columns renamed according to `names`, from old names to new ones. Does not change rows,
    /// their order, or what is known about them.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownColumn`], and [`Error::Setting`] for a name that two columns would have, or that cannot pass
    /// through Arrow's C interface.
    pub fn rename_columns(&self, names: &BTreeMap<String, String>) -> Result<Self> {
        self.select_columns(&names.keys().cloned().collect::<Vec<_>>())?;
        let refused = |reason| Err(Error::Setting { name: "column_mapping", reason });
        if let Some(name) = names.values().find(|name| name.contains('\0')) {
            return refused(format!(
                "{name:?} cannot be the name of a column: Arrow's C interface would cut it off at the NUL"
            ));
        }
        let mut taken = HashSet::new();
        let known = features::spread(&self.schema);
        let mut fields = Vec::with_capacity(known.fields().len());
        for field in known.fields() {
            let name = names.get(field.name()).unwrap_or_else(|| field.name());
            if !taken.insert(name) {
                return refused(format!("`{name}` would be the name of two columns"));
            }
            fields.push(Arc::new(field.as_ref().clone().with_name(name)));
        }
        let schema = features::collect(&Schema::new_with_metadata(fields, self.schema.metadata().clone()));
        let renamed: Vec<String> = names.iter().map(|(old, new)| format!("{old:?} AS {new:?}")).collect();
        Ok(self.with_columns(self.origins.to_vec(), schema).with_view(renamed.join(", ")))
    }

    /// Returns the columns and their types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the objects, row groups and types that the dataset was opened with.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the columns of the snapshot that are read.
    pub(crate) fn projection(&self) -> &Arc<[usize]> {
        &self.projection
    }

    /// Returns the origins of the columns.
    pub(crate) fn origins(&self) -> &Arc<[Origin]> {
        &self.origins
    }

    /// Returns how the columns that are read become the dataset's, if that takes more than passing them on.
    pub(crate) fn outputs(&self) -> Option<&Arc<Outputs>> {
        self.outputs.as_ref()
    }

    /// Returns the filters, all of which a kept row passes.
    pub fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Returns the query that chooses and orders the rows.
    pub(crate) fn query(&self) -> Option<&Query> {
        self.query.as_deref().map(|(query, _)| query)
    }

    /// Returns the texts that determine which rows are kept, and in which order.
    pub fn query_texts(&self) -> Vec<String> {
        self.filter_identities().into_iter().chain(self.restriction.texts()).collect()
    }

    /// Returns the texts that identify the dataset as a table of a query: which rows it keeps may depend on their
    /// order, and its columns depend on the queries that made them.
    pub(crate) fn table_texts(&self) -> Vec<String> {
        self.views.iter().cloned().chain(self.query_texts()).chain(self.restriction.order_text()).collect()
    }

    /// Returns the rows that the dataset was restricted to.
    pub(crate) fn restriction(&self) -> &Restriction {
        &self.restriction
    }

    /// Returns the dataset with another restriction.
    pub(crate) fn with_restriction(&self, restriction: Restriction) -> Self {
        Self { restriction: Arc::new(restriction), answer: Arc::default(), ..self.clone() }
    }

    /// Returns filters and queries as they were written.
    pub fn filter_texts(&self) -> Vec<String> {
        match self.query.as_deref() {
            None => self.filters.iter().map(|filter| filter.text().to_owned()).collect(),
            Some(_) => self.filter_identities(),
        }
    }

    /// Returns the texts that identify filters and queries.
    pub(crate) fn filter_identities(&self) -> Vec<String> {
        match self.query.as_deref() {
            None => self.filters.iter().map(Filter::identity).collect(),
            Some((query, base)) => {
                let mut texts = base.table_texts();
                texts.push(query.identity().to_owned());
                texts
            }
        }
    }

    /// Returns the answer if it is known without reading anything.
    pub fn known_answer(&self) -> Option<Arc<Answer>> {
        if self.filters.is_empty() && self.query.is_none() && self.answer.get().is_none() {
            let all = self.ordered(Selection::unfiltered(&self.snapshot, self.restriction.rows()));
            // If another thread was faster, the same answer is in place.
            self.answer.set(Arc::new(all));
        }
        self.answer.get()
    }

    /// Returns the selection if it is known without reading anything.
    pub fn known_selection(&self) -> Option<Arc<Selection>> {
        self.known_answer().map(|answer| Arc::clone(answer.selection()))
    }

    /// Takes an answer made elsewhere, by the same query on the same snapshot, unless it lacks values that the columns
    /// need.
    pub fn adopt_answer(&self, answer: Answer) {
        let needs_attached = self.outputs().is_some_and(|outputs| outputs.needs_attached());
        if !needs_attached || answer.attached().is_some() {
            self.answer.set(Arc::new(answer));
        }
    }

    /// Returns the kept rows and their order, evaluating the query if that has not been done.
    ///
    /// `connections` are the snapshot's [stores](Self::connect). Without `memory_limit`, a row group that cannot be
    /// split is read unless it [takes half of the machine](config::largest_read_bytes). Starts to read the kept rows if
    /// `reading` says that somebody will.
    ///
    /// # Errors
    ///
    /// Those of reading, [`Error::MemoryLimit`], [`Error::Evaluate`] if a filter fails on a value, and
    /// [`Error::ManyRows`] and [`Error::QueryMemory`] for queries.
    pub async fn answer(
        &self,
        connections: Vec<Connection>,
        memory_limit: Option<u64>,
        reading: Reading,
        progress: &Arc<Progress>,
    ) -> Result<Arc<Answer>> {
        if let Some(known) = self.known_answer() {
            return Ok(known);
        }
        let evaluate = async {
            if let Some((query, base)) = self.query.as_deref() {
                let metrics = connections.first().map_or_else(Arc::default, |first| Arc::clone(&first.metrics));
                let limit = memory_limit.unwrap_or(config::QUERY_MEMORY_BYTES);
                let answer = query.answer(base, limit, &metrics, progress).await?;
                return self.restricted_answer(answer).map(Arc::new);
            }
            let payload = self.payload(&connections, memory_limit, reading);
            let selection = self.evaluate(None, payload, connections, memory_limit, progress).await?;
            Ok(Arc::new(self.ordered(selection)))
        };
        Box::pin(self.answer.get_or_evaluate(evaluate)).await
    }

    /// Returns the part of the dataset that is known once its first rows, at least `num_rows`, are found: its answer
    /// lacks later kept rows. `None` if there is no such part, or if the whole answer is already known.
    ///
    /// `connections` and `memory_limit` are those of [`Self::answer`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::answer`], for the rows that are examined.
    pub async fn beginning(
        &self,
        num_rows: u64,
        connections: Vec<Connection>,
        memory_limit: Option<u64>,
        progress: &Arc<Progress>,
    ) -> Result<Option<Self>> {
        if self.query.is_some() || self.restriction.has_order() || self.known_answer().is_some() {
            return Ok(None);
        }
        let selection = self.evaluate(Some(num_rows), None, connections, memory_limit, progress).await?;
        let (is_partial, answer) = (selection.report().is_partial, self.ordered(selection));
        let beginning = if is_partial { Self { answer: Arc::default(), ..self.clone() } } else { self.clone() };
        beginning.adopt_answer(answer);
        Ok(is_partial.then_some(beginning))
    }

    /// Evaluates the filters, or takes the result of an earlier run.
    async fn evaluate(
        &self,
        enough: Option<u64>,
        payload: Option<Payload>,
        connections: Vec<Connection>,
        memory_limit: Option<u64>,
        progress: &Progress,
    ) -> Result<Selection> {
        let memory_bytes = config::SELECTION_MEMORY_BYTES.min(memory_limit.unwrap_or(u64::MAX));
        let limits = Limits { memory_bytes, refused_above: memory_limit, num_threads: config::num_threads() };
        let is_plain = self.filters.iter().all(Filter::is_plain);
        let cache = is_plain.then(|| SelectionCache::of_process(&self.snapshot, &self.query_texts())).flatten();
        let io = connections.first().map(|first| Arc::clone(&first.io));
        let sought = Sought { filters: &self.filters, within: self.restriction.rows(), enough, payload };
        let evaluate = Selection::evaluate(&self.snapshot, sought, connections, limits, progress);
        SelectionCache::get_or(cache, io, &self.snapshot, evaluate).await
    }

    /// Returns the rows to read as soon as they are known; [`Self::claim_ahead`] takes what was read.
    fn payload(&self, connections: &[Connection], memory_limit: Option<u64>, reading: Reading) -> Option<Payload> {
        if reading == Reading::Later || self.projection.is_empty() || connections.iter().all(|store| store.is_local) {
            return None;
        }
        let max_bytes = memory_limit.map_or(u64::MAX, |limit| limit / config::READ_AHEAD_IN_MEMORY);
        let window_bytes = connections.iter().map(|store| store.known().window_bytes()).max()?;
        let ahead = Arc::new(Ahead::new(max_bytes.min(window_bytes), &connections.first()?.metrics));
        *self.answer.ahead.get()?.try_lock().ok()? = Some(Arc::clone(&ahead));
        Some(Payload {
            snapshot: Arc::clone(&self.snapshot),
            columns: Arc::clone(&self.projection),
            connections: connections.iter().map(|store| store.at(Stage::Payload)).collect(),
            ahead,
            is_in_order: reading == Reading::InOrder,
        })
    }

    /// Takes what was read along with the answer.
    pub(crate) fn claim_ahead(&self) -> Option<Arc<Ahead>> {
        // Only tried: a forked child may find it locked forever.
        self.answer.ahead.get()?.try_lock().ok()?.take()
    }

    /// Describes the row of the snapshot that has this number.
    pub(crate) fn describe_row(&self, number: u64) -> String {
        let mut first = 0;
        for row_group in &self.snapshot.row_groups {
            let end = first + u64::from(row_group.num_rows);
            if number < end {
                let url = &self.snapshot.fragment(*row_group).object.url;
                return format!("row {} of row group {} of `{url}`", number - first, row_group.index);
            }
            first = end;
        }
        format!("row {number}")
    }

    /// Connects to the stores of the snapshot; requests are counted in `metrics`.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if a store's settings do not work.
    pub fn connect(&self, metrics: &Arc<Metrics>) -> Result<Vec<Connection>> {
        let connect = |store: &crate::source::Store| store.connect().map(|made| made.with_metrics(metrics));
        self.snapshot.stores.iter().map(connect).collect()
    }
}
