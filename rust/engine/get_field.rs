//! `get_field`, which takes a field of a struct, or a value of a map: NULL where that is.
//!
//! The engine's takes the array of the field as it is. Below structs that are NULL, there may be anything: `nullif` leaves
//! their fields as they were, and so may functions that users bring.

use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_schema::{DataType, Field, FieldRef};
use arrow_select::nullif::nullif;
use datafusion::common::{Column, DFSchema, Result as PlanResult, ScalarValue, TableReference};
use datafusion::functions::core::get_field;
use datafusion::functions::core::getfield::GetFieldFunc;
use datafusion::functions_nested::planner::FieldAccessPlanner;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    lit,
};

/// Returns the function.
pub(super) fn function() -> &'static Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| Arc::new(ScalarUDF::new_from_impl(GetField { of_engine: GetFieldFunc::new() })));
    &FUNCTION
}

/// Makes the function of `s['x']` and `s.x`.
#[derive(Debug)]
pub(super) struct Fields;

impl ExprPlanner for Fields {
    fn plan_field_access(
        &self,
        raw: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> PlanResult<PlannerResult<RawFieldAccessExpr>> {
        Ok(match FieldAccessPlanner.plan_field_access(raw, schema)? {
            PlannerResult::Planned(planned) => PlannerResult::Planned(as_ours(planned)),
            original => original,
        })
    }

    fn plan_compound_identifier(
        &self,
        field: &Field,
        qualifier: Option<&TableReference>,
        nested_names: &[String],
    ) -> PlanResult<PlannerResult<Vec<Expr>>> {
        let column = Expr::Column(Column::from((qualifier, field)));
        let taken = nested_names.iter().fold(column, |of, name| call(function(), vec![of, lit(name.as_str())]));
        Ok(PlannerResult::Planned(taken))
    }
}

fn call(function: &Arc<ScalarUDF>, args: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(function), args))
}

/// Returns a call of the engine's function as one of ours.
fn as_ours(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(taken) if taken.func.inner().is::<GetFieldFunc>() => call(function(), taken.args),
        other => other,
    }
}

/// Returns calls of our function, within each other, as those of the engine's.
fn as_theirs(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(mut taken) if taken.func.inner().is::<GetField>() => {
            if let Some(of) = taken.args.first_mut() {
                *of = as_theirs(std::mem::take(of));
            }
            call(&get_field(), taken.args)
        }
        other => other,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct GetField {
    of_engine: GetFieldFunc,
}

impl GetField {
    /// Takes the part of each value that `key` names.
    fn part(&self, of: &ArrayRef, key: &ColumnarValue, arguments: &ScalarFunctionArgs) -> PlanResult<ArrayRef> {
        if let DataType::Dictionary(_, values) = of.data_type()
            && matches!(values.as_ref(), DataType::Struct(_))
        {
            let dictionary = of.as_any_dictionary();
            return Ok(dictionary.with_values(self.part(dictionary.values(), key, arguments)?));
        }
        let args = vec![ColumnarValue::Array(Arc::clone(of)), key.clone()];
        let arguments = ScalarFunctionArgs { args, number_rows: of.len(), ..arguments.clone() };
        let part = self.of_engine.invoke_with_args(arguments)?.into_array(of.len())?;
        Ok(match of.nulls() {
            Some(nulls) if nulls.null_count() > 0 => nullif(&part, &BooleanArray::new(!nulls.inner(), None))?,
            _ => part,
        })
    }
}

impl ScalarUDFImpl for GetField {
    fn name(&self) -> &str {
        self.of_engine.name()
    }

    fn schema_name(&self, args: &[Expr]) -> PlanResult<String> {
        self.of_engine.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.of_engine.signature()
    }

    fn return_type(&self, types: &[DataType]) -> PlanResult<DataType> {
        self.of_engine.return_type(types)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        self.of_engine.return_field_from_args(arguments)
    }

    fn coerce_types(&self, types: &[DataType]) -> PlanResult<Vec<DataType>> {
        self.of_engine.coerce_types(types)
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.of_engine.placement(args)
    }

    fn simplify(&self, mut args: Vec<Expr>, context: &SimplifyContext) -> PlanResult<ExprSimplifyResult> {
        // It makes one call of several within each other, if they are its own.
        if let Some(of) = args.first_mut() {
            *of = as_theirs(std::mem::take(of));
        }
        Ok(match self.of_engine.simplify(args, context)? {
            ExprSimplifyResult::Simplified(simple) => ExprSimplifyResult::Simplified(as_ours(simple)),
            original => original,
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let Some((of, keys)) = arguments.args.split_first() else { return self.of_engine.invoke_with_args(arguments) };
        let whole = match of {
            ColumnarValue::Array(array) => Arc::clone(array),
            ColumnarValue::Scalar(scalar) => scalar.to_array()?,
        };
        let part = keys.iter().try_fold(whole, |of, key| self.part(&of, key, &arguments))?;
        Ok(match of {
            ColumnarValue::Array(_) => ColumnarValue::Array(part),
            ColumnarValue::Scalar(_) => ColumnarValue::Scalar(ScalarValue::try_from_array(&part, 0)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Int32Type, Int64Type};
    use arrow_array::{DictionaryArray, Int32Array, Int64Array, MapArray, StringArray, StructArray};
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use datafusion::common::config::ConfigOptions;
    use datafusion::logical_expr::expr_fn::col;

    use super::*;

    /// `{s: {x: n}}` for 1 to 3; the second outer struct is NULL, and the third inner one.
    fn structs() -> ArrayRef {
        let x = Arc::new(Field::new("x", DataType::Int64, true));
        let inner = StructArray::new(
            vec![x].into(),
            vec![Arc::new(Int64Array::from(vec![1, 2, 3]))],
            Some(NullBuffer::from(vec![true, true, false])),
        );
        let s = Arc::new(Field::new("s", inner.data_type().clone(), true));
        let nulls = Some(NullBuffer::from(vec![true, false, true]));
        Arc::new(StructArray::new(vec![s].into(), vec![Arc::new(inner)], nulls))
    }

    fn taken(of: ColumnarValue, keys: &[&str], number_rows: usize) -> ColumnarValue {
        let keys: Vec<ScalarValue> = keys.iter().map(|&key| key.into()).collect();
        let names: Vec<_> = std::iter::once(None).chain(keys.iter().map(Some)).collect();
        let key_field = |key: &ScalarValue| Arc::new(Field::new("", key.data_type(), false));
        let arg_fields: Vec<FieldRef> =
            std::iter::once(Arc::new(Field::new("", of.data_type(), true))).chain(keys.iter().map(key_field)).collect();
        let returned = ReturnFieldArgs { arg_fields: &arg_fields, scalar_arguments: &names };
        let return_field = function().return_field_from_args(returned).unwrap();
        let args = std::iter::once(of).chain(keys.into_iter().map(ColumnarValue::Scalar)).collect();
        let config_options = Arc::new(ConfigOptions::new());
        let arguments = ScalarFunctionArgs { args, arg_fields, number_rows, return_field, config_options };
        function().invoke_with_args(arguments).unwrap()
    }

    fn of_array(of: ArrayRef, keys: &[&str]) -> ArrayRef {
        let len = of.len();
        taken(ColumnarValue::Array(of), keys, len).into_array(len).unwrap()
    }

    #[test]
    fn a_field_is_null_where_a_struct_around_it_is() {
        let x = of_array(structs(), &["s", "x"]);
        assert_eq!(x.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(1), None, None]);
        let sliced = of_array(structs().slice(1, 2), &["s", "x"]);
        assert_eq!(sliced.null_count(), 2);
        assert_eq!(of_array(structs(), &["s"]).null_count(), 2);
    }

    #[test]
    fn a_field_is_null_where_a_struct_of_a_dictionary_is() {
        let dictionary = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(1), Some(0), None]), structs());
        let x = of_array(Arc::new(dictionary), &["s", "x"]);
        let plain = arrow_cast::cast(&x, &DataType::Int64).unwrap();
        assert_eq!(plain.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [None, Some(1), None]);
    }

    #[test]
    fn a_value_is_null_where_its_map_is() {
        let key = Arc::new(Field::new("key", DataType::Utf8, false));
        let value = Arc::new(Field::new("value", DataType::Int64, true));
        let columns: Vec<ArrayRef> =
            vec![Arc::new(StringArray::from(vec!["k", "k"])), Arc::new(Int64Array::from(vec![1, 2]))];
        let entries = StructArray::new(vec![key, value].into(), columns, None);
        let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        let nulls = Some(NullBuffer::from(vec![true, false]));
        let maps = MapArray::new(field, OffsetBuffer::from_lengths([1, 1]), entries, nulls, false);
        let values = of_array(Arc::new(maps), &["k"]);
        assert_eq!(values.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(1), None]);
    }

    #[test]
    fn a_field_of_a_constant_is_one() {
        let [first, second] = [0, 1].map(|row| ScalarValue::try_from_array(&structs(), row).unwrap());
        for (of, x) in [(first, ScalarValue::Int64(Some(1))), (second, ScalarValue::Int64(None))] {
            let ColumnarValue::Scalar(found) = taken(ColumnarValue::Scalar(of), &["s", "x"], 5) else { panic!() };
            assert_eq!(found, x);
        }
    }

    #[test]
    fn calls_become_one() {
        let one = call(function(), vec![col("a"), lit("b")]);
        let context = SimplifyContext::default();
        let ScalarFunction { func, args } = ScalarFunction::new_udf(Arc::clone(function()), vec![one, lit("c")]);
        let ExprSimplifyResult::Simplified(simple) = func.simplify(args, &context).unwrap() else { panic!() };
        assert_eq!(simple, call(function(), vec![col("a"), lit("b"), lit("c")]));
    }
}
