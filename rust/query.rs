//! [`Dataset`]: the rows and columns wanted of a snapshot. Immutable and lazy.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use tokio::sync::OnceCell;

use crate::config;
use crate::dataset::{OpenRequest, Snapshot};
use crate::error::{Error, Result};
use crate::metrics::{Metrics, Progress};
use crate::process::OfProcess;
use crate::selection::{Filter, Limits, Selection, unknown_column};
use crate::source::Connection;

/// Rows and columns of a [`Snapshot`]: what a query keeps, not yet read.
///
/// Every method returns a new dataset; clones are cheap and share the selection once it is known.
#[derive(Debug, Clone)]
pub struct Dataset {
    snapshot: Arc<Snapshot>,
    /// Columns of the snapshot, in the order in which they are returned.
    projection: Arc<[usize]>,
    schema: SchemaRef,
    filters: Arc<[Filter]>,
    selection: Arc<Known>,
}

/// A selection once it is known: evaluated by the process that made the dataset, or else by one forked from it, in which
/// an evaluation that was under way never ends.
#[derive(Debug)]
struct Known {
    ours: OfProcess<()>,
    first: OnceCell<Arc<Selection>>,
    forked: OnceCell<Arc<Selection>>,
}

impl Default for Known {
    fn default() -> Self {
        Self { ours: OfProcess::new(()), first: OnceCell::new(), forked: OnceCell::new() }
    }
}

impl Known {
    fn get(&self) -> Option<&Arc<Selection>> {
        self.first.get().or_else(|| self.forked.get())
    }

    /// Returns the cell that this process may fill.
    fn cell(&self) -> &OnceCell<Arc<Selection>> {
        if self.ours.get().is_some() { &self.first } else { &self.forked }
    }
}

impl Dataset {
    /// Opens a dataset: lists its objects and reads their footers, one suffix request each.
    ///
    /// # Errors
    ///
    /// Those of listing and reading, and those of objects that are not Parquet or do not fit together.
    pub async fn open(request: OpenRequest, progress: &Progress) -> Result<Self> {
        Ok(Self::new(Arc::new(Snapshot::open(request, progress).await?)))
    }

    /// Returns all rows and columns of `snapshot`.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        let projection = (0..snapshot.schema.fields().len()).collect();
        let schema = Arc::clone(&snapshot.schema);
        Self { snapshot, projection, schema, filters: Arc::new([]), selection: Arc::default() }
    }

    /// Makes what all filters of a process share. [`Self::filter`] does so, too; callers that may be forked meanwhile,
    /// from another thread, see to it that this has been done before.
    pub fn prepare_filters() {
        Filter::prepare();
    }

    /// Keeps the rows for which the SQL expression `text` is true, among those kept so far.
    ///
    /// Parsed and type-checked now against all columns, selected or not; evaluated once, when first needed.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`], [`Error::UnknownColumn`], [`Error::NotBoolean`].
    pub fn filter(&self, text: &str) -> Result<Self> {
        let filter = Filter::parse(text, &self.snapshot)?;
        let filters = self.filters.iter().cloned().chain([filter]).collect();
        Ok(Self { filters, selection: Arc::default(), ..self.clone() })
    }

    /// Returns only the columns `names`, in that order. Does not change rows or their order.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownColumn`], and [`Error::Setting`] for a name given twice.
    pub fn select_columns(&self, names: &[String]) -> Result<Self> {
        let mut projection = Vec::with_capacity(names.len());
        for name in names {
            let column = self.schema.index_of(name).map_err(|_| unknown_column(name.clone(), name, &self.schema))?;
            if projection.contains(&self.projection[column]) {
                return Err(Error::Setting { name: "columns", reason: format!("`{name}` is named twice") });
            }
            projection.push(self.projection[column]);
        }
        let fields: Vec<_> =
            projection.iter().map(|&column| Arc::clone(&self.snapshot.schema.fields()[column])).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, self.snapshot.schema.metadata().clone()));
        Ok(Self { projection: projection.into(), schema, ..self.clone() })
    }

    /// Returns the columns and their types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the objects, row groups and types that the dataset was opened with.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the columns of the snapshot that are returned, in order.
    pub(crate) fn projection(&self) -> &Arc<[usize]> {
        &self.projection
    }

    /// Returns the filters, all of which a kept row passes.
    pub fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Returns the selection if it is known without reading anything.
    pub fn known_selection(&self) -> Option<Arc<Selection>> {
        if self.filters.is_empty() && self.selection.get().is_none() {
            // Losing a race to another thread leaves the same selection in place.
            drop(self.selection.cell().set(Arc::new(Selection::all(&self.snapshot))));
        }
        self.selection.get().cloned()
    }

    /// Takes a selection made elsewhere, by the same filters on the same snapshot.
    pub fn adopt_selection(&self, selection: Selection) {
        drop(self.selection.cell().set(Arc::new(selection)));
    }

    /// Returns the kept rows, evaluating the filters if that has not been done.
    ///
    /// `connections` are the snapshot's [stores](Self::connect). Without `memory_limit` a row group that cannot be cut
    /// is read whatever its size.
    ///
    /// # Errors
    ///
    /// Those of reading, [`Error::MemoryLimit`], and [`Error::Evaluate`] where a filter fails on a value.
    pub async fn selection(
        &self,
        connections: Vec<Connection>,
        memory_limit: Option<u64>,
        progress: &Progress,
    ) -> Result<Arc<Selection>> {
        let memory_bytes = config::SELECTION_MEMORY_BYTES.min(memory_limit.unwrap_or(u64::MAX));
        let limits = Limits { memory_bytes, refused_above: memory_limit, num_threads: config::num_threads() };
        let evaluate = || async {
            Selection::evaluate(&self.snapshot, &self.filters, connections, limits, progress).await.map(Arc::new)
        };
        match self.selection.get() {
            Some(known) => Ok(Arc::clone(known)),
            None => self.selection.cell().get_or_try_init(evaluate).await.cloned(),
        }
    }

    /// Connects to the stores of the snapshot; requests are counted in `metrics`.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] when a store's settings do not work.
    pub fn connect(&self, metrics: &Arc<Metrics>) -> Result<Vec<Connection>> {
        let connect = |store: &crate::source::Store| {
            store.connect().map(|connection| Connection { metrics: Arc::clone(metrics), ..connection })
        };
        self.snapshot.stores.iter().map(connect).collect()
    }
}
