//! How images are transformed.

use serde::{Deserialize, Serialize};

use super::{CHANNELS, Extent};

/// The largest side of a result.
const MAX_SIDE: u32 = 16_384;

/// The part of an image to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crop {
    /// All of it, whatever its aspect ratio.
    Whole,
    /// The largest centered part with the right aspect ratio.
    Center,
    /// A part of random size, aspect ratio and position.
    Random,
}

/// The order of the pixels' colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// One plane for each colour.
    #[serde(rename = "CHW")]
    Planes,
    /// The colours of a pixel together.
    #[serde(rename = "HWC")]
    Pixels,
}

/// The colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ColorMode {
    /// Red, green, blue.
    #[serde(rename = "RGB")]
    Rgb,
    /// Grey.
    #[serde(rename = "L")]
    Grey,
}

/// What happens to a row whose image cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The stream ends with an error.
    Raise,
    /// The row is left out, and counted.
    Skip,
}

/// How images are transformed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Height and width.
    pub size: (u32, u32),
    /// The part to keep.
    pub crop: Crop,
    /// Minimum and maximum share of an image's area that a random crop has.
    pub scale: (f64, f64),
    /// Minimum and maximum aspect ratio (width by height) of a random crop.
    pub ratio: (f64, f64),
    /// The probability that an image is flipped, left to right.
    pub flip: f64,
    /// The order of the pixels' colours.
    pub layout: Layout,
    /// The colours.
    pub mode: ColorMode,
    /// What happens to images that cannot be decoded.
    pub on_error: OnError,
    /// Maximum number of pixels of an encoded image.
    pub max_pixels: u64,
}

impl ImageSettings {
    /// Returns what is wrong with the settings.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (height, width) = self.size;
        if !(1..=MAX_SIDE).contains(&height) || !(1..=MAX_SIDE).contains(&width) {
            return Err(format!("size: expected sides of 1 to {MAX_SIDE}, got ({height}, {width})"));
        }
        let is_range = |(least, most): (f64, f64)| least > 0.0 && least <= most && most.is_finite();
        if !is_range(self.scale) || self.scale.1 > 1.0 {
            return Err(format!("scale: expected (least, most) within 0 to 1, got {:?}", self.scale));
        }
        if !is_range(self.ratio) {
            return Err(format!("ratio: expected (least, most) above 0, got {:?}", self.ratio));
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return Err(format!("flip: expected 0 to 1, got {}", self.flip));
        }
        Ok(())
    }

    /// Refuses an image with too many pixels, before it is decoded.
    pub(super) fn check_extent(&self, extent: Extent) -> Result<(), String> {
        let Extent { width, height } = extent;
        if width == 0 || height == 0 {
            return Err(format!("the image is broken: it is {width} x {height} pixels"));
        }
        match u64::from(width) * u64::from(height) {
            pixels if pixels <= self.max_pixels => Ok(()),
            pixels => Err(format!(
                "the image has {width} x {height} = {pixels} pixels, more than `max_pixels` ({}); raise the limit if \
                 the image can be trusted",
                self.max_pixels
            )),
        }
    }

    /// Returns the size as an extent.
    pub(super) fn extent(&self) -> Extent {
        Extent { width: self.size.1, height: self.size.0 }
    }

    fn num_channels(&self) -> usize {
        match self.mode {
            ColorMode::Rgb => CHANNELS,
            ColorMode::Grey => 1,
        }
    }

    /// Returns the bytes of a result.
    pub(crate) fn num_bytes(&self) -> usize {
        self.size.0 as usize * self.size.1 as usize * self.num_channels()
    }

    /// Returns the shape of a result's tensor.
    pub(crate) fn shape(&self) -> [usize; 3] {
        let (height, width) = (self.size.0 as usize, self.size.1 as usize);
        match self.layout {
            Layout::Planes => [self.num_channels(), height, width],
            Layout::Pixels => [height, width, self.num_channels()],
        }
    }
}
