//! JPEG: `zune-jpeg`, which is fast; `jpeg-decoder`, which can decode to a fraction of the size.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::crop::Box2;
use super::layout::Orientation;
use super::open::broken;
use super::{CHANNELS, DECODED, Extent, exif, to_pixels};

/// The largest side that the format can say; how many pixels there may be was checked before.
const MAX_SIDE: usize = 65_535;

/// Fractions of the size, smallest first: with a fourth less is gained than the slower decoder loses.
const FRACTIONS: [u16; 2] = [8, 4];

/// How much larger than the result what is resized has to be: then it is that of the whole image, within a grey level.
const LEAST_REDUCTION: f64 = 2.0;

/// A JPEG image whose header was read.
pub(super) struct Jpeg<'a> {
    bytes: &'a [u8],
    decoder: JpegDecoder<ZCursor<&'a [u8]>>,
    extent: Extent,
}

impl<'a> Jpeg<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        if !is_whole(bytes) {
            return Err(broken("JPEG", "it is truncated: the end of the image is missing"));
        }
        let mut decoder = read_header(bytes, ColorSpace::RGBA)?;
        if !decoder.input_colorspace().is_some_and(is_usual) {
            // Inks and RGB come out wrong with an alpha, or not at all.
            decoder = read_header(bytes, ColorSpace::RGB)?;
        }
        let info = decoder.info().ok_or_else(|| broken("JPEG", "it has no header"))?;
        let extent = Extent { width: u32::from(info.width), height: u32::from(info.height) };
        Ok(Self { bytes, decoder, extent })
    }

    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    pub(super) fn orientation(&self) -> Orientation {
        self.decoder.exif().map_or_else(Orientation::default, |exif| exif::orientation(exif))
    }

    pub(super) fn decode(mut self, part: Box2, target: Extent, pixels: &mut Vec<u8>) -> Result<(Extent, u16), String> {
        let is_usual = self.decoder.input_colorspace().is_some_and(is_usual);
        let reduction = (part.width / f64::from(target.width)).min(part.height / f64::from(target.height));
        let fraction = FRACTIONS.into_iter().find(|&fraction| reduction >= f64::from(fraction) * LEAST_REDUCTION);
        if let Some(fraction) = fraction.filter(|_| is_usual) {
            return Ok((self.decode_scaled(fraction, pixels)?, fraction));
        }
        let num_bytes = self.decoder.output_buffer_size().ok_or_else(|| broken("JPEG", "it has no size"))?;
        pixels.resize(num_bytes, 0);
        self.decoder.decode_into(pixels).map_err(|error| broken("JPEG", error))?;
        if !is_usual {
            to_pixels(&pixels.clone(), CHANNELS, pixels);
        }
        match pixels.len() == self.extent.num_bytes() {
            true => Ok((self.extent, 1)),
            false => Err(broken("JPEG", "its pixels are not as many as its header says")),
        }
    }

    fn decode_scaled(&self, fraction: u16, pixels: &mut Vec<u8>) -> Result<Extent, String> {
        let mut decoder = jpeg_decoder::Decoder::new(self.bytes);
        let reduced = |side: u32| u16::try_from(side.div_ceil(u32::from(fraction))).unwrap_or(u16::MAX);
        decoder.read_info().map_err(|error| broken("JPEG", error))?;
        let scaled = decoder.scale(reduced(self.extent.width), reduced(self.extent.height));
        let (width, height) = scaled.map_err(|error| broken("JPEG", error))?;
        let samples = decoder.decode().map_err(|error| broken("JPEG", error))?;
        let extent = Extent { width: u32::from(width), height: u32::from(height) };
        let num_pixels = extent.num_bytes() / DECODED;
        to_pixels(&samples, samples.len() / num_pixels.max(1), pixels);
        match pixels.len() == extent.num_bytes() {
            true => Ok(extent),
            false => Err(broken("JPEG", "its pixels are not as many as its header says")),
        }
    }
}

/// Begins to decode an image to pixels of `space`. Grey and inks become RGB, too; inks as Adobe's programs, and so nearly all,
/// write them: inverted.
fn read_header(bytes: &[u8], space: ColorSpace) -> Result<JpegDecoder<ZCursor<&[u8]>>, String> {
    let options = DecoderOptions::default().set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options.jpeg_set_out_colorspace(space));
    decoder.decode_headers().map_err(|error| broken("JPEG", error))?;
    Ok(decoder)
}

/// Returns whether an image is stored as nearly all are.
fn is_usual(stored: ColorSpace) -> bool {
    matches!(stored, ColorSpace::Luma | ColorSpace::YCbCr)
}

/// Returns whether the end of the image is there: whether the last of the markers that begin a scan and that end an
/// image is one that ends. Decoders paint what is missing grey.
fn is_whole(bytes: &[u8]) -> bool {
    let marker = bytes.windows(2).rev().find(|pair| pair[0] == 0xff && matches!(pair[1], 0xd9 | 0xda));
    marker.is_some_and(|pair| pair[1] == 0xd9)
}
