//! Which batches come next, and the parts of pieces that they need.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::Skipped;
use super::super::piece::{PieceKey, PlannedBatch, PlannedRows, Progress, Resident, Stage, note_wanted, planned_bytes};
use super::Scheduler;
use super::gathering::MIN_READY_BATCHES;
use crate::plan::{BatchSlice, PieceId, RowRef, RowRun};
use crate::reader::{Part, TooLarge};

/// Maximum of rows planned ahead while there is something else to do.
const MAX_PLANNED_ROWS: usize = 1 << 18;

/// The fraction of the limit that they may take: they are planned whether there is room or not.
const MOST_PLANNED_SHARE: u64 = 8;

/// Maximum of rows planned ahead while there is nothing else to do, large enough for small rows to keep many requests
/// in flight; also of rows in a block, so that few blocks read the same parts.
pub(super) const MAX_IDLE_PLANNED_ROWS: usize = 1 << 22;

/// The fraction of the limit for the rows that are planned then.
const PLANNED_SHARE: u64 = 16;

/// If batches follow parts, parts with this fraction of a batch's rows become batches of their own; smaller ones are
/// merged.
const LARGE_SHARE: usize = 4;

impl Scheduler {
    /// Plans as many batches as are useful.
    pub(super) fn plan_ahead(&mut self) -> Result<(), TooLarge> {
        if self.block == 0 {
            let max_planned = (self.max_planned_rows() / self.batch_rows()).max(MIN_READY_BATCHES + 1);
            while !self.is_planned_to_end
                && self.queue.is_empty()
                && self.batches.len() < max_planned
                && self.plan_batch()?
            {}
            return Ok(());
        }
        self.plan_block()
    }

    /// Returns how many rows to plan ahead if the window fits.
    fn max_planned_rows(&self) -> usize {
        let busy = self.max_busy_planned_rows();
        if !self.to_decode.is_empty() {
            return busy;
        }
        self.planned_rows_of(PLANNED_SHARE).clamp(busy, MAX_IDLE_PLANNED_ROWS)
    }

    /// Returns how many rows to plan ahead while there is something else to do.
    fn max_busy_planned_rows(&self) -> usize {
        self.planned_rows_of(MOST_PLANNED_SHARE).min(MAX_PLANNED_ROWS)
    }

    /// Returns how many planned rows fit into a fraction of the limit.
    fn planned_rows_of(&self, share: u64) -> usize {
        let room = u128::from(self.budget.limit() / share) * self.batch_rows() as u128;
        usize::try_from(room / u128::from(self.planned_batch_bytes())).unwrap_or(usize::MAX)
    }

    /// Returns the memory for planning a batch of the usual size, with as many parts as the previous one.
    pub(super) fn planned_batch_bytes(&self) -> u64 {
        planned_bytes(self.batch_rows(), self.num_batch_pieces)
    }

    pub(super) fn batch_rows(&self) -> usize {
        (self.share.batch_rows as usize).max(1)
    }

    /// Plans one more batch; returns `false` at the end.
    pub(super) fn plan_batch(&mut self) -> Result<bool, TooLarge> {
        let number = self.num_delivered + self.batches.len() as u64;
        let Some(slice) = self.next_slice().filter(|_| number < self.end) else {
            self.is_planned_to_end = true;
            self.end_walk();
            return Ok(false);
        };
        self.check_size(&slice)?;
        match &mut self.position {
            Some(position) => *position = slice.next,
            None => drop(self.numbers.next()),
        }
        let (mut finished, mut skipped) = (Vec::new(), Skipped::default());
        let (wanted, rows) = match self.visit_runs(&slice, &mut finished) {
            Some(runs) => self.want_runs(runs),
            None => {
                let mut refs = self.visit(&slice, &mut finished);
                skipped.rows = self.holes.drop_missing(&mut refs, &self.plan) as u64;
                self.want(&refs)
            }
        };
        self.note_planned(number, &wanted);
        let num_missing = wanted.iter().filter(|(key, _)| !self.is_held(key)).count();
        let of_part = |(key, count): &(PieceKey, u32)| {
            self.residents.get(key).map_or(0, |resident| resident.part.decoded_bytes(*count))
        };
        let expected = wanted.iter().map(of_part).fold(0, u64::saturating_add);
        let (pieces, row_counts): (Vec<PieceKey>, Vec<u32>) = wanted.into_iter().unzip();
        if self.block > 0 {
            note_wanted(&mut self.residents, &pieces, &rows);
        }
        let (num_rows, progress) = (rows.len(), Progress::Planned { rows, num_missing });
        let batch = PlannedBatch { slice, num_rows, skipped, pieces, row_counts, expected, progress };
        self.budget.reserve(batch.planned_bytes());
        self.num_batch_pieces = batch.pieces.len();
        self.batches.push_back(batch);
        for piece in finished {
            let num_parts = self.parts.remove(&piece).map_or(0, |parts| parts.len());
            for part in (0..).take(num_parts) {
                let key = PieceKey { piece, part, block: self.block };
                if let Some(resident) = self.residents.get_mut(&key) {
                    resident.is_finished = true;
                }
                self.drop_if_unwanted(key);
            }
        }
        Ok(true)
    }

    /// Returns the next batch to plan; `None` at the end.
    fn next_slice(&mut self) -> Option<BatchSlice> {
        let Some(first) = self.position else { return self.numbers.peek().and_then(|&t| self.share.batch(t)) };
        let left = usize::try_from(self.share.num_rows.checked_sub(first)?).unwrap_or(usize::MAX);
        let (most, large) = (self.batch_rows().min(left), self.batch_rows().div_ceil(LARGE_SHARE));
        let mut len = 0;
        while len < most {
            let RowRef { piece, row } = self.plan.locate(first + len as u64)?;
            let row = self.plan.piece(piece).kept.start + row;
            let parts = self.parts.entry(piece).or_insert_with(|| (self.cut)(piece).into());
            let part = parts.get(parts.partition_point(|part| part.kept.end <= row))?;
            let of_part = (part.kept.end - row) as usize;
            if of_part >= large {
                len = if len == 0 { of_part } else { len };
                break;
            }
            len += of_part;
        }
        let len = len.min(most);
        (len > 0).then(|| BatchSlice { first, step: 1, len, padding: None, next: first + len as u64 })
    }

    /// Refuses a batch that exceeds the limit, both by the size of rows so far and by the footers for its own rows.
    fn check_size(&mut self, slice: &BatchSlice) -> Result<(), TooLarge> {
        let (limit, planned) = (self.budget.limit(), planned_bytes(slice.len, 0));
        let mut row_bytes = self.row_bytes.of(slice.len);
        if planned <= limit && row_bytes.saturating_add(planned) > limit {
            row_bytes = row_bytes.min(self.expected_bytes(slice));
        }
        let is_too_large = row_bytes.saturating_add(planned) > limit;
        if is_too_large { Err(self.too_large_batch(slice, row_bytes)) } else { Ok(()) }
    }

    /// Returns the bytes of a batch's rows, according to the footers of their own parts.
    fn expected_bytes(&mut self, slice: &BatchSlice) -> u64 {
        let mut refs = Vec::with_capacity(slice.len);
        self.walk.clone().visit(slice.first, slice.step, slice.len, &mut refs, &mut Vec::new());
        let mut bytes = 0_u64;
        for of_piece in refs.chunk_by(|one, next| one.piece == next.piece) {
            let piece = of_piece[0].piece;
            let parts = self.parts.entry(piece).or_insert_with(|| (self.cut)(piece).into());
            let first = self.plan.piece(piece).kept.start;
            for row in of_piece {
                let kept = self.plan.kept_row(piece.span, first + row.row);
                let part = parts.get(parts.partition_point(|part| part.kept.end <= kept));
                bytes = bytes.saturating_add(part.map_or(0, |part| part.decoded_bytes(1)));
            }
        }
        self.row_bytes.corrected(bytes)
    }

    /// Returns the error for a batch that exceeds the limit, or for its first part if not even that fits.
    fn too_large_batch(&self, slice: &BatchSlice, row_bytes: u64) -> TooLarge {
        let piece = self.plan.locate(slice.first).map_or(PieceId { lane: 0, span: 0 }, |row| row.piece);
        let part_bytes = (self.cut)(piece).first().map_or(0, |part| part.cost.total());
        if part_bytes > self.budget.limit() {
            return TooLarge { piece, part_bytes, needed_bytes: self.limit_for(part_bytes), batch_rows: slice.len };
        }
        let of_batch = row_bytes.saturating_mul(2).saturating_add(planned_bytes(slice.len, 0));
        let needed_bytes = self.limit_for(of_batch.saturating_add(part_bytes));
        TooLarge { piece, part_bytes: 0, needed_bytes, batch_rows: slice.len }
    }

    fn is_held(&self, key: &PieceKey) -> bool {
        self.residents.get(key).is_some_and(|resident| matches!(resident.stage, Stage::Ready(..)))
    }

    /// Returns the rows of a slice.
    fn visit(&mut self, slice: &BatchSlice, finished: &mut Vec<PieceId>) -> Vec<RowRef> {
        let mut refs = Vec::with_capacity(slice.len + 1);
        self.walk.visit(slice.first, slice.step, slice.len, &mut refs, finished);
        // A repeated row comes in a piece of its own, needed only this once.
        let padding = slice.padding.and_then(|position| self.plan.repeat(position));
        refs.extend(padding);
        finished.extend(padding.map(|row| row.piece));
        refs
    }

    /// Returns the rows of a slice as runs, if they come in runs: when a single process reads the whole dataset in
    /// order.
    fn visit_runs(&mut self, slice: &BatchSlice, finished: &mut Vec<PieceId>) -> Option<Vec<RowRun>> {
        let may_be = slice.step == 1 && slice.padding.is_none() && self.holes.is_empty() && !self.plan.is_drawn();
        if may_be { self.walk.visit_runs(slice.first, slice.len, finished) } else { None }
    }

    /// Returns the parts of pieces that a batch of `refs` needs, with the number of rows of each, and its rows.
    fn want(&mut self, refs: &[RowRef]) -> (Vec<(PieceKey, u32)>, PlannedRows) {
        let mut wants = Wants::default();
        let mut rows = Vec::with_capacity(refs.len());
        let (plan, is_drawn) = (Arc::clone(&self.plan), self.plan.is_drawn());
        let mut rest = refs;
        while let Some((&RowRef { piece, row }, others)) = rest.split_first() {
            let index = self.open(&mut wants, piece);
            let first = wants.opened[index].first;
            let kept_row = |row| if is_drawn { plan.kept_row(piece.span, first + row) } else { first + row };
            let (place, of_part) = self.want_part(&mut wants, index, kept_row(row));
            // In dataset order, the following rows are nearly always in the same part.
            let is_same = |next: &&RowRef| next.piece == piece && of_part.contains(&kept_row(next.row));
            let num_taken = 1 + others.iter().take_while(is_same).count();
            rows.extend(rest[..num_taken].iter().map(|taken| (place, kept_row(taken.row) - of_part.start)));
            wants.keys[place as usize].1 += u32::try_from(num_taken).unwrap_or(u32::MAX);
            rest = &rest[num_taken..];
        }
        (wants.keys, PlannedRows::Each(rows))
    }

    /// Like [`want`](Self::want), for runs.
    fn want_runs(&mut self, runs: Vec<RowRun>) -> (Vec<(PieceKey, u32)>, PlannedRows) {
        let mut wants = Wants::default();
        let mut of_parts = Vec::with_capacity(runs.len());
        for RowRun { piece, rows } in runs {
            let index = self.open(&mut wants, piece);
            let first = wants.opened[index].first;
            let mut left = first + rows.start..first + rows.end;
            while !left.is_empty() {
                let (place, of_part) = self.want_part(&mut wants, index, left.start);
                let end = left.end.min(of_part.end).max(left.start + 1);
                wants.keys[place as usize].1 += end - left.start;
                of_parts.push((place, left.start - of_part.start..end - of_part.start));
                left.start = end;
            }
        }
        (wants.keys, PlannedRows::Runs(of_parts))
    }

    /// Returns the index of `piece` among the opened pieces.
    fn open(&mut self, wants: &mut Wants, piece: PieceId) -> usize {
        let Wants { seen, opened, places, .. } = wants;
        *seen.entry(piece).or_insert_with(|| {
            let parts = Arc::clone(self.parts.entry(piece).or_insert_with(|| (self.cut)(piece).into()));
            let first_place = places.len();
            places.resize(first_place + parts.len(), NO_PLACE);
            opened.push(Opened { piece, parts, first_place, first: self.plan.piece(piece).kept.start });
            opened.len() - 1
        })
    }

    /// Returns the index, among the parts that the batch needs, of the one that holds a kept row of an opened piece,
    /// and the rows of that part. Queues the part if nothing needed it before.
    fn want_part(&mut self, wants: &mut Wants, index: usize, row: u32) -> (u32, Range<u32>) {
        let &Opened { piece, ref parts, first_place, .. } = &wants.opened[index];
        let part = if parts.len() == 1 { 0 } else { parts.partition_point(|part| part.kept.end <= row) };
        let place = &mut wants.places[first_place + part];
        if *place == NO_PLACE {
            *place = u32::try_from(wants.keys.len()).unwrap_or(NO_PLACE);
            let key = PieceKey { piece, part: u32::try_from(part).unwrap_or(u32::MAX), block: self.block };
            wants.keys.push((key, 0));
            if !self.residents.contains_key(&key) {
                self.queue.push_back(key);
                let mut resident = Resident::new(parts[part].clone());
                let drawn = self.plan.drawn_rows(piece, &parts[part].kept);
                // Picking few rows apart costs more than decoding twice as many together.
                resident.keep = drawn.filter(|rows| rows.len() * 2 < resident.num_rows() as usize);
                self.residents.insert(key, resident);
            }
        }
        (*place, parts[part].kept.clone())
    }

    /// Records which parts batch `number` needs, and how many rows of each.
    fn note_planned(&mut self, number: u64, wanted: &[(PieceKey, u32)]) {
        let is_drawn = self.plan.is_drawn();
        for (key, num_rows) in wanted {
            let Some(resident) = self.residents.get_mut(key) else { continue };
            resident.num_users += 1;
            resident.num_planned += num_rows;
            // Unless rows are drawn, each is delivered once, so a part is finished when all of its rows are planned.
            resident.is_finished |= !is_drawn && resident.num_planned >= resident.num_rows();
            if !matches!(resident.stage, Stage::Ready(..)) {
                resident.waiting.push(number);
            }
        }
    }
}

/// The index of a part that was not requested yet.
const NO_PLACE: u32 = u32::MAX;

/// What a batch needs, as far as it is known.
#[derive(Default)]
struct Wants {
    /// The index of each among the opened pieces.
    seen: FxHashMap<PieceId, usize>,
    opened: Vec<Opened>,
    /// For the parts of all opened pieces: the index among the batch's parts.
    places: Vec<u32>,
    /// The parts, with the number of rows needed of each.
    keys: Vec<(PieceKey, u32)>,
}

/// A piece with rows that a batch needs.
struct Opened {
    piece: PieceId,
    parts: Arc<[Part]>,
    /// The index of its first part in `places`.
    first_place: usize,
    /// The number of the piece's first row within its span.
    first: u32,
}
