//! Fields of structs as columns of their own.
//!
//! Each field of a struct has pages of its own, so it can be read without the others. Objects and datasets therefore
//! number the fields of their structs, at any depth but not within lists, after their columns. A row in which a struct
//! around such a field is NULL has NULL there.
//!
//! Whether a struct is NULL, each of its fields tells. So there is also a column that is the struct with nothing but
//! its cheapest field: its *presence*.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StructArray};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow_select::nullif::nullif;

use super::Fragment;

/// Between the names of the column and of the fields that lead to one within. No name has it.
const SEPARATOR: char = '\0';

/// A field of a struct, or the presence of a struct.
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

/// Returns the beginning of the name of the presence of the struct `name`; that of the field follows that tells it.
fn presence(struct_name: &str) -> String {
    format!("{struct_name}{SEPARATOR}{SEPARATOR}")
}

/// Returns the presence of the struct `name` among the columns of a snapshot, if it has one.
pub(crate) fn presence_of<'a>(name: &str, columns: &'a Schema) -> Option<&'a str> {
    let begin = presence(name);
    columns.fields().iter().map(|field| field.name().as_str()).find(|name| name.starts_with(&begin))
}

/// Returns the struct whose presence a column is, and the field that tells it.
fn as_presence(name: &str) -> Option<(&str, &str)> {
    name.split_once(&presence("") as &str)
}

/// Returns the name of the column that has the field `name`, or is it.
pub(crate) fn column_of(name: &str) -> &str {
    name.split(SEPARATOR).next().unwrap_or(name)
}

/// Returns a column's name for people.
pub(crate) fn shown(name: &str) -> Cow<'_, str> {
    let name = as_presence(name).map_or(name, |(of, _)| of);
    if name.contains(SEPARATOR) { name.replace(SEPARATOR, ".").into() } else { name.into() }
}

impl Inner {
    /// Whether it is the presence of a struct.
    pub(crate) fn is_presence(&self) -> bool {
        as_presence(self.field.name()).is_some()
    }
}

/// Returns the fields of the structs in a column, with a struct before its fields, and the presences of structs that may
/// be NULL, by each of their fields.
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
        if field.name().is_empty() {
            // Its path would be that of a presence.
            continue;
        }
        let is_nullable = around.field.is_nullable() || field.is_nullable();
        let name = name([around.field.name().as_str(), field.name()]);
        let column = Arc::new(field.as_ref().clone().with_name(name).with_nullable(is_nullable));
        // Deeper than levels count, nothing is decoded here.
        let within = around.level.saturating_add(u8::from(field.is_nullable()));
        let level = within - u8::from(is_nullable);
        if !leaves.is_empty() {
            found.push(Inner { field: Arc::clone(&column), leaves: leaves.clone(), level });
        }
        if around.field.is_nullable() && cost(field.data_type()).is_some() {
            let name = presence(around.field.name()) + field.name();
            let field = Arc::new(Field::new_struct(name, vec![Arc::clone(field)], true));
            found.push(Inner { field, leaves: leaves.clone(), level: around.level - 1 });
        }
        collect(field, Inner { field: column, leaves, level: within }, found);
    }
}

/// Returns about how many bytes a value takes, to compare fields by; `None` for nested types.
fn cost(data_type: &DataType) -> Option<usize> {
    const DICTIONARY: usize = 50;
    const TEXT: usize = 100;
    const BINARY: usize = 1000;
    match data_type {
        DataType::Boolean => Some(0),
        DataType::Dictionary(..) => Some(DICTIONARY),
        DataType::Utf8 | DataType::LargeUtf8 => Some(TEXT),
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => Some(BINARY),
        other => other.primitive_width(),
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

/// The columns of objects with the same schema.
struct Alike {
    inner: Arc<[Inner]>,
    /// Those of the dataset without fields of structs.
    own: Arc<[Option<usize>]>,
    by_name: HashMap<String, usize>,
    /// The columns of structs whose fields cannot be read on their own here.
    opaque: Vec<String>,
}

impl Alike {
    fn new(fragment: &Fragment) -> Self {
        let inner = fragment.inner.iter().zip(fragment.num_roots()..);
        let by_name: HashMap<String, usize> = inner.map(|(inner, place)| (inner.field.name().clone(), place)).collect();
        let roots = fragment.reader.schema().fields().iter();
        let is_opaque =
            |root: &&FieldRef| of_column(root).first().is_some_and(|inner| !by_name.contains_key(inner.field.name()));
        let opaque = roots.filter(is_opaque).map(|root| root.name().clone()).collect();
        Self { inner: Arc::clone(&fragment.inner), own: Arc::clone(&fragment.columns), by_name, opaque }
    }

    fn is_of(&self, fragment: &Fragment) -> bool {
        Arc::ptr_eq(&self.inner, &fragment.inner) && Arc::ptr_eq(&self.own, &fragment.columns)
    }

    /// Returns the place of a column of `schema`, or of a field of one.
    fn find(&self, name: &str, schema: &Schema) -> Option<usize> {
        match schema.index_of(name) {
            Ok(column) => self.own[column],
            Err(_) => self.by_name.get(name).copied(),
        }
    }
}

/// Returns `schema` with the fields of its structs, and their presences, as columns after its own, and adds them to those
/// of the fragments.
pub(crate) fn with_inner(schema: &SchemaRef, fragments: &mut [Fragment]) -> SchemaRef {
    let inner: Vec<Inner> = schema.fields().iter().flat_map(|field| of_column(field)).collect();
    if inner.is_empty() {
        return Arc::clone(schema);
    }
    let mut all: Vec<Alike> = Vec::new();
    let place_of = |fragment: &Fragment| {
        all.iter().rposition(|alike| alike.is_of(fragment)).unwrap_or_else(|| {
            all.push(Alike::new(fragment));
            all.len() - 1
        })
    };
    let alike: Vec<usize> = fragments.iter().map(place_of).collect();
    let presences = presences(&inner, &all, schema);
    let is_opaque = |name: &str| all.iter().any(|alike| alike.opaque.iter().any(|opaque| opaque == column_of(name)));
    let is_usable = |inner: &&Inner| {
        let name = inner.field.name();
        !is_opaque(name) && as_presence(name).is_none_or(|(of, _)| presences.get(of) == Some(&name.as_str()))
    };
    let fields: Vec<&FieldRef> = inner.iter().filter(is_usable).map(|inner| &inner.field).collect();
    let columns_of = |alike: &Alike| {
        let inner = fields.iter().map(|field| alike.by_name.get(field.name()).copied());
        alike.own.iter().copied().chain(inner).collect()
    };
    let columns: Vec<Arc<[Option<usize>]>> = all.iter().map(columns_of).collect();
    for (fragment, alike) in fragments.iter_mut().zip(alike) {
        fragment.columns = Arc::clone(&columns[alike]);
    }
    let fields: Vec<FieldRef> = schema.fields().iter().chain(fields).cloned().collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Returns for each struct its presence by the cheapest field that all objects have that have the struct.
fn presences<'a>(inner: &'a [Inner], all: &[Alike], schema: &Schema) -> HashMap<&'a str, &'a str> {
    let mut chosen: HashMap<&str, (usize, &str)> = HashMap::new();
    for Inner { field, .. } in inner {
        let (Some((of, _)), DataType::Struct(fields)) = (as_presence(field.name()), field.data_type()) else {
            continue;
        };
        let Some(cost) = fields.first().and_then(|field| cost(field.data_type())) else { continue };
        let is_cheaper = chosen.get(of).is_none_or(|(least, _)| cost < *least);
        let is_told = |alike: &Alike| alike.by_name.contains_key(field.name()) || alike.find(of, schema).is_none();
        if is_cheaper && all.iter().all(is_told) {
            chosen.insert(of, (cost, field.name()));
        }
    }
    chosen.into_iter().map(|(of, (_, name))| (of, name)).collect()
}

/// Returns the column of a batch with a [name], whose fields it has; `None` if it has not.
pub(crate) fn find(batch: &RecordBatch, name: &str) -> Option<ArrayRef> {
    if let Some((of, field)) = as_presence(name) {
        let found = find(batch, of)?;
        let structs = found.as_struct_opt()?;
        let (place, field) = structs.fields().find(field)?;
        let (field, values) = (Arc::clone(field), Arc::clone(structs.column(place)));
        return Some(Arc::new(StructArray::new(vec![field].into(), vec![values], structs.nulls().cloned())));
    }
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
        let (presences, found): (Vec<_>, Vec<_>) = found.into_iter().partition(Inner::is_presence);
        let presences: Vec<_> = presences
            .iter()
            .map(|inner| (as_presence(inner.field.name()).unwrap(), inner.leaves.clone(), inner.level))
            .collect();
        let expected = [(("meta", "id"), 0..1, 0), (("meta\0pair", "x"), 1..2, 1), (("meta", "end"), 3..4, 0)];
        assert_eq!(presences, expected);
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
