"""Exports of `datasets`, which concatenate the tables of a loop, for datasets that may have no rows.

`datasets` fails if a loop yields no table, so every shard that is written must hold a row. Here, a loop without rows
yields one empty table.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from forebay.hf.versions import import_datasets

import_datasets("this module")

import datasets  # noqa: E402 - once its version is known

from forebay.hf.examples import ForebayExamplesIterable  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa


class OneTable:
    """What an export uses of a dataset: its features, and its tables, of which there is at least one."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.features = dataset.features

    def with_format(self, type: str) -> OneTable:  # noqa: ARG002 - exports ask for that of Arrow alone
        """Returns itself: its batches are tables."""
        return self

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        """Yields the rows as tables."""
        tables = self._dataset.with_format("arrow").iter(batch_size)
        first = next(tables, None)
        yield features_of(self._dataset).arrow_schema.empty_table() if first is None else first
        yield from tables


def export(name: str) -> Callable[..., Any]:
    """Returns an export method of `datasets` that also takes a dataset without rows."""
    theirs = getattr(datasets.IterableDataset, name)
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        # An export that yields tables one by one may yield none.
        is_batched = signature.bind(self, *arguments, **settings).arguments.get("batched", False)
        return theirs(self if is_batched else OneTable(self), *arguments, **settings)

    return method


def features_of(dataset: Any) -> Any:
    """Returns the features of a dataset without rows.

    The columns that a function makes are unknown then; its input columns stand for them, as after the `map` of a
    `datasets.Dataset` without rows.
    """
    return _features_of(dataset._ex_iterable) if dataset.features is None else dataset.features


def _features_of(rows: Any) -> Any:
    features = rows.own_features if isinstance(rows, ForebayExamplesIterable) else rows.features
    if features is not None:
        return features
    removed = getattr(rows, "remove_columns", None) or ()
    given = _features_of(_before(rows)[0])
    return datasets.Features({name: feature for name, feature in given.items() if name not in removed})


def num_rows_of(rows: Any) -> int:
    """Returns how many rows of Forebay an examples iterable is made from."""
    return rows.num_rows if isinstance(rows, ForebayExamplesIterable) else sum(map(num_rows_of, _before(rows)))


def _before(rows: Any) -> list[Any]:
    """Returns the inputs of a step."""
    return [rows.ex_iterable] if hasattr(rows, "ex_iterable") else list(rows.ex_iterables)
