"""Hundreds of passes leave nothing behind, whatever is done to batches on their way."""

from __future__ import annotations

import gc
import multiprocessing
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import functions
import numpy as np
import psutil
import pyarrow as pa
import pytest
from data import write_fragments
from image_data import encoded, photo

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_ROWS = 24
NUM_PASSES = 200
WARM_PASSES = 40


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """Rows with tokens, an image and text, in several row groups."""
    rng = np.random.default_rng(2)
    table = pa.table(
        {
            "id": range(NUM_ROWS),
            "image": [encoded(photo(64, 48, seed), "JPEG") for seed in range(NUM_ROWS)],
            "input_ids": [rng.integers(1, 99, length).tolist() for length in rng.integers(1, 40, NUM_ROWS)],
            "label": [f"row {number}" for number in range(NUM_ROWS)],
        }
    )
    folder = tmp_path_factory.mktemp("long")
    write_fragments(folder, table, num_fragments=2, row_group_rows=5)
    return fb.load_dataset(folder, split="train").shuffle(1)


STREAMS: dict[str, Callable[[fb.Dataset], Any]] = {
    "batches": lambda ds: ds.batches(4),
    "steps": lambda ds: ds.batches(4, steps_per_epoch=NUM_PASSES * NUM_ROWS // 4),
    "tensors": lambda ds: ds.to_torch(4, pin_memory=True),
    "padded": lambda ds: ds.to_torch(4, padding=True),
    "packed": lambda ds: ds.to_torch(4, pack=fb.Pack(length=64, columns=["input_ids"])),
    "images": lambda ds: ds.to_torch(4, decode={"image": fb.Image(size=32, crop="random")}),
    "drawn": lambda ds: ds.shuffle(1, weights="id + 1").batches(4),
    "threads": lambda ds: ds.map(functions.draw, batched=True, with_seeds=True, num_threads=2).batches(4),
    "processes": lambda ds: ds.map(functions.draw, batched=True, with_seeds=True, num_proc=2).to_torch(4),
}


def resources() -> dict[str, int]:
    """Counts what a process may leave behind."""
    gc.collect()
    process = psutil.Process()
    maps = Path("/proc/self/maps").read_text()
    return {
        "processes": len(multiprocessing.active_children()),
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
        "blocks": maps.count("memfd:") + maps.count("/dev/shm"),
        "MiB": process.memory_info().rss >> 20,
    }


@pytest.mark.parametrize("name", STREAMS)
def test_two_hundred_passes_leave_nothing_behind(rows: fb.Dataset, name: str) -> None:
    stream = STREAMS[name](rows if name == "steps" else rows.repeat(NUM_PASSES))
    before, passes = {}, set()
    for _ in stream:
        number = stream.state_dict()["epoch"]
        passes.add(number)
        if number == WARM_PASSES and not before:
            before = resources()
    assert len(passes) == NUM_PASSES
    # Threads that read files come and go with the reads, a second after the last.
    deadline = time.monotonic() + 10
    while (after := resources())["threads"] > before["threads"] + 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert after["processes"] == before["processes"]
    assert after["threads"] <= before["threads"] + 4
    assert after["descriptors"] <= before["descriptors"] + 4
    assert after["blocks"] <= before["blocks"] + 4
    assert after["MiB"] <= before["MiB"] + 24
    del stream
    gc.collect()
    # Workers end with the stream that they work for.
    for child in multiprocessing.active_children():
        child.join(10)
    assert multiprocessing.active_children() == []
