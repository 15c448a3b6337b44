//! Makes aggregates return what SQL promises, for groups and for windows.
//!
//! The engine's sums of integers wrap around. Its extremes of floats in groups start from finite numbers, and depend on
//! where a NaN appears among the others. So sums are computed in a type that holds them all, and extremes on integers
//! of the same order as the floats; a projection above converts both back. Other floats computed from rows, such as the
//! mean of two infinities, are made canonical there. Frames with a moving start use aggregates of our own; see
//! [`sliding`](super::sliding).

use std::sync::Arc;

use arrow_schema::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType};
use datafusion::common::{Column, DFSchema, Result as PlanResult};
use datafusion::logical_expr::logical_plan::{Aggregate, Projection, Window};
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, cast};

use super::sliding;
use crate::selection::{floats, numbers};

/// The kind of a result column.
#[derive(Debug)]
enum Outcome {
    /// Already correct.
    Exact,
    /// Sums that should have this type.
    Sums(DataType),
    /// Integers in the order of floats.
    Order,
    /// Floats that may not be canonical.
    Floats,
}

/// Makes the aggregates of a node of a type-checked plan exact. Its columns keep their names and types.
pub(super) fn exact_aggregates(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let (calls, input) = match &plan {
        LogicalPlan::Aggregate(aggregate) => (&aggregate.aggr_expr, &aggregate.input),
        LogicalPlan::Window(window) => (&window.window_expr, &window.input),
        _ => return Ok(plan),
    };
    let exact = calls.iter().map(|call| exact_call(call.clone(), input.schema()));
    let (calls, outcomes): (Vec<_>, Vec<_>) = exact.collect::<PlanResult<Vec<_>>>()?.into_iter().unzip();
    if outcomes.iter().all(|outcome| matches!(outcome, Outcome::Exact)) {
        return Ok(plan);
    }
    let (schema, input) = (Arc::clone(plan.schema()), Arc::clone(input));
    let inner = match plan {
        LogicalPlan::Aggregate(plan) => LogicalPlan::Aggregate(Aggregate::try_new(input, plan.group_expr, calls)?),
        _ => LogicalPlan::Window(Window::try_new(calls, input)?),
    };
    // Group keys, or the columns of the rows, come first.
    let num_others = schema.fields().len() - outcomes.len();
    let outcomes = std::iter::repeat_with(|| Outcome::Exact).take(num_others).chain(outcomes);
    let columns = outcomes.enumerate().map(|(place, outcome)| {
        let column = Expr::Column(Column::from(inner.schema().qualified_field(place)));
        let (qualifier, field) = schema.qualified_field(place);
        let exact = match outcome {
            Outcome::Exact => return column,
            Outcome::Sums(data_type) => numbers::narrowed_sum(column, data_type),
            Outcome::Order => floats::order_of_floats(column),
            Outcome::Floats => floats::canonical_floats(column),
        };
        exact.alias_qualified(qualifier.cloned(), field.name())
    });
    let columns = columns.collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(inner))?))
}

/// Returns the replacement for an aggregate or a window function, and the kind of its result.
fn exact_call(mut call: Expr, schema: &DFSchema) -> PlanResult<(Expr, Outcome)> {
    let data_type = call.get_type(schema)?;
    let mut inner = &mut call;
    while let Expr::Alias(alias) = inner {
        inner = &mut alias.expr;
    }
    let (name, arguments) = match inner {
        Expr::AggregateFunction(function) => (function.func.name().to_owned(), &mut function.params.args),
        Expr::WindowFunction(function) => {
            let WindowFunctionDefinition::AggregateUDF(aggregate) = &mut function.fun else {
                return Ok((call, if floats::has_floats(&data_type) { Outcome::Floats } else { Outcome::Exact }));
            };
            let (name, params) = (aggregate.name().to_owned(), &mut function.params);
            if !params.window_frame.is_ever_expanding() {
                let own = sliding_aggregate(&name, &data_type, params.distinct);
                *aggregate = own.map_or_else(|| Arc::clone(aggregate), Arc::new);
            }
            (name, &mut params.args)
        }
        _ => return Ok((call, Outcome::Exact)),
    };
    let wide = if name == "sum" { wider(&data_type) } else { None };
    let outcome = match (arguments.as_mut_slice(), wide) {
        ([argument], Some(wide)) => {
            *argument = cast(std::mem::take(argument), wide);
            Outcome::Sums(data_type)
        }
        ([argument], None) if matches!(name.as_str(), "min" | "max") && argument.get_type(schema)?.is_floating() => {
            *argument = floats::order_of_floats(std::mem::take(argument));
            Outcome::Order
        }
        _ if floats::has_floats(&data_type) => Outcome::Floats,
        _ => Outcome::Exact,
    };
    Ok((call, outcome))
}

/// Returns our own aggregate of this name and type for a frame with a moving start, if the engine's must not be used.
fn sliding_aggregate(name: &str, data_type: &DataType, is_distinct: bool) -> Option<AggregateUDF> {
    match (is_distinct, data_type) {
        (false, DataType::Float64) => sliding::of_floats(name),
        (true, data_type) if name == "sum" && matches!(wider(data_type), Some(DataType::Decimal128(..))) => {
            Some(sliding::of_different_decimals())
        }
        _ => None,
    }
}

/// Returns a type that holds all sums of values of `data_type`, if that does not.
fn wider(data_type: &DataType) -> Option<DataType> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256, Int64, UInt64};
    match data_type {
        Int64 | UInt64 => Some(Decimal128(DECIMAL128_MAX_PRECISION, 0)),
        Decimal32(_, scale) | Decimal64(_, scale) => Some(Decimal128(DECIMAL128_MAX_PRECISION, *scale)),
        // A type with fewer digits gets ten more than the summands.
        Decimal128(DECIMAL128_MAX_PRECISION, scale) => Some(Decimal256(DECIMAL256_MAX_PRECISION, *scale)),
        _ => None,
    }
}
