"""Arrow libraries take datasets, streams and batches of every type, in the schema they ask for or not at all."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import decimal
import gc
import re
from typing import TYPE_CHECKING

import arro3.core
import arrow_types
import datafusion
import duckdb
import fsspec
import nanoarrow
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from equality import check_equal, table_of
from programs import our_threads
from test_types import write

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable

NOTHING = re.compile(r"(?!)")

# Each consumer: how it takes an object, and the types that it refuses, or takes for others, from pyarrow too.
CONSUMERS: dict[str, tuple[Callable[[object], pa.Table], re.Pattern[str]]] = {
    "pyarrow": (pa.table, NOTHING),
    "pyarrow, as a stream": (lambda rows: pa.RecordBatchReader.from_stream(rows).read_all(), NOTHING),
    "nanoarrow": (lambda rows: pa.table(nanoarrow.ArrayStream(rows)), NOTHING),
    "arro3": (lambda rows: pa.table(arro3.core.Table(rows)), NOTHING),
    "datafusion": (lambda rows: datafusion.SessionContext().from_arrow(rows).to_arrow_table(), NOTHING),
    "polars": (
        lambda rows: pl.DataFrame(rows).to_arrow(),
        re.compile(r"date64|\+02:00|decimal(32|64|256)|null|uuid|bool8|opaque|json|tensor|map"),
    ),
    "duckdb": (
        lambda rows: duckdb.sql("FROM rows").to_arrow_table(),  # noqa: ARG005  (found by its name)
        re.compile(
            r"decimal256|halffloat|duration|uuid|json|bool8|opaque|map|timestamp\[.*,|<int32, timestamp"
            r"|fixed_size_list of .*dictionary"
        ),
    ),
}

FORMS: dict[str, Callable[[fb.Dataset], object]] = {
    "dataset": lambda ds: ds,
    "stream": lambda ds: ds.batches(1000),
    "batch": lambda ds: next(iter(ds.batches(1000))),
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory) -> fb.Dataset:
    kinds = arrow_types.nested()
    for container in ("list", "struct", "map", "fixed_size_list"):
        kinds |= arrow_types.nested([container])
    path = tmp_path_factory.mktemp("types") / "a.parquet"
    write(path, table_of(kinds, 0.2))
    return fb.load_dataset(path, split="train")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_consumer_takes_every_form_of_every_type(ds, consumer, form):
    take, refused = CONSUMERS[consumer]
    ds = ds.select_columns([name for name in ds.column_names if not refused.search(name)])
    assert len(ds.column_names) > 100
    got = take(FORMS[form](ds))
    expected = pa.table(ds)
    assert got.schema.equals(take(expected).schema, check_metadata=True)
    check_equal(got, expected)


@pytest.mark.parametrize("form", FORMS)
def test_pandas_takes_every_form(ds, form):
    # What pyarrow does not turn into pandas' objects.
    unlike = re.compile(
        r"time64\[ns\]|map|struct|fixed_size_list|dictionary<int32, double>"
        r"|list of (decimal(32|64)|fixed_size_binary|uuid|dictionary<int32, fixed)"
    )
    ds = ds.select_columns([name for name in ds.column_names if not unlike.search(name)])
    got = pd.DataFrame.from_arrow(FORMS[form](ds))
    expected = pa.table(ds).to_pandas()
    assert got.columns.tolist() == expected.columns.tolist()
    assert got.dtypes.tolist() == expected.dtypes.tolist()
    assert str(got.to_dict("records")) == str(expected.to_dict("records"))


@pytest.mark.parametrize("batch_size", [8, 64])
def test_ordered_categories_keep_their_order_in_every_batch(tmp_path, batch_size):
    sizes = list("ihgfedcba")
    codes = np.random.default_rng(0).integers(0, len(sizes), 2000)
    column = pd.Categorical.from_codes(codes, sizes, ordered=True)
    for part in range(4):
        frame = pd.DataFrame({"size": column[part * 500 : (part + 1) * 500]})
        frame.to_parquet(tmp_path / f"{part}.parquet", row_group_size=100)
    ds = fb.load_dataset(tmp_path, split="train").shuffle(seed=1).with_format("pandas")
    for frame in ds.batches(batch_size):
        categories = frame["size"].cat.categories.tolist()
        assert frame["size"].cat.ordered
        assert categories == [size for size in sizes if size in categories]


def test_every_value_is_in_a_dictionary_once(tmp_path):
    # Of each row group its own words, and some that all share.
    words = [[f"word {i}", "shared", None, f"{i // 50}"] for i in range(400)]
    column = pa.array([word for row in words for word in row], pa.string()).dictionary_encode()
    nested = pa.array(words, pa.list_(pa.string())).cast(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    table = pa.table({"id": range(1600), "x": column, "y": pa.concat_arrays([nested] * 4)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    ds = fb.load_dataset(tmp_path, split="train")
    for rows in (ds, ds.shuffle(1)):
        for batch in rows.batches(300):
            taken = pa.record_batch(batch)
            for values in (taken["x"].dictionary, taken["y"].values.dictionary):
                assert len(values) == len(values.unique())
            expected = table.take(taken["id"])
            assert taken["x"].to_pylist() == expected["x"].to_pylist()
            assert taken["y"].to_pylist() == expected["y"].to_pylist()


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_batches_have_no_more_of_a_large_dictionary_than_they_need(tmp_path, is_shuffled):
    words = pa.array([f"word {i}" for i in range(5000)])
    indices = np.random.default_rng(0).integers(0, len(words), 4000)
    keys = pa.array(indices.astype(np.int32), mask=indices % 7 == 0)
    table = pa.table({"id": range(4000), "x": pa.DictionaryArray.from_arrays(keys, words)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    ds = fb.load_dataset(tmp_path, split="train")
    ds = ds.shuffle(seed=1) if is_shuffled else ds
    expected = table["x"].to_pylist()
    for batch in ds.batches(100):
        taken = pa.record_batch(batch)
        assert taken["x"].to_pylist() == [expected[row] for row in taken["id"].to_pylist()]
        assert len(taken["x"].dictionary) <= 16 * 100
    for tensors in ds.to_torch(100):
        assert tensors["x"] == [expected[row] for row in tensors["id"].tolist()]


# What is stored, what is asked for; the values are the same.
HONOURED: dict[str, tuple[pa.Array, pa.DataType]] = {
    "wider integers": (pa.array([1, None, -(2**31)], pa.int32()), pa.int64()),
    "narrower integers": (pa.array([1, None, -128], pa.int64()), pa.int8()),
    "integers as floats": (pa.array([1, None, 2**53], pa.int64()), pa.float64()),
    "floats as integers": (pa.array([1.0, None, -3.0]), pa.int16()),
    "narrower floats": (pa.array([0.5, None, float("inf")]), pa.float32()),
    "large strings": (pa.array(["a", None, "ü"]), pa.large_string()),
    "views of strings": (pa.array(["a", None, "a string of more than twelve"]), pa.string_view()),
    "small strings": (pa.array(["a", None, "ü"], pa.large_string()), pa.string()),
    "bytes as text": (pa.array([b"a", None, "ü".encode()]), pa.string()),
    "views of bytes": (pa.array([b"a", None, b"\xff" * 20]), pa.binary_view()),
    "bytes of a fixed length": (pa.array([b"ab", None, b"cd"]), pa.binary(2)),
    "large lists": (pa.array([[1], None, []], pa.list_(pa.int32())), pa.large_list(pa.int64())),
    "small lists": (pa.array([[1], None, []], pa.large_list(pa.int32())), pa.list_(pa.int8())),
    "views of lists": (pa.array([["a"], None, []], pa.list_(pa.string())), pa.list_view(pa.string_view())),
    "fixed lists": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32())), pa.list_(pa.int64(), 2)),
    "lists of fixed ones": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), pa.list_(pa.int32())),
    "fields of structs, in another order": (
        pa.array([{"a": 1, "b": {"c": "x"}}, None], pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.string()})})),
        pa.struct({"b": pa.struct({"c": pa.large_string()}), "a": pa.int64()}),
    ),
    "values of maps": (
        pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        pa.map_(pa.large_string(), pa.int64()),
    ),
    "dictionaries as values": (pa.array(["a", None, "b"]).dictionary_encode(), pa.string()),
    "values as dictionaries": (pa.array(["a", None, "a"]), pa.dictionary(pa.int8(), pa.string())),
    "narrow dictionaries": (pa.array(["a", None, "b"]).dictionary_encode(), pa.dictionary(pa.uint8(), pa.string())),
    "decimals of more digits": (pa.array([decimal.Decimal("1.25"), None], pa.decimal128(5, 2)), pa.decimal256(40, 3)),
    "decimals of fewer digits": (pa.array([decimal.Decimal("1.20"), None], pa.decimal128(20, 2)), pa.decimal128(5, 1)),
    "finer timestamps": (pa.array([1, None], pa.timestamp("us")), pa.timestamp("ns")),
    "coarser timestamps": (pa.array([5000, None], pa.timestamp("us")), pa.timestamp("ms")),
    "another zone": (pa.array([1, None], pa.timestamp("us", "UTC")), pa.timestamp("us", "Europe/Berlin")),
    "dates in milliseconds": (pa.array([dt.date(1969, 1, 1), None]), pa.date64()),
    "finer times": (pa.array([dt.time(1, 2, 3), None], pa.time32("ms")), pa.time64("ns")),
    "coarser durations": (pa.array([3000, None], pa.duration("ms")), pa.duration("s")),
    "nulls of a type": (pa.nulls(3), pa.list_(pa.int32())),
    "the storage of an extension": (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16, None], pa.binary(16))),
        pa.binary(16),
    ),
    "an extension of the storage": (pa.array([b"x" * 16, None], pa.binary(16)), pa.uuid()),
}

# What is stored, what is asked for, and what is said of it.
REFUSED: dict[str, tuple[pa.Array, pa.DataType, str]] = {
    "too large an integer": (pa.array([1, 300]), pa.int8(), "300"),
    "a negative integer": (pa.array([0, -1]), pa.uint64(), "-1"),
    "an integer that no float is": (pa.array([2**53 + 1]), pa.float64(), "9007199254740993"),
    "a float that no narrower one is": (pa.array([0.5, 0.1]), pa.float32(), "no exact equivalent in `Float32`"),
    "a fraction": (pa.array([1.0, 1.5]), pa.int32(), "`1.5` has no exact equivalent in `Int32`"),
    "not a number": (pa.array([float("nan")]), pa.int32(), "NaN"),
    "text as a number": (pa.array(["1"]), pa.int32(), "`Utf8` and cannot be handed over as `Int32`"),
    "a number as text": (pa.array([1]), pa.string(), "`Int64` and cannot be handed over as `Utf8`"),
    "text as a date": (pa.array(["2024-01-01"]), pa.date32(), "cannot be handed over as `Date32`"),
    "a flag as a number": (pa.array([True]), pa.int8(), "cannot be handed over as `Int8`"),
    "bytes that are no text": (pa.array([b"\xff"]), pa.string(), "(?i)utf-8|utf8"),
    "bytes of another length": (pa.array([b"abc"]), pa.binary(2), "FixedSizeBinary"),
    "a timestamp between two": (pa.array([1500], pa.timestamp("us")), pa.timestamp("ms"), "has no exact equivalent"),
    "a timestamp out of range": (pa.array([2**60], pa.timestamp("us")), pa.timestamp("ns"), "(?i)overflow"),
    "a timestamp without its zone": (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us"), "cannot be handed"),
    "a timestamp of some zone": (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC"), "cannot be handed over"),
    "a time between two": (pa.array([1500], pa.time64("us")), pa.time32("ms"), "has no exact equivalent"),
    "a decimal of more digits": (pa.array([decimal.Decimal("1.25")], pa.decimal128(5, 2)), pa.decimal128(5, 1), "1.25"),
    "a decimal out of range": (pa.array([decimal.Decimal(999)], pa.decimal128(5, 2)), pa.decimal128(3, 2), "999"),
    "lists of another length": (pa.array([[1], [1, 2]]), pa.list_(pa.int64(), 2), "(?i)fixedsizelist"),
    "fixed lists of another length": (
        pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        pa.list_(pa.int64(), 3),
        "cannot be handed over",
    ),
    "an item out of range": (pa.array([[1, 300]]), pa.list_(pa.int8()), "300"),
    "a map's value out of range": (
        pa.array([[("k", 300)]], pa.map_(pa.string(), pa.int64())),
        pa.map_(pa.string(), pa.int8()),
        "300",
    ),
    "a field that is not there": (
        pa.array([{"a": 1, "b": 2}]),
        pa.struct({"a": pa.int64(), "c": pa.int64()}),
        "column `x`: the columns are `a`, `b`, not `a`, `c`",
    ),
    "a field left out": (pa.array([{"a": 1, "b": 2}]), pa.struct({"a": pa.int64()}), "not `a`"),
    "a field deep down": (
        pa.array([[{"a": 1}]]),
        pa.list_(pa.struct({"a": pa.string()})),
        r"column `x\.\w+\.a` is `Int64`",
    ),
    "a struct as a list": (pa.array([{"a": 1}]), pa.list_(pa.int64()), "cannot be handed over"),
    "more values than an index numbers": (
        pa.array([str(i) for i in range(200)]),
        pa.dictionary(pa.int8(), pa.string()),
        "Dictionary key bigger than the key type",
    ),
    "more values than a narrower index numbers": (
        pa.array([str(i) for i in range(200)]).dictionary_encode(),
        pa.dictionary(pa.int8(), pa.string()),
        "Int8",
    ),
    "another extension": (
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])),
        pa.opaque(pa.string(), "a", "b"),
        "extension type `arrow.json`, not `arrow.opaque`",
    ),
}


def opened(folder, column: pa.Array) -> fb.Dataset:
    table = pa.table({"id": np.arange(len(column)), "x": column})
    pq.write_table(table, folder / "a.parquet", row_group_size=100)
    return fb.load_dataset(folder, split="train")


def asked(ds: fb.Dataset, form: str, wanted: pa.Schema) -> pa.Table:
    """The rows as a consumer gets them that asks for a schema."""
    rows = FORMS[form](ds)
    if form == "batch":
        taken = pa.Table.from_batches([pa.record_batch(rows, schema=wanted)])
        streamed = pa.RecordBatchReader.from_stream(rows, schema=wanted).read_all()
        assert streamed.equals(taken)
        return taken
    return pa.RecordBatchReader.from_stream(rows, schema=wanted).read_all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", HONOURED)
def test_a_requested_schema_is_honoured(tmp_path, case, form):
    column, kind = HONOURED[case]
    ds = opened(tmp_path, column)
    wanted = pa.schema([("x", kind), ("id", pa.int32())], {"asked": "yes"})
    got = asked(ds, form, wanted)
    got.validate(full=True)
    assert got.schema == wanted
    assert got.schema.metadata[b"asked"] == b"yes"
    assert got["id"].to_pylist() == list(range(len(column)))
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    values = got["x"].combine_chunks()
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    assert [normal(value) for value in values.to_pylist()] == [normal(value) for value in storage.to_pylist()]


def normal(value: object) -> object:
    """A value that does not depend on how it was stored: text and bytes, instants and their zones."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        return value.to_pydatetime()
    return value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_requested_schema_that_loses_values_is_refused(tmp_path, case, form):
    column, kind, message = REFUSED[case]
    ds = opened(tmp_path, column)
    wanted = pa.schema([("id", pa.int64()), ("x", kind)])
    with pytest.raises((fb.SettingError, pa.ArrowException), match=message) as caught:
        asked(ds, form, wanted)
    assert "requested_schema: " in str(caught.value)
    assert "`x" in str(caught.value)


@pytest.mark.parametrize("case", [*HONOURED, *REFUSED])
def test_a_column_honours_what_is_asked_for_or_refuses_it(tmp_path, case):
    ds = opened(tmp_path, (HONOURED | REFUSED)[case][0])
    column = next(iter(ds.batches(1000))).column(1)
    kind = (HONOURED | REFUSED)[case][1]
    wanted = pa.field("other", kind).__arrow_c_schema__()
    if case in HONOURED:
        got = pa.Array._import_from_c_capsule(*column.__arrow_c_array__(wanted))
        assert got.type == kind
        assert len(got) == len(column)
    else:
        with pytest.raises(fb.SettingError, match=r"requested_schema: .*`x"):
            column.__arrow_c_array__(wanted)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (pa.schema([("x", pa.int64())]), "the columns are `id`, `x`, not `x`; select columns with `select_columns`"),
        (pa.schema([("id", pa.int64()), ("y", pa.int64())]), "the columns are `id`, `x`, not `id`, `y`"),
        (pa.schema([("id", pa.int64()), ("x", pa.int64()), ("x", pa.int64())]), "not `id`, `x`, `x`"),
        (pa.schema([("x", pa.int64()), ("x", pa.int64())]), "not `x`, `x`"),
        (pa.schema([]), "the columns are `id`, `x`, not"),
        (pa.schema([("id", pa.int64()), pa.field("x", pa.int64(), nullable=False)]), "non-nullable"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_other_columns_and_missing_nulls_are_refused(tmp_path, form, wanted, message):
    ds = opened(tmp_path, pa.array([1, None]))
    with pytest.raises((fb.SettingError, pa.ArrowException), match=message):
        asked(ds, form, wanted)


def test_a_refused_request_leaves_everything_as_it_was(tmp_path):
    ds = opened(tmp_path, pa.array(["a", "b"]))
    wrong = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    stream = ds.batches(1)
    batch = next(iter(ds.batches(2)))
    for rows in (ds, stream, batch):
        with pytest.raises(fb.SettingError):
            rows.__arrow_c_stream__(wrong.__arrow_c_schema__())
        assert pa.table(rows)["x"].to_pylist() == ["a", "b"]


def test_what_is_no_schema_is_a_type_error(tmp_path):
    ds = opened(tmp_path, pa.array(["a"]))
    batch = next(iter(ds.batches(1)))
    for rows in (ds, ds.batches(1), batch):
        for wrong in ("schema", pa.schema([]), batch.__arrow_c_array__()[1]):
            with pytest.raises((TypeError, ValueError)):
                rows.__arrow_c_stream__(wrong)
        with pytest.raises(TypeError, match="Unable to interpret C data struct as a Schema"):
            rows.__arrow_c_stream__(pa.field("x", pa.int64()).__arrow_c_schema__())


def test_a_requested_schema_stays_the_consumers(tmp_path):
    batch = next(iter(opened(tmp_path, pa.array(["a"])).batches(1)))
    capsule = pa.schema([("id", pa.int64()), ("x", pa.large_string())]).__arrow_c_schema__()
    batch.__arrow_c_array__(capsule)
    batch.__arrow_c_stream__(capsule)
    assert pa.Schema._import_from_c_capsule(capsule).field("x").type == pa.large_string()


def test_a_capsule_is_taken_once_and_a_batch_again_and_again(tmp_path):
    ds = opened(tmp_path, pa.array(["a", None]))
    batch = next(iter(ds.batches(2)))
    for _ in range(3):
        assert pa.record_batch(batch)["x"].to_pylist() == ["a", None]
        assert pa.array(batch.column(1)).to_pylist() == ["a", None]
    schema, array = batch.__arrow_c_array__()
    assert pa.RecordBatch._import_from_c_capsule(schema, array).num_rows == 2
    with pytest.raises(pa.ArrowInvalid, match="released"):
        pa.RecordBatch._import_from_c_capsule(schema, array)
    stream = ds.__arrow_c_stream__()
    assert pa.RecordBatchReader._import_from_c_capsule(stream).read_all().num_rows == 2
    with pytest.raises(pa.ArrowInvalid, match="released"):
        pa.RecordBatchReader._import_from_c_capsule(stream)


def test_capsules_that_nobody_takes_leave_no_thread(tmp_path):
    ds = opened(tmp_path, pa.array([str(i) for i in range(1000)]))
    batch = next(iter(ds.batches(1000)))
    capsules = [rows.__arrow_c_stream__() for rows in (ds, ds.shuffle(1), ds.batches(10), batch) for _ in range(5)]
    capsules += [batch.__arrow_c_array__(), batch.column(1).__arrow_c_array__(), ds.__arrow_c_schema__()]
    readers = [pa.RecordBatchReader.from_stream(ds) for _ in range(5)]
    readers[0].read_next_batch()
    del capsules, readers
    gc.collect()
    names = our_threads()
    assert not [name for name in names.values() if name.startswith("forebay-cpu")], names


HOLDERS = {name: CONSUMERS[name][0] for name in ("nanoarrow", "arro3", "datafusion", "pyarrow")}
"""Consumers of which some hold the GIL while they wait for a batch."""


@pytest.mark.parametrize("consumer", HOLDERS)
@pytest.mark.parametrize("is_main", [True, False], ids=["main thread", "another"])
@pytest.mark.parametrize("what", ["function", "query", "file system"])
def test_consumers_may_hold_the_gil_while_batches_are_made_that_need_it(tmp_path, consumer, is_main, what):
    table = pa.table({"id": pa.array(range(5000), pa.int64())})
    if what == "file system":
        memory = fsspec.filesystem("memory")
        with memory.open(f"{tmp_path}/a.parquet", "wb") as file:
            pq.write_table(table, file, row_group_size=500)
        rows = fb.load_dataset(f"memory:/{tmp_path}", split="train")
    else:
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
        function = fb.Function(call=lambda ids: ids, arguments=[pa.int64()], returns=pa.int64())
        ds = fb.load_dataset(tmp_path, split="train")
        make = ds.sql if what == "function" else ds.query
        rows = make("SELECT same(id) AS id FROM dataset", functions={"same": function})
    take = HOLDERS[consumer]
    if is_main:
        taken = take(rows)
    else:
        with concurrent.futures.ThreadPoolExecutor(1) as one:
            taken = one.submit(take, rows).result()
    assert sorted(taken["id"].to_pylist()) == list(range(5000))
