"""Several loops over one stream: each begins where the stream was last told to, whoever takes the batches."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import pickle
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import torch
from data import ids_table, write_fragments
from programs import run_python
from rows import UNEVEN, batches_of, ids
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay as fb
from forebay.loader import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.torch import TorchStream

    Expected = Callable[..., list[list[int]]]

# torch warns of more workers than cores, Python of forks beside threads, torchdata calls what newer torch deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
]

NUM_ROWS = 300
BATCH_SIZE = 20
POSITION = 140


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    rows = range(NUM_ROWS)
    table = ids_table(NUM_ROWS)
    table = table.append_column("half", pa.array([row // 2 if row % 2 == 0 else None for row in rows], pa.int32()))
    table = table.append_column("parts", pa.array([[row] * (row % 4) for row in rows], pa.list_(pa.int16())))
    write_fragments(folder, table, num_fragments=3, row_group_rows=UNEVEN)
    return folder


@pytest.fixture(scope="module")
def dataset(folder: Path) -> fb.Dataset:
    return fb.load_dataset(folder, split="train").shuffle(6, num_lanes=6, window_rows=20)


@pytest.fixture(scope="module")
def epochs(dataset: fb.Dataset) -> Expected:
    """Returns the batches of an epoch from a position on."""

    def expected(epoch: int, position: int = 0) -> list[list[int]]:
        stream = dataset.batches(BATCH_SIZE)
        stream.load_state_dict(state(dataset, epoch, position))
        return batches_of(stream)

    return expected


def state(dataset: fb.Dataset, epoch: int, position: int = POSITION) -> dict[str, Any]:
    return dataset.batches(1).state_dict() | {"epoch": epoch, "position": position}


def resumed(dataset: fb.Dataset, epoch: int) -> TorchStream:
    stream = dataset.to_torch(BATCH_SIZE)
    stream.load_state_dict(state(dataset, epoch))
    return stream


def loader(stream: TorchStream, num_workers: int = 2, method: str = "fork", **settings: Any) -> DataLoader:
    context = method if num_workers else None
    return DataLoader(stream, batch_size=None, num_workers=num_workers, multiprocessing_context=context, **settings)


KINDS = {
    "no loader": lambda stream: stream,
    "no workers": lambda stream: loader(stream, 0),
    "one worker": lambda stream: loader(stream, 1),
    "workers": loader,
    "persistent workers": lambda stream: loader(stream, persistent_workers=True),
}

Wrap = "Callable[[TorchStream], Any]"


@pytest.fixture(params=KINDS)
def wrap(request: pytest.FixtureRequest) -> Wrap:
    return KINDS[request.param]


def test_a_loaded_position_is_for_one_loop(dataset: fb.Dataset, epochs: Expected, wrap: Wrap) -> None:
    stream = resumed(dataset, 3)
    loaded = wrap(stream)
    assert len(stream) == len(epochs(3, POSITION))
    assert batches_of(loaded) == epochs(3, POSITION)
    assert len(stream) == len(epochs(3))
    assert batches_of(loaded) == epochs(3)
    assert batches_of(wrap(stream)) == epochs(3)
    stream.load_state_dict(state(dataset, 3, 200))
    assert batches_of(loaded) == epochs(3, 200)
    assert batches_of(loaded) == epochs(3)


def test_a_program_may_set_its_seed_before_every_loop(dataset: fb.Dataset, epochs: Expected, wrap: Wrap) -> None:
    loaded = wrap(resumed(dataset, 3))
    for position in (POSITION, 0, 0):
        torch.manual_seed(5)
        assert batches_of(loaded) == epochs(3, position)


def test_loops_of_other_numbers_of_workers_are_others(dataset: fb.Dataset) -> None:
    stream = resumed(dataset, 3)
    numbers = []
    for num_workers in (1, 4, 1):
        torch.manual_seed(5)
        numbers.append(sum(len(ids(batch)) for batch in DataLoader(stream, batch_size=None, num_workers=num_workers)))
    assert numbers == [NUM_ROWS - POSITION, NUM_ROWS, NUM_ROWS]


def test_every_loop_delivers_the_epoch_that_was_set(dataset: fb.Dataset, epochs: Expected, wrap: Wrap) -> None:
    stream = resumed(dataset, 1)
    loaded = wrap(stream)
    for epoch, position in ((1, POSITION), (2, 0), (3, 0), (1, 0)):
        stream.set_epoch(epoch)
        # Workers tell loops apart by a seed, which a program may set.
        torch.manual_seed(5)
        assert batches_of(loaded) == epochs(epoch, position)


def test_a_loop_that_was_left_early_has_used_its_position(dataset: fb.Dataset, epochs: Expected, wrap: Wrap) -> None:
    stream = resumed(dataset, 1)
    loaded = wrap(stream)
    for batch in loaded:
        assert ids(batch) == epochs(1, POSITION)[0]
        break
    assert batches_of(loaded) == epochs(1)
    for _ in loaded:
        break
    stream.set_epoch(2)
    assert batches_of(loaded) == epochs(2)


@pytest.mark.parametrize("kind", ["no loader", "no workers"])
def test_an_iterator_that_is_asked_for_nothing_changes_nothing(
    dataset: fb.Dataset, epochs: Expected, kind: str
) -> None:
    stream = resumed(dataset, 1)
    loaded = KINDS[kind](stream)
    before = stream.state_dict()
    for _ in range(3):
        unused = iter(loaded)
        # How long epochs are, as trainers ask.
        assert len(stream) == len(epochs(1))
        assert stream.state_dict() == before
    assert batches_of(loaded) == epochs(1, POSITION)
    # The one that was not asked for anything begins as late as it is asked.
    stream.set_epoch(2)
    assert batches_of(unused) == epochs(2)
    for seen, _ in enumerate(loaded, 1):
        iter(loaded)
        assert stream.state_dict() == before | {"epoch": 2, "position": seen * BATCH_SIZE}
        if seen == 3:
            break


def test_the_iterator_that_is_asked_first_gets_the_position(dataset: fb.Dataset, epochs: Expected) -> None:
    stream = resumed(dataset, 1)
    one, other = iter(stream), iter(stream)
    first = ids(next(other))
    assert batches_of(one) == epochs(1)
    assert [first, *batches_of(other)] == epochs(1, POSITION)
    assert batches_of(stream) == epochs(1)


def test_a_task_that_is_asked_for_nothing_changes_nothing(dataset: fb.Dataset, epochs: Expected) -> None:
    async def read() -> list[list[int]]:
        aiter(stream)
        return [ids(batch) async for batch in stream]

    stream = resumed(dataset, 1)
    assert asyncio.run(read()) == epochs(1, POSITION)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_that_was_saved_behind_an_epoch_goes_on_with_a_whole_one(
    dataset: fb.Dataset, epochs: Expected, num_workers: int
) -> None:
    def stateful() -> StatefulDataLoader:
        method = "fork" if num_workers else None
        return StatefulDataLoader(
            dataset.to_torch(BATCH_SIZE), batch_size=None, num_workers=num_workers, multiprocessing_context=method
        )

    first = stateful()
    assert batches_of(first) == epochs(0)
    later = stateful()
    later.load_state_dict(first.state_dict())
    assert batches_of(later) == epochs(0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_that_was_saved_behind_an_epoch_goes_on_with_the_one_that_is_set(
    dataset: fb.Dataset, epochs: Expected, num_workers: int
) -> None:
    """Without workers the loader loads the state when it is iterated, which is after `set_epoch`."""

    def stateful() -> tuple[TorchStream, StatefulDataLoader]:
        stream, method = dataset.to_torch(BATCH_SIZE), "fork" if num_workers else None
        return stream, StatefulDataLoader(
            stream, batch_size=None, num_workers=num_workers, multiprocessing_context=method
        )

    stream, first = stateful()
    stream.set_epoch(1)
    assert batches_of(first) == epochs(1)
    later_stream, later = stateful()
    later.load_state_dict(first.state_dict())
    for epoch in (2, 3):
        later_stream.set_epoch(epoch)
        assert batches_of(later) == epochs(epoch)
        assert later_stream.epoch == epoch


def stateful_loader(dataset: fb.Dataset, num_workers: int) -> tuple[TorchStream, StatefulDataLoader]:
    stream, method = dataset.to_torch(BATCH_SIZE), "fork" if num_workers else None
    return stream, StatefulDataLoader(stream, batch_size=None, num_workers=num_workers, multiprocessing_context=method)


def stopped(loader: StatefulDataLoader, batches: list[list[int]]) -> dict[str, Any]:
    """Returns the state behind the first batches of a loop, which are these."""
    taken = iter(loader)
    assert [ids(next(taken)) for _ in batches] == batches
    return loader.state_dict()


# Of 15 batches, so that it is not always the first worker's turn.
@pytest.mark.parametrize("num_workers", [0, 2, 3, 4])
def test_nor_is_an_epoch_left_out_that_is_set_behind_the_last_batch_of_another(
    dataset: fb.Dataset, epochs: Expected, num_workers: int
) -> None:
    """The loader does not know yet that there is no more, and begins with what is left."""
    stream, loader = stateful_loader(dataset, num_workers)
    state = stopped(loader, epochs(0))
    for epoch in (1, 2):
        stream, loader = stateful_loader(dataset, num_workers)
        loader.load_state_dict(state)
        stream.set_epoch(epoch)
        state = stopped(loader, epochs(epoch)[:2])
        loader.load_state_dict(state)
        state = stopped(loader, epochs(epoch)[2:])
    # Back in the same process, whose stream stands at that epoch already; later ones follow as ever.
    loader.load_state_dict(state)
    for epoch in (3, 4):
        stream.set_epoch(epoch)
        assert batches_of(loader) == epochs(epoch)
    loader.load_state_dict(state)
    for epoch in (4, 5):
        stream.set_epoch(epoch)
        assert batches_of(loader) == epochs(epoch)


@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_a_state_goes_before_an_epoch_that_is_set_where_any_worker_has_something_left(
    dataset: fb.Dataset, epochs: Expected, num_workers: int
) -> None:
    for cut in (1, 13, 14):
        state = stopped(stateful_loader(dataset, num_workers)[1], epochs(0)[:cut])
        stream, loader = stateful_loader(dataset, num_workers)
        loader.load_state_dict(state)
        stream.set_epoch(1)
        assert batches_of(loader) == epochs(0)[cut:]
        stream.set_epoch(1)
        assert batches_of(loader) == epochs(1)


def test_what_is_chosen_in_a_loop_is_for_the_next_one(dataset: fb.Dataset, epochs: Expected, wrap: Wrap) -> None:
    stream = resumed(dataset, 1)
    loaded = wrap(stream)
    seen = []
    for batch in loaded:
        seen.append(ids(batch))
        if len(seen) == 3:
            stream.set_epoch(2)
    assert seen == epochs(1, POSITION)
    assert batches_of(loaded) == epochs(2)


def test_one_of_two_loops_at_once_gets_the_position(dataset: fb.Dataset, epochs: Expected) -> None:
    stream = resumed(dataset, 1)
    for _ in range(3):
        stream.load_state_dict(state(dataset, 1))
        both = [iter(loader(stream)), iter(loader(stream))]
        assert sorted(map(batches_of, both)) == sorted([epochs(1, POSITION), epochs(1)])


def test_workers_begin_where_the_loop_was_begun_however_late_they_are(dataset: fb.Dataset, epochs: Expected) -> None:
    stream = resumed(dataset, 1)
    begun = iter(loader(stream))
    stream.set_epoch(2)
    later = iter(loader(stream))
    stream.load_state_dict(state(dataset, 3, 60))
    assert batches_of(later) == epochs(2)
    assert batches_of(begun) == epochs(1, POSITION)
    assert batches_of(loader(stream)) == epochs(3, 60)


def test_a_stateful_loader_goes_on_to_the_next_epochs(dataset: fb.Dataset, epochs: Expected) -> None:
    def stateful(stream: TorchStream) -> StatefulDataLoader:
        return StatefulDataLoader(
            stream, batch_size=None, num_workers=2, multiprocessing_context="fork", persistent_workers=True
        )

    stream = dataset.to_torch(BATCH_SIZE)
    stream.set_epoch(4)
    first = stateful(stream)
    taken = iter(first)
    assert [ids(next(taken)) for _ in range(5)] == epochs(4)[:5]
    saved = first.state_dict()
    stream = dataset.to_torch(BATCH_SIZE)
    later = stateful(stream)
    later.load_state_dict(saved)
    for epoch in range(fb.cursor(saved)["epoch"], 7):
        stream.set_epoch(epoch)
        assert batches_of(later) == epochs(epoch, 5 * BATCH_SIZE if epoch == 4 else 0)


def test_a_position_that_only_workers_know_is_not_told(dataset: fb.Dataset) -> None:
    stream = dataset.to_torch(BATCH_SIZE)
    saved = stream.state_dict()
    for _ in loader(stream):
        with pytest.raises(fb.StateError, match=r"StatefulDataLoader.*forebay\.cursor"):
            stream.state_dict()
        break
    stream.set_epoch(1)
    assert stream.state_dict() == saved | {"epoch": 1}
    list(loader(stream))
    stream.load_state_dict(saved)
    assert stream.state_dict() == saved
    list(loader(stream))
    next(iter(stream))
    assert stream.state_dict() == saved | {"position": BATCH_SIZE}


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_started_workers_follow_their_parent(dataset: fb.Dataset, epochs: Expected, method: str) -> None:
    # Of another test there may be some that are about to end.
    before = set(multiprocessing.active_children())
    stream = resumed(dataset, 1)
    loaded = loader(stream, 2, method, persistent_workers=True, pin_memory=True, prefetch_factor=3)
    # Not `list`, which asks for the length: torch then warns of loops that are longer.
    batches = [batch for batch in loaded]  # noqa: C416
    assert batches_of(batches) == epochs(1, POSITION)
    for batch in batches:
        check_forms(batch)
    stream.set_epoch(2)
    for batch in loaded:
        assert ids(batch) == epochs(2)[0]
        break
    assert batches_of(loaded) == epochs(2)
    stream.load_state_dict(state(dataset, 3))
    for batch in loaded:
        assert ids(batch) == epochs(3, POSITION)[0]
        break
    del loaded
    assert set(multiprocessing.active_children()) <= before


def check_forms(batch: dict[str, Any]) -> None:
    """Checks the columns that are no tensors, but tuples of them or lists."""
    assert isinstance(batch["half"], fb.Masked)
    assert isinstance(batch["parts"], fb.Ragged)
    assert batch["label"] == [f"row {row}" for row in ids(batch)]
    assert batch["half"].mask.tolist() == [row % 2 == 0 for row in ids(batch)]
    assert batch["half"].values[batch["half"].mask].tolist() == [row // 2 for row in ids(batch) if row % 2 == 0]
    assert batch["parts"].values.tolist() == [row for row in ids(batch) for _ in range(row % 4)]
    assert batch["parts"].offsets.diff().tolist() == [row % 4 for row in ids(batch)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_with_tuples_may_be_pinned(dataset: fb.Dataset, epochs: Expected, num_workers: int) -> None:
    stream = dataset.to_torch(BATCH_SIZE)
    batches = list(loader(stream, num_workers, pin_memory=True))
    assert batches_of(batches) == epochs(0)
    for batch in batches:
        check_forms(batch)
        tensors = [batch["id"], *batch["half"], *batch["parts"]]
        assert [tensor.is_pinned() for tensor in tensors] == [torch.accelerator.is_available()] * 5


@pytest.mark.parametrize("prefetch_factor", [1, 2, 50])
def test_how_far_workers_read_ahead_changes_nothing(
    dataset: fb.Dataset, epochs: Expected, prefetch_factor: int
) -> None:
    loaded = loader(resumed(dataset, 1), prefetch_factor=prefetch_factor)
    assert batches_of(loaded) == epochs(1, POSITION)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_a_copy_of_a_stream_is_on_its_own(dataset: fb.Dataset, epochs: Expected, duplicate: Any) -> None:
    stream = resumed(dataset, 1)
    copied = duplicate(stream)
    copied.set_epoch(2)
    assert batches_of(loader(stream)) == epochs(1, POSITION)
    assert batches_of(loader(copied)) == epochs(2)
    stream.load_state_dict(state(dataset, 1))
    copied = duplicate(stream)
    assert batches_of(loader(stream)) == epochs(1, POSITION)
    assert batches_of(loader(copied)) == epochs(1, POSITION)


def test_streams_give_their_descriptors_back(dataset: fb.Dataset) -> None:
    def num_descriptors() -> int:
        # Others, such as those of a runtime that ends, come and go.
        found = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(descriptor.readlink()).startswith("/memfd:forebay")
        return found

    # Those of the tests before, which would be given back in the middle of this one.
    gc.collect()
    before = num_descriptors()
    streams = [dataset.to_torch(BATCH_SIZE) for _ in range(10)]
    copies = pickle.loads(pickle.dumps(streams))
    assert num_descriptors() == before + 20
    del streams, copies
    assert num_descriptors() == before


INHERITED = """
import multiprocessing, os, sys, warnings
import forebay as fb
from rows import batches_of
from torch.utils.data import DataLoader
warnings.simplefilter("ignore")


def loop(loaded):
    return [row for batch in batches_of(loaded) for row in batch]


def rank(stream, is_chosen):
    if is_chosen:
        stream.set_epoch(1)
    loaded = DataLoader(
        stream, batch_size=None, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    )
    first = loop(loaded)
    stream.set_epoch(2)
    try:
        print(is_chosen, len(first), first != loop(loaded), flush=True)
    except fb.SettingError as error:
        print(is_chosen, len(first), str(error).splitlines()[-1], flush=True)


stream = fb.load_dataset(sys.argv[1], split="train").shuffle(6).to_torch(20)
for is_chosen in (True, False):
    process = multiprocessing.get_context("fork").Process(target=rank, args=(stream, is_chosen))
    process.start()
    process.join()
assert stream.epoch == 0
assert stream.state_dict()["position"] == 0
"""


def test_a_stream_that_was_inherited_follows_its_new_process_or_says_why_not(folder: Path) -> None:
    chosen, unchosen = run_python(INHERITED, folder).splitlines()
    assert chosen == f"True {NUM_ROWS} True"
    assert unchosen.startswith(f"False {NUM_ROWS} ")
    assert "make the stream in the process that makes the DataLoader" in unchosen


@pytest.mark.parametrize("how", ["batches", "to_torch", "map", "DataLoader", "pack", "rows"])
def test_a_loop_that_is_left_ends_at_once(dataset: fb.Dataset, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads and their memory do not wait for Python's collector of cycles."""
    made = {
        "batches": lambda: dataset.batches(BATCH_SIZE),
        "to_torch": lambda: dataset.to_torch(BATCH_SIZE),
        "map": lambda: dataset.map(lambda batch: batch, batched=True, num_threads=1).to_torch(BATCH_SIZE),
        "DataLoader": lambda: fb.DataLoader(dataset, BATCH_SIZE, collate_fn=list),
        "pack": lambda: dataset.to_torch(2, pack=fb.Pack(length=8, columns=["parts"])),
        "rows": lambda: dataset,
    }
    ended: list[Any] = []
    running = Stream._running

    @contextmanager
    def noting(stream: Any, run: Any) -> Iterator[Any]:
        try:
            with running(stream, run) as read:
                yield read
        finally:
            ended.append(stream)

    monkeypatch.setattr(Stream, "_running", noting)
    gc.collect()
    gc.disable()
    try:
        stream = made[how]()
        for number in range(1, 4):
            for _ in stream:
                break
            assert len(ended) == number
    finally:
        gc.enable()
