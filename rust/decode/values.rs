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

/// Numbers that are unpacked together: as many as stay in the nearest cache.
pub(super) const BLOCK: usize = 512;

/// Values that lie one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Items<'a> {
    pub(crate) bytes: &'a [u8],
    /// The bytes of each.
    pub(crate) width: usize,
}

/// How plain values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// In a bit each.
    Bits,
    /// In so many bytes each.
    Fixed(usize),
    /// In any number of bytes, behind that number.
    Any,
}

/// Collects the values of one type. `bytes` are always those of the page at hand.
pub(super) trait Values: fmt::Debug + Send {
    /// Reads the values that pages number.
    fn set_dictionary(&mut self, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Returns how values are stored.
    fn stored(&self) -> Stored;

    /// Begins a page of so many values.
    fn set_page(&mut self, encoding: Encoding, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Passes over values.
    fn skip(&mut self, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Appends values.
    fn take(&mut self, bytes: &[u8], num_values: usize) -> Fit<()>;

    /// Appends the values of ascending `slots`, where all of the page's slots have one; those before `at` are passed.
    fn take_runs(&mut self, bytes: &[u8], at: usize, slots: &[Range<usize>]) -> Fit<()> {
        take_each_run(self, bytes, at, slots)
    }

    /// Passes over values, and then appends those whose bits are set.
    fn take_bits(&mut self, bytes: &[u8], num_passed: usize, bits: &BooleanBuffer) -> Fit<()> {
        take_each_bit(self, bytes, num_passed, bits)
    }

    /// Passes over values, and then takes some as Arrow has them, if that costs less than to append them. Integers may be
    /// of `width` bytes instead of their type's, where these are enough.
    fn take_items<'a>(
        &'a mut self,
        _bytes: &'a [u8],
        _num_passed: usize,
        _num_values: usize,
        _width: usize,
    ) -> Option<Items<'a>> {
        None
    }

    /// Appends a slot for each bit, and values to those that are set.
    fn take_spread(&mut self, bytes: &[u8], slots: &BooleanBuffer) -> Fit<()>;

    /// Makes room for slots, whose values are stored in `stored_bytes`.
    fn reserve(&mut self, num_slots: usize, stored_bytes: usize) -> Fit<()>;

    /// Returns the number of slots so far.
    fn num_slots(&self) -> usize;

    /// Returns the slots as an array, and begins anew.
    fn finish(&mut self, nulls: Option<NullBuffer>) -> Fit<ArrayRef>;
}

/// Appends the values of ascending `slots`, one run after another; those before `at` are passed.
pub(super) fn take_each_run<V: Values + ?Sized>(
    values: &mut V,
    bytes: &[u8],
    mut at: usize,
    slots: &[Range<usize>],
) -> Fit<()> {
    slots.iter().try_for_each(|run| take_run(values, bytes, &mut at, run.clone()))
}

/// Passes over values, and then appends those whose bits are set, one run after another.
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

/// Appends the values of the slots `run`; those from `at` on are passed.
fn take_run<V: Values + ?Sized>(values: &mut V, bytes: &[u8], at: &mut usize, run: Range<usize>) -> Fit<()> {
    if run.start > *at {
        values.skip(bytes, run.start - *at)?;
    }
    *at = run.end;
    if run.is_empty() { Ok(()) } else { values.take(bytes, run.len()) }
}

/// The slots of a leaf column: of each value one, and of each NULL.
#[derive(Debug)]
pub(super) struct Leaf {
    values: Box<dyn Values>,
    /// The slots of the page at hand that have values, if not all have.
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

    /// Returns how values are stored.
    pub(super) fn stored(&self) -> Stored {
        self.values.stored()
    }

    /// Begins a page of so many slots, of which those in `validity` have a value.
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

    /// Appends the page's `slots`, which are not before those of the last call.
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
            return Err(Misfit("a page has fewer values than rows"));
        }
        let num_passed = count_ones(page, self.at, passed);
        if num_passed > 0 {
            self.values.skip(bytes, num_passed)?;
        }
        self.at = slots.end;
        let num_before = self.values.num_slots();
        let validity = self.validity.get_or_insert_with(|| {
            let mut validity = Bits::with_capacity(num_before + len);
            validity.push_same(true, num_before);
            validity
        });
        let taken = page.slice(slots.start, len);
        validity.push_buffer(&taken);
        self.values.take_spread(bytes, &taken)
    }

    /// Appends the page's slots of ascending runs, none of them before those of the last call.
    pub(super) fn take_runs(&mut self, bytes: &[u8], runs: &[Range<usize>]) -> Fit<()> {
        if self.page.is_some() || self.validity.is_some() {
            return runs.iter().try_for_each(|run| self.take(bytes, run.clone()));
        }
        let Some(last) = runs.last() else { return Ok(()) };
        self.values.take_runs(bytes, self.at, runs)?;
        self.at = last.end;
        Ok(())
    }

    /// Appends those of the page's slots from `first` on whose bits are set; none is before those of the last call.
    pub(super) fn take_bits(&mut self, bytes: &[u8], first: usize, bits: &BooleanBuffer) -> Fit<()> {
        if self.page.is_some() {
            return bits.set_slices().try_for_each(|(start, end)| self.take(bytes, first + start..first + end));
        }
        let passed = first.checked_sub(self.at).ok_or(Misfit("rows out of order"))?;
        self.values.take_bits(bytes, passed, bits)?;
        self.at = first + bits.len();
        if let Some(validity) = &mut self.validity {
            validity.push_same(true, bits.count_set_bits());
        }
        Ok(())
    }

    /// Takes the page's `slots`, which are not before those of the last call, as [`Values::take_items`] does.
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

    /// Returns all slots as an array, and begins anew.
    pub(super) fn finish(&mut self) -> Fit<ArrayRef> {
        let nulls = self.validity.take().map(|validity| NullBuffer::new(validity.finish()));
        self.values.finish(nulls.filter(|nulls| nulls.null_count() > 0))
    }
}

/// Where the values of a page are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The next is at a byte.
    Plain(usize),
    Numbers(Hybrid),
}

impl Place {
    /// Returns the beginning of a page.
    pub(super) fn of_page(encoding: Encoding, bytes: &[u8]) -> Fit<Self> {
        match encoding {
            Encoding::Plain => Ok(Self::Plain(0)),
            Encoding::Dictionary => match bytes.first() {
                Some(&width) => Ok(Self::Numbers(Hybrid::new(1, usize::from(width))?)),
                // Nothing but NULL.
                None => Ok(Self::Plain(0)),
            },
            _ => Err(Misfit("values are in another encoding")),
        }
    }
}

/// Hands the next numbers to `same`, with how many of them there are, or to `block`.
pub(super) fn each_number(
    numbers: &mut Hybrid,
    bytes: &[u8],
    num_values: usize,
    mut take: impl FnMut(Numbers<'_>) -> Fit<()>,
) -> Fit<()> {
    let mut block = [0_u32; BLOCK];
    let mut missing = num_values;
    while missing > 0 {
        missing -= match numbers.next(bytes, missing)? {
            Run::Same { value, len } => {
                take(Numbers::Same(value, len))?;
                len
            }
            Run::Packed { start, first, len } => {
                let packed = &bytes[start..];
                for from in (0..len).step_by(BLOCK) {
                    let block = &mut block[..BLOCK.min(len - from)];
                    unpack(packed, numbers.width(), first + from, block);
                    take(Numbers::Each(block))?;
                }
                len
            }
        };
    }
    Ok(())
}

/// Some numbers of dictionary values.
pub(super) enum Numbers<'a> {
    Same(u32, usize),
    Each(&'a [u32]),
}

pub(super) const NO_SUCH_VALUE: Misfit = Misfit("a page numbers a value that its dictionary lacks");
pub(super) const TOO_FEW: Misfit = Misfit("a page has fewer values than it claims");
