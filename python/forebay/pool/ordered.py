"""Passes batches through a crew, as many at a time as it takes, and delivers them in order."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from forebay.exceptions import ClosedError, TransformTimeoutError
from forebay.stages import SECONDS_BETWEEN_LOOKS
from forebay.transforms import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay import _lib
    from forebay.stages import Batches, Item, Pass
    from forebay.transforms import Program

T = TypeVar("T")

SECONDS_TO_WAIT_FOR_RESULTS = 1.0
"""How long to wait for results at a time."""


class Done(NamedTuple):
    """The result of a batch."""

    number: int
    value: Any
    error: BaseException | None


class Crew(Protocol):
    """Workers that all run one program."""

    setting: str
    """The name of the functions in messages: the arguments they were passed as."""

    num_workers: int

    capacity: int
    """The most batches that the crew has at a time, including those that are done but not delivered."""

    num_skipped: int
    """Batches that came back after they were abandoned. Workers finish these before later ones."""

    @property
    def is_usable(self) -> bool:
        """Whether the crew takes batches."""

    @property
    def has_begun(self) -> bool:
        """Whether all workers have started; starting does not count towards a timeout."""

    @property
    def is_short(self) -> bool:
        """Whether to give more batches now: giving several at a time costs the loop less than one by one."""

    def supply(self, stream: _lib.Stream) -> None:
        """Gives a stream memory for batches that saves copying them, if there is such."""

    def give(self, value: Any, rows: Rows) -> int:
        """Makes a worker run the program on a batch; returns the number of the task."""

    def collect(self, seconds: float) -> Iterable[Done]:
        """Yields results in any order; waits up to `seconds` for the first."""

    def describe(self, number: int) -> str:
        """Returns text that tells which worker has a batch."""

    def abandon(self) -> None:
        """Gives up all batches that the crew has."""

    def close(self) -> None:
        """Ends the workers."""


def rows_of(item: Item, this: Pass) -> Rows:
    """Returns the rows of a batch."""
    rows = Rows(this.epoch, item.first, this.world_size, item.num_rows)
    if this.num_positions is None or rows.last < this.num_positions:
        return rows
    return rows._replace(repeated=this.rank % this.num_positions)


class Ordered:
    """Batches that a crew works on, in order."""

    stream = None

    def __init__(self, batches: Batches, crew: Crew, this: Pass, timeout: float | None) -> None:
        self._batches = batches
        self._crew = crew
        self._stream = batches.stream
        self._pass = this
        self._timeout = timeout
        self._owner = os.getpid()
        # By task number, in order.
        self._items: dict[int, Item] = {}
        self._done: dict[int, Done] = {}
        self._is_at_end = False
        self._failure: Exception | None = None
        self.is_closed = False

    def is_ready(self) -> bool:
        """Whether the next batch is done, or none will come."""
        return self._ending_crew_with(self._is_ready)

    def _is_ready(self) -> bool:
        self._give(waits=False)
        self._collect(0)
        is_ready = next(iter(self._items)) in self._done if self._items else self._is_at_end
        self._pass.waiting.note(is_on=not is_ready and bool(self._items) and not self._is_starved)
        return is_ready

    def __next__(self) -> Item:
        return self._ending_crew_with(self._next)

    def _next(self) -> Item:
        self._give(waits=True)
        if not self._items:
            if self._failure is not None:
                raise self._failure
            raise StopIteration
        number = next(iter(self._items))
        started, num_skipped = time.monotonic(), self._crew.num_skipped
        while number not in self._done:
            self._pass.waiting.note(is_on=not self._is_starved)
            seconds = SECONDS_BETWEEN_LOOKS if self._has_room and self._crew.is_short else SECONDS_TO_WAIT_FOR_RESULTS
            if self._timeout is not None:
                if not self._crew.has_begun or self._crew.num_skipped > num_skipped:
                    # Work on the awaited batch may only begin now.
                    started, num_skipped = time.monotonic(), self._crew.num_skipped
                left = started + self._timeout - time.monotonic()
                if left <= 0:
                    self._give_up_waiting(number)
                seconds = min(seconds, left)
            self._collect(seconds)
            self._give(waits=False)
        self._pass.waiting.note(is_on=False)
        item, done = self._items.pop(number), self._done.pop(number)
        if done.error is not None:
            raise done.error
        return item._replace(value=done.value)

    def _ending_crew_with(self, step: Callable[[], T]) -> T:
        """Takes a step. If Ctrl-C interrupts it, a batch may be given or taken by half: ends the workers, too."""
        self._check_owner()
        try:
            return step()
        except Exception:
            raise
        except BaseException:
            self._crew.close()
            raise

    def _check_owner(self) -> None:
        """Refuses to deliver in a fork: workers and batches belong to the parent process."""
        if self._owner != os.getpid():
            raise ClosedError(
                f"{self._crew.setting}: the workers belong to the process that this one was forked from; begin another "
                "loop"
            )

    def _give(self, *, waits: bool) -> None:
        """Gives the crew as many ready batches as it takes; waits for a batch only if none is under way."""
        if self._items and not self._crew.is_short:
            return
        stream = self._stream
        while self._has_room:
            try:
                if stream is not None:
                    # First: when batches are taken, others are gathered at once.
                    self._crew.supply(stream)
                    stream = None
                if (self._items or not waits) and not self._batches.is_ready():
                    return
                item = next(self._batches, None)
            except Exception as error:  # noqa: BLE001 - raised after the batches before it
                self._failure, item = error, None
            if item is None:
                self._is_at_end = True
                return
            self._items[self._crew.give(item.value, rows_of(item, self._pass))] = item._replace(value=None)

    @property
    def _has_room(self) -> bool:
        return not self._is_at_end and len(self._items) < self._crew.capacity

    @property
    def _is_starved(self) -> bool:
        """Whether a worker is idle because the stream has no batch for it."""
        return self._has_room and len(self._items) - len(self._done) < self._crew.num_workers

    def _collect(self, seconds: float) -> None:
        for done in self._crew.collect(seconds):
            self._done[done.number] = done

    def _give_up_waiting(self, number: int) -> None:
        who = self._crew.describe(number)
        rows = rows_of(self._items[number], self._pass)
        self._crew.close()
        raise TransformTimeoutError(
            f"{self._crew.setting}: no result came for {rows} within the timeout of {self._timeout} s, from {who}; "
            "raise `timeout`, or find out what the function waits for"
        )

    def close(self) -> None:
        """Abandons the batches that the crew still has."""
        self.is_closed = True
        self._items.clear()
        self._done.clear()
        self._crew.abandon()
        self._batches.close()


class Inline:
    """Runs the program in the loop itself, on one batch at a time."""

    stream = None

    def __init__(self, batches: Batches, program: Program, this: Pass) -> None:
        self._batches = batches
        self._program = program
        self._pass = this

    def is_ready(self) -> bool:
        """Whether a batch is ready to run on, or none will come."""
        return self._batches.is_ready()

    def __next__(self) -> Item:
        item = next(self._batches)
        rows = rows_of(item, self._pass)
        # Functions that the loop runs itself also count as waiting for functions.
        self._pass.waiting.note(is_on=True)
        value = self._program(item.value, rows)
        self._pass.waiting.note(is_on=False)
        return item._replace(value=value)

    def close(self) -> None:
        """Closes the stage before."""
        self._batches.close()
