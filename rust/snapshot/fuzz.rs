//! Fuzzes everything that reads objects: footers and indexes, pages, and their catalogue entries.

#[cfg(test)]
pub(crate) mod seeds;

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use object_store::path::Path;
use parquet::arrow::{ArrowSchemaConverter, encode_arrow_schema};
use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::bloom_filter::Sbbf;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, KeyValue, ParquetMetaDataBuilder, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::schema::types::SchemaDescPtr;
use sha2::{Digest, Sha256};

use super::find::Source;
use super::packed::Tail;
use super::types::Schemas;
use super::{Decoders, Fragment, RowGroupRef, Snapshot, Trial, manifest, pack, page_bounds, thrift};
use crate::decode::Misfit;
use crate::error::Result;
use crate::fuzz::Numbers;
use crate::rows::RowSet;
use crate::source::{Object, Store, StoreKey};
use crate::stream::shelved;

/// The bytes before the first page.
const MAGIC: &[u8] = b"PAR1";

/// Maximum rows of a row group to decode, whatever the footer claims.
const MAX_ROWS: u32 = 2000;

/// Memory limit for decoded pages of an object.
const MAX_MEMORY_BYTES: u64 = 64 << 20;

/// Maximum row groups of an object to examine.
const MAX_ROW_GROUPS: usize = 4;

/// Opens an object, without a request.
pub(crate) fn open(body: &Bytes) -> Result<Option<Arc<Snapshot>>> {
    let size = body.len() as u64;
    let (path, url) = (Path::from("x.parquet"), "s3://fuzz/x.parquet".to_owned());
    let object = Object { path, url, written: None, size_bytes: Some(size), e_tag: Some("1".into()) };
    let source = Source { store: 0, object, relative: "x.parquet".into() };
    let tail = Tail { size, pieces: vec![(0..size, body.clone())] };
    let Ok(fragment) = Fragment::try_new(&source, &tail, None, &Schemas::default(), 1 << 20)? else { return Ok(None) };
    let again = Fragment::of_packed(&source, &fragment.packed, &Schemas::default());
    assert!(again.is_some_and(|again| again.footer_digest == fragment.footer_digest), "a packed footer is another one");
    let store = Store::try_new(StoreKey::S3("s3://fuzz".into()), &Default::default())?;
    Snapshot::of_fragments(vec![store], vec![fragment], None).map(|snapshot| Some(Arc::new(snapshot)))
}

/// Opens an object whose footer is the end of the input, and whose bytes before that are its beginning; then queries
/// its indexes and decodes some rows.
pub fn objects(data: &[u8]) {
    let mut numbers = Numbers(data);
    let before = usize::from(numbers.short()).min(numbers.0.len());
    let footer_bytes = u32::try_from(numbers.0.len() - before).unwrap_or(u32::MAX);
    let body = Bytes::from([numbers.0, &footer_bytes.to_le_bytes()[..], MAGIC].concat());
    let Ok(Some(snapshot)) = open(&body) else { return };
    for (place, &row_group) in snapshot.row_groups.iter().enumerate().take(MAX_ROW_GROUPS) {
        ask(&snapshot, row_group, &body);
        let end = row_group.num_rows.min(MAX_ROWS);
        let runs = [0..end / 3, end / 2..end].into_iter().filter(|run| !run.is_empty());
        decode_and_compare(&snapshot, place, &body, RowSet::Runs(runs.collect()));
    }
}

/// Queries everything known about a row group without decoding it.
fn ask(snapshot: &Snapshot, row_group: RowGroupRef, body: &Bytes) {
    let fragment = snapshot.fragment(row_group);
    let spans = fragment.cut(row_group.index);
    assert!(spans.is_sorted() && spans.first() == Some(&0) && spans.iter().all(|&row| row < row_group.num_rows));
    fragment.decoded_bytes(row_group.index);
    for root in 0..fragment.reader.schema().fields().len() {
        let index = fragment.column_index_range(row_group.index, root).map(|range| bytes_of(body, &range));
        let bounds = index.and_then(|index| fragment.page_bounds(row_group.index, root, &index));
        if let Some(bounds) = bounds {
            assert!(bounds.mins.len() == bounds.first_rows.len() && bounds.maxes.len() == bounds.first_rows.len());
        }
    }
    for column in 0..snapshot.schema.fields().len() {
        fragment.column_bytes(column, row_group.index);
        fragment.decode_cost(column, row_group.index);
        fragment.null_count(column, row_group.index as usize);
    }
}

fn bytes_of(body: &Bytes, range: &Range<u64>) -> Bytes {
    let place = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(body.len());
    body.slice(place(range.start).min(place(range.end))..place(range.end))
}

/// Decodes with our own decoders and with the `parquet` crate. Their results agree, and so do their errors, since ours
/// leave to the crate what they do not accept. But the crate reads pages of which no row is wanted, and meaningless
/// compressed levels: if these are damaged, it gives some rows the values of others.
fn decode_and_compare(snapshot: &Arc<Snapshot>, place: usize, body: &Bytes, set: RowSet) {
    let trial = |set| Trial::new(snapshot, place, body, set).map(|trial| trial.within(MAX_MEMORY_BYTES));
    let (Some(whole), Some(trial)) = (trial(RowSet::All), trial(set)) else { return };
    for (column, root) in snapshot.fragment(trial.row_group()).columns.iter().enumerate() {
        let (trial, misfit) = (trial.clone().of_column(column), |trial: &Trial| trial.misfit((*root)?));
        let own = trial.at_once(Decoders::Own);
        compare_coded(&trial, &own);
        match (own, trial.at_once(Decoders::Parquet)) {
            (Ok(own), Ok(parquet)) => {
                compare_shelved(&trial, &own);
                let is_damaged_elsewhere = || misfit(&trial).is_none() && misfit(&whole).is_some();
                assert!(are_same(&own, &parquet) || is_damaged_elsewhere(), "{own:?} instead of {parquet:?}");
            }
            (Err(own), parquet) => {
                // When lists are left to the crate, it reads whole pages, and so notices what other rows lack.
                let is_damaged_elsewhere = || whole.clone().of_column(column).at_once(Decoders::Parquet).is_err();
                let means_nothing = || matches!(misfit(&trial), Some(Misfit::TOO_HIGH | Misfit::OF_NONE));
                let is_refused = parquet.is_err() || means_nothing() || is_damaged_elsewhere();
                assert!(is_refused, "only ours say {}", own.describe());
            }
            (Ok(_), Err(_)) => {}
        }
    }
    drop(trial.with_batch_rows(7).batches(Decoders::Own));
}

/// Reads text as dictionary keys: if that is possible, the result equals what was decoded at once.
fn compare_coded(trial: &Trial, rows: &Result<RecordBatch>) {
    for batch_rows in [usize::MAX, 7] {
        let Some(coded) = trial.clone().with_batch_rows(batch_rows).coded().filter(|coded| !coded.is_empty()) else {
            continue;
        };
        let coded = arrow_select::concat::concat_batches(&coded[0].schema(), &coded);
        match (coded, rows) {
            (Ok(coded), Ok(rows)) => assert!(are_same(&coded, rows), "{coded:?} instead of {rows:?}"),
            (coded, rows) => assert!(rows.is_err() && coded.is_err(), "{coded:?} instead of {rows:?}"),
        }
    }
}

/// Puts the rows of a trial on shelves, last first: the result equals what was decoded at once.
fn compare_shelved(trial: &Trial, rows: &RecordBatch) {
    let last_first: Vec<u32> = (0..).take(rows.num_rows()).collect::<Vec<u32>>().into_iter().rev().collect();
    let shelved = shelved(trial, &rows.schema(), last_first.clone(), 3);
    assert!(shelved.is_ok(), "only on shelves {:?}", shelved.err().map(|error| error.describe()));
    let expected = arrow_select::take::take_record_batch(rows, &UInt32Array::from(last_first));
    if let (Ok(shelved), Ok(expected)) = (shelved, expected) {
        assert!(are_same(&shelved, &expected), "{shelved:?} instead of {expected:?}");
    }
}

/// Returns whether batches are equal, treating all NaNs as equal.
fn are_same(left: &RecordBatch, right: &RecordBatch) -> bool {
    let options = FormatOptions::new().with_null("∅");
    let are_same = |left: &dyn Array, right: &dyn Array| {
        let texts = |array| ArrayFormatter::try_new(array, &options);
        let Ok((left_text, right_text)) = texts(left).and_then(|left| Ok((left, texts(right)?))) else { return false };
        left.data_type() == right.data_type()
            && left.len() == right.len()
            && (0..left.len()).all(|row| left_text.value(row).to_string() == right_text.value(row).to_string())
    };
    left == right || left.columns().iter().zip(right.columns()).all(|(left, right)| are_same(left, right))
}

/// Columns that our own decoders support, and some that they do not.
pub(crate) fn kinds() -> Vec<(DataType, bool)> {
    let item = |data_type, is_nullable| Arc::new(Field::new("element", data_type, is_nullable));
    let flat = [
        DataType::Int8,
        DataType::UInt16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Date32,
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::Boolean,
        DataType::FixedSizeBinary(3),
    ];
    let nested = [
        DataType::List(item(DataType::Int32, false)),
        DataType::List(item(DataType::Int64, true)),
        DataType::LargeList(item(DataType::Float32, true)),
        DataType::FixedSizeList(item(DataType::Float32, true), 3),
        DataType::FixedSizeList(item(DataType::Float32, false), 2),
        DataType::List(item(DataType::Utf8, true)),
        DataType::List(item(DataType::List(item(DataType::Int32, false)), true)),
    ];
    let of_one = |data_type, is_nullable| DataType::Struct([item(data_type, is_nullable)].into_iter().collect());
    let structs = [
        of_one(DataType::Int32, true),
        of_one(of_one(DataType::Utf8, true), true),
        of_one(DataType::List(item(DataType::Int32, true)), true),
        DataType::List(item(of_one(DataType::Boolean, true), true)),
        DataType::LargeList(item(DataType::List(item(of_one(DataType::Utf8, true), false)), true)),
        DataType::List(item(DataType::FixedSizeList(item(DataType::Float32, true), 2), true)),
    ];
    let kinds = flat.into_iter().chain(nested).chain(structs);
    kinds.flat_map(|data_type| [(data_type.clone(), true), (data_type, false)]).collect()
}

/// The codecs by their numbers in an input.
const CODECS: [fn() -> Compression; 7] = [
    || Compression::UNCOMPRESSED,
    || Compression::SNAPPY,
    || Compression::ZSTD(ZstdLevel::default()),
    || Compression::LZ4_RAW,
    || Compression::GZIP(GzipLevel::default()),
    || Compression::BROTLI(BrotliLevel::default()),
    || Compression::LZ4,
];

/// What the first bytes of an input say about the chunk that follows.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChunkShape {
    pub(crate) kind: u8,
    pub(crate) codec: u8,
    pub(crate) num_rows: u16,
    pub(crate) num_values: u16,
    /// The offset of the data after the dictionary; 0 without one.
    pub(crate) data_start: u16,
    /// How rows are taken; see [`pages`].
    pub(crate) rows: u8,
}

impl ChunkShape {
    fn take(numbers: &mut Numbers<'_>) -> Self {
        let (kind, codec, rows) = (numbers.byte(), numbers.byte(), numbers.byte());
        let (num_rows, num_values, data_start) = (numbers.short(), numbers.short(), numbers.short());
        Self { kind, codec, num_rows, num_values, data_start, rows }
    }

    /// Returns the input for these pages.
    #[cfg(test)]
    pub(crate) fn with_pages(&self, pages: &[u8]) -> Vec<u8> {
        let mut input = vec![self.kind, self.codec, self.rows];
        [self.num_rows, self.num_values, self.data_start].iter().for_each(|short| input.extend(short.to_le_bytes()));
        [&input, pages].concat()
    }

    /// Returns an object whose one column chunk is `pages`.
    fn object(&self, pages: &[u8]) -> Result<Bytes, ParquetError> {
        static KINDS: LazyLock<Vec<Result<(SchemaDescPtr, String), ParquetError>>> =
            LazyLock::new(|| kinds().into_iter().map(schema_of).collect());
        let (schema, arrow) = match &KINDS[usize::from(self.kind) % KINDS.len()] {
            Ok(kind) => kind,
            Err(error) => return Err(ParquetError::General(error.to_string())),
        };
        let (start, len) = (MAGIC.len() as i64, i64::try_from(pages.len())?);
        // Without lists there is one per row; other numbers are refused before any page is read.
        let num_values = if schema.column(0).max_rep_level() > 0 { self.num_values } else { 0 };
        let data_start = i64::from(self.data_start).min(len);
        let chunk = ColumnChunkMetaData::builder(schema.column(0))
            .set_compression(CODECS[usize::from(self.codec) % CODECS.len()]())
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY])
            .set_num_values(i64::from(num_values.max(self.num_rows)))
            .set_total_compressed_size(len)
            .set_total_uncompressed_size(len)
            .set_data_page_offset(start + data_start)
            .set_dictionary_page_offset((data_start > 0).then_some(start))
            .build()?;
        let row_group = RowGroupMetaData::builder(Arc::clone(schema))
            .set_num_rows(i64::from(self.num_rows))
            .set_total_byte_size(len)
            .set_column_metadata(vec![chunk])
            .build()?;
        let key_values = vec![KeyValue::new("ARROW:schema".into(), Some(arrow.clone()))];
        let num_rows = i64::from(self.num_rows);
        let file = FileMetaData::new(2, num_rows, None, Some(key_values), Arc::clone(schema), None);
        let metadata = ParquetMetaDataBuilder::new(file).set_row_groups(vec![row_group]).build();
        let mut body = [MAGIC, pages].concat();
        // It counts from the first byte that it wrote itself.
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
        body.extend(footer);
        Ok(body.into())
    }
}

fn schema_of((data_type, is_nullable): (DataType, bool)) -> Result<(SchemaDescPtr, String), ParquetError> {
    let schema = Schema::new(vec![Field::new("x", data_type, is_nullable)]);
    Ok((Arc::new(ArrowSchemaConverter::new().convert(&schema)?), encode_arrow_schema(&schema)))
}

/// Decodes the pages of a column chunk in all ways: whole, in batches, and some of the rows.
pub fn pages(data: &[u8]) {
    let mut numbers = Numbers(data);
    let shape = ChunkShape::take(&mut numbers);
    let Some(body) = shape.object(numbers.0).ok().filter(|_| u32::from(shape.num_rows) <= MAX_ROWS) else { return };
    let Ok(Some(snapshot)) = open(&body) else { return };
    let num_rows = u32::from(shape.num_rows);
    let set = match shape.rows % 3 {
        0 => RowSet::All,
        1 => RowSet::Runs(
            [0..num_rows / 2, num_rows / 2 + 1..num_rows].into_iter().filter(|run| !run.is_empty()).collect(),
        ),
        _ => {
            let (every, kept) = (u32::from(shape.rows) + 1, u32::from(shape.rows) / 4);
            RowSet::from_mask((0..num_rows).map(|row| row % every <= kept).collect())
        }
    };
    decode_and_compare(&snapshot, 0, &body, set);
}

/// Reads what is at the end of objects: footers, offset and column indexes, bloom filters.
pub fn footers(data: &[u8]) {
    drop(thrift::check_footer(data));
    drop(thrift::check_offset_index(data));
    drop(Sbbf::from_bytes(data));
    page_bounds::fuzz(data);
    let footer_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
    drop(open(&Bytes::from([MAGIC, data, &footer_bytes.to_le_bytes(), MAGIC].concat())));
}

/// Reads what is stored elsewhere: packed footers, packs of them, and manifests, whose checksum and compression are
/// added here, as a hostile writer would.
pub fn manifests(data: &[u8]) {
    drop(Tail::unpack(data));
    pack::fuzz(data);
    let mut numbers = Numbers(data);
    let header_len = usize::from(numbers.short()).min(numbers.0.len());
    let (header, footers) = numbers.0.split_at(header_len);
    let Ok(header) = zstd::bulk::compress(header, 1) else { return };
    let body = [&(header.len() as u64).to_le_bytes()[..], &header, footers].concat();
    let bytes = Bytes::from([&manifest::MAGIC[..], &Sha256::digest(&body), &body].concat());
    let Ok(saved) = manifest::decode(&bytes) else { return };
    for (source, packed) in saved.sources.iter().zip(&saved.packed) {
        drop(Fragment::of_packed(source, packed, &Schemas::default()));
    }
}
