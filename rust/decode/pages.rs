//! Walks the pages of a column chunk, or of the fetched part of it.

use std::ops::Range;

use bytes::{Buf, Bytes};

use super::body::{Body, FilePages};
use super::codec::{Codec, Scratch};
use super::header::{Encoding, Kind, PageHeader};
use super::plain::make_plain;
use super::values::Stored;
use super::{Fit, Misfit, levels};

/// Bytes of a chunk that were fetched in one piece: some pages.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) body: Body,
    /// The rows of its single page, if an index tells.
    pub(crate) rows: Option<Range<u32>>,
}

/// A page whose header was read.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) header: PageHeader,
    pub(super) rows: Option<Range<u32>>,
    body: PageBody,
}

impl Page {
    /// Returns the repetition levels of an in-memory page, if they are not compressed.
    pub(super) fn plain_reps(&self) -> Option<&[u8]> {
        match (&self.body, self.header.kind) {
            (PageBody::Here(bytes), Kind::V2 { rep_bytes, .. }) => bytes.get(..rep_bytes),
            _ => None,
        }
    }
}

/// What follows the header of a page.
#[derive(Debug)]
enum PageBody {
    Here(Bytes),
    InFile(FilePages, Range<u64>),
}

/// The rest of a piece.
#[derive(Debug)]
enum Rest {
    Here(Bytes),
    /// The pages of a file from an index on.
    InFile(FilePages, usize),
}

/// The position of a part of a page.
#[derive(Debug, Clone, Default)]
struct Section {
    state: State,
    range: Range<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Stored,
    Unpacked,
    MadePlain,
}

/// The pages of a chunk, one of which is open.
#[derive(Debug)]
pub(super) struct Pages {
    pieces: std::vec::IntoIter<Piece>,
    /// The rest of the current piece, and its rows.
    rest: Rest,
    rows: Option<Range<u32>>,
    num_bytes: usize,
    is_indexed: bool,
    codec: Codec,
    scratch: Scratch,
    /// The open page as stored; `None` if it was read from a file, into the scratch.
    body: Option<Bytes>,
    reps: Section,
    defs: Section,
    values: Section,
}

impl From<Body> for Rest {
    fn from(body: Body) -> Self {
        match body {
            Body::Here(bytes) => Self::Here(bytes),
            Body::InFile(pages) => Self::InFile(pages, 0),
        }
    }
}

impl Rest {
    fn is_empty(&self) -> bool {
        match self {
            Self::Here(bytes) => bytes.is_empty(),
            Self::InFile(pages, place) => pages.page(*place).is_none(),
        }
    }

    /// Takes the next page.
    fn next(&mut self) -> Fit<(PageHeader, PageBody)> {
        const BEYOND: Misfit = Misfit("a page ends after its chunk");
        match self {
            Self::Here(bytes) => {
                let (header, header_bytes) = PageHeader::parse(bytes)?;
                bytes.advance(header_bytes);
                if header.stored_bytes > bytes.len() {
                    return Err(BEYOND);
                }
                Ok((header, PageBody::Here(bytes.split_to(header.stored_bytes))))
            }
            Self::InFile(pages, place) => {
                let page = pages.page(*place).ok_or(BEYOND)?;
                let body = PageBody::InFile(pages.clone(), page.range.clone());
                let (header, _) = PageHeader::parse(&page.header)?;
                *place += 1;
                Ok((header, body))
            }
        }
    }
}

impl Pages {
    pub(super) fn new(pieces: Vec<Piece>, is_indexed: bool, codec: Codec, scratch: Scratch) -> Self {
        Self {
            num_bytes: pieces.iter().map(|piece| piece.body.num_bytes()).sum(),
            is_indexed,
            pieces: pieces.into_iter(),
            rest: Rest::Here(Bytes::new()),
            rows: None,
            codec,
            scratch,
            body: None,
            reps: Section::default(),
            defs: Section::default(),
            values: Section::default(),
        }
    }

    /// Returns the number of fetched bytes of the chunk.
    pub(super) fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// Returns whether an index says which rows begin the pages, so that none continues in the next.
    pub(super) fn is_indexed(&self) -> bool {
        self.is_indexed
    }

    /// Returns the next page, which is not open yet; `None` after the last.
    pub(super) fn next(&mut self) -> Fit<Option<Page>> {
        loop {
            if self.rest.is_empty() {
                let Some(piece) = self.pieces.next() else { return Ok(None) };
                (self.rest, self.rows) = (piece.body.into(), piece.rows);
            }
            let (header, body) = self.rest.next()?;
            let rows = self.rows.take();
            if rows.is_some() && !self.rest.is_empty() {
                return Err(Misfit("a page ends before the index says so"));
            }
            if header.kind != Kind::Index {
                return Ok(Some(Page { header, rows, body }));
            }
        }
    }

    /// Decompresses a page and finds its parts; `max` are the highest repetition and definition levels.
    pub(super) fn open(&mut self, page: Page, max: [u8; 2]) -> Fit<()> {
        let Page { header, body, .. } = page;
        self.body = match body {
            PageBody::Here(bytes) => Some(bytes),
            PageBody::InFile(pages, page) => {
                // Reading it once more reports the error.
                pages.read(&page, &mut self.scratch.stored).map_err(|_| Misfit("a page cannot be read"))?;
                None
            }
        };
        if header.crc.is_some_and(|crc| crc32fast::hash(self.stored()) != crc) {
            return Err(Misfit("the checksum of a page is wrong"));
        }
        if let Kind::V2 { rep_bytes, def_bytes, is_compressed, .. } = header.kind {
            self.open_v2(&header, rep_bytes, def_bytes, is_compressed)?;
            let are_sound = |stored: &[u8], max: u8| match max {
                0 => levels::are_none(stored, header.num_values),
                // The checksum does not cover the header, which says where they end.
                _ if header.crc.is_some() => levels::are_exact(stored, header.num_values, levels::width_of(max)),
                _ => true,
            };
            return match are_sound(self.reps(), max[0]) && are_sound(self.defs(), max[1]) {
                true => Ok(()),
                false => Err(Misfit("a page claims levels that it does not have")),
            };
        }
        let state = self.unpack(0, header.unpacked_bytes)?;
        let bytes = self.get(&Section { state, range: 0..usize::MAX });
        let (mut at, end) = (0, bytes.len());
        let levels = |at: &mut usize, max: u8| {
            if max == 0 {
                return Ok(Section::default());
            }
            const SHORT: Misfit = Misfit("the levels of a page end after it");
            let len =
                bytes.get(*at..).and_then(<[u8]>::first_chunk).map(|len| u32::from_le_bytes(*len)).ok_or(SHORT)?;
            let start = *at + size_of::<u32>();
            let stop = start.checked_add(len as usize).filter(|&stop| stop <= end).ok_or(SHORT)?;
            *at = stop;
            Ok(Section { state, range: start..stop })
        };
        let reps = levels(&mut at, max[0])?;
        let defs = levels(&mut at, max[1])?;
        (self.reps, self.defs) = (reps, defs);
        self.values = Section { state, range: at..end };
        Ok(())
    }

    fn open_v2(&mut self, header: &PageHeader, rep_bytes: usize, def_bytes: usize, is_compressed: bool) -> Fit<()> {
        let levels_bytes = rep_bytes + def_bytes;
        if levels_bytes > self.stored().len() || levels_bytes > header.unpacked_bytes {
            return Err(Misfit("the levels of a page end after it"));
        }
        self.reps = Section { state: State::Stored, range: 0..rep_bytes };
        self.defs = Section { state: State::Stored, range: rep_bytes..levels_bytes };
        let unpacked_bytes = header.unpacked_bytes - levels_bytes;
        self.values = if !is_compressed || self.codec == Codec::Uncompressed {
            Section { state: State::Stored, range: levels_bytes..self.stored().len() }
        } else if unpacked_bytes == 0 {
            // Everything is NULL: there may be nothing to decompress.
            Section::default()
        } else {
            let state = self.unpack(levels_bytes, unpacked_bytes)?;
            Section { state, range: 0..unpacked_bytes }
        };
        Ok(())
    }

    /// Makes the values of the open page plain if they are stored in streams or as differences; returns their encoding
    /// now.
    pub(super) fn make_plain(&mut self, encoding: Encoding, stored: Stored, num_values: usize) -> Fit<Encoding> {
        let mut plain = std::mem::take(&mut self.scratch.plain);
        let is_made = make_plain(encoding, self.values(), stored, num_values, &mut plain);
        let num_bytes = plain.len();
        self.scratch.plain = plain;
        if !is_made? {
            return Ok(encoding);
        }
        self.values = Section { state: State::MadePlain, range: 0..num_bytes };
        Ok(Encoding::Plain)
    }

    /// Decompresses the current page from `start` on, if necessary; returns its state then.
    fn unpack(&mut self, start: usize, unpacked_bytes: usize) -> Fit<State> {
        if self.codec == Codec::Uncompressed {
            return Ok(State::Stored);
        }
        match &self.body {
            Some(body) => self.scratch.unpack(self.codec, &body[start..], unpacked_bytes)?,
            None => {
                let stored = std::mem::take(&mut self.scratch.stored);
                let unpacked = self.scratch.unpack(self.codec, &stored[start..], unpacked_bytes);
                self.scratch.stored = stored;
                unpacked?;
            }
        }
        Ok(State::Unpacked)
    }

    /// Returns the current page as stored.
    fn stored(&self) -> &[u8] {
        self.body.as_deref().unwrap_or(&self.scratch.stored)
    }

    fn get(&self, section: &Section) -> &[u8] {
        let bytes = match section.state {
            State::Stored => self.stored(),
            State::Unpacked => self.scratch.page(),
            State::MadePlain => &self.scratch.plain,
        };
        &bytes[section.range.start.min(bytes.len())..section.range.end.min(bytes.len())]
    }

    /// Returns the repetition levels of the open page.
    pub(super) fn reps(&self) -> &[u8] {
        self.get(&self.reps)
    }

    /// Returns the definition levels of the open page.
    pub(super) fn defs(&self) -> &[u8] {
        self.get(&self.defs)
    }

    /// Returns the values of the open page.
    pub(super) fn values(&self) -> &[u8] {
        self.get(&self.values)
    }

    /// Returns the memory for the next column.
    pub(super) fn into_scratch(self) -> Scratch {
        self.scratch
    }
}
