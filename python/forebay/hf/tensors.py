"""Makes rows of tensors batch by batch; `datasets` makes them one by one, which takes most of its time per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets.formatting import get_formatter
from datasets.iterable_dataset import _batch_to_examples

from forebay.compat import formatted

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = (
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.float32(), pa.float64()),
)
"""Types whose values become the same tensor alone and within a batch."""


class TorchRows:
    """Makes rows of tensors from a table, equal to those of `with_format("torch")`."""

    def __init__(self, features: Any, token_per_repo_id: dict[str, Any]) -> None:
        self._formatter: Any = get_formatter("torch", features=features, token_per_repo_id=token_per_repo_id)

    def __call__(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Yields the rows of a table."""
        if all(map(_is_plain, table.columns)):
            yield from _batch_to_examples(formatted(self._formatter, "format_batch", table))
            return
        for row in range(len(table)):
            yield formatted(self._formatter, "format_row", table.slice(row, 1), row)


def _is_plain(column: pa.ChunkedArray) -> bool:
    """Whether a row's value is independent of the other rows: there are no NULLs and no empty lists."""
    kind = column.type
    if column.null_count:
        return False
    if not pa.types.is_list(kind) and not pa.types.is_large_list(kind) and not pa.types.is_fixed_size_list(kind):
        return kind in NUMBERS or pa.types.is_string(kind)
    return kind.value_type in NUMBERS and not pc.list_flatten(column).null_count and _shortest(column) > 0


def _shortest(column: pa.ChunkedArray) -> int:
    return int(pc.min(pc.list_value_length(column)).as_py() or 0)
