//! Tests which requests are made for which ranges, and when.

use std::ops::Range;
use std::sync::Arc;

use futures::future::{join, join_all};
use object_store::path::Path;

use super::recording::Recording;
use super::{Connection, Object, Preset, Store, read_ranges};
use crate::io::Io;
use crate::metrics::Stage;

const MIB: u64 = 1 << 20;

/// Calls `test` with an object of `num_bytes` in a store of `preset`.
fn with_object(num_bytes: u64, preset: Preset, test: impl AsyncFnOnce(&Connection, &Recording, &Object)) {
    Io::current().unwrap().block_on(async {
        let body = vec![7; usize::try_from(num_bytes).unwrap()];
        let recording = Recording::of([("x", body)]).await;
        let connection = Store::of_client_with(Arc::clone(&recording) as _, preset).connect().unwrap();
        let object =
            Object { path: Path::from("x"), url: "s3://b/x".into(), written: None, size_bytes: None, e_tag: None };
        test(&connection, &recording, &object).await;
    });
}

fn requests(num_bytes: u64, preset: Preset, wanted: &[Range<u64>]) -> Vec<String> {
    let mut made = Vec::new();
    with_object(num_bytes, preset, async |connection, recording, object| {
        read_ranges(connection, object, wanted).await.unwrap();
        made = recording.take();
    });
    made
}

fn object_storage() -> Preset {
    Preset::object_storage().unmeasured()
}

#[test]
fn neighbours_are_one_request() {
    let wanted = [100..200, 0..100, 200..30_000];
    assert_eq!(requests(MIB, object_storage(), &wanted), ["get 0..30000 of x"]);
}

#[test]
fn a_gap_that_is_small_beside_its_neighbours_is_read_along() {
    let wanted = [0..MIB, MIB + 200_000..3 * MIB];
    assert_eq!(requests(4 * MIB, object_storage(), &wanted), ["get 0..3145728 of x"]);
}

#[test]
fn a_gap_that_is_large_beside_its_neighbours_is_left_out() {
    let wanted = [0..64_000, 264_000..328_000];
    assert_eq!(requests(MIB, object_storage(), &wanted), ["get 0..64000 of x", "get 264000..328000 of x"]);
    // For small ranges, the request costs more than the gap.
    let wanted = [0..1000, 20_000..21_000];
    assert_eq!(requests(MIB, object_storage(), &wanted), ["get 0..21000 of x"]);
}

#[test]
fn a_file_is_read_with_smaller_gaps_and_never_split() {
    let wanted = [0..1000, 17_000..18_000, 40_000..9 * MIB];
    assert_eq!(requests(9 * MIB, Preset::local(), &wanted), ["get 0..18000 of x", "get 40000..9437184 of x"]);
}

#[test]
fn a_large_range_is_split_into_equal_requests() {
    let expected = ["get 0..10485760 of x", "get 10485760..20971520 of x", "get 20971520..31457280 of x"];
    assert_eq!(requests(30 * MIB, object_storage(), std::slice::from_ref(&(0..30 * MIB))), expected);
}

#[test]
fn of_requests_that_wait_the_one_needed_first_is_made_first() {
    let preset = Preset { first_concurrency: 1, ..Preset::object_storage() }.unmeasured();
    with_object(MIB, preset, async |connection, recording, object| {
        let (held, later) = (connection.traffic.slot(0, 1).await.unwrap(), connection.with_slack(100));
        let reads = [(&later, 0..1), (connection, 1000..1001), (&later, 2000..2001), (connection, 3000..3001)];
        let reads = reads.map(async |(connection, range)| {
            read_ranges(connection, object, std::slice::from_ref(&range)).await.unwrap();
        });
        // They come first, then there is room.
        join(join_all(reads), async { drop(held) }).await;
        let expected = ["get 1000..1001", "get 3000..3001", "get 0..1", "get 2000..2001"];
        assert_eq!(recording.take(), expected.map(|request| format!("{request} of x")));
    });
}

#[test]
fn depth_counts_requests_that_wait_for_each_other_only() {
    with_object(MIB, object_storage(), async |connection, _, object| {
        let first = connection.at(Stage::Predicates);
        for connection in [&first, &first, &first.then(), &connection.at(Stage::Payload)] {
            read_ranges(connection, object, &[0..10, 500_000..500_010]).await.unwrap();
        }
        let of = |stage| (connection.metrics.of(stage).requests, connection.metrics.of(stage).depth);
        assert_eq!((of(Stage::Predicates), of(Stage::Payload)), ((6, 2), (2, 1)));
        assert_eq!(connection.metrics.snapshot().depth, 3);
    });
}
