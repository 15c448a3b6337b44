//! Makes aggregates return what SQL promises, for groups and for windows.
//!
//! The engine's sums of integers wrap around. Its extremes of floats in groups start from finite numbers, and depend on
//! where a NaN appears among the others. So sums are computed in a type that holds them all, and extremes on integers
//! of the same order as the floats; a projection above converts both back. Other floats computed from rows, such as the
//! mean of two infinities, are made canonical there. Durations are summed as integers. Decimals of 256 bits, for which
//! there is no wider type, use an aggregate of our own ([`huge`]), and so do frames with a moving start
//! ([`sliding`]).

mod huge;

use std::sync::Arc;

use arrow_schema::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result as PlanResult};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::{Aggregate, Projection, Window};
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, cast};

use super::sliding;
use crate::engine::walk::{Walk, WalkPlan};
use crate::engine::{floats, numbers};

/// The kind of a result column.
#[derive(Debug)]
enum Outcome {
    /// Already correct.
    Exact,
    /// Correct by an aggregate of our own.
    Own,
    /// Sums that should have this type.
    Sums(DataType),
    /// Sums of the ticks of durations that should have this type.
    SumsOfTicks(DataType),
    /// Means of the ticks of durations that should have this type.
    MeansOfTicks(DataType),
    /// Integers in the order of floats.
    Order,
    /// Floats that may not be canonical.
    Floats,
}

/// Makes the aggregates of a node of a type-checked plan exact. Its columns keep their names and types.
pub(crate) fn exact_aggregates(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
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
            Outcome::Exact | Outcome::Own => return column,
            Outcome::Sums(data_type) => numbers::narrowed_sum(column, data_type),
            Outcome::SumsOfTicks(data_type) => cast(numbers::narrowed_sum(column, DataType::Int64), data_type),
            // It drops a fraction, so that a comparison must not be moved below it.
            Outcome::MeansOfTicks(data_type) => cast(numbers::kept_apart(cast(column, DataType::Int64)), data_type),
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
    let (aggregate, arguments, moving) = match inner {
        Expr::AggregateFunction(function) => (&mut function.func, &mut function.params.args, None),
        Expr::WindowFunction(function) => {
            let WindowFunctionDefinition::AggregateUDF(aggregate) = &mut function.fun else {
                return Ok((call, if floats::has_floats(&data_type) { Outcome::Floats } else { Outcome::Exact }));
            };
            let params = &mut function.params;
            let moving = (!params.window_frame.is_ever_expanding())
                .then(|| sliding_aggregate(aggregate.name(), &data_type, params.distinct));
            (aggregate, &mut params.args, moving.flatten())
        }
        _ => return Ok((call, Outcome::Exact)),
    };
    let name = aggregate.name().to_owned();
    let own = huge::of(&name, &data_type).or(moving);
    let other = match own {
        _ if floats::has_floats(&data_type) => Outcome::Floats,
        Some(_) => Outcome::Own,
        None => Outcome::Exact,
    };
    if let Some(own) = own {
        *aggregate = Arc::new(own);
    }
    let [argument] = arguments.as_mut_slice() else { return Ok((call, other)) };
    let is_of_floats = argument.get_type(schema)?.is_floating();
    let mut replace = |by: &dyn Fn(Expr) -> Expr| *argument = by(std::mem::take(argument));
    let outcome = match (name.as_str(), wider(&data_type)) {
        ("sum", Some(wide)) if matches!(data_type, DataType::Duration(_)) => {
            replace(&|argument| cast(cast(argument, DataType::Int64), wide.clone()));
            Outcome::SumsOfTicks(data_type)
        }
        ("sum", Some(wide)) => {
            replace(&|argument| cast(argument, wide.clone()));
            Outcome::Sums(data_type)
        }
        ("avg", _) if matches!(data_type, DataType::Duration(_)) => {
            // Few enough digits that their sum fits in 128 bits.
            replace(&|argument| cast(cast(argument, DataType::Int64), DataType::Decimal128(19, 0)));
            Outcome::MeansOfTicks(data_type)
        }
        ("min" | "max", _) if is_of_floats => {
            replace(&floats::order_of_floats);
            Outcome::Order
        }
        _ => other,
    };
    Ok((call, outcome))
}

/// Computes means of decimals of 32 and 64 bits in 128 bits, before a plan is type-checked: the engine's have as few
/// digits as the values, four of which it needs for the fraction, so that ordinary ones do not fit.
pub(crate) fn with_wide_means(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let widened = plan.transform_nodes(|node| {
        let schema = match &node {
            LogicalPlan::Aggregate(aggregate) => Arc::clone(aggregate.input.schema()),
            LogicalPlan::Window(window) => Arc::clone(window.input.schema()),
            _ => return node.recompute_schema().map(Transformed::yes),
        };
        let names = NamePreserver::new(&node);
        node.transform_expressions(|expr| {
            let name = names.save(&expr);
            let widened = expr.transform_up(|mut expr| {
                let is_wider = widen_mean(&mut expr, &schema);
                Ok(Transformed::new_transformed(expr, is_wider))
            })?;
            Ok(widened.update_data(|expr| name.restore(expr)))
        })?
        .map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(widened.data)
}

/// Casts the argument of such a mean, and returns whether `expr` is one.
fn widen_mean(expr: &mut Expr, schema: &DFSchema) -> bool {
    let (aggregate, arguments) = match expr {
        Expr::AggregateFunction(function) => (&function.func, &mut function.params.args),
        Expr::WindowFunction(function) => match &function.fun {
            WindowFunctionDefinition::AggregateUDF(aggregate) => (aggregate, &mut function.params.args),
            WindowFunctionDefinition::WindowUDF(_) => return false,
        },
        _ => return false,
    };
    let ("avg", [argument]) = (aggregate.name(), arguments.as_mut_slice()) else { return false };
    let Ok(DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale)) = argument.get_type(schema)
    else {
        return false;
    };
    *argument = cast(std::mem::take(argument), DataType::Decimal128(precision, scale));
    true
}

/// Returns our own aggregate of this name and type for a frame with a moving start, if the engine's must not be used.
fn sliding_aggregate(name: &str, data_type: &DataType, is_distinct: bool) -> Option<AggregateUDF> {
    match (is_distinct, data_type) {
        (false, DataType::Float64) => sliding::of_floats(name).or_else(|| sliding::of_pairs(name)),
        (true, data_type) if name == "sum" && matches!(wider(data_type), Some(DataType::Decimal128(..))) => {
            Some(sliding::of_different_decimals())
        }
        _ => None,
    }
}

/// Returns a type that holds all sums of values of `data_type`, if that does not.
fn wider(data_type: &DataType) -> Option<DataType> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256, Duration, Int64, UInt64};
    match data_type {
        Int64 | UInt64 | Duration(_) => Some(Decimal128(DECIMAL128_MAX_PRECISION, 0)),
        Decimal32(_, scale) | Decimal64(_, scale) => Some(Decimal128(DECIMAL128_MAX_PRECISION, *scale)),
        // A type with fewer digits gets ten more than the summands.
        Decimal128(DECIMAL128_MAX_PRECISION, scale) => Some(Decimal256(DECIMAL256_MAX_PRECISION, *scale)),
        _ => None,
    }
}
