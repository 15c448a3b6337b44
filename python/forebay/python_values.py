"""Values between Python and Arrow, by pyarrow: rows as objects; objects as arrays, without losing nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from forebay.exceptions import DataError
from forebay.features import with_plain_arrays
from forebay.packages import import_for

if TYPE_CHECKING:
    from forebay import _lib

NO_OBJECT = (KeyError, OverflowError, ValueError)
"""Exceptions of pyarrow for values that have no Python object; `KeyError` for unknown types."""

_FINE = re.compile(r"^(datetime64|timedelta64|timestamp|duration|time64)\[[npfa]s|='ns'|^Time$")
"""Types of arrays of NumPy, pandas, pyarrow and Polars that are finer than the times of Python."""

_COARSE = {datetime, timedelta, type(None)}
"""Types without nanoseconds, of which lists are often made."""


def to_python(batch: _lib.Batch, method: Literal["to_pylist", "to_pydict"]) -> Any:
    """Returns a batch as Python objects, or raises an error that names the column whose values have none."""
    if not batch.has_extensions:
        return getattr(batch, method)()
    # These may be converted by libraries that registered the types.
    record = with_plain_arrays(import_for("a row of Python objects", "pyarrow").record_batch(batch))
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


def is_null(value: Any) -> bool:
    """Whether a value is NULL: None, or that of pandas, pyarrow or NumPy; the float NaN is not."""
    kind = type(value).__name__
    # `NA` is neither true nor false when compared, so only its name tells.
    is_nat = kind in ("NaTType", "datetime64", "timedelta64") and value != value
    return value is None or kind == "NAType" or is_nat or getattr(value, "is_valid", True) is False


def array_of_one(value: Any) -> Any:
    """Returns a value of Python, or a scalar or array of any library, as an Arrow array with one element."""
    import pyarrow as pa

    if isinstance(value, pa.Scalar) and not value.is_valid:
        return pa.nulls(1, value.type)
    plain = _python_value(value)
    return _with_nanoseconds(_one_value(plain), [plain])


def _python_value(value: Any) -> Any:
    """Returns values of arrays as Python values, except nanoseconds, which Python does not have."""
    if _FINE.search(_type_text(value)):
        dimensions = getattr(value, "ndim", 1)
        if dimensions == 0:
            return value[()]
        return _as_list(value) if dimensions == 1 else [_python_value(row) for row in value]
    if isinstance(value, memoryview):
        return bytes(value)
    # Arrays and scalars of pyarrow, of NumPy, pandas and torch, of Polars.
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(value, method):
            return getattr(value, method)()
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return list(value) if isinstance(value, tuple | range) else value


def _as_list(values: Any) -> Any:
    """Returns an array, or a scalar of pyarrow, as one scalar of pyarrow."""
    import pyarrow as pa

    if isinstance(values, pa.Scalar):
        return values
    array = to_array(values)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return pa.ListArray.from_arrays([0, len(array)], array)[0]


def _one_value(value: Any) -> Any:
    """Returns an array of one value; integers too large for `int64` become `uint64` or decimals."""
    import pyarrow as pa

    try:
        return pa.array([value])
    except OverflowError:
        try:
            return pa.array([_with_integers(value, lambda integer: pa.scalar(integer, pa.uint64()))])
        except (pa.ArrowInvalid, OverflowError):
            return pa.array([_with_integers(value, Decimal)])


def _with_integers(value: Any, make: Callable[[int], Any]) -> Any:
    """Returns a value with `make` applied to its integers, also in lists."""
    if isinstance(value, list | tuple):
        return [_with_integers(part, make) for part in value]
    return make(value) if isinstance(value, int) and not isinstance(value, bool) else value


def to_array(values: Any) -> Any:
    """Returns values as pyarrow does, but with the nanoseconds of pandas and Polars."""
    import pyarrow as pa

    values = without_loss(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    array = pa.array(values)
    return _with_nanoseconds(array, values) if _type_text(values) == "object" else array


def without_loss(values: Any) -> Any:
    """Returns an array of Polars as one of pyarrow if it is finer than the values that it iterates over."""
    return values.to_arrow() if hasattr(values, "to_arrow") and _FINE.search(_type_text(values)) else values


def _type_text(values: Any) -> str:
    """Returns the type of the values of an array, or `object` where each may be of its own."""
    return str(getattr(values, "dtype", getattr(values, "type", "object")))


def _with_nanoseconds(array: Any, values: Any) -> Any:
    """Returns the array that pyarrow made of values, with the nanoseconds of pandas that it truncated."""
    import pyarrow as pa

    if "[us" in str(array.type) and _has_nanoseconds(values):
        return pa.array(values, _in_nanoseconds(array.type))
    return array


def _has_nanoseconds(value: Any) -> bool:
    """Whether a value is, or holds, a `Timestamp` or `Timedelta` of pandas that microseconds would truncate."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        return not set(map(type, value)) <= _COARSE and any(map(_has_nanoseconds, value))
    # That of `NaT` is `nan`.
    parts = (getattr(value, "nanosecond", 0), getattr(value, "nanoseconds", 0))
    return any(isinstance(part, int) and part for part in parts)


def _in_nanoseconds(kind: Any) -> Any:
    """Returns a type that pyarrow inferred, with nanoseconds for microseconds."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return pa.list_(_in_nanoseconds(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_nanoseconds(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if pa.types.is_duration(kind) else kind
