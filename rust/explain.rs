//! What a pass over a dataset takes, in row groups, rows, bytes and requests.

use crate::config;
use crate::dataset::RowGroupRead;
use crate::error::Result;
use crate::query::Dataset;
use crate::selection::{Report, RowSet, Selection};
use crate::source::coalesce;

/// The cost of a dataset's selection and payload.
#[derive(Debug, Clone, Copy, Default)]
pub struct Explanation {
    /// Objects in the snapshot.
    pub num_objects: u64,
    /// Rows in them.
    pub num_rows: u64,
    /// Rows that are kept.
    pub num_kept: u64,
    /// Row groups in the snapshot.
    pub num_row_groups: u64,
    /// Row groups of which all rows are kept.
    pub num_whole: u64,
    /// Row groups of which some rows are kept.
    pub num_partial: u64,
    /// Row groups that were read and of which no row is kept.
    pub num_empty: u64,
    /// What making the selection took.
    pub selection: Report,
    /// Bytes of the projected columns of the kept rows, as pages hold them.
    pub payload_bytes: u64,
    /// Requests for them, row group by row group.
    pub payload_requests: u64,
}

impl Dataset {
    /// Explains the dataset with its `selection`. Reads nothing; plans the read of every row group.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) when a footer contradicts itself.
    pub fn explain(&self, selection: &Selection) -> Result<Explanation> {
        let snapshot = self.snapshot();
        let mut explanation = Explanation {
            num_objects: snapshot.fragments.len() as u64,
            num_rows: snapshot.num_rows,
            num_kept: selection.num_rows(),
            num_row_groups: snapshot.row_groups.len() as u64,
            selection: selection.report(),
            ..Explanation::default()
        };
        for (index, &row_group) in snapshot.row_groups.iter().enumerate() {
            let kept = selection.rows(index);
            let runs: Vec<_> = match kept {
                RowSet::None => continue,
                RowSet::All => {
                    explanation.num_whole += 1;
                    Vec::new()
                }
                RowSet::Runs(_) | RowSet::Mask(_) => {
                    explanation.num_partial += 1;
                    kept.runs(0..row_group.num_rows).collect()
                }
            };
            let runs = (*kept != RowSet::All).then_some(&runs[..]);
            let read = RowGroupRead::try_new(snapshot, row_group, self.projection(), runs, 1)?;
            explanation.payload_bytes += read.ranges().iter().map(|range| range.end - range.start).sum::<u64>();
            explanation.payload_requests += coalesce(read.ranges(), config::REMOTE_GAP_BYTES).len() as u64;
        }
        let report = explanation.selection;
        let with_rows = explanation.num_whole + explanation.num_partial + report.num_pruned + report.num_outside;
        explanation.num_empty = explanation.num_row_groups.saturating_sub(with_rows);
        Ok(explanation)
    }
}
