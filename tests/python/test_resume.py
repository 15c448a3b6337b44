"""States: a stream that goes on from one equals the stream that was never stopped."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import order_model as model
import pytest
from data import ids_table, write_fragments
from harness import rank_failures, resume_failures
from rows import batches_of, ids, ids_of, write_uneven

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("resumed"), NUM_ROWS)


CONFIGURATIONS = {
    "unshuffled": lambda dataset: dataset,
    "filtered": lambda dataset: dataset.filter("id % 3 <> 0"),
    "shuffled": lambda dataset: dataset.shuffle(1, num_lanes=6, window_rows=20),
    "shuffled and filtered": lambda dataset: dataset.filter("id < 450").shuffle(2, num_lanes=5, window_rows=9),
    "one permutation": lambda dataset: dataset.shuffle(3),
}


@pytest.fixture(params=CONFIGURATIONS)
def configured(request: pytest.FixtureRequest, dataset: fb.Dataset) -> fb.Dataset:
    return CONFIGURATIONS[request.param](dataset)


def after(stream: fb.Stream, num_batches: int) -> dict[str, Any]:
    """Takes some batches and returns the state then, by way of JSON."""
    batches = iter(stream)
    for _ in range(num_batches):
        next(batches)
    return json.loads(json.dumps(stream.state_dict()))


def resumed(stream: fb.Stream, state: dict[str, Any]) -> fb.Stream:
    stream.load_state_dict(state)
    return stream


class Numbered:
    """A stream as the ids of its batches."""

    def __init__(self, stream: fb.Stream) -> None:
        self._stream = stream
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict

    def __iter__(self) -> Iterator[list[int]]:
        return map(ids, self._stream)


def test_a_resume_after_any_batch_delivers_exactly_the_rest(configured: fb.Dataset) -> None:
    assert resume_failures(lambda: Numbered(configured.batches(23))) == []


def test_ranks_share_every_row_in_equal_steps(configured: fb.Dataset) -> None:
    def make(rank: int, world_size: int) -> Numbered:
        return Numbered(configured.batches(7, rank=rank, world_size=world_size))

    assert rank_failures(make, range(1, 9)) == []


def test_what_is_left_of_an_epoch_is_counted(configured: fb.Dataset) -> None:
    num_batches = len(configured.batches(23))
    for taken in range(num_batches + 1):
        stream = resumed(configured.batches(23), after(configured.batches(23), taken))
        assert len(stream) == num_batches - taken


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_resumes_from_the_state_of_any_other(configured: fb.Dataset, rank: int) -> None:
    def stream(rank: int) -> fb.Stream:
        return configured.batches(9, rank=rank, world_size=3)

    whole = batches_of(stream(rank))
    for num_batches in range(len(whole) + 1):
        assert batches_of(resumed(stream(rank), after(stream(1), num_batches))) == whole[num_batches:]


def test_every_position_is_resumed_exactly(configured: fb.Dataset) -> None:
    sequence = ids_of(configured.batches(100))
    state = configured.batches(1).state_dict()
    for position in [*range(0, len(sequence), 7), len(sequence) - 1, len(sequence)]:
        stream = resumed(configured.batches(64), state | {"position": position})
        assert ids_of(stream) == sequence[position:]


def test_the_state_counts_what_was_received_not_what_was_read_ahead(dataset: fb.Dataset) -> None:
    stream = dataset.batches(10)
    assert stream.state_dict()["position"] == 0
    batches = iter(stream)
    assert stream.state_dict()["position"] == 0
    for received in range(1, 5):
        next(batches)
        assert stream.state_dict()["position"] == 10 * received


def test_a_state_is_small_json_and_stays_so(configured: fb.Dataset) -> None:
    sizes = {len(json.dumps(after(configured.batches(1), num_batches))) for num_batches in (1, 20, 200)}
    assert max(sizes) < 600
    assert max(sizes) - min(sizes) <= 2


def test_a_loaded_state_is_the_state_until_the_next_batch(configured: fb.Dataset) -> None:
    state = after(configured.batches(10), 7)
    stream = resumed(configured.batches(10), state)
    assert stream.state_dict() == state
    iter(stream)
    assert stream.state_dict() == state


def test_two_resumes_in_a_row_go_on_from_the_second(configured: fb.Dataset) -> None:
    whole = batches_of(configured.batches(10))
    first = resumed(configured.batches(10), after(configured.batches(10), 3))
    second = after(first, 4)
    assert batches_of(resumed(configured.batches(10), second)) == whole[7:]
    assert batches_of(resumed(resumed(configured.batches(10), second), after(configured.batches(10), 1))) == whole[1:]


def test_a_stream_can_be_set_back_while_it_is_read(configured: fb.Dataset) -> None:
    stream = configured.batches(10)
    whole = batches_of(stream)
    state = after(stream, 5)
    for _, _ in zip(stream, range(9), strict=False):
        pass
    assert batches_of(resumed(stream, state)) == whole[5:]


def test_an_epoch_that_is_over_has_no_rest_and_the_next_one_is_whole(configured: fb.Dataset) -> None:
    stream = configured.batches(64)
    num_batches = len(stream)
    state = after(stream, num_batches)
    later = resumed(configured.batches(64), state)
    assert len(later) == 0
    assert batches_of(later) == []
    assert later.state_dict() == state
    later = resumed(configured.batches(64), state)
    later.set_epoch(1)
    stream.set_epoch(1)
    assert len(later) == num_batches
    assert batches_of(later) == batches_of(stream)


def test_a_state_carries_its_epoch(configured: fb.Dataset) -> None:
    stream = configured.batches(10)
    stream.set_epoch(41)
    whole = batches_of(stream)
    later = resumed(configured.batches(10), after(stream, 6))
    assert later.epoch == 41
    later.set_epoch(41)
    assert batches_of(later) == whole[6:]


def test_an_iteration_after_a_resumed_one_delivers_the_whole_epoch(configured: fb.Dataset) -> None:
    stream = resumed(configured.batches(10), after(configured.batches(10), 6))
    list(stream)
    assert len(stream) == len(configured.batches(10))
    assert batches_of(stream) == batches_of(configured.batches(10))


def test_shuffled_epochs_differ_and_unshuffled_ones_do_not(dataset: fb.Dataset) -> None:
    def epochs(stream: fb.Stream) -> set[tuple[int, ...]]:
        orders = set()
        for epoch in (0, 1, 2):
            stream.set_epoch(epoch)
            orders.add(tuple(ids_of(stream)))
        assert {tuple(sorted(order)) for order in orders} == {tuple(range(NUM_ROWS))}
        return orders

    assert len(epochs(dataset.shuffle(5, num_lanes=3, window_rows=10).batches(100))) == 3
    assert len(epochs(dataset.batches(100))) == 1


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", True, None])
def test_an_epoch_that_is_none_is_refused(dataset: fb.Dataset, epoch: Any) -> None:
    with pytest.raises(fb.SettingError, match="epoch: expected"):
        dataset.batches(1).set_epoch(epoch)


class Job:
    """All ranks of a training job and their DataLoader workers, in one process."""

    def __init__(
        self, dataset: fb.Dataset, world_size: int, num_workers: int, batch_size: int, state: dict[str, Any] | None
    ) -> None:
        def streams(rank: int) -> list[fb.Stream]:
            made = []
            for _ in range(max(num_workers, 1)):
                stream = dataset.batches(batch_size, rank=rank, world_size=world_size, remainder="keep", num_threads=1)
                made.append(stream if state is None else resumed(stream, state))
            return made

        self.streams = [streams(rank) for rank in range(world_size)]
        self.iterators = [
            [stream._iterate(worker, len(workers)) for worker, stream in enumerate(workers)] for workers in self.streams
        ]

    def steps(self) -> Iterator[list[int]]:
        """Yields the global batches: each rank asks its workers in turn."""
        turn = 0
        while True:
            step = [next(workers[turn % len(workers)], None) for workers in self.iterators]
            step = [ids(batch) for batch in step if batch is not None]
            if not step:
                return
            yield model.in_turn(step)
            turn += 1

    def state(self, rank: int) -> dict[str, Any]:
        """Returns the state of one rank's loader, reduced to a cursor."""
        workers = {f"worker_{index}": stream.state_dict() for index, stream in enumerate(self.streams[rank])}
        return fb.cursor(json.loads(json.dumps({"snapshot": workers})))


@pytest.mark.parametrize("chain", range(12))
def test_a_chain_of_resumes_in_changing_worlds_delivers_every_row_once_in_the_one_order(
    configured: fb.Dataset, chain: int
) -> None:
    rng = random.Random(f"chain {chain}")
    epoch = rng.randrange(3)
    reference = configured.batches(100)
    reference.set_epoch(epoch)
    sequence = ids_of(reference)
    state = reference.state_dict() | {"position": 0}
    seen: list[int] = []
    while len(seen) < len(sequence):
        job = Job(configured, rng.randrange(1, 10), rng.randrange(6), rng.randrange(1, 17), state)
        steps = job.steps()
        for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 100])):
            seen += next(steps, [])
        state = job.state(rng.randrange(len(job.streams)))
        assert state["position"] == len(seen)
        assert state["epoch"] == epoch
    assert seen == sequence


@pytest.mark.parametrize("num_workers", range(1, 6))
def test_the_state_of_workers_is_right_after_every_batch(dataset: fb.Dataset, num_workers: int) -> None:
    shuffled = dataset.shuffle(1, num_lanes=6, window_rows=20)
    job = Job(shuffled, 1, num_workers, 40, None)
    assert job.state(0)["position"] == 0
    for number, _ in enumerate(job.steps()):
        assert job.state(0)["position"] == min(40 * (number + 1), NUM_ROWS)


@pytest.mark.parametrize("num_workers", range(2, 5))
def test_dropped_rows_are_not_counted_as_delivered(dataset: fb.Dataset, num_workers: int) -> None:
    def stream() -> fb.Stream:
        return dataset.batches(10, rank=0, world_size=7)

    alone = stream()
    list(alone)
    workers = [stream() for _ in range(num_workers)]
    for worker, held in enumerate(workers):
        list(held._iterate(worker, num_workers))
    state = fb.cursor({"workers": [held.state_dict() for held in workers]})
    assert state == alone.state_dict()
    assert state["position"] == NUM_ROWS - NUM_ROWS % 7
    assert ids_of(resumed(dataset.batches(10), state)) == list(range(NUM_ROWS - NUM_ROWS % 7, NUM_ROWS))


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_those_of_the_model(dataset: fb.Dataset, world_size: int, remainder: Any, drop_last: bool) -> None:
    shuffled = dataset.shuffle(1, num_lanes=6, window_rows=20)
    sequence = ids_of(shuffled.batches(100))
    state = shuffled.batches(1).state_dict()
    for position in (0, 3, NUM_ROWS - 30, NUM_ROWS - 1, NUM_ROWS):
        shares, lengths, dropped = [], [], set()
        for rank in range(world_size):
            expected = model.rank_batches(sequence, position, rank, world_size, 7, remainder, drop_last)
            stream = shuffled.batches(7, rank=rank, world_size=world_size, remainder=remainder, drop_last=drop_last)
            stream.load_state_dict(state | {"position": position})
            dropped.add(stream.num_dropped)
            lengths.append(len(stream))
            shares.append(batches_of(stream))
            assert shares[-1] == expected
            assert lengths[-1] == len(expected)
        if remainder != "keep":
            assert len(set(lengths)) == 1
        missing = set(sequence[position:]) - {row for share in shares for batch in share for row in batch}
        assert dropped == {len(missing)}
        if not drop_last:
            assert len(missing) < world_size
            assert remainder == "drop" or not missing


@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_fewer_rows_than_ranks_hang_nobody(dataset: fb.Dataset, remainder: Any) -> None:
    few = dataset.filter("id < 3").shuffle(1)
    sequence = ids_of(few.batches(9))
    for rank in range(8):
        stream = few.batches(2, rank=rank, world_size=8, remainder=remainder)
        assert batches_of(stream) == model.rank_batches(sequence, 0, rank, 8, 2, remainder, False)


@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_no_row_is_an_empty_epoch(dataset: fb.Dataset, remainder: Any) -> None:
    for nothing in (dataset.filter("id < 0"), dataset.filter("id < 0").shuffle(1)):
        stream = nothing.batches(2, rank=1, world_size=2, remainder=remainder)
        assert len(stream) == 0
        assert list(stream) == []
        assert batches_of(resumed(stream, stream.state_dict())) == []


def refusal(stream: fb.Stream, state: Any) -> str:
    before = stream.state_dict()
    with pytest.raises(fb.StateError) as caught:
        stream.load_state_dict(state)
    assert stream.state_dict() == before
    return str(caught.value)


def test_a_state_of_another_shuffle_is_refused_and_says_what_differs(dataset: fb.Dataset) -> None:
    settings = {"num_lanes": 6, "window_rows": 20}
    state = after(dataset.shuffle(1, **settings).batches(10), 3)
    for other, words in (
        (dataset.shuffle(2, **settings), ["seed", "`2`", "`1`"]),
        (dataset.shuffle(1, num_lanes=7, window_rows=20), ["num_lanes", "`7`", "`6`"]),
        (dataset.shuffle(1, num_lanes=6, window_rows=21), ["window_rows", "`21`", "`20`"]),
        (dataset.shuffle(1, shuffle_bytes=1 << 20, **settings), ["shuffle_bytes", "1048576", "1073741824"]),
        (dataset, ["order", "sequential", "shuffled"]),
    ):
        message = refusal(other.batches(10), state)
        assert all(word in message for word in words), message
        assert "fingerprint" not in message


def test_a_state_of_another_query_is_refused_and_says_what_differs(dataset: fb.Dataset) -> None:
    state = after(dataset.filter("id < 400").batches(10), 3)
    for other in (dataset, dataset.filter("id < 401"), dataset.filter("id < 400").filter("id > 3")):
        message = refusal(other.batches(10), state)
        assert "query" in message
        assert "id < 400" in message


def test_a_state_of_another_version_of_the_objects_is_refused(tmp_path: Path) -> None:
    dataset = write_uneven(tmp_path)
    state = after(dataset.batches(10), 3)
    again = fb.load_dataset(tmp_path, split="train")
    assert ids_of(resumed(again.batches(10), state)) == list(range(30, NUM_ROWS))
    write_fragments(tmp_path, ids_table(NUM_ROWS, first=1), num_fragments=3)
    changed = fb.load_dataset(tmp_path, split="train")
    assert "fingerprint" in refusal(changed.batches(10), state)


def test_what_may_change_is_not_refused(dataset: fb.Dataset) -> None:
    state = after(dataset.batches(10), 3)
    for other in (
        dataset.select_columns("id").batches(10),
        dataset.batches(77, rank=0, world_size=1),
        dataset.batches(10, memory_limit=16 << 20, num_threads=1),
    ):
        assert ids_of(resumed(other, state)) == list(range(30, NUM_ROWS))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"position": NUM_ROWS + 1}, f"position: expected at most {NUM_ROWS}, got {NUM_ROWS + 1}"),
        ({"position": -1}, "not a Forebay state: position: expected a number of 0 or more, got -1"),
        ({"position": "3"}, "not a Forebay state: position: expected a number of 0 or more, got '3'"),
        ({"position": 1.5}, "not a Forebay state: position: expected a number of 0 or more, got 1.5"),
        ({"position": 1 << 64}, "not a Forebay state: invalid type: floating point"),
        ({"epoch": -1}, "not a Forebay state: epoch: expected a number of 0 or more, got -1"),
        ({"epoch": None}, "not a Forebay state: epoch: expected a number of 0 or more, got None"),
        ({"version": 2}, "expected a state of version `1`, got version `2`"),
        ({"order": "sequential"}, 'not a Forebay state: invalid type: string "sequential"'),
        ({"query": None}, "not a Forebay state: invalid type: null, expected a sequence"),
        ({"holes": [1]}, "not a Forebay state: invalid type: integer `1`, expected struct Hole"),
        ({"worker": 3}, "not a Forebay state: worker: expected a dict, got 3"),
        ({"worker": {"turn": -1}}, "not a Forebay state: worker.turn: expected a number from 0, got -1"),
        ({"worker": {"turn": True}}, "not a Forebay state: worker.turn: expected a number from 0, got True"),
        ({"worker": {"turn": 1 << 63}}, f"not a Forebay state: worker.turn: expected a number from 0, got {1 << 63}"),
    ],
    ids=str,
)
def test_a_malformed_state_is_refused(dataset: fb.Dataset, change: dict[str, Any], words: str) -> None:
    stream = dataset.batches(10)
    assert words in refusal(stream, stream.state_dict() | change)


def test_no_line_of_a_dict_is_named(dataset: fb.Dataset) -> None:
    assert refusal(dataset.batches(10), {}) == "not a Forebay state: missing field `version`"


@pytest.mark.parametrize("state", [{}, {"position": 3}, None, [], "state", {"position": {1}}, {1: 2}], ids=repr)
def test_what_is_no_state_is_refused(dataset: fb.Dataset, state: Any) -> None:
    # Only of text: that may be the JSON of one.
    assert ("`json.loads` makes one" in refusal(dataset.batches(10), state)) == isinstance(state, str)


def test_the_state_of_what_holds_a_stream_is_refused_and_where_it_belongs_is_named(dataset: fb.Dataset) -> None:
    stream = dataset.batches(10)
    state = after(dataset.batches(10), 3)
    workers = {"_steps_since_snapshot": 0, "_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": state}}}}
    for outer in ({"dataset_state": state}, workers, workers | {"_steps_since_snapshot": 2}, {"all": [state]}):
        message = refusal(stream, outer)
        assert "such as a `StatefulDataLoader`: load it there" in message
        assert "`forebay.cursor(state)`" in message
    stream.load_state_dict(fb.cursor(workers))
    assert stream.state_dict() == state


def test_a_workers_state_is_refused_by_other_workers_batches_or_worlds(dataset: fb.Dataset) -> None:
    def worker(batch_size: int, index: int, num_workers: int, world_size: int = 1) -> Any:
        stream = dataset.batches(batch_size, rank=0, world_size=world_size)
        stream.load_state_dict(state)
        return stream._iterate(index, num_workers)

    stream = dataset.batches(10)
    next(stream._iterate(1, 2))
    state = stream.state_dict()
    assert ids(next(worker(10, 1, 2))) == list(range(30, 40))
    for others in ((10, 0, 2), (10, 1, 3), (10, 0, 1), (5, 1, 2), (10, 1, 2, 2)):
        with pytest.raises(fb.StateError, match=r"forebay\.cursor"):
            next(worker(*others))


def test_a_cursor_needs_the_states_of_all_workers(dataset: fb.Dataset) -> None:
    streams = [dataset.batches(10) for _ in range(3)]
    for worker, stream in enumerate(streams):
        next(stream._iterate(worker, 3))
    states = [stream.state_dict() for stream in streams]
    assert fb.cursor({"a": states})["position"] == 30
    assert "worker" not in fb.cursor({"a": states})
    with pytest.raises(fb.StateError, match="2 workers, but there were 3"):
        fb.cursor({"a": states[1:]})
    with pytest.raises(fb.StateError, match="no Forebay state inside"):
        fb.cursor({"_snapshot": {}})


def test_states_of_several_streams_are_not_reduced_to_one(tmp_path: Path) -> None:
    ds = write_uneven(tmp_path, 60)
    states = [ds.shuffle(seed).batches(8).state_dict() for seed in (1, 2)]
    with pytest.raises(fb.StateError, match="belong to one stream: they differ in order; reduce those of each alone"):
        fb.cursor(states)
    with pytest.raises(fb.StateError, match="they differ in query, order"):
        fb.cursor([ds.filter("id > 3").batches(8).state_dict(), states[0]])


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": None},
        {"epoch": -1},
        {"position": 1.5},
        {"worker": {}},
        {"worker": 5},
        {"worker": None},
        {"worker": {"index": 0, "num_workers": "2"}},
        {"worker": {"index": 1, "num_workers": 1}},
        {"worker": {"index": 3, "num_workers": 1}},
        {"worker": {"index": 0, "num_workers": 1 << 70}},
        {"holes": 5},
        {"holes": [1]},
        {"holes": [{"span": 0, "start": 1}]},
    ],
    ids=str,
)
def test_a_cursor_of_damaged_states_is_refused(dataset: fb.Dataset, damage: dict[str, Any]) -> None:
    state = after(dataset.batches(10), 3)
    with pytest.raises(fb.StateError, match=next(iter(damage))):
        fb.cursor({"a": state | damage})


def test_a_state_without_an_end_is_refused(dataset: fb.Dataset) -> None:
    endless: dict[str, Any] = {}
    endless["a"] = [endless]
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    stream = dataset.batches(10)
    for state in (endless, deep):
        with pytest.raises(fb.StateError, match="nested"):
            fb.cursor(state)
        refusal(stream, stream.state_dict() | {"query": state})


def test_the_cursor_of_a_plain_state_is_that_state(dataset: fb.Dataset) -> None:
    state = after(dataset.batches(10), 3)
    assert fb.cursor(state) == state


@pytest.mark.parametrize("batch_size", [1, 3, 83, 167])
def test_ranks_without_a_batch_in_the_last_step_end_where_the_others_do(dataset: fb.Dataset, batch_size: int) -> None:
    """With 'keep' some ranks are done before others; what all of them say at the end leaves nothing to do twice."""
    world_size = 3
    streams = [
        dataset.batches(batch_size, rank=rank, world_size=world_size, remainder="keep") for rank in range(world_size)
    ]
    for stream in streams:
        list(stream)
    states = [stream.state_dict() for stream in streams]
    assert [state["position"] for state in states] == [NUM_ROWS] * world_size
    for stream in streams:
        assert ids_of(resumed(stream, fb.cursor(states))) == []


def test_the_end_of_a_loop_leaves_a_stream_where_it_was_set_to_meanwhile(dataset: fb.Dataset) -> None:
    stream = dataset.shuffle(1).batches(100, rank=1, world_size=3, remainder="keep")
    batches = list(stream)
    stream.set_epoch(0)
    for number, _ in enumerate(stream, 1):
        if number == len(batches):
            stream.set_epoch(1)
    assert (stream.state_dict()["epoch"], stream.state_dict()["position"]) == (1, 0)
    # To another place of the same epoch, too.
    stream.set_epoch(0)
    first = stream.state_dict()
    for number, _ in enumerate(stream, 1):
        if number == len(batches):
            stream.load_state_dict(first)
    assert stream.state_dict() == first


def test_an_iterator_without_a_loop_starts_no_rank_anew_while_others_go_on(tmp_path: Path) -> None:
    write_fragments(tmp_path, ids_table(13))
    ds = fb.load_dataset(tmp_path, split="train")
    state = after(ds.batches(10), 1)
    found = []
    for rank in range(5):
        stream = ds.batches(8, rank=rank, world_size=5, remainder="keep")
        stream.load_state_dict(state)
        iter(stream)
        found.append(ids_of(stream))
    assert found == [[10], [11], [12], [], []]
