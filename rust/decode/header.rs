//! The header of a page, as far as decoding needs it.

use std::ops::Range;

use crate::snapshot::thrift::{Reader, kind, zigzag};

use super::{Fit, Misfit};

/// Maximum values that a page may announce; larger claims are left to the `parquet` crate, which finds out as it goes.
const MAX_PAGE_VALUES: i64 = 1 << 25;

/// Maximum nesting of structs in a header; statistics are the second level.
const MAX_DEPTH: usize = 8;

pub(super) const DATA_PAGE: i64 = 0;
pub(super) const INDEX_PAGE: i64 = 1;
pub(super) const DICTIONARY_PAGE: i64 = 2;
pub(super) const DATA_PAGE_V2: i64 = 3;

const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const BIT_PACKED: i64 = 4;
const DELTA_BINARY_PACKED: i64 = 5;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
const BYTE_STREAM_SPLIT: i64 = 9;
const LAST_ENCODING: i64 = BYTE_STREAM_SPLIT;

/// The encoding of a page's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// One after another.
    Plain,
    /// As keys of a dictionary.
    Dictionary,
    /// The first bytes of all, then the second ones, and so on: `BYTE_STREAM_SPLIT`.
    Streams,
    /// In runs and packed groups, like levels: `RLE`.
    Runs,
    /// As differences to the previous one: `DELTA_BINARY_PACKED`.
    Differences,
    /// Texts after the lengths of all: `DELTA_LENGTH_BYTE_ARRAY`.
    Lengths,
    /// What each text does not share with the previous one: `DELTA_BYTE_ARRAY`.
    Prefixes,
}

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The values that keys refer to.
    Dictionary,
    /// Levels and values, compressed together.
    V1 {
        encoding: Encoding,
        /// The levels are stored as runs. Some writers do not say so for levels that they do not store.
        are_reps_runs: bool,
        are_defs_runs: bool,
    },
    /// Levels, then values, of which only the latter may be compressed.
    V2 {
        encoding: Encoding,
        num_rows: usize,
        num_nulls: usize,
        rep_bytes: usize,
        def_bytes: usize,
        is_compressed: bool,
    },
    /// Nothing that is needed.
    Index,
}

impl Kind {
    /// Returns the encoding of a data page's values, if its levels have the required encoding.
    pub(super) fn encoding(self, has_reps: bool, has_defs: bool) -> Fit<Encoding> {
        match self {
            Self::V1 { are_reps_runs, are_defs_runs, .. }
                if has_reps && !are_reps_runs || has_defs && !are_defs_runs =>
            {
                Err(Misfit("levels are stored in an old way"))
            }
            Self::V1 { encoding, .. } | Self::V2 { encoding, .. } => Ok(encoding),
            Self::Dictionary | Self::Index => Err(Misfit("a page is not a data page")),
        }
    }
}

/// The header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: Kind,
    /// Number of values or, in columns that have them, of levels.
    pub(super) num_values: usize,
    pub(super) stored_bytes: usize,
    pub(super) unpacked_bytes: usize,
    pub(super) crc: Option<u32>,
}

/// The meaning of the lengths that a page begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    /// Lengths of texts.
    OfTexts,
    /// How much each text shares with the previous one, and then how much it adds.
    OfPrefixesAndTexts,
}

/// Additional claims of a version 2 data page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Second {
    pub(super) num_rows: usize,
    /// Missing where parquet-java collected no statistics: it wrote -1.
    pub(super) num_nulls: Option<usize>,
    /// The bytes of repetition and definition levels, which are never compressed.
    pub(super) level_bytes: [usize; 2],
    pub(super) is_compressed: bool,
}

/// Fields of a struct by number; `None` for missing ones.
type Numbers = [Option<i64>; 9];

/// The numbers and Booleans in the serialized header of a page.
///
/// The `parquet` crate goes by the numbers of fields and not by their types, and skips Booleans in a list without
/// reading a byte. So both are refused if they could make a difference: what is accepted has only one interpretation.
#[derive(Debug)]
pub(super) struct Fields {
    numbers: Numbers,
    parts: [Option<Numbers>; 9],
}

impl Fields {
    /// The structs specific to a kind of page.
    const PARTS: Range<i16> = 5..9;

    /// Parses the header at the start of `bytes`, and returns it with its length.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut reader = Reader { bytes };
        let mut parts = [None::<Numbers>; 9];
        let known = Known { ints: 1..5, structs: Self::PARTS, ..Known::default() };
        let numbers = read_struct(&mut reader, &known, |number, reader| {
            let Some(part) = usize::try_from(number).ok().and_then(|number| parts.get_mut(number)) else {
                return skip(reader, kind::STRUCT, 1);
            };
            let known = match number {
                5 => Known { ints: 1..5, ..Known::default() },
                7 => Known { ints: 1..3, bools: 3..4, ..Known::default() },
                8 => Known { ints: 1..7, bools: 7..8, ..Known::default() },
                _ => Known::default(),
            };
            *part = Some(read_struct(reader, &known, |_, reader| skip(reader, kind::STRUCT, 1))?);
            Some(())
        })?;
        Some((Self { numbers, parts }, bytes.len() - reader.bytes.len()))
    }

    /// Returns the number of the page's type.
    pub(super) fn page_type(&self) -> Option<i64> {
        self.numbers[1]
    }

    /// Returns the size of the page after its header.
    pub(super) fn stored_bytes(&self) -> Option<usize> {
        length(self.numbers[3]).ok()
    }

    /// Returns the decompressed size of the page.
    pub(super) fn unpacked_bytes(&self) -> Option<usize> {
        length(self.numbers[2]).ok()
    }

    /// Returns the size of levels that precede the compressed bytes; `None` if there are none.
    pub(super) fn plain_bytes(&self) -> Option<usize> {
        // The `parquet` crate does not check which kind of page it is.
        let Some([_, _, _, _, _, def_bytes, rep_bytes, is_compressed, _]) = self.parts[8] else { return Some(0) };
        let plain_bytes = length(def_bytes).ok()?.checked_add(length(rep_bytes).ok()?);
        plain_bytes.filter(|_| is_compressed != Some(0))
    }

    /// Returns whether the page has a checksum, which does not cover its header.
    pub(super) fn has_checksum(&self) -> bool {
        self.numbers[4].is_some()
    }

    /// Returns a data page's encoding as a bit; dictionary keys have two, one for each of their names.
    pub(super) fn encoding_bits(&self) -> Option<i64> {
        match self.encoding()? {
            PLAIN_DICTIONARY | RLE_DICTIONARY => Some(1 << PLAIN_DICTIONARY | 1 << RLE_DICTIONARY),
            number => 1_i64.checked_shl(u32::try_from(number).ok()?),
        }
    }

    /// Returns the number of a data page's encoding.
    fn encoding(&self) -> Option<i64> {
        match self.page_type()? {
            DATA_PAGE => self.parts[5]?[2],
            DATA_PAGE_V2 => self.parts[8]?[4],
            _ => None,
        }
    }

    /// Returns the kind of delta-encoded lengths that a data page's values begin with, if any.
    pub(super) fn lengths(&self) -> Option<Lengths> {
        match self.encoding()? {
            DELTA_LENGTH_BYTE_ARRAY => Some(Lengths::OfTexts),
            DELTA_BYTE_ARRAY => Some(Lengths::OfPrefixesAndTexts),
            _ => None,
        }
    }

    /// Returns whether a data page's values are dictionary keys.
    pub(super) fn is_of_dictionary(&self) -> bool {
        matches!(self.encoding(), Some(PLAIN_DICTIONARY | RLE_DICTIONARY))
    }

    /// Returns whether a data page's values are plain.
    pub(super) fn is_plain(&self) -> bool {
        self.encoding() == Some(PLAIN)
    }

    /// Returns whether a data page's values are stored byte by byte: the first bytes of all, then the second ones.
    pub(super) fn is_split_by_bytes(&self) -> bool {
        self.encoding() == Some(BYTE_STREAM_SPLIT)
    }

    /// Returns whether a data page's repetition and definition levels, if it has any, use the deprecated encoding.
    pub(super) fn are_levels_old(&self) -> [bool; 2] {
        match self.parts[5] {
            Some([_, _, _, def_levels, rep_levels, ..]) if self.page_type() == Some(DATA_PAGE) => {
                [rep_levels, def_levels].map(|encoding| encoding == Some(BIT_PACKED))
            }
            _ => [false; 2],
        }
    }

    /// Returns whether levels of a data page, whose maxima are `max`, use the deprecated encoding.
    pub(super) fn has_old_levels(&self, max: [i16; 2]) -> bool {
        self.are_levels_old().into_iter().zip(max).any(|(is_old, max)| is_old && max > 0)
    }

    /// Returns the claims of a version 2 data page; `None` for other pages, which must not have any.
    pub(super) fn second(&self) -> Option<Second> {
        let [_, _, num_nulls, num_rows, _, def_bytes, rep_bytes, is_compressed, _] = self.parts[8]?;
        Some(Second {
            num_rows: length(num_rows).ok()?,
            num_nulls: length(num_nulls).ok(),
            level_bytes: [length(rep_bytes).ok()?, length(def_bytes).ok()?],
            is_compressed: is_compressed != Some(0),
        })
    }

    /// Returns whether the claims of version 2 are present exactly where they belong.
    pub(super) fn is_of_one_version(&self) -> bool {
        self.parts[8].is_some() == (self.page_type() == Some(DATA_PAGE_V2))
    }

    /// Splits a data page into its levels, whose maxima are `max`, and its values: `plain` has what
    /// [`Self::plain_bytes`] counts, `bytes` the rest.
    pub(super) fn split<'p>(
        &self,
        plain: &'p [u8],
        bytes: &'p [u8],
        max: [i16; 2],
    ) -> Option<([&'p [u8]; 2], &'p [u8])> {
        if self.page_type() == Some(DATA_PAGE_V2) {
            let [_, _, _, _, _, def_bytes, rep_bytes, ..] = self.parts[8]?;
            let (def_bytes, rep_bytes) = (length(def_bytes).ok()?, length(rep_bytes).ok()?);
            let (levels, values) = match plain.is_empty() {
                true => bytes.split_at_checked(def_bytes.checked_add(rep_bytes)?)?,
                false => (plain, bytes),
            };
            let (reps, defs) = levels.split_at_checked(rep_bytes)?;
            return Some(([reps, defs], values));
        }
        let [_, num_values, _, def_levels, rep_levels, ..] = self.parts[5]?;
        let (mut levels, mut rest) = ([&bytes[..0]; 2], bytes);
        for (kind, encoding) in [rep_levels, def_levels].into_iter().enumerate().filter(|(kind, _)| max[*kind] > 0) {
            let len = match encoding? {
                BIT_PACKED => {
                    let width = (i16::BITS - max[kind].leading_zeros()) as usize;
                    length(num_values).ok()?.checked_mul(width)?.div_ceil(8)
                }
                _ => {
                    let (len, after) = rest.split_first_chunk()?;
                    rest = after;
                    u32::from_le_bytes(*len) as usize
                }
            };
            (levels[kind], rest) = rest.split_at_checked(len)?;
        }
        Some((levels, rest))
    }

    /// Returns the number of values or, in columns that have them, of levels.
    pub(super) fn num_values(&self) -> Option<usize> {
        let part = match self.page_type()? {
            DATA_PAGE => self.parts[5],
            DICTIONARY_PAGE => self.parts[7],
            DATA_PAGE_V2 => self.parts[8],
            _ => return Some(0),
        };
        length(part?[1]).ok()
    }
}

impl PageHeader {
    /// Parses the header at the start of `bytes`, and returns it with its length.
    pub(super) fn parse(bytes: &[u8]) -> Fit<(Self, usize)> {
        const MALFORMED: Misfit = Misfit("the header of a page is malformed");
        let (Fields { numbers, parts }, len) = Fields::parse(bytes).ok_or(MALFORMED)?;
        let [_, page_type, unpacked, stored, crc, ..] = numbers;
        let (kind, num_values) = match page_type {
            Some(DATA_PAGE) => of_v1(&parts[5].ok_or(MALFORMED)?)?,
            Some(INDEX_PAGE) => (Kind::Index, 0),
            Some(DICTIONARY_PAGE) => of_dictionary(&parts[7].ok_or(MALFORMED)?)?,
            Some(DATA_PAGE_V2) => of_v2(&parts[8].ok_or(MALFORMED)?)?,
            _ => return Err(Misfit("a page is of an unknown kind")),
        };
        let header = Self {
            kind,
            num_values,
            stored_bytes: length(stored)?,
            unpacked_bytes: length(unpacked)?,
            // The same 32 bits, signed in thrift.
            crc: crc.and_then(|crc| i32::try_from(crc).ok()).map(i32::cast_unsigned),
        };
        Ok((header, len))
    }
}

/// The fields of a struct with a required type, by number.
#[derive(Debug, Default)]
struct Known {
    ints: Range<i16>,
    bools: Range<i16>,
    structs: Range<i16>,
}

impl Known {
    fn allows(&self, number: i16, kind: u8) -> bool {
        (!self.ints.contains(&number) || kind == kind::I32)
            && (!self.bools.contains(&number) || matches!(kind, kind::TRUE | kind::FALSE))
            && (!self.structs.contains(&number) || kind == kind::STRUCT)
    }
}

/// Reads a struct's numbers and Booleans; nested structs are passed to `nested`.
fn read_struct(
    reader: &mut Reader<'_>,
    known: &Known,
    mut nested: impl FnMut(i16, &mut Reader<'_>) -> Option<()>,
) -> Option<Numbers> {
    let (mut numbers, mut field) = (Numbers::default(), 0);
    loop {
        let head = *reader.bytes.first()?;
        let Some((number, kind)) = reader.field(&mut field) else {
            return (head == 0).then_some(numbers);
        };
        if !known.allows(number, kind) {
            return None;
        }
        let value = match kind {
            kind::I32 => zigzag(reader.varint()?),
            kind::TRUE => 1,
            kind::FALSE => 0,
            kind::STRUCT => {
                nested(number, reader)?;
                continue;
            }
            other => {
                skip(reader, other, 0)?;
                continue;
            }
        };
        if let Some(place) = usize::try_from(number).ok().and_then(|number| numbers.get_mut(number)) {
            *place = Some(value);
        }
    }
}

/// Skips a field. No header has a collection.
fn skip(reader: &mut Reader<'_>, kind: u8, depth: usize) -> Option<()> {
    match kind {
        kind::LIST | kind::SET | kind::MAP => None,
        kind::STRUCT if depth == MAX_DEPTH => None,
        kind::STRUCT => {
            let mut field = 0;
            loop {
                let head = *reader.bytes.first()?;
                match reader.field(&mut field) {
                    Some((_, kind)) => skip(reader, kind, depth + 1)?,
                    None => return (head == 0).then_some(()),
                }
            }
        }
        other => reader.skip(other, 0),
    }
}

fn of_v1(numbers: &Numbers) -> Fit<(Kind, usize)> {
    let [_, num_values, encoding, def_levels, rep_levels, ..] = *numbers;
    let is_known = |encoding| matches!(encoding, Some(PLAIN | PLAIN_DICTIONARY..=LAST_ENCODING));
    if !is_known(def_levels) || !is_known(rep_levels) {
        return Err(Misfit("levels are in an unknown encoding"));
    }
    let (are_reps_runs, are_defs_runs) = (rep_levels == Some(RLE), def_levels == Some(RLE));
    Ok((Kind::V1 { encoding: encoding_of(encoding)?, are_reps_runs, are_defs_runs }, count(num_values)?))
}

fn of_v2(numbers: &Numbers) -> Fit<(Kind, usize)> {
    let [_, num_values, num_nulls, num_rows, encoding, def_bytes, rep_bytes, is_compressed, _] = *numbers;
    let kind = Kind::V2 {
        encoding: encoding_of(encoding)?,
        num_rows: count(num_rows)?,
        num_nulls: count(num_nulls)?,
        rep_bytes: length(rep_bytes)?,
        def_bytes: length(def_bytes)?,
        is_compressed: is_compressed != Some(0),
    };
    Ok((kind, count(num_values)?))
}

fn of_dictionary(numbers: &Numbers) -> Fit<(Kind, usize)> {
    let [_, num_values, encoding, ..] = *numbers;
    match encoding {
        Some(PLAIN | PLAIN_DICTIONARY) => Ok((Kind::Dictionary, count(num_values)?)),
        _ => Err(Misfit("a dictionary is in an unexpected encoding")),
    }
}

fn encoding_of(encoding: Option<i64>) -> Fit<Encoding> {
    match encoding {
        Some(PLAIN) => Ok(Encoding::Plain),
        Some(PLAIN_DICTIONARY | RLE_DICTIONARY) => Ok(Encoding::Dictionary),
        Some(BYTE_STREAM_SPLIT) => Ok(Encoding::Streams),
        Some(RLE) => Ok(Encoding::Runs),
        Some(DELTA_BINARY_PACKED) => Ok(Encoding::Differences),
        Some(DELTA_LENGTH_BYTE_ARRAY) => Ok(Encoding::Lengths),
        Some(DELTA_BYTE_ARRAY) => Ok(Encoding::Prefixes),
        _ => Err(Misfit("a page is in an unexpected encoding")),
    }
}

fn count(number: Option<i64>) -> Fit<usize> {
    let number = number.filter(|&number| number <= MAX_PAGE_VALUES).and_then(|number| usize::try_from(number).ok());
    number.ok_or(Misfit("a page claims an implausible number of values"))
}

fn length(number: Option<i64>) -> Fit<usize> {
    let number = number.and_then(|number| i32::try_from(number).ok()).and_then(|number| usize::try_from(number).ok());
    number.ok_or(Misfit("a page claims an implausible length"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header of a version 1 page with 300 values, as parquet-rs writes it.
    const V1: [u8; 18] = [0x15, 0, 0x15, 0xc8, 1, 0x15, 0x64, 0x2c, 0x15, 0xd8, 4, 0x15, 16, 0x15, 6, 0x15, 6, 0];

    #[test]
    fn what_another_parser_might_read_otherwise_is_refused() {
        let with = |fields: &[u8]| [&V1[..17], fields, &[0, 0]].concat();
        assert!(Fields::parse(&with(&[])).is_some());
        // Statistics, and unknown fields: a number, a text, a Boolean.
        assert!(Fields::parse(&with(&[0x1c, 0x18, 1, b'x', 0x11, 0, 0x15, 2, 0x18, 1, b'x', 0x11])).is_some());
        // A list of 2^31 - 1 Booleans, alone and in statistics.
        let list = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 7];
        assert!(Fields::parse(&with(&list)).is_none());
        assert!(Fields::parse(&with(&[&[0x1c][..], &list, &[0]].concat())).is_none());
        // A length that is a text, and a page that is a number.
        assert!(Fields::parse(&[0x15, 0, 0x18, 1, b'x', 0x15, 0x64, 0]).is_none());
        assert!(Fields::parse(&[0x15, 0, 0x15, 2, 0x15, 2, 0x25, 2, 0]).is_none());
        // Invalid flags of a dictionary and of a version 2 page.
        let flagged =
            |part: &[u8], flag: &[u8]| Fields::parse(&[&[0x15, 4, 0x15, 2, 0x15, 2], part, flag, &[0, 0]].concat());
        for part in [&[0x4c, 0x15, 2, 0x15, 0][..], &[0x5c, 0x15, 2, 0x15, 2, 0x15, 2, 0x15, 0, 0x15, 0, 0x15, 0]] {
            assert!(flagged(part, &[0x11]).is_some() && flagged(part, &[0x12]).is_some());
            assert!(flagged(part, &[0x15, 2]).is_none());
            assert!(flagged(part, &[0x17, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
        }
        // Endless structs.
        assert!(Fields::parse(&[&V1[..17], &[0x1c; 1000]].concat()).is_none());
    }

    #[test]
    fn a_header_tells_lengths_and_encoding() {
        let bytes = [&V1[..], &[0, 9, 9]].concat();
        let (header, len) = PageHeader::parse(&bytes).unwrap();
        let kind = Kind::V1 { encoding: Encoding::Dictionary, are_reps_runs: true, are_defs_runs: true };
        assert_eq!(header, PageHeader { kind, num_values: 300, stored_bytes: 50, unpacked_bytes: 100, crc: None });
        assert_eq!(len, 19);
        assert!(PageHeader::parse(&V1).is_err());
    }

    proptest! {
        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = PageHeader::parse(&noise);
            let _ = PageHeader::parse(&[&V1[..9], &noise].concat());
        }
    }
}
