//! Walks over parsed SQL, expressions and plans that take their closures as trait objects.
//!
//! The walks of the parser and of the engine are generic: for each closure and each visitor the compiler makes a copy of
//! one that goes through every kind of statement, expression or plan. A third of the code of this crate was such copies.
#![expect(clippy::disallowed_methods, reason = "they are disallowed elsewhere, so that they are used through here")]

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{self as plan, LogicalPlan};
use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, Query, Select, Statement, TableFactor, ValueWithSpan, Visit, VisitMut, Visitor, VisitorMut,
};

/// As `node.visit(visitor)`.
pub(crate) fn visit<V: Visitor>(node: &impl Visit, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut kept = Kept { visitor, found: None };
    // What ends the walk is kept.
    let _ = node.visit(&mut Shared(&mut kept));
    kept.found.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// As the function of the parser: calls `found` with each expression, those around others first.
pub(crate) fn visit_expressions<B>(node: &impl Visit, found: impl FnMut(&Expr) -> ControlFlow<B>) -> ControlFlow<B> {
    struct Expressions<F>(F);

    impl<B, F: FnMut(&Expr) -> ControlFlow<B>> Visitor for Expressions<F> {
        type Break = B;

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<B> {
            self.0(expr)
        }
    }

    visit(node, &mut Expressions(found))
}

/// As the function of the parser: calls `found` with each name of a table.
pub(crate) fn visit_relations(node: &impl Visit, found: impl FnMut(&ObjectName)) {
    struct Relations<F>(F);

    impl<F: FnMut(&ObjectName)> Visitor for Relations<F> {
        type Break = Infallible;

        fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<Infallible> {
            self.0(name);
            ControlFlow::Continue(())
        }
    }

    let ControlFlow::Continue(()) = visit(node, &mut Relations(found));
}

/// As the function of the parser: lets `change` change each expression, those within others first.
pub(crate) fn visit_expressions_mut<B>(
    node: &mut impl VisitMut,
    mut change: impl FnMut(&mut Expr) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let mut kept = None;
    let _ = node.visit(&mut Changing { is_outer_first: false, change: &mut |expr| keep(change(expr), &mut kept) });
    kept.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// Lets `change` change each expression, those around others first.
pub(super) fn change_outer_first(node: &mut impl VisitMut, mut change: impl FnMut(&mut Expr)) {
    let mut change = |expr: &mut Expr| {
        change(expr);
        ControlFlow::Continue(())
    };
    let _ = node.visit(&mut Changing { is_outer_first: true, change: &mut change });
}

/// A visitor as a trait object.
struct Shared<'a>(&'a mut dyn Visitor<Break = ()>);

/// A visitor, and what ended its walk.
struct Kept<'a, V: Visitor> {
    visitor: &'a mut V,
    found: Option<V::Break>,
}

fn keep<B>(flow: ControlFlow<B>, kept: &mut Option<B>) -> ControlFlow<()> {
    flow.map_break(|found| *kept = Some(found))
}

macro_rules! forward {
    ($($name:ident: $node:ty),* $(,)?) => {
        impl Visitor for Shared<'_> {
            type Break = ();

            $(fn $name(&mut self, node: &$node) -> ControlFlow<()> {
                self.0.$name(node)
            })*
        }

        impl<V: Visitor> Visitor for Kept<'_, V> {
            type Break = ();

            $(fn $name(&mut self, node: &$node) -> ControlFlow<()> {
                keep(self.visitor.$name(node), &mut self.found)
            })*
        }
    };
}

forward! {
    pre_visit_query: Query,
    post_visit_query: Query,
    pre_visit_select: Select,
    post_visit_select: Select,
    pre_visit_relation: ObjectName,
    post_visit_relation: ObjectName,
    pre_visit_table_factor: TableFactor,
    post_visit_table_factor: TableFactor,
    pre_visit_expr: Expr,
    post_visit_expr: Expr,
    pre_visit_statement: Statement,
    post_visit_statement: Statement,
    pre_visit_value: ValueWithSpan,
    post_visit_value: ValueWithSpan,
}

struct Changing<'a> {
    is_outer_first: bool,
    change: &'a mut dyn FnMut(&mut Expr) -> ControlFlow<()>,
}

impl VisitorMut for Changing<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.is_outer_first { (self.change)(expr) } else { ControlFlow::Continue(()) }
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.is_outer_first { ControlFlow::Continue(()) } else { (self.change)(expr) }
    }
}

/// The methods of [`TreeNode`] of the same names.
pub(crate) trait Walk: TreeNode {
    fn apply<'n>(
        &'n self,
        mut found: impl FnMut(&'n Self) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        TreeNode::apply(self, &mut found as &mut dyn FnMut(&'n Self) -> PlanResult<TreeNodeRecursion>)
    }

    fn apply_children<'n>(
        &'n self,
        mut found: impl FnMut(&'n Self) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        TreeNode::apply_children(self, &mut found as &mut dyn FnMut(&'n Self) -> PlanResult<TreeNodeRecursion>)
    }

    fn exists(&self, mut found: impl FnMut(&Self) -> PlanResult<bool>) -> PlanResult<bool> {
        TreeNode::exists(self, &mut found as &mut dyn FnMut(&Self) -> PlanResult<bool>)
    }

    fn map_children(
        self,
        mut change: impl FnMut(Self) -> PlanResult<Transformed<Self>>,
    ) -> PlanResult<Transformed<Self>> {
        TreeNode::map_children(self, &mut change as &mut dyn FnMut(Self) -> PlanResult<Transformed<Self>>)
    }

    fn transform_up(
        self,
        mut change: impl FnMut(Self) -> PlanResult<Transformed<Self>>,
    ) -> PlanResult<Transformed<Self>> {
        TreeNode::transform_up(self, &mut change as &mut dyn FnMut(Self) -> PlanResult<Transformed<Self>>)
    }

    fn transform_down(
        self,
        mut change: impl FnMut(Self) -> PlanResult<Transformed<Self>>,
    ) -> PlanResult<Transformed<Self>> {
        TreeNode::transform_down(self, &mut change as &mut dyn FnMut(Self) -> PlanResult<Transformed<Self>>)
    }
}

impl<T: TreeNode> Walk for T {}

/// Methods of [`LogicalPlan`].
pub(crate) trait WalkPlan: Sized {
    /// As `transform_up_with_subqueries`.
    fn transform_nodes(
        self,
        change: impl FnMut(LogicalPlan) -> PlanResult<Transformed<LogicalPlan>>,
    ) -> PlanResult<Transformed<LogicalPlan>>;

    /// As `map_expressions`: changes the expressions of this node.
    fn transform_expressions(
        self,
        change: impl FnMut(plan::Expr) -> PlanResult<Transformed<plan::Expr>>,
    ) -> PlanResult<Transformed<LogicalPlan>>;
}

impl WalkPlan for LogicalPlan {
    fn transform_nodes(
        self,
        mut change: impl FnMut(Self) -> PlanResult<Transformed<Self>>,
    ) -> PlanResult<Transformed<Self>> {
        self.transform_up_with_subqueries(&mut change as &mut dyn FnMut(Self) -> PlanResult<Transformed<Self>>)
    }

    fn transform_expressions(
        self,
        mut change: impl FnMut(plan::Expr) -> PlanResult<Transformed<plan::Expr>>,
    ) -> PlanResult<Transformed<Self>> {
        self.map_expressions(&mut change as &mut dyn FnMut(plan::Expr) -> PlanResult<Transformed<plan::Expr>>)
    }
}
