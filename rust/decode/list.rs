//! Lists of values: a run of slots for each row.
//!
//! Repetition levels are read as the positions of their zeros, where rows begin. If all definition levels are the
//! maximum, which runs reveal at once, every level is a slot with a value. A row may continue in the next page, unless
//! an index says otherwise.

use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_buffer::BooleanBuffer;
use arrow_schema::{DataType, FieldRef};

use super::bits::Bits;
use super::codec::Scratch;
use super::group::Chain;
use super::header::Kind;
use super::hybrid::Hybrid;
use super::pages::{Page, Pages};
use super::rows::Rows;
use super::tier::{self, Depth, GOES_ON, TOO_LONG, Tier};
use super::values::{Items, Leaf};
use super::{Column, Fit, Misfit, levels};

const MORE_ROWS: Misfit = Misfit("it has more rows than its row group");

/// Reads a column of lists, possibly nested.
#[derive(Debug)]
pub(super) struct List {
    pages: Pages,
    leaf: Leaf,
    wanted: Rows,
    /// The lists of each depth, those of rows first.
    tiers: Vec<Tier>,
    /// The definition level of a value.
    value: u8,
    /// Those of NULL structs, as bits.
    hidden: u64,
    /// The number of levels, and of the rows that have them, if all are wanted.
    num_levels: Option<(u64, u64)>,
    /// The row of the current page's first list.
    first_row: u32,
    /// Whether the last row taken may continue in the next page.
    is_open: bool,
    /// The levels of a page, if they differ.
    reps: Vec<u8>,
    defs: Vec<u8>,
}

impl List {
    pub(super) fn new(pages: Pages, leaf: Leaf, wanted: Rows, chain: &Chain, num_levels: Option<(u64, u64)>) -> Self {
        let Chain { depths, value, hidden, data_type, .. } = chain;
        let types = std::iter::successors(Some(data_type), |outer| Some(item(outer)?.data_type()));
        let tiers = depths.iter().zip(types).map(|(depth, data_type)| Tier::new(*depth, data_type.clone())).collect();
        let (reps, defs) = (Vec::new(), Vec::new());
        let (value, hidden) = (*value, *hidden);
        Self { pages, leaf, wanted, tiers, value, hidden, num_levels, first_row: 0, is_open: false, reps, defs }
    }

    /// Returns the highest repetition level.
    fn deepest(&self) -> Fit<u8> {
        u8::try_from(self.tiers.len()).map_err(|_| Misfit::TOO_HIGH)
    }

    /// Returns the slots at which the rows of the current page begin, and the end of the last.
    fn starts(&self) -> &[u32] {
        &self.tiers[0].starts
    }

    /// Returns the row after those that begin in the current page.
    fn end_row(&self) -> u32 {
        self.first_row.saturating_add(u32::try_from(self.starts().len() - 1).unwrap_or(u32::MAX))
    }

    /// Goes to the next page, when nothing before the row `wanted` is needed; returns whether there is one.
    fn next_page(&mut self, wanted: Option<u32>, num_missing: usize) -> Fit<bool> {
        let Some(page) = self.pages.next()? else { return Ok(false) };
        let end_row = self.end_row();
        if page.header.kind == Kind::Dictionary {
            let num_values = page.header.num_values;
            self.pages.open(page, [0, 0])?;
            self.leaf.set_dictionary(self.pages.values(), num_values)?;
            return Ok(true);
        }
        let indexed = page.rows.clone();
        self.first_row = indexed.as_ref().map_or(end_row, |rows| rows.start);
        self.tiers[0].starts.clear();
        self.tiers[0].starts.push(0);
        if let (Kind::V2 { num_rows, .. }, false) = (page.header.kind, self.is_open) {
            let end = u32::try_from(num_rows).ok().and_then(|num| self.first_row.checked_add(num));
            let end = end.ok_or(Misfit::MISSING)?;
            // Old writers claim other numbers of rows.
            if wanted.is_none_or(|wanted| wanted >= end) && self.has_rows(&page, num_rows) {
                self.first_row = end;
                return Ok(true);
            }
        }
        let claimed = match page.header.kind {
            Kind::V2 { num_rows, .. } => Some(num_rows),
            _ => None,
        };
        let lead = self.open(page)?;
        let num_rows = self.starts().len() - 1;
        if claimed.is_some_and(|claimed| claimed != num_rows)
            || indexed.is_some_and(|rows| (rows.end - rows.start) as usize != num_rows)
            || self.pages.is_indexed() && lead > 0
        {
            return Err(Misfit("a page has a different number of rows than it claims"));
        }
        if self.end_row() > self.wanted.num_rows() {
            return Err(MORE_ROWS);
        }
        if self.first_row == 0 && lead > 0 {
            return Err(Misfit("the first page begins within a row"));
        }
        self.reserve(num_missing, lead)?;
        if self.is_open {
            if lead > 0 {
                self.leaf.take(self.pages.values(), 0..lead)?;
                self.tiers[0].extend_last(self.leaf.num_slots())?;
            }
            self.is_open = num_rows == 0;
        }
        Ok(true)
    }

    /// Opens a page and finds its rows; returns the slots of the row that began before it.
    fn open(&mut self, page: Page) -> Fit<usize> {
        let (kind, num_levels) = (page.header.kind, page.header.num_values);
        let encoding = kind.encoding(true, true)?;
        self.pages.open(page, [self.deepest()?, self.value])?;
        let (num_slots, validity) = match self.tiers.len() {
            1 => self.read_levels(num_levels)?,
            _ => self.read_nested_levels(num_levels)?,
        };
        let num_values = validity.as_ref().map_or(num_slots, BooleanBuffer::count_set_bits);
        if let Kind::V2 { num_nulls, .. } = kind
            && num_values + num_nulls != num_levels
        {
            return Err(Misfit("a page has a different number of NULLs than it claims"));
        }
        let encoding = self.pages.make_plain(encoding, self.leaf.stored(), num_values)?;
        self.leaf.set_page(encoding, self.pages.values(), num_slots, validity)?;
        Ok(self.starts()[0] as usize)
    }

    /// Reads the levels of a page; returns its slots, and which of them have values, if not all have.
    fn read_levels(&mut self, num_levels: usize) -> Fit<(usize, Option<BooleanBuffer>)> {
        let tier = &mut self.tiers[0];
        tier.starts.clear();
        tier.present = None;
        levels::row_starts(self.pages.reps(), num_levels, &mut tier.starts)?;
        let (num_slots, validity) = if levels::are_all(self.pages.defs(), num_levels, self.value)? {
            (num_levels, None)
        } else {
            self.defs.clear();
            levels::expand(self.pages.defs(), num_levels, self.value, &mut self.defs)?;
            levels::check_hidden(&self.defs, self.hidden)?;
            read_sparse_levels(tier, &self.defs, self.value)?
        };
        tier.starts.push(u32::try_from(num_slots).map_err(|_| TOO_LONG)?);
        Ok((num_slots, validity))
    }

    /// The same for nested lists, whose pages begin with a row.
    fn read_nested_levels(&mut self, num_levels: usize) -> Fit<(usize, Option<BooleanBuffer>)> {
        let deepest = self.deepest()?;
        self.reps.clear();
        self.defs.clear();
        levels::expand(self.pages.reps(), num_levels, deepest, &mut self.reps)?;
        levels::expand(self.pages.defs(), num_levels, self.value, &mut self.defs)?;
        levels::check_hidden(&self.defs, self.hidden)?;
        if self.reps.first().is_some_and(|&rep| rep > 0) {
            return Err(Misfit("a page begins within a row of lists within lists"));
        }
        tier::read_levels(&mut self.tiers, &self.reps, &self.defs, self.value)
    }

    /// Reserves room for the missing rows, assuming that they are as long as those of the current page.
    fn reserve(&mut self, num_missing: usize, lead: usize) -> Fit<()> {
        if self.num_levels.is_some() {
            return Ok(());
        }
        let starts = self.starts();
        let num_rows = starts.len() - 1;
        let num_slots = self.tiers.last().map_or(0, Tier::num_slots) - lead;
        // If lists are longer than pages, or hardly any is complete, this is unknown.
        let expected =
            num_slots.checked_mul(num_missing).and_then(|all| all.checked_div(num_rows)).unwrap_or(num_slots);
        let is_even = starts.windows(2).all(|pair| (pair[1] - pair[0]) as usize * num_rows == num_slots);
        let slack = if is_even { 0 } else { expected / 16 };
        self.leaf.reserve(lead + expected + slack, self.pages.num_bytes())
    }

    /// Appends rows of the current page.
    fn take(&mut self, rows: Range<usize>) -> Fit<()> {
        let mut slots = rows;
        for tier in &mut self.tiers {
            slots = tier.take(slots)?;
        }
        self.leaf.take(self.pages.values(), slots)
    }

    fn finish(&mut self) -> Fit<ArrayRef> {
        let values = self.leaf.finish()?;
        self.tiers.iter_mut().rev().try_fold(values, |values, tier| tier.finish(values))
    }

    /// Refuses excess rows if all are wanted and the last was taken: others would be in place of some. If an index says
    /// that no row continues in the next page, that is not opened.
    fn check_end(&mut self) -> Fit<()> {
        if self.num_levels.is_none() || self.wanted.first().is_some() {
            return Ok(());
        }
        while let Some(page) = self.pages.next()? {
            if page.header.kind != Kind::Dictionary && page.header.num_values > 0 {
                return Err(MORE_ROWS);
            }
        }
        Ok(())
    }

    /// Returns whether this many rows begin in a page, as far as that is known without opening it.
    fn has_rows(&self, page: &Page, num_rows: usize) -> bool {
        let Ok(deepest) = u8::try_from(self.tiers.len()) else { return false };
        let width = levels::width_of(deepest);
        let count = |reps| levels::count(reps, Hybrid::new(0, width)?, page.header.num_values, deepest.into(), 0);
        page.plain_reps().is_some_and(|reps| count(reps) == Ok(num_rows))
    }
}

/// Returns the field of a list's elements.
pub(super) fn item(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, 1..) => Some(item),
        _ => None,
    }
}

/// Converts the positions of levels at which lists begin to those of slots; returns how many slots there are, and which
/// of them have values, if not all have.
fn read_sparse_levels(tier: &mut Tier, defs: &[u8], value: u8) -> Fit<(usize, Option<BooleanBuffer>)> {
    // A list without elements is one level, which begins a row.
    let Depth { list, element } = tier.depth;
    let mut present = Bits::with_capacity(tier.starts.len());
    let mut num_without = 0;
    for start in &mut tier.starts {
        let def = defs[*start as usize];
        *start -= num_without;
        num_without += u32::from(def < element);
        present.push(u64::from(def >= list), 1);
    }
    if count(defs, |def| def < element) != num_without as usize {
        return Err(GOES_ON);
    }
    let present = present.finish();
    tier.present = (present.count_set_bits() < present.len()).then_some(present);
    let num_slots = defs.len() - num_without as usize;
    if count(defs, |def| def == value) == num_slots {
        return Ok((num_slots, None));
    }
    let mut slots = Bits::with_capacity(num_slots);
    for &def in defs.iter().filter(|&&def| def >= element) {
        slots.push(u64::from(def == value), 1);
    }
    Ok((num_slots, Some(slots.finish())))
}

fn count(levels: &[u8], is_one: impl Fn(u8) -> bool) -> usize {
    // Sums of bytes, in which many levels are added at once.
    levels.chunks(255).map(|chunk| usize::from(chunk.iter().map(|&level| u8::from(is_one(level))).sum::<u8>())).sum()
}

impl Column for List {
    fn read(&mut self, num_rows: usize) -> Fit<ArrayRef> {
        for (depth, tier) in self.tiers.iter_mut().enumerate() {
            tier.begin(if depth == 0 { num_rows } else { 0 })?;
        }
        match self.num_levels {
            Some((levels, rows)) => {
                let expected = u128::from(levels) * num_rows as u128 / u128::from(rows.max(1));
                self.leaf.reserve(usize::try_from(expected).unwrap_or(usize::MAX), self.pages.num_bytes())?;
            }
            None if self.starts().len() > 1 => self.reserve(num_rows, self.starts()[0] as usize)?,
            None => {}
        }
        loop {
            let missing = num_rows - self.tiers[0].len();
            if missing == 0 && !self.is_open {
                self.check_end()?;
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
        if self.is_open || self.tiers.len() > 1 || self.tiers[0].present.is_some() {
            return None;
        }
        // Without an index, the last row of a page may continue in the next.
        let end_row = self.end_row() - u32::from(!self.pages.is_indexed() && self.starts().len() > 1);
        let run = self.wanted.first_run(end_row, num_rows);
        let rows = run.start.checked_sub(self.first_row)? as usize..run.end.checked_sub(self.first_row)? as usize;
        let starts = self.starts().get(rows.start..=rows.end).filter(|_| !rows.is_empty())?;
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
