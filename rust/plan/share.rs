//! Gives every rank its share of an epoch's positions, in batches.
//!
//! From the cursor P on, rank r of N takes the positions P + r, P + r + N, … in batches of b. So global batch t is the
//! positions from P + t·b·N to P + (t + 1)·b·N, the same sequence for every N with the same b·N, and P alone is the
//! position of an epoch. DataLoader worker w of W takes its rank's whole batches t ≡ w (mod W), which is the order in
//! which DataLoader requests them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What happens to the last rows if they cannot be divided evenly among the ranks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remainder {
    /// They are not delivered: fewer rows than there are ranks, and different ones in every epoch.
    #[default]
    Drop,
    /// Ranks that lack a row get one from the beginning of the epoch.
    Pad,
    /// Some ranks get one row more, and perhaps one batch more.
    Keep,
}

/// An invalid share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareError {
    /// The invalid setting.
    pub name: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.name, self.reason)
    }
}

impl std::error::Error for ShareError {}

/// The positions of one epoch that belong to one rank and one of its workers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// Rows per batch of one rank.
    pub batch_rows: u32,
    /// The cursor P: the positions below it have been delivered.
    pub from: u64,
    /// The number of positions in the epoch.
    pub num_rows: u64,
    /// What happens to rows that do not divide evenly.
    pub remainder: Remainder,
    /// Whether a last batch with too few rows is left out.
    pub drop_last: bool,
    /// This DataLoader worker, from 0.
    pub worker: u32,
    /// The number of the rank's workers; 1 without any.
    pub num_workers: u32,
}

/// One batch of one rank: `len` rows at `first`, `first + step`, …
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchSlice {
    /// The position of the first row.
    pub first: u64,
    /// The distance from one row's position to the next.
    pub step: u64,
    /// The number of rows, not counting `padding`.
    pub len: usize,
    /// The position of an additional row that fills up this rank's share; it is delivered a second time.
    pub padding: Option<u64>,
    /// The cursor once all ranks have delivered their batch of this number.
    pub next: u64,
}

impl Share {
    /// Returns all of an epoch of `num_rows` rows, for one reader.
    pub fn whole(num_rows: u64, batch_rows: u32) -> Self {
        Self {
            rank: 0,
            world_size: 1,
            batch_rows,
            from: 0,
            num_rows,
            remainder: Remainder::Keep,
            drop_last: false,
            worker: 0,
            num_workers: 1,
        }
    }

    /// Checks a share.
    ///
    /// # Errors
    ///
    /// For a rank or worker out of range, a size of 0, or a cursor beyond the end.
    pub fn try_new(share: Self) -> Result<Self, ShareError> {
        let error = |name, reason| Err(ShareError { name, reason });
        let Self { rank, world_size, batch_rows, from, num_rows, worker, num_workers, .. } = share;
        if batch_rows == 0 {
            return error("batch_size", "expected at least 1, got `0`".to_owned());
        }
        if rank >= world_size {
            return error("rank", format!("expected less than the world size `{world_size}`, got `{rank}`"));
        }
        if worker >= num_workers {
            return error(
                "worker",
                format!("expected less than the number of workers `{num_workers}`, got `{worker}`"),
            );
        }
        if from > num_rows {
            return error("position", format!("expected at most the number of rows `{num_rows}`, got `{from}`"));
        }
        Ok(share)
    }

    /// Returns the number of this rank's batches from the cursor on, over all workers.
    pub fn num_batches(&self) -> u64 {
        let (rows, batch) = (self.rows_of(u64::from(self.rank)), self.batch_rows());
        if self.drop_last { rows / batch } else { rows.div_ceil(batch) }
    }

    /// Returns the position from which on this world delivers nothing in this epoch: the number of rows, or less if the
    /// end of the epoch is dropped.
    pub fn end(&self) -> u64 {
        let kept = match self.remainder {
            Remainder::Drop => self.num_rows - self.left() % self.world(),
            Remainder::Pad | Remainder::Keep => self.num_rows,
        };
        if self.drop_last { kept.min(self.cursor_after(self.rows_of(0) / self.batch_rows())) } else { kept }
    }

    /// Returns the number of rows from the cursor on that no rank delivers.
    pub fn num_dropped(&self) -> u64 {
        let (left, world, batch) = (self.left(), self.world(), self.batch_rows());
        let uneven = left % world;
        let in_last = |rows: u64| if self.drop_last { rows % batch } else { 0 };
        let (short, long) = (left / world, left / world + 1);
        match self.remainder {
            Remainder::Drop => uneven + world * in_last(short),
            Remainder::Keep => uneven * in_last(long) + (world - uneven) * in_last(short),
            Remainder::Pad if uneven == 0 => world * in_last(short),
            // If the last batch is dropped, a padded rank loses its padding with it, which is no loss.
            Remainder::Pad => uneven * in_last(long) + (world - uneven) * in_last(long).saturating_sub(1),
        }
    }

    /// Returns this rank's batch `t`, counted from the cursor; `None` beyond the last.
    pub fn batch(&self, t: u64) -> Option<BatchSlice> {
        if t >= self.num_batches() {
            return None;
        }
        let (rank, batch) = (u64::from(self.rank), self.batch_rows());
        let rows = self.rows_of(rank);
        let padding = self.pads(rank).then(|| rank % self.num_rows);
        let begin = t * batch;
        let end = rows.min(begin + batch);
        let padding = padding.filter(|_| end == rows);
        let len = end - begin - u64::from(padding.is_some());
        Some(BatchSlice {
            first: self.from + rank + begin * self.world(),
            step: self.world(),
            len: usize::try_from(len).unwrap_or(usize::MAX),
            padding,
            next: self.cursor_after(t + 1).min(self.end()),
        })
    }

    /// Returns the numbers of this worker's batches.
    pub fn worker_batches(&self) -> impl Iterator<Item = u64> + use<> {
        let step = usize::try_from(self.num_workers).unwrap_or(usize::MAX).max(1);
        (u64::from(self.worker)..self.num_batches()).step_by(step)
    }

    /// Returns the number of rows of a rank from the cursor on, including padding.
    fn rows_of(&self, rank: u64) -> u64 {
        let (even, uneven) = (self.left() / self.world(), self.left() % self.world());
        match self.remainder {
            Remainder::Drop => even,
            Remainder::Pad => even + u64::from(uneven > 0),
            Remainder::Keep => even + u64::from(rank < uneven),
        }
    }

    /// Returns whether the last row of a rank is padding.
    fn pads(&self, rank: u64) -> bool {
        let uneven = self.left() % self.world();
        self.remainder == Remainder::Pad && uneven > 0 && rank >= uneven
    }

    /// Returns the cursor after a number of batches of every rank, ignoring the end of the epoch.
    fn cursor_after(&self, num_batches: u64) -> u64 {
        let batch = self.batch_rows() * self.world();
        self.from.saturating_add(num_batches.saturating_mul(batch)).min(self.num_rows)
    }

    fn left(&self) -> u64 {
        self.num_rows.saturating_sub(self.from)
    }

    fn world(&self) -> u64 {
        u64::from(self.world_size.max(1))
    }

    fn batch_rows(&self) -> u64 {
        u64::from(self.batch_rows.max(1))
    }
}
