"""How batches are handed to the functions of `map`: cheaply in the process of the loop, completely where they run.

Tables and Python values go as Arrow, and become what the format says where the functions run. Tensors are made here,
which copies nothing; text among them goes as bytes, and becomes `str` where the functions run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from forebay.columns import Masked, Ragged, length_of, row_of
from forebay.formats import TensorFormat
from forebay.python_values import to_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forebay import _lib
    from forebay.formats import Format

TEXT = {"Utf8": True, "LargeUtf8": True, "Binary": False, "LargeBinary": False}
"""Arrow's types of text and bytes; whether it is text."""


class Opener(Protocol):
    """Makes of what a carrier handed over what functions are given. Goes to workers."""

    def batch(self, carried: Any) -> Any:
        """Returns the batch in its format."""

    def rows(self, carried: Any) -> list[Any]:
        """Returns the rows in their format."""


def make_carrier(format: Format | None, native: _lib.Dataset) -> tuple[Format, Opener]:
    """Returns what a stream converts its batches with, and what makes of these the format that was asked for."""
    if not isinstance(format, TensorFormat):
        return ArrowCarrier(), ArrowOpener(format)
    kinds = dict(zip(native.column_names, native.column_types, strict=True))
    # What was asked for, and what the stream itself decodes, goes as it is.
    own = {*format._requests, *format.decoded}
    # A name with a dot may be that of a struct's field as well.
    text = {name: TEXT[kind] for name, kind in kinds.items() if kind in TEXT and name not in own and "." not in name}
    carried = TensorFormat(format._library, format._requests | dict.fromkeys(text, "ragged"), format.finish)
    return carried, TensorOpener(text)


class ArrowCarrier:
    """Hands over Arrow batches of pyarrow, without a copy."""

    def prepare(self, reader: _lib.Reader) -> ArrowCarrier:  # noqa: ARG002 - Arrow holds all types
        """Returns itself."""
        return self

    def __call__(self, batch: _lib.Batch) -> Any:
        """Returns a `pyarrow.RecordBatch`."""
        import pyarrow as pa

        return pa.record_batch(batch)

    def rows(self, batch: _lib.Batch) -> Iterator[Any]:
        """Yields batches of one row."""
        record = self(batch)
        return (record.slice(index, 1) for index in range(len(batch)))


@dataclass(frozen=True)
class ArrowOpener:
    """Makes Python values, or a format, of Arrow."""

    format: Format | None

    def batch(self, carried: Any) -> Any:
        """Returns a dict of lists, or the batch of the format."""
        return to_python(carried, "to_pydict") if self.format is None else self.format(carried)

    def rows(self, carried: Any) -> list[Any]:
        """Returns dicts, or the rows of the format."""
        return to_python(carried, "to_pylist") if self.format is None else list(self.format.rows(carried))


@dataclass(frozen=True)
class TensorOpener:
    """Makes `str` and `bytes` of what was carried as bytes and offsets."""

    text: Mapping[str, bool]

    def batch(self, carried: dict[str, Any]) -> dict[str, Any]:
        """Returns a dict of tensors and lists."""
        return {
            name: _values(column, is_text=self.text[name]) if name in self.text else column
            for name, column in carried.items()
        }

    def rows(self, carried: dict[str, Any]) -> list[Any]:
        """Returns dicts of one row of each column."""
        batch = self.batch(carried)
        return split(batch)


def split(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a dict of columns."""
    num_rows = length_of(next(iter(batch.values()), ())) or 0
    return [{name: row_of(column, index) for name, column in batch.items()} for index in range(num_rows)]


def _values(column: Any, *, is_text: bool) -> list[Any]:
    """Returns text or bytes as Python objects."""
    if isinstance(column, Masked):
        values = _values(column.values, is_text=is_text)
        return [value if present else None for value, present in zip(values, column.mask.tolist(), strict=True)]
    assert isinstance(column, Ragged), "text is carried as bytes and offsets"  # noqa: S101
    import numpy as np

    data = np.asarray(column.values).tobytes()
    offsets = np.asarray(column.offsets).tolist()
    parts = [data[start:stop] for start, stop in pairwise(offsets)]
    return [part.decode() for part in parts] if is_text else parts
