//! Finds the orientation in EXIF metadata.

use super::layout::Orientation;

const TAG: u16 = 0x0112;

/// A 16-bit number, as the standard requires.
const SHORT: u16 = 3;

/// A 32-bit number, as some programs write it.
const LONG: u16 = 4;

/// Returns the orientation in EXIF metadata; upright if there is none or it is broken.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif(find(exif).unwrap_or(1))
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
