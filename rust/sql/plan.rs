//! Plans one `SELECT` over the given tables, and nothing else.
//!
//! Everything happens on a thread with a large stack. Numbers and floats have the same semantics as in filters:
//! overflow is an error, and there is one NaN and one zero.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemTable, MemoryCatalogProvider, MemoryCatalogProviderList,
    MemorySchemaProvider, SchemaProvider, TableProvider,
};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, Result as PlanResult};
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Projection, Volatility};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::prelude::SQLOptions;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;

use super::corrections::{
    Columns, KeyColumns, OrderedOnce, correlated, distinct_once, exact_aggregates, framed_by_peers, named_casts,
    with_compared_columns, with_plain_totals, with_unknown_members, with_wide_means,
};
use super::sample::SamplePlanner;
use super::table::DatasetTable;
use super::{Function, Request, Table, bounds};
use crate::dataset::Dataset;
use crate::engine::any::with_values_apart;
use crate::engine::keyed::KeyedPlanner;
use crate::engine::labels::Names;
use crate::engine::moments::compared_in_their_unit;
use crate::engine::operators::planned_here;
use crate::engine::passed_over::{passed_over, replaced, unreplaced};
use crate::engine::walk::{self, Walk, WalkPlan};
use crate::engine::{self, apart, constants, floats, lists, literals, numbers, parameters, parser, unknown};
use crate::error::{Error, Result};
use crate::selection::parse;
use crate::snapshot::{Snapshot, fields_under_null};

/// The name by which a query refers to its dataset.
const SUBJECT: &str = "dataset";

/// What to write instead of a condition that the engine cannot compute as a value.
const NO_VALUES: &str = "`x IN (SELECT ...)`, `x = ANY (SELECT ...)` and `EXISTS` are supported only as conditions, after WHERE, HAVING or \
                         QUALIFY; for a column, join the values: `SELECT d.*, s.k IS NOT NULL AS is_in FROM dataset d \
                         LEFT JOIN (SELECT DISTINCT k FROM s) s ON s.k = d.x`";

/// A planned query, and the session that runs it.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: LogicalPlan,
    pub(super) state: SessionState,
    /// The numbers of the classes that it names, as comments.
    pub(super) classes: String,
    /// What the query calls its columns.
    pub(super) columns: Columns,
}

impl Planned {
    /// Returns the names of the columns of the result.
    pub(super) fn names(&self) -> Vec<String> {
        let planned: Vec<&str> = self.plan.schema().fields().iter().map(|field| field.name().as_str()).collect();
        self.columns.names(&planned)
    }
}

/// Plans `request` over `dataset`.
pub(super) fn plan(dataset: &Dataset, request: &Request) -> Result<Planned> {
    let text = &request.text;
    engine::with_large_stack(text, || {
        let state = state(dataset, request)?;
        let refused = |reason| Error::Sql { sql: engine::shortened(text), reason };
        let failed = |error: DataFusionError| explain(text, dataset, request, &error);
        let mut statement = parse(dataset, request)?;
        let (mut replacements, mut columns) = (BTreeSet::new(), Columns::default());
        if let Statement::Statement(statement) = &mut statement {
            if let ast::Statement::Query(query) = statement.as_ref() {
                columns = Columns::of(query);
            }
            literals::keep_digits(statement.as_mut());
            replacements = replaced(statement.as_ref());
            parameters::bind(statement.as_mut(), &request.parameters).map_err(refused)?;
            planned_here(statement.as_mut());
        }
        check_tables(&state, &statement, request)?;
        let plan = statement_to_plan(&state, statement).map_err(failed)?;
        bounds::check_plan(&plan).map_err(failed)?;
        if let Some(reason) = misplaced_window(&plan).map_err(failed)? {
            return Err(refused(reason));
        }
        if has_conditions_as_values(&plan).map_err(failed)? {
            return Err(refused(NO_VALUES.to_owned()));
        }
        let plan = with_compared_columns(plan).and_then(with_plain_totals).map_err(failed)?;
        if let Some(reason) = correlated::refused(&plan).map_err(failed)? {
            return Err(refused(reason));
        }
        if let Some((one, other)) = correlated::confused(&plan).map_err(failed)? {
            return Err(refused(format!(
                "a subquery uses `{one}` and `{other}` with rows around it, which the engine does not tell apart; give \
                 one another name there, as in `JOIN (SELECT {} AS other FROM ...)`",
                other.name
            )));
        }
        if let Some(name) = unreplaced(replacements, &plan).map_err(failed)? {
            return Err(refused(format!(
                "`* REPLACE` finds no column `{name}`; write `*, ... AS {name}` for a new one"
            )));
        }
        let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        options.verify_plan(&plan).map_err(failed)?;
        let mut names = Names::default();
        let plan = parameters::values_for(plan).and_then(with_wide_means).map_err(failed)?;
        let plan = replace_literals(plan, &mut names).map_err(failed)?;
        if let Some(refused) = names.refused {
            return Err(refused);
        }
        let planned = finish(plan, state, names.comment()).map_err(failed)?;
        Ok(Planned { columns, ..planned })
    })
}

fn statement_to_plan(state: &SessionState, mut statement: Statement) -> PlanResult<LogicalPlan> {
    let plan_of = |statement| futures::executor::block_on(state.statement_to_plan(statement));
    let planned = plan_of(statement.clone());
    let lacks_names = match &planned {
        Ok(plan) => named_casts::share_names(plan)?,
        Err(error) => named_casts::lack_names(error),
    };
    match &mut statement {
        Statement::Statement(ast) if lacks_names => {
            if named_casts::name(ast.as_mut()) {
                return plan_of(statement).and_then(named_casts::casts_of).or(planned);
            }
            planned
        }
        _ => planned,
    }
}

/// Returns whether `x IN (SELECT ...)` or `EXISTS` is used as a value, which the engine plans but cannot run.
fn has_conditions_as_values(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_found = false;
    plan.apply_with_subqueries(|node| {
        if !matches!(node, LogicalPlan::Filter(_)) {
            node.apply_expressions(|expr| {
                is_found |= expr.exists(|part| {
                    Ok(matches!(part, Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::Exists(_)))
                })?;
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(if is_found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(is_found)
}

/// Returns why a window function is in a clause that comes before windows, which the engine plans but cannot run.
fn misplaced_window(plan: &LogicalPlan) -> PlanResult<Option<String>> {
    let is_window = |part: &Expr| Ok(matches!(part, Expr::WindowFunction(_)));
    let mut clause = None;
    plan.apply_with_subqueries(|node| {
        let name = match node {
            LogicalPlan::Filter(filter) if matches!(*filter.input, LogicalPlan::Aggregate(_)) => "HAVING",
            LogicalPlan::Filter(_) => "WHERE",
            LogicalPlan::Join(_) => "ON",
            LogicalPlan::Aggregate(_) => "GROUP BY",
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        node.apply_expressions(|expr| {
            if expr.exists(is_window)? {
                clause = Some(name);
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if clause.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(clause.map(|clause| {
        let instead = match clause {
            "WHERE" | "HAVING" => "write `QUALIFY ...`, or `WHERE n = 1` around a subquery that computes it",
            _ => "compute it in a subquery, as in `FROM (SELECT *, row_number() OVER (...) AS n FROM dataset)`",
        };
        format!("{clause} cannot hold a window function; {instead}")
    }))
}

/// Plans a filter over the columns of `dataset`.
pub(super) fn plan_filter(dataset: &Dataset, request: &Request, filter: parse::Parsed) -> Result<Planned> {
    engine::with_large_stack(&request.text, || {
        let failed = |error: DataFusionError| explain(&request.text, dataset, request, &error);
        let state = state(dataset, request)?;
        let source = DatasetTable::new(dataset, true).into_source();
        let plan = LogicalPlanBuilder::scan(SUBJECT, source, None)
            .and_then(|plan| plan.filter(lists::hidden(filter.expr)?))
            .and_then(LogicalPlanBuilder::build)
            .map_err(failed)?;
        Ok(Planned { plan, state, classes: filter.comment, columns: Columns::default() })
    })
}

/// Replaces class names by their numbers, and other literals by timestamps and numbers of their column's type.
fn replace_literals(plan: LogicalPlan, names: &mut Names) -> PlanResult<LogicalPlan> {
    let replaced = plan.transform_nodes(|node| {
        let mut schema = DFSchema::empty();
        node.inputs().iter().for_each(|input| schema.merge(input.schema()));
        let kept = NamePreserver::new(&node);
        node.transform_expressions(|expr| {
            let name = kept.save(&expr);
            let members = constants::folded(expr)?.transform_data(literals::with_known_members)?;
            let numbered = members.transform_data(|expr| names.number(expr, &schema))?;
            let replaced = numbered.transform_data(|expr| compared_in_their_unit(expr, &schema))?;
            let replaced = replaced.transform_data(|expr| literals::compared_exactly(expr, &schema))?;
            Ok(replaced.update_data(|expr| name.restore(expr)))
        })?
        .map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(replaced.data)
}

/// Types a plan and makes it exact.
fn finish(plan: LogicalPlan, state: SessionState, classes: String) -> PlanResult<Planned> {
    bounds::check_expressions(&plan)?;
    let plan = framed_by_peers(distinct_once(with_unknown_members(plan)?)?)?;
    let typed = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?;
    let hides_lists = lists::are_several(&typed)?;
    let exact = typed.transform_nodes(|node| {
        let mut schema = DFSchema::empty();
        node.inputs().iter().for_each(|input| schema.merge(input.schema()));
        let names = NamePreserver::new(&node);
        let exact = |expr: Expr| {
            let name = names.save(&expr);
            let exact = numbers::checked_numbers(apart::from_simplifier(apart::keep_cases(expr)?, &schema)?, &schema)?;
            let exact = engine::balance(floats::with_canonical_floats(exact, &schema)?)?;
            let exact = if hides_lists { lists::hidden(exact)? } else { exact };
            Ok(Transformed::yes(name.restore(exact)))
        };
        node.transform_expressions(|expr| match expr {
            // It has no name of its own.
            Expr::GroupingSet(_) => expr.map_children(exact),
            expr => exact(expr),
        })?
        .map_data(LogicalPlan::recompute_schema)?
        .map_data(exact_aggregates)
    })?;
    let plan = with_values_apart(told_apart(exact.data)?)?;
    Ok(Planned { plan, state, classes, columns: Columns::default() })
}

/// Makes each projection differ from the one below it: if two have the same text, as in `SELECT y + 1 AS y FROM (SELECT
/// y + 1 AS y FROM ...)`, the engine's `optimize_projections` drops one.
fn told_apart(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let told = plan.transform_nodes(|node| {
        let LogicalPlan::Projection(outer) = &node else { return Ok(Transformed::no(node)) };
        let is_same = projection_below(&outer.input).is_some_and(|inner| inner.expr == outer.expr);
        let is_plain = |expr: &Expr| matches!(expr, Expr::Column(_));
        if !is_same || outer.expr.iter().all(is_plain) {
            return Ok(Transformed::no(node));
        }
        let names = NamePreserver::new(&node);
        node.transform_expressions(|expr| {
            if is_plain(&expr) {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            Ok(Transformed::yes(name.restore(numbers::kept_apart(expr.unalias()))))
        })?
        .map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(told.data)
}

/// Returns the next projection below, if only filters, orders and limits are in between.
fn projection_below(mut plan: &LogicalPlan) -> Option<&Projection> {
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) => return Some(projection),
            LogicalPlan::Filter(filter) => filter.input.as_ref(),
            LogicalPlan::Sort(sort) => sort.input.as_ref(),
            LogicalPlan::Limit(limit) => limit.input.as_ref(),
            _ => return None,
        };
    }
}

/// Returns a session whose only tables are those of `request`.
fn state(dataset: &Dataset, request: &Request) -> Result<SessionState> {
    let refused = |name, reason: String| Error::Setting { name, reason };
    let failed = |name, error: DataFusionError| Error::Setting { name, reason: engine::reason(&error) };
    let (catalogs, catalog) = (MemoryCatalogProviderList::new(), MemoryCatalogProvider::new());
    let schema: Arc<dyn SchemaProvider> = Arc::new(MemorySchemaProvider::new());
    let names = &engine::session().config_options().catalog;
    let registered = catalog.register_schema(&names.default_schema, Arc::clone(&schema));
    registered.map_err(|error| failed("tables", error))?;
    catalogs.register_catalog(names.default_catalog.clone(), Arc::new(catalog));
    let mut state = SessionStateBuilder::new_from_existing(engine::session().clone())
        .with_catalog_list(Arc::new(catalogs))
        .with_optimizer_rule(Arc::new(OrderedOnce))
        .with_optimizer_rule(Arc::new(KeyColumns))
        .build();
    state.register_udf(named_casts::function()).map_err(|error| failed("tables", error))?;
    // The last is asked first.
    state.register_relation_planner(Arc::new(SamplePlanner)).map_err(|error| failed("tables", error))?;
    state.register_relation_planner(Arc::new(KeyedPlanner)).map_err(|error| failed("tables", error))?;
    for function in parameters::functions(&request.parameters) {
        state.register_udf(function).map_err(|error| failed("params", error))?;
    }
    let register = |name: &str, table: Arc<dyn TableProvider>| {
        schema.register_table(name.to_owned(), table).map(drop).map_err(|error| failed("tables", error))
    };
    register(SUBJECT, Arc::new(DatasetTable::new(dataset, true)))?;
    for (name, table) in &request.tables {
        if name == SUBJECT {
            return Err(refused("tables", format!("`{SUBJECT}` is the dataset itself; choose another name")));
        }
        let table: Arc<dyn TableProvider> = match table {
            Table::Dataset(dataset) => Arc::new(DatasetTable::new(dataset, false)),
            Table::Batches(schema, batches) => {
                let table = in_memory(schema, batches);
                Arc::new(table.map_err(|reason| refused("tables", format!("`{name}`: {reason}")))?)
            }
        };
        register(name, table)?;
    }
    let known = engine::session();
    for function in &request.functions {
        // Unquoted names are case-insensitive, so only this much is known.
        let name = function.name().to_ascii_lowercase();
        if known.scalar_functions().contains_key(&name)
            || known.aggregate_functions().contains_key(&name)
            || known.window_functions().contains_key(&name)
        {
            let reason = format!("`{}` is a function of SQL already; choose another name", function.name());
            return Err(refused("functions", reason));
        }
        let mut others = request.functions.iter().filter(|other| other.name() != function.name());
        if let Some(other) = others.find(|other| is_named(other, &name)) {
            let reason = format!("SQL cannot tell `{}` from `{}`; choose another name", function.name(), other.name());
            return Err(refused("functions", reason));
        }
        state.register_udf(function.to_udf()).map_err(|error| failed("functions", error))?;
    }
    Ok(state)
}

/// Returns batches as a table, or why they cannot be one.
fn in_memory(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<MemTable, String> {
    if let Some(column) = schema.fields().iter().find(|field| has_size_of_zero(field.data_type())) {
        return Err(format!(
            "its column `{}` has values of the fixed size 0, and the engine loses how many there are; leave it out, or \
             cast it to lists or bytes of any size",
            column.name()
        ));
    }
    let canonical = batches.iter().map(|batch| floats::canonical_columns(&fields_under_null(batch)?));
    let canonical = canonical.collect::<Result<Vec<_>, _>>().map_err(DataFusionError::from);
    let table = canonical.and_then(|batches| MemTable::try_new(Arc::clone(schema), vec![batches]));
    table.map_err(|error| engine::reason(&error))
}

/// Returns whether values of a type are lists or bytes of the fixed size 0, or have such. If none is NULL, `take` of `arrow`
/// loses how many there are.
fn has_size_of_zero(data_type: &DataType) -> bool {
    match data_type {
        DataType::FixedSizeList(_, 0) | DataType::FixedSizeBinary(0) => true,
        DataType::FixedSizeList(item, _)
        | DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::Map(item, _) => has_size_of_zero(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_size_of_zero(field.data_type())),
        DataType::Dictionary(_, values) => has_size_of_zero(values),
        _ => false,
    }
}

/// Returns whether a call by `name` may be one of `function`: function names are case-insensitive.
fn is_named(function: &Function, name: &str) -> bool {
    function.name().eq_ignore_ascii_case(name)
}

/// Parses one `SELECT`.
fn parse(dataset: &Dataset, request: &Request) -> Result<Statement> {
    let text = &request.text;
    let refused = |reason: &str| Error::Sql { sql: engine::shortened(text), reason: reason.to_owned() };
    let statement = parser::statement(text).map_err(|error| explain(text, dataset, request, &error))?;
    const ONLY: &str = "only SELECT is supported: nothing can be written, created or set";
    let Statement::Statement(inner) = &statement else { return Err(refused(ONLY)) };
    let ast::Statement::Query(query) = inner.as_ref() else { return Err(refused(ONLY)) };
    let goes_elsewhere = matches!(query.body.as_ref(), ast::SetExpr::Select(select) if select.into.is_some());
    if goes_elsewhere || walk::visit(query.as_ref(), &mut AnyStatement).is_break() {
        return Err(refused(ONLY));
    }
    let is_brought = |name: &str| request.functions.iter().any(|function| is_named(function, name));
    if let Some(reason) = passed_over(query.as_ref(), is_brought) {
        return Err(refused(reason));
    }
    if let Some(reason) = bounds::of_text(query) {
        return Err(refused(&reason));
    }
    let is_long = walk::visit_expressions(query.as_ref(), |expr: &ast::Expr| {
        if engine::is_long_chain(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if is_long.is_break() { Err(engine::too_deep(text)) } else { Ok(statement) }
}

/// Ends at the first statement within a query.
struct AnyStatement;

impl ast::Visitor for AnyStatement {
    type Break = ();

    fn pre_visit_statement(&mut self, _: &ast::Statement) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// Refuses tables that were not given, including files.
fn check_tables(state: &SessionState, statement: &Statement, request: &Request) -> Result<()> {
    let references = state
        .resolve_table_references(statement)
        .map_err(|error| Error::Sql { sql: engine::shortened(&request.text), reason: engine::reason(&error) })?;
    let is_known = |name: &str| name == SUBJECT || request.tables.contains_key(name);
    match references.iter().find(|reference| reference.schema().is_some() || !is_known(reference.table())) {
        None => Ok(()),
        Some(unknown) => {
            let known: Vec<&str> = std::iter::once(SUBJECT).chain(request.tables.keys().map(String::as_str)).collect();
            let reason = format!(
                "there is no table `{unknown}`; there is `{}`. Pass others, files too, as `tables={{\"name\": ...}}`",
                known.join("`, `")
            );
            Err(Error::Sql { sql: engine::shortened(&request.text), reason })
        }
    }
}

/// Refuses what is not a function of the data: a selection must be well-defined.
pub(super) fn refuse_changing(plan: &LogicalPlan, text: &str) -> Result<()> {
    let mut changing = None;
    let walked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr
                    && call.func.signature().volatility != Volatility::Immutable
                {
                    changing = Some(call.name().to_owned());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    walked.map_err(|error| Error::Sql { sql: engine::shortened(text), reason: engine::reason(&error) })?;
    let Some(name) = changing else { return Ok(()) };
    let reason = format!(
        "`{name}()` depends on more than the data (the clock or chance), so the rows would not be reproducible; pass \
         its value as a parameter, or sample by `TABLESAMPLE BERNOULLI (percent) REPEATABLE (seed)`"
    );
    Err(Error::Sql { sql: engine::shortened(text), reason })
}

/// Returns an expression over the columns of `snapshot` in the form in which statistics decide most.
pub(super) fn simple(expr: Expr, snapshot: &Snapshot) -> Expr {
    let Ok(schema) = DFSchema::try_from(Arc::clone(&snapshot.schema)) else { return expr };
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(schema))
        .with_config_options(Arc::clone(engine::session().config_options()))
        .build();
    let simple = lists::simplified(&ExprSimplifier::new(context), expr.clone());
    simple.and_then(engine::balance).unwrap_or(expr)
}

fn explain(text: &str, dataset: &Dataset, request: &Request, error: &DataFusionError) -> Error {
    if let Some(unknown) = unknown::in_query(text, dataset.schema(), error) {
        return unknown;
    }
    let schemas = request.tables.values().map(|table| match table {
        Table::Dataset(dataset) => dataset.schema().as_ref(),
        Table::Batches(schema, _) => schema.as_ref(),
    });
    let schemas: Vec<&Schema> = std::iter::once(dataset.schema().as_ref()).chain(schemas).collect();
    engine::refused(text, &schemas, error)
}
