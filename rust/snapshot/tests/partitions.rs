//! Columns from the names of folders: their values, and which bytes they save.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};

use super::*;
use crate::dataset::{Dataset, Reading};
use crate::snapshot::find::Source;
use crate::source::Listed;

async fn open_folder(recording: &Arc<Recording>, uri: &str) -> Snapshot {
    let store = Store::of_client(Arc::clone(recording) as _);
    let listed = list(&store.connect().unwrap(), &Location::parse(uri).unwrap()).await.unwrap();
    let sources = listed.into_iter().map(|Listed { object, relative }| Source { store: 0, object, relative });
    let opened = Snapshot::of_sources(vec![store], sources.collect(), None, &Progress::default()).await.unwrap();
    recording.take();
    opened
}

async fn of_keys(keys: &[&str]) -> Arc<Recording> {
    Recording::of(keys.iter().map(|key| (*key, parquet(&numbers("a", 0..10))))).await
}

/// Returns the rows that a filter keeps, and the requests made.
async fn keep(snapshot: &Arc<Snapshot>, recording: &Recording, sql: &str) -> (u64, Vec<String>) {
    let dataset = Dataset::new(Arc::clone(snapshot)).filter(sql).unwrap();
    let connections = dataset.connect(&Arc::default()).unwrap();
    let answer = dataset.answer(connections, None, Reading::Later, &Arc::default()).await.unwrap();
    (answer.selection().num_rows(), recording.take())
}

fn fields(snapshot: &Snapshot) -> Vec<(&str, &DataType, bool)> {
    let fields = snapshot.schema.fields().iter();
    fields.map(|field| (field.name().as_str(), field.data_type(), field.is_nullable())).collect()
}

/// Reads all columns of each row group.
fn read(snapshot: &Arc<Snapshot>) -> Vec<RecordBatch> {
    let projection: Arc<[usize]> = (0..snapshot.schema.fields().len()).collect();
    let connection = snapshot.stores[0].connect().unwrap();
    let read = |&row_group| {
        let read = RowGroupRead::try_new(snapshot, row_group, &projection, RowSet::All, 64).unwrap();
        let object = &snapshot.fragment(row_group).object;
        let bytes = block_on(read_ranges(&connection, object, read.ranges())).unwrap();
        read.decode_at_once(bytes).unwrap()
    };
    snapshot.row_groups.iter().map(read).collect()
}

#[test]
fn folders_become_columns_after_those_of_the_objects() {
    let keys = [
        "d/day=2024-02-29/lang=de/n=1/0.parquet",
        "d/day=2024-03-01/lang=a%2Fb/n=-5/0.parquet",
        "d/day=2024-03-01/n=7/0.parquet",
    ];
    let recording = block_on(of_keys(&keys));
    let snapshot = Arc::new(block_on(open_folder(&recording, "s3://bucket/d/")));
    let expected = [
        ("a", &DataType::Int32, false),
        ("day", &DataType::Date32, false),
        ("lang", &DataType::Utf8, true),
        ("n", &DataType::Int64, false),
    ];
    assert_eq!(fields(&snapshot), expected);
    let batches = read(&snapshot);
    let days: Vec<_> = batches.iter().map(|batch| batch.column(1).as_primitive::<Date32Type>().value(9)).collect();
    let numbers: Vec<_> = batches.iter().map(|batch| batch.column(3).as_primitive::<Int64Type>().value(0)).collect();
    assert_eq!((days, numbers), (vec![19_782, 19_783, 19_783], vec![1, -5, 7]));
    let langs = batches.iter().map(|batch| batch.column(2).as_string::<i32>().clone());
    let langs: Vec<_> = langs.map(|lang| lang.is_valid(3).then(|| lang.value(3).to_owned())).collect();
    assert_eq!(langs, [Some("de".to_owned()), Some("a/b".to_owned()), None]);
    assert!(batches.iter().all(|batch| batch.num_rows() == 10));
}

#[test]
fn a_filter_on_folders_needs_no_bytes() {
    let recording = block_on(of_keys(&["d/l=de/n=1/0.parquet", "d/l=en/n=2/0.parquet", "d/n=3/0.parquet"]));
    let snapshot = Arc::new(block_on(open_folder(&recording, "s3://bucket/d/")));
    for (sql, num_kept) in [
        ("l = 'de'", 10),
        ("l <> 'de'", 10),
        ("l IS NULL", 10),
        ("l IS NOT NULL", 20),
        ("n BETWEEN 2 AND 3", 20),
        ("n > 3", 0),
        ("upper(l) = 'EN'", 10),
        ("n % 2 = 1", 20),
        ("l = 'de' OR n = 3", 20),
        ("coalesce(l, 'none') = 'none'", 10),
    ] {
        assert_eq!(block_on(keep(&snapshot, &recording, sql)), (num_kept, vec![]), "{sql}");
    }
    let (num_kept, requests) = block_on(keep(&snapshot, &recording, "n = 2 AND a >= 8"));
    assert_eq!((num_kept, requests.len()), (2, 1));
    assert!(requests[0].contains("d/l=en/n=2/0.parquet"), "{requests:?}");
}

#[test]
fn a_column_of_the_objects_stands_before_a_folder_of_its_name() {
    let body = |name: &str| parquet(&numbers(name, 0..2));
    let objects = [("d/a=9/b=1/0.parquet", body("a")), ("d/a=9/b=2/0.parquet", body("c"))];
    let recording = block_on(Recording::of(objects));
    let snapshot = Arc::new(block_on(open_folder(&recording, "s3://bucket/d/")));
    let names: Vec<_> = fields(&snapshot).into_iter().map(|field| field.0).collect();
    assert_eq!(names, ["a", "c", "b"]);
    let batches = read(&snapshot);
    assert_eq!(batches[0].column(0).as_primitive::<arrow_array::types::Int32Type>().values(), &[0, 1]);
    // The other object has none of its own, and gets its folder's as one of that column.
    assert_eq!(batches[1].column(0).as_primitive::<arrow_array::types::Int32Type>().values(), &[9, 9]);
}

#[test]
fn only_folders_below_what_was_listed_count() {
    let recording = block_on(of_keys(&["d/l=de/n=1/0.parquet"]));
    let names = |uri: &str| -> Vec<String> {
        let snapshot = block_on(open_folder(&recording, uri));
        snapshot.schema.fields().iter().map(|field| field.name().clone()).collect()
    };
    assert_eq!(names("s3://bucket/d/"), ["a", "l", "n"]);
    assert_eq!(names("s3://bucket/d/l=*/n=1/*.parquet"), ["a", "l", "n"]);
    assert_eq!(names("s3://bucket/d/l=de/"), ["a", "n"]);
    assert_eq!(names("s3://bucket/d/l=de/n=1/0.parquet"), ["a"]);
}

#[test]
fn the_fingerprint_tells_columns_of_folders_apart_and_does_not_change_without_any() {
    let fingerprint = |key: &str, uri: &str| {
        let recording = block_on(of_keys(&[key]));
        block_on(open_folder(&recording, uri)).fingerprint
    };
    let with = |key: &str| fingerprint(&format!("d/{key}/0.parquet"), "s3://bucket/d/");
    let of_all = [with("n=1"), with("n=2"), with("m=1"), with("n=x"), with("n=1/m=1")];
    let below = fingerprint("d/n=1/0.parquet", "s3://bucket/d/n=1/");
    for (number, one) in of_all.iter().enumerate() {
        assert!(of_all[..number].iter().chain([&below]).all(|other| other != one));
    }
    // If no folder is a column, it is the same as before folders could be.
    assert_eq!(below, fingerprint("x/0.parquet", "s3://bucket/x/"));
}

#[test]
fn statistics_and_costs_know_the_values() {
    let recording = block_on(of_keys(&["d/l=de/0.parquet", "d/0.parquet"]));
    let snapshot = block_on(open_folder(&recording, "s3://bucket/d/"));
    let of =
        |name: &str| snapshot.fragments.iter().find(|fragment| fragment.object.path.as_ref().contains(name)).unwrap();
    assert_eq!((of("l=de").null_count(1, 0), of("d/0").null_count(1, 0)), (Some(0), Some(10)));
    let layout = crate::snapshot::ColumnLayout::new(&snapshot, of("l=de"), &[1], 1 << 30);
    let cost = of("l=de").read_cost(&layout, 0, &(0..10), 0);
    assert_eq!((cost.fetched, cost.decoded), (0, 60));
}

#[test]
fn a_long_value_is_read_in_parts_that_offsets_reach() {
    let value = "x".repeat(1 << 20);
    let key = format!("d/l={value}/0.parquet");
    let recording = block_on(Recording::of([(key.as_str(), parquet(&numbers("a", 0..2048)))]));
    let snapshot = Arc::new(block_on(open_folder(&recording, "s3://bucket/d/")));
    let fragment = &snapshot.fragments[0];
    let layout = crate::snapshot::ColumnLayout::new(&snapshot, fragment, &[0, 1], u64::MAX);
    let parts = fragment.cut_by_cost(&layout, 0, 0..2048, 0, (u64::MAX, u64::MAX), false);
    assert_eq!(parts, [0..1024, 1024..2048]);
    let read = RowGroupRead::try_new(&snapshot, snapshot.row_groups[0], &[1].into(), RowSet::All, 2048).unwrap();
    let error = read.decode_at_once(Vec::<bytes::Bytes>::new()).unwrap_err().to_string();
    assert!(error.starts_with("cannot decode column `l` in row group 0 of "), "{}", &error[..100]);
    assert!(error.contains("more than 2 GiB of text; ask for fewer rows"), "{}", &error[error.len() - 200..]);
}
