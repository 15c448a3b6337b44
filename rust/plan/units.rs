//! What the rows of holes are counted in, so that a state means the same rows to whoever loads it.

use std::ops::Range;
use std::sync::Arc;

use super::Span;

/// What the rows of holes are counted in: spans, or the row groups that they are of.
///
/// Spans of rows that are shuffled follow from the objects alone. Where they are not shuffled, a span is what is read at once,
/// which hangs on the columns and on the memory; a state holds for others, too, so it counts in row groups.
#[derive(Clone, Debug, Default)]
pub struct HoleUnits {
    /// Of each span the row group, counted over those that have one, and how many rows of it lie before. Empty where spans are
    /// the units.
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

    /// Returns the unit that a span is in, and how many kept rows of it lie before the span.
    pub fn place(&self, span: u32) -> (u32, u32) {
        self.places.get(span as usize).copied().unwrap_or((span, 0))
    }

    /// Returns which spans a unit consists of, if it is there.
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
