//! Lists of values: of each row a run of slots.
//!
//! Repetition levels are read as the places of their zeros, where rows begin. Where all definition levels are the highest,
//! which runs tell at once, every level is a slot with a value. A row may go on in the next page, if no index says
//! otherwise.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, LargeListArray, ListArray};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, FieldRef};

use super::bits::Bits;
use super::codec::Scratch;
use super::header::Kind;
use super::hybrid::Hybrid;
use super::pages::{Page, Pages};
use super::rows::Rows;
use super::values::{Items, Leaf};
use super::{Column, Fit, Misfit, levels};

const TOO_LONG: Misfit = Misfit("lists have more values than offsets can count");

/// The definition levels of a list column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depth {
    /// That of a list that is there, at least.
    pub(super) list: u8,
    /// That of an element that is there, at least.
    pub(super) element: u8,
    /// That of a value.
    pub(super) value: u8,
}

/// Reads a column of lists.
#[derive(Debug)]
pub(super) struct List {
    pages: Pages,
    leaf: Leaf,
    wanted: Rows,
    depth: Depth,
    data_type: DataType,
    /// The levels of so many rows, where all are wanted.
    num_levels: Option<(u64, u64)>,
    /// The row that the first of `starts` begins.
    first_row: u32,
    /// The slots at which the rows of the page at hand begin, and the end of the last.
    starts: Vec<u32>,
    /// The lists of the page that are there, if not all are.
    present: Option<BooleanBuffer>,
    /// The last row taken may go on in the next page.
    is_open: bool,
    offsets: Vec<i32>,
    validity: Option<Bits>,
    /// The definition levels of a page, where they differ.
    defs: Vec<u8>,
}

impl List {
    pub(super) fn new(
        pages: Pages,
        leaf: Leaf,
        wanted: Rows,
        depth: Depth,
        data_type: DataType,
        num_levels: Option<(u64, u64)>,
    ) -> Self {
        Self {
            pages,
            leaf,
            wanted,
            depth,
            data_type,
            num_levels,
            first_row: 0,
            starts: vec![0],
            present: None,
            is_open: false,
            offsets: Vec::new(),
            validity: None,
            defs: Vec::new(),
        }
    }

    /// Returns the row after those that begin in the page at hand.
    fn end_row(&self) -> u32 {
        self.first_row.saturating_add(u32::try_from(self.starts.len() - 1).unwrap_or(u32::MAX))
    }

    fn num_rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Goes on to the next page, of which nothing before the row `wanted` is needed; returns whether there is one.
    fn next_page(&mut self, wanted: Option<u32>, num_missing: usize) -> Fit<bool> {
        let Some(page) = self.pages.next()? else { return Ok(false) };
        let end_row = self.end_row();
        if page.header.kind == Kind::Dictionary {
            let num_values = page.header.num_values;
            self.pages.open(page, false, false)?;
            self.leaf.set_dictionary(self.pages.values(), num_values)?;
            return Ok(true);
        }
        let indexed = page.rows.clone();
        self.first_row = indexed.as_ref().map_or(end_row, |rows| rows.start);
        self.starts.clear();
        self.starts.push(0);
        if let (Kind::V2 { num_rows, .. }, false) = (page.header.kind, self.is_open) {
            let end = u32::try_from(num_rows).ok().and_then(|num| self.first_row.checked_add(num));
            let end = end.ok_or(Misfit::MISSING)?;
            // Old writers claim other rows.
            if wanted.is_none_or(|wanted| wanted >= end) && has_rows(&page, num_rows) {
                self.first_row = end;
                return Ok(true);
            }
        }
        let claimed = match page.header.kind {
            Kind::V2 { num_rows, .. } => Some(num_rows),
            _ => None,
        };
        let lead = self.open(page)?;
        let num_rows = self.starts.len() - 1;
        if claimed.is_some_and(|claimed| claimed != num_rows)
            || indexed.is_some_and(|rows| (rows.end - rows.start) as usize != num_rows)
            || self.pages.is_indexed() && lead > 0
        {
            return Err(Misfit("a page has another number of rows than it claims"));
        }
        if self.first_row == 0 && lead > 0 {
            return Err(Misfit("the first page begins within a row"));
        }
        self.reserve(num_missing, lead)?;
        if self.is_open {
            self.leaf.take(self.pages.values(), 0..lead)?;
            let last = self.offsets.last_mut().ok_or(Misfit::MISSING)?;
            *last = i32::try_from(self.leaf.num_slots()).map_err(|_| TOO_LONG)?;
            self.is_open = num_rows == 0;
        }
        Ok(true)
    }

    /// Opens a page and finds its rows; returns the slots of the row that began before it.
    fn open(&mut self, page: Page) -> Fit<usize> {
        let (kind, num_levels) = (page.header.kind, page.header.num_values);
        let encoding = kind.encoding(true, true)?;
        self.pages.open(page, true, true)?;
        self.starts.clear();
        self.present = None;
        let (num_slots, validity) = if levels::are_all(self.pages.defs(), num_levels, self.depth.value)? {
            levels::row_starts(self.pages.reps(), num_levels, &mut self.starts)?;
            (num_levels, None)
        } else {
            self.read_levels(num_levels)?
        };
        if let Kind::V2 { num_nulls, .. } = kind {
            let num_values = validity.as_ref().map_or(num_slots, BooleanBuffer::count_set_bits);
            if num_values + num_nulls != num_levels {
                return Err(Misfit("a page has another number of NULLs than it claims"));
            }
        }
        let end = u32::try_from(num_slots).map_err(|_| TOO_LONG)?;
        self.starts.push(end);
        self.leaf.set_page(encoding, self.pages.values(), num_slots, validity)?;
        Ok(self.starts[0] as usize)
    }

    /// Reads the levels of a page with NULLs or empty lists; returns its slots, and which of them have values.
    fn read_levels(&mut self, num_levels: usize) -> Fit<(usize, Option<BooleanBuffer>)> {
        levels::row_starts(self.pages.reps(), num_levels, &mut self.starts)?;
        self.defs.clear();
        levels::expand(self.pages.defs(), num_levels, self.depth.value, &mut self.defs)?;
        // A list without elements is one level, which begins a row.
        let mut present = Bits::with_capacity(self.starts.len());
        let mut num_without = 0;
        for start in &mut self.starts {
            let def = self.defs[*start as usize];
            *start -= num_without;
            num_without += u32::from(def < self.depth.element);
            present.push(u64::from(def >= self.depth.list), 1);
        }
        if count(&self.defs, |def| def < self.depth.element) != num_without as usize {
            return Err(Misfit("a list without elements goes on"));
        }
        let present = present.finish();
        self.present = (present.count_set_bits() < present.len()).then_some(present);
        let num_slots = num_levels - num_without as usize;
        if count(&self.defs, |def| def == self.depth.value) == num_slots {
            return Ok((num_slots, None));
        }
        let mut slots = Bits::with_capacity(num_slots);
        for &def in self.defs.iter().filter(|&&def| def >= self.depth.element) {
            slots.push(u64::from(def == self.depth.value), 1);
        }
        Ok((num_slots, Some(slots.finish())))
    }

    /// Makes room for the missing rows, if they are as long as those of the page at hand.
    fn reserve(&mut self, num_missing: usize, lead: usize) -> Fit<()> {
        if self.num_levels.is_some() {
            return Ok(());
        }
        let num_rows = self.starts.len() - 1;
        let num_slots = *self.starts.last().unwrap_or(&0) as usize - lead;
        // Where lists are longer than pages, or hardly any is whole: no telling.
        let expected =
            num_slots.checked_mul(num_missing).and_then(|all| all.checked_div(num_rows)).unwrap_or(num_slots);
        let is_even = self.starts.windows(2).all(|pair| (pair[1] - pair[0]) as usize * num_rows == num_slots);
        let slack = if is_even { 0 } else { expected / 16 };
        self.leaf.reserve(lead + expected + slack, self.pages.num_bytes())
    }

    /// Appends rows of the page at hand.
    fn take(&mut self, rows: std::ops::Range<usize>) -> Fit<()> {
        let slots = self.starts[rows.start]..self.starts[rows.end];
        let before = u32::try_from(self.leaf.num_slots()).map_err(|_| TOO_LONG)?;
        let end = before.checked_add(slots.end - slots.start).filter(|&end| i32::try_from(end).is_ok());
        end.ok_or(TOO_LONG)?;
        self.leaf.take(self.pages.values(), slots.start as usize..slots.end as usize)?;
        let num_before = self.num_rows();
        match (&self.present, &mut self.validity) {
            (None, None) => {}
            (None, Some(validity)) => validity.push_same(true, rows.len()),
            (Some(present), validity) => {
                let validity = validity.get_or_insert_with(|| {
                    let mut validity = Bits::with_capacity(num_before + rows.len());
                    validity.push_same(true, num_before);
                    validity
                });
                validity.push_buffer(&present.slice(rows.start, rows.len()));
            }
        }
        let ends = &self.starts[rows.start + 1..=rows.end];
        self.offsets.extend(ends.iter().map(|end| (before + (end - slots.start)).cast_signed()));
        Ok(())
    }

    fn finish(&mut self) -> Fit<ArrayRef> {
        const REFUSED: Misfit = Misfit("lists are not of the column's type");
        let values = self.leaf.finish()?;
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

/// Returns whether so many rows begin in a page, as far as that is seen without opening it.
fn has_rows(page: &Page, num_rows: usize) -> bool {
    let count = |reps| levels::count(reps, Hybrid::new(0, 1)?, page.header.num_values, 1, 0);
    page.plain_reps().is_some_and(|reps| count(reps) == Ok(num_rows))
}

fn count(levels: &[u8], is_one: impl Fn(u8) -> bool) -> usize {
    // Sums of bytes, in which many levels are added at once.
    levels.chunks(255).map(|chunk| usize::from(chunk.iter().map(|&level| u8::from(is_one(level))).sum::<u8>())).sum()
}

/// Returns lists of one length; NULL among them is left to the `parquet` crate, which makes room for its values.
fn fixed_size(
    item: &FieldRef,
    len: i32,
    offsets: &[i32],
    values: ArrayRef,
    nulls: Option<NullBuffer>,
) -> Fit<ArrayRef> {
    if nulls.is_some() || offsets.windows(2).any(|pair| pair[1] - pair[0] != len) {
        return Err(Misfit("lists of one length have another"));
    }
    let array = FixedSizeListArray::try_new(Arc::clone(item), len, values, None);
    array.map(|list| Arc::new(list) as ArrayRef).map_err(|_| Misfit("lists are not of the column's type"))
}

impl Column for List {
    fn read(&mut self, num_rows: usize) -> Fit<ArrayRef> {
        self.offsets = Vec::new();
        self.offsets.try_reserve_exact(num_rows + 1).map_err(|_| Misfit::MEMORY)?;
        self.offsets.push(0);
        match self.num_levels {
            Some((levels, rows)) => {
                let expected = u128::from(levels) * num_rows as u128 / u128::from(rows.max(1));
                self.leaf.reserve(usize::try_from(expected).unwrap_or(usize::MAX), self.pages.num_bytes())?;
            }
            None if self.starts.len() > 1 => self.reserve(num_rows, self.starts[0] as usize)?,
            None => {}
        }
        loop {
            let missing = num_rows - self.num_rows();
            if missing == 0 && !self.is_open {
                return self.finish();
            }
            let wanted = if missing > 0 { Some(self.wanted.first().ok_or(Misfit::MISSING)?) } else { None };
            let end_row = self.end_row();
            let Some(wanted) = wanted.filter(|&wanted| wanted < end_row && !self.is_open) else {
                if !self.next_page(wanted, missing)? {
                    // The last row ends with its chunk.
                    self.is_open = false;
                    if missing > 0 {
                        return Err(Misfit::MISSING);
                    }
                }
                continue;
            };
            if wanted < self.first_row {
                return Err(Misfit::MISSING);
            }
            let run = self.wanted.take(end_row, missing);
            self.take((run.start - self.first_row) as usize..(run.end - self.first_row) as usize)?;
            self.is_open = run.end == end_row && !self.pages.is_indexed();
        }
    }

    fn take_items(&mut self, num_rows: usize, row_len: usize, width: usize) -> Option<(usize, Items<'_>)> {
        if self.is_open || self.present.is_some() {
            return None;
        }
        // Without an index, the last row of a page may go on in the next.
        let end_row = self.end_row() - u32::from(!self.pages.is_indexed() && self.starts.len() > 1);
        let run = self.wanted.first_run(end_row, num_rows);
        let rows = run.start.checked_sub(self.first_row)? as usize..run.end.checked_sub(self.first_row)? as usize;
        let starts = self.starts.get(rows.start..=rows.end).filter(|_| !rows.is_empty())?;
        if starts.windows(2).any(|pair| (pair[1] - pair[0]) as usize != row_len) {
            return None;
        }
        let slots = *starts.first()? as usize..*starts.last()? as usize;
        let items = self.leaf.take_items(self.pages.values(), slots, width)?;
        self.wanted.take(end_row, num_rows);
        Some((rows.len(), items))
    }

    fn into_scratch(self: Box<Self>) -> Scratch {
        self.pages.into_scratch()
    }
}
