"""Measures one reader of `shaping` in its own process: `python shaping_readers.py READER FOLDER WORKERS EPOCHS`.

Prints how many units (tokens or images) it delivered per second after the first batch, and the sums that show whether
they are right.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measuring
import numpy as np
import shaping_data
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LENGTH = 2048
SEQUENCES = 16
WINDOW = 4096
SIZE = 224
IMAGES = 64


def _packed(folder: Path, mode: Any) -> Iterable[dict[str, Any]]:
    import forebay as fb

    pack = fb.Pack(length=LENGTH, mode=mode, columns=["input_ids"], window=WINDOW)
    return fb.load_dataset(folder, split="train").to_torch(SEQUENCES, pack=pack)


def forebay_concat(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:  # noqa: ARG001 - it has no workers
    """Forebay, documents concatenated."""
    return _packed(folder, "concat")


def forebay_best_fit(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:  # noqa: ARG001
    """Forebay, whole documents."""
    return _packed(folder, "best_fit")


class _Generator(IterableDataset[torch.Tensor]):
    """Sequences packed by a Python generator over `datasets`."""

    def __init__(self, folder: Path, pack: Callable[[Iterator[list[int]]], Iterator[list[int]]]) -> None:
        from datasets import load_dataset

        self._rows = load_dataset("parquet", data_files=str(folder / "*.parquet"), split="train", streaming=True)
        self._pack = pack

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, self._pack(row["input_ids"] for row in self._rows))


def _concat(documents: Iterator[list[int]]) -> Iterator[list[int]]:
    held: list[int] = []
    for document in documents:
        held += document
        while len(held) >= LENGTH:
            yield held[:LENGTH]
            held = held[LENGTH:]
    if held:
        yield held + [0] * (LENGTH - len(held))


def _best_fit(documents: Iterator[list[int]]) -> Iterator[list[int]]:
    import bisect

    pieces: list[list[int]] = []

    def pack() -> Iterator[list[int]]:
        sequences: list[list[int]] = []
        rooms: list[tuple[int, int]] = []
        for piece in sorted(pieces, key=len, reverse=True):
            at = bisect.bisect_left(rooms, (len(piece), 0))
            if at == len(rooms):
                sequences.append([])
                rooms.append((LENGTH, len(sequences) - 1))
                at = len(rooms) - 1
            room, sequence = rooms.pop(at)
            sequences[sequence] += piece
            bisect.insort(rooms, (room - len(piece), sequence))
        for made in sequences:
            yield made + [0] * (LENGTH - len(made))

    for number, document in enumerate(documents, 1):
        pieces += [document[at : at + LENGTH] for at in range(0, len(document), LENGTH)]
        if number % WINDOW == 0:
            yield from pack()
            pieces.clear()
    yield from pack()


def _generated(folder: Path, pack: Any, num_workers: int) -> Iterator[dict[str, Any]]:
    loader = DataLoader(_Generator(folder, pack), batch_size=SEQUENCES, num_workers=num_workers)
    return ({"input_ids": batch} for batch in loader)


def datasets_concat(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """A generator over `datasets`, documents concatenated."""
    return _generated(folder, _concat, num_workers)


def datasets_best_fit(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """A generator over `datasets`, whole documents."""
    return _generated(folder, _best_fit, num_workers)


def forebay_images(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:  # noqa: ARG001
    """Forebay, center crops."""
    import forebay as fb

    decode = {"image": fb.Image(size=SIZE, crop="center")}
    return fb.load_dataset(folder, split="train").shuffle(seed=1).to_torch(IMAGES, decode=decode)


def _by_pil(body: bytes) -> torch.Tensor:
    from PIL import Image, ImageOps

    image = ImageOps.fit(Image.open(io.BytesIO(body)).convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _by_torchvision(body: bytes) -> torch.Tensor:
    from torchvision.io import decode_jpeg
    from torchvision.transforms.v2 import functional

    image = decode_jpeg(torch.frombuffer(bytearray(body), dtype=torch.uint8))
    resized = functional.resize(image, [SIZE], antialias=True)
    cropped: torch.Tensor = functional.center_crop(resized, [SIZE, SIZE])
    return cropped


class _InMemory(Dataset[dict[str, Any]]):
    """Images with their encoded bytes in memory, the fastest possible source."""

    def __init__(self, folder: Path, decode: Callable[[bytes], torch.Tensor]) -> None:
        self._rows = list(shaping_data.rows(folder))
        self._decode = decode

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        body, label = self._rows[index]
        torch.set_num_threads(1)
        return {"image": self._decode(body), "label": label}


def pil_images(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """PIL in DataLoader workers."""
    return DataLoader(_InMemory(folder, _by_pil), IMAGES, shuffle=True, num_workers=num_workers)


def torchvision_images(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """Torchvision's decoder in DataLoader workers."""
    return DataLoader(_InMemory(folder, _by_torchvision), IMAGES, shuffle=True, num_workers=num_workers)


def webdataset_images(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """WebDataset on tar shards, with PIL in its workers."""
    import webdataset as wds

    rows = wds.WebDataset(shaping_data.shards(folder), shardshuffle=4, seed=1).shuffle(500)
    samples = rows.to_tuple("jpg", "cls").map_tuple(_by_pil, int).batched(IMAGES)
    return ({"image": image, "label": label} for image, label in wds.WebLoader(samples, None, num_workers=num_workers))


def litdata_images(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """Litdata on its own chunks, with PIL in its workers."""
    import litdata

    rows = litdata.StreamingDataset(str(shaping_data.chunks(folder)), shuffle=True, transform=_decoded)
    loader: Iterable[dict[str, Any]] = litdata.StreamingDataLoader(rows, batch_size=IMAGES, num_workers=num_workers)
    return loader


def mosaicml_images(folder: Path, num_workers: int) -> Iterable[dict[str, Any]]:
    """MosaicML streaming on MDS, with PIL in DataLoader workers."""
    from streaming import StreamingDataset

    local = str(shaping_data.mds(folder))
    rows = StreamingDataset(local=local, shuffle=True, shuffle_seed=1, batch_size=IMAGES)
    return DataLoader(rows, IMAGES, num_workers=num_workers, collate_fn=_collated)


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": _by_pil(row["image"]), "label": row["label"]}


def _collated(rows: list[dict[str, Any]]) -> Any:
    return default_collate([_decoded(row) for row in rows])


READERS = {
    function.__name__: function
    for function in (
        forebay_concat,
        forebay_best_fit,
        datasets_concat,
        datasets_best_fit,
        forebay_images,
        pil_images,
        torchvision_images,
        webdataset_images,
        litdata_images,
        mosaicml_images,
    )
}


def _units(batch: dict[str, Any]) -> tuple[int, int, float]:
    """Returns the units in a batch, the places for them, and a checksum."""
    if "input_ids" in batch:
        tokens = batch["input_ids"]
        return int((tokens != 0).sum()), tokens.numel(), float(tokens.sum())
    images = batch["image"]
    if images.shape[1:] != (3, SIZE, SIZE) or images.dtype != torch.uint8:
        raise ValueError(f"other images than asked for: {images.shape} {images.dtype}")
    return len(images), len(images), float(images.float().mean((1, 2, 3)).sum())


def main(reader: str, folder: str, num_workers: str, num_epochs: str) -> None:
    """Reads some epochs and prints the results."""
    units = places = 0
    checksum = first_units = first_seconds = 0.0
    started = time.perf_counter()
    for _ in range(int(num_epochs)):
        for batch in READERS[reader](Path(folder), int(num_workers)):
            of_batch, places_of_batch, sum_of_batch = _units(batch)
            units, places, checksum = units + of_batch, places + places_of_batch, checksum + sum_of_batch
            if not first_seconds:
                first_units, first_seconds = of_batch, time.perf_counter() - started
    seconds = time.perf_counter() - started
    rate = (units - first_units) / (seconds - first_seconds)
    print(json.dumps({"rate": rate, "units": units, "places": places, "checksum": checksum}), flush=True)
    # Some readers leave threads and workers that outlive the interpreter.
    measuring.end_workers()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
