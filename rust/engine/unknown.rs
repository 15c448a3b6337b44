//! What is said of a column that is not there: where it is written, what there is, and what may have been meant.

use std::collections::HashSet;
use std::ops::ControlFlow;

use arrow_schema::Schema;
use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::common::{Column, DataFusionError, Location, SchemaError};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use super::advice::tokens_of;
use super::parser;
use super::reason::shortened;
use super::walk;
use crate::error::{DATASET, Error};

/// Minimum similarity of a name to be suggested.
const NEAR_ENOUGH: f64 = 0.5;

/// What has the columns of a query that are not simply those of the dataset.
const TABLE: &str = "the table there";

/// What is said of a name that SELECT gives, where it is not known yet.
const EARLY: &str =
    "; WHERE and the list after SELECT do not see names given by AS: repeat the expression, or use a subquery";

/// Returns an [`Error::UnknownColumn`] with the names most similar to `name`.
pub fn unknown_column(shown: String, name: &str, schema: &Schema) -> Error {
    let available = names_of(schema);
    Error::UnknownColumn { column: shown, near: near(name, &available), available, owner: DATASET, hint: "" }
}

/// Returns the error for a column of a filter that `schema` does not have, if that is what `error` is.
pub(super) fn in_filter(sql: &str, schema: &Schema, error: &DataFusionError) -> Option<Error> {
    let Missing { field, at, .. } = Missing::of(error)?;
    Some(explained(sql, field, at, names_of(schema), DATASET))
}

/// Returns the error for a column of a query that there is not where it is written, if that is what `error` is; `schema`
/// is that of the dataset.
pub(crate) fn in_query(sql: &str, schema: &Schema, error: &DataFusionError) -> Option<Error> {
    let Missing { field, at, valid } = Missing::of(error)?;
    let mut seen = HashSet::new();
    let available = valid.iter().filter(|column| seen.insert(&column.name)).map(|column| column.name.clone());
    let available: Vec<String> = available.collect();
    let owner = if available == names_of(schema) { DATASET } else { TABLE };
    let mut unknown = explained(sql, field, at, available, owner);
    if let Error::UnknownColumn { hint: hint @ "", .. } = &mut unknown
        && valid.is_empty()
    {
        *hint = "; there is no FROM: write `FROM dataset`";
    }
    Some(unknown)
}

fn names_of(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}

/// What the engine says of a column that is not there.
struct Missing<'a> {
    field: &'a Column,
    at: Option<Location>,
    /// The columns that there are.
    valid: &'a [Column],
}

impl<'a> Missing<'a> {
    fn of(error: &'a DataFusionError) -> Option<Self> {
        let DataFusionError::SchemaError(schema_error, _) = error.find_root() else { return None };
        let SchemaError::FieldNotFound { field, valid_fields } = schema_error.as_ref() else { return None };
        let told = error.diagnostic().and_then(|diagnostic| diagnostic.span);
        Some(Self { field, at: told.or(field.spans.first()).map(|span| span.start), valid: valid_fields })
    }
}

/// Returns the error for a column that is none of `available`, which `owner` has.
fn explained(sql: &str, field: &Column, at: Option<Location>, available: Vec<String>, owner: &'static str) -> Error {
    let written = match &field.relation {
        Some(table) => format!("{}.{}", table.table(), field.name),
        None => field.name.clone(),
    };
    let Some(at) = at.or_else(|| place_of(sql, &field.name)) else {
        return Error::UnknownColumn {
            column: written,
            near: near(&field.name, &available),
            available,
            owner,
            hint: "",
        };
    };
    let column = format!("{written}` at line {}, column {} of `{}", at.line, at.column, shortened(sql));
    if is_alias(sql, &field.name, at) {
        return Error::UnknownColumn { column, near: Vec::new(), available: Vec::new(), owner, hint: EARLY };
    }
    let near = near(&field.name, &available);
    let hint = meant(sql, &written, field, &available, near.is_empty());
    Error::UnknownColumn { column, near, available, owner, hint }
}

/// Returns the names most similar to `name`.
fn near(name: &str, available: &[String]) -> Vec<String> {
    let lower = name.to_lowercase();
    let likeness = |other: &String| normalized_levenshtein(&lower, &other.to_lowercase());
    let mut near: Vec<(f64, &String)> = available.iter().map(|other| (likeness(other), other)).collect();
    near.retain(|(likeness, _)| *likeness >= NEAR_ENOUGH);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().take(3).map(|(_, name)| name.clone()).collect()
}

/// Returns what may have been meant by an unknown name: a column whose name has a dot or a space, or a string.
fn meant(sql: &str, written: &str, column: &Column, available: &[String], is_like_none: bool) -> &'static str {
    if column.relation.is_some() && available.iter().any(|name| name == written) {
        return "; write a name with a dot in double quotes";
    }
    let tokens = tokens_of(sql);
    if unquoted(&tokens, available.iter().map(String::as_str)).is_some() {
        return "; write a name with a space in double quotes";
    }
    let is_text = tokens.iter().enumerate().any(|(at, token)| match token {
        Token::Word(word) if word.value == column.name => {
            let before = at.checked_sub(1).map(|at| &tokens[at]);
            word.quote_style == Some('"') || matches!(before, Some(Token::Eq | Token::DoubleEq | Token::Neq))
        }
        _ => false,
    });
    if is_like_none && is_text { "; write text in single quotes" } else { "" }
}

/// Returns why SQL cannot be parsed, if that is because the name of a column has a space.
pub(super) fn about_spaces(sql: &str, reason: &str, schemas: &[&Schema]) -> Option<String> {
    if !reason.starts_with("Expected: ") {
        return None;
    }
    let names = schemas.iter().flat_map(|schema| schema.fields().iter()).map(|field| field.name().as_str());
    let name = unquoted(&tokens_of(sql), names)?;
    Some(format!("a name with a space is written in double quotes: `\"{name}\"`"))
}

/// Returns a name with a space that is written without quotes.
fn unquoted<'a>(tokens: &[Token], mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.find(|name| {
        let parts = if name.contains(' ') { tokens_of(name) } else { Vec::new() };
        parts.len() > 1 && tokens.windows(parts.len()).any(|some| some == parts)
    })
}

/// Returns the first place of a name, for a clause of which the engine does not say it.
fn place_of(sql: &str, name: &str) -> Option<Location> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().ok()?;
    let is_named = |token: &&TokenWithSpan| matches!(&token.token, Token::Word(word) if word.value == name);
    let start = tokens.iter().find(is_named)?.span.start;
    Some(Location { line: start.line, column: start.column })
}

/// Returns whether the name that is written at a place is one that the same SELECT gives to another of its columns.
fn is_alias(sql: &str, name: &str, at: Location) -> bool {
    let Ok(Statement::Statement(statement)) = parser::statement(sql) else { return false };
    walk::visit(statement.as_ref(), &mut Aliases { name, at }).is_break()
}

/// Ends at a SELECT that gives a name to a column, and uses it too early.
struct Aliases<'a> {
    name: &'a str,
    at: Location,
}

impl ast::Visitor for Aliases<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<()> {
        let gives = |item: &ast::SelectItem| match item {
            ast::SelectItem::ExprWithAlias { expr, alias } => alias.value == self.name && !self.is_in(expr),
            _ => false,
        };
        let is_used = self.is_in(&select.selection) || self.is_in(&select.projection);
        if is_used && select.projection.iter().any(gives) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Aliases<'_> {
    /// Returns whether a part of the statement has the place.
    fn is_in(&self, part: &impl ast::Visit) -> bool {
        let found = walk::visit_expressions(part, |expr: &ast::Expr| match expr {
            ast::Expr::Identifier(ident)
                if (ident.span.start.line, ident.span.start.column) == (self.at.line, self.at.column) =>
            {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        found.is_break()
    }
}
