"""The order of an epoch: that of the model, and the same however it is read."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import order_model as model
import pyarrow as pa
import pytest
from data import ids_table, write_fragments
from hypothesis import example, given
from hypothesis import strategies as st
from rows import batches_of, ids, ids_of, uneven_groups, write_paged, write_uneven

import forebay as fb
from forebay import _lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_ROWS = 500
NUM_PAGED_ROWS = 8000
HIGHEST_SEED = (1 << 64) - 1

kept_rows = st.one_of(
    st.lists(st.just(1), max_size=60),
    st.lists(st.integers(1, 40), max_size=30),
    st.lists(st.sampled_from([1, 2, 3, 1000]), max_size=6),
    st.lists(st.integers(900, 1100), min_size=1, max_size=2),
)


def test_the_random_source_is_chacha8() -> None:
    # The first block for a key of zeros, as the eSTREAM test vectors of the reduced-round ciphers have it.
    expected = (
        "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
        "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
    )
    assert model.chacha8(bytes(32), 0, 1).astype("<u4").tobytes().hex() == expected


@given(
    kept=kept_rows,
    epoch=st.one_of(st.integers(0, 3), st.sampled_from([1 << 32, HIGHEST_SEED])),
    seed=st.one_of(st.none(), st.integers(0, 3), st.just(1 << 63), st.integers(0, HIGHEST_SEED)),
    num_lanes=st.sampled_from([1, 2, 3, 7, 24, 192]),
    window_rows=st.one_of(st.integers(1, 40), st.sampled_from([500, 1 << 40])),
)
@example(kept=[], epoch=0, seed=0, num_lanes=1, window_rows=1)
@example(kept=[1], epoch=0, seed=0, num_lanes=192, window_rows=1)
@example(kept=[1000], epoch=1, seed=HIGHEST_SEED, num_lanes=192, window_rows=1)
@example(kept=[1, 4000, 1, 1], epoch=0, seed=5, num_lanes=3, window_rows=700)
@example(kept=[10] * 10, epoch=0, seed=5, num_lanes=4, window_rows=25)
@example(kept=[10] * 10, epoch=0, seed=5, num_lanes=4, window_rows=24)
def test_an_epoch_is_ordered_as_the_model_says(
    kept: list[int], epoch: int, seed: int | None, num_lanes: int, window_rows: int
) -> None:
    spans = [[(span, row) for row in range(length)] for span, length in enumerate(kept)]
    expected = model.epoch(spans, epoch, seed=seed, num_lanes=num_lanes, window_rows=window_rows)
    settings = {} if seed is None else {"seed": seed, "num_lanes": num_lanes, "window_rows": window_rows}
    assert _lib.plan_order(kept, epoch, **settings) == expected
    assert sorted(expected) == [row for span in spans for row in span]


def test_seeds_epochs_lanes_and_windows_each_give_another_order() -> None:
    settings = {"seed": 1, "num_lanes": 3, "window_rows": 20}
    changes = ({}, {"seed": 2}, {"num_lanes": 4}, {"window_rows": 21})
    orders = {tuple(_lib.plan_order([10] * 50, 0, **(settings | change))) for change in changes}
    orders.add(tuple(_lib.plan_order([10] * 50, 1, **settings)))
    assert len(orders) == len(changes) + 1


def test_seed_and_epoch_do_not_add_up() -> None:
    settings = {"num_lanes": 3, "window_rows": 20}
    assert _lib.plan_order([10] * 50, 1, seed=0, **settings) != _lib.plan_order([10] * 50, 0, seed=1, **settings)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """Small row groups, each of them one span."""
    return write_uneven(tmp_path_factory.mktemp("uneven"), NUM_ROWS)


@pytest.fixture(scope="module", params=[True, False], ids=["page index", "no page index"])
def paged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """Large row groups: with a page index of several spans, without one of one span each."""
    return write_paged(tmp_path_factory.mktemp("paged"), page_index=request.param, num_rows=NUM_PAGED_ROWS)


SELECTIONS: dict[str, tuple[str | None, Callable[[int], bool]]] = {
    "all rows, no filter": (None, lambda _: True),
    "all rows": ("id >= 0", lambda _: True),
    "no row": ("id < 0", lambda _: False),
    "one row": ("id = 123", lambda row: row == 123),
    "a cluster": ("id BETWEEN 130 AND 290", lambda row: 130 <= row <= 290),
    "scattered rows": ("id % 7 IN (1, 3)", lambda row: row % 7 in (1, 3)),
    "all but one": ("id <> 41", lambda row: row != 41),
}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(("num_lanes", "window_rows"), [(1, 1), (3, 7), (24, 2), (192, 1), (2, 1000)])
def test_a_read_dataset_is_ordered_as_the_model_says(
    uneven: fb.Dataset, selection: str, num_lanes: int, window_rows: int
) -> None:
    sql, keeps = SELECTIONS[selection]
    kept = [[row for row in group if keeps(row)] for group in uneven_groups(NUM_ROWS)]
    spans = [group for group in kept if group]
    selected = uneven if sql is None else uneven.filter(sql)
    assert len(selected) == sum(map(len, spans))
    assert ids_of(selected.batches(64)) == model.epoch(spans, 0, seed=None)
    stream = selected.shuffle(9, num_lanes=num_lanes, window_rows=window_rows).batches(64)
    for epoch in (0, 5):
        stream.set_epoch(epoch)
        expected = model.epoch(spans, epoch, seed=9, num_lanes=num_lanes, window_rows=window_rows)
        assert ids_of(stream) == expected


def find_spans(dataset: fb.Dataset) -> list[list[int]]:
    """Finds the spans by what a shuffle does to them: with one lane and windows of one row they only change places."""
    starts = {0}
    stream = dataset.shuffle(3, num_lanes=1, window_rows=1).batches(1000)
    for epoch in range(6):
        stream.set_epoch(epoch)
        order = ids_of(stream)
        starts |= {row for before, row in itertools.pairwise([-1, *order]) if row != before + 1}
    ends = [*sorted(starts)[1:], NUM_PAGED_ROWS]
    return [list(range(start, end)) for start, end in zip(sorted(starts), ends, strict=True)]


@pytest.mark.parametrize(("num_lanes", "window_rows"), [(1, 900), (5, 300), (24, 64)])
def test_spans_of_whole_pages_are_shuffled_as_the_model_says(
    paged: fb.Dataset, request: pytest.FixtureRequest, num_lanes: int, window_rows: int
) -> None:
    spans = find_spans(paged.select_columns("id"))
    assert {0, 2000, 4000, 6000} <= {span[0] for span in spans}
    if "no page index" in request.node.callspec.id:
        assert len(spans) == 4
    else:
        assert 16 <= len(spans) <= 32
        assert all(len(span) >= 128 for span in spans)
    for sql, keeps in ((None, lambda _: True), ("id % 5 = 2 OR id > 7000", lambda row: row % 5 == 2 or row > 7000)):
        selected = paged if sql is None else paged.filter(sql)
        kept = [[row for row in span if keeps(row)] for span in spans]
        expected = model.epoch(kept, 0, seed=1, num_lanes=num_lanes, window_rows=window_rows)
        assert ids_of(selected.shuffle(1, num_lanes=num_lanes, window_rows=window_rows).batches(128)) == expected


def test_every_row_is_delivered_once_with_its_own_values(paged: fb.Dataset) -> None:
    seen = []
    for batch in paged.shuffle(5, num_lanes=3, window_rows=200).batches(100):
        record = pa.record_batch(batch)
        assert record["label"].to_pylist() == [f"row {row}" for row in record["id"].to_pylist()]
        seen += record["id"].to_pylist()
    assert sorted(seen) == list(range(NUM_PAGED_ROWS))


@pytest.fixture(params=[False, True], ids=["unshuffled", "shuffled"])
def ordered(request: pytest.FixtureRequest, paged: fb.Dataset) -> fb.Dataset:
    """A filtered dataset in both orders."""
    selected = paged.filter("id % 3 <> 1 OR id < 2100")
    return selected.shuffle(11, num_lanes=24, window_rows=100) if request.param else selected


@pytest.fixture
def sequence(ordered: fb.Dataset) -> list[int]:
    """Its one order."""
    return ids_of(ordered.batches(512, num_threads=1))


@pytest.mark.parametrize("columns", [["id"], ["label", "id"], ["payload", "id", "label"]])
def test_the_projection_does_not_change_the_order(ordered: fb.Dataset, sequence: list[int], columns: list[str]) -> None:
    assert ids_of(ordered.select_columns(columns).batches(512)) == sequence


def test_the_order_is_the_same_where_the_predicate_is_not_projected(ordered: fb.Dataset, sequence: list[int]) -> None:
    labels = [label for batch in ordered.select_columns("label").batches(512) for label in pa.record_batch(batch)[0]]
    assert [label.as_py() for label in labels] == [f"row {row}" for row in sequence]


@pytest.mark.parametrize("batch_size", [1000, 7, 1 << 20])
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_batch_size_and_threads_do_not_change_the_order(
    ordered: fb.Dataset, sequence: list[int], batch_size: int, num_threads: int
) -> None:
    batches = batches_of(ordered.batches(batch_size, num_threads=num_threads))
    assert batches == [sequence[k : k + batch_size] for k in range(0, len(sequence), batch_size)]


@pytest.mark.filterwarnings("ignore::forebay.PerformanceWarning")
@pytest.mark.parametrize("memory_limit", [8 << 20, 64 << 20, 1 << 40])
def test_memory_does_not_change_the_order(ordered: fb.Dataset, sequence: list[int], memory_limit: int) -> None:
    assert ids_of(ordered.batches(64, memory_limit=memory_limit)) == sequence


@pytest.mark.parametrize("num_threads", [1, 4])
def test_rows_are_evicted_and_fetched_again_where_memory_cannot_hold_the_windows(
    tmp_path_factory: pytest.TempPathFactory, num_threads: int
) -> None:
    # 24 lanes of windows that hold several row groups of 64 KiB each: 5 MiB and more, in 1 MiB.
    folder = tmp_path_factory.mktemp("evicted")
    table = ids_table(6400)
    payload = random.Random(2).randbytes(6400 * 1024)
    table = table.append_column("payload", pa.array([payload[k * 1024 : (k + 1) * 1024] for k in range(6400)]))
    write_fragments(folder, table, row_group_rows=64)
    shuffled = fb.load_dataset(folder, split="train").shuffle(4, num_lanes=24, window_rows=150)
    spans = [list(range(k, k + 64)) for k in range(0, 6400, 64)]
    stream = shuffled.batches(50, memory_limit=1 << 20, num_threads=num_threads)
    seen = []
    for batch in stream:
        record = pa.record_batch(batch)
        values = [value.as_py() for value in record["payload"]]
        rows = record["id"].to_pylist()
        assert values == [payload[k * 1024 : (k + 1) * 1024] for k in rows]
        seen += rows
    assert seen == model.epoch(spans, 0, seed=4, num_lanes=24, window_rows=150)
    assert stream.stats()["rows_evicted"] > 0
    roomy = shuffled.batches(50)
    assert ids_of(roomy) == seen
    assert roomy.stats()["rows_evicted"] == 0


def global_batches(dataset: fb.Dataset, world_size: int, batch_size: int) -> list[list[int]]:
    """Reads all ranks and interleaves their batches."""
    shares = [
        batches_of(dataset.batches(batch_size, rank=rank, world_size=world_size, remainder="keep"))
        for rank in range(world_size)
    ]
    steps = range(max(map(len, shares)))
    return [model.in_turn([share[t] for share in shares if t < len(share)]) for t in steps]


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["unshuffled", "shuffled"])
def test_the_ranks_of_every_world_deliver_the_same_global_batches(
    uneven: fb.Dataset, world_size: int, is_shuffled: bool
) -> None:
    dataset = uneven.filter("id % 11 <> 5")
    if is_shuffled:
        dataset = dataset.shuffle(3, num_lanes=6, window_rows=20)
    sequence = ids_of(dataset.batches(64))
    for batch_size in (1, 8, max(1, 72 // world_size)):
        step = batch_size * world_size
        expected = [sequence[k : k + step] for k in range(0, len(sequence), step)]
        assert global_batches(dataset, world_size, batch_size) == expected


@pytest.mark.parametrize("num_workers", range(1, 6))
def test_workers_deliver_the_batches_of_their_rank_in_turn(uneven: fb.Dataset, num_workers: int) -> None:
    dataset = uneven.shuffle(3, num_lanes=6, window_rows=20)

    def stream() -> fb.Stream:
        return dataset.batches(9, rank=1, world_size=3)

    held = [batches_of(stream()._iterate(worker, num_workers)) for worker in range(num_workers)]
    assert model.in_turn(held) == batches_of(stream())


def test_explain_shows_the_resolved_order(uneven: fb.Dataset) -> None:
    order = uneven.shuffle(8, num_lanes=5, window_rows=6).explain()["order"]
    assert order == {"seed": 8, "num_lanes": 5, "window_rows": 6}
    derived = uneven.shuffle(8).explain()["order"]
    sequence: Sequence[int] = ids_of(uneven.shuffle(8).batches(100))
    assert sequence == model.epoch([g for g in uneven_groups(NUM_ROWS) if g], 0, **derived)
    assert uneven.explain()["order"] == {}
    assert "unshuffled" in str(uneven.explain())


def test_memory_and_columns_do_not_change_the_derived_settings(paged: fb.Dataset) -> None:
    derived = paged.shuffle(8).explain()["order"]
    assert paged.select_columns("id").shuffle(8).explain()["order"] == derived
    assert paged.shuffle(8).batches(10, memory_limit=1 << 20).reader.order() == derived


def test_an_epoch_can_be_read_again(uneven: fb.Dataset) -> None:
    stream = uneven.shuffle(8).batches(100)
    first = [ids(batch) for batch in stream]
    assert [ids(batch) for batch in stream] == first


def test_a_reading_that_is_not_known_is_refused(uneven: fb.Dataset) -> None:
    with pytest.raises(ValueError, match="reading: expected 'later', 'in order' or 'shuffled', got `sorted`"):
        uneven.filter("id > 0")._native.num_rows(lambda *_: None, None, "sorted")
