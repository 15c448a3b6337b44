"""What DataLoader workers know of the stream in the process that made them.

Each worker has a copy of the stream, forked or pickled when the worker started, and a worker that persists keeps it for
every loop. So the place where the next loop begins, epoch, position and what was left out before, lies in a few bytes
that all copies share.
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
        """Which of the workers it is."""

    @property
    def seed(self) -> int:
        """The loop's seed, plus the worker's number."""

    @property
    def num_workers(self) -> int:
        """How many there are."""


class Choice(NamedTuple):
    """Where the next loop begins, as the process of the stream chose it."""

    number: int
    epoch: int
    start: Cursor
    holes: tuple[Hole, ...] = ()
    """What could not be read of the epoch up to there."""


class Place:
    """Where the next loop over a stream begins, for the process that made the stream and its DataLoader workers.

    The choice counts at the moment a loop starts its workers, or starts them again. A position is for one loop: the
    next loop begins where the epoch does. Workers begin one by one, so the first one notes which loop used the position
    up; loops are told apart by the seed that a DataLoader draws for each, and by the numbers of their processes where a
    program sets the seed again.
    """

    _CHOICE = struct.Struct("q4Q")
    _USE = struct.Struct("qQqq?")
    """The number of a choice, the loop that used it, and whether that had more to do."""
    _NUM_USES = 64
    _HOLES_AT = _CHOICE.size + _NUM_USES * _USE.size
    _HOLES = struct.Struct("Q")
    """Before the holes, as JSON: how many bytes they take."""

    def __init__(self) -> None:
        self._share(Choice(1, 0, Cursor()))

    def _share(self, choice: Choice) -> None:
        """Starts sharing with the workers that this process will make."""
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
        """Notes that the next loop begins where `stream` stands."""
        if worker is not None:
            # For this worker alone: how `StatefulDataLoader` restores it.
            self._is_chosen_here = True
            return
        choice = Choice(self._chosen.number + 1, stream._epoch, stream._start, tuple(stream._start_holes))
        if self._owner != os.getpid():
            self._share(choice)
        self._chosen = choice
        self._write()

    def begin(self, stream: Stream[Any], worker: WorkerInfo) -> Callable[[], bool] | None:
        """Has `stream`, a worker's copy, begin where the loop does.

        A worker whose state is at the end of its epoch goes on with a later one that was set. But where others have
        something left, the state holds for all: what is returned then tells so, once all of them have begun.
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
        """Uses a choice for the loop of a worker, unless another loop did. Tells whether it is this loop's."""
        seed = worker.seed - worker.id
        # That of all workers of a loop, but for processes that other threads start meanwhile.
        first_process = multiprocessing.current_process()._identity[-1] - worker.id
        with self._locked():
            used, *by = self._read_use(number)
            if used == number:
                by_seed, by_process, by_number, _ = by
                is_near = abs(by_process - first_process) < worker.num_workers
                return by_seed == seed and by_number == worker.num_workers and is_near
            use = self._USE.pack(number, seed, first_process, worker.num_workers, False)
            os.pwrite(self._file, use, self._use_at(number))
            return True

    def _note_rest(self, number: int) -> None:
        """Notes that a worker of the loop that used a choice has something left of its state's epoch."""
        with self._locked():
            *use, _ = self._read_use(number)
            os.pwrite(self._file, self._USE.pack(*use, True), self._use_at(number))

    def _has_nothing_left(self, number: int) -> bool:
        """Tells whether no worker noted that it has."""
        *_, has_rest = self._read_use(number)
        return not has_rest

    def settle(self, stream: Stream[Any]) -> bool:
        """Moves `stream` to the beginning of its epoch when a loop of workers used its position up; tells whether."""
        is_used = self._owner == os.getpid() and self._read_use(self._chosen.number)[0] == self._chosen.number
        if is_used:
            stream._start, stream._start_holes = stream._beginning(stream._epoch), []
        return is_used

    def check_known(self, stream: Stream[Any]) -> None:
        """Refuses to tell a position that only workers know."""
        if self.settle(stream):
            raise StateError(
                "the batches of this loop are taken by DataLoader workers, whose position this stream does not know; "
                "use `torchdata.stateful_dataloader.StatefulDataLoader` and `forebay.cursor(loader.state_dict())`"
            )

    def _read_use(self, number: int) -> tuple[int, ...]:
        data = os.pread(self._file, self._USE.size, self._use_at(number))
        return self._USE.unpack(data or bytes(self._USE.size))

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
        # A worker that is being started shares; any other copy is on its own.
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
    """Returns a file in memory without a name, which is gone with the last process that has it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("forebay")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
