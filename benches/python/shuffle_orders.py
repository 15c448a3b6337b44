"""Computes the order in which a loader delivers sorted rows: `shuffle_orders.py NAME FOLDER BUFFER_ROWS SEED TARGET`.

The rows are those of `labels`, numbered, in row groups of a thousand; an order is the sequence of row numbers. Loaders
with a planner return its plan; the others deliver the rows.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Order = Callable[[Path, int, int], Any]

GROUP_ROWS = 1000
SPAN_ROWS = 40
"""Rows per span, for row groups of 8 kB rows with a page index (docs/order.md)."""
BATCH_SIZE = 256


def full(folder: Path, _buffer_rows: int, seed: int) -> Any:
    """A permutation of all rows."""
    return np.random.default_rng(seed).permutation(num_rows(folder))


def forebay(folder: Path, _buffer_rows: int, seed: int) -> Any:
    """Forebay's plan with default settings for rows of 8 kB in objects with a page index."""
    return _planned(num_rows(folder), seed, SPAN_ROWS, num_lanes=192, window_rows=240)


def forebay_unindexed(folder: Path, _buffer_rows: int, seed: int) -> Any:
    """The same without a page index."""
    return _planned(num_rows(folder), seed, GROUP_ROWS, num_lanes=24, window_rows=4592)


def _planned(rows: int, seed: int, span_rows: int, *, num_lanes: int, window_rows: int) -> Any:
    from forebay import _lib

    order = _lib.plan_order(
        [span_rows] * (rows // span_rows), 0, seed=seed, num_lanes=num_lanes, window_rows=window_rows
    )
    spans = np.array(order, np.int64)
    return spans[:, 0] * span_rows + spans[:, 1]


def datasets(folder: Path, buffer_rows: int, seed: int) -> Any:
    """Hugging Face `datasets` with a buffer of `buffer_rows` rows."""
    return _datasets(folder, buffer_rows, seed, is_resharded=False)


def datasets_resharded(folder: Path, buffer_rows: int, seed: int) -> Any:
    """The same with row groups as shards, which are shuffled before the buffer."""
    return _datasets(folder, buffer_rows, seed, is_resharded=True)


def _datasets(folder: Path, buffer_rows: int, seed: int, *, is_resharded: bool) -> Any:
    from datasets import load_dataset

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True, columns=["row"])
    shuffled = (rows.reshard() if is_resharded else rows).shuffle(seed=seed, buffer_size=buffer_rows)
    return np.fromiter((row["row"] for row in shuffled), np.int64)


def webdataset(folder: Path, buffer_rows: int, seed: int) -> Any:
    """WebDataset's two shuffles, of shards of a thousand samples and of samples, without reading tar files."""
    return _webdataset(folder, buffer_rows, seed, num_shards=100)


def webdataset_all_shards(folder: Path, buffer_rows: int, seed: int) -> Any:
    """The same with all shards shuffled instead of a hundred at a time."""
    return _webdataset(folder, buffer_rows, seed, num_shards=num_rows(folder) // GROUP_ROWS)


def _webdataset(folder: Path, buffer_rows: int, seed: int, *, num_shards: int) -> Any:
    import webdataset as wds

    def shards() -> Iterator[dict[str, int]]:
        return iter([{"shard": index} for index in range(num_rows(folder) // GROUP_ROWS)])

    def samples(urls: Iterator[dict[str, int]]) -> Iterator[int]:
        for shard in urls:
            first = shard["shard"] * GROUP_ROWS
            yield from range(first, first + GROUP_ROWS)

    pipeline = wds.DataPipeline(
        shards,
        wds.shuffle(num_shards, initial=num_shards, seed=seed),
        samples,
        wds.shuffle(buffer_rows, initial=min(buffer_rows, 100), seed=seed),
    )
    return np.fromiter(pipeline, np.int64)


def mosaicml(folder: Path, buffer_rows: int, seed: int) -> Any:
    """MosaicML's py1e on one node, shards of a thousand samples, blocks of `buffer_rows` rows; 0 means its default."""
    from streaming.base.shuffle import get_shuffle

    shards = np.full(num_rows(folder) // GROUP_ROWS, GROUP_ROWS, np.int64)
    block = buffer_rows or max(4_000_000, 1 << 18)
    return get_shuffle("py1e", shards, 1, seed, 0, block)


def litdata(folder: Path, _buffer_rows: int, seed: int) -> Any:
    """Litdata's default shuffle, on chunks of a thousand samples."""
    from litdata import StreamingDataset, optimize

    rows = num_rows(folder)
    target = folder.with_name(f"{folder.name}.litdata-{GROUP_ROWS}")
    if not (target / "index.json").exists():
        starts = list(range(0, rows, GROUP_ROWS * 100))
        optimize(Numbers(rows), starts, output_dir=str(target), chunk_size=GROUP_ROWS, num_workers=1, verbose=False)
    return np.fromiter(StreamingDataset(str(target), shuffle=True, seed=seed), np.int64)


class Numbers:
    """Yields row numbers. A class, because litdata pickles it for its own processes."""

    def __init__(self, end: int) -> None:
        self._end = end

    def __call__(self, first: int) -> Iterator[int]:
        """Yields the row numbers of an input, from its first on."""
        yield from range(first, min(first + GROUP_ROWS * 100, self._end))


def lancedb(folder: Path, _buffer_rows: int, seed: int) -> Any:
    """LanceDB's streaming with its default: point reads in an order of all rows."""
    import lance
    import lancedb as db
    import pyarrow.dataset as ds
    from lancedb.streaming import StreamingDataset

    target = folder.with_name(f"{folder.name}.lance")
    if not target.exists():
        source = ds.dataset(list(map(str, folder.glob("*.parquet"))))
        lance.write_dataset(source.to_batches(), str(target), schema=source.schema)
    table = db.connect(str(target.parent)).open_table(target.stem)
    rows = StreamingDataset(table, columns=["row"], shuffle_seed=seed, transform=lambda batch: batch["row"].to_pylist())
    return np.fromiter(itertools.chain(rows), np.int64)


def num_rows(folder: Path) -> int:
    """Returns the number of rows in a folder."""
    counts = [int(path.read_text()) for path in folder.glob("_rows")]
    return counts[0]


ORDERS: dict[str, Order] = {
    "full": full,
    "forebay": forebay,
    "forebay-unindexed": forebay_unindexed,
    "datasets": datasets,
    "datasets-resharded": datasets_resharded,
    "webdataset": webdataset,
    "webdataset-all-shards": webdataset_all_shards,
    "mosaicml": mosaicml,
    "litdata": litdata,
    "lancedb": lancedb,
}

if __name__ == "__main__":
    name, where, buffer_rows, seed, target = sys.argv[1:]
    order = ORDERS[name](Path(where), int(buffer_rows), int(seed))
    np.save(target, np.asarray(order, np.int64))
    print(len(order), flush=True)
    os._exit(0)
