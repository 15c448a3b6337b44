"""Ranks that `torchrun` starts, reading from S3: they share every epoch, and others go on when they are killed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import order_model as model
import pytest
from programs import start_torchrun
from rows import ids_of, write_uneven

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

    from s3 import S3, Bucket

NUM_ROWS = 500
BATCH_SIZE = 16
SECONDS_TO_GET_THERE = 100.0

# Reads epoch 0, then epoch 1 from the state of an earlier job up to the step at which it waits for its death. It saves
# its state every third step, as any rank's is enough.
TRAIN = f"""
import json, os, signal, sys
import torch.distributed as dist
import forebay as fb
from rows import batches_of, ids

url, options, start, num_steps = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
join()
dataset = fb.load_dataset(url, split="train", storage_options=options).filter("id % 9 <> 4")
stream = dataset.shuffle(6, num_lanes=6, window_rows=20).batches({BATCH_SIZE})
stream.load_state_dict(start | {{"epoch": 0, "position": 0}})
epoch = batches_of(stream)
stream.load_state_dict(start)
steps = []
for batch in stream:
    steps.append(ids(batch))
    if len(steps) % 3 == 0:
        dist.barrier()
        saved = {{"state": stream.state_dict(), "steps": list(steps)}}
    if len(steps) == num_steps:
        say("waiting", json.dumps({{"epoch": epoch, "saved": saved}}))
        signal.pause()
"""


@pytest.fixture
def dataset(s3: S3, bucket: Bucket, tmp_path: Path) -> tuple[str, dict[str, str]]:
    write_uneven(tmp_path / "corpus", NUM_ROWS)
    return bucket.upload(tmp_path / "corpus", "corpus/"), s3.storage_options


def killed_job(
    dataset: tuple[str, dict[str, str]], num_ranks: int, folder: Path, start: dict[str, Any], num_steps: int
) -> list[dict[str, Any]]:
    """Runs a job until all of its ranks have done their steps, kills all of it, and returns what they had."""
    url, options = dataset
    arguments = [url, json.dumps(options), json.dumps(start), num_steps]
    with start_torchrun(TRAIN, num_ranks, folder, *arguments) as process:
        end = time.monotonic() + SECONDS_TO_GET_THERE
        while len(found := sorted(folder.glob("waiting-[0-9]"))) < num_ranks:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
    return [json.loads(path.read_text()) for path in found]


def test_jobs_that_are_killed_go_on_with_another_number_of_ranks(
    dataset: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    url, options = dataset
    selected = fb.load_dataset(url, split="train", storage_options=options).filter("id % 9 <> 4")
    stream = selected.shuffle(6, num_lanes=6, window_rows=20).batches(BATCH_SIZE)
    whole = ids_of(stream)
    stream.set_epoch(1)
    state, seen = stream.state_dict(), []
    expected = ids_of(stream)

    for num_ranks, num_steps in ((2, 5), (3, 4)):
        ranks = killed_job(dataset, num_ranks, tmp_path / f"{num_ranks} ranks", state, num_steps)
        # The whole epoch: as many steps on every rank, and every row on one.
        epochs = [rank["epoch"] for rank in ranks]
        assert len({len(epoch) for epoch in epochs}) == 1
        for rank, epoch in enumerate(epochs):
            assert [row for batch in epoch for row in batch] == whole[rank::num_ranks][: len(whole) // num_ranks]
        # The epoch that ended early, up to the last state.
        states = [rank["saved"]["state"] for rank in ranks]
        assert states == [states[0]] * num_ranks
        for step in zip(*(rank["saved"]["steps"] for rank in ranks), strict=True):
            seen += model.in_turn(list(step))
        state = states[0]
        assert state["position"] == len(seen)

    stream.load_state_dict(state)
    rest = ids_of(stream)
    assert 100 < len(rest) < NUM_ROWS - 100
    assert seen + rest == expected
    assert sorted(expected) == [row for row in range(NUM_ROWS) if row % 9 != 4]
