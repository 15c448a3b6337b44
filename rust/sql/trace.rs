//! Traces the columns of a query back to the dataset.
//!
//! A column that depends on the row alone is computed when the row is read, and costs nothing before. One that comes
//! from another table, or from other rows, is found when the query is answered, and kept.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result as PlanResult};
use datafusion::logical_expr::{Distinct, Expr, JoinType, LogicalPlan, Volatility};

use super::table::{DatasetTable, ROW};
use crate::dataset::Dataset;
use crate::dataset::outputs::Origin;
use crate::engine;
use crate::engine::walk::Walk;

/// Maximum terms taken from columns that are themselves computed: with more, columns are found like those of other
/// tables. `y + y AS y` doubles them in each enclosing subquery.
const MAX_TAKEN: usize = 50_000;

/// Returns column `index` of a [carried](super::carry) plan's result as an expression over the columns of the snapshot;
/// `None` if it does not depend on the row alone.
pub(super) fn trace(plan: &LogicalPlan, index: usize) -> PlanResult<Option<Expr>> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let Some(table) = DatasetTable::of_source(&scan.source).filter(|table| table.has_row()) else {
                return Ok(None);
            };
            Ok(stored(table.dataset(), index))
        }
        LogicalPlan::Projection(projection) => trace_expr(projection.expr.get(index), &projection.input),
        LogicalPlan::Distinct(Distinct::On(distinct)) => trace_expr(distinct.select_expr.get(index), &distinct.input),
        LogicalPlan::SubqueryAlias(alias) => trace(&alias.input, index),
        LogicalPlan::Filter(filter) => trace(&filter.input, index),
        LogicalPlan::Sort(sort) => trace(&sort.input, index),
        LogicalPlan::Limit(limit) => trace(&limit.input, index),
        LogicalPlan::Window(window) if index < window.input.schema().fields().len() => trace(&window.input, index),
        LogicalPlan::Join(join) => {
            use JoinType::{LeftMark, RightAnti, RightMark, RightSemi};
            let (side, index) = match (join.join_type, index.checked_sub(join.left.schema().fields().len())) {
                (RightSemi | RightAnti | RightMark, _) => (&join.right, index),
                (LeftMark, Some(_)) => return Ok(None),
                (_, Some(index)) => (&join.right, index),
                (_, None) => (&join.left, index),
            };
            let is_carrying = side.schema().fields().iter().any(|field| field.name() == ROW);
            if is_carrying { trace(side, index) } else { Ok(None) }
        }
        _ => Ok(None),
    }
}

/// Returns an expression over the columns of `input` as one over the columns of the snapshot.
pub(super) fn trace_expr(expr: Option<&Expr>, input: &Arc<LogicalPlan>) -> PlanResult<Option<Expr>> {
    let Some(expr) = expr else { return Ok(None) };
    if !is_of_the_row(expr)? {
        return Ok(None);
    }
    let (mut known, mut num_taken) = (HashMap::new(), 0);
    let mut is_traced = true;
    let traced = expr.clone().unalias().transform_up(|node| {
        Ok(match node {
            Expr::Column(column) => {
                let place = DFSchema::index_of_column(input.schema(), &column)?;
                let found = match known.entry(place) {
                    Entry::Occupied(found) => found.into_mut(),
                    Entry::Vacant(new) => new.insert(trace(input, place)?.map(|traced| (num_nodes(&traced), traced))),
                };
                num_taken += found.as_ref().map_or(0, |(num_nodes, _)| num_nodes - 1);
                match found {
                    Some((_, traced)) if num_taken <= MAX_TAKEN => Transformed::yes(traced.clone()),
                    _ => {
                        is_traced = false;
                        Transformed::new(Expr::Column(column), false, TreeNodeRecursion::Stop)
                    }
                }
            }
            Expr::Alias(alias) => Transformed::yes(*alias.expr),
            other => Transformed::no(other),
        })
    })?;
    Ok((is_traced && engine::nests_too_deep(&traced.data).is_none()).then_some(traced.data))
}

fn num_nodes(expr: &Expr) -> usize {
    let mut num_nodes = 0;
    // The walk only counts, so it cannot fail.
    drop(expr.apply(|_| {
        num_nodes += 1;
        Ok(TreeNodeRecursion::Continue)
    }));
    num_nodes
}

/// Returns whether an expression gives the same value for the same row, regardless of its context.
pub(super) fn is_of_the_row(expr: &Expr) -> PlanResult<bool> {
    let mut is_of_the_row = true;
    expr.apply(|node| {
        is_of_the_row &= match node {
            Expr::ScalarFunction(call) => call.func.signature().volatility == Volatility::Immutable,
            Expr::AggregateFunction(_)
            | Expr::WindowFunction(_)
            | Expr::InSubquery(_)
            | Expr::SetComparison(_)
            | Expr::ScalarSubquery(_)
            | Expr::Exists(_)
            | Expr::OuterReferenceColumn(..)
            | Expr::Unnest(_) => false,
            _ => true,
        };
        Ok(if is_of_the_row { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_of_the_row)
}

/// Returns a dataset's column `index` as an expression over the columns of its snapshot.
pub(super) fn stored(dataset: &Dataset, index: usize) -> Option<Expr> {
    match dataset.origins().get(index)? {
        Origin::Stored(column) => {
            let name = dataset.snapshot().schema.fields().get(*column)?.name();
            Some(Expr::Column(datafusion::common::Column::new_unqualified(name.clone())))
        }
        Origin::Computed(computed) => Some(computed.expr().clone()),
        Origin::Attached(_) => None,
    }
}
