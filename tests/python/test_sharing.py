"""Ranks of a replica that share a host: one reads for all, nobody depends on it, nobody waits for ever."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from programs import (
    abandoned_memory,
    python_command,
    python_environment,
    shared_blocks,
    shared_memory,
    torchrun,
)
from rows import batches_of, ids, write_uneven

import forebay as fb
from forebay import sharing
from forebay.passes import Cursor

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

NUM_ROWS = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharing")


@pytest.fixture(scope="module")
def rows(folder: Path) -> fb.Dataset:
    return write_uneven(folder, NUM_ROWS).shuffle(4, num_lanes=6, window_rows=20)


class Parted(sharing.Party):
    """A party whose ranks are in one process, and met before."""

    def __init__(self, read: Any, takers: list[Any], giver: Any) -> None:
        super().__init__(read, 0, None)
        self._has_met, self._takers, self._giver = True, takers, giver


def together(make: Any, num_ranks: int = 2) -> tuple[list[Any], list[Iterator[Any]]]:
    """Returns streams of which the first reads for the others, and their iterators."""
    streams = [make() for _ in range(num_ranks)]
    pairs = [socket.socketpair() for _ in streams[1:]]
    for pair in pairs:
        for end in pair:
            end.settimeout(sharing.SECONDS_TO_WAIT_FOR_RANK)
    parties = [Parted(streams[0]._reading, [sharing.Taker(near) for near, _ in pairs], None)]
    for stream, (_, far) in zip(streams[1:], pairs, strict=True):
        parties.append(Parted(stream._reading, [], sharing.Giver(far)))
    for stream, party in zip(streams, parties, strict=True):
        stream._party = lambda party=party, **_: party
    return streams, [iter(stream) for stream in streams]


MAKE = {
    "tensors": lambda rows: rows.to_torch(32)._stream,
    "arrow": lambda rows: rows.with_format("arrow").batches(32),
    "batches": lambda rows: rows.batches(32),
    "repeated": lambda rows: rows.repeat(3).to_torch(100)._stream,
    "steps": lambda rows: rows.to_torch(64, steps_per_epoch=20)._stream,
    "functions": lambda rows: rows.with_format("numpy").map(lambda row: {"id": row["id"]}, num_threads=2).batches(50),
}


@pytest.mark.parametrize("name", MAKE)
def test_those_that_are_given_batches_have_the_same_and_read_nothing(rows: fb.Dataset, name: str) -> None:
    whole = [[int(row) for row in batch["id"]] for batch in taken(MAKE[name](rows))]
    streams, iterators = together(lambda: MAKE[name](rows), 3)
    found: list[list[list[int]]] = [[], [], []]
    for batches in zip(*iterators, strict=True):
        for of, batch in zip(found, batches, strict=True):
            of.append([int(row) for row in taken([batch])[0]["id"]])
        assert all(stream.state_dict() == streams[0].state_dict() for stream in streams)
    assert found == [whole] * 3
    assert streams[0].stats()["requests"] > 0
    assert streams[1].stats() == streams[2].stats() == {}


def taken(batches: Any) -> list[Any]:
    """Returns batches with columns of numbers."""
    return [batch if isinstance(batch, dict) else {"id": pa.table(batch)["id"].to_pylist()} for batch in batches]


def test_packed_sequences_are_handed_over_and_packed_on(rows: fb.Dataset) -> None:
    tokens = rows.sql("SELECT [id, id + 1, id + 2] AS input_ids FROM dataset").shuffle(3)

    def make() -> Any:
        return tokens.to_torch(2, pack=fb.Pack(length=16, columns=["input_ids"]))._stream

    whole = [batch["input_ids"].tolist() for batch in make()]
    streams, (leading, following) = together(make)
    found = []
    for _ in range(9):
        batches = [next(leading), next(following)]
        assert batches[0].keys() == batches[1].keys()
        found.append(batches[1]["input_ids"].tolist())
        assert streams[0].state_dict() == streams[1].state_dict()
    leading.close()
    assert found + [batch["input_ids"].tolist() for batch in following] == whole


@pytest.mark.parametrize("num_batches", [1, 7, 15])
def test_a_rank_reads_on_by_itself_where_the_other_one_stopped(rows: fb.Dataset, num_batches: int) -> None:
    whole = batches_of(rows.to_torch(32))
    (_, follower), (leading, following) = together(lambda: MAKE["tensors"](rows))
    found = []
    for _ in range(num_batches):
        next(leading)
        found.append(ids(next(following)))
    leading.close()
    found += [ids(batch) for batch in following]
    assert found == whole
    assert follower.stats()["requests"] > 0
    assert len(follower.stats()) > 1


@pytest.fixture
def in_vain(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long ranks have waited, not long, each time that nothing came of it."""
    waited: list[float] = []
    is_readable = sharing._is_readable

    def noting(channel: Any, seconds: float) -> bool:
        is_there = is_readable(channel, seconds)
        if seconds and not is_there:
            waited.append(seconds)
        return is_there

    monkeypatch.setattr(sharing, "SECONDS_TO_WAIT_FOR_RANK", 0.3)
    monkeypatch.setattr(sharing, "_is_readable", noting)
    return waited


def test_nobody_waits_for_ever_for_a_rank_that_takes_nothing(rows: fb.Dataset, in_vain: list[float]) -> None:
    whole = batches_of(rows.to_torch(32))
    _, (leading, following) = together(lambda: MAKE["tensors"](rows))
    found = [ids(next(leading))]
    # The other one is there and does not ask.
    found += [ids(batch) for batch in leading]
    assert in_vain == [0.3], "once, and not for each batch"
    assert found == whole
    assert [ids(batch) for batch in following] == whole, "what it was given, and then what it reads"


def test_nobody_waits_for_ever_for_a_rank_that_gives_nothing(rows: fb.Dataset, in_vain: list[float]) -> None:
    whole = batches_of(rows.to_torch(32))
    _, (leading, following) = together(lambda: MAKE["tensors"](rows))
    found = [ids(next(leading))]
    assert [ids(batch) for batch in following] == whole
    assert in_vain == [0.3], "once, and not for each batch"
    assert found + [ids(batch) for batch in leading] == whole


def test_a_rank_holds_back_the_one_that_reads(rows: fb.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = []
    monkeypatch.setattr(sharing.Taker, "give", counted(taking, sharing.Taker.give))
    _, (leading, following) = together(lambda: MAKE["tensors"](rows))
    for _ in range(sharing.MOST_UNDER_WAY):
        next(leading)
    for _ in range(5):
        next(following)
        next(leading)
    assert taking == [1, 2, 3, 4, 4, 4, 4, 4, 4]
    following.close()
    leading.close()


def counted(seen: list[int], give: Any) -> Any:
    """Notes how many batches are under way after each that is given."""

    def counting(taker: Any, *arguments: Any) -> None:
        give(taker, *arguments)
        seen.append(taker._num_under_way)

    return counting


RANKS = """
import sys
import forebay as fb
from rows import batches_of, ids

join()
ds = fb.load_dataset(sys.argv[1], split="train").shuffle(4, num_lanes=6, window_rows=20)
stream = ds.repeat(2).to_torch(32, replicate=2, read_once=True)
alone = ds.repeat(2).to_torch(32, replicate=2)
found = {"requests": []}
for epoch in (0, 1):
    stream.set_epoch(epoch)
    alone.set_epoch(epoch)
    found[f"same {epoch}"] = batches_of(stream) == batches_of(alone)
    found["requests"].append(stream.stats().get("requests", 0))
found["state"] = stream.state_dict()

# One leaves the loop early, and begins the next with the others.
stream.set_epoch(2)
for number, batch in enumerate(stream):
    if number == 3 and int(__import__("os").environ["RANK"]) == 0:
        break
stream.set_epoch(3)
alone.set_epoch(3)
found["same 3"] = batches_of(stream) == batches_of(alone)
try:
    next(iter(ds.to_torch(32, replicate=2, read_once=int(__import__("os").environ["RANK"]) > 0)))
except fb.AgreementError as error:
    found["disagreement"] = str(error)
report(found)
"""


@pytest.mark.usefixtures("rows")
def test_ranks_of_a_host_find_each_other(folder: Path, tmp_path: Path) -> None:
    ranks = torchrun(RANKS, 4, tmp_path, folder)
    for rank, found in enumerate(ranks):
        assert found["same 0"]
        assert found["same 1"]
        assert found["same 3"]
        assert found["state"] == ranks[0]["state"]
        assert "read_once" in found["disagreement"]
        assert all(requests > 0 for requests in found["requests"]) == (rank % 2 == 0)
        assert rank % 2 == 0 or found["requests"] == [0, 0]
    assert sockets() == []


KILLED = """
import os, signal, sys, time
import torch.distributed as dist
import forebay as fb
from rows import ids

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
ds = fb.load_dataset(sys.argv[1], split="train").shuffle(4, num_lanes=6, window_rows=20)
stream = ds.to_torch(32, replicate=2, read_once=True)
rows, start = [], None
for number, batch in enumerate(stream):
    if number == 5 and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rows += ids(batch)
print(len(rows), stream.stats()["requests"] > 0, flush=True)
os._exit(0)
"""


def test_when_the_rank_that_reads_is_killed_the_others_read_on(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    before = shared_memory()
    ranks = [
        subprocess.Popen(
            python_command(KILLED, folder),
            env=python_environment(world | {"RANK": str(rank)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[0].returncode == -signal.SIGKILL
    assert ended[1][0].split() == [str(NUM_ROWS), "True"], ended[1]
    assert not abandoned_memory(before)
    assert sockets() == []


def sockets() -> list[str]:
    """Returns sockets of ours that are left: other tests have theirs for a moment."""
    end = time.monotonic() + 20
    while True:
        found = [line for line in Path("/proc/net/unix").read_text().splitlines() if "@forebay-" in line]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda ds: ds.to_torch(8, read_once=True), "pass `mesh` or `replicate`"),
        (lambda ds: ds.to_torch(8, read_once=1, replicate=2, rank=0, world_size=2), "expected True or False"),
        (
            lambda ds: iter(ds.to_torch(8, read_once=True, on_error="skip", replicate=2, rank=0, world_size=2)),
            "use on_error='raise'",
        ),
    ],
)
def test_what_cannot_be_handed_over_is_refused(rows: fb.Dataset, make: Any, words: str) -> None:
    with pytest.raises(fb.SettingError) as raised:
        make(rows)
    assert words in str(raised.value)


def handed_over() -> tuple[Any, Any]:
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)
    return sharing.Taker(near), sharing.Giver(far)


def test_what_is_handed_over_takes_the_memory_of_a_few_batches() -> None:
    taker, giver = handed_over()
    before, seen = shared_blocks(), []
    for number in range(60):
        # They grow: blocks that are too small give way.
        taker.give(np.full(1 << (16 + number // 10), number, np.uint8), number)
        value, about = giver.take()
        assert about == number
        assert (value == number).all()
        seen.append(shared_blocks())
    # Each block is mapped twice here: by who gives, and by who takes.
    assert max(num_mapped for num_mapped, _ in seen) <= before[0] + 8
    # What is mapped has no descriptor once who takes has it, too.
    assert all(num_open == before[1] for _, num_open in seen)
    giver.close()
    taker.close()


def test_a_rank_that_is_gone_with_batches_on_their_way_is_given_nothing_more() -> None:
    taker, giver = handed_over()
    for number in range(2):
        taker.give(np.zeros(1000), number)
    giver.take()
    giver.close()
    for number in range(6):
        taker.give(np.zeros(1000), number)
    assert taker.has_room(10), "nobody waits for it"
    taker.close()


def test_a_rank_takes_what_it_was_given_by_one_that_is_gone() -> None:
    taker, giver = handed_over()
    for number in range(3):
        taker.give(np.full(1000, number), number)
    taker.close()
    for number in range(3):
        value, about = giver.take()
        assert about == number
        assert (value == number).all()
    with pytest.raises(ConnectionResetError):
        giver.take()
    giver.close()


@pytest.mark.parametrize("is_sent_to", [True, False])
def test_a_rank_that_goes_at_any_moment_stops_nobody(monkeypatch: pytest.MonkeyPatch, is_sent_to: bool) -> None:
    near, far = socket.socketpair()
    near.settimeout(0.1)
    taker = sharing.Taker(near)
    if is_sent_to:
        # Once there was room.
        monkeypatch.setattr(sharing, "_is_readable", lambda *_: False)
        far.close()
    else:
        # In the middle of an answer.
        far.send(b"\0\0")
    taker.give(np.zeros(1000), 0)
    assert not taker._is_there
    taker.give(np.zeros(1000), 1)
    taker.close()
    far.close()


@pytest.mark.timeout(20)
def test_ranks_that_do_not_come_are_not_waited_for_longer_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was killed after it had said that it takes part."""
    monkeypatch.setattr(sharing, "SECONDS_TO_WAIT_FOR_RANK", 0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sharing._address(number := 12345 + os.getpid()))
        listener.listen()
        with sharing._connected(number) as one:
            # It would wait for ever for the other one.
            [end] = sharing._accepted(listener, 2)
            with end:
                assert end.gettimeout() == one.gettimeout() == 0.3, "nor for what they say"


def test_who_listens_for_another_user_is_not_trusted(monkeypatch):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sharing._address(number := 67890 + os.getpid()))
        listener.listen()
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        with pytest.raises(ConnectionRefusedError):
            sharing._connected(number)


PACKED = """
import sys
import forebay as fb

join()
rank = int(__import__("os").environ["RANK"])
ds = fb.load_dataset(sys.argv[1], split="train").sql("SELECT [id, id + 1, id + 2] AS input_ids FROM dataset").shuffle(3)
pack = fb.Pack(length=16, columns=["input_ids"])
def make(**settings):
    return ds.to_torch(2, pack=pack, replicate=2, **settings)
whole = [batch["input_ids"].tolist() for batch in make()]
stream = make()
states = [stream.state_dict()]
for _ in stream:
    states.append(stream.state_dict())
# Each goes on where it stands, which is not where the other one does.
later = make(read_once=True)
later.load_state_dict(states[3 + 2 * rank])
found = [batch["input_ids"].tolist() for batch in later]
report([found == whole[3 + 2 * rank:], later.stats().get("requests", 0) > 0])
"""


@pytest.mark.usefixtures("rows")
def test_packed_ranks_that_stand_in_different_places_read_by_themselves(folder: Path, tmp_path: Path) -> None:
    assert torchrun(PACKED, 2, tmp_path, folder) == [[True, True]] * 2


def test_a_rank_is_given_nothing_more_where_no_memory_can_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    taker, giver = handed_over()

    def pack(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(taker._outbox, "pack", pack)
    taker.give(np.zeros(1000), 0)
    with pytest.raises(ConnectionResetError):
        giver.take()
    giver.close()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Leaves this process no descriptor for another file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1, hard)
    )
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_rank_without_descriptors_for_shared_memory_reads_on_by_itself() -> None:
    taker, giver = handed_over()
    taker.give(np.zeros(100_000), 0)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        giver.take()
    giver.close()
    taker.close()


@pytest.mark.parametrize("lacking", ["descriptors", "/proc"])
def test_a_rank_that_cannot_be_found_tells_the_others_and_reads_by_itself(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    told: list[list[int]] = []

    def gather(_: Any, numbers: list[int]) -> Generator[float, None, list[list[int]]]:
        told.append(numbers)
        yield 0.0
        return [numbers, numbers]

    def host() -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(sharing, "gather", gather)
    party = Parted(None, [], None)
    party._has_met = False
    if lacking == "/proc":
        monkeypatch.setattr(sharing, "_host", host)
    with no_descriptors() if lacking == "descriptors" else contextlib.nullcontext():
        assert list(party.meeting(iter(()), Cursor())) == [0.0]
    [[takes_part, *_]] = told
    assert not takes_part
    assert party._giver is None
    assert party._takers == []


@pytest.mark.timeout(20)
def test_a_rank_without_descriptors_for_others_leaves_them_to_themselves() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sharing._address(number := 54321 + os.getpid()))
        listener.listen()
        one = sharing.Giver(sharing._connected(number))
        with no_descriptors():
            assert list(sharing._accepted(listener, 1)) == []
    with pytest.raises(ConnectionResetError):
        one.take()
    one.close()
