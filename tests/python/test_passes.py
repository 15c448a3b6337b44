"""Epochs of several passes, of no end and of a number of steps: batches and states against lists of all passes."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import random
from typing import TYPE_CHECKING, Any

import functions
import numpy as np
import order_model as model
import pyarrow as pa
import pytest
from harness import resume_failures
from rows import batches_of, ids, ids_of, write_uneven
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

# torch warns of more workers than cores, Python of forks beside threads; ours stay in the process that made them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    # torchdata calls what newer torch deprecates.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

NUM_ROWS = 101
NUM_PASSES = 12
SHARES = [
    {"batch_size": 8, "rank": rank, "world_size": world_size, "remainder": remainder, "drop_last": drop_last}
    for world_size in (1, 2, 3, 4)
    for rank in {0, world_size - 1}
    for remainder in ("drop", "pad")
    for drop_last in (False, True)
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("passes"), NUM_ROWS)


@pytest.fixture(scope="module")
def shuffled(rows: fb.Dataset) -> fb.Dataset:
    return rows.shuffle(3, num_lanes=4, window_rows=9)


@pytest.fixture(scope="module")
def orders(shuffled: fb.Dataset) -> list[list[int]]:
    """The rows of each pass."""
    stream, found = shuffled.batches(50), []
    for number in range(NUM_PASSES):
        stream.set_epoch(number)
        found.append(ids_of(stream))
    assert len({tuple(order) for order in found}) == NUM_PASSES
    return found


def passes(orders: list[list[int]], share: dict[str, Any], first: int = 0, position: int = 0) -> Iterator[list[int]]:
    """Yields the batches of a rank, pass after pass."""
    settings = [share[name] for name in ("rank", "world_size", "batch_size", "remainder", "drop_last")]
    for order in orders[first:]:
        yield from model.rank_batches(order, position, *settings)
        position = 0


def epoch_of(stream: Any, epoch: int) -> list[list[int]]:
    stream.set_epoch(epoch)
    assert stream.epoch == epoch
    found = batches_of(stream)
    assert len(stream) == len(found)
    return found


def saved(stream: Any) -> dict[str, Any]:
    return json.loads(json.dumps(stream.state_dict()))


class Numbered:
    """A stream of one epoch as the ids of its batches."""

    def __init__(self, stream: fb.Stream, epoch: int) -> None:
        stream.set_epoch(epoch)
        self._stream = stream
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict

    def __iter__(self) -> Iterator[list[int]]:
        return map(ids, self._stream)


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_an_epoch_is_its_passes_one_after_the_other(
    shuffled: fb.Dataset, orders: list[list[int]], share: dict[str, Any]
) -> None:
    stream = shuffled.repeat(3).batches(**share)
    for epoch in (0, 2, 1):
        assert epoch_of(stream, epoch) == list(passes(orders[epoch * 3 : epoch * 3 + 3], share))


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("steps", [1, 5, 40])
def test_an_epoch_of_steps_begins_where_the_one_before_ended(
    shuffled: fb.Dataset, orders: list[list[int]], share: dict[str, Any], steps: int
) -> None:
    stream = shuffled.batches(**share, steps_per_epoch=steps)
    batches = list(passes(orders, share))
    for epoch in range(min(len(batches) // steps, 6)):
        assert len(stream) == steps
        assert epoch_of(stream, epoch) == batches[epoch * steps : (epoch + 1) * steps]


@pytest.mark.parametrize("settings", [{}, {"world_size": 3, "rank": 1}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_resume_after_any_batch_delivers_exactly_the_rest(
    shuffled: fb.Dataset, settings: dict[str, Any], epoch: int
) -> None:
    share = {"batch_size": 13, "rank": 0, "world_size": 1} | settings
    for make in (
        lambda: shuffled.repeat(3).batches(**share),
        lambda: shuffled.batches(**share, steps_per_epoch=11),
        lambda: shuffled.batches(**share, steps_per_epoch=3),
    ):
        assert resume_failures(lambda make=make: Numbered(make(), epoch)) == []


def test_the_state_of_a_loop_is_of_its_epoch_though_another_was_chosen(
    shuffled: fb.Dataset, orders: list[list[int]]
) -> None:
    expected = list(itertools.islice(passes(orders, SHARES[0]), 15))
    stream = shuffled.batches(8, steps_per_epoch=5)
    loop = iter(stream)
    found = [ids(next(loop)) for _ in range(2)]
    stream.set_epoch(1)
    found.append(ids(next(loop)))
    later = shuffled.batches(8, steps_per_epoch=5)
    later.load_state_dict(saved(stream))
    assert (later.epoch, len(later)) == (0, 2)
    for epoch in range(later.epoch, 3):
        later.set_epoch(epoch)
        found += batches_of(later)
    assert found == expected
    # What was chosen is for the next loop, and for its states.
    found = [ids(batch) for batch in loop]
    assert found == expected[3:5]
    next(iter(stream))
    assert stream.state_dict()["steps"] == {"epoch": 1, "done": 1}


def test_what_is_left_of_an_epoch_is_counted(shuffled: fb.Dataset) -> None:
    for make in (lambda: shuffled.repeat(3).batches(13), lambda: shuffled.batches(13, steps_per_epoch=19)):
        num_batches = len(make())
        stream, batches = make(), iter(make())
        batches = iter(stream)
        for taken in range(num_batches + 1):
            later = make()
            later.load_state_dict(saved(stream))
            assert len(later) == num_batches - taken
            next(batches, None)


def test_a_loop_after_a_resumed_one_delivers_the_whole_epoch(shuffled: fb.Dataset) -> None:
    for make in (lambda: shuffled.repeat(2).batches(16), lambda: shuffled.batches(16, steps_per_epoch=10)):
        stream = make()
        stream.set_epoch(1)
        whole = batches_of(stream)
        batches = iter(stream)
        for _ in range(8):
            next(batches)
        later = make()
        later.load_state_dict(saved(stream))
        later.set_epoch(1)
        assert batches_of(later) == whole[8:]
        assert batches_of(later) == whole


def test_a_state_of_a_pass_holds_for_any_number_of_passes(shuffled: fb.Dataset, orders: list[list[int]]) -> None:
    stream = shuffled.repeat(3).batches(20)
    stream.set_epoch(1)
    for _ in zip(range(8), stream, strict=False):
        pass
    state = saved(stream)
    assert (state["epoch"], state["position"]) == (4, 40)
    for num_times, epoch, rest in ((1, 4, 1), (2, 2, 2), (5, 0, 1), (6, 0, 2)):
        later = shuffled.repeat(num_times).batches(20)
        later.load_state_dict(state)
        assert later.epoch == epoch
        share = {"batch_size": 20, "rank": 0, "world_size": 1, "remainder": "drop", "drop_last": False}
        assert batches_of(later) == list(passes(orders[: 4 + rest], share, 4, 40))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_an_end_passes_follow_each_other(
    shuffled: fb.Dataset, orders: list[list[int]], num_workers: int
) -> None:
    share = {"batch_size": 24, "rank": 0, "world_size": 1, "remainder": "drop", "drop_last": False}
    stream = shuffled.repeat().to_torch(24)
    with pytest.raises(TypeError, match="without an end has no number of batches; see `steps_per_epoch`"):
        len(stream)
    context = "fork" if num_workers else None
    loader = DataLoader(stream, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
    found = [ids(batch) for batch in itertools.islice(loader, 33)]
    assert found == list(itertools.islice(passes(orders, share), 33))
    if not num_workers:
        later = shuffled.repeat().to_torch(24)
        later.load_state_dict(saved(stream))
        rest = [ids(batch) for batch in itertools.islice(later, 9)]
        assert rest == list(itertools.islice(passes(orders, share), 33, 42))


def endless(shuffled: fb.Dataset, kind: str, **settings: Any) -> Any:
    """An endless stream, or a loader of one."""
    repeated = shuffled.repeat()
    if kind == "DataLoader":
        return fb.DataLoader(repeated, 24, **settings)
    if kind == "mapped":
        return repeated.map(functions.unchanged, batched=True).to_torch(24, **settings)
    return repeated.batches(24, **settings) if kind == "batches" else repeated.to_torch(24, **settings)


def epochs_of(loader: Any, last: int, num_batches: int, num_seen: int = 0) -> Iterator[list[int]]:
    """Yields batches as programs loop that count their steps: each epoch ends after `num_batches`."""
    for epoch in range(loader.epoch, last + 1):
        loader.set_epoch(epoch)
        yield from (ids(batch) for batch in itertools.islice(loader, num_batches - num_seen))
        num_seen = 0


@pytest.mark.parametrize("kind", ["to_torch", "batches", "DataLoader", "mapped"])
@pytest.mark.parametrize("cut", [0, 3, 13, 20, 33])
def test_without_an_end_the_usual_program_goes_on_where_it_was(shuffled: fb.Dataset, kind: str, cut: int) -> None:
    whole = list(epochs_of(endless(shuffled, kind), 1, 20))
    loader = endless(shuffled, kind)
    batches = epochs_of(loader, 1, 20)
    assert [next(batches) for _ in range(cut)] == whole[:cut]
    state = saved(loader)
    later = endless(shuffled, kind)
    later.load_state_dict(state)
    assert later.epoch == (cut > 20)
    assert saved(later) == state
    assert list(epochs_of(later, 1, 20, cut - 20 * later.epoch)) == whole[cut:]


def test_without_an_end_ranks_go_on_in_the_epoch_of_the_state(shuffled: fb.Dataset) -> None:
    one = [endless(shuffled, "batches", rank=rank, world_size=2) for rank in range(2)]
    parts = [iter(stream) for stream in one]
    for stream in one:
        stream.set_epoch(0)
    for _ in range(7):
        for part in parts:
            next(part)
        states = [saved(stream) for stream in one]
    assert states[0] == states[1]
    assert states[0]["epoch"] > 0
    for rank, part in enumerate(parts):
        later = endless(shuffled, "batches", rank=rank, world_size=2)
        later.load_state_dict(states[0])
        later.set_epoch(0)
        assert ids(next(iter(later))) == ids(next(part))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_without_an_end_workers_go_on_in_the_epoch_of_the_state(shuffled: fb.Dataset, num_workers: int) -> None:
    def loader() -> Any:
        stream = shuffled.repeat().to_torch(24)
        context = "fork" if num_workers else None
        return stream, StatefulDataLoader(stream, None, num_workers=num_workers, multiprocessing_context=context)

    whole = [ids(batch) for batch in itertools.islice(loader()[1], 40)]
    _, first = loader()
    batches = iter(first)
    assert [ids(next(batches)) for _ in range(17)] == whole[:17]
    state = first.state_dict()
    stream, later = loader()
    later.load_state_dict(state)
    stream.set_epoch(0)
    assert [ids(batch) for batch in itertools.islice(later, 23)] == whole[17:]
    reduced = shuffled.repeat().to_torch(24)
    reduced.load_state_dict(fb.cursor(state))
    reduced.set_epoch(0)
    assert [ids(batch) for batch in itertools.islice(reduced, 23)] == whole[17:]


def test_states_of_a_pass_hold_with_and_without_an_end(shuffled: fb.Dataset) -> None:
    stream = shuffled.repeat().batches(20)
    for _ in zip(range(8), stream, strict=False):
        pass
    state = saved(stream)
    assert (state["epoch"], state["position"], state["repeat"]) == (1, 40, {"epoch": 0})
    once, without_end = shuffled.batches(20), shuffled.repeat().batches(20)
    once.load_state_dict(state)
    assert once.epoch == 1
    without_end.load_state_dict(saved(once))
    assert without_end.epoch == 1
    for repeat in (3, {}, {"epoch": 2}, {"epoch": -1}, {"epoch": True}):
        with pytest.raises(fb.StateError, match="repeat: expected an epoch up to pass 1"):
            without_end.load_state_dict(state | {"repeat": repeat})


def test_without_an_end_loops_go_on_whatever_moves_the_position(shuffled: fb.Dataset, orders: list[list[int]]) -> None:
    stream = shuffled.repeat().batches(40)
    length = len(shuffled.batches(40))
    one, other = iter(stream), iter(stream)
    fresh = stream.state_dict()
    found = [ids(next(one)) for _ in range(2 * length)]
    for _ in range(length):
        next(other)
    found += [ids(next(one)) for _ in range(length)]
    stream.load_state_dict(fresh)
    found += [ids(next(one)) for _ in range(length)]
    assert list(itertools.chain(*found)) == list(itertools.chain(*orders[:4]))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_nothing_is_not_repeated_for_ever(rows: fb.Dataset, num_workers: int) -> None:
    few = rows.filter("id < 3").shuffle(1)
    assert list(few.repeat(3).batches(8, drop_last=True)) == []
    for stream in (
        few.repeat().batches(8, drop_last=True),
        few.batches(8, drop_last=True, steps_per_epoch=2),
        rows.filter("id < 0").repeat().batches(8),
        few.repeat().batches(1, rank=3, world_size=4),
    ):
        with pytest.raises(fb.SettingError, match="no batch for this rank"):
            next(stream._iterate(num_workers - 1, num_workers))


class Job:
    """All ranks of a training job and their DataLoader workers, in one process."""

    def __init__(self, make: Any, world_size: int, num_workers: int, epoch: int, state: dict[str, Any] | None) -> None:
        def streams(rank: int) -> list[fb.Stream]:
            made = []
            for _ in range(max(num_workers, 1)):
                stream = make(rank, world_size)
                if state is not None:
                    stream.load_state_dict(state)
                stream.set_epoch(epoch)
                made.append(stream)
            return made

        self.streams = [streams(rank) for rank in range(world_size)]
        self.iterators = [
            [stream._iterate(worker, len(workers)) for worker, stream in enumerate(workers)] for workers in self.streams
        ]

    def steps(self) -> Iterator[list[int]]:
        """Yields the global batches: each rank asks its workers in turn."""
        for turn in itertools.count():
            step = [next(workers[turn % len(workers)], None) for workers in self.iterators]
            if any(batch is None for batch in step):
                assert step == [None] * len(step), "ranks take as many steps"
                return
            yield model.in_turn(map(ids, step))

    def state(self, rank: int) -> dict[str, Any]:
        """Returns the state of one rank's loader, reduced to a cursor."""
        workers = {f"worker_{index}": stream.state_dict() for index, stream in enumerate(self.streams[rank])}
        return fb.cursor(json.loads(json.dumps({"snapshot": workers})))


@pytest.mark.parametrize("settings", [{"steps_per_epoch": 21}, {"steps_per_epoch": 4}, {"repeat": 3}], ids=str)
@pytest.mark.parametrize("chain", range(8))
def test_a_chain_of_resumes_in_changing_worlds_delivers_the_same_steps(
    shuffled: fb.Dataset, chain: int, settings: dict[str, Any]
) -> None:
    rng = random.Random(f"{chain} {settings}")
    arguments = dict(settings)
    repeated = shuffled.repeat(arguments.pop("repeat", 1))

    def make(rank: int, world_size: int) -> fb.Stream:
        size = 12 // world_size
        return repeated.batches(size, rank=rank, world_size=world_size, drop_last=True, num_threads=1, **arguments)

    epoch = rng.randrange(3)
    whole = epoch_of(make(0, 1), epoch)
    state: dict[str, Any] | None = None
    seen: list[list[int]] = []
    while len(seen) < len(whole):
        job = Job(make, rng.choice([1, 2, 3, 4]), rng.randrange(4), epoch, state)
        steps = job.steps()
        seen += list(itertools.islice(steps, rng.choice([0, 1, 2, 3, 5, 8, 100])))
        state = job.state(rng.randrange(len(job.streams)))
    assert seen == whole


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("settings", [{"steps_per_epoch": 7}, {"repeat": 3}], ids=str)
@pytest.mark.parametrize("batch_size", [13, 60, 200])
def test_the_state_of_workers_is_right_after_every_batch(
    shuffled: fb.Dataset, num_workers: int, settings: dict[str, Any], batch_size: int
) -> None:
    arguments = dict(settings)
    repeated = shuffled.repeat(arguments.pop("repeat", 1))

    def make(rank: int, world_size: int) -> fb.Stream:
        return repeated.batches(batch_size, rank=rank, world_size=world_size, **arguments)

    whole = epoch_of(make(0, 1), 1)
    job = Job(make, 1, num_workers, 1, None)
    seen = []
    for step in itertools.chain([[]], job.steps()):
        seen += [step] if step else []
        later = make(0, 1)
        later.load_state_dict(job.state(0))
        assert later.epoch == 1
        assert batches_of(later) == whole[len(seen) :]
    assert seen == whole


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_loops_of_a_dataloader_go_on_where_the_last_one_ended(
    shuffled: fb.Dataset, orders: list[list[int]], num_workers: int
) -> None:
    share = {"batch_size": 16, "rank": 0, "world_size": 1, "remainder": "drop", "drop_last": False}
    batches = list(passes(orders, share))
    stream = shuffled.to_torch(16, steps_per_epoch=10)
    context = "fork" if num_workers else None
    loader = DataLoader(
        stream,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=context,
        persistent_workers=num_workers > 0,
    )
    assert len(loader) == 10
    for epoch in (0, 1, 2, 5, 5):
        stream.set_epoch(epoch)
        assert batches_of(loader) == batches[epoch * 10 : (epoch + 1) * 10]


@pytest.mark.parametrize("num_batches", [1, 6, 7, 8, 18])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_stateful_loader_goes_on_in_the_pass_where_it_was(
    shuffled: fb.Dataset, num_workers: int, num_batches: int
) -> None:
    def loader(stream: Any) -> StatefulDataLoader:
        context = "fork" if num_workers else None
        return StatefulDataLoader(stream, batch_size=None, num_workers=num_workers, multiprocessing_context=context)

    def make() -> Any:
        return shuffled.to_torch(16, steps_per_epoch=20)

    whole = batches_of(make())
    first = loader(make())
    batches = iter(first)
    assert [ids(next(batches)) for _ in range(num_batches)] == whole[:num_batches]
    state = json.loads(json.dumps(first.state_dict()))
    again = loader(make())
    again.load_state_dict(state)
    assert batches_of(again) == whole[num_batches:]
    later = make()
    later.load_state_dict(fb.cursor(state))
    assert batches_of(later) == whole[num_batches:]


@pytest.mark.parametrize("workers", [{}, {"num_threads": 2}, {"num_proc": 2}], ids=str)
def test_functions_are_given_the_rows_and_seeds_of_their_pass(
    shuffled: fb.Dataset, orders: list[list[int]], workers: dict[str, int]
) -> None:
    mapped = shuffled.map(functions.draw, batched=True, with_seeds=True, **workers)
    once = mapped.batches(30)
    expected = []
    for number in range(3):
        once.set_epoch(number)
        expected += [(batch["id"], batch["draw"]) for batch in once]
    draws = [draw for _, draw in expected]
    assert len({str(draw) for draw in draws}) == len(draws)
    for stream in (mapped.repeat(3).batches(30), mapped.batches(30, steps_per_epoch=len(expected))):
        assert [(batch["id"], batch["draw"]) for batch in stream] == expected
    loader = fb.DataLoader(mapped, 30, steps_per_epoch=4)
    assert [batch["id"].tolist() for _ in range(3) for batch in loader] == [row for row, _ in expected[:12]]
    assert loader.epoch == 2
    later = fb.DataLoader(mapped, 30, steps_per_epoch=4)
    later.load_state_dict(saved(loader))
    assert list(later) == []
    assert next(iter(later))["id"].tolist() == next(passes(orders, share_of(30), 3))


def share_of(batch_size: int) -> dict[str, Any]:
    return {"batch_size": batch_size, "rank": 0, "world_size": 1, "remainder": "drop", "drop_last": False}


def test_passes_are_awaited_like_one(shuffled: fb.Dataset) -> None:
    async def taken(stream: fb.Stream) -> list[list[int]]:
        return [ids(batch) async for batch in stream]

    for make in (lambda: shuffled.repeat(3).batches(16), lambda: shuffled.batches(16, steps_per_epoch=17)):
        assert asyncio.run(taken(make())) == batches_of(make())


def test_documents_are_packed_pass_by_pass(shuffled: fb.Dataset) -> None:
    tokens = shuffled.sql("SELECT id, [id, id + 1, id + 2] AS input_ids FROM dataset").shuffle(3)
    pack = fb.Pack(length=16, columns=["input_ids"], mode="best_fit", window=20)

    def taken(stream: Any) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in stream]

    whole = []
    for number in range(3):
        once = tokens.to_torch(2, pack=pack)
        once.set_epoch(number)
        whole += taken(once)
    stream = tokens.repeat(3).to_torch(2, pack=pack)
    assert taken(stream) == whole
    stream = tokens.repeat(3).to_torch(2, pack=pack)
    batches = iter(stream)
    for cut in range(len(whole)):
        later = tokens.repeat(3).to_torch(2, pack=pack)
        later.load_state_dict(saved(stream))
        assert taken(later) == whole[cut:]
        next(batches)
    with pytest.raises(fb.SettingError, match="steps_per_epoch: how many batches documents are packed into"):
        tokens.to_torch(2, pack=pack, steps_per_epoch=3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds: ds.repeat(0), "num_times: expected 1"),
        (lambda ds: ds.repeat("2"), "num_times: expected an integer"),
        (lambda ds: ds.repeat(1 << 62), "num_times: expected at most 2147483647 passes"),
        (lambda ds: ds.repeat(1 << 30).repeat(2), "got 2147483648; leave it out for no end"),
        (lambda ds: ds.batches(8, steps_per_epoch=5).set_epoch(1 << 61), "epoch: expected 0 to 1844674407370955160"),
        (lambda ds: ds.repeat(3).batches(8).set_epoch((1 << 63) - 1), "epoch: expected 0 to 3074457345618258601"),
        (lambda ds: ds.batches(8, steps_per_epoch=0), "steps_per_epoch: expected 1"),
        (lambda ds: ds.repeat(2).batches(8, steps_per_epoch=5), "leave `repeat` out"),
        (lambda ds: ds.batches(8, steps_per_epoch=5, remainder="keep", rank=0, world_size=2), "use 'drop' or 'pad'"),
        (lambda ds: ds.repeat(2).batches(8, remainder="keep", rank=0, world_size=2), "use 'drop' or 'pad'"),
        (lambda ds: ds.repeat().to_torch(8, remainder="keep", rank=0, world_size=2), "use 'drop' or 'pad'"),
        (lambda ds: ds.repeat(2).to_hf(), "`datasets` has a `repeat` of its own"),
        (lambda ds: pa.table(ds.repeat(2)), "one Arrow stream is one pass"),
        (lambda ds: ds.skip(3), "skip before `shuffle`"),
        (lambda ds: ds.map(functions.doubled, batched=True).skip(3), "skip before `shuffle`"),
    ],
)
def test_what_cannot_be_is_refused(shuffled: fb.Dataset, call: Any, words: str) -> None:
    with pytest.raises(fb.SettingError) as raised:
        call(shuffled)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "steps",
    [
        None,
        3,
        {},
        {"epoch": 1},
        {"epoch": 1, "done": -1},
        {"epoch": True, "done": 1},
        {"epoch": 1, "done": 1 << 63},
    ],
)
def test_a_state_of_other_steps_is_refused(shuffled: fb.Dataset, steps: Any) -> None:
    stream = shuffled.batches(8, steps_per_epoch=5)
    before = stream.state_dict()
    state = {key: value for key, value in before.items() if key != "steps"}
    words = (
        "without `steps_per_epoch`, whose epochs are others" if steps is None else "steps: expected an epoch and the"
    )
    with pytest.raises(fb.StateError, match=words):
        stream.load_state_dict(state if steps is None else state | {"steps": steps})
    assert stream.state_dict() == before


def test_epochs_that_have_no_number_are_refused(shuffled: fb.Dataset) -> None:
    stepped = shuffled.batches(8, steps_per_epoch=5)
    state = stepped.state_dict()
    for stream, changed in (
        (stepped, {"steps": {"epoch": 1 << 64, "done": 0}}),
        (stepped, {"epoch": 1 << 63}),
        (shuffled.repeat().batches(8), {"epoch": 1 << 63}),
        (shuffled.batches(8), {"epoch": 1 << 63}),
    ):
        own = state if stream is stepped else {key: value for key, value in state.items() if key != "steps"}
        with pytest.raises(fb.StateError, match="epoch: expected 0 to"):
            stream.load_state_dict(own | changed)
        assert stream.epoch == 0
    last = shuffled.repeat(2).batches(50)
    last.set_epoch((1 << 62) - 1)
    assert len(batches_of(last)) == len(last) == 6
    stepped.set_epoch((1 << 63) // 5 - 1)
    assert len(batches_of(stepped)) == 5
    assert stepped.state_dict()["epoch"] < 1 << 63


def test_a_repeated_dataset_stays_so(rows: fb.Dataset) -> None:
    twice = rows.repeat(2)
    for made in (
        twice.filter("id >= 0"),
        twice.sql("SELECT id FROM dataset"),
        twice.select_columns("id"),
        twice.shuffle(1),
        twice.with_format("arrow"),
        twice.select(rows.selection()),
        twice.shard(0, 1),
        pickle.loads(pickle.dumps(twice)),
    ):
        assert sum(batch.num_rows for batch in made.batches(50)) == 2 * NUM_ROWS
        assert "repeat(2)" in repr(made)
    assert len(twice) == NUM_ROWS
    assert sum(1 for _ in twice) == 2 * NUM_ROWS
    assert len(rows.repeat(2).repeat(3).batches(NUM_ROWS)) == 6
    assert "repeat()" in repr(rows.repeat(2).repeat())


CHOSEN = {
    "all": lambda rows: rows,
    "filtered": lambda rows: rows.filter("id % 3 <> 0"),
    "selected": lambda rows: rows.select(rows.selection().sample(40, 7)),
    "by number": lambda rows: rows.select([70, 3, 50, 4, 100, 0]),
    "ordered": lambda rows: rows.sql("SELECT id + 1 AS id FROM dataset WHERE id > 20 ORDER BY id DESC"),
    "renamed": lambda rows: rows.rename_column("label", "name"),
    "skipped": lambda rows: rows.skip(2),
}


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("n", [0, 1, 5, 60, 101, 1000])
def test_the_first_rows_are_skipped(rows: fb.Dataset, chosen: str, n: int) -> None:
    ds = CHOSEN[chosen](rows)
    expected = ids_of(ds.batches(30))[n:]
    later = ds.skip(n)
    assert ids_of(later.batches(30)) == expected
    assert len(later) == len(expected)
    assert later.column_names == ds.column_names
    assert ids_of(pickle.loads(pickle.dumps(later)).batches(30)) == expected
    assert sorted(ids_of(later.shuffle(5).batches(30))) == sorted(expected)
    stream = later.batches(7)
    if len(expected) > 7:
        next(iter(stream))
        resumed = ds.skip(n).batches(7)
        resumed.load_state_dict(saved(stream))
        assert ids_of(resumed) == expected[7:]
    even = ids_of(ds.skip(n).filter("id % 2 = 0").batches(30))
    assert sorted(even) == sorted(row for row in expected if row % 2 == 0)


def test_integers_of_numpy_are_those_of_python(rows: fb.Dataset) -> None:
    def delivered(number: Any) -> tuple[list[list[int]], str]:
        shuffled = rows.shuffle(number(3), num_lanes=number(4), window_rows=number(9)).repeat(number(2))
        stream = shuffled.batches(number(8), rank=number(1), world_size=number(2), num_threads=number(1))
        stream.set_epoch(number(1))
        batches = batches_of(stream)
        return batches, json.dumps(stream.state_dict())

    assert delivered(np.int64) == delivered(np.uint8) == delivered(int)
    steps = rows.batches(8, steps_per_epoch=np.int64(5))
    steps.set_epoch(np.int64(2))
    assert json.loads(json.dumps(steps.state_dict()))["steps"] == {"epoch": 2, "done": 0}
    assert list(rows.take(np.int64(2))) == list(rows.take(2))
    assert rows.selection().sample(np.int64(5), np.int64(1)) == rows.selection().sample(5, 1)
    assert type(fb.Pad(multiple_of=np.int64(8)).multiple_of) is int


@pytest.mark.parametrize("value", [True, np.bool_(True), 3.0, np.float64(3), np.array([3]), "3", None], ids=repr)
def test_what_is_no_integer_is_no_count(rows: fb.Dataset, value: Any) -> None:
    with pytest.raises(fb.SettingError, match="batch_size: expected an integer, got"):
        rows.batches(value)
