//! Every encoding, with every codec and both page versions, as written by the `parquet` crate: results equal those of
//! its own reader.

use std::sync::Arc;

use arrow_array::types::{Decimal128Type, UInt64Type};
use arrow_array::{FixedSizeBinaryArray, ListArray};
use arrow_buffer::OffsetBuffer;
use arrow_select::concat::{concat, concat_batches};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{BrotliLevel, GzipLevel};
use parquet::file::properties::EnabledStatistics;

use super::*;

const NUM_ROWS: usize = 400;

/// Rows that include some whole pages, and some rows of others.
const SOME: [std::ops::Range<u32>; 3] = [3..40, 100..101, 222..399];

const INTEGERS: [&str; 5] = ["int32", "int64", "uint64", "date", "when"];
const FLOATS: [&str; 2] = ["float32", "float64"];
const FIXED: [&str; 3] = ["half", "decimal", "fixed"];
const TEXTS: [&str; 3] = ["text", "large", "bytes"];
const FLAGS: [&str; 1] = ["flag"];

/// Encodings, `None` for a dictionary, and their columns.
fn encodings() -> [(Option<Encoding>, Vec<&'static str>); 7] {
    [
        (Some(Encoding::PLAIN), [&INTEGERS[..], &FLOATS, &FIXED, &TEXTS, &FLAGS].concat()),
        (Some(Encoding::RLE), FLAGS.to_vec()),
        (Some(Encoding::DELTA_BINARY_PACKED), INTEGERS.to_vec()),
        (Some(Encoding::DELTA_LENGTH_BYTE_ARRAY), TEXTS.to_vec()),
        (Some(Encoding::DELTA_BYTE_ARRAY), [&TEXTS[..], &FIXED].concat()),
        (Some(Encoding::BYTE_STREAM_SPLIT), [&INTEGERS[..], &FLOATS, &FIXED].concat()),
        (None, [&INTEGERS[..], &FLOATS, &FIXED, &TEXTS].concat()),
    ]
}

fn codecs() -> [Compression; 7] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::try_new(1).unwrap()),
        Compression::BROTLI(BrotliLevel::try_new(1).unwrap()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ]
}

/// Returns values of a named kind, of which some percentage is NULL.
fn leaf(name: &str, nulls: u64) -> ArrayRef {
    let shape = Shape {
        seed: 7,
        num_rows: NUM_ROWS,
        nulls,
        num_distinct: 100,
        longest_list: 0,
        codec: Compression::UNCOMPRESSED,
        version: WriterVersion::PARQUET_1_0,
        page_rows: 1,
        dictionary_bytes: None,
        has_differences: false,
        has_index: false,
    };
    let mut noise = Noise(nulls);
    let noise = &mut noise;
    match name {
        "int32" => shape.numbers::<Int32Type>(noise, |value| i32::try_from(value).unwrap() - (1 << 30)),
        "int64" => shape.numbers::<Int64Type>(noise, |value| (value - (1 << 30)) << 31),
        "uint64" => shape.numbers::<UInt64Type>(noise, |value| u64::MAX - u64::try_from(value).unwrap()),
        "date" => shape.numbers::<Date32Type>(noise, |value| i32::try_from(value % 30_000).unwrap()),
        "when" => shape.numbers::<TimestampMicrosecondType>(noise, |value| value << 20),
        "float32" => shape.numbers::<Float32Type>(noise, |value| value as f32 / 3.0),
        "float64" => shape.numbers::<Float64Type>(noise, |value| value as f64 / -3.0),
        "half" => shape.halves(noise),
        "decimal" => {
            let units = shape.numbers::<Decimal128Type>(noise, |value| (i128::from(value) - (1 << 30)) << 60);
            Arc::new(units.as_primitive::<Decimal128Type>().clone().with_precision_and_scale(38, 4).unwrap())
        }
        "flag" => {
            let flags = (0..NUM_ROWS).map(|_| shape.value(noise).map(|value| value % 3 == 0));
            Arc::new(flags.collect::<BooleanArray>())
        }
        "fixed" => {
            let values = (0..NUM_ROWS).map(|_| shape.value(noise).map(|value| value.to_be_bytes()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, 8).unwrap())
        }
        "text" | "large" | "bytes" => {
            let texts: LargeStringArray = (0..NUM_ROWS).map(|_| shape.text(noise)).collect();
            let data_type = match name {
                "text" => DataType::Utf8,
                "large" => DataType::LargeUtf8,
                _ => DataType::Binary,
            };
            arrow_cast::cast(&texts, &data_type).unwrap()
        }
        other => unreachable!("{other}"),
    }
}

/// Returns the named values alone, without NULLs, and in lists.
fn batch(names: &[&str]) -> RecordBatch {
    let mut columns: Vec<(String, ArrayRef, bool)> = Vec::new();
    for name in names {
        let (optional, required) = (leaf(name, 20), leaf(name, 0));
        let item = Arc::new(Field::new("item", optional.data_type().clone(), true));
        let mut lengths = [2, 0, 1, 1].repeat(NUM_ROWS / 4);
        lengths.rotate_left(1);
        let lists = ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::clone(&optional), None);
        columns.push(((*name).to_owned(), optional, true));
        columns.push((format!("{name}, required"), required, false));
        columns.push((format!("{name}, in lists"), Arc::new(lists), true));
    }
    let fields =
        columns.iter().map(|(name, array, is_nullable)| Field::new(name, array.data_type().clone(), *is_nullable));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|column| column.1).collect()).unwrap()
}

fn written(batch: &RecordBatch, properties: WriterProperties) -> Bytes {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap().into()
}

fn properties(
    encoding: Option<Encoding>,
    codec: Compression,
    version: WriterVersion,
    has_index: bool,
) -> WriterProperties {
    let statistics = if has_index { EnabledStatistics::Page } else { EnabledStatistics::Chunk };
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_data_page_row_count_limit(30)
        .set_write_batch_size(10)
        .set_statistics_enabled(statistics)
        .set_offset_index_disabled(!has_index)
        .set_dictionary_enabled(encoding.is_none());
    match encoding {
        Some(encoding) => properties.set_encoding(encoding).build(),
        None => properties.build(),
    }
}

fn read_by_the_crate(body: &Bytes) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(body.clone()).unwrap().build().unwrap();
    let batches = reader.collect::<Result<Vec<_>, _>>().unwrap();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// Checks that every leaf is stored as requested.
fn check_encoding(snapshot: &Snapshot, encoding: Option<Encoding>, version: WriterVersion) {
    for column in snapshot.fragment(snapshot.row_groups[0]).row_group(0).columns() {
        // The writer has dictionaries of these only in files of the newer version.
        let has_none = column.column_type() == parquet::basic::Type::FIXED_LEN_BYTE_ARRAY;
        if encoding.is_none() && has_none && version == WriterVersion::PARQUET_1_0 {
            continue;
        }
        let is_used = column.encodings().any(|used| match encoding {
            Some(encoding) => used == encoding,
            None => matches!(used, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY),
        });
        assert!(is_used, "{}: {encoding:?}", column.column_path());
    }
}

#[test]
fn every_encoding_is_what_the_parquet_crate_reads_whatever_the_codec() {
    for (encoding, names) in encodings() {
        let batch = batch(&names);
        for (turn, codec) in codecs().into_iter().enumerate() {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                // Every second file has an index; for each codec, that of one version.
                let has_index = (turn % 2 == 0) == (version == WriterVersion::PARQUET_1_0);
                let said = format!("{encoding:?}, {codec}, {version:?}");
                let body = written(&batch, properties(encoding, codec, version, has_index));
                let snapshot = open(&body).unwrap();
                check_encoding(&snapshot, encoding, version);
                let expected = read_by_the_crate(&body);
                for rows in [RowSet::All, RowSet::Runs(SOME.into())] {
                    let trial = Trial::new(&snapshot, 0, &body, rows.clone()).unwrap();
                    let found = trial.at_once(Decoders::Own).unwrap();
                    for (root, field) in snapshot.schema.fields().iter().enumerate() {
                        let wanted = rows.runs(0..u32::try_from(NUM_ROWS).unwrap());
                        let wanted = wanted.map(|run| expected.column(root).slice(run.start as usize, run.len()));
                        let wanted: Vec<ArrayRef> = wanted.collect();
                        let wanted = concat(&wanted.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap();
                        assert!(are_same(found.column(root), &wanted), "{said}: {field} of {rows:?}");
                        let name = field.name().split(',').next().unwrap();
                        let is_ours = match encoding {
                            Some(Encoding::DELTA_BYTE_ARRAY) => TEXTS.contains(&name),
                            _ => name == "half" || !FIXED.contains(&name),
                        };
                        let own = read_own(&snapshot, root, &body, &rows, NUM_ROWS);
                        let is_read = own.is_some_and(|own| own.is_ok());
                        assert_eq!(is_read, is_ours, "{said}: {field} of {rows:?}");
                    }
                }
                assert_eq!(expected.columns(), batch.columns(), "{said}");
            }
        }
    }
}
