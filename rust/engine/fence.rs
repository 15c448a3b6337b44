//! Keeps what the engine knows of the order of rows from where it would be wrong.
//!
//! The engine leaves out sorts by what is in order already, and moves others towards the tables. For that it assumes too
//! much:
//!
//! - that what is constant on one side of an outer join is so where the side has no row, and what is constant in each
//!   input of a union, in all of it;
//! - that rows of the side of a join that is built first are in order for all rows of the other side with equal keys,
//!   not only for each;
//! - that groups of several grouping sets are in order together if their rows are;
//! - that a limit keeps the same rows if they are sorted before.
//!
//! A [`Fence`] returns the rows of its input. Nothing is moved past it, and no more is known of them than is right.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRecursion};
use datafusion::common::{JoinType, Result as PlanResult, Statistics};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties,
    SendableRecordBatchStream, StatisticsArgs,
};

use super::walk::Walk;

/// Puts up the fences, before the rule that places sorts.
#[derive(Debug)]
pub(super) struct Fences;

impl PhysicalOptimizerRule for Fences {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> PlanResult<Arc<dyn ExecutionPlan>> {
        let fenced = plan.transform_up(|node| {
            let known: Vec<_> = (0..node.children().len()).map(|index| known_of(&node, index)).collect();
            if known.iter().all(Option::is_none) {
                return Ok(Transformed::no(node));
            }
            let children = node.children().into_iter().zip(known).map(|(child, known)| match known {
                Some(known) => Fence::around(Arc::clone(child), known),
                None => Arc::clone(child),
            });
            let children = children.collect();
            let anew = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            node.replace_children(children, anew).map(Transformed::yes)
        });
        fenced.data()
    }

    fn name(&self) -> &'static str {
        "fences"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns what a node may know of one of its inputs; `None` without a fence.
fn known_of(node: &Arc<dyn ExecutionPlan>, index: usize) -> Option<Known> {
    let of_hash = node.downcast_ref::<HashJoinExec>().map(HashJoinExec::join_type);
    let of_loops = node.downcast_ref::<NestedLoopJoinExec>().map(NestedLoopJoinExec::join_type);
    let may_be_missing = match of_hash.or(of_loops) {
        Some(JoinType::Left) => index == 1,
        Some(JoinType::Right) => index == 0,
        Some(JoinType::Full) => true,
        _ => false,
    };
    let child = *node.children().get(index)?;
    let has_sets = child.downcast_ref::<AggregateExec>().is_some_and(|groups| groups.group_expr().has_grouping_set());
    if may_be_missing || node.is::<UnionExec>() || has_sets {
        Some(Known::Nothing)
    } else if of_hash.is_some() && index == 0 && may_be_ordered(child) {
        Some(Known::Equalities)
    } else if is_limited(child) && !node.is::<OutputRequirementExec>() {
        Some(Known::Order)
    } else {
        None
    }
}

/// Returns whether the rows of a plan may have an order, now or as soon as its sorts are placed.
fn may_be_ordered(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_sorted = plan.is::<SortExec>() || plan.required_input_ordering().iter().any(Option::is_some);
    is_sorted || plan.output_ordering().is_some() || plan.children().into_iter().any(may_be_ordered)
}

fn is_limited(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_top = plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_some());
    is_top || plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>()
}

/// What is known of rows beyond a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// Which columns are equal or constant, but no order.
    Equalities,
    /// All. The order was there before the fence, and stays there.
    Order,
}

/// Passes rows on.
#[derive(Debug)]
struct Fence {
    input: Arc<dyn ExecutionPlan>,
    known: Known,
    properties: Arc<PlanProperties>,
}

impl Fence {
    fn around(input: Arc<dyn ExecutionPlan>, known: Known) -> Arc<dyn ExecutionPlan> {
        let mut of_rows = input.equivalence_properties().clone();
        match known {
            Known::Nothing => of_rows = EquivalenceProperties::new(input.schema()),
            Known::Equalities => of_rows.clear_orderings(),
            Known::Order => {}
        }
        let properties = PlanProperties::clone(input.properties()).with_eq_properties(of_rows);
        Arc::new(Self { input, known, properties: Arc::new(properties) })
    }
}

impl DisplayAs for Fence {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence: known={:?}", self.known)
    }
}

impl ExecutionPlan for Fence {
    fn name(&self) -> &'static str {
        "Fence"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let order = self.input.output_ordering().filter(|_| self.known == Known::Order);
        vec![order.cloned().map(OrderingRequirements::from)]
    }

    /// Orders are not asked of the input instead.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(Self::around(children.swap_remove(0), self.known))
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(Self::around(children.swap_remove(0), self.known))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> PlanResult<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> PlanResult<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
