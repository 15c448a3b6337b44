//! Decodes images to pixels of one size: JPEG, PNG and WebP, cropped, resized and flipped.
//!
//! ```text
//! bytes ──► header: size, orientation ──► crop box ──► decode ──► resize ──► orient, mirror, lay out
//!           (limits checked here)         (seeded)     (JPEG: perhaps scaled)
//! ```
//!
//! Resizing is a convolution with a triangle as wide as the reduction, which is what PIL calls `BILINEAR`. The crop is
//! chosen in the upright image; its box is transformed to that of the stored one, so that only the result is rotated.

mod crop;
mod exif;
mod jpeg;
mod layout;
mod open;
mod png;
mod segments;
mod settings;
mod webp;

#[cfg(test)]
mod tests;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use self::crop::{Box2, Placed};
use self::open::Opened;
pub use self::settings::{ColorMode, Crop, ImageSettings, Layout, OnError};
use crate::panics;
use crate::plan::seed::Draws;

/// Bytes per pixel of a colour result.
const CHANNELS: usize = 3;

/// Bytes per pixel before layout: red, green, blue and an unused one. Resizing four takes three quarters of the time of
/// three.
const DECODED: usize = 4;

/// Decodes images one after another, with shared buffers.
#[derive(Debug)]
pub(crate) struct ImageDecoder<'a> {
    settings: &'a ImageSettings,
    resizer: Resizer,
    /// The decoded image.
    pixels: Vec<u8>,
    /// The resized one, not yet rotated.
    resized: Vec<u8>,
}

/// The size of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Extent {
    fn num_pixels(self) -> usize {
        self.width as usize * self.height as usize
    }

    /// Returns the bytes of a decoded image of this size.
    fn num_bytes(self) -> usize {
        self.num_pixels() * DECODED
    }
}

impl<'a> ImageDecoder<'a> {
    pub(crate) fn new(settings: &'a ImageSettings) -> Self {
        Self { settings, resizer: Resizer::new(), pixels: Vec::new(), resized: Vec::new() }
    }

    /// Writes the pixels of an image to `out`; `draws` returns its row's random numbers.
    ///
    /// # Errors
    ///
    /// What is wrong with the image.
    pub(crate) fn decode(&mut self, bytes: &[u8], draws: impl FnOnce() -> Draws, out: &mut [u8]) -> Result<(), String> {
        panics::caught(|| self.decode_trusting(bytes, draws, out))
            .unwrap_or_else(|panic| Err(format!("the image is broken: {panic}")))
    }

    fn decode_trusting(&mut self, bytes: &[u8], draws: impl FnOnce() -> Draws, out: &mut [u8]) -> Result<(), String> {
        let bytes = open::corrected(bytes);
        let opened = Opened::open(&bytes)?;
        let (stored, orientation) = (opened.extent(), opened.orientation());
        self.settings.check_extent(stored)?;
        let placed = Placed::choose(self.settings, orientation.upright(stored), draws);
        let target = orientation.upright(self.settings.extent());
        let cropped = orientation.stored_box(placed.cropped, stored);
        let (decoded, fraction) = opened.decode(cropped, target, &mut self.pixels)?;
        let cropped = cropped.reduced(fraction, decoded);
        self.resized.resize(target.num_bytes(), 0);
        resize(&mut self.resizer, &self.pixels, decoded, cropped, target, &mut self.resized)?;
        layout::lay_out(&self.resized, target, orientation, placed.is_mirrored, self.settings, out);
        Ok(())
    }
}

/// Resizes a part of an image. Between the two passes are at most as many pixels as in image and result together.
fn resize(
    resizer: &mut Resizer,
    pixels: &[u8],
    from: Extent,
    part: Box2,
    to: Extent,
    out: &mut [u8],
) -> Result<(), String> {
    if !is_narrowed_first(from, part, to) {
        return resize_at_once(resizer, pixels, from, part, to, out);
    }
    // All rows: those beside the part contribute, too.
    let between = Extent { width: to.width, height: from.height };
    let mut narrowed = vec![0; between.num_bytes()];
    let all_rows = Box2 { top: 0.0, height: f64::from(from.height), ..part };
    resize_at_once(resizer, pixels, from, all_rows, between, &mut narrowed)?;
    let all_columns = Box2 { left: 0.0, width: f64::from(to.width), ..part };
    resize_at_once(resizer, &narrowed, between, all_columns, to, out)
}

/// Returns whether to change the width first. The resizer begins with the height, which is faster, but makes an image
/// of a few long rows much larger: a row of a million pixels would become as many columns as the result is high.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and the cast saturates")]
fn is_narrowed_first(from: Extent, part: Box2, to: Extent) -> bool {
    // On both sides of the part, as many columns as make a pixel contribute.
    let reach = (part.width / f64::from(to.width)).max(1.0);
    let width = from.width.min((part.width + 2.0 * reach).ceil() as u32);
    Extent { width, height: to.height }.num_pixels() > from.num_pixels() + to.num_pixels()
}

/// Resizes a part of an image, first its height, then its width.
fn resize_at_once(
    resizer: &mut Resizer,
    pixels: &[u8],
    from: Extent,
    part: Box2,
    to: Extent,
    out: &mut [u8],
) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("it cannot be resized: {error}");
    let source = ImageRef::new(from.width, from.height, pixels, PixelType::U8x4).map_err(|error| failed(&error))?;
    let mut target = Image::from_slice_u8(to.width, to.height, out, PixelType::U8x4).map_err(|error| failed(&error))?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).use_alpha(false).crop(
        part.left,
        part.top,
        part.width,
        part.height,
    );
    resizer.resize(&source, &mut target, &options).map_err(|error| failed(&error))
}

/// Fills `pixels` from samples of grey, grey and alpha, RGB, or RGB and alpha: 1 to 4 `channels`.
fn to_pixels(samples: &[u8], channels: usize, pixels: &mut Vec<u8>) {
    pixels.clear();
    pixels.reserve(samples.len() / channels.max(1) * DECODED);
    match channels {
        1 => samples.iter().for_each(|&grey| pixels.extend_from_slice(&[grey; DECODED])),
        2 => samples.as_chunks::<2>().0.iter().for_each(|&[grey, _]| pixels.extend_from_slice(&[grey; DECODED])),
        3 => samples.as_chunks::<3>().0.iter().for_each(|&[r, g, b]| pixels.extend_from_slice(&[r, g, b, 0])),
        _ => pixels.extend_from_slice(samples),
    }
}
