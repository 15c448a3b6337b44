//! Local files: those of `object_store`, without blocking on pipes.
//!
//! Its client opens anything by its name, and opening a pipe waits for a writer. So the type is checked first. Tags are
//! the same as its own.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, Extensions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, RenameOptions, Result, coalesce_ranges,
};
use tokio::runtime::Handle;

/// The store's name in errors.
const STORE: &str = "LocalFileSystem";

/// The store of all files.
#[derive(Debug, Default)]
pub(super) struct Files(LocalFileSystem);

/// Runs `work` on a thread that may block, if there is a runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    match Handle::try_current() {
        Ok(runtime) => Ok(runtime.spawn_blocking(work).await?),
        Err(_) => Ok(work()),
    }
}

/// Opens the file at `path`, whose key is `location`, and returns its current metadata.
fn open(path: PathBuf, location: Path, options: &GetOptions) -> Result<GetResult> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Error::NotFound { path: path.to_string_lossy().into_owned(), source: source.into() }
        }
        _ => Error::Generic { store: STORE, source: source.into() },
    };
    let found = fs::metadata(&path).map_err(failed)?;
    if found.is_dir() {
        return Err(failed(io::Error::new(ErrorKind::NotFound, "it is a folder")));
    }
    // If it was a file when the dataset was opened, the error is that it has changed.
    options.check_preconditions(&meta_of(&found, location.clone()))?;
    if !found.is_file() {
        return Err(failed(io::Error::other("it is a pipe or a device, not a file")));
    }
    let file = File::open(&path).map_err(failed)?;
    let meta = meta_of(&file.metadata().map_err(failed)?, location);
    options.check_preconditions(&meta)?;
    let range = match &options.range {
        Some(range) => range.as_range(meta.size).map_err(|source| failed(io::Error::other(source)))?,
        None => 0..meta.size,
    };
    let (attributes, extensions) = (Attributes::default(), Extensions::default());
    Ok(GetResult { payload: GetResultPayload::File(file, path), meta, range, attributes, extensions })
}

/// Creates the folder of a file to be written, and checks that it is writable: otherwise the client retries forever, as
/// in `/proc`.
fn make_room(path: &std::path::Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut probe = path.as_os_str().to_owned();
    probe.push("#0");
    match File::options().write(true).create_new(true).open(&probe) {
        Ok(_) => fs::remove_file(&probe),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the metadata of a file, with the tag that `object_store` would give it.
pub(super) fn meta_of(metadata: &Metadata, location: Path) -> ObjectMeta {
    let modified = modified(metadata);
    let micros = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
    let e_tag = format!("\"{:x}-{micros:x}-{:x}\"", inode(metadata), metadata.len());
    ObjectMeta { location, last_modified: modified.into(), size: metadata.len(), e_tag: Some(e_tag), version: None }
}

/// Returns whether an open file is still as `meta` says: it may be written over in place while it is read.
pub(super) fn is_unchanged(file: &File, meta: &ObjectMeta) -> io::Result<bool> {
    let now = file.metadata()?;
    Ok(now.len() == meta.size && modified(&now) == SystemTime::from(meta.last_modified))
}

fn modified(metadata: &Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns when anything about a file last changed, including its permissions and names. Unlike the modification time,
/// it cannot be set back; but it does not identify the content, which stays the same when permissions change.
#[cfg(unix)]
pub(crate) fn status_changed(location: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    let metadata = fs::metadata(LocalFileSystem::new().path_to_filesystem(location).ok()?).ok()?;
    Some(format!("{:x}.{:x}", metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(not(unix))]
pub(crate) fn status_changed(_: &Path) -> Option<String> {
    None
}

#[cfg(unix)]
fn inode(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> u64 {
    0
}

#[deny(clippy::missing_trait_methods)]
#[async_trait::async_trait]
impl ObjectStore for Files {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = self.0.path_to_filesystem(location)?;
        let location = location.clone();
        blocking(move || open(path, location, &options)).await?
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        coalesce_ranges(ranges, |range| self.get_range(location, range), OBJECT_STORE_COALESCE_DEFAULT).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let path = self.0.path_to_filesystem(location)?;
        blocking(move || make_room(&path)).await?.map_err(|error| {
            let said = format!("no file can be written there: {error}");
            Error::Generic { store: STORE, source: io::Error::new(error.kind(), said).into() }
        })?;
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

/// Writes over a file in place, at the same size.
#[cfg(test)]
pub(super) fn write_over(path: &std::path::Path) {
    use std::io::Write;

    let mut file = File::options().write(true).open(path).unwrap();
    let before = file.metadata().unwrap();
    file.write_all(&vec![255; usize::try_from(before.len()).unwrap()]).unwrap();
    file.set_modified(before.modified().unwrap() + std::time::Duration::from_secs(1)).unwrap();
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, TryStreamExt};
    use object_store::GetRange;

    use super::*;

    fn key(path: &std::path::Path) -> Path {
        Path::from_absolute_path(path).unwrap()
    }

    #[test]
    fn a_file_is_what_its_listing_says() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x"), b"0123456789").unwrap();
        let files = Files::default();
        let listed: Vec<_> = files.list(Some(&key(folder.path()))).try_collect().now_or_never().unwrap().unwrap();
        let range = Some(GetRange::Suffix(4));
        let got = files.get_opts(&listed[0].location, GetOptions { range, ..GetOptions::default() });
        let got = got.now_or_never().unwrap().unwrap();
        assert_eq!((vec![got.meta], got.range), (listed, 6..10));
    }

    #[test]
    fn what_is_no_file_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let get = |name: &str, options| {
            let got = Files::default().get_opts(&key(&folder.path().join(name)), options).now_or_never().unwrap();
            got.map(drop).unwrap_err()
        };
        assert!(matches!(get("absent", GetOptions::default()), Error::NotFound { .. }));
        assert!(matches!(get(".", GetOptions::default()), Error::NotFound { .. }));
        fs::write(folder.path().join("x"), b"0123456789").unwrap();
        assert!(matches!(get("x/y", GetOptions::default()), Error::NotFound { .. }));
        let changed = GetOptions { if_match: Some("\"another\"".into()), ..GetOptions::default() };
        assert!(matches!(get("x", changed), Error::Precondition { .. }));
        let beyond = GetOptions { range: Some(GetRange::Bounded(10..11)), ..GetOptions::default() };
        assert!(matches!(get("x", beyond), Error::Generic { .. }));
    }

    #[cfg(unix)]
    #[test]
    fn nobody_waits_for_who_writes_to_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let get =
            |options| Files::default().get_opts(&key(&path), options).now_or_never().unwrap().map(drop).unwrap_err();
        assert!(get(GetOptions::default()).to_string().contains("it is a pipe or a device"));
        let of_a_file = GetOptions { if_match: Some("\"of a file\"".into()), ..GetOptions::default() };
        assert!(matches!(get(of_a_file), Error::Precondition { .. }));
    }
}
