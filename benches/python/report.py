"""Turns measurements into the page `docs/benchmarks.md`."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness import Run

HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Read the ratios: they are seen side by side in one run, on objects in the page
cache, and hold for machines like this one. Absolute numbers differ between machines, and by a fifth between runs.
"""

NOTES = """\
## What is measured

- **Tokens**: 131,072 rows of `list<int32>[2048]` (1 GiB decoded), ids with the frequencies of words, zstd, row groups
  of 1000 rows, 8 objects as pyarrow writes them, without a page index. A pass reads each of them four times under
  different names: 524,288 rows, 4 GiB. Batches are `torch.int32` tensors of `[256, 2048]`. Each reader has a process of
  its own and the same cores; readers take turns. Those that make a whole pass must agree on a sum over all rows.
- **After the first batch** leaves out opening and the filling of buffers, but flatters a reader that has decoded much
  by then: a scanner that reads ahead, a shuffle window. So the ratios take **the whole pass**, first batch included, of
  Forebay and pyarrow. `datasets` is stopped after 32,768 rows, and its rate after the first batch is taken, which
  leaves out the filling of its shuffle buffer and its sleep of five seconds when an epoch ends or is left.
- **parquet-rs, bare decode**: `benches/decode.rs`. All threads decode row groups from memory and drop them, once over
  the 131,072 rows: no reading, batches, tensors or order. The better of two sizes of batch counts. It uses the
  allocator of the system.
- **pyarrow by hand**: `dataset.to_batches`, unshuffled, its values viewed as tensors without a copy. The scanner cuts
  the batches, or torch does; the better counts.
- **datasets**: `load_dataset(streaming=True)`, `shuffle(buffer_size=1000)`, `with_format("torch")`, in a `DataLoader`
  with no or two workers; the better counts. Worker processes do not count in its memory.
- **CPU** is that of all threads from opening to the last batch. Other programs on the machine hardly move it, so it
  compares what the readers cost even where the clock does not. Two workers' own is not seen: they have not ended.
- **lance (converted)** reads a copy of the same rows in its own format.
- **Memory of tokens**: the highest resident size of the process, less that before the call.
- **Peak memory**: the highest resident size of the process over a shuffled epoch whose windows take half of the limit,
  less that of a process which has only opened the data set. `tokens-indexed` are the same rows with a page index.
- **A row group of 2 GiB** is one object with a page index, incompressible, zstd: `tokens` of 8 KiB a row, 32 `images`
  of 64 MiB, `wide` of 56 columns. Shuffled with windows of half of the limit, all columns, in Arrow batches.
  `python benches/python/run.py --only memory` measures peak memory alone.
- **Import**: the median of ten interpreters with `import forebay`, less that of ten without. **Exit**: from the last
  statement of a program that ends in mid-epoch until it is gone, less the same of one that has only imported torch.
- **Scans**: Arrow batches of the rows that pass a filter, from the call that opens the objects to the last batch, each
  in a process of its own whose imports are not timed and whose caches are empty. *Narrow*: 4,000,000 rows, two of four
  numbers are read, 4 objects, row groups of 250,000. *Wide*: 100,000 rows of text, 256 tokens and an image of 3 kB, 8
  objects, row groups of 2500. Kept rows lie *anywhere* (a filter that no statistics decide) or *together* (a range of
  the row number). All readers must agree on the count of the rows and a sum over them.
- **The store of the scans** is nginx on the loopback interface, with the first byte of each answer so much later than
  asked. From its log: the bytes of all bodies, the requests, how many were under way at once, and the longest chain in
  which each began after the one before had ended, listing included. A reader that has more to ask for than it asks at
  once has long chains, too. At 0 ms the last two are not known. *The store alone* is what one process gets that drops
  all it reads.
- **Readers of the scans** are set as their documentation says for stores far away: pyarrow with 32 IO threads, DuckDB
  with 16 threads, DataFusion with filters pushed down and 16 partitions. Polars and Lance size themselves. DuckDB is
  the newest release whose `httpfs` is on a package registry (`python/requirements/duckdb-httpfs.txt`), not the one of
  the table below. The best *on Parquet* leaves out Lance, which reads a converted copy.
- **Random rows** are taken from *wide* with pages of 64 KiB by number, in one call: `Dataset.gather`, `take` of Lance,
  `Dataset.take` of pyarrow. `python benches/python/run.py --only scan` measures scans alone.
"""


@dataclass(frozen=True)
class Table:
    """A table of measurements; the first column names them."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bar:
    """A measured value and what it has to reach."""

    name: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side of the bar."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def page(parts: Sequence[Table | Bar], machine: Table) -> str:
    """Returns the page: bars, tables, notes, machine."""
    rows = [
        [
            bar.name,
            _short(bar.value),
            f"at most {_short(bar.bar)}" if bar.at_most else f"at least {_short(bar.bar)}",
            "yes" if bar.is_met else "**no**",
        ]
        for bar in parts
        if isinstance(bar, Bar)
    ]
    bars = Table("What is promised", ["Forebay : reference", "seen", "promised", "kept"], rows)
    tables = [bars, *(part for part in parts if isinstance(part, Table))]
    return "\n".join([HEAD, *map(_table, tables), NOTES, _table(machine)])


def machine(run: Run, packages: Sequence[str]) -> Table:
    """Returns what the numbers depend on besides the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = [
        ("processor", names[0] if names else platform.machine()),
        ("cores", str(run.num_cores)),
        ("memory", f"{memory_bytes / (1 << 30):.0f} GiB"),
        ("rounds", str(run.num_rounds)),
        ("Python", platform.python_version()),
        *((package, metadata.version(package)) for package in packages),
        ("parquet-rs", _locked("parquet")),
    ]
    return Table("Machine", ["", ""], rows)


def _locked(crate: str) -> str:
    """Returns the version of a crate in `Cargo.lock`."""
    lines = (ROOT / "Cargo.lock").read_text().splitlines()
    return lines[lines.index(f'name = "{crate}"') + 1].split('"')[1]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def _table(table: Table) -> str:
    lines = [f"## {table.title}", "", _line(table.header), _line(["---", *["---:"] * (len(table.header) - 1)])]
    return "\n".join([*lines, *map(_line, table.rows), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
