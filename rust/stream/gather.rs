//! Copies the rows of a batch together: the one copy between decoding and the consumer.
//!
//! Numbers, Booleans, strings, binary, lists, maps and structs of them are copied by the kernels of
//! [`copies`](super::copies), which size the destination exactly, into fresh buffers aligned to 64 bytes. Validity is
//! copied separately, as bits. For [dictionaries](super::dictionary), the keys are copied. Everything else goes through
//! arrow's [`MutableArrayData`].

use std::sync::Arc;

use arrow_array::{Array, RecordBatch, make_array};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer};
use arrow_data::transform::{Capacities, MutableArrayData};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::copies::{Bits, Integers, SourceRange, copy_bits, copy_fixed, copy_ranges, offsets_of, widen_ranges};
use super::dictionary::{common_values, gather_merged};
use super::narrow::{has_nulls, item_of, item_width, narrow_ranges, stands_for, with_item_width};
use super::runs::Runs;
use super::slabs::Room;
use crate::batch;

/// One row: its source, and the row's number there.
pub(crate) type SourceRow = (u32, u32);

/// Rows to gather.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) each: &'a [SourceRow],
    /// The same rows in runs, if these are long.
    pub(super) runs: Option<&'a Runs>,
    /// The destination of numbers, as far as they fit.
    pub(super) room: Option<&'a Room>,
    /// Dictionaries from a single source keep all their values.
    pub(super) keeps_values: bool,
}

impl<'a> Rows<'a> {
    /// Returns rows without further information.
    pub(super) fn new(each: &'a [SourceRow]) -> Self {
        Self { each, runs: None, room: None, keeps_values: false }
    }

    /// Returns other rows with the same destination.
    fn others<'b>(&self, each: &'b [SourceRow]) -> Rows<'b>
    where
        'a: 'b,
    {
        Rows { each, runs: None, ..*self }
    }
}

/// Returns `rows` of `sources` as one batch of `schema`.
///
/// Copies every value once. Nobody else owns the new buffers.
///
/// # Errors
///
/// If the values of a column exceed what its offsets can address (2 GiB for strings and lists).
pub(crate) fn gather(
    schema: &SchemaRef,
    sources: &[RecordBatch],
    rows: &[SourceRow],
) -> Result<RecordBatch, ArrowError> {
    gather_columns(schema, rows.len(), |column| {
        let arrays: Vec<ArrayData> = sources.iter().map(|source| source.column(column).to_data()).collect();
        gather_array(&arrays.iter().collect::<Vec<_>>(), Rows::new(rows))
    })
}

/// Returns the columns that `gather` makes as one batch of `schema`.
pub(super) fn gather_columns(
    schema: &SchemaRef,
    num_rows: usize,
    gather: impl Fn(usize) -> Result<ArrayData, ArrowError>,
) -> Result<RecordBatch, ArrowError> {
    let columns = schema.fields().iter().enumerate().map(|(column, field)| {
        let named = |error| match error {
            ArrowError::ComputeError(reason) => format!("column `{}`: {reason}", field.name()),
            error => format!("column `{}`: {error}", field.name()),
        };
        gather(column).map(make_array).map_err(|error| ArrowError::ComputeError(named(error)))
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    batch::of_columns(Arc::clone(schema), columns, num_rows)
}

/// Returns `rows` of arrays of one type.
pub(super) fn gather_array(sources: &[&ArrayData], rows: Rows<'_>) -> Result<ArrayData, ArrowError> {
    let Some(first) = sources.first() else {
        return Err(ArrowError::InvalidArgumentError("no sources to gather from".into()));
    };
    let data_type = first.data_type();
    let values = match data_type {
        DataType::Boolean => {
            let bits: Vec<_> = sources.iter().map(|source| bits_of(source)).collect();
            Some(ArrayData::builder(data_type.clone()).add_buffer(copy_bits(&bits, rows.each).into_inner()))
        }
        DataType::FixedSizeBinary(len) => Some(fixed_width(sources, rows, usize::try_from(*len).unwrap_or(0))),
        DataType::FixedSizeList(_, len) => fixed_size_lists(sources, rows, usize::try_from(*len).unwrap_or(0))?,
        DataType::Utf8 | DataType::Binary => Some(bytes::<i32>(sources, rows.each)?),
        DataType::LargeUtf8 | DataType::LargeBinary => Some(bytes::<i64>(sources, rows.each)?),
        DataType::List(_) | DataType::Map(..) => lists::<i32>(sources, rows)?,
        DataType::LargeList(_) => lists::<i64>(sources, rows)?,
        DataType::Struct(fields) => Some(structs(sources, rows, fields.len())?),
        DataType::Dictionary(key_type, _) => Some(dictionaries(sources, rows, key_type)?),
        other => other.primitive_width().map(|width| fixed_width(sources, rows, width)),
    };
    let Some(values) = values else { return generic(sources, rows.each) };
    Ok(trusted(values.len(rows.each.len()).nulls(validity(sources, rows))))
}

/// Returns `rows` of arrays of `data_type`, some of which may store integers in [fewer bytes](super::narrow).
pub(super) fn gather_as(data_type: &DataType, sources: &[&ArrayData], rows: Rows<'_>) -> Result<ArrayData, ArrowError> {
    let is_narrow = |source: &&ArrayData| stands_for(source.data_type(), data_type);
    let Some(width) = item_width(data_type).filter(|_| sources.iter().any(is_narrow)) else {
        return gather_array(sources, rows);
    };
    if sources.iter().any(|source| has_nulls(source)) {
        return gather_beside_nulls(data_type, sources, rows);
    }
    let builder = ArrayData::builder(data_type.clone()).len(rows.each.len());
    let (builder, ranges) = match data_type {
        DataType::FixedSizeList(_, len) => (builder, ranges_of(sources, rows.each, usize::try_from(*len).unwrap_or(0))),
        DataType::LargeList(_) => {
            let (offsets, ranges) = list_offsets::<i64>(sources, rows.each, width)?;
            (builder.add_buffer(offsets), ranges)
        }
        _ => {
            let (offsets, ranges) = list_offsets::<i32>(sources, rows.each, width)?;
            (builder.add_buffer(offsets), ranges)
        }
    };
    let integers = sources.iter().map(|source| {
        let (items, width) = (&source.child_data()[0], item_width(source.data_type()).unwrap_or(width));
        Integers { bytes: &items.buffers()[0].as_slice()[items.offset() * width..], width }
    });
    let buffer = widen_ranges(&integers.collect::<Vec<_>>(), &ranges, width, rows.room);
    let item_type = item_of(data_type).map_or(DataType::Null, |item| item.data_type().clone());
    let items = ArrayData::builder(item_type).len(buffer.len() / width).add_buffer(buffer);
    Ok(trusted(builder.add_child_data(trusted(items))))
}

/// Returns `rows` of lists of integers without NULLs, in `fewer` bytes per integer; `None` if some need more.
pub(super) fn gather_narrowed(
    sources: &[&ArrayData],
    rows: &[SourceRow],
    fewer: usize,
) -> Result<Option<ArrayData>, ArrowError> {
    let Some((data_type, width)) =
        sources.first().and_then(|first| item_width(first.data_type()).map(|width| (first.data_type(), width)))
    else {
        return Ok(None);
    };
    let (offsets, ranges) = match data_type {
        DataType::LargeList(_) => list_offsets::<i64>(sources, rows, fewer)?,
        _ => list_offsets::<i32>(sources, rows, fewer)?,
    };
    let values = sources.iter().map(|source| {
        let items = &source.child_data()[0];
        &items.buffers()[0].as_slice()[items.offset() * width..]
    });
    let Some(buffer) = narrow_ranges(&values.collect::<Vec<_>>(), &ranges, width, fewer) else { return Ok(None) };
    let data_type = with_item_width(data_type, fewer);
    let item_type = item_of(&data_type).map_or(DataType::Null, |item| item.data_type().clone());
    let items = ArrayData::builder(item_type).len(buffer.len() / fewer).add_buffer(buffer);
    let lists = ArrayData::builder(data_type).len(rows.len()).add_buffer(offsets);
    Ok(Some(trusted(lists.add_child_data(trusted(items)))))
}

/// Like [`gather_as`] if some sources have NULLs, whose kernels expect one width: first gathers all narrow rows, then
/// all.
fn gather_beside_nulls(data_type: &DataType, sources: &[&ArrayData], rows: Rows<'_>) -> Result<ArrayData, ArrowError> {
    let is_narrow: Vec<bool> = sources.iter().map(|source| stands_for(source.data_type(), data_type)).collect();
    let is_picked = |row: &SourceRow| is_narrow[row.0 as usize];
    let Some(any_narrow) = sources.iter().zip(&is_narrow).find_map(|(source, is)| is.then_some(*source)) else {
        return gather_array(sources, rows);
    };
    // Unused sources are replaced by others, so that rows keep their source numbers.
    let narrow = sources.iter().zip(&is_narrow).map(|(source, is)| if *is { source } else { any_narrow });
    let picked: Vec<SourceRow> = rows.each.iter().copied().filter(is_picked).collect();
    let widened = gather_as(data_type, &narrow.collect::<Vec<_>>(), Rows::new(&picked))?;
    let wide = sources.iter().zip(&is_narrow).map(|(source, is)| if *is { &widened } else { *source });
    let (wide, last) = (wide.chain([&widened]).collect::<Vec<_>>(), u32::try_from(sources.len()).unwrap_or(u32::MAX));
    let mut of_widened = (0..).map(|row| (last, row));
    let in_turn = |row: &SourceRow| if is_picked(row) { of_widened.next().unwrap_or(*row) } else { *row };
    let each: Vec<SourceRow> = rows.each.iter().map(in_turn).collect();
    gather_array(&wide, rows.others(&each))
}

/// Returns the validity of the rows, if any is NULL.
fn validity(sources: &[&ArrayData], rows: Rows<'_>) -> Option<NullBuffer> {
    if sources.iter().all(|source| source.null_count() == 0) {
        return None;
    }
    let bits = sources.iter().map(|source| source.nulls().map(|nulls| (nulls.buffer().as_slice(), nulls.offset())));
    let valid = match rows.runs {
        Some(runs) => runs.copy_bits(&bits.collect::<Vec<_>>()),
        None => {
            let bits = bits.map(|bits| bits.map_or(Bits::ALL_SET, |(bytes, offset)| Bits::new(bytes, offset)));
            copy_bits(&bits.collect::<Vec<_>>(), rows.each)
        }
    };
    let valid = NullBuffer::new(valid);
    (valid.null_count() > 0).then_some(valid)
}

fn bits_of(source: &ArrayData) -> Bits<'_> {
    Bits::new(source.buffers()[0].as_slice(), source.offset())
}

fn fixed_width(sources: &[&ArrayData], rows: Rows<'_>, width: usize) -> ArrayDataBuilder {
    let values = sources.iter().map(|source| &source.buffers()[0].as_slice()[source.offset() * width..]);
    let buffer = match rows.runs {
        Some(runs) if width == 4 => runs.copy_words(&chunks::<4>(values), rows.room),
        Some(runs) if width == 8 => runs.copy_words(&chunks::<8>(values), rows.room),
        _ => copy_fixed(values, rows.each, width, rows.room),
    };
    ArrayData::builder(sources[0].data_type().clone()).add_buffer(buffer)
}

fn chunks<'a, const N: usize>(values: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [[u8; N]]> {
    values.map(|source| source.as_chunks().0).collect()
}

/// Gathers lists of `len` items each; those of numbers with one copy per row.
fn fixed_size_lists(
    sources: &[&ArrayData],
    rows: Rows<'_>,
    len: usize,
) -> Result<Option<ArrayDataBuilder>, ArrowError> {
    let items: Vec<&ArrayData> = sources.iter().map(|source| &source.child_data()[0]).collect();
    let builder = ArrayData::builder(sources[0].data_type().clone());
    let of_numbers = items[0].data_type().primitive_width();
    if let Some(width) = of_numbers.filter(|_| items.iter().all(|items| items.null_count() == 0)) {
        let starts = sources
            .iter()
            .zip(&items)
            .map(|(source, items)| &items.buffers()[0].as_slice()[(items.offset() + source.offset() * len) * width..]);
        let buffer = copy_fixed(starts, rows.each, len * width, rows.room);
        let child = ArrayData::builder(items[0].data_type().clone()).len(rows.each.len() * len).add_buffer(buffer);
        return Ok(Some(builder.add_child_data(trusted(child))));
    }
    let ranges = ranges_of(sources, rows.each, len);
    Ok(gather_items(&items, &ranges, rows)?.map(|child| builder.add_child_data(child)))
}

/// Returns the item ranges of fixed-size lists.
fn ranges_of(sources: &[&ArrayData], rows: &[SourceRow], len: usize) -> Vec<SourceRange> {
    let range = |&(source, row): &SourceRow| {
        let start = (sources[source as usize].offset() + row as usize) * len;
        (source, start..start + len)
    };
    rows.iter().map(range).collect()
}

/// Gathers strings or binary.
fn bytes<O: ArrowNativeType>(sources: &[&ArrayData], rows: &[SourceRow]) -> Result<ArrayDataBuilder, ArrowError> {
    let offsets: Vec<&[O]> = sources.iter().map(|source| source.buffer::<O>(0)).collect();
    let (offsets, ranges) = offsets_of(&offsets, rows, 1)?;
    let values: Vec<&[u8]> = sources.iter().map(|source| source.buffers()[1].as_slice()).collect();
    let builder = ArrayData::builder(sources[0].data_type().clone()).add_buffer(offsets);
    // Most of these become Python objects: they take no room from what becomes tensors.
    Ok(builder.add_buffer(copy_ranges(&values, &ranges, 1, None)))
}

/// Gathers lists and maps.
fn lists<O: ArrowNativeType>(sources: &[&ArrayData], rows: Rows<'_>) -> Result<Option<ArrayDataBuilder>, ArrowError> {
    let items: Vec<&ArrayData> = sources.iter().map(|source| &source.child_data()[0]).collect();
    let width = items[0].data_type().primitive_width().unwrap_or(1);
    let (offsets, ranges) = list_offsets::<O>(sources, rows.each, width)?;
    let builder = ArrayData::builder(sources[0].data_type().clone()).add_buffer(offsets);
    Ok(gather_items(&items, &ranges, rows)?.map(|child| builder.add_child_data(child)))
}

/// Returns the new offsets of lists, and the ranges of their items.
fn list_offsets<O: ArrowNativeType>(
    sources: &[&ArrayData],
    rows: &[SourceRow],
    width: usize,
) -> Result<(Buffer, Vec<SourceRange>), ArrowError> {
    let offsets: Vec<&[O]> = sources.iter().map(|source| source.buffer::<O>(0)).collect();
    offsets_of(&offsets, rows, width)
}

/// Gathers the item ranges of the lists of `of`, numbers with one copy per range; `None` if numbers are too large.
fn gather_items(items: &[&ArrayData], ranges: &[SourceRange], of: Rows<'_>) -> Result<Option<ArrayData>, ArrowError> {
    let of_numbers = items[0].data_type().primitive_width();
    if let Some(width) = of_numbers.filter(|_| items.iter().all(|items| items.null_count() == 0)) {
        let values = items.iter().map(|items| &items.buffers()[0].as_slice()[items.offset() * width..]);
        let buffer = copy_ranges(&values.collect::<Vec<_>>(), ranges, width, of.room);
        let data = ArrayData::builder(items[0].data_type().clone()).len(buffer.len() / width.max(1));
        return Ok(Some(trusted(data.add_buffer(buffer))));
    }
    if items.iter().any(|items| u32::try_from(items.len()).is_err()) {
        return Ok(None);
    }
    let rows_of = |(source, range): &SourceRange| {
        let source = *source;
        range.clone().map(move |row| (source, u32::try_from(row).unwrap_or(u32::MAX)))
    };
    let rows: Vec<SourceRow> = ranges.iter().flat_map(rows_of).collect();
    gather_array(items, of.others(&rows)).map(Some)
}

fn structs(sources: &[&ArrayData], rows: Rows<'_>, num_fields: usize) -> Result<ArrayDataBuilder, ArrowError> {
    let mut builder = ArrayData::builder(sources[0].data_type().clone());
    for field in 0..num_fields {
        let of_field = |source: &&ArrayData| source.child_data()[field].slice(source.offset(), source.len());
        let children: Vec<ArrayData> = sources.iter().map(of_field).collect();
        builder = builder.add_child_data(gather_array(&children.iter().collect::<Vec<_>>(), rows)?);
    }
    Ok(builder)
}

/// Gathers the keys of dictionaries; the values are those of all sources, or of these rows.
fn dictionaries(sources: &[&ArrayData], rows: Rows<'_>, key_type: &DataType) -> Result<ArrayDataBuilder, ArrowError> {
    if let Some(values) = common_values(sources, rows) {
        let width = key_type.primitive_width().unwrap_or(0);
        return Ok(fixed_width(sources, rows, width).add_child_data(values.clone()));
    }
    let (keys, values) = gather_merged(key_type, sources, rows.each)?;
    Ok(ArrayData::builder(sources[0].data_type().clone()).add_buffer(keys).add_child_data(values))
}

#[expect(unsafe_code, reason = "validating UTF-8 and offsets again would cost more than the copy")]
pub(super) fn trusted(builder: ArrayDataBuilder) -> ArrayData {
    // SAFETY: buffers hold as many values as the length says, children as many as offsets or widths say, and there is a
    // validity bit for each row. Offsets ascend from 0 to the length of the values, which is their sum; strings are
    // whole strings of valid sources, so every boundary is a character boundary. Dictionary keys are within their
    // values: these are shared by all sources, or each key was assigned to one of them. Rows on shelves have keys of
    // one source, and its values.
    unsafe { builder.build_unchecked() }
}

/// Gathers any type with arrow's own copier, run by run.
fn generic(sources: &[&ArrayData], rows: &[SourceRow]) -> Result<ArrayData, ArrowError> {
    let mut out = MutableArrayData::with_capacities(sources.to_vec(), true, Capacities::Array(rows.len()));
    let mut rows = rows.iter().copied().peekable();
    while let Some((source, start)) = rows.next() {
        let mut end = start + 1;
        while rows.next_if_eq(&(source, end)).is_some() {
            end += 1;
        }
        out.try_extend(source as usize, start as usize, end as usize)?;
    }
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Int32Type, Int64Type};
    use arrow_array::{
        ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float64Array, Int32Array, Int64Array,
        LargeListArray, LargeStringArray, ListArray, StringArray, StructArray, UInt16Array,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::{Field, Fields, Schema};
    use proptest::prelude::*;

    use super::super::slabs::tests::room;
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_error_of_a_batch_that_cannot_be_gathered_begins_with_the_column() {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("s", DataType::Utf8, true)]));
        let refused = gather_columns(&schema, 1, |_| Err(ArrowError::ComputeError("2 bytes do not fit".into())));
        let error = Error::gather(&refused.unwrap_err());
        assert_eq!(error.describe(), "batch_size: column `s`: 2 bytes do not fit");
    }

    /// A number for each row, or NULL; everything else is derived from these.
    type Seeds = Vec<Option<i32>>;

    fn item(data_type: DataType) -> Arc<Field> {
        Arc::new(Field::new("item", data_type, true))
    }

    fn texts(seeds: &Seeds) -> Vec<Option<String>> {
        seeds.iter().map(|seed| seed.map(|n| format!("{n}").repeat(n.unsigned_abs() as usize % 4))).collect()
    }

    /// Returns lists of the items that `of` makes; lists may be NULL or empty.
    fn list_of(seeds: &Seeds, of: impl Fn(&Seeds) -> ArrayRef) -> ArrayRef {
        let lengths: Vec<usize> = seeds.iter().map(|seed| seed.map_or(0, |n| n.unsigned_abs() as usize % 4)).collect();
        let items: Seeds = (0..i32::try_from(lengths.iter().sum::<usize>()).unwrap())
            .map(|n| (n % 5 != 3 || seeds[0].is_some()).then_some(n))
            .collect();
        let values = of(&items);
        let nulls = NullBuffer::from_iter(seeds.iter().map(Option::is_some));
        let field = item(values.data_type().clone());
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), values, Some(nulls)))
    }

    /// Returns rows of one of many types.
    fn array(kind: usize, seeds: &Seeds) -> ArrayRef {
        let numbers = || -> ArrayRef { Arc::new(Int32Array::from(seeds.clone())) };
        let nulls = || NullBuffer::from_iter(seeds.iter().map(Option::is_some));
        match kind {
            0 => numbers(),
            1 => Arc::new(Float64Array::from_iter(seeds.iter().map(|seed| seed.map(f64::from)))),
            2 => Arc::new(BooleanArray::from_iter(seeds.iter().map(|seed| seed.map(|n| n % 2 == 0)))),
            3 => Arc::new(StringArray::from_iter(texts(seeds))),
            4 => Arc::new(LargeStringArray::from_iter(texts(seeds))),
            5 => list_of(seeds, |items| Arc::new(Int32Array::from(items.clone()))),
            6 => list_of(seeds, |items| Arc::new(StringArray::from_iter(texts(items)))),
            7 => list_of(seeds, |items| list_of(items, |inner| Arc::new(Int32Array::from(inner.clone())))),
            8 => {
                let lists = seeds.iter().map(|seed| seed.map(|n| vec![Some(i64::from(n)), None]));
                Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(lists))
            }
            9 => {
                let lists = seeds.iter().map(|seed| seed.map(|n| [Some(n), (n % 3 > 0).then_some(1), Some(7)]));
                Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(lists, 3))
            }
            10 => {
                let values: ArrayRef = Arc::new(Int32Array::from_iter_values((0..).take(seeds.len() * 2)));
                Arc::new(FixedSizeListArray::new(item(DataType::Int32), 2, values, Some(nulls())))
            }
            11 => {
                let names = Fields::from(vec![
                    Field::new("number", DataType::Int32, true),
                    Field::new("text", DataType::Utf8, true),
                ]);
                let text: ArrayRef = Arc::new(StringArray::from_iter(texts(seeds)));
                Arc::new(StructArray::new(names, vec![numbers(), text], Some(nulls())))
            }
            12 => list_of(seeds, |items| array(11, items)),
            13 => Arc::new(DictionaryArray::<Int32Type>::from_iter(texts(seeds).iter().map(Option::as_deref))),
            14 => {
                let values: ArrayRef = Arc::new(Int64Array::from_iter((0..8).map(|n| (n != 5).then_some(n % 6))));
                let keys =
                    UInt16Array::from_iter(seeds.iter().map(|seed| seed.map(|n| u16::from(n.to_le_bytes()[0] % 8))));
                Arc::new(DictionaryArray::new(keys, values))
            }
            15 => list_of(seeds, |items| array(13, items)),
            _ => {
                let name = Fields::from(vec![Field::new("kind", array(14, seeds).data_type().clone(), true)]);
                Arc::new(StructArray::new(name, vec![array(14, seeds)], Some(nulls())))
            }
        }
    }

    proptest! {
        #[test]
        fn rows_are_those_that_arrow_interleaves(
            kind in 0_usize..17,
            seeds in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.8, -50_i32..50), 1..40), 1..4),
            has_nulls in any::<bool>(),
            cut in 0_usize..3,
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..100),
        ) {
            let sources: Vec<ArrayRef> = seeds.iter().map(|seeds| {
                let seeds = seeds.iter().map(|seed| if has_nulls { *seed } else { seed.or(Some(3)) }).collect();
                let whole = array(kind, &seeds);
                // Rows of a source need not start where its buffers do.
                let from = cut.min(whole.len() - 1);
                whole.slice(from, whole.len() - from)
            }).collect();
            let rows: Vec<SourceRow> = picks.iter().map(|(source, row)| {
                let source = source.index(sources.len());
                (u32::try_from(source).unwrap(), u32::try_from(row.index(sources[source].len())).unwrap())
            }).collect();
            let data: Vec<ArrayData> = sources.iter().map(|source| source.to_data()).collect();
            let arrays: Vec<&dyn Array> = sources.iter().map(AsRef::as_ref).collect();
            let picked: Vec<(usize, usize)> = rows.iter().map(|&(source, row)| (source as usize, row as usize)).collect();
            let expected = match picked.is_empty() {
                true => arrow_array::new_empty_array(sources[0].data_type()),
                false => arrow_select::interleave::interleave(&arrays, &picked).unwrap(),
            };
            // Enough room for everything, for some of it, and none.
            for room in [Some(room(1 << 16)), Some(room(300)), None] {
                let rows = Rows { room: room.as_ref(), ..Rows::new(&rows) };
                let gathered = gather_array(&data.iter().collect::<Vec<_>>(), rows).unwrap();
                gathered.validate_full().unwrap();
                prop_assert_eq!(&make_array(gathered), &expected);
            }
        }
    }

    #[test]
    fn numbers_are_gathered_into_the_room_that_there_is() {
        let numbers = Int32Array::from_iter_values(0..100).to_data();
        let rows: Vec<SourceRow> = (0..100).rev().map(|row| (0, row)).collect();
        let room = room(640);
        let rows = Rows { room: Some(&room), ..Rows::new(&rows) };
        let gathered = [(); 2].map(|()| gather_array(&[&numbers], rows).unwrap());
        assert_eq!(gathered.each_ref().map(|data| room.holds(&data.buffers()[0])), [true, false]);
        assert_eq!(gathered[0], gathered[1]);
    }
}
