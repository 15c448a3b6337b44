//! SQL's integers: an overflow is an error, never another number.
//!
//! The engine's arithmetic wraps around, in columns and in the constants that it folds. So `+`, `-` and `*` of
//! integers, and the negation of one, become functions that fail instead.

use std::sync::{Arc, LazyLock};

use arrow_array::{ArrayRef, Datum};
use arrow_schema::{ArrowError, DataType};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// Replaces the integer arithmetic of a type-checked expression by [`Checked`].
pub(super) fn checked_arithmetic(expr: Expr, schema: &DFSchema) -> PlanResult<Expr> {
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
            other => Transformed::no(other),
        })
    })?;
    Ok(checked.data)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Negate,
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
        static FUNCTIONS: LazyLock<[Arc<ScalarUDF>; 4]> = LazyLock::new(|| {
            [Operation::Add, Operation::Subtract, Operation::Multiply, Operation::Negate]
                .map(|operation| Arc::new(Checked::new(operation).into()))
        });
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&FUNCTIONS[self as usize]), arguments))
    }

    fn apply(self, operands: &[&dyn Datum]) -> Result<ArrayRef, ArrowError> {
        match (self, operands) {
            (Self::Add, [left, right]) => numeric::add(*left, *right),
            (Self::Subtract, [left, right]) => numeric::sub(*left, *right),
            (Self::Multiply, [left, right]) => numeric::mul(*left, *right),
            (Self::Negate, [operand]) => numeric::neg(operand.get().0),
            _ => Err(ArrowError::ComputeError(format!("{self:?} of {} operands", operands.len()))),
        }
    }
}

/// A function that computes with integers of one type, and fails where the type does not hold the result.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    operation: Operation,
    signature: Signature,
}

impl Checked {
    fn new(operation: Operation) -> Self {
        let num_operands = if operation == Operation::Negate { 1 } else { 2 };
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
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        Ok(arguments.first().cloned().unwrap_or(DataType::Null))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let is_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let operands = arguments.args.into_iter().map(|argument| {
            Ok::<Box<dyn Datum>, datafusion::error::DataFusionError>(match argument {
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

    use super::Operation;

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
