//! Turns SQL text into a typed, simplified filter, which is shallow: long chains of `AND` and `OR` are balanced trees.
//!
//! The engine parses, type-checks and simplifies; everything happens during the call.
//!
//! Semantics are SQL's, even where DataFusion goes by the bits of a float ([`floats`]). Identifiers are
//! case-sensitive, quoted or not, like column names in Parquet.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_schema::{DataType, Fields, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, ExprSchemable, Volatility};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::engine::labels::Names;
use crate::engine::moments::compared_in_their_unit;
use crate::engine::operators::planned_here;
use crate::engine::passed_over::passed_over;
use crate::engine::walk::{self, Walk};
use crate::engine::{
    apart, balance, constants, explain, fields, floats, is_long_chain, lists, literals, nests_too_deep, no_parameter,
    numbers, parser, reason, session, shortened, too_deep, with_large_stack,
};
use crate::error::{Error, Result};
use crate::features;

/// Why filters have no subqueries, and the alternative.
const NO_SUBQUERY: &str =
    "a filter decides row by row, without a subquery; `sql` runs `SELECT * FROM dataset WHERE ...`";

/// A filter as it is evaluated.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) expr: Expr,
    /// What its text leaves open, as comments: the numbers of the classes that it names.
    pub(crate) comment: String,
}

/// Returns `sql`, with `parameters` for each `$name`, as a Boolean expression over `schema`: type-checked, simplified,
/// shallow.
///
/// # Errors
///
/// [`Error::UnknownColumn`], [`Error::UnknownClass`], [`Error::NotBoolean`] and [`Error::Sql`], each with what was
/// written.
pub(crate) fn parse(sql: &str, schema: &SchemaRef, parameters: &BTreeMap<String, ScalarValue>) -> Result<Parsed> {
    with_large_stack(sql, || parse_here(sql, schema, parameters))
}

fn parse_here(sql: &str, schema: &SchemaRef, parameters: &BTreeMap<String, ScalarValue>) -> Result<Parsed> {
    let state = session();
    let known = mentioned(sql, &features::spread(schema));
    let df_schema = DFSchema::try_from(known).map_err(|error| explain(sql, schema, &error))?;
    let mut parsed = parser::expression(sql).map_err(|error| explain(sql, schema, &error))?;
    if let Some(name) = &parsed.alias {
        let reason = format!("a filter has no name; leave `AS {name}` out");
        return Err(Error::Sql { sql: shortened(sql), reason });
    }
    if let Some(reason) = passed_over(&parsed.expr, |_| false).or_else(|| subquery_in(&parsed.expr)) {
        return Err(Error::Sql { sql: shortened(sql), reason: reason.to_owned() });
    }
    refuse_long_chain(sql, &parsed.expr)?;
    literals::keep_digits(&mut parsed.expr);
    planned_here(&mut parsed.expr);
    let expr = state.create_logical_expr_from_sql_expr(parsed, &df_schema);
    let expr = expr.and_then(balance).map_err(|error| explain(sql, schema, &error))?;
    let expr = bind(sql, expr, parameters)?;
    let expr = constants::folded(expr).map_err(|error| explain(sql, schema, &error))?.data;
    let expr = literals::with_known_members(expr).map_err(|error| explain(sql, schema, &error))?.data;
    let mut names = Names::default();
    let expr = names.number(expr, &df_schema).map_err(|error| explain(sql, schema, &error))?.data;
    if let Some(refused) = names.refused {
        return Err(refused);
    }
    let expr = compared_in_their_unit(expr, &df_schema).map_err(|error| explain(sql, schema, &error))?.data;
    let expr = literals::compared_exactly(expr, &df_schema).map_err(|error| explain(sql, schema, &error))?.data;
    refuse_unstable(sql, &expr)?;
    refuse_deep(sql, &expr)?;
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(df_schema.clone()))
        .with_config_options(Arc::clone(state.config_options()))
        .build();
    let simplifier = ExprSimplifier::new(context);
    let coerced = simplifier
        .coerce(expr.clone(), &df_schema)
        .map_err(|error| misfit(sql, schema, &df_schema, &simplifier, &expr, &error))?;
    match coerced.get_type(&df_schema).map_err(|error| explain(sql, schema, &error))? {
        DataType::Boolean | DataType::Null => {}
        got => return Err(Error::NotBoolean { sql: shortened(sql), got: Box::new(got) }),
    }
    let plan = || {
        let exact =
            numbers::checked_numbers(apart::from_simplifier(apart::keep_cases(coerced)?, &df_schema)?, &df_schema)?;
        lists::simplified(&simplifier, floats::with_canonical_floats(exact, &df_schema)?)
    };
    let simple = plan().and_then(balance).map_err(|error| explain(sql, schema, &error))?;
    refuse_deep(sql, &simple)?;
    Ok(Parsed { expr: simple, comment: names.comment() })
}

/// Replaces each `$name` by its value; all must be used.
fn bind(sql: &str, expr: Expr, parameters: &BTreeMap<String, ScalarValue>) -> Result<Expr> {
    if parameters.is_empty() {
        return Ok(expr);
    }
    let mut used = HashSet::new();
    let bound = expr.transform_up(|node| {
        let Expr::Placeholder(placeholder) = &node else { return Ok(Transformed::no(node)) };
        let Some((name, value)) = placeholder.id.strip_prefix('$').and_then(|name| parameters.get_key_value(name))
        else {
            return Ok(Transformed::no(node));
        };
        used.insert(name.as_str());
        Ok(Transformed::yes(Expr::Literal(value.clone(), None)))
    });
    let bound: PlanResult<Transformed<Expr>> = bound;
    let refused = |reason| Error::Sql { sql: shortened(sql), reason };
    let bound = bound.map_err(|error| refused(reason(&error)))?.data;
    match parameters.keys().find(|name| !used.contains(name.as_str())) {
        Some(name) => {
            Err(refused(format!("the parameter `{name}` is not in it; write `${name}` where its value belongs")))
        }
        None => Ok(bound),
    }
}

/// Returns the columns of `schema` whose names occur in `sql`: the planner searches all of them for every operand.
fn mentioned(sql: &str, schema: &SchemaRef) -> Schema {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default();
    let words: HashSet<&str> = tokens
        .iter()
        .filter_map(|token| if let Token::Word(word) = token { Some(word.value.as_str()) } else { None })
        .collect();
    Schema::new(
        schema.fields().iter().filter(|field| words.contains(field.name().as_str())).cloned().collect::<Fields>(),
    )
}

/// Refuses `a + b + c + ...`, `a::int::int...` and so on beyond [`MAX_DEPTH`] before typing, whose time is quadratic in
/// their length. The parser bounds the other ways to nest; chains of `AND` and `OR` are rebuilt.
fn refuse_long_chain(sql: &str, parsed: &ast::Expr) -> Result<()> {
    let is_long = walk::visit_expressions(parsed, |expr: &ast::Expr| {
        if is_long_chain(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if is_long.is_break() { Err(too_deep(sql)) } else { Ok(()) }
}

/// Refuses what [nests too deep](nests_too_deep).
fn refuse_deep(sql: &str, expr: &Expr) -> Result<()> {
    match nests_too_deep(expr) {
        Some(reason) => Err(Error::Sql { sql: shortened(sql), reason }),
        None => Ok(()),
    }
}

/// Returns the negation of a parsed filter, simplified so that statistics can decide it.
pub(super) fn negated(filter: &Expr, schema: &SchemaRef) -> Option<Expr> {
    let df_schema = DFSchema::try_from(Arc::clone(schema)).ok()?;
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(df_schema))
        .with_config_options(Arc::clone(session().config_options()))
        .build();
    lists::simplified(&ExprSimplifier::new(context), Expr::Not(Box::new(filter.clone()))).ok()
}

/// Returns why an expression with a subquery is not a filter; the planner would look for the subquery's tables.
fn subquery_in(expr: &ast::Expr) -> Option<&'static str> {
    let found = walk::visit_expressions(expr, |part: &ast::Expr| match part {
        ast::Expr::InSubquery { .. } | ast::Expr::Subquery(_) | ast::Expr::Exists { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break().then_some(NO_SUBQUERY)
}

/// Refuses functions whose value does not depend on the row alone: a selection must be well-defined.
fn refuse_unstable(sql: &str, expr: &Expr) -> Result<()> {
    let mut unstable = None;
    let walked = expr.apply(|node| {
        match node {
            Expr::ScalarFunction(call) if call.func.signature().volatility != Volatility::Immutable => {
                unstable = Some(format!(
                    "`{}()` depends on more than the row (the clock or chance), so the selection would not be \
                     reproducible; write its value out",
                    call.name()
                ));
                return Ok(TreeNodeRecursion::Stop);
            }
            Expr::AggregateFunction(_) | Expr::WindowFunction(_) => {
                unstable = Some(format!(
                    "`{node}` looks at more than one row; a filter decides row by row, `sql` runs whole SELECTs"
                ));
                return Ok(TreeNodeRecursion::Stop);
            }
            Expr::Placeholder(placeholder) => {
                unstable = Some(if placeholder.id.starts_with('$') {
                    format!("`{node}` has no value; write the value out, or pass it in `params`")
                } else {
                    no_parameter(&placeholder.id)
                });
                return Ok(TreeNodeRecursion::Stop);
            }
            Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::Exists(_) => {
                unstable = Some(NO_SUBQUERY.into());
                return Ok(TreeNodeRecursion::Stop);
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    });
    walked.map_err(|error| Error::Sql { sql: shortened(sql), reason: reason(&error) })?;
    unstable.map_or(Ok(()), |reason| Err(Error::Sql { sql: shortened(sql), reason }))
}

/// Explains a failed coercion by the smallest part of `expr` that fails on its own.
fn misfit(
    sql: &str,
    schema: &SchemaRef,
    df_schema: &DFSchema,
    simplifier: &ExprSimplifier,
    expr: &Expr,
    error: &DataFusionError,
) -> Error {
    let mut smallest = None;
    let walked = expr.apply(|node| match simplifier.coerce(node.clone(), df_schema) {
        Ok(_) => Ok(TreeNodeRecursion::Jump),
        Err(error) => {
            smallest = Some((node.clone(), error));
            Ok(TreeNodeRecursion::Continue)
        }
    });
    let (Ok(_), Some((part, error))) = (walked, smallest) else { return explain(sql, schema, error) };
    let why = reason(&error);
    if let Some(reason) = fields::about_field(sql, &why, &[schema]) {
        return Error::Sql { sql: shortened(sql), reason };
    }
    let place = part.column_refs().into_iter().filter_map(|column| column.spans.first()).map(|span| span.start).min();
    let place = place.map_or(String::new(), |at| format!(" at line {}, column {}", at.line, at.column));
    Error::Sql { sql: shortened(sql), reason: format!("`{part}`{place}: {why}") }
}
