//! What a footer or an index claims, checked before a parser believes it: how deep, and how many.
//!
//! The parser recurses into a schema and reserves memory for what is announced, and the process would abort where
//! either runs out. So thrift's compact protocol is read as far as that takes. A schema is a flattened tree: elements
//! in pre-order, each with its number of children. What is malformed in another way is left to the parser, which has
//! the better words for it.

use std::ops::Range;

/// Levels of structs and lists within one another; Arrow's consumers import 64.
const MAX_SCHEMA_DEPTH: usize = 128;

const SCHEMA_FIELD: i16 = 2;
const ROW_GROUPS_FIELD: i16 = 4;
const PAGES_FIELD: i16 = 1;
const NUM_CHILDREN_FIELD: i16 = 5;

/// Levels of thrift's own structs; footers have six.
const MAX_STRUCTS: usize = 32;

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

/// Refuses a footer whose schema nests deeper than [`MAX_SCHEMA_DEPTH`], or that announces more than it has bytes for.
///
/// Returns where the schema lies; `None` unless there is exactly one.
pub(super) fn check_footer(footer: &[u8]) -> Result<Option<Range<usize>>, String> {
    let mut reader = Reader { bytes: footer };
    let mut field = 0;
    let mut schemas = Vec::new();
    while let Some((number, kind)) = reader.field(&mut field) {
        let read = match (number, kind) {
            (SCHEMA_FIELD, kind::LIST) => {
                let start = footer.len() - reader.bytes.len();
                let read = reader.schema()?;
                schemas.push(start..footer.len() - reader.bytes.len());
                read
            }
            (ROW_GROUPS_FIELD, kind::LIST) => {
                let before = reader.bytes;
                reader.check_list("row groups")?;
                reader.bytes = before;
                reader.skip(kind, 0)
            }
            _ => reader.skip(kind, 0),
        };
        if read.is_none() {
            return Ok(None);
        }
    }
    Ok(if schemas.len() == 1 { schemas.pop() } else { None })
}

/// Refuses an offset index that announces more pages than it has bytes for.
pub(super) fn check_offset_index(index: &[u8]) -> Result<(), String> {
    let mut reader = Reader { bytes: index };
    match reader.field(&mut 0) {
        Some((PAGES_FIELD, kind::LIST)) => reader.check_list("pages"),
        _ => Ok(()),
    }
}

/// A reader of thrift's compact protocol; `None` is what is malformed.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a list of elements; `None` where it is malformed.
    fn schema(&mut self) -> Result<Option<()>, String> {
        let Some((kind::STRUCT, len)) = self.list() else { return Ok(None) };
        let mut open: Vec<u64> = Vec::new();
        for number in 0..len {
            let Some(num_children) = self.element() else { return Ok(None) };
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
        Ok(Some(()))
    }

    /// Refuses a list of more items than there are bytes.
    fn check_list(&mut self, what: &str) -> Result<(), String> {
        match (self.list(), self.bytes.len()) {
            (Some((_, len)), left) if len > left as u64 => Err(format!("it claims {len} {what} in {left} bytes")),
            _ => Ok(()),
        }
    }

    /// Reads an element of a schema and returns its number of children.
    fn element(&mut self) -> Option<Option<u64>> {
        let (mut field, mut num_children) = (0, None);
        loop {
            let head = *self.bytes.first()?;
            let Some((number, kind)) = self.field(&mut field) else {
                return (head == 0).then_some(num_children);
            };
            if number == NUM_CHILDREN_FIELD && kind == kind::I32 {
                // Of a number that is too long the parser takes the low bits.
                let [a, b, c, d, ..] = zigzag(self.varint()?).to_le_bytes();
                num_children = u64::try_from(i32::from_le_bytes([a, b, c, d])).ok();
            } else {
                self.skip(kind, 0)?;
            }
        }
    }

    /// Returns number and kind of the next field of a struct; `None` at its end.
    pub(crate) fn field(&mut self, last: &mut i16) -> Option<(i16, u8)> {
        let head = self.byte()?;
        if head == 0 {
            return None;
        }
        *last = match head >> 4 {
            0 => i16::try_from(zigzag(self.varint()?)).ok()?,
            step => last.checked_add(i16::from(step))?,
        };
        Some((*last, head & 0x0f))
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
                loop {
                    let head = *self.bytes.first()?;
                    match self.field(&mut field) {
                        Some((_, kind)) => self.skip(kind, depth + 1)?,
                        None if head == 0 => break,
                        None => return None,
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Skips an item of a collection, where Booleans take a byte.
    fn skip_item(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            kind::TRUE | kind::FALSE => self.advance(1),
            other => self.skip(other, depth + 1),
        }
    }

    pub(crate) fn advance(&mut self, num_bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(num_bytes).ok()?..)?;
        Some(())
    }

    /// Returns the next bytes, with their number before them.
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

    /// A footer whose schema is a root with `depth - 1` groups within one another and a leaf.
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
    fn siblings_are_no_depth() {
        let mut footer = vec![0x15, 4, 0x19, 0xfc, 0xe9, 0x07, 0x48, 1, b'r', 0x15, 0xe8, 0x07, 0];
        footer.extend([0x48, 1, b'g', 0x15, 2, 0, 0x15, 2, 0x38, 1, b'x', 0].repeat(500));
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
