//! Prepares lists to be packed: numbers of the final type, with equal lengths within a row.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, RecordBatch};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};

use super::lists::{Integers, Items};
use super::padding::{LABELS, LEADER, pad_of};
use super::{Columns, Fault, index_of, made, unfit};
use crate::error::{Error, Result};

/// The lists to be packed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// The columns.
    pub columns: Vec<String>,
    /// The type that integers are converted to.
    pub integers: Integers,
    /// Padding values by column; by default 0, or -100 for `labels`.
    pub values: BTreeMap<String, serde_json::Number>,
    /// Whether to make labels.
    #[serde(default)]
    pub labels: bool,
}

/// The columns to pack in batches of one schema.
#[derive(Debug)]
pub(super) struct Packable {
    columns: Vec<(usize, Items)>,
}

impl Packable {
    pub(super) fn try_new(schema: &Schema, documents: &Documents) -> Result<Self> {
        let columns = documents.columns.iter().map(|name| {
            let index = index_of(schema, name)?;
            Ok((index, Items::require(schema.field(index), documents.integers, "packed")?))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let items: Vec<Items> = columns.iter().map(|(_, items)| items.clone()).collect();
        Pads::of(&items, &documents.values, documents.labels)?;
        Ok(Self { columns })
    }

    /// Returns only the packed columns, as lists that all have the same offsets.
    pub(super) fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch, Fault> {
        let mut columns: Columns = Vec::with_capacity(self.columns.len());
        let mut first: Option<(&str, OffsetBuffer<i64>)> = None;
        for (index, items) in &self.columns {
            let lists = items.lists(batch.column(*index), |list| list)?;
            let offsets = lists.offsets.iter().map(|&offset| i64::try_from(offset).unwrap_or(i64::MAX));
            let offsets = OffsetBuffer::new(ScalarBuffer::from_iter(offsets));
            let (leader, expected) = first.get_or_insert_with(|| (items.name.as_str(), offsets.clone()));
            if let Some(row) = first_difference(expected, &offsets) {
                let length = |offsets: &OffsetBuffer<i64>| offsets[row + 1] - offsets[row];
                let (expected, got) = (length(expected), length(&offsets));
                let reason = format!("expected {expected} items, as many as `{leader}` has, got {got}");
                return Err(Fault { row, column: items.name.clone(), reason });
            }
            let values = items.array(lists.values).map_err(|error| unfit(&error))?;
            let list = LargeListArray::try_new(items.item(), offsets, values, None).map_err(|error| unfit(&error))?;
            let list: ArrayRef = Arc::new(list);
            columns.push((Arc::new(Field::new(&items.name, list.data_type().clone(), false)), list));
        }
        made(&batch.schema(), columns, batch.num_rows()).map_err(|error| unfit(&error))
    }
}

/// Returns the first row whose length differs.
fn first_difference(left: &[i64], right: &[i64]) -> Option<usize> {
    left.iter().zip(right).skip(1).position(|(left, right)| left != right)
}

/// The padding values of packed columns, as the bytes of one item.
#[derive(Debug)]
pub(crate) struct Pads {
    pub(crate) columns: Vec<Vec<u8>>,
    pub(crate) labels: Option<Labels>,
}

/// How labels are made.
#[derive(Debug)]
pub(crate) struct Labels {
    /// The index of the column that they are made from.
    pub(crate) of: usize,
    /// The value that losses ignore.
    pub(crate) ignored: Vec<u8>,
}

impl Pads {
    /// Returns these for the columns of packed documents, according to the final types of their items.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for a value that does not fit the type, and for labels of a type that losses do not accept.
    pub(crate) fn of_schema(
        schema: &Schema,
        values: &BTreeMap<String, serde_json::Number>,
        has_labels: bool,
    ) -> Result<Self> {
        let items = schema.fields().iter().map(|field| Items::require(field, Integers::Stored, "packed"));
        Self::of(&items.collect::<Result<Vec<_>>>()?, values, has_labels)
    }

    fn of(columns: &[Items], values: &BTreeMap<String, serde_json::Number>, has_labels: bool) -> Result<Self> {
        let labels = if has_labels { Labels::of(columns, values)? } else { None };
        let columns = columns.iter().map(|items| pad_of(items, values)).collect::<Result<_>>()?;
        Ok(Self { columns, labels })
    }
}

impl Labels {
    fn of(columns: &[Items], values: &BTreeMap<String, serde_json::Number>) -> Result<Option<Self>> {
        let named = |name: &str| columns.iter().position(|items| items.name == name);
        let of = named(LABELS).or_else(|| named(LEADER)).unwrap_or(0);
        let Some(items) = columns.get(of) else { return Ok(None) };
        if !matches!(items.data_type, DataType::Int32 | DataType::Int64) {
            let (name, got) = (&items.name, &items.data_type);
            let instead = if got.is_integer() { "pass `dtype=\"int64\"`" } else { "leave `labels` out" };
            let reason = format!("labels are made of `Int64` or `Int32`, and column `{name}` is `{got}`; {instead}");
            return Err(Error::Setting { name: "labels", reason });
        }
        Ok(Some(Self { of, ignored: pad_of(&items.named(LABELS), values)? }))
    }
}
