//! What is read of the kept rows before all of them are known.

use std::time::{Duration, Instant};

use super::super::payload::Payload;
use super::*;
use crate::metrics::Stage;
use crate::source::Ahead;

/// What a selection started to read.
struct Begun {
    sets: Vec<RowSet>,
    ahead: Arc<Ahead>,
    columns: Arc<[usize]>,
}

/// How much may be requested, and in which order the rows will be read.
#[derive(Debug, Clone, Copy)]
struct Terms {
    round_trip: scan::RoundTripBytes,
    max_bytes: u64,
    is_in_order: bool,
}

const IN_ORDER: Terms = Terms { round_trip: CHEAP, max_bytes: 1 << 30, is_in_order: true };

impl Bucket {
    async fn begin(&self, text: &str, columns: &[usize], terms: Terms) -> Begun {
        let filter = Filter::parse(text, &self.snapshot).unwrap();
        let connections = [self.connection().at(Stage::Predicates)];
        let ahead = Arc::new(Ahead::new(terms.max_bytes, &Arc::default()));
        let columns: Arc<[usize]> = columns.into();
        let payload = Payload {
            snapshot: Arc::clone(&self.snapshot),
            columns: Arc::clone(&columns),
            connections: vec![self.connection().at(Stage::Payload)],
            ahead: Arc::clone(&ahead),
            is_in_order: terms.is_in_order,
        };
        let wanted = scan::Wanted { filter: &filter, within: None, enough: None, payload: Some(payload) };
        let progress = Progress::default();
        let selecting = scan::select(&self.snapshot, wanted, &connections, LIMITS, terms.round_trip, &progress);
        Begun { sets: selecting.await.unwrap().0, ahead, columns }
    }

    /// Reads the kept rows, with or without what was started.
    async fn finish(&self, begun: &Begun, ahead: Option<&Arc<Ahead>>) -> Vec<RecordBatch> {
        let connection = self.connection().with_ahead(ahead);
        let mut batches = Vec::new();
        for (&row_group, set) in self.snapshot.row_groups.iter().zip(&begun.sets) {
            let read = RowGroupRead::try_new(&self.snapshot, row_group, &begun.columns, set.clone(), 10_000).unwrap();
            let object = &self.snapshot.fragment(row_group).object;
            let bytes = read_ranges(&connection, object, read.ranges()).await.unwrap();
            batches.push(read.decode_at_once(bytes).unwrap());
        }
        batches
    }

    /// Returns the requests since the last call, sorted.
    fn requests(&self) -> Vec<String> {
        let requests = self.recording.take();
        let mut requests: Vec<_> = requests.iter().map(|request| request.replace(" if unchanged", "")).collect();
        requests.sort_unstable();
        requests
    }
}

fn sorted<const N: usize>(mut requests: [String; N]) -> [String; N] {
    requests.sort_unstable();
    requests
}

#[test]
fn little_that_is_open_is_read_with_the_predicate_columns() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..2000), properties())], true).await;
        let begun = bucket.begin("number % 100 = 7", &[2], Terms { round_trip: DEAR, ..IN_ORDER }).await;
        bucket.finish(&begun, Some(&begun.ahead)).await;
        // It was not known which pages have the rows.
        let expected = [(0, 1), (0, 2), (1, 1), (1, 2)].map(|(group, column)| bucket.request(0, group, column, 0..10));
        assert_eq!(bucket.requests(), sorted(expected));
    });
}

#[test]
fn what_is_likely_to_be_kept_is_read_with_the_predicate_columns() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..2000), properties())], true).await;
        // A page has a hundred rows, so hardly any is without one that passes.
        let begun = bucket.begin("number < 500", &[2], IN_ORDER).await;
        bucket.finish(&begun, Some(&begun.ahead)).await;
        let expected = [(0, 1), (0, 2), (1, 1), (1, 2)].map(|(group, column)| bucket.request(0, group, column, 0..10));
        assert_eq!(bucket.requests(), sorted(expected));
    });
}

#[test]
fn statistics_of_a_row_group_tell_what_is_likely_where_a_column_has_one_page() {
    block_on(async {
        // Bounds that promise rows which do not exist, to see what trusts them.
        let numbers = Int32Array::from_iter_values((0..2000).map(|row| row % 2 * 1000));
        let texts = StringArray::from_iter_values((0..2000).map(|row| format!("row {row}")));
        let batch =
            RecordBatch::try_from_iter([("number", Arc::new(numbers) as ArrayRef), ("text", Arc::new(texts) as _)]);
        let body =
            parquet(&batch.unwrap(), properties().set_data_page_row_count_limit(1000).set_write_batch_size(1000));
        let bucket = Bucket::of([body], true).await;
        for (round_trip, columns) in [(CHEAP, &[0, 1][..]), (FREE, &[0])] {
            let begun = bucket.begin("number > 100 AND number < 900", &[1], Terms { round_trip, ..IN_ORDER }).await;
            assert!(bucket.finish(&begun, Some(&begun.ahead)).await.iter().all(|batch| batch.num_rows() == 0));
            let expected = (0..2).flat_map(|group| columns.iter().map(move |&column| (group, column)));
            let mut expected: Vec<_> = expected.map(|(group, column)| bucket.request(0, group, column, 0..1)).collect();
            expected.sort_unstable();
            // Nobody waits for what is in vain.
            let mut requests = bucket.requests();
            let start = Instant::now();
            while requests.len() < expected.len() && start.elapsed() < Duration::from_secs(60) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                requests.extend(bucket.requests());
            }
            requests.sort_unstable();
            assert_eq!(requests, expected);
        }
    });
}

#[test]
fn much_that_is_open_is_read_once_its_rows_are_known() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..2000), properties())], true).await;
        let begun = bucket.begin("number = 7 OR number = 8", &[2], IN_ORDER).await;
        bucket.finish(&begun, Some(&begun.ahead)).await;
        let with_ahead = bucket.requests();
        bucket.finish(&begun, None).await;
        let alone = bucket.requests();
        // In addition to the filter's own columns, the same requests, made once.
        let predicates = [0, 1].map(|group| bucket.request(0, group, 1, 0..10));
        let payload: Vec<_> = with_ahead.iter().filter(|request| !predicates.contains(request)).cloned().collect();
        assert_eq!((payload, with_ahead.len()), (alone.clone(), alone.len() + 2));
    });
}

#[test]
fn row_groups_that_statistics_take_are_read_at_once() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..3000), properties())], true).await;
        let begun = bucket.begin("sorted >= 1000 AND sorted < 2500", &[1], IN_ORDER).await;
        bucket.finish(&begun, Some(&begun.ahead)).await;
        assert_eq!(bucket.requests(), sorted([bucket.request(0, 1, 1, 0..10), bucket.request(0, 2, 1, 0..5)]));
    });
}

#[test]
fn shuffled_rows_are_read_only_where_all_of_them_fit() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..3000), properties())], true).await;
        let terms = Terms { max_bytes: 20_000, ..IN_ORDER };
        let shuffled = bucket.begin("sorted >= 10", &[2], Terms { is_in_order: false, ..terms }).await;
        assert_eq!(shuffled.ahead.room(), 20_000);
        let in_order = bucket.begin("sorted >= 10", &[2], terms).await;
        assert!(in_order.ahead.room() < 20_000);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_same_rows_are_read_whatever_was_begun(
        number in 0_i32..1000, bound in 0_i64..3000, columns in prop::sample::subsequence(vec![0_usize, 1, 2, 3], 1..=4),
        round_trip in prop::sample::select(vec![FREE, CHEAP, DEAR]), max_bytes in 0_u64..400_000,
        is_in_order in any::<bool>(), with_index in any::<bool>(),
    ) {
        let statistics = if with_index { EnabledStatistics::Page } else { EnabledStatistics::Chunk };
        let written = properties().set_statistics_enabled(statistics).set_offset_index_disabled(!with_index);
        let text = format!("number < {number} AND sorted >= {bound}");
        let terms = Terms { round_trip, max_bytes, is_in_order };
        block_on(async {
            let bucket = Bucket::of([parquet(&rows(0..3000), written)], true).await;
            let begun = bucket.begin(&text, &columns, terms).await;
            prop_assert_eq!(&begun.sets, &bucket.select_slowly(&text).await.unwrap());
            let with_ahead = bucket.finish(&begun, Some(&begun.ahead)).await;
            prop_assert_eq!(with_ahead, bucket.finish(&begun, None).await);
            Ok(())
        })?;
    }

    #[test]
    fn extents_of_kept_rows_are_those_that_a_read_asks_for(
        kept in prop::collection::vec(0_u32..1000, 1..6), columns in prop::sample::subsequence(vec![0_usize, 1, 2, 3], 1..=4),
        has_dictionary in any::<bool>(),
    ) {
        block_on(async {
            let written = properties().set_dictionary_enabled(has_dictionary);
            let bucket = Bucket::of([parquet(&rows(0..1000), written)], true).await;
            let mut kept = kept;
            kept.sort_unstable();
            kept.dedup();
            let set = RowSet::from_rows(&kept, 1000);
            let row_group = bucket.snapshot.row_groups[0];
            let read = RowGroupRead::try_new(&bucket.snapshot, row_group, &columns.clone().into(), set.clone(), 10).unwrap();
            let extents = bucket.snapshot.fragments[0].extents(&columns, 0).into_iter();
            let ranges: Vec<_> =
                extents.filter(|extent| set.count(extent.rows.clone()) > 0).map(|extent| extent.bytes).collect();
            prop_assert_eq!(crate::source::coalesce(&ranges, 0), crate::source::coalesce(read.ranges(), 0));
            Ok(())
        })?;
    }
}
