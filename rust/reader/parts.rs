//! What is read at once: parts of pieces, decoded into the dataset's columns.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Fields, Schema};

use super::EpochReader;
use crate::batch;
use crate::dataset::outputs::Outputs;
use crate::decode::Body;
use crate::error::{Error, Result};
use crate::plan::{self, PieceId};
use crate::rows::RowSet;
use crate::snapshot::{Decoded, ReadCost, RowGroupRead, Storing, field_of};
use crate::source::CachedFile;

/// A run of a piece's rows that is read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its rows, as numbers of the span's kept rows.
    pub(crate) kept: Range<u32>,
    /// The cost of reading them.
    pub(crate) cost: ReadCost,
}

impl Part {
    /// Returns the decoded bytes of `num_rows` of its rows.
    pub(crate) fn decoded_bytes(&self, num_rows: u32) -> u64 {
        part_of(self.cost.decoded, num_rows, self.kept.end - self.kept.start)
    }
}

/// The read of a part of a piece.
#[derive(Debug)]
pub(crate) struct PartRead {
    read: RowGroupRead,
    decoded_bytes: u64,
    computation: Option<Box<Computation>>,
}

/// Turns the columns that are read into the dataset's.
#[derive(Debug)]
struct Computation {
    outputs: Arc<Outputs>,
    attached: Option<RecordBatch>,
    url: String,
    row_group: usize,
}

impl PartRead {
    /// Returns the byte ranges to fetch.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        self.read.ranges()
    }

    /// Returns the pages of one of [`Self::ranges`] in the object's file, if they are better read one by one as they
    /// are decoded.
    pub(crate) fn in_file(&self, range: usize, file: &Arc<CachedFile>) -> Option<Body> {
        self.read.in_file(range, file)
    }

    /// Returns about the bytes of the decoded rows.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes
    }

    /// Returns the rows with the dataset's columns; `bodies` holds the bytes of each of [`Self::ranges`].
    ///
    /// # Errors
    ///
    /// Those of decoding, and [`Error::Evaluate`] if a column cannot be computed.
    pub(crate) fn decode(self, bodies: Vec<Body>) -> Result<RecordBatch> {
        let read = self.read.decode_at_once(bodies)?;
        match self.computation {
            None => Ok(read),
            Some(computation) => computation.apply(&read),
        }
    }

    /// Returns the rows in the batches and with the types that `storing` chooses.
    ///
    /// # Errors
    ///
    /// As for [`Self::decode`].
    pub(crate) fn decode_onto(self, bodies: Vec<Body>, storing: &dyn Storing) -> Result<Vec<RecordBatch>> {
        let Some(computation) = self.computation else { return self.read.decode_onto(bodies, storing) };
        let whole = computation.apply(&self.read.decode_at_once(bodies)?)?;
        let (schema, columns, num_rows) = whole.into_parts();
        let sizes = storing.batch_rows(num_rows);
        let mut batches = vec![Vec::with_capacity(columns.len()); sizes.len()];
        for column in columns {
            let stored = storing.store(&mut Decoded::new(column))?;
            batches.iter_mut().zip(stored).for_each(|(batch, column)| batch.push(column));
        }
        let batch = |(columns, num_rows): (Vec<ArrayRef>, usize)| {
            let fields: Fields =
                schema.fields().iter().zip(&columns).map(|(field, array)| field_of(field, array)).collect();
            batch::of_columns(Arc::new(Schema::new(fields)), columns, num_rows)
        };
        let batches = batches.into_iter().zip(sizes).map(batch).collect::<std::result::Result<_, _>>();
        batches.map_err(|source| Error::gather(&source))
    }
}

impl Computation {
    fn apply(self, read: &RecordBatch) -> Result<RecordBatch> {
        let Self { outputs, attached, url, row_group } = self;
        outputs.finish(read, attached.as_ref()).map_err(|reason| Error::Evaluate { url, row_group, reason })
    }
}

/// What exceeds the memory limit even if nothing else is held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge {
    pub(crate) piece: PieceId,
    /// Bytes of the due part of the piece.
    pub(crate) part_bytes: u64,
    /// Bytes including all that the batch needs in addition.
    pub(crate) needed_bytes: u64,
    pub(crate) batch_rows: usize,
}

impl EpochReader {
    /// Returns the parts of a piece that are read at once, with their costs.
    pub(crate) fn parts_of(&self, piece: &plan::Piece) -> Vec<Part> {
        let (index, row_group) = self.row_group_of(piece.id);
        let span = self.spans[piece.id.span as usize];
        let rows = self.selection.rows(index);
        let raw = rows.extent(span.start..span.end, piece.kept.clone());
        let mut first = piece.kept.start;
        let mut parts = Vec::new();
        // In a fixed order, spans are such parts already; cut again, they would share even more.
        let raw_parts = if self.settings.are_fixed() { vec![raw] } else { self.cut(&row_group, raw) };
        for raw in raw_parts {
            let num_kept = rows.count(raw.clone());
            if num_kept == 0 {
                continue;
            }
            let mut cost = self.read_cost(&row_group, &raw);
            cost.decoded = part_of(cost.decoded, num_kept, raw.end - raw.start);
            if self.is_reordered() {
                let largest = part_of(cost.largest, num_kept, raw.end - raw.start);
                cost = cost.in_another_order(largest).with_order_of(num_kept);
            }
            parts.push(Part { kept: first..first + num_kept, cost });
            first += num_kept;
        }
        parts
    }

    /// Returns whether footers tell the decoded bytes of a piece's rows: not those of computed columns.
    pub(crate) fn tells_decoded_bytes(&self, piece: PieceId) -> bool {
        let (_, row_group) = self.row_group_of(piece);
        let fragment = self.fragment_of(piece);
        let is_told = |column: &usize| fragment.tells_decoded_bytes(*column, row_group.index);
        self.dataset.outputs().is_none() && self.dataset.projection().iter().all(is_told)
    }

    /// Plans the read of the rows `wanted` of a part of a piece, counted within the part; `None` for all.
    pub(crate) fn read_part(&self, piece: PieceId, kept: &Range<u32>, wanted: Option<&[u32]>) -> Result<PartRead> {
        let (_, row_group) = self.row_group_of(piece);
        let (raw, set) = self.rows_of_part(piece, kept, wanted);
        let batch_rows = set.count(0..row_group.num_rows) as usize;
        let num_raw = raw.end - raw.start;
        let decoded_bytes = part_of(self.read_cost(&row_group, &raw).decoded, kept.end - kept.start, num_raw);
        let snapshot = self.dataset.snapshot();
        let layout = &self.layouts[row_group.fragment as usize];
        let groups = snapshot.fragment(row_group).column_groups(layout, row_group.index, &raw);
        let read =
            RowGroupRead::try_new_in_groups(snapshot, row_group, self.dataset.projection(), groups, set, batch_rows)?
                .within(self.memory_limit);
        let Some(outputs) = self.dataset.outputs() else {
            return Ok(PartRead { read, decoded_bytes, computation: None });
        };
        let attached = match self.first_kept.get(piece.span as usize) {
            None => None,
            Some(first) => {
                let kept = first + u64::from(kept.start)..first + u64::from(kept.end);
                self.answer.attached_to(&kept, wanted).map_err(|source| Error::gather(&source))?
            }
        };
        let url = snapshot.fragment(row_group).object.url.clone();
        let row_group = row_group.index as usize;
        let computation = Computation { outputs: Arc::clone(outputs), attached, url, row_group };
        Ok(PartRead { read, decoded_bytes, computation: Some(Box::new(computation)) })
    }

    /// Returns the rows of the row group from the first to the last of a part, and the `wanted` ones among them; `None`
    /// for all.
    pub(super) fn rows_of_part(
        &self,
        piece: PieceId,
        kept: &Range<u32>,
        wanted: Option<&[u32]>,
    ) -> (Range<u32>, RowSet) {
        let (index, row_group) = self.row_group_of(piece);
        let span = self.spans[piece.span as usize];
        let rows = self.selection.rows(index);
        let raw = rows.extent(span.start..span.end, kept.clone());
        let set = rows.within(raw.clone(), row_group.num_rows);
        match wanted {
            None => (raw, set),
            Some(wanted) => (raw, RowSet::from_rows(&set.nth(wanted), row_group.num_rows)),
        }
    }

    /// Returns the error for what does not fit even alone.
    pub(crate) fn memory_error(&self, too_large: &TooLarge, limit_bytes: u64) -> Error {
        let &TooLarge { piece, part_bytes, needed_bytes, batch_rows } = too_large;
        let (_, row_group) = self.row_group_of(piece);
        let fragment = self.fragment_of(piece);
        if needed_bytes > part_bytes.saturating_mul(2) {
            return Error::BatchMemory { batch_rows, limit_bytes, needed_bytes };
        }
        fragment.memory_error(row_group.index, limit_bytes, needed_bytes)
    }
}

fn part_of(bytes: u64, rows: u32, of: u32) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(rows) / u128::from(of.max(1))).unwrap_or(bytes)
}
