"""A process that opens, reads and closes over and over: it holds no more than after the first few times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from data import ids_table, write_fragments
from programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

NUM_CYCLES = 1000

MAX_GROWTH_BYTES = 8 << 20
"""What Python and the C library may keep of a thousand cycles: less than ten kilobytes of each."""

PROGRAM = """
import gc, itertools, json, os, sys, time
from contextlib import suppress
from pathlib import Path
import forebay as fb
import tqdm

# It would start a thread for the first progress bar, which a busy machine shows at any time.
tqdm.tqdm.monitor_interval = 0
folder, num_cycles, make = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def held():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    threads = []
    for task in Path("/proc/self/task").iterdir():
        # It may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            threads.append((task / "comm").read_text().strip())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {"bytes": pages * os.sysconf("SC_PAGESIZE"), "threads": sorted(threads), "descriptors": descriptors}


def settled():
    # Threads of the IO runtime end on their own a moment after the last stream.
    end = time.monotonic() + 5
    while "forebay" in str((now := held())["threads"]) and time.monotonic() < end:
        time.sleep(0.02)
    return now


def cycle(number):
    dataset = fb.load_dataset(folder, split="train").filter(f"id % 7 <> {number % 7}").shuffle(number)
    stream = dataset.to_torch(100) if make == "to_torch" else dataset.batches(100)
    stream.set_epoch(number)
    batches = iter(stream)
    # To the end, left early, closed, and never begun, in turn.
    taken = (None, 2, 1, 0)[number % 4]
    for _ in itertools.islice(batches, taken):
        pass
    stream.state_dict(), stream.stats()
    if number % 4 == 2:
        batches.close()


cycle(0)
before = None
for number in range(num_cycles):
    if number == 10:
        before = settled()
    cycle(number)
print(json.dumps([before, settled()]))
"""


@pytest.mark.parametrize("make", ["batches", "to_torch"])
def test_a_thousand_cycles_hold_no_more_than_ten(tmp_path: Path, make: str) -> None:
    write_fragments(tmp_path, ids_table(2000), num_fragments=2, row_group_rows=500)
    before, after = json.loads(run_python(PROGRAM, tmp_path, NUM_CYCLES, make, timeout=110))
    assert after["threads"] == before["threads"]
    assert "forebay" not in str(after["threads"])
    assert after["descriptors"] == before["descriptors"]
    assert after["bytes"] - before["bytes"] < MAX_GROWTH_BYTES, (before, after)
