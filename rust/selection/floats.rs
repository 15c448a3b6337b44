//! SQL's floats: one NaN, equal to itself and above every number, and one zero.
//!
//! Arrow compares floats by their bits, where `-0.0` is below `0.0` and a NaN is below or above everything by its
//! sign. So every float gets one bit pattern for each SQL value before it is compared: columns as they are decoded,
//! literals in the plan, and computed values by a function around them.

use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result as PlanResult, utils::take_function_args};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// Puts [`Canonical`] around every computed float that `expr` compares.
///
/// Columns are left bare, so that statistics still decide them; [`canonical_columns`] is for those.
pub(crate) fn canonical_comparisons(expr: Expr, schema: &DFSchema) -> PlanResult<Expr> {
    let wrapped = expr.transform_up(|node| {
        Ok(match node {
            Expr::BinaryExpr(mut binary) if is_comparison(binary.op) => {
                wrap(&mut binary.left, schema)?;
                wrap(&mut binary.right, schema)?;
                Transformed::yes(Expr::BinaryExpr(binary))
            }
            Expr::Between(mut between) => {
                wrap(&mut between.expr, schema)?;
                wrap(&mut between.low, schema)?;
                wrap(&mut between.high, schema)?;
                Transformed::yes(Expr::Between(between))
            }
            Expr::InList(mut list) => {
                wrap(&mut list.expr, schema)?;
                list.list.iter_mut().try_for_each(|item| wrap(item, schema))?;
                Transformed::yes(Expr::InList(list))
            }
            Expr::WindowFunction(mut window) => {
                window.params.partition_by.iter_mut().try_for_each(|key| canonical_key(key, schema))?;
                window.params.order_by.iter_mut().try_for_each(|key| canonical_key(&mut key.expr, schema))?;
                Transformed::yes(Expr::WindowFunction(window))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(wrapped.data)
}

/// Puts [`Canonical`] around a key of an order, columns too: they may be computed below it.
pub(crate) fn canonical_key(key: &mut Expr, schema: &DFSchema) -> PlanResult<()> {
    if key.get_type(schema)?.is_floating() {
        enclose(key);
    }
    Ok(())
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

fn wrap(operand: &mut Expr, schema: &DFSchema) -> PlanResult<()> {
    if !matches!(operand, Expr::Column(_)) && operand.get_type(schema)?.is_floating() {
        enclose(operand);
    }
    Ok(())
}

fn enclose(operand: &mut Expr) {
    static CANONICAL: OnceLock<Arc<ScalarUDF>> = OnceLock::new();
    let function = CANONICAL.get_or_init(|| Arc::new(Canonical::new().into()));
    let bare = std::mem::take(operand);
    *operand = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(function), vec![bare]));
}

/// Gives the top-level float columns of `batch` one bit pattern per value.
pub(crate) fn canonical_columns(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(canonical).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
}

fn canonical(array: &ArrayRef) -> ArrayRef {
    fn of<T: ArrowPrimitiveType>(array: &ArrayRef, canonical: impl Fn(T::Native) -> T::Native) -> ArrayRef {
        Arc::new(array.as_primitive::<T>().unary::<_, T>(canonical))
    }
    match array.data_type() {
        DataType::Float16 => {
            type Half = <Float16Type as ArrowPrimitiveType>::Native;
            of::<Float16Type>(array, |x| if x.is_nan() { Half::NAN } else { x + Half::ZERO })
        }
        DataType::Float32 => of::<Float32Type>(array, |x| if x.is_nan() { f32::NAN } else { x + 0.0 }),
        DataType::Float64 => of::<Float64Type>(array, |x| if x.is_nan() { f64::NAN } else { x + 0.0 }),
        _ => Arc::clone(array),
    }
}

/// The function that gives a float its one bit pattern.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Canonical {
    signature: Signature,
}

impl Canonical {
    fn new() -> Self {
        let floats = vec![DataType::Float16, DataType::Float32, DataType::Float64];
        Self { signature: Signature::uniform(1, floats, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Canonical {
    fn name(&self) -> &'static str {
        "canonical_float"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        Ok(arguments.first().cloned().unwrap_or(DataType::Null))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let [value] = take_function_args(self.name(), arguments.args)?;
        match value {
            ColumnarValue::Array(array) => Ok(ColumnarValue::Array(canonical(&array))),
            ColumnarValue::Scalar(scalar) => {
                let array = canonical(&scalar.to_array()?);
                Ok(ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&array, 0)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Float64Array;

    use super::*;

    #[test]
    fn floats_get_one_bit_pattern_for_each_value() {
        let nan = f64::from_bits(f64::NAN.to_bits() | (1 << 63));
        let array: ArrayRef = Arc::new(Float64Array::from(vec![nan, f64::NAN, -0.0, 0.0, -1.5]));
        let bits: Vec<u64> =
            canonical(&array).as_primitive::<Float64Type>().values().iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [f64::NAN, f64::NAN, 0.0, 0.0, -1.5].map(f64::to_bits));
    }
}
