"""Writes the data of the cases `packing` and `images`: seeded, the same on every machine, never committed.

Documents are 60,000 lists of int32 with log-normal lengths, 36 million tokens. Images are JPEGs of 240 to 640 pixels a
side, which compress like photographs, with a label; as Parquet, tar shards, litdata chunks and MosaicML's MDS.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import data
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = 1
NUM_OBJECTS = 4
QUICK_SHARE = 16
NUM_DOCUMENTS = 60_000
NUM_IMAGES = 2_000
QUALITY = 90


def documents(folder: Path, *, is_quick: bool) -> Path:
    """Writes documents below `folder` unless they exist."""
    return _once(folder, "documents", NUM_DOCUMENTS, _documents, is_quick=is_quick)


def images(folder: Path, *, is_quick: bool) -> Path:
    """Writes images below `folder` unless they exist."""
    return _once(folder, "images", NUM_IMAGES, _images, is_quick=is_quick)


def _once(folder: Path, name: str, num_rows: int, table: Any, *, is_quick: bool) -> Path:
    import pyarrow.parquet as pq

    target = folder / (f"{name}-quick" if is_quick else name)
    mark = target / f"_complete-{VERSION}"
    if not mark.exists():
        print(f"writing {target.name} into {folder}", flush=True)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        num_rows //= QUICK_SHARE if is_quick else 1
        for index in range(NUM_OBJECTS):
            settings = {"compression": "zstd", "row_group_size": 500, "write_page_index": True}
            pq.write_table(table(index, num_rows // NUM_OBJECTS), target / f"part-{index}.parquet", **settings)
        mark.touch()
    return target


def _documents(index: int, num_rows: int) -> Any:
    import pyarrow as pa

    rng = np.random.default_rng([data.SEED, index])
    lengths = np.clip(rng.lognormal(6, 0.9, num_rows), 16, 20_000).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = np.minimum(rng.zipf(1.2, offsets[-1]), 50_000).astype(np.int32)
    return pa.table({"input_ids": pa.ListArray.from_arrays(offsets, tokens)})


def _images(index: int, num_rows: int) -> Any:
    import pyarrow as pa

    rng = np.random.default_rng([data.SEED, 1, index])
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [{"bytes": _jpeg(rng), "path": f"{index}-{row}.jpg"} for row in range(num_rows)]
    return pa.table({"image": pa.array(rows, kind), "label": rng.integers(0, 1000, num_rows)})


def _jpeg(rng: Any) -> bytes:
    """Returns smooth noise at several scales, with edges."""
    from PIL import Image, ImageDraw

    width, height = (int(side) for side in rng.integers(240, 641, 2))
    pixels = np.full((height, width, 3), 128, np.float32)
    for size in (4, 12, 40, 120):
        small = rng.normal(0, 60 / size**0.4, (size, size, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(small[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            pixels[..., channel] += np.asarray(layer)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        left, top, size = (int(value) for value in (rng.integers(width), rng.integers(height), rng.integers(8, 90)))
        draw.ellipse([left, top, left + size, top + size], fill=tuple(rng.integers(0, 256, 3).tolist()))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def rows(folder: Path) -> Iterator[tuple[bytes, int]]:
    """Yields the images with their labels."""
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            yield row["image"]["bytes"], row["label"]


def shards(folder: Path) -> list[str]:
    """Writes the images as tar shards for WebDataset beside the Parquet, unless they exist."""
    target = folder.parent / f"{folder.name}-tar"
    mark = target / f"_complete-{VERSION}"
    if not mark.exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        tars = [tarfile.open(target / f"{index}.tar", "w") for index in range(NUM_OBJECTS)]  # noqa: SIM115 - below
        for number, (body, label) in enumerate(rows(folder)):
            for name, content in (("jpg", body), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{number:06}.{name}")
                info.size = len(content)
                tars[number % NUM_OBJECTS].addfile(info, io.BytesIO(content))
        for tar in tars:
            tar.close()
        mark.touch()
    return [str(path) for path in sorted(target.glob("*.tar"))]


def chunks(folder: Path) -> Path:
    """Writes the images as litdata chunks beside the Parquet, unless they exist."""
    target = folder.parent / f"{folder.name}-litdata"
    mark = target / f"_complete-{VERSION}"
    if not mark.exists():
        import litdata

        shutil.rmtree(target, ignore_errors=True)
        content = list(rows(folder))
        litdata.optimize(_Row(content), list(range(len(content))), str(target), chunk_bytes="16MB", num_workers=1)
        mark.touch()
    return target


def mds(folder: Path) -> Path:
    """Writes the images as MosaicML's MDS beside the Parquet, unless they exist."""
    target = folder.parent / f"{folder.name}-mds"
    mark = target / f"_complete-{VERSION}"
    if not mark.exists():
        from streaming import MDSWriter

        shutil.rmtree(target, ignore_errors=True)
        with MDSWriter(out=str(target), columns={"image": "bytes", "label": "int"}, size_limit="16MB") as writer:
            for body, label in rows(folder):
                writer.write({"image": body, "label": label})
        mark.touch()
    return target


class _Row:
    """Returns an image by its number, in a process of litdata."""

    def __init__(self, content: list[tuple[bytes, int]]) -> None:
        self._content = content

    def __call__(self, index: int) -> dict[str, Any]:
        body, label = self._content[index]
        return {"image": body, "label": label}
