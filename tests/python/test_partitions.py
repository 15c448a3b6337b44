"""Columns from the names of folders, beside what pyarrow, DuckDB and Polars make of the same folders."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NULL = "__HIVE_DEFAULT_PARTITION__"


def write(folder: Path, paths: Sequence[str]) -> None:
    """Writes an object of three rows, numbered in the order of the paths, below each path."""
    for number, path in enumerate(paths):
        (folder / path).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number * 3 + i for i in range(3)]}), folder / path / "part-0.parquet")


def opened(folder: Path) -> fb.Dataset:
    return fb.load_dataset(folder, split="train")


def rows(table: Any, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns the rows of a table in the order of their ids."""
    columns = [table.column(name).to_pylist() for name in ("id", *keys)]
    return sorted(zip(*columns, strict=True), key=lambda row: row[0])


DATES = [f"day=2024-0{month}-0{day}/lang={lang}" for month in (1, 2) for day in (1, 9) for lang in ("de", "en")]
NUMBERS = [f"year={year}/bucket={bucket}" for year in (1999, 2024) for bucket in (0, 7, 12)]
TEXTS = [f"name={quote(text, safe='')}" for text in ("a b", "ü", "50%", "x/y", "k=v", "A", "true")]
NULLS = ["k=a", "k=b", f"k={NULL}"]
NULL_NUMBERS = ["k=1", "k=-20", f"k={NULL}"]
TREES = {"dates": DATES, "numbers": NUMBERS, "texts": TEXTS, "nulls": NULLS, "null-numbers": NULL_NUMBERS}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_values_are_those_of_other_readers(tmp_path, tree):
    write(tmp_path, tree)
    keys = [pair.split("=")[0] for pair in tree[0].split("/")]
    ours = pa.table(opened(tmp_path))
    assert ours.column_names == ["id", *keys]
    expected = rows(ours, keys)
    # pyarrow takes dates for text, and is told.
    partitioning = pads.partitioning(pa.schema([ours.schema.field(key) for key in keys]), flavor="hive")
    assert rows(pads.dataset(tmp_path, partitioning=partitioning).to_table(), keys) == expected
    pattern = f"{tmp_path}/**/*.parquet"
    theirs = duckdb.sql(f"FROM read_parquet('{pattern}', hive_partitioning=true)").to_arrow_table()
    assert rows(theirs, keys) == expected
    theirs = pl.scan_parquet(pattern, hive_partitioning=True, try_parse_hive_dates=True).collect().to_arrow()
    assert rows(theirs, keys) == expected


@pytest.mark.parametrize(
    ("stored", "type_", "paths"),
    [
        ([1999, 2024], pa.int32(), ["k=1", "k=007", f"k={NULL}", "k=-5"]),
        (["x", None], pa.string(), ["k=a", "k=b%2Fc", f"k={NULL}", "k="]),
        (["x", "y"], pa.dictionary(pa.int32(), pa.string()), ["k=a", "k=b"]),
        ([dt.date(2024, 1, 2)], pa.date32(), ["k=2024-02-29", f"k={NULL}"]),
        ([0.5], pa.float32(), ["k=1.5", "k=-2"]),
        ([True], pa.bool_(), ["k=true", "k=false"]),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_objects_without_a_column_of_others_get_the_value_of_their_folder(tmp_path, stored, type_, paths, is_first):
    write(tmp_path, paths)
    folder = tmp_path / ("k=" if is_first else "k=~")
    folder.mkdir(exist_ok=True)
    own = pa.table({"id": [100 + n for n in range(len(stored))], "k": pa.array(stored, type_)})
    pq.write_table(own, folder / "own.parquet")
    ours = pa.table(opened(tmp_path))
    assert ours.schema.field("k").type == type_
    texts = [None if path.endswith(NULL) else unquote(path.removeprefix("k=")) for path in paths]
    values = [None if text is None else pa.array([text]).cast(type_)[0].as_py() for text in texts]
    expected = [(number, values[number // 3]) for number in range(3 * len(paths))]
    assert rows(ours, ["k"]) == [*expected, *((100 + n, value) for n, value in enumerate(stored))]
    for value in {*values, *stored} - {None}:
        kept = opened(tmp_path).filter("k = $value", params={"value": value})
        assert sorted(kept[:]["id"]) == [number for number, of_row in rows(ours, ["k"]) if of_row == value]
    assert len(opened(tmp_path).filter("k IS NULL")) == sum(value is None for _, value in rows(ours, ["k"]))


def test_a_folder_whose_value_a_column_cannot_hold_is_named(tmp_path):
    write(tmp_path, ["k=1", "k=two"])
    pq.write_table(pa.table({"id": [9], "k": [7]}), tmp_path / "own.parquet")
    with pytest.raises(
        fb.SchemaError, match=r"k=two/part-0.parquet` has no column `k`, and its folder `k=two` no `Int64`.*own"
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("stored", "exact", "inexact"),
    [
        (pa.decimal128(5, 2), "1.2", "1.239"),
        (pa.date32(), "2024-01-01", "2024-01-01T12:00:00"),
        (pa.timestamp("ms"), "2024-01-01T00:00:00.123", "2024-01-01T00:00:00.1239"),
        (pa.int32(), "7", "1.9"),
    ],
    ids=str,
)
def test_values_of_folders_are_not_rounded(tmp_path, stored, exact, inexact):
    pq.write_table(pa.table({"id": [9], "k": pa.nulls(1, stored)}), tmp_path / "own.parquet")
    write(tmp_path, [f"k={exact}"])
    assert {str(value)[: len(exact)] for value in opened(tmp_path).filter("id < 9")[:]["k"]} == {
        exact.replace("T", " ")
    }
    write(tmp_path, [f"k={inexact}"])
    with pytest.raises(fb.SchemaError, match=f"its folder `k={inexact}`"):
        opened(tmp_path)


def test_types_are_integers_dates_or_text(tmp_path):
    write(tmp_path, [*(f"n=1/zip=00{i}/day=2024-02-29/mixed={'1' if i else 'x'}/big={10**18}" for i in range(2))])
    schema = pa.table(opened(tmp_path)).schema
    assert [schema.field(name).type for name in ("n", "zip", "day", "mixed", "big")] == [
        pa.int64(),
        # Leading zeros are not given up: they tell codes from numbers.
        pa.string(),
        pa.date32(),
        pa.string(),
        pa.int64(),
    ]
    assert pa.table(opened(tmp_path))["zip"].to_pylist()[0] == "000"


def test_filters_on_folders_read_nothing(tmp_path):
    write(tmp_path, DATES)
    ds = opened(tmp_path)
    for sql, kept in {
        "lang = 'de'": 12,
        "day = DATE '2024-02-09'": 6,
        "day < '2024-02-01' AND lang <> 'de'": 6,
        "lang IN ('fr', 'it')": 0,
        "upper(lang) = 'EN' OR day > DATE '2025-01-01'": 12,
        "date_part('month', day) = 1": 12,
    }.items():
        kept_ds = ds.filter(sql)
        assert len(kept_ds) == kept, sql
        facts = kept_ds.explain()
        assert (facts["selection_requests"], facts["selection_bytes"]) == (0, 0), sql
    facts = ds.filter("lang = 'de' AND id % 2 = 0").explain()
    assert (facts["row_groups_pruned"], facts["selection_requests"]) == (4, 4)


def test_selected_alone_they_take_no_bytes(tmp_path):
    write(tmp_path, NUMBERS)
    ds = opened(tmp_path).select_columns(["year"])
    assert ds.explain()["payload_bytes"] == 0
    assert pa.table(ds)["year"].to_pylist() == [1999] * 9 + [2024] * 9


def test_a_column_of_the_files_goes_before_a_folder(tmp_path):
    (tmp_path / "k=1").mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "id": [0, 1]}), tmp_path / "k=1" / "x.parquet")
    table = pa.table(opened(tmp_path))
    assert table.column_names == ["k", "id"]
    assert table["k"].to_pylist() == ["a", "b"]


def test_batches_shuffles_tensors_and_resumes_know_them(tmp_path):
    write(tmp_path, NUMBERS)
    ds = opened(tmp_path).shuffle(seed=3)
    stream = ds.to_torch(4)
    batches = list(stream)
    # No value is missing, so no mask.
    assert all(batch["year"].dtype.is_floating_point is False for batch in batches)
    pairs = [pair for batch in batches for pair in zip(batch["id"].tolist(), batch["year"].tolist(), strict=True)]
    assert sorted(pairs) == [(i, 1999 if i < 9 else 2024) for i in range(18)]
    stream = ds.to_torch(4)
    iterator = iter(stream)
    before = [next(iterator)["id"].tolist() for _ in range(2)]
    later = ds.to_torch(4)
    later.load_state_dict(stream.state_dict())
    assert before + [batch["id"].tolist() for batch in later] == [batch["id"].tolist() for batch in batches]


def test_a_folder_that_only_some_have_is_null_elsewhere(tmp_path):
    write(tmp_path, ["k=1/l=x", "k=2"])
    batch = next(iter(opened(tmp_path).to_torch(6)))
    assert batch["k"].tolist() == [1, 1, 1, 2, 2, 2]
    assert pa.table(opened(tmp_path))["l"].to_pylist() == ["x"] * 3 + [None] * 3
    assert len(opened(tmp_path).filter("l IS NULL")) == 3


def test_a_name_that_arrow_cannot_hand_on_stays_as_it_is_written(tmp_path):
    write(tmp_path, ["a%00b=%00x", "a%00b=y"])
    assert pa.table(opened(tmp_path).select_columns(["a%00b"]))[0].to_pylist() == ["\0x"] * 3 + ["y"] * 3


def test_rows_and_formats_show_them(tmp_path):
    write(tmp_path, ["day=2024-02-29"])
    ds = opened(tmp_path)
    assert next(iter(ds)) == {"id": 0, "day": dt.date(2024, 2, 29)}
    assert ds.units == {"day": "D"}
    frame = next(iter(ds.with_format("pandas").batches(3)))
    assert list(frame["day"]) == [dt.date(2024, 2, 29)] * 3
