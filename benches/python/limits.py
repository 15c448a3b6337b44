"""Measures what the machine could do, stage by stage, and how much of that Forebay reaches.

A stage of Forebay is measured by its own clocks (`stats()`): bytes over the summed time of the threads that worked on
it, so it is compared with the limit of one thread. A whole epoch is rows over time, compared with the limit of all
threads.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import throughput
from cases import CASES
from compared import OURS
from harness import ROOT
from measuring import Measurement
from readers import FAMILIES
from report import Bar, Table, count, progress
from slow_store import BUCKET, SlowStore

if TYPE_CHECKING:
    from pathlib import Path

    from cases import Case
    from harness import Run
    from report import Part
    from results import Log

MEASURED = ("tokens", "tokens-plain", "embeddings", "text-bytes", "tabular")
LOOPBACK = "tokens-plain"
"""It has the most bytes per row, and no codec."""
CONNECTIONS = 4
BAR = 0.8
DECODE_ROUNDS = 3
GIGA = 1e9


@dataclass(frozen=True)
class Limits:
    """The least seconds that one pass over the source takes, by stage and number of threads."""

    num_rows: int
    file_bytes: float
    row_bytes: int
    read: dict[int, float]
    decompress: dict[int, float]
    copy: dict[int, float]

    @property
    def num_bytes(self) -> float:
        """Bytes of the rows in memory."""
        return float(self.num_rows * self.row_bytes)

    def rows_per_second(self, num_threads: int) -> float:
        """Returns the rate of reading, decompressing and copying once, one after another."""
        return self.num_rows / sum(stage[num_threads] for stage in (self.read, self.decompress, self.copy))


def measure(run: Run, log: Log) -> list[Part]:
    """Measures the limits and epochs of all cases in turn."""
    stages: list[list[str]] = []
    ends: list[list[str]] = []
    bars: list[Part] = []
    bar = progress("limits", len(MEASURED) + 1)
    for name in MEASURED[: 2 if run.is_quick else None]:
        bar.update()
        _case(run, log, CASES[name], stages, ends, bars)
    bar.update()
    loopback = _loopback(run, log)
    bar.close()
    return [
        Table(
            "Stages, one thread",
            ["rows", "stage", "limit", "its GB/s or calls/s", "Forebay", "Forebay : limit"],
            stages,
        ),
        Table(
            "End to end",
            ["rows", "read, s", "decompress, s", "copy, s", "their sum, rows/s", "bare parquet-rs", "Forebay",
             "Forebay : the better"],
            ends,
        ),
        loopback,
        *bars,
    ]  # fmt: skip


def _case(run: Run, log: Log, case: Case, stages: list[list[str]], ends: list[list[str]], bars: list[Part]) -> None:
    """Adds a case to the tables."""
    folders = throughput.Folders.make(run, case)
    found = []
    decodes: list[float] = []
    for round_index in range(run.num_rounds):
        found.append(_epoch(run, log, folders, case, round_index))
        if run.has_decode and not run.is_quick and round_index < DECODE_ROUNDS:
            decodes.append(_bare_decode(run, log, folders.source, case, round_index))
    limits = _limits(run, log, folders.source, case)
    decode = statistics.median(decodes) if decodes else 0.0
    best = max(decode, limits.rows_per_second(run.num_cores))
    stages += _stages(run, log, case, limits, found)
    rates = [measured.rows_per_second_of_all for measured in found]
    ratios = [rate / best for rate in rates]
    threads = run.num_cores
    ends.append(
        [
            case.title,
            *(f"{stage[threads]:.3f}" for stage in (limits.read, limits.decompress, limits.copy)),
            count(limits.rows_per_second(threads)),
            count(decode) if decode else "",
            count(statistics.median(rates)),
            f"{statistics.median(ratios):.2f}",
        ]
    )
    bars.append(Bar.of(f"{case.title}, shuffled: the better of a bare decode and the sum of limits", ratios, BAR))


def _epoch(run: Run, log: Log, folders: throughput.Folders, case: Case, round_index: int) -> Measurement:
    """Reads a shuffled epoch with Forebay."""
    order = {
        "case": case.name,
        "function": FAMILIES[OURS].variants[0].function,
        "num_workers": 0,
        "num_cores": run.num_cores,
        "tiny": str(folders.tiny),
        "source": str(folders.source),
        "folder": str(folders.whole),
        "free_bytes": throughput.free_bytes(run),
        "max_seconds": None,
    }
    key = f"{case.name}, epoch {round_index + 1}"
    found = log.once(key, lambda: run.program("readers.py", json.dumps(order))["measured"])
    measured = Measurement(**found)
    print(f"    {case.name}: {count(measured.rows_per_second_of_all)} rows/s", flush=True)
    return measured


def _bare_decode(run: Run, log: Log, folder: Path, case: Case, round_index: int) -> float:
    """Returns the rows per second of `benches/decode.rs` with the better of its batch sizes."""

    def decode() -> float:
        command = ["cargo", "bench", "--quiet", "--locked", "--bench", "decode", "--", str(folder), "--json"]
        command += ["--threads", str(run.num_cores), "--passes", "3"]
        lines = [json.loads(line) for line in run.output(command, ROOT).splitlines() if line.startswith("{")]
        return max(float(line["rows_per_second"]) for line in lines)

    rate: float = log.once(f"{case.name}, decode {round_index + 1}", decode)
    print(f"    {case.name}, bare decode: {count(rate)} rows/s", flush=True)
    return rate


def _probe(run: Run, log: Log, name: str, num_threads: int, *arguments: object) -> dict[str, float]:
    """Returns the result of a probe in `limit_probes` on some number of cores."""
    shown = " ".join(getattr(argument, "name", str(argument)[:40]) for argument in arguments)
    found: dict[str, float] = log.once(
        f"{name}, {num_threads} threads, {shown}",
        lambda: run.program("limit_probes.py", name, num_threads, *arguments, num_cores=num_threads),
    )
    return found


def _limits(run: Run, log: Log, folder: Path, case: Case) -> Limits:
    threads = {1, run.num_cores}
    read = {n: _probe(run, log, "read", n, folder) for n in threads}
    codec = {n: _probe(run, log, "decompress", n, folder, ",".join(case.columns)) for n in threads}
    copied = {n: _probe(run, log, "copy", n) for n in threads}
    num_rows = throughput.num_rows(folder)
    return Limits(
        num_rows=num_rows,
        file_bytes=read[1]["bytes"],
        row_bytes=case.row_bytes,
        read={n: found["seconds"] for n, found in read.items()},
        # Without a codec nothing is decompressed; the time of the few calls made is not counted.
        decompress={n: found["seconds"] if found["bytes"] else 0.0 for n, found in codec.items()},
        copy={n: num_rows * case.row_bytes / _rate(found) for n, found in copied.items()},
    )


def _rate(found: dict[str, float]) -> float:
    return found["bytes"] / found["seconds"]


def _stages(run: Run, log: Log, case: Case, limits: Limits, found: list[Measurement]) -> list[list[str]]:
    """Returns one row per stage."""

    def reached(name: str, bytes_of: float) -> float:
        return statistics.median(bytes_of * one.rows / limits.num_rows / one.stats[name] for one in found)

    def line(stage: str, limit: str, most: float, ours: float) -> list[str]:
        return [case.title, stage, limit, f"{most / GIGA:.2f}", f"{ours / GIGA:.2f}", f"{ours / most:.2f}"]

    decoded = limits.num_bytes
    least = limits.decompress[1] + limits.copy[1]
    calls = log.once("hand-over", lambda: run.program("limit_probes.py", "hand-over", 1, num_cores=1))
    handed = log.once(f"{case.name}, hand-over", lambda: _hand_over(run, case))
    most = calls["calls"] / calls["seconds"]
    ours = handed["tensors"] / handed["seconds"]
    return [
        line("read", "page cache", limits.file_bytes / limits.read[1], reached("seconds_fetching", limits.file_bytes)),
        line("decode", "decompress, copy", decoded / least, reached("seconds_decoding", decoded)),
        line("gather", "copy", decoded / limits.copy[1], reached("seconds_gathering", decoded)),
        [case.title, "hand over", "a tensor by DLPack", count(most), count(ours), f"{ours / most:.2f}"],
    ]


def _hand_over(run: Run, case: Case) -> dict[str, Any]:
    """Returns how many tensors the consumer took, and the seconds it spent on that without waiting."""
    found: dict[str, Any] = run.program("probes.py", "hand-over", throughput.Folders.make(run, case).source, case.name)
    return found


@dataclass(frozen=True)
class Received:
    """Bytes per second over the loopback interface."""

    one: float
    many: float
    ours: float


def _loopback(run: Run, log: Log) -> Table:
    """Compares the rates of bare sockets and of Forebay from a store on this machine."""
    folder = throughput.Folders.make(run, CASES[LOOPBACK]).source
    keys = [f"/{BUCKET}/{path.name}" for path in sorted(folder.glob("*.parquet"))]

    def received(*, has_tls: bool) -> dict[str, float]:
        with SlowStore(folder, 0, has_tls=has_tls) as store:
            rates = []
            for connections in (1, CONNECTIONS):
                arguments = ("limit_probes.py", "receive", connections, store.endpoint, *keys)
                rates.append(_rate(run.program(*arguments)))
            ours = run.program("probes.py", "from-store", store.endpoint, LOOPBACK)
        return asdict(Received(rates[0], rates[1], _rate(ours)))

    rows = []
    for name, has_tls in (("HTTP", False), ("HTTPS", True)):
        found = Received(**log.once(name, partial(received, has_tls=has_tls)))
        best = max(found.one, found.many)
        rates = [f"{rate / GIGA:.2f}" for rate in (found.one, found.many, found.ours)]
        rows.append([name, *rates, f"{found.ours / best:.2f}"])
    header = ["GB/s", "one connection", f"{CONNECTIONS} connections", "Forebay, an epoch", "Forebay : the better"]
    return Table("A store on the loopback interface", header, rows)
