"""A crew of processes, which are spawned, never forked, because this process has threads."""

from __future__ import annotations

import contextlib
import errno
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
from typing import TYPE_CHECKING, Any, NoReturn

from forebay.exceptions import ClosedError, SettingError, TransformError, WorkerDiedError
from forebay.pool.channel import LoopChannel, Message
from forebay.pool.memory import Inbox, Outbox
from forebay.pool.ordered import Done
from forebay.pool.worker import main
from forebay.transforms import told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from forebay import _lib
    from forebay.transforms import Rows

    Interrupt = tuple[int, FrameType | None]

SECONDS_TO_END = 0.2
"""How long idle workers have to end by themselves."""

SECONDS_UNTIL_INTERRUPT = 0.1
"""How long a Ctrl-C during the garbage collection of a pool is delayed after its workers have ended: longer than the
collection takes, which may run other finalisers."""

HOW_TO_BEGIN = (
    "; what it printed says why; a program that starts processes needs `if __name__ == '__main__':` around all that it "
    "does"
)

FROM_STDIN = "; processes must be able to find the program: put what Python reads from its standard input into a file"

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
"""What the system says if the process or the machine has too many files open, or on their way to other processes."""

MOST_RESULTS_IN_USE = 4
"""The most batches of a worker that the loop may keep before it gets copies, besides those under way."""


class Processes:
    """Processes that run a program on batches. They end with this object, and with this process."""

    def __init__(self, job: bytes, setting: str, num_workers: int, prefetch: int, start_method: str) -> None:
        if multiprocessing.current_process().daemon:
            raise SettingError(
                f"{setting}: this process is a daemon of `multiprocessing`, which cannot start other processes; "
                "run functions in threads, or in the loop"
            )
        self.setting = setting
        self.num_workers = num_workers
        self.capacity = num_workers * prefetch
        self._few = prefetch // 2
        self._owner = os.getpid()
        self._num_given = self._num_abandoned = 0
        self.num_skipped = 0
        self._is_closed = False
        self._workers: list[Worker] = []
        self._outbox = Outbox(num_workers)
        try:
            self._selector = selectors.DefaultSelector()
            self._end = weakref.finalize(self, _end, self._workers, self._outbox, self._selector, self._owner)
            _CREWS.add(self)
            self._start(job, prefetch, multiprocessing.get_context(start_method))
        except OSError as error:
            self._refuse(error, "to start workers")

    def _start(self, job: bytes, prefetch: int, context: Any) -> None:
        """Starts the workers, all or none."""
        try:
            for number in range(self.num_workers):
                with _without_interrupts():
                    worker = Worker(context, self.setting, number, prefetch, self._outbox)
                    self._workers.append(worker)
                    self._selector.register(worker.channel, selectors.EVENT_READ, worker)
                    self._selector.register(worker.ending, selectors.EVENT_READ, worker)
            for worker in self._workers:
                self._send(worker, Message("job"), job)
        except BaseException:
            self._leave_at_exit()
            self.close()
            raise

    def _fail(self, error: Exception, what: str) -> NoReturn:
        """Raises an error; ends the workers if it is one of the system, with which messages are lost."""
        self._leave_at_exit()
        if isinstance(error, OSError):
            self.close()
            self._refuse(error, what)
        raise error

    def _leave_at_exit(self) -> None:
        """Has a thread wait for its end if Python is ending and has ended the workers, as if it waited for a stream.

        Raises:
            ClosedError: this is the thread that ends Python.
        """
        if self._end.alive or self._is_closed:
            return
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()
        raise ClosedError(f"{self.setting}: the workers have ended, as the program does")

    def _refuse(self, error: OSError, what: str) -> NoReturn:
        """Raises the error of the system, or one that says what to do if no file descriptor is left."""
        if error.errno not in NO_DESCRIPTORS:
            raise error
        raise TransformError(
            f"{self.setting}: no file descriptor is left {what}; use fewer processes (`num_proc`, `num_workers`), have "
            "each hold fewer batches (`prefetch`, `prefetch_factor`), or raise the number of descriptors (`ulimit -n`)"
        ) from error

    @property
    def is_usable(self) -> bool:
        """Whether all workers are running, and belong to this process."""
        return self._end.alive and self._owner == os.getpid()

    @property
    def has_begun(self) -> bool:
        """Whether all workers have loaded the program."""
        return all(worker.has_begun for worker in self._workers)

    @property
    def is_short(self) -> bool:
        """Whether a worker has at most half of the batches that it may have."""
        for worker in self._workers:  # noqa: SIM110 - called for each batch, and faster so
            if len(worker.tasks) <= self._few:
                return True
        return False

    def supply(self, stream: _lib.Stream) -> None:
        """Gives a stream shared memory to gather batches into."""
        # Without descriptors for more, batches are copied into blocks that are there.
        with contextlib.suppress(OSError):
            self._outbox.supply(stream)

    def give(self, value: Any, rows: Rows) -> int:
        """Makes the worker with the fewest tasks run the program on a batch; returns the number of the task.

        Raises:
            TransformError: there is no file descriptor left to send it; the workers have ended.
            OSError: the system refused something else.
        """
        self._num_given += 1
        worker = min(self._workers, key=lambda worker: len(worker.tasks))
        try:
            self._send(worker, Message("task", self._num_given, about=tuple(rows)), value)
        except Exception as error:  # noqa: BLE001 - raised again
            self._fail(error, "to send a batch to a worker")
        worker.tasks[self._num_given] = rows
        return self._num_given

    def _send(self, worker: Worker, message: Message, value: object) -> None:
        worker.send(message, value)
        if worker.channel.has_unsent:
            self._selector.modify(worker.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)

    def collect(self, seconds: float) -> Iterator[Done]:
        """Yields results; waits up to `seconds` for the first, or for a worker to take what was kept for it.

        Raises:
            WorkerDiedError: a worker has ended.
            TransformError: a worker cannot load the program, or there is no file descriptor left for what one sends.
            OSError: the system refused something else.
        """
        try:
            yield from self._collect(seconds)
        except Exception as error:  # noqa: BLE001 - raised again
            self._fail(error, "to receive a result from a worker")

    def _collect(self, seconds: float) -> Iterator[Done]:
        # Whether each worker has ended. Acted on only after its messages, so that these are taken first.
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
                    value, failure = worker.open(*received, None)
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
        """Returns text that tells which worker has a batch."""
        worker = next((worker for worker in self._workers if number in worker.tasks), None)
        return "a worker" if worker is None else f"worker {worker.number}, process {worker.process.pid}"

    def abandon(self) -> None:
        """Gives up all batches that are under way."""
        self._num_abandoned = self._num_given

    def close(self) -> None:
        """Ends the workers, and unmaps the blocks that nobody uses."""
        self._is_closed = True
        self._end()
        self._workers.clear()
        self._outbox.clear()

    def forget(self) -> None:
        """In a fork: leaves the workers to the parent process, and closes the connections to them."""
        if not self._end.alive:
            return
        self._end.detach()
        # Nothing is unregistered: the parent shares the same epoll object.
        with contextlib.suppress(OSError):
            self._selector.close()
        self._outbox.close()
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.forget()


class Worker:
    """A worker process, as seen by the process of the loop."""

    def __init__(self, context: Any, setting: str, number: int, prefetch: int, outbox: Outbox) -> None:
        self._setting = setting
        self.number = number
        self.tasks: OrderedDict[int, Rows] = OrderedDict()
        self._inbox = Inbox(prefetch + MOST_RESULTS_IN_USE)
        self._outbox = outbox
        self.has_begun = False
        self._reason = ""
        with contextlib.ExitStack() as theirs_only, contextlib.ExitStack() as on_failure:
            ours, theirs = _connection(on_failure, theirs_only)
            self._life, its_life = _connection(on_failure, theirs_only)
            # Even if the program has set a default timeout for sockets.
            theirs.setblocking(True)
            # A daemon, so that `multiprocessing` also ends it if this process ends in a way that it notices.
            self.process = context.Process(
                target=main, args=(theirs, its_life, number, setting), name=f"forebay-{number}", daemon=True
            )
            on_failure.callback(self.end)
            self.process.start()
            self.ending = _ending_of(self.process)
            on_failure.pop_all()
        self.channel = LoopChannel(ours)

    def send(self, message: Message, value: object) -> None:
        """Sends a message about an object."""
        parcel, file = self._outbox.pack(value, self.number)
        given_up, returned = self._outbox.take_given_up(self.number), tuple(self._inbox.return_unused())
        # A worker that is gone is noticed when its answer is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(Message(message.kind, message.number, parcel, message.about, returned, given_up), file)

    def flush(self) -> None:
        """Sends what did not fit before."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.flush()

    def is_refusal(self, message: Message) -> bool:
        """Whether a message says why the worker cannot begin."""
        return message.kind == "failure" and not self.has_begun

    def open(self, message: Message, file: int | None, rows: Rows | None) -> tuple[Any, TransformError | None]:
        """Handles the blocks of a message; returns its object, or the error if that cannot be received.

        Args:
            message: The message.
            file: The file of its block, if the block is new.
            rows: The rows that it is about, if the worker has begun.
        """
        self._note(message, file)
        assert message.parcel is not None, "results are in parcels"  # noqa: S101
        try:
            return self._inbox.open(message.parcel, self._outbox), None
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - whatever the value's class raises
            what = "why a worker cannot begin" if rows is None else f"the result for {rows}"
            failure = TransformError(f"{self._setting}: {what} cannot be received: {told(error)}")
            failure.__cause__ = error
            return None, failure

    def take(self, message: Message, file: int | None, num_abandoned: int) -> Done | None:
        """Takes a message; returns the result of a batch, unless it was abandoned."""
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
        value, failure = self.open(message, file, rows)
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
        self._inbox.skip(message.parcel)

    def let_go(self) -> None:
        """Closes this end of the connection; a worker that waits for a batch then ends."""
        self.channel.close()
        os.close(self.ending)

    def end(self) -> None:
        """Kills the process if it still runs, and waits until it has ended."""
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        # Only now: closing it kills the worker.
        self._life.close()

    def forget(self) -> None:
        """In a fork: leaves the worker to the parent process."""
        # `multiprocessing` would end it when this process ends.
        children: set[Any] = getattr(multiprocessing.process, "_children", set())
        children.discard(self.process)
        self.let_go()
        self._life.close()

    def obituary(self) -> str:
        """Returns text that tells how the worker ended."""
        # Forks of the worker block `join`, which waits until no process has its end of a pipe.
        if self.process.exitcode is None:
            self.process.join(1)
        code = self.process.exitcode
        how = f"with exit status {code}"
        if code is not None and code < 0:
            how = f"by {_name_of(-code)}"
            if -code == signal.SIGKILL:
                how += ", which is how Linux ends processes when memory is short"
        if not self.has_begun:
            # Python's name for a program on standard input.
            is_read = getattr(sys.modules.get("__main__"), "__file__", None) == "<stdin>"
            hint = "" if code is not None and code < 0 else FROM_STDIN if is_read else HOW_TO_BEGIN
            return f"{self._setting}: worker {self.number} ended {how} before it began{self._reason or hint}"
        rows = next(iter(self.tasks.values()), None)
        doing = rows or "nothing to do"
        return f"{self._setting}: worker {self.number} ended {how} while it had {doing}{self._reason}"


def _connection(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    """Returns the two ends of a connection, each closed with its stack."""
    first, second = socket.socketpair()
    return ours.enter_context(first), theirs.enter_context(second)


def _ending_of(process: Any) -> int:
    """Returns a descriptor that becomes readable when a process has ended, even if its own forks are still running."""
    if sys.platform == "linux":
        # Older kernels and some sandboxes have no pidfd.
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    return os.dup(process.sentinel)


def _name_of(number: int) -> str:
    """Returns the name of a signal. Most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(workers: list[Worker], outbox: Outbox, selector: selectors.BaseSelector, owner: int) -> None:
    """Ends the workers: idle ones end by themselves, others are killed."""
    if os.getpid() != owner:
        return
    # Python drops exceptions of finalisers, and workers that have not ended yet would stay.
    with _held_interrupts() as came:
        selector.close()
        outbox.close()
        for worker in workers:
            worker.let_go()
        deadline = time.monotonic() + SECONDS_TO_END
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in workers:
            worker.end()
    if came:
        # Raised after the finaliser. At the end of the program no thread can start, and none is needed.
        main_thread = threading.main_thread().ident
        assert main_thread is not None, "it runs"  # noqa: S101
        # A signal, because it also interrupts waiting calls.
        again = threading.Timer(SECONDS_UNTIL_INTERRUPT, signal.pthread_kill, (main_thread, signal.SIGINT))
        again.daemon = True
        with contextlib.suppress(RuntimeError):
            again.start()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delays Ctrl-C while a process is spawned, and blocks it in the new process until that ignores it.

    The program is interrupted once the new process is among those that end with it.
    """
    # Started before, because starting it unblocks the signal.
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
    """Records Ctrl-C instead of interrupting the program."""
    came: list[Interrupt] = []
    handler = signal.getsignal(signal.SIGINT)
    # Other threads are not interrupted, and cannot set handlers.
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
    """In a fork: leaves all workers to the parent process."""
    for crew in list(_CREWS):
        crew.forget()


def _forget_fork_server() -> None:
    """In a fork: leaves the fork server to the parent process; `multiprocessing` would wait for it as for a child."""
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if getattr(server, "_forkserver_pid", None) is None:
        return
    server._forkserver_pid = server._forkserver_address = None
    # Otherwise the server would not end with the parent.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


os.register_at_fork(after_in_child=_forget_workers)
os.register_at_fork(after_in_child=_forget_fork_server)
