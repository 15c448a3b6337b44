//! Reads files that the system has in its memory, in the thread that wants the bytes.
//!
//! To hand such a read to a thread that may block, and what came of it back, takes longer than to copy a megabyte. Linux
//! (`RWF_NOWAIT` of `preadv2(2)`) says instead that it would have to wait: then others read, many at a time.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use object_store::{GetOptions, GetResultPayload, ObjectStore};

use super::coalesce::{coalesce, merge};
use super::read::{check_unchanged, cut_out};
use super::{Connection, Object};

/// Why bytes are not there at once. What is wrong with an object is for [`read_ranges`](super::read_ranges) to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// They would have to be waited for.
    Once,
    /// Even to open an object may have to be waited for, perhaps for ever: it is not on this machine.
    Always,
}

/// Returns the bytes of `ranges` as [`read_ranges`](super::read_ranges) does, if they are those of a file of this machine, and
/// in memory.
///
/// For threads of no runtime, which may open files.
pub(crate) fn read_cached(
    connection: &Connection,
    object: &Object,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>, Missed> {
    if !connection.is_local {
        return Err(Missed::Always);
    }
    if connection.ahead.is_some() {
        return Err(Missed::Once);
    }
    let (metrics, place) = (&connection.metrics, connection.place);
    let _during = metrics.during(place.stage);
    // Outside of a runtime the client of local files does at once what it is asked for.
    let opened = connection.client.get_opts(&object.path, GetOptions::default()).now_or_never();
    let opened = opened.and_then(Result::ok).filter(|opened| check_unchanged(object, opened).is_ok());
    let Some(GetResultPayload::File(file, _)) = opened.map(|opened| opened.payload) else { return Err(Missed::Once) };
    if !is_of_this_machine(&file) {
        return Err(Missed::Always);
    }
    let merged = merge(ranges, connection.traffic.gap());
    let bodies = merged.iter().map(|range| read_now(&file, range)).collect::<Option<Vec<_>>>().ok_or(Missed::Once)?;
    metrics.want(place.stage, coalesce(ranges, 0).iter().map(|range| range.end - range.start).sum());
    for body in &bodies {
        metrics.ask(place);
        metrics.answer(place.stage, body.len() as u64, Duration::ZERO);
    }
    Ok(ranges.iter().map(|range| cut_out(&merged, &bodies, range)).collect())
}

/// Returns whether a file is on one of the usual file systems of disks and memory, not behind a network or a program.
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
    // SAFETY: it was written where the call has succeeded.
    status == 0 && OURS.contains(&unsafe { found.assume_init() }.f_type)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn is_of_this_machine(_: &File) -> bool {
    false
}

/// Returns a range of a file, if all of it can be had without waiting.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no crate reads into memory that nobody filled before without waiting")]
fn read_now(file: &File, range: &Range<u64>) -> Option<Bytes> {
    use std::os::fd::AsRawFd;

    let num_bytes = usize::try_from(range.end - range.start).ok()?;
    let mut body: Vec<u8> = Vec::new();
    body.try_reserve_exact(num_bytes).ok()?;
    while body.len() < num_bytes {
        let offset = libc::off_t::try_from(range.start + body.len() as u64).ok()?;
        let left = num_bytes - body.len();
        let room = &mut body.spare_capacity_mut()[..left];
        let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: the file is open, and there is nothing in the room, which is as long as `part` says.
        let num_read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) };
        let num_read = usize::try_from(num_read).ok().filter(|&num_read| 0 < num_read && num_read <= left)?;
        // SAFETY: the system has written so many bytes there, for which there is room.
        unsafe { body.set_len(body.len() + num_read) };
    }
    Some(body.into())
}

/// Other systems cannot say whether they would wait.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn read_now(_: &File, _: &Range<u64>) -> Option<Bytes> {
    None
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
        Object { path: path.trim_start_matches('/').into(), url, size_bytes, e_tag: None }
    }

    #[test]
    fn what_is_in_memory_is_read_as_others_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, object) = (connection(), object(folder.path(), 300_000));
        let ranges = [100_000..290_000, 0..10, 7..7, 5..40, 299_999..300_000];
        let found = match read_cached(&connection, &object, &ranges) {
            Ok(found) => found,
            Err(_) => {
                // A file system that has not learned it, or not Linux.
                let file = File::open(folder.path().join("x")).unwrap();
                assert!(!is_of_this_machine(&file) || read_now(&file, &(0..1)).is_none());
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
    fn what_is_wrong_is_left_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, object) = (connection(), object(folder.path(), 1000));
        let found = |object: &Object, range| read_cached(&connection, object, std::slice::from_ref(&range));
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
            let object = Object { path: "x".into(), url: "s3://b/x".into(), size_bytes: None, e_tag: None };
            let found = read_cached(&store.connect().unwrap(), &object, std::slice::from_ref(&(0..10)));
            assert_eq!(found, Err(Missed::Always));
        });
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        assert!(!is_of_this_machine(&File::open("/proc/self/status").unwrap()));
    }
}
