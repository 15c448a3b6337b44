"""The main function of a worker process: takes batches, runs the program, sends results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from forebay.exceptions import Cause, TransformError
from forebay.pool.channel import BufferedChannel, Channel, Message
from forebay.pool.memory import Inbox, Outbox
from forebay.pool.pickling import take_apart
from forebay.transforms import Rows, seed_of, seeds_of, told

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forebay.transforms import Program

MOST_INPUTS_IN_USE = 2
"""The most batches that functions may keep before they get copies."""

HOW_TO_BE_FOUND = (
    "functions for processes stand at the top of a module or of a program whose main part is behind "
    "`if __name__ == '__main__':`, or are sent whole where the package `cloudpickle` is installed"
)


class Job(NamedTuple):
    """What a worker does. Pickled by `sending.py`."""

    program: Program
    worker_init_fn: Callable[[int], Any] | None
    num_loader_workers: int
    """The number of workers of the `DataLoader`; 0 for workers of `map`."""
    classes: list[type]
    """Classes of the program that are sent by value and needed to pickle results. Comes after what uses them."""


def main(end: socket.socket, life: socket.socket, worker: int, setting: str) -> None:
    """Works until the other end is closed, or the process there is gone."""
    # Ctrl-C is for the process of the loop, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _end_with(life)
    threading.Thread(target=_follow_parent, name="forebay-follow", daemon=True).start()
    Worker(BufferedChannel(end), worker, setting).work()


def _end_with(life: socket.socket) -> None:
    """Makes the kernel kill this process when the other end, through which nothing is ever sent, is closed.

    The thread of `_follow_parent` needs the GIL, which a function, such as a regular expression, may hold forever.
    """
    # Linux supports it, some sandboxes do not.
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _follow_parent() -> None:
    """Ends this process with that of the loop, unless a function holds the GIL."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class Worker:
    """One end of a crew."""

    def __init__(self, channel: Channel, worker: int, setting: str) -> None:
        self._channel = channel
        self._worker = worker
        self._setting = setting
        self._inbox = Inbox(MOST_INPUTS_IN_USE)
        self._outbox = Outbox()
        self._job: Job | None = None

    def work(self) -> None:
        """Answers messages, one by one."""
        try:
            while (received := self._channel.receive()) is not None:
                message, file = received
                self._outbox.take_back(message.returned)
                self._inbox.forget(message.given_up)
                if file is not None:
                    assert message.parcel is not None, "a file is that of a parcel's block"  # noqa: S101
                    self._inbox.add(message.parcel, file)
                if message.kind == "task":
                    self._run(message)
                elif not self._has_begun(message):
                    return
        except ConnectionError:
            # The process of the loop has ended, or ends this one.
            return
        except Exception as error:
            # There is no shared memory or file descriptor left, which the next batch would need as well.
            self._send(Message("end", about=told(error)))
            raise

    def _has_begun(self, message: Message) -> bool:
        """Loads the program; returns whether that worked."""
        hint = f"; {HOW_TO_BE_FOUND}"
        try:
            assert message.parcel is not None, "a job is in a parcel"  # noqa: S101
            job: Job = pickle.loads(self._inbox.open(message.parcel))  # noqa: S301 - from a process of our own
            hint = ""
            program = sys.modules["__main__"]
            for one in job.classes:
                if "." not in one.__qualname__:
                    setattr(program, one.__name__, one)
            # So that the first batch does not wait for the imports of seeding.
            seeds_of(0, Rows(0, 0, 1, 1), "")
            if job.num_loader_workers:
                # It may not be installed.
                with contextlib.suppress(ImportError):
                    self._tell_torch(job)
            # As in torch's DataLoader, because workers share the cores.
            if (torch := sys.modules.get("torch")) is not None:
                torch.set_num_threads(1)
            else:
                # It reads this if a function imports it.
                os.environ.setdefault("OMP_NUM_THREADS", "1")
            self._job = job
            if job.worker_init_fn is not None:
                job.worker_init_fn(self._worker)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._fail(message, TransformError(f"{self._setting}: a worker cannot begin: {told(error)}{hint}"), error)
            return False
        self._send(Message("ready"))
        return True

    def _tell_torch(self, job: Job) -> None:
        """Makes torch's `get_worker_info` describe this worker, as in workers of its `DataLoader`."""
        from torch.utils.data._utils import worker

        import forebay.torch

        # Differs between workers, as in torch, but is the same in every run.
        seed = seed_of(job.program.seed, Rows(0, self._worker, 1, 1), "worker") >> 1
        worker._worker_info = worker.WorkerInfo(
            id=self._worker, num_workers=job.num_loader_workers, seed=seed, dataset=cast("Any", None)
        )
        # A stream that a function reads is not divided among these workers.
        vars(forebay.torch)["get_worker_info"] = lambda: None

    def _run(self, message: Message) -> None:
        """Runs the program on a batch."""
        assert self._job is not None and message.parcel is not None, "the job comes first"  # noqa: S101, PT018
        rows = Rows(*message.about)
        try:
            result = self._job.program(self._inbox.open(message.parcel), rows, owns_process=True)
        except TransformError as error:
            self._fail(message, error, error.__cause__)
            return
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._fail(message, TransformError(f"{self._setting}: a function failed on {rows}: {told(error)}"), error)
            return
        try:
            head, buffers = take_apart(result)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            what = f"{self._setting}: the result for {rows} cannot be sent to the process of the loop"
            self._fail(message, TransformError(f"{what}: {told(error)}"), error)
            return
        del result
        self._send(Message("result", message.number), *self._outbox.write(head, self._inbox.leave(buffers)))

    def _fail(self, message: Message, error: TransformError, cause: BaseException | None) -> None:
        """Sends an error and its cause, with the traceback as a note, as far as they can be pickled."""
        kept: BaseException | None = cause
        if cause is not None:
            text = "".join(traceback.format_exception(cause))
            place = f"worker {self._worker}, process {os.getpid()}"
            if not _survives(cause):
                kept = Cause(told(cause))
            assert kept is not None  # noqa: S101
            kept.__traceback__ = None
            kept.add_note(f"in {place}:\n{text}")
        error.__cause__, error.__context__, error.__traceback__ = kept, None, None
        self._send(Message("failure", message.number), *self._outbox.pack(error))

    def _send(self, message: Message, parcel: Any = None, file: int | None = None) -> None:
        given_up, returned = self._outbox.take_given_up(), tuple(self._inbox.return_unused())
        self._channel.send(Message(message.kind, message.number, parcel, message.about, returned, given_up), file)


def _survives(error: BaseException) -> bool:
    """Whether an exception survives pickling."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own
    except BaseException:  # noqa: BLE001 - whatever its `__reduce__` raises
        return False
