"""A crew of processes. They are spawned, never forked: this process has threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import selectors
import signal
import socket
import sys
import threading
import time
import weakref
from collections import OrderedDict
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError, TransformError, WorkerDiedError
from forebay.pool.channel import LoopChannel, Message
from forebay.pool.memory import Inbox, Outbox
from forebay.pool.ordered import Done
from forebay.pool.pickling import take_apart
from forebay.pool.worker import main
from forebay.transforms import told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from forebay.transforms import Rows

    Interrupt = tuple[int, FrameType | None]

SECONDS_TO_END = 0.2
"""How long idle workers have to end by themselves."""

SECONDS_UNTIL_INTERRUPT = 0.1
"""How long after the workers of a pool that was collected have ended the program is told of a Ctrl-C meanwhile: longer
than the collection takes, which may run other finalisers, too."""

HOW_TO_BEGIN = (
    "; what it printed says why; a program that starts processes needs `if __name__ == '__main__':` around all that it "
    "does"
)

FROM_STDIN = "; processes have to find the program again: put what Python reads from its standard input into a file"

MOST_RESULTS_IN_USE = 4
"""Batches of one worker that the loop may keep before it gets copies, beside those under way."""


class Processes:
    """Processes that run a program on batches. They end with it, and with this process."""

    def __init__(self, job: bytes, setting: str, num_workers: int, prefetch: int, start_method: str) -> None:
        if multiprocessing.current_process().daemon:
            raise SettingError(
                f"{setting}: this process is a daemon of `multiprocessing`, which may start no others; run functions "
                "in threads, or in the loop"
            )
        self.setting = setting
        self.num_workers = num_workers
        self.capacity = num_workers * prefetch
        self._few = prefetch // 2
        self._owner = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._num_given = self._num_abandoned = 0
        self.num_skipped = 0
        self._workers: list[Worker] = []
        _CREWS.add(self)
        self._end = weakref.finalize(self, _end, self._workers, self._selector, self._owner)
        context = multiprocessing.get_context(start_method)
        for number in range(num_workers):
            with _without_interrupts():
                worker = Worker(context, setting, number, prefetch)
                self._workers.append(worker)
                self._selector.register(worker.channel, selectors.EVENT_READ, worker)
                self._selector.register(worker.ending, selectors.EVENT_READ, worker)
        for worker in self._workers:
            self._send(worker, Message("job"), job)

    @property
    def is_usable(self) -> bool:
        """Whether all workers are there, and are this process's."""
        return self._end.alive and self._owner == os.getpid()

    @property
    def has_begun(self) -> bool:
        """Whether all workers have loaded the program."""
        return all(worker.has_begun for worker in self._workers)

    @property
    def is_short(self) -> bool:
        """Whether a worker has half of what it may have, or less."""
        for worker in self._workers:  # noqa: SIM110 - asked for each batch, and quicker so
            if len(worker.tasks) <= self._few:
                return True
        return False

    def give(self, value: Any, rows: Rows) -> int:
        """Has the worker with the least to do run the program on a batch; returns the number of the task."""
        self._num_given += 1
        worker = min(self._workers, key=lambda worker: len(worker.tasks))
        self._send(worker, Message("task", self._num_given, about=tuple(rows)), value)
        worker.tasks[self._num_given] = rows
        return self._num_given

    def _send(self, worker: Worker, message: Message, value: object) -> None:
        worker.send(message, value)
        if worker.channel.has_unsent:
            self._selector.modify(worker.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)

    def collect(self, seconds: float) -> Iterator[Done]:
        """Yields what is done; waits so long for the first, or for a worker that takes what was kept for it.

        Raises:
            WorkerDiedError: a worker has ended.
            TransformError: a worker cannot load the program.
        """
        # Of each worker, whether it has ended: looked at after a message, so that what it had sent is taken first.
        found: dict[Worker, bool] = {}
        for key, events in self._selector.select(seconds):
            worker: Worker = key.data
            found[worker] = found.get(worker, False) or key.fileobj is not worker.channel
            if events & selectors.EVENT_WRITE:
                worker.flush()
                if not worker.channel.has_unsent:
                    self._selector.modify(worker.channel, selectors.EVENT_READ, worker)
        for worker, has_ended in found.items():
            has_sent = False
            while (received := worker.channel.receive()) is not None:
                has_sent = True
                if worker.is_refusal(received[0]):
                    value, failure = worker.open(*received, "why a worker cannot begin")
                    self.close()
                    raise value if failure is None else failure
                done = worker.take(*received, num_abandoned=self._num_abandoned)
                if done is not None:
                    yield done
                elif received[0].kind not in ("ready", "end"):
                    self.num_skipped += 1
            if not has_sent and (has_ended or worker.channel.is_at_end):
                text = worker.obituary()
                self.close()
                raise WorkerDiedError(text)

    def describe(self, number: int) -> str:
        """Says who works on a batch."""
        worker = next((worker for worker in self._workers if number in worker.tasks), None)
        return "a worker" if worker is None else f"worker {worker.number}, process {worker.process.pid}"

    def abandon(self) -> None:
        """Gives up all batches that are under way."""
        self._num_abandoned = self._num_given

    def close(self) -> None:
        """Ends the workers."""
        self._end()

    def forget(self) -> None:
        """Leaves the workers to the process that this one is a fork of, and closes what connects it to them."""
        if not self._end.alive:
            return
        self._end.detach()
        # Nothing is taken out of it: what it waits for is the same there.
        with contextlib.suppress(OSError):
            self._selector.close()
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.forget()


class Worker:
    """This process's end of a worker."""

    def __init__(self, context: Any, setting: str, number: int, prefetch: int) -> None:
        self._setting = setting
        self.number = number
        self.tasks: OrderedDict[int, Rows] = OrderedDict()
        self._inbox = Inbox(prefetch + MOST_RESULTS_IN_USE)
        self._outbox = Outbox()
        self.has_begun = False
        self._reason = ""
        ours, theirs = socket.socketpair()
        self._life, its_life = socket.socketpair()
        # Whatever limit the program gives new sockets.
        theirs.setblocking(True)
        with theirs, its_life:
            # A daemon: `multiprocessing` ends it too, should this process end in a way that it still notices.
            self.process = context.Process(
                target=main, args=(theirs, its_life, number, setting), name=f"forebay-{number}", daemon=True
            )
            try:
                self.process.start()
                self.ending = _ending_of(self.process)
            except BaseException:
                ours.close()
                self._life.close()
                raise
        self.channel = LoopChannel(ours)

    def send(self, message: Message, value: object) -> None:
        """Sends a message about an object."""
        parcel, file = self._outbox.pack(take_apart(value))
        given_up, self._outbox.given_up = tuple(self._outbox.given_up), []
        returned = tuple(self._inbox.return_unused())
        # One that is gone is noticed when its answer is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(Message(message.kind, message.number, parcel, message.about, returned, given_up), file)

    def flush(self) -> None:
        """Sends what did not fit before."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.flush()

    def is_refusal(self, message: Message) -> bool:
        """Whether the worker says why it cannot begin."""
        return message.kind == "failure" and not self.has_begun

    def open(self, message: Message, file: int | None, what: str) -> tuple[Any, TransformError | None]:
        """Notes what a message says of blocks; returns the object that comes with it, or why it cannot be received."""
        self._note(message, file)
        assert message.parcel is not None, "results are in a block"  # noqa: S101
        try:
            return self._inbox.open(message.parcel, self._outbox), None
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - whatever the value's class raises
            failure = TransformError(f"{self._setting}: {what} cannot be received: {told(error)}")
            failure.__cause__ = error
            return None, failure

    def take(self, message: Message, file: int | None, num_abandoned: int) -> Done | None:
        """Takes a message; returns what came of a batch, unless it was given up."""
        if message.kind == "ready":
            self._note(message, file)
            self.has_begun = True
            return None
        if message.kind == "end":
            self._note(message, file)
            self._reason = f"; the reason: {message.about}"
            return None
        rows = self.tasks.pop(message.number)
        if message.number <= num_abandoned:
            self._note(message, file)
            return None
        value, failure = self.open(message, file, f"what came of {rows}")
        if failure is not None or message.kind == "result":
            return Done(message.number, value, failure)
        return Done(message.number, None, value)

    def _note(self, message: Message, file: int | None) -> None:
        self._outbox.take_back(message.returned)
        self._inbox.forget(message.given_up)
        if message.parcel is None:
            return
        if file is not None:
            self._inbox.add(message.parcel, file)
            os.close(file)
        self._inbox.skip(message.parcel)

    def let_go(self) -> None:
        """Closes what is this process's of the connection; one that waits for a batch ends."""
        self.channel.close()
        os.close(self.ending)

    def end(self) -> None:
        """Ends the process, if it has not ended, and waits until it has."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        # Its end would be killed by this.
        self._life.close()

    def forget(self) -> None:
        """Leaves the process to the one that this is a fork of."""
        # `multiprocessing` would end it when this process ends.
        children: set[Any] = getattr(multiprocessing.process, "_children", set())
        children.discard(self.process)
        self.let_go()
        self._life.close()

    def obituary(self) -> str:
        """Says how the worker ended."""
        # What it forked holds up `join`, which waits until nobody has its end of a pipe.
        if self.process.exitcode is None:
            self.process.join(1)
        code = self.process.exitcode
        how = f"with exit status {code}"
        if code is not None and code < 0:
            how = f"by {_name_of(-code)}"
            if -code == signal.SIGKILL:
                how += ", which is how Linux ends processes where memory is short"
        if not self.has_begun:
            # As Python calls the program.
            is_read = getattr(sys.modules.get("__main__"), "__file__", None) == "<stdin>"
            hint = "" if code is not None and code < 0 else FROM_STDIN if is_read else HOW_TO_BEGIN
            return f"{self._setting}: worker {self.number} ended {how} before it began{self._reason or hint}"
        rows = next(iter(self.tasks.values()), None)
        doing = rows or "nothing to do"
        return f"{self._setting}: worker {self.number} ended {how} while it had {doing}{self._reason}"


def _ending_of(process: Any) -> int:
    """Returns what can be read once a process has ended, though what it forked lives and has all that it had open."""
    if sys.platform == "linux":
        # Older kernels and some sandboxes have none.
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    return os.dup(process.sentinel)


def _name_of(number: int) -> str:
    """Returns the name of a signal. Most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(workers: list[Worker], selector: selectors.BaseSelector, owner: int) -> None:
    """Ends the workers: idle ones by themselves, others at once."""
    if os.getpid() != owner:
        return
    # Python drops what is raised in a finaliser, and the workers that have not ended yet would stay.
    with _held_interrupts() as came:
        selector.close()
        for worker in workers:
            worker.let_go()
        deadline = time.monotonic() + SECONDS_TO_END
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in workers:
            worker.end()
    if came:
        # When the finaliser is over. At the end of the program no thread starts, and none is needed.
        main_thread = threading.main_thread().ident
        assert main_thread is not None, "it runs"  # noqa: S101
        # A signal, which ends waiting, too.
        again = threading.Timer(SECONDS_UNTIL_INTERRUPT, signal.pthread_kill, (main_thread, signal.SIGINT))
        again.daemon = True
        with contextlib.suppress(RuntimeError):
            again.start()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Has Ctrl-C wait while a process is spawned, which knows none until it ignores it: it is for this one.

    The program is interrupted when the process is among those that are ended with it.
    """
    # It lets interrupts through again when it starts.
    resource_tracker.ensure_running()
    handler = signal.getsignal(signal.SIGINT)
    came: list[Interrupt] = []
    try:
        with _held_interrupts() as came:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        if came and callable(handler):
            handler(*came[0])


@contextlib.contextmanager
def _held_interrupts() -> Iterator[list[Interrupt]]:
    """Notes Ctrl-C instead of interrupting the program."""
    came: list[Interrupt] = []
    handler = signal.getsignal(signal.SIGINT)
    # Threads are not interrupted, and may set no handlers.
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield came
        return
    signal.signal(signal.SIGINT, lambda *interrupt: came.append(interrupt))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, handler)


_CREWS: weakref.WeakSet[Processes] = weakref.WeakSet()


def _forget_workers() -> None:
    """Leaves all workers to the process that this one is a fork of."""
    for crew in list(_CREWS):
        crew.forget()


os.register_at_fork(after_in_child=_forget_workers)
