//! [`Answer`]: what is known about a dataset once its query has been evaluated.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array, UInt64Array};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::ArrowError;

use crate::rows::RowSet;
use crate::selection::Selection;
use crate::snapshot::Snapshot;

/// The kept rows of a dataset, the order that its query gives them, and values that only the query knows.
#[derive(Debug)]
pub struct Answer {
    selection: Arc<Selection>,
    /// The kept rows in the query's order, as positions among the kept rows in dataset order; `None` for dataset order.
    order: Option<Arc<[u64]>>,
    /// One row for each kept row, in dataset order.
    attached: Option<RecordBatch>,
}

impl Answer {
    /// Returns an answer that consists of a selection alone.
    pub fn of_selection(selection: Arc<Selection>) -> Self {
        Self { selection, order: None, attached: None }
    }

    /// Returns an answer made elsewhere; `None` if its parts do not fit together.
    pub fn try_new(
        selection: Arc<Selection>,
        order: Option<Arc<[u64]>>,
        attached: Option<RecordBatch>,
    ) -> Option<Self> {
        let num_rows = selection.num_rows();
        let is_order = |order: &Arc<[u64]>| {
            let mut seen = vec![false; order.len()];
            let mut is_new = |&place: &u64| {
                let place = usize::try_from(place).ok().and_then(|place| seen.get_mut(place));
                place.is_some_and(|seen| !std::mem::replace(seen, true))
            };
            order.len() as u64 == num_rows && order.iter().all(&mut is_new)
        };
        let fits = order.as_ref().is_none_or(is_order)
            && attached.as_ref().is_none_or(|attached| attached.num_rows() as u64 == num_rows);
        fits.then_some(Self { selection, order, attached })
    }

    /// Makes an answer from the row numbers that a query returned, and the values returned with them.
    ///
    /// `attached` has no columns if only rows were requested. `is_ordered` says whether the query gave their order.
    pub(crate) fn of_rows(
        snapshot: &Snapshot,
        rows: Vec<u64>,
        attached: RecordBatch,
        is_ordered: bool,
        counts: crate::selection::Report,
    ) -> Result<Self, ArrowError> {
        let has_columns = attached.num_columns() > 0;
        if rows.is_sorted() {
            let selection = Arc::new(Selection::of_rows(snapshot, rows, counts));
            return Ok(Self { selection, order: None, attached: has_columns.then_some(attached) });
        }
        // There may be as many rows as memory holds, so each list is dropped as soon as the next one is made from it.
        let mut places: Vec<usize> = (0..rows.len()).collect();
        places.sort_unstable_by_key(|&place| rows[place]);
        let selection = Selection::of_rows(snapshot, places.iter().map(|&place| rows[place]), counts);
        drop(rows);
        let order = is_ordered.then(|| {
            let mut order: Arc<[u64]> = std::iter::repeat_n(0, places.len()).collect();
            // Nobody else holds it yet.
            if let Some(order) = Arc::get_mut(&mut order) {
                for (kept, &place) in (0_u64..).zip(&places) {
                    order[place] = kept;
                }
            }
            order
        });
        let attached = if has_columns {
            let places = UInt64Array::from_iter_values(places.iter().map(|&place| place as u64));
            Some(arrow_select::take::take_record_batch(&attached, &places)?)
        } else {
            None
        };
        Ok(Self { selection: Arc::new(selection), order, attached })
    }

    /// Returns the answer restricted to the rows numbered `rows`, which are ascending.
    pub(crate) fn only(&self, snapshot: &Snapshot, rows: impl IntoIterator<Item = u64>) -> Result<Self, ArrowError> {
        let selection = Arc::new(Selection::of_rows(snapshot, rows, self.selection.report()));
        if self.order.is_none() && self.attached.is_none() {
            return Ok(Self::of_selection(selection));
        }
        // For each kept row: whether it stays, and its new position.
        let mut wanted = selection.row_numbers(snapshot).peekable();
        let mut places: Vec<Option<u64>> = Vec::new();
        let mut num_kept = 0;
        for number in self.selection.row_numbers(snapshot) {
            let stays = wanted.next_if_eq(&number).is_some();
            places.push(stays.then_some(num_kept));
            num_kept += u64::from(stays);
        }
        let place_of = |kept: u64| usize::try_from(kept).ok().and_then(|kept| places.get(kept).copied().flatten());
        let order = self.order.as_ref().map(|order| order.iter().filter_map(|&kept| place_of(kept)).collect());
        let attached = self.attached.as_ref().map(|attached| {
            let kept = places.iter().zip(0..).filter_map(|(place, index)| place.map(|_| index));
            arrow_select::take::take_record_batch(attached, &UInt64Array::from_iter_values(kept))
        });
        Ok(Self { selection, order, attached: attached.transpose()? })
    }

    /// Returns the answer in another order, given as positions among the kept rows in dataset order.
    pub(crate) fn in_order(self, order: Option<Arc<[u64]>>) -> Self {
        Self { order, ..self }
    }

    /// Returns the kept rows.
    pub fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    /// Returns the number of kept rows.
    pub fn num_rows(&self) -> u64 {
        self.selection.num_rows()
    }

    /// Returns the kept rows in the query's order, as positions among the kept rows in dataset order; `None` if that is
    /// their order.
    pub fn order(&self) -> Option<&Arc<[u64]>> {
        self.order.as_ref()
    }

    /// Returns the values that are kept with the rows, in dataset order.
    pub fn attached(&self) -> Option<&RecordBatch> {
        self.attached.as_ref()
    }

    /// Returns the values of the kept rows `kept`, or only of those numbered `wanted`, counted from its start.
    pub(crate) fn attached_to(
        &self,
        kept: &Range<u64>,
        wanted: Option<&[u32]>,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let Some(attached) = &self.attached else { return Ok(None) };
        let start = usize::try_from(kept.start).unwrap_or(usize::MAX);
        let len = usize::try_from(kept.end - kept.start).unwrap_or(usize::MAX);
        let slice = attached.slice(start, len);
        // Always a copy, even of all rows: the values are kept, and a tensor over them may be written to.
        let numbers = match wanted {
            Some(wanted) => UInt32Array::from_iter_values(wanted.iter().copied()),
            None => (0..u32::try_from(slice.num_rows()).unwrap_or(u32::MAX)).collect(),
        };
        arrow_select::take::take_record_batch(&slice, &numbers).map(Some)
    }

    /// Returns the values of the rows `kept`, numbered in dataset order.
    pub(crate) fn attached_rows(&self, kept: &[u64]) -> Result<Option<RecordBatch>, ArrowError> {
        let Some(attached) = &self.attached else { return Ok(None) };
        let rows = UInt64Array::from_iter_values(kept.iter().copied());
        arrow_select::take::take_record_batch(attached, &rows).map(Some)
    }

    /// Returns the kept rows' numbers among all rows of the snapshot, in the query's order.
    pub(crate) fn row_numbers(&self, snapshot: &Snapshot) -> Box<dyn Iterator<Item = u64> + Send> {
        let numbers = self.selection.row_numbers(snapshot);
        match &self.order {
            None => Box::new(numbers),
            Some(order) => {
                let (numbers, order): (Vec<u64>, _) = (numbers.collect(), Arc::clone(order));
                let number = move |place: usize| {
                    let kept = usize::try_from(*order.get(place)?).ok()?;
                    numbers.get(kept).copied()
                };
                Box::new((0..).map_while(number))
            }
        }
    }

    /// Returns the memory held in addition to the row sets, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let order = self.order.as_ref().map_or(0, |order| size_of_val(order.as_ref()));
        (order + self.attached.as_ref().map_or(0, RecordBatch::get_array_memory_size)) as u64
    }
}

impl Selection {
    /// Returns the selection of `rows`, numbered over all rows of the snapshot and ascending.
    pub(crate) fn of_rows(
        snapshot: &Snapshot,
        rows: impl IntoIterator<Item = u64>,
        report: crate::selection::Report,
    ) -> Self {
        let (mut first, mut rows) = (0_u64, rows.into_iter().peekable());
        let sets = snapshot.row_groups.iter().map(|row_group| {
            let end = first + u64::from(row_group.num_rows);
            let is_wanted = rows.peek().is_some_and(|row| *row < end);
            let set = if is_wanted {
                let mut mask = BooleanBufferBuilder::new(row_group.num_rows as usize);
                mask.append_n(row_group.num_rows as usize, false);
                while let Some(row) = rows.next_if(|row| *row < end) {
                    mask.set_bit(usize::try_from(row - first).unwrap_or(usize::MAX), true);
                }
                RowSet::from_mask(mask.finish())
            } else {
                RowSet::None
            };
            first = end;
            set
        });
        Self::of_sets(snapshot, sets.collect(), report)
    }

    /// Returns the numbers of the kept rows, over all rows of the snapshot, ascending.
    pub(crate) fn row_numbers(self: &Arc<Self>, snapshot: &Snapshot) -> impl Iterator<Item = u64> + Send + use<> {
        let this = Arc::clone(self);
        let mut first = 0;
        let groups: Vec<(usize, u64, u32)> = snapshot
            .row_groups
            .iter()
            .enumerate()
            .map(|(index, row_group)| {
                let start = first;
                first += u64::from(row_group.num_rows);
                (index, start, row_group.num_rows)
            })
            .collect();
        groups.into_iter().flat_map(move |(index, start, num_rows)| {
            let runs: Vec<Range<u32>> = this.rows(index).runs(0..num_rows).collect();
            runs.into_iter().flatten().map(move |row| start + u64::from(row))
        })
    }
}
