//! Splits batches into their buffers and back, so that processes that share memory copy them only once.

use std::iter;

use arrow_array::{Array, ArrayRef, RecordBatch, make_array};
use arrow_buffer::ArrowNativeType;
pub use arrow_buffer::Buffer;
use arrow_data::transform::MutableArrayData;
use arrow_data::{ArrayData, ArrayDataBuilder, BufferSpec, layout};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use arrow_select::concat::concat;

use crate::batch;
use crate::stream::gather;

/// A batch without its schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    /// For each array, parents first: its length, and whether it has a validity bitmap.
    pub arrays: Vec<(u64, bool)>,
    /// The buffers of each array, validity first.
    pub buffers: Vec<Buffer>,
}

/// Returns the values of arrays of one type, one array after another, in memory of their own; only dictionaries may be
/// shared.
///
/// # Errors
///
/// [`ArrowError`] for no arrays, or arrays of different types, and if there are too many values for their type.
pub fn joined(arrays: &[&dyn Array]) -> Result<ArrayRef, ArrowError> {
    let [array] = arrays else { return concat(arrays) };
    let data = array.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len())?;
    Ok(make_array(copy.freeze()))
}

/// Returns whether an array keeps much more memory than it uses, as a view of a larger one does; not for types that have
/// no fixed number of buffers.
pub(crate) fn is_view(array: &dyn Array) -> bool {
    let data = array.to_data();
    is_regular(data.data_type()) && (!is_whole(&data) || has_spare(&data))
}

/// Returns whether a buffer of an array is a small part of its allocation.
fn has_spare(data: &ArrayData) -> bool {
    let is_part = |buffer: &Buffer| buffer.capacity() > 2 * buffer.len() + SLACK;
    data.nulls().is_some_and(|nulls| is_part(nulls.buffer()))
        || data.buffers().iter().any(is_part)
        || data.child_data().iter().any(has_spare)
}

/// Returns the parts of a batch, sharing its memory; copied if they are a view of something larger. `None` if a type
/// has no fixed number of buffers: string views, unions, run-end encoding.
///
/// # Errors
///
/// As `gather` of all rows.
pub fn take_apart(batch: &RecordBatch) -> Result<Option<Parts>, ArrowError> {
    let schema = batch.schema_ref();
    if !schema.fields().iter().all(|field| is_regular(field.data_type())) {
        return Ok(None);
    }
    let data_of = |batch: &RecordBatch| batch.columns().iter().map(Array::to_data).collect::<Vec<_>>();
    let mut columns = data_of(batch);
    if !columns.iter().all(is_whole) {
        let rows = (0..u32::try_from(batch.num_rows())
            .map_err(|_| ArrowError::OffsetOverflowError(batch.num_rows()))?)
            .map(|row| (0, row))
            .collect::<Vec<_>>();
        columns = data_of(&gather(schema, std::slice::from_ref(batch), &rows)?);
    }
    let mut parts = Parts { arrays: Vec::new(), buffers: Vec::new() };
    columns.iter().for_each(|column| parts.add(column));
    Ok(Some(parts))
}

/// Restores the batch of `num_rows` rows from the parts that [`take_apart`] returned.
///
/// # Errors
///
/// For parts that do not belong to such a batch.
pub fn put_together(schema: &SchemaRef, num_rows: usize, parts: Parts) -> Result<RecordBatch, ArrowError> {
    let (mut arrays, mut buffers) = (parts.arrays.into_iter(), parts.buffers.into_iter());
    let columns = schema
        .fields()
        .iter()
        .map(|field| build(field.data_type(), &mut arrays, &mut buffers).map(make_array))
        .collect::<Result<Vec<ArrayRef>, _>>()?;
    if arrays.next().is_some() || buffers.next().is_some() {
        return Err(ArrowError::InvalidArgumentError("there are more parts than the batch has".into()));
    }
    batch::of_columns(SchemaRef::clone(schema), columns, num_rows)
}

impl Parts {
    fn add(&mut self, data: &ArrayData) {
        self.arrays.push((data.len() as u64, data.nulls().is_some()));
        self.buffers.extend(data.nulls().map(|nulls| nulls.buffer().clone()));
        self.buffers.extend_from_slice(data.buffers());
        data.child_data().iter().for_each(|child| self.add(child));
    }
}

/// Builds the next array from the remaining parts.
fn build(
    data_type: &DataType,
    arrays: &mut impl Iterator<Item = (u64, bool)>,
    buffers: &mut impl Iterator<Item = Buffer>,
) -> Result<ArrayData, ArrowError> {
    let missing = || ArrowError::InvalidArgumentError("there are fewer parts than the batch has".into());
    if !is_regular(data_type) {
        return Err(ArrowError::InvalidArgumentError(format!("{data_type} has no fixed number of buffers")));
    }
    let (len, has_nulls) = arrays.next().ok_or_else(missing)?;
    let mut next = || buffers.next().ok_or_else(missing);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let nulls = has_nulls.then(&mut next).transpose()?;
    // The builder counts the bits without checking the length.
    if nulls.as_ref().is_some_and(|bits| bits.len() < len.div_ceil(8)) {
        return Err(missing());
    }
    let specs = layout(data_type).buffers;
    let of_array = iter::repeat_with(next).take(specs.len()).collect::<Result<Vec<_>, _>>()?;
    // The builder panics on parts of offsets and of indices.
    let is_cut = |(buffer, spec): (&Buffer, &BufferSpec)| match spec {
        BufferSpec::FixedWidth { byte_width, .. } => !buffer.len().is_multiple_of(*byte_width),
        _ => false,
    };
    if !data_type.is_primitive() && of_array.iter().zip(&specs).any(is_cut) {
        return Err(ArrowError::InvalidArgumentError(format!("a buffer of {data_type} is cut off")));
    }
    let children = children_of(data_type).into_iter().map(|child| build(child, arrays, buffers));
    ArrayDataBuilder::new(data_type.clone())
        .len(len)
        .null_bit_buffer(nulls)
        .buffers(of_array)
        .child_data(children.collect::<Result<_, _>>()?)
        .build()
}

/// Returns whether arrays of a type always have the same number of buffers, and children of known types.
fn is_regular(data_type: &DataType) -> bool {
    let is_known = !matches!(
        data_type,
        DataType::Union(..) | DataType::RunEndEncoded(..) | DataType::ListView(_) | DataType::LargeListView(_)
    );
    is_known && !layout(data_type).variadic && children_of(data_type).into_iter().all(is_regular)
}

fn children_of(data_type: &DataType) -> Vec<&DataType> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => vec![item.data_type()],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        DataType::Dictionary(_, values) => vec![values],
        _ => Vec::new(),
    }
}

/// Returns whether an array spans its buffers from start to end.
fn is_whole(data: &ArrayData) -> bool {
    let len = data.len();
    let has_nulls_of_its_own =
        data.nulls().is_none_or(|nulls| nulls.offset() == 0 && nulls.buffer().len() <= of_bits(len));
    let is_all = |(buffer, spec): (&Buffer, &BufferSpec)| match spec {
        BufferSpec::FixedWidth { byte_width, .. } => buffer.len() <= (len + 1) * byte_width + SLACK,
        BufferSpec::BitMap => buffer.len() <= of_bits(len),
        _ => true,
    };
    let has_buffers = data.buffers().iter().zip(&layout(data.data_type()).buffers).all(is_all);
    let spans = |len_of_all: usize, from: usize, to: usize| from == 0 && len_of_all <= to + SLACK;
    let has_items = match data.data_type() {
        DataType::Utf8 | DataType::Binary => {
            ends::<i32>(data).is_none_or(|(from, to)| spans(data.buffers()[1].len(), from, to))
        }
        DataType::LargeUtf8 | DataType::LargeBinary => {
            ends::<i64>(data).is_none_or(|(from, to)| spans(data.buffers()[1].len(), from, to))
        }
        DataType::List(_) | DataType::Map(..) => {
            ends::<i32>(data).is_none_or(|(from, to)| spans(data.child_data()[0].len(), from, to))
        }
        DataType::LargeList(_) => {
            ends::<i64>(data).is_none_or(|(from, to)| spans(data.child_data()[0].len(), from, to))
        }
        DataType::FixedSizeList(_, size) => {
            data.child_data()[0].len() == len * usize::try_from(*size).unwrap_or_default()
        }
        DataType::Struct(_) => data.child_data().iter().all(|child| child.len() == len),
        _ => true,
    };
    data.offset() == 0 && has_nulls_of_its_own && has_buffers && has_items && data.child_data().iter().all(is_whole)
}

/// Unused bytes that a buffer may have and still be sent without a copy.
const SLACK: usize = 64;

fn of_bits(len: usize) -> usize {
    len.div_ceil(8) + SLACK
}

/// Returns the first and the last offset.
fn ends<O: ArrowNativeType>(data: &ArrayData) -> Option<(usize, usize)> {
    let offsets: &[O] = data.buffers()[0].typed_data();
    Some((offsets.first()?.as_usize(), offsets.get(data.len())?.as_usize()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int8Type;
    use arrow_array::{
        BooleanArray, DictionaryArray, Int32Array, ListArray, NullArray, StringArray, StringViewArray, StructArray,
    };
    use arrow_schema::{Field, Schema};
    use proptest::prelude::*;

    use super::*;

    fn batch(seeds: &[Option<i32>]) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int32Array::from(seeds.to_vec()));
        let text: ArrayRef =
            Arc::new(StringArray::from_iter(seeds.iter().map(|seed| seed.map(|n| "é".repeat(n as usize)))));
        let lists = seeds.iter().map(|seed| seed.map(|n| (0..n).map(Some).collect::<Vec<_>>()));
        let words: DictionaryArray<Int8Type> =
            seeds.iter().map(|seed| seed.map(|n| if n % 2 == 0 { "even" } else { "odd" })).collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("numbers", Arc::clone(&numbers)),
            ("flags", Arc::new(BooleanArray::from_iter(seeds.iter().map(|seed| seed.map(|n| n > 2))))),
            ("text", Arc::clone(&text)),
            ("lists", Arc::new(ListArray::from_iter_primitive::<arrow_array::types::Int32Type, _, _>(lists))),
            ("words", Arc::new(words)),
            ("nothing", Arc::new(NullArray::new(seeds.len()))),
            (
                "pairs",
                Arc::new(StructArray::from(vec![
                    (Arc::new(Field::new("a", DataType::Int32, true)), numbers),
                    (Arc::new(Field::new("b", DataType::Utf8, true)), text),
                ])),
            ),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    proptest! {
        #[test]
        fn a_batch_is_what_its_parts_make(
            seeds in prop::collection::vec(prop::option::weighted(0.8, 0..6), 0..40), cut in 0usize..10, len in 0usize..40,
        ) {
            let whole = batch(&seeds);
            let from = cut.min(seeds.len());
            let batch = whole.slice(from, len.min(seeds.len() - from));
            let parts = take_apart(&batch).unwrap().unwrap();
            let num_bytes = |parts: &Parts| parts.buffers.iter().map(Buffer::len).sum::<usize>();
            prop_assert!(num_bytes(&parts) <= batch.get_array_memory_size() + parts.buffers.len() * SLACK);
            let again = put_together(&batch.schema(), batch.num_rows(), parts.clone()).unwrap();
            prop_assert_eq!(&again, &batch);
            // Missing or excess parts are refused.
            for change in [
                |parts: &mut Parts| parts.buffers.truncate(parts.buffers.len() - 1),
                |parts: &mut Parts| parts.arrays.truncate(parts.arrays.len() - 1),
                |parts: &mut Parts| parts.arrays.push((1, false)),
                |parts: &mut Parts| parts.arrays[0].0 += 1000,
                |parts: &mut Parts| {
                    for buffer in &mut parts.buffers {
                        *buffer = buffer.slice_with_length(0, buffer.len().saturating_sub(1));
                    }
                },
                |parts: &mut Parts| parts.buffers.push(Buffer::default()),
            ] {
                let mut changed = parts.clone();
                change(&mut changed);
                prop_assert!(put_together(&batch.schema(), batch.num_rows(), changed).is_err());
            }
        }
    }

    #[test]
    fn what_is_whole_is_not_copied() {
        let batch = batch(&(0..100).map(|n| Some(n % 5)).collect::<Vec<_>>());
        let parts = take_apart(&batch).unwrap().unwrap();
        assert_eq!(parts.buffers[0].as_ptr(), batch.column(0).to_data().buffers()[0].as_ptr());
        let view = take_apart(&batch.slice(1, 9)).unwrap().unwrap();
        assert!(view.buffers.iter().map(Buffer::len).sum::<usize>() < 2000);
    }

    #[test]
    fn other_types_have_no_parts() {
        let views: ArrayRef = Arc::new(StringViewArray::from(vec!["a"]));
        let schema = Schema::new(vec![Field::new("views", DataType::Utf8View, true)]);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![views]).unwrap();
        assert_eq!(take_apart(&batch).unwrap(), None);
    }
}
