//! JPEG: `zune-jpeg`, which is fast; `jpeg-decoder`, which can decode to a fraction of the size, and handles rare kinds
//! correctly.

use jpeg_decoder::{ColorTransform, PixelFormat};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::crop::Box2;
use super::layout::Orientation;
use super::open::broken;
use super::segments::{self, Frame, Scans};
use super::{CHANNELS, DECODED, Extent, exif, to_pixels};

/// The largest side that the format allows; the number of pixels was checked before.
const MAX_SIDE: usize = 65_535;

/// The fraction of the size that large images are decoded to. At a half, the slower decoder loses more than is gained;
/// an eighth saves a twentieth of the time, but then colours stored for two pixels cover 16.
const FRACTION: u16 = 4;

/// Minimum ratio of the resized part to the result.
const LEAST_REDUCTION: f64 = 2.0;

/// Minimum side of the resized part, in pixels: then photographs equal those from the whole image within a grey level,
/// and smaller ones are decoded as fast whole. With few pixels, the last one, which may cover one column of the image
/// but counts as if it covered four, has too much weight, and colours mostly have half as many.
const LEAST_SIDE: f64 = 256.0;

/// Rows below a crop that also contribute to its last ones: colours are stored for several rows together.
const ROWS_BELOW: f64 = 16.0;

/// Minimum of skipped rows that is worth reading the header a second time.
const LEAST_ROWS_LEFT_OUT: u32 = 32;

/// A JPEG image whose header was read.
pub(super) struct Jpeg<'a> {
    bytes: &'a [u8],
    decoder: JpegDecoder<ZCursor<&'a [u8]>>,
    extent: Extent,
}

impl<'a> Jpeg<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        if !segments::is_whole(bytes) {
            return Err(broken("JPEG", "it is truncated: the end of the image is missing"));
        }
        let mut decoder = read_header(bytes, ColorSpace::RGBA).map_err(|error| match segments::rare_coding(bytes) {
            Some(coding) => format!("the JPEG image is coded {coding}, which is not supported"),
            None => error,
        })?;
        if !decoder.input_colorspace().is_some_and(is_usual) {
            // CMYK and RGB come out wrong with an alpha channel, or not at all.
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
        exif::orientation(&segments::exif(self.bytes), || segments::xmp(self.bytes))
    }

    /// Decodes the image, down to the end of `part`, possibly to a fraction of its size, which is returned.
    pub(super) fn decode(self, part: Box2, target: Extent, pixels: &mut Vec<u8>) -> Result<(Extent, u16), String> {
        let is_usual = self.decoder.input_colorspace().is_some_and(is_usual);
        let frame = Frame::find(self.bytes);
        let (by_zune, by_jpeg_decoder) = (frame.is_none_or(suits_zune), frame.is_none_or(suits_jpeg_decoder));
        if is_usual && by_jpeg_decoder && may_be_reduced(part, target) {
            return Ok((self.decode_slowly(FRACTION, pixels)?, FRACTION));
        }
        match (by_zune, by_jpeg_decoder) {
            (true, _) => {}
            (false, true) => return Ok((self.decode_slowly(1, pixels)?, 1)),
            (false, false) => return Err("the JPEG image is sampled in a way that is not supported".to_owned()),
        }
        let num_rows = rows_of(part, target);
        if is_usual
            && num_rows.saturating_add(LEAST_ROWS_LEFT_OUT) <= self.extent.height
            && let Some(frame) = frame.filter(|frame| frame.scans == Scans::Rows)
            && let Some(upper) = upper_part(self.bytes, frame, num_rows)
        {
            let extent = Extent { height: num_rows, ..self.extent };
            decode_whole(read_header(&upper, ColorSpace::RGBA)?, extent, pixels)?;
            return Ok((extent, 1));
        }
        decode_whole(self.decoder, self.extent, pixels)?;
        Ok((self.extent, 1))
    }

    /// Decodes the image to a fraction of its size, 1 for the whole, with `jpeg-decoder`.
    fn decode_slowly(&self, fraction: u16, pixels: &mut Vec<u8>) -> Result<Extent, String> {
        let mut decoder = jpeg_decoder::Decoder::new(self.bytes);
        decoder.read_info().map_err(|error| broken("JPEG", error))?;
        let mut extent = self.extent;
        if fraction > 1 {
            let reduced = |side: u32| u16::try_from(side.div_ceil(u32::from(fraction))).unwrap_or(u16::MAX);
            let scaled = decoder.scale(reduced(extent.width), reduced(extent.height));
            let (width, height) = scaled.map_err(|error| broken("JPEG", error))?;
            extent = Extent { width: u32::from(width), height: u32::from(height) };
        } else {
            // Frees the last image's memory before the decoder allocates that of a whole one.
            *pixels = Vec::new();
        }
        // By default, this decoder goes by component names before everything else that identifies them.
        if decoder.info().is_some_and(|info| info.pixel_format == PixelFormat::RGB24) {
            let is_usual = self.decoder.input_colorspace().is_some_and(is_usual);
            decoder.set_color_transform(if is_usual { ColorTransform::YCbCr } else { ColorTransform::RGB });
        }
        let samples = decoder.decode().map_err(|error| broken("JPEG", error))?;
        drop(decoder);
        match samples.len() / (extent.num_bytes() / DECODED).max(1) {
            4 => inks_to_pixels(&samples, pixels),
            channels => to_pixels(&samples, channels, pixels),
        }
        match pixels.len() == extent.num_bytes() {
            true => Ok(extent),
            false => Err(broken("JPEG", "it does not have as many pixels as its header says")),
        }
    }
}

/// Starts decoding an image to pixels of `space`. Grey and CMYK become RGB, too; CMYK as Adobe's programs, and so
/// nearly all, write it: inverted.
fn read_header(bytes: &[u8], space: ColorSpace) -> Result<JpegDecoder<ZCursor<&[u8]>>, String> {
    let options = DecoderOptions::default().set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options.jpeg_set_out_colorspace(space));
    decoder.decode_headers().map_err(|error| broken("JPEG", error))?;
    Ok(decoder)
}

/// Returns whether decoding the image to [`FRACTION`] of its size gives visually the same result.
fn may_be_reduced(part: Box2, target: Extent) -> bool {
    let suits = |side: f64, target: u32| {
        let left = side / f64::from(FRACTION);
        left >= LEAST_SIDE && left >= LEAST_REDUCTION * f64::from(target)
    };
    suits(part.width, target.width) && suits(part.height, target.height)
}

/// Returns how many rows of an image, from the first on, contribute to the resized `part`: below its own, as many as
/// make a pixel.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and the cast saturates")]
fn rows_of(part: Box2, target: Extent) -> u32 {
    let reach = (part.height / f64::from(target.height)).max(1.0);
    (part.top + part.height + reach + ROWS_BELOW).ceil() as u32
}

/// Decodes an image of `extent`.
fn decode_whole(mut decoder: JpegDecoder<ZCursor<&[u8]>>, extent: Extent, pixels: &mut Vec<u8>) -> Result<(), String> {
    let num_bytes = decoder.output_buffer_size().ok_or_else(|| broken("JPEG", "it has no size"))?;
    pixels.resize(num_bytes, 0);
    decoder.decode_into(pixels).map_err(|error| broken("JPEG", error))?;
    if !decoder.input_colorspace().is_some_and(is_usual) {
        to_pixels(&pixels.clone(), CHANNELS, pixels);
    }
    match pixels.len() == extent.num_bytes() {
        true => Ok(()),
        false => Err(broken("JPEG", "it does not have as many pixels as its header says")),
    }
}

/// Returns an image whose header says that it ends after `num_rows` rows, so that the rest is not decoded.
fn upper_part(bytes: &[u8], frame: Frame, num_rows: u32) -> Option<Vec<u8>> {
    let height = u16::try_from(num_rows).ok()?.to_be_bytes();
    let mut upper = bytes.to_vec();
    upper.get_mut(frame.height_place..frame.height_place + height.len())?.copy_from_slice(&height);
    Some(upper)
}

/// Returns whether `zune-jpeg` decodes an image correctly. Its pixels are silently wrong if components come one after
/// another, or if one is sampled more finely than the first.
fn suits_zune(frame: Frame) -> bool {
    frame.scans != Scans::Components && frame.is_first_finest
}

/// Returns whether `jpeg-decoder` does. If a component has its own scan, it counts its blocks as if it had the finest
/// or the coarsest sampling.
fn suits_jpeg_decoder(frame: Frame) -> bool {
    frame.scans == Scans::Rows || !frame.has_middle
}

/// Converts CMYK samples to `pixels`.
fn inks_to_pixels(samples: &[u8], pixels: &mut Vec<u8>) {
    pixels.clear();
    pixels.reserve(samples.len());
    for &[cyan, magenta, yellow, black] in samples.as_chunks::<4>().0 {
        let paper = u16::from(u8::MAX - black);
        let left = |ink| u8::try_from((u16::from(u8::MAX - ink) * paper + 127) / 255).unwrap_or(u8::MAX);
        pixels.extend_from_slice(&[left(cyan), left(magenta), left(yellow), 0]);
    }
}

/// Returns whether an image is stored in a common way.
fn is_usual(stored: ColorSpace) -> bool {
    matches!(stored, ColorSpace::Luma | ColorSpace::YCbCr)
}
