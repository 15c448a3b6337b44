//! The objects of a dataset as they were when it was opened.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::{Fragment, fingerprint, footer, schema};
use crate::config;
use crate::error::{Error, Result};
use crate::metrics::{Counted, Metrics, Progress, Stage};
use crate::source::{Connection, Listed, Location, Object, Preset, Store, StoreKey, infer_splits, list, list_below};

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
    /// What opening took.
    pub opening: Opening,
}

/// What opening a snapshot took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// Time for finding the objects; `None` where they were known.
    pub listing: Option<Duration>,
    /// Requests for footers.
    pub footers: Counted,
    /// Time for all of it.
    pub elapsed: Duration,
}

/// Store, key, URL, size and e-tag of an object.
type SavedObject = (usize, String, String, Option<u64>, Option<String>);

/// A snapshot on its way to another process.
#[derive(Serialize, Deserialize)]
struct Saved {
    stores: Vec<(StoreKey, BTreeMap<String, String>)>,
    objects: Vec<SavedObject>,
    fingerprint: String,
}

/// What was found under a request: objects with their stores and splits.
struct Found {
    stores: Vec<Store>,
    objects: Vec<(usize, Object)>,
    splits: Vec<(String, Vec<usize>)>,
}

impl Snapshot {
    /// Lists what is asked for and reads the footers: one listing for a folder, one request for each footer.
    ///
    /// # Errors
    ///
    /// Those of listing and reading; [`Error::NotParquet`], [`Error::SchemaMismatch`], [`Error::UnknownSplit`].
    pub async fn open(request: OpenRequest, progress: &Progress) -> Result<Self> {
        let start = Instant::now();
        let Found { stores, mut objects, splits } = find(&request).await?;
        let listing = start.elapsed();
        if let Some(split) = &request.split {
            let Some((_, members)) = splits.iter().find(|(name, _)| name == split) else {
                return Err(Error::UnknownSplit {
                    split: split.clone(),
                    url: request.sources.join(", "),
                    available: splits.into_iter().map(|(name, _)| name).collect(),
                });
            };
            objects = members.iter().map(|&index| objects[index].clone()).collect();
        }
        let mut opened = Self::of_objects(stores, objects, progress).await?;
        opened.opening.listing = Some(listing);
        opened.opening.elapsed += listing;
        Ok(opened)
    }

    /// Returns the number of objects.
    pub fn num_objects(&self) -> usize {
        self.fragments.len()
    }

    /// Returns the names of the splits under `request`, at the cost of listing it.
    ///
    /// # Errors
    ///
    /// Those of listing.
    pub async fn splits(request: &OpenRequest) -> Result<Vec<String>> {
        Ok(find(request).await?.splits.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns what [`Self::reopen`] needs in another process, as JSON. It holds the stores' options.
    pub fn to_json(&self) -> String {
        let stores = self.stores.iter().map(|store| (store.key().clone(), store.options().clone())).collect();
        let objects = self.fragments.iter().map(|fragment| {
            let Object { path, url, size_bytes, e_tag } = fragment.object.clone();
            (fragment.store, path.to_string(), url, size_bytes, e_tag)
        });
        let saved = Saved { stores, objects: objects.collect(), fingerprint: self.fingerprint.clone() };
        serde_json::to_string(&saved).unwrap_or_default()
    }

    /// Opens the very same objects again, without listing: one request for each footer.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`] for other text, [`Error::ObjectChanged`], [`Error::StateMismatch`] when the dataset is
    /// another one by now.
    pub async fn reopen(json: &str, progress: &Progress) -> Result<Self> {
        let saved: Saved =
            serde_json::from_str(json).map_err(|error| Error::NotAState { reason: error.to_string() })?;
        let stores = saved.stores.into_iter().map(|(key, options)| Store::try_new(key, &options));
        let object = |(store, path, url, size_bytes, e_tag): SavedObject| {
            let path = Path::parse(path).map_err(|error| Error::NotAState { reason: error.to_string() })?;
            Ok((store, Object { path, url, size_bytes, e_tag }))
        };
        let objects = saved.objects.into_iter().map(object).collect::<Result<Vec<_>>>()?;
        let snapshot = Self::of_objects(stores.collect::<Result<Vec<_>>>()?, objects, progress).await?;
        if snapshot.fingerprint != saved.fingerprint {
            let difference = format!("fingerprint: expected {}, got {}", saved.fingerprint, snapshot.fingerprint);
            return Err(Error::StateMismatch { differences: vec![difference] });
        }
        Ok(snapshot)
    }

    /// Reads the footers of known objects, given with their stores.
    pub(crate) async fn of_objects(
        stores: Vec<Store>,
        objects: Vec<(usize, Object)>,
        progress: &Progress,
    ) -> Result<Self> {
        let (start, metrics) = (Instant::now(), Arc::new(Metrics::default()));
        let connect = |store: &Store| Ok(store.connect()?.with_metrics(&metrics).at(Stage::Footers));
        let connections = stores.iter().map(connect).collect::<Result<Vec<_>>>()?;
        progress.start(objects.len() as u64);
        let keep_bytes = config::KEPT_INDEX_BYTES / (objects.len() as u64).max(1);
        let read = |(store, object): (usize, Object)| {
            let connection: &Connection = &connections[store];
            let key = stores[store].key();
            async move {
                let fragments = open_object(connection, key, store, object, keep_bytes).await?;
                progress.advance(1);
                Ok::<_, Error>(fragments)
            }
        };
        let mut fragments: Vec<Fragment> =
            stream::iter(objects).map(read).buffered(config::FOOTERS_IN_FLIGHT).try_concat().await?;
        let schema = Arc::new(schema::unify(&mut fragments)?);
        let is_local = stores.iter().all(|store| *store.key() == StoreKey::Local);
        let fingerprint = fingerprint::fingerprint(&fragments, is_local);
        let row_groups = row_groups(&fragments);
        let num_rows: u64 = row_groups.iter().map(|row_group| u64::from(row_group.num_rows)).sum();
        let decoded = |row_group: &RowGroupRef| fragments[row_group.fragment as usize].decoded_bytes(row_group.index);
        let row_bytes = row_groups.iter().map(decoded).fold(0, u64::saturating_add).div_ceil(num_rows.max(1)).max(1);
        let opening = Opening { listing: None, footers: metrics.of(Stage::Footers), elapsed: start.elapsed() };
        Ok(Self { stores, fragments, row_groups, schema, fingerprint, num_rows, row_bytes, opening })
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

/// Opens an object, or the objects below it if it is a folder after all.
///
/// An object that is named costs no request before that for its footer, so whether it is one is found out here. Spark
/// writes folders whose names end in `.parquet`.
async fn open_object(
    connection: &Connection,
    key: &StoreKey,
    store: usize,
    object: Object,
    keep_bytes: u64,
) -> Result<Vec<Fragment>> {
    let is_known = object.size_bytes.is_some();
    match open_fragment(connection, store, object.clone(), keep_bytes).await {
        Err(missing @ Error::NotFound { .. }) if !is_known => {
            let below = match list_below(connection, key, &object).await {
                Err(Error::NotFound { .. }) => return Err(missing),
                listed => listed?,
            };
            let open = |listed: Listed| open_fragment(connection, store, listed.object, keep_bytes);
            stream::iter(below).map(open).buffered(config::FOOTERS_IN_FLIGHT).try_collect().await
        }
        opened => Ok(vec![opened?]),
    }
}

async fn open_fragment(connection: &Connection, store: usize, mut object: Object, keep_bytes: u64) -> Result<Fragment> {
    let footer = footer::read(connection, &mut object).await?;
    let url = object.url.clone();
    // Deriving types takes long for wide files, and may panic on hostile ones: not on the runtime's thread.
    let derived = connection.io.spawn_blocking(move || Fragment::try_new(object, store, footer, keep_bytes)).await;
    derived.map_err(|stopped| match stopped.is_panic() {
        true => Error::NotParquet { url, reason: "its schema is corrupt".into() },
        false => Error::Closed { reason: "cancelled" },
    })?
}

async fn find(request: &OpenRequest) -> Result<Found> {
    let mut stores: Vec<Store> = Vec::new();
    let mut objects: Vec<(usize, Object)> = Vec::new();
    let mut relative = Vec::new();
    let mut known = HashSet::new();
    if request.sources.is_empty() {
        return Err(Error::Uri { uri: String::new(), reason: "the list of sources is empty".into() });
    }
    for source in &request.sources {
        let location = Location::parse(source)?;
        let index = match stores.iter().position(|store| *store.key() == location.store) {
            Some(index) => index,
            None => {
                stores.push(Store::try_new(location.store.clone(), &request.storage_options)?);
                stores.len() - 1
            }
        };
        let connection = stores[index].connect()?;
        for Listed { object, relative: path } in list(&connection, &location).await? {
            if !known.insert((index, object.path.clone())) {
                let reason = format!("`{}` is in the sources twice", object.url);
                return Err(Error::Uri { uri: source.clone(), reason });
            }
            objects.push((index, object));
            relative.push(path);
        }
    }
    let splits = infer_splits(&relative);
    Ok(Found { stores, objects, splits })
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
