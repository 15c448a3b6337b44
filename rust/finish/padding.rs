//! Pads lists to one length.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};

use super::lists::{Integers, Items, Lists, longest};
use super::{Columns, Fault, index_of, made, unfit};
use crate::error::{Error, Result};
use crate::stream::{Room, Sink};

/// The column whose lengths determine the mask, if several are padded.
pub(super) const LEADER: &str = "input_ids";

/// The column that is padded with the value that losses ignore.
pub(super) const LABELS: &str = "labels";

/// The target value that PyTorch's losses ignore.
const IGNORED: i64 = -100;

/// One end of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Its beginning.
    Left,
    /// Its end.
    #[default]
    Right,
}

/// How lists of numbers are padded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Padding {
    /// The columns; `None` for all lists of numbers.
    pub columns: Option<Vec<String>>,
    /// Longer lists are truncated to this length.
    pub max_length: Option<usize>,
    /// Whether rows always have `max_length` items, rather than as many as the longest of the batch.
    pub is_fixed: bool,
    /// The length of rows is a multiple of this.
    pub multiple_of: usize,
    /// The side on which padding is added.
    pub side: Side,
    /// The side on which lists are truncated.
    pub truncation_side: Side,
    /// Padding values by column; by default 0, or -100 for `labels`.
    pub values: BTreeMap<String, serde_json::Number>,
    /// The type that integers are converted to.
    pub integers: Integers,
    /// The name of an additional column that is 1 for items and 0 for padding.
    pub mask: Option<String>,
}

/// The columns to pad in batches of one schema.
#[derive(Debug)]
pub(super) struct Padder {
    padding: Padding,
    columns: Vec<usize>,
    items: Vec<(Items, Vec<u8>)>,
    /// The column that the mask describes, and the mask's items.
    mask: Option<(usize, Items)>,
}

impl Padder {
    pub(super) fn try_new(schema: &Schema, padding: &Padding) -> Result<Self> {
        let columns = match &padding.columns {
            Some(names) => names.iter().map(|name| index_of(schema, name)).collect::<Result<Vec<_>>>()?,
            None => (0..schema.fields().len()).filter(|&index| is_padded(schema.field(index))).collect(),
        };
        let items = columns.iter().map(|&index| {
            let items = Items::require(schema.field(index), padding.integers, "padded")?;
            let pad = pad_of(&items, &padding.values)?;
            Ok((items, pad))
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        for name in padding.values.keys() {
            if !items.iter().any(|(items, _)| items.name == *name) {
                let reason = format!("`{name}` is not a column that is padded");
                return Err(Error::Setting { name: "padding", reason });
            }
        }
        if items.is_empty() {
            let reason = "no column is a list of numbers that may differ in length; leave `padding` out, or name \
                          columns of one length in `fb.Pad(columns=...)`";
            return Err(Error::Setting { name: "padding", reason: reason.to_owned() });
        }
        let mask = mask_of(schema, padding, &items)?;
        Ok(Self { padding: padding.clone(), columns, items, mask })
    }

    /// Returns the indices of the padded columns.
    pub(super) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Returns whether a mask is appended to the columns.
    pub(super) fn makes_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Returns the bytes needed to pad a batch.
    pub(super) fn bytes_of(&self, batch: &RecordBatch) -> u64 {
        // One row of padding more than there are rows.
        let num_rows = batch.num_rows() as u64 + 1;
        let of_column = |(place, (&index, (items, _))): (usize, (&usize, &(Items, Vec<u8>)))| {
            let mask = self.mask.as_ref().filter(|(of, _)| *of == place).map_or(0, |(_, mask)| mask.width);
            let length = self.length(longest(batch.column(index))) as u64;
            num_rows.saturating_mul(length).saturating_mul((items.width + mask) as u64)
        };
        self.columns.iter().zip(&self.items).enumerate().map(of_column).fold(0, u64::saturating_add)
    }

    pub(super) fn apply(&self, batch: &RecordBatch, room: Option<&Room>) -> Result<RecordBatch, Fault> {
        let mut columns: Columns = batch.schema().fields().iter().cloned().zip(batch.columns().to_vec()).collect();
        let mut mask = None;
        for (place, (&index, (items, pad))) in self.columns.iter().zip(&self.items).enumerate() {
            let lists = items.lists(batch.column(index), |list| self.kept(list))?;
            let length = self.length(longest(batch.column(index)));
            let values = self.padded(&lists, items.width, &pad.repeat(length), room);
            columns[index] = items.column(length, batch.num_rows(), values).map_err(|error| unfit(&error))?;
            if let Some((_, mask_items)) = self.mask.as_ref().filter(|(of, _)| *of == place) {
                let values = self.mask(&lists, length, room);
                let made = mask_items.column(length, batch.num_rows(), values).map_err(|error| unfit(&error))?;
                mask = Some(made);
            }
        }
        columns.extend(mask);
        made(&batch.schema(), columns, batch.num_rows()).map_err(|error| unfit(&error))
    }

    /// Returns the row length of a batch whose longest list has this many items.
    fn length(&self, longest: usize) -> usize {
        let length = match self.padding.max_length {
            Some(max_length) if self.padding.is_fixed => max_length,
            _ => self.num_kept(longest),
        };
        length.next_multiple_of(self.padding.multiple_of.max(1))
    }

    /// Returns how many items are kept of a list of `length`.
    fn num_kept(&self, length: usize) -> usize {
        self.padding.max_length.map_or(length, |max_length| length.min(max_length))
    }

    /// Returns which items are kept of a list.
    fn kept(&self, list: Range<usize>) -> Range<usize> {
        let num_kept = self.num_kept(list.len());
        match self.padding.truncation_side {
            Side::Right => list.start..list.start + num_kept,
            Side::Left => list.end - num_kept..list.end,
        }
    }

    fn padded(&self, lists: &Lists, width: usize, pads: &[u8], room: Option<&Room>) -> Buffer {
        let items = |kept: Range<usize>| &lists.values[kept.start * width..kept.end * width];
        self.rows(lists, width, items, pads, room)
    }

    fn mask(&self, lists: &Lists, length: usize, room: Option<&Room>) -> Buffer {
        let (ones, zeros) = (1_i64.to_ne_bytes().repeat(length), vec![0; length * size_of::<i64>()]);
        self.rows(lists, size_of::<i64>(), |kept| &ones[..kept.len() * size_of::<i64>()], &zeros, room)
    }

    /// Writes the kept part of each list next to its padding, in `room` if they fit there; `pads` is a row of padding
    /// only, with items of `width` bytes.
    fn rows<'a>(
        &self,
        lists: &Lists,
        width: usize,
        items: impl Fn(Range<usize>) -> &'a [u8],
        pads: &[u8],
        room: Option<&Room>,
    ) -> Buffer {
        let num_bytes = (lists.offsets.len() - 1) * pads.len();
        match room.and_then(|room| room.take(num_bytes)) {
            Some(block) => self.put_rows(block, lists, width, items, pads),
            None => self.put_rows(MutableBuffer::with_capacity(num_bytes), lists, width, items, pads),
        }
    }

    fn put_rows<'a>(
        &self,
        mut out: impl Sink,
        lists: &Lists,
        width: usize,
        items: impl Fn(Range<usize>) -> &'a [u8],
        pads: &[u8],
    ) -> Buffer {
        for pair in lists.offsets.windows(2) {
            let kept = self.kept(pair[0]..pair[1]);
            let pads = &pads[kept.len() * width..];
            match self.padding.side {
                Side::Right => {
                    out.put(items(kept));
                    out.put(pads);
                }
                Side::Left => {
                    out.put(pads);
                    out.put(items(kept));
                }
            }
        }
        out.into_buffer()
    }
}

/// Returns whether a column is padded if none is named: lists that may differ in length.
fn is_padded(field: &Field) -> bool {
    !matches!(field.data_type(), DataType::FixedSizeList(..)) && Items::of(field, Integers::Stored).is_some()
}

/// Returns the padding value of a column.
pub(super) fn pad_of(items: &Items, values: &BTreeMap<String, serde_json::Number>) -> Result<Vec<u8>> {
    let default = if items.name == LABELS { IGNORED } else { 0 };
    let number = values.get(&items.name).cloned().unwrap_or_else(|| default.into());
    items.bytes_of(&number).ok_or_else(|| Error::Setting {
        name: "values",
        reason: format!(
            "column `{}` of `{}` cannot be padded with {number}; give it another value, or ask for another dtype",
            items.name, items.data_type
        ),
    })
}

/// Returns the column that the mask describes, and the mask's items.
fn mask_of(schema: &Schema, padding: &Padding, items: &[(Items, Vec<u8>)]) -> Result<Option<(usize, Items)>> {
    let Some(name) = &padding.mask else { return Ok(None) };
    if items.iter().any(|(items, _)| items.name == *name) {
        // The files have one already.
        return Ok(None);
    }
    if schema.index_of(name).is_ok() {
        let reason = format!(
            "column `{name}` exists already and is not padded; choose another name for the mask, or leave it out"
        );
        return Err(Error::Setting { name: "mask", reason });
    }
    let leader = items.iter().position(|(items, _)| items.name == LEADER).unwrap_or(0);
    let int64 = DataType::new_list(DataType::Int64, false);
    Ok(Items::of(&Field::new(name, int64, false), Integers::Int64).map(|items| (leader, items)))
}
