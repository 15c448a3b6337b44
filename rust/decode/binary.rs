//! Variable-length values: text and bytes.

use std::sync::Arc;

use arrow_array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow_array::{ArrayRef, GenericByteArray};
use arrow_buffer::bit_iterator::BitIndexIterator;
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use simdutf8::basic::from_utf8;

use super::header::Encoding;
use super::hybrid::Hybrid;
use super::plain::read_lengths;
use super::values::{NO_SUCH_VALUE, Numbers, Place, Stored, TOO_FEW, Values, each_number, each_picked_number};
use super::{Fit, MOST_PER_BYTE, Misfit};

const TOO_LONG: Misfit = Misfit("values have more bytes than offsets can count");
const NOT_UTF8: Misfit = Misfit("a text is not UTF-8");
const NOT_OF_ONE_LENGTH: Misfit = Misfit("there are not as many values as places for them");

/// Collects texts or bytes.
#[derive(Debug)]
pub(super) struct BinaryValues {
    data_type: DataType,
    /// The expected contents of a chunk, according to its footer: bytes, and number of values.
    expected: (u64, u64),
    dictionary: Buffer,
    /// Where the dictionary's values begin, and the last ends.
    starts: Vec<usize>,
    place: Place,
    /// The position in a page that stores all lengths first.
    behind: Option<Behind>,
    bytes: Bytes,
}

/// A position in values that follow all of their lengths.
#[derive(Debug, Default)]
struct Behind {
    lengths: Vec<u32>,
    /// The number of the next value, and where it begins.
    next: usize,
    at: usize,
}

impl Behind {
    /// Starts a page with this many values.
    fn begin(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        let values = read_lengths(page, num_values, &mut self.lengths)?;
        (self.next, self.at) = (0, page.len() - values.len());
        Ok(())
    }

    /// Takes the next values; returns their lengths, and the concatenated values.
    fn take<'p>(&mut self, page: &'p [u8], num_values: usize) -> Fit<(&[u32], &'p [u8])> {
        let lengths = self.lengths.get(self.next..self.next + num_values).ok_or(TOO_FEW)?;
        let end = self.at + lengths.iter().map(|length| *length as usize).sum::<usize>();
        let values = page.get(self.at..end).ok_or(TOO_FEW)?;
        (self.next, self.at) = (self.next + num_values, end);
        Ok((lengths, values))
    }
}

/// Concatenated values.
#[derive(Debug, Default)]
struct Bytes {
    /// The end of each, after a zero.
    offsets: Vec<i32>,
    data: Vec<u8>,
    /// Maximum of their total bytes: dictionary keys can repeat long values with few bytes.
    most: usize,
}

/// Bytes copied at once for values up to this length, as long as more follow.
const SHORT: usize = 32;

impl Bytes {
    /// Appends the `len` bytes at `at` of `all`, which contains them.
    #[inline]
    fn push(&mut self, all: &[u8], at: usize, len: usize) -> Fit<()> {
        let start = self.data.len();
        let end = start + len;
        if end > self.most {
            return Err(Misfit::TOO_LARGE);
        }
        let end_offset = i32::try_from(end).map_err(|_| TOO_LONG)?;
        match all[at..].first_chunk::<SHORT>() {
            Some(bytes) if len <= SHORT => {
                // Two register moves instead of a call.
                self.data.extend_from_slice(bytes);
                self.data.truncate(end);
            }
            _ => self.data.extend_from_slice(&all[at..at + len]),
        }
        self.offsets.push(end_offset);
        Ok(())
    }

    /// Appends contiguous values of these lengths.
    fn push_all(&mut self, all: &[u8], lengths: &[u32]) -> Fit<()> {
        let end = self.data.len() + all.len();
        if end > self.most {
            return Err(Misfit::TOO_LARGE);
        }
        i32::try_from(end).map_err(|_| TOO_LONG)?;
        let mut last = self.offsets.last().copied().unwrap_or(0);
        self.offsets.extend(lengths.iter().map(|length| {
            last += length.cast_signed();
            last
        }));
        self.data.extend_from_slice(all);
        Ok(())
    }

    /// Appends an empty value.
    fn push_nothing(&mut self) {
        self.offsets.push(self.offsets.last().copied().unwrap_or(0));
    }

    /// Appends empty values until there are `len`.
    fn fill(&mut self, len: usize) {
        while self.len() < len {
            self.push_nothing();
        }
    }

    fn new(most: usize) -> Self {
        Self { offsets: vec![0], data: Vec::new(), most }
    }

    fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}

/// Slots, some of which have no value.
struct Gaps<'a> {
    set: BitIndexIterator<'a>,
    at: usize,
}

impl<'a> Gaps<'a> {
    fn new(slots: &'a BooleanBuffer) -> Self {
        Self { set: slots.set_indices(), at: 0 }
    }

    /// Appends nothing to the slots before the next that has a value.
    #[inline]
    fn fill(&mut self, bytes: &mut Bytes) {
        let slot = self.set.next().unwrap_or(self.at);
        (self.at..slot).for_each(|_| bytes.push_nothing());
        self.at = slot + 1;
    }
}

/// Returns the position of the value whose length is at this position of a page, and the length.
#[inline]
fn value_at(page: &[u8], at: usize) -> Fit<(usize, usize)> {
    let (len, rest) = page.get(at..).and_then(<[u8]>::split_first_chunk).ok_or(TOO_FEW)?;
    let len = u32::from_le_bytes(*len) as usize;
    if len <= rest.len() { Ok((at + size_of::<u32>(), len)) } else { Err(TOO_FEW) }
}

impl BinaryValues {
    /// Returns a collector of at most `memory_bytes` at once.
    pub(super) fn new(data_type: DataType, expected: (u64, u64), memory_bytes: u64) -> Self {
        let bytes = Bytes::new(usize::try_from(memory_bytes).unwrap_or(usize::MAX));
        Self {
            data_type,
            expected,
            dictionary: Buffer::default(),
            starts: vec![0],
            place: Place::Plain(0),
            behind: None,
            bytes,
        }
    }

    /// Returns the dictionary's values.
    pub(super) fn dictionary(&self) -> Fit<ArrayRef> {
        let offsets = self.starts.iter().map(|start| i32::try_from(*start).map_err(|_| TOO_LONG));
        self.array(offsets.collect::<Fit<_>>()?, self.dictionary.clone(), None)
    }

    /// Returns the position of the next dictionary keys, if the current page has keys.
    pub(super) fn numbers(&mut self) -> Option<&mut Hybrid> {
        match &mut self.place {
            Place::Numbers(numbers) if self.behind.is_none() => Some(numbers),
            _ => None,
        }
    }

    /// Appends a value of the dictionary; an empty one if the key is out of range, for a NULL.
    pub(super) fn push_number(&mut self, number: u32) -> Fit<()> {
        match numbered(&self.starts, number) {
            Ok((start, len)) => self.bytes.push(&self.dictionary, start, len),
            Err(_) => {
                self.bytes.push_nothing();
                Ok(())
            }
        }
    }

    /// Returns values of the column's type.
    fn array(&self, offsets: Vec<i32>, data: Buffer, nulls: Option<NullBuffer>) -> Fit<ArrayRef> {
        let wide = |offsets: Vec<i32>| offsets.into_iter().map(i64::from).collect();
        match self.data_type {
            DataType::Utf8 => array::<Utf8Type>(offsets, data, nulls),
            DataType::LargeUtf8 => array::<LargeUtf8Type>(wide(offsets), data, nulls),
            DataType::Binary => array::<BinaryType>(offsets, data, nulls),
            DataType::LargeBinary => array::<LargeBinaryType>(wide(offsets), data, nulls),
            _ => Err(Misfit("values are not of the column's type")),
        }
    }

    /// Appends the next values of a page; before each, `next` returns how many slots have none.
    fn take_after(&mut self, page: &[u8], num_values: usize, mut next: impl FnMut(&mut Bytes)) -> Fit<()> {
        let Self { dictionary, starts, place, behind, bytes, .. } = self;
        if let Some(behind) = behind {
            let (lengths, mut rest) = behind.take(page, num_values)?;
            for &length in lengths {
                next(bytes);
                bytes.push(rest, 0, length as usize)?;
                rest = &rest[length as usize..];
            }
            return Ok(());
        }
        let numbers = match place {
            Place::Plain(at) => {
                for _ in 0..num_values {
                    let (start, len) = value_at(page, *at)?;
                    *at = start + len;
                    next(bytes);
                    bytes.push(page, start, len)?;
                }
                return Ok(());
            }
            Place::Numbers(numbers) => numbers,
        };
        each_number(numbers, page, num_values, |numbers| {
            match numbers {
                Numbers::Same(number, len) => {
                    let (at, value_bytes) = numbered(starts, number)?;
                    for _ in 0..len {
                        next(bytes);
                        bytes.push(dictionary, at, value_bytes)?;
                    }
                }
                Numbers::Each(block) => {
                    for &number in block {
                        let (at, value_bytes) = numbered(starts, number)?;
                        next(bytes);
                        bytes.push(dictionary, at, value_bytes)?;
                    }
                }
            }
            Ok(())
        })
    }
}

impl BinaryValues {
    /// Appends those of the next values of a page whose bits are set; before each, `next` returns how many slots have
    /// none.
    fn pick_after(&mut self, page: &[u8], bits: &BooleanBuffer, mut next: impl FnMut(&mut Bytes)) -> Fit<()> {
        let Self { dictionary, starts, place, behind, bytes, .. } = self;
        if let Some(behind) = behind {
            let (lengths, mut rest) = behind.take(page, bits.len())?;
            for (&length, is_set) in lengths.iter().zip(bits) {
                if is_set {
                    next(bytes);
                    bytes.push(rest, 0, length as usize)?;
                }
                rest = &rest[length as usize..];
            }
            return Ok(());
        }
        match place {
            Place::Plain(at) => {
                for is_set in bits {
                    let (start, len) = value_at(page, *at)?;
                    *at = start + len;
                    if is_set {
                        next(bytes);
                        bytes.push(page, start, len)?;
                    }
                }
                Ok(())
            }
            Place::Numbers(numbers) => each_picked_number(numbers, page, bits, |numbers| {
                numbers.iter().try_for_each(|&number| {
                    let (at, value_bytes) = numbered(starts, number)?;
                    next(bytes);
                    bytes.push(dictionary, at, value_bytes)
                })
            }),
        }
    }
}

/// Returns the position of the dictionary value with a key, and its length.
#[inline]
fn numbered(starts: &[usize], number: u32) -> Fit<(usize, usize)> {
    let pair = starts.get(number as usize..).and_then(<[usize]>::first_chunk::<2>).ok_or(NO_SUCH_VALUE)?;
    Ok((pair[0], pair[1] - pair[0]))
}

impl Values for BinaryValues {
    fn stored(&self) -> Stored {
        Stored::Any
    }

    fn set_dictionary(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        let mut dictionary = Vec::new();
        (self.dictionary, self.starts) = (Buffer::default(), Vec::new());
        let believable = num_values.min(page.len() / size_of::<u32>());
        self.starts.try_reserve_exact(believable + 1).map_err(|_| Misfit::MEMORY)?;
        dictionary.try_reserve_exact(page.len() + SHORT).map_err(|_| Misfit::MEMORY)?;
        self.starts.push(0);
        let mut at = 0;
        for _ in 0..num_values {
            let (start, len) = value_at(page, at)?;
            at = start + len;
            dictionary.extend_from_slice(&page[start..at]);
            self.starts.push(dictionary.len());
        }
        dictionary.extend_from_slice(&[0; SHORT]);
        self.dictionary = dictionary.into();
        Ok(())
    }

    fn set_page(&mut self, encoding: Encoding, page: &[u8], num_values: usize) -> Fit<()> {
        if encoding == Encoding::Lengths {
            return self.behind.get_or_insert_default().begin(page, num_values);
        }
        (self.behind, self.place) = (None, Place::of_page(encoding, page)?);
        Ok(())
    }

    fn skip(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        if let Some(behind) = &mut self.behind {
            return behind.take(page, num_values).map(drop);
        }
        match &mut self.place {
            Place::Plain(at) => {
                for _ in 0..num_values {
                    let (start, len) = value_at(page, *at)?;
                    *at = start + len;
                }
                Ok(())
            }
            Place::Numbers(numbers) => numbers.skip(page, num_values),
        }
    }

    fn take(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        if let Some(behind) = &mut self.behind {
            let (lengths, values) = behind.take(page, num_values)?;
            return self.bytes.push_all(values, lengths);
        }
        self.take_after(page, num_values, |_| {})
    }

    fn take_bits(&mut self, page: &[u8], num_passed: usize, bits: &BooleanBuffer) -> Fit<()> {
        self.skip(page, num_passed)?;
        self.pick_after(page, bits, |_| {})
    }

    fn take_picked(&mut self, page: &[u8], num_passed: usize, bits: &BooleanBuffer, slots: &BooleanBuffer) -> Fit<()> {
        self.skip(page, num_passed)?;
        let (end, mut gaps) = (self.bytes.len() + slots.len(), Gaps::new(slots));
        self.pick_after(page, bits, |bytes| gaps.fill(bytes))?;
        self.bytes.fill(end);
        Ok(())
    }

    fn take_spread(&mut self, page: &[u8], slots: &BooleanBuffer) -> Fit<()> {
        let (end, mut gaps) = (self.bytes.len() + slots.len(), Gaps::new(slots));
        self.take_after(page, slots.count_set_bits(), |bytes| gaps.fill(bytes))?;
        self.bytes.fill(end);
        Ok(())
    }

    fn reserve(&mut self, num_slots: usize, stored_bytes: usize) -> Fit<()> {
        let most = stored_bytes.saturating_mul(MOST_PER_BYTE);
        let believable = num_slots.min(most / size_of::<i32>());
        self.bytes.offsets.try_reserve_exact(believable).map_err(|_| Misfit::MEMORY)?;
        let (bytes, values) = self.expected;
        let expected = u128::from(bytes) * num_slots as u128 / u128::from(values.max(1));
        let expected =
            usize::try_from(expected).unwrap_or(usize::MAX).min(most).min(self.bytes.most).min(i32::MAX as usize);
        self.bytes.data.try_reserve_exact(expected + SHORT).map_err(|_| Misfit::MEMORY)
    }

    fn num_slots(&self) -> usize {
        self.bytes.len()
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Fit<ArrayRef> {
        let Bytes { offsets, mut data, most } = std::mem::take(&mut self.bytes);
        self.bytes = Bytes::new(most);
        data.shrink_to_fit();
        self.array(offsets, data.into(), nulls)
    }
}

/// Returns values as an array; text is checked to be UTF-8.
fn array<T: ByteArrayType>(offsets: Vec<T::Offset>, data: Buffer, nulls: Option<NullBuffer>) -> Fit<ArrayRef> {
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    let end = offsets.last().map_or(0, |end| end.as_usize());
    if end > data.len() || nulls.as_ref().is_some_and(|nulls| nulls.len() + 1 != offsets.len()) {
        return Err(NOT_OF_ONE_LENGTH);
    }
    if matches!(T::DATA_TYPE, DataType::Utf8 | DataType::LargeUtf8) {
        let begins = |place: &T::Offset| data.get(place.as_usize()).is_none_or(|byte| byte & 0xc0 != 0x80);
        if from_utf8(&data).is_err() || !offsets.iter().all(begins) {
            return Err(NOT_UTF8);
        }
    }
    #[expect(unsafe_code, reason = "Arrow's own check takes ten times as long where texts are not ASCII")]
    // SAFETY: offsets ascend, as their buffer has checked, to at most the end of the data; there are as many bits as
    // values. All texts together are UTF-8, and each begins at a character boundary, so each of them is.
    let array = unsafe { GenericByteArray::<T>::new_unchecked(offsets, data, nulls) };
    Ok(Arc::new(array))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_whole_characters() {
        let utf8 = |offsets: &[i32], data: &[u8]| array::<Utf8Type>(offsets.to_vec(), data.to_vec().into(), None);
        let text = "aö€\u{1f600}";
        assert!(utf8(&[0, 1, 1, 3, 6, 10], text.as_bytes()).is_ok());
        assert!(utf8(&[0, 1, 6], text.as_bytes()).is_ok());
        for split in [2, 4, 5, 7, 8, 9] {
            assert_eq!(utf8(&[0, split, 10], text.as_bytes()).unwrap_err(), NOT_UTF8);
        }
        assert_eq!(utf8(&[0, 1, 2], b"a\xff").unwrap_err(), NOT_UTF8);
        assert_eq!(utf8(&[0, 2], "ö€".as_bytes().split_last().unwrap().1).unwrap_err(), NOT_UTF8);
        assert_eq!(utf8(&[0, 2], b"a").unwrap_err(), NOT_OF_ONE_LENGTH);
        assert!(array::<BinaryType>(vec![0, 1, 2], b"a\xff".to_vec().into(), None).is_ok());
        let nulls = Some(NullBuffer::new_valid(3));
        assert_eq!(array::<BinaryType>(vec![0, 1, 2], b"ab".to_vec().into(), nulls).unwrap_err(), NOT_OF_ONE_LENGTH);
    }
}
