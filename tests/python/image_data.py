"""Images for the tests: like photographs in what resizing makes of them, and of every kind that files hold."""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

ORIENTATION = 0x0112


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Returns smooth noise of several sizes with a few edges, as photographs have them."""
    rng = np.random.default_rng([seed, width, height])
    pixels = np.full((height, width, 3), 128.0)
    for size in (4, 12, 36):
        small = rng.normal(0, 40, (size, size, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(small[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            pixels[..., channel] += np.asarray(layer)
    left, top = width // 4, height // 3
    pixels[top : top + height // 4, left : left + width // 5] += 60
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Returns the bytes of an image file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def turned(image: Image.Image, orientation: int, kind: str = "JPEG", **options: Any) -> bytes:
    """Returns an image file whose EXIF says how to turn it upright."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image, kind, exif=exif, **options)


def raw_png(rows: Sequence[bytes], width: int, height: int, depth: int, colour: int) -> bytes:
    """Returns a PNG of kinds that PIL does not write, or one whose header lies."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def with_jpeg_size(body: bytes, width: int, height: int) -> bytes:
    """Returns a JPEG whose header says another size."""
    at = next(body.index(bytes([0xFF, marker])) for marker in (0xC0, 0xC2) if bytes([0xFF, marker]) in body)
    return body[: at + 5] + struct.pack(">HH", height, width) + body[at + 9 :]
