//! Keeps lists of values apart that the simplifier would merge.
//!
//! It turns `x IN (1, 2) AND x NOT IN (2)` into `x IN (1)`, and into true or false if no value is left, as if neither
//! `x` nor any of the values were NULL. So if an expression has several lists, each is hidden from the others in an
//! identity function until everything is simplified.

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use super::numbers;
use super::walk::Walk;

/// Returns the simplified form of an expression.
pub(crate) fn simplified(simplifier: &ExprSimplifier, expr: Expr) -> PlanResult<Expr> {
    let expr = shown(expr)?;
    let expr = if num_lists(&expr)? > 1 { hidden(expr)? } else { expr };
    shown(simplifier.simplify(expr)?)
}

/// Returns whether a plan has several lists, which the engine may merge wherever they are.
pub(crate) fn are_several(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut num = 0;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            num += num_lists(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(num > 1)
}

fn num_lists(expr: &Expr) -> PlanResult<usize> {
    let mut num = 0;
    expr.apply(|node| {
        let is_list = is_list(node);
        num += usize::from(is_list);
        Ok(if is_list { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    })?;
    Ok(num)
}

/// Hides each list of an expression.
pub(crate) fn hidden(expr: Expr) -> PlanResult<Expr> {
    let hidden = expr.transform_down(|node| {
        Ok(if is_list(&node) {
            Transformed::new(numbers::hidden_list(node), true, TreeNodeRecursion::Jump)
        } else {
            Transformed::no(node)
        })
    })?;
    Ok(hidden.data)
}

/// Returns the expression with its lists unhidden.
pub(crate) fn shown(expr: Expr) -> PlanResult<Expr> {
    let shown = expr.transform_down(|node| {
        if let Some(list) = numbers::list_hidden_in(&node) {
            return Ok(Transformed::yes(list.clone()));
        }
        let denied = if let Expr::Not(inner) = &node { numbers::list_hidden_in(inner) } else { None };
        Ok(match denied {
            Some(Expr::InList(list)) => {
                Transformed::yes(Expr::InList(InList { negated: !list.negated, ..list.clone() }))
            }
            _ => Transformed::no(node),
        })
    })?;
    Ok(shown.data)
}

/// Returns whether an expression is a list, or becomes one, like `x = 1 OR x = 2`.
fn is_list(expr: &Expr) -> bool {
    match expr {
        Expr::InList(_) => true,
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => is_choice(left) && is_choice(right),
        _ => false,
    }
}

/// Returns whether a condition is a disjunction of comparisons with values only.
fn is_choice(expr: &Expr) -> bool {
    let mut pending = vec![expr];
    while let Some(node) = pending.pop() {
        match node {
            Expr::InList(InList { negated: false, .. }) | Expr::Literal(..) => {}
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) if is_value(left) || is_value(right) => {}
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => pending.extend([&**left, &**right]),
            _ => return false,
        }
    }
    true
}

fn is_value(expr: &Expr) -> bool {
    !expr.any_column_refs()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{DataType, Field, Schema};
    use datafusion::common::DFSchema;
    use datafusion::logical_expr::simplify::SimplifyContext;
    use datafusion::logical_expr::{col, lit, not};

    use super::*;

    fn simple(expr: Expr) -> String {
        let fields = ["x", "y"].map(|name| Field::new(name, DataType::Int64, true));
        let schema = DFSchema::try_from(Schema::new(fields.to_vec())).unwrap();
        let context = SimplifyContext::builder().with_schema(Arc::new(schema)).build();
        simplified(&ExprSimplifier::new(context), expr).unwrap().to_string()
    }

    fn of(name: &str, values: &[i64], negated: bool) -> Expr {
        col(name).in_list(values.iter().map(|&value| lit(value)).collect(), negated)
    }

    #[test]
    fn two_lists_stay_two() {
        let one = of("x", &[1, 2, 3, 4], false);
        for (other, expected) in [
            (one.clone().and(of("x", &[5, 6, 7, 8], false)), "x IN ([Int64(5), Int64(6), Int64(7), Int64(8)])"),
            (one.clone().and(of("x", &[1, 2, 3, 4], true)), "x NOT IN ("),
            (
                not(one.clone().and(of("x", &[5, 6, 7, 8], false))),
                "x NOT IN ([Int64(1), Int64(2), Int64(3), Int64(4)]) OR ",
            ),
            (one.clone().and(not(col("x").eq(lit(1_i64)).or(col("x").eq(lit(2_i64))))), "x IN ("),
        ] {
            let found = simple(other);
            assert!(found.contains(expected), "{found}");
            assert!(found.contains(" AND ") || found.contains(" OR "), "{found}");
            assert!(!found.contains("hidden"), "{found}");
        }
    }

    #[test]
    fn what_is_no_list_is_simplified() {
        let either = |name: &str| (1..=6_i64).map(|value| col(name).eq(lit(value))).reduce(Expr::or).unwrap();
        assert!(simple(either("x")).starts_with("x IN (["));
        assert_eq!(simple(either("x").and(either("y"))).matches(" IN (").count(), 2);
        assert_eq!(simple(of("x", &[7, 8, 9, 10], false).and(lit(false))), "Boolean(false)");
    }
}
