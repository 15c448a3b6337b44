//! Text and bytes as keys of their chunk's dictionary.

use std::mem;
use std::sync::Arc;

use arrow_array::{ArrayRef, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};

use super::binary::BinaryValues;
use super::header::Encoding;
use super::spread::spread;
use super::values::{NO_SUCH_VALUE, Numbers, Stored, TOO_FEW, Values, each_number, each_picked_number};
use super::{Fit, MOST_PER_BYTE, Misfit};

/// Collects keys as long as pages have them, as 32-bit integers. If a page has values instead, everything collected
/// since the last array becomes values.
#[derive(Debug)]
pub(super) struct CodedValues {
    /// The dictionary, the position in the current page, and values.
    texts: BinaryValues,
    num_texts: u32,
    dictionary: Option<ArrayRef>,
    /// Empty if there are texts.
    numbers: Vec<u32>,
    /// Keys on their way from a page to their slots.
    dense: Vec<u32>,
    /// The room that texts would need.
    reserved: (usize, usize),
}

impl CodedValues {
    pub(super) fn new(texts: BinaryValues) -> Self {
        Self { texts, num_texts: 0, dictionary: None, numbers: Vec::new(), dense: Vec::new(), reserved: (0, 0) }
    }

    /// Returns whether the next values become keys.
    fn is_numbered(&mut self, num_values: usize) -> bool {
        self.texts.num_slots() == 0 && (num_values == 0 || self.texts.numbers().is_some())
    }

    /// Appends the next keys of a page to `out`.
    fn read(&mut self, page: &[u8], num_values: usize, out: impl Fn(&mut Self) -> &mut Vec<u32>) -> Fit<()> {
        if num_values == 0 {
            return Ok(());
        }
        let (mut all, num_texts) = (mem::take(out(self)), self.num_texts);
        each_number(self.texts.numbers().ok_or(TOO_FEW)?, page, num_values, |numbers| {
            let most = match numbers {
                Numbers::Same(number, len) => {
                    all.extend(std::iter::repeat_n(number, len));
                    number
                }
                Numbers::Each(block) => {
                    all.extend_from_slice(block);
                    block.iter().fold(0, |most, number| most.max(*number))
                }
            };
            if most < num_texts { Ok(()) } else { Err(NO_SUCH_VALUE) }
        })?;
        *out(self) = all;
        Ok(())
    }

    /// Skips values, then appends those of the next keys whose bits are set to `out`.
    fn pick(
        &mut self,
        page: &[u8],
        num_passed: usize,
        bits: &BooleanBuffer,
        out: impl Fn(&mut Self) -> &mut Vec<u32>,
    ) -> Fit<()> {
        self.skip(page, num_passed)?;
        let (mut all, num_texts) = (mem::take(out(self)), self.num_texts);
        if let Some(numbers) = self.texts.numbers() {
            each_picked_number(numbers, page, bits, |numbers| {
                all.extend_from_slice(numbers);
                if numbers.iter().all(|number| *number < num_texts) { Ok(()) } else { Err(NO_SUCH_VALUE) }
            })?;
        }
        *out(self) = all;
        Ok(())
    }

    /// Switches to texts.
    fn spell_out(&mut self) -> Fit<()> {
        if self.texts.num_slots() > 0 {
            return Ok(());
        }
        let (num_slots, stored_bytes) = self.reserved;
        self.texts.reserve(num_slots, stored_bytes)?;
        mem::take(&mut self.numbers).into_iter().try_for_each(|number| self.texts.push_number(number))
    }
}

impl Values for CodedValues {
    fn set_dictionary(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        self.texts.set_dictionary(page, num_values)?;
        self.num_texts = u32::try_from(num_values).map_err(|_| Misfit::TOO_LARGE)?;
        self.dictionary = Some(self.texts.dictionary()?);
        Ok(())
    }

    fn dictionary(&self) -> Option<ArrayRef> {
        self.dictionary.clone()
    }

    fn stored(&self) -> Stored {
        self.texts.stored()
    }

    fn set_page(&mut self, encoding: Encoding, page: &[u8], num_values: usize) -> Fit<()> {
        self.texts.set_page(encoding, page, num_values)
    }

    fn skip(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        self.texts.skip(page, num_values)
    }

    fn take(&mut self, page: &[u8], num_values: usize) -> Fit<()> {
        if self.is_numbered(num_values) {
            return self.read(page, num_values, |this| &mut this.numbers);
        }
        self.spell_out()?;
        self.texts.take(page, num_values)
    }

    fn take_bits(&mut self, page: &[u8], num_passed: usize, bits: &BooleanBuffer) -> Fit<()> {
        if self.is_numbered(num_passed + bits.len()) {
            return self.pick(page, num_passed, bits, |this| &mut this.numbers);
        }
        self.spell_out()?;
        self.texts.take_bits(page, num_passed, bits)
    }

    fn take_picked(&mut self, page: &[u8], num_passed: usize, bits: &BooleanBuffer, slots: &BooleanBuffer) -> Fit<()> {
        if self.is_numbered(num_passed + bits.len()) {
            self.dense.clear();
            self.pick(page, num_passed, bits, |this| &mut this.dense)?;
            spread(&mut self.dense, slots, &mut self.numbers);
            return Ok(());
        }
        self.spell_out()?;
        self.texts.take_picked(page, num_passed, bits, slots)
    }

    fn take_spread(&mut self, page: &[u8], slots: &BooleanBuffer) -> Fit<()> {
        let num_values = slots.count_set_bits();
        if self.is_numbered(num_values) {
            self.dense.clear();
            self.read(page, num_values, |this| &mut this.dense)?;
            spread(&mut self.dense, slots, &mut self.numbers);
            return Ok(());
        }
        self.spell_out()?;
        self.texts.take_spread(page, slots)
    }

    fn reserve(&mut self, num_slots: usize, stored_bytes: usize) -> Fit<()> {
        self.reserved = (num_slots, stored_bytes);
        let believable = num_slots.min(stored_bytes.saturating_mul(MOST_PER_BYTE) / size_of::<u32>());
        self.numbers.try_reserve_exact(believable).map_err(|_| Misfit::MEMORY)
    }

    fn num_slots(&self) -> usize {
        self.numbers.len() + self.texts.num_slots()
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Fit<ArrayRef> {
        if self.texts.num_slots() > 0 {
            return self.texts.finish(nulls);
        }
        let numbers = UInt32Array::try_new(ScalarBuffer::from(mem::take(&mut self.numbers)), nulls);
        Ok(Arc::new(numbers.map_err(|_| Misfit("numbers are not as many as their places"))?))
    }
}
