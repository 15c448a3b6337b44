"""States of what `datasets` makes of our rows, as one expects them: each holds for one loop, and is always there."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

from forebay.hf.versions import import_datasets

import_datasets("this module")

import datasets  # noqa: E402 - once its version is known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


BY_ROWS = 0
"""The size of the batches of a loop over rows."""


def _step(name: str) -> Callable[..., Any]:
    """Returns a method of `datasets` whose result is one of ours, too."""
    step = getattr(datasets.IterableDataset, name)

    @functools.wraps(step)
    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        return resumable(step(self, *arguments, **settings))

    return method


class ResumableDataset(datasets.IterableDataset):  # type: ignore[misc]  # it has no types
    """A `datasets.IterableDataset` of Forebay's rows, whatever was done to them since."""

    _starting_state_dict: dict[str, Any] | None

    add_column = _step("add_column")
    batch = _step("batch")
    cast = _step("cast")
    cast_column = _step("cast_column")
    decode = _step("decode")
    filter = _step("filter")
    map = _step("map")
    remove_columns = _step("remove_columns")
    rename_column = _step("rename_column")
    rename_columns = _step("rename_columns")
    repeat = _step("repeat")
    reshard = _step("reshard")
    select_columns = _step("select_columns")
    shard = _step("shard")
    shuffle = _step("shuffle")
    skip = _step("skip")
    take = _step("take")
    with_format = _step("with_format")

    def __iter__(self) -> Iterator[Any]:
        return self._from_state(super().__iter__(), BY_ROWS)

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Iterator[Any]:
        """Yields batches, in the dataset's format."""
        return self._from_state(super().iter(batch_size, drop_last_batch), batch_size)

    def _from_state(self, items: Iterator[Any], batch_size: int) -> Iterator[Any]:
        """Yields what a loop over the dataset does; a state that was loaded holds for one loop."""
        if self._starting_state_dict is None:
            # Until the first item, the state is not any more that of the loop before.
            self._prepare_ex_iterable_for_iteration(batch_size)
        return self._forgetting(items)

    def _forgetting(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._starting_state_dict = None
            yield item
        self._starting_state_dict = None

    def state_dict(self) -> dict[str, Any]:
        """The position as a small JSON-able dict: that of the next row not yet received."""
        state: dict[str, Any] = self._starting_state_dict or super().state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Has the next loop go on from `state_dict`, in its epoch.

        Raises:
            StateError: in that loop, when it is of other rows, of another order or of another share of them.
        """
        super().load_state_dict(copy.deepcopy(dict(state_dict)))
        self.set_epoch(int(state_dict["epoch"]))

    def _prepare_ex_iterable_for_iteration(self, batch_size: int = BY_ROWS, drop_last_batch: bool = False) -> Any:
        prepared = super()._prepare_ex_iterable_for_iteration(batch_size or 1, drop_last_batch)
        # datasets 5.0 goes on telling the state that was loaded: https://github.com/huggingface/datasets/issues/8308
        self._state_dict["examples_iterable"] = prepared._state_dict
        return prepared


def resumable(dataset: Any) -> Any:
    """Makes a dataset of `datasets` one of these."""
    dataset.__class__ = ResumableDataset
    return dataset
