//! Computes constant times and texts, such as `TIMESTAMP '2024-01-02' - INTERVAL '1 day'` and `'a' || 'b'`, before
//! comparisons with literals are rewritten.

use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, Operator, Volatility, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use super::walk::Walk;
use super::{numbers, session};

/// Replaces constants by their values. One that cannot be computed stays: its error is that of the query.
pub(crate) fn folded(expr: Expr) -> PlanResult<Transformed<Expr>> {
    expr.transform_down(|node| {
        if !is_constant(&node)? {
            return Ok(Transformed::no(node));
        }
        Ok(match value_of(&node) {
            Ok(Some(value)) => Transformed::new(lit(value), true, TreeNodeRecursion::Jump),
            Ok(None) | Err(_) => Transformed::no(node),
        })
    })
}

/// Returns whether an expression is computed from literals only, and always the same.
fn is_constant(expr: &Expr) -> PlanResult<bool> {
    let is_computed = match expr {
        // Others are conditions: looking into each of a chain of them would take time.
        Expr::BinaryExpr(BinaryExpr { op, .. }) => {
            matches!(op, Operator::Plus | Operator::Minus | Operator::StringConcat)
        }
        Expr::Cast(Cast { expr, .. }) => !matches!(**expr, Expr::Literal(..)),
        Expr::ScalarFunction(_) => true,
        _ => false,
    };
    Ok(is_computed
        && !expr.exists(|part| {
            Ok(match part {
                Expr::Literal(..) | Expr::BinaryExpr(_) | Expr::Cast(_) | Expr::Negative(_) => false,
                Expr::ScalarFunction(call) => call.func.signature().volatility != Volatility::Immutable,
                _ => true,
            })
        })?)
}

fn value_of(constant: &Expr) -> PlanResult<Option<ScalarValue>> {
    let schema = Arc::new(DFSchema::empty());
    if !is_time_or_text(&constant.get_type(schema.as_ref())?) {
        return Ok(None);
    }
    let context = SimplifyContext::builder()
        .with_schema(Arc::clone(&schema))
        .with_config_options(Arc::clone(session().config_options()))
        .build();
    let simplifier = ExprSimplifier::new(context);
    let exact = numbers::checked_numbers(simplifier.coerce(constant.clone(), &schema)?, &schema)?;
    Ok(match simplifier.simplify(exact)? {
        Expr::Literal(value, _) if !value.is_null() && is_time_or_text(&value.data_type()) => Some(value),
        _ => None,
    })
}

fn is_time_or_text(data_type: &DataType) -> bool {
    use DataType::{Date32, Date64, LargeUtf8, Time32, Time64, Timestamp, Utf8, Utf8View};
    matches!(data_type, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Utf8 | LargeUtf8 | Utf8View)
}

#[cfg(test)]
mod tests {
    use datafusion::functions::expr_fn::{now, upper};
    use datafusion::logical_expr::{col, lit};

    use super::*;

    fn seconds(count: i64) -> Expr {
        lit(ScalarValue::TimestampSecond(Some(count), None))
    }

    #[test]
    fn times_and_texts_are_computed() {
        let hour = || lit(ScalarValue::new_interval_dt(0, 3_600_000));
        let folded = |expr: Expr| folded(expr).unwrap().data;
        assert_eq!(folded(col("t").lt(seconds(7200) - hour())), col("t").lt(seconds(3600)));
        assert_eq!(folded(col("t").eq(upper(lit("ab")))), col("t").eq(lit("AB")));
        for as_it_is in [
            col("t").lt(now() - hour()),
            col("t").lt(col("u") - hour()),
            col("t").lt(lit(1) + lit(2)),
            col("t").eq(seconds(i64::MAX) + hour()),
        ] {
            assert_eq!(folded(as_it_is.clone()), as_it_is);
        }
    }
}
