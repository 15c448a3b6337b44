"""Measures packing tokens into sequences and decoding images to tensors, beside what people use for it today.

Each reader runs in its own process (`shaping_readers.py`) on the same cores. All of them must deliver the same tokens,
and images that differ by at most two grey levels on average over all data.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import shaping_data
from harness import FailedError
from readers import MOSAICML_ENVIRONMENT
from report import Bar, Table, count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness import Run
    from report import Part
    from results import Log

GREY_LEVELS = 2.0


@dataclass(frozen=True)
class Reader:
    """One comparison."""

    name: str
    function: str
    bar: float | None = None
    """Required speed of Forebay relative to each rival."""
    has_workers: bool = False
    environment: str | None = None


OURS_CONCAT, OURS_BEST_FIT = (
    Reader("forebay, concat", "forebay_concat"),
    Reader("forebay, best fit", "forebay_best_fit"),
)
CONCAT = (
    Reader("datasets, generator, concat", "datasets_concat", 10),
    Reader("datasets, generator, concat, in workers", "datasets_concat", 10, has_workers=True),
)
BEST_FIT = (
    Reader("datasets, generator, best fit", "datasets_best_fit", 10),
    Reader("datasets, generator, best fit, in workers", "datasets_best_fit", 10, has_workers=True),
)
LEAST_FILLED = 0.97

OURS_IMAGES = Reader("forebay", "forebay_images")
IMAGES = (
    Reader("PIL in DataLoader workers", "pil_images", 2, has_workers=True),
    Reader("torchvision in DataLoader workers", "torchvision_images", 1.2, has_workers=True),
    Reader("webdataset (converted), PIL", "webdataset_images", 1, has_workers=True),
    Reader("litdata (converted), PIL", "litdata_images", 1, has_workers=True),
    Reader("mosaicml (converted), PIL", "mosaicml_images", 1, has_workers=True, environment=MOSAICML_ENVIRONMENT),
)


def measure_packing(run: Run, log: Log) -> list[Part]:
    """Measures packing to sequences of 2048."""
    folder = shaping_data.documents(run.data, is_quick=run.is_quick)
    rows, parts = [], []
    for ours, rivals in ((OURS_CONCAT, CONCAT), (OURS_BEST_FIT, BEST_FIT)):
        seen = _all(run, log, folder, ours, rivals, _same_tokens)
        for reader, found in seen.items():
            filled = found[0]["units"] / found[0]["places"]
            rows.append([reader.name, count(_rate(found)), f"{filled:.1%}"])
        parts += _bars(seen, ours)
        if ours is OURS_BEST_FIT:
            filled = seen[ours][0]["units"] / seen[ours][0]["places"]
            parts.append(Bar("packing, best fit: places that hold tokens", filled, LEAST_FILLED))
    return [Table("Packing to sequences of 2048", ["reader", "tokens/s", "filled"], rows), *parts]


def measure_images(run: Run, log: Log) -> list[Part]:
    """Measures decoding JPEGs to tensors of 224 by 224."""
    folder = shaping_data.images(run.data, is_quick=run.is_quick)
    seen = _all(run, log, folder, OURS_IMAGES, IMAGES, _same_images)
    rows = [[reader.name, count(_rate(found))] for reader, found in seen.items()]
    return [Table("JPEG to 224 x 224", ["reader", "images/s"], rows), *_bars(seen, OURS_IMAGES)]


Seen = dict[Reader, list[dict[str, Any]]]


def _all(
    run: Run,
    log: Log,
    folder: Path,
    ours: Reader,
    rivals: Sequence[Reader],
    check: Callable[[dict[str, Any], dict[str, Any]], bool],
) -> Seen:
    seen: Seen = {}
    for reader in (ours, *rivals):
        if reader is not ours and run.readers and not any(part in reader.name for part in run.readers):
            continue
        try:
            found = [_once(run, log, folder, reader, index) for index in range(run.num_rounds)]
        except FailedError as error:
            if reader is ours:
                raise
            run.note(reader.name, error)
            continue
        if reader is not ours and not check(seen[ours][0], found[0]):
            run.note(reader.name, FailedError(f"delivers other things than ours: {found[0]}, not {seen[ours][0]}"))
            continue
        seen[reader] = found
        print(f"    {reader.name}: {count(_rate(found))}/s", flush=True)
    return seen


def _once(run: Run, log: Log, folder: Path, reader: Reader, index: int) -> dict[str, Any]:
    num_workers = run.num_cores if reader.has_workers else 0

    def program() -> Any:
        arguments = "shaping_readers.py", reader.function, folder, num_workers, 1
        return run.program(*arguments, environment=reader.environment)

    found: dict[str, Any] = log.once(f"{reader.name}, round {index + 1}", program)
    return found


def _same_tokens(ours: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(ours["units"] == other["units"] and ours["checksum"] == other["checksum"])


def _same_images(ours: dict[str, Any], other: dict[str, Any]) -> bool:
    apart = abs(ours["checksum"] - other["checksum"]) / max(ours["units"], 1)
    return bool(ours["units"] == other["units"] and apart <= GREY_LEVELS)


def _rate(found: Sequence[dict[str, Any]]) -> float:
    return float(statistics.median(one["rate"] for one in found))


def _bars(seen: Seen, ours: Reader) -> list[Part]:
    rivals = [reader for reader in seen if reader is not ours and reader.bar is not None]
    return [
        Bar.of(f"{ours.name} : {rival.name}", [one["rate"] / _rate(seen[rival]) for one in seen[ours]], rival.bar or 0)
        for rival in rivals
    ]
