"""Forms of columns that are not a single tensor: values with a mask, lists of different lengths, dictionaries.

All are named tuples, so that code that walks nested batches (`DataLoader(pin_memory=True)`, `accelerate`, tree maps)
handles them. Their arrays are those of the library that the batch was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Never

from forebay.exceptions import RowIndexError, TensorError


class Masked(NamedTuple):
    """Values that may be NULL.

    `mask` is a Boolean array `(n,)`, true where there is a value; for fixed-size lists with NULL items it has the shape
    of `values`. The content of `values` where the mask is false is unspecified.

    Example:
        >>> batch = next(iter(ds.select_columns("licence_id").to_torch(32)))
        >>> values, mask = batch["licence_id"]
        >>> values.masked_fill(~mask, -1).shape
        torch.Size([32])
    """

    values: Any
    """The form the column has without NULLs: a tensor, `Ragged`, or a dict of a struct's fields."""
    mask: Any

    def row(self, index: int) -> Any:
        """Returns the value of a row; None if it is NULL."""
        present = self.mask[index]
        if present.ndim:
            return Masked(self.values[index], present)
        return row_of(self.values, index) if present else None

    def rows(self, start: int, stop: int) -> Masked:
        """Returns a range of rows, without a copy."""
        return Masked(rows_of(self.values, start, stop), self.mask[start:stop])


class Ragged(NamedTuple):
    """Lists of different lengths: the items of all rows end to end, and the offset of each row.

    Row `i` has the items `values[offsets[i]:offsets[i + 1]]`. A NULL row has none.

    Example:
        >>> tokens = next(iter(ds.select_columns("tokens").to_torch(32, forms={"tokens": "ragged"})))["tokens"]
        >>> tokens.offsets.shape, tokens.offsets.dtype
        (torch.Size([33]), torch.int64)
        >>> tokens.row(0).equal(tokens.values[: tokens.offsets[1]])
        True
    """

    values: Any
    """The items in their own form: a tensor, `Ragged` for lists of lists, a dict for lists of structs, or bytes."""
    offsets: Any
    """int64 `(n + 1,)`, from 0."""

    def row(self, index: int) -> Any:
        """Returns the items of a row, without a copy; negative indices count from the end."""
        num_rows = len(self.offsets) - 1
        if not -num_rows <= index < num_rows:
            there = f"{num_rows} rows, from 0 to {num_rows - 1}" if num_rows else "no rows"
            raise RowIndexError(f"row {index}: the column has {there}")
        index %= num_rows
        return rows_of(self.values, int(self.offsets[index]), int(self.offsets[index + 1]))

    def rows(self, start: int, stop: int) -> Ragged:
        """Returns a range of rows, as in a slice; only offsets are copied."""
        start, stop, _ = slice(start, stop).indices(len(self.offsets) - 1)
        offsets = self.offsets[start : max(start, stop) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(rows_of(self.values, first, last), offsets - first)


class DictionaryEncoded(NamedTuple):
    """Values as indices into a dictionary.

    The dictionary belongs to this batch only: in the next batch, the same index may mean another value.

    Example:
        >>> column = next(iter(ds.select_columns("kind").to_torch(32, forms={"kind": "dictionary"})))["kind"]
        >>> column.row(0) in column.values
        True
    """

    indices: Any
    """Integers `(n,)`, as wide as in the dictionary type."""
    values: Any
    """The dictionary, in its own form."""

    def row(self, index: int) -> Any:
        """Returns the value of a row."""
        return row_of(self.values, int(self.indices[index]))

    def rows(self, start: int, stop: int) -> DictionaryEncoded:
        """Returns a range of rows, without a copy."""
        return DictionaryEncoded(self.indices[start:stop], self.values)


_PARTS = {
    Masked: "`values`, and `mask`, true where there is a value: `column.values[column.mask]` are all that are not NULL",
    Ragged: "`values` of all rows and `offsets`: `column.row(i)` has those of one row; `padding` makes rectangles",
    DictionaryEncoded: "`indices` into `values`, the dictionary of the batch",
}


def _parts(column: Any) -> str:
    """Returns what the parts of a column are, for one that was taken for a tensor."""
    return next(parts for kind, parts in _PARTS.items() if isinstance(column, kind))


def _has_none(self: Any, name: str) -> Never:
    is_pair = "" if name.startswith("_") else f"; it is a pair: {_parts(self)}"
    raise AttributeError(f"`{type(self).__name__}` has no `{name}`{is_pair}", name=name, obj=self)


def _is_no_tensor(self: Any, *_: Any) -> Never:
    """Keeps `column * 2` from repeating the tuple, and `column + column` from putting two end to end."""
    raise TensorError(f"`{type(self).__name__}` is not a tensor but a pair: {_parts(self)}")


def _equals(self: Any, other: Any) -> bool:
    """Compares with tuples and None, as code that walks nested batches does; `column == 0` would just be False."""
    return tuple.__eq__(self, other) if other is None or isinstance(other, tuple) else _is_no_tensor(self)


def _differs(self: Any, other: Any) -> bool:
    return tuple.__ne__(self, other) if other is None or isinstance(other, tuple) else _is_no_tensor(self)


_ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_OPERATIONS = (
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r")),
    *("__neg__", "__abs__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__"),
)

for _kind in _PARTS:
    # Set here, because type checkers would take a method to mean that every attribute exists.
    setattr(_kind, "__getattr__", _has_none)  # noqa: B010
    for _operation in _OPERATIONS:
        setattr(_kind, _operation, _is_no_tensor)
    setattr(_kind, "__eq__", _equals)  # noqa: B010
    setattr(_kind, "__ne__", _differs)  # noqa: B010
    # NumPy would make an array of both parts, and add that.
    setattr(_kind, "__array_ufunc__", None)  # noqa: B010


def row_of(column: Any, index: int) -> Any:
    """Returns one row of a column in any form."""
    if isinstance(column, Masked | Ragged | DictionaryEncoded):
        return column.row(index)
    if isinstance(column, dict):
        return {name: row_of(child, index) for name, child in column.items()}
    return column[index]


def rows_of(column: Any, start: int, stop: int) -> Any:
    """Returns a range of rows of a column in any form."""
    if isinstance(column, Masked | Ragged | DictionaryEncoded):
        return column.rows(start, stop)
    if isinstance(column, dict):
        return {name: rows_of(child, start, stop) for name, child in column.items()}
    return column[start:stop]


def length_of(column: Any) -> int | None:
    """Returns the number of rows of a column in any form; None if it is no column or its parts differ in length."""
    if isinstance(column, Masked):
        return _common(column)
    if isinstance(column, Ragged):
        found = length_of(column.offsets)
        return None if found is None else found - 1
    if isinstance(column, DictionaryEncoded):
        return length_of(column.indices)
    if isinstance(column, Mapping):
        return _common(column.values())
    if isinstance(column, str | bytes | bytearray | set | frozenset):
        return None
    shape = getattr(column, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(column) if hasattr(column, "__len__") else None


def _common(parts: Iterable[Any]) -> int | None:
    """Returns the number of rows of all parts of a column; None if they differ."""
    lengths = {length_of(part) for part in parts}
    return lengths.pop() if len(lengths) == 1 else None


def nested(values: Any, offsets: Any) -> Any:
    """Returns lists as a jagged `torch.nested` tensor, without a copy."""
    import torch

    return torch.nested.nested_tensor_from_jagged(values, offsets)
