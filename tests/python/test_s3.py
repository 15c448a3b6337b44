"""The main path against a real S3 server."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

import data
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_data import ids_file
from obstore.store import S3Store

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3 import S3, Bucket

NUM_ROWS = 6000


@pytest.fixture
def lake(bucket: Bucket, tmp_path) -> Bucket:
    """A bucket with two splits of rows that tell who they are, and things to ignore."""
    data.write_fragments(tmp_path / "train", data.ids_table(NUM_ROWS), num_fragments=12, row_group_rows=[200, 33])
    data.write_fragments(tmp_path / "test", data.ids_table(50, first=NUM_ROWS))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "train" / ".part-0.parquet.crc").write_bytes(b"x")
    bucket.upload(tmp_path, "corpus/")
    return bucket


def opened(lake: Bucket, path: str = "corpus/", split: str | None = "train", **options: str) -> fb.Dataset:
    return fb.load_dataset(f"{lake.url}/{path}", split=split, storage_options=dict(lake.storage_options) | options)


def ids(rows: object) -> list[int]:
    return pa.table(rows)["id"].to_pylist()


@pytest.mark.parametrize(
    ("path", "num_rows"),
    [
        ("corpus/", NUM_ROWS),
        ("corpus", NUM_ROWS),
        ("corpus/train/", NUM_ROWS),
        ("corpus/train/part-*.parquet", NUM_ROWS),
        ("corpus/**/*.parquet", NUM_ROWS),
        ("", NUM_ROWS),
        ("corpus/train/part-3.parquet", NUM_ROWS // 12),
        ("corpus/train/part-[12].parquet", NUM_ROWS // 6),
    ],
)
def test_folders_globs_and_objects_are_read(lake, path, num_rows):
    got = ids(opened(lake, path))
    assert len(got) == num_rows
    assert got == list(range(got[0], got[0] + num_rows))


def test_an_empty_object_that_stands_for_a_folder_is_one(bucket):
    """So directories look where stores have them, as with ADLS Gen2."""
    for name, body in (("t.parquet", b""), ("t.parquet/part-0.parquet", ids_file(0, 10)), ("empty.parquet", b"")):
        bucket.put(f"w/{name}", body)
    assert ids(opened(bucket, "w/t.parquet")) == list(range(10))
    with pytest.raises(fb.DataError, match="it has 0 bytes"):
        opened(bucket, "w/empty.parquet")


def test_splits_are_found(lake):
    splits = opened(lake, split=None)
    assert {name: len(ds) for name, ds in splits.items()} == {"train": NUM_ROWS, "test": 50}


def test_a_list_of_objects_is_read_in_its_order(lake):
    sources = [f"{lake.url}/corpus/train/part-{i}.parquet" for i in (11, 2)]
    ds = fb.load_dataset(sources, split="train", storage_options=lake.storage_options)
    step = NUM_ROWS // 12
    assert ids(ds) == [*range(11 * step, 12 * step), *range(2 * step, 3 * step)]


def test_objects_and_local_files_are_read_in_one_list(lake, tmp_path):
    """What the options say is meant for the store."""
    data.write_fragments(tmp_path, data.ids_table(50, first=9000), num_fragments=1)
    remote, local = f"{lake.url}/corpus/train/part-0.parquet", str(tmp_path / "part-0.parquet")
    for sources in ([remote, local], [local, remote]):
        ds = fb.load_dataset(sources, split="train", storage_options=lake.storage_options)
        assert sorted(ids(ds)) == [*range(NUM_ROWS // 12), *range(9000, 9050)]
    with pytest.raises(fb.SettingError, match="means nothing for local files"):
        fb.load_dataset(local, split="train", storage_options=lake.storage_options)


def test_keys_of_any_letters_are_read(bucket, tmp_path):
    names = ["with space.parquet", "per%20cent.parquet", "ünï-数据.parquet", "a+b=c&d.parquet", "day=1/x.parquet"]
    for number, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [number]}), path)
    bucket.upload(tmp_path, "x/")
    assert sorted(ids(opened(bucket, "x/"))) == list(range(len(names)))
    for number, name in enumerate(names):
        if "%" not in name:
            assert ids(opened(bucket, f"x/{name}")) == [number], name


def test_an_object_is_read_beside_a_folder_of_its_name(bucket):
    """Consoles make empty objects for folders; without the slash at the end of their keys they have the object's."""
    for number, key in enumerate(["x.parquet", "x.parquet/y.parquet", "z.parquet"]):
        bucket.put(f"d/{key}", ids_file(number, number + 1))
    for key in ("d/", "d/x.parquet/", "d/z.parquet/", "d/nothing.parquet/"):
        bucket.put(key, b"")
    for source in ("d/", "d/**"):
        ds = fb.load_dataset(f"{bucket.url}/{source}", split="train", storage_options=bucket.storage_options)
        assert sorted(pa.table(ds)["id"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize("name", ["a[1]", "{x}", "why?", "*"])
def test_an_object_whose_name_looks_like_a_pattern_is_read_by_its_name(bucket, name):
    bucket.put("k/other", b"")
    source = bucket.put(f"k/{name}.parquet", ids_file(5, 7))
    ds = fb.load_dataset(source, split="train", storage_options=bucket.storage_options)
    assert pa.table(ds)["id"].to_pylist() == [5, 6]


@pytest.mark.parametrize("key", ["a//b", "a/./b", "a/../b", "a\tb"])
def test_a_key_that_is_not_read_is_named_with_what_to_do(bucket, key):
    bucket.put("k/x.parquet", ids_file(0, 3))
    bucket.put(f"k/{key}.parquet", ids_file(3, 5))
    with pytest.raises(fb.StoreError, match="k/a.*b.*rename the object, or list the objects that you want"):
        fb.load_dataset(f"{bucket.url}/k/", split="train", storage_options=bucket.storage_options)
    named = fb.load_dataset(f"{bucket.url}/k/x.parquet", split="train", storage_options=bucket.storage_options)
    assert len(named) == 3


def test_filter_shuffle_and_resume_are_exact(lake):
    ds = opened(lake).filter("id % 3 = 0 AND id >= 1000").shuffle(seed=7)
    expected = [i for i in range(1000, NUM_ROWS) if i % 3 == 0]
    assert len(ds) == len(expected)
    stream = ds.to_torch(64)
    whole = [i for batch in stream for i in batch["id"].tolist()]
    assert whole != sorted(whole)
    assert sorted(whole) == expected
    stream = ds.to_torch(64)
    iterator = iter(stream)
    seen = [i for _ in range(9) for i in next(iterator)["id"].tolist()]
    state = stream.state_dict()
    iterator.close()
    resumed = opened(lake).filter("id % 3 = 0 AND id >= 1000").shuffle(seed=7).to_torch(50)
    resumed.load_state_dict(state)
    assert seen + [i for batch in resumed for i in batch["id"].tolist()] == whole


def test_ranks_share_an_epoch(lake):
    ds = opened(lake).shuffle(seed=1)
    parts = [ids(ds.batches(100, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(i for part in parts for i in part) == list(range(NUM_ROWS))


def test_the_order_is_that_of_the_same_files_on_disk(lake, tmp_path):
    on_disk = fb.load_dataset(tmp_path, split="train").shuffle(5)
    assert ids(opened(lake).shuffle(5)) == ids(on_disk)


def test_requests_for_opening_are_one_list_and_one_read_of_each_footer(lake):
    facts = opened(lake).filter("id < 100").explain()
    assert facts["row_groups_pruned"] > 20
    assert facts["selection_requests"] <= 2


def test_credentials_come_from_the_environment_and_options_go_before_it(lake, s3: S3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert fb.load_dataset(f"{lake.url}/corpus/", split="train").num_rows == NUM_ROWS
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert opened(lake).num_rows == NUM_ROWS


def test_a_store_of_obstore_is_a_source(lake):
    config = {name: value for name, value in lake.storage_options.items() if name != "aws_allow_http"}
    store = S3Store(lake.name, prefix="corpus", config=config, client_options={"allow_http": True})
    assert ids(fb.load_dataset(store, split="train")) == list(range(NUM_ROWS))


def test_a_bucket_that_is_not_there_is_named(lake):
    with pytest.raises(fb.NotFoundError, match="no-such-bucket-here"):
        fb.load_dataset("s3://no-such-bucket-here/x/", split="train", storage_options=lake.storage_options)


@pytest.mark.parametrize(
    "path", ["absent/", "absent.parquet", "corpus/absent/*.parquet", "corpus/train/part-99.parquet"]
)
def test_a_key_that_is_not_there_is_named(lake, path):
    with pytest.raises(fb.NotFoundError, match=path.split("*")[0].rstrip("/")):
        opened(lake, path)


DENIED = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature does not match</Message></Error>"""


@pytest.fixture
def strict_endpoint() -> Iterator[str]:
    """The URL of a server that refuses everything, since the one of the tests accepts any credentials."""

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(403)
            self.send_header("Content-Length", str(len(DENIED)))
            self.end_headers()
            self.wfile.write(DENIED.encode())

        def log_message(self, *_arguments):
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["corpus/", "corpus/a.parquet", "corpus/*.parquet"])
def test_wrong_credentials_are_refused(strict_endpoint, path):
    options = {
        "aws_endpoint_url": strict_endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "WRONGID",
        "aws_secret_access_key": "WRONGSECRET",
    }
    with pytest.raises(fb.AccessDeniedError, match=r"s3://lake.*credentials") as caught:
        fb.load_dataset(f"s3://lake/{path}", split="train", storage_options=options)
    assert "WRONGSECRET" not in str(caught.value)


@pytest.mark.timeout(100)
def test_a_server_that_does_not_answer_is_an_error_not_a_hang(lake):
    with pytest.raises(fb.StoreError, match="corpus"):
        opened(lake, aws_endpoint_url="http://127.0.0.1:1")


@pytest.mark.parametrize("use", ["batches", "filter"])
def test_an_overwritten_object_is_an_error(lake, tmp_path, use):
    ds = opened(lake)
    body = bytearray((tmp_path / "train" / "part-5.parquet").read_bytes())
    body[40] ^= 1
    lake.put("corpus/train/part-5.parquet", bytes(body))
    uses = {"batches": lambda: list(ds.batches(100)), "filter": lambda: len(ds.filter("id % 2 = 0"))}
    with pytest.raises(fb.ObjectChangedError, match=r"part-5\.parquet"):
        uses[use]()


def test_an_overwritten_object_makes_another_dataset(lake, tmp_path):
    state = opened(lake).batches(10).state_dict()
    other = tmp_path / "other"
    data.write_fragments(other, data.ids_table(NUM_ROWS // 12))
    lake.put("corpus/train/part-5.parquet", (other / "part-0.parquet").read_bytes())
    with pytest.raises(fb.StateError):
        opened(lake).batches(10).load_state_dict(state)


def test_a_deleted_object_is_an_error(lake):
    ds = opened(lake)
    lake.client.delete_object(Bucket=lake.name, Key="corpus/train/part-5.parquet")
    with pytest.raises((fb.NotFoundError, fb.ObjectChangedError), match=r"part-5\.parquet"):
        list(ds.batches(100))


def test_what_is_not_parquet_is_named(lake):
    lake.put("corpus/train/part-12.parquet", b"text")
    with pytest.raises(fb.DataError, match=rf"{lake.url}/corpus/train/part-12\.parquet"):
        opened(lake)
