"""Clauses mean what they say or are refused, and what orders leave open is one thing; views are in their states."""

from __future__ import annotations

import struct
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 60_000


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    folder: Path = tmp_path_factory.mktemp("clauses")
    rng = np.random.default_rng(3)
    rows = {
        "id": np.arange(NUM_ROWS),
        "k": rng.integers(0, 5, NUM_ROWS).astype("int32"),
        "p": rng.integers(0, 3, NUM_ROWS).astype("int32"),
        "text": [f"t{i % 10}" for i in range(NUM_ROWS)],
    }
    pq.write_table(pa.table(rows), folder / "rows.parquet", row_group_size=7000)
    return fb.load_dataset(folder, split="train")


PASSED_OVER = {
    "SELECT id FROM dataset PREWHERE k = 1": "write `WHERE`",
    "SELECT id FROM (SELECT id FROM dataset PREWHERE k = 1) d": "write `WHERE`",
    "SELECT id FROM dataset PARTITION (p0)": "write `WHERE`",
    "SELECT id FROM dataset WITH (NOLOCK)": "after a table",
    "SELECT id FROM dataset CONNECT BY PRIOR id = k": "WITH RECURSIVE",
    "SELECT id FROM dataset DISTRIBUTE BY k": "DISTRIBUTE BY",
    "SELECT id FROM dataset FOR UPDATE": "FOR UPDATE",
    "SELECT id FROM dataset SETTINGS limits = 3": "SETTINGS",
    "SELECT id FROM dataset FORMAT JSON": "FORMAT",
    "SELECT id, sum(id) OVER (w ORDER BY id) AS s FROM dataset WINDOW w AS (PARTITION BY k)": "cannot extend another",
    "SELECT id, sum(id) OVER v AS s FROM dataset WINDOW w AS (PARTITION BY k), v AS (w ORDER BY id)": "cannot extend",
    "SELECT id FROM dataset WINDOW w AS (ORDER BY k) QUALIFY row_number() OVER w < 3": "write the window",
    "SELECT id, upper('x')(text) AS u FROM dataset": "one pair of brackets",
    "SELECT id, upper(text) FILTER (WHERE k = 1) AS u FROM dataset": "function of one row",
    "SELECT id, UPPER(text) FILTER (WHERE k = 1) AS u FROM dataset": "function of one row",
    "SELECT id, upper(text) OVER (PARTITION BY k) AS u FROM dataset": "function of one row",
    "SELECT id, upper(DISTINCT text) AS u FROM dataset": "function of one row",
    "SELECT id, lag(id) FILTER (WHERE k = 1) OVER (ORDER BY id) AS u FROM dataset": "no `FILTER`",
    "SELECT k, count(*) AS n FROM dataset GROUP BY k WITH ROLLUP": "GROUP BY ROLLUP",
    "SELECT * ILIKE '%d%' FROM dataset": "ILIKE",
    "SELECT d.* ILIKE '%d%' FROM dataset d": "ILIKE",
    "SELECT * REPLACE (1 AS nope) FROM dataset": "no column `nope`",
    "SELECT * REPLACE (1 AS k, 2 AS K) FROM dataset": "no column `K`",
    "SELECT * EXCLUDE (k) REPLACE (1 AS k) FROM dataset": "no column `k`",
    "SELECT id FROM (SELECT d.* REPLACE (1 AS nope) FROM dataset d)": "no column `nope`",
    "SELECT id, id IN (SELECT id FROM dataset WHERE k = 1) AS u FROM dataset": "join the values: `SELECT .* LEFT JOIN",
    "SELECT id, EXISTS (SELECT 1 FROM dataset e WHERE e.id = d.id) AS u FROM dataset d": "only as conditions",
    "SELECT CASE WHEN id IN (SELECT id FROM dataset) THEN 1 END AS u FROM dataset": "only as conditions",
    "SELECT id FROM dataset ORDER BY id IN (SELECT id FROM dataset)": "only as conditions",
    "SELECT id FROM dataset WHERE text SIMILAR TO 't1|t2'": r"`SIMILAR TO` is not supported; write `regexp_like",
    "SELECT id FROM dataset WHERE text NOT SIMILAR TO 't1|t2'": "write `regexp_like",
    "SELECT id, text SIMILAR TO 't_' AS x FROM dataset": "write `regexp_like",
    "FROM dataset": "write `SELECT",
    "FROM dataset LIMIT 3": "write `SELECT",
    "SELECT count(*) AS n FROM (FROM dataset)": "write `SELECT",
}


@pytest.mark.parametrize("sql", PASSED_OVER)
def test_what_would_be_passed_over_is_refused(ds: fb.Dataset, sql: str) -> None:
    for run in (ds.sql, ds.query):
        with pytest.raises(fb.QueryError, match=PASSED_OVER[sql]):
            run(sql)


def test_patterns_of_the_standard_are_written_as_regular_expressions(ds: fb.Dataset) -> None:
    for sql in ("text SIMILAR TO 't1|t2'", "id > 3 OR NOT (text NOT SIMILAR TO '%1')"):
        with pytest.raises(fb.QueryError, match="write `regexp_like"):
            ds.filter(sql)
    num_each = NUM_ROWS // 10
    for sql, num_texts in {
        "regexp_like(text, '^(t1|2)$')": 1,
        # These look anywhere in the text, as PostgreSQL's do.
        "text ~ 't1|2'": 2,
        "text !~ '1|2'": 8,
        "text ~* 'T[12]'": 2,
    }.items():
        assert len(ds.filter(sql)) == num_texts * num_each, sql


def test_filters_and_functions_that_are_brought_along_are_checked_too(ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match="function of one row"):
        ds.filter("upper(text) FILTER (WHERE k = 1) = 'T1'")
    same = fb.Function(call=lambda values: values, arguments=[pa.int64()], returns=pa.int64())
    with pytest.raises(fb.QueryError, match="function of one row"):
        ds.sql("SELECT same(id) OVER (PARTITION BY k) AS x FROM dataset", functions={"same": same})


def nested(before: str, inner: str, after: str, times: int) -> str:
    return before * times + inner + after * times


IN = ("SELECT id FROM dataset WHERE id IN (", "SELECT id FROM dataset", ")")
CHAIN = "SELECT id FROM dataset WHERE id IN (SELECT id FROM a{})"
TWICE = "SELECT x.id FROM a{0} x JOIN a{0} y ON x.id = y.id"


def tables(first: str, following: str, times: int) -> str:
    """Common tables of which each names the one before."""
    named = [f"a0 AS ({first})", *(f"a{i + 1} AS ({following.format(i)})" for i in range(times))]
    return f"WITH {', '.join(named)} SELECT id FROM a{times}"


# Each level, or column, doubles what the engine does.
DOUBLED = {
    f"SELECT id, {nested('coalesce(', 'k', ', 1)', 40)} AS x FROM dataset": "write one with all values",
    f"SELECT id, {nested('1 + nvl(', 'k', ', 1)', 40)} AS x FROM dataset": "write one with all values",
    f"SELECT id FROM (SELECT id FROM dataset WHERE {nested('coalesce(', 'k', ', 1)', 40)} > 1)": "write one with all",
    nested(*IN, 40): "subqueries nest more than 16",
    nested("SELECT id FROM dataset WHERE EXISTS (", IN[1], ")", 40): "subqueries nest more than 16",
    nested("SELECT (", "SELECT max(id) FROM dataset", ") AS x FROM dataset", 40): "subqueries nest more than 16",
    tables(IN[1], CHAIN, 40): "subqueries nest more than 16",
    tables(IN[1], TWICE, 14): "each place that names it",
    tables(IN[1], TWICE, 60): "each place that names it",
    nested("WITH a AS (", "SELECT id FROM dataset", ") SELECT id FROM a", 40): "`WITH` nests more than 16",
    f"SELECT count(*) AS n FROM dataset GROUP BY CUBE ({', '.join(f'k + {i}' for i in range(20))})": "GROUPING SETS",
    f"SELECT {'id.x.(' * 40} FROM dataset": "within each other at line 1, column",
    f"SELECT id{'.x[1]' * 40}.x[ FROM dataset": "within each other at line 1, column",
    f"SELECT id{'.x' * 40}. FROM dataset": "within each other at line 1, column",
    f"SELECT {'CAST(' * 40} FROM dataset": "within each other at line 1, column",
}


@pytest.mark.parametrize("sql", DOUBLED)
def test_what_would_take_ever_more_time_is_refused(ds: fb.Dataset, sql: str) -> None:
    for run in (ds.sql, ds.query):
        with pytest.raises(fb.QueryError, match=DOUBLED[sql]):
            run(sql)


def test_filters_that_would_take_ever_more_time_are_refused(ds: fb.Dataset) -> None:
    for sql, says in {
        f"{nested('coalesce(', 'k', ', 1)', 40)} > 1": "write one with all values",
        "id.x.(" * 40: "within each other",
        "CAST(" * 40: "within each other",
    }.items():
        with pytest.raises(fb.QueryError, match=says):
            ds.filter(sql)


@pytest.mark.parametrize(
    ("condition", "num_rows"),
    [
        (f"{nested('coalesce(', 'k', ', 1)', 10)} >= 0", NUM_ROWS),
        (f"{nested('coalesce(k, ', '1', ')', 60)} >= 0", NUM_ROWS),
        (f"coalesce({', '.join(['k'] * 500)}) >= 0", NUM_ROWS),
        (f"id < 100 AND {nested('CASE WHEN k > 0 THEN 1 ELSE ', '1', ' END', 60)} = 1", 100),
        (f"id < 100 AND {nested('CASE WHEN k >= 0 THEN ', '1', ' END', 60)} = 1", 100),
        (f"id < 100 AND {nested('CASE ', 'k', ' WHEN 9 THEN 1 ELSE 9 END', 60)} > 0", 100),
        (f"id < 100 AND {nested('abs(', 'k', ')', 100)} >= 0", 100),
        (f"id < 100 AND {nested('CAST(', 'k', ' AS int)', 15)} >= 0", 100),
        (f"{' AND '.join(['CAST(k AS int) >= 0'] * 100)} AND {' AND '.join(['dataset.k >= 0'] * 100)}", NUM_ROWS),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_nests_as_deep_as_people_write_is_planned(ds: fb.Dataset, condition: str, num_rows: int) -> None:
    assert len(ds.sql(f"SELECT id FROM dataset WHERE {condition}")) == num_rows
    if "dataset." not in condition:
        assert len(ds.filter(condition)) == num_rows


def test_subqueries_within_each_other_are_planned(ds: fb.Dataset) -> None:
    assert len(ds.sql(nested(*IN, 10))) == NUM_ROWS
    assert pa.table(ds.query(tables("SELECT id FROM dataset WHERE id < 10", TWICE, 6))).num_rows == 10


NUMBERED = "SELECT id, p, row_number() OVER (PARTITION BY p, k % 2 ORDER BY k) AS n FROM dataset"
BEST = "SELECT id, p FROM dataset ORDER BY k DESC LIMIT 100 OFFSET 7"

# What follows is all of rows that are returned, or names the columns that decide.
CLOSED = {
    "a subquery with a window": f"SELECT id FROM ({NUMBERED}) WHERE n = 1",
    "a common table with a window": f"WITH d AS ({NUMBERED}) SELECT id FROM d WHERE n = 1",
    "a joined subquery with a window": f"SELECT d.id FROM ({NUMBERED}) d JOIN t USING (p) WHERE n = 1",
    "a window in IN": (
        f"SELECT id FROM dataset WHERE id IN (SELECT id FROM ({NUMBERED.replace('BY k)', 'BY k, id)')}) WHERE n = 1)"
    ),
    "a subquery with a limit": f"SELECT id FROM ({BEST})",
    "a joined subquery with a limit": f"SELECT d.id FROM ({BEST}) d JOIN t USING (p)",
    "a limit in IN": f"SELECT id FROM dataset WHERE id IN (SELECT id FROM ({BEST.replace('DESC', 'DESC, id')}))",
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_subqueries_leave_open_goes_by_the_order_of_the_dataset(ds: fb.Dataset, name: str) -> None:
    rows = pa.table(ds)
    ids, k, p = (np.asarray(rows[key]) for key in ("id", "k", "p"))
    if "limit" in name:
        wanted = ids[np.lexsort((ids, -k))][7:107]
    else:
        parts = [(p == part) & (k % 2 == odd) for part in range(3) for odd in range(2)]
        wanted = np.array([ids[part & (k == k[part].min())].min() for part in parts])
    kept = pa.table(ds.sql(CLOSED[name], tables={"t": {"p": [0, 1, 2]}} if " t " in CLOSED[name] else None))
    assert sorted(kept["id"].to_pylist()) == sorted(wanted.tolist())


def test_columns_are_replaced_left_out_and_named_behind_from(ds: fb.Dataset) -> None:
    few = "FROM dataset WHERE id < 3"
    written = pa.table(ds.sql(f"SELECT id + 1 AS id, k, p, upper(text) AS text {few}"))
    assert pa.table(ds.sql(f"SELECT * REPLACE (id + 1 AS id, upper(text) AS text) {few}")) == written
    assert pa.table(
        ds.sql(f"SELECT d.* REPLACE (id + 1 AS id, upper(text) AS text) {few.replace('t W', 't d W')}")
    ) == (written)
    assert pa.table(ds.sql(f"SELECT * REPLACE (id + 1 AS id, k AS k, upper(text) AS text) {few}")) == written
    # Tables that nothing comes from are not planned.
    unused = "WITH a AS (SELECT * REPLACE (id + 1 AS id) FROM dataset), b AS (SELECT * FROM a) SELECT * FROM "
    assert ds.sql(unused + "dataset").num_rows == ds.num_rows
    assert ds.sql(unused + "b").num_rows == ds.num_rows
    with pytest.raises(fb.QueryError, match="no column `nope`"):
        ds.sql("WITH a AS (SELECT * REPLACE (1 AS nope) FROM dataset), b AS (SELECT * FROM a) SELECT * FROM b")
    assert ds.sql(f"SELECT * EXCLUDE (k, p) {few}").column_names == ["id", "text"]
    assert ds.sql("FROM dataset SELECT text, id").column_names == ["text", "id"]


PARAMETERS = {
    "SELECT id, $n FROM dataset": ["id", "$n"],
    'SELECT id, "$n" + 1 AS x, "$n" FROM (SELECT id, $n FROM dataset)': ["id", "x", "$n"],
    "SELECT id, $n + id FROM dataset": ["id", "$n + id"],
    "SELECT id, abs($n) AS a, -$n FROM dataset ORDER BY $n, id LIMIT $n": ["id", "a", "-$n"],
}


@pytest.mark.parametrize("sql", PARAMETERS)
def test_columns_of_parameters_are_called_as_they_are_written(ds: fb.Dataset, sql: str) -> None:
    read = [pa.table(run(sql, params={"n": 5})) for run in (ds.sql, ds.query)]
    assert [table.column_names for table in read] == [PARAMETERS[sql]] * 2
    if "$n" in PARAMETERS[sql]:
        assert set(read[0]["$n"].to_pylist()) == {5}


def test_a_parameter_may_be_a_key(ds: fb.Dataset) -> None:
    read = pa.table(ds.query("SELECT $n, k, count(*) AS rows FROM dataset GROUP BY $n, k", params={"n": 5}))
    assert (read.column_names, read["$n"].to_pylist()) == (["$n", "k", "rows"], [5] * 5)


def test_a_variable_is_not_a_parameter(ds: fb.Dataset, tmp_path: Path) -> None:
    for sql in ("SELECT id, @n AS x FROM dataset WHERE id < $n", "SELECT id FROM dataset WHERE @n.x > id OR id < $n"):
        for run in (ds.sql, ds.query):
            with pytest.raises(fb.QueryError, match=r"write `\$name`"):
                run(sql, params={"n": 3})
    with pytest.raises(fb.QueryError, match=r"write `\$name`"):
        ds.filter("id < @n")
    pq.write_table(pa.table({"@n": [1, 2, 3]}), tmp_path / "rows.parquet")
    named = fb.load_dataset(tmp_path, split="train")
    assert pa.table(named.sql('SELECT "@n" FROM dataset WHERE "@n" < $n', params={"n": 3}))["@n"].to_pylist() == [1, 2]
    assert len(named.filter('"@n" = 2')) == 1


CHANGING = {
    "SELECT id, current_date AS u FROM dataset": "current_date",
    "SELECT id, now() AS u FROM dataset": "now",
    "SELECT max(id) AS n, current_timestamp AS u FROM dataset": "now",
    "SELECT id, today() AS u FROM dataset": "current_date",
    "SELECT current_time AS u, count(*) AS n FROM dataset": "current_time",
    "SELECT id, random() AS u FROM dataset": "random",
    "SELECT count(*) AS n FROM dataset WHERE random() < 0.5": "random",
    "SELECT k, count(*) AS n FROM dataset GROUP BY k ORDER BY random()": "random",
    "SELECT id FROM dataset WHERE id IN (SELECT id FROM dataset WHERE random() < 0.5) UNION ALL SELECT 1": "random",
    "SELECT uuid() AS u FROM dataset": "uuid",
}


@pytest.mark.parametrize("sql", CHANGING)
def test_the_clock_and_chance_are_refused_in_every_query(ds: fb.Dataset, sql: str) -> None:
    for run in (ds.sql, ds.query):
        with pytest.raises(fb.QueryError, match=rf"`{CHANGING[sql]}\(\)` depends on more than the data"):
            run(sql)


def test_named_windows_and_filters_of_aggregates_are_run(ds: fb.Dataset) -> None:
    named = "SELECT id, sum(id) FILTER (WHERE p = 1) OVER w AS s FROM dataset WINDOW w AS (PARTITION BY k)"
    written = "SELECT id, sum(CASE WHEN p = 1 THEN id END) OVER (PARTITION BY k) AS s FROM dataset"
    assert pa.table(ds.sql(named)) == pa.table(ds.sql(written))


def column(ds: fb.Dataset, expression: str, memory_limit: int = 1 << 30) -> np.ndarray[Any, Any]:
    made = ds.sql(f"SELECT id, {expression} AS x FROM dataset")
    batches = made.batches(8192, rank=0, world_size=1, memory_limit=memory_limit)
    return np.concatenate([np.asarray(pa.record_batch(batch)["x"]) for batch in batches])


def windows(ds: fb.Dataset) -> dict[str, np.ndarray[Any, Any]]:
    """Functions whose rows `ORDER BY` leaves open, with their values in the order of the dataset."""
    rows = pa.table(ds)
    ids, k, p = (np.asarray(rows[name]) for name in ("id", "k", "p"))
    by_k, by_p = np.lexsort((ids, k)), np.lexsort((ids, p))
    running, number, first = np.empty_like(ids), np.empty_like(ids), np.empty_like(ids)
    running[by_k] = np.cumsum(ids[by_k])
    number[by_k] = np.arange(1, NUM_ROWS + 1)
    rank = np.searchsorted(np.sort(k), k) + 1
    last = np.empty_like(ids)
    parted = np.empty_like(ids)
    for value in range(5):
        first[k == value], last[k == value] = ids[k == value].min(), ids[k == value].max()
    first_of_last = np.array([ids[(p == value) & (k == 4)].min() for value in range(3)])
    for value in range(3):
        of_part = by_p[p[by_p] == value]
        parted[of_part] = np.cumsum(ids[of_part])
    return {
        "sum(id) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING)": running,
        "sum(id) OVER (PARTITION BY p ROWS UNBOUNDED PRECEDING)": parted,
        "first_value(id) OVER (PARTITION BY k)": first,
        "last_value(id) OVER (PARTITION BY k)": last,
        "nth_value(id, 2) OVER (ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)": np.full(
            NUM_ROWS, ids[by_k][1]
        ),
        "first_value(id) OVER (ORDER BY k)": np.full(NUM_ROWS, ids[by_k][0]),
        "first_value(id) OVER (PARTITION BY p ORDER BY k DESC)": first_of_last[p],
        "last_value(id) OVER (ORDER BY k)": last,
        "nth_value(id, 2) OVER (ORDER BY k RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)": np.full(
            NUM_ROWS, ids[by_k][1]
        ),
        "first_value(id) OVER (ORDER BY k GROUPS BETWEEN CURRENT ROW AND 1 FOLLOWING)": first,
        "rank() OVER (ORDER BY k) * 100000 + row_number() OVER (ORDER BY k)": rank * 100_000 + number,
        "row_number() OVER (ORDER BY k) + rank() OVER (ORDER BY k) * 100000": rank * 100_000 + number,
        "rank() OVER (ORDER BY k ROWS UNBOUNDED PRECEDING)": rank,
    }


def test_rows_of_a_frame_that_its_order_leaves_open_go_by_the_order_of_the_dataset(ds: fb.Dataset) -> None:
    for expression, expected in windows(ds).items():
        assert (column(ds, expression) == expected).all(), expression


@pytest.mark.parametrize(
    "expression",
    [
        "sum(id) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING)",
        "last_value(id) OVER (PARTITION BY k)",
        "last_value(id) OVER (ORDER BY k)",
        # What rounding leaves of a sum depends on the order in which it is made.
        "sum(sqrt(id)) OVER (PARTITION BY k)",
        "avg(sqrt(id)) OVER (PARTITION BY p ORDER BY k)",
    ],
)
def test_values_of_windows_do_not_depend_on_the_memory(ds: fb.Dataset, expression: str) -> None:
    assert (column(ds, expression) == column(ds, expression, memory_limit=16 << 20)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda ds, of: ds.sql(f"SELECT id, {of} AS x FROM dataset").filter("x > 2"),
        lambda ds, of: ds.sql(f"SELECT id, {of} AS x FROM dataset").sql("SELECT id FROM dataset ORDER BY x LIMIT 100"),
        lambda ds, of: ds.sql(
            "SELECT d.id FROM dataset d JOIN t ON t.id = d.id WHERE t.x > 2",
            tables={"t": ds.sql(f"SELECT id, {of} AS x FROM dataset")},
        ),
    ],
    ids=["filter", "query", "table"],
)
def test_a_state_of_rows_that_other_columns_chose_is_refused(ds: fb.Dataset, make: Any) -> None:
    def stream(of: str) -> Any:
        return make(ds, of).batches(100, rank=0, world_size=1)

    state = stream("k + 0").state_dict()
    stream("k + 0").load_state_dict(state)
    with pytest.raises(fb.StateError, match="query"):
        stream("p + 0").load_state_dict(state)


def test_columns_that_a_query_leaves_out_are_none_of_a_states_business(ds: fb.Dataset) -> None:
    state = ds.batches(100, rank=0, world_size=1).state_dict()
    ds.sql("SELECT id FROM dataset").batches(100, rank=0, world_size=1).load_state_dict(state)
    few, fewer = (
        ds.sql("SELECT id, k, p FROM dataset").filter("k > 2"),
        ds.sql("SELECT k, id FROM dataset").filter("k > 2"),
    )
    state = few.batches(100, rank=0, world_size=1).state_dict()
    fewer.batches(100, rank=0, world_size=1).load_state_dict(state)


MEMBERS = {"nulls": [1, None], "values": [1, 2], "nothing": []}


@pytest.mark.parametrize("members", MEMBERS)
def test_members_of_a_list_are_unknown_beside_other_conditions_too(tmp_path: Path, members: str) -> None:
    ks, listed = [1, 2, 3, None, 5, 6], MEMBERS[members]
    pq.write_table(pa.table({"id": range(6), "k": ks}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")

    def is_in(row: int) -> bool | None:
        if not listed or ks[row] is None:
            return None if listed else False
        return True if ks[row] in listed else (None if None in listed else False)

    for condition, kept in {
        "k NOT IN (SELECT k FROM t)": lambda row: is_in(row) is False,
        "k NOT IN (SELECT k FROM t) OR id = 4": lambda row: is_in(row) is False or row == 4,
        "NOT (k IN (SELECT k FROM t)) OR id = 4": lambda row: is_in(row) is False or row == 4,
        "NOT (k IN (SELECT k FROM t) AND id < 4)": lambda row: is_in(row) is False or row >= 4,
        "(k IN (SELECT k FROM t)) IS NULL": lambda row: is_in(row) is None,
        "k IN (SELECT k FROM t) OR id = 4": lambda row: is_in(row) is True or row == 4,
        "CASE WHEN k NOT IN (SELECT k FROM t) THEN true ELSE id = 4 END": lambda row: is_in(row) is False or row == 4,
    }.items():
        found = ds.sql(f"SELECT id FROM dataset WHERE {condition}", tables={"t": {"k": pa.array(listed, pa.int64())}})
        assert pa.table(found)["id"].to_pylist() == [row for row in range(6) if kept(row)], condition


def test_members_of_a_list_of_each_row_are_unknown_too(tmp_path: Path) -> None:
    ks, gs = [1, 2, None, 1, 2, None, 1, None], [0, 0, 0, 1, 1, 1, 2, 2]
    listed = [(1, 0), (3, 0), (None, 1), (2, 1), (1, None)]
    pq.write_table(pa.table({"id": range(8), "k": ks, "g": gs}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    tables = {"t": {"k": pa.array([k for k, _ in listed]), "v": pa.array([v for _, v in listed])}}

    def is_in(row: int) -> bool | None:
        members = [k for k, v in listed if v == gs[row]]
        if not members or ks[row] is None:
            return None if members else False
        return True if ks[row] in members else (None if None in members else False)

    of_row = "(SELECT t.k FROM t WHERE t.v = dataset.g)"
    for condition, kept in {
        f"k NOT IN {of_row}": lambda row: is_in(row) is False,
        f"NOT (k IN {of_row})": lambda row: is_in(row) is False,
        f"k NOT IN {of_row} AND id > 1": lambda row: is_in(row) is False and row > 1,
        f"k NOT IN {of_row} OR FALSE": lambda row: is_in(row) is False,
        f"k IN {of_row}": lambda row: is_in(row) is True,
    }.items():
        found = ds.query(f"SELECT id FROM dataset WHERE {condition} ORDER BY id", tables=tables)
        assert pa.table(found)["id"].to_pylist() == [row for row in range(8) if kept(row)], condition


def test_a_column_may_have_any_name(tmp_path: Path) -> None:
    names = ("__forebay_row", "attached_0", "row")
    pq.write_table(pa.table({name: range(50) for name in names}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    last = ds.sql("SELECT *, row_number() OVER (ORDER BY row) AS n FROM dataset ORDER BY __forebay_row DESC LIMIT 2")
    assert pa.table(last).to_pylist() == [{**dict.fromkeys(names, i), "n": i + 1} for i in (49, 48)]
    joined = "SELECT d.row, t.__forebay_row AS r FROM dataset d JOIN t ON d.row = t.__forebay_row"
    assert pa.table(ds.sql(joined, tables={"t": {"__forebay_row": [3]}})).to_pylist() == [{"row": 3, "r": 3}]


@pytest.mark.parametrize("name", ["sum", "first_value", "row_number", "upper"])
def test_a_function_has_a_name_of_its_own(ds: fb.Dataset, name: str) -> None:
    same = fb.Function(call=lambda values: values, arguments=[pa.int64()], returns=pa.int64())
    with pytest.raises(fb.SettingError, match=f"`{name}` is a function of SQL already"):
        ds.sql(f"SELECT {name}(id) AS x FROM dataset", functions={name: same})


def test_a_function_of_a_condition_may_read_another_dataset(ds: fb.Dataset) -> None:
    few = ds.select(range(100))

    def read(values: pa.Array) -> pa.Array:
        assert few[7]["id"] == len(few.filter("id < 7"))
        return values

    found: list[int] = []
    same = fb.Function(call=read, arguments=[pa.int64()], returns=pa.int64())
    kept = few.sql("SELECT id FROM dataset WHERE same(id) > 50", functions={"same": same})
    waiting = Thread(target=lambda: found.append(len(kept)), daemon=True)
    waiting.start()
    waiting.join(60)
    assert found == [49]


def test_what_an_answer_holds_is_counted_while_its_rows_come(ds: fb.Dataset) -> None:
    long = ds.sql("SELECT id, (SELECT max(name) FROM t) AS name FROM dataset", tables={"t": {"name": ["n" * 1000]}})
    with pytest.raises(fb.MemoryLimitError, match="the columns of other tables take at least"):
        next(iter(long.batches(100, rank=0, world_size=1, memory_limit=32 << 20)))


def test_a_join_that_repeats_rows_is_not_run_to_its_end(ds: fb.Dataset) -> None:
    # Billions of rows.
    many = {"k": pa.array(np.zeros(200_000, dtype="int32"))}
    joined = ds.sql("SELECT d.id FROM dataset d JOIN t ON d.k = t.k", tables={"t": many})
    with pytest.raises(fb.QueryError, match="more than once"):
        len(joined)


def test_a_small_table_is_joined_within_little_memory(tmp_path: Path) -> None:
    rows = {"id": np.arange(2_000_000), "k": np.arange(2_000_000) % 5}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", row_group_size=100_000)
    ds = fb.load_dataset(tmp_path, split="train")
    few = {"k": [1, 3]}
    for query in (
        "SELECT id FROM dataset WHERE k IN (SELECT k FROM t)",
        "SELECT d.id FROM dataset d JOIN t ON d.k = t.k",
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM t WHERE t.k = d.k)",
    ):
        kept = ds.sql(query, tables={"t": few}).batches(100_000, rank=0, world_size=1, memory_limit=16 << 20)
        assert sum(batch.num_rows for batch in kept) == 800_000


@pytest.mark.parametrize("code", ["d", "f"])
def test_a_minimum_that_is_nan_leaves_no_row_out(tmp_path: Path, code: str) -> None:
    mark = struct.unpack(code, struct.pack(code, 1.2345678901234567))[0]
    values = np.array([mark, 3.0, 2.0, np.nan] * 1000, dtype=code)
    path = tmp_path / "rows.parquet"
    table = pa.table({"x": values})
    pq.write_table(
        table,
        path,
        row_group_size=1000,
        write_page_index=True,
        use_dictionary=False,
        data_page_size=512,
        compression="none",
    )
    written = path.read_bytes()
    last = pq.read_metadata(path).row_group(3).column(0)
    end = last.data_page_offset + last.total_compressed_size
    behind = written[end:].replace(struct.pack(code, mark), struct.pack(code, np.nan))
    assert behind != written[end:]
    path.write_bytes(written[:end] + behind)
    ds = fb.load_dataset(tmp_path, split="train")
    assert [len(ds.filter(text)) for text in ("x < 2.5", "x >= 1", "x = 2", "x IN (2, 7)")] == [2000, 4000, 1000, 1000]


@pytest.mark.parametrize("code", ["d", "f"])
def test_nan_in_dictionaries_of_floats_is_found(tmp_path: Path, code: str) -> None:
    values = pa.array(np.array([1.0, 2.0, np.nan, 3.0] * 250, dtype=code)).dictionary_encode()
    pq.write_table(pa.table({"x": values}), tmp_path / "rows.parquet", row_group_size=100)
    ds = fb.load_dataset(tmp_path, split="train")
    kind = {"d": "double", "f": "float"}[code]
    texts = (f"x = 'NaN'::{kind}", f"x > 5.0::{kind}", "isnan(x)", "x < 2")
    assert [len(ds.filter(text)) for text in texts] == [250] * 4
