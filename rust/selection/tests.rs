//! Selecting: which rows, and which requests are made for them.

mod floats;
mod lists;
mod payload;

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use futures::TryStreamExt;
use object_store::ObjectStore;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use proptest::prelude::*;

use super::evaluate::Evaluator;
use super::scan::{self, Limits};
use super::{Filter, Report, Selection, SetOperation};
use crate::error::{Error, Result};
use crate::io::Io;
use crate::metrics::Progress;
use crate::rows::RowSet;
use crate::snapshot::{RowGroupRead, Snapshot};
use crate::source::recording::Recording;
use crate::source::{Connection, Object, Store, read_ranges};

const LIMITS: Limits = Limits { memory_bytes: 64 << 20, refused_above: None, num_threads: 2 };

/// Waiting costs nothing: everything that saves a byte is done.
const FREE: scan::RoundTripBytes = |_| 0;

/// Waiting costs hardly anything.
const CHEAP: scan::RoundTripBytes = |_| 1;

/// Waiting costs more than anything saves.
const DEAR: scan::RoundTripBytes = |_| u64::MAX;

fn block_on<F: Future>(future: F) -> F::Output {
    Io::current().unwrap().block_on(future)
}

fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(1000))
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(100)
}

fn parquet(batch: &RecordBatch, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

proptest! {
    #[test]
    fn ranges_keep_the_rows_whose_numbers_they_hold(
        sizes in prop::collection::vec(1_u32..50, 0..9), bounds in prop::collection::btree_set(0_u64..500, 0..8),
    ) {
        let bounds: Vec<u64> = bounds.into_iter().collect();
        let ranges: Vec<_> = bounds.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
        let snapshot = Snapshot::of_sizes(&sizes);
        let found = Arc::new(Selection::of_ranges(&snapshot, &ranges));
        let is_kept = |row: &u64| ranges.iter().any(|range| range.contains(row));
        let expected: Vec<u64> = (0..snapshot.num_rows).filter(is_kept).collect();
        prop_assert_eq!(found.row_numbers(&snapshot).collect::<Vec<_>>(), expected.clone());
        prop_assert_eq!(found.num_rows(), expected.len() as u64);
    }
}

/// Files in a store that records its requests.
struct Bucket {
    recording: Arc<Recording>,
    snapshot: Arc<Snapshot>,
}

impl Bucket {
    /// Opens `bodies` as the objects `0`, `1` and so on; without the indexes that came with the footers unless
    /// `is_kept`.
    async fn of(bodies: impl IntoIterator<Item = Vec<u8>>, is_kept: bool) -> Self {
        let bodies: Vec<_> = bodies.into_iter().enumerate().map(|(n, body)| (n.to_string(), body)).collect();
        let recording = Recording::of(bodies.iter().map(|(name, body)| (name.as_str(), body.clone()))).await;
        let store = Store::of_client(Arc::clone(&recording) as _);
        let listed: Vec<_> = recording.inner.list(None).try_collect().await.unwrap();
        let objects = listed.into_iter().map(|meta| {
            let url = meta.location.to_string();
            (0, Object { path: meta.location, url, written: None, size_bytes: Some(meta.size), e_tag: None })
        });
        let mut snapshot = Snapshot::of_objects(vec![store], objects.collect(), &Progress::default()).await.unwrap();
        if !is_kept {
            snapshot.fragments.iter_mut().for_each(crate::snapshot::Fragment::forget_kept);
        }
        recording.take();
        Self { recording, snapshot: Arc::new(snapshot) }
    }

    fn connection(&self) -> Connection {
        self.snapshot.stores[0].connect().unwrap()
    }

    /// Returns the rows that pass, the report, and the requests made.
    async fn select(&self, text: &str, round_trip: scan::RoundTripBytes) -> Result<(Vec<RowSet>, Report, Vec<String>)> {
        self.select_within(text, None, round_trip).await
    }

    async fn select_within(
        &self,
        text: &str,
        within: Option<&[RowSet]>,
        round_trip: scan::RoundTripBytes,
    ) -> Result<(Vec<RowSet>, Report, Vec<String>)> {
        self.select_first(text, within, None, round_trip).await
    }

    async fn select_first(
        &self,
        text: &str,
        within: Option<&[RowSet]>,
        enough: Option<u64>,
        round_trip: scan::RoundTripBytes,
    ) -> Result<(Vec<RowSet>, Report, Vec<String>)> {
        let filter = Filter::parse(text, &self.snapshot)?;
        let connections = [self.connection()];
        let progress = Progress::default();
        let wanted = scan::Wanted { filter: &filter, within, enough, payload: None };
        let selected = scan::select(&self.snapshot, wanted, &connections, LIMITS, round_trip, &progress).await;
        let requests = self.recording.take();
        let requests = requests.iter().map(|request| request.replace(" if unchanged", "")).collect();
        let (rows, report) = selected?;
        Ok((rows, report, requests))
    }

    /// Returns the rows that pass, by reading all rows of all columns.
    async fn select_slowly(&self, text: &str) -> Result<Vec<RowSet>> {
        let filter = Filter::parse(text, &self.snapshot)?;
        let evaluator = Evaluator::try_new(&self.snapshot, &filter.expr, &filter.columns, text)?;
        let mut sets = Vec::new();
        for &row_group in &self.snapshot.row_groups {
            let read = RowGroupRead::try_new(&self.snapshot, row_group, evaluator.columns(), RowSet::All, 100_000)?;
            let object = &self.snapshot.fragment(row_group).object;
            let bytes = read_ranges(&self.connection(), object, read.ranges()).await?;
            sets.push(RowSet::from_mask(evaluator.evaluate(row_group, read, bytes)?));
        }
        self.recording.take();
        Ok(sets)
    }

    /// Returns the request for the pages `pages` of a column of a row group of the object `object`.
    fn request(&self, object: usize, row_group: usize, column: usize, pages: std::ops::Range<usize>) -> String {
        let index = self.snapshot.fragments[object].reader.metadata().offset_index().unwrap();
        let pages = &index[row_group][column].page_locations()[pages];
        let (first, last) = (&pages[0], &pages[pages.len() - 1]);
        format!("get {}..{} of {object}", first.offset, last.offset + i64::from(last.compressed_page_size))
    }
}

fn count(sets: &[RowSet]) -> u32 {
    sets.iter().map(|set| set.count(0..1000)).sum()
}

/// A sorted number, an unsorted one, a text a hundred times as large, and an unsorted key.
fn rows(range: std::ops::Range<i64>) -> RecordBatch {
    let mixed = |n: i64| (n * 7919) % 1_000_003;
    let sorted: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone()));
    let number: ArrayRef = Arc::new(Int32Array::from_iter_values(range.clone().map(|n| (mixed(n) % 1000) as i32)));
    let text = range.clone().map(|n| format!("{:08} {}", mixed(n), "word ".repeat(80)));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(text));
    let key: ArrayRef = Arc::new(StringArray::from_iter_values(range.map(|n| format!("key-{:032}", mixed(n)))));
    RecordBatch::try_from_iter([("sorted", sorted), ("number", number), ("text", text), ("key", key)]).unwrap()
}

#[test]
fn pages_that_their_bounds_exclude_are_never_requested() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..3000), properties())], true).await;
        let (sets, report, requests) = bucket.select("sorted BETWEEN 1250 AND 1320", FREE).await.unwrap();
        assert_eq!(requests, [bucket.request(0, 1, 0, 2..4)]);
        assert_eq!(count(&sets), 71);
        assert_eq!((report.num_pruned, report.num_read, report.num_pages, report.num_pages_pruned), (2, 1, 10, 8));
        // Every page is decided, so nothing is read.
        let (sets, report, requests) = bucket.select("sorted >= 1300 AND sorted < 1500", FREE).await.unwrap();
        assert_eq!((requests.len(), report.num_read, count(&sets)), (0, 0, 200));
    });
}

#[test]
fn a_conjunct_that_statistics_decide_is_not_read() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..2000), properties())], true).await;
        let (sets, report, requests) = bucket.select("sorted >= 1000 AND number < 500", DEAR).await.unwrap();
        assert_eq!(requests, [bucket.request(0, 1, 1, 0..10)]);
        assert_eq!(sets, bucket.select_slowly("sorted >= 1000 AND number < 500").await.unwrap());
        assert_eq!((report.num_pruned, report.num_read), (1, 1));
    });
}

#[test]
fn column_indexes_are_asked_for_in_one_pass_and_only_where_they_may_pay() {
    block_on(async {
        let bodies = [0, 3000].map(|first| parquet(&rows(first..first + 3000), properties()));
        let bucket = Bucket::of(bodies, false).await;
        let text = "sorted % 2 = 0 AND sorted BETWEEN 2950 AND 3050";
        let (sets, report, requests) = bucket.select(text, FREE).await.unwrap();
        assert_eq!(count(&sets), 51);
        assert_eq!((report.num_pages_pruned, report.num_read), (18, 2), "{report:?}");
        let index = |object: usize, row_group: usize, column: usize| {
            let column = bucket.snapshot.fragments[object].reader.metadata().row_group(row_group).column(column);
            let start = column.column_index_offset().unwrap();
            format!("get {start}..{} of {object}", start + i64::from(column.column_index_length().unwrap()))
        };
        let pages = [bucket.request(0, 2, 0, 9..10), bucket.request(1, 0, 0, 0..1)];
        assert_eq!(requests, [&[index(0, 2, 0), index(1, 0, 0)][..], &pages].concat());
        let (same, report, requests) = bucket.select(text, DEAR).await.unwrap();
        assert_eq!((same, report.num_pages, requests.len()), (sets, 0, 2));
    });
}

#[test]
fn pages_of_nulls_are_known_from_the_others() {
    block_on(async {
        let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let number: ArrayRef = Arc::new(Int32Array::from_iter((0..1000).map(|n| (n % 400 < 200).then_some(n))));
        let batch = RecordBatch::try_from_iter([("id", id), ("number", number)]).unwrap();
        let bucket = Bucket::of([parquet(&batch, properties())], true).await;
        for (text, num_kept, num_pruned) in
            [("number IS NULL", 400, 6), ("number IS NOT NULL", 600, 4), ("number >= 0", 600, 4)]
        {
            let (sets, report, requests) = bucket.select(text, FREE).await.unwrap();
            assert_eq!((count(&sets), report.num_pages, report.num_pages_pruned), (num_kept, 10, num_pruned), "{text}");
            assert_eq!(requests.is_empty(), num_kept == 600, "{text} {requests:?}");
        }
    });
}

#[test]
fn indexes_of_neighbouring_row_groups_are_one_request() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..4000), properties())], false).await;
        let text = format!("key = 'key-{:032}'", (1234 * 7919) % 1_000_003);
        let (sets, report, requests) = bucket.select(&text, FREE).await.unwrap();
        assert!(report.num_pages >= 20 && report.num_read > 0, "{report:?}");
        assert_eq!(requests.len() as u64, 1 + report.num_read, "{requests:?}");
        assert_eq!(sets, bucket.select_slowly(&text).await.unwrap());
    });
}

#[test]
fn only_pages_of_rows_that_were_selected_before_are_read() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..3000), properties())], true).await;
        let within = [RowSet::None, RowSet::Runs(std::iter::once(250..300).collect()), RowSet::All];
        let (sets, report, requests) = bucket.select_within("number < 500", Some(&within), DEAR).await.unwrap();
        assert_eq!(requests, [bucket.request(0, 1, 1, 2..3), bucket.request(0, 2, 1, 0..10)]);
        assert_eq!((report.num_outside, report.num_pruned, report.num_read), (1, 0, 2));
        let whole = bucket.select_slowly("number < 500").await.unwrap();
        let expected = whole.iter().zip(&within).zip([1000; 3]);
        let expected: Vec<_> = expected.map(|((a, b), len)| a.combine(b, SetOperation::And, len)).collect();
        assert_eq!(sets, expected);
        // What statistics take whole is what was selected before.
        let (sets, report, requests) = bucket.select_within("sorted >= 0", Some(&within), DEAR).await.unwrap();
        assert_eq!((&sets[..], report.num_whole, requests.len()), (&within[..], 1, 0));
    });
}

#[test]
fn the_first_rows_are_found_without_a_look_at_all() {
    block_on(async {
        let narrow = |range| rows(range).project(&[0, 1]).unwrap();
        let bodies = [0..12_000, 12_000..24_000].map(|range| parquet(&narrow(range), properties()));
        let bucket = Bucket::of(bodies, true).await;
        let some = |place: usize| {
            [RowSet::All, RowSet::None, RowSet::Runs([250..300, 600..900].into_iter().collect())][place % 3].clone()
        };
        let within: Vec<RowSet> = (0..24).map(some).collect();
        let texts = [
            "number < 3",
            "sorted >= 5500 AND number < 300",
            "sorted < 2000 OR number = 1",
            "sorted >= 20500",
            "number < 0",
        ];
        for (text, within) in texts.iter().flat_map(|text| [(text, None), (text, Some(&within[..]))]) {
            let (whole, ..) = bucket.select_within(text, within, CHEAP).await.unwrap();
            for enough in [0, 1, 2, 5, 20, 100, 500, 1000, 3000, 100_000] {
                let (sets, report, _) = bucket.select_first(text, within, Some(enough), CHEAP).await.unwrap();
                let behind = sets.iter().rposition(|set| *set != RowSet::None).map_or(0, |place| place + 1);
                let end = if report.is_partial { behind } else { sets.len() };
                assert_eq!(sets[..end], whole[..end], "{text} {enough}");
                assert!(u64::from(count(&sets)) >= enough || !report.is_partial, "{text} {enough}");
            }
        }
        let (_, report, requests) = bucket.select_first("number < 500", None, Some(1), DEAR).await.unwrap();
        assert_eq!((requests.len(), report.num_read, report.num_outside), (4, 4, 20), "{requests:?}");
        let (_, report, _) = bucket.select_first("number < 500", None, Some(2500), DEAR).await.unwrap();
        assert_eq!((report.num_read, report.num_outside, report.is_partial), (20, 4, true));
        // Row groups that statistics exclude are not among those examined first.
        let text = "sorted >= 13000 AND number < 500";
        let (_, report, _) = bucket.select_first(text, None, Some(1), DEAR).await.unwrap();
        assert_eq!((report.num_pruned, report.num_read, report.num_outside), (13, 4, 7));
    });
}

#[test]
fn bloom_filters_spare_the_row_groups_without_the_value() {
    block_on(async {
        let with_bloom = properties().set_bloom_filter_enabled(true).set_bloom_filter_max_ndv(1000);
        let narrow = |first| rows(first..first + 1000).project(&[0, 1, 3]).unwrap();
        let bodies = [0, 1000, 2000, 3000, 4000, 5000].map(|first| parquet(&narrow(first), with_bloom.clone()));
        for is_kept in [true, false] {
            let bucket = Bucket::of(bodies.clone(), is_kept).await;
            let key = format!("key-{:032}", (4321 * 7919) % 1_000_003);
            let text = format!("key = '{key}'");
            let (sets, report, requests) = bucket.select(&text, FREE).await.unwrap();
            assert_eq!(count(&sets), 1);
            assert!(report.num_pruned_by_bloom >= 4 && report.num_read <= 2, "{report:?} {requests:?}");
            if is_kept {
                assert_eq!(requests.len() as u64, report.num_read, "{requests:?}");
                let absent = bucket.select("key IN ('key-1', 'key-2')", FREE).await.unwrap();
                assert_eq!((count(&absent.0), absent.1.num_pruned, absent.2.len()), (0, 6, 0));
            }
            // Ranges are not looked up in bloom filters.
            let (_, report, _) = bucket.select("key > 'key-9'", FREE).await.unwrap();
            assert_eq!(report.num_pruned_by_bloom, 0);
        }
    });
}

#[test]
fn dear_columns_are_read_only_where_cheap_ones_leave_rows() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..3000), properties())], true).await;
        // One row of the second row group.
        let number = (1234 * 7919) % 1_000_003 % 1000;
        let text = format!("text LIKE '%word%' AND number = {number}");
        let expected = bucket.select_slowly(&text).await.unwrap();
        let (sets, report, requests) = bucket.select(&text, FREE).await.unwrap();
        assert_eq!((&sets, report.num_stages), (&expected, 2));
        let first: Vec<_> = (0..3).map(|row_group| bucket.request(0, row_group, 1, 0..10)).collect();
        assert!(first.iter().all(|request| requests.contains(request)), "{requests:?}");
        let second = expected.iter().enumerate().flat_map(|(row_group, set)| {
            let pages = set.runs(0..1000).map(|run| run.start as usize / 100);
            pages.map(move |page| (row_group, page))
        });
        let mut second: Vec<_> =
            second.map(|(row_group, page)| bucket.request(0, row_group, 2, page..page + 1)).collect();
        second.dedup();
        assert!(!second.is_empty() && second.iter().all(|request| requests.contains(request)), "{requests:?}");
        assert_eq!(requests.len(), first.len() + second.len());
        // If waiting does not pay, both are read at once.
        let (same, report, _) = bucket.select(&text, DEAR).await.unwrap();
        assert_eq!((same, report.num_stages), (sets, 1));
    });
}

#[test]
fn the_stages_do_not_grow_with_conjuncts_columns_or_row_groups() {
    block_on(async {
        let bodies = [0, 5000].map(|first| parquet(&rows(first..first + 5000), properties()));
        let bucket = Bucket::of(bodies, true).await;
        let text = "number < 900 AND number > 3 AND text LIKE '%word%' AND key LIKE '%1%' AND sorted % 3 = 1";
        let (sets, report, _) = bucket.select(text, FREE).await.unwrap();
        assert_eq!(report.num_stages, 2);
        assert_eq!(sets, bucket.select_slowly(text).await.unwrap());
    });
}

#[test]
fn a_conjunct_guards_those_after_it() {
    block_on(async {
        let a: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let z: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1000).map(|n| n % 2)));
        let batch = RecordBatch::try_from_iter([("a", a), ("z", z)]).unwrap();
        let bucket = Bucket::of([parquet(&batch, properties())], true).await;
        for round_trip in [FREE, DEAR] {
            let (sets, ..) = bucket.select("z <> 0 AND a / z > 500", round_trip).await.unwrap();
            assert_eq!(count(&sets), 250);
            let failed = bucket.select("a / z > 500", round_trip).await;
            assert!(matches!(failed, Err(Error::Evaluate { .. })));
        }
    });
}

#[test]
fn an_index_that_is_corrupt_decides_nothing() {
    block_on(async {
        let mut body = parquet(&rows(0..1000), properties().set_bloom_filter_enabled(true));
        let text = "sorted BETWEEN 250 AND 320 AND key <> 'x' AND number IN (1, 2, 3)";
        let sound = Bucket::of([body.clone()], true).await;
        let expected = sound.select_slowly(text).await.unwrap();
        for column in sound.snapshot.fragments[0].row_group(0).columns() {
            let start = usize::try_from(column.column_index_offset().unwrap()).unwrap();
            body[start..start + 40].fill(0xff);
            let start = usize::try_from(column.bloom_filter_offset().unwrap()).unwrap();
            body[start..start + 4].fill(0xff);
        }
        let bucket = Bucket::of([body], true).await;
        let (sets, report, _) = bucket.select(text, FREE).await.unwrap();
        assert_eq!((sets, report.num_pages, report.num_pruned_by_bloom), (expected, 0, 0));
    });
}

/// A way of writing files.
#[derive(Debug, Clone)]
struct Layout {
    statistics: EnabledStatistics,
    has_bloom: bool,
    has_dictionary: bool,
    is_sorted: bool,
    page_rows: usize,
    is_kept: bool,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let statistics =
        prop::sample::select(vec![EnabledStatistics::None, EnabledStatistics::Chunk, EnabledStatistics::Page]);
    (statistics, any::<bool>(), any::<bool>(), any::<bool>(), 5_usize..60, any::<bool>()).prop_map(
        |(statistics, has_bloom, has_dictionary, is_sorted, page_rows, is_kept)| Layout {
            statistics,
            has_bloom,
            has_dictionary,
            is_sorted,
            page_rows,
            is_kept,
        },
    )
}

type Row = (Option<i32>, Option<f64>, Option<u8>);

/// Rows with NULLs, `NaN`s of either sign, both zeros, and texts with a common prefix.
fn awkward_rows() -> impl Strategy<Value = Vec<Row>> {
    let number = prop::option::weighted(0.9, -20_i32..20);
    let special = prop::sample::select(vec![f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY]);
    let score = prop::option::weighted(0.9, prop_oneof![3 => (-8_i8..8).prop_map(f64::from), 1 => special]);
    let text = prop::option::weighted(0.9, 0_u8..12);
    prop::collection::vec((number, score, text), 1..300)
}

fn text_of(text: u8) -> String {
    // Bounds are truncated before they differ.
    format!("a prefix that many of them share {text}")
}

fn awkward(mut rows: Vec<Row>, layout: &Layout) -> Vec<u8> {
    if layout.is_sorted {
        rows.sort_by_key(|row| (row.0, row.2));
    }
    let number: ArrayRef = Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.0)));
    let score: ArrayRef = Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.1)));
    let text: ArrayRef = Arc::new(StringArray::from_iter(rows.iter().map(|row| row.2.map(text_of))));
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows.len() as i64).rev()));
    let batch = RecordBatch::try_from_iter([("n", number), ("s", score), ("t", text), ("id", id)]).unwrap();
    let properties = WriterProperties::builder()
        .set_statistics_enabled(layout.statistics)
        .set_bloom_filter_enabled(layout.has_bloom)
        .set_dictionary_enabled(layout.has_dictionary)
        .set_max_row_group_row_count(Some(120))
        .set_data_page_row_count_limit(layout.page_rows)
        .set_write_batch_size(layout.page_rows)
        .set_column_index_truncate_length(Some(8))
        .set_statistics_truncate_length(Some(8));
    parquet(&batch, properties)
}

fn conjuncts() -> impl Strategy<Value = String> {
    let n = -22_i32..22;
    prop_oneof![
        n.clone().prop_map(|n| format!("n = {n}")),
        (n.clone(), n.clone()).prop_map(|(a, b)| format!("n IN ({a}, {b})")),
        (n.clone(), n.clone()).prop_map(|(a, b)| format!("n BETWEEN {a} AND {b}")),
        n.clone().prop_map(|n| format!("n <> {n}")),
        n.clone().prop_map(|n| format!("NOT (n < {n})")),
        n.clone().prop_map(|n| format!("n < {n} OR s > {n}")),
        n.clone().prop_map(|n| format!("s > {n}")),
        n.clone().prop_map(|n| format!("s <= {n}")),
        n.clone().prop_map(|n| format!("NOT (s > {n})")),
        n.clone().prop_map(|n| format!("id >= {}", n * 12)),
        n.clone().prop_map(|n| format!("100 / nullif(n, 0) > {n}")),
        (0_u8..14).prop_map(|t| format!("t = '{}'", text_of(t))),
        (0_u8..14).prop_map(|t| format!("t >= '{}'", text_of(t))),
        (0_u8..14).prop_map(|t| format!("t < '{}' OR t IS NULL", text_of(t))),
        (0_u8..14).prop_map(|t| format!("t NOT IN ('{}', 'x')", text_of(t))),
        prop::sample::select(vec![
            "s = 'NaN'",
            "s = 0",
            "s IS NULL",
            "n IS NOT NULL",
            "n < s",
            "n IS NULL",
            "t LIKE '%1%'",
            "t LIKE 'a p%'"
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_rows_are_those_of_evaluating_everything(
        files in prop::collection::vec((awkward_rows(), layouts()), 1..3),
        filter in prop::collection::vec(conjuncts(), 1..4),
        is_free: bool,
    ) {
        let text = filter.iter().map(|part| format!("({part})")).collect::<Vec<_>>().join(" AND ");
        block_on(async {
            let is_kept = files[0].1.is_kept;
            let bucket = Bucket::of(files.into_iter().map(|(rows, layout)| awkward(rows, &layout)), is_kept).await;
            let expected = bucket.select_slowly(&text).await.unwrap();
            let (sets, report, _) = bucket.select(&text, if is_free { FREE } else { DEAR }).await.unwrap();
            prop_assert_eq!(&sets, &expected, "{}, {:?}", text, report);
            let unread = report.num_pruned + report.num_whole;
            prop_assert!(unread + report.num_read <= sets.len() as u64);
            prop_assert!(report.num_stages <= 2);
            Ok(())
        })?;
    }
}
