//! Sorts evenly distributed items: into small buckets first, which costs less than comparing each with many.

use std::cmp::Ordering;

/// Average items per bucket.
const BUCKET_ITEMS: usize = 4;

/// Items that are sorted directly: the standard library uses insertion sort for so few.
const FEW_ITEMS: usize = 20;

/// Sorts lists one after another, reusing its memory.
#[derive(Clone, Debug)]
pub(super) struct SpreadSort<T> {
    ends: Vec<u32>,
    sorted: Vec<T>,
}

impl<T> Default for SpreadSort<T> {
    fn default() -> Self {
        Self { ends: Vec::new(), sorted: Vec::new() }
    }
}

impl<T: Copy> SpreadSort<T> {
    /// Sorts `items`, fewer than 2³², by `order`. `bucket` returns an item's bucket among the given number, consistent
    /// with the order. The sort is slow if most items are in one bucket.
    pub(super) fn sort(
        &mut self,
        items: &mut Vec<T>,
        bucket: impl Fn(&T, usize) -> usize,
        order: impl Fn(&T, &T) -> Ordering,
    ) {
        let Some(&first) = items.first().filter(|_| items.len() > FEW_ITEMS) else {
            items.sort_unstable_by(order);
            return;
        };
        let Self { ends, sorted } = self;
        let num_buckets = items.len().div_ceil(BUCKET_ITEMS);
        let bucket = |item: &T| bucket(item, num_buckets).min(num_buckets - 1);
        ends.clear();
        ends.resize(num_buckets + 1, 0);
        items.iter().for_each(|item| ends[bucket(item) + 1] += 1);
        for at in 1..num_buckets {
            ends[at] += ends[at - 1];
        }
        sorted.clear();
        sorted.resize(items.len(), first);
        for item in items.iter() {
            let end = &mut ends[bucket(item)];
            sorted[*end as usize] = *item;
            *end += 1;
        }
        let mut start = 0;
        for &end in &ends[..num_buckets] {
            sorted[start..end as usize].sort_unstable_by(&order);
            start = end as usize;
        }
        std::mem::swap(items, sorted);
    }
}

/// Returns the bucket, among the given number, of an integer with evenly distributed high bits.
#[expect(clippy::cast_possible_truncation, reason = "the high half of a product is less than either factor")]
pub(super) fn bucket_of_bits(bits: &u64, num_buckets: usize) -> usize {
    ((u128::from(*bits) * num_buckets as u128) >> u64::BITS) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn items_are_sorted_however_they_are_spread(lists in prop::collection::vec(prop::collection::vec(0_u32..999, 0..300), 1..4)) {
            let mut sort = SpreadSort::default();
            for mut items in lists {
                let mut expected = items.clone();
                expected.sort_unstable();
                sort.sort(&mut items, |&item, num| item as usize * num / 500, Ord::cmp);
                prop_assert_eq!(items, expected);
            }
        }
    }
}
