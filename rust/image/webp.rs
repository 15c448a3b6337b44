//! WebP: lossy and lossless, with alpha, animated (its first frame).

use std::borrow::Cow;
use std::io::Cursor;

use image_webp::WebPDecoder;

use super::layout::Orientation;
use super::open::broken;
use super::{Extent, exif, to_pixels};

/// A WebP image whose header was read.
pub(super) struct WebP<'a> {
    decoder: WebPDecoder<Cursor<&'a [u8]>>,
    orientation: Orientation,
}

impl<'a> WebP<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| broken("WebP", error))?;
        // Chunks are at most as large as the file.
        decoder.set_memory_limit(bytes.len());
        let exif = decoder.exif_metadata().map_err(|error| broken("WebP", error))?.unwrap_or_default();
        let orientation = exif::orientation(&exif, || decoder.xmp_metadata().ok().flatten().map(Cow::Owned));
        Ok(Self { decoder, orientation })
    }

    pub(super) fn extent(&self) -> Extent {
        let (width, height) = self.decoder.dimensions();
        Extent { width, height }
    }

    pub(super) fn orientation(&self) -> Orientation {
        self.orientation
    }

    pub(super) fn decode(mut self, pixels: &mut Vec<u8>) -> Result<Extent, String> {
        let num_bytes = self.decoder.output_buffer_size().ok_or_else(|| broken("WebP", "it is too large"))?;
        let mut samples = vec![0; num_bytes];
        self.decoder.read_image(&mut samples).map_err(|error| broken("WebP", error))?;
        to_pixels(&samples, if self.decoder.has_alpha() { 4 } else { 3 }, pixels);
        match pixels.len() == self.extent().num_bytes() {
            true => Ok(self.extent()),
            false => Err(broken("WebP", "it does not have as many pixels as its header says")),
        }
    }
}
