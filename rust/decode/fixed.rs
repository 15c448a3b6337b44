//! Fixed-width values of up to eight bytes.

use std::fmt;
use std::ops::Range;

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, ToByteSlice};
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::header::Encoding;
use super::spread::spread;
use super::values::{
    Items, NO_SUCH_VALUE, Numbers, Place, Stored, TOO_FEW, Values, each_number, each_picked_number, take_each_run,
};
use super::{Fit, MOST_PER_BYTE, Misfit};

/// The bits of a value.
pub(super) trait Word: ArrowNativeType + fmt::Debug + Default + Send {
    /// Returns the word with the stored bytes as its lowest; if they are longer, the rest only extends the sign.
    fn of<const STORED: usize>(stored: &[u8; STORED]) -> Self;

    /// Returns the word in two bytes, if these suffice.
    fn half(self) -> Option<u16>;
}

macro_rules! impl_word {
    ($($word:ty)*) => {$(
        impl Word for $word {
            #[inline]
            fn of<const STORED: usize>(stored: &[u8; STORED]) -> Self {
                stored.first_chunk().map_or(0, |bytes| Self::from_le_bytes(*bytes))
            }

            fn half(self) -> Option<u16> {
                u16::try_from(self).ok()
            }
        }
    )*};
}

impl_word!(u8 u16 u32 u64);

/// Appends values of `STORED` bytes.
fn extend<T: Word, const STORED: usize>(words: &mut Vec<T>, stored: &[u8]) {
    words.extend(stored.as_chunks::<STORED>().0.iter().map(T::of));
}

/// Collects values of one width, of any type, which are stored in `STORED` bytes.
#[derive(Debug)]
pub(super) struct FixedValues<T, const STORED: usize> {
    data_type: DataType,
    dictionary: Vec<T>,
    place: Place,
    words: Vec<T>,
    /// Values on their way from a page to their slots.
    dense: Vec<T>,
    /// The dictionary in two bytes per value, once requested; the inner `None` if these do not suffice.
    halves: Option<Option<Vec<u16>>>,
    dense_halves: Vec<u16>,
}

impl<T: Word, const STORED: usize> FixedValues<T, STORED> {
    pub(super) fn new(data_type: DataType) -> Self {
        Self {
            data_type,
            dictionary: Vec::new(),
            place: Place::Plain(0),
            words: Vec::new(),
            dense: Vec::new(),
            halves: None,
            dense_halves: Vec::new(),
        }
    }
}

/// Appends the next values of a page to `out`.
fn read<T: Word, const STORED: usize>(
    place: &mut Place,
    bytes: &[u8],
    dictionary: &[T],
    num_values: usize,
    out: &mut Vec<T>,
) -> Fit<()> {
    let numbers = match place {
        Place::Plain(at) => {
            let end = num_values.checked_mul(STORED).and_then(|len| at.checked_add(len)).ok_or(TOO_FEW)?;
            extend::<T, STORED>(out, bytes.get(*at..end).ok_or(TOO_FEW)?);
            *at = end;
            return Ok(());
        }
        Place::Numbers(numbers) => numbers,
    };
    each_number(numbers, bytes, num_values, |numbers| {
        match numbers {
            Numbers::Same(number, len) => {
                let value = dictionary.get(number as usize).ok_or(NO_SUCH_VALUE)?;
                out.extend(std::iter::repeat_n(*value, len));
            }
            Numbers::Each(block) => look_up(dictionary, block, out)?,
        }
        Ok(())
    })
}

/// Appends those of the next values of a page whose bits are set to `out`.
fn pick<T: Word, const STORED: usize>(
    place: &mut Place,
    bytes: &[u8],
    dictionary: &[T],
    bits: &BooleanBuffer,
    out: &mut Vec<T>,
) -> Fit<()> {
    match place {
        Place::Plain(at) => {
            let end = bits.len().checked_mul(STORED).and_then(|len| at.checked_add(len)).ok_or(TOO_FEW)?;
            let stored = bytes.get(*at..end).ok_or(TOO_FEW)?.as_chunks::<STORED>().0;
            *at = end;
            keep(stored, T::of, bits, out);
            Ok(())
        }
        Place::Numbers(numbers) => each_picked_number(numbers, bytes, bits, |block| look_up(dictionary, block, out)),
    }
}

/// Appends the values with these keys.
fn look_up<T: Word>(dictionary: &[T], numbers: &[u32], out: &mut Vec<T>) -> Fit<()> {
    let mut is_inside = true;
    out.extend(numbers.iter().map(|&number| {
        let value = dictionary.get(number as usize);
        is_inside &= value.is_some();
        value.copied().unwrap_or_default()
    }));
    if is_inside { Ok(()) } else { Err(NO_SUCH_VALUE) }
}

/// Appends those of `all` whose bits are set.
fn keep<S, T: Word>(all: &[S], of: impl Fn(&S) -> T, bits: &BooleanBuffer, out: &mut Vec<T>) {
    let mut kept = [T::default(); 64];
    for (all, mut bits) in all.chunks(64).zip(bits.bit_chunks().iter_padded()) {
        if bits == u64::MAX {
            out.extend(all.iter().map(&of));
            continue;
        }
        let mut num_kept = 0;
        while let Some(value) = all.get(bits.trailing_zeros() as usize) {
            kept[num_kept & 63] = of(value);
            num_kept += 1;
            bits &= bits - 1;
        }
        out.extend_from_slice(&kept[..num_kept]);
    }
}

impl<T: Word, const STORED: usize> Values for FixedValues<T, STORED> {
    fn set_dictionary(&mut self, bytes: &[u8], num_values: usize) -> Fit<()> {
        let stored = num_values.checked_mul(STORED).and_then(|len| bytes.get(..len));
        self.dictionary.clear();
        self.halves = None;
        extend::<T, STORED>(
            &mut self.dictionary,
            stored.ok_or(Misfit("a dictionary has fewer values than it claims"))?,
        );
        Ok(())
    }

    fn stored(&self) -> Stored {
        Stored::Fixed(STORED)
    }

    fn set_page(&mut self, encoding: Encoding, bytes: &[u8], num_values: usize) -> Fit<()> {
        self.place = Place::of_page(encoding, bytes)?;
        // Even if the last ones are not wanted: the others might then begin elsewhere.
        let is_whole = num_values.checked_mul(STORED).is_some_and(|len| len <= bytes.len());
        if encoding == Encoding::Plain && !is_whole { Err(Misfit::TOO_SHORT) } else { Ok(()) }
    }

    fn skip(&mut self, bytes: &[u8], num_values: usize) -> Fit<()> {
        match &mut self.place {
            Place::Plain(at) => {
                let end = num_values.checked_mul(STORED).and_then(|len| at.checked_add(len));
                *at = end.filter(|&end| end <= bytes.len()).ok_or(TOO_FEW)?;
                Ok(())
            }
            Place::Numbers(numbers) => numbers.skip(bytes, num_values),
        }
    }

    fn take(&mut self, bytes: &[u8], num_values: usize) -> Fit<()> {
        read::<T, STORED>(&mut self.place, bytes, &self.dictionary, num_values, &mut self.words)
    }

    fn take_items<'a>(
        &'a mut self,
        bytes: &'a [u8],
        num_passed: usize,
        num_values: usize,
        width: usize,
    ) -> Option<Items<'a>> {
        // If this fails, reading the values starts from the same position, and reports why.
        let mut place = self.place;
        let items = match &mut place {
            Place::Plain(at) => {
                let is_as_stored = STORED == size_of::<T>() && cfg!(target_endian = "little");
                let start = num_passed.checked_mul(STORED)?.checked_add(*at)?;
                let end = num_values.checked_mul(STORED)?.checked_add(start)?;
                *at = end;
                Items { bytes: bytes.get(start..end).filter(|_| is_as_stored)?, width: STORED }
            }
            Place::Numbers(numbers) => {
                numbers.skip(bytes, num_passed).ok()?;
                if width == size_of::<u16>() && width < size_of::<T>() {
                    let halves =
                        self.halves.get_or_insert_with(|| self.dictionary.iter().map(|word| word.half()).collect());
                    self.dense_halves.clear();
                    let dictionary = halves.as_deref()?;
                    read::<u16, STORED>(&mut place, bytes, dictionary, num_values, &mut self.dense_halves).ok()?;
                    Items { bytes: self.dense_halves.to_byte_slice(), width }
                } else {
                    self.dense.clear();
                    read::<T, STORED>(&mut place, bytes, &self.dictionary, num_values, &mut self.dense).ok()?;
                    Items { bytes: self.dense.to_byte_slice(), width: size_of::<T>() }
                }
            }
        };
        self.place = place;
        Some(items)
    }

    fn take_runs(&mut self, bytes: &[u8], at: usize, slots: &[Range<usize>]) -> Fit<()> {
        let (Place::Plain(place), Some(last)) = (&mut self.place, slots.last()) else {
            return take_each_run(self, bytes, at, slots);
        };
        let end = last.end.checked_sub(at).and_then(|num| num.checked_mul(STORED)?.checked_add(*place));
        let stored = bytes.get(*place..end.ok_or(TOO_FEW)?).ok_or(TOO_FEW)?.as_chunks::<STORED>().0;
        *place += stored.len() * STORED;
        for run in slots {
            self.words.extend(stored[run.start - at..run.end - at].iter().map(T::of));
        }
        Ok(())
    }

    fn take_bits(&mut self, bytes: &[u8], num_passed: usize, bits: &BooleanBuffer) -> Fit<()> {
        self.skip(bytes, num_passed)?;
        pick::<T, STORED>(&mut self.place, bytes, &self.dictionary, bits, &mut self.words)
    }

    fn take_picked(&mut self, bytes: &[u8], num_passed: usize, bits: &BooleanBuffer, slots: &BooleanBuffer) -> Fit<()> {
        self.skip(bytes, num_passed)?;
        self.dense.clear();
        pick::<T, STORED>(&mut self.place, bytes, &self.dictionary, bits, &mut self.dense)?;
        spread(&mut self.dense, slots, &mut self.words);
        Ok(())
    }

    fn take_spread(&mut self, bytes: &[u8], slots: &BooleanBuffer) -> Fit<()> {
        self.dense.clear();
        read::<T, STORED>(&mut self.place, bytes, &self.dictionary, slots.count_set_bits(), &mut self.dense)?;
        spread(&mut self.dense, slots, &mut self.words);
        Ok(())
    }

    fn reserve(&mut self, num_slots: usize, stored_bytes: usize) -> Fit<()> {
        // A page may claim anything; anything beyond this must first prove to exist.
        let believable = num_slots.min(stored_bytes.saturating_mul(MOST_PER_BYTE) / size_of::<T>());
        self.words.try_reserve_exact(believable).map_err(|_| Misfit::MEMORY)
    }

    fn num_slots(&self) -> usize {
        self.words.len()
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Fit<ArrayRef> {
        let mut words = std::mem::take(&mut self.words);
        words.shrink_to_fit();
        let data = ArrayData::builder(self.data_type.clone())
            .len(words.len())
            .add_buffer(Buffer::from_vec(words))
            .nulls(nulls)
            .build();
        data.map(make_array).map_err(|_| Misfit("values are not of the column's type"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_whose_bits_are_set_are_kept(
            runs in prop::collection::vec((any::<bool>(), 1_usize..100), 1..12), skip in 0_usize..9,
        ) {
            let bits: Vec<bool> = runs.iter().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len)).collect();
            let skip = skip.min(bits.len());
            let all: Vec<u32> = (1..).take(bits.len() - skip).collect();
            let expected: Vec<u32> = all.iter().zip(&bits[skip..]).filter(|(_, keep)| **keep).map(|(value, _)| *value).collect();
            let mut out = Vec::new();
            keep(&all, |value| *value, &BooleanBuffer::from(bits).slice(skip, all.len()), &mut out);
            prop_assert_eq!(out, expected);
        }
    }
}
