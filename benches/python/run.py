"""Measures Forebay beside other readers and writes `docs/benchmarks.md`.

Every number is seen in this run, on this machine, from objects that lie in the page cache.

    python benches/python/run.py [--data FOLDER] [--rounds N] [--cores K] [--only tokens memory process scan] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import data
import harness
import report
import scan
import tokens
from harness import MIB, ROOT, FailedError, Run
from report import Bar, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    Parts = list[Table | Bar]

PAGE = ROOT / "docs" / "benchmarks.md"

PACKAGES = {
    "forebay": "forebay",
    "datafusion": "datafusion",
    "datasets": "datasets",
    "duckdb": "duckdb",
    "lance": "pylance",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "torch": "torch",
}
"""Module to the package that holds it."""

REPEATS = 4
"""Times that the token objects are delivered in a pass, so that filling the windows is not most of it."""

SLOW_ROWS = 32_768
"""Rows after which the readers that need minutes for a pass are stopped."""

MEMORY_LIMITS = (256 * MIB, 1024 * MIB)

ROW_GROUPS = ("tokens", "images", "wide")
"""Kinds of scripts/large_row_groups.py."""

ROW_GROUP_LIMIT = 256 * MIB


def measure_tokens(run: Run) -> Parts:
    """Tokens to torch, beside the rivals and the bare decode."""
    source = data.make("tokens", run.data)
    folder = data.repeated("tokens", run.data, REPEATS)
    tokens.convert_to_lance(folder)
    limits = {name: SLOW_ROWS if name.startswith("datasets") else None for name in tokens.READERS}
    decodes: dict[str, list[float]] = {}
    seen = run.compare("tokens.py", limits, folder, each_round=lambda: bare_decode(run, source, decodes))
    decode = {name: statistics.median(rates) for name, rates in decodes.items()}
    after = {name: harness.median(found, "rows_per_second") for name, found in seen.items()}
    whole = {name: harness.median(found, "rows_per_second_of_all") for name, found in seen.items()}
    rows = [[f"parquet-rs, bare decode, {name}", "", count(rate), *[""] * 3] for name, rate in decode.items()]
    rows += [
        [
            name,
            count(after[name]),
            count(whole[name]) if limits[name] is None else "",
            f"{statistics.median(result.cpu_seconds / result.rows for result in found) * 1e6:.0f}",
            f"{harness.median(found, 'first_batch_seconds'):.2f}",
            mib(harness.median(found, "peak_bytes")),
        ]
        for name, found in seen.items()
    ]
    shuffled = whole["forebay, shuffled"]
    by_hand = max(rate for name, rate in whole.items() if name.startswith("pyarrow"))
    rival = max(rate for name, rate in after.items() if name.startswith("datasets"))
    header = [
        "reader",
        "rows/s after the first batch",
        "rows/s of the pass",
        "CPU, µs a row",
        "first batch, s",
        "memory",
    ]
    return [
        Table("Tokens to torch", header, rows),
        Bar("tokens, shuffled: a bare parquet-rs decode", shuffled / max(decode.values()), 0.7),
        Bar("tokens, shuffled: `datasets`, shuffled, through DataLoader", shuffled / rival, 35),
        Bar("tokens, shuffled: pyarrow by hand, unshuffled", shuffled / by_hand, 0.6),
        Bar("tokens, shuffled: our own unshuffled", shuffled / whole["forebay"], 0.8),
    ]


def bare_decode(run: Run, folder: Path, decodes: dict[str, list[float]]) -> None:
    """Adds the rows per second of `benches/decode.rs`, by size of its batches."""
    command = ["cargo", "bench", "--quiet", "--locked", "--bench", "decode", "--", str(folder), "--json"]
    command += ["--threads", str(run.num_cores), "--passes", "3"]
    for line in run.output(command, ROOT).splitlines():
        if line.startswith("{"):
            seen = json.loads(line)
            decodes.setdefault(seen["name"], []).append(seen["rows_per_second"])
            print(f"    bare decode, {seen['name']}: {seen['rows_per_second']:,.0f} rows/s", flush=True)


def measure_memory(run: Run) -> Parts:
    """Peak memory over an epoch, with and without a page index."""
    torch_bytes = run.program("probes.py", "memory-of-torch")["peak_bytes"]
    rows = [["interpreter and torch", "", mib(torch_bytes), ""]]
    bars = []
    for name in ("tokens", "tokens-indexed"):
        folder = data.repeated(name, run.data, REPEATS)
        opened = run.program("probes.py", "memory-opened", folder)["peak_bytes"]
        rows.append([f"{name}, opened", "", mib(opened), ""])
        for limit in MEMORY_LIMITS:
            # One epoch is a thousand batches: its peak does not need repeating, and a short memory makes it long.
            peak = run.program("probes.py", "memory-epoch", folder, limit)["peak_bytes"]
            ratio = (peak - opened) / limit
            print(f"  {name} at {mib(limit)}: {mib(peak)}, {ratio:.2f} of the limit", flush=True)
            rows.append([f"{name}, an epoch", mib(limit), mib(peak), f"{ratio:.2f}"])
            bars.append(Bar(f"memory, {name}, limit of {mib(limit)}", ratio, 1.2, at_most=True))
    for kind in ROW_GROUPS:
        path = data.large_row_group(kind, run.data)
        opened = run.program("probes.py", "memory-row-group", path, 0)["peak_bytes"]
        peak = run.program("probes.py", "memory-row-group", path, ROW_GROUP_LIMIT)["peak_bytes"]
        ratio = (peak - opened) / ROW_GROUP_LIMIT
        name = f"a row group of 2 GiB, {kind}"
        print(f"  {name} at {mib(ROW_GROUP_LIMIT)}: {mib(peak)}, {ratio:.2f} of the limit", flush=True)
        rows += [[f"{name}, opened", "", mib(opened), ""], [f"{name}", mib(ROW_GROUP_LIMIT), mib(peak), f"{ratio:.2f}"]]
        bars.append(Bar(f"memory, {name}, limit of {mib(ROW_GROUP_LIMIT)}", ratio, 1.2, at_most=True))
    return [Table("Peak memory", ["", "memory limit", "peak", "beyond opened, of the limit"], rows), *bars]


def measure_process(run: Run) -> Parts:
    """How long the import and the exit take."""
    bare = interpreter_seconds(run, "pass")
    ours = interpreter_seconds(run, "import forebay") - bare
    folder = data.make("tokens", run.data)
    num_rounds = max(run.num_rounds, 5)
    alone = statistics.median(exit_seconds(run, "exit-torch") for _ in range(num_rounds))
    beyond = statistics.median(exit_seconds(run, "exit-forebay", folder) for _ in range(num_rounds)) - alone
    rows = [
        ["interpreter alone", milliseconds(bare)],
        ["`import forebay`, beyond it", milliseconds(ours)],
        ["exit with torch imported", milliseconds(alone)],
        ["exit in mid-epoch, beyond it", milliseconds(beyond)],
    ]
    return [
        Table("Import and exit", ["", "median"], rows),
        Bar("`import forebay` without torch, ms", ours * 1e3, 100, at_most=True),
        Bar("exit in mid-epoch, ms", beyond * 1e3, 100, at_most=True),
    ]


def interpreter_seconds(run: Run, code: str) -> float:
    """Returns the median of the seconds of ten interpreters, after one to warm the page cache."""
    times = []
    for _ in range(11):
        started = time.perf_counter()
        run.output([sys.executable, "-c", code], ROOT)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def exit_seconds(run: Run, *arguments: object) -> float:
    """Returns the seconds from a program's last statement until it is gone."""
    ended = run.program("probes.py", *arguments)["ended"]
    return time.time() - float(ended)


def count(value: float) -> str:
    """Returns a rate without figures that mean nothing."""
    return f"{round(value, -2):,.0f}"


def mib(value: float) -> str:
    """Returns bytes as MiB."""
    return f"{value / MIB:,.0f} MiB"


def milliseconds(seconds: float) -> str:
    """Returns seconds as milliseconds."""
    return f"{seconds * 1e3:.0f} ms"


CASES: dict[str, Callable[[Run], Parts]] = {
    "tokens": measure_tokens,
    "memory": measure_memory,
    "process": measure_process,
    "scan": scan.measure,
}


def main() -> None:
    """Runs the benchmarks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=data.default_folder(), help="where the data sets are, or will be")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each reader; the median counts")
    parser.add_argument("--cores", type=int, default=len(harness.cpus()), help="cores that every reader may use")
    parser.add_argument("--only", nargs="+", choices=CASES, help="some cases; the page is written by a run of all")
    parser.add_argument("--quick", action="store_true", help="few cells of the scans, to see that they work")
    arguments = parser.parse_args()
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        parser.exit(1, f"not installed: {', '.join(missing)}; `make bench` installs what is measured\n")
    run = Run(arguments.data.resolve(), arguments.rounds, arguments.cores, arguments.quick)
    load = os.getloadavg()[0]
    if load > 0.3 * run.num_cores:
        print(f"the machine is busy, load {load:.1f}: expect noise", flush=True)
    parts: Parts = []
    try:
        for name in arguments.only or CASES:
            print(f"{name}:", flush=True)
            parts += CASES[name](run)
    except FailedError as error:
        parser.exit(1, f"{error}\n")
    page = report.page(parts, report.machine(run, list(PACKAGES.values())))
    print(f"\n{page}")
    if arguments.only is None and not arguments.quick:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
