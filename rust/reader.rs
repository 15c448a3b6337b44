//! [`EpochReader`]: a dataset that is ready to deliver epochs.
//!
//! It holds the selection, the spans and the resolved order: everything that the epochs, ranks and resumed runs of a
//! loader share.

mod costly;
mod parts;
mod salvage;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow_schema::SchemaRef;
use sha2::{Digest, Sha256};

use crate::config;
use crate::dataset::{Answer, Dataset};
use crate::error::{Error, Result};
use crate::forms::{Form, Request, Target};
use crate::hex::hex;
use crate::metrics::Metrics;
use crate::notices::{self, Notice};
use crate::plan::{self, EpochPlan, Hole, HoleUnits, Order, OrderState, PieceId, Span, State, Weights};
use crate::rows::RowSet;
use crate::selection::Selection;
use crate::snapshot::{ColumnLayout, Fragment, ReadCost, RowGroupRef};
use crate::source::{Ahead, Connection};

use self::costly::Costly;
pub use self::costly::{Coarse, Refetched, Unindexed};
pub(crate) use self::parts::{Part, PartRead, TooLarge};
pub(crate) use self::salvage::Salvage;

/// Bytes of an order's hash that a state stores.
const DIGEST_BYTES: usize = 16;

/// Maximum of a single read, if pages allow, however much memory there is: text offsets have 32 bits, and the estimate
/// of decoded bytes may be too low.
const MOST_READ_BYTES: u64 = 1 << 30;

/// The requested order; [`EpochReader`] resolves what is left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderSettings {
    /// The order of the dataset.
    Sequential,
    /// The same given order in every epoch: numbers of kept rows, counted in dataset order, each at most once. Rows
    /// left out are not delivered.
    ///
    /// It is part of the query: states contain its digest.
    Given(Arc<[u64]>),
    /// A seeded shuffle that differs in each epoch.
    Shuffled {
        /// The seed.
        seed: u64,
        /// The decoded bytes of all lanes' windows together, over all ranks.
        shuffle_bytes: u64,
        /// The number of lanes, instead of the derived one.
        num_lanes: Option<u32>,
        /// The rows of a lane's window, instead of the derived number.
        window_rows: Option<u64>,
        /// The weights of the kept rows, if epochs are drawn from them with replacement.
        ///
        /// They are part of the query: states contain their digest.
        weights: Option<Arc<Weights>>,
    },
}

impl OrderSettings {
    /// Returns whether rows come in the order of the dataset, or in one that was given.
    fn are_fixed(&self) -> bool {
        matches!(self, Self::Sequential | Self::Given(_))
    }
}

/// A dataset with its selection evaluated and its order resolved.
#[derive(Debug)]
pub struct EpochReader {
    dataset: Dataset,
    selection: Arc<Selection>,
    answer: Arc<Answer>,
    /// The number of each span's first kept row, among all kept rows, if values are kept with them.
    first_kept: Box<[u64]>,
    settings: OrderSettings,
    /// What a state records about a given order, or about weights.
    given: Option<String>,
    order: Order,
    spans: Arc<[Span]>,
    hole_units: HoleUnits,
    /// For each fragment, the layout of the projected columns.
    layouts: Vec<Arc<ColumnLayout>>,
    /// Average decoded bytes of a row of the projected columns.
    row_bytes: u64,
    memory_limit: u64,
    costly: Costly,
    /// Whether the user has been told that rows are read repeatedly.
    is_rereading_told: AtomicBool,
    /// The plan of the epoch requested last; planning costs O(spans).
    plan: Mutex<Option<(u64, Arc<EpochPlan>)>>,
}

impl EpochReader {
    /// Cuts the kept rows into spans and resolves the order.
    ///
    /// `memory_limit` bounds a single read, and so the spans of an unshuffled pass, whose order does not depend on
    /// them.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for zero lanes or empty windows, and for an order that names a row twice or one that is not
    /// kept.
    pub fn try_new(dataset: &Dataset, answer: Arc<Answer>, settings: OrderSettings, memory_limit: u64) -> Result<Self> {
        let selection = Arc::clone(answer.selection());
        let settings = match (settings, answer.order()) {
            (OrderSettings::Sequential, Some(order)) => OrderSettings::Given(Arc::clone(order)),
            (settings, _) => settings,
        };
        let snapshot = dataset.snapshot();
        let layouts = ColumnLayout::of_all(snapshot, dataset.projection(), memory_limit);
        let mut this = Self {
            dataset: dataset.clone(),
            selection: Arc::clone(&selection),
            given: None,
            order: Order::Sequential,
            spans: Arc::default(),
            hole_units: HoleUnits::default(),
            layouts,
            row_bytes: 0,
            memory_limit,
            costly: Costly::default(),
            is_rereading_told: AtomicBool::new(false),
            plan: Mutex::new(None),
            settings,
            first_kept: Box::default(),
            answer,
        };
        let (mut spans, mut decoded_bytes, mut num_rows) = (Vec::new(), 0_u64, 0_u64);
        for (index, row_group) in snapshot.row_groups.iter().enumerate() {
            let cost = this.read_cost(row_group, &(0..row_group.num_rows));
            decoded_bytes = decoded_bytes.saturating_add(cost.decoded);
            num_rows += u64::from(row_group.num_rows);
            let starts = if this.settings.are_fixed() {
                // Few large reads are better than many small ones, as long as several fit.
                this.cut(row_group, 0..row_group.num_rows).iter().map(|rows| rows.start).collect()
            } else {
                snapshot.fragment(*row_group).cut(row_group.index)
            };
            let num_spans = spans.len();
            add_spans(&starts, row_group, index, selection.rows(index), &mut spans);
            if spans.len() > num_spans {
                this.note_costs(row_group, index, &cost, &starts);
            }
        }
        (this.order, this.costly.coarse) = resolve(&this.settings, dataset, &spans)?;
        if dataset.outputs().is_some_and(|outputs| outputs.needs_attached()) {
            this.first_kept = first_kept(&spans);
        }
        if this.settings.are_fixed() {
            this.hole_units = HoleUnits::row_groups(&spans);
        }
        this.spans = spans.into();
        this.row_bytes = decoded_bytes.div_ceil(num_rows.max(1));
        if let Some(weights) = this.weights() {
            let (num_weights, num_kept) = (weights.num_rows(), selection.num_rows());
            if this.answer.order().is_some() {
                let reason = "the rows have an order of their own, by `ORDER BY` or `select` of row numbers; draw from rows \
                              in the dataset's order: a filter, or `select` of a `Selection`";
                return Err(Error::Setting { name: "weights", reason: reason.into() });
            }
            if num_weights != num_kept {
                let reason = format!("{num_weights} weights for {num_kept} rows");
                return Err(Error::Setting { name: "weights", reason });
            }
            this.given = Some(weights.describe());
        }
        if let OrderSettings::Given(rows) = &this.settings {
            let plan = EpochPlan::in_order(Arc::clone(&this.spans), rows);
            let plan = plan.map_err(|reason| Error::Setting { name: "order", reason })?;
            this.given = Some(format!("order {}", digest(rows)));
            this.plan = Mutex::new(Some((0, Arc::new(plan))));
        }
        Ok(this)
    }

    /// Warns once that rows are read repeatedly because `memory_limit` holds too few of them for one of `world_size`
    /// ranks.
    pub(crate) fn tell_of_rereading(&self, memory_limit: u64, world_size: u32) {
        if self.is_rereading_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let limit = format!("memory_limit ({} MiB)", mib(memory_limit));
        notices::push(Notice::Performance(match self.order {
            Order::Shuffled { num_lanes, window_rows, .. } => {
                let world_size = u64::from(world_size.max(1));
                let window_rows = u64::from(num_lanes).saturating_mul(window_rows).min(self.num_rows());
                let window_bytes = window_rows.saturating_mul(self.row_bytes) / world_size;
                let needed_bytes = window_bytes.saturating_mul(2);
                let begin = format!(
                    "rows are read again and again: the shuffle takes them out of windows of {} MiB",
                    mib(window_bytes)
                );
                if needed_bytes <= memory_limit {
                    let snapshot = self.dataset.snapshot();
                    let mut row_groups = snapshot.row_groups.iter();
                    let is_indexed = row_groups.all(|group| snapshot.fragment(*group).has_offset_index(group.index));
                    let or_indexed = if is_indexed { "" } else { " or with a page index (`write_page_index=True`)" };
                    format!(
                        "{begin}, but what they are read from takes more than {limit} once it is decoded. Write the files \
                         with smaller row groups (pyarrow: `row_group_size`){or_indexed}, or raise memory_limit"
                    )
                } else {
                    format!(
                        "{begin}, too much for {limit}. Raise memory_limit to {} MiB, or lower shuffle_bytes to {} MiB, \
                         which changes the order",
                        mib(needed_bytes),
                        mib(memory_limit.saturating_mul(world_size) / 2)
                    )
                }
            }
            Order::Sequential => format!(
                "rows are read again and again: in the order that was asked for they come from all over, too many for \
                 {limit}. Raise memory_limit"
            ),
        }));
    }

    /// Returns the number of rows of an epoch, over all ranks.
    pub fn num_rows(&self) -> u64 {
        match &self.settings {
            OrderSettings::Given(rows) => rows.len() as u64,
            _ => self.weights().map_or(self.selection.num_rows(), |weights| u64::from(weights.num_draws())),
        }
    }

    /// Returns the order with everything resolved.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the batch size for callers that did not choose one.
    pub fn fitting_batch_rows(&self) -> u32 {
        let bytes = config::ARROW_BATCH_BYTES.min(self.memory_limit / config::QUERY_BATCHES_IN_MEMORY);
        u32::try_from(bytes / self.row_bytes.max(1)).unwrap_or(u32::MAX).clamp(1, config::ARROW_BATCH_ROWS)
    }

    /// Returns whether user-defined functions of a query may run as rows are read.
    pub fn brings_functions(&self) -> bool {
        self.dataset.brings_functions()
    }

    /// Returns the seed of the order; 0 if it is not shuffled.
    pub(crate) fn seed(&self) -> u64 {
        match self.order {
            Order::Shuffled { seed, .. } => seed,
            Order::Sequential => 0,
        }
    }

    /// Returns the dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Returns the columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        self.dataset.schema()
    }

    /// Returns the state of epoch `epoch` with everything before `position` delivered.
    pub fn state(&self, epoch: u64, position: u64) -> State {
        let order = match (self.order, &self.settings) {
            (Order::Shuffled { seed, num_lanes, window_rows }, &OrderSettings::Shuffled { shuffle_bytes, .. }) => {
                OrderState::Shuffled { seed, num_lanes, window_rows, shuffle_bytes }
            }
            _ => OrderState::Sequential,
        };
        State {
            version: plan::STATE_VERSION,
            fingerprint: self.dataset.snapshot().fingerprint.clone(),
            commit: self.dataset.snapshot().commit.clone(),
            query: self.dataset.query_texts().into_iter().chain(self.given.clone()).collect(),
            order,
            epoch,
            position,
            holes: Vec::new(),
        }
    }

    /// Reads a state's JSON and checks that it belongs to this dataset, query and order.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`], and [`Error::StateMismatch`] with all differences.
    pub fn read_state(&self, json: &str) -> Result<State> {
        let state = State::from_json(json).map_err(|reason| Error::NotAState { reason })?;
        let mut differences = state.differences(&self.state(state.epoch, state.position));
        if state.position > self.num_rows() {
            let num_rows = self.num_rows();
            differences.push(format!("position: expected at most {num_rows}, got {}", state.position));
        }
        let drawn = self.weights().filter(|_| !state.holes.is_empty()).map(|_| self.plan(state.epoch));
        let spans = drawn.as_ref().map_or(&self.spans, |plan| plan.spans());
        differences.extend(state.holes.iter().filter_map(|hole| self.refusal(hole, spans)));
        if differences.is_empty() { Ok(state) } else { Err(Error::StateMismatch { differences }) }
    }

    /// Returns what is wrong with a hole that does not belong to this order, in an epoch with these spans.
    fn refusal(&self, hole: &Hole, spans: &[Span]) -> Option<String> {
        let &Hole { span, start, end, row_group, .. } = hole;
        let spans = spans.get(self.hole_units.spans(span)).unwrap_or_default();
        let num_kept: u32 = spans.iter().map(|span| span.num_kept).sum();
        if start >= end || end > num_kept {
            return Some(format!("holes: expected rows of span {span}, which has {num_kept}, got {start} to {end}"));
        }
        let of = spans.first().map(|span| self.dataset.snapshot().row_groups[span.row_group as usize].index as usize);
        let expected = of.filter(|of| *of != row_group)?;
        Some(format!("holes: expected row group {expected} of span {span}, got {row_group}"))
    }

    /// Returns the units in which rows of holes are counted.
    pub(crate) fn hole_units(&self) -> &HoleUnits {
        &self.hole_units
    }

    /// Returns the hole left by rows of a piece that cannot be read.
    pub(crate) fn hole(&self, piece: PieceId, kept: &Range<u32>, cause: String) -> Hole {
        let (_, row_group) = self.row_group_of(piece);
        let object = self.fragment_of(piece).object.url.clone();
        let row_group = row_group.index as usize;
        let (span, first) = self.hole_units.place(piece.span);
        Hole { span, start: first + kept.start, end: first + kept.end, object, row_group, cause }
    }

    /// Returns the form of each column in batches for `target`; see [`forms`](crate::forms).
    ///
    /// `requests` names columns, and fields of structs as `struct.field`.
    ///
    /// # Errors
    ///
    /// [`Error::NoTensor`] for the first column without a form, or without the requested one, and
    /// [`Error::UnknownColumn`].
    pub fn forms(&self, requests: &BTreeMap<String, Request>, target: Target) -> Result<Vec<Form>> {
        self.dataset.forms(&self.answer, requests, target)
    }

    /// Returns the plan of `epoch`, cached for the next call.
    pub fn plan(&self, epoch: u64) -> Arc<EpochPlan> {
        // Only tried, and never held while planning: a forked child may find it locked forever.
        if let Ok(cached) = self.plan.try_lock()
            && let Some((planned, plan)) = &*cached
            && (*planned == epoch || matches!(self.settings, OrderSettings::Given(_)))
        {
            return Arc::clone(plan);
        }
        let plan = Arc::new(self.plan_anew(epoch));
        if let Ok(mut cached) = self.plan.try_lock() {
            *cached = Some((epoch, Arc::clone(&plan)));
        }
        plan
    }

    fn plan_anew(&self, epoch: u64) -> EpochPlan {
        let spans = || Arc::clone(&self.spans);
        if let OrderSettings::Given(rows) = &self.settings
            && let Ok(plan) = EpochPlan::in_order(spans(), rows)
        {
            return plan;
        }
        match self.weights() {
            Some(weights) => EpochPlan::drawn(&self.spans, self.order, epoch, weights),
            None => EpochPlan::new(spans(), self.order, epoch),
        }
    }

    fn weights(&self) -> Option<&Weights> {
        match &self.settings {
            OrderSettings::Shuffled { weights, .. } => weights.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn connect(&self, metrics: &Arc<Metrics>) -> Result<Vec<Connection>> {
        self.dataset.connect(metrics)
    }

    /// Takes what was read with the selection.
    pub(crate) fn claim_ahead(&self) -> Option<Arc<Ahead>> {
        self.dataset.claim_ahead()
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

    fn read_cost(&self, row_group: &RowGroupRef, rows: &Range<u32>) -> ReadCost {
        let fragment = self.dataset.snapshot().fragment(*row_group);
        let layout = &self.layouts[row_group.fragment as usize];
        fragment.read_cost(layout, row_group.index, rows, self.dataset.snapshot().gap_bytes(fragment))
    }

    /// Cuts rows of a row group into single reads.
    fn cut(&self, row_group: &RowGroupRef, rows: Range<u32>) -> Vec<Range<u32>> {
        let snapshot = self.dataset.snapshot();
        let fragment = snapshot.fragment(*row_group);
        let layout = &self.layouts[row_group.fragment as usize];
        let bounds = bounds_of_reads(self.memory_limit);
        let gap_bytes = snapshot.gap_bytes(fragment);
        fragment.cut_by_cost(layout, row_group.index, rows, gap_bytes, bounds, self.is_reordered())
    }

    /// Returns whether decoded rows are stored in the order in which they leave. Those without columns need no place.
    fn is_reordered(&self) -> bool {
        self.settings != OrderSettings::Sequential && !self.schema().fields().is_empty()
    }

    /// Returns the error for a value of the row at a position, with the row's location.
    pub(crate) fn value_error(&self, plan: &EpochPlan, position: u64, column: String, reason: String) -> Error {
        let located = plan.locate(position).map(|found| {
            let (index, row_group) = self.row_group_of(found.piece);
            let kept = plan.kept_row(found.piece.span, plan.piece(found.piece).kept.start + found.row);
            let span = self.spans[found.piece.span as usize];
            let rows = self.selection.rows(index).extent(span.start..span.end, kept..kept + 1);
            let url = self.dataset.snapshot().fragment(row_group).object.url.clone();
            (url, row_group.index as usize, u64::from(rows.start))
        });
        let (url, row_group, row) = located.unwrap_or_default();
        Error::Value { url, row_group, row, column, reason }
    }
}

/// Returns the maximum bytes of a single read within a memory limit, and a larger maximum to avoid fetching too much
/// twice.
fn bounds_of_reads(memory_limit: u64) -> (u64, u64) {
    let target = (memory_limit / config::STREAM_READS_IN_MEMORY).min(MOST_READ_BYTES);
    (target, memory_limit / config::LEAST_STREAM_READS_IN_MEMORY)
}

/// Returns the number of kept rows before each span.
fn first_kept(spans: &[Span]) -> Box<[u64]> {
    let mut num_rows = 0;
    let first = |span: &Span| {
        num_rows += u64::from(span.num_kept);
        num_rows - u64::from(span.num_kept)
    };
    spans.iter().map(first).collect()
}

/// Appends the spans of one row group that hold kept rows.
fn add_spans(starts: &[u32], row_group: &RowGroupRef, index: usize, kept: &RowSet, spans: &mut Vec<Span>) {
    if *kept == RowSet::None {
        return;
    }
    let ends = starts.iter().skip(1).copied().chain([row_group.num_rows]);
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    spans.extend(starts.iter().zip(ends).filter_map(|(&start, end)| {
        let num_kept = kept.count(start..end);
        (num_kept > 0).then_some(Span { row_group: index, start, end, num_kept })
    }));
}

/// Returns the hash, in hex, that identifies an order.
pub(crate) fn digest(rows: &[u64]) -> String {
    let mut hash = Sha256::new();
    rows.iter().for_each(|row| hash.update(row.to_le_bytes()));
    hex(&hash.finalize()[..DIGEST_BYTES])
}

/// Derives lanes and window if they are not given, and notes if the derived window is so narrow that rows stay near
/// those that are stored beside them.
fn resolve(settings: &OrderSettings, dataset: &Dataset, spans: &[Span]) -> Result<(Order, Option<Coarse>)> {
    let OrderSettings::Shuffled { seed, shuffle_bytes, num_lanes, window_rows, weights } = settings else {
        return Ok((Order::Sequential, None));
    };
    let (&seed, &shuffle_bytes, &num_lanes, &window_rows) = (seed, shuffle_bytes, num_lanes, window_rows);
    if num_lanes == Some(0) {
        return Err(Error::Setting { name: "num_lanes", reason: "0 lanes hold no rows; expected at least 1".into() });
    }
    if window_rows == Some(0) {
        return Err(Error::Setting { name: "window_rows", reason: "expected at least 1, got 0".into() });
    }
    let mut span_rows = plan::resolve::mean_span_rows(spans);
    let mut num_rows: u64 = spans.iter().map(|span| u64::from(span.num_kept)).sum();
    if let Some(weights) = weights {
        let drawn = u128::from(span_rows) * u128::from(weights.num_draws()) / u128::from(weights.num_rows().max(1));
        span_rows = u64::try_from(drawn).unwrap_or(u64::MAX).max(1);
        num_rows = u64::from(weights.num_draws());
    }
    let row_bytes = dataset.snapshot().row_bytes();
    let derived = plan::resolve::resolve(span_rows, row_bytes, shuffle_bytes);
    let needed_bytes = plan::resolve::least_shuffle_bytes(num_rows, span_rows, row_bytes);
    // Who asks for less than the default, for rows that take less, knows.
    let asked_bytes = shuffle_bytes.max(num_rows.saturating_mul(row_bytes.max(plan::resolve::MIN_ROW_BYTES)));
    let is_asked_for = window_rows.is_some() || asked_bytes < plan::resolve::DEFAULT_SHUFFLE_BYTES;
    let is_coarse = shuffle_bytes < needed_bytes && !is_asked_for;
    let coarse = Coarse { window_rows: derived.window_rows, span_rows, shuffle_bytes, needed_bytes };
    let order = Order::Shuffled {
        seed,
        num_lanes: num_lanes.unwrap_or(derived.num_lanes),
        window_rows: window_rows.unwrap_or(derived.window_rows),
    };
    Ok((order, is_coarse.then_some(coarse)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_32_bits_are_enough_for_what_is_read_at_once_however_much_memory_there_is() {
        for memory_limit in [1 << 20, 16 << 30, 41 << 30, u64::MAX] {
            assert!(bounds_of_reads(memory_limit).0 <= i32::MAX.unsigned_abs().into());
        }
        assert_eq!(bounds_of_reads(2 << 30), (128 << 20, 512 << 20));
    }
}
