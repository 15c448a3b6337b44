"""Measures one reader of a Hub, in its own process: `python hub_readers.py JSON`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

SEED = 7


def forebay(task: Any) -> Any:
    """Forebay with its default shuffle."""
    import forebay as fb

    dataset = fb.load_dataset(str(task.folder), split="train", columns=task.columns)
    return dataset.shuffle(seed=SEED).to_torch(task.batch_size)


def datasets_shuffled(task: Any) -> Any:
    """`datasets`: streaming, its default shuffle buffer, DataLoader."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    streamed = load_dataset(str(task.folder), split="train", streaming=True, columns=task.columns).shuffle(seed=SEED)
    if task.case.form == "tensor":
        streamed = streamed.with_format("torch")
    return DataLoader(streamed, batch_size=task.batch_size, num_workers=task.num_workers)


def litdata_parquet(task: Any) -> Any:
    """Litdata on a repository's Parquet, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.item_loader import ParquetLoader
    from loaders import Sample

    dataset = StreamingDataset(
        f"hf://datasets/{task.folder}/data",
        item_loader=ParquetLoader(),
        cache_dir=f"{os.environ['XDG_CACHE_HOME']}/litdata-{task.folder.name}",
        shuffle=True,
        seed=SEED,
        transform=Sample(task),
    )
    return StreamingDataLoader(dataset, batch_size=task.batch_size)


READERS = {function.__name__: function for function in (forebay, datasets_shuffled, litdata_parquet)}


def main(order: dict[str, Any]) -> None:
    """Warms up a reader on a tiny repository, measures it on a large one, and prints both results."""
    for name in [name for name in os.environ if name.startswith("HF_")]:
        del os.environ[name]
    os.environ.update(order["environment"])
    # These libraries read the environment on import.
    import measuring
    from cases import CASES, Task

    case = CASES[order["case"]]

    def task(label: str) -> Task:
        repository = Path(f"bench/{case.name}-{label}")
        return Task(case, repository, repository, order["num_cores"], order["num_workers"])

    reader = READERS[order["function"]]
    tiny = measuring.check(reader, task("tiny"))
    measuring.take_and_give_back(order["free_bytes"])
    found = measuring.measure(reader, task("whole"), order["max_seconds"])
    print(json.dumps({"checked": asdict(tiny), "measured": asdict(found)}), flush=True)
    # Some readers leave threads and workers that outlive the interpreter.
    measuring.end_workers()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
