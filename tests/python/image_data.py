"""Images for the tests: like photographs in what resizing makes of them, and of every kind that files hold."""

from __future__ import annotations

import io
import itertools
import math
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, PngImagePlugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def with_chunk(body: bytes, kind: bytes, data: bytes) -> bytes:
    """Returns a PNG with a chunk behind its pixels."""
    end = png_chunk(b"IEND", b"")
    return body.removesuffix(end) + png_chunk(kind, data) + end


def with_exif_behind(body: bytes, exif: bytes) -> bytes:
    """Returns a PNG with EXIF metadata behind its pixels, where some programs write them."""
    return with_chunk(body, b"eXIf", exif)


def png_with_text(keyword: str, text: str, *, zip: bool = False, is_international: bool = False) -> bytes:
    """Returns a PNG of `photo(320, 240)` with text before its pixels."""
    info = PngImagePlugin.PngInfo()
    add = info.add_itxt if is_international else info.add_text
    add(keyword, text, zip=zip)
    return encoded(photo(320, 240), "PNG", pnginfo=info)


def profile_of(exif: bytes) -> str:
    """Returns EXIF metadata as ImageMagick writes it as text."""
    digits = exif.hex()
    lines = [digits[at : at + 72] for at in range(0, len(digits), 72)]
    return "\n".join(["", "exif", f"{len(exif):8}", *lines, ""])


def xmp(attribute: str) -> bytes:
    """Returns an XMP packet with an attribute, or the end of a tag and an element."""
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        f'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" {attribute}></rdf:Description>'
        "</rdf:RDF></x:xmpmeta>"
    ).encode()


def raw_png(rows: Sequence[bytes], width: int, height: int, depth: int, colour: int) -> bytes:
    """Returns a PNG of kinds that PIL does not write, or one whose header lies."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def with_jpeg_size(body: bytes, width: int, height: int) -> bytes:
    """Returns a JPEG whose header says another size."""
    at = next(body.index(bytes([0xFF, marker])) for marker in (0xC0, 0xC2) if bytes([0xFF, marker]) in body)
    return body[: at + 5] + struct.pack(">HH", height, width) + body[at + 9 :]


def with_webp_size(body: bytes, width: int, height: int) -> bytes:
    """Returns a WebP image whose header says another size: that of the canvas, if it has one."""
    kind, at = body[12:16], 20
    if kind == b"VP8X":
        size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        return body[: at + 4] + size + body[at + 10 :]
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", body, at + 1)
        bits = bits >> 28 << 28 | (height - 1) << 14 | (width - 1)
        return body[: at + 1] + struct.pack("<I", bits) + body[at + 5 :]
    return body[: at + 6] + struct.pack("<HH", width, height) + body[at + 10 :]


def segment(marker: int, contents: bytes) -> bytes:
    """Returns a segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(contents) + 2) + contents


def with_segments(body: bytes, *segments: bytes) -> bytes:
    """Returns a JPEG with segments before all others."""
    return body[:2] + b"".join(segments) + body[2:]


def with_exif(body: bytes, *metadata: bytes) -> bytes:
    """Returns a JPEG with EXIF metadata, each in a segment."""
    return with_segments(body, *(segment(0xE1, b"Exif\0\0" + exif) for exif in metadata))


def exif_orientation(orientation: int, kind: str = "H", order: str = "<") -> bytes:
    """Returns EXIF metadata that say how to turn an image upright, in a number of `kind` 'H' (SHORT) or 'L' (LONG)."""
    value = struct.pack(order + kind, orientation).ljust(4, b"\0")
    entry = struct.pack(order + "HHL", ORIENTATION, {"H": 3, "L": 4}[kind], 1) + value
    return {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HLH", 42, 8, 1) + entry + bytes(4)


# Of blocks of 8 by 8, frequencies in the order in which they are stored.
ZIGZAG = sorted(range(64), key=lambda at: (at // 8 + at % 8, at // 8 if (at // 8 + at % 8) % 2 else at % 8))
COSINES = np.cos(np.outer(np.arange(8), 2 * np.arange(8) + 1) * math.pi / 16) / np.array([[8**0.5], *[[2]] * 7])
QUANTUM = 4
# All codes are of one length: 4 bits for what precedes a mean, 8 for what precedes another number, the end, 16 zeros.
FIRST_CODES = bytes(range(12))
OTHER_CODES = bytes([0x00, 0xF0, *(zeros << 4 | size for zeros in range(16) for size in range(1, 11))])


def coded(code: str, value: int) -> str:
    """Returns the bits of a number, which are as many as its code says."""
    size = abs(value).bit_length()
    return code + (format(value if value > 0 else value + (1 << size) - 1, f"0{size}b") if size else "")


def coded_block(values: list[int], mean_before: int, first: int, last: int) -> str:
    """Returns the bits of the frequencies of a block from `first` to `last`; 0 is its mean."""

    def other(zeros: int, value: int) -> str:
        return coded(format(OTHER_CODES.index(zeros << 4 | abs(value).bit_length()), "08b"), value)

    mean = values[0] - mean_before
    bits = "" if first else coded(format(abs(mean).bit_length(), "04b"), mean)
    at = max(first, 1)
    for place in range(at, last + 1):
        if values[place]:
            bits += other(15, 0) * ((place - at) // 16) + other((place - at) % 16, values[place])
            at = place + 1
    return bits + (other(0, 0) if at <= last else "")


def raw_jpeg(image: Image.Image, sampled: Sequence[tuple[int, int]], scans: str = "rows") -> bytes:
    """Returns a JPEG of kinds that PIL does not write: each component sampled anyhow, (across, down).

    Scans are "rows": one of everything; "components": one of each; or "details": one of the means, one of the rest of
    each component. CMYK is inverted, as everywhere.
    """
    is_inks = image.mode == "CMYK"
    most = max(across for across, _ in sampled), max(down for _, down in sampled)
    units = math.ceil(image.width / most[0] / 8), math.ceil(image.height / most[1] / 8)
    padding = (0, units[1] * most[1] * 8 - image.height), (0, units[0] * most[0] * 8 - image.width)
    blocks = []
    for band, (across, down) in zip((image if is_inks else image.convert("YCbCr")).split(), sampled, strict=True):
        rows, columns = units[1] * down, units[0] * across
        plane = np.pad(255 - np.asarray(band) if is_inks else np.asarray(band), padding, "edge")
        plane = plane.reshape(rows * 8, most[1] // down, columns * 8, most[0] // across).mean((1, 3)) - 128
        numbers = np.rint(COSINES @ plane.reshape(rows, 8, columns, 8).swapaxes(1, 2) @ COSINES.T / QUANTUM)
        blocks.append(numbers.astype(int).reshape(rows, columns, 64)[..., ZIGZAG])

    def places(members: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yields the blocks of a scan: (component, row, column); of one that is alone, none that is all padding."""
        if len(members) == 1:
            across, down = sampled[members[0]]
            rows, columns = (image.height * down / most[1] / 8, image.width * across / most[0] / 8)
            yield from itertools.product(members, range(math.ceil(rows)), range(math.ceil(columns)))
            return
        for y, x in itertools.product(range(units[1]), range(units[0])):
            for member in members:
                across, down = sampled[member]
                for v, h in itertools.product(range(down), range(across)):
                    yield member, y * down + v, x * across + h

    def scan(members: Sequence[int], first: int = 0, last: int = 63) -> bytes:
        means = [0] * len(blocks)
        bits = ""
        for member, row, column in places(members):
            values = blocks[member][row, column].tolist()
            bits += coded_block(values, means[member], first, last)
            means[member] = values[0]
        bits += "1" * (-len(bits) % 8)
        header = bytes([len(members), *(byte for member in members for byte in (member + 1, 0)), first, last, 0])
        return segment(0xDA, header) + int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")

    every = range(len(blocks))
    if scans == "rows":
        data = scan(every)
    elif scans == "components":
        data = b"".join(scan([member]) for member in every)
    else:
        data = scan(every, 0, 0) + b"".join(scan([member], 1, 63) for member in every)
    components = bytes(byte for at, (h, v) in enumerate(sampled, 1) for byte in (at, h << 4 | v, 0))
    frame = struct.pack(">BHHB", 8, image.height, image.width, len(blocks)) + components
    codes = b"".join(
        bytes([kind << 4, *(len(of) if bits == length else 0 for bits in range(1, 17)), *of])
        for kind, length, of in ((0, 4, FIRST_CODES), (1, 8, OTHER_CODES))
    )
    header = segment(0xDB, bytes([0, *[QUANTUM] * 64])) + segment(0xC2 if scans == "details" else 0xC0, frame)
    return b"\xff\xd8" + header + segment(0xC4, codes) + data + b"\xff\xd9"
