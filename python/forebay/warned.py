"""Warnings while rows are read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from forebay.exceptions import PerformanceWarning, SkippedRowsWarning
from forebay.frames import level_of_loop

if TYPE_CHECKING:
    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.states import Hole

_warned: set[tuple[str, bool]] = set()
"""Fingerprints of the datasets that a warning was issued for, and whether it was of the shuffle."""


def warn_of_files(dataset: Dataset, reader: _lib.Reader, memory_limit: int) -> None:
    """Warns once per dataset of files that hinder its shuffle or reads within `memory_limit`, and how to write them."""
    coarse = reader.coarse()
    key = (dataset._native.fingerprint, coarse is not None)
    if key in _warned:
        return
    if (unindexed := reader.unindexed()) is not None:
        text = _of_missing_index(*unindexed, memory_limit, is_shuffled=dataset._shuffle is not None, coarse=coarse)
    elif coarse is not None:
        text = _of_coarse_shuffle(*coarse)
    elif (refetched := reader.refetched()) is not None:
        text = _of_parts(*refetched, memory_limit)
    else:
        return
    _warned.add(key)
    warnings.warn(text, PerformanceWarning, stacklevel=level_of_loop())


def _of_missing_index(
    url: str,
    row_group: int,
    needed: int,
    num_row_groups: int,
    memory_limit: int,
    *,
    is_shuffled: bool,
    coarse: tuple[int, int, int, int] | None,
) -> str:
    """Tells of row groups that are large for the memory and cannot be read in parts."""
    cost, better = "It is read whole by each process that has rows of it", "raise memory_limit"
    if coarse is not None:
        cost = f"Rows may be read again, and {_said_of_shuffle(*coarse)}"
        better = f"raise memory_limit to read them once, and pass `shuffle_bytes={coarse[-1]}` or more to mix them"
    elif is_shuffled:
        cost = "Rows may be read again"
    return (
        f"row group {row_group} of `{url}` needs {needed} bytes at once, more than a quarter of memory_limit "
        f"({memory_limit} bytes), because it has no page index ({num_row_groups:,} such in the dataset). {cost}. "
        "Write the files with a page index (pyarrow: `write_page_index=True`) or with smaller row groups "
        f"(`row_group_size`), or {better}"
    )


def _of_coarse_shuffle(window_rows: int, span_rows: int, shuffle_bytes: int, needed_bytes: int) -> str:
    """Tells of a window that is narrower than a few of the runs of rows that are read at once."""
    return (
        f"{_said_of_shuffle(window_rows, span_rows, shuffle_bytes, needed_bytes)}. Write the files with a page index "
        "(pyarrow: `write_page_index=True`), or with smaller row groups (`row_group_size`) if they have one, or pass "
        f"`shuffle_bytes={needed_bytes}` or more, which takes as much memory"
    )


def _said_of_shuffle(window_rows: int, span_rows: int, shuffle_bytes: int, _: int) -> str:
    moves = "in which rows stay in order" if window_rows == 1 else f"and rows move by less than {window_rows:,} places"
    return (
        f"the shuffle is coarse: shuffle_bytes ({shuffle_bytes} bytes) has no room for a few of the runs of about "
        f"{span_rows:,} rows that are read at once, {moves}"
    )


def _of_parts(
    url: str, row_group: int, num_parts: int, fetched: int, wanted: int, dictionaries: int, memory_limit: int
) -> str:
    """Tells of a row group whose parts fetch the same bytes."""
    if 2 * dictionaries > fetched - wanted:
        shared = "each needs the dictionaries of its columns"
        better = (
            "Write columns whose values hardly repeat without dictionaries (pyarrow: `use_dictionary=` a list of the "
            "others)"
        )
    else:
        shared = "its pages are large, or those of different columns begin at different rows, so that parts share them"
        better = "Write the files with smaller pages (pyarrow: `data_page_size`)"
    return (
        f"row group {row_group} of `{url}` is read in {num_parts:,} parts to fit into memory_limit ({memory_limit} "
        f"bytes), which fetch {fetched} bytes where {wanted} are wanted: {shared}. {better} or with smaller row groups "
        "(`row_group_size`), select fewer columns, or raise memory_limit"
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
