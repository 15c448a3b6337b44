//! Parses SQL text.
//!
//! sqlparser takes everything after `IS [NOT] DISTINCT FROM` as its right side, across `AND` and `OR`: in `a IS
//! DISTINCT FROM b AND c`, that is `b AND c`. So a stand-in operator with nearly the same precedence, one below that of
//! `IS`, is parsed instead, and replaced in the resulting tree.

use std::ops::ControlFlow;

use datafusion::common::{Result as PlanResult, plan_err};
use datafusion::sql::parser::{DFParser, DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use super::session::session;
use super::walk;

static DIALECT: GenericDialect = GenericDialect {};

/// Names of the operators.
const DISTINCT: &str = "IS DISTINCT FROM";
const NOT_DISTINCT: &str = "IS NOT DISTINCT FROM";

/// Their keywords, and the operators that stand in for them.
const STAND_INS: [(&[Keyword], &str); 2] = [
    (&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM], DISTINCT),
    (&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM], NOT_DISTINCT),
];

/// Functions with keywords between their arguments, which may also be ordinary functions of that name.
const RETRIED: [Keyword; 11] = [
    Keyword::CAST,
    Keyword::CEIL,
    Keyword::CONVERT,
    Keyword::EXTRACT,
    Keyword::FLOOR,
    Keyword::OVERLAY,
    Keyword::POSITION,
    Keyword::SUBSTR,
    Keyword::SUBSTRING,
    Keyword::TRIM,
    Keyword::TRY_CAST,
];

/// Maximum nesting of these functions, and of fields after a `.`.
const MAX_RETRIED: usize = 16;

/// Terms of a chain that is rebuilt.
const LEAST_CHAIN: usize = 32;

/// Parses one statement.
pub(crate) fn statement(text: &str) -> PlanResult<Statement> {
    let mut statements = parser_of(text)?.parse_statements()?;
    let Some(mut statement) = statements.pop_front() else { return plan_err!("it is empty; expected a SELECT") };
    if !statements.is_empty() {
        return plan_err!("it has several statements; expected one SELECT");
    }
    if let Statement::Statement(statement) = &mut statement {
        balance(statement.as_mut());
        restore(statement.as_mut());
    }
    Ok(statement)
}

/// Parses an expression, which may have an alias.
pub(crate) fn expression(text: &str) -> PlanResult<ast::ExprWithAlias> {
    let mut parsed = parser_of(text)?.parse_into_expr()?;
    balance(&mut parsed.expr);
    restore(&mut parsed.expr);
    Ok(parsed)
}

fn parser_of(text: &str) -> PlanResult<DFParser<'static>> {
    let tokens = Tokenizer::new(&DIALECT, text).tokenize_with_location().map_err(ParserError::from)?;
    refuse_retries(&tokens)?;
    DFParserBuilder::new(with_stand_ins(with_whole_numbers(tokens)?))
        .with_dialect(&DIALECT)
        .with_recursion_limit(session().config_options().sql_parser.recursion_limit.get())
        .build()
}

/// Refuses text that would be read more than 65,536 times if it has a mistake: each time the parser fails after a `.`,
/// or within the brackets of one of [`RETRIED`], it reads that part again as something else.
fn refuse_retries(tokens: &[TokenWithSpan]) -> PlanResult<()> {
    let (mut open, mut num_around, mut num_here) = (Vec::new(), 0, 0);
    let mut last = &Token::EOF;
    for TokenWithSpan { token, span } in tokens {
        match token {
            Token::Whitespace(_) => continue,
            Token::Period => num_here += 1,
            Token::LParen | Token::LBracket => {
                num_here += usize::from(matches!(last, Token::Word(word) if RETRIED.contains(&word.keyword)));
                open.push(num_here);
                num_around += std::mem::take(&mut num_here);
            }
            Token::RParen | Token::RBracket => {
                num_here = open.pop().unwrap_or(0);
                num_around -= num_here;
            }
            Token::Word(_) if *last == Token::Period => {}
            _ => num_here = 0,
        }
        last = token;
        if num_around + num_here > MAX_RETRIED {
            return plan_err!(
                "more than {MAX_RETRIED} fields (`a.b`) or calls such as `CAST` within each other at line {}, column {}",
                span.start.line,
                span.start.column
            );
        }
    }
    Ok(())
}

/// Makes one number of `1_000`, in which the tokenizer sees the number 1 and the name `_000`, and refuses `12abc`, which
/// would be 12 by the name of `abc`.
fn with_whole_numbers(tokens: Vec<TokenWithSpan>) -> PlanResult<Vec<TokenWithSpan>> {
    let is_word = |token: &Token| matches!(token, Token::Word(word) if word.quote_style.is_none());
    let is_number = |token: &Token| matches!(token, Token::Number(..));
    let is_split = |pair: &[TokenWithSpan]| is_number(&pair[0].token) && is_word(&pair[1].token);
    // White space is a token, too.
    if !tokens.windows(2).any(is_split) {
        return Ok(tokens);
    }
    let (mut made, mut rest) = (Vec::with_capacity(tokens.len()), tokens.as_slice());
    while let [first, others @ ..] = rest {
        let len = match others.first() {
            Some(next) if is_number(&first.token) && is_word(&next.token) => {
                1 + others.iter().take_while(|next| is_number(&next.token) || is_word(&next.token)).count()
            }
            _ => 1,
        };
        let (parts, after) = rest.split_at(len);
        made.push(if len == 1 { first.clone() } else { whole_number(parts)? });
        rest = after;
    }
    Ok(made)
}

/// Returns the number whose digits, with a `_` between some of them, are `parts`.
fn whole_number(parts: &[TokenWithSpan]) -> PlanResult<TokenWithSpan> {
    let text: String = parts.iter().map(|part| part.token.to_string()).collect();
    let is_between_digits = |(at, _): (usize, _)| {
        let mut around = [at.wrapping_sub(1), at + 1].into_iter().map(|at| text.as_bytes().get(at));
        around.all(|byte| byte.is_some_and(u8::is_ascii_digit))
    };
    if text.match_indices('_').all(is_between_digits)
        && let Ok(number) = Tokenizer::new(&DIALECT, &text.replace('_', "")).tokenize()
        && let [number @ Token::Number(..)] = number.as_slice()
    {
        let span = parts.iter().fold(parts[0].span, |span, part| span.union(&part.span));
        return Ok(TokenWithSpan::new(number.clone(), span));
    }
    let at = parts[0].span.start;
    plan_err!(
        "`{text}` at line {}, column {} is not a number; put a space after a number, and a name that begins with a \
         digit in double quotes",
        at.line,
        at.column
    )
}

fn with_stand_ins(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let stand_in =
        |start| STAND_INS.iter().find_map(|(keywords, name)| Some((end_of(keywords, &tokens, start)?, *name)));
    if (0..tokens.len()).all(|start| stand_in(start).is_none()) {
        return tokens;
    }
    let (mut made, mut next) = (Vec::with_capacity(tokens.len()), 0);
    while let Some(token) = tokens.get(next) {
        let (end, token) = match stand_in(next) {
            Some((end, name)) => {
                let span = token.span.union(&tokens[end - 1].span);
                (end, TokenWithSpan::new(Token::CustomBinaryOperator(name.to_owned()), span))
            }
            None => (next + 1, token.clone()),
        };
        made.push(token);
        next = end;
    }
    made
}

/// Returns where `keywords` end, if they begin at `start`.
fn end_of(keywords: &[Keyword], tokens: &[TokenWithSpan], start: usize) -> Option<usize> {
    let is = |token: &Token, keyword: &Keyword| matches!(token, Token::Word(word) if word.keyword == *keyword);
    let (first, others) = keywords.split_first()?;
    if !is(&tokens.get(start)?.token, first) {
        return None;
    }
    let mut end = start + 1;
    for keyword in others {
        while matches!(tokens.get(end)?.token, Token::Whitespace(_)) {
            end += 1;
        }
        if !is(&tokens[end].token, keyword) {
            return None;
        }
        end += 1;
    }
    Some(end)
}

/// Rebuilds long chains of `AND` and `OR` as equivalent balanced trees: for an expression nested in another one, the
/// planner formats its text once per level.
fn balance(parsed: &mut impl ast::VisitMut) {
    // Chains before their contents, which makes them shallow.
    walk::change_outer_first(parsed, |expr| {
        let op = match expr {
            ast::Expr::BinaryOp { op: op @ (ast::BinaryOperator::And | ast::BinaryOperator::Or), .. } => op.clone(),
            _ => return,
        };
        let (mut spine, mut len) = (&*expr, 1);
        while let ast::Expr::BinaryOp { left, op: next, .. } = spine
            && *next == op
        {
            (spine, len) = (left, len + 1);
        }
        if len >= LEAST_CHAIN {
            *expr = balanced(terms_of(taken(expr), &op), &op);
        }
    });
}

/// Returns the terms of a chain of one connective.
fn terms_of(chain: ast::Expr, op: &ast::BinaryOperator) -> Vec<ast::Expr> {
    let (mut terms, mut pending) = (Vec::new(), vec![chain]);
    while let Some(next) = pending.pop() {
        match next {
            ast::Expr::BinaryOp { left, op: found, right } if found == *op => pending.extend([*right, *left]),
            term => terms.push(term),
        }
    }
    terms
}

fn balanced(mut terms: Vec<ast::Expr>, op: &ast::BinaryOperator) -> ast::Expr {
    if terms.len() < 2 {
        return terms.pop().unwrap_or_else(|| ast::Expr::value(ast::Value::Null));
    }
    let right = terms.split_off(terms.len() / 2);
    let (left, right) = (Box::new(balanced(terms, op)), Box::new(balanced(right, op)));
    ast::Expr::BinaryOp { left, op: op.clone(), right }
}

/// Takes an expression out of its place.
pub(super) fn taken(expr: &mut ast::Expr) -> ast::Expr {
    std::mem::replace(expr, ast::Expr::value(ast::Value::Null))
}

/// Replaces the stand-in operators by the comparisons.
fn restore(parsed: &mut impl ast::VisitMut) {
    let _: ControlFlow<()> = walk::visit_expressions_mut(parsed, |expr| {
        if let ast::Expr::BinaryOp { left, op: ast::BinaryOperator::Custom(name), right } = expr {
            let is_negated = name == NOT_DISTINCT;
            let (left, right) = (Box::new(taken(left)), Box::new(taken(right)));
            *expr = if is_negated {
                ast::Expr::IsNotDistinctFrom(left, right)
            } else {
                ast::Expr::IsDistinctFrom(left, right)
            };
        }
        ControlFlow::Continue(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an expression as parsed, with each comparison in brackets.
    fn understood(text: &str) -> String {
        let mut expr = expression(text).unwrap().expr;
        let _: std::ops::ControlFlow<()> = walk::visit_expressions_mut(&mut expr, |expr| {
            if matches!(expr, ast::Expr::IsDistinctFrom(..) | ast::Expr::IsNotDistinctFrom(..)) {
                *expr = ast::Expr::Nested(Box::new(expr.clone()));
            }
            std::ops::ControlFlow::Continue(())
        });
        expr.to_string()
    }

    #[test]
    fn long_chains_are_balanced_and_say_the_same() {
        let chain = |op: &str| (0..100).map(|i| format!("a = {i}")).collect::<Vec<_>>().join(op);
        let text = format!("NOT ({}) AND ({})", chain(" OR "), chain(" AND "));
        let written = expression(&text).unwrap().expr;
        assert_eq!(written.to_string(), text);
        let ast::Expr::BinaryOp { right, .. } = written else { panic!("{text}") };
        let ast::Expr::Nested(mut inner) = *right else { panic!("{text}") };
        let mut depth = 0;
        while let ast::Expr::BinaryOp { left, op: ast::BinaryOperator::And, .. } = *inner {
            (inner, depth) = (left, depth + 1);
        }
        assert_eq!(depth, 6);
    }

    #[test]
    fn is_distinct_from_ends_before_and_and_or() {
        for (written, expected) in [
            ("a IS DISTINCT FROM b AND c", "(a IS DISTINCT FROM b) AND c"),
            ("c OR a is not distinct from b OR d", "c OR (a IS NOT DISTINCT FROM b) OR d"),
            ("c AND a IS DISTINCT FROM b OR d", "c AND (a IS DISTINCT FROM b) OR d"),
            ("NOT a IS DISTINCT FROM b AND c", "NOT (a IS DISTINCT FROM b) AND c"),
            ("a IS DISTINCT FROM (b AND c)", "(a IS DISTINCT FROM (b AND c))"),
            ("a IS DISTINCT FROM NOT b AND c", "(a IS DISTINCT FROM NOT b) AND c"),
            ("a IS DISTINCT FROM b + 1 AND c", "(a IS DISTINCT FROM b + 1) AND c"),
            ("a = NOT b IS DISTINCT FROM c AND d", "a = NOT (b IS DISTINCT FROM c) AND d"),
            ("a IS DISTINCT FROM b AND c IS DISTINCT FROM d", "(a IS DISTINCT FROM b) AND (c IS DISTINCT FROM d)"),
            (
                "CASE WHEN a IS DISTINCT /* so */ FROM b OR c THEN 1 END",
                "CASE WHEN (a IS DISTINCT FROM b) OR c THEN 1 END",
            ),
        ] {
            assert_eq!(understood(written), expected, "{written}");
        }
        let parsed = expression("c AND a IS DISTINCT FROM b OR d").unwrap().expr;
        assert!(matches!(parsed, ast::Expr::BinaryOp { op: ast::BinaryOperator::Or, .. }));
    }
}
