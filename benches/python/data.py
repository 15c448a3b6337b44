"""Writes the data sets of the benchmarks with pyarrow: seeded, the same on every machine, never committed.

    tokens          131,072 rows of list<int32>[2048], 50,000 ids with the frequencies of words (Zipf), zstd,
                    row groups of 1000 rows, 8 objects, as pyarrow writes by default: without a page index
    tokens-indexed  the same rows with a page index
    tokens-plain    the same rows, neither compressed nor with a dictionary, with a page index
    embeddings      360,448 rows of fixed_size_list<float32>[768], snappy, row groups of 8192 rows, 8 objects
    text            880,000 rows of text (about 1.2 kB), a language, a score and an id, zstd, row groups of 5000 rows
    tabular         1,800,000 rows of 100 numbers, some of them NULL, snappy, row groups of 100,000 rows
    labels          1,000,000 rows sorted by label, to check the shuffle

Each takes a gigabyte or more in memory, except for the labels. Two smaller sizes of each are in separate folders:
`quick` has a sixteenth of the rows; `tiny` has some hundreds, on which readers are checked against each other.

`large_row_group` writes one row group of 2 GiB, of a kind defined in scripts/large_row_groups.py.
`repeated` makes a longer data set by hard links, which take no space on disk or in the page cache.

Complete data sets are not written again. Run as a program, this writes all of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Size = Literal["full", "quick", "tiny"]

ROOT = Path(__file__).resolve().parent.parent.parent

SEED = 20_260_701
VERSION = 2
"""Part of the mark of a complete data set. Change it with anything that changes the bytes."""

QUICK_SHARE = 16
TINY_OBJECTS = 2

ROW_GROUP_BYTES = 2 << 30


@dataclass(frozen=True)
class DataSet:
    """How to write one data set."""

    tables: str
    """The function in `tables` that generates its content."""
    num_rows: int
    num_objects: int
    tiny_rows: int
    """Rows of the tiny size: two objects of two row groups."""
    row_group_size: int
    settings: dict[str, Any]
    """More settings for the writer."""


def default_folder() -> Path:
    """Returns the folder of the data: `FOREBAY_BENCH_DATA`, or `target/bench-data`."""
    return Path(os.environ.get("FOREBAY_BENCH_DATA", ROOT / "target" / "bench-data"))


def make(name: str, folder: Path, size: Size = "full") -> Path:
    """Writes the data set `name` below `folder` unless it exists, and returns the data set's folder."""
    target = folder / (name if size == "full" else f"{name}-{size}")
    mark = target / f"_complete-{VERSION}"
    if mark.exists():
        return target
    # Imported late: numpy and pyarrow are slow to import, and most programs find their data already written.
    import pyarrow.parquet as pq
    import tables

    data_set = DATA_SETS[name]
    num_rows, num_objects, row_group_size = data_set.num_rows, data_set.num_objects, data_set.row_group_size
    if size == "quick":
        num_rows //= QUICK_SHARE
        row_group_size = min(row_group_size, num_rows // num_objects // 2)
    elif size == "tiny":
        num_rows, num_objects = data_set.tiny_rows, TINY_OBJECTS
        row_group_size = num_rows // TINY_OBJECTS // 2
    print(f"writing {target.name} into {folder}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    content: Callable[[int, int], Iterator[Any]] = getattr(tables, data_set.tables)
    settings = {"row_group_size": row_group_size, **data_set.settings}
    for index, table in enumerate(content(num_rows, num_objects)):
        pq.write_table(table, target / f"part-{index}.parquet", **settings)
    mark.touch()
    return target


def repeated(name: str, folder: Path, times: int, size: Size = "full") -> Path:
    """Returns a folder that holds the objects of the data set `name` several times."""
    source = make(name, folder, size)
    target = folder / f"{source.name}-x{times}"
    target.mkdir(exist_ok=True)
    for path in source.glob("*.parquet"):
        for index in range(times):
            link = target / f"copy-{index}-{path.name}"
            if not (link.exists() and link.samefile(path)):
                link.unlink(missing_ok=True)
                link.hardlink_to(path)
    return target


def into_page_cache(folder: Path) -> None:
    """Reads all files of a folder, so that they are in the page cache."""
    room = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(room):
                    pass


def large_row_group(kind: str, folder: Path) -> Path:
    """Writes an object with one row group of 2 GiB and a page index below `folder` unless it exists."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import large_row_groups

    path = folder / "row-groups" / f"{kind}.parquet"
    if not path.exists():
        print(f"writing {path}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        large_row_groups.write(unfinished, kind, ROW_GROUP_BYTES)
        unfinished.rename(path)
    return path


ZSTD = {"compression": "zstd"}
INDEX = {"write_page_index": True}

DATA_SETS = {
    "tokens": DataSet("tokens", 131_072, 8, 1024, 1000, ZSTD),
    "tokens-indexed": DataSet("tokens", 131_072, 8, 1024, 1000, ZSTD | INDEX),
    "tokens-plain": DataSet("tokens", 131_072, 8, 1024, 1000, {"compression": "none", "use_dictionary": False} | INDEX),
    "embeddings": DataSet("embeddings", 360_448, 8, 2048, 8192, {"compression": "snappy"}),
    "text": DataSet("text", 880_000, 8, 2048, 5000, ZSTD),
    "tabular": DataSet("tabular", 1_800_000, 6, 8192, 100_000, {"compression": "snappy"}),
    "labels": DataSet("labels", 1_000_000, 4, 4000, 1000, ZSTD),
}


def main() -> None:
    """Writes the data sets named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(DATA_SETS)}; all by default")
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder to write into")
    parser.add_argument("--size", choices=("full", "quick", "tiny"), default="full", help="size, by number of rows")
    arguments = parser.parse_args()
    for name in arguments.names or DATA_SETS:
        make(name, arguments.data, arguments.size)


if __name__ == "__main__":
    main()
