//! Chooses the part of an image that is kept.
//!
//! The random numbers belong to the row: number 0 decides whether the image is flipped, numbers `1 + 4t` to `4 + 4t`
//! are the area, the aspect ratio, the top and the left side of attempt `t`. So the crop of a row is the same however
//! the rows are divided, and images of one size in one row are cropped alike.

use super::Extent;
use super::settings::{Crop, ImageSettings};
use crate::plan::seed::Draws;

/// Attempts to find a random crop within the image, before the center is used.
const TRIES: u32 = 10;

/// A part of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Box2 {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Box2 {
    /// Returns the part of an image that was decoded to a fraction of its size, `to`: that is rounded up, so its last
    /// pixels cover less than the others.
    pub(super) fn reduced(self, fraction: u16, to: Extent) -> Self {
        let [left, top, width, height] =
            [self.left, self.top, self.width, self.height].map(|side| side / f64::from(fraction));
        // Rounded values must not exceed the image.
        let (left, top) = (left.max(0.0), top.max(0.0));
        let (width, height) = (width.min(f64::from(to.width) - left), height.min(f64::from(to.height) - top));
        Self { left, top, width, height }
    }
}

/// The part of an image to keep, and whether it is flipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placed {
    pub(super) cropped: Box2,
    pub(super) is_mirrored: bool,
}

impl Placed {
    /// Chooses for an upright image of `extent`.
    pub(super) fn choose(settings: &ImageSettings, extent: Extent, draws: impl FnOnce() -> Draws) -> Self {
        let (width, height) = (f64::from(extent.width), f64::from(extent.height));
        let proportion = f64::from(settings.size.1) / f64::from(settings.size.0);
        if settings.crop != Crop::Random && settings.flip == 0.0 {
            return Self { cropped: fixed(settings.crop, width, height, proportion), is_mirrored: false };
        }
        let mut draws = draws();
        let is_mirrored = draws.next_uniform() < settings.flip;
        let cropped = match settings.crop {
            Crop::Random => random(settings, width, height, &mut draws),
            other => fixed(other, width, height, proportion),
        };
        Self { cropped, is_mirrored }
    }
}

fn fixed(crop: Crop, width: f64, height: f64, proportion: f64) -> Box2 {
    match crop {
        Crop::Whole => Box2 { left: 0.0, top: 0.0, width, height },
        Crop::Center | Crop::Random => middle(width, height, proportion),
    }
}

/// Returns the largest centered part with an aspect ratio, width by height.
fn middle(width: f64, height: f64, proportion: f64) -> Box2 {
    let (kept_width, kept_height) = (width.min(height * proportion), height.min(width / proportion));
    let (left, top) = ((width - kept_width) / 2.0, (height - kept_height) / 2.0);
    Box2 { left, top, width: kept_width, height: kept_height }
}

/// Chooses like torchvision's `RandomResizedCrop`, with our own random numbers.
fn random(settings: &ImageSettings, width: f64, height: f64, draws: &mut Draws) -> Box2 {
    let between = |(least, most): (f64, f64), uniform: f64| least + (most - least) * uniform;
    let ratios = (settings.ratio.0.ln(), settings.ratio.1.ln());
    for _ in 0..TRIES {
        let [area, ratio, top, left] = [(); 4].map(|()| draws.next_uniform());
        let area = width * height * between(settings.scale, area);
        let ratio = between(ratios, ratio).exp();
        let (kept_width, kept_height) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if (1.0..=width).contains(&kept_width) && (1.0..=height).contains(&kept_height) {
            // Any position from the first to the last, each equally likely.
            let place = |uniform: f64, room: f64| (uniform * (room + 1.0)).floor().min(room);
            let (left, top) = (place(left, width - kept_width), place(top, height - kept_height));
            return Box2 { left, top, width: kept_width, height: kept_height };
        }
    }
    // At least one pixel, whatever the ratio.
    let proportion = (width / height).clamp(settings.ratio.0, settings.ratio.1).clamp(1.0 / height, width);
    middle(width, height, proportion)
}
