//! The bytes of a column chunk: here, or pages in a file that is in the system's memory.
//!
//! To read a chunk of megabytes first and decode it then takes it through memory twice. A page at a time, read into the
//! memory that the one before had, stays in the processor's cache until it is decoded.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::header::Fields;
use crate::error::Result;
use crate::source::CachedFile;

/// Bytes of a chunk at least that is read page by page: shorter ones stay in the cache.
const LEAST_CHUNK_BYTES: u64 = 2 << 20;

/// Bytes of a page on average at least: each is a call of the system, and one more for its header.
const LEAST_PAGE_BYTES: u64 = 128 << 10;

/// Pages that may be smaller: the dictionary, and the last.
const SMALL_PAGES: u64 = 2;

/// Bytes in which the headers are found of columns whose values are short.
const HEADER_BYTES: u64 = 512;

/// The bytes of a range of an object.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Here(Bytes),
    InFile(FilePages),
}

/// Pages that lie one after another in a file. Their headers are here.
#[derive(Debug, Clone)]
pub(crate) struct FilePages {
    file: Arc<CachedFile>,
    range: Range<u64>,
    pages: Arc<[FilePage]>,
}

/// A page in a file.
#[derive(Debug)]
pub(super) struct FilePage {
    /// Its header, and what follows it.
    pub(super) header: Bytes,
    /// Where the page itself is.
    pub(super) range: Range<u64>,
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Here(bytes)
    }
}

impl Body {
    /// Returns the bytes of the range.
    pub(crate) fn num_bytes(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::InFile(pages) => usize::try_from(pages.range.end - pages.range.start).unwrap_or(usize::MAX),
        }
    }

    /// Returns a part of it, which may have to be read.
    ///
    /// # Errors
    ///
    /// Those of [`CachedFile::read_into`].
    pub(crate) fn part(&self, part: Range<usize>) -> Result<Bytes> {
        match self {
            Self::Here(bytes) => Ok(bytes.slice(part)),
            Self::InFile(FilePages { file, range, .. }) => {
                let mut bytes = Vec::new();
                file.read_into(&mut bytes, &(range.start + part.start as u64..range.start + part.end as u64))?;
                Ok(bytes.into())
            }
        }
    }
}

impl FilePages {
    /// Finds the pages of a range of a file, if it is worth reading them one by one and the system has them in its memory.
    pub(crate) fn find(file: &Arc<CachedFile>, range: &Range<u64>) -> Option<Self> {
        if range.end - range.start < LEAST_CHUNK_BYTES {
            return None;
        }
        let (mut pages, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let (start, num_pages) = (at, pages.len() as u64);
            let header = file.read_now(&(start..range.end.min(start + HEADER_BYTES)))?;
            let (fields, header_bytes) = Fields::parse(&header)?;
            let page = start + header_bytes as u64;
            at = page.checked_add(fields.stored_bytes()? as u64).filter(|end| *end <= range.end)?;
            // Those are looked at before they are decoded.
            let is_small = num_pages.saturating_sub(SMALL_PAGES) * LEAST_PAGE_BYTES > at - range.start;
            if is_small || fields.lengths().is_some() {
                return None;
            }
            pages.push(FilePage { header, range: page..at });
        }
        Some(Self { file: Arc::clone(file), range: range.clone(), pages: pages.into() })
    }

    /// Returns the page at a place, if there are so many.
    pub(super) fn page(&self, place: usize) -> Option<&FilePage> {
        self.pages.get(place)
    }

    /// Reads a page into `body`, in place of what is there.
    pub(super) fn read(&self, page: &Range<u64>, body: &mut Vec<u8>) -> Result<()> {
        self.file.read_into(body, page)
    }
}
