"""Random SQL expressions over the columns of `sql_data`, in the part of SQL that engines agree on how to write."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeVar

from data import LANGUAGES, WORDS
from sql_data import EXTREMES, NUM_ROWS

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
NULL_SAFE = ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> str:
    """A value as it is written in SQL."""
    match value:
        case None:
            return "NULL"
        case str():
            return quoted(value)
        case dt.date():
            return f"DATE '{value}'"
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case _:
            return str(value)


class Terms:
    """Draws expressions; the same generator of random numbers draws the same ones."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def predicate(self, depth: int = 2) -> str:
        """A whole condition: atoms under AND, OR, NOT, IS TRUE and CASE."""
        if depth == 0 or self.rng.random() < 0.3:
            return self.atom()
        first, second = self.predicate(depth - 1), self.predicate(depth - 1)
        match self.rng.randrange(7):
            case 0 | 1:
                return f"({first} AND {second})"
            case 2 | 3:
                return f"({first} OR {second})"
            case 4:
                return f"NOT ({first})"
            case 5:
                return f"({first}) IS {self.pick('TRUE', 'NOT TRUE', 'FALSE', 'NOT FALSE', 'NULL')}"
            case _:
                return f"CASE WHEN {first} THEN {second} ELSE {self.atom()} END"

    def atom(self) -> str:
        """A condition on one or two columns."""
        kinds = (self._integers, self._integers, self._reals, self._texts, self._texts, self._times)
        return self.pick(*kinds, self._nested, self._mixed)()

    def special(self) -> str:
        """A condition on floats that are NaN, infinite or a negative zero."""
        name = self.pick("f32", "f64")
        number = self.pick("0", "-0.0", "1.5", "'NaN'::DOUBLE", "'Infinity'::DOUBLE", "-20", "'-Infinity'::DOUBLE")
        return self.pick(
            f"{name} {self.pick(*COMPARISONS)} {number}",
            f"{name} {self.pick(*COMPARISONS)} {self.pick('r64', 'f64', 'f32')}",
            f"{name} BETWEEN {number} AND 40",
            f"{name} IN ({number}, 3.25, 0.0)",
            f"({name} {self.pick(*NULL_SAFE)} {number})",
            f"NOT ({name} > {number})",
            f"isnan({name})",
            f"{name} + 1 > {number}",
            f"greatest({name}, r64) >= {number}",
        )

    def number(self) -> str:
        """An expression of an exact number: integers, and floats that are eighths."""
        i = self.pick("i8", "i16", "i32", "u8", "u16", "seq", "id")
        r = self.pick("r32", "r64")
        big = f"CAST({i} AS BIGINT)"
        return self.pick(
            i,
            f"CAST({r} AS DOUBLE)",
            f"{big} * {self.rng.randrange(2, 99)} - seq",
            f"{big} % {self.rng.randrange(2, 19)}",
            f"abs({big})",
            f"coalesce({i}, {self.rng.randrange(-9, 9)})",
            f"nullif({big} % 5, 2)",
            f"greatest({big}, {self.rng.randrange(-50, 99)})",
            f"least({big}, seq)",
            f"round(CAST({r} AS DOUBLE) / 4, {self.rng.randrange(3)})",
            f"floor({r})",
            f"ceil({r})",
            f"sqrt(abs(CAST({r} AS DOUBLE)) + 1)",
            "power(CAST(seq AS DOUBLE) / 64, 2)",
            f"CAST({big} AS DOUBLE) / 8",
            f"CASE WHEN {self.atom()} THEN {big} WHEN {self.atom()} THEN -1 ELSE 7 END",
            f"length({self.pick('cat', 'word', 'text')})",
            "strpos(word, ' ')",
            "ascii(word)",
            "price * 2",
            "price + 1",
            "meta['rank']",
            "ints[1]",
            f"date_part('{self.pick('year', 'month', 'day', 'hour', 'minute', 'doy', 'week', 'quarter')}', moment)",
            f"date_part('{self.pick('year', 'month', 'day', 'dow')}', day)",
        )

    def string(self) -> str:
        """An expression of text."""
        s = self.pick("cat", "word", "text", "meta['source']")
        count = self.rng.randrange(1, 6)
        return self.pick(
            s,
            "upper(cat)",
            f"lower({s})",
            f"{s} || '-' || CAST(seq AS VARCHAR)",
            f"concat({s}, '+', cat)",
            f"substr({s}, {count}, {self.rng.randrange(1, 4)})",
            f"left({s}, {count})",
            f"right({s}, {count})",
            f"replace({s}, 'a', '<>')",
            f"trim(' ' || {s} || '  ')",
            f"ltrim({s}, 'a')",
            f"split_part(word, ' ', {self.rng.randrange(1, 3)})",
            f"repeat(cat, {self.rng.randrange(3)})",
            f"lpad(CAST(seq AS VARCHAR), {self.rng.randrange(3, 7)}, '0')",
            f"coalesce({s}, 'none')",
            f"nullif({s}, 'de')",
            f"regexp_replace({s}, '[aeiou]+', '_')",
            f"translate({s}, 'abc', 'xyz')",
            f"CASE cat WHEN 'de' THEN {s} WHEN 'en' THEN 'E' END",
            f"CASE WHEN {self.atom()} THEN {s} ELSE cat END",
            "CAST(id AS VARCHAR)",
            "CAST(day AS VARCHAR)",
            "CAST(flag AS VARCHAR)",
            "tags[1]",
        )

    def moment(self) -> str:
        """An expression of a date or an instant."""
        unit = self.pick("year", "month", "day", "hour", "week")
        return self.pick(
            "day",
            "moment",
            f"date_trunc('{unit}', moment)",
            f"moment + INTERVAL '{self.rng.randrange(1, 99)}' {self.pick('DAY', 'HOUR', 'MINUTE')}",
            f"day - INTERVAL '{self.rng.randrange(1, 9)}' MONTH",
            "CAST(moment AS DATE)",
            "coalesce(day, DATE '2000-02-29')",
        )

    def expression(self) -> str:
        return self.pick(self.number, self.number, self.string, self.moment)()

    def pick(self, *values: T) -> T:
        return self.rng.choice(values)

    def _integers(self) -> str:
        name = self.pick(*EXTREMES, "id", "seq", "seq")
        low, high = {"id": (0, NUM_ROWS), "seq": (0, NUM_ROWS // 10)}.get(name) or EXTREMES[name][1:]
        a, b = sorted(self.rng.randint(low, high) for _ in range(2))
        few = ", ".join(str(self.rng.randint(low, high)) for _ in range(self.rng.randrange(1, 8)))
        small = f"CAST({name} AS BIGINT)" if name != "u64" else "seq"
        return self.pick(
            f"{name} {self.pick(*COMPARISONS)} {a}",
            f"{a} {self.pick('<', '>=')} {name}",
            f"{name} {self.pick('', 'NOT ')}BETWEEN {a} AND {b}",
            f"{name} {self.pick('', 'NOT ')}IN ({few})",
            f"{name} IS {self.pick('', 'NOT ')}NULL",
            f"({name} {self.pick(*NULL_SAFE)} {self.pick(str(a), 'NULL')})",
            f"{small} % {self.rng.randrange(2, 9)} = {self.rng.randrange(-3, 3)}",
            f"abs({small}) {self.pick('<', '>')} {abs(a) + 1}",
            f"{small} * 3 - 7 > {b}",
        )

    def _reals(self) -> str:
        name = self.pick("r32", "r64", "price")
        a, b = sorted(self.rng.randint(-800, 800) / 8 for _ in range(2))
        return self.pick(
            f"{name} {self.pick(*COMPARISONS)} {a}",
            f"{name} BETWEEN {a} AND {b}",
            f"{name} {self.pick('', 'NOT ')}IN ({a}, {b}, 0.5)",
            f"{name} IS {self.pick('', 'NOT ')}NULL",
            f"-{name} > {a}",
            f"{name} * 2 + 1 <= {b}",
            f"round(CAST({name} AS DOUBLE)) = {int(b)}",
            f"abs({name}) < {abs(a) + 1}",
        )

    def _texts(self) -> str:
        name, values = self.pick(
            ("cat", LANGUAGES), ("word", tuple(f"{w} {i}" for i, w in enumerate(WORDS))), ("text", WORDS)
        )
        a, b = sorted(self.pick(*values) for _ in range(2))
        pattern = self.pick("%a%", "b%", "_e%", "%\U0001f980%", "", "%", "%'%", "na_ve%", "% _", "\u6570%", "%ss%")
        return self.pick(
            f"{name} {self.pick(*COMPARISONS)} {quoted(a)}",
            f"{name} BETWEEN {quoted(a)} AND {quoted(b)}",
            f"{name} {self.pick('', 'NOT ')}IN ({quoted(a)}, {quoted(b)}, 'none of them')",
            f"{name} {self.pick('LIKE', 'NOT LIKE', 'ILIKE')} {quoted(pattern)}",
            f"{name} LIKE '%\\_%' ESCAPE '\\'",
            f"{name} IS {self.pick('', 'NOT ')}NULL",
            f"({name} {self.pick(*NULL_SAFE)} {quoted(a)})",
            f"length({name}) {self.pick(*COMPARISONS)} {self.rng.randrange(9)}",
            f"starts_with({name}, {quoted(a[:2])})",
            f"strpos({name}, 'a') {self.pick('=', '>')} {self.rng.randrange(4)}",
            f"contains({name}, 'a')",
            f"regexp_like({name}, '^[a-e]')",
            f"lower({name}) < 'd'",
            f"substr({name}, 2, 2) = {quoted(a[1:3])}",
        )

    def _times(self) -> str:
        date = dt.date(2024, 2, 20) + dt.timedelta(days=self.rng.randrange(NUM_ROWS // 5))
        instant = dt.datetime(2023, 12, 31) + dt.timedelta(seconds=self.rng.randrange(10**8))
        return self.pick(
            f"day {self.pick(*COMPARISONS)} DATE '{date}'",
            f"day BETWEEN DATE '{date}' AND DATE '2024-09-01'",
            f"moment {self.pick('<', '>=')} TIMESTAMP '{instant}'",
            f"day IN (DATE '{date}', DATE '2024-03-01')",
            f"date_part('year', moment) = {self.pick(2023, 2024, 2025, 2026)}",
            f"date_part('dow', day) IN (0, {self.rng.randrange(1, 7)})",
            f"date_trunc('month', moment) = TIMESTAMP '{instant:%Y-%m-01} 00:00:00'",
            f"moment > CAST(day AS TIMESTAMP) + INTERVAL '{self.rng.randrange(500)}' DAY",
            f"{self.pick('day', 'moment')} IS {self.pick('', 'NOT ')}NULL",
        )

    def _nested(self) -> str:
        return self.pick(
            f"meta['rank'] {self.pick(*COMPARISONS)} {self.rng.randrange(30)}",
            f"meta['source'] = {quoted(self.pick(*WORDS))}",
            f"meta IS {self.pick('', 'NOT ')}NULL",
            f"array_length(ints) > {self.rng.randrange(5)}",
            f"ints[{self.rng.randrange(1, 4)}] = {self.rng.randrange(-3, 5)}",
            f"array_has(tags, {quoted(self.pick(*WORDS))})",
            "tags[1] LIKE '%a%'",
        )

    def _mixed(self) -> str:
        return self.pick(
            self.pick("flag", "NOT flag", "flag IS NULL", "flag = false", "flag IS NOT TRUE"),
            f"i16 {self.pick(*COMPARISONS)} i8",
            "CAST(i32 AS BIGINT) + seq > i16",
            f"r64 {self.pick('<', '>=')} r32",
            "coalesce(i8, u8) > 100",
            "cat < word",
            "nullif(cat, 'de') IS NULL",
            "CAST(u8 AS VARCHAR) LIKE '1%'",
            "TRY_CAST(split_part(word, ' ', 2) AS INTEGER) > 4",
            f"CASE cat WHEN 'de' THEN i8 > 0 WHEN 'en' THEN u8 > {self.rng.randrange(255)} ELSE flag END",
        )
