//! Subqueries that refer to the rows around them. The engine moves their conditions out, and there the columns of all
//! their tables belong to one: of two columns of one name, it takes one for the other.

use std::collections::HashMap;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result as PlanResult, TableReference};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Returns two columns of one name that a subquery compares with rows around it, or returns.
pub(super) fn confused(plan: &LogicalPlan) -> PlanResult<Option<(Column, Column)>> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                let subquery = match part {
                    Expr::InSubquery(inner) => &inner.subquery,
                    Expr::Exists(exists) => &exists.subquery,
                    Expr::ScalarSubquery(subquery) => subquery,
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                if !subquery.outer_ref_columns.is_empty() && found.is_none() {
                    found = of_one_name(&subquery.subquery)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

fn of_one_name(subquery: &LogicalPlan) -> PlanResult<Option<(Column, Column)>> {
    let mut columns: Vec<Column> = subquery.schema().columns();
    subquery.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let moved = split_conjunction(&filter.predicate).into_iter().filter(|condition| condition.contains_outer());
            columns.extend(moved.flat_map(Expr::column_refs).cloned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut known: HashMap<String, TableReference> = HashMap::new();
    for column in columns {
        let Some(table) = column.relation.clone() else { continue };
        match known.get(&column.name) {
            Some(other) if *other != table => {
                return Ok(Some((Column::new(Some(other.clone()), column.name.clone()), column)));
            }
            _ => drop(known.insert(column.name, table)),
        }
    }
    Ok(None)
}
