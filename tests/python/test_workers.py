"""DataLoader workers: the same batches in the same order, however many there are."""

from __future__ import annotations

import json
import pickle
import time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from data import ids_table, write_fragments
from fault_proxy import Fault, FaultProxy
from programs import run_python
from rows import batches_of, ids, ids_of, write_uneven
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import default_data_collator
from upstreams import Objects

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.torch import TorchStream

# torch warns of more workers than cores, Python of forks beside threads; ours stay in the process that made them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    # torchdata calls what newer torch deprecates.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

NUM_ROWS = 500
BATCH_SIZE = 32


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("workers"), NUM_ROWS)


@pytest.fixture(params=["unshuffled", "shuffled"])
def stream(request: pytest.FixtureRequest, dataset: fb.Dataset) -> Callable[..., TorchStream]:
    """Makes streams of a filtered dataset."""
    selected = dataset.filter("id % 9 <> 4")
    if request.param == "shuffled":
        selected = selected.shuffle(6, num_lanes=6, window_rows=20)
    return lambda batch_size=BATCH_SIZE, **settings: selected.to_torch(batch_size, **settings)


def loader(stream: TorchStream, num_workers: int, **settings: Any) -> DataLoader:
    context = "fork" if num_workers else None
    return DataLoader(stream, batch_size=None, num_workers=num_workers, multiprocessing_context=context, **settings)


def stateful(stream: TorchStream, num_workers: int, **settings: Any) -> StatefulDataLoader:
    context = "fork" if num_workers else None
    return StatefulDataLoader(
        stream, batch_size=None, num_workers=num_workers, multiprocessing_context=context, **settings
    )


def take(batches: Any, num_batches: int) -> list[list[int]]:
    return [ids(next(batches)) for _ in range(num_batches)]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_any_number_of_workers_delivers_the_same_batches_in_the_same_order(
    stream: Callable[..., TorchStream], num_workers: int
) -> None:
    expected = batches_of(stream())
    loaded = loader(stream(), num_workers)
    assert len(loaded) == len(expected)
    assert batches_of(loaded) == expected


@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
def test_batches_of_batches_are_warned_of(stream: Callable[..., TorchStream], make: Any) -> None:
    with pytest.warns(fb.PerformanceWarning, match="batches of batches.* pass `batch_size=None`") as warned:
        batch = next(iter(make(stream(), batch_size=2)))
    assert batch["id"].shape == (2, BATCH_SIZE)
    assert [told.filename for told in warned if told.category is fb.PerformanceWarning] == [__file__]
    # It expects rows, too, and fails on the texts of batches.
    with pytest.warns(fb.PerformanceWarning, match="batches of batches"), pytest.raises(ValueError, match="dimensions"):
        next(iter(make(stream(), batch_size=2, collate_fn=default_data_collator)))
    # Who makes something of them means it.
    assert len(next(iter(make(stream(), batch_size=2, collate_fn=list)))) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("settings", [{"remainder": "pad"}, {"remainder": "keep"}, {"drop_last": True}], ids=str)
def test_the_share_of_a_rank_does_not_know_the_workers(
    stream: Callable[..., TorchStream], num_workers: int, settings: dict[str, Any]
) -> None:
    share = {"rank": 2, "world_size": 3} | settings
    expected = batches_of(stream(**share))
    loaded = loader(stream(**share), num_workers)
    assert len(loaded) == len(expected)
    assert batches_of(loaded) == expected


def test_workers_deliver_the_epoch_that_was_set(dataset: fb.Dataset) -> None:
    stream = dataset.shuffle(6, num_lanes=6, window_rows=20).to_torch(BATCH_SIZE)
    orders = set()
    for epoch in (0, 1):
        stream.set_epoch(epoch)
        expected = batches_of(stream)
        assert batches_of(loader(stream, 2)) == expected
        orders.add(str(expected))
    assert len(orders) == 2


def test_workers_can_be_forked_while_the_parent_reads(stream: Callable[..., TorchStream]) -> None:
    expected = batches_of(stream())
    parents = iter(stream())
    assert take(parents, 3) == expected[:3]
    assert batches_of(loader(stream(), 2)) == expected
    assert batches_of(parents) == expected[3:]


FORKED = """
import sys, warnings
import forebay as fb
from rows import batches_of, ids
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
ds = fb.load_dataset(sys.argv[1], split="train")
parents = iter(ds.to_torch(100))
begun = [ids(next(parents)) for _ in range(3)]
loaded = DataLoader(ds.to_torch(100), batch_size=None, num_workers=2, multiprocessing_context="fork")
expected = [list(range(first, first + 100)) for first in range(0, 10_000, 100)]
assert batches_of(loaded) == expected
assert begun + batches_of(parents) == expected
"""


def test_workers_can_be_forked_while_the_parent_waits_for_a_server(tmp_path: Path) -> None:
    path = write_fragments(tmp_path, ids_table(10_000), row_group_rows=500)[0]
    metadata = pq.read_metadata(path)
    enough = 1 + metadata.num_row_groups + 5
    requests_meanwhile = []

    def hold() -> None:
        """Lets the parent's request go when its workers have asked, too."""
        end = time.monotonic() + 30
        while proxy.count() <= enough and time.monotonic() < end:
            time.sleep(0.01)
        requests_meanwhile.append(proxy.count())

    with FaultProxy(Objects({"a.parquet": path.read_bytes()})) as proxy:
        proxy.faults = [Fault(covering=metadata.row_group(15).column(0).data_page_offset, before=hold)]
        run_python(FORKED, f"{proxy.url}/a.parquet", timeout=90)
    assert requests_meanwhile[0] > enough


def test_more_workers_than_batches_deliver_all_of_them(stream: Callable[..., TorchStream]) -> None:
    assert batches_of(loader(stream(300), 3)) == batches_of(stream(300))


def test_workers_of_an_empty_epoch_deliver_nothing(dataset: fb.Dataset) -> None:
    assert list(loader(dataset.filter("id < 0").to_torch(8), 2)) == []


@pytest.mark.parametrize("later_workers", [0, 3])
@pytest.mark.parametrize("num_batches", [0, 1, 4, 14])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_cursor_of_a_loader_resumes_with_another_number_of_workers(
    stream: Callable[..., TorchStream], num_workers: int, num_batches: int, later_workers: int
) -> None:
    expected = batches_of(stream())
    assert len(expected) == 14
    first = stateful(stream(), num_workers)
    assert take(iter(first), num_batches) == expected[:num_batches]
    state = fb.cursor(json.loads(json.dumps(first.state_dict())))
    later = stream()
    later.load_state_dict(state)
    assert len(later) == len(expected) - num_batches
    assert batches_of(loader(later, later_workers)) == expected[num_batches:]


def test_the_cursor_of_a_loader_resumes_with_another_batch_size_and_world(
    stream: Callable[..., TorchStream],
) -> None:
    sequence = ids_of(stream())
    first = stateful(stream(), 2)
    take(iter(first), 5)
    state = fb.cursor(first.state_dict())
    later = [stream(7, rank=rank, world_size=3, remainder="keep") for rank in range(3)]
    for rank, share in enumerate(later):
        share.load_state_dict(state)
        assert ids_of(share) == sequence[5 * BATCH_SIZE + rank :: 3]


@pytest.mark.parametrize("num_batches", [1, 2, 5, 14])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_a_stateful_loader_resumes_with_as_many_workers(
    stream: Callable[..., TorchStream], num_workers: int, num_batches: int
) -> None:
    expected = batches_of(stream())
    first = stateful(stream(), num_workers)
    taken = iter(first)
    assert take(taken, num_batches) == expected[:num_batches]
    second = stateful(stream(), num_workers)
    second.load_state_dict(first.state_dict())
    rest = iter(second)
    if num_batches < 8:
        # And once more, in the middle of the rest.
        assert take(rest, 3) == expected[num_batches : num_batches + 3]
        assert fb.cursor(second.state_dict())["position"] == (num_batches + 3) * BATCH_SIZE
        third = stateful(stream(), num_workers)
        third.load_state_dict(second.state_dict())
        rest, num_batches = iter(third), num_batches + 3
    assert batches_of(rest) == expected[num_batches:]


def test_a_loader_state_that_lags_behind_is_refused(dataset: fb.Dataset) -> None:
    lagging = stateful(dataset.to_torch(10), 2, snapshot_every_n_steps=4)
    take(iter(lagging), 6)
    with pytest.raises(fb.StateError, match="snapshot_every_n_steps=1"):
        fb.cursor(lagging.state_dict())


def test_a_loader_state_is_refused_by_workers_with_another_batch_size(dataset: fb.Dataset) -> None:
    first = stateful(dataset.to_torch(10), 2)
    take(iter(first), 3)
    second = stateful(dataset.to_torch(5), 2)
    second.load_state_dict(first.state_dict())
    with pytest.raises(fb.StateError, match=r"forebay\.cursor"):
        next(iter(second))


def test_spawned_workers_open_the_same_objects_with_the_same_selection(dataset: fb.Dataset) -> None:
    stream = dataset.filter("id % 9 <> 4").shuffle(6, num_lanes=6, window_rows=20).to_torch(BATCH_SIZE)
    loaded = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert batches_of(loaded) == batches_of(stream)


def test_a_pickled_dataset_keeps_columns_filters_order_and_selection(dataset: fb.Dataset) -> None:
    selected = dataset.filter("id % 9 <> 4").select_columns("id").shuffle(3)
    num_rows = len(selected)
    copied = pickle.loads(pickle.dumps(selected))
    assert copied.column_names == ["id"]
    assert copied.explain()["selection_requests"] == 0, "the selection came along"
    assert len(copied) == num_rows
    assert ids_of(copied.batches(32)) == ids_of(selected.batches(32))
