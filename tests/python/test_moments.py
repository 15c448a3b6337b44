"""Moments that a column of timestamps, dates or times of day cannot hold, in filters and queries, against Python."""

from __future__ import annotations

import datetime as dt
import operator
import zoneinfo
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


def _listed(ds: fb.Dataset, condition: str, **parameters: object) -> list[bool | None]:
    """Returns what a condition is of each row, where it is a column of a query."""
    return pa.table(ds.sql(f"SELECT id, {condition} AS k FROM dataset", params=parameters or None))["k"].to_pylist()


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
        others = [row for row, at in enumerate(TIMES) if not OPERATORS[op](at, time)]
        assert _ids(times, f"NOT (at {op} {literal})", **parameters) == others
        assert _listed(times, f"at {op} {literal}", **parameters) == [OPERATORS[op](at, time) for at in TIMES] + [None]


def test_times_of_day_may_be_bounds_and_in_lists(times):
    assert _ids(times, "at BETWEEN TIME '12:30:00' AND '12:30:00.5'") == [1]
    assert _ids(times, "at NOT BETWEEN '12:29:59.9999' AND TIME '12:30:01'") == [0, 3]
    assert _ids(times, "at IN (TIME '12:30:00', '12:30:00.0000001', '23:59:59')") == [1, 3]
    assert _ids(times, "at NOT IN (TIME '12:30:00.0000001', '00:00:00')") == [1, 2, 3]
    assert _ids(times, "at IS DISTINCT FROM TIME '12:30:00'") == [0, 2, 3, 4]


def test_times_of_day_are_compared_wherever_a_condition_may_stand(times):
    groups = times.query("SELECT at > TIME '12:30:00' AS k, count(*) AS n FROM dataset GROUP BY at > TIME '12:30:00'")
    assert {row["k"]: row["n"] for row in pa.table(groups).to_pylist()} == {True: 2, False: 2, None: 1}
    noon = pa.table({"time": pa.array([dt.time(12, 30), dt.time(12, 30, 0, 1)], pa.time64("ns"))})
    joined = times.sql("SELECT d.id FROM dataset d JOIN noon ON d.at = noon.time", tables={"noon": noon})
    assert pa.table(joined)["id"].to_pylist() == [1]


def test_times_of_day_are_compared_where_their_type_is_asked_for_at_once(times):
    assert _ids(times, "NOT (at IS DISTINCT FROM TIME '12:30:00')") == [1]
    assert _listed(times, "at IS DISTINCT FROM TIME '12:30:00'") == [True, False, True, True, True]
    assert _listed(times, "at IS NOT DISTINCT FROM TIME '12:30:00.0000001'") == [False] * 5
    case = "CASE at WHEN TIME '12:30:00' THEN true WHEN TIME '00:00:00.0000001' THEN true ELSE false END"
    assert _ids(times, case) == [1]
    assert _listed(times, case) == [False, True, False, False, False]
    assert _filtered(times, "coalesce(at, TIME '12:30:00') = TIME '12:30:00'") == [1, 4]
    assert _filtered(times, "nullif(at, TIME '12:30:00') IS NULL") == [1, 4]
    for sought in ([dt.time(12, 30), dt.time(12, 30, 0, 1)], [dt.time(12, 30)]):
        assert _listed(times, "at = ANY($list)", list=sought) == [False, True, False, False, None]
    assert _listed(times, "NOT at = ANY([TIME '12:30:00', TIME '00:00:00'])") == [False, False, True, True, None]


def test_times_of_day_of_two_units_are_compared(tmp_path):
    columns = {"short": pa.array([*TIMES, None], pa.time32("s")), "id": range(len(TIMES) + 1)}
    long = [dt.time(0, 0, 0, 1), dt.time(12, 30), dt.time(12, 30, 0, 999_999), None, dt.time()]
    pq.write_table(pa.table({**columns, "long": pa.array(long, pa.time64("ns"))}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for op, holds in OPERATORS.items():
        expected = [holds(TIMES[row], long[row]) for row in range(3)]
        assert _ids(ds, f"short {op} long") == [row for row in range(3) if expected[row]]
        assert _listed(ds, f"short {op} long") == [*expected, None, None]


def test_moments_are_sought_in_lists_of_any_unit(moments):
    ds, values = moments
    sought = [values[1], values[0] + dt.timedelta(microseconds=1), *FAR, None]
    expected = [row for row, value in enumerate(values) if value in sought]
    assert _ids(ds, "at = ANY($list)", list=sought) == expected
    assert _ids(ds, "at = ANY($list)", list=[values[0].date(), dt.date(9999, 12, 31)]) == [
        row for row, value in enumerate(values) if value in (values[0], FAR[1])
    ]
    others = [row for row in range(len(values)) if row not in expected]
    assert _filtered(ds, "NOT at = ANY($list)", list=sought[:-1]) == others
    assert _filtered(ds, "NOT at = ANY($list)", list=sought) == []
    assert _ids(ds, "at = ANY($list)", list=[]) == []


def _filtered(ds: fb.Dataset, condition: str, **parameters: object) -> list[int]:
    return pa.table(ds.filter(condition, params=parameters or None).select_columns("id"))["id"].to_pylist()


DAYS = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]
MOMENTS = (
    "0001-01-01 00:00:00",
    "1969-12-31 23:59:59.5",
    "2024-02-29 00:00:00",
    "2024-02-29 00:00:00.000001",
    "9999-12-31 00:00:00",
    "9999-12-31 23:59:59.999999",
)


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time())


@pytest.fixture(scope="module", params=[pa.date32(), pa.date64()], ids=str)
def days(request, tmp_path_factory) -> fb.Dataset:
    """Returns rows of a day each, and one that is NULL."""
    column = pa.array([*DAYS, None], request.param)
    path = tmp_path_factory.mktemp("days") / "rows.parquet"
    pq.write_table(pa.table({"day": column, "id": range(len(column))}), path, row_group_size=2)
    return fb.load_dataset(path, split="train")


@pytest.mark.parametrize("text", MOMENTS)
@pytest.mark.parametrize("op", OPERATORS)
def test_a_day_is_compared_with_any_moment(days, text, op):
    moment = dt.datetime.fromisoformat(text)
    for literal in (f"TIMESTAMP '{text}'", f"CAST('{text}' AS TIMESTAMP)", "$moment"):
        parameters = {"moment": moment} if literal == "$moment" else {}
        expected = [OPERATORS[op](_midnight(day), moment) for day in DAYS]
        assert _ids(days, f"day {op} {literal}", **parameters) == [row for row in range(4) if expected[row]]
        assert _ids(days, f"NOT (day {op} {literal})", **parameters) == [row for row in range(4) if not expected[row]]
        assert _listed(days, f"day {op} {literal}", **parameters) == [*expected, None]
        swapped = [row for row in range(4) if OPERATORS[op](moment, _midnight(DAYS[row]))]
        assert _ids(days, f"{literal} {op} day", **parameters) == swapped


def test_moments_may_be_bounds_and_in_lists_of_days(days):
    assert _ids(days, "day BETWEEN TIMESTAMP '1969-12-31 00:00:01' AND TIMESTAMP '9999-12-31'") == [2, 3]
    assert _ids(days, "day NOT BETWEEN '1969-12-31' AND TIMESTAMP '9999-12-30 12:00:00'") == [0, 3]
    assert _ids(days, "day IN (TIMESTAMP '2024-02-29', TIMESTAMP '9999-12-31 00:00:01', DATE '0001-01-01')") == [0, 2]
    assert _ids(days, "day IS DISTINCT FROM TIMESTAMP '2024-02-29'") == [0, 1, 3, 4]
    assert _ids(days, "day IS NOT DISTINCT FROM TIMESTAMP '2024-02-29 12:00:00'") == []
    # Of a zone, the moment in UTC: the evening before.
    abroad = dt.datetime(2024, 2, 29, 0, 30, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert _ids(days, "day < $abroad", abroad=abroad) == [0, 1]


@pytest.mark.parametrize("zone", ["UTC", "+05:30", "Europe/Berlin"])
def test_an_instant_is_the_same_in_every_zone(zone, tmp_path):
    instants = [dt.datetime(2024, 2, 29, hour, tzinfo=dt.UTC) for hour in range(24)]
    column = pa.array([*instants, None], pa.timestamp("us", zone))
    pq.write_table(pa.table({"at": column, "id": range(25)}), tmp_path / "rows.parquet", row_group_size=4)
    ds = fb.load_dataset(tmp_path, split="train")
    for noon in ("2024-02-29 12:00:00Z", "2024-02-29T12:00:00+00:00", "2024-02-29 17:30:00+05:30"):
        for literal in (f"'{noon}'", f"TIMESTAMP '{noon}'", f"TIMESTAMPTZ '{noon}'", f"CAST('{noon}' AS TIMESTAMP)"):
            assert _ids(ds, f"at = {literal}") == [12]
            assert _ids(ds, f"at < {literal} OR {literal} = at") == [*range(13)]
            assert _ids(ds, f"at IN ({literal}, TIMESTAMP '2024-02-29 01:00:00Z')") == [1, 12]
            assert _ids(ds, f"at BETWEEN {literal} AND '2024-02-29 13:00:00Z'") == [12, 13]
            assert _listed(ds, f"at <> {literal}") == [*[row != 12 for row in range(24)], None]
            assert _ids(ds, f"CASE at WHEN {literal} THEN true ELSE false END") == [12]
            if literal.startswith("'"):
                # Text is chosen from as text.
                continue
            assert _ids(ds, f"nullif(at, {literal}) IS NULL") == [12, 24]
            assert _ids(ds, f"coalesce(at, {literal}) = {literal}") == [12, 24]
            assert _ids(ds, f"CASE WHEN at IS NULL THEN {literal} ELSE at END = {literal}") == [12, 24]
            assert _ids(ds, f"greatest(at, {literal}) = {literal}") == [*range(13), 24]
            assert _ids(ds, f"least(at, {literal}) = {literal}") == [*range(12, 25)]
        written = f"TIMESTAMPTZ '{noon}'"
        assert _ids(ds, f"{written} = ANY([at])") == [12]
        assert _ids(ds, f"date_trunc('minute', at) = date_trunc('minute', {written})") == [12]
        both = ds.query(f"SELECT at FROM dataset WHERE id = 12 UNION ALL SELECT {written} AS at")
        assert pa.table(both)["at"].cast(pa.timestamp("us", "UTC")).to_pylist() == [instants[12]] * 2
    assert _ids(ds, "CAST(at AS TIMESTAMPTZ) = at") == [*range(24)]


def test_moments_may_be_chosen_from(moments):
    ds, values = moments
    null, leap = len(values), values.index(NEAR[1])
    written = f"TIMESTAMP '{NEAR[1]}'"
    for end in ENDS if FAR[0] in values else ():
        row = values.index(_midnight(end))
        assert _ids(ds, f"coalesce(at, TIMESTAMP '{end}') = TIMESTAMP '{end}'") == [row, null]
        assert _ids(ds, f"nullif(at, TIMESTAMP '{end}') IS NULL") == [row, null]
        assert _ids(ds, f"CASE at WHEN {written} THEN true WHEN TIMESTAMP '{end}' THEN true END") == sorted([leap, row])
        assert _ids(ds, f"CASE WHEN at IS NULL THEN TIMESTAMP '{end}' ELSE at END <> TIMESTAMP '{end}'") == [
            other for other in range(null) if other != row
        ]
    assert _ids(ds, f"coalesce(at, {written}) = {written}") == [leap, null]
    assert _ids(ds, f"nullif(at, {written}) IS NULL") == [leap, null]
    assert _ids(ds, f"greatest(at, {written}) = {written}") == [*range(leap + 1), null]
    assert _ids(ds, f"least(at, {written}) >= {written}") == [*range(leap, null + 1)]
    chosen = pa.table(ds.sql(f"SELECT coalesce(at, {written}) AS at, nullif(at, {written}) AS other FROM dataset"))
    assert chosen.schema.types == [pa.table(ds).schema.field("at").type] * 2
    assert chosen["at"].null_count == 0
    assert chosen["other"].null_count == 2


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", UNITS)
def test_days_and_moments_of_two_columns_are_compared(unit, zone, tmp_path):
    near = [dt.datetime(1969, 12, 31), dt.datetime(1969, 12, 31, 12), dt.datetime(2024, 2, 28, 23, 59, 59)]
    far = [dt.datetime.fromisoformat(text) for text in MOMENTS] if unit != "ns" else []
    column = pa.array([*near, *far], pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    moments = [*column.cast(pa.timestamp("us")).to_pylist(), None]
    pairs = [(day, moment) for day in [*DAYS, None] for moment in moments]
    at = pa.array([moment for _, moment in pairs], pa.timestamp("us")).cast(pa.timestamp(unit))
    table = {
        "day": pa.array([day for day, _ in pairs], pa.date32()),
        "at": at.cast(pa.timestamp(unit, zone)),
        "id": range(len(pairs)),
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet", row_group_size=10)
    ds = fb.load_dataset(tmp_path, split="train")
    for op, holds in OPERATORS.items():
        expected = [None if None in pair else holds(_midnight(pair[0]), pair[1]) for pair in pairs]
        assert _listed(ds, f"day {op} at") == expected
        assert _ids(ds, f"day {op} at") == [row for row, is_kept in enumerate(expected) if is_kept]
        assert _ids(ds, f"NOT (day {op} at)") == [row for row, is_kept in enumerate(expected) if is_kept is False]
        swapped = [None if None in pair else holds(pair[1], _midnight(pair[0])) for pair in pairs]
        assert _listed(ds, f"at {op} day") == swapped
    distinct = [(day is None) != (at is None) or (day is not None and _midnight(day) != at) for day, at in pairs]
    assert _listed(ds, "day IS DISTINCT FROM at") == distinct
    assert _listed(ds, "at IS NOT DISTINCT FROM day") == [not differ for differ in distinct]


STARTS: dict[str, Callable[[dt.datetime], dt.datetime]] = {
    "minute": lambda at: at.replace(second=0),
    "hour": lambda at: at.replace(minute=0, second=0),
    "day": lambda at: _midnight(at.date()),
    "week": lambda at: _midnight(at.date()) - dt.timedelta(at.weekday()),
    "month": lambda at: _midnight(at.date().replace(day=1)),
    "quarter": lambda at: _midnight(at.date().replace(day=1, month=(at.month - 1) // 3 * 3 + 1)),
    "year": lambda at: _midnight(at.date().replace(day=1, month=1)),
}
SPREAD = [
    dt.datetime(year, 8, 30, 13, 45, 59) for year in (4, 1500, 1676, 1677, 1769, 1969, 2024, 2170, 2262, 2400, 9999)
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_moments_of_any_year_are_truncated_and_binned(unit, zone, tmp_path):
    at = pa.array([*SPREAD, None], pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
    pq.write_table(pa.table({"at": at, "id": range(len(at))}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    zero = dt.datetime(1970, 1, 1)

    def is_computed(call: str, start: Callable[[dt.datetime], dt.datetime]) -> None:
        starts = [start(moment) for moment in SPREAD]
        found = pa.table(ds.sql(f"SELECT {call} AS x FROM dataset"))["x"]
        assert found.type == pa.table(ds).schema.field("at").type
        assert found.cast(pa.timestamp("us")).to_pylist() == [*starts, None], call
        assert _ids(ds, f"{call} < '1800-01-01'") == [row for row, it in enumerate(starts) if it.year < 1800]
        assert _ids(ds, f"{call} IS NULL") == [len(SPREAD)]

    for part, start in STARTS.items():
        is_computed(f"date_trunc('{part}', at)", start)
    for stride in (dt.timedelta(minutes=7), dt.timedelta(days=5)):
        written = f"INTERVAL '{stride.total_seconds():.0f} seconds'"
        is_computed(f"date_bin({written}, at)", lambda moment, stride=stride: moment - (moment - zero) % stride)
    origin = dt.datetime(2000, 1, 1, 6)
    days = dt.timedelta(days=3)
    is_computed(
        f"date_bin(INTERVAL '3 days', at, TIMESTAMP '{origin}')", lambda moment: moment - (moment - origin) % days
    )
    is_computed("date_bin(INTERVAL '1 month', at)", STARTS["month"])
    is_computed("date_bin(INTERVAL '3 months', at)", STARTS["quarter"])


def test_moments_of_any_year_are_truncated_as_clocks_of_the_zone_show_them(tmp_path):
    local = [dt.datetime(year, 7, 15, 13, 45) for year in (1500, 1900, 2024, 2262, 9998)]
    zone = zoneinfo.ZoneInfo("Asia/Kolkata")
    at = pa.array([moment.replace(tzinfo=zone) for moment in local], pa.timestamp("us", "Asia/Kolkata"))
    pq.write_table(pa.table({"at": at, "id": range(len(at))}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for part in ("hour", "day", "month", "year"):
        found = pa.table(ds.sql(f"SELECT date_trunc('{part}', at) AS x FROM dataset"))["x"]
        instants = [it.replace(tzinfo=dt.UTC) for it in found.cast(pa.timestamp("us")).to_pylist()]
        assert instants == [STARTS[part](moment).replace(tzinfo=zone) for moment in local]


def test_what_nanoseconds_cannot_hold_is_an_error_that_says_what_can(tmp_path):
    table = {"at": pa.array([dt.datetime(1677, 10, 1)], pa.timestamp("ns")), "day": [dt.date(9999, 1, 1)], "id": [0]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for call in ("date_bin(INTERVAL '1 year', at)", "date_trunc('year', at)", "CAST(day AS TIMESTAMP)"):
        with pytest.raises(fb.QueryError, match="write `CAST\\(x AS TIMESTAMP\\(6\\)\\)`"):
            list(ds.sql(f"SELECT {call} AS x FROM dataset"))
    far = ds.sql(
        "SELECT date_trunc('year', CAST(at AS TIMESTAMP(6))) AS at, CAST(day AS TIMESTAMP(6)) AS day FROM dataset"
    )
    assert list(far) == [{"at": dt.datetime(1677, 1, 1), "day": dt.datetime(9999, 1, 1)}]
