//! The identity of a dataset, for cursors.

use std::collections::BTreeSet;

use arrow_schema::Schema;
use sha2::{Digest, Sha256};

use super::{Constant, Fragment};
use crate::hex::hex;

/// Changes when the meaning of a fingerprint does.
const VERSION: &[u8] = b"forebay fingerprint 1";

/// Returns a hash, in hex, of what identifies the dataset: its objects' names relative to their common folder, their
/// sizes, their footers and, if they are remote, their e-tags.
///
/// Partition columns are included: opening another folder gives the same objects different ones, or none.
///
/// A local file's tag contains its inode and modification time, which differ between copies of one dataset on many
/// machines; there, the footer's digest distinguishes contents. Tags of user-supplied file systems are similar, and so
/// is the time of the last change, which replaces the e-tag if a web server has none.
///
/// A URL's query is excluded: it may be a signature, which differs next time.
///
/// The `commit` of a repository replaces the e-tags of all its files, and their paths in it replace those of downloaded
/// copies, so that it makes no difference which files were downloaded.
pub(super) fn fingerprint(
    fragments: &[Fragment],
    schema: &Schema,
    are_tags_times: bool,
    commit: Option<&str>,
) -> String {
    let paths: Vec<&str> =
        fragments.iter().map(|fragment| in_repository(fragment.object.path.as_ref(), commit)).collect();
    let folder = common_folder(paths.iter().copied());
    let partitions: BTreeSet<usize> =
        fragments.iter().flat_map(|fragment| fragment.constants.iter().map(|(column, _)| *column)).collect();
    let mut hash = Sha256::new();
    hash.update(VERSION);
    for (fragment, path) in fragments.iter().zip(&paths) {
        let object = &fragment.object;
        let relative = &path[folder..];
        let tag = object.entity_tag().filter(|_| !are_tags_times && commit.is_none()).unwrap_or_default();
        for text in [relative, tag] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.update(object.size_bytes.unwrap_or_default().to_le_bytes());
        hash.update(fragment.footer_digest);
    }
    for column in partitions {
        let key = schema.field(column).name();
        hash.update((key.len() as u64).to_le_bytes());
        hash.update(key);
        for fragment in fragments {
            let value = fragment.constant(column).unwrap_or(&Constant::Null).to_bytes();
            hash.update((value.len() as u64).to_le_bytes());
            hash.update(value);
        }
    }
    hash.update(commit.unwrap_or_default());
    hex(hash.finalize())
}

/// Returns the path of an object in its repository. Copies of a `commit` are in the layout of `huggingface_hub`.
fn in_repository<'a>(path: &'a str, commit: Option<&str>) -> &'a str {
    let copied = commit.and_then(|commit| path.split_once(format!("/snapshots/{commit}/").as_str()));
    copied.map_or(path, |(_, inside)| inside)
}

/// Returns the length of the longest common folder, with its slash.
pub(super) fn common_folder<'a>(mut paths: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = paths.next() else { return 0 };
    let mut common = first.rfind('/').map_or(0, |slash| slash + 1);
    for path in paths {
        let same = first[..common].bytes().zip(path.bytes()).take_while(|(a, b)| a == b).count();
        common = first.as_bytes()[..same].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    }
    common
}

#[cfg(test)]
mod tests {
    use super::{common_folder, in_repository};

    #[test]
    fn the_common_folder_ends_at_a_slash() {
        assert_eq!(common_folder(["a/b/x1", "a/b/x2"].into_iter()), 4);
        assert_eq!(common_folder(["a/b/x", "a/c/x"].into_iter()), 2);
        assert_eq!(common_folder(["a/b/x"].into_iter()), 4);
        assert_eq!(common_folder(["a", "b"].into_iter()), 0);
    }

    #[test]
    fn a_copy_has_the_path_that_it_has_in_the_repository() {
        let copy = "home/hub/datasets--a--b/snapshots/0f1e/data/0.parquet";
        assert_eq!(in_repository(copy, Some("0f1e")), "data/0.parquet");
        assert_eq!(in_repository("data/0.parquet", Some("0f1e")), "data/0.parquet");
        assert_eq!(in_repository(copy, Some("0f1")), copy);
        assert_eq!(in_repository(copy, None), copy);
    }
}
