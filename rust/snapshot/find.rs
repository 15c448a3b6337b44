//! Finds the objects of a dataset, by listings, in a manifest, or by explicit names, with their stores and splits.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::manifest::{self, Saved};
use crate::error::{Error, Result};
use crate::io::Io;
use crate::source::{Listed, Location, Object, Store, StoreKey, infer_splits, list, share};

/// Names all splits, unless one has this name.
const ALL_SPLITS: &str = "all";

/// What to open.
#[derive(Debug, Clone, Default)]
pub struct OpenRequest {
    /// Folders, objects and globs, as paths or URIs.
    pub sources: Vec<String>,
    /// The split to keep, several as `train+test`, or `all`; `None` for all objects.
    pub split: Option<String>,
    /// Options of the stores, which override the environment's.
    pub storage_options: BTreeMap<String, String>,
    /// Options that only the Hub's store gets: its token is for no other.
    pub hub_options: BTreeMap<String, String>,
}

/// Objects that were found elsewhere, and are not looked up again.
#[derive(Debug, Clone, Default)]
pub struct FilesRequest {
    /// Names of the datasets to open, with the splits of each and their objects.
    pub splits: Vec<(String, Vec<SplitFiles>)>,
    /// The commit of all objects, if they are files of a repository.
    pub commit: Option<String>,
    /// Options of the stores, which override the environment's.
    pub storage_options: BTreeMap<String, String>,
    /// Options that only the Hub's store gets: its token is for no other.
    pub hub_options: BTreeMap<String, String>,
}

/// A split with its objects.
pub type SplitFiles = (String, Vec<FileRequest>);

/// An object that was found elsewhere; without a size, it may be a folder or a pattern.
#[derive(Debug, Clone)]
pub struct FileRequest {
    /// Its path or URI.
    pub uri: String,
    /// Its size, if known.
    pub size_bytes: Option<u64>,
    /// Its entity tag, if known.
    pub e_tag: Option<String>,
}

/// An object to open, and where it was found.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The store's index among those of the request.
    pub(super) store: usize,
    pub(super) object: Object,
    /// Its path relative to what was listed.
    pub(super) relative: String,
}

/// The result of a request: objects with their stores and splits.
pub(super) struct Found {
    pub(super) stores: Vec<Store>,
    pub(super) sources: Vec<Source>,
    /// How long that took; `None` if they were known.
    pub(super) listing: Option<Duration>,
    /// The sources' packed footers, if a manifest has them.
    pub(super) packed: Vec<Option<Bytes>>,
    pub(super) splits: Vec<(String, Vec<usize>)>,
    /// The commits of the splits, if objects are files of a repository.
    pub(super) commits: Vec<Option<String>>,
}

/// A snapshot to be opened.
pub(super) struct Wanted {
    pub(super) split: Option<String>,
    /// Its splits, with the indices of their sources.
    pub(super) parts: Vec<(String, Vec<usize>)>,
    pub(super) commit: Option<String>,
}

impl Found {
    pub(super) fn of_saved(stores: Vec<Store>, saved: Saved) -> Self {
        let packed = saved.packed.into_iter().map(Some).collect();
        let (splits, commits) = (saved.splits, saved.commits);
        Self { stores, sources: saved.sources, listing: None, packed, splits, commits }
    }

    /// Returns a snapshot of all sources.
    pub(super) fn all(&self) -> Wanted {
        Wanted { split: None, parts: vec![(String::new(), (0..self.sources.len()).collect())], commit: None }
    }

    /// Returns a snapshot for each split.
    pub(super) fn each_split(&self) -> Vec<Wanted> {
        self.splits.iter().filter_map(|(name, _)| self.of_splits(name)).collect()
    }

    /// Returns the splits that `text` names, as `train`, `train+test` or `all`; `None` if one does not exist.
    pub(super) fn of_splits(&self, text: &str) -> Option<Wanted> {
        let place = |name: &str| self.splits.iter().position(|(known, _)| known == name);
        let places: Vec<usize> = match place(text) {
            Some(place) => vec![place],
            None if text == ALL_SPLITS => (0..self.splits.len()).collect(),
            None => text.split('+').map(|name| place(name.trim())).collect::<Option<_>>()?,
        };
        let parts = places.iter().map(|&place| self.splits[place].clone()).collect();
        let commit = places.first().and_then(|&place| self.commits.get(place).cloned().flatten());
        Some(Wanted { split: Some(text.to_owned()), parts, commit })
    }

    /// Gives each part its own sources: one whose name has several splits is in each of them.
    pub(super) fn take_apart(&mut self, wanted: &mut [Wanted]) {
        let mut taken = HashSet::new();
        for (_, members) in wanted.iter_mut().flat_map(|wanted| &mut wanted.parts) {
            for member in members {
                if !taken.insert(*member) {
                    self.sources.push(self.sources[*member].clone());
                    self.packed.push(self.packed[*member].clone());
                    *member = self.sources.len() - 1;
                }
            }
        }
    }
}

/// Finds the requested objects, with one listing per folder.
pub(super) async fn find(request: &OpenRequest) -> Result<Found> {
    let start = Instant::now();
    let found = find_sources(request).await?;
    Ok(Found { listing: Some(start.elapsed()), ..found })
}

async fn find_sources(request: &OpenRequest) -> Result<Found> {
    if request.sources.is_empty() {
        return Err(Error::Uri { uri: String::new(), reason: "the list of sources is empty".into() });
    }
    let uris = request.sources.clone();
    // Paths are looked up in their file systems, which may take long.
    let parse = move || {
        let locations = parse(&uris)?;
        let manifest = locations.iter().position(manifest::is_manifest);
        Ok::<_, Error>((locations, manifest))
    };
    let (locations, manifest) = Io::current()?.blocking(parse).await??;
    match manifest.map(|place| &locations[place]) {
        Some(manifest) if locations.len() == 1 => find_saved(manifest, request).await,
        Some(manifest) => {
            let reason = "a manifest must be opened by itself, not together with other sources".to_owned();
            Err(Error::Uri { uri: manifest.text.clone(), reason })
        }
        None => find_listed(&locations, request).await,
    }
}

fn parse(uris: &[String]) -> Result<Vec<Location>> {
    uris.iter().map(|uri| Location::parse(uri)).collect()
}

/// Finds what a manifest lists.
async fn find_saved(location: &Location, request: &OpenRequest) -> Result<Found> {
    let options = Options { all: &request.storage_options, hub: &request.hub_options };
    let saved = manifest::read(location, &options.of(&location.store, &[&location.store])?).await?;
    let all: Vec<&StoreKey> = saved.stores.iter().map(|(key, _)| key).chain([&location.store]).collect();
    let make = |(key, _): &(StoreKey, _)| Store::try_new(key.clone(), &options.of(key, &all)?);
    let stores = saved.stores.iter().map(make).collect::<Result<_>>()?;
    Ok(Found::of_saved(stores, saved))
}

async fn find_listed(locations: &[Location], request: &OpenRequest) -> Result<Found> {
    let mut stores: Vec<Store> = Vec::new();
    let mut sources: Vec<Source> = Vec::new();
    let mut known = HashSet::new();
    let mut ends = Vec::new();
    let all: Vec<&StoreKey> = locations.iter().map(|location| &location.store).collect();
    let options = Options { all: &request.storage_options, hub: &request.hub_options };
    for location in locations {
        let store = store_of(location, &mut stores, || options.of(&location.store, &all))?;
        let connection = stores[store].connect()?;
        for Listed { object, relative } in list(&connection, location).await? {
            if !known.insert((store, object.path.clone(), object.written.clone())) {
                let mut reason = format!("`{}` is named twice", object.url);
                if location.text != object.url {
                    reason = format!("{reason}, the second time as `{}`", location.text);
                }
                return Err(Error::Setting { name: "source", reason });
            }
            sources.push(Source { store, object, relative });
        }
        ends.push(sources.len());
    }
    let relative: Vec<String> = sources.iter().map(|source| source.relative.clone()).collect();
    let (packed, splits) = (vec![None; sources.len()], infer_splits(&relative));
    check_splits(locations, &ends, &splits)?;
    Ok(Found { stores, packed, sources, listing: None, splits, commits: Vec::new() })
}

/// Refuses a source with no object in any split, which would be silently left out; `ends` delimit each source's
/// objects.
fn check_splits(locations: &[Location], ends: &[usize], splits: &[(String, Vec<usize>)]) -> Result<()> {
    let kept: HashSet<usize> = splits.iter().flat_map(|(_, members)| members).copied().collect();
    let mut first = 0;
    for (location, &end) in locations.iter().zip(ends) {
        if first < end && !(first..end).any(|index| kept.contains(&index)) {
            let reason = "its name does not name a split, but the names of others do; say which files belong to each \
                          split with `parquet` as the path and `data_files={'train': [...]}`"
                .to_owned();
            return Err(Error::Uri { uri: location.text.clone(), reason });
        }
        first = end;
    }
    Ok(())
}

/// Returns objects that were found elsewhere, and the snapshots to open: each object once per part of a split, even if
/// several patterns match it. Sizes of local files are looked up.
pub(super) async fn find_files(request: FilesRequest) -> Result<(Found, Vec<Wanted>)> {
    let FilesRequest { splits, commit, storage_options, hub_options } = request;
    let options = Options { all: &storage_options, hub: &hub_options };
    let (mut stores, mut sources, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    let files = splits.iter().flat_map(|(_, of)| of).flat_map(|(_, files)| files);
    let uris: Vec<String> = files.map(|file| file.uri.clone()).collect();
    let locations = Io::current()?.blocking(move || parse(&uris)).await??;
    let all: Vec<&StoreKey> = locations.iter().map(|location| &location.store).collect();
    let mut of_files = locations.iter();
    for (name, of) in splits {
        let mut parts = Vec::new();
        for (part, files) in of {
            let (first, mut known) = (sources.len(), HashSet::new());
            for (file, location) in files.into_iter().zip(&mut of_files) {
                let options = || match location.store {
                    // Copies of files that were found elsewhere, by those options.
                    StoreKey::Local => Ok(BTreeMap::new()),
                    _ => options.of(&location.store, &all),
                };
                let store = store_of(location, &mut stores, options)?;
                let mut found = find_file(file, location.clone(), store, &stores[store]).await?;
                found
                    .retain(|Source { object, .. }| known.insert((store, object.path.clone(), object.written.clone())));
                sources.extend(found);
            }
            parts.push((part, (first..sources.len()).collect()));
        }
        wanted.push(Wanted { split: Some(name), parts, commit: commit.clone() });
    }
    let packed = vec![None; sources.len()];
    Ok((Found { stores, sources, listing: None, packed, splits: Vec::new(), commits: Vec::new() }, wanted))
}

/// Returns an object that was found elsewhere; folders and patterns are listed, and local files looked up.
async fn find_file(file: FileRequest, location: Location, store: usize, of: &Store) -> Result<Vec<Source>> {
    if file.size_bytes.is_none() || location.store == StoreKey::Local {
        let listed = list(&of.connect()?, &location).await?;
        return Ok(listed.into_iter().map(|Listed { object, relative }| Source { store, object, relative }).collect());
    }
    // It was chosen by name, so its folders do not matter.
    let relative = location.path.filename().unwrap_or_default().to_owned();
    let url = location.url();
    let Location { path, written, .. } = location;
    let object = Object { path, url, written, size_bytes: file.size_bytes, e_tag: file.e_tag };
    Ok(vec![Source { store, object, relative }])
}

/// The options of a request.
struct Options<'a> {
    all: &'a BTreeMap<String, String>,
    hub: &'a BTreeMap<String, String>,
}

impl Options<'_> {
    /// Returns the options for one of the `stores` of a dataset.
    fn of(&self, key: &StoreKey, stores: &[&StoreKey]) -> Result<BTreeMap<String, String>> {
        let mut options = options_for(key, stores, self.all)?;
        if let StoreKey::Hub(_) = key {
            options.extend(self.hub.clone());
        }
        Ok(options)
    }
}

/// Returns the options for one of `all` stores of a dataset; those of a single one are checked where it is made.
pub(super) fn options_for(
    key: &StoreKey,
    all: &[&StoreKey],
    options: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    if all.iter().all(|other| *other == key) {
        return Ok(options.clone());
    }
    let remote: BTreeSet<&StoreKey> = all.iter().copied().filter(|store| **store != StoreKey::Local).collect();
    share(key, &Vec::from_iter(remote), options)
}

/// Returns the index of a location's store, which is created if necessary.
fn store_of(
    location: &Location,
    stores: &mut Vec<Store>,
    options: impl FnOnce() -> Result<BTreeMap<String, String>>,
) -> Result<usize> {
    if let Some(index) = stores.iter().position(|store| *store.key() == location.store) {
        return Ok(index);
    }
    stores.push(Store::try_new(location.store.clone(), &options()?)?);
    Ok(stores.len() - 1)
}
