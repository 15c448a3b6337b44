"""Memory: an epoch stays within `memory_limit`, whatever the size of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
NUM_ROWS = 50_000
ROW_TOKENS = 2048
NOISE = 8 * MIB
"""What threads and sockets take beside the data, on top of the promised fifth."""

# `VmHWM` is set back after opening, so that the peak is that of the epoch.
EPOCH = """
import gc
import pathlib
import sys

import forebay as fb
import torch


def status(name):
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


folder, limit, how, num_threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ds = fb.load_dataset(folder, split="train")
if how != "in order":
    ds = ds.shuffle(1, shuffle_bytes=limit // 2)
if how == "filtered":
    ds = ds.filter("id % 5 < 2")
# A batch, so that code and thread pools are loaded.
for batch in ds.to_torch(16, memory_limit=limit, num_threads=num_threads):
    break
len(ds)
del batch
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
rows = 0
for batch in ds.to_torch(256, memory_limit=limit, num_threads=num_threads):
    rows += len(batch["id"])
    del batch
print(rows, before, status("VmHWM"))
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    """Rows of tokens, 400 MB decoded."""
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(1)
    for part in range(5):
        num_rows = NUM_ROWS // 5
        values = pa.array(rng.integers(0, 50_000, num_rows * ROW_TOKENS, dtype=np.int32))
        column = pa.FixedSizeListArray.from_arrays(values, ROW_TOKENS)
        ids = pa.array(range(part * num_rows, (part + 1) * num_rows))
        pq.write_table(
            pa.table({"id": ids, "tokens": column}),
            folder / f"part-{part}.parquet",
            row_group_size=1000,
            compression="zstd",
            use_dictionary=False,
            write_page_index=True,
        )
    return folder


def measure(folder: Path, how: str, limit: int) -> tuple[int, int]:
    """Rows of an epoch, and the most memory that it took beside what the process held before."""
    rows, before, peak = map(int, run_python(EPOCH, folder, limit, how, 2, timeout=110).split())
    return rows, peak - before


@pytest.mark.parametrize("how", ["in order", "shuffled", "filtered"])
@pytest.mark.parametrize("limit_mib", [64, 128])
def test_an_epoch_stays_within_the_memory_limit(tokens, how, limit_mib):
    rows, used = measure(tokens, how, limit_mib * MIB)
    assert rows == (NUM_ROWS if how != "filtered" else NUM_ROWS * 2 // 5)
    assert used <= limit_mib * MIB * 1.2 + NOISE, f"{used / MIB:.0f} MiB"
