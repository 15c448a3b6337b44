//! Makes lists ready to be packed: numbers of the final type, alike in length.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, RecordBatch};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{Field, Schema};
use serde::{Deserialize, Serialize};

use super::lists::{Integers, Items};
use super::padding::pad_of;
use super::{Columns, Fault, index_of, made, unfit};
use crate::error::Result;

/// The lists that are packed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// The columns.
    pub columns: Vec<String>,
    /// What integers become.
    pub integers: Integers,
    /// What the columns are padded with; 0 without, -100 for `labels`.
    pub values: BTreeMap<String, serde_json::Number>,
}

/// What is packed of batches of one schema.
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
        for (_, items) in &columns {
            pad_of(items, &documents.values)?;
        }
        Ok(Self { columns })
    }

    /// Returns the packed columns alone, as lists that all have the same offsets.
    pub(super) fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch, Fault> {
        let mut columns: Columns = Vec::with_capacity(self.columns.len());
        let mut first: Option<(&str, OffsetBuffer<i64>)> = None;
        for (index, items) in &self.columns {
            let lists = items.lists(batch.column(*index))?;
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

/// Returns what columns of packed documents are padded with, by the type that their items have by then.
///
/// # Errors
///
/// [`Error::Setting`](crate::Error::Setting) for a value that does not fit the type.
pub(crate) fn pads(schema: &Schema, values: &BTreeMap<String, serde_json::Number>) -> Result<Vec<Vec<u8>>> {
    let pad = |field: &Arc<Field>| pad_of(&Items::require(field, Integers::Stored, "packed")?, values);
    schema.fields().iter().map(pad).collect()
}
