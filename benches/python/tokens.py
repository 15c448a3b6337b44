"""Token rows, `list<int32>[2048]`, to torch in batches of 256: the commonest work of a loader for language models.

Each reader runs in an interpreter of its own: `python tokens.py NAME FOLDER [MAX_ROWS]` prints a `harness.Measurement`.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

import harness
import pyarrow as pa
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW_TOKENS = 2048
BATCH_SIZE = 256
SEED = 7

SHUFFLE_BUFFER_ROWS = 1_000
"""The default of `datasets`. A larger one takes longer to fill, before the first batch, and not longer per batch."""


def forebay_shuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Forebay with its default shuffle."""
    import forebay as fb

    dataset = fb.load_dataset(folder, split="train").shuffle(seed=SEED)
    return (batch["tokens"] for batch in dataset.to_torch(BATCH_SIZE))


def forebay_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Forebay in the dataset's order."""
    import forebay as fb

    return (batch["tokens"] for batch in fb.load_dataset(folder, split="train").to_torch(BATCH_SIZE))


def pyarrow_batches(folder: Path) -> Iterator[torch.Tensor]:
    """A scan by hand with pyarrow, its own threads and read-ahead, whose scanner cuts the batches."""
    import pyarrow.dataset as ds

    scan = ds.dataset(folder).to_batches(columns=["tokens"], batch_size=BATCH_SIZE)
    return (_reshape(batch.column("tokens")) for batch in scan if batch.num_rows)


def pyarrow_row_groups(folder: Path) -> Iterator[torch.Tensor]:
    """The same by whole row groups, of which torch cuts the batches."""
    import pyarrow.dataset as ds

    scan = ds.dataset(folder).to_batches(columns=["tokens"])
    groups = (_reshape(batch.column("tokens")) for batch in scan if batch.num_rows)
    return (part for group in groups for part in torch.split(group, BATCH_SIZE))


def duckdb_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """DuckDB's Parquet reader, through Arrow."""
    import duckdb

    relation = duckdb.sql(f"SELECT tokens FROM '{folder}/*.parquet'")
    batches = pa.RecordBatchReader.from_stream(relation)
    return (_reshape(batch.column("tokens")) for batch in batches if batch.num_rows)


def lance_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Lance, which needs the data converted to its own format; the conversion is not timed."""
    import lance

    batches = lance.dataset(str(lance_folder(folder))).to_batches(columns=["tokens"], batch_size=BATCH_SIZE)
    return (_reshape(batch.column("tokens")) for batch in batches)


def lance_folder(folder: Path) -> Path:
    """Returns where the objects of `folder` lie as Lance writes them."""
    return folder.with_name(f"{folder.name}.lance")


def convert_to_lance(folder: Path) -> None:
    """Writes what `lance_unshuffled` reads, once."""
    import lance
    import pyarrow.dataset as ds

    target = lance_folder(folder)
    if not target.exists():
        source = ds.dataset(folder)
        lance.write_dataset(source.to_batches(), str(target), schema=source.schema)


def datasets_shuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Hugging Face `datasets`: streaming, shuffle buffer, through a DataLoader in this process."""
    return _datasets(folder, num_workers=0)


def datasets_two_workers(folder: Path) -> Iterator[torch.Tensor]:
    """The same with two worker processes."""
    return _datasets(folder, num_workers=2)


def _datasets(folder: Path, num_workers: int) -> Iterator[torch.Tensor]:
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = dataset.shuffle(seed=SEED, buffer_size=SHUFFLE_BUFFER_ROWS).with_format("torch")
    return (batch["tokens"] for batch in DataLoader(shuffled, batch_size=BATCH_SIZE, num_workers=num_workers))


def _reshape(column: pa.Array) -> torch.Tensor:
    # Values of a slice only, as `flatten` knows of offsets.
    values = column.flatten().to_numpy(zero_copy_only=True)
    return torch.frombuffer(memoryview(values), dtype=torch.int32).reshape(-1, ROW_TOKENS)


READERS = {
    "forebay, shuffled": forebay_shuffled,
    "forebay": forebay_unshuffled,
    "pyarrow by hand": pyarrow_batches,
    "pyarrow by hand, row groups": pyarrow_row_groups,
    "duckdb": duckdb_unshuffled,
    "lance (converted)": lance_unshuffled,
    "datasets, shuffled": datasets_shuffled,
    "datasets, shuffled, 2 workers": datasets_two_workers,
}

if __name__ == "__main__":
    # Arrow's memory is read-only and torch warns of that; nobody writes here.
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    harness.serve(READERS, sys.argv[1:])
