"""The rows of queries on a dataset and side tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import forebay as fb


def rows_of(ds: fb.Dataset, sql: str, tables: dict[str, pa.Table]) -> list[tuple[Any, ...]]:
    """Returns the rows of a query, which is passed those tables whose names stand in it between spaces."""
    used = {name: table for name, table in tables.items() if f" {name} " in f"{sql} ".replace(")", " ")}
    return [tuple(row.values()) for row in pa.table(ds.query(sql, tables=used)).to_pylist()]
