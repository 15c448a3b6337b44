//! Columns without lists: one slot for each row.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::Field;

use super::codec::Scratch;
use super::header::Kind;
use super::pages::{Page, Pages};
use super::rows::Rows;
use super::values::Leaf;
use super::{Column, Fit, Misfit, levels};

/// Reads a column whose rows are values or NULL, possibly inside nullable structs: these are rebuilt around the values,
/// each with the one leaf.
#[derive(Debug)]
pub(super) struct Flat {
    pages: Pages,
    leaf: Leaf,
    wanted: Rows,
    /// The definition level of a value.
    value: u8,
    /// The levels of NULL structs, as bits.
    hidden: u64,
    /// The first row of the current page.
    first_row: u32,
    end_row: u32,
    /// What was last taken from that page; kept for its memory.
    slots: Vec<Range<usize>>,
    /// The definition levels of a page, if they differ.
    defs: Vec<u8>,
    /// The levels of all slots so far, if structs may be NULL.
    taken: Vec<u8>,
}

impl Flat {
    pub(super) fn new(pages: Pages, leaf: Leaf, wanted: Rows, (value, hidden): (u8, u64)) -> Self {
        let (slots, defs, taken) = (Vec::new(), Vec::new(), Vec::new());
        Self { pages, leaf, wanted, value, hidden, first_row: 0, end_row: 0, slots, defs, taken }
    }

    /// Opens the page that contains the row `wanted`.
    fn find(&mut self, wanted: u32) -> Fit<()> {
        while wanted >= self.end_row {
            let page = self.pages.next()?.ok_or(Misfit::MISSING)?;
            let num_values = page.header.num_values;
            if page.header.kind == Kind::Dictionary {
                self.pages.open(page, [0, 0])?;
                self.leaf.set_dictionary(self.pages.values(), num_values)?;
                continue;
            }
            let first = page.rows.as_ref().map_or(self.end_row, |rows| rows.start);
            let end = u32::try_from(num_values).ok().and_then(|num| first.checked_add(num)).ok_or(Misfit::MISSING)?;
            if page.rows.as_ref().is_some_and(|rows| rows.end != end) {
                return Err(Misfit("a page has a different number of rows than the index says"));
            }
            (self.first_row, self.end_row) = (first, end);
            if wanted < end {
                self.open(page)?;
            }
        }
        if wanted < self.first_row { Err(Misfit::MISSING) } else { Ok(()) }
    }

    fn open(&mut self, page: Page) -> Fit<()> {
        let (kind, num_values) = (page.header.kind, page.header.num_values);
        let encoding = kind.encoding(false, self.value > 0)?;
        self.pages.open(page, [0, self.value])?;
        let validity = match (self.value, self.hidden) {
            (0, _) => None,
            (1, 0) => levels::validity(self.pages.defs(), num_values)?,
            _ => self.read_levels(num_values)?,
        };
        let num_present = validity.as_ref().map_or(num_values, BooleanBuffer::count_set_bits);
        if let Kind::V2 { num_nulls, .. } = kind
            && num_present + num_nulls != num_values
        {
            return Err(Misfit("a page has a different number of NULLs than it claims"));
        }
        let encoding = self.pages.make_plain(encoding, self.leaf.stored(), num_present)?;
        self.leaf.set_page(encoding, self.pages.values(), num_values, validity)
    }

    /// Returns which slots within structs have values; `None` if all have.
    fn read_levels(&mut self, num_values: usize) -> Fit<Option<BooleanBuffer>> {
        self.defs.clear();
        if levels::are_all(self.pages.defs(), num_values, self.value)? {
            return Ok(None);
        }
        levels::expand(self.pages.defs(), num_values, self.value, &mut self.defs)?;
        Ok(Some(levels::equal(&self.defs, self.value)))
    }

    /// Records the levels of slots that were taken from the current page.
    fn note_levels(&mut self, slots: Range<usize>) {
        if self.hidden == 0 {
            return;
        }
        match self.defs.get(slots.clone()) {
            Some(defs) => self.taken.extend_from_slice(defs),
            None => self.taken.extend(slots.map(|_| self.value)),
        }
    }

    /// Wraps the taken slots in structs, inside out, according to which of them are NULL.
    fn in_structs(&mut self, leaf: ArrayRef) -> Fit<ArrayRef> {
        let taken = std::mem::take(&mut self.taken);
        let mut levels = (0..self.value).rev().filter(|level| self.hidden >> level & 1 == 1);
        levels.try_fold(leaf, |inner, level| {
            let nulls = NullBuffer::new(BooleanBuffer::collect_bool(taken.len(), |slot| taken[slot] > level));
            let field = Field::new("", inner.data_type().clone(), true);
            let array = StructArray::try_new(vec![field].into(), vec![inner], Some(nulls));
            Ok(Arc::new(array.map_err(|_| Misfit("there are not as many levels as values"))?) as ArrayRef)
        })
    }
}

impl Column for Flat {
    fn read(&mut self, num_rows: usize) -> Fit<ArrayRef> {
        self.leaf.reserve(num_rows, self.pages.num_bytes())?;
        while self.leaf.num_slots() < num_rows {
            let wanted = self.wanted.first().ok_or(Misfit::MISSING)?;
            self.find(wanted)?;
            let num_missing = num_rows - self.leaf.num_slots();
            if let Some((first, rows)) = self.wanted.take_bits(self.end_row, num_missing) {
                let first = (first - self.first_row) as usize;
                self.leaf.take_bits(self.pages.values(), first, &rows)?;
                if self.hidden != 0 {
                    rows.set_slices().for_each(|(start, end)| self.note_levels(first + start..first + end));
                }
            } else {
                self.wanted.take_slots(self.first_row, self.end_row, num_missing, &mut self.slots);
                self.leaf.take_runs(self.pages.values(), &self.slots)?;
                let slots = std::mem::take(&mut self.slots);
                slots.iter().for_each(|run| self.note_levels(run.clone()));
                self.slots = slots;
            }
        }
        let leaf = self.leaf.finish()?;
        self.in_structs(leaf)
    }

    fn dictionary(&self) -> Option<ArrayRef> {
        self.leaf.dictionary()
    }

    fn into_scratch(self: Box<Self>) -> Scratch {
        self.pages.into_scratch()
    }
}
