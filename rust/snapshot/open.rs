//! Opens objects: their footers come from a manifest, from the catalogue cache, or from one request each.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::Fragment;
use super::find::Source;
use super::footer::{self, TailSize};
use super::pack::{self, Pack};
use super::packed::Tail;
use super::types::Schemas;
use crate::cache::Cache;
use crate::config;
use crate::error::{Error, Result};
use crate::io::Io;
use crate::metrics::{Counted, Metrics, Progress, Stage};
use crate::source::{Connection, Listed, Object, Store, StoreKey, list_below};

/// Known footers that a thread parses before it looks for other work.
const PARSED_AT_ONCE: usize = 64;

/// Sources, some of which are to be opened.
#[derive(Debug)]
pub(super) struct Unopened<'a> {
    pub(super) stores: &'a [Store],
    pub(super) sources: Vec<Source>,
    /// The packed footers of the sources, if known.
    pub(super) packed: Vec<Option<Bytes>>,
    /// The indices of those to open.
    pub(super) members: BTreeSet<usize>,
}

/// The opened objects.
#[derive(Debug)]
pub(super) struct Opened {
    /// For each source: none if it was not requested, several for a folder with the name of an object.
    pub(super) fragments: Vec<Vec<Fragment>>,
    /// What a user may want to know.
    pub(super) notes: Vec<String>,
    /// Requests for footers.
    pub(super) footers: Counted,
}

/// What all reads of footers have in common.
struct Shared {
    connections: Vec<Connection>,
    keys: Vec<StoreKey>,
    tail_size: TailSize,
    schemas: Arc<Schemas>,
    /// Per object, for column indexes and bloom filters.
    keep_bytes: u64,
}

/// The objects of one store whose footers may be in the cache.
struct Cached {
    key: Vec<String>,
    /// With their objects as cached, as they were before any of their footers was read.
    members: Vec<(usize, Object)>,
    pack: Pack,
}

impl Unopened<'_> {
    /// Parses known footers, reads the others, and stores those in `cache`.
    pub(super) async fn open(mut self, cache: Option<&Cache>, progress: &Progress) -> Result<Opened> {
        let metrics = Arc::new(Metrics::default());
        let connect = |store: &Store| Ok(store.connect()?.with_metrics(&metrics).at(Stage::Footers));
        let shared = Shared {
            connections: self.stores.iter().map(connect).collect::<Result<_>>()?,
            keys: self.stores.iter().map(|store| store.key().clone()).collect(),
            tail_size: TailSize::default(),
            schemas: Arc::default(),
            keep_bytes: config::KEPT_INDEX_BYTES / (self.members.len() as u64).max(1),
        };
        let io = Io::current()?;
        progress.start(self.members.len() as u64);
        let mut cached = match cache {
            Some(cache) => self.look_up(&io, cache).await?,
            None => Vec::new(),
        };
        let mut fragments = self.parse_known(&io, &shared, progress).await?;
        let missing: Vec<usize> = self.members.iter().copied().filter(|&member| fragments[member].is_empty()).collect();
        let read = |member: usize| {
            let (source, shared) = (&self.sources[member], &shared);
            async move {
                let opened = open_object(shared, source).await?;
                progress.advance(1);
                Ok::<_, Error>((member, opened))
            }
        };
        let read: Vec<_> = stream::iter(missing).map(read).buffered(config::FOOTERS_IN_FLIGHT).try_collect().await?;
        let mut is_new = vec![false; fragments.len()];
        for (member, opened) in read {
            (fragments[member], is_new[member]) = (opened, true);
        }
        let notes = cached.iter().filter_map(|cached| cached.pack.damage.clone()).collect();
        if let Some(cache) = cache {
            cached.retain(|cached| cached.members.iter().any(|(member, _)| is_new[*member]));
            self.keep(&io, cache, cached, &fragments, &is_new).await?;
        }
        Ok(Opened { fragments, notes, footers: metrics.of(Stage::Footers) })
    }

    /// Takes the footers of the members that `cache` has.
    async fn look_up(&mut self, io: &Io, cache: &Cache) -> Result<Vec<Cached>> {
        let mut found = Vec::new();
        for (store, of) in self.stores.iter().enumerate() {
            let members = self.members.iter().copied();
            let members: Vec<usize> = members
                .filter(|&member| self.packed[member].is_none() && self.sources[member].store == store)
                .filter(|&member| pack::is_cacheable(&self.sources[member].object))
                .collect();
            if members.is_empty() {
                continue;
            }
            let key = pack::key_of(of, members.iter().map(|&member| &self.sources[member].object));
            let (cache, of_pack, store) = (cache.clone(), key.clone(), of.key().clone());
            let objects: Vec<_> = members.iter().map(|&member| self.sources[member].object.clone()).collect();
            let as_kept = move || objects.iter().map(|object| pack::as_kept(&store, object)).collect::<Vec<_>>();
            let (objects, mut pack) = io.blocking(move || (as_kept(), Pack::load(&cache, &of_pack))).await?;
            let members: Vec<(usize, Object)> = members.into_iter().zip(objects).collect();
            for (member, object) in &members {
                if let Some((packed, e_tag)) = pack.get(object) {
                    (self.packed[*member], self.sources[*member].object.e_tag) = (Some(packed), Some(e_tag));
                }
            }
            found.push(Cached { key, members, pack });
        }
        Ok(found)
    }

    /// Parses known footers, on all cores. Unusable ones are read again.
    async fn parse_known(&self, io: &Io, shared: &Shared, progress: &Progress) -> Result<Vec<Vec<Fragment>>> {
        let known: Vec<(usize, Source, Bytes)> = self
            .members
            .iter()
            .filter_map(|&member| Some((member, self.sources[member].clone(), self.packed[member].clone()?)))
            .collect();
        let parse = |chunk: &[(usize, Source, Bytes)]| {
            let (chunk, schemas) = (chunk.to_vec(), Arc::clone(&shared.schemas));
            let parse = move || {
                let parse = |(member, source, packed): (usize, Source, Bytes)| {
                    Fragment::of_packed(&source, &packed, &schemas).map(|fragment| (member, fragment))
                };
                chunk.into_iter().filter_map(parse).collect::<Vec<_>>()
            };
            io.blocking(parse)
        };
        let mut fragments: Vec<Vec<Fragment>> = self.sources.iter().map(|_| Vec::new()).collect();
        let chunks: Vec<_> = known.chunks(PARSED_AT_ONCE).map(parse).collect();
        let mut parsed = stream::iter(chunks).buffer_unordered(config::num_threads());
        while let Some(parsed) = parsed.try_next().await? {
            progress.advance(parsed.len() as u64);
            for (member, fragment) in parsed {
                fragments[member] = vec![fragment];
            }
        }
        Ok(fragments)
    }

    /// Stores the footers that were read in the cache.
    async fn keep(
        &self,
        io: &Io,
        cache: &Cache,
        cached: Vec<Cached>,
        fragments: &[Vec<Fragment>],
        is_new: &[bool],
    ) -> Result<()> {
        for Cached { key, members, mut pack } in cached {
            pack.tidy(members.iter().map(|(_, object)| object));
            let mut has_new = false;
            for (member, object) in members.iter().filter(|(member, _)| is_new[*member]) {
                let is_settled = pack::is_settled(self.stores[self.sources[*member].store].key(), object);
                // The version that was listed: a response with another one is an error.
                if let Some(read) = fragments[*member].first().filter(|_| is_settled) {
                    pack.insert(object, &read.object, read.packed.clone());
                    has_new = true;
                }
            }
            if has_new {
                let cache = cache.clone();
                io.blocking(move || pack.save(&cache, &key)).await?;
            }
        }
        Ok(())
    }
}

/// Opens an object, or the objects below it if it turns out to be a folder.
///
/// A named object costs no request before that for its footer, so only this shows whether it is one. Spark writes
/// folders whose names end in `.parquet`, and where stores have directories (ADLS Gen2), these look like empty objects.
async fn open_object(shared: &Shared, source: &Source) -> Result<Vec<Fragment>> {
    let is_known = source.object.size_bytes.is_some();
    let mut named = source.clone();
    let failed = match open_fragment(shared, &mut named).await {
        Err(failed) if !is_known => failed,
        opened => return Ok(vec![opened?]),
    };
    if !matches!(failed, Error::NotFound { .. }) && named.object.size_bytes != Some(0) {
        return Err(failed);
    }
    let below = list_below(&shared.connections[source.store], &shared.keys[source.store], &source.object).await;
    let below = match below {
        Err(Error::NotFound { .. }) => return Err(failed),
        listed => listed?,
    };
    let open = |Listed { object, relative }: Listed| async move {
        open_fragment(shared, &mut Source { store: source.store, object, relative }).await
    };
    stream::iter(below).map(open).buffered(config::FOOTERS_IN_FLIGHT).try_collect().await
}

/// Opens an object, and fills in its size and e-tag.
async fn open_fragment(shared: &Shared, source: &mut Source) -> Result<Fragment> {
    let (schemas, found, keep_bytes) = (Arc::clone(&shared.schemas), source.clone(), shared.keep_bytes);
    let parse = move |object: &Object, tail: &Tail| {
        let source = Source { object: object.clone(), ..found.clone() };
        Fragment::try_new(&source, tail, None, &schemas, keep_bytes)
    };
    let connection = &shared.connections[source.store];
    let fragment = footer::read(connection, &mut source.object, &shared.tail_size, parse).await?;
    shared.tail_size.learn(fragment.tail_bytes);
    Ok(fragment)
}
