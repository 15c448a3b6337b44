"""Turns measurements into tables, bars and the page `docs/benchmarks.md`."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import MIB, ROOT
from notes import HEAD, NOTES
from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Table:
    """A table of measurements; the first column has their names."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bar:
    """A measured value and the value it must reach."""

    name: str
    value: float
    bar: float
    at_most: bool = False
    spread: tuple[float, float] | None = None
    """The lowest and highest value of the rounds."""

    @classmethod
    def of(cls, name: str, ratios: Sequence[float], bar: float) -> Bar:
        """Returns a bar that the median of some ratios must reach."""
        if not ratios:
            return cls(name, float("nan"), bar)
        return cls(name, statistics.median(ratios), bar, spread=(min(ratios), max(ratios)))

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side of the bar; NaN never is."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass(frozen=True)
class Picture:
    """A picture in the documentation."""

    title: str
    path: str
    """Relative to the folder of the pages."""
    caption: str


Part = Table | Bar | Picture
KINDS = {kind.__name__: kind for kind in (Table, Bar, Picture)}


def to_json(part: Part) -> dict[str, Any]:
    """Returns a part as a JSON value."""
    return {"kind": type(part).__name__, **asdict(part)}


def of_json(found: dict[str, Any]) -> Part:
    """Returns the part that was passed to `to_json`."""
    made: Part = KINDS[found["kind"]](**{name: value for name, value in found.items() if name != "kind"})
    return made


def page(
    parts: Sequence[Part],
    machine: Sequence[Table],
    missing: Sequence[str] = (),
    failures: Sequence[Sequence[str]] = (),
) -> str:
    """Returns the page: `missing` cases, failures, bars, tables, pictures, notes, and tables of the machine."""
    rows = [
        [
            bar.name,
            _short(bar.value),
            f"{_short(bar.spread[0])} to {_short(bar.spread[1])}" if bar.spread else "",
            f"at most {_short(bar.bar)}" if bar.at_most else f"at least {_short(bar.bar)}",
            "yes" if bar.is_met else "**no**",
        ]
        for bar in parts
        if isinstance(bar, Bar)
    ]
    bars = Table("What is promised", ["Forebay : reference", "seen", "least to most", "promised", "kept"], rows)
    shown = [
        _picture(part) if isinstance(part, Picture) else _table(part) for part in parts if not isinstance(part, Bar)
    ]
    head = [HEAD]
    if missing:
        head.append(f"Not measured for this page: {', '.join(f'`{name}`' for name in missing)}.\n")
    head += [f"Failed: {what} (`{said}`).\n" for what, said in failures]
    return "\n".join([*head, _table(bars), *shown, NOTES, *map(_table, machine)])


def machine(settings: dict[str, Any]) -> Table:
    """Returns the table of settings that the numbers depend on besides the code."""
    return Table("Machine", ["", ""], [[name, str(value)] for name, value in settings.items()])


def hardware() -> dict[str, str]:
    """Returns a description of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": names[0] if names else platform.machine(),
        "memory": f"{memory_bytes / (1 << 30):.0f} GiB",
        "Python": platform.python_version(),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Returns the versions of packages in this environment and of the crate `parquet`."""
    return {**{package: metadata.version(package) for package in packages}, "parquet-rs": _locked("parquet")}


def _locked(crate: str) -> str:
    """Returns the version of a crate in `Cargo.lock`."""
    lines = (ROOT / "Cargo.lock").read_text().splitlines()
    return lines[lines.index(f'name = "{crate}"') + 1].split('"')[1]


def progress(name: str, total: int) -> Any:
    """Returns a progress bar if there is a terminal."""
    return tqdm(total=total, desc=name, unit="run", file=sys.stderr, disable=None, leave=False)


def count(value: float) -> str:
    """Returns a rate without meaningless digits."""
    return f"{round(value, -2 if value >= 1000 else 0):,.0f}"


def mib(value: float) -> str:
    """Returns bytes as MiB."""
    return f"{value / MIB:,.0f} MiB"


def span(values: Sequence[float]) -> str:
    """Returns the lowest and highest of some ratios as text."""
    return f"{_short(min(values))} to {_short(max(values))}" if values else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _picture(picture: Picture) -> str:
    return f"## {picture.title}\n\n![{picture.title}]({picture.path})\n\n{picture.caption}\n"


def _table(table: Table) -> str:
    lines = [f"## {table.title}", "", _line(table.header), _line(["---", *["---:"] * (len(table.header) - 1)])]
    return "\n".join([*lines, *map(_line, table.rows), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
