//! Checks the claims of pages before any decoder trusts them.
//!
//! The `parquet` crate allocates memory for what a header claims, and spends time on lists without any bytes. So the
//! headers of all fetched pages are read first, in sequence, which costs less than a microsecond each. No writer
//! produces what is refused here.
//!
//! Checksums do not cover headers. So if rows are skipped, by the number that a header or the page index claims, these
//! have to agree. If a page has a checksum, the footer has to name its encoding, and levels of version 2 have to be as
//! many, and as long, as its header says. Other pages may be damaged anyway, and some of their writers leave encodings
//! out of the footer, or cut the last levels short.

use std::ops::Range;

use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::body::Body;
use super::codec::{self, Scratch};
use super::header::{DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, Fields, INDEX_PAGE, Lengths, Second};
use super::hybrid::Hybrid;
use super::row_texts::{Numbers, RowTexts};
use super::{Fit, Misfit, delta, levels};
use crate::snapshot::Fragment;

/// What a text takes in addition to its bytes while it is decoded from lengths: two of them.
const LENGTH_BYTES: u64 = 8;

/// A nonce and a tag, without any content: for `AES_GCM_V1`, whose headers both algorithms use, and without the tag for
/// `AES_GCM_CTR_V1`.
const LEAST_ENCRYPTED_BYTES: usize = 12;

/// What the levels of a page hardly ever exceed, in addition to four bits per value.
const FEW_BYTES: usize = 1024;

const MALFORMED: &str = "the header of a page is malformed";
const ENCRYPTED: &str = "its pages are encrypted, which is not supported; select other columns";
const STRANGE: &str = "a page claims an implausible number of values or bytes";

/// The claims of the pages of a leaf column.
#[derive(Debug)]
pub(crate) struct Claims<'a> {
    column: &'a ColumnChunkMetaData,
    /// Its pages according to the index, if there is one.
    listed: &'a [PageLocation],
    /// The number of rows in the row group.
    num_rows: i64,
    /// Whether some of them are skipped.
    is_in_part: bool,
    /// Whether all its pages were fetched.
    is_whole: bool,
    /// Parts of it, each of whole pages, and where they begin.
    parts: Vec<(u64, &'a [u8])>,
    /// The memory limit for pages.
    memory_bytes: u64,
    num_values: u64,
    /// The size of the largest page when decompressed.
    largest_bytes: u64,
    dictionary: Option<Dictionary<'a>>,
    /// Maximum length of a text that repeats the beginning of the previous one.
    longest_repeated: u64,
}

/// A dictionary page.
#[derive(Debug)]
struct Dictionary<'a> {
    stored: &'a [u8],
    unpacked_bytes: usize,
    num_values: usize,
}

impl<'a> Claims<'a> {
    /// Reads the headers of a leaf column's pages. `fetched` are parts of the object, each of whole pages, of whose
    /// rows all are wanted or some.
    ///
    /// # Errors
    ///
    /// If a claim is impossible; says which.
    pub(crate) fn read(
        fragment: &'a Fragment,
        row_group: u32,
        leaf: usize,
        fetched: impl Iterator<Item = (&'a Range<u64>, &'a Body)>,
        is_in_part: bool,
        memory_bytes: u64,
    ) -> Result<Self, String> {
        let column = fragment.row_group(row_group).column(leaf);
        let listed = fragment.offset_index(row_group, leaf).map_or(&[][..], |index| index.page_locations());
        let chunk = fragment.chunk_range(row_group, leaf);
        let mut claims = Self {
            column,
            listed,
            num_rows: fragment.row_group(row_group).num_rows(),
            is_in_part,
            is_whole: false,
            parts: Vec::new(),
            memory_bytes,
            num_values: 0,
            largest_bytes: 0,
            dictionary: None,
            longest_repeated: 0,
        };
        let (mut starts, mut fetched_bytes) = (Vec::new(), 0);
        for (range, body) in fetched.filter(|(range, _)| chunk.start <= range.start && range.end <= chunk.end) {
            starts.clear();
            fetched_bytes += range.end - range.start;
            match body {
                Body::Here(bytes) => {
                    let mut rest = &bytes[..];
                    claims.parts.push((range.start, rest));
                    while !rest.is_empty() {
                        let start = range.end - rest.len() as u64;
                        starts.push(start);
                        rest = claims.add_first(rest, start)?;
                    }
                }
                Body::InFile(pages) => {
                    let mut start = range.start;
                    for page in (0..).map_while(|place| pages.page(place)) {
                        starts.push(start);
                        let (fields, _) = Fields::parse(&page.header).ok_or(MALFORMED)?;
                        claims.add(&fields, &[], start)?;
                        start = page.range.end;
                    }
                }
            }
            // The `parquet` crate goes by the index.
            let offset = |place: usize| listed.get(place).and_then(|page| u64::try_from(page.offset).ok());
            let first = listed.partition_point(|page| u64::try_from(page.offset).is_ok_and(|at| at < range.start));
            let mut inside = (first..).map_while(offset).take_while(|offset| *offset < range.end);
            if let Some(offset) = inside.find(|offset| starts.binary_search(offset).is_err()) {
                return Err(format!("the page index lists a page at byte {offset}, where none begins"));
            }
        }
        claims.is_whole = fetched_bytes == chunk.end - chunk.start;
        if claims.is_whole && claims.num_values < claims.all_values() {
            return Err(claims.miscounted());
        }
        Ok(claims)
    }

    /// Adds the first page of `bytes`, at offset `start` of the object; returns what follows it.
    fn add_first(&mut self, bytes: &'a [u8], start: u64) -> Result<&'a [u8], String> {
        let malformed = || if are_encrypted(bytes) { ENCRYPTED } else { MALFORMED };
        let (fields, header_bytes) = Fields::parse(bytes).ok_or_else(malformed)?;
        let stored_bytes = fields.stored_bytes().ok_or(STRANGE)?;
        let body = &bytes[header_bytes..];
        let (stored, rest) = body
            .split_at_checked(stored_bytes)
            .ok_or_else(|| format!("a page claims {stored_bytes} bytes of {}", body.len()))?;
        self.add(&fields, stored, start)?;
        Ok(rest)
    }

    /// Adds a page; `stored` are its bytes, or empty for a page in a file, which need not be examined.
    fn add(&mut self, fields: &Fields, stored: &'a [u8], start: u64) -> Result<(), String> {
        if !fields.is_of_one_version() {
            return Err(MALFORMED.to_owned());
        }
        let claimed = fields.stored_bytes().zip(fields.unpacked_bytes()).zip(fields.num_values());
        let ((stored_bytes, unpacked_bytes), num_values) = claimed.ok_or(STRANGE)?;
        // Uncompressed bytes stay where they were fetched.
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let unpacked_bytes = if is_compressed { unpacked_bytes } else { stored_bytes };
        match fields.page_type() {
            Some(DATA_PAGE | DATA_PAGE_V2) => {
                if fields.has_checksum() && !is_named(fields, self.column) {
                    return Err("a page has an encoding that its footer does not name".to_owned());
                }
                self.num_values += num_values as u64;
                if self.num_values > self.all_values() {
                    return Err(self.miscounted());
                }
                self.check_claim(fields, stored, num_values, start)?;
                let mut page_bytes = if is_compressed { unpacked_bytes as u64 } else { 0 };
                if fields.lengths().is_some() {
                    page_bytes = page_bytes.saturating_add(num_values as u64 * LENGTH_BYTES);
                }
                self.largest_bytes = self.largest_bytes.max(page_bytes);
            }
            Some(DICTIONARY_PAGE) => {
                if num_values.saturating_mul(least_bytes(self.column)) > unpacked_bytes {
                    return Err(format!("a dictionary claims {num_values} values in {unpacked_bytes} bytes"));
                }
                if self.dictionary.replace(Dictionary { stored, unpacked_bytes, num_values }).is_some() {
                    return Err("it has two dictionaries".to_owned());
                }
            }
            // The `parquet` crate may read on within it.
            Some(INDEX_PAGE) if stored_bytes > 0 => return Err("a page is an index page".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Refuses levels that the column does not have, and, if each row is a value, different numbers of them. The number
    /// of rows of lists follows from levels: old writers claim as many as values.
    fn check_claim(&self, fields: &Fields, stored: &[u8], num_values: usize, start: u64) -> Result<(), String> {
        if fields.page_type() == Some(DATA_PAGE_V2) {
            let Second { num_rows, level_bytes: [rep_bytes, def_bytes], .. } = fields.second().ok_or(STRANGE)?;
            let parts =
                stored.split_at_checked(rep_bytes).and_then(|(reps, rest)| Some([reps, rest.get(..def_bytes)?]));
            let are_sound = |parts: [&[u8]; 2]| {
                let mut parts = parts.into_iter().zip(highest_levels(self.column));
                parts.all(|(part, max)| max > 0 || levels::are_none(part, num_values))
            };
            if !stored.is_empty() && !parts.is_some_and(are_sound) {
                return Err("a page claims levels that it does not have".to_owned());
            }
            if !self.is_of_lists() && num_rows != num_values {
                return Err(format!("a page claims {num_values} values and {num_rows} rows"));
            }
        }
        if self.is_of_lists() { Ok(()) } else { self.check_rows(num_values, start) }
    }

    /// If some rows are skipped, refuses a page at offset `start` whose number of rows differs from the index.
    fn check_rows(&self, num_rows: usize, start: u64) -> Result<(), String> {
        let place = self.listed.binary_search_by_key(&i64::try_from(start).ok(), |page| Some(page.offset));
        let Some(place) = place.ok().filter(|_| self.is_in_part) else { return Ok(()) };
        let end = self.listed.get(place + 1).map_or(self.num_rows, |next| next.first_row_index);
        let listed = end.saturating_sub(self.listed[place].first_row_index);
        match i64::try_from(num_rows) {
            Ok(num_rows) if num_rows == listed => Ok(()),
            _ => Err(format!("a page has {num_rows} rows, and {listed} in the index")),
        }
    }

    /// Refuses pages for which the `parquet` crate would allocate more memory than they claim: those that decompress to
    /// more, and text lengths that exceed the claim or, if rows are skipped, the page.
    ///
    /// # Errors
    ///
    /// If a claim is impossible; says which.
    pub(crate) fn check_memory(&mut self) -> Result<(), String> {
        if self.column.compression() != Compression::UNCOMPRESSED {
            let claimed = |fields: &Fields| fields.unpacked_bytes().unwrap_or(0);
            let larger = self.pages().find(|(_, fields, stored)| !self.is_as_claimed(fields, stored, claimed(fields)));
            if let Some((_, fields, _)) = larger {
                return Err(format!("a page unpacks to more than the {} bytes that it claims", claimed(&fields)));
            }
        }
        let (mut scratch, mut longest_repeated) = (Scratch::default(), 0);
        for (_, fields, stored) in self.data_pages() {
            let lengths = fields.lengths();
            let is_text = self.is_in_part && fields.is_plain() && self.column.column_type() == PhysicalType::BYTE_ARRAY;
            if lengths.is_none() && !is_text {
                continue;
            }
            let num_values = fields.num_values().unwrap_or(0);
            // Whether it decompresses is checked by the decoder.
            let opened = open(self.column, &mut scratch, &fields, stored, fields.unpacked_bytes().unwrap_or(0));
            let Some((levels, values)) = opened.filter(|(_, values)| !values.is_empty()) else { continue };
            let Some(lengths) = lengths else {
                // The number of levels is checked separately.
                let (max, is_old) = (highest_levels(self.column)[1], fields.are_levels_old()[1]);
                let num_texts = count_levels(levels[1], is_old, num_values, max, max).unwrap_or(0);
                if !are_within(values, num_texts) {
                    return Err("a text claims more bytes than its page has".to_owned());
                }
                continue;
            };
            match lengths {
                Lengths::OfTexts => drop(delta::longest(values, num_values)?),
                Lengths::OfPrefixesAndTexts => {
                    longest_repeated = longest_repeated.max(delta::longest_repeated(values, num_values)?);
                }
            }
        }
        self.longest_repeated = longest_repeated;
        Ok(())
    }

    /// Returns whether a page decompresses to the size it claims, as far as the `parquet` crate would not notice.
    fn is_as_claimed(&self, fields: &Fields, stored: &[u8], unpacked_bytes: usize) -> bool {
        let Some((plain, packed)) = fields.plain_bytes().and_then(|plain| stored.split_at_checked(plain)) else {
            return true;
        };
        let unpacked_bytes = unpacked_bytes.saturating_sub(plain.len());
        // More is refused anyway.
        unpacked_bytes as u64 > self.memory_bytes
            || codec::is_at_most(self.column.compression(), packed, unpacked_bytes, self.memory_bytes)
    }

    fn miscounted(&self) -> String {
        format!("its pages claim {} values, its footer {}", self.num_values, self.all_values())
    }

    fn all_values(&self) -> u64 {
        u64::try_from(self.column.num_values()).unwrap_or(0)
    }

    /// Returns the bytes of the decompressed dictionary and largest page, which are held at once.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let dictionary = self.dictionary.as_ref().filter(|_| is_compressed);
        self.largest_bytes.saturating_add(dictionary.map_or(0, |dictionary| dictionary.unpacked_bytes as u64))
    }

    /// Returns an approximate upper bound for the bytes per row, over `num_rows`, of texts that are stored once;
    /// examines them only if that may be too many. Texts that repeat the beginning of the previous one are handled by
    /// [`Self::check_memory`].
    pub(crate) fn text_bytes(&self, num_rows: u64) -> u64 {
        if self.column.column_type() != PhysicalType::BYTE_ARRAY {
            return 0;
        }
        let may_be_too_many = |longest: u64| self.all_values().saturating_mul(longest) > self.memory_bytes;
        let of_dictionary = self.dictionary.as_ref().map_or(0, |dictionary| {
            let all_bytes = dictionary.unpacked_bytes as u64;
            match may_be_too_many(all_bytes) {
                true => dictionary.lengths(self.column.compression()).into_iter().max().map_or(all_bytes, u64::from),
                false => all_bytes,
            }
        });
        let longest = of_dictionary.max(self.longest_repeated);
        if may_be_too_many(longest) && self.is_of_lists() {
            return self.largest_row(longest);
        }
        longest.saturating_mul(self.all_values().div_ceil(num_rows.max(1)))
    }

    /// Returns whether a row may have more than one value.
    pub(crate) fn is_of_lists(&self) -> bool {
        self.column.column_descr().max_rep_level() > 0
    }

    /// Returns an upper bound for the texts of one row that are stored once: each unreadable one counts as `longest`.
    fn largest_row(&self, longest: u64) -> u64 {
        let lengths = self.dictionary.as_ref().map(|dictionary| dictionary.lengths(self.column.compression()));
        let (mut texts, mut scratch) = (RowTexts::default(), Scratch::default());
        for (_, fields, stored) in self.data_pages() {
            let (num_values, lengths) = (fields.num_values().unwrap_or(0), lengths.as_deref().unwrap_or_default());
            if add_texts(&mut texts, self.column, &mut scratch, &fields, stored, num_values, lengths).is_none() {
                texts.add_text(longest.saturating_mul(num_values as u64));
            }
        }
        texts.most_bytes()
    }

    /// Refuses pages with another number of levels than they claim, or higher ones than the column's, and
    /// contradictions: other numbers of rows than claimed, if some are skipped, or than in the row group, and values
    /// stored byte by byte in another number.
    ///
    /// The `parquet` crate waits forever for missing levels, and misreads values of too high ones. Levels that are
    /// compressed together with values are not examined for columns without lists.
    ///
    /// # Errors
    ///
    /// If a claim is impossible; says which.
    pub(crate) fn check_levels(&self) -> Result<(), String> {
        let mut scratch = Scratch::default();
        let max = highest_levels(self.column);
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let mut pages = self.data_pages().peekable();
        let mut all_rows = self.is_whole.then_some(0_u64);
        while let Some((start, fields, stored)) = pages.next() {
            let is_split = fields.is_split_by_bytes();
            // With one level per row, unpacking them would cost half of the decoding again, and a wrong one moves no
            // other row.
            let is_dear = is_compressed && fields.second().is_none() && !self.is_of_lists();
            if !is_split && (max == [0, 0] || is_dear) {
                continue;
            }
            // Failed decompression is reported by the decoder.
            let Some((levels, value_bytes)) = self.levels(&mut scratch, &fields, stored) else {
                all_rows = None;
                continue;
            };
            let num_levels = fields.num_values().unwrap_or(0);
            let are_old = fields.are_levels_old();
            let count = |kind: usize, wanted: i16| {
                let count = count_levels(levels[kind], are_old[kind], num_levels, max[kind], wanted);
                count.map_err(|said| match said {
                    Misfit::TOO_HIGH => said.to_string(),
                    _ => format!("a page has fewer levels than the {num_levels} values that it claims"),
                })
            };
            let (num_rows, num_present) = (count(0, 0)?, count(1, max[1])?);
            if let Some(Second { num_nulls, .. }) = fields.second().filter(|_| fields.has_checksum()) {
                let are_exact =
                    |(levels, max): (&[u8], i16)| max == 0 || levels::are_exact(levels, num_levels, width_of(max));
                let has_others = num_nulls.is_some_and(|num_nulls| num_nulls + num_present != num_levels);
                if has_others || !levels.into_iter().zip(max).all(are_exact) {
                    return Err("a page has other levels than it claims".to_owned());
                }
            }
            if self.is_of_lists() {
                // After the last page there are no rows that could be confused.
                let claim = fields.second().filter(|_| self.is_in_part && pages.peek().is_some());
                if let Some(Second { num_rows: claimed, .. }) = claim.filter(|claim| claim.num_rows != num_rows) {
                    return Err(format!("a page claims {claimed} rows and has {num_rows}"));
                }
                self.check_rows(num_rows, start)?;
                all_rows = all_rows.map(|all| all + num_rows as u64);
            }
            if is_split && num_present.checked_mul(least_bytes(self.column)) != Some(value_bytes) {
                return Err(format!("a page has {num_present} values in {value_bytes} bytes"));
            }
        }
        match all_rows.filter(|all| self.is_of_lists() && i64::try_from(*all) != Ok(self.num_rows)) {
            Some(all) => Err(format!("its pages have {all} rows, its row group {}", self.num_rows)),
            None => Ok(()),
        }
    }

    /// Returns the levels of a data page, and the size of its values; decompresses no more than necessary.
    fn levels<'p>(
        &self,
        scratch: &'p mut Scratch,
        fields: &Fields,
        stored: &'p [u8],
    ) -> Option<([&'p [u8]; 2], usize)> {
        let (compression, max) = (self.column.compression(), highest_levels(self.column));
        let is_compressed = compression != Compression::UNCOMPRESSED;
        if let Some(Second { level_bytes: [rep_bytes, def_bytes], is_compressed: is_packed, .. }) = fields.second() {
            let (reps, rest) = stored.split_at_checked(rep_bytes)?;
            let (defs, values) = rest.split_at_checked(def_bytes)?;
            let value_bytes = match is_compressed && is_packed {
                true => fields.unpacked_bytes()?.checked_sub(rep_bytes + def_bytes)?,
                false => values.len(),
            };
            return Some(([reps, defs], value_bytes));
        }
        let all_bytes = if is_compressed { fields.unpacked_bytes()? } else { stored.len() };
        if max == [0, 0] {
            return Some(([&[], &[]], all_bytes));
        }
        let usual_bytes = fields.num_values()? / 2 + FEW_BYTES;
        let bytes = if is_compressed {
            let first = scratch.unpack_first(compression, stored, all_bytes, usual_bytes)?;
            if fields.split(&[], first, max).is_none() {
                scratch.unpack_any(compression, stored, all_bytes)?;
            }
            scratch.page()
        } else {
            stored
        };
        let (levels, values) = fields.split(&[], bytes, max)?;
        Some((levels, all_bytes.checked_sub(bytes.len() - values.len())?))
    }

    /// Returns the fetched data pages, with their stored bytes, and where they begin.
    fn data_pages(&self) -> impl Iterator<Item = (u64, Fields, &'a [u8])> {
        self.pages().filter(|(_, fields, _)| matches!(fields.page_type(), Some(DATA_PAGE | DATA_PAGE_V2)))
    }

    fn pages(&self) -> impl Iterator<Item = (u64, Fields, &'a [u8])> {
        self.parts.iter().flat_map(|(start, part)| {
            let mut rest = *part;
            // All headers were read before.
            std::iter::from_fn(move || {
                let (fields, header_bytes) = Fields::parse(rest).filter(|_| !rest.is_empty())?;
                let page = start + (part.len() - rest.len()) as u64;
                let (stored, after) = rest[header_bytes..].split_at_checked(fields.stored_bytes()?)?;
                rest = after;
                Some((page, fields, stored))
            })
        })
    }
}

/// Returns whether bytes without a valid page header look like an encrypted one and the page after it: each is prefixed
/// by its length, and has a nonce and a tag.
fn are_encrypted(bytes: &[u8]) -> bool {
    let next = |bytes: &'_ [u8]| {
        let (len, rest) = bytes.split_first_chunk()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        rest.get(len..).filter(|_| len >= LEAST_ENCRYPTED_BYTES).map(<[u8]>::len)
    };
    let after_header = next(bytes).map(|left| &bytes[bytes.len() - left..]);
    after_header.and_then(next).is_some()
}

/// Returns how many of a page's levels, up to `max`, are `wanted`.
fn count_levels(bytes: &[u8], are_old: bool, num_levels: usize, max: i16, wanted: i16) -> Fit<usize> {
    let width = width_of(max);
    let stored = match (max, are_old) {
        (0, _) => return Ok(num_levels),
        (_, true) => Hybrid::of_packed(bytes.len(), width)?,
        (_, false) => Hybrid::new(0, width)?,
    };
    levels::count(bytes, stored, num_levels, max.unsigned_abs().into(), wanted.unsigned_abs().into())
}

/// Returns the number of bits of levels up to `max`.
fn width_of(max: i16) -> usize {
    (i16::BITS - max.leading_zeros()) as usize
}

/// Returns whether the footer names the encoding of a data page: among those of data pages, or if it does not list them
/// separately, of all pages. Some footers name none.
fn is_named(fields: &Fields, column: &ColumnChunkMetaData) -> bool {
    let of_data_pages = column.page_encoding_stats_mask().filter(|mask| mask.as_i32() != 0);
    let named = of_data_pages.unwrap_or(column.encodings_mask()).as_i32();
    named == 0 || fields.encoding_bits().is_some_and(|bits| bits & i64::from(named) != 0)
}

/// Returns whether this many length-prefixed texts are within `values`.
fn are_within(values: &[u8], num_texts: usize) -> bool {
    let mut rest = Some(values);
    for _ in 0..num_texts {
        let Some((len, texts)) = rest.and_then(<[u8]>::split_first_chunk) else { break };
        rest = texts.get(u32::from_le_bytes(*len) as usize..);
    }
    rest.is_some()
}

/// Adds the texts of a data page that are stored elsewhere: in a dictionary whose texts have `lengths`, or earlier.
fn add_texts(
    texts: &mut RowTexts,
    column: &ColumnChunkMetaData,
    scratch: &mut Scratch,
    fields: &Fields,
    stored: &[u8],
    num_values: usize,
    lengths: &[u32],
) -> Option<()> {
    let max = highest_levels(column);
    if fields.has_old_levels(max) {
        return None;
    }
    let (levels, values) = open(column, scratch, fields, stored, fields.unpacked_bytes()?)?;
    if fields.is_of_dictionary() {
        let mut numbers = match values.split_first() {
            Some((&width, values)) => Numbers::new(values, usize::from(width)),
            // Everything is NULL.
            None => None,
        };
        let mut next_text = || lengths.get(numbers.as_mut()?.next()? as usize).copied().map(u64::from);
        return texts.add(num_values, levels, max, &mut next_text);
    }
    if fields.lengths() == Some(Lengths::OfPrefixesAndTexts) && !values.is_empty() {
        let (prefixes, rest) = delta::lengths(values, num_values).ok()?;
        let (suffixes, _) = delta::lengths(rest, num_values).ok()?;
        let mut sums = prefixes.iter().zip(&suffixes).map(|(&prefix, &suffix)| u64::from(prefix) + u64::from(suffix));
        return texts.add(num_values, levels, max, || sums.next());
    }
    texts.add(num_values, levels, max, || Some(0))
}

/// Returns the decompressed levels and values of a data page.
fn open<'p>(
    column: &ColumnChunkMetaData,
    scratch: &'p mut Scratch,
    fields: &Fields,
    stored: &'p [u8],
    unpacked_bytes: usize,
) -> Option<([&'p [u8]; 2], &'p [u8])> {
    let (plain_bytes, compression) = match (fields.plain_bytes(), column.compression()) {
        (Some(plain_bytes), compression) if compression != Compression::UNCOMPRESSED => (plain_bytes, compression),
        // Nothing in it is compressed.
        (plain_bytes, _) => (plain_bytes.unwrap_or(0), Compression::UNCOMPRESSED),
    };
    let (plain, packed) = stored.split_at_checked(plain_bytes)?;
    let bytes = scratch.unpack_any(compression, packed, unpacked_bytes.saturating_sub(plain_bytes))?;
    fields.split(plain, bytes, highest_levels(column))
}

/// Returns the maximum repetition and definition levels.
fn highest_levels(column: &ColumnChunkMetaData) -> [i16; 2] {
    let column = column.column_descr();
    [column.max_rep_level(), column.max_def_level()]
}

impl Dictionary<'_> {
    /// Returns the lengths of its texts, as far as they can be read.
    fn lengths(&self, compression: Compression) -> Vec<u32> {
        let mut scratch = Scratch::default();
        let mut rest = scratch.unpack_any(compression, self.stored, self.unpacked_bytes).unwrap_or_default();
        let mut next = || {
            let (len, after) = rest.split_first_chunk()?;
            let len = u32::from_le_bytes(*len);
            rest = after.get(len as usize..)?;
            Some(len)
        };
        (0..self.num_values).map_while(|_| next()).collect()
    }
}

/// Returns the minimum bytes of a dictionary's value.
fn least_bytes(column: &ColumnChunkMetaData) -> usize {
    match column.column_type() {
        PhysicalType::BOOLEAN => 0,
        PhysicalType::INT32 | PhysicalType::FLOAT | PhysicalType::BYTE_ARRAY => 4,
        PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
        PhysicalType::INT96 => 12,
        PhysicalType::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.column_descr().type_length()).unwrap_or(0).max(1),
    }
}
