//! Parameters of a query: what the planner sees for `$name`, and the value that replaces it.
//!
//! The planner asks for the type of every operand, and does not know that of a named placeholder. So each is planned as
//! a function without arguments that has the type of the value and the name of the placeholder, which also names
//! columns made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::sqlparser::ast;

use super::depth::balance;
use super::reason::no_parameter;
use super::walk::{self, Walk, WalkPlan};

/// A placeholder with a value.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Parameter {
    /// Including its `$`.
    written: String,
    value: ScalarValue,
    signature: Signature,
}

impl ScalarUDFImpl for Parameter {
    fn name(&self) -> &str {
        &self.written
    }

    fn schema_name(&self, _: &[Expr]) -> PlanResult<String> {
        Ok(self.written.clone())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(self.value.data_type())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        Ok(ColumnarValue::Scalar(self.value.clone()))
    }
}

/// Returns the functions that [`bind`] makes the planner call.
pub(crate) fn functions(parameters: &BTreeMap<String, ScalarValue>) -> impl Iterator<Item = Arc<ScalarUDF>> {
    parameters.iter().map(|(name, value)| {
        let signature = Signature::nullary(Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(Parameter { written: format!("${name}"), value: value.clone(), signature }))
    })
}

/// Replaces `$name` by calls of [`functions`]; all must be used.
///
/// # Errors
///
/// What is wrong with a placeholder or a parameter.
pub(crate) fn bind(statement: &mut ast::Statement, parameters: &BTreeMap<String, ScalarValue>) -> Result<(), String> {
    let mut used = BTreeSet::new();
    let unbound = walk::visit_expressions_mut(statement, |expr: &mut ast::Expr| {
        let ast::Expr::Value(value) = expr else { return ControlFlow::Continue(()) };
        let ast::Value::Placeholder(written) = &value.value else { return ControlFlow::Continue(()) };
        match written.strip_prefix('$').filter(|name| parameters.contains_key(*name)) {
            Some(name) => used.insert(name.to_owned()),
            None => return ControlFlow::Break(written.clone()),
        };
        *expr = ast::Expr::Function(call(written));
        ControlFlow::Continue(())
    });
    if let ControlFlow::Break(written) = unbound {
        return Err(match written.strip_prefix('$') {
            Some(name) => format!("`{written}` has no value; pass it as `params={{\"{name}\": ...}}`"),
            None => no_parameter(&written),
        });
    }
    match parameters.keys().find(|name| !used.contains(*name)) {
        Some(name) => Err(format!("the parameter `{name}` is not in it; write `${name}` where its value belongs")),
        None => Ok(()),
    }
}

fn call(name: &str) -> ast::Function {
    ast::Function {
        name: ast::Ident::with_quote('"', name).into(),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::None,
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}

/// Returns the value that a call stands for.
pub(super) fn value_of(expr: &Expr) -> Option<&ScalarValue> {
    let Expr::ScalarFunction(call) = expr else { return None };
    call.func.inner().downcast_ref::<Parameter>().map(|parameter| &parameter.value)
}

/// Replaces the calls by values.
pub(crate) fn values_for(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let bound = plan.transform_down_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        node.transform_expressions(|expr| {
            let name = names.save(&expr);
            let bound = expr.transform_up(|expr| {
                Ok(match value_of(&expr) {
                    Some(value) => Transformed::yes(Expr::Literal(value.clone(), None)),
                    None => Transformed::no(expr),
                })
            })?;
            let balanced = bound.map_data(balance)?;
            Ok(balanced.update_data(|expr| name.restore(expr)))
        })?
        .map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(bound.data)
}
