"""Token rows, `list<int32>[2048]`, to torch in batches: the commonest work of a loader for language models."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW_TOKENS = 2048
VOCABULARY = 50_000
ROW_GROUP_ROWS = 1000
NUM_OBJECTS = 8
BATCH_SIZE = 256
SEED = 7


def write(folder: Path, num_rows: int) -> None:
    """Writes the objects that all readers read, once: zstd, with page index, an ordinary writer."""
    done = folder / ".complete"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Words are not drawn evenly from a language, and evenly drawn tokens would not compress.
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    bounds = np.cumsum(weights / weights.sum())
    schema = pa.schema({"tokens": pa.list_(pa.int32())})
    for index in range(NUM_OBJECTS):
        rng = np.random.default_rng([SEED, index])
        first, last = (num_rows * i // NUM_OBJECTS for i in (index, index + 1))
        with pq.ParquetWriter(
            folder / f"train-{index:05}.parquet", schema, compression="zstd", write_page_index=True
        ) as writer:
            for start in range(first, last, ROW_GROUP_ROWS):
                length = min(ROW_GROUP_ROWS, last - start)
                values = np.searchsorted(bounds, rng.random(length * ROW_TOKENS)).astype(np.int32)
                offsets = np.arange(0, (length + 1) * ROW_TOKENS, ROW_TOKENS, dtype=np.int32)
                writer.write_table(pa.table({"tokens": pa.ListArray.from_arrays(offsets, values)}, schema=schema))
    done.touch()


def forebay_shuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Forebay with its default shuffle."""
    import forebay as fb

    dataset = fb.load_dataset(folder, split="train").shuffle(seed=SEED)
    return (batch["tokens"] for batch in dataset.to_torch(BATCH_SIZE))


def forebay_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Forebay in the dataset's order."""
    import forebay as fb

    return (batch["tokens"] for batch in fb.load_dataset(folder, split="train").to_torch(BATCH_SIZE))


def forebay_256_mib(folder: Path) -> Iterator[torch.Tensor]:
    """Forebay with its default shuffle and a quarter of a gigabyte."""
    return _forebay_within(folder, 256 * harness.MIB)


def forebay_1_gib(folder: Path) -> Iterator[torch.Tensor]:
    """Forebay with its default shuffle and one gigabyte."""
    return _forebay_within(folder, 1024 * harness.MIB)


def _forebay_within(folder: Path, memory_limit: int) -> Iterator[torch.Tensor]:
    import forebay as fb

    dataset = fb.load_dataset(folder, split="train").shuffle(seed=SEED)
    return (batch["tokens"] for batch in dataset.to_torch(BATCH_SIZE, memory_limit=memory_limit))


def pyarrow_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """A scan by hand with pyarrow, its own threads and read-ahead."""
    import pyarrow.dataset as ds

    scan = ds.dataset(sorted(folder.glob("*.parquet"))).to_batches(columns=["tokens"], batch_size=BATCH_SIZE)
    return (_reshape(batch.column("tokens")) for batch in scan if batch.num_rows)


def duckdb_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """DuckDB's Parquet reader, through Arrow."""
    import duckdb

    relation = duckdb.sql(f"SELECT tokens FROM '{folder}/*.parquet'")
    batches = pa.RecordBatchReader.from_stream(relation)
    return (_reshape(batch.column("tokens")) for batch in batches if batch.num_rows)


def lance_unshuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Lance, which needs the data converted to its own format; the conversion is not timed."""
    import lance

    batches = lance.dataset(str(folder / "converted.lance")).to_batches(columns=["tokens"], batch_size=BATCH_SIZE)
    return (_reshape(batch.column("tokens")) for batch in batches)


def convert_to_lance(folder: Path) -> None:
    """Writes what `lance_unshuffled` reads, once."""
    import lance
    import pyarrow.dataset as ds

    target = folder / "converted.lance"
    if not target.exists():
        source = ds.dataset(sorted(folder.glob("*.parquet")))
        lance.write_dataset(source.to_batches(), str(target), schema=source.schema)


def datasets_shuffled(folder: Path) -> Iterator[torch.Tensor]:
    """Hugging Face `datasets`: streaming, shuffle buffer, through a DataLoader."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = dataset.shuffle(seed=SEED, buffer_size=10_000).with_format("torch")
    return (batch["tokens"] for batch in DataLoader(shuffled, batch_size=BATCH_SIZE))


def _reshape(column: pa.Array) -> torch.Tensor:
    # Values of a slice only, as `flatten` knows of offsets.
    values = column.flatten().to_numpy(zero_copy_only=True)
    return torch.frombuffer(memoryview(values), dtype=torch.int32).reshape(-1, ROW_TOKENS)


READERS = {
    "forebay, shuffled": forebay_shuffled,
    "forebay": forebay_unshuffled,
    "forebay, shuffled, 256 MiB": forebay_256_mib,
    "forebay, shuffled, 1 GiB": forebay_1_gib,
    "pyarrow by hand": pyarrow_unshuffled,
    "duckdb": duckdb_unshuffled,
    "lance (converted)": lance_unshuffled,
    "datasets, shuffled": datasets_shuffled,
}

if __name__ == "__main__":
    # Arrow's memory is read-only and torch warns of that; nobody writes here.
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    harness.serve(READERS, sys.argv[1:])
