//! Refuses queries that would take more stack than threads have, or time that grows far faster than their text.
//!
//! The engine checks a subquery once itself and once within every enclosing query, copies a common table to each place
//! that names it, and doubles the groupings for each column of a `CUBE`. Within these bounds, that takes a second or
//! two.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as PlanResult, plan_err};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast;

use crate::engine;
use crate::engine::walk::{self, Walk};

/// Maximum levels of operators in a plan.
const MAX_PLAN_DEPTH: usize = 200;

/// Maximum operators in a plan.
const MAX_PLAN_NODES: usize = 20_000;

/// Maximum nesting of subqueries, or of queries with a `WITH`.
const MAX_NESTED: usize = 16;

/// Maximum columns of a `CUBE`.
const MAX_CUBE: usize = 16;

/// Returns why a query is refused.
pub(super) fn of_text(query: &ast::Query) -> Option<String> {
    let is_large = num_tables(query, &HashMap::new()) > MAX_PLAN_NODES;
    is_large.then(too_large).or_else(|| walk::visit(query, &mut Nesting::default()).break_value())
}

/// Returns the number of tables that a query names, counting those of a common table in each place that names it.
/// `around` has the counts for the preceding common tables.
fn num_tables<'a>(query: &'a ast::Query, around: &HashMap<&'a str, usize>) -> usize {
    let mut common = around.clone();
    for table in query.with.iter().flat_map(|with| &with.cte_tables) {
        let num_named = num_tables(&table.query, &common);
        common.insert(&table.alias.name.value, num_named);
    }
    let mut num_named = 0_usize;
    walk::visit_relations(&query.body, |name| {
        let part = name.0.last().and_then(ast::ObjectNamePart::as_ident);
        let of_common = part.and_then(|part| common.get(part.value.as_str()));
        num_named = num_named.saturating_add(of_common.copied().unwrap_or(1));
    });
    num_named
}

fn too_large() -> String {
    format!(
        "it takes more than {MAX_PLAN_NODES} operators, those of a common table in each place that names it; split it into \
         several queries"
    )
}

#[derive(Default)]
struct Nesting {
    /// Number of enclosing queries with a `WITH`.
    num_with: usize,
}

impl ast::Visitor for Nesting {
    type Break = String;

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<String> {
        self.num_with += usize::from(query.with.is_some());
        if self.num_with <= MAX_NESTED {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(format!(
            "`WITH` nests more than {MAX_NESTED} levels deep; write `WITH a AS (...), b AS (...)` once"
        ))
    }

    fn post_visit_query(&mut self, query: &ast::Query) -> ControlFlow<String> {
        self.num_with -= usize::from(query.with.is_some());
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<String> {
        match expr {
            ast::Expr::Cube(columns) if columns.len() > MAX_CUBE => ControlFlow::Break(format!(
                "`CUBE` takes at most {MAX_CUBE} columns, got {}; each doubles the groupings: write those that you want, as \
                 `GROUPING SETS (...)`",
                columns.len()
            )),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Refuses plans that are too deep or too large.
pub(super) fn check_plan(plan: &LogicalPlan) -> PlanResult<()> {
    Plan { num_nodes: 0 }.check(plan, 1, 0)
}

struct Plan {
    num_nodes: usize,
}

impl Plan {
    fn check(&mut self, node: &LogicalPlan, depth: usize, num_outer: usize) -> PlanResult<()> {
        self.num_nodes += 1;
        if depth > MAX_PLAN_DEPTH {
            return plan_err!("it nests too deep; split it into several queries");
        }
        if num_outer > MAX_NESTED {
            return plan_err!(
                "subqueries nest more than {MAX_NESTED} levels deep; join tables, or split it into several queries"
            );
        }
        if self.num_nodes > MAX_PLAN_NODES {
            return plan_err!("{}", too_large());
        }
        node.inputs().into_iter().try_for_each(|input| self.check(input, depth + 1, num_outer))?;
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::Exists(Exists { subquery, .. })
                | Expr::InSubquery(InSubquery { subquery, .. })
                | Expr::SetComparison(SetComparison { subquery, .. })
                | Expr::ScalarSubquery(subquery) = expr
                {
                    self.check(&subquery.subquery, depth + 1, num_outer + 1)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(())
    }
}

/// Refuses plans with expressions that nest too deeply.
pub(super) fn check_expressions(plan: &LogicalPlan) -> PlanResult<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| match engine::nests_too_deep(expr) {
            Some(reason) => plan_err!("{reason}"),
            None => Ok(TreeNodeRecursion::Continue),
        })
    })?;
    Ok(())
}
