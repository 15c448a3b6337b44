"""Filters as lists of conditions and as expressions of pyarrow keep the rows that pyarrow keeps."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay.filters import to_sql

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 60
DAY = dt.date(2026, 1, 1)


def values(make: Any) -> list[Any]:
    """Returns a value for each row; every seventh has none."""
    return [None if row % 7 == 3 else make(row) for row in range(ROWS)]


TABLE = pa.table(
    {
        "row": range(ROWS),
        "n": pa.array(values(lambda row: row % 9 - 2), pa.int32()),
        "x": values(lambda row: row / 4),
        "text": values(lambda row: f"w{row % 5}"),
        "flag": values(lambda row: row % 2 == 0),
        "day": values(lambda row: DAY + dt.timedelta(days=row)),
        "at": pa.array(values(lambda row: dt.datetime(2026, 1, 1, row % 24)), pa.timestamp("us")),
        "utc": pa.array(values(lambda row: dt.datetime(2026, 1, 1, row % 24)), pa.timestamp("us", "UTC")),
        "price": pa.array(values(lambda row: Decimal(row) / 4), pa.decimal128(7, 2)),
        "body": values(lambda row: bytes([row % 5])),
        "word": pa.array(values(lambda row: f"w{row % 5}")).dictionary_encode(),
        "meta": values(lambda row: {"lang": f"l{row % 3}", "deep": {"k": row % 4}}),
        'it\'s "odd"': pa.array(values(lambda row: row % 3)),
        "a.b": pa.array(values(lambda row: row % 3)),
        "tensor": pa.array([[1.0, 2.0]] * ROWS, pa.list_(pa.float16(), 2)),
    }
)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    path = tmp_path_factory.mktemp("filters") / "train.parquet"
    pq.write_table(TABLE, path, row_group_size=8)
    return fb.load_dataset(path, split="train")


def kept(ds: fb.Dataset, filters: Any) -> list[int]:
    """The rows that we keep."""
    return [row["row"] for row in ds.filter(filters).select_columns("row").iter()]


def expected(expression: pc.Expression) -> list[int]:
    """The rows that pyarrow keeps."""
    rows: list[int] = TABLE.drop_columns("tensor").filter(expression)["row"].to_pylist()
    return rows


CONDITIONS = [
    ("n", "==", 3),
    ("n", "=", 3),
    ("n", "!=", 3),
    ("n", "<", 2.5),
    ("n", "<=", 2),
    ("n", ">", np.int64(2)),
    ("n", ">=", 2),
    ("n", "in", [1, 2, 99]),
    ("n", "in", {1, 2}),
    ("n", "in", range(3)),
    ("x", ">", 7.5),
    ("x", "in", np.array([1.25, 2.5])),
    ("text", "==", "w3"),
    ("text", "<", "w3"),
    ("text", "in", ("w1", "it's; DROP TABLE dataset --")),
    ("text", "!=", "' OR 1 = 1 --"),
    ("flag", "==", True),
    ("day", ">=", DAY + dt.timedelta(days=40)),
    ("at", "<", dt.datetime(2026, 1, 1, 7)),
    ("utc", "<", dt.datetime(2026, 1, 1, 7, tzinfo=dt.UTC)),
    ("price", ">", Decimal("3.50")),
    ("body", "==", b"\x02"),
    ("word", "in", ["w1", "w4"]),
    ('it\'s "odd"', "==", 1),
    ("a.b", "==", 2),
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_a_condition_keeps_what_pyarrow_keeps(condition: tuple[str, str, Any], ds: fb.Dataset) -> None:
    column, operator, value = condition
    plain = list(value) if operator == "in" else value
    theirs = expected(pq.filters_to_expression([(column, operator, plain)]))
    assert kept(ds, [condition]) == theirs
    assert theirs, "the condition tells rows apart"


@pytest.mark.parametrize(
    "filters",
    [
        [("n", ">", 1), ("text", "==", "w1")],
        [["n", ">", 1], ["text", "==", "w1"]],
        [[("n", ">", 3), ("text", "==", "w1")], [("flag", "==", True)]],
        [[("n", "==", 1)], [("n", "==", 2)], [("x", "<", 1), ("x", ">", 0.3)]],
        [[("n", ">", 5)]],
    ],
    ids=str,
)
def test_conditions_are_joined_as_in_pyarrow(filters: Any, ds: fb.Dataset) -> None:
    as_tuples = [tuple(item) if isinstance(item[0], str) else item for item in filters]
    assert kept(ds, filters) == expected(pq.filters_to_expression(as_tuples)) != []


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["n", "row"]), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-3, 9)
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_conditions_keep_what_pyarrow_keeps(ds: fb.Dataset, filters: list[list[tuple[str, str, int]]]) -> None:
    assert kept(ds, filters) == expected(pq.filters_to_expression(filters))


def test_a_single_condition_needs_no_list(ds: fb.Dataset) -> None:
    assert kept(ds, ("n", "==", 3)) == kept(ds, [("n", "==", 3)])


def test_fields_of_structs_stand_behind_dots(ds: fb.Dataset) -> None:
    assert kept(ds, [("meta.lang", "==", "l1")]) == expected(pc.field("meta", "lang") == "l1")
    assert kept(ds, [("meta.deep.k", ">", 2)]) == expected(pc.field("meta", "deep", "k") > 2)


def test_a_row_without_a_value_is_in_no_list_and_in_none_that_is_negated(ds: fb.Dataset) -> None:
    """The one difference: `not in` of pyarrow keeps such rows, SQL's does not."""
    ours = kept(ds, [("n", "not in", [1, 2])])
    theirs = expected(pq.filters_to_expression([("n", "not in", [1, 2])]))
    without = [row for row, value in enumerate(TABLE["n"].to_pylist()) if value is None]
    assert sorted([*ours, *without]) == theirs
    assert not set(ours) & set(without)


@pytest.mark.parametrize(
    "condition",
    [
        ("n", "==", pd.NA),
        ("n", "==", pa.scalar(None, pa.int32())),
        ("n", "==", pa.NULL),
        ("at", "!=", pd.NaT),
        ("at", "!=", np.datetime64("NaT")),
        ("at", "!=", np.datetime64("NaT", "ns")),
        ("at", "!=", np.timedelta64("NaT", "s")),
        ("n", "not in", [1, pd.NA]),
        ("n", "not in", pa.array([1, None])),
        ("n", "not in", pl.Series([1, None])),
        ("n", "not in", pd.Series([1, None], dtype="Int64")),
        ("at", "not in", pd.Series([DAY, None], dtype="M8[ns]")),
        ("at", "not in", np.array(["2026-01-01", "NaT"], "M8[us]")),
    ],
    ids=lambda condition: " ".join(map(str, condition)),
)
def test_null_of_any_library_is_refused(condition: tuple[str, str, Any], ds: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="nothing equals None"):
        ds.filter([condition])


def test_nan_is_not_null(ds: fb.Dataset) -> None:
    assert kept(ds, [("x", "not in", np.array([1, math.nan]))]) == kept(ds, [("x", "!=", 1.0)])


def test_nan_compares_as_in_sql(tmp_path: Path) -> None:
    """The other difference: NaN equals itself and is above every number. In lists `0.0` is `-0.0`, too."""
    pq.write_table(pa.table({"row": [0, 1], "x": [1.0, math.nan]}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    assert kept(ds, [("x", ">", 0)]) == [0, 1]
    assert kept(ds, [("x", "==", math.nan)]) == [1]
    pq.write_table(pa.table({"row": [0, 1], "x": [0.0, -0.0]}), tmp_path / "z.parquet")
    assert kept(fb.load_dataset(tmp_path / "z.parquet", split="train"), [("x", "in", [0.0])]) == [0, 1]


def test_fractions_in_a_list_are_of_32_bits_where_the_column_is(tmp_path: Path) -> None:
    """As in pyarrow; `==` compares in 64 bits, in which a fraction of 32 is another one, there and here."""
    table = pa.table({"row": [0, 1, 2], "f": pa.array([0.1, 0.5, 1.0], pa.float32()), "x": [0.1, 0.5, 1.0]})
    table = table.append_column("m", pa.StructArray.from_arrays([table["f"].chunk(0)], ["f"]))
    pq.write_table(table, tmp_path / "f.parquet")
    ds = fb.load_dataset(tmp_path / "f.parquet", split="train")
    for operator, value in (("in", [0.1]), ("not in", [0.1]), ("in", [0.1, 1]), ("==", 0.1), ("in", [1e300, 0.5])):
        for column in ("f", "x"):
            expression = pq.filters_to_expression([(column, operator, value)])
            rows = table.filter(expression)["row"].to_pylist()
            assert kept(ds, [(column, operator, value)]) == rows, (column, operator, value)
    assert kept(ds, F("f").isin([0.1])) == kept(ds, [("m.f", "in", [0.1])]) == [0]
    with pytest.raises(
        fb.SettingError, match="`f` is not among the selected columns.*filter before you select columns"
    ):
        ds.select_columns("row").filter([("f", "in", [0.1])])
    assert ds.select_columns("row").filter([("f", "in", [0.5])]).num_rows == 1


def test_conditions_may_name_columns_that_are_not_selected(ds: fb.Dataset) -> None:
    assert ds.select_columns("row").filter([("text", "==", "w1")]).num_rows == len(kept(ds, [("text", "==", "w1")]))


def test_filters_are_bound_and_not_pasted() -> None:
    text, params = to_sql([("text", "==", "' OR true --"), ("n", "in", [1, 2])], TABLE.schema)
    assert text == '"text" = $value_0 AND "n" IN ($value_1, $value_2)'
    assert params == {"value_0": "' OR true --", "value_1": 1, "value_2": 2}


F = pc.field
EXPRESSIONS = [
    F("n") == 3,
    F("n") != 3,
    (F("n") > 1) & (F("text") == "w1"),
    (F("n") > 4) | ~(F("flag")),
    F("n").is_null(),
    F("n").is_valid() & (F("x") <= 3.5),
    ~F("n").isin([1, 2]),
    F("n").isin([1, 2]),
    F("text").isin(["w1", "w2", "x"]) | F("x").is_null(),
    F("x") > 3.5,
    ~F("x").is_nan(),
    F("day") > pa.scalar(DAY + dt.timedelta(days=30)),
    F("at") < pa.scalar(dt.datetime(2026, 1, 1, 7), pa.timestamp("us")),
    F("utc") < pa.scalar(dt.datetime(2026, 1, 1, 7, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
    F("price") > pa.scalar(Decimal("3.50"), pa.decimal128(7, 2)),
    F("body") == b"\x02",
    F("flag") == True,  # noqa: E712 - an expression
    F("meta", "lang") == "l1",
    F("meta", "deep", "k") > 2,
    F('it\'s "odd"') == 1,
    F("row") > F("a.b"),
    F("row") >= -1,
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_an_expression_keeps_what_pyarrow_keeps(expression: pc.Expression, ds: fb.Dataset) -> None:
    assert kept(ds, expression) == expected(expression)


@pytest.mark.parametrize(
    "expression",
    [
        F("n").cast("int64") == 3,
        pc.starts_with(F("text"), "w"),
        F("n") + 1 == 3,
        F("n") == pa.scalar(None, pa.int32()),
        F("n").isin([]),
        F("x").is_null(nan_is_null=True),
        F("tensor").is_null(),
        pc.if_else(F("flag"), F("n"), F("n")) == 1,
    ],
    ids=str,
)
def test_an_expression_without_an_equal_is_refused(expression: pc.Expression, ds: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="cannot be translated: .*; write the filter in SQL"):
        ds.filter(expression)


TYPES = {
    "u8": pa.array([7, 1, None], pa.uint8()),
    "u16": pa.array([7, 1, None], pa.uint16()),
    "u32": pa.array([7, 1, None], pa.uint32()),
    "u64": pa.array([7, 1, None], pa.uint64()),
    "hash": pa.array([2**64 - 1, 2**63, None], pa.uint64()),
    "i8": pa.array([-7, 1, None], pa.int8()),
    "f": pa.array([0.1, 0.5, None], pa.float32()),
    "text": pa.array(["x", "", None]),
    "large": pa.array(["x", "", None], pa.large_string()),
    "bytes": pa.array([b"x", b"", None], pa.large_binary()),
    "fixed": pa.array([b"xy", b"ab", None], pa.binary(2)),
    "ns": pa.array([dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2), None], pa.timestamp("ns")),
    "ms": pa.array([dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2), None], pa.timestamp("ms", "UTC")),
    "us": pa.array([dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2), None], pa.timestamp("us")),
    "day": pa.array([DAY, DAY, None], pa.date32()),
    "millis": pa.array([dt.date(1969, 12, 31), DAY, None], pa.date64()),
    "t32": pa.array([dt.time(1), dt.time(0), None], pa.time32("ms")),
    "t64": pa.array([dt.time(1), dt.time(0), None], pa.time64("ns")),
    "small": pa.array([Decimal(1), Decimal(2), None], pa.decimal256(20, 2)),
    "d256": pa.array([Decimal(1), Decimal(2), None], pa.decimal256(50, 2)),
    "took": pa.array([1, 2, None], pa.duration("us")),
}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[fb.Dataset, Path]:
    path = tmp_path_factory.mktemp("types") / "types.parquet"
    pq.write_table(pa.table({"row": range(3), **TYPES}), path)
    return fb.load_dataset(path, split="train"), path


NEW_YEAR = dt.datetime(2026, 1, 1)
TYPED = [
    *(F(name) == pa.scalar(7, kind) for name, kind in [("u8", pa.uint8()), ("u16", pa.uint16()), ("u32", pa.uint32())]),
    F("u64") == pa.scalar(7, pa.uint64()),
    F("u64") == 7,
    F("u8") == 7,
    F("u8") > -1,
    F("i8") > pa.scalar(-7, pa.int8()),
    F("hash") == pa.scalar(2**64 - 1, pa.uint64()),
    F("hash").isin(pa.array([2**63], pa.uint64())),
    F("f") == pa.scalar(0.1, pa.float32()),
    F("f") > 0.1,
    F("f").isin([0.1]),
    F("large") == pa.scalar("x", pa.large_string()),
    F("large") == "",
    F("text") == pa.scalar("x", pa.large_string()),
    F("text").isin(pa.array(["x"], pa.large_string())),
    F("bytes") == pa.scalar(b"x", pa.large_binary()),
    F("fixed") == pa.scalar(b"xy", pa.binary(2)),
    F("ns") == pa.scalar(NEW_YEAR, pa.timestamp("ns")),
    F("ns") > NEW_YEAR,
    F("ns").isin([NEW_YEAR]),
    F("ms") == pa.scalar(NEW_YEAR, pa.timestamp("us", "UTC")),
    F("t32") == dt.time(1),
    F("t32") == pa.scalar(dt.time(0), pa.time32("s")),
    F("t32").isin(pa.array([dt.time(1)], pa.time32("ms"))),
    F("t64") == dt.time(0),
    F("small") == Decimal(1),
    F("u8") > F("i8"),
    F("us") < pa.scalar(1 << 62, pa.timestamp("us")),
    F("us") > pa.scalar(-(1 << 62), pa.timestamp("us")),
    F("ms") < pa.scalar(1 << 60, pa.timestamp("us", "UTC")),
    F("day") < pa.scalar(10**7, pa.date32()),
    F("millis") == pa.scalar(dt.date(1969, 12, 31), pa.date64()),
]


@pytest.mark.parametrize("expression", TYPED, ids=str)
def test_values_of_every_type_of_column_are_translated(
    expression: pc.Expression, typed: tuple[fb.Dataset, Path]
) -> None:
    ds, path = typed
    assert kept(ds, expression) == pq.read_table(path, filters=expression)["row"].to_pylist() != []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (F("d256") == Decimal(1), r"column `d256` is `decimal256\(50, 2\)`, a type that Substrait does not have"),
        (F("took").is_valid(), r"column `took` is `duration\[us\]`, a type that Substrait does not have"),
        (F("ns").isin(pa.array([NEW_YEAR], pa.timestamp("ns"))), r"no values of `timestamp\[ns\]`, but of"),
        (F("ns") > pa.scalar(1, pa.timestamp("ns")), "only if it is of whole microseconds and not before 1970"),
        (F("ns") > pa.scalar(dt.datetime(1969, 1, 1), pa.timestamp("ns")), r"compare with one of `timestamp\[us\]`"),
        (F("u8") > pa.scalar(2.5), "of another type than the column, or of one that Substrait"),
    ],
    ids=str,
)
def test_types_that_substrait_has_not_are_named(
    expression: pc.Expression, message: str, typed: tuple[fb.Dataset, Path]
) -> None:
    with pytest.raises(fb.SettingError, match=message):
        typed[0].filter(expression)


def test_columns_are_named_by_places_where_none_is_left_out(ds: fb.Dataset, typed: tuple[fb.Dataset, Path]) -> None:
    place = TABLE.schema.get_field_index("n")
    few = ds.remove_columns("tensor")
    assert kept(few, F(place) == 3) == kept(ds, F("n") == 3)
    # Substrait has no durations: places behind one would be those of other columns.
    some = typed[0].select_columns(["took", "u8", "i8"])
    with pytest.raises(fb.SettingError, match="names columns by their places, .*; use their names"):
        some.filter(F(1) == 7)
    assert len(some.filter(F("u8") == 7)) == 1


@pytest.mark.parametrize(
    ("text", "value", "rows"),
    [
        ("hash = $v", 2**64 - 1, [0]),
        ("hash = $v", np.uint64(2**64 - 1), [0]),
        ("hash >= $v", 2**63, [0, 1]),
        ("hash < $v", 2**64, [0, 1]),
        ("hash > $v", -(2**70), [0, 1]),
        ("u8 < $v", 10**45, [0, 1]),
        ("array_has($v, hash)", [2**63, 1], [1]),
        ("array_has($v, hash)", np.array([2**63, 1], np.uint64), [1]),
        ("ns = $v", np.datetime64("2026-01-01", "ns"), [0]),
        ("ns = $v", np.array("2026-01-01", "M8[ns]"), [0]),
        ("array_has($v, ns)", np.array(["2026-01-02"], "M8[ns]"), [1]),
        ("took = $v", np.timedelta64(2000, "ns"), [1]),
        ("ns > $v", pd.Timestamp("2026-01-02") - pd.Timedelta(1, "ns"), [1]),
        ("ns >= $v", pd.Timestamp("2026-01-02") + pd.Timedelta(1, "ns"), []),
        ("ms > $v", pd.Timestamp("2026-01-02", tz="UTC") - pd.Timedelta(1, "ns"), [1]),
        ("ms < $v", pd.Timestamp("2026-01-01T01", tz="Europe/Berlin") + pd.Timedelta(1, "ns"), [0]),
        ("took < $v", pd.Timedelta(1001, "ns"), [0]),
        ("array_has($v, ns)", pd.DatetimeIndex(["2026-01-02"]), [1]),
        ("array_has($v, took)", pd.TimedeltaIndex([2000], "ns"), [1]),
    ],
    ids=str,
)
def test_large_integers_and_nanoseconds_are_parameters(
    text: str, value: Any, rows: list[int], typed: tuple[fb.Dataset, Path]
) -> None:
    ds, _ = typed
    assert [row["row"] for row in ds.filter(text, params={"v": value}).iter()] == rows


def test_large_integers_and_nanoseconds_are_values_of_conditions(typed: tuple[fb.Dataset, Path]) -> None:
    ds, _ = typed
    assert kept(ds, [("hash", "==", 2**64 - 1)]) == kept(ds, [("hash", "in", [2**64 - 1, 5, -1, 2**70])]) == [0]
    assert kept(ds, [("ns", "in", np.array(["2026-01-02"], "M8[ns]"))]) == [1]
    almost = pd.Timestamp("2026-01-02") - pd.Timedelta(1, "ns")
    assert kept(ds, [("ns", "in", [almost])]) == kept(ds, [("ns", "==", almost)]) == []
    assert kept(ds, [("ns", ">", almost)]) == [1]
    fine = pl.Series(np.array(["2026-01-01T00:00:00.000000001", "2026-01-02"], "M8[ns]"))
    for many in (fine, fine.to_arrow(), fine.to_list()[1:]):
        assert kept(ds, [("ns", "in", many)]) == [1]


@pytest.mark.parametrize("value", [10**80, np.datetime64(1, "ps")], ids=str)
def test_values_that_no_type_of_sql_holds_are_refused(value: Any, typed: tuple[fb.Dataset, Path]) -> None:
    with pytest.raises(fb.SettingError, match="params: `v` has no SQL type"):
        typed[0].filter("hash = $v", params={"v": value})


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([], "expected SQL text, a list of conditions"),
        ([("n", "==")], r"expected `\(\"column\", \"==\", value\)`"),
        ([("n", "~", 1)], "with one of the operators"),
        ([("n", ["=="], 1)], "with one of the operators"),
        ([(1, "==", 1)], r"got \(1, '==', 1\)"),
        (["n > 1"], r"got 'n > 1'"),
        ([("n", "==", 1), [("n", "==", 1)]], "not both"),
        ([("n", "==", None)], "nothing equals None"),
        ([("n", "in", [1, None])], "nothing equals None"),
        ([("n", "in", [])], "the list of values is empty"),
        ([("n", "in", 3)], "expected a list of values after `in`"),
        ([("text", "in", "w1")], "expected a list of values after `in`"),
        ([("n", "==", 1j)], "params: `value_0` has no SQL type"),
        (7, 'expected SQL text such as "score > 0.8"'),
    ],
    ids=str,
)
def test_what_is_no_filter_is_refused(filters: Any, message: str, ds: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match=message):
        ds.filter(filters)


def test_a_column_that_is_not_there_is_named(ds: fb.Dataset) -> None:
    with pytest.raises(fb.ColumnNotFoundError, match=r"no column `textt` .*; did you mean `text`"):
        ds.filter([("textt", "==", 1)])
    with pytest.raises(fb.ColumnNotFoundError, match=r"no column `textt` in `\(textt == 1\)`; did you mean `text`\?"):
        ds.filter(F("textt") == 1)
    with pytest.raises(fb.ColumnNotFoundError, match=r"no column `n` in .*; if it was one, filter before you select"):
        ds.select_columns("text").filter(F("n") == 1)
    with pytest.raises(fb.ColumnNotFoundError, match=r"no column `m\.b`"):
        ds.filter([("m.b", "==", 1)])
    with pytest.raises(fb.ColumnNotFoundError, match=r"no column `zzzzzz`") as refused:
        ds.filter([("zzzzzz", "==", "a")])
    assert "quotes" not in str(refused.value)
    with pytest.raises(fb.QueryError):
        ds.filter([("meta.nothing", "==", 1)])


def test_text_has_parameters_too(ds: fb.Dataset) -> None:
    found = ds.filter("text = $text AND n > $n", params={"text": "w1", "n": 1})
    assert found.num_rows == len(kept(ds, [("text", "==", "w1"), ("n", ">", 1)]))
    assert found.filter("n < $n", params={"n": 3}).num_rows < found.num_rows
    copied = pickle.loads(pickle.dumps(found.filter("n < $n", params={"n": 3})))
    assert copied.num_rows == found.filter("n < 3").num_rows
    view = ds.sql("SELECT row, n AS m FROM dataset").filter("m > $n", params={"n": 2})
    assert view.num_rows == ds.filter("n > 2").num_rows


def test_parameters_are_checked(ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match="the parameter `m` is not in it"):
        ds.filter("n > 1", params={"m": 1})
    with pytest.raises(fb.QueryError, match=r"`\$n` has no value"):
        ds.filter("n > $n AND row > $m", params={"m": 1})
    with pytest.raises(fb.SettingError, match="only SQL text has parameters"):
        ds.filter([("n", ">", 1)], params={"n": 1})


def test_states_tell_filters_of_other_values_apart(ds: fb.Dataset) -> None:
    one, other = (ds.filter("n > $n", params={"n": n}).batches(4) for n in (1, 2))
    iterator = iter(one)
    next(iterator)
    with pytest.raises(fb.StateError):
        other.load_state_dict(one.state_dict())
