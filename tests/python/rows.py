"""Datasets whose rows tell who they are, and what a stream delivered of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import ids_table, write_fragments

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

UNEVEN = (1, 40, 0, 3, 97, 16, 2)
"""Lengths of row groups, over and over. Each is far below the least size of a span, so that it is one."""


def write_uneven(folder: Path, num_rows: int = 500, num_fragments: int = 3, **settings: Any) -> fb.Dataset:
    """Writes small row groups of every length and opens them."""
    write_fragments(folder, ids_table(num_rows), num_fragments=num_fragments, row_group_rows=UNEVEN, **settings)
    return fb.load_dataset(folder, split="train")


def write_paged(folder: Path, *, page_index: bool = True, num_rows: int = 8000) -> fb.Dataset:
    """Writes row groups of 2 MiB in pages of 64 rows, so that spans are parts of them, and opens them."""
    payload = np.random.default_rng(7).bytes(num_rows * 1024)
    rows = [payload[k * 1024 : (k + 1) * 1024] for k in range(num_rows)]
    table = ids_table(num_rows).append_column("payload", pa.array(rows, pa.binary()))
    for index in range(2):
        # Without a dictionary: one of a mebibyte, which every span would read again, makes row groups of 2 MiB whole.
        pq.write_table(
            table.slice(num_rows * index // 2, num_rows // 2),
            folder / f"part-{index}.parquet",
            row_group_size=2000,
            use_dictionary=False,
            write_page_index=page_index,
            data_page_size=32 << 10,
            write_batch_size=64,
        )
    return fb.load_dataset(folder, split="train")


def uneven_groups(num_rows: int = 500, num_fragments: int = 3) -> list[list[int]]:
    """Returns the ids of each row group that `write_uneven` writes."""
    groups = []
    for index in range(num_fragments):
        ids = list(range(num_rows * index // num_fragments, num_rows * (index + 1) // num_fragments))
        turn = 0
        while ids:
            length = UNEVEN[turn % len(UNEVEN)]
            groups.append(ids[:length])
            ids = ids[length:]
            turn += 1
    return groups


@functools.singledispatch
def ids(batch: Any) -> list[int]:
    """Returns the ids of a batch, of Arrow or of tensors."""
    return pa.record_batch(batch)["id"].to_pylist()


@ids.register
def _(batch: dict) -> list[int]:
    column = batch["id"]
    return column if isinstance(column, list) else column.tolist()


def ids_of(batches: Iterable[Any]) -> list[int]:
    """Returns the ids of all batches, in order."""
    return [row for batch in batches for row in ids(batch)]


def batches_of(batches: Iterable[Any]) -> list[list[int]]:
    """Returns the ids of each batch."""
    return [ids(batch) for batch in batches]
