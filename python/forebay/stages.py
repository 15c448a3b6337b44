"""What lies between a stream's batches and the loop: functions, copies to a device. Each stage wraps the one before.

A stage takes batches ahead of the loop, but only those that are there: it never waits while it has one to deliver.
Each batch has with it where its rows stand in the epoch and where the stream stands once the loop has it, so that what
stages hold does not count for a state.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from forebay import _lib
    from forebay.passes import Cursor, Run

    Reading = Callable[[Run], AbstractContextManager["Batches"]]

MOST_TAKEN = 8
MOST_BYTES_TAKEN = 4 << 20
MOST_SECONDS_TAKING = 0.0005
"""How much is taken from the native stream at a time, of what is there. A loop that comes back from a step finds
nothing of ours in the processor's caches: the first batch takes a fifth of a millisecond, each further one a
hundredth."""


class Item(NamedTuple):
    """A batch on its way to the loop."""

    value: Any
    num_rows: int
    first: int
    """Position of its first row in the epoch."""
    after: Cursor
    """Where the stream stands once the loop has the batch."""


@dataclass(frozen=True)
class Pass:
    """One iteration over an epoch, or the rest of one."""

    epoch: int
    seed: int
    rank: int
    world_size: int
    is_alone: bool
    """Whether this process takes all batches of its rank: it is no DataLoader worker."""


class Batches(Protocol):
    """Batches in their order. `next` waits for one; `StopIteration` ends them."""

    def is_ready(self) -> bool:
        """Whether `next` would return, raise or end at once."""

    def __next__(self) -> Item: ...

    def close(self) -> None:
        """Gives up what was taken ahead."""


class Running(Protocol):
    """What tells of a read that is going on."""

    def holes(self) -> list[dict[str, Any]]:
        """What could not be read so far."""

    def stats(self) -> dict[str, float]:
        """What was done so far."""


class Stage(Protocol):
    """Makes batches of those of the stage before."""

    def begin(self, batches: Batches, this: Pass) -> Batches:
        """Begins an iteration."""


class Read:
    """The batches of a native stream: the first stage."""

    def __init__(
        self,
        stream: _lib.Stream,
        convert: Callable[[_lib.Batch], Any] | None,
        ends: Callable[[int], tuple[int, Cursor]],
    ) -> None:
        self.stream = stream
        self._convert = convert
        self._ends = ends
        self._number = 0
        # What the loop has not asked for, and the error behind it: of this process, not of its forks.
        self._taken: deque[Item] = deque()
        self._error: Exception | None = None
        self._owner = os.getpid()

    def is_ready(self) -> bool:
        """Whether a batch is there, or none will come."""
        return bool(self._taken) or self._error is not None or self.stream.wait(0)

    def __next__(self) -> Item:
        if self._owner != os.getpid():
            self._taken.clear()
        if not self._taken:
            if self._error is not None:
                raise self._error
            num_bytes = self._take()
            if not num_bytes:
                raise StopIteration
            self._take_more(num_bytes)
        return self._taken.popleft()

    def _take(self) -> int:
        """Waits for a batch; returns its bytes, 0 at the end."""
        batch = self.stream.next()
        if batch is None:
            return 0
        self._number += 1
        first, after = self._ends(self._number)
        value = batch if self._convert is None else self._convert(batch)
        self._taken.append(Item(value, len(batch), first, after))
        return max(batch.nbytes, 1)

    def _take_more(self, num_bytes: int) -> None:
        """Takes batches that are there, each of them of about so many bytes."""
        most = min(MOST_TAKEN, MOST_BYTES_TAKEN // num_bytes)
        end = time.perf_counter() + MOST_SECONDS_TAKING
        try:
            while len(self._taken) < most and time.perf_counter() < end and self.stream.wait(0) and self._take():
                pass
        except Exception as error:  # noqa: BLE001 - raised in its turn
            self._error = error

    def holes(self) -> list[dict[str, Any]]:
        """What could not be read so far."""
        return self.stream.holes()

    def stats(self) -> dict[str, float]:
        """What was done so far; what the loop has not asked for is ready, not delivered."""
        stats = self.stream.stats()
        if self._owner != os.getpid():
            return stats
        stats["batches"] -= len(self._taken)
        stats["batches_ready"] += len(self._taken)
        stats["rows"] -= sum(item.num_rows for item in self._taken)
        return stats

    def close(self) -> None:
        """Leaves the stream to whoever began it."""


class Until:
    """Batches up to the last step of an epoch: those behind it are of the next one."""

    def __init__(self, batches: Batches, num_steps: int, num_workers: int) -> None:
        self._batches = batches
        self._num_steps = num_steps
        self._num_workers = num_workers
        self._is_over = False

    def is_ready(self) -> bool:
        """Whether a batch is there, or none will come."""
        return self._is_over or self._batches.is_ready()

    def __next__(self) -> Item:
        if self._is_over:
            raise StopIteration
        item = next(self._batches)
        # Batches of which no row could be read may have been passed over.
        step = item.after.done - self._num_workers
        self._is_over = step + self._num_workers >= self._num_steps
        if step >= self._num_steps:
            raise StopIteration
        return item

    def close(self) -> None:
        """Closes what is before it."""
        self._batches.close()


class Alone:
    """A rank that reads for itself."""

    def __init__(self, read: Reading) -> None:
        self._read = read

    def meeting(
        self,
        agreeing: Iterator[float],  # noqa: ARG002 - nobody has to agree before
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
