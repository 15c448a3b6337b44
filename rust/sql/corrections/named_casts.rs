//! Casts that need a name of their own.
//!
//! The planner names a cast as the value it casts, so that `sum(x)` beside `sum(CAST(x AS DOUBLE))` are two columns of
//! one name, which it refuses. Then the query is planned again, with each cast as a function that has a name.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result as PlanResult, exec_err};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::sqlparser::ast;

use crate::engine::operators::call;
use crate::engine::walk::{self, Walk, WalkPlan};

/// The name of the function, which nobody writes.
const NAME: &str = "CAST ... AS";

/// Returns the function of a cast and the name of its type.
pub(crate) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(Named { signature: Signature::any(2, Volatility::Immutable) }))
}

/// Returns whether planning failed because two expressions have one name.
pub(crate) fn lack_names(error: &DataFusionError) -> bool {
    let text = error.find_root().strip_backtrace();
    ["duplicate unqualified field name", "require unique expression names"].iter().any(|said| text.contains(said))
}

/// Returns whether a plan has groups of one name, which the engine refuses only later.
pub(crate) fn share_names(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut do_share = false;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            let mut names = HashSet::new();
            let exprs = aggregate.group_expr.iter().chain(&aggregate.aggr_expr);
            do_share |= exprs.into_iter().any(|expr| !names.insert(expr.schema_name().to_string()));
        }
        Ok(if do_share { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(do_share)
}

/// Makes each cast a call of [`function`]; returns whether there is one.
pub(crate) fn name(statement: &mut ast::Statement) -> bool {
    let mut is_any = false;
    let _: ControlFlow<()> = walk::visit_expressions_mut(statement, |expr| {
        if let ast::Expr::Cast { data_type, .. } = expr {
            let written = ast::Expr::value(ast::Value::SingleQuotedString(data_type.to_string()));
            let cast = std::mem::replace(expr, ast::Expr::value(ast::Value::Null));
            *expr = ast::Expr::Function(call(NAME, vec![cast, written]));
            is_any = true;
        }
        ControlFlow::Continue(())
    });
    is_any
}

/// Makes casts again of the calls of [`function`]; columns keep their names.
pub(crate) fn casts_of(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let cast = |expr: Expr| {
        expr.transform_up(|part| match part {
            Expr::ScalarFunction(mut call) if call.func.inner().downcast_ref::<Named>().is_some() => {
                Ok(Transformed::yes(call.args.swap_remove(0)))
            }
            other => Ok(Transformed::no(other)),
        })
    };
    let cast = plan.transform_nodes(|node| {
        let names = NamePreserver::new(&node);
        let named = |expr: Expr| {
            let name = names.save(&expr);
            Ok(cast(expr)?.update_data(|expr| name.restore(expr)))
        };
        node.transform_expressions(|expr| match expr {
            // It has no name of its own.
            Expr::GroupingSet(_) => expr.map_children(named),
            expr => named(expr),
        })?
        .map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(cast.data)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    signature: Signature,
}

impl ScalarUDFImpl for Named {
    fn name(&self) -> &'static str {
        NAME
    }

    fn schema_name(&self, arguments: &[Expr]) -> PlanResult<String> {
        let [cast, Expr::Literal(to, _)] = arguments else { return exec_err!("`{NAME}` is planned from a cast") };
        Ok(format!("CAST({} AS {to})", cast.schema_name()))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> PlanResult<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        exec_err!("`{NAME}` is a cast once it is planned")
    }
}
