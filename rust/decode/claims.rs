//! What pages claim, checked before any decoder believes it.
//!
//! The `parquet` crate takes memory for what a header claims, and time for lists that have no bytes. So the headers of all
//! pages that were fetched are read first, one after another, which costs less than a microsecond for each. What is refused
//! here no writer writes.

use std::ops::Range;

use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::metadata::ColumnChunkMetaData;

use super::body::Body;
use super::codec::{self, Scratch};
use super::delta;
use super::header::{DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, Fields, INDEX_PAGE, Lengths};
use super::hybrid::Hybrid;
use super::row_texts::{Numbers, RowTexts};
use crate::dataset::Fragment;

/// What a text takes beside its bytes while it is decoded from lengths: two of them.
const LENGTH_BYTES: u64 = 8;

const MALFORMED: &str = "the header of a page is malformed";
const STRANGE: &str = "a page claims a strange number of values or bytes";

/// What the pages of a leaf column claim.
#[derive(Debug)]
pub(crate) struct Claims<'a> {
    column: &'a ColumnChunkMetaData,
    /// Parts of it, each of whole pages.
    parts: Vec<&'a [u8]>,
    /// What they may take.
    memory_bytes: u64,
    num_values: u64,
    /// The largest page out of its compression.
    largest_bytes: u64,
    dictionary: Option<Dictionary<'a>>,
    /// What a text may come to that repeats the beginning of the one before.
    longest_repeated: u64,
    scratch: Scratch,
}

/// A page of the values that others number.
#[derive(Debug)]
struct Dictionary<'a> {
    stored: &'a [u8],
    unpacked_bytes: usize,
    num_values: usize,
}

impl<'a> Claims<'a> {
    /// Reads the headers of a leaf column's pages. `fetched` are parts of the object, each of whole pages.
    ///
    /// # Errors
    ///
    /// Says what cannot be.
    pub(crate) fn read(
        fragment: &'a Fragment,
        row_group: u32,
        leaf: usize,
        fetched: impl Iterator<Item = (&'a Range<u64>, &'a Body)>,
        memory_bytes: u64,
    ) -> Result<Self, String> {
        let column = fragment.row_group(row_group).column(leaf);
        let listed = fragment.offset_index(row_group, leaf).map_or(&[][..], |index| index.page_locations());
        let chunk = fragment.chunk_range(row_group, leaf);
        let mut claims = Self {
            column,
            parts: Vec::new(),
            memory_bytes,
            num_values: 0,
            largest_bytes: 0,
            dictionary: None,
            longest_repeated: 0,
            scratch: Scratch::default(),
        };
        let (mut starts, mut fetched_bytes) = (Vec::new(), 0);
        for (range, body) in fetched.filter(|(range, _)| chunk.start <= range.start && range.end <= chunk.end) {
            starts.clear();
            fetched_bytes += range.end - range.start;
            match body {
                Body::Here(bytes) => {
                    let mut rest = &bytes[..];
                    claims.parts.push(rest);
                    while !rest.is_empty() {
                        starts.push(range.end - rest.len() as u64);
                        rest = claims.add_first(rest)?;
                    }
                }
                Body::InFile(pages) => {
                    let mut start = range.start;
                    for page in (0..).map_while(|place| pages.page(place)) {
                        starts.push(start);
                        start = page.range.end;
                        let (fields, _) = Fields::parse(&page.header).ok_or(MALFORMED)?;
                        claims.add(&fields, &[])?;
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
        if fetched_bytes == chunk.end - chunk.start && claims.num_values < claims.all_values() {
            return Err(claims.miscounted());
        }
        Ok(claims)
    }

    /// Takes the page that `bytes` begin with; returns what follows it.
    fn add_first(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let (fields, header_bytes) = Fields::parse(bytes).ok_or(MALFORMED)?;
        let stored_bytes = fields.stored_bytes().ok_or(STRANGE)?;
        let body = &bytes[header_bytes..];
        let (stored, rest) = body
            .split_at_checked(stored_bytes)
            .ok_or_else(|| format!("a page claims {stored_bytes} bytes of {}", body.len()))?;
        self.add(&fields, stored)?;
        Ok(rest)
    }

    /// Takes a page; `stored` are its bytes, or none of those of a page in a file, which have nothing to look at.
    fn add(&mut self, fields: &Fields, stored: &'a [u8]) -> Result<(), String> {
        let claimed = fields.stored_bytes().zip(fields.unpacked_bytes()).zip(fields.num_values());
        let ((stored_bytes, unpacked_bytes), num_values) = claimed.ok_or(STRANGE)?;
        // What is not compressed stays where it was fetched.
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let unpacked_bytes = if is_compressed { unpacked_bytes } else { stored_bytes };
        if is_compressed && !self.is_as_claimed(fields, stored, unpacked_bytes) {
            return Err(format!("a page unpacks to more than the {unpacked_bytes} bytes that it claims"));
        }
        match fields.page_type() {
            Some(DATA_PAGE | DATA_PAGE_V2) => {
                self.num_values += num_values as u64;
                if self.num_values > self.all_values() {
                    return Err(self.miscounted());
                }
                let mut page_bytes = if is_compressed { unpacked_bytes as u64 } else { 0 };
                if let Some(lengths) = fields.lengths() {
                    page_bytes = page_bytes.saturating_add(num_values as u64 * LENGTH_BYTES);
                    if page_bytes <= self.memory_bytes {
                        self.check_lengths(lengths, fields, stored, unpacked_bytes, num_values)?;
                    }
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
            Some(INDEX_PAGE) if stored_bytes > 0 => return Err("a page is of indexes".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Looks at the lengths that a data page begins with. Whether it unpacks is seen by who decodes it.
    fn check_lengths(
        &mut self,
        lengths: Lengths,
        fields: &Fields,
        stored: &[u8],
        unpacked_bytes: usize,
        num_values: usize,
    ) -> Result<(), String> {
        let opened = open(self.column, &mut self.scratch, fields, stored, unpacked_bytes);
        let Some((_, values)) = opened.filter(|(_, values)| !values.is_empty()) else { return Ok(()) };
        let (first, rest) = delta::longest(values, num_values)?;
        if lengths == Lengths::OfPrefixesAndTexts {
            let (second, _) = delta::longest(rest, num_values)?;
            self.longest_repeated = self.longest_repeated.max(u64::from(first) + u64::from(second));
        }
        Ok(())
    }

    /// Returns whether a page unpacks to what it claims, as far as the `parquet` crate would not see that it does not.
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

    /// Returns the bytes that the dictionary and the largest page take out of their compression: so much is held at once.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let dictionary = self.dictionary.as_ref().filter(|_| is_compressed);
        self.largest_bytes.saturating_add(dictionary.map_or(0, |dictionary| dictionary.unpacked_bytes as u64))
    }

    /// Returns about the bytes that texts which are stored once may come to, at most, for each of `num_rows`; looks at them
    /// only where that may be too many.
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

    /// Returns what the texts of one row come to that are stored once, at most: of what cannot be read, each takes `longest`.
    fn largest_row(&self, longest: u64) -> u64 {
        let lengths = self.dictionary.as_ref().map(|dictionary| dictionary.lengths(self.column.compression()));
        let (mut texts, mut scratch) = (RowTexts::default(), Scratch::default());
        for (fields, stored) in self.data_pages() {
            let (num_values, lengths) = (fields.num_values().unwrap_or(0), lengths.as_deref().unwrap_or_default());
            if add_texts(&mut texts, self.column, &mut scratch, &fields, stored, num_values, lengths).is_none() {
                texts.add_text(longest.saturating_mul(num_values as u64));
            }
        }
        texts.most_bytes()
    }

    /// Refuses pages of lists that have fewer levels than values: where it passes over rows, the `parquet` crate waits for the
    /// missing ones for ever.
    ///
    /// # Errors
    ///
    /// Says what cannot be.
    pub(crate) fn check_levels(&self) -> Result<(), String> {
        let mut scratch = Scratch::default();
        let max = highest_levels(self.column);
        for (fields, stored) in self.data_pages().filter(|(fields, _)| !fields.has_old_levels(max)) {
            let (num_values, unpacked_bytes) = (fields.num_values().unwrap_or(0), fields.unpacked_bytes().unwrap_or(0));
            // What cannot be unpacked is for the decoder to say.
            let Some((levels, _)) = open(self.column, &mut scratch, &fields, stored, unpacked_bytes) else { continue };
            for (levels, max) in levels.into_iter().zip(max).filter(|(_, max)| *max > 0) {
                let width = (i16::BITS - max.leading_zeros()) as usize;
                let all = Hybrid::new(0, width).and_then(|mut hybrid| hybrid.skip(levels, num_values));
                all.map_err(|_| format!("a page has fewer levels than the {num_values} values that it claims"))?;
            }
        }
        Ok(())
    }

    /// Returns the data pages that are here, with what is stored of each.
    fn data_pages(&self) -> impl Iterator<Item = (Fields, &'a [u8])> {
        let pages = self.parts.iter().flat_map(|part| {
            let mut rest = *part;
            // All was read before.
            std::iter::from_fn(move || {
                let (fields, header_bytes) = Fields::parse(rest).filter(|_| !rest.is_empty())?;
                let (stored, after) = rest[header_bytes..].split_at_checked(fields.stored_bytes()?)?;
                rest = after;
                Some((fields, stored))
            })
        });
        pages.filter(|(fields, _)| matches!(fields.page_type(), Some(DATA_PAGE | DATA_PAGE_V2)))
    }
}

/// Adds the texts of a data page that are stored elsewhere: in a dictionary whose texts have `lengths`, or before.
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
            // There is nothing but NULL.
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

/// Returns the levels and the values of a data page, out of its compression.
fn open<'p>(
    column: &ColumnChunkMetaData,
    scratch: &'p mut Scratch,
    fields: &Fields,
    stored: &'p [u8],
    unpacked_bytes: usize,
) -> Option<([&'p [u8]; 2], &'p [u8])> {
    let (plain_bytes, compression) = match (fields.plain_bytes(), column.compression()) {
        (Some(plain_bytes), compression) if compression != Compression::UNCOMPRESSED => (plain_bytes, compression),
        // Nothing of it is compressed.
        (plain_bytes, _) => (plain_bytes.unwrap_or(0), Compression::UNCOMPRESSED),
    };
    let (plain, packed) = stored.split_at_checked(plain_bytes)?;
    let bytes = scratch.unpack_any(compression, packed, unpacked_bytes.saturating_sub(plain_bytes))?;
    fields.split(plain, bytes, highest_levels(column))
}

/// Returns the highest repetition and definition levels.
fn highest_levels(column: &ColumnChunkMetaData) -> [i16; 2] {
    let column = column.column_descr();
    [column.max_rep_level(), column.max_def_level()]
}

impl Dictionary<'_> {
    /// Returns the bytes of its texts, as far as they can be read.
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

/// Returns the bytes of a dictionary's value at least.
fn least_bytes(column: &ColumnChunkMetaData) -> usize {
    match column.column_type() {
        PhysicalType::BOOLEAN => 0,
        PhysicalType::INT32 | PhysicalType::FLOAT | PhysicalType::BYTE_ARRAY => 4,
        PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
        PhysicalType::INT96 => 12,
        PhysicalType::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.column_descr().type_length()).unwrap_or(0).max(1),
    }
}
