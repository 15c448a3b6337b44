"""Measures what this machine can do without Forebay, by stage: `python limit_probes.py NAME THREADS [ARGUMENT...]`.

Each probe prints the bytes of a pass and the median seconds of several passes. It uses Python threads, whose work
releases the GIL.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_PASSES = 5
COPY_BYTES = 256 << 20
READ_BYTES = 4 << 20
RECEIVE_BYTES = 1 << 20
CALLS = 20_000


def seen(tasks: list[Callable[[], int]], num_threads: int) -> dict[str, float]:
    """Returns the bytes and seconds of running tasks on threads; each task returns its number of bytes."""
    times = []
    num_bytes = 0
    with ThreadPoolExecutor(num_threads) as pool:
        # One pass to warm up: the first touch of each memory page is a page fault.
        for _ in range(NUM_PASSES + 1):
            started = time.perf_counter()
            num_bytes = sum(pool.map(lambda task: task(), tasks))
            times.append(time.perf_counter() - started)
    return {"bytes": num_bytes, "seconds": statistics.median(times[1:])}


def copy(num_threads: int) -> dict[str, float]:
    """Copies memory from one place to another."""
    import numpy as np

    def task() -> Callable[[], int]:
        source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)

        def run() -> int:
            np.copyto(target, source)
            return COPY_BYTES

        return run

    return seen([task() for _ in range(num_threads)], num_threads)


def read(num_threads: int, folder: str) -> dict[str, float]:
    """Reads objects from the page cache into allocated memory."""

    def task(path: Path) -> Callable[[], int]:
        room = bytearray(READ_BYTES)

        def run() -> int:
            total = 0
            with path.open("rb", buffering=0) as file:
                while num_bytes := file.readinto(room):
                    total += num_bytes
            return total

        return run

    return seen([task(path) for path in sorted(Path(folder).glob("*.parquet"))], num_threads)


def decompress(num_threads: int, folder: str, columns: str) -> dict[str, float]:
    """Decompresses all pages of some columns; counts the decompressed bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def task(path: Path) -> Iterator[Callable[[], int]]:
        metadata = pq.read_metadata(path)
        data = path.read_bytes()
        wanted = set(columns.split(","))
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            chunks = [group.column(column) for column in range(group.num_columns)]
            kept = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in wanted]
            found = [page for chunk in kept for page in pages(data, chunk)]

            def run(found: list[tuple[Any, int]] = found, codec: str = kept[0].compression) -> int:
                if codec == "UNCOMPRESSED":
                    return 0
                engine = pa.Codec(codec.lower())
                for body, size in found:
                    engine.decompress(body, size, asbytes=False)
                return sum(size for _, size in found)

            yield run

    tasks = [run for path in sorted(Path(folder).glob("*.parquet")) for run in task(path)]
    return seen(tasks, num_threads)


def pages(data: bytes, chunk: Any) -> Iterator[tuple[Any, int]]:
    """Yields the compressed page bodies of a column chunk, and their uncompressed sizes."""
    import pyarrow as pa

    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    end = start + chunk.total_compressed_size
    whole = pa.py_buffer(data)
    while start < end:
        header, start = page_header(data, start)
        yield whole.slice(start, header[3]), header[2]
        start += header[3]


def page_header(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """Returns a page header's integers by field, and the offset of the page's body (Thrift's compact protocol)."""
    fields: dict[int, int] = {}
    number = 0
    while kind_and_step := data[at]:
        step, kind = kind_and_step >> 4, kind_and_step & 15
        at += 1
        if step:
            number += step
        else:
            delta, at = _varint(data, at)
            number = delta >> 1 ^ -(delta & 1)
        match kind:
            case 1 | 2:
                pass
            case 4 | 5 | 6:
                value, at = _varint(data, at)
                fields[number] = value >> 1 ^ -(value & 1)
            case 8:
                size, at = _varint(data, at)
                at += size
            case 12:
                _, at = page_header(data, at)
            case _:
                raise ValueError(f"Thrift type {kind} in a page header")
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def receive(num_threads: int, endpoint: str, *keys: str) -> dict[str, float]:
    """Gets whole objects over HTTP, with one connection per thread, and discards them."""
    location = urlsplit(endpoint)
    context = ssl.create_default_context()
    # The certificate was made for this run.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def task(key: str) -> Callable[[], int]:
        room = bytearray(RECEIVE_BYTES)

        def run() -> int:
            total = 0
            with socket.create_connection((str(location.hostname), location.port or 80)) as plain:
                server = context.wrap_socket(plain) if location.scheme == "https" else plain
                server.sendall(f"GET {key} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
                while num_bytes := server.recv_into(room):
                    total += num_bytes
            return total

        return run

    return seen([task(key) for key in keys], num_threads)


def hand_over(num_threads: int) -> dict[str, float]:
    """Makes tensors from arrays through DLPack."""
    import numpy as np
    import torch

    del num_threads
    array = np.zeros((256, 64), np.int32)
    times = []
    for _ in range(NUM_PASSES):
        started = time.perf_counter()
        for _ in range(CALLS):
            torch.utils.dlpack.from_dlpack(array)
        times.append(time.perf_counter() - started)
    return {"calls": CALLS, "seconds": statistics.median(times)}


PROBES: dict[str, Callable[..., dict[str, float]]] = {
    "copy": copy,
    "read": read,
    "decompress": decompress,
    "receive": receive,
    "hand-over": hand_over,
}

if __name__ == "__main__":
    name, num_threads, *arguments = sys.argv[1:]
    print(json.dumps(PROBES[name](int(num_threads), *arguments)), flush=True)
    os._exit(0)
