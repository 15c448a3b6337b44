"""Batches in memory that two processes share, which a stream gathers them into."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import arrow_types
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from equality import check_equal, table_of
from programs import descriptors

import forebay as fb
from forebay import _lib
from forebay.pool.memory import LEAST_BLOCK_BYTES, Inbox, Outbox
from forebay.pool.ordered import Done, Ordered
from forebay.stages import MOST_TAKEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.stages import Batches, Pass
    from forebay.transforms import Rows


class Crew:
    """Passes batches from one end of shared memory to the other, both in this process."""

    setting, num_workers, capacity, num_skipped = "map", 1, 4, 0
    has_begun = is_short = True

    def __init__(self) -> None:
        self.outbox, self.inbox = Outbox(), Inbox(8)
        self.supplied: list[bool] = []
        """Whether each batch was gathered into a block."""
        self._done: list[Done] = []

    def begin(self, batches: Batches, this: Pass) -> Batches:
        return Ordered(batches, self, this, None)

    def supply(self, stream: Any) -> None:
        self.outbox.supply(stream)

    def give(self, value: Any, rows: Rows) -> int:  # noqa: ARG002 - as of other crews
        num_supplied = len(self.outbox._supplied)
        parcel, file = self.outbox.pack(value)
        self.supplied.append(len(self.outbox._supplied) < num_supplied)
        self.inbox.forget(self.outbox.take_given_up())
        if file is not None:
            self.inbox.add(parcel, file)
        self._done.append(Done(len(self.supplied), self.inbox.open(parcel), None))
        return len(self.supplied)

    def collect(self, seconds: float) -> Iterator[Done]:  # noqa: ARG002
        done, self._done = self._done, []
        self.outbox.take_back(self.inbox.return_unused())
        return iter(done)

    def describe(self, number: int) -> str:
        return f"batch {number}"

    def abandon(self) -> None:
        self._done = []

    def close(self) -> None:
        self.outbox.close()


@contextlib.contextmanager
def through_blocks(stream: Any) -> Iterator[Crew]:
    """Makes a stream's batches pass through shared memory."""
    crew = Crew()
    stream._hands_over_batches, stream._stages = True, (crew,)
    with contextlib.closing(crew):
        yield crew


def written(table: pa.Table, path: Path) -> fb.Dataset:
    pq.write_table(table, path, row_group_size=70)
    return fb.load_dataset(path, split="train")


@pytest.mark.parametrize("nulls", arrow_types.NULL_FRACTIONS)
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["in order", "shuffled"])
def test_batches_of_every_type_arrive(tmp_path: Path, nulls: str, is_shuffled: bool) -> None:
    types = arrow_types.nested() | arrow_types.nested(arrow_types.CONTAINERS)
    whole = written(table_of(types, arrow_types.NULL_FRACTIONS[nulls]), tmp_path / "x.parquet")
    # Together, of which some are in blocks and others are not, and some alone.
    for columns in (whole.column_names, *([name] for name in whole.column_names[::7])):
        chosen = whole.select_columns(columns)
        ds = chosen.shuffle(1) if is_shuffled else chosen
        expected = [pa.table(batch) for batch in ds.batches(31)]
        stream = ds.batches(31)
        with through_blocks(stream):
            for _ in range(2):
                # Read later: a block that was written over would show.
                found = [pa.table(batch) for batch in stream]
                assert len(found) == len(expected)
                for one, other in zip(found, expected, strict=True):
                    check_equal(one, other)
                stream.set_epoch(0)


@pytest.mark.parametrize("is_shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize(
    "column",
    {
        "numbers": pa.array(np.arange(4000)),
        "lists": pa.array([[n] * 100 for n in range(4000)]),
        "fixed": pa.array([[n] * 10 for n in range(4000)], pa.list_(pa.float32(), 10)),
        "with NULLs": pa.array([n if n % 3 else None for n in range(4000)]),
    }.items(),
    ids=lambda column: column[0],
)
def test_a_stream_gathers_into_blocks(tmp_path: Path, column: tuple[str, pa.Array], is_shuffled: bool) -> None:
    ds = written(pa.table({"column": column[1]}), tmp_path / "x.parquet")
    stream = (ds.shuffle(1) if is_shuffled else ds).batches(32)
    with through_blocks(stream) as crew:
        list(stream)
        stream.set_epoch(1)
        list(stream)
    assert len(crew.supplied) == 250
    # Not at the beginning, when nobody knows yet how large batches are, and not while threads wait for no loop.
    assert sum(crew.supplied) >= MOST_TAKEN


def test_epochs_need_no_more_blocks(tmp_path: Path) -> None:
    stream = written(pa.table({"n": np.arange(4000)}), tmp_path / "x.parquet").shuffle(1).batches(40)
    with through_blocks(stream) as crew:
        for epoch in range(150):
            stream.set_epoch(epoch)
            batches = iter(stream)
            for _ in range(100 if epoch % 3 else 7):  # every third is left in the middle
                next(batches)
            batches.close()
        # Some thirty are in use at most: with the stream, waiting for it, taken from it, and with the crew. How soon
        # that many are depends on how the threads happen to run.
        assert crew.outbox._num_made <= 5 * MOST_TAKEN


def test_what_the_loop_keeps_counts_and_what_waits_for_the_stream_does_not(tmp_path: Path) -> None:
    stream = written(pa.table({"n": np.arange(4000)}), tmp_path / "x.parquet").shuffle(1).batches(100)
    with through_blocks(stream) as crew:
        list(stream)
        assert crew.outbox._supplied
        assert crew.outbox.num_lent == 0


def test_larger_batches_come_in_larger_blocks(tmp_path: Path) -> None:
    lists = [[n] * (4000 if n >= 1000 else 40) for n in range(2000)]
    ds = written(pa.table({"list": lists}), tmp_path / "x.parquet")
    stream = ds.batches(20)
    with through_blocks(stream) as crew:
        found = [n for batch in stream for n in pa.table(batch)["list"].combine_chunks().flatten().to_numpy()[::40]]
    assert found == [n for n in range(2000) for _ in range(1 if n < 1000 else 100)]
    assert max(block.num_bytes for block in crew.outbox._blocks.values()) >= 20 * 4000 * 8
    assert any(crew.supplied[-MOST_TAKEN:])


def parts_of(batch: Any) -> _lib.Parts:
    parts = batch.take_apart()
    assert parts is not None
    return parts


def test_a_block_says_itself_what_is_in_it(tmp_path: Path) -> None:
    [batch] = written(pa.table({"n": np.arange(40), "text": ["é"] * 40}), tmp_path / "x.parquet").batches(40)
    parts = parts_of(batch)
    block = bytearray(parts.num_bytes)
    assert parts.write(block) == len(block)
    check_equal(pa.table(_lib.Batch.from_block(block)), pa.table(batch))
    assert parts.write(bytearray(len(block) - 1)) is None
    assert parts.write(bytearray()) is None
    for wrong in (bytes(10), memoryview(bytearray(100))[::2], 3):
        with pytest.raises((BufferError, TypeError)):
            parts.write(wrong)
    for end in range(0, len(block), 5):
        with pytest.raises(ValueError, match="not the parts of a batch"):
            _lib.Batch.from_block(bytes(block[:end]))
    # Whatever stands there, it is refused or another batch. Damaged schemas are those of pickled batches, too.
    schema = batch.__reduce_ex__(2)[1][0]
    begin = block.index(schema)
    for place in (*range(begin), *range(begin + len(schema), len(block))):
        for byte in (0, 0xFF):
            changed = bytearray(block)
            changed[place] = byte
            with contextlib.suppress(ValueError):
                assert len(pa.table(_lib.Batch.from_block(changed))) == 40


def test_the_memory_of_a_block_is_that_of_its_batch(tmp_path: Path) -> None:
    [batch] = written(pa.table({"n": np.arange(1000)}), tmp_path / "x.parquet").batches(1000)
    block = bytearray(1 << 14)
    num_bytes = parts_of(batch).write(block)
    assert num_bytes is not None
    tensor = torch.from_dlpack(_lib.Batch.from_block(memoryview(block)[:num_bytes]).column(0))
    tensor[3] = -1
    assert np.frombuffer(block, np.int64)[3] == -1
    with pytest.raises(BufferError):
        block.clear()


@pytest.mark.parametrize("num_readers", [1, 2, 3])
def test_each_reader_gets_the_file_of_a_block_once(num_readers: int) -> None:
    num_open = descriptors()
    outbox = Outbox(num_readers)
    inboxes = [Inbox(2) for _ in range(num_readers)]
    for turn in range(3 * num_readers):
        reader = turn % num_readers
        parcel, file = outbox.pack(np.full(10_000, turn), reader)
        assert (file is not None) == (turn < num_readers)
        if file is not None:
            inboxes[reader].add(parcel, file)
        assert (inboxes[reader].open(parcel) == turn).all()
        outbox.take_back(inboxes[reader].return_unused())
    assert outbox._num_made == 1
    # A larger one replaces it; those who know it are told.
    outbox.pack(np.zeros(100_000), 0)
    assert [outbox.take_given_up(reader) for reader in range(num_readers)] == [(0,)] * num_readers
    assert [outbox.take_given_up(reader) for reader in range(num_readers)] == [()] * num_readers
    for inbox in inboxes:
        inbox.forget([0])
    outbox.close()
    del outbox, inboxes, inbox
    # One of a map that is still open here, and one that was sent to nobody.
    assert descriptors() <= num_open + 1


def test_who_never_got_a_block_is_not_told_of_its_end() -> None:
    outbox = Outbox(2)
    outbox.take_back([outbox.pack(bytes(LEAST_BLOCK_BYTES), 1)[0].block or 0])
    outbox.pack(bytes(10 * LEAST_BLOCK_BYTES), 0)
    assert [outbox.take_given_up(reader) for reader in (0, 1)] == [(), (0,)]
    outbox.close()


TYPES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*TYPES, torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(600,), (30, 20), (2, 0), (0, 3), (1, 600, 1)], ids=str)
def test_tensors_keep_type_shape_and_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    outbox, inbox = Outbox(), Inbox(2)
    sent = torch.arange(1200).reshape(-1)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    parcel, file = outbox.pack({"tensor": sent})
    if file is not None:
        inbox.add(parcel, file)
    found = inbox.open(parcel)["tensor"]
    assert (found.dtype, found.shape, found.stride()) == (sent.dtype, sent.shape, sent.stride())
    assert torch.equal(found, sent)
    if sent.nbytes >= 512:
        assert found.data_ptr() == next(iter(inbox._blocks.values())).address
        found[0] = 0
    outbox.close()
