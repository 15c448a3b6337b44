"""Forebay as a guest of a process: what it loads and starts, and what is left of it afterwards."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import data
import pytest
from programs import is_raised_in_a_fork, our_threads, python_command, python_environment, run_python
from rows import write_paged

import forebay as fb

SECONDS_TO_END = 15.0
"""How long threads may take to end on a busy machine."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    data.write_fragments(folder, data.ids_table(40_000), num_fragments=4, row_group_rows=500)
    return folder


def wait_for_no_threads() -> None:
    gc.collect()
    end = time.monotonic() + SECONDS_TO_END
    while our_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert our_threads() == {}


def test_importing_loads_neither_torch_nor_arrow_and_starts_no_thread():
    code = """
    import sys, pathlib
    before = len(list(pathlib.Path("/proc/self/task").iterdir()))
    import forebay
    heavy = {"torch", "pyarrow", "numpy", "pandas", "tqdm", "obstore", "asyncio", "multiprocessing"} & set(sys.modules)
    print(sorted(heavy), len(list(pathlib.Path("/proc/self/task").iterdir())) - before)
    """
    assert run_python(code).strip() == "[] 0"


def test_importing_imports_no_other_package():
    # How long it takes is in the benchmarks: what others import would be most of it.
    code = """
    import sys
    before = set(sys.modules)
    import forebay
    print(*{name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
    print(sys.modules.keys() & {"asyncio", "multiprocessing", "concurrent.futures", "email", "http", "ssl", "unittest"})
    """
    assert run_python(code).splitlines() == ["forebay", "set()"]


def test_every_public_name_is_there_and_documented():
    for name in fb.__all__:
        assert getattr(fb, name) is not None
        assert name == "__version__" or getattr(fb, name).__doc__, name


def test_a_finished_stream_leaves_no_thread(corpus):
    ds = fb.load_dataset(corpus, split="train").filter("id % 2 = 0").shuffle(1)
    assert sum(batch.num_rows for batch in ds.batches(100)) == 20_000
    del ds
    wait_for_no_threads()


@pytest.mark.parametrize("make", [lambda ds: ds.batches(100), lambda ds: ds.to_torch(100)], ids=["batches", "torch"])
def test_leaving_the_loop_early_leaves_no_thread(corpus, make):
    ds = fb.load_dataset(corpus, split="train").shuffle(1)
    for _ in range(3):
        for _batch in make(ds):
            break
    del ds, _batch
    wait_for_no_threads()


def test_an_exception_in_the_loop_leaves_no_thread(corpus):
    ds = fb.load_dataset(corpus, split="train").shuffle(1)

    def train(stream: fb.Stream) -> None:
        for _ in stream:
            raise RuntimeError("loss is NaN")

    with pytest.raises(RuntimeError, match="loss is NaN"):
        train(ds.batches(100))
    del ds
    wait_for_no_threads()


def test_closing_an_iterator_leaves_no_thread_and_its_batches_stay(corpus):
    ds = fb.load_dataset(corpus, split="train")
    iterator = iter(ds.batches(100))
    batch = next(iterator)
    assert our_threads()
    iterator.close()
    del ds, iterator
    wait_for_no_threads()
    assert batch.num_rows == 100


def test_an_iterator_that_is_never_begun_starts_nothing(corpus):
    ds = fb.load_dataset(corpus, split="train")
    stream = ds.batches(100)
    iterator = iter(stream)
    assert len(stream) == 400
    del ds, stream, iterator
    wait_for_no_threads()


def threads_that_decode(num_threads: int) -> list[str]:
    """The names of those threads, as soon as there are so many."""
    end = time.monotonic() + SECONDS_TO_END
    while True:
        found = sorted(name for name in our_threads().values() if name.startswith("forebay-cpu"))
        # One that was just started has no name of its own yet.
        if len(found) == num_threads or time.monotonic() > end:
            return found
        time.sleep(0.01)


OF_THREADS = {
    "batches": lambda ds, **settings: ds.batches(64, **settings),
    "to_torch": lambda ds, **settings: ds.to_torch(64, **settings),
    "pack": lambda ds, **settings: ds.to_torch(2, pack=fb.Pack(64, columns=["payload"]), **settings),
    "DataLoader": lambda ds, **settings: fb.DataLoader(ds, 64, **settings),
    "collate_fn": lambda ds, **settings: fb.DataLoader(ds, 64, collate_fn=len, **settings),
    "map": lambda ds, **settings: ds.map(dict, batched=True).batches(64, **settings),
    "to_hf": lambda ds, **settings: ds.to_hf(**settings),
}


@pytest.mark.parametrize("how", OF_THREADS)
def test_as_many_threads_decode_as_was_said(tmp_path, how):
    # More than the memory holds, so that they have something to do as long as the loop takes nothing.
    ds = write_paged(tmp_path)
    if how == "pack":
        ds = ds.sql("SELECT [id, id, id, id] AS payload FROM dataset")
    for num_threads in (1, 3):
        batches = iter(OF_THREADS[how](ds, num_threads=num_threads, memory_limit=4 << 20))
        next(batches)
        assert threads_that_decode(num_threads) == [f"forebay-cpu-{number}" for number in range(num_threads)]
        del batches
        assert threads_that_decode(0) == []


def may_choose_how_it_is_scheduled() -> bool:
    """Whether the system lets threads have another policy; sandboxes may refuse."""
    with concurrent.futures.ThreadPoolExecutor(1) as one:
        asked = one.submit(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0))
        return asked.exception() is None


@pytest.mark.skipif(not may_choose_how_it_is_scheduled(), reason="the system refuses `sched_setscheduler`")
def test_threads_that_decode_take_no_core_from_the_loop(corpus):
    batches = iter(fb.load_dataset(corpus, split="train").batches(64))
    next(batches)
    threads = [number for number, name in our_threads().items() if name.startswith("forebay-cpu")]
    end = time.monotonic() + SECONDS_TO_END
    # One that was just started has not said so yet.
    while {os.sched_getscheduler(thread) for thread in threads} != {os.SCHED_BATCH}:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_forked_child_gets_nothing_of_what_its_parent_has_taken(corpus):
    stream = fb.load_dataset(corpus, split="train").batches(64)
    batches = iter(stream)
    num_rows = 0
    while not stream._active or stream._active.stream.stats()["rows"] <= num_rows:
        num_rows += next(batches).num_rows
        time.sleep(0.002)
    assert is_raised_in_a_fork(fb.ClosedError, lambda: next(batches))
    assert num_rows + sum(batch.num_rows for batch in batches) == 40_000


GRANDCHILD = """
import os, signal, sys, threading, time
import pyarrow as pa
import forebay as fb

entered = threading.Event()

def slow(column):
    entered.set()
    time.sleep(0.05)
    return column

function = fb.Function(call=slow, arguments=[pa.int64()], returns=pa.int64())
ds = fb.load_dataset(sys.argv[1], split="train")
few = ds.sql("SELECT id FROM dataset WHERE slow(id) < 7", functions={"slow": function})

def wait_for(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

child = os.fork()
if child == 0:
    evaluating = threading.Thread(target=lambda: len(few))
    evaluating.start()
    entered.wait()
    grandchild = os.fork()
    if grandchild == 0:
        signal.alarm(30)
        os._exit(len(few))
    status = wait_for(grandchild)
    evaluating.join()
    entered.clear()
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(len(few) + 100 * entered.is_set())
    os._exit(status + 10 * wait_for(grandchild))
print(wait_for(child))
"""


def test_a_child_of_a_child_evaluates_what_its_parent_is_about_to_and_inherits_what_it_has(corpus):
    assert run_python(GRANDCHILD, corpus) == "77\n"


def test_a_failed_opening_leaves_no_thread(tmp_path):
    with pytest.raises(fb.NotFoundError):
        fb.load_dataset(tmp_path / "absent", split="train")
    wait_for_no_threads()


def test_several_streams_at_once_do_not_disturb_each_other(corpus):
    ds = fb.load_dataset(corpus, split="train")
    one, two = ds.shuffle(1).batches(64), ds.shuffle(2).batches(64)
    count = sum(a.num_rows + b.num_rows for a, b in zip(one, two, strict=True))
    assert count == 80_000


def test_another_thread_may_ask_at_any_moment_how_a_loop_goes(corpus):
    stream = fb.load_dataset(corpus, split="train").filter("id < 2000").shuffle(1).batches(10)
    is_over = threading.Event()

    def ask(question):
        num_asked = 0
        while not is_over.is_set():
            question()
            num_asked += 1
        return num_asked

    interval = sys.getswitchinterval()
    # So that threads meet anywhere in our code.
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            questions = (stream.stats, stream.state_dict, stream.bottleneck, lambda: stream.holes)
            asking = [pool.submit(ask, question) for question in questions]
            end = time.monotonic() + 3
            while time.monotonic() < end and not any(asked.done() for asked in asking):
                assert sum(batch.num_rows for batch in stream) == 2000
            is_over.set()
            assert min(asked.result() for asked in asking) > 10
    finally:
        sys.setswitchinterval(interval)


def test_many_epochs_do_not_gather_threads_or_files(corpus):
    stream = fb.load_dataset(corpus, split="train").shuffle(1).batches(4096)
    counts = []
    for epoch in range(12):
        stream.set_epoch(epoch)
        assert sum(batch.num_rows for batch in stream) == 40_000
        counts.append((len(our_threads()), len(list(Path("/proc/self/fd").iterdir()))))
    threads, files = zip(*counts, strict=True)
    assert max(threads[6:]) <= max(threads[:6]) + 2
    assert max(files[6:]) <= max(files[:6]) + 4


INTERRUPTED = """
import sys
import forebay as fb

ds = fb.load_dataset(sys.argv[1], split="train").shuffle(1)
try:
    while True:
        for number, batch in enumerate(ds.batches(10)):
            if number == 20:
                print("going", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""

WAITING = """
import socket
import sys
import threading
import forebay as fb

server = socket.create_server(("127.0.0.1", 0))
accepted = []


def accept():
    while True:
        accepted.append(server.accept())
        print("going", flush=True)


threading.Thread(target=accept, daemon=True).start()
try:
    fb.load_dataset(f"http://127.0.0.1:{server.getsockname()[1]}/never.parquet", split="train")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


@pytest.mark.parametrize("program", [INTERRUPTED, WAITING], ids=["iterating", "opening"])
def test_control_c_ends_a_program_at_once(corpus, program):
    with subprocess.Popen(
        python_command(program, corpus),
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline().strip() == "going", process.stderr.read()
            time.sleep(0.2)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
            took = time.monotonic() - start
        finally:
            process.kill()
    assert process.returncode == 7, err
    assert "interrupted" in out
    assert took < SECONDS_TO_END


def test_a_program_may_end_with_tensors_in_hand(corpus):
    code = """
    import sys
    import forebay as fb
    ds = fb.load_dataset(sys.argv[1], split="train").shuffle(1)
    iterator = iter(ds.to_torch(10))
    held = [iterator, ds, next(iterator)]
    sys.exit(3)
    """
    done = subprocess.run(
        python_command(code, corpus), env=python_environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")


def test_a_stream_may_be_read_in_another_thread(corpus):
    ds = fb.load_dataset(corpus, split="train").shuffle(1)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        counts = list(pool.map(lambda seed: sum(b.num_rows for b in ds.shuffle(seed).batches(50)), range(6)))
    assert counts == [40_000] * 6


def test_python_goes_on_while_forebay_waits():
    code = """
    import os, socket, threading, time
    import forebay as fb
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    open_it = lambda: fb.load_dataset(f"http://127.0.0.1:{port}/never.parquet", split="train")
    threading.Thread(target=open_it, daemon=True).start()
    server.accept()
    start, ticks = time.monotonic(), 0
    while ticks < 30 and time.monotonic() - start < 20:
        time.sleep(0.005)
        ticks += 1
    print(ticks, flush=True)
    os._exit(0)
    """
    assert int(run_python(code)) == 30
