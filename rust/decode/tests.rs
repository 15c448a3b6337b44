//! Compares what is decoded here with what the `parquet` crate makes of the same files.

mod encodings;

use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, FixedSizeListBuilder, Float32Builder, Int32Builder, Int64Builder, LargeListBuilder, ListBuilder,
    MapBuilder, StringBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, DurationNanosecondType, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type,
    Time32MillisecondType, Time64MicrosecondType, TimestampMicrosecondType, UInt16Type, UInt32Type,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, LargeStringArray, ListArray, PrimitiveArray, RecordBatch, StructArray, make_array,
};
use arrow_buffer::{ArrowNativeType, NullBuffer, OffsetBuffer};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use proptest::prelude::*;

use super::{Body, Column, Fit, Misfit, Scratch, plan};
use crate::dataset::{Decoders, Snapshot, Trial};
use crate::error::Error;
use crate::io::Io;
use crate::metrics::Progress;
use crate::rows::RowSet;
use crate::source::recording::Recording;
use crate::source::{Location, Store, list};

pub(crate) fn open(body: &Bytes) -> Result<Arc<Snapshot>, Error> {
    Io::current().unwrap().block_on(async {
        let store = Store::of_client(Recording::of([("x.parquet", body.to_vec())]).await as _);
        let listed = list(&store.connect()?, &Location::parse("s3://bucket/x.parquet")?).await?;
        let objects = listed.into_iter().map(|listed| (0, listed.object)).collect();
        Snapshot::of_objects(vec![store], objects, &Progress::default()).await.map(Arc::new)
    })
}

/// Numbers that a seed determines.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What a file is like.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    seed: u64,
    pub(crate) num_rows: usize,
    /// Percent.
    nulls: u64,
    num_distinct: u64,
    longest_list: u64,
    codec: Compression,
    version: WriterVersion,
    page_rows: usize,
    dictionary_bytes: Option<usize>,
    has_index: bool,
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let codecs = prop_oneof![
        Just(Compression::UNCOMPRESSED),
        Just(Compression::SNAPPY),
        Just(Compression::ZSTD(ZstdLevel::default())),
        Just(Compression::LZ4_RAW),
        Just(Compression::GZIP(parquet::basic::GzipLevel::default())),
    ];
    let versions = prop_oneof![Just(WriterVersion::PARQUET_1_0), Just(WriterVersion::PARQUET_2_0)];
    let values = (any::<u64>(), 1_usize..600, prop_oneof![Just(0), Just(3), Just(60), Just(100)]);
    let lists = (
        prop_oneof![Just(1_u64), Just(7), Just(300), Just(100_000)],
        prop_oneof![Just(0_u64), Just(3), Just(40), Just(90)],
    );
    let pages = (prop_oneof![Just(1_usize), Just(20), Just(200), Just(10_000)], prop::option::of(1_usize..4000));
    (values, lists, codecs, versions, pages, any::<bool>()).prop_map(
        |(
            (seed, num_rows, nulls),
            (num_distinct, longest_list),
            codec,
            version,
            (page_rows, dictionary_bytes),
            has_index,
        )| Shape {
            seed,
            num_rows,
            nulls,
            num_distinct,
            longest_list,
            codec,
            version,
            page_rows,
            dictionary_bytes,
            has_index,
        },
    )
}

impl Shape {
    fn value(&self, noise: &mut Noise) -> Option<i64> {
        let value = i64::try_from(noise.below(self.num_distinct) * 2_654_435_761 % (1 << 31)).unwrap();
        (noise.below(100) >= self.nulls).then_some(value)
    }

    fn numbers<T: arrow_array::ArrowPrimitiveType>(
        &self,
        noise: &mut Noise,
        of: impl Fn(i64) -> T::Native,
    ) -> ArrayRef {
        Arc::new((0..self.num_rows).map(|_| self.value(noise).map(&of)).collect::<PrimitiveArray<T>>())
    }

    fn halves(&self, noise: &mut Noise) -> ArrayRef {
        let bits = self.numbers::<UInt16Type>(noise, |value| u16::try_from(value % 0x7c00).unwrap()).to_data();
        make_array(bits.into_builder().data_type(DataType::Float16).build().unwrap())
    }

    fn text(&self, noise: &mut Noise) -> Option<String> {
        self.value(noise).map(|value| {
            if value % 5 == 0 {
                String::new()
            } else {
                format!("wört {value}").repeat(usize::try_from(value % 3).unwrap())
            }
        })
    }

    /// Columns of all kinds, nullable and not.
    fn batch(&self) -> RecordBatch {
        let mut noise = Noise(self.seed);
        let noise = &mut noise;
        let narrow = |value: i64| i32::try_from(value).unwrap();
        let required: ArrayRef = Arc::new(
            (0..self.num_rows)
                .map(|_| i64::try_from(noise.below(self.num_distinct)).unwrap())
                .collect::<PrimitiveArray<Int64Type>>(),
        );
        let mut columns: Vec<(&str, ArrayRef, bool)> = vec![
            ("required", required, false),
            ("int32", self.numbers::<Int32Type>(noise, narrow), true),
            ("uint32", self.numbers::<UInt32Type>(noise, |value| u32::try_from(value).unwrap() + (1 << 31)), true),
            ("int64", self.numbers::<Int64Type>(noise, |value| value << 20), true),
            ("float32", self.numbers::<Float32Type>(noise, |value| value as f32), true),
            ("float64", self.numbers::<Float64Type>(noise, |value| value as f64), true),
            ("int8", self.numbers::<Int8Type>(noise, |value| i8::try_from(value % 256 - 128).unwrap()), true),
            ("uint16", self.numbers::<UInt16Type>(noise, |value| u16::try_from(value % 65_536).unwrap()), true),
            ("half", self.halves(noise), true),
            ("date", self.numbers::<Date32Type>(noise, narrow), true),
            ("when", self.numbers::<TimestampMicrosecondType>(noise, |value| value), true),
            ("millis", self.numbers::<Time32MillisecondType>(noise, |value| narrow(value % 86_400_000)), true),
            ("micros", self.numbers::<Time64MicrosecondType>(noise, |value| value), true),
            ("lasting", self.numbers::<DurationNanosecondType>(noise, |value| -value), true),
            (
                "flag",
                Arc::new(
                    (0..self.num_rows).map(|_| self.value(noise).map(|value| value % 2 == 0)).collect::<BooleanArray>(),
                ),
                true,
            ),
        ];
        let (mut texts, mut bytes) = (StringBuilder::new(), BinaryBuilder::new());
        for _ in 0..self.num_rows {
            texts.append_option(self.text(noise));
            bytes.append_option(self.text(noise));
        }
        let large: LargeStringArray = (0..self.num_rows).map(|_| self.text(noise)).collect();
        columns.extend([
            ("text", Arc::new(texts.finish()) as ArrayRef, true),
            ("bytes", Arc::new(bytes.finish()), true),
            ("large", Arc::new(large), true),
        ]);
        columns.extend(self.lists(noise));
        columns.extend(self.nested_lists(noise));
        columns.extend(self.structs(noise));
        let field = |(name, array, is_nullable): &(&str, ArrayRef, bool)| {
            Field::new(*name, array.data_type().clone(), *is_nullable)
        };
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|column| column.1).collect()).unwrap()
    }

    fn lists(&self, noise: &mut Noise) -> Vec<(&'static str, ArrayRef, bool)> {
        let item = Arc::new(Field::new("element", DataType::Int32, false));
        let mut tokens = ListBuilder::new(Int32Builder::new()).with_field(item);
        let mut sparse = ListBuilder::new(Int64Builder::new());
        let mut large = LargeListBuilder::new(Float32Builder::new());
        let mut fixed = FixedSizeListBuilder::new(Float32Builder::new(), 3);
        let mut texts = ListBuilder::new(StringBuilder::new());
        let even = self.seed.is_multiple_of(2);
        for _ in 0..self.num_rows {
            let len = |noise: &mut Noise| if even { self.longest_list } else { noise.below(self.longest_list + 1) };
            for _ in 0..len(noise) {
                tokens.values().append_value(i32::try_from(noise.below(self.num_distinct)).unwrap());
            }
            tokens.append(true);
            let is_there = noise.below(100) >= self.nulls / 4;
            for _ in 0..if is_there { len(noise) } else { 0 } {
                sparse.values().append_option(self.value(noise));
                texts.values().append_option(self.text(noise));
            }
            sparse.append(is_there);
            texts.append(is_there);
            for _ in 0..len(noise) {
                large.values().append_value(noise.below(self.num_distinct) as f32);
            }
            large.append(true);
            for _ in 0..3 {
                fixed.values().append_option(self.value(noise).map(|value| value as f32));
            }
            fixed.append(true);
        }
        vec![
            ("tokens", Arc::new(tokens.finish()), false),
            ("sparse", Arc::new(sparse.finish()), true),
            ("large_list", Arc::new(large.finish()), true),
            ("fixed", Arc::new(fixed.finish()), true),
            ("texts", Arc::new(texts.finish()), true),
        ]
    }

    /// Lists within lists: without NULLs, of one length, with NULLs at every depth, of three depths.
    fn nested_lists(&self, noise: &mut Noise) -> Vec<(&'static str, ArrayRef, bool)> {
        let item = Arc::new(Field::new("element", DataType::Int32, false));
        let items = Arc::new(Field::new("element", DataType::List(Arc::clone(&item)), false));
        let whole = ListBuilder::new(Int32Builder::new()).with_field(item);
        let mut whole = ListBuilder::new(whole).with_field(items);
        let mut boxes = LargeListBuilder::new(FixedSizeListBuilder::new(Float32Builder::new(), 4));
        let mut sparse = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
        let mut deep = ListBuilder::new(ListBuilder::new(ListBuilder::new(Int64Builder::new())));
        let even = self.seed.is_multiple_of(2);
        let most = self.longest_list.min(9);
        for _ in 0..self.num_rows {
            let len = |noise: &mut Noise| if even { most } else { noise.below(most + 1) };
            let is_there = |noise: &mut Noise| noise.below(100) >= self.nulls / 4;
            for _ in 0..len(noise) {
                for _ in 0..len(noise) {
                    whole.values().values().append_value(i32::try_from(noise.below(self.num_distinct)).unwrap());
                }
                whole.values().append(true);
                for _ in 0..4 {
                    boxes.values().values().append_option(self.value(noise).map(|value| value as f32));
                }
                boxes.values().append(true);
                if is_there(noise) {
                    for _ in 0..len(noise) {
                        sparse.values().values().append_option(self.text(noise));
                    }
                    sparse.values().append(true);
                } else {
                    sparse.values().append(false);
                }
                for _ in 0..noise.below(3) {
                    for _ in 0..len(noise) {
                        deep.values().values().values().append_option(self.value(noise));
                    }
                    deep.values().values().append(is_there(noise));
                }
                deep.values().append(is_there(noise));
            }
            whole.append(true);
            boxes.append(true);
            sparse.append(is_there(noise));
            deep.append(true);
        }
        vec![
            ("whole_nested", Arc::new(whole.finish()), false),
            ("boxes", Arc::new(boxes.finish()), true),
            ("sparse_nested", Arc::new(sparse.finish()), true),
            ("deep", Arc::new(deep.finish()), true),
        ]
    }

    /// Structs, in structs, in lists and around them, and maps; those that are NULL are in one column alone.
    fn structs(&self, noise: &mut Noise) -> Vec<(&'static str, ArrayRef, bool)> {
        let field = |name: &str, array: &ArrayRef, is_nullable| {
            Arc::new(Field::new(name, array.data_type().clone(), is_nullable))
        };
        let texts = |num: usize, noise: &mut Noise| -> ArrayRef {
            Arc::new((0..num).map(|_| self.text(noise)).collect::<arrow_array::StringArray>())
        };
        let numbers = |num: usize, noise: &mut Noise| -> ArrayRef {
            Arc::new((0..num).map(|_| self.value(noise)).collect::<PrimitiveArray<Int64Type>>())
        };
        let whole = |num: usize, noise: &mut Noise| -> ArrayRef {
            Arc::new((0..num).map(|_| noise.below(self.num_distinct) as f64).collect::<PrimitiveArray<Float64Type>>())
        };
        let flags = |num: usize, noise: &mut Noise| -> ArrayRef {
            Arc::new((0..num).map(|_| self.value(noise).map(|value| value % 3 == 0)).collect::<BooleanArray>())
        };
        let group = |num: usize, noise: &mut Noise, nulls: Option<NullBuffer>| -> ArrayRef {
            let inner = [texts(num, noise), whole(num, noise)];
            let fields = vec![field("text", &inner[0], true), field("score", &inner[1], false)];
            let inner: ArrayRef = Arc::new(StructArray::new(fields.into(), inner.to_vec(), None));
            let columns = vec![numbers(num, noise), inner, whole(num, noise), flags(num, noise)];
            let fields = [("a", true), ("inner", true), ("b", false), ("flag", true)];
            let fields: Vec<_> =
                fields.iter().zip(&columns).map(|((name, is), column)| field(name, column, *is)).collect();
            Arc::new(StructArray::new(fields.into(), columns, nulls))
        };
        let lengths = |num: usize, noise: &mut Noise| -> Vec<usize> {
            (0..num).map(|_| usize::try_from(noise.below(self.longest_list.min(5) + 1)).unwrap()).collect()
        };
        let of = |values: &dyn Fn(usize, &mut Noise) -> ArrayRef, num: usize, noise: &mut Noise, is_nullable: bool| {
            let lengths = lengths(num, noise);
            let present = (0..num).map(|_| noise.below(100) >= self.nulls / 4).collect::<Vec<_>>();
            let lengths = lengths.iter().zip(&present).map(|(len, is)| if *is || !is_nullable { *len } else { 0 });
            let lengths: Vec<_> = lengths.collect();
            let values = values(lengths.iter().sum(), noise);
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
            let nulls = is_nullable.then(|| NullBuffer::from(present));
            Arc::new(ListArray::new(field("element", &values, true), offsets, values, nulls)) as ArrayRef
        };
        let rows = self.num_rows;
        let required = group(rows, noise, None);
        let nullable = group(rows, noise, None);
        let with_nulls = Some((0..rows).map(|_| noise.below(100) >= self.nulls).collect::<NullBuffer>());
        let with_nulls = group(rows, noise, with_nulls);
        let list = of(&|num, noise| group(num, noise, None), rows, noise, true);
        let lists = of(&|num, noise| of(&|num, noise| group(num, noise, None), num, noise, false), rows, noise, true);
        let around = vec![of(&texts, rows, noise, true), of(&whole, rows, noise, false), numbers(rows, noise)];
        let fields: Vec<_> =
            around.iter().zip(["texts", "numbers", "id"]).map(|(array, name)| field(name, array, true)).collect();
        let around: ArrayRef = Arc::new(StructArray::new(fields.into(), around, None));
        let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        for len in lengths(rows, noise) {
            for _ in 0..len {
                map.keys().append_value(self.text(noise).unwrap_or_default());
                map.values().append_option(self.value(noise));
            }
            map.append(noise.below(100) >= self.nulls / 4).unwrap();
        }
        vec![
            ("struct_required", required, false),
            ("struct_nullable", nullable, true),
            ("struct_with_nulls", with_nulls, true),
            ("struct_list", list, true),
            ("struct_lists", lists, true),
            ("struct_around", around, true),
            ("map", Arc::new(map.finish()), true),
        ]
    }

    pub(crate) fn write(&self) -> Bytes {
        let mut properties = WriterProperties::builder()
            .set_compression(self.codec)
            .set_writer_version(self.version)
            .set_data_page_row_count_limit(self.page_rows)
            .set_write_batch_size(self.page_rows.min(64))
            .set_encoding(Encoding::PLAIN)
            .set_offset_index_disabled(!self.has_index)
            .set_dictionary_enabled(self.dictionary_bytes.is_some());
        if !self.has_index {
            properties = properties.set_statistics_enabled(parquet::file::properties::EnabledStatistics::Chunk);
        }
        if let Some(bytes) = self.dictionary_bytes {
            properties = properties.set_dictionary_page_size_limit(bytes);
        }
        let batch = self.batch();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap().into()
    }
}

/// Rows of which some are wanted: where runs of them begin and end, and whether they are a mask.
pub(crate) type Cuts = Option<(Vec<prop::sample::Index>, bool)>;

pub(crate) fn cuts() -> impl Strategy<Value = Cuts> {
    let size = prop_oneof![2_usize..12, 50_usize..300];
    let cuts = size.prop_flat_map(|size| prop::collection::vec(any::<prop::sample::Index>(), size));
    prop::option::of((cuts, any::<bool>()))
}

/// Returns the rows below `num_rows` between cuts; all without any.
pub(crate) fn set_of(cuts: &Cuts, num_rows: usize) -> RowSet {
    let Some((cuts, is_mask)) = cuts else { return RowSet::All };
    let mut cuts: Vec<u32> = cuts.iter().map(|cut| u32::try_from(cut.index(num_rows + 1)).unwrap()).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let runs = RowSet::Runs(cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect());
    match is_mask {
        _ if cuts.len() < 2 => RowSet::All,
        true => RowSet::Mask((0..u32::try_from(num_rows).unwrap()).map(|row| runs.contains(row)).collect()),
        false => runs,
    }
}

/// Opens a column for the decoders here; `None` where it is not for them by its footer.
fn open_own(snapshot: &Snapshot, root: usize, body: &Bytes, set: &RowSet) -> Option<Fit<Box<dyn Column>>> {
    let plan = plan(snapshot.fragment(snapshot.row_groups[0]), 0, root, set)?;
    let bytes = plan.ranges().iter().map(|range| {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        (range.end <= body.len() && range.start <= range.end).then(|| Body::Here(body.slice(range)))
    });
    let Some(bytes) = bytes.collect() else { return Some(Err(Misfit("ranges outside of the object"))) };
    Some(Ok(plan.open(&Arc::new(set.clone()), bytes, u64::MAX, Scratch::default())))
}

/// Reads a column by the decoders here alone, in steps; `None` where it is not for them by its footer.
fn read_own(snapshot: &Snapshot, root: usize, body: &Bytes, set: &RowSet, step: usize) -> Option<Fit<Vec<ArrayRef>>> {
    let wanted = set.count(0..snapshot.row_groups[0].num_rows) as usize;
    let mut column = match open_own(snapshot, root, body, set)? {
        Ok(column) => column,
        Err(misfit) => return Some(Err(misfit)),
    };
    let steps = (0..wanted).step_by(step.max(1)).map(|start| step.min(wanted - start));
    Some(steps.map(|num_rows| column.read(num_rows)).collect())
}

/// Returns how long lists of numbers are, if all are as long, and the bytes of an item.
fn even_len(lists: &dyn Array) -> Option<(usize, usize)> {
    let offsets: Vec<usize> = match lists.data_type() {
        DataType::List(_) => lists.as_list::<i32>().offsets().iter().map(|end| end.as_usize()).collect(),
        DataType::LargeList(_) => lists.as_list::<i64>().offsets().iter().map(|end| end.as_usize()).collect(),
        DataType::FixedSizeList(_, len) => (0..=lists.len()).map(|row| row * len.as_usize()).collect(),
        _ => return None,
    };
    let len = offsets.get(1)? - offsets[0];
    let width = lists.to_data().child_data()[0].data_type().primitive_width()?;
    offsets.windows(2).all(|pair| pair[1] - pair[0] == len).then_some((len, width))
}

/// Reads a column of even lists in steps, its items of `asked` bytes each where they may be taken so; returns the bytes of
/// all items, and of how many rows they were taken.
fn read_items(
    column: &mut dyn Column,
    num_rows: usize,
    (row_len, width): (usize, usize),
    asked: usize,
    step: usize,
) -> Fit<(Vec<u8>, usize)> {
    let (mut bytes, mut num_read, mut num_taken) = (Vec::new(), 0, 0);
    while num_read < num_rows {
        let most = step.min(num_rows - num_read);
        if let Some((num, items)) = column.take_items(most, row_len, asked) {
            assert!((1..=most).contains(&num));
            assert!(items.width == width || items.width == asked);
            assert_eq!(items.bytes.len(), num * row_len * items.width);
            for item in items.bytes.chunks_exact(items.width) {
                bytes.extend_from_slice(item);
                bytes.resize(bytes.len() + width - items.width, 0);
            }
            (num_read, num_taken) = (num_read + num, num_taken + num);
            continue;
        }
        let num = most.min(3);
        let read = column.read(num)?.to_data();
        let (len, items) = (read.child_data()[0].len(), &read.child_data()[0]);
        assert_eq!(len, num * row_len);
        bytes.extend_from_slice(&items.buffers()[0].as_slice()[items.offset() * width..][..len * width]);
        num_read += num;
    }
    Ok((bytes, num_taken))
}

fn read_parquet(snapshot: &Arc<Snapshot>, root: usize, body: &Bytes, set: &RowSet) -> Result<ArrayRef, Error> {
    let batch = Trial::new(snapshot, 0, body, set.clone()).unwrap().of_column(root).at_once(Decoders::Parquet)?;
    Ok(Arc::clone(batch.column(0)))
}

/// Returns whether arrays hold the same, any NaN for any other.
fn are_same(left: &dyn Array, right: &dyn Array) -> bool {
    if left.to_data() == right.to_data() {
        return true;
    }
    let options = FormatOptions::new().with_null("∅");
    let (a, b) = (ArrayFormatter::try_new(left, &options).unwrap(), ArrayFormatter::try_new(right, &options).unwrap());
    left.data_type() == right.data_type()
        && left.len() == right.len()
        && (0..left.len()).all(|row| a.value(row).to_string() == b.value(row).to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn columns_are_those_of_the_parquet_crate(
        shape in shapes(), cuts in cuts(),
        step in prop_oneof![1_usize..100, Just(10_000)],
    ) {
        let body = shape.write();
        let snapshot = open(&body).unwrap();
        let set = set_of(&cuts, shape.num_rows);
        for (root, field) in snapshot.schema.fields().iter().enumerate() {
            let own = read_own(&snapshot, root, &body, &set, step);
            let is_known = !matches!(shape.codec, Compression::GZIP(_));
            prop_assert_eq!(own.is_some(), is_known, "{}", field);
            let Some(own) = own else { continue };
            if field.name() == "struct_with_nulls" && matches!(&own, Err(Misfit("a struct is NULL"))) {
                continue;
            }
            let parts = own.map_err(|misfit| TestCaseError::fail(format!("{field}: {misfit:?}")))?;
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            let own = arrow_select::concat::concat(&parts).unwrap();
            let expected = read_parquet(&snapshot, root, &body, &set).unwrap();
            prop_assert!(are_same(&own, &expected), "{field}: {own:?} instead of {expected:?}");
        }
    }

    #[test]
    fn rows_that_are_taken_as_they_are_stored_are_those_that_are_read(
        shape in shapes(), cuts in cuts(), step in prop_oneof![1_usize..100, Just(10_000)], halves in any::<bool>(),
    ) {
        let body = shape.write();
        let snapshot = open(&body).unwrap();
        let set = set_of(&cuts, shape.num_rows);
        for (root, field) in snapshot.schema.fields().iter().enumerate() {
            let expected = read_parquet(&snapshot, root, &body, &set).unwrap();
            let Some((row_len, width)) = even_len(&expected).filter(|_| expected.null_count() == 0) else { continue };
            let items = expected.to_data().child_data()[0].clone();
            if items.null_count() > 0 || row_len == 0 {
                continue;
            }
            let Some(column) = open_own(&snapshot, root, &body, &set) else { continue };
            let mut column = column.unwrap();
            let asked = if halves && items.data_type().is_integer() { 2.min(width) } else { width };
            let (bytes, num_taken) = read_items(&mut *column, expected.len(), (row_len, width), asked, step).unwrap();
            prop_assert!(bytes == items.buffers()[0].as_slice()[items.offset() * width..][..bytes.len()], "{field}");
            // Three are read at the beginning, and without an index the last of each page, which may go on.
            if (shape.dictionary_bytes.is_none() || asked == width) && shape.has_index && cuts.is_none() && shape.page_rows >= 20 && expected.len() > 3 {
                prop_assert!(num_taken > 0, "{field}: nothing of {} rows", expected.len());
            }
        }
    }

    #[test]
    fn whole_reads_are_those_of_the_parquet_crate(
        shape in shapes(), cuts in cuts(),
        batch_rows in 1_usize..200,
    ) {
        let body = shape.write();
        let snapshot = open(&body).unwrap();
        let set = set_of(&cuts, shape.num_rows);
        let trial = Trial::new(&snapshot, 0, &body, set).unwrap().with_batch_rows(batch_rows);
        prop_assert_eq!(trial.at_once(Decoders::Own).unwrap(), trial.at_once(Decoders::Parquet).unwrap());
        let (own, parquet) = (trial.batches(Decoders::Own).unwrap(), trial.batches(Decoders::Parquet).unwrap());
        prop_assert!(own.iter().all(|batch| batch.num_rows() <= batch_rows));
        let all = |batches: &[RecordBatch]| arrow_select::concat::concat_batches(&batches[0].schema(), batches).unwrap();
        prop_assert_eq!(all(&own), all(&parquet));
    }

    #[test]
    fn a_read_of_no_rows_has_none(shape in shapes()) {
        let body = shape.write();
        let snapshot = open(&body).unwrap();
        for decoders in [Decoders::Own, Decoders::Parquet] {
            let trial = Trial::new(&snapshot, 0, &body, RowSet::None).unwrap();
            let batch = trial.at_once(decoders).unwrap();
            prop_assert_eq!((batch.num_rows(), batch.schema()), (0, Arc::clone(&snapshot.schema)));
            prop_assert!(trial.batches(decoders).unwrap().is_empty());
        }
    }

    #[test]
    fn damaged_pages_are_what_the_parquet_crate_makes_of_them_or_left_to_it(
        shape in shapes(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_header in any::<bool>(),
    ) {
        let mut body = shape.write().to_vec();
        let length = u32::from_le_bytes(*body[..body.len() - 4].last_chunk().unwrap());
        let pages = 4..body.len() - 8 - length as usize;
        let snapshot = open(&body.clone().into()).unwrap();
        let starts: Vec<usize> = snapshot.fragment(snapshot.row_groups[0]).row_group(0).columns().iter()
            .map(|column| usize::try_from(column.byte_range().0).unwrap()).collect();
        for (place, value) in damage {
            let place = if in_header { starts[place.index(starts.len())] + place.index(40) } else { pages.start + place.index(pages.len()) };
            body[place] = value;
        }
        let body = Bytes::from(body);
        for (root, field) in snapshot.schema.fields().iter().enumerate() {
            let Some(Ok(parts)) = read_own(&snapshot, root, &body, &RowSet::All, 10_000) else { continue };
            // What pages claim is checked before either of them.
            let trial = Trial::new(&snapshot, 0, &body, RowSet::All).unwrap().of_column(root);
            if trial.at_once(Decoders::Own).is_err() {
                continue;
            }
            let expected = read_parquet(&snapshot, root, &body, &RowSet::All);
            let expected = expected.map_err(|error| TestCaseError::fail(format!("{field}: only the parquet crate says {error}")))?;
            prop_assert!(are_same(&parts[0], &expected), "{field}: {:?} instead of {expected:?}", parts[0]);
        }
    }
}
