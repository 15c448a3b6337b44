//! Columns with several leaves: structs, lists of them, and maps.
//!
//! Each leaf is read separately. So lists around a struct result from every one of its leaves, and so do nullable
//! structs around it; they are checked to be equal. NULL structs in or around lists are left to the `parquet` crate.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, FieldRef};

use super::codec::Scratch;
use super::list::item;
use super::tier::Depth;
use super::{Column, Fit, Misfit};
use crate::snapshot::inner::num_leaves;

const DIFFERENT: Misfit = Misfit("the leaves of a struct have different rows");

/// A leaf, and the lists around it.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// The lists' definition levels, outermost first.
    pub(super) depths: Vec<Depth>,
    /// That of a value.
    pub(super) value: u8,
    /// Those of NULL structs, as bits.
    pub(super) hidden: u64,
    /// The lists of the leaf, without structs. Without lists, it is read inside its nullable structs.
    pub(super) data_type: DataType,
    pub(super) value_type: DataType,
}

/// Returns the leaves of a column in order; `None` if one is not supported. Definition levels up to `around` are of rows
/// in which the column is NULL because a struct around it is.
pub(super) fn chains(column: &Field, around: u8) -> Option<Vec<Chain>> {
    if around > 0 && has_struct(column.data_type()) {
        return None;
    }
    let mut chains = Vec::new();
    Descent { def: around, ..Descent::default() }.into(column, &mut chains)?;
    if let ([chain], false) = (&mut chains[..], has_struct(column.data_type())) {
        chain.data_type = column.data_type().clone();
    }
    Some(chains)
}

/// The path from a column to its leaves.
#[derive(Debug, Default, Clone)]
struct Descent<'a> {
    /// The definition level of a slot that exists.
    def: u8,
    depths: Vec<Depth>,
    hidden: u64,
    lists: Vec<&'a DataType>,
}

impl<'a> Descent<'a> {
    fn into(mut self, field: &'a Field, chains: &mut Vec<Chain>) -> Option<()> {
        let is_nullable = u8::from(field.is_nullable());
        let data_type = field.data_type();
        if let DataType::Struct(fields) = data_type {
            self.hidden |= u64::from(is_nullable).checked_shl(self.def.into())?;
            self.def = self.def.checked_add(is_nullable)?;
            return fields.iter().try_for_each(|field| self.clone().into(field, chains));
        }
        if let Some(item) = elements(data_type) {
            let list = self.def.checked_add(is_nullable)?;
            self.def = list.checked_add(1)?;
            self.depths.push(Depth { list, element: self.def });
            self.lists.push(data_type);
            return self.into(item, chains);
        }
        let value = self.def.checked_add(is_nullable)?;
        let (value_type, depths) = (data_type.clone(), self.depths);
        let data_type = self.lists.into_iter().rev().fold(value_type.clone(), list_of);
        chains.push(Chain { depths, value, hidden: self.hidden, data_type, value_type });
        Some(())
    }
}

/// Returns the field of the elements of a list or map.
fn elements(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::Map(entries, _) => Some(entries),
        other => item(other),
    }
}

/// Returns the type of lists like `list` with other values.
fn list_of(values: DataType, list: &DataType) -> DataType {
    let of = |item: &FieldRef| Arc::new(item.as_ref().clone().with_data_type(values.clone()).with_nullable(true));
    match list {
        DataType::LargeList(item) => DataType::LargeList(of(item)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(of(item), *len),
        DataType::List(item) | DataType::Map(item, _) => DataType::List(of(item)),
        _ => values,
    }
}

fn has_struct(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Struct(_)) || elements(data_type).is_some_and(|item| has_struct(item.data_type()))
}

/// Reads the leaves of a column, and assembles them.
#[derive(Debug)]
pub(super) struct Group {
    field: FieldRef,
    leaves: Vec<Box<dyn Column>>,
}

impl Group {
    pub(super) fn new(field: FieldRef, leaves: Vec<Box<dyn Column>>) -> Self {
        Self { field, leaves }
    }
}

impl Column for Group {
    fn read(&mut self, num_rows: usize) -> Fit<ArrayRef> {
        let leaves = self.leaves.iter_mut().map(|leaf| leaf.read(num_rows)).collect::<Fit<Vec<_>>>()?;
        assemble(&self.field, None, &mut leaves.into_iter())
    }

    fn into_scratch(self: Box<Self>) -> Scratch {
        self.leaves.into_iter().next().map_or_else(Scratch::default, Column::into_scratch)
    }
}

/// Returns an array of the next leaves. A required struct is NULL where the struct `around` it is.
fn assemble(field: &Field, around: Option<&NullBuffer>, leaves: &mut dyn Iterator<Item = ArrayRef>) -> Fit<ArrayRef> {
    const REFUSED: Misfit = Misfit("structs are not of the column's type");
    match field.data_type() {
        DataType::Struct(fields) => {
            let mut leaves: Vec<_> = leaves.take(num_leaves(field.data_type())).collect();
            let nulls = if field.is_nullable() { take_nulls(&mut leaves)? } else { around.cloned() };
            let leaves = &mut leaves.into_iter();
            let children = fields.iter().map(|field| assemble(field, nulls.as_ref(), leaves));
            let children = children.collect::<Fit<Vec<_>>>()?;
            let array = StructArray::try_new(fields.clone(), children, nulls).map_err(|_| REFUSED)?;
            Ok(Arc::new(array))
        }
        DataType::List(item) => list::<i32>(item, leaves).map(|list| Arc::new(list) as ArrayRef),
        DataType::LargeList(item) => list::<i64>(item, leaves).map(|list| Arc::new(list) as ArrayRef),
        DataType::FixedSizeList(item, len) => {
            let mut lists = leaves.take(num_leaves(item.data_type())).peekable();
            let num_rows = lists.peek().ok_or(DIFFERENT)?.len();
            let mut values = lists.map(|list| Arc::clone(list.as_fixed_size_list().values()));
            let values = assemble(item, None, &mut values)?;
            let list = FixedSizeListArray::try_new(Arc::clone(item), *len, values, None).map_err(|_| REFUSED)?;
            if list.len() == num_rows { Ok(Arc::new(list)) } else { Err(DIFFERENT) }
        }
        DataType::Map(entries, is_sorted) => {
            let (_, offsets, values, nulls) = list::<i32>(entries, leaves)?.into_parts();
            let values = values.as_struct().clone();
            let map = MapArray::try_new(Arc::clone(entries), offsets, values, nulls, *is_sorted);
            Ok(Arc::new(map.map_err(|_| REFUSED)?))
        }
        _ => leaves.next().ok_or(DIFFERENT),
    }
}

/// Removes the common outer struct from leaves; returns its NULLs, if there are any.
fn take_nulls(leaves: &mut [ArrayRef]) -> Fit<Option<NullBuffer>> {
    let mut all_nulls = None;
    for leaf in leaves {
        // Lists have no struct around them.
        let Some(around) = leaf.as_struct_opt() else { continue };
        let nulls = around.nulls().cloned();
        if all_nulls.get_or_insert_with(|| nulls.clone()) != &nulls {
            return Err(DIFFERENT);
        }
        *leaf = Arc::clone(around.columns().first().ok_or(DIFFERENT)?);
    }
    Ok(all_nulls.flatten().filter(|nulls| nulls.null_count() > 0))
}

/// Returns lists of what the next leaves are lists of.
fn list<O: OffsetSizeTrait>(item: &FieldRef, leaves: &mut dyn Iterator<Item = ArrayRef>) -> Fit<GenericListArray<O>> {
    let lists: Vec<_> = leaves.take(num_leaves(item.data_type())).collect();
    let lists: Vec<&GenericListArray<O>> = lists.iter().map(|list| list.as_list()).collect();
    let (first, others) = lists.split_first().ok_or(DIFFERENT)?;
    if others.iter().any(|other| other.offsets() != first.offsets() || other.nulls() != first.nulls()) {
        return Err(DIFFERENT);
    }
    let values = assemble(item, None, &mut lists.iter().map(|list| Arc::clone(list.values())))?;
    GenericListArray::try_new(Arc::clone(item), first.offsets().clone(), values, first.nulls().cloned())
        .map_err(|_| DIFFERENT)
}
