//! Reads rows by number, with all their pages at once.
//!
//! The cost depends on the requested rows, not on the size of the dataset: a search among the row groups, one page read
//! for each row group that holds some of them, requests merged across nearby row groups, and one copy into the batch.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use crate::dataset::Dataset;
use crate::dataset::answer::Answer;
use crate::error::{Error, Result};
use crate::io::unfinished;
use crate::memory::{Memory, READS_IN_MEMORY};
use crate::rows::RowSet;
use crate::snapshot::{RowGroupRead, RowGroupRef};
use crate::source::{Connection, num_bytes, read_ranges};
use crate::stream::gather;

/// Groups of reads whose bytes are requested at the same time, memory permitting.
const MAX_GROUPS_IN_FLIGHT: usize = 256;

/// Reads of neighbouring row groups are grouped up to this many bytes, so that decoding need not wait for all of them.
const MAX_GROUP_BYTES: u64 = 4 << 20;

/// Number of reads that a thread plans at a time.
const READS_PER_TASK: usize = 64;

/// The kept rows of a dataset, by number. Clones are cheap.
#[derive(Debug, Clone)]
pub struct RowAccess {
    dataset: Dataset,
    answer: Arc<Answer>,
    memory_bytes: u64,
}

/// The requested rows of one row group.
#[derive(Debug)]
struct Wanted {
    row_group: RowGroupRef,
    /// Row numbers within the row group, ascending.
    rows: Vec<u32>,
    /// Row numbers among all kept rows.
    kept: Vec<u64>,
    /// The position of its first row among all rows that are read.
    first: usize,
}

/// A planned read, and the position of its first row.
struct Planned {
    read: RowGroupRead,
    /// The numbers of its rows among all kept rows.
    kept: Vec<u64>,
    row_group: RowGroupRef,
    first: usize,
    bytes: u64,
}

impl RowAccess {
    /// Returns access to the rows of `answer`, the dataset's own.
    ///
    /// Reads hold about `memory_bytes` at once, in addition to the rows they return.
    pub fn new(dataset: &Dataset, answer: Arc<Answer>, memory_bytes: u64) -> Self {
        Self { dataset: dataset.clone(), answer, memory_bytes }
    }

    /// Returns the same access, with another memory limit.
    pub fn with_memory(&self, memory_bytes: u64) -> Self {
        Self { memory_bytes, ..self.clone() }
    }

    /// Returns the number of rows.
    pub fn num_rows(&self) -> u64 {
        self.answer.num_rows()
    }

    pub(crate) fn answer(&self) -> &Arc<Answer> {
        &self.answer
    }

    /// Resolves `indices` to row numbers: negative ones count from the end.
    ///
    /// # Errors
    ///
    /// [`Error::RowIndex`] for an index out of range.
    pub fn resolve(&self, indices: &[i64]) -> Result<Vec<u64>> {
        let num_rows = self.num_rows();
        let resolve = |&index: &i64| {
            let number = match u64::try_from(index) {
                Ok(number) => Some(number),
                Err(_) => num_rows.checked_sub(index.unsigned_abs()),
            };
            number.filter(|number| *number < num_rows).ok_or(Error::RowIndex { index, num_rows })
        };
        indices.iter().map(resolve).collect()
    }

    /// Returns the rows at `indices` in that order, repeated as given; negative ones count from the end.
    ///
    /// `connections` are the snapshot's [stores](Dataset::connect).
    ///
    /// # Errors
    ///
    /// [`Error::RowIndex`], those of reading, and [`Error::MemoryLimit`] for a row group that is larger than the memory
    /// and has no page index.
    pub async fn gather(&self, connections: &[Connection], indices: &[i64]) -> Result<RecordBatch> {
        let numbers = self.resolve(indices)?;
        let kept = self.kept_numbers(&numbers);
        let mut unique = kept.clone();
        unique.sort_unstable();
        unique.dedup();
        if unique.is_empty() || connections.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(self.dataset.schema())));
        }
        let io = Arc::clone(&connections[0].io);
        let planned = self.plan_all(connections, self.wanted(&unique)).await?;
        let firsts: Vec<usize> = planned.iter().map(|planned| planned.first).collect();
        let sources = self.read_all(connections, planned).await?;
        let this = self.clone();
        io.blocking(move || this.copy(&sources, &firsts, &unique, &kept)).await?
    }

    /// Returns the numbers that the rows at `numbers` have among the kept ones, in the order of the dataset.
    pub(crate) fn kept_numbers(&self, numbers: &[u64]) -> Vec<u64> {
        let Some(order) = self.answer.order() else { return numbers.to_vec() };
        let place = |&number: &u64| usize::try_from(number).ok().and_then(|place| order.get(place)).copied();
        numbers.iter().filter_map(place).collect()
    }

    /// Returns the requested rows of each row group, given ascending numbers among the kept rows.
    fn wanted(&self, unique: &[u64]) -> Vec<Wanted> {
        let snapshot = self.dataset.snapshot();
        let mut first = 0;
        let wanted = |(index, rows): (usize, Vec<u32>)| {
            let num_rows = rows.len();
            let kept = unique[first..first + num_rows].to_vec();
            let wanted = Wanted { row_group: snapshot.row_groups[index], rows, kept, first };
            first += num_rows;
            wanted
        };
        self.rows_of(unique).into_iter().map(wanted).collect()
    }

    /// Returns the row groups that hold the kept rows numbered `unique`, ascending, and which of their rows these are.
    pub(crate) fn rows_of(&self, unique: &[u64]) -> Vec<(usize, Vec<u32>)> {
        let selection = self.answer.selection();
        let starts = selection.starts(self.dataset.snapshot());
        let mut found = Vec::new();
        let mut first = 0;
        while let Some(&number) = unique.get(first) {
            let index = starts.partition_point(|start| *start <= number) - 1;
            let end = first + unique[first..].partition_point(|number| *number < starts[index + 1]);
            let within = |number: &u64| u32::try_from(number - starts[index]).unwrap_or(u32::MAX);
            let numbers: Vec<u32> = unique[first..end].iter().map(within).collect();
            found.push((index, selection.rows(index).nth(&numbers)));
            first = end;
        }
        found
    }

    /// Plans the reads of all rows, in parallel, since planning looks at pages.
    async fn plan_all(&self, connections: &[Connection], wanted: Vec<Wanted>) -> Result<Vec<Planned>> {
        let mut wanted = wanted.into_iter();
        let mut tasks = Vec::new();
        loop {
            let some: Vec<Wanted> = wanted.by_ref().take(READS_PER_TASK).collect();
            if some.is_empty() {
                break;
            }
            let this = self.clone();
            tasks.push(connections[0].io.spawn_blocking(move || {
                let mut planned = Vec::with_capacity(some.len());
                for wanted in some {
                    this.plan(wanted, &mut planned)?;
                }
                Ok::<_, Error>(planned)
            }));
        }
        let mut planned = Vec::new();
        for task in tasks {
            planned.extend(task.await.map_err(unfinished)??);
        }
        Ok(planned)
    }

    /// Plans the read of some rows of one row group; splits it in halves if its pages take much of the memory.
    fn plan(&self, wanted: Wanted, planned: &mut Vec<Planned>) -> Result<()> {
        let Wanted { row_group, mut rows, mut kept, first } = wanted;
        let snapshot = self.dataset.snapshot();
        let set = RowSet::from_rows(&rows, row_group.num_rows);
        let projection = self.dataset.projection();
        let read = RowGroupRead::try_new(snapshot, row_group, projection, set, rows.len())?;
        let read = read.within(self.memory_bytes);
        let bytes = num_bytes(read.ranges());
        let has_pages = snapshot.fragment(row_group).has_offset_index(row_group.index);
        if bytes > self.memory_bytes / READS_IN_MEMORY && rows.len() > 1 && has_pages {
            let half = rows.len() / 2;
            let rest =
                Wanted { row_group, rows: rows.split_off(half), kept: kept.split_off(half), first: first + half };
            self.plan(Wanted { row_group, rows, kept, first }, planned)?;
            return self.plan(rest, planned);
        }
        if bytes > self.memory_bytes {
            return Err(snapshot.fragment(row_group).memory_error(row_group.index, self.memory_bytes, bytes));
        }
        planned.push(Planned { read, kept, row_group, first, bytes });
        Ok(())
    }

    /// Returns the rows of each read, in order.
    async fn read_all(&self, connections: &[Connection], planned: Vec<Planned>) -> Result<Vec<RecordBatch>> {
        let memory = Memory::new(self.memory_bytes);
        let groups = self.group(planned);
        let read = |group: Vec<Planned>| {
            let memory = &memory;
            async move {
                let _memory = memory.take(group.iter().map(|planned| planned.bytes).sum()).await?;
                self.read_group(connections, group).await
            }
        };
        stream::iter(groups).map(read).buffered(MAX_GROUPS_IN_FLIGHT).try_concat().await
    }

    /// Groups reads that are close enough to share requests.
    fn group(&self, planned: Vec<Planned>) -> Vec<Vec<Planned>> {
        let snapshot = self.dataset.snapshot();
        let mut groups: Vec<Vec<Planned>> = Vec::new();
        let mut bytes_of_last = 0;
        for next in planned {
            let fragment = snapshot.fragment(next.row_group);
            let is_near = |last: &Planned| {
                let starts = next.read.ranges().iter().map(|range| range.start).min();
                let ends = last.read.ranges().iter().map(|range| range.end).max();
                let gap = starts.zip(ends).map(|(start, end)| start.abs_diff(end));
                last.row_group.fragment == next.row_group.fragment
                    && gap.is_none_or(|gap| gap <= snapshot.gap_bytes(fragment))
            };
            match groups.last_mut() {
                Some(group) if bytes_of_last + next.bytes <= MAX_GROUP_BYTES && group.last().is_some_and(is_near) => {
                    bytes_of_last += next.bytes;
                    group.push(next);
                }
                _ => {
                    bytes_of_last = next.bytes;
                    groups.push(vec![next]);
                }
            }
        }
        groups
    }

    async fn read_group(&self, connections: &[Connection], group: Vec<Planned>) -> Result<Vec<RecordBatch>> {
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let fragment = self.dataset.snapshot().fragment(first.row_group);
        let connection = &connections[fragment.store];
        let ranges: Vec<Range<u64>> = group.iter().flat_map(|planned| planned.read.ranges()).cloned().collect();
        let bytes = read_ranges(connection, &fragment.object, &ranges).await?;
        let this = self.clone();
        let decode = move || {
            let mut bytes = bytes.into_iter();
            let decode = |planned: Planned| {
                let bytes = bytes.by_ref().take(planned.read.ranges().len()).collect();
                this.decode(planned, bytes)
            };
            group.into_iter().map(decode).collect()
        };
        connection.io.blocking(decode).await?
    }

    /// Decodes a read and turns it into the dataset's columns.
    fn decode(&self, planned: Planned, bytes: Vec<Bytes>) -> Result<RecordBatch> {
        let Planned { read, kept, row_group, .. } = planned;
        let decoded = read.decode_at_once(bytes)?;
        let Some(outputs) = self.dataset.outputs() else { return Ok(decoded) };
        let attached = self.answer.attached_rows(&kept).map_err(|error| too_large(&error))?;
        let url = || self.dataset.snapshot().fragment(row_group).object.url.clone();
        let failed = |reason| Error::Evaluate { url: url(), row_group: row_group.index as usize, reason };
        outputs.finish(&decoded, attached.as_ref()).map_err(failed)
    }

    /// Gathers the rows numbered `kept`; `sources` hold those numbered `unique`, each source starting at its position
    /// in `firsts`.
    fn copy(&self, sources: &[RecordBatch], firsts: &[usize], unique: &[u64], kept: &[u64]) -> Result<RecordBatch> {
        let place = |number: &u64| {
            let place = unique.partition_point(|other| other < number);
            let source = firsts.partition_point(|first| *first <= place) - 1;
            let narrow = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
            (narrow(source), narrow(place - firsts[source]))
        };
        let rows: Vec<(u32, u32)> = kept.iter().map(place).collect();
        gather(self.dataset.schema(), sources, &rows).map_err(|error| too_large(&error))
    }
}

fn too_large(error: &ArrowError) -> Error {
    Error::Setting { name: "indices", reason: format!("{error}; ask for fewer rows at once") }
}

#[cfg(test)]
mod tests;
