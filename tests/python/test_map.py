"""`Dataset.map`: the same rows, randomness, order and states, whoever runs the functions."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import traceback
from typing import TYPE_CHECKING, Any

import functions
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import batches_of, ids_of, write_uneven
from torch.utils.data import DataLoader

import forebay as fb
from forebay.transforms import Rows, seed_of, seeds_of

if TYPE_CHECKING:
    from forebay.mapped import MappedDataset

NUM_ROWS = 500
BATCH_SIZE = 32

WORKERS = [{}, {"num_threads": 3}, {"num_proc": 1}, {"num_proc": 3}]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("map"), NUM_ROWS)


@pytest.fixture(scope="module")
def shuffled(rows: fb.Dataset) -> fb.Dataset:
    return rows.filter("id % 9 <> 4").shuffle(6, num_lanes=6, window_rows=20)


def column(stream: fb.Stream, name: str) -> list[Any]:
    return [value for batch in stream for value in batch[name]]


def ids_in(stream: fb.Stream) -> list[int]:
    return column(stream, "id")


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_results_come_in_the_order_of_the_stream_whoever_is_done_first(
    shuffled: fb.Dataset, workers: dict[str, int]
) -> None:
    plain = shuffled.batches(BATCH_SIZE)
    mapped = shuffled.map(functions.late, batched=True, with_indices=True, **workers).batches(BATCH_SIZE)
    assert len(mapped) == len(plain)
    for epoch in range(2):
        plain.set_epoch(epoch)
        mapped.set_epoch(epoch)
        batches = list(mapped)
        assert [batch["id"] for batch in batches] == batches_of(plain)
        assert [position for batch in batches for position in batch["position"]] == list(range(len(shuffled)))


@pytest.mark.parametrize("workers", [{}, {"num_proc": 2}], ids=str)
def test_a_state_counts_what_the_loop_has_and_not_what_workers_have_in_hand(
    shuffled: fb.Dataset, workers: dict[str, int]
) -> None:
    mapped = shuffled.map(functions.late, batched=True, with_indices=True, **workers)
    whole = [batch["id"] for batch in mapped.batches(BATCH_SIZE)]
    stream, later = mapped.batches(BATCH_SIZE), mapped.batches(BATCH_SIZE)
    plain = shuffled.batches(BATCH_SIZE)
    for cut in range(len(whole) + 1):
        batches, plain_batches = iter(stream), iter(plain)
        before = [next(batches)["id"] for _ in range(cut)]
        for _ in range(cut):
            next(plain_batches)
        state = json.loads(json.dumps(stream.state_dict()))
        assert state == plain.state_dict(), "the state is that of the stream without functions"
        later.load_state_dict(state)
        assert len(later) == len(whole) - cut
        assert before + [batch["id"] for batch in later] == whole
        batches.close()


def test_functions_are_given_rows_and_results_are_stacked(rows: fb.Dataset) -> None:
    [first, *_] = rows.map(functions.of_row).batches(8)
    assert first == {"id": list(range(8)), "label": [f"ROW {i}" for i in range(8)], "double": list(range(0, 16, 2))}
    [first, *_] = rows.with_format("numpy").map(lambda row: {"twice": row["id"] * np.ones(2)}).batches(8)
    assert first["twice"].tolist() == [[i, i] for i in range(8)]
    [first, *_] = rows.with_format("numpy").map(lambda row: {"many": np.ones(row["id"])}).batches(3)
    assert [len(values) for values in first["many"]] == [0, 1, 2]


def test_what_numpys_arrays_hold_is_stacked(rows: fb.Dataset) -> None:
    mapped = rows.with_format("numpy").map(lambda row: {"twice": row["id"] * 2, "is_odd": row["id"] % 2 == 1})
    [first, *_] = mapped.map(lambda batch: {"sum": batch["twice"] + 1}, batched=True).batches(4)
    assert [first[name].tolist() for name in ("twice", "sum")] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert (first["twice"].dtype, first["is_odd"].dtype) == (np.int64, np.bool_)


def test_columns_are_chosen_for_the_function_and_left_out_behind_it(rows: fb.Dataset) -> None:
    mapped = rows.map(
        functions.scaled,
        batched=True,
        input_columns=["id", "label"],
        remove_columns=["label"],
        fn_kwargs={"factor": 3},
    )
    [first, *_] = mapped.batches(4)
    assert first == {"id": [0, 1, 2, 3], "scaled": [0, 3, 6, 9], "length": [5, 5, 5, 5]}


@pytest.mark.parametrize("function", [functions.nothing, functions.unchanged])
def test_a_function_may_change_nothing(rows: fb.Dataset, function: Any) -> None:
    assert ids_in(rows.map(function, batched=True).batches(64)) == list(range(NUM_ROWS))


def test_several_functions_run_one_after_another(rows: fb.Dataset) -> None:
    twice = rows.map(functions.doubled, batched=True).map(
        lambda batch: {"double": [value + 1 for value in batch["double"]]}, batched=True, num_proc=1
    )
    assert column(twice.batches(64), "double") == [2 * i + 1 for i in range(NUM_ROWS)]


PATIENT = fb.PoolOptions(timeout=5, prefetch=2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"num_threads": 2, "pool": PATIENT}, {"num_threads": 3}),
        ({"num_threads": 3, "pool": PATIENT}, {}),
        ({"num_threads": 3}, {"pool": PATIENT}),
        ({"pool": PATIENT}, {"num_threads": 3}),
        ({"num_threads": 3, "pool": fb.PoolOptions(timeout=9)}, {"num_threads": 1, "pool": PATIENT}),
    ],
    ids=str,
)
def test_workers_of_several_functions_have_the_options_that_were_given_last(
    rows: fb.Dataset, first: dict[str, Any], second: dict[str, Any]
) -> None:
    mapped = rows.map(functions.nothing, batched=True, **first).map(functions.nothing, batched=True, **second)
    assert (mapped._workers.number, mapped._workers.options) == (3, PATIENT)


@pytest.mark.parametrize("workers", [{}, {"num_threads": 2}], ids=str)
@pytest.mark.parametrize("name", ["arrow", "pandas", "polars"])
def test_functions_on_tables_return_tables(rows: fb.Dataset, name: str, workers: dict[str, int]) -> None:
    def labelled(table: Any) -> Any:
        if name == "arrow":
            return table.append_column("more", pa.compute.add(table["id"], 1))
        if name == "pandas":
            return table.assign(more=table["id"] + 1)
        return table.with_columns((table["id"] + 1).alias("more"))

    mapped = rows.with_format(name).map(labelled, batched=True, **workers)
    assert [int(value) for batch in mapped.batches(64) for value in batch["more"].to_numpy()] == list(
        range(1, NUM_ROWS + 1)
    )


def test_tables_go_to_processes_and_back_without_a_copy_into_pickles(rows: fb.Dataset) -> None:
    mapped = rows.with_format("arrow").map(functions.unchanged, batched=True, num_proc=1)
    found = pa.concat_tables(mapped.batches(64))
    assert found.equals(pa.table(rows))


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_randomness_is_that_of_the_row_for_any_workers_batches_and_ranks(
    shuffled: fb.Dataset, workers: dict[str, int]
) -> None:
    expected = expected_draws(shuffled)
    mapped = shuffled.map(functions.draw, batched=True, with_seeds=True, **workers)
    assert draws_of(mapped, batch_size=BATCH_SIZE) == expected


def test_randomness_is_that_of_the_row_for_any_batches_and_ranks(shuffled: fb.Dataset) -> None:
    expected = expected_draws(shuffled)
    for mapped in (
        shuffled.map(functions.draw, batched=True, with_seeds=True),
        shuffled.map(functions.draw_row, with_seeds=True),
    ):
        ranks: dict[int, float] = {}
        for rank in range(3):
            ranks |= draws_of(mapped, batch_size=7, rank=rank, world_size=3, remainder="keep")
        assert ranks == expected
        stream = mapped.batches(10)
        stream.load_state_dict({**stream.state_dict(), "position": 33})
        rest = {key: value for batch in stream for key, value in zip(batch["id"], batch["draw"], strict=True)}
        assert rest == {key: expected[key] for key in list(expected)[33:]}


@settings(max_examples=40, deadline=None)
@given(
    batch_size=st.integers(1, 90),
    world_size=st.integers(1, 4),
    num_threads=st.integers(0, 3),
    prefetch=st.integers(1, 5),
    cut=st.integers(0, 12),
    epoch=st.integers(0, 2),
)
def test_any_batches_ranks_workers_and_cuts_give_each_row_what_is_its_own(
    shuffled: fb.Dataset, batch_size: int, world_size: int, num_threads: int, prefetch: int, cut: int, epoch: int
) -> None:
    whole = shuffled.map(functions.draw, batched=True, with_seeds=True).batches(1000)
    whole.set_epoch(epoch)
    [expected] = [dict(zip(batch["id"], batch["draw"], strict=True)) for batch in whole]
    pool = fb.PoolOptions(prefetch=prefetch)
    mapped = shuffled.map(functions.draw, batched=True, with_seeds=True, num_threads=num_threads, pool=pool)
    found: dict[int, float] = {}
    for rank in range(world_size):
        stopped, later = (
            mapped.batches(batch_size, rank=rank, world_size=world_size, remainder="keep") for _ in range(2)
        )
        stopped.set_epoch(epoch)
        batches = iter(stopped)
        seen = [batch for _, batch in zip(range(cut), batches, strict=False)]
        later.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        for batch in [*seen, *later]:
            assert not found.keys() & set(batch["id"])
            found |= zip(batch["id"], batch["draw"], strict=True)
    assert found == expected


def expected_draws(dataset: fb.Dataset) -> dict[int, float]:
    mapped = dataset.map(functions.draw, batched=True, with_seeds=True)
    draws = draws_of(mapped, batch_size=1000)
    assert len(set(draws.values())) == len(dataset)
    return draws


def draws_of(mapped: MappedDataset, batch_size: int, **share: Any) -> dict[int, float]:
    return {
        key: value
        for batch in mapped.batches(batch_size, **share)
        for key, value in zip(batch["id"], batch["draw"], strict=True)
    }


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_row_that_fills_a_rank_up_is_at_its_own_position(shuffled: fb.Dataset, batch_size: int) -> None:
    mapped = shuffled.filter("id < 59").map(functions.draw, batched=True, with_seeds=True)
    mapped = mapped.map(functions.late, batched=True, with_indices=True)
    whole = {
        identity: (draw, position)
        for batch in mapped.batches(64)
        for identity, draw, position in zip(batch["id"], batch["draw"], batch["position"], strict=True)
    }
    for rank in range(5):
        for batch in mapped.batches(batch_size, rank=rank, world_size=5, remainder="pad"):
            found = list(zip(batch["draw"], batch["position"], strict=True))
            assert found == [whole[identity] for identity in batch["id"]]


def test_rows_say_where_they_stand() -> None:
    assert str(Rows(2, 3, 4, 3)) == "the rows at positions 3 to 11 in steps of 4 of epoch 2"
    assert str(Rows(2, 3, 4, 3, repeated=1)) == ("the rows at positions 3 to 7 in steps of 4, and 1 again, of epoch 2")
    assert str(Rows(2, 3, 4, 1, repeated=1)) == "the row at position 1 of epoch 2, again"


def test_randomness_is_another_in_each_epoch_seed_and_function(rows: fb.Dataset) -> None:
    def draws(seed: int, epoch: int) -> list[float]:
        stream = rows.shuffle(seed).map(functions.draw, batched=True, with_seeds=True).batches(100)
        stream.set_epoch(epoch)
        return column(stream, "draw")

    assert len({value for seed in (0, 1) for epoch in (0, 1) for value in draws(seed, epoch)}) == 4 * NUM_ROWS
    twice = rows.map(functions.draw, batched=True, with_seeds=True).map(
        lambda batch, seeds: {"other": functions.draw(batch, seeds)["draw"]}, batched=True, with_seeds=True
    )
    [batch, *_] = twice.batches(100)
    assert not set(batch["draw"]) & set(batch["other"])


def test_generators_of_worker_processes_are_seeded_for_each_row(rows: fb.Dataset) -> None:
    found = [
        column(rows.map(functions.draw_globally, num_proc=num_proc).batches(batch_size), "draw")
        for num_proc, batch_size in ((1, 32), (2, 50))
    ]
    assert found[0] == found[1]
    assert len(set(found[0])) == NUM_ROWS


def test_functions_that_import_torch_themselves_find_its_generator_seeded(rows: fb.Dataset) -> None:
    def draw(_: Any) -> dict[str, Any]:
        import sys
        from importlib.util import find_spec

        is_first = "torch" not in sys.modules
        # As libraries do that want to know whether it is installed.
        assert find_spec("torch") is not None
        from torch import rand

        return {"draw": rand(()).item(), "is_first": is_first}

    stream, later = (rows.filter("id < 80").map(draw, num_proc=1).batches(8) for _ in range(2))
    found = list(stream)
    later.load_state_dict({**stream.state_dict(), "position": 40})
    rest = list(later)
    assert [batch["is_first"][0] for batch in (found[0], rest[0])] == [True, True]
    assert column(rest, "draw") == column(found[5:], "draw")
    assert len({*column(found, "draw")}) == 80


@pytest.mark.parametrize("batched", [False, True])
def test_columns_that_functions_leave_out_are_missed_by_their_names(rows: fb.Dataset, batched: bool) -> None:
    mapped = rows.select_columns("id").map(functions.nothing, batched=True)
    for name in ("input_columns", "remove_columns"):
        with pytest.raises(fb.TransformError) as raised:
            list(mapped.map(lambda _: None, batched=batched, **{name: "nope"}).batches(4))
        where = "the rows at positions 0 to 3 of epoch 0"
        what = f"{name}: the batch has no column `nope`, only id"
        assert str(raised.value) == f"map: `{LAMBDA}` failed on {where}: {what}"


LAMBDA = "test_columns_that_functions_leave_out_are_missed_by_their_names.<locals>.<lambda>"


def test_seeds_stay_what_they_are_also_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    # A change of these changes what every model was trained on.
    rows = Rows(epoch=3, first=10, step=2, num_rows=3)
    assert seeds_of(7, rows, "0").tolist() == GOLDEN_SEEDS
    assert seed_of(7, rows, "0") == GOLDEN_SEEDS[0]
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert seeds_of(7, rows, "0") == GOLDEN_SEEDS


GOLDEN_SEEDS = [11831727933372666924, 3432784286152803666, 10550606775632502563]


def test_a_dataset_with_functions_has_its_length(shuffled: fb.Dataset) -> None:
    mapped = shuffled.map(functions.doubled, batched=True)
    assert len(mapped) == mapped.num_rows == len(shuffled)
    assert len(mapped.batches(BATCH_SIZE)) == len(shuffled.batches(BATCH_SIZE))


@pytest.mark.parametrize("settings", [{}, {"num_proc": 1}, {"num_threads": 2}], ids=str)
@pytest.mark.parametrize("order", ["as stored", "shuffled", "twice"])
def test_rows_come_one_by_one_behind_functions(rows: fb.Dataset, order: str, settings: dict[str, Any]) -> None:
    ordered = {"as stored": rows, "shuffled": rows.shuffle(4), "twice": rows.repeat(2)}[order]
    expected = [row | functions.of_row(row) for row in ordered]
    mapped = ordered.map(functions.of_row, **settings)
    assert list(mapped) == list(mapped.iter()) == expected
    in_batches = list(ordered.map(functions.doubled, batched=True, **settings))
    assert in_batches == [row | {"double": 2 * row["id"]} for row in ordered]
    ids = [batch["id"] for batch in ordered.iter(7, drop_last_batch=True)]
    assert [batch["id"] for batch in mapped.iter(7, drop_last_batch=True)] == ids


def test_a_loop_over_rows_gives_functions_no_more_than_it_needs(rows: fb.Dataset) -> None:
    given = []

    def note(what: Any) -> None:
        given.append(what["id"])

    assert next(iter(rows.map(note)))["id"] == 0
    assert 1 <= len(given) < NUM_ROWS / 2
    given.clear()
    assert [row["id"] for row in rows.map(note).skip(5).take(3)] == given == [5, 6, 7]
    given.clear()
    assert len(list(rows.map(note, batched=True))) == NUM_ROWS
    assert given == [list(range(NUM_ROWS))], "up to a thousand"


def test_rows_behind_functions_have_the_format_of_the_dataset(rows: fb.Dataset) -> None:
    for name, kind in (("torch", torch.Tensor), ("numpy", np.generic)):
        first = next(iter(rows.with_format(name).map(functions.nothing)))
        assert isinstance(first["id"], kind)
    with pytest.raises(fb.SettingError, match="rows: tables .* pass `batch_size`"):
        iter(rows.with_format("arrow").map(functions.nothing, batched=True))
    tables = rows.with_format("arrow").map(functions.nothing, batched=True).iter(50)
    assert next(tables).num_rows == 50


@pytest.mark.parametrize("settings", [{}, {"num_proc": 1}], ids=str)
def test_columns_of_what_functions_return_are_chosen_and_renamed(rows: fb.Dataset, settings: dict[str, Any]) -> None:
    mapped = rows.select_columns(["id", "label"]).map(functions.doubled, batched=True, **settings)
    assert next(iter(mapped.remove_columns("label"))) == {"id": 0, "double": 0}
    swapped = mapped.rename_columns({"id": "double", "double": "id"}).rename_column("label", "text")
    assert list(next(iter(swapped))) == ["double", "text", "id"]
    again = swapped.select_columns(["id", "double"]).map(functions.doubled, batched=True, **settings)
    assert [list(row.items()) for row in again.skip(3).take(1)] == [[("id", 6), ("double", 12)]]
    assert list(next(iter(again.to_torch(4)))) == ["id", "double"]
    loader = fb.DataLoader(mapped.select_columns("double"), 3, collate_fn=list)
    assert next(iter(loader)) == [{"double": 0}, {"double": 2}, {"double": 4}]
    assert repr(again).endswith(
        ".map(doubled)\n  .rename_columns(id, double)\n  .rename_columns(label)\n  .select_columns(id, double)\n"
        "  .map(doubled)"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda mapped: mapped.remove_columns("other"), "remove_columns: `other` failed .* no column `other`, only id"),
        (lambda mapped: mapped.select_columns(["id", "other"]), "select_columns: .* no column `other`"),
        (lambda mapped: mapped.rename_column("other", "id"), "rename_columns: .* no column `other`"),
        (lambda mapped: mapped.rename_column("label", "id"), "rename_columns: .* already has a column of a new name"),
    ],
)
def test_columns_that_functions_do_not_return_are_errors_of_the_loop(rows: fb.Dataset, change: Any, says: str) -> None:
    with pytest.raises(fb.TransformError, match=says):
        next(iter(change(rows.map(functions.doubled, batched=True))))


def test_rows_are_not_left_out_before_functions_that_know_where_they_are(rows: fb.Dataset) -> None:
    mapped = rows.map(lambda _, index: {"index": index}, with_indices=True)
    assert [row["index"] for row in mapped.take(3)] == [0, 1, 2]
    with pytest.raises(fb.SettingError, match="skip: .* skip before `map`"):
        mapped.skip(3)


def test_what_makes_no_sense_behind_functions_says_what_to_do(rows: fb.Dataset) -> None:
    mapped = rows.map(functions.doubled, batched=True)
    with pytest.raises(fb.SettingError, match="filter: the dataset has functions; choose rows before `map`") as refused:
        mapped.filter("id < 3")
    assert traceback.format_exception_only(refused.value)[0].startswith("forebay.exceptions.SettingError: filter: ")
    copied = pickle.loads(pickle.dumps(refused.value))
    assert (type(copied), str(copied)) == (type(refused.value), str(refused.value))
    assert not hasattr(mapped, "features")
    assert hasattr(mapped, "num_rows")
    with pytest.raises(fb.SettingError, match="with_format: the dataset has functions; choose the format before `map`"):
        mapped.with_format("torch")
    with pytest.raises(fb.SettingError, match="rows read by number do not go through `map`"):
        mapped[0]
    with pytest.raises(fb.SettingError, match=r"do not go through `map`.*`forebay.DataLoader`.*`ds.to_hf\(\).map"):
        next(iter(DataLoader(mapped, batch_size=4)))
    with pytest.raises(AttributeError, match="no `fliter`"):
        mapped.fliter  # noqa: B018 - it is what raises
    assert repr(mapped).endswith(".map(doubled)")


@pytest.mark.parametrize(
    "take",
    [pa.table, pa.RecordBatchReader.from_stream, pl.DataFrame, pa.schema],
    ids=["table", "reader", "frame", "schema"],
)
def test_arrow_is_not_given_what_functions_have_not_seen(take: Any, rows: fb.Dataset) -> None:
    def counted(table: pa.Table) -> pa.Table:
        return table.append_column("n", pa.array(range(len(table))))

    tables = rows.select_columns("id").with_format("arrow").map(counted, batched=True)
    stream = tables.batches(BATCH_SIZE)
    with pytest.raises(fb.SettingError, match=r"Arrow: which columns functions return is known only from"):
        take(stream)
    if take is not pa.schema:
        with pytest.raises(fb.SettingError, match=r"loop over `batches\(n\)`.* go into `pyarrow.concat_tables`"):
            take(tables)
    # The stream is as it was.
    assert pa.concat_tables(stream).schema.names == ["id", "n"]


def test_an_iteration_that_was_interrupted_is_not_at_its_end(rows: fb.Dataset) -> None:
    def interrupted(_batch: Any, indices: list[int]) -> dict[str, Any]:
        if 64 in indices:
            raise KeyboardInterrupt
        return {"position": indices}

    stream = rows.map(interrupted, batched=True, with_indices=True).batches(32)
    batches = iter(stream)
    assert [next(batches)["position"][0] for _ in range(2)] == [0, 32]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(fb.ClosedError, match="ended by `KeyboardInterrupt`"):
        next(batches)
    assert stream.state_dict()["position"] == 64


def test_functions_and_shuffle_may_come_in_any_order(rows: fb.Dataset) -> None:
    one = rows.shuffle(5).map(functions.draw, batched=True, with_seeds=True)
    two = rows.map(functions.draw, batched=True, with_seeds=True).shuffle(5)
    assert draws_of(one, 100) == draws_of(two, 100)
    assert ids_in(one.batches(10)) == ids_in(two.batches(10)) == ids_of(rows.shuffle(5).batches(10))


def test_an_event_loop_goes_on_while_workers_work(rows: fb.Dataset) -> None:
    async def read() -> tuple[list[int], int]:
        stream, turns = rows.map(functions.late, batched=True, with_indices=True, num_proc=2).batches(50), 0
        done = asyncio.Event()

        async def count() -> int:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)
            return turns

        counting = asyncio.create_task(count())
        found = [value async for batch in stream for value in batch["id"]]
        done.set()
        return found, await counting

    found, turns = asyncio.run(read())
    assert found == list(range(NUM_ROWS))
    assert turns > 20


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_of_a_dataloader_run_functions_themselves(shuffled: fb.Dataset) -> None:
    mapped = shuffled.map(functions.draw, batched=True, with_seeds=True, num_proc=2)
    expected = list(shuffled.map(functions.draw, batched=True, with_seeds=True).to_torch(BATCH_SIZE))
    loader = DataLoader(mapped.to_torch(BATCH_SIZE), batch_size=None, num_workers=2, multiprocessing_context="fork")
    found = list(loader)
    assert [batch["id"].tolist() for batch in found] == [batch["id"].tolist() for batch in expected]
    assert [batch["draw"] for batch in found] == [batch["draw"] for batch in expected]
    assert [batch["label"] for batch in found] == [batch["label"] for batch in expected]


def test_a_stream_with_functions_can_be_pickled(shuffled: fb.Dataset) -> None:
    stream = shuffled.map(functions.doubled, batched=True, num_proc=1).batches(50)
    first = next(iter(stream))
    copied = pickle.loads(pickle.dumps(stream))
    assert next(iter(copied)) == first


def test_iterations_of_one_stream_do_not_take_each_others_batches(rows: fb.Dataset) -> None:
    stream = rows.map(functions.late, batched=True, with_indices=True, num_proc=2).batches(50)
    one, two = iter(stream), iter(stream)
    found = [(next(one)["id"][0], next(two)["id"][0]) for _ in range(10)]
    assert found == [(50 * i, 50 * i) for i in range(10)]


def test_each_of_two_loops_has_the_same_workers_in_all_passes(rows: fb.Dataset) -> None:
    stream = rows.repeat(3).map(functions.who, batched=True, num_proc=1).batches(100)
    pids = [(one["pid"][0], two["pid"][0]) for one, two in zip(stream, stream, strict=True)]
    assert len(pids) == 15
    assert len({*pids}) == 1
    assert pids[0][0] != pids[0][1]


def test_text_bytes_and_nulls_arrive_as_they_are(tmp_path: Any) -> None:
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "text": ["straße", "", None, "数据"] * 50,
            "blob": pa.array([b"\xff\x00", b"", None, b"x"] * 50, pa.large_binary()),
            "tags": [["a"], [], None, ["b", "c"]] * 50,
            "flag": [True, None, False, True] * 50,
            "nested": [{"name": "n", "at": 1}] * 200,
        }
    )
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=30)
    ds = fb.load_dataset(tmp_path, split="train").with_format("numpy")
    plain, mapped = (
        next(iter(ds.batches(64))),
        next(iter(ds.map(functions.unchanged, batched=True, num_proc=1).batches(64))),
    )
    assert mapped.keys() == plain.keys()
    for name in ("text", "blob", "tags", "nested"):
        assert str(mapped[name]) == str(plain[name])
    assert mapped["flag"].mask.tolist() == plain["flag"].mask.tolist()
    rows = fb.load_dataset(tmp_path, split="train").map(functions.unchanged, batched=True, num_proc=1)
    assert [row for batch in rows.batches(64) for row in batch["text"]] == table["text"].to_pylist()


def test_a_text_column_may_be_named_as_a_field_of_a_struct(tmp_path: Any) -> None:
    import pyarrow.parquet as pq

    table = pa.table({"a.b": ["x", "y"], "a": [{"b": "inner"}, {"b": "other"}]})
    pq.write_table(table, tmp_path / "train.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    [batch] = ds.map(functions.nothing, batched=True).to_torch(2)
    assert batch == next(iter(ds.to_torch(2))) == {"a.b": ["x", "y"], "a": {"b": ["inner", "other"]}}


@pytest.mark.parametrize("workers", [{}, {"num_threads": 2}, {"num_proc": 2}], ids=str)
def test_batches_before_what_the_stream_fails_on_are_delivered(rows: fb.Dataset, workers: dict[str, int]) -> None:
    class Failing:
        """The batches of a stage, of which the sixth is an error."""

        stream = None

        def __init__(self, batches: Any) -> None:
            self._batches = batches
            self._number = 0

        def is_ready(self) -> bool:
            return True

        def __next__(self) -> Any:
            self._number += 1
            if self._number == 6:
                raise fb.DataError("the sixth")
            return next(self._batches)

        def close(self) -> None:
            self._batches.close()

    class Failures:
        def begin(self, batches: Any, _: Any) -> Failing:
            return Failing(batches)

    stream = rows.map(functions.late, batched=True, with_indices=True, **workers).batches(32)
    stream._stages = (Failures(), *stream._stages)
    seen = []
    with pytest.raises(fb.DataError, match="the sixth"):
        seen.extend(batch["id"] for batch in stream)
    assert stream.state_dict()["position"] == 5 * 32


def test_iterations_of_one_stream_tell_of_themselves(rows: fb.Dataset) -> None:
    stream = rows.batches(50)
    one, two = iter(stream), iter(stream)
    next(one)
    next(two)
    one.close()
    next(two)
    assert stream.stats()["batches"] == 2, "the one that was left tells nothing any more"
    two.close()
    assert stream.stats()["batches"] == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"on_error": "skip"},
            "on_error: functions of `map` and a `collate_fn` are seeded by the positions of their rows",
        ),
        (
            {"decode": {"image": fb.Image(size=8, on_error="skip")}},
            "on_error: functions of `map` and a `collate_fn` are seeded by the positions of their rows",
        ),
        ({"pack": fb.Pack(length=8, columns=["tokens"])}, "pack: functions run on rows, of which packed batches have"),
    ],
    ids=["rows", "images", "pack"],
)
def test_what_leaves_no_rows_in_their_places_is_refused_before_functions(
    rows: fb.Dataset, settings: dict[str, Any], words: str
) -> None:
    ds = rows.sql("SELECT id, [id, id] AS tokens, CAST(label AS BYTEA) AS image FROM dataset")
    mapped = ds.map(functions.unchanged, batched=True)
    with pytest.raises(fb.SettingError) as raised:
        mapped.to_torch(8, **settings)
    assert str(raised.value).startswith(words)
