"""The workers of `map`: what goes wrong in them, and what is left of them."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import functions
import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
from programs import MODULES, descriptors, run_python, run_to_its_end, shared_blocks
from rows import write_uneven

import forebay as fb
from forebay.mapped import MapStage, Workers
from forebay.passes import Cursor
from forebay.pool import ordered
from forebay.pool.channel import Channel, LoopChannel, Message
from forebay.pool.memory import Inbox, Outbox, Parcel
from forebay.pool.ordered import Done, Ordered
from forebay.pool.pickling import put_together, take_apart
from forebay.pool.processes import Worker
from forebay.pool.sending import _names_in
from forebay.stages import Item, Pass
from forebay.transforms import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.mapped import MappedDataset
    from forebay.pool.ordered import Crew

NUM_ROWS = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    write_uneven(folder, NUM_ROWS)
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> fb.Dataset:
    return fb.load_dataset(folder, split="train")


def failing(rows: fb.Dataset, how: str, num_proc: int = 2, **settings: Any) -> MappedDataset:
    return rows.map(
        functions.failing,
        batched=True,
        with_indices=True,
        fn_kwargs={"how": how},
        num_proc=num_proc,
        pool=fb.PoolOptions(**settings),
    )


def children() -> list[Any]:
    """Worker processes of this one."""
    return [child for child in multiprocessing.active_children() if child.name.startswith("forebay-")]


@pytest.mark.parametrize("workers", [{}, {"num_threads": 2}, {"num_proc": 2}], ids=str)
def test_an_exception_names_function_and_rows_and_has_its_own_as_the_cause(
    rows: fb.Dataset, workers: dict[str, int]
) -> None:
    mapped = rows.map(functions.failing, batched=True, with_indices=True, **workers)
    stream = mapped.batches(32, rank=0, world_size=2)
    batches = iter(stream)
    found = [next(batches)["position"][0] for _ in range(3)]
    assert found == [0, 64, 128]
    with pytest.raises(fb.TransformError) as raised:
        next(batches)
    where = "the rows at positions 192 to 254 in steps of 2 of epoch 0"
    assert str(raised.value) == f"map: `failing` failed on {where}: ValueError: no 200"
    cause = raised.value.__cause__
    assert isinstance(cause, ValueError)
    assert cause.args == ("no 200",)
    if "num_proc" in workers:
        [note] = cause.__notes__
        assert "worker" in note
        assert 'functions.py", line' in note
        assert "raise ValueError" in note
    assert stream.state_dict()["position"] == 192, "the batch that failed is the next one"


@pytest.mark.parametrize("workers", [{}, {"num_threads": 2}, {"num_proc": 2}], ids=str)
def test_an_exception_of_a_function_of_rows_names_the_row(rows: fb.Dataset, workers: dict[str, int]) -> None:
    mapped = rows.map(functions.failing_row, with_indices=True, **workers)
    with pytest.raises(fb.TransformError) as raised:
        list(mapped.batches(32, rank=0, world_size=2))
    assert str(raised.value) == "map: `failing_row` failed on the row at position 200 of epoch 0: ValueError: no 200"
    assert repr(raised.value.__cause__) == "ValueError('no 200')"


def test_after_an_exception_the_same_workers_go_on(rows: fb.Dataset) -> None:
    before = {child.pid for child in children()}
    stream = failing(rows, "value").batches(32)
    pids = []
    for _ in range(2):
        with pytest.raises(fb.TransformError, match="no 200"):
            list(stream)
        pids.append({child.pid for child in children()} - before)
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2


def test_an_exception_that_cannot_be_pickled_is_told_in_text(rows: fb.Dataset) -> None:
    with pytest.raises(fb.TransformError, match="TwoPartsError: cannot") as raised:
        list(failing(rows, "unpicklable").batches(32))
    assert "TwoPartsError: cannot" in str(raised.value.__cause__)
    assert "lambda: 0" in raised.value.__cause__.__notes__[0]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


class UnspeakableError(Exception):
    """Fails to say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


def unspeakable(_: Any) -> None:
    raise UnspeakableError


@pytest.mark.parametrize("workers", [{}, {"num_threads": 1}, {"num_proc": 1}], ids=str)
def test_an_exception_that_has_no_text_is_told_by_its_type(rows: fb.Dataset, workers: dict[str, int]) -> None:
    with pytest.raises(fb.TransformError, match=r"positions 0 to 31 of epoch 0: UnspeakableError$") as raised:
        list(rows.map(unspeakable, batched=True, **workers).batches(32))
    assert type(raised.value.__cause__) is UnspeakableError


def unencodable(_: Any) -> None:
    raise ValueError("no image: " + os.fsdecode(b"\xff.jpg"))


@pytest.mark.parametrize("workers", [{}, {"num_threads": 1}, {"num_proc": 1}], ids=str)
def test_an_exception_about_a_name_that_is_no_unicode_is_told(rows: fb.Dataset, workers: dict[str, int]) -> None:
    with pytest.raises(fb.TransformError, match=r"epoch 0: ValueError: no image: \\udcff\.jpg$") as raised:
        list(rows.map(unencodable, batched=True, **workers).batches(32))
    assert type(raised.value.__cause__) is ValueError


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_what_ends_programs_is_told_with_its_rows_where_a_thread_raises_it(
    rows: fb.Dataset, kind: type[BaseException]
) -> None:
    def fail(_: Any) -> None:
        raise kind("now")

    with pytest.raises(fb.TransformError, match=f"a function failed on .* 0 to 31 of epoch 0: {kind.__name__}: now"):
        list(rows.map(fail, batched=True, num_threads=1).batches(32))


class ExitsWhereItArrives:
    """Ends programs that load it."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def exiting(batch: dict[str, Any]) -> dict[str, Any]:
    return {"exits": [ExitsWhereItArrives() for _ in batch["id"]]}


def test_a_result_that_exits_where_it_arrives_is_refused(rows: fb.Dataset) -> None:
    with pytest.raises(fb.TransformError, match="0 to 31 of epoch 0 cannot be received: SystemExit: 3"):
        list(rows.map(exiting, batched=True, num_proc=1).batches(32))


def test_a_function_that_exits_ends_no_worker(rows: fb.Dataset) -> None:
    with pytest.raises(fb.TransformError, match="a function failed on the rows at positions 192 to 223.*SystemExit: 3"):
        list(failing(rows, "exit").batches(32))


def test_a_killed_worker_is_told_with_its_rows(rows: fb.Dataset) -> None:
    stream = failing(rows, "killed").batches(32)
    with pytest.raises(fb.WorkerDiedError, match=r"SIGKILL, which is .* at positions 192 to 223 of epoch 0"):
        list(stream)
    # Others take its place for the next iteration.
    stream.load_state_dict({**stream.state_dict(), "position": 224})
    assert len(list(stream)) == 9


def test_a_worker_that_is_killed_from_outside_is_told(rows: fb.Dataset) -> None:
    before = {child.pid for child in children()}
    batches = iter(rows.map(functions.late, batched=True, with_indices=True, num_proc=2).batches(8))
    next(batches)
    [one, _] = [child for child in children() if child.pid not in before]
    os.kill(one.pid, signal.SIGTERM)
    with pytest.raises(fb.WorkerDiedError, match="ended by SIGTERM"):
        list(batches)


def test_a_worker_without_descriptors_for_shared_memory_says_so(rows: fb.Dataset) -> None:
    stream = rows.map(functions.without_descriptors, batched=True, num_proc=1).batches(32)
    with pytest.raises(
        fb.WorkerDiedError, match=r"ended .* at positions .*; the reason: OSError: .*Too many open files"
    ):
        list(stream)


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """Keeps this process from opening any more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Standard input and output are open, and a call for a few descriptors at a time is still allowed.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_loop_without_descriptors_for_shared_memory_starts_other_workers_later(rows: fb.Dataset) -> None:
    def growing(batch: dict[str, Any]) -> dict[str, Any]:
        size = 1 << 20 if batch["id"][0] >= 96 else 1
        return {"blob": [bytes(size) for _ in batch["id"]], "pid": [os.getpid()] * len(batch["id"])}

    pool = fb.PoolOptions(prefetch=1)
    stream = rows.map(growing, batched=True, num_proc=1, pool=pool).batches(32)
    batches = iter(stream)
    pids = [next(batches)["pid"][0] for _ in range(3)]
    words = "map: no file descriptor is left to receive a result .*`num_proc`.*`prefetch`.*`ulimit -n`"
    with without_descriptors(), pytest.raises(fb.TransformError, match=words) as raised:
        list(batches)
    assert str(raised.value.__cause__) == "[Errno 24] Too many open files"
    later = {batch["pid"][0] for batch in stream}
    assert len(later) == 1
    assert not later & {*pids}, "a message to those was lost"


def test_a_signal_without_a_name_is_told_by_its_number(rows: fb.Dataset) -> None:
    before = {child.pid for child in children()}
    number = signal.SIGRTMIN + 2
    stream = rows.map(lambda _: os.kill(os.getpid(), number), batched=True, num_proc=1).batches(32)
    with pytest.raises(fb.WorkerDiedError, match=f"ended by signal {number} while it had .* 0 to 31"):
        list(stream)
    assert {child.pid for child in children()} <= before, "the other workers are ended"


def test_a_killed_worker_is_told_where_processes_have_no_descriptors(
    rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(fb.WorkerDiedError, match="SIGKILL"):
        list(failing(rows, "killed").batches(32))


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_worker_that_dies_is_told_though_what_it_forked_lives(
    rows: fb.Dataset, tmp_path: Path, start_method: Any
) -> None:
    def forking(_: Any, indices: list[int]) -> None:
        if indices[0] == 96:
            if not (pid := os.fork()):
                time.sleep(10)
                os._exit(0)
            (tmp_path / "pid").write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)

    pool = fb.PoolOptions(start_method=start_method)
    batches = iter(rows.map(forking, batched=True, with_indices=True, num_proc=1, pool=pool).batches(32))
    assert [next(batches)["id"][0] for _ in range(3)] == [0, 32, 64], "what it had sent is delivered"
    with pytest.raises(fb.WorkerDiedError, match=r"ended by SIGKILL, .* at positions 96 to 127"):
        next(batches)
    forked = psutil.Process(int((tmp_path / "pid").read_text()))
    assert forked.status() != psutil.STATUS_ZOMBIE, "nobody waited for its end"
    forked.kill()


@pytest.mark.parametrize("workers", [{"num_threads": 2}, {"num_proc": 2}], ids=str)
def test_a_function_that_hangs_is_given_up_after_its_time(rows: fb.Dataset, workers: dict[str, int]) -> None:
    before = {child.pid for child in children()}
    mapped = rows.map(
        functions.failing,
        batched=True,
        with_indices=True,
        fn_kwargs={"how": "hang"},
        pool=fb.PoolOptions(timeout=2.5),
        **workers,
    )
    stream = mapped.batches(32)
    with pytest.raises(fb.TransformTimeoutError, match="192 to 223 of epoch 0 within the timeout of 2.5 s") as raised:
        list(stream)
    assert isinstance(raised.value, TimeoutError)
    assert {child.pid for child in children()} <= before, "workers that hang are ended"


@pytest.mark.parametrize(
    ("how", "kind", "maps"),
    [
        ("hang", fb.TransformTimeoutError, False),
        ("killed", fb.WorkerDiedError, False),
        ("exit", fb.TransformError, False),
        ("killed", fb.WorkerDiedError, True),
    ],
)
def test_what_ends_a_function_is_told_by_where_it_was_passed(
    rows: fb.Dataset, how: str, kind: type[fb.ForebayError], maps: bool
) -> None:
    dataset = rows.map(functions.unchanged, batched=True) if maps else rows
    collate = functools.partial(functions.failing_pairs, how=how)
    loader = fb.DataLoader(dataset, 32, collate_fn=collate, num_workers=1, timeout=2.5)
    with pytest.raises(kind, match="^map, collate_fn: " if maps else "^collate_fn: "):
        list(loader)


@pytest.mark.parametrize("num_proc", [0, 1])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (functions.other_length, "column `double`: expected 32 rows, as many as the batch has, got 3"),
        (functions.number, "expected a dict of columns, or None, got `int`"),
        (functions.other_field, "column `both`: expected 32 values in each part, got `dict`"),
        (functions.other_mask, "column `both`: expected 32 values in each part, got `forebay.columns.Masked`"),
        (functions.scalar, "column `double`: expected 32 values in a tensor, an array or a list, got `float`"),
    ],
)
def test_a_result_that_is_none_is_refused(rows: fb.Dataset, function: Any, words: str, num_proc: int) -> None:
    with pytest.raises(fb.TransformError) as raised:
        list(rows.map(function, batched=True, num_proc=num_proc).batches(32))
    assert words in str(raised.value)
    assert f"`{function.__name__}` returned for the rows at positions 0 to 31 of epoch 0" in str(raised.value)


def test_a_result_that_cannot_be_sent_is_refused(rows: fb.Dataset) -> None:
    with pytest.raises(fb.TransformError, match="at positions 0 to 31 of epoch 0 cannot be sent"):
        list(rows.map(functions.lambdas, batched=True, num_proc=1).batches(32))


def test_a_function_that_cannot_be_sent_is_refused_at_once(rows: fb.Dataset) -> None:
    lock = threading.Lock()
    mapped = rows.map(lambda _: {"locked": [lock.locked()]}, batched=True, num_proc=1)
    with pytest.raises(fb.SettingError, match="cannot be sent to a process: .*at the top of a module"):
        mapped.batches(32)


class Unloadable:
    """Cannot be loaded where it arrives."""

    def __call__(self, _: Any) -> None:
        raise AssertionError("it is never called")

    def __reduce__(self) -> Any:
        return __import__, ("no_such_module",)


def test_a_function_that_cannot_be_loaded_is_told(rows: fb.Dataset) -> None:
    with pytest.raises(fb.TransformError, match="a worker cannot begin: ModuleNotFoundError: .*no_such_module"):
        list(rows.map(Unloadable(), batched=True, num_proc=2).batches(32))


class KillsWhereItArrives(Unloadable):
    """Ends the worker that loads it."""

    def __reduce__(self) -> Any:
        return signal.raise_signal, (signal.SIGKILL,)


def test_a_worker_that_is_killed_before_it_began_is_not_told_of_guards(rows: fb.Dataset) -> None:
    with pytest.raises(fb.WorkerDiedError, match="ended by SIGKILL, .* before it began$"):
        list(rows.map(KillsWhereItArrives(), batched=True, num_proc=1).batches(32))


def test_an_initialiser_that_fails_is_no_matter_of_where_it_stands(rows: fb.Dataset) -> None:
    def fail(worker: int) -> None:
        raise ValueError(worker)

    pool = fb.PoolOptions(worker_init_fn=fail)
    with pytest.raises(fb.TransformError, match="a worker cannot begin: ValueError: 0$"):
        list(rows.map(functions.doubled, batched=True, num_proc=1, pool=pool).batches(32))


def test_workers_are_initialised_with_their_numbers(rows: fb.Dataset) -> None:
    pool = fb.PoolOptions(worker_init_fn=functions.init, start_method="forkserver")
    mapped = rows.map(functions.name_of_worker, batched=True, num_proc=2, pool=pool)
    assert {name for batch in mapped.batches(16) for name in batch["worker"]} == {"0", "1"}


def test_workers_serve_all_epochs_and_end_with_the_stream(rows: fb.Dataset) -> None:
    before = {child.pid for child in children()}
    stream = rows.map(functions.who, batched=True, num_proc=2).batches(16)
    pids = {pid for _ in range(3) for batch in stream for pid in batch["pid"]}
    assert len(pids) == 2
    assert os.getpid() not in pids
    del stream
    gc.collect()
    assert {child.pid for child in children()} <= before


def test_control_c_while_a_collected_pool_ends_is_not_lost(rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {child.pid for child in children()}
    stream = rows.map(functions.doubled, batched=True, num_proc=2).batches(16)
    assert sum(len(batch["id"]) for batch in stream) == NUM_ROWS
    let_go = Worker.let_go

    def interrupted(worker: Worker) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        let_go(worker)

    monkeypatch.setattr(Worker, "let_go", interrupted)

    def collect() -> None:
        nonlocal stream
        # No collection of cycles, which takes long here, and may have other finalisers interrupted.
        del stream
        assert {child.pid for child in children()} <= before
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        collect()


def test_threads_end_though_not_all_of_them_started(rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise KeyboardInterrupt
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        list(rows.map(functions.doubled, batched=True, num_threads=4).batches(32))
    gc.collect()
    for thread in started:
        thread.join(5)
    assert [thread.is_alive() for thread in started] == [False, False]


@pytest.mark.parametrize("is_left", [False, True])
def test_workers_end_with_the_stream_without_a_collection_of_cycles(rows: fb.Dataset, is_left: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        stream = rows.map(functions.doubled, batched=True, num_threads=2).batches(32)
        crews: weakref.WeakSet[Any] = weakref.WeakSet()
        for _ in stream:
            crews.add(stream._stages[0]._crew)
            if is_left:
                break
        assert len(crews) == 1
        del stream
        assert not crews
    finally:
        gc.enable()


def test_no_more_batches_are_under_way_than_was_said(rows: fb.Dataset) -> None:
    mapped = rows.map(functions.late, batched=True, with_indices=True, num_proc=2, pool=fb.PoolOptions(prefetch=3))
    stream = mapped.batches(4)
    batches = iter(stream)
    for _ in range(20):
        next(batches)
        time.sleep(0.005)
        num_given = stream._active._read.stats()["batches"]
        assert num_given <= stream.state_dict()["position"] / 4 + 6


def unchanged_by(kind: str, prefetch: int) -> Crew:
    """Returns a crew of one whose program returns what it is given."""

    def program(value: Any, rows: Rows, *, owns_process: bool = False) -> Any:  # noqa: ARG001 - what programs get
        return value

    made: Any = program
    made.setting = "map"
    return MapStage(made, Workers(kind, 1, fb.PoolOptions(prefetch=prefetch)))._make_crew()


@pytest.mark.parametrize(("num_batches", "num_columns"), [(1000, 1), (5, 10_000)], ids=["many", "wide"])
def test_batches_that_fit_into_no_socket_come_back(num_batches: int, num_columns: int) -> None:
    crew = unchanged_by("processes", num_batches)
    # Each column has a buffer of its own, of which a message tells.
    columns = [np.zeros(512, np.uint8) for _ in range(num_columns)]
    numbers = [crew.give((number, columns), Rows(0, number, 1, 1)) for number in range(num_batches)]
    found: list[Done] = []
    while len(found) < num_batches:
        found += crew.collect(1)
    assert [done.number for done in found] == numbers
    assert [done.value[0] for done in found] == list(range(num_batches))
    assert all(len(done.value[1]) == num_columns for done in found)
    crew.close()


def test_an_end_that_does_not_wait_sends_everything_once_and_in_order(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    loop, worker = LoopChannel(ours), Channel(theirs)
    abouts = [bytes([number]) * 300_000 for number in range(4)]
    for number, about in enumerate(abouts):
        (tmp_path / str(number)).write_bytes(about)
        loop.send(Message("task", number, about=about), os.open(tmp_path / str(number), os.O_RDONLY))
    assert loop.has_unsent, "more than a socket holds"
    received = []
    thread = threading.Thread(target=lambda: received.extend(worker.receive() for _ in abouts))
    thread.start()
    while loop.has_unsent:
        loop.flush()
    thread.join()
    assert [message.about for message, _ in received] == abouts
    files = [file for _, file in received]
    assert [os.pread(file, 1 << 20, 0) for file in files] == abouts, "each with its own file"
    for file in files:
        os.close(file)
    loop.send(Message("task", 4))
    assert worker.receive() == (Message("task", 4), None)
    loop.close()
    assert worker.receive() is None
    worker.close()


def packed(message: Message, file: int | None = None) -> bytes:
    """Returns what goes through the socket beside the file."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(message, file)
        return theirs.recv(1 << 16)


def test_an_end_that_does_not_wait_takes_whole_messages_only(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    loop = LoopChannel(ours)
    (tmp_path / "file").write_text("its own")
    assert loop.receive() is None
    message, other = Message("result", 1, about=bytes(1000)), Message("result", 2, about="other")
    with (tmp_path / "file").open() as file:
        sent = packed(message, os.dup(file.fileno()))
        # Behind one that is taken with its first bytes.
        theirs.send(packed(other))
        socket.send_fds(theirs, [sent[:3]], [file.fileno()])
    assert loop.receive() == (other, None)
    for part in (sent[3:4], sent[4:9], sent[9:] + packed(other)):
        assert loop.receive() is None, "parts of it are not taken for the whole"
        assert not loop.is_at_end
        theirs.send(part)
    received = loop.receive()
    assert received is not None
    assert received[0] == message
    assert received[1] is not None
    assert os.read(received[1], 100) == b"its own"
    os.close(received[1])
    assert loop.receive() == (other, None), "which came together with the one before"
    # The last message was cut off.
    theirs.send(sent[:9])
    theirs.close()
    assert [loop.receive(), loop.receive()] == [None, None]
    assert loop.is_at_end
    with pytest.raises(BrokenPipeError):
        loop.send(Message("task", 2), os.open(tmp_path / "file", os.O_RDONLY))
    assert not loop.has_unsent, "nobody will take it"
    loop.close()


def test_workers_wait_whatever_the_time_limit_of_new_sockets(rows: fb.Dataset) -> None:
    socket.setdefaulttimeout(10)
    try:
        assert len(list(rows.map(functions.doubled, batched=True, num_proc=1).batches(10))) == 50
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_crew_counts_what_it_did_for_nobody(kind: str) -> None:
    crew = unchanged_by(kind, 4)
    for epoch in range(2):
        for number in range(3):
            crew.give(number, Rows(epoch, number, 1, 1))
        crew.abandon()
    wanted = crew.give("wanted", Rows(2, 0, 1, 1))
    found: list[Done] = []
    while not found:
        found += crew.collect(1)
    assert found == [Done(wanted, "wanted", None)]
    assert crew.num_skipped == 6
    crew.close()


class Clock:
    """A time that goes by only where it is said to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Behind:
    """A crew that takes two seconds for each batch, and has some to do that nobody wants any more."""

    setting = "map"
    num_workers = 1
    capacity = 4
    is_usable = has_begun = is_short = True
    num_skipped = 0

    def __init__(self, clock: Clock, num_left: int) -> None:
        self._clock = clock
        self._num_left = num_left
        self._given: list[Any] = []
        self.is_closed = False

    def give(self, value: Any, rows: Rows) -> int:
        self._given.append(value)
        return rows.first + 1

    def collect(self, seconds: float) -> Iterator[Done]:
        # As long as a batch takes, but no longer than is waited.
        self._clock.now += min(seconds, 2)
        if seconds < 2:
            return
        if self._num_left:
            self._num_left -= 1
            self.num_skipped += 1
        elif self._given:
            yield Done(1, self._given.pop(0), None)

    def describe(self, number: int) -> str:
        return f"worker {number}"

    def abandon(self) -> None:
        raise AssertionError("nobody leaves")

    def close(self) -> None:
        self.is_closed = True


class One:
    """A batch."""

    stream = None
    is_over = False

    def is_ready(self) -> bool:
        return True

    def __next__(self) -> Item:
        if self.is_over:
            raise StopIteration
        self.is_over = True
        return Item("wanted", 1, 0, Cursor(0, 1))

    def close(self) -> None:
        raise AssertionError("nobody leaves")


@pytest.mark.parametrize(("timeout", "is_enough"), [(2.5, True), (1.5, False)])
def test_a_timeout_does_not_count_what_workers_still_do_for_an_iteration_that_was_left(
    monkeypatch: pytest.MonkeyPatch, timeout: float, is_enough: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(ordered, "time", clock)
    monkeypatch.setattr(ordered, "SECONDS_BETWEEN_LOOKS", 2)
    monkeypatch.setattr(ordered, "SECONDS_TO_WAIT_FOR_RESULTS", 2)
    crew = Behind(clock, num_left=4)
    batches = Ordered(One(), crew, Pass(0, 0, 0, 1, is_alone=True), timeout)
    if is_enough:
        assert next(batches).value == "wanted"
        assert clock.now == 10, "four for nobody, and this one"
    else:
        with pytest.raises(fb.TransformTimeoutError, match="within the timeout of 1.5 s, from worker 1"):
            next(batches)
        assert crew.is_closed


def test_batches_that_are_kept_stay_what_they_are(rows: fb.Dataset) -> None:
    ds = rows.with_format("numpy")
    stream = ds.map(functions.of_array, batched=True, num_proc=2).batches(16)
    batches = list(stream)
    again = list(stream)
    for kept, other in zip(batches, again, strict=True):
        assert (kept["image"] == kept["id"][:, None]).all()
        assert (other["image"] == kept["image"]).all()
        kept["image"][:] = 0
        assert (other["image"] == other["id"][:, None]).all()


def test_inputs_that_a_function_keeps_stay_what_they_are(rows: fb.Dataset) -> None:
    stream = rows.with_format("numpy").map(functions.keeping, batched=True, num_proc=1).batches(100)
    assert [batch["total"][0] for batch in stream] == [sum(range(100 * n)) for n in range(1, 6)]


def test_a_block_is_written_again_only_when_nobody_uses_what_was_read() -> None:
    outbox, inbox = Outbox(), Inbox(most_in_use=2)
    value = {"a": np.arange(10_000), "t": torch.arange(5000, dtype=torch.bfloat16).reshape(50, 100).T, "n": [1, "x"]}

    def send() -> Any:
        parcel, file = outbox.pack(value)
        if file is not None:
            inbox.add(parcel, file)
        return parcel, inbox.open(parcel)

    first, read = send()
    assert (read["a"] == value["a"]).all()
    assert read["t"].equal(value["t"])
    assert read["n"] == [1, "x"]
    part = read["t"][3:5]
    del read
    assert inbox.return_unused() == [], "a part of a tensor is in use"
    second = send()[0]
    assert second.block != first.block
    del part
    assert sorted(inbox.return_unused()) == [first.block, second.block]
    outbox.take_back([first.block, second.block])
    assert send()[0].block in (first.block, second.block)


def test_a_block_that_is_too_small_gives_way_to_a_larger_one() -> None:
    outbox, inbox = Outbox(), Inbox(most_in_use=2)
    parcel, file = outbox.pack(bytes(10_000))
    inbox.add(parcel, file)
    assert inbox.open(parcel) == bytes(10_000)
    outbox.take_back(inbox.return_unused())
    larger, file = outbox.pack(bytes(1 << 20))
    os.close(file)
    assert outbox.take_given_up() == (parcel.block,)
    assert larger.num_bytes >= 1 << 20
    inbox.forget([parcel.block])


class TwoEnds:
    """What two processes have of each other's blocks, without the processes."""

    def __init__(self, most_in_use: int) -> None:
        self.loop_outbox, self.loop_inbox = Outbox(), Inbox(most_in_use)
        self.worker_outbox, self.worker_inbox = Outbox(), Inbox(2)

    def to_worker(self, value: Any) -> Any:
        parcel = self._sent(self.loop_outbox.pack(value), self.loop_outbox, self.worker_inbox)
        return self.worker_inbox.open(parcel)

    def to_loop(self, apart: tuple[memoryview, list[memoryview]]) -> tuple[Any, int]:
        """Returns what the loop gets, and how many buffers came as places."""
        head, buffers = apart
        packed = self.worker_outbox.write(head, self.worker_inbox.leave(buffers))
        parcel = self._sent(packed, self.worker_outbox, self.loop_inbox)
        self.loop_outbox.take_back(self.worker_inbox.return_unused())
        value = self.loop_inbox.open(parcel, self.loop_outbox)
        self.worker_outbox.take_back(self.loop_inbox.return_unused())
        return value, sum(came_in is not None for _, _, came_in in parcel.parts)

    def _sent(self, packed: tuple[Parcel, int | None], outbox: Outbox, inbox: Inbox) -> Parcel:
        parcel, file = packed
        inbox.forget(outbox.take_given_up())
        if file is not None:
            inbox.add(parcel, file)
        return parcel


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow"])
def test_what_a_function_returns_as_it_was_goes_back_without_a_copy(form: str) -> None:
    ends = TwoEnds(most_in_use=100)
    kept = []
    for number in range(6):
        array = np.arange(number, number + 30_000)
        made: Any = {"torch": torch.from_numpy, "numpy": np.asarray, "arrow": pa.array}[form](array)
        given = ends.to_worker({"a": made, "text": ["x"]})
        half = given["a"][10_000:]
        apart = take_apart({**given, "half": half, "new": np.full(10_000, number)})
        del given, half
        value, num_places = ends.to_loop(apart)
        # Arrow's slices have the offset beside the whole buffer.
        assert num_places == 2
        assert np.array_equal(np.asarray(value["a"]), array)
        assert np.array_equal(np.asarray(value["half"]), array[10_000:])
        assert np.array_equal(value["new"], np.full(10_000, number))
        kept.append((value, array))
    # No block was written as long as its batch was there.
    assert all(np.array_equal(np.asarray(value["a"]), array) for value, array in kept)
    assert ends.loop_outbox.num_lent == 6
    kept.clear()
    del value
    assert ends.loop_outbox.num_lent == 0
    assert ends.to_worker(b"again") == b"again"
    assert len(ends.loop_outbox._blocks) == 6, "one of them is used again"


def test_what_a_function_keeps_goes_back_as_a_copy() -> None:
    ends = TwoEnds(most_in_use=100)
    given = ends.to_worker(torch.arange(10_000))
    value, num_places = ends.to_loop(take_apart(given))
    assert num_places == 0
    value[:] = -1
    assert given.equal(torch.arange(10_000)), "the loop changes its own"


def test_who_keeps_batches_that_came_back_in_their_blocks_gets_copies() -> None:
    ends = TwoEnds(most_in_use=3)
    kept = []
    for _ in range(10):
        apart = take_apart(ends.to_worker(torch.arange(10_000)))
        kept.append(ends.to_loop(apart)[0])
    assert ends.loop_outbox.num_lent == 3
    assert all(tensor.equal(torch.arange(10_000)) for tensor in kept)


def forked(check: Callable[[Any], bool], value: Any) -> Callable[[], bool]:
    """Forks; the returned function makes the fork check the value that it has, and returns what it found."""
    ready, go = os.pipe()
    if not (pid := os.fork()):
        signal.alarm(60)
        os.close(go)
        os.read(ready, 1)
        os._exit(0 if check(value) else 1)
    os.close(ready)

    def ended() -> bool:
        os.close(go)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return ended


def test_a_fork_keeps_the_batches_that_it_has(rows: fb.Dataset) -> None:
    stream = rows.with_format("numpy").map(functions.of_array, batched=True, num_proc=1).batches(16)
    batches = iter(stream)
    next(batches)
    has_kept = forked(lambda batch: bool((batch["image"] == np.arange(16, 32)[:, None]).all()), next(batches))
    for _ in range(2):
        for batch in batches:
            assert (batch["image"] == batch["id"][:, None]).all()
        batches = iter(stream)
    assert has_kept()


def test_a_fork_of_a_worker_keeps_what_the_function_was_given(tmp_path: Path) -> None:
    def program(value: Any, rows: Rows, *, owns_process: bool = False) -> None:  # noqa: ARG001 - what programs get
        if rows.first == 0 and not os.fork():
            while not (tmp_path / "go").exists():
                time.sleep(0.01)
            (tmp_path / "part").write_text(str(set(value)))
            (tmp_path / "part").rename(tmp_path / "told")
            os._exit(0)

    made: Any = program
    made.setting = "map"
    crew = MapStage(made, Workers("processes", 1, fb.PoolOptions(prefetch=1)))._make_crew()
    for number in range(5):
        crew.give(np.full(10_000, number), Rows(0, number, 1, 1))
        while not list(crew.collect(1)):
            pass
    (tmp_path / "go").touch()
    end = time.monotonic() + 30
    while not (tmp_path / "told").exists() and time.monotonic() < end:
        time.sleep(0.01)
    crew.close()
    assert (tmp_path / "told").read_text() == str({np.int64(0)})


def test_many_forks_gather_no_blocks() -> None:
    ends = TwoEnds(most_in_use=100)
    numbers = set()
    for number in range(20):
        given = ends.to_worker(torch.arange(10_000) + number)
        apart = take_apart({"same": given, "new": np.full(10_000, number)})
        del given
        value, num_places = ends.to_loop(apart)
        assert num_places == 1
        numbers |= ends.loop_inbox._lent.keys()
        assert forked(lambda value, number=number: int(value["same"][0]) == value["new"][0] == number, value)()
        del value
        assert len(numbers) == number + 1, "each is another one"
    for boxes in (ends.loop_outbox, ends.loop_inbox, ends.worker_outbox, ends.worker_inbox):
        assert len(boxes._blocks) <= 2
        assert len(boxes._forked) <= 2


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 100_000])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex64])
def test_tensors_of_every_type_and_size_arrive(dtype: torch.dtype, num_bytes: int) -> None:
    outbox, inbox = Outbox(), Inbox(most_in_use=2)
    tensor = torch.ones(num_bytes // dtype.itemsize).to(dtype)
    parcel, file = outbox.pack([tensor, tensor[::2], tensor.sum(), torch.ones(3, requires_grad=True)])
    if file is not None:
        inbox.add(parcel, file)
    whole, half, total, parameter = inbox.open(parcel)
    assert whole.equal(tensor)
    assert whole.dtype == dtype
    assert half.equal(tensor[::2])
    assert total.equal(tensor.sum())
    assert parameter.requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_of_every_layout_arrive() -> None:
    parts = [torch.arange(2.0), torch.arange(300.0)]
    tensors = [
        torch.eye(300).to_sparse(),
        torch.nested.nested_tensor(parts),
        torch.nested.nested_tensor(parts, layout=torch.jagged),
    ]
    found = put_together(*take_apart(tensors))
    assert [tensor.layout for tensor in found] == [tensor.layout for tensor in tensors]
    assert found[0].to_dense().equal(torch.eye(300))
    for tensor in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(tensor.unbind(), parts, strict=True))


def resources() -> tuple[int, int, int, int]:
    """Processes, descriptors, mapped blocks, and what is mapped that has a name in shared memory."""
    gc.collect()
    found = [Path(f"/proc/{pid}/maps").read_text() for pid in (os.getpid(), *(child.pid for child in children()))]
    num_named = sum(maps.count("/dev/shm") for maps in found)
    return len(children()), descriptors(), found[0].count("memfd:"), num_named


def test_two_hundred_epochs_leave_nothing_behind(rows: fb.Dataset) -> None:
    stream = rows.with_format("numpy").map(functions.of_array, batched=True, num_proc=2).batches(100)
    seen = []
    *_, num_named = resources()
    for epoch in range(200):
        stream.set_epoch(epoch)
        batches = iter(stream)
        for _ in range(5 if epoch % 3 else 2):  # every third is left in the middle
            next(batches)
        batches.close()
        if epoch in (40, 199):
            del batches
            seen.append((resources(), psutil.Process().memory_info().rss))
    (before, rss_before), (after, rss_after) = seen
    assert after[0] == before[0]
    assert after[3] == before[3] == num_named, "other tests may have named what they share"
    assert after[1] <= before[1] + 4
    assert after[2] <= before[2] + 4
    assert rss_after < rss_before + (32 << 20)


FULL = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import functions
import forebay as fb

if __name__ == "__main__":
    ds = fb.load_dataset(sys.argv[1], split="train")
    stream = ds.map(functions.waiting, batched=True, fn_kwargs={"folder": sys.argv[2]}, num_proc=2).batches(16)
    batches = iter(stream)
    import threading
    def say():
        while len(list(Path(sys.argv[2]).glob("began-*"))) < 2:
            time.sleep(0.01)
        print("going", flush=True)
    threading.Thread(target=say, daemon=True).start()
    try:
        next(batches)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("send", "to_group", "status"),
    [(signal.SIGINT, True, 7), (signal.SIGKILL, False, -signal.SIGKILL)],
    ids=["Ctrl-C", "kill -9"],
)
def test_a_program_that_ends_with_a_full_pool_leaves_nothing(
    folder: Path, tmp_path: Path, send: signal.Signals, to_group: bool, status: int
) -> None:
    began, temporary = tmp_path / "began", tmp_path / "temporary"
    began.mkdir()
    temporary.mkdir()

    def end(process: subprocess.Popen[str]) -> None:
        if to_group:
            os.killpg(process.pid, send)
        else:
            process.send_signal(send)

    ending = run_to_its_end(FULL, folder, began, MODULES, folder=temporary, then=end)
    assert ending.status == status, ending.err
    assert ending.seconds < 60, "it waited for its functions, which take ten minutes"
    assert ending.left == []
    assert "Traceback" not in ending.err


HOLDING = """
import os, re, sys, threading, time
from pathlib import Path
import forebay as fb

def endless(batch, folder):
    Path(folder, "began").touch()
    re.match(r"(a+)+$", "a" * 50 + "b")  # never lets go of the interpreter's lock

ds = fb.load_dataset(sys.argv[1], split="train")
pool = fb.PoolOptions(start_method=sys.argv[3])
mapped = ds.map(endless, batched=True, fn_kwargs={"folder": sys.argv[2]}, num_proc=1, pool=pool)
def say():
    while not Path(sys.argv[2], "began").exists():
        time.sleep(0.01)
    print("going", flush=True)
threading.Thread(target=say, daemon=True).start()
list(mapped.batches(16))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills what holds the lock")
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_killed_takes_functions_with_it_that_never_let_go_of_the_lock(
    folder: Path, tmp_path: Path, number: signal.Signals, start_method: str
) -> None:
    # A short path: the server of forks listens at one below it.
    with tempfile.TemporaryDirectory() as temporary:
        ending = run_to_its_end(
            HOLDING,
            folder,
            tmp_path,
            start_method,
            folder=Path(temporary),
            then=lambda process: process.send_signal(number),
        )
    assert ending.status == -number
    assert [what for what in ending.left if what.startswith("processes")] == []


STARTING = """
import multiprocessing, sys, threading, time
import forebay as fb

def unchanged(batch):
    return batch

def say():
    while not multiprocessing.active_children():
        time.sleep(0.001)
    print("going", flush=True)
threading.Thread(target=say, daemon=True).start()
ds = fb.load_dataset(sys.argv[1], split="train")
list(ds.map(unchanged, batched=True, num_proc=3).batches(16))
"""


def test_ctrl_c_while_workers_start_is_for_the_program_alone(folder: Path, tmp_path: Path) -> None:
    ending = run_to_its_end(
        STARTING, folder, folder=tmp_path, then=lambda process: os.killpg(process.pid, signal.SIGINT)
    )
    assert ending.status == -signal.SIGINT
    assert ending.err.count("Traceback") == 1, ending.err
    assert ending.left == []


def test_a_process_that_is_forked_leaves_the_workers_alone(folder: Path) -> None:
    code = """
    import os, sys, warnings
    import forebay as fb
    # Newer Pythons warn of every fork of a process with threads.
    warnings.simplefilter("ignore", DeprecationWarning)
    ds = fb.load_dataset(sys.argv[1], split="train")
    stream = ds.map(lambda batch: {"pid": [os.getpid()] * len(batch["id"])}, batched=True, num_proc=1).batches(100)
    batches = iter(stream)
    pids = next(batches)["pid"]
    if not (pid := os.fork()):
        try:
            next(batches)
        except fb.ClosedError as error:
            print(error, flush=True)
        [other] = {pid for batch in stream for pid in batch["pid"]}
        print(other not in pids, flush=True)
        sys.exit(0)
    os.waitpid(pid, 0)
    pids = {*pids, *(pid for batch in batches for pid in batch["pid"])}
    print(len(pids), {pid for batch in stream for pid in batch["pid"]} == pids)
    """
    told, *found = run_python(code, folder).splitlines()
    assert told == "map: the workers belong to the process that this one was forked from; begin another loop"
    assert found == ["True", "1 True"]


def test_a_process_that_is_forked_starts_workers_from_a_fork_server_of_its_own(folder: Path) -> None:
    code = """
    import os, sys, warnings
    import forebay as fb
    warnings.simplefilter("ignore", DeprecationWarning)
    ds = fb.load_dataset(sys.argv[1], split="train")
    pool = fb.PoolOptions(start_method="forkserver")
    stream = ds.map(lambda batch: None, batched=True, num_proc=1, pool=pool).batches(100)
    print(len(list(stream)), flush=True)
    if not (pid := os.fork()):
        print(len(list(stream)), flush=True)
        sys.exit(0)
    os.waitpid(pid, 0)
    stream = ds.map(lambda batch: None, batched=True, num_proc=1, pool=pool).batches(50)
    print(len(list(stream)), flush=True)
    """
    assert run_python(code, folder).split() == ["5", "5", "10"]


def test_a_program_without_a_guard_is_told_what_it_needs(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "unguarded.py"
    program.write_text(
        "import sys\n"
        "import forebay as fb\n"
        "def double(batch):\n"
        "    return {'double': [2 * i for i in batch['id']]}\n"
        "ds = fb.load_dataset(sys.argv[1], split='train')\n"
        "print(len(list(ds.map(double, batched=True, num_proc=1).batches(50))))\n"
    )
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "WorkerDiedError" in done.stderr
    assert "needs `if __name__ == '__main__':`" in done.stderr


@pytest.mark.parametrize("named", [[], ["-"]], ids=str)
def test_a_program_from_the_standard_input_is_told_to_be_a_file(named: list[str], folder: Path) -> None:
    program = (
        "import forebay as fb\n"
        "if __name__ == '__main__':\n"
        f"    ds = fb.load_dataset({str(folder)!r}, split='train')\n"
        "    list(ds.map(dict, batched=True, num_proc=1).batches(50))\n"
    )
    command = [sys.executable, *named]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "before it began; processes must be able to find the program: put what Python reads" in done.stderr


OF_THE_PROGRAM = """
import sys
import tempfile
import threading
from collections import namedtuple
from functools import partial

import forebay as fb

lock = threading.Lock()
scale = 1
Pair = namedtuple("Pair", "first last")

class Out(dict):
    pass

class OurError(ValueError):
    pass

def pair(rows):
    return Pair(rows[0]["id"], Out(last=rows[-1]["id"]))

def locked(rows):
    with lock:
        return pair(rows)

def scaled(rows):
    return Out(scaled=scale * rows[-1]["id"])

def nested(rows):
    return scaled(rows)

class Times:
    def __repr__(self):
        return f"times {scale}"

def times(rows):
    return Times()

def failing(rows):
    raise OurError("ours")

def loader(function):
    ds = fb.load_dataset(sys.argv[1], split="train").select(range(3))
    return fb.DataLoader(ds, 3, collate_fn=function, num_workers=1)
"""


def run_file(folder: Path, *parts: object) -> str:
    """Runs a program that is a file, with classes and functions of its own."""
    program, *arguments = parts
    path = folder / "program.py"
    path.write_text(f"{OF_THE_PROGRAM}{program}")
    done = subprocess.run(
        [sys.executable, path, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_stands_in_the_program_is_the_same_in_its_workers(folder: Path, tmp_path: Path) -> None:
    program = """
if __name__ == "__main__":
    for function in (locked, partial(locked), lambda rows: locked(rows)):
        [found] = loader(function)
        assert type(found) is Pair and type(found.last) is Out, found
    try:
        list(loader(failing))
    except fb.TransformError as error:
        assert type(error.__cause__) is OurError
        print("ours")
"""
    assert run_file(tmp_path, program, folder) == "ours\n"


def test_what_only_the_main_part_of_a_program_sets_is_sent_whole(folder: Path, tmp_path: Path) -> None:
    program = """
def main():
    global scale
    scale = 7
    for function in (scaled, nested, behind):
        [found] = loader(function)
        print(type(found) is Out, found, getattr(found, "late", None))
    [found] = loader(times)
    print(type(found) is Times, found)

if __name__ == "__main__":
    class Late:
        def __repr__(self):
            return f"late {type(self) is Late}"

    def behind(rows):
        found = scaled(rows)
        found.late = Late()
        return found

    main()
"""
    out = run_file(tmp_path, program, folder).splitlines()
    assert out == ["True {'scaled': 14} None"] * 2 + ["True {'scaled': 14} late True", "True times 7"]


def test_what_is_found_nowhere_is_refused_at_once_without_cloudpickle(folder: Path, tmp_path: Path) -> None:
    program = """
if __name__ == "__main__":
    def behind(rows):
        return rows

    sys.modules["cloudpickle"] = None
    print(list(loader(pair)) == [(0, {"last": 2})])
    try:
        loader(behind)
    except fb.SettingError as error:
        print(error)
"""
    first, second = run_file(tmp_path, program, folder).splitlines()
    assert first == "True"
    assert "other processes do not find `behind` in the program's file; functions for processes stand" in second


def test_classes_of_a_program_that_is_no_file_come_back(folder: Path) -> None:
    program = """
[found] = loader(pair)
print(type(found) is Pair, type(found.last) is Out, *found)
try:
    list(loader(failing))
except fb.TransformError as error:
    print(type(error.__cause__) is OurError)
"""
    assert run_python(f"{OF_THE_PROGRAM}{program}", folder).split("\n")[:2] == ["True True 0 {'last': 2}", "True"]


def test_modules_that_are_to_be_sent_whole_are(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nearby.py").write_text("def first(rows):\n    return rows[0]['id']\n")
    code = """
    import sys
    import cloudpickle
    import forebay as fb
    sys.path.insert(0, sys.argv[2])
    import nearby
    cloudpickle.register_pickle_by_value(nearby)
    sys.path.pop(0)
    ds = fb.load_dataset(sys.argv[1], split="train")
    print(next(iter(fb.DataLoader(ds, 3, collate_fn=nearby.first, num_workers=1))))
    """
    assert run_python(code, folder, tmp_path) == "0\n"


def test_functions_of_a_program_that_is_no_file_are_sent_whole(folder: Path) -> None:
    code = """
    import sys
    import forebay as fb
    offset = 5
    def shifted(batch):
        return {"shifted": [value + offset for value in batch["id"]]}
    ds = fb.load_dataset(sys.argv[1], split="train")
    print(sum(sum(batch["shifted"]) for batch in ds.map(shifted, batched=True, num_proc=1).batches(50)))
    """
    assert run_python(code, folder).strip() == str(sum(range(500)) + 2500)


def test_nothing_of_it_is_loaded_before_it_is_used() -> None:
    code = """
    import sys
    import forebay
    unwanted = ("forebay.pool", "forebay.mapped", "multiprocessing")
    print(sorted(name for name in sys.modules if name.startswith(unwanted)))
    """
    assert run_python(code).strip() == "[]"


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"num_proc": -1}, "num_proc: expected 0 to 1024, got -1"),
    ({"num_proc": 1, "num_threads": 1}, "pass one of `num_proc`, `num_threads`"),
    ({"batched": 1}, "batched: expected True or False, got 1"),
    ({"fn_kwargs": 3}, "fn_kwargs: expected a dict, got 3"),
    ({"pool": {"prefetch": 2}}, "pool: expected `PoolOptions`"),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS, ids=lambda value: str(value)[:30])
def test_settings_that_cannot_work_are_refused(rows: fb.Dataset, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fb.SettingError) as raised:
        rows.map(functions.doubled, **settings)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prefetch": 0}, "prefetch: expected 1 to 1024, got 0"),
        ({"timeout": 0}, "timeout: expected seconds above 0, or None, got 0"),
        ({"start_method": "fork"}, "this process has threads"),
        ({"worker_init_fn": 3}, "worker_init_fn: expected a function, got 3"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fb.SettingError) as raised:
        fb.PoolOptions(**settings)
    assert words in str(raised.value)


def test_columns_that_are_not_there_are_refused(rows: fb.Dataset) -> None:
    with pytest.raises(fb.ColumnNotFoundError, match="lable"):
        rows.map(functions.doubled, input_columns=["lable"])
    with pytest.raises(fb.TransformError, match="input_columns: the batch has no column `attention_mask`, only"):
        list(rows.map(functions.doubled, batched=True, input_columns=["attention_mask"]).to_torch(8))
    with pytest.raises(fb.SettingError, match="pass `batched=True`"):
        rows.with_format("arrow").map(functions.doubled)
    with pytest.raises(fb.SettingError, match="expected a function, got 3"):
        rows.map(3)
    with pytest.raises(fb.SettingError, match="in the same workers"):
        rows.map(functions.doubled, num_proc=1).map(functions.doubled, num_threads=1)


def test_a_forked_process_runs_functions_in_threads_of_its_own(rows: fb.Dataset) -> None:
    stream = rows.map(functions.doubled, batched=True, num_threads=2).batches(32)
    expected = list(stream)
    if not (pid := os.fork()):
        signal.alarm(30)
        os._exit(0 if list(stream) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have(rows: fb.Dataset) -> None:
    stream = rows.map(functions.doubled, batched=True, num_threads=2).batches(32)
    expected = list(stream)
    batches = iter(stream)
    first = next(batches)
    if not (pid := os.fork()):
        signal.alarm(30)
        try:
            list(batches)
        except fb.ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [first, *batches] == expected


def test_a_process_that_may_start_no_other_is_told(rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(fb.SettingError, match="map: this process is a daemon of `multiprocessing`"):
        next(iter(rows.map(functions.doubled, batched=True, num_proc=1).batches(32)))


def test_an_end_that_waits_takes_whole_messages_only() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    message = Message("task", 1, about=bytes(1000))
    sent = packed(message)

    def send() -> None:
        # In the middle of the header, and of what follows it.
        for part in (sent[:2], sent[2:9], sent[9:]):
            theirs.send(part)
            time.sleep(0.05)

    thread = threading.Thread(target=send)
    thread.start()
    assert channel.receive() == (message, None)
    thread.join()
    # The last message was cut off.
    theirs.send(sent[:500])
    theirs.close()
    assert channel.receive() is None
    channel.close()


@pytest.mark.parametrize("how", ["ended", "reset", "stalled"])
def test_an_end_that_waits_closes_the_file_of_a_message_that_was_cut_off(tmp_path: Path, how: str) -> None:
    (tmp_path / "file").write_text("its own")
    num_open = descriptors()
    ours, theirs = socket.socketpair()
    ours.settimeout(0.1)
    channel = Channel(ours)
    sent = packed(Message("task", about=bytes(1000)), os.open(tmp_path / "file", os.O_RDONLY))
    with (tmp_path / "file").open() as file:
        socket.send_fds(theirs, [sent[:100]], [file.fileno()])
    if how == "reset":
        # The kernel says so where a process ends without having read everything.
        channel.send(Message("ready"))
    if how == "stalled":
        with pytest.raises(TimeoutError):
            channel.receive()
    theirs.close()
    if how != "stalled":
        assert channel.receive() is None
    channel.close()
    assert descriptors() == num_open


def test_an_end_that_waits_for_a_time_sends_the_whole_of_what_fits_into_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("its own")
    ours, theirs = socket.socketpair()
    # As of ranks: what is sent at once may then be a part.
    ours.settimeout(10)
    theirs.settimeout(10)
    channel, other = Channel(ours), Channel(theirs)
    message = Message("task", 1, about=bytes(1_000_000))
    received: list[Any] = []
    thread = threading.Thread(target=lambda: received.append(other.receive()))
    thread.start()
    num_open = descriptors()
    channel.send(message, os.open(tmp_path / "file", os.O_RDONLY))
    thread.join()
    [(found, file)] = received
    assert found == message
    assert os.read(file, 100) == b"its own"
    os.close(file)
    assert descriptors() == num_open, "who sends a file closes it"
    channel.close()
    other.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_files_of_messages_that_nobody_takes_are_closed(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "file").write_text("its own")

    def file() -> int:
        return os.open(tmp_path / "file", os.O_RDONLY)

    num_open = descriptors()
    ours, theirs = socket.socketpair()
    loop, worker = LoopChannel(ours), Channel(theirs)
    # The rest of a message never comes, of which the file does.
    with (tmp_path / "file").open() as sent:
        socket.send_fds(theirs, [packed(Message("result"), os.dup(sent.fileno()))[:3]], [sent.fileno()])
    assert loop.receive() is None
    while not loop.has_unsent:
        loop.send(Message("task", about=bytes(100_000)), file())
    for _ in range(3):
        loop.send(Message("task"), file())
    if not is_there:
        worker.close()
        with pytest.raises(BrokenPipeError):
            loop.flush()
    loop.close()
    worker.close()
    assert descriptors() == num_open


def test_blocks_that_gave_way_to_larger_ones_are_unmapped_and_their_files_are_closed() -> None:
    def program(value: Any, rows: Rows, *, owns_process: bool = False) -> Any:  # noqa: ARG001 - what programs get
        # In blocks of the worker's own, which grow, too.
        return value + 1, shared_blocks()

    made: Any = program
    made.setting = "map"
    before = shared_blocks()
    crew = MapStage(made, Workers("processes", 1, fb.PoolOptions(prefetch=1)))._make_crew()
    here: list[tuple[int, int]] = []
    there: list[tuple[int, int]] = []
    for exponent in range(16, 24):
        crew.give(np.zeros(1 << exponent, np.uint8), Rows(0, exponent, 1, 1))
        found: list[Any] = []
        while not found:
            found += crew.collect(1)
        [(value, of_worker)] = [done.value for done in found]
        assert value.all()
        assert len(value) == 1 << exponent
        del found, value
        here.append(shared_blocks())
        there.append(of_worker)
    crew.close()
    # One that is written and one that is read, in each process; of each there may be another on its way.
    assert max(num_mapped for num_mapped, _ in there) <= 4
    assert max(num_mapped for num_mapped, _ in here) <= before[0] + 4
    # What is mapped has no descriptor once the other process has it, too.
    assert all(num_open == 0 for _, num_open in there)
    assert all(num_open == before[1] for _, num_open in here)


def test_a_crew_that_ends_leaves_no_descriptor() -> None:
    unchanged_by("processes", 1).close()
    num_open = descriptors()
    crews = [unchanged_by("processes", 2) for _ in range(3)]
    for crew in crews:
        crew.give(np.arange(10_000), Rows(0, 0, 1, 1))
        while not list(crew.collect(1)):
            pass
        crew.close()
    assert descriptors() == num_open, "although somebody has the crews"


class Named(torch.Tensor):
    """A class of tensors of its own."""


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
@pytest.mark.parametrize(
    "tensor",
    {
        "conjugated": torch.arange(1000).to(torch.complex64).mul(1j).conj(),
        "sparse": torch.eye(100).to_sparse(),
        "meta": torch.empty(1000, device="meta"),
        "parameter": torch.nn.Parameter(torch.arange(1000.0), requires_grad=False),
        "class": torch.arange(1000).as_subclass(Named),
        "broadcast": torch.arange(10).expand(100, 10),
    }.items(),
    ids=lambda tensor: tensor[0],
)
def test_tensors_that_are_more_than_their_memory_arrive(tensor: tuple[str, torch.Tensor]) -> None:
    name, sent = tensor
    got = TwoEnds(most_in_use=100).to_worker({"value": sent})["value"]
    assert type(got) is type(sent)
    assert (got.dtype, got.shape, got.layout, got.device) == (sent.dtype, sent.shape, sent.layout, sent.device)
    if name != "meta":
        assert torch.equal(got.to_dense(), sent.to_dense())


def test_buffers_are_aligned_as_processors_like_them() -> None:
    outbox = Outbox()
    parcel, file = outbox.pack([np.zeros(n, np.uint8) for n in (513, 600, 777)])
    os.close(file)
    assert len(parcel.parts) == 3
    assert [offset % 64 for offset, *_ in parcel.parts] == [0, 0, 0]


def test_a_crew_that_could_not_begin_is_replaced(rows: fb.Dataset) -> None:
    def fail(worker: int) -> None:
        raise ValueError(worker)

    before = {child.pid for child in children()}
    pool = fb.PoolOptions(worker_init_fn=fail)
    stream = rows.map(functions.doubled, batched=True, num_proc=2, pool=pool).batches(32)
    for _ in range(2):
        with pytest.raises(fb.TransformError, match="a worker cannot begin: ValueError"):
            list(stream)
        assert {child.pid for child in children()} <= before, "the other worker is ended, too"


def test_functions_of_a_package_that_is_run_are_found(folder: Path, tmp_path: Path) -> None:
    """`python -m package`: spawned processes do not run its main module again."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(
        "import sys\n"
        "import forebay as fb\n"
        "def double(batch):\n"
        "    return {'double': [2 * i for i in batch['id']]}\n"
        "if __name__ == '__main__':\n"
        "    ds = fb.load_dataset(sys.argv[1], split='train')\n"
        "    print(sum(sum(batch['double']) for batch in ds.map(double, batched=True, num_proc=1).batches(50)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "package", folder], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{sum(range(NUM_ROWS)) * 2}\n"


def test_a_timeout_does_not_count_while_a_worker_starts(rows: fb.Dataset) -> None:
    def start(worker: int) -> None:
        time.sleep(4 * worker)

    pool = fb.PoolOptions(worker_init_fn=start, timeout=2, prefetch=1)
    assert len(list(rows.map(functions.doubled, batched=True, num_proc=2, pool=pool).batches(50))) == 10


class Left:
    """A crew that notes how it is left."""

    stream = None

    setting, num_workers, capacity, num_skipped = "map", 1, 2, 0
    is_usable = has_begun = is_short = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def abandon(self) -> None:
        self.calls.append("abandon")

    def close(self) -> None:
        self.calls.append("close")


def test_an_iteration_that_ends_gives_up_what_it_has_in_hand() -> None:
    crew, batches = Left(), Left()
    Ordered(batches, crew, Pass(0, 0, 0, 1, is_alone=True), None).close()
    assert (crew.calls, batches.calls) == (["abandon"], ["close"])


def test_threads_that_are_closed_do_no_more_than_what_they_have_in_hand() -> None:
    begun, goes_on = [], threading.Event()

    def program(value: Any, rows: Rows, *, owns_process: bool = False) -> Any:  # noqa: ARG001 - what programs get
        begun.append(value)
        goes_on.wait(10)

    made: Any = program
    made.setting = "map"
    crew = MapStage(made, Workers("threads", 1, fb.PoolOptions(prefetch=8)))._make_crew()
    [thread] = [thread for thread in threading.enumerate() if thread.name == "forebay-map-0" and thread.is_alive()][-1:]
    for number in range(8):
        crew.give(number, Rows(0, number, 1, 1))
    while not begun:
        time.sleep(0.001)
    crew.close()
    goes_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert begun == [0]


@pytest.mark.skipif(os.cpu_count() == 1, reason="on one core torch has one thread anyway")
@pytest.mark.parametrize("form", ["torch", None], ids=["before", "by the function"])
def test_workers_share_the_cores_whenever_torch_is_imported(
    rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch, form: str | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def cores(batch: dict[str, Any]) -> dict[str, Any]:
        from torch import get_num_threads

        return {"cores": [get_num_threads()] * len(batch["id"])}

    mapped = rows.select_columns("id").with_format(form).map(cores, batched=True, num_proc=1)
    assert {int(num_threads) for batch in mapped.batches(100) for num_threads in batch["cores"]} == {1}


def test_a_loop_that_was_interrupted_while_it_gave_a_batch_may_be_begun_again(
    rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = rows.map(functions.doubled, batched=True, num_proc=1).batches(10)
    whole = list(stream)
    send = Worker.send

    def interrupted(worker: Worker, message: Message, value: object) -> None:
        send(worker, message, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    monkeypatch.setattr(Worker, "send", send)
    assert list(stream) == whole


def test_what_a_program_may_have_changed_in_place_is_known_from_its_text() -> None:
    source = b"""
import logging, torch
from settings import config

logger = logging.getLogger()
by_key, by_call, by_function, kept, logged = {}, [], {}, {}, {}
also = {"one": by_key}

def use_key(rows): return by_key
def use_alias(rows): return also
def use_call(rows): return by_call
def use_function(rows): return by_function
def use_config(rows): return config
def use_torch(rows): return torch
def use_kept(rows):
    logger.info("text")
    return kept, len(kept)
def change(kept):
    kept["x"] = by_function["x"] = 1
class Settings:
    scale = 1
class Other:
    scale = 1

if __name__ == "__main__":
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    logger.warning("text")
    by_key["x"]["y"] += 1
    by_call.append(1)
    config.more.scale = 1
    del Settings.scale
    print(kept, Other.scale)
"""
    uses = {"use_key", "use_alias", "use_call", "use_function", "use_config", "use_torch", "use_kept"}
    found = _names_in(source, "program.py")
    assert {*uses, "Settings", "Other"} <= found.found
    assert found.other & {*uses, "Settings", "Other"} == uses - {"use_torch", "use_kept"} | {"Settings"}


def test_what_the_main_part_of_a_program_changes_in_place_is_sent_whole(folder: Path, tmp_path: Path) -> None:
    program = """
settings = {"scale": 1}

class Settings:
    scale = 1

def by_key(rows):
    return settings["scale"]

def by_attribute(rows):
    return Settings.scale

function = partial(by_key)

def by_another_name(rows):
    return function(rows)

def change():
    settings.update(scale=7)

if __name__ == "__main__":
    change()
    Settings.scale = 7
    print(*(next(iter(loader(function))) for function in (by_key, by_attribute, by_another_name)))
"""
    assert run_file(tmp_path, program, folder) == "7 7 7\n"
