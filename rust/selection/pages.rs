//! Decides the rows of a row group by the bounds of its pages.
//!
//! Pages of different columns begin at different rows, so rows are judged interval by interval: from one page boundary
//! of any of the columns to the next. Within an interval each column has the bounds of one page.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, UInt32Array, UInt64Array};
use arrow_schema::SchemaRef;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};

use super::prune::{Pruner, Verdict, usable};
use crate::cast;
use crate::snapshot::PageBounds;

/// The bounds of some columns of one row group, interval by interval.
#[derive(Debug)]
pub(super) struct IntervalStatistics<'a> {
    schema: &'a SchemaRef,
    intervals: Vec<Range<u32>>,
    columns: Vec<ColumnPages>,
}

/// The bounds of one column in each interval, in the dataset's type.
#[derive(Debug)]
struct ColumnPages {
    column: usize,
    mins: ArrayRef,
    maxes: ArrayRef,
    null_counts: Option<UInt64Array>,
}

impl<'a> IntervalStatistics<'a> {
    /// Divides a row group of `num_rows` rows by the pages of the dataset's columns, given with their bounds.
    pub(super) fn new(schema: &'a SchemaRef, num_rows: u32, bounds: &[(usize, PageBounds)]) -> Self {
        let intervals = intervals(num_rows, bounds.iter().map(|(_, bounds)| &bounds.first_rows[..]));
        let columns = bounds.iter().filter_map(|(column, bounds)| {
            let data_type = schema.field(*column).data_type();
            let page_of = |interval: &Range<u32>| {
                let after = bounds.first_rows.partition_point(|first| *first <= interval.start);
                u32::try_from(after.saturating_sub(1)).ok()
            };
            let pages: UInt32Array = intervals.iter().map(page_of).collect();
            let lay = |values: &ArrayRef| {
                let values = cast::widen_bounds(values, data_type).ok()?;
                arrow_select::take::take(&values, &pages, None).ok()
            };
            let null_counts = bounds.null_counts.as_ref().map(|counts| {
                let count = |(interval, page): (&Range<u32>, Option<u32>)| {
                    let (page, len) = (page? as usize, u64::from(interval.end - interval.start));
                    let end = bounds.first_rows.get(page + 1).copied().unwrap_or(num_rows);
                    let page_rows = u64::from(end.checked_sub(*bounds.first_rows.get(page)?)?);
                    // An interval may be a part of its page: its NULLs are known only if there are none, or all are
                    // NULL.
                    match *counts.get(page)? {
                        0 => Some(0),
                        count if count >= page_rows => Some(len),
                        _ => None,
                    }
                };
                intervals.iter().zip(&pages).map(count).collect::<UInt64Array>()
            });
            let (mins, maxes) = usable(lay(&bounds.mins)?, lay(&bounds.maxes)?);
            Some(ColumnPages { column: *column, mins, maxes, null_counts })
        });
        let columns = columns.collect();
        Self { schema, intervals, columns }
    }

    /// Returns the verdict of `pruner`, which reads `columns`, on each interval.
    pub(super) fn judge(&self, pruner: &Pruner, columns: &[usize]) -> Vec<(Range<u32>, Verdict)> {
        let has_no_nulls = |interval: usize| {
            columns.iter().all(|&column| {
                let counts = self.columns.iter().find(|found| found.column == column);
                let counts = counts.and_then(|found| found.null_counts.as_ref());
                counts.is_some_and(|counts| counts.is_valid(interval) && counts.value(interval) == 0)
            })
        };
        self.intervals.iter().cloned().zip(pruner.ask(self, has_no_nulls)).collect()
    }

    fn find(&self, column: &Column) -> Option<&ColumnPages> {
        let column = self.schema.index_of(&column.name).ok()?;
        self.columns.iter().find(|found| found.column == column)
    }
}

impl PruningStatistics for IntervalStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.find(column).map(|found| Arc::clone(&found.mins))
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.find(column).map(|found| Arc::clone(&found.maxes))
    }

    fn num_containers(&self) -> usize {
        self.intervals.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let counts = self.find(column)?.null_counts.clone()?;
        Some(Arc::new(counts))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self.intervals.iter().map(|interval| u64::from(interval.end - interval.start));
        Some(Arc::new(UInt64Array::from_iter_values(counts)))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// Splits the rows of a row group wherever a page begins; `first_rows` are those of each column's pages, ascending.
fn intervals<'a>(num_rows: u32, first_rows: impl Iterator<Item = &'a [u32]>) -> Vec<Range<u32>> {
    let mut starts: Vec<u32> = first_rows.flatten().copied().chain([0]).filter(|row| *row < num_rows).collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([num_rows]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).filter(|interval| !interval.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_begin_where_a_page_of_any_column_begins() {
        let pages: [&[u32]; 2] = [&[0, 10, 20], &[0, 15, 15, 20, 30]];
        assert_eq!(intervals(30, pages.into_iter()), [0..10, 10..15, 15..20, 20..30]);
        assert_eq!(intervals(7, [].into_iter()), std::iter::once(0..7).collect::<Vec<_>>());
        assert_eq!(intervals(0, pages.into_iter()), []);
    }
}
