//! Completes the orders of sorts: ties are broken by dataset order.
//!
//! For windows the engine sorts by their keys alone, so that the order of ties depends on how the rows arrived, in how
//! many batches, and on the memory limit. If the numbers of rows are [carried](super::carry) along, they become the
//! last key of every sort. Frames and peers do not change, since windows are unaware of it.

use std::sync::Arc;

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::Transformed;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;

use super::super::table::ROW;
use crate::engine::walk::Walk;

/// Adds the number of the row to the keys of each sort whose rows have one.
pub(crate) fn with_closed_sorts(plan: Arc<dyn ExecutionPlan>) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let closed = plan.transform_up(|node| {
        let Some(sort) = node.downcast_ref::<SortExec>() else { return Ok(Transformed::no(node)) };
        let Ok(row) = Column::new_with_schema(ROW, &sort.schema()) else { return Ok(Transformed::no(node)) };
        // First rows are only requested of orders that are already complete.
        if sort.fetch().is_some() {
            return Ok(Transformed::no(node));
        }
        let mut keys = sort.expr().clone();
        keys.push(PhysicalSortExpr::new_default(Arc::new(row)));
        let closed = SortExec::new(keys, Arc::clone(sort.input()));
        Ok(Transformed::yes(Arc::new(closed.with_preserve_partitioning(sort.preserve_partitioning()))))
    })?;
    Ok(closed.data)
}
