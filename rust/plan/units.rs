//! The units in which holes count rows, so that a state means the same rows wherever it is loaded.

use std::ops::Range;
use std::sync::Arc;

use super::Span;

/// The units in which holes count rows: spans, or their row groups.
///
/// Spans of shuffled rows depend only on the objects. If rows are not shuffled, a span is a single read, which depends
/// on the columns and on the memory; a state must be independent of these, so it counts in row groups.
#[derive(Clone, Debug, Default)]
pub struct HoleUnits {
    /// For each span the row group, counted over those that have spans, and the number of its rows before the span.
    /// Empty if spans are the units.
    places: Arc<[(u32, u32)]>,
}

impl HoleUnits {
    /// Counts in the row groups of spans, which are in dataset order.
    pub fn row_groups(spans: &[Span]) -> Self {
        let mut places = Vec::with_capacity(spans.len());
        for (of_group, unit) in spans.chunk_by(|one, next| one.row_group == next.row_group).zip(0..) {
            let mut first = 0;
            for span in of_group {
                places.push((unit, first));
                first += span.num_kept;
            }
        }
        Self { places: places.into() }
    }

    /// Returns the unit of a span, and the number of its kept rows before the span.
    pub fn place(&self, span: u32) -> (u32, u32) {
        self.places.get(span as usize).copied().unwrap_or((span, 0))
    }

    /// Returns the spans of a unit, if it exists.
    pub fn spans(&self, unit: u32) -> Range<usize> {
        if self.places.is_empty() {
            return unit as usize..unit as usize + 1;
        }
        let start = self.places.partition_point(|&(of, _)| of < unit);
        start..self.places.partition_point(|&(of, _)| of <= unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_a_row_group_are_one_unit() {
        let spans = [(3, 40), (3, 2), (5, 7), (6, 1), (6, 1), (6, 1)];
        let spans = spans.map(|(row_group, num_kept)| Span { row_group, start: 0, end: 99, num_kept });
        let units = HoleUnits::row_groups(&spans);
        let places: Vec<_> = (0..6).map(|span| units.place(span)).collect();
        assert_eq!(places, [(0, 0), (0, 40), (1, 0), (2, 0), (2, 1), (2, 2)]);
        assert_eq!([0, 1, 2].map(|unit| units.spans(unit)), [0..2, 2..3, 3..6]);
        assert!(units.spans(3).is_empty());
        assert!(units.spans(u32::MAX).is_empty());
    }

    #[test]
    fn spans_that_follow_from_the_objects_are_units() {
        let units = HoleUnits::default();
        assert_eq!((units.place(7), units.spans(7)), ((7, 0), 7..8));
    }
}
