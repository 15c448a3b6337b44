"""Warnings while rows are read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from forebay.exceptions import PerformanceWarning, SkippedRowsWarning
from forebay.frames import level_of_loop

if TYPE_CHECKING:
    from forebay.dataset import Dataset
    from forebay.states import Hole

_warned: set[str] = set()
"""Fingerprints of the datasets that a warning was issued for."""


def warn_of_missing_index(dataset: Dataset, found: tuple[str, int, int, int] | None, memory_limit: int) -> None:
    """Warns once per dataset that row groups are large for the memory and cannot be read in parts."""
    fingerprint = dataset._native.fingerprint
    if found is None or fingerprint in _warned:
        return
    _warned.add(fingerprint)
    url, row_group, needed, num_row_groups = found
    if dataset._shuffle is None:
        cost = "It is read whole by each process that has rows of it"
    else:
        cost = "The shuffle is coarse, and rows may be read again"
    warnings.warn(
        f"row group {row_group} of `{url}` needs {needed} bytes at once, more than a quarter of memory_limit "
        f"({memory_limit} bytes), because it has no page index ({num_row_groups:,} such in the dataset). {cost}. "
        "Write the files with a page index (pyarrow: `write_page_index=True`) or with smaller row groups "
        "(`row_group_size`), or raise memory_limit",
        PerformanceWarning,
        stacklevel=level_of_loop(),
    )


def warn_of_holes(holes: list[Hole], num_rows: int) -> None:
    """Warns of the rows that an iteration left out."""
    last = holes[-1]
    where = f"row group {last['row_group']} of `{last['object']}`"
    if len(holes) == 1:
        what = f"of {where}; `holes` of the stream has them. The cause"
    else:
        what = f"of {where} among others; `holes` of the stream lists them. The last cause"
    warnings.warn(
        f"{num_rows:,} rows could not be read and were skipped, {what}: {last['cause']}",
        SkippedRowsWarning,
        stacklevel=level_of_loop(),
    )


def warn_of_batches_of_batches() -> None:
    """Warns that torch's `DataLoader` stacks batches that are complete already."""
    warnings.warn(
        "batch_size: this DataLoader makes batches of batches, copies of them with one dimension more, because what "
        "`to_torch` yields are batches; pass `batch_size=None` to it",
        PerformanceWarning,
        stacklevel=level_of_loop("torch", "torchdata"),
    )
