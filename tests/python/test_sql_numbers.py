"""Numbers in SQL are compared as they are written and summed up exactly, and there is one NaN and one zero."""

from __future__ import annotations

import decimal
import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAN = float("nan")
INF = float("inf")
NEGATIVE_NAN = -np.float64(NAN)
"""Of another bit pattern: what `0.0 / 0.0` is on most machines."""


def dataset(folder: Path, columns: dict[str, Any], *, row_group_size: int = 1 << 20) -> fb.Dataset:
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=row_group_size)
    return fb.load_dataset(folder, split="train")


def ids_of(rows: Any) -> list[int]:
    return pa.table(rows)["id"].to_pylist()


def rows_of(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pa.table(rows).to_pylist()]


def decimals(*values: str | None) -> list[decimal.Decimal | None]:
    return [None if value is None else decimal.Decimal(value) for value in values]


def column(kind: pa.DataType, *values: str | None) -> pa.Array:
    return pa.array(decimals(*values), kind)


# Values that are one double, or next to the bounds of their type.
EXACT = {
    "d": column(pa.decimal128(20, 2), "1234567890123456.12", "1234567890123456.13", None, "-0.01", "1.00"),
    "wide": column(pa.decimal128(38, 10), "1" * 28 + ".5", "1.5", None, "-" + "9" * 28, "1.5000000001"),
    "long": column(pa.decimal128(38, 0), "12345678901234567890123", "12345678901234567890124", None, "0", "-1"),
    "huge": column(pa.decimal256(76, 3), "9" * 73 + ".999", "9" * 73 + ".998", None, "1.005", "-1"),
    "i": pa.array([2**53, 2**53 + 1, None, -(2**63), 2**63 - 1], pa.int64()),
    "u": pa.array([2**64 - 1, 2**64 - 2, None, 0, 2**53 + 1], pa.uint64()),
    "tiny": pa.array([-128, 127, None, 0, 1], pa.int8()),
}
LITERALS = {
    "d": [
        "1234567890123456.12",
        "1234567890123456.125",
        "-0.005",
        "1",
        "1.0",
        "1e20",
        "-1e400",
        "0.9999999999999999999",
    ],
    "wide": ["1.5", "1" * 28 + ".5", "1.50000000005", "-" + "9" * 28 + ".1", "0"],
    "long": ["12345678901234567890123", "12345678901234567890123.5", "-0.5", "9" * 50],
    "huge": ["9" * 73 + ".999", "9" * 73 + ".9985", "1.005", "1e76", "-1"],
    "i": ["9007199254740993.0", "9007199254740992.5", "-9223372036854775809", "9223372036854775808", "1.5", "1e30"],
    "u": ["18446744073709551616", "18446744073709551615", "18446744073709551614.5", "-1", "-0.5", "9007199254740993.0"],
    "tiny": ["127.5", "128", "-128.5", "0.0", "0.5", "-1e-400"],
}
OPERATORS = {
    "=": lambda value, literal: value == literal,
    "<>": lambda value, literal: value != literal,
    "<": lambda value, literal: value < literal,
    "<=": lambda value, literal: value <= literal,
    ">": lambda value, literal: value > literal,
    ">=": lambda value, literal: value >= literal,
}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    # Of one row each, so that statistics decide all.
    return dataset(tmp_path_factory.mktemp("exact"), {"id": range(5), **EXACT}, row_group_size=1)


@pytest.mark.parametrize(("name", "literal"), [(name, literal) for name in LITERALS for literal in LITERALS[name]])
def test_what_is_written_is_compared(exact: fb.Dataset, name: str, literal: str) -> None:
    values = [None if value is None else decimal.Decimal(value) for value in EXACT[name].to_pylist()]
    number = decimal.Decimal(literal)
    hidden = f"CASE WHEN id >= 0 THEN {name} END"  # from statistics
    for op, holds in OPERATORS.items():
        expected = [i for i, value in enumerate(values) if value is not None and holds(value, number)]
        others = [i for i, value in enumerate(values) if value is not None and i not in expected]
        for sql in (f"{name} {op} {literal}", f"{name} {op} ({literal})", f"{hidden} {op} {literal}"):
            assert ids_of(exact.filter(sql)) == expected, sql
            assert ids_of(exact.filter(f"NOT ({sql})")) == others, sql
            assert ids_of(exact.sql(f"SELECT id FROM dataset WHERE {sql}")) == expected, sql
            assert ids_of(exact.query(f"SELECT id FROM dataset WHERE {sql} ORDER BY id")) == expected, sql
    swapped = [i for i, value in enumerate(values) if value is not None and value > number]
    assert ids_of(exact.filter(f"{literal} < {name}")) == swapped
    equal = [i for i, value in enumerate(values) if value == number]
    assert ids_of(exact.filter(f"{name} IN ({literal}, 77)")) == equal
    assert ids_of(exact.filter(f"{name} NOT IN ({literal})")) == [i for i in (0, 1, 3, 4) if i not in equal]
    assert ids_of(exact.filter(f"{name} IS NOT DISTINCT FROM {literal}")) == equal
    assert ids_of(exact.filter(f"{name} BETWEEN {literal} AND {literal}")) == equal
    assert ids_of(exact.filter(f"CASE {name} WHEN {literal} THEN true ELSE false END")) == equal


def test_a_number_is_as_exact_as_its_decimal_parameter_its_text_and_its_cast(exact: fb.Dataset) -> None:
    literal = "1234567890123456.13"
    for sql, params in (
        (f"d = {literal}::DECIMAL(20, 2)", None),
        (f"d = CAST({literal} AS DECIMAL(38, 5))", None),
        (f"d = '{literal}'", None),
        ("d = $v", {"v": decimal.Decimal(literal)}),
        (f"d IN (77, {literal})", None),
    ):
        assert ids_of(exact.filter(sql, params=params)) == [1], sql
    # A double is the number that it is printed as, and a large integer what it is.
    assert ids_of(exact.filter("wide > $v", params={"v": 1.5})) == [0, 4]
    assert ids_of(exact.filter("i = $v", params={"v": 9007199254740992.0})) == [0]
    assert ids_of(exact.filter("i IN ($v, 7.0)", params={"v": -(2.0**63)})) == [3]
    assert ids_of(exact.filter("u >= $v", params={"v": 2.0**64})) == []
    assert ids_of(exact.filter("i < $v", params={"v": 2.0**63})) == [0, 1, 3, 4]
    assert ids_of(exact.filter("i < $v", params={"v": INF})) == [0, 1, 3, 4]
    assert ids_of(exact.filter("d < $v", params={"v": decimal.Decimal("1.005")})) == [3, 4]


@pytest.mark.parametrize(
    "numbers",
    [
        [1, 0, -1],
        [2**64 - 1, 0, 1],
        [2**64, 2**53 + 1, 1],
        [1.0, 0.5, 2.0**53],
        [INF, -INF, float("nan"), 2.0**53],
        [decimal.Decimal("1234567890123456.13"), decimal.Decimal("1.0"), decimal.Decimal("0.005")],
        [None, 1],
    ],
    ids=str,
)
@pytest.mark.parametrize("name", LITERALS)
def test_a_list_is_sought_in_number_by_number(exact: fb.Dataset, name: str, numbers: list[Any]) -> None:
    def kept(sql: str, params: dict[str, Any]) -> list[int]:
        assert ids_of(exact.sql(f"SELECT id FROM dataset WHERE {sql}", params=params)) == ids_of(
            exact.filter(sql, params=params)
        )
        return ids_of(exact.filter(sql, params=params))

    one_by_one = [kept(f"{name} = $v", {"v": number}) for number in numbers]
    expected = sorted({row for rows in one_by_one for row in rows})
    assert kept(f"{name} = ANY($v)", {"v": numbers}) == expected
    each = {f"v{i}": number for i, number in enumerate(numbers)}
    assert kept(f"{name} IN ({', '.join(f'${v}' for v in each)})", each) == expected


@pytest.mark.parametrize(("name", "number", "row"), [("d", 1.0, 4), ("i", 2.0**53, 0), ("u", 0.0, 3)])
def test_a_condition_that_is_a_column_seeks_in_lists_of_another_type(
    exact: fb.Dataset, name: str, number: float, row: int
) -> None:
    text = f"SELECT {name} = ANY($v) AS found, NOT {name} = ANY($v) AS missed FROM dataset"
    made = pa.table(exact.sql(text, params={"v": [number, 0.5]}))
    expected = [None if index == 2 else index == row for index in range(5)]
    assert made["found"].to_pylist() == expected
    assert made["missed"].to_pylist() == [None if found is None else not found for found in expected]


def test_a_value_that_is_not_in_a_list_with_null_is_unknown(tmp_path: Path) -> None:
    lists = [[1, None], [2], [], None, [None], [2, 3]]
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int32())):
        ds = dataset(tmp_path, {"id": range(6), "l": pa.array(lists, kind)}, row_group_size=4)
        assert ids_of(ds.filter("1 = ANY(l)")) == [0]
        assert ids_of(ds.filter("NOT 1 = ANY(l)")) == [1, 2, 5]
        assert ids_of(ds.filter("(2 = ANY(l)) IS NULL")) == [0, 3, 4]
        told = [True, False, False, None, None, False]
        assert pa.table(ds.sql("SELECT 1 = ANY(l) AS k FROM dataset"))["k"].to_pylist() == told
    pairs = pa.array([[1, None], [2, 3], None], pa.list_(pa.int32(), 2))
    ds = dataset(tmp_path, {"id": range(3), "l": pairs})
    assert pa.table(ds.sql("SELECT 2 = ANY(l) AS k FROM dataset"))["k"].to_pylist() == [None, True, None]


def test_decimals_are_compared_with_floats_that_are_no_decimals(tmp_path: Path) -> None:
    floats = [NAN, INF, -INF, 1.5, 1.25, None]
    price = decimals("1.50", "1.50", "1.50", "1.50", "1.50", "1.50")
    for kind in (pa.float64(), pa.float32()):
        ds = dataset(tmp_path, {"id": range(6), "d": pa.array(price, pa.decimal128(9, 2)), "f": pa.array(floats, kind)})
        for condition, expected in {
            "d < f": [0, 1],
            "f <= d": [2, 3, 4],
            "d = f": [3],
            "d <> f": [0, 1, 2, 4],
            "d BETWEEN f AND 2": [2, 3, 4],
            "d BETWEEN 1 AND f": [0, 1, 3],
            "d IS DISTINCT FROM f": [0, 1, 2, 4, 5],
        }.items():
            assert ids_of(ds.filter(condition)) == expected, condition
            assert ids_of(ds.sql(f"SELECT id FROM dataset WHERE {condition}")) == expected, condition
            listed = pa.table(ds.sql(f"SELECT id FROM (SELECT id, {condition} AS k FROM dataset) WHERE k"))
            assert ids_of(listed) == expected, condition


def test_a_comparison_with_another_number_is_decided_by_statistics(exact: fb.Dataset) -> None:
    for sql, kept in (("tiny > 0.5", 2), ("d >= 1234567890123456.125", 1), ("u < 18446744073709551614.5", 3)):
        facts = exact.filter(sql).explain()
        assert facts["rows_kept"] == kept, sql
        assert facts["selection_bytes"] == 0, sql


def test_numbers_that_are_not_compared_stay_doubles(exact: fb.Dataset) -> None:
    computed = exact.sql("SELECT tiny * 0.5, 0.12345678901234567890 AS p, tiny > 0.5 FROM dataset WHERE id = 1")
    assert computed.schema.types == [pa.float64(), pa.float64(), pa.bool_()]
    assert computed.column_names == ["tiny * 0.5", "p", "tiny > 0.5"]
    assert rows_of(computed) == [(63.5, 0.12345678901234568, True)]
    side = {"v": [0.12345678901234567890]}
    joined = exact.query("SELECT v FROM s WHERE v = 0.12345678901234567890", tables={"s": side})
    assert len(rows_of(joined)) == 1


def test_digits_may_be_grouped(exact: fb.Dataset) -> None:
    for written, number in (("1_000", 1000), ("1_0.5_0", 10.5), ("1_0e2", 1000.0), ("-1_2_3", -123)):
        assert rows_of(exact.sql(f"SELECT {written} AS x FROM dataset WHERE id < 1_0 - 9")) == [(number,)], written
    for wrong in ("12abc", "1__000", "1000_", "1_000x", "1e", "2024_x"):
        for use in (lambda: exact.sql(f"SELECT {wrong} FROM dataset"), lambda: exact.filter(f"id < {wrong}")):  # noqa: B023
            with pytest.raises(fb.QueryError, match=f"`{wrong}` at line 1, column .* is not a number"):
                use()
    assert exact.sql('SELECT id "2024_x", 1"y" FROM dataset').column_names == ["2024_x", "y"]


def test_numbers_are_exact_wherever_a_query_compares_them(exact: fb.Dataset) -> None:
    side = {"k": decimals("1234567890123456.12", "1234567890123456.13"), "v": ["a", "b"]}
    literal = "1234567890123456.12"
    for sql in (
        f"SELECT v FROM dataset JOIN s ON d = k AND k > {literal}",
        f"SELECT v FROM s WHERE k IN (SELECT d FROM dataset WHERE d > {literal})",
        f"SELECT v FROM s GROUP BY v HAVING max(k) > {literal}",
        f"SELECT v FROM (SELECT v, k > {literal} AS later FROM s) WHERE later",
        f"SELECT v FROM s QUALIFY max(k) OVER (PARTITION BY v) > {literal}",
    ):
        assert rows_of(exact.query(sql, tables={"s": side})) == [("b",)], sql


OVERFLOWING = {
    "all": "SELECT sum({x}) AS s FROM dataset",
    "groups": "SELECT id, sum({x}) AS s FROM dataset GROUP BY ROLLUP (id)",
    "filtered": "SELECT sum({x}) FILTER (WHERE id >= 0) AS s FROM dataset",
    "distinct": "SELECT sum(DISTINCT {x}) AS s FROM dataset",
    "window": "SELECT id, sum({x}) OVER () AS s FROM dataset",
    "running": "SELECT id, sum({x}) OVER (ORDER BY id) AS s FROM dataset",
    "frame": "SELECT id, sum({x}) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s FROM dataset",
    "having": "SELECT id % 1 AS g FROM dataset GROUP BY g HAVING sum({x}) > 0",
    "subquery": "SELECT id FROM dataset WHERE id < (SELECT sum({x}) FROM dataset)",
}


@pytest.mark.parametrize("where", OVERFLOWING)
@pytest.mark.parametrize("name", ["high", "low", "unsigned"])
def test_a_sum_that_does_not_fit_is_an_error(tmp_path: Path, where: str, name: str) -> None:
    columns = {
        "id": range(3),
        "high": [2**62, 2**62 + 1, 2**62 + 2],
        "low": [-(2**62), -(2**62) - 1, -(2**62) - 2],
        "unsigned": pa.array([2**63, 2**63 + 1, 2**63 + 2], pa.uint64()),
    }
    sql = OVERFLOWING[where].format(x=name)
    with pytest.raises(fb.QueryError, match=r"Overflow happened on: sum of U?Int64; cast to a wider type"):
        list(dataset(tmp_path, columns).query(sql))


def test_a_filter_by_a_sum_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": range(3), "x": [2**62] * 3})
    with pytest.raises(fb.QueryError, match="Overflow happened on: sum of Int64"):
        ids_of(ds.sql("SELECT id FROM dataset QUALIFY sum(x) OVER () > 0"))
    wide = ds.sql("SELECT id FROM dataset QUALIFY sum(CAST(x AS DECIMAL(38, 0))) OVER () > 0")
    assert ids_of(wide) == [0, 1, 2]


def test_sums_that_fit_are_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values, groups = rng.integers(-(2**54), 2**54, 400).tolist(), rng.integers(0, 7, 400).tolist()
    columns = {
        "id": range(400),
        "g": groups,
        "x": values,
        "small": pa.array(rng.integers(-128, 128, 400), pa.int8()),
        "price": column(pa.decimal128(9, 2), *(f"{i}.25" for i in range(400))),
        "empty": pa.array([None] * 400, pa.int64()),
    }
    ds = dataset(tmp_path, columns)
    table = pa.table(ds.query("SELECT sum(small) AS a, sum(price) AS b, sum(empty) AS c, sum(id) AS d FROM dataset"))
    assert table.schema.types == [pa.int64(), pa.decimal128(19, 2), pa.int64(), pa.int64()]
    sums = [sum(columns[name].to_pylist()) for name in ("small", "price")]
    assert rows_of(table) == [(*sums, None, sum(range(400)))]
    by_group = [(g, sum(x for x, of in zip(values, groups, strict=True) if of == g)) for g in sorted(set(groups))]
    assert rows_of(ds.query("SELECT g, sum(x) AS s FROM dataset GROUP BY g ORDER BY g")) == by_group
    windowed = ds.sql("SELECT id, sum(x) OVER (PARTITION BY g) AS s FROM dataset")
    assert rows_of(windowed) == [(i, dict(by_group)[g]) for i, g in enumerate(groups)]
    pairs = ds.sql("SELECT id, sum(x) OVER (ORDER BY id ROWS 1 PRECEDING) AS s FROM dataset ORDER BY id")
    assert rows_of(pairs) == [(i, sum(values[max(i - 1, 0) : i + 1])) for i in range(400)]
    # It goes beyond 64 bits and comes back.
    up_and_down = ds.query("SELECT sum(v) AS s FROM t", tables={"t": {"v": [2**62] * 3 + [-(2**62)] * 3}})
    assert rows_of(up_and_down) == [(0,)]


def test_sums_of_decimals_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": range(3), "d": column(pa.decimal128(38, 0), *["9" * 38] * 3)})
    with pytest.raises(fb.QueryError, match=r"Overflow happened on: sum of Decimal128\(38, 0\)"):
        list(ds.query("SELECT sum(d) AS s FROM dataset"))
    assert rows_of(ds.query("SELECT sum(d) AS s FROM dataset WHERE id = 0")) == [(decimal.Decimal("9" * 38),)]


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_durations_are_summed_and_averaged_exactly(tmp_path: Path, unit: Any) -> None:
    ticks = [2**62, 2**62 - 1, -5, -2, 2**62, -(2**62), None]
    columns = {"id": range(7), "g": [0, 0, 1, 1, 0, 0, 2], "d": pa.array(ticks, pa.duration(unit))}
    ds = dataset(tmp_path, columns)

    def expected(values: list[int | None]) -> tuple[int | None, int | None]:
        given = [x for x in values if x is not None]
        total = sum(given)
        return (total, int(math.copysign(1, total)) * (abs(total) // len(given))) if given else (None, None)

    def found(sql: str) -> list[tuple[Any, ...]]:
        table = pa.table(ds.query(sql))
        assert table.schema.field("s").type == table.schema.field("m").type == pa.duration(unit)
        return list(zip(*(table[name].cast(pa.int64()).to_pylist() for name in ("s", "m")), strict=True))

    both = "sum({x}d){over} AS s, avg({x}d){over} AS m"
    whole, distinct = both.format(x="", over=""), both.format(x="DISTINCT ", over="")
    assert found(f"SELECT {whole} FROM dataset") == [expected(ticks)]
    assert found(f"SELECT {distinct} FROM dataset") == [expected(list(set(ticks)))]
    groups = [ticks[:2] + ticks[4:6], ticks[2:4], ticks[6:]]
    assert found(f"SELECT g, {whole} FROM dataset GROUP BY g ORDER BY g") == [expected(rows) for rows in groups]
    windowed = both.format(x="", over=" OVER (ORDER BY id ROWS 1 PRECEDING)")
    pairs = [expected(ticks[max(i - 1, 0) : i + 1]) for i in range(7)]
    assert found(f"SELECT id, {windowed} FROM dataset ORDER BY id") == pairs
    means = f"SELECT g, CAST(m AS BIGINT) AS m FROM (SELECT g, {whole} FROM dataset GROUP BY g)"
    assert rows_of(ds.query(f"SELECT g FROM ({means}) WHERE m = -3")) == [(1,)]
    with pytest.raises(fb.QueryError, match="Overflow happened on: sum of Int64"):
        list(ds.query("SELECT sum(d) AS s FROM dataset WHERE id IN (0, 1, 4)"))


def test_decimals_of_the_widest_type_are_summed_beyond_it(tmp_path: Path) -> None:
    most = 10**76 - 1
    values = [most] * 6 + [-most] * 6 + [5, 6]
    ds = dataset(tmp_path, {"id": range(14), "d": column(pa.decimal256(76, 0), *map(str, values))})

    def found(select: str, rest: str = "") -> list[tuple[Any, ...]]:
        return rows_of(ds.query(f"SELECT {select} FROM dataset {rest}"))

    assert found("sum(d) AS s, avg(d) AS m") == [(11, decimal.Decimal("0.7857"))]
    assert found("sum(DISTINCT d) AS s") == [(11,)]
    assert found("avg(DISTINCT d) AS m") == [(decimal.Decimal("2.75"),)]
    assert found("sum(DISTINCT d) AS s, avg(d) AS m, count(DISTINCT id) AS n") == [(11, decimal.Decimal("0.7857"), 14)]
    assert found("sum(d) AS s", "WHERE id > 14") == [(None,)]
    assert found("id % 2 AS k, sum(d) AS s", "GROUP BY id % 2 ORDER BY k") == [(0, 5), (1, 6)]
    sliding = found("sum(d) OVER (ORDER BY id ROWS 1 PRECEDING) AS s", "WHERE id IN (5, 6, 12, 13) ORDER BY id")
    assert sliding == [(most,), (0,), (decimal.Decimal(5 - most),), (11,)]
    distinct = found("sum(DISTINCT d) OVER (ORDER BY id ROWS 2 PRECEDING) AS s", "WHERE id > 8 ORDER BY id")
    assert distinct == [(-most,), (-most,), (-most,), (decimal.Decimal(5 - most),), (decimal.Decimal(11 - most),)]
    for rows in ("id < 2", "id < 6"):
        with pytest.raises(fb.QueryError, match=r"a sum of Decimal256\(76, 0\) has more than 76 digits"):
            list(ds.query(f"SELECT sum(d) AS s FROM dataset WHERE {rows}"))
    with pytest.raises(fb.QueryError, match=r"a mean of Decimal256\(76, 0\) has more than 76 digits"):
        list(ds.query("SELECT avg(d) AS m FROM dataset WHERE id < 6"))


def test_means_of_small_decimals_have_room_for_their_digits(tmp_path: Path) -> None:
    numbers = ("1000.00", "2000.00", "3001.00", None)
    columns = {"p": column(pa.decimal32(9, 2), *numbers), "q": column(pa.decimal64(18, 2), *numbers)}
    ds = dataset(tmp_path, {"id": range(4), **columns})
    table = pa.table(ds.query("SELECT avg(p) AS p, avg(q) AS q, avg(DISTINCT p) AS d FROM dataset"))
    assert table.schema.types == [pa.decimal128(13, 6), pa.decimal128(22, 6), pa.decimal128(13, 6)]
    assert rows_of(table) == [(decimal.Decimal("2000.333333"),) * 3]
    for name in columns:
        pairs = ds.query(f"SELECT avg({name}) OVER (ORDER BY id ROWS 1 PRECEDING) AS m FROM dataset ORDER BY id")
        assert rows_of(pairs) == [(decimal.Decimal(mean),) for mean in ("1000", "1500", "2500.5", "3001")]
        for condition, ids in {"> 1000": [1, 2], "< 5000": [0, 1, 2], "= 3001.0": [2], "IS NULL": [3]}.items():
            having = f"SELECT id FROM dataset GROUP BY id HAVING avg({name}) {condition} ORDER BY id"
            assert ids_of(ds.query(having)) == ids, having


EXTREMES = {
    "infinities": [INF, INF],
    "negative infinities": [-INF, -INF],
    "a NaN last": [1.0, NAN],
    "a NaN first": [NAN, 1.0, -1.0],
    "a NaN between": [-1.0, NAN, 1.0],
    "a negative NaN": [1.0, float(NEGATIVE_NAN)],
    "only NaN": [NAN, float(NEGATIVE_NAN)],
    "only NULL": [None, None],
    "zeros": [-0.0, 0.0],
    "numbers": [1.5, -2.5, None, 0.5],
}


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
@pytest.mark.parametrize("sign", ["", "-"])
def test_extremes_of_floats_are_those_of_the_order(tmp_path: Path, kind: pa.DataType, sign: str) -> None:
    groups = [name for name, values in EXTREMES.items() for _ in values]
    values = [value for values in EXTREMES.values() for value in values]
    floats = pa.array([None if x is None else np.float16(x) if kind == pa.float16() else x for x in values], kind)
    ds = dataset(tmp_path, {"id": range(len(values)), "g": groups, "f": floats})

    def key(value: float) -> tuple[bool, float]:
        return (math.isnan(value), value)

    def extremes(values: list[float | None]) -> tuple[float | None, float | None]:
        given = [-x if sign else x for x in values if x is not None]
        return (min(given, key=key), max(given, key=key)) if given else (None, None)

    expected = {name: extremes(values) for name, values in EXTREMES.items()}
    over = "OVER (PARTITION BY g)"
    of = f"min({sign}f){{over}} AS low, max({sign}f){{over}} AS high"
    grouped = f"SELECT g, {of.format(over='')} FROM dataset GROUP BY g"
    windowed = f"SELECT g, {of.format(over=' ' + over)} FROM dataset"
    for sql in (grouped, windowed):
        for name, low, high in rows_of(ds.query(sql)):
            assert repr((low, high)) == repr(expected[name]) or (low, high) == expected[name], (sql, name)
    whole = ds.query(f"SELECT {of.format(over='')} FROM dataset")
    assert repr(rows_of(whole)) == repr([extremes(values)])


STATISTICS: dict[str, Callable[[list[float]], float | None]] = {
    "sum": lambda rows: math.fsum(rows) if rows else None,
    "avg": lambda rows: statistics.fmean(rows) if rows else None,
    "var_pop": lambda rows: statistics.pvariance(rows) if rows else None,
    "var_samp": lambda rows: statistics.variance(rows) if len(rows) > 1 else None,
    "stddev_pop": lambda rows: statistics.pstdev(rows) if rows else None,
    "stddev": lambda rows: statistics.stdev(rows) if len(rows) > 1 else None,
}


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int64()])
@pytest.mark.parametrize(
    ("frame", "bounds"),
    [
        ("ROWS BETWEEN 3 PRECEDING AND CURRENT ROW", lambda i: (i - 3, i + 1)),
        ("ROWS BETWEEN 5 PRECEDING AND 2 PRECEDING", lambda i: (i - 5, i - 1)),
        ("ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING", lambda i: (i + 1, 40)),
        ("RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING", lambda i: (i - 2, i + 2)),
    ],
)
def test_frames_that_slide_have_the_statistics_of_their_rows(
    tmp_path: Path, kind: pa.DataType, frame: str, bounds: Callable[[int], tuple[int, int]]
) -> None:
    rng = np.random.default_rng(5)
    values: list[float | None] = rng.integers(-1000, 1000, 40).tolist()
    values[3] = values[17] = None
    ds = dataset(tmp_path, {"id": range(40), "x": pa.array(values, kind)})
    for name, statistic in STATISTICS.items():
        call = f"{name}(x) FILTER (WHERE id % 5 <> 0) OVER (ORDER BY id {frame})"
        for i, found in rows_of(ds.sql(f"SELECT id, {call} AS s FROM dataset ORDER BY id")):
            start, stop = bounds(i)
            rows = [values[j] for j in range(max(start, 0), min(max(stop, 0), 40)) if j % 5]
            expected = statistic([x for x in rows if x is not None])
            assert found == (None if expected is None else pytest.approx(expected, rel=1e-12, abs=1e-9)), (name, i)


def test_what_is_not_finite_leaves_a_frame(tmp_path: Path) -> None:
    values = [1.0, NAN, 2.0, INF, -INF, 3.0, 1e300, 0.25, 0.5, 0.75]
    ds = dataset(tmp_path, {"id": range(10), "f": values})
    over = "OVER (ORDER BY id ROWS 1 PRECEDING)"
    found = rows_of(ds.sql(f"SELECT id, sum(f) {over} AS s, avg(f) {over} AS m, var_pop(f) {over} AS v FROM dataset"))
    expected = [sum(values[max(i - 1, 0) : i + 1]) for i in range(10)]
    assert repr([s for _, s, _, _ in found]) == repr(expected)
    assert repr([m for _, _, m, _ in found]) == repr([x / min(i + 1, 2) for i, x in enumerate(expected)])
    assert [v for *_, v in found][-2:] == [0.125**2, 0.125**2]
    kept = f"SELECT id FROM dataset QUALIFY avg(f) {over} < 1.0"
    assert ids_of(ds.sql(kept)) == [5, 8, 9]


PAIR_STATISTICS: dict[str, Callable[[list[float], list[float]], float]] = {
    "covar_samp": statistics.covariance,
    "covar_pop": lambda y, x: statistics.covariance(y, x) * (len(y) - 1) / len(y),
    "corr": statistics.correlation,
    "regr_slope": lambda y, x: statistics.linear_regression(x, y).slope,
    "regr_intercept": lambda y, x: statistics.linear_regression(x, y).intercept,
    "regr_r2": lambda y, x: statistics.correlation(y, x) ** 2,
    "regr_avgx": lambda _, x: statistics.fmean(x),
    "regr_avgy": lambda y, _: statistics.fmean(y),
    "regr_sxx": lambda _, x: statistics.pvariance(x) * len(x),
    "regr_syy": lambda y, _: statistics.pvariance(y) * len(y),
    "regr_sxy": lambda y, x: statistics.covariance(y, x) * (len(y) - 1),
    "regr_count": lambda y, _: len(y),
}


@pytest.mark.parametrize("name", PAIR_STATISTICS)
def test_pairs_leave_a_frame(tmp_path: Path, name: str) -> None:
    ys = [1e17, NAN, 1.0, 2.0, 4.0, 9.0, None, 3.0, 5.0, 7.0]
    xs = [1.0, 2.0, 3.0, 5.0, 8.0, 2.0, 4.0, None, 1.0, 6.0]
    ds = dataset(tmp_path, {"id": range(10), "y": ys, "x": xs})
    sql = f"SELECT id, {name}(y, x) OVER (ORDER BY id ROWS 3 PRECEDING) AS s FROM dataset ORDER BY id"
    for i, found in rows_of(ds.query(sql))[5:]:
        rows = zip(ys[i - 3 : i + 1], xs[i - 3 : i + 1], strict=True)
        pairs = [(y, x) for y, x in rows if y is not None and x is not None]
        expected = PAIR_STATISTICS[name]([y for y, _ in pairs], [x for _, x in pairs])
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12), i


def test_different_integers_of_a_frame_are_summed_exactly(tmp_path: Path) -> None:
    values = [2**62, 2**62, -(2**62), 5, 5, 7, 2**62, 2**62 + 1]
    ds = dataset(tmp_path, {"id": range(8), "x": values, "small": pa.array(range(8), pa.uint8())})
    over = "OVER (ORDER BY id ROWS 2 PRECEDING)"
    found = ds.sql(f"SELECT id, sum(DISTINCT x) {over} AS s, sum(DISTINCT small) {over} AS t FROM dataset WHERE id < 7")
    expected = [sum(set(values[max(i - 2, 0) : i + 1])) for i in range(7)]
    assert rows_of(found) == [(i, s, sum(range(max(i - 2, 0), i + 1))) for i, s in enumerate(expected)]
    with pytest.raises(fb.QueryError, match=r"Overflow happened on: sum of Int64"):
        list(ds.query(f"SELECT sum(DISTINCT x) {over} AS s FROM dataset"))


SIGNED = "SELECT id, -f AS g FROM dataset"


def test_computed_floats_are_compared_like_read_ones(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": [0, 1, 2], "f": [NAN, 1.0, -1.0]})
    assert ids_of(ds.sql(SIGNED).filter("g >= 0.0")) == [0, 2]
    assert ids_of(ds.sql(f"SELECT id FROM ({SIGNED}) WHERE g >= 0.0")) == [0, 2]
    assert ids_of(ds.sql(f"SELECT id FROM ({SIGNED}) ORDER BY g")) == [1, 2, 0]
    assert math.isnan(rows_of(ds.query("SELECT max(-f) AS m FROM dataset"))[0][0])
    assert ids_of(ds.filter("greatest(-f, 0.5) > 1.0")) == [0]


def test_results_of_aggregates_are_compared_like_read_floats(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": range(4), "g": [0, 0, 1, 1], "f": [INF, -INF, 1.0, 2.0]})
    for function in ("sum", "avg", "var_pop", "stddev"):
        having = ds.query(f"SELECT g FROM dataset GROUP BY g HAVING {function}(f) > 100.0")
        assert rows_of(having) == [(0,)], function
        kept = ds.sql(f"SELECT id FROM dataset QUALIFY {function}(f) OVER (PARTITION BY g) > 100.0")
        assert ids_of(kept) == [0, 1], function


def test_zeros_are_equal_wherever_they_are_compared(tmp_path: Path) -> None:
    zeros = {"id": [0, 1, 2], "f": [0.0, -0.0, 1.0], "s": [{"f": 0.0}, {"f": -0.0}, {"f": 1.0}]}
    zeros |= {"l": [[0.0], [-0.0], [1.0]], "t": ["0", "-0.0", "1"]}
    ds = dataset(tmp_path, zeros)
    for sql in (
        "CASE -f WHEN 0.0 THEN true ELSE false END",
        "nullif(-f, 0.0) IS NULL",
        "coalesce(-f, 1.0) = 0.0",
        "-f IN (0.0, 7.0)",
        "array_has(l, 0.0)",
        "array_has(make_array(-f), 0.0)",
        "l = [0.0]",
        "-(l[1]) = 0.0",
        "s['f'] = 0.0",
        "-(s['f']) BETWEEN 0.0 AND 0.5",
        "CAST(t AS DOUBLE) >= 0.0 AND CAST(t AS DOUBLE) < 0.5",
        "CAST(f * -1e-300 AS REAL) >= 0.0",
        "round(f * -0.25) = 0.0 AND f < 0.5",
        "1.0 / (f * -1.0) > 5.0",
    ):
        expected = [0, 1, 2] if "-1e-300" in sql else [0, 1]
        assert ids_of(ds.filter(sql)) == expected, sql
        assert ids_of(ds.sql(f"SELECT id FROM dataset WHERE {sql}")) == expected, sql
    for key in ("f", "-f", "s['f']", "l", "s", "f * -1.0"):
        assert ids_of(ds.sql(f"SELECT DISTINCT ON ({key}) id FROM dataset")) == [0, 2], key
        assert len(rows_of(ds.query(f"SELECT {key} AS k, count(*) AS n FROM dataset GROUP BY {key}"))) == 2, key
        assert len(rows_of(ds.query(f"SELECT DISTINCT {key} AS k FROM dataset"))) == 2, key
    grouped = rows_of(ds.query("SELECT f * 2.0 AS k, count(*) AS n FROM dataset GROUP BY ROLLUP (f * 2.0) ORDER BY n"))
    assert grouped == [(2.0, 1), (0.0, 2), (None, 3)]
    assert rows_of(ds.query("SELECT count(DISTINCT -f) AS n, count(DISTINCT l) AS m FROM dataset")) == [(2, 2)]


@pytest.mark.parametrize("part", ["s['f']", "s['g']['h']", "l[1]", "s['l'][-1]", "s['g']", "CAST(s['f'] AS REAL)"])
def test_fields_and_items_keep_the_sign_of_zero_as_columns_do(tmp_path: Path, part: str) -> None:
    values = [-0.0, 0.0, -1.5]
    structs = [{"f": value, "g": {"h": value}, "l": [1.0, value]} for value in values]
    ds = dataset(tmp_path, {"id": [0, 1, 2], "s": structs, "l": [[value] for value in values]})
    ours = ds.sql(f"SELECT id, {part} AS x FROM dataset")
    assert str([row["x"] for row in ours]) == str([{"h": value} if part == "s['g']" else value for value in values])
    if part != "s['g']":
        assert ids_of(ours.filter("x = 0.0")) == ids_of(ours.filter("x >= 0.0")) == [0, 1]
        assert str([row["y"] for row in ours.sql("SELECT x * 2.0 AS y FROM dataset")]) == "[0.0, 0.0, -3.0]"


@pytest.mark.parametrize("part", ["f", "s['f']", "l[1]"])
def test_text_of_zero_has_no_sign(tmp_path: Path, part: str) -> None:
    values = [-0.0, 0.0, -1.5]
    ds = dataset(tmp_path, {"id": [0, 1, 2], "f": values, "s": [{"f": f} for f in values], "l": [[f] for f in values]})
    texts = ["0.0", "0.0", "-1.5"]
    for cast in (f"CAST({part} AS VARCHAR)", f"arrow_cast({part}, 'LargeUtf8')", f"{part} || ''"):
        ours = ds.sql(f"SELECT id, {cast} AS x FROM dataset")
        assert [row["x"] for row in ours] == texts
        assert ids_of(ours.filter("x = '0.0'")) == ids_of(ds.filter(f"{cast} = '0.0'")) == [0, 1]
        assert rows_of(ours.query("SELECT x, count(*) AS n FROM dataset GROUP BY x ORDER BY n")) == [
            ("-1.5", 1),
            ("0.0", 2),
        ]
    lists = ds.sql("SELECT id, arrow_cast(l, 'List(Utf8)') AS x FROM dataset")
    assert [row["x"] for row in lists] == [[text] for text in texts]


def test_floats_of_other_tables_are_compared_like_those_of_the_dataset(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": [0, 1, 2], "f": [NAN, 0.0, 7.0]})
    side = {"k": np.array([NEGATIVE_NAN, -0.0]), "n": [1, 2], "l": [[float(NEGATIVE_NAN)], [-0.0]]}
    found = {
        "SELECT id FROM dataset WHERE f IN (SELECT k FROM s)": [0, 1],
        "SELECT id FROM dataset WHERE f NOT IN (SELECT k FROM s)": [2],
        "SELECT id FROM dataset d WHERE EXISTS (SELECT 1 FROM s WHERE s.k = d.f)": [0, 1],
        "SELECT id FROM dataset JOIN s ON f = k": [0, 1],
        "SELECT id FROM dataset JOIN s ON f = -k AND n > 0": [0, 1],
        "SELECT id FROM dataset JOIN s ON [f] = l": [0, 1],
        "SELECT id FROM dataset WHERE f >= (SELECT max(k) FROM s)": [0],
    }
    for sql, expected in found.items():
        assert ids_of(ds.sql(sql, tables={"s": side})) == expected, sql
    for sets, num_rows in (("INTERSECT", 2), ("EXCEPT", 1), ("UNION", 3)):
        sql = f"SELECT f FROM dataset {sets} SELECT k FROM s"
        assert len(rows_of(ds.query(sql, tables={"s": side}))) == num_rows, sql
    assert ids_of(ds.filter("f = $v", params={"v": float(NEGATIVE_NAN)})) == [0]
    assert ids_of(ds.filter("f = $v", params={"v": -0.0})) == [1]


def test_a_ratio_of_zeros_is_a_nan(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": [0, 1, 2, 3], "a": [0.0, 1.0, 1.0, -1.0], "b": [0.0, 2.0, 1.0, 0.0]})
    ratios = ds.sql("SELECT id, a / b AS q FROM dataset")
    assert ids_of(ratios.filter("q > 0.6")) == [0, 2]
    assert ids_of(ratios.sql("SELECT id FROM dataset ORDER BY q DESC LIMIT 2")) == [0, 2]
    assert ids_of(ds.filter("a / b > 0.6")) == [0, 2]


def test_what_is_computed_of_columns_without_null_has_none(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": range(8), "f": [0.5] * 8})
    batch = next(
        iter(ds.sql("SELECT id + 1 AS i, -f / 2 AS f, sqrt(f) AS r FROM dataset").to_torch(8, rank=0, world_size=1))
    )
    assert not isinstance(batch["i"], fb.Masked)
    assert not isinstance(batch["f"], fb.Masked)


def test_columns_are_read_as_they_are_stored(tmp_path: Path) -> None:
    ds = dataset(tmp_path, {"id": [0, 1], "f": [-0.0, 1.0], "l": [[-0.0], [1.0]]})
    (first, _) = rows_of(ds.sql("SELECT f, l FROM dataset WHERE f < 7 ORDER BY id"))
    assert (math.copysign(1, first[0]), math.copysign(1, first[1][0])) == (-1, -1)
