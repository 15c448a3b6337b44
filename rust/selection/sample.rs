//! Samples rows of a selection at random: exactly as many as requested, every subset equally likely.
//!
//! Rows are drawn by Robert Floyd's algorithm, at most half of them (else the ones to leave out), into one bit for each
//! kept row. The result depends only on the seed, the number of kept rows and the number requested.

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};

use crate::error::{Error, Result};
use crate::plan::seed::{Draws, Key, Purpose};

/// How far the sum of a split's fractions may be from 1: the error of adding decimal fractions.
const TOLERANCE: f64 = 1e-6;

/// Marks `wanted` of `num_rows` numbers.
pub(super) fn sample(num_rows: u64, wanted: u64, seed: u64) -> Result<BooleanBuffer> {
    if wanted > num_rows {
        let reason = format!("{wanted} rows are wanted, but the selection has {num_rows}");
        return Err(Error::Setting { name: "n", reason });
    }
    Ok(draw(num_rows, wanted, &mut Key::new(seed, 0, Purpose::Sample).draws(0)))
}

/// Distributes `num_rows` numbers according to `fractions`, each to one part; returns each part's numbers, as marks
/// among those left by the previous parts.
pub(super) fn split(num_rows: u64, fractions: &[f64], seed: u64) -> Result<Vec<BooleanBuffer>> {
    let sizes = sizes(num_rows, fractions)?;
    let key = Key::new(seed, 0, Purpose::Split);
    let mut left = num_rows;
    let marks = sizes.iter().zip(0..).map(|(&size, part)| {
        let marks = draw(left, size, &mut key.draws(part));
        left -= size;
        marks
    });
    Ok(marks.collect())
}

/// Returns the number of rows of each part of a split: its share rounded down, plus one for the largest remainders,
/// until all are distributed.
fn sizes(num_rows: u64, fractions: &[f64]) -> Result<Vec<u64>> {
    let refuse = |reason: String| Err(Error::Setting { name: "fractions", reason });
    if let Some(fraction) = fractions.iter().find(|fraction| !(0.0..=1.0).contains(*fraction)) {
        return refuse(format!("expected numbers from 0 to 1, got `{fraction}`"));
    }
    let sum: f64 = fractions.iter().sum();
    if (sum - 1.0).abs() > TOLERANCE {
        return refuse(format!("expected fractions that add up to 1, got {fractions:?}, which add up to {sum}"));
    }
    let shares: Vec<f64> = fractions.iter().map(|fraction| fraction / sum * num_rows as f64).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cut off on purpose; not negative")]
    let mut sizes: Vec<u64> = shares.iter().map(|share| *share as u64).collect();
    let mut by_remainder: Vec<usize> = (0..sizes.len()).collect();
    by_remainder.sort_by(|&a, &b| shares[b].fract().total_cmp(&shares[a].fract()));
    // Fewer than there are parts, except for rounding errors from 2⁵³ rows on.
    let mut missing = i128::from(num_rows) - sizes.iter().map(|size| i128::from(*size)).sum::<i128>();
    for part in by_remainder.into_iter().cycle() {
        match missing {
            0 => break,
            1.. => {
                sizes[part] += 1;
                missing -= 1;
            }
            _ => {
                missing += i128::from(sizes[part].min(1));
                sizes[part] = sizes[part].saturating_sub(1);
            }
        }
    }
    Ok(sizes)
}

/// Marks `wanted` of `num_rows` numbers, at most all of them.
fn draw(num_rows: u64, wanted: u64, draws: &mut Draws) -> BooleanBuffer {
    let is_inverted = wanted > num_rows / 2;
    let num_drawn = if is_inverted { num_rows - wanted } else { wanted };
    let len = usize::try_from(num_rows).unwrap_or(usize::MAX);
    let mut marks = BooleanBufferBuilder::new(len);
    marks.append_n(len, false);
    for last in num_rows - num_drawn..num_rows {
        let drawn = usize::try_from(draws.next_below(last + 1)).unwrap_or(usize::MAX);
        let free = if marks.get_bit(drawn) { usize::try_from(last).unwrap_or(usize::MAX) } else { drawn };
        marks.set_bit(free, true);
    }
    let marks = marks.finish();
    if is_inverted { !&marks } else { marks }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marked(marks: &BooleanBuffer) -> Vec<usize> {
        marks.set_indices().collect()
    }

    #[test]
    fn samples_are_the_same_in_every_release() {
        assert_eq!(marked(&sample(20, 5, 7).unwrap()), GOLDEN_SAMPLE);
        let parts: Vec<_> = split(10, &[0.5, 0.3, 0.2], 7).unwrap().iter().map(marked).collect();
        assert_eq!(parts, GOLDEN_SPLIT);
    }

    /// Also computed in plain Python, with the generator of `tests/golden/order.py`.
    const GOLDEN_SAMPLE: [usize; 5] = [5, 7, 9, 11, 17];
    const GOLDEN_SPLIT: [&[usize]; 3] = [&[0, 1, 2, 7, 9], &[1, 2, 4], &[0, 1]];

    #[test]
    fn every_row_and_every_pair_is_equally_likely() {
        let mut singles = [0_u32; 8];
        let mut pairs = [[0_u32; 8]; 8];
        for seed in 0..20_000 {
            let rows = marked(&sample(8, 3, seed).unwrap());
            rows.iter().for_each(|&row| singles[row] += 1);
            for (at, &low) in rows.iter().enumerate() {
                rows[at + 1..].iter().for_each(|&high| pairs[low][high] += 1);
            }
        }
        // 3 of 8 rows, 3 of 28 pairs: five standard deviations around them.
        assert!(singles.iter().all(|count| count.abs_diff(7500) < 343), "{singles:?}");
        let pairs: Vec<u32> = pairs.iter().flatten().copied().filter(|count| *count > 0).collect();
        assert_eq!(pairs.len(), 28);
        assert!(pairs.iter().all(|count| count.abs_diff(2143) < 219), "{pairs:?}");
    }

    #[test]
    fn sizes_follow_the_largest_remainder() {
        assert_eq!(sizes(10, &[0.9, 0.1]).unwrap(), [9, 1]);
        assert_eq!(sizes(11, &[0.5, 0.3, 0.2]).unwrap(), [6, 3, 2]);
        assert_eq!(sizes(2, &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]).unwrap(), [1, 1, 0]);
        assert_eq!(sizes(7, &[1.0]).unwrap(), [7]);
        assert_eq!(sizes(0, &[0.5, 0.5]).unwrap(), [0, 0]);
        let large = (1 << 60) + 1;
        assert_eq!(sizes(large, &[0.7, 0.2, 0.1]).unwrap().iter().sum::<u64>(), large);
    }

    #[test]
    fn fractions_that_are_none_are_refused() {
        for (fractions, says) in [
            (&[0.5, 0.4][..], "add up to 1"),
            (&[1.5, -0.5], "from 0 to 1, got `1.5`"),
            (&[f64::NAN], "got `NaN`"),
            (&[], "add up to 1"),
        ] {
            let refused = split(10, fractions, 0);
            assert!(matches!(&refused, Err(Error::Setting { name: "fractions", reason }) if reason.contains(says)));
        }
        assert!(matches!(sample(3, 4, 0), Err(Error::Setting { name: "n", .. })));
    }

    proptest! {
        #[test]
        fn a_sample_has_exactly_as_many_rows_as_asked(num_rows in 0_u64..300, wanted in 0_u64..300, seed in any::<u64>()) {
            let wanted = wanted.min(num_rows);
            let marks = sample(num_rows, wanted, seed).unwrap();
            prop_assert_eq!((marks.len() as u64, marks.count_set_bits() as u64), (num_rows, wanted));
        }

        #[test]
        fn a_split_deals_every_row_out_once(num_rows in 0_u64..300, weights in prop::collection::vec(1_u32..9, 1..5)) {
            let sum = f64::from(weights.iter().sum::<u32>());
            let fractions: Vec<f64> = weights.iter().map(|weight| f64::from(*weight) / sum).collect();
            let mut left = num_rows;
            for (marks, fraction) in split(num_rows, &fractions, 5).unwrap().iter().zip(&fractions) {
                prop_assert_eq!(marks.len() as u64, left);
                let size = marks.count_set_bits() as u64;
                prop_assert!((size as f64 - fraction * num_rows as f64).abs() < 1.0);
                left -= size;
            }
            prop_assert_eq!(left, 0);
        }
    }
}
