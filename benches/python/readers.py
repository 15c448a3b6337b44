"""The readers of the throughput benchmarks. `python readers.py JSON` measures one in its own process.

The tables show families; variants are ways to use one. The first round measures all variants, the others only the best.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measuring
from cases import CASES, OURS, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cases import Case

MOSAICML_ENVIRONMENT = ".venv-mosaicml"


@dataclass(frozen=True)
class Variant:
    """One way to use a reader."""

    name: str
    function: str
    """`module.function`, imported only in the process that measures it."""
    num_workers: int = 0
    forms: tuple[str, ...] = ("tensor", "strings", "bytes", "masked")
    """Forms of batches that it can deliver."""


@dataclass(frozen=True)
class Family:
    """A reader: its variants and what it needs."""

    variants: tuple[Variant, ...]
    conversion: str | None = None
    """The kind of conversion (`convert.py`) that it reads."""
    reads_repeated: bool = True
    """Whether it reads the objects of a whole pass; if not, it reads those of the source once."""
    is_loader: bool = False
    """Whether it is stopped after some seconds instead of being read to the end."""
    environment: str | None = None
    """Folder name of its own virtual environment."""
    num_cores: int | None = None
    """Number of cores that it gets, if not those of the run."""

    def variants_for(self, case: Case) -> list[Variant]:
        """Returns the variants that can deliver the form of a case."""
        return [variant for variant in self.variants if case.form in variant.forms]


def _workers(function: str) -> tuple[Variant, ...]:
    """Returns variants of a loader without and with worker processes."""
    return (Variant("no workers", function), Variant("2 workers", function, num_workers=2))


def _loader(function: str, conversion: str, environment: str | None = None) -> Family:
    """Returns a loader that reads a converted copy."""
    return Family(_workers(function), conversion, reads_repeated=False, is_loader=True, environment=environment)


FAMILIES = {
    "forebay, shuffled": Family((Variant("", "by_hand.forebay_shuffled"),)),
    "forebay": Family((Variant("", "by_hand.forebay_unshuffled"),)),
    "forebay, shuffled, one core": Family((Variant("", "by_hand.forebay_shuffled"),), num_cores=1),
    "pyarrow": Family(
        (
            Variant("batches", "by_hand.pyarrow_batches"),
            Variant("scan", "by_hand.pyarrow_scan"),
            Variant("threads", "by_hand.pyarrow_threads"),
        )
    ),
    "polars": Family((Variant("batches", "by_hand.polars_batches"), Variant("objects", "by_hand.polars_files"))),
    "duckdb": Family(
        (Variant("Arrow", "by_hand.duckdb_arrow"), Variant("rows", "by_hand.duckdb_rows", forms=("strings",)))
    ),
    "datafusion": Family((Variant("", "by_hand.datafusion_scan"),)),
    "datasets, arrow mode": Family((Variant("", "by_hand.datasets_arrow"),)),
    "datasets, shuffled": Family(_workers("loaders.datasets_shuffled"), is_loader=True),
    "litdata, Parquet": Family(
        (Variant("", "loaders.litdata_parquet"),), "litdata-index", reads_repeated=False, is_loader=True
    ),
    "lance (converted)": Family(
        (Variant("scan", "by_hand.lance_batches"), Variant("LanceDataset", "by_hand.lance_dataset")), "lance"
    ),
    "lancedb.streaming (converted)": Family(
        (Variant("", "loaders.lancedb_streaming"),), "lance", is_loader=True
    ),
    "litdata (converted)": _loader("loaders.litdata_optimised", "litdata"),
    "mosaicml (converted)": _loader("loaders.mosaicml", "mds", MOSAICML_ENVIRONMENT),
    "webdataset (converted)": _loader("loaders.webdataset", "wds"),
    "deeplake (converted)": _loader("loaders.deeplake", "deeplake"),
}  # fmt: skip


def families(case: Case) -> dict[str, Family]:
    """Returns the readers of a case, ours first."""
    return {name: FAMILIES[name] for name in (*OURS, *case.rivals)}


def load(function: str) -> Callable[[Task], Iterable[dict[str, Any]]]:
    """Returns a reader by `module.function`."""
    module, _, name = function.partition(".")
    found: Callable[[Task], Iterable[dict[str, Any]]] = getattr(importlib.import_module(module), name)
    return found


def main(order: dict[str, Any]) -> None:
    """Warms up a reader on few rows, measures it on many, and prints both results."""
    if find_spec("pandas") is not None:
        # Arrow's scalars and sums import it; some readers have already done so.
        importlib.import_module("pandas")
    case = CASES[order["case"]]
    reader = load(order["function"])

    def task(folder: str, source: str) -> Task:
        return Task(case, Path(folder), Path(source), order["num_cores"], order["num_workers"])

    tiny = measuring.check(reader, task(order["tiny"], order["tiny"]))
    measuring.take_and_give_back(order["free_bytes"])
    found = measuring.measure(reader, task(order["folder"], order["source"]), order["max_seconds"])
    print(json.dumps({"checked": asdict(tiny), "measured": asdict(found)}), flush=True)
    # Some readers leave threads and workers that outlive or abort the interpreter; the measurement is complete.
    measuring.end_workers()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
