"""Readers of filtered rows, each configured for remote stores as its documentation recommends.

Each reader runs in its own interpreter: `python scan_readers.py NAME TASK` runs one task, given as JSON, and prints a
`Scanned`. Imports are not timed; opening, listing and reading footers are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import take_and_give_back

if TYPE_CHECKING:
    from collections.abc import Callable

    Batches = Callable[[], Any]

FREE_BYTES = 1 << 30
"""More than any scan takes."""

BUCKET = "bench"
KEY = "none"
REGION = "us-east-1"
IO_THREADS = 32
"""Parallel requests of readers that use a thread for each: more than cores, as recommended for remote files."""


@dataclass(frozen=True)
class Task:
    """The data and the rows to read."""

    endpoint: str
    folder: str
    """The prefix of the Parquet objects in the bucket."""
    lance_folder: str
    """The prefix of the same rows in Lance's format."""
    columns: list[str]
    where: str
    """A comparison of one column, or two joined by AND for a range."""
    rows: list[int] | None = None
    """Numbers of rows to take in one call, instead of a filter."""


@dataclass(frozen=True)
class Scanned:
    """The result of a task."""

    seconds: float
    rows: int
    checksum: int
    opening_bytes: int = 0
    """Bytes of footers and of the indexes read with them, as counted by Forebay."""
    page_bytes: int = 0
    """Bytes of the pages that hold kept rows and of those that the filter had to read, as counted by Forebay."""


class Forebay:
    """Forebay, with nothing cached from earlier runs."""

    def __init__(self, task: Task, **options: str) -> None:
        # Imports are not timed.
        import pyarrow as pa

        import forebay as fb

        self._pa, self._fb = pa, fb
        self._task = task
        self._options = options
        self._read: Any = None

    def __call__(self) -> Any:
        """Opens the objects and returns the batches."""
        pa, fb, task = self._pa, self._fb, self._task
        options = {f"aws_{name}": value for name, value in _s3(task).items()} | self._options
        ds = fb.load_dataset(f"s3://{BUCKET}/{task.folder}/", split="train", storage_options=options)
        if task.rows is not None:
            return [pa.record_batch(ds.select_columns(task.columns).gather(task.rows))]
        self._read = ds.filter(task.where).select_columns(task.columns)
        return pa.RecordBatchReader.from_stream(self._read)

    def needed(self) -> tuple[int, int]:
        """Returns the bytes of footers, and of the pages of the filter and the kept rows. Reads nothing."""
        if self._read is None:
            return 0, 0
        facts = self._read.explain()
        stages = facts["stages"]
        of_filter = sum(stages[name]["bytes_wanted"] for name in ("indexes", "predicates") if name in stages)
        return stages["footers"]["bytes_fetched"], facts["payload_bytes"] + of_filter


def exact(task: Task) -> Forebay:
    """Forebay set to wait rather than read a page that may hold no kept row."""
    return Forebay(task, round_trip_bytes="0")


def duckdb(task: Task) -> Batches:
    """DuckDB with `httpfs` and several threads per core, because each waits for its own requests."""
    import duckdb
    import duckdb_extension_httpfs

    def run() -> Any:
        folder = Path(str(duckdb_extension_httpfs.__file__)).parent
        [extension] = folder.glob("extensions/*/httpfs.duckdb_extension")
        connection = duckdb.connect()
        connection.sql(f"LOAD '{extension}'; SET threads = {IO_THREADS // 2}")
        host = task.endpoint.partition("://")[2]
        connection.sql(
            f"CREATE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{KEY}', REGION '{REGION}', ENDPOINT '{host}', "
            "URL_STYLE 'path', USE_SSL false)"
        )
        found = connection.sql(
            f"SELECT {', '.join(task.columns)} FROM 's3://{BUCKET}/{task.folder}/*.parquet' WHERE {task.where}"
        )
        return found.to_arrow_reader(1 << 16)

    return run


def polars(task: Task) -> Batches:
    """Polars, lazy, with its streaming engine."""
    import polars as pl

    def run() -> Any:
        options = {f"aws_{name}": value for name, value in _s3(task).items()}
        frame = pl.scan_parquet(f"s3://{BUCKET}/{task.folder}/*.parquet", storage_options=options)
        kept = frame.filter(pl.sql_expr(task.where)).select(task.columns)
        return kept.collect(engine="streaming").to_arrow().to_batches()

    return run


def pyarrow(task: Task) -> Batches:
    """`pyarrow.dataset` with more IO threads; by default it reads ahead within and across objects."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import compute, fs

    def run() -> Any:
        pa.set_io_thread_count(IO_THREADS)
        host = task.endpoint.partition("://")[2]
        store = fs.S3FileSystem(access_key=KEY, secret_key=KEY, region=REGION, scheme="http", endpoint_override=host)
        found = ds.dataset(f"{BUCKET}/{task.folder}", filesystem=store, format="parquet")
        if task.rows is not None:
            return found.take(task.rows, columns=task.columns).to_batches()
        kept = None
        for part in task.where.split(" AND "):
            name, sign, number = part.split()
            compare = {"<": compute.less, ">=": compute.greater_equal}[sign]
            condition = compare(ds.field(name), float(number) if "." in number else int(number))
            kept = condition if kept is None else kept & condition
        return found.to_batches(columns=task.columns, filter=kept)

    return run


def datafusion(task: Task) -> Batches:
    """DataFusion with filter pushdown, and more partitions than cores, because each makes one request at a time."""
    from datafusion import SessionConfig, SessionContext
    from datafusion.object_store import AmazonS3

    def run() -> Any:
        config = SessionConfig(
            {
                "datafusion.execution.parquet.pushdown_filters": "true",
                "datafusion.execution.parquet.reorder_filters": "true",
                "datafusion.execution.parquet.schema_force_view_types": "false",
            }
        ).with_target_partitions(IO_THREADS // 2)
        context = SessionContext(config)
        store = AmazonS3(
            bucket_name=BUCKET,
            region=REGION,
            access_key_id=KEY,
            secret_access_key=KEY,
            endpoint=task.endpoint,
            allow_http=True,
        )
        context.register_object_store(f"s3://{BUCKET}/", store)
        context.register_parquet("t", f"s3://{BUCKET}/{task.folder}/")
        frame = context.sql(f"SELECT {', '.join(task.columns)} FROM t WHERE {task.where}")
        return (batch.to_pyarrow() for batch in frame.execute_stream())

    return run


def lance(task: Task) -> Batches:
    """Lance, on its converted copy."""
    from lance import dataset

    def run() -> Any:
        options = {f"aws_{name}": value for name, value in _s3(task).items()}
        found = dataset(f"s3://{BUCKET}/{task.lance_folder}", storage_options=options)
        if task.rows is not None:
            return found.take(task.rows, columns=task.columns).to_batches()
        return found.to_batches(columns=task.columns, filter=task.where)

    return run


def _s3(task: Task) -> dict[str, str]:
    """Returns the settings shared by readers that use Rust's `object_store`."""
    return {
        "endpoint_url": task.endpoint,
        "access_key_id": KEY,
        "secret_access_key": KEY,
        "region": REGION,
        "allow_http": "true",
    }


READERS: dict[str, Callable[[Task], Batches]] = {
    "forebay": Forebay,
    "forebay, exact": exact,
    "duckdb": duckdb,
    "polars": polars,
    "pyarrow": pyarrow,
    "datafusion": datafusion,
    "lance (converted)": lance,
}
TAKERS = ("forebay", "lance (converted)", "pyarrow")
"""Readers that take rows by number."""


def checksum(batch: Any) -> int:
    """Returns a cheap checksum that depends on every row and every payload column."""
    import pyarrow.compute as pc

    total = 0
    for name in batch.schema.names:
        column = batch.column(name)
        match name:
            case "a":
                total += int(pc.sum(pc.greater(column, 0.5)).as_py() or 0)
            case "b":
                total += int(pc.sum(pc.bit_wise_and(column, 0xFFFF)).as_py() or 0)
            case "tokens":
                total += int(pc.sum(pc.list_value_length(column)).as_py() or 0)
            case _:
                total += int(pc.sum(pc.binary_length(column)).as_py() or 0)
    return total


def main(name: str, task: Task) -> None:
    """Runs one task and prints the result."""
    import pyarrow as pa

    take_and_give_back(FREE_BYTES)
    # The sums import pandas and others, which some readers have imported already: done here, so that it is never timed.
    checksum(pa.record_batch({"a": [0.0], "b": [0]}))
    batches = READERS[name](task)
    num_rows = total = 0
    started = time.perf_counter()
    for batch in batches():
        num_rows += batch.num_rows
        total += checksum(batch)
    seconds = time.perf_counter() - started
    needed = batches.needed() if isinstance(batches, Forebay) else ()
    print(json.dumps(asdict(Scanned(seconds, num_rows, total, *needed))), flush=True)
    # Some readers leave threads that outlive or abort the interpreter; the measurement is complete.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Task(**json.loads(sys.argv[2])))
