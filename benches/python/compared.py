"""Evaluates a comparison of readers: the ratios of ours to theirs, and the table and bars of a case."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from cases import CONVERTED
from harness import MIB
from report import Bar, Table, count, mib, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cases import Case
    from harness import Run
    from readers import Variant
    from report import Part
    from throughput import Seen

OURS = "forebay, shuffled"
ONE_CORE = "forebay, shuffled, one core"
UNSHUFFLED = "forebay"
UNSHUFFLED_BAR = 0.8
CORES_BAR = 0.9
"""Required speedup over one core, as a share of the number of cores."""

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


def full_name(reader: str, variant: Variant) -> str:
    """Returns the full name of a variant of a reader."""
    return f"{reader}, {variant.name}" if variant.name else reader


def ratios(ours: Seen, other: Seen, name: str) -> list[float]:
    """Returns our value over the other's for each round that both have."""
    pairs = zip(ours.found, other.found, strict=False)
    return [getattr(a, name) / getattr(b, name) for a, b in pairs if getattr(b, name)]


def lead(ours: Seen, other: Seen) -> list[float]:
    """Returns the ratios by round, for the rate that is worse for us: after the first batch, or of the whole pass."""
    after = ratios(ours, other, "rows_per_second")
    if not other.found[0].is_whole:
        return after
    whole = ratios(ours, other, "rows_per_second_of_all")
    return min(after, whole, key=statistics.median) if after else whole


def table(case: Case, seen: dict[str, Seen]) -> Table:
    """Returns one row per reader."""
    rows = []
    for reader, one in seen.items():
        rates = [measured.rows_per_second for measured in one.found]
        is_whole = one.found[0].is_whole
        leads = [] if reader.startswith("forebay") else lead(seen[OURS], one)
        rows.append(
            [
                full_name(reader, one.variant),
                count(statistics.median(rates)),
                f"{count(min(rates))} to {count(max(rates))}",
                count(one.median("rows_per_second_of_all")) if is_whole else "",
                f"{_steadiness(one):.2f}",
                f"{statistics.median(found.cpu_seconds / found.rows for found in one.found) * 1e6:.1f}",
                f"{one.median('first_batch_seconds'):.2f}",
                mib(one.median("peak_bytes") + one.median("workers_bytes")),
                f"{statistics.median(leads):.2f}" if leads else "",
                span(leads),
                _cost(one),
            ]
        )
    return Table(case.title, HEADER, rows)


def _steadiness(one: Seen) -> float:
    """Returns the rate of the second half of the rows over that of all rows: 1 if a reader is steady."""
    return statistics.median(found.rows_per_second_late / found.rows_per_second_of_all for found in one.found)


def _cost(one: Seen) -> str:
    if one.conversion is None or one.conversion["bytes"] < MIB:
        return ""
    return f"{one.conversion['seconds']:.0f} s, {mib(one.conversion['bytes'])}"


def bars(run: Run, case: Case, seen: dict[str, Seen]) -> list[Part]:
    """Returns the bars: Forebay against the fastest rival of each kind, and against itself."""
    ours = seen[OURS]
    made: list[Part] = []

    def against(names: Sequence[str], what: str, bar: float) -> None:
        leads = {name: lead(ours, seen[name]) for name in names if name in seen}
        if leads:
            hardest = min(leads, key=lambda name: statistics.median(leads[name]))
            made.append(Bar.of(f"{case.title}, shuffled: {what} ({hardest})", leads[hardest], bar))

    against(case.by_hand, "the best by hand, unshuffled", case.by_hand_bar)
    if case.loader_bar is not None:
        against(["datasets, shuffled"], "`datasets`, shuffled, through DataLoader", case.loader_bar)
    against(CONVERTED, "the best of converted copies", 1)
    # Whole passes: by its first batch a shuffle has done much of its work, and one core had more time for that.
    whole = "rows_per_second_of_all"
    if UNSHUFFLED in seen:
        made.append(Bar.of(f"{case.title}: our own unshuffled", ratios(ours, seen[UNSHUFFLED], whole), UNSHUFFLED_BAR))
    if ONE_CORE in seen and run.num_cores > 1:
        gain = ratios(ours, seen[ONE_CORE], whole)
        made.append(Bar.of(f"{case.title}: {run.num_cores} cores over one", gain, CORES_BAR * run.num_cores))
    return made
