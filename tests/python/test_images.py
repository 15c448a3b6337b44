"""Decoded images: those of PIL within two grey levels, the same on any number of ranks; and what cannot be decoded."""

from __future__ import annotations

import io
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data import write_fragments
from image_data import (
    encoded,
    exif_orientation,
    photo,
    png_with_text,
    profile_of,
    raw_jpeg,
    raw_png,
    segment,
    turned,
    with_chunk,
    with_exif,
    with_exif_behind,
    with_jpeg_size,
    with_segments,
    with_webp_size,
    xmp,
)
from order_model import uniforms
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIZE = (96, 128)


def dataset(folder: Path, images: Sequence[bytes | None], **options: Any) -> fb.Dataset:
    """Images as Hugging Face writes them, with their numbers."""
    cells = [None if body is None else {"bytes": body, "path": None} for body in images]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"id": range(len(images)), "image": pa.array(cells, kind)})
    write_fragments(folder, table, **({"row_group_rows": 10} | options))
    return fb.load_dataset(folder, split="train")


def stream_of(ds: fb.Dataset, batch_size: int = 8, share: tuple[int, int] = (0, 1), **image: Any) -> Any:
    decode = {"image": fb.Image(**({"size": SIZE} | image))}
    return ds.to_torch(batch_size, decode=decode, rank=share[0], world_size=share[1])


def decoded(ds: fb.Dataset, **image: Any) -> torch.Tensor:
    return torch.cat([batch["image"] for batch in stream_of(ds, **image)])


def reference(body: bytes, box: tuple[float, ...] | None = None, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Returns what PIL makes of an image."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(body))).convert("RGB")
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box))


def difference(tensor: torch.Tensor, expected: np.ndarray) -> float:
    """Returns the mean difference in grey levels of an image `(3, height, width)`."""
    return float(np.abs(tensor.permute(1, 2, 0).numpy().astype(int) - expected.astype(int)).mean())


PHOTO = photo(320, 240)
INKS = PHOTO.convert("CMYK")
# Says that three components are red, green and blue, whatever their names; but not beside JFIF, which has none such.
AS_RGB = segment(0xEE, b"Adobe\0\x64\0\0\0\0\0")
# Says of three components what there is of four only.
AS_INKS = segment(0xEE, b"Adobe\0\x64\0\0\0\0\2")
COARSE, FINE, UNALIKE = ((2, 2), (1, 1), (1, 1)), ((1, 1), (2, 2), (2, 2)), ((2, 1), (1, 2), (1, 1))
GREY16 = (np.arange(240 * 320, dtype=np.uint32) * 65_535 // (240 * 320)).astype(">u2").reshape(240, 320)
RGB16 = np.stack([GREY16, GREY16[::-1], GREY16[:, ::-1]], -1).astype(">u2")

# How a PNG stores text: plain, compressed, and both as international text.
TEXTS = ({}, {"zip": True}, {"is_international": True}, {"is_international": True, "zip": True})

KINDS = {
    "jpeg": encoded(PHOTO, "JPEG", quality=90),
    "jpeg without subsampling": encoded(PHOTO, "JPEG", quality=95, subsampling=0),
    "jpeg, progressive": encoded(PHOTO, "JPEG", quality=90, progressive=True),
    "jpeg, grey": encoded(PHOTO.convert("L"), "JPEG"),
    "jpeg, stored as RGB": encoded(PHOTO, "JPEG", quality=95, keep_rgb=True),
    "jpeg, cmyk": encoded(PHOTO.convert("CMYK"), "JPEG", quality=95),
    "jpeg, a scan for each component": raw_jpeg(PHOTO, COARSE, "components"),
    "jpeg, a scan for each component, odd sizes": raw_jpeg(photo(333, 251), COARSE, "components"),
    "jpeg, a scan for each component, colours of fewer rows": raw_jpeg(PHOTO, ((1, 2), (1, 1), (1, 1)), "components"),
    "jpeg, a scan for each component, all colours": raw_jpeg(PHOTO, [(1, 1)] * 3, "components"),
    "jpeg, a scan for each component, stored as RGB": with_segments(
        raw_jpeg(PHOTO, [(1, 1)] * 3, "components"), AS_RGB
    ),
    "jpeg, JFIF that says it is RGB": with_segments(encoded(PHOTO, "JPEG", quality=90), AS_RGB),
    "jpeg, progressive JFIF that says it is RGB": with_segments(encoded(PHOTO, "JPEG", progressive=True), AS_RGB),
    "jpeg, JFIF that says it is of inks": with_segments(encoded(PHOTO, "JPEG", quality=90), AS_INKS),
    "jpeg, three colours that say they are inks": with_segments(raw_jpeg(PHOTO, COARSE), AS_INKS),
    "jpeg, large JFIF that says it is RGB": with_segments(encoded(photo(2100, 1700), "JPEG", quality=90), AS_RGB),
    "jpeg, a scan for each ink": raw_jpeg(INKS, ((2, 2), (1, 1), (1, 1), (2, 2)), "components"),
    "jpeg, colours finer than light": raw_jpeg(PHOTO, FINE),
    "jpeg, colours finer than light, progressive": raw_jpeg(PHOTO, FINE, "details"),
    "jpeg, colours finer than light, a scan for each": raw_jpeg(PHOTO, FINE, "components"),
    "jpeg, colours finer than light, odd sizes": raw_jpeg(photo(333, 251), FINE, "components"),
    "jpeg, colours finer than light, downwards": raw_jpeg(PHOTO, UNALIKE),
    "jpeg, odd sizes": encoded(photo(333, 251), "JPEG"),
    "jpeg, large": encoded(photo(2100, 1700), "JPEG", quality=90),
    "jpeg, large and grey": encoded(photo(2100, 1700).convert("L"), "JPEG", quality=90),
    "jpeg, enlarged": encoded(photo(40, 30), "JPEG", quality=95),
    "png": encoded(PHOTO, "PNG"),
    "png, alpha": encoded(PHOTO.convert("RGBA"), "PNG"),
    "png, grey": encoded(PHOTO.convert("L"), "PNG"),
    "png, grey and alpha": encoded(PHOTO.convert("LA"), "PNG"),
    "png, palette": encoded(PHOTO.quantize(64), "PNG"),
    "png, palette of 4": encoded(PHOTO.quantize(4), "PNG", bits=2),
    "png, two levels": encoded(PHOTO.convert("1"), "PNG"),
    "png, transparent colour": encoded(PHOTO.convert("P"), "PNG", transparency=3),
    "webp": encoded(PHOTO, "WEBP", quality=90),
    "webp, lossless": encoded(PHOTO, "WEBP", lossless=True),
    "webp, alpha": encoded(PHOTO.convert("RGBA"), "WEBP", lossless=True),
    "webp, animated": encoded(PHOTO, "WEBP", save_all=True, append_images=[photo(320, 240, 1)], lossless=True),
    "png, animated": encoded(PHOTO, "PNG", save_all=True, append_images=[photo(320, 240, 1)]),
} | {f"jpeg, orientation {number}": turned(PHOTO, number) for number in range(1, 9)}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return dataset(tmp_path_factory.mktemp("kinds"), list(KINDS.values()))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[fb.Dataset, list[bytes]]:
    rng = np.random.default_rng(5)
    sizes = rng.integers(100, 400, (60, 2)).tolist()
    bodies = [encoded(photo(*size, seed), "JPEG", quality=92) for seed, size in enumerate(sizes)]
    return dataset(tmp_path_factory.mktemp("photos"), bodies), bodies


def test_every_kind_of_image_is_that_of_pil(kinds: fb.Dataset) -> None:
    found = decoded(kinds)
    assert found.dtype == torch.uint8
    assert found.shape == (len(KINDS), 3, *SIZE)
    assert found.is_contiguous()
    differences = {
        name: difference(tensor, reference(body)) for tensor, (name, body) in zip(found, KINDS.items(), strict=True)
    }
    assert max(differences.values()) <= 2, differences
    lossless = [value for name, value in differences.items() if "png" in name or "lossless" in name]
    assert max(lossless) <= 0.5, differences


def test_sixteen_bits_are_cut_to_the_upper_eight(tmp_path: Path) -> None:
    bodies = [
        raw_png([row.tobytes() for row in GREY16], 320, 240, 16, 0),
        raw_png([row.tobytes() for row in RGB16], 320, 240, 16, 2),
    ]
    grey, rgb = decoded(dataset(tmp_path, bodies), size=(240, 320))
    assert np.array_equal(grey.numpy(), np.repeat((GREY16 >> 8)[None], 3, 0))
    assert np.array_equal(rgb.permute(1, 2, 0).numpy(), RGB16 >> 8)


def test_webp_and_png_are_turned_upright_too(tmp_path: Path) -> None:
    bodies = [turned(PHOTO, 6, kind) for kind in ("PNG", "WEBP")]
    for tensor, body in zip(decoded(dataset(tmp_path, bodies)), bodies, strict=True):
        assert difference(tensor, reference(body)) <= 2


def test_a_png_may_say_its_orientation_behind_its_pixels(tmp_path: Path) -> None:
    bodies = [with_exif_behind(KINDS["png"], exif_orientation(number)) for number in range(1, 9)]
    for tensor, body in zip(decoded(dataset(tmp_path, bodies)), bodies, strict=True):
        assert difference(tensor, reference(body)) <= 0.5


def test_an_orientation_may_stand_in_xmp_or_in_a_profile(tmp_path: Path) -> None:
    attribute, element = xmp('tiff:Orientation="6"'), xmp("><tiff:Orientation>8</tiff:Orientation")
    seven = exif_orientation(7)
    bodies = [
        *(encoded(PHOTO, kind, xmp=packet) for kind in ("JPEG", "WEBP") for packet in (attribute, element)),
        # EXIF comes first, if it says an orientation.
        *(encoded(PHOTO, kind, xmp=attribute, exif=seven) for kind in ("JPEG", "WEBP")),
        *(encoded(PHOTO, kind, xmp=attribute, exif=Image.Exif()) for kind in ("JPEG", "WEBP")),
        encoded(PHOTO, "JPEG", xmp=xmp('tiff:Orientation="9"')),
        encoded(PHOTO, "JPEG", xmp=xmp("tiff:Orientation='6'")),
        encoded(PHOTO, "JPEG", xmp=xmp('tiff:Orientation="x" tiff:Orientation="3"')),
        with_segments(
            encoded(PHOTO, "JPEG", xmp=attribute), segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + element)
        ),
        *(
            png_with_text("XML:com.adobe.xmp", packet.decode(), **how)
            for packet in (attribute, element)
            for how in TEXTS
        ),
        *(png_with_text("Raw profile type exif", profile_of(seven), **how) for how in TEXTS),
        png_with_text("Raw profile type exif", profile_of(b"Exif\0\0" + seven), zip=True),
        with_exif_behind(png_with_text("Raw profile type exif", profile_of(seven)), exif_orientation(3)),
        with_exif_behind(png_with_text("XML:com.adobe.xmp", attribute.decode()), exif_orientation(3)),
    ]
    for number, (tensor, body) in enumerate(zip(decoded(dataset(tmp_path, bodies)), bodies, strict=True)):
        assert difference(tensor, reference(body)) <= 2, number


def test_text_that_is_no_profile_turns_nothing(tmp_path: Path) -> None:
    bomb = png_with_text("XML:com.adobe.xmp", "x" * (1 << 26) + 'tiff:Orientation="6"', zip=True)
    broken = with_chunk(KINDS["png"], b"zTXt", b"XML:com.adobe.xmp\0\0no stream of zlib")
    bodies = [
        *(png_with_text("Raw profile type exif", text) for text in ("\nexif\n8\nno digits\n", "", "\n\n\n4")),
        *(with_chunk(KINDS["png"], kind, b"XML:com.adobe.xmp\0") for kind in (b"tEXt", b"zTXt", b"iTXt")),
        with_chunk(KINDS["png"], b"zTXt", b'XML:com.adobe.xmp\0\1tiff:Orientation="6"'),
        bomb,
        broken,
    ]
    upright = reference(KINDS["png"])
    for tensor in decoded(dataset(tmp_path, bodies)):
        assert difference(tensor, upright) <= 0.5


@pytest.mark.parametrize("order", ["<", ">"])
def test_an_orientation_of_32_bits_is_one_too(order: str, tmp_path: Path) -> None:
    numbers = [exif_orientation(number, kind, order) for kind in ("H", "L") for number in range(1, 9)]
    bodies = [with_exif(KINDS["jpeg"], number) for number in numbers]
    for tensor, body in zip(decoded(dataset(tmp_path, bodies)), bodies, strict=True):
        assert difference(tensor, reference(body)) <= 2


def test_several_segments_of_exif_are_read_as_one(tmp_path: Path) -> None:
    first, second = exif_orientation(6), exif_orientation(3)
    bodies = [with_exif(KINDS["jpeg"], *parts) for parts in ((first, second), (b"", second), (first[:9], first[9:]))]
    found = decoded(dataset(tmp_path, bodies))
    for tensor, body in zip(found, bodies, strict=True):
        assert difference(tensor, reference(body)) <= 2
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", ["jpeg", "jpeg, progressive", "jpeg, a scan for each component"])
def test_what_follows_the_end_of_a_jpeg_changes_nothing(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    tails = [b"", b"\0\xff\xda\0\x08", bytes(1000), KINDS["jpeg"], KINDS["jpeg"][:3000], b"\xff", b"\xff\xd8\xff"]
    tails += [rng.bytes(200_000) for _ in range(10)]
    filled = KINDS[name].replace(b"\xff\xda", b"\xff\xff\xff\xda")
    bodies = [KINDS[name] + tail for tail in tails] + [filled, filled + bytes(10)]
    for crop in (None, "center"):
        whole, *others = decoded(dataset(tmp_path, bodies), crop=crop)
        assert all(torch.equal(whole, other) for other in others)


def test_the_middle_is_that_of_pil(kinds: fb.Dataset) -> None:
    for size in ((64, 64), (40, 100), (100, 40)):
        for tensor, (name, body) in zip(decoded(kinds, size=size, crop="center"), KINDS.items(), strict=True):
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(body))).convert("RGB")
            expected = np.asarray(ImageOps.fit(image, size[::-1], Image.Resampling.BILINEAR))
            assert difference(tensor, expected) <= 2, (name, size)


@pytest.mark.parametrize("crop", [None, "center"])
def test_images_of_a_few_long_rows_or_columns_are_those_of_pil(crop: str | None, tmp_path: Path) -> None:
    shapes = [(60_000, 1), (3_000, 2), (3_000, 60), (2_000, 7), (1, 5_000), (7, 2_000), (500, 100)]
    images = [photo(width, height) for width, height in shapes]
    ds = dataset(tmp_path, [encoded(image, "PNG") for image in images])
    for size in ((224, 224), (3_000, 1), (1, 3_000), (300, 20)):
        for tensor, image in zip(decoded(ds, size=size, crop=crop), images, strict=True):
            resized = image.resize(size[::-1], Image.Resampling.BILINEAR)
            fitted = ImageOps.fit(image, size[::-1], Image.Resampling.BILINEAR)
            assert difference(tensor, np.asarray(fitted if crop else resized)) <= 2, (image.size, size)


def random_box(position: int, width: int, height: int, seed: int, epoch: int) -> tuple[bool, tuple[float, ...]]:
    """Returns whether the image of a row is mirrored (at a half), and its crop, as `docs/howto/images.md` says."""
    numbers = iter(uniforms(seed, epoch, "image", position, 41))
    is_mirrored = next(numbers) < 0.5
    for _ in range(10):
        area, ratio, top, left = (next(numbers) for _ in range(4))
        area = width * height * (0.08 + 0.92 * area)
        ratio = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * ratio)
        kept_width, kept_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 1 <= kept_width <= width and 1 <= kept_height <= height:
            left = min(math.floor(left * (width - kept_width + 1)), width - kept_width)
            top = min(math.floor(top * (height - kept_height + 1)), height - kept_height)
            return is_mirrored, (left, top, left + kept_width, top + kept_height)
    proportion = min(max(width / height, 3 / 4), 4 / 3)
    kept_width, kept_height = min(width, height * proportion), min(height, width / proportion)
    left, top = (width - kept_width) / 2, (height - kept_height) / 2
    return is_mirrored, (left, top, left + kept_width, top + kept_height)


def test_random_crops_are_those_of_the_model(photos: tuple[fb.Dataset, list[bytes]]) -> None:
    ds, bodies = photos
    stream = stream_of(ds.shuffle(seed=9), crop="random", flip=True)
    stream.set_epoch(2)
    position = 0
    for batch in stream:
        for row, tensor in zip(batch["id"].tolist(), batch["image"], strict=True):
            image = Image.open(io.BytesIO(bodies[row]))
            is_mirrored, box = random_box(position, *image.size, seed=9, epoch=2)
            expected = reference(bodies[row], box)
            assert difference(tensor, expected[:, ::-1] if is_mirrored else expected) <= 2, position
            position += 1
    assert position == len(bodies)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_much_reduced_images_are_those_of_pil_however_few_their_pixels(subsampling: str, tmp_path: Path) -> None:
    """A decoder that makes fewer pixels than there are leaves too few of small images."""
    extents = [
        (18, 2427),
        (2231, 10),
        (60, 196),
        (638, 541),
        (294, 959),
        (145, 1035),
        (300, 4000),
        (384, 4000),
        (390, 390),
        (1301, 1001),
        (1030, 1040),
        (2601, 2003),
    ]
    for number, (width, height) in enumerate(extents):
        body = encoded(photo(width, height), "JPEG", quality=92, subsampling=subsampling)
        ds = dataset(tmp_path / str(number), [body])
        for reduction in (8.0, 9.7, 13, 16, 19, 33, 70):
            size = (max(1, int(height / reduction)), max(1, int(width / reduction)))
            found = difference(decoded(ds, size=size)[0], reference(body, size=size))
            assert found <= 2, (width, height, size)


@pytest.mark.parametrize("crop", ["center", "random"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "grey"])
def test_rows_that_are_left_out_below_a_crop_change_nothing(subsampling: str, crop: str, tmp_path: Path) -> None:
    """Of progressive images, which come in scans, no row can be left out; their numbers are those of the others."""
    rng = np.random.default_rng(8)
    images = [photo(*size, seed) for seed, size in enumerate(rng.integers(40, 500, (80, 2)).tolist())]
    options: dict[str, Any] = {"quality": 92}
    if subsampling == "grey":
        images = [image.convert("L") for image in images]
    else:
        options["subsampling"] = subsampling
    restarts = itertools.cycle([{}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 7}])
    whole = [encoded(image, "JPEG", progressive=True, **options) for image in images]
    partly = [encoded(image, "JPEG", **options, **restart) for image, restart in zip(images, restarts, strict=False)]
    kept = [decoded(dataset(tmp_path / name, bodies), crop=crop) for name, bodies in (("w", whole), ("p", partly))]
    assert torch.equal(*kept)


def by_id(batches: Any) -> dict[int, torch.Tensor]:
    return {row: tensor for batch in batches for row, tensor in zip(batch["id"].tolist(), batch["image"], strict=True)}


def test_rows_look_the_same_on_any_ranks_threads_workers_and_after_a_resume(
    photos: tuple[fb.Dataset, list[bytes]],
) -> None:
    ds = photos[0].shuffle(seed=4)
    image = {"crop": "random", "flip": 0.3}
    whole = by_id(stream_of(ds, **image))
    assert len(whole) == 60
    ranks = [by_id(stream_of(ds, 5, (rank, 3), **image)) for rank in range(3)]
    resumed = stream_of(ds, **image)
    for _ in zip(range(2), resumed, strict=False):
        pass
    rest = stream_of(ds, 7, **image)
    rest.load_state_dict(resumed.state_dict())
    decode = {"image": fb.Image(size=SIZE, **image)}  # type: ignore[arg-type]
    one_thread = ds.to_torch(32, decode=decode, num_threads=1, rank=0, world_size=1)
    workers = DataLoader(stream_of(ds, **image), batch_size=None, num_workers=2)
    for some in (*ranks, by_id(rest), by_id(one_thread), by_id(workers)):
        assert some
        assert all(torch.equal(tensor, whole[row]) for row, tensor in some.items())
    other = stream_of(ds, **image)
    other.set_epoch(1)
    assert not any(torch.equal(tensor, whole[row]) for row, tensor in by_id(other).items())


def test_layouts_and_colours(photos: tuple[fb.Dataset, list[bytes]]) -> None:
    ds = photos[0]
    planes = decoded(ds)
    assert torch.equal(decoded(ds, layout="HWC").permute(0, 3, 1, 2), planes)
    mirrored = decoded(ds, flip=1.0)
    assert torch.equal(mirrored, planes.flip(-1))
    grey = decoded(ds, mode="L")
    assert grey.shape == (60, 1, *SIZE)
    assert decoded(ds, mode="L", layout="HWC").shape == (60, *SIZE, 1)
    for tensor, pixels in zip(grey, planes, strict=True):
        expected = np.asarray(Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).convert("L"))
        assert np.array_equal(tensor[0].numpy(), expected)
    assert decoded(ds, size=50).shape == (60, 3, 50, 50)


def test_plain_binary_and_large_binary_hold_images_too(tmp_path: Path, photos: tuple[fb.Dataset, list[bytes]]) -> None:
    ds, bodies = photos
    for kind in (pa.binary(), pa.large_binary()):
        folder = tmp_path / str(kind)
        table = pa.table({"id": range(len(bodies)), "image": pa.array(bodies, kind)})
        write_fragments(folder, table, row_group_rows=20)
        assert torch.equal(decoded(fb.load_dataset(folder, split="train")), decoded(ds))


def test_several_columns_are_decoded_beside_others(tmp_path: Path, photos: tuple[fb.Dataset, list[bytes]]) -> None:
    bodies = photos[1][:12]
    grey = [encoded(Image.open(io.BytesIO(body)).convert("L"), "PNG") for body in bodies]
    columns = {
        "image": bodies,
        "mask": grey,
        "text": [f"row {i}" for i in range(12)],
        "tokens": [[1] * i for i in range(12)],
    }
    write_fragments(tmp_path, pa.table(columns))
    ds = fb.load_dataset(tmp_path, split="train")
    image = {"size": 64, "crop": "random", "flip": True}
    decode = {"image": fb.Image(**image, mode="L"), "mask": fb.Image(**image, mode="L", layout="HWC")}  # type: ignore[arg-type]
    (batch,) = ds.to_torch(12, decode=decode, padding=True, rank=0, world_size=1)
    assert batch.keys() == {"image", "mask", "text", "tokens", "attention_mask"}
    assert batch["tokens"].shape == (12, 11)
    # Images of one row are cut and mirrored alike, so a mask stays that of its image.
    apart = (batch["image"][:, 0].int() - batch["mask"][..., 0].int()).abs().float().mean()
    assert apart < 3


BROKEN: dict[str, tuple[bytes | None, str]] = {
    "null": (None, "there is no image: it is NULL"),
    "nothing": (b"", "there is no image: it has no bytes"),
    "text": (b"<html>404</html>", "it is not a JPEG, PNG or WebP image: its 16 bytes begin with 3c 68 74"),
    "gif": (encoded(PHOTO, "GIF"), "it is not a JPEG, PNG or WebP image"),
    "a truncated jpeg": (KINDS["jpeg"][:5000], "the JPEG image is broken: it is truncated"),
    "a truncated jpeg with a thumbnail": (
        KINDS["jpeg"][:2] + b"\xff\xe1\x00\x0a\xff\xd8\xff\xda\xff\xd9\x00\x00" + KINDS["jpeg"][2:5000],
        "the JPEG image is broken: it is truncated",
    ),
    "a truncated progressive jpeg": (KINDS["jpeg, progressive"][:5000], "the JPEG image is broken: it is truncated"),
    "a truncated jpeg, filled up": (KINDS["jpeg"][:5000] + bytes(5000), "the JPEG image is broken: it is truncated"),
    "a jpeg of half of four": (
        raw_jpeg(photo(300, 200), ((4, 1), (2, 1), (1, 1)), "components"),
        "the JPEG image is sampled in a way that is not supported",
    ),
    "a jpeg coded arithmetically": (
        KINDS["jpeg"].replace(b"\xff\xc0", b"\xff\xc9", 1),
        "the JPEG image is coded arithmetically, which is not supported",
    ),
    "a jpeg coded without losses": (
        KINDS["jpeg"].replace(b"\xff\xc0", b"\xff\xc3", 1),
        "the JPEG image is coded without losses, which is not supported",
    ),
    "a truncated png": (KINDS["png"][:5000], "the PNG image is broken"),
    "a truncated webp": (KINDS["webp, lossless"][:5000], "the WebP image is broken"),
    "a header": (KINDS["png"][:20], "the PNG image is broken"),
    "a jpeg bomb": (with_jpeg_size(KINDS["jpeg"], 60_000, 60_000), "60000 x 60000 = 3600000000 pixels, more than"),
    "a png bomb": (raw_png([], 30_000, 30_000, 8, 2), "30000 x 30000 = 900000000 pixels, more than `max_pixels`"),
    "a png whose rows are bombs": (raw_png([], 2**31 - 1, 2**31 - 1, 8, 2), "the PNG image is broken: limits are"),
    "a webp bomb": (with_webp_size(KINDS["webp"], 16_383, 16_383), "16383 x 16383 = 268402689 pixels, more than"),
    "a lossless webp bomb": (
        with_webp_size(KINDS["webp, lossless"], 16_383, 16_383),
        "16383 x 16383 = 268402689 pixels",
    ),
    "a webp whose canvas is a bomb": (
        with_webp_size(KINDS["webp, animated"], 60_000, 60_000),
        "60000 x 60000 = 3600000000 pixels, more than",
    ),
    "a webp whose frame is larger than its canvas": (
        with_webp_size(KINDS["webp, animated"], 10, 10),
        "the WebP image is broken",
    ),
    "a jpeg of nothing": (with_jpeg_size(KINDS["jpeg"], 0, 10), "the JPEG image is broken"),
    "a png that ends early": (raw_png([b"\0" * 30], 10, 10, 8, 2), "the PNG image is broken"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_decoded_is_an_error_that_says_where_it_is(name: str, tmp_path: Path) -> None:
    body, said = BROKEN[name]
    whole = encoded(photo(20, 20), "PNG")
    ds = dataset(tmp_path, [whole] * 13 + [body] + [whole] * 6)
    with pytest.raises(fb.DataError) as error:
        list(stream_of(ds.shuffle(seed=1)))
    text = str(error.value)
    assert text.startswith("column `image`, row 3 of row group 1 of `"), text
    assert "part-0.parquet" in text
    assert said in text
    assert text.endswith('; `on_error="skip"` of its `fb.Image` leaves such rows out')


def test_rows_are_left_out_and_counted_on_request(tmp_path: Path) -> None:
    whole = encoded(photo(20, 20), "PNG")
    bodies = [whole, *(body for body, _ in BROKEN.values()), whole, whole]
    ds = dataset(tmp_path, bodies)
    stream = stream_of(ds, 4, on_error="skip")
    batches = list(stream)
    kept = [row for batch in batches for row in batch["id"].tolist()]
    assert kept == [0, len(bodies) - 2, len(bodies) - 1]
    assert stream.stats()["images_skipped"] == len(BROKEN)
    assert len(batches) == 2, "of which nothing is left is no batch"
    assert all(batch["image"].shape == (len(batch["id"]), 3, *SIZE) for batch in batches)


class Greedy:
    """A stage that takes all batches of a pass before it hands over the first."""

    stream = None

    def begin(self, batches: Any, _: Any) -> Greedy:
        self._batches, self._items = batches, None
        return self

    def is_ready(self) -> bool:
        return True

    def __next__(self) -> Any:
        if self._items is None:
            self._items = iter([*iter(lambda: next(self._batches, None), None)])
        return next(self._items)

    def close(self) -> None:
        self._batches.close()


@pytest.mark.parametrize(("passes", "share", "num_skipped"), [(3, {}, 6), (1, {"steps_per_epoch": 5}, 5)])
@pytest.mark.parametrize("is_staged", [False, True])
def test_left_out_rows_of_all_passes_are_counted_as_their_batches_come(
    passes: int, share: dict[str, int], num_skipped: int, is_staged: bool, tmp_path: Path
) -> None:
    whole = encoded(photo(20, 20), "PNG")
    ds = dataset(tmp_path, [whole, b"no image"] * 2).repeat(passes)
    stream = ds.to_torch(2, decode={"image": fb.Image(4, on_error="skip")}, **share)
    if is_staged:
        stream._stream._stages = (Greedy(),)
    for _ in range(2):
        assert [stream.stats()["images_skipped"] for _ in stream] == list(range(1, num_skipped + 1))
        assert stream.stats()["images_skipped"] == num_skipped


def test_a_batch_of_which_nothing_is_left_is_a_step_that_a_lone_reader_passes_over(tmp_path: Path) -> None:
    whole = encoded(photo(20, 20), "PNG")
    ds = dataset(tmp_path, [*[whole] * 8, *[b"no image"] * 4])
    decode = {"image": fb.Image(size=SIZE, on_error="skip")}

    def lengths(**share: Any) -> tuple[int, int]:
        stream = ds.to_torch(decode=decode, **share)
        return len(stream), sum(1 for _ in stream)

    assert lengths(batch_size=4) == (3, 2)
    assert lengths(batch_size=4, steps_per_epoch=5) == (5, 4)
    assert lengths(batch_size=2, rank=1, world_size=2) == (3, 3)
    assert lengths(batch_size=2, rank=1, world_size=2, steps_per_epoch=5) == (5, 5)
    # At the end of an epoch, the last batch is behind, too.
    stream = stream_of(ds, 4, on_error="skip")
    list(stream)
    assert stream.state_dict()["position"] == 12
    later = stream_of(ds, 4, on_error="skip")
    later.load_state_dict(stream.state_dict())
    assert len(later) == 0


def test_a_value_behind_images_that_are_left_out_is_found_where_it_is(tmp_path: Path) -> None:
    images = [encoded(photo(20, 20), "PNG")] * 20
    images[2] = images[3] = b"no image"
    tokens = [[1, 2] if row != 17 else [1, None] for row in range(20)]
    write_fragments(tmp_path, pa.table({"image": images, "tokens": tokens}), row_group_rows=10)
    decode = {"image": fb.Image(size=SIZE, on_error="skip")}
    stream = fb.load_dataset(tmp_path, split="train").to_torch(20, decode=decode, padding=True)
    with pytest.raises(fb.DataError, match="column `tokens`, row 7 of row group 1 of"):
        list(stream)


def test_rows_that_are_left_out_take_no_memory(tmp_path: Path) -> None:
    bodies: list[bytes | None] = [encoded(photo(20, 20), "PNG"), *[b"no image"] * 5000]
    stream = stream_of(dataset(tmp_path, bodies, row_group_rows=1000), 100, on_error="skip")
    assert sum(len(batch["id"]) for batch in stream) == 1
    assert stream.stats()["memory_bytes"] < 20_000


def test_bytes_that_are_changed_crash_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    bodies: list[bytes | None] = []
    jpegs = ("jpeg", "jpeg, progressive", "jpeg, cmyk", "jpeg, a scan for each ink", "jpeg, colours finer than light")
    for name in (*jpegs, "png, palette", "webp", "webp, lossless", "png, animated"):
        for _ in range(40):
            body = bytearray(KINDS[name])
            for at in rng.integers(0, min(len(body), int(rng.choice([64, 1024, len(body)]))), 4):
                body[at] = rng.integers(0, 256)
            bodies.append(bytes(body))
    stream = stream_of(dataset(tmp_path, bodies), 16, on_error="skip", size=32, max_pixels=1 << 20)
    num_kept = sum(len(batch["image"]) for batch in stream)
    assert num_kept + stream.stats()["images_skipped"] == len(bodies)
    assert 0 < num_kept < len(bodies)


@pytest.mark.parametrize("kind", ["Audio", "Video", "Pdf", "Nifti"])
def test_other_media_are_not_images(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"m": [{"bytes": b"RIFF", "path": "x"}], "n": [1]}), tmp_path / "train.parquet")
    ds = fb.load_dataset(tmp_path, split="train").cast_column("m", {"_type": kind})
    with pytest.raises(fb.SettingError, match=f"column `m` holds `{kind}`, not images; .* `compat='datasets'`"):
        ds.to_torch(1, decode={"m": fb.Image(size=2)})


def test_what_contradicts_decoding_is_refused(photos: tuple[fb.Dataset, list[bytes]]) -> None:
    ds = photos[0]
    with pytest.raises(fb.TensorError, match="`id` of type `Int64`.*images are binary"):
        ds.to_torch(8, decode={"id": fb.Image(size=8)})
    with pytest.raises(fb.ColumnNotFoundError, match="no column `images`; did you mean `image`"):
        ds.to_torch(8, decode={"images": fb.Image(size=8)})
    with pytest.raises(fb.SettingError, match="forms: column `image` is padded or decoded"):
        ds.to_torch(8, decode={"image": fb.Image(size=8)}, forms={"image.bytes": "ragged"})
    with pytest.raises(fb.SettingError, match="decode: expected a dict"):
        ds.to_torch(8, decode={"image": 224})  # type: ignore[dict-item]
    with pytest.raises(fb.SettingError, match="compat"):
        ds.to_torch(8, decode={"image": fb.Image(size=8)}, compat="datasets")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "size"),
        ({"size": (1, 2, 3)}, "size"),
        ({"size": "224"}, "size"),
        ({"size": (224, 1 << 20)}, "size"),
        ({"crop": "middle"}, "crop: expected 'random' or 'center' or None, got 'middle'"),
        ({"scale": (0, 1)}, "scale"),
        ({"scale": (0.5, 2)}, "scale"),
        ({"ratio": (2, 1)}, "ratio"),
        ({"ratio": 1}, "ratio"),
        ({"ratio": (1, math.inf)}, "ratio"),
        ({"flip": 2}, "flip"),
        ({"flip": "yes"}, "flip"),
        ({"layout": "WHC"}, "layout"),
        ({"mode": "RGBA"}, "mode"),
        ({"on_error": "ignore"}, "on_error"),
        ({"max_pixels": 0}, "max_pixels"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(fb.SettingError, match=said):
        fb.Image(**({"size": 224} | options))


def test_rows_that_cannot_be_read_are_never_left_out(photos: tuple[fb.Dataset, list[bytes]]) -> None:
    """Crops follow from the positions of rows, which are counted through each batch."""
    decode = {"image": fb.Image(size=SIZE, crop="random")}
    with pytest.raises(fb.SettingError, match="on_error: rows that cannot be read"):
        photos[0].to_torch(8, decode=decode, on_error="skip")
    stream = photos[0].to_torch(8, decode=decode)
    with pytest.raises(fb.StateError, match="left out rows"):
        stream.load_state_dict(stream.state_dict() | {"holes": [{"span": 0}]})


def test_the_size_needs_no_name() -> None:
    assert fb.Image((32, 48), crop="center") == fb.Image(size=(32, 48), crop="center")
    with pytest.raises(TypeError):
        fb.Image(32, "center")
