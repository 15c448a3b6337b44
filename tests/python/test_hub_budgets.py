"""What reading from the Hub costs: bytes and requests, on two files of 48 MB with twenty row groups each."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import Hub
from hub_data import to_bytes

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS_OF_A_FILE = 20_000
ROWS_OF_A_GROUP = 1000
MB = 1_000_000


def large_file(number: int) -> bytes:
    """Ids, a language, 2 KB that nothing makes smaller, and an embedding."""
    random = np.random.default_rng(number)
    ids = np.arange(number * ROWS_OF_A_FILE, (number + 1) * ROWS_OF_A_FILE)
    blobs = random.bytes(ROWS_OF_A_FILE * 2048)
    offsets = pa.py_buffer(np.arange(0, len(blobs) + 1, 2048, dtype=np.int32))
    embeddings = pa.array(random.random(ROWS_OF_A_FILE * 64, dtype=np.float32))
    table = pa.table(
        {
            "id": ids,
            "lang": pa.array(np.array(["de", "en", "fr", "nl"])[ids % 4]),
            "blob": pa.BinaryArray.from_buffers(pa.binary(), ROWS_OF_A_FILE, [None, offsets, pa.py_buffer(blobs)]),
            "emb": pa.FixedSizeListArray.from_arrays(embeddings, 64),
        }
    )
    return to_bytes(table, ROWS_OF_A_GROUP, compression="none", use_dictionary=["lang"])


@pytest.fixture(scope="module")
def served() -> Iterator[Hub]:
    with Hub() as hub:
        hub.create("org/large", {f"data/train-{n:05}-of-00002.parquet": large_file(n) for n in range(2)})
        yield hub


@pytest.fixture
def hub(served, tmp_path, monkeypatch) -> Iterator[Hub]:
    served.point(monkeypatch, tmp_path)
    served.clear()
    served.latency = 0.0
    yield served
    served.latency = 0.0


def size(hub: Hub) -> int:
    repo = hub.repos["org/large"]
    return sum(map(len, repo.commits[repo.sha].values()))


def test_opening_takes_few_requests(hub):
    fb.load_dataset("org/large", split="train")
    assert hub.count("api") + hub.count("resolve", "README") <= 3
    assert hub.count("resolve", ".parquet") == 2
    assert hub.count("cdn") == 2


def test_a_narrow_column_takes_its_own_bytes(hub):
    dataset = fb.load_dataset("org/large", split="train", columns=["id"])
    assert sum(len(pa.record_batch(batch)) for batch in dataset.batches(1000, remainder="keep")) == 2 * ROWS_OF_A_FILE
    assert hub.num_bytes() <= 1 * MB
    assert hub.count("resolve", ".parquet") == 2


def test_one_row_group_of_forty_takes_its_own_bytes(hub):
    dataset = fb.load_dataset("org/large", split="train").filter("id >= 17000 AND id < 18000")
    assert sum(len(pa.record_batch(batch)) for batch in dataset.batches(500)) == 1000
    assert hub.num_bytes() <= 3 * MB


def test_going_on_at_row_18000_reads_nothing_that_was_delivered(hub):
    dataset = fb.load_dataset("org/large", split="train")
    stream = dataset.batches(1000)
    stream.load_state_dict(stream.state_dict() | {"position": 18_000})
    hub.clear()
    batches = iter(stream)
    first = pa.record_batch(next(batches))
    assert first["id"].to_pylist()[0] == 18_000
    rest = sum(len(pa.record_batch(batch)) for batch in batches)
    assert rest == 2 * ROWS_OF_A_FILE - 19_000
    assert hub.count("api") == hub.count("resolve") == 0
    # Two row groups of the first file, and all of the second.
    assert hub.num_bytes() <= size(hub) * 22 / 40 * 1.02
    repo = hub.repos["org/large"]
    name, body = min(repo.commits[repo.sha].items())
    start = pq.read_metadata(io.BytesIO(body)).row_group(18).column(0).file_offset
    digest = hashlib.sha256(body).hexdigest()
    firsts = [int(str(request.range)[6:].split("-")[0]) for request in hub.log if digest in request.path]
    assert firsts, name
    assert min(firsts) >= start


def test_a_shuffled_epoch_takes_every_byte_once(hub):
    dataset = fb.load_dataset("org/large", split="train").shuffle(1)
    num_rows = sum(len(pa.record_batch(batch)) for batch in dataset.batches(1000))
    assert num_rows == 2 * ROWS_OF_A_FILE
    assert hub.num_bytes() <= 1.1 * size(hub)
    assert hub.count("resolve", ".parquet") <= 2


def test_the_first_row_of_a_shuffled_stream_is_four_round_trips_away(hub):
    dataset = fb.load_dataset("org/large", split="train", columns=["id", "lang"]).shuffle(1)
    hub.clear()
    # Requests that do not wait for each other overlap for certain.
    hub.latency = 0.1
    batches = iter(dataset.batches(10))
    next(batches)
    assert hub.depth() <= 4
