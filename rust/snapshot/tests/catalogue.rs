//! The catalogue cache and manifests: what they save, and what they never trust.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;

use super::*;
use crate::cache::{Cache, Found};
use crate::snapshot::find::Source;
use crate::snapshot::{Audience, manifest, pack};
use crate::source::{Listed, Object, StoreKey};

struct Disk {
    _folder: tempfile::TempDir,
    cache: Cache,
}

fn disk() -> Disk {
    let folder = tempfile::tempdir().unwrap();
    Disk { cache: Cache::new(folder.path().join("footers"), 1 << 30), _folder: folder }
}

/// Returns the key of the footers of the folder `d`.
fn key() -> Vec<String> {
    let mut key = Store::of_client(Arc::new(Recording::default())).identity();
    key.push("d/".into());
    key
}

impl Disk {
    fn file(&self) -> std::path::PathBuf {
        let key = key();
        let path = self.cache.path_of(&key.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(path.exists());
        path
    }
}

/// Opens the folder `d` of a bucket with a cache, and returns the requests made.
async fn open_cached(recording: &Arc<Recording>, disk: &Disk) -> (Snapshot, Vec<String>) {
    let store = Store::of_client(Arc::clone(recording) as _);
    recording.take();
    let listed = list(&store.connect().unwrap(), &Location::parse("s3://bucket/d/").unwrap()).await.unwrap();
    let sources = listed.into_iter().map(|Listed { object, relative }| Source { store: 0, object, relative });
    let progress = Progress::default();
    let snapshot = Snapshot::of_sources(vec![store], sources.collect(), Some(&disk.cache), &progress).await;
    (snapshot.unwrap(), recording.take())
}

async fn three() -> Arc<Recording> {
    let body = |first| parquet(&numbers("a", first..first + 100));
    Recording::of([("d/1.parquet", body(0)), ("d/2.parquet", body(100)), ("d/3.parquet", body(200))]).await
}

async fn put(recording: &Recording, key: &str, body: Vec<u8>) {
    recording.inner.put_opts(&Key::from(key), body.into(), PutOptions::default()).await.unwrap();
}

#[test]
fn a_warm_cache_leaves_only_the_listing() {
    let warm = block_on(async {
        let (recording, disk) = (three().await, disk());
        let (cold, requests) = open_cached(&recording, &disk).await;
        assert_eq!(requests.len(), 4);
        let (warm, requests) = open_cached(&recording, &disk).await;
        assert_eq!(requests, ["list d"]);
        assert_eq!((warm.num_rows, &warm.fingerprint, &warm.schema), (300, &cold.fingerprint, &cold.schema));
        for (warm, cold) in warm.fragments.iter().zip(&cold.fragments) {
            assert_eq!(warm.object, cold.object);
            assert_eq!(warm.reader.metadata(), cold.reader.metadata());
            assert!(warm.has_offset_index(0));
        }
        warm
    });
    read_all(warm).unwrap();
}

#[test]
fn an_object_that_changed_is_read_again_and_the_others_are_not() {
    block_on(async {
        let (recording, disk) = (three().await, disk());
        let (before, _) = open_cached(&recording, &disk).await;
        put(&recording, "d/2.parquet", parquet(&numbers("a", 100..200))).await;
        let body = parquet(&numbers("a", 0..7));
        put(&recording, "d/4.parquet", body.clone()).await;
        let (after, requests) = open_cached(&recording, &disk).await;
        let read: Vec<_> =
            requests.iter().filter_map(|request| request.split_once(" of ")).map(|read| read.1).collect();
        assert_eq!(read, ["d/2.parquet", "d/4.parquet"]);
        assert_eq!(after.num_rows, 307);
        assert_ne!(before.fingerprint, after.fingerprint);
        assert_eq!(open_cached(&recording, &disk).await.1, ["list d"]);
    });
}

#[test]
fn wide_footers_and_objects_without_an_index_are_kept_whole() {
    block_on(async {
        let columns = (0..4000).map(|number| {
            let column: ArrayRef = Arc::new(Int32Array::from_iter_values([number]));
            (format!("a_column_with_a_rather_long_name_{number}"), column)
        });
        let wide = parquet(&RecordBatch::try_from_iter(columns).unwrap());
        let properties = WriterProperties::builder().set_offset_index_disabled(true);
        let without = properties.set_statistics_enabled(EnabledStatistics::None).build();
        let plain = parquet_with(&numbers("b", 0..10), without);
        let recording = Recording::of([("d/1.parquet", wide), ("d/2.parquet", plain), ("d/3.parquet", mixed())]).await;
        let disk = disk();
        let (cold, _) = open_cached(&recording, &disk).await;
        let (warm, requests) = open_cached(&recording, &disk).await;
        assert_eq!(requests, ["list d"]);
        for (warm, cold) in warm.fragments.iter().zip(&cold.fragments) {
            assert_eq!(warm.reader.metadata(), cold.reader.metadata());
            assert_eq!(warm.footer_digest, cold.footer_digest);
        }
        assert_eq!(warm.fragments.iter().map(|of| of.has_offset_index(0)).collect::<Vec<_>>(), [true, false, true]);
    });
}

#[test]
fn footers_that_were_made_up_are_read_again() {
    block_on(async {
        let (recording, disk) = (three().await, disk());
        let (sound, _) = open_cached(&recording, &disk).await;
        let key = key();
        let objects: Vec<_> = sound.fragments.iter().map(|fragment| fragment.object.clone()).collect();
        let of_another_size = sound.fragments[0].packed.slice(..sound.fragments[0].packed.len() - 1);
        let other = open(&Recording::of([("x.parquet", mixed())]).await, "s3://bucket/x.parquet").await.unwrap();
        for made_up in [Bytes::new(), Bytes::from_static(b"PAR1"), of_another_size, other.fragments[0].packed.clone()] {
            let mut pack = pack::Pack::load(&disk.cache, &key);
            objects.iter().for_each(|object| pack.insert(object, object, made_up.clone()));
            assert!(pack.save(&disk.cache, &key));
            let (snapshot, requests) = open_cached(&recording, &disk).await;
            assert_eq!((snapshot.fingerprint, requests.len()), (sound.fingerprint.clone(), 4));
            assert_eq!(open_cached(&recording, &disk).await.1.len(), 1);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_damaged_cache_is_noted_once_and_made_again(
        place in any::<prop::sample::Index>(), bit in 0..8, is_cut in any::<bool>(),
    ) {
        block_on(async {
            let (recording, disk) = (three().await, disk());
            let (sound, _) = open_cached(&recording, &disk).await;
            let mut bytes = std::fs::read(disk.file()).unwrap();
            let place = place.index(bytes.len());
            bytes[place] ^= 1_u8 << bit;
            if is_cut {
                bytes.truncate(place);
            }
            std::fs::write(disk.file(), bytes).unwrap();
            let (again, requests) = open_cached(&recording, &disk).await;
            assert_eq!((again.notes.len(), requests.len()), (1, 4));
            assert!(again.notes[0].contains("damaged"), "{:?}", again.notes);
            let (warm, requests) = open_cached(&recording, &disk).await;
            assert_eq!((warm.notes.len(), requests.len()), (0, 1));
            assert!([&again, &warm].iter().all(|opened| opened.fingerprint == sound.fingerprint));
        });
    }
}

#[test]
fn an_object_without_a_tag_of_its_version_is_not_kept() {
    block_on(async {
        let (recording, disk) = (three().await, disk());
        let store = || Store::of_client(Arc::clone(&recording) as _);
        let object = |e_tag: Option<&str>, size_bytes| Object {
            path: Key::from("d/1.parquet"),
            url: "s3://bucket/d/1.parquet".into(),
            written: None,
            size_bytes,
            e_tag: e_tag.map(str::to_owned),
        };
        for object in [object(None, None), object(Some("W/\"0\""), None)] {
            let source = Source { store: 0, object, relative: "1.parquet".into() };
            for _ in 0..2 {
                let (stores, sources) = (vec![store()], vec![source.clone()]);
                Snapshot::of_sources(stores, sources, Some(&disk.cache), &Progress::default()).await.unwrap();
                assert_eq!(recording.take().len(), 1);
            }
        }
        let key = key();
        let found = disk.cache.get(&key.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found, Found::Nothing);
    });
}

#[test]
fn objects_with_the_same_schema_share_it() {
    block_on(async {
        let [a, b] = ["a", "b"].map(|name| parquet(&numbers(name, 0..10)));
        let recording = Recording::of([("d/1.parquet", a.clone()), ("d/2.parquet", b), ("d/3.parquet", a)]).await;
        let disk = disk();
        open_cached(&recording, &disk).await;
        // From the cache, they are parsed one after another.
        let (snapshot, _) = open_cached(&recording, &disk).await;
        let types = |index: usize| snapshot.fragments[index].reader.schema();
        assert!(Arc::ptr_eq(types(0), types(2)) && !Arc::ptr_eq(types(0), types(1)));
        let parquet = |index: usize| snapshot.fragments[index].reader.metadata().file_metadata().schema_descr_ptr();
        assert!(Arc::ptr_eq(&parquet(0), &parquet(2)) && !Arc::ptr_eq(&parquet(0), &parquet(1)));
        let names: Vec<_> = snapshot.fragments.iter().map(|of| of.reader.schema().field(0).name().clone()).collect();
        assert_eq!(names, ["a", "b", "a"]);
    });
}

#[test]
fn a_manifest_opens_with_no_request_and_reads_only_what_it_knows() {
    let snapshot = block_on(async {
        let recording = three().await;
        let opened = Arc::new(open(&recording, "s3://bucket/d/").await.unwrap());
        recording.take();
        let splits = [(Some("train".to_owned()), Arc::clone(&opened))];
        Snapshot::save_manifest(&splits, "s3://memory/m.forebay", &BTreeMap::new()).await.unwrap();
        let bytes = recording.inner.get(&Key::from("m.forebay")).await.unwrap().bytes().await.unwrap();
        let saved = manifest::decode(&bytes).unwrap();
        let store = Store::of_client(Arc::clone(&recording) as _);
        let snapshot = Snapshot::of_saved(vec![store], saved, &Progress::default()).await.unwrap().remove(0);
        assert_eq!(recording.take(), [] as [String; 0]);
        assert_eq!((snapshot.num_rows, &snapshot.fingerprint), (300, &opened.fingerprint));
        assert_eq!((snapshot.split.as_deref(), &snapshot.schema), (Some("train"), &opened.schema));
        put(&recording, "d/1.parquet", parquet(&numbers("a", 5..105))).await;
        snapshot
    });
    let changed = read_all(snapshot);
    assert!(matches!(changed, Err(Error::ObjectChanged { .. })), "{changed:?}");
}

#[test]
fn a_manifest_holds_no_options_and_another_process_gets_secrets_only_where_it_should() {
    let key = StoreKey::S3("s3://bucket".into());
    let secrets = [("aws_access_key_id", "k3y"), ("aws_secret_access_key", "s3cr3t"), ("aws_session_token", "t0k3n")];
    let pairs = [secrets[0], secrets[1], secrets[2], ("aws_region", "eu-1")];
    let options: BTreeMap<_, _> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let store = Store::try_new(key, &options).unwrap();
    let snapshot = block_on(Snapshot::of_objects(vec![store], vec![], &Progress::default())).unwrap();
    let saved = |audience| {
        let bytes = manifest::encode(&[("train", &snapshot)], audience).unwrap();
        let mut saved = manifest::decode(&bytes.into()).unwrap();
        (saved.stores.remove(0).1, saved.withheld.remove(0))
    };
    assert_eq!(saved(Audience::Anybody), (BTreeMap::new(), vec![]));
    assert_eq!(saved(Audience::OurOwn), (options.clone(), vec![]));
    let names = secrets.map(|(name, _)| name.to_owned());
    let public = BTreeMap::from([("aws_region".to_owned(), "eu-1".to_owned())]);
    assert_eq!(saved(Audience::Strangers), (public, names.to_vec()));

    let reopen = |given: Option<&BTreeMap<String, String>>| {
        let bytes = snapshot.to_bytes(Audience::Strangers).unwrap();
        block_on(Snapshot::reopen(bytes, given, &Progress::default())).map(|of| of.stores[0].options().clone())
    };
    match reopen(None) {
        Err(error @ Error::Setting { .. }) => {
            let said = error.to_string();
            assert!(
                said.contains("`aws_secret_access_key`, `aws_session_token` of `s3://bucket`")
                    && !said.contains("s3cr3t"),
                "{said}"
            );
        }
        reopened => panic!("{reopened:?}"),
    }
    assert_eq!(reopen(Some(&options)).unwrap(), options);
    assert_eq!(reopen(Some(&BTreeMap::new())).unwrap().len(), 1);
}

#[test]
fn splits_are_listed_once_and_saved_together() {
    let folder = tempfile::tempdir().unwrap();
    for (split, last) in [("train", 10), ("test", 3)] {
        std::fs::create_dir(folder.path().join(split)).unwrap();
        std::fs::write(folder.path().join(split).join("0.parquet"), parquet(&numbers("a", 0..last))).unwrap();
    }
    let request = |path: &Path| OpenRequest { sources: vec![path.to_str().unwrap().into()], ..OpenRequest::default() };
    let splits = |path: &Path| block_on(Snapshot::open_splits(request(path), &Progress::default())).unwrap();
    let opened = splits(folder.path());
    let counted = |opened: &[(String, Snapshot)]| -> Vec<_> {
        opened.iter().map(|(name, of)| (name.clone(), of.num_rows, of.fingerprint.clone())).collect()
    };
    let expected = counted(&opened);
    assert_eq!([expected[0].1, expected[1].1], [10, 3]);
    let saved: Vec<_> = opened.into_iter().map(|(name, of)| (Some(name), Arc::new(of))).collect();
    let path = folder.path().join("all.forebay");
    block_on(Snapshot::save_manifest(&saved, path.to_str().unwrap(), &BTreeMap::new())).unwrap();
    let bytes = saved[1].1.to_bytes(Audience::OurOwn).unwrap();
    // Only the manifest still exists.
    for split in ["train", "test"] {
        std::fs::remove_dir_all(folder.path().join(split)).unwrap();
    }
    assert_eq!(counted(&splits(&path)), expected);
    let of_split = OpenRequest { split: Some("test".into()), ..request(&path) };
    assert_eq!(block_on(Snapshot::open(of_split, &Progress::default())).unwrap().num_rows, 3);
    let no_split = OpenRequest { split: Some("dev".into()), ..request(&path) };
    let refused = block_on(Snapshot::open(no_split, &Progress::default()));
    assert!(matches!(refused, Err(Error::UnknownSplit { .. })), "{refused:?}");
    // So is what another process gets.
    let reopened = block_on(Snapshot::reopen(bytes, None, &Progress::default())).unwrap();
    assert_eq!((reopened.num_rows, &reopened.fingerprint), (3, &expected[1].2));
}

#[test]
fn a_manifest_that_is_damaged_or_none_names_itself() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.parquet"), parquet(&numbers("a", 0..10))).unwrap();
    let snapshot = Arc::new(open_local(folder.path()).unwrap());
    let save = |uri: &str| block_on(Snapshot::save_manifest(&[(None, Arc::clone(&snapshot))], uri, &BTreeMap::new()));
    let path = folder.path().join("m.forebay");
    save(path.to_str().unwrap()).unwrap();
    let sound = std::fs::read(&path).unwrap();
    let damaged = [&sound[..sound.len() - 1], &[sound[sound.len() - 1] ^ 1]].concat();
    for body in [&sound[..sound.len() / 2], &damaged, b"PAR1", b""] {
        std::fs::write(&path, body).unwrap();
        match open_local(&path) {
            Err(Error::Manifest { url, .. }) => assert_eq!(url, path.to_str().unwrap()),
            opened => panic!("{opened:?}"),
        }
    }
    for uri in ["m.parquet", "m/", "*.forebay"] {
        assert!(matches!(save(&format!("{}/{uri}", folder.path().display())), Err(Error::Uri { .. })), "{uri}");
    }
    let sources = [path.as_path(), folder.path()].map(|path| path.to_str().unwrap().to_owned()).to_vec();
    let both = OpenRequest { sources, ..OpenRequest::default() };
    assert!(matches!(block_on(Snapshot::open(both, &Progress::default())), Err(Error::Uri { .. })));
    let noise = block_on(Snapshot::reopen(damaged, None, &Progress::default()));
    assert!(matches!(noise, Err(Error::NotAState { .. })), "{noise:?}");
}
