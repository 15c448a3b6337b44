//! Rows that could not be read and are left out, if the user chose so.
//!
//! A hole is a set of kept rows of a span or its row group, or of draws from them: those of the part that failed. Their
//! positions stay empty, and nothing moves into their place. Rows listed in a state are not requested again, so that
//! the following rows are the same as in the run that wrote it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::plan::{EpochPlan, Hole, HoleUnits, RowRef};

/// The holes of an epoch, as far as a stream knows them.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// In the order in which they were found; those of the state first.
    found: Vec<Hole>,
    units: HoleUnits,
    /// Kept rows of each unit, in ascending ranges that do not touch.
    of_unit: BTreeMap<u32, Vec<Range<u32>>>,
    num_rows: u64,
    /// How many rows may be missing; none if `None`.
    max_rows: Option<u64>,
}

impl Holes {
    /// Starts with the holes of a state, counted in `units`.
    pub(super) fn new(known: Vec<Hole>, max_rows: Option<u64>, units: HoleUnits) -> Self {
        let mut holes = Self { max_rows, units, ..Self::default() };
        for hole in known {
            holes.note(hole);
        }
        holes
    }

    /// Returns the holes.
    pub(super) fn found(&self) -> &[Hole] {
        &self.found
    }

    /// Returns how many rows may be missing because of `cause`.
    ///
    /// # Errors
    ///
    /// `cause`, if it is not the objects' fault or nothing may be skipped.
    pub(super) fn allowed(&self, cause: Error) -> Result<(u64, Error)> {
        match self.max_rows {
            Some(max_rows) if cause.is_of_object() => Ok((max_rows, cause)),
            _ => Err(cause),
        }
    }

    /// Returns how many rows of what `part` names may be missing without exceeding the maximum.
    pub(super) fn spare(&self, part: &Hole) -> u64 {
        let num_known = u64::from(part.end.saturating_sub(part.start)).saturating_sub(self.num_new(part));
        self.max_rows.unwrap_or(0).saturating_sub(self.num_rows).saturating_add(num_known)
    }

    /// Adds disjoint holes for what could not be read because of `cause`.
    ///
    /// # Errors
    ///
    /// As for [`Self::allowed`]; [`Error::TooManySkipped`] if that exceeds the maximum.
    pub(super) fn add(&mut self, holes: impl FnOnce(String) -> Vec<Hole>, cause: Error) -> Result<()> {
        let (max_rows, cause) = self.allowed(cause)?;
        let holes = holes(cause.describe());
        let num_rows = self.num_rows + holes.iter().map(|hole| self.num_new(hole)).sum::<u64>();
        if num_rows > max_rows {
            // Not recorded: otherwise a state saved before them would leave their rows out.
            return Err(Error::TooManySkipped { num_rows, max_rows, source: Box::new(cause) });
        }
        holes.into_iter().for_each(|hole| self.note(hole));
        Ok(())
    }

    /// Records a hole, merged with those that it touches, in the position of the first of them.
    fn note(&mut self, mut hole: Hole) {
        let num_new = self.num_new(&hole);
        if num_new == 0 {
            return;
        }
        self.num_rows += num_new;
        let known = self.of_unit.entry(hole.span).or_default();
        let first = known.partition_point(|rows| rows.end < hole.start);
        let touched = first..known.partition_point(|rows| rows.start <= hole.end);
        let mut place = None;
        if let Some((first, last)) = known[touched.clone()].first().zip(known[touched.clone()].last()) {
            (hole.start, hole.end) = (hole.start.min(first.start), hole.end.max(last.end));
            let is_part = |other: &Hole| other.span == hole.span && other.start >= hole.start && other.end <= hole.end;
            place = self.found.iter().position(is_part);
            self.found.retain(|other| !is_part(other));
        }
        known.splice(touched, std::iter::once(hole.start..hole.end));
        self.found.insert(place.unwrap_or(self.found.len()), hole);
    }

    /// Returns how many rows of a hole are not yet known to be missing. A part that several blocks wanted at once fails
    /// for each of them, and a state's holes may stem from other parts.
    fn num_new(&self, hole: &Hole) -> u64 {
        let known = self.of_unit.get(&hole.span).map_or(&[][..], Vec::as_slice);
        num_beyond(known, hole.start..hole.end)
    }

    /// Returns whether no rows are known to be missing.
    pub(super) fn is_empty(&self) -> bool {
        self.of_unit.is_empty()
    }

    /// Drops the rows that are known to be missing; returns their number.
    pub(super) fn drop_missing(&self, rows: &mut Vec<RowRef>, plan: &EpochPlan) -> usize {
        if self.is_empty() {
            return 0;
        }
        let num_rows = rows.len();
        rows.retain(|row| {
            let (unit, first) = self.units.place(row.piece.span);
            let Some(missing) = self.of_unit.get(&unit) else { return true };
            let number = first + plan.piece(row.piece).kept.start + row.row;
            let place = missing.partition_point(|rows| rows.end <= number);
            !missing.get(place).is_some_and(|rows| rows.contains(&number))
        });
        num_rows - rows.len()
    }
}

/// Returns how many of the rows are in none of `known`, which are ascending and disjoint.
fn num_beyond(known: &[Range<u32>], rows: Range<u32>) -> u64 {
    let first = known.partition_point(|known| known.end <= rows.start);
    let covering = known[first..].iter().take_while(|known| known.start < rows.end);
    let covered: usize = covering.map(|known| (known.start.max(rows.start)..known.end.min(rows.end)).len()).sum();
    rows.len().saturating_sub(covered) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::{Order, PieceId, Span};

    fn hole(span: u32, rows: Range<u32>) -> Hole {
        Hole { span, start: rows.start, end: rows.end, object: "x".into(), row_group: 0, cause: String::new() }
    }

    fn damaged() -> Error {
        Error::NotParquet { url: "x".into(), reason: "it is damaged".into() }
    }

    #[test]
    fn rows_are_counted_once_and_dropped() {
        let mut holes = Holes::new(vec![hole(1, 10..20)], Some(100), HoleUnits::default());
        for rows in [10..20, 12..15, 40..50] {
            holes.add(|_| vec![hole(1, rows)], damaged()).unwrap();
        }
        assert_eq!(holes.num_rows, 20);
        assert_eq!(holes.found().len(), 2);
        let spans = [60; 3].map(|num_kept| Span { row_group: 0, start: 0, end: num_kept, num_kept });
        let plan = EpochPlan::new(Arc::new(spans), Order::Sequential, 0);
        let row = |span, row| RowRef { piece: PieceId { lane: 0, span }, row };
        let mut rows = vec![row(1, 9), row(1, 10), row(2, 10), row(1, 39), row(1, 40)];
        assert_eq!(holes.drop_missing(&mut rows, &plan), 2);
        assert_eq!(rows, [row(1, 9), row(2, 10), row(1, 39)]);
    }

    #[test]
    fn rows_of_a_row_group_are_missing_however_it_is_cut() {
        let spans = [(0, 50), (1, 30), (1, 30), (1, 40)];
        let spans = spans.map(|(row_group, num_kept)| Span { row_group, start: 0, end: num_kept, num_kept });
        let mut holes = Holes::new(vec![hole(1, 20..70)], Some(100), HoleUnits::row_groups(&spans));
        holes.add(|_| vec![hole(1, 60..100)], damaged()).unwrap();
        assert_eq!(holes.num_rows, 80);
        let plan = EpochPlan::new(Arc::new(spans), Order::Sequential, 0);
        let row = |span, row| RowRef { piece: PieceId { lane: 0, span }, row };
        let kept = [row(0, 25), row(1, 19)];
        let mut rows = vec![kept[0], kept[1], row(1, 20), row(2, 0), row(3, 9), row(3, 10)];
        holes.drop_missing(&mut rows, &plan);
        assert_eq!(rows, kept);
    }

    #[test]
    fn holes_that_touch_are_one_in_the_place_of_the_first() {
        let mut holes =
            Holes::new(vec![hole(1, 10..20), hole(2, 0..5), hole(1, 30..40)], Some(100), HoleUnits::default());
        holes.add(|_| vec![hole(1, 25..30), hole(1, 50..60)], damaged()).unwrap();
        holes.add(|_| vec![hole(1, 15..26)], damaged()).unwrap();
        let found = holes.found().iter().map(|hole| (hole.span, hole.start..hole.end));
        assert_eq!(found.collect::<Vec<_>>(), [(1, 10..40), (2, 0..5), (1, 50..60)]);
        assert_eq!(holes.num_rows, 45);
    }

    #[test]
    fn of_a_part_those_that_are_known_may_be_missing_and_as_many_more_as_are_left() {
        let holes = Holes::new(vec![hole(1, 10..20), hole(2, 0..5)], Some(18), HoleUnits::default());
        assert_eq!([hole(1, 0..100), hole(1, 15..100), hole(3, 0..100)].map(|part| holes.spare(&part)), [13, 8, 3]);
    }

    #[test]
    fn rows_beyond_those_that_are_known_are_counted() {
        let known = [10..20, 30..40, 50..60];
        for (rows, expected) in [
            (0..5, 5),
            (0..10, 10),
            (12..18, 0),
            (20..30, 10),
            (15..35, 10),
            (0..100, 70),
            (40..50, 10),
            (59..61, 1),
            (60..70, 10),
            (5..5, 0),
        ] {
            assert_eq!(num_beyond(&known, rows.clone()), expected, "{rows:?}");
        }
        assert_eq!(num_beyond(&[], 3..7), 4);
    }

    #[test]
    fn more_than_may_be_missing_is_an_error_that_says_why() {
        let mut holes = Holes::new(Vec::new(), Some(10), HoleUnits::default());
        holes.add(|_| vec![hole(0, 0..10)], damaged()).unwrap();
        let error = holes.add(|_| vec![hole(0, 10..11)], damaged()).unwrap_err();
        assert!(matches!(error, Error::TooManySkipped { num_rows: 11, max_rows: 10, .. }), "{error}");
        assert!(error.describe().contains("it is damaged"), "{}", error.describe());
        assert_eq!((holes.num_rows, holes.found().len()), (10, 1));
    }

    #[test]
    fn what_is_not_the_objects_fault_is_no_hole() {
        let mut holes = Holes::new(Vec::new(), Some(10), HoleUnits::default());
        let error = Error::Closed { reason: "it was closed" };
        assert!(matches!(holes.add(|_| vec![hole(0, 0..1)], error), Err(Error::Closed { .. })));
        assert!(Holes::default().add(|_| vec![hole(0, 0..1)], damaged()).is_err());
        assert_eq!(holes.num_rows, 0);
    }
}
