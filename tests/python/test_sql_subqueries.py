"""Subqueries that refer to the rows around them, and columns that the engine gives one name."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, Value
from querying import rows_of

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

ROWS = {"id": [0, 1, 2, 3], "k": [1, 1, 2, 2], "g": ["a", "b", "a", "b"]}
TABLES = {
    "t": pa.table({"k": [1, 1, 2, 3], "v": [10, 20, 30, 40]}),
    "l": pa.table({"k": [1, 2]}),
    "s": pa.table({"k": [1, 2]}, schema=pa.schema([pa.field("k", pa.int64(), nullable=False)])),
    "u": pa.table({"n": [1, 2]}),
    "w": pa.table({"j": [1, 1, 2, 3], "x": [10, 1, None, 3]}),
}


@pytest.fixture
def ds(tmp_path: Path) -> fb.Dataset:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet", row_group_size=3)
    return fb.load_dataset(tmp_path, split="train")


QUERIES = {
    "a column that is never NULL, of no row": (
        "SELECT DISTINCT (SELECT k FROM s WHERE k = 9) IS NULL AS a, coalesce((SELECT k FROM s WHERE k = 9), -1) AS b, "
        "coalesce((SELECT k FROM s WHERE k = 2), -1) AS c FROM dataset",
        [(True, -1, 2)],
    ),
    "a constant of no row": (
        "SELECT id FROM dataset WHERE (SELECT 5 FROM t WHERE k = 99) IS NULL AND "
        "(SELECT 5 FROM t WHERE k = 3) IS NOT NULL AND id < 1",
        [(0,)],
    ),
    "a number of no group": (
        "SELECT id, coalesce((SELECT count(*) FROM t WHERE k = id GROUP BY k), -1) AS n FROM dataset ORDER BY id",
        [(0, -1), (1, 2), (2, 1), (3, 1)],
    ),
    "a total exists without rows": (
        "SELECT id FROM dataset d WHERE NOT EXISTS (SELECT count(*) FROM t WHERE k = d.id)",
        [],
    ),
    "a total exists that is limited": (
        "SELECT id FROM dataset d WHERE id < 1 AND EXISTS (SELECT DISTINCT count(*) FROM t WHERE k = d.id LIMIT 1)",
        [(0,)],
    ),
    "a total that may exist": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM t WHERE k = d.id HAVING count(*) > 1)",
        [(1,)],
    ),
    "a total that may not exist": (
        "SELECT id FROM dataset d WHERE NOT EXISTS (SELECT max(v) FROM t WHERE k = d.id HAVING max(v) > 20) "
        "ORDER BY id",
        [(0,), (1,)],
    ),
    "a constant is the total": ("SELECT id FROM dataset d WHERE 0 IN (SELECT count(*) FROM t WHERE k = d.id)", [(0,)]),
    "a constant is not the total": (
        "SELECT id FROM dataset d WHERE 0 NOT IN (SELECT count(*) FROM t WHERE k = d.id) ORDER BY id",
        [(1,), (2,), (3,)],
    ),
    "a constant is not the NULL that a total is": (
        "SELECT id FROM dataset d WHERE 10 NOT IN (SELECT min(v) FROM t WHERE k = d.id) ORDER BY id",
        [(2,), (3,)],
    ),
    "a total is among totals": (
        "SELECT id FROM dataset d WHERE id = ANY (SELECT count(*) FROM t WHERE k = d.id)",
        [(0,)],
    ),
    "a column is above a total": (
        "SELECT id FROM dataset d WHERE id > ALL (SELECT count(*) FROM t WHERE k = d.id) ORDER BY id",
        [(2,), (3,)],
    ),
    "a total that HAVING leaves out": (
        "SELECT id, (SELECT sum(v) FROM t WHERE k = d.id HAVING count(*) < 2) AS m FROM dataset d ORDER BY id",
        [(0, None), (1, None), (2, 30), (3, 40)],
    ),
    "a count that HAVING leaves out": (
        "SELECT id, (SELECT count(*) FROM t WHERE k = d.id HAVING count(*) < 2) AS m FROM dataset d ORDER BY id",
        [(0, 0), (1, None), (2, 1), (3, 1)],
    ),
    "a count that HAVING leaves out is NULL": (
        "SELECT id FROM dataset WHERE (1 < (SELECT count(*) FROM t HAVING count(*) < 2)) IS NULL ORDER BY id",
        [(0,), (1,), (2,), (3,)],
    ),
    "rows exist in an order": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT v FROM t WHERE k = d.id ORDER BY v LIMIT 1) ORDER BY id",
        [(1,), (2,), (3,)],
    ),
    "rows exist with a value of the row around": (
        "SELECT id FROM dataset d WHERE NOT EXISTS (SELECT d.id + v FROM t WHERE k = d.id)",
        [(0,)],
    ),
    "rows exist with a rank": (
        "SELECT id FROM dataset d WHERE NOT EXISTS (SELECT rank() OVER (ORDER BY v) FROM t WHERE k = d.id)",
        [(0,)],
    ),
    "members in an order": (
        "SELECT id FROM dataset d WHERE id IN (SELECT k FROM t WHERE v > d.id * 10 ORDER BY k) ORDER BY id",
        [(1,), (2,), (3,)],
    ),
    "a rank within the partition that is chosen": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM (SELECT k, v, rank() OVER (PARTITION BY k ORDER BY v) "
        "AS r FROM t WHERE k = d.id) q WHERE r = 2)",
        [(1,)],
    ),
    "the required side of an outer join": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM t LEFT JOIN l ON l.k = t.k WHERE t.v > d.id * 10 "
        "AND l.k IS NULL) ORDER BY id",
        [(0,), (1,), (2,), (3,)],
    ),
    "distinct rows of each row": (
        "SELECT id, q.m FROM dataset d, LATERAL (SELECT DISTINCT v AS m FROM t WHERE k = d.id) q ORDER BY id, m",
        [(1, 10), (1, 20), (2, 30), (3, 40)],
    ),
    "members among distinct rows": (
        "SELECT id FROM dataset d WHERE id IN (SELECT DISTINCT k FROM t WHERE v > d.id * 10) ORDER BY id",
        [(1,), (2,), (3,)],
    ),
    "groups of each row": (
        "SELECT id, q.k FROM dataset d, LATERAL (SELECT k FROM t WHERE k < d.id GROUP BY k) q ORDER BY id, k",
        [(2, 1), (3, 1), (3, 2)],
    ),
    "ranks in the partitions that are chosen": (
        "SELECT id, q.r FROM dataset d, LATERAL (SELECT k, rank() OVER (PARTITION BY k ORDER BY v) AS r FROM t "
        "WHERE k < d.id) q WHERE q.r > 1 ORDER BY id",
        [(2, 2), (3, 2)],
    ),
    "a total of each row": (
        "SELECT id, q.n FROM dataset d, LATERAL (SELECT count(*) AS n FROM t WHERE k = d.id) q ORDER BY id",
        [(0, 0), (1, 2), (2, 1), (3, 1)],
    ),
    "not among the smaller": ("SELECT id FROM dataset d WHERE id NOT IN (SELECT k FROM t WHERE k < d.id + 1)", [(0,)]),
    "not among the greater, one of which is NULL": (
        "SELECT id FROM dataset d WHERE id NOT IN (SELECT x FROM w WHERE j >= d.k) ORDER BY id",
        [],
    ),
    "not among the smaller, one of which is NULL": (
        "SELECT id FROM dataset d WHERE id NOT IN (SELECT x FROM w WHERE j <= d.k) OR id = 3 ORDER BY id",
        [(0,), (3,)],
    ),
    "unknown whether among the smaller": (
        "SELECT id FROM dataset d WHERE (id IN (SELECT x FROM w WHERE j <= d.k)) IS NULL ORDER BY id",
        [(2,), (3,)],
    ),
    "any value of a table": (
        "SELECT id FROM dataset WHERE id = ANY (SELECT k FROM t ) ORDER BY id",
        [(1,), (2,), (3,)],
    ),
    "all values of a table": ("SELECT id FROM dataset WHERE id >= ALL (SELECT k FROM t )", [(3,)]),
    "distinct conditions that are never NULL": (
        "SELECT DISTINCT g = 'a' IS TRUE AS c FROM dataset ORDER BY c",
        [(False,), (True,)],
    ),
    "groups of a condition that is never NULL": (
        "SELECT (g = 'a') IS NOT TRUE AS c, count(*) AS n FROM dataset GROUP BY c ORDER BY c",
        [(False, 2), (True, 2)],
    ),
    "two sums that differ by a cast": ("SELECT sum(CAST(id AS DOUBLE)) AS a, sum(id) AS b FROM dataset", [(6.0, 6)]),
    "two counts that differ by a cast": (
        "SELECT count(DISTINCT CAST(k AS VARCHAR)) AS a, count(DISTINCT k) AS b FROM dataset",
        [(2, 2)],
    ),
    "two groups that differ by a cast": (
        "SELECT k, k::VARCHAR AS c, count(*) AS n FROM dataset GROUP BY k, k::VARCHAR ORDER BY k",
        [(1, "1", 2), (2, "2", 2)],
    ),
    "a rollup of two groups that differ by a cast": (
        "SELECT k, CAST(k AS VARCHAR) AS c, count(*) AS n FROM dataset GROUP BY ROLLUP (k, CAST(k AS VARCHAR)) "
        "ORDER BY k, c",
        [(1, "1", 2), (1, None, 2), (2, "2", 2), (2, None, 2), (None, None, 4)],
    ),
    "running sums that differ by a cast": (
        "SELECT sum(k::DOUBLE) OVER (ORDER BY id) AS a, sum(k) OVER (ORDER BY id) AS b FROM dataset ORDER BY id",
        [(1.0, 1), (2.0, 2), (4.0, 4), (6.0, 6)],
    ),
    "columns that differ by a cast": (
        "SELECT k, CAST(k AS VARCHAR), CAST(k AS DOUBLE) FROM dataset WHERE id = 0",
        [(1, "1", 1.0)],
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_subqueries_keep_their_rows(ds: fb.Dataset, name: str) -> None:
    sql, rows = QUERIES[name]
    assert rows_of(ds, sql, TABLES) == rows


COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compared(value: int | None, sign: str, quantifier: str, others: list[int | None]) -> bool | None:
    told = [None if None in (value, other) else COMPARISONS[sign](value, other) for other in others]
    decides = quantifier == "ANY"
    if decides in told:
        return decides
    return None if None in told else not decides


@pytest.mark.parametrize("quantifier", ["ANY", "ALL"])
@pytest.mark.parametrize("sign", COMPARISONS)
def test_a_column_is_compared_with_itself_in_other_rows(tmp_path: Path, sign: str, quantifier: str) -> None:
    numbers = [1, 2, 3, 4, 5, None]
    pq.write_table(pa.table({"id": range(6), "a": numbers}), tmp_path / "rows.parquet", row_group_size=4)
    ds = fb.load_dataset(tmp_path, split="train")
    for some, others in [("id < 2", [1, 2]), ("id > 3", [5, None]), ("id = 2", [3]), ("id > 9", [])]:
        for value, added in [("a", 0), ("a + 1", 1)]:
            condition = f"{value} {sign} {quantifier} (SELECT a FROM dataset WHERE {some})"
            told = [compared(n if n is None else n + added, sign, quantifier, others) for n in numbers]
            for wanted, written in [(True, "{}"), (False, "NOT {}"), (None, "({}) IS NULL")]:
                sql = f"SELECT id FROM dataset WHERE {written.format(condition)}"
                rows = [row for row, is_told in enumerate(told) if is_told is wanted]
                assert rows_of(ds, f"{sql} ORDER BY id", {}) == [(row,) for row in rows], sql
                assert [row["id"] for row in ds.sql(sql)] == rows, sql


def test_groups_are_compared_with_all_groups(ds: fb.Dataset) -> None:
    sql = "SELECT k FROM dataset GROUP BY k HAVING sum(id) {} (SELECT sum(id) FROM dataset GROUP BY k) ORDER BY k"
    assert rows_of(ds, sql.format(">= ALL"), {}) == [(2,)]
    assert rows_of(ds, sql.format("< ANY"), {}) == [(1,)]
    assert rows_of(ds, sql.format("<> ALL"), {}) == []
    computed = "SELECT id FROM (SELECT id, id + 1 AS n FROM dataset) WHERE n {} (SELECT id + 1 AS n FROM dataset)"
    assert rows_of(ds, computed.format(">= ALL"), {}) == [(3,)]
    assert rows_of(ds, computed.format("<> ALL"), {}) == []


REFUSED = {
    "a rank of chosen rows": (
        "SELECT id FROM dataset d WHERE 1 IN (SELECT rank() OVER (ORDER BY v) FROM t WHERE k = d.id)",
        "PARTITION BY k",
    ),
    "a rank of each row": (
        "SELECT id, q.m FROM dataset d, LATERAL (SELECT rank() OVER (ORDER BY v) m FROM t WHERE k = d.id) q",
        "PARTITION BY k",
    ),
    "the optional side of a join": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM l LEFT JOIN (SELECT * FROM t WHERE k = d.id) q "
        "ON q.k = l.k WHERE q.k IS NULL)",
        "the optional side",
    ),
    "the second row": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT v FROM t WHERE k = d.id LIMIT 1 OFFSET 1)",
        r"\(SELECT count\(\*\) ...\) > 1",
    ),
    "a total among others that may exist": (
        "SELECT id FROM dataset d WHERE id IN (SELECT count(*) FROM t WHERE k = d.id HAVING count(*) > 1)",
        r"\(SELECT count\(\*\) ...\) > 1",
    ),
    "a total of each row that may exist": (
        "SELECT id, q.n FROM dataset d, LATERAL (SELECT count(*) n FROM t WHERE k = d.id HAVING count(*) > 0) q",
        "do so outside",
    ),
    "a total that a row around it leaves out": (
        "SELECT id, (SELECT count(*) FROM t WHERE k = d.id HAVING count(*) > d.k) AS m FROM dataset d",
        "do so outside",
    ),
    "a total that HAVING compares with another one": (
        "SELECT id, (SELECT count(*) FROM t WHERE k = d.id HAVING count(*) < (SELECT max(k) FROM l )) AS m "
        "FROM dataset d",
        "do so outside",
    ),
    "two columns of one name for each row": (
        "SELECT id, q.v FROM dataset d, LATERAL (SELECT p.k, p.v FROM t p JOIN t o ON p.v = o.v WHERE o.k = d.id) q",
        "does not tell apart",
    ),
    "a constant beside a total": (
        "SELECT id, q.c FROM dataset d, LATERAL (SELECT count(*) AS n, 5 AS c FROM t WHERE k = d.id) q",
        "the constant outside",
    ),
    "a rollup": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM t WHERE k = d.id GROUP BY ROLLUP (v))",
        "ROLLUP",
    ),
    "distinct rows below": (
        "SELECT id, q.m FROM dataset d, LATERAL (SELECT DISTINCT 1 AS m FROM t WHERE t.k <= d.id) q",
        "DISTINCT",
    ),
    "two columns of one name": (
        "SELECT n FROM dataset, u WHERE 1 = ANY (SELECT p.k FROM t p JOIN t q ON true WHERE q.k = u.n)",
        "does not tell apart",
    ),
    "a total of smaller rows": (
        "SELECT id, (SELECT max(v) FROM t WHERE k < d.id) AS m FROM dataset d",
        "LEFT JOIN t ON t.k < d.id GROUP BY d.id",
    ),
    "an order": (
        "SELECT id FROM dataset d ORDER BY (SELECT count(*) FROM t WHERE k = d.id), id",
        "in a subquery first",
    ),
    "the first": (
        "SELECT id, (SELECT v FROM t WHERE k = d.id ORDER BY v LIMIT 1) AS m FROM dataset d",
        "take `min",
    ),
    "a difference": (
        "SELECT id FROM dataset d WHERE EXISTS ((SELECT k FROM l ) EXCEPT (SELECT k FROM t WHERE k = d.id))",
        "EXCEPT",
    ),
    "an outer column in a join": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM t JOIN l ON l.k = d.id)",
        "outside WHERE",
    ),
    "a list beside": ("SELECT id, x FROM dataset, unnest(make_array(k)) AS q(x)", "takes columns only of the table"),
    "a list beside, joined": (
        "SELECT id, x FROM dataset CROSS JOIN UNNEST(make_array(k)) AS q(x)",
        r"`SELECT id, unnest\(l\) AS x FROM dataset`",
    ),
    "a list around": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM unnest(make_array(d.k)) q(x) WHERE x = 2)",
        "takes columns only of the table",
    ),
    "a list of each row": (
        "SELECT id, x FROM dataset d, LATERAL unnest(make_array(d.k)) q(x)",
        r"`SELECT id, unnest\(l\) AS x FROM dataset`",
    ),
    "a column that a subquery hides": (
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM (SELECT v FROM t WHERE t.k = d.id) q WHERE q.v > 10)",
        r"WHERE q\.k = d\.id",
    ),
    "a comparison as a value": ("SELECT id = ANY (SELECT k FROM t ) AS c FROM dataset", "LEFT JOIN"),
    "a column twice in a cube": (
        "SELECT g, count(*) AS n FROM dataset GROUP BY CUBE (g, (g))",
        "name each column once",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_give_other_rows_is_refused(ds: fb.Dataset, name: str) -> None:
    sql, said = REFUSED[name]
    with pytest.raises(fb.QueryError, match=said) as refused:
        rows_of(ds, sql, TABLES)
    assert "__" not in str(refused.value).replace("`__", "")


LABELS = pa.table({"id": [1, 2, 3], "label": [0, 1, 1]})


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("EXISTS (SELECT 1 FROM m WHERE m.name = d.label)", [2, 3]),
        ("NOT EXISTS (SELECT 1 FROM m WHERE d.label = m.name)", [1]),
        ("label = ANY (SELECT name FROM m)", [2, 3]),
        ("label <> ALL (SELECT name FROM m)", [1]),
        ("label IN (SELECT name FROM m WHERE m.i = d.id)", [3]),
        ("(label, id) IN (('pos', 3), ('neg', 2))", [3]),
    ],
)
def test_names_of_classes_in_subqueries_are_numbers(tmp_path: Path, condition: str, rows: list[int]) -> None:
    features = Features({"id": Value("int64"), "label": ClassLabel(names=["neg", "pos"])})
    pq.write_table(LABELS.cast(features.arrow_schema), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    found = ds.query(
        f"SELECT id FROM dataset d WHERE {condition} ORDER BY id", tables={"m": {"name": ["pos"], "i": [3]}}
    )
    assert pa.table(found)["id"].to_pylist() == rows
