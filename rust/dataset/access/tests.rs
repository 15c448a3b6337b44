//! Rows by number, compared with a full read, and the requests for them.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder, StringDictionaryBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;

use super::RowAccess;
use crate::dataset::Dataset;
use crate::dataset::answer::Answer;
use crate::error::{Error, Result};
use crate::io::Io;
use crate::metrics::Progress;
use crate::rows::RowSet;
use crate::selection::Selection;
use crate::snapshot::{RowGroupRead, Snapshot};
use crate::source::recording::Recording;
use crate::source::{Location, Store, list, read_ranges};

const MEMORY_BYTES: u64 = 1 << 30;

/// Rows of all kinds: numbers, nullable texts, variable-size lists, structs, dictionaries.
fn rows(first: i64, len: i64) -> RecordBatch {
    let numbers = || first..first + len;
    let texts: StringArray = numbers().map(|row| (row % 7 != 3).then(|| format!("text of {row}"))).collect();
    let mut lists = ListBuilder::new(Int32Builder::new());
    let mut codes = StringDictionaryBuilder::<Int32Type>::new();
    for row in numbers() {
        for item in 0..row % 5 {
            lists.values().append_option((item != 2).then_some(i32::try_from(row * 10 + item).unwrap()));
        }
        lists.append(row % 11 != 4);
        codes.append_value(format!("code {}", row % 9));
    }
    let scores: ArrayRef =
        Arc::new(numbers().map(|row| (row % 3 != 0).then_some(row as f64)).collect::<Float64Array>());
    let words: ArrayRef =
        Arc::new(StringArray::from_iter_values(numbers().map(|row| "w".repeat(usize::try_from(row % 6).unwrap()))));
    let meta = StructArray::from(vec![
        (Arc::new(Field::new("score", DataType::Float64, true)), scores),
        (Arc::new(Field::new("words", DataType::Utf8, false)), words),
    ]);
    let columns: [(&str, ArrayRef); 5] = [
        ("row", Arc::new(Int64Array::from_iter_values(numbers()))),
        ("text", Arc::new(texts)),
        ("items", Arc::new(lists.finish())),
        ("meta", Arc::new(meta)),
        ("code", Arc::new(codes.finish())),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Writes rows in row groups of 60 and pages of 10.
fn parquet(batch: &RecordBatch, has_index: bool) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(60))
        .set_data_page_row_count_limit(10)
        .set_write_batch_size(10)
        .set_offset_index_disabled(!has_index)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn block_on<F: Future>(future: F) -> F::Output {
    Io::current().unwrap().block_on(future)
}

/// Opens what is in `recording`, as if it were a bucket.
async fn open(recording: &Arc<Recording>) -> Dataset {
    let store = Store::of_client(Arc::clone(recording) as _);
    let listed = list(&store.connect().unwrap(), &Location::parse("s3://bucket/d/").unwrap()).await.unwrap();
    let objects = listed.into_iter().map(|listed| (0, listed.object)).collect();
    Dataset::new(Arc::new(Snapshot::of_objects(vec![store], objects, &Progress::default()).await.unwrap()))
}

/// Returns all rows, read in the simplest way.
async fn read_all(dataset: &Dataset) -> RecordBatch {
    let snapshot = dataset.snapshot();
    let connections = dataset.connect(&Arc::default()).unwrap();
    let mut batches = Vec::new();
    for &row_group in &snapshot.row_groups {
        let read = RowGroupRead::try_new(snapshot, row_group, dataset.projection(), RowSet::All, 1000).unwrap();
        let object = &snapshot.fragment(row_group).object;
        let bytes = read_ranges(&connections[0], object, read.ranges()).await.unwrap();
        batches.extend(read.decode(bytes).unwrap().map(Result::unwrap));
    }
    concat_batches(dataset.schema(), &batches).unwrap()
}

fn taken(all: &RecordBatch, rows: &[u64]) -> RecordBatch {
    let rows = Int64Array::from_iter_values(rows.iter().map(|&row| i64::try_from(row).unwrap()));
    take_record_batch(all, &rows).unwrap()
}

/// Keeps rows of 3 objects with 100 rows in 2 row groups each.
fn selection(snapshot: &Snapshot, keep: &[bool]) -> Selection {
    let mut rows = keep.iter().copied();
    let set = |num_rows: u32| RowSet::from_mask(rows.by_ref().take(num_rows as usize).collect());
    let sizes: Vec<u32> = snapshot.row_groups.iter().map(|row_group| row_group.num_rows).collect();
    Selection::of_sizes(sizes.iter().copied().map(set).collect(), &sizes)
}

/// Returns which of 300 rows to keep: all, none, long or short runs.
fn kept() -> impl Strategy<Value = Vec<bool>> {
    let runs = |longest| prop::collection::vec((any::<bool>(), 1_usize..longest), 1..20);
    let bits = |runs: Vec<(bool, usize)>| {
        runs.iter().cycle().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len)).take(300).collect::<Vec<_>>()
    };
    prop_oneof![Just(vec![(true, 1)]), Just(vec![(false, 1)]), runs(3), runs(150)].prop_map(bits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_slice_selects_what_its_row_numbers_select(
        keep in kept(), reverses in any::<bool>(), bounds in prop::collection::vec((0_u64..320, 0_u64..320), 8),
    ) {
        let keys = ["d/1.parquet", "d/2.parquet", "d/3.parquet"];
        let bodies = [0, 100, 200].map(|first| parquet(&rows(first, 100), false));
        let dataset = block_on(async { open(&Recording::of(keys.into_iter().zip(bodies)).await).await });
        let selection = Arc::new(selection(dataset.snapshot(), &keep));
        let num_rows = selection.num_rows();
        let order: Option<Arc<[u64]>> = reverses.then(|| (0..num_rows).rev().collect());
        let access = RowAccess::new(&dataset, Arc::new(Answer::of_selection(selection).in_order(order)), MEMORY_BYTES);
        for (start, stop) in bounds.into_iter().chain([(0, num_rows), (0, u64::MAX), (1, num_rows.saturating_sub(1))]) {
            let numbers: Vec<i64> = (start..stop.min(num_rows)).map(|number| i64::try_from(number).unwrap()).collect();
            let expected = dataset.select_rows(&access, &numbers).unwrap();
            let sliced = dataset.select_slice(&access, start..stop).unwrap();
            prop_assert_eq!(sliced.restriction_texts(), expected.restriction_texts());
            prop_assert_eq!(sliced.restriction_bytes(), expected.restriction_bytes());
            let (sliced, expected) = (sliced.known_answer().unwrap(), expected.known_answer().unwrap());
            prop_assert_eq!(sliced.num_rows(), numbers.len() as u64);
            prop_assert_eq!(sliced.selection().sets(), expected.selection().sets());
            prop_assert_eq!(sliced.order(), expected.order());
        }
    }

    #[test]
    fn rows_by_number_are_those_of_a_full_read(
        has_index in any::<bool>(),
        keep in prop::collection::vec(prop::bool::weighted(0.6), 300),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
        negative in prop::collection::vec(any::<bool>(), 80),
        reverses in any::<bool>(),
        memory_bytes in prop_oneof![Just(MEMORY_BYTES), Just(40_000)],
    ) {
        let (got, expected) = block_on(async {
            let bodies = [0, 100, 200].map(|first| parquet(&rows(first, 100), has_index));
            let keys = ["d/1.parquet", "d/2.parquet", "d/3.parquet"];
            let dataset = open(&Recording::of(keys.into_iter().zip(bodies)).await).await;
            let kept: Vec<u64> = (0..).zip(&keep).filter(|(_, keep)| **keep).map(|(row, _)| row).collect();
            let order: Option<Arc<[u64]>> = reverses.then(|| (0..kept.len() as u64).rev().collect());
            let selection = Arc::new(selection(dataset.snapshot(), &keep));
            let answer = Arc::new(Answer::of_selection(selection).in_order(order));
            let access = RowAccess::new(&dataset, answer, memory_bytes);
            let len = kept.len();
            let wanted: Vec<usize> = places.iter().map(|place| place.index(len)).collect();
            let indices: Vec<i64> = wanted.iter().zip(&negative).map(|(&place, &negative)| {
                i64::try_from(place).unwrap() - if negative { i64::try_from(len).unwrap() } else { 0 }
            }).collect();
            let connections = dataset.connect(&Arc::default()).unwrap();
            let got = access.gather(&connections, &indices).await.unwrap();
            let rows: Vec<u64> =
                wanted.iter().map(|&place| kept[if reverses { len - 1 - place } else { place }]).collect();
            (got, taken(&read_all(&dataset).await, &rows))
        });
        for (got, expected) in got.columns().iter().zip(expected.columns()) {
            // Dictionaries may have other keys.
            let plain = |array: &ArrayRef| match array.data_type() {
                DataType::Dictionary(_, values) => arrow_cast::cast(array, values).unwrap(),
                _ => Arc::clone(array),
            };
            prop_assert_eq!(&plain(got), &plain(expected));
        }
        prop_assert_eq!(got.num_rows(), expected.num_rows());
    }
}

/// Numbers in pages of 500 rows, ten pages in each of two row groups.
fn numbers() -> Vec<u8> {
    let batch = RecordBatch::try_from_iter([
        ("a", Arc::new(Int32Array::from_iter_values(0..10_000)) as ArrayRef),
        ("b", Arc::new(Int32Array::from_iter_values(10_000..20_000)) as ArrayRef),
    ]);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(5000))
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(500)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.as_ref().unwrap().schema(), Some(properties)).unwrap();
    writer.write(&batch.unwrap()).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn only_the_pages_of_the_rows_are_requested() {
    block_on(async {
        let recording = Recording::of([("d/1.parquet", numbers())]).await;
        let dataset = open(&recording).await.select_columns(&["b".to_owned()]).unwrap();
        let snapshot = dataset.snapshot();
        let pages = |row_group: usize, page: usize| {
            let index = snapshot.fragments[0].reader.metadata().offset_index().unwrap();
            let location = &index[row_group][1].page_locations()[page];
            location.offset..location.offset + i64::from(location.compressed_page_size)
        };
        recording.take();
        let access = RowAccess::new(&dataset, dataset.known_answer().unwrap(), MEMORY_BYTES);
        let connections = dataset.connect(&Arc::default()).unwrap();
        // Of the first row group, rows of page 3 (twice) and of page 9; of the second one, a row of page 0.
        let batch = access.gather(&connections, &[4_999, 1_750, -5_000, 1_750, 1_501]).await.unwrap();
        let expected = Int32Array::from(vec![14_999, 11_750, 15_000, 11_750, 11_501]);
        assert_eq!(batch.column(0).as_ref(), &expected as &dyn arrow_array::Array);
        // The pages are so close that one request covers them all.
        let (first, last) = (pages(0, 3).start, pages(1, 0).end);
        assert_eq!(recording.take(), [format!("get {first}..{last} of d/1.parquet if unchanged")]);
        let one = access.gather(&connections, &[1_750]).await.unwrap();
        assert_eq!(one.num_rows(), 1);
        let page = pages(0, 3);
        assert_eq!(recording.take(), [format!("get {}..{} of d/1.parquet if unchanged", page.start, page.end)]);
        assert_eq!(access.gather(&connections, &[]).await.unwrap().num_rows(), 0);
        assert_eq!(recording.take(), [""; 0]);
    });
}

#[test]
fn a_row_beyond_the_last_is_refused_before_anything_is_read() {
    block_on(async {
        let recording = Recording::of([("d/1.parquet", numbers())]).await;
        let dataset = open(&recording).await;
        recording.take();
        let access = RowAccess::new(&dataset, dataset.known_answer().unwrap(), MEMORY_BYTES);
        let connections = dataset.connect(&Arc::default()).unwrap();
        for index in [10_000, -10_001, i64::MAX, i64::MIN] {
            let refused = access.gather(&connections, &[0, index]).await;
            assert!(matches!(refused, Err(Error::RowIndex { index: named, num_rows: 10_000 }) if named == index));
        }
        assert_eq!(recording.take(), [""; 0]);
    });
}

#[test]
fn a_row_group_without_a_page_index_that_is_too_large_is_an_error() {
    block_on(async {
        let recording = Recording::of([("d/1.parquet", parquet(&rows(0, 60), false))]).await;
        let dataset = open(&recording).await;
        let access = RowAccess::new(&dataset, dataset.known_answer().unwrap(), 500);
        let connections = dataset.connect(&Arc::default()).unwrap();
        let refused = access.gather(&connections, &[1]).await;
        assert!(matches!(refused, Err(Error::MemoryLimit { row_group: 0, limit_bytes: 500, .. })), "{refused:?}");
    });
}
