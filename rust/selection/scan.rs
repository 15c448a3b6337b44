//! Selects rows: statistics first, then the predicate columns of what they leave undecided.
//!
//! Row-group statistics decide what they can. Column indexes and bloom filters follow, in one pass, if that pays
//! ([`super::indexes`]). The rest is read in one stage or two ([`super::conjuncts`]): in each, the columns of all row
//! groups are requested at once, as far as memory allows, so the number of dependent round trips grows neither with row
//! groups nor with conjuncts. Large row groups are split at their pages. Within a stage the conjuncts are decoded one
//! after another, each for the rows that passed the previous ones. Decoding and evaluation run on blocking threads,
//! never on the IO runtime.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::conjuncts::{self, Following};
use super::evaluate::Evaluator;
use super::indexes::Judge;
use super::open::{Open, mask, spread};
use super::payload::Payload;
use super::prune::{Pruner, Verdict};
use super::{Filter, Report};
use crate::config;
use crate::error::{Error, Result};
use crate::memory::{Memory, READS_IN_MEMORY};
use crate::metrics::{Progress, Stage};
use crate::rows::RowSet;
use crate::snapshot::{ColumnLayout, RowGroupRead, RowGroupRef, Snapshot};
use crate::source::{Connection, coalesce, part_of, read_ranges};

/// Reads whose bytes are requested at the same time, memory permitting.
const MAX_READS_IN_FLIGHT: usize = 256;

/// Bytes of local files requested at the same time, at least two reads per core: they arrive before the previous ones
/// are decoded, and the memory freed meanwhile is reused for the next.
const LOCAL_BYTES_IN_FLIGHT: u64 = 32 << 20;

/// Rows evaluated at a time: enough to amortise the expression's overhead, few enough for the cache, and for arrays of
/// numbers not to be mapped anew for every batch. Fewer if rows are large.
const EVALUATION_BATCH_ROWS: u64 = 4096;

/// Row groups that are read first if not all kept rows are wanted.
const FIRST_ROW_GROUPS: usize = 4;

/// How many times as many are read next. Larger values take fewer round trips to get enough, and read more in vain.
const GROWTH: usize = 4;

/// Rows are decoded selectively if at most one in this many is left; else all, which costs less than picking.
const ROWS_PER_SURVIVOR: usize = 4;

/// Limits for an evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes held at once.
    pub(crate) memory_bytes: u64,
    /// Size above which a read is an error instead of being made alone: by default [half of the
    /// machine's](config::largest_read_bytes).
    pub(crate) refused_above: Option<u64>,
    /// Row groups decoded at once.
    pub(crate) num_threads: usize,
}

/// Returns what one more dependent round trip to a store must save, in bytes.
pub(super) type RoundTripBytes = fn(&Connection) -> u64;

/// Which rows are wanted, and what of them.
pub(super) struct Wanted<'a> {
    pub(super) filter: &'a Filter,
    /// The rows of each row group to examine.
    pub(super) within: Option<&'a [RowSet]>,
    /// How many of the first rows are enough, if not all are wanted.
    pub(super) enough: Option<u64>,
    /// What is read of the kept rows.
    pub(super) payload: Option<Payload>,
}

/// Returns the wanted rows of each row group, and what was read to find them: without bytes and requests, which the
/// connections count.
///
/// If a number of rows is enough, returns those of the first row groups: what statistics leave undecided is read in
/// batches of row groups, each [larger](GROWTH) than all before, until there are enough.
///
/// # Errors
///
/// Those of reading, and [`Error::Evaluate`] if the filter fails on a value.
pub(super) async fn select(
    snapshot: &Arc<Snapshot>,
    Wanted { filter, within, enough, payload }: Wanted<'_>,
    connections: &[Connection],
    limits: Limits,
    round_trip_bytes: RoundTripBytes,
    progress: &Progress,
) -> Result<(Vec<RowSet>, Report)> {
    let conjuncts = conjuncts::split(&filter.expr, &snapshot.columns);
    let conjuncts: Vec<_> = conjuncts
        .into_iter()
        .map(|conjunct| {
            let pruner = Pruner::new(&conjunct.expr, &snapshot.columns, &conjunct.columns, conjunct.can_fail);
            (conjunct, pruner)
        })
        .collect();
    let start = Instant::now();
    let judge = Arc::new(Judge { snapshot: Arc::clone(snapshot), conjuncts });
    let (rows, mut open) = judge_row_groups(&judge, within);
    let report = Report { pruning: Some(start.elapsed()), ..Report::default() };
    let mut found = Found { is_read: vec![false; rows.len()], rows, report };
    let text = &filter.text;
    let search =
        Search { judge, text, connections, limits, round_trip_bytes, payload: payload.map(Arc::new), progress };
    progress.start(0);
    let mut num_next = if enough.is_some() { FIRST_ROW_GROUPS } else { open.len() };
    let mut end = found.rows.len();
    loop {
        let later = open.split_off(num_next.min(open.len()));
        search.look(open, &mut found).await?;
        let Some(next) = later.first() else { break };
        let num_found = snapshot.row_groups.iter().zip(&found.rows[..next.place]);
        let num_found: u64 = num_found.map(|(of, set)| u64::from(set.count(0..of.num_rows))).sum();
        if enough.is_some_and(|enough| num_found >= enough) {
            end = next.place;
            break;
        }
        num_next = num_next.saturating_mul(GROWTH);
        open = later;
    }
    let Found { mut rows, is_read, mut report } = found;
    report.is_partial = end < rows.len();
    rows[end..].fill(RowSet::None);
    let num_unread = |as_is: RowSet| {
        let unread = rows[..end].iter().zip(&is_read).filter(|(_, is_read)| !**is_read);
        unread.filter(|(set, _)| **set == as_is).count() as u64
    };
    let num_outside = within.map_or(0, |sets| sets[..end].iter().filter(|set| **set == RowSet::None).count()) as u64;
    report.num_pruned = num_unread(RowSet::None) - num_outside;
    report.num_whole = num_unread(RowSet::All);
    report.num_outside = num_outside + (rows.len() - end) as u64;
    Ok((rows, report))
}

/// How row groups are examined.
struct Search<'a> {
    judge: Arc<Judge>,
    /// The filter's text.
    text: &'a str,
    connections: &'a [Connection],
    limits: Limits,
    round_trip_bytes: RoundTripBytes,
    payload: Option<Arc<Payload>>,
    progress: &'a Progress,
}

/// What is known so far.
struct Found {
    /// The kept rows of each row group; for undecided ones, the rows that may be kept.
    rows: Vec<RowSet>,
    /// Whether columns of the row group were read.
    is_read: Vec<bool>,
    report: Report,
}

impl Search<'_> {
    /// Decides the row groups that are `open`.
    async fn look(&self, open: Vec<Open>, found: &mut Found) -> Result<()> {
        let Self { judge, connections, limits, .. } = self;
        let for_indexes: Vec<_> = connections.iter().map(|connection| connection.at(Stage::Indexes)).collect();
        let (open, decided) = judge.narrow(open, &for_indexes, self.round_trip_bytes, limits.memory_bytes).await?;
        let mut undecided = Vec::with_capacity(open.len());
        for open in open {
            match open.decided() {
                Some(set) => found.rows[open.place] = set,
                None => undecided.push(open),
            }
        }
        let report = &mut found.report;
        report.num_pruned_by_bloom += decided.by_bloom;
        report.num_read += undecided.len() as u64;
        report.num_pages += decided.pages;
        report.num_pages_pruned += decided.pages_pruned;
        undecided.iter().for_each(|open| found.is_read[open.place] = true);
        self.progress.expect(undecided.len() as u64);
        let round_trip_bytes = connections.iter().map(self.round_trip_bytes).max().unwrap_or(0);
        let payload = self.payload.as_ref();
        let started = payload.and_then(|payload| payload.start(judge, &found.rows, &undecided, round_trip_bytes));
        if undecided.is_empty() {
            return Ok(());
        }
        let known = payload.zip(started.as_ref());
        let known = known.map(|(payload, started)| (Arc::clone(payload), started.first_known));
        let scan = Arc::new(Scan::try_new(judge, &undecided, *limits, round_trip_bytes, self.text, known)?);
        found.report.num_stages += scan.stages.len() as u64;
        let after: Vec<_> = connections.iter().map(Connection::then).collect();
        for (place, set) in scan.run(undecided, [connections, &after], self.progress).await? {
            found.rows[place] = set;
        }
        if let (Some(payload), Some(started)) = (payload, &started) {
            payload.forget_in_vain(started, &found.rows);
        }
        Ok(())
    }
}

/// Returns what statistics decide for each row group of the snapshot, and the row groups that they leave undecided,
/// without rows outside `within`.
fn judge_row_groups(judge: &Judge, within: Option<&[RowSet]>) -> (Vec<RowSet>, Vec<Open>) {
    let Judge { snapshot, conjuncts } = judge;
    let verdicts: Vec<Vec<Vec<Verdict>>> = snapshot
        .fragments
        .iter()
        .map(|fragment| conjuncts.iter().map(|(_, pruner)| pruner.judge(fragment)).collect())
        .collect();
    let (mut rows, mut open) = (Vec::with_capacity(snapshot.row_groups.len()), Vec::new());
    for (place, &row_group) in snapshot.row_groups.iter().enumerate() {
        let of_parts = || verdicts[row_group.fragment as usize].iter().map(|of| of[row_group.index as usize]);
        let alive = within.map_or(RowSet::All, |sets| sets[place].clone());
        let set = if of_parts().any(|verdict| verdict == Verdict::Nothing) { RowSet::None } else { alive };
        if set != RowSet::None && of_parts().any(|verdict| verdict == Verdict::Unknown) {
            let unknown = of_parts().map(|verdict| match verdict {
                Verdict::Unknown => RowSet::All,
                Verdict::Nothing | Verdict::Everything => RowSet::None,
            });
            let likely = vec![None; conjuncts.len()];
            open.push(Open { place, row_group, alive: set.clone(), unknown: unknown.collect(), likely });
        }
        rows.push(set);
    }
    (rows, open)
}

/// A filter, and which of its columns are read when.
struct Scan {
    snapshot: Arc<Snapshot>,
    /// For each conjunct, with whether it can fail.
    evaluators: Vec<(Evaluator, bool)>,
    stages: Vec<Together>,
    /// What to read of row groups as their kept rows become known, and the index of the first of them.
    payload: Option<(Arc<Payload>, usize)>,
    limits: Limits,
    memory: Memory,
    cores: Arc<Semaphore>,
}

/// Conjuncts whose columns are fetched together.
struct Together {
    /// In the order in which they are evaluated.
    conjuncts: Vec<usize>,
    /// The layout of their columns in each fragment.
    layouts: Vec<Arc<ColumnLayout>>,
}

/// Rows of a row group that are read at once.
#[derive(Debug)]
struct Piece {
    rows: Range<u32>,
    batch_rows: usize,
    /// Bytes held for it.
    bytes: u64,
}

/// A conjunct to evaluate on some rows of a piece.
struct Step {
    conjunct: usize,
    rows: BooleanBuffer,
    read: RowGroupRead,
}

impl Scan {
    fn try_new(
        judge: &Judge,
        open: &[Open],
        limits: Limits,
        round_trip_bytes: u64,
        text: &str,
        payload: Option<(Arc<Payload>, usize)>,
    ) -> Result<Self> {
        let Judge { snapshot, conjuncts } = judge;
        let evaluators = conjuncts.iter().map(|(conjunct, _)| {
            Ok((Evaluator::try_new(snapshot, &conjunct.expr, &conjunct.columns, text)?, conjunct.can_fail))
        });
        let can_fail: Vec<bool> = conjuncts.iter().map(|(conjunct, _)| conjunct.can_fail).collect();
        let cost = |conjunct: usize| {
            let open = open.iter().filter(|open| open.unknown[conjunct] != RowSet::None);
            let of_row_group = open.flat_map(|open| {
                let fragment = snapshot.fragment(open.row_group);
                conjuncts[conjunct].0.columns.iter().map(|&column| fragment.decode_cost(column, open.row_group.index))
            });
            of_row_group.fold(0, u64::saturating_add)
        };
        let ordered = conjuncts::order(&can_fail, &(0..conjuncts.len()).map(cost).collect::<Vec<_>>());
        let following: Vec<_> = (1..=ordered.len()).map(|num| following(judge, open, &ordered, num)).collect();
        let (first, second) = ordered.split_at(conjuncts::num_first(&following, round_trip_bytes));
        let stage = |of: &[usize]| {
            let columns: BTreeSet<usize> =
                of.iter().flat_map(|&conjunct| conjuncts[conjunct].0.columns.iter().copied()).collect();
            let columns: Vec<usize> = columns.into_iter().collect();
            let layouts = ColumnLayout::of_all(snapshot, &columns, limits.memory_bytes);
            Together { conjuncts: of.to_vec(), layouts }
        };
        Ok(Self {
            snapshot: Arc::clone(snapshot),
            evaluators: evaluators.collect::<Result<_>>()?,
            stages: [first, second].into_iter().filter(|of| !of.is_empty()).map(stage).collect(),
            payload,
            limits,
            memory: Memory::new(limits.memory_bytes),
            cores: Arc::new(Semaphore::new(limits.num_threads)),
        })
    }

    /// Returns the kept rows of `open`, with their indices; `connections` are those of the first and the second stage.
    async fn run(
        self: &Arc<Self>,
        open: Vec<Open>,
        connections: [&[Connection]; 2],
        progress: &Progress,
    ) -> Result<Vec<(usize, RowSet)>> {
        let open: Vec<Arc<Open>> = open.into_iter().map(Arc::new).collect();
        let mut pieces = Vec::with_capacity(open.len());
        for open in &open {
            pieces.extend(
                self.cut(0, open, 0..open.row_group.num_rows)?.into_iter().map(|piece| (Arc::clone(open), piece)),
            );
        }
        let num_in_flight = self.num_in_flight(connections[0], &pieces);
        // In the smallest form, since they count against no limit until all are known.
        let mut done: Vec<(usize, Range<u32>, RowSet)> = stream::iter(pieces.into_iter().enumerate())
            .map(|(number, (open, piece))| async move {
                let is_last = piece.rows.end == open.row_group.num_rows;
                let is_whole = is_last && piece.rows.start == 0;
                let (rows, alive) = (piece.rows.clone(), mask(&open.alive, &piece.rows));
                let passed = RowSet::from_mask(self.pass(connections, &open, 0, piece, alive).await?);
                let known = self.payload.as_ref().filter(|(_, first)| is_whole && open.place >= *first);
                if let Some((payload, _)) = known {
                    payload.read(open.row_group, &passed);
                }
                progress.advance(u64::from(is_last));
                Ok::<_, Error>((number, rows, passed))
            })
            .buffer_unordered(num_in_flight)
            .try_collect()
            .await?;
        done.sort_unstable_by_key(|(number, ..)| *number);
        let mut done = done.into_iter().map(|(_, rows, passed)| (rows, passed));
        let sets = open.iter().map_while(|open| {
            let num_rows = open.row_group.num_rows;
            let (rows, mut passed) = done.next()?;
            if rows.end < num_rows {
                let mut whole = BooleanBufferBuilder::new(num_rows as usize);
                whole.append_buffer(&mask(&passed, &rows));
                while whole.len() < num_rows as usize {
                    let (rows, passed) = done.next()?;
                    whole.append_buffer(&mask(&passed, &(0..rows.end - rows.start)));
                }
                passed = RowSet::from_mask(whole.finish());
            }
            Some((open.place, passed))
        });
        Ok(sets.collect())
    }

    /// Returns how many reads of a first stage are requested at the same time.
    fn num_in_flight(&self, connections: &[Connection], pieces: &[(Arc<Open>, Piece)]) -> usize {
        if !connections.iter().all(|connection| connection.is_local) {
            return MAX_READS_IN_FLIGHT;
        }
        let bytes = pieces.iter().fold(0_u64, |bytes, (_, piece)| bytes.saturating_add(piece.bytes));
        let bytes = (bytes / pieces.len().max(1) as u64).max(1);
        let num_in_flight = usize::try_from(LOCAL_BYTES_IN_FLIGHT / bytes).unwrap_or(usize::MAX);
        num_in_flight.max(2 * self.limits.num_threads).min(MAX_READS_IN_FLIGHT)
    }

    /// Splits rows of a row group into single reads of a stage.
    fn cut(&self, stage: usize, open: &Open, rows: Range<u32>) -> Result<Vec<Piece>> {
        let (row_group, limits) = (open.row_group, self.limits);
        let fragment = self.snapshot.fragment(row_group);
        let layout = &self.stages[stage].layouts[row_group.fragment as usize];
        let gap = self.snapshot.gap_bytes(fragment);
        let bounds = (limits.memory_bytes / READS_IN_MEMORY, limits.memory_bytes / 4);
        let mut pieces = Vec::new();
        for rows in fragment.cut_by_cost(layout, row_group.index, rows, gap, bounds, false) {
            let cost = fragment.read_cost(layout, row_group.index, &rows, gap);
            let num_rows = u64::from(rows.end - rows.start).max(1);
            let of_rows = cost.working.saturating_add(cost.decoded);
            let row_bytes = of_rows.div_ceil(num_rows).max(1);
            // A single evaluation takes no more than a read.
            let batch_rows = (limits.memory_bytes / READS_IN_MEMORY / row_bytes).clamp(1, EVALUATION_BATCH_ROWS);
            // Arrays are held one batch at a time, pages one for each column.
            let of_batch = row_bytes.saturating_mul(batch_rows.min(num_rows));
            let bytes = cost.fetched.saturating_add(of_batch).saturating_add(cost.working.min(cost.fetched));
            let limit_bytes = limits.refused_above.unwrap_or_else(config::largest_read_bytes);
            if bytes > limit_bytes {
                return Err(fragment.memory_error(row_group.index, limit_bytes, bytes));
            }
            pieces.push(Piece { rows, batch_rows: usize::try_from(batch_rows).unwrap_or(usize::MAX), bytes });
        }
        Ok(pieces)
    }

    /// Returns which of the `alive` rows of a piece pass this stage and the following ones.
    fn pass<'a>(
        self: &'a Arc<Self>,
        connections: [&'a [Connection]; 2],
        open: &'a Arc<Open>,
        stage: usize,
        piece: Piece,
        alive: BooleanBuffer,
    ) -> BoxFuture<'a, Result<BooleanBuffer>> {
        async move {
            let rows = piece.rows.clone();
            let alive = self.evaluate(connections, open, stage, piece, alive).await?;
            if stage + 1 == self.stages.len() || alive.count_set_bits() == 0 {
                return Ok(alive);
            }
            let pieces = self.cut(stage + 1, open, rows.clone())?.into_iter().map(|piece| {
                let from = (piece.rows.start - rows.start) as usize;
                let alive = alive.slice(from, (piece.rows.end - piece.rows.start) as usize);
                self.pass(connections, open, stage + 1, piece, alive)
            });
            let passed = try_join_all(pieces).await?;
            let mut whole = BooleanBufferBuilder::new(alive.len());
            passed.iter().for_each(|passed| whole.append_buffer(passed));
            Ok(whole.finish())
        }
        .boxed()
    }

    async fn evaluate(
        self: &Arc<Self>,
        connections: [&[Connection]; 2],
        open: &Arc<Open>,
        stage: usize,
        piece: Piece,
        alive: BooleanBuffer,
    ) -> Result<BooleanBuffer> {
        let steps = self.steps(open, stage, &piece, &alive)?;
        if steps.is_empty() {
            return Ok(alive);
        }
        let fragment = self.snapshot.fragment(open.row_group);
        // What is larger than the memory and not refused is read alone.
        let _memory = self.memory.take(piece.bytes).await?;
        let ranges: Vec<_> = steps.iter().flat_map(|step| step.read.ranges().iter().cloned()).collect();
        // Conjuncts may share columns, so their ranges overlap.
        let ranges = coalesce(&ranges, 0);
        let connection = &connections[stage][fragment.store];
        let bytes = read_ranges(connection, &fragment.object, &ranges).await?;
        let cores = Arc::clone(&self.cores);
        let _core = cores.acquire_owned().await.map_err(|_| Error::Closed { reason: "cancelled" })?;
        let (this, row_group, fetched) = (Arc::clone(self), open.row_group, Fetched { ranges, bytes });
        let evaluate = move || this.evaluate_steps(row_group, &piece, steps, &fetched, alive);
        connection.io.blocking(evaluate).await?
    }

    /// Plans what to read for the conjuncts of a stage.
    fn steps(&self, open: &Open, stage: usize, piece: &Piece, alive: &BooleanBuffer) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for &conjunct in &self.stages[stage].conjuncts {
            let rows = match &open.unknown[conjunct] {
                RowSet::None => continue,
                RowSet::All => alive.clone(),
                some => alive & &mask(some, &piece.rows),
            };
            if rows.count_set_bits() > 0 {
                let read = self.plan(open.row_group, conjunct, piece, &rows)?;
                steps.push(Step { conjunct, rows, read });
            }
        }
        Ok(steps)
    }

    fn plan(
        &self,
        row_group: RowGroupRef,
        conjunct: usize,
        piece: &Piece,
        rows: &BooleanBuffer,
    ) -> Result<RowGroupRead> {
        let at = |row: usize| piece.rows.start.saturating_add(u32::try_from(row).unwrap_or(u32::MAX));
        let set = if rows.len() == row_group.num_rows as usize {
            RowSet::from_mask(rows.clone())
        } else {
            RowSet::Runs(rows.set_slices().map(|(start, end)| at(start)..at(end)).collect())
        };
        let columns = self.evaluators[conjunct].0.columns();
        let read = RowGroupRead::try_new(&self.snapshot, row_group, columns, set, piece.batch_rows)?;
        // What is not refused may be larger than the memory.
        let memory_bytes = self.limits.memory_bytes.max(piece.bytes);
        Ok(read.within(self.limits.refused_above.unwrap_or(memory_bytes)))
    }

    /// Evaluates conjuncts one after another, each on the rows that passed the previous ones.
    fn evaluate_steps(
        &self,
        row_group: RowGroupRef,
        piece: &Piece,
        steps: Vec<Step>,
        fetched: &Fetched,
        mut alive: BooleanBuffer,
    ) -> Result<BooleanBuffer> {
        for Step { conjunct, rows, read } in steps {
            let left = &alive & &rows;
            let (num_left, num_rows) = (left.count_set_bits(), rows.count_set_bits());
            if num_left == 0 {
                continue;
            }
            let (evaluator, can_fail) = &self.evaluators[conjunct];
            let is_picked = num_left < num_rows && (*can_fail || num_left <= num_rows / ROWS_PER_SURVIVOR);
            let (rows, read) = match is_picked {
                true => {
                    let read = self.plan(row_group, conjunct, piece, &left)?;
                    (left, read)
                }
                false => (rows, read),
            };
            let bytes = read.ranges().iter().map(|range| fetched.get(range)).collect::<Result<_>>()?;
            let passed = spread(&rows, &evaluator.evaluate(row_group, read, bytes)?);
            // Rows for which the conjunct is already decided stay.
            alive = &alive & &(&passed | &!&rows);
        }
        Ok(alive)
    }
}

/// Returns what the conjuncts of `ordered` after the first `num` would read, and the preceding ones.
fn following(judge: &Judge, open: &[Open], ordered: &[usize], num: usize) -> Following {
    let Judge { snapshot, conjuncts } = judge;
    let mut following = Following::default();
    for open in open {
        let (fragment, row_group) = (snapshot.fragment(open.row_group), open.row_group.index);
        let bytes_of = |of: &[usize]| {
            let of = of.iter().filter(|conjunct| open.unknown[**conjunct] != RowSet::None);
            let columns: BTreeSet<usize> =
                of.flat_map(|&conjunct| conjuncts[conjunct].0.columns.iter().copied()).collect();
            columns.into_iter().map(|column| fragment.column_bytes(column, row_group)).fold(0, u64::saturating_add)
        };
        let (before, after) = (bytes_of(&ordered[..num]), bytes_of(&ordered[num..]));
        let num_rows = u64::from(open.row_group.num_rows).max(1);
        let alive = |bytes: u64| bytes / num_rows * u64::from(open.alive.count(0..open.row_group.num_rows));
        let (before, in_pages, whole) = match fragment.has_offset_index(row_group) {
            true => (alive(before), alive(after), 0),
            false => (before, 0, after),
        };
        following.before = following.before.saturating_add(before);
        following.in_pages = following.in_pages.saturating_add(in_pages);
        following.whole = following.whole.saturating_add(whole);
    }
    following
}

/// The fetched bytes of a piece: disjoint ranges, ascending.
struct Fetched {
    ranges: Vec<Range<u64>>,
    bytes: Vec<Bytes>,
}

impl Fetched {
    fn get(&self, range: &Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let place = self.ranges.partition_point(|have| have.end <= range.start);
        let holder = self.ranges.get(place).zip(self.bytes.get(place));
        let found = holder.and_then(|(have, bytes)| part_of(bytes, have.start, range));
        let missing = || Error::Internal { reason: format!("bytes {}..{} were not fetched", range.start, range.end) };
        found.ok_or_else(missing)
    }
}
