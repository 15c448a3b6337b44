"""Runs what is measured: each reader in an interpreter of its own, in turns, on the same objects and cores.

A reader is a function that returns an iterator of batches as tensors. What is timed is the epoch after the first batch,
and the whole of it beside that, because a reader can do half of its work before it gives out anything.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    Reader = Callable[[Path], Iterator[torch.Tensor]]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 1 << 20
CHECKED_STRIDE = 64


class FailedError(Exception):
    """A program that was to be measured failed; the message is what it said."""


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
    cpu_seconds: float
    """Of all threads and ended worker processes, from the call to the last batch: hardly moved by other programs."""
    peak_bytes: int
    """Resident memory of the process at its highest, less what it held before the call."""
    checksum: int
    """Sum of some values of each row: two readers that read whole epochs must agree."""
    is_whole: bool
    """Whether the epoch ended before the rows did."""


def measure(reader: Reader, folder: Path, max_rows: int | None) -> Measurement:
    """Runs a reader in this process."""
    held_before = peak_bytes()
    num_rows = 0
    checksum = 0
    first_rows = 0
    first_batch_seconds = 0.0
    is_whole = True
    cpu_before = _cpu_seconds()
    started = time.perf_counter()
    # Bound to a name, so that leaving the loop does not close it: `datasets` then sleeps for five seconds.
    batches = reader(folder)
    for batch in batches:
        # A reader that hands out promises must keep them; a sum of every value would cost as much as the reading.
        checksum += int(batch[:, ::CHECKED_STRIDE].sum())
        num_rows += len(batch)
        if not first_rows:
            first_rows = num_rows
            first_batch_seconds = time.perf_counter() - started
        if max_rows is not None and num_rows >= max_rows:
            is_whole = False
            break
    seconds = time.perf_counter() - started
    return Measurement(
        rows=num_rows,
        seconds=seconds,
        first_batch_seconds=first_batch_seconds,
        rows_per_second=(num_rows - first_rows) / (seconds - first_batch_seconds),
        rows_per_second_of_all=num_rows / seconds,
        cpu_seconds=_cpu_seconds() - cpu_before,
        peak_bytes=peak_bytes() - held_before,
        checksum=checksum,
        is_whole=is_whole,
    )


def serve(readers: Mapping[str, Reader], argv: Sequence[str]) -> None:
    """Answers `Run.compare` in the process of one reader: `NAME FOLDER [MAX_ROWS]`."""
    name, folder, *max_rows = argv
    measurement = measure(readers[name], Path(folder), int(max_rows[0]) if max_rows else None)
    print(json.dumps(asdict(measurement)), flush=True)
    # Some readers leave threads that outlive or abort the interpreter; their measurement is done.
    os._exit(0)


def peak_bytes() -> int:
    """Returns the highest resident size of this process; unlike `getrusage`, not that of a parent before `exec`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise FailedError("no VmHWM in /proc/self/status; the benchmarks need Linux")


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def cpus() -> list[int]:
    """Returns the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Run:
    """Settings of a run of the benchmarks, and how it starts programs."""

    data: Path
    num_rounds: int
    num_cores: int
    is_quick: bool = False
    """Whether a few cells of the scans are enough."""

    def program(self, *arguments: object) -> Any:
        """Runs a program of this folder and returns the JSON of its last line."""
        return json.loads(self.output([sys.executable, *map(str, arguments)], HERE).splitlines()[-1])

    def output(self, command: list[str], folder: Path) -> str:
        """Runs any program on the cores of this run and returns what it prints.

        Raises:
            FailedError: It failed.
        """
        pin = functools.partial(os.sched_setaffinity, 0, cpus()[: self.num_cores])
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False, preexec_fn=pin)
        if done.returncode:
            raise FailedError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr.strip()[-3000:]}")
        return done.stdout

    def compare(
        self, program: str, readers: Mapping[str, int | None], folder: Path, each_round: Callable[[], None]
    ) -> dict[str, list[Measurement]]:
        """Measures the readers of a program in turns, so that what else the machine does meets all of them.

        Args:
            program: Name of the program in this folder.
            readers: Name to the rows that the reader is stopped after, or None.
            folder: Where the objects are.
            each_round: Takes its turn before the readers.

        Raises:
            FailedError: A reader failed, or two that read whole epochs did not read the same values.
        """
        results: dict[str, list[Measurement]] = {name: [] for name in readers}
        for round_index in range(self.num_rounds):
            print(f"  round {round_index + 1}", flush=True)
            each_round()
            for name, max_rows in readers.items():
                limit = [] if max_rows is None else [max_rows]
                result = Measurement(**self.program(program, name, folder, *limit))
                results[name].append(result)
                rates = f"{result.rows_per_second:,.0f} rows/s, {result.rows_per_second_of_all:,.0f} in all"
                print(f"    {name}: {rates}", flush=True)
        sums = {name: {result.checksum for result in found if result.is_whole} for name, found in results.items()}
        if len(set().union(*sums.values())) > 1:
            raise FailedError(f"the readers do not agree on what is in {folder}: {sums}")
        return results


def median(found: Sequence[Measurement], name: str) -> float:
    """Returns the median of one field."""
    return float(statistics.median(getattr(result, name) for result in found))
