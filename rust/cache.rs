//! A disk cache of bytes by key, kept across runs.
//!
//! Whatever goes wrong, a cache only ever costs time: what cannot be written is not kept, and damaged entries are
//! removed and made again. Entries appear whole or not at all (they are renamed from a temporary name), so any number
//! of processes may share a folder. If there are too many, the least recently used go first.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::hex::hex;

/// Names the folder of the cache; `0` disables it.
pub(crate) const VARIABLE: &str = "FOREBAY_CACHE";

/// Maximum total size of the entries of one kind.
pub(crate) const MAX_BYTES: u64 = 4 << 30;

/// Maximum number of entries of one kind: all are examined whenever one is written, and each takes a disk block,
/// however small.
const MAX_ENTRIES: usize = 10_000;

/// An entry takes at most this fraction of the bytes.
const MAX_ENTRY_SHARE: u64 = 4;

/// A temporary file this old was left by a process that ended early.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// The first bytes of an entry, changed with its layout: this, the digest of the key, the bytes, the digest of all
/// that.
const MAGIC: &[u8; 8] = b"fbcache1";

const DIGEST_BYTES: usize = 32;

/// Entries of one kind in a folder.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
    max_bytes: u64,
}

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Bytes(Vec<u8>),
    Nothing,
    /// The entry at this path was damaged, and has been removed.
    Damaged(PathBuf),
}

impl Cache {
    /// Returns the process's cache for one kind of thing, in the folder that the environment names; `None` if it is
    /// disabled, or no folder is known.
    pub(crate) fn of_process(kind: &str) -> Option<Self> {
        if cfg!(test) {
            return None;
        }
        folder(|name| std::env::var_os(name).map(PathBuf::from)).map(|folder| Self::new(folder.join(kind), MAX_BYTES))
    }

    /// Returns a cache of about `max_bytes` in `folder`, which need not exist.
    pub(crate) fn new(folder: PathBuf, max_bytes: u64) -> Self {
        Self { folder, max_bytes }
    }

    /// Returns the bytes stored under `key`.
    pub(crate) fn get(&self, key: &[&str]) -> Found {
        let digest = digest_of(key);
        let path = self.path(&digest);
        // Missing files, unreadable ones and non-files are all misses. Reading a pipe would block.
        let is_file = fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
        let Some(mut bytes) = is_file.then(|| fs::read(&path).ok()).flatten() else { return Found::Nothing };
        let Some(body) = check(&bytes, &digest) else {
            self.remove(key);
            return Found::Damaged(path);
        };
        bytes.truncate(body.end);
        bytes.drain(..body.start);
        // Only marks the entry as used recently; harmless if that is not permitted.
        drop(File::options().write(true).open(&path).and_then(|file| file.set_modified(SystemTime::now())));
        Found::Bytes(bytes)
    }

    /// Stores `bytes` under `key`, if there is room and the disk allows; returns whether it did.
    pub(crate) fn put(&self, key: &[&str], bytes: &[u8]) -> bool {
        if bytes.len() as u64 > self.max_bytes / MAX_ENTRY_SHARE {
            return false;
        }
        let is_kept = self.write(&digest_of(key), bytes).is_ok();
        // Too many entries do no harm until the next eviction.
        drop(self.evict());
        is_kept
    }

    /// Removes the entry for `key`, if there is one.
    pub(crate) fn remove(&self, key: &[&str]) {
        // If it cannot be removed, it is refused again next time.
        drop(fs::remove_file(self.path(&digest_of(key))));
    }

    /// Returns the path of the entry for `key`.
    pub(crate) fn path_of(&self, key: &[&str]) -> PathBuf {
        self.path(&digest_of(key))
    }

    fn path(&self, digest: &[u8; DIGEST_BYTES]) -> PathBuf {
        self.folder.join(hex(digest))
    }

    fn write(&self, digest: &[u8; DIGEST_BYTES], bytes: &[u8]) -> io::Result<()> {
        static NUM_WRITTEN: AtomicU64 = AtomicU64::new(0);
        make_folder(&self.folder)?;
        let number = NUM_WRITTEN.fetch_add(1, Ordering::Relaxed);
        // Process ids are not unique across machines and containers.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let temporary = self.folder.join(format!(".{}-{now:x}-{number}", std::process::id()));
        let mut hash = Sha256::new();
        let mut write = || {
            let mut file = File::create(&temporary)?;
            for part in [&MAGIC[..], &digest[..], bytes] {
                hash.update(part);
                file.write_all(part)?;
            }
            file.write_all(&hash.finalize_reset())?;
            fs::rename(&temporary, self.path(digest))
        };
        write().inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// Removes the least recently used entries beyond the limits, and abandoned temporary files.
    fn evict(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            // Another process may have removed it meanwhile.
            let Ok((entry, metadata)) = entry.and_then(|entry| entry.metadata().map(|metadata| (entry, metadata)))
            else {
                continue;
            };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push((used, metadata.len(), entry.path()));
            } else if now.duration_since(used).is_ok_and(|age| age > ABANDONED_AFTER) {
                drop(fs::remove_file(entry.path()));
            }
        }
        entries.sort_unstable();
        let mut bytes: u64 = entries.iter().map(|entry| entry.1).sum();
        let num_entries = entries.len();
        for (num_removed, (_, num_bytes, path)) in entries.into_iter().enumerate() {
            if bytes <= self.max_bytes && num_entries - num_removed <= MAX_ENTRIES {
                break;
            }
            drop(fs::remove_file(path));
            bytes -= num_bytes;
        }
        Ok(())
    }
}

/// Returns the folder of all kinds: what [`VARIABLE`] names, else `forebay` in the user's cache folder. Variables that
/// were not set by a shell may still contain a `~`.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let given = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    let named = |name| {
        let path = given(name)?;
        match path.strip_prefix("~") {
            // Without a home, `~` has no meaning, and no folder is made.
            Ok(below) => given("HOME").or_else(std::env::home_dir).map(|home| home.join(below)),
            Err(_) => Some(path),
        }
    };
    if let Some(folder) = named(VARIABLE) {
        return (folder != Path::new("0")).then_some(folder);
    }
    let users = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    users.or_else(|| named("LOCALAPPDATA")).map(|folder| folder.join("forebay"))
}

/// Creates a folder that only its user may enter, since entries reveal what was read.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn digest_of(key: &[&str]) -> [u8; DIGEST_BYTES] {
    let mut hash = Sha256::new();
    for part in key {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns the range of the bytes in an entry; `None` if it is not an intact entry for that key.
fn check(entry: &[u8], digest: &[u8; DIGEST_BYTES]) -> Option<std::ops::Range<usize>> {
    let (hashed, sum) = entry.split_last_chunk::<DIGEST_BYTES>()?;
    let start = MAGIC.len() + DIGEST_BYTES;
    let is_ours = hashed.get(..MAGIC.len())? == MAGIC && hashed.get(MAGIC.len()..start)? == digest;
    (is_ours && Sha256::digest(hashed)[..] == sum[..]).then_some(start..hashed.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn an_entry_is_found_by_its_whole_key() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("a/b"), MAX_BYTES);
        assert_eq!(cache.get(&["x", "y"]), Found::Nothing);
        assert!(cache.put(&["x", "y"], b"one"));
        assert!(cache.put(&["xy", ""], b"two"));
        assert_eq!(cache.get(&["x", "y"]), Found::Bytes(b"one".into()));
        assert_eq!(cache.get(&["xy", ""]), Found::Bytes(b"two".into()));
        assert!(cache.put(&["x", "y"], b""));
        assert_eq!(cache.get(&["x", "y"]), Found::Bytes(Vec::new()));
        assert_eq!(names(&folder.path().join("a/b")).len(), 2);
    }

    #[test]
    fn an_entry_that_is_not_as_it_was_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned(), MAX_BYTES);
        cache.put(&["x"], b"some bytes");
        let path = cache.path_of(&["x"]);
        let sound = fs::read(&path).unwrap();
        let flipped = (0..sound.len()).map(|at| {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            bytes
        });
        let cut = (0..sound.len()).map(|len| sound[..len].to_vec());
        for bytes in flipped.chain(cut) {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.get(&["x"]), Found::Damaged(path.clone()));
            assert_eq!(cache.get(&["x"]), Found::Nothing);
        }
        // An entry of another key, put in its place.
        cache.put(&["y"], b"others");
        fs::rename(cache.path_of(&["y"]), &path).unwrap();
        assert_eq!(cache.get(&["x"]), Found::Damaged(path));
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned(), 1000);
        let age = |key, seconds| {
            let file = File::options().write(true).open(cache.path_of(&[key])).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (key, seconds) in [("a", 300), ("b", 200), ("c", 100)] {
            assert!(cache.put(&[key], &[0; 200]));
            age(key, seconds);
        }
        // Using it makes it young.
        assert!(matches!(cache.get(&["a"]), Found::Bytes(_)));
        assert!(cache.put(&["d"], &[0; 200]));
        assert_eq!(cache.get(&["b"]), Found::Nothing);
        assert!(["a", "c", "d"].iter().all(|key| matches!(cache.get(&[key]), Found::Bytes(_))));
        assert!(!cache.put(&["large"], &[0; 251]));
    }

    #[test]
    fn there_are_never_many_entries_however_small() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned(), MAX_BYTES);
        assert!(cache.put(&["old"], b"1"));
        let long_ago = SystemTime::now() - Duration::from_secs(60);
        let old = File::options().write(true).open(cache.path_of(&["old"])).unwrap();
        old.set_modified(long_ago).unwrap();
        (1..MAX_ENTRIES).for_each(|number| fs::write(folder.path().join(number.to_string()), b"").unwrap());
        assert!(cache.put(&["new"], b"2"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MAX_ENTRIES);
        assert_eq!((cache.get(&["old"]), cache.get(&["new"])), (Found::Nothing, Found::Bytes(b"2".into())));
    }

    #[test]
    fn nothing_is_left_of_a_writer_that_ended_early() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned(), MAX_BYTES);
        let (old, young) = (folder.path().join(".1-0"), folder.path().join(".2-0"));
        for path in [&old, &young] {
            fs::write(path, "half").unwrap();
        }
        let long_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
        File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
        cache.put(&["x"], b"whole");
        let mut left = vec![cache.path_of(&["x"]), young];
        left.sort_unstable();
        assert_eq!(names(folder.path()), left);
    }

    #[test]
    fn a_folder_that_cannot_be_written_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let cache = Cache::new(file.join("cache"), MAX_BYTES);
        assert!(!cache.put(&["x"], b"bytes"));
        assert_eq!(cache.get(&["x"]), Found::Nothing);
    }

    #[test]
    fn the_environment_names_the_folder() {
        let of = |set: &[(&str, &str)]| {
            folder(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("HOME", "/h")]), Some("/h/.cache/forebay".into()));
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]), Some("/c/forebay".into()));
        assert_eq!(of(&[("HOME", "/h"), (VARIABLE, "/x")]), Some("/x".into()));
        assert_eq!(of(&[("HOME", "/h"), (VARIABLE, "")]), Some("/h/.cache/forebay".into()));
        assert_eq!(of(&[("HOME", "/h"), (VARIABLE, "0")]), None);
        assert_eq!(of(&[("HOME", "/h"), (VARIABLE, "~/x")]), Some("/h/x".into()));
        assert_eq!(of(&[("HOME", "/h"), (VARIABLE, "~")]), Some("/h".into()));
        assert_eq!(of(&[("HOME", "/h"), (VARIABLE, "/a/~/x")]), Some("/a/~/x".into()));
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "~/c")]), Some("/h/c/forebay".into()));
    }
}
