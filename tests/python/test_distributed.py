"""Ranks found without being told: of `torch.distributed`, or of the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rows import ids_of, write_uneven

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_ROWS = 500
WORLD_SIZE = 2

READ = """
import json, os, sys
import forebay as fb
sys.path.insert(0, os.environ["TESTS"])
from rows import batches_of

def read():
    stream = fb.load_dataset(os.environ["DATA"], split="train").shuffle(4, num_lanes=6, window_rows=20).batches(32)
    print(json.dumps({"stream": repr(stream), "steps": len(stream), "batches": batches_of(stream)}))
"""

JOIN = """
import torch.distributed as dist
dist.init_process_group(
    "gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["ME"]), world_size=int(os.environ["OF"])
)
"""

LEAVE = """
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    write_uneven(folder, NUM_ROWS)
    return folder


def launch(program: str, environments: Sequence[dict[str, str]], data: Path) -> list[subprocess.CompletedProcess[str]]:
    """Runs one process for each environment, all at once, and waits for all of them."""
    here = str(Path(__file__).parent)
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    common = inherited | {"TESTS": here, "DATA": str(data), "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=common | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    try:
        outputs = [process.communicate(timeout=100) for process in running]
    finally:
        for process in running:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(running, outputs, strict=True)
    ]


def reports(finished: list[subprocess.CompletedProcess[str]]) -> list[dict[str, Any]]:
    for process in finished:
        assert process.returncode == 0, process.stderr
    return [json.loads(process.stdout.splitlines()[-1]) for process in finished]


def test_ranks_of_an_initialised_process_group_share_an_epoch(data: Path, tmp_path: Path) -> None:
    environments = [{"ME": str(rank), "OF": str(WORLD_SIZE), "MEET": str(tmp_path / "meet")} for rank in range(2)]
    shares = reports(launch(READ + JOIN + "read()" + LEAVE, environments, data))
    check_shares(shares, data)


def test_ranks_of_the_environment_share_an_epoch(data: Path) -> None:
    environments = [{"RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE)} for rank in range(WORLD_SIZE)]
    shares = reports(launch(READ + "read()", environments, data))
    check_shares(shares, data)


def check_shares(shares: list[dict[str, Any]], data: Path) -> None:
    whole = ids_of(fb.load_dataset(data, split="train").shuffle(4, num_lanes=6, window_rows=20).batches(100))
    for rank, share in enumerate(shares):
        assert f"rank {rank} of {WORLD_SIZE}" in share["stream"]
        assert share["steps"] == len(share["batches"])
        assert [row for batch in share["batches"] for row in batch] == whole[rank::WORLD_SIZE]
    assert len({share["steps"] for share in shares}) == 1


def test_a_stream_made_before_the_process_group_is_refused(data: Path, tmp_path: Path) -> None:
    # As rank 0 of 1 it would deliver every row to every rank.
    program = (
        READ
        + 'early = fb.load_dataset(os.environ["DATA"], split="train").batches(32)\n'
        + JOIN
        + """
try:
    next(iter(early))
except fb.SettingError as error:
    print(json.dumps(str(error)))
"""
        + LEAVE
    )
    environments = [{"ME": str(rank), "OF": str(WORLD_SIZE), "MEET": str(tmp_path / "meet")} for rank in range(2)]
    for rank, message in enumerate(reports(launch(program, environments, data))):
        assert "rank 0 of 1" in message
        assert f"rank {rank} of 2" in message


def test_an_argument_goes_before_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    dataset = fb.load_dataset(data, split="train")
    assert ids_of(dataset.batches(10)) == list(range(1, NUM_ROWS, 4))
    assert ids_of(dataset.batches(10, rank=2, world_size=5)) == list(range(2, NUM_ROWS, 5))
    assert len(list(dataset)) == NUM_ROWS


@pytest.mark.parametrize(("rank", "world_size"), [("one", "4"), ("1", ""), ("4", "4"), ("-1", "4"), ("0", "0")])
def test_an_environment_that_cannot_be_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    dataset = fb.load_dataset(data, split="train")
    with pytest.raises(fb.SettingError, match=r"(?i)rank|world.size"):
        dataset.batches(10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": 2, "world_size": 2}, "rank: expected below the world size of 2, got 2"),
        ({"rank": 0}, "give both or none"),
        ({"world_size": 2}, "give both or none"),
        ({"rank": -1, "world_size": 2}, "rank: expected 0 to"),
        ({"rank": 0, "world_size": 0}, "world_size: expected 1 to"),
        ({"rank": 0, "world_size": 1, "remainder": "cut"}, "remainder: expected 'drop', 'pad' or 'keep'"),
    ],
    ids=str,
)
def test_a_share_that_cannot_be_is_refused(data: Path, settings: dict[str, Any], words: str) -> None:
    dataset = fb.load_dataset(data, split="train")
    with pytest.raises(fb.SettingError, match=words):
        dataset.batches(10, **settings)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "8", True, None, 1 << 31])
def test_a_batch_size_that_cannot_be_is_refused(data: Path, batch_size: Any) -> None:
    with pytest.raises(fb.SettingError, match="batch_size: expected"):
        fb.load_dataset(data, split="train").batches(batch_size)
