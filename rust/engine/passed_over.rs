//! Finds clauses of other dialects that the parser accepts and the planner ignores, which would silently return other
//! rows than requested.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast;

use super::session::session;
use super::walk;

/// Returns a clause of a statement or an expression that would be ignored; `is_brought` recognizes user-defined
/// functions.
pub(crate) fn passed_over(parsed: &impl ast::Visit, is_brought: impl Fn(&str) -> bool) -> Option<&'static str> {
    walk::visit(parsed, &mut Search { is_brought }).break_value()
}

/// Returns the names that `* REPLACE (... AS name)` gives to values of a statement, except in unused `WITH` tables,
/// which are not in its plan.
pub(crate) fn replaced(parsed: &impl ast::Visit) -> BTreeSet<String> {
    let mut last: Option<Replaced> = None;
    loop {
        let mut next = Replaced { used: last.as_ref().map(|last| last.tables.clone()), ..Replaced::default() };
        let ControlFlow::Continue(()) = walk::visit(parsed, &mut next);
        // Each round drops tables that the previous one still had.
        if next.names.is_empty() || next.used.as_ref() == Some(&next.tables) {
            return next.names;
        }
        last = Some(next);
    }
}

/// Returns one of the [`replaced`] names that does not occur in a plan: the planner ignores names that are not columns.
pub(crate) fn unreplaced(mut names: BTreeSet<String>, plan: &LogicalPlan) -> PlanResult<Option<String>> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            if let Expr::Alias(alias) = expr {
                names.remove(&alias.name);
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(names.pop_first())
}

#[derive(Default)]
struct Replaced {
    names: BTreeSet<String>,
    /// Tables that are named by what is used.
    tables: BTreeSet<String>,
    /// Those found by the last round; initially all.
    used: Option<BTreeSet<String>>,
    unused: Vec<*const ast::Query>,
    num_unused_around: usize,
}

impl ast::Visitor for Replaced {
    type Break = Infallible;

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<Self::Break> {
        self.num_unused_around += usize::from(self.unused.contains(&std::ptr::from_ref(query)));
        if let (Some(used), Some(with)) = (&self.used, &query.with) {
            let unused = with.cte_tables.iter().filter(|table| !used.contains(&table.alias.name.value));
            self.unused.extend(unused.map(|table| std::ptr::from_ref(table.query.as_ref())));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &ast::Query) -> ControlFlow<Self::Break> {
        self.num_unused_around -= usize::from(self.unused.contains(&std::ptr::from_ref(query)));
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ast::ObjectName) -> ControlFlow<Self::Break> {
        if self.num_unused_around == 0 {
            self.tables.extend(relation.0.iter().filter_map(|part| Some(part.as_ident()?.value.clone())));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<Self::Break> {
        if self.num_unused_around > 0 {
            return ControlFlow::Continue(());
        }
        let replacements = select.projection.iter().filter_map(|item| match item {
            ast::SelectItem::Wildcard(options) | ast::SelectItem::QualifiedWildcard(_, options) => {
                options.opt_replace.as_ref()
            }
            _ => None,
        });
        self.names.extend(replacements.flat_map(|replace| &replace.items).map(|item| item.column_name.value.clone()));
        ControlFlow::Continue(())
    }
}

struct Search<F> {
    is_brought: F,
}

impl<F: Fn(&str) -> bool> ast::Visitor for Search<F> {
    type Break = &'static str;

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<Self::Break> {
        first(&[
            (!query.locks.is_empty(), "`FOR UPDATE` and `FOR SHARE` lock nothing here; leave them out"),
            (query.for_clause.is_some(), "`FOR XML` and `FOR JSON` are not supported; leave them out"),
            (query.settings.is_some(), "`SETTINGS` is not supported; leave it out"),
            (query.format_clause.is_some(), "`FORMAT` is not supported; leave it out"),
            (names_windows(&query.order_by), NAMED_ELSEWHERE),
            (counts_rows(&query.body), COUNTED),
        ])
    }

    fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<Self::Break> {
        let (ast::GroupByExpr::All(modifiers) | ast::GroupByExpr::Expressions(_, modifiers)) = &select.group_by;
        let is_derived = |window: &ast::NamedWindowDefinition| match &window.1 {
            ast::NamedWindowExpr::NamedWindow(_) => true,
            ast::NamedWindowExpr::WindowSpec(spec) => spec.window_name.is_some(),
        };
        first(&[
            (
                select.flavor == ast::SelectFlavor::FromFirstNoSelect,
                "`FROM` alone selects nothing; write `SELECT *` before it",
            ),
            (
                select.projection.iter().any(is_of_a_pattern),
                "`* ILIKE` is not supported; name the columns, or write `* EXCLUDE (...)`",
            ),
            (select.prewhere.is_some(), "`PREWHERE` is not supported; write `WHERE`"),
            (!select.connect_by.is_empty(), "`CONNECT BY` is not supported; write `WITH RECURSIVE`"),
            (!select.distribute_by.is_empty(), "`DISTRIBUTE BY` is not supported; leave it out"),
            (!modifiers.is_empty(), "write `GROUP BY ROLLUP (...)`, `CUBE (...)` or `GROUPING SETS (...)`"),
            (select.named_window.iter().any(is_derived), DERIVED),
            (names_windows(&select.qualify) || names_windows(&select.having), NAMED_ELSEWHERE),
        ])
    }

    fn pre_visit_table_factor(&mut self, table: &ast::TableFactor) -> ControlFlow<Self::Break> {
        let ast::TableFactor::Table { with_hints, partitions, with_ordinality, .. } = table else {
            return ControlFlow::Continue(());
        };
        first(&[
            (!partitions.is_empty(), "`PARTITION (...)` after a table is not supported; write `WHERE`"),
            (!with_hints.is_empty(), "`WITH (...)` after a table is not supported; leave it out"),
            (*with_ordinality, "`WITH ORDINALITY` is not supported; write `row_number() OVER ()`"),
        ])
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<Self::Break> {
        if is_variable(expr) {
            return ControlFlow::Break("`@name` is not a parameter; write `$name`, or a column in double quotes");
        }
        if let ast::Expr::SimilarTo { .. } = expr {
            return ControlFlow::Break(
                "`SIMILAR TO` is not supported; write `regexp_like(x, '^(...)$')`, or `x LIKE '...'`",
            );
        }
        if let ast::Expr::RLike { .. } = expr {
            return ControlFlow::Break("`REGEXP` and `RLIKE` are not supported; write `x ~ '...'`");
        }
        if let ast::Expr::Collate { .. } = expr {
            return ControlFlow::Break(
                "`COLLATE` is not supported; texts are compared by their code points, `lower(x)` folds case",
            );
        }
        let ast::Expr::Function(call) = expr else { return ControlFlow::Continue(()) };
        let name = name_of(&call.name);
        let (is_distinct, has_clauses) = match &call.args {
            ast::FunctionArguments::List(list) => {
                (list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct), !list.clauses.is_empty())
            }
            _ => (false, false),
        };
        let is_of_rows = call.over.is_some()
            || call.filter.is_some()
            || call.null_treatment.is_some()
            || !call.within_group.is_empty()
            || is_distinct
            || has_clauses;
        let is_scalar = || (self.is_brought)(&name) || session().scalar_functions().contains_key(&name);
        let is_of_window = || call.over.is_some() && session().window_functions().contains_key(&name);
        let is_derived = matches!(&call.over, Some(ast::WindowType::WindowSpec(spec)) if spec.window_name.is_some());
        first(&[
            (call.parameters != ast::FunctionArguments::None, "a function takes its arguments in one pair of brackets"),
            (is_derived, DERIVED),
            (
                is_of_rows && is_scalar(),
                "a function of one row takes no `OVER`, `FILTER`, `DISTINCT`, `ORDER BY`, `WITHIN GROUP` or `IGNORE \
                 NULLS`",
            ),
            (
                (call.filter.is_some() || is_distinct) && is_of_window(),
                "a window function that is not an aggregate takes no `FILTER` and no `DISTINCT`; write `CASE` in its \
                 argument",
            ),
        ])
    }
}

const DERIVED: &str = "a window cannot extend another one; write out its `PARTITION BY`, `ORDER BY` and frame";

const NAMED_ELSEWHERE: &str = "a window can be used by name only in the list after `SELECT`; write the window out";

const COUNTED: &str = "`INTERSECT ALL` and `EXCEPT ALL` are not supported; number equal rows on both sides, as in \
                       `SELECT x, row_number() OVER (PARTITION BY x) FROM ...`, and leave `ALL` out";

/// Returns whether a set operation pairs equal rows, which the planner does not.
fn counts_rows(set: &ast::SetExpr) -> bool {
    use ast::{SetOperator, SetQuantifier};
    let ast::SetExpr::SetOperation { op, set_quantifier, left, right } = set else { return false };
    let is_counted = matches!(set_quantifier, SetQuantifier::All | SetQuantifier::AllByName);
    is_counted && *op != SetOperator::Union || counts_rows(left) || counts_rows(right)
}

/// Returns whether an item is all columns whose names match a pattern.
fn is_of_a_pattern(item: &ast::SelectItem) -> bool {
    match item {
        ast::SelectItem::Wildcard(options) | ast::SelectItem::QualifiedWildcard(_, options) => {
            options.opt_ilike.is_some()
        }
        _ => false,
    }
}

/// Returns whether the planner treats an expression as a variable.
fn is_variable(expr: &ast::Expr) -> bool {
    let first = match expr {
        ast::Expr::Identifier(ident) => Some(ident),
        ast::Expr::CompoundIdentifier(idents) => idents.first(),
        _ => None,
    };
    first.is_some_and(|ident| ident.quote_style.is_none() && ident.value.starts_with('@'))
}

/// Returns whether a window is named anywhere in `parsed`.
fn names_windows(parsed: &impl ast::Visit) -> bool {
    let found = walk::visit_expressions(parsed, |expr: &ast::Expr| match expr {
        ast::Expr::Function(call) if matches!(call.over, Some(ast::WindowType::NamedWindow(_))) => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Returns the text of the first case that is true.
fn first(cases: &[(bool, &'static str)]) -> ControlFlow<&'static str> {
    match cases.iter().find(|(is_so, _)| *is_so) {
        Some((_, text)) => ControlFlow::Break(text),
        None => ControlFlow::Continue(()),
    }
}

/// Returns the name of a function as the planner looks it up.
fn name_of(name: &ast::ObjectName) -> String {
    match name.0.as_slice() {
        [ast::ObjectNamePart::Identifier(ident)] if ident.quote_style.is_none() => ident.value.to_lowercase(),
        [ast::ObjectNamePart::Identifier(ident)] => ident.value.clone(),
        _ => name.to_string(),
    }
}
