"""Queries whose rows the engine's own optimization would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NAN = float("nan")

ROWS = {
    "id": [0, 1, 2, 3],
    "a": [7, None, 1, 2],
    "f": [1.0, 2.0, 3.0, 4.0],
    "z": [0.5, NAN, 0.5, 1.0],
    "s": ["x", "x", "y", None],
    "some": [[1], [1], [1], [2]],
    "others": pa.array([[], [1], [], None], pa.list_(pa.int64())),
    "b": pa.array([b"ab", b"cd", b"ab", None], pa.binary(2)),
}
TABLES = {
    "u": pa.table({"k": [0, 1], "a": [7, 0], "f": [0.0, 9.0], "s": ["x", "x"]}),
    "w": pa.table({"a": [7]}),
    "n": pa.table({"b": [1, None, 5]}),
    "t": pa.table({"st": pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=pa.array([False, True]))}),
}


@pytest.fixture
def ds(tmp_path: Path) -> fb.Dataset:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet", row_group_size=2)
    return fb.load_dataset(tmp_path, split="train")


def rows_of(ds: fb.Dataset, sql: str) -> list[tuple[Any, ...]]:
    used = {name: table for name, table in TABLES.items() if f" {name} " in f"{sql} ".replace(")", " ")}
    return [tuple(row.values()) for row in pa.table(ds.query(sql, tables=used)).to_pylist()]


QUERIES = {
    "a filter on a column whose name two tables have": (
        "SELECT d.id FROM u CROSS JOIN dataset d WHERE u.a IN (SELECT a FROM w) ORDER BY d.s, d.id",
        [(0,), (1,), (2,), (3,)],
    ),
    "a filter behind an outer join": (
        "SELECT d.id, u.k FROM dataset d RIGHT JOIN u ON u.s = d.s AND u.k < d.id "
        "WHERE (u.f >= 1 AND d.f <= u.f) OR u.s IS NULL",
        [],
    ),
    "a total that its condition leaves out": (
        "SELECT count(*) AS n FROM dataset HAVING 1 > (SELECT count(*) FROM u )",
        [],
    ),
    "a constant beside a total": ("SELECT * FROM (SELECT 5 AS k, count(*) AS n FROM dataset) WHERE k = 6", []),
    "the total of a rollup": (
        "SELECT a, count(*) AS n FROM dataset GROUP BY ROLLUP (a) HAVING 1 > (SELECT count(*) FROM u )",
        [],
    ),
    "a total that is joined to nothing": (
        "SELECT d.id, m.c FROM dataset d LEFT JOIN (SELECT count(*) AS c FROM u ) AS m ON false ORDER BY id",
        [(0, None), (1, None), (2, None), (3, None)],
    ),
    "nothing that is joined to a total": (
        "SELECT d.id FROM (SELECT min(id) AS m FROM dataset) q LEFT JOIN dataset d ON 1 = 3 WHERE d.id >= 0",
        [],
    ),
    "a constant that is perhaps among values": ("SELECT id FROM dataset WHERE 3 NOT IN (SELECT b FROM n )", []),
    "a constant that is among values": ("SELECT id FROM dataset WHERE 5 IN (SELECT b FROM n ) AND id < 1", [(0,)]),
    "values of each row": (
        "SELECT id FROM dataset d WHERE a NOT IN (SELECT b FROM n WHERE n.b = d.a) ORDER BY id",
        [(0,), (1,), (3,)],
    ),
    "the smallest of distinct floats": ("SELECT DISTINCT z FROM dataset ORDER BY z LIMIT 2", [(0.5,), (1.0,)]),
    "fields of a struct that is NULL": ("SELECT st['x'] AS x FROM t", [(1,), (None,)]),
    "lists that contain all of others": (
        "SELECT array_has_all(some, others) AS c FROM dataset ORDER BY id",
        [(True,), (True,), (True,), (None,)],
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_those_that_the_query_asks_for(ds: fb.Dataset, name: str) -> None:
    sql, expected = QUERIES[name]
    assert rows_of(ds, sql) == expected


@pytest.mark.parametrize("operation", ["INTERSECT ALL", "EXCEPT ALL", "UNION ALL SELECT a FROM w EXCEPT ALL"])
def test_equal_rows_are_not_paired(ds: fb.Dataset, operation: str) -> None:
    with pytest.raises(fb.QueryError, match="`EXCEPT ALL` are not supported; number equal rows"):
        ds.query(f"SELECT a FROM dataset {operation} SELECT a FROM w", tables={"w": TABLES["w"]})
    assert rows_of(ds, "SELECT a FROM dataset INTERSECT SELECT a FROM w") == [(7,)]


def test_columns_of_one_name_in_a_subquery_are_told_apart_or_refused(ds: fb.Dataset) -> None:
    for subquery in (
        "id IN (SELECT q.a FROM u AS p CROSS JOIN u AS q WHERE p.a < d.id)",
        "EXISTS (SELECT 1 FROM u AS p CROSS JOIN u AS q WHERE p.a < d.id AND q.a = d.a)",
    ):
        with pytest.raises(fb.QueryError, match="`[pq].a` and `[pq].a` with rows around it"):
            rows_of(ds, f"SELECT id FROM dataset d WHERE {subquery}")
    other = "SELECT 1 FROM u AS p CROSS JOIN (SELECT a AS k FROM u ) AS q WHERE p.a < d.id AND q.k = d.a"
    assert rows_of(ds, f"SELECT id FROM dataset d WHERE EXISTS ({other}) ORDER BY id") == []
    same = "SELECT p.a FROM u AS p JOIN u AS q ON p.a = q.a WHERE p.a >= d.a"
    assert rows_of(ds, f"SELECT id FROM dataset d WHERE d.a IN ({same}) ORDER BY id") == [(0,)]


def test_lists_are_compared_as_if_each_row_were_alone(ds: fb.Dataset) -> None:
    for condition, expected in {
        "array_has_all(others, some)": [1],
        "NOT array_has_all(others, some)": [0, 2],
        "array_has_any(others, [])": [],
        "NOT array_has_any(others, [])": [0, 1, 2],
    }.items():
        assert ds.filter(condition)[:]["id"] == expected, condition


def test_bytes_of_a_fixed_length_have_cases(ds: fb.Dataset) -> None:
    params = {"one": pa.scalar(b"ab", pa.binary(2)), "other": pa.scalar(b"cd", pa.binary(2))}
    kept = ds.filter("CASE b WHEN $one THEN true WHEN $other THEN false END", params=params)
    assert kept[:]["id"] == [0, 2]
