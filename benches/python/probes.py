"""Probes of Forebay, each for its own interpreter: `python probes.py NAME [FOLDER [LIMIT CASE]]`.

Memory is the kernel's peak resident size of the whole process: interpreter, torch and extension.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import measuring
from cases import CASES

if TYPE_CHECKING:
    from collections.abc import Callable

ROW_GROUP_BATCH_SIZE = 64
SEED = 7


def memory_of_torch() -> dict[str, Any]:
    """Only the interpreter and torch."""
    import torch  # noqa: F401

    return {"peak_bytes": measuring.peak_bytes()}


def memory_epoch(folder: str, limit: str, case: str) -> dict[str, Any]:
    """A shuffled epoch whose windows take half of the memory limit, the default; with a limit of 0, only opens it."""
    stream = _stream(folder, int(limit), case)
    if limit == "0":
        len(stream)
        return {"peak_bytes": measuring.peak_bytes()}
    num_batches = sum(1 for _ in stream)
    return {"peak_bytes": measuring.peak_bytes(), "batches": num_batches, "stats": stream.stats()}


def memory_row_group(path: str, limit: str, _case: str) -> dict[str, Any]:
    """One large row group, all columns, shuffled as in `memory_epoch`; with a limit of 0, only opens it."""
    import forebay as fb

    dataset = fb.load_dataset(path, split="train")
    if limit == "0":
        len(dataset.batches(ROW_GROUP_BATCH_SIZE))
        return {"peak_bytes": measuring.peak_bytes()}
    # Images have 64 MiB each, so a batch of one is a quarter of the limit.
    batch_size = 1 if "image" in dataset.column_names else ROW_GROUP_BATCH_SIZE
    shuffled = dataset.shuffle(seed=SEED, shuffle_bytes=int(limit) // 2)
    started = time.perf_counter()
    num_rows = sum(batch.num_rows for batch in shuffled.batches(batch_size, memory_limit=int(limit)))
    return {"peak_bytes": measuring.peak_bytes(), "rows": num_rows, "seconds": time.perf_counter() - started}


def _stream(folder: str, limit: int, name: str) -> Any:
    """Returns the stream of a case; a limit of 0 means the default."""
    import forebay as fb

    case = CASES[name]
    dataset = fb.load_dataset(folder, split="train", columns=list(case.columns))
    other = {"text": "ragged"} if case.form == "bytes" else None
    if not limit:
        return dataset.shuffle(seed=SEED).to_torch(case.batch_size, forms=other)
    shuffled = dataset.shuffle(seed=SEED, shuffle_bytes=limit // 2)
    return shuffled.to_torch(case.batch_size, memory_limit=limit, forms=other)


def hand_over(folder: str, name: str) -> dict[str, Any]:
    """An epoch in the dataset's order: the number of tensors taken, and the time spent on that without waiting."""
    import forebay as fb

    case = CASES[name]
    other = {"text": "ragged"} if case.form == "bytes" else None
    dataset = fb.load_dataset(folder, split="train", columns=list(case.columns))
    stream = dataset.to_torch(case.batch_size, forms=other)
    batches = iter(stream)
    seconds, num_tensors, waited = 0.0, 0, 0.0
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return {"seconds": seconds - waited, "tensors": num_tensors}
        seconds += time.perf_counter() - started
        waited = stream.stats()["seconds_waited"]
        num_tensors += sum(len(column) if isinstance(column, tuple) else 1 for column in batch.values())


def from_store(endpoint: str, name: str) -> dict[str, Any]:
    """An epoch of Arrow batches from a store on this machine, after one that opened the connections."""
    from slow_store import BUCKET

    import forebay as fb

    options = {
        "aws_endpoint_url": endpoint,
        "aws_access_key_id": "bench",
        "aws_secret_access_key": "bench",
        "aws_region": "us-east-1",
        "allow_http": "true",
        # The certificate was made for this run.
        "allow_invalid_certificates": "true",
    }
    case = CASES[name]
    dataset = fb.load_dataset(f"s3://{BUCKET}/", split="train", storage_options=options)
    stream = dataset.select_columns(list(case.columns)).batches(case.batch_size)
    for epoch in range(2):
        stream.set_epoch(epoch)
        started = time.perf_counter()
        for batch in stream:
            del batch
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": stream.stats()["bytes_fetched"]}


def exit_torch() -> dict[str, Any]:
    """Exits with torch imported."""
    import torch  # noqa: F401

    return {"ended": time.time()}


def exit_forebay(folder: str) -> dict[str, Any]:
    """Exits in the middle of an epoch, with threads at work."""
    # Bound to a global name: the iterator lives until the interpreter is torn down.
    global batches
    batches = iter(_stream(folder, 0, "tokens"))
    for _ in range(20):
        next(batches)
    return {"ended": time.time()}


batches: Any = None

PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "memory-of-torch": memory_of_torch,
    "memory-epoch": memory_epoch,
    "memory-row-group": memory_row_group,
    "hand-over": hand_over,
    "from-store": from_store,
    "exit-torch": exit_torch,
    "exit-forebay": exit_forebay,
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])), flush=True)
