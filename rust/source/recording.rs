//! A store that records its requests, for tests.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Records the requests made to an in-memory store.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) inner: InMemory,
    requests: Mutex<Vec<String>>,
}

impl Recording {
    /// Returns a store that holds `objects`.
    pub(crate) async fn of(objects: impl IntoIterator<Item = (&str, Vec<u8>)>) -> Arc<Self> {
        let store = Self::default();
        for (key, body) in objects {
            let key = Path::parse(key).unwrap();
            store.inner.put_opts(&key, PutPayload::from(body), PutOptions::default()).await.unwrap();
        }
        Arc::new(store)
    }

    /// Returns the requests since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, request: String) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recording")
    }
}

#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Recording {
    fn put_opts<'a, 'b, 'f>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> BoxFuture<'f, Result<PutResult>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.inner.put_opts(location, payload, options)
    }

    fn put_multipart_opts<'a, 'b, 'f>(
        &'a self,
        location: &'b Path,
        options: PutMultipartOptions,
    ) -> BoxFuture<'f, Result<Box<dyn MultipartUpload>>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.inner.put_multipart_opts(location, options)
    }

    fn get_opts<'a, 'b, 'f>(&'a self, location: &'b Path, options: GetOptions) -> BoxFuture<'f, Result<GetResult>>
    where
        'a: 'f,
        'b: 'f,
    {
        let what = match &options.range {
            _ if options.head => "head".to_owned(),
            None => "get".to_owned(),
            Some(GetRange::Bounded(range)) => format!("get {}..{}", range.start, range.end),
            Some(range) => format!("get {range}"),
        };
        let condition = if options.if_match.is_some() { " if unchanged" } else { "" };
        self.record(format!("{what} of {location}{condition}"));
        self.inner.get_opts(location, options)
    }

    fn get_ranges<'a, 'b, 'c, 'f>(
        &'a self,
        location: &'b Path,
        ranges: &'c [std::ops::Range<u64>],
    ) -> BoxFuture<'f, Result<Vec<bytes::Bytes>>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
    {
        self.record(format!("get ranges of {location}"));
        self.inner.get_ranges(location, ranges)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.record(format!("list {}", prefix.map_or("", |prefix| prefix.as_ref())));
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.record(format!("list from {offset}"));
        self.inner.list_with_offset(prefix, offset)
    }

    fn list_with_delimiter<'a, 'b, 'f>(&'a self, prefix: Option<&'b Path>) -> BoxFuture<'f, Result<ListResult>>
    where
        'a: 'f,
        'b: 'f,
    {
        self.record(format!("list one level of {}", prefix.map_or("", |prefix| prefix.as_ref())));
        self.inner.list_with_delimiter(prefix)
    }

    fn copy_opts<'a, 'b, 'c, 'f>(
        &'a self,
        from: &'b Path,
        to: &'c Path,
        options: CopyOptions,
    ) -> BoxFuture<'f, Result<()>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
    {
        self.inner.copy_opts(from, to, options)
    }

    fn rename_opts<'a, 'b, 'c, 'f>(
        &'a self,
        from: &'b Path,
        to: &'c Path,
        options: object_store::RenameOptions,
    ) -> BoxFuture<'f, Result<()>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
    {
        self.inner.rename_opts(from, to, options)
    }
}
