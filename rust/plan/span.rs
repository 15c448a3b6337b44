//! Cuts row groups into spans, the units of reading and shuffling.
//!
//! Small spans shuffle far better than wide windows with the same memory, so a row group is cut into about 25 of them.
//! The cost of reading bounds their size from below: a span takes one request per column, which should not be tiny, and
//! every span reads its columns' dictionary pages again.
//!
//! A cut depends only on the footer and the offset index, and on all columns rather than the requested ones, so that
//! the order of rows does not depend on the projection.

/// A span has at least this many compressed bytes over all leaves, unless its row group has fewer: below that, a
/// request costs more than the bytes it returns.
pub const MIN_SPAN_BYTES: u64 = 256 << 10;

/// A row group is cut into about this many spans.
pub const SPANS_PER_ROW_GROUP: u64 = 25;

/// A span should have at least this many times the bytes of the row group's dictionary pages. Every span reads them
/// again, so this costs at most about a quarter of the bytes.
pub const MIN_SPAN_DICTIONARIES: u64 = 4;

/// A contiguous run of rows of one row group.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The row group, counted over the dataset.
    pub row_group: u32,
    /// The first raw row, counted within the row group.
    pub start: u32,
    /// The raw row after the last.
    pub end: u32,
    /// How many of the span's rows the selection keeps.
    pub num_kept: u32,
}

/// A data page of a row group's heaviest leaf column.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The page's first row, counted within the row group.
    pub first_row: u32,
    /// The page's compressed size.
    pub bytes: u64,
}

/// What a footer and an offset index say about a row group, as far as cutting needs it.
#[derive(Copy, Clone, Debug)]
pub struct RowGroupLayout<'a> {
    /// Number of raw rows.
    pub num_rows: u32,
    /// Compressed bytes over all leaves.
    pub bytes: u64,
    /// Compressed bytes of the dictionary pages over all leaves.
    pub dictionary_bytes: u64,
    /// The pages of the largest leaf; empty without an offset index.
    pub pages: &'a [Page],
}

/// Cuts a row group into spans and returns their first rows: 0, then ascending.
///
/// Walks over the pages and ends a span at the page boundary nearest the target size, once it has [`MIN_SPAN_BYTES`]. A
/// smaller tail joins the previous span. Without pages, or with few bytes, the row group is one span.
pub fn cut(layout: &RowGroupLayout<'_>) -> Vec<u32> {
    let mut starts = vec![0];
    let leaf_bytes = layout.pages.iter().fold(0_u64, |sum, page| sum.saturating_add(page.bytes));
    if leaf_bytes == 0 || layout.bytes < 2 * MIN_SPAN_BYTES {
        return starts;
    }
    // A page represents its rows in all leaves, so pages are scaled to `layout.bytes` in total. Sizes of pages are
    // multiplied by that, and sizes of spans by `leaf_bytes`, so nothing is rounded.
    let page_weight = |page: &Page| u128::from(page.bytes) * u128::from(layout.bytes);
    let min = u128::from(MIN_SPAN_BYTES) * u128::from(leaf_bytes);
    let target = u128::from(target_bytes(layout)) * u128::from(leaf_bytes);

    let mut held = 0_u128;
    let mut start = 0;
    for page in layout.pages {
        let with_page = held.saturating_add(page_weight(page));
        let overshoots_more = with_page.saturating_sub(target) > target.saturating_sub(held);
        // Pages without rows, or out of order in a broken index, are no valid cut points.
        let is_boundary = page.first_row > start && page.first_row < layout.num_rows;
        if is_boundary && held >= min && overshoots_more {
            start = page.first_row;
            starts.push(start);
            held = page_weight(page);
        } else {
            held = with_page;
        }
    }
    if held < min && starts.len() > 1 {
        starts.pop();
    }
    starts
}

/// Returns the target size of a span.
fn target_bytes(layout: &RowGroupLayout<'_>) -> u64 {
    let part = layout.bytes / SPANS_PER_ROW_GROUP;
    let dictionaries = layout.dictionary_bytes.saturating_mul(MIN_SPAN_DICTIONARIES);
    part.max(dictionaries).max(MIN_SPAN_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(rows_per_page: u32, bytes: &[u64]) -> Vec<Page> {
        (0..).step_by(rows_per_page as usize).zip(bytes).map(|(first_row, &bytes)| Page { first_row, bytes }).collect()
    }

    fn cut_plain(num_rows: u32, bytes: u64, pages: &[Page]) -> Vec<u32> {
        cut(&RowGroupLayout { num_rows, bytes, dictionary_bytes: 0, pages })
    }

    #[test]
    fn a_row_group_with_pages_is_cut_into_25_spans() {
        let starts = cut_plain(1000, 8_000_000, &pages(40, &[320_000; 25]));
        assert_eq!(starts, (0..1000).step_by(40).collect::<Vec<_>>());
    }

    #[test]
    fn a_row_group_without_pages_is_one_span() {
        assert_eq!(cut_plain(1000, 8_000_000, &[]), [0]);
    }

    #[test]
    fn a_small_row_group_is_one_span() {
        assert_eq!(cut_plain(500, 500_000, &pages(10, &[10_000; 50])), [0]);
    }

    #[test]
    fn an_index_without_sizes_leaves_one_span() {
        assert_eq!(cut_plain(500, 1 << 30, &pages(10, &[0; 50])), [0]);
    }

    #[test]
    fn spans_are_four_times_the_dictionaries() {
        let pages = pages(10, &[100_000; 100]);
        let layout = RowGroupLayout { num_rows: 1000, bytes: 10_000_000, dictionary_bytes: 500_000, pages: &pages };
        assert_eq!(cut(&layout), [0, 200, 400, 600, 800]);
    }

    #[test]
    fn a_span_ends_at_the_boundary_nearest_the_target() {
        // The target is 1,008,000: two pages overshoot it by less than one falls short.
        assert_eq!(cut_plain(42, 25_200_000, &pages(1, &[600_000; 42]))[..4], [0, 2, 4, 6]);
        // Now by more.
        assert_eq!(cut_plain(36, 25_200_000, &pages(1, &[700_000; 36]))[..4], [0, 1, 2, 3]);
    }

    #[test]
    fn a_tail_below_the_minimum_joins_the_span_before_it() {
        assert_eq!(cut_plain(3, 700_000, &pages(1, &[300_000, 300_000, 100_000])), [0, 1]);
    }

    #[test]
    fn the_heaviest_leaf_stands_for_all() {
        let all = cut_plain(300, 9_000_000, &pages(10, &[300_000; 30]));
        let third = cut_plain(300, 9_000_000, &pages(10, &[100_000; 30]));
        assert_eq!(all, third);
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let pages = pages(1, &[u64::MAX; 9]);
        let layout = RowGroupLayout { num_rows: 9, bytes: u64::MAX, dictionary_bytes: u64::MAX, pages: &pages };
        assert_eq!(cut(&layout)[0], 0);
    }

    proptest! {
        #[test]
        fn spans_begin_at_pages_and_are_neither_small_nor_large(
            sizes in prop::collection::vec((1_u32..60, 0_u64..2_000_000), 1..80),
            others in 0_u64..20_000_000,
            dictionary_bytes in prop_oneof![Just(0), 0_u64..1_000_000],
        ) {
            let mut num_rows = 0;
            let mut pages = Vec::new();
            for &(rows, bytes) in &sizes {
                pages.push(Page { first_row: num_rows, bytes });
                num_rows += rows;
            }
            let leaf: u64 = sizes.iter().map(|size| size.1).sum();
            let layout = RowGroupLayout { num_rows, bytes: leaf + others, dictionary_bytes, pages: &pages };
            let starts = cut(&layout);
            prop_assert_eq!(starts[0], 0);
            prop_assert!(starts.is_sorted_by(|a, b| a < b));
            prop_assert!(starts.iter().all(|start| pages.iter().any(|page| page.first_row == *start)));
            let weigh = |pages: &[Page]| {
                let bytes: u64 = pages.iter().map(|page| page.bytes).sum();
                u128::from(bytes) * u128::from(leaf + others) / u128::from(leaf.max(1))
            };
            let target = u128::from(target_bytes(&layout));
            for (at, &start) in starts.iter().enumerate().filter(|_| starts.len() > 1) {
                let end = starts.get(at + 1).copied().unwrap_or(num_rows);
                let of_span: Vec<Page> =
                    pages.iter().filter(|page| (start..end).contains(&page.first_row)).copied().collect();
                prop_assert!(weigh(&of_span) >= u128::from(MIN_SPAN_BYTES));
                // Beyond the target there is at most the page that reached it, and a tail.
                let heaviest = of_span.iter().map(|page| weigh(&[*page])).max().unwrap_or(0);
                prop_assert!(weigh(&of_span) <= target + heaviest + u128::from(2 * MIN_SPAN_BYTES));
            }
        }
    }
}
