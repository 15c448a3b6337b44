"""Measures functions on batches in worker processes, and training with steps of a fixed time on a slow store.

`map`: a function that computes or waits for a millisecond, on batches of 32 rows of tokens, by `Dataset.map` in one and
two processes, and by torch's DataLoader with two workers over the same stream. If the function computes, the loop's own
work competes for the cores; if it waits, only the cost of passing batches remains.

`pinned`: the same batches to pinned and to plain memory, which are the same on a machine without an accelerator.

`training`: steps of 20 ms on tokens from a store whose first byte takes 50 ms, and the share of time after the first
batch that the loop waits. For readers of other formats the rows are converted before; they start with empty caches.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import convert
import data
import harness
from harness import FailedError
from readers import MOSAICML_ENVIRONMENT
from report import Bar, Table
from slow_store import BUCKET, SlowStore

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Run
    from report import Part
    from results import Log

BATCH_SIZE = 32
DELAY_SECONDS = 0.05
PINNED_EPOCHS = 10
"""Epochs per round: one takes a third of a second and varies by a third."""
MAP_LOADERS = {"map, 1 process": ("mapped", 1), "map, 2 processes": ("mapped", 2), "DataLoader": ("torch_workers", 2)}


@dataclass(frozen=True)
class Loader:
    """A loader that feeds a training loop."""

    function: str
    num_workers: int = 0
    kind: str | None = None
    """The format that it reads if not Parquet; see `convert.py`."""
    environment: str | None = None


TRAINING = {
    "forebay": Loader("forebay"),
    "forebay, map over 2 processes": Loader("mapped", 2),
    "datasets": Loader("datasets_streaming"),
    "datasets, 2 workers": Loader("datasets_streaming", 2),
    "litdata (converted)": Loader("litdata", 0, "litdata"),
    "litdata (converted), 2 workers": Loader("litdata", 2, "litdata"),
    "mosaicml (converted)": Loader("mosaicml", 0, "mds", MOSAICML_ENVIRONMENT),
    "mosaicml (converted), 2 workers": Loader("mosaicml", 2, "mds", MOSAICML_ENVIRONMENT),
}


def measure_map(run: Run, log: Log) -> list[Part]:
    """Measures `map` beside DataLoader."""
    folder = data.make("tokens-plain", run.data, "quick")
    parts: list[Part] = []
    for function in ("compute", "wait"):
        seen: dict[str, list[dict[str, float]]] = {}
        # In turn, so that other load on the machine affects all of them.
        for index in range(run.num_rounds):
            for name, (loader, num_workers) in MAP_LOADERS.items():
                order = _order("rate", loader, num_workers, function) | {"source": str(folder)}
                found = log.once(f"{function}, {name}, round {index + 1}", partial(_probe, run, order))
                seen.setdefault(name, []).append(found)
        rows = [[name, f"{_rate(found):.0f}", _cpu(found)] for name, found in seen.items()]
        one, two, torchs = (seen[name] for name in MAP_LOADERS)
        parts += [
            Table(
                f"`map` of a millisecond: {function}", ["", "batches/s", "CPU of the loop's process, µs/batch"], rows
            ),
            Bar.of(f"map ({function}), 2 processes : 1", _ratios(two, one), 1.8),
            Bar.of(f"map ({function}), 2 processes : DataLoader, 2 workers", _ratios(two, torchs), 1.5),
        ]
    return parts


def measure_pinned(run: Run, log: Log) -> list[Part]:
    """Measures the cost of batches in pinned memory."""
    size: data.Size = "quick" if run.is_quick else "full"
    folder = data.make("tokens-plain", run.data, size)
    seen: dict[str, list[dict[str, float]]] = {"forebay": [], "pinned": []}
    for index in range(run.num_rounds):
        for loader, rounds in seen.items():
            order = _order("rate", loader, 0, "wait") | {"source": str(folder), "epochs": PINNED_EPOCHS}
            rounds.append(log.once(f"{loader}, round {index + 1}", partial(_probe, run, order)))
    plain, pinned = seen.values()
    names = ("plain memory", "`pin_memory=True`")
    rows = [[name, f"{_rate(found):.0f}", _cpu(found)] for name, found in zip(names, seen.values(), strict=True)]
    header = ["", "batches/s", "CPU of the loop's process, µs/batch"]
    # Smaller differences are noise.
    bar = Bar.of("batches in pinned memory : in plain memory", _ratios(pinned, plain), 0.95)
    return [Table("Pinned memory", header, rows), bar]


def measure_training(run: Run, log: Log) -> list[Part]:
    """Measures how long a training loop waits for data."""
    size: data.Size = "quick" if run.is_quick else "full"
    folder = data.make("tokens-indexed", run.data, size)
    rows, ours = [], float("nan")
    for name, loader in TRAINING.items():
        try:
            found = _trained(run, log, name, loader, folder)
        except FailedError as error:
            if loader.function == "forebay":
                raise
            run.note(f"training, {name}", error)
            continue
        share = statistics.median(one["waited"] / one["seconds"] for one in found)
        ours = share if name == "forebay" else ours
        rows.append([name, f"{share:.2%}", f"{_rate(found):.1f}"])
    header = ["", "waiting after the first batch", "steps/s"]
    return [
        Table("Training in steps of 20 ms, first byte after 50 ms", header, rows),
        Bar("waiting of a training loop, %", 100 * ours, 1, at_most=True),
    ]


def _trained(run: Run, log: Log, name: str, loader: Loader, folder: Path) -> list[dict[str, float]]:
    """Trains with a loader from a store that holds the rows in the loader's format."""
    if loader.kind is not None:
        run.program(
            "convert.py",
            loader.kind,
            folder,
            "tokens",
            environment=loader.environment,
            seconds=harness.SECONDS_OF_A_BUILD,
        )
        folder = convert.place(loader.kind, folder)
    with SlowStore(folder, DELAY_SECONDS) as store:
        order = _order("train", loader.function, loader.num_workers, "wait") | _places(store, folder)
        probe = partial(_probe, run, order, loader.environment)
        return [log.once(f"{name}, round {index + 1}", probe) for index in range(run.num_rounds)]


def _order(what: str, loader: str, num_workers: int, function: str) -> dict[str, Any]:
    common = {"batch_size": BATCH_SIZE, "columns": ["tokens"]}
    return common | {"what": what, "loader": loader, "num_workers": num_workers, "function": function}


def _places(store: SlowStore, folder: Any) -> dict[str, Any]:
    """Returns where the objects are: the store, its credentials, and the URLs of the Parquet objects."""
    options = {
        "aws_endpoint": store.endpoint,
        "aws_region": "us-east-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "aws_allow_http": "true",
    }
    urls = [f"{store.endpoint}/{BUCKET}/{path.name}" for path in sorted(folder.glob("*.parquet"))]
    return {"source": f"s3://{BUCKET}/", "storage_options": options, "urls": urls}


def _probe(run: Run, order: dict[str, Any], environment: str | None = None) -> Any:
    return run.program("mapping_probes.py", json.dumps(order), environment=environment)


def _rates(found: list[dict[str, float]]) -> list[float]:
    return [one["batches"] / one["seconds"] for one in found]


def _rate(found: list[dict[str, float]]) -> float:
    return statistics.median(_rates(found))


def _ratios(found: list[dict[str, float]], others: list[dict[str, float]]) -> list[float]:
    return [one / other for one, other in zip(_rates(found), _rates(others), strict=True)]


def _cpu(found: list[dict[str, float]]) -> str:
    return f"{statistics.median(one['cpu'] / one['batches'] for one in found) * 1e6:.0f}"
