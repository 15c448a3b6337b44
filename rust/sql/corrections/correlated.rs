//! Subqueries that refer to the rows around them. The engine moves their conditions out, to a join, past everything
//! that is above them. Where that gives other rows, they are refused, with what to write instead.
//!
//! Where the columns of all their tables belong to one, the join takes of two columns of one name one for the other.

use std::collections::HashMap;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, Result as PlanResult, TableReference};
use datafusion::logical_expr::expr::SetComparison;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Aggregate, Cast, Distinct, Expr, JoinType, LogicalPlan, Operator, SkipType, Subquery, Window,
};

use crate::engine::walk::Walk;

const AS_JOIN: &str = "write it as a join with these rows";
const NOT_HERE: &str = "a subquery that refers to rows around it is a column or a condition, but not an order, a group, \
                        or an argument of an aggregate or a window function; compute it in a subquery first: `SELECT \
                        ... FROM (SELECT d.*, (SELECT ...) AS c FROM dataset d) ORDER BY c`";
const COMPARED: &str = "a subquery that computes a total for each row around it can only compare its rows with \
                        that row by `=`; for other conditions, join and group: `SELECT d.id, max(t.v) FROM dataset d LEFT \
                        JOIN t ON t.k < d.id GROUP BY d.id`";
const TOTAL_IN_ROWS: &str = "a subquery in IN, ANY or EXISTS computes a total for each row around it and decides by \
                             HAVING or the like whether it is there; compare the total itself: `x = (SELECT count(*) \
                             ...)`, `(SELECT count(*) ...) > 1`";
const TOTAL_BELOW: &str = "a subquery computes a total for each row around it, and filters, joins, groups or counts \
                           this total; do so outside: `SELECT ... FROM (SELECT d.*, (SELECT count(*) ...) AS n FROM \
                           dataset d) WHERE n > 1`";
const CONSTANT: &str = "a subquery returns a constant beside a total for each row around it; write the constant outside \
                        the subquery";
const GROUPING: &str = "a subquery that refers to rows around it cannot use ROLLUP, CUBE or GROUPING SETS";
const WINDOW: &str = "a subquery chooses rows by a row around it, and a window function looks only at these; number \
                      them for all such rows, and choose after it: `FROM (SELECT *, rank() OVER (PARTITION BY k ORDER \
                      BY v) AS r FROM t) q WHERE q.k = d.id`";
const OPTIONAL: &str = "in a subquery, the optional side of an outer join refers to rows around it; make the other \
                        table the optional one, or join the dataset there";
const SETS: &str = "a subquery with UNION, INTERSECT or EXCEPT refers to rows around it; write a condition for each \
                    part, as in `EXISTS (SELECT ...) OR EXISTS (SELECT ...)`";
const LIMIT: &str = "a subquery with LIMIT, OFFSET or ORDER BY refers to rows around it; take `min(v)` or `max(v)`, \
                     `first_value(v ORDER BY k)`, or join `(SELECT *, row_number() OVER (PARTITION BY k ORDER BY v) AS \
                     r FROM t)` and keep `r = 1`";
const OFFSET: &str = "EXISTS with LIMIT or OFFSET refers to rows around it; compare how many there are: `(SELECT \
                      count(*) ...) > 1`";
const DISTINCT: &str = "a subquery with DISTINCT, or GROUP BY without an aggregate, compares rows with those around it \
                        by other than `column = ...`; leave DISTINCT to the outer query";
const VALUE: &str = "a subquery uses a column of the rows around it outside WHERE; write it in a condition there, or \
                     outside the subquery";
const UNNEST: &str = "`unnest` takes columns only of the table that its own SELECT reads; write it as a column there: \
                      `SELECT id, unnest(l) AS x FROM dataset`, and in FROM `(SELECT id, unnest(l) AS x FROM dataset) q`";

/// Where a subquery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `EXISTS`.
    Rows,
    /// `IN`, `ANY`, `ALL`.
    Members,
    /// A value.
    Value,
    /// `LATERAL`.
    Table,
}

/// Returns the subquery that an expression is.
pub(super) fn subquery_of(expr: &Expr) -> Option<(&Subquery, Kind)> {
    Some(match expr {
        Expr::InSubquery(inner) => (&inner.subquery, Kind::Members),
        Expr::SetComparison(SetComparison { subquery, .. }) => (subquery, Kind::Members),
        Expr::Exists(exists) => (&exists.subquery, Kind::Rows),
        Expr::ScalarSubquery(subquery) => (subquery, Kind::Value),
        _ => return None,
    })
}

/// Returns why a subquery of a plan would give other rows.
pub(crate) fn refused(plan: &LogicalPlan) -> PlanResult<Option<String>> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        for input in node.inputs() {
            if let LogicalPlan::Subquery(lateral) = input
                && found.is_none()
            {
                found = refused_in(&lateral.subquery, Kind::Table)?;
            }
        }
        let is_elsewhere = matches!(node, LogicalPlan::Sort(_) | LogicalPlan::Window(_) | LogicalPlan::Aggregate(_));
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                match subquery_of(part).filter(|(subquery, _)| !subquery.outer_ref_columns.is_empty()) {
                    Some((_, Kind::Value)) if is_elsewhere && found.is_none() => found = Some(NOT_HERE.to_owned()),
                    Some((subquery, kind)) if found.is_none() => found = refused_in(&subquery.subquery, kind)?,
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if found.is_none() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(found)
}

/// Returns why a subquery would give other rows.
pub(super) fn refused_in(subquery: &LogicalPlan, kind: Kind) -> PlanResult<Option<String>> {
    if let Some(reason) = refused_below(subquery, kind, kind == Kind::Rows)? {
        return Ok(Some(reason));
    }
    Ok(moved_out_of(subquery).err().map(|column| {
        let name = &column.name;
        format!(
            "a subquery in FROM compares `{column}` with rows around it; return this column from it under its own \
             name, and compare it outside: `FROM (SELECT {name}, ... FROM ...) q WHERE q.{name} = d.id`"
        )
    }))
}

/// Walks down to the conditions on rows around; `is_counted` says whether it only matters that there are rows.
fn refused_below(plan: &LogicalPlan, kind: Kind, is_counted: bool) -> PlanResult<Option<String>> {
    if !is_correlated(plan) {
        return Ok(None);
    }
    let mut is_counted = is_counted;
    let refused = match plan {
        // Its tables are joined on their own.
        LogicalPlan::Subquery(_) => return Ok(None),
        LogicalPlan::Filter(filter) => {
            is_counted = false;
            let reason = if matches!(kind, Kind::Rows | Kind::Members) { TOTAL_IN_ROWS } else { TOTAL_BELOW };
            has_total(&filter.input).then_some(reason)
        }
        _ if plan.contains_outer_reference() => Some(VALUE),
        LogicalPlan::Projection(projection) => {
            let is_table = matches!(kind, Kind::Value | Kind::Table);
            let is_constant = |expr: &Expr| !expr.any_column_refs();
            (is_table && has_total(&projection.input) && projection.expr.iter().any(is_constant)).then_some(CONSTANT)
        }
        LogicalPlan::SubqueryAlias(_) => None,
        LogicalPlan::Unnest(unnest) => unnest.input.contains_outer_reference().then_some(UNNEST),
        LogicalPlan::Limit(limit) => match limit.get_skip_type()? {
            SkipType::Literal(0) if is_counted => None,
            _ => Some(if kind == Kind::Rows { OFFSET } else { LIMIT }),
        },
        LogicalPlan::Sort(_) => Some(LIMIT),
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let keys: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
            of_distinct(&keys, input, kind)
        }
        LogicalPlan::Distinct(Distinct::On(_)) => Some(DISTINCT),
        LogicalPlan::Aggregate(aggregate) => {
            is_counted = false;
            of_aggregate(aggregate, kind)
        }
        LogicalPlan::Window(window) => {
            is_counted = false;
            of_window(window)
        }
        LogicalPlan::Join(join) => {
            use JoinType::{Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
            is_counted = false;
            let (left, right) = (is_correlated(&join.left), is_correlated(&join.right));
            match join.join_type {
                _ if has_total(&join.left) || has_total(&join.right) => Some(TOTAL_BELOW),
                Left if right => Some(OPTIONAL),
                Right if left => Some(OPTIONAL),
                Full => Some(OPTIONAL),
                // They come of sets.
                LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark => Some(SETS),
                Inner | Left | Right => None,
            }
        }
        LogicalPlan::Union(_) => Some(SETS),
        _ => return Ok(Some(format!("a subquery refers to rows around it below `{}`; {AS_JOIN}", plan.display()))),
    };
    if let Some(reason) = refused {
        return Ok(Some(reason.to_owned()));
    }
    for input in plan.inputs() {
        if let Some(reason) = refused_below(input, kind, is_counted)? {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Distinct rows stay so if the conditions compare only the columns of which they are.
fn of_distinct(keys: &[Expr], input: &LogicalPlan, kind: Kind) -> Option<&'static str> {
    if has_total(input) {
        return Some(TOTAL_BELOW);
    }
    let is_of_keys = |condition: &Expr| {
        is_equality(condition) || condition.column_refs().into_iter().all(|column| has_column(keys, column))
    };
    let is_table = matches!(kind, Kind::Value | Kind::Table);
    (is_table && !conditions_of(input).iter().all(is_of_keys)).then_some(DISTINCT)
}

fn of_aggregate(aggregate: &Aggregate, kind: Kind) -> Option<&'static str> {
    let input = &aggregate.input;
    if !is_correlated(input) {
        return None;
    }
    if has_total(input) {
        return Some(TOTAL_BELOW);
    }
    if aggregate.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
        return Some(GROUPING);
    }
    if aggregate.group_expr.is_empty() && matches!(kind, Kind::Rows | Kind::Members) {
        return Some(TOTAL_IN_ROWS);
    }
    if aggregate.aggr_expr.is_empty() {
        return of_distinct(&aggregate.group_expr, input, kind);
    }
    (!conditions_of(input).iter().all(is_equality)).then_some(COMPARED)
}

/// A window is right if the conditions choose whole partitions.
fn of_window(window: &Window) -> Option<&'static str> {
    let input = &window.input;
    if has_total(input) {
        return Some(TOTAL_BELOW);
    }
    let conditions = conditions_of(input);
    let is_whole = conditions.iter().flat_map(Expr::column_refs).all(|column| {
        window.window_expr.iter().all(|expr| match expr.clone().unalias() {
            Expr::WindowFunction(function) => has_column(&function.params.partition_by, column),
            _ => false,
        })
    });
    (!is_whole).then_some(WINDOW)
}

/// Returns whether a plan has conditions on rows around it, or other expressions of them.
fn is_correlated(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Subquery(_) => false,
        _ => plan.contains_outer_reference() || plan.inputs().into_iter().any(is_correlated),
    }
}

/// Returns whether a plan has a total of rows that are chosen by rows around it.
fn has_total(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Subquery(_) => false,
        LogicalPlan::Aggregate(Aggregate { group_expr, input, .. }) if is_correlated(input) => {
            group_expr.is_empty()
                || group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_)))
                || has_total(input)
        }
        _ => plan.inputs().into_iter().any(has_total),
    }
}

/// Returns the conditions of a plan on rows around it.
fn conditions_of(plan: &LogicalPlan) -> Vec<Expr> {
    let mut found = match plan {
        LogicalPlan::Subquery(_) => return Vec::new(),
        LogicalPlan::Filter(filter) => conditions(&filter.predicate).cloned().collect(),
        _ => Vec::new(),
    };
    found.extend(plan.inputs().into_iter().flat_map(conditions_of));
    found
}

fn conditions(predicate: &Expr) -> impl Iterator<Item = &Expr> {
    split_conjunction(predicate).into_iter().filter(|condition| condition.contains_outer())
}

/// Returns whether a condition on rows around chooses one value of a column.
fn is_equality(condition: &Expr) -> bool {
    let is_column = |side: &Expr| match side {
        Expr::Column(_) => true,
        Expr::Cast(Cast { expr, .. }) => matches!(**expr, Expr::Column(_)),
        _ => false,
    };
    match condition {
        Expr::BinaryExpr(both) if both.op == Operator::Eq => {
            (is_column(&both.left) && !both.right.any_column_refs())
                || (is_column(&both.right) && !both.left.any_column_refs())
        }
        _ => false,
    }
}

fn has_column(keys: &[Expr], column: &Column) -> bool {
    keys.iter().any(|key| matches!(key, Expr::Column(key) if key == column))
}

/// Returns the columns of moved conditions as a plan's output has them.
///
/// # Errors
///
/// A column that a subquery in `FROM` does not return.
fn moved_out_of(plan: &LogicalPlan) -> Result<Vec<Column>, Column> {
    if !is_correlated(plan) {
        return Ok(Vec::new());
    }
    let mut moved = Vec::new();
    for input in plan.inputs() {
        moved.extend(moved_out_of(input)?);
    }
    match plan {
        LogicalPlan::Filter(filter) => {
            moved.extend(conditions(&filter.predicate).flat_map(Expr::column_refs).cloned());
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let schema = alias.input.schema();
            if let Some(hidden) = moved.iter().find(|column| !schema.has_column(column)) {
                return Err(hidden.clone());
            }
            moved.iter_mut().for_each(|column| column.relation = Some(alias.alias.clone()));
        }
        _ => {}
    }
    Ok(moved)
}

/// Returns two columns of one name that a subquery compares with rows around it, or returns.
pub(crate) fn confused(plan: &LogicalPlan) -> PlanResult<Option<(Column, Column)>> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        let mut look_into = |subquery: &Subquery| {
            if !subquery.outer_ref_columns.is_empty() && found.is_none() {
                found = of_one_name(&subquery.subquery)?;
            }
            Ok(TreeNodeRecursion::Continue)
        };
        for input in node.inputs() {
            if let LogicalPlan::Subquery(lateral) = input {
                look_into(lateral)?;
            }
        }
        node.apply_expressions(|expr| {
            expr.apply(|part| match subquery_of(part) {
                Some((subquery, _)) => look_into(subquery),
                None => Ok(TreeNodeRecursion::Continue),
            })
        })
    })?;
    Ok(found)
}

fn of_one_name(subquery: &LogicalPlan) -> PlanResult<Option<(Column, Column)>> {
    let mut columns: Vec<Column> = subquery.schema().columns();
    subquery.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let moved = split_conjunction(&filter.predicate).into_iter().filter(|condition| condition.contains_outer());
            columns.extend(moved.flat_map(Expr::column_refs).cloned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut known: HashMap<String, TableReference> = HashMap::new();
    for column in columns {
        let Some(table) = column.relation.clone() else { continue };
        match known.get(&column.name) {
            Some(other) if *other != table => {
                return Ok(Some((Column::new(Some(other.clone()), column.name.clone()), column)));
            }
            _ => drop(known.insert(column.name, table)),
        }
    }
    Ok(None)
}
