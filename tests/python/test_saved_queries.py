"""The saved queries of `queries/` say what they need, run, and give what DuckDB gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import data
import duckdb
import numpy as np
import pyarrow as pa
import pytest

import forebay as fb

ROOT = Path(__file__).resolve().parents[2]
QUERIES = {path.stem: path.read_text() for path in sorted((ROOT / "queries").glob("*.sql"))}
NUM_ROWS = 3000
PARAMETERS: dict[str, dict[str, Any]] = {
    "quality": {"min_size": 500, "max_size": 100_000},
    "curriculum": {"max_size": 5000},
    "nearest": {"vector": [0.5, -1.0, 0.25], "count": 20},
    "best_of_clusters": {"count": 3},
}
TABLES = {
    "languages": {"mix": pa.table({"language": ["c", "rust", "toml"], "num_rows": [40, 300, 100_000]})},
    "labels": {
        "labels": pa.table(
            {"path": [f"src/module{i}.rs" for i in range(0, 4000, 3)], "label": [i % 5 for i in range(0, 4000, 3)]}
        )
    },
    "decontaminate": {"banned": pa.table({"hash": [f"h{i % 300}" for i in range(600)]})},
}
OWN_SAMPLE = {"sample"}
"""Of which no other engine takes the same rows."""


def rows() -> pa.Table:
    """The columns of the demo's corpus, and those that dedup, clusters and vectors are about."""
    rng = np.random.default_rng(8)
    hashes = [None if i % 50 == 0 else f"h{i}" for i in rng.integers(0, 2000, NUM_ROWS).tolist()]
    scores = [None if i % 9 == 0 else i / 64 for i in rng.integers(0, 99, NUM_ROWS).tolist()]
    vectors = [None if i % 40 == 0 else row for i, row in enumerate(rng.normal(size=(NUM_ROWS, 3)).tolist())]
    return (
        data.corpus_table(NUM_ROWS)
        .append_column("hash", pa.array(hashes))
        .append_column("cluster", pa.array(rng.integers(0, 30, NUM_ROWS)))
        .append_column("score", pa.array(scores))
        .append_column("embedding", pa.array(vectors, pa.list_(pa.float32())))
    )


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    folder = tmp_path_factory.mktemp("saved")
    data.write_fragments(folder, rows(), num_fragments=2, row_group_rows=400)
    return fb.load_dataset(folder, split="train")


def head(name: str) -> dict[str, str]:
    """What the comment says of parameters, tables and columns."""
    lines = [line.removeprefix("-- ") for line in QUERIES[name].splitlines() if line.startswith("--")]
    return {key: text for key, colon, text in (line.partition(": ") for line in lines[1:]) if colon}


@pytest.mark.parametrize("name", QUERIES)
def test_the_comment_names_what_the_query_needs(name):
    found = head(name)
    sql = re.sub("--.*", "", QUERIES[name])
    assert QUERIES[name].startswith("-- ")
    assert set(re.findall(r"\$(\w+)", found["Parameters"])) == set(re.findall(r"\$(\w+)", sql))
    assert set(PARAMETERS.get(name, {})) == set(re.findall(r"\$(\w+)", sql))
    assert set(re.findall(r"\b(\w+) \(", found.get("Tables", ""))) == set(TABLES.get(name, {}))
    columns = set(rows().column_names)
    used = {word for word in re.findall(r"\w+", re.sub(r"\$\w+|'[^']*'", "", sql)) if word in columns}
    assert used <= set(re.findall(r"\w+", found["Columns"]))


@pytest.mark.parametrize("name", QUERIES)
def test_saved_queries_give_what_duckdb_gives(name, ds):
    assert fb.read_query(name) == QUERIES[name]
    assert fb.list_queries() == sorted(QUERIES)
    params, tables = PARAMETERS.get(name), TABLES.get(name)
    kept = ds.sql(fb.read_query(name), params=params, tables=tables)
    got = pa.table(kept)
    assert 0 < got.num_rows == len(kept) < NUM_ROWS
    assert got.column_names[: len(ds.column_names)] == ds.column_names
    if name in OWN_SAMPLE:
        assert got.equals(pa.table(ds.sql(fb.read_query(name))))
        return
    expected = by_duckdb(QUERIES[name], params, tables or {})
    paths = got["path"].to_pylist(), expected["path"].to_pylist()
    if "ORDER BY" in QUERIES[name].partition("FROM dataset")[2] and "QUALIFY" not in QUERIES[name]:
        assert paths[0] == paths[1]
    assert sorted(paths[0]) == sorted(paths[1])
    for column in set(got.column_names) - set(ds.column_names):
        assert by_path(got, column) == pytest.approx(by_path(expected, column), rel=1e-5)


def test_what_has_no_direction_is_nearest_to_nothing(tmp_path):
    vectors = [[0.0, 0.0], [0.0, 1.0], None, [float("nan"), 1.0], [1.0, 1.0], [1.0, 0.0]]
    table = pa.table({"path": list("abcdef"), "embedding": pa.array(vectors, pa.list_(pa.float32()))})
    data.write_fragments(tmp_path, table, num_fragments=1, row_group_rows=2)
    nearest = fb.load_dataset(tmp_path, split="train").sql(
        fb.read_query("nearest"), params={"vector": [2.0, 0.0], "count": 6}
    )
    assert pa.table(nearest)["path"].to_pylist() == ["f", "e", "b", "d", "a"]


def test_a_size_that_is_not_known_is_not_the_largest(tmp_path):
    sizes = pa.array([None, 3, 5, 4], pa.int64())
    data.write_fragments(
        tmp_path,
        pa.table({"path": list("abcd"), "language": ["c"] * 4, "size": sizes}),
        num_fragments=1,
        row_group_rows=2,
    )
    mix = pa.table({"language": ["c"], "num_rows": [2]})
    kept = fb.load_dataset(tmp_path, split="train").sql(fb.read_query("languages"), tables={"mix": mix})
    assert sorted(pa.table(kept)["path"].to_pylist()) == ["c", "d"]


def by_path(table: pa.Table, column: str) -> dict[str, Any]:
    return dict(zip(table["path"].to_pylist(), table[column].to_pylist(), strict=True))


def by_duckdb(sql: str, params: dict[str, Any] | None, tables: dict[str, pa.Table]) -> pa.Table:
    with duckdb.connect() as connection:
        for name, table in {"dataset": rows(), **tables}.items():
            connection.register(name, table)
        connection.sql("CREATE MACRO cosine_similarity(a, b) AS list_cosine_similarity(a::DOUBLE[], b::DOUBLE[])")
        return connection.sql(sql, params=params).to_arrow_table()
