//! The Arrow types of an object's columns, derived once for all objects with the same schema.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_cast::can_cast_types;
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, IntervalUnit, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::LogicalType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::schema::types::{ColumnDescPtr, SchemaDescPtr};

use super::inner::{self, Inner, num_leaves};
use super::zones::with_zones;
use crate::batch;

/// Maximum number of cached schemas: datasets have one, or a few over time.
const MAX_KNOWN: usize = 16;

/// The schemas of the objects opened so far.
#[derive(Debug, Default)]
pub(super) struct Schemas {
    known: Mutex<Vec<Arc<Known>>>,
}

/// A schema of some objects: its source, and the result.
#[derive(Debug)]
struct Known {
    bytes: Bytes,
    key_values: Option<Vec<KeyValue>>,
    parquet: SchemaDescPtr,
    types: Types,
}

/// How the columns of an object are read.
#[derive(Debug, Clone)]
pub(super) struct Types {
    /// Footer, offset index, and the Arrow types to decode to.
    pub(super) reader: ArrowReaderMetadata,
    /// Those types, with the extension types that Parquet's logical types stand for.
    pub(super) schema: SchemaRef,
    /// The index of each root column's first leaf, and finally the number of leaves.
    pub(super) first_leaves: Arc<[u32]>,
    /// The fields of structs.
    pub(super) inner: Arc<[Inner]>,
    /// A name that two columns share.
    pub(super) duplicate: Option<String>,
}

impl Schemas {
    /// Returns the Parquet schema for these bytes of a footer.
    pub(super) fn parquet(&self, bytes: &[u8]) -> Option<SchemaDescPtr> {
        self.find(|known| known.bytes == bytes).map(|known| Arc::clone(&known.parquet))
    }

    /// Derives the types of an object; `bytes` are its schema's in the footer.
    ///
    /// # Errors
    ///
    /// The decoder's error for a schema without Arrow types.
    pub(super) fn types(&self, metadata: Arc<ParquetMetaData>, bytes: Option<Bytes>) -> Result<Types, ParquetError> {
        let Some(bytes) = bytes else { return Types::derive(metadata) };
        let file = metadata.file_metadata();
        let known = self.find(|known| known.bytes == bytes && known.key_values.as_ref() == file.key_value_metadata());
        if let Some(known) = known {
            let options = ArrowReaderOptions::new().with_schema(Arc::clone(known.types.reader.schema()));
            if let Ok(reader) = ArrowReaderMetadata::try_new(Arc::clone(&metadata), options) {
                return Ok(Types { reader, ..known.types.clone() });
            }
        }
        let (parquet, key_values) = (file.schema_descr_ptr(), file.key_value_metadata().cloned());
        let mut types = Types::derive(metadata)?;
        if let Some(known) = self.find(|known| known.types.has_columns_of(&types)) {
            // Only their metadata differ.
            types.inner = Arc::clone(&known.types.inner);
        }
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_KNOWN {
            // Not a slice of a whole tail.
            let bytes = Bytes::copy_from_slice(&bytes);
            all.push(Arc::new(Known { bytes, key_values, parquet, types: types.clone() }));
        }
        Ok(types)
    }

    fn find(&self, is_wanted: impl Fn(&Known) -> bool) -> Option<Arc<Known>> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|known| is_wanted(known)).cloned()
    }
}

impl Types {
    fn has_columns_of(&self, other: &Self) -> bool {
        self.first_leaves == other.first_leaves && self.reader.schema().fields() == other.reader.schema().fields()
    }

    fn derive(metadata: Arc<ParquetMetaData>) -> Result<Self, ParquetError> {
        let load = |options| ArrowReaderMetadata::try_new(Arc::clone(&metadata), options);
        let mut reader = load(ArrowReaderOptions::new())?;
        let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let pair = pairs.rev().find(|pair| pair.key == ARROW_SCHEMA_META_KEY);
        let readable = match pair {
            Some(pair) => {
                let told = pair.value.as_deref().unwrap_or_default();
                with_zones(readable(reader.schema(), Told::ByArrow), told)
            }
            None => readable(reader.schema(), Told::ByParquet),
        };
        if readable != **reader.schema() {
            reader = load(ArrowReaderOptions::new().with_schema(Arc::new(readable)))?;
        }
        let mut leaves = reader.parquet_schema().columns().iter();
        let fields = with_extensions(reader.schema().fields(), &mut leaves);
        let schema = Arc::new(Schema::new_with_metadata(fields, reader.schema().metadata().clone()));
        let (duplicate, first_leaves) = (duplicate(reader.schema().fields()), first_leaves(&reader));
        let inner = inner_columns(&reader, &first_leaves);
        Ok(Self { reader, schema, first_leaves, inner, duplicate })
    }
}

/// Returns the qualified name that two of `fields`, or of the fields within one of them, share.
fn duplicate(fields: &Fields) -> Option<String> {
    let mut names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Some(pair[0].to_owned());
    }
    let within = |field: &FieldRef| {
        let mut data_type = field.data_type();
        loop {
            data_type = match data_type {
                DataType::Struct(fields) => return duplicate(fields),
                DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type(),
                DataType::Map(entries, _) => entries.data_type(),
                _ => return None,
            };
        }
    };
    fields.iter().find_map(|field| within(field).map(|name| format!("{}.{name}", field.name())))
}

/// Returns the index of each root column's first leaf, and finally the number of leaves.
fn first_leaves(reader: &ArrowReaderMetadata) -> Arc<[u32]> {
    let schema = reader.parquet_schema();
    let num_roots = schema.root_schema().get_fields().len();
    let mut first_leaves = vec![0_u32; num_roots + 1];
    for leaf in 0..schema.num_columns() {
        first_leaves[schema.get_column_root_idx(leaf) + 1] += 1;
    }
    for root in 0..num_roots {
        first_leaves[root + 1] += first_leaves[root];
    }
    first_leaves.into()
}

/// Returns the fields of the structs in all columns, with their leaves among those of the object.
fn inner_columns(reader: &ArrowReaderMetadata, first_leaves: &[u32]) -> Arc<[Inner]> {
    let columns = reader.schema().fields().iter().zip(first_leaves.windows(2));
    let of_column = |(column, leaves): (&FieldRef, &[u32])| {
        let (first, end) = (leaves[0] as usize, leaves[1] as usize);
        // A type may have another number of leaves in Arrow.
        let inner = if num_leaves(column.data_type()) == end - first { inner::of_column(column) } else { Vec::new() };
        inner.into_iter().map(move |inner| {
            let leaves = first + inner.leaves.start..first + inner.leaves.end;
            Inner { leaves, ..inner }
        })
    };
    columns.flat_map(of_column).collect()
}

/// Returns `fields` with Arrow's extension types for Parquet's own logical types; `leaves` are the Parquet columns
/// below them, in order.
fn with_extensions<'a>(fields: &Fields, leaves: &mut impl Iterator<Item = &'a ColumnDescPtr>) -> Fields {
    fields.iter().map(|field| with_extension(field, leaves)).collect()
}

fn with_extension<'a>(field: &FieldRef, leaves: &mut impl Iterator<Item = &'a ColumnDescPtr>) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(with_extension(item, leaves)),
        DataType::LargeList(item) => DataType::LargeList(with_extension(item, leaves)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(with_extension(item, leaves), *len),
        DataType::Map(entries, is_sorted) => DataType::Map(with_extension(entries, leaves), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(with_extensions(fields, leaves)),
        leaf => {
            let name = match (leaf, leaves.next().and_then(|column| column.logical_type_ref())) {
                (DataType::FixedSizeBinary(16), Some(LogicalType::Uuid)) => "arrow.uuid",
                (DataType::Utf8 | DataType::LargeUtf8, Some(LogicalType::Json)) => "arrow.json",
                _ => return Arc::clone(field),
            };
            if field.extension_type_name().is_some() {
                return Arc::clone(field);
            }
            let mut metadata = field.metadata().clone();
            metadata.insert(EXTENSION_TYPE_NAME_KEY.into(), name.into());
            metadata.insert(EXTENSION_TYPE_METADATA_KEY.into(), String::new());
            return Arc::new(Field::clone(field).with_metadata(metadata));
        }
    };
    if data_type == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(data_type))
    }
}

/// The source of an object's Arrow types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Its writer's own Arrow schema.
    ByArrow,
    /// Parquet's types.
    ByParquet,
}

/// Returns `schema` with the types that batches have.
///
/// Views would pin whole pages in the shuffle, so strings, binary and lists are plain. Dictionary keys are wide enough
/// for the values of all row groups; dictionaries that the decoder does not support become plain values.
fn readable(schema: &Schema, told: Told) -> Schema {
    let fields: Fields = schema.fields().iter().map(|field| readable_field(field, told)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// Returns the type that values from elsewhere than a file have in batches: the one that [`readable`] gives to those of
/// files, if there is a cast to it.
pub(crate) fn plain_type(data_type: &DataType) -> DataType {
    let plain = readable_type(data_type, Told::ByArrow);
    if plain != *data_type && can_cast_types(data_type, &plain) { plain } else { data_type.clone() }
}

/// Returns rows of other libraries with the types that batches have.
///
/// # Errors
///
/// If a column is too long for the offsets of its type.
pub fn plain_rows(schema: &SchemaRef, batches: Vec<RecordBatch>) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    let plain = |field: &FieldRef| field.as_ref().clone().with_data_type(plain_type(field.data_type()));
    let fields: Vec<Field> = schema.fields().iter().map(plain).collect();
    let plain = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    if plain == *schema {
        return Ok((plain, batches));
    }
    let cast = |batch: RecordBatch| {
        let columns = batch.columns().iter().zip(plain.fields());
        let columns = columns.map(|(column, field)| arrow_cast::cast(column, field.data_type()));
        batch::of_columns(Arc::clone(&plain), columns.collect::<Result<_, _>>()?, batch.num_rows())
    };
    let batches = batches.into_iter().map(cast).collect::<Result<_, _>>()?;
    Ok((plain, batches))
}

fn readable_field(field: &FieldRef, told: Told) -> FieldRef {
    let data_type = readable_type(field.data_type(), told);
    if data_type == *field.data_type() {
        Arc::clone(field)
    } else {
        Arc::new(Field::clone(field).with_data_type(data_type))
    }
}

/// Returns whether the decoder supports dictionaries of these values.
fn has_dictionary_decoder(values: &DataType) -> bool {
    match values {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => true,
        DataType::Float16 => false,
        number => number.is_integer() || number.is_floating() || number.is_temporal(),
    }
}

fn readable_type(data_type: &DataType, told: Told) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(index, values) => {
            let values = readable_type(values, told);
            let index = match **index {
                DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16 => DataType::Int32,
                ref wide => wide.clone(),
            };
            if has_dictionary_decoder(&values) {
                DataType::Dictionary(Box::new(index), Box::new(values))
            } else {
                values
            }
        }
        DataType::RunEndEncoded(_, values) => readable_type(values.data_type(), told),
        DataType::List(item) | DataType::ListView(item) => DataType::List(readable_field(item, told)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(readable_field(item, told)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(readable_field(item, told), *len),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| readable_field(field, told)).collect()),
        DataType::Map(entries, is_sorted) => DataType::Map(readable_field(entries, told), *is_sorted),
        // Months, days and milliseconds; the decoder assumes that there are no months.
        DataType::Interval(_) if told == Told::ByParquet => DataType::Interval(IntervalUnit::MonthDayNano),
        other => other.clone(),
    }
}
