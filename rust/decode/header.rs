//! The header of a page, as far as decoding needs it.

use crate::dataset::thrift::{Reader, kind, zigzag};

use super::{Fit, Misfit};

/// Values that a page may announce; what claims more is left to the `parquet` crate, which finds out as it goes.
const MAX_PAGE_VALUES: i64 = 1 << 25;

const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
const LAST_ENCODING: i64 = 9;

/// How the values of a page are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// One after another.
    Plain,
    /// As numbers of the values of a dictionary.
    Dictionary,
}

/// What a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The values that others number.
    Dictionary,
    /// Levels and values, compressed together.
    V1 {
        encoding: Encoding,
        /// The levels are stored as runs. Some writers do not say so of levels that they do not store.
        are_reps_runs: bool,
        are_defs_runs: bool,
    },
    /// Levels, then values, which alone may be compressed.
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
    /// Returns how a data page's values are stored, if the levels that it has are stored as they must be.
    pub(super) fn encoding(self, has_reps: bool, has_defs: bool) -> Fit<Encoding> {
        match self {
            Self::V1 { are_reps_runs, are_defs_runs, .. }
                if has_reps && !are_reps_runs || has_defs && !are_defs_runs =>
            {
                Err(Misfit("levels are stored in an old way"))
            }
            Self::V1 { encoding, .. } | Self::V2 { encoding, .. } => Ok(encoding),
            Self::Dictionary | Self::Index => Err(Misfit("a page is not of data")),
        }
    }
}

/// The header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: Kind,
    /// Values or, in columns that have them, levels.
    pub(super) num_values: usize,
    pub(super) stored_bytes: usize,
    pub(super) unpacked_bytes: usize,
    pub(super) crc: Option<u32>,
}

/// Fields of a struct by their numbers; `None` what it lacks.
type Numbers = [Option<i64>; 9];

impl PageHeader {
    /// Parses the header that `bytes` begin with, and returns it with its length.
    pub(super) fn parse(bytes: &[u8]) -> Fit<(Self, usize)> {
        const MALFORMED: Misfit = Misfit("the header of a page is malformed");
        let mut reader = Reader { bytes };
        let mut parts = [None::<Numbers>; 9];
        let numbers = read_struct(&mut reader, |number, reader| {
            let part = parts.get_mut(usize::try_from(number).ok()?)?;
            *part = Some(read_struct(reader, |_, reader| reader.skip(kind::STRUCT, 1))?);
            Some(())
        })
        .ok_or(MALFORMED)?;
        let [_, page_type, unpacked, stored, crc, ..] = numbers;
        let (kind, num_values) = match page_type {
            Some(0) => of_v1(&parts[5].ok_or(MALFORMED)?)?,
            Some(1) => (Kind::Index, 0),
            Some(2) => of_dictionary(&parts[7].ok_or(MALFORMED)?)?,
            Some(3) => of_v2(&parts[8].ok_or(MALFORMED)?)?,
            _ => return Err(Misfit("a page is of an unknown kind")),
        };
        let header = Self {
            kind,
            num_values,
            stored_bytes: length(stored)?,
            unpacked_bytes: length(unpacked)?,
            // The same 32 bits, in thrift signed.
            crc: crc.and_then(|crc| i32::try_from(crc).ok()).map(i32::cast_unsigned),
        };
        Ok((header, bytes.len() - reader.bytes.len()))
    }
}

/// Reads a struct's numbers and Booleans; structs in it are left to `nested`.
fn read_struct(reader: &mut Reader<'_>, mut nested: impl FnMut(i16, &mut Reader<'_>) -> Option<()>) -> Option<Numbers> {
    let (mut numbers, mut field) = (Numbers::default(), 0);
    loop {
        let head = *reader.bytes.first()?;
        let Some((number, kind)) = reader.field(&mut field) else {
            return (head == 0).then_some(numbers);
        };
        let value = match kind {
            kind::I32 => zigzag(reader.varint()?),
            kind::TRUE => 1,
            kind::FALSE => 0,
            kind::STRUCT => {
                nested(number, reader)?;
                continue;
            }
            other => {
                reader.skip(other, 0)?;
                continue;
            }
        };
        if let Some(place) = usize::try_from(number).ok().and_then(|number| numbers.get_mut(number)) {
            *place = Some(value);
        }
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
        _ => Err(Misfit("a dictionary is in another encoding")),
    }
}

fn encoding_of(encoding: Option<i64>) -> Fit<Encoding> {
    match encoding {
        Some(PLAIN) => Ok(Encoding::Plain),
        Some(PLAIN_DICTIONARY | RLE_DICTIONARY) => Ok(Encoding::Dictionary),
        _ => Err(Misfit("a page is in another encoding")),
    }
}

fn count(number: Option<i64>) -> Fit<usize> {
    let number = number.filter(|&number| number <= MAX_PAGE_VALUES).and_then(|number| usize::try_from(number).ok());
    number.ok_or(Misfit("a page claims a strange number of values"))
}

fn length(number: Option<i64>) -> Fit<usize> {
    let number = number.and_then(|number| i32::try_from(number).ok()).and_then(|number| usize::try_from(number).ok());
    number.ok_or(Misfit("a page claims a strange length"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header of a first version's page of 300 values, as parquet-rs writes it.
    const V1: [u8; 18] = [0x15, 0, 0x15, 0xc8, 1, 0x15, 0x64, 0x2c, 0x15, 0xd8, 4, 0x15, 16, 0x15, 6, 0x15, 6, 0];

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
