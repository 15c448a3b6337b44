//! Rows that a node holds, in memory of their own.
//!
//! Batches of a scan are views of the columns of a row group. For each batch that is held, the engine counts the memory
//! that it is a view of as a whole, so that sorts spill, and others are refused, long before memory is short; and a row that
//! is held keeps its row group.
//!
//! For `ORDER BY ... LIMIT` the engine holds whole batches, and copies the first rows whenever that are twice as many: for
//! a large limit, after each batch. So it gets only the rows that may be among the first.

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_select::filter::filter_record_batch;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result as PlanResult, Statistics};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties,
    SendableRecordBatchStream, StatisticsArgs,
};
use futures::StreamExt;

use crate::engine::walk::Walk;
use crate::{batch, parts};

/// Copies rows that are views before nodes that hold and count them: sorts, and joins that compare each row with each.
pub(crate) fn with_views_copied(plan: Arc<dyn ExecutionPlan>) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let copied = plan.transform_up(|node| {
        if !(node.is::<SortExec>() || node.is::<NestedLoopJoinExec>() || node.is::<CrossJoinExec>()) {
            return Ok(Transformed::no(node));
        }
        // Where rows are in order, it stops as soon as it sees one that is not among the first.
        let sort = node.downcast_ref::<SortExec>().filter(|sort| sort.input().output_ordering().is_none());
        let of_first = sort.map(SortExec::dynamic_expressions_produced).unwrap_or_default();
        // Such joins hold the first of their inputs.
        let mut inputs: Vec<_> = node.children().into_iter().cloned().collect();
        if let Some(held) = inputs.first_mut() {
            *held = Arc::new(Copied { input: Arc::clone(held), of_first });
        }
        let as_before = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        node.replace_children(inputs, as_before).map(Transformed::yes)
    })?;
    Ok(copied.data)
}

/// Returns the rows of a batch in memory of their own.
fn owned(rows: &RecordBatch) -> PlanResult<RecordBatch> {
    let own = |column: &ArrayRef| {
        if parts::is_view(column) { parts::joined(&[column]) } else { Ok(Arc::clone(column)) }
    };
    let columns = rows.columns().iter().map(own).collect::<Result<_, _>>()?;
    Ok(batch::of_columns(rows.schema(), columns, rows.num_rows())?)
}

/// Returns the rows for which a condition is true.
fn chosen(rows: &RecordBatch, condition: &dyn PhysicalExpr) -> PlanResult<RecordBatch> {
    let is_chosen = condition.evaluate(rows)?.into_array(rows.num_rows())?;
    Ok(filter_record_batch(rows, is_chosen.as_boolean())?)
}

/// Passes rows on, in memory of their own.
#[derive(Debug)]
struct Copied {
    input: Arc<dyn ExecutionPlan>,
    /// The conditions of rows that may be among the first. A sort changes its own with each batch; in a recursion another
    /// sort runs for each step, and they stay true.
    of_first: Vec<Arc<dyn PhysicalExpr>>,
}

impl DisplayAs for Copied {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Copied {
    fn name(&self) -> &'static str {
        "Copied"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { input: children.swap_remove(0), of_first: self.of_first.clone() }))
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { input: children.swap_remove(0), of_first: self.of_first.clone() }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> PlanResult<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let schema = rows.schema();
        let of_first = self.of_first.clone();
        let own = rows.map(move |rows| {
            owned(&of_first.iter().try_fold(rows?, |rows, condition| chosen(&rows, condition.as_ref()))?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, own)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> PlanResult<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Array, Int64Array, StringArray};
    use arrow_buffer::{Buffer, ScalarBuffer};

    use super::*;

    #[test]
    fn views_are_copied_and_what_is_whole_is_not() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        let text: ArrayRef = Arc::new(StringArray::from_iter_values((0..10_000).map(|n| n.to_string())));
        let whole = RecordBatch::try_from_iter([("numbers", numbers), ("text", text)]).unwrap();
        let start = |rows: &RecordBatch, index: usize| rows.column(index).to_data().buffers()[0].as_ptr();
        assert_eq!([0, 1].map(|index| start(&owned(&whole).unwrap(), index)), [0, 1].map(|index| start(&whole, index)));
        // Our readers cut buffers, others arrays.
        let cut =
            Int64Array::new(ScalarBuffer::new(Buffer::from_vec((0..10_000).collect::<Vec<i64>>()), 5_000, 100), None);
        let cut = RecordBatch::try_from_iter([("numbers", Arc::new(cut) as ArrayRef)]).unwrap();
        for view in [whole.slice(5_000, 100), cut] {
            let copy = owned(&view).unwrap();
            assert_eq!(copy, view);
            assert!(copy.get_array_memory_size() < 4_000, "{}", copy.get_array_memory_size());
        }
    }
}
