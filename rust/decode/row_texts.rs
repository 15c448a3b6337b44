//! Bounds the texts of one row if few bytes say that they repeat: in lists, of which a row cannot be split.

use super::hybrid::{Hybrid, Run, unpack};

/// The total size of each row's texts.
#[derive(Debug, Default)]
pub(super) struct RowTexts {
    row_bytes: u64,
    most_bytes: u64,
}

impl RowTexts {
    /// Adds a page of repetition and definition `levels`, whose maxima are `max`; `next_text` returns the sizes of
    /// texts in sequence. `None` if these levels or texts are invalid.
    pub(super) fn add(
        &mut self,
        num_levels: usize,
        levels: [&[u8]; 2],
        max: [i16; 2],
        mut next_text: impl FnMut() -> Option<u64>,
    ) -> Option<()> {
        let [mut reps, mut defs] = [0, 1].map(|kind| Levels::new(levels[kind], max[kind]));
        for _ in 0..num_levels {
            if reps.next()? == 0 {
                self.row_bytes = 0;
            }
            if defs.next()? == u32::try_from(max[1]).ok()? {
                self.add_text(next_text()?);
            }
        }
        Some(())
    }

    /// Adds a text to the current row.
    pub(super) fn add_text(&mut self, num_bytes: u64) {
        self.row_bytes = self.row_bytes.saturating_add(num_bytes);
        self.most_bytes = self.most_bytes.max(self.row_bytes);
    }

    /// Returns the bytes of the largest row.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }
}

/// Levels in sequence; all zero if the maximum is.
struct Levels<'a>(Option<Numbers<'a>>);

impl<'a> Levels<'a> {
    fn new(bytes: &'a [u8], max: i16) -> Self {
        let width = (i16::BITS - max.leading_zeros()) as usize;
        Self((max > 0).then(|| Numbers::new(bytes, width)).flatten())
    }

    fn next(&mut self) -> Option<u32> {
        self.0.as_mut().map_or(Some(0), Iterator::next)
    }
}

/// Numbers stored as runs and packed bits, in sequence; they end where they are malformed.
pub(super) struct Numbers<'a> {
    bytes: &'a [u8],
    hybrid: Hybrid,
    block: [u32; 64],
    left: std::ops::Range<usize>,
}

impl<'a> Numbers<'a> {
    pub(super) fn new(bytes: &'a [u8], width: usize) -> Option<Self> {
        Some(Self { bytes, hybrid: Hybrid::new(0, width).ok()?, block: [0; 64], left: 0..0 })
    }
}

impl Iterator for Numbers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.left.is_empty() {
            let len = match self.hybrid.next(self.bytes, self.block.len()).ok()? {
                Run::Same { value, len } => {
                    self.block[..len].fill(value);
                    len
                }
                Run::Packed { start, first, len } => {
                    unpack(&self.bytes[start..], self.hybrid.width(), first, &mut self.block[..len]);
                    len
                }
            };
            self.left = 0..len;
        }
        self.left.next().map(|place| self.block[place])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes numbers as runs of one.
    fn runs(numbers: impl Iterator<Item = u8>) -> Vec<u8> {
        numbers.flat_map(|number| [2, number]).collect()
    }

    proptest! {
        #[test]
        fn the_largest_row_is_found_wherever_pages_end(
            rows in prop::collection::vec(prop::collection::vec(prop::option::of(0_u64..1000), 1..6), 1..20),
            page_len in 1_usize..9,
        ) {
            let all: Vec<_> = rows.iter().flat_map(|row| row.iter().enumerate()).collect();
            let mut texts = RowTexts::default();
            for page in all.chunks(page_len) {
                let reps = runs(page.iter().map(|(place, _)| u8::from(*place > 0)));
                let defs = runs(page.iter().map(|(_, text)| if text.is_some() { 3 } else { 1 }));
                let mut lengths = page.iter().filter_map(|(_, text)| **text);
                texts.add(page.len(), [&reps, &defs], [1, 3], || lengths.next()).unwrap();
                prop_assert_eq!(lengths.next(), None);
            }
            let most = rows.iter().map(|row| row.iter().flatten().sum::<u64>()).max().unwrap();
            prop_assert_eq!(texts.most_bytes(), most);
        }

        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..100), num_levels in 0_usize..300) {
            let mut texts = RowTexts::default();
            let _ = texts.add(num_levels, [&noise, &noise], [2, 5], || Some(u64::MAX));
        }
    }

    #[test]
    fn numbers_come_one_by_one() {
        // Three sevens, and then eight numbers of three bits.
        let bytes = [6, 7, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        let numbers: Vec<_> = Numbers::new(&bytes, 3).unwrap().collect();
        assert_eq!(numbers, [7, 7, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
