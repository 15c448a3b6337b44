"""Other loaders, used as documented: shuffled, batched by torch's DataLoader, with or without workers.

They collate samples. Each gets samples in the form that is fastest for it: arrays, not lists of numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import convert
import forms
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cases import Task

SEED = 7

SHUFFLE_BUFFER_ROWS = 1_000
"""The default of `datasets` and `webdataset`. A larger buffer takes longer to fill, but not longer per batch."""

DTYPES = {"tokens": np.int32, "embedding": np.float32}


def datasets_shuffled(task: Task) -> Any:
    """Hugging Face `datasets`: streaming, shuffle buffer, DataLoader."""
    from by_hand import datasets_streaming
    from torch.utils.data import DataLoader

    shuffled = datasets_streaming(task).shuffle(seed=SEED, buffer_size=SHUFFLE_BUFFER_ROWS)
    if task.case.form == "tensor":
        shuffled = shuffled.with_format("torch")
    return DataLoader(shuffled, batch_size=task.batch_size, num_workers=task.num_workers)


def litdata_parquet(task: Task) -> Any:
    """Reads Parquet in place with litdata."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.item_loader import ParquetLoader

    dataset = StreamingDataset(
        str(convert.place("litdata-index", task.source)),
        item_loader=ParquetLoader(),
        cache_dir=_cache(task),
        shuffle=True,
        seed=SEED,
        transform=Sample(task),
    )
    # No workers: because of Polars' threads they must be spawned, take ten seconds to start, and are slower.
    return StreamingDataLoader(dataset, batch_size=task.batch_size)


def litdata_optimised(task: Task) -> Any:
    """Reads what litdata's `optimize` wrote; tokens with litdata's loader for tokens."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    tokens = task.columns == ["tokens"]
    dataset = StreamingDataset(
        str(convert.place("litdata", task.source)),
        item_loader=TokensLoader(block_size=task.case.width) if tokens else None,
        cache_dir=_cache(task),
        shuffle=True,
        seed=SEED,
    )
    loader = StreamingDataLoader(dataset, batch_size=task.batch_size, num_workers=task.num_workers)
    return _named(loader, task)


def mosaicml(task: Task) -> Any:
    """MosaicML streaming on MDS, with its default shuffle, py1e."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(
        local=str(convert.place("mds", task.source)), shuffle=True, shuffle_seed=SEED, batch_size=task.batch_size
    )
    return DataLoader(dataset, batch_size=task.batch_size, num_workers=task.num_workers)


def webdataset(task: Task) -> Any:
    """WebDataset on tar files, shards and samples shuffled."""
    import webdataset as wds

    paths = sorted(map(str, convert.place("wds", task.source).glob("*.tar")))
    dataset = (
        wds.WebDataset(paths, shardshuffle=100, seed=SEED, empty_check=False)
        .shuffle(SHUFFLE_BUFFER_ROWS)
        .map(Tar(task))
        .batched(task.batch_size)
    )
    return _named(wds.WebLoader(dataset, batch_size=None, num_workers=task.num_workers), task)


def lancedb_streaming(task: Task) -> Any:
    """LanceDB's StreamingDataset on Lance, with shuffled rows; a transform makes tensor rows instead of lists."""
    import lancedb
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    place = convert.place("lance", task.folder)
    table = lancedb.connect(str(place.parent)).open_table(place.stem)
    dataset = StreamingDataset(
        table, num_splits=task.num_cores, shuffle_seed=SEED, columns=task.columns, transform=Rows(task)
    )
    return StreamingDataLoader(dataset, batch_size=task.batch_size, num_workers=task.num_workers)


def deeplake(task: Task) -> Any:
    """Deep Lake's map-style dataset, shuffled by DataLoader."""
    import deeplake as lake
    from torch.utils.data import DataLoader

    dataset = lake.open_read_only(str(convert.place("deeplake", task.source))).pytorch()
    return DataLoader(dataset, batch_size=task.batch_size, shuffle=True, num_workers=task.num_workers)


class Sample:
    """Turns a row of Python objects into what torch collates fastest."""

    def __init__(self, task: Task) -> None:
        self._columns = task.columns

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the row with arrays instead of lists."""
        return {name: np.asarray(row[name], DTYPES[name]) if name in DTYPES else row[name] for name in self._columns}


class Tar:
    """Turns a sample of a tar file into what WebDataset collates: a tuple."""

    def __init__(self, task: Task) -> None:
        self._columns = task.columns

    def __call__(self, sample: dict[str, bytes]) -> tuple[Any, ...]:
        """Returns the columns' values."""
        return tuple(_of_bytes(name, sample[name]) for name in self._columns)


class Rows:
    """Turns an Arrow batch into rows."""

    def __init__(self, task: Task) -> None:
        self._case = task.case

    def __call__(self, batch: Any) -> Any:
        """Returns a sequence of samples."""
        if self._case.form == "tensor":
            [name] = self._case.columns
            return [{name: row} for row in forms.matrix(batch.column(name), self._case.width)]
        return batch.to_pylist()


def _of_bytes(name: str, value: bytes) -> Any:
    if name in DTYPES:
        return np.frombuffer(value, DTYPES[name])
    return value.decode() if name == "text" else np.frombuffer(value, np.float64)[0]


def _named(loader: Iterable[Any], task: Task) -> Iterable[Any]:
    """Yields unnamed batches as dicts of tensors."""
    import torch

    for batch in loader:
        values = batch if isinstance(batch, list | tuple) else [batch]
        if isinstance(batch, dict):
            yield batch
        else:
            yield {
                name: torch.as_tensor(value) if name != "text" else value
                for name, value in zip(task.columns, values, strict=True)
            }


def _cache(task: Task) -> str:
    """Returns a folder for litdata's copies; it reads local data in place."""
    folder = Path(task.source).with_name(f"{task.source.name}.cache-{os.getpid()}")
    return str(folder)
