//! Walks a permutation of all rows: drawn by the seed, for an epoch that the windows can hold, or given.
//!
//! Drawn rows leave sorted by (number drawn, place in the dataset). The numbers are uniform: those that begin with the
//! same bits form a bucket of nearly constant size. A walk draws all numbers and keeps those of as many buckets as it
//! has memory for, and does so again when it has passed these; a bucket is sorted when the walk reaches it. So the
//! first row costs two passes over the numbers rather than a sort of all, and the plan holds nothing per row.

use std::ops::Range;
use std::sync::Arc;

use super::seed::{Draws, Key, NUMBER_BITS};
use super::span::Span;
use super::spread::{SpreadSort, bucket_of_bits};
use super::{PieceId, RowRef, starts};

/// Approximate rows of a bucket: sorting them stays in the cache.
const BUCKET_ROWS: u64 = 1 << 14;

/// Maximum number of buckets, as a power of two: that many places in memory are written to in turn.
const MAX_BUCKET_BITS: u32 = 11;

/// A kept row of a span.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct SpanRow {
    pub(super) span: u32,
    pub(super) row: u32,
}

/// All rows in any order.
#[derive(Debug)]
pub(super) struct Permutation {
    rows: Rows,
    /// The first position of each bucket, and finally all of them.
    starts: Vec<u64>,
    /// The row of each span that leaves last.
    last_rows: Vec<u32>,
    /// Spans by the buckets in which they end, and where those of each bucket begin.
    endings: Vec<u32>,
    ending_starts: Vec<usize>,
}

#[derive(Debug)]
enum Rows {
    Given(Vec<SpanRow>),
    Drawn(DrawnRows),
}

/// How to draw rows.
#[derive(Debug)]
struct DrawnRows {
    key: Key,
    /// The bits of a number beyond its bucket's common ones, and how many of them are kept at first.
    rest_bits: u32,
    kept_bits: u32,
    /// The bits of a place in the dataset.
    place_bits: u32,
    spans: SpanIndex,
}

impl Permutation {
    /// Permutes the rows of spans by the numbers of `key`.
    pub(super) fn drawn(spans: &[Span], key: &Key) -> Self {
        Self::drawn_with(spans, key, BUCKET_ROWS, NUMBER_BITS)
    }

    /// Like [`drawn`](Self::drawn), with the given rows per bucket, keeping at most this many bits of a number.
    fn drawn_with(spans: &[Span], key: &Key, bucket_rows: u64, most_bits: u32) -> Self {
        let index = SpanIndex::new(spans);
        let num_rows = index.num_rows();
        let place_bits = u64::BITS - num_rows.leading_zeros();
        let bucket_bits = (num_rows / bucket_rows).checked_ilog2().map_or(0, |bits| (bits + 1).min(MAX_BUCKET_BITS));
        let rest_bits = NUMBER_BITS - bucket_bits;
        let kept_bits = rest_bits.min(u64::BITS - place_bits).min(most_bits);
        let drawn = DrawnRows { key: *key, rest_bits, kept_bits, place_bits, spans: index };

        let mut starts = vec![0; (1 << bucket_bits) + 1];
        let (mut last_rows, mut last_buckets) = (Vec::with_capacity(spans.len()), Vec::with_capacity(spans.len()));
        let mut draws = key.draws(0);
        for span in spans {
            let (mut last_number, mut last_row) = (0, 0);
            for row in 0..span.num_kept {
                let number = draws.next_bits();
                starts[drawn.bucket_of(number) + 1] += 1;
                // Of equal numbers, the later row leaves last.
                if number >= last_number {
                    (last_number, last_row) = (number, row);
                }
            }
            last_rows.push(last_row);
            last_buckets.push(Some(drawn.bucket_of(last_number)));
        }
        for bucket in 1..starts.len() {
            starts[bucket] += starts[bucket - 1];
        }
        Self::ending_in(Rows::Drawn(drawn), starts, last_rows, &last_buckets)
    }

    /// Uses the given order of rows; at most `num_spans` spans have rows.
    pub(super) fn given(rows: Vec<SpanRow>, num_spans: usize) -> Self {
        let (mut last_rows, mut last_buckets) = (vec![0; num_spans], vec![None; num_spans]);
        let bucket_rows = usize::try_from(BUCKET_ROWS).unwrap_or(usize::MAX);
        for (bucket, rows) in rows.chunks(bucket_rows).enumerate() {
            for SpanRow { span, row } in rows {
                last_rows[*span as usize] = *row;
                last_buckets[*span as usize] = Some(bucket);
            }
        }
        let num_rows = rows.len() as u64;
        let starts = (0..num_rows).step_by(bucket_rows).chain([num_rows]).collect();
        Self::ending_in(Rows::Given(rows), starts, last_rows, &last_buckets)
    }

    fn ending_in(rows: Rows, starts: Vec<u64>, last_rows: Vec<u32>, last_buckets: &[Option<usize>]) -> Self {
        let mut ending_starts = vec![0; starts.len()];
        last_buckets.iter().flatten().for_each(|bucket| ending_starts[bucket + 1] += 1);
        for bucket in 1..ending_starts.len() {
            ending_starts[bucket] += ending_starts[bucket - 1];
        }
        let mut ends = ending_starts.clone();
        let mut endings = vec![0; ends.last().copied().unwrap_or(0)];
        for (span, bucket) in (0..).zip(last_buckets) {
            let Some(bucket) = bucket else { continue };
            endings[ends[*bucket]] = span;
            ends[*bucket] += 1;
        }
        Self { rows, starts, last_rows, endings, ending_starts }
    }

    /// Returns the rows in the given order, if they were given.
    pub(super) fn as_given(&self) -> Option<&[SpanRow]> {
        if let Rows::Given(rows) = &self.rows { Some(rows) } else { None }
    }

    /// Returns the numbers by which some kept rows of a span leave, if numbers were drawn.
    pub(super) fn numbers(&self, span: u32, kept: Range<u32>) -> Option<impl Iterator<Item = u64>> {
        let Rows::Drawn(drawn) = &self.rows else { return None };
        let mut draws = drawn.key.draws(0);
        draws.seek(drawn.spans.starts.get(span as usize)? + u64::from(kept.start));
        Some(kept.map(move |_| draws.next_bits()))
    }

    /// Starts to walk, with at most this many bytes for drawn rows, or those of one bucket if it needs more.
    pub(super) fn walk(&self, most_bytes: u64) -> PermutedWalk {
        let most_rows = most_bytes / size_of::<u64>() as u64;
        PermutedWalk { is_touched: vec![false; self.last_rows.len()], most_rows, ..PermutedWalk::default() }
    }

    /// Returns the buckets from `first` on that have at most this many rows, or the first alone.
    fn buckets_within(&self, first: usize, most_rows: u64) -> Range<usize> {
        let ends = &self.starts[first + 1..];
        first..first + ends.partition_point(|end| end - self.starts[first] <= most_rows).max(1)
    }

    fn bucket_of(&self, position: u64) -> usize {
        self.starts.partition_point(|start| *start <= position).saturating_sub(1)
    }

    /// Returns the spans that end in a bucket.
    fn endings(&self, bucket: usize) -> &[u32] {
        &self.endings[self.ending_starts[bucket]..self.ending_starts[bucket + 1]]
    }
}

impl DrawnRows {
    fn bucket_of(&self, number: u64) -> usize {
        usize::try_from(number >> self.rest_bits).unwrap_or(usize::MAX)
    }

    /// Draws the rows of some buckets, which begin at `starts`: for each row the kept bits of its number, and its
    /// place.
    fn draw(&self, buckets: &Range<usize>, starts: &[u64]) -> Vec<u64> {
        let first = starts[buckets.start];
        let place_of = |start: &u64| usize::try_from(start - first).unwrap_or(usize::MAX);
        let mut ends: Vec<usize> = starts[buckets.clone()].iter().map(place_of).collect();
        let mut keyed = vec![0; place_of(&starts[buckets.end])];
        let mut draws = self.key.draws(0);
        for place in 0..self.spans.num_rows() {
            let number = draws.next_bits();
            let Some(end) = ends.get_mut(self.bucket_of(number).wrapping_sub(buckets.start)) else { continue };
            let rest = (number & ((1 << self.rest_bits) - 1)) >> (self.rest_bits - self.kept_bits);
            keyed[*end] = rest << (u64::BITS - self.kept_bits) | place;
            *end += 1;
        }
        keyed
    }

    /// Writes the rows of a drawn bucket to `rows`, in order.
    fn sort(&self, drawn: &[u64], Sorting { keyed, sort }: &mut Sorting, rows: &mut Vec<SpanRow>) {
        keyed.clear();
        keyed.extend_from_slice(drawn);
        sort.sort(keyed, bucket_of_bits, u64::cmp);
        let place = |keyed: u64| keyed & ((1 << self.place_bits) - 1);
        // If the kept bits are equal, all of them decide.
        for equal in keyed.chunk_by_mut(|one, next| one >> self.place_bits == next >> self.place_bits) {
            if equal.len() > 1 {
                let mut draws = self.key.draws(0);
                equal.sort_by_key(|&keyed| number_at(&mut draws, place(keyed)));
            }
        }
        rows.extend(keyed.iter().map(|&keyed| self.spans.find(place(keyed))));
    }
}

fn number_at(draws: &mut Draws, place: u64) -> u64 {
    draws.seek(place);
    draws.next_bits()
}

/// Finds the spans of rows.
#[derive(Debug)]
struct SpanIndex {
    /// The rows before each span, and finally all of them.
    starts: Vec<u64>,
    /// For every 2 to the power of `bits` rows, the span of the first one, and finally the last span.
    firsts: Vec<u32>,
    bits: u32,
}

impl SpanIndex {
    fn new(spans: &[Span]) -> Self {
        let starts = starts(spans);
        let num_rows = starts.last().copied().unwrap_or(0);
        let bits = (num_rows / (spans.len() as u64).max(1)).checked_ilog2().unwrap_or(0);
        let mut firsts = Vec::with_capacity(usize::try_from(num_rows >> bits).unwrap_or(0) + 2);
        let mut span = 0;
        for row in (0..num_rows).step_by(1 << bits) {
            while starts[span + 1] <= row {
                span += 1;
            }
            firsts.push(u32::try_from(span).unwrap_or(u32::MAX));
        }
        firsts.push(u32::try_from(spans.len().saturating_sub(1)).unwrap_or(u32::MAX));
        Self { starts, firsts, bits }
    }

    fn num_rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the span of a row, and its number there.
    fn find(&self, row: u64) -> SpanRow {
        let slot = usize::try_from(row >> self.bits).unwrap_or(usize::MAX);
        let (first, last) = (self.firsts[slot] as usize, self.firsts[slot + 1] as usize);
        let span = first + self.starts[first + 1..=last].partition_point(|start| *start <= row);
        let row = u32::try_from(row - self.starts[span]).unwrap_or(u32::MAX);
        SpanRow { span: u32::try_from(span).unwrap_or(u32::MAX), row }
    }
}

/// A walk through a permutation.
#[derive(Clone, Debug, Default)]
pub(super) struct PermutedWalk {
    /// For each span: whether any of its rows was returned.
    is_touched: Vec<bool>,
    /// The bucket of the last requested position, if any.
    bucket: Option<usize>,
    /// Its positions.
    positions: Range<u64>,
    rows: Vec<SpanRow>,
    /// The last positions of the spans that end in it, with the spans, and how many of them were passed.
    ends: Vec<(u64, u32)>,
    num_ended: usize,
    most_rows: u64,
    stretch: Stretch,
    sorting: Sorting,
}

/// Consecutive buckets, with the drawn rows of each in sequence. Clones share it.
#[derive(Clone, Debug, Default)]
struct Stretch {
    buckets: Range<usize>,
    drawn: Arc<Vec<u64>>,
}

/// Scratch memory for sorting a bucket.
#[derive(Clone, Debug, Default)]
struct Sorting {
    keyed: Vec<u64>,
    sort: SpreadSort<u64>,
}

impl PermutedWalk {
    /// Returns the maximum bytes of drawn rows.
    pub(super) fn memory_bytes(&self, of: &Permutation) -> u64 {
        let num_rows = of.starts.last().map_or(0, |num_rows| self.most_rows.min(*num_rows));
        if of.as_given().is_some() { 0 } else { num_rows * size_of::<u64>() as u64 }
    }

    pub(super) fn take(&mut self, of: &Permutation, position: u64, finished: &mut Vec<PieceId>) -> RowRef {
        if !self.positions.contains(&position) {
            self.move_to(of, position, finished);
        }
        let SpanRow { span, row } = self.rows[usize::try_from(position - self.positions.start).unwrap_or(usize::MAX)];
        self.is_touched[span as usize] = true;
        while let Some(&(end, span)) = self.ends.get(self.num_ended)
            && end <= position
        {
            self.num_ended += 1;
            self.end(span, finished);
        }
        RowRef { piece: PieceId { lane: 0, span }, row }
    }

    /// Reports a span when all of its rows were passed, if any of them was returned.
    fn end(&self, span: u32, finished: &mut Vec<PieceId>) {
        if self.is_touched[span as usize] {
            finished.push(PieceId { lane: 0, span });
        }
    }

    /// Enters the bucket of a position.
    fn move_to(&mut self, of: &Permutation, position: u64, finished: &mut Vec<PieceId>) {
        let bucket = of.bucket_of(position);
        if let Some(left) = self.bucket.replace(bucket) {
            self.ends[self.num_ended..].iter().for_each(|&(_, span)| self.end(span, finished));
            (left + 1..bucket).flat_map(|passed| of.endings(passed)).for_each(|&span| self.end(span, finished));
        }
        self.positions = of.starts[bucket]..of.starts[bucket + 1];
        let places = |first: u64| {
            let place = |position: u64| usize::try_from(position - first).unwrap_or(usize::MAX);
            place(of.starts[bucket])..place(of.starts[bucket + 1])
        };
        self.rows.clear();
        match &of.rows {
            Rows::Given(rows) => self.rows.extend_from_slice(&rows[places(0)]),
            Rows::Drawn(drawn) => {
                if !self.stretch.buckets.contains(&bucket) {
                    // Frees what was passed before there is more.
                    self.stretch = Stretch::default();
                    let buckets = of.buckets_within(bucket, self.most_rows);
                    self.stretch = Stretch { drawn: drawn.draw(&buckets, &of.starts).into(), buckets };
                }
                let of_bucket = places(of.starts[self.stretch.buckets.start]);
                drawn.sort(&self.stretch.drawn[of_bucket], &mut self.sorting, &mut self.rows);
            }
        }
        self.ends.clear();
        self.num_ended = 0;
        let is_last = |(_, row): &(u64, &SpanRow)| of.last_rows[row.span as usize] == row.row;
        let ends = self.positions.clone().zip(&self.rows).filter(is_last);
        self.ends.extend(ends.map(|(position, row)| (position, row.span)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::seed::Purpose;
    use super::super::tests::{layouts, spans};
    use super::*;

    proptest! {
        #[test]
        fn rows_leave_by_number_however_much_of_it_is_kept(
            kept in layouts(), bucket_rows in 1_u64..300, most_bits in prop_oneof![1_u32..8, Just(NUMBER_BITS)],
            most_bytes in prop_oneof![0_u64..9000, Just(u64::MAX)],
        ) {
            let (spans, key) = (spans(&kept), Key::new(1, 2, Purpose::All));
            let mut draws = key.draws(0);
            let mut expected: Vec<(u64, u32, u32)> = (0..)
                .zip(&kept)
                .flat_map(|(span, &rows)| (0..rows).map(move |row| (span, row)))
                .map(|(span, row)| (draws.next_bits(), span, row))
                .collect();
            expected.sort_unstable();
            let permutation = Permutation::drawn_with(&spans, &key, bucket_rows, most_bits);
            let (mut walk, mut finished) = (permutation.walk(most_bytes), Vec::new());
            for (position, &(_, span, row)) in (0..).zip(&expected) {
                let expected = RowRef { piece: PieceId { lane: 0, span }, row };
                prop_assert_eq!(walk.take(&permutation, position, &mut finished), expected);
            }
            prop_assert_eq!(finished.len(), kept.len());
        }

        #[test]
        fn spans_are_found(kept in layouts()) {
            let index = SpanIndex::new(&spans(&kept));
            let rows = (0..).zip(&kept).flat_map(|(span, &rows)| (0..rows).map(move |row| SpanRow { span, row }));
            for (number, row) in (0..).zip(rows) {
                prop_assert_eq!(index.find(number), row);
            }
        }
    }
}
