//! The engine's rules of optimization, without those that give other rows.
//!
//! - Its physical filters are moved by the names of columns, and find another column of that name in the output of a
//!   join. Nothing here takes them: datasets get the logical ones.
//! - It moves conditions without columns below aggregates. One that makes a row of no rows still makes it then.

use std::sync::Arc;

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

/// Returns the rules for logical plans.
pub(crate) fn logical() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let moving = PushDownFilter::new();
    let name = moving.name().to_owned();
    let ours: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(Moving(moving));
    let rules = Optimizer::new().rules.into_iter();
    rules.map(|rule| if rule.name() == name { Arc::clone(&ours) } else { rule }).collect()
}

/// Returns the rules for physical plans.
pub(crate) fn physical() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let left_out = [FilterPushdown::new(), FilterPushdown::new_post_optimization()];
    let is_kept = |name: &str| left_out.iter().all(|rule| rule.name() != name);
    PhysicalOptimizer::new().rules.into_iter().filter(|rule| is_kept(rule.name())).collect()
}

/// Moves filters towards the tables, but not past a row that is there without any other.
#[derive(Debug)]
struct Moving(PushDownFilter);

impl OptimizerRule for Moving {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        if decides_of_a_total(&plan) { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
}

/// Returns whether a filter without columns decides whether the total of an aggregate is kept.
fn decides_of_a_total(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    let LogicalPlan::Aggregate(aggregate) = filter.input.as_ref() else { return false };
    let has_total = aggregate.group_expr.iter().all(|key| matches!(key, Expr::GroupingSet(_)));
    has_total && split_conjunction(&filter.predicate).iter().any(|condition| !condition.any_column_refs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_there() {
        let (ours, theirs) = (logical(), Optimizer::new().rules);
        assert_eq!(ours.len(), theirs.len());
        assert_eq!(ours.iter().filter(|rule| format!("{rule:?}").starts_with("Moving")).count(), 1);
        assert_eq!(physical().len() + 2, PhysicalOptimizer::new().rules.len());
    }
}
