//! Whether an expression may be NULL.
//!
//! The engine supposes that most functions may be, and does not look behind `x IS NOT NULL AND x`, which is what it makes
//! of `coalesce(x, false)`. What is not NULL for it is not NULL here; what it does not know is decided by the arguments
//! of functions, and by the conditions under which a part is evaluated.

use std::sync::Arc;

use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{BinaryExpr, Case, Expr, ExprSchemable, Operator, ReturnFieldArgs};

/// Functions that are NULL only if an argument is: for any other value they return one or fail.
const STRICT: [&str; 13] = [
    "abs",
    "array_length",
    "bit_length",
    "ceil",
    "character_length",
    "contains",
    "ends_with",
    "floor",
    "lower",
    "octet_length",
    "signum",
    "starts_with",
    "upper",
];

/// Functions that are NULL only if all arguments are.
const CHOICES: [&str; 4] = ["coalesce", "nvl", "greatest", "least"];

/// Returns whether `expr` may be NULL in rows of `schema`.
pub(crate) fn may_be_null(expr: &Expr, schema: &DFSchema) -> bool {
    Nulls { schema, known: Vec::new() }.may_be(expr)
}

/// What may be NULL where some expressions are known not to be.
struct Nulls<'a> {
    schema: &'a DFSchema,
    known: Vec<&'a Expr>,
}

impl<'a> Nulls<'a> {
    fn may_be(&mut self, expr: &'a Expr) -> bool {
        if self.known.contains(&expr) || !expr.nullable(self.schema).unwrap_or(true) {
            return false;
        }
        match expr {
            Expr::Alias(alias) => self.may_be(&alias.expr),
            Expr::Not(inner) | Expr::Negative(inner) => self.may_be(inner),
            Expr::Cast(cast) => self.may_be(&cast.expr),
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
                self.may_be_either(left, right, true) && self.may_be_either(right, left, true)
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                self.may_be_either(left, right, false) && self.may_be_either(right, left, false)
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_strict(*op) => {
                self.may_be(left) || self.may_be(right)
            }
            Expr::Case(case) => self.may_case_be(case),
            Expr::ScalarFunction(call) => self.may_call_be(call),
            _ => true,
        }
    }

    fn may_call_be(&mut self, call: &'a ScalarFunction) -> bool {
        let ScalarFunction { func, args } = call;
        let may_be: Vec<bool> = args.iter().map(|argument| self.may_be(argument)).collect();
        // The second argument is the dimension, which a list may lack.
        if STRICT.contains(&func.name()) && (func.name() != "array_length" || args.len() == 1) {
            return may_be.contains(&true);
        }
        if CHOICES.contains(&func.name()) {
            return !may_be.contains(&false);
        }
        let field = |(argument, may_be): (&Expr, bool)| {
            let (_, field) = argument.to_field(self.schema).ok()?;
            Some(Arc::new(field.as_ref().clone().with_nullable(may_be)))
        };
        let Some(arg_fields) = args.iter().zip(may_be).map(field).collect::<Option<Vec<_>>>() else { return true };
        let scalar_arguments: Vec<_> = args.iter().map(|argument| literal(argument)).collect();
        let arguments = ReturnFieldArgs { arg_fields: &arg_fields, scalar_arguments: &scalar_arguments };
        func.return_field_from_args(arguments).map_or(true, |field| field.is_nullable())
    }

    /// Returns whether `first AND second` (if `outcome`), or `first OR second`, may be NULL: `second` only counts where
    /// `first` is `outcome`.
    fn may_be_either(&mut self, first: &'a Expr, second: &'a Expr, outcome: bool) -> bool {
        self.may_be(first) || self.may_be_where(second, first, outcome)
    }

    /// Returns whether `expr` may be NULL where `condition` is true, or is not.
    fn may_be_where(&mut self, expr: &'a Expr, condition: &'a Expr, is_true: bool) -> bool {
        let num_known = self.known.len();
        self.learn(condition, is_true);
        let may_be = self.may_be(expr);
        self.known.truncate(num_known);
        may_be
    }

    fn may_case_be(&mut self, case: &'a Case) -> bool {
        let num_known = self.known.len();
        // `CASE true WHEN x` is `CASE WHEN x`.
        let is_searched = match case.expr.as_deref() {
            None | Some(Expr::Literal(ScalarValue::Boolean(Some(true)), _)) => true,
            Some(_) => false,
        };
        let mut may_be = false;
        for (when, then) in &case.when_then_expr {
            may_be |= if is_searched { self.may_be_where(then, when, true) } else { self.may_be(then) };
            if is_searched {
                self.learn(when, false);
            }
        }
        may_be |= case.else_expr.as_deref().is_none_or(|otherwise| self.may_be(otherwise));
        self.known.truncate(num_known);
        may_be
    }

    /// Notes what cannot be NULL where `condition` is true, or where it is false or NULL.
    fn learn(&mut self, condition: &'a Expr, is_true: bool) {
        match condition {
            Expr::IsNotNull(value) if is_true => self.know(value),
            Expr::IsNull(value) if !is_true => self.know(value),
            Expr::Not(condition) if is_true => self.learn(condition, false),
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) if is_true => {
                self.learn(left, true);
                self.learn(right, true);
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) if !is_true => {
                self.learn(left, false);
                self.learn(right, false);
            }
            _ if is_true => self.know(condition),
            _ => {}
        }
    }

    /// Notes that `value` is not NULL, and so are the values without which it would be.
    fn know(&mut self, value: &'a Expr) {
        self.known.push(value);
        match value {
            Expr::Alias(alias) => self.know(&alias.expr),
            Expr::Not(inner) | Expr::Negative(inner) => self.know(inner),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_strict(*op) => {
                self.know(left);
                self.know(right);
            }
            _ => {}
        }
    }
}

fn literal(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        _ => None,
    }
}

/// Returns whether an operator is NULL if and only if an operand is.
fn is_strict(op: Operator) -> bool {
    use Operator::{Divide, Eq, Gt, GtEq, Lt, LtEq, Minus, Modulo, Multiply, NotEq, Plus};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | Plus | Minus | Multiply | Divide | Modulo)
}
