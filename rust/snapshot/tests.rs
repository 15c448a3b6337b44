//! Opening: its requests, and what it refuses and finds.

mod catalogue;
mod partitions;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, ListArray, RecordBatch, StringArray, StringViewArray};
use arrow_schema::{DataType, Field, Schema};
use object_store::{ObjectStore, PutOptions};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::{OpenRequest, RowGroupRead, Snapshot};
use crate::error::{Error, Result};
use crate::io::Io;
use crate::metrics::Progress;
use crate::rows::RowSet;
use crate::source::recording::Recording;
use crate::source::{Location, Store, list, read_ranges};

fn numbers(name: &str, values: std::ops::Range<i32>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int32Array::from_iter_values(values));
    RecordBatch::try_from_iter([(name, column)]).unwrap()
}

fn parquet_with(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn parquet(batch: &RecordBatch) -> Vec<u8> {
    parquet_with(batch, WriterProperties::default())
}

/// Opens what is in `recording`, as if it were a bucket.
async fn open(recording: &Arc<Recording>, uri: &str) -> Result<Snapshot> {
    let store = Store::of_client(Arc::clone(recording) as _);
    let listed = list(&store.connect()?, &Location::parse(uri)?).await?;
    let objects = listed.into_iter().map(|listed| (0, listed.object)).collect();
    Snapshot::of_objects(vec![store], objects, &Progress::default()).await
}

fn block_on<F: Future>(future: F) -> F::Output {
    Io::current().unwrap().block_on(future)
}

fn open_local(path: &Path) -> Result<Snapshot> {
    let sources = vec![path.to_str().unwrap().to_owned()];
    let request = OpenRequest { sources, ..OpenRequest::default() };
    block_on(Snapshot::open(request, &Progress::default()))
}

fn refusal(body: Vec<u8>) -> String {
    block_on(async {
        let recording = Recording::of([("d/x.parquet", body)]).await;
        match open(&recording, "s3://bucket/d/").await {
            Err(Error::NotParquet { url, reason }) => {
                assert_eq!(url, "s3://bucket/d/x.parquet");
                reason
            }
            opened => panic!("expected a refusal, got {opened:?}"),
        }
    })
}

#[test]
fn a_folder_costs_one_listing_and_one_request_for_each_footer() {
    block_on(async {
        let body = parquet(&numbers("a", 0..10));
        let recording = Recording::of([("d/1.parquet", body.clone()), ("d/2.parquet", body.clone())]).await;
        let snapshot = open(&recording, "s3://bucket/d/").await.unwrap();
        assert_eq!(snapshot.num_rows, 20);
        let size = body.len();
        let footers = [1, 2].map(|number| format!("get 0..{size} of d/{number}.parquet"));
        assert_eq!(recording.take(), [vec!["list d".to_owned()], footers.to_vec()].concat());
    });
}

#[test]
fn a_named_object_costs_one_suffix_request_and_nothing_else() {
    block_on(async {
        let recording = Recording::of([("d/1.parquet", parquet(&numbers("a", 0..10)))]).await;
        let snapshot = open(&recording, "s3://bucket/d/1.parquet").await.unwrap();
        let object = &snapshot.fragments[0].object;
        assert!(object.size_bytes.is_some() && object.e_tag.is_some());
        assert_eq!(recording.take(), ["get bytes=-262144 of d/1.parquet"]);
    });
}

#[test]
fn a_large_footer_costs_one_more_request_and_is_digested_whole() {
    block_on(async {
        let columns = (0..4000).map(|number| {
            let column: ArrayRef = Arc::new(Int32Array::from_iter_values([number]));
            (format!("a_column_with_a_rather_long_name_{number}"), column)
        });
        let body = parquet(&RecordBatch::try_from_iter(columns).unwrap());
        let footer_bytes = 8 + body[body.len() - 8..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
        assert!(footer_bytes > 256 << 10);
        let recording = Recording::of([("d/wide.parquet", body.clone())]).await;
        let snapshot = open(&recording, "s3://bucket/d/wide.parquet").await.unwrap();
        assert_eq!(recording.take().len(), 2);
        assert_eq!(snapshot.fragments[0].footer_digest[..], Sha256::digest(&body[body.len() - footer_bytes..])[..]);
        assert!(snapshot.fragments[0].has_offset_index(0));
    });
}

#[test]
fn a_folder_whose_name_ends_like_an_object_is_opened_as_one() {
    block_on(async {
        let body = parquet(&numbers("a", 0..10));
        let objects = [("d/x.parquet/_SUCCESS", vec![]), ("d/x.parquet/part-0.parquet", body.clone())];
        let recording = Recording::of(objects).await;
        assert_eq!(open(&recording, "s3://bucket/d/x.parquet").await.unwrap().num_rows, 10);
        // A console's folder marker is not an object.
        let with_marker = [("d/x.parquet", vec![]), ("d/x.parquet/part-0.parquet", body)];
        let recording = Recording::of(with_marker).await;
        assert_eq!(open(&recording, "s3://bucket/d/").await.unwrap().num_rows, 10);
    });
}

#[test]
fn an_object_that_is_not_there_is_named() {
    block_on(async {
        let recording = Recording::of([("d/1.parquet", parquet(&numbers("a", 0..10)))]).await;
        match open(&recording, "s3://bucket/d/2.parquet").await {
            Err(Error::NotFound { url, .. }) => assert_eq!(url, "s3://bucket/d/2.parquet"),
            opened => panic!("{opened:?}"),
        }
    });
}

#[test]
fn what_is_not_parquet_says_why() {
    let whole = parquet(&numbers("a", 0..1000));
    let footer = |length: u32, magic: &[u8]| [&[0; 100], &length.to_le_bytes()[..], magic].concat();
    assert!(refusal(vec![]).contains("0 bytes"));
    assert!(refusal(b"PAR1PAR1".to_vec()).contains("8 bytes"));
    assert!(refusal(whole[..whole.len() / 2].to_vec()).contains("does not end in `PAR1`"));
    assert!(refusal(b"this is a text, not a table".to_vec()).contains("another kind of file"));
    assert!(refusal(footer(50, b"PARE")).contains("encrypted"));
    let reason = refusal(footer(u32::MAX, b"PAR1"));
    assert!(reason.contains("claims 4294967295 bytes") && reason.contains("has 108"), "{reason}");
    refusal(footer(90, b"PAR1"));
    // Without its beginning, the footer is valid but points to missing bytes.
    refusal(whole[whole.len() - 300..].to_vec());
}

#[test]
fn a_folder_of_files_opens_with_what_is_hidden_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, body: &[u8]| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, body).unwrap();
    };
    write("nested/part-10.parquet", &parquet(&numbers("a", 10..20)));
    write("nested/part-2.PARQUET", &parquet(&numbers("a", 0..10)));
    for name in [".hidden.parquet", "_delta_log/0.parquet", "notes.txt"] {
        write(name, b"no table");
    }
    let snapshot = open_local(folder.path()).unwrap();
    let urls: Vec<_> =
        snapshot.fragments.iter().map(|fragment| fragment.object.url.rsplit('/').next().unwrap()).collect();
    assert_eq!(urls, ["part-2.PARQUET", "part-10.parquet"]);
    assert!(matches!(open_local(&folder.path().join("notes.txt")), Err(Error::NotParquet { .. })));
    assert!(matches!(open_local(&folder.path().join("nowhere")), Err(Error::NotFound { .. })));
    assert!(matches!(
        open_local(&folder.path().join("nowhere/*.parquet")),
        Err(Error::NotFound { .. } | Error::NoObjects { .. })
    ));
    match open_local(&folder.path().join("_delta_log/..")) {
        Ok(same) => assert_eq!(same.fingerprint, snapshot.fingerprint),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_copy_has_the_same_fingerprint_and_other_rows_another() {
    let [here, there, other] = [0..10, 0..10, 1..11].map(|values| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.parquet"), parquet(&numbers("a", values))).unwrap();
        folder
    });
    let fingerprint = |folder: &tempfile::TempDir| open_local(folder.path()).unwrap().fingerprint;
    assert_eq!(fingerprint(&here), fingerprint(&there));
    assert_ne!(fingerprint(&here), fingerprint(&other));
}

#[test]
fn views_become_plain_types_at_any_depth() {
    let text: ArrayRef = Arc::new(StringViewArray::from_iter_values(["a", "b"]));
    let item = Arc::new(Field::new("item", DataType::Utf8View, true));
    let offsets = arrow_buffer::OffsetBuffer::from_lengths([1, 1]);
    let list: ArrayRef = Arc::new(ListArray::try_new(Arc::clone(&item), offsets, Arc::clone(&text), None).unwrap());
    let fields = vec![Field::new("t", DataType::Utf8View, true), Field::new("l", DataType::List(item), true)];
    let metadata = [("huggingface".to_owned(), "{}".to_owned())].into();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let body = parquet(&RecordBatch::try_new(schema, vec![text, list]).unwrap());
    block_on(async {
        let recording = Recording::of([("d/x.parquet", body)]).await;
        let schema = open(&recording, "s3://bucket/d/").await.unwrap().schema;
        assert_eq!(*schema.field(0).data_type(), DataType::Utf8);
        assert_eq!(*schema.field(1).data_type(), DataType::new_list(DataType::Utf8, true));
        assert_eq!(schema.metadata().get("huggingface").map(String::as_str), Some("{}"));
    });
}

#[test]
fn missing_columns_are_null_and_required_ones_become_nullable() {
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(["x"]));
    let second = RecordBatch::try_from_iter([("b", text)]).unwrap();
    block_on(async {
        let first = numbers("a", 0..1);
        let recording = Recording::of([("d/1.parquet", parquet(&first)), ("d/2.parquet", parquet(&second))]).await;
        let snapshot = open(&recording, "s3://bucket/d/").await.unwrap();
        let nullable: Vec<_> = snapshot.schema.fields().iter().map(|f| (f.name().as_str(), f.is_nullable())).collect();
        assert_eq!(nullable, [("a", true), ("b", true)]);
        let columns: Vec<_> = snapshot.fragments.iter().map(|fragment| fragment.columns.to_vec()).collect();
        assert_eq!(columns, [[Some(0), None], [None, Some(0)]]);
    });
}

#[test]
fn an_index_is_used_where_there_is_one() {
    let batch = numbers("a", 0..1000);
    let without = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .build();
    block_on(async {
        let objects = [("d/1.parquet", parquet(&batch)), ("d/2.parquet", parquet_with(&batch, without))];
        let recording = Recording::of(objects).await;
        let snapshot = open(&recording, "s3://bucket/d/").await.unwrap();
        let has_index: Vec<_> = snapshot.fragments.iter().map(|fragment| fragment.has_offset_index(0)).collect();
        assert_eq!(has_index, [true, false]);
        let nulls: Vec<_> = snapshot.fragments.iter().map(|fragment| fragment.null_count(0, 0)).collect();
        assert_eq!(nulls[0], Some(0));
    });
}

#[test]
fn an_object_that_is_overwritten_after_opening_is_refused() {
    block_on(async {
        let recording = Recording::of([("d/1.parquet", parquet(&numbers("a", 0..1000)))]).await;
        let snapshot = open(&recording, "s3://bucket/d/").await.unwrap();
        let object = &snapshot.fragments[0].object;
        let connection = snapshot.stores[0].connect().unwrap();
        recording.take();
        read_ranges(&connection, object, &[4..10, 20..30]).await.unwrap();
        assert_eq!(recording.take(), ["get 4..30 of d/1.parquet if unchanged"]);
        let other = parquet(&numbers("a", 1..1001)).into();
        recording.inner.put_opts(&object.path, other, PutOptions::default()).await.unwrap();
        let changed = read_ranges(&connection, object, std::slice::from_ref(&(4..10))).await;
        assert!(matches!(changed, Err(Error::ObjectChanged { .. })), "{changed:?}");
    });
}

/// Reads every column of every row group, alone and with some rows only.
fn read_all(snapshot: Snapshot) -> Result<()> {
    let snapshot = Arc::new(snapshot);
    let connection = snapshot.stores[0].connect()?;
    let projection: Arc<[usize]> = (0..snapshot.schema.fields().len()).collect();
    for &row_group in &snapshot.row_groups {
        let some = [0..1, row_group.num_rows / 2..row_group.num_rows];
        for set in [RowSet::All, RowSet::Runs(some.into())] {
            let read = RowGroupRead::try_new(&snapshot, row_group, &projection, set, 64)?;
            let object = &snapshot.fragment(row_group).object;
            let bytes = block_on(read_ranges(&connection, object, read.ranges()))?;
            read.decode_at_once(bytes)?;
        }
    }
    Ok(())
}

/// Texts, numbers and lists, in several row groups of several pages.
fn mixed() -> Vec<u8> {
    let text: ArrayRef = Arc::new(StringArray::from_iter_values((0..600).map(|n| format!("text {}", n % 37))));
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let offsets = arrow_buffer::OffsetBuffer::from_lengths((0..600).map(|n| n % 4));
    let values = Arc::new(Int32Array::from_iter((0..900).map(|n| (n % 5 > 0).then_some(n))));
    let list: ArrayRef = Arc::new(ListArray::try_new(item, offsets, values, None).unwrap());
    let number: ArrayRef = Arc::new(Int32Array::from_iter((0..600).map(|n| (n % 3 > 0).then_some(n))));
    let batch = RecordBatch::try_from_iter([("text", text), ("list", list), ("number", number)]).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(300))
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .build();
    parquet_with(&batch, properties)
}

#[test]
fn all_pages_of_several_row_groups_are_read() {
    let snapshot = block_on(async {
        open(&Recording::of([("x.parquet", mixed())]).await, "s3://bucket/x.parquet").await.unwrap()
    });
    assert_eq!(snapshot.row_groups.len(), 2);
    read_all(snapshot).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn damage_anywhere_is_an_error_of_the_object_or_harmless(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = mixed();
        for (place, value) in damage {
            let place = place.index(body.len() - 8);
            body[place] = value;
        }
        let opened = block_on(async { open(&Recording::of([("x.parquet", body)]).await, "s3://bucket/x.parquet").await });
        match opened.and_then(read_all) {
            Ok(()) | Err(Error::NotParquet { .. } | Error::DuplicateColumn { .. } | Error::Decode { .. }) => {}
            Err(Error::ShortRead { .. } | Error::Read { .. }) => {}
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_damaged_footer_is_an_error_or_harmless_never_a_crash(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = parquet(&numbers("a", 0..50));
        let first = body.len() - 400;
        for (place, value) in damage {
            let place = first + place.index(392);
            body[place] = value;
        }
        let opened = block_on(async { open(&Recording::of([("x.parquet", body)]).await, "s3://bucket/x.parquet").await });
        match opened {
            Ok(_) | Err(Error::NotParquet { .. } | Error::DuplicateColumn { .. }) => {}
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}
