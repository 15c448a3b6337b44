//! A dataset as a table of a query: filters become a selection, and the rest is read by our own stream.
//!
//! DataFusion plans; the requests of all row groups go out together, within the memory limit, as everywhere else. A
//! scan returns rows in dataset order, with their numbers if requested.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, default_table_source::DefaultTableSource};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError, Result as PlanResult, Statistics, project_schema};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableSource, TableType};
use datafusion::physical_expr::expressions::{Column as PhysicalColumn, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};

use super::leaf::{Leaf, Scan};
use super::sample::{Sample, Size};
use super::scan::{self, Scanning};
use super::trace;
use crate::batch;
use crate::dataset::Dataset;
use crate::dataset::outputs::{Computed, Origin};
use crate::engine::lists;
use crate::engine::walk::Walk;
use crate::features;

/// The column that identifies rows: see [`Scanning`]. No column of a dataset has a NUL in its name.
pub(super) const ROW: &str = "\0row";

/// A dataset as a table.
#[derive(Debug, Clone)]
pub(super) struct DatasetTable {
    dataset: Dataset,
    /// Its fields carry their features.
    schema: SchemaRef,
    /// Whether it is the query's `dataset`, not another table.
    is_subject: bool,
    has_row: bool,
    sample: Option<Sample>,
}

impl DatasetTable {
    /// Returns `dataset` as the table that a query is about, or as another one.
    pub(super) fn new(dataset: &Dataset, is_subject: bool) -> Self {
        Self {
            dataset: dataset.clone(),
            schema: features::spread(dataset.schema()),
            is_subject,
            has_row: false,
            sample: None,
        }
    }

    /// Returns the table behind a scan, if it is a dataset.
    pub(super) fn of_source(source: &Arc<dyn TableSource>) -> Option<&Self> {
        let source: &dyn std::any::Any = source.as_ref();
        let provider: &dyn std::any::Any = source.downcast_ref::<DefaultTableSource>()?.table_provider.as_ref();
        provider.downcast_ref()
    }

    pub(super) fn into_source(self) -> Arc<dyn TableSource> {
        Arc::new(DefaultTableSource::new(Arc::new(self)))
    }

    /// Adds the column [`ROW`].
    pub(super) fn with_row(&self) -> Self {
        let fields = self.schema.fields().iter().cloned();
        let row = Arc::new(Field::new(ROW, DataType::UInt64, false));
        let schema = Schema::new(fields.chain([row]).collect::<Vec<_>>());
        Self { schema: Arc::new(schema), has_row: true, ..self.clone() }
    }

    pub(super) fn sampled(&self, sample: Sample) -> Self {
        Self { sample: Some(sample), ..self.clone() }
    }

    pub(super) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    pub(super) fn is_subject(&self) -> bool {
        self.is_subject
    }

    pub(super) fn has_row(&self) -> bool {
        self.has_row
    }

    pub(super) fn is_sampled(&self) -> bool {
        self.sample.is_some()
    }

    /// Returns a filter of a scan as one over the columns of the snapshot; `None` if it uses anything but the row's own
    /// columns.
    pub(super) fn pushed_down(&self, filter: &Expr) -> PlanResult<Option<Expr>> {
        // The first rows of a sample, and of another query, are determined before the filter.
        let is_fixed = matches!(self.sample, Some(Sample { size: Size::Rows(_), .. }));
        if is_fixed || self.dataset.query().is_some() || !trace::is_of_the_row(filter)? {
            return Ok(None);
        }
        let mut is_pushed = true;
        let pushed = lists::shown(filter.clone())?.transform_up(|node| {
            let Expr::Column(Column { name, .. }) = &node else { return Ok(Transformed::no(node)) };
            let place = self.dataset.schema().index_of(name).ok();
            Ok(match place.and_then(|place| trace::stored(&self.dataset, place)) {
                Some(stored) => Transformed::yes(stored),
                None => {
                    is_pushed = false;
                    Transformed::new(node, false, TreeNodeRecursion::Stop)
                }
            })
        })?;
        Ok(is_pushed.then_some(pushed.data))
    }
}

#[async_trait]
impl TableProvider for DatasetTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> PlanResult<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| {
            Ok(match self.pushed_down(filter)? {
                Some(_) => TableProviderFilterPushDown::Exact,
                None => TableProviderFilterPushDown::Unsupported,
            })
        };
        filters.iter().map(support).collect()
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        let mut dataset = self.dataset.clone();
        for filter in filters {
            let pushed = self.pushed_down(filter)?.ok_or_else(|| {
                DataFusionError::Internal(format!("the filter `{filter}` is not one of the dataset's own columns"))
            })?;
            let text = lists::shown(filter.clone())?.to_string();
            dataset = dataset.keep(text, pushed).map_err(external)?;
        }
        let projection = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let row_place = projection.iter().position(|&column| column == self.dataset.schema().fields().len());
        let columns: Vec<usize> =
            projection.iter().copied().filter(|&column| column < self.dataset.schema().fields().len()).collect();
        let dataset = dataset.project(&columns);
        let schema = project_schema(&self.schema, Some(&projection))?;
        Ok(Arc::new(Scan::new(Rows { dataset, schema, row_place, sample: self.sample, limit })))
    }
}

/// Some columns and rows of a dataset.
#[derive(Debug)]
struct Rows {
    dataset: Dataset,
    schema: SchemaRef,
    /// The index of the row numbers in the schema, if present.
    row_place: Option<usize>,
    sample: Option<Sample>,
    /// How many of the first rows are enough.
    limit: Option<usize>,
}

impl Leaf for Rows {
    const NAME: &'static str = "DatasetScan";

    fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Reports how many rows there may be: the engine holds the smaller side of a join.
    fn statistics(&self) -> Statistics {
        let num_rows = self.dataset.known_answer().map_or(self.dataset.snapshot().num_rows, |answer| answer.num_rows());
        let num_rows = usize::try_from(num_rows).unwrap_or(usize::MAX);
        Statistics::new_unknown(&self.schema).with_num_rows(Precision::Inexact(num_rows))
    }

    fn note(&self) -> String {
        Sample::describe(self.sample).to_string()
    }

    /// Takes columns and fields of structs: of a struct, only the fields are then read.
    fn projected(&self, projection: &ProjectionExec) -> Option<Self> {
        let taken: Vec<_> = projection.expr().iter().map(|column| &column.expr).collect();
        if !taken.iter().any(|expr| expr.is::<ScalarFunctionExpr>()) {
            return None;
        }
        let schema = projection.schema();
        let mut row_place = None;
        let (mut origins, mut fields) = (Vec::new(), Vec::new());
        for (place, (expr, field)) in taken.into_iter().zip(schema.fields()).enumerate() {
            if self.is_row(expr) {
                // It is there once.
                if row_place.replace(place).is_some() {
                    return None;
                }
                continue;
            }
            origins.push(self.origin_of(expr)?);
            fields.push(Arc::clone(field));
        }
        let are_same = |(origin, field): (&Origin, &FieldRef)| match origin {
            Origin::Computed(computed) => computed.data_type() == field.data_type(),
            _ => true,
        };
        if !origins.iter().zip(&fields).all(are_same) {
            return None;
        }
        let metadata = self.dataset.schema().metadata().clone();
        let dataset = self.dataset.with_columns(origins, Arc::new(Schema::new_with_metadata(fields, metadata)));
        Some(Self { dataset, schema, row_place, sample: self.sample, limit: self.limit })
    }

    fn batches(&self, context: &TaskContext) -> PlanResult<BoxStream<'static, PlanResult<RecordBatch>>> {
        let scanning = context.session_config().get_extension::<Scanning>();
        let scanning = scanning.ok_or_else(|| DataFusionError::Internal("a scan outside of a query".into()))?;
        let (schema, row_place) = (Arc::clone(&self.schema), self.row_place);
        let limit = self.limit.map(|limit| limit as u64);
        let opening = scan::open(self.dataset.clone(), self.sample, scanning, row_place.is_some(), limit);
        let batches = stream::once(opening).flat_map(move |opened| match opened {
            Ok(batches) => batches.boxed(),
            Err(error) => stream::once(async move { Err(error) }).boxed(),
        });
        let batches = batches.map(move |scanned| {
            let scan::Scanned { batch, rows } = scanned.map_err(external)?;
            with_rows(&schema, &batch, row_place.zip(rows))
        });
        Ok(batches.boxed())
    }
}

impl Rows {
    /// Returns whether an expression is the number of the row.
    fn is_row(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        let column = expr.downcast_ref::<PhysicalColumn>();
        column.is_some_and(|column| self.row_place == Some(column.index()))
    }

    /// Returns the origin of a column, or of a field of one; `None` for other expressions.
    fn origin_of(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Origin> {
        if let Some(column) = expr.downcast_ref::<PhysicalColumn>() {
            return self.dataset.origins().get(self.place_of(column.index())?).cloned();
        }
        let computed = Computed::try_new(self.field_of(expr)?, self.dataset.snapshot(), "").ok()?;
        Some(Origin::Computed(Arc::new(computed)))
    }

    /// Returns an expression that takes fields of a column as one over the columns of the snapshot.
    fn field_of(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Expr> {
        if let Some(column) = expr.downcast_ref::<PhysicalColumn>() {
            return trace::stored(&self.dataset, self.place_of(column.index())?);
        }
        let call = expr.downcast_ref::<ScalarFunctionExpr>().filter(|call| call.name() == "get_field")?;
        let (of, keys) = call.args().split_first()?;
        let key = |key: &Arc<dyn PhysicalExpr>| {
            let key = key.downcast_ref::<Literal>()?;
            Some(Expr::Literal(key.value().clone(), None))
        };
        let args = std::iter::once(self.field_of(of)).chain(keys.iter().map(key)).collect::<Option<Vec<_>>>()?;
        Some(Expr::ScalarFunction(ScalarFunction { func: Arc::new(call.fun().clone()), args }))
    }

    /// Returns the column of the dataset that a column of the table is; `None` for the number of the row.
    fn place_of(&self, column: usize) -> Option<usize> {
        match self.row_place {
            Some(row) if column == row => None,
            Some(row) if column > row => Some(column - 1),
            _ => Some(column),
        }
    }
}

/// Inserts the row numbers at their index.
fn with_rows(schema: &SchemaRef, batch: &RecordBatch, rows: Option<(usize, UInt64Array)>) -> PlanResult<RecordBatch> {
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    if let Some((place, rows)) = rows {
        columns.insert(place, Arc::new(rows));
    }
    Ok(batch::of_columns(Arc::clone(schema), columns, batch.num_rows())?)
}

/// Passes one of our errors through the engine; [`super::run::ours`] extracts it again.
fn external(error: crate::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
