"""Measures how well loaders mix sorted rows with equal memory: entropy, variance of batch means, loss of a small model.

The definitions are those of docs/order.md. *Entropy* is MosaicML's measure. *Variance* is the variance of a label's
batch means relative to batches drawn from all rows, for a label that rises through the dataset, one that repeats every
ten row groups, and one drawn per row group.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import data
import numpy as np
import shuffle_orders
import shuffle_training
from harness import ROOT, FailedError
from report import Bar, Picture, Table, progress
from shuffle_orders import BATCH_SIZE, GROUP_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Run
    from report import Part
    from results import Log

BUFFER_ROWS = 50_000
"""The memory of every loader whose memory can be set: a twentieth of the rows."""
QUICK_ROWS = 50_000
QUICK_BUFFER_ROWS = 2_500
NUM_SEEDS = 5
SMOOTHED = 9
DEVIATIONS = 2
PICTURE = ROOT / "docs" / "shuffle.svg"


@dataclass(frozen=True)
class Loader:
    """A loader and its settings."""

    order: str
    """The function in `shuffle_orders`."""
    buffer: int | None
    """Rows. None: as for equal memory. 0: it has no such setting, or uses its default."""
    held: str
    """Rows that it holds, as shown in the table."""
    seeds: int = 1
    environment: str | None = None


LOADERS = {
    "full shuffle": Loader("full", 0, "all", NUM_SEEDS),
    "forebay, page index (default)": Loader("forebay", 0, "4.6 %", NUM_SEEDS),
    "forebay, no page index (default)": Loader("forebay-unindexed", 0, "12.5 %", NUM_SEEDS),
    "mosaicml, py1e, equal memory": Loader("mosaicml", None, "5 %", NUM_SEEDS, ".venv-mosaicml"),
    "mosaicml, py1e (default)": Loader("mosaicml", 0, "all shards", 1, ".venv-mosaicml"),
    "datasets, reshard(), equal memory": Loader("datasets-resharded", None, "5 %"),
    "datasets (default)": Loader("datasets", 1000, "0.1 %"),
    "webdataset, all shards, equal memory": Loader("webdataset-all-shards", None, "5 %"),
    "webdataset (default)": Loader("webdataset", 1000, "0.1 %"),
    "litdata (default)": Loader("litdata", 0, "a chunk"),
    "lancedb.streaming (default)": Loader("lancedb", 0, "none: point reads"),
}
FULL = "full shuffle"
OURS = "forebay, page index (default)"
CHEAP = ("full", "forebay", "forebay-unindexed", "mosaicml", "webdataset", "webdataset-all-shards")
"""Orders that a quick run computes."""
TRAINED = (
    FULL,
    OURS,
    "mosaicml, py1e, equal memory",
    "datasets, reshard(), equal memory",
    "datasets (default)",
    "webdataset, all shards, equal memory",
    "webdataset (default)",
    "litdata (default)",
)
"""Loaders whose loss is plotted."""
FIELDS = ("entropy", "groups", "sorted", "periodic", "per_group")


def measure(run: Run, log: Log) -> list[Part]:
    """Gets the loaders' orders, measures them, and trains on them."""
    folder = _rows(run)
    buffer_rows = QUICK_BUFFER_ROWS if run.is_quick else BUFFER_ROWS
    loaders = {name: one for name, one in LOADERS.items() if not run.is_quick or one.order in CHEAP}
    orders: dict[str, list[Path]] = {}
    bar = progress("shuffle", sum(loader.seeds for loader in loaders.values()))
    for name, loader in loaders.items():
        for seed in range(loader.seeds):
            bar.update()
            try:
                orders.setdefault(name, []).append(_order(run, log, folder, name, loader, buffer_rows, seed))
            except FailedError as error:
                run.note(f"shuffle, {name}", error)
    bar.close()
    qualities = {name: _mean([quality(np.load(path)) for path in paths]) for name, paths in orders.items() if paths}
    losses = {name: _losses(log, name, orders[name]) for name in TRAINED if orders.get(name)}
    picture = folder / "shuffle.svg" if run.is_quick else PICTURE
    shuffle_training.draw(losses, FULL, picture)
    return [_table(loaders, qualities, losses), _picture(losses), *_bars(run, qualities, losses)]


def _rows(run: Run) -> Path:
    """Returns the folder of the rows, with a file that says how many there are."""
    folder = data.make("labels", run.data, "quick" if run.is_quick else "full")
    total = data.DATA_SETS["labels"].num_rows // (data.QUICK_SHARE if run.is_quick else 1)
    (folder / "_rows").write_text(str(total // GROUP_ROWS * GROUP_ROWS))
    return folder


def _order(run: Run, log: Log, folder: Path, name: str, loader: Loader, buffer_rows: int, seed: int) -> Path:
    """Returns the path of a loader's order, computed unless it exists.

    Raises:
        FailedError: The loader failed, or its order does not hold every row once.
    """
    target = folder / f"order-{_slug(name)}-{seed}.npy"
    buffer = buffer_rows if loader.buffer is None else loader.buffer
    arguments = ("shuffle_orders.py", loader.order, folder, buffer, seed, target)
    log.once(f"{name}, order {seed}", lambda: run.program(*arguments, environment=loader.environment))
    print(f"    {name}, seed {seed}", flush=True)
    order = np.load(target)
    if not np.array_equal(np.sort(order), np.arange(shuffle_orders.num_rows(folder))):
        raise FailedError(f"{name} does not deliver every row once: {len(order)} rows")
    return target


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def quality(order: Any) -> dict[str, float]:
    """Returns the measures of one order."""
    groups = order // GROUP_ROWS
    of_group = np.random.default_rng(1).random(int(groups.max()) + 1)
    batches = groups[: len(groups) // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE)
    return {
        "entropy": 2 / (1 / entropy(order) + 1 / entropy(groups)),
        "groups": float(np.mean([len(np.unique(batch)) for batch in batches])),
        "sorted": variance(order.astype(np.float64)),
        "periodic": variance((groups % 10).astype(np.float64)),
        "per_group": variance(of_group[groups]),
    }


def entropy(values: Any) -> float:
    """Returns the entropy, in bits, of the distances between neighbours."""
    shares = np.bincount(np.abs(np.diff(values))) / (len(values) - 1)
    shares = shares[shares > 0]
    # If all distances are equal, the entropy is 0; avoid a later division by zero.
    return max(float(-(shares * np.log2(shares)).sum()), 1e-9)


def variance(labels: Any) -> float:
    """Returns the variance of the batch means, relative to batches drawn from all rows."""
    num_batches = len(labels) // BATCH_SIZE
    means = labels[: num_batches * BATCH_SIZE].reshape(num_batches, BATCH_SIZE).mean(axis=1)
    drawn = labels.var() / BATCH_SIZE * (len(labels) - BATCH_SIZE) / (len(labels) - 1)
    return float(means.var() / drawn)


def _mean(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(one[name] for one in found) for name in FIELDS}


def _losses(log: Log, name: str, paths: list[Path]) -> Any:
    """Returns the losses of a model, one row per seed; loaders with a single order train on it with all seeds."""

    def train() -> list[list[float]]:
        orders = [np.load(path) for path in paths]
        return [shuffle_training.losses(orders[seed % len(orders)], seed, BATCH_SIZE) for seed in range(NUM_SEEDS)]

    return np.array(log.once(f"{name}, training", train))


def _table(loaders: dict[str, Loader], qualities: dict[str, dict[str, float]], losses: dict[str, Any]) -> Table:
    header = [
        "loader",
        "rows held",
        "entropy",
        "row groups in a batch",
        "sorted",
        "periodic",
        "per group",
        "last loss",
        "mean loss : full",
        "deviations above full",
    ]
    rows = []
    for name, found in qualities.items():
        curve = losses.get(name)
        told = ["", "", ""]
        if curve is not None:
            full = losses[FULL]
            above = float(np.median(_deviations(curve, full)))
            told = [f"{curve[:, -1].mean():.3f}", f"{curve.mean() / full.mean():.2f}", f"{above:.1f}"]
        rows.append(
            [
                name,
                loaders[name].held,
                f"{found['entropy']:.2f}",
                f"{found['groups']:.0f}",
                *(f"{found[field]:.2f}" for field in ("sorted", "periodic", "per_group")),
                *told,
            ]
        )
    return Table("Shuffle of sorted rows", header, rows)


def _deviations(curve: Any, full: Any) -> Any:
    """Returns how far the mean loss exceeds a full shuffle's over the epoch, in deviations of the latter's seeds."""
    # Smoothed over neighbours, because the deviation of five seeds is itself uncertain.
    padded = np.pad(full.std(axis=0, ddof=1), SMOOTHED // 2, mode="edge")
    spread = np.convolve(padded, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    return (curve.mean(axis=0) - full.mean(axis=0)) / spread


def _picture(losses: dict[str, Any]) -> Picture:
    caption = (
        f"Loss on held-out rows of a model of one hidden layer over one epoch of rows sorted by label, the mean of "
        f"{NUM_SEEDS} seeds; the grey band is a full shuffle, its best to its worst seed. {len(losses)} loaders."
    )
    return Picture("Loss on rows sorted by label", PICTURE.name, caption)


def _bars(run: Run, qualities: dict[str, dict[str, float]], losses: dict[str, Any]) -> list[Part]:
    if run.is_quick:
        return []
    ours = qualities[OURS]
    bars: list[Part] = [Bar("shuffle, entropy at default settings", ours["entropy"], 12.79)]
    bars += [
        Bar(f"shuffle, variance of batch means, {field.replace('_', ' ')}", ours[field], 1.15, at_most=True)
        for field in ("sorted", "periodic", "per_group")
    ]
    # Loaders that hold all shards or use point reads do not mix in bounded memory.
    rivals = [name for name in qualities if not name.startswith(("forebay", "full", "lancedb"))]
    bounded = [name for name in rivals if LOADERS[name].held != "all shards"]
    best = min(bounded, key=lambda name: qualities[name]["sorted"])
    lead = qualities[best]["sorted"] / ours["sorted"]
    bars.append(Bar(f"shuffle, variance on sorted labels: the best rival in bounded memory ({best})", lead, 1))
    if OURS in losses:
        share = float((_deviations(losses[OURS], losses[FULL]) <= DEVIATIONS).mean())
        name = f"shuffle, loss within {DEVIATIONS} deviations of a full shuffle's seeds, share of the epoch"
        bars.append(Bar(name, share, 0.95))
    return bars
