//! A disk cache of selections, so that later runs and other ranks need not evaluate them again.
//!
//! The key covers everything that a selection depends on: the objects, the query, and the versions of what evaluates
//! it.

use std::sync::Arc;

use datafusion::DATAFUSION_VERSION;

use super::codec::{put_number, put_sets, take_number, take_sets};
use super::{Report, Selection, sizes};
use crate::cache::{Cache, Found};
use crate::error::Result;
use crate::io::Io;
use crate::snapshot::Snapshot;

/// The folder of the cache.
const KIND: &str = "selections";

/// Changes when the layout of an entry does (counts of the report, then the rows), and when filters come to select
/// other rows.
const LAYOUT: &str = "4";

/// The cache entry of one selection.
#[derive(Debug, Clone)]
pub(crate) struct SelectionCache {
    cache: Cache,
    key: Vec<String>,
}

impl SelectionCache {
    /// Returns the entry for what `query` selects from `snapshot`; `None` without a cache, or if versions of an object
    /// cannot be distinguished.
    pub(crate) fn of_process(snapshot: &Snapshot, query: &[String]) -> Option<Self> {
        Self::new(Cache::of_process(KIND)?, snapshot, query)
    }

    fn new(cache: Cache, snapshot: &Snapshot, query: &[String]) -> Option<Self> {
        let versions = [LAYOUT, env!("CARGO_PKG_VERSION"), DATAFUSION_VERSION].map(str::to_owned);
        // Fingerprints are those of copies, too, whose bytes nobody compared.
        let identity = [snapshot.fingerprint.clone(), snapshot.versions()?];
        Some(Self { cache, key: versions.into_iter().chain(identity).chain(query.iter().cloned()).collect() })
    }

    /// Returns the cached selection; otherwise evaluates it, and caches it if that took reads and it is complete. The
    /// disk is accessed on threads of `io`.
    ///
    /// # Errors
    ///
    /// Those of evaluating.
    pub(crate) async fn get_or(
        cache: Option<Self>,
        io: Option<Arc<Io>>,
        snapshot: &Snapshot,
        evaluate: impl Future<Output = Result<Selection>>,
    ) -> Result<Selection> {
        let Some((cache, io)) = cache.zip(io) else { return evaluate.await };
        let sizes = sizes(snapshot);
        let (place, of) = (cache.clone(), sizes.clone());
        let found = io.blocking(move || place.get(&of)).await?;
        let damaged = match found {
            Ok(Some(selection)) => return Ok(selection),
            Ok(None) => None,
            Err(path) => Some(path),
        };
        let mut selection = evaluate.await?;
        if selection.report.requests > 0 && !selection.report.is_partial {
            let bytes = encode(&selection, &sizes);
            // What cannot be stored is evaluated again next time.
            io.blocking(move || cache.put(&bytes)).await?;
        }
        selection.note = damaged.map(|path| format!("the cached selection `{path}` was damaged; it was made again"));
        Ok(selection)
    }

    /// Returns the cached selection, if there is one; the path of an invalid entry.
    fn get(&self, sizes: &[u32]) -> Result<Option<Selection>, String> {
        let key: Vec<&str> = self.key.iter().map(String::as_str).collect();
        let bytes = match self.cache.get(&key) {
            Found::Nothing => return Ok(None),
            Found::Damaged(path) => return Err(path.display().to_string()),
            Found::Bytes(bytes) => bytes,
        };
        let selection = decode(&bytes, sizes);
        if selection.is_none() {
            self.cache.remove(&key);
        }
        selection.map(Some).ok_or_else(|| self.cache.path_of(&key).display().to_string())
    }

    fn put(&self, bytes: &[u8]) -> bool {
        let key: Vec<&str> = self.key.iter().map(String::as_str).collect();
        self.cache.put(&key, bytes)
    }
}

fn encode(selection: &Selection, sizes: &[u32]) -> Vec<u8> {
    let Report { num_pruned, num_whole, num_read, num_outside, .. } = selection.report;
    let mut bytes = Vec::new();
    for count in [num_pruned, num_whole, num_read, num_outside] {
        put_number(count, &mut bytes);
    }
    put_sets(&selection.rows, sizes, &mut bytes);
    bytes
}

fn decode(mut bytes: &[u8], sizes: &[u32]) -> Option<Selection> {
    let bytes = &mut bytes;
    let mut report = Report { is_cached: true, ..Report::default() };
    for count in [&mut report.num_pruned, &mut report.num_whole, &mut report.num_read, &mut report.num_outside] {
        *count = take_number(bytes)?;
    }
    let rows = take_sets(bytes, sizes)?;
    bytes.is_empty().then(|| Selection { report, ..Selection::of_sizes(rows, sizes) })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::super::RowSet;
    use super::*;

    const SIZES: [u32; 3] = [10, 20, 30];

    fn selection(requests: u64) -> Selection {
        let rows = vec![RowSet::All, RowSet::None, RowSet::from_rows(&[3, 4, 9], 30)];
        let report = Report { num_pruned: 1, num_whole: 1, num_read: 1, requests, ..Report::default() };
        Selection { report, ..Selection::of_sizes(rows, &SIZES) }
    }

    fn snapshot() -> Snapshot {
        Snapshot::of_sizes(&SIZES)
    }

    /// Requests the selection; returns it and how often it was evaluated.
    fn ask(folder: &Path, query: &str, requests: u64) -> (Selection, u32) {
        let snapshot = snapshot();
        let cache =
            SelectionCache::new(Cache::new(folder.to_owned(), 1 << 20), &snapshot, &[query.to_owned()]).unwrap();
        let times = Cell::new(0);
        let evaluate = async {
            times.set(times.get() + 1);
            Ok(selection(requests))
        };
        let got = Io::current()
            .unwrap()
            .block_on(SelectionCache::get_or(Some(cache), Some(Io::current().unwrap()), &snapshot, evaluate))
            .unwrap();
        (got, times.get())
    }

    #[test]
    fn what_took_reads_is_evaluated_once() {
        let folder = tempfile::tempdir().unwrap();
        let (first, times) = ask(folder.path(), "a > 1", 2);
        assert_eq!((first.report.requests, first.report.is_cached, times), (2, false, 1));
        let (second, times) = ask(folder.path(), "a > 1", 2);
        assert_eq!((second.rows, second.num_rows, times), (first.rows, first.num_rows, 0));
        let Report { num_pruned, num_whole, num_read, requests, is_cached, .. } = second.report;
        assert_eq!((num_pruned, num_whole, num_read, requests, is_cached), (1, 1, 1, 0, true));
        assert_eq!(ask(folder.path(), "a > 2", 2).1, 1, "another query is another selection");
    }

    #[test]
    fn what_statistics_decide_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            assert_eq!(ask(folder.path(), "a > 1", 0).1, 1);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_damaged_is_made_again_and_said() {
        let folder = tempfile::tempdir().unwrap();
        ask(folder.path(), "a > 1", 2);
        let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let (again, times) = ask(folder.path(), "a > 1", 2);
        assert_eq!(times, 1);
        assert!(again.note.is_some_and(|note| note.contains(path.to_str().unwrap()) && note.contains("damaged")));
        let (sound, times) = ask(folder.path(), "a > 1", 2);
        assert_eq!((sound.note, times), (None, 0));
    }

    #[test]
    fn an_entry_with_a_right_checksum_and_wrong_rows_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = snapshot();
        let cache =
            SelectionCache::new(Cache::new(folder.path().to_owned(), 1 << 20), &snapshot, &["a > 1".to_owned()])
                .unwrap();
        let sound = encode(&selection(2), &SIZES);
        for bytes in [&b""[..], b"\0\0\0\0\x02\xff\xff\x03", &sound[..sound.len() - 1], &[&sound[..], b"x"].concat()] {
            cache.put(bytes);
            let (_, times) = ask(folder.path(), "a > 1", 2);
            assert_eq!(times, 1, "{bytes:?}");
        }
    }
}
