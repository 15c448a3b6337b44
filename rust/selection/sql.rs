//! Turns SQL text into a typed, simplified filter.
//!
//! DataFusion parses, type-checks and simplifies; everything happens during the call, on a thread with a large stack,
//! because its planner recurses and would abort the process on a long `OR`. The result is shallow: long chains of `AND`
//! and `OR` are rebuilt as balanced trees.
//!
//! Semantics are SQL's, even where DataFusion goes by the bits of a float ([`super::floats`]). Identifiers are
//! case-sensitive, quoted or not, like column names in Parquet.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use arrow_schema::{DataType, Fields, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, Result as PlanResult, ScalarValue};
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Case, Expr, ExprSchemable, Operator, Volatility, binary_expr, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::passed_over::passed_over;
pub(crate) use super::reason::reason;
use super::{advice, apart, constants, fields, floats, lists, literals, numbers, parser, unknown};
use crate::error::{Error, Result};
use crate::sql::{Names, Operators, Types, any, compared_in_their_unit, planned_here, rules};
use crate::walk::{self, Walk};
use crate::{features, panics};

/// Stack of the thread that parses and plans: virtual memory, touched only as deep as a query nests.
const PLANNING_STACK_BYTES: usize = 64 << 20;

/// Additional stack per operator, since `a OR b OR c` and `a LIKE b LIKE c` nest one level deeper with each.
const STACK_BYTES_PER_OPERATOR: usize = 16 << 10;

/// Maximum operators of one filter; enough for 60,000 comparisons in one `OR`.
const MAX_OPERATORS: usize = 120_000;

/// Maximum levels of a planned filter, which is evaluated and dropped on threads with ordinary stacks.
const MAX_DEPTH: usize = 300;

/// Functions that become a `CASE WHEN a IS NOT NULL THEN a ELSE b END`, with all arguments but the last twice.
const DOUBLING: [&str; 2] = ["coalesce", "nvl"];

/// Maximum nesting of them, since each level doubles what is planned.
const MAX_DOUBLED: usize = 16;

/// The same if the innermost is the first operand of a `BETWEEN`, which becomes two comparisons.
const MAX_BETWEEN: usize = 12;

/// Nesting depth at which the parser gives up; far above what people write, and far below the stack's limit.
const MAX_NESTING: &str = "300";

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

/// Runs `plan`, which recurses as deep as `sql` nests, on a thread with a large enough stack.
///
/// # Errors
///
/// [`Error::Sql`] for text that would need more, and if `plan` panics; and the errors of `plan`.
pub(crate) fn with_large_stack<T: Send>(sql: &str, plan: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let num_operators = count_operators(sql);
    if num_operators > MAX_OPERATORS {
        let reason = format!(
            "it has {num_operators} operators, expected at most {MAX_OPERATORS}; use `IN (...)`, or split it into several filters"
        );
        return Err(Error::Sql { sql: shortened(sql), reason });
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("forebay-sql".into())
            .stack_size(PLANNING_STACK_BYTES + num_operators * STACK_BYTES_PER_OPERATOR)
            .spawn_scoped(scope, || {
                let planned = panics::caught(plan);
                let planned = planned.unwrap_or_else(|reason| Err(Error::Sql { sql: shortened(sql), reason }));
                planned.map_err(|error| advice::advised(sql, error))
            })
            .map_err(|source| Error::Thread { source })?
            .join()
            .unwrap_or_else(|panic| Err(Error::internal(panic.as_ref())))
    })
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
        let exact = numbers::checked_numbers(apart::from_simplifier(keep_cases(coerced)?, &df_schema)?, &df_schema)?;
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

/// Returns the number of operators and keywords in `sql`; items of a list do not count.
fn count_operators(sql: &str) -> usize {
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).tokenize() else { return 0 };
    let is_operand = |token: &Token| match token {
        Token::Word(word) => word.keyword == Keyword::NoKeyword,
        Token::Whitespace(_) | Token::Comma | Token::LParen | Token::RParen => true,
        Token::Number(..) | Token::SingleQuotedString(_) | Token::NationalStringLiteral(_) => true,
        _ => false,
    };
    tokens.iter().filter(|token| !is_operand(token)).count()
}

/// Refuses `a + b + c + ...`, `a::int::int...` and so on beyond [`MAX_DEPTH`] before typing, whose time is quadratic in
/// their length. The parser bounds the other ways to nest; chains of `AND` and `OR` are rebuilt.
fn refuse_long_chain(sql: &str, parsed: &ast::Expr) -> Result<()> {
    let is_long = walk::visit_expressions(parsed, |expr: &ast::Expr| {
        if is_long_chain(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if is_long.is_break() { Err(too_deep(sql)) } else { Ok(()) }
}

/// Returns whether an expression begins a chain of operators beyond [`MAX_DEPTH`].
pub(crate) fn is_long_chain(mut expr: &ast::Expr) -> bool {
    for _ in 0..MAX_DEPTH {
        let Some(first) = first_operand(expr) else { return false };
        expr = first;
    }
    true
}

/// Returns the first operand of an operator that can be chained, except for `AND` and `OR`.
fn first_operand(expr: &ast::Expr) -> Option<&ast::Expr> {
    use ast::Expr::{
        AllOp, AnyOp, AtTimeZone, Between, BinaryOp, Cast, Collate, ILike, InList, InSubquery, InUnnest,
        IsDistinctFrom, IsFalse, IsNotDistinctFrom, IsNotFalse, IsNotNull, IsNotTrue, IsNotUnknown, IsNull, IsTrue,
        IsUnknown, Like, RLike, SimilarTo,
    };
    match expr {
        BinaryOp { op: ast::BinaryOperator::And | ast::BinaryOperator::Or, .. } => None,
        BinaryOp { left: first, .. }
        | IsDistinctFrom(first, _)
        | IsNotDistinctFrom(first, _)
        | IsFalse(first)
        | IsNotFalse(first)
        | IsTrue(first)
        | IsNotTrue(first)
        | IsNull(first)
        | IsNotNull(first)
        | IsUnknown(first)
        | IsNotUnknown(first)
        | Like { expr: first, .. }
        | ILike { expr: first, .. }
        | SimilarTo { expr: first, .. }
        | RLike { expr: first, .. }
        | InList { expr: first, .. }
        | InSubquery { expr: first, .. }
        | InUnnest { expr: first, .. }
        | Between { expr: first, .. }
        | AnyOp { left: first, .. }
        | AllOp { left: first, .. }
        | Cast { expr: first, kind: ast::CastKind::DoubleColon, .. }
        | AtTimeZone { timestamp: first, .. }
        | Collate { expr: first, .. } => Some(first),
        _ => None,
    }
}

/// Keeps the simplifier from turning a `CASE` of conditions into `AND` and `OR`.
///
/// These evaluate all operands on all rows, so the `CASE` would no longer guard operands that fail on some; and the
/// result is quadratic in its length.
pub(crate) fn keep_cases(expr: Expr) -> datafusion::common::Result<Expr> {
    let kept = expr.transform_up(|node| {
        Ok(match node {
            Expr::Case(case) if case.expr.is_none() => {
                Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case }))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(kept.data)
}

/// Refuses what [nests too deep](nests_too_deep).
fn refuse_deep(sql: &str, expr: &Expr) -> Result<()> {
    match nests_too_deep(expr) {
        Some(reason) => Err(Error::Sql { sql: shortened(sql), reason }),
        None => Ok(()),
    }
}

pub(crate) fn too_deep(sql: &str) -> Error {
    Error::Sql { sql: shortened(sql), reason: deep() }
}

fn deep() -> String {
    format!("it nests more than {MAX_DEPTH} levels deep; split it into several filters, or use `IN`")
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

/// Returns why an expression would take more stack than threads have, or time at least quadratic in its depth.
pub(crate) fn nests_too_deep(expr: &Expr) -> Option<String> {
    let mut pending = vec![(expr, 1, 0)];
    while let Some((node, depth, num_doubled)) = pending.pop() {
        if depth > MAX_DEPTH {
            return Some(deep());
        }
        if num_doubled > MAX_DOUBLED {
            return Some(format!(
                "`coalesce` nests more than {MAX_DOUBLED} levels deep; write one with all values, `coalesce(a, b, c)`"
            ));
        }
        let is_between = matches!(node, Expr::Between(_));
        if is_between && num_doubled > MAX_BETWEEN {
            return Some(format!(
                "`BETWEEN` nests more than {MAX_BETWEEN} levels deep; write `x >= a AND x <= b`, or nest it less"
            ));
        }
        let num_before = pending.len();
        // The walk only collects, so it cannot fail.
        drop(node.apply_children(|child| {
            pending.push((child, depth + 1, num_doubled));
            Ok(TreeNodeRecursion::Continue)
        }));
        let operands = &mut pending[num_before..];
        let num_twice = match node {
            Expr::ScalarFunction(call) if DOUBLING.contains(&call.name()) => operands.len().saturating_sub(1),
            _ => usize::from(is_between),
        };
        operands.iter_mut().take(num_twice).for_each(|(_, _, num_doubled)| *num_doubled += 1);
    }
    None
}

/// Returns the beginning of a text that is too long for a message.
pub(crate) fn shortened(sql: &str) -> String {
    const SHOWN: usize = 200;
    match sql.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &sql[..end]),
        None => sql.to_owned(),
    }
}

/// Returns the session whose functions and rules filters use.
pub(crate) fn session() -> &'static SessionState {
    static SESSION: OnceLock<SessionState> = OnceLock::new();
    SESSION.get_or_init(|| {
        let mut options = ConfigOptions::new();
        options.sql_parser.enable_ident_normalization = false;
        options.sql_parser.map_string_types_to_utf8view = false;
        options.sql_parser.collect_spans = true;
        // It takes every NaN for another group.
        options.optimizer.enable_topk_aggregation = false;
        // It compares whether `x IS TRUE` may be NULL, which plans before and after it say differently.
        options.execution.skip_physical_aggregate_schema_check = true;
        let mut config = SessionConfig::from(options);
        config = config.set_str("datafusion.sql_parser.recursion_limit", MAX_NESTING);
        let builder = SessionStateBuilder::new().with_config(config).with_default_features();
        let builder = builder.with_optimizer_rules(rules::logical()).with_physical_optimizer_rules(rules::physical());
        let mut state = builder.with_type_planner(Arc::new(Types)).build();
        let own = [Arc::clone(crate::sql::cast_function()), any::function()]
            .into_iter()
            .chain(crate::sql::functions_of_time());
        for function in crate::sql::vector_functions().iter().cloned().chain(own) {
            // Nothing can fail, as a session takes functions.
            drop(state.register_udf(function));
        }
        // It is added to a list, which cannot fail.
        drop(state.register_expr_planner(Arc::new(Operators)));
        state
    })
}

/// Rebuilds chains of one connective as balanced trees, wherever they are, so that nothing downstream recurses deeply.
/// A negated chain becomes one of negations, which the simplifier would make of it in superlinear time.
///
/// # Errors
///
/// Only those of walking a tree.
pub(crate) fn balance(expr: Expr) -> PlanResult<Expr> {
    let rebuilt = expr.transform_down(|node| {
        let connective = |expr: &Expr| match expr {
            Expr::BinaryExpr(binary) if matches!(binary.op, Operator::And | Operator::Or) => Some(binary.op),
            _ => None,
        };
        let (chain, op, is_negated) = match node {
            Expr::Not(inner) if let Some(op) = connective(&inner) => (*inner, op, true),
            node => match connective(&node) {
                Some(op) => (node, op, false),
                None => return Ok(Transformed::no(node)),
            },
        };
        let (mut terms, mut pending) = (Vec::new(), vec![chain]);
        while let Some(next) = pending.pop() {
            match next {
                Expr::BinaryExpr(binary) if binary.op == op => {
                    pending.push(*binary.right);
                    pending.push(*binary.left);
                }
                other if is_negated => terms.push(balance(Expr::Not(Box::new(other)))?),
                other => terms.push(balance(other)?),
            }
        }
        let op = match op {
            Operator::And if is_negated => Operator::Or,
            Operator::Or if is_negated => Operator::And,
            op => op,
        };
        Ok(Transformed::new(balanced(terms, op), true, TreeNodeRecursion::Jump))
    })?;
    Ok(rebuilt.data)
}

fn balanced(mut terms: Vec<Expr>, op: Operator) -> Expr {
    match terms.len() {
        0 => lit(op == Operator::And),
        1 => terms.remove(0),
        len => {
            let right = terms.split_off(len / 2);
            binary_expr(balanced(terms, op), op, balanced(right, op))
        }
    }
}

/// Returns the conjunction of `filters` as one shallow expression.
pub(super) fn all_of(filters: &[Expr]) -> Expr {
    balanced(filters.to_vec(), Operator::And)
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

/// Returns what is wrong with a placeholder of another dialect.
pub(crate) fn no_parameter(placeholder: &str) -> String {
    format!("`{placeholder}` is not a parameter; write `$name`, and pass its value as `params={{\"name\": ...}}`")
}

/// Converts DataFusion's planning error about a filter; one about a column names it, its place and similar names.
pub(crate) fn explain(sql: &str, schema: &SchemaRef, error: &DataFusionError) -> Error {
    unknown::in_filter(sql, schema, error).unwrap_or_else(|| refused(sql, &[schema], error))
}

/// Returns an [`Error::Sql`] of SQL over tables of these schemas.
pub(crate) fn refused(sql: &str, schemas: &[&Schema], error: &DataFusionError) -> Error {
    let reason = reason(error);
    let better = fields::about_field(sql, &reason, schemas).or_else(|| unknown::about_spaces(sql, &reason, schemas));
    Error::Sql { sql: shortened(sql), reason: better.unwrap_or(reason) }
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
