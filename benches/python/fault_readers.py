"""Reads one epoch through a fault proxy and reports which rows arrived: the reader process of `faults.py`.

`python fault_readers.py read READER ENDPOINT BUCKET` prints the result as JSON; `write KIND FOLDER` writes the rows in
a format. A row is a number and bytes derived from it, so any wrong row is detected. Every reader has its default
settings, except for the address of the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

NUM_OBJECTS = 8
ROWS_OF_AN_OBJECT = 1500
NUM_ROWS = NUM_OBJECTS * ROWS_OF_AN_OBJECT
PAYLOAD_BYTES = 1024
SHARD_BYTES = 1 << 20
KEY = "test"
SECRET = KEY


def payload(number: int) -> bytes:
    """Returns the bytes of a row, derived from its number."""
    return hashlib.shake_128(number.to_bytes(8)).digest(PAYLOAD_BYTES)


def table(first: int, num_rows: int) -> Any:
    """Returns rows as Arrow."""
    import pyarrow as pa

    numbers = range(first, first + num_rows)
    return pa.table({"id": pa.array(numbers, pa.int64()), "payload": [payload(number) for number in numbers]})


def write_parquet(folder: Path, first: int = 0) -> None:
    """Writes objects with row groups of a quarter of a megabyte and page checksums."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for index in range(NUM_OBJECTS):
        rows = table(first + index * ROWS_OF_AN_OBJECT, ROWS_OF_AN_OBJECT)
        name = folder / f"part-{index}.parquet"
        pq.write_table(rows, name, row_group_size=250, write_page_checksum=True, write_page_index=True)


def write_replacement(folder: Path) -> None:
    """Writes the same objects with other rows."""
    write_parquet(folder, NUM_ROWS)


def write_lance(folder: Path) -> None:
    """Writes as many files as there are Parquet objects."""
    import lance

    lance.write_dataset(table(0, NUM_ROWS), str(folder / "rows.lance"), max_rows_per_file=ROWS_OF_AN_OBJECT)


def write_mds(folder: Path) -> None:
    """Writes shards of a megabyte."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"id": "int", "payload": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for number in range(NUM_ROWS):
            writer.write({"id": number, "payload": payload(number)})


def sample(number: int) -> dict[str, Any]:
    """Returns a row as litdata stores it."""
    return {"id": number, "payload": payload(number)}


def write_litdata(folder: Path) -> None:
    """Writes chunks of a megabyte."""
    from litdata import optimize

    optimize(
        fn=sample,
        inputs=list(range(NUM_ROWS)),
        output_dir=str(folder),
        chunk_bytes=SHARD_BYTES,
        num_workers=1,
        verbose=False,
    )


WRITERS = {
    "parquet": write_parquet,
    "replacement": write_replacement,
    "lance": write_lance,
    "mds": write_mds,
    "litdata": write_litdata,
}


def _of_batches(batches: Any) -> Any:
    import pyarrow as pa

    for batch in batches:
        rows = pa.record_batch(batch)
        yield from zip(rows["id"].to_pylist(), rows["payload"].to_pylist(), strict=True)


def forebay(endpoint: str, bucket: str) -> Any:
    """Forebay, shuffled."""
    import forebay as fb

    options = {"aws_endpoint_url": endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    ds = fb.load_dataset(f"s3://{bucket}/parquet/", split="train", storage_options=options)
    return _of_batches(ds.shuffle(7).batches(256))


def datasets(endpoint: str, bucket: str) -> Any:
    """Hugging Face `datasets`, streaming by HTTP, because S3 needs another package."""
    import datasets as hf

    urls = [f"{endpoint}/{bucket}/parquet/part-{index}.parquet" for index in range(NUM_OBJECTS)]
    ds = hf.load_dataset("parquet", data_files={"train": urls}, split="train", streaming=True)
    for batch in ds.iter(256):
        yield from zip(batch["id"], batch["payload"], strict=True)


def pyarrow(endpoint: str, bucket: str) -> Any:
    """A pyarrow dataset with its own S3 client."""
    from pyarrow.dataset import dataset
    from pyarrow.fs import S3FileSystem

    place = endpoint.removeprefix("http://")
    store = S3FileSystem(access_key=KEY, secret_key=SECRET, endpoint_override=place, scheme="http", region="us-east-1")
    return _of_batches(dataset(f"{bucket}/parquet", filesystem=store, format="parquet").to_batches())


def lance(endpoint: str, bucket: str) -> Any:
    """A Lance scan."""
    import lance as pylance

    options = {
        "aws_endpoint": endpoint,
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    return _of_batches(pylance.dataset(f"s3://{bucket}/lance/rows.lance", storage_options=options).to_batches())


def litdata(endpoint: str, bucket: str) -> Any:
    """Litdata's StreamingDataset."""
    from litdata import StreamingDataset
    from litdata.streaming import downloader

    # Litdata has no option for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    options = {"endpoint_url": endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    ds = StreamingDataset(
        f"s3://{bucket}/litdata", cache_dir=tempfile.mkdtemp(dir=os.environ["TMPDIR"]), storage_options=options
    )
    return ((row["id"], row["payload"]) for row in ds)


def mosaicml(endpoint: str, bucket: str) -> Any:
    """MosaicML's StreamingDataset."""
    os.environ |= {"S3_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    # Left by runs that were killed.
    clean_stale_shared_memory()
    local = tempfile.mkdtemp(dir=os.environ["TMPDIR"])
    ds = StreamingDataset(remote=f"s3://{bucket}/mds", local=local, batch_size=256)
    return ((row["id"], row["payload"]) for row in ds)


READERS = {
    "forebay": forebay,
    "datasets": datasets,
    "pyarrow": pyarrow,
    "lance": lance,
    "litdata": litdata,
    "mosaicml": mosaicml,
}


def replace(server: str, bucket: str, folder: Path) -> None:
    """Overwrites the second half of the objects with other rows, bypassing the proxy."""
    for index in range(NUM_OBJECTS // 2, NUM_OBJECTS):
        name = f"part-{index}.parquet"
        url = f"{server}/{bucket}/parquet/{name}"
        request = urllib.request.Request(url, (folder / name).read_bytes(), method="PUT")  # noqa: S310
        with urllib.request.urlopen(request):  # noqa: S310
            pass


def read(name: str, endpoint: str, bucket: str, *replacement: str) -> dict[str, object]:
    """Reads an epoch and returns what was wrong with it."""
    came: Counter[int] = Counter()
    num_wrong = 0
    try:
        for number, row in READERS[name](endpoint, bucket):
            if replacement and not came:
                replace(replacement[0], bucket, Path(replacement[1]))
            came[int(number)] += 1
            num_wrong += row != payload(int(number))
    except Exception as error:  # noqa: BLE001 - any error, as the user would see it
        return {"error": type(error).__name__, "said": str(error)[:300], "rows": came.total()}
    known = Counter(range(NUM_ROWS))
    others = sum(count for number, count in came.items() if number >= NUM_ROWS)
    return {
        "lost": (known - came).total(),
        "doubled": (came - known).total() - others,
        "wrong": num_wrong,
        "others": others,
    }


if __name__ == "__main__":
    if sys.argv[1] == "write":
        WRITERS[sys.argv[2]](Path(sys.argv[3]))
    else:
        result = read(*sys.argv[2:])
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        # Threads still waiting for the store must not keep the process alive, or the epoch would count as hanging.
        os._exit(0)
