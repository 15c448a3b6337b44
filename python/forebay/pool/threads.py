"""A crew of threads, for functions that release the GIL."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

from forebay.exceptions import TransformError
from forebay.pool.ordered import Done
from forebay.transforms import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay import _lib
    from forebay.transforms import Program, Rows

Task = tuple[int, Any, "Rows"]


class Threads:
    """Threads that run a program on batches. They end with this object, at the latest after their current batch."""

    def __init__(self, program: Program, num_workers: int, prefetch: int) -> None:
        self.setting = program.setting
        self.num_workers = num_workers
        self.capacity = num_workers * prefetch
        self._owner = os.getpid()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._num_given = self._num_abandoned = 0
        self.num_skipped = 0
        # First: not all of them may start.
        self._end = weakref.finalize(self, _end, self._tasks, num_workers)
        for number in range(num_workers):
            threading.Thread(
                target=_work, args=(program, self._tasks, self._done), name=f"forebay-map-{number}", daemon=True
            ).start()

    @property
    def is_usable(self) -> bool:
        """Whether the threads still take batches, and belong to this process; a fork does not have them."""
        return self._end.alive and self._owner == os.getpid()

    @property
    def has_begun(self) -> bool:
        """Always True: threads start at once."""
        return True

    @property
    def is_short(self) -> bool:
        """Always True: handing a batch to a thread costs next to nothing."""
        return True

    def supply(self, stream: _lib.Stream) -> None:
        """Does nothing: threads have the memory of the stream."""

    def give(self, value: Any, rows: Rows) -> int:
        """Makes a thread run the program on a batch; returns the number of the task."""
        self._num_given += 1
        self._tasks.put((self._num_given, value, rows))
        return self._num_given

    def collect(self, seconds: float) -> Iterator[Done]:
        """Yields results; waits up to `seconds` for the first."""
        try:
            found = self._done.get(timeout=seconds) if seconds > 0 else self._done.get_nowait()
            while True:
                if found.number > self._num_abandoned:
                    yield found
                else:
                    self.num_skipped += 1
                found = self._done.get_nowait()
        except queue.Empty:
            return

    def describe(self, number: int) -> str:  # noqa: ARG002 - names of threads do not help
        """Returns text that tells which worker has a batch."""
        return "a thread, which cannot be ended"

    def abandon(self) -> None:
        """Gives up all batches that are under way."""
        self._num_abandoned = self._num_given

    def close(self) -> None:
        """Ends the threads."""
        self._end()


def _work(program: Program, tasks: queue.SimpleQueue[Task | None], done: queue.SimpleQueue[Done]) -> None:
    while (task := tasks.get()) is not None:
        number, value, rows = task
        try:
            done.put(Done(number, program(value, rows), None))
        except TransformError as error:
            done.put(Done(number, None, error))
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            done.put(Done(number, None, _failure(program, rows, error)))
        # Not kept while waiting for the next task.
        del task, value


def _failure(program: Program, rows: Rows, error: BaseException) -> TransformError:
    """Returns the error for a function that raised `SystemExit` or the like, which would end the program."""
    failure = TransformError(f"{program.setting}: a function failed on {rows}: {told(error)}")
    failure.__cause__ = error
    return failure


def _end(tasks: queue.SimpleQueue[Task | None], num_workers: int) -> None:
    try:
        while True:
            tasks.get_nowait()
    except queue.Empty:
        for _ in range(num_workers):
            tasks.put(None)
