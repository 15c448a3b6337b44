//! What pages claim, checked before any decoder believes it.
//!
//! The `parquet` crate takes memory for what a header claims, and time for lists that have no bytes. So the headers of all
//! pages that were fetched are read first, one after another, which costs less than a microsecond for each. What is refused
//! here no writer writes.

use std::ops::Range;

use bytes::Bytes;
use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::metadata::ColumnChunkMetaData;

use super::codec::{self, Codec, Scratch};
use super::delta;
use super::header::{DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, Fields, INDEX_PAGE, Lengths};
use crate::dataset::Fragment;

/// What a text takes beside its bytes while it is decoded from lengths: two of them.
const LENGTH_BYTES: u64 = 8;

/// What the pages of a leaf column claim.
#[derive(Debug)]
pub(crate) struct Claims<'a> {
    column: &'a ColumnChunkMetaData,
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
        fetched: impl Iterator<Item = (&'a Range<u64>, &'a Bytes)>,
        memory_bytes: u64,
    ) -> Result<Self, String> {
        let column = fragment.row_group(row_group).column(leaf);
        let listed = fragment.offset_index(row_group, leaf).map_or(&[][..], |index| index.page_locations());
        let chunk = fragment.chunk_range(row_group, leaf);
        let mut claims = Self {
            column,
            memory_bytes,
            num_values: 0,
            largest_bytes: 0,
            dictionary: None,
            longest_repeated: 0,
            scratch: Scratch::default(),
        };
        let mut starts = Vec::new();
        for (range, bytes) in fetched.filter(|(range, _)| chunk.start <= range.start && range.end <= chunk.end) {
            let mut rest = &bytes[..];
            starts.clear();
            while !rest.is_empty() {
                starts.push(range.end - rest.len() as u64);
                rest = claims.add(rest)?;
            }
            // The `parquet` crate goes by the index.
            let offset = |place: usize| listed.get(place).and_then(|page| u64::try_from(page.offset).ok());
            let first = listed.partition_point(|page| u64::try_from(page.offset).is_ok_and(|at| at < range.start));
            let mut inside = (first..).map_while(offset).take_while(|offset| *offset < range.end);
            if let Some(offset) = inside.find(|offset| starts.binary_search(offset).is_err()) {
                return Err(format!("the page index lists a page at byte {offset}, where none begins"));
            }
        }
        Ok(claims)
    }

    /// Takes the page that `bytes` begin with; returns what follows it.
    fn add(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let (fields, header_bytes) = Fields::parse(bytes).ok_or("the header of a page is malformed")?;
        let claimed = fields.stored_bytes().zip(fields.unpacked_bytes()).zip(fields.num_values());
        let ((stored_bytes, unpacked_bytes), num_values) =
            claimed.ok_or("a page claims a strange number of values or bytes")?;
        let body = &bytes[header_bytes..];
        let (stored, rest) = body
            .split_at_checked(stored_bytes)
            .ok_or_else(|| format!("a page claims {stored_bytes} bytes of {}", body.len()))?;
        // What is not compressed stays where it was fetched.
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let unpacked_bytes = if is_compressed { unpacked_bytes } else { stored_bytes };
        if is_compressed && !self.is_as_claimed(&fields, stored, unpacked_bytes) {
            return Err(format!("a page unpacks to more than the {unpacked_bytes} bytes that it claims"));
        }
        match fields.page_type() {
            Some(DATA_PAGE | DATA_PAGE_V2) => {
                self.num_values += num_values as u64;
                if self.num_values > self.all_values() {
                    let (pages, footer) = (self.num_values, self.all_values());
                    return Err(format!("its pages claim {pages} values, its footer {footer}"));
                }
                let mut page_bytes = if is_compressed { unpacked_bytes as u64 } else { 0 };
                if let Some(lengths) = fields.lengths() {
                    page_bytes = page_bytes.saturating_add(num_values as u64 * LENGTH_BYTES);
                    if page_bytes <= self.memory_bytes {
                        self.check_lengths(lengths, &fields, stored, unpacked_bytes, num_values)?;
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
        Ok(rest)
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
        let (plain_bytes, compression) = match (fields.plain_bytes(), self.column.compression()) {
            (Some(plain_bytes), compression) if compression != Compression::UNCOMPRESSED => (plain_bytes, compression),
            // Nothing of it is compressed.
            (plain_bytes, _) => (plain_bytes.unwrap_or(0), Compression::UNCOMPRESSED),
        };
        let Some(packed) = stored.get(plain_bytes..) else { return Ok(()) };
        let num_bytes = unpacked_bytes.saturating_sub(plain_bytes);
        let bytes = match self.scratch.unpack_any(compression, packed, num_bytes) {
            Some(bytes) => bytes,
            None => return Ok(()),
        };
        let column = self.column.column_descr();
        let level_bytes = fields.level_bytes(bytes, [column.max_rep_level(), column.max_def_level()]);
        let Some(bytes) = level_bytes.and_then(|len| bytes.get(len..)).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        let (first, rest) = delta::longest(bytes, num_values)?;
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

    fn all_values(&self) -> u64 {
        u64::try_from(self.column.num_values()).unwrap_or(0)
    }

    /// Returns the bytes that the dictionary and the largest page take out of their compression: so much is held at once.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        let is_compressed = self.column.compression() != Compression::UNCOMPRESSED;
        let dictionary = self.dictionary.as_ref().filter(|_| is_compressed);
        self.largest_bytes.saturating_add(dictionary.map_or(0, |dictionary| dictionary.unpacked_bytes as u64))
    }

    /// Returns about the bytes that texts which are stored once may come to, at most, for each of `num_rows`; looks at those
    /// of a dictionary only where that may be too many.
    pub(crate) fn text_bytes(&self, num_rows: u64) -> u64 {
        if self.column.column_type() != PhysicalType::BYTE_ARRAY {
            return 0;
        }
        let of_dictionary = self.dictionary.as_ref().map_or(0, |dictionary| {
            let all_bytes = dictionary.unpacked_bytes as u64;
            match self.all_values().saturating_mul(all_bytes) > self.memory_bytes {
                true => dictionary.longest(self.column.compression()).unwrap_or(all_bytes),
                false => all_bytes,
            }
        });
        let longest = of_dictionary.max(self.longest_repeated);
        longest.saturating_mul(self.all_values().div_ceil(num_rows.max(1)))
    }
}

impl Dictionary<'_> {
    /// Returns the bytes of the longest text; `None` where another decoder would have to look.
    fn longest(&self, compression: Compression) -> Option<u64> {
        let mut scratch = Scratch::default();
        scratch.unpack(Codec::of(compression)?, self.stored, self.unpacked_bytes).ok()?;
        let (mut rest, mut longest) = (scratch.page(), 0);
        for _ in 0..self.num_values {
            let (len, after) = rest.split_first_chunk()?;
            let len = u32::from_le_bytes(*len);
            longest = longest.max(u64::from(len));
            rest = after.get(len as usize..)?;
        }
        Some(longest)
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
