"""States of what `datasets` makes of our rows, as one expects them: each holds for one loop, and is always there."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.exceptions import StateError
from forebay.hf.versions import import_datasets
from forebay.iteration import Iteration
from forebay.passes import MOST_EPOCH
from forebay.secrets import are_pickled
from forebay.trainers import goes_on_behind, is_dividing

import_datasets("this module")

import datasets  # noqa: E402 - once its version is known
from datasets.iterable_dataset import _maybe_share_with_torch_persistent_workers  # noqa: E402 - as above

from forebay.hf.examples import ROW, SHARE, TYPE, sharing  # noqa: E402 - as above
from forebay.hf.exports import export, features_of, num_rows_of  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BY_ROWS = 0
"""The size of the batches of a loop over rows."""

OF_ROWS = {SHARE, ROW, "type"}
"""What a state says of our rows."""

NO_EPOCH = -1

IS_OVER = "is_over"
"""What a state says that was saved behind the last row of its epoch, and no other."""


def _step(name: str) -> Callable[..., Any]:
    """Returns a method of `datasets` whose result is one of ours, too."""
    step = getattr(datasets.IterableDataset, name)

    @functools.wraps(step)
    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        return resumable(step(self, *arguments, **settings))

    return method


class ResumableDataset(datasets.IterableDataset):  # type: ignore[misc]  # it has no types
    """A `datasets.IterableDataset` of Forebay's rows, whatever was done to them since."""

    _ex_iterable: Any
    _state_dict: dict[str, Any]
    _starting_state_dict: dict[str, Any] | None
    _set_epoch: Any = None
    """The epoch that was set, until a loop delivers a row, then `NO_EPOCH`. With torch, in memory of workers, too."""
    _running: int = 0
    """How many loops are being taken from, whose place is lost where another one is prepared."""

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
        """Keeps one of `num_shards` shares: those that `accelerate` makes for its ranks are of one size."""
        with sharing(evenly=is_dividing()):
            return resumable(super().shard(num_shards, index, contiguous))

    def __iter__(self) -> Iterator[Any]:
        return self._from_state(super().__iter__, BY_ROWS)

    def iter(self, batch_size: int | None, drop_last_batch: bool = False) -> Iterator[Any]:
        """Yields batches, in the dataset's format; of tables, None has one of all rows."""
        return self._from_state(functools.partial(super().iter, batch_size, drop_last_batch), batch_size)

    def _from_state(self, items: Callable[[], Iterator[Any]], batch_size: int | None) -> Iterator[Any]:
        """Yields what a loop over the dataset does; a state that was loaded holds for one loop."""
        state = self._starting_state_dict
        if state is not None and state.get(IS_OVER):
            # At once: a `StatefulDataLoader` goes on to the next epoch by another iterator, without a look at this one.
            rest = list(items())
            self._state_dict, self._starting_state_dict = state, None
            return iter(rest)
        if state is None:
            # Until the first item, the state is not any more that of the loop before.
            self._prepare_ex_iterable_for_iteration(batch_size)
        return Iteration(self._forgetting(items))

    def _forgetting(self, items: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        is_rest, state = self._starting_state_dict is not None, None
        self._running += 1
        try:
            for item in items():
                if state is None:
                    # That of this loop, even where a state is loaded for the next meanwhile.
                    state = self._state_dict
                    self._note_set_epoch(NO_EPOCH)
                self._state_dict, self._starting_state_dict = state, None
                yield item
        finally:
            self._running -= 1
        self._starting_state_dict = None
        if state is not None:
            state[IS_OVER] = True
        elif is_rest and not _is_worker() and (epoch := self._later_epoch(self.epoch)) is not None:
            # The state was loaded later than that was set, and nothing was left of its own epoch.
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
        """Writes files, which are as many as the shards by default, but no more than there are rows."""
        resolved = self._resolve_features()
        if settings.get("num_shards") is None and settings.get("max_shard_size") is None:
            settings["num_shards"] = max(1, min(self.num_shards, num_rows_of(self._ex_iterable)))
        return datasets.IterableDataset._push_parquet_shards_to_hub(resolved, **settings)

    def _resolve_features(self) -> Any:
        """Returns the dataset with its features, which without rows are those that are known of a step before."""
        if self.features is not None:
            return self
        try:
            return resumable(super()._resolve_features())
        except StopIteration:
            return self.cast(features_of(self))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the cache that `datasets` has of the Hub: our rows need none, and it holds tokens."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if not name.endswith(("__hffs_cache", "_running"))}

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next loop: from its first row, or from a state of it that was loaded."""
        is_other = epoch != self.epoch
        if is_other:
            self._starting_state_dict = None
        super().set_epoch(epoch)
        self._note_set_epoch(epoch)
        if is_other or not self._running:
            self._prepare_ex_iterable_for_iteration()

    def state_dict(self) -> dict[str, Any]:
        """The position as a small JSON-able dict: that of the next row not yet received."""
        state: dict[str, Any] = self._starting_state_dict or super().state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Has the next loop go on from `state_dict`, in its epoch.

        Where that is over, the loop has no rows, or is one over a later epoch that was set before, as trainers do. In
        the workers of a loader, of which some may be done and others not, that goes before any state.

        Raises:
            StateError: it is none; in that loop, when it is of other rows, steps or order, or of another share of them.
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
        super().load_state_dict(copy.deepcopy(dict(state_dict)))
        super().set_epoch(epoch)

    def _prepare_ex_iterable_for_iteration(
        self, batch_size: int | None = BY_ROWS, drop_last_batch: bool = False
    ) -> Any:
        state, steps = self._starting_state_dict, self._ex_iterable
        size = 1 if batch_size == BY_ROWS else batch_size
        # Which note where a loop stands: one that is running keeps its own.
        self._ex_iterable = _copied(steps)
        try:
            prepared = super()._prepare_ex_iterable_for_iteration(size, drop_last_batch)
        except (KeyError, IndexError, TypeError) as error:
            if state is None:
                raise
            raise StateError(f"this state is not of the steps that were taken here: no {error} in them") from error
        finally:
            self._ex_iterable = steps
        if state is not None:
            _check_parts(state["examples_iterable"], prepared._state_dict)
            _check_batch_size(state, prepared._state_dict, size)
        # datasets 5.0 goes on telling the state that was loaded: https://github.com/huggingface/datasets/issues/8308
        self._state_dict["examples_iterable"] = prepared._state_dict
        self._state_dict["batch_size"] = size
        return prepared


def _copied(steps: Any) -> Any:
    """Returns an examples iterable, with those that it is made on, that shares no state with this one."""
    copied = copy.copy(steps)
    if hasattr(steps, "ex_iterable"):
        copied.ex_iterable = _copied(steps.ex_iterable)
    if hasattr(steps, "ex_iterables"):
        copied.ex_iterables = [_copied(part) for part in steps.ex_iterables]
    return copied


def _is_worker() -> bool:
    """Tells whether this process is a `DataLoader`'s worker."""
    torch: Any = sys.modules.get("torch.utils.data")
    return torch is not None and torch.get_worker_info() is not None


def _check_parts(state: Any, loaded: Any) -> None:
    """Refuses a state that lacks something of our rows: `datasets` would take what stands at their beginning."""
    if not isinstance(loaded, dict):
        return
    said = state if isinstance(state, dict) else {}
    if loaded.get("type") == TYPE and said.keys() != OF_ROWS:
        raise StateError(f"not a state of `to_hf`: expected {', '.join(sorted(OF_ROWS))} of the rows, got {state!r}")
    for name, part in loaded.items():
        _check_parts(said.get(name), part)


def _check_batch_size(state: dict[str, Any], loaded: dict[str, Any], batch_size: int | None) -> None:
    """Refuses a state of batches of another size: `datasets` counts the pieces into which it cuts tables for them."""
    before = state.get("batch_size", batch_size)
    if before != batch_size and loaded.get("type") == "RebatchedArrowExamplesIterable":
        batches = {size: f"batches of {size}" for size in (before, batch_size)} | {1: "rows", None: "all rows at once"}
        raise StateError(
            f"this state is of a loop over {batches[before]}, not over {batches[batch_size]}, and `datasets` needs the "
            "same to go on; or read by `ds.batches()`, whose states know no batch size"
        )


class Tokens(dict[str, Any]):
    """The tokens of repositories that `datasets` decodes with; a pickle has them where it has other secrets."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Others say that nobody, or who is logged in, is meant.
        kept = {name: token for name, token in self.items() if are_pickled() or not isinstance(token, str)}
        return Tokens, (kept,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokens:
        return Tokens(self)


def resumable(dataset: Any) -> Any:
    """Makes a dataset of `datasets` one of these."""
    dataset.__class__ = ResumableDataset
    return dataset
