"""Writes Parquet objects with one large row group each: seeded, incompressible, in bounded memory.

    tokens  rows of 1024 random int32, a binary value of 0 to 8 KiB and an id
    images  an id and a huge binary value, a 32nd of the row group, one per page
    wide    56 columns of different widths, whose page boundaries do not align

    python scripts/large_row_groups.py FOLDER [--kinds tokens images wide] [--mib 2048] [--without-index]

Rows are first appended to an Arrow file, which is then memory-mapped and written column by column, so that they are
never all in memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
SEED = 20_261_121
STEP_BYTES = 16 * MIB
"""Bytes generated at a time."""

NUM_PAGES = 2048
"""Pages in a row group of any size, so that small ones behave like large ones. For 2 GiB: 1 MiB pages, as pyarrow's."""

NUM_TOKENS = 1024
MAX_BLOB_BYTES = 8 << 10
NUM_IMAGES = 32
WIDTHS = (1, 7, 64, 700)
"""Items per list in the list columns of `wide`; most of its bytes are in few columns."""


def tokens(num_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields rows of tokens and a binary value, about 8 KiB each."""
    row_bytes = NUM_TOKENS * 4 + MAX_BLOB_BYTES // 2
    for first, num_rows, random in _steps(num_bytes // row_bytes, STEP_BYTES // row_bytes):
        yield pa.record_batch(
            {
                "id": _ids(first, num_rows),
                "tokens": _lists(random, num_rows, NUM_TOKENS),
                "blob": _binary(random, random.integers(0, MAX_BLOB_BYTES, num_rows)),
            }
        )


def images(num_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields `NUM_IMAGES` rows of one huge value each."""
    for first, num_rows, random in _steps(NUM_IMAGES, 1):
        yield pa.record_batch(
            {"id": _ids(first, num_rows), "image": _binary(random, np.full(num_rows, num_bytes // NUM_IMAGES))}
        )


def wide(num_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields rows of 56 columns, about 4.7 KiB each, with some NULLs."""
    row_bytes = sum(WIDTHS) * 4 + 48 * 36
    for first, num_rows, random in _steps(num_bytes // row_bytes, STEP_BYTES // row_bytes):
        columns: dict[str, pa.Array] = {"id": _ids(first, num_rows)}
        for width in WIDTHS:
            columns[f"list-{width}"] = _lists(random, num_rows, width)
        for index in range(24):
            columns[f"float-{index}"] = pa.array(random.random(num_rows))
        for index in range(24):
            column = _binary(random, random.integers(0, 2 + 5 * index, num_rows))
            columns[f"blob-{index}"] = pa.array(
                [None if row % (index + 2) == 0 else value for row, value in enumerate(column.to_pylist())]
            )
        columns["flag"] = pa.array(random.random(num_rows) < 0.5)
        columns["day"] = pa.array(random.integers(0, 20_000, num_rows, dtype=np.int32), pa.date32())
        columns["half"] = pa.array(random.random(num_rows).astype(np.float16))
        yield pa.record_batch(columns)


KINDS: dict[str, Callable[[int], Iterator[pa.RecordBatch]]] = {"tokens": tokens, "images": images, "wide": wide}


def write(path: Path, kind: str, num_bytes: int, *, with_index: bool = True) -> int:
    """Writes one row group of about `num_bytes` of `kind` to `path` and returns its number of rows."""
    scratch = path.with_name(f".{path.name}.arrow")
    batches = KINDS[kind](num_bytes)
    first = next(batches)
    with pa.ipc.new_file(scratch, first.schema) as file:
        file.write(first)
        for batch in batches:
            file.write(batch)
    with pa.memory_map(str(scratch)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
        pq.write_table(
            table,
            path,
            row_group_size=len(table),
            compression="zstd",
            use_dictionary=False,
            write_statistics=["id"],
            write_page_index=with_index,
            data_page_size=num_bytes // NUM_PAGES,
            # The writer checks the page size once per this many values.
            write_batch_size=1 if kind == "images" else 64,
        )
        num_rows = len(table)
        del table
    scratch.unlink()
    return num_rows


def _steps(num_rows: int, step_rows: int) -> Iterator[tuple[int, int, np.random.Generator]]:
    """Yields the first row, the number of rows and a random generator for each step."""
    for first in range(0, num_rows, step_rows):
        yield first, min(step_rows, num_rows - first), np.random.default_rng((SEED, first))


def _ids(first: int, num_rows: int) -> pa.Array:
    return pa.array(np.arange(first, first + num_rows))


def _lists(random: np.random.Generator, num_rows: int, width: int) -> pa.Array:
    values = random.integers(-(1 << 31), 1 << 31, num_rows * width, dtype=np.int32)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), width)


def _binary(random: np.random.Generator, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(int(offsets[-1])))]
    )


def main() -> None:
    """Writes the objects named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="all by default")
    parser.add_argument("--mib", type=int, default=2048, help="size of the row group")
    parser.add_argument("--without-index", action="store_true", help="write no page index")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for kind in arguments.kinds:
        path = arguments.folder / f"{kind}.parquet"
        num_rows = write(path, kind, arguments.mib * MIB, with_index=not arguments.without_index)
        print(f"{path}: {num_rows:,} rows in one row group of {path.stat().st_size / MIB:,.0f} MiB")


if __name__ == "__main__":
    main()
