"""Measures one reader in its own process: first checks what it delivers from tiny data, then times it on large data.

A reader is a function that returns an iterable of batches in the form of its case. Both the epoch after the first batch
and the whole epoch are timed, because a reader can do half of its work before it delivers anything.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import statistics
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import FailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cases import Task

    Reader = Callable[[Task], Iterable[dict[str, Any]]]

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Checked:
    """What a reader delivered from the tiny data set."""

    rows: int
    digest: str
    """Digest of all values of all rows, in any order."""


@dataclass(frozen=True)
class Measurement:
    """One epoch of one reader, or the requested part of it."""

    rows: int
    """Rows delivered."""
    seconds: float
    """From the call to the last batch."""
    first_batch_seconds: float
    """From the call to the first batch."""
    rows_per_second: float
    """Rate after the first batch, whose rows do not count."""
    rows_per_second_of_all: float
    """Rate from the call on."""
    rows_per_second_late: float
    """Rate of the second half of the rows; far from the rate of all if a reader is not steady."""
    cpu_seconds: float
    """Of all threads and worker processes, from the call to the last batch; other programs hardly affect it."""
    peak_bytes: int
    """Peak resident memory of the process, beyond what it held before the reader was first called."""
    workers_bytes: int
    """Memory of its worker processes at the end."""
    checksum: int
    """Sum of some values of each row, on which readers of whole epochs must agree."""
    is_whole: bool
    """Whether the epoch ended within the time limit."""
    stats: dict[str, float] = field(default_factory=dict)
    """`stats()` of a Forebay stream at the end."""


def check(reader: Reader, task: Task) -> Checked:
    """Reads a tiny data set to its end and returns its digest."""
    import forms

    global held_bytes
    held_bytes = _status("VmRSS")
    rows, digests = 0, []
    with _awake():
        for batch in reader(task):
            rows += forms.num_rows(batch)
            digests.append(forms.digests(batch, task.case))
    return Checked(rows, forms.of_rows(digests))


@contextlib.contextmanager
def _awake() -> Iterator[None]:
    """Stops `datasets` from sleeping for five seconds at the end of an epoch that is not timed."""
    if find_spec("datasets") is None:
        yield
        return
    from datasets import config

    seconds = config.SLEEP_TIME_ON_THREADS_SHUTDOWN
    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    yield
    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = seconds


held_bytes = 0
"""Memory of the process before a reader was called."""


def take_and_give_back(num_bytes: int) -> None:
    """Allocates memory and frees it, so that the reader does not wait for the host to provide it.

    The host of a VM reclaims memory that is free for seconds, and takes one to two seconds per GiB to return it.
    """
    if num_bytes:
        mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def measure(reader: Reader, task: Task, max_seconds: float | None) -> Measurement:
    """Runs a reader in this process, to the end or until a time limit after its first batch."""
    import forms

    # Resets the peak.
    Path("/proc/self/clear_refs").write_text("5")
    checksum = num_rows = 0
    marks: list[tuple[float, int]] = []
    is_whole = True
    cpu_before = _cpu_seconds()
    started = time.perf_counter()
    # Bound to names, so that leaving the loop does not close them: closing `datasets` sleeps for five seconds.
    batches = reader(task)
    iterator = iter(batches)
    for batch in iterator:
        checksum += forms.checksum(batch, task.case)
        num_rows += forms.num_rows(batch)
        marks.append((time.perf_counter() - started, num_rows))
        if max_seconds is not None and marks[-1][0] - marks[0][0] >= max_seconds:
            is_whole = False
            break
    seconds = time.perf_counter() - started
    if not marks:
        raise FailedError(f"no rows in {task.folder}")
    stats = getattr(batches, "stats", None)
    (first_seconds, first_rows) = marks[0]
    return Measurement(
        rows=num_rows,
        seconds=seconds,
        first_batch_seconds=first_seconds,
        rows_per_second=_rate(num_rows - first_rows, seconds - first_seconds),
        rows_per_second_of_all=num_rows / seconds,
        rows_per_second_late=_late(marks, num_rows, seconds),
        cpu_seconds=_cpu_seconds() - cpu_before,
        peak_bytes=peak_bytes() - held_bytes,
        workers_bytes=sum(map(_proportional_bytes, _children(os.getpid()))),
        checksum=checksum,
        is_whole=is_whole,
        stats=stats() if stats is not None else {},
    )


def _rate(rows: int, seconds: float) -> float:
    """Returns rows per second; 0 if all rows came in one batch."""
    return rows / seconds if rows else 0.0


def _late(marks: Sequence[tuple[float, int]], num_rows: int, seconds: float) -> float:
    half_seconds, half_rows = next(mark for mark in marks if mark[1] * 2 >= num_rows)
    return _rate(num_rows - half_rows, seconds - half_seconds)


def peak_bytes() -> int:
    """Returns the peak resident size of this process; `getrusage` may return that of its parent before `exec`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise FailedError(f"no {name} in /proc/self/status; the benchmarks need Linux")


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and its children, both ended and running."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(map(_cpu_seconds_of, _children(os.getpid())))


def _cpu_seconds_of(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        # It has just ended, and is counted among the ended ones.
        return 0.0
    return sum(map(int, fields[11:15])) / CLOCK_TICKS


def _children(process: int) -> list[int]:
    """Returns all descendants of a process."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            direct = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            # A thread that has just ended.
            continue
        for child in direct:
            found.append(child)
            with contextlib.suppress(OSError):
                found += _children(child)
    return found


def _proportional_bytes(process: int) -> int:
    """Returns the memory of a process, with memory shared with others divided equally."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def end_workers() -> None:
    """Kills the processes that this process has started."""
    for child in _children(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def median(found: Sequence[Measurement], name: str) -> float:
    """Returns the median of a field."""
    return float(statistics.median(getattr(result, name) for result in found))
