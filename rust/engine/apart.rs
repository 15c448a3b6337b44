//! Keeps from the engine's simplifier what it gets wrong.
//!
//! It replaces regular expressions by `LIKE`, where a backslash escapes the next character, and `.*` by `IS NOT NULL`,
//! which is false where the match is NULL. So only plain text is left to it, with or without anchors, whose `LIKE`
//! statistics can decide. It replaces `date_part('year', t)` by a range of times; in nanoseconds, which end in the year
//! 2262, that may be one from NULL to NULL. And it replaces functions that cast by casts, for which nobody
//! [looks](super::numbers) after that.

use std::sync::Arc;

use arrow_schema::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    BinaryExpr, Case, Cast, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, lit, when,
};

use super::numbers;
use super::walk::Walk;

/// Functions that become casts.
const CASTS: [&str; 2] = ["arrow_cast", "cast_to_type"];

/// Functions that become casts which yield NULL if they fail.
const TRIED_CASTS: [&str; 2] = ["arrow_try_cast", "try_cast_to_type"];

/// Functions of two lists that overlook NULL if the other list is empty, in a constant or in all rows of a batch.
const OF_LISTS: [&str; 2] = ["array_has_all", "array_has_any"];

/// An empty group, which changes neither what a regular expression matches nor which of its alternatives does, and for
/// which there is no `LIKE`.
const NO_LIKE: &str = "()";

/// Characters with a meaning in regular expressions.
const SPECIAL: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// Returns an equivalent of a type-checked expression that the simplifier does not change for the worse.
pub(crate) fn from_simplifier(expr: Expr, schema: &DFSchema) -> PlanResult<Expr> {
    let apart = expr.transform_up(|node| {
        Ok(match node {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_match(op) && !is_plain(op, &right) => {
                Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right: Box::new(without_like(*right)) }))
            }
            Expr::ScalarFunction(mut call) => match call.name() {
                "regexp_like" => Transformed::yes(Expr::ScalarFunction(matched_apart(call))),
                "date_part" => Transformed::yes(Expr::ScalarFunction(with_known_years(call))),
                name if OF_LISTS.contains(&name) => Transformed::yes(unless_null(call)?),
                name if CASTS.contains(&name) => {
                    let from = call.args.first().map(|value| value.get_type(schema)).transpose()?;
                    let cast = Expr::ScalarFunction(call);
                    if from.is_some_and(|from| cast.get_type(schema).is_ok_and(|to| numbers::must_stay(&from, &to))) {
                        Transformed::yes(numbers::kept_apart(cast))
                    } else {
                        Transformed::no(cast)
                    }
                }
                name if TRIED_CASTS.contains(&name) => {
                    let to = Expr::ScalarFunction(call.clone()).get_type(schema)?;
                    if let Some(operand) = call.args.first_mut() {
                        *operand = numbers::checked_millis(std::mem::take(operand), &to, schema)?;
                    }
                    Transformed::yes(numbers::kept_apart(Expr::ScalarFunction(call)))
                }
                _ => Transformed::no(Expr::ScalarFunction(call)),
            },
            other => Transformed::no(other),
        })
    })?;
    Ok(apart.data)
}

/// Keeps the simplifier from turning a `CASE` of conditions into `AND` and `OR`.
///
/// These evaluate all operands on all rows, so the `CASE` would no longer guard operands that fail on some; and the
/// result is quadratic in its length.
pub(crate) fn keep_cases(expr: Expr) -> PlanResult<Expr> {
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

fn is_match(op: Operator) -> bool {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch};
    matches!(op, RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch)
}

/// Returns whether a pattern is text to be found as it is, and the operator distinguishes case.
fn is_plain(op: Operator, pattern: &Expr) -> bool {
    let Some(Some(text)) = literal_in(pattern).map(|value| value.try_as_str().flatten()) else { return false };
    let text = text.strip_prefix('^').unwrap_or(text);
    let text = text.strip_suffix('$').unwrap_or(text);
    matches!(op, Operator::RegexMatch | Operator::RegexNotMatch) && !text.is_empty() && !text.contains(SPECIAL)
}

fn literal_in(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        Expr::Cast(Cast { expr, .. }) => literal_in(expr),
        _ => None,
    }
}

/// Returns a pattern that matches the same, and has no equivalent `LIKE`; an invalid one as it is.
fn without_like(pattern: Expr) -> Expr {
    let longer = |text: &str| {
        let group = if regex_syntax::parse(text).is_ok() { NO_LIKE } else { "" };
        Some(format!("{group}{text}"))
    };
    match pattern {
        Expr::Cast(Cast { expr, field }) => Expr::Cast(Cast { expr: Box::new(without_like(*expr)), field }),
        Expr::Literal(ScalarValue::Utf8(Some(text)), of) => Expr::Literal(ScalarValue::Utf8(longer(&text)), of),
        Expr::Literal(ScalarValue::LargeUtf8(Some(text)), of) => {
            Expr::Literal(ScalarValue::LargeUtf8(longer(&text)), of)
        }
        Expr::Literal(ScalarValue::Utf8View(Some(text)), of) => Expr::Literal(ScalarValue::Utf8View(longer(&text)), of),
        other => other,
    }
}

/// Returns the call of `regexp_like` with a pattern that has no equivalent `LIKE`.
fn matched_apart(mut call: ScalarFunction) -> ScalarFunction {
    if let Some(pattern) = call.args.get_mut(1) {
        *pattern = without_like(std::mem::take(pattern));
    }
    call
}

/// Returns the call of a function with a condition of truth, or NULL if one of its arguments is.
fn unless_null(call: ScalarFunction) -> PlanResult<Expr> {
    let is_null = call.args.iter().cloned().map(Expr::is_null).reduce(Expr::or).unwrap_or_else(|| lit(false));
    when(is_null, lit(ScalarValue::Boolean(None))).otherwise(Expr::ScalarFunction(call))
}

/// Returns the call of `date_part` as one of [`KnownYears`].
fn with_known_years(ScalarFunction { func, args }: ScalarFunction) -> ScalarFunction {
    ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(KnownYears { date_part: func })), args)
}

/// The function `date_part`, which is a range of times only if these exist in the type of the column.
#[derive(Debug, PartialEq, Eq, Hash)]
struct KnownYears {
    date_part: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for KnownYears {
    fn name(&self) -> &str {
        self.date_part.name()
    }

    fn signature(&self) -> &Signature {
        self.date_part.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        self.date_part.return_type(arguments)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        self.date_part.return_field_from_args(arguments)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        self.date_part.invoke_with_args(arguments)
    }

    fn preimage(&self, arguments: &[Expr], year: &Expr, context: &SimplifyContext) -> PlanResult<PreimageResult> {
        Ok(match self.date_part.preimage(arguments, year, context)? {
            PreimageResult::Range { interval, .. } if interval.lower().is_null() || interval.upper().is_null() => {
                PreimageResult::None
            }
            known => known,
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{Field, Schema, TimeUnit};
    use datafusion::functions::expr_fn::{date_part, regexp_like};
    use datafusion::logical_expr::{binary_expr, col};
    use datafusion::optimizer::simplify_expressions::ExprSimplifier;

    use super::*;

    fn simple(expr: Expr) -> String {
        simplified(expr).unwrap().to_string()
    }

    fn simplified(expr: Expr) -> PlanResult<Expr> {
        let time = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let fields = vec![Field::new("text", DataType::Utf8, true), Field::new("time", time, true)];
        let schema = Arc::new(DFSchema::try_from(Schema::new(fields)).unwrap());
        let simplifier = ExprSimplifier::new(SimplifyContext::builder().with_schema(Arc::clone(&schema)).build());
        let coerced = simplifier.coerce(expr, &schema).unwrap();
        simplifier.simplify(from_simplifier(coerced, &schema).unwrap())
    }

    #[test]
    fn only_plain_text_becomes_like() {
        let matches = |pattern: &str| simple(binary_expr(col("text"), Operator::RegexMatch, lit(pattern)));
        assert_eq!(matches("^https"), "text LIKE Utf8(\"https%\")");
        assert_eq!(matches("^ab$"), "text = Utf8(\"ab\")");
        assert_eq!(matches("été"), "text LIKE Utf8(\"%été%\")");
        for pattern in [r"\\frac", r"^\\begin", r"\\", r"\x5cfrac", ".*", "", "^", "$", "^(a|b)$", r"a|\\b", "a.b"] {
            assert_eq!(matches(pattern), format!("text ~ Utf8(\"(){pattern}\")"));
        }
        for invalid in ["*", "a(", "["] {
            let refused = simplified(binary_expr(col("text"), Operator::RegexMatch, lit(invalid))).unwrap_err();
            assert!(refused.to_string().contains(&format!("    {invalid}\n")), "{refused}");
        }
        let ignoring_case = binary_expr(col("text"), Operator::RegexIMatch, lit("ab"));
        assert_eq!(simple(ignoring_case), "text ~* Utf8(\"()ab\")");
        assert_eq!(simple(regexp_like(col("text"), lit(r"\\frac"), None)), r#"text ~ Utf8("()\\frac")"#);
    }

    #[test]
    fn years_become_times_if_these_exist() {
        let year = || date_part(lit("year"), col("time"));
        assert!(simple(year().lt(lit(2024))).starts_with("time < TimestampNanosecond(1704067200"));
        for far in [1500, 1677, 2262, 2300, 9999] {
            let (below, other) = (simple(year().lt(lit(far))), simple(year().not_eq(lit(far))));
            assert!(below.starts_with("date_part(") && other.starts_with("date_part("), "{below} {other}");
        }
    }
}
