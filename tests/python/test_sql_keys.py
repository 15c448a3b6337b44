"""Orders and partitions by computed keys, of which the engine does not know the order by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from querying import rows_of

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 60
# Twice each of 29 values between 0 and 1, and NULL.
FRACTIONS = [k / 30 if (k := i * 7 % 30) else None for i in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    folder: Path = tmp_path_factory.mktemp("keys")
    rows = {
        "id": range(NUM_ROWS),
        "g": [i % 3 for i in range(NUM_ROWS)],
        "v": [i * 11 % 31 for i in range(NUM_ROWS)],
        "f": FRACTIONS,
        "text": ["t" * (i % 12 + 1) for i in range(NUM_ROWS)],
    }
    pq.write_table(pa.table(rows), folder / "rows.parquet", row_group_size=16)
    return fb.load_dataset(folder, split="train")


@pytest.fixture(scope="module")
def other(ds: fb.Dataset) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.sql("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
    connection.sql("CREATE MACRO signum(x) AS sign(x)")
    connection.register("rows", pa.table(ds))
    connection.sql("CREATE TABLE dataset AS FROM rows")
    return connection


OF_FRACTIONS = (
    "abs acos asin asinh atan atanh cbrt cos cosh cot degrees exp ln log log2 log10 radians sin sinh sqrt tan tanh"
)
OF_NUMBERS = "abs ceil exp floor round signum sqrt trunc"
KEYS = [
    *(f"{name}({operand})" for name in OF_FRACTIONS.split() for operand in ("f", "f / 2", "coalesce(f, 0.5)")),
    *(f"{name}({operand})" for name in OF_NUMBERS.split() for operand in ("v", "coalesce(f, 1) * 9 + 2")),
    "acosh(f / 2 + 1.5)",
    "abs(v - 5)",
    "abs(f - 0.4)",
    "abs(-coalesce(f, 1))",
    "sqrt(abs(v - 5)) + 1",
    "CAST(floor(log10(length(text))) AS INT)",
    "abs(v - (SELECT max(v) FROM dataset))",
    "-coalesce(f, 1)",
    "-(f / 2)",
    "- sqrt(f)",
    "coalesce(v, 1) < 12",
    "NOT (coalesce(f, 1) > 0.5)",
    "f / 2 > 0.2 AND coalesce(f, 1) > 0.3",
]
QUERIES = [
    "SELECT id, count(*) OVER (ORDER BY {}) AS n FROM dataset ORDER BY id",
    "SELECT id, count(*) OVER (PARTITION BY {}) AS n FROM dataset ORDER BY id",
    "SELECT id, row_number() OVER (PARTITION BY {0} ORDER BY {0} DESC, id) AS n FROM dataset ORDER BY id",
    "SELECT id, sum(id) OVER (PARTITION BY g ORDER BY {0}, id) AS a, lag(id) OVER (ORDER BY {0} DESC, id) AS b "
    "FROM dataset ORDER BY {0}, id LIMIT 9",
    "SELECT id FROM dataset QUALIFY row_number() OVER (PARTITION BY g ORDER BY {}, id) <= 2 ORDER BY id",
    "SELECT id FROM dataset ORDER BY {} DESC, id LIMIT 7",
    "SELECT DISTINCT ON ({0}) id FROM dataset ORDER BY {0}, id",
    "SELECT id FROM (SELECT * FROM dataset WHERE g = 0 UNION ALL SELECT * FROM dataset WHERE g = 2) ORDER BY {}, id",
    "SELECT g, string_agg(CAST(id AS TEXT), ',' ORDER BY {}, id) AS ids FROM dataset GROUP BY g ORDER BY g",
    "SELECT g, array_length(array_agg(DISTINCT {0} ORDER BY {0})) AS n FROM dataset GROUP BY g ORDER BY g",
    "SELECT count(*) AS n, string_agg(CAST(id AS TEXT), ',' ORDER BY {0}, id) AS ids FROM dataset GROUP BY {0} "
    "ORDER BY {0} DESC LIMIT 3",
]


@pytest.mark.parametrize("key", KEYS)
def test_rows_are_ordered_by_any_key(ds: fb.Dataset, other: duckdb.DuckDBPyConnection, key: str) -> None:
    for query in QUERIES:
        sql = query.format(key)
        if "(SELECT" in key and "array_agg(DISTINCT" in sql:
            continue
        assert rows_of(ds, sql, {}) == other.sql(sql).fetchall(), sql


@pytest.mark.parametrize("key", ["sqrt(f)", "abs(v - 5)", "-coalesce(f, 1)"])
def test_rows_that_are_streamed_are_ordered_by_any_key(
    ds: fb.Dataset, other: duckdb.DuckDBPyConnection, key: str
) -> None:
    for query in QUERIES[:7]:
        sql = query.format(key)
        assert [tuple(row.values()) for row in ds.sql(sql).iter()] == other.sql(sql).fetchall(), sql


def test_weights_may_count_the_rows_with_a_computed_key(ds: fb.Dataset) -> None:
    by_key = ds.shuffle(1, weights="1.0 / count(*) OVER (PARTITION BY floor(log10(length(text))))", num_samples=99)
    # Of 12 lengths, three have two digits.
    by_hand = ds.shuffle(1, weights="1.0 / CASE WHEN length(text) > 9 THEN 15 ELSE 45 END", num_samples=99)
    assert [row["id"] for row in by_key.iter()] == [row["id"] for row in by_hand.iter()]
