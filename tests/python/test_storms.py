"""What many readers and long troubles come to: storms that all wait out together, ranks that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from fault_proxy import Fault, FaultProxy
from hub_data import ids_file
from rows import ids_of
from upstreams import Objects

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from upstreams import Answer, Asked

NUM_ROWS = 4000
NUM_OBJECTS, NUM_OBJECTS_OF_STORMS = 40, 400
"""A storm is to begin when as many requests are under way as there may be."""
STORM_SECONDS, LATENCY = 3.0, 0.05
SECONDS_OF_ONSET = 0.5
OPTIONS = {"retry_for": "60s", "read_timeout": "5s"}


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(Objects()) as proxy:
        yield proxy


def put(proxy: FaultProxy, num_objects: int) -> list[str]:
    """Serves objects whose requests cannot be merged, under names that no test before has used."""
    proxy.clear()
    folder, step = uuid.uuid4().hex, NUM_ROWS // num_objects
    names = [f"{folder}/part-{number:03}.parquet" for number in range(num_objects)]
    for number, name in enumerate(names):
        proxy.upstream.objects[name] = ids_file(number * step, (number + 1) * step)
    return [f"{proxy.url}/{name}" for name in names]


@pytest.fixture
def source(proxy) -> list[str]:
    return put(proxy, NUM_OBJECTS)


def test_a_storm_is_waited_out_by_all_together(proxy):
    ds = fb.load_dataset(put(proxy, NUM_OBJECTS_OF_STORMS), split="train", storage_options=OPTIONS)
    usual = Fault(latency=LATENCY, times=None)
    proxy.clear()
    proxy.faults = [usual]
    assert sorted(ids_of(ds.shuffle(1).batches(100))) == list(range(NUM_ROWS))
    ideal = proxy.count()
    assert ideal >= NUM_OBJECTS_OF_STORMS
    proxy.clear()
    proxy.faults = [Fault(status=503, times=None, seconds=STORM_SECONDS, skip=ideal // 3), usual]
    assert sorted(ids_of(ds.shuffle(1).batches(100))) == list(range(NUM_ROWS))
    refused = sorted(asked.started for asked in proxy.log if asked.status == 503)
    # At its onset those are refused, too, that are under way until the first refusal has come back.
    at_onset = sum(started < refused[0] + SECONDS_OF_ONSET for started in refused)
    assert at_onset < NUM_OBJECTS_OF_STORMS // 2
    assert len(refused) >= 2
    # Then one goes ahead each second.
    assert len(refused) - at_onset <= STORM_SECONDS + 2
    assert proxy.count() <= at_onset + (STORM_SECONDS + 3) + 1.1 * ideal


class OneByOne(Objects):
    """Answers one request after another, also those that nobody waits for any more."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._turns = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._turns.shutdown()

    def ask(self, asked: Asked) -> Answer:
        return self._turns.submit(self._answer, asked).result()

    def _answer(self, asked: Asked) -> Answer:
        time.sleep(self._seconds)
        return super().ask(asked)


def test_a_store_that_answers_one_by_one_is_asked_for_no_more_than_it_answers_in_time():
    # Twenty are answered in time, and 64 are asked for at first: those that are given up keep it from all others.
    options = OPTIONS | {"read_timeout": "600ms"}
    with FaultProxy(OneByOne(0.03)) as proxy:
        ds = fb.load_dataset(put(proxy, 100), split="train", storage_options=options)
        assert sorted(ids_of(ds.shuffle(1).batches(100))) == list(range(NUM_ROWS))
        assert proxy.count() < 2 * 200


READ = """
import json, sys
import pyarrow as pa
import forebay as fb

source, rank, world_size, options = json.loads(sys.argv[1])
ds = fb.load_dataset(source, split="train", storage_options=options).shuffle(7)
stream = ds.batches(50 // world_size, rank=rank, world_size=world_size)
for batch in stream:
    print(json.dumps([pa.record_batch(batch)["id"].to_pylist(), stream.state_dict()]), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("num_steps", [1, 20])
def test_a_job_whose_rank_was_killed_goes_on_with_fewer(proxy, source, num_steps):
    proxy.faults = [Fault(cut_after=200, ending="reset", times=None, chance=0.1)]
    command = [sys.executable, "-c", READ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([*command, json.dumps([source, rank, 2, OPTIONS])], env=os.environ, **pipes)
        for rank in range(2)
    ]
    seen: list[int] = []
    try:
        for _ in range(num_steps):
            steps = [json.loads(rank.stdout.readline()) for rank in ranks]
            seen += [row for ids, _ in steps for row in ids]
            # A step is done when all ranks have done it; then a state is saved, and any rank's is enough.
            state = steps[0][1]
            for rank in ranks:
                rank.stdin.write("\n")
                rank.stdin.flush()
        ranks[1].send_signal(signal.SIGKILL)
        assert ranks[1].wait() == -signal.SIGKILL
        # Steps that this one takes alone were never saved.
        ranks[0].stdout.readline()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    stream = fb.load_dataset(source, split="train", storage_options=OPTIONS).shuffle(7).batches(30)
    stream.load_state_dict(state)
    assert sorted(seen + ids_of(stream)) == list(range(NUM_ROWS))
    assert len(seen) == 50 * num_steps
