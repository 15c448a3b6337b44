"""Measures shuffled datasets from a Hub into torch, beside the two other loaders that stream the same Parquet.

The Hub is the tests' Hub on the loopback interface, and the file URLs that it returns lead to nginx (`slow_store`), so
that neither limits the readers. All answers of both have the same delay. Readers take turns, round by round; each runs
in its own process, and must first deliver the rows of a tiny repository correctly.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import data
from cases import CASES
from harness import ROOT, FailedError
from measuring import Measurement
from report import Bar, Table, count, progress
from slow_store import BUCKET, SlowStore
from throughput import LOADER_SECONDS, QUICK_SECONDS, free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness import Run
    from report import Part
    from results import Log

DELAYS_MS = (0, 50)
OURS = "forebay"
READERS = {
    OURS: ("forebay", 0),
    "datasets": ("datasets_shuffled", 0),
    "datasets, 2 workers": ("datasets_shuffled", 2),
    "litdata": ("litdata_parquet", 0),
}
"""The function in `hub_readers`, and its number of worker processes."""

BARS = {"tokens": {"datasets": 50, "litdata": 3}, "text": {"datasets": 10, "litdata": 3}}
"""Required speed of Forebay relative to the best variant of each rival."""


def _hub_of(store: SlowStore, repositories: dict[str, list[Path]], delay_seconds: float) -> Any:
    """Returns the tests' Hub, with its large files in the store."""
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    tested = importlib.import_module("hub")
    # Bodies cached for an earlier Hub have the same size, so every lookup would have to compare all their bytes.
    tested.sha256_of.cache_clear()
    hub = tested.Hub()
    hub.latency = delay_seconds
    objects = {}
    # Some are the same file under another name.
    bodies: dict[int, bytes] = {}
    for name, paths in repositories.items():
        files = {}
        for index, path in enumerate(paths):
            body = bodies.get(path.stat().st_ino) or bodies.setdefault(path.stat().st_ino, path.read_bytes())
            files[f"data/train-{index:05}-of-{len(paths):05}.parquet"] = body
            objects[tested.sha256_of(body)] = path.name
        hub.create(name, files)

    def signed(_repo: object, body: bytes) -> str:
        expires = int(time.time() + hub.url_lifetime)
        return f"{store.endpoint}/{BUCKET}/{objects[tested.sha256_of(body)]}?Expires={expires}"

    hub.signed = signed
    return hub


@dataclass
class Seen:
    """The measurements of one reader at one latency."""

    found: list[Measurement] = field(default_factory=list)
    requests: str = ""
    """Requests to the Hub: to its API, and to resolve files."""

    @property
    def rates(self) -> list[float]:
        """Rows per second of a whole pass, or after the first batch if the reader was stopped."""
        return [one.rows_per_second_of_all if one.is_whole else one.rows_per_second for one in self.found]

    @property
    def rate(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rates)

    @property
    def first_batch(self) -> float:
        """Median of the seconds from the call to the first batch."""
        return statistics.median(measured.first_batch_seconds for measured in self.found)


def measure(run: Run, log: Log) -> list[Part]:
    """Measures tokens and text."""
    parts: list[Part] = []
    for name, bars in BARS.items():
        rows, kept = [], []
        for delay_ms in DELAYS_MS:
            seen = _measure(run, log, name, delay_ms)
            rows += [_row(delay_ms, reader, one) for reader, one in seen.items()]
            kept += [_bar(name, delay_ms, rival, least, seen) for rival, least in bars.items()]
        header = ["first byte after", "reader", "rows/s", "first batch, s", "Hub requests"]
        parts += [Table(f"From a Hub: {CASES[name].title.lower()}", header, rows), *kept]
    return parts


def _row(delay_ms: int, reader: str, seen: Seen) -> list[str]:
    return [f"{delay_ms} ms", reader, count(seen.rate), f"{seen.first_batch:.2f}", seen.requests]


def _bar(name: str, delay_ms: int, rival: str, least: float, seen: dict[str, Seen]) -> Bar:
    rivals = [one for reader, one in seen.items() if reader.startswith(rival)]
    best = max((one.rate for one in rivals), default=float("nan"))
    ratios = [rate / best for rate in seen[OURS].rates]
    return Bar.of(f"{name} from a Hub, {delay_ms} ms : {rival}", ratios, least)


def _measure(run: Run, log: Log, name: str, delay_ms: int) -> dict[str, Seen]:
    seen = {reader: Seen() for reader in READERS}
    bar = progress(f"{name}, {delay_ms} ms", len(seen) * run.num_rounds)
    with _hub(run, name, delay_ms / 1000) as hub:
        for round_index in range(run.num_rounds):
            for reader, one in list(seen.items()):
                bar.update()
                key = f"{delay_ms} ms, {name}, {reader}, round {round_index + 1}"
                try:
                    answer = log.once(key, partial(_once, run, hub, name, reader))
                except FailedError as error:
                    if reader == OURS:
                        raise
                    run.note(f"{name} from a Hub, {reader}", error)
                    del seen[reader]
                    continue
                one.found.append(Measurement(**answer["measured"]))
                one.requests = answer["requests"]
    bar.close()
    for reader, one in seen.items():
        told = f"{count(one.rate)} rows/s, first batch {one.first_batch:.2f} s"
        print(f"    {delay_ms} ms, {name}, {reader}: {told}", flush=True)
    return seen


@contextmanager
def _hub(run: Run, name: str, delay_seconds: float) -> Iterator[Any]:
    """Serves a repository with the rows of a case, and a tiny repository."""
    folder = run.data / f"hub-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    repositories = {}
    sizes: dict[str, tuple[data.Size, int]] = {
        "tiny": ("tiny", 1),
        "whole": ("quick", 1) if run.is_quick else ("full", CASES[name].repeats),
    }
    for label, (size, repeats) in sizes.items():
        paths = []
        for path in sorted(data.repeated(name, run.data, repeats, size).glob("*.parquet")):
            link = folder / f"{size}-{path.name}"
            if not (link.exists() and link.samefile(path)):
                link.unlink(missing_ok=True)
                link.hardlink_to(path)
            paths.append(link)
        repositories[f"bench/{name}-{label}"] = paths
    with SlowStore(folder, delay_seconds) as store, _hub_of(store, repositories, delay_seconds) as hub:
        yield hub


def _once(run: Run, hub: Any, name: str, reader: str) -> dict[str, Any]:
    function, num_workers = READERS[reader]
    data.into_page_cache(data.make(name, run.data, "quick" if run.is_quick else "full"))
    with tempfile.TemporaryDirectory(prefix="forebay-hub-") as home:
        hub.log.clear()
        order = {
            "function": function,
            "case": name,
            "num_workers": num_workers,
            "num_cores": run.num_cores,
            "max_seconds": None if reader == OURS else QUICK_SECONDS if run.is_quick else LOADER_SECONDS,
            "free_bytes": free_bytes(run),
            "environment": hub.environment(Path(home)) | {"XDG_CACHE_HOME": home},
        }
        answer = run.program("hub_readers.py", json.dumps(order))
        asked = f"{hub.count('api', 'whole')} + {hub.count('resolve', 'whole')}"
    expected = run.program("expected.py", name, data.make(name, run.data, "tiny"))
    if answer["checked"] != expected:
        raise FailedError(f"{reader}: other rows than those in the repository: {answer['checked']}")
    return {"measured": answer["measured"], "requests": asked}
