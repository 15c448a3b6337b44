//! Unifies the schemas of all objects: missing columns are NULL, and differing types become one that holds the values
//! of both.
//!
//! Between text and bytes, UTC and no zone, or a timestamp and a date, the first object decides. Everything else must
//! agree.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, new_null_array};
use arrow_schema::{
    ArrowError, DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION,
    DataType, Field, FieldRef, Fields, Schema, TimeUnit,
};
use parquet::errors::ParquetError;

use super::parquet_columns::TOO_MUCH_TEXT;
use super::{Fragment, RowGroupRef, Snapshot, Storing, inner, partition};
use crate::batch;
use crate::cast;
use crate::error::{Error, Result};

/// Returns the schema that holds the values of all fragments, and sets each fragment's columns.
///
/// Columns are in the order of their first appearance, those of [`partition`] last. Metadata is the first fragment's.
///
/// # Errors
///
/// [`Error::SchemaMismatch`], naming both objects, the column and both types; [`Error::FolderMismatch`];
/// [`Error::NotParquet`] for a name that cannot be exported.
pub(super) fn unify(fragments: &mut [Fragment]) -> Result<Schema> {
    let Some(first) = fragments.first() else { return Ok(Schema::empty()) };
    let metadata = first.schema.metadata().clone();
    let mut fields: Vec<(FieldRef, usize)> = first.schema.fields().iter().map(|f| (Arc::clone(f), 0)).collect();
    let mut places: HashMap<String, usize> =
        fields.iter().enumerate().map(|(place, (field, _))| (field.name().clone(), place)).collect();
    let first_fields = first.schema.fields().clone();
    for (index, fragment) in fragments.iter().enumerate().skip(1) {
        let schema = &fragment.schema;
        if *schema.fields() == first_fields {
            continue;
        }
        let names: HashSet<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        for field in schema.fields() {
            let Some(&place) = places.get(field.name()) else {
                places.insert(field.name().clone(), fields.len());
                fields.push((Arc::new(Field::clone(field).with_nullable(true)), index));
                continue;
            };
            let (known, of) = &fields[place];
            let unified = unify_fields(known, field).map_err(|clash| Error::SchemaMismatch {
                column: clash.column,
                left: Box::new(clash.left),
                left_url: fragments[*of].object.url.clone(),
                right: Box::new(clash.right),
                right_url: fragment.object.url.clone(),
            })?;
            fields[place].0 = Arc::new(unified);
        }
        for (field, _) in &mut fields {
            if !field.is_nullable() && !names.contains(field.name().as_str()) {
                *field = Arc::new(Field::clone(field).with_nullable(true));
            }
        }
    }
    for (field, of) in &fields {
        if let Some(name) = unspeakable(field) {
            let url = fragments[*of].object.url.clone();
            let reason = format!(
                "the column name {name:?} contains a NUL character, at which Arrow's C interface would cut it off; \
                 rename it"
            );
            return Err(Error::NotParquet { url, reason });
        }
    }
    let partitions = partition::columns(fragments, &fields)?;
    fields.extend(partitions.into_iter().map(|field| (Arc::new(field), 0)));
    set_columns(fragments, &fields, &first_fields);
    Ok(Schema::new_with_metadata(fields.into_iter().map(|(field, _)| field).collect::<Fields>(), metadata))
}

/// Returns a name, of the field or inside it, that is not a C string.
fn unspeakable(field: &Field) -> Option<&str> {
    if field.name().contains('\0') {
        return Some(field.name());
    }
    match field.data_type() {
        DataType::Struct(fields) => fields.iter().find_map(|field| unspeakable(field)),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => unspeakable(item),
        _ => None,
    }
}

/// Sets each fragment's columns; those with the fields of the first share one list.
fn set_columns(fragments: &mut [Fragment], fields: &[(FieldRef, usize)], first_fields: &Fields) {
    let columns_of = |schema: &Schema| -> Arc<[Option<usize>]> {
        let names = schema.fields().iter().enumerate().map(|(root, field)| (field.name().as_str(), root));
        let roots: HashMap<&str, usize> = names.collect();
        fields.iter().map(|(field, _)| roots.get(field.name().as_str()).copied()).collect()
    };
    let mut first_columns: Option<Arc<[Option<usize>]>> = None;
    for fragment in fragments {
        let schema = &fragment.schema;
        let columns = if schema.fields() == first_fields {
            Arc::clone(first_columns.get_or_insert_with(|| columns_of(schema)))
        } else {
            columns_of(schema)
        };
        fragment.columns = columns;
    }
}

/// Two types without a common one.
struct Clash {
    column: String,
    left: DataType,
    right: DataType,
}

fn unify_fields(left: &Field, right: &Field) -> Result<Field, Clash> {
    let data_type = unify_types(left.data_type(), right.data_type()).map_err(|clash| match clash {
        Some(Clash { column, left: l, right: r }) => {
            Clash { column: format!("{}.{column}", left.name()), left: l, right: r }
        }
        None => Clash { column: left.name().clone(), left: left.data_type().clone(), right: right.data_type().clone() },
    })?;
    let mut unified = left.clone().with_data_type(data_type).with_nullable(left.is_nullable() || right.is_nullable());
    if left.metadata() != right.metadata() {
        unified.set_metadata(
            left.metadata()
                .iter()
                .filter(|(k, v)| right.metadata().get(*k) == Some(v))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        );
    }
    Ok(unified)
}

/// Returns the narrowest type that holds the values of both; the inner clash if a child is at fault.
fn unify_types(left: &DataType, right: &DataType) -> Result<DataType, Option<Clash>> {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Map, Null, Struct};
    if left == right {
        return Ok(left.clone());
    }
    let item = |a: &FieldRef, b: &FieldRef| unify_fields(a, b).map(Arc::new).map_err(Some);
    match (left, right) {
        (Null, other) | (other, Null) => Ok(other.clone()),
        (Dictionary(_, a), Dictionary(_, b)) => unify_types(a, b),
        (Dictionary(_, a), b) => unify_types(a, b),
        (a, Dictionary(_, b)) => unify_types(a, b),
        (List(a), List(b)) => Ok(List(item(a, b)?)),
        (List(a) | LargeList(a), List(b) | LargeList(b)) => Ok(LargeList(item(a, b)?)),
        (FixedSizeList(a, n), FixedSizeList(b, m)) if n == m => Ok(FixedSizeList(item(a, b)?, *n)),
        (FixedSizeList(a, _), FixedSizeList(b, _)) => Ok(List(item(a, b)?)),
        (FixedSizeList(a, _), List(b)) | (List(a), FixedSizeList(b, _)) => Ok(List(item(a, b)?)),
        (FixedSizeList(a, _), LargeList(b)) | (LargeList(a), FixedSizeList(b, _)) => Ok(LargeList(item(a, b)?)),
        (Struct(a), Struct(b)) => unify_structs(a, b).map(Struct).map_err(Some),
        (Map(a, is_sorted), Map(b, other)) => Ok(Map(unify_entries(a, b)?, *is_sorted && *other)),
        _ => widen_bytes(left, right).or_else(|| widen_times(left, right)).or_else(|| widen(left, right)).ok_or(None),
    }
}

fn unify_structs(left: &Fields, right: &Fields) -> Result<Fields, Clash> {
    let mut fields = Vec::with_capacity(left.len());
    for field in left {
        fields.push(match right.find(field.name()) {
            Some((_, other)) => unify_fields(field, other)?,
            None => Field::clone(field).with_nullable(true),
        });
    }
    let only_right = right.iter().filter(|field| left.find(field.name()).is_none());
    fields.extend(only_right.map(|field| Field::clone(field).with_nullable(true)));
    Ok(fields.into())
}

/// Unifies keys with keys and values with values, whose names differ between writers.
fn unify_entries(left: &FieldRef, right: &FieldRef) -> Result<FieldRef, Option<Clash>> {
    let (DataType::Struct(a), DataType::Struct(b)) = (left.data_type(), right.data_type()) else { return Err(None) };
    let pairs = a.iter().zip(b).map(|(a, b)| unify_fields(a, b));
    let entries = DataType::Struct(pairs.collect::<Result<Fields, _>>().map_err(Some)?);
    Ok(Arc::new(Field::clone(left).with_data_type(entries)))
}

/// Returns text if `first` is text, bytes if it is bytes. Bytes that are not UTF-8 are then an error of their object.
fn widen_bytes(first: &DataType, other: &DataType) -> Option<DataType> {
    use DataType::{Binary, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8};
    let is_large = [first, other].iter().any(|kind| matches!(kind, LargeUtf8 | LargeBinary));
    match (first, other) {
        (Utf8 | LargeUtf8, Utf8 | LargeUtf8 | Binary | LargeBinary) => Some(if is_large { LargeUtf8 } else { Utf8 }),
        (Binary | LargeBinary, Utf8 | LargeUtf8 | Binary | LargeBinary | FixedSizeBinary(_))
        | (FixedSizeBinary(_), Binary | LargeBinary | FixedSizeBinary(_)) => {
            Some(if is_large { LargeBinary } else { Binary })
        }
        _ => None,
    }
}

/// Returns times of the finer unit. Values that it cannot represent, such as the year 9999 in nanoseconds, are an error
/// of their object.
///
/// Instants are in the zone of `first`. If that is not UTC, times without a zone would show other hours.
fn widen_times(first: &DataType, other: &DataType) -> Option<DataType> {
    use DataType::{Date32, Date64, Duration, Time32, Time64, Timestamp};
    Some(match (first, other) {
        (Timestamp(a, zone), Timestamp(b, other))
            if zone.is_some() == other.is_some() || is_utc(zone.as_deref().or(other.as_deref())) =>
        {
            Timestamp(*a.max(b), zone.clone())
        }
        (Timestamp(unit, zone), Date32 | Date64)
            if is_utc(zone.as_deref()) && (*other == Date32 || *unit >= TimeUnit::Millisecond) =>
        {
            first.clone()
        }
        (Date32, Date64) | (Date64, Date32) => Date64,
        (Time32(a) | Time64(a), Time32(b) | Time64(b)) => match a.max(b) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => Time32(*unit),
            unit => Time64(*unit),
        },
        (Duration(a), Duration(b)) => Duration(*a.max(b)),
        _ => return None,
    })
}

/// Returns whether a clock in the zone, or in none, shows what is stored.
fn is_utc(zone: Option<&str>) -> bool {
    zone.is_none_or(|zone| matches!(zone, "UTC" | "Etc/UTC" | "Z" | "+00:00"))
}

/// Returns the wider of two numeric types of a kind, if it holds every value of the other.
fn widen(left: &DataType, right: &DataType) -> Option<DataType> {
    if left.is_decimal() && right.is_decimal() {
        return wider_decimal(left, right);
    }
    if left.is_floating() && right.is_floating() {
        return wider(left, right);
    }
    if !left.is_integer() || !right.is_integer() {
        return None;
    }
    if left.is_signed_integer() == right.is_signed_integer() {
        return wider(left, right);
    }
    let (signed, unsigned) = if left.is_signed_integer() { (left, right) } else { (right, left) };
    match unsigned.primitive_width()? {
        width if width < signed.primitive_width()? => Some(signed.clone()),
        1 => Some(DataType::Int16),
        2 => Some(DataType::Int32),
        4 => Some(DataType::Int64),
        _ => None,
    }
}

/// Returns a decimal type with as many digits before and after the point as either.
fn wider_decimal(left: &DataType, right: &DataType) -> Option<DataType> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    let digits = |kind: &DataType| match *kind {
        Decimal32(all, scale) | Decimal64(all, scale) | Decimal128(all, scale) | Decimal256(all, scale) => {
            Some((i16::from(all) - i16::from(scale), scale))
        }
        _ => None,
    };
    let ((before, scale), (other_before, other_scale)) = (digits(left)?, digits(right)?);
    let scale = scale.max(other_scale);
    let all = u8::try_from(before.max(other_before) + i16::from(scale)).ok()?;
    let width = left.primitive_width()?.max(right.primitive_width()?);
    Some(match width {
        4 if all <= DECIMAL32_MAX_PRECISION => Decimal32(all, scale),
        4 | 8 if all <= DECIMAL64_MAX_PRECISION => Decimal64(all, scale),
        4 | 8 | 16 if all <= DECIMAL128_MAX_PRECISION => Decimal128(all, scale),
        _ if all <= DECIMAL256_MAX_PRECISION => Decimal256(all, scale),
        _ => return None,
    })
}

fn wider(left: &DataType, right: &DataType) -> Option<DataType> {
    Some(if left.primitive_width()? >= right.primitive_width()? { left.clone() } else { right.clone() })
}

/// Returns the dataset's columns `projection` of `num_rows` rows; `arrays` are the fragment's columns. What `storing`
/// may hold instead of the dataset's types stays unchanged.
///
/// # Errors
///
/// [`Error::Cast`] for a value that does not fit: bytes that are not text, or a time beyond the finer unit's range.
/// [`Error::Decode`] for more text of a folder than can be read at once.
pub(super) fn conform(
    snapshot: &Snapshot,
    row_group: RowGroupRef,
    projection: &[usize],
    arrays: &[ArrayRef],
    num_rows: usize,
    storing: &dyn Storing,
) -> Result<RecordBatch> {
    let fragment = snapshot.fragment(row_group);
    let undecodable = |column: Option<String>, source: ParquetError| Error::Decode {
        url: fragment.object.url.clone(),
        row_group: row_group.index as usize,
        column,
        source: Box::new(source),
    };
    let mut roots: Vec<usize> = projection.iter().filter_map(|&column| fragment.columns[column]).collect();
    roots.sort_unstable();
    let mut columns = Vec::with_capacity(projection.len());
    let mut fields = Vec::with_capacity(projection.len());
    for &column in projection {
        let field = &snapshot.columns.fields()[column];
        let place = fragment.columns[column].and_then(|root| roots.binary_search(&root).ok());
        let array = match place.map(|place| &arrays[place]) {
            None => match fragment.constant(column) {
                Some(constant) => constant.to_array(field.data_type(), num_rows).map_err(|_| {
                    undecodable(Some(field.name().clone()), ParquetError::General(TOO_MUCH_TEXT.to_owned()))
                })?,
                None => new_null_array(field.data_type(), num_rows),
            },
            Some(array) if storing.may_hold(array, field.data_type()) => Arc::clone(array),
            Some(array) => checked_cast(array, field.data_type()).map_err(|source| Error::Cast {
                url: fragment.object.url.clone(),
                row_group: row_group.index as usize,
                column: inner::shown(field.name()).into_owned(),
                to: field.data_type().clone(),
                source: Box::new(source),
            })?,
        };
        fields.push(field_of(field, &array));
        columns.push(array);
    }
    let schema = Arc::new(Schema::new_with_metadata(fields, snapshot.schema.metadata().clone()));
    batch::of_columns(schema, columns, num_rows).map_err(|source| undecodable(None, source.into()))
}

/// Returns a column's field with the type of `array`, which has some of its rows.
pub(crate) fn field_of(field: &FieldRef, array: &ArrayRef) -> FieldRef {
    match array.data_type() {
        same if same == field.data_type() => Arc::clone(field),
        other => Arc::new(Field::clone(field).with_data_type(other.clone())),
    }
}

fn checked_cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    check_map_keys(array)?;
    cast::widen(array, to)
}

/// Refuses NULL keys in maps, which a file may contain but no consumer of Arrow expects: pyarrow aborts.
fn check_map_keys(array: &ArrayRef) -> Result<(), ArrowError> {
    match array.data_type() {
        DataType::Map(..) => {
            let map = array.as_map();
            if map.keys().null_count() > 0 || map.entries().null_count() > 0 {
                return Err(ArrowError::InvalidArgumentError("a key of a map is NULL".into()));
            }
            check_map_keys(map.values())
        }
        DataType::List(_) => check_map_keys(array.as_list::<i32>().values()),
        DataType::LargeList(_) => check_map_keys(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => check_map_keys(array.as_fixed_size_list().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().try_for_each(check_map_keys),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_widen_only_where_every_value_fits() {
        use DataType::{Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt32, UInt64, Utf8};
        let unified = |a: &DataType, b: &DataType| unify_types(a, b).ok();
        assert_eq!(unified(&Int32, &Int64), Some(Int64));
        assert_eq!(unified(&UInt8, &Int8), Some(Int16));
        assert_eq!(unified(&UInt8, &Int32), Some(Int32));
        assert_eq!(unified(&UInt32, &Int32), Some(Int64));
        assert_eq!(unified(&Float32, &Float64), Some(Float64));
        for (a, b) in [(&UInt64, &Int64), (&Int64, &Float64), (&Utf8, &Int32)] {
            assert_eq!(unified(a, b), None);
        }
    }

    #[test]
    fn times_and_decimals_are_as_fine_as_the_finer() {
        use DataType::{
            Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration, Time32, Time64, Timestamp,
        };
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let both = |a: &DataType, b: &DataType, wide: Option<DataType>| {
            assert_eq!(unify_types(a, b).ok(), wide, "{a} and {b}");
            assert_eq!(unify_types(b, a).ok(), wide, "{b} and {a}");
        };
        both(&Duration(Second), &Duration(Microsecond), Some(Duration(Microsecond)));
        both(&Time32(Second), &Time32(Millisecond), Some(Time32(Millisecond)));
        both(&Time32(Second), &Time64(Microsecond), Some(Time64(Microsecond)));
        both(&Time64(Nanosecond), &Time64(Microsecond), Some(Time64(Nanosecond)));
        both(&Timestamp(Second, None), &Timestamp(Nanosecond, None), Some(Timestamp(Nanosecond, None)));
        both(&Date32, &Date64, Some(Date64));
        both(&Decimal32(9, 2), &Decimal32(9, 3), Some(Decimal64(10, 3)));
        both(&Decimal64(18, 0), &Decimal32(2, 1), Some(Decimal128(19, 1)));
        both(&Decimal128(38, 0), &Decimal128(38, 38), Some(Decimal256(76, 38)));
        both(&Decimal256(5, 2), &Decimal32(9, 2), Some(Decimal256(9, 2)));
        both(&Decimal256(76, 0), &Decimal32(2, 1), None);
        both(&Duration(Second), &Time32(Second), None);
        both(&Decimal32(9, 2), &DataType::Int8, None);
    }

    #[test]
    fn the_first_decides_what_bytes_and_instants_are() {
        use DataType::{Binary, Date32, Date64, FixedSizeBinary, LargeBinary, LargeUtf8, Timestamp, Utf8};
        use TimeUnit::{Microsecond, Millisecond, Second};
        let at = |unit, zone: Option<&str>| Timestamp(unit, zone.map(Into::into));
        let dictionary = |values| DataType::Dictionary(Box::new(DataType::Int32), Box::new(values));
        for (first, other, unified) in [
            (Utf8, Binary, Some(Utf8)),
            (Binary, Utf8, Some(Binary)),
            (Utf8, LargeBinary, Some(LargeUtf8)),
            (LargeBinary, Utf8, Some(LargeBinary)),
            (dictionary(Utf8), dictionary(Binary), Some(Utf8)),
            (Binary, dictionary(Utf8), Some(Binary)),
            (FixedSizeBinary(2), FixedSizeBinary(3), Some(Binary)),
            (LargeBinary, FixedSizeBinary(3), Some(LargeBinary)),
            (Utf8, FixedSizeBinary(3), None),
            (FixedSizeBinary(3), Utf8, None),
            (at(Second, Some("Asia/Tokyo")), at(Microsecond, Some("UTC")), Some(at(Microsecond, Some("Asia/Tokyo")))),
            (at(Second, Some("UTC")), at(Microsecond, None), Some(at(Microsecond, Some("UTC")))),
            (at(Microsecond, None), at(Second, Some("+00:00")), Some(at(Microsecond, None))),
            (at(Second, Some("Asia/Tokyo")), at(Second, None), None),
            (at(Second, None), at(Second, Some("Asia/Tokyo")), None),
            (at(Second, None), Date32, Some(at(Second, None))),
            (at(Second, None), Date64, None),
            (at(Millisecond, Some("UTC")), Date64, Some(at(Millisecond, Some("UTC")))),
            (at(Millisecond, Some("Asia/Tokyo")), Date32, None),
            (Date32, at(Second, None), None),
        ] {
            assert_eq!(unify_types(&first, &other).ok(), unified, "{first}, then {other}");
        }
    }

    #[test]
    fn lists_of_different_lengths_are_lists() {
        let item = |kind| Arc::new(Field::new("item", kind, true));
        let (narrow, wide) = (item(DataType::Int32), item(DataType::Int64));
        let fixed = |len| DataType::FixedSizeList(Arc::clone(&narrow), len);
        let (list, large) = (DataType::List(Arc::clone(&wide)), DataType::LargeList(Arc::clone(&wide)));
        assert_eq!(unify_types(&fixed(2), &fixed(3)).ok(), Some(DataType::List(Arc::clone(&narrow))));
        assert_eq!(unify_types(&fixed(2), &list).ok(), Some(list.clone()));
        assert_eq!(unify_types(&list, &fixed(2)).ok(), Some(list));
        assert_eq!(unify_types(&large, &fixed(2)).ok(), Some(large.clone()));
        assert_eq!(unify_types(&fixed(2), &fixed(2)).ok(), Some(fixed(2)));
    }

    #[test]
    fn a_clash_inside_a_struct_names_the_whole_path() {
        let structs = |item: DataType| Field::new_struct("meta", vec![Field::new("lang", item, true)], true);
        let clash = unify_fields(&structs(DataType::Utf8), &structs(DataType::Int32)).err().unwrap();
        assert_eq!(clash.column, "meta.lang");
    }
}
