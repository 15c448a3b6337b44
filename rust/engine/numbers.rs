//! SQL's numbers: what does not fit is an error or, with `TRY_CAST`, NULL; never another number.
//!
//! The engine's arithmetic wraps around, both on columns and in constant folding. So `+`, `-` and `*` of integers, and
//! negation, become functions that fail instead; sums are computed in a wider type. Its simplifier also moves a cast
//! from the column to the literal it is compared with, thereby comparing numbers that the cast would have refused or
//! rounded; and its pruning casts the bounds of columns, which are wrong if the cast does not keep the order. So casts
//! that may be affected are hidden from it in an identity function.

use std::sync::{Arc, LazyLock};

use arrow_array::{ArrayRef, Datum, make_array};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, TimeUnit};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::common::tree_node::Transformed;
use datafusion::common::utils::take_function_args;
use datafusion::common::{DFSchema, DataFusionError, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TryCast, Volatility,
};

use super::walk::Walk;

/// Replaces the integer arithmetic of a type-checked expression by [`Checked`], and wraps it around casts that lose
/// something or do not keep the order.
pub(crate) fn checked_numbers(expr: Expr, schema: &DFSchema) -> PlanResult<Expr> {
    let checked = expr.transform_up(|node| {
        Ok(match node {
            Expr::BinaryExpr(binary) => {
                let Some(operation) = Operation::of(binary.op) else {
                    return Ok(Transformed::no(Expr::BinaryExpr(binary)));
                };
                let (left, right) = (binary.left.get_type(schema)?, binary.right.get_type(schema)?);
                if left.is_integer() && left == right {
                    Transformed::yes(operation.call(vec![*binary.left, *binary.right]))
                } else {
                    Transformed::no(Expr::BinaryExpr(binary))
                }
            }
            Expr::Negative(negated) if negated.get_type(schema)?.is_signed_integer() => {
                Transformed::yes(Operation::Negate.call(vec![*negated]))
            }
            Expr::TryCast(TryCast { expr, field }) => {
                let expr = Box::new(checked_millis(*expr, field.data_type(), schema)?);
                Transformed::yes(kept_apart(Expr::TryCast(TryCast { expr, field })))
            }
            Expr::Cast(cast) => {
                let (from, to) = (cast.expr.get_type(schema)?, cast.field.data_type());
                if must_stay(&from, to) {
                    Transformed::yes(Operation::Keep.call(vec![Expr::Cast(cast)]))
                } else {
                    Transformed::no(Expr::Cast(cast))
                }
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(checked.data)
}

/// Returns the operand of a `TRY_CAST` to `to`; a date in milliseconds becomes a time in them first, if that is of a
/// finer unit: Arrow multiplies the date without a check, but not the time.
pub(super) fn checked_millis(operand: Expr, to: &DataType, schema: &DFSchema) -> PlanResult<Expr> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond};
    let is_finer = matches!(value_type(to), DataType::Timestamp(Microsecond | Nanosecond, _));
    if !is_finer || *value_type(&operand.get_type(schema)?) != DataType::Date64 {
        return Ok(operand);
    }
    let time = TryCast::new(Box::new(operand), DataType::Timestamp(Millisecond, None));
    Ok(kept_apart(Expr::TryCast(time)))
}

/// Returns whether a cast must not be moved from a column to what that is compared with, or to its bounds.
pub(super) fn must_stay(from: &DataType, to: &DataType) -> bool {
    is_lossy(from, to) || !keeps_order(from, to)
}

/// Returns whether a cast fails on some numbers or times of `from`, or maps two of them to one.
pub(crate) fn is_lossy(from: &DataType, to: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256, Timestamp};
    let digits_of = |data_type: &DataType| match data_type {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => Some((i16::from(*precision) - i16::from(*scale), i16::from(*scale))),
        _ => None,
    };
    if to.is_integer() {
        return !from.is_integer() && (from.is_floating() || digits_of(from).is_some())
            || from.is_integer() && !holds(to, from);
    }
    match (from, to, digits_of(from), digits_of(to)) {
        // The engine also rounds the literal if the column has the coarser unit.
        (Timestamp(from, _), Timestamp(to, _), ..) => from != to,
        (_, _, Some((whole, fraction)), Some((to_whole, to_fraction))) => whole > to_whole || fraction > to_fraction,
        (_, _, None, Some((to_whole, _))) => from.is_floating() || from.is_integer() && to_whole < num_digits(from),
        _ => false,
    }
}

/// Returns whether a cast keeps the order of values: not if it keeps only the time of day, or the truth value of a
/// number. Nor does one between an instant and the local time of a zone, which may have daylight saving time; and the
/// engine does not shift the literal.
pub(crate) fn keeps_order(from: &DataType, to: &DataType) -> bool {
    use DataType::{Boolean, Time32, Time64, Timestamp};
    match (value_type(from), value_type(to)) {
        (from, Boolean) => *from == Boolean,
        (Timestamp(..), Time32(_) | Time64(_)) => false,
        (Timestamp(_, Some(_)), Timestamp(_, Some(_))) => true,
        (from, to) => !is_local(from) && !is_local(to),
    }
}

/// Returns the type of the values of a dictionary; any other as it is.
pub(crate) fn value_type(data_type: &DataType) -> &DataType {
    if let DataType::Dictionary(_, values) = data_type { values } else { data_type }
}

/// Returns whether a timestamp is of a zone other than UTC.
fn is_local(data_type: &DataType) -> bool {
    let DataType::Timestamp(_, Some(zone)) = data_type else { return false };
    !["UTC", "GMT", "Z", "+00:00", "-00:00"].iter().any(|name| zone.eq_ignore_ascii_case(name))
}

/// Returns whether an integer type holds all values of another one.
fn holds(wide: &DataType, narrow: &DataType) -> bool {
    let widths = (wide.primitive_width(), narrow.primitive_width());
    match (wide.is_signed_integer(), narrow.is_signed_integer()) {
        (true, true) | (false, false) => widths.0 >= widths.1,
        (true, false) => widths.0 > widths.1,
        (false, true) => false,
    }
}

/// Returns the decimal digits of the largest value of an integer type.
fn num_digits(integer: &DataType) -> i16 {
    match integer.primitive_width() {
        Some(1) => 3,
        Some(2) => 5,
        Some(4) => 10,
        _ if integer.is_signed_integer() => 19,
        _ => 20,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Negate,
    /// Returns the operand unchanged.
    Keep,
    /// Like `Keep`, but removed once the expression is simplified.
    Hide,
}

impl Operation {
    fn of(op: Operator) -> Option<Self> {
        match op {
            Operator::Plus => Some(Self::Add),
            Operator::Minus => Some(Self::Subtract),
            Operator::Multiply => Some(Self::Multiply),
            _ => None,
        }
    }

    fn call(self, arguments: Vec<Expr>) -> Expr {
        static FUNCTIONS: LazyLock<[Arc<ScalarUDF>; 6]> = LazyLock::new(|| {
            use Operation::{Add, Hide, Keep, Multiply, Negate, Subtract};
            [Add, Subtract, Multiply, Negate, Keep, Hide].map(|operation| Arc::new(Checked::new(operation).into()))
        });
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&FUNCTIONS[self as usize]), arguments))
    }

    fn apply(self, operands: &[&dyn Datum]) -> Result<ArrayRef, ArrowError> {
        match (self, operands) {
            (Self::Add, [left, right]) => numeric::add(*left, *right),
            (Self::Subtract, [left, right]) => numeric::sub(*left, *right),
            (Self::Multiply, [left, right]) => numeric::mul(*left, *right),
            (Self::Negate, [operand]) => numeric::neg(operand.get().0),
            (Self::Keep | Self::Hide, [operand]) => Ok(make_array(operand.get().0.to_data())),
            _ => Err(ArrowError::ComputeError(format!("{self:?} of {} operands", operands.len()))),
        }
    }
}

/// Returns an equivalent expression that the engine does not recognize as such.
pub(crate) fn kept_apart(expr: Expr) -> Expr {
    Operation::Keep.call(vec![expr])
}

/// Hides from the engine that an expression is a list of values; see [`lists`](super::lists).
pub(super) fn hidden_list(list: Expr) -> Expr {
    Operation::Hide.call(vec![list])
}

/// Returns the list that is hidden in an expression, if there is one.
pub(super) fn list_hidden_in(expr: &Expr) -> Option<&Expr> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = expr else { return None };
    let checked = func.inner().downcast_ref::<Checked>()?;
    args.first().filter(|_| checked.operation == Operation::Hide)
}

/// Converts a sum computed in a wider type to `data_type`; fails if it does not fit.
pub(crate) fn narrowed_sum(sum: Expr, data_type: DataType) -> Expr {
    let function = Narrowed { data_type, signature: Signature::any(1, Volatility::Immutable) };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function.into()), vec![sum]))
}

/// Returns the field of a function's result that is NULL exactly where one of its arguments is.
pub(super) fn null_as_arguments(function: &impl ScalarUDFImpl, arguments: &ReturnFieldArgs) -> PlanResult<FieldRef> {
    let types: Vec<_> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
    let is_nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
    Ok(Arc::new(Field::new(function.name(), function.return_type(&types)?, is_nullable)))
}

/// The function of [`narrowed_sum`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct Narrowed {
    data_type: DataType,
    signature: Signature,
}

impl ScalarUDFImpl for Narrowed {
    fn name(&self) -> &'static str {
        "checked_sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        null_as_arguments(self, &arguments)
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(self.data_type.clone())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let [sum] = take_function_args(self.name(), arguments.args)?;
        let narrowed = sum.cast_to(&self.data_type, None);
        narrowed.map_err(|_| DataFusionError::Execution(format!("Overflow happened on: sum of {}", self.data_type)))
    }
}

/// A function that computes with integers of one type, and fails if the result does not fit.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    operation: Operation,
    signature: Signature,
}

impl Checked {
    fn new(operation: Operation) -> Self {
        let num_operands =
            if matches!(operation, Operation::Negate | Operation::Keep | Operation::Hide) { 1 } else { 2 };
        Self { operation, signature: Signature::any(num_operands, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &'static str {
        match self.operation {
            Operation::Add => "checked_add",
            Operation::Subtract => "checked_subtract",
            Operation::Multiply => "checked_multiply",
            Operation::Negate => "checked_negate",
            Operation::Keep => "checked_cast",
            Operation::Hide => "hidden_list",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        null_as_arguments(self, &arguments)
    }

    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        Ok(arguments.first().cloned().unwrap_or(DataType::Null))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let is_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let operands = arguments.args.into_iter().map(|argument| {
            Ok::<Box<dyn Datum>, DataFusionError>(match argument {
                ColumnarValue::Array(array) => Box::new(array),
                ColumnarValue::Scalar(scalar) => Box::new(scalar.to_scalar()?),
            })
        });
        let operands = operands.collect::<PlanResult<Vec<_>>>()?;
        let computed = self.operation.apply(&operands.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
        Ok(if is_scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&computed, 0)?)
        } else {
            ColumnarValue::Array(computed)
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int8Array, Scalar};

    use super::{DataType, Operation, is_lossy, keeps_order};

    #[test]
    fn a_cast_is_lossy_where_some_value_does_not_come_back() {
        use DataType::{Float32, Float64, Int8, Int32, Int64, UInt8, UInt32, UInt64, Utf8};
        let decimal = DataType::Decimal128;
        for (from, to) in [(Int64, Int8), (UInt32, Int32), (Int8, UInt64), (Float64, Int64), (Int64, decimal(18, 0))] {
            assert!(is_lossy(&from, &to), "{from} {to}");
        }
        for (from, to) in [(decimal(10, 2), Int64), (decimal(10, 2), decimal(12, 1)), (decimal(10, 2), decimal(9, 2))] {
            assert!(is_lossy(&from, &to), "{from} {to}");
        }
        for (from, to) in [(Int8, Int64), (UInt8, Int32), (Int32, Float64), (Float32, Float64), (Int64, Utf8)] {
            assert!(!is_lossy(&from, &to), "{from} {to}");
        }
        for (from, to) in [(Int64, decimal(20, 0)), (decimal(10, 2), decimal(12, 4)), (Utf8, Int64)] {
            assert!(!is_lossy(&from, &to), "{from} {to}");
        }
    }

    #[test]
    fn a_cast_keeps_the_order_unless_something_larger_becomes_smaller() {
        use DataType::{Boolean, Date32, Float64, Int64, Time64, Utf8};
        use arrow_schema::TimeUnit::{Microsecond, Nanosecond};
        let time = |zone: Option<&str>| DataType::Timestamp(Microsecond, zone.map(Into::into));
        let coded = |values: DataType| DataType::Dictionary(Box::new(Int64), Box::new(values));
        for (from, to) in [
            (Int64, Boolean),
            (Float64, coded(Boolean)),
            (time(None), Time64(Nanosecond)),
            (coded(time(None)), Time64(Nanosecond)),
            (time(Some("Europe/Berlin")), time(None)),
            (time(None), time(Some("Europe/Berlin"))),
            (time(Some("America/Sao_Paulo")), Date32),
            (time(Some("+02:00")), time(None)),
        ] {
            assert!(!keeps_order(&from, &to), "{from} {to}");
        }
        for (from, to) in [
            (Boolean, Int64),
            (Boolean, Boolean),
            (Int64, Float64),
            (Int64, Utf8),
            (time(None), Date32),
            (time(Some("UTC")), Date32),
            (time(Some("+00:00")), time(None)),
            (time(Some("Europe/Berlin")), time(Some("UTC"))),
        ] {
            assert!(keeps_order(&from, &to), "{from} {to}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let array = Int8Array::from(vec![Some(100), None, Some(-128)]);
        let one = Scalar::new(Int8Array::from(vec![1]));
        assert_eq!(Operation::Add.apply(&[&array, &one]).unwrap().len(), 3);
        for (operation, says) in
            [(Operation::Subtract, "-128 - 1"), (Operation::Multiply, "100 * 100"), (Operation::Negate, "-128")]
        {
            let refused = match operation {
                Operation::Negate => operation.apply(&[&array]),
                Operation::Multiply => operation.apply(&[&array, &array]),
                _ => operation.apply(&[&array, &one]),
            };
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("Overflow happened") && said.contains(says), "{said}");
        }
    }
}
