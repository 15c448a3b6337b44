//! The lists of one depth of a column: a run of slots for each slot of the depth above, which for the first depth are
//! the rows.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, LargeListArray, ListArray};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, FieldRef};

use super::bits::Bits;
use super::{Fit, Misfit};

pub(super) const TOO_LONG: Misfit = Misfit("lists have more values than offsets can count");
/// DuckDB writes a NULL array like this, with a level for each element.
pub(super) const GOES_ON: Misfit = Misfit("a list without elements is continued");

/// The definition levels of lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depth {
    /// The minimum level of a list that exists.
    pub(super) list: u8,
    /// The minimum level of an element that exists.
    pub(super) element: u8,
}

/// Lists of one depth: those of the current page, and those that were taken.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) depth: Depth,
    data_type: DataType,
    /// The slots at which the lists of the page begin, and the end of the last.
    pub(super) starts: Vec<u32>,
    /// The lists of the page that exist, if not all do.
    pub(super) present: Option<BooleanBuffer>,
    /// Those that were taken.
    offsets: Vec<i32>,
    validity: Option<Bits>,
}

impl Tier {
    pub(super) fn new(depth: Depth, data_type: DataType) -> Self {
        Self { depth, data_type, starts: vec![0], present: None, offsets: Vec::new(), validity: None }
    }

    /// Starts an array of about this many lists.
    pub(super) fn begin(&mut self, num_lists: usize) -> Fit<()> {
        self.offsets = Vec::new();
        self.offsets.try_reserve_exact(num_lists.saturating_add(1)).map_err(|_| Misfit::MEMORY)?;
        self.offsets.push(0);
        Ok(())
    }

    /// Returns how many lists were taken.
    pub(super) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the number of slots of the current page.
    pub(super) fn num_slots(&self) -> usize {
        self.starts.last().map_or(0, |end| *end as usize)
    }

    /// Appends lists of the page; returns their slots.
    pub(super) fn take(&mut self, lists: Range<usize>) -> Fit<Range<usize>> {
        let slots = self.starts[lists.start]..self.starts[lists.end];
        let before = self.offsets.last().ok_or(Misfit::MISSING)?.cast_unsigned();
        let end = before.checked_add(slots.end - slots.start).filter(|&end| i32::try_from(end).is_ok());
        end.ok_or(TOO_LONG)?;
        let num_before = self.len();
        match (&self.present, &mut self.validity) {
            (None, None) => {}
            (None, Some(validity)) => validity.push_same(true, lists.len()),
            (Some(present), validity) => {
                let validity = validity.get_or_insert_with(|| {
                    let mut validity = Bits::with_capacity(num_before + lists.len());
                    validity.push_same(true, num_before);
                    validity
                });
                validity.push_buffer(&present.slice(lists.start, lists.len()));
            }
        }
        let ends = &self.starts[lists.start + 1..=lists.end];
        self.offsets.extend(ends.iter().map(|end| (before + (end - slots.start)).cast_signed()));
        Ok(slots.start as usize..slots.end as usize)
    }

    /// Records that the last list taken continues up to the slot `end`.
    pub(super) fn extend_last(&mut self, end: usize) -> Fit<()> {
        let last = self.offsets.last_mut().ok_or(Misfit::MISSING)?;
        *last = i32::try_from(end).map_err(|_| TOO_LONG)?;
        Ok(())
    }

    /// Returns what was taken as an array over that of its slots.
    pub(super) fn finish(&mut self, values: ArrayRef) -> Fit<ArrayRef> {
        const REFUSED: Misfit = Misfit("lists are not of the column's type");
        let nulls = self.validity.take().map(|validity| NullBuffer::new(validity.finish()));
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let offsets = std::mem::take(&mut self.offsets);
        let array: Result<ArrayRef, _> = match &self.data_type {
            DataType::List(item) => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                ListArray::try_new(Arc::clone(item), offsets, values, nulls).map(|list| Arc::new(list) as ArrayRef)
            }
            DataType::LargeList(item) => {
                let offsets = offsets.into_iter().map(i64::from).collect::<Vec<_>>();
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                LargeListArray::try_new(Arc::clone(item), offsets, values, nulls).map(|list| Arc::new(list) as ArrayRef)
            }
            DataType::FixedSizeList(item, len) => return fixed_size(item, *len, &offsets, values, nulls),
            _ => return Err(REFUSED),
        };
        array.map_err(|_| REFUSED)
    }
}

/// Returns lists of one length; NULLs among them are left to the `parquet` crate, which makes room for their values.
fn fixed_size(
    item: &FieldRef,
    len: i32,
    offsets: &[i32],
    values: ArrayRef,
    nulls: Option<NullBuffer>,
) -> Fit<ArrayRef> {
    if nulls.is_some() || offsets.windows(2).any(|pair| pair[1] - pair[0] != len) {
        return Err(Misfit("lists of a fixed length have a different one"));
    }
    let array = FixedSizeListArray::try_new(Arc::clone(item), len, values, None);
    array.map(|list| Arc::new(list) as ArrayRef).map_err(|_| Misfit("lists are not of the column's type"))
}

/// Reads the levels of a page of nested lists, outermost first, where `value` is the definition level of a value;
/// returns the number of the innermost slots, and which of them have values, if not all have.
///
/// A repetition level says which list continues: at the depths below, new ones begin.
pub(super) fn read_levels(
    tiers: &mut [Tier],
    reps: &[u8],
    defs: &[u8],
    value: u8,
) -> Fit<(usize, Option<BooleanBuffer>)> {
    for tier in &mut *tiers {
        tier.starts.clear();
        tier.present = None;
    }
    match defs.iter().all(|&def| def == value) {
        true => read_whole(tiers, reps).map(|num_slots| (num_slots, None)),
        false => read_sparse(tiers, reps, defs, value),
    }
}

/// Reads repetition levels if every level is a slot with a value.
fn read_whole(tiers: &mut [Tier], reps: &[u8]) -> Fit<usize> {
    const STEP: usize = 8;
    let innermost = u8::try_from(tiers.len()).map_err(|_| Misfit::TOO_HIGH)?;
    let goes_on = [innermost; STEP];
    for (step, reps) in reps.chunks(STEP).enumerate() {
        // Most levels are those of a list that continues.
        if *reps == goes_on {
            continue;
        }
        for (place, &rep) in (step * STEP..).zip(reps).filter(|(_, rep)| **rep < innermost) {
            for depth in usize::from(rep)..tiers.len() {
                let slot = match tiers.get(depth + 1) {
                    Some(below) => below.starts.len(),
                    None => place,
                };
                tiers[depth].starts.push(u32::try_from(slot).map_err(|_| TOO_LONG)?);
            }
        }
    }
    let mut num_slots = reps.len();
    for tier in tiers.iter_mut().rev() {
        let num_lists = tier.starts.len();
        tier.starts.push(u32::try_from(num_slots).map_err(|_| TOO_LONG)?);
        num_slots = num_lists;
    }
    Ok(reps.len())
}

/// Reads levels that include NULLs and empty lists.
fn read_sparse(tiers: &mut [Tier], reps: &[u8], defs: &[u8], value: u8) -> Fit<(usize, Option<BooleanBuffer>)> {
    let mut present: Vec<_> = tiers.iter().map(|_| Bits::with_capacity(reps.len())).collect();
    let mut validity = Bits::with_capacity(reps.len());
    // The number of slots of each depth so far, and the depths at which the previous level was one.
    let mut num_slots = vec![0_u32; tiers.len()];
    let mut num_open = 0;
    let innermost = tiers.len();
    let mut place = 0;
    while let (Some(&rep), Some(&def)) = (reps.get(place), defs.get(place)) {
        place += 1;
        let above = usize::from(rep);
        if let Some(list) = above.checked_sub(1) {
            if def < tiers[list].depth.element {
                return Err(GOES_ON);
            }
            if above > num_open {
                return Err(Misfit::OF_NONE);
            }
            num_slots[list] += 1;
        }
        num_open = above;
        for (depth, tier) in tiers.iter_mut().enumerate().skip(above) {
            tier.starts.push(num_slots[depth]);
            present[depth].push(u64::from(def >= tier.depth.list), 1);
            if def < tier.depth.element {
                break;
            }
            num_slots[depth] += 1;
            num_open = depth + 1;
        }
        if num_open == innermost {
            validity.push(u64::from(def == value), 1);
            // Most levels are those of values of a list that continues.
            let rest = reps[place..].iter().zip(&defs[place..]);
            let run = rest.take_while(|(rep, def)| usize::from(**rep) == innermost && **def == value).count();
            validity.push_same(true, run);
            num_slots[innermost - 1] += u32::try_from(run).map_err(|_| TOO_LONG)?;
            place += run;
        }
    }
    for ((tier, present), end) in tiers.iter_mut().zip(present).zip(&num_slots) {
        tier.starts.push(*end);
        let present = present.finish();
        tier.present = (present.count_set_bits() < present.len()).then_some(present);
    }
    let validity = validity.finish();
    let is_sparse = validity.count_set_bits() < validity.len();
    Ok((validity.len(), is_sparse.then_some(validity)))
}
