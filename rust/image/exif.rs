//! Finds the orientation in EXIF metadata, or else in XMP.

use std::borrow::Cow;

use super::layout::Orientation;

const TAG: u16 = 0x0112;

/// A 16-bit number, as the standard requires.
const SHORT: u16 = 3;

/// A 32-bit number, as some programs write it.
const LONG: u16 = 4;

/// Returns the orientation in EXIF metadata, or if these have none, in an XMP packet; upright if both have none.
pub(super) fn orientation<'a>(exif: &[u8], xmp: impl FnOnce() -> Option<Cow<'a, [u8]>>) -> Orientation {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif(find(exif).or_else(|| find_in_xmp(&xmp()?)).unwrap_or(1))
}

/// Returns the value of the tag in a packet, which is found as PIL finds it: without parsing XML.
fn find_in_xmp(xmp: &[u8]) -> Option<u16> {
    let mut behind = (0..xmp.len()).filter_map(|place| xmp[place..].strip_prefix(b"tiff:Orientation"));
    behind.find_map(|text| match text.strip_prefix(b"=\"").or_else(|| text.strip_prefix(b">"))? {
        [digit @ b'0'..=b'9', ..] => Some(u16::from(digit - b'0')),
        _ => None,
    })
}

/// Returns the value of the tag in the first directory.
fn find(exif: &[u8]) -> Option<u16> {
    let is_little = match exif.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes: [u8; 2] = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let (first, second) = (usize::from(short(at)?), usize::from(short(at + 2)?));
        Some(if is_little { second << 16 | first } else { first << 16 | second })
    };
    let directory = long(4)?;
    let mut entries = (0..usize::from(short(directory)?)).map(|entry| directory + 2 + entry * 12);
    entries.find_map(|entry| match (short(entry)?, short(entry + 2)?) {
        (TAG, SHORT) => short(entry + 8),
        (TAG, LONG) => long(entry + 8)?.try_into().ok(),
        _ => None,
    })
}
