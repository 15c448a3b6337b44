"""Ranks that are killed before the first batch: those that wait for them are told, and end."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from programs import python_command, python_environment
from rows import write_uneven

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 500
SECONDS_TO_BE_TOLD = 60.0

# The one that lives says when it begins to wait for the other, which has joined and does nothing more.
RANK = """
import asyncio, datetime, sys
import torch.distributed as dist
import forebay as fb

# Longer than the test waits: it is the death that ends the waiting, not this.
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=3))
dist.barrier()
print("joined", flush=True)
sys.stdin.readline()
stream = fb.load_dataset(sys.argv[1], split="train").shuffle(4).to_torch(32)


async def first():
    async for batch in stream:
        return batch


WAYS = {
    "loop": lambda: next(iter(stream)),
    "check": stream.check_ranks,
    "async": lambda: asyncio.run(first()),
}
print("asking", flush=True)
for way in sys.argv[2:]:
    try:
        WAYS[way]()
        print(way, "was not told", flush=True)
    except Exception as error:
        print(way, type(error).__name__, error, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    write_uneven(folder, NUM_ROWS)
    return folder


@contextlib.contextmanager
def two_ranks(*arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts two ranks that nobody looks after, and waits until they have joined."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            python_command(RANK, *arguments),
            env=python_environment(world | {"RANK": str(rank), "OMP_NUM_THREADS": "1"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "joined\n", rank.communicate()
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def check(rank: subprocess.Popen[str], ways: list[str]) -> None:
    """Checks that a rank, which is about to ask, is told of the other's death in each way, and ends."""
    out, err = rank.communicate(timeout=SECONDS_TO_BE_TOLD)
    told = [line.partition("Error ") for line in out.splitlines()]
    assert [way + error for way, error, _ in told] == [f"{way} AgreementError " for way in ways], (out, err)
    assert all(message.startswith("the ranks could not compare what they are about to read: ") for *_, message in told)
    assert (rank.returncode, err) == (0, "")


def ask(rank: subprocess.Popen[str]) -> None:
    """Lets a rank begin to read."""
    rank.stdin.write("\n")
    rank.stdin.flush()
    assert rank.stdout.readline() == "asking\n", rank.communicate()


def test_a_rank_that_asks_one_that_was_killed_is_told_whenever_it_asks(folder: Path) -> None:
    ways = ["loop", "check", "async", "loop"]
    with two_ranks(folder, *ways) as (first, last):
        first.kill()
        assert first.wait() == -signal.SIGKILL
        ask(last)
        check(last, ways)


@pytest.mark.parametrize("way", ["loop", "async"])
def test_a_rank_that_waits_for_one_that_is_killed_is_told(folder: Path, way: str) -> None:
    with two_ranks(folder, way) as (first, last):
        ask(first)
        time.sleep(0.5)
        assert first.poll() is None
        last.kill()
        check(first, [way])
