"""Measures how long import and exit take."""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

import data
from harness import ROOT
from report import Bar, Table

if TYPE_CHECKING:
    from harness import Run
    from report import Part
    from results import Log


def measure(run: Run, log: Log) -> list[Part]:
    """Times the start and exit of interpreters."""
    folder = data.make("tokens", run.data, "quick" if run.is_quick else "full")
    bare = log.once("interpreter", lambda: _interpreter_seconds(run, "pass"))
    ours = log.once("import", lambda: _interpreter_seconds(run, "import forebay")) - bare
    num_rounds = 1 if run.is_quick else max(run.num_rounds, 5)
    alone = log.once("exit-torch", lambda: _exit_seconds(run, num_rounds, "exit-torch"))
    beyond = log.once("exit-forebay", lambda: _exit_seconds(run, num_rounds, "exit-forebay", folder)) - alone
    rows = [
        ["interpreter alone", _milliseconds(bare)],
        ["`import forebay`, beyond it", _milliseconds(ours)],
        ["exit with torch imported", _milliseconds(alone)],
        ["exit in mid-epoch, beyond it", _milliseconds(beyond)],
    ]
    return [
        Table("Import and exit", ["", "median"], rows),
        Bar("`import forebay` without torch, ms", ours * 1e3, 100, at_most=True),
        Bar("exit in mid-epoch, ms", beyond * 1e3, 100, at_most=True),
    ]


def _interpreter_seconds(run: Run, code: str) -> float:
    """Returns the median seconds of ten interpreters, after one to warm the page cache."""
    times = []
    for _ in range(11):
        started = time.perf_counter()
        run.output([sys.executable, "-c", code], ROOT)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _exit_seconds(run: Run, num_rounds: int, *arguments: object) -> float:
    """Returns the median seconds from a program's last statement until its process has ended."""
    times = []
    for _ in range(num_rounds):
        ended = run.program("probes.py", *arguments)["ended"]
        times.append(time.time() - float(ended))
    return statistics.median(times)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
