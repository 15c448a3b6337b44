//! Valid objects as initial fuzzing inputs.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression, Encoding, Type as PhysicalType};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{WriterProperties, WriterVersion};

use super::{CODECS, ChunkShape, Tail, kinds, open};

const NUM_ROWS: usize = 40;

/// How a column is written.
#[derive(Clone, Copy)]
struct Style {
    codec: usize,
    version: WriterVersion,
    has_dictionary: bool,
    /// Whether integers and text are delta-encoded.
    has_differences: bool,
}

/// Repeating values, some of them NULL if that is allowed.
fn values(data_type: &DataType, is_nullable: bool) -> ArrayRef {
    let numbers = (0..NUM_ROWS).map(|row| i32::try_from(row % 11).unwrap());
    let array: ArrayRef = match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let lens = (0..NUM_ROWS).map(|row| match data_type {
                DataType::FixedSizeList(_, len) => usize::try_from(*len).unwrap(),
                _ => row % 4,
            });
            let lens: Vec<usize> = lens.collect();
            let items = take(&values(item.data_type(), item.is_nullable()), lens.iter().sum());
            return of_lists(data_type, &lens, items, is_nullable);
        }
        DataType::FixedSizeBinary(_) => {
            let texts = numbers.map(|number| format!("{number:03}"));
            Arc::new(arrow_array::FixedSizeBinaryArray::try_from_iter(texts).unwrap())
        }
        DataType::Struct(fields) => {
            let children = fields.iter().map(|field| values(field.data_type(), field.is_nullable())).collect();
            let nulls = is_nullable.then(|| (0..NUM_ROWS).map(|row| row % 7 != 2).collect());
            return Arc::new(arrow_array::StructArray::new(fields.clone(), children, nulls));
        }
        DataType::Boolean => {
            Arc::new((0..NUM_ROWS).map(|row| Some(row % 3 == 0)).collect::<arrow_array::BooleanArray>())
        }
        other => arrow_cast::cast(&(Arc::new(Int32Array::from_iter(numbers)) as ArrayRef), other).unwrap(),
    };
    with_nulls(array, is_nullable)
}

fn take(values: &ArrayRef, len: usize) -> ArrayRef {
    let places = arrow_array::UInt32Array::from_iter_values((0..u32::try_from(len).unwrap()).map(|place| place % 40));
    arrow_select::take::take(values, &places, None).unwrap()
}

fn of_lists(data_type: &DataType, lens: &[usize], items: ArrayRef, is_nullable: bool) -> ArrayRef {
    use arrow_array::{FixedSizeListArray, LargeListArray, ListArray};
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    let nulls = is_nullable.then(|| NullBuffer::from_iter((0..lens.len()).map(|row| row % 5 != 3)));
    match data_type {
        DataType::List(item) => {
            let offsets = OffsetBuffer::from_lengths(lens.iter().copied());
            Arc::new(ListArray::new(Arc::clone(item), offsets, items, nulls))
        }
        DataType::LargeList(item) => {
            let offsets = OffsetBuffer::from_lengths(lens.iter().copied());
            Arc::new(LargeListArray::new(Arc::clone(item), offsets, items, nulls))
        }
        DataType::FixedSizeList(item, len) => Arc::new(FixedSizeListArray::new(Arc::clone(item), *len, items, nulls)),
        other => panic!("{other} is no list"),
    }
}

fn with_nulls(array: ArrayRef, is_nullable: bool) -> ArrayRef {
    if !is_nullable {
        return array;
    }
    let nulls = new_null_array(array.data_type(), NUM_ROWS);
    let is_null = (0..NUM_ROWS).map(|row| Some(row % 5 == 3)).collect();
    arrow_select::zip::zip(&is_null, &nulls, &array).unwrap()
}

fn write(columns: Vec<(&str, ArrayRef, bool)>, style: Style, codec: Compression) -> (Vec<u8>, ParquetMetaData) {
    let field = |(name, array, is_nullable): &(&str, ArrayRef, bool)| {
        Field::new(*name, array.data_type().clone(), *is_nullable)
    };
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|column| column.1).collect();
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &RecordBatchOptions::new()).unwrap();
    let mut properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(style.version)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(style.has_dictionary)
        .set_data_page_row_count_limit(NUM_ROWS / 3)
        .set_write_batch_size(8)
        .set_bloom_filter_enabled(style.has_dictionary)
        .set_bloom_filter_max_ndv(20);
    let leaves = ArrowSchemaConverter::new().convert(&schema).unwrap();
    for column in leaves.columns().iter().filter(|_| style.has_differences) {
        let encoding = match (column.physical_type(), style.version) {
            (PhysicalType::INT32 | PhysicalType::INT64, _) => Encoding::DELTA_BINARY_PACKED,
            (PhysicalType::BYTE_ARRAY, WriterVersion::PARQUET_1_0) => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            (PhysicalType::BYTE_ARRAY, _) => Encoding::DELTA_BYTE_ARRAY,
            (PhysicalType::FLOAT | PhysicalType::DOUBLE, _) => Encoding::BYTE_STREAM_SPLIT,
            _ => continue,
        };
        properties = properties.set_column_encoding(column.path().clone(), encoding);
    }
    let mut body = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut body, schema, Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    let metadata = writer.close().unwrap();
    (body, metadata)
}

fn styles() -> Vec<Style> {
    let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let styles = versions.into_iter().flat_map(|version| {
        [(true, false), (false, false), (false, true)].map(|(has_dictionary, has_differences)| {
            let codec = usize::from(has_dictionary) * 2;
            Style { codec, version, has_dictionary, has_differences }
        })
    });
    styles.flat_map(|style| [Style { codec: 0, ..style }, style]).collect()
}

/// Returns chunks of every kind of column.
pub(crate) fn pages() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (kind, (data_type, is_nullable)) in kinds().into_iter().enumerate() {
        for (number, style) in styles().into_iter().enumerate() {
            // The other codecs, in turn.
            let codec = if style.codec == 0 { 0 } else { 1 + (kind + number) % (CODECS.len() - 1) };
            let array = values(&data_type, is_nullable);
            let (body, metadata) = write(vec![("x", array, is_nullable)], style, CODECS[codec]());
            let chunk = metadata.row_group(0).column(0);
            let (start, len) = chunk.byte_range();
            let (start, len) = (usize::try_from(start).unwrap(), usize::try_from(len).unwrap());
            let data_start = chunk.dictionary_page_offset().map_or(0, |first| chunk.data_page_offset() - first);
            let shape = ChunkShape {
                kind: u8::try_from(kind).unwrap(),
                codec: u8::try_from(codec).unwrap(),
                num_rows: u16::try_from(NUM_ROWS).unwrap(),
                num_values: u16::try_from(chunk.num_values()).unwrap(),
                data_start: u16::try_from(data_start).unwrap(),
                rows: u8::try_from(number).unwrap(),
            };
            inputs.push(shape.with_pages(&body[start..start + len]));
        }
    }
    inputs
}

/// Returns whole objects of some columns.
fn bodies() -> Vec<(Vec<u8>, ParquetMetaData)> {
    let kinds = kinds();
    styles()
        .into_iter()
        .enumerate()
        .map(|(number, style)| {
            let of = |place: usize| {
                let (data_type, is_nullable) = &kinds[(place * 7 + number * 3) % kinds.len()];
                (values(data_type, *is_nullable), *is_nullable)
            };
            let [(a, a_null), (b, b_null), (c, c_null)] = [of(0), of(1), of(2)];
            write(vec![("a", a, a_null), ("b", b, b_null), ("c", c, c_null)], style, CODECS[style.codec]())
        })
        .collect()
}

fn footer_bytes(body: &[u8]) -> usize {
    u32::from_le_bytes(*body[..body.len() - 4].last_chunk().unwrap()) as usize
}

/// Returns objects in the target's input format.
pub(crate) fn objects() -> Vec<Vec<u8>> {
    let input = |(body, _): (Vec<u8>, _)| {
        let end = body.len() - 8;
        let before = u16::try_from(end - footer_bytes(&body)).unwrap();
        [&before.to_le_bytes()[..], &body[..end]].concat()
    };
    bodies().into_iter().map(input).collect()
}

/// Returns footers, indexes and bloom filters.
pub(crate) fn footers() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (body, metadata) in bodies() {
        let end = body.len() - 8;
        inputs.push(body[end - footer_bytes(&body)..end].to_vec());
        for column in metadata.row_group(0).columns() {
            let parts = [
                column.offset_index_offset().zip(column.offset_index_length()),
                column.column_index_offset().zip(column.column_index_length()),
                column.bloom_filter_offset().zip(column.bloom_filter_length()),
            ];
            for (start, len) in parts.into_iter().flatten() {
                let start = usize::try_from(start).unwrap();
                inputs.push(body[start..start + usize::try_from(len).unwrap()].to_vec());
            }
        }
    }
    inputs
}

/// Returns manifests of one object, and their contents.
pub(crate) fn manifests() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (body, _) in bodies().into_iter().take(3) {
        let size = body.len();
        let snapshot = open(&Bytes::from(body)).unwrap().unwrap();
        let packed = &snapshot.fragments[0].packed;
        let header = format!(
            r#"{{"stores":[["Local",{{}}],[{{"S3":"s3://b"}},{{"k":"61"}}]],"objects":[[1,"a/x.parquet",{size},"\"t\"","x.parquet",{}]],"splits":[["train",[0]]],"fingerprints":["5f3a"],"commits":[null]}}"#,
            packed.len()
        );
        let len = u16::try_from(header.len()).unwrap();
        inputs.push([&len.to_le_bytes()[..], header.as_bytes(), packed].concat());
        inputs.push(packed.to_vec());
        let small = Tail { size: 100, pieces: vec![(50..60, Bytes::from_static(b"0123456789"))] };
        inputs.push(small.pack().to_vec());
    }
    inputs
}
