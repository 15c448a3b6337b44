"""Rows for `datasets`, and what its results look like when they are compared."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 120
NUM_FILES = 3


def rows_table(num_rows: int = NUM_ROWS) -> pa.Table:
    """Rows of the types that datasets have, `group` in runs of five, some values missing."""
    ids = range(num_rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array([None if i % 11 == 3 else f"row {i}" for i in ids], pa.string()),
            "group": pa.array([i // 5 for i in ids], pa.int32()),
            "score": pa.array([i / 8 for i in ids], pa.float32()),
            "tokens": pa.array([[i, i + 1, i + 2] for i in ids], pa.list_(pa.int32())),
            "words": pa.array([["w"] * (i % 3) for i in ids], pa.list_(pa.string())),
            "meta": pa.array([{"source": f"s{i % 4}", "rank": i % 7} for i in ids]),
            "at": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(hours=i) for i in ids], pa.timestamp("us")),
        }
    )


def write_rows(folder: Path, num_rows: int = NUM_ROWS, num_files: int = NUM_FILES) -> list[str]:
    """Writes the rows as some files of small row groups; returns their names."""
    table = rows_table(num_rows)
    paths = []
    for index in range(num_files):
        start, end = (num_rows * at // num_files for at in (index, index + 1))
        paths.append(str(folder / f"part-{index}.parquet"))
        pq.write_table(table.slice(start, end - start), paths[-1], row_group_size=17)
    return paths


def open_rows(paths: list[str]) -> fb.Dataset:
    return fb.load_dataset(paths, split="train")


def shown(value: Any) -> Any:
    """Returns a value of any format as something that compares, its library and type included."""
    kind = type(value).__module__.split(".")[0]
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    if kind in ("torch", "numpy"):
        values = value.tolist() if hasattr(value, "tolist") else value
        return (kind, str(getattr(value, "dtype", "")), repr(values))
    if kind == "pyarrow":
        return ("pyarrow", value.to_pylist())
    if kind == "pandas":
        return ("pandas", repr(value.to_dict("list")))
    if kind == "polars":
        return ("polars", value.to_dict(as_series=False))
    return value


def multiset(rows: Any) -> list[str]:
    return sorted(repr(shown(row)) for row in rows)


def collect(rows: Any, results: Any) -> None:
    """Puts the ids of all rows into a queue; what a process is started for."""
    results.put([row["id"] for row in rows])
