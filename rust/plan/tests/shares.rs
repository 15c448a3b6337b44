//! Ranks, batches, workers and remainders.

use proptest::prelude::*;

use super::super::*;
use super::model::{self, Asked};
use super::{layouts, orders, resolve_row, spans};

const REMAINDERS: [Remainder; 3] = [Remainder::Drop, Remainder::Pad, Remainder::Keep];

fn share(num_rows: u64, asked: Asked) -> Share {
    Share::try_new(Share {
        rank: asked.rank as u32,
        world_size: asked.world as u32,
        batch_rows: asked.batch as u32,
        from: asked.cursor as u64,
        num_rows,
        remainder: asked.remainder,
        drop_last: asked.drop_last,
        worker: 0,
        num_workers: 1,
    })
    .unwrap()
}

/// Returns the positions of a batch, padding last.
fn positions(slice: BatchSlice) -> Vec<u64> {
    let real = (0..slice.len as u64).map(|k| slice.first + k * slice.step);
    real.chain(slice.padding).collect()
}

/// Returns a rank's batches as its DataLoader delivers them, with the given number of workers.
fn deliver(share: Share, num_workers: u32) -> Vec<(u64, Vec<u64>)> {
    let worker = |worker| {
        let share = Share::try_new(Share { worker, num_workers, ..share }).unwrap();
        share.worker_batches().map(|t| (t, positions(share.batch(t).unwrap()))).collect()
    };
    model::loader((0..num_workers).map(worker).collect())
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop::sample::select(&REMAINDERS[..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_rank_gets_the_models_batches(
        num_rows in 0_u64..200, at in any::<prop::sample::Index>(), world in 1_usize..10, rank in 0_usize..10, batch in 1_usize..12,
        remainder in remainders(), drop_last in any::<bool>(), workers in 1_u32..5,
    ) {
        let cursor = at.index(num_rows as usize + 1);
        let asked = Asked { cursor, rank: rank % world, world, batch, remainder, drop_last };
        let share = share(num_rows, asked);
        let all: Vec<u64> = (0..num_rows).collect();
        let expected = model::rank_batches(&all, asked);
        prop_assert_eq!(share.num_batches(), expected.len() as u64);
        prop_assert_eq!(share.batch(share.num_batches()), None);
        let delivered = deliver(share, workers);
        prop_assert!(delivered.iter().map(|batch| batch.0).eq(0..share.num_batches()), "workers take turns");
        prop_assert_eq!(delivered.into_iter().map(|batch| batch.1).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_dropped_is_counted(
        num_rows in 0_u64..200, at in any::<prop::sample::Index>(), world in 1_usize..10, batch in 1_usize..12,
        remainder in remainders(), drop_last in any::<bool>(),
    ) {
        let cursor = at.index(num_rows as usize + 1);
        let shares: Vec<Share> =
            (0..world).map(|rank| share(num_rows, Asked { cursor, rank, world, batch, remainder, drop_last })).collect();
        let slices = || shares.iter().flat_map(|share| (0..share.num_batches()).filter_map(|t| share.batch(t)));
        let delivered: u64 = slices().map(|slice| slice.len as u64).sum();
        let end = shares[0].end();
        for share in &shares {
            prop_assert_eq!(share.end(), end);
            prop_assert_eq!(share.num_dropped(), num_rows - cursor as u64 - delivered);
        }
        // The end is tight: nothing is delivered beyond it, and everything before it is, except with `keep` and
        // `drop_last` together, which leave ranks with different numbers of batches.
        let furthest = slices().filter(|slice| slice.len > 0).map(|slice| slice.first + (slice.len as u64 - 1) * slice.step).max();
        prop_assert!(furthest.is_none_or(|furthest| furthest < end));
        prop_assert!(slices().all(|slice| slice.next <= end && slice.next > cursor as u64));
        if remainder != Remainder::Keep || !drop_last {
            prop_assert_eq!(delivered, end - cursor as u64);
            for share in &shares {
                if let Some(last) = share.num_batches().checked_sub(1) {
                    let cursor = share.batch(last).unwrap().next;
                    prop_assert!(cursor == end || remainder == Remainder::Keep);
                }
            }
        }
        if remainder != Remainder::Keep {
            prop_assert!(shares.iter().all(|share| share.num_batches() == shares[0].num_batches()), "ranks are equal");
        }
    }

    #[test]
    fn a_chain_of_resumes_delivers_every_row_once_in_the_one_order(
        kept in layouts(), order in orders(),
        runs in prop::collection::vec((1_usize..8, 1_usize..30, 1_u32..5, 1_usize..12), 1..9),
    ) {
        let plan = EpochPlan::new(spans(&kept), order, 0);
        let expected = model::epoch(&kept, order, 0);
        let (mut cursor, mut seen) = (0, Vec::new());
        // The last run continues to the end.
        let last = (3, 17, 2, usize::MAX);
        for (world, batch, num_workers, steps) in runs.into_iter().chain([last]) {
            let mut ranks = Vec::new();
            for rank in 0..world {
                let asked = Asked { cursor, rank, world, batch, remainder: Remainder::Keep, drop_last: false };
                let share = share(plan.num_rows(), asked);
                let worker = |worker| {
                    let share = Share { worker, num_workers, ..share };
                    let mut walk = plan.walk(share.from);
                    let batches = share.worker_batches().take(steps).map(|t| {
                        let slice = share.batch(t).unwrap();
                        let mut rows = Vec::new();
                        walk.visit(slice.first, slice.step, slice.len, &mut rows, &mut Vec::new());
                        let rows: Vec<_> = rows.into_iter().map(|row| resolve_row(&plan, row)).collect();
                        (slice.next, rows)
                    });
                    batches.collect()
                };
                ranks.push(model::loader((0..num_workers).map(worker).collect()));
            }
            for step in 0..steps.min(ranks[0].len()) {
                let next = ranks[0][step].0;
                let batches = ranks.iter().filter_map(|rank| rank.get(step)).map(|batch| batch.1.clone()).collect();
                seen.extend(model::loader(batches));
                cursor = next as usize;
                prop_assert_eq!(&seen[..], &expected[..cursor]);
            }
        }
        prop_assert_eq!(seen, expected);
    }
}

#[test]
fn a_share_that_cannot_be_is_refused_by_name() {
    let asked = Asked { cursor: 0, rank: 0, world: 2, batch: 4, remainder: Remainder::Drop, drop_last: false };
    let good = share(10, asked);
    for (bad, name, reason) in [
        (Share { batch_rows: 0, ..good }, "batch_size", "expected at least 1, got `0`"),
        (Share { rank: 2, ..good }, "rank", "expected less than the world size `2`, got `2`"),
        (Share { world_size: 0, ..good }, "rank", "expected less than the world size `0`, got `0`"),
        (Share { worker: 1, ..good }, "worker", "expected less than the number of workers `1`, got `1`"),
        (Share { from: 11, ..good }, "position", "expected at most the number of rows `10`, got `11`"),
    ] {
        assert_eq!(Share::try_new(bad), Err(ShareError { name, reason: reason.to_owned() }));
    }
}

#[test]
fn the_global_batch_is_the_same_sequence_for_every_world() {
    let global = |world: usize| -> Vec<Vec<u64>> {
        let batch = 24 / world;
        let ranks: Vec<Vec<Vec<u64>>> = (0..world)
            .map(|rank| {
                let asked = Asked { cursor: 7, rank, world, batch, remainder: Remainder::Drop, drop_last: true };
                deliver(share(1000, asked), 1).into_iter().map(|batch| batch.1).collect()
            })
            .collect();
        (0..ranks[0].len()).map(|t| model::loader(ranks.iter().map(|rank| rank[t].clone()).collect())).collect()
    };
    for world in [2, 3, 4, 6, 8, 12, 24] {
        assert_eq!(global(world), global(1), "{world} ranks");
    }
}
