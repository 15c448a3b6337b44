"""Moments that a column of timestamps or times of day cannot hold, in filters and queries, against Python itself."""

from __future__ import annotations

import datetime as dt
import operator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable

NEAR = [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 30), dt.datetime(2261, 1, 1)]
FAR = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)]
ENDS = (dt.date(1, 1, 1), dt.date(9999, 12, 31))
UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC")
SPELLINGS = ("'{}'", "'{} 00:00:00'", "TIMESTAMP '{}'", "DATE '{}'", "CAST('{}' AS TIMESTAMP)")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.fixture(scope="module", params=[(unit, zone) for unit in UNITS for zone in ZONES], ids=str)
def moments(request, tmp_path_factory) -> tuple[fb.Dataset, list[dt.datetime]]:
    """Returns rows of a moment each, some NULL, and those that are not."""
    unit, zone = request.param
    values = sorted(NEAR + (FAR if unit != "ns" else []))
    column = pa.array([*values, None], pa.timestamp(unit))
    if zone is not None:
        column = column.cast(pa.timestamp(unit, zone))
    path = tmp_path_factory.mktemp("moments") / "rows.parquet"
    pq.write_table(pa.table({"at": column, "id": range(len(column))}), path, row_group_size=2)
    return fb.load_dataset(path, split="train"), values


def _ids(ds: fb.Dataset, condition: str, **parameters: object) -> list[int]:
    """Returns the rows that a filter keeps, which a query keeps, too."""
    params = parameters or None
    kept = pa.table(ds.filter(condition, params=params).select_columns("id"))["id"].to_pylist()
    query = f"SELECT id FROM dataset WHERE {condition}"
    assert pa.table(ds.sql(query, params=params))["id"].to_pylist() == kept
    return kept


def _expected(values: list[dt.datetime], keeps: Callable[[dt.datetime], bool]) -> list[int]:
    return [row for row, value in enumerate(values) if keeps(value)]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("op", OPERATORS)
def test_a_literal_may_be_any_day_of_the_calendar(moments, spelling, op):
    ds, values = moments
    for day in (*ENDS, dt.date(2024, 2, 29)):
        literal, end = spelling.format(day.isoformat()), dt.datetime.combine(day, dt.time())
        assert _ids(ds, f"at {op} {literal}") == _expected(values, lambda at, end=end: OPERATORS[op](at, end))
        assert _ids(ds, f"{literal} {op} at") == _expected(values, lambda at, end=end: OPERATORS[op](end, at))


def test_a_parameter_may_be(moments):
    ds, values = moments
    for end in ENDS:
        moment = dt.datetime.combine(end, dt.time())
        expected = _expected(values, lambda at, moment=moment: at >= moment)
        assert _ids(ds, "at >= $end", end=end) == _ids(ds, "at >= $end", end=moment) == expected


FRACTIONS = (
    "2024-02-29 12:30:00.000001",
    "2024-02-29 12:29:59.9999",
    "1969-12-31 23:59:59.5",
    "9999-12-30 23:59:59.999999",
)


@pytest.mark.parametrize("text", FRACTIONS)
@pytest.mark.parametrize("op", OPERATORS)
def test_a_fraction_of_the_unit_is_not_cut_off(moments, text, op):
    ds, values = moments
    moment = dt.datetime.fromisoformat(text)
    expected = _expected(values, lambda at: OPERATORS[op](at, moment))
    for literal in (f"'{text}'", f"TIMESTAMP '{text}'", "$moment"):
        parameters = {"moment": moment} if literal == "$moment" else {}
        assert _ids(ds, f"at {op} {literal}", **parameters) == expected
        assert _ids(ds, f"NOT (at {op} {literal})", **parameters) == _expected(
            values, lambda at: not OPERATORS[op](at, moment)
        )


def test_bounds_and_lists_may_be(moments):
    ds, values = moments
    leap = dt.datetime(2024, 2, 29, 12, 30)
    assert _ids(ds, "at BETWEEN '0001-01-01' AND '9999-12-31'") == _expected(values, lambda _: True)
    assert _ids(ds, "at BETWEEN '2024-02-29 12:30:00.0000001' AND '9999-12-30'") == _expected(
        values, lambda at: leap < at < FAR[1]
    )
    assert _ids(ds, "at NOT BETWEEN '0001-01-01' AND '2024-02-29 12:30:00'") == _expected(values, lambda at: at > leap)
    assert _ids(ds, "at IN ('9999-12-31', '2024-02-29 12:30:00')") == _expected(values, lambda at: at in (leap, FAR[1]))
    assert _ids(ds, "at NOT IN ('9999-12-31', '0001-01-01')") == _expected(values, lambda at: at not in FAR)
    assert _ids(ds, "at NOT IN ('9999-12-31', NULL)") == []
    assert _ids(ds, "at IN ('2024-02-29 12:30:00.0000001', '2024-02-29 12:30:00')") == _expected(
        values, lambda at: at == leap
    )
    many = ", ".join(f"'2024-02-29 12:30:00.0000001{number:02}'" for number in range(100)) + ", '2024-02-29 12:30:00'"
    many += (
        "".join(f", '9999-{month:02}-{day:02}'" for month in range(1, 13) for day in range(1, 29)) + ", '9999-12-31'"
    )
    assert _ids(ds, f"at IN ({many})") == _expected(values, lambda at: at in (leap, FAR[1]))
    assert _ids(ds, "at IS DISTINCT FROM '2024-02-29 12:30:00.0000001'") == list(range(len(values) + 1))
    assert _ids(ds, "at IS NOT DISTINCT FROM '9999-12-31'") == _expected(values, lambda at: at == FAR[1])


def test_what_is_no_day_is_refused(moments):
    ds, _ = moments
    with pytest.raises(fb.QueryError, match="9999-13-31"):
        ds.filter("at < '9999-13-31'")


TIMES = [dt.time(), dt.time(12, 30), dt.time(12, 30, 1), dt.time(23, 59, 59)]


@pytest.fixture(scope="module", params=[pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def times(request, tmp_path_factory) -> fb.Dataset:
    """Returns rows of a time of day each, and one that is NULL."""
    column = pa.array([*TIMES, None], request.param)
    path = tmp_path_factory.mktemp("times") / "rows.parquet"
    pq.write_table(pa.table({"at": column, "id": range(len(column))}), path, row_group_size=2)
    return fb.load_dataset(path, split="train")


@pytest.mark.parametrize("text", ["12:30:00", "12:30:00.000001", "12:30:00.9995", "00:00:00", "23:59:59.999999"])
@pytest.mark.parametrize("op", OPERATORS)
def test_times_of_day_are_compared_as_they_are(times, text, op):
    time = dt.time.fromisoformat(text)
    for literal in (f"'{text}'", f"TIME '{text}'", f"CAST('{text}' AS TIME)", "$time"):
        parameters = {"time": time} if literal == "$time" else {}
        expected = [row for row, at in enumerate(TIMES) if OPERATORS[op](at, time)]
        assert _ids(times, f"at {op} {literal}", **parameters) == expected
        swapped = [row for row, at in enumerate(TIMES) if OPERATORS[op](time, at)]
        assert _ids(times, f"{literal} {op} at", **parameters) == swapped


def test_times_of_day_may_be_bounds_and_in_lists(times):
    assert _ids(times, "at BETWEEN TIME '12:30:00' AND '12:30:00.5'") == [1]
    assert _ids(times, "at NOT BETWEEN '12:29:59.9999' AND TIME '12:30:01'") == [0, 3]
    assert _ids(times, "at IN (TIME '12:30:00', '12:30:00.0000001', '23:59:59')") == [1, 3]
    assert _ids(times, "at NOT IN (TIME '12:30:00.0000001', '00:00:00')") == [1, 2, 3]
    assert _ids(times, "at IS DISTINCT FROM TIME '12:30:00'") == [0, 2, 3, 4]
