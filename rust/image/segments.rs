//! Walks the segments of a JPEG: how its pixels are stored, its EXIF and XMP metadata, and whether it is complete.
//!
//! ITU-T T.81, B.1.1: a segment is a marker, its length, which counts itself, and its contents. A marker is 0xff,
//! possibly repeated, and a byte that is neither 0xff nor 0. The data of a scan follow its segment: 0xff in them is
//! followed by 0 or is a restart marker, so the next segment is found as anywhere else. Stray bytes between segments
//! are skipped, as decoders do.

use std::borrow::Cow;

const STUFFED: u8 = 0x00;
const TEMPORARY: u8 = 0x01;
const RESTARTS: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;
const START: u8 = 0xd8;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;
const JFIF: u8 = 0xe0;
const METADATA: u8 = 0xe1;
const ADOBE: u8 = 0xee;

/// Where Adobe's segment has the colour transform: 0 for none, 1 for YCbCr.
const TRANSFORM_PLACE: usize = 11;

/// Returns whether an image is complete. Decoders fill missing parts with grey.
///
/// Other bytes may follow it, such as the film of a motion photo. Nearly all images end where their bytes do.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    bytes.ends_with(&[0xff, END]) || Segments::new(bytes).any(|segment| segment.marker == END)
}

/// Returns the EXIF metadata: that of several segments concatenated, as PIL reads it.
pub(super) fn exif(bytes: &[u8]) -> Vec<u8> {
    metadata(bytes, b"Exif\0\0").collect::<Vec<_>>().concat()
}

/// Returns the XMP packet: of several, the last one, as PIL does.
pub(super) fn xmp(bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
    metadata(bytes, b"http://ns.adobe.com/xap/1.0/\0").last().map(Cow::Borrowed)
}

/// Returns the contents of the metadata segments of one kind.
fn metadata<'a>(bytes: &'a [u8], kind: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let header = Segments::new(bytes).take_while(|segment| segment.marker != SCAN);
    let metadata = header.filter(|segment| segment.marker == METADATA);
    metadata.filter_map(move |segment| segment.contents.strip_prefix(kind))
}

/// Returns how an image is coded if no decoder here supports it. Hardly any program writes such images.
pub(super) fn rare_coding(bytes: &[u8]) -> Option<&'static str> {
    let mut header = Segments::new(bytes).take_while(|segment| segment.marker != SCAN);
    header.find_map(|segment| match segment.marker {
        0xc3 => Some("without losses"),
        0xc5..=0xc7 => Some("hierarchically"),
        0xc9..=0xcb | 0xcd..=0xcf => Some("arithmetically"),
        _ => None,
    })
}

/// Returns an image that says about three components what libjpeg takes them for.
///
/// With JFIF they are YCbCr regardless of anything else, and also if Adobe's segment has an unknown value.
pub(super) fn corrected(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut bytes = Cow::Borrowed(bytes);
    if let Some(place) = wrong_transform(&bytes)
        && let Some(transform) = bytes.to_mut().get_mut(place)
    {
        *transform = 1;
    }
    bytes
}

fn wrong_transform(bytes: &[u8]) -> Option<usize> {
    let (mut is_jfif, mut adobe, mut num_components) = (false, None, 0);
    for segment in Segments::new(bytes).take_while(|segment| segment.marker != SCAN) {
        let contents = segment.contents;
        match segment.marker {
            JFIF => is_jfif |= contents.starts_with(b"JFIF\0"),
            ADOBE if contents.starts_with(b"Adobe") && contents.len() > TRANSFORM_PLACE => {
                adobe = Some(segment.place + TRANSFORM_PLACE);
            }
            marker if is_frame(marker) => num_components = *contents.get(5)?,
            _ => {}
        }
    }
    let place = adobe.filter(|_| num_components == 3)?;
    let is_wrong = match *bytes.get(place)? {
        0 => is_jfif,
        transform => transform != 1,
    };
    is_wrong.then_some(place)
}

/// The contents of an image's scans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scans {
    /// The first one has everything, row by row.
    Rows,
    /// Each has some of the components.
    Components,
    /// Each adds details: a progressive image, or a kind that is not decoded.
    Details,
}

/// How the pixels of an image are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The offset of the two bytes with the number of rows.
    pub(super) height_place: usize,
    pub(super) scans: Scans,
    /// Whether no component is sampled more finely than the first one.
    pub(super) is_first_finest: bool,
    /// Whether a component has neither the finest nor the coarsest sampling, such as half of four.
    pub(super) has_middle: bool,
}

impl Frame {
    /// Reads the segments before the first scan's data; `None` if they are broken.
    ///
    /// ITU-T T.81, B.2.2 and B.2.3: a frame has the precision, height, width and number of components, and for each its
    /// name, its sampling, across and down in one byte, and its table; a scan begins with its number of components.
    pub(super) fn find(bytes: &[u8]) -> Option<Self> {
        let mut frame = None;
        for segment in Segments::new(bytes) {
            match segment.marker {
                marker if is_frame(marker) => frame = Some(segment),
                SCAN => return Self::new(&frame?, *segment.contents.first()?),
                _ => {}
            }
        }
        None
    }

    fn new(frame: &Segment<'_>, num_in_first_scan: u8) -> Option<Self> {
        let &[_, _, _, _, _, num_components, ref components @ ..] = frame.contents else { return None };
        let sampled = components.as_chunks::<3>().0.iter().map(|[_, sampled, _]| (sampled >> 4, sampled & 0xf));
        let across = sampled.clone().map(|(across, _)| across).max()?;
        let down = sampled.clone().map(|(_, down)| down).max()?;
        let scans = match frame.marker {
            0xc0 | 0xc1 if num_in_first_scan == num_components => Scans::Rows,
            0xc0 | 0xc1 => Scans::Components,
            _ => Scans::Details,
        };
        let is_extreme = |number, most| number == 1 || number == most;
        Some(Self {
            height_place: frame.place + 1,
            scans,
            is_first_finest: sampled.clone().next() == Some((across, down)),
            has_middle: !sampled.clone().all(|other| is_extreme(other.0, across) && is_extreme(other.1, down)),
        })
    }
}

fn is_frame(marker: u8) -> bool {
    matches!(marker, 0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf)
}

/// A segment, or the end marker, which has no contents.
struct Segment<'a> {
    marker: u8,
    /// The offset of its contents.
    place: usize,
    contents: &'a [u8],
}

/// The segments of an image, as far as they exist.
struct Segments<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl<'a> Segments<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, place: 0 }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        loop {
            self.place += next_0xff(self.bytes.get(self.place..)?)? + 1;
            match *self.bytes.get(self.place..)? {
                // One more of the same marker.
                [0xff, ..] => {}
                [END, ..] => {
                    self.place += 1;
                    return Some(Segment { marker: END, place: self.place, contents: &[] });
                }
                [marker, ..] if matches!(marker, STUFFED | TEMPORARY | START) || RESTARTS.contains(&marker) => {
                    self.place += 1;
                }
                [marker, high, low, ..] => {
                    let place = self.place + 3;
                    let end = self.place + 1 + usize::from(u16::from_be_bytes([high, low])).max(2);
                    let contents = self.bytes.get(place..end)?;
                    self.place = end;
                    return Some(Segment { marker, place, contents });
                }
                _ => return None,
            }
        }
    }
}

/// Returns the position of the first 0xff. The data of a scan are most of an image and contain few: many bytes are
/// compared at once.
fn next_0xff(bytes: &[u8]) -> Option<usize> {
    const STEP: usize = 64;
    let steps = bytes.as_chunks::<STEP>().0.iter();
    let without = steps.take_while(|step| step.iter().fold(0, |most, &byte| byte.max(most)) != 0xff).count() * STEP;
    bytes.get(without..)?.iter().position(|&byte| byte == 0xff).map(|at| without + at)
}
