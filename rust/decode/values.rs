//! The values of a leaf column, page by page, and which of its slots have one.

use std::fmt;
use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_buffer::{BooleanBuffer, NullBuffer};

use super::bits::Bits;
use super::header::Encoding;
use super::hybrid::{Hybrid, Run, unpack};
use super::levels::count_ones;
use super::{Fit, Misfit};

/// Keys that are unpacked together: as many as stay in the L1 cache.
pub(super) const BLOCK: usize = 512;

/// Contiguous values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Items<'a> {
    pub(crate) bytes: &'a [u8],
    /// The bytes of each.
    pub(crate) width: usize,
}

/// How plain values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// In one bit each.
    Bits,
    /// In this many bytes each.
    Fixed(usize),
    /// With variable length, prefixed by it.
    Any,
}

/// Collects the values of one type. `bytes` are always those of the current page.
pub(super) trait Values: fmt::Debug + Send {
    /// Reads the values that keys refer to.
    fn set_dictionary(&mut self, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Returns the dictionary, if finished arrays are keys of its values.
    fn dictionary(&self) -> Option<ArrayRef> {
        None
    }

    /// Returns how values are stored.
    fn stored(&self) -> Stored;

    /// Starts a page with this many values.
    fn set_page(&mut self, encoding: Encoding, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Skips values.
    fn skip(&mut self, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Appends values.
    fn take(&mut self, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Appends the values of ascending `slots`, if all of the page's slots have one; those before `at` are already
    /// skipped.
    fn take_runs(&mut self, bytes: &[u8], at: usize, slots: &[Range<usize>]) -> Fit<()> {
        take_each_run(self, bytes, at, slots)
    }

    /// Skips values, then appends those whose bits are set.
    fn take_bits(&mut self, bytes: &[u8], num_passed: usize, bits: &BooleanBuffer) -> Fit<()> {
        take_each_bit(self, bytes, num_passed, bits)
    }

    /// Skips values, then takes some in Arrow's layout, if that is cheaper than appending them. Integers may be of
    /// `width` bytes instead of their type's, if these suffice.
    fn take_items<'a>(
        &'a mut self,
        _bytes: &'a [u8],
        _num_passed: usize,
        _num_values: usize,
        _width: usize,
    ) -> Option<Items<'a>> {
        None
    }

    /// Appends a slot for each bit, with values for set bits.
    fn take_spread(&mut self, bytes: &[u8], slots: &BooleanBuffer) -> Fit<()>;

    /// Skips values, then appends a slot for each bit of `slots`: for set bits, the values whose bits in `bits` are
    /// set.
    fn take_picked(&mut self, bytes: &[u8], num_passed: usize, bits: &BooleanBuffer, slots: &BooleanBuffer) -> Fit<()> {
        let (mut at, mut picked) = (0, bits.set_indices());
        for is_set in slots {
            if is_set {
                let value = num_passed + picked.next().ok_or(TOO_FEW)?;
                take_run(self, bytes, &mut at, value..value + 1)?;
            } else {
                self.take_spread(bytes, &BooleanBuffer::new_unset(1))?;
            }
        }
        let end = num_passed + bits.len();
        take_run(self, bytes, &mut at, end..end)
    }

    /// Reserves room for slots whose values are stored in `stored_bytes`.
    fn reserve(&mut self, num_slots: usize, stored_bytes: usize) -> Fit<()>;

    /// Returns the number of slots so far.
    fn num_slots(&self) -> usize;

    /// Returns the slots as an array, and starts over.
    fn finish(&mut self, nulls: Option<NullBuffer>) -> Fit<ArrayRef>;
}

/// Appends the values of ascending `slots`, one run after another; those before `at` are already skipped.
pub(super) fn take_each_run<V: Values + ?Sized>(
    values: &mut V,
    bytes: &[u8],
    mut at: usize,
    slots: &[Range<usize>],
) -> Fit<()> {
    slots.iter().try_for_each(|run| take_run(values, bytes, &mut at, run.clone()))
}

/// Skips values, then appends those whose bits are set, one run after another.
pub(super) fn take_each_bit<V: Values + ?Sized>(
    values: &mut V,
    bytes: &[u8],
    num_passed: usize,
    bits: &BooleanBuffer,
) -> Fit<()> {
    let mut at = 0;
    for (start, end) in bits.set_slices() {
        take_run(values, bytes, &mut at, num_passed + start..num_passed + end)?;
    }
    let end = num_passed + bits.len();
    take_run(values, bytes, &mut at, end..end)
}

/// Appends the values of the slots `run`; skips those between `at` and it.
fn take_run<V: Values + ?Sized>(values: &mut V, bytes: &[u8], at: &mut usize, run: Range<usize>) -> Fit<()> {
    if run.start > *at {
        values.skip(bytes, run.start - *at)?;
    }
    *at = run.end;
    if run.is_empty() { Ok(()) } else { values.take(bytes, run.len()) }
}

/// Returns as many set bits as there are slots, with room for some more.
fn all_valid(num_slots: usize, num_more: usize) -> Bits {
    let mut validity = Bits::with_capacity(num_slots + num_more);
    validity.push_same(true, num_slots);
    validity
}

/// Picks the slots whose bits are set in `bits`, of which those in `valid` have a value: returns a bit for each value
/// of all slots, set for picked ones, and one for each picked slot, set for those that have a value.
fn pick(bits: &BooleanBuffer, valid: &BooleanBuffer) -> (BooleanBuffer, BooleanBuffer) {
    let mut values = Bits::with_capacity(valid.count_set_bits());
    let mut slots = Bits::with_capacity(bits.count_set_bits());
    for (bits, valid) in bits.bit_chunks().iter_padded().zip(valid.bit_chunks().iter_padded()) {
        values.push(pack(bits, valid), valid.count_ones() as usize);
        slots.push(pack(valid, bits), bits.count_ones() as usize);
    }
    (values.finish(), slots.finish())
}

/// Returns the bits of a word at the positions set in `places`, packed from the lowest on.
fn pack(word: u64, places: u64) -> u64 {
    if places == u64::MAX {
        return word;
    }
    // Bits above an odd number of dropped ones move by one, then those above an odd half of the rest by two, and so on.
    let (mut word, mut places, mut passed) = (word & places, places, !places << 1);
    for step in 0..6 {
        let odd = [1, 2, 4, 8, 16, 32].iter().fold(passed, |odd, by| odd ^ odd << by);
        let (moving, moved) = (odd & places, odd & places & word);
        places = places ^ moving | moving >> (1 << step);
        word = word ^ moved | moved >> (1 << step);
        passed &= !odd;
    }
    word
}

/// The slots of a leaf column: one for each value, and one for each NULL.
#[derive(Debug)]
pub(super) struct Leaf {
    values: Box<dyn Values>,
    /// The slots of the current page that have values, if not all have.
    page: Option<BooleanBuffer>,
    /// The next slot of that page.
    at: usize,
    validity: Option<Bits>,
}

impl Leaf {
    pub(super) fn new(values: Box<dyn Values>) -> Self {
        Self { values, page: None, at: 0, validity: None }
    }

    pub(super) fn set_dictionary(&mut self, bytes: &[u8], num_values: usize) -> Fit<()> {
        self.values.set_dictionary(bytes, num_values)
    }

    /// Returns the dictionary, like [`Values::dictionary`].
    pub(super) fn dictionary(&self) -> Option<ArrayRef> {
        self.values.dictionary()
    }

    /// Returns how values are stored.
    pub(super) fn stored(&self) -> Stored {
        self.values.stored()
    }

    /// Starts a page with this many slots, of which those in `validity` have a value.
    pub(super) fn set_page(
        &mut self,
        encoding: Encoding,
        bytes: &[u8],
        num_slots: usize,
        validity: Option<BooleanBuffer>,
    ) -> Fit<()> {
        let num_values = validity.as_ref().map_or(num_slots, BooleanBuffer::count_set_bits);
        (self.page, self.at) = (validity, 0);
        self.values.set_page(encoding, bytes, num_values)
    }

    pub(super) fn reserve(&mut self, num_slots: usize, stored_bytes: usize) -> Fit<()> {
        self.values.reserve(num_slots, stored_bytes)
    }

    pub(super) fn num_slots(&self) -> usize {
        self.values.num_slots()
    }

    /// Appends the page's `slots`, none before those of the last call.
    pub(super) fn take(&mut self, bytes: &[u8], slots: Range<usize>) -> Fit<()> {
        let passed = slots.start.checked_sub(self.at).ok_or(Misfit("rows out of order"))?;
        let len = slots.end - slots.start;
        let Some(page) = &self.page else {
            if passed > 0 {
                self.values.skip(bytes, passed)?;
            }
            self.at = slots.end;
            if let Some(validity) = &mut self.validity {
                validity.push_same(true, len);
            }
            return self.values.take(bytes, len);
        };
        if slots.end > page.len() {
            return Err(FEWER_VALUES);
        }
        let num_passed = count_ones(page, self.at, passed);
        if num_passed > 0 {
            self.values.skip(bytes, num_passed)?;
        }
        self.at = slots.end;
        let num_before = self.values.num_slots();
        let validity = self.validity.get_or_insert_with(|| all_valid(num_before, len));
        let taken = page.slice(slots.start, len);
        validity.push_buffer(&taken);
        self.values.take_spread(bytes, &taken)
    }

    /// Appends the page's slots of ascending runs, none before those of the last call.
    pub(super) fn take_runs(&mut self, bytes: &[u8], runs: &[Range<usize>]) -> Fit<()> {
        if self.page.is_some() || self.validity.is_some() {
            return runs.iter().try_for_each(|run| self.take(bytes, run.clone()));
        }
        let Some(last) = runs.last() else { return Ok(()) };
        self.values.take_runs(bytes, self.at, runs)?;
        self.at = last.end;
        Ok(())
    }

    /// Appends the page's slots from `first` on whose bits are set; none before those of the last call.
    pub(super) fn take_bits(&mut self, bytes: &[u8], first: usize, bits: &BooleanBuffer) -> Fit<()> {
        let passed = first.checked_sub(self.at).ok_or(Misfit("rows out of order"))?;
        let at = std::mem::replace(&mut self.at, first + bits.len());
        if let Some(page) = &self.page {
            if self.at > page.len() {
                return Err(FEWER_VALUES);
            }
            let (picked, slots) = pick(bits, &page.slice(first, bits.len()));
            let num_before = self.values.num_slots();
            let validity = self.validity.get_or_insert_with(|| all_valid(num_before, slots.len()));
            validity.push_buffer(&slots);
            let num_passed = count_ones(page, at, passed);
            return match slots.count_set_bits() == slots.len() {
                true => self.values.take_bits(bytes, num_passed, &picked),
                false => self.values.take_picked(bytes, num_passed, &picked, &slots),
            };
        }
        self.values.take_bits(bytes, passed, bits)?;
        if let Some(validity) = &mut self.validity {
            validity.push_same(true, bits.count_set_bits());
        }
        Ok(())
    }

    /// Takes the page's `slots`, none before those of the last call, like [`Values::take_items`].
    pub(super) fn take_items<'a>(
        &'a mut self,
        bytes: &'a [u8],
        slots: Range<usize>,
        width: usize,
    ) -> Option<Items<'a>> {
        if self.page.is_some() || self.validity.is_some() {
            return None;
        }
        let items = self.values.take_items(bytes, slots.start.checked_sub(self.at)?, slots.len(), width)?;
        self.at = slots.end;
        Some(items)
    }

    /// Returns all slots as an array, and starts over.
    pub(super) fn finish(&mut self) -> Fit<ArrayRef> {
        let nulls = self.validity.take().map(|validity| NullBuffer::new(validity.finish()));
        self.values.finish(nulls.filter(|nulls| nulls.null_count() > 0))
    }
}

/// The position of a page's values.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The next one is at this byte.
    Plain(usize),
    Numbers(Hybrid),
}

impl Place {
    /// Returns the start of a page.
    pub(super) fn of_page(encoding: Encoding, bytes: &[u8]) -> Fit<Self> {
        match encoding {
            Encoding::Plain => Ok(Self::Plain(0)),
            Encoding::Dictionary => match bytes.first() {
                Some(&width) => Ok(Self::Numbers(Hybrid::new(1, usize::from(width))?)),
                // Everything is NULL.
                None => Ok(Self::Plain(0)),
            },
            _ => Err(Misfit("values are in an unexpected encoding")),
        }
    }
}

/// Passes on the next keys.
pub(super) fn each_number(
    numbers: &mut Hybrid,
    bytes: &[u8],
    num_values: usize,
    take: impl FnMut(Numbers<'_>) -> Fit<()>,
) -> Fit<()> {
    /// Clearing a whole block takes longer than unpacking this many.
    const FEW: usize = 32;
    match num_values <= FEW {
        true => each_number_in(&mut [0; FEW], numbers, bytes, num_values, take),
        false => each_number_in(&mut [0; BLOCK], numbers, bytes, num_values, take),
    }
}

fn each_number_in<const LEN: usize>(
    block: &mut [u32; LEN],
    numbers: &mut Hybrid,
    bytes: &[u8],
    num_values: usize,
    mut take: impl FnMut(Numbers<'_>) -> Fit<()>,
) -> Fit<()> {
    let mut missing = num_values;
    while missing > 0 {
        missing -= match numbers.next(bytes, missing)? {
            Run::Same { value, len } => {
                take(Numbers::Same(value, len))?;
                len
            }
            Run::Packed { start, first, len } => {
                let packed = &bytes[start..];
                for from in (0..len).step_by(LEN) {
                    let block = &mut block[..LEN.min(len - from)];
                    unpack(packed, numbers.width(), first + from, block);
                    take(Numbers::Each(block))?;
                }
                len
            }
        };
    }
    Ok(())
}

/// Passes on those of the next keys whose bits are set, some at a time.
pub(super) fn each_picked_number(
    numbers: &mut Hybrid,
    bytes: &[u8],
    bits: &BooleanBuffer,
    mut take: impl FnMut(&[u32]) -> Fit<()>,
) -> Fit<()> {
    let (mut block, mut left, mut num_passed) = ([0_u32; BLOCK], bits.len(), 0);
    let mut words = bits.bit_chunks().iter_padded();
    while left > 0 {
        let words: [u64; BLOCK / 64] = std::array::from_fn(|_| words.next().unwrap_or(0));
        let len = left.min(BLOCK);
        left -= len;
        if words.iter().all(|word| *word == 0) {
            num_passed += len;
            continue;
        }
        numbers.skip(bytes, std::mem::take(&mut num_passed))?;
        let mut at = 0;
        while at < len {
            at += match numbers.next(bytes, len - at)? {
                Run::Same { value, len } => {
                    block[at..at + len].fill(value);
                    len
                }
                Run::Packed { start, first, len } => {
                    unpack(&bytes[start..], numbers.width(), first, &mut block[at..at + len]);
                    len
                }
            };
        }
        let mut num_picked = 0;
        for (word, from) in words.into_iter().zip((0..).step_by(64)) {
            let mut word = word;
            while word != 0 {
                // Never before the position that was read.
                block[num_picked] = block[from + word.trailing_zeros() as usize];
                num_picked += 1;
                word &= word - 1;
            }
        }
        take(&block[..num_picked])?;
    }
    numbers.skip(bytes, num_passed)
}

/// Some dictionary keys.
pub(super) enum Numbers<'a> {
    Same(u32, usize),
    Each(&'a [u32]),
}

const FEWER_VALUES: Misfit = Misfit("a page has fewer values than rows");
pub(super) const NO_SUCH_VALUE: Misfit = Misfit("a page refers to a value that its dictionary does not have");
pub(super) const TOO_FEW: Misfit = Misfit("a page has fewer values than it claims");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn picked_slots_and_their_values_are_those_that_were_there(
            slots in prop::collection::vec((any::<bool>(), any::<bool>()), 0..300), skip in 0_usize..70,
            are_same in prop::option::of(any::<bool>()),
        ) {
            let skip = skip.min(slots.len());
            let kept: Vec<bool> = slots.iter().map(|slot| are_same.unwrap_or(slot.0)).collect();
            let valid: Vec<bool> = slots.iter().map(|slot| slot.1).collect();
            let bits = |all: &[bool]| BooleanBuffer::from(all).slice(skip, all.len() - skip);
            let (values, picked) = pick(&bits(&kept), &bits(&valid));
            let of = |wanted: &[bool], of: &[bool]| -> Vec<bool> {
                wanted.iter().zip(of).skip(skip).filter(|(wanted, _)| **wanted).map(|(_, of)| *of).collect()
            };
            prop_assert_eq!(values.iter().collect::<Vec<_>>(), of(&valid, &kept));
            prop_assert_eq!(picked.iter().collect::<Vec<_>>(), of(&kept, &valid));
        }
    }
}
