//! Value-preserving casts: to the types of a dataset, and to those that an Arrow consumer requests.
//!
//! Structs are matched by field name, lists and maps by their items. Arrow casts the rest; a value that does not fit is
//! an error, never NULL. With [`exact`], so is a value that would change.

mod exact;
mod feature;
mod wider;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch,
    StructArray, new_null_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_cast::{CastOptions, can_cast_types};
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow_select::filter::filter;
use arrow_select::nullif::nullif;

use crate::batch;
use crate::error::{Error, Result};
use crate::panics;

const STRICT: CastOptions<'static> =
    CastOptions { safe: false, format_options: arrow_cast::display::FormatOptions::new() };

/// How a single column without children is cast.
pub(crate) type CastLeaf = dyn Fn(&ArrayRef, &DataType) -> Result<ArrayRef, ArrowError>;

/// Casts an object's column to the dataset's type. Fields that a struct lacks become NULL.
pub(crate) fn widen(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast(array, to, &|array, to| wider::wider(array, to, &STRICT))
}

/// Casts an object's bounds of a column to the dataset's type. Bounds that do not fit become NULL, that is, unknown.
pub(crate) fn widen_bounds(bounds: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    wider::wider(bounds, to, &CastOptions::default())
}

/// Casts to a type that can represent every value exactly.
pub(crate) fn exactly(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast(array, to, &exact::exact)
}

/// Casts to the type of a feature: floats may be rounded, and the usual storage of media is accepted.
pub(crate) fn to_feature(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast(array, to, &feature::featured)
}

/// Returns whether [`to_feature`] supports a cast between two types.
pub(crate) fn can_be_feature(from: &DataType, to: &DataType) -> bool {
    let is_known = |from: &Field, to: &Field| can_be_feature(from.data_type(), to.data_type());
    match (from, to) {
        (DataType::Struct(have), DataType::Struct(wanted)) => {
            wanted.iter().all(|field| have.find(field.name()).is_none_or(|(_, found)| is_known(found, field)))
        }
        (from, to) => match (item_of(from), item_of(to)) {
            (Some(have), Some(wanted)) => is_known(have, wanted),
            _ => *from == DataType::Null || feature::is_medium(from, to) || can_cast_types(from, to),
        },
    }
}

fn strict(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    arrow_cast::cast_with_options(array, to, &STRICT)
}

/// Casts the leaves of structs, maps and lists by `leaf`.
pub(crate) fn cast(array: &ArrayRef, to: &DataType, leaf: &CastLeaf) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    match (array.data_type(), to) {
        (DataType::Struct(_), DataType::Struct(fields)) => Ok(Arc::new(cast_struct(array.as_struct(), fields, leaf)?)),
        (DataType::Map(_, _), DataType::Map(entries, is_sorted)) => cast_map(array.as_map(), entries, *is_sorted, leaf),
        (from, to) => match (item_of(from), item_of(to)) {
            (Some(_), Some(item)) => cast_list(array, to, item, leaf),
            _ => leaf(array, to),
        },
    }
}

fn cast_struct(array: &StructArray, fields: &Fields, leaf: &CastLeaf) -> Result<StructArray, ArrowError> {
    let child = |field: &FieldRef| match array.column_by_name(field.name()) {
        Some(child) if child.data_type() == field.data_type() => Ok(Arc::clone(child)),
        Some(child) => cast(&without_hidden_values(child, array.nulls())?, field.data_type(), leaf),
        None => Ok(new_null_array(field.data_type(), array.len())),
    };
    let children = fields.iter().map(child).collect::<Result<Vec<_>, _>>()?;
    StructArray::try_new_with_length(fields.clone(), children, array.nulls().cloned(), array.len())
}

/// Returns a field's values, NULL where the struct is NULL: hidden values belong to no row, and may not be castable.
fn without_hidden_values(child: &ArrayRef, rows: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    match rows {
        Some(rows) if rows.null_count() > 0 => nullif(child, &BooleanArray::new(!rows.inner(), None)),
        _ => Ok(Arc::clone(child)),
    }
}

/// Casts keys and values, whatever their names are.
fn cast_map(array: &MapArray, entries: &FieldRef, is_sorted: bool, leaf: &CastLeaf) -> Result<ArrayRef, ArrowError> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(ArrowError::SchemaError("the entries of a map are no struct".into()));
    };
    let columns = array.entries().columns().iter().zip(fields);
    let columns = columns.map(|(child, field)| cast(child, field.data_type(), leaf)).collect::<Result<Vec<_>, _>>()?;
    let cast = StructArray::try_new(fields.clone(), columns, array.entries().nulls().cloned())?;
    let map = MapArray::try_new(Arc::clone(entries), array.offsets().clone(), cast, array.nulls().cloned(), is_sorted)?;
    Ok(Arc::new(map))
}

/// Casts the items within the existing kind of list, then the list.
fn cast_list(array: &ArrayRef, to: &DataType, item: &FieldRef, leaf: &CastLeaf) -> Result<ArrayRef, ArrowError> {
    let same_list: ArrayRef = match array.data_type() {
        DataType::List(_) => Arc::new(with_items::<i32>(array.as_list(), item, leaf)?),
        DataType::LargeList(_) => Arc::new(with_items::<i64>(array.as_list(), item, leaf)?),
        DataType::FixedSizeList(from, len) => {
            let list = array.as_fixed_size_list();
            match list.nulls() {
                Some(rows) if !matches!(to, DataType::FixedSizeList(_, _)) => {
                    Arc::new(with_items(&without_hidden(list, from, rows)?, item, leaf)?)
                }
                nulls => {
                    let (items, nulls) = (cast(list.values(), item.data_type(), leaf)?, nulls.cloned());
                    Arc::new(FixedSizeListArray::try_new_with_length(Arc::clone(item), *len, items, nulls, list.len())?)
                }
            }
        }
        // Never read: list views arrive as lists.
        other => return Err(ArrowError::NotYetImplemented(format!("casting from `{other}`"))),
    };
    if same_list.data_type() == to { Ok(same_list) } else { strict(&same_list, to) }
}

/// Casts only the items of existing rows: a slice of a list also holds those of other rows.
fn with_items<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    item: &FieldRef,
    leaf: &CastLeaf,
) -> Result<GenericListArray<O>, ArrowError> {
    let offsets = list.offsets();
    let (start, end) = (offsets[0].as_usize(), offsets[list.len()].as_usize());
    let items = cast(&list.values().slice(start, end - start), item.data_type(), leaf)?;
    GenericListArray::try_new(Arc::clone(item), offsets.clone().subtract(offsets[0]), items, list.nulls().cloned())
}

/// Returns fixed-size lists as variable-size ones, in which NULL rows have no items.
fn without_hidden(
    list: &FixedSizeListArray,
    item: &FieldRef,
    rows: &NullBuffer,
) -> Result<GenericListArray<i64>, ArrowError> {
    let len = usize::try_from(list.value_length()).unwrap_or(0);
    let items = filter(list.values(), &BooleanArray::new(rows.expand(len).into_inner(), None))?;
    let offsets = OffsetBuffer::from_lengths(rows.iter().map(|is_there| if is_there { len } else { 0 }));
    GenericListArray::try_new(Arc::clone(item), offsets, items, Some(rows.clone()))
}

fn item_of(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => Some(item),
        _ => None,
    }
}

/// Converts batches to another schema that an Arrow consumer requested, if nothing is lost.
#[derive(Debug, Clone)]
pub struct Conversion {
    schema: SchemaRef,
    /// For each column of `schema`, its position among the source columns.
    places: Vec<usize>,
}

impl Conversion {
    /// Matches the columns of `wanted` by name, and checks that they hold the same kind of values.
    ///
    /// A different width, unit, scale, offset, index, column order or representation of text is checked value by value
    /// in [`Self::convert`]. A field's extension type is kept if the consumer requests it.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`], naming the column and both types.
    pub fn try_new(have: &Schema, wanted: &Schema) -> Result<Self> {
        let places = places(have.fields(), wanted.fields()).map_err(refused)?;
        let mut fields = Vec::with_capacity(places.len());
        for (field, &place) in wanted.fields().iter().zip(&places) {
            fields.push(agree(have.field(place), field, field.name()).map_err(refused)?);
        }
        let mut metadata = have.metadata().clone();
        metadata.extend(wanted.metadata().clone());
        Ok(Self { schema: Arc::new(Schema::new_with_metadata(fields, metadata)), places })
    }

    /// Returns the schema of the batches that [`Self::convert`] returns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the rows of `batch` in the requested schema. Columns that already have the requested type are not
    /// copied.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for the first value that the requested type cannot hold.
    pub fn convert(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.schema.fields().iter().zip(&self.places).map(|(field, &place)| {
            // A library casts arbitrary types here: a panic must not unwind into the consumer's C code.
            let done = panics::caught(|| exactly(batch.column(place), field.data_type()));
            let column = done.map_err(ArrowError::ComputeError).flatten();
            column.map_err(|error| refused(format!("column `{}` as `{}`: {error}", field.name(), field.data_type())))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        batch::of_columns(Arc::clone(&self.schema), columns, batch.num_rows())
            .map_err(|error| refused(error.to_string()))
    }
}

fn refused(reason: String) -> Error {
    Error::Setting { name: "requested_schema", reason }
}

/// Returns the position of each wanted field; fails unless all fields are wanted.
fn places(have: &Fields, wanted: &Fields) -> Result<Vec<usize>, String> {
    let names =
        |fields: &Fields| fields.iter().map(|field| format!("`{}`", field.name())).collect::<Vec<_>>().join(", ");
    let place = |field: &FieldRef| have.find(field.name()).map(|(place, _)| place);
    let places: Option<Vec<usize>> = wanted.iter().map(place).collect();
    let mut seen = places.clone().unwrap_or_default();
    seen.sort_unstable();
    seen.dedup();
    match places {
        Some(places) if seen.len() == have.len() && places.len() == have.len() => Ok(places),
        _ => {
            Err(format!("the columns are {}, not {}; select columns with `select_columns`", names(have), names(wanted)))
        }
    }
}

/// Returns the field to export: the wanted type, and the metadata of both.
fn agree(have: &Field, wanted: &Field, path: &str) -> Result<Field, String> {
    let clash = || {
        let (have, wanted) = (have.data_type(), wanted.data_type());
        format!("column `{path}` is `{have}` and cannot be handed over as `{wanted}`")
    };
    if let (Some(extension), Some(other)) = (have.extension_type_name(), wanted.extension_type_name())
        && extension != other
    {
        return Err(format!("column `{path}` is of the extension type `{extension}`, not `{other}`"));
    }
    let child = |a: &FieldRef, b: &FieldRef| agree(a, b, &format!("{path}.{}", b.name())).map(Arc::new);
    let data_type = match (have.data_type(), wanted.data_type()) {
        (DataType::Struct(fields), DataType::Struct(others)) => {
            let places = places(fields, others).map_err(|reason| format!("column `{path}`: {reason}"))?;
            let fields = others.iter().zip(places).map(|(other, place)| child(&fields[place], other));
            DataType::Struct(fields.collect::<Result<Fields, String>>()?)
        }
        (DataType::Map(entries, _), DataType::Map(others, is_sorted)) => {
            let (DataType::Struct(fields), DataType::Struct(wanted)) = (entries.data_type(), others.data_type()) else {
                return Err(clash());
            };
            let pairs = fields.iter().zip(wanted).map(|(field, other)| child(field, other));
            let pairs = DataType::Struct(pairs.collect::<Result<Fields, String>>()?);
            DataType::Map(Arc::new(Field::clone(others).with_data_type(pairs)), *is_sorted)
        }
        (DataType::FixedSizeList(_, len), DataType::FixedSizeList(_, other)) if len != other => return Err(clash()),
        (from, to) => match (item_of(from), item_of(to)) {
            (Some(item), Some(other)) => with_item(to, child(item, other)?),
            _ if is_castable(from, to) => to.clone(),
            _ => return Err(clash()),
        },
    };
    let mut metadata = have.metadata().clone();
    if wanted.extension_type_name().is_none() {
        metadata.remove(EXTENSION_TYPE_NAME_KEY);
        metadata.remove(EXTENSION_TYPE_METADATA_KEY);
    }
    metadata.extend(wanted.metadata().clone());
    Ok(Field::clone(wanted).with_data_type(data_type).with_metadata(metadata))
}

/// Returns the list type `list` with other items.
fn with_item(list: &DataType, item: FieldRef) -> DataType {
    match list {
        DataType::LargeList(_) => DataType::LargeList(item),
        DataType::FixedSizeList(_, len) => DataType::FixedSizeList(item, *len),
        DataType::ListView(_) => DataType::ListView(item),
        DataType::LargeListView(_) => DataType::LargeListView(item),
        _ => DataType::List(item),
    }
}

/// The kind of a value, regardless of how it is stored.
#[derive(PartialEq, Eq)]
enum Kind {
    Null,
    Boolean,
    Number,
    Decimal,
    Date,
    Time,
    Instant,
    /// A timestamp without a time zone, so its instant is unknown.
    WallClock,
    Duration,
    Bytes,
}

fn kind(data_type: &DataType) -> Option<Kind> {
    Some(match data_type {
        DataType::Null => Kind::Null,
        DataType::Boolean => Kind::Boolean,
        number if number.is_integer() || number.is_floating() => Kind::Number,
        decimal if decimal.is_decimal() => Kind::Decimal,
        DataType::Date32 | DataType::Date64 => Kind::Date,
        DataType::Time32(_) | DataType::Time64(_) => Kind::Time,
        DataType::Timestamp(_, zone) => zone.as_ref().map_or(Kind::WallClock, |_| Kind::Instant),
        DataType::Duration(_) => Kind::Duration,
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => Kind::Bytes,
        DataType::Dictionary(_, values) => return kind(values),
        DataType::RunEndEncoded(_, values) => return kind(values.data_type()),
        _ => return None,
    })
}

/// Returns whether both types hold the same kind of values, and arrow can cast in both directions.
fn is_castable(from: &DataType, to: &DataType) -> bool {
    let has_kind = kind(from).is_some_and(|have| have == Kind::Null || kind(to) == Some(have));
    from == to || (has_kind && can_cast_types(from, to) && (*from == DataType::Null || can_cast_types(to, from)))
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int64Type;
    use arrow_array::{Float64Array, Int64Array, StringArray};

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn schema(fields: Vec<(&str, DataType)>) -> Schema {
        Schema::new(fields.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect::<Vec<_>>())
    }

    #[test]
    fn values_that_fit_are_converted_and_columns_found_by_name() {
        let have = batch(vec![
            ("a", Arc::new(Int64Array::from(vec![Some(1), None]))),
            ("b", Arc::new(StringArray::from(vec!["x", "y"]))),
        ]);
        let wanted = schema(vec![("b", DataType::LargeUtf8), ("a", DataType::Int8)]);
        let conversion = Conversion::try_new(&have.schema(), &wanted).unwrap();
        let got = conversion.convert(&have).unwrap();
        assert_eq!(got.schema(), *conversion.schema());
        assert_eq!(
            got.column(1).as_primitive::<arrow_array::types::Int8Type>().iter().collect::<Vec<_>>(),
            [Some(1), None]
        );
        assert_eq!(got.column(0).as_string::<i64>().iter().flatten().collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn a_column_of_the_wanted_type_is_not_copied() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let have = batch(vec![("a", Arc::clone(&column))]);
        let got = Conversion::try_new(&have.schema(), &have.schema()).unwrap().convert(&have).unwrap();
        assert!(got.column(0).to_data().ptr_eq(&column.to_data()));
    }

    #[test]
    fn a_value_that_would_change_is_named() {
        let have = batch(vec![("a", Arc::new(Float64Array::from(vec![1.0, 2.5])))]);
        let conversion = Conversion::try_new(&have.schema(), &schema(vec![("a", DataType::Int32)])).unwrap();
        let error = conversion.convert(&have).unwrap_err().to_string();
        assert!(error.contains("column `a` as `Int32`") && error.contains("`2.5` has no exact equivalent"), "{error}");
    }

    #[test]
    fn a_null_among_lists_of_one_length_has_no_items_among_lists_of_any() {
        let rows = [Some(vec![Some(1), Some(2)]), None, Some(vec![Some(5), None])];
        let lists = FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(rows, 2);
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        for to in [DataType::List(Arc::clone(&item)), DataType::LargeList(item)] {
            let got = widen(&(Arc::new(lists.slice(1, 2)) as ArrayRef), &to).unwrap();
            assert_eq!(got.data_type(), &to);
            let large = strict(&got, &DataType::new_large_list(DataType::Int64, true)).unwrap();
            let large = large.as_list::<i64>();
            assert_eq!(large.value_offsets(), [0, 0, 2]);
            assert!(large.is_null(0) && large.is_valid(1));
            assert_eq!(large.values().as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(5), None]);
        }
    }

    #[test]
    fn values_of_rows_that_a_slice_leaves_out_are_not_cast() {
        let rows = [Some(vec![Some(300)]), Some(vec![Some(1), None])];
        let lists: ArrayRef = Arc::new(GenericListArray::<i32>::from_iter_primitive::<Int64Type, _, _>(rows));
        let to = DataType::new_list(DataType::Int8, true);
        assert!(widen(&lists, &to).is_err());
        assert_eq!(widen(&lists.slice(1, 1), &to).unwrap().as_list::<i32>().value_offsets(), [0, 2]);
    }

    #[test]
    fn values_of_another_kind_are_refused_with_their_path() {
        let of = |kind: DataType| {
            let inner = DataType::Struct(vec![Field::new("b", kind, true)].into());
            schema(vec![("a", DataType::List(Arc::new(Field::new("item", inner, true))))])
        };
        let error = Conversion::try_new(&of(DataType::Int32), &of(DataType::Utf8)).unwrap_err().to_string();
        assert!(error.contains("`a.item.b` is `Int32` and cannot be handed over as `Utf8`"), "{error}");
    }
}
