//! Whole queries over a dataset: joins, orders, limits, windows, computed columns.
//!
//! A query whose result has at most one row for each row of the dataset is a dataset itself, which is streamed,
//! shuffled and resumed like any other; all others return batches. DataFusion plans and runs them; tables that are
//! datasets are read by our own scanner.
//!
//! ```text
//!  text ── plan ──► carry (row numbers) ──► trace ──► columns read from the row     computed as rows are read
//!                                              └────► rows, order, other columns    answered once, by run
//! ```
//!
//! [`table`] is a dataset as a table, [`leaf`] as a node of a plan, [`scan`] reads it, [`sample`] is `TABLESAMPLE`,
//! [`function`] a function of the user, [`held`] how large an answer is. [`bounds`] refuses what is too deep or too large
//! to be planned, [`corrections`] is what the engine would answer wrongly. [`provider`] is a dataset as a table of an
//! external DataFusion.

mod bounds;
mod carry;
mod corrections;
mod function;
mod held;
mod leaf;
mod plan;
mod provider;
mod run;
mod sample;
mod scan;
mod table;
mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::common::Column;
pub use datafusion::common::ScalarValue;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast};

use self::carry::{Carried, carry, is_ordered, may_repeat_rows};
pub use self::function::{Function, FunctionBody};
pub use self::provider::DATAFUSION_VERSION;
pub use self::run::{QueryStream, Rows};
use self::table::{DatasetTable, ROW};
use self::trace::{trace, trace_expr};
use crate::dataset::outputs::{Computed, Origin};
use crate::dataset::{Answer, Dataset};
use crate::engine;
use crate::engine::digest::{comment_of, digest_of_batches};
use crate::error::{Error, Result};
use crate::features;
use crate::metrics::{Metrics, Progress};
use crate::selection::{Filter, parse};
use crate::snapshot::plain_type;

/// A query as written, with everything that it names.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// One `SELECT`.
    pub text: String,
    /// Values of `$name`.
    pub parameters: BTreeMap<String, ScalarValue>,
    /// Tables other than `dataset`.
    pub tables: BTreeMap<String, Table>,
    /// User-defined functions.
    pub functions: Vec<Arc<Function>>,
}

/// A table of a query.
#[derive(Debug, Clone)]
pub enum Table {
    /// A dataset, read as far as the query needs it.
    Dataset(Box<Dataset>),
    /// Rows in memory.
    Batches(SchemaRef, Vec<RecordBatch>),
}

impl Request {
    /// Returns text that identifies the query, including its values and the contents of its tables.
    fn identity(&self) -> Result<String> {
        let mut text = self.text.clone() + &comment_of(&self.parameters);
        for (name, table) in &self.tables {
            let failed = |error: ArrowError| Error::Setting { name: "tables", reason: format!("`{name}`: {error}") };
            text += &format!("\n-- {name} = {}", table.identity().map_err(failed)?);
        }
        Ok(text)
    }
}

impl Table {
    fn identity(&self) -> Result<String, ArrowError> {
        match self {
            Self::Dataset(dataset) => {
                let query = dataset.table_texts().join("; ");
                Ok(format!("dataset {} {query}", dataset.snapshot().fingerprint))
            }
            Self::Batches(schema, batches) => digest_of_batches(schema, batches),
        }
    }
}

/// A query that is answered before the dataset is read: its rows are some of another dataset's, possibly in another
/// order.
#[derive(Debug)]
pub(crate) struct Query {
    identity: String,
    text: String,
    /// Row numbers first, then the columns that are kept with the answer.
    plan: LogicalPlan,
    state: SessionState,
    is_ordered: bool,
}

impl Query {
    /// Returns the text that identifies this query.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Finds the rows and the values that are kept with them.
    pub(crate) async fn answer(
        &self,
        dataset: &Dataset,
        memory_limit: u64,
        metrics: &Arc<Metrics>,
        progress: &Arc<Progress>,
    ) -> Result<Answer> {
        let running = run::Running::new(&self.state, &self.text, memory_limit, metrics, progress)?;
        running.answer(&self.plan, dataset, self.is_ordered).await
    }
}

impl Dataset {
    /// Returns the rows that a query keeps of this dataset, named `dataset` in it, with the columns it selects.
    ///
    /// The result has at most one row for each row of the dataset. The query is planned now; rows, orders and values of
    /// other tables are found once, when first needed; columns that depend on the row alone are computed as rows are
    /// read.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`], [`Error::UnknownColumn`]; [`Error::ManyRows`] for a query that returns other rows, such as
    /// groups.
    pub fn sql(&self, request: &Request) -> Result<Self> {
        let planned = plan::plan(self, request)?;
        let made = engine::with_large_stack(&request.text, || {
            plan::refuse_changing(&planned.plan, &request.text)?;
            self.of_plan(&planned, request)
        })?;
        let made = made.map_err(|reason| Error::ManyRows { sql: engine::shortened(&request.text), reason })?;
        Ok(if request.functions.is_empty() { made } else { made.with_functions() })
    }

    /// Runs any `SELECT` over this dataset, named `dataset` in it, within `memory_limit` bytes, and returns its rows.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`], [`Error::UnknownColumn`].
    pub fn query_rows(&self, request: &Request, memory_limit: u64) -> Result<Rows> {
        let planned = plan::plan(self, request)?;
        // Rows of the dataset are read page by page, once they are known.
        let made = engine::with_large_stack(&request.text, || {
            if may_repeat_rows(&planned.plan) || plan::refuse_changing(&planned.plan, &request.text).is_err() {
                return Ok(Err("other rows".to_owned()));
            }
            self.of_plan(&planned, request)
        })?;
        Ok(match made {
            Ok(dataset) if request.functions.is_empty() => Rows::Dataset(Box::new(dataset)),
            Ok(dataset) => Rows::Dataset(Box::new(dataset.with_functions())),
            Err(_) => Rows::Stream(QueryStream::start(&planned, &request.text, memory_limit)?),
        })
    }

    /// Keeps the rows of a dataset made by a query for which `filter` is true.
    pub(crate) fn filter_query(&self, filter: &str, parameters: BTreeMap<String, ScalarValue>) -> Result<Self> {
        let parsed = parse::parse(filter, self.schema(), &parameters)?;
        let request = Request { text: filter.to_owned(), parameters, ..Request::default() };
        let planned = plan::plan_filter(self, &request, parsed)?;
        let made = engine::with_large_stack(filter, || self.of_plan(&planned, &request))?;
        made.map_err(|reason| Error::ManyRows { sql: engine::shortened(filter), reason })
    }

    /// Makes a dataset of a planned query; the inner error says why it is not one.
    fn of_plan(&self, planned: &plan::Planned, request: &Request) -> Result<Result<Self, String>> {
        let failed = |error| Error::Sql { sql: engine::shortened(&request.text), reason: engine::reason(&error) };
        let mut why_not = None;
        let carried = carry(&planned.plan, &mut why_not).map_err(failed)?;
        let Some(Carried { plan, row }) = carried else {
            let reason = why_not.unwrap_or_else(|| "its rows are not rows of `dataset`".into());
            return Ok(Err(reason));
        };
        let (mut origins, mut fields, mut attached) = (Vec::new(), Vec::new(), Vec::new());
        let (told, names) = (features::spread(self.schema()), planned.names());
        for (index, name) in names.into_iter().enumerate() {
            let (qualifier, field) = planned.plan.schema().qualified_field(index);
            let origin = match trace(&plan, index).map_err(failed)? {
                Some(expr) => self.origin_of(expr, &request.text)?,
                None => {
                    let name = format!("attached_{}", attached.len());
                    let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
                    attached.push(plain(column, field.data_type()).alias(name));
                    Origin::Attached(attached.len() - 1)
                }
            };
            let field = self.field_of(field, &origin, &told);
            fields.push(Arc::new(field.as_ref().clone().with_name(name)));
            origins.push(origin);
        }
        if let Some(field) = fields.iter().find(|field| field.name().contains('\0')) {
            let reason = format!(
                "no column can be named {:?}: Arrow's C interface would cut it off at the NUL character",
                field.name()
            );
            return Err(Error::Sql { sql: engine::shortened(&request.text), reason });
        }
        if let Some(name) = repeated(&fields) {
            let reason = format!("two columns are named `{name}`; name one of them by `AS`");
            return Err(Error::Sql { sql: engine::shortened(&request.text), reason });
        }
        let schema =
            features::collect(&Schema::new_with_metadata(Fields::from(fields), self.schema().metadata().clone()));
        let identity = request.identity()? + &planned.classes;
        if attached.is_empty()
            && let Some(filters) = self.filters_of(&plan, request, &identity)?
        {
            let made = self.with_columns(origins, schema);
            let made = if filters.is_empty() { made.with_view(identity) } else { made };
            return Ok(Ok(made.with_filters(filters)));
        }
        let columns = std::iter::once(Expr::Column(row).alias(ROW)).chain(attached);
        let ordered = is_ordered(&planned.plan);
        let plan =
            LogicalPlanBuilder::from(plan).project(columns).and_then(LogicalPlanBuilder::build).map_err(failed)?;
        let query =
            Query { identity, text: request.text.clone(), plan, state: planned.state.clone(), is_ordered: ordered };
        Ok(Ok(self.with_columns(origins, schema).with_query(query, self)))
    }

    /// Returns the origin of a column that depends on the row alone.
    fn origin_of(&self, expr: Expr, text: &str) -> Result<Origin> {
        if let Expr::Column(column) = &expr
            && let Ok(index) = self.snapshot().schema.index_of(&column.name)
        {
            return Ok(Origin::Stored(index));
        }
        // Some functions, `coalesce` among them, only run in their simplified form.
        let expr = plan::simple(expr, self.snapshot());
        let computed = Computed::try_new(expr, self.snapshot(), text)?;
        let expr = plain(computed.expr().clone(), computed.data_type());
        let is_plain = expr == *computed.expr();
        let computed = if is_plain { computed } else { Computed::try_new(expr, self.snapshot(), text)? };
        Ok(Origin::Computed(Arc::new(computed)))
    }

    /// Returns the field of a column: a stored one keeps its metadata from the file, and a previously computed one the
    /// feature that `told`, the schema of this dataset, has for it.
    fn field_of(&self, planned: &FieldRef, origin: &Origin, told: &Schema) -> FieldRef {
        match origin {
            Origin::Stored(column) => {
                let stored = &self.snapshot().schema.fields()[*column];
                Arc::new(features::carrying(stored.as_ref().clone().with_name(planned.name()), Some(planned)))
            }
            Origin::Computed(computed) => {
                let field = planned.as_ref().clone().with_data_type(computed.data_type().clone());
                // A cast passes on what its column carries, too.
                let is_column = |origin: &Origin, field: &Field| match origin {
                    Origin::Computed(column) => {
                        features::carried(field) == features::carried(planned) && column.expr() == computed.expr()
                    }
                    _ => false,
                };
                let is_told = features::carried(planned).is_some()
                    && self.origins().iter().zip(told.fields()).any(|(origin, field)| is_column(origin, field));
                Arc::new(features::carrying(field.with_nullable(true), is_told.then_some(planned)))
            }
            Origin::Attached(_) => {
                let field = planned.as_ref().clone().with_data_type(plain_type(planned.data_type()));
                Arc::new(field.with_nullable(true))
            }
        }
    }

    /// Returns the filters of a plan that does nothing else to the rows; `None` if it does, or if this dataset was made
    /// by a query.
    fn filters_of(&self, plan: &LogicalPlan, request: &Request, identity: &str) -> Result<Option<Vec<Filter>>> {
        let failed = |error| Error::Sql { sql: engine::shortened(&request.text), reason: engine::reason(&error) };
        let (mut plan, mut found) = (plan, Vec::new());
        loop {
            match plan {
                LogicalPlan::Projection(projection) => plan = &projection.input,
                LogicalPlan::SubqueryAlias(alias) => plan = &alias.input,
                LogicalPlan::Filter(filter) => {
                    let Some(expr) = trace_expr(Some(&filter.predicate), &filter.input).map_err(failed)? else {
                        return Ok(None);
                    };
                    found.push(expr);
                    plan = &filter.input;
                }
                LogicalPlan::TableScan(scan) => {
                    let is_whole = DatasetTable::of_source(&scan.source).is_some_and(|table| !table.is_sampled());
                    if !is_whole || self.query().is_some() {
                        return Ok(None);
                    }
                    found.reverse();
                    let of_columns: String =
                        self.views().iter().map(|view| format!("\n-- of the columns of {view}")).collect();
                    let filter = |expr| {
                        let expr = plan::simple(expr, self.snapshot());
                        let filter = Filter::try_from_expr(identity.to_owned(), expr, self.snapshot())?;
                        Ok(filter.with_comment(of_columns.clone()))
                    };
                    return found.into_iter().map(filter).collect::<Result<Vec<_>>>().map(Some);
                }
                _ => return Ok(None),
            }
        }
    }
}

/// Returns a column of this type as one of the type that columns of files would have.
fn plain(column: Expr, data_type: &DataType) -> Expr {
    let plain = plain_type(data_type);
    if plain == *data_type { column } else { cast(column, plain) }
}

/// Returns the value of a parameter, the only one in `array`.
///
/// # Errors
///
/// Why it cannot be one.
pub fn scalar(array: &ArrayRef) -> Result<ScalarValue, String> {
    if array.len() != 1 {
        return Err(format!("expected one value, got an array of {}", array.len()));
    }
    ScalarValue::try_from_array(array, 0).map_err(|error| engine::reason(&error))
}

/// Returns a name that two fields share.
fn repeated(fields: &[FieldRef]) -> Option<&str> {
    let mut names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
