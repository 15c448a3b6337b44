//! Finds the objects of a location.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{MAIN_SEPARATOR, PathBuf};

use futures::{Stream, StreamExt, TryStreamExt, stream};
use globset::{GlobBuilder, GlobMatcher};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::recover::{Kind, Trouble};
use super::tables::refuse_tables;
use super::walk::{Walked, walk};
use super::{Connection, Location, Object, StoreKey, error};
use crate::config;
use crate::error::{Error, Result};

/// Endings of Parquet objects in a folder; explicitly named files may have any.
const EXTENSIONS: [&str; 5] = ["parquet", "parq", "pq", "geoparquet", "gpq"];

/// An object and its path relative to the listed folder, from which splits are inferred.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) object: Object,
    pub(crate) relative: String,
}

/// Returns the objects of `location` in natural order (`part-2` before `part-10`).
///
/// Costs one listing for a folder or a glob, and no request for a remote object that is named: reading its footer will
/// show whether it exists. Hidden and `_`-prefixed names below the folder are left out.
///
/// # Errors
///
/// [`Error::NotFound`], [`Error::NoObjects`], [`Error::Setting`] for the folder of a table, and those of the store.
pub(crate) async fn list(connection: &Connection, location: &Location) -> Result<Vec<Listed>> {
    if let Some(pattern) = &location.glob {
        return list_glob(connection, location, pattern).await;
    }
    if connection.is_local {
        let path = file_path(&location.path);
        let metadata = connection.io.blocking(move || std::fs::metadata(path)).await?;
        let metadata = metadata.map_err(|source| system_error(location, source))?;
        if !metadata.is_dir() && !metadata.is_file() {
            // Opening a pipe waits for a writer.
            let reason = "it is a pipe or a device; expected a file, which can be read in any order".to_owned();
            return Err(Error::Uri { uri: location.text.clone(), reason });
        }
        return if metadata.is_dir() {
            list_folder(connection, location).await
        } else {
            head(connection, location).await
        };
    }
    if location.is_folder || !has_parquet_extension(location.path.as_ref()) && location.store_lists() {
        let listed = list_folder(connection, location).await;
        if !matches!(listed, Err(Error::NotFound { .. } | Error::NoObjects { .. })) || location.is_folder {
            return listed;
        }
        // It may be an object without an extension; if not, the listing gives a better error.
        return match head(connection, location).await {
            Err(Error::NotFound { .. }) => listed,
            found => found,
        };
    }
    Ok(vec![named(location, None, None)])
}

/// Returns the objects below `object`, which does not exist itself.
///
/// # Errors
///
/// As for [`list`]; [`Error::NotFound`] if the store cannot list.
pub(crate) async fn list_below(connection: &Connection, store: &StoreKey, object: &Object) -> Result<Vec<Listed>> {
    let location = Location {
        store: store.clone(),
        path: object.path.clone(),
        glob: None,
        is_folder: true,
        text: object.url.clone(),
        written: None,
    };
    if location.store_lists() { list_folder(connection, &location).await } else { Err(not_found(&location)) }
}

async fn head(connection: &Connection, location: &Location) -> Result<Vec<Listed>> {
    let meta = connection.client.head(&location.path).await.map_err(|source| error(&location.text, source))?;
    Ok(vec![named(location, Some(meta.size), meta.e_tag)])
}

/// Returns the object that the location names.
fn named(location: &Location, size_bytes: Option<u64>, e_tag: Option<String>) -> Listed {
    let relative = location.path.filename().unwrap_or_default().to_owned();
    let url = location.url();
    let (path, written) = (location.path.clone(), location.written.clone());
    Listed { object: Object { path, url, written, size_bytes, e_tag }, relative }
}

async fn list_folder(connection: &Connection, location: &Location) -> Result<Vec<Listed>> {
    let (metas, broken) = list_all(connection, location).await?;
    let num_seen = metas.len();
    let is_wanted =
        |meta: &ObjectMeta, relative: &str| !is_hidden(relative) && has_parquet_extension(meta.location.as_ref());
    let names = metas.iter().map(|meta| relative(location, meta));
    let wanted = metas.iter().map(|meta| (meta, relative(location, meta))).filter(|(meta, name)| is_wanted(meta, name));
    refuse_tables(&location.text, names, wanted.map(|(_, name)| name))?;
    check_links(&keep(location, broken, is_wanted))?;
    let listed = without_folders(connection, keep(location, metas, is_wanted)).await;
    if listed.is_empty() {
        if num_seen == 0 && !connection.is_local {
            return Err(not_found(location));
        }
        let reason = match num_seen {
            0 => "the folder is empty".to_owned(),
            _ => format!("{} there, but no visible one ends in `.{}`", objects_are(num_seen), EXTENSIONS.join("`, `.")),
        };
        return Err(Error::NoObjects { url: location.text.clone(), reason });
    }
    Ok(listed)
}

async fn list_glob(connection: &Connection, location: &Location, pattern: &str) -> Result<Vec<Listed>> {
    let matcher = matcher(location, pattern)?;
    let (metas, broken) = list_all(connection, location).await?;
    let num_seen = metas.len();
    let is_match = |meta: &ObjectMeta| matcher.is_match(meta.location.as_ref());
    // A glob character in the name of an existing object is literal, unless the glob matches something else.
    let is_name = |meta: &ObjectMeta| meta.location.as_ref() == pattern;
    let is_named = metas.iter().any(is_name) && !metas.iter().any(is_match);
    let is_below =
        |meta: &ObjectMeta| meta.location.as_ref().strip_prefix(pattern).is_some_and(|rest| rest.starts_with('/'));
    if !is_named && metas.iter().any(is_below) && !metas.iter().any(is_match) {
        let path = Path::parse(pattern).map_err(|source| error(&location.text, source.into()))?;
        let folder = Location { path, glob: None, is_folder: true, ..location.clone() };
        return list_folder(connection, &folder).await;
    }
    let is_wanted = |meta: &ObjectMeta, relative: &str| match is_named {
        true => is_name(meta),
        false => is_match(meta) && !is_hidden(relative),
    };
    check_links(&keep(location, broken, is_wanted))?;
    let listed = without_folders(connection, keep(location, metas, is_wanted)).await;
    if listed.is_empty() {
        let folder = location.store.url_of(&location.path);
        // For local files, only folders that the pattern can match were searched.
        let reason = format!(
            "{} under `{folder}` where the pattern begins, but none matches it; patterns match objects, not folders: \
             `{}/**` matches what is below matching folders",
            objects_are(num_seen),
            location.text.trim_end_matches('/')
        );
        return Err(Error::NoObjects { url: location.text.clone(), reason });
    }
    Ok(listed)
}

fn matcher(location: &Location, pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob.map_err(|error| Error::Uri { uri: location.text.clone(), reason: error.to_string() })?;
    Ok(glob.compile_matcher())
}

/// Returns everything below the folder of `location`, and links there that lead nowhere.
async fn list_all(connection: &Connection, location: &Location) -> Result<(Vec<ObjectMeta>, Vec<ObjectMeta>)> {
    if !connection.is_local {
        let prefix = Some(&location.path).filter(|path| !path.as_ref().is_empty());
        let listed = collect(connection.client.list(prefix)).await;
        return Ok((listed.map_err(|source| error(&location.text, with_advice(source)))?, Vec::new()));
    }
    let (folder, levels) = (file_path(&location.path), reached_folders(location));
    let may_enter = move |level: usize, name: &str| match &levels {
        Some(levels) => levels.get(level).is_some_and(|level| level.is_match(name)),
        None => true,
    };
    let walked = connection.io.blocking(move || walk(&folder, may_enter)).await?;
    let Walked { files, broken } = walked.map_err(|source| system_error(location, source))?;
    let last_modified = chrono::DateTime::UNIX_EPOCH;
    let named = |location| ObjectMeta { location, last_modified, size: 0, e_tag: None, version: None };
    Ok((files, broken.into_iter().map(named).collect()))
}

/// Collects a listing. Refuses one in which pages follow one another in a circle: it would never end.
///
/// One pair of neighbours at a time is looked out for, and after twice as many objects the latest one (Brent's
/// algorithm). A single object may be listed twice: an empty one looks like the marker of a folder of its name.
async fn collect(
    mut listing: impl Stream<Item = object_store::Result<ObjectMeta>> + Unpin,
) -> object_store::Result<Vec<ObjectMeta>> {
    let mut metas = Vec::new();
    let (mut awaited, mut next_len) = (None, 2);
    while let Some(meta) = listing.try_next().await? {
        metas.push(meta);
        let Some(latest) = metas.last_chunk::<2>() else { continue };
        if awaited.as_ref() == Some(latest) {
            let said = format!("it listed `{}` again, so its listing has no end", latest[1].location);
            return Err(Trouble::new(Kind::Wrong, said).of("store"));
        }
        if metas.len() >= next_len {
            next_len = 2 * metas.len();
            awaited = Some(latest.clone());
        }
    }
    Ok(metas)
}

/// Returns matchers for the folders, level by level, that a location's pattern can reach: others need not be readable.
/// `None` if it may reach all.
fn reached_folders(location: &Location) -> Option<Vec<GlobMatcher>> {
    let parts = |key: &str| key.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let pattern = location.glob.as_ref().filter(|pattern| !pattern.contains("**") && !pattern.contains('{'))?;
    let mut levels = parts(pattern).split_off(parts(location.path.as_ref()).len());
    levels.pop();
    levels.iter().map(|level| matcher(location, level).ok()).collect()
}

/// Refuses a wanted link that leads nowhere: a dataset without it would have fewer rows than expected.
fn check_links(broken: &[Listed]) -> Result<()> {
    let Some(Listed { object, .. }) = broken.first() else { return Ok(()) };
    let (path, source) = (object.url.clone(), "it is a link to something that does not exist".into());
    Err(Error::NotFound {
        url: object.url.clone(),
        source: Some(Box::new(object_store::Error::NotFound { path, source })),
    })
}

/// Adds advice about a key that clients cannot parse, for which they refuse the whole listing.
fn with_advice(source: object_store::Error) -> object_store::Error {
    let object_store::Error::InvalidPath { source } = source else { return source };
    let said =
        format!("{source}; such keys cannot be read: rename the object, or list the objects that you want one by one");
    object_store::Error::Generic { store: "listing", source: said.into() }
}

/// Returns the name of an object relative to the listed folder.
fn relative<'a>(location: &Location, meta: &'a ObjectMeta) -> &'a str {
    let key: &str = meta.location.as_ref();
    key.strip_prefix(location.path.as_ref()).unwrap_or(key).trim_start_matches('/')
}

/// Returns the objects that `wanted` accepts, in natural order of their keys.
fn keep(location: &Location, metas: Vec<ObjectMeta>, wanted: impl Fn(&ObjectMeta, &str) -> bool) -> Vec<Listed> {
    let mut listed = Vec::new();
    let markers = folder_markers(&metas);
    for meta in metas {
        let relative = relative(location, &meta).to_owned();
        let is_marker = meta.size == 0 && markers.contains(&meta.location);
        if relative.is_empty() || is_marker || !wanted(&meta, &relative) {
            continue;
        }
        let url = location.store.url_of(&meta.location);
        let (size_bytes, e_tag) = (Some(meta.size), meta.e_tag);
        let object = Object { path: meta.location, url, written: None, size_bytes, e_tag };
        listed.push(Listed { object, relative });
    }
    listed.sort_by(|a, b| {
        let (a, b) = (a.object.path.as_ref(), b.object.path.as_ref());
        natord::compare(a, b).then_with(|| a.cmp(b))
    });
    listed
}

/// Returns the empty objects that stand for folders. Consoles and Hadoop make them; their keys end in a slash, which
/// the client drops, so that `x.parquet/` looks like an object, even beside one named `x.parquet`.
fn folder_markers(metas: &[ObjectMeta]) -> HashSet<Path> {
    let empty: HashSet<&Path> = metas.iter().filter(|meta| meta.size == 0).map(|meta| &meta.location).collect();
    if empty.is_empty() {
        return HashSet::new();
    }
    let folders = metas.iter().flat_map(|meta| std::iter::successors(meta.location.parent(), Path::parent));
    let objects = metas.iter().filter(|meta| meta.size > 0).map(|meta| meta.location.clone());
    folders.chain(objects).filter(|folder| empty.contains(folder)).collect()
}

/// Leaves out listed empty objects that do not exist under their names: markers of empty folders, whose keys end in a
/// slash. Costs a request for each empty object, which would not be read anyway.
async fn without_folders(connection: &Connection, listed: Vec<Listed>) -> Vec<Listed> {
    let is_empty = |listed: &Listed| listed.object.size_bytes == Some(0);
    if connection.is_local || !listed.iter().any(is_empty) {
        return listed;
    }
    let look_up = |listed: Listed| async move {
        let is_absent = is_empty(&listed)
            && matches!(connection.client.head(&listed.object.path).await, Err(object_store::Error::NotFound { .. }));
        (!is_absent).then_some(listed)
    };
    let found = stream::iter(listed).map(look_up).buffered(config::FOOTERS_IN_FLIGHT);
    found.filter_map(std::future::ready).collect().await
}

fn objects_are(number: usize) -> String {
    if number == 1 { "1 object is".to_owned() } else { format!("{number} objects are") }
}

pub(super) fn is_hidden(relative: &str) -> bool {
    // The key of a partition may begin with an underscore, as in Spark.
    let is_key = |part: &str| part.starts_with('_') && part.contains('=');
    relative.split('/').any(|part| part.starts_with(['.', '_']) && !is_key(part))
}

pub(super) fn has_parquet_extension(key: &str) -> bool {
    key.rsplit_once('.').is_some_and(|(_, extension)| EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()))
}

fn system_error(location: &Location, source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => not_found(location),
        _ => error(&location.text, object_store::Error::Generic { store: "the file system", source: source.into() }),
    }
}

fn not_found(location: &Location) -> Error {
    Error::NotFound { url: location.text.clone(), source: None }
}

fn file_path(path: &Path) -> PathBuf {
    PathBuf::from(format!("{MAIN_SEPARATOR}{path}"))
}

impl Location {
    fn store_lists(&self) -> bool {
        !matches!(self.store, StoreKey::Http(_) | StoreKey::Hub(_))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt, PutPayload};

    use super::*;
    use crate::source::Store;

    fn listed(keys: &[&str], uri: &str) -> Result<Vec<String>> {
        let memory = Arc::new(InMemory::new());
        let connection = Store::of_client(Arc::clone(&memory) as _).connect().unwrap();
        let io = Arc::clone(&connection.io);
        io.block_on(async {
            for key in keys {
                memory.put(&Path::parse(key).unwrap(), PutPayload::from_static(b"x")).await.unwrap();
            }
            let listed = list(&connection, &Location::parse(uri).unwrap()).await?;
            Ok(listed.into_iter().map(|listed| listed.relative).collect())
        })
    }

    #[test]
    fn a_listing_that_goes_round_in_a_circle_is_refused() {
        let meta = |number: u64, size| ObjectMeta {
            location: Path::from(format!("{number}.parquet")),
            last_modified: chrono::DateTime::UNIX_EPOCH,
            size,
            e_tag: None,
            version: None,
        };
        let collected = |numbers: Vec<u64>, size_of: fn(u64) -> u64| {
            let listing = stream::iter(numbers.into_iter().map(|number| Ok(meta(number, size_of(number)))));
            crate::io::Io::current().unwrap().block_on(collect(listing)).map(|metas| metas.len())
        };
        let sizes: [fn(u64) -> u64; 3] = [|number| number % 3, |_| 0, |_| 1];
        for size_of in sizes {
            assert_eq!(collected((0..1000).collect(), size_of).unwrap(), 1000);
            for (first, len) in [(0, 1), (0, 2), (0, 1000), (17, 2000), (1000, 3)] {
                let around = (0..first + 8 * len.max(first))
                    .map(|place| if place < first { place } else { first + (place - first) % len });
                let refused = collected(around.collect(), size_of).unwrap_err();
                assert!(refused.to_string().contains(".parquet` again"), "{refused}");
            }
        }
        // Empty objects beside the markers of folders of their names.
        assert_eq!(collected(vec![1, 1, 2, 3, 3, 4, 5, 4], |_| 0).unwrap(), 8);
    }

    #[test]
    fn a_folder_lists_visible_parquet_in_natural_order() {
        let keys = [
            "d/part-10.parquet",
            "d/part-2.parquet",
            "d/.hidden.parquet",
            "d/_temporary/0.parquet",
            "d/notes.txt",
            "d/sub/a.PQ",
        ];
        assert_eq!(listed(&keys, "s3://b/d/").unwrap(), ["part-2.parquet", "part-10.parquet", "sub/a.PQ"]);
    }

    #[test]
    fn the_folder_of_a_table_is_refused_and_files_that_are_named_are_not() {
        let keys = ["d/t/1.parquet", "d/t/k=2/2.parquet", "d/t/_delta_log/00000000000000000000.json"];
        for folder in ["s3://b/d/t/", "s3://b/d/t", "s3://b/d"] {
            assert!(matches!(listed(&keys, folder), Err(Error::Setting { name: "source", .. })), "{folder}");
        }
        assert_eq!(listed(&keys, "s3://b/d/t/*.parquet").unwrap(), ["1.parquet"]);
        assert_eq!(listed(&keys, "s3://b/d/t/**").unwrap(), ["1.parquet", "k=2/2.parquet"]);
        assert_eq!(listed(&keys, "s3://b/d/t/1.parquet").unwrap(), ["1.parquet"]);
    }

    #[test]
    fn a_glob_matches_within_and_across_folders() {
        let keys = ["d/a/1.parquet", "d/a/b/2.parquet", "d/c/3.bin"];
        assert_eq!(listed(&keys, "s3://b/d/*/*.parquet").unwrap(), ["a/1.parquet"]);
        assert_eq!(listed(&keys, "s3://b/d/**/*.parquet").unwrap(), ["a/1.parquet", "a/b/2.parquet"]);
        assert_eq!(listed(&keys, "s3://b/d/c/*.bin").unwrap(), ["3.bin"]);
        assert!(matches!(listed(&keys, "s3://b/d/*.csv"), Err(Error::NoObjects { .. })));
    }

    #[test]
    fn what_is_called_as_a_pattern_is_found_by_its_name() {
        let keys = ["d/a[1].parquet", "d/{x}.parquet", "d/b?.parquet", "d/b1.parquet"];
        let found = |name: &str| listed(&keys, &format!("s3://b/d/{name}.parquet")).unwrap();
        assert_eq!(found("a[1]"), ["a[1].parquet"]);
        assert_eq!(found("{x}"), ["{x}.parquet"]);
        assert_eq!(found("b[1]"), ["b1.parquet"]);
        assert_eq!(found("b?"), ["b1.parquet", "b?.parquet"]);
    }

    #[test]
    fn a_folder_that_is_called_as_a_pattern_is_found_by_its_name() {
        let keys = ["d/run [1]/x.parquet", "d/run [1]/k=a?b/y.parquet", "d/run [2]/x.parquet", "d/run 2/x.parquet"];
        let found = |name: &str| listed(&keys, &format!("s3://b/d/{name}"));
        for name in ["run [1]/", "run [1]"] {
            assert_eq!(found(name).unwrap(), ["k=a?b/y.parquet", "x.parquet"]);
        }
        assert_eq!(found("run [1]/k=a?b").unwrap(), ["y.parquet"]);
        assert_eq!(found("run [2]/x.parquet").unwrap(), ["run 2/x.parquet"], "patterns go first");
        assert!(found("run [3]/").is_err());
    }

    #[test]
    fn no_folder_is_looked_into_that_a_pattern_does_not_reach() {
        let reached = |uri: &str| reached_folders(&Location::parse(uri).unwrap());
        let levels =
            |uri: &str| reached(uri).map(|levels| levels.iter().map(|level| level.glob().to_string()).collect());
        for (uri, expected) in
            [("s3://b/d/*.parquet", &[][..]), ("s3://b/d/[de]/x/?.parquet", &["[de]", "x"]), ("s3://b/*", &[])]
        {
            assert_eq!(levels(uri), Some(expected.iter().map(|&level| level.to_owned()).collect::<Vec<_>>()), "{uri}");
        }
        for all in ["s3://b/d/**/x.parquet", "s3://b/d/**", "s3://b/d/{a,b/c}/x.parquet", "s3://b/d/x[/]y", "s3://b/d/"]
        {
            assert!(reached(all).is_none(), "{all}");
        }
    }

    #[test]
    fn a_key_that_is_not_read_is_named_with_what_to_do() {
        let source = Path::parse("d/a//b.parquet").unwrap_err();
        let said = with_advice(object_store::Error::InvalidPath { source }).to_string();
        assert!(said.contains("d/a//b.parquet") && said.contains("rename the object"), "{said}");
    }

    #[test]
    fn a_folder_that_is_called_as_an_object_takes_none_away() {
        let meta = |key: &str, size| ObjectMeta {
            location: Path::parse(key).unwrap(),
            last_modified: chrono::DateTime::UNIX_EPOCH,
            size,
            e_tag: None,
            version: None,
        };
        let location = Location::parse("s3://b/d/").unwrap();
        let kept = |metas: Vec<ObjectMeta>| -> Vec<(String, Option<u64>)> {
            let kept = keep(&location, metas, |_, _| true);
            kept.into_iter().map(|listed| (listed.relative, listed.object.size_bytes)).collect()
        };
        let (object, marker, below) =
            (meta("d/x.parquet", 7), meta("d/x.parquet", 0), meta("d/x.parquet/y.parquet", 8));
        let both = [("x.parquet".to_owned(), Some(7)), ("x.parquet/y.parquet".to_owned(), Some(8))];
        assert_eq!(kept(vec![object.clone(), marker.clone()]), both[..1]);
        assert_eq!(kept(vec![object.clone(), marker.clone(), below.clone()]), both);
        assert_eq!(kept(vec![object, below.clone()]), both);
        assert_eq!(kept(vec![marker, below]), both[1..]);
    }

    #[test]
    fn an_empty_prefix_is_not_found_and_a_folder_without_parquet_says_so() {
        assert!(matches!(listed(&["d/x.txt"], "s3://b/e/"), Err(Error::NotFound { .. })));
        assert!(matches!(listed(&["d/x.txt"], "s3://b/d/"), Err(Error::NoObjects { .. })));
    }

    #[test]
    fn a_named_object_needs_no_request_and_one_without_extension_is_found() {
        assert_eq!(listed(&[], "s3://b/d/x.parquet").unwrap(), ["x.parquet"]);
        assert_eq!(listed(&["d/x"], "s3://b/d/x").unwrap(), ["x"]);
    }
}
