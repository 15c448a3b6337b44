//! The cost of a pass over a dataset: row groups, rows, bytes, requests and time.

use std::time::{Duration, Instant};

use crate::dataset::Dataset;
use crate::error::Result;
use crate::rows::RowSet;
use crate::selection::{Report, Selection};
use crate::snapshot::{Opening, RowGroupRead};
use crate::source::{Known, num_bytes, planned};

/// The cost of a dataset's selection and payload.
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    /// Number of objects in the snapshot.
    pub num_objects: u64,
    /// Number of rows in them.
    pub num_rows: u64,
    /// Number of kept rows.
    pub num_kept: u64,
    /// Row groups in the snapshot.
    pub num_row_groups: u64,
    /// Row groups with all rows kept.
    pub num_whole: u64,
    /// Row groups with some rows kept.
    pub num_partial: u64,
    /// Row groups with no row kept.
    pub num_without: u64,
    /// The cost of opening.
    pub opening: Opening,
    /// The cost of making the selection.
    pub selection: Report,
    /// Encoded bytes of the projected columns' pages that hold kept rows.
    pub payload_bytes: u64,
    /// The same with the gaps that are also read, assuming the defaults that hold before a store is measured.
    pub payload_fetched: u64,
    /// Requests for these bytes, row group by row group, under the same assumption.
    pub payload_requests: u64,
    /// Time for planning the reads of the payload.
    pub planning: Duration,
    /// The stores by URL, with measurements of those that this process has read.
    pub stores: Vec<(String, Option<Known>)>,
}

impl Dataset {
    /// Explains the dataset with its `selection`. Reads nothing; plans the read of every row group.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) when a footer contradicts itself.
    pub fn explain(&self, selection: &Selection) -> Result<Explanation> {
        let start = Instant::now();
        let snapshot = self.snapshot();
        let mut explanation = Explanation {
            num_objects: snapshot.fragments.len() as u64,
            num_rows: snapshot.num_rows,
            num_kept: selection.num_rows(),
            num_row_groups: snapshot.row_groups.len() as u64,
            opening: snapshot.opening,
            selection: selection.report(),
            stores: snapshot.stores.iter().map(|store| (store.key().root().to_owned(), store.known())).collect(),
            ..Explanation::default()
        };
        for (index, &row_group) in snapshot.row_groups.iter().enumerate() {
            let kept = selection.rows(index);
            match kept {
                RowSet::None => {
                    explanation.num_without += 1;
                    continue;
                }
                RowSet::All => explanation.num_whole += 1,
                RowSet::Runs(_) | RowSet::Mask(_) => explanation.num_partial += 1,
            }
            let read = RowGroupRead::try_new(snapshot, row_group, self.projection(), kept.clone(), 1)?;
            let requests = planned(read.ranges(), &snapshot.preset(snapshot.fragment(row_group)));
            explanation.payload_bytes += num_bytes(read.ranges());
            explanation.payload_fetched += num_bytes(&requests);
            explanation.payload_requests += requests.len() as u64;
        }
        explanation.planning = start.elapsed();
        Ok(explanation)
    }
}

impl Explanation {
    /// Returns the number of sequential requests before the first payload, counted from the footers: those already
    /// made, and one for the payload if there is any.
    pub fn depth(&self) -> u32 {
        let selection = self.selection.indexes.depth + self.selection.predicates.depth;
        self.opening.footers.depth + selection + u32::from(self.payload_requests > 0)
    }

    /// Returns the number of row groups that were read without keeping a row; `None` if unknown.
    pub fn num_empty(&self) -> Option<u64> {
        let is_known = self.selection.pruning.is_some() || self.selection.is_cached;
        is_known.then(|| self.num_without.saturating_sub(self.selection.num_pruned + self.selection.num_outside))
    }
}
