"""Pinned memory and copies to a device: when they happen, and that nothing happens where there is no device."""

from __future__ import annotations

import collections
import gc
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from programs import is_raised_in_a_fork
from rows import ids_of
from transformers.modeling_outputs import BaseModelOutput

import forebay as fb
from forebay import devices
from forebay.devices import BATCHES_AHEAD, Ahead, Cuda, DeviceStage, make_stages, map_tensors
from forebay.passes import Cursor
from forebay.stages import Item

if TYPE_CHECKING:
    from pathlib import Path

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU of CUDA, and torch finds none")
without_gpu = pytest.mark.skipif(HAS_GPU, reason="is about machines without a GPU")

NUM_ROWS = 400


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    folder: Path = tmp_path_factory.mktemp("devices")
    ids = np.arange(NUM_ROWS)
    table = pa.table(
        {
            "id": ids,
            "maybe": pa.array([None if i % 3 == 0 else i for i in range(NUM_ROWS)], pa.int32()),
            "lists": [list(range(i % 4)) for i in range(NUM_ROWS)],
            "meta": [{"page": i, "name": str(i)} for i in range(NUM_ROWS)],
            "text": [str(i) for i in range(NUM_ROWS)],
        }
    )
    pq.write_table(table, folder / "train.parquet", row_group_size=50)
    return fb.load_dataset(folder, split="train")


class Noting:
    """A device that is none: it notes what happens in which order."""

    def __init__(self, device: str | None) -> None:
        self.device = device
        self.log: list[tuple[str, Any]] = []
        self.num_marks = 0
        self.slabs: set[int] = set()

    def allocate(self, num_bytes: int) -> torch.Tensor:
        slab = torch.empty(num_bytes, dtype=torch.uint8)
        self.slabs.add(slab.data_ptr())
        return slab

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self.log.append(("pin", tuple(tensor.shape)))
        return tensor.clone()

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        self.log.append(("copy", tuple(pinned.shape)))
        return pinned.clone()

    def move_whole(self, value: Any) -> Any:
        self.log.append(("whole", type(value).__name__))
        return value

    def mark(self) -> int:
        self.num_marks += 1
        self.log.append(("mark", self.num_marks))
        return self.num_marks

    def hand_over(self, event: int, tensors: list[torch.Tensor]) -> None:
        self.log.append(("hand over", (event, len(tensors))))


def stream_to(rows: fb.Dataset, device: str | None, links: list[Noting]) -> Any:
    def make(of: str | None) -> Noting:
        links.append(Noting(of))
        return links[-1]

    stream = rows.to_torch(50)
    stream._stream._stages = (DeviceStage(device, make),)
    return stream


def test_batches_are_copied_ahead_and_handed_over_behind_their_copies(rows: fb.Dataset) -> None:
    links: list[Noting] = []
    stream = stream_to(rows.select_columns("id"), "cuda:0", links)
    assert ids_of(stream) == list(range(NUM_ROWS))
    [link] = links
    assert link.device == "cuda:0"
    handed = [what for kind, what in link.log if kind == "hand over"]
    assert handed == [(number, 1) for number in range(1, 9)]
    for number in range(1, 9):
        at = link.log.index(("hand over", (number, 1)))
        assert link.log.index(("mark", number)) < at, "a batch is handed over behind its copy"
        ahead = sum(kind == "mark" for kind, _ in link.log[:at]) - number
        assert ahead <= BATCHES_AHEAD


def test_batches_that_are_there_are_copied_before_the_loop_asks(rows: fb.Dataset) -> None:
    links: list[Noting] = []
    stream = stream_to(rows.select_columns("id"), "cuda:0", links)
    batches = iter(stream)
    next(batches)
    # Beside the second, which may be on its way, the third is there, or was taken.
    while not stream._stream._active.stream.wait(0):
        time.sleep(0.01)
    next(batches)
    assert links[0].num_marks > 2
    assert stream.state_dict()["position"] == 100, "what is ahead does not count"


def test_a_state_counts_batches_that_the_loop_has(rows: fb.Dataset) -> None:
    whole = ids_of(rows.to_torch(50))
    for cut in range(9):
        stream, later = stream_to(rows, "cuda:0", []), stream_to(rows, "cuda:0", [])
        batches = iter(stream)
        before = [next(batches)["id"] for _ in range(cut)]
        later.load_state_dict(stream.state_dict())
        assert [i for ids in before for i in ids.tolist()] + ids_of(later) == whole


def test_every_tensor_of_a_batch_is_moved_and_nothing_else(rows: fb.Dataset) -> None:
    links: list[Noting] = []
    plain, moved = next(iter(rows.to_torch(50))), next(iter(stream_to(rows, None, links)))
    assert str(moved) == str(plain)
    assert type(moved["lists"]) is fb.Ragged
    assert type(moved["maybe"]) is fb.Masked
    tensors: list[torch.Tensor] = []
    map_tensors(tensors.append, moved)
    num_in_slabs = sum(tensor.untyped_storage().data_ptr() in links[0].slabs for tensor in tensors)
    num_copied = sum(kind == "pin" for kind, _ in links[0].log)
    assert len(tensors) == 6
    assert num_in_slabs + num_copied >= 6
    assert not any(kind == "copy" for kind, _ in links[0].log)


def test_batches_before_a_failure_are_delivered(rows: fb.Dataset) -> None:
    def fail(_: dict[str, Any], indices: list[int]) -> None:
        if 200 in indices:
            raise ValueError("no 200")

    stream = rows.map(fail, batched=True, with_indices=True).to_torch(50)
    stream._stream._stages = (*stream._stream._stages, DeviceStage("cuda:0", Noting))
    seen = []

    def read() -> None:
        for batch in stream:
            seen.extend(batch["id"].tolist())

    with pytest.raises(fb.TransformError, match="no 200"):
        read()
    assert seen == list(range(200))
    assert stream.state_dict()["position"] == 200


def test_a_batch_of_any_shape_is_walked_through() -> None:
    batch = {"a": torch.ones(2), "b": [torch.ones(1), "text"], "c": ("x", 3), "d": ["only", "text"]}
    found = map_tensors(lambda tensor: tensor + 1, batch)
    assert str(found) == str(
        {"a": torch.ones(2) + 1, "b": [torch.ones(1) + 1, "text"], "c": ("x", 3), "d": ["only", "text"]}
    )
    assert found["d"] is batch["d"]


class Encoding(collections.UserDict[str, Any]):
    """What tokenizers return: a dict with attributes that is no `dict`."""

    note = ""


def test_dicts_of_other_libraries_stay_what_they_are() -> None:
    encoding = Encoding({"a": torch.ones(2), "b": [Encoding({"c": torch.ones(1)})]})
    encoding.note = "kept"
    found = map_tensors(lambda tensor: tensor + 1, encoding)
    assert (type(found), found.note) == (Encoding, "kept")
    assert (found["a"].tolist(), found["b"][0]["c"].tolist()) == ([2, 2], [2])
    assert encoding["a"].tolist() == [1, 1]
    ordered = map_tensors(lambda tensor: tensor + 1, collections.OrderedDict(a=torch.ones(1)))
    assert type(ordered) is collections.OrderedDict
    output = map_tensors(lambda tensor: tensor + 1, BaseModelOutput(last_hidden_state=torch.ones(1)))
    assert type(output) is BaseModelOutput
    assert output["last_hidden_state"].tolist() == output.last_hidden_state.tolist() == [2]


class Itself:
    """A batch of a class of its own, which knows how it gets to devices."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def pin_memory(self) -> Itself:
        self.log.append("pinned")
        return self

    def to(self, device: Any) -> Itself:
        self.log.append(device)
        return self


@pytest.mark.parametrize(("device", "log"), [(None, ["pinned"]), ("cpu", ["pinned", "cpu"])])
def test_batches_of_other_classes_go_by_their_own_methods(rows: fb.Dataset, device: str | None, log: list[str]) -> None:
    class Plain(Noting):
        """Has objects move as `Cuda` does."""

        _device, _torch = device, torch
        move_whole = Cuda.move_whole

    loader = fb.DataLoader(rows, 50, collate_fn=lambda _: [Itself(), torch.ones(1)])
    loader._stream._stages = (*loader._stream._stages, DeviceStage(device, Plain))
    for found, _ in loader:
        assert found.log == log


def test_packed_sequences_keep_their_sizes_where_they_are() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    seen: list[Any] = []
    found = map_tensors(lambda tensor: tensor + 1, {"x": packed}, lambda whole: seen.append(whole) or "moved")
    assert found == {"x": "moved"}
    assert seen[0] is packed
    assert map_tensors(lambda tensor: tensor + 1, [torch.Tensor, "x"]) == [torch.Tensor, "x"], "classes stay"


def test_batches_before_a_failure_that_is_there_early_are_delivered() -> None:
    class Failing:
        """Batches of which the fourth fails as soon as somebody looks for it."""

        stream = None
        number = 0

        def is_ready(self) -> bool:
            if self.number == 3:
                raise fb.DataError("the fourth")
            return True

        def __next__(self) -> Item:
            self.number += 1
            return Item(self.number, 1, 0, Cursor(0, self.number))

        def close(self) -> None:
            pass

    ahead = Ahead(Failing(), Noting("cuda:0"), copies=True)
    assert [next(ahead).value for _ in range(3)] == [1, 2, 3]
    with pytest.raises(fb.DataError, match="the fourth"):
        next(ahead)


class Given:
    """Batches that are there."""

    def __init__(self, *values: Any) -> None:
        self.items = [Item(value, 1, 0, Cursor(0, number)) for number, value in enumerate(values)]

    def is_ready(self) -> bool:
        return True

    def __next__(self) -> Item:
        if not self.items:
            raise StopIteration
        return self.items.pop(0)

    def close(self) -> None:
        pass


def moved(value: Any, device: str | None = "cuda:0") -> tuple[Any, list[tuple[str, Any]]]:
    """Returns a batch on a device, and what happened."""
    link = Noting(device)
    return next(Ahead(Given(value), link, copies=device is not None)).value, link.log


def test_a_batch_that_cannot_be_moved_fails_behind_those_before_it() -> None:
    class Refusing(Noting):
        def copy(self, pinned: torch.Tensor) -> torch.Tensor:
            if pinned.sum() == 3:
                raise RuntimeError("out of memory")
            return super().copy(pinned)

    ahead = Ahead(Given(*(torch.tensor([number]) for number in range(1, 5))), Refusing("cuda:0"), copies=True)
    assert [next(ahead).value.item() for _ in range(2)] == [1, 2]
    with pytest.raises(RuntimeError, match="out of memory"):
        next(ahead)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("device", [None, "cuda:0"])
def test_tensors_that_torch_cannot_record_on_streams_are_moved_whole(device: str | None) -> None:
    others = {
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }
    found, log = moved(others | {"plain": torch.ones(2)}, device)
    assert all(found[name] is other for name, other in others.items())
    assert [what for what, _ in log].count("whole") == len(others)
    assert [what for what in log if what[0] == "hand over"] == ([] if device is None else [("hand over", (1, 1))])


def test_tensors_of_other_layouts_are_not_pinned() -> None:
    class Link:
        _device, _torch = None, torch

    sparse = torch.eye(3).to_sparse()
    assert Cuda.move_whole(Link(), sparse) is sparse  # type: ignore[arg-type]  # a stand-in
    Link._device = "meta"
    assert Cuda.move_whole(Link(), sparse).device.type == "meta"  # type: ignore[arg-type]  # a stand-in


def jagged() -> dict[str, torch.Tensor]:
    """Jagged tensors of each kind: two of one shape, one with holes, one whose ragged dimension is another."""
    make = torch.nested.nested_tensor_from_jagged
    offsets = torch.tensor([0, 2, 5, 5])
    parts = [torch.arange(6.0).view(2, 3), torch.arange(8.0).view(2, 4)]
    return {
        "one": make(torch.arange(5), offsets),
        "other": make(torch.arange(5) * 10, offsets, min_seqlen=0, max_seqlen=3),
        "holes": make(torch.arange(6), torch.tensor([0, 2, 4, 6]), torch.tensor([1, 2, 1])),
        "last": torch.nested.as_nested_tensor(parts, layout=torch.jagged),
    }


@pytest.mark.parametrize("device", [None, "cuda:0"])
def test_jagged_tensors_are_moved_in_parts(device: str | None) -> None:
    given = jagged()
    found, log = moved(given, device)
    for name, tensor in given.items():
        assert found[name].layout == torch.jagged
        assert found[name].values() is not tensor.values()
        assert all(torch.equal(*pair) for pair in zip(found[name].unbind(), tensor.unbind(), strict=True))
        assert found[name]._ragged_idx == tensor._ragged_idx
        assert (found[name].lengths() is None) == (tensor.lengths() is None)
        for seqlen in ("_maybe_min_seqlen", "_maybe_max_seqlen"):
            assert getattr(found[name], seqlen) == getattr(tensor, seqlen)
    assert found["one"].shape == found["other"].shape, "what has the same offsets can be added"
    kinds = {what for what, _ in log} - {"mark", "hand over"}
    assert kinds == ({"pin"} if device is None else {"pin", "copy"})
    # Values of four, three offsets, and lengths of one: offsets that two share are copied once.
    assert [what for what, _ in log].count("pin") == 8
    if device is not None:
        assert log[-1] == ("hand over", (1, 8))


def test_values_of_jagged_tensors_are_copied_out_of_their_slab() -> None:
    slab = torch.zeros(256, dtype=torch.uint8)

    class OneSlab:
        def supply(self) -> None:
            pass

        def held(self) -> list[tuple[int, int, torch.Tensor]]:
            return [(slab.data_ptr(), slab.data_ptr() + 256, slab)]

    # As the core delivers it: memory of the slab that torch does not know to be its own.
    values = torch.from_numpy(slab.numpy()[64:104].view(np.int64))
    tensor = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))
    link = Noting(None)
    found = next(Ahead(Given(tensor), link, OneSlab(), copies=False)).value  # type: ignore[arg-type]  # a stand-in
    assert found.values().untyped_storage().data_ptr() == slab.data_ptr()
    assert found.values().data_ptr() == slab.data_ptr() + 64
    assert link.log == [("pin", (3,))]


def test_what_is_on_its_way_is_freed_without_a_collection_of_cycles() -> None:
    given = jagged()
    offsets = weakref.ref(given["one"].offsets())
    gc.disable()
    try:
        found, _ = moved(given)
        del given, found
        assert offsets() is None
    finally:
        gc.enable()


def test_copies_of_all_passes_are_on_one_stream_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def stream(device: str) -> object:
        made.append(device)
        return object()

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    devices._side_stream.cache_clear()
    try:
        links = [Cuda(device) for device in ("cuda:0", "cuda", "cuda:0", "cuda:1", "cuda")]
    finally:
        devices._side_stream.cache_clear()
    assert made == ["cuda:0", "cuda:1"]
    assert links[0]._stream is links[2]._stream
    assert links[1]._stream is links[3]._stream is links[4]._stream
    assert [link._device for link in links] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:1"]


def test_pinned_copies_keep_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor, pin_memory: empty_like(tensor))  # noqa: ARG005
    images = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for tensor in (images, images[:, :1], torch.ones(1).expand(3)):
        pinned = Cuda(None).pin(tensor)
        assert torch.equal(pinned, tensor)
        assert pinned.stride() == tensor.clone().stride()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_gets_nothing_that_is_on_its_way(rows: fb.Dataset) -> None:
    for device in (None, "cuda:0"):
        links: list[Noting] = []
        stream = stream_to(rows, device, links)
        batches = iter(stream)
        seen = next(batches)["id"].tolist()
        while not stream._stream._active.stream.wait(0):
            time.sleep(0.01)
        seen += next(batches)["id"].tolist()
        assert is_raised_in_a_fork(fb.ClosedError, lambda batches=batches: next(batches))
        assert seen + ids_of(batches) == list(range(NUM_ROWS))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_of_a_loader_refuse_a_device_but_not_pinned_memory(rows: fb.Dataset) -> None:
    pinned = stream_to(rows, None, [])
    assert ids_of(torch.utils.data.DataLoader(pinned, None, num_workers=1)) == list(range(NUM_ROWS))
    loader = torch.utils.data.DataLoader(stream_to(rows, "cuda:0", []), None, num_workers=1)
    with pytest.raises(fb.SettingError, match="leave `device` out"):
        next(iter(loader))


@without_gpu
def test_without_a_gpu_pinned_memory_is_plain_memory_and_costs_nothing(rows: fb.Dataset) -> None:
    assert make_stages(None, pin_memory=True) == make_stages("cpu", pin_memory=True) == ()
    stream = rows.to_torch(50, pin_memory=True)
    assert stream._stream._stages == ()
    assert ids_of(stream) == list(range(NUM_ROWS))
    assert ids_of(fb.DataLoader(rows, 50, pin_memory=True)) == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", "expected a device of torch such as 'cuda', got 'gpu'"),
        (3.5, "expected a device of torch"),
        (1 << 64, "expected a device of torch"),
        ("meta", "batches are copied to 'cuda' or stay on the 'cpu', got 'meta'"),
        pytest.param("cuda", "torch finds no GPU for 'cuda'", marks=without_gpu),
    ],
)
def test_devices_that_cannot_be_are_refused(rows: fb.Dataset, device: Any, words: str) -> None:
    with pytest.raises(fb.SettingError) as raised:
        rows.to_torch(50, device=device)
    assert words in str(raised.value)


@needs_gpu
def test_batches_arrive_in_pinned_memory(rows: fb.Dataset) -> None:
    for batch in rows.to_torch(50, pin_memory=True):
        assert batch["id"].is_pinned()
        assert batch["lists"].values.is_pinned()


@needs_gpu
def test_batches_arrive_on_the_device_whole(rows: fb.Dataset) -> None:
    plain = rows.shuffle(3).to_torch(50)
    for _ in range(20):
        for batch, expected in zip(rows.shuffle(3).to_torch(50, device="cuda"), plain, strict=True):
            torch.cuda._sleep(100_000)
            assert batch["id"].is_cuda
            total = batch["id"].sum() + batch["maybe"].mask.sum()
            assert int(total) == int(expected["id"].sum() + expected["maybe"].mask.sum())
