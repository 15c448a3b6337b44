"""Rows as Python objects, as pyarrow makes them."""

from __future__ import annotations

from typing import Any, Literal

from forebay.exceptions import DataError
from forebay.features import with_plain_arrays

NO_OBJECT = (KeyError, OverflowError, ValueError)
"""What pyarrow raises for values that it has no object for; `KeyError` for types that it does not know."""


def to_python(record: Any, method: Literal["to_pylist", "to_pydict"]) -> Any:
    """Returns a batch of pyarrow as Python objects, or names the column whose values have none."""
    record = with_plain_arrays(record)
    try:
        return getattr(record, method)()
    except NO_OBJECT as error:
        for index, field in enumerate(record.schema):
            try:
                record.column(index).to_pylist()
            except NO_OBJECT as cause:
                what = f"column `{field.name}` of type `{field.type}` holds a value that Python has no object for"
                raise DataError(f"{what}: {cause}; select other columns, or read `ds.batches(n)`") from cause
        raise DataError(f"rows have no form as Python objects: {error}; read `ds.batches(n)`") from error
