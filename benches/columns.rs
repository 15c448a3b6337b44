//! Decodes columns of the kinds that training reads, with our own decoders and with the `parquet` crate.
//!
//! `cargo bench --bench columns` writes a file of each kind (or those named), then decodes its row groups from memory
//! on one thread, alternating between the methods, and prints the fastest of the rounds: rows and decoded bytes per
//! second. `parquet` is the better of its batches of 1024 rows and of whole row groups. `pages` only decompresses
//! pages, `copy` copies the decoded bytes: no decoder can be faster than both in sequence. Fixed seeds, no network.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::builder::{
    BinaryBuilder, FixedSizeListBuilder, Float32Builder, Int32Builder, ListBuilder, StringBuilder,
};
use arrow_array::types::{Float32Type, Float64Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, ListArray, PrimitiveArray, RecordBatch, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use forebay::{Decoders, Io, OpenRequest, Progress, RowSet, Snapshot, Trial};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};

type AnyError = Box<dyn Error + Send + Sync>;

const NUM_ROUNDS: usize = 7;

/// Minimum duration of a method in a round.
const ROUND: Duration = Duration::from_millis(100);

const BATCH_ROWS: usize = 1024;

/// The contents of a file, and how it is written.
struct Kind {
    name: &'static str,
    batch: fn() -> Result<RecordBatch, AnyError>,
    group_rows: usize,
    codec: Compression,
    dictionary_bytes: usize,
    /// Whether integers and text are delta-encoded.
    has_differences: bool,
}

const fn kind(
    name: &'static str,
    batch: fn() -> Result<RecordBatch, AnyError>,
    group_rows: usize,
    codec: Compression,
) -> Kind {
    Kind { name, batch, group_rows, codec, dictionary_bytes: 1 << 20, has_differences: false }
}

fn kinds() -> Vec<Kind> {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(GzipLevel::default());
    vec![
        kind("tokens", || tokens(50_000), 1000, Compression::UNCOMPRESSED),
        kind("tokens-zstd", || tokens(50_000), 1000, zstd),
        Kind {
            dictionary_bytes: 256 << 10,
            ..kind("tokens-plain", || tokens(128_000), 1000, Compression::UNCOMPRESSED)
        },
        Kind { dictionary_bytes: 256 << 10, ..kind("tokens-plain-zstd", || tokens(128_000), 1000, zstd) },
        kind("tokens-gzip", || tokens(50_000), 1000, gzip),
        kind("embeddings-snappy", embeddings, 2000, Compression::SNAPPY),
        kind("text-zstd", text, 4000, zstd),
        kind("text-gzip", text, 4000, gzip),
        Kind { has_differences: true, ..kind("text-differences", text, 4000, Compression::UNCOMPRESSED) },
        kind("text", text, 4000, Compression::UNCOMPRESSED),
        kind("labels-snappy", labels, 100_000, Compression::SNAPPY),
        kind("numbers-snappy", || numbers(100), 40_000, Compression::SNAPPY),
        kind("numbers", || numbers(100), 40_000, Compression::UNCOMPRESSED),
        kind("short-lists-zstd", short_lists, 100_000, zstd),
        kind("boxes-snappy", boxes, 25_000, Compression::SNAPPY),
        kind("annotations-snappy", annotations, 25_000, Compression::SNAPPY),
        Kind { has_differences: true, ..kind("events-differences", events, 100_000, Compression::SNAPPY) },
        kind("images", images, 500, Compression::UNCOMPRESSED),
    ]
}

fn main() -> Result<(), AnyError> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!(
        "{:<20} {:>10} {:>10} {:>6}   GB/s: {:>6} {:>7} {:>6} {:>6}",
        "rows/s", "own", "parquet", "ratio", "own", "parquet", "pages", "copy"
    );
    for kind in kinds() {
        if asked.is_empty() || asked.iter().any(|name| name == kind.name) {
            measure(&kind)?;
        }
    }
    Ok(())
}

fn measure(kind: &Kind) -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("x.parquet");
    std::fs::write(&path, write(kind)?)?;
    let object = Bytes::from(std::fs::read(&path)?);
    let sources = vec![path.to_str().ok_or("a path of UTF-8")?.to_owned()];
    let request = OpenRequest { sources, ..OpenRequest::default() };
    let snapshot = Arc::new(Io::current()?.block_on(Snapshot::open(request, &Progress::default()))?);
    let trials: Vec<Trial> = (0..).map_while(|place| Trial::new(&snapshot, place, &object, RowSet::All)).collect();
    let decoded: Vec<RecordBatch> =
        trials.iter().map(|trial| trial.at_once(Decoders::Own)).collect::<Result<_, _>>()?;
    let num_bytes: usize = decoded.iter().map(RecordBatch::get_array_memory_size).sum();
    drop(decoded);
    let whole =
        |decoders| move |trial: &Trial| trial.at_once(decoders).map(black_box).map(drop).map_err(AnyError::from);
    let ways: [&dyn Fn() -> Result<(), AnyError>; 5] = [
        &|| trials.iter().try_for_each(whole(Decoders::Own)),
        &|| trials.iter().try_for_each(whole(Decoders::Parquet)),
        &|| in_batches(&object),
        &|| unpack(&object),
        &|| copy(num_bytes / trials.len(), trials.len()),
    ];
    let mut times: [Vec<Duration>; 5] = Default::default();
    // The first round measures how often each method fits into a round.
    let mut repeats = [1_u32; 5];
    for round in 0..=NUM_ROUNDS {
        for ((way, times), repeats) in ways.iter().zip(times.iter_mut()).zip(&mut repeats) {
            let start = Instant::now();
            for _ in 0..*repeats {
                way()?;
            }
            let time = start.elapsed() / *repeats;
            if round > 0 {
                times.push(time);
            } else {
                *repeats = 1 + u32::try_from(ROUND.as_nanos() / time.as_nanos().max(1))?;
            }
        }
    }
    let [own, groups, batches, pages, copy] = times.map(|times| times.into_iter().min().unwrap_or_default());
    let parquet = groups.min(batches);
    let rows = |time: Duration| snapshot.num_rows as f64 / time.as_secs_f64();
    let gigabytes = |time: Duration| num_bytes as f64 / 1e9 / time.as_secs_f64();
    println!(
        "{:<20} {:>10.0} {:>10.0} {:>5.1}x         {:>6.2} {:>7.2} {:>6.2} {:>6.2}",
        kind.name,
        rows(own),
        rows(parquet),
        parquet.as_secs_f64() / own.as_secs_f64(),
        gigabytes(own),
        gigabytes(parquet),
        gigabytes(pages),
        gigabytes(copy),
    );
    Ok(())
}

fn in_batches(object: &Bytes) -> Result<(), AnyError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(object.clone())?.with_batch_size(BATCH_ROWS).build()?;
    for batch in reader {
        black_box(batch?);
    }
    Ok(())
}

/// Decompresses all pages.
fn unpack(object: &Bytes) -> Result<(), AnyError> {
    let reader = SerializedFileReader::new(object.clone())?;
    for row_group in 0..reader.num_row_groups() {
        let row_group = reader.get_row_group(row_group)?;
        for column in 0..row_group.num_columns() {
            let mut pages = row_group.get_column_page_reader(column)?;
            while let Some(page) = pages.get_next_page()? {
                black_box(page);
            }
        }
    }
    Ok(())
}

/// Copies this many bytes, several times.
fn copy(num_bytes: usize, times: usize) -> Result<(), AnyError> {
    let source = vec![1_u8; num_bytes];
    for _ in 0..times {
        let mut copied = Vec::new();
        copied.try_reserve_exact(num_bytes)?;
        copied.extend_from_slice(&source);
        black_box(copied);
    }
    Ok(())
}

fn write(kind: &Kind) -> Result<Vec<u8>, AnyError> {
    let batch = (kind.batch)()?;
    let mut properties = WriterProperties::builder()
        .set_compression(kind.codec)
        .set_max_row_group_row_count(Some(kind.group_rows))
        .set_dictionary_page_size_limit(kind.dictionary_bytes);
    for field in batch.schema_ref().fields().iter().filter(|_| kind.has_differences) {
        let encoding = match field.data_type() {
            DataType::Utf8 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            DataType::Int64 => Encoding::DELTA_BINARY_PACKED,
            _ => Encoding::PLAIN,
        };
        let path = field.name().as_str().into();
        properties = properties.set_dictionary_enabled(false).set_column_encoding(path, encoding);
    }
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build()))?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

/// Random numbers from a fixed seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns an id with approximately the frequencies of words.
#[expect(clippy::cast_possible_truncation, reason = "below the vocabulary")]
fn word(noise: &mut Noise, vocabulary: u32) -> i32 {
    (f64::from(vocabulary).powf(noise.part()) - 1.0) as i32
}

#[expect(clippy::cast_possible_truncation, reason = "what a number of few bits is")]
fn narrow(number: f64) -> f32 {
    number as f32
}

fn tokens(vocabulary: u32) -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(1);
    let mut lists = ListBuilder::new(Int32Builder::new());
    for _ in 0..4000 {
        (0..2048).for_each(|_| lists.values().append_value(word(&mut noise, vocabulary)));
        lists.append(true);
    }
    Ok(RecordBatch::try_from_iter([("tokens", Arc::new(lists.finish()) as ArrayRef)])?)
}

fn embeddings() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(2);
    let mut lists = FixedSizeListBuilder::new(Float32Builder::new(), 768);
    for _ in 0..10_000 {
        (0..768).for_each(|_| lists.values().append_value(narrow(noise.part() - 0.5)));
        lists.append(true);
    }
    Ok(RecordBatch::try_from_iter([("embedding", Arc::new(lists.finish()) as ArrayRef)])?)
}

fn text() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(3);
    let mut texts = StringBuilder::new();
    let mut scores = Vec::new();
    for _ in 0..40_000 {
        let mut text = String::new();
        for _ in 0..100 + noise.next() % 200 {
            text.push_str(&format!("w{:x} ", word(&mut noise, 50_000)));
        }
        texts.append_value(text);
        scores.push(noise.part());
    }
    let scores: PrimitiveArray<Float64Type> = scores.into();
    Ok(RecordBatch::try_from_iter([("text", Arc::new(texts.finish()) as ArrayRef), ("score", Arc::new(scores))])?)
}

/// Short texts from a small set, and others.
fn labels() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(4);
    let (mut labels, mut keys) = (StringBuilder::new(), StringBuilder::new());
    for _ in 0..400_000 {
        labels.append_value(format!("label number {}", word(&mut noise, 1000)));
        keys.append_value(format!("{:016x}", noise.next()));
    }
    Ok(RecordBatch::try_from_iter([
        ("label", Arc::new(labels.finish()) as ArrayRef),
        ("key", Arc::new(keys.finish())),
    ])?)
}

#[expect(clippy::cast_possible_truncation, reason = "any numbers will do")]
fn numbers(num_columns: usize) -> Result<RecordBatch, AnyError> {
    fn column<T: ArrowPrimitiveType>(noise: &mut Noise, of: impl Fn(f64) -> T::Native) -> ArrayRef {
        let values = (0..120_000).map(|_| (noise.part() > 0.05).then(|| of(noise.part())));
        Arc::new(values.collect::<PrimitiveArray<T>>())
    }
    let mut noise = Noise(5);
    let columns = (0..num_columns).map(|number| {
        let array = match number % 4 {
            0 => column::<Float32Type>(&mut noise, narrow),
            1 => column::<Float64Type>(&mut noise, |part| part),
            2 => column::<Int32Type>(&mut noise, |part| (part * 1000.0) as i32),
            _ => column::<Int64Type>(&mut noise, |part| (part * 1e15) as i64),
        };
        (format!("column {number}"), array)
    });
    Ok(RecordBatch::try_from_iter(columns.collect::<Vec<_>>())?)
}

/// Lists of up to 20 ids, some of them empty or NULL.
fn short_lists() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(6);
    let mut lists = ListBuilder::new(Int32Builder::new());
    for _ in 0..400_000 {
        let len = noise.next() % 21;
        (0..len).for_each(|_| lists.values().append_value(word(&mut noise, 10_000)));
        lists.append(len != 1);
    }
    Ok(RecordBatch::try_from_iter([("ids", Arc::new(lists.finish()) as ArrayRef)])?)
}

/// Ascending timestamps, user ids, and short texts.
fn events() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(10);
    let (mut moments, mut ids, mut texts) = (Vec::new(), Vec::new(), StringBuilder::new());
    let mut moment = 1_700_000_000_000_000;
    for _ in 0..400_000 {
        moment += i64::try_from(noise.next() % 5_000_000)?;
        moments.push(moment);
        ids.push(i64::from(word(&mut noise, 1_000_000)));
        texts.append_value(format!("event {:x}", noise.next() % 100_000));
    }
    let (moments, ids): (PrimitiveArray<Int64Type>, PrimitiveArray<Int64Type>) = (moments.into(), ids.into());
    Ok(RecordBatch::try_from_iter([
        ("moment", Arc::new(moments) as ArrayRef),
        ("id", Arc::new(ids)),
        ("event", Arc::new(texts.finish())),
    ])?)
}

/// Lists of up to 20 lists of four numbers, some of the outer ones empty.
fn boxes() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(7);
    let mut lists = ListBuilder::new(ListBuilder::new(Float32Builder::new()));
    for _ in 0..100_000 {
        for _ in 0..noise.next() % 21 {
            (0..4).for_each(|_| lists.values().values().append_value(narrow(noise.part())));
            lists.values().append(true);
        }
        lists.append(true);
    }
    Ok(RecordBatch::try_from_iter([("boxes", Arc::new(lists.finish()) as ArrayRef)])?)
}

/// Lists of up to 20 structs of a label, a score and a flag, each occasionally NULL.
fn annotations() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(8);
    let lens: Vec<usize> = (0..100_000).map(|_| usize::try_from(noise.next() % 21)).collect::<Result<_, _>>()?;
    let num_items = lens.iter().sum();
    let (mut labels, mut scores, mut flags) = (StringBuilder::new(), Vec::new(), Vec::new());
    for _ in 0..num_items {
        labels.append_option((noise.part() > 0.05).then(|| format!("label number {}", word(&mut noise, 1000))));
        scores.push((noise.part() > 0.05).then(|| noise.part()));
        flags.push((noise.part() > 0.05).then(|| noise.part() > 0.9));
    }
    let scores: PrimitiveArray<Float64Type> = scores.into();
    let structs = StructArray::try_from(vec![
        ("label", Arc::new(labels.finish()) as ArrayRef),
        ("score", Arc::new(scores)),
        ("is_crowd", Arc::new(BooleanArray::from(flags))),
    ])?;
    let item = Arc::new(Field::new("element", structs.data_type().clone(), true));
    let lists = ListArray::try_new(item, OffsetBuffer::from_lengths(lens), Arc::new(structs), None)?;
    Ok(RecordBatch::try_from_iter([("annotations", Arc::new(lists) as ArrayRef)])?)
}

/// Bytes of 20 kB and a path, as `datasets` stores images.
fn images() -> Result<RecordBatch, AnyError> {
    let mut noise = Noise(9);
    let (mut bytes, mut paths) = (BinaryBuilder::new(), StringBuilder::new());
    for number in 0..2000 {
        bytes.append_value((0..2500).flat_map(|_| noise.next().to_le_bytes()).collect::<Vec<u8>>());
        paths.append_value(format!("{number}.jpg"));
    }
    let images = StructArray::try_from(vec![
        ("bytes", Arc::new(bytes.finish()) as ArrayRef),
        ("path", Arc::new(paths.finish())),
    ])?;
    Ok(RecordBatch::try_from_iter([("image", Arc::new(images) as ArrayRef)])?)
}
