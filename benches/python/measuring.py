"""Measures one reader in its own process: first what it delivers of tiny data, then how fast it delivers much.

A reader is a function that returns an iterable of batches in the form of its case. What is timed is the epoch after the
first batch, and the whole of it beside that, because a reader can do half of its work before it gives out anything.
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
    """What a reader delivered of the tiny data set."""

    rows: int
    digest: str
    """Of all values of all rows, in no order."""


@dataclass(frozen=True)
class Measurement:
    """One epoch of one reader, or as much of it as was asked for."""

    rows: int
    """Rows delivered."""
    seconds: float
    """From the call to the last batch."""
    first_batch_seconds: float
    """From the call to the first batch."""
    rows_per_second: float
    """After the first batch, whose rows do not count."""
    rows_per_second_of_all: float
    """From the call on."""
    rows_per_second_late: float
    """Of the second half of the rows: far from the rate of all where a reader is not steady."""
    cpu_seconds: float
    """Of all threads and worker processes, from the call to the last batch: hardly moved by other programs."""
    peak_bytes: int
    """Resident memory of the process at its highest, beyond what it held before the reader was first called."""
    workers_bytes: int
    """Memory of its worker processes at the end."""
    checksum: int
    """Sum of some values of each row: two readers that read whole epochs must agree."""
    is_whole: bool
    """Whether the epoch ended before the time did."""
    stats: dict[str, float] = field(default_factory=dict)
    """What a stream of Forebay says of itself at the end."""


def check(reader: Reader, task: Task) -> Checked:
    """Reads a tiny data set to its end and digests all of it."""
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
    """Has `datasets` not sleep for five seconds at the end of an epoch; where that is timed it does."""
    if find_spec("datasets") is None:
        yield
        return
    from datasets import config

    seconds = config.SLEEP_TIME_ON_THREADS_SHUTDOWN
    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    yield
    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = seconds


held_bytes = 0
"""What the process held before a reader was called."""


def take_and_give_back(num_bytes: int) -> None:
    """Takes memory from the system and gives it back, so that who takes it next does not wait for the machine's host.

    That of a virtual machine takes what is free for some seconds, and finds it again at one to two seconds a GiB.
    """
    if num_bytes:
        mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def measure(reader: Reader, task: Task, max_seconds: float | None) -> Measurement:
    """Runs a reader in this process, to the end or until so long after its first batch."""
    import forms

    # The peak is counted anew.
    Path("/proc/self/clear_refs").write_text("5")
    checksum = num_rows = 0
    marks: list[tuple[float, int]] = []
    is_whole = True
    cpu_before = _cpu_seconds()
    started = time.perf_counter()
    # Bound to names, so that leaving the loop does not close them: `datasets` then sleeps for five seconds.
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
    """Returns rows per second; 0 where all came in one batch."""
    return rows / seconds if rows else 0.0


def _late(marks: Sequence[tuple[float, int]], num_rows: int, seconds: float) -> float:
    half_seconds, half_rows = next(mark for mark in marks if mark[1] * 2 >= num_rows)
    return _rate(num_rows - half_rows, seconds - half_seconds)


def peak_bytes() -> int:
    """Returns the highest resident size of this process; unlike `getrusage`, not that of a parent before `exec`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise FailedError(f"no {name} in /proc/self/status; the benchmarks need Linux")


def _cpu_seconds() -> float:
    """Returns the time of this process, of its children that have ended and of those that have not."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(map(_cpu_seconds_of, _children(os.getpid())))


def _cpu_seconds_of(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        # It has ended in this moment, and is counted among those.
        return 0.0
    return sum(map(int, fields[11:15])) / CLOCK_TICKS


def _children(process: int) -> list[int]:
    """Returns all processes that descend from one."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            direct = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            # A thread that has ended.
            continue
        for child in direct:
            found.append(child)
            with contextlib.suppress(OSError):
                found += _children(child)
    return found


def _proportional_bytes(process: int) -> int:
    """Returns the memory of a process, what it shares with others in equal parts."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def end_workers() -> None:
    """Kills the processes that this one has started."""
    for child in _children(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def median(found: Sequence[Measurement], name: str) -> float:
    """Returns the median of one field."""
    return float(statistics.median(getattr(result, name) for result in found))
