"""Tables and Parquet objects for the tests: seeded, small, of every layout that matters."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LANGUAGES = ("de", "en", "fr", "日本語", "")
WORDS = ("alpha", "beta", "gamma", "", "straße", "naïve", "数据", "emoji 🦀", "it's", "100%", "under_score")


def ids_table(num_rows: int, first: int = 0) -> pa.Table:
    """Rows that tell who they are: `id` counts up, `label` is `id` in text."""
    ids = np.arange(first, first + num_rows, dtype=np.int64)
    return pa.table({"id": ids, "label": [f"row {i}" for i in ids]})


def mixed_table(num_rows: int, seed: int = 0, null_fraction: float = 0.1) -> pa.Table:
    """Rows of many types, `id` first and never null, each other column with nulls at places of its own.

    Floats have NaN, both zeros and infinities; strings are empty, quoted and beyond ASCII; lists are empty.
    """
    rng = np.random.default_rng([seed, num_rows])

    def column(values: Sequence[object] | np.ndarray, kind: pa.DataType) -> pa.Array:
        # pyarrow takes a mask of nulls for numpy arrays and lists alike; NaN stays NaN.
        mask = rng.random(num_rows) < null_fraction
        return pa.array([None if null else value for value, null in zip(values, mask, strict=True)], kind)

    def integers(low: int, high: int) -> list[int]:
        return [int(value) for value in rng.integers(low, high, num_rows)]

    floats = rng.normal(size=num_rows)
    special = rng.random(num_rows)
    for threshold, value in ((0.02, np.nan), (0.04, np.inf), (0.06, -np.inf), (0.08, 0.0), (0.10, -0.0)):
        floats[(special >= threshold - 0.02) & (special < threshold)] = value
    days = integers(-1_000, 20_000)
    micros = integers(0, 10**15)
    words = [WORDS[i] for i in integers(0, len(WORDS))]
    return pa.table(
        {
            "id": pa.array(range(num_rows), pa.int64()),
            "flag": column([bool(i) for i in integers(0, 2)], pa.bool_()),
            "small": column(integers(-128, 128), pa.int8()),
            "unsigned": column(integers(0, 2**32), pa.uint32()),
            "score": column(floats, pa.float64()),
            "ratio": column(floats.astype(np.float32), pa.float32()),
            "lang": column([LANGUAGES[i] for i in integers(0, len(LANGUAGES))], pa.string()),
            "text": column([f"{word} {i % 97}" if word else "" for i, word in enumerate(words)], pa.large_string()),
            "blob": column([word.encode() for word in words], pa.binary()),
            "day": column([dt.date(1970, 1, 1) + dt.timedelta(days=d) for d in days], pa.date32()),
            "at": column([dt.datetime(2020, 1, 1) + dt.timedelta(microseconds=m) for m in micros], pa.timestamp("us")),
            "price": column([decimal.Decimal(i).scaleb(-2) for i in integers(-10_000, 10_000)], pa.decimal128(12, 2)),
            "tokens": column([integers(0, 50_000)[:4] for _ in range(num_rows)], pa.list_(pa.int32(), 4)),
            "tags": column([words[: i % 4] for i in range(num_rows)], pa.list_(pa.string())),
            "meta": column(
                [{"source": word, "rank": i % 11} for i, word in enumerate(words)],
                pa.struct({"source": pa.string(), "rank": pa.int32()}),
            ),
        }
    )


def corpus_table(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows with the columns of the demo's corpus, which the saved queries of `queries/` are about."""
    rng = np.random.default_rng([seed, num_rows])
    languages = rng.choice(["rust", "c", "markdown", "toml", "other"], num_rows, p=[0.6, 0.1, 0.15, 0.1, 0.05])
    licences = rng.choice(["MIT OR Apache-2.0", "MIT", "Zlib", "GPL-3.0-only"], num_rows)
    sizes = np.floor(10 ** rng.uniform(1, 5.5, num_rows)).astype(np.int64)
    return pa.table(
        {
            "crate": pa.array([f"crate{i // 50}" for i in range(num_rows)]),
            "path": pa.array([f"src/module{i}.rs" for i in range(num_rows)]),
            "language": pa.array(languages.tolist()),
            "size": pa.array(sizes),
            "licence": pa.array([None if i % 13 == 0 else licence for i, licence in enumerate(licences.tolist())]),
            "text": pa.array(
                [f"// {'DO NOT EDIT' if i % 7 == 0 else 'by hand'}\nfn f{i}() {{}}" for i in range(num_rows)]
            ),
            "tokens": pa.array(
                [row.tolist() for row in rng.integers(1, 8192, (num_rows, 16), dtype=np.int32)], pa.list_(pa.int32())
            ),
        }
    )


def write_fragments(
    folder: Path,
    table: pa.Table,
    *,
    num_fragments: int = 1,
    row_group_rows: int | Sequence[int] = 1000,
    page_index: bool = True,
    compression: str = "zstd",
    page_bytes: int = 4096,
) -> list[Path]:
    """Writes a table as consecutive Parquet objects of about equal length, in natural order of their names.

    Args:
        folder: Where to; made if it is not there.
        table: The rows.
        num_fragments: The number of objects.
        row_group_rows: The length of the row groups, or their lengths in turn, over and over; zero is allowed.
        page_index: Whether the objects have an offset and a column index.
        compression: The codec of all columns.
        page_bytes: The size at which a page ends, checked every 64 rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = [row_group_rows] if isinstance(row_group_rows, int) else list(row_group_rows)
    if not any(lengths):
        raise ValueError("at least one row group must have rows")
    paths = []
    for index in range(num_fragments):
        first = table.num_rows * index // num_fragments
        last = table.num_rows * (index + 1) // num_fragments
        path = folder / f"part-{index}.parquet"
        with pq.ParquetWriter(
            path,
            table.schema,
            compression=compression,
            write_page_index=page_index,
            data_page_size=page_bytes,
            write_batch_size=64,
        ) as writer:
            turn = 0
            while first < last:
                length = min(lengths[turn % len(lengths)], last - first)
                writer.write_table(table.slice(first, length), row_group_size=max(length, 1))
                first += length
                turn += 1
        paths.append(path)
    return paths
