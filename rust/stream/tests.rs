//! Streams with a given order, over many row groups and in little memory; and what is requested first.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StringArray,
};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::held::Held;
use super::holes::Holes;
use super::piece::{Fetched, Gathered, PieceKey, PlannedBatch, Task};
use super::scheduler::Scheduler;
use super::{BatchStream, Cause, Most, Polled, StreamOptions};
use crate::config;
use crate::finish::{Finish, FinishSettings, Finished};
use crate::plan::seed::{Key, Purpose};
use crate::plan::{EpochPlan, Hole, HoleUnits, Order, PieceId, Remainder, Share, Span};
use crate::reader::Part;
use crate::snapshot::ReadCost;
use crate::{Dataset, EpochReader, Error, Io, OpenRequest, OrderSettings, Progress, Result};

const NUM_ROWS: u64 = 6000;

/// Writes and opens a file with 30 row groups of 8 pages each: row numbers, and a text of 400 bytes per row.
pub(super) fn dataset(folder: &Path) -> Dataset {
    let numbers = || 0..i64::try_from(NUM_ROWS).unwrap();
    let texts: Vec<String> = numbers().map(|row| format!("{row:0400}")).collect();
    let columns: [(&str, ArrayRef); 2] =
        [("row", Arc::new(Int64Array::from_iter_values(numbers()))), ("text", Arc::new(StringArray::from(texts)))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(200))
        .set_data_page_row_count_limit(25)
        .set_write_batch_size(25)
        .set_dictionary_enabled(false)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    open(folder, &writer.into_inner().unwrap())
}

fn open(folder: &Path, file: &[u8]) -> Dataset {
    let path = folder.join("x.parquet");
    std::fs::write(&path, file).unwrap();
    let request = OpenRequest { sources: vec![path.to_str().unwrap().to_owned()], ..OpenRequest::default() };
    Io::current().unwrap().block_on(Dataset::open(request, &Progress::default())).unwrap()
}

/// Returns a batch that needs no transformation.
fn untouched(batch: RecordBatch) -> Finished {
    Finished { batch, num_skipped: 0 }
}

/// Returns the numbers of all rows that pass `keep`, in an order that depends only on the seed.
fn random_order(keep: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut draws = Key::new(7, 0, Purpose::All).draws(0);
    let mut keyed: Vec<(u64, u64)> =
        (0..NUM_ROWS).filter(|row| keep(*row)).map(|row| (draws.next_bits(), row)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, row)| row).collect()
}

pub(super) fn reader(dataset: &Dataset, order: &[u64], memory_limit: u64) -> Arc<EpochReader> {
    let answer = dataset.known_answer().unwrap();
    let settings = OrderSettings::Given(order.into());
    Arc::new(EpochReader::try_new(dataset, answer, settings, memory_limit).unwrap())
}

/// Returns the rows that one rank gets from `from` on, and the most bytes that it held.
fn deliver(reader: &Arc<EpochReader>, from: u64, (rank, world_size): (u32, u32), memory_limit: u64) -> (Vec<u64>, u64) {
    let share = Share {
        rank,
        world_size,
        batch_rows: 64,
        from,
        num_rows: reader.num_rows(),
        remainder: Remainder::Keep,
        drop_last: false,
        worker: 0,
        num_workers: 1,
    };
    let options = StreamOptions { memory_limit, num_threads: 2, max_skipped: None, follows_parts: false };
    let mut stream = BatchStream::start(reader, 0, Share::try_new(share).unwrap(), options).unwrap();
    let batches: Result<Vec<_>> = stream.by_ref().collect();
    let mut rows = Vec::new();
    for batch in batches.unwrap() {
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        let texts = batch.column(1).as_string::<i32>();
        assert!(numbers.iter().zip(texts).all(|(row, text)| text == Some(&format!("{row:0400}"))));
        rows.extend(numbers.iter().map(|row| row.unsigned_abs()));
    }
    (rows, stream.stats().peak_memory_bytes)
}

#[test]
fn a_given_order_is_delivered_as_it_is_to_any_number_of_ranks_from_any_position() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let order = random_order(|row| row % 3 != 1);
    let reader = reader(&dataset, &order, 1 << 30);
    for (world, from) in [(1, 0), (2, 0), (3, 64), (4, 1001)] {
        let of_ranks: Vec<_> = (0..world).map(|rank| deliver(&reader, from, (rank, world), 1 << 30).0).collect();
        let expected = &order[usize::try_from(from).unwrap()..];
        for (rank, got) in of_ranks.iter().enumerate() {
            let mine: Vec<u64> = expected.iter().skip(rank).step_by(world as usize).copied().collect();
            assert_eq!(*got, mine, "rank {rank} of {world} from {from}");
        }
    }
}

#[test]
fn a_random_order_needs_no_more_memory_than_it_may_have() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let order = random_order(|_| true);
    // All rows together take 2.5 MB.
    let memory_limit = 400 << 10;
    let (rows, peak) = deliver(&reader(&dataset, &order, memory_limit), 0, (0, 1), memory_limit);
    assert_eq!(rows, order);
    assert!(peak <= memory_limit * 6 / 5, "{peak} bytes");
}

#[test]
fn a_state_of_another_order_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let state = reader(&dataset, &[3, 1, 2], 1 << 30).state(0, 2).to_json();
    assert_eq!(reader(&dataset, &[3, 1, 2], 1 << 30).read_state(&state).unwrap().position, 2);
    let refused = reader(&dataset, &[3, 2, 1], 1 << 30).read_state(&state);
    assert!(matches!(refused, Err(Error::StateMismatch { .. })), "{refused:?}");
}

#[test]
fn an_order_that_names_a_row_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let answer = dataset.known_answer().unwrap();
    for (order, names) in [(vec![5, 5], "row 5 again"), (vec![NUM_ROWS], "less than 6000")] {
        let settings = OrderSettings::Given(order.into());
        let refused = EpochReader::try_new(&dataset, Arc::clone(&answer), settings, 1 << 30);
        assert!(matches!(&refused, Err(Error::Setting { name: "order", reason }) if reason.contains(names)));
    }
}

#[test]
fn batches_that_follow_parts_hold_all_rows_and_end_where_row_groups_do() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for memory_limit in [1500 << 10, 1 << 30] {
        let answer = dataset.known_answer().unwrap();
        let reader = EpochReader::try_new(&dataset, answer, OrderSettings::Sequential, memory_limit).unwrap();
        let reader = Arc::new(reader);
        for (from, batch_rows) in [(0, 64), (7, 64), (0, 300), (150, 300), (0, 1000), (0, 1)] {
            let share = Share { from, ..Share::whole(NUM_ROWS, batch_rows) };
            let options = StreamOptions { memory_limit, num_threads: 2, max_skipped: None, follows_parts: true };
            let batches: Result<Vec<_>> = BatchStream::start(&reader, 0, share, options).unwrap().collect();
            let batches = batches.unwrap();
            let numbers = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            let rows: Vec<i64> = batches.iter().flat_map(numbers).collect();
            assert_eq!(rows, (i64::try_from(from).unwrap()..6000).collect::<Vec<_>>());
            let lens: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
            assert!(lens.iter().all(|&len| len <= batch_rows as usize), "{lens:?}");
            if memory_limit == 1 << 30 && batch_rows == 300 {
                assert_eq!(lens[0], if from == 0 { 200 } else { 50 });
                assert!(lens[1..].iter().all(|&len| len == 200), "{lens:?}");
            }
        }
    }
}

const PART_BYTES: u64 = 10 << 20;

/// A scheduler for a hundred row groups of ten rows, `PART_BYTES` each, in dataset order.
fn scheduler(batch_rows: u32, limit: u64) -> Scheduler {
    scheduler_of(100, PART_BYTES, batch_rows, limit)
}

fn scheduler_of(num_row_groups: u32, part_bytes: u64, batch_rows: u32, limit: u64) -> Scheduler {
    let spans = (0..num_row_groups).map(|row_group| Span { row_group, start: 0, end: 10, num_kept: 10 });
    let plan = Arc::new(EpochPlan::new(spans.collect(), Order::Sequential, 0));
    let cost = ReadCost { fetched: part_bytes, decoded: part_bytes, ..ReadCost::default() };
    let planned = Arc::clone(&plan);
    let cut = move |piece| vec![Part { kept: planned.piece(piece).kept, cost }];
    let holes = Holes::new(Vec::new(), Some(u64::MAX), HoleUnits::default());
    let share = Share::whole(u64::from(num_row_groups) * 10, batch_rows);
    Scheduler::new(plan, share, limit, part_bytes / 10, holes, cut)
}

/// Returns a part that has come, and whose footer tells its decoded size or not.
fn fetched(reader: &EpochReader, kept: Range<u32>, wanted: Option<Arc<[u32]>>, is_told: bool) -> Fetched {
    let read = reader.read_part(PieceId { lane: 0, span: 0 }, &(0..1), None).unwrap();
    Fetched { read, kept, wanted, bodies: Vec::new(), is_told }
}

/// Returns rows of `row_bytes` each.
fn rows(num_rows: usize, row_bytes: usize) -> RecordBatch {
    let values = Buffer::from_vec(vec![0_u8; num_rows * row_bytes]);
    let column = FixedSizeBinaryArray::new(i32::try_from(row_bytes).unwrap(), values, None);
    RecordBatch::try_from_iter([("x", Arc::new(column) as ArrayRef)]).unwrap()
}

/// Takes all tasks that are due, which are requests for parts.
fn asked(scheduler: &mut Scheduler) -> Vec<PieceKey> {
    let tasks = std::iter::from_fn(|| scheduler.next_task().unwrap());
    let key = |task| match task {
        Task::Fetch { key, .. } => key,
        other => panic!("nothing has come yet: {other:?}"),
    };
    tasks.map(key).collect()
}

#[test]
fn no_more_is_asked_for_at_first_than_a_window() {
    let mut scheduler = scheduler(10, 4 << 30);
    assert_eq!(asked(&mut scheduler).len() as u64, config::FETCH_WINDOW_BYTES / PART_BYTES);
    assert_eq!(scheduler.awaited(), Cause::Store);
}

#[test]
fn no_more_small_batches_are_planned_than_take_a_part_of_the_limit() {
    const LIMIT: u64 = 16 << 20;
    for batch_rows in [1, 2, 5] {
        let mut scheduler = scheduler_of(10_000, 100, batch_rows, LIMIT);
        let num_batches = asked(&mut scheduler).len() as u64 * 10 / u64::from(batch_rows);
        let of_batches = num_batches * size_of::<PlannedBatch>() as u64;
        assert!((LIMIT / 64..LIMIT / 8).contains(&of_batches), "{num_batches} batches of {batch_rows} rows");
        assert!((of_batches..LIMIT / 4).contains(&scheduler.usage().memory_bytes), "{:?}", scheduler.usage());
    }
}

#[test]
fn parts_are_decoded_at_once_unless_the_first_has_to_tell_how_large_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let reader = reader(&dataset(folder.path()), &[0], 1 << 30);
    let num_decoding = |is_told| {
        let mut scheduler = scheduler(10, 4 << 30);
        for key in asked(&mut scheduler) {
            scheduler.found(key, fetched(&reader, 0..10, None, is_told));
        }
        let tasks = std::iter::from_fn(|| scheduler.next_task().unwrap());
        tasks.filter(|task| matches!(task, Task::Decode { .. })).count() as u64
    };
    assert_eq!(num_decoding(true), config::FETCH_WINDOW_BYTES / PART_BYTES);
    assert_eq!(num_decoding(false), 1);
}

#[test]
fn rows_many_times_as_large_as_the_footers_say_stay_within_the_limit() {
    const LIMIT: u64 = 500 << 10;
    const ROW_BYTES: usize = 5 << 10;
    let folder = tempfile::tempdir().unwrap();
    let reader = reader(&dataset(folder.path()), &[0], 1 << 30);
    let held = |num_rows| {
        let rows = rows(num_rows, ROW_BYTES);
        Held::new(&rows.schema(), rows)
    };
    // A fifth of that.
    let mut scheduler = scheduler_of(100, 10 << 10, 10, LIMIT);
    let (mut under_way, mut num_rows) = (VecDeque::new(), 0);
    while !scheduler.is_done() {
        while under_way.len() < 8
            && let Some(task) = scheduler.next_task().unwrap()
        {
            under_way.push_back(task);
        }
        match under_way.pop_front() {
            Some(Task::Fetch { key, kept, wanted, .. }) => {
                scheduler.found(key, fetched(&reader, kept, wanted, false));
            }
            Some(Task::Decode { key, fetched: part }) => {
                scheduler.decoded(key, held(part.wanted.map_or(part.kept.len(), |wanted| wanted.len())));
            }
            Some(Task::Compact { key, keep, .. }) => scheduler.compacted(key, held(keep.len()), keep),
            Some(Task::Gather { number, slice, .. }) => {
                scheduler.gathered(number, untouched(rows(slice.len, ROW_BYTES)), false);
            }
            Some(other) => panic!("nothing is transformed: {other:?}"),
            None => {
                let taken = scheduler.deliver(Most::ONE);
                assert!(!taken.is_empty() || scheduler.is_done(), "nothing goes on after {num_rows} rows");
                num_rows += taken.iter().map(|taken| taken.batch.num_rows()).sum::<usize>();
            }
        }
    }
    assert_eq!(num_rows, 1000);
    assert!(scheduler.usage().peak_memory_bytes <= LIMIT * 6 / 5, "{:?}", scheduler.usage());
}

#[test]
fn batches_are_transformed_in_order_and_as_many_at_a_time_as_there_is_room_for() {
    const LIMIT: u64 = 4 << 30;
    const BYTES: u64 = 3 << 30;
    let mut scheduler = scheduler(5, LIMIT);
    lose_asked(&mut scheduler);
    let nothing = || RecordBatch::new_empty(Arc::new(Schema::empty()));
    let gathered: Vec<u64> = std::iter::from_fn(|| scheduler.next_task().unwrap())
        .filter_map(|task| if let Task::Gather { number, .. } = task { Some(number) } else { None })
        .collect();
    assert!(gathered.len() > 2);
    for number in [2, 1, 0] {
        scheduler.unfinished(number, Gathered { batch: nothing(), room: None }, BYTES);
    }
    let next = |scheduler: &mut Scheduler| match scheduler.next_task().unwrap() {
        Some(Task::Finish { number, .. }) => Some(number),
        None => None,
        other => panic!("it is not due: {other:?}"),
    };
    for number in 0..3 {
        assert_eq!(next(&mut scheduler), Some(number));
        assert_eq!(next(&mut scheduler), None);
        assert!((BYTES..=LIMIT).contains(&scheduler.usage().memory_bytes));
        scheduler.gathered(number, untouched(nothing()), false);
    }
    assert!(scheduler.usage().memory_bytes < BYTES);
}

#[test]
fn what_later_batches_need_does_not_delay_the_first() {
    const NUM_IN_WINDOW: usize = 20;
    let mut scheduler = scheduler(100, 4 << 30).with_fetch_window(NUM_IN_WINDOW as u64 * PART_BYTES, true);
    let of_first = asked(&mut scheduler);
    assert_eq!(of_first.len(), 10);
    let mut num_asked_later = 0;
    for (num_come, key) in (1..).zip(of_first.into_iter().take(9)) {
        let failed = Error::ShortRead { url: String::new(), range: 0..1, got: 0 };
        let hole = |kept: &Range<u32>, cause| {
            let &Range { start, end } = kept;
            Hole { span: key.piece.span, start, end, object: String::new(), row_group: 0, cause }
        };
        scheduler.lost(key, None, hole, failed).unwrap();
        num_asked_later += asked(&mut scheduler).len();
        let num_waited_for = 10 - num_come;
        let is_most_here = num_waited_for <= 4;
        assert_eq!(num_asked_later, if is_most_here { NUM_IN_WINDOW - num_waited_for } else { 0 }, "{num_come} came");
    }
}

/// Marks all requested parts of the next batches as lost, so that these can be gathered.
fn lose_asked(scheduler: &mut Scheduler) {
    for key in asked(scheduler) {
        let failed = Error::ShortRead { url: String::new(), range: 0..1, got: 0 };
        let hole = |kept: &Range<u32>, cause| {
            let &Range { start, end } = kept;
            Hole { span: key.piece.span, start, end, object: String::new(), row_group: 0, cause }
        };
        scheduler.lost(key, None, hole, failed).unwrap();
    }
}

#[test]
fn a_stream_that_rests_gathers_the_next_batch_alone() {
    let gathered = |mut scheduler: Scheduler| {
        lose_asked(&mut scheduler);
        let tasks = std::iter::from_fn(|| scheduler.next_task().unwrap());
        tasks.filter(|task| matches!(task, Task::Gather { .. })).count()
    };
    let awake = || scheduler(5, 4 << 30);
    assert!(gathered(awake()) > 1);
    let mut resting = awake();
    resting.rest();
    assert_eq!(gathered(resting), 1);
}

#[test]
fn the_delivery_ends_before_the_first_batch_that_cannot_be_made() {
    let mut scheduler = scheduler(5, 4 << 30);
    lose_asked(&mut scheduler);
    let tasks = std::iter::from_fn(|| scheduler.next_task().unwrap());
    let num_gathering = tasks.filter(|task| matches!(task, Task::Gather { .. })).count();
    assert!(num_gathering > 4);
    assert!(scheduler.failed(3));
    assert!(!scheduler.failed(4), "it is behind the end");
    assert!(scheduler.failed(2), "it is before the end");
    for number in [1, 0] {
        assert!(!scheduler.is_done());
        scheduler.gathered(number, untouched(RecordBatch::new_empty(Arc::new(Schema::empty()))), false);
    }
    assert_eq!(scheduler.deliver(Most { batches: 8, bytes: u64::MAX }).len(), 2);
    assert!(scheduler.is_done());
}

/// Writes and opens a file with 200 row groups of 16 texts, 64 KiB each, that compress to almost nothing: 200 MiB of
/// rows.
fn large_rows(folder: &Path) -> Dataset {
    let text = "x".repeat(64 << 10);
    let texts = StringArray::from_iter_values(std::iter::repeat_n(&text, 16));
    let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(16)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    (0..200).for_each(|_| writer.write(&batch).unwrap());
    open(folder, &writer.into_inner().unwrap())
}

#[test]
fn what_lies_at_hand_is_decoded_as_far_ahead_as_a_burst_needs() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = large_rows(folder.path());
    let (answer, num_threads) = (dataset.known_answer().unwrap(), 2);
    let settings = OrderSettings::Sequential;
    let reader = Arc::new(EpochReader::try_new(&dataset, answer, settings, 1 << 30).unwrap());
    let options = StreamOptions { memory_limit: 1 << 30, num_threads, max_skipped: None, follows_parts: false };
    let mut stream = BatchStream::start(&reader, 0, Share::whole(reader.num_rows(), 16), options).unwrap();
    // The threads have the time to decode all of it while the consumer is busy.
    let (mut decoded, mut num_same) = (0, 0);
    while num_same < 50 {
        std::thread::sleep(Duration::from_millis(10));
        let now = stream.stats().bytes_decoded;
        num_same = if now == decoded { num_same + 1 } else { 0 };
        decoded = now;
    }
    let at_work = config::PARTS_AHEAD_PER_THREAD * num_threads as u64 * (1 << 20);
    assert!((1..=config::DECODED_AHEAD_BYTES + at_work).contains(&decoded), "{decoded} bytes");
    let num_rows: usize = stream.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(num_rows, 3200);
    assert!(stream.stats().bytes_decoded > 190 << 20);
}

/// Starts a stream of large rows, in their order.
fn stream_of_large_rows(dataset: &Dataset, batch_rows: u32, memory_limit: u64) -> BatchStream {
    let settings = OrderSettings::Sequential;
    let reader = EpochReader::try_new(dataset, dataset.known_answer().unwrap(), settings, memory_limit).unwrap();
    let options = StreamOptions { memory_limit, num_threads: 2, max_skipped: None, follows_parts: false };
    let share = Share::whole(reader.num_rows(), batch_rows);
    BatchStream::start(&Arc::new(reader), 0, share, options).unwrap()
}

#[test]
fn a_batch_fits_beside_its_rows_and_the_batch_before_it_or_is_refused_with_what_it_takes() {
    const LIMIT: u64 = 16 << 20;
    let most = |limit: u64| limit + limit / 16 * 3;
    let folder = tempfile::tempdir().unwrap();
    let dataset = large_rows(folder.path());
    // A third of the limit, and nearly half of it.
    let mut stream = stream_of_large_rows(&dataset, 80, LIMIT);
    assert_eq!(stream.by_ref().map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 3200);
    assert!(stream.stats().peak_memory_bytes <= most(LIMIT));
    let mut stream = stream_of_large_rows(&dataset, 120, LIMIT);
    let refused = stream.by_ref().find_map(|batch| batch.err());
    assert!(stream.stats().peak_memory_bytes <= most(LIMIT));
    let Some(Error::BatchMemory { batch_rows: 120, limit_bytes: LIMIT, needed_bytes }) = refused else {
        panic!("{refused:?}");
    };
    let mut stream = stream_of_large_rows(&dataset, 120, needed_bytes);
    assert_eq!(stream.by_ref().map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 3200);
    assert!(stream.stats().peak_memory_bytes <= most(needed_bytes));
}

#[test]
fn of_batches_that_were_taken_together_the_last_is_in_the_way_of_the_next() {
    const LIMIT: u64 = 64 << 20;
    let folder = tempfile::tempdir().unwrap();
    // Three are less than the limit, and four more than may be.
    let mut stream = stream_of_large_rows(&large_rows(folder.path()), 312, LIMIT);
    // Usually two; which parts were decoded first may leave room for another number.
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(10));
        if stream.stats().num_ready >= 2 {
            break;
        }
    }
    let mut kept = Vec::new();
    loop {
        match stream.poll(Duration::from_secs(60), Most { batches: 8, bytes: u64::MAX }).unwrap() {
            Polled::Batches(batches) => kept.extend(batches),
            Polled::End => break,
            Polled::Pending => panic!("nothing came for a minute"),
        }
    }
    assert_eq!(kept.iter().map(|taken| taken.batch.num_rows()).sum::<usize>(), 3200);
    assert!(stream.stats().peak_memory_bytes <= LIMIT + LIMIT / 16 * 3);
}

#[test]
fn nothing_is_held_at_the_end_nor_once_a_stream_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = large_rows(folder.path());
    let mut stream = stream_of_large_rows(&dataset, 16, 1 << 30);
    let first = stream.next().unwrap().unwrap();
    assert!(stream.stats().memory_bytes >= first.get_array_memory_size() as u64);
    assert_eq!(stream.by_ref().count(), 199);
    assert_eq!(stream.stats().memory_bytes, 0);
    let mut stream = stream_of_large_rows(&dataset, 16, 1 << 30);
    stream.next().unwrap().unwrap();
    stream.close();
    assert_eq!(stream.stats().memory_bytes, 0);
    assert!(stream.stats().peak_memory_bytes > 0);
}

#[test]
fn rows_of_large_pages_of_a_file_are_those_that_were_written() {
    const WIDTH: i32 = 256;
    let folder = tempfile::tempdir().unwrap();
    let num_rows = 6000;
    let item = |number: i32| f32::from_bits(number.cast_unsigned());
    let items = Float32Array::from_iter_values((0..num_rows * WIDTH).map(item));
    let field = Arc::new(Field::new("item", DataType::Float32, true));
    let rows: ArrayRef = Arc::new(FixedSizeListArray::try_new(field, WIDTH, Arc::new(items), None).unwrap());
    for (compression, num_row_groups) in [(Compression::UNCOMPRESSED, 2), (Compression::SNAPPY, 1)] {
        let batch = RecordBatch::try_from_iter([("x", Arc::clone(&rows))]).unwrap();
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(Some(usize::try_from(num_rows).unwrap() / num_row_groups))
            .build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        let dataset = open(folder.path(), &writer.into_inner().unwrap());
        let answer = dataset.known_answer().unwrap();
        let settings = OrderSettings::Shuffled {
            seed: 1,
            shuffle_bytes: 64 << 20,
            num_lanes: None,
            window_rows: None,
            weights: None,
        };
        let reader = Arc::new(EpochReader::try_new(&dataset, answer, settings, 1 << 30).unwrap());
        let options = StreamOptions { memory_limit: 1 << 30, num_threads: 2, max_skipped: None, follows_parts: false };
        let stream = BatchStream::start(&reader, 0, Share::whole(reader.num_rows(), 100), options).unwrap();
        let mut seen = vec![false; usize::try_from(num_rows).unwrap()];
        for batch in stream {
            let batch = batch.unwrap();
            let items = batch.column(0).as_fixed_size_list().values().as_primitive::<Float32Type>();
            for row in items.values().chunks(usize::try_from(WIDTH).unwrap()) {
                let bits: Vec<i32> = row.iter().map(|item| item.to_bits().cast_signed()).collect();
                assert!(bits.iter().zip(bits[0]..).all(|(bits, expected)| *bits == expected));
                let number = usize::try_from(bits[0] / WIDTH).unwrap();
                assert!(!std::mem::replace(&mut seen[number], true), "row {number} comes twice");
            }
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}

#[test]
fn a_batch_that_does_not_fit_is_an_error_to_every_thread_that_asks_and_never_an_end() {
    let mut scheduler = scheduler(1000, 64 << 20);
    for _ in 0..3 {
        assert_eq!(scheduler.next_task().unwrap_err().batch_rows, 1000);
        assert!(!scheduler.is_done());
    }
}

#[test]
fn the_order_of_a_permuted_epoch_is_counted_and_the_same_where_it_is_drawn_in_stretches() {
    const NUM_ROWS: i64 = 300_000;
    const LIMIT: u64 = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..NUM_ROWS));
    let batch = RecordBatch::try_from_iter([("row", rows)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(20_000)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let dataset = open(folder.path(), &writer.into_inner().unwrap());
    let shuffled = |memory_limit| {
        let settings = OrderSettings::Shuffled {
            seed: 1,
            shuffle_bytes: 1 << 30,
            num_lanes: None,
            window_rows: None,
            weights: None,
        };
        let reader = EpochReader::try_new(&dataset, dataset.known_answer().unwrap(), settings, memory_limit).unwrap();
        let options = StreamOptions { memory_limit, num_threads: 2, max_skipped: None, follows_parts: false };
        let share = Share::whole(reader.num_rows(), 1000);
        let mut stream = BatchStream::start(&Arc::new(reader), 0, share, options).unwrap();
        let held = stream.stats().memory_bytes;
        let batches: Vec<RecordBatch> = stream.by_ref().map(Result::unwrap).collect();
        assert_eq!(stream.stats().memory_bytes, 0);
        let numbers = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
        (batches.iter().flat_map(numbers).collect::<Vec<i64>>(), held)
    };
    let (mut rows, held) = shuffled(LIMIT);
    assert!(held >= LIMIT / 8, "{held} bytes");
    let (at_once, held) = shuffled(1 << 30);
    assert!(held >= NUM_ROWS.unsigned_abs() * 8, "{held} bytes");
    assert_eq!(rows, at_once);
    rows.sort_unstable();
    assert_ne!(rows, at_once);
    assert!(rows.into_iter().eq(0..NUM_ROWS));
}

#[test]
fn a_batch_that_shows_little_of_a_large_part_does_not_hold_it() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = large_rows(folder.path());
    let held_bytes = |memory_limit| {
        let (answer, settings) = (dataset.known_answer().unwrap(), OrderSettings::Sequential);
        let reader = Arc::new(EpochReader::try_new(&dataset, answer, settings, memory_limit).unwrap());
        let options = StreamOptions { memory_limit, num_threads: 2, max_skipped: None, follows_parts: false };
        let stream = BatchStream::start(&reader, 0, Share::whole(reader.num_rows(), 1), options).unwrap();
        stream.take(100).map(|batch| batch.unwrap().get_array_memory_size()).max().unwrap()
    };
    // Row groups of 1 MiB, of which a batch has a sixteenth.
    assert!(held_bytes(64 << 20) >= 1 << 20, "it is no view");
    assert!(held_bytes(6 << 20) < 1 << 18, "it holds its row group");
}

#[test]
fn no_row_may_be_missing_from_batches_that_are_transformed() {
    let folder = tempfile::tempdir().unwrap();
    let reader = reader(&dataset(folder.path()), &[0, 1, 2], 1 << 30);
    let finish = Arc::new(Finish::try_new(reader.schema(), &FinishSettings::default()).unwrap());
    let start = |max_skipped, holes| {
        let options = StreamOptions { memory_limit: 1 << 30, num_threads: 1, max_skipped, follows_parts: false };
        BatchStream::resume(&reader, 0, Share::whole(3, 2), options, holes, Some(Arc::clone(&finish)))
    };
    let hole = Hole { span: 0, start: 0, end: 1, object: String::new(), row_group: 0, cause: String::new() };
    for refused in [start(Some(1), Vec::new()), start(None, vec![hole])] {
        assert!(matches!(refused, Err(Error::Setting { name: "on_error", .. })), "{refused:?}");
    }
    assert_eq!(start(None, Vec::new()).unwrap().count(), 2);
}

#[test]
fn a_consumer_may_wait_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let reader = reader(&dataset(folder.path()), &[0, 1, 2], 1 << 30);
    let options = StreamOptions { memory_limit: 1 << 30, num_threads: 1, max_skipped: None, follows_parts: false };
    let mut stream = BatchStream::start(&reader, 0, Share::whole(3, 3), options).unwrap();
    assert!(stream.wait(Duration::MAX));
    assert!(matches!(stream.poll(Duration::MAX, Most::ONE), Ok(Polled::Batches(_))));
}
