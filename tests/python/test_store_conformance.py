"""What is promised of every store, tested of every store: one set of tests, one real server for each.

LocalStack lets everybody in, so S3's signatures are checked in front of it (`signatures.py`). Google's client reads the
same LocalStack, because its protocol is shaped as that of S3: that tests the client, and emulates no Google.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import azurite
import nginx
import obstore.store
import pyarrow as pa
import pytest
from fault_proxy import FaultProxy
from hub import TOKEN
from hub_data import ids_file
from lakes import (
    AzureLake,
    FileLake,
    FsspecLake,
    GcsLake,
    HttpLake,
    HubLake,
    Lake,
    NginxLake,
    S3Lake,
)
from rows import ids_of
from signatures import OfBucket, Signed
from upstreams import Objects, Remote

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from upstreams import Answer, Asked

NUM_ROWS = 2000
NAMES = [f"part-{index}.parquet" for index in range(4)]
SIGNED_KEY, SIGNED_SECRET = "AKIDOFTHETESTS", "s3cr3tOfTheTests"
NUM_LISTED = 1003

SHORT = {"retry_for": "300ms"}

WEB = ["http", "https", "nginx", "nginx-tls"]
STORES = ["file", "s3", "s3-signed", "gcs", "azure", "azure-sas", *WEB, "hub", "memory", "fsspec"]

stores_that_list = pytest.mark.parametrize("lake", [store for store in STORES if store not in WEB], indirect=True)
stores_that_do_not = pytest.mark.parametrize("lake", WEB, indirect=True)
stores_that_refuse = pytest.mark.parametrize("lake", ["s3-signed", "azure", "azure-sas", "hub"], indirect=True)


@pytest.fixture(scope="module")
def web() -> Iterator[FaultProxy]:
    """A web server without faults."""
    with FaultProxy(Objects()) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def folder_of_nginx(tmp_path_factory) -> Path:
    """Where nginx is to serve files, where it is installed."""
    if nginx.find() is None:
        pytest.skip("there is no nginx: `apt-get install nginx-light`")
    return tmp_path_factory.mktemp("nginx")


@pytest.fixture(scope="module")
def files_of_nginx(folder_of_nginx) -> Iterator[tuple[str, Path]]:
    (folder_of_nginx / "plain").mkdir()
    with nginx.serve(folder_of_nginx / "plain") as served:
        yield served


@pytest.fixture(scope="module")
def secure_files_of_nginx(folder_of_nginx, certificates) -> Iterator[tuple[str, Path]]:
    """The same with TLS."""
    _, certificate, key = certificates
    (folder_of_nginx / "tls").mkdir()
    with nginx.serve(folder_of_nginx / "tls", certificate, key) as served:
        yield served


@pytest.fixture(scope="module")
def strict_s3(s3) -> Iterator[FaultProxy]:
    """The S3 server, behind one that checks signatures."""
    with FaultProxy(Signed(Remote(s3.endpoint), {SIGNED_KEY: SIGNED_SECRET})) as proxy:
        yield proxy


@pytest.fixture
def make_lake(request, tmp_path, monkeypatch) -> Callable[[str], Lake]:
    """Makes an empty place in a store."""

    def make(store: str) -> Lake:
        get = request.getfixturevalue
        match store:
            case "file":
                return FileLake(tmp_path / "lake")
            case "memory":
                return FsspecLake(f"memory://{uuid.uuid4().hex}/")
            case "fsspec":
                return FsspecLake(f"local://{tmp_path}/lake/")
            case "s3":
                return S3Lake(get("bucket"))
            case "gcs":
                return GcsLake(get("bucket"), get("s3").endpoint)
            case "azure":
                return AzureLake(get("azure"))
            case "azure-sas":
                return AzureLake(get("azure"), has_token=True)
            case "http":
                return HttpLake(get("web").url, get("web").upstream.objects)
            case "nginx":
                return NginxLake(*get("files_of_nginx"))
            case "https":
                monkeypatch.setenv("SSL_CERT_FILE", str(get("certificates")[0]))
                return HttpLake(get("secure_web").url, get("secure_web").upstream.objects)
            case "nginx-tls":
                monkeypatch.setenv("SSL_CERT_FILE", str(get("certificates")[0]))
                return NginxLake(*get("secure_files_of_nginx"))
            case "hub":
                get("served").point(monkeypatch, tmp_path / "home")
                return HubLake(get("served").create(f"org/{uuid.uuid4().hex}", {}))
        strict = get("strict_s3")
        given = {
            "aws_endpoint_url": strict.url,
            "aws_access_key_id": SIGNED_KEY,
            "aws_secret_access_key": SIGNED_SECRET,
        }
        lake = S3Lake(get("bucket"), **given)
        lake.wrong_options = {**lake.options, "aws_secret_access_key": "WRONGSECRET"}
        lake.anonymous_options = {
            "aws_endpoint_url": strict.url,
            "aws_region": "us-east-1",
            "aws_skip_signature": "true",
        }
        return lake

    return make


@pytest.fixture(params=STORES)
def lake(request, make_lake) -> Lake:
    """An empty place in each of the stores."""
    return make_lake(request.param)


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """Four objects of 500 rows in row groups of 50."""
    step = NUM_ROWS // len(NAMES)
    return {name: ids_file(n * step, (n + 1) * step, row_group_rows=50) for n, name in enumerate(NAMES)}


@pytest.fixture
def filled(lake, objects) -> Lake:
    """A store with the objects below `d/`, and what no dataset has among its rows."""
    hidden = {"d/_SUCCESS": b"", "d/.part-0.parquet.crc": b"x", "other/part-9.parquet": ids_file(10_000, 10_010)}
    lake.put_all({f"d/{name}": body for name, body in objects.items()} | hidden)
    return lake


def ids(rows: object) -> list[int]:
    return pa.table(rows)["id"].to_pylist()


@stores_that_list
def test_a_folder_is_listed_and_read_in_order(filled):
    assert ids(filled.open("d/")) == list(range(NUM_ROWS))
    assert ids(filled.open("d")) == list(range(NUM_ROWS))
    assert sorted(ids(filled.open(""))) == [*range(NUM_ROWS), *range(10_000, 10_010)]


@stores_that_list
def test_a_pattern_chooses_objects(filled):
    step = NUM_ROWS // len(NAMES)
    assert ids(filled.open("d/part-[12].parquet")) == list(range(step, 3 * step))
    assert ids(filled.open("**/part-0.parquet")) == list(range(step))


@stores_that_do_not
def test_a_store_without_listing_says_what_to_do(filled):
    with pytest.raises(fb.ForebayError, match="HTTP has no folder listings.*; list the files' URLs instead"):
        filled.open("d/")


def test_an_object_is_opened_by_its_name_alone(filled):
    step = NUM_ROWS // len(NAMES)
    ds = filled.open(f"d/{NAMES[1]}")
    assert ids(ds) == list(range(step, 2 * step))
    assert ids(filled.open([f"d/{NAMES[3]}", f"d/{NAMES[0]}"])) == [*range(3 * step, 4 * step), *range(step)]


def test_keys_of_any_letters_are_read(lake):
    names = ["with space", "per%20cent", "a+b=c&d", "ünï-数据", "day=1/x"]
    lake.put_all({f"k/{name}.parquet": ids_file(n, n + 1) for n, name in enumerate(names)})
    if lake.can_list:
        assert sorted(ids(lake.open("k/"))) == list(range(len(names)))
    for number, name in enumerate(names):
        assert ids(lake.open(f"k/{name}.parquet")) == [number], name


def test_a_shuffled_epoch_is_exact_and_ordered_as_that_of_files(filled, objects, tmp_path):
    files = FileLake(tmp_path / "files")
    files.put_all({f"d/{name}": body for name, body in objects.items()})
    shuffled = ids(filled.open_folder("d", NAMES).shuffle(3))
    assert sorted(shuffled) == list(range(NUM_ROWS))
    assert shuffled == ids(files.open("d/").shuffle(3))


def test_an_epoch_goes_on_elsewhere(filled):
    whole = ids_of(filled.open_folder("d", NAMES).shuffle(5).batches(100))
    stream = filled.open_folder("d", NAMES).shuffle(5).batches(100)
    batches = iter(stream)
    before = ids_of(next(batches) for _ in range(7))
    state = stream.state_dict()
    batches.close()
    shares = []
    for rank in range(2):
        later = filled.open_folder("d", NAMES).shuffle(5).batches(50, rank=rank, world_size=2)
        later.load_state_dict(state)
        shares.append(ids_of(later))
    after = [row for pair in zip(*shares, strict=True) for row in pair]
    assert before + after == whole


def test_only_row_groups_that_can_hold_rows_are_read(filled):
    some = filled.open_folder("d", NAMES).filter("id >= 730 AND id < 745")
    assert ids(some) == list(range(730, 745))
    facts = some.explain()
    assert facts["row_groups_pruned"] == NUM_ROWS // 50 - 1


@stores_that_list
def test_an_empty_folder_is_not_found(lake):
    lake.put("e/_SUCCESS", b"")
    for folder in ("e/", "absent/"):
        with pytest.raises(fb.NotFoundError, match=folder.rstrip("/")):
            lake.open(folder)


def test_an_object_that_is_not_there_is_named(filled):
    with pytest.raises(fb.NotFoundError, match=r"part-77\.parquet"):
        filled.open("d/part-77.parquet")
    with pytest.raises(fb.NotFoundError, match=r"part-77\.parquet"):
        filled.open(["d/part-0.parquet", "d/part-77.parquet"])


def test_an_object_that_changed_is_named_or_stays_as_it_was(filled):
    ds = filled.open_folder("d", NAMES)
    filled.put(f"d/{NAMES[2]}", ids_file(5000, 5700, row_group_rows=50))
    if filled.is_pinned:
        assert ids(ds) == list(range(NUM_ROWS))
    else:
        with pytest.raises(fb.ObjectChangedError, match=r"part-2\.parquet.*open the dataset again"):
            ids_of(ds.batches(100))


def test_an_object_that_was_deleted_is_named_or_stays(filled):
    ds = filled.open_folder("d", NAMES)
    filled.delete(f"d/{NAMES[2]}")
    if filled.is_pinned:
        assert ids(ds) == list(range(NUM_ROWS))
    else:
        with pytest.raises((fb.NotFoundError, fb.ObjectChangedError), match=r"part-2\.parquet"):
            ids_of(ds.batches(100))


@stores_that_refuse
@pytest.mark.parametrize("source", ["d/", f"d/{NAMES[0]}"])
def test_wrong_credentials_are_refused_and_not_repeated(filled, source):
    with pytest.raises(fb.AccessDeniedError) as caught:
        filled.open(source, storage_options=filled.wrong_options)
    assert "WRONG" not in f"{caught.value}{caught.value.__cause__}"


@stores_that_refuse
def test_who_says_nothing_is_refused_where_that_is_not_public(filled):
    if isinstance(filled, HubLake):
        filled.repo.private = True
        with pytest.raises(fb.DatasetNotFoundError):
            filled.open("d/")
        assert ids(filled.open("d/", token=TOKEN)) == list(range(NUM_ROWS))
    else:
        # Azure does not say whether what it does not show is there.
        with pytest.raises((fb.AccessDeniedError, fb.NotFoundError)):
            filled.open("d/", storage_options=filled.anonymous_options)


def test_what_is_public_is_read_without_credentials(make_lake, request, objects):
    for store in ("s3-signed", "azure"):
        lake = make_lake(store)
        if store == "azure":
            lake = AzureLake(request.getfixturevalue("azure"), is_public=True)
        else:
            request.getfixturevalue("strict_s3").upstream.is_public = True
        try:
            lake.put_all({f"d/{name}": body for name, body in objects.items()})
            assert ids(lake.open("d/", storage_options=lake.anonymous_options)) == list(range(NUM_ROWS))
        finally:
            if store != "azure":
                request.getfixturevalue("strict_s3").upstream.is_public = False


def test_a_bucket_whose_readers_pay_is_read_by_those_who_say_so(make_lake, strict_s3, objects):
    lake = make_lake("s3-signed")
    lake.put_all({f"d/{name}": body for name, body in objects.items()})
    strict_s3.upstream.is_requester_pays = True
    try:
        assert ids(lake.open("d/", storage_options={**lake.options, "aws_request_payer": "true"})) == [*range(NUM_ROWS)]
        with pytest.raises(fb.AccessDeniedError):
            lake.open("d/")
    finally:
        strict_s3.upstream.is_requester_pays = False


def test_a_bucket_may_be_part_of_the_host(make_lake, s3, objects):
    lake = make_lake("s3-signed")
    lake.put_all({f"d/{name}": body for name, body in objects.items()})
    host = Signed(OfBucket(Remote(s3.endpoint), lake.bucket.name), {SIGNED_KEY: SIGNED_SECRET})
    with FaultProxy(host) as proxy:
        options = {"aws_endpoint_url": proxy.url, "aws_virtual_hosted_style_request": "true"}
        assert ids(lake.open("d/", storage_options=lake.options | options)) == list(range(NUM_ROWS))


def test_a_store_is_reached_through_a_proxy(make_lake, strict_s3, objects):
    lake = make_lake("s3-signed")
    lake.put_all({f"d/{name}": body for name, body in objects.items()})
    # A name that nobody but the proxy knows.
    options = {"aws_endpoint_url": "http://store.invalid:9000", "proxy_url": strict_s3.url}
    assert ids(lake.open("d/", storage_options=lake.options | options)) == list(range(NUM_ROWS))
    with pytest.raises(fb.StoreError):
        lake.open("d/", storage_options={**lake.options, **options, "proxy_url": "http://127.0.0.1:1", **SHORT})


@pytest.mark.parametrize("store", ["s3", "file", "hub", "memory"])
def test_listings_of_many_pages_are_read_to_their_end(make_lake, s3, store):
    lake = make_lake(store)
    # Names that no dataset reads: pages are to be turned, and three objects opened.
    hidden = {f"many/_{number:05}": b"" for number in range(NUM_LISTED)}
    shown = {f"many/{name}.parquet": ids_file(n, n + 1) for n, name in enumerate(("Z", "a", "z"))}
    lake.put_all(hidden | shown)
    assert sorted(ids(lake.open("many/"))) == [0, 1, 2]
    if isinstance(lake, S3Lake):
        assert sorted(ids(GcsLake(lake.bucket, s3.endpoint).open("many/"))) == [0, 1, 2]


class SmallPages(Remote):
    """Azure, whose listings have pages of two: its own are of 5,000."""

    def ask(self, asked: Asked) -> Answer:
        path = f"{asked.path}&maxresults=2" if "comp=list" in asked.path else asked.path
        return super().ask(dataclasses.replace(asked, path=path))


def test_listings_of_azure_are_read_to_their_end(azure, objects):
    # Without a signature, of which the size of pages would be a part.
    lake = AzureLake(azure, is_public=True)
    lake.put_all({f"d/{name}": body for name, body in objects.items()} | {f"d/_{number}": b"" for number in range(7)})
    with FaultProxy(SmallPages(f"http://127.0.0.1:{azure.port}")) as proxy:
        place = {"azure_storage_endpoint": f"{proxy.url}/{azurite.ACCOUNT}"}
        assert ids(lake.open("d/", storage_options=lake.anonymous_options | place)) == list(range(NUM_ROWS))
        assert proxy.count(where="comp=list") >= 6


OBSTORES = {
    "file": lambda lake: obstore.store.LocalStore(f"{lake.root}d"),
    "s3": lambda lake: obstore.store.S3Store(
        lake.bucket.name,
        prefix="d",
        config={name: value for name, value in lake.options.items() if name != "aws_allow_http"},
        client_options={"allow_http": True},
    ),
    "gcs": lambda lake: obstore.store.GCSStore(
        lake.bucket.name,
        prefix="d",
        config={"service_account_key": lake.options["google_service_account_key"]},
        client_options={"allow_http": True},
    ),
    "azure": lambda lake: obstore.store.AzureStore(
        lake.root.split("/")[2],
        prefix="d",
        config={
            name.removeprefix("azure_storage_"): value for name, value in lake.options.items() if name != "allow_http"
        },
        client_options={"allow_http": True},
    ),
}


@pytest.mark.parametrize("store", OBSTORES)
def test_stores_of_obstore_are_sources(make_lake, objects, store):
    lake = make_lake(store)
    lake.put_all({f"d/{name}": body for name, body in objects.items()})
    assert ids(fb.load_dataset(OBSTORES[store](lake), split="train")) == list(range(NUM_ROWS))
