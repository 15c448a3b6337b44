"""What a condition on a constant keeps is what it keeps on a column of that value, where nothing is simplified."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")

TEXTS = [
    *("", "a", "ab", "abc", "b", r"\frac", "frac", r"a\b", "a%b", "a_b", "a.b", "ab\n", "\nab", "AB", "ß", "é", "🦀"),
    *("\u212a", "100%", "(a)", "a|b", "^a", "a$", "\\", "\\\\", "%", "_", "aXb", None),
]
PATTERNS = [
    *("", ".*", ".", "^", "$", "^$", "a", "^a", "b$", "^ab$", "a.b", r"a\.b", r"\\", r"\\frac", r"^\\", r"\\$", "a|b"),
    *("^(a|b|ab|abc|_)$", "%", "_", "^a%", "k", "a|^b", "[ab]", "(?i)ab", r"^\\frac$", r"\x5c", "^a|b$", "()", "^🦀"),
]
LIKES = [
    "",
    "%",
    "_",
    "a%",
    "%b",
    "%a%",
    r"\%",
    r"%\_%",
    r"\\",
    r"%\\%",
    r"\frac%",
    "_%",
    "__",
    "_🦀",
    "k",
    "%\n",
    "100\\%",
]

MOMENTS = [
    *(dt.datetime(1677, 9, 22), dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(1970, 1, 1)),
    *(dt.datetime(2023, 12, 31, 23, 59, 59), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 1)),
    *(dt.datetime(2024, 10, 27, 1, 30), dt.datetime(2262, 4, 11), None),
]
INSTANTS = [
    dt.datetime(2024, 1, 1),
    dt.datetime(2024, 1, 1, 0, 0, 0, 500),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_500),
    dt.datetime(2024, 10, 27, 1, 30),
]


@dataclass(frozen=True)
class Case:
    """Conditions on a column `x` and a constant `{k}`."""

    x: pa.Array
    constants: pa.Array
    conditions: Sequence[str]


def stamps(moments: list[Any], unit: str, zone: str | None) -> pa.Array:
    """Returns instants in UTC, or what clocks there show."""
    naive = pa.array(moments, pa.timestamp("us"))
    return (
        naive.cast(pa.timestamp(unit), safe=False)
        .cast(pa.timestamp(unit, zone and "UTC"))
        .cast(pa.timestamp(unit, zone))
    )


def compared(left: str) -> list[str]:
    return [f"{left} {operator} {{k}}" for operator in COMPARISONS]


def of_times(unit: str, zone: str | None, constant_unit: str, constant_zone: str | None) -> Case:
    casts = ["CAST(x AS TIMESTAMP) < {k}", "CAST(x AS TIMESTAMP) = {k}", "CAST(x AS DATE) = CAST({k} AS DATE)"]
    arrow = [f"arrow_cast(x, 'Timestamp({of})') >= {{k}}" for of in ("Millisecond, None", 'Nanosecond, "UTC"')]
    lists = ["x IN ({k}, {k})", "x NOT IN ({k})", "x BETWEEN {k} AND {k}"]
    conditions = [*compared("x"), *casts, *arrow, *lists]
    return Case(stamps(MOMENTS, unit, zone), stamps(INSTANTS, constant_unit, constant_zone), conditions)


NUMBERS = pa.array([-128, -1, 0, 1, 2, 5, 127, None], pa.int32())
DECIMALS = pa.array([Decimal(x) for x in ("-0.01", "0.00", "1.00", "2.25", "300.00")], pa.decimal128(10, 2))

CASES: dict[str, Callable[[], Case]] = {
    "regular expressions": lambda: Case(
        pa.array(TEXTS),
        pa.array(PATTERNS),
        [
            "x ~ {k}",
            "x !~ {k}",
            "x ~* {k}",
            "x !~* {k}",
            "regexp_like(x, {k})",
            "regexp_like(x, {k}, 'i')",
            "x ~ concat('', {k})",
        ],
    ),
    "patterns": lambda: Case(
        pa.array(TEXTS),
        pa.array(LIKES),
        [
            *(
                "x LIKE {k}",
                "x NOT LIKE {k}",
                "x ILIKE {k}",
                "starts_with(x, {k})",
                "ends_with(x, {k})",
                "contains(x, {k})",
            ),
            *("x || {k} = {k}", "array_has(['a', 'ab', 'b', 'zz', {k}], x)", "x NOT IN ({k}, NULL)", "{k} LIKE x"),
        ],
    ),
    "years": lambda: Case(
        stamps(MOMENTS, "ns", None),
        pa.array([1500, 1677, 1970, 2024, 2261, 2262, 9999]),
        [
            *compared("date_part('year', x)"),
            *("date_part('year', x) NOT IN ({k}, 1)", "extract(year FROM x) BETWEEN 1900 AND {k}"),
        ],
    ),
    "years in a zone": lambda: Case(
        stamps(MOMENTS, "us", "Europe/Berlin"), pa.array([1970, 2024, 2262]), compared("date_part('year', x)")
    ),
    "coarse times": lambda: of_times("s", None, "ms", None),
    "coarse times, fine constants": lambda: of_times("ms", None, "us", None),
    "fine times": lambda: of_times("ns", None, "us", None),
    "instants": lambda: of_times("ms", "UTC", "us", "+02:00"),
    "instants in zones": lambda: of_times("us", "+02:00", "us", "Europe/Berlin"),
    "times and instants": lambda: of_times("us", None, "us", "+02:00"),
    "coarse times and instants": lambda: of_times("ms", None, "us", "Europe/Berlin"),
    "instants and times": lambda: of_times("ms", "UTC", "us", None),
    "integers": lambda: Case(
        NUMBERS,
        pa.array([0, 1, 127, 128, 2**31, -1]),
        [
            *compared("x"),
            *compared("arrow_cast(x, 'Int8')"),
            *(
                "power(x, 1) = {k}",
                "x NOT IN ({k}, NULL)",
                "array_has([1, NULL, {k}], x)",
                "x * 1 = {k}",
                "x BETWEEN {k} AND 100",
            ),
        ],
    ),
    "decimals": lambda: Case(
        DECIMALS,
        pa.array([Decimal(x) for x in ("2.2501", "2.0000", "1.0000")], pa.decimal128(20, 4)),
        [*compared("x"), *compared("floor(x)"), *compared("arrow_cast(x, 'Int64')")],
    ),
}


def kept(dataset: fb.Dataset, condition: str, params: dict[str, Any]) -> list[int]:
    return pa.table(dataset.filter(condition, params=params))["id"].to_pylist()


@pytest.mark.parametrize("name", CASES)
def test_constants_are_as_good_as_columns(tmp_path: Path, name: str) -> None:
    case = CASES[name]()
    num_rows = len(case.x)
    for number, constant in enumerate(case.constants):
        columns = {"id": pa.array(range(num_rows)), "x": case.x, "k": pa.repeat(constant, num_rows)}
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=2)
        ds = fb.load_dataset(path, split="train")
        on_column = [condition.replace("{k}", "k") for condition in case.conditions]
        as_columns = ", ".join(f"({condition}) AS c{i}" for i, condition in enumerate(on_column))
        truths = pa.table(ds.query(f"SELECT {as_columns} FROM dataset ORDER BY id"))
        params = {"k": constant}
        for condition, truth in zip(case.conditions, truths.columns, strict=True):
            said = condition.replace("{k}", "$k")
            expected = truth.to_pylist()
            assert pa.table(ds.sql(f"SELECT {said} AS c FROM dataset", params=params))["c"].to_pylist() == expected, (
                said
            )
            assert kept(ds, said, params) == [i for i, is_true in enumerate(expected) if is_true], (said, constant)
            assert kept(ds, f"NOT ({said})", params) == [i for i, is_true in enumerate(expected) if is_true is False], (
                said
            )


def test_constant_times_may_be_computed(tmp_path: Path) -> None:
    times = pa.array([dt.datetime(2024, 1, 1, 23, 59, 59, 999_000), dt.datetime(2024, 1, 2)], pa.timestamp("ms"))
    columns = {"id": [0, 1], "t": times, "seconds": [1704067200, 1704067201], "label": ["cat", "dog"]}
    pq.write_table(pa.table(columns), tmp_path / "times.parquet", row_group_size=1)
    ds = fb.load_dataset(tmp_path / "times.parquet", split="train")
    for condition, expected in {
        "t < TIMESTAMP '2024-01-02' - INTERVAL '1 microsecond'": [0],
        "t >= TIMESTAMP '2024-01-03' - INTERVAL '1 day'": [1],
        "t >= to_timestamp('2024-01-02T00:00:00.0005')": [],
        "CAST(t AS TIMESTAMP) = TIMESTAMP '2024-01-02 00:00:00.0000005'": [],
        "CAST(t AS TIMESTAMP) = TIMESTAMP '2024-01-02'": [1],
        "CAST(seconds AS TIMESTAMP) < TIMESTAMP '2024-01-01 00:00:00.5'": [0],
        "CAST(seconds AS TIMESTAMP) >= TIMESTAMP '2024-01-01 00:00:00.5'": [1],
        "label = 'c' || 'at'": [0],
        "NOT (label ~ '^(ant|bee|cat|cow|fly)$' AND label ~ '^(ape|bat|cow|dog|eel)$')": [0, 1],
    }.items():
        assert kept(ds, condition, {}) == expected, condition
    # Statistics decide as before.
    assert ds.filter("t >= TIMESTAMP '2024-01-03' - INTERVAL '1 day'").explain()["row_groups_pruned"] == 1


def test_instants_are_one_however_they_are_written(tmp_path: Path) -> None:
    times = pa.array([dt.datetime(2024, 1, 1, hour) for hour in (11, 12)], pa.timestamp("us"))
    pq.write_table(pa.table({"id": [0, 1], "t": times}), tmp_path / "times.parquet")
    ds = fb.load_dataset(tmp_path / "times.parquet", split="train")
    offset = dt.timezone(dt.timedelta(hours=1))
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=offset)
    for zone in ("UTC", "+01:00", "Europe/Berlin", "America/New_York"):
        instant = pa.scalar(noon, pa.timestamp("us", zone))
        for condition in ("t = $noon", "$noon = t", "t IN ($noon)", "t BETWEEN $noon AND $noon", "t <= $noon"):
            assert kept(ds, condition, {"noon": instant}) == [0], (zone, condition)
    assert kept(ds, "t = '2024-01-01 12:00:00+01:00'", {}) == [0]
    assert kept(ds, "t = TIMESTAMP '2024-01-01 12:00:00+01:00'", {}) == [0]
