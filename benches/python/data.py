"""Writes the data sets of the benchmarks, the same on every machine: seeded, with pyarrow, never committed.

    tokens          131,072 rows of list<int32>[2048], 50,000 ids with the frequencies of words (Zipf), zstd,
                    row groups of 1000 rows, 8 objects, as pyarrow writes by default: without a page index
    tokens-indexed  the same rows with a page index
    text            200,000 rows of text (about 1.2 kB), a language, a score and an id, zstd, row groups of 5000 rows
    labels          1,000,000 rows sorted by label, for checks of the shuffle

`large_row_group` writes one row group of 2 GiB, of a kind of scripts/large_row_groups.py.
`repeated` makes a longer data set of one of these by hard links, which costs no room on disk or in the page cache.

A data set that is complete is not written again. Run as a program, it writes all of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent.parent

SEED = 20_260_701
VERSION = 1
"""Part of the mark of a complete data set: change it with anything that changes the bytes."""

NUM_TOKENS = 2048
TOKEN_ROWS = 131_072
TOKEN_OBJECTS = 8
VOCABULARY = 50_000

TEXT_ROWS = 200_000
TEXT_OBJECTS = 4
LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt")

ROW_GROUP_BYTES = 2 << 30

LABEL_ROWS = 1_000_000
LABEL_OBJECTS = 4
ROWS_PER_LABEL = 1_000


@dataclass(frozen=True)
class DataSet:
    """How to write one data set: its objects' tables, one by one, and the settings of the writer."""

    tables: Callable[[], Iterator[Any]]
    settings: dict[str, Any]


def default_folder() -> Path:
    """Returns the folder of the data: `FOREBAY_BENCH_DATA`, else `target/bench-data`."""
    return Path(os.environ.get("FOREBAY_BENCH_DATA", ROOT / "target" / "bench-data"))


def make(name: str, folder: Path) -> Path:
    """Writes the data set `name` below `folder` unless it is there, and returns its own folder."""
    import pyarrow.parquet as pq

    target = folder / name
    mark = target / f"_complete-{VERSION}"
    if mark.exists():
        return target
    print(f"writing {name} into {target}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    data_set = DATA_SETS[name]
    for index, table in enumerate(data_set.tables()):
        pq.write_table(table, target / f"part-{index}.parquet", **data_set.settings)
    mark.touch()
    return target


def repeated(name: str, folder: Path, times: int) -> Path:
    """Returns a folder that holds the objects of the data set `name` so many times over."""
    source = make(name, folder)
    target = folder / f"{name}-x{times}"
    target.mkdir(exist_ok=True)
    for path in source.glob("*.parquet"):
        for index in range(times):
            link = target / f"copy-{index}-{path.name}"
            if not (link.exists() and link.samefile(path)):
                link.unlink(missing_ok=True)
                link.hardlink_to(path)
    return target


def large_row_group(kind: str, folder: Path) -> Path:
    """Writes an object of one row group of 2 GiB with a page index below `folder` unless it is there."""
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


def token_tables() -> Iterator[Any]:
    """Yields one table of tokens for each object."""
    import numpy as np
    import pyarrow as pa

    ids = np.random.default_rng(SEED).permutation(VOCABULARY).astype(np.int32)
    num_rows = TOKEN_ROWS // TOKEN_OBJECTS
    offsets = np.arange(num_rows + 1, dtype=np.int32) * NUM_TOKENS
    for index in range(TOKEN_OBJECTS):
        uniform = np.random.default_rng((SEED, index)).random(num_rows * NUM_TOKENS, dtype=np.float32)
        # The rank of a word is log-uniform: the k-th is seen in proportion to 1/k.
        ranks = np.exp(uniform * np.float32(np.log(VOCABULARY))).astype(np.int32) - 1
        tokens = ids[np.clip(ranks, 0, VOCABULARY - 1)]
        yield pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))})


def text_tables() -> Iterator[Any]:
    """Yields one table of text, language, score and id for each object."""
    import numpy as np
    import pyarrow as pa

    num_rows = TEXT_ROWS // TEXT_OBJECTS
    words = _words()
    for index in range(TEXT_OBJECTS):
        random = np.random.default_rng((SEED, 1, index))
        lengths = random.integers(50, 350, num_rows)
        ranks = np.exp(random.random(int(lengths.sum())) * np.log(len(words))).astype(np.int64) - 1
        ends = np.cumsum(lengths)
        texts = [
            " ".join(words[rank] for rank in ranks[end - length : end])
            for end, length in zip(ends, lengths, strict=True)
        ]
        yield pa.table(
            {
                "id": pa.array(np.arange(num_rows) + index * num_rows),
                "lang": pa.array(random.choice(LANGUAGES, num_rows)),
                "score": pa.array(random.random(num_rows)),
                "text": pa.array(texts),
            }
        )


def _words() -> list[str]:
    """Returns made-up words of 2 to 11 letters."""
    import numpy as np

    random = np.random.default_rng((SEED, 2))
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    return ["".join(random.choice(letters, length)) for length in random.integers(2, 12, 20_000)]


def label_tables() -> Iterator[Any]:
    """Yields one table of sorted labels for each object."""
    import numpy as np
    import pyarrow as pa

    for rows in np.split(np.arange(LABEL_ROWS), LABEL_OBJECTS):
        yield pa.table({"row": pa.array(rows), "label": pa.array((rows // ROWS_PER_LABEL).astype(np.int32))})


DATA_SETS = {
    "tokens": DataSet(token_tables, {"compression": "zstd", "row_group_size": 1000}),
    "tokens-indexed": DataSet(token_tables, {"compression": "zstd", "row_group_size": 1000, "write_page_index": True}),
    "text": DataSet(text_tables, {"compression": "zstd", "row_group_size": 5000}),
    "labels": DataSet(label_tables, {"compression": "zstd", "row_group_size": 10_000}),
}


def main() -> None:
    """Writes the data sets named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(DATA_SETS)}; all by default")
    parser.add_argument("--data", type=Path, default=default_folder(), help="the folder to write into")
    arguments = parser.parse_args()
    for name in arguments.names or DATA_SETS:
        make(name, arguments.data)


if __name__ == "__main__":
    main()
