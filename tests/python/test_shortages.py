"""What a machine may run out of: file descriptors, disk, and time for this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_proxy import Fault, FaultProxy
from programs import python_command, python_environment, run_python
from upstreams import Objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 20_000
NUM_FILES = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ids")
    data.write_fragments(folder, data.ids_table(NUM_ROWS), num_fragments=NUM_FILES, row_group_rows=100)
    return folder


@pytest.fixture(scope="module")
def proxy(folder: Path) -> Iterator[FaultProxy]:
    with FaultProxy(Objects({path.name: path.read_bytes() for path in folder.iterdir()})) as proxy:
        yield proxy


READS_WITH_FEW_DESCRIPTORS = """
import os, resource, sys, warnings
import forebay as fb

warnings.simplefilter("default")
ds = fb.load_dataset(sys.argv[3:], split="train").shuffle(1)


def read(**settings):
    try:
        print(sum(batch.num_rows for batch in ds.batches(100, **settings)))
    except fb.StoreError as error:
        print(error)


allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
# The directory that is being listed has one, too.
used = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(sys.argv[1]), allowed[1]))
read(**({"on_error": "skip"} if sys.argv[2] == "skip" else {}))
resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
read()
"""


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_files_that_cannot_be_opened_are_an_error_that_says_why_and_never_missing_rows(
    folder: Path, on_error: str
) -> None:
    first, second = run_python(READS_WITH_FEW_DESCRIPTORS, 0, on_error, folder).splitlines()
    assert "no file descriptor is left to read `" in first
    assert ".parquet`" in first
    assert "`ulimit -n`" in first
    assert second == str(NUM_ROWS)


def test_a_store_is_read_with_the_connections_that_there_may_be(proxy: FaultProxy) -> None:
    proxy.clear()
    proxy.faults = [Fault(latency=0.02, times=None)]
    urls = [f"{proxy.url}/part-{number}.parquet" for number in range(NUM_FILES)]
    done = subprocess.run(
        python_command(READS_WITH_FEW_DESCRIPTORS, 1, "raise", *urls),
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(NUM_ROWS)] * 2
    assert "Too many open files (os error 24); `ulimit -n`" in done.stderr


MAPS_WITH_FEW_DESCRIPTORS = """
import os, resource, sys, time
import forebay as fb

ds = fb.load_dataset(sys.argv[1], split="train").take(4000).shuffle(1)
allowed = resource.getrlimit(resource.RLIMIT_NOFILE)


def mapped():
    return ds.map(lambda batch: {"id": list(batch["id"])}, batched=True, num_proc=2).batches(50)


def num_open():
    # The directory that is being listed has one, too.
    return len(os.listdir("/proc/self/fd")) - 1


def read(stream, ids):
    for batch in stream:
        ids += batch["id"]


expected = []
read(mapped(), expected)
for room in (0, 9, 17, 29, 41):
    stream, ids, before = mapped(), [], num_open()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, allowed[1]))
    try:
        read(stream, ids)
    except (fb.TransformError, fb.StoreError) as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    state = stream.state_dict()
    assert state["position"] == len(ids)
    if len(ids) < len(expected):
        # Reads that were under way end by themselves.
        deadline = time.monotonic() + 10
        while num_open() != before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert num_open() == before, (num_open(), before)
    stream.load_state_dict(state)
    read(stream, ids)
    assert ids == expected
    # Ends the workers.
    del stream
"""


def test_functions_go_on_where_no_descriptor_was_left_for_their_processes(folder: Path) -> None:
    said = run_python(MAPS_WITH_FEW_DESCRIPTORS, folder).splitlines()
    words = "use fewer processes (`num_proc`, `num_workers`), have each hold fewer batches (`prefetch`, "
    for what in ("to start workers", "to send a batch to a worker"):
        assert any(text.startswith(f"map: no file descriptor is left {what}; {words}") for text in said), said
    assert all("`ulimit -n`" in text or "ended with exit status 1 before it began" in text for text in said), said


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is read from `/proc`")
@pytest.mark.parametrize("mib", [8, 24, 40])
def test_threads_that_the_system_refuses_are_an_error(folder: Path, mib: int) -> None:
    # Where there is room for the stacks of none, one or two of them.
    program = """
        import pathlib, resource, sys
        import forebay as fb

        mapped = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        allowed = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (int(sys.argv[2]) << 20), allowed[1]))
        try:
            fb.load_dataset(sys.argv[1], split="train")
        except fb.ForebayError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_AS, allowed)
        print(len(fb.load_dataset(sys.argv[1], split="train")))
    """
    refused, then = run_python(program, folder, mib).splitlines()
    assert refused.startswith("cannot start a thread")
    assert then == str(NUM_ROWS)


def test_a_query_that_finds_no_room_for_temporary_files_says_where(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    texts = pa.array([f"{number:064}" for number in rng.permutation(200_000)])
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=20_000, write_page_index=True)
    # A limit on the size of files fails as a full disk does: in the middle of writing.
    program = """
        import resource, signal, sys, warnings
        import forebay as fb

        # Of the little memory, which makes the query write.
        warnings.simplefilter("ignore", fb.PerformanceWarning)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ds = fb.load_dataset(sys.argv[1], split="train")
        sql = "SELECT text FROM dataset ORDER BY text"
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for batches in (ds.query, lambda *query, **limit: ds.sql(*query).batches(1000, **limit)):
            try:
                print(len(list(batches(sql, memory_limit=16 << 20))))
            except fb.QueryError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(sum(batch.num_rows for batch in ds.query(sql, memory_limit=16 << 20)))
    """
    environment = {"TMPDIR": str(tmp_path), "FOREBAY_CACHE": "0"}
    *refused, rows = run_python(program, tmp_path / "x.parquet", environment=environment).splitlines()
    assert len(refused) == 2
    for message in refused:
        assert f"cannot write temporary files in `{tmp_path}`" in message
        assert "`TMPDIR`" in message
    assert int(rows) == 200_000
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize(
    "fault", [Fault(times=None, latency=0.2), Fault(times=None, latency=0.2, chance=0.1, status=500)]
)
def test_a_process_that_was_stopped_for_longer_than_its_patience_goes_on(fault: Fault, proxy: FaultProxy) -> None:
    """As by `Ctrl-Z` and `fg`: nobody was asked in the meantime, so no store is to blame.

    It is stopped in first requests, and in the pauses and requests that follow those that failed.
    """
    program = """
        import sys, time, warnings
        import forebay as fb

        warnings.simplefilter("default")
        options = {"retry_for": "6 s"}
        ds = fb.load_dataset(sys.argv[1:], split="train", storage_options=options).shuffle(1)
        rows = 0
        # Many requests are always under way.
        for batch in ds.batches(100, memory_limit=8 << 20):
            if not rows:
                print("going", flush=True)
            rows += batch.num_rows
            time.sleep(0.005)
        print(rows)
    """
    proxy.clear()
    proxy.faults = [fault]
    urls = [f"{proxy.url}/part-{number}.parquet" for number in range(NUM_FILES)]
    with subprocess.Popen(
        python_command(program, *urls), env=python_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(8)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate(timeout=60)[0] == f"{NUM_ROWS}\n"
    assert process.returncode == 0
