//! Booleans, as bits or in runs.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};

use super::bits::Bits;
use super::header::Encoding;
use super::hybrid::{Hybrid, Run};
use super::values::{Stored, TOO_FEW, Values};
use super::{Fit, Misfit};

/// The position of a page's values.
#[derive(Debug)]
enum Place {
    /// The next one is this bit.
    Plain(usize),
    Runs(Hybrid),
}

/// Collects Booleans.
#[derive(Debug)]
pub(super) struct FlagValues {
    place: Place,
    bits: Bits,
}

impl FlagValues {
    pub(super) fn new() -> Self {
        Self { place: Place::Plain(0), bits: Bits::default() }
    }
}

impl Place {
    /// Appends the next values of a page.
    fn read(&mut self, bytes: &[u8], num_values: usize, out: &mut Bits) -> Fit<()> {
        let runs = match self {
            Self::Plain(at) => {
                let start = *at;
                *at = end_of(start, num_values, bytes)?;
                out.push_packed(bytes, start, num_values);
                return Ok(());
            }
            Self::Runs(runs) => runs,
        };
        let mut missing = num_values;
        while missing > 0 {
            missing -= match runs.next(bytes, missing)? {
                Run::Same { value: value @ 0..=1, len } => {
                    out.push_same(value == 1, len);
                    len
                }
                Run::Same { .. } => return Err(Misfit("a Boolean is neither of two")),
                Run::Packed { start, first, len } => {
                    let packed = bytes.get(start..).ok_or(TOO_FEW)?;
                    end_of(first, len, packed)?;
                    out.push_packed(packed, first, len);
                    len
                }
            };
        }
        Ok(())
    }
}

/// Returns the end of this many bits from `start` on.
fn end_of(start: usize, num_bits: usize, bytes: &[u8]) -> Fit<usize> {
    start.checked_add(num_bits).filter(|end| end.div_ceil(8) <= bytes.len()).ok_or(TOO_FEW)
}

impl Values for FlagValues {
    fn stored(&self) -> Stored {
        Stored::Bits
    }

    fn set_dictionary(&mut self, _bytes: &[u8], _num_values: usize) -> Fit<()> {
        Err(Misfit("Booleans have a dictionary"))
    }

    fn set_page(&mut self, encoding: Encoding, bytes: &[u8], num_values: usize) -> Fit<()> {
        const LENGTH_BYTES: usize = size_of::<u32>();
        self.place = match encoding {
            Encoding::Plain => {
                end_of(0, num_values, bytes).map_err(|_| Misfit::TOO_SHORT)?;
                Place::Plain(0)
            }
            Encoding::Runs => {
                let len = bytes.first_chunk().map(|len| u32::from_le_bytes(*len) as usize);
                if num_values > 0 && len != bytes.len().checked_sub(LENGTH_BYTES) {
                    return Err(Misfit("runs of Booleans have a different length than they claim"));
                }
                Place::Runs(Hybrid::new(LENGTH_BYTES, 1)?)
            }
            _ => return Err(Misfit("Booleans are in an unexpected encoding")),
        };
        Ok(())
    }

    fn skip(&mut self, bytes: &[u8], num_values: usize) -> Fit<()> {
        match &mut self.place {
            Place::Plain(at) => {
                *at = end_of(*at, num_values, bytes)?;
                Ok(())
            }
            Place::Runs(runs) => runs.skip(bytes, num_values),
        }
    }

    fn take(&mut self, bytes: &[u8], num_values: usize) -> Fit<()> {
        self.place.read(bytes, num_values, &mut self.bits)
    }

    fn take_spread(&mut self, bytes: &[u8], slots: &BooleanBuffer) -> Fit<()> {
        let num_values = slots.count_set_bits();
        let mut dense = Bits::with_capacity(num_values);
        self.place.read(bytes, num_values, &mut dense)?;
        let dense = dense.finish();
        let (mut num_spread, mut num_taken) = (0, 0);
        for (start, end) in slots.set_slices() {
            self.bits.push_same(false, start - num_spread);
            self.bits.push_packed(dense.values(), num_taken, end - start);
            (num_spread, num_taken) = (end, num_taken + end - start);
        }
        self.bits.push_same(false, slots.len() - num_spread);
        Ok(())
    }

    fn reserve(&mut self, _num_slots: usize, _stored_bytes: usize) -> Fit<()> {
        Ok(())
    }

    fn num_slots(&self) -> usize {
        self.bits.len()
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Fit<ArrayRef> {
        let bits = std::mem::take(&mut self.bits).finish();
        if nulls.as_ref().is_some_and(|nulls| nulls.len() != bits.len()) {
            return Err(Misfit("values are not of the column's type"));
        }
        Ok(Arc::new(BooleanArray::new(bits, nulls)))
    }
}
