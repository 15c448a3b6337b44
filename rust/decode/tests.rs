//! Compares the decoders here with the `parquet` crate on the same files.

mod encodings;
mod files;

use std::sync::Arc;

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

use self::files::Noise;
pub(crate) use self::files::{Shape, shapes};
use super::header::PageHeader;
use super::{Body, Column, Fit, Misfit, Scratch, plan};
use crate::error::Error;
use crate::io::Io;
use crate::metrics::Progress;
use crate::rows::RowSet;
use crate::snapshot::{Decoders, Snapshot, Trial, inner};
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

/// Wanted rows: where runs of them begin and end, and whether they are a mask.
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

/// Opens a column with the decoders here; `None` if its footer rules them out.
fn open_own(snapshot: &Snapshot, root: usize, body: &Bytes, set: &RowSet) -> Option<Fit<Box<dyn Column>>> {
    let plan = plan(snapshot.fragment(snapshot.row_groups[0]), 0, root, set)?;
    let bytes = plan.ranges().iter().map(|range| {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        (range.end <= body.len() && range.start <= range.end).then(|| Body::Here(body.slice(range)))
    });
    let Some(bytes) = bytes.collect() else { return Some(Err(Misfit("ranges outside of the object"))) };
    Some(Ok(plan.open(&Arc::new(set.clone()), bytes, u64::MAX, Scratch::default())))
}

/// Reads a column in steps with only the decoders here; `None` if its footer rules them out.
fn read_own(snapshot: &Snapshot, root: usize, body: &Bytes, set: &RowSet, step: usize) -> Option<Fit<Vec<ArrayRef>>> {
    let wanted = set.count(0..snapshot.row_groups[0].num_rows) as usize;
    let mut column = match open_own(snapshot, root, body, set)? {
        Ok(column) => column,
        Err(misfit) => return Some(Err(misfit)),
    };
    let steps = (0..wanted).step_by(step.max(1)).map(|start| step.min(wanted - start));
    Some(steps.map(|num_rows| column.read(num_rows)).collect())
}

/// Reads text as dictionary keys, as far as it has keys, in steps; returns it as text. `None` if it has no dictionary
/// of at most `most_values`.
fn read_coded(
    snapshot: &Snapshot,
    root: usize,
    body: &Bytes,
    set: &RowSet,
    step: usize,
    most_values: usize,
) -> Option<Fit<Vec<ArrayRef>>> {
    let plan = plan(snapshot.fragment(snapshot.row_groups[0]), 0, root, set)?;
    let bytes = plan.ranges().iter().map(|range| {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        (range.end <= body.len() && range.start <= range.end).then(|| Body::Here(body.slice(range)))
    });
    let mut column = plan.open_coded(&Arc::new(set.clone()), bytes.collect::<Option<_>>()?, u64::MAX, most_values)?;
    let wanted = set.count(0..snapshot.row_groups[0].num_rows) as usize;
    let steps = (0..wanted).step_by(step.max(1)).map(|start| step.min(wanted - start));
    let read = steps.map(|num_rows| {
        let array = column.read(num_rows)?;
        assert_eq!(array.len(), num_rows);
        let Some(numbers) = array.as_primitive_opt::<UInt32Type>() else { return Ok(array) };
        let dictionary = column.dictionary().unwrap();
        assert!(dictionary.len() <= most_values);
        Ok(arrow_select::take::take(&dictionary, numbers, None).unwrap())
    });
    Some(read.collect())
}

/// Returns the length of lists of numbers, if all are equal, and the bytes of an item.
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

/// Reads a column of even lists in steps, with items of `asked` bytes each if they may be taken like that; returns the
/// bytes of all items, and for how many rows they were taken.
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

/// Returns whether arrays are equal, treating all NaNs as equal.
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
            let own = own.ok_or_else(|| TestCaseError::fail(format!("{field} is left to the parquet crate")))?;
            if field.name() == "struct_around_with_nulls" && matches!(&own, Err(Misfit("a struct is NULL"))) {
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
    fn texts_by_their_numbers_are_those_of_the_parquet_crate(
        shape in shapes(), cuts in cuts(), step in prop_oneof![1_usize..100, Just(10_000)],
        most_values in prop_oneof![Just(usize::MAX), 0_usize..400],
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
    ) {
        let whole = shape.write();
        let mut body = whole.to_vec();
        let length = u32::from_le_bytes(*body[..body.len() - 4].last_chunk().unwrap());
        let end = body.len() - 8 - length as usize;
        let snapshot = open(&whole).unwrap();
        damage.iter().for_each(|(place, value)| body[4 + place.index(end - 4)] = *value);
        let body = Bytes::from(body);
        // Of pages without wanted rows, the parquet crate reads some that are not looked at here.
        let set = if damage.is_empty() { set_of(&cuts, shape.num_rows) } else { RowSet::All };
        let mut num_coded = 0;
        for (root, field) in snapshot.schema.fields().iter().enumerate() {
            let Some(read) = read_coded(&snapshot, root, &body, &set, step, most_values) else { continue };
            num_coded += 1;
            let Ok(parts) = read else {
                prop_assert!(!damage.is_empty(), "{field}: {read:?}");
                continue;
            };
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            let coded = arrow_select::concat::concat(&parts).unwrap();
            if damage.is_empty() {
                let expected = read_parquet(&snapshot, root, &body, &set).unwrap();
                prop_assert!(are_same(&coded, &expected), "{field}: {coded:?} instead of {expected:?}");
                continue;
            }
            let stored = || read_parquet(&snapshot, root, &whole, &set).unwrap();
            let complaint = complaint(&snapshot, root, &body, stored, &coded);
            prop_assert!(complaint.is_none(), "{complaint:?}");
        }
        let has_dictionaries = shape.dictionary_bytes.is_some() && most_values == usize::MAX && damage.is_empty();
        prop_assert!(num_coded > 0 || !has_dictionaries);
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
            // Three are read at the beginning, and without an index the last of each page, which may continue.
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
    fn fields_of_structs_are_those_of_the_whole_structs(
        shape in shapes(), cuts in cuts(), batch_rows in 1_usize..200,
    ) {
        let body = shape.write();
        let snapshot = open(&body).unwrap();
        let set = set_of(&cuts, shape.num_rows);
        let (num_roots, num_columns) = (snapshot.schema.fields().len(), snapshot.columns.fields().len());
        prop_assert!(num_columns > num_roots);
        for column in num_roots..num_columns {
            let name = snapshot.columns.field(column).name();
            let root = snapshot.schema.index_of(name.split('\0').next().unwrap()).unwrap();
            let whole = Trial::new(&snapshot, 0, &body, set.clone()).unwrap().of_column(root);
            let expected = inner::find(&whole.at_once(Decoders::Parquet).unwrap(), name).unwrap();
            let field = Trial::new(&snapshot, 0, &body, set.clone()).unwrap().of_column(column).with_batch_rows(batch_rows);
            for decoders in [Decoders::Own, Decoders::Parquet] {
                let read = field.at_once(decoders).unwrap();
                prop_assert!(are_same(read.column(0), &expected), "{name:?}: {read:?} instead of {expected:?}");
                let batches = field.batches(decoders).unwrap();
                prop_assert!(batches.iter().all(|batch| batch.num_rows() <= batch_rows));
                let parts: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(0).as_ref()).collect();
                let read = if parts.is_empty() { expected.slice(0, 0) } else { arrow_select::concat::concat(&parts).unwrap() };
                prop_assert!(are_same(&read, &expected), "{name:?}: {read:?} instead of {expected:?}");
            }
            if !matches!(expected.data_type(), DataType::Struct(_)) {
                let column = snapshot.fragment(snapshot.row_groups[0]).columns[column].unwrap();
                let own = read_own(&snapshot, column, &body, &set, batch_rows);
                prop_assert!(own.is_some(), "{name:?} is left to the parquet crate");
            }
        }
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
        let whole = shape.write();
        let mut body = whole.to_vec();
        let length = u32::from_le_bytes(*body[..body.len() - 4].last_chunk().unwrap());
        let pages = 4..body.len() - 8 - length as usize;
        let snapshot = open(&whole).unwrap();
        let starts: Vec<usize> = snapshot.fragment(snapshot.row_groups[0]).row_group(0).columns().iter()
            .map(|column| usize::try_from(column.byte_range().0).unwrap()).collect();
        for (place, value) in damage {
            let place = if in_header { starts[place.index(starts.len())] + place.index(40) } else { pages.start + place.index(pages.len()) };
            body[place] = value;
        }
        let body = Bytes::from(body);
        for root in 0..snapshot.schema.fields().len() {
            let Some(Ok(parts)) = read_own(&snapshot, root, &body, &RowSet::All, 10_000) else { continue };
            let stored = || read_parquet(&snapshot, root, &whole, &RowSet::All).unwrap();
            let complaint = complaint(&snapshot, root, &body, stored, &parts[0]);
            prop_assert!(complaint.is_none(), "{complaint:?}");
        }
    }
}

/// Returns what is wrong with what the decoders here read from `body`, which is damaged.
///
/// It is what the `parquet` crate reads. That also refuses, or panics on, pages without any value whose header says
/// something impossible of values: nothing is read from these, so the column is what it was before, `stored`.
fn complaint(
    snapshot: &Arc<Snapshot>,
    root: usize,
    body: &Bytes,
    stored: impl FnOnce() -> ArrayRef,
    own: &dyn Array,
) -> Option<String> {
    // The claims of pages are checked before either of them.
    let trial = Trial::new(snapshot, 0, body, RowSet::All).unwrap().of_column(root);
    if trial.at_once(Decoders::Own).is_err() {
        return None;
    }
    let field = snapshot.schema.field(root);
    match read_parquet(snapshot, root, body, &RowSet::All) {
        Ok(expected) if are_same(own, &expected) => None,
        Ok(expected) => Some(format!("{field}: {own:?} instead of {expected:?}")),
        Err(_) if are_same(own, &stored()) => None,
        Err(error) => Some(format!("{field}: {own:?}, and only the parquet crate says {error}")),
    }
}

#[test]
fn a_header_with_a_flipped_bit_is_what_the_parquet_crate_makes_of_it_or_left_to_it() {
    for case in 0..24 {
        let shape = Shape {
            seed: 0,
            num_rows: 2,
            nulls: 30,
            num_distinct: 7,
            longest_list: [0, 3][case / 12],
            codec: [Compression::UNCOMPRESSED, Compression::LZ4][case % 2],
            version: [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][case / 2 % 2],
            page_rows: 1,
            dictionary_bytes: [None, Some(1), Some(1000)][case / 4 % 3],
            // The `parquet` crate does not read the wider differences of some writers.
            has_differences: false,
            has_index: false,
        };
        let whole = shape.write();
        let snapshot = open(&whole).unwrap();
        let row_group = snapshot.fragment(snapshot.row_groups[0]).row_group(0);
        for leaf in 0..row_group.num_columns() {
            let root = row_group.schema_descr().get_column_root_idx(leaf);
            let stored = read_parquet(&snapshot, root, &whole, &RowSet::All).unwrap();
            let start = usize::try_from(row_group.column(leaf).byte_range().0).unwrap();
            let (_, header_bytes) = PageHeader::parse(&whole[start..]).unwrap();
            for (at, bit) in (start..start + header_bytes).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut body = whole.to_vec();
                body[at] ^= 1 << bit;
                let body = Bytes::from(body);
                let Some(Ok(parts)) = read_own(&snapshot, root, &body, &RowSet::All, 10_000) else { continue };
                let complaint = complaint(&snapshot, root, &body, || Arc::clone(&stored), &parts[0]);
                assert!(complaint.is_none(), "bit {bit} of byte {} in {shape:?}: {complaint:?}", at - start);
            }
        }
    }
}
