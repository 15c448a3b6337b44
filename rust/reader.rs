//! [`EpochReader`]: a dataset made ready to deliver epochs.
//!
//! Knows the selection, the spans and the resolved order; everything that epochs, ranks and resumes of
//! one loader have in common.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::{ArrowError, SchemaRef};

use crate::config;
use crate::dataset::{Fragment, RowGroupRead, RowGroupRef};
use crate::error::{Error, Result};
use crate::forms::{Form, Request, Target};
use crate::metrics::Metrics;
use crate::plan::{self, EpochPlan, Order, OrderState, PieceId, Span, State};
use crate::query::Dataset;
use crate::selection::{RowSet, Selection};
use crate::source::Connection;

/// The order that is asked for; [`EpochReader`] resolves what is left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderSettings {
    /// The order of the dataset.
    Sequential,
    /// A seeded shuffle, other for each epoch.
    Shuffled {
        /// The seed.
        seed: u64,
        /// The decoded bytes of all lanes' windows together, over all ranks.
        shuffle_bytes: u64,
        /// The number of lanes, instead of the one derived.
        num_lanes: Option<u32>,
        /// The rows of a lane's window, instead of those derived.
        window_rows: Option<u64>,
    },
}

/// What a piece costs to hold, estimated from the footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceCost {
    /// Bytes fetched.
    pub(crate) fetched: u64,
    /// Bytes of the decoded arrays.
    pub(crate) decoded: u64,
}

/// A dataset with its selection evaluated and its order resolved.
#[derive(Debug)]
pub struct EpochReader {
    dataset: Dataset,
    selection: Arc<Selection>,
    settings: OrderSettings,
    order: Order,
    spans: Arc<[Span]>,
    /// Compressed and decoded bytes of the projected columns of each row group.
    row_group_bytes: Vec<(u64, u64)>,
    row_bytes: u64,
    /// The plan of the epoch asked for last; planning costs O(spans).
    plan: Mutex<Option<(u64, Arc<EpochPlan>)>>,
}

impl EpochReader {
    /// Cuts the kept rows into spans and resolves the order.
    ///
    /// `memory_limit` bounds the spans of an unshuffled read, whose order does not depend on them.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for lanes or windows of nothing.
    pub fn try_new(
        dataset: &Dataset,
        selection: Arc<Selection>,
        settings: OrderSettings,
        memory_limit: u64,
    ) -> Result<Self> {
        let snapshot = dataset.snapshot();
        let bytes_of = |row_group: &RowGroupRef| {
            let (fragment, projection) = (snapshot.fragment(*row_group), dataset.projection());
            let (compressed, decoded) = fragment.projected_bytes(row_group.index, projection);
            let missing = fragment.missing_bytes(row_group.num_rows, projection, &snapshot.schema);
            (compressed, decoded.saturating_add(missing))
        };
        let row_group_bytes: Vec<(u64, u64)> = snapshot.row_groups.iter().map(bytes_of).collect();
        let whole_below = match settings {
            // Few large reads are better than many small ones, as long as several fit.
            OrderSettings::Sequential => memory_limit / config::SEQUENTIAL_SPANS_IN_MEMORY,
            OrderSettings::Shuffled { .. } => 0,
        };
        let mut spans = Vec::new();
        for (index, row_group) in snapshot.row_groups.iter().enumerate() {
            let (compressed, decoded) = row_group_bytes[index];
            let is_whole = compressed.saturating_add(decoded) <= whole_below;
            cut_row_group(dataset, row_group, index, is_whole, selection.rows(index), &mut spans);
        }
        let order = resolve(settings, dataset, &spans)?;
        let num_rows: u64 = snapshot.row_groups.iter().map(|row_group| u64::from(row_group.num_rows)).sum();
        let row_bytes = row_group_bytes.iter().map(|(_, decoded)| decoded).sum::<u64>().div_ceil(num_rows.max(1));
        Ok(Self {
            dataset: dataset.clone(),
            selection,
            settings,
            order,
            spans: spans.into(),
            row_group_bytes,
            row_bytes,
            plan: Mutex::new(None),
        })
    }

    /// Returns the number of rows of an epoch, over all ranks.
    pub fn num_rows(&self) -> u64 {
        self.selection.num_rows()
    }

    /// Returns the order with everything resolved.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        self.dataset.schema()
    }

    /// Returns the state of epoch `epoch` with everything below `position` delivered.
    pub fn state(&self, epoch: u64, position: u64) -> State {
        let order = match (self.order, self.settings) {
            (Order::Shuffled { seed, num_lanes, window_rows }, OrderSettings::Shuffled { shuffle_bytes, .. }) => {
                OrderState::Shuffled { seed, num_lanes, window_rows, shuffle_bytes }
            }
            _ => OrderState::Sequential,
        };
        State {
            version: plan::STATE_VERSION,
            fingerprint: self.dataset.snapshot().fingerprint.clone(),
            query: self.dataset.filters().iter().map(|filter| filter.text().to_owned()).collect(),
            order,
            epoch,
            position,
        }
    }

    /// Reads a state's JSON and checks that it belongs to this dataset, query and order.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`], and [`Error::StateMismatch`] with all that differs.
    pub fn read_state(&self, json: &str) -> Result<State> {
        let state = State::from_json(json).map_err(|reason| Error::NotAState { reason })?;
        let mut differences = state.differences(&self.state(state.epoch, state.position));
        if state.position > self.num_rows() {
            let num_rows = self.num_rows();
            differences.push(format!("position: expected at most {num_rows}, got {}", state.position));
        }
        if differences.is_empty() { Ok(state) } else { Err(Error::StateMismatch { differences }) }
    }

    /// Returns how each column leaves in batches for `target`; see [`forms`](crate::forms).
    ///
    /// `requests` names columns, and fields of structs behind a dot.
    ///
    /// # Errors
    ///
    /// [`Error::NoTensor`] for the first column that has no form or not the one asked for, and [`Error::UnknownColumn`].
    pub fn forms(&self, requests: &BTreeMap<String, Request>, target: Target) -> Result<Vec<Form>> {
        self.dataset.forms(&self.selection, requests, target)
    }

    /// Returns the plan of `epoch`, kept for the next call.
    pub fn plan(&self, epoch: u64) -> Arc<EpochPlan> {
        let mut cached = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((planned, plan)) if *planned == epoch => Arc::clone(plan),
            _ => {
                let plan = Arc::new(EpochPlan::new(Arc::clone(&self.spans), self.order, epoch));
                *cached = Some((epoch, Arc::clone(&plan)));
                plan
            }
        }
    }

    pub(crate) fn connect(&self, metrics: &Arc<Metrics>) -> Result<Vec<Connection>> {
        self.dataset.connect(metrics)
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    fn row_group_of(&self, piece: PieceId) -> (usize, RowGroupRef) {
        let index = self.spans[piece.span as usize].row_group as usize;
        (index, self.dataset.snapshot().row_groups[index])
    }

    pub(crate) fn fragment_of(&self, piece: PieceId) -> &Fragment {
        self.dataset.snapshot().fragment(self.row_group_of(piece).1)
    }

    /// Estimates what holding a piece takes.
    pub(crate) fn piece_cost(&self, piece: &plan::Piece) -> PieceCost {
        let (index, row_group) = self.row_group_of(piece.id);
        let (compressed, decoded) = self.row_group_bytes[index];
        let span = self.spans[piece.id.span as usize];
        let part = |bytes: u64, rows: u32| {
            u64::try_from(u128::from(bytes) * u128::from(rows) / u128::from(row_group.num_rows.max(1))).unwrap_or(bytes)
        };
        // Without an offset index whole column chunks are fetched, whatever is kept of them.
        let has_pages = self.fragment_of(piece.id).has_offset_index(row_group.index);
        let fetched = if has_pages { part(compressed, span.end - span.start) } else { compressed };
        PieceCost { fetched, decoded: part(decoded, piece.kept.end - piece.kept.start) }
    }

    /// Plans the read of a piece.
    pub(crate) fn read_piece(&self, piece: &plan::Piece) -> Result<RowGroupRead> {
        let (index, row_group) = self.row_group_of(piece.id);
        let span = self.spans[piece.id.span as usize];
        let runs = self.selection.rows(index).nth_runs(span.start..span.end, piece.kept.clone());
        let is_whole = runs.len() == 1 && runs[0] == (0..row_group.num_rows);
        let runs = (!is_whole).then_some(&runs[..]);
        let batch_rows = (piece.kept.end - piece.kept.start) as usize;
        RowGroupRead::try_new(self.dataset.snapshot(), row_group, self.dataset.projection(), runs, batch_rows)
    }

    pub(crate) fn memory_error(&self, piece: PieceId, needed_bytes: u64, limit_bytes: u64) -> Error {
        let url = self.fragment_of(piece).object.url.clone();
        Error::MemoryLimit { url, row_group: self.row_group_of(piece).1.index as usize, limit_bytes, needed_bytes }
    }

    pub(crate) fn gather_error(error: &ArrowError) -> Error {
        Error::Setting { name: "batch_size", reason: error.to_string() }
    }
}

/// Appends the spans of one row group that hold kept rows.
fn cut_row_group(
    dataset: &Dataset,
    row_group: &RowGroupRef,
    index: usize,
    is_whole: bool,
    kept: &RowSet,
    spans: &mut Vec<Span>,
) {
    if *kept == RowSet::None {
        return;
    }
    let fragment = dataset.snapshot().fragment(*row_group);
    let starts = if is_whole { vec![0] } else { fragment.cut(row_group.index) };
    let ends = starts.iter().skip(1).copied().chain([row_group.num_rows]);
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    spans.extend(starts.iter().zip(ends).filter_map(|(&start, end)| {
        let num_kept = kept.count(start..end);
        (num_kept > 0).then_some(Span { row_group: index, start, end, num_kept })
    }));
}

/// Derives lanes and window where they are not given.
fn resolve(settings: OrderSettings, dataset: &Dataset, spans: &[Span]) -> Result<Order> {
    let OrderSettings::Shuffled { seed, shuffle_bytes, num_lanes, window_rows } = settings else {
        return Ok(Order::Sequential);
    };
    if num_lanes == Some(0) {
        return Err(Error::Setting { name: "num_lanes", reason: "0 lanes hold no rows; expected at least 1".into() });
    }
    if window_rows == Some(0) {
        return Err(Error::Setting { name: "window_rows", reason: "expected at least 1, got 0".into() });
    }
    let span_rows = plan::resolve::mean_span_rows(spans);
    let derived = plan::resolve::resolve(span_rows, dataset.snapshot().row_bytes(), shuffle_bytes);
    Ok(Order::Shuffled {
        seed,
        num_lanes: num_lanes.unwrap_or(derived.num_lanes),
        window_rows: window_rows.unwrap_or(derived.window_rows),
    })
}
