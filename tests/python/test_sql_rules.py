"""Queries whose rows the engine's own optimization would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from querying import rows_of

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
    "l": pa.table({"k": [0, 2], "lang": ["de", "de"]}),
    "h": pa.table({"id": [0, 1, 2, 3], "k": [1, 1, 2, 2], "g": ["a", "b", "a", "b"]}),
    "m": pa.table({"k": [1, 2]}),
    "e": pa.table({"k": [0, 3], "s": ["x", None]}),
    "p": pa.table({"b": [1, 1, 2], "k": [1, 1, 1]}),
    "q": pa.table({"a": [1, 2], "k": [1, 1]}),
    "t": pa.table({"st": pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=pa.array([False, True]))}),
}


@pytest.fixture
def ds(tmp_path: Path) -> fb.Dataset:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet", row_group_size=2)
    return fb.load_dataset(tmp_path, split="train")


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


GROUPS = "SELECT m.k, h.g, count(*) AS n FROM h JOIN (SELECT DISTINCT k FROM m ) m ON m.k = h.k GROUP BY m.k, h.g"

QUERIES |= {
    "a join without a row with a total that is kept": (
        "SELECT d.id, t.c FROM dataset d LEFT JOIN (SELECT count(*) AS c FROM l HAVING count(*) <= 0) t ON false "
        "ORDER BY d.id LIMIT 2",
        [(0, None), (1, None)],
    ),
    "a constant of rows that a left join does not find": (
        "SELECT d.id, l.lang FROM dataset d LEFT JOIN l ON l.k = d.id AND l.lang = 'de' "
        "ORDER BY l.lang NULLS FIRST, d.id LIMIT 2",
        [(1, None), (3, None)],
    ),
    "a constant of rows that a right join does not find": (
        "SELECT d.id, l.lang FROM l RIGHT JOIN dataset d ON l.k = d.id AND l.lang = 'de' ORDER BY l.lang DESC, d.id",
        [(1, None), (3, None), (0, "de"), (2, "de")],
    ),
    "constants of rows that a full join does not find": (
        "SELECT d.id, q.c FROM (SELECT id, 1 AS b FROM dataset WHERE id < 2) d "
        "FULL JOIN (SELECT k, 5 AS c FROM l ) AS q ON q.k = d.id ORDER BY q.c, d.b, d.id",
        [(0, 5), (None, 5), (1, None)],
    ),
    "windows over rows that a join does not find": (
        "SELECT d.id, row_number() OVER (PARTITION BY l.lang ORDER BY d.id) AS r "
        "FROM dataset d LEFT JOIN l ON l.k = d.id AND l.lang = 'de' ORDER BY d.id",
        [(0, 1), (1, 1), (2, 2), (3, 2)],
    ),
    "different constants in a union": (
        "SELECT id, k, row_number() OVER (PARTITION BY k ORDER BY id) AS r FROM "
        "(SELECT id, 1 AS k FROM dataset UNION ALL SELECT k AS id, 2 AS k FROM l ) AS q ORDER BY id, k",
        [(0, 1, 1), (0, 2, 1), (1, 1, 2), (2, 1, 3), (2, 2, 2), (3, 1, 4)],
    ),
    "the order of a limit with an offset": (
        "SELECT * FROM (SELECT id FROM h ORDER BY id LIMIT 2 OFFSET 1) z ORDER BY id",
        [(1,), (2,)],
    ),
    "another order than that of an offset": (
        "SELECT * FROM (SELECT a FROM dataset ORDER BY a NULLS LAST OFFSET 1) z ORDER BY a DESC NULLS FIRST",
        [(None,), (7,), (2,)],
    ),
    "an offset in the dataset's order": (
        "SELECT id, upper('b') AS c FROM (SELECT id FROM dataset OFFSET 1) z ORDER BY id DESC",
        [(3, "B"), (2, "B"), (1, "B")],
    ),
    "an order by a total after a limit": (
        "SELECT * FROM (SELECT t.c, d.id FROM dataset d CROSS JOIN (SELECT min(k) AS c FROM l ) AS t "
        "ORDER BY id LIMIT 2) z ORDER BY c",
        [(0, 0), (0, 1)],
    ),
    "an order by both sides of a join that are ordered": (
        "SELECT x.b, y.a FROM (SELECT b, k FROM p ORDER BY b LIMIT 9) x "
        "JOIN (SELECT a, k FROM q ORDER BY a LIMIT 9) y ON x.k = y.k ORDER BY x.b, y.a",
        [(1, 1), (1, 1), (1, 2), (1, 2), (2, 1), (2, 2)],
    ),
    "an order of grouping sets of ordered rows": (
        "SELECT k, g, count(*) AS n FROM (SELECT k, g FROM h ORDER BY k, g LIMIT 3) z GROUP BY ROLLUP (k, g) "
        "ORDER BY k, g",
        [(1, "a", 1), (1, "b", 1), (1, None, 2), (2, "a", 1), (2, None, 1), (None, None, 3)],
    ),
    "an order of grouping sets that have one": (
        "SELECT k, g, array_agg(id ORDER BY k, g, id) AS c FROM h GROUP BY ROLLUP (k, g) ORDER BY k, g LIMIT 3",
        [(1, "a", [0]), (1, "b", [1]), (1, None, [0, 1])],
    ),
    "a join by a sum over two tables": (
        "SELECT d.id, x.id AS x FROM dataset d JOIN (dataset x CROSS JOIN m ) ON d.id = x.id + m.k ORDER BY d.id, x.id",
        [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)],
    ),
    "NULL in a join beside one where NULL equals NULL": (
        "SELECT x.k, y.k AS j FROM e AS x JOIN e AS y ON x.s = y.s JOIN dataset d ON x.k IS NOT DISTINCT FROM d.id",
        [(0, 0)],
    ),
    "NULL that equals NULL in a join beside another": (
        "SELECT x.k, y.k AS j FROM e AS x JOIN e AS y ON x.s IS NOT DISTINCT FROM y.s JOIN dataset d ON x.k = d.id "
        "ORDER BY x.k",
        [(0, 0), (3, 3)],
    ),
    "NULL in a condition of a join where NULL equals NULL": (
        "SELECT x.k FROM e AS x JOIN dataset d ON x.k IS NOT DISTINCT FROM d.id WHERE x.s = d.s",
        [(0,)],
    ),
    "an order by groups of which one key is a table's": (
        f"{GROUPS} ORDER BY m.k, h.g DESC LIMIT 1",
        [(1, "b", 1)],
    ),
    "groups of groups": (f"SELECT count(*) AS n FROM (SELECT k, g FROM ({GROUPS}) GROUP BY k, g)", [(4,)]),
    "groups by one key of groups": (
        f"SELECT k, count(*) AS n FROM ({GROUPS.replace('DISTINCT k FROM m', 'k FROM m GROUP BY k')}) GROUP BY k "
        "ORDER BY k",
        [(1, 2), (2, 2)],
    ),
    "windows in the order of one key of groups": (
        f"SELECT k, count(*) OVER (ORDER BY k) AS n FROM ({GROUPS.replace('DISTINCT k FROM m', 'k FROM m GROUP BY k')})"
        " ORDER BY k",
        [(1, 2), (1, 2), (2, 4), (2, 4)],
    ),
    "a join with groups": (f"SELECT count(*) AS n FROM h AS o LEFT JOIN ({GROUPS}) AS x ON x.k = o.k", [(8,)]),
    "an order by the items of lists of groups": (
        "SELECT * FROM (SELECT k, unnest(array_agg(g ORDER BY g)) AS g FROM h GROUP BY k) ORDER BY k, g DESC",
        [(1, "b"), (1, "a"), (2, "b"), (2, "a")],
    ),
    "the keys of lists of groups": (
        "SELECT DISTINCT k FROM (SELECT k, unnest(array_agg(g)) AS g FROM h GROUP BY k) ORDER BY k",
        [(1,), (2,)],
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_those_that_the_query_asks_for(ds: fb.Dataset, name: str) -> None:
    sql, expected = QUERIES[name]
    assert rows_of(ds, sql, TABLES) == expected


@pytest.mark.parametrize("operation", ["INTERSECT ALL", "EXCEPT ALL", "UNION ALL SELECT a FROM w EXCEPT ALL"])
def test_equal_rows_are_not_paired(ds: fb.Dataset, operation: str) -> None:
    with pytest.raises(fb.QueryError, match="`EXCEPT ALL` are not supported; number equal rows"):
        ds.query(f"SELECT a FROM dataset {operation} SELECT a FROM w", tables={"w": TABLES["w"]})
    assert rows_of(ds, "SELECT a FROM dataset INTERSECT SELECT a FROM w", TABLES) == [(7,)]


def test_columns_of_one_name_in_a_subquery_are_told_apart_or_refused(ds: fb.Dataset) -> None:
    for subquery in (
        "id IN (SELECT q.a FROM u AS p CROSS JOIN u AS q WHERE p.a < d.id)",
        "EXISTS (SELECT 1 FROM u AS p CROSS JOIN u AS q WHERE p.a < d.id AND q.a = d.a)",
    ):
        with pytest.raises(fb.QueryError, match="`[pq].a` and `[pq].a` with rows around it"):
            rows_of(ds, f"SELECT id FROM dataset d WHERE {subquery}", TABLES)
    other = "SELECT 1 FROM u AS p CROSS JOIN (SELECT a AS k FROM u ) AS q WHERE p.a < d.id AND q.k = d.a"
    assert rows_of(ds, f"SELECT id FROM dataset d WHERE EXISTS ({other}) ORDER BY id", TABLES) == []
    same = "SELECT p.a FROM u AS p JOIN u AS q ON p.a = q.a WHERE p.a >= d.a"
    assert rows_of(ds, f"SELECT id FROM dataset d WHERE d.a IN ({same}) ORDER BY id", TABLES) == [(0,)]


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
