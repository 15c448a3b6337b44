//! Walks the files below a local folder, following links.
//!
//! Nothing that would be read is silently left out: an unreadable folder is an error, and so is a broken link where a
//! file of its name is wanted.

use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use object_store::{ObjectMeta, path};

use super::files::meta_of;
use super::list::{has_parquet_extension, is_hidden};

/// The system's folder for recovered files; only root may read it.
const LOST: &str = "lost+found";

/// The contents of a folder.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) files: Vec<ObjectMeta>,
    /// Links that lead nowhere, or to themselves.
    pub(super) broken: Vec<path::Path>,
}

/// An error, and where it happened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
struct At {
    path: PathBuf,
    source: io::Error,
}

/// Returns the files below `root`, in folders that `may_enter` accepts by level, 0 for those in `root`, and name;
/// nothing if it does not exist or is not a folder. Cyclic links are skipped.
///
/// # Errors
///
/// For what cannot be read, unless it is hidden, and for Parquet files whose names cannot be keys.
pub(super) fn walk(root: &Path, may_enter: impl Fn(usize, &str) -> bool) -> io::Result<Walked> {
    let mut walked = Walked::default();
    let real = match root.canonicalize() {
        Ok(real) if real.is_dir() => real,
        Ok(_) => return Ok(walked),
        Err(error) if is_absent(&error) => return Ok(walked),
        Err(error) => return Err(at(root, error)),
    };
    let mut pending = vec![(real, root.to_owned(), Vec::new())];
    while let Some((real, folder, mut above)) = pending.pop() {
        if above.contains(&real) {
            continue;
        }
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            // Removed meanwhile, or irrelevant.
            Err(error) if is_absent(&error) || may_be_closed(root, &folder, &error) => continue,
            Err(error) => return Err(at(&folder, error)),
        };
        above.push(real.clone());
        for entry in entries {
            let entry = entry.map_err(|error| at(&folder, error))?;
            let (path, is_link) = (entry.path(), is_link(&entry));
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {
                    if !may_enter(above.len() - 1, &entry.file_name().to_string_lossy()) {
                        continue;
                    }
                    let real = if is_link {
                        path.canonicalize().map_err(|error| at(&path, error))?
                    } else {
                        real.join(entry.file_name())
                    };
                    pending.push((real, path, above.clone()));
                }
                Ok(found) if found.is_file() => {
                    walked.files.extend(key_of(&path)?.map(|key| meta_of(&found, key)));
                }
                // Opening a pipe waits for a writer.
                Ok(_) => {}
                Err(error) if may_be_closed(root, &path, &error) => {}
                Err(error) if is_link && error.kind() != ErrorKind::PermissionDenied => {
                    walked.broken.extend(key_of(&path)?);
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(at(&path, error)),
            }
        }
    }
    Ok(walked)
}

/// Returns the key of a file; `None` for names that no client reads: incomplete files are called `name#1`.
fn key_of(path: &Path) -> io::Result<Option<path::Path>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_unfinished = |suffix: &str| !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
    if name.split_once('#').is_some_and(|(_, suffix)| is_unfinished(suffix)) {
        return Ok(None);
    }
    match path::Path::from_absolute_path(path) {
        Ok(key) => Ok(Some(key)),
        Err(refused) if has_parquet_extension(&name) => {
            Err(io::Error::other(format!("{}: rename it: {refused}", path.display())))
        }
        Err(_) => Ok(None),
    }
}

/// Returns whether the subject of `error` would not be read anyway.
fn may_be_closed(root: &Path, path: &Path, error: &io::Error) -> bool {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let is_lost = || relative.iter().any(|part| part == LOST);
    error.kind() == ErrorKind::PermissionDenied && (is_hidden(&relative.to_string_lossy()) || is_lost())
}

fn is_link(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_symlink())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn at(path: &Path, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), At { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::recover::is_out_of_descriptors;

    fn names(root: &Path, keys: impl IntoIterator<Item = path::Path>) -> Vec<String> {
        let root = path::Path::from_absolute_path(root).unwrap();
        let name =
            |key: path::Path| key.as_ref().strip_prefix(root.as_ref()).unwrap().trim_start_matches('/').to_owned();
        let mut names: Vec<_> = keys.into_iter().map(name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn files_are_found_wherever_they_are() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        for name in ["x", "a/y#1", "a/y#z", "a/b/z"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let all = |_: usize, _: &str| true;
        let found = walk(folder.path(), all).unwrap();
        assert!(found.broken.is_empty());
        let sizes: u64 = found.files.iter().map(|file| file.size).sum();
        assert_eq!(sizes, 11);
        assert_eq!(names(folder.path(), found.files.into_iter().map(|file| file.location)), ["a/b/z", "a/y#z", "x"]);
        for (names, num_files) in [(&[][..], 1), (&["a"], 2), (&["b"], 1), (&["a", "b"], 3), (&["a", "a"], 2)] {
            let may_enter = |level: usize, name: &str| names.get(level) == Some(&name);
            assert_eq!(walk(folder.path(), may_enter).unwrap().files.len(), num_files);
        }
        for nothing in ["absent", "x", "x/y"] {
            assert!(walk(&folder.path().join(nothing), all).unwrap().files.is_empty());
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_once_and_those_that_lead_nowhere_are_told() {
        use std::os::unix::fs::symlink;

        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/x"), b"1").unwrap();
        fs::write(elsewhere.path().join("y"), b"22").unwrap();
        let link = |target: &Path, name: &str| symlink(target, folder.path().join(name)).unwrap();
        link(folder.path(), "a/up");
        link(elsewhere.path(), "there");
        link(Path::new("nowhere"), "lost");
        link(Path::new("itself"), "itself");
        let found = walk(folder.path(), |_, _| true).unwrap();
        assert_eq!(names(folder.path(), found.files.into_iter().map(|file| file.location)), ["a/x", "there/y"]);
        assert_eq!(names(folder.path(), found.broken), ["itself", "lost"]);
    }

    #[test]
    fn an_error_says_where_and_is_still_known_for_what_it_is() {
        let error = at(Path::new("/d"), io::Error::from_raw_os_error(24));
        assert!(error.to_string().starts_with("/d: "));
        assert!(cfg!(windows) || is_out_of_descriptors(&error));
        let denied = || io::Error::from(ErrorKind::PermissionDenied);
        let may_be_closed = |path: &str| may_be_closed(Path::new("/d"), Path::new(path), &denied());
        assert!(may_be_closed("/d/.git") && may_be_closed("/d/a/_temporary/b") && may_be_closed("/d/lost+found"));
        assert!(!may_be_closed("/d/a") && !may_be_closed("/d/_day=1/a"));
    }
}
