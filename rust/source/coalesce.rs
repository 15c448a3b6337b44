//! Turns wanted ranges into requests.

use std::ops::Range;

use bytes::Bytes;

use super::preset::Preset;
use crate::config;

/// Maximum gaps between ranges that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    /// Gaps up to this are always read: another request costs more.
    pub(super) least_bytes: u64,
    /// Gaps above this are never read: they cost more than another request.
    pub(super) most_bytes: u64,
}

/// Returns the total length of `ranges`.
pub(crate) fn num_bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns the bytes of `range`, where `bytes` begin at offset `start`; `None` unless they hold all of it.
pub(crate) fn part_of(bytes: &Bytes, start: u64, range: &Range<u64>) -> Option<Bytes> {
    let first = usize::try_from(range.start.checked_sub(start)?).ok()?;
    let end = usize::try_from(range.end.checked_sub(start)?).ok()?;
    (first <= end && end <= bytes.len()).then(|| bytes.slice(first..end))
}

/// Merges byte ranges with gaps of at most `max_gap_bytes`.
///
/// A request costs a round trip, so fetching a small hole is cheaper than a second request. Returns disjoint ranges,
/// sorted by start, that together cover the input. Empty ranges are dropped.
pub(crate) fn coalesce(ranges: &[Range<u64>], max_gap_bytes: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.iter().filter(|range| range.start < range.end).cloned().collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(max_gap_bytes) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Merges byte ranges like [`coalesce`], smallest gaps first, as long as gaps are small compared to the wanted bytes.
///
/// Requests run concurrently, so reading a gap saves a request slot and costs its bytes. Gaps above the least are read
/// only up to [`config::MAX_OVER_READ_PERCENT`] of the wanted bytes; of equal gaps the first.
pub(super) fn merge(ranges: &[Range<u64>], gap: Gap) -> Vec<Range<u64>> {
    let apart = coalesce(ranges, gap.least_bytes.min(gap.most_bytes));
    let wanted = num_bytes(&coalesce(ranges, 0));
    let fetched = num_bytes(&apart);
    let mut room = (wanted / 100 * config::MAX_OVER_READ_PERCENT).saturating_sub(fetched - wanted);
    let gap_after = |index: usize| apart[index + 1].start - apart[index].end;
    let mut places: Vec<usize> = (0..apart.len().saturating_sub(1)).collect();
    places.retain(|&index| gap_after(index) <= gap.most_bytes.min(room));
    places.sort_by_key(|&index| gap_after(index));
    let mut is_closed = vec![false; apart.len()];
    for index in places {
        let Some(left) = room.checked_sub(gap_after(index)) else { break };
        (room, is_closed[index]) = (left, true);
    }
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(apart.len());
    for (index, range) in apart.into_iter().enumerate() {
        match merged.last_mut() {
            Some(last) if is_closed[index - 1] => last.end = range.end,
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the requests for `ranges` of one object, by the defaults that hold before anything is measured.
pub(crate) fn planned(ranges: &[Range<u64>], preset: &Preset) -> Vec<Range<u64>> {
    let gap = Gap { least_bytes: preset.least_gap_bytes, most_bytes: preset.gap_bytes };
    split(&merge(ranges, gap), preset.max_request_bytes)
}

/// Splits ranges into parts of nearly equal size, none above [`at_most`] `max_bytes`.
pub(super) fn split(ranges: &[Range<u64>], max_bytes: u64) -> Vec<Range<u64>> {
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let len = range.end - range.start;
        let num_parts = len.div_ceil(at_most(max_bytes)).max(1);
        let cut = |part: u64| range.start + len / num_parts * part + (len % num_parts).min(part);
        parts.extend((0..num_parts).map(|part| cut(part)..cut(part + 1)));
    }
    parts
}

/// Returns the actual maximum for requests of about `max_bytes`: a quarter more is no reason for another request.
pub(super) fn at_most(max_bytes: u64) -> u64 {
    max_bytes.saturating_add(max_bytes / 4).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_within_the_gap_become_one_request() {
        assert_eq!(coalesce(&[50..60, 0..10, 12..20, 5..5], 2), [0..20, 50..60]);
    }

    #[test]
    fn gaps_are_read_along_while_they_are_small_beside_what_is_wanted() {
        let gap = Gap { least_bytes: 1, most_bytes: 1000 };
        // 20 of 100 bytes for gaps: the one of 1 in any case, then 9; 11 would be too many.
        let wanted = [0..30, 31..50, 59..80, 91..121];
        assert_eq!(merge(&wanted, gap), [0..80, 91..121]);
        assert_eq!(merge(&wanted, Gap { most_bytes: 8, ..gap }), [0..50, 59..80, 91..121]);
        assert_eq!(merge(&wanted, Gap { least_bytes: 11, ..gap }), std::slice::from_ref(&(0..121)));
    }

    #[test]
    fn sparse_ranges_are_read_one_by_one() {
        let wanted: Vec<_> = (0..100).map(|number| number * 500_000..number * 500_000 + 65_536).collect();
        let gap = Gap { least_bytes: 32 << 10, most_bytes: 1 << 20 };
        assert!(num_bytes(&merge(&wanted, gap)) <= num_bytes(&wanted) * 6 / 5);
    }

    /// Closes gaps one after another, the smallest first.
    fn merge_slowly(ranges: &[Range<u64>], gap: Gap) -> Vec<Range<u64>> {
        let wanted = num_bytes(&coalesce(ranges, 0));
        let mut merged = coalesce(ranges, 0);
        loop {
            let gaps = merged.windows(2).map(|pair| pair[1].start - pair[0].end).zip(1..);
            let Some((smallest, at)) = gaps.min() else { return merged };
            let over_read = num_bytes(&merged) - wanted + smallest;
            let is_small = smallest <= gap.least_bytes || over_read <= wanted / 100 * config::MAX_OVER_READ_PERCENT;
            if smallest > gap.most_bytes || !is_small {
                return merged;
            }
            let next = merged.remove(at);
            merged[at - 1].end = next.end;
        }
    }

    proptest! {
        #[test]
        fn merging_is_closing_the_smallest_gaps_first(
            wanted in prop::collection::vec((0u64..20_000, 0u64..600), 0..40), least in 0u64..100, more in 0u64..2000,
        ) {
            let wanted: Vec<Range<u64>> = wanted.into_iter().map(|(start, len)| start..start + len).collect();
            let gap = Gap { least_bytes: least, most_bytes: least + more };
            prop_assert_eq!(merge(&wanted, gap), merge_slowly(&wanted, gap));
        }

        #[test]
        fn requests_cover_what_is_wanted_and_lie_apart(
            wanted in prop::collection::vec((0u64..2000, 0u64..300), 0..40), gap in 0u64..100,
        ) {
            let wanted: Vec<Range<u64>> = wanted.into_iter().map(|(start, len)| start..start + len).collect();
            let merged = coalesce(&wanted, gap);
            prop_assert!(merged.windows(2).all(|pair| pair[0].end + gap < pair[1].start));
            for range in wanted.iter().filter(|range| !range.is_empty()) {
                prop_assert!(merged.iter().any(|m| m.start <= range.start && range.end <= m.end));
            }
        }

        #[test]
        fn parts_tile_their_range(start in 0u64..1000, len in 1u64..10_000, max in 1u64..3000) {
            let parts = split(std::slice::from_ref(&(start..start + len)), max);
            prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (start, start + len));
            prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(parts.iter().all(|part| part.end - part.start <= at_most(max)));
            prop_assert_eq!(parts.len() == 1, len <= at_most(max));
        }
    }
}
