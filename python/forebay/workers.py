"""The start of the next loop, as shared with DataLoader workers.

Each worker has a copy of the stream, forked or pickled when the worker started, and a persistent worker keeps it for
all loops. So the start of the next loop (epoch, position, and rows left out before) is in a few bytes that all copies
share.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import multiprocessing
import os
import struct
import tempfile
import weakref
from multiprocessing import context, reduction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from forebay.exceptions import SettingError, StateError
from forebay.passes import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.loader import Stream
    from forebay.states import Hole


class WorkerInfo(Protocol):
    """What torch tells a worker about itself."""

    @property
    def id(self) -> int:
        """The number of the worker."""

    @property
    def seed(self) -> int:
        """The loop's seed, plus the worker's number."""

    @property
    def num_workers(self) -> int:
        """The number of workers."""


class Choice(NamedTuple):
    """The start of the next loop, as set in the process of the stream."""

    number: int
    epoch: int
    start: Cursor
    holes: tuple[Hole, ...] = ()
    """Rows of the epoch up to there that could not be read."""


class Use(NamedTuple):
    """The loop that used a choice."""

    number: int
    """The number of the choice."""
    seed: int = 0
    process: int = 0
    """The number of the loop's first process."""
    num_workers: int = 0
    has_rest: bool = False
    """Whether a worker of the loop had rows left."""


class Place:
    """The start of the next loop over a stream, shared by the process that made the stream and its DataLoader workers.

    A choice takes effect when a loop starts, or restarts, its workers. A position applies to one loop: the next loop
    begins at the start of the epoch. Workers begin one by one, so the first one notes which loop used the position.
    Loops are identified by the seed that a DataLoader draws for each, and by their process numbers if a program sets
    the seed again.
    """

    _CHOICE = struct.Struct("q4Q")
    _USE = struct.Struct("qQqq?")
    _NUM_USES = 64
    _HOLES_AT = _CHOICE.size + _NUM_USES * _USE.size
    _HOLES = struct.Struct("Q")
    """The size in bytes of the holes, as JSON, which follow it."""

    def __init__(self) -> None:
        self._share(Choice(1, 0, Cursor()))

    def _share(self, choice: Choice) -> None:
        """Starts sharing with the workers that this process will start."""
        self._own(anonymous_file())
        self._owner = os.getpid()
        self._chosen = choice
        self._begun = 0
        self._is_chosen_here = False
        self._write()

    def _own(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def choose(self, stream: Stream[Any], worker: WorkerInfo | None) -> None:
        """Notes that the next loop begins at the position of `stream`."""
        if worker is not None:
            # For this worker only: `StatefulDataLoader` restores its state.
            self._is_chosen_here = True
            return
        choice = Choice(self._chosen.number + 1, stream._epoch, stream._start, tuple(stream._start_holes))
        if self._owner != os.getpid():
            self._share(choice)
        self._chosen = choice
        self._write()

    def begin(self, stream: Stream[Any], worker: WorkerInfo) -> Callable[[], bool] | None:
        """Makes `stream`, a worker's copy, begin where the loop begins.

        A worker whose state is at the end of its epoch goes on with a later epoch if one was set. But if other workers
        have rows left, the state applies to all. The returned function then tells which, once all workers have begun.
        """
        parent = multiprocessing.parent_process()
        is_shared = parent is not None and parent.pid == self._owner
        if self._begun and not is_shared:
            raise SettingError(
                "persistent_workers: this stream was made in another process than its DataLoader, so that its "
                "workers cannot see `set_epoch`; make the stream in the process that makes the DataLoader"
            )
        if self._begun:
            self._read()
        number, epoch, start, holes = self._chosen
        is_first = not is_shared or (self._use(number, worker) and self._begun != number)
        is_wanted = None
        if not self._is_chosen_here:
            stream._epoch, stream._start = epoch, start if is_first else stream._beginning(epoch)
            stream._start_holes = list(holes) if is_first else []
        elif is_shared and is_first and epoch > stream._epoch:
            if stream._is_over:
                stream._go_on_to(epoch)
                is_wanted = functools.partial(self._has_nothing_left, number)
            else:
                self._note_rest(number)
        self._begun, self._is_chosen_here = number, False
        return is_wanted

    def _write(self) -> None:
        with self._locked():
            number, epoch, start, holes = self._chosen
            text = json.dumps(holes).encode()
            os.pwrite(self._file, self._HOLES.pack(len(text)) + text, self._HOLES_AT)
            os.pwrite(self._file, self._CHOICE.pack(number, epoch, *start), 0)

    def _read(self) -> None:
        with self._locked():
            number, epoch, *start = self._CHOICE.unpack(os.pread(self._file, self._CHOICE.size, 0))
            num_bytes = self._HOLES.unpack(os.pread(self._file, self._HOLES.size, self._HOLES_AT))[0]
            text = os.pread(self._file, num_bytes, self._HOLES_AT + self._HOLES.size)
        self._chosen = Choice(number, epoch, Cursor._make(start), tuple(json.loads(text)))

    def _use(self, number: int, worker: WorkerInfo) -> bool:
        """Uses a choice for the loop of a worker, unless another loop did. Returns whether this loop used it."""
        seed = worker.seed - worker.id
        # The same for all workers of a loop, unless other threads start processes meanwhile.
        first_process = multiprocessing.current_process()._identity[-1] - worker.id
        with self._locked():
            use = self._read_use(number)
            if use.number == number:
                is_near = abs(use.process - first_process) < worker.num_workers
                return use.seed == seed and use.num_workers == worker.num_workers and is_near
            self._write_use(Use(number, seed, first_process, worker.num_workers))
            return True

    def _note_rest(self, number: int) -> None:
        """Notes that a worker of the loop that used a choice has rows left in the epoch of its state."""
        with self._locked():
            self._write_use(self._read_use(number)._replace(has_rest=True))

    def _has_nothing_left(self, number: int) -> bool:
        """Whether no worker has noted that it has rows left."""
        return not self._read_use(number).has_rest

    def settle(self, stream: Stream[Any]) -> bool:
        """Moves `stream` to the start of its epoch if a loop of workers used its position; returns whether it did."""
        is_used = self._owner == os.getpid() and self._read_use(self._chosen.number).number == self._chosen.number
        if is_used:
            stream._start, stream._start_holes = stream._beginning(stream._epoch), []
        return is_used

    def check_known(self, stream: Stream[Any]) -> None:
        """Refuses if only workers know the position."""
        if self.settle(stream):
            raise StateError(
                "the batches of this loop are taken by DataLoader workers, whose position this stream does not know; "
                "use `torchdata.stateful_dataloader.StatefulDataLoader` and `forebay.cursor(loader.state_dict())`"
            )

    def _read_use(self, number: int) -> Use:
        """Returns the use noted at the place of a choice, which may be that of an earlier one."""
        data = os.pread(self._file, self._USE.size, self._use_at(number))
        return Use._make(self._USE.unpack(data)) if data else Use(0)

    def _write_use(self, use: Use) -> None:
        os.pwrite(self._file, self._USE.pack(*use), self._use_at(use.number))

    def _use_at(self, number: int) -> int:
        return self._CHOICE.size + number % self._NUM_USES * self._USE.size

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is being started shares the file; any other copy gets its own.
        is_starting = context.get_spawning_popen() is not None
        return self.__dict__ | {"_file": reduction.DupFd(self._file) if is_starting else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        file = state.pop("_file")
        self.__dict__.update(state)
        if file is None:
            self._share(self._chosen)
        else:
            self._own(file.detach())


def anonymous_file() -> int:
    """Returns an unnamed file in memory, which disappears with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("forebay")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
