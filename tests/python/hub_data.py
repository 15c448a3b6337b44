"""Files for the Hub of the tests."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def ids_file(start: int, stop: int, *, row_group_rows: int = 1000) -> bytes:
    """A Parquet file of these ids, and a number made of each."""
    ids = np.arange(start, stop)
    return to_bytes(pa.table({"id": ids, "square": ids * ids}), row_group_rows)


def to_bytes(table: pa.Table, row_group_rows: int, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_rows, write_page_index=True, **options)
    return sink.getvalue()
