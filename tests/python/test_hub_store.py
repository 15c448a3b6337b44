"""The store of the Hub: exact rows through every fault, few requests, and a token that stays at home."""

from __future__ import annotations

import errno
import json
import pickle
import re
import shutil
import socket
import ssl
import sys
import time
import urllib.request
import uuid
import warnings

import fsspec
import pyarrow as pa
import pytest
from fault_proxy import FaultProxy
from fsspec.implementations.memory import MemoryFileSystem
from hub import STRANGER, TOKEN, Hub
from hub_data import ids_file
from programs import run_python
from servers import Tunnel
from upstreams import Objects

import forebay as fb
from forebay.hub import repository
from forebay.hub.client import PATIENCE, _origin
from forebay.hub.settings import current

NUM_ROWS = 3000
ROWS_OF_A_GROUP = 100


@pytest.fixture
def hub(served, tmp_path, monkeypatch) -> Hub:
    """A Hub with one dataset of three files, one bucket and nothing wrong."""
    served.point(monkeypatch, tmp_path)
    files = {f"train/{n}.parquet": ids_file(n * 1000, (n + 1) * 1000, row_group_rows=ROWS_OF_A_GROUP) for n in range(3)}
    served.create("org/data", files | {"README.md": b"A card.\n"})
    served.latency, served.url_lifetime = 0.0, 3600.0
    served.clock, served.has_resolve_cache = 0.0, False
    served.revoked.clear()
    served.clear()
    return served


def ids(dataset: fb.Dataset) -> list[int]:
    return [row["id"] for row in dataset.iter()]


def open_train(**arguments: object) -> fb.Dataset:
    return fb.load_dataset("org/data", split="train", **arguments)


def test_rows_come_in_order_and_opening_asks_little(hub):
    dataset = open_train()
    assert hub.count("api") + hub.count("resolve", "README") == 2
    assert hub.count("resolve", ".parquet") == 3
    assert ids(dataset) == list(range(NUM_ROWS))
    assert sorted(ids(dataset.shuffle(1))) == list(range(NUM_ROWS))
    assert hub.count("api") == 1
    assert hub.count("resolve", ".parquet") == 3, "one for the life of a URL"


def test_several_splits_and_rows_of_them_are_opened(hub):
    assert list(fb.load_dataset("org/data")) == ["train"]
    assert ids(open_train().select([5, 6])) == [5, 6]
    cut = fb.load_dataset("org/data", split="train[10:20]+train[-5:]")
    assert ids(cut) == [*range(10, 20), *range(NUM_ROWS - 5, NUM_ROWS)]
    assert ids(
        fb.load_dataset(f"hf://datasets/org/data@{hub.repos['org/data'].sha}/train/1.parquet", split="train")
    ) == [*range(1000, 2000)]
    hub.clear()
    both = fb.load_dataset(["hf://datasets/org/data/train/2.parquet", "hf://datasets/org/data/train/0*"], split="train")
    assert ids(both) == [*range(2000, 3000), *range(1000)]
    assert hub.count("api") == 1


def test_a_bucket_and_small_files_that_the_hub_sends_itself_are_read(hub):
    hub.create_bucket("org/bucket", {"d/train/x.parquet": ids_file(0, 70)})
    assert ids(fb.load_dataset("hf://buckets/org/bucket/d", split="train")) == [*range(70)]
    # Named otherwise, this Hub has it itself.
    hub.create("org/small", {"data.geoparquet": ids_file(0, 70)})
    small = fb.load_dataset("org/small", split="train")
    assert ids(small) == [*range(70)]
    assert hub.count("cdn", "small") == 0


def test_one_file_of_a_bucket_is_read(hub):
    hub.create_bucket("org/bucket", {"d/test.parquet": ids_file(0, 7), "d2/x.parquet": ids_file(7, 9)})
    assert ids(fb.load_dataset("hf://buckets/org/bucket/d/test.parquet", split="test")) == [*range(7)]
    named = {"data_files": "hf://buckets/org/bucket/d/test.parquet", "split": "train"}
    assert ids(fb.load_dataset("parquet", **named)) == [*range(7)]
    assert list(fb.load_dataset("hf://buckets/org/bucket/d")) == ["test"], "d2 begins so, too"
    for path in ("d/tests.parquet", "e"):
        with pytest.raises(fb.NotFoundError, match=f"no such file or folder: `hf://buckets/org/bucket/{path}`"):
            fb.load_dataset(f"hf://buckets/org/bucket/{path}")
    with pytest.raises(fb.DatasetNotFoundError, match="`buckets/org/none` does not exist on the Hub"):
        fb.load_dataset("hf://buckets/org/none")


def test_urls_of_the_hub_are_read_as_what_they_name_and_by_whom(hub, monkeypatch):
    private = {"x.parquet": ids_file(0, 5), "data dir/y.parquet": ids_file(5, 9)}
    repo = hub.create("org/private", private, private=True)
    hub.create_bucket("org/bucket", {"x.parquet": ids_file(20, 22)}, private=True)
    first = repo.sha
    repo.commit({"x.parquet": ids_file(30, 31)}, ref="refs/pr/3")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    url = f"{hub.url}/datasets/org/private/resolve"
    for named, expected in {
        f"{url}/main/x.parquet": [*range(5)],
        f"{url}/main/x.parquet?download=true": [*range(5)],
        f"{url}/{first}/data%20dir/y.parquet": [*range(5, 9)],
        f"{url}/refs%2Fpr%2F3/x.parquet": [30],
        f"{url}/refs/pr/3/x.parquet": [30],
        f"{url}/main/**/*.parquet": [*range(5, 9), *range(5)],
        f"{hub.url}/buckets/org/bucket/resolve/x.parquet": [20, 21],
    }.items():
        assert ids(fb.load_dataset("parquet", data_files=named, split="train")) == expected
        assert ids(fb.load_dataset(named, split="train")) == expected
    state = fb.load_dataset(f"{url}/main/x.parquet", split="train").batches(2).state_dict()
    assert state["commit"] == first
    with pytest.raises(fb.DatasetNotFoundError, match="org/private"):
        fb.load_dataset(f"{url}/main/x.parquet", token=False)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_token_goes_to_no_other_store_of_a_list(monkeypatch, is_copied):
    if is_copied:
        # Then no store of the list is the Hub's.
        pytest.importorskip("huggingface_hub").snapshot_download(
            "org/data", repo_type="dataset", cache_dir=current(None).cache
        )
    folder = uuid.uuid4().hex
    with fsspec.open(f"memory://{folder}/a.parquet", "wb") as file:
        file.write(ids_file(NUM_ROWS, NUM_ROWS + 10))
    given = []
    make = MemoryFileSystem.__init__

    def made(self, *arguments, **options):
        given.append(options)
        make(self, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "__init__", made)
    files = ["hf://datasets/org/data/train/*", f"memory://{folder}/a.parquet"]
    # The Hub would refuse `mark`, which makes the file system a new one.
    options = {"hf_patience": 30} | ({"mark": folder} if is_copied else {})
    loaded = [
        fb.load_dataset("parquet", data_files=files, split="train", token=TOKEN, storage_options=options),
        fb.load_dataset(files, split="train", storage_options=options | {"hf_token": TOKEN}),
    ]
    for dataset in loaded:
        assert ids(dataset) == list(range(NUM_ROWS + 10))
    if is_copied:
        assert given
    else:
        payload = pickle.dumps(loaded[0])
        with fb.unpickle_with({"hf_token": TOKEN}):
            assert ids(pickle.loads(payload)) == list(range(NUM_ROWS + 10))
    assert "hf_" not in str(given)
    assert TOKEN not in str(given)


def test_a_list_of_the_hub_and_of_a_web_server_is_read(hub):
    with FaultProxy(Objects()) as proxy:
        proxy.upstream.objects["a.parquet"] = ids_file(NUM_ROWS, NUM_ROWS + 10)
        files = ["hf://datasets/org/data/train/*", f"{proxy.url}/a.parquet"]
        for options in (None, {"hf_patience": "30 seconds"}):
            dataset = fb.load_dataset("parquet", data_files=files, split="train", token=TOKEN, storage_options=options)
            assert ids(dataset) == list(range(NUM_ROWS + 10))
        for wrong in ({"hf_patiense": "30 s"}, {"aws_region": "x"}):
            with pytest.raises(fb.SettingError, match=f"{next(iter(wrong))}` is not an option"):
                fb.load_dataset("parquet", data_files=files, storage_options=wrong)
        with pytest.raises(fb.SettingError, match="`hf_token` is not an option"):
            fb.load_dataset(files[1], storage_options={"hf_token": TOKEN})
    assert any(request.has_token for request in hub.log)
    assert not any("authorization" in asked.headers for asked in proxy.log)


def test_a_token_goes_to_the_objects_of_a_manifest_and_not_to_its_own_store(hub):
    hub.repos["org/data"].private = True
    folder = f"memory://{uuid.uuid4().hex}"
    open_train(token=TOKEN).save_manifest(f"{folder}/hub.forebay", storage_options={})
    for arguments in ({"token": TOKEN}, {"storage_options": {"hf_token": TOKEN}}):
        assert ids(fb.load_dataset(f"{folder}/hub.forebay", split="train", **arguments)) == list(range(NUM_ROWS))
    with fsspec.open(f"{folder}/a.parquet", "wb") as file:
        file.write(ids_file(0, 10))
    fb.load_dataset(f"{folder}/a.parquet", split="train").save_manifest(f"{folder}/own.forebay")
    with FaultProxy(Objects()) as proxy, fsspec.open(f"{folder}/own.forebay", "rb") as file:
        proxy.upstream.objects["own.forebay"] = file.read()
        assert len(fb.load_dataset(f"{proxy.url}/own.forebay", split="train", token=TOKEN)) == 10


@pytest.mark.usefixtures("hub")
def test_patterns_below_a_folder_of_the_hub_are_its_files():
    folder = {"data_dir": "hf://datasets/org/data/train", "split": "train"}
    assert ids(fb.load_dataset("parquet", data_files="[12].parquet", **folder)) == [*range(1000, 3000)]
    assert ids(fb.load_dataset("parquet", data_files=["2.parquet", "0.parquet"], **folder))[999:1001] == [2999, 0]


PAGE = {"headers": {"Content-Type": "text/html"}, "body": b"<html>Log in.</html>"}

FAULTS = {
    "a CDN that fails": [("cdn", {"times": 3, "status": 503})],
    "a CDN that refuses": [("cdn", {"times": 2, "status": 429})],
    "a body that breaks off": [("cdn", {"times": 5, "cut_after": 150})],
    "a body that breaks off at once": [("cdn", {"times": 2, "cut_after": 0})],
    "slow bytes": [("cdn", {"times": 2, "bytes_per_second": 5e3})],
    "a Hub that fails": [("resolve", {"times": 2, "status": 502}), ("api", {"times": 2, "status": 500})],
    "a Hub that refuses": [("resolve", {"times": 1, "status": 429, "headers": {"Retry-After": "1"}})],
    "a quota that is used up": [
        ("resolve", {"times": 1, "status": 429, "headers": {"RateLimit": '"resolvers";r=0;t=1'}})
    ],
    "an API quota that is used up": [("api", {"times": 1, "status": 429, "headers": {"RateLimit": '"api";r=0;t=0'}})],
    "a signature that is refused": [("cdn", {"times": 1, "status": 403})],
    "a page in the place of bytes": [("cdn", {"times": 2, "status": 200, **PAGE})],
    "no content in the place of bytes": [("cdn", {"times": 2, "status": 204})],
    "nothing in the place of bytes": [("cdn", {"times": 2, "status": 200})],
    "a part that does not say of what": [("cdn", {"times": 2, "status": 206, "body": b"x"})],
    "an answer of the API that breaks off": [("api", {"times": 2, "cut_after": 20})],
    "a page in the place of the API": [("api", {"times": 2, "status": 200, **PAGE})],
    "no list and no commit of the API": [("api", {"times": 2, "status": 200, "body": b'{"error": "later"}'})],
    "a page in the place of the card": [("resolve", {"times": 2, "status": 200, "where": "README", **PAGE})],
    "a page in the place of a file": [("resolve", {"times": 2, "status": 200, "where": ".parquet", **PAGE})],
    "nothing in the place of a file": [("resolve", {"times": 2, "status": 200, "where": ".parquet"})],
    "nothing with a tag in the place of a file": [
        ("resolve", {"times": 1, "status": 200, "where": ".parquet", "headers": {"ETag": '"x"'}})
    ],
    "no content in the place of a file": [("resolve", {"times": 2, "status": 204, "where": ".parquet"})],
    "a part in the place of a file that does not say of what": [
        ("resolve", {"times": 2, "status": 206, "where": ".parquet", "headers": {"ETag": '"x"'}, "body": b"x"})
    ],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_an_epoch_is_exact_through_a_fault(hub, faults):
    for kind, what in faults:
        hub.fail(kind, **what)
    dataset = open_train()
    for kind, what in faults:
        hub.fail(kind, **what)
        if what.get("where") == ".parquet":
            hub.expire_urls()
    assert ids(dataset) == list(range(NUM_ROWS))
    assert sorted(ids(dataset.shuffle(1))) == list(range(NUM_ROWS))
    assert all(fault.times == 0 or fault.kind != "cdn" for fault in hub.faults)


def test_urls_that_expire_in_mid_epoch_are_resolved_once_more_each(hub):
    dataset = open_train()
    stream = iter(dataset.shuffle(2).batches(100))
    first = [next(stream) for _ in range(3)]
    hub.expire_urls()
    hub.clear()
    rest = list(stream)
    found = [value for batch in [*first, *rest] for value in pa.record_batch(batch)["id"].to_pylist()]
    assert sorted(found) == list(range(NUM_ROWS))
    assert hub.count("resolve") <= 3
    assert hub.count("api") == 0


def test_urls_are_resolved_again_before_they_expire(hub):
    hub.url_lifetime = 4.0
    dataset = open_train()
    hub.clear()
    # Past three quarters of their life, and not yet at its end: nothing is ever refused.
    time.sleep(3.2)
    assert ids(dataset) == list(range(NUM_ROWS))
    assert not [request for request in hub.log if request.status == 403]
    assert hub.count("resolve") >= 3


@pytest.mark.parametrize("clock", [-7200.0, 7200.0])
def test_urls_are_good_by_the_clock_of_the_hub(hub, clock):
    hub.clock = clock
    assert ids(open_train()) == list(range(NUM_ROWS))
    assert hub.count("resolve", ".parquet") == 3


def test_small_files_that_the_hub_sends_from_elsewhere_are_read_with_the_token(hub):
    hub.create("org/small", {"data.geoparquet": ids_file(0, 70), "README.md": b"A card.\n"}, private=True)
    hub.has_resolve_cache = True
    assert ids(fb.load_dataset("org/small", split="train", token=TOKEN)) == [*range(70)]
    assert not [request for request in hub.log if request.status == 401]


def test_a_refusal_holds_everybody(hub):
    hub.create("org/many", {f"train/{n:02}.parquet": ids_file(n, n + 1) for n in range(24)})
    hub.fail("resolve", 1, status=429, headers={"Retry-After": "2"}, where="parquet")
    dataset = fb.load_dataset("org/many", split="train")
    assert dataset.num_rows == 24
    asked = sorted(request.started for request in hub.log if request.kind == "resolve" and "parquet" in request.path)
    refused = min(request.ended for request in hub.log if request.status == 429)
    assert not [started for started in asked if refused + 0.8 < started < refused + 1.9]
    assert len(asked) <= 24 + 32, "those that were under way may be answered"


@pytest.mark.parametrize("kind", ["api", "resolve", "cdn"])
def test_a_storm_longer_than_the_patience_is_a_timeout(hub, kind):
    hub.fail(kind, 1000, status=429, where="" if kind != "resolve" else "parquet")
    with pytest.raises(fb.StoreTimeoutError, match="raise `hf_patience` in `storage_options`") as caught:
        open_train(storage_options={"hf_patience": "1 second"})
    assert isinstance(caught.value, TimeoutError)
    assert "1 second" in str(caught.value)


def test_a_wait_that_is_asked_for_and_takes_too_long_is_said(hub):
    hub.fail("api", 1, status=429, headers={"Retry-After": "4000"})
    with pytest.raises(fb.StoreTimeoutError, match="asks for 4000 seconds without requests .429.*more than 600 s"):
        open_train()


def test_a_patience_that_the_next_pause_would_end_is_not_said_to_have_passed(hub):
    hub.fail("api", 1000, status=500)
    with pytest.raises(
        fb.StoreTimeoutError, match=r"refused or failed .500.*next request would come after more than 0.5"
    ):
        open_train(storage_options={"hf_patience": "500ms"})


def test_an_answer_of_the_api_that_comes_byte_by_byte_is_bounded_by_the_patience(hub):
    hub.fail("api", 1, status=200, body=b" " * 2000, bytes_per_second=200)
    with pytest.raises(fb.StoreTimeoutError, match="the answer takes too long"):
        open_train(storage_options={"hf_patience": "1s 500ms"})


def test_times_are_written_as_for_any_store(hub):
    assert len(open_train(storage_options={"retry_for": "1e3", "read_timeout": 2e1})) == NUM_ROWS
    hub.fail("api", 1000, status=500)
    with pytest.raises(fb.StoreTimeoutError, match="after more than 1e-05 seconds"):
        open_train(storage_options={"retry_for": 1e-05})


def test_requests_that_are_made_again_are_told_once(hub):
    hub.fail("api", 2, status=500)
    with pytest.warns(fb.StoreWarning, match="`org/data`: the Hub refuses or fails .500.*for up to 600 sec") as told:
        open_train()
    assert len(told) == 1


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("patience", [None, "1 second"])
def test_a_hub_that_was_never_reached_is_not_asked_for_long(monkeypatch, patience):
    monkeypatch.setattr("forebay.hub.client.FIRST_CONTACT", 0.5)

    def fail(*_arguments, **_options):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", fail)
    start = time.monotonic()
    said = "Temporary failure in name resolution.*`hf_patience` in `storage_options`"
    with pytest.raises(fb.HubUnreachableError, match=said):
        open_train(storage_options={"hf_patience": patience} if patience else None)
    assert time.monotonic() - start < PATIENCE / 10


@pytest.mark.parametrize("num_answered", [0, 1])
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (ConnectionRefusedError, errno.ECONNREFUSED),
        (OSError, errno.ENETUNREACH),
        (OSError, errno.EHOSTUNREACH),
        (socket.gaierror, socket.EAI_NONAME),
    ],
)
def test_a_hub_that_cannot_be_reached_for_a_moment_is_asked_again(hub, monkeypatch, kind, number, num_answered):
    connect, num_asked = socket.create_connection, 0

    def fail_twice(*arguments, **options):
        nonlocal num_asked
        num_asked += 1
        if num_answered < num_asked <= num_answered + 2:
            raise kind(number, "for a moment")
        return connect(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", fail_twice)
    with pytest.warns(fb.StoreWarning, match="for a moment"):
        assert len(open_train()) == NUM_ROWS
    assert hub.count("api") == 1


def test_certificates_and_proxies_hold_for_all_requests_to_the_hub(certificates, tmp_path, monkeypatch):
    authority, certificate, key = certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Hub(context) as hub:
        hub.point(monkeypatch, tmp_path)
        hub.create("org/data", {"train.parquet": ids_file(0, 50)})
        start = time.monotonic()
        with pytest.raises(fb.StoreError, match="`https://localhost:.* is not trusted: .*`ca_certificate` in"):
            open_train()
        assert time.monotonic() - start < PATIENCE / 10, "it stays as it is, so nobody waits"
        trusted = {"ca_certificate": str(authority)}
        assert ids(open_train(storage_options=trusted)) == [*range(50)]
        assert ids(open_train(storage_options={"ca_certificate": authority.read_text()})) == [*range(50)]
        with pytest.raises(fb.SettingError, match="`ca_certificate`: expected certificates in PEM"):
            open_train(storage_options={"ca_certificate": str(tmp_path / "none.pem")})
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        monkeypatch.setenv("CURL_CA_BUNDLE", str(authority))
        assert ids(open_train()) == [*range(50)]
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
        with pytest.raises(fb.SettingError, match="`REQUESTS_CA_BUNDLE`: expected certificates in PEM"):
            open_train()
        folder = tmp_path / "authorities"
        folder.mkdir()
        shutil.copy(authority, folder)
        shutil.copy(key, folder)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder))
        assert ids(open_train()) == [*range(50)]
        # All that leaves this machine goes through it; here, to the Hub, which has small files itself.
        hub.create("org/data", {"train.geoparquet": ids_file(0, 50)})
        with Tunnel(int(hub.url.rpartition(":")[2])) as tunnel:
            monkeypatch.setenv("HF_ENDPOINT", "https://localhost:9")
            assert ids(open_train(storage_options={**trusted, "proxy_url": tunnel.url})) == [*range(50)]
            assert tunnel.names


@pytest.mark.usefixtures("hub")
def test_a_proxy_of_the_environment_that_is_down_is_named(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://somebody:s3cr3t@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    named = r"by the proxy that the environment names, `.*@127\.0\.0\.1:9`"
    with pytest.raises(fb.HubUnreachableError, match=named) as caught:
        open_train(storage_options={"hf_patience": "300ms"})
    assert "s3cr3t" not in str(caught.value)


def test_who_sends_the_files_and_is_not_trusted_is_told_at_once(certificates, tmp_path, monkeypatch):
    authority, certificate, key = certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Hub(cdn_context=context) as hub:
        hub.point(monkeypatch, tmp_path)
        hub.create("org/data", {"train.parquet": ids_file(0, 50)})
        start = time.monotonic()
        with pytest.raises(fb.StoreError, match="is not trusted: its certificate is .*`ca_certificate` in") as caught:
            open_train()
        assert not isinstance(caught.value, fb.StoreTimeoutError), "it stays as it is, so nobody waits"
        assert time.monotonic() - start < PATIENCE / 10
        assert ids(open_train(storage_options={"ca_certificate": str(authority)})) == [*range(50)]


def test_a_token_goes_to_the_hub_alone_and_is_never_shown(hub, monkeypatch):
    hub.repos["org/data"].private = True
    dataset = open_train(token=TOKEN)
    assert ids(dataset) == list(range(NUM_ROWS))
    # The other origin answers 400 to whoever brings one.
    assert not [request for request in hub.log if request.kind == "cdn" and request.has_token]
    assert all(request.has_token for request in hub.log if request.kind != "cdn")
    shown = [repr(dataset), str(dataset.explain()), repr(vars(dataset)), pickle.dumps(dataset).decode("latin1")]
    assert not any(TOKEN in text for text in shown)
    hub.repos.pop("org/data")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(fb.DatasetNotFoundError) as caught:
        open_train()
    assert TOKEN not in str(caught.value)


def test_a_redirect_to_another_origin_gets_no_token_from_the_api_either(hub):
    sha = hub.repos["org/data"].sha
    elsewhere = {"Location": f"{hub.cdn_url}/api"}
    hub.fail("api", 1, status=307, headers=elsewhere)
    with pytest.raises(fb.ForebayError):
        open_train(token=TOKEN)
    assert hub.count("cdn") == 1
    assert not [request for request in hub.log if request.kind == "cdn" and request.has_token]
    assert sha


def test_who_a_signed_url_redirects_to_does_not_hear_it(hub):
    dataset = open_train()
    hub.log.clear()
    hub.fail("cdn", 1, status=307, headers={"Location": f"{hub.cdn_url}/elsewhere"})
    assert ids(dataset) == list(range(NUM_ROWS))
    assert [request for request in hub.log if request.path == "/elsewhere"]
    assert not [request for request in hub.log if request.referer]


def test_a_page_of_html_is_no_answer(hub):
    hub.fail("api", 3, status=200, **PAGE)
    with pytest.raises(fb.StoreError, match=r"text/html, not with JSON; is `HF_ENDPOINT` a Hub"):
        open_train()
    dataset = open_train()
    hub.expire_urls()
    hub.fail("resolve", 1000, status=200, **PAGE)
    with pytest.raises(fb.StoreError, match="HTML"):
        ids(dataset)
    hub.faults.clear()
    assert ids(dataset) == list(range(NUM_ROWS))


def test_wrong_answers_for_ever_are_an_error_of_the_store_and_no_other_version(hub):
    dataset = open_train()
    hub.fail("cdn", 1000, status=200)
    with pytest.raises(fb.StoreError, match=r"the Hub says that it has \d+ bytes, the store behind it 0") as caught:
        ids(dataset)
    assert not isinstance(caught.value, fb.ObjectChangedError)


def test_the_same_part_for_ever_is_an_error_of_the_store(hub):
    """It is no body that broke off: nothing of it is new."""
    body = ids_file(0, 3000)
    hub.create("org/one", {"train.parquet": body})
    dataset = fb.load_dataset("org/one", split="train")
    part = {"Content-Range": f"bytes 0-99/{len(body)}"}
    hub.fail("cdn", 1000, status=206, headers=part, body=body[:100])
    start = time.monotonic()
    with pytest.raises(fb.StoreError, match=r"answered with `bytes 0-99/\d+`, which does not include byte \d+ of"):
        ids(dataset)
    assert time.monotonic() - start < PATIENCE / 10


@pytest.mark.parametrize(
    "wrong", [{"status": 200}, {"status": 204}, {"status": 206, "body": b"x"}, {"status": 200, **PAGE}]
)
def test_wrong_answers_for_ever_in_the_place_of_a_file_are_an_error_and_not_remembered(hub, wrong):
    dataset = open_train()
    hub.expire_urls()
    hub.fail("resolve", 1000, **wrong)
    start = time.monotonic()
    with pytest.raises(fb.StoreError, match=f"the Hub answered (with a page of HTML|{wrong['status']})") as caught:
        ids(dataset)
    assert not isinstance(caught.value, fb.ObjectChangedError)
    assert time.monotonic() - start < PATIENCE / 10
    hub.faults.clear()
    assert ids(dataset) == list(range(NUM_ROWS))


def test_a_file_that_the_hub_begins_to_send_from_elsewhere_is_found_there(hub):
    hub.create("org/small", {"data.geoparquet": ids_file(0, 70)})
    dataset = fb.load_dataset("org/small", split="train")
    hub.has_resolve_cache = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ids(dataset) == [*range(70)]
        assert ids(fb.load_dataset("org/small", split="train")) == [*range(70)]
        hub.has_resolve_cache = False
        assert ids(dataset) == [*range(70)]


def test_a_list_without_an_end_is_an_error(hub):
    hub.create_bucket("org/bucket", {"x.parquet": ids_file(0, 70)})
    fb.load_dataset("hf://buckets/org/bucket", split="train")
    (tree,) = (request.path for request in hub.log if request.kind == "api")
    hub.fail("api", 1000, where="tree", status=200, headers={"Link": f'<{hub.url}{tree}>; rel="next"'}, body=b"[]")
    with pytest.raises(fb.StoreError, match="has no end: its pages lead back to it"):
        fb.load_dataset("hf://buckets/org/bucket", split="train")


def test_an_answer_that_is_too_deep_or_too_long_is_an_error(hub, monkeypatch):
    hub.fail("api", 3, status=200, body=b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(fb.StoreError, match="not with JSON"):
        open_train()
    monkeypatch.setattr("forebay.hub.transport._MAX_BYTES", 100)
    with pytest.raises(fb.StoreError, match="the Hub answered `http.*` with more than"):
        open_train()


def test_a_branch_that_moves_changes_nothing_that_is_open(hub):
    repo, dataset = hub.repos["org/data"], open_train()
    before, state = repo.sha, dataset.shuffle(1).batches(10).state_dict()
    assert state["commit"] == before
    repo.commit({"train/0.parquet": ids_file(0, 10)})
    assert ids(dataset) == list(range(NUM_ROWS))
    moved = open_train()
    assert ids(moved) == [*range(10)]
    with pytest.raises(fb.StateError, match=f"commit: expected `{repo.sha}`, got `{before}`"):
        moved.shuffle(1).batches(10).load_state_dict(state)
    again = open_train(revision=before)
    again.shuffle(1).batches(10).load_state_dict(state)


def test_a_file_of_another_version_is_an_error(hub):
    repo, dataset = hub.repos["org/data"], open_train()
    hub.expire_urls()
    # No Hub should do so: a commit is what it is.
    repo.commits[repo.sha]["train/1.parquet"] = ids_file(5, 2000)
    with pytest.raises(fb.ObjectChangedError, match="train/1.parquet"):
        ids(dataset)
    again = open_train()
    hub.expire_urls()
    del repo.commits[repo.sha]["train/2.parquet"]
    with pytest.raises(fb.NotFoundError, match="train/2.parquet"):
        ids(again)


WORKERS = """
import multiprocessing, pickle, sys
import forebay as fb

def read(dataset):
    return sorted(row["id"] for row in dataset.iter())

if __name__ == "__main__":
    dataset = fb.load_dataset("org/data", split="train", columns=["id"])
    dataset.num_rows
    print("OPEN", flush=True)
    sys.stdin.readline()
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        found = pool.map(read, [dataset, dataset])
    assert found == [list(range(3000))] * 2, "rows"
    print("READ")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_share_what_was_looked_up(hub, tmp_path, method):
    import subprocess

    program = tmp_path / "workers.py"
    program.write_text(WORKERS)
    environment = hub.environment(tmp_path) | {"FOREBAY_CACHE": "0", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, program, method], stdin=pipe, stdout=pipe, env=environment, text=True
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == "OPEN\n"
        hub.clear()
        run.stdin.write("\n")
        run.stdin.flush()
        assert run.stdout.readline() == "READ\n"
    assert hub.count("api") == 0
    assert hub.count("resolve") <= 2 * 3, "one of each file, for each worker"


def test_a_manifest_opens_without_the_api(hub, tmp_path):
    open_train().save_manifest(tmp_path / "data.forebay")
    hub.clear()
    saved = fb.load_dataset(tmp_path / "data.forebay", split="train")
    assert saved.num_rows == NUM_ROWS
    assert not hub.log
    assert ids(saved) == list(range(NUM_ROWS))
    assert hub.count("api") == 0
    assert saved.batches(8).state_dict()["commit"] == hub.repos["org/data"].sha
    hub.repos["org/data"].private = True
    hub.expire_urls()
    mine = fb.load_dataset(tmp_path / "data.forebay", split="train", token=TOKEN)
    assert ids(mine) == list(range(NUM_ROWS))
    with pytest.raises(fb.AccessDeniedError, match=r"train/\d.parquet"):
        ids(fb.load_dataset(tmp_path / "data.forebay", split="train", token=False))


def test_footers_are_kept_by_the_digests_of_files(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path / "cache"))
    open_train()
    hub.clear()
    again = open_train()
    assert again.num_rows == NUM_ROWS
    assert hub.count("resolve", "parquet") == hub.count("cdn") == 0
    hub.repos["org/data"].commit(
        {**hub.repos["org/data"].commits[hub.repos["org/data"].sha], "train/3.parquet": ids_file(0, 5)}
    )
    hub.clear()
    assert open_train().num_rows == NUM_ROWS + 5
    assert hub.count("resolve", "parquet") == 1, "files that are the same are known"


def test_who_may_not_see_a_dataset_is_told_what_to_do(hub):
    hub.create("org/gated", {"x.parquet": ids_file(0, 5)}, gated=True)
    hub.create("org/private", {"x.parquet": ids_file(0, 5)}, private=True)
    for name, token, words in (
        ("org/missing", None, "does not exist on the Hub.*if it is private, log in or pass `token`"),
        ("org/missing", TOKEN, "does not exist on the Hub.*the token may not see it"),
        ("org/private", None, "does not exist on the Hub"),
        ("org/private", STRANGER, "does not exist on the Hub"),
        ("org/gated", None, "gated on the Hub; log in, or pass `token`"),
        ("org/gated", STRANGER, "gated on the Hub; ask for access at .*/datasets/org/gated"),
    ):
        with pytest.raises(fb.DatasetNotFoundError, match=words) as caught:
            fb.load_dataset(name, token=token)
        assert isinstance(caught.value, FileNotFoundError)
        assert isinstance(caught.value, fb.GatedDatasetError) == (name == "org/gated")
        assert str(caught.value).startswith("there is no local folder `org/") == (name != "org/gated")
    assert fb.load_dataset("org/gated", token=TOKEN)["train"].num_rows == 5
    with pytest.raises(fb.AccessDeniedError, match="does not know the token"):
        fb.load_dataset("org/private", token="hf_of_nobody")
    with pytest.raises(fb.DatasetNotFoundError, match="org/data.*no such revision.*nope"):
        fb.load_dataset("org/data", revision="nope")


@pytest.mark.usefixtures("hub")
def test_what_datasets_raises_is_caught_as_such():
    datasets = pytest.importorskip("datasets")
    with pytest.raises(datasets.exceptions.DatasetNotFoundError) as caught:
        fb.load_dataset("org/missing")
    assert isinstance(caught.value, fb.DatasetNotFoundError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value), "of both"
    assert str(copy) == str(caught.value)
    assert not re.search("Traceback", str(caught.value))


def test_nothing_of_hugging_face_is_imported(hub, tmp_path):
    program = """
import sys
import forebay as fb
assert fb.load_dataset("org/data", split="train").num_rows == 3000
loaded = {name.split(".")[0] for name in sys.modules} & {"datasets", "huggingface_hub", "yaml", "requests", "fsspec"}
assert not loaded, loaded
"""
    run_python(program, environment=hub.environment(tmp_path) | {"FOREBAY_CACHE": "0"})


def test_a_token_that_expires_in_mid_epoch_is_an_error_and_another_goes_on_exactly(hub):
    hub.repos["org/data"].private = True
    stream = open_train(token=TOKEN).shuffle(4).batches(50)
    whole = rows_of(open_train(token=TOKEN).shuffle(4).batches(50))
    batches = iter(stream)
    first = [pa.record_batch(next(batches))["id"].to_pylist() for _ in range(7)]
    state = stream.state_dict()
    resumed = open_train(token=TOKEN)
    hub.expire_urls()
    hub.revoked.add(TOKEN)
    with pytest.raises(fb.AccessDeniedError, match=r"train/\d.parquet.*`HF_TOKEN`.*may have been revoked.*401"):
        rows_of(resumed.shuffle(4).batches(50))
    hub.revoked.clear()
    rest = open_train(token=TOKEN).shuffle(4).batches(50)
    rest.load_state_dict(state)
    assert [row for batch in first for row in batch] + rows_of(rest) == whole


def test_a_token_of_the_environment_is_looked_up_again_when_it_is_refused(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    dataset, given = open_train().shuffle(4), open_train(token=TOKEN).shuffle(4)
    whole = rows_of(dataset.batches(50))
    batches = iter(dataset.batches(50))
    first = pa.record_batch(next(batches))["id"].to_pylist()
    # Another one of a login, as those that are good for an hour become.
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    hub.expire_urls()
    hub.revoked.add(TOKEN)
    assert first + [row for batch in batches for row in pa.record_batch(batch)["id"].to_pylist()] == whole
    assert rows_of(dataset.batches(50)) == whole
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.expire_urls()
    with pytest.raises(fb.AccessDeniedError, match="401"):
        rows_of(given.batches(50))


def rows_of(stream: fb.Stream) -> list[int]:
    return [row for batch in stream for row in pa.record_batch(batch)["id"].to_pylist()]


def test_names_that_urls_have_to_quote_are_read(hub):
    names = ["data dir/tr[a]in 1.parquet", "ü/x&y=z.parquet", "a%20b/c#1.parquet", "q?/~+.parquet"]
    hub.create("org/names", {name: ids_file(n * 10, n * 10 + 10) for n, name in enumerate(sorted(names))})
    assert ids(fb.load_dataset("org/names", split="train")) == [*range(40)]


@pytest.mark.parametrize("endpoint", ["nonsense", "file:///etc", "http://", "http:///x", "http://[x"])
def test_an_endpoint_that_is_no_url_is_refused(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(fb.SettingError, match=re.escape(f"the endpoint of the Hub is `{endpoint}`, expected a URL")):
        open_train()


@pytest.mark.parametrize("endpoint", [f"http://{'a' * 64}.test", "http://a b", "http://localhost:port"])
def test_an_endpoint_that_leads_nowhere_is_named(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(fb.HubUnreachableError, match=f"org/data`: cannot reach the Hub at `{endpoint}`: "):
        open_train()


def test_a_redirect_to_a_file_reads_none(hub, tmp_path):
    path = tmp_path / "answer.json"
    path.write_text("[]")
    hub.fail("api", 1, status=307, headers={"Location": path.as_uri()})
    with pytest.raises(fb.HubUnreachableError, match=r"`file:///[^`]*answer\.json` is not an HTTP URL"):
        open_train()


def test_a_redirect_to_no_url_is_an_error_of_the_store(hub):
    hub.fail("api", 1, status=307, headers={"Location": "http://127.0.0.1:99999/x"})
    with pytest.raises(fb.StoreError, match="redirects .* to something that is not a URL"):
        open_train(token=TOKEN)


@pytest.mark.parametrize("token", ["hf_a\nX-Other: 1", "hf_…"])
def test_a_token_that_is_none_is_not_sent(hub, token):
    with pytest.raises(fb.SettingError, match="characters that are not allowed in a token") as caught:
        open_train(token=token)
    assert token not in str(caught.value)
    assert not hub.log


@pytest.mark.parametrize("name", ["*.parquet", ".h/x.parquet", "s/a[b].parquet"])
def test_files_that_are_named_are_read_whatever_their_names_tell(hub, name):
    files = {"train.parquet": (0, 3), "extra.parquet": (3, 7), ".h/x.parquet": (7, 9), "s/a[b].parquet": (9, 12)}
    hub.create("org/mix", {path: ids_file(*rows) for path, rows in files.items()})
    expected = [3, 4, 5, 6, 0, 1, 2] if name == "*.parquet" else list(range(*files[name]))
    dataset = fb.load_dataset("parquet", data_files=f"hf://datasets/org/mix/{name}", split="train")
    assert ids(dataset) == expected


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (socket.gaierror, (-3, "Temporary failure in name resolution")),
        (OSError, (101, "unreachable")),
        (TimeoutError, ()),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_copy_is_used_where_no_network_is(monkeypatch, error, arguments):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    huggingface_hub.snapshot_download("org/data", repo_type="dataset", cache_dir=current(None).cache)
    monkeypatch.setattr(repository, "MOST_SILENCE", 0.5)

    def fail(*_arguments, **_options):
        # One of its own each time: errors hold the frames that they went through, and those the store.
        raise error(*arguments)

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.warns(UserWarning, match="what was downloaded of the commit"):
        assert len(open_train()) == NUM_ROWS


def download_one(path: str = "train/0.parquet") -> None:
    """Makes a copy of the card and a file, of which nobody knows whether it is whole."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    for name in ("README.md", path):
        huggingface_hub.hf_hub_download("org/data", name, repo_type="dataset", cache_dir=current(None).cache)


@pytest.mark.parametrize("num_downloaded", [1, 2, 3])
@pytest.mark.usefixtures("hub")
def test_a_state_is_the_same_whichever_files_were_downloaded(num_downloaded):
    remote = open_train().shuffle(1)
    stream = remote.batches(100)
    before = pa.record_batch(next(iter(stream)))["id"].to_pylist()
    for number in range(num_downloaded):
        download_one(f"train/{number}.parquet")
    copied = open_train().shuffle(1)
    assert copied._native.fingerprint == remote._native.fingerprint
    resumed = copied.batches(100)
    resumed.load_state_dict(stream.state_dict())
    after = [number for batch in resumed for number in pa.record_batch(batch)["id"].to_pylist()]
    assert sorted(before + after) == list(range(NUM_ROWS))


@pytest.mark.parametrize("patience", [None, "30 minutes"])
def test_a_copy_of_some_files_is_not_used_for_a_hub_that_fails_for_a_while(hub, monkeypatch, patience):
    download_one()
    monkeypatch.setattr(repository, "MOST_SILENCE", 0.1)
    hub.fail("api", 2, status=200, body=b" " * 100, cut_after=10)
    options = {"hf_patience": patience} if patience else None
    with pytest.warns(fb.StoreWarning, match=f"for up to {1800 if patience else 600} seconds"):
        assert ids(open_train(storage_options=options)) == list(range(NUM_ROWS))


@pytest.mark.filterwarnings("ignore::forebay.StoreWarning")
def test_a_hub_that_is_there_and_fails_for_too_long_is_a_timeout_whatever_was_downloaded(hub):
    download_one()
    hub.fail("api", 1000, status=200, body=b" " * 100, cut_after=10)
    with pytest.raises(fb.StoreTimeoutError, match="raise `hf_patience`"):
        open_train(storage_options={"hf_patience": "500ms"})


@pytest.mark.filterwarnings("ignore::forebay.StoreWarning", "ignore:of `org/data` at .* only some files")
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_patience_that_is_given_holds_where_there_is_a_copy(monkeypatch, is_whole):
    download_one()
    if is_whole:
        huggingface_hub = pytest.importorskip("huggingface_hub")
        huggingface_hub.snapshot_download("org/data", repo_type="dataset", cache_dir=current(None).cache)
    monkeypatch.setattr(repository, "MOST_SILENCE", 0.1)
    tries = []

    def fail(*_arguments, **_options):
        tries.append(time.monotonic())
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.warns(UserWarning, match="what was downloaded of the commit"):
        assert len(open_train(storage_options={"hf_patience": "1 second"})) == (NUM_ROWS if is_whole else 1000)
    assert tries[-1] - tries[0] > 0.4


@pytest.mark.usefixtures("hub")
def test_a_token_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "of-login"
    path.write_bytes(b"hf_\xff\xfe")
    monkeypatch.setenv("HF_TOKEN_PATH", str(path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(fb.SettingError, match="where a login at the Hub is kept: .*utf-8"):
        open_train()


def test_a_list_goes_on_whatever_other_links_an_answer_has(hub):
    """The pages of a bucket's list, each with a link of another kind before the next one."""
    hub.create_bucket("org/bucket", {"x.parquet": ids_file(0, 70), "y.parquet": ids_file(70, 90)})
    fb.load_dataset("hf://buckets/org/bucket", split="train")
    (tree,) = (request.path for request in hub.log if request.kind == "api")
    listed = json.loads(urllib.request.urlopen(f"{hub.url}{tree}").read())
    for link in (
        '<{}>; rel="next"',
        "<{}>; rel=next",
        '<https://elsewhere.test>; rel=preconnect, <{}>; title="n"; Rel="next"',
    ):
        pages = [json.dumps([item]).encode() for item in listed]
        hub.fail(
            "api", 1, where="tree", status=200, headers={"Link": link.format(f"{hub.url}{tree}&page=2")}, body=pages[0]
        )
        hub.fail("api", 1, where="page=2", status=200, body=pages[1])
        assert sorted(ids(fb.load_dataset("hf://buckets/org/bucket", split="train"))) == list(range(90))


def test_requests_for_places_of_files_that_are_made_again_are_told_and_counted(hub):
    dataset = open_train()
    hub.expire_urls()
    hub.fail("resolve", 2, status=429, headers={"Retry-After": "1"}, where="0.parquet")
    hub.fail("resolve", 1, status=503, where="1.parquet")
    stream = dataset.batches(500)
    with pytest.warns(fb.StoreWarning) as told:
        assert rows_of(stream) == list(range(NUM_ROWS))
    assert {re.search("refuses requests|fails", str(warned.message))[0] for warned in told} == {
        "refuses requests",
        "fails",
    }
    stats = stream.stats()
    assert stats["retries_throttled"] == 2
    assert stats["retries"] == 3


def test_a_range_that_is_refused_though_the_file_has_it_is_asked_for_again(hub):
    dataset = open_train()
    repo = hub.repos["org/data"]
    size = len(repo.commits[repo.sha]["train/0.parquet"])
    hub.fail("cdn", 1, status=416, headers={"Content-Range": f"bytes */{size}"})
    assert ids(dataset.take(1000)) == list(range(1000))
    assert any(request.status == 416 for request in hub.log)


def test_who_has_another_token_reads_by_that_one(hub, monkeypatch):
    hub.repos["org/data"].private = True
    payload = pickle.dumps(open_train(token=TOKEN))
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    refused = pickle.loads(payload)
    with pytest.raises(fb.NotFoundError):
        ids(refused)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    allowed = pickle.loads(payload)
    assert ids(allowed) == list(range(NUM_ROWS))
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    hub.expire_urls()
    with pytest.raises(fb.NotFoundError):
        ids(pickle.loads(payload))


def test_an_endpoint_may_end_with_a_stroke(hub, monkeypatch):
    hub.create("org/private", {"train.parquet": ids_file(0, 9)}, private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/")
    url = f"{hub.url}/datasets/org/private/resolve/main/train.parquet"
    for path in ("org/private", url):
        assert len(fb.load_dataset(path, split="train")) == 9


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_be_otherwise_a_moment_later_is_asked_again(hub, status):
    hub.fail("api", 1, status=status)
    with pytest.warns(fb.StoreWarning, match=f"refuses or fails .{status}"):
        assert len(open_train()) == NUM_ROWS


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_every_kind_of_redirect_is_followed(hub, status):
    hub.create("org/private", {"train.parquet": ids_file(0, 9)}, private=True)
    fb.load_dataset("org/private", split="train", token=TOKEN)
    (there,) = (request.path for request in hub.log if request.kind == "api")
    hub.fail("api", 1, status=status, headers={"Location": f"{there}&moved"})
    assert len(fb.load_dataset("org/private", split="train", token=TOKEN)) == 9
    assert hub.count("api", "&moved") == 1


def test_redirects_without_an_end_are_an_error(hub):
    open_train()
    (there,) = (request.path for request in hub.log if request.kind == "api")
    hub.fail("api", 1000, status=307, headers={"Location": there})
    with pytest.raises(fb.StoreError, match=r"the Hub redirects `http.*` endlessly"):
        open_train()
    assert hub.count("api") < 20


def test_origins_are_the_same_with_the_port_that_is_meant():
    assert _origin("https://hub.test/x") == _origin("https://hub.test:443/y")
    assert _origin("http://hub.test") == _origin("http://hub.test:80")
    others = {
        _origin(url)
        for url in (
            "http://hub.test",
            "https://hub.test",
            "https://hub.test:8443",
            "https://other.test",
            "https://hub.test:80",
            "http://hub.test:443",
        )
    }
    assert len(others) == 6, "none of these gets the token of another"


@pytest.mark.parametrize("name", ["size", "path", "type"])
def test_a_list_with_what_is_no_file_is_an_error(hub, name):
    hub.create_bucket("org/bucket", {"x.parquet": ids_file(0, 7)})
    entry = {"type": "file", "path": "x.parquet", "size": 5, "xetHash": "0"}
    del entry[name]
    hub.fail("api", 1, where="tree", status=200, body=json.dumps([entry]).encode())
    with pytest.raises(fb.StoreError, match="`org/bucket`: the Hub lists a file that is not understood"):
        fb.load_dataset("hf://buckets/org/bucket", split="train")
