"""One schema of many objects: what widens, what is null, what clashes, and what is kept of it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path


def opened(folder: Path, *tables: pa.Table) -> fb.Dataset:
    """A dataset of one object for each table."""
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{number}.parquet")
    return fb.load_dataset(folder, split="train")


def test_a_column_that_an_object_lacks_is_null_there(tmp_path):
    ds = opened(tmp_path, pa.table({"a": [1, 2], "b": ["x", "y"]}), pa.table({"a": [3]}), pa.table({"b": ["z"]}))
    assert ds.column_names == ["a", "b"]
    assert pa.table(ds).to_pydict() == {"a": [1, 2, 3, None], "b": ["x", "y", None, "z"]}
    assert ds.schema.field("a").nullable
    assert pa.table(ds.filter("b IS NULL"))["a"].to_pylist() == [3]
    assert pa.table(ds.filter("a IS NULL OR a > 2")).num_rows == 2
    assert pa.table(ds.filter("a > 0")).num_rows == 3


def test_a_column_that_a_later_object_adds_comes_last(tmp_path):
    ds = opened(tmp_path, pa.table({"b": [1], "a": [1]}), pa.table({"c": [2], "a": [2], "b": [2]}))
    assert ds.column_names == ["b", "a", "c"]
    assert pa.table(ds).to_pydict() == {"b": [1, 2], "a": [1, 2], "c": [None, 2]}


def test_a_required_column_that_an_object_lacks_becomes_nullable(tmp_path):
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32(), nullable=False)])
    ds = opened(tmp_path, pa.table({"a": [1], "b": [1]}, schema), pa.table({"a": [2]}, schema.remove(1)))
    assert (ds.schema.field("a").nullable, ds.schema.field("b").nullable) == (False, True)


ODD = dt.datetime(2024, 3, 31, 2, 30, 0, 1)
"""An hour that clocks in Europe pass over."""

WIDENED = [
    (pa.int32(), pa.int64(), pa.int64(), [1, 2**31 - 1], [-(2**40)]),
    (pa.int8(), pa.int16(), pa.int16(), [-128], [300]),
    (pa.uint8(), pa.uint32(), pa.uint32(), [255], [2**32 - 1]),
    (pa.int8(), pa.int64(), pa.int64(), [-1], [2**62]),
    (pa.float32(), pa.float64(), pa.float64(), [0.5, None], [0.1]),
    (pa.float16(), pa.float32(), pa.float32(), [0.5], [1.25]),
    (pa.string(), pa.large_string(), pa.large_string(), ["a", None], ["ü"]),
    (pa.binary(), pa.large_binary(), pa.large_binary(), [b"a"], [b"\xff", None]),
    (pa.binary(2), pa.binary(), pa.binary(), [b"ab", None], [b"a"]),
    (pa.binary(2), pa.large_binary(), pa.large_binary(), [b"ab"], [b"a"]),
    (pa.binary(2), pa.binary(3), pa.binary(), [b"ab"], [b"abc", None]),
    (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4), [Decimal("1.25"), None], [Decimal("0.0625")]),
    (pa.decimal128(10, 0), pa.decimal128(10, 9), pa.decimal128(19, 9), [Decimal(10**9)], [Decimal("0.000000001")]),
    (pa.decimal128(38, 0), pa.decimal128(2, 2), pa.decimal256(40, 2), [Decimal(10**37)], [Decimal("0.25")]),
    (pa.decimal128(9, 2), pa.decimal256(50, 2), pa.decimal256(50, 2), [Decimal("0.25")], [Decimal(10**40)]),
    (pa.date32(), pa.date64(), pa.date64(), [dt.date(9999, 12, 31), None], [dt.date(1, 1, 1)]),
    (pa.time32("s"), pa.time32("ms"), pa.time32("ms"), [dt.time(23, 59, 59)], [dt.time(0, 0, 0, 1000), None]),
    (pa.time32("ms"), pa.time64("us"), pa.time64("us"), [dt.time(23, 59, 59)], [dt.time(0, 0, 0, 1)]),
    (pa.time32("s"), pa.time64("ns"), pa.time64("ns"), [dt.time(23, 59, 59), None], [dt.time(0, 0, 0, 1)]),
    (pa.time64("us"), pa.time64("ns"), pa.time64("ns"), [dt.time(23, 59, 59)], [dt.time(0, 0, 0, 1)]),
    (pa.duration("s"), pa.duration("us"), pa.duration("us"), [dt.timedelta(9_999), None], [dt.timedelta(0, 0, 1)]),
    (pa.duration("ms"), pa.duration("ns"), pa.duration("ns"), [dt.timedelta(-9_999)], [dt.timedelta(0, 0, 1)]),
    (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us"), [dt.datetime(9999, 12, 31), None], [ODD]),
    (pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ms"), [dt.datetime(1, 1, 1)], [dt.datetime(9999, 12, 31)]),
    (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ns"), [dt.datetime(1680, 1, 1, 0, 0, 0, 1)], [ODD, None]),
    (
        pa.timestamp("ms", "Europe/Berlin"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(2024, 7, 1, tzinfo=dt.UTC), None],
        [ODD.replace(tzinfo=dt.UTC)],
    ),
]


@pytest.mark.parametrize("is_reversed", [False, True], ids=["narrow first", "wide first"])
@pytest.mark.parametrize(
    ("narrow", "wide", "expected", "first", "second"), WIDENED, ids=[f"{n}-{w}" for n, w, *_ in WIDENED]
)
def test_types_widen_without_loss(tmp_path, narrow, wide, expected, first, second, is_reversed):
    tables = [pa.table({"x": pa.array(first, narrow)}), pa.table({"x": pa.array(second, wide)})]
    values = [first, second]
    if is_reversed:
        tables.reverse()
        values.reverse()
    ds = opened(tmp_path, *tables)
    assert ds.schema.field("x").type == expected
    assert pa.table(ds)["x"].to_pylist() == [*values[0], *values[1]]


def test_a_filter_on_a_widened_column_sees_the_widened_values(tmp_path):
    ds = opened(
        tmp_path,
        pa.table({"x": pa.array([1, 2, 3], pa.int32())}),
        pa.table({"x": pa.array([2**40, 2], pa.int64())}),
    )
    assert pa.table(ds.filter(f"x > {2**33}"))["x"].to_pylist() == [2**40]
    assert pa.table(ds.filter("x = 2"))["x"].to_pylist() == [2, 2]


def test_columns_may_stand_in_another_order_in_each_object(tmp_path):
    kinds = {
        "flag": pa.bool_(),
        "other": pa.bool_(),
        "a": pa.struct({"x": pa.int64()}),
        "b": pa.struct({"x": pa.int64()}),
        "price": pa.decimal128(30, 2),
        "cost": pa.decimal128(30, 2),
    }
    rows = [
        {"flag": row % 2 == 0, "other": row % 3 == 0, "a": {"x": row}, "b": {"x": row % 5}, "price": row, "cost": 1000}
        for row in range(60)
    ]
    orders = [list(kinds), list(kinds)[::-1], ["b", "a", "cost", "price", "other", "flag"]]
    tables = [
        pa.Table.from_pylist(rows[at : at + 20], pa.schema([(name, kinds[name]) for name in names]))
        for at, names in zip((0, 20, 40), orders, strict=True)
    ]
    ds = opened(tmp_path, *tables)
    whole = pa.concat_tables([table.select(list(kinds)) for table in tables])
    assert pa.table(ds).equals(whole)
    numbers = [59, 0, 25, 41]
    assert pa.table(ds.gather(numbers)).equals(whole.take(numbers))
    assert [ds[number] for number in numbers] == whole.take(numbers).to_pylist()
    for sql, is_kept in {
        "a['x'] > 2 * b['x']": lambda row: row["a"]["x"] > 2 * row["b"]["x"],
        "flag AND NOT other OR a['x'] = 3": lambda row: (row["flag"] and not row["other"]) or row["a"]["x"] == 3,
        "price < cost - 970": lambda row: row["price"] < 30,
    }.items():
        assert pa.table(ds.filter(sql))["a"].to_pylist() == [row["a"] for row in rows if is_kept(row)], sql


FIRST_DECIDES = [
    (pa.string(), pa.binary(), pa.string(), ["a", None], [b"\xc3\xbc"], ["ü"]),
    (pa.string(), pa.large_binary(), pa.large_string(), ["a"], [b"b", None], ["b", None]),
    (pa.large_string(), pa.binary(), pa.large_string(), ["a"], [b"b"], ["b"]),
    (pa.binary(), pa.string(), pa.binary(), [b"\xff", None], ["ü"], [b"\xc3\xbc"]),
    (pa.binary(), pa.large_string(), pa.large_binary(), [b"\xff"], ["b", None], [b"b", None]),
    (
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("ms", "America/New_York"),
        pa.timestamp("us", "Europe/Berlin"),
        [ODD.replace(tzinfo=dt.UTC)],
        [dt.datetime(2024, 7, 1, tzinfo=dt.UTC), None],
        [dt.datetime(2024, 7, 1, tzinfo=dt.UTC), None],
    ),
    (
        *(pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")),
        *([ODD.replace(tzinfo=dt.UTC)], [ODD, None], [ODD.replace(tzinfo=dt.UTC), None]),
    ),
    (
        *(pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("us")),
        *([dt.datetime(9999, 12, 31), None], [ODD.replace(tzinfo=dt.UTC)], [ODD]),
    ),
    (
        *(pa.timestamp("us"), pa.date32(), pa.timestamp("us")),
        *([ODD], [dt.date(9999, 12, 31), None], [dt.datetime(9999, 12, 31), None]),
    ),
    (
        *(pa.timestamp("ns", "UTC"), pa.date64(), pa.timestamp("ns", "UTC")),
        *([ODD.replace(tzinfo=dt.UTC)], [dt.date(2024, 1, 1)], [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    ),
]
"""The types of two objects, that of the dataset, the values of both, and those of the second one in the dataset."""


@pytest.mark.parametrize(
    ("left", "right", "expected", "first", "second", "read"),
    FIRST_DECIDES,
    ids=[f"{n}-{w}" for n, w, *_ in FIRST_DECIDES],
)
def test_the_first_object_decides_between_types_of_which_none_is_wider(
    tmp_path, left, right, expected, first, second, read
):
    """As in `datasets`, which casts to the first file's type."""
    ds = opened(tmp_path, pa.table({"x": pa.array(first, left)}), pa.table({"x": pa.array(second, right)}))
    assert ds.schema.field("x").type == expected
    assert pa.table(ds)["x"].to_pylist() == [*first, *read]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (pa.array(["a"]), pa.array([b"b", b"\xff"]), "UTF-8"),
        (pa.array([1], pa.timestamp("ns")), pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us")), "verflow"),
        (pa.array([1], pa.timestamp("ns")), pa.array([dt.date(9999, 12, 31)]), "verflow"),
        (pa.array([1], pa.duration("ns")), pa.array([10**12], pa.duration("s")), "verflow"),
    ],
    ids=["bytes that are no text", "a year beyond nanoseconds", "a date beyond nanoseconds", "a long duration"],
)
def test_a_value_that_does_not_fit_is_an_error_with_its_object(tmp_path, first, second, said):
    ds = opened(tmp_path, pa.table({"x": first}), pa.table({"x": second}))
    for rows in (ds, ds.filter("x IS NOT NULL")):
        with pytest.raises(fb.DataError, match=f"column `x` of `.*part-1.parquet` .*{said}.*open the object alone"):
            list(rows)


def test_statistics_of_objects_of_another_type_keep_every_row(tmp_path):
    """Bounds are compared in the type of the dataset, in which some have no equal."""
    text = "ü" * 60
    zoned = pa.table(
        {
            "at": pa.array([ODD, dt.datetime(2024, 7, 1, 0, 30)], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)], pa.timestamp("ns")),
            "took": pa.array([1, 2], pa.duration("us")),
            "price": pa.array([Decimal("1.25"), Decimal("2.50")], pa.decimal128(5, 2)),
            "name": ["a", text],
        }
    )
    plain = pa.table(
        {
            "at": pa.array([ODD, dt.datetime(2024, 7, 1, 0, 30)], pa.timestamp("ms")),
            "day": pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
            "took": pa.array([1, 2], pa.duration("s")),
            "price": pa.array([Decimal("1.2500"), Decimal("2.0001")], pa.decimal128(9, 4)),
            "name": pa.array([b"a", text.encode()]),
        }
    )
    for number, table in enumerate((zoned, plain)):
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=1, write_page_index=True)
    ds = fb.load_dataset(tmp_path, split="train")
    whole = pa.table(ds)
    assert whole.schema.equals(zoned.schema.set(3, pa.field("price", pa.decimal128(9, 4))))
    for number, kept in [(0, [0, 2]), (1, [1, 3])]:
        for name in ("at", "day", "took", "name"):
            value = whole[name][kept[0]]
            also = [row for row in range(4) if whole[name][row] == value]
            got = ds.filter(f"{name} = $value", params={"value": value})
            assert pa.table(got).equals(whole.take(also)), name
            assert set(also) <= set(kept), number
    assert pa.table(ds.filter("price > 2")).equals(whole.take([1, 3]))
    assert pa.table(ds.filter("price = 1.25")).equals(whole.take([0, 2]))
    assert pa.table(ds.filter("at >= '2024-07-01T00:30:00Z'")).equals(whole.take([1, 3]))


CLASHES = [
    (pa.int64(), pa.string(), [1], ["a"], "Int64", "Utf8"),
    (pa.int64(), pa.float64(), [1], [1.5], "Int64", "Float64"),
    (pa.bool_(), pa.int8(), [True], [1], "Boolean", "Int8"),
    (pa.date32(), pa.string(), [dt.date(2024, 1, 1)], ["2024-01-01"], "Date32", "Utf8"),
    (pa.list_(pa.int32()), pa.int32(), [[1]], [1], "List", "Int32"),
    (pa.string(), pa.binary(1), ["a"], [b"a"], "Utf8", "FixedSizeBinary(1)"),
    (pa.binary(1), pa.string(), [b"a"], ["a"], "FixedSizeBinary(1)", "Utf8"),
    (pa.date32(), pa.timestamp("us"), [dt.date(2024, 1, 1)], [ODD], "Date32", "Timestamp(µs)"),
    (pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin"), [ODD], [ODD], "Timestamp(µs)", "Europe/Berlin"),
    (pa.timestamp("us", "Europe/Berlin"), pa.date32(), [ODD], [dt.date(2024, 1, 1)], "Europe/Berlin", "Date32"),
    (pa.decimal256(76, 0), pa.decimal128(5, 5), [1], [0], "Decimal256(76, 0)", "Decimal128(5, 5)"),
    (pa.uint64(), pa.int64(), [1], [1], "UInt64", "Int64"),
    (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.string()}), [{"a": 1}], [{"a": "x"}], "Int32", "Utf8"),
]


@pytest.mark.parametrize(
    ("left", "right", "one", "other", "shown", "other_shown"), CLASHES, ids=lambda value: str(value)
)
def test_types_that_do_not_fit_are_refused_with_both_objects_and_types(
    tmp_path, left, right, one, other, shown, other_shown
):
    with pytest.raises(fb.SchemaError) as caught:
        opened(
            tmp_path,
            pa.table({"fine": [1], "x": pa.array(one, left)}),
            pa.table({"fine": [1], "x": pa.array(other, right)}),
        )
    message = str(caught.value)
    for part in ("`x", "part-0.parquet", "part-1.parquet", shown, other_shown):
        assert part in message


def test_a_column_named_twice_in_an_object_is_refused(tmp_path):
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), tmp_path / "a.parquet")
    with pytest.raises(fb.SchemaError, match="more than one column named `x`"):
        fb.load_dataset(tmp_path, split="train")


def test_the_metadata_of_schema_and_fields_is_kept(tmp_path):
    field = pa.field("x", pa.int32(), metadata={"unit": "m"})
    ds = opened(tmp_path, pa.table({"x": [1]}, pa.schema([field], metadata={"owner": "us"})))
    for schema in (ds.schema, pa.table(ds).schema, ds.select_columns("x").filter("x > 0").schema):
        assert schema.metadata[b"owner"] == b"us"
        assert schema.field("x").metadata[b"unit"] == b"m"


def test_dictionaries_come_as_their_values_or_as_dictionaries_but_equal(tmp_path):
    values = pa.array(["a", "b", "a", None]).dictionary_encode()
    ds = opened(tmp_path, pa.table({"x": values}))
    assert pa.table(ds)["x"].to_pylist() == ["a", "b", "a", None]
    assert pa.table(ds.filter("x = 'a'")).num_rows == 2


def test_columns_come_in_the_order_that_is_asked_for(tmp_path):
    ds = opened(tmp_path, pa.table({"a": [1], "b": [2], "c": [3], "d": [4]}))
    assert ds.select_columns(["c", "a"]).column_names == ["c", "a"]
    assert pa.table(ds.select_columns(["c", "a"])).to_pydict() == {"c": [3], "a": [1]}
    assert ds.remove_columns(["b"]).column_names == ["a", "c", "d"]
    assert ds.remove_columns("d").select_columns(["b"]).column_names == ["b"]
    assert ds.column_names == ["a", "b", "c", "d"]


def test_a_column_that_is_not_there_is_named_with_near_ones(tmp_path):
    ds = opened(tmp_path, pa.table({"score": [1.0], "lang": ["de"]}))
    for call in (ds.select_columns, ds.remove_columns):
        with pytest.raises(fb.ColumnNotFoundError, match=r"no column `scroe`; did you mean `score`\?"):
            call(["scroe"])
    with pytest.raises(fb.ColumnNotFoundError, match="the dataset has `score`, `lang`"):
        ds.select_columns("xyzzy")
    with pytest.raises(fb.ColumnNotFoundError, match="absent"):
        fb.load_dataset(tmp_path, split="train", columns=["absent"])
    with pytest.raises(fb.SettingError, match="`lang` is named twice"):
        ds.select_columns(["lang", "lang"])


def test_a_column_that_was_left_out_cannot_be_taken_back_but_can_be_filtered_on(tmp_path):
    ds = opened(tmp_path, pa.table({"a": [1, 2], "b": [3, 4]})).select_columns("a")
    with pytest.raises(fb.ColumnNotFoundError):
        ds.select_columns("b")
    assert pa.table(ds.filter("b = 4")).to_pydict() == {"a": [2]}


def test_objects_without_rows_do_not_disturb(tmp_path):
    empty = pa.table({"a": pa.array([], pa.int64())})
    ds = opened(tmp_path, empty, pa.table({"a": [1, 2]}), empty)
    assert pa.table(ds)["a"].to_pylist() == [1, 2]
    assert len(ds) == 2


def test_a_dataset_of_no_rows_is_an_empty_epoch(tmp_path):
    ds = opened(tmp_path, pa.table({"a": pa.array([], pa.int64())}))
    assert len(ds) == 0
    assert list(ds.batches(4)) == list(ds.shuffle(1).batches(4)) == list(ds) == []
    assert pa.table(ds).schema.names == ["a"]


ROUND_TRIP = {
    "null": pa.array([None, None]),
    "decimal": pa.array([1, None], pa.decimal128(20, 3)),
    "time": pa.array([dt.time(1, 2, 3), None], pa.time64("us")),
    "timestamp with a zone": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", tz="UTC")),
    "nanoseconds": pa.array([1, None], pa.timestamp("ns")),
    "duration": pa.array([5, None], pa.duration("ms")),
    "fixed binary": pa.array([b"ab", None], pa.binary(2)),
    "list": pa.array([[1, None], None], pa.list_(pa.int32())),
    "large list": pa.array([["a"], []], pa.large_list(pa.string())),
    "fixed list": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array(
        [{"a": 1, "b": {"c": "x"}}, None], pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.string()})})
    ),
    "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
    "list of structs": pa.array([[{"a": 1}], []], pa.list_(pa.struct({"a": pa.int64()}))),
}


@pytest.mark.parametrize("column", ROUND_TRIP.values(), ids=ROUND_TRIP)
def test_every_type_comes_back_as_it_was_written(tmp_path, column):
    table = pa.table({"x": column, "id": [0, 1]})
    got = pa.table(opened(tmp_path, table))
    assert got.schema.field("x").type == table.schema.field("x").type
    assert got["x"].to_pylist() == table["x"].to_pylist()
    assert (
        pa.table(fb.load_dataset(tmp_path, split="train").filter("id = 1"))["x"].to_pylist() == column[1:].to_pylist()
    )
