"""Rows to tensors and strings beside other readers: rates, first batch, CPU, memory, and what a conversion costs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import data
import harness
import pyarrow.parquet as pq
import readers
from cases import CASES, CONVERTED
from harness import MIB, FailedError, Measurement
from report import Bar, Table, count, mib, progress, span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cases import Case
    from harness import Run
    from readers import Family, Variant
    from report import Part
    from results import Log

OURS = "forebay, shuffled"
ONE_CORE = "forebay, shuffled, one core"
UNSHUFFLED = "forebay"
LOADER_SECONDS = 2.0
"""After which loaders that shuffle row by row are stopped: a pass takes them minutes."""
QUICK_SECONDS = 0.5
QUICK_CASE = "tokens"
"""The case that a quick run measures all readers of."""
QUICK_READERS = (OURS, UNSHUFFLED, "pyarrow", "polars")
SLOW = 10
"""Readers so many times slower than ours are measured `SLOW_ROUNDS` times."""
SLOW_ROUNDS = 3
CORES_BAR = 0.9
"""Of the number of cores: what they have to bring over one core."""


@dataclass
class Seen:
    """What was measured of one family: the best of its variants, and the copy that it reads."""

    family: Family
    variant: Variant
    found: list[Measurement] = field(default_factory=list)
    conversion: dict[str, float] | None = None

    def median(self, name: str) -> float:
        """Returns the median of one field."""
        return harness.median(self.found, name)


@dataclass(frozen=True)
class Folders:
    """Where a case's rows are, in three sizes."""

    tiny: Path
    source: Path
    whole: Path

    @classmethod
    def make(cls, run: Run, case: Case) -> Folders:
        """Writes what is missing."""
        size: data.Size = "quick" if run.is_quick else "full"
        return cls(
            data.make(case.data_set, run.data, "tiny"),
            data.make(case.data_set, run.data, size),
            data.repeated(case.data_set, run.data, 1 if run.is_quick else case.repeats, size),
        )

    def of(self, family: Family) -> Path:
        """Returns what a family reads in a pass."""
        return self.whole if family.reads_repeated else self.source


def measure(run: Run, log: Log, name: str) -> list[Part]:
    """Measures one case."""
    case = CASES[name]
    folders = Folders.make(run, case)
    families = readers.families(case)
    if run.is_quick and name != QUICK_CASE:
        families = {reader: families[reader] for reader in QUICK_READERS}
    seen = {reader: Seen(family, family.variants_for(case)[0]) for reader, family in families.items()}
    for reader, one in list(seen.items()):
        if one.family.conversion is not None and not _convert(run, log, folders, case, one):
            del seen[reader]
    bar = progress(name, len(seen) * run.num_rounds)
    for round_index in range(run.num_rounds):
        for reader, one in list(seen.items()):
            bar.update()
            if round_index == 0:
                _first_round(run, log, folders, case, reader, one)
                if not one.found:
                    del seen[reader]
            elif round_index < SLOW_ROUNDS or not _is_slow(one, seen[OURS]):
                one.found.append(_measure(run, log, folders, case, reader, one.variant, round_index))
    bar.close()
    _agree(folders, seen)
    return [_table(case, seen), *_bars(run, case, seen)]


def _convert(run: Run, log: Log, folders: Folders, case: Case, one: Seen) -> bool:
    """Writes the copies that a family reads; False if that fails."""
    family = one.family
    try:
        for folder in (folders.tiny, folders.of(family)):
            arguments = ("convert.py", family.conversion, folder, case.name)
            one.conversion = run.program(*arguments, environment=family.environment, seconds=harness.SECONDS_OF_A_BUILD)
    except FailedError as error:
        return _failed(run, log, f"conversion to {family.conversion}", error)
    return True


def _failed(run: Run, log: Log, what: str, error: FailedError) -> bool:
    """Notes that a rival cannot be measured: the others go on, and the run fails at its end."""
    run.failures.append(f"{log.path.stem}, {what}: {error}")
    print(f"    {what} FAILED: {str(error)[-600:]}", flush=True)
    return False


def _first_round(run: Run, log: Log, folders: Folders, case: Case, reader: str, one: Seen) -> None:
    """Measures all variants and keeps the best."""
    best = None
    for variant in one.family.variants_for(case)[: 1 if run.is_quick else None]:
        try:
            found = _measure(run, log, folders, case, reader, variant, 0)
        except FailedError as error:
            if reader.startswith("forebay"):
                raise
            _failed(run, log, _full_name(reader, variant), error)
            continue
        if best is None or _speed(found) > _speed(best):
            best, one.variant = found, variant
    one.found = [] if best is None else [best]


def _measure(
    run: Run, log: Log, folders: Folders, case: Case, reader: str, variant: Variant, round_index: int
) -> Measurement:
    """Measures one variant in a process of its own.

    Raises:
        FailedError: It failed, or did not deliver the rows.
    """
    family = readers.FAMILIES[reader]
    order = {
        "case": case.name,
        "function": variant.function,
        "num_workers": variant.num_workers,
        "num_cores": family.num_cores or run.num_cores,
        "tiny": str(folders.tiny),
        "source": str(folders.source),
        "folder": str(folders.of(family)),
        "max_seconds": (QUICK_SECONDS if run.is_quick else LOADER_SECONDS) if family.is_loader else None,
    }
    name = _full_name(reader, variant)

    def once() -> Any:
        found = run.program("readers.py", json.dumps(order), environment=family.environment, num_cores=family.num_cores)
        if found["checked"] != _expected(run, log, folders, case):
            raise FailedError(f"other rows than those in {folders.tiny.name}: {found['checked']}")
        return found["measured"]

    measured = Measurement(**log.once(f"{name}, round {round_index + 1}", once))
    rates = f"{count(measured.rows_per_second)} rows/s, {count(measured.rows_per_second_of_all)} of all"
    print(f"    {name}: {rates}, first batch {measured.first_batch_seconds:.2f} s", flush=True)
    return measured


def _expected(run: Run, log: Log, folders: Folders, case: Case) -> Any:
    """Returns what a reader must deliver of the tiny data set: what pyarrow's simplest call reads."""
    return log.once("expected", lambda: run.program("expected.py", case.name, folders.tiny))


def _full_name(reader: str, variant: Variant) -> str:
    return f"{reader}, {variant.name}" if variant.name else reader


def _speed(found: Measurement) -> float:
    """Returns the rate that variants are compared by: of the pass, or of what was seen of it."""
    return found.rows_per_second_of_all if found.is_whole else found.rows_per_second


def _is_slow(one: Seen, ours: Seen) -> bool:
    return _speed(one.found[0]) * SLOW < _speed(ours.found[0])


def _agree(folders: Folders, seen: dict[str, Seen]) -> None:
    """Compares what was delivered by those that have read a whole pass.

    Raises:
        FailedError: Two did not read the same.
    """
    rows_in = {folder: num_rows(folder) for folder in {folders.source, folders.whole}}
    sums = Counter[int]()
    told = []
    for reader, one in seen.items():
        folder = folders.of(one.family)
        for measured in one.found:
            if not measured.is_whole:
                continue
            if measured.rows != rows_in[folder]:
                raise FailedError(f"{reader} read {measured.rows} of the {rows_in[folder]} rows in {folder.name}")
            # A pass is some times the objects of the source.
            total = measured.checksum * (rows_in[folders.whole] // rows_in[folder])
            sums[total] += 1
            told.append(f"{reader}: {total}")
    if len(sums) > 1:
        raise FailedError(f"the readers do not agree on what is in {folders.whole.name}: {', '.join(told)}")


def num_rows(folder: Path) -> int:
    """Returns the rows of the objects of a folder, by their footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def _ratios(ours: Seen, other: Seen, field_name: str) -> list[float]:
    """Returns ours over the other's in each round that both have."""
    pairs = zip(ours.found, other.found, strict=False)
    return [getattr(a, field_name) / getattr(b, field_name) for a, b in pairs if getattr(b, field_name)]


def _lead(ours: Seen, other: Seen) -> list[float]:
    """Returns the ratios, round by round, of the rate that is worse for us: after the first batch, or of the pass."""
    after = _ratios(ours, other, "rows_per_second")
    if not other.found[0].is_whole:
        return after
    whole = _ratios(ours, other, "rows_per_second_of_all")
    if not after:
        return whole
    return min(after, whole, key=statistics.median)


HEADER = [
    "reader",
    "rows/s after the first batch",
    "least to most",
    "rows/s of the pass",
    "late : all",
    "CPU, µs a row",
    "first batch, s",
    "memory",
    "ours : its",
    "least to most",
    "conversion",
]


def _table(case: Case, seen: dict[str, Seen]) -> Table:
    rows = []
    for reader, one in seen.items():
        rates = [measured.rows_per_second for measured in one.found]
        is_whole = one.found[0].is_whole
        lead = [] if reader.startswith("forebay") else _lead(seen[OURS], one)
        workers = one.median("workers_bytes")
        rows.append(
            [
                _full_name(reader, one.variant),
                count(statistics.median(rates)),
                f"{count(min(rates))} to {count(max(rates))}",
                count(one.median("rows_per_second_of_all")) if is_whole else "",
                f"{_steadiness(one):.2f}",
                f"{statistics.median(found.cpu_seconds / found.rows for found in one.found) * 1e6:.1f}",
                f"{one.median('first_batch_seconds'):.2f}",
                mib(one.median("peak_bytes") + workers),
                f"{statistics.median(lead):.2f}" if lead else "",
                span(lead),
                _cost(one),
            ]
        )
    return Table(case.title, HEADER, rows)


def _steadiness(one: Seen) -> float:
    """Returns the rate of the second half of the rows over that of all: 1 where a reader is steady."""
    return statistics.median(found.rows_per_second_late / found.rows_per_second_of_all for found in one.found)


def _cost(one: Seen) -> str:
    if one.conversion is None or one.conversion["bytes"] < MIB:
        return ""
    return f"{one.conversion['seconds']:.0f} s, {mib(one.conversion['bytes'])}"


def _bars(run: Run, case: Case, seen: dict[str, Seen]) -> list[Part]:
    ours = seen[OURS]
    bars: list[Part] = []

    def against(names: Sequence[str], what: str, bar: float) -> None:
        leads = {name: _lead(ours, seen[name]) for name in names if name in seen}
        if not leads:
            return
        hardest = min(leads, key=lambda name: statistics.median(leads[name]))
        bars.append(Bar.of(f"{case.title}, shuffled: {what} ({hardest})", leads[hardest], bar))

    against(case.by_hand, "the best by hand, unshuffled", case.by_hand_bar)
    if case.loader_bar is not None:
        against(["datasets, shuffled"], "`datasets`, shuffled, through DataLoader", case.loader_bar)
    against(CONVERTED, "the best of converted copies", 1)
    bars.append(
        Bar.of(f"{case.title}: our own unshuffled", _ratios(ours, seen[UNSHUFFLED], "rows_per_second_of_all"), 0.8)
    )
    if ONE_CORE in seen and run.num_cores > 1:
        # The pass: one core has more time to fill the window of.
        gain = _ratios(ours, seen[ONE_CORE], "rows_per_second_of_all")
        bars.append(Bar.of(f"{case.title}: {run.num_cores} cores over one", gain, CORES_BAR * run.num_cores))
    return bars
