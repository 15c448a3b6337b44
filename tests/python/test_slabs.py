"""Batches that are gathered into memory of torch's: which tensors lie there, and that no slab is used twice or kept.

Plain memory of torch stands for pinned memory, which takes an accelerator.
"""

from __future__ import annotations

import decimal
import gc
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from image_data import encoded, photo
from rows import ids_of

import forebay as fb
from forebay import _lib
from forebay.devices import DeviceStage, map_tensors, over_slab

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 4000
BATCH_ROWS = 50
NUM_BATCHES = NUM_ROWS // BATCH_ROWS

SETTLED = 24
"""The number of a batch from which on most have slabs: those that were gathered before there were any are delivered."""


class Plain:
    """A link to a device that is none, with plain memory of torch's in the place of pinned memory."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self.sizes: list[int] = []
        self.places: set[tuple[int, int]] = set()
        self.alive: set[weakref.ref[torch.Tensor]] = set()
        self.most_alive = 0
        self.copied: list[torch.Tensor] = []

    def allocate(self, num_bytes: int) -> torch.Tensor:
        # What was there before is none of a batch's business.
        slab = torch.full((num_bytes,), 0xA5, dtype=torch.uint8)
        self.sizes.append(num_bytes)
        self.places.add((slab.data_ptr(), num_bytes))
        self.alive.add(weakref.ref(slab, self.alive.discard))
        self.most_alive = max(self.most_alive, len(self.alive))
        return slab

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        self.copied.append(pinned)
        return pinned.clone()

    def move_whole(self, value: Any) -> Any:
        return value

    def mark(self) -> None:
        return None

    def hand_over(self, event: None, tensors: list[torch.Tensor]) -> None:
        pass

    def slab_of(self, tensor: torch.Tensor) -> int | None:
        """Returns where the slab begins that a tensor is cut from."""
        storage = tensor.untyped_storage()
        # The memory of one that is gone may be that of another tensor by now.
        return storage.data_ptr() if (storage.data_ptr(), storage.nbytes()) in self.places else None

    def check_all_given_back(self) -> None:
        gc.collect()
        # What is released without the interpreter's lock goes when the extension is entered next.
        _lib.plan_order([1], 0)
        assert not self.alive


def slabbed(stream: Any, device: str | None = None) -> Plain:
    """Has a stream's batches go through a link, which is returned."""
    link = Plain(device)
    stream._stream._stages = (*stream._stream._stages, DeviceStage(device, lambda _: link))
    return link


def tensors_of(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(found.append, batch)
    return found


def same(left: Any, right: Any) -> bool:
    """Whether two batches have the same tensors, and the same of everything else."""
    of_left, of_right = tensors_of(left), tensors_of(right)
    return len(of_left) == len(of_right) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(a.numpy(), b.numpy(), equal_nan=True)
        for a, b in zip(of_left, of_right, strict=True)
    )


def columns() -> dict[str, Any]:
    """Returns columns of every kind, and whether the numbers of each go into slabs, as they come behind their name."""
    rng = np.random.default_rng(3)
    numbers = np.arange(NUM_ROWS)
    ragged = [rng.integers(0, 1000, k % 7).tolist() for k in range(NUM_ROWS)]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(NUM_ROWS * 5, np.float32)), 5)
    times = pa.array(numbers * 1000, pa.timestamp("ms"))
    return {
        "id": numbers,
        "int8": pa.array(numbers % 100, pa.int8()),
        "uint16": pa.array(numbers, pa.uint16()),
        "float32": pa.array(numbers / 7, pa.float32()),
        "float16": pa.array(numbers.astype(np.float16)),
        "time": times,
        "maybe": pa.array([None if k % 3 == 0 else k for k in range(NUM_ROWS)], pa.int32()),
        "fixed": fixed,
        "fixed_maybe": pa.array(
            [None if k % 9 == 0 else [k, None, 2] for k in range(NUM_ROWS)], pa.list_(pa.int64(), 3)
        ),
        "tokens": pa.array(rng.integers(0, 1 << 15, (NUM_ROWS, 16)).tolist(), pa.list_(pa.int64())),
        "ragged": pa.array(ragged, pa.list_(pa.int32())),
        "wide": pa.array([[k << 33] * (k % 5) for k in range(NUM_ROWS)], pa.large_list(pa.int64())),
        "nested": pa.array([[row, row] for row in ragged], pa.list_(pa.list_(pa.int32()))),
        "meta": pa.array([{"page": k, "score": k / 2} for k in range(NUM_ROWS)]),
        "bytes": pa.array([bytes([k % 256] * 8) for k in range(NUM_ROWS)], pa.binary(8)),
        "flag": pa.array(numbers % 2 == 0),
        "price": pa.array([decimal.Decimal(k) / 100 for k in range(NUM_ROWS)], pa.decimal128(9, 2)),
        "text": [str(k) * (k % 4) for k in range(NUM_ROWS)],
    }


IN_SLABS = {
    "id": 1,
    "int8": 1,
    "uint16": 1,
    "float32": 1,
    "float16": 1,
    "time": 1,
    "maybe": 1,
    "fixed": 1,
    "fixed_maybe": 1,
    "tokens": 1,
    "ragged": 1,
    "wide": 1,
    "nested": 1,
    "meta": 2,
    "bytes": 1,
    "flag": 0,
    "price": 0,
    "text": 0,
}
"""How many of a column's tensors are numbers as they are gathered: not masks, offsets, and what is made of bits."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    folder: Path = tmp_path_factory.mktemp("slabs")
    pq.write_table(pa.table(columns()), folder / "train.parquet", row_group_size=600)
    return fb.load_dataset(folder, split="train")


ORDERS: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "shuffled": lambda ds: ds.shuffle(5),
    "as stored": lambda ds: ds,
    "filtered": lambda ds: ds.filter("id % 7 <> 3"),
    "repeated": lambda ds: ds.shuffle(5).repeat(2),
}


@pytest.mark.parametrize("order", ORDERS)
def test_numbers_are_gathered_into_slabs_and_all_values_are_those_of_plain_batches(
    rows: fb.Dataset, order: str
) -> None:
    dataset = ORDERS[order](rows)
    stream = dataset.to_torch(BATCH_ROWS)
    link = slabbed(stream)
    num_with_slab = number = 0
    for number, (batch, expected) in enumerate(zip(stream, dataset.to_torch(BATCH_ROWS), strict=True)):
        assert same(batch, expected), number
        assert batch["text"] == expected["text"]
        slabs = {slab for tensor in tensors_of(batch) if (slab := link.slab_of(tensor)) is not None}
        assert len(slabs) <= 1, "a batch has one slab"
        if not slabs or number < SETTLED:
            continue
        num_with_slab += 1
        for name, num_tensors in IN_SLABS.items():
            found = [tensor for tensor in tensors_of(batch[name]) if link.slab_of(tensor) is not None]
            assert len(found) == num_tensors, name
            assert all(tensor.data_ptr() % 64 == 0 or not tensor.numel() for tensor in found), name
    assert num_with_slab > (number - SETTLED) // 2
    del batch, expected
    link.check_all_given_back()


def test_steps_per_epoch_and_forms_are_no_obstacle(rows: fb.Dataset) -> None:
    stream = rows.shuffle(1).to_torch(BATCH_ROWS, steps_per_epoch=60, forms={"tokens": "ragged"})
    link = slabbed(stream)
    batches = list(stream)
    assert len(batches) == 60
    assert sum(link.slab_of(batch["tokens"].values) is not None for batch in batches) > (60 - SETTLED) // 2


def test_no_slab_is_used_twice_while_anything_of_it_is_held(rows: fb.Dataset) -> None:
    dataset = rows.shuffle(2).select_columns(["id", "fixed", "ragged"])
    stream = dataset.to_torch(BATCH_ROWS)
    link = slabbed(stream)
    batches = list(stream)
    begins = [{link.slab_of(tensor) for tensor in tensors_of(batch)} - {None} for batch in batches]
    used = [begin for of_batch in begins for begin in of_batch]
    assert len(used) == len(set(used)) > (NUM_BATCHES - SETTLED) // 2
    # One tensor holds the slab of all, and nothing was written over it.
    kept = [batch["id"] for batch in batches]
    expected = [batch["id"] for batch in dataset.to_torch(BATCH_ROWS)]
    del batches
    gc.collect()
    ids_of(stream)
    assert all(torch.equal(left, right) for left, right in zip(kept, expected, strict=True))
    del kept
    link.check_all_given_back()


def test_a_loop_that_holds_nothing_needs_few_slabs_and_leaves_none(rows: fb.Dataset) -> None:
    stream = rows.shuffle(2).select_columns(["id", "fixed"]).to_torch(BATCH_ROWS)
    link = slabbed(stream)
    for epoch in range(200):
        stream.set_epoch(epoch)
        assert sum(len(batch["id"]) for batch in stream) == NUM_ROWS
    assert len(link.sizes) > 200 * NUM_BATCHES // 2
    # Those that wait, those of batches that are ready, taken or moved, and those that wait to be released.
    assert link.most_alive <= 64
    link.check_all_given_back()


def test_loops_that_end_early_give_all_slabs_back(rows: fb.Dataset) -> None:
    for num_taken in (1, 2, 30):
        stream = rows.shuffle(2).to_torch(BATCH_ROWS)
        link = slabbed(stream)
        batches: Any = iter(stream)
        taken = [next(batches) for _ in range(num_taken)]
        batches.close()
        assert [len(batch["id"]) for batch in taken] == [BATCH_ROWS] * num_taken
        del batches, taken, stream
        link.check_all_given_back()


def test_a_state_is_that_of_the_loop(rows: fb.Dataset) -> None:
    whole = ids_of(rows.shuffle(4).to_torch(BATCH_ROWS))
    for cut in (1, 17, 50):
        stream, later = rows.shuffle(4).to_torch(BATCH_ROWS), rows.shuffle(4).to_torch(BATCH_ROWS)
        slabbed(stream)
        slabbed(later)
        batches = iter(stream)
        before = [i for _ in range(cut) for i in next(batches)["id"].tolist()]
        later.load_state_dict(stream.state_dict())
        assert before + ids_of(later) == whole


def test_batches_go_to_a_device_from_their_slabs(rows: fb.Dataset) -> None:
    dataset = rows.shuffle(3).select_columns(["id", "fixed"])
    stream = dataset.to_torch(BATCH_ROWS)
    link = slabbed(stream, "cuda:0")
    for batch, expected in zip(stream, dataset.to_torch(BATCH_ROWS), strict=True):
        assert same(batch, expected)
    assert sum(link.slab_of(pinned) is not None for pinned in link.copied) > NUM_BATCHES - SETTLED


@pytest.mark.parametrize("shuffled", [False, True])
def test_padded_lists_are_laid_out_in_slabs(rows: fb.Dataset, shuffled: bool) -> None:
    dataset = rows.select_columns(["id", "ragged", "tokens"])
    dataset = dataset.shuffle(3) if shuffled else dataset
    padding = fb.Pad(columns=["ragged", "tokens"])
    stream = dataset.to_torch(BATCH_ROWS, padding=padding)
    link = slabbed(stream)
    num_with_slab = 0
    for batch, expected in zip(stream, dataset.to_torch(BATCH_ROWS, padding=padding), strict=True):
        assert same(batch, expected)
        num_here = sum(link.slab_of(tensor) is not None for tensor in batch.values())
        assert num_here in (0, len(batch))
        num_with_slab += num_here > 0
    assert num_with_slab > (NUM_BATCHES - SETTLED) // 2


def test_images_are_decoded_into_slabs(tmp_path: Path) -> None:
    images = [encoded(photo(40 + k % 5, 30, k), "JPEG") for k in range(10)]
    table = pa.table({"id": np.arange(400), "image": pa.array([images[k % 10] for k in range(400)], pa.binary())})
    pq.write_table(table, tmp_path / "train.parquet")
    dataset = fb.load_dataset(tmp_path, split="train").shuffle(1)
    for on_error in ("raise", "skip"):
        decode = {"image": fb.Image(size=(16, 16), crop="random", on_error=on_error)}
        stream = dataset.to_torch(8, decode=decode)
        link = slabbed(stream)
        num_with_slab = 0
        for batch, expected in zip(stream, dataset.to_torch(8, decode=decode), strict=True):
            assert same(batch, expected)
            num_with_slab += link.slab_of(batch["image"]) is not None
        assert num_with_slab > (50 - SETTLED) // 2 if on_error == "raise" else num_with_slab == 0


def test_a_batch_that_needs_more_than_its_slab_is_whole_all_the_same(tmp_path: Path) -> None:
    lengths = [3] * 2000 + [3000] * 300 + [3] * 1000
    table = pa.table({"id": np.arange(len(lengths)), "tokens": [[k] * length for k, length in enumerate(lengths)]})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=500)
    dataset = fb.load_dataset(tmp_path, split="train")
    stream = dataset.to_torch(BATCH_ROWS)
    link = slabbed(stream)
    for batch, expected in zip(stream, dataset.to_torch(BATCH_ROWS), strict=True):
        assert same(batch, expected)
    assert link.sizes == sorted(link.sizes), "a slab serves for the largest batch so far"
    assert link.sizes[-1] >= BATCH_ROWS * 3000 * 8


def test_what_functions_return_is_copied_and_no_slab_is_made(rows: fb.Dataset) -> None:
    stream = rows.select_columns("id").map(lambda batch: {"id": batch["id"] + 1}, batched=True).to_torch(BATCH_ROWS)
    link = slabbed(stream)
    assert ids_of(stream) == list(range(1, NUM_ROWS + 1))
    assert link.sizes == []


def test_packed_batches_are_copied(rows: fb.Dataset) -> None:
    def packed() -> Any:
        return rows.to_torch(2, pack=fb.Pack(length=64, columns=["ragged"]))

    stream = packed()
    link = slabbed(stream)
    assert all(same(batch, expected) for batch, expected in zip(stream, packed(), strict=True))
    assert link.sizes == []


def test_a_stream_that_nobody_supplies_hands_out_what_was_decoded(rows: fb.Dataset) -> None:
    batches = list(rows.select_columns("id").to_torch(BATCH_ROWS))
    spans = {batch["id"].data_ptr() - batch["id"][0].item() * 8 for batch in batches}
    assert len(spans) < len(batches) / 2, "batches in the order of the dataset are views of its parts"


def test_a_stream_whose_loop_began_can_be_pickled(rows: fb.Dataset) -> None:
    stream = rows.select_columns("id").to_torch(BATCH_ROWS, pin_memory=True)
    slabbed(stream)
    assert ids_of(stream) == list(range(NUM_ROWS))
    stream._stream._stages = (DeviceStage(None),)
    assert isinstance(pickle.loads(pickle.dumps(stream))._stream._stages[0], DeviceStage)


def test_tensors_of_any_shape_are_cut_from_their_slab() -> None:
    slab = torch.empty(4096, dtype=torch.uint8)
    slabs = [(slab.data_ptr(), slab.data_ptr() + slab.numel(), slab)]
    for dtype in (np.int8, np.float16, np.int32, np.float64, np.bool_):
        numbers = np.frombuffer(slab.numpy().data, dtype, 64, 128).reshape(4, 4, 4).transpose(0, 2, 1)
        tensor = torch.from_numpy(numbers)
        tensor.fill_(1)
        with torch.inference_mode():
            found = over_slab(tensor, slabs)
        assert found is not None
        assert torch.equal(found, tensor)
        assert found.stride() == tensor.stride()
        assert (found.dtype, found.data_ptr()) == (tensor.dtype, tensor.data_ptr())
        assert found.untyped_storage().data_ptr() == slab.data_ptr()
    assert over_slab(torch.ones(3), slabs) is None
    assert over_slab(torch.empty(0), slabs) is None


def test_memory_without_an_address_is_refused(rows: fb.Dataset) -> None:
    stream = rows.to_torch(1)._stream
    native = stream.reader.stream(0, stream._native_share())
    with pytest.raises(ValueError, match="no memory"):
        native.supply(0, 64, object())
    native.close()
