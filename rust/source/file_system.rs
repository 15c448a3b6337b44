//! Stores that the core does not know: an embedder may supply file systems for all other URLs.
//!
//! A [`FileSystem`] is asked for one thing at a time and answers when it has all of it; failures are handled
//! [above](super::recover), as for every store. It promises less than a store: there are no conditional reads, so each
//! read comes with the object's state at that time, and tags are weak.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::StoreKey;
use super::read::UNSATISFIABLE;
use super::recover::{Client, Kind, Limit, Policy, Recovering};
use super::settings::{HEDGE, RETRY_FOR, ROUND_TRIP_BYTES, duration, flag, refused};
use super::traffic::Traffic;
use crate::config;
use crate::error::Result;
use crate::io::Io;

/// A call that takes longer is stuck. Nothing is reported before all bytes are available, so it may take long.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Opens the file system for URLs with a common prefix, given the options that are not the core's own. Neither blocks
/// nor fails: errors are reported by the first call.
pub type OpenFileSystem = fn(options: BTreeMap<String, String>) -> Arc<dyn FileSystem>;

static OPEN: OnceLock<OpenFileSystem> = OnceLock::new();

/// Makes this process read URLs of unknown schemes with file systems opened by `open`; only the first call has an
/// effect.
pub fn set_file_systems(open: OpenFileSystem) {
    OPEN.get_or_init(|| open);
}

/// Returns whether URLs of unknown schemes can be read.
pub(super) fn are_known() -> bool {
    OPEN.get().is_some()
}

/// Reads and writes objects by their URLs.
pub trait FileSystem: fmt::Debug + Send + Sync {
    /// Starts `call`; the result is sent to `reply`, from any thread. May wait for locks, but not for the result.
    fn begin(&self, call: FileCall, reply: FileReply);
}

/// A call to a file system.
#[derive(Debug, Clone)]
pub enum FileCall {
    /// The objects below a folder at any depth, named relative to it; none if the folder does not exist.
    List {
        /// The folder.
        url: String,
    },
    /// Information about an object.
    Info {
        /// The object.
        url: String,
    },
    /// Bytes of an object, as far as it has them, and information about it after they were read.
    Read {
        /// The object.
        url: String,
        /// The bytes.
        range: Range<u64>,
    },
    /// An object to be written, whole.
    Write {
        /// The object.
        url: String,
        /// Its contents.
        bytes: Bytes,
    },
}

/// Information about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Its name relative to the listed folder; meaningless otherwise.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// A token that changes with the object, if there is one.
    pub version: Option<String>,
}

/// The result of a call.
#[derive(Debug, Default)]
pub struct FileAnswer {
    /// Information about the objects that the call concerns.
    pub infos: Vec<FileInfo>,
    /// The bytes that were read.
    pub bytes: Bytes,
}

impl FileAnswer {
    /// Returns bytes that stay in place, owned by their current owner.
    pub fn owned(bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(bytes)
    }
}

/// Sends the result of a call; if dropped, reports that there is none.
#[derive(Debug)]
pub struct FileReply(oneshot::Sender<Result<FileAnswer, FileError>>);

impl FileReply {
    /// Returns whether the caller still waits for the answer.
    pub fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }

    /// Sends the answer.
    pub fn send(self, answer: Result<FileAnswer, FileError>) {
        // The caller may have given up meanwhile.
        drop(self.0.send(answer));
    }
}

/// Why a call failed, by what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileErrorKind {
    /// The object does not exist.
    NotFound,
    /// The caller has no access to it.
    Denied,
    /// There are too many calls.
    Throttled,
    /// The server failed.
    Failed,
    /// There was no connection, or it broke.
    Broken,
    /// Nothing was received for too long.
    Stalled,
    /// There is no such file system, or not with these options.
    Unusable,
    /// A cache holds another version of the object than the store behind it.
    Stale,
    /// Retrying would fail in the same way.
    Final,
}

/// A call failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct FileError {
    /// What to do about it.
    pub kind: FileErrorKind,
    /// What the file system said.
    pub source: Box<dyn StdError + Send + Sync>,
}

impl FileError {
    /// Returns the kind of trouble, if the call may be retried.
    pub(super) fn trouble(&self) -> Option<Kind> {
        match self.kind {
            FileErrorKind::Throttled => Some(Kind::Throttled),
            FileErrorKind::Failed => Some(Kind::Failed),
            FileErrorKind::Broken => Some(Kind::Broken),
            FileErrorKind::Stalled => Some(Kind::Stalled),
            FileErrorKind::NotFound
            | FileErrorKind::Denied
            | FileErrorKind::Unusable
            | FileErrorKind::Stale
            | FileErrorKind::Final => None,
        }
    }

    fn new(kind: FileErrorKind, said: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind, source: said.into() }
    }

    /// Returns it as a store's error about the object at `url`.
    fn of(self, url: String) -> object_store::Error {
        match self.kind {
            FileErrorKind::NotFound => object_store::Error::NotFound { path: url, source: Box::new(self) },
            FileErrorKind::Denied => object_store::Error::PermissionDenied { path: url, source: Box::new(self) },
            _ => generic(self),
        }
    }
}

/// Checks the options of a store.
pub(super) fn check(options: &BTreeMap<String, String>) -> Result<()> {
    settings(options).map(drop)
}

/// Returns the store of `key`, with reads that retry failures.
pub(super) fn connect(
    key: &StoreKey,
    options: &BTreeMap<String, String>,
    traffic: &Arc<Traffic>,
    io: &Arc<Io>,
) -> Result<Arc<dyn ObjectStore>> {
    let (limit, is_hedging, rest) = settings(options)?;
    let Some(open) = OPEN.get() else {
        return Err(refused(format!(
            "`{}` is read through a file system object, which this process does not have",
            key.root()
        )));
    };
    let policy = Policy { traffic: Arc::clone(traffic), limit, is_hedging, root: key.root().to_owned() };
    let files = Files { key: key.clone(), system: open(rest), policy: policy.clone(), io: Arc::downgrade(io) };
    Ok(Arc::new(Recovering::new(Client::fixed(Arc::new(files)), policy)))
}

/// Returns our own options, and the rest, whose names are arbitrary.
fn settings(options: &BTreeMap<String, String>) -> Result<(Limit, bool, BTreeMap<String, String>)> {
    let mut rest = options.clone();
    let retry_for = rest.remove(RETRY_FOR).map(|text| duration(RETRY_FOR, &text)).transpose()?;
    let is_hedging = rest.remove(HEDGE).map_or(Ok(true), |text| flag(HEDGE, &text))?;
    rest.remove(ROUND_TRIP_BYTES);
    let time = retry_for.unwrap_or(config::RETRY_FOR);
    Ok((Limit { time, option: RETRY_FOR, is_given: retry_for.is_some() }, is_hedging, rest))
}

/// The objects of a file system as an [`ObjectStore`].
#[derive(Debug, Clone)]
struct Files {
    key: StoreKey,
    system: Arc<dyn FileSystem>,
    policy: Policy,
    /// Not held: the runtime owns the store.
    io: Weak<Io>,
}

impl Files {
    /// Makes a call once, and waits for its answer.
    async fn call(&self, url: &str, call: FileCall) -> object_store::Result<FileAnswer> {
        let (sender, receiver) = oneshot::channel();
        let system = Arc::clone(&self.system);
        let begin = move || system.begin(call, FileReply(sender));
        match self.io.upgrade() {
            // Not awaited: it starts the call, and the answer may come before it returns.
            Some(io) => drop(io.spawn_blocking(begin)),
            None => return Err(generic("the runtime of its calls has ended")),
        }
        let time = CALL_TIMEOUT.min(self.policy.limit.time);
        let answer = match timeout(time, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(FileError::new(FileErrorKind::Final, "the file system gave no answer")),
            Err(_) => {
                let said = format!("no answer came within {} seconds", time.as_secs_f64());
                Err(FileError::new(FileErrorKind::Stalled, said))
            }
        };
        answer.map_err(|error| error.of(url.to_owned()))
    }

    async fn info(&self, location: &Path) -> object_store::Result<ObjectMeta> {
        let url = self.key.url_of(location);
        let answer = self.call(&url, FileCall::Info { url: url.clone() }).await?;
        meta_of(location, &answer)
    }

    async fn find(&self, folder: Path) -> object_store::Result<Vec<ObjectMeta>> {
        let url = &self.key.url_of(&folder);
        let ask = move || self.call(url, FileCall::List { url: url.clone() });
        let found = self.policy.persist(ask).await?.infos;
        // In a URL, it would begin the next link of a chain, and another object would be read.
        if let Some(info) = found.iter().find(|info| info.name.contains("::")) {
            let name = format!("{folder}/{}", info.name);
            let said = format!("`{}` has `::` in its name", name.trim_start_matches('/'));
            return Err(generic(format!("{said}, which separates the parts of such URLs: rename it")));
        }
        let meta = |info: &FileInfo| {
            let location = Path::parse(format!("{folder}/{}", info.name))?;
            Ok(meta(location, info))
        };
        found.iter().filter(|info| !info.name.is_empty()).map(meta).collect()
    }
}

/// Returns the single object of an answer.
fn meta_of(location: &Path, answer: &FileAnswer) -> object_store::Result<ObjectMeta> {
    let info = answer.infos.first().ok_or_else(|| generic("the file system said nothing about the object"))?;
    Ok(meta(location.clone(), info))
}

fn meta(location: Path, info: &FileInfo) -> ObjectMeta {
    let e_tag = info.version.as_ref().map(|version| format!("W/\"{version}\""));
    ObjectMeta { location, last_modified: Default::default(), size: info.size_bytes, e_tag, version: None }
}

#[async_trait::async_trait]
impl ObjectStore for Files {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let size = match options.range {
            Some(GetRange::Bounded(_)) if !options.head => None,
            _ => Some(self.info(location).await?),
        };
        let (range, meta, bytes) = match (size, &options.range) {
            (Some(meta), _) if options.head => (0..meta.size, meta, Bytes::new()),
            (size, range) => {
                let size = size.map_or(0, |meta| meta.size);
                let range = match range {
                    Some(GetRange::Bounded(range)) => range.clone(),
                    Some(GetRange::Offset(start)) => *start..size,
                    Some(GetRange::Suffix(len)) => size.saturating_sub(*len)..size,
                    None => 0..size,
                };
                let url = self.key.url_of(location);
                let call = FileCall::Read { url: url.clone(), range: range.clone() };
                let answer = self.call(&url, call).await?;
                (range, meta_of(location, &answer)?, answer.bytes)
            }
        };
        options.check_preconditions(&meta)?;
        if range.start >= meta.size && !range.is_empty() {
            return Err(generic(format!("{UNSATISFIABLE}: it has {} bytes", meta.size)));
        }
        let range = range.start..range.end.min(meta.size);
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        if options.mode != PutMode::Overwrite {
            return Err(not_supported("writes on a condition"));
        }
        let url = &self.key.url_of(location);
        let bytes = &Bytes::from(payload);
        let ask = move || self.call(url, FileCall::Write { url: url.clone(), bytes: bytes.clone() });
        self.policy.persist(ask).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(not_supported("writes in parts"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        stream::iter([Err(not_supported("deletes"))]).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let (files, folder) = (self.clone(), prefix.cloned().unwrap_or_default());
        let found = stream::once(async move { files.find(folder).await });
        found.map_ok(|metas| stream::iter(metas.into_iter().map(Ok))).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(not_supported("lists folders one by one"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(not_supported("copies"))
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.key.root())
    }
}

fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "file system", source: source.into() }
}

fn not_supported(what: &str) -> object_store::Error {
    object_store::Error::NotSupported { source: format!("nothing here {what}").into() }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;

    use super::*;
    use crate::source::preset::Preset;

    const BODY: &[u8] = b"0123456789";

    /// One object, `x`, whose reads fail with the given errors first.
    #[derive(Debug)]
    struct One(std::sync::Mutex<Vec<FileErrorKind>>);

    impl FileSystem for One {
        fn begin(&self, call: FileCall, reply: FileReply) {
            assert!(reply.is_wanted());
            if let Some(kind) = self.0.lock().unwrap().pop() {
                return reply.send(Err(FileError::new(kind, "as it was told")));
            }
            let info = FileInfo { name: "x".into(), size_bytes: 10, version: Some("1".into()) };
            let bytes = match call {
                FileCall::Read { url, range } => {
                    assert_eq!(url, "zip://x::s3://b/a.zip");
                    let end = usize::try_from(range.end.min(10)).unwrap();
                    Bytes::from_static(&BODY[usize::try_from(range.start).unwrap().min(end)..end])
                }
                _ => Bytes::new(),
            };
            reply.send(Ok(FileAnswer { infos: vec![info], bytes }));
        }
    }

    fn files(failures: &[FileErrorKind], io: Weak<Io>) -> Files {
        let (limit, is_hedging, _) = settings(&BTreeMap::from([(RETRY_FOR.into(), "60 s".into())])).unwrap();
        let traffic = Arc::new(Traffic::new(Preset::object_storage().unmeasured()));
        Files {
            key: StoreKey::FileSystem("zip://::s3://b/a.zip".into()),
            system: Arc::new(One(std::sync::Mutex::new(failures.to_vec()))),
            policy: Policy { traffic, limit, is_hedging, root: "zip://".into() },
            io,
        }
    }

    fn with_files<T>(failures: &[FileErrorKind], test: impl AsyncFnOnce(&dyn ObjectStore) -> T) -> T {
        let io = Io::current().unwrap();
        let files = files(failures, Arc::downgrade(&io));
        let policy = files.policy.clone();
        let store = Recovering::new(Client::fixed(Arc::new(files)), policy);
        io.block_on(test(&store))
    }

    #[test]
    fn nobody_waits_for_calls_of_a_runtime_that_has_ended() {
        let files = files(&[], Weak::new());
        let read = Io::current().unwrap().block_on(async {
            let read = async { files.get_range(&Path::from("x"), 0..1).await };
            timeout(Duration::from_secs(10), read).await
        });
        let said = read.expect("an error at once").unwrap_err().to_string();
        assert!(said.contains("has ended"), "{said}");
    }

    #[test]
    fn ranges_are_those_that_were_asked_for_as_far_as_there_are_bytes() {
        with_files(&[], async |store| {
            let x = Path::from("x");
            for (range, expected) in [(2..5, "234"), (8..20, "89")] {
                assert_eq!(store.get_range(&x, range).await.unwrap(), expected);
            }
            assert_eq!(store.get(&x).await.unwrap().bytes().await.unwrap(), BODY);
            let suffix = GetOptions { range: Some(GetRange::Suffix(3)), ..GetOptions::default() };
            let suffix = store.get_opts(&x, suffix).await.unwrap();
            assert_eq!((suffix.range.clone(), suffix.bytes().await.unwrap().as_ref()), (7..10, &b"789"[..]));
            let meta = store.head(&x).await.unwrap();
            assert_eq!((meta.size, meta.e_tag.as_deref()), (10, Some("W/\"1\"")));
            let said = store.get_range(&x, 10..20).await.unwrap_err().to_string();
            assert!(said.contains("416"), "{said}");
        });
    }

    #[test]
    fn a_name_that_a_url_cannot_hold_is_refused() {
        let io = Io::current().unwrap();
        let named = Files { system: Arc::new(Chained), ..files(&[], Arc::downgrade(&io)) };
        let said = io.block_on(named.find(Path::from("d"))).unwrap_err().to_string();
        assert!(said.contains("`d/x::y` has `::` in its name") && said.contains("rename it"), "{said}");
    }

    /// One object, whose name looks like two links of a chain.
    #[derive(Debug)]
    struct Chained;

    impl FileSystem for Chained {
        fn begin(&self, _: FileCall, reply: FileReply) {
            let infos = vec![FileInfo { name: "x::y".into(), size_bytes: 10, version: None }];
            reply.send(Ok(FileAnswer { infos, bytes: Bytes::new() }));
        }
    }

    #[test]
    fn what_may_pass_is_asked_for_again_and_all_else_is_not() {
        let (failed, denied) = (FileErrorKind::Failed, FileErrorKind::Denied);
        with_files(&[FileErrorKind::Broken, failed], async |store| {
            assert_eq!(store.get_range(&Path::from("x"), 0..1).await.unwrap(), "0");
        });
        with_files(&[FileErrorKind::Broken, failed], async |store| {
            let listed: Vec<_> = store.list(Some(&Path::from("d"))).try_collect().await.unwrap();
            assert_eq!(listed[0].location.as_ref(), "d/x");
        });
        with_files(&[failed, denied], async |store| {
            let refused = store.get_range(&Path::from("x"), 0..1).await.unwrap_err();
            assert!(matches!(refused, object_store::Error::PermissionDenied { .. }), "{refused}");
        });
        with_files(&[FileErrorKind::Unusable], async |store| {
            let refused = store.get_range(&Path::from("x"), 0..1).await.unwrap_err();
            let error = crate::source::error("zip://x", refused);
            assert!(matches!(error, crate::Error::Setting { name: "source", .. }), "{error}");
        });
    }
}
