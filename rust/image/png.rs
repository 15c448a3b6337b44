//! PNG: of any depth, with a palette or alpha, animated (the image that programs without animation support show).

use std::borrow::Cow;
use std::io::{Cursor, Read};

use flate2::read::ZlibDecoder;
use png::{Decoder, Reader, Transformations};

use super::layout::Orientation;
use super::open::broken;
use super::{Extent, exif, to_pixels};

/// Bytes before the first chunk.
const SIGNATURE: usize = 8;

/// Bytes after the contents of a chunk.
const CHECKSUM: usize = 4;

/// The only method of compression.
const ZLIB: u8 = 0;

/// The most bytes that a compressed text is read to.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// A PNG image whose header was read.
pub(super) struct Png<'a> {
    bytes: &'a [u8],
    reader: Reader<Cursor<&'a [u8]>>,
}

impl<'a> Png<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let mut decoder = Decoder::new(Cursor::new(bytes));
        // Palettes and low bit depths become bytes, 16 bits are cut to their upper 8.
        decoder.set_transformations(Transformations::normalize_to_color8());
        // Compressed text and profiles are the format's other decompression bombs.
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        Ok(Self { bytes, reader: decoder.read_info().map_err(|error| broken("PNG", error))? })
    }

    pub(super) fn extent(&self) -> Extent {
        let info = self.reader.info();
        Extent { width: info.width, height: info.height }
    }

    /// Returns the orientation in EXIF metadata, which older programs (ImageMagick's) wrote as text, or else in XMP.
    ///
    /// They may follow the pixels, which the decoder has not read by then.
    pub(super) fn orientation(&self) -> Orientation {
        let chunk = chunks(self.bytes).find(|(kind, _)| *kind == b"eXIf").map(|(_, exif)| Cow::Borrowed(exif));
        let exif = chunk.or_else(|| profile(&text(self.bytes, b"Raw profile type exif")?).map(Cow::Owned));
        exif::orientation(&exif.unwrap_or_default(), || text(self.bytes, b"XML:com.adobe.xmp"))
    }

    pub(super) fn decode(mut self, pixels: &mut Vec<u8>) -> Result<Extent, String> {
        let num_bytes = self.reader.output_buffer_size().ok_or_else(|| broken("PNG", "it is too large"))?;
        let mut samples = vec![0; num_bytes];
        let info = self.reader.next_frame(&mut samples).map_err(|error| broken("PNG", error))?;
        samples.truncate(info.buffer_size());
        let extent = Extent { width: info.width, height: info.height };
        to_pixels(&samples, info.color_type.samples(), pixels);
        match pixels.len() == extent.num_bytes() {
            true => Ok(extent),
            false => Err(broken("PNG", "it does not have as many pixels as its header says")),
        }
    }
}

/// Returns the chunks, as far as they exist.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = bytes.get(SIGNATURE..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, chunk) = rest.split_first_chunk::<4>()?;
        let (kind, chunk) = chunk.split_first_chunk::<4>()?;
        let (contents, behind) = chunk.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = behind.get(CHECKSUM..).unwrap_or_default();
        Some((kind, contents))
    })
}

/// Returns the text of a keyword, which may be compressed.
fn text<'a>(bytes: &'a [u8], keyword: &[u8]) -> Option<Cow<'a, [u8]>> {
    chunks(bytes).find_map(|(kind, contents)| match (kind, contents.strip_prefix(keyword)?.strip_prefix(b"\0")?) {
        (b"tEXt", text) => Some(Cow::Borrowed(text)),
        (b"zTXt", [ZLIB, text @ ..]) => inflated(text),
        (b"iTXt", [is_compressed, method, rest @ ..]) => {
            // Behind a language and a translated keyword.
            let text = rest.splitn(3, |&byte| byte == 0).nth(2)?;
            match (is_compressed, *method) {
                (0, _) => Some(Cow::Borrowed(text)),
                (_, ZLIB) => inflated(text),
                _ => None,
            }
        }
        _ => None,
    })
}

/// Returns the beginning of a compressed text; `None` if it is broken.
fn inflated(text: &[u8]) -> Option<Cow<'static, [u8]>> {
    let mut inflated = Vec::new();
    ZlibDecoder::new(text).take(MAX_TEXT_BYTES).read_to_end(&mut inflated).ok()?;
    Some(Cow::Owned(inflated))
}

/// Returns the bytes of a profile that is stored as text: an empty line, its name, its length, and lines of digits.
fn profile(text: &[u8]) -> Option<Vec<u8>> {
    let lines = text.split(|&byte| byte == b'\n').skip(3);
    let digits = lines.flatten().filter(|byte| !byte.is_ascii_whitespace());
    let digits = digits.map(|&byte| char::from(byte).to_digit(16)).collect::<Option<Vec<_>>>()?;
    digits.as_chunks::<2>().0.iter().map(|[high, low]| u8::try_from(high << 4 | low).ok()).collect()
}
