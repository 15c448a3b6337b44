"""Measures Forebay beside other readers, and writes `docs/benchmarks.md` if requested.

Every number is measured in this run, on this machine, with objects in the page cache.

    python benches/python/run.py                      everything
    python benches/python/run.py --only tokens text   some cases
    python benches/python/run.py --readers pyarrow    Forebay and one rival
    python benches/python/run.py --quick              little data and one round, to check that everything works
    python benches/python/run.py --resume             continues a stopped run
    python benches/python/run.py --report             measures nothing, shows existing results
    python benches/python/run.py --write-docs         writes the page, with the results of this build
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import data
import harness
import hub_speed
import limits
import mapping
import memory
import process
import report
import scan
import shaping
import shuffle
import throughput
from cases import CASES as COMPARISONS
from harness import ROOT, FailedError, Run
from published import Published
from results import Results

from forebay import _lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from report import Part
    from results import Log

    Case = Callable[[Run, Log], list[Part]]

PAGE = ROOT / "docs" / "benchmarks.md"

PACKAGES = {
    "forebay": "forebay",
    "datafusion": "datafusion",
    "datasets": "datasets",
    "deeplake": "deeplake",
    "duckdb": "duckdb",
    "lance": "pylance",
    "lancedb": "lancedb",
    "litdata": "litdata",
    "matplotlib": "matplotlib",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "torch": "torch",
    "torchvision": "torchvision",
    "webdataset": "webdataset",
}
"""Module to the package that holds it."""

CASES: dict[str, Case] = {
    **{name: partial(throughput.measure, name=name) for name in COMPARISONS},
    "limits": limits.measure,
    "shuffle": shuffle.measure,
    "memory": memory.measure,
    "process": process.measure,
    "scan": scan.measure,
    "hub": hub_speed.measure,
    "map": mapping.measure_map,
    "pinned": mapping.measure_pinned,
    "training": mapping.measure_training,
    "packing": shaping.measure_packing,
    "images": shaping.measure_images,
}


def main() -> None:
    """Runs the benchmarks."""
    parser = _parser()
    arguments = parser.parse_args()
    # So that the processes it started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        parser.exit(1, f"not installed: {', '.join(missing)}; `make bench` installs what is measured\n")
    num_rounds = 1 if arguments.quick else arguments.rounds
    folder = arguments.data.resolve()
    has_decode = not arguments.no_decode
    run = Run(folder, num_rounds, arguments.cores, arguments.quick, has_decode, tuple(arguments.readers))
    # Partial results must not replace complete ones.
    kind = "-quick" if run.is_quick else "-some" if run.readers else ""
    results = Results(folder / f"results{kind}", _settings(run))
    load = os.getloadavg()[0]
    if load > 0.3 * run.num_cores:
        print(f"the machine is busy, load {load:.1f}: expect noise", flush=True)
    try:
        if not arguments.report:
            for name in arguments.only or _default_cases(is_quick=run.is_quick):
                _measure(run, results, name, is_resumed=arguments.resume)
        print(f"\n{_page(results)}")
        if arguments.write_docs:
            _write(results)
    except FailedError as error:
        parser.exit(1, f"{error}\n")
    if run.failures:
        parser.exit(1, "\n".join(["not everything could be measured:", *run.failures, ""]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data.default_folder(), help="folder of data and results")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each reader; the median is reported")
    parser.add_argument("--cores", type=int, default=len(harness.cpus()), help="cores that every reader may use")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument(
        "--readers", nargs="+", default=[], metavar="PART", help="parts of rivals' names: only these, and Forebay"
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round, fewer variants")
    parser.add_argument("--no-decode", action="store_true", help="leave out the bare decode, which cargo builds")
    parser.add_argument("--resume", action="store_true", help="keep the measurements of a run with the same settings")
    parser.add_argument("--report", action="store_true", help="measure nothing, show existing results")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write docs/benchmarks.md, replacing the cases that were measured with this build",
    )
    return parser


def _default_cases(*, is_quick: bool) -> list[str]:
    """Returns the default cases; a quick run leaves out scans, whose data takes minutes to write."""
    return [name for name in CASES if name != "scan" or not is_quick]


def _measure(run: Run, results: Results, name: str, *, is_resumed: bool) -> None:
    """Measures a case, unless the resumed run has done so."""
    log = results.begin(name, is_resumed=is_resumed)
    if results.is_done(name):
        print(f"{name}: done before", flush=True)
        return
    print(f"{name}:", flush=True)
    num_before = len(run.failures)
    parts = CASES[name](run, log)
    results.finish(name, parts, run.failures[num_before:])


def _settings(run: Run) -> dict[str, object]:
    """Returns the settings that measurements depend on."""
    return {
        **report.hardware(),
        "cores": run.num_cores,
        "rounds": run.num_rounds,
        "size": "quick" if run.is_quick else "full",
        **({"readers": ", ".join(run.readers)} if run.readers else {}),
        **report.versions(list(PACKAGES.values())),
        "extension": harness.digest(Path(str(_lib.__file__))),
    }


def _page(results: Results) -> str:
    """Returns the page with all cases that are done; it names the others."""
    parts = [part for name in CASES for part in results.parts(name)]
    missing = [name for name in CASES if not results.is_done(name)]
    return report.page(parts, [report.machine(results.settings)], missing)


def _has_ours(results: Results, name: str) -> bool:
    """Whether Forebay was measured in a case, even if a rival failed."""
    return not any("forebay" in what for what, _ in results.failures(name))


def _write(results: Results) -> None:
    """Writes the page.

    Raises:
        FailedError: The results are of a quick run or lack some rivals, or nothing was measured with this build.
    """
    if results.settings["size"] != "full":
        raise FailedError("the page is not written from --quick: its numbers mean nothing")
    if "readers" in results.settings:
        raise FailedError("the page is not written with --readers: it is of all")
    measured = [name for name in CASES if results.parts(name) and results.is_of_this(name) and _has_ours(results, name)]
    if not measured:
        raise FailedError("nothing was measured with this build and these settings")
    published = Published()
    published.take(results, measured)
    PAGE.write_text(published.page(list(CASES)))
    print(f"wrote {PAGE.relative_to(ROOT)}, new in it: {', '.join(measured)}", file=sys.stderr)


if __name__ == "__main__":
    main()
