"""Filters on casts: statistics, which are bounds of what is cast, keep the rows that a look at each row keeps."""

from __future__ import annotations

import datetime as dt
import decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

NUM_ROWS = 60
OPERATORS = ("=", "<", ">=", "IS DISTINCT FROM")
TO_NUMBERS = ("BOOLEAN", "TINYINT", "INT", "BIGINT", "REAL", "DOUBLE", "DECIMAL(12, 3)", "DECIMAL(5, 1)", "VARCHAR")
TO_TIMES = ("BIGINT", "TIMESTAMP", "TIMESTAMP(0)", "DATE", "TIME", "VARCHAR")


def _numbers() -> dict[str, pa.Array]:
    generator = np.random.default_rng(7)
    small = np.sort(generator.integers(-4, 5, NUM_ROWS)).tolist()
    return {
        "i8": pa.array(small, pa.int8()),
        "i64": pa.array(generator.integers(-100, 100, NUM_ROWS), pa.int64()),
        "signs": pa.array(generator.integers(-1, 2, NUM_ROWS), pa.int8()),
        "u16": pa.array(generator.integers(0, 3, NUM_ROWS), pa.uint16()),
        "f32": pa.array(np.array(small, np.float32) / 4),
        "f64": pa.array(generator.normal(size=NUM_ROWS) * 3),
        "digits": pa.array([decimal.Decimal(value) / 8 for value in small], pa.decimal128(9, 3)),
        "flag": pa.array(generator.random(NUM_ROWS) < 0.5),
        "text": pa.array([str(value) for value in small]),
    }


def _times() -> dict[str, pa.Array]:
    """Returns times around midnights and both changes of the clock of a year."""
    hours = np.sort(np.random.default_rng(7).integers(0, 72, NUM_ROWS)).tolist()
    first = (dt.datetime(2024, 3, 30), dt.datetime(2024, 10, 26))
    times = [first[hour % 2] + dt.timedelta(hours=hour) for hour in hours]
    return {
        "local": pa.array(times, pa.timestamp("us")),
        "coarse": pa.array(times, pa.timestamp("ms")),
        "utc": pa.array(times, pa.timestamp("us", "UTC")),
        "offset": pa.array(times, pa.timestamp("us", "+05:30")),
        "berlin": pa.array(times, pa.timestamp("us", "Europe/Berlin")),
    }


COLUMNS = _numbers() | _times()
CASTS = {*product(_numbers(), TO_NUMBERS), *product(_times(), TO_TIMES)}
# The engine has no such casts.
CASTS -= {("digits", "BOOLEAN"), ("flag", "DECIMAL(12, 3)"), ("flag", "DECIMAL(5, 1)")}


@pytest.fixture(scope="module")
def by_statistics_and_without(tmp_path_factory) -> tuple[fb.Dataset, fb.Dataset]:
    """Returns the rows with bounds for every three of them, and without any."""
    folder = tmp_path_factory.mktemp("casts")
    columns = {name: pa.concat_arrays([column[1:], pa.nulls(1, column.type)]) for name, column in COLUMNS.items()}
    table = pa.table({"row": range(NUM_ROWS)} | columns)
    pq.write_table(table, folder / "bounds.parquet", row_group_size=3, write_page_index=True)
    pq.write_table(table, folder / "none.parquet", write_statistics=False)
    bounds, none = (fb.load_dataset(folder / f"{name}.parquet", split="train") for name in ("bounds", "none"))
    return bounds, none


@pytest.mark.parametrize(("column", "target"), sorted(CASTS))
def test_statistics_keep_what_the_rows_keep(column, target, by_statistics_and_without):
    cast = f"TRY_CAST({column} AS {target})" if column == "text" else f"CAST({column} AS {target})"
    found = by_statistics_and_without[1].query(f"SELECT DISTINCT CAST({cast} AS VARCHAR) AS v FROM dataset ORDER BY v")
    texts = [text for text in pa.table(found)["v"].to_pylist() if text is not None]
    for text in {texts[0], texts[len(texts) // 2], texts[-1]}:
        for operator in OPERATORS:
            condition = f"{cast} {operator} CAST('{text}' AS {target})"
            by_statistics, by_rows = (
                pa.table(dataset.filter(condition).select_columns("row"))["row"].to_pylist()
                for dataset in by_statistics_and_without
            )
            assert by_statistics == by_rows, condition


@pytest.mark.parametrize("cast", ["TRY_CAST(d AS TIMESTAMP)", "arrow_try_cast(d, 'Timestamp(ns)')"])
def test_a_date_in_milliseconds_that_is_no_time_is_null(tmp_path, cast):
    dates = pa.array([dt.date(9999, 12, 31), dt.date(2024, 5, 1), None], pa.date64())
    pq.write_table(pa.table({"row": range(3), "d": dates}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert pa.types.is_date64(ds.schema.field("d").type)
    assert pa.table(ds.filter(f"{cast} < TIMESTAMP '1900-01-01'"))["row"].to_pylist() == []
    assert pa.table(ds.filter(f"{cast} IS NULL"))["row"].to_pylist() == [0, 2]
    found = pa.table(ds.query(f"SELECT {cast} AS t FROM dataset ORDER BY row"))["t"].to_pylist()
    assert found[0] is found[2] is None
    assert found[1] == dt.datetime(2024, 5, 1)
