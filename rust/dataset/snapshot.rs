//! The objects of a dataset as they were when it was opened.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use bytes::Bytes;

use super::manifest::{self, Saved};
use super::open::{Opened, Unopened};
use super::{Fragment, fingerprint, pack, schema};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::metrics::{Counted, Progress};
use crate::source::{Listed, Location, Object, Preset, Store, StoreKey, infer_splits, list};

/// What to open.
#[derive(Debug, Clone, Default)]
pub struct OpenRequest {
    /// Folders, objects and globs, as paths or URIs.
    pub sources: Vec<String>,
    /// The split to keep; all objects without one.
    pub split: Option<String>,
    /// Options of the stores, over those of the environment.
    pub storage_options: BTreeMap<String, String>,
}

/// A row group of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroupRef {
    /// The fragment, among the snapshot's.
    pub fragment: u32,
    /// The row group, within the fragment.
    pub index: u32,
    /// Its rows.
    pub num_rows: u32,
}

/// The objects of a dataset with their footers and the schema they share.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) stores: Vec<Store>,
    pub(crate) fragments: Vec<Fragment>,
    /// All row groups that hold rows, in order.
    pub(crate) row_groups: Vec<RowGroupRef>,
    /// The columns, with the types that hold every fragment's values.
    pub schema: SchemaRef,
    /// The identity of the dataset, in hex.
    pub fingerprint: String,
    /// Rows in all.
    pub num_rows: u64,
    row_bytes: u64,
    /// The split that its objects are, if one was asked for.
    pub(crate) split: Option<String>,
    /// What a user may want to know of how it was opened.
    pub notes: Vec<String>,
    /// What opening took.
    pub opening: Opening,
}

/// What opening a snapshot took, together with the splits that were opened with it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// Time for finding the objects; `None` where they were known.
    pub listing: Option<Duration>,
    /// Requests for footers.
    pub footers: Counted,
    /// Time for all of it.
    pub elapsed: Duration,
}

/// An object to open, and where it was found.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The store, among those of the request.
    pub(super) store: usize,
    pub(super) object: Object,
    /// Its path below what was listed.
    pub(super) relative: String,
}

/// What was found under a request: objects with their stores and splits.
struct Found {
    stores: Vec<Store>,
    sources: Vec<Source>,
    /// How long that took; `None` where they were known.
    listing: Option<Duration>,
    /// The sources' packed footers, where a manifest has them.
    packed: Vec<Option<Bytes>>,
    splits: Vec<(String, Vec<usize>)>,
}

impl Snapshot {
    /// Lists what is asked for and reads the footers: one listing for a folder, one request for each footer that the
    /// catalogue cache does not have. A manifest is one request, and nothing else.
    ///
    /// # Errors
    ///
    /// Those of listing and reading; [`Error::NotParquet`], [`Error::SchemaMismatch`], [`Error::UnknownSplit`],
    /// [`Error::Manifest`].
    pub async fn open(request: OpenRequest, progress: &Progress) -> Result<Self> {
        let found = find(&request).await?;
        let wanted = match &request.split {
            None => (0..found.sources.len()).collect(),
            Some(split) => match found.splits.iter().find(|(name, _)| name == split) {
                Some((_, members)) => members.clone(),
                None => {
                    return Err(Error::UnknownSplit {
                        split: split.clone(),
                        url: request.sources.join(", "),
                        available: found.splits.into_iter().map(|(name, _)| name).collect(),
                    });
                }
            },
        };
        let mut opened = found.open(vec![(request.split, wanted)], cache().as_ref(), progress).await?;
        opened.pop().ok_or_else(|| Error::Internal { reason: "nothing was opened".into() })
    }

    /// Opens all splits under `request`, listed once, whatever split it names.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn open_splits(request: OpenRequest, progress: &Progress) -> Result<Vec<(String, Self)>> {
        let mut found = find(&request).await?;
        let splits = std::mem::take(&mut found.splits);
        let names: Vec<String> = splits.iter().map(|(name, _)| name.clone()).collect();
        let wanted = splits.into_iter().map(|(name, members)| (Some(name), members)).collect();
        Ok(names.into_iter().zip(found.open(wanted, cache().as_ref(), progress).await?).collect())
    }

    /// Returns the number of objects.
    pub fn num_objects(&self) -> usize {
        self.fragments.len()
    }

    /// Writes a manifest of snapshots, each a split by its name, or `train`, to `uri`, which ends in `.forebay`: one
    /// request. [`Self::open`] of it neither lists nor reads footers. It holds no options of stores.
    ///
    /// `storage_options` are those of `uri`'s store; without any, a store of the snapshots is used with its own.
    ///
    /// # Errors
    ///
    /// [`Error::Uri`] for another name, and those of writing.
    pub async fn save_manifest(
        splits: &[(Option<String>, Arc<Self>)],
        uri: &str,
        storage_options: &BTreeMap<String, String>,
    ) -> Result<()> {
        let named = |(name, snapshot): &'_ (Option<String>, Arc<Self>)| {
            (name.clone().unwrap_or_else(|| snapshot.split_name().to_owned()), Arc::clone(snapshot))
        };
        let splits: Vec<_> = splits.iter().map(named).collect();
        let splits: Vec<(&str, &Self)> = splits.iter().map(|(name, snapshot)| (name.as_str(), &**snapshot)).collect();
        manifest::save(&splits, uri, storage_options).await
    }

    /// Returns what [`Self::reopen`] needs in another process. It holds the stores' options.
    pub fn to_bytes(&self) -> Vec<u8> {
        manifest::encode(&[(self.split_name(), self)], true)
    }

    /// Opens the very same objects again, without any request.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`] for other bytes, [`Error::StateMismatch`] when the dataset is another one by now.
    pub async fn reopen(bytes: Vec<u8>, progress: &Progress) -> Result<Self> {
        let saved = manifest::decode(&bytes.into()).map_err(|reason| Error::NotAState { reason })?;
        let stores = saved.stores.iter().map(|(key, options)| Store::try_new(key.clone(), options));
        let (stores, fingerprint) = (stores.collect::<Result<_>>()?, saved.fingerprints.join(", "));
        let found = Found::of_saved(stores, saved);
        let wanted = found.splits.iter().map(|(name, members)| (Some(name.clone()), members.clone())).collect();
        let snapshot = found.open(wanted, None, progress).await?.pop();
        let snapshot = snapshot.ok_or_else(|| Error::NotAState { reason: "it has no objects".into() })?;
        if snapshot.fingerprint != fingerprint {
            let difference = format!("fingerprint: expected {fingerprint}, got {}", snapshot.fingerprint);
            return Err(Error::StateMismatch { differences: vec![difference] });
        }
        Ok(snapshot)
    }

    /// Reads the footers of known objects, given with their stores.
    #[cfg(test)]
    pub(crate) async fn of_objects(
        stores: Vec<Store>,
        objects: Vec<(usize, Object)>,
        progress: &Progress,
    ) -> Result<Self> {
        let relative = |object: &Object| object.path.filename().unwrap_or_default().to_owned();
        let sources = objects.into_iter().map(|(store, object)| Source { store, relative: relative(&object), object });
        Self::of_sources(stores, sources.collect(), None, progress).await
    }

    /// Reads the footers of sources.
    #[cfg(test)]
    pub(super) async fn of_sources(
        stores: Vec<Store>,
        sources: Vec<Source>,
        cache: Option<&Cache>,
        progress: &Progress,
    ) -> Result<Self> {
        let (packed, wanted) = (vec![None; sources.len()], vec![(None, (0..sources.len()).collect())]);
        let found = Found { stores, sources, listing: None, packed, splits: Vec::new() };
        Ok(found.open(wanted, cache, progress).await?.remove(0))
    }

    /// Opens what was saved, with `stores` in place of its own.
    #[cfg(test)]
    pub(super) async fn of_saved(stores: Vec<Store>, saved: Saved, progress: &Progress) -> Result<Vec<Self>> {
        let found = Found::of_saved(stores, saved);
        let wanted = found.splits.iter().map(|(name, members)| (Some(name.clone()), members.clone())).collect();
        found.open(wanted, None, progress).await
    }

    fn of_fragments(stores: Vec<Store>, mut fragments: Vec<Fragment>, split: Option<String>) -> Result<Self> {
        let schema = Arc::new(schema::unify(&mut fragments)?);
        let is_local = stores.iter().all(|store| *store.key() == StoreKey::Local);
        let fingerprint = fingerprint::fingerprint(&fragments, &schema, is_local);
        let row_groups = row_groups(&fragments);
        let num_rows: u64 = row_groups.iter().map(|row_group| u64::from(row_group.num_rows)).sum();
        let decoded = |row_group: &RowGroupRef| fragments[row_group.fragment as usize].decoded_bytes(row_group.index);
        let row_bytes = row_groups.iter().map(decoded).fold(0, u64::saturating_add).div_ceil(num_rows.max(1)).max(1);
        let (notes, opening) = (Vec::new(), Opening::default());
        Ok(Self { stores, fragments, row_groups, schema, fingerprint, num_rows, row_bytes, split, notes, opening })
    }

    /// Returns the name of the split in a manifest.
    fn split_name(&self) -> &str {
        self.split.as_deref().unwrap_or("train")
    }

    /// Returns a snapshot of no objects whose row groups would have these sizes, for tests.
    #[cfg(test)]
    pub(crate) fn of_sizes(sizes: &[u32]) -> Self {
        let row_group = |(&num_rows, index)| RowGroupRef { fragment: 0, index, num_rows };
        Self {
            stores: Vec::new(),
            fragments: Vec::new(),
            row_groups: sizes.iter().zip(0..).map(row_group).collect(),
            schema: Arc::new(arrow_schema::Schema::empty()),
            fingerprint: "5f3a".into(),
            num_rows: sizes.iter().map(|&rows| u64::from(rows)).sum(),
            row_bytes: 1,
            split: None,
            notes: Vec::new(),
            opening: Opening::default(),
        }
    }

    /// Returns the fragment that a row group is in.
    pub(crate) fn fragment(&self, row_group: RowGroupRef) -> &Fragment {
        &self.fragments[row_group.fragment as usize]
    }

    /// Returns how requests for a fragment are made before anything is measured.
    pub(crate) fn preset(&self, fragment: &Fragment) -> Preset {
        Preset::of(self.stores[fragment.store].key())
    }

    /// Returns how close ranges of a fragment lie that are fetched together at most: what plans count on, whatever is
    /// measured.
    pub(crate) fn gap_bytes(&self, fragment: &Fragment) -> u64 {
        self.preset(fragment).gap_bytes
    }

    /// Returns the decoded bytes of a row over all columns, on average.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }
}

/// Returns the process's cache of footers.
fn cache() -> Option<Cache> {
    Cache::of_process(pack::KIND)
}

impl Found {
    fn of_saved(stores: Vec<Store>, saved: Saved) -> Self {
        let packed = saved.packed.into_iter().map(Some).collect();
        Self { stores, sources: saved.sources, listing: None, packed, splits: saved.splits }
    }

    /// Opens snapshots of some sources each: numbers, none of them twice.
    async fn open(
        self,
        wanted: Vec<(Option<String>, Vec<usize>)>,
        cache: Option<&Cache>,
        progress: &Progress,
    ) -> Result<Vec<Snapshot>> {
        let start = Instant::now();
        let Self { stores, sources, packed, listing, .. } = self;
        let members = wanted.iter().flat_map(|(_, members)| members.iter().copied()).collect();
        let unopened = Unopened { stores: &stores, sources, packed, members };
        let Opened { mut fragments, notes, footers } = unopened.open(cache, progress).await?;
        let mut opened = Vec::with_capacity(wanted.len());
        for (split, members) in wanted {
            let of_split = members.into_iter().flat_map(|member| std::mem::take(&mut fragments[member])).collect();
            let stores = stores.iter().map(Store::again).collect();
            let elapsed = start.elapsed() + listing.unwrap_or_default();
            let (notes, opening) = (notes.clone(), Opening { listing, footers, elapsed });
            opened.push(Snapshot { notes, opening, ..Snapshot::of_fragments(stores, of_split, split)? });
        }
        Ok(opened)
    }
}

async fn find(request: &OpenRequest) -> Result<Found> {
    let start = Instant::now();
    let found = find_sources(request).await?;
    Ok(Found { listing: Some(start.elapsed()), ..found })
}

async fn find_sources(request: &OpenRequest) -> Result<Found> {
    if request.sources.is_empty() {
        return Err(Error::Uri { uri: String::new(), reason: "the list of sources is empty".into() });
    }
    let locations = request.sources.iter().map(|source| Location::parse(source)).collect::<Result<Vec<_>>>()?;
    match locations.iter().find(|location| manifest::is_manifest(location)) {
        Some(manifest) if locations.len() == 1 => find_saved(manifest, request).await,
        Some(manifest) => {
            let reason = "a manifest is opened alone, not with other sources".to_owned();
            Err(Error::Uri { uri: manifest.text.clone(), reason })
        }
        None => find_listed(&locations, request).await,
    }
}

/// Finds what a manifest lists.
async fn find_saved(location: &Location, request: &OpenRequest) -> Result<Found> {
    let saved = manifest::read(location, &request.storage_options).await?;
    let is_remote = |key: &StoreKey| *key != StoreKey::Local;
    let has_remote = is_remote(&location.store) || saved.stores.iter().any(|(key, _)| is_remote(key));
    let none = BTreeMap::new();
    let make = |(key, _): &(StoreKey, _)| {
        // What is meant for the others means nothing to local files.
        let options = if has_remote && !is_remote(key) { &none } else { &request.storage_options };
        Store::try_new(key.clone(), options)
    };
    let stores = saved.stores.iter().map(make).collect::<Result<_>>()?;
    Ok(Found::of_saved(stores, saved))
}

async fn find_listed(locations: &[Location], request: &OpenRequest) -> Result<Found> {
    let mut stores: Vec<Store> = Vec::new();
    let mut sources: Vec<Source> = Vec::new();
    let mut known = HashSet::new();
    for location in locations {
        let store = match stores.iter().position(|store| *store.key() == location.store) {
            Some(index) => index,
            None => {
                stores.push(Store::try_new(location.store.clone(), &request.storage_options)?);
                stores.len() - 1
            }
        };
        let connection = stores[store].connect()?;
        for Listed { object, relative } in list(&connection, location).await? {
            if !known.insert((store, object.path.clone())) {
                let reason = format!("`{}` is in the sources twice", object.url);
                return Err(Error::Uri { uri: location.text.clone(), reason });
            }
            sources.push(Source { store, object, relative });
        }
    }
    let relative: Vec<String> = sources.iter().map(|source| source.relative.clone()).collect();
    Ok(Found { stores, packed: vec![None; sources.len()], sources, listing: None, splits: infer_splits(&relative) })
}

fn row_groups(fragments: &[Fragment]) -> Vec<RowGroupRef> {
    let mut found = Vec::new();
    for (fragment, number) in fragments.iter().zip(0..) {
        for (row_group, index) in fragment.reader.metadata().row_groups().iter().zip(0..) {
            let num_rows = u32::try_from(row_group.num_rows()).unwrap_or(u32::MAX);
            if num_rows > 0 {
                found.push(RowGroupRef { fragment: number, index, num_rows });
            }
        }
    }
    found
}
