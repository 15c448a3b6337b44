"""Measures filtered scans from a slow store, beside other readers: seconds, bytes, requests, and depth of requests.

A cell is one filter on one data set (`scan_data`) at one latency of the store (`slow_store`). Six selectivities, two
payloads and two page sizes make 24 cells at 50 ms; some of them are repeated at 0 and 100 ms and on objects without a
page index. The kept rows are scattered in one cell and together in the next, alternately.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import data
import numpy as np
import scan_data
from harness import HERE, MIB, ROOT, FailedError
from report import Bar, Table
from scan_readers import READERS, TAKERS, Scanned, Task
from slow_store import BUCKET, SlowStore, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from harness import Run
    from report import Part
    from results import Log

SELECTIVITIES = (0.00001, 0.001, 0.01, 0.1, 0.5, 1.0)
SHAPES = ("narrow", "wide")
LANCE = "lance (converted)"
OURS = "forebay"
EXACT = "forebay, exact"
TAKEN_ROWS = 1000
STREAMS = 4
PAGE_NAMES = {"64k": "64 KiB", "1m": "1 MiB"}
DUCKDB_ENVIRONMENT = ROOT / ".venv-duckdb"
QUICK = (0.001, 0.5)
"""Selectivities of a quick run."""

SPARSE = 0.001
"""Up to this selectivity, the requests of every reader fit into one round of parallel requests."""

MOST_OVER_READ = 1.2
"""As a multiple of the pages that hold rows."""

ROUND_TRIP_MIB = 16
"""The most that Forebay reads in vain to save a round trip."""


@dataclass(frozen=True)
class Cell:
    """One measurement, made with every reader."""

    selectivity: float
    is_clustered: bool
    shape: str
    pages: str
    delay_ms: int
    has_index: bool = True

    @property
    def name(self) -> str:
        """The cell's name in the tables."""
        where = "together" if self.is_clustered else "anywhere"
        index = "" if self.has_index else ", no page index"
        percent = f"{self.selectivity * 100:.3g} %"
        return f"{self.delay_ms} ms, {percent}, {where}, {self.shape}, {PAGE_NAMES[self.pages]}{index}"

    @property
    def where(self) -> str:
        """The filter; exactly `num_rows` rows pass it."""
        total = scan_data.NUM_ROWS[self.shape]
        if not self.is_clustered:
            return f"rnd < {self.selectivity:.6f}"
        count = round(total * self.selectivity)
        first = (total - count) // 3
        return f"pos >= {first} AND pos < {first + count}"


def cells(*, is_quick: bool) -> list[Cell]:
    """Returns the 24 cells at 50 ms, then the others."""
    found = []
    for i, selectivity in enumerate(SELECTIVITIES):
        for j, shape in enumerate(SHAPES):
            for k, pages in enumerate(PAGE_NAMES):
                found.append(Cell(selectivity, (i + j + k) % 2 == 1, shape, pages, 50))
    found += [
        Cell(selectivity, is_clustered, shape, "64k", delay_ms)
        for delay_ms in (0, 100)
        for selectivity, is_clustered in ((0.00001, False), (0.01, True), (0.5, False))
        for shape in SHAPES
    ]
    found += [Cell(0.01, is_clustered, "wide", "64k", 50, has_index=False) for is_clustered in (False, True)]
    return [cell for cell in found if not is_quick or (cell.selectivity in QUICK and cell.shape == "wide")]


def measure(run: Run, log: Log) -> list[Part]:
    """Measures all cells, and taking rows by number."""
    folder = run.data / "scan"
    for shape in SHAPES:
        for pages in PAGE_NAMES:
            scan_data.make(shape, pages, run.data)
        scan_data.convert_to_lance(shape, run.data)
    scan_data.make("wide", "64k", run.data, index=False)
    scanned = {cell: _compare(run, log, folder, cell) for cell in cells(is_quick=run.is_quick)}
    taken = {delay_ms: _take(run, log, folder, delay_ms) for delay_ms in (0, 50)}
    return [
        _seconds(scanned),
        _traffic(scanned),
        Table(
            f"{TAKEN_ROWS} random rows in one call",
            ["", *(f"{delay_ms} ms: {what}" for delay_ms in taken for what in ("seconds", TRAFFIC))],
            [[name, *(text for found in taken.values() for text in found[name].texts)] for name in TAKERS],
        ),
        Table("The store alone", ["", "MiB/s"], [[f"{STREAMS} connections, 0 ms", f"{_store_alone(folder):,.0f}"]]),
        *_bars(scanned, taken),
    ]


def _store_alone(folder: Path) -> float:
    """Returns the MiB per second at which this process gets whole objects and discards them."""
    paths = sorted((folder / "wide-64k").glob("*.parquet"))

    def get(url: str) -> None:
        room = bytearray(MIB)
        with urllib.request.urlopen(url) as response:  # noqa: S310
            while response.readinto(room):
                pass

    with SlowStore(folder, 0) as store, ThreadPoolExecutor(STREAMS) as threads:
        started = time.perf_counter()
        list(threads.map(get, [f"{store.endpoint}/{BUCKET}/{path.relative_to(folder)}" for path in paths]))
        return sum(path.stat().st_size for path in paths) / MIB / (time.perf_counter() - started)


@dataclass(frozen=True)
class Result:
    """The result of one reader in one cell: the median seconds, and the traffic of the last round."""

    seconds: float
    rows: int
    traffic: Traffic
    opening_bytes: int = 0
    page_bytes: int = 0

    @property
    def read_bytes(self) -> int:
        """Returns the bytes read after opening."""
        return self.traffic.bytes - self.opening_bytes

    @property
    def texts(self) -> list[str]:
        """Returns the seconds and the traffic as table cells."""
        return [f"{self.seconds:.2f}", _asked(self.traffic)]


TRAFFIC = "MiB / requests / at once / chain"


def _asked(traffic: Traffic) -> str:
    return f"{traffic.bytes / MIB:,.1f} / {traffic.requests} / {traffic.concurrent or '?'} / {traffic.depth or '?'}"


def _compare(run: Run, log: Log, folder: Path, cell: Cell) -> dict[str, Result]:
    prefix = f"{cell.shape}-{cell.pages}" + ("" if cell.has_index else "-no-index")
    task = Task("", prefix, f"{cell.shape}.lance", scan_data.PAYLOAD[cell.shape], cell.where)
    return _kept(log, cell.name, lambda: _rounds(run, folder, cell.name, cell.delay_ms, READERS, task))


def _take(run: Run, log: Log, folder: Path, delay_ms: int) -> dict[str, Result]:
    rows = np.random.default_rng(data.SEED).choice(scan_data.NUM_ROWS["wide"], TAKEN_ROWS, replace=False).tolist()
    task = Task("", "wide-64k", "wide.lance", scan_data.PAYLOAD["wide"], "", rows)
    name = f"{delay_ms} ms, {TAKEN_ROWS} rows by number"
    return _kept(log, name, lambda: _rounds(run, folder, name, delay_ms, TAKERS, task))


def _kept(log: Log, name: str, measure: Callable[[], dict[str, Result]]) -> dict[str, Result]:
    """Returns the results of a cell, measured unless they exist."""
    found = log.once(name, lambda: {reader: asdict(result) for reader, result in measure().items()})
    return {reader: Result(**values | {"traffic": Traffic(**values["traffic"])}) for reader, values in found.items()}


def _rounds(run: Run, folder: Path, name: str, delay_ms: int, readers: Iterable[str], task: Task) -> dict[str, Result]:
    """Runs a task with all readers in turn, each in its own process.

    Raises:
        FailedError: A reader failed, or two delivered different rows.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    delivered: dict[str, tuple[int, int]] = {}
    traffic: dict[str, Traffic] = {}
    needed: dict[str, tuple[int, int]] = {}
    _warm(folder / task.folder, folder / task.lance_folder)
    with SlowStore(folder, delay_ms / 1000) as store:
        for _ in range(run.num_rounds):
            for reader in readers:
                found = _scan(run, reader, Task(**asdict(task) | {"endpoint": store.endpoint}))
                seconds[reader].append(found.seconds)
                delivered[reader] = (found.rows, found.checksum)
                traffic[reader] = store.traffic()
                needed[reader] = (found.opening_bytes, found.page_bytes)
    if len(set(delivered.values())) > 1:
        raise FailedError(f"the readers do not agree on {name}: {delivered}")
    results = {
        reader: Result(statistics.median(found), delivered[reader][0], traffic[reader], *needed[reader])
        for reader, found in seconds.items()
    }
    print(
        f"  {name}: {', '.join(f'{reader} {result.seconds:.2f} s' for reader, result in results.items())}", flush=True
    )
    return results


def _warm(*folders: Path) -> None:
    """Reads all objects once, so that the first reader of a cell does not have to wait for the disk."""
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with path.open("rb", buffering=0) as file:
            while file.read(16 * MIB):
                pass


def _scan(run: Run, reader: str, task: Task) -> Scanned:
    python = _duckdb_python() if reader == "duckdb" else sys.executable
    # Disk caches start empty, and no reader asks a cloud's metadata service for credentials.
    cache = tempfile.mkdtemp(prefix="forebay-cache-")
    os.environ |= {"XDG_CACHE_HOME": cache, "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        printed = run.output([python, "scan_readers.py", reader, json.dumps(asdict(task))], HERE)
    finally:
        shutil.rmtree(cache)
    return Scanned(**json.loads(printed.splitlines()[-1]))


def _duckdb_python() -> str:
    """Returns the interpreter of DuckDB's environment.

    Raises:
        FailedError: `make bench` has not created it.
    """
    python = DUCKDB_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise FailedError(f"no {DUCKDB_ENVIRONMENT.name}: `make .venv-duckdb/done` makes it")
    return str(python)


def _plain(results: dict[str, Result]) -> dict[str, float]:
    """Returns the seconds of the rivals that read the same Parquet."""
    return {name: result.seconds for name, result in results.items() if name not in (OURS, EXACT, LANCE)}


def _lead(results: dict[str, Result]) -> float:
    """Returns the time of the best rival on Parquet divided by that of Forebay."""
    return min(_plain(results).values()) / results[OURS].seconds


def _seconds(scanned: dict[Cell, dict[str, Result]]) -> Table:
    rows = []
    for cell, results in scanned.items():
        plain = _plain(results)
        times = [f"{results[name].seconds:.2f}" for name in READERS]
        rows.append(
            [cell.name, f"{results[OURS].rows:,}", *times, min(plain, key=plain.__getitem__), f"{_lead(results):.2f}"]
        )
    return Table("Scans: seconds", ["cell", "rows", *READERS, "best on Parquet", "its seconds : ours"], rows)


def _traffic(scanned: dict[Cell, dict[str, Result]]) -> Table:
    rows = [
        [cell.name, *(_asked(results[name].traffic) for name in READERS), f"{results[EXACT].page_bytes / MIB:,.1f}"]
        for cell, results in scanned.items()
    ]
    return Table(f"Scans: {TRAFFIC}", ["cell", *READERS, "MiB of pages"], rows)


def _bars(scanned: dict[Cell, dict[str, Result]], taken: dict[int, dict[str, Result]]) -> list[Bar]:
    def worst(kept: Callable[[Cell], bool]) -> float:
        return min((_lead(results) for cell, results in scanned.items() if kept(cell)), default=float("nan"))

    chains = [found[OURS].traffic.depth for cell, found in scanned.items() if cell.selectivity <= SPARSE]
    bars = [
        Bar("scans at 50 and 100 ms, the worst cell: the best on Parquet", worst(lambda cell: cell.delay_ms > 0), 1.3),
        Bar("scans at 0 ms, the worst cell: the best on Parquet", worst(lambda cell: cell.delay_ms == 0), 1 / 1.3),
        # The listing, the footers, the columns of the filter, the payload.
        Bar("scans, longest chain of requests, up to 0.1 %", max(chains), 4, at_most=True),
        Bar(
            "scans page by page, the worst cell: bytes read : pages that hold rows",
            max(found[EXACT].read_bytes / found[EXACT].page_bytes for found in scanned.values()),
            MOST_OVER_READ,
            at_most=True,
        ),
        Bar(
            f"scans, the worst cell: MiB read beyond {MOST_OVER_READ} of the pages that hold rows",
            max((found[OURS].read_bytes - MOST_OVER_READ * found[OURS].page_bytes) / MIB for found in scanned.values()),
            ROUND_TRIP_MIB,
            at_most=True,
        ),
    ]
    for delay_ms, bar in ((50, 1.0), (0, 0.5)):
        lead = taken[delay_ms][LANCE].seconds / taken[delay_ms][OURS].seconds
        bars.append(Bar(f"{TAKEN_ROWS} random rows at {delay_ms} ms: Lance, converted", lead, bar))
    return bars
