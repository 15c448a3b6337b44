//! `ORDER BY ... LIMIT` with more rows than fit in memory.
//!
//! For `ORDER BY ... LIMIT` the engine holds that many rows and does not spill. If they would take a large part of the
//! memory, all rows are sorted, as without a limit: that spills.

use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::Transformed;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::engine::walk::Walk;

/// The fraction of the memory above which rows are not held.
const PART_HELD: u64 = 2;

/// Bytes per row in addition to its values: its key, the location of the key, and that of the row.
const BYTES_BESIDE: u64 = 72;

/// The assumed size of a value if its type does not determine it.
const BYTES_OF_VALUE: u64 = 64;

/// Sorts all rows if the first ones would take too much of `memory_bytes`; rows come in batches of `batch_rows`.
pub(crate) fn with_large_firsts_sorted(
    plan: Arc<dyn ExecutionPlan>,
    memory_bytes: u64,
    batch_rows: u64,
) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let sorted = plan.transform_up(|node| {
        let Some((sort, fetch)) = node.downcast_ref::<SortExec>().and_then(|sort| Some((sort, sort.fetch()?))) else {
            return Ok(Transformed::no(node));
        };
        if bytes_of_firsts(sort, fetch as u64, batch_rows) <= memory_bytes / PART_HELD {
            return Ok(Transformed::no(node));
        }
        let whole = SortExec::new(sort.expr().clone(), Arc::clone(sort.input()))
            .with_preserve_partitioning(sort.preserve_partitioning());
        Ok(Transformed::yes(Arc::new(LocalLimitExec::new(Arc::new(whole), fetch))))
    })?;
    Ok(sorted.data)
}

/// Returns about what the engine holds for the first rows: batches with one of them, which are copied once they have
/// that many others.
fn bytes_of_firsts(sort: &SortExec, num_rows: u64, batch_rows: u64) -> u64 {
    let schema = sort.schema();
    let keys = sort.expr().iter().map(|key| key.expr.data_type(&schema).map_or(BYTES_OF_VALUE, |of| width(&of) + 1));
    let row: u64 = schema.fields().iter().map(|field| width(field.data_type())).sum();
    let num_held = num_rows.saturating_mul(2).saturating_add(batch_rows);
    num_rows.saturating_mul(BYTES_BESIDE + keys.sum::<u64>()).saturating_add(num_held.saturating_mul(row))
}

fn width(data_type: &DataType) -> u64 {
    data_type.primitive_width().map_or(if data_type.is_null() { 0 } else { BYTES_OF_VALUE }, |width| width as u64)
}
