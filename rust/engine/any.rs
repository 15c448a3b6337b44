//! `x = ANY(list)`, and `x > ALL (SELECT ...)`.
//!
//! The planner makes an `array_has` of it and, in a `SELECT` list, asks for its type at once, before values are known
//! or bound. So it is planned as a function that accepts anything, and its [values are compared one by
//! one](super::literals) if they are known. If not, the result is NULL, as for `IN`, if the value is not in
//! the list but a NULL is: `array_has` would return false.
//!
//! Of a comparison with a subquery, the engine makes `EXISTS (SELECT ... WHERE x > y)`, with `x` of the row around it. If
//! both have one name, as in `a > ALL (SELECT a FROM dataset)`, it compares `y` with itself. So `y` gets another name.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, OffsetSizeTrait};
use arrow_schema::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result as PlanResult, exec_err, utils::take_function_args};
use datafusion::functions_nested::expr_fn::array_has;
use datafusion::logical_expr::expr::{ScalarFunction, SetComparison};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Subquery, Volatility,
};

use super::walk::{Walk, WalkPlan};

/// The name of the function, which nobody writes.
pub(super) const NAME: &str = "= ANY";

/// Returns the function of a list and a value as which `= ANY` is planned.
pub(super) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(Any { signature: Signature::any(2, Volatility::Immutable) }))
}

/// Returns the list and the value in a call of [`function`].
pub(super) fn list_and_value(call: &ScalarFunction) -> Option<(&Expr, &Expr)> {
    let [list, value] = call.args.as_slice() else { return None };
    call.func.inner().downcast_ref::<Any>().map(|_| (list, value))
}

/// Returns whether each row's list, with unknown values, contains a value.
pub(super) fn is_member(list: &Expr, value: &Expr) -> Expr {
    static UNKNOWN: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        Arc::new(ScalarUDF::new_from_impl(Unknown { signature: Signature::any(2, Volatility::Immutable) }))
    });
    let found = array_has(list.clone(), value.clone());
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&UNKNOWN), vec![found, list.clone()]))
}

/// Names the values of compared subqueries apart from the columns of the rows around them.
pub(crate) fn with_values_apart(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let apart = plan.transform_nodes(|node| {
        node.transform_expressions(|expr| {
            expr.transform_up(|part| {
                let Expr::SetComparison(compared) = part else { return Ok(Transformed::no(part)) };
                let subquery = named_apart(compared.subquery)?;
                Ok(Transformed::yes(Expr::SetComparison(SetComparison { subquery, ..compared })))
            })
        })
    })?;
    Ok(apart.data)
}

fn named_apart(subquery: Subquery) -> PlanResult<Subquery> {
    let values = subquery.subquery.schema().columns().into_iter().map(|value| Expr::Column(value).alias("compared"));
    let named = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).project(values)?.build()?;
    Ok(Subquery { subquery: Arc::new(named), ..subquery })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Any {
    signature: Signature,
}

impl ScalarUDFImpl for Any {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Names the column if it has no alias.
    fn schema_name(&self, arguments: &[Expr]) -> PlanResult<String> {
        let names: Vec<String> = arguments.iter().map(|argument| argument.schema_name().to_string()).collect();
        Ok(format!("array_has({})", names.join(",")))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        exec_err!("`{NAME}` is another function once it is planned")
    }
}

/// Takes whether a list has a value, and the list.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Unknown {
    signature: Signature,
}

impl ScalarUDFImpl for Unknown {
    fn name(&self) -> &'static str {
        "is_member"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let num_rows = arguments.number_rows;
        let [found, list] = take_function_args(self.name(), arguments.args)?;
        let (found, list) = (found.into_array(num_rows)?, list.into_array(num_rows)?);
        let told = match list.data_type() {
            DataType::List(_) => in_list::<i32>(&found, &list),
            DataType::LargeList(_) => in_list::<i64>(&found, &list),
            DataType::FixedSizeList(_, _) => {
                let lists = list.as_fixed_size_list();
                let len = usize::try_from(lists.value_length()).unwrap_or(0);
                told(&found, lists.values(), |row| row * len..(row + 1) * len)
            }
            _ => None,
        };
        Ok(ColumnarValue::Array(told.unwrap_or(found)))
    }
}

fn in_list<Offset: OffsetSizeTrait>(found: &ArrayRef, list: &ArrayRef) -> Option<ArrayRef> {
    let lists = list.as_list::<Offset>();
    let offsets = lists.value_offsets();
    told(found, lists.values(), |row| offsets[row].as_usize()..offsets[row + 1].as_usize())
}

/// Replaces false by NULL where one of a row's values is NULL; `None` if there is no such row.
fn told(found: &ArrayRef, values: &ArrayRef, values_of: impl Fn(usize) -> Range<usize>) -> Option<ArrayRef> {
    let nulls = values.logical_nulls().filter(|nulls| nulls.null_count() > 0)?;
    let is_unknown = |row| values_of(row).any(|value| nulls.is_null(value));
    let told = found.as_boolean_opt()?.iter().enumerate();
    let told: BooleanArray = told.map(|(row, found)| found.filter(|&found| found || !is_unknown(row))).collect();
    Some(Arc::new(told))
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{FixedSizeListArray, ListArray};

    use super::*;

    #[test]
    fn a_value_that_is_not_found_beside_null_is_unknown() {
        let rows =
            [Some(vec![Some(1), None]), Some(vec![Some(1), Some(2)]), Some(vec![]), None, Some(vec![None, None])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows.clone()));
        for (found, expected) in [
            (
                [Some(true), Some(true), Some(false), None, Some(false)],
                [Some(true), Some(true), Some(false), None, None],
            ),
            ([Some(false), Some(false), Some(false), None, None], [None, Some(false), Some(false), None, None]),
        ] {
            let found: ArrayRef = Arc::new(BooleanArray::from(found.to_vec()));
            // A part of a longer array has offsets that do not begin at 0.
            for start in 0..3 {
                let (found, lists) = (found.slice(start, 5 - start), lists.slice(start, 5 - start));
                let got = in_list::<i32>(&found, &lists).unwrap();
                assert_eq!(got.as_boolean(), &BooleanArray::from(expected[start..].to_vec()), "{start}");
            }
        }
        let whole: ArrayRef = Arc::new(lists.slice(1, 2));
        assert!(told(&whole, &lists.slice(0, 1), |_| 0..0).is_none());
        let pairs = [Some(vec![Some(1), None]), None, Some(vec![Some(1), Some(2)])];
        let pairs = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2);
        let found: ArrayRef = Arc::new(BooleanArray::from(vec![Some(false), None, Some(false)]));
        let got = told(&found, pairs.values(), |row| row * 2..(row + 1) * 2).unwrap();
        assert_eq!(got.as_boolean(), &BooleanArray::from(vec![None, None, Some(false)]));
    }
}
