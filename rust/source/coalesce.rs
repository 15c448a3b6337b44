//! Turns the ranges that are wanted into the requests that are made.

use std::ops::Range;

/// Merges byte ranges that lie within `max_gap_bytes` of each other.
///
/// A request costs a round trip, so fetching a small hole is cheaper than asking twice. Returns
/// disjoint ranges, sorted by start, that together cover the input. Empty ranges are dropped.
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

/// Cuts ranges into parts of nearly equal size, none above `max_bytes`.
pub(super) fn split(ranges: &[Range<u64>], max_bytes: u64) -> Vec<Range<u64>> {
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let len = range.end - range.start;
        let num_parts = len.div_ceil(max_bytes.max(1)).max(1);
        let cut = |part: u64| range.start + len / num_parts * part + (len % num_parts).min(part);
        parts.extend((0..num_parts).map(|part| cut(part)..cut(part + 1)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_within_the_gap_become_one_request() {
        assert_eq!(coalesce(&[50..60, 0..10, 12..20, 5..5], 2), [0..20, 50..60]);
    }

    proptest! {
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
            prop_assert!(parts.iter().all(|part| part.end - part.start <= max));
        }
    }
}
