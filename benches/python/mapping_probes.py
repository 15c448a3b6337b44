"""Runs one loop in its own process: `python mapping_probes.py JSON` prints batches, seconds and CPU time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SEED = 7
STEP_SECONDS = 0.02
"""Seconds of a training step."""
MAX_STEPS = 1000
WIDTH = 2048
"""Tokens per row."""


def mapped(order: dict[str, Any]) -> Any:
    """`Dataset.map` in processes."""
    return _dataset(order).map(_function(order), batched=True, num_proc=order["num_workers"]).to_torch(_size(order))


def torch_workers(order: dict[str, Any]) -> Any:
    """Torch's DataLoader, whose workers read and run the function."""
    from torch.utils.data import DataLoader

    return DataLoader(
        _dataset(order).to_torch(_size(order), num_threads=1),
        batch_size=None,
        num_workers=order["num_workers"],
        collate_fn=_function(order),
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )


def forebay(order: dict[str, Any]) -> Any:
    """A stream, read in the loop's process."""
    return _dataset(order).to_torch(_size(order))


def pinned(order: dict[str, Any]) -> Any:
    """A stream into pinned memory."""
    return _dataset(order).to_torch(_size(order), pin_memory=True)


def datasets_streaming(order: dict[str, Any]) -> Any:
    """`datasets`: streaming, its default shuffle buffer, DataLoader."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    streamed = load_dataset("parquet", data_files={"train": order["urls"]}, split="train", streaming=True)
    streamed = streamed.select_columns(order["columns"]).shuffle(seed=SEED).with_format("torch")
    return DataLoader(streamed, batch_size=_size(order), num_workers=order["num_workers"])


def litdata(order: dict[str, Any]) -> Any:
    """Tokens as litdata stores them, copied on demand to a folder of this run."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    # Litdata has no option for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    given = order["storage_options"]
    os.environ["AWS_DEFAULT_REGION"] = given["aws_region"]
    options = {"endpoint_url": given["aws_endpoint"]}
    options |= {name: given[name] for name in ("aws_access_key_id", "aws_secret_access_key")}
    dataset = StreamingDataset(
        order["source"],
        item_loader=TokensLoader(block_size=WIDTH),
        cache_dir=order["cache"],
        shuffle=True,
        seed=SEED,
        storage_options=options,
    )
    return StreamingDataLoader(dataset, batch_size=_size(order), num_workers=order["num_workers"])


def mosaicml(order: dict[str, Any]) -> Any:
    """MosaicML streaming with its default shuffle, copied on demand to a folder of this run."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    given = order["storage_options"]
    os.environ |= {"S3_ENDPOINT_URL": given["aws_endpoint"], "AWS_DEFAULT_REGION": given["aws_region"]}
    os.environ |= {name.upper(): given[name] for name in ("aws_access_key_id", "aws_secret_access_key")}
    # Left by runs that were killed.
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote=order["source"].rstrip("/"),
        local=order["cache"],
        shuffle=True,
        shuffle_seed=SEED,
        batch_size=_size(order),
    )
    return DataLoader(dataset, batch_size=_size(order), num_workers=order["num_workers"])


LOADERS = {
    function.__name__: function
    for function in (mapped, torch_workers, forebay, pinned, datasets_streaming, litdata, mosaicml)
}


def _dataset(order: dict[str, Any]) -> Any:
    import forebay as fb

    options = order.get("storage_options")
    dataset = fb.load_dataset(order["source"], split="train", columns=order["columns"], storage_options=options)
    return dataset.shuffle(seed=SEED)


def _function(order: dict[str, Any]) -> Callable[[Any], Any]:
    import mapping_functions

    function: Callable[[Any], Any] = getattr(mapping_functions, order["function"])
    return function


def _size(order: dict[str, Any]) -> int:
    return int(order["batch_size"])


def rate(batches: Iterable[Any], num_epochs: int = 1) -> dict[str, Any]:
    """Runs one epoch to start the workers, then times others, each from its first batch on."""
    for _ in batches:
        pass
    seconds, cpu, count = 0.0, 0.0, 0
    for _ in range(num_epochs):
        taken = iter(batches)
        next(taken)
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in taken:
            count += 1
        seconds, cpu = seconds + time.perf_counter() - started, cpu + time.process_time() - cpu_started
    return {"batches": count, "seconds": seconds, "cpu": cpu}


def train(batches: Iterable[Any]) -> dict[str, Any]:
    """Makes steps that sleep for a fixed time, as a loop does that waits for a GPU, and sums the waiting for data."""
    taken = iter(batches)
    next(taken)
    waited, count, started = 0.0, 0, time.perf_counter()
    while count < MAX_STEPS:
        asked = time.perf_counter()
        if next(taken, None) is None:
            break
        waited += time.perf_counter() - asked
        time.sleep(STEP_SECONDS)
        count += 1
    return {"batches": count, "seconds": time.perf_counter() - started, "waited": waited}


def main() -> None:
    """Runs the loop named on the command line."""
    order = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        batches = LOADERS[order["loader"]](order | {"cache": cache})
        found = train(batches) if order["what"] == "train" else rate(batches, order.get("epochs", 1))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
