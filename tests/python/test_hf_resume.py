"""States of what `to_hf` returns: a loop that goes on from one equals the loop that was never stopped."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import datasets
import dill
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data import ids_table, write_fragments
from datasets.distributed import split_dataset_by_node
from hf_data import open_rows, shown, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import write_paged
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return open_rows(write_rows(tmp_path_factory.mktemp("hf-resume"))).select_columns(["id", "text"])


ORDERS: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "plain": lambda ds: ds.filter("id % 7 <> 1"),
    "shuffled": lambda ds: ds.filter("id % 7 <> 1").shuffle(2, num_lanes=6, window_rows=5),
    "queried": lambda ds: ds.sql("SELECT id FROM dataset WHERE id > 20 ORDER BY id DESC"),
}

STEPS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda ds: ds,
    "rows of torch": lambda ds: ds.with_format("torch").select_columns("id"),
    "rows of arrow": lambda ds: ds.with_format("arrow").select_columns("id"),
    "skipped and taken": lambda ds: ds.skip(10).take(70),
    "a shard": lambda ds: ds.shard(3, 1),
    "a node": lambda ds: split_dataset_by_node(ds, 1, 3),
    "an uneven node": lambda ds: split_dataset_by_node(ds, 2, 5),
    "mapped": lambda ds: ds.map(lambda row: {"id": row["id"]}),
    "mapped in batches": lambda ds: ds.map(lambda batch: batch, batched=True, batch_size=8),
    "filtered": lambda ds: ds.filter(lambda row: row["id"] % 2 == 0),
    "filtered in batches": lambda ds: ds.filter(lambda rows: [number % 2 == 0 for number in rows["id"]], batched=True),
    "repeated": lambda ds: ds.repeat(2),
    "renamed and cast": lambda ds: ds.cast_column("id", datasets.Value("int32")),
}


def id_of(row: Any) -> int:
    value = row["id"]
    return int(value[0].as_py() if isinstance(value, pa.ChunkedArray) else value)


def ids(rows: Any) -> list[int]:
    return [id_of(row) for row in rows]


def stopped(ds: Any, num_rows: int) -> tuple[list[int], dict[str, Any]]:
    """Takes some rows; returns them and the state then, by way of JSON."""
    rows = iter(ds)
    taken = [id_of(next(rows)) for _ in range(num_rows)]
    return taken, json.loads(json.dumps(ds.state_dict()))


def loaded(ds: Any, state: dict[str, Any]) -> Any:
    ds.load_state_dict(state)
    return ds


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_resume_after_any_row_delivers_exactly_the_rest(rows: fb.Dataset, order: str, step: str) -> None:
    def make() -> Any:
        made = STEPS[step](ORDERS[order](rows).to_hf())
        made.set_epoch(3)
        return made

    whole = ids(make())
    for cut in {0, 1, 2, len(whole) // 2, len(whole) - 1, len(whole)}:
        before, state = stopped(make(), cut)
        later = make()
        assert before + ids(loaded(later, state)) == whole, cut


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 40), min_size=1, max_size=4), epoch=st.integers(0, 3), num_read=st.integers(0, 3))
def test_resumes_of_resumes_deliver_every_row_once(
    rows: fb.Dataset, cuts: list[int], epoch: int, num_read: int
) -> None:
    ordered = ORDERS["shuffled"](rows)
    ds = ordered.to_hf()
    ds.set_epoch(epoch)
    whole, seen = ids(ds), []
    state = None
    for cut in cuts:
        ds = ordered.to_hf()
        if state is None:
            ds.set_epoch(epoch)
        else:
            ds.load_state_dict(state)
        taken = iter(ds)
        seen += map(id_of, islice(taken, min(cut, len(whole) - len(seen))))
        state = json.loads(json.dumps(ds.state_dict()))
        # What else is read of the stopped loop is nothing to the state.
        for _ in range(num_read):
            next(taken, None)
    assert seen + ids(loaded(ordered.to_hf(), state)) == whole


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_batches_are_resumed_exactly(rows: fb.Dataset, batch_size: int) -> None:
    ordered = ORDERS["shuffled"](rows)

    def batches(ds: Any) -> list[list[int]]:
        return [batch["id"].tolist() for batch in ds.with_format("numpy").iter(batch_size)]

    whole = batches(ordered.to_hf())
    for cut in range(len(whole) + 1):
        ds = ordered.to_hf().with_format("numpy")
        taken = ds.iter(batch_size)
        before = [next(taken)["id"].tolist() for _ in range(cut)]
        later = ordered.to_hf().with_format("numpy")
        later.load_state_dict(ds.state_dict())
        assert before + [batch["id"].tolist() for batch in later.iter(batch_size)] == whole


NUM_ROWS_SHUFFLED = 15_000


def test_a_shuffled_resume_loses_no_row_where_that_of_datasets_loses_thousands(tmp_path: Path) -> None:
    table = ids_table(NUM_ROWS_SHUFFLED).select(["id"])
    files = [str(path) for path in write_fragments(tmp_path, table, num_fragments=3, row_group_rows=500)]

    def failures(make: Callable[[], Any], cut: int) -> tuple[int, int]:
        """Returns how many rows are lost and doubled by stopping after some and going on from the state."""
        before, state = stopped(make(), cut)
        seen = Counter(before + ids(loaded(make(), state)))
        return NUM_ROWS_SHUFFLED - len(seen), seen.total() - len(seen)

    def theirs() -> Any:
        streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        return streamed.shuffle(seed=42, buffer_size=5000)

    ds = fb.load_dataset(files, split="train").shuffle(42, num_lanes=12, window_rows=200)
    assert failures(theirs, 5000)[0] > 1000, "the check is one"
    for cut in (5000, 14_999):
        assert failures(ds.to_hf, cut) == (0, 0)


@pytest.mark.parametrize("step", ["rows", "mapped", "mapped in batches", "filtered", "repeated"])
def test_a_state_holds_for_one_loop(rows: fb.Dataset, step: str) -> None:
    def make() -> Any:
        return STEPS[step](ORDERS["shuffled"](rows).to_hf())

    whole = ids(make())
    _, state = stopped(make(), 30)
    later = loaded(make(), state)
    assert later.state_dict() == state
    assert ids(later) == whole[30:]
    assert ids(later) == whole


def test_a_state_of_the_end_resumes_with_nothing_and_then_with_the_next_epoch(rows: fb.Dataset) -> None:
    ordered = ORDERS["shuffled"](rows)
    first = ordered.to_hf()
    whole, state = stopped(first, len(first))
    later = loaded(ordered.to_hf(), state)
    assert ids(later) == []
    later.set_epoch(1)
    assert sorted(ids(later)) == sorted(whole) != ids(later)


def test_a_state_brings_its_epoch(rows: fb.Dataset) -> None:
    ordered = ORDERS["shuffled"](rows)
    first = ordered.to_hf()
    first.set_epoch(5)
    whole = ids(first)
    _, state = stopped(first, 11)
    later = loaded(ordered.to_hf(), state)
    assert later.epoch == 5
    assert ids(later) == whole[11:]


@pytest.mark.parametrize("step", ["rows", "rows of arrow", "mapped", "mapped in batches", "a shard"])
def test_a_state_before_the_first_row_has_the_epoch_that_was_set(rows: fb.Dataset, step: str) -> None:
    def made() -> Any:
        return STEPS[step](ORDERS["shuffled"](rows).to_hf())

    ds = made()
    epochs = []
    for epoch in range(3):
        ds.set_epoch(epoch)
        epochs.append(ids(ds))
    for epoch in (2, 0, 1):
        ds.set_epoch(epoch)
        state = json.loads(json.dumps(ds.state_dict()))
        assert state["epoch"] == epoch
        assert ids(loaded(made(), state)) == epochs[epoch]
        assert ids(ds) == epochs[epoch]
    # A state that was loaded is not any more that of the epoch that is set then.
    _, state = stopped(made(), 7)
    ds.load_state_dict(state)
    assert ds.state_dict() == state
    ds.set_epoch(0)
    assert ds.state_dict() == state, "it is of this epoch"
    ds.set_epoch(2)
    assert ids(loaded(made(), ds.state_dict())) == epochs[2] == ids(ds)


EARLY: dict[str, Callable[[Any], Any]] = {
    **{name: step for name, step in STEPS.items() if "node" not in name},
    "rows of numpy": lambda ds: ds.with_format("numpy").select_columns("id"),
    "resharded": lambda ds: ds.reshard(),
    "taken, as torch": lambda ds: ds.take(9).with_format("torch").select_columns("id"),
    "torch, shuffled": lambda ds: ds.with_format("torch").select_columns("id").shuffle(4),
    "mapped, shuffled": lambda ds: ds.map(lambda row: row).shuffle(4, buffer_size=8),
    "batched": lambda ds: ds.batch(8),
}

LOOPS: dict[str, Callable[[Any], Any]] = {"over rows": iter, "over batches": lambda ds: ds.iter(8)}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("step", EARLY)
def test_a_state_before_the_first_row_begins_any_loop(rows: fb.Dataset, step: str, loop: str) -> None:
    def made() -> Any:
        return EARLY[step](ORDERS["shuffled"](rows).to_hf())

    def delivered(ds: Any) -> list[Any]:
        return [shown(item) for item in LOOPS[loop](ds)]

    ds = made()
    epochs = []
    for epoch in range(2):
        ds.set_epoch(epoch)
        epochs.append(delivered(ds))
    never_begun = made()
    for state, epoch in ((never_begun.state_dict(), 0), (loaded(made(), never_begun.state_dict()).state_dict(), 0)):
        assert delivered(loaded(made(), json.loads(json.dumps(state)))) == epochs[epoch]
    # As trainers save at the start of an epoch, before or after they ask for its iterator.
    later = dill.loads(dill.dumps(loaded(made(), ds.state_dict())))
    assert delivered(later) == []
    later.set_epoch(1)
    for state in (later.state_dict(), (LOOPS[loop](later), later.state_dict())[1]):
        again = loaded(made(), state)
        again.set_epoch(1)
        assert delivered(again) == epochs[1]
        assert delivered(again) == epochs[1]


def test_the_epoch_of_a_loaded_state_may_be_set_once_more(rows: fb.Dataset) -> None:
    """As trainers do that set the epoch before each loop."""

    def batches(ds: Any) -> list[list[int]]:
        return [batch["id"].tolist() for batch in ds.iter(8)]

    first = ORDERS["shuffled"](rows).to_hf().with_format("torch")
    first.set_epoch(1)
    whole = batches(first)
    next(first.iter(8))
    later = loaded(ORDERS["shuffled"](rows).to_hf().with_format("torch"), first.state_dict())
    later.set_epoch(1)
    assert batches(later) == whole[1:]


def test_the_advice_after_a_function_failed_loses_no_row(rows: fb.Dataset) -> None:
    fails = [True]

    def fail_once(row: Any) -> Any:
        if row["id"] == 4 and fails.pop():
            raise ArithmeticError
        return row

    ds = rows.to_hf().map(fail_once)
    taken = iter(ds)
    before = [next(taken)["id"] for _ in range(4)]
    state = ds.state_dict()
    with pytest.raises(ArithmeticError):
        next(taken)
    with pytest.raises(fb.ClosedError, match="load a state that was saved before, and iterate again"):
        next(taken)
    fails.append(False)
    assert before + ids(loaded(ds, state)) == ids(rows.to_hf())


def test_a_loop_that_runs_keeps_its_states_when_the_next_epoch_is_set(rows: fb.Dataset) -> None:
    ds = ORDERS["shuffled"](rows).to_hf()
    whole = ids(ds)
    running = iter(ds)
    taken = ids(islice(running, 5))
    ds.set_epoch(1)
    assert ds.state_dict()["epoch"] == 1
    taken.append(id_of(next(running)))
    state = ds.state_dict()
    assert state["epoch"] == 0
    assert taken + ids(loaded(ORDERS["shuffled"](rows).to_hf(), state)) == whole
    assert taken + ids(running) == whole


def test_the_state_before_the_first_row_of_a_loop_is_that_of_its_beginning(rows: fb.Dataset) -> None:
    ds = rows.shuffle(1).to_hf()
    whole = ids(ds)
    iter(ds)
    assert ids(loaded(rows.shuffle(1).to_hf(), ds.state_dict())) == whole


def test_a_state_is_small_and_stays_so(rows: fb.Dataset) -> None:
    sizes = {len(json.dumps(stopped(rows.shuffle(1).to_hf(), cut)[1])) for cut in (1, 10, 100)}
    assert max(sizes) < 1000
    assert max(sizes) - min(sizes) <= 2


def test_a_state_of_other_rows_is_refused(rows: fb.Dataset) -> None:
    _, state = stopped(rows.shuffle(1).to_hf(), 5)
    for other, message in (
        (rows.shuffle(2), "seed"),
        (rows, "order"),
        (rows.filter("id > 3").shuffle(1), "query"),
    ):
        with pytest.raises(fb.StateError, match=message):
            list(loaded(other.to_hf(), state))
    with pytest.raises(fb.StateError, match="another share of the rows.*as many nodes, processes and workers"):
        list(loaded(rows.shuffle(1).to_hf().shard(2, 0), state))


BUFFERED: dict[str, Callable[[Any], Any]] = {
    "mapped in batches": lambda ds: ds.map(lambda batch: batch, batched=True),
    "filtered in batches": lambda ds: ds.filter(lambda batch: [True] * len(batch["id"]), batched=True),
    "batched": lambda ds: ds.batch(10),
    "tables in batches": lambda ds: ds.with_format("arrow").map(lambda table: table, batched=True),
    "twice": lambda ds: ds.map(lambda batch: batch, batched=True).map(lambda batch: batch, batched=True),
    "repeated": lambda ds: ds.repeat(2).map(lambda batch: batch, batched=True),
    "interleaved": lambda ds: datasets.interleave_datasets([ds.map(lambda batch: batch, batched=True)] * 2),
}
"""Steps for which `datasets` counts rows from a state that it copied before."""


@pytest.mark.parametrize("step", BUFFERED)
def test_a_state_of_other_rows_is_refused_within_the_first_batch_of_a_step(rows: fb.Dataset, step: str) -> None:
    def made(ds: fb.Dataset) -> Any:
        return BUFFERED[step](ds.to_hf())

    ds = rows.shuffle(1)
    first = made(ds)
    taken = iter(first)
    before = [next(taken), next(taken)]
    state = json.loads(json.dumps(first.state_dict()))
    for other, message in ((rows.shuffle(2), "seed"), (rows, "order"), (rows.filter("id > 3").shuffle(1), "query")):
        with pytest.raises(fb.StateError, match=message):
            list(loaded(made(other), state))
    assert next(iter(loaded(made(ds), state))) == next(taken) not in before

    first_shard, second_shard = (BUFFERED[step](ds.to_hf().shard(2, number)) for number in range(2))
    next(iter(first_shard))
    with pytest.raises(fb.StateError, match="another share of the rows"):
        list(loaded(second_shard, first_shard.state_dict()))


@pytest.mark.parametrize("num_batches", [1, 3, 7])
def test_batches_of_a_table_go_on_with_another_memory_limit(tmp_path: Path, num_batches: int) -> None:
    texts = [f"{row:0100000}" for row in range(1500)]
    pq.write_table(pa.table({"id": range(1500), "text": texts}), tmp_path / "a.parquet", row_group_size=50)
    ds = fb.load_dataset(tmp_path, split="train")

    def batches(memory_limit: int) -> Any:
        return ds.to_hf(memory_limit=memory_limit).with_format("numpy")

    first = batches(64 << 20)
    taken = first.iter(7)
    before = [row for _ in range(num_batches) for row in next(taken)["id"].tolist()]
    state = json.loads(json.dumps(first.state_dict()))
    taken.close()
    after = [row for batch in loaded(batches(128 << 20), state).iter(7) for row in batch["id"].tolist()]
    assert before + after == list(range(1500))


def test_a_state_of_batches_of_another_size_is_refused(rows: fb.Dataset) -> None:
    first = rows.to_hf().with_format("numpy")
    next(first.iter(7))
    state = json.loads(json.dumps(first.state_dict()))
    for other in (lambda ds: ds.iter(5), iter):
        with pytest.raises(fb.StateError, match="from a loop over batches of 7, not over (batches of 5|rows)"):
            list(other(loaded(rows.to_hf().with_format("numpy"), state)))


@pytest.mark.parametrize("batch_size", [5, 7, 11])
def test_batches_of_python_objects_may_have_another_size(rows: fb.Dataset, batch_size: int) -> None:
    first = rows.to_hf()
    batches = first.iter(7)
    before = [row for _ in range(3) for row in next(batches)["id"]]
    state = json.loads(json.dumps(first.state_dict()))
    after = [row for batch in loaded(rows.to_hf(), state).iter(batch_size) for row in batch["id"]]
    assert before + after == ids(rows.to_hf())


@pytest.mark.parametrize(
    "state",
    [
        5,
        [],
        {},
        {"a": 1},
        {"epoch": 0},
        {"epoch": 0, "examples_iterable": None},
        {"epoch": "x", "examples_iterable": {}},
        {"epoch": 1 << 70, "examples_iterable": {}},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(rows: fb.Dataset, state: Any) -> None:
    with pytest.raises(fb.StateError, match="not a state of `to_hf`"):
        rows.to_hf().load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        *({"shard_example_idx": value} for value in (-3, 1.5, "x", None, True, 10**9, 1 << 70)),
        *({"shard_idx": value} for value in (0, 1, "x", [], {}, None)),
        *({"table_rows": value} for value in (-1, 0, "x", None, 10**12)),
        *({"of": value} for value in (5, None, "x", "{}")),
        *({"part": value} for value in (5, None, "x", "rows [0:], 0 to 2, 0 of 1", "rows [0:], 1/0 to 2, 0 of 1")),
        {"type": "ArrowExamplesIterable"},
    ],
    ids=str,
)
@pytest.mark.parametrize("step", ["rows", "mapped", "a node"])
def test_a_state_with_a_damaged_part_is_refused(rows: fb.Dataset, step: str, damage: dict[str, Any]) -> None:
    def damaged(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        is_of_rows = part.get("shard_idx") is not None or part.get("of") is not None
        changed = {name: value for name, value in damage.items() if is_of_rows and name in part}
        # Of a loop that was not stopped within a table.
        changed |= {"previous_state": None} if "previous_state" in part else {}
        return {name: damaged(value) for name, value in part.items()} | changed

    _, state = stopped(STEPS[step](rows.to_hf()), 5)
    with pytest.raises(fb.StateError):
        list(loaded(STEPS[step](rows.to_hf()), damaged(state)))


@pytest.mark.parametrize("name", ["shard_idx", "shard_example_idx", "type", "table_rows", "part", "of"])
def test_a_state_that_lacks_a_part_is_refused(rows: fb.Dataset, name: str) -> None:
    _, state = stopped(rows.to_hf(), 5)
    of_rows = state["examples_iterable"]
    del (of_rows if name in of_rows else of_rows["shard_idx"])[name]
    with pytest.raises(fb.StateError, match="not a state of `to_hf`: expected .* of the rows"):
        list(loaded(rows.to_hf(), state))


def test_a_state_of_other_steps_is_refused(rows: fb.Dataset) -> None:
    plain, mapped = (stopped(STEPS[step](rows.to_hf()), 5)[1] for step in ("rows", "mapped"))
    for step, state in (("mapped", plain), ("rows", mapped)):
        with pytest.raises(fb.StateError, match="not belong to the steps that were taken here"):
            list(loaded(STEPS[step](rows.to_hf()), state))


@pytest.mark.parametrize("step", ["rows", "rows of torch", "mapped in batches"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_batches", [0, 1, 4, 9])
def test_a_stateful_loader_goes_on_where_it_was(
    rows: fb.Dataset, num_workers: int, num_batches: int, step: str
) -> None:
    def loader() -> StatefulDataLoader:
        ordered = ORDERS["shuffled"](rows).select_columns("id")
        return StatefulDataLoader(STEPS[step](ordered.to_hf()), batch_size=8, num_workers=num_workers)

    whole = [batch["id"].tolist() for batch in loader()]
    first = loader()
    taken = iter(first)
    before = [next(taken)["id"].tolist() for _ in range(num_batches)]
    second = loader()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = iter(second)
    # And once more, in the middle of the rest.
    before += [next(rest)["id"].tolist() for _ in range(2)]
    third = loader()
    third.load_state_dict(second.state_dict())
    assert before + [batch["id"].tolist() for batch in third] == whole
    # The state was used up.
    assert [batch["id"].tolist() for batch in third] == whole


def with_others(rows: Any) -> list[Any]:
    """Rows of ours, and some that `datasets` has itself."""
    return [rows, datasets.Dataset.from_dict({"id": list(range(1000, 1030))}).to_iterable_dataset(num_shards=2)]


TOGETHER: dict[str, Callable[[Any], Any]] = {
    "concatenated": lambda rows: datasets.concatenate_datasets(with_others(rows)),
    "concatenated behind": lambda rows: datasets.concatenate_datasets(with_others(rows)[::-1]),
    "concatenated twice": lambda rows: datasets.concatenate_datasets([rows, rows]),
    "interleaved": lambda rows: datasets.interleave_datasets(with_others(rows), stopping_strategy="all_exhausted"),
    "at random": lambda rows: datasets.interleave_datasets(with_others(rows), probabilities=[0.7, 0.3], seed=1),
}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("order", ["plain", "shuffled"])
def test_a_loader_of_several_datasets_goes_on_where_it_was(
    rows: fb.Dataset, order: str, together: str, num_workers: int
) -> None:
    def loader() -> StatefulDataLoader:
        ours = ORDERS[order](rows).select_columns("id").to_hf(num_shards=6)
        return StatefulDataLoader(TOGETHER[together](ours), batch_size=4, num_workers=num_workers)

    whole = [batch["id"].tolist() for batch in loader()]
    for num_batches in (3, 8):
        first = loader()
        taken = iter(first)
        before = [next(taken)["id"].tolist() for _ in range(num_batches)]
        second = loader()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + [batch["id"].tolist() for batch in second] == whole


def test_a_state_of_rows_is_none_of_a_stream(rows: fb.Dataset) -> None:
    taken = rows.to_hf()
    next(iter(taken))
    for stream in (rows.batches(10), rows.to_torch(10), fb.DataLoader(rows, 10)):
        with pytest.raises(fb.StateError, match="from what `to_hf` returned, not from a stream"):
            stream.load_state_dict(taken.state_dict())


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_state_of_one_process_is_none_of_workers(rows: fb.Dataset, num_workers: int) -> None:
    def make() -> Any:
        return TOGETHER["concatenated"](rows.select_columns("id").to_hf())

    first = make()
    taken = iter(first)
    before = [next(taken)["id"] for _ in range(20)]
    state = json.loads(json.dumps(first.state_dict()))
    later = make()
    later.load_state_dict(state)
    assert before + ids(later) == ids(make())
    with pytest.raises(fb.StateError, match="another share of the rows.*as many nodes, processes and workers"):
        list(DataLoader(later, batch_size=4, num_workers=num_workers))


def test_persistent_workers_go_on_from_a_state_once(rows: fb.Dataset) -> None:
    def loader() -> StatefulDataLoader:
        ordered = ORDERS["shuffled"](rows).select_columns("id")
        return StatefulDataLoader(ordered.to_hf(), batch_size=8, num_workers=2, persistent_workers=True)

    first = loader()
    whole = [batch["id"].tolist() for batch in first]
    first.dataset.set_epoch(1)
    other = [batch["id"].tolist() for batch in first]
    assert other != whole
    taken = iter(first)
    before = [next(taken)["id"].tolist() for _ in range(5)]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert before + [batch["id"].tolist() for batch in second] == other
    assert [batch["id"].tolist() for batch in second] == other
    second.dataset.set_epoch(0)
    assert [batch["id"].tolist() for batch in second] == whole


BEHIND_AN_EPOCH = {
    "its last batch": False,
    "its end": True,
}
"""Where a loader is saved: whether it was asked for another batch, of which there was none."""


@pytest.mark.parametrize("is_asked_for_more", BEHIND_AN_EPOCH.values(), ids=BEHIND_AN_EPOCH)
@pytest.mark.parametrize("step", ["rows", "mapped", "mapped in batches"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_that_was_saved_behind_an_epoch_goes_on_with_the_one_that_is_set(
    rows: fb.Dataset, num_workers: int, step: str, is_asked_for_more: bool
) -> None:
    """The loader loads the state when it is iterated, with workers in these: behind `set_epoch`."""

    def loader() -> StatefulDataLoader:
        ds = STEPS[step](rows.filter("id < 64").shuffle(2).to_hf().select_columns("id"))
        return StatefulDataLoader(ds, batch_size=8, num_workers=num_workers, multiprocessing_context=method)

    def batches(loader: StatefulDataLoader) -> list[list[int]]:
        return [batch["id"].tolist() for batch in loader]

    method = "fork" if num_workers else None
    uninterrupted, epochs = loader(), []
    for epoch in range(4):
        uninterrupted.dataset.set_epoch(epoch)
        epochs.append(batches(uninterrupted))
    first = loader()
    first.dataset.set_epoch(1)
    taken = iter(first)
    assert [next(taken)["id"].tolist() for _ in epochs[1]] == epochs[1]
    if is_asked_for_more:
        assert next(taken, None) is None
    state = first.state_dict()
    later = loader()
    later.load_state_dict(state)
    for epoch in (2, 3):
        later.dataset.set_epoch(epoch)
        assert batches(later) == epochs[epoch]
        assert later.dataset.epoch == epoch
    assert epochs[1] != epochs[2] != epochs[3], "the check is one"
    # Going back to a state needs no epoch that is set: the last one that was is done.
    later.load_state_dict(state)
    assert is_asked_for_more or batches(later) == []
    assert batches(later) == epochs[1]


@pytest.mark.parametrize("step", ["rows", "mapped"])
def test_a_state_goes_before_an_epoch_that_was_set_unless_nothing_is_left_of_it(rows: fb.Dataset, step: str) -> None:
    def made(epoch: int) -> Any:
        ds = STEPS[step](ORDERS["shuffled"](rows).to_hf())
        ds.set_epoch(epoch)
        return ds

    first = made(1)
    whole, over = stopped(first, len(first))
    _, state = stopped(made(1), 30)
    for epoch in (0, 1, 2):
        assert ids(loaded(made(epoch), state)) == whole[30:]
    for epoch in (0, 1):
        assert ids(loaded(made(epoch), over)) == []
    ds = loaded(made(2), over)
    assert ids(ds) == ids(made(2))
    assert ds.epoch == 2
    # That which was set before the last loop is nothing to a state that is loaded later.
    assert ids(loaded(ds, over)) == []


@pytest.mark.parametrize("step", ["rows", "skipped and taken", "mapped", "mapped in batches"])
def test_to_set_the_epoch_of_a_running_loop_loses_no_place(rows: fb.Dataset, step: str) -> None:
    """As trainers do that take a batch ahead, before they tell the epoch."""
    whole = ids(STEPS[step](ORDERS["shuffled"](rows).to_hf()))
    ds = STEPS[step](ORDERS["shuffled"](rows).to_hf())
    taken = iter(ds)
    for number in range(1, 30):
        assert id_of(next(taken)) == whole[number - 1]
        if number == 10:
            ds.set_epoch(0)
        assert ids(loaded(STEPS[step](ORDERS["shuffled"](rows).to_hf()), ds.state_dict())) == whole[number:]


def test_persistent_workers_deliver_the_epochs_that_are_set(rows: fb.Dataset) -> None:
    ordered = ORDERS["shuffled"](rows).select_columns("id")
    ds = ordered.to_hf()
    loader = DataLoader(ds, batch_size=4, num_workers=2, persistent_workers=True)
    orders = []
    for epoch in (0, 1, 1, 4):
        ds.set_epoch(epoch)
        orders.append([i for batch in loader for i in batch["id"].tolist()])
    expected = ids(ordered.to_hf())
    assert all(sorted(order) == sorted(expected) for order in orders)
    assert orders[0] != orders[1] == orders[2] != orders[3]


class Noting:
    """A reader that notes what its streams fetch."""

    def __init__(self, reader: Any, noted: list[float]) -> None:
        self._reader, self._noted = reader, noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def stream(self, *arguments: Any) -> Any:
        self._stream = self._reader.stream(*arguments)
        return self

    def next(self) -> Any:
        return self._stream.next()

    def close(self) -> None:
        self._noted.append(self._stream.stats()["bytes_fetched"])
        self._stream.close()


def bytes_read(ds: Any) -> float:
    """Reads all rows; returns the bytes that this took."""
    rows = ds._ex_iterable
    noted: list[float] = []
    reader = Noting(rows.source.reader(rows.part), noted)
    rows.source._readers = dict.fromkeys(rows.source._readers, reader)
    for _ in ds:
        pass
    return sum(noted)


def test_what_is_skipped_or_not_taken_is_not_read(tmp_path: Path) -> None:
    ds = write_paged(tmp_path, num_rows=8000)
    row_group = sum(path.stat().st_size for path in tmp_path.glob("*.parquet")) / 4
    # At most the row group that a part begins or ends in.
    assert bytes_read(ds.to_hf().skip(7500)) < row_group * 1.1
    assert bytes_read(ds.to_hf().take(500)) < row_group * 1.1
    assert bytes_read(ds.to_hf().shard(8, 3)) < row_group * 1.1
    assert row_group * 3.8 < bytes_read(ds.to_hf()) < row_group * 4.1


def test_a_resume_reads_no_more_than_the_rest(tmp_path: Path) -> None:
    ds = write_paged(tmp_path, num_rows=8000)
    row_group = sum(path.stat().st_size for path in tmp_path.glob("*.parquet")) / 4
    first = ds.to_hf()
    rows = iter(first)
    for _ in range(7200):
        next(rows)
    later = ds.to_hf()
    later.load_state_dict(first.state_dict())
    assert bytes_read(later) < row_group * 1.1


MEANWHILE: dict[str, Callable[[Any], Any]] = {
    "another loop looks at the first row": lambda ds: next(iter(ds)),
    "another loop goes over all rows": list,
    "another epoch is set": lambda ds: ds.set_epoch(1),
    "another epoch is set, and this one again": lambda ds: (ds.set_epoch(1), ds.set_epoch(0)),
}


@pytest.mark.parametrize("happens", MEANWHILE)
@pytest.mark.parametrize("step", [step for step in STEPS if "node" not in step])
def test_the_state_of_a_loop_is_its_own_whatever_happens_meanwhile(rows: fb.Dataset, step: str, happens: str) -> None:
    """As where a program looks at a row of what it trains on, and saves later."""

    def make() -> Any:
        return STEPS[step](ORDERS["shuffled"](rows).to_hf())

    whole = ids(make())
    ds = make()
    taken = iter(ds)
    before = [id_of(next(taken)) for _ in range(4)]
    MEANWHILE[happens](ds)
    before += [id_of(next(taken)) for _ in range(5)]
    state = json.loads(json.dumps(ds.state_dict()))
    assert before + ids(taken) == whole
    assert before + ids(loaded(make(), state)) == whole
