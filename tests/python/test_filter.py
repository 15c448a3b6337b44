"""`filter` keeps the rows that SQL keeps: those of DuckDB, and of pyarrow where its rules are the same."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from programs import run_python

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 3000
ROW_GROUP_ROWS = 250
PREDICATES = 320
PREDICATES_PER_TEST = 20

LANGUAGES = ["de", "en", "fr", "日本語", "", "DE", "d%e", "it's", "zz"]
TAGS = ["a", "b", "ü", ""]


def awkward_table(num_rows: int, seed: int) -> pa.Table:
    """Rows with everything that makes two engines disagree."""
    rng = random.Random(seed)

    def column(kind: pa.DataType, value, null_fraction: float = 0.12) -> pa.Array:
        return pa.array([None if rng.random() < null_fraction else value() for _ in range(num_rows)], kind)

    negative_nan = np.copysign(np.nan, -1.0)
    specials = [np.nan, negative_nan, -0.0, 0.0, np.inf, -np.inf]

    def number() -> float:
        return rng.choice(specials) if rng.random() < 0.3 else round(rng.gauss(0, 2) * 8) / 8

    def integer(*limits: int) -> int:
        return rng.choice(limits) if rng.random() < 0.3 else rng.randint(0 if limits[0] == 0 else -50, 50)

    def words() -> list[str | None]:
        return [rng.choice([*TAGS, None]) for _ in range(rng.randint(0, 3))]

    return pa.table(
        {
            "id": pa.array(range(num_rows), pa.int64()),
            "sorted": pa.array([i // 10 - 50 for i in range(num_rows)], pa.int32()),
            "flag": column(pa.bool_(), lambda: rng.random() < 0.5),
            "small": column(pa.int8(), lambda: integer(-128, 127)),
            "big": column(pa.int64(), lambda: integer(-(2**63), 2**63 - 1, 2**53 + 1)),
            "ubig": column(pa.uint64(), lambda: integer(0, 2**64 - 1, 2**63)),
            "score": column(pa.float64(), number),
            "ratio": column(pa.float32(), number),
            "plain": column(pa.float64(), lambda: round(rng.gauss(0, 2) * 4) / 4),
            "lang": column(pa.string(), lambda: rng.choice(LANGUAGES)),
            "text": column(pa.large_string(), lambda: f"{rng.choice(LANGUAGES)} {rng.randint(0, 30)}"),
            "day": column(pa.date32(), lambda: dt.date(2020, 1, 1) + dt.timedelta(days=rng.randint(-900, 900))),
            "moment": column(
                pa.timestamp("us"), lambda: dt.datetime(2020, 1, 1) + dt.timedelta(hours=rng.randint(-9999, 9999))
            ),
            "price": column(pa.decimal128(12, 2), lambda: decimal.Decimal(rng.randint(-999, 999)).scaleb(-2)),
            "meta": column(
                pa.struct({"lang": pa.string(), "rank": pa.int32()}),
                lambda: {"lang": rng.choice([*LANGUAGES, None]), "rank": rng.choice([None, 1, 2, 3, 2**31 - 1])},
            ),
            "tags": column(pa.list_(pa.string()), words),
            "Case": column(pa.int32(), lambda: rng.randint(0, 5)),
        }
    )


class Layout(NamedTuple):
    """One way of writing the table."""

    sort_by: str | None
    statistics: bool
    page_index: bool


LAYOUTS = {
    "as it comes": Layout(None, True, True),
    "sorted by score": Layout("score", True, False),
    "sorted by lang": Layout("lang", True, True),
    "sorted by day": Layout("day", True, False),
    "without statistics": Layout(None, False, False),
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return awkward_table(NUM_ROWS, seed=1)


@pytest.fixture(scope="module")
def folders(table, tmp_path_factory) -> dict[str, Path]:
    """The table in every layout, as two objects each."""
    found = {}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        folder = tmp_path_factory.mktemp(f"layout{number}")
        rows = table if layout.sort_by is None else table.sort_by(layout.sort_by)
        for part, first in enumerate((0, NUM_ROWS // 2)):
            pq.write_table(
                rows.slice(first, NUM_ROWS // 2),
                folder / f"part-{part}.parquet",
                row_group_size=ROW_GROUP_ROWS,
                write_statistics=layout.statistics,
                write_page_index=layout.page_index,
            )
        found[name] = folder
    return found


@pytest.fixture(scope="module")
def datasets(folders) -> dict[str, fb.Dataset]:
    return {name: fb.load_dataset(folder, split="train") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def duck(folders) -> duckdb.DuckDBPyConnection:
    """The same files in DuckDB, loaded first, so that no statistics have a say."""
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE rows AS FROM read_parquet('{folders['as it comes']}/*.parquet')")
    return connection


def ids_of(ds: fb.Dataset, sql: str) -> list[int]:
    return sorted(pa.table(ds.filter(sql).select_columns("id"))["id"].to_pylist())


def ids_in_duckdb(duck: duckdb.DuckDBPyConnection, sql: str) -> list[int]:
    return [row[0] for row in duck.execute(f"SELECT id FROM rows WHERE {sql} ORDER BY id").fetchall()]


class Predicate(NamedTuple):
    """A predicate in SQL, and in pyarrow where the rules are the same."""

    sql: str
    arrow: pc.Expression | None


class Generator:
    """Makes predicates from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        # A third is all of what pyarrow can be asked.
        others = [self.nested, self.floats, self.texts, self.times, self.others]
        self.leaves = [self.shared] if seed % 3 == 0 else [self.shared, *others]

    def predicate(self, depth: int = 3) -> Predicate:
        kind = self.rng.random()
        if depth == 0 or kind < 0.35:
            return self.rng.choice(self.leaves)()
        if kind < 0.5:
            inner = self.predicate(depth - 1)
            return Predicate(f"NOT ({inner.sql})", None if inner.arrow is None else ~inner.arrow)
        left, right = self.predicate(depth - 1), self.predicate(depth - 1)
        is_and = self.rng.random() < 0.5
        arrow = None
        if left.arrow is not None and right.arrow is not None:
            arrow = left.arrow & right.arrow if is_and else left.arrow | right.arrow
        return Predicate(f"({left.sql}) {'AND' if is_and else 'OR'} ({right.sql})", arrow)

    def comparison(self) -> str:
        return self.rng.choice(["=", "<>", "!=", "<", "<=", ">", ">="])

    def shared(self) -> Predicate:
        """Comparisons that mean the same in pyarrow."""
        rng = self.rng
        day = dt.date(2020, 1, 1) + dt.timedelta(days=rng.randint(-950, 950))
        name, sql_value, value = rng.choice(
            [
                ("small", *2 * (rng.choice([-128, 127, 0, rng.randint(-50, 50)]),)),
                ("big", *2 * (rng.choice([-(2**63) + 1, 2**63 - 1, 2**53, 0, rng.randint(-50, 50)]),)),
                ("sorted", *2 * (rng.randint(-60, 260),)),
                ("plain", *2 * (rng.randint(-16, 16) / 4,)),
                ("lang", *self.quoted(rng.choice([*LANGUAGES, "absent"]))),
                ("text", *self.quoted(rng.choice(["de 1", "zz", "", "日本語 3"]))),
                ("day", f"DATE '{day}'", day),
            ]
        )
        field = pc.field(name)
        if rng.random() < 0.15:
            return Predicate(f"{name} IS NULL", field.is_null())
        if rng.random() < 0.15:
            return Predicate(f"{name} IS NOT NULL", field.is_valid())
        op = self.comparison()
        column_type = {"small": pa.int8(), "big": pa.int64(), "sorted": pa.int32(), "plain": pa.float64()}.get(name)
        scalar = pa.scalar(value, column_type) if column_type else pa.scalar(value)
        if name == "text":
            scalar = pa.scalar(value, pa.large_string())
        functions = {"=": "equal", "<>": "not_equal", "!=": "not_equal", "<": "less", "<=": "less_equal"}
        functions |= {">": "greater", ">=": "greater_equal"}
        return Predicate(f"{name} {op} {sql_value}", getattr(pc, functions[op])(field, scalar))

    def quoted(self, text: str) -> tuple[str, str]:
        return "'" + text.replace("'", "''") + "'", text

    def floats(self) -> Predicate:
        rng = self.rng
        name = rng.choice(["score", "ratio"])
        kind = "DOUBLE" if name == "score" else "REAL"
        value = rng.choice(
            [f"CAST('{special}' AS {kind})" for special in ("NaN", "inf", "-inf")]
            + ["0.0", "-0.0", "0", "0.5", "-1.5", "2"]
        )
        choices = [
            f"{name} {self.comparison()} {value}",
            f"{value} {self.comparison()} {name}",
            f"{name} BETWEEN {value} AND 1.5",
            f"{name} NOT BETWEEN -1.5 AND {value}",
            f"{name} IN ({value}, 1.5, 0)",
            f"{name} NOT IN ({value}, 0.25)",
            f"isnan({name})",
            f"{name} = {name}",
            f"score {self.comparison()} ratio",
            f"score {self.comparison()} small",
            f"plain {self.comparison()} score",
            f"{name} IS DISTINCT FROM {value}",
            f"{name} IS NOT DISTINCT FROM {value}",
            f"-{name} {self.comparison()} {value}",
            f"abs({name}) {self.comparison()} {value}",
            f"{name} * 2 {self.comparison()} {value}",
            f"{name} + small {self.comparison()} 0.5",
            f"coalesce({name}, 1.5) {self.comparison()} {value}",
        ]
        return Predicate(rng.choice(choices), None)

    def texts(self) -> Predicate:
        rng = self.rng
        name = rng.choice(["lang", "text", "meta['lang']", "meta.lang"])
        word, _ = self.quoted(rng.choice([*LANGUAGES, "d", "語"]))
        choices = [
            f"{name} {self.comparison()} {word}",
            f"{name} LIKE {rng.choice(['d%', '%e', '_e', '%', '', '%本%', 'D%', '% 1%'])!r}",
            f"{name} NOT LIKE 'd%'",
            f"{name} ILIKE 'd%'",
            f"{name} IN ({word}, 'en', '')",
            f"{name} IN ({word}, NULL)",
            f"{name} NOT IN ({word}, NULL)",
            f"{name} NOT IN ({word}, 'fr')",
            f"length({name}) {self.comparison()} {rng.randint(0, 5)}",
            f"upper({name}) = 'DE'",
            f"lower({name}) = 'de'",
            f"starts_with({name}, 'd')",
            f"substr({name}, 1, 1) = 'd'",
            f"{name} || '!' = 'de!'",
            f"lang {self.comparison()} meta['lang']",
            f"coalesce({name}, 'none') = 'none'",
            f"nullif({name}, '') IS NULL",
            f"{name} IS NOT DISTINCT FROM {word}",
            f"{name} BETWEEN 'de' AND {word}",
            f"trim({name}) = {word}",
            f"concat({name}, lang) = 'dede'",
        ]
        return Predicate(rng.choice(choices), None)

    def times(self) -> Predicate:
        rng = self.rng
        day = f"DATE '{dt.date(2020, 1, 1) + dt.timedelta(days=rng.randint(-950, 950))}'"
        instant = f"TIMESTAMP '{dt.datetime(2020, 1, 1) + dt.timedelta(hours=rng.randint(-9999, 9999))}'"
        choices = [
            f"moment {self.comparison()} {instant}",
            f"day {self.comparison()} {day}",
            f"moment {self.comparison()} {day}",
            f"day {self.comparison()} {instant}",
            f"moment BETWEEN {instant} AND TIMESTAMP '2021-01-01 00:00:00'",
            f"extract(year FROM day) {self.comparison()} {rng.randint(2017, 2023)}",
            f"extract(month FROM moment) IN ({rng.randint(1, 12)}, 7)",
            f"date_part('hour', moment) < {rng.randint(0, 24)}",
            f"date_trunc('month', moment) = TIMESTAMP '2020-{rng.randint(1, 12):02}-01 00:00:00'",
            f"day + INTERVAL '{rng.randint(1, 400)} days' > {day}",
            f"CAST(moment AS DATE) {self.comparison()} day",
            f"day IN ({day}, DATE '2020-02-29')",
            "day = '2020-02-29'",
            "moment > '2020-02-29 12:00:00'",
        ]
        return Predicate(rng.choice(choices), None)

    def nested(self) -> Predicate:
        rng = self.rng
        choices = [
            f"meta['rank'] {self.comparison()} {rng.choice([0, 1, 2, 2**31 - 1])}",
            f"meta.rank {self.comparison()} 2",
            f"meta['lang'] = '{rng.choice(['de', '', '日本語'])}'",
            "meta IS NULL",
            "meta IS NOT NULL AND meta['rank'] IS NULL",
            f"tags[{rng.randint(1, 4)}] = '{rng.choice(TAGS)}'",
            f"tags[{rng.randint(1, 4)}] IS NULL",
            f"array_length(tags) {self.comparison()} {rng.randint(0, 3)}",
            f"array_has(tags, '{rng.choice(TAGS)}')",
            "tags IS NULL",
        ]
        return Predicate(rng.choice(choices), None)

    def others(self) -> Predicate:
        rng = self.rng
        cents = rng.randint(-1000, 1000) / 100
        choices = [
            "flag",
            "NOT flag",
            "flag IS TRUE",
            "flag IS NOT TRUE",
            "flag IS FALSE",
            "flag IS NOT FALSE",
            f"flag = {rng.choice(['true', 'false', 'NULL'])}",
            "flag AND NULL",
            "flag OR NULL",
            f"flag = (small > {rng.randint(-20, 20)})",
            f"price {self.comparison()} {cents:.2f}",
            f"price BETWEEN {cents:.2f} AND 5",
            f"price * 2 {self.comparison()} {cents:.2f}",
            f"price {self.comparison()} small",
            f"ubig {self.comparison()} {rng.choice([2**64 - 1, 2**63, 0, 7])}",
            f"big {self.comparison()} ubig",
            f"big {self.comparison()} small",
            f"small {self.comparison()} {rng.choice([1000, -1000, 128, 127.5])}",
            f"small % 7 = {rng.randint(-3, 3)}",
            f"small + sorted {self.comparison()} {rng.randint(-50, 200)}",
            f"sorted BETWEEN {rng.randint(-60, 100)} AND {rng.randint(0, 260)}",
            f"small IN ({rng.randint(-50, 50)}, {rng.randint(-50, 50)}, 127)",
            f"small NOT IN ({rng.randint(-50, 50)}, NULL)",
            f"small NOT IN ({rng.randint(-50, 50)}, 127)",
            "small = NULL",
            "small IS DISTINCT FROM 127",
            f"CASE WHEN flag THEN small > {rng.randint(-20, 20)} ELSE lang = 'de' END",
            "CASE WHEN small > 0 THEN true END",
            f"CAST(id AS VARCHAR) LIKE '{rng.randint(1, 9)}%'",
            f'"Case" {self.comparison()} {rng.randint(0, 5)}',
            f"greatest(small, sorted) > {rng.randint(0, 200)}",
            "true",
            "false",
            "1 = 1",
            "1 > 2",
        ]
        return Predicate(rng.choice(choices), None)


@pytest.mark.parametrize("chunk", range(PREDICATES // PREDICATES_PER_TEST))
def test_generated_predicates_keep_the_rows_that_duckdb_and_pyarrow_keep(chunk, datasets, folders, duck):
    arrow = pads.dataset(folders["as it comes"])
    wrong = []
    for seed in range(chunk * PREDICATES_PER_TEST, (chunk + 1) * PREDICATES_PER_TEST):
        sql, arrow_filter = Generator(seed).predicate()
        expected = ids_in_duckdb(duck, sql)
        if arrow_filter is not None:
            in_arrow = arrow.to_table(columns=["id"], filter=arrow_filter)["id"].to_pylist()
            assert sorted(in_arrow) == expected, f"pyarrow and DuckDB disagree: {sql}"
        for name, ds in datasets.items():
            try:
                kept = ids_of(ds, sql)
            except fb.ForebayError as error:
                wrong.append(f"{seed}: {sql}: {error}")
                break
            if kept != expected:
                differing = sorted(set(kept) ^ set(expected))
                wrong.append(f"{seed} ({name}): {sql}: {len(kept)} rows, not {len(expected)}; first {differing[:5]}")
    assert not wrong, "\n".join(wrong)


def test_enough_generated_predicates_are_compared_with_pyarrow_and_few_are_trivial(duck):
    predicates = [Generator(seed).predicate() for seed in range(PREDICATES)]
    assert sum(predicate.arrow is not None for predicate in predicates) > 60
    counts = [len(ids_in_duckdb(duck, predicate.sql)) for predicate in predicates]
    assert sum(0 < count < NUM_ROWS for count in counts) > PREDICATES * 0.8


# One of each, so that a failure names what is wrong and every kind is surely there.
EXACT = [
    "score = CAST('NaN' AS DOUBLE)",
    "score <> CAST('NaN' AS DOUBLE)",
    "score >= CAST('NaN' AS DOUBLE)",
    "score < CAST('NaN' AS DOUBLE)",
    "score > CAST('inf' AS DOUBLE)",
    "score > 1000000",
    "ratio > 1000000",
    "score <= 1000000",
    "NOT (score > 1000000)",
    "score < -1000000",
    "isnan(score)",
    "score = 0",
    "score = -0.0",
    "score < 0.0",
    "score >= -0.0",
    "ratio IN (0.0)",
    "score IN (CAST('NaN' AS DOUBLE), -0.0)",
    "score NOT IN (CAST('NaN' AS DOUBLE), -0.0)",
    "score = score",
    "score IS NULL",
    "score IS NOT NULL",
    "lang = ''",
    "lang > ''",
    "lang = '日本語'",
    "lang = 'it''s'",
    "lang LIKE 'd\\%e' ESCAPE '\\'",
    "lang >= 'fr'",
    "big = 9223372036854775807",
    "big > 9223372036854775806",
    "big <= -9223372036854775807",
    "big = 9007199254740993",
    "ubig = 18446744073709551615",
    "ubig > 9223372036854775807",
    "small > 127",
    "small >= 127",
    "small < 1000",
    "NOT (small < 1000)",
    "price = 1.25",
    "price >= 9.99",
    "day = DATE '2020-02-29'",
    "day >= DATE '2022-06-01'",
    "moment < TIMESTAMP '2018-12-01 00:00:00'",
    "flag",
    "flag IS NULL",
    "NOT flag",
    "meta['lang'] = 'de'",
    "meta.lang = 'de'",
    "meta.rank = 2147483647 OR meta.lang IS NULL",
    "tags[1] = 'ü'",
    "array_length(tags) = 0",
    "lang IN ('de', NULL)",
    "lang NOT IN ('de', NULL)",
    "lang = NULL",
    "(lang = 'de') IS NULL",
    "lang = 'de' OR lang IS NULL",
    "NOT (lang = 'de' AND flag)",
    '"Case" = 3',
    "sorted BETWEEN 10 AND 20",
    "sorted < 0 OR sorted > 200",
    "sorted IN (-50, 0, 249)",
    "sorted + 1 = 5",
    "true",
    "false",
    "NULL",
    "1 = 1 AND NULL IS NULL",
    "id IS NULL",
    "id IS NOT NULL",
    "id >= 0",
    "id < 0",
]


@pytest.mark.parametrize("sql", EXACT)
def test_a_predicate_keeps_the_rows_that_duckdb_keeps(sql, datasets, duck):
    expected = ids_in_duckdb(duck, sql)
    for name, ds in datasets.items():
        assert ids_of(ds, sql) == expected, name
        assert len(ds.filter(sql)) == len(expected), name
        negated = f"({sql}) IS NOT TRUE"
        assert ids_of(ds, negated) == sorted(set(range(NUM_ROWS)) - set(expected)), name


def test_floats_in_structs_and_half_floats_follow_the_same_rules(tmp_path):
    values = [np.nan, np.copysign(np.nan, -1.0), -0.0, 0.0, 1.5, -1.5, np.inf, -np.inf]
    table = pa.table(
        {
            "id": range(8),
            "half": pa.array(np.array(values, np.float16)),
            "meta": pa.array([{"x": value} for value in values], pa.struct({"x": pa.float64()})),
            "many": pa.array([[value] for value in values], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for name in ("half", "meta['x']", "many[1]"):
        assert ids_of(ds, f"{name} > 1") == [0, 1, 4, 6], name
        assert ids_of(ds, f"{name} = 0") == [2, 3], name
        assert ids_of(ds, f"{name} < 0") == [5, 7], name
        assert ids_of(ds, f"{name} = {name}") == list(range(8)), name


def test_a_short_row_group_keeps_every_row_that_passes(tmp_path):
    for num_rows in (1, 2, 3, 5, 7, 8, 9, 31, 63, 64, 65, 127, 129):
        pq.write_table(pa.table({"id": range(num_rows)}), tmp_path / "a.parquet")
        ds = fb.load_dataset(tmp_path, split="train")
        for divisor, rest in ((2, 0), (2, 1), (3, 1), (5, 4)):
            expected = list(range(rest, num_rows, divisor))
            assert ids_of(ds, f"id % {divisor} = {rest}") == expected, (num_rows, divisor, rest)
            others = sorted(set(range(num_rows)) - set(expected))
            assert ids_of(ds, f"id % {divisor} <> {rest}") == others, (num_rows, divisor, rest)


@pytest.mark.parametrize(
    ("layout", "sql", "pruned", "whole"),
    [
        ("as it comes", "sorted >= 200", 10, 2),
        ("as it comes", "sorted < -25", 11, 1),
        ("as it comes", "sorted BETWEEN 0 AND 24", 11, 1),
        ("as it comes", "sorted BETWEEN 0 AND 30", 10, 1),
        ("as it comes", "sorted = 7", 11, 0),
        ("as it comes", "id < 250 OR id >= 2750", 10, 2),
        ("as it comes", "id >= 0", 0, 12),
        ("as it comes", "id < 0", 12, 0),
        ("as it comes", "true", 0, 12),
        ("as it comes", "false", 12, 0),
        ("without statistics", "sorted >= 200", 0, 2),
    ],
)
def test_statistics_decide_row_groups(layout, sql, pruned, whole, datasets):
    facts = datasets[layout].filter(sql).explain()
    assert facts["row_groups_total"] == 12
    assert (facts["row_groups_pruned"], facts["row_groups_whole"]) == (pruned, whole)
    assert facts["row_groups_partial"] + facts["row_groups_empty"] == 12 - pruned - whole
    assert facts["rows_total"] == NUM_ROWS
    assert facts["rows_kept"] == len(datasets[layout].filter(sql))


def row_groups_above(folder: Path, name: str, value: object) -> int:
    """Row groups whose statistics show no value below `value`."""
    count = 0
    for path in folder.iterdir():
        metadata = pq.ParquetFile(path).metadata
        index = metadata.schema.names.index(name)
        for group in range(metadata.num_row_groups):
            column = metadata.row_group(group).column(index)
            found = column.statistics
            all_null = found.null_count == column.num_values
            count += all_null or (found.has_min_max and not found.min < value)
    return count


@pytest.mark.parametrize(
    ("layout", "literal", "value"),
    [
        ("sorted by score", "-1.5", -1.5),
        ("sorted by lang", "'de'", "de"),
        ("sorted by day", "DATE '2019-06-01'", dt.date(2019, 6, 1)),
    ],
)
def test_statistics_of_sorted_columns_prune_and_lose_nothing(layout, literal, value, datasets, folders, duck):
    name = LAYOUTS[layout].sort_by
    facts = datasets[layout].filter(f"{name} < {literal}").explain()
    assert facts["row_groups_pruned"] == row_groups_above(folders[layout], name, value) >= 2
    for op in ("<", "<=", "=", ">=", ">", "<>"):
        sql = f"{name} {op} {literal}"
        assert ids_of(datasets[layout], sql) == ids_in_duckdb(duck, sql), op


def test_a_decided_selection_reads_nothing(datasets):
    for sql in ("id >= 0", "id < 250", "false", "true"):
        facts = datasets["as it comes"].filter(sql).explain()
        assert (facts["selection_bytes"], facts["selection_requests"]) == (0, 0), sql


def test_the_payload_is_only_that_of_kept_rows_and_chosen_columns(datasets):
    ds = datasets["as it comes"]
    everything, few = ds.explain(), ds.filter("id < 250").explain()
    assert 0 < few["payload_bytes"] < everything["payload_bytes"] / 6
    assert 0 < ds.select_columns("flag").explain()["payload_bytes"] < everything["payload_bytes"] / 10
    assert ds.filter("false").explain()["payload_bytes"] == 0


def test_an_explanation_prints_as_text(datasets):
    text = str(datasets["as it comes"].filter("sorted >= 200").shuffle(3).explain())
    assert "500 of 3,000 kept" in text
    assert "10 pruned by statistics, 2 whole" in text
    assert "seed 3" in text


def test_filters_chain_as_and(datasets):
    ds = datasets["as it comes"]
    chained = ds.filter("small > 0").filter("lang = 'de' OR flag").filter("score < 1")
    assert sorted(pa.table(chained)["id"].to_pylist()) == ids_of(
        ds, "small > 0 AND (lang = 'de' OR flag) AND score < 1"
    )
    assert len(ds) == NUM_ROWS


def test_a_filter_may_use_columns_that_are_not_selected(datasets):
    ds = datasets["as it comes"].filter("lang = 'de'").select_columns(["id"])
    assert pa.table(ds).column_names == ["id"]
    assert pa.table(ds)["id"].to_pylist() == pa.table(datasets["as it comes"].filter("lang = 'de'"))["id"].to_pylist()


def test_every_column_of_kept_rows_is_that_of_the_table(table, datasets):
    expected = table.filter(pc.equal(table["lang"], "de"))
    got = pa.table(datasets["as it comes"].filter("lang = 'de'"))
    assert got.num_rows > 100
    for name in set(table.column_names) - {"score", "ratio"}:
        assert got[name].to_pylist() == expected[name].to_pylist(), name
    for name in ("score", "ratio"):
        assert repr(got[name].to_pylist()) == repr(expected[name].to_pylist())


def test_a_selection_of_nothing_is_an_empty_epoch(datasets):
    ds = datasets["as it comes"].filter("lang = 'absent'")
    assert len(ds) == ds.num_rows == 0
    for stream in (ds.batches(10), ds.shuffle(1).batches(10), ds.select_columns("id").to_torch(10)):
        assert len(stream) == 0
        assert list(stream) == []
    assert pa.table(ds).num_rows == 0
    assert pa.table(ds).schema == ds.schema
    assert list(ds) == list(ds.take(3)) == []


def test_column_names_are_case_sensitive_quoted_or_not(tmp_path):
    pq.write_table(pa.table({"X": [1, 2], "x": [3, 4], "with space": [5, 6], "select": [7, 8]}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert pa.table(ds.filter("X = 1")).num_rows == 1
    assert pa.table(ds.filter('"X" = 1 AND "x" = 3')).num_rows == 1
    assert pa.table(ds.filter("x = 1")).num_rows == 0
    assert pa.table(ds.filter('"with space" = 6 AND "select" = 8'))["x"].to_pylist() == [4]


def test_a_column_with_a_dot_in_its_name_is_quoted(tmp_path):
    pq.write_table(pa.table({"a.b": [1, 2], "a": [{"b": 5}, {"b": 6}]}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert pa.table(ds.filter('"a.b" = 2')).num_rows == 1
    assert pa.table(ds.filter("a.b = 6"))["a.b"].to_pylist() == [2]
    assert pa.table(ds.select_columns("a.b")).column_names == ["a.b"]


def test_comments_and_line_breaks_are_sql(datasets):
    ds = datasets["as it comes"]
    assert ids_of(ds, "-- the first\nid < 5 /* and */ AND\n\tid > 2 -- end") == [3, 4]


LONG = """
import sys
import forebay as fb
import pyarrow as pa
ds = fb.load_dataset(sys.argv[1], split="train")
count = int(sys.argv[2])
kind = sys.argv[3]
terms = {
    "or": " OR ".join(f"(id = {i} AND lang IS NOT NULL)" for i in range(count)),
    "and": " AND ".join(f"(id <> {i} OR lang = 'never')" for i in range(count)),
    "in": "id IN (" + ", ".join(str(i) for i in range(count)) + ")",
    "plus": " + ".join(["id"] * count) + " >= 0",
}
try:
    print(len(pa.table(ds.filter(terms[kind]))))
except fb.QueryError as error:
    print("QueryError", str(error)[-200:])
"""


@pytest.mark.parametrize(
    ("kind", "count"), [("or", 800), ("or", 5000), ("and", 800), ("and", 5000), ("in", 800), ("in", 5000)]
)
def test_long_predicates_do_not_exhaust_the_stack(kind, count, folders, table):
    kept = int(run_python(LONG, folders["as it comes"], count, kind))
    first = table.slice(0, count)
    known = [i for i, lang in zip(first["id"].to_pylist(), first["lang"].to_pylist(), strict=True) if lang is not None]
    expected = {"or": len(known), "in": min(count, NUM_ROWS), "and": max(NUM_ROWS - count, 0)}
    assert kept == expected[kind]


def test_a_deep_expression_works_or_is_refused_but_never_aborts(folders):
    assert run_python(LONG, folders["as it comes"], 100, "plus").strip() == str(NUM_ROWS)
    said = run_python(LONG, folders["as it comes"], 5000, "plus")
    assert said.startswith("QueryError")
    assert "more than 300 levels deep" in said


NESTED = """
import sys
import forebay as fb
ds = fb.load_dataset(sys.argv[1], split="train")
depth = int(sys.argv[2])
brackets = "(" * depth + "id > 0" + ")" * depth
for sql in (brackets, "NOT " * depth + "flag", "- " * depth + "id > 0", "case when " * depth):
    try:
        ds.filter(sql)
    except fb.QueryError:
        pass
print("alive")
"""


@pytest.mark.parametrize("depth", [50, 1000, 20_000])
def test_deep_nesting_is_never_a_crash(depth, folders):
    assert run_python(NESTED, folders["as it comes"], depth).strip() == "alive"


REFUSED = {
    "a column that is not there": (
        "scroe > 0.5",
        fb.ColumnNotFoundError,
        r"no column `scroe` at line 1, column 1.*`score`",
    ),
    "a column that is not there, later": (
        "id > 0 AND\n  lnag = 'de'",
        fb.ColumnNotFoundError,
        r"line 2, column 3.*`lang`",
    ),
    "a column in another case": ("Lang = 'de'", fb.ColumnNotFoundError, "`lang`"),
    "a field that is not there": ("meta['lnag'] = 'de'", fb.QueryError, "lnag"),
    "a number against text": ("score > 'abc'", fb.QueryError, "abc"),
    "text plus a number": ("lang + 1 > 2", fb.QueryError, r"lang"),
    "a Boolean against a list": ("tags > 3", fb.QueryError, "tags"),
    "a number": ("small", fb.QueryError, "`Int8`, expected a Boolean expression"),
    "a sum": ("small + 1", fb.QueryError, "expected a Boolean"),
    "text": ("'true'", fb.QueryError, "expected a Boolean"),
    "nothing": ("", fb.QueryError, "an expression, found: EOF"),
    "blanks": ("  \n ", fb.QueryError, "an expression, found: EOF"),
    "no right side": ("score >", fb.QueryError, r"[Ee]xpected"),
    "two operators": ("score > > 2", fb.QueryError, r"Line: 1, Column: 9|line 1, column 9"),
    "an open bracket": ("(score > 2", fb.QueryError, r"[Ee]xpected"),
    "an open quote": ("lang = 'de", fb.QueryError, r"[Uu]nterminated"),
    "two expressions": ("score > 2; id > 3", fb.QueryError, ";"),
    "a query": ("SELECT * FROM rows", fb.QueryError, "end of expression, found: rows"),
    "an alias": ("id > 3 AS x", fb.QueryError, "filter"),
    "an aggregate": ("max(score) > 2", fb.QueryError, "more than one row"),
    "an aggregate, deep": ("id > 3 AND (flag OR count(*) > 2)", fb.QueryError, "more than one row"),
    "a window": ("row_number() OVER (ORDER BY id) < 3", fb.QueryError, "filter"),
    "a subquery": ("id IN (SELECT 1)", fb.QueryError, "subquer|not support|[Nn]ot implemented"),
    "an existence": ("EXISTS (SELECT 1)", fb.QueryError, "subquer|not support|[Nn]ot implemented"),
    "the clock": ("moment < now()", fb.QueryError, "depends on more than the row"),
    "the date": ("day < current_date", fb.QueryError, "depends on more than the row"),
    "chance": ("random() < 0.5", fb.QueryError, "depends on more than the row"),
    "a new name": ("uuid() = lang", fb.QueryError, "depends on more than the row"),
    "a placeholder": ("id > $1", fb.QueryError, "write the value out"),
    "another placeholder": ("id > :least", fb.QueryError, r"`:least` is not a parameter; write `\$name`"),
    "a question mark": ("id > ?", fb.QueryError, r"`\?` is not a parameter; write `\$name`"),
    "a function that is not there": ("lenght(lang) > 2", fb.QueryError, "lenght"),
    "too many arguments": ("upper(lang, 2) = 'X'", fb.QueryError, "upper"),
}


@pytest.mark.parametrize(("sql", "kind", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_predicate_is_refused_at_the_call(sql, kind, says, datasets):
    with pytest.raises(kind, match=f"(?s){says}"):
        datasets["as it comes"].filter(sql)


@pytest.mark.parametrize("value", [None, 3, b"id > 3", {"id > 3"}])
def test_what_is_no_text_is_refused(value, datasets):
    with pytest.raises(fb.SettingError, match="filter: expected SQL text"):
        datasets["as it comes"].filter(value)


def test_a_filter_that_fails_on_a_value_names_the_object_and_row_group(datasets):
    ds = datasets["as it comes"].filter("10 / (id - 700) > 0")
    with pytest.raises(fb.QueryError, match=r"row group 2 of `.*part-0\.parquet`.*[Dd]ivide by zero"):
        len(ds)


def test_nulls_within_a_nested_value_are_none_of_the_column(tmp_path):
    columns = {
        "record": pa.array([{"a": None}] * 8, pa.struct({"a": pa.int32()})),
        "hollow": pa.array([[]] * 8, pa.list_(pa.int32())),
        "items": pa.array([[None]] * 8, pa.list_(pa.int32())),
        "nothing": pa.array([None] * 8, pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for name, column in columns.items():
        assert len(ds.filter(f"{name} IS NULL")) == column.null_count, name
        assert len(ds.filter(f"{name} IS NOT NULL")) == 8 - column.null_count, name


DISTINCTIONS = (
    "a IS DISTINCT FROM b AND c",
    "a IS NOT DISTINCT FROM b OR c",
    "c AND a is distinct from b OR a",
    "c OR a IS NOT DISTINCT FROM b AND a",
    "NOT a IS DISTINCT FROM b AND c",
    "a IS DISTINCT FROM b AND b IS DISTINCT FROM c",
    "a IS DISTINCT FROM (b AND c)",
    "id IS DISTINCT FROM 1 AND c",
    "id + 1 IS DISTINCT FROM id * 2 AND c",
    "id BETWEEN 3 AND 20 AND a IS NOT DISTINCT FROM b AND c",
    "CASE WHEN a IS DISTINCT FROM b OR c THEN id > 3 END",
    "id IN (1, 2, 3) OR a IS DISTINCT /* from */ FROM b AND c = (a IS NOT DISTINCT FROM b AND b)",
)


@pytest.mark.parametrize("condition", DISTINCTIONS)
def test_is_distinct_from_ends_where_the_next_condition_begins(condition, tmp_path):
    values = [True, False, None]
    rows = [(a, b, c) for a in values for b in values for c in values]
    table = pa.table({"id": range(len(rows)), **dict(zip("abc", map(list, zip(*rows, strict=True)), strict=True))})
    pq.write_table(table, tmp_path / "rows.parquet")
    with duckdb.connect() as connection:
        connection.register("dataset", table)
        expected = (
            connection.sql(f"SELECT ({condition}) AS k FROM dataset ORDER BY id").to_arrow_table()["k"].to_pylist()
        )
    ds = fb.load_dataset(tmp_path, split="train")
    kept = [row for row, is_kept in enumerate(expected) if is_kept]
    assert 0 < len(kept) < len(rows)
    assert pa.table(ds.filter(condition))["id"].to_pylist() == kept
    assert pa.table(ds.sql(f"SELECT id FROM dataset WHERE {condition}"))["id"].to_pylist() == kept
    assert pa.table(ds.sql(f"SELECT id, {condition} AS k FROM dataset"))["k"].to_pylist() == expected


def test_a_long_chain_of_distinctions_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [True]}), tmp_path / "rows.parquet")
    with pytest.raises(fb.QueryError, match="levels deep"):
        fb.load_dataset(tmp_path, split="train").filter("a" + " IS DISTINCT FROM a" * 5000)


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("array_max(tags) = 'b'", [0]),
        ("array_min(tags) = 'c'", [3]),
        ("array_positions(tags, 'a')[1] = 1", [0]),
        ("id > 10 AND array_max(tags) = 'b'", []),
    ],
)
def test_functions_that_want_rows_are_tried_out_on_nulls(tmp_path: Path, sql: str, kept: list[int]) -> None:
    tags = [["a", "b"], None, [], ["c"]]
    pq.write_table(pa.table({"id": range(4), "tags": pa.array(tags, pa.list_(pa.string()))}), tmp_path / "x.parquet")
    dataset = fb.load_dataset(tmp_path, split="train")
    assert pa.table(dataset.filter(sql).batches(2)).column("id").to_pylist() == kept
    most = pa.table(dataset.sql(f"SELECT array_max(tags) AS most FROM dataset WHERE {sql}").batches(2))
    assert most.column("most").to_pylist() == [max(tags[row]) for row in kept]


def random_lists(rng: random.Random, depth: int) -> str:
    """Writes a condition of lists of one column, with NULLs among their values."""
    if depth == 0:
        values = [str(rng.randint(1, 6)) for _ in range(rng.randint(1, 6))]
        values += ["NULL"] * (rng.random() < 0.3)
        leaves = [
            f"x IN ({', '.join(values)})",
            f"x NOT IN ({', '.join(values)})",
            f"(x = {values[0]} OR x = {rng.randint(1, 6)})",
            f"x <> {values[0]}",
            "id IN (0, 1, 4)",
            "true",
        ]
        return rng.choice(leaves)
    if rng.random() < 0.75:
        return f"({random_lists(rng, depth - 1)} {rng.choice(['AND', 'OR'])} {random_lists(rng, depth - 1)})"
    inner = random_lists(rng, depth - 1)
    return rng.choice([f"(NOT {inner})", f"({inner} IS NULL)", f"({inner} IS NOT FALSE)"])


LISTS = [
    "x NOT IN (1, 2) OR x NOT IN (3, 4)",
    "NOT (x IN (1, 2) AND x IN (3, 4))",
    "(x IN (1, 2) AND x IN (3, 4)) IS NULL",
    "x NOT IN (9, NULL) AND x IN (2, 4)",
    "x IN (2, 4) AND x NOT IN (NULL)",
    "((x = 1 OR x = 2) AND (x = 3 OR x = 4)) IS NULL",
]


@pytest.mark.parametrize("seed", range(4))
def test_several_lists_of_a_column_are_what_each_of_them_says(tmp_path: Path, seed: int) -> None:
    """The engine's simplifier makes one list of two, as if nothing were NULL."""
    rows = pa.table({"id": range(7), "x": pa.array([1, 2, 3, 4, None, 5, 9])})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=2)
    dataset = fb.load_dataset(tmp_path, split="train")
    rng = random.Random(seed)
    duck = duckdb.connect()
    duck.register("rows", rows)
    for condition in LISTS + [random_lists(rng, rng.randint(1, 3)) for _ in range(60)]:
        values = [value for (value,) in duck.sql(f"SELECT {condition} FROM rows ORDER BY id").fetchall()]
        kept = [row for row, value in enumerate(values) if value]
        below = f"SELECT id FROM (SELECT * FROM dataset WHERE x IN (1, 2, 3, 4) OR x IS NULL) AS d WHERE {condition}"
        assert pa.table(dataset.filter(condition))["id"].to_pylist() == kept, condition
        assert pa.table(dataset.sql(f"SELECT {condition} AS v FROM dataset"))["v"].to_pylist() == values, condition
        for query, expected in (
            (f"SELECT id FROM dataset WHERE {condition}", kept),
            (below, [row for row in kept if row < 5]),
        ):
            assert sorted(pa.table(dataset.query(query))["id"].to_pylist()) == expected, query


def test_a_list_of_a_hundred_thousand_numbers_is_shown_in_part(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(7)}), tmp_path / "x.parquet")
    dataset = fb.load_dataset(tmp_path, split="train")
    numbers = ",".join(map(str, range(3, 100_000)))
    kept, other = (dataset.filter(f"id IN ({numbers},{last})") for last in (-1, -2))
    assert len(kept) == 4
    assert all(len(shown) < 3000 for shown in (repr(kept), kept._repr_html_(), str(kept.explain())))
    state = kept.shuffle(1).batches(2).state_dict()
    for stream, difference in ((dataset, "got .*id IN .3,4,5,"), (other, r"99999,-2\).*99999,-1\)")):
        with pytest.raises(fb.StateError, match=difference) as caught:
            stream.shuffle(1).batches(2).load_state_dict(state)
        assert len(str(caught.value)) < 1000
