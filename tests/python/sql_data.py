"""The tables that the corpus of SQL queries is about: every kind of column that SQL reads, with NULLs and extremes.

Floats of `r32` and `r64` are eighths, so that sums do not depend on their order; `f32` and `f64` hold NaN, infinities
and both zeros. `seq` and `day` grow from row group to row group, so that statistics prune.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from data import LANGUAGES, WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_ROWS = 1400
EXTREMES = {
    "i8": (pa.int8(), -128, 127),
    "i16": (pa.int16(), -(2**15), 2**15 - 1),
    "i32": (pa.int32(), -100_000, 100_000),
    "i64": (pa.int64(), -(2**40), 2**40),
    "u8": (pa.uint8(), 0, 255),
    "u16": (pa.uint16(), 0, 2**16 - 1),
    "u32": (pa.uint32(), 0, 2**32 - 1),
    "u64": (pa.uint64(), 0, 2**64 - 1),
}
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)
CATEGORIES = (*LANGUAGES, "it")


def rows_table(num_rows: int = NUM_ROWS, seed: int = 5) -> pa.Table:
    """The dataset: `id` counts up, each other column but `seq` has NULLs at places of its own."""
    rng = np.random.default_rng([seed, num_rows])

    def column(values: Sequence[object], kind: pa.DataType, null_fraction: float = 0.1) -> pa.Array:
        nulls = rng.random(num_rows) < null_fraction
        return pa.array([None if null else value for value, null in zip(values, nulls, strict=True)], kind)

    def integers(low: int, high: int) -> list[int]:
        return [
            int(value)
            for value in rng.integers(
                low, high, num_rows, endpoint=True, dtype=np.uint64 if high >= 2**63 else np.int64
            )
        ]

    def eighths() -> list[float]:
        return [value / 8 for value in integers(-8000, 8000)]

    def floats() -> list[float]:
        return [SPECIAL[i % 20] if i % 20 < len(SPECIAL) else i / 8 - 50 for i in integers(0, 800)]

    words = [WORDS[i] for i in integers(0, len(WORDS) - 1)]
    days = [i // 5 + jitter for i, jitter in zip(range(num_rows), integers(-3, 3), strict=True)]
    tags = [[WORDS[(i + k) % len(WORDS)] for k in range(i % 4)] for i in integers(0, 99)]
    columns: dict[str, Any] = {"id": pa.array(range(num_rows), pa.int64())}
    columns["seq"] = pa.array([i // 10 for i in range(num_rows)], pa.int32())
    columns |= {name: column(integers(low, high), kind) for name, (kind, low, high) in EXTREMES.items()}
    return pa.table(
        columns
        | {
            "r32": column(eighths(), pa.float32()),
            "r64": column(eighths(), pa.float64()),
            "f32": column(floats(), pa.float32()),
            "f64": column(floats(), pa.float64()),
            "price": column([decimal.Decimal(i).scaleb(-2) for i in integers(-10_000, 10_000)], pa.decimal128(12, 2)),
            "flag": column([bool(i) for i in integers(0, 1)], pa.bool_()),
            "cat": column([LANGUAGES[i] for i in integers(0, len(LANGUAGES) - 1)], pa.string()),
            "word": column([f"{word} {i}" for word, i in zip(words, integers(0, 9), strict=True)], pa.string()),
            "text": column(words, pa.large_string()),
            "day": column([dt.date(2024, 2, 20) + dt.timedelta(days=d) for d in days], pa.date32()),
            "moment": column(
                [dt.datetime(2023, 12, 31) + dt.timedelta(microseconds=m) for m in integers(0, 10**14)],
                pa.timestamp("us"),
            ),
            "ints": column([list(range(i % 7 - 3, i % 5)) for i in integers(0, 99)], pa.list_(pa.int32())),
            "tags": column(tags, pa.list_(pa.string())),
            "meta": column(
                [{"source": word, "rank": i} for word, i in zip(words, integers(0, 30), strict=True)],
                pa.struct({"source": pa.string(), "rank": pa.int32()}),
            ),
            "vector": column(
                [[a / 4, b / 4, 1.0] for a, b in zip(integers(-8, 8), integers(-8, 8), strict=True)],
                pa.list_(pa.float32()),
                0.05,
            ),
        }
    )


def side_tables(seed: int = 6) -> dict[str, pa.Table]:
    """Tables to join with: `labels` and `scores` have unique keys, `events` has none."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(NUM_ROWS + 200)[:800]
    rows = rng.integers(0, NUM_ROWS, 900)
    return {
        "labels": pa.table(
            {
                "cat": pa.array([*CATEGORIES[1:], None]),
                "label": pa.array([None, *(f"label {name}" for name in CATEGORIES[2:]), "nothing"]),
                "weight": pa.array([i / 8 for i in range(len(CATEGORIES))], pa.float64()),
                "target": pa.array(range(len(CATEGORIES)), pa.int32()),
            }
        ),
        "scores": pa.table(
            {
                "row_id": pa.array(ids, pa.int64()),
                "quality": pa.array([None if i % 11 == 0 else i / 8 for i in rng.integers(0, 80, len(ids)).tolist()]),
                "team": pa.array([f"team {i % 9}" for i in ids.tolist()]),
            }
        ),
        "events": pa.table(
            {
                "row_id": pa.array([None if i % 17 == 0 else i for i in rows.tolist()], pa.int64()),
                "kind": pa.array([("seen", "sold", "")[i % 3] for i in rng.integers(0, 99, len(rows)).tolist()]),
                "amount": pa.array(rng.integers(-50, 50, len(rows)), pa.int32()),
            }
        ),
    }
