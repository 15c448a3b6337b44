//! The catalogue cache: packed footers on disk, so that reopening a dataset needs only the listing.
//!
//! One entry of the [cache](crate::cache) holds the footers of all objects below a folder of a store: thousands of
//! small files would be slow to open. A footer is found by its object's path, size and e-tag, so it cannot be stale. If
//! several processes write at once, the last one wins, and what it lacks costs a request the next time.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::fingerprint::common_folder;
use crate::cache::{Cache, Found};
use crate::hex::hex;
use crate::source::{Object, Store, StoreKey, status_changed};

/// The cache kind of these entries, including the version of their layout.
pub(super) const KIND: &str = "footers-1";

/// Footers unused for this long are left out when their entry is rewritten.
const MAX_IDLE_DAYS: u32 = 30;

/// A local file that changed less than this before it was read may change again without a new modification time.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The first half of a SHA-256.
type Id = [u8; 16];

/// The packed footers of the objects below one folder of one store.
#[derive(Debug, Default)]
pub(super) struct Pack {
    entries: HashMap<Id, Entry>,
    /// What was found to be damaged, if anything.
    pub(super) damage: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    path: Id,
    /// When it was last used, in days since 1970.
    day: u32,
    /// As in responses: listings may omit the quotes.
    e_tag: String,
    packed: Bytes,
}

impl Pack {
    /// Returns the entry for `key`; empty if none can be read.
    pub(super) fn load(cache: &Cache, key: &[String]) -> Self {
        let key: Vec<&str> = key.iter().map(String::as_str).collect();
        let damage = match cache.get(&key) {
            Found::Nothing => return Self::default(),
            Found::Damaged(path) => path,
            Found::Bytes(bytes) => match decode(&bytes.into()) {
                Some(entries) => return Self { entries, damage: None },
                None => cache.path_of(&key),
            },
        };
        let damage = format!("the cache `{}` was damaged; footers are read again", damage.display());
        Self { damage: Some(damage), ..Self::default() }
    }

    /// Stores everything under `key`, if the disk allows; returns whether it did.
    pub(super) fn save(&self, cache: &Cache, key: &[String]) -> bool {
        let key: Vec<&str> = key.iter().map(String::as_str).collect();
        cache.put(&key, &encode(&self.entries))
    }

    /// Returns the packed footer of exactly this version of an object, and its e-tag as the store sends it.
    pub(super) fn get(&mut self, object: &Object) -> Option<(Bytes, String)> {
        let entry = self.entries.get_mut(&id_of(object)?.1)?;
        entry.day = today();
        Some((entry.packed.clone(), entry.e_tag.clone()))
    }

    /// Stores the packed footer of an object that was `listed`, and was `read` with the store's response.
    pub(super) fn insert(&mut self, listed: &Object, read: &Object, packed: Bytes) {
        if let Some(((path, version), e_tag)) = id_of(listed).zip(read.e_tag.clone()) {
            self.entries.insert(version, Entry { path, day: today(), e_tag, packed });
        }
    }

    /// Drops useless footers: other versions of `objects`, and those long unused.
    pub(super) fn tidy<'a>(&mut self, objects: impl Iterator<Item = &'a Object>) {
        let current: HashMap<Id, Id> = objects.filter_map(id_of).collect();
        let least_day = today().saturating_sub(MAX_IDLE_DAYS);
        self.entries.retain(|version, entry| {
            current.get(&entry.path).map_or(entry.day >= least_day, |current| current == version)
        });
    }
}

/// Returns the key of the pack for `objects` of a store.
pub(super) fn key_of<'a>(store: &Store, objects: impl Iterator<Item = &'a Object> + Clone) -> Vec<String> {
    let folder = common_folder(objects.clone().map(|object| object.path.as_ref()));
    let first = objects.map(|object| object.path.as_ref()).next().unwrap_or_default();
    let mut key = store.identity();
    key.push(first[..folder].to_owned());
    key
}

/// Returns an object as it is cached: a local file's tag also includes its status change time, since the modification
/// time may be set back after its bytes changed. Changed permissions cost another read.
pub(super) fn as_kept(store: &StoreKey, object: &Object) -> Object {
    let changed = (*store == StoreKey::Local).then(|| status_changed(&object.path)).flatten();
    let mut kept = object.clone();
    if let Some((tag, changed)) = kept.e_tag.as_mut().zip(changed) {
        *tag = format!("{tag}-{changed}");
    }
    kept
}

/// Returns whether an object's footer may be cached: the listing identified its version.
pub(super) fn is_cacheable(object: &Object) -> bool {
    id_of(object).is_some()
}

/// Returns whether an object is certain to get another tag when it changes. Local files have a modification time, which
/// is coarse.
pub(super) fn is_settled(store: &StoreKey, object: &Object) -> bool {
    let changed = || {
        let micros = object.e_tag.as_deref()?.trim_matches('"').split('-').nth(1)?;
        u64::from_str_radix(micros, 16).ok().map(Duration::from_micros)
    };
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    *store != StoreKey::Local || changed().is_some_and(|changed| changed + SETTLED_AFTER < since_epoch)
}

/// Returns a hash of the places and versions of all objects, each with its store; `None` if one of them may change
/// without another tag, or has none.
pub(super) fn versions<'a>(stores: &[Store], objects: impl Iterator<Item = (usize, &'a Object)>) -> Option<String> {
    let mut hash = Sha256::new();
    for text in stores.iter().flat_map(Store::identity) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    for (store, object) in objects {
        let key = stores[store].key();
        let (_, version) = id_of(&as_kept(key, object)).filter(|_| is_settled(key, object))?;
        hash.update((store as u64).to_le_bytes());
        hash.update(version);
    }
    Some(hex(hash.finalize()))
}

/// Returns a hash of an object's path, and one of its version; `None` without a strong e-tag.
fn id_of(object: &Object) -> Option<(Id, Id)> {
    let tag = object.e_tag.as_deref().filter(|tag| !tag.starts_with("W/") && !tag.is_empty())?;
    let path = object.path.as_ref();
    let version =
        [&(path.len() as u64).to_le_bytes()[..], path.as_bytes(), &object.size_bytes?.to_le_bytes(), tag.as_bytes()];
    Some((half(path.as_bytes()), half(&version.concat())))
}

fn half(bytes: &[u8]) -> Id {
    let mut id = Id::default();
    id.copy_from_slice(&Sha256::digest(bytes)[..16]);
    id
}

fn today() -> u32 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since_epoch.as_secs() / 86_400).unwrap_or(u32::MAX)
}

fn encode(entries: &HashMap<Id, Entry>) -> Vec<u8> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_unstable_by_key(|(version, _)| **version);
    let mut bytes = Vec::new();
    for (version, entry) in sorted {
        for len in [entry.e_tag.len(), entry.packed.len()] {
            bytes.extend((len as u64).to_le_bytes());
        }
        bytes.extend(version);
        bytes.extend(entry.path);
        bytes.extend(entry.day.to_le_bytes());
        bytes.extend(entry.e_tag.as_bytes());
        bytes.extend_from_slice(&entry.packed);
    }
    bytes
}

/// Reads arbitrary bytes: accepted ones survive a round trip.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(entries) = decode(&Bytes::copy_from_slice(bytes)) {
        assert_eq!(decode(&encode(&entries).into()), Some(entries));
    }
}

/// Decodes what [`encode`] wrote; `None` for other bytes.
fn decode(bytes: &Bytes) -> Option<HashMap<Id, Entry>> {
    let mut entries = HashMap::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (tag_len, after) = rest.split_first_chunk()?;
        let (packed_len, after) = after.split_first_chunk()?;
        let (version, after) = after.split_first_chunk()?;
        let (path, after) = after.split_first_chunk()?;
        let (day, after) = after.split_first_chunk()?;
        let (tag, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*tag_len)).ok()?)?;
        let (packed, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*packed_len)).ok()?)?;
        let e_tag = str::from_utf8(tag).ok()?.to_owned();
        let (day, packed) = (u32::from_le_bytes(*day), bytes.slice_ref(packed));
        entries.insert(*version, Entry { path: *path, day, e_tag, packed });
        rest = after;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use object_store::path::Path as Key;
    use proptest::prelude::*;

    use super::*;

    fn object(name: &str, tag: &str) -> Object {
        let url = format!("s3://bucket/{name}");
        Object { path: Key::from(name), url, written: None, size_bytes: Some(9), e_tag: Some(tag.into()) }
    }

    fn pack_of(objects: &[(&Object, &[u8])]) -> Pack {
        let mut pack = Pack::default();
        objects.iter().for_each(|(object, packed)| pack.insert(object, object, Bytes::copy_from_slice(packed)));
        pack
    }

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("footers"), 1 << 30);
        (folder, cache)
    }

    fn key() -> Vec<String> {
        vec!["s3://bucket".into(), "d/".into()]
    }

    #[test]
    fn a_footer_is_found_by_path_size_and_tag_and_by_nothing_less() {
        let (_folder, cache) = cache();
        let known = object("a", "1");
        assert!(pack_of(&[(&known, b"footer")]).save(&cache, &key()));
        let mut pack = Pack::load(&cache, &key());
        assert_eq!(pack.get(&known), Some((Bytes::from_static(b"footer"), "1".to_owned())));
        assert_eq!(pack.damage, None);
        for other in [
            object("b", "1"),
            object("a", "2"),
            object("a", "W/\"1\""),
            object("a", ""),
            Object { size_bytes: Some(8), ..known.clone() },
            Object { size_bytes: None, ..known.clone() },
            Object { e_tag: None, ..known.clone() },
        ] {
            assert_eq!(pack.get(&other), None, "{other:?}");
        }
    }

    #[test]
    fn other_versions_and_what_is_idle_are_dropped() {
        let [old, new, elsewhere, idle] = [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")].map(|(n, t)| object(n, t));
        let mut pack = pack_of(&[(&old, b"x"), (&new, b"x"), (&elsewhere, b"x"), (&idle, b"x")]);
        pack.entries.get_mut(&id_of(&idle).unwrap().1).unwrap().day = 0;
        pack.tidy([&new].into_iter());
        let kept = [&old, &new, &elsewhere, &idle].map(|object| pack.get(object).is_some());
        assert_eq!(kept, [false, true, true, false]);
    }

    #[test]
    fn writers_at_the_same_time_leave_a_sound_entry() {
        let (_folder, cache) = cache();
        let names: Vec<String> = (0..50).map(|number| number.to_string()).collect();
        std::thread::scope(|scope| {
            for tag in ["1", "2", "3", "4"] {
                let (cache, names) = (&cache, &names);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let mut pack = Pack::load(cache, &key());
                        assert_eq!(pack.damage, None);
                        for object in names.iter().map(|name| object(name, tag)) {
                            pack.insert(&object, &object, Bytes::from_static(b"footer"));
                        }
                        assert!(pack.save(cache, &key()));
                    }
                });
            }
        });
        assert!(Pack::load(&cache, &key()).entries.len() >= 50);
    }

    #[test]
    fn a_local_file_is_settled_some_time_after_its_change() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let tagged = |age: u64| object("a", &format!("\"1f-{:x}-9\"", now.as_micros() - u128::from(age) * 1_000_000));
        assert!(is_settled(&StoreKey::Local, &tagged(60)));
        assert!(!is_settled(&StoreKey::Local, &tagged(0)));
        assert!(!is_settled(&StoreKey::Local, &object("a", "odd")));
        assert!(is_settled(&StoreKey::S3("s3://b".into()), &tagged(0)));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded_and_other_bytes_are_no_crash(
            packed in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6),
            cut in any::<prop::sample::Index>(), noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let objects: Vec<_> = (0..packed.len()).map(|number| object(&number.to_string(), "1")).collect();
            let pairs: Vec<_> = objects.iter().zip(packed.iter().map(Vec::as_slice)).collect();
            let entries = pack_of(&pairs).entries;
            let bytes = Bytes::from(encode(&entries));
            prop_assert_eq!(decode(&bytes), Some(entries));
            drop(decode(&noise.into()));
            if !bytes.is_empty() {
                drop(decode(&bytes.slice(..cut.index(bytes.len()))));
            }
        }
    }
}
