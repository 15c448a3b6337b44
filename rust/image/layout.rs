//! Rotates pixels upright and writes them in their layout.

use super::crop::Box2;
use super::settings::{ColorMode, ImageSettings, Layout};
use super::{CHANNELS, DECODED, Extent};

/// How an upright image is stored, by EXIF's numbers from 1 to 8.
///
/// Column x and row y of the upright image are column and row of the stored one, or row and column, each possibly
/// counted from the other end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    is_swapped: bool,
    flips_columns: bool,
    flips_rows: bool,
}

impl Orientation {
    /// Returns the orientation for EXIF's number; upright for invalid ones.
    pub(super) fn from_exif(number: u16) -> Self {
        Self {
            is_swapped: matches!(number, 5..=8),
            flips_columns: matches!(number, 2 | 3 | 7 | 8),
            flips_rows: matches!(number, 3 | 4 | 6 | 7),
        }
    }

    /// Returns the extent of the upright image for that of the stored one, and vice versa.
    pub(super) fn upright(self, stored: Extent) -> Extent {
        match self.is_swapped {
            true => Extent { width: stored.height, height: stored.width },
            false => stored,
        }
    }

    /// Returns the part of the stored image that is this part of the upright one.
    pub(super) fn stored_box(self, part: Box2, stored: Extent) -> Box2 {
        let Box2 { left, top, width, height } = part;
        let mut part = match self.is_swapped {
            true => Box2 { left: top, top: left, width: height, height: width },
            false => part,
        };
        if self.flips_columns {
            part.left = f64::from(stored.width) - part.left - part.width;
        }
        if self.flips_rows {
            part.top = f64::from(stored.height) - part.top - part.height;
        }
        part
    }

    /// Returns the orientation of an image whose upright form is flipped, left to right.
    fn mirrored(self) -> Self {
        match self.is_swapped {
            true => Self { flips_rows: !self.flips_rows, ..self },
            false => Self { flips_columns: !self.flips_columns, ..self },
        }
    }
}

/// Writes the pixels of a stored image upright, flipped if necessary, in their layout.
pub(super) fn lay_out(
    pixels: &[u8],
    stored: Extent,
    orientation: Orientation,
    is_mirrored: bool,
    settings: &ImageSettings,
    out: &mut [u8],
) {
    let orientation = if is_mirrored { orientation.mirrored() } else { orientation };
    let (width, height) = (settings.size.1 as usize, settings.size.0 as usize);
    let pixels = pixels.as_chunks::<DECODED>().0;
    for y in 0..height {
        let row = Row { pixels, stored, orientation, y };
        match (settings.mode, settings.layout) {
            (ColorMode::Grey, _) => {
                let out = &mut out[y * width..(y + 1) * width];
                row.each(width, out.iter_mut(), |out, pixel| *out = luma(pixel));
            }
            (ColorMode::Rgb, Layout::Pixels) => {
                let out = &mut out[y * width * CHANNELS..(y + 1) * width * CHANNELS];
                row.each(width, out.as_chunks_mut::<CHANNELS>().0.iter_mut(), |out, [r, g, b, _]| *out = [r, g, b]);
            }
            (ColorMode::Rgb, Layout::Planes) => {
                let (red, rest) = out.split_at_mut(width * height);
                let (green, blue) = rest.split_at_mut(width * height);
                let [red, green, blue] = [red, green, blue].map(|plane| &mut plane[y * width..(y + 1) * width]);
                let out = red.iter_mut().zip(green).zip(blue);
                row.each(width, out, |((red, green), blue), [r, g, b, _]| [*red, *green, *blue] = [r, g, b]);
            }
        }
    }
}

/// A row of the upright image.
struct Row<'a> {
    pixels: &'a [[u8; DECODED]],
    stored: Extent,
    orientation: Orientation,
    y: usize,
}

impl Row<'_> {
    /// Calls `write` for each pixel and its position.
    fn each<T>(&self, num: usize, out: impl Iterator<Item = T>, write: impl Fn(T, [u8; DECODED])) {
        let (width, height) = (self.stored.width as usize, self.stored.height as usize);
        let Orientation { is_swapped, flips_columns, flips_rows } = self.orientation;
        let from_end = |at: usize, len: usize, flips: bool| if flips { len - 1 - at } else { at };
        if is_swapped {
            let column = from_end(self.y, width, flips_columns);
            let rows = (0..num).map(|x| self.pixels[from_end(x, height, flips_rows) * width + column]);
            return out.zip(rows).for_each(|(out, pixel)| write(out, pixel));
        }
        let start = from_end(self.y, height, flips_rows) * width;
        let row = self.pixels[start..start + num].iter().copied();
        match flips_columns {
            true => out.zip(row.rev()).for_each(|(out, pixel)| write(out, pixel)),
            false => out.zip(row).for_each(|(out, pixel)| write(out, pixel)),
        }
    }
}

/// Returns the grey value of a colour, like PIL's `convert("L")`: ITU-R 601-2.
fn luma([red, green, blue, _]: [u8; DECODED]) -> u8 {
    let sum = u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000;
    sum.to_le_bytes()[2]
}
