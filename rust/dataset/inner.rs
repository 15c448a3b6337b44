//! Fields of structs as columns of their own.
//!
//! Each field of a struct has pages of its own, so it can be read without the others. Objects and datasets therefore
//! number the fields of their structs, at any depth but not within lists, after their columns. A row in which a struct
//! around such a field is NULL has NULL there.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow_select::nullif::nullif;

use super::Fragment;

/// Between the names of the column and of the fields that lead to one within. No name has it.
const SEPARATOR: char = '\0';

/// A field of a struct.
#[derive(Debug, Clone)]
pub(crate) struct Inner {
    /// Its [name] as a column, and its type. NULL if it is, or a struct around it.
    pub(super) field: FieldRef,
    /// Its leaves among those of the column.
    pub(super) leaves: Range<usize>,
    /// The definition level of a row in which the field is NULL, if it can be, and no struct around it.
    pub(crate) level: u8,
}

/// Returns the name of a field of structs as a column, given the names of the column and of the fields that lead to it.
pub(crate) fn name<'a>(path: impl IntoIterator<Item = &'a str>) -> String {
    path.into_iter().collect::<Vec<_>>().join(SEPARATOR.encode_utf8(&mut [0; 4]))
}

/// Returns the name of the column that has the field `name`, or is it.
pub(crate) fn column_of(name: &str) -> &str {
    name.split(SEPARATOR).next().unwrap_or(name)
}

/// Returns a column's name for people.
pub(crate) fn shown(name: &str) -> Cow<'_, str> {
    if name.contains(SEPARATOR) { name.replace(SEPARATOR, ".").into() } else { name.into() }
}

/// Returns the fields of the structs in a column, with a struct before its fields.
pub(super) fn of_column(column: &Field) -> Vec<Inner> {
    let mut found = Vec::new();
    let level = u8::from(column.is_nullable());
    collect(column, Inner { field: Arc::new(column.clone()), leaves: 0..0, level }, &mut found);
    found
}

/// Adds the fields of the struct `of`; `around` has its name, its first leaf and its level if it is not NULL.
fn collect(of: &Field, around: Inner, found: &mut Vec<Inner>) {
    let DataType::Struct(fields) = of.data_type() else { return };
    let mut first = around.leaves.start;
    for field in fields {
        let leaves = first..first + num_leaves(field.data_type());
        first = leaves.end;
        let is_nullable = around.field.is_nullable() || field.is_nullable();
        let name = name([around.field.name().as_str(), field.name()]);
        let column = Arc::new(field.as_ref().clone().with_name(name).with_nullable(is_nullable));
        // Deeper than levels count, nothing is decoded here.
        let within = around.level.saturating_add(u8::from(field.is_nullable()));
        let level = within - u8::from(is_nullable);
        if !leaves.is_empty() {
            found.push(Inner { field: Arc::clone(&column), leaves: leaves.clone(), level });
        }
        collect(field, Inner { field: column, leaves, level: within }, found);
    }
}

/// Returns the number of leaves in a type.
pub(crate) fn num_leaves(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => fields.iter().map(|field| num_leaves(field.data_type())).sum(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => num_leaves(item.data_type()),
        _ => 1,
    }
}

/// Returns `schema` with the fields of its structs as columns after its own, and adds them to those of the fragments.
pub(super) fn with_inner(schema: &SchemaRef, fragments: &mut [Fragment]) -> SchemaRef {
    let inner: Vec<FieldRef> =
        schema.fields().iter().flat_map(|field| of_column(field)).map(|inner| inner.field).collect();
    if inner.is_empty() {
        return Arc::clone(schema);
    }
    let mut last: Option<(Arc<[Inner]>, Arc<[Option<usize>]>, Arc<[Option<usize>]>)> = None;
    for fragment in fragments {
        let is_like = |(inner, own, _): &(Arc<[Inner]>, Arc<[Option<usize>]>, _)| {
            Arc::ptr_eq(inner, &fragment.inner) && Arc::ptr_eq(own, &fragment.columns)
        };
        let (_, _, columns) = match last.take().filter(is_like) {
            Some(same) => last.insert(same),
            None => {
                let places = fragment.inner.iter().zip(fragment.num_roots()..);
                let places: HashMap<&str, usize> =
                    places.map(|(inner, place)| (inner.field.name().as_str(), place)).collect();
                let here = inner.iter().map(|field| places.get(field.name().as_str()).copied());
                let columns = fragment.columns.iter().copied().chain(here).collect();
                last.insert((Arc::clone(&fragment.inner), Arc::clone(&fragment.columns), columns))
            }
        };
        fragment.columns = Arc::clone(columns);
    }
    let fields: Vec<FieldRef> = schema.fields().iter().cloned().chain(inner).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Returns the column of a batch with a [name], whose fields it has; `None` if it has not.
pub(crate) fn find(batch: &RecordBatch, name: &str) -> Option<ArrayRef> {
    let mut path = name.split(SEPARATOR);
    let column = batch.column_by_name(path.next()?)?;
    path.try_fold(Arc::clone(column), |around, name| {
        let around = around.as_struct_opt()?;
        let field = around.column_by_name(name)?;
        match around.nulls() {
            None => Some(Arc::clone(field)),
            Some(nulls) => nullif(field, &BooleanArray::new(!nulls.inner(), None)).ok(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, data_type: DataType, is_nullable: bool) -> Field {
        Field::new(name, data_type, is_nullable)
    }

    #[test]
    fn fields_have_the_leaves_and_levels_of_their_place() {
        let list = DataType::new_list(DataType::Int32, true);
        let pair = DataType::Struct(vec![field("x", DataType::Int8, false), field("y", list, true)].into());
        let fields = vec![
            field("id", DataType::Int64, true),
            field("pair", pair, true),
            field("none", DataType::Struct(Vec::<Field>::new().into()), true),
            field("end", DataType::Utf8, false),
        ];
        let found = of_column(&field("meta", DataType::Struct(fields.into()), true));
        let found: Vec<_> = found
            .iter()
            .map(|inner| (shown(inner.field.name()), inner.leaves.clone(), inner.level, inner.field.is_nullable()))
            .collect();
        let expected = [
            ("meta.id", 0..1, 1, true),
            ("meta.pair", 1..3, 1, true),
            ("meta.pair.x", 1..2, 1, true),
            ("meta.pair.y", 2..3, 2, true),
            ("meta.end", 3..4, 0, true),
        ];
        assert_eq!(found, expected.map(|(name, leaves, level, null)| (name.into(), leaves, level, null)));
        assert!(of_column(&field("id", DataType::Int64, true)).is_empty());
    }

    #[test]
    fn only_a_column_of_structs_that_cannot_be_null_has_fields_that_cannot() {
        let inner = DataType::Struct(vec![field("x", DataType::Int8, false)].into());
        let found = of_column(&field("meta", DataType::Struct(vec![field("in", inner, false)].into()), false));
        let found: Vec<_> = found.iter().map(|inner| (inner.level, inner.field.is_nullable())).collect();
        assert_eq!(found, [(0, false), (0, false)]);
    }
}
