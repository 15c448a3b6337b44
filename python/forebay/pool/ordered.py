"""Batches through a crew: as many at a time as the crew takes, delivered in the order in which they came."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from forebay.exceptions import TransformTimeoutError, WorkerDiedError
from forebay.transforms import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.stages import Batches, Item, Pass
    from forebay.transforms import Program

SECONDS_BETWEEN_LOOKS = 0.001
"""How often the stream is looked at for a batch while results are waited for and a worker has nothing to do."""

SECONDS_TO_WAIT = 1.0
"""How long results are waited for at a time."""


class Done(NamedTuple):
    """What came of a batch."""

    number: int
    value: Any
    error: BaseException | None


class Crew(Protocol):
    """Workers that all run one program."""

    setting: str
    """What messages call the functions by: where they were passed."""

    num_workers: int

    capacity: int
    """Batches that it may have at a time, those included that are done and not delivered."""

    num_skipped: int
    """Batches that came back after they had been given up. Workers do these before those that they were given since."""

    @property
    def is_usable(self) -> bool:
        """Whether it takes batches."""

    @property
    def has_begun(self) -> bool:
        """Whether all workers are at work; starting them does not count for a timeout."""

    @property
    def is_short(self) -> bool:
        """Whether it is time to give batches: several at a time cost the loop less than one by one."""

    def give(self, value: Any, rows: Rows) -> int:
        """Has a worker run the program on a batch; returns the number of the task."""

    def collect(self, seconds: float) -> Iterable[Done]:
        """Yields what is done, in any order; waits so long for the first."""

    def describe(self, number: int) -> str:
        """Says who works on a batch."""

    def abandon(self) -> None:
        """Gives up all batches that it has."""

    def close(self) -> None:
        """Ends the workers."""


def rows_of(item: Item, this: Pass) -> Rows:
    """Returns which rows a batch holds."""
    rows = Rows(this.epoch, item.first, this.world_size, item.num_rows)
    if this.num_positions is None or rows.last < this.num_positions:
        return rows
    return rows._replace(repeated=this.rank % this.num_positions)


class Ordered:
    """Batches that a crew works on, in their order."""

    def __init__(
        self, batches: Batches, crew: Crew, this: Pass, timeout: float | None, *, ends_crew: bool = False
    ) -> None:
        self._batches = batches
        self._crew = crew
        self._pass = this
        self._timeout = timeout
        self._ends_crew = ends_crew
        self._owner = os.getpid()
        # By the numbers of their tasks, in their order.
        self._items: dict[int, Item] = {}
        self._done: dict[int, Done] = {}
        self._is_at_end = False
        self._failure: Exception | None = None
        self.is_closed = False

    def is_ready(self) -> bool:
        """Whether the next batch is done, or none will come."""
        self._check_owner()
        self._give(waits=False)
        self._collect(0)
        is_ready = next(iter(self._items)) in self._done if self._items else self._is_at_end
        self._pass.waiting.note(is_on=not is_ready and bool(self._items) and not self._is_starved)
        return is_ready

    def __next__(self) -> Item:
        self._check_owner()
        self._give(waits=True)
        if not self._items:
            if self._failure is not None:
                raise self._failure
            raise StopIteration
        number = next(iter(self._items))
        started, num_skipped = time.monotonic(), self._crew.num_skipped
        while number not in self._done:
            self._pass.waiting.note(is_on=not self._is_starved)
            seconds = SECONDS_BETWEEN_LOOKS if self._has_room and self._crew.is_short else SECONDS_TO_WAIT
            if self._timeout is not None:
                if not self._crew.has_begun or self._crew.num_skipped > num_skipped:
                    # What is waited for may have begun now, and not before.
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

    def _check_owner(self) -> None:
        """Refuses to deliver in a fork: workers and batches are those of the process that began."""
        if self._owner != os.getpid():
            raise WorkerDiedError(
                f"{self._crew.setting}: the workers are those of the process that this one is a fork of; begin another "
                "loop"
            )

    def _give(self, *, waits: bool) -> None:
        """Gives the crew what it takes and the stream has; waits for a batch only where none is under way."""
        if self._items and not self._crew.is_short:
            return
        while self._has_room:
            try:
                if not (waits and not self._items) and not self._batches.is_ready():
                    return
                item = next(self._batches, None)
            except Exception as error:  # noqa: BLE001 - raised behind the batches before it
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
        """Whether a worker has nothing to do, because the stream has no batch for it."""
        return self._has_room and len(self._items) - len(self._done) < self._crew.num_workers

    def _collect(self, seconds: float) -> None:
        for done in self._crew.collect(seconds):
            self._done[done.number] = done

    def _give_up_waiting(self, number: int) -> None:
        who = self._crew.describe(number)
        rows = rows_of(self._items[number], self._pass)
        self._crew.close()
        raise TransformTimeoutError(
            f"{self._crew.setting}: nothing came of {rows} within the timeout of {self._timeout} s, from {who}; raise "
            "`timeout`, or look what the function waits for"
        )

    def close(self) -> None:
        """Gives up what the crew still has in hand."""
        self.is_closed = True
        self._items.clear()
        self._done.clear()
        if self._ends_crew:
            self._crew.close()
        else:
            self._crew.abandon()
        self._batches.close()


class Inline:
    """Batches that the program runs on one by one, when the loop asks."""

    def __init__(self, batches: Batches, program: Program, this: Pass) -> None:
        self._batches = batches
        self._program = program
        self._pass = this

    def is_ready(self) -> bool:
        """Whether there is a batch to run on."""
        return self._batches.is_ready()

    def __next__(self) -> Item:
        item = next(self._batches)
        rows = rows_of(item, self._pass)
        # The loop waits for functions also where it runs them itself.
        self._pass.waiting.note(is_on=True)
        value = self._program(item.value, rows)
        self._pass.waiting.note(is_on=False)
        return item._replace(value=value)

    def close(self) -> None:
        """Closes what is before it."""
        self._batches.close()
