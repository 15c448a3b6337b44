//! Checks the claims of footers and indexes before a parser trusts them: nesting depths and counts.
//!
//! The parser recurses into a schema and reserves memory for announced counts, and the process would abort if either
//! runs out. So thrift's compact protocol is read here first, strictly: malformed data is refused, and so is a field
//! whose type does not match its number, since the parser would read it anyway and so might find another schema in the
//! same bytes. A schema is a flattened tree: elements in pre-order, each with its number of children.

use std::collections::HashSet;
use std::ops::Range;

use parquet::basic::Type as PhysicalType;
use parquet::schema::types::SchemaDescriptor;

/// Maximum nesting of structs and lists; Arrow's consumers import 64 levels.
const MAX_SCHEMA_DEPTH: usize = 128;

const SCHEMA_FIELD: i16 = 2;
const ROW_GROUPS_FIELD: i16 = 4;
const COLUMNS_FIELD: i16 = 1;
const METADATA_FIELD: i16 = 3;
const TYPE_FIELD: i16 = 1;
const PATH_FIELD: i16 = 3;
const PAGES_FIELD: i16 = 1;
const NUM_CHILDREN_FIELD: i16 = 5;

/// By their numbers.
const PHYSICAL_TYPES: [PhysicalType; 8] = [
    PhysicalType::BOOLEAN,
    PhysicalType::INT32,
    PhysicalType::INT64,
    PhysicalType::INT96,
    PhysicalType::FLOAT,
    PhysicalType::DOUBLE,
    PhysicalType::BYTE_ARRAY,
    PhysicalType::FIXED_LEN_BYTE_ARRAY,
];

/// Maximum nesting of thrift's own structs; footers have six levels.
const MAX_STRUCTS: usize = 32;

const MALFORMED: &str = "its footer is malformed: it is not what Thrift's compact protocol writes for one";

pub(crate) mod kind {
    pub(crate) const TRUE: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const I16: u8 = 4;
    pub(crate) const I32: u8 = 5;
    pub(crate) const I64: u8 = 6;
    pub(crate) const DOUBLE: u8 = 7;
    pub(crate) const BINARY: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const SET: u8 = 10;
    pub(crate) const MAP: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
}

/// The type of a field by its number; the fields of a struct are listed by number, from 1 on.
enum Known {
    /// Nothing is known about it: its header decides.
    Any,
    Bool,
    Byte,
    /// Of any width: all are encoded alike.
    Int,
    Double,
    Binary,
    Struct(&'static [Known]),
    List(&'static Known),
}

/// The structs of a footer, by the names and numbers of `parquet.thrift`.
mod known {
    use super::Known::{self, Any, Binary, Bool, Byte, Double, Int, List, Struct};

    const EMPTY: Known = Struct(&[]);
    const TIME: Known = Struct(&[Bool, Struct(&[EMPTY, EMPTY, EMPTY])]);
    const LOGICAL_TYPE: Known = Struct(&[
        EMPTY,                  // STRING
        EMPTY,                  // MAP
        EMPTY,                  // LIST
        EMPTY,                  // ENUM
        Struct(&[Int, Int]),    // DECIMAL
        EMPTY,                  // DATE
        TIME,                   // TIME
        TIME,                   // TIMESTAMP
        Any,                    // once INTERVAL
        Struct(&[Byte, Bool]),  // INTEGER
        EMPTY,                  // UNKNOWN
        EMPTY,                  // JSON
        EMPTY,                  // BSON
        EMPTY,                  // UUID
        EMPTY,                  // FLOAT16
        Struct(&[Byte]),        // VARIANT
        Struct(&[Binary]),      // GEOMETRY
        Struct(&[Binary, Int]), // GEOGRAPHY
    ]);
    pub(super) const SCHEMA_ELEMENT: &[Known] = &[Int, Int, Int, Binary, Int, Int, Int, Int, Int, LOGICAL_TYPE];

    const KEY_VALUE: Known = Struct(&[Binary, Binary]);
    const STATISTICS: Known = Struct(&[Binary, Binary, Int, Int, Binary, Binary, Bool, Bool]);
    const BOUNDING_BOX: Known = Struct(&[Double, Double, Double, Double, Double, Double, Double, Double]);
    const COLUMN_METADATA: Known = Struct(&[
        Int,                                    // type
        List(&Int),                             // encodings
        List(&Binary),                          // path_in_schema
        Int,                                    // codec
        Int,                                    // num_values
        Int,                                    // total_uncompressed_size
        Int,                                    // total_compressed_size
        List(&KEY_VALUE),                       // key_value_metadata
        Int,                                    // data_page_offset
        Int,                                    // index_page_offset
        Int,                                    // dictionary_page_offset
        STATISTICS,                             // statistics
        List(&Struct(&[Int, Int, Int])),        // encoding_stats
        Int,                                    // bloom_filter_offset
        Int,                                    // bloom_filter_length
        Struct(&[Int, List(&Int), List(&Int)]), // size_statistics
        Struct(&[BOUNDING_BOX, List(&Int)]),    // geospatial_statistics
    ]);
    const COLUMN_CHUNK: Known = Struct(&[Binary, Int, COLUMN_METADATA, Int, Int, Int, Int]);
    const SORTING_COLUMN: Known = Struct(&[Int, Bool, Bool]);
    const ROW_GROUP: Known = Struct(&[List(&COLUMN_CHUNK), Int, Int, List(&SORTING_COLUMN), Int, Int, Int]);
    const COLUMN_ORDER: Known = Struct(&[EMPTY]);
    pub(super) const FILE_METADATA: &[Known] =
        &[Int, List(&Any), Int, List(&ROW_GROUP), List(&KEY_VALUE), Binary, List(&COLUMN_ORDER)];
}

/// Refuses a footer whose schema nests deeper than [`MAX_SCHEMA_DEPTH`], that announces more than it has bytes for, or
/// that is malformed.
///
/// Returns the range of the schema; `None` unless there is exactly one.
pub(super) fn check_footer(footer: &[u8]) -> Result<Option<Range<usize>>, String> {
    let mut reader = Reader { bytes: footer };
    let mut field = 0;
    let mut schemas = Vec::new();
    while let Some((number, kind)) = reader.next_field(&mut field).ok_or(MALFORMED)? {
        if (number, kind) == (SCHEMA_FIELD, kind::LIST) {
            let start = footer.len() - reader.bytes.len();
            reader.schema()?;
            schemas.push(start..footer.len() - reader.bytes.len());
            continue;
        }
        if (number, kind) == (ROW_GROUPS_FIELD, kind::LIST) {
            Reader { bytes: reader.bytes }.check_list("row groups")?;
        }
        reader.value(kind, known_as(known::FILE_METADATA, number), 0).ok_or(MALFORMED)?;
    }
    Ok(if schemas.len() == 1 { schemas.pop() } else { None })
}

/// Refuses a [checked](check_footer) footer in which a chunk does not belong to the column at its index: it has another
/// type, or the path of another column. The parser goes by index alone, and would take one column's values for
/// another's.
pub(super) fn check_chunks(footer: &[u8], schema: &SchemaDescriptor) -> Result<(), String> {
    let (mut reader, mut field) = (Reader { bytes: footer }, 0);
    let mut paths = None;
    while let Some((number, kind)) = reader.next_field(&mut field).ok_or(MALFORMED)? {
        if (number, kind) != (ROW_GROUPS_FIELD, kind::LIST) {
            reader.skip(kind, 0).ok_or(MALFORMED)?;
            continue;
        }
        let (_, num_row_groups) = reader.list().ok_or(MALFORMED)?;
        for row_group in 0..num_row_groups {
            reader.row_group(&mut |leaf, chunk| {
                let column = schema.columns().get(leaf)?;
                let name = || format!("column `{}` of row group {row_group}", column.path().string());
                if let Some(of_chunk) = chunk.physical_type.filter(|of_chunk| *of_chunk != column.physical_type()) {
                    return Some(format!(
                        "the chunk of {} is of {of_chunk} instead of {}",
                        name(),
                        column.physical_type()
                    ));
                }
                let path = chunk.path.filter(|path| !path.is(column.path().parts()))?.parts()?;
                let paths: &mut HashSet<&[String]> =
                    paths.get_or_insert_with(|| schema.columns().iter().map(|column| column.path().parts()).collect());
                paths.contains(&path[..]).then(|| format!("the chunk of {} is that of `{}`", name(), path.join(".")))
            })?;
        }
    }
    Ok(())
}

/// A column chunk's metadata about its column.
#[derive(Default)]
struct Chunk<'a> {
    physical_type: Option<PhysicalType>,
    path: Option<ChunkPath<'a>>,
}

/// The names of a column and its ancestors, in serialized form.
#[derive(Clone, Copy)]
struct ChunkPath<'a>(&'a [u8]);

impl ChunkPath<'_> {
    fn is(self, parts: &[String]) -> bool {
        let mut reader = Reader { bytes: self.0 };
        reader.list().is_some_and(|(_, len)| len == parts.len() as u64)
            && parts.iter().all(|part| reader.binary() == Some(part.as_bytes()))
    }

    fn parts(self) -> Option<Vec<String>> {
        let mut reader = Reader { bytes: self.0 };
        let (_, len) = reader.list()?;
        (0..len).map(|_| Some(str::from_utf8(reader.binary()?).ok()?.to_owned())).collect()
    }
}

fn known_as(fields: &'static [Known], number: i16) -> &'static Known {
    let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    place.and_then(|place| fields.get(place)).unwrap_or(&Known::Any)
}

/// Refuses an offset index that announces more pages than it has bytes for.
pub(super) fn check_offset_index(index: &[u8]) -> Result<(), String> {
    let mut reader = Reader { bytes: index };
    match reader.field(&mut 0) {
        Some((PAGES_FIELD, kind::LIST)) => reader.check_list("pages"),
        _ => Ok(()),
    }
}

/// A reader of thrift's compact protocol; `None` means malformed.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a list of elements.
    fn schema(&mut self) -> Result<(), String> {
        let Some((kind::STRUCT, len)) = self.list() else { return Err(MALFORMED.into()) };
        let mut open: Vec<u64> = Vec::new();
        for number in 0..len {
            let num_children = self.element().ok_or(MALFORMED)?;
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(missing) = open.last_mut() {
                *missing -= 1;
            }
            let Some(num_children) = num_children.filter(|&count| count > 0) else { continue };
            let remaining = len - number - 1;
            if num_children > remaining {
                return Err(format!("its schema claims {num_children} columns where {remaining} are left"));
            }
            open.push(num_children);
            if open.len() > MAX_SCHEMA_DEPTH {
                return Err(format!(
                    "its schema nests deeper than {MAX_SCHEMA_DEPTH} levels, which no consumer can take"
                ));
            }
        }
        Ok(())
    }

    /// Refuses a list of more items than there are bytes.
    fn check_list(&mut self, what: &str) -> Result<(), String> {
        match (self.list(), self.bytes.len()) {
            (Some((_, len)), left) if len > left as u64 => Err(format!("it claims {len} {what} in {left} bytes")),
            (Some(_), _) => Ok(()),
            (None, _) => Err(format!("it says in no readable way how many {what} it has")),
        }
    }

    /// Reads an element of a schema and returns its number of children.
    fn element(&mut self) -> Option<Option<u64>> {
        let (mut field, mut num_children) = (0, None);
        while let Some((number, kind)) = self.next_field(&mut field)? {
            let before = self.bytes;
            self.value(kind, known_as(known::SCHEMA_ELEMENT, number), 0)?;
            if number == NUM_CHILDREN_FIELD {
                // Of a number that is too long, the parser takes the low bits.
                let [a, b, c, d, ..] = zigzag(Reader { bytes: before }.varint()?).to_le_bytes();
                num_children = u64::try_from(i32::from_le_bytes([a, b, c, d])).ok();
            }
        }
        Some(num_children)
    }

    /// Reads a row group, and returns what `wrong` says about a leaf's chunk.
    fn row_group(&mut self, wrong: &mut impl FnMut(usize, &Chunk<'a>) -> Option<String>) -> Result<(), String> {
        let mut field = 0;
        while let Some((number, kind)) = self.next_field(&mut field).ok_or(MALFORMED)? {
            if (number, kind) != (COLUMNS_FIELD, kind::LIST) {
                self.skip(kind, 0).ok_or(MALFORMED)?;
                continue;
            }
            let (_, num_columns) = self.list().ok_or(MALFORMED)?;
            for leaf in 0..usize::try_from(num_columns).unwrap_or(usize::MAX) {
                let chunk = self.chunk().ok_or(MALFORMED)?;
                wrong(leaf, &chunk).map_or(Ok(()), Err)?;
            }
        }
        Ok(())
    }

    /// Reads a column chunk.
    fn chunk(&mut self) -> Option<Chunk<'a>> {
        let (mut chunk, mut field) = (Chunk::default(), 0);
        while let Some((number, kind)) = self.next_field(&mut field)? {
            match (number, kind) {
                (METADATA_FIELD, kind::STRUCT) => self.chunk_metadata(&mut chunk)?,
                _ => self.skip(kind, 0)?,
            }
        }
        Some(chunk)
    }

    fn chunk_metadata(&mut self, chunk: &mut Chunk<'a>) -> Option<()> {
        let mut field = 0;
        while let Some((number, kind)) = self.next_field(&mut field)? {
            let before = self.bytes;
            self.skip(kind, 0)?;
            match number {
                TYPE_FIELD => {
                    let number = usize::try_from(zigzag(Reader { bytes: before }.varint()?)).ok()?;
                    chunk.physical_type = PHYSICAL_TYPES.get(number).copied();
                }
                PATH_FIELD => chunk.path = Some(ChunkPath(before)),
                _ => {}
            }
        }
        Some(())
    }

    /// Reads a value of known type whose header says that it is of `kind`.
    fn value(&mut self, kind: u8, known: &'static Known, depth: usize) -> Option<()> {
        match (known, kind) {
            (Known::Any, _)
            | (Known::Bool, kind::TRUE | kind::FALSE)
            | (Known::Byte, kind::BYTE)
            | (Known::Int, kind::I16 | kind::I32 | kind::I64)
            | (Known::Double, kind::DOUBLE)
            | (Known::Binary, kind::BINARY) => self.skip(kind, depth),
            (Known::Struct(fields), kind::STRUCT) => {
                let mut field = 0;
                while let Some((number, kind)) = self.next_field(&mut field)? {
                    self.value(kind, known_as(fields, number), depth + 1)?;
                }
                Some(())
            }
            (Known::List(item), kind::LIST) => {
                let (kind, len) = self.list()?;
                (0..len).try_for_each(|_| self.value(kind, item, depth + 1))
            }
            _ => None,
        }
    }

    /// Returns number and kind of the next field of a struct; `None` at its end, or if it is malformed.
    pub(crate) fn field(&mut self, last: &mut i16) -> Option<(i16, u8)> {
        self.next_field(last).flatten()
    }

    /// Returns number and kind of the next field of a struct, or that it ends; `None` if it is malformed.
    fn next_field(&mut self, last: &mut i16) -> Option<Option<(i16, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *last = match head >> 4 {
            0 => i16::try_from(zigzag(self.varint()?)).ok()?,
            step => last.checked_add(i16::from(step))?,
        };
        Some(Some((*last, head & 0x0f)))
    }

    pub(crate) fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Some((head & 0x0f, len))
    }

    pub(crate) fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            kind::TRUE | kind::FALSE => {}
            kind::BYTE => self.advance(1)?,
            kind::I16 | kind::I32 | kind::I64 => drop(self.varint()?),
            kind::DOUBLE => self.advance(8)?,
            kind::BINARY => {
                let len = self.varint()?;
                self.advance(len)?;
            }
            _ if depth == MAX_STRUCTS => return None,
            kind::LIST | kind::SET => {
                let (kind, len) = self.list()?;
                for _ in 0..len {
                    self.skip_item(kind, depth)?;
                }
            }
            kind::MAP => {
                let len = self.varint()?;
                let kinds = if len > 0 { self.byte()? } else { 0 };
                for _ in 0..len {
                    self.skip_item(kinds >> 4, depth)?;
                    self.skip_item(kinds & 0x0f, depth)?;
                }
            }
            kind::STRUCT => {
                let mut field = 0;
                while let Some((_, kind)) = self.next_field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Skips an item of a collection. Readers disagree on whether Booleans take a byte there.
    fn skip_item(&mut self, kind: u8, depth: usize) -> Option<()> {
        if matches!(kind, kind::TRUE | kind::FALSE) { None } else { self.skip(kind, depth + 1) }
    }

    pub(crate) fn advance(&mut self, num_bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(num_bytes).ok()?..)?;
        Some(())
    }

    /// Returns the next length-prefixed bytes.
    pub(crate) fn binary(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (binary, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(binary)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

pub(crate) fn zigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_SCHEMA_DEPTH, check_footer, check_offset_index};

    /// A footer whose schema is a root with `depth - 1` nested groups and a leaf.
    fn footer_of_depth(depth: usize) -> Vec<u8> {
        let mut footer = vec![0x15, 4, 0x19, 0xfc];
        let mut len = depth + 1;
        while len > 0x7f {
            footer.push(u8::try_from(len & 0x7f).unwrap() | 0x80);
            len >>= 7;
        }
        footer.push(u8::try_from(len).unwrap());
        for _ in 0..depth {
            footer.extend([0x48, 1, b'g', 0x15, 2, 0]);
        }
        footer.extend([0x15, 2, 0x38, 1, b'x', 0, 0]);
        footer
    }

    #[test]
    fn depth_is_that_of_the_groups() {
        assert!(check_footer(&footer_of_depth(1)).is_ok());
        assert!(check_footer(&footer_of_depth(MAX_SCHEMA_DEPTH)).is_ok());
        assert!(check_footer(&footer_of_depth(MAX_SCHEMA_DEPTH + 1)).unwrap_err().contains("128 levels"));
        assert!(check_footer(&footer_of_depth(1_000_000)).unwrap_err().contains("128 levels"));
    }

    #[test]
    fn what_is_announced_must_fit_into_the_bytes() {
        let many = [0xff, 0xff, 0xff, 0xff, 7];
        let row_groups = [&[0x15, 4, 0x39, 0xfc][..], &many].concat();
        assert!(check_footer(&row_groups).unwrap_err().contains("2147483647 row groups in 0 bytes"));
        let children = [0x29, 0x1c, 0x48, 1, b'r', 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0];
        assert!(check_footer(&children).unwrap_err().contains("columns where 0 are left"));
        let longer_than_32_bits = [0x29, 0x1c, 0x48, 1, b'r', 0x15, 0xbd, 0xbd, 0xbd, 0xbd, 0xbd, 4, 0, 0];
        assert!(check_footer(&longer_than_32_bits).unwrap_err().contains("columns where 0 are left"));
        let pages = [&[0x19, 0xfc][..], &many].concat();
        assert!(check_offset_index(&pages).unwrap_err().contains("2147483647 pages in 0 bytes"));
        assert_eq!(check_offset_index(&[0x19, 0x1c, 0x16, 8, 0x15, 8, 0x16, 0, 0, 0]), Ok(()));
    }

    #[test]
    fn what_the_parser_would_read_otherwise_is_refused() {
        let with_root = |fields: &[u8]| [&[0x29, 0x1c, 0x48, 1, b'r'], fields, &[0, 0]].concat();
        assert!(check_footer(&with_root(&[])).is_ok());
        // A number of children that its header calls a byte, and one after a field whose number is out of range.
        let as_byte = with_root(&[0x13, 0x7f]);
        let behind = with_root(&[&[0xd5][..], &[0xd5; 12], &[2]].concat());
        // A logical type whose fields have other lengths than those of the type it claims to be.
        let of_logic = with_root(&[0x6c, 0xac, 0x15, 0xff, 0x7f, 0, 0]);
        let booleans = with_root(&[0xf9, 0x21, 1, 1]);
        let cut = with_root(&[])[..6].to_vec();
        for footer in [as_byte, behind, of_logic, booleans, cut] {
            assert!(check_footer(&footer).unwrap_err().contains("malformed"), "{footer:?}");
        }
        let pages = [&[0x19, 0xfc][..], &[0xff; 12], &[7]].concat();
        assert!(check_offset_index(&pages).unwrap_err().contains("no readable way how many pages"));
    }

    #[test]
    fn siblings_are_no_depth() {
        let mut footer = vec![0x15, 4, 0x19, 0xfc, 0xe9, 0x07, 0x48, 1, b'r', 0x15, 0xe8, 0x07, 0];
        footer.extend([0x48, 1, b'g', 0x15, 2, 0, 0x15, 2, 0x38, 1, b'x', 0].repeat(500));
        footer.push(0);
        assert!(check_footer(&footer).is_ok());
    }

    proptest! {
        #[test]
        fn noise_is_never_a_crash(noise in prop::collection::vec(any::<u8>(), 0..300)) {
            drop(check_footer(&noise));
            drop(check_footer(&[&[0x29, 0xfc, 0xff, 0xff, 0xff, 0x07][..], &noise].concat()));
            drop(check_offset_index(&noise));
        }
    }
}
