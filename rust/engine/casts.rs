//! The function behind `Dataset.cast` for casts that could lose something: `cast_column(value, type, column, classes)`.
//!
//! A value that the type cannot represent is an error that names the column; only floats may be rounded. If class names
//! are given, as a JSON list, text becomes the number of its class as in `ClassLabel.str2int`: names take precedence
//! over numbers.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use datafusion::common::{
    DataFusionError, Result as PlanResult, ScalarValue, exec_err, plan_err, utils::take_function_args,
};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::labels::unknown_class;
use crate::cast;

const NAME: &str = "cast_column";

/// Represents an unknown class, as in `datasets`.
const UNKNOWN: i64 = -1;

/// Returns the function.
pub(super) fn function() -> &'static Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        let signature = Signature::any(4, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(CastColumn { signature }))
    });
    &FUNCTION
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CastColumn {
    signature: Signature,
}

impl ScalarUDFImpl for CastColumn {
    fn name(&self) -> &'static str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        plan_err!("the type of `{NAME}` is an argument")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        let [_, data_type, column, _] = take_function_args(NAME, arguments.scalar_arguments)?;
        let to: DataType = text(*data_type)?.parse()?;
        let from = &arguments.arg_fields[0];
        if !cast::can_be_feature(from.data_type(), &to) {
            return plan_err!("column `{}` is `{}` and cannot be cast to `{to}`", text(*column)?, from.data_type());
        }
        Ok(Arc::new(Field::new(NAME, to, from.is_nullable())))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let to = arguments.return_field.data_type();
        let [value, _, column, classes] = take_function_args(NAME, arguments.args)?;
        let (value, column, classes) =
            (value.into_array(arguments.number_rows)?, constant(column)?, constant(classes)?);
        let (column, classes) = (text(Some(&column))?, text(Some(&classes))?);
        let cast = if classes.is_empty() {
            cast::to_feature(&value, to)
        } else {
            let classes = Classes::try_new(column, classes)?;
            cast::cast(&value, to, &move |names, _| classes.numbers_of(names))
        };
        cast.map(ColumnarValue::Array).map_err(|error| match error {
            ArrowError::ExternalError(error) => DataFusionError::External(error),
            ArrowError::CastError(reason) => DataFusionError::Execution(format!("column `{column}`: {reason}")),
            other => DataFusionError::Execution(format!("column `{column}`: {other}")),
        })
    }
}

fn constant(argument: ColumnarValue) -> PlanResult<ScalarValue> {
    match argument {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(_) => exec_err!("`{NAME}` takes a value and three constants"),
    }
}

fn text(argument: Option<&ScalarValue>) -> PlanResult<&str> {
    match argument.and_then(|value| value.try_as_str().flatten()) {
        Some(text) => Ok(text),
        None => plan_err!("`{NAME}` takes a value and three constants, which are text"),
    }
}

/// The classes of a column.
struct Classes {
    column: String,
    names: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Classes {
    /// Parses the JSON list `names`.
    fn try_new(column: &str, names: &str) -> PlanResult<Self> {
        let names: Vec<String> =
            serde_json::from_str(names).map_err(|error| DataFusionError::Plan(format!("`{NAME}`: {error}")))?;
        let numbers = names.iter().cloned().zip(0..).collect();
        Ok(Self { column: column.to_owned(), names, numbers })
    }

    fn numbers_of(&self, names: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        let names = arrow_cast::cast(names, &DataType::LargeUtf8)?;
        let number = |name: Option<&str>| name.map(|name| self.number_of(name)).transpose();
        let numbers = names.as_string::<i64>().iter().map(number).collect::<Result<Int64Array, _>>()?;
        Ok(Arc::new(numbers))
    }

    fn number_of(&self, name: &str) -> Result<i64, ArrowError> {
        let named = self.numbers.get(name).or_else(|| self.numbers.get(name.trim())).copied();
        let is_class =
            |number: &i64| *number == UNKNOWN || usize::try_from(*number).is_ok_and(|it| it < self.names.len());
        named.or_else(|| name.trim().parse().ok().filter(is_class)).ok_or_else(|| {
            ArrowError::ExternalError(Box::new(unknown_class(&self.column, name, self.names.clone(), false)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_before_numbers() {
        let classes = Classes::try_new("stars", r#"["1", "2", "it's \"3\"", " x "]"#).unwrap();
        for (name, number) in
            [("1", 0), ("2", 1), (" 2\n", 1), ("it's \"3\"", 2), (" x ", 3), ("3", 3), ("0", 0), ("-1", -1)]
        {
            assert_eq!(classes.number_of(name).unwrap(), number, "{name:?}");
        }
        for name in ["x", "4", "-2", "1.0", ""] {
            let error = classes.number_of(name).unwrap_err().to_string();
            assert!(error.contains(&format!("no class `{name}` in column `stars`")), "{error}");
        }
    }
}
