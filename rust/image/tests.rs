use super::*;
use crate::plan::seed::{Key, Purpose};

fn settings() -> ImageSettings {
    ImageSettings {
        size: (2, 3),
        crop: Crop::Whole,
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
        flip: 0.0,
        layout: Layout::Pixels,
        mode: ColorMode::Rgb,
        on_error: OnError::Raise,
        max_pixels: 1000,
    }
}

/// A PNG of the pixels whose red is `x`, green `y`.
fn png(width: u32, height: u32, exif: Option<u16>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut info = ::png::Info::with_size(width, height);
    info.color_type = ::png::ColorType::Rgb;
    info.bit_depth = ::png::BitDepth::Eight;
    let orientation = exif.map(|number| {
        let [low, high] = number.to_le_bytes();
        let directory = [1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, low, high, 0, 0, 0, 0, 0, 0];
        [&b"II*\0\x08\0\0\0"[..], &directory].concat()
    });
    info.exif_metadata = orientation.map(Into::into);
    let mut writer = ::png::Encoder::with_info(&mut out, info).unwrap().write_header().unwrap();
    let pixel = |x: u32, y: u32| [u8::try_from(x).unwrap(), u8::try_from(y).unwrap(), 7];
    let pixels: Vec<u8> = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    writer.write_image_data(&pixels).unwrap();
    writer.finish().unwrap();
    out
}

fn draws(position: u64) -> Draws {
    Key::new(1, 0, Purpose::Image).draws(position)
}

fn decoded(settings: &ImageSettings, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = vec![0; settings.num_bytes()];
    ImageDecoder::new(settings).decode(bytes, || draws(0), &mut out).map(|()| out)
}

/// The origin of the result's pixels, as (column, row).
fn places(settings: &ImageSettings, bytes: &[u8]) -> Vec<(u8, u8)> {
    decoded(settings, bytes).unwrap().as_chunks::<3>().0.iter().map(|&[x, y, _]| (x, y)).collect()
}

#[test]
fn every_orientation_is_turned_upright() {
    // EXIF's description of the row and the column of the stored image where the upright one has its first pixels.
    let expected = [
        (1, (3, 2), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]),
        (2, (3, 2), [(2, 0), (1, 0), (0, 0), (2, 1), (1, 1), (0, 1)]),
        (3, (3, 2), [(2, 1), (1, 1), (0, 1), (2, 0), (1, 0), (0, 0)]),
        (4, (3, 2), [(0, 1), (1, 1), (2, 1), (0, 0), (1, 0), (2, 0)]),
        (5, (2, 3), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
        (6, (2, 3), [(0, 2), (0, 1), (0, 0), (1, 2), (1, 1), (1, 0)]),
        (7, (2, 3), [(1, 2), (1, 1), (1, 0), (0, 2), (0, 1), (0, 0)]),
        (8, (2, 3), [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1), (0, 2)]),
    ];
    for (number, (width, height), upright) in expected {
        assert_eq!(places(&settings(), &png(width, height, Some(number))), upright, "orientation {number}");
    }
}

#[test]
fn layouts_hold_the_same_pixels() {
    let bytes = png(3, 2, None);
    let planes = decoded(&ImageSettings { layout: Layout::Planes, ..settings() }, &bytes).unwrap();
    assert_eq!(planes, [0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 1, 7, 7, 7, 7, 7, 7]);
    let mirrored = decoded(&ImageSettings { layout: Layout::Planes, flip: 1.0, ..settings() }, &bytes).unwrap();
    assert_eq!(mirrored[..6], [2, 1, 0, 2, 1, 0]);
    let turned = ImageSettings { flip: 1.0, ..settings() };
    assert_eq!(
        places(&turned, &png(2, 3, Some(6))),
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)],
        "mirrored after it was turned"
    );
    let grey = decoded(&ImageSettings { mode: ColorMode::Grey, ..settings() }, &bytes).unwrap();
    assert_eq!(grey, [1, 1, 1, 1, 2, 2]);
}

#[test]
fn a_crop_in_the_middle_has_the_right_proportions() {
    let center = ImageSettings { crop: Crop::Center, ..settings() };
    assert_eq!(places(&center, &png(7, 2, None)), [(2, 0), (3, 0), (4, 0), (2, 1), (3, 1), (4, 1)]);
}

#[test]
fn random_crops_lie_within_the_image_and_follow_from_the_row() {
    let random = ImageSettings { crop: Crop::Random, ..settings() };
    let mut seen = Vec::new();
    for position in 0..200 {
        for (width, height) in [(1, 1), (640, 480), (3, 500), (500, 3)] {
            let extent = Extent { width, height };
            let placed = Placed::choose(&random, extent, || draws(position));
            assert_eq!(placed, Placed::choose(&random, extent, || draws(position)));
            let Box2 { left, top, width, height } = placed.cropped;
            assert!(left >= 0.0 && top >= 0.0 && width > 0.0 && height > 0.0);
            assert!(left + width <= f64::from(extent.width) && top + height <= f64::from(extent.height));
            if extent.width == 640 {
                let share = width * height / f64::from(640 * 480);
                assert!((0.079..1.0).contains(&share) && (0.74..1.35).contains(&(width / height)));
                seen.push((left, top));
            }
        }
    }
    seen.sort_by(|a, b| a.partial_cmp(b).unwrap());
    seen.dedup();
    assert!(seen.len() > 190, "only {} places", seen.len());
}

#[test]
fn a_random_crop_has_a_pixel_whatever_its_ratio() {
    for ratio in [f64::from_bits(1), 1e-300, 1e-3, 1.0, 1e10, f64::MAX] {
        let random = ImageSettings { crop: Crop::Random, ratio: (ratio, ratio), max_pixels: 10_000, ..settings() };
        for (width, height) in [(1, 1), (60, 40), (3, 250), (250, 3)] {
            let crop = Placed::choose(&random, Extent { width, height }, || draws(0)).cropped;
            assert!(crop.width > 0.999 && crop.height > 0.999, "{ratio}: {crop:?}");
            decoded(&random, &png(width, height, None)).unwrap();
        }
    }
}

#[test]
fn what_lies_between_the_passes_is_no_larger_than_image_and_result() {
    let extent = |(width, height)| Extent { width, height };
    let whole = |of: Extent| Box2 { left: 0.0, top: 0.0, width: of.width.into(), height: of.height.into() };
    let is_narrowed = |from, to| is_narrowed_first(extent(from), whole(extent(from)), extent(to));
    for from in [(640, 480), (480, 640), (4000, 3000), (100, 75), (32, 32), (800, 250), (1, 1), (1, 1_500_000)] {
        for to in [(224, 224), (640, 384), (32, 32)] {
            assert!(!is_narrowed(from, to), "{from:?} to {to:?} as ever");
        }
    }
    let sides = [1, 2, 3, 7, 60, 500, 16_384, 1_500_000];
    let pairs = || sides.iter().flat_map(|&width| sides.map(|height| (width, height)));
    for (from, to) in pairs().flat_map(|from| pairs().map(move |to| (from, to))) {
        let (first, second) =
            if is_narrowed(from, to) { ((to.0, from.1), "height") } else { ((from.0, to.1), "width") };
        let most = extent(from).num_pixels() + extent(to).num_pixels();
        assert!(extent(first).num_pixels() <= most, "{from:?} to {to:?}: {first:?} before its {second} changes");
    }
    assert!(is_narrowed((1_500_000, 1), (224, 224)) && is_narrowed((60_000, 1), (1, 16_384)));
}

#[test]
fn the_order_of_the_passes_does_not_change_the_pixels() {
    let (from, to) = (Extent { width: 240, height: 3 }, Extent { width: 5, height: 40 });
    let pixels: Vec<u8> = (0..from.num_bytes()).map(|place| u8::try_from(place * place % 251).unwrap()).collect();
    for part in [
        Box2 { left: 0.0, top: 0.0, width: 240.0, height: 3.0 },
        Box2 { left: 20.0, top: 0.5, width: 200.5, height: 1.25 },
        Box2 { left: 100.0, top: 1.0, width: 120.0, height: 1.0 },
    ] {
        assert!(is_narrowed_first(from, part, to));
        let (mut expected, mut got) = (vec![0; to.num_bytes()], vec![0; to.num_bytes()]);
        resize_at_once(&mut Resizer::new(), &pixels, from, part, to, &mut expected).unwrap();
        resize(&mut Resizer::new(), &pixels, from, part, to, &mut got).unwrap();
        let differences = expected.iter().zip(&got).map(|(expected, got)| expected.abs_diff(*got));
        assert!(differences.max().unwrap() <= 1, "{part:?}");
    }
}

#[test]
fn a_bomb_is_refused_by_its_header() {
    let error = decoded(&settings(), &png(40, 26, None)).unwrap_err();
    assert!(error.contains("40 x 26 = 1040 pixels, more than `max_pixels` (1000)"), "{error}");
}

#[test]
fn broken_images_say_what_is_wrong() {
    let whole = png(3, 2, None);
    for (bytes, said) in [
        (&b""[..], "it has no bytes"),
        (
            b"GIF89a\x01\x00\x01\x00",
            "it is not a JPEG, PNG or WebP image: its 10 bytes begin with 47 49 46 38 39 61 01 00",
        ),
        (&whole[..whole.len() - 20], "the PNG image is broken"),
        (&whole[..20], "the PNG image is broken"),
        (b"\xff\xd8\xff", "it is truncated"),
        (b"\xff\xd8\xff\xd9", "the JPEG image is broken"),
        (b"RIFF\x04\0\0\0WEBP", "the WebP image is broken"),
    ] {
        let error = decoded(&settings(), bytes).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

/// A segment of a JPEG.
fn segment(marker: u8, contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len() + 2).unwrap().to_be_bytes();
    [&[0xff, marker], &length[..], contents].concat()
}

/// A JPEG of 32 rows, up to the end of the first scan's segment, with the sampling of its components, across and down
/// in one byte.
fn jpeg_header(kind: u8, sampled: &[u8], num_in_first_scan: u8) -> Vec<u8> {
    let components = sampled.iter().flat_map(|&sampled| [1, sampled, 0]);
    let frame: Vec<u8> =
        [8, 0, 32, 0, 48, u8::try_from(sampled.len()).unwrap()].into_iter().chain(components).collect();
    // A comment that contains markers, a stray byte, and a repeated marker.
    let comment = segment(0xfe, b"\xff\xc0\x00\x03\xff\xda\xff\xd9\x00");
    let scan = segment(0xda, &[num_in_first_scan, 1, 0, 0, 63, 0]);
    [&b"\xff\xd8"[..], &comment, &segment(kind, &frame), b"\x07\xff\xff", &scan].concat()
}

#[test]
fn a_jpeg_is_whole_where_its_end_is_whatever_follows() {
    for num_scans in [1, 3] {
        let scan = [segment(0xc4, &[0; 70]), segment(0xda, b"\x01\x01\0\0\x3f\0"), vec![7; 300]].concat();
        let data = [&[9; 200][..], b"\xff\x00\xff\xd0\xff\x00\xff\xd1", &scan.repeat(num_scans - 1)].concat();
        let mut image = [jpeg_header(0xc2, &[0x22, 0x11, 0x11], 3), data].concat();
        let comment = 4..15;
        for end in (0..=image.len()).filter(|end| !comment.contains(end)) {
            assert!(!segments::is_whole(&image[..end]), "{end}");
            assert!(!segments::is_whole(&[&image[..end], &[0; 100]].concat()), "{end}, filled up");
        }
        image.extend(b"\xff\xff\xd9");
        for tail in [&b""[..], b"\xff", b"\xff\xd8\xff", b"\x00\xff\xda\x00\x08", &[0; 100]] {
            assert!(segments::is_whole(&[&image, tail].concat()), "{tail:?}");
        }
    }
}

#[test]
fn a_jpeg_is_walked_however_long_its_segments_say_to_be() {
    for bytes in
        [&b"\xff"[..], b"\xff\xda", b"\xff\xda\x00", b"\xff\xda\x00\x00", b"\xff\xda\xff\xff\x00", &[0xff; 999]]
    {
        assert!(!segments::is_whole(bytes));
        assert!(segments::exif(bytes).is_empty());
        assert_eq!(segments::Frame::find(bytes), None);
    }
    assert!(segments::is_whole(b"\xff\xda\x00\x00\xff\xd9\x00"), "a length that does not count itself");
}

#[test]
fn a_frame_says_which_decoder_is_right() {
    use segments::{Frame, Scans};
    let found = |kind, sampled: &[u8], num_in_first_scan| {
        let bytes = jpeg_header(kind, sampled, num_in_first_scan);
        let Frame { height_place, scans, is_first_finest, has_middle } = Frame::find(&bytes).unwrap();
        assert_eq!(bytes[height_place..height_place + 4], [0, 32, 0, 48]);
        (scans, is_first_finest, has_middle)
    };
    assert_eq!(found(0xc0, &[0x11], 1), (Scans::Rows, true, false));
    assert_eq!(found(0xc1, &[0x22, 0x11, 0x11], 3), (Scans::Rows, true, false));
    assert_eq!(found(0xc0, &[0x22, 0x11, 0x11], 1), (Scans::Components, true, false));
    assert_eq!(found(0xc2, &[0x22, 0x11, 0x11], 3), (Scans::Details, true, false));
    assert_eq!(found(0xc0, &[0x11, 0x22, 0x22], 3), (Scans::Rows, false, false));
    assert_eq!(found(0xc0, &[0x21, 0x12, 0x11], 3), (Scans::Rows, false, false));
    assert_eq!(found(0xc0, &[0x41, 0x21, 0x11], 3), (Scans::Rows, true, true));
}

#[test]
fn exif_says_the_orientation_in_16_or_32_bits_and_in_several_segments() {
    let directory = |kind: u16, value: &[u8]| {
        let entry = [&[0x12, 1][..], &kind.to_le_bytes(), &[1, 0, 0, 0], value, &[0; 4]].concat();
        [&b"II*\0\x08\0\0\0\x01\0"[..], &entry].concat()
    };
    let (short, long) = (directory(3, &[6, 0, 9, 9]), directory(4, &[5, 0, 0, 0]));
    let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x04\0\0\0\x01\0\0\0\x07\0\0\0\0";
    for (parts, number) in [
        (&[&short[..]][..], 6),
        (&[&long], 5),
        (&[big], 7),
        (&[&short, &long], 6),
        (&[b"", &long], 5),
        (&[&short[..11], &short[11..]], 6),
        (&[&directory(4, &[6, 0, 1, 0])], 1),
        (&[&directory(2, &[6, 0, 0, 0])], 1),
        (&[], 1),
    ] {
        let parts = parts.iter().flat_map(|part| segment(0xe1, &[b"Exif\0\0", *part].concat()));
        let header = jpeg_header(0xc0, &[0x11], 1);
        let bytes =
            [&header[..2], &segment(0xe1, b"http://ns.adobe.com/xap/1.0/\0"), &parts.collect::<Vec<_>>(), &header[2..]];
        let found = exif::orientation(&segments::exif(&bytes.concat()), || None);
        assert_eq!(found, layout::Orientation::from_exif(number), "{number}");
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for (wrong, said) in [
        (ImageSettings { size: (0, 2), ..settings() }, "size"),
        (ImageSettings { scale: (0.5, 0.4), ..settings() }, "scale"),
        (ImageSettings { scale: (0.5, 1.5), ..settings() }, "scale"),
        (ImageSettings { ratio: (0.0, 1.0), ..settings() }, "ratio"),
        (ImageSettings { flip: 1.5, ..settings() }, "flip"),
    ] {
        assert!(wrong.check().unwrap_err().starts_with(said));
    }
}
