//! Identifies an image by its first bytes, and reads its header.

use std::borrow::Cow;
use std::fmt::Display;

use super::Extent;
use super::crop::Box2;
use super::jpeg::Jpeg;
use super::layout::Orientation;
use super::png::Png;
use super::segments;
use super::webp::WebP;

/// An image whose header was read.
pub(super) enum Opened<'a> {
    Jpeg(Box<Jpeg<'a>>),
    Png(Box<Png<'a>>),
    WebP(Box<WebP<'a>>),
}

impl<'a> Opened<'a> {
    /// Reads the header of an image.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        match bytes {
            [] => Err("there is no image: it has no bytes".to_owned()),
            [0xff, 0xd8, ..] => Ok(Self::Jpeg(Box::new(Jpeg::open(bytes)?))),
            [0x89, b'P', b'N', b'G', ..] => Ok(Self::Png(Box::new(Png::open(bytes)?))),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                Ok(Self::WebP(Box::new(WebP::open(bytes)?)))
            }
            _ => {
                let first = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
                Err(format!("it is not a JPEG, PNG or WebP image: its {} bytes begin with {first}", bytes.len()))
            }
        }
    }

    /// Returns the size of the image as stored.
    pub(super) fn extent(&self) -> Extent {
        match self {
            Self::Jpeg(image) => image.extent(),
            Self::Png(image) => image.extent(),
            Self::WebP(image) => image.extent(),
        }
    }

    /// Returns how the upright image is stored.
    pub(super) fn orientation(&self) -> Orientation {
        match self {
            Self::Jpeg(image) => image.orientation(),
            Self::Png(image) => image.orientation(),
            Self::WebP(image) => image.orientation(),
        }
    }

    /// Decodes the image into `pixels` and returns its size there, and the divisor of the stored size that gives it: 1,
    /// or more if `part` is to be reduced to `target`.
    pub(super) fn decode(self, part: Box2, target: Extent, pixels: &mut Vec<u8>) -> Result<(Extent, u16), String> {
        match self {
            Self::Jpeg(image) => image.decode(part, target, pixels),
            Self::Png(image) => Ok((image.decode(pixels)?, 1)),
            Self::WebP(image) => Ok((image.decode(pixels)?, 1)),
        }
    }
}

/// Formats a decoder's error.
pub(super) fn broken(kind: &str, error: impl Display) -> String {
    format!("the {kind} image is broken: {error}")
}

/// Returns the image with correct colour information.
pub(super) fn corrected(bytes: &[u8]) -> Cow<'_, [u8]> {
    match bytes {
        [0xff, 0xd8, ..] => segments::corrected(bytes),
        _ => Cow::Borrowed(bytes),
    }
}
