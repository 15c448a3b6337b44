//! Bounds how deep SQL nests, and balances what would nest deeper.
//!
//! The engine's parser, planner and rules recurse, and would abort the process on a long `OR`. So they run on a thread
//! with a large stack, what needs more is refused, and long chains of `AND` and `OR` are rebuilt as balanced trees.

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, Operator, binary_expr, lit};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::advice;
use super::reason::shortened;
use super::walk::Walk;
use crate::error::{Error, Result};
use crate::panics;

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

pub(crate) fn too_deep(sql: &str) -> Error {
    Error::Sql { sql: shortened(sql), reason: deep() }
}

fn deep() -> String {
    format!("it nests more than {MAX_DEPTH} levels deep; split it into several filters, or use `IN`")
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
pub(crate) fn all_of(filters: &[Expr]) -> Expr {
    balanced(filters.to_vec(), Operator::And)
}
