"""Arrow out: every library that speaks the C interface takes datasets, streams and batches as they are."""

from __future__ import annotations

import re
import time

import data
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import our_threads

import forebay as fb

NUM_ROWS = 2000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return data.mixed_table(NUM_ROWS, seed=5).replace_schema_metadata({"owner": "us"})


@pytest.fixture(scope="module")
def ds(table, tmp_path_factory) -> fb.Dataset:
    folder = tmp_path_factory.mktemp("mixed")
    data.write_fragments(folder, table, num_fragments=3, row_group_rows=[100, 1, 300])
    return fb.load_dataset(folder, split="train")


def same(got: pa.Table, expected: pa.Table) -> bool:
    """Equality in which NaN equals itself."""
    return got.schema.equals(expected.schema) and str(got.to_pylist()) == str(expected.to_pylist())


def test_pyarrow_takes_a_dataset(ds, table):
    assert same(pa.table(ds), table)
    assert pa.schema(ds) == ds.schema == table.schema
    reader = pa.RecordBatchReader.from_stream(ds)
    assert reader.schema == table.schema
    assert sum(batch.num_rows for batch in reader) == NUM_ROWS


def test_several_splits_are_no_columns_of_a_table(ds):
    with pytest.raises(
        TypeError, match=r"no column but a table: `pyarrow.table\(ds\)`; choose one if there are several"
    ):
        pa.table(fb.DatasetDict({"train": ds}))
    with pytest.raises(TypeError, match="no column but a table"):
        pa.array(ds)


@pytest.mark.parametrize("order", ["in order", "shuffled"])
def test_a_consumer_gets_few_batches_of_small_rows_and_small_batches_of_large_ones(tmp_path, order):
    small = pa.table({"x": np.arange(200_000)})
    large = pa.table({"text": [str(number % 10) * 300_000 for number in range(120)]})
    for name, table, least in (("small", small, 4), ("large", large, 3)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path)
        rows = fb.load_dataset(path, split="train")
        got = list(pa.RecordBatchReader.from_stream(rows.shuffle(1) if order == "shuffled" else rows))
        assert pa.Table.from_batches(got).sort_by(table.column_names[0]) == table.sort_by(table.column_names[0])
        assert least <= len(got) <= 2 * least, name
        assert max(batch.num_rows for batch in got) <= 65_536
        assert max(batch.nbytes for batch in got) <= 16 << 20


def test_batches_of_a_dataset_end_where_row_groups_do_and_are_not_copied(tmp_path):
    table = pa.table({"number": np.arange(120_000)})
    data.write_fragments(tmp_path, table, num_fragments=2, row_group_rows=[20_000, 100_000])
    ds = fb.load_dataset(tmp_path, split="train")
    batches = list(pa.RecordBatchReader.from_stream(ds))
    assert [batch.num_rows for batch in batches] == [20_000, 40_000, 20_000, 40_000]
    assert pa.Table.from_batches(batches) == table
    kept = list(pa.RecordBatchReader.from_stream(ds.filter("number % 2 = 0")))
    assert [batch.num_rows for batch in kept] == [10_000, 20_000, 10_000, 20_000]
    assert pa.Table.from_batches(kept)["number"].to_pylist() == list(range(0, 120_000, 2))
    # Whoever asks for a size gets it.
    sizes = [batch.num_rows for batch in pa.RecordBatchReader.from_stream(ds.batches(50_000))]
    assert sizes == [50_000, 50_000, 20_000]


def test_a_dataset_can_be_read_again_and_again(ds):
    filtered = ds.filter("flag").shuffle(3)
    assert pa.table(filtered).equals(pa.table(filtered)) or same(pa.table(filtered), pa.table(filtered))


def test_polars_takes_a_dataset(ds, table):
    frame = pl.DataFrame(ds.remove_columns("meta"))
    assert frame.shape == (NUM_ROWS, len(table.column_names) - 1)
    for name in ("id", "lang", "text", "day", "price", "flag"):
        assert frame[name].to_list() == table[name].to_pylist(), name
    assert pl.DataFrame(ds.select_columns("meta"))["meta"].len() == NUM_ROWS


def test_duckdb_takes_a_dataset_by_its_name(ds, table):
    rows = ds.filter("lang IS NOT NULL").select_columns(["id", "lang"])
    assert duckdb.sql("SELECT count(*), min(id), max(lang) FROM rows").fetchall() == [
        (
            NUM_ROWS - table["lang"].null_count,
            min(
                i
                for i, lang in zip(table["id"].to_pylist(), table["lang"].to_pylist(), strict=True)
                if lang is not None
            ),
            max(filter(None, table["lang"].to_pylist())),
        )
    ]
    assert len(duckdb.sql("FROM rows").fetchall()) == len(rows)


def test_pandas_takes_a_dataset(ds, table):
    frame = pd.DataFrame.from_arrow(ds.select_columns(["id", "lang"]))
    assert frame["id"].tolist() == table["id"].to_pylist()
    assert pa.table(ds).to_pandas().shape == (NUM_ROWS, len(table.column_names))


def test_batches_are_record_batches_of_the_asked_length(ds, table):
    batches = [pa.record_batch(batch) for batch in ds.batches(300)]
    assert [batch.num_rows for batch in batches] == [300] * 6 + [200]
    assert all(batch.schema == table.schema for batch in batches)
    assert same(pa.Table.from_batches(batches), table)
    assert len(ds.batches(300)) == 7
    assert len(ds.batches(300, drop_last=True)) == 6 == len(list(ds.batches(300, drop_last=True)))


def test_a_batch_says_what_it_is(ds, table):
    batch = next(iter(ds.batches(32)))
    assert len(batch) == batch.num_rows == 32
    assert batch.column_names == table.column_names
    assert repr(batch).splitlines()[0] == f"Batch(32 rows, {len(table.column_names)} columns)"
    assert pa.schema(batch) == table.schema
    column = batch.column(0)
    assert (column.name, len(column)) == ("id", 32)
    assert pa.array(column).to_pylist() == list(range(32))
    assert pa.field(column) == table.schema.field("id")
    for number in (-1, len(table.column_names), 1 << 70):
        with pytest.raises(IndexError, match=f"no column {number}: the batch has {len(table.column_names)}"):
            batch.column(number)
    for name in (1.0, None, b"id"):
        with pytest.raises(TypeError, match=f"expected the name of a column, or its number from 0, got {name!r}; `col"):
            batch.column(name)


def test_a_batch_has_a_schema_and_columns_by_name(ds, table):
    batch = next(iter(ds.batches(32)))
    assert batch.schema == table.schema
    for name in table.column_names:
        for column in (batch[name], batch.column(name)):
            assert column.name == name
            assert str(pa.array(column)) == str(pa.array(batch.column(table.column_names.index(name))))
    for look_up in (batch.__getitem__, batch.column):
        with pytest.raises(fb.ColumnNotFoundError, match="no column `idd`; did you mean `id`"):
            look_up("idd")
        with pytest.raises(UnicodeEncodeError):
            look_up("\ud800")
    with pytest.raises(AttributeError, match=r"^a column has no `to_pylist`; instead: `pyarrow.array\(column\)`"):
        batch["id"].to_pylist()
    assert not hasattr(batch["id"], "__array__")


def test_a_part_of_a_batch_shares_its_memory(ds, table):
    batch = next(iter(ds.batches(32)))
    for offset, length in ((0, 32), (5, 3), (30, 9), (7, 0), (99, 1)):
        assert same(pa.table(batch.slice(offset, length)), table.slice(0, 32).slice(min(offset, 32), length))
    numbers = np.from_dlpack(batch.slice(5, 3)["id"])
    assert numbers.tolist() == [5, 6, 7]
    assert numbers.ctypes.data == np.from_dlpack(batch["id"])[5:].ctypes.data
    with pytest.raises(OverflowError):
        batch.slice(-1, 2)


def test_a_batch_says_how_to_look_at_it(ds):
    batch = next(iter(ds.batches(32)))
    for key in (0, slice(3), ["id"]):
        with pytest.raises(
            TypeError, match=rf"name of a column, got .*\(batch\)\[{re.escape(repr(key))}\]` take other"
        ):
            batch[key]
    assert pa.record_batch(batch)["id"] == pa.record_batch(batch)[0]
    assert pl.DataFrame(batch)["id"].to_list() == list(range(32))
    for name in ("to_pandas", "num_columns", "id"):
        with pytest.raises(AttributeError, match=rf"no `{name}`; instead: `pyarrow.record_batch\(batch\)`"):
            getattr(batch, name)
    assert not hasattr(batch, "__array__")
    assert np.array([batch, batch], dtype=object).shape == (2,)
    with pytest.raises(TypeError, match="not iterable"):
        iter(batch)


def test_every_column_of_a_batch_is_an_arrow_array(ds, table):
    batch = next(iter(ds.batches(100)))
    for index, name in enumerate(batch.column_names):
        got = pa.array(batch.column(index))
        assert got.type == table.schema.field(name).type
        assert str(got.to_pylist()) == str(table[name].slice(0, 100).to_pylist()), name


def test_a_batch_outlives_everything_else(ds, table):
    stream = iter(ds.batches(100))
    first = pa.record_batch(next(stream))
    stream.close()
    del stream
    assert same(pa.Table.from_batches([first]), table.slice(0, 100))
    first.validate(full=True)


def test_all_batches_are_valid_arrow(ds):
    for shuffled in (ds, ds.shuffle(2), ds.filter("small > 0").shuffle(3)):
        for batch in shuffled.batches(77):
            pa.record_batch(batch).validate(full=True)


def test_the_rest_of_an_epoch_can_be_handed_over(ds, table):
    stream = ds.batches(300)
    assert same(pa.table(stream), table)
    state = ds.batches(100)
    taken = iter(state)
    for _ in range(3):
        next(taken)
    resumed = ds.batches(100)
    resumed.load_state_dict(state.state_dict())
    taken.close()
    assert pa.table(resumed)["id"].to_pylist() == list(range(300, NUM_ROWS))


def test_a_requested_schema_is_honoured_or_ignored_as_the_protocol_allows(ds):
    few = ds.select_columns(["id", "lang"])
    wanted = pa.schema([("id", pa.int64()), ("lang", pa.large_string())])
    got = pa.RecordBatchReader.from_stream(few, schema=wanted).read_all()
    assert got.schema.equals(wanted)
    assert got["id"].to_pylist() == list(range(NUM_ROWS))
    batch = pa.record_batch(next(iter(few.batches(10))), schema=wanted)
    assert batch.schema.equals(wanted)


def test_a_schema_that_cannot_be_had_is_an_error(ds):
    with pytest.raises((pa.ArrowException, ValueError, TypeError)):  # never nulls in place of values
        pa.RecordBatchReader.from_stream(
            ds.select_columns("lang"), schema=pa.schema([("lang", pa.date32())])
        ).read_all()


def test_extension_types_are_kept(tmp_path):
    kind = pa.uuid()
    column = pa.ExtensionArray.from_storage(kind, pa.array([bytes([i]) * 16 for i in range(10)], pa.binary(16)))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(60, dtype="f4").reshape(10, 2, 3))
    pq.write_table(pa.table({"x": column, "t": tensor, "id": range(10)}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    got = pa.table(ds.shuffle(1))
    assert got.schema.field("x").type == kind
    assert got.schema.field("t").type == tensor.type
    assert {bytes(value.as_py().bytes) for value in got["x"]} == {bytes([i]) * 16 for i in range(10)}
    assert pa.table(ds.filter("id = 3"))["t"].chunk(0).storage.to_pylist() == [[18.0, 19.0, 20.0, 21.0, 22.0, 23.0]]


def test_metadata_of_the_schema_is_in_every_form(ds):
    for schema in (
        ds.schema,
        pa.table(ds).schema,
        pa.schema(next(iter(ds.batches(5)))),
        pa.record_batch(next(iter(ds.batches(5)))).schema,
        pa.schema(ds.batches(5)),
    ):
        assert schema.metadata == {b"owner": b"us"}


def test_rows_are_dicts(ds, table):
    assert str(list(ds)) == str(table.to_pylist())
    assert str(list(ds.take(3))) == str(table.slice(0, 3).to_pylist())
    assert list(ds.take(0)) == []
    assert len(ds.take(10**6)) == NUM_ROWS


def test_a_dataset_of_a_rank_is_still_whole_as_arrow(ds, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert pa.table(ds).num_rows == NUM_ROWS
    assert len(list(ds)) == NUM_ROWS
    assert sum(batch.num_rows for batch in ds.batches(100)) == NUM_ROWS // 4


def test_a_consumer_that_stops_early_leaves_nothing_behind(ds):
    before = our_threads().keys()
    for _ in range(20):
        reader = pa.RecordBatchReader.from_stream(ds.shuffle(1))
        reader.read_next_batch()
        reader.close()
    del reader
    end = time.monotonic() + 30
    while (left := our_threads().keys() - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left


def test_an_error_on_the_way_reaches_the_arrow_consumer(tmp_path):
    data.write_fragments(tmp_path, data.ids_table(5000), num_fragments=2)
    ds = fb.load_dataset(tmp_path, split="train")
    ds_filtered = ds.select_columns("id")
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises((pa.ArrowException, OSError), match=r"part-1\.parquet"):
        pa.table(ds_filtered)
