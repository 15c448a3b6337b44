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

/// Rows below a crop that its last ones are made of, too: colours are stored for several rows together.
const ROWS_BELOW: f64 = 16.0;

/// Rows that are worth a second look at the header to leave them out.
const LEAST_ROWS_LEFT_OUT: u32 = 32;

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

    /// Decodes the image, as far down as `part` of it reaches, perhaps to a fraction of its size, which is returned.
    pub(super) fn decode(self, part: Box2, target: Extent, pixels: &mut Vec<u8>) -> Result<(Extent, u16), String> {
        let is_usual = self.decoder.input_colorspace().is_some_and(is_usual);
        let reduction = (part.width / f64::from(target.width)).min(part.height / f64::from(target.height));
        let fraction = FRACTIONS.into_iter().find(|&fraction| reduction >= f64::from(fraction) * LEAST_REDUCTION);
        if let Some(fraction) = fraction.filter(|_| is_usual) {
            return Ok((self.decode_scaled(fraction, pixels)?, fraction));
        }
        let num_rows = rows_of(part, target);
        if is_usual
            && num_rows.saturating_add(LEAST_ROWS_LEFT_OUT) <= self.extent.height
            && let Some(upper) = upper_part(self.bytes, num_rows)
        {
            let extent = Extent { height: num_rows, ..self.extent };
            decode_whole(read_header(&upper, ColorSpace::RGBA)?, extent, pixels)?;
            return Ok((extent, 1));
        }
        decode_whole(self.decoder, self.extent, pixels)?;
        Ok((self.extent, 1))
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

/// Returns how many rows of an image, from the first on, `part` of it is resized of: below its own as many as make a pixel.
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
        false => Err(broken("JPEG", "its pixels are not as many as its header says")),
    }
}

/// Returns an image of which the header says that it ends after `num_rows` rows, so that nobody decodes those below; `None`
/// where rows are stored in several scans.
///
/// ITU-T T.81, B.2.2 and B.2.3: a frame's segment is its marker, length, precision, height, width and number of
/// components; a scan's is marker, length and number of components.
fn upper_part(bytes: &[u8], num_rows: u32) -> Option<Vec<u8>> {
    const SEQUENTIAL: [u8; 2] = [0xc0, 0xc1];
    const SCAN: u8 = 0xda;
    let height = u16::try_from(num_rows).ok()?.to_be_bytes();
    let mut segment = 2;
    let mut frame = None;
    loop {
        let &[0xff, marker, high, low, ..] = bytes.get(segment..)? else { return None };
        if SEQUENTIAL.contains(&marker) {
            frame = Some((segment + 5, *bytes.get(segment + 9)?));
        } else if marker == SCAN {
            let (place, _) = frame.filter(|(_, num_components)| bytes.get(segment + 4) == Some(num_components))?;
            let mut upper = bytes.to_vec();
            upper.get_mut(place..place + 2)?.copy_from_slice(&height);
            return Some(upper);
        }
        segment += 2 + usize::from(u16::from_be_bytes([high, low]));
    }
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
