//! Correlated subqueries as the engine answers them: it makes joins of them, and a total is no row there if it has no
//! rows. Only as a value it is corrected.
//!
//! A total without `HAVING` is one row. So it always exists, and being among its rows is being equal to it; `HAVING`
//! becomes a `CASE`, or for `EXISTS` a value. And whether rows exist does not depend on their columns and order.

use std::sync::Arc;

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Distinct, Expr, FetchType, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType, Subquery,
    binary_expr, lit, when,
};

use super::correlated::{self, Kind};
use super::missing::maybe_missing;
use crate::engine::walk::{Walk, WalkPlan};

/// Replaces subqueries that the engine gets wrong or refuses, where others are equivalent.
pub(crate) fn with_plain_totals(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let plain = plan.transform_nodes(|node| {
        let mut has_any = false;
        node.apply_expressions(|expr| {
            has_any |= expr.exists(|part| Ok(correlated::subquery_of(part).is_some()))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !has_any {
            return Ok(Transformed::no(node));
        }
        let names = NamePreserver::new(&node);
        node.transform_expressions(|expr| {
            let name = names.save(&expr);
            Ok(expr.transform_up(with_plain_total)?.update_data(|expr| name.restore(expr)))
        })
    })?;
    Ok(plain.data)
}

fn with_plain_total(expr: Expr) -> PlanResult<Transformed<Expr>> {
    // One that is perhaps left out may be NULL, as its type does not say.
    let expr = match expr {
        Expr::ScalarSubquery(subquery) => {
            let subquery = having_as_case(subquery)?;
            let is_there = is_one_row(&subquery.subquery);
            let subquery = if is_there { subquery } else { maybe_missing(subquery)? };
            return Ok(Transformed::yes(Expr::ScalarSubquery(subquery)));
        }
        expr => expr,
    };
    let Some((subquery, _)) = correlated::subquery_of(&expr).filter(|(of, _)| !of.outer_ref_columns.is_empty()) else {
        return Ok(Transformed::no(expr));
    };
    let is_value = is_one_row(&subquery.subquery) && subquery.subquery.schema().fields().len() == 1;
    Ok(Transformed::yes(match expr {
        Expr::Exists(exists) if is_one_row(&exists.subquery.subquery) => lit(!exists.negated),
        Expr::Exists(exists) if let Some(is_kept) = having_as_value(&exists.subquery)? => {
            if exists.negated {
                !is_kept
            } else {
                is_kept
            }
        }
        Expr::Exists(exists) => Expr::Exists(Exists { subquery: of_any_rows(exists.subquery)?, ..exists }),
        Expr::InSubquery(inner) if is_value => {
            let op = if inner.negated { Operator::NotEq } else { Operator::Eq };
            binary_expr(*inner.expr, op, Expr::ScalarSubquery(inner.subquery))
        }
        Expr::SetComparison(compared) if is_value => {
            binary_expr(*compared.expr, compared.op, Expr::ScalarSubquery(compared.subquery))
        }
        Expr::InSubquery(inner) => Expr::InSubquery(InSubquery { subquery: unordered(inner.subquery), ..inner }),
        Expr::SetComparison(compared) => {
            let subquery = unordered(compared.subquery);
            Expr::SetComparison(SetComparison { subquery, ..compared })
        }
        other => return Ok(Transformed::no(other)),
    }))
}

/// Returns whether a plan is a total, with exactly one row.
fn is_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => is_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_one_row(&alias.input),
        LogicalPlan::Sort(sort) => sort.fetch.is_none() && is_one_row(&sort.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}

/// Leaves out what decides only which columns and in which order, if the engine would refuse it.
fn of_any_rows(subquery: Subquery) -> PlanResult<Subquery> {
    if correlated::refused_in(&subquery.subquery, Kind::Rows)?.is_none() {
        return Ok(subquery);
    }
    let mut rows = &subquery.subquery;
    loop {
        rows = match rows.as_ref() {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
            LogicalPlan::Window(window) => &window.input,
            LogicalPlan::Distinct(Distinct::All(input)) => input,
            LogicalPlan::Distinct(Distinct::On(distinct)) => &distinct.input,
            LogicalPlan::Limit(limit)
                if matches!(limit.get_skip_type()?, SkipType::Literal(0))
                    && matches!(limit.get_fetch_type()?, FetchType::Literal(fetch) if fetch != Some(0)) =>
            {
                &limit.input
            }
            _ => break,
        };
    }
    if is_one_row(rows) {
        // The engine answers this one.
        let one = LogicalPlanBuilder::empty(true).project([lit(1_i64)])?.build()?;
        return Ok(Subquery { subquery: Arc::new(one), outer_ref_columns: Vec::new(), ..subquery });
    }
    let outer_ref_columns = rows.all_out_ref_exprs();
    let rows = LogicalPlanBuilder::from(rows.as_ref().clone()).project([lit(1_i64)])?.build()?;
    Ok(Subquery { subquery: Arc::new(rows), outer_ref_columns, ..subquery })
}

fn unordered(subquery: Subquery) -> Subquery {
    match subquery.subquery.as_ref() {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => Subquery { subquery: Arc::clone(&sort.input), ..subquery },
        _ => subquery,
    }
}

/// Makes the total NULL that `HAVING` leaves out.
fn having_as_case(subquery: Subquery) -> PlanResult<Subquery> {
    let Some((values, having)) = having_of(&subquery)? else { return Ok(subquery) };
    let [value] = values else { return Ok(subquery) };
    let name = value.schema_name().to_string();
    let value = when(having.predicate.clone(), value.clone().unalias()).end()?.alias(name);
    with_value(&subquery, value, having)
}

/// Returns whether `HAVING` keeps a total.
fn having_as_value(subquery: &Subquery) -> PlanResult<Option<Expr>> {
    let Some((_, having)) = having_of(subquery)? else { return Ok(None) };
    let is_kept = with_value(subquery, having.predicate.clone().alias("having"), having)?;
    Ok(Some(Expr::ScalarSubquery(is_kept).is_true()))
}

/// Returns the columns of a total, and its `HAVING` if that is a value.
fn having_of(subquery: &Subquery) -> PlanResult<Option<(&[Expr], &Filter)>> {
    let LogicalPlan::Projection(Projection { expr, input, .. }) = subquery.subquery.as_ref() else { return Ok(None) };
    let LogicalPlan::Filter(having) = input.as_ref() else { return Ok(None) };
    // The engine would look for the total of no rows, and finds none of another subquery.
    let has_others = having.predicate.exists(|part| Ok(correlated::subquery_of(part).is_some()))?;
    let is_value = !has_others && !having.predicate.contains_outer() && is_one_row(&having.input);
    Ok(is_value.then_some((expr, having)))
}

fn with_value(subquery: &Subquery, value: Expr, having: &Filter) -> PlanResult<Subquery> {
    let rows = Projection::try_new(vec![value], Arc::clone(&having.input))?;
    Ok(Subquery { subquery: Arc::new(LogicalPlan::Projection(rows)), ..subquery.clone() })
}
