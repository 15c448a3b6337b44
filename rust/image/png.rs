//! PNG: of any depth, with a palette or alpha, animated (the image that programs without animation support show).

use std::io::Cursor;

use png::{Decoder, Reader, Transformations};

use super::layout::Orientation;
use super::open::broken;
use super::{Extent, exif, to_pixels};

/// Bytes before the first chunk.
const SIGNATURE: usize = 8;

/// Bytes after the contents of a chunk.
const CHECKSUM: usize = 4;

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

    pub(super) fn orientation(&self) -> Orientation {
        metadata(self.bytes).map_or_else(Orientation::default, exif::orientation)
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

/// Returns the EXIF metadata. It may follow the pixels, which the decoder has not read by then.
fn metadata(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.get(SIGNATURE..)?;
    loop {
        let (length, chunk) = rest.split_first_chunk::<4>()?;
        let (kind, chunk) = chunk.split_first_chunk::<4>()?;
        let (contents, behind) = chunk.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if kind == b"eXIf" {
            return Some(contents);
        }
        rest = behind.get(CHECKSUM..)?;
    }
}
