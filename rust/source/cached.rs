//! Reads files from the page cache, on the thread that needs the bytes.
//!
//! Passing such a read to a blocking thread and the result back takes longer than copying a megabyte. Linux
//! (`RWF_NOWAIT` of `preadv2(2)`) reports instead that it would have to wait: then blocking threads read, many at a
//! time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use object_store::{GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore};

use super::coalesce::{coalesce, merge};
use super::files::is_unchanged;
use super::read::{changed, check_unchanged, cut_out, of_range};
use super::{Connection, Object, error};
use crate::error::Result;

/// Why bytes are not available at once. Errors are left to [`read_ranges`](super::read_ranges).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// Reading would have to wait.
    Once,
    /// Even opening an object may block, perhaps forever: it is not on this machine.
    Always,
}

/// A file of this machine that was mostly in the page cache when it was opened.
#[derive(Debug)]
pub(crate) struct CachedFile {
    file: File,
    object: Object,
    /// As it was opened.
    meta: ObjectMeta,
}

/// Returns the bytes of `ranges` like [`read_ranges`](super::read_ranges), if they are in the page cache and belong to
/// a file of this machine. If `later` returns something for a range, that replaces its bytes: it reads the file when
/// needed.
///
/// For threads outside any runtime, which may open files.
pub(crate) fn read_cached<B: From<Bytes>>(
    connection: &Connection,
    object: &Object,
    ranges: &[Range<u64>],
    mut later: impl FnMut(usize, &Arc<CachedFile>) -> Option<B>,
) -> Result<Vec<B>, Missed> {
    if !connection.is_local {
        return Err(Missed::Always);
    }
    if connection.ahead.is_some() {
        return Err(Missed::Once);
    }
    let (metrics, place) = (&connection.metrics, connection.place);
    let _during = metrics.during(place.stage);
    // Outside a runtime, the client for local files works synchronously.
    let opened = connection.client.get_opts(&object.path, GetOptions::default()).now_or_never();
    let opened = opened.and_then(Result::ok).filter(|opened| check_unchanged(object, opened).is_ok());
    let Some(GetResult { payload: GetResultPayload::File(file, _), meta, .. }) = opened else {
        return Err(Missed::Once);
    };
    if !is_of_this_machine(&file) {
        return Err(Missed::Always);
    }
    let file = Arc::new(CachedFile::new(file, meta, object));
    let put_off: Vec<Option<B>> = (0..ranges.len()).map(|index| later(index, &file)).collect();
    let is_now = |(range, put_off): (&Range<u64>, &Option<B>)| put_off.is_none().then(|| range.clone());
    let now: Vec<_> = ranges.iter().zip(&put_off).filter_map(is_now).collect();
    let merged = merge(&now, connection.traffic.gap());
    let bodies = merged.iter().map(|range| file.read_now(range)).collect::<Option<Vec<_>>>().ok_or(Missed::Once)?;
    if !is_unchanged(&file.file, &file.meta).unwrap_or_default() {
        return Err(Missed::Once);
    }
    let num_bytes = |range: &Range<u64>| range.end - range.start;
    metrics.want(place.stage, coalesce(ranges, 0).iter().map(num_bytes).sum());
    let of_later =
        ranges.iter().zip(&put_off).filter(|(_, put_off)| put_off.is_some()).map(|(range, _)| num_bytes(range));
    for num_bytes in bodies.iter().map(|body| body.len() as u64).chain(of_later) {
        metrics.ask(place);
        metrics.answer(place.stage, num_bytes, Duration::ZERO);
    }
    let body =
        |(range, put_off): (&Range<u64>, Option<B>)| put_off.unwrap_or_else(|| cut_out(&merged, &bodies, range).into());
    Ok(ranges.iter().zip(put_off).map(body).collect())
}

impl CachedFile {
    /// Returns the file of an object, as `meta` says that it is.
    pub(crate) fn new(file: File, meta: ObjectMeta, object: &Object) -> Self {
        Self { file, meta, object: object.clone() }
    }

    /// Returns the file of an object, as it is now.
    #[cfg(test)]
    pub(crate) fn of_test(file: File, object: &Object) -> Self {
        let meta = super::files::meta_of(&file.metadata().unwrap(), object.path.clone());
        Self::new(file, meta, object)
    }

    /// Returns a range, if all of it can be read without waiting.
    pub(crate) fn read_now(&self, range: &Range<u64>) -> Option<Bytes> {
        let mut body = Vec::new();
        read_onto(&mut body, &self.file, range, Waits::Never).ok()?;
        Some(body.into())
    }

    /// Reads a range into `body`, replacing its contents; waits for what has left the page cache.
    ///
    /// # Errors
    ///
    /// [`Error::Read`](crate::Error::Read) if reading fails, and [`Error::ObjectChanged`](crate::Error::ObjectChanged)
    /// if the file is no longer the one that was opened.
    pub(crate) fn read_into(&self, body: &mut Vec<u8>, range: &Range<u64>) -> Result<()> {
        body.clear();
        let read = read_onto(body, &self.file, range, Waits::ForDisk);
        match read.and_then(|()| is_unchanged(&self.file, &self.meta)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(changed(&self.object)),
            Err(source) => {
                let source = object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(source) };
                Err(of_range(error(&self.object.url, source), range))
            }
        }
    }
}

/// Whether a read may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Never,
    ForDisk,
}

/// Returns whether a file is on one of the usual disk or memory file systems, not behind a network or a program.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no crate that is linked anyway offers it")]
fn is_of_this_machine(file: &File) -> bool {
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;

    const OURS: [libc::c_long; 5] = [
        libc::BTRFS_SUPER_MAGIC,
        libc::EXT4_SUPER_MAGIC,
        libc::OVERLAYFS_SUPER_MAGIC,
        libc::TMPFS_MAGIC,
        libc::XFS_SUPER_MAGIC,
    ];
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the file is open, and there is room for what is written.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) };
    // SAFETY: it is initialized if the call succeeded.
    status == 0 && OURS.contains(&unsafe { found.assume_init() }.f_type)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn is_of_this_machine(_: &File) -> bool {
    false
}

/// Appends a range of a file to `body`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no crate reads into memory that nobody filled before without waiting")]
fn read_onto(body: &mut Vec<u8>, file: &File, range: &Range<u64>, waits: Waits) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let flags = if waits == Waits::Never { libc::RWF_NOWAIT } else { 0 };
    let num_bytes = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    body.try_reserve_exact(num_bytes)?;
    let before = body.len();
    while body.len() < before + num_bytes {
        let num_done = body.len() - before;
        let offset = libc::off_t::try_from(range.start + num_done as u64).map_err(io::Error::other)?;
        let left = num_bytes - num_done;
        let room = &mut body.spare_capacity_mut()[..left];
        let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: the file is open, and the spare room is as long as `part` says.
        let num_read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, flags) };
        match usize::try_from(num_read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // SAFETY: the system has written that many bytes there, within the spare room.
            Ok(num_read) => unsafe { body.set_len(body.len() + num_read.min(left)) },
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Other systems cannot tell whether a read would wait.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn read_onto(_: &mut Vec<u8>, _: &File, _: &Range<u64>, _: Waits) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::source::{Store, StoreKey, read_ranges};

    fn connection() -> Connection {
        Store::try_new(StoreKey::Local, &BTreeMap::new()).unwrap().connect().unwrap()
    }

    /// Writes an object of `num_bytes`.
    fn object(folder: &Path, num_bytes: usize) -> Object {
        let path = folder.join("x");
        let body: Vec<u8> = (0..=250).cycle().take(num_bytes).collect();
        std::fs::write(&path, body).unwrap();
        let path = path.to_str().unwrap();
        let (url, size_bytes) = (format!("file://{path}"), Some(num_bytes as u64));
        Object { path: path.trim_start_matches('/').into(), url, written: None, size_bytes, e_tag: None }
    }

    #[test]
    fn what_is_in_memory_is_read_as_others_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, object) = (connection(), object(folder.path(), 300_000));
        let ranges = [100_000..290_000, 0..10, 7..7, 5..40, 299_999..300_000];
        let found = match read_cached::<Bytes>(&connection, &object, &ranges, |_, _| None) {
            Ok(found) => found,
            Err(_) => {
                // The file system does not support it, or this is not Linux.
                let file = File::open(folder.path().join("x")).unwrap();
                assert!(!is_of_this_machine(&file) || CachedFile::of_test(file, &object).read_now(&(0..1)).is_none());
                return;
            }
        };
        let counted = connection.metrics.snapshot();
        let read = connection.io.block_on(read_ranges(&connection, &object, &ranges)).unwrap();
        assert_eq!(found, read);
        let twice = connection.metrics.snapshot();
        let numbers = |of: &crate::metrics::Counted| [of.requests, of.bytes_wanted, of.bytes_fetched];
        assert_eq!(numbers(&twice), numbers(&counted).map(|number| 2 * number));
    }

    #[test]
    fn what_is_put_off_is_read_as_long_as_the_file_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, object) = (connection(), object(folder.path(), 300_000));
        let mut kept = None;
        let later = |range: usize, file: &Arc<CachedFile>| {
            kept = Some(Arc::clone(file));
            (range == 1).then(|| Bytes::from_static(b"later"))
        };
        let ranges = [0..10, 100_000..290_000, 20..30];
        let Ok(found) = read_cached(&connection, &object, &ranges, later) else { return };
        let lengths: Vec<usize> = found.iter().map(Bytes::len).collect();
        assert_eq!((lengths, &found[1][..]), (vec![10, 5, 10], &b"later"[..]));
        let counted = connection.metrics.snapshot();
        assert_eq!([counted.bytes_wanted, counted.bytes_fetched - 10], [190_020, 190_020]);
        let (file, mut body) = (kept.unwrap(), vec![7; 9]);
        file.read_into(&mut body, &ranges[1]).unwrap();
        assert_eq!(body, std::fs::read(folder.path().join("x")).unwrap()[100_000..290_000]);
        let beyond = file.read_into(&mut body, &(299_000..300_001));
        assert!(matches!(beyond, Err(crate::Error::Read { range, .. }) if range == (299_000..300_001)));
        File::options().write(true).open(folder.path().join("x")).unwrap().set_len(299_999).unwrap();
        assert!(matches!(file.read_into(&mut body, &ranges[1]), Err(crate::Error::ObjectChanged { .. })));
    }

    #[test]
    fn what_is_written_over_meanwhile_is_left_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, object) = (connection(), object(folder.path(), 300_000));
        if read_cached::<Bytes>(&connection, &object, std::slice::from_ref(&(0..10)), |_, _| None).is_err() {
            return;
        }
        let write_over = |_: usize, _: &Arc<CachedFile>| {
            crate::source::files::write_over(&folder.path().join("x"));
            None
        };
        let found = read_cached::<Bytes>(&connection, &object, std::slice::from_ref(&(0..10)), write_over);
        assert_eq!(found, Err(Missed::Once));
    }

    #[test]
    fn what_is_wrong_is_left_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, object) = (connection(), object(folder.path(), 1000));
        let found = |object: &Object, range| {
            read_cached::<Bytes>(&connection, object, std::slice::from_ref(&range), |_, _| None)
        };
        assert!(found(&object, 990..1001).is_err());
        assert_eq!(found(&Object { size_bytes: Some(1001), ..object.clone() }, 0..10), Err(Missed::Once));
        assert_eq!(found(&Object { e_tag: Some("another".into()), ..object.clone() }, 0..10), Err(Missed::Once));
        assert_eq!(found(&Object { path: "no/such/file".into(), ..object.clone() }, 0..10), Err(Missed::Once));
        assert_eq!(connection.metrics.snapshot().requests, 0);
    }

    #[test]
    fn what_is_not_on_this_machine_is_never_waited_for() {
        crate::io::Io::current().unwrap().block_on(async {
            let store = Store::of_client(crate::source::recording::Recording::of([("x", vec![7; 10])]).await as _);
            let object =
                Object { path: "x".into(), url: "s3://b/x".into(), written: None, size_bytes: None, e_tag: None };
            let found =
                read_cached::<Bytes>(&store.connect().unwrap(), &object, std::slice::from_ref(&(0..10)), |_, _| None);
            assert_eq!(found, Err(Missed::Always));
        });
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        assert!(!is_of_this_machine(&File::open("/proc/self/status").unwrap()));
    }
}
