"""Measures peak memory over an epoch, by data set and memory limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import data
from cases import CASES
from harness import MIB
from report import Bar, Table, mib, progress

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Run
    from report import Part
    from results import Log

LIMITS = (256 * MIB, 1024 * MIB)
INDEXED = ("tokens-indexed", "tokens")
"""An additional data set, and the case whose columns it has."""

ROW_GROUPS = ("tokens", "images", "wide")
"""Kinds of scripts/large_row_groups.py."""
ROW_GROUP_LIMIT = 256 * MIB


def measure(run: Run, log: Log) -> list[Part]:
    """Reads each epoch in its own process."""
    torch_bytes = log.once("torch", lambda: run.program("probes.py", "memory-of-torch"))["peak_bytes"]
    rows = [["interpreter and torch", "", mib(torch_bytes), ""]]
    bars: list[Part] = []
    epochs = [(name, case.data_set, name, case.repeats) for name, case in CASES.items()]
    epochs.insert(1, (INDEXED[0], *INDEXED, CASES[INDEXED[1]].repeats))
    if run.is_quick:
        epochs = epochs[:1]
    sets: list[tuple[str, str, Path, str, tuple[int, ...]]] = [
        (name, "memory-epoch", _folder(run, data_set, repeats), case, LIMITS)
        for name, data_set, case, repeats in epochs
    ]
    if not run.is_quick:
        sets += [
            (f"a row group of 2 GiB, {kind}", "memory-row-group", data.large_row_group(kind, run.data), "",
             (ROW_GROUP_LIMIT,))
            for kind in ROW_GROUPS
        ]  # fmt: skip
    bar = progress("memory", sum(1 + len(limits) for *_, limits in sets))
    for name, probe, folder, case, limits in sets:

        def seen(limit: int) -> dict[str, Any]:
            bar.update()
            found: dict[str, Any] = log.once(
                f"{name}, {limit}",  # noqa: B023
                lambda: run.program("probes.py", probe, folder, limit, case),  # noqa: B023
            )
            return found

        opened = seen(0)["peak_bytes"]
        rows.append([f"{name}, opened", "", mib(opened), ""])
        for limit in limits:
            # One epoch has a thousand batches, so its peak needs no repetition, and small limits make epochs long.
            peak = seen(limit)["peak_bytes"]
            ratio = (peak - opened) / limit
            print(f"    {name} at {mib(limit)}: {mib(peak)}, {ratio:.2f} of the limit", flush=True)
            rows.append([name, mib(limit), mib(peak), f"{ratio:.2f}"])
            bars.append(Bar(f"memory, {name}, limit of {mib(limit)}", ratio, 1.2, at_most=True))
    bar.close()
    return [Table("Peak memory", ["", "memory limit", "peak", "beyond opened, of the limit"], rows), *bars]


def _folder(run: Run, data_set: str, repeats: int) -> Path:
    if run.is_quick:
        return data.make(data_set, run.data, "quick")
    return data.repeated(data_set, run.data, repeats)
