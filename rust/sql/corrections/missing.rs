//! Subqueries as values, which are NULL if they have no row, also where their column never is.
//!
//! The engine goes by the column: `(SELECT 1 FROM t WHERE ...) IS NULL` was false, and `coalesce((SELECT ...), 0)` NULL.

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, FieldRef};
use datafusion::common::{Result as PlanResult, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, Projection, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Subquery, Volatility,
};

/// Makes the column of a subquery one that may be NULL.
pub(super) fn maybe_missing(subquery: Subquery) -> PlanResult<Subquery> {
    let plan = subquery.subquery.as_ref();
    let [field] = plan.schema().fields().as_ref() else { return Ok(subquery) };
    if field.is_nullable() {
        return Ok(subquery);
    }
    let (values, input) = match plan {
        LogicalPlan::Projection(Projection { expr, input, .. }) => (expr.clone(), Arc::clone(input)),
        _ => (plan.schema().columns().into_iter().map(Expr::Column).collect(), Arc::clone(&subquery.subquery)),
    };
    let [value] = values.as_slice() else { return Ok(subquery) };
    let name = value.schema_name().to_string();
    let mut arguments = vec![value.clone().unalias()];
    // A constant would be computed at once.
    arguments.extend(input.schema().columns().into_iter().next().map(Expr::Column));
    let value = MISSING.call(arguments).alias(name);
    let rows = Projection::try_new(vec![value], input)?;
    Ok(Subquery { subquery: Arc::new(LogicalPlan::Projection(rows)), ..subquery })
}

static MISSING: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Arc::new(ScalarUDF::new_from_impl(Missing(Signature::variadic_any(Volatility::Immutable)))));

/// Returns its first argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Missing(Signature);

impl ScalarUDFImpl for Missing {
    fn name(&self) -> &'static str {
        "maybe_missing"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        exec_err!("the type is that of a field")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> PlanResult<FieldRef> {
        Ok(Arc::new(arguments.arg_fields[0].as_ref().clone().with_nullable(true)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        Ok(arguments.args[0].clone())
    }
}
