//! Asserts exactly which requests a pass over a dataset makes.

mod cells;

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::plan::Share;
use crate::source::recording::Recording;
use crate::source::{Location, Preset, list};
use crate::{
    BatchStream, Dataset, EpochReader, Io, Metrics, OrderSettings, Progress, Reading, Snapshot, Store, StreamOptions,
};

const NUM_ROWS: i64 = 2000;
const PAGE_ROWS: usize = 100;

/// Returns a table of numbers and 1 KiB texts: two row groups, each with ten 100 KiB pages of text.
fn parquet(has_page_index: bool) -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..NUM_ROWS));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..NUM_ROWS).map(|id| format!("{id:01024}"))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(1000))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS)
        .set_statistics_enabled(if has_page_index { EnabledStatistics::Page } else { EnabledStatistics::Chunk })
        .set_offset_index_disabled(!has_page_index)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// A dataset over a store that records requests.
struct Lake {
    recording: Arc<Recording>,
    dataset: Dataset,
}

impl Lake {
    fn open(objects: &[(&str, Vec<u8>)]) -> Self {
        Self::open_with(objects, Preset::object_storage().unmeasured())
    }

    fn open_with(objects: &[(&str, Vec<u8>)], preset: Preset) -> Self {
        Io::current().unwrap().block_on(async {
            let recording = Recording::of(objects.iter().cloned()).await;
            let store = Store::of_client_with(Arc::clone(&recording) as _, preset);
            let listed = list(&store.connect().unwrap(), &Location::parse("s3://b/").unwrap()).await.unwrap();
            let objects = listed.into_iter().map(|listed| (0, listed.object)).collect();
            let snapshot = Snapshot::of_objects(vec![store], objects, &Progress::default()).await.unwrap();
            Self { recording, dataset: Dataset::new(Arc::new(snapshot)) }
        })
    }

    /// Selects rows and columns, and evaluates the filter.
    fn select(&self, filter: &str, columns: &[&str]) -> Dataset {
        let names: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
        let dataset = self.dataset.filter(filter).unwrap().select_columns(&names).unwrap();
        let connections = dataset.connect(&Arc::new(Metrics::default())).unwrap();
        let progress = Arc::new(Progress::default());
        Io::current().unwrap().block_on(dataset.answer(connections, None, Reading::Later, &progress)).unwrap();
        dataset
    }

    /// Makes a pass over `dataset` and returns its requests, sorted by object and offset.
    fn payload(&self, dataset: &Dataset) -> Vec<String> {
        self.recording.take();
        self.pass(dataset)
    }

    /// Makes a pass over `dataset` and returns its requests and all earlier ones, sorted likewise.
    fn pass(&self, dataset: &Dataset) -> Vec<String> {
        let answer = dataset.known_answer().unwrap();
        let num_rows = answer.selection().num_rows();
        let reader = Arc::new(EpochReader::try_new(dataset, answer, OrderSettings::Sequential, 1 << 30).unwrap());
        let options = StreamOptions { memory_limit: 1 << 30, num_threads: 2, max_skipped: None, follows_parts: false };
        let batches = BatchStream::start(&reader, 0, Share::whole(num_rows, 256), options).unwrap();
        let num_read: usize = batches.map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(num_read as u64, num_rows);
        let mut requests = self.recording.take();
        requests.sort_by_key(|request| (request.rsplit(' ').nth(2).map(str::to_owned), range_of(request)));
        requests
    }

    /// Returns the range of a column's pages; its whole chunk if there is no index.
    fn pages(&self, object: usize, row_group: u32, column: usize, pages: Range<usize>) -> Range<u64> {
        let fragment = &self.dataset.snapshot().fragments[object];
        let Some(index) = fragment.reader.metadata().offset_index() else {
            let (start, len) = fragment.row_group(row_group).column(column).byte_range();
            return start..start + len;
        };
        let pages = &index[row_group as usize][column].page_locations()[pages];
        let (first, last) = (&pages[0], &pages[pages.len() - 1]);
        let end = last.offset + i64::from(last.compressed_page_size);
        u64::try_from(first.offset).unwrap()..u64::try_from(end).unwrap()
    }
}

fn range_of(request: &str) -> (u64, u64) {
    let range = request.split(' ').nth(1).and_then(|range| range.split_once(".."));
    range.map_or((0, 0), |(start, end)| (start.parse().unwrap(), end.parse().unwrap()))
}

fn get(range: &Range<u64>, key: &str) -> String {
    format!("get {}..{} of {key} if unchanged", range.start, range.end)
}

#[test]
fn a_whole_row_group_is_one_request() {
    let lake = Lake::open(&[("a.parquet", parquet(true))]);
    let groups = [0, 1].map(|group| {
        let (first, last) = (lake.pages(0, group, 0, 0..1), lake.pages(0, group, 1, 0..10));
        get(&(first.start..last.end), "a.parquet")
    });
    assert_eq!(lake.payload(&lake.select("true", &["id", "text"])), groups);
}

#[test]
fn sparse_rows_are_read_by_their_pages() {
    let lake = Lake::open(&[("a.parquet", parquet(true))]);
    let kept = lake.select("id IN (17, 901, 1350, 1480)", &["text"]);
    let expected = [
        lake.pages(0, 0, 1, 0..1),
        lake.pages(0, 0, 1, 9..10),
        // Adjacent: one request.
        lake.pages(0, 1, 1, 3..5),
    ];
    assert_eq!(lake.payload(&kept), expected.map(|range| get(&range, "a.parquet")));
}

#[test]
fn without_a_page_index_the_whole_chunk_is_read() {
    let lake = Lake::open(&[("a.parquet", parquet(false))]);
    let kept = lake.select("id IN (17, 901)", &["text"]);
    assert_eq!(lake.payload(&kept), [get(&lake.pages(0, 0, 1, 0..10), "a.parquet")]);
}

#[test]
fn of_many_objects_only_those_with_kept_rows_are_read() {
    let keys = ["a.parquet", "b.parquet", "c.parquet"];
    let lake = Lake::open(&keys.map(|key| (key, parquet(true))));
    let kept = lake.select("id = 250", &["id"]);
    let expected: Vec<_> = (0..3).map(|object| get(&lake.pages(object, 0, 0, 2..3), keys[object])).collect();
    assert_eq!(lake.payload(&kept), expected);
    assert_eq!(lake.payload(&lake.select("id > 5000", &["id"])), Vec::<String>::new());
}

#[test]
fn the_chain_of_requests_is_no_longer_for_many_objects() {
    let keys = ["a.parquet", "b.parquet", "c.parquet"];
    let lake = Lake::open(&keys.map(|key| (key, parquet(true))));
    let kept = lake.select("id % 7 = 3 AND text LIKE '%3'", &["text"]);
    let explanation = kept.explain(&kept.known_selection().unwrap()).unwrap();
    assert_eq!(explanation.opening.footers.depth, 1);
    assert!(explanation.depth() <= 1 + 2 + explanation.selection.indexes.depth, "{explanation:?}");
}

#[test]
fn an_explanation_foretells_the_requests() {
    let lake = Lake::open(&[("a.parquet", parquet(true))]);
    for filter in ["true", "id IN (17, 901, 1350, 1480)", "id BETWEEN 900 AND 1100"] {
        let kept = lake.select(filter, &["text"]);
        let explanation = kept.explain(&kept.known_selection().unwrap()).unwrap();
        let requests = lake.payload(&kept);
        let fetched: u64 = requests.iter().map(|request| range_of(request)).map(|(start, end)| end - start).sum();
        assert_eq!((explanation.payload_requests, explanation.payload_fetched), (requests.len() as u64, fetched));
        assert!(explanation.payload_bytes <= fetched && fetched <= explanation.payload_bytes * 6 / 5, "{filter}");
    }
}

#[test]
fn another_engine_has_the_pages_read_that_it_needs_and_no_others() {
    let lake = Lake::open(&[("a.parquet", parquet(true))]);
    let read = |sql: &str| {
        lake.recording.take();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let batches = runtime.block_on(async {
            let session = datafusion::prelude::SessionContext::new();
            session.register_table("t", lake.dataset.table_provider()).unwrap();
            session.sql(sql).await.unwrap().collect().await.unwrap()
        });
        let mut requests = lake.recording.take();
        requests.sort_by_key(|request| range_of(request));
        (batches.iter().map(RecordBatch::num_rows).sum::<usize>(), requests)
    };
    // Statistics of row groups and pages exclude all but one page of each column.
    let first = |column| get(&lake.pages(0, 0, column, 0..1), "a.parquet");
    assert_eq!(read("SELECT text FROM t WHERE id < 10"), (10, vec![first(0), first(1)]));
    // Small pages are read together, but not with those of the next row group.
    assert_eq!(read("SELECT id FROM t LIMIT 5"), (5, vec![get(&lake.pages(0, 0, 0, 0..10), "a.parquet")]));
    assert_eq!(read("SELECT count(*) FROM t"), (1, Vec::new()));
}
