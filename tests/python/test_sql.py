"""`sql` keeps rows of the dataset and streams them like any other; `query` runs the rest."""

from __future__ import annotations

import hashlib
import math
import pickle
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from programs import is_raised_in_a_fork

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 3000


def make_table() -> pa.Table:
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(NUM_ROWS, 4)).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(range(NUM_ROWS), pa.int64()),
            "cluster": pa.array(rng.integers(0, 40, NUM_ROWS), pa.int32()),
            # Few values, so that orders have ties.
            "score": pa.array(rng.integers(0, 50, NUM_ROWS) / 8.0),
            "lang": pa.array(rng.choice(["de", "en", "fr", None], NUM_ROWS)),
            "meta": pa.array([{"url": f"https://{i % 7}.example/{i}", "hops": i % 5} for i in range(NUM_ROWS)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4),
        }
    )


TABLE = make_table()


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    folder: Path = tmp_path_factory.mktemp("rows")
    for part in range(3):
        rows = TABLE.slice(part * NUM_ROWS // 3, NUM_ROWS // 3)
        pq.write_table(rows, folder / f"part-{part}.parquet", row_group_size=170, data_page_size=1 << 10)
    return fb.load_dataset(folder, split="train")


def pq_bytes(table: pa.Table) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(table, written, use_dictionary=False)
    return bytes(written.getvalue())


def ids_of(dataset: fb.Dataset, **settings: Any) -> list[int]:
    return [
        i
        for batch in dataset.select_columns("id").batches(64, **settings)
        for i in pa.record_batch(batch)["id"].to_pylist()
    ]


def expected(sql: str, **tables: pa.Table) -> list[dict[str, Any]]:
    """What DuckDB says of the same table."""
    with duckdb.connect() as connection:
        connection.register("dataset", TABLE)
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).arrow().read_all().to_pylist()


LABELS = pa.table({"cluster": pa.array(range(0, 40, 2), pa.int32()), "label": [f"c{i}" for i in range(0, 40, 2)]})

# Each keeps rows of the dataset in an order that is total, so that the engines must agree row by row.
QUERIES = {
    "computed": "SELECT id, score * 2 AS twice, upper(lang) AS lang FROM dataset WHERE cluster < 5 ORDER BY id",
    "nested": "SELECT id, meta.url AS url, meta.hops + 1 AS hops FROM dataset WHERE meta.hops = 3 ORDER BY id",
    "order": "SELECT id, score FROM dataset ORDER BY score DESC, id",
    "limit": "SELECT id, lang FROM dataset ORDER BY score, id LIMIT 77 OFFSET 13",
    "join": "SELECT d.id, l.label FROM dataset d JOIN labels l USING (cluster) ORDER BY d.id DESC",
    "left join": "SELECT d.id, l.label FROM dataset d LEFT JOIN labels l ON d.cluster = l.cluster ORDER BY d.id",
    "in": "SELECT id FROM dataset WHERE cluster IN (SELECT cluster FROM labels WHERE label > 'c2') ORDER BY id",
    "not in": "SELECT id FROM dataset WHERE cluster NOT IN (SELECT cluster FROM labels) ORDER BY id",
    "exists": "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM labels l WHERE l.cluster = d.cluster) ORDER BY id",
    "distinct on": "SELECT DISTINCT ON (cluster) cluster, id, score FROM dataset ORDER BY cluster, score DESC, id",
    "window": (
        "SELECT id, n FROM (SELECT id, score, row_number() OVER (PARTITION BY cluster ORDER BY score DESC, id) AS n"
        " FROM dataset) WHERE n <= 3 ORDER BY id"
    ),
    "rank": "SELECT id, rank() OVER (PARTITION BY cluster ORDER BY score) AS r FROM dataset ORDER BY id",
    "share": (
        "SELECT id, score / sum(score) OVER (PARTITION BY cluster) AS part FROM dataset WHERE id % 7 = 0 ORDER BY id"
    ),
    "aggregate beside": (
        "SELECT d.id, c.n FROM dataset d JOIN (SELECT cluster, count(*) AS n FROM dataset GROUP BY cluster) c"
        " ON d.cluster = c.cluster WHERE c.n > 75 ORDER BY d.id"
    ),
    "common table": (
        "WITH good AS (SELECT * FROM dataset WHERE score > 4) SELECT id, lang FROM good WHERE lang = 'de' ORDER BY id"
    ),
    "scalar subquery": "SELECT id FROM dataset WHERE score > (SELECT avg(score) FROM dataset) ORDER BY id",
    "self join": (
        "SELECT a.id, b.score AS best FROM dataset a JOIN (SELECT cluster, max(score) AS score FROM dataset"
        " GROUP BY cluster) b ON a.cluster = b.cluster AND a.score = b.score ORDER BY a.id"
    ),
}


def same(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    def close(a: Any, b: Any) -> bool:
        return math.isclose(a, b, rel_tol=1e-12) if isinstance(a, float) and isinstance(b, float) else a == b

    return len(got) == len(wanted) and all(
        list(a) == list(b) and all(close(a[name], b[name]) for name in a) for a, b in zip(got, wanted, strict=True)
    )


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_keeps_rows_is_a_dataset(ds: fb.Dataset, name: str) -> None:
    sql = QUERIES[name]
    tables = {"labels": LABELS} if "labels" in sql else None
    made = ds.sql(sql, tables=tables)
    wanted = expected(sql, labels=LABELS)
    assert len(made) == len(wanted)
    rows = pa.table(made.batches(100, rank=0, world_size=1)).to_pylist()
    assert same(rows, wanted)
    # The same rows from any process, at any place, by any number of ranks.
    again = pickle.loads(pickle.dumps(made))
    assert same(pa.table(again.batches(100, rank=0, world_size=1)).to_pylist(), wanted)
    by_rank = [pa.table(made.batches(50, rank=rank, world_size=3, remainder="keep")).to_pylist() for rank in range(3)]
    assert same([by_rank[position % 3][position // 3] for position in range(len(wanted))], wanted)


def test_an_answer_without_the_values_of_its_columns_is_evaluated_again(ds: fb.Dataset) -> None:
    made = ds.sql("SELECT id, row_number() OVER (ORDER BY score, id) AS n FROM dataset WHERE id % 300 = 0")
    rows = list(made.iter())
    rebuild, arguments = made._native.__reduce__()
    selection, order, values = arguments[4]
    assert values
    for selected, is_known in ((["id", "n"], False), (["id"], True)):
        answer = (selection, order, None)
        again = made._of(rebuild(*arguments[:3], selected, answer, *arguments[5:]))
        assert (again._native.num_rows_known is not None) == is_known
        assert list(again.iter()) == [{name: row[name] for name in selected} for row in rows]


@pytest.mark.parametrize("name", QUERIES)
def test_a_shuffled_query_delivers_each_row_once_and_resumes(ds: fb.Dataset, name: str) -> None:
    sql = QUERIES[name]
    tables = {"labels": LABELS} if "labels" in sql else None
    made = ds.sql(sql, tables=tables).shuffle(3)
    whole = pa.table(made.batches(64, rank=0, world_size=1)).to_pylist()
    assert sorted(row["id"] for row in whole) == sorted(row["id"] for row in expected(sql, labels=LABELS))
    stream = made.batches(64, rank=0, world_size=1)
    batches: Iterator[Any] = iter(stream)
    first = pa.record_batch(next(batches)).to_pylist()
    resumed = made.batches(64, rank=0, world_size=1)
    resumed.load_state_dict(stream.state_dict())
    assert first + pa.table(resumed).to_pylist() == whole


def test_what_is_left_open_goes_by_the_order_of_the_dataset(ds: fb.Dataset) -> None:
    assert ids_of(ds.sql("SELECT id FROM dataset LIMIT 10"), rank=0, world_size=1) == list(range(10))
    ties = expected("SELECT id FROM dataset ORDER BY score, id")
    assert ids_of(ds.sql("SELECT id FROM dataset ORDER BY score")) == [row["id"] for row in ties]
    numbered = "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY cluster{}) AS n FROM dataset) WHERE n = 1"
    first = [row["id"] for row in expected(numbered.format(" ORDER BY id") + " ORDER BY id")]
    assert ids_of(ds.sql(numbered.format(""))) == first
    assert ids_of(ds.sql("SELECT DISTINCT ON (cluster) id FROM dataset")) == first


@pytest.mark.parametrize(
    "outer",
    [
        "SELECT id FROM {}",
        "SELECT id FROM {} LIMIT 10 OFFSET 5",
        "SELECT id, score * 2 AS twice FROM {} WHERE lang = 'de'",
        "SELECT id FROM (SELECT id, lang FROM {} WHERE score > 1) AS some WHERE lang <> 'fr' LIMIT 7",
    ],
)
@pytest.mark.parametrize(
    "inner",
    [
        "SELECT * FROM dataset ORDER BY score DESC LIMIT 400",
        "SELECT * FROM dataset ORDER BY cluster LIMIT 90 OFFSET 3",
        "SELECT DISTINCT ON (cluster, lang) * FROM dataset ORDER BY cluster DESC, lang, score",
    ],
)
def test_the_first_rows_of_a_subquery_stay_in_its_order(ds: fb.Dataset, inner: str, outer: str) -> None:
    step_by_step = [row["id"] for row in ds.sql(inner).sql(outer.format("dataset"))]
    for whole in (
        outer.format(f"({inner})"),
        outer.format(f"({inner}) AS ordered"),
        f"WITH ordered AS ({inner}) {outer.format('ordered')}",
    ):
        assert [row["id"] for row in ds.sql(whole)] == step_by_step
        assert pa.table(ds.query(whole))["id"].to_pylist() == step_by_step


def _in_order_of_score(ds: fb.Dataset) -> fb.Dataset:
    return ds.sql("SELECT * FROM dataset ORDER BY score DESC")


def _as_selected(ds: fb.Dataset) -> fb.Dataset:
    return ds.select([(7 * place) % len(ds) for place in range(len(ds) // 2)])


@pytest.mark.parametrize("order", [_in_order_of_score, _as_selected])
def test_the_order_that_a_dataset_was_given_is_its_order_to_what_follows(ds: fb.Dataset, order: Any) -> None:
    ordered = order(ds)
    rows = list(ordered.iter())
    ids = [row["id"] for row in rows]
    assert ids != sorted(ids)
    german = [row["id"] for row in rows if row["lang"] == "de"]
    assert [row["id"] for row in ordered.filter("lang = 'de'").iter()] == german
    assert [row["id"] for row in ordered.sql("SELECT id FROM dataset WHERE lang = 'de'").iter()] == german
    assert [row["id"] for row in ordered.sql("SELECT id FROM dataset LIMIT 10 OFFSET 5").iter()] == ids[5:15]
    assert [row["id"] for row in ordered.sql("SELECT id FROM dataset ORDER BY cluster").iter()] == [
        row["id"] for row in sorted(rows, key=lambda row: row["cluster"])
    ]
    numbered = "SELECT id, n FROM (SELECT *, row_number() OVER (PARTITION BY lang) AS n FROM dataset) WHERE n < 3"
    kept = [(row["id"], row["n"]) for row in ordered.sql(numbered).iter()]
    seen: Counter[str] = Counter()
    expected_numbers = []
    for row in rows:
        seen[row["lang"]] += 1
        if seen[row["lang"]] < 3:
            expected_numbers.append((row["id"], seen[row["lang"]]))
    assert kept == expected_numbers
    assert [row["id"] for row in ordered.sql(numbered.replace("id, n ", "id ", 1)).iter()] == [row for row, _ in kept]
    sampled = ordered.sql("SELECT id FROM dataset TABLESAMPLE BERNOULLI (50) REPEATABLE (3)")
    drawn = [row["id"] for row in sampled.iter()]
    assert drawn == [row for row in ids if row in set(drawn)]
    side = {"id": ids[::3], "mark": list(range(len(ids[::3])))}
    joined = ordered.sql("SELECT id, mark FROM dataset JOIN side USING (id)", tables={"side": side})
    assert [(row["id"], row["mark"]) for row in joined.iter()] == list(zip(side["id"], side["mark"], strict=True))
    again = ordered.filter("lang = 'de'").filter("id % 2 = 0").sql("SELECT id FROM dataset LIMIT 7")
    assert [row["id"] for row in again.iter()] == [row for row in german if row % 2 == 0][:7]


def test_queries_build_on_filters_and_on_each_other(ds: fb.Dataset) -> None:
    top = ds.filter("lang = 'de'").sql("SELECT id, score AS s, lang FROM dataset ORDER BY s DESC LIMIT 50")
    assert len(top.filter("s > 5.5")) == sum(row["s"] > 5.5 for row in top.iter())
    nested = top.sql("SELECT id, s + 1 AS t FROM dataset WHERE s < 6 ORDER BY id")
    rows = [
        {"id": row["id"], "t": row["s"] + 1} for row in sorted(top.iter(), key=lambda row: row["id"]) if row["s"] < 6
    ]
    assert list(nested.iter()) == rows
    assert list(pickle.loads(pickle.dumps(nested.filter("t > 2"))).iter()) == [row for row in rows if row["t"] > 2]


NAMES = {
    "score + 1, upper(lang), 'x', 1.5": ["score + 1", "upper(lang)", "'x'", "1.5"],
    "dataset.id, (cluster), meta.hops, meta['url']": ["id", "cluster", "hops", "meta['url']"],
    "id::BIGINT, CAST(cluster AS SMALLINT), (meta.hops)::INT": ["id", "cluster", "hops"],
    "id, id::INT, id::SMALLINT": ["id", "id::INT", "id::SMALLINT"],
    "id::INT, *, -id": ["id::INT", *TABLE.column_names, "-id"],
    "row_number() OVER (ORDER BY id), id AS n": ["row_number() OVER (ORDER BY id)", "n"],
    '"x", id + 1': ["x", "id + 1"],
}


@pytest.mark.parametrize("columns", NAMES)
def test_columns_without_a_name_are_called_as_they_are_written(ds: fb.Dataset, columns: str) -> None:
    table = "(SELECT *, id + 2 AS x FROM dataset) AS dataset" if '"x"' in columns else "dataset"
    text = f"SELECT {columns} FROM {table}"
    for query in (text, f"{text} ORDER BY id LIMIT 5", f"({text}) ORDER BY 1"):
        made = ds.sql(query)
        assert made.column_names == list(made[0]) == pa.table(ds.query(query)).column_names == NAMES[columns], query
    union = ds.query(f"{text} UNION ALL {text}")
    assert pa.table(union).column_names == NAMES[columns]


def test_names_of_groups_are_those_that_the_query_refers_to(ds: fb.Dataset) -> None:
    rows = pa.table(ds.query("SELECT lang, count(*), sum(score) FROM dataset GROUP BY lang ORDER BY sum(score), lang"))
    assert rows.column_names == ["lang", "count(*)", "sum(score)"]
    assert rows["sum(score)"].to_pylist() == sorted(rows["sum(score)"].to_pylist())


def test_a_query_hides_the_columns_that_it_does_not_select(ds: fb.Dataset) -> None:
    view = ds.sql("SELECT id, upper(lang) AS lang FROM dataset")
    assert len(view.filter("lang = 'DE'")) == len(ds.filter("lang = 'de'"))
    with pytest.raises(fb.ColumnNotFoundError, match="score"):
        view.filter("score > 1")


def test_a_plain_filter_written_as_a_query_reads_no_more_than_a_filter(ds: fb.Dataset) -> None:
    query = ds.sql("SELECT * FROM dataset WHERE id < 500 AND lang = 'de'")
    filtered = ds.filter("id < 500 AND lang = 'de'")
    assert len(query) == len(filtered)
    got, wanted = query.explain(), filtered.explain()
    assert got["row_groups_pruned"] == wanted["row_groups_pruned"] > 0
    assert got["selection_bytes"] == wanted["selection_bytes"]


def test_sampling_is_the_same_rows_each_time_and_composes_with_the_rest(ds: fb.Dataset) -> None:
    sample = "SELECT id, lang FROM dataset TABLESAMPLE BERNOULLI (10) REPEATABLE ({}) {}"
    some = ids_of(ds.sql(sample.format(7, "")))
    assert some == ids_of(ds.sql(sample.format(7, "ORDER BY id")))
    assert 200 < len(some) < 400
    assert some != ids_of(ds.sql(sample.format(8, "")))
    german = {row["id"] for row in ds.filter("lang = 'de'").iter()}
    assert ids_of(ds.sql(sample.format(7, "WHERE lang = 'de'"))) == [i for i in some if i in german]
    exact = ds.sql("SELECT id FROM dataset TABLESAMPLE (100 ROWS) REPEATABLE (1)")
    assert len(exact) == 100
    with pytest.raises(fb.QueryError, match="REPEATABLE"):
        ds.sql("SELECT id FROM dataset TABLESAMPLE BERNOULLI (10)")


TABLES = {
    "pyarrow": lambda: LABELS,
    "pandas": lambda: LABELS.to_pandas().astype({"cluster": "int32"}),
    "polars": lambda: pl.from_arrow(LABELS),
    "dict": lambda: LABELS.to_pydict(),
    "reader": lambda: LABELS.to_reader(),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_come_from_any_library(ds: fb.Dataset, kind: str) -> None:
    joined = ds.sql(
        "SELECT d.id, l.label FROM dataset d JOIN labels l USING (cluster)", tables={"labels": TABLES[kind]()}
    )
    assert len(joined) == sum(cluster % 2 == 0 for cluster in TABLE["cluster"].to_pylist())


SIDE = pa.table(
    {
        "k": pa.array([5, None, 3, 11], pa.int64()),
        "w": pa.array([0.5, 1.5, None, 2.5]),
        "name": pa.array(["a", None, "c", "a"]),
        "yes": pa.array([True, None, False, True]),
        "tags": pa.array([["x"], None, [], ["y", None]], pa.list_(pa.string())),
        "point": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 4, "y": None}]),
    }
)


def state_of(ds: fb.Dataset, table: Any) -> dict[str, Any]:
    """Returns a state of a query over `table`."""
    joined = ds.sql("SELECT d.id FROM dataset d JOIN t ON t.k = d.id", tables={"t": table})
    stream = joined.batches(1)
    next(iter(stream))
    return stream.state_dict()


def with_garbage(table: pa.Table) -> pa.Table:
    """Returns the same table with other bytes where it is NULL."""
    columns = []
    for column in table.combine_chunks().columns[:2]:
        (chunk,) = column.chunks
        valid, values = chunk.buffers()
        numbers = np.frombuffer(values, column.type.to_pandas_dtype()).copy()
        numbers[~np.asarray(chunk.is_valid())] = 77
        columns.append(pa.Array.from_buffers(column.type, len(chunk), [valid, pa.py_buffer(numbers)]))
    return pa.table([*columns, *table.columns[2:]], table.schema)


LAID_OUT = {
    "batches": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1)]),
    "a slice": lambda table: pa.concat_tables([table.slice(2), table, table]).combine_chunks().slice(2, 4),
    "bytes under NULLs": with_garbage,
    "metadata": lambda table: table.replace_schema_metadata({"pandas": "{}", "made": "today"}),
    "metadata of fields": lambda table: table.cast(
        pa.schema([field.with_metadata({"made": "today"}) for field in table.schema])
    ),
    "dictionaries": lambda table: table.set_column(2, "name", table["name"].dictionary_encode()),
    "large text": lambda table: table.set_column(2, "name", table["name"].cast(pa.large_string())),
    "views": lambda table: table.set_column(2, "name", table["name"].cast(pa.string_view())),
    "large lists": lambda table: table.set_column(4, "tags", table["tags"].cast(pa.large_list(pa.large_string()))),
    "polars": pl.from_arrow,
    "pickled": lambda table: pickle.loads(pickle.dumps(table)),
}


@pytest.mark.parametrize("layout", LAID_OUT)
def test_a_state_does_not_depend_on_how_a_table_is_laid_out(ds: fb.Dataset, layout: str) -> None:
    assert state_of(ds, LAID_OUT[layout](SIDE)) == state_of(ds, SIDE)


def test_a_state_does_not_depend_on_the_version_of_pandas(ds: fb.Dataset) -> None:
    frame = pd.DataFrame({"k": [3, 5], "w": [1.0, 2.0], "name": ["a", "b"]})
    table = pa.table({"k": [3, 5], "w": [1.0, 2.0], "name": ["a", "b"]})
    assert pa.Table.from_pandas(frame).schema.metadata
    assert state_of(ds, frame) == state_of(ds, table)


def replaced(name: str, values: list[Any]) -> pa.Table:
    place = SIDE.schema.get_field_index(name)
    return SIDE.set_column(place, name, pa.array(values, SIDE.schema.field(name).type))


OTHERS = {
    "a number": replaced("k", [5, None, 3, 12]),
    "a number for NULL": replaced("k", [5, 0, 3, 11]),
    "a text": replaced("name", ["a", None, "c", "b"]),
    "no text for NULL": replaced("name", ["a", "", "c", "a"]),
    "texts divided otherwise": replaced("name", ["ac", None, "", "a"]),
    "no items for NULL": replaced("tags", [["x"], [], [], ["y", None]]),
    "items of another row": replaced("tags", [["x"], None, ["y"], [None]]),
    "fields for NULL": replaced("point", [{"x": 1, "y": "a"}, {"x": None, "y": None}, *SIDE["point"].to_pylist()[2:]]),
    "a name": SIDE.rename_columns(["k", "w", "name", "no", "tags", "point"]),
    "a type": SIDE.set_column(0, "k", SIDE["k"].cast(pa.int32())),
    "a row more": pa.concat_tables([SIDE, SIDE.slice(1, 1)]),
    "the order": SIDE.take([1, 0, 2, 3]),
    "a column more": SIDE.append_column("more", pa.nulls(4)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_state_depends_on_what_is_in_a_table(ds: fb.Dataset, other: str) -> None:
    assert state_of(ds, OTHERS[other])["query"] != state_of(ds, SIDE)["query"]


def test_tables_of_the_rarest_types_are_told_apart(ds: fb.Dataset) -> None:
    columns = [
        (pa.decimal256(50, 2), [1, 2]),
        (pa.month_day_nano_interval(), [(1, 2, 3), (1, 2, 4)]),
        (pa.duration("us"), [1, 2]),
        (pa.binary(2), [b"ab", b"ac"]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [("a", 2)]]),
        (pa.list_(pa.float32(), 2), [[1, 2], [1, 3]]),
        (pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]), [{"d": "a"}, {"d": "b"}]),
    ]
    for data_type, values in columns:
        one, other = (pa.table({"k": [3], "w": pa.array([value], data_type)}) for value in values)
        assert state_of(ds, one) == state_of(ds, one.slice(0))
        assert state_of(ds, one) != state_of(ds, other), data_type


def test_states_of_queries_over_tables_outlive_releases(ds: fb.Dataset) -> None:
    # If another version of Arrow encodes rows otherwise, the encoding has to become our own.
    (query,) = state_of(ds, SIDE)["query"]
    assert query.splitlines()[1:] == ["-- t = 53696113a171e314709fc349970e4a77f64997de90f2c98d1f3d275762289c19"]


def test_a_table_that_only_pyarrow_takes_is_read_through_it(ds: fb.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars hands over a column of NULLs with a buffer, which the type must not have."""
    table = pl.DataFrame({"id": [3, 5], "mark": ["a", "b"]}).with_columns(
        nothing=pl.lit(None), lists=pl.Series([[None], []])
    )
    sql = "SELECT d.id, t.mark, t.nothing FROM dataset d JOIN t USING (id)"
    joined = pa.table(ds.sql(sql, tables={"t": table})).to_pylist()
    assert joined == [{"id": 3, "mark": "a", "nothing": None}, {"id": 5, "mark": "b", "nothing": None}]
    assert pa.table(ds.query("SELECT count(*) AS n FROM t", tables={"t": table}))["n"].to_pylist() == [2]
    with pytest.raises(fb.SettingError, match=r"tables: `t` cannot be read .* cast the column, or pass a `pyarrow"):
        ds.sql(sql, tables={"t": pl.Series("id", [None])})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(fb.SettingError, match="tables: `t` cannot be read as Arrow"):
        ds.sql(sql, tables={"t": table})


def test_a_reader_that_fails_is_not_taken_for_the_rest_of_its_rows(ds: fb.Dataset) -> None:
    class Batches:
        """Fails once, and then goes on."""

        def __init__(self) -> None:
            self.number = 0

        def __iter__(self) -> Iterator[pa.RecordBatch]:
            return self

        def __next__(self) -> pa.RecordBatch:
            self.number += 1
            if self.number == 2:
                raise RuntimeError("the source is gone")
            if self.number > 3:
                raise StopIteration
            return pa.record_batch({"id": [self.number]})

    reader = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), Batches())
    with pytest.raises(fb.SettingError, match=r"tables: `t` cannot be read as Arrow: .*the source is gone"):
        ds.sql("SELECT d.id FROM dataset d JOIN t USING (id)", tables={"t": reader})


def test_tables_come_from_files_and_datasets(ds: fb.Dataset, tmp_path: Path) -> None:
    pq.write_table(LABELS, tmp_path / "labels.parquet")
    sql = "SELECT d.id FROM dataset d JOIN labels l USING (cluster) WHERE l.label <> 'c0'"
    from_file = ds.sql(sql, tables={"labels": tmp_path / "labels.parquet"})
    opened = fb.load_dataset(tmp_path, split="train")
    assert ids_of(from_file) == ids_of(ds.sql(sql, tables={"labels": opened}))
    assert ids_of(from_file) == ids_of(
        ds.sql(sql.split(" WHERE")[0], tables={"labels": opened.filter("label <> 'c0'")})
    )


@pytest.mark.parametrize("value", ["de", "x' OR '1'='1", "'; DROP TABLE dataset; --", None])
def test_parameters_are_bound_and_never_pasted(ds: fb.Dataset, value: str | None) -> None:
    kept = ds.sql("SELECT id FROM dataset WHERE lang = $lang", params={"lang": value})
    assert len(kept) == (len(ds.filter("lang = 'de'")) if value == "de" else 0)


def test_parameters_have_the_types_of_their_values(ds: fb.Dataset) -> None:
    vector = TABLE["vector"][3].as_py()
    for given in (vector, np.array(vector, np.float32), tuple(vector)):
        nearest = ds.sql(
            "SELECT id, cosine_similarity(vector, $v) AS near FROM dataset ORDER BY near DESC LIMIT $k",
            params={"v": given, "k": 5},
        )
        rows = list(nearest.iter())
        assert rows[0]["id"] == 3
        assert rows[0]["near"] == pytest.approx(1.0)
        assert len(rows) == 5


def test_parameters_come_from_any_library(ds: fb.Dataset) -> None:
    two = [1, 3]
    for given in (two, range(1, 4, 2), np.array(two), pa.array(two), pl.Series(two), pd.Series(two)):
        assert ids_of(ds.filter("id = ANY($v)", params={"v": given})) == two, type(given)
    for missing in (None, pd.NA, pd.NaT, np.datetime64("NaT", "us")):
        assert len(ds.filter("id = $v OR $v IS NOT NULL", params={"v": missing})) == 0
    for given in (b"ab", bytearray(b"ab"), memoryview(b"ab")):
        assert len(ds.filter("$v = X'6162'", params={"v": given})) == len(ds)


BASE = 1_700_000_000_000_000_000
LATER = pd.Timestamp(BASE + 1)
LATER_UTC = LATER.tz_localize("UTC")
EARLIER = pd.Timestamp(BASE)
BERLIN = pd.Timestamp(BASE, tz="Europe/Berlin")


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """Moments that differ by less than a microsecond."""
    table = {
        "id": [0, 1],
        "at": pa.array([BASE, BASE + 1], pa.timestamp("ns")),
        "utc": pa.array([BASE, BASE + 1], pa.timestamp("ns", "UTC")),
        "took": pa.array([0, 1], pa.duration("ns")),
        "clock": pa.array([0, 1], pa.time64("ns")),
    }
    path = tmp_path_factory.mktemp("moments") / "moments.parquet"
    pq.write_table(pa.table(table), path)
    return fb.load_dataset(path, split="train")


@pytest.mark.parametrize(
    ("condition", "given", "ids"),
    [
        ("at = ANY($x)", [LATER], [1]),
        ("at = ANY($x)", (LATER,), [1]),
        ("at = ANY($x)", [LATER, EARLIER], [0, 1]),
        ("at = ANY($x)", [None, EARLIER.to_pydatetime(), LATER], [0, 1]),
        ("at = ANY($x[2])", [[EARLIER], [LATER]], [1]),
        ("at = $x['at']", {"at": LATER, "name": "later"}, [1]),
        ("at = ANY($x)", np.array([LATER], object), [1]),
        ("at = ANY($x)", np.array([BASE + 1], "M8[ns]"), [1]),
        ("at = ANY($x[2])", np.array([[BASE], [BASE + 1]], "M8[ns]"), [1]),
        ("at = ANY($x)", pd.Series([LATER]), [1]),
        ("at = ANY($x)", pd.Series([LATER], dtype=object), [1]),
        ("at = ANY($x)", pd.Series([LATER], dtype="category"), [1]),
        ("at = ANY($x)", pa.array([BASE + 1], pa.timestamp("ns")), [1]),
        ("at = ANY($x)", pa.chunked_array([[BASE + 1]], pa.timestamp("ns")), [1]),
        ("at = ANY($x)", pa.scalar([BASE + 1], pa.list_(pa.timestamp("ns"))), [1]),
        ("at = ANY($x[1])", pa.array([[BASE + 1]], pa.list_(pa.timestamp("ns"))), [1]),
        ("at = ANY($x)", pl.Series([BASE + 1]).cast(pl.Datetime("ns")), [1]),
        ("at = ANY($x[1])", pl.Series([[BASE + 1]]).cast(pl.List(pl.Datetime("ns"))), [1]),
        ("utc = ANY($x)", [LATER_UTC], [1]),
        ("utc = ANY($x)", [BERLIN, LATER_UTC], [0, 1]),
        ("utc = ANY($x)", pd.Series([LATER_UTC]), [1]),
        ("utc = ANY($x)", pd.DatetimeIndex([LATER_UTC]), [1]),
        ("utc = ANY($x)", pa.array([BASE + 1], pa.timestamp("ns", "UTC")), [1]),
        ("took = ANY($x)", [pd.Timedelta(1)], [1]),
        ("took = ANY($x)", pl.Series([1]).cast(pl.Duration("ns")), [1]),
        ("clock = ANY($x)", pa.array([1], pa.time64("ns")), [1]),
        ("clock = ANY($x)", pl.Series([1]).cast(pl.Time), [1]),
    ],
)
def test_parameters_keep_their_nanoseconds_in_lists(
    condition: str, given: Any, ids: list[int], moments: fb.Dataset
) -> None:
    assert ids_of(moments.filter(condition, params={"x": given})) == ids


@pytest.mark.parametrize(
    "column",
    [
        [LATER],
        (LATER,),
        [LATER, EARLIER + pd.Timedelta(2)],
        np.array([LATER], object),
        pd.Series([LATER]),
        pd.Series([LATER], dtype=object),
        pa.array([BASE + 1], pa.timestamp("ns")),
        pa.chunked_array([[BASE + 1]], pa.timestamp("ns")),
        pl.Series([BASE + 1]).cast(pl.Datetime("ns")),
    ],
)
def test_columns_of_tables_keep_their_nanoseconds(column: Any, moments: fb.Dataset) -> None:
    assert ids_of(moments.sql("SELECT id FROM dataset JOIN t USING (at)", tables={"t": {"at": column}})) == [1]


def test_moments_too_far_for_nanoseconds_are_refused_beside_nanoseconds(moments: fb.Dataset) -> None:
    far = pd.Timestamp("3000-01-01")
    assert ids_of(moments.filter("at < ANY($x)", params={"x": [far]})) == [0, 1]
    for given in ([far, LATER], [LATER, far.to_pydatetime()]):
        with pytest.raises(fb.SettingError, match="params: `x` has no SQL type"):
            moments.filter("at = ANY($x)", params={"x": given})
        with pytest.raises(fb.SettingError, match="tables: `t` is not a dict of columns"):
            moments.sql("SELECT id FROM dataset JOIN t USING (at)", tables={"t": {"at": given}})


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64()), pa.large_list(pa.timestamp("ns"))], ids=str)
def test_null_has_the_type_that_it_is_given(ds: fb.Dataset, kind: pa.DataType) -> None:
    missing = {"v": pa.scalar(None, kind)}
    assert len(ds.filter("$v IS NULL", params=missing)) == len(ds)
    assert ds.sql("SELECT $v AS v FROM dataset", params=missing).schema.field("v").type == kind


def test_vector_functions_are_those_of_numpy(ds: fb.Dataset) -> None:
    vectors = np.stack(TABLE["vector"].to_numpy(zero_copy_only=False))
    other = [0.5, -1.0, 2.0, 0.25]
    rows = ds.sql(
        "SELECT cosine_similarity(vector, $v) AS c, l2_distance(vector, $v) AS l, dot(vector, $v) AS d FROM dataset",
        params={"v": other},
    )
    got = {name: np.array(column) for name, column in next(rows.iter(NUM_ROWS)).items()}
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other)
    np.testing.assert_allclose(got["d"], vectors @ other, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got["c"], vectors @ other / norms, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["l"], np.linalg.norm(vectors - other, axis=1), rtol=1e-5)


@pytest.mark.parametrize("name", ["cosine_similarity", "l2_distance", "dot"])
def test_vectors_of_other_lengths_are_refused_before_any_row_is_read(ds: fb.Dataset, name: str) -> None:
    refused = pytest.raises(fb.QueryError, match=f"`{name}` of vectors of 4 and 3 numbers; expected as many")
    with refused:
        ds.filter(f"{name}(vector, $v) > 0", params={"v": [1.0, 2.0, 3.0]})
    with refused:
        ds.sql(f"SELECT {name}(vector, [1.0, 2.0, 3.0]) AS near FROM dataset")


@pytest.mark.parametrize("name", ["cosine_similarity", "l2_distance", "dot"])
def test_vectors_that_are_null_have_no_distance(ds: fb.Dataset, name: str) -> None:
    assert ds.sql(f"SELECT {name}(vector, NULL) AS near FROM dataset")[:]["near"] == [None] * NUM_ROWS
    assert ds.sql(f"SELECT {name}($v, vector) AS near FROM dataset", params={"v": None})[:]["near"] == [None] * NUM_ROWS
    assert len(ds.filter(f"{name}(NULL, NULL) > 0")) == 0


def test_results_of_queries_show_their_columns(ds: fb.Dataset) -> None:
    result = ds.query("SELECT lang, count(*) AS n FROM dataset GROUP BY lang")
    assert repr(result).splitlines()[1:] == ["  lang  Utf8", "  n     Int64"]
    pa.table(result)
    assert repr(result).startswith("QueryResult(rows to be read once")
    assert repr(ds.query("SELECT id FROM dataset LIMIT 3")).splitlines()[1:] == ["  id  Int64"]


def test_explain_tells_of_the_order_of_a_query(ds: fb.Dataset) -> None:
    ordered = ds.sql("SELECT * FROM dataset ORDER BY id DESC")
    assert ordered.explain()["order_of_query"]
    assert "that of the query" in str(ordered.explain())
    assert not ordered.shuffle(1).explain()["order_of_query"]
    assert not ds.explain()["order_of_query"]


def shout(texts: pa.Array) -> pa.Array:
    return pc.utf8_upper(texts)


SHOUT = fb.Function(call=shout, arguments=[pa.string()], returns=pa.string())


def test_hashes_are_those_of_hashlib_in_columns_and_filters(ds: fb.Dataset) -> None:
    urls = [meta["url"] for meta in TABLE["meta"].to_pylist()]
    said = {
        "md5": "md5(meta.url)",
        "sha256": "encode(sha256(meta.url), 'hex')",
        "blake2b": "encode(digest(meta.url, 'blake2b'), 'hex')",
    }
    hashed = ds.sql(f"SELECT {', '.join(f'{sql} AS {name}' for name, sql in said.items())} FROM dataset")
    for name in said:
        expected = [getattr(hashlib, name)(url.encode()).hexdigest() for url in urls]
        assert hashed[:][name] == expected, name
    kept = ds.filter("md5(meta.url) < '1'")
    assert kept[:]["id"] == [i for i, url in enumerate(urls) if hashlib.md5(url.encode()).hexdigest() < "1"]
    assert 100 < len(kept) < 300


def test_functions_run_in_filters_columns_and_other_processes(ds: fb.Dataset) -> None:
    loud = ds.sql("SELECT id, shout(lang) AS loud FROM dataset WHERE shout(lang) = 'DE'", functions={"shout": SHOUT})
    assert len(loud) == len(ds.filter("lang = 'de'"))
    assert {row["loud"] for row in loud.iter()} == {"DE"}
    again = pickle.loads(pickle.dumps(loud.shuffle(1)))
    assert sorted(row["id"] for row in again.iter()) == [row["id"] for row in loud.iter()]
    counted = ds.query("SELECT shout(lang) AS l, count(*) AS n FROM dataset GROUP BY 1", functions={"shout": SHOUT})
    assert pa.table(counted).num_rows == 4


def test_functions_are_called_by_their_names_in_any_case(ds: fb.Dataset) -> None:
    loud = ds.sql("SELECT makeLoud(lang) AS a, MAKELOUD(lang) AS b FROM dataset", functions={"makeLoud": SHOUT})
    assert {(row["a"], row["b"]) for row in loud.iter()} >= {("DE", "DE")}
    with pytest.raises(fb.SettingError, match="`Length` is a function of SQL already"):
        ds.sql("SELECT Length(lang) AS l FROM dataset", functions={"Length": SHOUT})
    with pytest.raises(fb.SettingError, match="SQL cannot tell `F` from `f`; choose another name"):
        ds.sql("SELECT f(lang) AS l FROM dataset", functions={"F": SHOUT, "f": SHOUT})


def test_streams_that_call_python_end_while_it_is_called(ds: fb.Dataset) -> None:
    """Closing, dropping and abandoning them waits for threads that wait for the interpreter."""
    loud = ds.sql("SELECT shout(lang) AS loud FROM dataset", functions={"shout": SHOUT})
    for _ in range(20):
        batches = iter(loud.batches(16, rank=0, world_size=1))
        next(batches)
        del batches
        reader = pa.RecordBatchReader.from_stream(loud.batches(16, rank=0, world_size=1))
        reader.read_next_batch()
        del reader
    assert pl.DataFrame(loud.batches(500, rank=0, world_size=1)).height == NUM_ROWS


def raises(_: pa.Array) -> pa.Array:
    raise ValueError("no such word")


def no_text(num_rows: int) -> pa.StringArray:
    """Returns an array of text that is not UTF-8."""
    offsets = pa.array(range(num_rows + 1), pa.int32())
    return pa.StringArray.from_buffers(num_rows, offsets.buffers()[1], pa.py_buffer(b"\xff" * num_rows))


BROKEN = {
    "raises": (raises, r"`f` failed: ValueError: no such word"),
    "wrong length": (lambda texts: texts[:1], r"`f` failed: it returned 1 values for \d+ rows"),
    "wrong type": (lambda texts: pc.utf8_length(texts), r"`f` failed: it returned values of type Int32, expected Utf8"),
    "no array": (lambda _: 7, r"`f` failed: TypeError: it returned <class 'int'>"),
    "no text": (lambda texts: no_text(len(texts)), r"`f` failed: ValueError: .*UTF8"),
}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (lambda: no_text(3), "UTF8"),
        (lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1, 7]), ["a", "b"], safe=False), "out of bounds"),
    ],
    ids=["text", "dictionary"],
)
def test_tables_that_hold_what_no_array_holds_are_refused(ds: fb.Dataset, values: Any, said: str) -> None:
    tables = {"t": pa.table({"id": range(3), "v": values()})}
    with pytest.raises(fb.SettingError, match=rf"(?i)`t`.*{said}"):
        len(ds.sql("SELECT d.id FROM dataset d JOIN t ON d.id = t.id WHERE upper(t.v) = 'A'", tables=tables))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_function_may_return_an_array_without_a_type_for_no_value(ds: fb.Dataset, is_known: bool) -> None:
    def double(numbers: pa.Array) -> pa.Array:
        return pa.array([2 * number if is_known else None for number in numbers.to_pylist()])

    functions = {"f": fb.Function(call=double, arguments=[pa.int64()], returns=pa.int64())}
    found = [row["x"] for row in ds.sql("SELECT f(id) AS x FROM dataset", functions=functions)]
    assert [value is not None for value in found] == [is_known] * NUM_ROWS
    counted = pa.table(ds.query("SELECT count(f(id)) AS n, count(*) AS c FROM dataset", functions=functions))
    assert counted.to_pylist() == [{"n": NUM_ROWS if is_known else 0, "c": NUM_ROWS}]


def test_functions_get_empty_arrays_when_a_query_is_planned(ds: fb.Dataset) -> None:
    lengths = []

    def count(text: pa.Array) -> pa.Array:
        lengths.append(len(text))
        return pc.utf8_length(text)

    functions = {"count_letters": fb.Function(call=count, arguments=[pa.string()], returns=pa.int32())}
    counted = ds.sql("SELECT count_letters(lang) AS n FROM dataset", functions=functions)
    assert set(lengths) == {0}
    assert pa.table(counted).num_rows == NUM_ROWS
    assert max(lengths) > 0


@pytest.mark.parametrize("how", BROKEN)
def test_functions_that_fail_say_so(ds: fb.Dataset, how: str) -> None:
    call, said = BROKEN[how]
    functions = {"f": fb.Function(call=call, arguments=[pa.string()], returns=pa.string())}
    with pytest.raises(fb.QueryError, match=said):
        len(ds.sql("SELECT id FROM dataset WHERE f(lang) = 'x'", functions=functions))
    with pytest.raises(fb.QueryError, match=said):
        list(ds.sql("SELECT f(lang) AS l FROM dataset", functions=functions).iter())
    with pytest.raises(fb.QueryError, match=said):
        list(ds.query("SELECT f(lang) AS l, count(*) FROM dataset GROUP BY 1", functions=functions))


def test_query_runs_what_makes_other_rows(ds: fb.Dataset) -> None:
    sql = "SELECT cluster, count(*) AS n, max(score) AS best FROM dataset WHERE lang = 'en' GROUP BY 1 ORDER BY 1"
    assert pa.table(ds.query(sql)).to_pylist() == expected(sql)
    assert pl.DataFrame(ds.query(sql)).height == 40
    assert isinstance(pd.DataFrame(pa.table(ds.query(sql)).to_pandas()), pd.DataFrame)
    union = "SELECT id FROM dataset WHERE id < 3 UNION ALL SELECT id FROM dataset WHERE id < 2"
    assert sorted(pa.table(ds.query(union))["id"].to_pylist()) == [0, 0, 1, 1, 2]
    with ds.query("SELECT a.id FROM dataset a CROSS JOIN labels", tables={"labels": LABELS}) as rows:
        assert next(iter(rows)).num_rows > 0
    assert pa.table(ds.query("SELECT id FROM dataset ORDER BY score DESC, id LIMIT 3")).to_pylist() == expected(
        "SELECT id FROM dataset ORDER BY score DESC, id LIMIT 3"
    )


def test_a_query_result_is_read_once(ds: fb.Dataset) -> None:
    rows = ds.query("SELECT count(*) FROM dataset")
    pa.table(rows)
    with pytest.raises(fb.ClosedError, match="closed or consumed before"):
        pa.table(rows)


@pytest.mark.parametrize("sql", ["SELECT id FROM dataset", "SELECT id FROM dataset ORDER BY score LIMIT 9"])
@pytest.mark.parametrize("is_first_left", [False, True])
def test_what_a_loop_over_a_query_left_is_not_taken_for_all_rows(
    ds: fb.Dataset, sql: str, *, is_first_left: bool
) -> None:
    rows = ds.query(sql)
    first = iter(rows)
    num_rows = next(first).num_rows
    if not is_first_left:
        num_rows += sum(batch.num_rows for batch in first)
        assert num_rows == len(expected(sql))
    for again in (pa.table, list, lambda rows: next(iter(rows))):
        with pytest.raises(fb.ClosedError, match="read once, and a loop over them has begun; query again"):
            again(rows)
    # The first loop is none the worse for it.
    assert num_rows + sum(batch.num_rows for batch in first) == len(expected(sql))


@pytest.mark.parametrize("sql", ["SELECT 1 / (id - 5) AS x FROM dataset", "SELECT sum(1 / (id - 5)) FROM dataset"])
def test_a_query_that_failed_does_not_look_complete(ds: fb.Dataset, sql: str) -> None:
    rows = ds.query(sql)
    with pytest.raises(fb.QueryError, match="[Dd]ivi"):
        list(rows)
    for again in (pa.table, list):
        with pytest.raises(fb.ClosedError, match="query again"):
            again(rows)


@pytest.mark.parametrize(
    "sql", ["SELECT id, lang FROM dataset LIMIT 3", "SELECT lang, count(*) FROM dataset GROUP BY 1"]
)
def test_a_query_result_is_no_array_of_batches(ds: fb.Dataset, sql: str) -> None:
    rows = ds.query(sql)
    for take in (pd.DataFrame, np.asarray):
        with pytest.raises(TypeError, match=r"no array; `pyarrow\.table\(result\)\.to_pandas\(\)` makes a data frame"):
            take(rows)
    assert pa.table(rows).to_pandas().equals(pd.DataFrame.from_arrow(ds.query(sql)))


def test_a_forked_child_is_refused_its_parents_rows_and_does_not_wait(ds: fb.Dataset) -> None:
    rows = ds.query("SELECT cluster, count(*) AS n FROM dataset GROUP BY cluster")
    assert is_raised_in_a_fork(fb.ClosedError, lambda: next(iter(rows)))
    assert pa.table(rows).num_rows == 40


OTHER_ROWS = {
    "SELECT count(*) FROM dataset": "aggregate",
    "SELECT cluster, max(id) FROM dataset GROUP BY cluster": "aggregate",
    "SELECT DISTINCT lang FROM dataset": "DISTINCT ON",
    "SELECT id FROM dataset UNION ALL SELECT id FROM dataset": "UNION",
    "SELECT label FROM labels": "its rows are not rows of `dataset`",
    "SELECT unnest(vector) FROM dataset": "UNNEST",
}


@pytest.mark.parametrize("sql", OTHER_ROWS)
def test_a_query_that_makes_other_rows_is_refused_and_query_is_named(ds: fb.Dataset, sql: str) -> None:
    with pytest.raises(fb.QueryError, match=r"query\(\)") as refused:
        ds.sql(sql, tables={"labels": LABELS})
    assert OTHER_ROWS[sql] in str(refused.value)


FAN_OUT = pa.table({"cluster": pa.array([1, 1, 2], pa.int32()), "label": ["a", "b", "c"]})


def test_joins_that_fan_out_are_refused_with_the_row(ds: fb.Dataset) -> None:
    joined = ds.sql("SELECT d.id, l.label FROM dataset d JOIN labels l USING (cluster)", tables={"labels": FAN_OUT})
    with pytest.raises(fb.QueryError, match=r"row \d+ of row group \d+ of .*part-\d.parquet` more than once"):
        len(joined)
    outer = ds.sql(
        "SELECT d.id FROM dataset d FULL JOIN labels l ON d.cluster = l.cluster AND d.id < 0", tables={"labels": LABELS}
    )
    with pytest.raises(fb.QueryError, match="LEFT JOIN"):
        len(outer)


REFUSED = {
    "DROP TABLE dataset": "only SELECT",
    "CREATE TABLE t AS SELECT * FROM dataset": "only SELECT",
    "INSERT INTO dataset VALUES (1)": "only SELECT",
    "COPY dataset TO 'x.csv'": "only SELECT",
    "SET datafusion.execution.batch_size = 1": "only SELECT",
    "EXPLAIN SELECT * FROM dataset": "only SELECT",
    "SHOW TABLES": "only SELECT",
    "SELECT * INTO t FROM dataset": "only SELECT",
    "SELECT 1; SELECT 2": "several statements",
    "": "it is empty",
    "SELECT * FROM '/etc/passwd'": "there is no table",
    'SELECT * FROM "s3://bucket/x.parquet"': "there is no table",
    "SELECT * FROM information_schema.tables": "there is no table",
    "SELECT * FROM read_csv('/etc/passwd')": "read_csv",
    "SELECT id FROM dataset WHERE random() < 0.5": "TABLESAMPLE",
    "SELECT id, now() AS t FROM dataset": "now",
    "SELECT id FROM dataset WHERE lang = $lang": "`$lang` has no value",
    "SELECT id FROM dataset WHERE lang = :lang": "`:lang` is not a parameter; write `$name`",
    "SELECT id FROM dataset WHERE lang = ?": "`?` is not a parameter; write `$name`",
    "SELECT id FROM (SELECT * FROM dataset) TABLESAMPLE BERNOULLI (10) REPEATABLE (1)": "not for a subquery",
    "SELECT id FROM (SELECT * FROM dataset) d TABLESAMPLE SYSTEM (50)": "not for a subquery",
    "SELECT d.id FROM dataset d, LATERAL (SELECT 1) TABLESAMPLE (5 ROWS)": "not for a subquery",
    "WITH d AS (SELECT * FROM dataset) SELECT id FROM d TABLESAMPLE (9 ROWS) REPEATABLE (1)": "TABLESAMPLE is for",
    "SELECT id, score AS id FROM dataset": "",
    "SELECT cluster FROM dataset JOIN labels ON true": "mbiguous",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_no_select_over_the_tables_is_refused(ds: fb.Dataset, sql: str) -> None:
    with pytest.raises(fb.QueryError) as refused:
        len(ds.sql(sql, tables={"labels": LABELS}))
    assert REFUSED[sql] in str(refused.value)


def test_arguments_that_make_no_sense_are_refused(ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match="the parameter `x` is not in it"):
        ds.sql("SELECT id FROM dataset", params={"x": 1})
    with pytest.raises(fb.SettingError, match="params: `x`"):
        ds.sql("SELECT id FROM dataset WHERE id = $x", params={"x": object()})
    for table, said in (
        (7, "int; expected .* a dict of columns, "),
        ([{"id": 1}], r"list; .*; `pyarrow\.Table\.from_pylist\(table\)` is one"),
        (pl.LazyFrame({"id": [1]}), r"LazyFrame; .*; `table\.collect\(\)` is one"),
    ):
        with pytest.raises(fb.SettingError, match=f"tables: `t` is of type {said}"):
            ds.sql("SELECT id FROM dataset", tables={"t": table})
    with pytest.raises(fb.SettingError, match="`dataset` is the dataset itself"):
        ds.sql("SELECT id FROM dataset", tables={"dataset": LABELS})
    with pytest.raises(fb.SettingError, match=r"functions: `f` .* `forebay.Function`"):
        ds.sql("SELECT id FROM dataset", functions={"f": len})  # type: ignore[dict-item]
    with pytest.raises(fb.SettingError, match="`upper` is a function of SQL already"):
        ds.sql("SELECT id FROM dataset", functions={"upper": SHOUT})
    with pytest.raises(fb.NotFoundError):
        ds.sql("SELECT id FROM dataset", tables={"t": "/no/such/folder"})
    with pytest.raises(fb.ColumnNotFoundError, match="scor"):
        ds.sql("SELECT scor FROM dataset")


def test_deep_and_long_queries_are_planned_or_refused_never_fatal(ds: fb.Dataset) -> None:
    terms = " OR ".join(f"id = {i}" for i in range(20_000))
    assert len(ds.sql(f"SELECT id FROM dataset WHERE {terms}")) == NUM_ROWS
    nested = "SELECT id FROM dataset"
    for _ in range(400):
        nested = f"SELECT id FROM ({nested})"
    with pytest.raises(fb.QueryError):
        ds.sql(nested)
    with pytest.raises(fb.QueryError):
        ds.sql("SELECT " + "(" * 5000 + "1" + ")" * 5000 + " FROM dataset")


def test_a_query_that_does_not_fit_spills_or_says_so(ds: fb.Dataset) -> None:
    pairs = "FROM dataset a JOIN dataset b ON a.cluster = b.cluster"
    wide = f"SELECT a.id, b.id AS other, a.meta.url || b.meta.url AS urls {pairs}"
    rows = pa.table(ds.query(f"{wide} ORDER BY urls, a.id, b.id", memory_limit=16 << 20))
    assert rows.num_rows == expected(f"SELECT count(*) AS n {pairs}")[0]["n"]
    grouped = f"SELECT array_agg(urls) AS all_of_them FROM ({wide})"
    with pytest.raises(fb.MemoryLimitError, match="memory_limit"):
        for _ in ds.query(grouped, memory_limit=1 << 20):
            pass


def test_many_first_rows_of_an_order_spill(tmp_path: Path) -> None:
    key = np.random.default_rng(2).permutation(400_000)
    pq.write_table(pa.table({"id": range(len(key)), "key": key}), tmp_path / "rows.parquet", row_group_size=50_000)
    rows = fb.load_dataset(tmp_path, split="train")
    sorted_ids = np.argsort(key)
    for first in (5, 300_000):
        ordered = rows.sql(f"SELECT id FROM dataset ORDER BY key LIMIT {first}")
        batch = next(iter(ordered.batches(5, rank=0, world_size=1, memory_limit=16 << 20)))
        assert pa.record_batch(batch)["id"].to_pylist() == sorted_ids[:5].tolist()
        both = "SELECT id, key FROM dataset UNION ALL SELECT -1, -1"
        found = rows.query(f"SELECT id FROM ({both}) ORDER BY key LIMIT {first} OFFSET 1", memory_limit=16 << 20)
        assert pa.table(found)["id"].to_pylist() == sorted_ids[:first].tolist()


def test_rows_of_large_row_groups_are_held_for_what_they_take(tmp_path: Path) -> None:
    # Its columns take 4 MB each, and every batch has some of the first rows.
    key = np.random.default_rng(2).permutation(500_000)
    pq.write_table(pa.table({"id": range(len(key)), "key": key}), tmp_path / "rows.parquet")
    rows = fb.load_dataset(tmp_path, split="train")
    first = rows.query("SELECT id FROM dataset ORDER BY key LIMIT 50000", memory_limit=64 << 20)
    assert pa.table(first)["id"].to_pylist() == np.argsort(key)[:50_000].tolist()
    # The smaller side is held.
    larger = {"t": pa.table({"n": np.arange(600_000)})}
    for pairs in ("CROSS JOIN t", "JOIN t ON a.key < t.n"):
        some = rows.query(f"SELECT a.id, n FROM dataset a {pairs} LIMIT 9", tables=larger, memory_limit=64 << 20)
        assert pa.table(some).num_rows == 9


def test_first_rows_are_those_of_each_step_of_a_recursion(tmp_path: Path) -> None:
    key = np.random.default_rng(3).permutation(20_000)
    pq.write_table(pa.table({"key": key}), tmp_path / "rows.parquet")
    rows = fb.load_dataset(tmp_path, split="train")
    steps = rows.query(
        "WITH RECURSIVE r AS (SELECT 0 AS step, CAST(-1 AS BIGINT) AS key UNION ALL (SELECT last.step + 1, d.key "
        "FROM dataset d, (SELECT max(step) AS step, max(key) AS key FROM r) last WHERE d.key > last.key AND "
        "last.step < 4 ORDER BY d.key LIMIT 1000)) SELECT step, min(key) AS least, max(key) AS most FROM r "
        "WHERE step > 0 GROUP BY step ORDER BY step"
    )
    found = [tuple(row.values()) for row in pa.table(steps).to_pylist()]
    assert found == [(step, step * 1000 - 1000, step * 1000 - 1) for step in range(1, 5)]


@pytest.mark.parametrize("step", ["(y + y) % 7", "coalesce(y, 0)", "y - z"])
def test_columns_that_are_made_of_columns_are_planned_in_time(ds: fb.Dataset, step: str) -> None:
    query = "SELECT id, id AS y, id AS z FROM dataset"
    for _ in range(40):
        query = f"SELECT id, {step} AS y, z + y % 2 AS z FROM ({query})"
    made = pa.table(ds.sql(query)).to_pylist()
    y, z = np.arange(NUM_ROWS), np.arange(NUM_ROWS)
    for _ in range(40):
        y, z = {"(y + y) % 7": (y + y) % 7, "coalesce(y, 0)": y, "y - z": y - z}[step], z + np.fmod(y, 2)
    assert sorted((row["id"], row["y"], row["z"]) for row in made) == list(
        zip(range(NUM_ROWS), y.tolist(), z.tolist(), strict=True)
    )


@pytest.mark.parametrize("columns", ["id, y + 1 AS y", "id, -id - y AS y", "id, y AS y, y + id AS z", "y + 1 AS y, id"])
def test_a_subquery_within_one_of_the_same_text_is_another(ds: fb.Dataset, columns: str) -> None:
    query = "SELECT id, id AS y FROM {}"
    for levels in range(1, 7):
        query = f"SELECT {columns} FROM ({query})"
        wanted = expected(query.format("dataset") + " ORDER BY id")
        both = f"{query.format('dataset')} UNION ALL {query.format('dataset WHERE id < 0')}"
        found = pa.table(ds.query(f"SELECT * FROM ({both}) ORDER BY id")).to_pylist()
        assert found == wanted, levels
        assert pa.table(ds.sql(query.format("dataset"))).to_pylist() == wanted, levels


def test_conditions_nest_in_betweens_as_far_as_time_allows(ds: fb.Dataset) -> None:
    def nested(levels: int) -> str:
        condition = "id BETWEEN 1 AND 5"
        for _ in range(levels):
            condition = f"({condition}) BETWEEN true AND true"
        return condition

    assert len(ds.filter(nested(8))) == 5
    for refused in (ds.filter, lambda condition: ds.sql(f"SELECT id FROM dataset WHERE {condition}")):
        with pytest.raises(fb.QueryError, match="`BETWEEN` nests more than 12 levels deep"):
            refused(nested(40))


@pytest.mark.parametrize("memory_limit", [10, (1 << 20) - 1])
def test_a_query_needs_a_mebibyte(ds: fb.Dataset, memory_limit: int) -> None:
    with pytest.raises(fb.SettingError, match=rf"memory_limit: expected 1048576 to .*, got {memory_limit}"):
        ds.query("SELECT count(*) AS n FROM dataset", memory_limit=memory_limit)


def test_a_small_query_may_sort_often(ds: fb.Dataset) -> None:
    keys = ("id", "id % 7", "-id", "score, id", "cluster DESC, id")
    numbered = [f"SELECT id FROM dataset QUALIFY row_number() OVER (ORDER BY {key}) < 3" for key in keys * 4]
    union = " UNION ALL ".join(numbered)
    assert pa.table(ds.query(union)).num_rows == 2 * len(numbered)
    assert pa.table(ds.query(union, memory_limit=32 << 20)).num_rows == 2 * len(numbered)
    # One sort of many inputs is as many sorts.
    parts = " UNION ALL ".join(["SELECT id FROM dataset"] * 20)
    ordered = pa.table(ds.query(f"SELECT * FROM ({parts}) ORDER BY id"))
    assert ordered["id"].to_pylist() == sorted([*range(NUM_ROWS)] * 20)


def test_an_error_of_memory_names_the_limit_that_was_set_and_one_that_would_do(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    texts = [bytes(rng.integers(97, 123, 1000, dtype=np.uint8)).decode() for _ in range(3000)]
    pq.write_table(pa.table({"id": range(3000), "s": texts}), tmp_path / "rows.parquet")
    ordered = fb.load_dataset(tmp_path, split="train").sql("SELECT id FROM dataset ORDER BY s")
    with pytest.raises(fb.MemoryLimitError, match=r"memory_limit of 4194304 bytes .* needs \d+ bytes") as refused:
        list(ordered.batches(2, memory_limit=4 << 20))
    needed = re.search(r"needs (\d+) bytes", str(refused.value))
    assert needed is not None
    assert int(needed[1]) > 4 << 20
    assert sorted(range(3000), key=texts.__getitem__) == ids_of(ordered, memory_limit=int(needed[1]) * 5 // 4)


SIDES = {
    "join": "SELECT a.id FROM dataset a JOIN t ON a.s = t.s",
    "cross join": "SELECT a.id AS i FROM dataset a CROSS JOIN (SELECT max(s) AS s FROM t) b WHERE b.s > a.s",
    "join of a join": "SELECT a.id FROM dataset a JOIN (SELECT b.s FROM dataset b JOIN t USING (s)) c USING (s)",
    "union": "SELECT s FROM dataset JOIN (SELECT s FROM dataset UNION ALL SELECT s FROM t) u USING (s)",
}


@pytest.mark.parametrize("side", SIDES)
def test_what_fails_on_a_side_of_a_join_fails_as_anywhere_else(side: str, tmp_path: Path) -> None:
    letters = np.random.default_rng(1).integers(97, 123, (3000, 1000), dtype=np.uint8)
    table = pa.table({"id": range(3000), "s": [row.tobytes().decode() for row in letters]})
    pq.write_table(table, tmp_path / "rows.parquet", use_dictionary=False)
    written = bytearray(pq_bytes(table.slice(0, 300)))
    end = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    written[4:end] = b"\xff" * (end - 4)
    (tmp_path / "damaged.parquet").write_bytes(written)
    rows = fb.load_dataset(tmp_path / "rows.parquet", split="train")
    with pytest.raises(fb.MemoryLimitError, match="4194304 bytes"):
        list(rows.query(SIDES[side], tables={"t": rows}, memory_limit=4 << 20))
    with pytest.raises(fb.DataError, match="damaged.parquet") as refused:
        list(rows.query(SIDES[side], tables={"t": str(tmp_path / "damaged.parquet")}))
    assert "cannot run the SQL" not in str(refused.value)


KEYS = {
    "binary": pa.array([b"b", b"a", None, b"b"]),
    "large binary": pa.array([b"b", b"a", None, b"b"], pa.large_binary()),
    "fixed-size binary": pa.array([b"bb", b"aa", None, b"bb"], pa.binary(2)),
    "time32": pa.array([2, 1, None, 2], pa.time32("s")),
    "time64": pa.array([2, 1, None, 2], pa.time64("us")),
    "duration": pa.array([2, 1, None, 2], pa.duration("us")),
    "struct": pa.array([{"a": 2}, {"a": 1}, None, {"a": 2}]),
    "map": pa.array([[("a", 2)], [("a", 1)], None, [("a", 2)]], pa.map_(pa.string(), pa.int64())),
    # As it is with keys that have distances.
    "int": pa.array([2, 1, None, 2]),
}


@pytest.mark.parametrize("name", KEYS)
def test_windows_may_be_ordered_by_keys_of_any_type(name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(4), "k": KEYS[name]}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    first_two = "SELECT id FROM dataset QUALIFY row_number() OVER (ORDER BY k) <= 2 ORDER BY id"
    assert ids_of(ds.sql(first_two)) == [0, 1]
    for function, of_rows in {
        "row_number()": [2, 1, 4, 3],
        "rank()": [2, 1, 4, 2],
        "dense_rank()": [2, 1, 3, 2],
        "lag(id)": [1, None, 3, 0],
        "ntile(2)": [1, 1, 2, 2],
        "cume_dist()": [0.75, 0.25, 1.0, 0.75],
        # Of rows with the same key all, or none.
        "sum(id)": [4, 1, 6, 4],
        "count(*)": [3, 1, 4, 3],
        "first_value(id)": [1, 1, 1, 1],
    }.items():
        for run in (ds.sql, ds.query):
            rows = pa.table(run(f"SELECT id, {function} OVER (ORDER BY k) AS x FROM dataset ORDER BY id"))
            assert rows["x"].to_pylist() == of_rows, function
    backwards = "SELECT id, sum(id) OVER (ORDER BY k DESC NULLS LAST) AS x FROM dataset ORDER BY id"
    assert pa.table(ds.sql(backwards))["x"].to_pylist() == [3, 4, 6, 3]


def test_distances_need_keys_that_have_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(4), "k": KEYS["binary"]}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    with pytest.raises(fb.QueryError, match="range queries on datatype: Binary"):
        ds.sql("SELECT id, sum(id) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS x FROM dataset")


REPEATED_KEYS = (
    "SELECT DISTINCT ON (cluster) cluster, id FROM dataset ORDER BY cluster, cluster, score, score DESC, id",
    "SELECT DISTINCT ON (cluster, cluster) cluster, id FROM dataset ORDER BY cluster, cluster, score, id",
    "SELECT DISTINCT ON (cluster) cluster, id FROM dataset ORDER BY cluster, score, id, CAST(id AS BIGINT)",
    "SELECT cluster, first_value(id ORDER BY score, id, score) AS id FROM dataset GROUP BY cluster",
    "SELECT cluster, last_value(id ORDER BY score DESC, id DESC, id) AS id FROM dataset GROUP BY cluster",
)


@pytest.mark.parametrize("sql", REPEATED_KEYS)
def test_a_key_that_is_there_twice_decides_once(ds: fb.Dataset, sql: str) -> None:
    once = "SELECT DISTINCT ON (cluster) cluster, id FROM dataset ORDER BY cluster, score, id"
    run = ds.query if "GROUP BY" in sql else ds.sql
    assert pa.table(run(sql)).sort_by("cluster") == pa.table(ds.sql(once))


def test_distinct_on_a_key_twice_keeps_the_first_row(ds: fb.Dataset) -> None:
    twice = ds.sql("SELECT DISTINCT ON (lang, lang) lang, id FROM dataset")
    assert sorted(ids_of(twice)) == sorted(ids_of(ds.sql("SELECT DISTINCT ON (lang) lang, id FROM dataset")))


def test_a_state_of_another_query_parameter_or_table_is_refused(ds: fb.Dataset) -> None:
    sql = "SELECT d.id FROM dataset d JOIN labels l USING (cluster) WHERE d.score > $s ORDER BY d.score"

    def stream(s: float = 1.0, labels: pa.Table = LABELS, sql: str = sql) -> Any:
        return ds.sql(sql, params={"s": s}, tables={"labels": labels}).batches(10, rank=0, world_size=1)

    state = stream().state_dict()
    stream().load_state_dict(state)
    for other in (stream(s=2.0), stream(labels=LABELS.slice(0, 19)), stream(sql=sql + " DESC")):
        with pytest.raises(fb.StateError, match="query"):
            other.load_state_dict(state)


def test_tensors_of_computed_columns_know_their_nulls(ds: fb.Dataset) -> None:
    made = ds.sql(
        "SELECT id, score * 2 AS twice, CASE WHEN id % 2 = 0 THEN id END AS even, l.n FROM dataset d"
        " JOIN (SELECT cluster, count(*) AS n FROM dataset GROUP BY cluster) l ON d.cluster = l.cluster"
    )
    batch = next(iter(made.to_torch(32, rank=0, world_size=1)))
    assert batch["twice"].shape == (32,)
    assert batch["n"].shape == (32,)
    assert isinstance(batch["even"], fb.Masked)


def test_features_and_metadata_of_columns_are_kept(tmp_path: Path) -> None:
    field = pa.field("x", pa.int64(), metadata={"unit": "m"})
    table = pa.table({"x": [1, 2, 3]}).cast(pa.schema([field])).replace_schema_metadata({"huggingface": "{}"})
    pq.write_table(table, tmp_path / "x.parquet")
    schema = fb.load_dataset(tmp_path, split="train").sql("SELECT x AS y FROM dataset ORDER BY x DESC").schema
    assert schema.metadata[b"huggingface"] == b"{}"
    assert schema.field("y").metadata[b"unit"] == b"m"
