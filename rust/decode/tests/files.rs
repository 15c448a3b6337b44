//! Files of all shapes: columns of every kind, with NULLs or without, in pages of all sizes.

use arrow_array::builder::{
    BinaryBuilder, FixedSizeListBuilder, Float32Builder, Int32Builder, Int64Builder, LargeListBuilder, ListBuilder,
    MapBuilder, StringBuilder,
};
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::Type as PhysicalType;
use parquet::file::properties::WriterPropertiesBuilder;

use super::*;

/// Pseudo-random numbers from a seed.
pub(super) struct Noise(pub(super) u64);

impl Noise {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The shape of a file.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(super) seed: u64,
    pub(crate) num_rows: usize,
    /// Percentage.
    pub(super) nulls: u64,
    pub(super) num_distinct: u64,
    pub(super) longest_list: u64,
    pub(super) codec: Compression,
    pub(super) version: WriterVersion,
    pub(super) page_rows: usize,
    pub(super) dictionary_bytes: Option<usize>,
    /// Whether integers and text are delta-encoded if there is no dictionary.
    pub(super) has_differences: bool,
    pub(super) has_index: bool,
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let codecs = prop_oneof![
        Just(Compression::UNCOMPRESSED),
        Just(Compression::SNAPPY),
        Just(Compression::ZSTD(ZstdLevel::default())),
        Just(Compression::LZ4_RAW),
        Just(Compression::GZIP(parquet::basic::GzipLevel::default())),
        Just(Compression::BROTLI(parquet::basic::BrotliLevel::try_new(1).unwrap())),
        Just(Compression::LZ4),
    ];
    let encodings = prop_oneof![2 => Just(false), 1 => Just(true)];
    let versions = prop_oneof![Just(WriterVersion::PARQUET_1_0), Just(WriterVersion::PARQUET_2_0)];
    let values = (any::<u64>(), 1_usize..600, prop_oneof![Just(0), Just(3), Just(60), Just(100)]);
    let lists = (
        prop_oneof![Just(1_u64), Just(7), Just(300), Just(100_000)],
        prop_oneof![Just(0_u64), Just(3), Just(40), Just(90)],
    );
    let pages = (prop_oneof![Just(1_usize), Just(20), Just(200), Just(10_000)], prop::option::of(1_usize..4000));
    (values, lists, codecs, versions, pages, encodings, any::<bool>()).prop_map(
        |(
            (seed, num_rows, nulls),
            (num_distinct, longest_list),
            codec,
            version,
            (page_rows, dictionary_bytes),
            has_differences,
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
            has_differences,
            has_index,
        },
    )
}

impl Shape {
    pub(super) fn value(&self, noise: &mut Noise) -> Option<i64> {
        let value = i64::try_from(noise.below(self.num_distinct) * 2_654_435_761 % (1 << 31)).unwrap();
        (noise.below(100) >= self.nulls).then_some(value)
    }

    pub(super) fn numbers<T: arrow_array::ArrowPrimitiveType>(
        &self,
        noise: &mut Noise,
        of: impl Fn(i64) -> T::Native,
    ) -> ArrayRef {
        Arc::new((0..self.num_rows).map(|_| self.value(noise).map(&of)).collect::<PrimitiveArray<T>>())
    }

    pub(super) fn halves(&self, noise: &mut Noise) -> ArrayRef {
        let bits = self.numbers::<UInt16Type>(noise, |value| u16::try_from(value % 0x7c00).unwrap()).to_data();
        make_array(bits.into_builder().data_type(DataType::Float16).build().unwrap())
    }

    pub(super) fn text(&self, noise: &mut Noise) -> Option<String> {
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

    /// Nested lists: without NULLs, of one length, with NULLs at every depth, of three depths.
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

    /// Structs, in structs, in lists and around them, and maps.
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
        let fields: arrow_schema::Fields = fields.into();
        let around_with_nulls: ArrayRef =
            Arc::new(StructArray::new(fields.clone(), around.clone(), with_nulls.nulls().cloned()));
        let around: ArrayRef = Arc::new(StructArray::new(fields, around, None));
        // NULL structs in nullable structs.
        let inner = vec![Arc::clone(&with_nulls), numbers(rows, noise)];
        let fields: Vec<_> = inner.iter().zip(["in", "id"]).map(|(array, name)| field(name, array, true)).collect();
        let outer_nulls = (0..rows).map(|_| noise.below(100) >= self.nulls / 2).collect::<NullBuffer>();
        let in_structs: ArrayRef = Arc::new(StructArray::new(fields.into(), inner, Some(outer_nulls)));
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
            ("structs_with_nulls", in_structs, true),
            ("struct_around_with_nulls", around_with_nulls, true),
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
        if self.has_differences {
            properties = self.with_differences(properties, &batch);
        }
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap().into()
    }

    /// Returns writer properties that delta-encode integers and text, text in both ways.
    fn with_differences(&self, properties: WriterPropertiesBuilder, batch: &RecordBatch) -> WriterPropertiesBuilder {
        let schema = ArrowSchemaConverter::new().convert(&batch.schema()).unwrap();
        schema.columns().iter().enumerate().fold(properties, |properties, (place, column)| {
            let encoding = match column.physical_type() {
                PhysicalType::INT32 | PhysicalType::INT64 => Encoding::DELTA_BINARY_PACKED,
                PhysicalType::BYTE_ARRAY if place.is_multiple_of(2) => Encoding::DELTA_LENGTH_BYTE_ARRAY,
                PhysicalType::BYTE_ARRAY => Encoding::DELTA_BYTE_ARRAY,
                _ => return properties,
            };
            properties.set_column_encoding(column.path().clone(), encoding)
        })
    }
}
