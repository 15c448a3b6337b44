"""Rows by number: parses the key of `ds[...]`."""

from __future__ import annotations

from operator import index
from typing import Any

from forebay.exceptions import RowIndexError, SettingError

KEYS = "expected a row number, a slice, or a list of row numbers, or a mask of True and False"


def is_number(key: Any) -> bool:
    """Whether a key is the number of a single row, which is then not wrapped in a list."""
    if isinstance(key, bool | str | bytes):
        return False
    try:
        index(key)
    except TypeError:
        return False
    # Arrays of one element have an `__index__`, but are not numbers.
    return not getattr(key, "shape", ())


def row_numbers(key: Any, num_rows: int, name: str = "row") -> list[int]:
    """Returns the row numbers of a key, in its order; negative ones count from the end.

    Args:
        key: A number, a slice, a range, a list or array of numbers, or one of `num_rows` Booleans.
        num_rows: The number of rows of the dataset.
        name: What the key is called in messages.

    Raises:
        SettingError: the key is none of these.
        RowIndexError: a number is too large for any dataset.
    """
    if isinstance(key, slice):
        try:
            return list(range(num_rows)[key])
        except (TypeError, ValueError) as error:
            raise SettingError(f"slice: {error}") from None
    if is_number(key):
        return [_checked(key, num_rows, name)]
    values = _values(key, name)
    if _is_mask(key, values):
        if len(values) != num_rows:
            raise SettingError(f"mask: expected a Boolean for each of {num_rows} rows, got {len(values)}")
        return [number for number, is_wanted in enumerate(values) if is_wanted]
    return [_checked(value, num_rows, name) for value in values]


def _values(key: Any, name: str) -> list[Any]:
    """Returns the elements of a list or of an array of any library."""
    if isinstance(key, str):
        return [key]
    if isinstance(key, bytes | dict):
        raise SettingError(f"{name}: {KEYS}, got {key!r}")
    elements = getattr(key, "tolist", None)
    try:
        values = list(key) if elements is None else elements()
    except TypeError:
        raise SettingError(f"{name}: {KEYS}, got {key!r}") from None
    return values if isinstance(values, list) else [values]


def _is_mask(key: Any, values: list[Any]) -> bool:
    """Whether a key holds Booleans; an empty one does if the name of its dtype says so."""
    if values:
        return all(_is_flag(value) for value in values)
    return "bool" in str(getattr(key, "dtype", getattr(key, "type", ""))).lower()


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def _checked(value: Any, num_rows: int, name: str) -> int:
    try:
        number = None if _is_flag(value) else index(value)
    except TypeError:
        number = None
    if number is None:
        columns = "; columns are chosen by `select_columns`" if isinstance(value, str) else ""
        raise SettingError(f"{name}: {KEYS}, got {value!r}{columns}")
    if not -(1 << 63) <= number < 1 << 63:
        raise RowIndexError(f"no row {number}: the dataset has {num_rows} rows")
    return number
