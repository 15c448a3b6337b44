//! [`Subset`]: a selection on its own, to keep, combine and use elsewhere.
//!
//! It knows which snapshot its rows belong to, so that it cannot be applied to another one; and, if a selection is
//! evaluated in shards, which shard it is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_buffer::BooleanBuffer;
use sha2::{Digest, Sha256};

use super::algebra::SetOperation;
use super::codec::put_sets;
use super::{Selection, sample, saved};
use crate::error::{Error, Result};
use crate::hex::hex;
use crate::rows::RowSet;
use crate::snapshot::Snapshot;

/// Bytes of a hash that identifies a selection.
const DIGEST_BYTES: usize = 16;

/// One of the shards in which a selection is evaluated: consecutive row groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The shard's number, from 0.
    pub index: u32,
    /// The number of shards.
    pub num_shards: u32,
}

impl Shard {
    /// Checks a shard.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for a shard out of range.
    pub fn try_new(index: u32, num_shards: u32) -> Result<Self> {
        if index < num_shards {
            return Ok(Self { index, num_shards });
        }
        let reason = format!(
            "expected less than the number of shards `{num_shards}`, got `{index}`; the index comes first: `shard(0, 4)`"
        );
        Err(Error::Setting { name: "index", reason })
    }

    /// Returns which of the row groups that begin at `starts`, of `num_rows` rows in total, belong to this shard: those
    /// that begin within its share of the rows.
    fn row_groups(self, starts: &[u64], num_rows: u64) -> Range<usize> {
        let share = |shard: u32| u128::from(shard) * u128::from(num_rows.max(1));
        let first_of = |shard: u32| {
            starts.partition_point(|&start| u128::from(start) * u128::from(self.num_shards) < share(shard))
        };
        first_of(self.index)..first_of(self.index + 1)
    }
}

/// Returns the number of rows before each row group, and of all.
fn starts_of(sizes: &[u32]) -> (Vec<u64>, u64) {
    let mut num_rows = 0;
    let starts = sizes.iter().map(|&rows| {
        let start = num_rows;
        num_rows += u64::from(rows);
        start
    });
    (starts.collect(), num_rows)
}

/// Selected rows of a snapshot. Clones share them.
#[derive(Debug, Clone)]
pub struct Subset {
    fingerprint: Arc<str>,
    /// Number of rows of each row group of the snapshot.
    sizes: Arc<[u32]>,
    query: Option<Vec<String>>,
    shard: Option<Shard>,
    selection: Arc<Selection>,
}

impl PartialEq for Subset {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
            && self.shard == other.shard
            && self.selection.sets() == other.selection.sets()
    }
}

impl Subset {
    /// Returns the rows of `selection`, which `query` selects from `snapshot`.
    pub(crate) fn of(
        snapshot: &Snapshot,
        selection: Arc<Selection>,
        query: Option<Vec<String>>,
        shard: Option<Shard>,
    ) -> Self {
        let sizes = snapshot.row_groups.iter().map(|row_group| row_group.num_rows).collect();
        Self { fingerprint: snapshot.fingerprint.as_str().into(), sizes, query, shard, selection }
    }

    /// Returns the rows of `selection`, of `snapshot`, as a whole, however they were chosen.
    pub fn of_rows(snapshot: &Snapshot, selection: Arc<Selection>) -> Self {
        Self::of(snapshot, selection, None, None)
    }

    /// Returns a subset, if a shard keeps no rows of other shards.
    pub(super) fn try_new(
        fingerprint: String,
        sizes: Arc<[u32]>,
        query: Option<Vec<String>>,
        shard: Option<Shard>,
        selection: Selection,
    ) -> Result<Self, String> {
        let (starts, num_rows) = starts_of(&sizes);
        let mine = shard.map_or(0..sizes.len(), |shard| shard.row_groups(&starts, num_rows));
        let is_others = |(index, set): (usize, &RowSet)| !mine.contains(&index) && *set != RowSet::None;
        if selection.sets().iter().enumerate().any(is_others) {
            return Err("it keeps rows that belong to another part".into());
        }
        Ok(Self { fingerprint: fingerprint.into(), sizes, query, shard, selection: Arc::new(selection) })
    }

    /// Returns the identity of the snapshot, in hex.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the filters that made it; `None` if it is not known to be what filters keep.
    pub fn query(&self) -> Option<&[String]> {
        self.query.as_deref()
    }

    /// Returns which shard it is, if it is one.
    pub fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// Returns the number of rows.
    pub fn num_rows(&self) -> u64 {
        self.selection.num_rows()
    }

    /// Returns the number of rows of the snapshot, kept or not.
    pub fn num_rows_total(&self) -> u64 {
        self.sizes.iter().map(|&rows| u64::from(rows)).sum()
    }

    /// Returns the memory that the rows take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let sets = self.selection.sets();
        size_of_val(sets) + sets.iter().map(RowSet::heap_bytes).sum::<usize>() + size_of_val(&*self.sizes)
    }

    /// Returns the kept rows of each row group.
    pub fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    pub(super) fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// Returns a hash of the rows, in hex, which identifies them in states.
    pub(crate) fn digest(&self) -> String {
        let mut bytes = Vec::new();
        put_sets(self.selection.sets(), &self.sizes, &mut bytes);
        hex(&Sha256::digest(&bytes)[..DIGEST_BYTES])
    }

    /// Returns the subset as bytes, checksummed, for [`Self::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        saved::to_bytes(self)
    }

    /// Restores the subset that [`Self::to_bytes`] wrote; `url` names the source of the bytes.
    ///
    /// # Errors
    ///
    /// [`Error::NotASelection`] for any other bytes.
    pub fn from_bytes(bytes: &[u8], url: &str) -> Result<Self> {
        saved::from_bytes(bytes).map_err(|reason| Error::NotASelection { url: url.to_owned(), reason })
    }

    /// Returns the rows that `operation` keeps of this and another subset of the same snapshot.
    ///
    /// Takes time and memory in proportion to the size of both.
    ///
    /// # Errors
    ///
    /// [`Error::SelectionMismatch`] for rows of another snapshot, and for shards.
    pub fn combine(&self, other: &Self, operation: SetOperation) -> Result<Self> {
        self.check_whole()?;
        other.check_whole()?;
        self.check_same(other)?;
        let pairs = self.selection.sets().iter().zip(other.selection.sets()).zip(&*self.sizes);
        let sets = pairs.map(|((left, right), &num_rows)| left.combine(right, operation, num_rows));
        Ok(self.with_sets(sets.collect()))
    }

    /// Returns `num_rows` of the rows, with every subset of that size equally likely. The same seed always gives the
    /// same rows.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for more rows than there are, [`Error::SelectionMismatch`] for a shard.
    pub fn sample(&self, num_rows: u64, seed: u64) -> Result<Self> {
        self.check_whole()?;
        Ok(self.choose(&sample::sample(self.num_rows(), num_rows, seed)?))
    }

    /// Splits all rows by `fractions` into disjoint parts. Sizes are exact, by largest remainder.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for fractions that do not add up to 1, [`Error::SelectionMismatch`] for a shard.
    pub fn split(&self, fractions: &[f64], seed: u64) -> Result<Vec<Self>> {
        self.check_whole()?;
        let mut left = self.clone();
        let mut parts = Vec::with_capacity(fractions.len());
        for marks in sample::split(self.num_rows(), fractions, seed)? {
            let part = left.choose(&marks);
            left = left.choose(&!&marks);
            parts.push(part);
        }
        Ok(parts)
    }

    /// Returns the whole of which `shards` are all shards, in any order.
    ///
    /// # Errors
    ///
    /// [`Error::SelectionMismatch`] if one is missing, repeated, or of another snapshot, query or number of shards.
    pub fn merge(shards: &[Self]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::SelectionMismatch { reason });
        let Some(first) = shards.first() else { return refuse("there are no parts to merge".into()) };
        let Some(Shard { num_shards, .. }) = first.shard else {
            return refuse("it is a whole selection, not a part; combine selections with `|`".into());
        };
        let mut by_index = BTreeMap::new();
        for shard in shards {
            first.check_same(shard)?;
            if shard.query != first.query {
                return refuse(format!("one part was made by {:?}, another by {:?}", first.query, shard.query));
            }
            let Some(place) = shard.shard.filter(|shard| shard.num_shards == num_shards) else {
                return refuse(format!("expected parts of {num_shards}, got {}", name_of(shard.shard)));
            };
            if by_index.insert(place.index, shard).is_some() {
                return refuse(format!("{} is there twice", name_of(shard.shard)));
            }
        }
        let mut sets = vec![RowSet::None; first.sizes.len()];
        let (starts, num_rows) = starts_of(&first.sizes);
        for index in 0..num_shards {
            let place = Shard { index, num_shards };
            let Some(shard) = by_index.get(&index) else {
                return refuse(format!("{} is missing", name_of(Some(place))));
            };
            let mine = place.row_groups(&starts, num_rows);
            sets[mine.clone()].clone_from_slice(&shard.selection.sets()[mine]);
        }
        Ok(Self { query: first.query.clone(), ..first.with_sets(sets) })
    }

    /// Returns the rows that are in `shard` of the row groups.
    pub(crate) fn in_shard(&self, shard: Shard) -> Self {
        let (starts, num_rows) = starts_of(&self.sizes);
        let mine = shard.row_groups(&starts, num_rows);
        let sets = self.selection.sets().iter().enumerate();
        let sets = sets.map(|(index, set)| if mine.contains(&index) { set.clone() } else { RowSet::None });
        Self { shard: Some(shard), ..self.with_sets(sets.collect()) }
    }

    /// Refuses a snapshot that these rows do not belong to.
    pub(crate) fn check_of(&self, snapshot: &Snapshot) -> Result<()> {
        self.check_whole()?;
        if *self.fingerprint == *snapshot.fingerprint && self.sizes.len() == snapshot.row_groups.len() {
            return Ok(());
        }
        let reason = format!(
            "expected rows of the snapshot `{}`, got rows of `{}`: the objects differ or have changed; select again, or \
             open those that it was made from",
            snapshot.fingerprint, self.fingerprint
        );
        Err(Error::SelectionMismatch { reason })
    }

    fn check_same(&self, other: &Self) -> Result<()> {
        if self.fingerprint == other.fingerprint && self.sizes == other.sizes {
            return Ok(());
        }
        let reason = format!(
            "one is of the snapshot `{}`, the other of `{}`: row numbers of one mean nothing in the other",
            self.fingerprint, other.fingerprint
        );
        Err(Error::SelectionMismatch { reason })
    }

    /// Refuses a shard, which would pass for the whole.
    fn check_whole(&self) -> Result<()> {
        if self.shard.is_none() {
            return Ok(());
        }
        let reason = format!("it is only {}; merge all parts first", name_of(self.shard));
        Err(Error::SelectionMismatch { reason })
    }

    /// Returns the rows that `chosen` marks, one bit for each kept row.
    fn choose(&self, chosen: &BooleanBuffer) -> Self {
        let mut first = 0;
        let sets = self.selection.sets().iter().zip(&*self.sizes).map(|(set, &num_rows)| {
            let picked = set.choose(chosen, first, num_rows);
            first += set.count(0..num_rows) as usize;
            picked
        });
        self.with_sets(sets.collect())
    }

    fn with_sets(&self, sets: Vec<RowSet>) -> Self {
        let selection = Arc::new(Selection::of_sizes(sets, &self.sizes));
        Self { query: None, shard: None, selection, ..self.clone() }
    }
}

fn name_of(shard: Option<Shard>) -> String {
    shard.map_or("a whole selection".into(), |shard| format!("part {} of {} (from 0)", shard.index, shard.num_shards))
}

#[cfg(test)]
mod tests;
