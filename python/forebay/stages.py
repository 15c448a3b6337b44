"""Stages between a stream and the loop, such as functions and copies to a device. Each wraps the one before.

A stage takes batches ahead of the loop, but only those that are ready: it never waits while it has one to deliver. Each
batch carries the position of its rows in the epoch, and the position of the stream once the loop has the batch, so that
batches held by stages do not count in a state.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from forebay.compat import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from forebay import _lib
    from forebay.passes import Cursor, Run
    from forebay.pool.ordered import Crew

    Reading = Callable[[Run], AbstractContextManager["Batches"]]

NO_ARROW = (
    "Arrow: which columns functions return is known only from their batches; loop over `batches(n)`: tables of "
    "`ds.with_format('arrow').map(function, batched=True)` go into `pyarrow.concat_tables` or a `ParquetWriter`"
)
"""Why a dataset or stream with functions is not an Arrow stream."""

SECONDS_BETWEEN_LOOKS = 0.001
"""How often a loop looks for what nothing announces: a batch of a stage, or one of the stream for idle workers."""

MOST_TAKEN = 8
MOST_BYTES_TAKEN = 4 << 20
MOST_SECONDS_CONVERTING = 0.0005
"""How many ready batches are taken from the native stream at a time, and for how long they are converted. After a
training step, nothing of Forebay is left in the processor's caches, so the first batch takes a fifth of a millisecond
and each further one a hundredth."""


class Item(NamedTuple):
    """A batch on its way to the loop."""

    value: Any
    num_rows: int
    first: int
    """Position of its first row in the epoch."""
    after: Cursor
    """The position of the stream once the loop has the batch."""
    skipped: tuple[int, int] = (0, 0)
    """Rows left out since the batch before: those that could not be read, and those whose images are broken."""


class Waiting:
    """How long a loop has waited for functions, not counting waits for the stream."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None

    def note(self, *, is_on: bool) -> None:
        """Notes that the loop begins, or stops, to wait for functions."""
        now = time.perf_counter()
        if self._since is not None:
            self.seconds += now - self._since
        self._since = now if is_on else None


class Loop(ExitStack):
    """One loop over a stream, of one or several passes; what it is given to close ends with it."""

    crew: Crew | None = None
    """Workers of this loop only."""


@dataclass(frozen=True)
class Pass:
    """One iteration over an epoch, or the rest of one."""

    epoch: int
    seed: int
    rank: int
    world_size: int
    is_alone: bool
    """Whether this process takes all batches of its rank, and so is not a DataLoader worker."""
    num_positions: int | None = None
    """Positions of the epoch; one beyond them is a repeated row, for ranks that lacked one."""
    waiting: Waiting = field(default_factory=Waiting)
    """Noted by stages that run functions."""
    loop: Loop = field(default_factory=Loop)
    """The loop that the pass is part of."""


class Batches(Protocol):
    """Batches in order. `next` waits for one; `StopIteration` marks the end."""

    @property
    def stream(self) -> _lib.Stream | None:
        """The native stream of the batches, if no stage has changed them."""

    def is_ready(self) -> bool:
        """Whether `next` would return, raise or end at once."""

    def __next__(self) -> Item: ...

    def close(self) -> None:
        """Drops batches that were taken ahead."""


class Running(Protocol):
    """The state of a running read."""

    def holes(self) -> list[dict[str, Any]]:
        """Rows that could not be read so far."""

    def stats(self) -> dict[str, float]:
        """Statistics so far."""


class Stage(Protocol):
    """Makes batches from those of the stage before."""

    def begin(self, batches: Batches, this: Pass) -> Batches:
        """Begins an iteration."""


class Read:
    """The batches of a native stream: the first stage."""

    def __init__(
        self,
        stream: _lib.Stream,
        convert: Callable[[_lib.Batch], Any] | None,
        ends: Callable[[int, int], tuple[int, Cursor]],
        step: int,
        before: Mapping[str, float],
    ) -> None:
        self.stream = stream
        self._convert = convert
        self._ends = ends
        # Distance between the positions of consecutive rows.
        self._step = step
        # What earlier passes left out, by the names of the statistics.
        self._before = before
        self._number = 0
        self.num_rows_skipped = self.num_images_skipped = 0
        # Not yet delivered: batches of the stream, converted items, and the error that comes after them.
        self._taken: deque[tuple[_lib.Batch, int, tuple[int, int]]] = deque()
        self._items: deque[Item] = deque()
        self._error: Exception | None = None
        self._is_left = False
        self._of_parent: Any = None
        leave_at_fork(self)

    def is_ready(self) -> bool:
        """Whether a batch is ready, or none will come."""
        return bool(self._items or self._taken) or self._error is not None or self.stream.wait(0)

    def __next__(self) -> Item:
        if not self._items:
            self._convert_some()
        item = self._items.popleft()
        num_rows, num_images = item.skipped
        self.num_rows_skipped += num_rows
        self.num_images_skipped += num_images
        return item

    def _convert_some(self) -> None:
        """Converts ready batches to items; waits for the first one."""
        if self._error is not None:
            raise self._error
        if not self._taken:
            self._taken.extend(self.stream.take(MOST_TAKEN, MOST_BYTES_TAKEN))
            if not self._taken:
                raise StopIteration
        end = time.perf_counter() + MOST_SECONDS_CONVERTING
        try:
            while self._taken and (not self._items or time.perf_counter() < end):
                batch, position, skipped = self._taken.popleft()
                self._number += 1
                first, after = self._ends(self._number, position)
                value = self._converted(batch, first)
                self._items.append(Item(value, len(batch), first, after, skipped))
        except Exception as error:
            # Raised after the items before it.
            self._error = error
            if not self._items:
                raise

    def _converted(self, batch: _lib.Batch, first: int) -> Any:
        if self._convert is None:
            return batch
        try:
            return self._convert(batch)
        except Exception as error:
            # Where rows are missing, a row's place in its batch does not tell its position.
            if not self.stream.holes():
                locate(error, range(first, first + self._step * len(batch), self._step))
            raise

    def leave_to_parent(self) -> None:
        """Forgets all batches in a forked process: they are the parent's to deliver."""
        # Nothing is freed here: another thread may have held an allocator's lock when the process was forked.
        self._of_parent = self._items, self._taken
        self._items, self._taken, self._error = deque(), deque(), None

    def holes(self) -> list[dict[str, Any]]:
        """Rows that could not be read so far."""
        return self.stream.holes()

    def stats(self) -> dict[str, float]:
        """Statistics so far; batches that the loop has not received count as ready, not as delivered."""
        stats = self.stream.stats()
        # Copied at once: the loop may go on in another thread meanwhile.
        items, taken = list(self._items), list(self._taken)
        num_ready = len(items) + len(taken)
        stats["batches"] -= num_ready
        stats["batches_ready"] += num_ready
        stats["rows"] -= sum(item.num_rows for item in items) + sum(len(batch) for batch, _, _ in taken)
        skipped = [item.skipped for item in items] + [skipped for _, _, skipped in taken]
        stats["rows_skipped"] -= sum(num_rows for num_rows, _ in skipped)
        stats["images_skipped"] -= sum(num_images for _, num_images in skipped)
        for name, count in self._before.items():
            stats[name] += count
        if self._is_left:
            stats["memory_bytes"] = 0
        return stats

    def close(self) -> None:
        """Notes that the creator of the stream closes it now, which frees its memory."""
        self._is_left = True


class Holding(Protocol):
    """Holds batches that only the process that took them may deliver."""

    def leave_to_parent(self) -> None:
        """Forgets all batches in a forked process."""


_holding: weakref.WeakSet[Holding] = weakref.WeakSet()


def leave_at_fork(holding: Holding) -> None:
    """Calls `leave_to_parent` in processes that are forked from this one."""
    _holding.add(holding)


def _leave_to_parent() -> None:
    for holding in _holding:
        holding.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class Delivered:
    """Counts batches as the loop gets them, since stages take batches ahead and may keep the loop waiting."""

    def __init__(self, batches: Batches, read: Read, waiting: Waiting) -> None:
        self._batches = batches
        self._read = read
        self._waiting = waiting
        self._num_batches = self._num_rows = self._num_rows_skipped = self._num_images_skipped = 0
        self._seconds_waited = 0.0
        self._since: float | None = None
        self._began = time.perf_counter()
        self._ended: float | None = None

    @property
    def stream(self) -> _lib.Stream:
        """The native stream of the batches."""
        return self._read.stream

    def is_ready(self) -> bool:
        """Whether the next batch is ready, or none will come. A caller of this counts as waiting."""
        if self._since is None:
            self._since = time.perf_counter()
        return self._batches.is_ready()

    def __next__(self) -> Item:
        since = time.perf_counter() if self._since is None else self._since
        try:
            item = next(self._batches)
        finally:
            self._since = None
            self._waiting.note(is_on=False)
            self._seconds_waited += time.perf_counter() - since
        self._num_batches += 1
        self._num_rows += item.num_rows
        num_rows, num_images = item.skipped
        self._num_rows_skipped += num_rows
        self._num_images_skipped += num_images
        return item

    def holes(self) -> list[dict[str, Any]]:
        """Rows that could not be read so far."""
        return self._read.holes()

    def stats(self) -> dict[str, float]:
        """Statistics so far; batches held by stages count as ready, not as delivered."""
        stats = self._read.stats()
        stats["batches_ready"] += stats["batches"] - self._num_batches
        stats["batches"], stats["rows"] = self._num_batches, self._num_rows
        stats["rows_skipped"] -= self._read.num_rows_skipped - self._num_rows_skipped
        stats["images_skipped"] -= self._read.num_images_skipped - self._num_images_skipped
        # The stream may have ended before the stages.
        ended = time.perf_counter() if self._ended is None else self._ended
        stats["seconds"] = max(stats["seconds"], ended - self._began)
        stats["seconds_waited"] = self._seconds_waited
        stats["seconds_waited_for_functions"] = self._waiting.seconds
        return stats

    def close(self) -> None:
        """Closes the stages."""
        self._ended = time.perf_counter()
        self._batches.close()


class Until:
    """Batches up to the last step of an epoch; those after it belong to the next epoch."""

    def __init__(self, batches: Batches, num_steps: int, num_workers: int) -> None:
        self._batches = batches
        self._num_steps = num_steps
        self._num_workers = num_workers
        self._is_over = False

    @property
    def stream(self) -> _lib.Stream | None:
        """The native stream of the batches, if no stage has changed them."""
        return self._batches.stream

    def is_ready(self) -> bool:
        """Whether a batch is ready, or none will come."""
        return self._is_over or self._batches.is_ready()

    def __next__(self) -> Item:
        if self._is_over:
            raise StopIteration
        item = next(self._batches)
        # Batches without a readable row may have been skipped.
        done = item.after.done
        self._is_over = done >= self._num_steps
        if done - self._num_workers >= self._num_steps:
            raise StopIteration
        return item

    def close(self) -> None:
        """Closes the stage before."""
        self._batches.close()


class Alone:
    """A rank that reads for itself."""

    def __init__(self, read: Reading) -> None:
        self._read = read

    def meeting(
        self,
        agreeing: Iterator[float],  # noqa: ARG002 - no rank has to agree first
        start: Cursor,  # noqa: ARG002
        *,
        takes_part: bool = True,  # noqa: ARG002
    ) -> Iterator[float]:
        """Yields pauses until it is known who reads."""
        return iter(())

    def reading(self, run: Run) -> AbstractContextManager[Batches]:
        """Begins a pass."""
        return self._read(run)

    def close(self) -> None:
        """Ends an iteration."""
