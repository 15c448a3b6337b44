"""Rows as Python objects: those that pyarrow makes, for every type, at every depth."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 23

LEAVES: dict[str, pa.Array] = {
    "null": pa.nulls(5),
    "bool": pa.array([True, None, False, True, True]),
    "int8": pa.array([-128, 127, None, 0, 1], pa.int8()),
    "int16": pa.array([-(2**15), 2**15 - 1, None, 0, 1], pa.int16()),
    "int32": pa.array([-(2**31), 2**31 - 1, None, 0, 1], pa.int32()),
    "int64": pa.array([-(2**63), 2**63 - 1, None, 0, 1], pa.int64()),
    "uint8": pa.array([255, None, 0, 1, 2], pa.uint8()),
    "uint16": pa.array([2**16 - 1, None, 0, 1, 2], pa.uint16()),
    "uint32": pa.array([2**32 - 1, None, 0, 1, 2], pa.uint32()),
    "uint64": pa.array([2**64 - 1, None, 0, 1, 2], pa.uint64()),
    "float16": pa.array([1.5, None, -0.0, math.inf, math.nan], pa.float16()),
    "float32": pa.array([0.1, None, -0.0, -math.inf, math.nan], pa.float32()),
    "float64": pa.array([0.1, None, -0.0, 5e-324, math.nan], pa.float64()),
    "string": pa.array(["", None, "a", "größer", "\x00🦀"]),
    "large_string": pa.array(["", None, "a", "größer", "\x00🦀"], pa.large_string()),
    "binary": pa.array([b"", None, b"\x00", b"\xff", b"abc"]),
    "fixed_binary": pa.array([b"ab", None, b"\x00\xff", b"cd", b"ef"], pa.binary(2)),
    "date32": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 28)]),
    "time64": pa.array([dt.time(0), None, dt.time(23, 59, 59, 999999), dt.time(1), dt.time(2)]),
    "timestamp": pa.array([0, None, -1, 1 << 50, 1], pa.timestamp("us")),
    "timestamp with a zone": pa.array([0, None, -1, 1 << 40, 1], pa.timestamp("ms", "Europe/Berlin")),
    "duration": pa.array([0, None, -1, 1 << 40, 1], pa.duration("us")),
    "decimal": pa.array([decimal.Decimal("0.00"), None, decimal.Decimal("-1.50"), *map(decimal.Decimal, (7, 8))]),
    "dictionary": pa.array(["x", None, "y", "x", "z"]).dictionary_encode(),
}
"""An array of five values of each type."""


def repeated(values: pa.Array, length: int) -> pa.Array:
    return values.take(pa.array([number % len(values) for number in range(length)]))


def offsets(length: int, step: int) -> list[int | None]:
    """Offsets of lists of which some are empty and some NULL."""
    ends = [0]
    for row in range(length):
        ends.append(ends[-1] + (row * step) % 4)
    starts: list[int | None] = list(ends)
    for row in range(0, length, 5):
        starts[row] = None
    return starts


def nested(values: pa.Array) -> dict[str, pa.Array]:
    """Columns that hold the values at several depths."""
    columns = {"flat": repeated(values, NUM_ROWS)}
    starts = offsets(NUM_ROWS, 3)
    items = repeated(values, starts[-1] or 0)
    columns["list"] = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items)
    columns["large_list"] = pa.LargeListArray.from_arrays(pa.array(starts, pa.int64()), items)
    columns["fixed_list"] = pa.FixedSizeListArray.from_arrays(repeated(values, 2 * NUM_ROWS), 2)
    mask = pa.array([row % 4 == 1 for row in range(NUM_ROWS)])
    parts = [columns["flat"], columns["list"], repeated(pa.array([1, 2, None]), NUM_ROWS)]
    columns["struct"] = pa.StructArray.from_arrays(parts, ["a", "it's", ""], mask=mask)
    structs = columns["struct"].take(pa.array([row % NUM_ROWS for row in range(starts[-1] or 0)]))
    columns["list of structs"] = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), structs)
    columns["list of lists"] = pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()), columns["list"].take(pa.array([row % NUM_ROWS for row in range(len(items))]))
    )
    keys = pa.array([f"k{row}" for row in range(len(items))])
    columns["map"] = pa.MapArray.from_arrays(pa.array(starts, pa.int32()), keys, items)
    return columns


def same(ours: Any, theirs: Any) -> bool:
    """Whether objects are equal, of equal types and in equal order; a NaN equals itself."""
    return repr(ours) == repr(theirs) and type(ours) is type(theirs)


@pytest.mark.parametrize("name", LEAVES)
def test_rows_are_what_pyarrow_makes_of_them(name: str, tmp_path: Path) -> None:
    table = pa.table(nested(LEAVES[name]))
    if name == "dictionary":
        # The writer has none within maps.
        table = table.drop_columns(["map"])
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    ds = fb.load_dataset(tmp_path, split="train")
    theirs = pa.table(ds)
    assert same(list(ds), theirs.to_pylist())
    assert same(ds[:], theirs.to_pydict())
    assert same(ds[7], theirs.slice(7, 1).to_pylist()[0])
    for start, batch in zip(range(0, NUM_ROWS, 3), ds.batches(3), strict=True):
        rows = theirs.slice(start, 3)
        assert same(batch.to_pydict(), rows.to_pydict())
        assert same(batch.slice(1, 2).to_pylist(), rows.slice(1, 2).to_pylist())
        assert same(batch.slice(3, 2).to_pylist(), [])


TYPES = st.recursive(
    st.sampled_from([pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.date32(), pa.binary()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{number}", part) for number, part in enumerate(types)])
        ),
        inner.map(lambda value: pa.map_(pa.string(), value)),
    ),
    max_leaves=6,
)


def values_of(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_struct(data_type):
        value = st.fixed_dictionaries({field.name: values_of(field.type) for field in data_type})
    elif types.is_map(data_type):
        value = st.lists(st.tuples(st.text(max_size=3), values_of(data_type.item_type)), max_size=3)
    elif types.is_list(data_type) or types.is_large_list(data_type):
        value = st.lists(values_of(data_type.value_type), max_size=3)
    else:
        value = {
            pa.int64(): st.integers(-(2**63), 2**63 - 1),
            pa.string(): st.text(max_size=5),
            pa.bool_(): st.booleans(),
            pa.float64(): st.floats(),
            pa.date32(): st.dates(),
            pa.binary(): st.binary(max_size=5),
        }[data_type]
    return st.none() | value


@settings(max_examples=60)
@given(st.data())
def test_any_nesting_is_what_pyarrow_makes_of_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    data_type = data.draw(TYPES)
    values = data.draw(st.lists(values_of(data_type), min_size=1, max_size=9))
    path = tmp_path_factory.mktemp("nested") / "x.parquet"
    pq.write_table(pa.table({"x": pa.array(values, data_type)}), path, row_group_size=4)
    ds = fb.load_dataset(path, split="train")
    theirs = pa.table(ds)
    assert same(list(ds), theirs.to_pylist())
    assert same(ds[:], theirs.to_pydict())


def test_extension_types_are_left_to_who_registered_them(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=number) for number in (0, 1 << 100)]
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value.bytes for value in ids], pa.binary(16)))
    pq.write_table(pa.table({"id": column, "n": [1, 2]}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert list(ds) == [{"id": ids[0], "n": 1}, {"id": ids[1], "n": 2}]
    assert next(iter(ds.batches(2))).to_pydict() == {"id": ids, "n": [1, 2]}


def test_what_is_below_a_null_is_no_value(tmp_path: Path) -> None:
    far = pa.array([0, 1 << 62, 1], pa.timestamp("us"))
    structs = pa.StructArray.from_arrays([far], ["at"], mask=pa.array([False, True, False]))
    pq.write_table(pa.table({"x": structs}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert [row["x"] is None for row in ds] == [False, True, False]


def test_an_object_that_python_does_not_have_is_an_error_that_names_column_and_row(tmp_path: Path) -> None:
    far = pa.array([[{"day": 0}], [{"day": 0}, {"day": 2**31 - 1}]], pa.list_(pa.struct([("day", pa.date32())])))
    pq.write_table(pa.table({"days": far}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for read in (lambda: list(ds), lambda: ds[:], lambda: list(ds.iter(2))):
        with pytest.raises(fb.DataError, match=r"column `days` of type .*, row 1 of the batch: Python has no object"):
            read()
