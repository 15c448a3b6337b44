"""Memory and exit of Forebay, each seen in an interpreter of its own: `python probes.py NAME [FOLDER [LIMIT]]`.

Memory is the highest resident size that the kernel has seen, of the whole process: interpreter, torch and extension.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import harness

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_SIZE = 256
ROW_GROUP_BATCH_SIZE = 64
SEED = 7


def memory_of_torch() -> dict[str, Any]:
    """The interpreter and torch, nothing else."""
    import torch  # noqa: F401

    return {"peak_bytes": harness.peak_bytes()}


def memory_opened(folder: str) -> dict[str, Any]:
    """Forebay with the data set opened and the stream made, no batch taken."""
    _stream(folder, None)
    return {"peak_bytes": harness.peak_bytes()}


def memory_epoch(folder: str, limit: str) -> dict[str, Any]:
    """A shuffled epoch whose windows take half of the memory limit, as by default."""
    stream = _stream(folder, int(limit))
    num_rows = sum(batch["tokens"].shape[0] for batch in stream)
    return {"peak_bytes": harness.peak_bytes(), "rows": num_rows, "stats": stream.stats()}


def memory_row_group(path: str, limit: str) -> dict[str, Any]:
    """One large row group, all columns, shuffled as in `memory_epoch`; a limit of 0 only opens it."""
    import forebay as fb

    dataset = fb.load_dataset(path, split="train")
    if limit == "0":
        len(dataset.batches(ROW_GROUP_BATCH_SIZE))
        return {"peak_bytes": harness.peak_bytes()}
    # Images are of 64 MiB each: a batch of one is a fourth of the limit.
    batch_size = 1 if "image" in dataset.column_names else ROW_GROUP_BATCH_SIZE
    shuffled = dataset.shuffle(seed=SEED, shuffle_bytes=int(limit) // 2)
    started = time.perf_counter()
    num_rows = sum(batch.num_rows for batch in shuffled.batches(batch_size, memory_limit=int(limit)))
    return {"peak_bytes": harness.peak_bytes(), "rows": num_rows, "seconds": time.perf_counter() - started}


def _stream(folder: str, limit: int | None) -> Any:
    import forebay as fb

    dataset = fb.load_dataset(folder, split="train", columns=["tokens"])
    if limit is None:
        return dataset.shuffle(seed=SEED).to_torch(BATCH_SIZE)
    return dataset.shuffle(seed=SEED, shuffle_bytes=limit // 2).to_torch(BATCH_SIZE, memory_limit=limit)


def exit_torch() -> dict[str, Any]:
    """Ends with torch imported."""
    import torch  # noqa: F401

    return {"ended": time.time()}


def exit_forebay(folder: str) -> dict[str, Any]:
    """Ends in the middle of an epoch, with threads at work."""
    # Bound to a global name: the iterator lives until the interpreter is torn down.
    global batches
    batches = iter(_stream(folder, None))
    for _ in range(20):
        next(batches)
    return {"ended": time.time()}


batches: Any = None

PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "memory-of-torch": memory_of_torch,
    "memory-opened": memory_opened,
    "memory-epoch": memory_epoch,
    "memory-row-group": memory_row_group,
    "exit-torch": exit_torch,
    "exit-forebay": exit_forebay,
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])), flush=True)
