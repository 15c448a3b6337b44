//! Lists, structs and maps where a function expects text.
//!
//! The engine gives it what they look like when printed: `length(tags)` was 2 for an empty list, `[]`. So the length of
//! a list is the number of its items, and other functions of text refuse them.

use std::borrow::Cow;

use arrow_schema::{DataType, FieldRef};
use datafusion::common::{DFSchema, Result as PlanResult, plan_err};
use datafusion::functions_nested::expr_fn::array_length;
use datafusion::logical_expr::type_coercion::functions::{UDFCoercionExt, fields_with_udf};
use datafusion::logical_expr::{Expr, ExprSchemable, cast};

/// Also `length` and `char_length`.
const LENGTH: &str = "character_length";

/// Returns the number of items for the length of a list.
///
/// # Errors
///
/// For a function of text whose argument is a list, a struct or a map.
pub(super) fn of_node(node: &Expr, schema: &DFSchema) -> PlanResult<Option<Expr>> {
    match node {
        Expr::ScalarFunction(call) => match printed(call.func.as_ref(), &call.args, schema) {
            Some((list, DataType::List(_) | DataType::LargeList(_))) if call.name() == LENGTH => {
                Ok(Some(cast(array_length(list.clone()), node.get_type(schema)?)))
            }
            Some((value, data_type)) => plan_err!("{}", refusal(call.name(), value, &data_type)),
            None => Ok(None),
        },
        Expr::AggregateFunction(call) => match printed(call.func.as_ref(), &call.params.args, schema) {
            Some((value, data_type)) => plan_err!("{}", refusal(call.func.name(), value, &data_type)),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Returns the first argument that the engine would print, with its type.
fn printed<'a>(function: &impl UDFCoercionExt, values: &'a [Expr], schema: &DFSchema) -> Option<(&'a Expr, DataType)> {
    let fields: Option<Vec<FieldRef>> =
        values.iter().map(|value| value.to_field(schema).ok().map(|(_, field)| field)).collect();
    let fields = fields?;
    // For most there is nothing to look up.
    if !fields.iter().any(|field| field.data_type().is_nested()) {
        return None;
    }
    let taken = fields_with_udf(&fields, function).ok()?;
    let is_printed =
        |(given, taken): (&FieldRef, &FieldRef)| given.data_type().is_nested() && taken.data_type().is_string();
    let place = fields.iter().zip(&taken).position(is_printed)?;
    Some((values.get(place)?, fields[place].data_type().clone()))
}

fn refusal(function: &str, value: &Expr, data_type: &DataType) -> String {
    let value: Cow<'_, str> = match value {
        Expr::Column(column) => Cow::Borrowed(&column.name),
        other => Cow::Owned(other.human_display().to_string()),
    };
    let (kind, instead) = match data_type {
        DataType::Struct(fields) => {
            let field = fields.first().map_or("name", |field| field.name());
            ("a struct", format!("take a field of it, as in `{value}['{field}']`"))
        }
        DataType::Map(..) => ("a map", format!("take a value of it, as in `{value}['key']`")),
        _ if function == "nvl" => ("a list", format!("`coalesce({value}, make_array('a'))` replaces NULL by a list")),
        _ if function == "reverse" => ("a list", format!("`array_reverse({value})` reverses its items")),
        _ => {
            let joined = format!(
                "`array_to_string({value}, ',')` joins its items, `array_length({value})` counts them, \
                 `array_has({value}, ...)` looks for one"
            );
            ("a list", joined)
        }
    };
    format!("`{function}` is for text, and `{value}` is {kind}; {instead}")
}
