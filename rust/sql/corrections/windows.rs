//! Windows ordered by types without distances: binary, times of day, durations, structs, maps.
//!
//! A window with an order and no frame extends to the peers of the row, which SQL spells `RANGE UNBOUNDED PRECEDING`;
//! the engine requires a type with distances for such a frame, even if none is written. `GROUPS UNBOUNDED PRECEDING`
//! has the same rows, and only requires equality.

use arrow_schema::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as PlanResult};
use datafusion::logical_expr::expr::WindowFunctionParams;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFrameBound, WindowFrameUnits};

use crate::engine::walk::{Walk, WalkPlan};

/// Counts frames in peers if their order has no distances and they specify none.
pub(crate) fn framed_by_peers(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let framed = plan.transform_nodes(|node| {
        let LogicalPlan::Window(window) = &node else { return Ok(Transformed::no(node)) };
        let schema = DFSchema::clone(window.input.schema());
        let names = NamePreserver::new(&node);
        node.transform_expressions(|expr| {
            let name = names.save(&expr);
            let framed = expr.transform_up(|expr| {
                let Expr::WindowFunction(mut function) = expr else { return Ok(Transformed::no(expr)) };
                let is_framed = is_without_distances(&function.params, &schema);
                if is_framed {
                    function.params.window_frame.units = WindowFrameUnits::Groups;
                }
                Ok(Transformed::new_transformed(Expr::WindowFunction(function), is_framed))
            })?;
            Ok(framed.update_data(|expr| name.restore(expr)))
        })
    })?;
    Ok(framed.data)
}

fn is_without_distances(params: &WindowFunctionParams, schema: &DFSchema) -> bool {
    let frame = &params.window_frame;
    let is_distance = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(distance) | WindowFrameBound::Following(distance) => !distance.is_null(),
        WindowFrameBound::CurrentRow => false,
    };
    frame.units == WindowFrameUnits::Range
        && !is_distance(&frame.start_bound)
        && !is_distance(&frame.end_bound)
        && params.order_by.first().is_some_and(|sort| sort.expr.get_type(schema).is_ok_and(|of| !has_distances(&of)))
}

/// Returns whether the engine treats a type as one with distances.
fn has_distances(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean | DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => true,
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => true,
        DataType::Dictionary(_, value) => has_distances(value),
        other => other.is_numeric() || other.is_string() || other.is_null(),
    }
}
