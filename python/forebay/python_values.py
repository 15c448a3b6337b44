"""Rows as Python objects, made by pyarrow."""

from __future__ import annotations

from typing import Any, Literal

from forebay.exceptions import DataError
from forebay.features import with_plain_arrays

NO_OBJECT = (KeyError, OverflowError, ValueError)
"""Exceptions of pyarrow for values that have no Python object; `KeyError` for unknown types."""


def to_python(record: Any, method: Literal["to_pylist", "to_pydict"]) -> Any:
    """Returns a pyarrow batch as Python objects, or raises an error that names the column whose values have none."""
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
