"""Ranks that would not read the same epoch: all of them are told, and none of them waits for ever."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from programs import torchrun
from rows import ids_of, write_uneven

import forebay as fb
from forebay import distributed

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 500

# What rank 1 has otherwise than the others, and what every rank is told.
DIFFERENCES = {
    "batch size": ("same", {"batch_size": 32}, {"batch_size": 64}, ["batch_size is 32 on {others}, 64 on rank 1"]),
    "remainder": (
        "same",
        {"remainder": "pad"},
        {"remainder": "keep"},
        ["remainder differs between {others} and rank 1"],
    ),
    "last batch": (
        "same",
        {"drop_last": False},
        {"drop_last": True},
        ["drop_last is False on {others}, True on rank 1"],
    ),
    "seed": ("same", {"seed": 1}, {"seed": 2**64 - 1}, [f"seed is 1 on {{others}}, {2**64 - 1} on rank 1"]),
    "lanes": ("same", {"num_lanes": 6}, {"num_lanes": 7}, ["num_lanes is 6 on {others}, 7 on rank 1"]),
    "window": ("same", {"window_rows": 20}, {"window_rows": 21}, ["window_rows is 20 on {others}, 21 on rank 1"]),
    "order": ("same", {"seed": 1}, {"seed": None}, ["order differs between {others} and rank 1"]),
    "query": (
        "same",
        {"query": "id < 400"},
        {"query": "id < 300"},
        ["query differs between {others} and rank 1", "number of rows is 400 on {others}, 300 on rank 1"],
    ),
    "epoch": ("same", {"epoch": 3}, {"epoch": 4}, ["epoch is 3 on {others}, 4 on rank 1"]),
    "position": ("same", {"position": 0}, {"position": 60}, ["position is 0 on {others}, 60 on rank 1"]),
    "listing": (
        "listing",
        {},
        {},
        ["dataset differs between {others} and rank 1", f"number of rows is {NUM_ROWS} on {{others}}, 333 on rank 1"],
    ),
    "version of an object": ("version", {}, {}, ["dataset differs between {others} and rank 1"]),
    "passes": ("same", {"passes": 2}, {"passes": 3}, ["number of passes is 2 on {others}, 3 on rank 1"]),
    "an end": ("same", {"passes": 1}, {"passes": None}, ["number of passes is 1 on {others}, 0 on rank 1"]),
    "steps": (
        "same",
        {"steps_per_epoch": 5},
        {"steps_per_epoch": 6},
        ["steps_per_epoch is 5 on {others}, 6 on rank 1"],
    ),
    "step": (
        "same",
        {"steps_per_epoch": 5},
        {"steps_per_epoch": 5, "done": 2},
        ["step of the epoch is 0 on {others}, 2 on rank 1"],
    ),
    "who reads": (
        "same",
        {"replicate": 3},
        {"replicate": 3, "read_once": True},
        ["read_once is False on {others}, True on rank 1"],
    ),
    "release": ("same", {}, {"version": "0.0.1"}, ["version of Forebay differs between {others} and rank 1"]),
    "packing": ("same", {"length": 16}, {"length": 32}, ["packing differs between {others} and rank 1"]),
}

COMPARE = """
import json, os, sys
import forebay as fb
from forebay import loader
from rows import batches_of, ids_of

def make(
    folder,
    query=None,
    seed=1,
    num_lanes=6,
    window_rows=20,
    version=fb.__version__,
    epoch=0,
    position=0,
    done=0,
    passes=1,
    length=None,
    batch_size=32,
    **settings,
):
    loader.__version__ = version
    dataset = fb.load_dataset(f"{sys.argv[1]}/{folder}", split="train")
    if query is not None:
        dataset = dataset.filter(query)
    if length is not None:
        dataset = dataset.sql("SELECT [id, id] AS ids FROM dataset")
    if seed is not None:
        dataset = dataset.shuffle(seed, num_lanes=num_lanes, window_rows=window_rows)
    if length is not None:
        return dataset.to_torch(batch_size, pack=fb.Pack(length), **settings)._stream
    stream = dataset.repeat(passes).batches(batch_size, **settings)
    state = stream.state_dict() | {"epoch": epoch, "position": position}
    if done:
        state["steps"]["done"] = done
    stream.load_state_dict(state)
    return stream

join()
rank = int(os.environ["RANK"])
messages = {}
for name, (folder, usual, others, _) in json.loads(sys.argv[2]).items():
    stream = make(f"{folder}-1", **others) if rank == 1 else make(f"{folder}-0", **usual)
    try:
        messages[name] = batches_of(stream)
    except fb.AgreementError as error:
        messages[name] = str(error)
    assert messages[name]
agreed = make("same-0" if rank else "same-1", epoch=1)
report({"messages": messages, "rows": ids_of(agreed), "steps": len(agreed)})
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same objects, objects of which one is missing, and objects of which one was written again."""
    folder = tmp_path_factory.mktemp("agreement")
    for name in ("same", "listing", "version"):
        write_uneven(folder / f"{name}-0", NUM_ROWS)
        write_uneven(folder / f"{name}-1", NUM_ROWS)
    (folder / "listing-1" / "part-2.parquet").unlink()
    write_uneven(folder / "version-1", NUM_ROWS, compression="snappy")
    return folder


def test_every_rank_is_told_what_differs_and_then_they_agree_again(folders: Path, tmp_path: Path) -> None:
    found = torchrun(COMPARE, 3, tmp_path, folders, json.dumps(DIFFERENCES))
    others = "ranks 0, 2"
    for rank, report in enumerate(found):
        for name, (*_, expected) in DIFFERENCES.items():
            message = report["messages"][name]
            for words in expected:
                assert words.format(others=others) in message, message
            assert message.count(" is ") + message.count(" differs ") == len(expected), message
        query = "id < 300" if rank == 1 else "id < 400"
        assert f'(on this one, rank {rank}: ["{query}"])' in report["messages"]["query"]
    whole = fb.load_dataset(folders / "same-0", split="train").shuffle(1, num_lanes=6, window_rows=20).batches(100)
    whole.set_epoch(1)
    rows = ids_of(whole)
    for rank, report in enumerate(found):
        assert report["steps"] == -(-len(report["rows"]) // 32)
        assert report["rows"] == rows[rank::3][: len(rows) // 3]


ALONE = """
import os, sys, time, warnings
import forebay as fb
from forebay import distributed
from rows import ids_of
from torch.utils.data import DataLoader

join()
rank = int(os.environ["RANK"])
dataset = fb.load_dataset(sys.argv[1], split="train")
found = {}
if rank == 0:
    # Nobody else is asked, so nobody else need be there.
    found["told"] = len(list(dataset.batches(50, rank=0, world_size=2)))
    found["rows"] = len(list(dataset)) + len(dataset.take(3))
    assert iter(dataset.batches(50)) is not None

stream = dataset.to_torch(50)
found["workers"] = ids_of(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork"))
stream.check_ranks()
stream.set_epoch(rank)
try:
    stream.check_ranks()
except fb.AgreementError as error:
    found["error"] = str(error)

distributed.WARN_AFTER = 1 if rank else 0.1
stream.set_epoch(0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if rank == 1:
        time.sleep(2)
    next(iter(stream))
found["warnings"] = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
report(found)
"""


def test_ranks_are_asked_only_where_all_of_them_take_part(folders: Path, tmp_path: Path) -> None:
    found = torchrun(ALONE, 2, tmp_path, folders / "same-0")
    assert found[0]["told"] == NUM_ROWS // 2 // 50
    assert found[0]["rows"] == NUM_ROWS + 3
    for rank, report in enumerate(found):
        assert report["workers"] == list(range(rank, NUM_ROWS, 2))
        assert "epoch is 0 on rank 0, 1 on rank 1" in report["error"]
    [late] = found[0]["warnings"]
    assert re.search(r"rank 0 has waited \d+ s for the other ranks", late)
    assert found[1]["warnings"] == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([0, 1, 2], "ranks 0 to 2"),
        ([0, 2], "ranks 0, 2"),
        ([0, *range(2, 9)], "ranks 0, 2, 3, 4 and 4 more"),
    ],
)
def test_many_ranks_are_named_in_few_words(ranks: list[int], words: str) -> None:
    assert distributed._ranks(ranks) == words


def test_many_values_are_named_in_few_words() -> None:
    message = distributed._difference("order.seed", 0, 0, list(range(100)))
    assert message == "seed is 0 on rank 0, 1 on rank 1, 2 on rank 2, 3 on rank 3 and 96 more"


class Group:
    """What a process group says of itself."""

    def __init__(self, backends: str, bound: torch.device | None) -> None:
        self.get_backend_config = lambda: backends
        self.group = SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=bound))


@pytest.mark.parametrize(
    ("backends", "bound", "device"),
    [
        ("cpu:gloo,cuda:gloo", None, "cpu"),
        ("cpu:gloo,cuda:nccl", torch.device("cuda", 2), "cpu"),
        ("cuda:nccl", None, "cuda"),
        ("cuda:nccl", torch.device("cuda", 2), "cuda:2"),
        ("xpu:xccl", None, "xpu"),
    ],
)
def test_facts_are_sent_from_a_device_that_the_group_knows(
    backends: str, bound: torch.device | None, device: str
) -> None:
    assert distributed._device(Group(backends, bound)) == device
