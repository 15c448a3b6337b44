"""States of `datasets` over Forebay's rows that behave as expected: each applies to one loop, and always exists."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.exceptions import StateError
from forebay.hf.versions import import_datasets
from forebay.iteration import Iteration
from forebay.options import check_count
from forebay.passes import MOST_EPOCH
from forebay.trainers import goes_on_behind, is_dividing

import_datasets("this module")

import datasets  # noqa: E402 - once its version is known
from datasets.iterable_dataset import _maybe_share_with_torch_persistent_workers  # noqa: E402 - as above

from forebay.hf.examples import ROW, SHARE, TYPE, plain, sharing  # noqa: E402 - as above
from forebay.hf.exports import export, features_of, num_rows_of  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BY_ROWS = 0
"""The batch size that means a loop over rows."""

OF_ROWS = {SHARE, ROW, "type"}
"""The keys of a state of Forebay's rows."""

NO_EPOCH = -1

FROM_EARLIER = (
    "load a state that was saved before, and iterate again; the present one may leave out the row on which it failed"
)
"""How to go on after an error: functions of `datasets` are called once their row is counted."""

IS_OVER = "is_over"
"""Key of a state that was saved after the last row of its epoch."""

IS_NEW = "is_new"
"""Key of a state that was saved before the first row of its epoch, and so belongs to a loop over rows or batches."""


def _step(name: str) -> Callable[..., Any]:
    """Returns a method of `datasets` whose result is also resumable."""
    step = getattr(datasets.IterableDataset, name)

    @functools.wraps(step)
    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        return resumable(step(self, *arguments, **settings))

    return method


class ResumableDataset(datasets.IterableDataset):  # type: ignore[misc]  # it has no types
    """A `datasets.IterableDataset` over Forebay's rows, with any steps applied to them."""

    _ex_iterable: Any
    _state_dict: dict[str, Any]
    _starting_state_dict: dict[str, Any] | None
    _set_epoch: Any = None
    """The epoch that was set, until a loop delivers a row, then `NO_EPOCH`. With torch, shared with workers."""
    _running: int = 0
    """How many loops are running, whose place would be lost if another one were prepared."""

    to_csv = export("to_csv")
    to_dict = export("to_dict")
    to_json = export("to_json")
    to_list = export("to_list")
    to_pandas = export("to_pandas")
    to_parquet = export("to_parquet")
    to_polars = export("to_polars")
    to_sql = export("to_sql")

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
    shuffle = _step("shuffle")
    skip = _step("skip")
    take = _step("take")
    with_format = _step("with_format")

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> Any:
        """Keeps one of `num_shards` shards; those that `accelerate` makes for its ranks have one size."""
        with sharing(evenly=is_dividing()):
            return resumable(super().shard(num_shards, index, contiguous))

    def __iter__(self) -> Iterator[Any]:
        return self._from_state(super().__iter__, BY_ROWS)

    def iter(self, batch_size: int | None, drop_last_batch: bool = False) -> Iterator[Any]:
        """Yields batches in the dataset's format; with tables, None means one batch of all rows."""
        return self._from_state(functools.partial(super().iter, batch_size, drop_last_batch), batch_size)

    def _from_state(self, items: Callable[[], Iterator[Any]], batch_size: int | None) -> Iterator[Any]:
        """Yields the items of a loop over the dataset; a loaded state applies to one loop."""
        state = self._starting_state_dict
        if state is not None and state.get(IS_OVER):
            # At once: a `StatefulDataLoader` makes a second iterator for the next epoch, without using this one.
            rest = list(items())
            self._state_dict, self._starting_state_dict = state, None
            return iter(rest)
        if state is None:
            # From now on, even before the first item, the state is no longer that of the loop before.
            self._prepare_ex_iterable_for_iteration(batch_size)
        return Iteration(self._forgetting(items), FROM_EARLIER)

    def _forgetting(self, items: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        is_rest, state = self._starting_state_dict is not None, None
        self._running += 1
        try:
            for item in items():
                if state is None:
                    # The state of this loop, even if a state is loaded for the next one meanwhile.
                    state = self._state_dict
                    state.pop(IS_NEW, None)
                    self._note_set_epoch(NO_EPOCH)
                self._state_dict, self._starting_state_dict = state, None
                yield item
        finally:
            self._running -= 1
        self._starting_state_dict = None
        if state is not None:
            state[IS_OVER] = True
        elif is_rest and not _is_worker() and (epoch := self._later_epoch(self.epoch)) is not None:
            # The state was loaded after that epoch was set, and its own epoch has no rows left.
            self.set_epoch(epoch)
            yield from self._forgetting(items)

    def _note_set_epoch(self, epoch: int) -> None:
        if self._set_epoch is None:
            self._set_epoch = _maybe_share_with_torch_persistent_workers(epoch)
        else:
            self._set_epoch += epoch - self._set_epoch

    def _later_epoch(self, epoch: int) -> int | None:
        """Returns the epoch that was set, if it is later than `epoch` and no loop has begun since."""
        later = NO_EPOCH if self._set_epoch is None else int(self._set_epoch)
        return later if later > epoch else None

    def _push_parquet_shards_to_hub(self, **settings: Any) -> Any:
        """Writes files, by default one per shard, but no more than there are rows."""
        resolved = self._resolve_features()
        if settings.get("num_shards") is None and settings.get("max_shard_size") is None:
            settings["num_shards"] = max(1, min(self.num_shards, num_rows_of(self._ex_iterable)))
        return datasets.IterableDataset._push_parquet_shards_to_hub(resolved, **settings)

    def _resolve_features(self) -> Any:
        """Returns the dataset with its features; without rows, those known from an earlier step."""
        if self.features is not None:
            return self
        try:
            return resumable(super()._resolve_features())
        except StopIteration:
            return self.cast(features_of(self))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the Hub cache of `datasets`, which Forebay's rows do not need and which holds tokens."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if not name.endswith(("__hffs_cache", "_running"))}

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next loop, which begins at its first row, or at a loaded state of the same epoch.

        Raises:
            SettingError: the epoch is no integer, is negative, or is too large.
        """
        epoch = check_count("epoch", epoch, least=0, most=MOST_EPOCH)
        is_other = epoch != self.epoch
        if is_other:
            self._starting_state_dict = None
        super().set_epoch(epoch)
        self._note_set_epoch(epoch)
        if self._starting_state_dict is None and (is_other or not self._running):
            self._prepare_ex_iterable_for_iteration()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the next row not yet received, as a small dict that can be written as JSON."""
        state: dict[str, Any] = plain(copy.deepcopy(self._starting_state_dict or super().state_dict()))
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next loop continue from `state_dict`, in its epoch.

        If that epoch is over, the loop has no rows, or, if a later epoch was set before, as trainers do, those of that
        epoch. In the workers of a loader, of which only some may be done, a later epoch overrides any state.

        Raises:
            StateError: it is not a state; in that loop: it is of other rows, steps or order, or of another share.
        """
        said: object = state_dict
        epoch, parts = (said.get("epoch"), said.get("examples_iterable")) if isinstance(said, Mapping) else (None, None)
        if type(epoch) is not int or not 0 <= epoch <= MOST_EPOCH or not isinstance(parts, Mapping):
            raise StateError(f"not a state of `to_hf`: expected `examples_iterable` and an `epoch`, got {state_dict!r}")
        if self._later_epoch(epoch) is not None and (state_dict.get(IS_OVER) or _is_worker()):
            self._starting_state_dict = None
            return
        if goes_on_behind(is_over=bool(state_dict.get(IS_OVER))):
            self.set_epoch(epoch + 1)
            return
        super().set_epoch(epoch)
        if state_dict.get(IS_NEW):
            self._starting_state_dict = None
            self._prepare_ex_iterable_for_iteration()
        else:
            super().load_state_dict(copy.deepcopy(dict(state_dict)))

    def _prepare_ex_iterable_for_iteration(
        self, batch_size: int | None = BY_ROWS, drop_last_batch: bool = False
    ) -> Any:
        state, steps = self._starting_state_dict, self._ex_iterable
        size = 1 if batch_size == BY_ROWS else batch_size
        # The steps hold the position of a loop: a running loop keeps its own copy.
        self._ex_iterable = _copied(steps)
        try:
            prepared = super()._prepare_ex_iterable_for_iteration(size, drop_last_batch)
        except (KeyError, IndexError, TypeError) as error:
            if state is None:
                raise
            raise StateError(
                f"this state does not belong to the steps that were taken here: they have no {error}"
            ) from error
        finally:
            self._ex_iterable = steps
        if state is not None:
            _check_parts(state["examples_iterable"], prepared._state_dict)
            _check_batch_size(state, prepared._state_dict, size)
        # datasets 5.0 keeps returning the loaded state: https://github.com/huggingface/datasets/issues/8308
        self._state_dict["examples_iterable"] = prepared._state_dict
        self._state_dict["batch_size"] = size
        if state is None:
            self._state_dict[IS_NEW] = True
        return prepared


# In messages of Python, such as that of `len`.
ResumableDataset.__name__ = datasets.IterableDataset.__name__


def _copied(steps: Any) -> Any:
    """Returns a copy of an examples iterable and its inputs that shares no state with it."""
    copied = copy.copy(steps)
    if hasattr(steps, "ex_iterable"):
        copied.ex_iterable = _copied(steps.ex_iterable)
    if hasattr(steps, "ex_iterables"):
        copied.ex_iterables = [_copied(part) for part in steps.ex_iterables]
    return copied


def _is_worker() -> bool:
    """Whether this process is a worker of a `DataLoader`."""
    torch: Any = sys.modules.get("torch.utils.data")
    return torch is not None and torch.get_worker_info() is not None


def _check_parts(state: Any, loaded: Any) -> None:
    """Refuses a state that lacks keys of Forebay's rows, for which `datasets` would take those of the beginning."""
    if not isinstance(loaded, dict):
        return
    said = state if isinstance(state, dict) else {}
    if loaded.get("type") == TYPE and said.keys() != OF_ROWS:
        raise StateError(f"not a state of `to_hf`: expected {', '.join(sorted(OF_ROWS))} of the rows, got {state!r}")
    for name, part in loaded.items():
        _check_parts(said.get(name), part)


def _check_batch_size(state: dict[str, Any], loaded: dict[str, Any], batch_size: int | None) -> None:
    """Refuses a state of another batch size: `datasets` counts the pieces into which it cuts tables for batches."""
    before = state.get("batch_size", batch_size)
    if before != batch_size and loaded.get("type") == "RebatchedArrowExamplesIterable":
        batches = {size: f"batches of {size}" for size in (before, batch_size)} | {1: "rows", None: "all rows at once"}
        raise StateError(
            f"this state is from a loop over {batches[before]}, not over {batches[batch_size]}, and `datasets` needs "
            "the same to go on; or read by `ds.batches()`, whose states know no batch size"
        )


def resumable(dataset: Any) -> Any:
    """Makes a dataset of `datasets` a `ResumableDataset`."""
    dataset.__class__ = ResumableDataset
    dataset._state_dict[IS_NEW] = True
    return dataset
