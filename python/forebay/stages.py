"""What lies between a stream's batches and the loop: functions, copies to a device. Each stage wraps the one before.

A stage takes batches ahead of the loop, but only those that are there: it never waits while it has one to deliver.
Each batch has with it where its rows stand in the epoch and where the stream stands once the loop has it, so that what
stages hold does not count for a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from forebay import _lib
    from forebay.passes import Cursor, Run

    Reading = Callable[[Run], AbstractContextManager["Batches"]]


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
        self._stream = stream
        self._convert = convert
        self._ends = ends
        self._number = 0

    def is_ready(self) -> bool:
        """Whether a batch is there, or none will come."""
        return self._stream.wait(0)

    def __next__(self) -> Item:
        batch = self._stream.next()
        if batch is None:
            raise StopIteration
        self._number += 1
        first, after = self._ends(self._number)
        return Item(batch if self._convert is None else self._convert(batch), len(batch), first, after)

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
