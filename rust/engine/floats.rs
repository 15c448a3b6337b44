//! SQL's floats: one NaN, equal to itself and above every number, and one zero.
//!
//! Arrow compares floats by their bits, where `-0.0` is below `0.0` and a NaN is below or above everything depending on
//! its sign. So floats get one bit pattern per SQL value at their origin: in columns as they are decoded, in literals,
//! and by a function around arithmetic, functions and casts that may produce others. Comparing, grouping, joining and
//! ordering then need no special care, and a compared column stays bare, so that statistics can decide it.

use std::sync::{Arc, LazyLock};

use arrow_array::ArrayRef;
use arrow_schema::{ArrowError, DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue, plan_err, utils::take_function_args};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::canonical::in_order;
pub(crate) use super::canonical::{canonical, canonical_columns, has_floats};
use super::numbers::null_as_arguments;
use super::walk::Walk;

/// Functions that pass their arguments on unchanged.
const HANDING_ON: [&str; 8] =
    ["array_element", "canonical_float", "coalesce", "get_field", "make_array", "named_struct", "nullif", "struct"];

/// Functions that cast their first argument.
const CASTING: [&str; 2] = ["arrow_cast", "cast_column"];

/// Functions that take a part of their first argument.
const TAKING: [&str; 2] = ["array_element", "get_field"];

/// Wraps everything that makes floats in a type-checked expression in the function of [`canonical_floats`], and makes
/// its literals canonical.
///
/// Arithmetic is made canonical as a whole: its operands need not be, except for divisors.
pub(crate) fn with_canonical_floats(expr: Expr, schema: &DFSchema) -> PlanResult<Expr> {
    let canonical = expr.transform_up(|node| {
        let made = match node {
            Expr::Literal(value, metadata) => {
                let other = if has_floats(&value.data_type()) { canonical(&value.to_array()?)? } else { None };
                let Some(array) = other else { return Ok(Transformed::no(Expr::Literal(value, metadata))) };
                return Ok(Transformed::yes(Expr::Literal(ScalarValue::try_from_array(&array, 0)?, metadata)));
            }
            Expr::Negative(operand) => Expr::Negative(Box::new(bare(*operand))),
            Expr::BinaryExpr(mut binary) if is_arithmetic(binary.op) => {
                *binary.left = bare(*binary.left);
                if binary.op != Operator::Divide {
                    *binary.right = bare(*binary.right);
                }
                Expr::BinaryExpr(binary)
            }
            other if may_make_floats(&other, schema)? => other,
            other => return Ok(Transformed::no(other)),
        };
        Ok(Transformed::yes(if holds_floats(&made, schema)? { canonical_floats(made) } else { made }))
    })?;
    Ok(canonical.data)
}

/// Returns an expression with one bit pattern per float value.
pub(crate) fn canonical_floats(expr: Expr) -> Expr {
    Form::Canonical.call(expr)
}

/// Converts floats to integers of the same order, and such integers back to floats.
pub(crate) fn order_of_floats(expr: Expr) -> Expr {
    Form::Order.call(expr)
}

/// Returns whether a type-checked expression has floats, according to its type, which is slow to compute for deep
/// nesting.
fn holds_floats(expr: &Expr, schema: &DFSchema) -> PlanResult<bool> {
    Ok(match expr {
        Expr::ScalarFunction(call) if call.name() == Form::Canonical.name() => true,
        Expr::Negative(operand) => holds_floats(operand, schema)?,
        Expr::BinaryExpr(binary) if is_arithmetic(binary.op) => {
            holds_floats(&binary.left, schema)? || holds_floats(&binary.right, schema)?
        }
        other => has_floats(&other.get_type(schema)?),
    })
}

/// Returns whether a non-arithmetic expression may make floats of its own.
fn may_make_floats(expr: &Expr, schema: &DFSchema) -> PlanResult<bool> {
    Ok(match expr {
        Expr::Cast(cast) => {
            let to = cast.field.data_type();
            has_floats(to) && !keeps_floats(&cast.expr.get_type(schema)?, to)
        }
        Expr::TryCast(_) | Expr::HigherOrderFunction(_) => true,
        // Checked arithmetic is on integers; the others pass values on.
        Expr::ScalarFunction(call) => !call.name().starts_with("checked_") && !HANDING_ON.contains(&call.name()),
        _ => false,
    })
}

/// Returns whether `op` is a comparison.
pub(super) fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

fn is_arithmetic(op: Operator) -> bool {
    matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo)
}

/// Returns whether a cast of canonical floats yields canonical ones: narrowing may produce -0.0, and text may be any
/// float.
fn keeps_floats(from: &DataType, to: &DataType) -> bool {
    if from.is_floating() && to.is_floating() {
        return from.primitive_width() <= to.primitive_width();
    }
    from == to || from.is_integer() && to.is_floating() || from.is_decimal() && *to == DataType::Float64
}

/// Unwraps the function of [`canonical_floats`] from an expression.
fn bare(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(mut call) if call.name() == Form::Canonical.name() && call.args.len() == 1 => {
            call.args.remove(0)
        }
        other => other,
    }
}

/// Returns an expression that only casts a column, or takes a field or an item out of it, without the function of
/// [`canonical_floats`]: what is not compared keeps the sign of its zeros, as a whole column does. `None` for any
/// other, such as a cast to text, in which a sign would be compared.
pub(crate) fn handed_on(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    let inside = |expr: &Expr| match expr {
        Expr::Column(_) => Some(expr.clone()),
        other => handed_on(other, schema),
    };
    let stay = |from: &Expr| {
        let (from, to) = (from.get_type(schema).ok()?, expr.get_type(schema).ok()?);
        (!has_floats(&from) || is_of_floats(&to)).then_some(())
    };
    match expr {
        Expr::Alias(alias) => handed_on(&alias.expr, schema),
        Expr::Cast(cast) => {
            stay(&cast.expr)?;
            let mut cast = cast.clone();
            *cast.expr = inside(&cast.expr)?;
            Some(Expr::Cast(cast))
        }
        Expr::ScalarFunction(call) if call.name() == Form::Canonical.name() => handed_on(call.args.first()?, schema),
        Expr::ScalarFunction(call) if CASTING.contains(&call.name()) || TAKING.contains(&call.name()) => {
            if !call.args.iter().skip(1).all(|argument| matches!(argument, Expr::Literal(_, _))) {
                return None;
            }
            if CASTING.contains(&call.name()) {
                stay(call.args.first()?)?;
            }
            let mut call = call.clone();
            let value = call.args.first_mut()?;
            *value = inside(value)?;
            Some(Expr::ScalarFunction(call))
        }
        _ => None,
    }
}

/// Returns whether all values of a type are floats, at any depth.
fn is_of_floats(data_type: &DataType) -> bool {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Struct};
    match data_type {
        List(item) | LargeList(item) | FixedSizeList(item, _) => is_of_floats(item.data_type()),
        Struct(fields) => fields.iter().all(|field| is_of_floats(field.data_type())),
        Dictionary(_, values) => is_of_floats(values),
        other => other.is_floating(),
    }
}

/// The conversion of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// To one bit pattern per value.
    Canonical,
    /// From canonical floats to integers of the same order, or back.
    Order,
}

impl Form {
    fn call(self, operand: Expr) -> Expr {
        static FUNCTIONS: LazyLock<[Arc<ScalarUDF>; 2]> = LazyLock::new(|| {
            [Form::Canonical, Form::Order].map(|form| {
                let signature = Signature::any(1, Volatility::Immutable);
                Arc::new(Formed { form, signature }.into())
            })
        });
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&FUNCTIONS[self as usize]), vec![operand]))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Canonical => "canonical_float",
            Self::Order => "float_order",
        }
    }

    fn apply(self, array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        match self {
            Self::Canonical => Ok(canonical(array)?.unwrap_or_else(|| Arc::clone(array))),
            Self::Order => in_order(array),
        }
    }
}

/// A [`Form`] as a function of the engine.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Formed {
    form: Form,
    signature: Signature,
}

impl ScalarUDFImpl for Formed {
    fn name(&self) -> &'static str {
        self.form.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        null_as_arguments(self, &arguments)
    }

    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        let [of] = take_function_args(self.name(), arguments)?;
        Ok(match (self.form, of) {
            (Form::Canonical, of) => of.clone(),
            (Form::Order, DataType::Float16) => DataType::Int16,
            (Form::Order, DataType::Float32) => DataType::Int32,
            (Form::Order, DataType::Float64) => DataType::Int64,
            (Form::Order, DataType::Int16) => DataType::Float16,
            (Form::Order, DataType::Int32) => DataType::Float32,
            (Form::Order, DataType::Int64) => DataType::Float64,
            (Form::Order, other) => return plan_err!("`{}` of {other}", self.name()),
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let [value] = take_function_args(self.name(), arguments.args)?;
        match value {
            ColumnarValue::Array(array) => Ok(ColumnarValue::Array(self.form.apply(&array)?)),
            ColumnarValue::Scalar(scalar) => {
                let array = self.form.apply(&scalar.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow_schema::{Field, Schema};

    use super::*;
    use crate::selection::parse;

    fn parsed(text: &str) -> String {
        let fields =
            [("x", DataType::Float64), ("h", DataType::Float32), ("i", DataType::Int64), ("t", DataType::Utf8)];
        let schema = Arc::new(Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec()));
        parse::parse(text, &schema, &BTreeMap::new()).unwrap().expr.to_string()
    }

    #[test]
    fn what_is_compared_as_it_is_read_stays_bare() {
        for text in ["x > -0.5", "h < 0.1", "x = -0.0", "x IN (0.1, 0.2)", "i > x", "x = h", "coalesce(x, 1.5) < 2"] {
            assert!(!parsed(text).contains("canonical_float"), "{}", parsed(text));
        }
        assert_eq!(parsed("x = -0.0"), parsed("x = 0.0"));
        assert_eq!(parsed("x = CAST('-0.0' AS DOUBLE)"), parsed("x = 0.0"));
    }

    #[test]
    fn what_is_computed_is_made_canonical_once() {
        for text in ["-x > 0", "x * 2 + x / 3 > 1", "sqrt(x) = 1", "CAST(x AS REAL) < 1", "CAST(t AS DOUBLE) > 1"] {
            assert_eq!(parsed(text).matches("canonical_float").count(), 1, "{}", parsed(text));
        }
        assert_eq!(parsed("1 / (x * 2) > 1").matches("canonical_float").count(), 2);
    }
}
