//! Which columns decide all others of a row.
//!
//! The engine drops keys of orders and groups, joins and `DISTINCT`, and adds keys to groups, by what it takes for keys
//! of the rows. It is wrong about some: the key of one joined table is none of the groups of both, and an unnested list
//! repeats the row that it belongs to.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Dependency, FunctionalDependence, FunctionalDependencies, Result as PlanResult};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::sql::sqlparser::ast::{TableFactor, TableSample, TableSampleKind, TableSampleModifier};

use super::walk::WalkPlan;

/// Gives each node of a plan the keys that its rows have.
#[derive(Debug)]
pub(super) struct Keyed;

impl OptimizerRule for Keyed {
    fn name(&self) -> &'static str {
        "keyed"
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        keyed(plan)
    }
}

/// Gives a subquery its keys as soon as it is planned, for what is planned above it.
#[derive(Debug)]
pub(crate) struct KeyedPlanner;

impl RelationPlanner for KeyedPlanner {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> PlanResult<RelationPlanning> {
        let (TableFactor::Table { sample, alias, .. } | TableFactor::Derived { sample, alias, .. }) = &mut relation
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        if sample.as_ref() == Some(&seen()) {
            *sample = None;
        } else if sample.is_none() {
            let alias = alias.take();
            *sample = Some(seen());
            let plan = keyed(context.plan(relation)?)?.data;
            return Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))));
        }
        Ok(RelationPlanning::Original(Box::new(relation)))
    }
}

/// Returns the mark of a relation that [`KeyedPlanner`] has asked for itself: a sample that no text can mean.
fn seen() -> TableSampleKind {
    let modifier = TableSampleModifier::TableSample;
    let sample = TableSample { modifier, name: None, quantity: None, seed: None, bucket: None, offset: None };
    TableSampleKind::BeforeTableAlias(Box::new(sample))
}

fn keyed(plan: LogicalPlan) -> PlanResult<Transformed<LogicalPlan>> {
    let mut num_keyed = 0;
    plan.apply_with_subqueries(|node| {
        num_keyed += usize::from(matches!(
            node,
            LogicalPlan::Aggregate(_)
                | LogicalPlan::Window(_)
                | LogicalPlan::Unnest(_)
                | LogicalPlan::RecursiveQuery(_)
        ));
        Ok(TreeNodeRecursion::Continue)
    })?;
    // There is nothing wrong about one alone.
    if num_keyed < 2 {
        return Ok(Transformed::no(plan));
    }
    plan.transform_nodes(|node| {
        let mut node = node.recompute_schema()?;
        let (schema, keys) = match &mut node {
            LogicalPlan::Aggregate(groups) => {
                let keys = keys_of_groups(&groups.group_expr, &groups.schema);
                (&mut groups.schema, keys)
            }
            LogicalPlan::Unnest(lists) => (&mut lists.schema, FunctionalDependencies::empty()),
            LogicalPlan::RecursiveQuery(rounds) => (&mut rounds.schema, FunctionalDependencies::empty()),
            _ => return Ok(Transformed::yes(node)),
        };
        *schema = Arc::new(schema.as_ref().clone().with_functional_dependencies(keys)?);
        Ok(Transformed::yes(node))
    })
}

fn keys_of_groups(group_expr: &[Expr], schema: &DFSchema) -> FunctionalDependencies {
    if group_expr.is_empty() || group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
        return FunctionalDependencies::empty();
    }
    let keys: Vec<usize> = (0..group_expr.len()).collect();
    let may_be_null = keys.iter().any(|&key| schema.field(key).is_nullable());
    let all = (0..schema.fields().len()).collect();
    let of_groups = FunctionalDependence::new(keys, all, may_be_null).with_mode(Dependency::Single);
    FunctionalDependencies::new(vec![of_groups])
}
