"""How programs end: soon, with their own status, without a word, and with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import data
import pyarrow.parquet as pq
import pytest
from fault_proxy import Fault, FaultProxy
from programs import Ending, run_to_its_end
from servers import StallingServer
from upstreams import Objects

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

NUM_ROWS = 40_000

SECONDS_TO_END = 15.0
"""A tenth of one where nothing else runs. Requests that are not answered, for which no end may wait, take 30."""

LATE = {"latency": 0.02, "jitter": 0.05}
"""How late answers are, in seconds: whenever a program forks, requests are under way."""

START = """
import atexit, copy, gc, multiprocessing, os, pickle, signal, sys, threading, time
import forebay as fb

ds = fb.load_dataset(sys.argv[1:], split="train").shuffle(1)


def going():
    print("going", flush=True)


def count(batches):
    return sum(batch.num_rows for batch in batches)


def forked(work):
    '''Runs `work` in a fork, and returns its exit status.'''
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

# What a program does, and then: its exit status, what it printed, and the last line of its messages.
ENDINGS = {
    "the loop is left early": ("for batch in ds.batches(10): break\ngoing()", 0, [], ""),
    "an error in the loop is caught": (
        """
try:
    for batch in ds.batches(10):
        raise ValueError("loss is NaN")
except ValueError as caught:
    print(caught)
going()
""",
        0,
        ["loss is NaN"],
        "",
    ),
    "an error in the loop is not caught": (
        """
for batch in ds.batches(10):
    going()
    raise ValueError("loss is NaN")
""",
        1,
        [],
        "ValueError: loss is NaN",
    ),
    "a stream is open at exit": ("batches = iter(ds.batches(10)); next(batches); going(); sys.exit(3)", 3, [], ""),
    "a stream is in a cycle at exit": (
        "gc.disable(); held = [iter(ds.batches(10))]; held.append(held); next(held[0]); going(); raise SystemExit(3)",
        3,
        [],
        "",
    ),
    "a stream is open at a hard exit": (
        "batches = iter(ds.batches(10)); next(batches); going(); os._exit(3)",
        3,
        [],
        "",
    ),
    "it is terminated": (
        "batches = iter(ds.batches(10)); next(batches); going(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
        -signal.SIGTERM,
        [],
        "",
    ),
    "it is terminated and cleans up": (
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
for number, batch in enumerate(ds.batches(10)):
    if number == 5:
        going()
        os.kill(os.getpid(), signal.SIGTERM)
""",
        4,
        [],
        "",
    ),
    "daemon threads still read": (
        """
begun = [threading.Event() for _ in range(4)]
def read(event):
    while True:
        for number, batch in enumerate(ds.batches(10)):
            if number == 5:
                event.set()
for event in begun:
    threading.Thread(target=read, args=(event,), daemon=True).start()
for event in begun:
    event.wait()
going()
""",
        0,
        [],
        "",
    ),
    "threads read to their end": (
        """
def read():
    # At once: between what `print` prints and its newline comes what other threads print.
    os.write(1, b"%d\\n" % count(ds.batches(1000)))
threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
going()
""",
        0,
        ["40000"] * 3,
        "",
    ),
    "a function at exit reads on": (
        """
batches = iter(ds.batches(1000))
next(batches)
atexit.register(lambda: print(count(batches)))
going()
""",
        0,
        ["39000"],
        "",
    ),
    "an object that reads when it is deleted": (
        """
class Late:
    def __del__(self):
        print(next(iter(ds.batches(10))).num_rows)
late = Late()
going()
""",
        0,
        ["10"],
        "",
    ),
    "one stream is read by two threads": (
        """
stream, counts = ds.batches(100), []
threads = [threading.Thread(target=lambda: counts.append(count(stream))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(counts)
going()
""",
        0,
        ["[40000, 40000]"],
        "",
    ),
    "one iterator is read by two threads": (
        """
batches, rows, refused = iter(ds.batches(100)), [], []
def read():
    while True:
        try:
            rows.append(next(batches).num_rows)
        except StopIteration:
            return
        except ValueError as error:
            refused.append(str(error))
threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(rows), set(refused) <= {"generator already executing"})
going()
""",
        0,
        ["40000 True"],
        "",
    ),
    "a fork of a process that reads reads, and so does the process": (
        """
stream = ds.batches(100)
batches = iter(stream)
next(batches)
def child():
    try:
        next(batches)
    except fb.ClosedError as error:
        print(error)
    print(stream.stats()["rows"], len(stream), count(stream))
print(forked(child), count(batches))
going()
""",
        0,
        ["the stream is closed: it belongs to the process that this one was forked from", "0 400 40000", "0 39900"],
        "",
    ),
    "a fork of a process that reads ends in every way": (
        """
batches = iter(ds.batches(100))
next(batches)
def collect():
    global batches
    del batches
    gc.collect()
ends = [lambda: None, lambda: sys.exit(5), lambda: os._exit(6), collect, batches.close]
print([forked(end) for end in ends], count(batches))
going()
""",
        0,
        ["[0, 5, 6, 0, 0] 39900"],
        "",
    ),
    "it forks while threads read": (
        """
stream, stop = ds.batches(10), threading.Event()
def read():
    while not stop.is_set():
        for batch in stream:
            if stop.is_set():
                return
threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
time.sleep(0.1)
def child():
    stream.stats()
    stream.set_epoch(1)
    next(iter(stream))
    print(count(ds.filter("id < 300").batches(7)))
print([forked(child) for _ in range(10)])
stop.set()
for thread in threads:
    thread.join()
going()
""",
        0,
        ["300"] * 10 + [str([0] * 10)],
        "",
    ),
    "a function takes its time when the program ends": (
        """
import pyarrow as pa
def slow(column):
    time.sleep(2)
    return column
function = fb.Function(call=slow, arguments=[pa.int64()], returns=pa.int64())
batches = iter(ds.sql("SELECT slow(id) AS id FROM dataset", functions={"slow": function}).batches(10))
def read():
    try:
        next(batches)
    except fb.QueryError:
        pass  # the program may end before it comes here
threading.Thread(target=read, daemon=True).start()
time.sleep(0.5)
going()
""",
        0,
        [],
        "",
    ),
    "iterators are not copied, streams are": (
        """
stream = ds.batches(100)
batches = iter(stream)
batch = next(batches)
for duplicate in (pickle.dumps, copy.deepcopy):
    try:
        duplicate(batches)
    except TypeError as error:
        print(error)
for duplicate in (lambda stream: pickle.loads(pickle.dumps(stream)), copy.deepcopy):
    copied = duplicate(stream)
    print(copied.state_dict() == stream.state_dict(), count(copied))
print(count(batches))
going()
""",
        0,
        [
            *["cannot pickle 'generator' object"] * 2,
            *["True 40000"] * 2,
            "39900",
        ],
        "",
    ),
    "a closed iterator is over": (
        """
batches = iter(ds.batches(100))
next(batches)
batches.close()
print(next(batches, "over"), count(batches))
going()
""",
        0,
        ["over 0"],
        "",
    ),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    data.write_fragments(folder, data.ids_table(NUM_ROWS), num_fragments=4, row_group_rows=500)
    return folder


@contextlib.contextmanager
def served(corpus: Path, **fault: Any) -> Iterator[tuple[FaultProxy, list[str]]]:
    """A web server with the objects of the corpus, whose answers have a fault, and their URLs."""
    objects = {path.name: path.read_bytes() for path in sorted(corpus.iterdir())}
    with FaultProxy(Objects(objects)) as proxy:
        proxy.faults = [Fault(times=None, **fault)]
        yield proxy, [f"{proxy.url}/{name}" for name in objects]


def check(ending: Ending, status: int, message: str = "") -> None:
    assert ending.status == status, ending
    assert (ending.err.splitlines() or [""])[-1] == message, ending.err
    assert not message or ending.err.count("Traceback") == 1, ending.err
    assert ending.left == []
    assert ending.seconds < SECONDS_TO_END


@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends(corpus: Path, tmp_path: Path, name: str) -> None:
    program, status, out, message = ENDINGS[name]
    ending = run_to_its_end(START + program, corpus, folder=tmp_path)
    check(ending, status, message)
    assert ending.out == out


# At exit, functions that were registered before ours are called after it.
AFTERWARDS = """
import atexit
atexit.register(lambda: afterwards())
"""

RESTS = """
def afterwards():
    stream = fb.load_dataset(sys.argv[1:], split="train").batches(100)
    batches = iter(stream)
    next(batches)
    time.sleep(1)
    print(stream.stats()["bytes_decoded"])
    print(count(batches), count(begun))


begun = iter(ds.batches(100))
next(begun)
going()
"""


WAITS_FOR_FUNCTIONS = """
def afterwards():
    try:
        print(len(list(begun)))
    except fb.ClosedError as error:
        print(error)
    # Threads that were told of an error would print it.
    time.sleep(2)


def read(event):
    while True:
        for batch in stream:
            event.set()


stream = ds.map(lambda batch: [time.sleep(0.02), batch][1], batched=True, num_proc=1).batches(10)
begun = iter(stream)
next(begun)
events = [threading.Event() for _ in range(2)]
for event in events:
    threading.Thread(target=read, args=(event,), daemon=True).start()
for event in events:
    event.wait()
going()
"""


def test_threads_that_wait_for_functions_at_exit_say_nothing(corpus: Path, tmp_path: Path) -> None:
    ending = run_to_its_end(AFTERWARDS + START + WAITS_FOR_FUNCTIONS, corpus, folder=tmp_path)
    check(ending, 0)
    assert ending.err == ""
    assert ending.out == ["map: the workers have ended, as the program does"]


def test_at_exit_no_batch_is_made_that_nobody_asks_for(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    num_rows = 2_000_000
    row_group_rows = num_rows // 100
    corpus = tmp_path_factory.mktemp("corpus")
    data.write_fragments(corpus, data.ids_table(num_rows), num_fragments=4, row_group_rows=row_group_rows)
    ending = run_to_its_end(AFTERWARDS + START + RESTS, corpus, folder=tmp_path)
    check(ending, 0)
    decoded, counts = ending.out
    # All rows fit into memory, and threads that have no batch to gather have the time to decode them on a busy machine.
    row_group_bytes = row_group_rows * (8 + len("row 1234567") + 4)
    assert row_group_rows * 8 <= int(decoded) < 2 * row_group_bytes
    assert counts == f"{num_rows - 100} {num_rows - 100}"


@pytest.mark.parametrize("name", [name for name in ENDINGS if "fork" in name])
def test_a_program_that_forks_beside_sockets_ends(corpus: Path, tmp_path: Path, name: str) -> None:
    program, status, out, message = ENDINGS[name]
    with served(corpus, **LATE) as (proxy, urls):
        ending = run_to_its_end(START + program, *urls, folder=tmp_path)
        assert proxy.count() > 80, "the rows came over sockets"
    check(ending, status, message)
    assert ending.out == out


# Stops its parent, so that whatever is sent meanwhile is the child's.
SOCKETS = """
import pathlib, socket, struct


def sent():
    '''Returns how many bytes each connection of this process has sent, by inode.'''
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            inode = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if inode.startswith("socket:"):
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family == socket.AF_INET:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208)
                    # tcpi_bytes_sent
                    found[inode] = struct.unpack_from("Q", info, 200)[0]
    return found


def child():
    parent = os.getppid()
    os.kill(parent, signal.SIGSTOP)
    try:
        while pathlib.Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        inherited = sent()
        num_rows, later = count(stream), sent()
        print(num_rows, sum(inherited.values()) > 0, {inode: later[inode] for inode in inherited} == inherited)
        print(sum(num_bytes for inode, num_bytes in later.items() if inode not in inherited) > 0)
    finally:
        os.kill(parent, signal.SIGCONT)


stream = ds.batches(100)
batches = iter(stream)
next(batches)
print(forked(child), count(batches))
going()
"""


def test_a_fork_sends_nothing_over_the_sockets_of_its_parent(corpus: Path, tmp_path: Path) -> None:
    with served(corpus, **LATE) as (_, urls):
        ending = run_to_its_end(START + SOCKETS, *urls, folder=tmp_path)
    check(ending, 0)
    assert ending.out == [f"{NUM_ROWS} True True", "True", f"0 {NUM_ROWS - 100}"]


WAITS = {
    "reading": ("stream = fb.load_dataset(sys.argv[1], split='train').batches(10)", "next(iter(stream))"),
    "selecting": ("ds = fb.load_dataset(sys.argv[1], split='train').filter('id % 2 = 0')", "len(ds)"),
    "reading in another thread": (
        "stream = fb.load_dataset(sys.argv[1], split='train').batches(10)",
        "threading.Thread(target=lambda: next(iter(stream)), daemon=True).start(); time.sleep(30)",
    ),
    "awaiting": (
        """
import asyncio
stream = fb.load_dataset(sys.argv[1], split='train').batches(10)
async def first():
    async for batch in stream:
        return batch
""",
        "asyncio.run(first())",
    ),
}


def interrupted_in_a_slow_read(program: str, corpus: Path, folder: Path) -> Ending:
    """Sends Ctrl-C to a program that waits for what its server never answers."""
    with StallingServer(corpus / "part-0.parquet") as server:

        def interrupt(process: subprocess.Popen[str]) -> None:
            assert server.is_stalled.wait(20)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)

        return run_to_its_end(program, server.url, folder=folder, then=interrupt)


@pytest.mark.parametrize("is_caught", [True, False], ids=["caught", "not caught"])
@pytest.mark.parametrize("wait", WAITS)
def test_control_c_in_the_middle_of_a_slow_read_ends_a_program(
    corpus: Path, tmp_path: Path, wait: str, is_caught: bool
) -> None:
    prepare, waiting = WAITS[wait]
    caught = "print('interrupted'); sys.exit(7)" if is_caught else "raise"
    program = f"""
import sys, threading, time
import forebay as fb
{prepare}
print("going", flush=True)
try:
    {waiting}
except KeyboardInterrupt:
    {caught}
"""
    ending = interrupted_in_a_slow_read(program, corpus, tmp_path)
    if is_caught:
        check(ending, 7)
        assert ending.out == ["interrupted"]
    else:
        assert ending.status == -signal.SIGINT
        assert ending.err.endswith("KeyboardInterrupt\n")
        assert ending.left == []
        assert ending.seconds < SECONDS_TO_END


@pytest.mark.parametrize("rows", ["dataset", "dataset.query('SELECT id + 1 AS n FROM dataset')"])
def test_control_c_ends_the_wait_of_who_takes_an_arrow_stream(corpus: Path, tmp_path: Path, rows: str) -> None:
    program = f"""
import sys, time
import pandas  # as pyarrow does when it is given rows
import pyarrow as pa
import forebay as fb
dataset = fb.load_dataset(sys.argv[1], split='train')
rows = {rows}
print("going", flush=True)
try:
    try:
        pa.table(rows)
    except pa.ArrowInvalid:
        while True:
            time.sleep(0.01)  # Python looks for signals between calls
except KeyboardInterrupt:
    print('interrupted')
    sys.exit(7)
"""
    ending = interrupted_in_a_slow_read(program, corpus, tmp_path)
    check(ending, 7)
    assert ending.out == ["interrupted"]


LOADER = """
import multiprocessing, os, sys, warnings
import forebay as fb
from torch.utils.data import DataLoader

# torch warns of more workers than cores, Python of forks beside threads.
warnings.filterwarnings("ignore", "This DataLoader will create|.*multi-threaded, use of fork")

loader = DataLoader(
    fb.load_dataset(sys.argv[1], split="train").to_torch(100),
    batch_size=None,
    num_workers=2,
    multiprocessing_context="fork",
    persistent_workers="persistent" in sys.argv,
)


def going():
    print("going", flush=True)


"""

SECONDS_OF_TORCH = 4.0
"""How long torch itself takes at most to end its workers and itself: with tensors of zeros it takes as long."""

WORKERS = {
    "the loop was left early": (
        """
for batch in loader:
    break
print(len(multiprocessing.active_children()))
going()
""",
        0,
        ["0"],
    ),
    "it is in a loop": ("batches = iter(loader); next(batches); going(); sys.exit(3)", 3, []),
    "workers persist": ("for batch in loader: break\ngoing()", 0, []),
}


@pytest.mark.parametrize("name", WORKERS)
def test_a_program_with_workers_ends(corpus: Path, tmp_path: Path, name: str) -> None:
    program, status, out = WORKERS[name]
    persistent = ["persistent"] if "persist" in name else []
    ending = run_to_its_end(LOADER + program, corpus, *persistent, folder=tmp_path)
    check_workers(ending, status)
    assert ending.out == out


def check_workers(ending: Ending, status: int) -> None:
    assert (ending.status, ending.err) == (status, "")
    # Workers that torch kills, in a loop or because they end slowly, leave the folders of their sockets behind.
    assert [left for left in ending.left if "/pymp-" not in left] == []
    assert ending.seconds < SECONDS_TO_END + SECONDS_OF_TORCH


def test_control_c_reaches_workers_in_the_middle_of_a_slow_read(corpus: Path, tmp_path: Path) -> None:
    program = """
going()
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""
    with StallingServer(corpus / "part-0.parquet") as server:

        def interrupt(process: subprocess.Popen[str]) -> None:
            assert server.is_stalled.wait(20)
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGINT)

        ending = run_to_its_end(LOADER + program, server.url, folder=tmp_path, then=interrupt)
    assert ending.out == ["interrupted"]
    check_workers(ending, 7)


# Row groups that come, each by a request of its own; those after them never do.
NUM_GROUPS_BEFORE_THE_STALL = 14

KILLED = """
num_batches = 0
try:
    for batch in loader:
        num_batches += 1
        if num_batches == int(sys.argv[2]):
            going()
except RuntimeError as error:
    print(num_batches, error, error.__cause__, sep=": ")
    if "caught" not in sys.argv:
        raise
"""


@pytest.mark.parametrize("is_caught", [True, False], ids=["caught", "not caught"])
def test_a_worker_that_is_killed_in_the_middle_of_a_read_ends_the_loop(
    corpus: Path, tmp_path: Path, is_caught: bool
) -> None:
    group = pq.read_metadata(corpus / "part-0.parquet").row_group(NUM_GROUPS_BEFORE_THE_STALL)
    num_batches = NUM_GROUPS_BEFORE_THE_STALL * group.num_rows // 100
    arguments = [num_batches, "caught"] if is_caught else [num_batches]
    stall = {"covering": group.column(0).data_page_offset, "cut_after": 100, "ending": "stall"}
    with served(corpus, **stall) as (proxy, urls):
        killed = []

        def kill(process: subprocess.Popen[str]) -> None:
            end = time.monotonic() + 30
            while proxy.num_taken() < 2:
                assert time.monotonic() < end
                time.sleep(0.01)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            killed.append(int(children[0]))
            os.kill(killed[0], signal.SIGKILL)

        ending = run_to_its_end(LOADER + KILLED, urls[0], *arguments, folder=tmp_path, then=kill)
    assert ending.out[0].startswith(f"{num_batches}: DataLoader worker (pid"), ending
    assert f"DataLoader worker (pid {killed[0]}) is killed by signal: Killed." in ending.out[0]
    assert ending.status == (0 if is_caught else 1)
    if is_caught:
        assert ending.err == ""
    else:
        assert "RuntimeError: DataLoader worker (pid" in ending.err.splitlines()[-1]
    assert [left for left in ending.left if "/pymp-" not in left] == []
