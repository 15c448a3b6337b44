"""Columns as tensors: which types, which shapes, whose memory, and what is refused before the first batch."""

from __future__ import annotations

import datetime as dt
import gc
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 500
BATCH = 64


def opened(folder: Path, table: pa.Table, **options: object) -> fb.Dataset:
    pq.write_table(table, folder / "rows.parquet", row_group_size=120, **options)
    return fb.load_dataset(folder, split="train")


def numbers(kind: np.dtype | str, *shape: int) -> np.ndarray:
    """Random values over the whole range of a type."""
    rng = np.random.default_rng(7)
    kind = np.dtype(kind)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        return rng.normal(size=shape).astype(kind)
    limits = np.iinfo(kind)
    values = rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
    values.reshape(-1)[:2] = limits.min, limits.max
    return values


FLAT = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
}


def joined(ds: fb.Dataset, name: str = "x") -> torch.Tensor:
    return torch.cat([batch[name] for batch in ds.to_torch(BATCH)])


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize(("kind", "expected"), FLAT.items(), ids=FLAT)
def test_numbers_keep_their_type_and_values(tmp_path, kind, expected, shuffled):
    values = numbers(kind, NUM_ROWS)
    ds = opened(tmp_path, pa.table({"x": values, "id": np.arange(NUM_ROWS)}))
    if not shuffled:
        got = joined(ds)
        assert (got.dtype, got.shape) == (expected, (NUM_ROWS,))
        assert np.array_equal(got.numpy(), values)
        return
    seen = 0
    for batch in ds.shuffle(3).to_torch(BATCH):
        assert np.array_equal(batch["x"].numpy(), values[batch["id"].numpy()])
        seen += len(batch["id"])
    assert seen == NUM_ROWS


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.date32(), torch.int32),
        (pa.timestamp("ms"), torch.int64),
        (pa.timestamp("us"), torch.int64),
        (pa.timestamp("ns"), torch.int64),
        (pa.timestamp("us", tz="Europe/Berlin"), torch.int64),
        (pa.time32("ms"), torch.int32),
        (pa.time64("us"), torch.int64),
        (pa.duration("us"), torch.int64),
    ],
    ids=str,
)
def test_times_are_integers_in_their_unit(tmp_path, kind, expected):
    values = np.arange(NUM_ROWS, dtype=np.int32 if expected == torch.int32 else np.int64) * 1000
    storage = pa.array(values)
    ds = opened(tmp_path, pa.table({"x": storage.cast(kind) if kind != pa.duration("us") else storage.view(kind)}))
    got = joined(ds)
    assert got.dtype == expected
    assert np.array_equal(got.numpy(), values)


def list_array(values: np.ndarray, kind: str) -> pa.Array:
    flat = pa.array(values.reshape(-1))
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    offsets = np.arange(len(values) + 1) * values.shape[1]
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), flat)


@pytest.mark.parametrize("filtered", [False, True], ids=["whole", "filtered"])
@pytest.mark.parametrize("element", ["int32", "uint8", "float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("kind", ["fixed", "list", "large list"])
def test_lists_of_one_length_are_matrices(tmp_path, kind, element, filtered):
    values = numbers(element, NUM_ROWS, 16)
    ds = opened(tmp_path, pa.table({"x": list_array(values, kind), "id": np.arange(NUM_ROWS)}))
    if filtered:
        ds, values = ds.filter("id % 3 = 1"), values[1::3]
    got = joined(ds)
    assert (got.dtype, got.shape) == (FLAT[element], (len(values), 16))
    assert np.array_equal(got.numpy(), values)
    for batch in ds.shuffle(1).to_torch(BATCH):
        rows = batch["id"].numpy() // (3 if filtered else 1)
        assert np.array_equal(batch["x"].numpy(), values[rows])


@pytest.mark.parametrize("inner", ["fixed", "list"])
def test_fixed_lists_of_lists_are_tensors_of_three_dimensions(tmp_path, inner):
    values = numbers("float32", NUM_ROWS, 6)
    rows = list_array(values, inner)
    ds = opened(tmp_path, pa.table({"x": pa.FixedSizeListArray.from_arrays(rows, 4)}))
    got = torch.cat([batch["x"] for batch in ds.to_torch(BATCH, forms={"x": "tensor"})])
    assert got.shape == (NUM_ROWS // 4, 4, 6)
    assert np.array_equal(got.numpy(), values.reshape(-1, 4, 6))


def values_address(column: pa.Array) -> int:
    """The address of the first value, however the column is nested."""
    while pa.types.is_nested(column.type):
        column = column.flatten()
    return column.buffers()[1].address + column.offset * column.type.bit_width // 8


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("name", ["int", "half", "double", "when", "fixed", "list"])
def test_arrow_dlpack_torch_and_numpy_share_one_memory(tmp_path, name, shuffled):
    ints = numbers("int32", NUM_ROWS, 8)
    table = pa.table(
        {
            "int": numbers("int64", NUM_ROWS),
            "half": numbers("float16", NUM_ROWS),
            "double": numbers("float64", NUM_ROWS),
            "when": pa.array(range(NUM_ROWS), pa.timestamp("us")),
            "fixed": list_array(ints, "fixed"),
            "list": list_array(ints, "list"),
        }
    )
    ds = opened(tmp_path, table)
    count = 0
    for batch in (ds.shuffle(1) if shuffled else ds).batches(BATCH):
        index = batch.column_names.index(name)
        column = pa.record_batch(batch).column(index)
        tensor = torch.from_dlpack(batch.column(index))
        array = np.from_dlpack(batch.column(index))
        expected = values_address(column)
        assert tensor.data_ptr() == array.ctypes.data == expected
        if name in ("int", "half", "double"):
            assert column.buffers()[1].address == expected
        assert np.array_equal(tensor.numpy(), array)
        assert batch.column(index).__dlpack_device__() == (1, 0)
        count += len(array)
    assert count == NUM_ROWS


def test_the_tensors_of_a_torch_batch_are_aligned_and_contiguous(tmp_path):
    ds = opened(
        tmp_path, pa.table({"x": numbers("float32", NUM_ROWS), "y": list_array(numbers("int16", NUM_ROWS, 3), "list")})
    )
    for batch in ds.shuffle(2).to_torch(37):
        for tensor in batch.values():
            assert tensor.is_contiguous()
            assert tensor.data_ptr() % tensor.element_size() == 0


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_tensors_outlive_batch_stream_and_dataset_and_can_be_written(tmp_path, shuffled):
    values = numbers("int64", NUM_ROWS)
    ds = opened(tmp_path, pa.table({"x": values, "id": np.arange(NUM_ROWS)}))
    ds = ds.shuffle(9) if shuffled else ds
    stream = ds.to_torch(BATCH)
    batches = list(stream)
    del ds, stream
    gc.collect()
    churn = [torch.full((BATCH,), -1) for _ in range(500)]
    for batch in batches:
        assert np.array_equal(batch["x"].numpy(), values[batch["id"].numpy()])
    first, second = batches[0]["x"], batches[1]["x"].clone()
    first += 1
    first.zero_()
    assert int(first.abs().sum()) == 0
    assert torch.equal(batches[1]["x"], second)
    assert churn[0][0] == -1


QUERIES = {
    "two names": "SELECT id, x, x AS y, tokens, tokens AS labels FROM dataset",
    "a field": "SELECT id, s, s['a'] AS a FROM dataset",
    "a cast to its own type": "SELECT id, x, CAST(x AS BIGINT) AS y FROM dataset",
    "kept values": "SELECT id, row_number() OVER (ORDER BY x DESC) AS place FROM dataset",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_what_is_written_to_a_tensor_is_in_no_other_column_and_no_later_epoch(tmp_path, query):
    rows = np.arange(NUM_ROWS)
    table = pa.table(
        {
            "id": rows,
            "x": rows,
            "tokens": list_array(np.stack([rows, rows], 1), "list"),
            "s": [{"a": row} for row in rows.tolist()],
        }
    )
    stream = opened(tmp_path, table).sql(query).to_torch(BATCH)

    def tensor_of(column):
        column = column["a"] if isinstance(column, dict) else column
        return column.values if isinstance(column, fb.Masked) else column

    def written(batch):
        """The values of all columns, each read before and overwritten after the one before it."""
        seen = {}
        for name, column in batch.items():
            tensor = tensor_of(column)
            seen[name] = tensor.tolist()
            tensor.fill_(-1)
        return seen

    expected = [{name: tensor_of(column).tolist() for name, column in batch.items()} for batch in stream]
    assert [written(batch) for batch in stream] == expected
    assert [written(batch) for batch in stream] == expected


def test_a_tensor_of_one_batch_outlives_the_batch_alone(tmp_path):
    ds = opened(tmp_path, pa.table({"x": numbers("int32", NUM_ROWS)}))
    stream = iter(ds.batches(BATCH))
    column = next(stream).column(0)
    tensor = torch.from_dlpack(column)
    expected = tensor.clone()
    del column
    stream.close()
    gc.collect()
    assert torch.equal(tensor, expected)


def test_tensors_can_be_pinned_shared_and_kept_by_autograd(tmp_path):
    ds = opened(tmp_path, pa.table({"x": numbers("float32", NUM_ROWS)}))
    batch = next(iter(ds.to_torch(BATCH)))["x"]
    weight = torch.ones(BATCH, requires_grad=True)
    (batch * weight).sum().backward()
    assert torch.equal(weight.grad, batch)


def test_dlpack_refuses_what_it_cannot_do(tmp_path):
    ds = opened(tmp_path, pa.table({"x": [1, 2], "lang": ["a", "b"]}))
    column = next(iter(ds.batches(2))).column(0)
    with pytest.raises(BufferError, match="memory"):
        column.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy"):
        column.__dlpack__(copy=True)
    with pytest.raises(IndexError):
        next(iter(ds.batches(2))).column(2)
    with pytest.raises(fb.TensorError, match="`lang`"):
        next(iter(ds.batches(2))).column(1).__dlpack__()


def test_unconsumed_capsules_free_their_memory(tmp_path):
    ds = opened(tmp_path, pa.table({"x": [1, 2, 3]}))
    column = next(iter(ds.batches(3))).column(0)
    for version in (None, (1, 0)):
        for _ in range(1000):
            column.__dlpack__(max_version=version)
    assert torch.from_dlpack(column).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_strings_and_bytes_are_lists_with_none(tmp_path, kind):
    words = ["", "a", "日本語 🦀", None, "null", "a\0b", "x" * 5000] * 60
    values = words if "string" in str(kind) else [None if word is None else word.encode() + b"\xff" for word in words]
    ds = opened(tmp_path, pa.table({"x": pa.array(values, kind), "id": range(len(values))}))
    got = [value for batch in ds.to_torch(BATCH) for value in batch["x"]]
    assert got == values
    for batch in ds.shuffle(4).to_torch(BATCH):
        assert isinstance(batch["x"], list)
        assert batch["x"] == [values[i] for i in batch["id"]]


def test_batches_are_dicts_in_the_order_of_the_columns(tmp_path):
    ds = opened(tmp_path, pa.table({"b": [1], "a": ["x"], "c": [1.5]}))
    assert list(next(iter(ds.to_torch(1)))) == ["b", "a", "c"]
    assert list(next(iter(ds.select_columns(["c", "a"]).to_torch(1)))) == ["c", "a"]


def test_dates_before_the_epoch_are_negative(tmp_path):
    ds = opened(tmp_path, pa.table({"x": [dt.date(1969, 12, 30)]}))
    assert joined(ds).tolist() == [-2]
