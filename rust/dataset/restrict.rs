//! Restricts a dataset to previously selected rows or to a shard, and returns its rows as a [`Subset`].

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::ArrowError;
use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::dataset::access::RowAccess;
use crate::dataset::answer::Answer;
use crate::error::{Error, Result};
use crate::reader::digest;
use crate::rows::RowSet;
use crate::selection::{Report, Selection, SetOperation, Shard, Subset};
use crate::snapshot::Snapshot;

/// The rows that a dataset was restricted to, before its filters apply.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restriction {
    rows: Option<Arc<Selection>>,
    /// Descriptions of the restriction, for states.
    texts: Vec<String>,
    shard: Option<Shard>,
    /// The rows in the requested order, numbered over all rows of the snapshot.
    order: Option<Arc<[u64]>>,
}

/// The header of a serialized restriction; rows and order follow.
#[derive(Serialize, Deserialize)]
struct Header {
    texts: Vec<String>,
    part: Option<(u32, u32)>,
    num_row_bytes: Option<usize>,
    is_ordered: bool,
}

impl Restriction {
    /// Returns the rows that may be kept; `None` for all.
    pub(crate) fn rows(&self) -> Option<&Selection> {
        self.rows.as_deref()
    }

    /// Returns the descriptions that states record.
    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        let shard = self.shard.map(|shard| format!("shard {} of {}", shard.index, shard.num_shards));
        self.texts.iter().cloned().chain(shard)
    }

    /// Returns whether rows were requested in an order of their own.
    pub(crate) fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// Returns a word for the requested order, if it is not that of the dataset.
    pub(crate) fn order_text(&self) -> Option<String> {
        self.order.as_ref().map(|order| format!("order {}", digest(order)))
    }

    fn to_bytes(&self, snapshot: &Snapshot) -> Vec<u8> {
        let rows = self.rows.as_ref().map(|rows| rows.to_bytes(snapshot));
        let header = Header {
            texts: self.texts.clone(),
            part: self.shard.map(|shard| (shard.index, shard.num_shards)),
            num_row_bytes: rows.as_ref().map(Vec::len),
            is_ordered: self.order.is_some(),
        };
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(rows.unwrap_or_default());
        bytes.extend(self.order.iter().flat_map(|order| order.iter().flat_map(|row| row.to_le_bytes())));
        bytes
    }

    fn from_bytes(snapshot: &Snapshot, bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk()?;
        let (header, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let Header { texts, part, num_row_bytes, is_ordered } = serde_json::from_slice(header).ok()?;
        let (rows, rest) = rest.split_at_checked(num_row_bytes.unwrap_or(0))?;
        let rows = match num_row_bytes {
            Some(_) => Some(Arc::new(Selection::from_bytes(snapshot, rows)?)),
            None => None,
        };
        let shard = match part {
            Some((index, num_shards)) => Some(Shard::try_new(index, num_shards).ok()?),
            None => None,
        };
        let (order, rest) = rest.as_chunks();
        let order: Arc<[u64]> = order.iter().map(|row| u64::from_le_bytes(*row)).collect();
        let is_sound = rest.is_empty() && (is_ordered || order.is_empty());
        is_sound.then(|| Self { rows, texts, shard, order: is_ordered.then_some(order) })
    }
}

impl Dataset {
    /// Returns the rows that `selection`, the dataset's own, keeps.
    pub fn subset(&self, selection: Arc<Selection>) -> Subset {
        let restriction = self.restriction();
        let query = self.filter_identities().into_iter().chain(restriction.texts.iter().cloned()).collect();
        Subset::of(self.snapshot(), selection, Some(query), restriction.shard)
    }

    /// Keeps only rows that are also in `subset`.
    ///
    /// Row groups without any of its rows are skipped by filters. The others are read whole: a filter that fails on a
    /// value fails even if none of its rows has that value.
    ///
    /// # Errors
    ///
    /// [`Error::SelectionMismatch`] for rows of another snapshot, and for a shard.
    pub fn select(&self, subset: &Subset) -> Result<Self> {
        subset.check_of(self.snapshot())?;
        let mut restriction = self.restriction().clone();
        restriction.texts.push(format!("rows {}", subset.digest()));
        restriction.rows = Some(match restriction.rows() {
            None => Arc::clone(subset.selection()),
            Some(rows) => Arc::new(self.both(rows, subset.selection())),
        });
        Ok(self.with_restriction(restriction))
    }

    /// Keeps the rows whose numbers, over all rows of the snapshot, are in `ranges`, which are ascending and disjoint.
    ///
    /// # Errors
    ///
    /// As [`Self::select`].
    pub fn select_ranges(&self, ranges: &[Range<u64>]) -> Result<Self> {
        let snapshot = self.snapshot();
        let rows = Arc::new(Selection::of_ranges(snapshot, ranges));
        self.select(&Subset::of(snapshot, rows, None, None))
    }

    /// Keeps the rows at `indices` of `access`, the dataset's own, in that order.
    ///
    /// # Errors
    ///
    /// [`Error::RowIndex`], and [`Error::Setting`] for a row that is named twice.
    pub fn select_rows(&self, access: &RowAccess, indices: &[i64]) -> Result<Self> {
        let kept = access.kept_numbers(&access.resolve(indices)?);
        let mut unique = kept.clone();
        unique.sort_unstable();
        if let Some(pair) = unique.windows(2).find(|pair| pair[0] == pair[1]) {
            let place = kept.iter().rposition(|number| *number == pair[0]).unwrap_or(0);
            let reason = format!(
                "row {} is named twice; a dataset has every row once, `ds[[...]]` reads rows as often as they are named",
                indices.get(place).copied().unwrap_or(0)
            );
            return Err(Error::Setting { name: "indices", reason });
        }
        self.select_kept(access, &kept, &unique)
    }

    /// Keeps the rows numbered `range` of `access`, the dataset's own, as far as there are any.
    ///
    /// Takes time and memory in proportion to the selection, or to the rows if they have an order of their own.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for values of a query that cannot be kept.
    pub fn select_slice(&self, access: &RowAccess, range: Range<u64>) -> Result<Self> {
        let answer = access.answer();
        // A query may also have values of its own.
        if self.query().is_some() || answer.order().is_some() {
            let numbers: Vec<u64> = (range.start..range.end.min(answer.num_rows())).collect();
            let kept = access.kept_numbers(&numbers);
            let mut unique = kept.clone();
            unique.sort_unstable();
            return self.select_kept(access, &kept, &unique);
        }
        let rows = Arc::new(answer.selection().slice(self.snapshot(), &range));
        let selected = self.restricted_to(&rows, None);
        // They have already passed the filters.
        selected.adopt_answer(Answer::of_selection(rows));
        Ok(selected)
    }

    /// Keeps the rows numbered `kept` among those of `access`, in that order; `unique` are the same, ascending.
    fn select_kept(&self, access: &RowAccess, kept: &[u64], unique: &[u64]) -> Result<Self> {
        let (rows, numbers) = self.find(access, unique);
        let place = |kept: &u64| unique.partition_point(|other| other < kept);
        let number = |kept: &u64| numbers.get(place(kept)).copied();
        // A query has its own order, so even dataset order is a different one.
        let has_order = self.query().is_some() || kept != unique;
        let row_order = has_order.then(|| kept.iter().filter_map(number).collect());
        let order = (kept != unique).then(|| kept.iter().map(|kept| place(kept) as u64).collect());
        let selected = self.restricted_to(&Arc::new(rows), row_order);
        // They have already passed the filters.
        let answer = access.answer().only(self.snapshot(), numbers).map_err(|error| attached_error(&error))?;
        selected.adopt_answer(answer.in_order(order));
        Ok(selected)
    }

    /// Returns the dataset restricted to `rows`, some of its own, in the order of their numbers over all rows of the
    /// snapshot that is given, if any.
    fn restricted_to(&self, rows: &Arc<Selection>, order: Option<Arc<[u64]>>) -> Self {
        let mut restriction = self.restriction().clone();
        let subset = Subset::of(self.snapshot(), Arc::clone(rows), None, None);
        restriction.texts.push(format!("rows {}", subset.digest()));
        restriction.rows = Some(Arc::clone(rows));
        restriction.order = order;
        self.with_restriction(restriction)
    }

    /// Keeps the row groups of one of `num_shards` shards, which are consecutive and have about as many rows each.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for a shard of a shard, for an index out of range, and for the rows of a query.
    pub fn shard(&self, index: u32, num_shards: u32) -> Result<Self> {
        let shard = Shard::try_new(index, num_shards)?;
        if self.query().is_some() {
            let reason = "a query chooses among the rows of the whole; take the shard before `sql`".into();
            return Err(Error::Setting { name: "shard", reason });
        }
        let mut restriction = self.restriction().clone();
        if let Some(Shard { index, num_shards }) = restriction.shard {
            let reason = format!("the dataset is shard {index} of {num_shards} already; take more shards of the whole");
            return Err(Error::Setting { name: "shard", reason });
        }
        let rows = restriction.rows.take().unwrap_or_else(|| Arc::new(Selection::all(self.snapshot())));
        let rows = Subset::of(self.snapshot(), rows, None, None).in_shard(shard);
        restriction.rows = Some(Arc::clone(rows.selection()));
        restriction.shard = Some(shard);
        Ok(self.with_restriction(restriction))
    }

    /// Returns descriptions of the restrictions.
    pub fn restriction_texts(&self) -> Vec<String> {
        self.restriction().texts().collect()
    }

    /// Returns the restriction as bytes, for [`Self::restricted`] in another process; `None` for an unrestricted
    /// dataset.
    pub fn restriction_bytes(&self) -> Option<Vec<u8>> {
        let restriction = self.restriction();
        let is_none = restriction.rows.is_none() && restriction.order.is_none();
        (!is_none).then(|| restriction.to_bytes(self.snapshot()))
    }

    /// Applies the restriction of another dataset of the same snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::NotASelection`] for any other bytes.
    pub fn restricted(&self, bytes: &[u8]) -> Result<Self> {
        let refuse = || Error::NotASelection { url: "pickled bytes".into(), reason: "they are damaged".into() };
        Restriction::from_bytes(self.snapshot(), bytes)
            .map(|restriction| self.with_restriction(restriction))
            .ok_or_else(refuse)
    }

    /// Returns the answer of a selection, with its rows in the requested order.
    pub(crate) fn ordered(&self, selection: Selection) -> Answer {
        let order = self.given_order(&selection);
        Answer::of_selection(Arc::new(selection)).in_order(order)
    }

    /// Returns the part of a query's answer that the dataset was restricted to.
    pub(crate) fn restricted_answer(&self, answer: Answer) -> Result<Answer> {
        let Some(rows) = self.restriction().rows() else { return Ok(answer) };
        let both = Arc::new(self.both(rows, answer.selection()));
        let numbers = both.row_numbers(self.snapshot());
        let answer = answer.only(self.snapshot(), numbers).map_err(|error| attached_error(&error))?;
        Ok(match self.given_order(&both) {
            None => answer,
            Some(order) => answer.in_order((!order.is_sorted()).then_some(order)),
        })
    }

    /// Returns the kept rows in the requested order, as numbers among those of `selection`; `None` if no order was
    /// requested.
    fn given_order(&self, selection: &Selection) -> Option<Arc<[u64]>> {
        let order = self.restriction().order.as_ref()?;
        let mut by_row: Vec<(u64, usize)> = order.iter().copied().zip(0..).collect();
        by_row.sort_unstable();
        let mut row_groups = self.snapshot().row_groups.iter().enumerate();
        let (mut index, mut first, mut end) = (0, 0, 0);
        let mut kept = vec![None; by_row.len()];
        let mut number = 0;
        for (row, place) in by_row {
            while row >= end {
                let Some((next, row_group)) = row_groups.next() else { break };
                (index, first, end) = (next, end, end + u64::from(row_group.num_rows));
            }
            let row = u32::try_from(row - first).unwrap_or(u32::MAX);
            if selection.rows(index).contains(row) {
                kept[place] = Some(number);
                number += 1;
            }
        }
        Some(kept.into_iter().flatten().collect())
    }

    /// Returns the rows that both keep.
    fn both(&self, left: &Selection, right: &Selection) -> Selection {
        let pairs = left.sets().iter().zip(right.sets()).zip(&self.snapshot().row_groups);
        let sets = pairs.map(|((left, right), of)| left.combine(right, SetOperation::And, of.num_rows));
        Selection::of_sets(self.snapshot(), sets.collect(), Report::default())
    }

    /// Returns the kept rows with the ascending numbers `unique`, and their numbers over all rows of the snapshot.
    fn find(&self, access: &RowAccess, unique: &[u64]) -> (Selection, Vec<u64>) {
        let row_groups = &self.snapshot().row_groups;
        let mut sets = vec![RowSet::None; row_groups.len()];
        let mut numbers = Vec::with_capacity(unique.len());
        let (mut before, mut next) = (0, 0);
        for (index, rows) in access.rows_of(unique) {
            before += row_groups[next..index].iter().map(|row_group| u64::from(row_group.num_rows)).sum::<u64>();
            next = index;
            numbers.extend(rows.iter().map(|row| before + u64::from(*row)));
            sets[index] = RowSet::from_rows(&rows, row_groups[index].num_rows);
        }
        (Selection::of_sets(self.snapshot(), sets, Report::default()), numbers)
    }
}

fn attached_error(error: &ArrowError) -> Error {
    Error::Setting { name: "select", reason: format!("values that a query computed cannot be kept: {error}") }
}
