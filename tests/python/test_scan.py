"""What filters need not read: pages, row groups and columns that indexes decide; the rows stay the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 20_000
ROW_GROUP_ROWS = 2_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A sorted number, one in no order, a key in no order, and a text that is much larger than they are."""
    rng = random.Random(7)
    numbers = [rng.randrange(10**9) if rng.random() > 0.02 else None for _ in range(NUM_ROWS)]
    table = pa.table(
        {
            "id": pa.array(range(NUM_ROWS), pa.int64()),
            "number": pa.array(numbers, pa.int32()),
            "key": pa.array([f"{rng.getrandbits(128):032x}" for _ in range(NUM_ROWS)]),
            "text": pa.array([f"{rng.getrandbits(2000):0500x}" for _ in range(NUM_ROWS)]),
        }
    )
    folder = tmp_path_factory.mktemp("scan")
    for part in range(2):
        pq.write_table(
            table.slice(part * NUM_ROWS // 2, NUM_ROWS // 2),
            folder / f"{part}.parquet",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=False,
            compression="none",
            write_page_index=True,
            write_batch_size=100,
            max_rows_per_page=100,
            bloom_filter_options={name: {"ndv": ROW_GROUP_ROWS, "fpp": 0.01} for name in ("number", "key")},
        )
    return folder


@pytest.fixture(scope="module")
def table(folder) -> pa.Table:
    return pq.read_table(folder)


def explained(folder: Path, sql: str) -> dict[str, int]:
    return fb.load_dataset(folder, split="train").filter(sql).explain()


def test_bloom_filters_of_pyarrow_find_the_row_group(folder, table):
    facts = explained(folder, f"key = '{table['key'][12_345]}'")
    assert facts["rows_kept"] == 1
    assert facts["row_groups_pruned"] >= facts["row_groups_total"] - 2, facts
    assert explained(folder, f"number IN ({table['number'][12_345]})")["rows_kept"] == 1
    absent = explained(folder, "key IN ('nobody', 'nothing')")
    assert (absent["rows_kept"], absent["row_groups_read"], absent["selection_requests"]) == (0, 0, 0)


def test_a_range_of_a_sorted_column_reads_the_pages_at_its_ends(folder):
    facts = explained(folder, "id BETWEEN 4321 AND 7654")
    assert facts["rows_kept"] == 7654 - 4321 + 1
    # Two pages of 100 numbers of 8 bytes each, with their headers.
    assert facts["selection_bytes"] < 2 * (800 + 100), facts
    assert facts["row_groups_read"] == 2, facts


def test_texts_are_read_only_where_numbers_leave_rows(folder, table):
    number = table["number"][9_000].as_py()
    alone = explained(folder, "text LIKE '%f%'")
    facts = explained(folder, f"text LIKE '%f%' AND number BETWEEN {number} AND {number}")
    assert (facts["rows_kept"], alone["rows_kept"]) == (1, NUM_ROWS)
    assert facts["selection_bytes"] < alone["selection_bytes"] / 20, facts


@pytest.mark.parametrize("seed", range(6))
def test_conjunctions_keep_the_rows_that_duckdb_keeps(folder, table, seed):
    rng = random.Random(seed)
    duck = duckdb.connect()
    duck.register("rows", table)

    def conjunct() -> str:
        row = rng.randrange(NUM_ROWS)
        number = table["number"][row].as_py() or 0
        return rng.choice(
            [
                f"id BETWEEN {row - 3000} AND {row + 3000}",
                f"id >= {row}",
                f"id % 7 <> {row % 7}",
                f"number < {number}",
                f"number IN ({number}, {number + 1})",
                "number IS NOT NULL",
                f"(number IS NULL OR id < {row})",
                f"key > '{table['key'][row]}'",
                f"key = '{table['key'][row]}'",
                f"text LIKE '%{row % 1000:03x}%'",
                f"1000000 / nullif(id % 10, 0) > {row % 200000}",
            ]
        )

    for _ in range(12):
        sql = " AND ".join(conjunct() for _ in range(rng.randint(1, 4)))
        # DuckDB's `/` is not that of integers.
        expected = duck.execute(f"SELECT id FROM rows WHERE {sql.replace('/', '//')} ORDER BY id").fetchall()
        found = pa.table(fb.load_dataset(folder, split="train").filter(sql).select_columns("id"))["id"].to_pylist()
        assert found == [row[0] for row in expected], sql


def test_a_condition_guards_those_written_after_it(tmp_path):
    pq.write_table(pa.table({"a": range(100), "z": [0, 2] * 50}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert len(ds.filter("z <> 0 AND a / z >= 10")) == 40
    assert len(ds.filter("z <> 0").filter("a / z >= 10")) == 40
    with pytest.raises(fb.QueryError, match="ivide by zero"):
        len(ds.filter("a / z >= 10"))
