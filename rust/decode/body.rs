//! The bytes of a column chunk: in memory, or pages in a file that is in the page cache.
//!
//! Reading a chunk of megabytes first and decoding it then takes it through memory twice. If it is read page by page,
//! reusing the previous page's memory, each page stays in the processor's cache until it is decoded.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::header::Fields;
use crate::error::Result;
use crate::source::CachedFile;

/// Minimum size of a chunk that is read page by page: smaller ones stay in the cache.
const LEAST_CHUNK_BYTES: u64 = 2 << 20;

/// Minimum average size of a page: each takes a system call, and one more for its header.
const LEAST_PAGE_BYTES: u64 = 128 << 10;

/// Number of pages that may be smaller: the dictionary, and the last.
const SMALL_PAGES: u64 = 2;

/// Bytes in which the headers of columns with short values are found.
const HEADER_BYTES: u64 = 512;

/// The bytes of a range of an object.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Here(Bytes),
    InFile(FilePages),
}

/// Contiguous pages in a file, with their headers in memory.
#[derive(Debug, Clone)]
pub(crate) struct FilePages {
    file: Arc<CachedFile>,
    range: Range<u64>,
    pages: Arc<[FilePage]>,
}

/// A page in a file.
#[derive(Debug)]
pub(super) struct FilePage {
    /// Its header, and what was read after it.
    pub(super) header: Bytes,
    /// The range of the page itself.
    pub(super) range: Range<u64>,
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Here(bytes)
    }
}

impl Body {
    /// Returns the number of bytes in the range.
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
    /// Finds the pages of a range of a file, if they are worth reading one by one and in the page cache.
    pub(crate) fn find(file: &Arc<CachedFile>, range: &Range<u64>) -> Option<Self> {
        if range.end - range.start < LEAST_CHUNK_BYTES {
            return None;
        }
        Self::walk(file, range, LEAST_PAGE_BYTES)
    }

    /// Walks from header to header, as long as pages have at least this many bytes on average.
    fn walk(file: &Arc<CachedFile>, range: &Range<u64>, least_bytes: u64) -> Option<Self> {
        let (mut pages, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let (start, num_pages) = (at, pages.len() as u64);
            let header = file.read_now(&(start..range.end.min(start + HEADER_BYTES)))?;
            let (fields, header_bytes) = Fields::parse(&header)?;
            let page = start + header_bytes as u64;
            at = page.checked_add(fields.stored_bytes()? as u64).filter(|end| *end <= range.end)?;
            if num_pages.saturating_sub(SMALL_PAGES) * least_bytes > at - range.start {
                return None;
            }
            pages.push(FilePage { header, range: page..at });
        }
        Some(Self { file: Arc::clone(file), range: range.clone(), pages: pages.into() })
    }

    /// Returns the page at an index, if it exists.
    pub(super) fn page(&self, place: usize) -> Option<&FilePage> {
        self.pages.get(place)
    }

    /// Reads a page into `body`, replacing its contents.
    pub(super) fn read(&self, page: &Range<u64>, body: &mut Vec<u8>) -> Result<()> {
        self.file.read_into(body, page)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use arrow_array::{Array, ArrayRef};
    use proptest::prelude::*;

    use super::super::codec::Scratch;
    use super::super::tests::{cuts, open, set_of, shapes};
    use super::super::{Fit, Misfit, plan};
    use super::*;
    use crate::source::Object;

    /// Returns a file with these bytes, if the system can report what is in its page cache.
    fn file_of(bytes: &[u8]) -> Option<Arc<CachedFile>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let object = Object { path: "x".into(), url: "file:///x".into(), written: None, size_bytes: None, e_tag: None };
        let cached = CachedFile::of_test(File::open(file.path()).unwrap(), &object);
        cached.read_now(&(0..1)).map(|_| Arc::new(cached))
    }

    /// Reads rows in steps of this many.
    fn read(
        plan: &crate::decode::ColumnPlan,
        bodies: Vec<Body>,
        rows: &Arc<crate::rows::RowSet>,
        steps: &[usize],
    ) -> Fit<Vec<ArrayRef>> {
        let mut column = plan.open(rows, bodies, u64::MAX, Scratch::default());
        steps.iter().map(|&num_rows| column.read(num_rows)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn pages_in_a_file_are_read_as_those_that_are_here(shape in shapes(), cuts in cuts(), step in 1_usize..200) {
            let body = shape.write();
            let Some(file) = file_of(&body) else { return Ok(()) };
            let snapshot = open(&body).unwrap();
            let rows = Arc::new(set_of(&cuts, shape.num_rows));
            let num_rows = rows.count(0..snapshot.row_groups[0].num_rows) as usize;
            let steps: Vec<usize> = (0..num_rows).step_by(step).map(|start| step.min(num_rows - start)).collect();
            for root in 0..snapshot.schema.fields().len() {
                let Some(plan) = plan(snapshot.fragment(snapshot.row_groups[0]), 0, root, &rows) else { continue };
                let here = plan.ranges().iter().map(|range| Body::Here(file.read_now(range).unwrap())).collect();
                let in_file = plan.ranges().iter().map(|range| FilePages::walk(&file, range, 0).map(Body::InFile));
                let in_file: Vec<Body> = in_file.collect::<Option<_>>().unwrap();
                for (body, range) in in_file.iter().zip(plan.ranges()) {
                    prop_assert_eq!(body.num_bytes() as u64, range.end - range.start);
                    prop_assert_eq!(&body.part(0..body.num_bytes()).unwrap(), &file.read_now(range).unwrap());
                }
                match (read(&plan, here, &rows, &steps), read(&plan, in_file, &rows, &steps)) {
                    (Ok(here), Ok(in_file)) => {
                        prop_assert!(here.iter().zip(&in_file).all(|(a, b)| a.to_data() == b.to_data()), "column {root}");
                    }
                    // A skipped page is opened if it is in a file, which reveals NULL structs.
                    (Ok(_), Err(misfit)) => prop_assert_eq!(misfit, Misfit("a struct is NULL")),
                    (here, in_file) => prop_assert_eq!(here.err(), in_file.err()),
                }
            }
        }
    }

    #[test]
    fn small_chunks_small_pages_and_noise_are_read_at_once() {
        // A page of this many zero bytes: type, unpacked and stored size, one value, plain.
        let page = |num_bytes: u32| {
            let length = |bytes: &mut Vec<u8>, mut zigzag: u32| {
                while zigzag >= 128 {
                    bytes.push(zigzag.to_le_bytes()[0] | 128);
                    zigzag >>= 7;
                }
                bytes.push(zigzag.to_le_bytes()[0]);
            };
            let mut bytes = vec![0x15, 0];
            for _ in 0..2 {
                bytes.push(0x15);
                length(&mut bytes, 2 * num_bytes);
            }
            bytes.extend([0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0]);
            bytes.resize(bytes.len() + num_bytes as usize, 0);
            bytes
        };
        let found = |bytes: &[u8]| {
            let file = file_of(bytes)?;
            Some(FilePages::find(&file, &(0..bytes.len() as u64)).map(|pages| pages.pages.len()))
        };
        let Some(of_large) = found(&page(512 << 10).repeat(5)) else { return };
        assert_eq!(of_large, Some(5));
        assert_eq!(found(&page(512 << 10).repeat(3)), Some(None));
        assert_eq!(found(&page(64 << 10).repeat(50)), Some(None));
        let (small, large) = (page(100), page(1 << 20));
        assert_eq!(found(&[&small[..], &large, &large, &large, &small].concat()), Some(Some(5)));
        assert_eq!(found(&[&large[..], &large, &[0xff; 700]].concat()), Some(None));
        assert_eq!(found(&page(3 << 20)[..(3 << 20) - 1]), Some(None));
    }
}
