//! A snapshot as bytes: its objects, their sizes and e-tags, their splits, and the bytes that their footers were parsed
//! from.
//!
//! ```text
//! magic and version   8 bytes
//! checksum           32 bytes, SHA-256 of all that follows
//! header              its length in 8 bytes, then JSON, compressed by zstd
//! footers             one after another, each as `packed` makes it
//! ```
//!
//! Saved as an object it is a manifest, which opens a dataset without listing and without reading footers. Objects are
//! read only if they still have the same e-tags. A manifest has no credentials; what is passed to another process of
//! the same program may.

use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Snapshot;
use super::find::Source;
use crate::error::{Error, Result};
use crate::hex::hex;
use crate::io::Io;
use crate::secrets;
use crate::source::{self, Location, Object, Store, StoreKey, Written, share_unseen};

/// Suffix of a manifest's name.
const EXTENSION: &str = ".forebay";

pub(super) const MAGIC: &[u8; 8] = b"FBSNAP\0\x01";

/// Maximum size of a header: that of some ten million objects.
const MAX_HEADER_BYTES: u64 = 1 << 30;

const ZSTD_LEVEL: i32 = 3;

#[derive(Default, Serialize, Deserialize)]
struct Header {
    stores: Vec<(StoreKey, BTreeMap<String, String>)>,
    objects: Vec<SavedObject>,
    /// Names with the indices of their objects.
    splits: Vec<(String, Vec<usize>)>,
    /// For each split.
    fingerprints: Vec<String>,
    /// For each split, if it is from a repository.
    #[serde(default)]
    commits: Vec<Option<String>>,
    /// For each store, the names of options that were left out because they are secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    withheld: Vec<Vec<String>>,
    /// For objects whose URLs have more than their keys: the indices, and what is sent, in hex.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    written: Vec<(usize, String)>,
}

/// The intended reader, which determines what store options are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Anybody who finds it: no options.
    Anybody,
    /// Another process of unknown ownership: all but secrets, whose names are written.
    Strangers,
    /// A process started by this one: all options.
    OurOwn,
}

/// Store, key, size, e-tag, relative path, bytes of the packed footer.
type SavedObject = (usize, String, Option<u64>, Option<String>, String, usize);

/// The result of [`decode`].
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) stores: Vec<(StoreKey, BTreeMap<String, String>)>,
    pub(super) sources: Vec<Source>,
    /// For each source.
    pub(super) packed: Vec<Bytes>,
    /// Names with the indices of their sources; every source is in at most one.
    pub(super) splits: Vec<(String, Vec<usize>)>,
    pub(super) fingerprints: Vec<String>,
    pub(super) commits: Vec<Option<String>>,
    /// For each store, the names of its secret options.
    pub(super) withheld: Vec<Vec<String>>,
}

/// Returns snapshots, one for each split, as bytes; the error says why there are none.
pub(super) fn encode(splits: &[(&str, &Snapshot)], audience: Audience) -> Result<Vec<u8>, String> {
    let mut header = Header::default();
    let mut footers: Vec<&[u8]> = Vec::new();
    for (name, snapshot) in splits {
        let first = header.objects.len();
        let stores: Vec<usize> = snapshot.stores.iter().map(|store| place_of(&mut header, store, audience)).collect();
        for fragment in &snapshot.fragments {
            let Object { path, written, size_bytes, e_tag, .. } = &fragment.object;
            if let Some(written) = written.as_ref().filter(|text| !text.has_query() || audience != Audience::Anybody) {
                header.written.push((header.objects.len(), hex(written.as_str())));
            }
            let store = stores[fragment.store];
            let (path, relative) = (path.to_string(), fragment.relative.to_string());
            header.objects.push((store, path, *size_bytes, e_tag.clone(), relative, fragment.packed.len()));
            footers.push(&fragment.packed);
        }
        header.splits.push(((*name).to_owned(), (first..header.objects.len()).collect()));
        header.fingerprints.push(snapshot.fingerprint.clone());
        header.commits.push(snapshot.commit.clone());
    }
    let header = compressed(&header, MAX_HEADER_BYTES)?;
    let mut body = (header.len() as u64).to_le_bytes().to_vec();
    body.extend(header);
    footers.iter().for_each(|footer| body.extend_from_slice(footer));
    Ok([&MAGIC[..], &Sha256::digest(&body), &body].concat())
}

/// Returns a header as compressed JSON; refuses one of more than `max_bytes`, of which [`decode`] would read a part.
fn compressed(header: &Header, max_bytes: u64) -> Result<Vec<u8>, String> {
    let json = serde_json::to_vec(header).map_err(|error| error.to_string())?;
    if json.len() as u64 > max_bytes {
        let num_objects = header.objects.len();
        return Err(format!(
            "a header of {num_objects} objects would have {} bytes, more than {max_bytes}; save fewer",
            json.len()
        ));
    }
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| error.to_string())
}

/// Returns the index of `store` in the header, adding it if necessary.
fn place_of(header: &mut Header, store: &Store, audience: Audience) -> usize {
    if let Some(place) = header.stores.iter().position(|(key, _)| key == store.key()) {
        return place;
    }
    let mut options = if audience == Audience::Anybody { BTreeMap::new() } else { store.options().clone() };
    if audience == Audience::Strangers {
        let secrets = options.extract_if(.., |name, value| secrets::is_secret(name, value));
        header.withheld.push(secrets.map(|(name, _)| name).collect());
    }
    header.stores.push((store.key().clone(), veiled(&options)));
    header.stores.len() - 1
}

/// Encodes options in hex, so that secrets are not visible in a log or a dump. This is no protection.
fn veiled(options: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    options.iter().map(|(name, value)| (name.clone(), hex(value))).collect()
}

/// Decodes what [`veiled`] wrote; anything else counts as no value.
fn unveiled(options: BTreeMap<String, String>) -> BTreeMap<String, String> {
    options.into_iter().map(|(name, value)| (name, of_hex(&value).unwrap_or_default())).collect()
}

fn of_hex(text: &str) -> Option<String> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

/// Decodes and checks what [`encode`] wrote; the error says what is wrong with other bytes.
pub(super) fn decode(bytes: &Bytes) -> Result<Saved, String> {
    let rest = bytes.strip_prefix(&MAGIC[..7]).ok_or("it is not a manifest: it does not begin like one")?;
    let rest = rest.strip_prefix(&MAGIC[7..]).ok_or("it was written by another version of Forebay")?;
    let (checksum, body) = rest.split_first_chunk::<32>().ok_or("it is truncated")?;
    if Sha256::digest(body)[..] != checksum[..] {
        return Err("it is damaged or truncated: its checksum differs".into());
    }
    // Whoever made the checksum may have made anything.
    let (length, after) = body.split_first_chunk::<8>().ok_or("it is truncated")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|length| *length <= after.len());
    let length = length.ok_or("its header is longer than it is")?;
    let decoder = zstd::stream::Decoder::new(&after[..length]).map_err(|error| error.to_string())?;
    let header: Header = serde_json::from_reader(std::io::BufReader::new(decoder.take(MAX_HEADER_BYTES)))
        .map_err(|error| format!("its header is not understood: {error}"))?;
    let footers = bytes.slice(bytes.len() - (after.len() - length)..);
    check(&header, footers.len())?;
    let (mut sources, mut packed, mut place) = (Vec::new(), Vec::new(), 0);
    for (number, (store, path, size_bytes, e_tag, relative, len)) in header.objects.into_iter().enumerate() {
        let wrong = |what: &str| format!("object {number}: {what}");
        let path = Path::parse(&path).map_err(|error| wrong(&error.to_string()))?;
        if !path.as_ref().ends_with(&relative) {
            return Err(wrong(&format!("`{relative}` is not the end of `{path}`")));
        }
        let url = header.stores[store].0.url_of(&path);
        sources.push(Source { store, object: Object { path, url, written: None, size_bytes, e_tag }, relative });
        packed.push(footers.slice(place..place + len));
        place += len;
    }
    for (number, text) in header.written {
        let written = of_hex(&text).and_then(|text| Written::try_new(&text));
        let source = sources.get_mut(number).filter(|_| written.is_some());
        let source = source.ok_or_else(|| format!("object {number}: its URL is not valid"))?;
        source.object.url = header.stores[source.store].0.url_as(&source.object.path, written.as_ref());
        source.object.written = written;
    }
    let Header { stores, splits, fingerprints, commits, mut withheld, .. } = header;
    withheld.resize_with(stores.len(), Vec::new);
    let stores = stores.into_iter().map(|(key, options)| (key, unveiled(options))).collect();
    Ok(Saved { stores, sources, packed, splits, fingerprints, commits, withheld })
}

/// Refuses indices out of range, and invalid stores.
fn check(header: &Header, footer_bytes: usize) -> Result<(), String> {
    let Header { stores, objects, splits, fingerprints, .. } = header;
    if let Some((key, _)) = stores.iter().find(|(key, _)| !key.is_sound()) {
        return Err(format!("`{key:?}` is not a store"));
    }
    if let Some(store) = objects.iter().map(|object| object.0).find(|store| *store >= stores.len()) {
        return Err(format!("store {store} is missing; it has {}", stores.len()));
    }
    let total = objects.iter().try_fold(0_usize, |sum, object| sum.checked_add(object.5));
    if total != Some(footer_bytes) {
        return Err(format!("its footers take {footer_bytes} bytes, which is not what its header says"));
    }
    if splits.is_empty() || fingerprints.len() != splits.len() {
        return Err(format!("{} splits have {} fingerprints", splits.len(), fingerprints.len()));
    }
    let mut is_member = vec![false; objects.len()];
    for &member in splits.iter().flat_map(|(_, members)| members) {
        match is_member.get_mut(member) {
            None => return Err(format!("object {member} is missing; it has {}", objects.len())),
            Some(true) => return Err(format!("object {member} is in two splits")),
            Some(place) => *place = true,
        }
    }
    Ok(())
}

/// Returns whether a location's name is that of a manifest; blocks for a local one.
pub(super) fn is_manifest(location: &Location) -> bool {
    let is_named = location.path.as_ref().ends_with(EXTENSION) && location.glob.is_none() && !location.is_folder;
    let is_folder = || location.store == StoreKey::Local && std::path::Path::new(&location.url()).is_dir();
    is_named && !is_folder()
}

/// Reads the manifest at `location`: one request.
pub(super) async fn read(location: &Location, options: &BTreeMap<String, String>) -> Result<Saved> {
    // Which stores its objects are in is not known yet.
    let connection = store_of(location, &share_unseen(&location.store, options))?.connect()?;
    let failed = |source| source::error(&location.text, source);
    let options = Written::options(location.written.as_ref());
    let answer = connection.client.get_opts(&location.path, options).await.map_err(failed)?;
    let bytes = answer.bytes().await.map_err(failed)?;
    // Verifying the checksum and parsing the header take long if it is large.
    let decoded = connection.io.blocking(move || decode(&bytes)).await?;
    decoded.map_err(|reason| Error::Manifest { url: location.text.clone(), reason })
}

/// Writes the manifest of `splits` to `uri`: one request. Options are those of `uri`'s store, by default the
/// snapshots'.
pub(super) async fn save(splits: &[(&str, &Snapshot)], uri: &str, options: &BTreeMap<String, String>) -> Result<()> {
    let uri = uri.to_owned();
    let parse = move || {
        let location = Location::parse(&uri)?;
        let is_manifest = is_manifest(&location);
        Ok::<_, Error>((location, is_manifest))
    };
    let (location, is_manifest) = Io::current()?.blocking(parse).await??;
    if !is_manifest {
        let reason = format!("expected the name of an object that ends in `{EXTENSION}`, not a folder or a pattern");
        return Err(Error::Uri { uri: location.text, reason });
    }
    let objects = || splits.iter().flat_map(|(_, snapshot)| &snapshot.fragments).map(|fragment| &fragment.object);
    if let Some(Object { url, .. }) = objects().find(|object| object.written.as_ref().is_some_and(Written::has_query)) {
        let reason = "a manifest cannot hold URLs with a query, which may be a signature";
        return Err(Error::Uri { uri: url.clone(), reason: reason.into() });
    }
    let stores = splits.iter().flat_map(|(_, snapshot)| &snapshot.stores);
    let same = stores.filter(|_| options.is_empty()).find(|store| *store.key() == location.store);
    let connection = match same {
        Some(store) => store.connect()?,
        None => store_of(&location, options)?.connect()?,
    };
    let bytes = encode(splits, Audience::Anybody);
    let bytes = bytes.map_err(|reason| Error::Setting { name: "save_manifest", reason })?;
    let put = connection.client.put(&location.path, PutPayload::from(bytes)).await;
    put.map(drop).map_err(|source| source::error(&location.text, source))
}

/// Returns the store of a manifest; options may also be meant for the objects' stores, so a local one ignores them.
fn store_of(location: &Location, options: &BTreeMap<String, String>) -> Result<Store> {
    let is_local = location.store == StoreKey::Local;
    let options = if is_local { const { &BTreeMap::new() } } else { options };
    Store::try_new(location.store.clone(), options)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_header(json: &str, footers: &[u8]) -> Bytes {
        let json = zstd::bulk::compress(json.as_bytes(), 1).unwrap();
        let body = [&(json.len() as u64).to_le_bytes()[..], &json, footers].concat();
        [&MAGIC[..], &Sha256::digest(&body), &body].concat().into()
    }

    fn header(stores: &str, objects: &str, splits: &str) -> String {
        format!(r#"{{"stores":{stores},"objects":{objects},"splits":{splits},"fingerprints":["f"]}}"#)
    }

    const S3: &str = r#"[[{"S3":"s3://b"},{}]]"#;

    #[test]
    fn headers_that_point_nowhere_are_refused() {
        let train = |members: &str| format!(r#"[["train",{members}]]"#);
        let object = |store: usize, relative: &str, len: usize| format!(r#"[{store},"d/x",9,null,"{relative}",{len}]"#);
        let one = |store, relative: &str, len| format!("[{}]", object(store, relative, len));
        let sound = decode(&of_header(&header(S3, &one(0, "x", 2), &train("[0]")), b"ab")).unwrap();
        assert_eq!(sound.sources[0].object.url, "s3://b/d/x");
        for (json, said) in [
            (header(S3, &one(1, "x", 2), &train("[0]")), "store 1 is missing"),
            (header(S3, &one(0, "y", 2), &train("[0]")), "not the end"),
            (header(S3, &one(0, "x", 3), &train("[0]")), "2 bytes"),
            (header(S3, &one(0, "x", usize::MAX), &train("[0]")), "2 bytes"),
            (header(S3, &one(0, "x", 2), &train("[1]")), "object 1 is missing"),
            (header(S3, &one(0, "x", 2), &train("[0,0]")), "two splits"),
            (header(S3, &one(0, "x", 2), "[]"), "0 splits"),
            (header(r#"[[{"S3":"https://key:secret@host"},{}]]"#, &one(0, "x", 2), &train("[0]")), "not a store"),
            ("[".to_owned(), "not understood"),
        ] {
            let refused = decode(&of_header(&json, b"ab")).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn a_header_that_could_not_be_read_is_not_written() {
        let header = Header { fingerprints: vec!["f".repeat(100)], ..Header::default() };
        let num_bytes = serde_json::to_vec(&header).unwrap().len() as u64;
        assert!(compressed(&header, num_bytes).is_ok());
        assert!(compressed(&header, num_bytes - 1).unwrap_err().contains("more than"));
    }

    #[test]
    fn what_is_sent_for_an_object_is_of_that_object() {
        let of = |written: &str| {
            let header = header(r#"[[{"Http":"https://h"},{}]]"#, r#"[[0,"x",9,null,"x",2]]"#, r#"[["train",[0]]]"#);
            let json = header.replacen('{', &format!(r#"{{"written":{written},"#), 1);
            decode(&of_header(&json, b"ab")).map(|mut saved| saved.sources.remove(0).object.written)
        };
        let sent = |text: &str| Written::try_new(text).unwrap();
        assert_eq!(of(&format!(r#"[[0,"{}"]]"#, hex("/x?id=1"))), Ok(Some(sent("/x?id=1"))));
        assert_eq!(of("[]"), Ok(None));
        for (number, text) in [(1, hex("/x")), (0, hex("/ x")), (0, "f".to_owned())] {
            let wrong = format!(r#"[[{number},"{text}"]]"#);
            assert!(of(&wrong).is_err_and(|said| said.contains("its URL is not valid")), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn damage_is_always_found(place in any::<prop::sample::Index>(), bit in 0..8, cut in any::<prop::sample::Index>()) {
            let json = header(S3, r#"[[0,"d/x",9,null,"x",2]]"#, r#"[["train",[0]]]"#);
            let sound = of_header(&json, b"ab");
            let mut damaged = sound.to_vec();
            damaged[place.index(sound.len())] ^= 1_u8 << bit;
            prop_assert!(decode(&damaged.into()).is_err());
            prop_assert!(decode(&sound.slice(..cut.index(sound.len()))).is_err());
        }

        #[test]
        fn noise_with_a_right_checksum_is_refused(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let body = [&MAGIC[..], &Sha256::digest(&noise), &noise].concat();
            prop_assert!(decode(&body.into()).is_err());
            prop_assert!(decode(&of_header(&String::from_utf8_lossy(&noise), b"")).is_err());
        }
    }

    #[test]
    fn what_is_no_manifest_says_so() {
        assert!(decode(&Bytes::from_static(b"PAR1")).unwrap_err().contains("not a manifest"));
        assert!(decode(&Bytes::from_static(b"FBSNAP\0\x02")).unwrap_err().contains("another version"));
    }
}
