//! Stores integers of lists in fewer bytes than their type has.
//!
//! Tokens are stored as 32 or 64 bits, and are hardly ever above 65,535. On [`shelves`](super::shelves), which hold
//! most of a stream's memory, such lists use 16 bits per integer and are widened again when they are gathered: this
//! halves the memory to allocate, write and read.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::{ArrowNativeType, Buffer, ToByteSlice};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef};
use num_traits::{AsPrimitive, FromBytes, PrimInt};

use super::copies::{RANGES_AHEAD, SourceRange, prefetch};
use super::shelves::items;
use crate::past_caches::PastCaches;

/// Returns the items of lists.
pub(super) fn item_of(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Returns the bytes of an item of lists of numbers.
pub(super) fn item_width(data_type: &DataType) -> Option<usize> {
    item_of(data_type)?.data_type().primitive_width()
}

/// Returns whether any lists, or items of theirs, are NULL.
pub(super) fn has_nulls(lists: &ArrayData) -> bool {
    lists.null_count() > 0 || lists.child_data()[0].null_count() > 0
}

/// Returns whether lists of `narrow` without NULLs may replace lists of `wide`.
pub(super) fn stands_for(narrow: &DataType, wide: &DataType) -> bool {
    let are_lists = match (narrow, wide) {
        (DataType::List(_), DataType::List(_)) | (DataType::LargeList(_), DataType::LargeList(_)) => true,
        (DataType::FixedSizeList(_, len), DataType::FixedSizeList(_, of_wide)) => len == of_wide,
        _ => false,
    };
    let (Some(narrow), Some(wide)) = (item_of(narrow), item_of(wide)) else { return false };
    let (narrow, wide) = (narrow.data_type(), wide.data_type());
    are_lists
        && matches!(narrow, DataType::UInt16 | DataType::UInt32)
        && wide.is_integer()
        && narrow.primitive_width() < wide.primitive_width()
}

/// Returns how many bytes smaller lists are than lists of `data_type`.
pub(super) fn saved_bytes(lists: &ArrayData, data_type: &DataType) -> u64 {
    let (stored, whole) = (item_width(lists.data_type()), item_width(data_type));
    let of_items = |(stored, whole): (usize, usize)| whole.saturating_sub(stored) * lists.child_data()[0].len();
    stored.zip(whole).map_or(0, of_items) as u64
}

/// Returns the list type with this many bytes per integer; floating-point types are unchanged.
pub(super) fn with_item_width(data_type: &DataType, width: usize) -> DataType {
    let with = |item: &FieldRef| {
        let narrow = if width == 2 { DataType::UInt16 } else { DataType::UInt32 };
        FieldRef::new(item.as_ref().clone().with_data_type(narrow))
    };
    match data_type {
        same if item_width(same) == Some(width) => same.clone(),
        DataType::List(item) => DataType::List(with(item)),
        DataType::LargeList(item) => DataType::LargeList(with(item)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(with(item), *len),
        other => other.clone(),
    }
}

/// Stores numbers of `W` bytes in fewer bytes each; returns whether they fit.
fn narrow<const W: usize, T, N>(numbers: &[u8], room: &mut Vec<N>) -> bool
where
    T: PrimInt + FromBytes<Bytes = [u8; W]> + AsPrimitive<N> + From<N>,
    N: ArrowNativeType + PrimInt,
{
    /// Compiled for each kind of processor.
    #[inline(always)]
    fn narrow_all<const W: usize, T, N>(numbers: &[[u8; W]], room: &mut [N]) -> T
    where
        T: PrimInt + FromBytes<Bytes = [u8; W]> + AsPrimitive<N>,
        N: ArrowNativeType,
    {
        let mut bits = T::zero();
        for (bytes, narrow) in numbers.iter().zip(room) {
            let number = T::from_ne_bytes(bytes);
            bits = bits | number;
            *narrow = number.as_();
        }
        bits
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn with_avx2<const W: usize, T, N>(numbers: &[[u8; W]], room: &mut [N]) -> T
    where
        T: PrimInt + FromBytes<Bytes = [u8; W]> + AsPrimitive<N>,
        N: ArrowNativeType,
    {
        narrow_all(numbers, room)
    }

    let numbers = numbers.as_chunks().0;
    room.resize(numbers.len(), N::default());
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[expect(unsafe_code, reason = "it is compiled for some processors only")]
        // SAFETY: the processor has the instructions.
        let bits: T = unsafe { with_avx2(numbers, room) };
        return bits <= N::max_value().into();
    }
    narrow_all::<W, T, N>(numbers, room) <= N::max_value().into()
}

/// Returns a function that stores rows of numbers in fewer bytes each, past the caches, and returns whether they fit.
pub(super) fn narrower<const W: usize, T, N>() -> impl FnMut(&PastCaches, &[u8], &mut [MaybeUninit<N>]) -> bool
where
    T: PrimInt + FromBytes<Bytes = [u8; W]> + AsPrimitive<N> + From<N>,
    N: ArrowNativeType + PrimInt,
{
    let mut narrowed = Vec::new();
    move |past, row, room| {
        let fits = narrow::<W, T, N>(row, &mut narrowed);
        past.copy(narrowed.to_byte_slice(), room);
        fits
    }
}

/// Copies the integers of each range, `width` bytes each, to ones of `fewer`; `None` if any does not fit.
pub(super) fn narrow_ranges(values: &[&[u8]], ranges: &[SourceRange], width: usize, fewer: usize) -> Option<Buffer> {
    match (width, fewer) {
        (4, 2) => narrow_each::<4, u32, u16>(values, ranges),
        (8, 2) => narrow_each::<8, u64, u16>(values, ranges),
        (8, 4) => narrow_each::<8, u64, u32>(values, ranges),
        _ => None,
    }
}

fn narrow_each<const W: usize, T, N>(values: &[&[u8]], ranges: &[SourceRange]) -> Option<Buffer>
where
    T: PrimInt + FromBytes<Bytes = [u8; W]> + AsPrimitive<N> + From<N>,
    N: ArrowNativeType + PrimInt,
{
    let (mut out, mut narrowed) = (Vec::new(), Vec::new());
    out.try_reserve_exact(ranges.iter().map(|(_, range)| range.len()).sum()).ok()?;
    for (place, (source, range)) in ranges.iter().enumerate() {
        if let Some((source, ahead)) = ranges.get(place + RANGES_AHEAD) {
            prefetch(values[*source as usize], ahead.start * W);
        }
        if !narrow::<W, T, N>(&values[*source as usize][range.start * W..range.end * W], &mut narrowed) {
            return None;
        }
        out.extend_from_slice(&narrowed);
    }
    Some(Buffer::from_vec(out))
}

/// Returns the smallest sufficient number of bytes per item of lists without NULLs.
pub(super) fn fewest_bytes(lists: &ArrayData) -> usize {
    let items_of = item_of(lists.data_type()).map(|item| item.data_type());
    let (mut halves, mut words) = (Vec::new(), Vec::new());
    let items = items(lists);
    match items_of {
        Some(DataType::Int32 | DataType::UInt32) if narrow::<4, u32, u16>(items, &mut halves) => 2,
        Some(DataType::Int64 | DataType::UInt64) if narrow::<8, u64, u16>(items, &mut halves) => 2,
        Some(DataType::Int64 | DataType::UInt64) if narrow::<8, u64, u32>(items, &mut words) => 4,
        _ => item_width(lists.data_type()).unwrap_or(0),
    }
}

/// How often the first lists of a part predicted a sufficient width for all of them.
#[derive(Debug, Default)]
pub(super) struct Narrowing {
    num_tried: AtomicU64,
    num_failed: AtomicU64,
}

impl Narrowing {
    /// Returns whether another try is worthwhile: if some integers do not fit, a part is decoded twice.
    pub(super) fn is_worth_trying(&self) -> bool {
        self.num_failed.load(Ordering::Relaxed) * 16 <= self.num_tried.load(Ordering::Relaxed) + 16
    }

    /// Records the result of a try.
    pub(super) fn tried(&self, has_failed: bool) {
        self.num_tried.fetch_add(1, Ordering::Relaxed);
        self.num_failed.fetch_add(u64::from(has_failed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int64Type;
    use arrow_array::{Array, ArrayRef, FixedSizeListArray, LargeListArray, ListArray};
    use arrow_cast::cast;
    use arrow_schema::Field;
    use proptest::prelude::*;

    use super::super::gather::{Rows, SourceRow, gather_as};
    use super::super::slabs::tests::room;
    use super::*;

    /// Lists of three kinds, with items of this type.
    fn list_type(kind: usize, item: DataType) -> DataType {
        let item = Arc::new(Field::new("item", item, true));
        match kind {
            0 => DataType::List(item),
            1 => DataType::LargeList(item),
            _ => DataType::FixedSizeList(item, 3),
        }
    }

    /// Returns lists of the numbers.
    fn lists(kind: usize, rows: &[Option<Vec<Option<i64>>>], item: &DataType) -> ArrayRef {
        let rows = rows.iter().cloned();
        let lists: ArrayRef = match kind {
            0 => Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows)),
            1 => Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(rows)),
            _ => {
                let rows = rows.map(|row| {
                    row.map(|mut row| {
                        row.resize(3, Some(9));
                        row
                    })
                });
                Arc::new(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(rows, 3))
            }
        };
        cast(&lists, &list_type(kind, item.clone())).unwrap()
    }

    fn rows(has_nulls: bool) -> impl Strategy<Value = Vec<Option<Vec<Option<i64>>>>> {
        let row = prop::collection::vec(prop::option::weighted(0.8, 0_i64..1 << 16), 0..5);
        let rows = prop::collection::vec(prop::option::weighted(0.8, row), 1..20);
        rows.prop_map(move |rows| {
            let filled = |row: Option<Vec<Option<i64>>>| {
                Some(row.unwrap_or_default().into_iter().map(|item| item.or(Some(7))).collect())
            };
            if has_nulls { rows } else { rows.into_iter().map(filled).collect() }
        })
    }

    proptest! {
        #[test]
        fn rows_of_fewer_bytes_are_gathered_as_those_of_all(
            kind in 0_usize..3,
            wide in prop::sample::select(vec![DataType::Int32, DataType::UInt32, DataType::Int64, DataType::UInt64]),
            sources in prop::collection::vec(prop_oneof![
                rows(false).prop_map(|rows| (rows, DataType::UInt16)),
                rows(false).prop_map(|rows| (rows, DataType::UInt32)),
                rows(false).prop_map(|rows| (rows, DataType::Null)),
                rows(true).prop_map(|rows| (rows, DataType::Null)),
            ], 1..5),
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..60),
            cut in 0_usize..3,
        ) {
            let cut = |array: ArrayRef| array.slice(cut.min(array.len() - 1), array.len() - cut.min(array.len() - 1));
            let expected: Vec<ArrayRef> = sources.iter().map(|(rows, _)| cut(lists(kind, rows, &wide))).collect();
            let stored: Vec<ArrayData> = sources.iter().map(|(rows, item)| {
                let is_narrow = stands_for(&list_type(kind, item.clone()), &list_type(kind, wide.clone()));
                cut(lists(kind, rows, if is_narrow { item } else { &wide })).to_data()
            }).collect();
            let picked: Vec<(usize, usize)> = picks.iter().map(|(source, row)| {
                let source = source.index(sources.len());
                (source, row.index(expected[source].len()))
            }).collect();
            let rows: Vec<SourceRow> =
                picked.iter().map(|&(source, row)| (source.try_into().unwrap(), row.try_into().unwrap())).collect();
            let data_type = list_type(kind, wide);
            let arrays: Vec<&dyn Array> = expected.iter().map(AsRef::as_ref).collect();
            let expected = arrow_select::interleave::interleave(&arrays, &picked).unwrap();
            for room in [Some(room(1 << 13)), None] {
                let rows = Rows { room: room.as_ref(), ..Rows::new(&rows) };
                let gathered = gather_as(&data_type, &stored.iter().collect::<Vec<_>>(), rows).unwrap();
                gathered.validate_full().unwrap();
                prop_assert_eq!(&arrow_array::make_array(gathered), &expected);
            }
        }

        #[test]
        fn numbers_fit_where_the_largest_does(numbers in prop::collection::vec(prop_oneof![0_u64..1 << 17, any::<u64>()], 0..70)) {
            let mut room = vec![7_u32];
            let fit = narrow::<8, u64, u32>(numbers.to_byte_slice(), &mut room);
            prop_assert_eq!(fit, numbers.iter().all(|&n| u32::try_from(n).is_ok()));
            prop_assert!(!fit || room.iter().map(|&n| u64::from(n)).eq(numbers.iter().copied()));
            prop_assert_eq!(room.len(), numbers.len());
        }
    }

    #[test]
    fn what_fails_often_is_not_tried_again() {
        let narrowing = Narrowing::default();
        narrowing.tried(true);
        assert!(narrowing.is_worth_trying());
        narrowing.tried(true);
        assert!(!narrowing.is_worth_trying());
        let narrowing = Narrowing::default();
        (0..1000).for_each(|_| narrowing.tried(false));
        (0..60).for_each(|_| narrowing.tried(true));
        assert!(narrowing.is_worth_trying());
    }

    #[test]
    fn only_unsigned_integers_of_fewer_bytes_stand_for_others() {
        let of = |narrow, wide| stands_for(&list_type(0, narrow), &list_type(0, wide));
        assert!(of(DataType::UInt16, DataType::Int32));
        assert!(of(DataType::UInt32, DataType::UInt64));
        assert!(!of(DataType::UInt32, DataType::Int32));
        assert!(!of(DataType::UInt16, DataType::Float32));
        assert!(!of(DataType::UInt16, DataType::Date32));
        assert!(!of(DataType::Int16, DataType::Int32));
        assert!(!stands_for(&list_type(0, DataType::UInt16), &list_type(1, DataType::Int32)));
        assert!(!stands_for(&DataType::UInt16, &DataType::Int32));
    }
}
