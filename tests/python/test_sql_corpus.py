"""The corpus of SQL queries gives what DuckDB and DataFusion give on the same files, but for what is listed here."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from data import write_fragments
from sql_corpus import Query, corpus
from sql_data import rows_table, side_tables
from sql_engines import DataFusion, DuckDB, Forebay, Rows, comparable
from sql_families import FAMILIES

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

QUERIES = corpus()
ENGINE_ERRORS = (fb.ForebayError, duckdb.Error, ValueError)  # the last is DataFusion's
DATAFUSION_DIFFERS = {
    "floats": "it compares floats by IEEE's total order: -0.0 is below 0.0, and a NaN is not every NaN",
    "floats-order": "the same",
    "floats-window": "the same",
    "floats-groups": "its extremes of floats begin with the largest finite ones, and a NaN is lost to what follows",
    "vector": "it has no such functions",
    "distinct-twice": "it panics where a key is ordered by twice",
}
"""Families whose results are DuckDB's and not always DataFusion's, and why."""

# Where DuckDB and DataFusion differ: the one that Forebay is like, the query, and why.
DIALECTS = {
    "division of integers": ("DataFusion", "SELECT id, seq / 7 AS x FROM dataset", "DuckDB divides into a float"),
    "NULLs in descending order": (
        "DataFusion",
        "SELECT id FROM dataset ORDER BY u8 DESC, id LIMIT 9",
        "DuckDB has them last whatever the direction",
    ),
    "a column and an output of one name": (
        "DataFusion",
        "SELECT -id AS id FROM dataset ORDER BY id + 0 LIMIT 9",
        "DuckDB takes the column within an expression",
    ),
    "a cast to an integer": ("DataFusion", "SELECT id, CAST(seq + 0.7 AS INT) AS x FROM dataset", "DuckDB rounds"),
    "a caret": ("DataFusion", "SELECT id, seq ^ 2 AS x FROM dataset", "in DuckDB it is a power"),
    "a backslash": ("DataFusion", "SELECT id FROM dataset WHERE 'a%' LIKE 'a\\%'", "in DuckDB it escapes nothing"),
    "upper case of one letter": (
        "DataFusion",
        "SELECT id, upper(word) AS x FROM dataset",
        "DuckDB has ẞ for ß, not SS",
    ),
    "equal floats": (
        "DuckDB",
        "SELECT id FROM dataset WHERE f32 IN (0.0, 1.5)",
        "in DataFusion -0.0 is another number",
    ),
    "the order of floats": ("DuckDB", "SELECT id FROM dataset ORDER BY f64 NULLS LAST, id", "DataFusion: -0.0 < 0.0"),
    "numbers that are one double": (
        "DuckDB",
        "SELECT id FROM dataset WHERE id + 9007199254740992 = 9007199254740993.0",
        "DataFusion compares doubles",
    ),
    "an overflow": ("DuckDB", "SELECT id, i64 * 9000000000 AS x FROM dataset", "DataFusion wraps around"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    write_fragments(folder, rows_table(), num_fragments=3, row_group_rows=[100, 250, 37], page_bytes=512)
    return folder


@pytest.fixture(scope="module")
def duck(folder) -> DuckDB:
    return DuckDB(folder, side_tables())


@pytest.fixture(scope="module")
def fusion(folder) -> DataFusion:
    return DataFusion(folder, side_tables())


@pytest.fixture(scope="module")
def ours(folder) -> Forebay:
    return Forebay(folder, side_tables())


def result(engine: Forebay | DuckDB | DataFusion, query: Query) -> Rows:
    return comparable(engine.table(query), is_ordered=query.is_ordered)


@pytest.mark.parametrize("query", [pytest.param(query, id=query.name) for query in QUERIES])
def test_engines_agree(query, ours, duck, fusion):
    expected = result(duck, query)
    if query.family not in DATAFUSION_DIFFERS:
        assert result(fusion, query) == expected
    table = ours.table(query)
    assert comparable(table, is_ordered=query.is_ordered) == expected
    assert table.column_names == duck.table(query).column_names


@pytest.mark.parametrize("query", [pytest.param(query, id=query.name) for query in QUERIES if query.predicate])
def test_filters_keep_the_same_rows(query, ours, duck):
    kept = ours.dataset.filter(query.predicate)
    expected = result(duck, query)
    assert len(kept) == len(expected)
    table = pa.table(kept.select_columns(["id", "word", "f64"]))
    assert comparable(table, is_ordered=False) == expected
    assert table["id"].to_pylist() == sorted(table["id"].to_pylist())


@pytest.mark.parametrize("family", DATAFUSION_DIFFERS)
def test_each_exception_is_one(family, duck, fusion):
    assert any(_differ(duck, fusion, query) for query in QUERIES if query.family == family)


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects_differ_as_listed(name, ours, duck, fusion):
    like, sql, _ = DIALECTS[name]
    query = Query(name, sql, is_ordered="ORDER BY" in sql)
    assert _differ(duck, fusion, query)
    assert not _differ(ours, duck if like == "DuckDB" else fusion, query)


def _differ(first: Forebay | DuckDB | DataFusion, second: DuckDB | DataFusion, query: Query) -> bool:
    """Whether two engines give other rows, or only one of them refuses."""
    results: list[Rows | None] = []
    for engine in (first, second):
        try:
            results.append(result(engine, query))
        except ENGINE_ERRORS:
            results.append(None)
    return results[0] != results[1]


def test_the_corpus_is_what_it_is_for(folder, duck):
    assert len(QUERIES) >= 500
    assert len({query.name for query in QUERIES}) == len(QUERIES)
    assert len({(query.sql, str(query.params)) for query in QUERIES}) >= 0.99 * len(QUERIES)
    counts = Counter(query.family for query in QUERIES if duck.table(query).num_rows)
    # Most queries have rows to differ in, and the corpus is the same in every run.
    assert [name for name, (count, _) in FAMILIES.items() if counts[name] <= 0.6 * count] == []
    assert corpus() == QUERIES
    pruned = fb.load_dataset(folder, split="train").filter("seq BETWEEN 3 AND 5").explain()
    assert " 0 pruned" not in str(pruned)
