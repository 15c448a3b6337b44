//! The engine's rules of optimization, without those that give other rows.
//!
//! - Its physical filters are moved by the names of columns, and find another column of that name in the output of a
//!   join. Nothing here takes them: datasets get the logical ones.
//! - It moves conditions without columns below aggregates. One that makes a row of no rows still makes it then.
//! - It arranges inner joins anew as if each were by equal values of two tables, and adds such keys to others.
//! - It moves fields of structs below the names of tables, and then finds no key of a join that is computed from them.
//! - [`keyed`](super::keyed) and [`fence`](super::fence) are about keys and orders.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result as PlanResult};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use super::fence::Fences;
use super::keyed::Keyed;
use super::walk::Walk;

/// Returns the rules for logical plans.
pub(super) fn logical() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> = Vec::new();
    for rule in Optimizer::new().rules {
        if USING_KEYS.contains(&rule.name()) {
            rules.push(Arc::new(Keyed));
        }
        let wrong = WRONG.iter().find(|(name, _)| *name == rule.name());
        rules.push(match wrong {
            Some(&(_, is_wrong)) => Arc::new(Except { rule, is_wrong }),
            None => rule,
        });
    }
    rules.push(Arc::new(TablesOfKeys));
    rules
}

/// Returns the rules for physical plans.
pub(super) fn physical() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> = Vec::new();
    let left_out = [FilterPushdown::new(), FilterPushdown::new_post_optimization()];
    let places_sorts = EnsureRequirements::new();
    for rule in PhysicalOptimizer::new().rules {
        if rule.name() == places_sorts.name() {
            rules.push(Arc::new(Fences));
        }
        if left_out.iter().all(|left_out| left_out.name() != rule.name()) {
            rules.push(rule);
        }
    }
    rules
}

/// Rules that ask which columns decide others.
const USING_KEYS: [&str; 4] =
    ["replace_distinct_aggregate", "eliminate_join", "eliminate_duplicated_expr", "optimize_projections"];

/// Rules, and for which plans each would give other rows.
const WRONG: [(&str, IsWrong); 3] = [
    ("push_down_filter", decides_of_a_total),
    ("eliminate_cross_join", joins_other_than_pairs),
    ("extract_equijoin_predicate", equates_nulls),
];

type IsWrong = fn(&LogicalPlan) -> PlanResult<bool>;

/// A rule that leaves some plans as they are.
#[derive(Debug)]
struct Except {
    rule: Arc<dyn OptimizerRule + Send + Sync>,
    is_wrong: IsWrong,
}

impl OptimizerRule for Except {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        if (self.is_wrong)(&plan)? { Ok(Transformed::no(plan)) } else { self.rule.rewrite(plan, config) }
    }
}

/// Returns whether a filter without columns decides whether the total of an aggregate is kept, also above others.
fn decides_of_a_total(mut plan: &LogicalPlan) -> PlanResult<bool> {
    let mut conditions = Vec::new();
    while let LogicalPlan::Filter(filter) = plan {
        conditions.extend(split_conjunction(&filter.predicate));
        plan = filter.input.as_ref();
    }
    let LogicalPlan::Aggregate(aggregate) = plan else { return Ok(false) };
    let has_total = aggregate.group_expr.iter().all(|key| matches!(key, Expr::GroupingSet(_)));
    Ok(has_total && conditions.into_iter().any(|condition| !condition.any_column_refs()))
}

/// Returns whether a plan has an inner join by other than equal values of one table each, which is lost, or not told
/// from those, when all inner joins are arranged anew.
fn joins_other_than_pairs(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_found = false;
    plan.apply_with_subqueries(|node| {
        let LogicalPlan::Join(join) = node else { return Ok(TreeNodeRecursion::Continue) };
        if join.join_type == JoinType::Inner {
            let is_pair = |(left, right): &(Expr, Expr)| is_of_one(left, &join.left) && is_of_one(right, &join.right);
            is_found |= join.null_equality == NullEquality::NullEqualsNull || !join.on.iter().all(is_pair);
        }
        Ok(if is_found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(is_found)
}

/// Returns whether all columns of a key are of one of the inputs that inner joins have together.
fn is_of_one(key: &Expr, plan: &LogicalPlan) -> bool {
    let columns = key.column_refs();
    let LogicalPlan::Join(join) = plan else { return !columns.is_empty() };
    let has_all = |side: &LogicalPlan| columns.iter().all(|column| side.schema().has_column(column));
    let is_of = |side: &LogicalPlan| has_all(side) && is_of_one(key, side);
    if join.join_type == JoinType::Inner { is_of(&join.left) || is_of(&join.right) } else { !columns.is_empty() }
}

/// Returns whether a node joins by keys of which NULL equals NULL, as it would then for others.
fn equates_nulls(plan: &LogicalPlan) -> PlanResult<bool> {
    let LogicalPlan::Join(join) = plan else { return Ok(false) };
    Ok(join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty())
}

/// Says of which tables the columns are of which keys of joins are computed. The engine computes such a key in a column
/// whose name has them, and looks for it by the name of the key.
#[derive(Debug)]
struct TablesOfKeys;

impl OptimizerRule for TablesOfKeys {
    fn name(&self) -> &'static str {
        "tables_of_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(mut join) = plan else { return Ok(Transformed::no(plan)) };
        let mut is_changed = false;
        for (left, right) in &mut join.on {
            for (key, input) in [(left, &join.left), (right, &join.right)] {
                let with_tables = std::mem::take(key).transform_up(|part| with_table(part, input.schema()))?;
                is_changed |= with_tables.transformed;
                *key = with_tables.data;
            }
        }
        let join = LogicalPlan::Join(join);
        Ok(if is_changed { Transformed::yes(join) } else { Transformed::no(join) })
    }
}

/// Returns a column with its table; other expressions as they are.
fn with_table(expr: Expr, schema: &DFSchema) -> PlanResult<Transformed<Expr>> {
    let Expr::Column(column @ Column { relation: None, .. }) = &expr else { return Ok(Transformed::no(expr)) };
    let (table, field) = schema.qualified_field(schema.index_of_column(column)?);
    Ok(match table {
        Some(table) => Transformed::yes(Expr::Column(Column::new(Some(table.clone()), field.name()))),
        None => Transformed::no(expr),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_there() {
        let (ours, theirs) = (logical(), Optimizer::new().rules);
        assert_eq!(ours.len(), theirs.len() + USING_KEYS.len() + 1);
        assert_eq!(ours.iter().filter(|rule| format!("{rule:?}").starts_with("Except")).count(), WRONG.len());
        assert_eq!(physical().len() + 2, PhysicalOptimizer::new().rules.len() + 1);
    }
}
