//! Turns the stored columns that are read into the columns of a dataset.
//!
//! Most are passed on unchanged. A query may rename them, compute others from them as they are read, and attach values
//! that reading cannot provide because they come from other tables or rows: those are kept with the
//! [`Answer`](crate::dataset::Answer), one for each kept row.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array, new_empty_array};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::PhysicalExpr;

use crate::batch;
use crate::engine::{self, floats, nulls};
use crate::error::{Error, Result};
use crate::nested::{self, NestedProjection};
use crate::panics;
use crate::selection::evaluate::try_out;
use crate::snapshot::Snapshot;

/// The origin of a dataset's column.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// A column of the snapshot.
    Stored(usize),
    /// Computed from columns of the snapshot.
    Computed(Arc<Computed>),
    /// A column that is kept with the answer.
    Attached(usize),
}

/// An expression over the columns of a snapshot, or over fields of structs as well.
#[derive(Debug)]
pub(crate) struct Computed {
    expr: Expr,
    /// The columns that it reads, ascending.
    columns: Box<[usize]>,
    /// Compiled for batches of `input`.
    evaluator: Arc<dyn PhysicalExpr>,
    /// Whether it only casts a column or takes a part of it, without changing floats.
    is_handed_on: bool,
    input: SchemaRef,
    data_type: DataType,
}

impl Computed {
    /// Compiles `expr` over the columns of `snapshot`; `text` is the query that contains it.
    pub(crate) fn try_new(expr: Expr, snapshot: &Snapshot, text: &str) -> Result<Self> {
        let unusable = |reason| Error::Sql { sql: engine::shortened(text), reason };
        let columns: BTreeSet<usize> =
            expr.column_refs().into_iter().filter_map(|column| snapshot.columns.index_of(&column.name).ok()).collect();
        let columns: Box<[usize]> = columns.into_iter().collect();
        let input = Arc::new(Schema::new(
            columns.iter().map(|&column| Arc::clone(&snapshot.columns.fields()[column])).collect::<Vec<_>>(),
        ));
        let df_schema = DFSchema::try_from(Arc::clone(&input)).map_err(|error| unusable(engine::reason(&error)))?;
        let handed_on = match &expr {
            Expr::Column(_) => Some(expr.clone()),
            other => floats::handed_on(other, &df_schema),
        };
        let is_handed_on = handed_on.is_some();
        let evaluator = engine::session()
            .create_physical_expr(handed_on.unwrap_or_else(|| expr.clone()), &df_schema)
            .map_err(|error| unusable(engine::reason(&error)))?;
        let data_type = evaluator.data_type(&input).map_err(|error| unusable(engine::reason(&error)))?;
        let this = Self { expr, columns, evaluator, is_handed_on, input, data_type };
        // What would fail on every row, such as a literal that cannot be cast, fails now.
        try_out(&this.input, |rows| this.caught_evaluate(rows)).map_err(unusable)?;
        Ok(this)
    }

    /// Returns the same over fields of structs, if it takes some and no whole struct.
    pub(crate) fn of_fields(&self, snapshot: &Snapshot) -> Option<Self> {
        self.with(nested::of_fields(&self.expr, &snapshot.columns)?, snapshot)
    }

    /// Returns the same with another form of its expression; `None` if that is of another type.
    fn with(&self, expr: Expr, snapshot: &Snapshot) -> Option<Self> {
        Self::try_new(expr, snapshot, "").ok().filter(|computed| computed.data_type == self.data_type)
    }

    /// Returns the expression.
    pub(crate) fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Returns the column, or the field of structs, that it only passes on.
    pub(crate) fn column(&self) -> Option<usize> {
        self.columns.first().copied().filter(|_| matches!(self.expr, Expr::Column(_)))
    }

    /// Returns the columns of the snapshot that it reads.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Returns the type of its values.
    pub(crate) fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Returns whether the value may be NULL if none of the `non_null` columns of the snapshot is NULL.
    pub(crate) fn may_be_null(&self, non_null: &BTreeSet<usize>) -> bool {
        let fields = self.input.fields().iter().zip(&self.columns);
        let fields = fields.map(|(field, column)| match non_null.contains(column) {
            true => field.as_ref().clone().with_nullable(false),
            false => field.as_ref().clone(),
        });
        // Functions in a compiled expression remember the schema of `input`.
        let schema = DFSchema::try_from(Schema::new(fields.collect::<Vec<_>>()));
        schema.map_or(true, |schema| nulls::may_be_null(&self.expr, &schema))
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, String> {
        // Some functions fail without rows.
        if batch.num_rows() == 0 { Ok(new_empty_array(&self.data_type)) } else { self.caught_evaluate(batch) }
    }

    fn caught_evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, String> {
        // Functions panic on some values, such as those that make a text of more than 2 GiB.
        let value = panics::caught(|| {
            let canonical = if self.is_handed_on { Ok(batch.clone()) } else { floats::canonical_columns(batch) };
            let batch = canonical.map_err(|error| error.to_string())?;
            let value = self.evaluator.evaluate(&batch).and_then(|value| value.into_array(batch.num_rows()));
            value.map_err(|error| engine::reason(&error))
        });
        let value = value.unwrap_or_else(Err)?;
        if *value.data_type() == self.data_type {
            return Ok(value);
        }
        arrow_cast::cast(&value, &self.data_type).map_err(|error| error.to_string())
    }
}

/// The columns of a dataset, not all of which are passed on as they are read.
#[derive(Debug)]
pub(crate) struct Outputs {
    origins: Arc<[Origin]>,
    /// The columns of the snapshot that are read, ascending.
    projection: Arc<[usize]>,
    schema: SchemaRef,
}

impl Outputs {
    /// Returns how to turn `origins` into the columns of `schema`: from the columns of `snapshot` and, of structs, from
    /// only those fields that are needed.
    pub(crate) fn new(origins: &Arc<[Origin]>, schema: SchemaRef, snapshot: &Snapshot) -> Self {
        let origins = with_nested(origins, snapshot);
        let mut read = BTreeSet::new();
        for origin in origins.iter() {
            match origin {
                Origin::Stored(column) => {
                    read.insert(*column);
                }
                Origin::Computed(computed) => read.extend(computed.columns()),
                Origin::Attached(_) => {}
            }
        }
        Self { origins, projection: read.into_iter().collect(), schema }
    }

    /// Returns the columns of the snapshot that are read, ascending.
    pub(crate) fn projection(&self) -> &Arc<[usize]> {
        &self.projection
    }

    /// Returns whether rows need values that are kept with the answer.
    pub(crate) fn needs_attached(&self) -> bool {
        self.origins.iter().any(|origin| matches!(origin, Origin::Attached(_)))
    }

    /// Turns a batch of [`Self::projection`] into the dataset's columns; `attached` has the values for the same rows.
    ///
    /// # Errors
    ///
    /// For an expression that fails on a value.
    pub(crate) fn finish(&self, read: &RecordBatch, attached: Option<&RecordBatch>) -> Result<RecordBatch, String> {
        let stored = |column: usize| {
            let place = self.projection.binary_search(&column).ok()?;
            read.columns().get(place).map(Arc::clone)
        };
        let missing = || "a column that was not read".to_owned();
        let column = |(origin, field): (&Origin, &FieldRef)| match origin {
            Origin::Stored(column) => stored(*column).ok_or_else(missing),
            Origin::Attached(index) => {
                attached.and_then(|batch| batch.columns().get(*index).map(Arc::clone)).ok_or_else(missing)
            }
            Origin::Computed(computed) => {
                let inputs: Option<Vec<_>> = computed.columns.iter().map(|&column| stored(column)).collect();
                let input =
                    batch::of_columns(Arc::clone(&computed.input), inputs.ok_or_else(missing)?, read.num_rows());
                computed
                    .evaluate(&input.map_err(|error| error.to_string())?)
                    .map_err(|reason| named(field.name(), reason))
            }
        };
        let mut columns =
            self.origins.iter().zip(self.schema.fields()).map(column).collect::<Result<Vec<_>, String>>()?;
        set_apart(&mut columns).map_err(|error| error.to_string())?;
        batch::of_columns(Arc::clone(&self.schema), columns, read.num_rows()).map_err(|error| error.to_string())
    }
}

/// Returns origins in which expressions read only the fields of structs that they need.
fn with_nested(origins: &Arc<[Origin]>, snapshot: &Snapshot) -> Arc<[Origin]> {
    let exprs = origins.iter().filter_map(|origin| match origin {
        Origin::Computed(computed) => Some(computed.expr()),
        _ => None,
    });
    let whole = origins.iter().filter_map(|origin| match origin {
        Origin::Stored(column) => Some(*column),
        _ => None,
    });
    let Some(nested) = NestedProjection::of(&snapshot.columns, exprs, whole) else { return Arc::clone(origins) };
    let with_fields = |origin: &Origin| match origin {
        Origin::Computed(computed) => {
            let computed = computed.with(nested.apply(computed.expr())?, snapshot)?;
            Some(Origin::Computed(Arc::new(computed)))
        }
        _ => None,
    };
    origins.iter().map(|origin| with_fields(origin).unwrap_or_else(|| origin.clone())).collect()
}

/// Prefixes the reason for a failed expression with its column, unless it already names it.
fn named(column: &str, reason: String) -> String {
    if reason.contains("column `") { reason } else { format!("column `{column}`: {reason}") }
}

/// Copies columns that share memory with an earlier one, such as a column under two names: tensors over either may be
/// written to.
fn set_apart(columns: &mut [ArrayRef]) -> Result<(), ArrowError> {
    let mut taken = BTreeSet::new();
    for column in columns {
        let mut own = Vec::new();
        places(&column.to_data(), &mut own);
        if own.iter().any(|place| taken.contains(place)) {
            let rows = UInt64Array::from_iter_values(0..column.len() as u64);
            *column = arrow_select::take::take(column, &rows, None)?;
        }
        taken.extend(own);
    }
    Ok(())
}

/// Collects the addresses of the values of an array and its children.
fn places(data: &ArrayData, found: &mut Vec<usize>) {
    found.extend(data.buffers().iter().filter(|buffer| !buffer.is_empty()).map(|buffer| buffer.as_ptr().addr()));
    data.child_data().iter().for_each(|child| places(child, found));
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, ListArray, StructArray};
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn why_an_expression_fails_is_told_with_its_column() {
        assert_eq!(named("kb", "Divide by zero".to_owned()), "column `kb`: Divide by zero");
        assert_eq!(named("kb", "no class `x` in column `label`".to_owned()), "no class `x` in column `label`");
    }

    #[test]
    fn no_two_columns_share_memory() {
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
            [1, 2, 3].map(|item| Some(vec![Some(item); 2])),
        ));
        let field = Arc::new(Field::new("a", DataType::Int32, true));
        let structs: ArrayRef = Arc::new(StructArray::new(vec![field].into(), vec![Arc::clone(&numbers)], None));
        let before = [Arc::clone(&numbers), Arc::clone(&lists), structs, numbers, lists];
        let mut columns = before.clone();
        set_apart(&mut columns).unwrap();
        assert_eq!(columns, before);
        let mut all = Vec::new();
        columns.iter().for_each(|column| places(&column.to_data(), &mut all));
        let num_places = all.len();
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), num_places);
        // A column that shares no memory stays where it is.
        let address = |columns: &[ArrayRef]| columns[0].as_primitive::<Int32Type>().values().as_ptr();
        assert_eq!(address(&columns), address(&before));
    }
}
