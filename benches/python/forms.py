"""Turns Arrow data into the batches of a case as a careful user would: copies only what must be copied."""

from __future__ import annotations

import hashlib
import warnings
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cases import Case

    Batch = dict[str, Any]

# Torch warns that Arrow's memory is read-only; nothing is written here.
warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")

CHECKED_STRIDE = 64


def cut(rows: pa.RecordBatch | pa.Table, case: Case) -> Iterator[Batch]:
    """Yields Arrow rows in batches of the case's size."""
    if isinstance(rows, pa.Table):
        for part in rows.to_batches():
            yield from cut(part, case)
    elif rows.num_rows <= case.batch_size:
        if rows.num_rows:
            yield of_arrow(rows, case)
    elif case.form == "tensor":
        # The tensor of all rows is a view, and its parts are views too.
        for name, tensor in of_arrow(rows, case).items():
            yield from ({name: part} for part in torch.split(tensor, case.batch_size))
    elif case.form == "masked":
        columns = of_arrow(rows, case)
        for first in range(0, rows.num_rows, case.batch_size):
            some = slice(first, first + case.batch_size)
            yield {name: (values[some], mask[some]) for name, (values, mask) in columns.items()}
    else:
        for first in range(0, rows.num_rows, case.batch_size):
            yield of_arrow(rows.slice(first, case.batch_size), case)


def of_arrow(rows: pa.RecordBatch, case: Case) -> Batch:
    """Returns Arrow rows in the form of the case."""
    match case.form:
        case "tensor":
            return {name: matrix(rows.column(name), case.width) for name in case.columns}
        case "strings":
            return {"text": rows.column("text").to_pylist(), "score": _tensor(rows.column("score"))}
        case "bytes":
            return {"text": ragged(rows.column("text")), "score": _tensor(rows.column("score"))}
        case "masked":
            return {name: masked(rows.column(name)) for name in case.columns}


def matrix(column: pa.Array, width: int) -> torch.Tensor:
    """Returns a column of lists of one length as a tensor that shares their memory."""
    # `flatten` respects the offset of a slice and returns only its values.
    return _tensor(column.flatten()).reshape(-1, width)


def ragged(column: pa.Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a column of strings as bytes and offsets that begin at 0."""
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    dtype = np.int64 if pa.types.is_large_string(column.type) else np.int32
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype)[column.offset : column.offset + len(column) + 1]
    values = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return torch.from_numpy(values), torch.from_numpy(ends - ends[0])


def masked(column: pa.Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a column of numbers as values and mask."""
    mask = torch.from_numpy(column.is_valid().to_numpy(zero_copy_only=False))
    dtype = column.type.to_pandas_dtype()
    # The values under NULLs may be anything, so the values need no copy.
    values = np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]
    return torch.from_numpy(values), mask


def _tensor(column: pa.Array) -> torch.Tensor:
    return torch.from_numpy(column.to_numpy(zero_copy_only=True))


def num_rows(batch: Batch) -> int:
    """Returns the rows of a batch in any form."""
    [name, *_] = batch if "score" not in batch else ["score"]
    column = batch[name]
    return len(column[0] if isinstance(column, tuple) else column)


def checksum(batch: Batch, case: Case) -> int:
    """Returns a cheap sum that depends on every row, so that readers cannot deliver rows lazily and never load them."""
    match case.form:
        case "tensor":
            [tensor] = batch.values()
            return int(_bits(tensor)[:, ::CHECKED_STRIDE].sum(dtype=torch.int64))
        case "strings":
            return sum(map(len, batch["text"]))
        case "bytes":
            return int(batch["text"][1][-1] - batch["text"][1][0])
        case "masked":
            return sum(int((batch[name][0] * batch[name][1]).sum(dtype=torch.int64)) for name in ("number_02",))


def digests(batch: Batch, case: Case) -> Any:
    """Returns a number for each row that depends on all its values and their positions."""
    match case.form:
        case "tensor":
            [tensor] = batch.values()
            return _weighted(_bits(tensor).numpy())
        case "strings":
            texts = [value.encode() for value in batch["text"]]
        case "bytes":
            values, offsets = batch["text"]
            data, ends = values.numpy().tobytes(), offsets.tolist()
            texts = [data[start:end] for start, end in pairwise(ends)]
        case "masked":
            columns = [_masked_bits(*batch[name]) for name in case.columns]
            return _weighted(np.stack(columns, axis=1))
    found = np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts))
    scores = batch["score"].contiguous().to(torch.float64).view(torch.int64).numpy().astype(np.uint64)
    return found * np.uint64(31) + scores


def of_rows(found: list[Any]) -> str:
    """Returns an order-independent digest of all rows from the results of `digests`."""
    rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.uint64)
    return hashlib.sha256(rows.tobytes()).hexdigest()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bits of floats as integers."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def _masked_bits(values: torch.Tensor, mask: torch.Tensor) -> Any:
    width = {4: torch.int32, 8: torch.int64}[values.element_size()]
    bits = values.contiguous().view(width).to(torch.int64)
    # NULL counts as one fixed number, whatever value is under it.
    return torch.where(mask, bits, torch.full_like(bits, 7919)).numpy()


def _weighted(rows: Any) -> Any:
    """Returns for each row the sum of its items multiplied by odd numbers, modulo 2^64."""
    weights = np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (rows.astype(np.int64).astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
