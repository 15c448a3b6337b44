"""Writes the data sets of the scans, seeded: narrow and wide rows, in pages of 64 KiB and 1 MiB.

    narrow-64k, narrow-1m   4,000,000 rows of four numbers in 4 objects, row groups of 250,000 rows, snappy
    wide-64k, wide-1m       100,000 rows of text, 256 tokens and an image of 3 kB in 8 objects, row groups of 2500 rows,
                            zstd except for the images
                            ...-no-index            the same as those with 64 KiB, without a page index

`rnd` is a permutation of the row numbers divided by the number of rows, so that `rnd < 0.01` keeps exactly one row in a
hundred, scattered. `pos` is the row number, so that a range of it keeps adjacent rows.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import data

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
KIB = 1 << 10
PAGES = {"64k": 64 * KIB, "1m": 1024 * KIB}
NUM_ROWS = {"narrow": 4_000_000, "wide": 100_000}
NUM_OBJECTS = {"narrow": 4, "wide": 8}
ROW_GROUP_ROWS = {"narrow": 250_000, "wide": 2_500}
PAYLOAD = {"narrow": ["a", "b"], "wide": ["text", "tokens", "image"]}
NUM_TOKENS = 256
IMAGE_BYTES = 3_000
TEXT_WORDS = 140
LANGUAGE = ("of", "and", "to", "in", "is", "it", "on", "as", "at", "by")


def make(shape: str, pages: str, folder: Path, *, index: bool = True) -> Path:
    """Writes one data set below `folder/scan` unless it exists, and returns the data set's folder."""
    import pyarrow.parquet as pq

    target = folder / "scan" / (f"{shape}-{pages}" if index else f"{shape}-{pages}-no-index")
    mark = folder / f"{target.name}.complete-{VERSION}"
    if mark.exists():
        return target
    print(f"writing {target}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for number in range(NUM_OBJECTS[shape]):
        table = (narrow_table if shape == "narrow" else wide_table)(number)
        pq.write_table(
            table,
            target / f"part-{number}.parquet",
            row_group_size=ROW_GROUP_ROWS[shape],
            data_page_size=PAGES[pages],
            # Pages end where write batches end: with batches of 64 rows of 3 kB, pages could be three times 64 KiB.
            write_batch_size=16 if shape == "wide" else 1024,
            use_dictionary=False,
            write_page_index=index,
            compression="snappy"
            if shape == "narrow"
            else {**dict.fromkeys(table.column_names, "zstd"), "image": "none"},
        )
    mark.touch()
    return target


def convert_to_lance(shape: str, folder: Path) -> None:
    """Writes a copy of a data set in Lance's format, which has no page size, unless it exists."""
    target = folder / "scan" / f"{shape}.lance"
    mark = folder / f"{target.name}.complete-{VERSION}"
    if not mark.exists():
        import lance
        import pyarrow.dataset as ds

        print(f"converting to {target}", flush=True)
        shutil.rmtree(target, ignore_errors=True)
        found = ds.dataset(folder / "scan" / f"{shape}-64k")
        lance.write_dataset(found.to_batches(), str(target), schema=found.schema)
        mark.touch()


def narrow_table(number: int) -> Any:
    """Returns the rows of one object of numbers."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng((data.SEED, 3, number))
    keys = _keys("narrow", number)
    count = len(keys["pos"])
    return pa.table(keys | {"a": random.random(count), "b": random.integers(0, 1 << 40, count)})


def wide_table(number: int) -> Any:
    """Returns the rows of one object of text, tokens and images."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng((data.SEED, 4, number))
    keys = _keys("wide", number)
    count = len(keys["pos"])
    words = np.array([f"{LANGUAGE[n % len(LANGUAGE)]}{n}" for n in range(1500)])
    picked = words[np.minimum(random.zipf(1.3, (count, TEXT_WORDS)), len(words)) - 1]
    tokens = np.minimum(random.zipf(1.3, count * NUM_TOKENS), 50_000).astype(np.int32)
    images = random.bytes(count * IMAGE_BYTES)
    offsets = np.arange(count + 1, dtype=np.int32)
    image = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets * np.int32(IMAGE_BYTES)), pa.py_buffer(images)]
    )
    return pa.table(
        keys
        | {
            "text": [" ".join(row) for row in picked.tolist()],
            "tokens": pa.ListArray.from_arrays(pa.array(offsets * np.int32(NUM_TOKENS)), pa.array(tokens)),
            "image": image,
        }
    )


def _keys(shape: str, number: int) -> dict[str, Any]:
    import numpy as np

    total = NUM_ROWS[shape]
    rows = slice(total * number // NUM_OBJECTS[shape], total * (number + 1) // NUM_OBJECTS[shape])
    permuted = np.random.default_rng((data.SEED, 5, total)).permutation(total)[rows]
    return {"pos": np.arange(total, dtype=np.int64)[rows], "rnd": permuted / total}
