//! A plan node without inputs that reads a dataset.

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as PlanResult, Statistics};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties, SendableRecordBatchStream,
    StatisticsArgs,
};
use futures::stream::BoxStream;

use crate::dataset::Dataset;

/// What a node reads.
pub(super) trait Leaf: fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;

    fn dataset(&self) -> &Dataset;

    /// The columns that it produces.
    fn schema(&self) -> &SchemaRef;

    /// What a printed plan shows after its columns and filters.
    fn note(&self) -> String;

    fn statistics(&self) -> Statistics {
        Statistics::new_unknown(self.schema())
    }

    /// Returns what reads, instead of its columns, those of a projection of them; `None` if that saves nothing.
    fn projected(&self, _projection: &ProjectionExec) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Returns the batches; nothing is read before the first is requested.
    ///
    /// # Errors
    ///
    /// For a context that does not belong to a query it can be part of.
    fn batches(&self, context: &TaskContext) -> PlanResult<BoxStream<'static, PlanResult<RecordBatch>>>;
}

/// A [`Leaf`] as a DataFusion plan node.
#[derive(Debug)]
pub(super) struct Scan<L> {
    leaf: L,
    properties: Arc<PlanProperties>,
}

impl<L: Leaf> Scan<L> {
    pub(super) fn new(leaf: L) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(leaf.schema())),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self { leaf, properties: Arc::new(properties) }
    }
}

impl<L: Leaf> DisplayAs for Scan<L> {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<&str> = self.leaf.schema().fields().iter().map(|field| field.name().as_str()).collect();
        let filters = self.leaf.dataset().filter_texts();
        write!(f, "{}: columns=[{}]", L::NAME, columns.join(", "))?;
        if !filters.is_empty() {
            write!(f, ", rows where {}", filters.join(" AND "))?;
        }
        f.write_str(&self.leaf.note())
    }
}

impl<L: Leaf> ExecutionPlan for Scan<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> PlanResult<Option<Arc<dyn ExecutionPlan>>> {
        Ok(self.leaf.projected(projection).map(|leaf| Arc::new(Self::new(leaf)) as Arc<dyn ExecutionPlan>))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> PlanResult<Arc<Statistics>> {
        Ok(Arc::new(self.leaf.statistics()))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> PlanResult<SendableRecordBatchStream> {
        let batches = self.leaf.batches(&context)?;
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.leaf.schema()), batches)))
    }
}
