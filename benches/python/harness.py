"""Measures readers beside each other: each in a process of its own, in turns, on the same objects.

A reader is a function that returns an iterator of batches as tensors. What is timed is the epoch after the first batch,
and the whole of it beside that, because a reader can do half of its work before it gives out anything.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Reader = Callable[[Path], Iterator[torch.Tensor]]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
MIB = 1 << 20
CHECKED_STRIDE = 64


@dataclass(frozen=True)
class Measurement:
    """One epoch of one reader, or as much of it as fitted into the time."""

    rows: int
    """Rows delivered."""
    seconds: float
    """From the call to the last batch."""
    first_batch_seconds: float
    """From the call to the first batch."""
    rows_per_second: float
    """After the first batch."""
    peak_bytes: int
    """Resident memory of the process at its highest, less what it held before the call."""
    checksum: int
    """Sum of some values of each row: two readers that read whole epochs must agree."""
    is_whole: bool
    """Whether the epoch ended before the time did."""


def measure(reader: Reader, folder: Path, max_seconds: float) -> Measurement:
    """Runs a reader in this process."""
    held_before = _resident_bytes()
    num_rows = 0
    checksum = 0
    first_rows = 0
    first_batch_seconds = 0.0
    is_whole = True
    started = time.perf_counter()
    for batch in reader(folder):
        # A reader that hands out promises must keep them; a sum of every value would cost as much as the reading.
        checksum += int(batch[:, ::CHECKED_STRIDE].sum(dtype=torch.int64))
        num_rows += len(batch)
        if not first_rows:
            first_rows = num_rows
            first_batch_seconds = time.perf_counter() - started
        if time.perf_counter() - started > max_seconds:
            is_whole = False
            break
    seconds = time.perf_counter() - started
    return Measurement(
        rows=num_rows,
        seconds=seconds,
        first_batch_seconds=first_batch_seconds,
        rows_per_second=(num_rows - first_rows) / (seconds - first_batch_seconds),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - held_before,
        checksum=checksum,
        is_whole=is_whole,
    )


def serve(readers: Mapping[str, Reader], argv: Sequence[str]) -> None:
    """Answers `compare` in the process of one reader: `NAME FOLDER MAX_SECONDS`."""
    name, folder, max_seconds = argv
    measurement = measure(readers[name], Path(folder), float(max_seconds))
    print(json.dumps(asdict(measurement)), flush=True)
    # Some readers leave threads that outlive or abort the interpreter; their measurement is done.
    os._exit(0)


def compare(
    program: Path, names: Sequence[str], folder: Path, *, rounds: int, max_seconds: float
) -> dict[str, list[Measurement]]:
    """Measures readers of a program in turns, so that what else the machine does meets all of them.

    Raises:
        RuntimeError: A reader failed, or two that read whole epochs did not read the same values.
    """
    results: dict[str, list[Measurement]] = {name: [] for name in names}
    for round_index in range(rounds):
        for name in names:
            command = [sys.executable, str(program), name, str(folder), str(max_seconds)]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if answer.returncode != 0:
                raise RuntimeError(f"{name}: failed with status {answer.returncode}")
            result = Measurement(**json.loads(answer.stdout.splitlines()[-1]))
            results[name].append(result)
            print(f"  round {round_index + 1}: {name}: {result.rows_per_second:,.0f} rows/s", flush=True)
    checksums = {name: {result.checksum for result in found if result.is_whole} for name, found in results.items()}
    if len(set().union(*checksums.values())) > 1:
        raise RuntimeError(f"the readers do not agree on what is in {folder}: {checksums}")
    return results


def table(results: dict[str, list[Measurement]], reference: str) -> str:
    """Writes measurements as a Markdown table, medians of the rounds, beside a reference."""
    lines = [
        "| reader | rows/s after the first batch | beside "
        f"{reference} | first batch, s | rows/s of the whole epoch | memory, MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    base = median(results[reference], "rows_per_second")
    for name, found in results.items():
        rate = median(found, "rows_per_second")
        whole = statistics.median(result.rows / result.seconds for result in found)
        cut = "" if all(result.is_whole for result in found) else " (cut short)"
        lines.append(
            f"| {name}{cut} | {rate:,.0f} | {rate / base:.3g}x | {median(found, 'first_batch_seconds'):.2f} "
            f"| {whole:,.0f} | {median(found, 'peak_bytes') / MIB:,.0f} |"
        )
    return "\n".join(lines)


def median(found: Sequence[Measurement], name: str) -> float:
    """Returns the median of one field."""
    return float(statistics.median(getattr(result, name) for result in found))


def machine(packages: Sequence[str]) -> str:
    """Describes what was measured on: processor, cores, memory, versions."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GB. Python {platform.python_version()}, {versions}."


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
