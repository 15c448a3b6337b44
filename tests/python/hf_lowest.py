"""What `test_hf_versions.py` runs in an environment with the oldest `datasets`: no torch is there."""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from itertools import chain, product
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.distributed import split_dataset_by_node
from hf_data import open_rows, shown, write_rows

import forebay as fb


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


def check_steps(ds: fb.Dataset) -> None:
    steps = [
        lambda rows: rows,
        lambda rows: rows.map(lambda row: {"double": row["id"] * 2}).filter(lambda row: row["id"] % 3),
        lambda rows: rows.skip(10).take(50),
        lambda rows: rows.with_format("numpy"),
        lambda rows: rows.with_format("arrow").iter(7),
        lambda rows: rows.batch(8),
        lambda rows: rows.rename_column("id", "number").cast_column("number", datasets.Value("string")),
        lambda rows: datasets.interleave_datasets([rows, rows.take(20)], stopping_strategy="all_exhausted"),
        lambda rows: datasets.concatenate_datasets([rows, rows.take(20)]),
    ]
    for number, step in enumerate(steps):
        theirs = datasets.Dataset(pa.table(ds)).to_iterable_dataset()
        assert shown(list(step(ds.to_hf()))) == shown(list(step(theirs))), number


def check_division(ds: fb.Dataset) -> None:
    for world_size in range(1, 6):
        found = [ids(split_dataset_by_node(ds.to_hf(), rank, world_size)) for rank in range(world_size)]
        assert sorted(chain.from_iterable(found)) == sorted(ids(ds))
    shuffled = ds.to_hf().map(lambda row: row).shuffle(3, buffer_size=20)
    shuffled.set_epoch(2)
    assert sorted(ids(shuffled)) == sorted(ids(ds))
    fixed = ds.to_hf().take(20)
    fixed.set_epoch(2)
    assert ids(fixed) == ids(ds)[:20]


def check_resumes(ds: fb.Dataset) -> None:
    for epoch in (0, 2):
        stream = ds.to_hf()
        stream.set_epoch(epoch)
        whole, seen = ids(stream), []
        for _ in range(3):
            rows = iter(stream)
            seen += [next(rows)["id"] for _ in range(11)]
            state = json.loads(json.dumps(stream.state_dict()))
            stream = pickle.loads(pickle.dumps(ds.to_hf()))
            stream.load_state_dict(state)
        assert seen + ids(stream) == whole


def check_states_before_the_first_row(ds: fb.Dataset) -> None:
    steps = [
        lambda rows: rows.with_format("numpy"),
        lambda rows: rows.shard(3, 1),
        lambda rows: rows.map(lambda row: {"double": row["id"] * 2}),
    ]
    loops: list[Any] = [list, lambda rows: list(rows.iter(8))]
    for step, loop in product(steps, loops):
        first, later = step(ds.to_hf()), step(ds.to_hf())
        later.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert shown(loop(later)) == shown(loop(first))
        first.set_epoch(1)
        later.load_state_dict(first.state_dict())
        assert shown(loop(later)) == shown(loop(first))


def check_taking_over(paths: list[str]) -> None:
    def load() -> Any:
        return datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True)

    theirs = load()
    assert shown(list(fb.from_hf(theirs))) == shown(list(theirs))
    with fb.hf.enable():
        ours = load()
    assert type(ours._ex_iterable).__name__ == "ForebayExamplesIterable"
    assert shown(list(ours)) == shown(list(theirs))
    assert type(load()._ex_iterable).__name__ == "ArrowExamplesIterable"


def main() -> None:
    assert datasets.__version__ == sys.argv[1], datasets.__version__
    with tempfile.TemporaryDirectory() as folder:
        paths = write_rows(Path(folder))
        rows = open_rows(paths)
        for ds in (rows, rows.filter("id % 5 <> 2").shuffle(7, num_lanes=6, window_rows=4)):
            check_steps(ds)
            check_division(ds)
            check_resumes(ds)
            check_states_before_the_first_row(ds)
        check_taking_over(paths)
    sys.stdout.write("all checked\n")


if __name__ == "__main__":
    main()
