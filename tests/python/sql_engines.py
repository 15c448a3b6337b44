"""The engines that the corpus of SQL queries is run through, and what makes their results comparable."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import TYPE_CHECKING, Any

import datafusion
import duckdb
import pyarrow as pa

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sql_corpus import Query

Rows = list[tuple[Any, ...]]


class Forebay:
    """Forebay, by the method that the query is for."""

    def __init__(self, folder: Path, tables: Mapping[str, pa.Table]) -> None:
        self.dataset = fb.load_dataset(folder, split="train")
        self._tables = tables

    def table(self, query: Query) -> pa.Table:
        names = set(re.findall(r"\w+", query.sql))
        tables = {name: table for name, table in self._tables.items() if name in names}
        run = self.dataset.sql if query.keeps_rows else self.dataset.query
        return pa.table(run(query.sql, params=query.params or None, tables=tables or None))


class DuckDB:
    """DuckDB, with the vector functions under the names that Forebay has them."""

    def __init__(self, folder: Path, tables: Mapping[str, pa.Table]) -> None:
        self._connection = duckdb.connect()
        # A table: the statistics of files make DuckDB lose rows that hold NaN.
        self._connection.sql(f"CREATE TABLE dataset AS FROM '{folder}/*.parquet'")
        for name, table in tables.items():
            self._connection.register(name, table)
        for ours, theirs in (("cosine_similarity", "cosine_similarity"), ("l2_distance", "distance")):
            self._connection.sql(f"CREATE MACRO {ours}(a, b) AS list_{theirs}(a::DOUBLE[], b::DOUBLE[])")
        self._connection.sql("CREATE MACRO regexp_like(a, b) AS regexp_matches(a, b)")
        self._connection.sql("CREATE MACRO dot(a, b) AS list_inner_product(a::DOUBLE[], b::DOUBLE[])")

    def table(self, query: Query) -> pa.Table:
        return self._connection.sql(query.sql, params=query.params or None).to_arrow_table()


class DataFusion:
    """DataFusion as it is, without Forebay's meaning of floats and of overflow."""

    def __init__(self, folder: Path, tables: Mapping[str, pa.Table]) -> None:
        self._context = datafusion.SessionContext()
        self._context.register_parquet("dataset", str(folder))
        for name, table in tables.items():
            self._context.from_arrow(table, name)

    def table(self, query: Query) -> pa.Table:
        try:
            return self._context.sql(query.with_literals()).to_arrow_table()
        except Exception as error:  # of no class of its own: panics and internal errors
            raise ValueError(str(error)) from error


def comparable(table: pa.Table, *, is_ordered: bool) -> Rows:
    """The rows with values of one kind each, sorted unless their order is a result.

    Engines give a sum, an average or a length of other types; numbers are compared by value, floats to 12 digits.
    """
    rows = [tuple(_value(value) for value in row.values()) for row in table.to_pylist()]
    return rows if is_ordered else sorted(rows, key=repr)


def _value(value: Any) -> Any:
    match value:
        case bool() | None | str() | bytes():
            return value
        case int():
            return str(value)
        case decimal.Decimal() if value == value.to_integral_value():
            return str(int(value))
        case float() if math.isfinite(value) and value == int(value) and abs(value) < 2**53:
            return str(int(value))
        case float() | decimal.Decimal():
            return f"{float(value):.12g}"
        case dt.datetime():
            return str(value)
        case dt.date():
            return f"{value} 00:00:00"
        case list():
            return tuple(_value(item) for item in value)
        case dict():
            return tuple((name, _value(item)) for name, item in value.items())
        case _:
            return str(value)
