"""Writes and times the formats that other loaders need: `python convert.py KIND FOLDER CASE` in a separate process.

Kinds are `lance`, `mds` (MosaicML), `wds` (tar files), `litdata` and `deeplake`; `litdata-index` makes links to the
Parquet objects and the index that litdata needs. Complete conversions are not written again.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from cases import CASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cases import Case

CHUNK_BYTES = 64 << 20
"""Size of tar files and litdata chunks, as in their documentation."""
READ_ROWS = 1024


def place(kind: str, folder: Path) -> Path:
    """Returns the path of a folder's rows in a format."""
    return folder.with_name(f"{folder.name}.{kind}")


def rows(folder: Path, case: Case) -> Iterator[Any]:
    """Yields the rows as Arrow batches, object by object."""
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("*.parquet")):
        yield from pq.ParquetFile(path).iter_batches(READ_ROWS, columns=list(case.columns))


def values_of(batch: Any, case: Case) -> dict[str, Any]:
    """Returns the values of each column: one array for lists, a list of Python objects for everything else."""
    if case.form == "tensor":
        flat = {name: batch.column(name).flatten().to_numpy(zero_copy_only=True) for name in case.columns}
        return {name: values.reshape(-1, case.width) for name, values in flat.items()}
    return {name: batch.column(name).to_pylist() for name in case.columns}


def samples(folder: Path, case: Case) -> Iterator[dict[str, Any]]:
    """Yields the rows one by one: arrays for lists, Python objects for everything else."""
    for batch in rows(folder, case):
        columns = values_of(batch, case)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def lance(folder: Path, target: Path, case: Case) -> None:
    """Writes with Lance's defaults."""
    import lance
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(min(folder.glob("*.parquet")))
    kept = pa.schema([schema.field(name) for name in case.columns])
    lance.write_dataset(rows(folder, case), str(target), schema=kept)


def mds(folder: Path, target: Path, case: Case) -> None:
    """Writes shards of the default size."""
    from streaming import MDSWriter

    kinds = {"tokens": "ndarray:int32:2048", "embedding": "ndarray:float32:768", "text": "str", "score": "float64"}
    with MDSWriter(out=str(target), columns={name: kinds[name] for name in case.columns}) as writer:
        for sample in samples(folder, case):
            writer.write(sample)


def wds(folder: Path, target: Path, case: Case) -> None:
    """Writes tar files with one member per column of a sample."""
    import numpy as np
    from webdataset import ShardWriter

    target.mkdir()
    with ShardWriter(str(target / "%05d.tar"), maxsize=CHUNK_BYTES, maxcount=1 << 30, verbose=0) as writer:
        for number, sample in enumerate(samples(folder, case)):
            members = {
                name: value.encode() if isinstance(value, str) else np.asarray(value).tobytes()
                for name, value in sample.items()
            }
            writer.write({"__key__": f"{number:09}", **members})


def litdata(folder: Path, target: Path, case: Case) -> None:
    """Writes chunks; tokens as litdata stores them, without boundaries between samples."""
    from litdata import TokensLoader, optimize

    tokens = case.columns == ("tokens",)
    optimize(
        fn=_LitData(case),
        inputs=[str(path) for path in sorted(folder.glob("*.parquet"))],
        output_dir=str(target),
        # A chunk of tokens holds whole rows.
        chunk_size=CHUNK_BYTES // 4 // case.width * case.width if tokens else None,
        chunk_bytes=None if tokens else CHUNK_BYTES,
        item_loader=TokensLoader(block_size=case.width) if tokens else None,
        num_workers=len(harness.cpus()),
        verbose=False,
    )


class _LitData:
    """Reads the samples of an object. A class, because litdata pickles it for its own processes."""

    def __init__(self, case: Case) -> None:
        self._name = case.name

    def __call__(self, path: str) -> Iterator[Any]:
        import pyarrow.parquet as pq
        import torch

        case = CASES[self._name]
        one = Path(path)
        for batch in pq.ParquetFile(one).iter_batches(READ_ROWS, columns=list(case.columns)):
            if case.form == "tensor":
                [column] = batch.columns
                values = column.flatten().to_numpy(zero_copy_only=True).reshape(-1, case.width).copy()
                yield from (torch.from_numpy(row) for row in values)
            else:
                yield from zip(*(batch.column(name).to_pylist() for name in case.columns), strict=True)


def litdata_index(folder: Path, target: Path, case: Case) -> None:
    """Writes litdata's index beside links to the objects."""
    from litdata import index_parquet_dataset

    del case
    target.mkdir()
    for path in folder.glob("*.parquet"):
        (target / path.name).hardlink_to(path)
    index_parquet_dataset(str(target), num_workers=1)


def deeplake(folder: Path, target: Path, case: Case) -> None:
    """Writes columns of Deep Lake's types."""
    import deeplake as lake

    kinds: dict[str, Callable[[], Any]] = {
        "tokens": lambda: lake.types.Array("int32", shape=[case.width]),
        "embedding": lambda: lake.types.Embedding(case.width, "float32"),
        "text": lake.types.Text,
        "score": lake.types.Float64,
    }
    dataset = lake.create(str(target), schema={name: kinds[name]() for name in case.columns})
    for batch in rows(folder, case):
        dataset.append(values_of(batch, case))
    dataset.commit()


WRITERS: dict[str, tuple[str, Callable[[Path, Path, Case], None]]] = {
    "lance": ("lance", lance),
    "mds": ("streaming", mds),
    "wds": ("webdataset", wds),
    "litdata": ("litdata", litdata),
    "litdata-index": ("litdata", litdata_index),
    "deeplake": ("deeplake", deeplake),
}
"""Formats: the module whose import is not timed, and the function that writes."""


def main(kind: str, folder: Path, case: Case) -> None:
    """Writes a format unless it exists, and prints the time taken and its size."""
    target = place(kind, folder)
    mark = target.with_name(f"{target.name}.json")
    if not mark.exists():
        shutil.rmtree(target, ignore_errors=True)
        module, write = WRITERS[kind]
        for imported in ("pyarrow.parquet", module):
            importlib.import_module(imported)
        started = time.perf_counter()
        write(folder, target, case)
        seconds = time.perf_counter() - started
        # Links to the objects are not a conversion.
        files = [path for path in target.rglob("*") if path.is_file() and path.suffix != ".parquet"]
        num_bytes = sum(path.stat().st_size for path in files)
        mark.write_text(json.dumps({"seconds": seconds, "bytes": num_bytes}))
    print(mark.read_text(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), CASES[sys.argv[3]])
