"""Epochs through everything that stores and networks do: every row exactly once, or the error that says why not."""

from __future__ import annotations

import io
import re
import time
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_cases import CASES, Case
from fault_proxy import Fault, FaultProxy
from signatures import Signed
from upstreams import Objects, Remote

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3 import Bucket

NUM_ROWS = 1200
NAMES = [f"part-{number}.parquet" for number in range(4)]
CHANGED = NAMES[3]
KEY, SECRET, TOKEN = "AKIDOFTHETESTS", "s3cr3tOfTheTests", "t0kenOfTheTests"

TIMEOUTS = {"read_timeout": "400ms", "connect_timeout": "1s"}
ENOUGH = 15.0
"""Seconds; what passes does so in less."""
LITTLE = 1.5
"""Seconds; what stays is given up after it; a busy machine opens the dataset in less."""
GRACE = 15.0
"""Seconds that a busy machine may take, besides."""


def make_table(first: int, num_rows: int) -> pa.Table:
    """Rows that tell who they are, with bytes that no codec makes smaller."""
    bytes_of = np.random.default_rng([7, first]).bytes
    return pa.table({"id": range(first, first + num_rows), "payload": [bytes_of(64) for _ in range(num_rows)]})


def make_object(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        table, sink, row_group_size=50, write_page_index=True, write_page_checksum=True, use_dictionary=False
    )
    return sink.getvalue()


TABLE = pa.concat_tables([make_table(number * 300, 300) for number in range(4)])
OBJECTS = {name: make_object(TABLE.slice(number * 300, 300)) for number, name in enumerate(NAMES)}


class Web:
    """The objects on a web server, below a folder of their own."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.objects = proxy.upstream.objects
        self.folder = uuid.uuid4().hex
        self.source = [f"{proxy.url}/{self.folder}/{name}" for name in NAMES]
        self.options: dict[str, str] = {}
        for name, body in OBJECTS.items():
            self.put(name, body)

    def put(self, name: str, body: bytes) -> None:
        self.objects[f"{self.folder}/{name}"] = body

    def replace(self, *, same_size: bool = False) -> None:
        self.put(CHANGED, changed_object(same_size=same_size))

    def delete(self) -> None:
        self.objects.pop(f"{self.folder}/{CHANGED}", None)

    def expire(self) -> None:
        """Has no sessions."""


class Bucketed:
    """The objects in S3, for those who sign with a session's key."""

    def __init__(self, proxy: FaultProxy, bucket: Bucket) -> None:
        self.bucket = bucket
        self.gate = proxy.upstream
        self.folder = uuid.uuid4().hex
        self.source = f"{bucket.url}/{self.folder}/"
        self.options = {
            "aws_endpoint_url": proxy.url,
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_session_token": TOKEN,
            "aws_region": "us-east-1",
        }
        for name, body in OBJECTS.items():
            self.put(name, body)

    def put(self, name: str, body: bytes) -> None:
        self.bucket.put(f"{self.folder}/{name}", body)

    def replace(self, *, same_size: bool = False) -> None:
        self.put(CHANGED, changed_object(same_size=same_size))

    def delete(self) -> None:
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=f"{self.folder}/{CHANGED}")

    def expire(self) -> None:
        self.gate.expired.add(KEY)


def changed_object(*, same_size: bool) -> bytes:
    """Returns another object in the place of the one that changes."""
    if not same_size:
        return make_object(make_table(90_000, 310))
    body = bytearray(OBJECTS[CHANGED])
    body[len(body) // 3] ^= 1
    return bytes(body)


@pytest.fixture(scope="module")
def web() -> Iterator[FaultProxy]:
    with FaultProxy(Objects()) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def signed_s3(s3) -> Iterator[FaultProxy]:
    gate = Signed(Remote(s3.endpoint), {KEY: SECRET})
    gate.tokens = {KEY: TOKEN}
    with FaultProxy(gate) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared_bucket(s3) -> Bucket:
    return s3.create_bucket()


@pytest.fixture(params=["s3", "http"])
def store(request) -> str:
    return request.param


@pytest.fixture
def proxy(request, store) -> Iterator[FaultProxy]:
    proxy = request.getfixturevalue("signed_s3" if store == "s3" else "web")
    proxy.clear()
    proxy.seed(0)
    yield proxy
    proxy.clear()
    if isinstance(proxy.upstream, Signed):
        proxy.upstream.expired.clear()


@pytest.fixture
def place(request, store, proxy) -> Web | Bucketed:
    return Bucketed(proxy, request.getfixturevalue("shared_bucket")) if store == "s3" else Web(proxy)


def check_exact(batches: list[pa.RecordBatch]) -> None:
    """Checks every row of an epoch: none lost, none twice, every byte of it."""
    got = pa.Table.from_batches(batches).sort_by("id")
    assert got["id"].to_pylist() == list(range(NUM_ROWS)), "rows are lost or doubled"
    assert got["payload"].to_pylist() == TABLE["payload"].to_pylist(), "bytes of rows are others"


def retrying(seconds: float) -> dict[str, str]:
    """Returns the option that requests are made again for so long."""
    return {"retry_for": f"{seconds}s"}


def patience_of(case: Case) -> float:
    """Returns the seconds for which requests of a case are made again."""
    # Others end by count, or at once.
    return LITTLE if fb.StoreTimeoutError in case.error and not case.may_be_exact else ENOUGH


def outcome(
    case: Case, place: Web | Bucketed, proxy: FaultProxy
) -> tuple[list[pa.RecordBatch] | fb.ForebayError, float]:
    """Opens the dataset and reads an epoch; returns its batches, or what ended it, and the seconds with faults."""
    begin = time.monotonic()
    if case.is_opening:
        proxy.faults = case.faults(place)
    try:
        # Stores of other options wait for themselves: what a store said to one case is not heard by the next.
        options = place.options | TIMEOUTS | retrying(patience_of(case)) | {"user_agent": place.folder}
        ds = fb.load_dataset(place.source, split="train", storage_options=options)
        if not case.is_opening:
            begin = time.monotonic()
            proxy.faults = case.faults(place)
        return [pa.record_batch(batch) for batch in ds.shuffle(1).batches(100)], time.monotonic() - begin
    except fb.ForebayError as error:
        return error, time.monotonic() - begin


PAIRS = [pytest.param(case, store, id=f"{name} [{store}]") for name, case in CASES.items() for store in case.stores]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("case", "store"), PAIRS, indirect=["store"])
def test_an_epoch_is_exact_or_ends_with_the_error_that_fits(case, place, proxy):
    came, seconds = outcome(case, place, proxy)
    assert proxy.num_taken() >= 1, "nothing went wrong"
    if isinstance(came, fb.ForebayError):
        assert isinstance(came, case.error or ()), f"{type(came).__name__}: {came}"
        assert re.search(case.words, str(came), re.DOTALL), came
        assert seconds < patience_of(case) + GRACE, "it was not given up in time"
        assert not any(secret in f"{came}{came.__cause__}" for secret in (SECRET, TOKEN))
    else:
        assert case.may_be_exact or not case.error, "the epoch went on"
        check_exact(came)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_credentials_that_are_new_in_the_environment_are_taken_when_the_old_expire(place, proxy, monkeypatch):
    place.gate.keys["NEWKEY"] = SECRET
    place.gate.tokens["NEWKEY"] = "newt0ken"
    options = {name: value for name, value in place.options.items() if not name.endswith(("_key_id", "_token"))}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    ds = fb.load_dataset(place.source, split="train", storage_options=options | TIMEOUTS | retrying(ENOUGH))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEWKEY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "newt0ken")
    proxy.faults = [Fault(before=place.expire, skip=2)]
    check_exact([pa.record_batch(batch) for batch in ds.shuffle(1).batches(100)])
    assert proxy.num_taken() == 1
    assert proxy.log[-1].headers["x-amz-security-token"] == "newt0ken"
