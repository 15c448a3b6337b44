//! Carries the identity of the dataset's rows through a query.
//!
//! A plan is rewritten so that its result has an additional column: the number of the dataset's row that each result
//! row comes from, or its position if the dataset has its own order. Where a row's identity ends (an aggregate, a
//! union), so does what can be streamed. Orders that SQL leaves open are completed by that number, so that a query has
//! one meaning: ties of `ORDER BY` and of window functions that work row by row, the rows that `LIMIT` keeps of
//! unordered ones, and the row that `DISTINCT ON` keeps; both here, and where the engine [sorts](super::ties).

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, Result as PlanResult};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::{DistinctOn, Projection, TableScanBuilder};
use datafusion::logical_expr::{
    Distinct, Expr, JoinType, LogicalPlan, LogicalPlanBuilder, Sort, SortExpr, WindowFrameUnits,
};

use super::table::{DatasetTable, ROW};
use crate::engine::walk::Walk;

/// Window functions whose value depends on the order of ties in their `ORDER BY`, and not on a frame.
const NUMBERING: [&str; 4] = ["row_number", "ntile", "lag", "lead"];

/// Functions whose value depends on the order of all rows of a frame.
const NAMING: [&str; 5] = ["first_value", "last_value", "nth_value", "array_agg", "string_agg"];

/// Functions whose value depends on peers, whatever their frame.
const RANKING: [&str; 4] = ["rank", "dense_rank", "percent_rank", "cume_dist"];

/// A plan whose result has the dataset's row numbers.
pub(super) struct Carried {
    pub(super) plan: LogicalPlan,
    /// The column with the row numbers.
    pub(super) row: Column,
}

/// Rewrites `plan` to carry row numbers; `None` where they end, with the reason in `why_not`.
pub(super) fn carry(plan: &LogicalPlan, why_not: &mut Option<String>) -> PlanResult<Option<Carried>> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let Some(table) = DatasetTable::of_source(&scan.source).filter(|table| table.is_subject()) else {
                return Ok(None);
            };
            let scan = TableScanBuilder::new(scan.table_name.clone(), table.with_row().into_source());
            let scan = scan.build()?;
            let row = Column::new(Some(scan.table_name.clone()), ROW);
            Ok(Some(Carried { plan: LogicalPlan::TableScan(scan), row }))
        }
        LogicalPlan::Projection(projection) => {
            let Some(Carried { plan, row }) = carry(&projection.input, why_not)? else { return Ok(None) };
            let mut exprs = projection.expr.clone();
            exprs.push(Expr::Column(row.clone()));
            let plan = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?);
            Ok(Some(Carried { plan, row }))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let Some(Carried { plan, row }) = carry(&alias.input, why_not)? else { return Ok(None) };
            let plan = LogicalPlanBuilder::from(plan).alias(alias.alias.clone())?.build()?;
            Ok(Some(Carried { plan, row: Column::new(Some(alias.alias.clone()), row.name) }))
        }
        LogicalPlan::Filter(_) | LogicalPlan::Repartition(_) => carry_through(plan, why_not),
        LogicalPlan::Sort(sort) => {
            let Some(Carried { plan, row }) = carry(&sort.input, why_not)? else { return Ok(None) };
            let mut expr = sort.expr.clone();
            expr.push(by(&row));
            Ok(Some(Carried { plan: LogicalPlan::Sort(Sort { expr, input: Arc::new(plan), fetch: sort.fetch }), row }))
        }
        LogicalPlan::Limit(limit) => {
            let Some(Carried { mut plan, row }) = carry(&limit.input, why_not)? else { return Ok(None) };
            if !is_ordered(&limit.input) && !is_as_stored(&limit.input) {
                plan = LogicalPlanBuilder::from(plan).sort([by(&row)])?.build()?;
            }
            let mut limit = limit.clone();
            limit.input = Arc::new(plan);
            Ok(Some(Carried { plan: LogicalPlan::Limit(limit), row }))
        }
        LogicalPlan::Window(window) => {
            let names = NamePreserver::new(plan);
            let Some(Carried { mut plan, row }) = carry(&window.input, why_not)? else { return Ok(None) };
            // The engine sorts once for all functions of a node.
            let (open, others): (Vec<_>, Vec<_>) = window.window_expr.iter().cloned().partition(leaves_order_open);
            let close = |expr| {
                let name = names.save(&expr);
                name.restore(close_order(expr, &row))
            };
            for exprs in [open.into_iter().map(close).collect(), others] {
                if !exprs.is_empty() {
                    plan = LogicalPlanBuilder::from(plan).window(exprs)?.build()?;
                }
            }
            Ok(Some(Carried { plan, row }))
        }
        LogicalPlan::Distinct(Distinct::On(distinct)) => carry_distinct(distinct, why_not),
        LogicalPlan::Join(join) => {
            let prefers_right = matches!(
                join.join_type,
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
            );
            let only_left = matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark);
            let only_right = prefers_right && join.join_type != JoinType::Right;
            let left = if only_right { None } else { carry(&join.left, why_not)? };
            let right = if only_left { None } else { carry(&join.right, why_not)? };
            let (inputs, row) = match (left, right) {
                (_, Some(right)) if prefers_right => (vec![join.left.as_ref().clone(), right.plan], right.row),
                (Some(left), _) => (vec![left.plan, join.right.as_ref().clone()], left.row),
                (None, Some(right)) => (vec![join.left.as_ref().clone(), right.plan], right.row),
                (None, None) => return Ok(None),
            };
            Ok(Some(Carried { plan: plan.with_new_exprs(plan.expressions(), inputs)?, row }))
        }
        other => {
            if let Some(said) = end_of_rows(other)
                && reads_subject(other)?
            {
                why_not.get_or_insert_with(|| said.to_owned());
            }
            Ok(None)
        }
    }
}

fn carry_through(plan: &LogicalPlan, why_not: &mut Option<String>) -> PlanResult<Option<Carried>> {
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else { return Ok(None) };
    let Some(Carried { plan: input, row }) = carry(input, why_not)? else { return Ok(None) };
    Ok(Some(Carried { plan: plan.with_new_exprs(plan.expressions(), vec![input])?, row }))
}

/// Keeps the first row by `ORDER BY`, and among ties the first of the dataset.
fn carry_distinct(distinct: &DistinctOn, why_not: &mut Option<String>) -> PlanResult<Option<Carried>> {
    let Some(Carried { plan, row }) = carry(&distinct.input, why_not)? else { return Ok(None) };
    let DistinctOn { on_expr, select_expr, sort_expr, .. } = distinct;
    let mut select_expr = select_expr.clone();
    select_expr.push(Expr::Column(row.clone()));
    let mut sort_expr =
        sort_expr.clone().unwrap_or_else(|| on_expr.iter().map(|on| on.clone().sort(true, false)).collect());
    sort_expr.push(by(&row));
    let carried = DistinctOn::try_new(on_expr.clone(), select_expr, Some(sort_expr), Arc::new(plan))?;
    Ok(Some(Carried { plan: LogicalPlan::Distinct(Distinct::On(carried)), row }))
}

/// Returns whether the rows of a plan's result are in an order that the query specifies.
pub(super) fn is_ordered(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Distinct(Distinct::On(distinct)) => distinct.sort_expr.is_some(),
        LogicalPlan::Projection(projection) => is_ordered(&projection.input),
        LogicalPlan::Limit(limit) => is_ordered(&limit.input),
        LogicalPlan::SubqueryAlias(alias) => is_ordered(&alias.input),
        // One with a subquery becomes a join, which is unordered.
        LogicalPlan::Filter(filter) => !asks_subquery(&filter.predicate) && is_ordered(&filter.input),
        _ => false,
    }
}

/// Returns whether the rows of a plan's result are in dataset order as they are read: the engine runs it in one
/// partition, so that the first ones found are the first.
fn is_as_stored(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(scan) => DatasetTable::of_source(&scan.source).is_some(),
        LogicalPlan::Projection(projection) => {
            !projection.expr.iter().any(asks_subquery) && is_as_stored(&projection.input)
        }
        LogicalPlan::Limit(limit) => is_as_stored(&limit.input),
        LogicalPlan::SubqueryAlias(alias) => is_as_stored(&alias.input),
        LogicalPlan::Filter(filter) => !asks_subquery(&filter.predicate) && is_as_stored(&filter.input),
        _ => false,
    }
}

fn asks_subquery(expr: &Expr) -> bool {
    let asks = expr.exists(|node| {
        Ok(matches!(node, Expr::InSubquery(_) | Expr::Exists(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_)))
    });
    asks.unwrap_or(true)
}

fn by(row: &Column) -> SortExpr {
    Expr::Column(row.clone()).sort(true, false)
}

/// Returns whether the value of a window function depends on the order of ties in its `ORDER BY`, but not on peers: one
/// more key completes that order and changes nothing else.
fn leaves_order_open(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => leaves_order_open(&alias.expr),
        Expr::WindowFunction(function) => {
            let (name, frame) = (function.fun.name(), &function.params.window_frame);
            let is_whole = frame.start_bound.is_unbounded() && frame.end_bound.is_unbounded();
            let is_of_rows = frame.units == WindowFrameUnits::Rows && (!is_whole || NAMING.contains(&name));
            NUMBERING.contains(&name) || is_of_rows && !RANKING.contains(&name)
        }
        _ => false,
    }
}

/// Breaks ties in a window function's `ORDER BY` by dataset order.
fn close_order(expr: Expr, row: &Column) -> Expr {
    match expr {
        Expr::Alias(mut alias) => {
            alias.expr = Box::new(close_order(*alias.expr, row));
            Expr::Alias(alias)
        }
        Expr::WindowFunction(function) => {
            let WindowFunction { fun, mut params } = *function;
            params.order_by.push(by(row));
            Expr::WindowFunction(Box::new(WindowFunction { fun, params }))
        }
        other => other,
    }
}

/// Returns the part of a plan that ends the identity of rows.
fn end_of_rows(plan: &LogicalPlan) -> Option<&'static str> {
    Some(match plan {
        LogicalPlan::Aggregate(_) => "an aggregate or GROUP BY makes one row of several",
        LogicalPlan::Distinct(Distinct::All(_)) => {
            "DISTINCT makes one row of several; `DISTINCT ON (...)` keeps one of them"
        }
        LogicalPlan::Union(_) => "UNION may hold a row several times",
        LogicalPlan::Unnest(_) => "UNNEST makes several rows of one",
        LogicalPlan::RecursiveQuery(_) => "a recursive query makes rows of its own",
        _ => return None,
    })
}

/// Returns whether a row of the dataset may occur several times in a plan's result.
pub(super) fn may_repeat_rows(plan: &LogicalPlan) -> bool {
    use JoinType::{LeftAnti, LeftMark, LeftSemi, RightAnti, RightMark, RightSemi};
    let is_join = matches!(plan, LogicalPlan::Join(join)
        if !matches!(join.join_type, LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark));
    is_join || plan.inputs().into_iter().any(may_repeat_rows)
}

/// Returns whether a plan reads the dataset.
pub(super) fn reads_subject(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut reads = false;
    plan.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && DatasetTable::of_source(&scan.source).is_some_and(|table| table.is_subject())
        {
            reads = true;
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(reads)
}
