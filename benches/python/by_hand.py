"""Readers of plain Parquet and Lance as a user would write them by hand: unshuffled, all columns of the case.

Each is configured as its documentation recommends for whole scans. If there are several ways, each has a name and the
best counts.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import convert
import forms

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from cases import Task
    from forms import Batch

SEED = 7
SCAN_ROWS = 16_384
"""Rows per batch for engines that small batches slow down."""


def forebay_shuffled(task: Task) -> Any:
    """Forebay with its default shuffle."""
    return _forebay(task, is_shuffled=True)


def forebay_unshuffled(task: Task) -> Any:
    """Forebay in the dataset's order."""
    return _forebay(task, is_shuffled=False)


def _forebay(task: Task, *, is_shuffled: bool) -> Any:
    import forebay as fb

    dataset = fb.load_dataset(task.folder, split="train", columns=task.columns)
    if is_shuffled:
        dataset = dataset.shuffle(seed=SEED)
    other = {"text": "ragged"} if task.case.form == "bytes" else None
    return dataset.to_torch(task.batch_size, forms=other)


def pyarrow_batches(task: Task) -> Iterator[Batch]:
    """A scan with pyarrow's own threads and read-ahead; the scanner cuts the batches."""
    import pyarrow.dataset as ds

    for batch in ds.dataset(task.folder).to_batches(columns=task.columns, batch_size=task.batch_size):
        yield from forms.cut(batch, task.case)


def pyarrow_scan(task: Task) -> Iterator[Batch]:
    """The same with default batches, which are cut here."""
    import pyarrow.dataset as ds

    for batch in ds.dataset(task.folder).to_batches(columns=task.columns):
        yield from forms.cut(batch, task.case)


def pyarrow_threads(task: Task) -> Iterator[Batch]:
    """Row groups read one by one on our own threads, a few ahead."""
    import pyarrow.parquet as pq

    def read(path: str, row_group: int) -> pa.Table:
        return pq.ParquetFile(path).read_row_group(row_group, columns=task.columns, use_threads=False)

    groups = ((path, index) for path in task.paths for index in range(pq.ParquetFile(path).num_row_groups))
    with ThreadPoolExecutor(task.num_cores) as pool:
        waiting: deque[Any] = deque()
        for path, index in groups:
            waiting.append(pool.submit(read, path, index))
            if len(waiting) > 2 * task.num_cores:
                yield from forms.cut(waiting.popleft().result(), task.case)
        while waiting:
            yield from forms.cut(waiting.popleft().result(), task.case)


def polars_batches(task: Task) -> Iterator[Batch]:
    """Polars' streaming engine, with the batches that it makes."""
    import polars as pl

    frame = pl.scan_parquet(task.paths).select(task.columns)
    for part in frame.collect_batches(maintain_order=False, engine="streaming"):
        yield from _of_polars(part, task)


def polars_files(task: Task) -> Iterator[Batch]:
    """Polars, object by object."""
    import polars as pl

    for path in task.paths:
        yield from _of_polars(pl.read_parquet(path, columns=task.columns), task)


def _of_polars(frame: Any, task: Task) -> Iterator[Batch]:
    import polars as pl

    if task.case.form == "strings":
        for part in frame.iter_slices(task.batch_size):
            yield {"text": part["text"].to_list(), "score": part["score"].to_torch()}
    else:
        yield from forms.cut(frame.to_arrow(compat_level=pl.CompatLevel.oldest()), task.case)


def duckdb_arrow(task: Task) -> Iterator[Batch]:
    """DuckDB through Arrow."""
    connection, query = _duckdb(task)
    for batch in connection.sql(query).to_arrow_reader(SCAN_ROWS):
        yield from forms.cut(batch, task.case)


def duckdb_rows(task: Task) -> Iterator[Batch]:
    """DuckDB's rows as Python objects: only for strings."""
    import torch

    connection, query = _duckdb(task)
    found = connection.execute(query)
    while rows := found.fetchmany(task.batch_size):
        texts, scores = zip(*rows, strict=True)
        yield {"text": list(texts), "score": torch.tensor(scores, dtype=torch.float64)}


def _duckdb(task: Task) -> tuple[Any, str]:
    import duckdb

    connection = duckdb.connect()
    connection.sql(f"SET threads = {task.num_cores}; SET preserve_insertion_order = false")
    return connection, f"SELECT {', '.join(task.columns)} FROM read_parquet('{task.folder}/*.parquet')"


def datafusion_scan(task: Task) -> Iterator[Batch]:
    """DataFusion with one partition per core."""
    from datafusion import SessionConfig, SessionContext

    settings = {"datafusion.execution.parquet.schema_force_view_types": "false"}
    context = SessionContext(SessionConfig(settings).with_target_partitions(task.num_cores))
    context.register_parquet("t", f"{task.folder}/")
    for batch in context.sql(f"SELECT {', '.join(task.columns)} FROM t").execute_stream():
        yield from forms.cut(batch.to_pyarrow(), task.case)


def datasets_arrow(task: Task) -> Iterator[Batch]:
    """`datasets`, streaming Arrow tables instead of rows, and so unshuffled."""
    for table in datasets_streaming(task).with_format("arrow").iter(batch_size=task.batch_size):
        yield from forms.cut(table.combine_chunks(), task.case)


def datasets_streaming(task: Task) -> Any:
    """Returns the objects as `datasets` streams them."""
    from datasets import load_dataset

    return load_dataset("parquet", data_files=task.paths, split="train", streaming=True, columns=task.columns)


def lance_batches(task: Task) -> Iterator[Batch]:
    """Lance's scanner, on its converted copy."""
    from lance import dataset

    found = dataset(str(convert.place("lance", task.folder)))
    for batch in found.to_batches(columns=task.columns, batch_size=SCAN_ROWS):
        yield from forms.cut(batch, task.case)


def lance_dataset(task: Task) -> Any:
    """Lance's dataset for torch, in order; tensors are made as for the other readers."""
    from lance.torch.data import LanceDataset

    def to_tensors(batch: pa.RecordBatch, **_: Any) -> Batch:
        return forms.of_arrow(batch, task.case)

    place = convert.place("lance", task.folder)
    return LanceDataset(str(place), task.batch_size, columns=task.columns, to_tensor_fn=to_tensors)
