//! Tests selections against sets of row numbers, at sizes that no dataset here has, and as tampered bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_buffer::{BooleanBuffer, Buffer};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::super::algebra::SetOperation;
use super::super::{RowSet, Selection};
use super::{Shard, Subset, starts_of};
use crate::error::Error;
use crate::plan::seed::{Key, Purpose};

fn subset(sets: Vec<RowSet>, sizes: &[u32]) -> Subset {
    let query = Some(vec!["a > 1".to_owned()]);
    Subset::try_new("5f3a".into(), sizes.into(), query, None, Selection::of_sizes(sets, sizes)).unwrap()
}

/// Returns the kept rows, numbered over all row groups.
fn rows(subset: &Subset) -> BTreeSet<u64> {
    let mut first = 0;
    let mut rows = BTreeSet::new();
    for (set, &size) in subset.selection().sets().iter().zip(subset.sizes()) {
        rows.extend(set.runs(0..size).flatten().map(|row| first + u64::from(row)));
        first += u64::from(size);
    }
    rows
}

/// Returns bits in long or short runs, with some row groups empty and some full.
fn bits(size: u32) -> impl Strategy<Value = RowSet> {
    let runs = |longest| prop::collection::vec((any::<bool>(), 1_usize..longest), 1..20);
    let mask = prop_oneof![runs(3), runs(80)].prop_map(move |runs| {
        let bits = runs.iter().cycle().flat_map(|&(keep, len)| std::iter::repeat_n(keep, len));
        RowSet::from_mask(bits.take(size as usize).collect::<BooleanBuffer>())
    });
    prop_oneof![1 => Just(RowSet::None), 1 => Just(RowSet::All), 4 => mask]
}

fn two() -> impl Strategy<Value = (Subset, Subset)> {
    prop::collection::vec(1_u32..300, 0..7).prop_flat_map(|sizes| {
        let sets = || sizes.iter().map(|&size| bits(size)).collect::<Vec<_>>();
        (sets(), sets()).prop_map(move |(left, right)| (subset(left, &sizes), subset(right, &sizes)))
    })
}

proptest! {
    #[test]
    fn selections_combine_as_sets_of_row_numbers_do((left, right) in two()) {
        let (a, b) = (rows(&left), rows(&right));
        for (operation, expected) in [
            (SetOperation::And, &a & &b),
            (SetOperation::Or, &a | &b),
            (SetOperation::Minus, &a - &b),
            (SetOperation::Xor, &a ^ &b),
        ] {
            let combined = left.combine(&right, operation).unwrap();
            prop_assert_eq!(combined.num_rows(), expected.len() as u64);
            prop_assert_eq!(rows(&combined), expected, "{:?}", operation);
        }
        prop_assert_eq!(left == right, a == b);
        let both = left.combine(&right, SetOperation::And).unwrap();
        let either = left.combine(&right, SetOperation::Or).unwrap();
        let xor = left.combine(&right, SetOperation::Xor).unwrap();
        prop_assert_eq!(either.combine(&both, SetOperation::Minus).unwrap(), xor);
    }

    #[test]
    fn a_sample_is_of_the_selection_and_a_split_is_all_of_it((subset, _) in two(), seed in any::<u64>(), n in 0_u64..500) {
        let all = rows(&subset);
        let n = n.min(subset.num_rows());
        let sample = subset.sample(n, seed).unwrap();
        prop_assert_eq!(sample.num_rows(), n);
        prop_assert!(rows(&sample).is_subset(&all));
        prop_assert_eq!(&sample, &subset.sample(n, seed).unwrap());
        let parts = subset.split(&[0.5, 0.3, 0.2], seed).unwrap();
        let together: Vec<u64> = parts.iter().flat_map(rows).collect();
        prop_assert_eq!(together.len(), all.len());
        prop_assert_eq!(together.into_iter().collect::<BTreeSet<_>>(), all);
    }

    #[test]
    fn shards_become_whole_again_in_any_order((subset, _) in two(), num_shards in 1_u32..9, rotation in 0_usize..9) {
        let query = Some(vec!["a > 1".to_owned()]);
        let shard = |index| {
            let shard = Shard::try_new(index, num_shards).unwrap();
            Subset { query: query.clone(), ..subset.in_shard(shard) }
        };
        let mut shards: Vec<Subset> = (0..num_shards).map(shard).collect();
        prop_assert_eq!(shards.iter().map(Subset::num_rows).sum::<u64>(), subset.num_rows());
        shards.rotate_left(rotation % num_shards as usize);
        let merged = Subset::merge(&shards).unwrap();
        prop_assert_eq!(&merged, &subset);
        prop_assert_eq!(merged.query(), query.as_deref());
        let saved: Vec<Subset> = shards.iter().map(|shard| Subset::from_bytes(&shard.to_bytes(), "x").unwrap()).collect();
        prop_assert_eq!(saved, shards);
    }

    #[test]
    fn a_row_group_belongs_to_the_shard_in_whose_share_it_begins(
        sizes in prop::collection::vec(0_u32..300, 0..20), num_shards in 1_u32..9,
    ) {
        let (starts, num_rows) = starts_of(&sizes);
        for index in 0..num_shards {
            let mine = Shard::try_new(index, num_shards).unwrap().row_groups(&starts, num_rows);
            let is_mine = |place: &usize| starts[*place] * u64::from(num_shards) / num_rows.max(1) == u64::from(index);
            let expected: Vec<usize> = (0..sizes.len()).filter(is_mine).collect();
            prop_assert_eq!(mine.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn what_was_saved_comes_back((subset, _) in two()) {
        let bytes = subset.to_bytes();
        let back = Subset::from_bytes(&bytes, "x").unwrap();
        prop_assert_eq!((&back, back.query(), back.to_bytes()), (&subset, subset.query(), bytes));
    }

    #[test]
    fn bytes_that_were_changed_are_refused((subset, _) in two(), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut bytes = subset.to_bytes();
        for len in 0..bytes.len() {
            prop_assert!(Subset::from_bytes(&bytes[..len], "x").is_err(), "the first {len} bytes");
        }
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let refused = Subset::from_bytes(&bytes, "s3://b/x");
        let is_refused = matches!(&refused, Err(Error::NotASelection { url, .. }) if url == "s3://b/x");
        prop_assert!(is_refused, "bit {} of byte {}: {:?}", bit, at, refused);
    }

    /// Anybody who can compute a checksum can write anything.
    #[test]
    fn bytes_with_a_right_checksum_are_sound_or_refused(
        (subset, _) in two(), at in any::<prop::sample::Index>(), with in any::<u8>(), drop in any::<bool>(),
    ) {
        let mut bytes = subset.to_bytes();
        bytes.truncate(bytes.len() - 32);
        let at = at.index(bytes.len());
        if drop { drop_at(&mut bytes, at) } else { bytes[at] = with }
        bytes.extend(Sha256::digest(&bytes));
        if let Ok(read) = Subset::from_bytes(&bytes, "x") {
            let counted: u64 = rows(&read).len() as u64;
            prop_assert_eq!(read.num_rows(), counted);
            prop_assert!(read.num_rows() <= read.num_rows_total());
        }
    }
}

fn drop_at(bytes: &mut Vec<u8>, at: usize) {
    bytes.remove(at);
}

/// A thousand row groups of a million rows.
const SIZES: [u32; 1000] = [1_000_000; 1000];

#[test]
fn a_random_half_of_a_billion_rows_takes_less_than_150_mb() {
    let all = subset(vec![RowSet::All; SIZES.len()], &SIZES);
    let half = subset((0..1000).map(random_half).collect(), &SIZES);
    assert!(half.num_rows().abs_diff(500_000_000) < 1_000_000);
    assert!(half.memory_bytes() < 150_000_000, "{} bytes in memory", half.memory_bytes());
    let bytes = half.to_bytes();
    assert!(bytes.len() < 150_000_000, "{} bytes saved", bytes.len());
    assert_eq!(Subset::from_bytes(&bytes, "x").unwrap(), half);
    let rest = all.combine(&half, SetOperation::Minus).unwrap();
    assert_eq!(rest.num_rows(), 1_000_000_000 - half.num_rows());
    assert_eq!(rest.combine(&half, SetOperation::And).unwrap().num_rows(), 0);
    assert_eq!(rest.combine(&half, SetOperation::Or).unwrap(), all);
    assert_eq!(half.sample(1_000_000, 7).unwrap().num_rows(), 1_000_000);
}

/// Returns about half of a million rows, at random.
fn random_half(seed: u64) -> RowSet {
    let mut draws = Key::new(seed, 0, Purpose::All).draws(0);
    // 32 bits of each number.
    let words: Vec<u32> =
        (0..31_250).map(|_| u32::try_from(draws.next_bits() & u64::from(u32::MAX)).unwrap()).collect();
    RowSet::from_mask(BooleanBuffer::new(Buffer::from_vec(words), 0, 1_000_000))
}

#[test]
fn a_clustered_selection_of_a_billion_rows_takes_a_few_kilobytes() {
    // Every tenth row group, in some of them only between two rows.
    let sets = (0..1000).map(|index| match index % 30 {
        0 => RowSet::All,
        10 => RowSet::from_runs(std::iter::once(200_000..900_000).collect(), 1_000_000),
        20 => RowSet::from_runs(vec![0..5, 500_000..1_000_000], 1_000_000),
        _ => RowSet::None,
    });
    let clustered = subset(sets.collect(), &SIZES);
    let bytes = clustered.to_bytes();
    assert!(bytes.len() < 2_000, "{} bytes saved", bytes.len());
    assert!(clustered.memory_bytes() < 60_000, "{} bytes in memory", clustered.memory_bytes());
    assert_eq!(Subset::from_bytes(&bytes, "x").unwrap(), clustered);
}

#[test]
fn shards_that_do_not_make_a_whole_are_refused() {
    let sizes = [10; 8];
    let whole = subset(vec![RowSet::All; 8], &sizes);
    let shard = |index, num_shards| Subset {
        query: Some(vec!["a > 1".into()]),
        ..whole.in_shard(Shard::try_new(index, num_shards).unwrap())
    };
    let refusal = |shards: &[Subset]| match Subset::merge(shards) {
        Err(Error::SelectionMismatch { reason }) => reason,
        merged => panic!("expected a refusal, got {merged:?}"),
    };
    assert!(refusal(&[]).contains("no parts"));
    assert!(refusal(std::slice::from_ref(&whole)).contains("a whole selection, not a part"));
    assert!(refusal(&[shard(0, 3), shard(2, 3)]).contains("part 1 of 3 (from 0) is missing"));
    assert!(refusal(&[shard(0, 2), shard(0, 2)]).contains("part 0 of 2 (from 0) is there twice"));
    assert!(refusal(&[shard(0, 2), shard(1, 3)]).contains("expected parts of 2, got part 1 of 3"));
    assert!(refusal(&[shard(0, 2), whole.clone()]).contains("got a whole selection"));
    let others = Subset { query: Some(vec!["b > 1".into()]), ..shard(1, 2) };
    assert!(refusal(&[shard(0, 2), others]).contains("\"b > 1\""));
    let elsewhere = Subset { fingerprint: "77".into(), ..shard(1, 2) };
    assert!(refusal(&[shard(0, 2), elsewhere]).contains("`77`"));
    assert!(matches!(Shard::try_new(2, 2), Err(Error::Setting { name: "index", .. })));
}

#[test]
fn a_shard_does_not_pass_for_the_whole() {
    let whole = subset(vec![RowSet::All; 4], &[10; 4]);
    let shard = whole.in_shard(Shard::try_new(1, 2).unwrap());
    for refused in [
        shard.combine(&whole, SetOperation::Or).map(drop),
        whole.combine(&shard, SetOperation::Or).map(drop),
        shard.sample(1, 0).map(drop),
        shard.split(&[1.0], 0).map(drop),
    ] {
        let is_named = matches!(&refused, Err(Error::SelectionMismatch { reason }) if reason.contains("part 1 of 2"));
        assert!(is_named, "{refused:?}");
    }
    // Rows of another shard, saved as this one's.
    let forged = Subset { shard: Some(Shard { index: 0, num_shards: 2 }), ..shard };
    let refused = Subset::from_bytes(&forged.to_bytes(), "x");
    assert!(matches!(&refused, Err(Error::NotASelection { reason, .. }) if reason.contains("another part")));
}

#[test]
fn selections_of_different_snapshots_do_not_combine() {
    let one = subset(vec![RowSet::All; 2], &[10; 2]);
    let other = Subset { fingerprint: "77".into(), ..one.clone() };
    let refused = one.combine(&other, SetOperation::And);
    let names_both = |reason: &str| reason.contains("`5f3a`") && reason.contains("`77`");
    assert!(matches!(&refused, Err(Error::SelectionMismatch { reason }) if names_both(reason)), "{refused:?}");
    assert_ne!(one, other);
}

#[test]
fn another_version_is_named() {
    let mut bytes = subset(vec![RowSet::All], &[10]).to_bytes();
    bytes[8] = 2;
    let refused = Subset::from_bytes(&bytes, "x");
    assert!(matches!(&refused, Err(Error::NotASelection { reason, .. }) if reason.contains("got `2`")), "{refused:?}");
    let refused = Subset::from_bytes(b"PAR1 and more", "x");
    assert!(matches!(&refused, Err(Error::NotASelection { reason, .. }) if reason.contains("fbselect")), "{refused:?}");
}

#[test]
fn a_claim_of_many_row_groups_takes_no_memory() {
    let header = br#"{"fingerprint":"","query":null,"part":null,"num_row_groups":18446744073709551615,"num_rows":0,"made_by":""}"#;
    let mut bytes = [&b"fbselect\x01\0\0\0"[..], &(header.len() as u64).to_le_bytes(), header].concat();
    bytes.extend([0xff; 9]);
    bytes.extend(Sha256::digest(&bytes));
    assert!(matches!(Subset::from_bytes(&bytes, "x"), Err(Error::NotASelection { .. })));
}

#[test]
fn the_digest_is_that_of_the_rows() {
    let one = subset(vec![RowSet::All, RowSet::None], &[10; 2]);
    let other = subset(vec![RowSet::None, RowSet::All], &[10; 2]);
    assert_eq!(one.digest(), Subset { query: None, ..one.clone() }.digest());
    assert_ne!(one.digest(), other.digest());
    assert_eq!(one.digest().len(), 32);
    assert!(Arc::strong_count(one.selection()) == 1);
}
