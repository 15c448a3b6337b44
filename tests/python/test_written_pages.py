"""Pages as writers cut them: a hundred thousand in a column, with and without an index, bloom filters, nested rows."""

from __future__ import annotations

import itertools
import re
import struct
import time
from typing import TYPE_CHECKING, Any

import arro3.io
import arrow_types
import duckdb
import hostile
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from equality import as_forebay_has_them, check_equal, check_reads, table_of

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_PAGES = 100_000
MOST_SECONDS = 30
"""For reads that take a second where their cost grows with the pages, and minutes where with their square."""

COLUMN_ORDERS = 7
COLUMN_INDEX_OFFSET, COLUMN_INDEX_LENGTH = 6, 7
STATISTICS, MAX_VALUE, MIN_VALUE = 12, 5, 6
INDEX_MINS, INDEX_MAXES = 2, 3
"""Fields of a footer, of a column chunk in it and its metadata, of its statistics, and of a column index."""

CUTS = list(itertools.product(["1.0", "2.0"], [True, False]))
"""Version of pages, and whether they have an index."""


@pytest.fixture(scope="module")
def paged() -> pa.Table:
    rows = np.arange(NUM_PAGES)
    tokens = pa.ListArray.from_arrays(pa.array(np.arange(NUM_PAGES + 1) * 2, pa.int32()), np.repeat(rows, 2))
    return pa.table({"id": rows, "text": [f"row {row}" for row in rows], "tokens": tokens})


@pytest.mark.parametrize(("page_version", "index"), CUTS)
def test_columns_of_a_hundred_thousand_pages(tmp_path, paged, page_version, index):
    path = tmp_path / "a.parquet"
    pq.write_table(
        paged,
        path,
        use_dictionary=False,
        data_page_size=1,
        write_batch_size=1,
        data_page_version=page_version,
        write_page_index=index,
        row_group_size=NUM_PAGES,
    )
    # A header for each value, at the least: no page holds two.
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size > NUM_PAGES * (8 + 16)
    started = time.monotonic()
    ds = fb.load_dataset(path, split="train")
    assert pa.table(ds).equals(paged)
    few = pa.table(ds.filter("id % 9973 = 5").select_columns(["text", "tokens"]))
    assert few.equals(paged.slice(5).take(np.arange(0, NUM_PAGES - 5, 9973)).select(["text", "tokens"]))
    assert len(ds.filter("text = 'row 77777'")) == 1
    ids = [row for batch in ds.shuffle(1).batches(5000) for row in pa.record_batch(batch)["id"].to_pylist()]
    assert ids != sorted(ids)
    assert sorted(ids) == list(range(NUM_PAGES))
    assert time.monotonic() - started < MOST_SECONDS


@pytest.mark.parametrize("container", ["list", "struct", "map", "fixed_size_list"])
@pytest.mark.parametrize(("page_version", "index"), CUTS)
def test_nested_rows_cut_into_pages(tmp_path, container, page_version, index):
    kinds = arrow_types.nested([container])
    table = table_of({name: kind for name, kind in kinds.items() if container in name}, 0.2)
    path = tmp_path / "a.parquet"
    # Without a dictionary pages end early; with one, and this limit, columns fall back to another encoding midway.
    for use_dictionary in (False, True):
        pq.write_table(
            table,
            path,
            use_dictionary=use_dictionary,
            dictionary_pagesize_limit=32,
            data_page_size=32,
            write_batch_size=4,
            data_page_version=page_version,
            write_page_index=index,
            row_group_size=90,
        )
        check_equal(pa.table(fb.load_dataset(path, split="train")), pq.read_table(path))
    check_reads(path, pq.read_table(path), as_forebay_has_them(pq.read_schema(path), table.schema))


def pyarrow_writes(table: pa.Table, path: Path) -> None:
    options = {name: {"ndv": 300} for name in table.column_names}
    pq.write_table(table, path, row_group_size=100, bloom_filter_options=options)


def parquet_rs_writes(table: pa.Table, path: Path) -> None:
    arro3.io.write_parquet(table, path, max_row_group_size=100, bloom_filter_enabled=True)


def duckdb_writes(table: pa.Table, path: Path) -> None:
    with duckdb.connect() as connection:
        connection.register("written", table)
        connection.sql(
            f"COPY (FROM written) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048, DICTIONARY_SIZE_LIMIT 9999)"
        )


@pytest.mark.parametrize("write", [pyarrow_writes, parquet_rs_writes, duckdb_writes])
def test_bloom_filters_of_writers_lose_no_row(tmp_path, write: Callable[[pa.Table, Path], None]):
    rng = np.random.default_rng(3)
    rows = rng.integers(-400, 400, 6000).tolist()
    special = {0: 0.0, 1: -0.0, 2: float("nan")}
    floats = [special.get(row % 9, row / 8) for row in rows]
    table = pa.table(
        {
            "small": pa.array(rows, pa.int16()),
            "number": pa.array([None if row % 7 == 0 else row * 10**9 for row in rows], pa.int64()),
            "text": pa.array([f"wört {row}" for row in rows]),
            "real": pa.array(floats, pa.float64()),
            "day": pa.array(rows, pa.int32()).cast(pa.date32()),
        }
    )
    write(table, tmp_path / "a.parquet")
    assert any(has_bloom_filter(tmp_path / "a.parquet", column) for column in range(table.num_columns))
    ds = fb.load_dataset(tmp_path, split="train")
    values = table.to_pydict()
    for row in (-399, -7, 0, 3, 250, 399, 1000):
        for name, value, literal in (
            ("small", row, str(row)),
            ("number", row * 10**9, str(row * 10**9)),
            ("text", f"wört {row}", f"'wört {row}'"),
            ("real", row / 8, repr(row / 8)),
            ("day", pa.scalar(row, pa.int32()).cast(pa.date32()).as_py(), f"'{np.datetime64(row, 'D')}'"),
        ):
            expected = sum(1 for found in values[name] if found == value)
            assert len(ds.filter(f"{name} = {literal}")) == expected, (name, value)
            assert len(ds.filter(f"{name} IN ({literal})")) == expected, (name, value)
    assert len(ds.filter("real = -0.0")) == len(ds.filter("real = 0.0")) == floats.count(0.0)
    assert len(ds.filter("real = CAST('NaN' AS DOUBLE)")) == sum(1 for value in floats if value != value)


def has_bloom_filter(path: Path, column: int) -> bool:
    with duckdb.connect() as connection:
        found = connection.sql(
            f"SELECT bloom_filter_offset FROM parquet_metadata('{path}') WHERE column_id = {column}"
        ).fetchall()
    return any(offset is not None for (offset,) in found)


@pytest.mark.parametrize(
    ("values", "bounds", "condition", "kept"),
    [
        (pa.array([1, 2, 3, 250], pa.uint8()), (struct.pack("<i", -6), struct.pack("<i", 3)), "x = 250", [250]),
        (pa.array([1, 2, 3, 250], pa.uint8()), (struct.pack("<i", -6), struct.pack("<i", 3)), "x < 5", [1, 2, 3]),
        (pa.array(["a", "b", "é"]), ("é".encode(), b"b"), "x = 'é'", ["é"]),
    ],
)
def test_bounds_of_a_writer_that_names_no_order_decide_nothing(
    tmp_path: Path, values: pa.Array, bounds: tuple[bytes, bytes], condition: str, kept: list[Any]
) -> None:
    """By signed bytes 250 is -6: what the format leaves undefined where `column_orders` are not in the footer."""

    def change(footer: hostile.Struct) -> None:
        footer.pop(COLUMN_ORDERS)
        statistics = footer[hostile.ROW_GROUPS][0][hostile.COLUMNS][0][hostile.METADATA][STATISTICS]
        for field, bound in zip((MIN_VALUE, MAX_VALUE), bounds, strict=True):
            statistics.put(field, hostile.BINARY, bound)

    (tmp_path / "x.parquet").write_bytes(hostile.with_footer(hostile.parquet(pa.table({"x": values})), change))
    dataset = fb.load_dataset(tmp_path, split="train")
    assert pa.table(dataset.filter(condition))["x"].to_pylist() == kept


def test_signed_numbers_have_one_order_whether_it_is_named_or_not(tmp_path: Path) -> None:
    body = hostile.parquet(pa.table({"x": pa.array([-5, 2, 7])}))
    (tmp_path / "x.parquet").write_bytes(hostile.with_footer(body, lambda footer: footer.pop(COLUMN_ORDERS)))
    dataset = fb.load_dataset(tmp_path, split="train")
    assert dataset.filter("x > 7").explain()["row_groups_pruned"] == 1
    assert pa.table(dataset.filter("x < 0"))["x"].to_pylist() == [-5]


def swapped_in_footer(body: bytes) -> bytes:
    """Returns a file whose footer has the lower bound of the last column as the upper one, and the other way round."""

    def change(footer: hostile.Struct) -> None:
        statistics = footer[hostile.ROW_GROUPS][0][hostile.COLUMNS][-1][hostile.METADATA][STATISTICS]
        statistics[MIN_VALUE], statistics[MAX_VALUE] = statistics[MAX_VALUE], statistics[MIN_VALUE]

    return hostile.with_footer(body, change)


def swapped_in_index(body: bytes) -> bytes:
    """Does so with the bounds of pages, in the column index."""
    chunk = hostile.split(body)[1][hostile.ROW_GROUPS][0][hostile.COLUMNS][-1]
    start, end = chunk[COLUMN_INDEX_OFFSET], chunk[COLUMN_INDEX_OFFSET] + chunk[COLUMN_INDEX_LENGTH]
    index = hostile.decode(body[start:end])
    index[INDEX_MINS], index[INDEX_MAXES] = index[INDEX_MAXES], index[INDEX_MINS]
    return body[:start] + hostile.encode(hostile.STRUCT, index) + body[end:]


@pytest.mark.parametrize("condition", ["x = 150", "x < 120", "x > 120", "x BETWEEN 130 AND 180", "NOT x = 150"])
@pytest.mark.parametrize("change", [swapped_in_footer, swapped_in_index])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64(), pa.decimal128(12, 2)], ids=str)
def test_bounds_that_contradict_each_other_decide_nothing(
    tmp_path: Path, kind: pa.DataType, change: Callable[[bytes], bytes], condition: str
) -> None:
    numbers = pa.array(range(100, 200), pa.int64())
    table = pa.table({"n": numbers, "x": numbers.cast(pa.int32()).cast(kind)})
    body = hostile.parquet(table, use_dictionary=False, write_page_index=True, data_page_size=100, write_batch_size=10)
    (tmp_path / "x.parquet").write_bytes(change(body))
    if pa.types.is_string(kind):
        condition = re.sub(r"\d+", lambda number: f"'{number[0]}'", condition)
    dataset = fb.load_dataset(tmp_path, split="train")
    expected = dataset.filter(re.sub(r"\bx\b", "n", condition.replace("'", "")))
    assert pa.table(dataset.filter(condition)).equals(pa.table(expected))
