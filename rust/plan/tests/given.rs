//! Explicitly given orders.

use proptest::prelude::*;

use super::{EpochPlan, layouts, resolve_row, spans};

/// Returns every kept row as (span, kept row of the span), in dataset order.
fn all_rows(kept: &[u32]) -> Vec<(u32, u32)> {
    (0..).zip(kept).flat_map(|(span, &kept)| (0..kept).map(move |row| (span, row))).collect()
}

/// Returns some of the kept rows in some order.
fn given() -> impl Strategy<Value = (Vec<u32>, Vec<u64>)> {
    layouts().prop_flat_map(|kept| {
        let numbers: Vec<u64> = (0..u64::from(kept.iter().sum::<u32>())).collect();
        let len = numbers.len();
        (Just(kept), Just(numbers).prop_shuffle(), 0..=len).prop_map(|(kept, mut numbers, len)| {
            numbers.truncate(len);
            (kept, numbers)
        })
    })
}

proptest! {
    #[test]
    fn position_p_is_the_row_that_was_given_there((kept, rows) in given(), step in 1_u64..5, from in 0_u64..50) {
        let plan = EpochPlan::in_order(spans(&kept), &rows).unwrap();
        prop_assert_eq!(plan.num_rows(), rows.len() as u64);
        let all = all_rows(&kept);
        let (mut got, mut finished) = (Vec::new(), Vec::new());
        plan.walk(from).visit(from, step, usize::MAX, &mut got, &mut finished);
        let wanted = rows.iter().skip(from as usize).step_by(step as usize).map(|&row| all[row as usize]);
        let wanted: Vec<_> = wanted.collect();
        prop_assert_eq!(got.iter().map(|&row| resolve_row(&plan, row)).collect::<Vec<_>>(), wanted);
        let mut open: Vec<_> = got.iter().map(|row| row.piece).filter(|piece| !finished.contains(piece)).collect();
        open.dedup();
        prop_assert!(step > 1 || open.is_empty(), "{:?} are never finished", open);
        finished.sort_unstable();
        prop_assert!(finished.windows(2).all(|pair| pair[0] < pair[1]), "a piece is finished once");
        for (position, &row) in rows.iter().enumerate().take(20) {
            let found = plan.locate(position as u64).map(|found| resolve_row(&plan, found));
            prop_assert_eq!(found, Some(all[row as usize]));
        }
        prop_assert_eq!(plan.locate(rows.len() as u64), None);
    }
}

#[test]
fn a_row_that_is_not_there_or_was_named_before_is_refused() {
    let order = |rows: &[u64]| EpochPlan::in_order(spans(&[2, 3]), rows).map(|plan| plan.num_rows());
    assert_eq!(order(&[4, 0]), Ok(2));
    assert_eq!(order(&[0, 5]), Err("position 1 names row 5, expected less than 5".into()));
    assert_eq!(order(&[3, 1, 3]), Err("position 2 names row 3 again; expected every row at most once".into()));
    assert_eq!(EpochPlan::in_order(spans(&[]), &[]).map(|plan| plan.num_rows()), Ok(0));
    assert!(EpochPlan::in_order(spans(&[]), &[u64::MAX]).is_err());
}
