"""Streams: the things with a position. Ranks, epochs, states."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from forebay import bottleneck, display
from forebay._lib import __version__
from forebay.distributed import agreeing, process_group
from forebay.exceptions import PerformanceWarning, StateError
from forebay.options import ReadOptions, ShareOptions, check_count

if TYPE_CHECKING:
    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.distributed import Fact
    from forebay.formats import Format

SECONDS_TO_WAIT = 0.05
"""How long another thread waits for a batch at a time; a cancelled iteration leaves it behind for no longer."""

T = TypeVar("T")


class Stream(Generic[T]):
    """The batches of one rank, epoch by epoch, with a position that can be saved.

    Made by `Dataset.batches` and `Dataset.to_torch`. Iterating reads ahead on threads of its own, which end with the
    iterator; the position counts batches that the loop has received, not those read ahead.
    """

    def __init__(self, dataset: Dataset, share: ShareOptions, read: ReadOptions, format: Format | None = None) -> None:
        self._dataset = dataset
        self._share = share
        self._read = read
        self._reader: _lib.Reader | None = None
        self._epoch = 0
        self._start = 0
        self._position = 0
        self._worker: dict[str, Any] | None = None
        self._worker_mark: dict[str, int] | None = None
        self._active: _lib.Stream | None = None
        self._last_stats: dict[str, float] = {}
        self._format = None if format is None else format.prepare(self.reader)

    @property
    def reader(self) -> _lib.Reader:
        """Selection, spans and order; made when first needed."""
        return self._made_reader()

    def _made_reader(self, num_workers: int | None = None) -> _lib.Reader:
        """Returns the reader; if it is made now, and for one of one worker, with the first rows."""
        if self._reader is None:
            is_alone = num_workers == 1 and self._share.world_size == 1
            self._reader = self._dataset._make_reader(self._read, reads_all=is_alone)
        return self._reader

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, from 0. Another epoch than the current one starts at its beginning."""
        check_count("epoch", epoch, least=0)
        if epoch != self._epoch:
            self._epoch, self._start, self._position = epoch, 0, 0
            self._worker = self._worker_mark = None

    def __len__(self) -> int:
        """The exact number of batches that the next iteration delivers to this rank."""
        return self.reader.num_batches(self._native_share(0, 1))

    @property
    def num_dropped(self) -> int:
        """Rows of the epoch that `remainder="drop"` keeps from every rank; fewer than `world_size`."""
        return self.reader.num_dropped(self._native_share(0, 1))

    def __iter__(self) -> Iterator[T]:
        return self._deliver(*self._begin(0, 1))

    def __aiter__(self) -> AsyncIterator[T]:
        """Iterates beside other tasks of a running event loop, which it does not block while it waits."""
        return self._deliver_async(*self._begin(0, 1))

    def _iterate(self, worker: int, num_workers: int) -> Iterator[T]:
        """Yields every `num_workers`-th batch from number `worker` on, in a process that cannot ask other ranks."""
        return self._deliver(*self._begin(worker, num_workers), is_alone=False)

    def _begin(self, worker: int, num_workers: int) -> tuple[int, dict[str, Any]]:
        """Takes the start of the next iteration: its epoch and share.

        Not when the first batch is asked for: a worker that has not delivered anything yet is asked for its state, too.
        """
        self._share.check_world()
        reader = self._made_reader(num_workers)
        if worker == 0:
            warn_of_missing_index(self._dataset._native.fingerprint, reader.unindexed(), self._read.memory_limit)
        mark = self._mark(worker, num_workers)
        if self._worker is not None and self._worker != mark:
            got, here = self._worker, f"worker {worker} of {num_workers} in global batches of {self._step} rows"
            raise StateError(
                f"this state is of worker {got.get('index')} of {got.get('num_workers')} in global batches of "
                f"{got.get('step')} rows, not of {here}; reduce the loader's state with `forebay.cursor(state)` to "
                "change workers, batch size or world size"
            )
        share = self._native_share(worker, num_workers)
        if self._worker is not None:
            # The state's position is that of the worker's own next batch.
            share["worker"] = 0
        self._start, self._worker, self._worker_mark = 0, None, mark
        self._position = share["position"] if mark is None else self._next_position(share, 0)
        return self._epoch, share

    def _deliver(self, epoch: int, share: dict[str, Any], *, is_alone: bool = True) -> Iterator[T]:
        with self._running(epoch, share) as stream:
            # Reading ahead has begun meanwhile.
            for pause in self._agreeing(epoch, share) if is_alone else ():
                time.sleep(pause)
            for number in count(1):
                batch = stream.next()
                if batch is None:
                    return
                yield self._receive(batch, stream, share, number)

    async def _deliver_async(self, epoch: int, share: dict[str, Any]) -> AsyncIterator[T]:
        """As `_deliver`; only waiting happens in another thread, so that a cancelled wait loses no batch."""
        import asyncio

        with self._running(epoch, share) as stream:
            for pause in self._agreeing(epoch, share):
                await asyncio.sleep(pause)
            for number in count(1):
                while not stream.wait(0):
                    await asyncio.to_thread(stream.wait, SECONDS_TO_WAIT)
                batch = stream.next()
                if batch is None:
                    return
                yield self._receive(batch, stream, share, number)

    @contextmanager
    def _running(self, epoch: int, share: dict[str, Any]) -> Iterator[_lib.Stream]:
        stream = self.reader.stream(epoch, share)
        self._active = stream
        try:
            yield stream
        finally:
            self._last_stats = stream.stats()
            self._active = None
            stream.close()

    def _receive(self, batch: _lib.Batch, stream: _lib.Stream, share: dict[str, Any], number: int) -> T:
        """Converts the `number`-th batch, counted from 1, and moves the position behind it."""
        value = cast("T", batch if self._format is None else self._format(batch))
        is_alone = share["num_workers"] == 1
        self._position = stream.position() if is_alone else self._next_position(share, number)
        return value

    def check_ranks(self) -> None:
        """Compares with the other ranks what the next iteration delivers; every rank must call it.

        Where the rank was found in an initialised process group, this happens by itself before the first batch of each
        iteration. DataLoader workers have no process group: with workers, call this before the loop.

        Raises:
            AgreementError: on every rank, when dataset, query, order, epoch, position, batch size or remainder differ
                between them; the message says what and where.
        """
        for pause in self._agreeing(self._epoch, self._native_share(0, 1)):
            time.sleep(pause)

    def _agreeing(self, epoch: int, share: dict[str, Any]) -> Iterator[float]:
        """Yields pauses until all ranks of the process group have agreed to deliver the same."""
        distributed = process_group()
        if distributed is not None and self._share.is_detected and self._share.world_size > 1:
            yield from agreeing(distributed, self._facts(epoch, share))

    def _facts(self, epoch: int, share: dict[str, Any]) -> dict[str, Fact]:
        """Returns what must be the same on every rank."""
        state = json.loads(self.reader.state(epoch, share["position"]))
        order = {"seed": 0, "num_lanes": 0, "window_rows": 0, "shuffle_bytes": 0} | state["order"]
        return {
            "version of Forebay": __version__,
            "dataset": state["fingerprint"],
            "query": state["query"],
            "number of rows": self.reader.num_rows,
            "order": order.pop("kind"),
            **{f"order.{name}": value for name, value in order.items()},
            "epoch": epoch,
            "position": share["position"],
            **{name: share[name] for name in ("batch_size", "remainder", "drop_last")},
        }

    @property
    def _step(self) -> int:
        """Rows of a batch of all ranks."""
        return self._share.batch_size * self._share.world_size

    def _mark(self, worker: int, num_workers: int) -> dict[str, int] | None:
        """Returns what tells a worker's state from one that holds for the whole rank."""
        return None if num_workers == 1 else {"index": worker, "num_workers": num_workers, "step": self._step}

    def _next_position(self, share: dict[str, Any], num_batches: int) -> int:
        """Returns the position of a worker's next batch, or the end of what is delivered."""
        dropped = self.reader.num_dropped(share) if share["remainder"] == "drop" else 0
        number = share["worker"] + num_batches * share["num_workers"]
        return min(int(share["position"] + number * self._step), self.reader.num_rows - dropped)

    def _native_share(self, worker: int, num_workers: int) -> dict[str, Any]:
        share = self._share
        return {
            "rank": share.rank,
            "world_size": share.world_size,
            "batch_size": share.batch_size,
            "position": self._start,
            "remainder": share.remainder,
            "drop_last": share.drop_last,
            "worker": worker,
            "num_workers": num_workers,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position as a small JSON-able dict: that of the next batch not yet received.

        Any rank's is enough for all, because ranks step together; it holds for any world size, batch size and number of
        workers. O(1): no rows, no random state.
        """
        state: dict[str, Any] = json.loads(self.reader.state(self._epoch, self._position))
        if self._worker_mark is not None:
            state["worker"] = dict(self._worker_mark)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`: nothing lost, nothing doubled, nothing replayed; reads at most the current windows.

        Raises:
            StateError: `state` is of another dataset version, query or order; the message says what differs.
        """
        try:
            text = json.dumps({key: value for key, value in state.items() if key != "worker"})
        except (TypeError, ValueError, AttributeError) as error:
            raise StateError(f"not a Forebay state: {error}") from error
        worker = state.get("worker")
        if worker is not None and not isinstance(worker, dict):
            raise StateError(f"not a Forebay state: worker: expected a dict, got {worker!r}")
        self._epoch, self._start = self.reader.read_state(text)
        self._position = self._start
        self._worker = self._worker_mark = worker

    def stats(self) -> dict[str, float]:
        """Rows, bytes, requests, memory and waiting time of the running iteration, or of the last one."""
        return self._active.stats() if self._active is not None else dict(self._last_stats)

    def bottleneck(self) -> str:
        """What the running iteration, or the last one, is waiting for most, and what would help: one sentence.

        Example:
            >>> stream = ds.batches(100)
            >>> for batch in stream:
            ...     pass
            >>> stream.bottleneck().split(":")[0] in ("the store", "memory", "decoding", "gathering", "the loop itself")
            True
        """
        return bottleneck.sentence(self.stats(), self._read.memory_limit)

    def __arrow_c_schema__(self) -> object:
        return self._dataset.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hands the rest of the epoch to an Arrow consumer, which then owns the position."""
        self._share.check_world()
        self._made_reader(num_workers=1)
        self.check_ranks()
        return self.reader.stream(self._epoch, self._native_share(0, 1)).__arrow_c_stream__(requested_schema)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and their memory stay behind; the reader is made again from the pickled selection.
        return self.__dict__ | {"_reader": None, "_active": None}

    def __repr__(self) -> str:
        share = self._share
        return (
            f"{type(self).__name__}(rank {share.rank} of {share.world_size}, batch_size={share.batch_size}, "
            f"epoch={self._epoch}, position={self._position})"
        )

    def _repr_html_(self) -> str:
        return display.stream_html(self, repr(self))


_warned: set[str] = set()
"""Fingerprints of the datasets that were warned of."""


def warn_of_missing_index(fingerprint: str, found: tuple[str, int, int, int] | None, memory_limit: int) -> None:
    """Says once for each dataset that its row groups are large for the memory and cannot be read in parts."""
    if found is None or fingerprint in _warned:
        return
    _warned.add(fingerprint)
    url, row_group, needed, num_row_groups = found
    warnings.warn(
        f"row group {row_group} of `{url}` needs {needed} bytes at once, more than a quarter of memory_limit "
        f"({memory_limit} bytes), because it has no page index ({num_row_groups:,} such in the dataset). The shuffle "
        "is coarse, and rows may be read again. Write the files with a page index (pyarrow: `write_page_index=True`) "
        "or with smaller row groups (`row_group_size`), or raise memory_limit",
        PerformanceWarning,
        stacklevel=4,
    )


def cursor(loader_state: Mapping[str, Any]) -> dict[str, Any]:
    """Reduces the state of a `torchdata.StatefulDataLoader` to one cursor, valid for any number of workers.

    The cursor is the smallest next batch of the loader's workers, which take batches in turn.

    Args:
        loader_state: What `StatefulDataLoader.state_dict()` returned. A state of ours comes back as it is.

    Raises:
        StateError: there is no state of ours inside, or not one of every worker.
    """
    states = list(_states_in(loader_state))
    if not states:
        raise StateError("no Forebay state inside; expected what `StatefulDataLoader.state_dict()` returned")
    first = min(states, key=lambda state: int(state["position"]))
    marks = [state["worker"] for state in states if "worker" in state]
    if marks and {mark["index"] for mark in marks} != set(range(marks[0]["num_workers"])):
        raise StateError(f"the state is of {len(marks)} workers, but there were {marks[0]['num_workers']}")
    return {key: value for key, value in first.items() if key != "worker"}


def _states_in(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if value.get("_steps_since_snapshot"):
            raise StateError(
                f"the loader's state is {value['_steps_since_snapshot']} batches older than its position; make the "
                "`StatefulDataLoader` with `snapshot_every_n_steps=1`"
            )
        if "fingerprint" in value and "position" in value:
            yield value
        else:
            for inner in value.values():
                yield from _states_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _states_in(inner)
