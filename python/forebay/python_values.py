"""Rows as Python objects, as pyarrow makes them."""

from __future__ import annotations

from typing import Any, Literal

from forebay.exceptions import DataError
from forebay.features import with_plain_arrays


def to_python(record: Any, method: Literal["to_pylist", "to_pydict"]) -> Any:
    """Returns a batch of pyarrow as Python objects, or names the column whose values have none."""
    record = with_plain_arrays(record)
    try:
        return getattr(record, method)()
    except (OverflowError, ValueError) as error:
        for name, column in zip(record.schema.names, record.columns, strict=True):
            try:
                column.to_pylist()
            except (OverflowError, ValueError) as cause:
                what = f"column `{name}` of type `{column.type}` holds a value that Python has no object for: {cause}"
                raise DataError(f"{what}; select other columns, or read `ds.batches(n)`") from cause
        raise DataError(f"rows have no form as Python objects: {error}; read `ds.batches(n)`") from error
