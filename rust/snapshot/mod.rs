//! [`Snapshot`]: the objects of a dataset as they were when it was opened, with their footers and one schema; and how
//! their rows are read.
//!
//! [`find`] finds the objects, and [`open`] their footers: in a [`manifest`], in the cache on disk ([`pack`]), both of
//! which store them [`packed`], or with [`footer`], one request each. [`thrift`] checks their claims before they are
//! parsed; column indexes and bloom filters that come along are [`kept`]. Each object is then a [`fragment`]; its
//! [`types`] are derived once per schema, with the [`zones`] of timestamps. [`schema`] unifies them, [`inner`] makes
//! columns of the fields of structs and [`partition`] of the names of folders. A [`Snapshot`] holds all of this, and a
//! [`fingerprint`] identifies it.
//!
//! [`cost`] estimates what reading a row group takes, [`ranges`] computes the bytes of rows, and [`page_bounds`] reads
//! the bounds of pages. [`row_group`] reads rows: columns that [`decode`](crate::decode) supports by [`own_column`],
//! the others by [`parquet_columns`], which needs [`under_null`]. [`trial`] decodes objects in memory, to compare the
//! two.

mod cost;
mod find;
mod fingerprint;
mod footer;
mod fragment;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod inner;
mod kept;
mod manifest;
mod open;
mod own_column;
mod pack;
mod packed;
mod page_bounds;
mod parquet_columns;
mod partition;
mod ranges;
mod row_group;
mod schema;
#[cfg(test)]
mod tests;
pub(crate) mod thrift;
mod trial;
mod types;
mod under_null;
mod zones;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::{DataType, SchemaRef};

pub(crate) use self::cost::{ColumnLayout, ReadCost};
#[cfg(test)]
use self::find::Source;
pub use self::find::{FileRequest, FilesRequest, OpenRequest, SplitFiles};
use self::find::{Found, Wanted, find, find_files, options_for};
pub use self::fragment::Fragment;
pub(crate) use self::fragment::levels_of;
pub use self::manifest::Audience;
#[cfg(test)]
use self::manifest::Saved;
use self::open::{Opened, Unopened};
pub(crate) use self::page_bounds::PageBounds;
pub(crate) use self::parquet_columns::FetchedRanges;
pub(crate) use self::partition::Constant;
pub use self::row_group::Decoders;
pub(crate) use self::row_group::{Coded, ColumnReader, Decoded, RowGroupRead, Storing};
pub(crate) use self::schema::field_of;
pub use self::trial::Trial;
pub use self::types::plain_rows;
pub(crate) use self::types::plain_type;
pub(crate) use self::under_null::fields_under_null;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::metrics::{Counted, Progress};
use crate::secrets;
#[cfg(test)]
use crate::source::Object;
use crate::source::{AS_JSON, Preset, Store, StoreKey};

/// A row group of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroupRef {
    /// The fragment's index in the snapshot.
    pub fragment: u32,
    /// The row group within the fragment.
    pub index: u32,
    /// The number of its rows.
    pub num_rows: u32,
}

/// The objects of a dataset with their footers and the schema they share.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) stores: Vec<Store>,
    pub(crate) fragments: Vec<Fragment>,
    /// All row groups that have rows, in order.
    pub(crate) row_groups: Vec<RowGroupRef>,
    /// The columns, with types that hold every fragment's values.
    pub schema: SchemaRef,
    /// The columns, and after them the fields of their structs, which can be read on their own.
    pub(crate) columns: SchemaRef,
    /// The identity of the dataset, in hex.
    pub fingerprint: String,
    /// Number of rows in all.
    pub num_rows: u64,
    row_bytes: u64,
    /// The split of its objects, if one was requested.
    pub(crate) split: Option<String>,
    /// The number of rows of each of its splits, if splits were requested.
    pub parts: Vec<(String, u64)>,
    /// The commit of its objects, if they are files of a repository.
    pub commit: Option<String>,
    /// What a user may want to know about how it was opened.
    pub notes: Vec<String>,
    /// The cost of opening.
    pub opening: Opening,
}

/// The cost of opening a snapshot, including the splits that were opened with it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// Time for finding the objects; `None` if they were known.
    pub listing: Option<Duration>,
    /// Requests for footers.
    pub footers: Counted,
    /// Total time.
    pub elapsed: Duration,
}

impl Snapshot {
    /// Lists the requested objects and reads their footers: one listing per folder, one request for each footer that is
    /// not in the catalogue cache. A manifest takes one request, and nothing else.
    ///
    /// # Errors
    ///
    /// Those of listing and reading; [`Error::NotParquet`], [`Error::SchemaMismatch`], [`Error::UnknownSplit`],
    /// [`Error::Manifest`].
    pub async fn open(request: OpenRequest, progress: &Progress) -> Result<Self> {
        let found = find(&request).await?;
        let wanted = match &request.split {
            None => found.all(),
            Some(split) => found.of_splits(split).ok_or_else(|| Error::UnknownSplit {
                split: split.clone(),
                url: request.sources.join(", "),
                available: found.splits.iter().map(|(name, _)| name.clone()).collect(),
            })?,
        };
        let mut opened = found.open(vec![wanted], cache().as_ref(), progress).await?;
        opened.pop().ok_or_else(|| Error::Internal { reason: "nothing was opened".into() })
    }

    /// Opens all splits under `request`, listed once, whatever split it names.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub async fn open_splits(request: OpenRequest, progress: &Progress) -> Result<Vec<(String, Self)>> {
        let found = find(&request).await?;
        let names: Vec<String> = found.splits.iter().map(|(name, _)| name.clone()).collect();
        let wanted = found.each_split();
        Ok(names.into_iter().zip(found.open(wanted, cache().as_ref(), progress).await?).collect())
    }

    /// Opens objects that were found elsewhere, and reads their footers.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub async fn open_files(request: FilesRequest, progress: &Progress) -> Result<Vec<(String, Self)>> {
        let names: Vec<String> = request.splits.iter().map(|(name, _)| name.clone()).collect();
        let (found, wanted) = find_files(request).await?;
        Ok(names.into_iter().zip(found.open(wanted, cache().as_ref(), progress).await?).collect())
    }

    /// Returns the number of objects.
    pub fn num_objects(&self) -> usize {
        self.fragments.len()
    }

    /// Returns the tokens that repositories of datasets on the Hub were opened with, by name; an empty one means none.
    pub fn hub_tokens(&self) -> BTreeMap<&str, &str> {
        self.stores.iter().filter_map(Store::hub_token).collect()
    }

    /// Returns the names of the columns that some object stores as a type other than the dataset's.
    pub fn mixed_columns(&self) -> Vec<String> {
        let is_other = |fragment: &Fragment, column: usize, data_type: &DataType| {
            let root = fragment.columns.get(column).copied().flatten();
            root.is_some_and(|root| fragment.schema.field(root).data_type() != data_type)
        };
        let fields = self.schema.fields().iter().enumerate();
        let mixed = fields.filter(|(column, field)| {
            self.fragments.iter().any(|fragment| is_other(fragment, *column, field.data_type()))
        });
        mixed.map(|(_, field)| field.name().clone()).collect()
    }

    /// Writes a manifest of snapshots, each as a split with its name or `train`, to `uri`, which ends in `.forebay`:
    /// one request. [`Self::open`] on it neither lists nor reads footers. It contains no store options.
    ///
    /// `storage_options` are for `uri`'s store; without any, a store of the snapshots is used with its own.
    ///
    /// # Errors
    ///
    /// [`Error::Uri`] for another name, [`Error::Setting`] for more objects than one can list, and those of writing.
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

    /// Returns what [`Self::reopen`] needs in another process, with the store options that `audience` may see.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for more objects than a header can list.
    pub fn to_bytes(&self, audience: Audience) -> Result<Vec<u8>> {
        let bytes = manifest::encode(&[(self.split_name(), self)], audience);
        bytes.map_err(|reason| Error::Setting { name: "pickle", reason })
    }

    /// Opens exactly the same objects again, without any request. Options that were left out come from `given`, or else
    /// from the environment.
    ///
    /// # Errors
    ///
    /// [`Error::NotAState`] for other bytes, [`Error::StateMismatch`] if the dataset is now a different one,
    /// [`Error::Setting`] for secrets that are not provided.
    pub async fn reopen(bytes: Vec<u8>, given: Option<&BTreeMap<String, String>>, progress: &Progress) -> Result<Self> {
        let saved = manifest::decode(&bytes.into()).map_err(|reason| Error::NotAState { reason })?;
        let all: Vec<&StoreKey> = saved.stores.iter().map(|(key, _)| key).collect();
        let stores = saved.stores.iter().zip(&saved.withheld);
        let stores = stores.map(|((key, options), withheld)| {
            let given = given.map(|given| for_store(given, withheld, &saved.withheld));
            let given = given.map(|given| options_for(key, &all, &given)).transpose()?;
            Store::try_new(key.clone(), &with_secrets(key, options, withheld, given)?)
        });
        let (stores, fingerprint) = (stores.collect::<Result<_>>()?, saved.fingerprints.join(", "));
        let found = Found::of_saved(stores, saved);
        let wanted = found.each_split();
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
    async fn of_sources(
        stores: Vec<Store>,
        sources: Vec<Source>,
        cache: Option<&Cache>,
        progress: &Progress,
    ) -> Result<Self> {
        let packed = vec![None; sources.len()];
        let found = Found { stores, sources, listing: None, packed, splits: Vec::new(), commits: Vec::new() };
        let wanted = vec![found.all()];
        Ok(found.open(wanted, cache, progress).await?.remove(0))
    }

    /// Opens what was saved, with `stores` in place of its own.
    #[cfg(test)]
    async fn of_saved(stores: Vec<Store>, saved: Saved, progress: &Progress) -> Result<Vec<Self>> {
        let found = Found::of_saved(stores, saved);
        let wanted = found.each_split();
        found.open(wanted, None, progress).await
    }

    fn of_fragments(stores: Vec<Store>, mut fragments: Vec<Fragment>, commit: Option<String>) -> Result<Self> {
        let schema = Arc::new(schema::unify(&mut fragments)?);
        let columns = inner::with_inner(&schema, &mut fragments);
        let has_times = |store: &Store| matches!(store.key(), StoreKey::Local | StoreKey::FileSystem(_));
        let are_tags_times = stores.iter().all(has_times);
        let fingerprint = fingerprint::fingerprint(&fragments, &schema, are_tags_times, commit.as_deref());
        let row_groups = row_groups(&fragments);
        let num_rows: u64 = row_groups.iter().map(|row_group| u64::from(row_group.num_rows)).sum();
        let decoded = |row_group: &RowGroupRef| fragments[row_group.fragment as usize].decoded_bytes(row_group.index);
        let row_bytes = row_groups.iter().map(decoded).fold(0, u64::saturating_add).div_ceil(num_rows.max(1)).max(1);
        let (split, parts, notes, opening) = (None, Vec::new(), Vec::new(), Opening::default());
        Ok(Self {
            stores,
            fragments,
            row_groups,
            schema,
            columns,
            fingerprint,
            num_rows,
            row_bytes,
            split,
            parts,
            commit,
            notes,
            opening,
        })
    }

    /// Returns a hash of all objects' places and versions, so that what is cached for them is never used for others;
    /// `None` if one of them could change unnoticed.
    pub(crate) fn versions(&self) -> Option<String> {
        pack::versions(&self.stores, self.fragments.iter().map(|fragment| (fragment.store, &fragment.object)))
    }

    /// Returns the name of the split in a manifest.
    fn split_name(&self) -> &str {
        self.split.as_deref().unwrap_or("train")
    }

    /// Returns a snapshot without objects that has row groups of these sizes, for tests.
    #[cfg(test)]
    pub(crate) fn of_sizes(sizes: &[u32]) -> Self {
        let row_group = |(&num_rows, index)| RowGroupRef { fragment: 0, index, num_rows };
        Self {
            stores: Vec::new(),
            fragments: Vec::new(),
            row_groups: sizes.iter().zip(0..).map(row_group).collect(),
            schema: Arc::new(arrow_schema::Schema::empty()),
            columns: Arc::new(arrow_schema::Schema::empty()),
            fingerprint: "5f3a".into(),
            num_rows: sizes.iter().map(|&rows| u64::from(rows)).sum(),
            row_bytes: 1,
            split: None,
            parts: Vec::new(),
            commit: None,
            notes: Vec::new(),
            opening: Opening::default(),
        }
    }

    /// Returns the fragment of a row group.
    pub(crate) fn fragment(&self, row_group: RowGroupRef) -> &Fragment {
        &self.fragments[row_group.fragment as usize]
    }

    /// Returns how requests for a fragment are made before anything is measured.
    pub(crate) fn preset(&self, fragment: &Fragment) -> Preset {
        Preset::of(self.stores[fragment.store].key())
    }

    /// Returns the maximum gap between ranges of a fragment that are fetched together: plans rely on it, whatever is
    /// measured.
    pub(crate) fn gap_bytes(&self, fragment: &Fragment) -> u64 {
        self.preset(fragment).gap_bytes
    }

    /// Returns the average decoded bytes of a row over all columns.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }
}

/// Returns the given options for one of several stores: not those that were left out of others only, which may be
/// secrets.
fn for_store(
    given: &BTreeMap<String, String>,
    withheld: &[String],
    of_all: &[Vec<String>],
) -> BTreeMap<String, String> {
    let plain = |name: &str| name.strip_suffix(AS_JSON).unwrap_or(name).to_owned();
    let is_among = |names: &[String], name: &str| names.iter().any(|withheld| plain(withheld) == plain(name));
    let is_meant = |name: &str| is_among(withheld, name) || !of_all.iter().any(|withheld| is_among(withheld, name));
    given.iter().filter(|(name, _)| is_meant(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns options with the left-out ones filled in.
fn with_secrets(
    key: &StoreKey,
    options: &BTreeMap<String, String>,
    withheld: &[String],
    given: Option<BTreeMap<String, String>>,
) -> Result<BTreeMap<String, String>> {
    let mut options = options.clone();
    match given {
        Some(_) if *key == StoreKey::Local => {}
        Some(given) => options.extend(given),
        None => {
            let missing: Vec<String> =
                withheld.iter().filter(|name| !secrets::is_in_environment(key, name)).cloned().collect();
            if !missing.is_empty() {
                let (names, root) = (missing.join("`, `"), key.root());
                let reason = format!(
                    "secrets are not pickled, and `{names}` of `{root}` is not in the environment here; unpickle within \
                     `forebay.unpickle_with(storage_options)`, or pickle within `forebay.pickle_with_secrets()`"
                );
                return Err(Error::Setting { name: "storage_options", reason });
            }
        }
    }
    Ok(options)
}

/// Returns the process's footer cache.
fn cache() -> Option<Cache> {
    Cache::of_process(pack::KIND)
}

impl Found {
    /// Opens snapshots, each of some of the sources.
    async fn open(
        mut self,
        mut wanted: Vec<Wanted>,
        cache: Option<&Cache>,
        progress: &Progress,
    ) -> Result<Vec<Snapshot>> {
        let start = Instant::now();
        self.take_apart(&mut wanted);
        let Self { stores, sources, packed, listing, .. } = self;
        let parts = wanted.iter().flat_map(|wanted| &wanted.parts);
        let members = parts.flat_map(|(_, members)| members.iter().copied()).collect();
        let unopened = Unopened { stores: &stores, sources, packed, members };
        let Opened { mut fragments, notes, footers } = unopened.open(cache, progress).await?;
        let mut opened = Vec::with_capacity(wanted.len());
        for Wanted { split, parts, commit } in wanted {
            let (mut of_split, mut sizes) = (Vec::new(), Vec::new());
            for (name, members) in parts {
                let first = of_split.len();
                of_split.extend(members.into_iter().flat_map(|member| std::mem::take(&mut fragments[member])));
                let num_rows = row_groups(&of_split[first..]).iter().map(|group| u64::from(group.num_rows)).sum();
                sizes.push((name, num_rows));
            }
            let stores = stores.iter().map(Store::again).collect();
            let elapsed = start.elapsed() + listing.unwrap_or_default();
            let (notes, opening) = (notes.clone(), Opening { listing, footers, elapsed });
            let snapshot = Snapshot::of_fragments(stores, of_split, commit)?;
            opened.push(Snapshot { split, parts: sizes, notes, opening, ..snapshot });
        }
        Ok(opened)
    }
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
