"""Batches as pickles: whole ones and views, of every type, with their buffers in the pickle and beside it."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import arrow_types
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from equality import NUM_ROWS, check_equal, table_of
from programs import run_python

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path


def batches_of(table: pa.Table, path: Path, rows: int, *, is_shuffled: bool) -> list[Any]:
    pq.write_table(table, path, row_group_size=70)
    ds = fb.load_dataset(path, split="train")
    return list((ds.shuffle(1) if is_shuffled else ds).batches(rows))


@pytest.mark.parametrize("nulls", arrow_types.NULL_FRACTIONS)
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["in order", "shuffled"])
def test_batches_of_every_type_come_back(tmp_path: Path, nulls: str, is_shuffled: bool) -> None:
    types = arrow_types.nested() | arrow_types.nested(arrow_types.CONTAINERS)
    table = table_of(types, arrow_types.NULL_FRACTIONS[nulls])
    for batch in batches_of(table, tmp_path / "x.parquet", 31, is_shuffled=is_shuffled):
        expected = pa.table(batch)
        for protocol in (2, 4, 5):
            check_equal(pa.table(pickle.loads(pickle.dumps(batch, protocol))), expected)
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(batch, 5, buffer_callback=buffers.append)
        beside = [bytearray(buffer.raw()) for buffer in buffers]
        again = pickle.loads(pickled, buffers=beside)
        check_equal(pa.table(again), expected)
        check_equal(pa.table(copy.deepcopy(again)), expected)


def test_a_view_takes_no_more_along_than_its_rows(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{n:05}" for n in range(NUM_ROWS)], "list": [[n] * 9 for n in range(NUM_ROWS)]})
    whole, *_ = batches_of(table, tmp_path / "x.parquet", NUM_ROWS, is_shuffled=False)
    view, *_ = batches_of(table, tmp_path / "x.parquet", 7, is_shuffled=False)
    assert len(pickle.dumps(view)) < 2000 < len(pickle.dumps(whole))


def test_buffers_beside_a_pickle_are_used_where_they_are_unless_nobody_may_write_there(tmp_path: Path) -> None:
    table = pa.table({"number": np.arange(1000)})
    [batch] = batches_of(table, tmp_path / "x.parquet", 1000, is_shuffled=True)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    memory = bytearray(buffers[0].raw())
    tensor = torch.from_dlpack(pickle.loads(pickled, buffers=[memory]).column(0))
    tensor[3] = -1
    assert np.frombuffer(memory, np.int64)[3] == -1
    frozen = bytes(buffers[0].raw())
    tensor = torch.from_dlpack(pickle.loads(pickled, buffers=[frozen]).column(0))
    tensor[3] = -1
    assert frozen == bytes(buffers[0].raw())
    # As long as it is used, it stays where it is.
    kept = torch.from_dlpack(pickle.loads(pickled, buffers=[memory]).column(0))
    with pytest.raises(BufferError):
        memory.clear()
    assert kept[3] == -1
    del kept
    memory.clear()


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_buffers_may_begin_anywhere(tmp_path: Path, offset: int) -> None:
    """As slices of what a network has brought in one piece do, which may be written to."""
    table = table_of(arrow_types.nested(), 0.2)
    [batch] = batches_of(table, tmp_path / "x.parquet", NUM_ROWS, is_shuffled=True)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    beside = [memoryview(bytearray(bytes(offset) + bytes(buffer.raw())))[offset:] for buffer in buffers]
    check_equal(pa.table(pickle.loads(pickled, buffers=beside)), pa.table(batch))


def test_what_is_not_the_parts_of_a_batch_is_refused(tmp_path: Path) -> None:
    [batch] = batches_of(
        pa.table({"number": np.arange(10), "text": ["é"] * 10}), tmp_path / "x.parquet", 10, is_shuffled=True
    )
    restore, (schema, num_rows, arrays, buffers) = batch.__reduce_ex__(2)
    check_equal(pa.table(restore(schema, num_rows, arrays, buffers)), pa.table(batch))
    for wrong in (
        (schema, num_rows, arrays, buffers[:-1]),
        (schema, num_rows, arrays, [*buffers, b""]),
        (schema, num_rows, arrays[:-9], buffers),
        (schema, num_rows, b"", buffers),
        (schema, num_rows + 1, arrays, buffers),
        (schema[:-20], num_rows, arrays, buffers),
        (b"", num_rows, arrays, buffers),
        (schema, num_rows, arrays, [buffers[0], buffers[1], b"\xff" * len(buffers[2])]),
        (schema, num_rows, arrays, [buffers[0], b"\x7f" * len(buffers[1]), buffers[2]]),
    ):
        with pytest.raises(ValueError, match="not the parts of a batch"):
            restore(*wrong)
    with pytest.raises(TypeError):
        restore(schema, num_rows, arrays, [1, 2, 3])


def test_a_batch_whose_schema_is_damaged_is_refused_or_another_batch(tmp_path: Path) -> None:
    lists = pa.array([[1], [2, 3], []])
    table = pa.table({"number": [1, 2, 3], "list": lists, "time": pa.array([1, 2, 3], pa.timestamp("us", "UTC"))})
    [batch] = batches_of(table, tmp_path / "x.parquet", 3, is_shuffled=True)
    restore, (schema, *others) = batch.__reduce_ex__(2)
    num_refused = 0
    for place, byte in enumerate(schema):
        for damaged in {0, 0xFF, byte ^ 1, byte ^ 0x80} - {byte}:
            try:
                restore(schema[:place] + bytes([damaged]) + schema[place + 1 :], *others)
            except ValueError:
                num_refused += 1
    assert num_refused > len(schema)


UNPICKLING = """
import os, pickle, signal, sys, threading, warnings
import forebay as fb

warnings.simplefilter("ignore")
pickles = [open(path, "rb").read() for path in sys.argv[1:]]
stop = threading.Event()


def unpickle():
    while not stop.is_set():
        for pickled in pickles:
            pickle.loads(pickled)


thread = threading.Thread(target=unpickle)
thread.start()
statuses = set()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for pickled in pickles:
            pickle.loads(pickled)
        os._exit(0)
    statuses.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if statuses != {0}:
        break
stop.set()
thread.join()
print(statuses)
"""


def test_a_fork_unpickles_whatever_other_threads_did_meanwhile(tmp_path: Path) -> None:
    pickles = [tmp_path / f"{name}.pickle" for name in "ab"]
    for path in pickles:
        table = pa.table({f"{path.stem}{number}": np.arange(3) for number in range(50)})
        [batch] = batches_of(table, tmp_path / f"{path.stem}.parquet", 3, is_shuffled=False)
        path.write_bytes(pickle.dumps(batch))
    assert run_python(UNPICKLING, *pickles, timeout=110).strip() == "{0}"
