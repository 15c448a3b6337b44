//! Decides rows by statistics alone: here by those of row groups; [`super::pages`] and [`super::bloom`] use others, and
//! [`super::long_list`] compares them with long lists.
//!
//! A row group is dropped if the statistics exclude every row, and taken whole, unread, if they prove that every row
//! passes. Both use DataFusion's pruning, the second with the filter negated; since a negation says nothing about
//! NULLs, it also requires columns without NULLs.
//!
//! Statistics of floats ignore `NaN`, which is above every number here: their maximum is used only to drop rows for a
//! filter of this column alone that no `NaN` passes, such as `=` and `BETWEEN`. A bound that is `NaN`, left by a writer
//! that compared the others with it, is never used, and neither are bounds of which the lower is above the upper.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt64Array, new_null_array};
use arrow_schema::{DataType, SchemaRef};
use datafusion::arrow::compute::kernels::cmp;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, lit};
use datafusion::physical_expr::utils::Guarantee;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::RowGroupMetaData;

use super::long_list::LongList;
use super::parse;
use crate::cast;
use crate::engine::floats::{self, has_floats};
use crate::engine::walk::Walk;
use crate::engine::{self, numbers};
use crate::snapshot::Fragment;
use crate::snapshot::inner::Inner;

/// What the statistics say about one row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No row passes.
    Nothing,
    /// Every row passes.
    Everything,
    /// The rows must be examined.
    Unknown,
}

/// A filter as predicates on statistics.
#[derive(Debug)]
pub(super) struct Pruner {
    schema: SchemaRef,
    /// Columns of the dataset that the filter reads.
    columns: Vec<usize>,
    passes: Option<Predicate>,
    /// The negation, if "never false" means "always true": not NULL unless a column is.
    fails: Option<Predicate>,
    /// Whether no row passes whose float is `NaN`.
    rejects_nan: bool,
}

impl Pruner {
    /// Prepares `filter`, which reads the dataset columns `columns` of `schema`, and may fail on some value or not.
    ///
    /// A filter that statistics cannot decide gives a pruner that always answers [`Verdict::Unknown`].
    pub(super) fn new(filter: &Expr, schema: &SchemaRef, columns: &[usize], can_fail: bool) -> Self {
        // The planner searches the whole schema for every operand.
        let read = schema.project(columns).map_or_else(|_| Arc::clone(schema), Arc::new);
        let predicate = |expr: Expr| {
            let df_schema = DFSchema::try_from(Arc::clone(&read)).ok()?;
            let physical =
                engine::session().create_physical_expr(decidable(expr, &df_schema).ok()?, &df_schema).ok()?;
            let pruning =
                PruningPredicateBuilder::new().with_file_schema(Arc::clone(&read)).try_build(physical).ok()?;
            (!pruning.always_true()).then(|| Predicate::new(pruning))
        };
        let fails = if is_null_only_by_columns(filter, &read) {
            parse::negated(filter, &read).and_then(predicate)
        } else {
            None
        };
        let passes = predicate(filter.clone());
        let rejects_nan = passes.is_some() && !can_fail && passes_nan(filter, &read) == Some(false);
        Self { schema: Arc::clone(schema), columns: columns.to_vec(), passes, fails, rejects_nan }
    }

    /// Returns the verdict on each row group of `fragment`.
    pub(super) fn judge(&self, fragment: &Fragment) -> Vec<Verdict> {
        let statistics = RowGroupStatistics::new(fragment, &self.schema, self.bounded_columns());
        let has_no_nulls =
            |row_group| self.columns.iter().all(|&column| fragment.null_count(column, row_group) == Some(0));
        self.ask(&statistics, has_no_nulls)
    }

    /// Returns the verdict on each container of `statistics`; `has_no_nulls` tells whether its columns are free of
    /// NULLs.
    pub(super) fn ask(
        &self,
        statistics: &impl PruningStatistics,
        has_no_nulls: impl Fn(usize) -> bool,
    ) -> Vec<Verdict> {
        let ask = |predicate: &Option<Predicate>, has_float_maxes: bool| {
            predicate.as_ref().and_then(|predicate| predicate.may_pass(&Usable { statistics, has_float_maxes }))
        };
        let (may_pass, may_fail) = (ask(&self.passes, self.rejects_nan), ask(&self.fails, false));
        (0..statistics.num_containers())
            .map(|container| {
                if may_pass.as_ref().is_some_and(|may| !may[container]) {
                    Verdict::Nothing
                } else if may_fail.as_ref().is_some_and(|may| !may[container]) && has_no_nulls(container) {
                    Verdict::Everything
                } else {
                    Verdict::Unknown
                }
            })
            .collect()
    }

    /// Returns the columns whose bounds can decide something.
    pub(super) fn bounded_columns(&self) -> &[usize] {
        if self.passes.is_some() || self.fails.is_some() { &self.columns } else { &[] }
    }

    /// Returns the columns that must have one of some values for a row to pass.
    pub(super) fn sought_columns(&self) -> Vec<usize> {
        let guarantees = self.passes.iter().flat_map(|predicate| predicate.pruning.literal_guarantees());
        let sought = guarantees.filter(|guarantee| guarantee.guarantee == Guarantee::In);
        let mut columns: Vec<usize> =
            sought.filter_map(|guarantee| self.schema.index_of(&guarantee.column.name).ok()).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

/// A filter, or its negation, as a predicate on statistics.
#[derive(Debug)]
struct Predicate {
    pruning: PruningPredicate,
    /// Its lists that are too long for `pruning`.
    lists: Vec<LongList>,
}

impl Predicate {
    fn new(pruning: PruningPredicate) -> Self {
        let lists = pruning.literal_guarantees().iter().filter_map(LongList::of).collect();
        Self { pruning, lists }
    }

    /// Returns for each container whether a row of it may pass.
    fn may_pass(&self, statistics: &impl PruningStatistics) -> Option<Vec<bool>> {
        let mut may_pass = self.pruning.prune(statistics).ok()?;
        self.lists.iter().for_each(|list| list.narrow(statistics, &mut may_pass));
        Some(may_pass)
    }
}

/// Returns the lower and upper bounds, reduced to usable ones.
pub(super) fn usable(mins: ArrayRef, maxes: ArrayRef) -> (ArrayRef, ArrayRef) {
    let known = |bounds: &ArrayRef, contradict: &BooleanArray| arrow_select::nullif::nullif(bounds, contradict).ok();
    // A writer that was wrong about one bound may be wrong about the other.
    let contradict = cmp::gt(&mins, &maxes).ok().filter(|contradict| contradict.true_count() > 0);
    let known = contradict.and_then(|contradict| known(&mins, &contradict).zip(known(&maxes, &contradict)));
    let (mins, maxes) = known.unwrap_or((mins, maxes));
    // The maximum may be -0.0, which is below the 0.0 that filters use for both.
    let maxes = floats::canonical(&maxes).ok().flatten().unwrap_or(maxes);
    (without_nan(mins), without_nan(maxes))
}

/// Returns bounds without those that are `NaN`.
fn without_nan(bounds: ArrayRef) -> ArrayRef {
    fn numbers<T: ArrowPrimitiveType>(bounds: &ArrayRef, is_nan: fn(T::Native) -> bool) -> ArrayRef {
        let bounds = bounds.as_primitive::<T>();
        Arc::new(bounds.unary_opt::<_, T>(|bound| (!is_nan(bound)).then_some(bound)))
    }
    match bounds.data_type() {
        DataType::Float16 => numbers::<Float16Type>(&bounds, |bound| bound.is_nan()),
        DataType::Float32 => numbers::<Float32Type>(&bounds, f32::is_nan),
        DataType::Float64 => numbers::<Float64Type>(&bounds, f64::is_nan),
        DataType::Dictionary(_, values) if values.is_floating() => new_null_array(bounds.data_type(), bounds.len()),
        _ => bounds,
    }
}

/// Returns whether a filter of one float column, which fails on no value, is true for `NaN`; `None` for other filters.
fn passes_nan(filter: &Expr, read: &SchemaRef) -> Option<bool> {
    let [field] = &read.fields()[..] else { return None };
    if !field.data_type().is_floating() {
        return None;
    }
    let nan = ScalarValue::from(f64::NAN).cast_to(field.data_type()).ok()?;
    let batch = RecordBatch::try_new(Arc::clone(read), vec![nan.to_array().ok()?]).ok()?;
    let batch = floats::canonical_columns(&batch).ok()?;
    let predicate =
        engine::session().create_physical_expr(filter.clone(), &DFSchema::try_from(Arc::clone(read)).ok()?).ok()?;
    let passes = predicate.evaluate(&batch).ok()?.into_array(1).ok()?;
    let passes = passes.as_boolean_opt()?;
    Some(passes.is_valid(0) && passes.value(0))
}

/// Statistics with or without the upper bounds of floats, which ignore `NaN`.
struct Usable<'a, S> {
    statistics: &'a S,
    has_float_maxes: bool,
}

impl<S: PruningStatistics> PruningStatistics for Usable<'_, S> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.statistics.min_values(column)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.statistics.max_values(column).filter(|maxes| self.has_float_maxes || !has_floats(maxes.data_type()))
    }

    fn num_containers(&self) -> usize {
        self.statistics.num_containers()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        self.statistics.null_counts(column)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        self.statistics.row_counts()
    }

    fn contained(&self, column: &Column, values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        self.statistics.contained(column, values)
    }
}

/// Returns whether `filter` is NULL only if one of its columns is.
fn is_null_only_by_columns(filter: &Expr, schema: &SchemaRef) -> bool {
    let required = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(false));
    let required = arrow_schema::Schema::new(required.collect::<Vec<_>>());
    // The engine takes a list of more than a few values for one that may hold a NULL.
    let is_null = |value: &Expr| !matches!(value, Expr::Literal(value, _) if !value.is_null());
    let without_lists = filter.clone().transform_up(|node| {
        Ok(match node {
            Expr::InList(InList { expr, list, .. }) if !list.iter().any(is_null) => Transformed::yes(*expr),
            node => Transformed::no(node),
        })
    });
    let is_nullable = |schema| without_lists?.data.nullable(&schema);
    DFSchema::try_from(required).and_then(is_nullable).is_ok_and(|is_nullable| !is_nullable)
}

/// Replaces every condition that statistics must not decide by true.
///
/// That is one on a `CASE`: no statistics decide it, and the engine would format its text, whose length doubles with
/// each nested `CASE`. And one on a cast of which bounds are not bounds: our own filters [hide](numbers) those, but the
/// filters of another engine do not. A `TRY_CAST` may wrap around instead of failing.
fn decidable(expr: Expr, schema: &DFSchema) -> PlanResult<Expr> {
    let is_undecidable = |node: &Expr| {
        Ok(match node {
            Expr::Case(_) | Expr::TryCast(_) => true,
            Expr::Cast(cast) => !numbers::keeps_order(&cast.expr.get_type(schema)?, cast.field.data_type()),
            _ => false,
        })
    };
    let known = expr.transform_down(|node| {
        if let Expr::BinaryExpr(BinaryExpr { op: Operator::And | Operator::Or, .. }) = node {
            return Ok(Transformed::no(node));
        }
        let is_hidden = node.exists(is_undecidable)?;
        Ok(Transformed::new(if is_hidden { lit(true) } else { node }, is_hidden, TreeNodeRecursion::Jump))
    })?;
    Ok(known.data)
}

/// The lower and the upper bounds of the row groups.
type Bounds = (ArrayRef, ArrayRef);

/// The row groups of one fragment, as DataFusion's pruning sees them.
struct RowGroupStatistics<'a> {
    fragment: &'a Fragment,
    schema: &'a SchemaRef,
    /// The usable lower and upper bounds of columns of the dataset, once they were asked for.
    bounds: Vec<(usize, OnceCell<Option<Bounds>>)>,
}

impl<'a> RowGroupStatistics<'a> {
    fn new(fragment: &'a Fragment, schema: &'a SchemaRef, columns: &[usize]) -> Self {
        Self { fragment, schema, bounds: columns.iter().map(|&column| (column, OnceCell::new())).collect() }
    }

    fn row_groups(&self) -> &[RowGroupMetaData] {
        self.fragment.reader.metadata().row_groups()
    }

    /// Applies `read` to the column's converter and casts the result to the dataset's type.
    fn bounds(
        &self,
        index: usize,
        read: impl Fn(&StatisticsConverter<'_>, &[RowGroupMetaData]) -> Option<ArrayRef>,
    ) -> Option<ArrayRef> {
        let Some(root) = self.fragment.columns[index] else {
            let constant = self.fragment.constant(index)?;
            return constant.to_array(self.schema.field(index).data_type(), self.num_containers()).ok();
        };
        let leaf = self.fragment.flat_leaf(root)?;
        let parquet_schema = self.fragment.reader.parquet_schema();
        let converter = StatisticsConverter::from_column_index(leaf, self.fragment.field(root), parquet_schema).ok()?;
        let is_usable =
            |row_group: &RowGroupMetaData| self.fragment.has_usable_bounds(root, leaf, row_group.column(leaf));
        if !self.row_groups().iter().all(is_usable) {
            return None;
        }
        cast::widen_bounds(&read(&converter, self.row_groups())?, self.schema.field(index).data_type()).ok()
    }

    /// Returns the usable lower and upper bounds of a column.
    fn usable_bounds(&self, column: usize) -> Option<Bounds> {
        let mins = self.bounds(column, |converter, row_groups| converter.row_group_mins(row_groups).ok())?;
        Some(usable(mins, self.bounds(column, |converter, row_groups| converter.row_group_maxes(row_groups).ok())?))
    }

    fn find(&self, column: &Column) -> Option<&Bounds> {
        let column = self.schema.index_of(&column.name).ok()?;
        let (_, bounds) = self.bounds.iter().find(|(found, _)| *found == column)?;
        bounds.get_or_init(|| self.usable_bounds(column)).as_ref()
    }
}

impl PruningStatistics for RowGroupStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.find(column).map(|(mins, _)| Arc::clone(mins))
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.find(column).map(|(_, maxes)| Arc::clone(maxes))
    }

    fn num_containers(&self) -> usize {
        self.row_groups().len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let index = self.schema.index_of(&column.name).ok()?;
        let root = self.fragment.columns[index];
        let is_presence = root.and_then(|root| self.fragment.inner(root)).is_some_and(Inner::is_presence);
        if root.is_some() && !is_presence && self.schema.field(index).data_type().is_nested() {
            // The count is of the NULLs in its values, at any depth; they may be as many as there are rows.
            return None;
        }
        let counts: UInt64Array =
            (0..self.num_containers()).map(|row_group| self.fragment.null_count(index, row_group)).collect();
        Some(Arc::new(counts))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts: UInt64Array =
            self.row_groups().iter().map(|row_group| u64::try_from(row_group.num_rows()).ok()).collect();
        Some(Arc::new(counts))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
