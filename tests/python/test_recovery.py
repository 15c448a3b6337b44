"""What goes on by itself when a store fails, and what is said of it."""

from __future__ import annotations

import http.server
import io
import multiprocessing
import os
import pickle
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import fault_edits
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_proxy import Fault, FaultProxy
from hub_data import ids_file
from rows import ids_of
from upstreams import Answer, Asked, Objects, refusal

import forebay as fb
from forebay import frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 4000
SECRET = "X-Amz-Signature=s3cr3t"
ROLE = "arn:aws:iam::123456789012:role/training"


def make_object(first: int = 0) -> bytes:
    rows = range(first, first + NUM_ROWS)
    table = pa.table({"id": rows, "text": [f"{row:0200}" for row in rows]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=400, use_dictionary=False, compression="none")
    return sink.getvalue()


BODY = make_object()
OTHER_BODY = make_object(NUM_ROWS)


@dataclass
class Store:
    """A server of one object under any name, and what it is to do wrong."""

    url: str = ""
    query: str | None = None
    """What the URL must end in."""
    token: str | None = None
    """What requests must be signed for."""
    identity: str | None = None
    """The token of a web identity that gets a session, whose token is `token`."""
    session_seconds: int = 3600
    """How long a session lasts, as is said of it."""
    num_sessions: int = 0
    statuses: list[int] = field(default_factory=list)
    """Of the next answers, from the last on."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of all requests."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ranges."""

    protocol_version = "HTTP/1.1"
    store: Store

    def do_GET(self) -> None:
        store = self.store
        store.headers.append({name.lower(): value for name, value in self.headers.items()})
        is_signed = store.token is None or self.headers.get("x-amz-security-token") == store.token
        has_query = store.query is None or self.path.endswith(f"?{store.query}")
        if not is_signed or not has_query:
            self.answer(HTTPStatus.FORBIDDEN, b"<Error><Code>ExpiredToken</Code></Error>", {})
        elif store.statuses:
            self.answer(store.statuses.pop(), b"", {})
        else:
            first, last = self.headers["range"].removeprefix("bytes=").split("-")
            start = int(first) if first else max(len(BODY) - int(last), 0)
            stop = min(int(last) + 1, len(BODY)) if first else len(BODY)
            headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(BODY)}"}
            self.answer(HTTPStatus.PARTIAL_CONTENT, BODY[start:stop], headers)

    def do_POST(self) -> None:
        """Begins a session of a web identity, as AWS's token service does."""
        asked = dict(parse_qsl(urlsplit(self.path).query))
        wanted = {"Action": "AssumeRoleWithWebIdentity", "RoleArn": ROLE, "WebIdentityToken": self.store.identity}
        if not wanted.items() <= asked.items():
            self.answer(HTTPStatus.FORBIDDEN, b"<ErrorResponse/>", {})
            return
        self.store.num_sessions += 1
        ends = datetime.now(UTC) + timedelta(seconds=self.store.session_seconds)
        session = (
            f"<AccessKeyId>key</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>{self.store.token}"
        )
        session += f"</SessionToken><Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
        kind = "AssumeRoleWithWebIdentity"
        body = f"<{kind}Response><{kind}Result><Credentials>{session}</Credentials></{kind}Result></{kind}Response>"
        self.answer(HTTPStatus.OK, body.encode(), {})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        about = {"ETag": '"one"', "Last-Modified": "Fri, 31 Dec 1999 23:59:59 GMT", "Content-Length": str(len(body))}
        for name, value in (about | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(context: ssl.SSLContext | None = None) -> Iterator[Store]:
    store = Store()
    with Server(("127.0.0.1", 0), type("OfTest", (Handler,), {"store": store})) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        scheme = "http" if context is None else "https"
        store.url = f"{scheme}://127.0.0.1:{server.server_port}"
        yield store
        server.shutdown()
        thread.join()


@pytest.fixture
def store() -> Iterator[Store]:
    yield from serve()


def ids(dataset: fb.Dataset) -> list[int]:
    batches = dataset.select_columns("id").batches(400, rank=0, world_size=1)
    return [row for batch in batches for row in pa.record_batch(batch)["id"].to_pylist()]


def test_trouble_is_told_once_for_each_kind_and_counted(store):
    ds = fb.load_dataset(f"{store.url}/x.parquet", split="train")
    store.statuses += [500, 500, 503]
    stream = ds.batches(400, rank=0, world_size=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert [row for batch in stream for row in pa.record_batch(batch)["id"].to_pylist()] == list(range(NUM_ROWS))
        assert ids(ds) == list(range(NUM_ROWS))
    told = sorted(str(warning.message) for warning in seen if warning.category is fb.StoreWarning)
    assert len(told) == 2, told
    assert "fails (the store answered 500 Internal Server Error)" in told[0]
    assert "because there are too many (the store answered 503 Service Unavailable)" in told[1]
    assert all("`retry_for`" in text and store.url in text for text in told)
    stats = stream.stats()
    assert (stats["retries"], stats["retries_failed"], stats["retries_throttled"]) == (3, 2, 1)
    assert (stats["retries_broken"], stats["retries_stalled"], stats["bodies_resumed"], stats["hedges"]) == (0, 0, 0, 0)


@pytest.mark.parametrize(("options", "seconds"), [({}, 10), ({"retry_for": "7s"}, 7)])
def test_a_store_that_never_answered_is_said_to_be_asked_for_as_long_as_it_is(options, seconds):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.parquet"
    with warnings.catch_warnings():
        warnings.simplefilter("error", fb.StoreWarning)
        with pytest.raises(fb.StoreWarning, match=f"retried, each for up to {seconds} seconds .`retry_for`"):
            fb.load_dataset(url, split="train", storage_options=options)


RETRIES = ("retries_throttled", "retries_failed", "retries_broken", "retries_stalled")
BROKEN = "cannot be reached, or breaks connections ("

TROUBLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "429": ({"status": 429}, "refuses requests because there are too many (", "retries_throttled"),
    "503": ({"status": 503}, "refuses requests because there are too many (", "retries_throttled"),
    "500": ({"status": 500}, "fails (", "retries_failed"),
    "a reset before the answer": ({"cut_after": -1, "ending": "reset"}, BROKEN, "retries_broken"),
    "a reset in mid-body": ({"cut_after": 500, "ending": "reset"}, BROKEN, "retries_broken"),
    "a cut in mid-body": ({"cut_after": 500}, BROKEN, "retries_broken"),
    "a stall before the answer": ({"cut_after": -1, "ending": "stall"}, "stalls (", "retries_stalled"),
    "a stall in mid-body": ({"cut_after": 500, "ending": "stall"}, "stalls (", "retries_stalled"),
    "another range": (
        {"edit": fault_edits.shifted_range(3)},
        "gives answers that do not match the requests (",
        "retries_failed",
    ),
}
"""Of each kind of trouble: how it is made, what is told of it, and where it is counted."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(Objects({"x.parquet": BODY})) as proxy:
        yield proxy


@pytest.mark.parametrize("name", TROUBLES)
def test_each_kind_of_trouble_is_told_once_and_counted(name, proxy):
    fault, told, counter = TROUBLES[name]
    options = {"read_timeout": "500ms" if counter == "retries_stalled" else "20s", "retry_for": "60s"}
    ds = fb.load_dataset(f"{proxy.url}/x.parquet", split="train", storage_options=options)
    found = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            proxy.faults = [Fault(times=2, **fault)]
            stream = ds.batches(400, rank=0, world_size=1)
            assert ids_of(stream) == list(range(NUM_ROWS))
            assert proxy.num_taken() == 2
            found.append(stream.stats())
    texts = [str(warning.message) for warning in seen if warning.category is fb.StoreWarning]
    assert len(texts) == 1, texts
    assert f"`{proxy.url}` {told}" in texts[0]
    assert "`retry_for`" in texts[0]
    for stats in found:
        assert {kind: stats[kind] for kind in RETRIES} == dict.fromkeys(RETRIES, 0) | {counter: 2}
        assert stats["retries"] == 2
        assert stats["bodies_resumed"] == (2 if "in mid-body" in name else 0)
        assert stats["hedges"] == 0


def test_a_request_that_is_late_is_made_twice_and_no_trouble(proxy):
    """What is late is known after many requests of a size; each of these objects is one."""
    names = [f"part-{number:03}.parquet" for number in range(100)]
    proxy.upstream.objects.update({name: ids_file(number, number + 1) for number, name in enumerate(names)})
    ds = fb.load_dataset([f"{proxy.url}/{name}" for name in names], split="train")
    with warnings.catch_warnings():
        warnings.simplefilter("error", fb.StoreWarning)
        assert ids(ds) == list(range(100))
        # The first request for an object is no second one of a late one.
        late = Fault(latency=20.0, where="part-050")
        proxy.faults = [late]
        stream = ds.batches(400, rank=0, world_size=1)
        assert ids_of(stream) == list(range(100))
    stats = stream.stats()
    assert late.num_taken == 1
    assert stats["hedges"] >= stats["hedges_won"] >= 1
    assert stats["retries"] == 0


def test_a_warning_that_is_made_an_error_is_one(store):
    ds = fb.load_dataset(f"{store.url}/x.parquet", split="train")
    store.statuses += [500]
    with warnings.catch_warnings():
        warnings.simplefilter("error", fb.StoreWarning)
        with pytest.raises(fb.StoreWarning):
            list(ds.batches(400, rank=0, world_size=1))


def test_a_warning_that_is_made_an_error_hides_no_other(proxy, monkeypatch):
    ds = fb.load_dataset(f"{proxy.url}/x.parquet", split="train").select(range(400))
    num_before = len(proxy.log)
    proxy.faults = [Fault(status=500), Fault(status=503), Fault(edit=fault_edits.shifted_range(3))]

    def level_after_all_troubles():
        # The warnings of those that come meanwhile are then issued together.
        deadline = time.monotonic() + 60
        while len(proxy.log) < num_before + 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        return 1

    monkeypatch.setattr(frames, "level_of_loop", level_after_all_troubles)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("error", "(?s).*refuses requests", fb.StoreWarning)
        with pytest.raises(fb.StoreWarning, match="refuses requests"):
            list(ds.batches(400, rank=0, world_size=1))
        assert ids_of(ds.batches(400, rank=0, world_size=1)) == list(range(400))
    texts = [str(warning.message) for warning in seen if warning.category is fb.StoreWarning]
    assert len(texts) == 2, texts
    assert "fails (" in texts[0]
    assert "gives answers that do not match" in texts[1]


def test_a_store_that_fails_for_too_long_is_a_timeout_that_says_what_to_raise(store):
    ds = fb.load_dataset(f"{store.url}/x.parquet", split="train", storage_options={"retry_for": "600 ms"})
    store.statuses += [500] * 1000
    with pytest.raises(fb.StoreTimeoutError, match=r"bytes \d+\.\.\d+ of .*within 0\.6 seconds.*`retry_for`") as caught:
        ids(ds)
    assert "500 Internal Server Error" in str(caught.value)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_signed_url_is_read_everywhere_and_shown_nowhere(store, method):
    store.query = SECRET
    signed = f"{store.url}/a%20b.parquet?{SECRET}"
    ds = fb.load_dataset(signed, split="train")
    assert ids(ds) == list(range(NUM_ROWS))
    shown = [repr(ds), str(ds.explain()), repr(vars(ds)), ds._repr_html_(), str(ds.batches(10).state_dict())]
    assert not [text for text in shown if "s3cr3t" in text]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(ids, [pickle.loads(pickle.dumps(ds))]) == list(range(NUM_ROWS))
    store.query = "another"
    for fails in (lambda: ids(ds), lambda: fb.load_dataset(signed, split="train")):
        with pytest.raises(fb.AccessDeniedError, match=r"a%20b|a b") as caught:
            fails()
        chain = [caught.value]
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        assert not [error for error in chain if "s3cr3t" in str(error)]


def test_signed_urls_of_one_host_keep_their_own_queries(store):
    urls = [f"{store.url}/{number}.parquet?number={number}" for number in range(3)]
    ds = fb.load_dataset(urls, split="train")
    assert ds.num_rows == 3 * NUM_ROWS
    store.query = "number=1"
    assert ids(ds.select(range(NUM_ROWS, 2 * NUM_ROWS))) == list(range(NUM_ROWS))
    with pytest.raises(fb.AccessDeniedError):
        ids(ds.select([0]))


class ByQuery(Objects):
    """Objects that are named by the query of a URL, all with one path."""

    def ask(self, asked: Asked) -> Answer:
        return super().ask(replace(asked, path=dict(parse_qsl(urlsplit(asked.path).query))["id"]))


def test_urls_that_differ_in_the_query_are_two_objects(tmp_path):
    with FaultProxy(ByQuery({"one": BODY, "two": OTHER_BODY})) as web:
        one, two = f"{web.url}/download?id=one", f"{web.url}/download?id=two"
        splits = fb.load_dataset("parquet", data_files={"train": one, "test": two})
        expected = {"train": list(range(NUM_ROWS)), "test": list(range(NUM_ROWS, 2 * NUM_ROWS))}
        assert {name: ids(ds) for name, ds in splits.items()} == expected
        both = fb.load_dataset([two, one], split="train")
        for ds in (both, pickle.loads(pickle.dumps(both))):
            assert ids(ds) == expected["test"] + expected["train"]
            assert ids(ds.filter("id % 7 = 3")) == [row for row in ids(ds) if row % 7 == 3]
        with pytest.raises(fb.SettingError, match=r"^source: .*/download` is named twice"):
            fb.load_dataset([one, two, one], split="train")
        with pytest.raises(fb.SettingError, match="a manifest cannot hold URLs with a query") as caught:
            both.save_manifest(tmp_path / "m.forebay")
        texts = [str(caught.value), str(both.batches(10).state_dict()), repr(both), str(both.explain())]
        assert not [text for text in texts if "id=" in text]


def test_a_state_is_good_for_another_signature(store):
    store.query = "X-Amz-Signature=first"
    stream = fb.load_dataset(f"{store.url}/x.parquet?{store.query}", split="train").batches(400, rank=0, world_size=1)
    next(iter(stream))
    state = stream.state_dict()
    store.query = "X-Amz-Signature=second"
    again = fb.load_dataset(f"{store.url}/x.parquet?{store.query}", split="train").batches(400, rank=0, world_size=1)
    again.load_state_dict(state)
    assert ids_of(again) == list(range(400, NUM_ROWS))


@pytest.mark.parametrize("query", ["sig=abc\n", "sig=a b", 'sig="a"'])
def test_a_query_that_no_url_has_is_refused_at_once(proxy, query):
    with pytest.raises(fb.SettingError, match=r"x\.parquet.*not allowed in a URL") as caught:
        fb.load_dataset(f"{proxy.url}/x.parquet?{query}", split="train")
    assert "sig" not in str(caught.value)
    assert not proxy.log


class AsWritten(Objects):
    """Objects whose names are paths as they were sent, in hex."""

    def ask(self, asked: Asked) -> Answer:
        return super().ask(replace(asked, path=asked.path.encode().hex()))


def test_a_slash_that_is_encoded_is_sent_so():
    first_ids = {"/d/a%2Fb.parquet": 0, "/d/a/b.parquet": NUM_ROWS}
    objects = {path.encode().hex(): OTHER_BODY if first else BODY for path, first in first_ids.items()}
    with FaultProxy(AsWritten(objects)) as web:
        for path, first in first_ids.items():
            assert ids(fb.load_dataset(f"{web.url}{path}", split="train"))[0] == first


@pytest.mark.parametrize("name", ["a%2Bb", "a%5B1%5D", "a%3Bb%2Cc%20d", "a b%2B", "%c3%a9%3D"])
def test_what_is_encoded_is_sent_as_it_is_written(tmp_path, name):
    sent = f"/{name.replace(' ', '%20')}.parquet"
    with FaultProxy(AsWritten({sent.encode().hex(): BODY})) as web:
        url = f"{web.url}/{name}.parquet"
        ds = fb.load_dataset(url, split="train")
        ds.save_manifest(tmp_path / "m.forebay")
        named = fb.load_dataset("parquet", data_files={"train": url}, split="train")
        saved = fb.load_dataset(str(tmp_path / "m.forebay"), split="train")
        for again in (ds, named, saved, pickle.loads(pickle.dumps(ds))):
            assert ids(again) == list(range(NUM_ROWS))
        named.batches(10).load_state_dict(ds.batches(10).state_dict())
        with pytest.raises(fb.SettingError, match=f"`{re.escape(web.url + sent)}` is named twice"):
            fb.load_dataset([url, url], split="train")


def test_a_name_that_looks_like_a_pattern_says_how_to_write_it(proxy):
    with pytest.raises(fb.SettingError, match=r"list the files' URLs instead; write `\[` in a name as `%5B`"):
        fb.load_dataset(f"{proxy.url}/x[12].parquet", split="train")


def test_a_state_is_good_however_a_name_is_written():
    names = ["a%2Bb.parquet", "a+b.parquet"]
    objects = {f"/{name}".encode().hex(): BODY for name in names}
    with FaultProxy(AsWritten(objects)) as web:
        first, second = (fb.load_dataset(f"{web.url}/{name}", split="train").batches(10) for name in names)
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("status", [None, 404, 429])
def test_a_target_of_a_redirect_that_fails_is_named(proxy, status):
    with FaultProxy(Objects({})) as elsewhere:
        elsewhere.faults = [Fault(status=status, times=None)]
        target = elsewhere.url
        if status is None:
            elsewhere.faults = [Fault(cut_after=-1, times=None)]
        headers = {"Location": f"{target}/x.parquet?X-Amz-Signature=s3cr3t"}
        proxy.faults = [Fault(status=302, headers=headers, times=None)]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with pytest.raises(fb.ForebayError) as caught:
                fb.load_dataset(f"{proxy.url}/x.parquet", split="train", storage_options={"retry_for": "500ms"})
        for text in (str(caught.value), *(str(warned.message) for warned in told)):
            assert f"it redirects to `{target}`" in text, text
            assert "s3cr3t" not in text


class WithoutTags(Objects):
    """Objects without e-tags, which may tell when they were changed."""

    changed: str | None = None

    def ask(self, asked: Asked) -> Answer:
        answer = super().ask(replace(asked, hidden=("if-match",)))
        answer.headers.pop("etag", None)
        if self.changed is not None:
            answer.headers["last-modified"] = self.changed
        return answer


def test_the_time_of_the_last_change_stands_for_an_e_tag():
    with FaultProxy(web := WithoutTags({"x.parquet": BODY})) as proxy:
        web.changed = "Thu, 01 Jan 2026 00:00:00 GMT"
        ds = fb.load_dataset(f"{proxy.url}/x.parquet", split="train")
        copy = pickle.loads(pickle.dumps(ds))
        assert ids(ds) == ids(copy) == list(range(NUM_ROWS))
        state = ds.batches(10).state_dict()
        web.objects["x.parquet"], web.changed = OTHER_BODY, "Fri, 02 Jan 2026 00:00:00 GMT"
        assert len(OTHER_BODY) == len(BODY)
        for stale in (ds, copy):
            with pytest.raises(fb.ObjectChangedError, match="x.parquet"):
                ids(stale)
        # It was put there again, as it was: a time is no content.
        web.objects["x.parquet"] = BODY
        fb.load_dataset(f"{proxy.url}/x.parquet", split="train").batches(10).load_state_dict(state)


def test_an_e_tag_that_is_gone_is_another(proxy):
    ds = fb.load_dataset(f"{proxy.url}/x.parquet", split="train")
    proxy.upstream = WithoutTags({"x.parquet": OTHER_BODY})
    with pytest.raises(fb.ObjectChangedError, match="x.parquet"):
        ids(ds)


def test_an_object_that_shrank_has_changed():
    with FaultProxy(web := WithoutTags({"x.parquet": BODY})) as proxy:
        ds = fb.load_dataset(f"{proxy.url}/x.parquet", split="train")
        web.objects["x.parquet"] = BODY[:3]
        with pytest.raises(fb.ObjectChangedError, match="x.parquet"):
            ids(ds)


class OfReplicas(Objects):
    """Objects of several servers, each of which has its own time of each."""

    num_asked = 0

    def ask(self, asked: Asked) -> Answer:
        answer = super().ask(asked)
        self.num_asked += 1
        answer.headers["last-modified"] = f"Thu, 01 Jan 2026 00:00:{self.num_asked % 60:02} GMT"
        return answer


def test_a_body_is_resumed_whatever_the_time_of_a_change_that_its_e_tag_does_not_tell():
    with FaultProxy(OfReplicas({"x.parquet": BODY})) as proxy:
        ds = fb.load_dataset(f"{proxy.url}/x.parquet", split="train")
        # Bodies are read whole.
        proxy.faults = [cut := Fault(cut_after=1000)]
        texts = [text for batch in ds.batches(400) for text in pa.record_batch(batch)["text"].to_pylist()]
        assert cut.num_taken == 1
    assert texts == [f"{row:0200}" for row in range(NUM_ROWS)]


class Written(Objects):
    """Objects that may be put there."""

    def ask(self, asked: Asked) -> Answer:
        if asked.method != "PUT":
            return super().ask(asked)
        self.objects[unquote(urlsplit(asked.path).path).lstrip("/")] = asked.body
        return Answer(200, {"etag": '"one"', "content-length": "0"})


@pytest.mark.parametrize("bucket", ["latest", "computeMetadata"])
def test_a_bucket_may_be_called_like_a_part_of_a_metadata_service(bucket, tmp_path):
    (tmp_path / "x.parquet").write_bytes(BODY)
    with FaultProxy(Written()) as proxy:
        proxy.faults = [refused := Fault(status=503, method="PUT", where="m.forebay")]
        options = {"aws_endpoint_url": proxy.url, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
        with pytest.warns(fb.StoreWarning, match="refuses requests"):
            ds.save_manifest(f"s3://{bucket}/m.forebay", storage_options=options)
        assert refused.num_taken == 1
        assert f"{bucket}/m.forebay" in proxy.upstream.objects


class GoingRound(Objects):
    """A store whose listings lead from each of two pages to the other."""

    def ask(self, asked: Asked) -> Answer:
        asks_for_b = "continuation-token=b" in asked.path
        name, after = ("b", "a") if asks_for_b else ("a", "b")
        body = (
            "<?xml version='1.0'?><ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{after}</NextContinuationToken><Contents><Key>d/{name}.parquet</Key><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>5</Size></Contents></ListBucketResult>"
        ).encode()
        return Answer(200, {"content-type": "application/xml", "content-length": str(len(body))}, body)


def test_a_listing_that_has_no_end_is_an_error():
    with FaultProxy(GoingRound()) as proxy:
        options = {"aws_endpoint_url": proxy.url, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        with pytest.raises(fb.StoreError, match=r"it listed `d/..parquet` again, so its listing has no end"):
            fb.load_dataset("s3://bucket/d/", split="train", storage_options=options)


class WithoutSuffixes(Objects):
    """Objects of a server that knows no ranges from the end."""

    def ask(self, asked: Asked) -> Answer:
        if asked.shown.get("range", "").startswith("bytes=-"):
            return refusal(416)
        return super().ask(asked)


class WholeForSuffixes(Objects):
    """Objects of a server that passes over ranges that it does not know."""

    def ask(self, asked: Asked) -> Answer:
        if asked.shown.get("range", "").startswith("bytes=-"):
            asked = replace(asked, hidden=(*asked.hidden, "range"))
        return super().ask(asked)


@pytest.mark.parametrize("objects", [WithoutSuffixes, WholeForSuffixes])
def test_a_server_that_knows_no_suffixes_is_read(objects):
    with FaultProxy(objects({"x.parquet": BODY, "empty.parquet": b""})) as proxy:
        assert ids(fb.load_dataset(f"{proxy.url}/x.parquet", split="train")) == list(range(NUM_ROWS))
        with pytest.raises(fb.DataError, match="it has 0 bytes"):
            fb.load_dataset(f"{proxy.url}/empty.parquet", split="train")


class WholeIfEmpty(Objects):
    """Objects of a server that answers each request for a range of nothing with all of it, as Go's library does."""

    def ask(self, asked: Asked) -> Answer:
        answer = super().ask(asked)
        is_empty = answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        return Answer(200, {"content-length": "0"}) if is_empty else answer


def test_an_object_of_no_bytes_is_told_as_such_however_it_is_sent():
    with FaultProxy(WholeIfEmpty({"x.parquet": b""})) as proxy, pytest.raises(fb.DataError, match="it has 0 bytes"):
        fb.load_dataset(f"{proxy.url}/x.parquet", split="train")


def point(monkeypatch: pytest.MonkeyPatch, store: Store, token: str) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": token,
        "AWS_REGION": "here",
    }.items():
        monkeypatch.setenv(name, value)


def test_credentials_that_expire_in_mid_epoch_are_looked_up_once_more(store, monkeypatch):
    store.token = "first"
    point(monkeypatch, store, "first")
    ds = fb.load_dataset("s3://bucket/x.parquet", split="train")
    stream = iter(ds.select_columns("id").batches(100, rank=0, world_size=1))
    first = [next(stream)]
    monkeypatch.setenv("AWS_SESSION_TOKEN", "second")
    store.token = "second"
    found = [row for batch in [*first, *stream] for row in pa.record_batch(batch)["id"].to_pylist()]
    assert found == list(range(NUM_ROWS))
    assert ids(ds) == list(range(NUM_ROWS))
    store.token = "third"
    with pytest.raises(fb.AccessDeniedError, match="s3://bucket/x.parquet"):
        ids(ds)


def test_credentials_that_were_passed_are_not_looked_up(store, monkeypatch):
    store.token = "second"
    point(monkeypatch, store, "second")
    options = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "first"}
    with pytest.raises(fb.AccessDeniedError):
        fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=options)
    assert len(store.headers) == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("s3://lake/d/x.parquet", "<Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message>"),
        ("s3://lake/d/", "<Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message>"),
        ("az://lake/d/", "<Code>AuthenticationFailed</Code><Detail>Request date header too old: 'Fri'</Detail>"),
    ],
)
def test_a_clock_that_is_wrong_is_told_from_credentials_that_are(proxy, source, said):
    proxy.faults = [Fault(status=403, where="", body=f"<Error>{said}</Error>".encode(), times=None)]
    options = {"aws_endpoint_url": proxy.url, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    if source.startswith("az:"):
        options = {"azure_storage_account_name": "lake", "azure_storage_account_key": "c2VjcmV0"}
        options |= {"azure_storage_endpoint": proxy.url, "allow_http": "true"}
    with pytest.raises(fb.AccessDeniedError, match="the clock of this machine differs") as caught:
        fb.load_dataset(source, split="train", storage_options=options)
    assert "check the credentials" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "status", "code"), [("s3", 403, "InvalidObjectState"), ("az", 409, "BlobArchived")])
def test_an_archived_object_is_told_as_such(proxy, scheme, status, code):
    said = f"<Error><Code>{code}</Code><Message>Not in this tier.</Message></Error>".encode()
    proxy.upstream.objects["lake/x.parquet"] = BODY
    dated = Fault(method="HEAD", edit=fault_edits.with_header("last-modified", "Fri, 31 Dec 1999 23:59:59 GMT"))
    proxy.faults = [dated, Fault(status=status, body=said, times=None)]
    options = {"aws_endpoint_url": proxy.url, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    if scheme == "az":
        options = {"azure_storage_account_name": "lake", "azure_storage_account_key": "c2VjcmV0"}
        options |= {"azure_storage_endpoint": proxy.url, "allow_http": "true"}
    with pytest.raises(fb.AccessDeniedError, match=r"x\.parquet`; it is archived.*Not in this tier") as caught:
        fb.load_dataset(f"{scheme}://lake/x.parquet", split="train", storage_options=options)
    assert "already exists" not in str(caught.value)


def test_who_asks_pays_where_that_is_wanted(store, monkeypatch):
    point(monkeypatch, store, "first")
    options = {"aws_request_payer": "true"}
    assert fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=options).num_rows == NUM_ROWS
    assert {headers.get("x-amz-request-payer") for headers in store.headers} == {"requester"}


def test_without_credentials_the_error_comes_soon_and_says_what_to_do(store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    options = {"aws_endpoint_url": store.url, "aws_metadata_endpoint": "http://127.0.0.1:9"}
    with pytest.raises(fb.AccessDeniedError, match=r"no credentials for `s3://bucket/x.parquet`.*`skip_signature`"):
        fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=options)
    monkeypatch.setenv("AWS_PROFILE", "me")
    with pytest.raises(fb.AccessDeniedError, match=r"profiles \(`AWS_PROFILE`\) are not read: `eval .*export"):
        fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=options)
    public = options | {"aws_skip_signature": "true"}
    assert fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=public).num_rows == NUM_ROWS


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate of an authority that no system trusts; beside it a server's, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make certificates")

    def make(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes")
    make("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Authority")
    make("req", *new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    make("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")
    return tmp_path / "ca.pem"


@pytest.fixture
def secure_store(authority: Path) -> Iterator[Store]:
    """A store that is asked with TLS only, and has a certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.parent / "server.pem", authority.parent / "server.key")
    yield from serve(context)


def test_a_private_authority_is_trusted_where_it_is_named(authority, secure_store):
    url = f"{secure_store.url}/x.parquet"
    for certificate in (str(authority), authority.read_text()):
        ds = fb.load_dataset(url, split="train", storage_options={"ca_certificate": certificate})
        assert ids(ds) == list(range(NUM_ROWS))
    with pytest.raises(fb.StoreError, match="certificate") as caught:
        fb.load_dataset(url, split="train")
    assert not isinstance(caught.value, fb.StoreTimeoutError), "it stays as it is, so nobody waits"


@pytest.mark.parametrize("session_seconds", [3600, 60])
def test_a_web_identity_gets_a_new_session_when_one_is_over(
    session_seconds, authority, secure_store, monkeypatch, tmp_path
):
    """One that lasts is over before its time, and one is over soon. The token service is asked with TLS only."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("identity-1")
    for name, value in {
        "AWS_ENDPOINT_URL": secure_store.url,
        "AWS_ENDPOINT_URL_STS": secure_store.url,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": ROLE,
        "AWS_REGION": "here",
    }.items():
        monkeypatch.setenv(name, value)
    secure_store.identity, secure_store.token, secure_store.session_seconds = "identity-1", "session-1", session_seconds
    options = {"ca_certificate": str(authority)}
    ds = fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=options)
    stream = iter(ds.select_columns("id").batches(100, rank=0, world_size=1))
    first = [next(stream)]
    begun = secure_store.num_sessions
    # Whoever issues tokens has written another one meanwhile.
    (tmp_path / "token").write_text("identity-2")
    secure_store.identity, secure_store.token = "identity-2", "session-2"
    found = [row for batch in [*first, *stream] for row in pa.record_batch(batch)["id"].to_pylist()]
    assert found == list(range(NUM_ROWS))
    assert ids(ds) == list(range(NUM_ROWS))
    assert secure_store.num_sessions > begun
    secure_store.identity, secure_store.token = "identity-3", "session-3"
    with pytest.raises(fb.AccessDeniedError, match="s3://bucket/x.parquet") as failed:
        ids(ds)
    assert "identity-2" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry_for": "soon"}, "`retry_for`: expected a time"),
        ({"retry_fro": "1 s"}, "did you mean `retry_for`"),
        ({"hedge": "maybe"}, "`hedge`: expected `true` or `false`"),
        ({"ca_certificate": "/no/such.pem"}, "`ca_certificate`: cannot read `/no/such.pem`"),
        (
            {"ca_certificate": "-----BEGIN CERTIFICATE-----\nx"},
            "`ca_certificate`: expected certificates in PEM.*; those given are damaged",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(options, said):
    for source in ("s3://bucket/x.parquet", "https://host/x.parquet", "gs://bucket/x.parquet"):
        with pytest.raises(fb.SettingError, match=said):
            fb.load_dataset(source, split="train", storage_options=options)


@pytest.mark.parametrize(
    ("source", "variable", "said"),
    [
        ("s3://bucket/x.parquet", "AWS_RETRY_FOR", "expected a time"),
        ("s3://bucket/x.parquet", "AWS_READ_TIMEOUT", "expected a time"),
        ("gs://bucket/x.parquet", "GOOGLE_HEDGE", "expected `true` or `false`"),
        ("https://host/x.parquet", "HTTP_HEDGE", "expected `true` or `false`"),
        ("s3://bucket/x.parquet", "AWS_ROUND_TRIP_BYTES", "expected a number of bytes"),
        ("s3://bucket/x.parquet", "AWS_ENDPOINT_URL", "expected an absolute URL"),
    ],
)
def test_variables_that_cannot_work_are_refused_by_name(source, variable, said, monkeypatch):
    monkeypatch.setenv(variable, "banana")
    with pytest.raises(fb.SettingError, match=f"^environment: `{variable}`: {said}"):
        fb.load_dataset(source, split="train")


@pytest.mark.parametrize(
    ("source", "given", "missing"),
    [
        ("az://container/x.parquet", {}, "azure_storage_account_name"),
        ("s3://bucket/x.parquet", {"aws_access_key_id": "key"}, "aws_secret_access_key"),
        ("s3://bucket/x.parquet", {"aws_secret_access_key": "secret"}, "aws_access_key_id"),
    ],
)
def test_what_a_store_needs_and_does_not_get_is_named(source, given, missing, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    said = f"`{missing}` is missing for `.*`, and so is `{missing.upper()}` in the environment"
    with pytest.raises(fb.SettingError, match=said):
        fb.load_dataset(source, split="train", storage_options=given)


@pytest.mark.parametrize(
    ("source", "name", "here"),
    [
        ("s3://bucket/x.parquet", "anon", "aws_skip_signature"),
        ("s3://bucket/x.parquet", "region_name", "aws_region"),
        ("s3://bucket/x.parquet", "endpoint_override", "aws_endpoint_url"),
        ("s3://bucket/x.parquet", "secret_key", "aws_secret_access_key"),
        ("gs://bucket/x.parquet", "anonymous", "google_skip_signature"),
        ("az://container/x.parquet", "anon", "azure_skip_signature"),
        ("az://container/x.parquet", "connection_string", "azure_storage_account_name`, `azure_storage_account_key"),
        ("az://container/x.parquet", "credential", "azure_storage_account_key`, `azure_storage_sas_token"),
        ("az://container/x.parquet", "account_url", "azure_storage_endpoint"),
        ("az://container/x.parquet", "endpoint_url", "azure_storage_endpoint"),
        ("gs://bucket/x.parquet", "token", "google_service_account`, `google_bearer_token"),
        ("gs://bucket/x.parquet", "gcs_base_url", "google_base_url"),
        ("gs://bucket/x.parquet", "anon", "google_skip_signature"),
        ("s3://bucket/x.parquet", "use_ssl", "aws_endpoint_url"),
        ("s3://bucket/x.parquet", "url_style", "aws_virtual_hosted_style_request"),
        ("https://host/x.parquet", "headers", "authorization"),
        ("https://host/x.parquet", "password", "authorization"),
    ],
)
def test_options_of_other_libraries_are_answered_with_what_they_are_called_here(source, name, here):
    with pytest.raises(fb.SettingError, match=f"`{name}` is not an option of `{source[:-10]}`; here it is `{here}`"):
        fb.load_dataset(source, split="train", storage_options={name: "x"})


def test_who_names_a_profile_is_told_that_none_is_read():
    with pytest.raises(fb.SettingError, match=r"profiles are not read: `eval .*export-credentials"):
        fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options={"profile": "me"})


@pytest.mark.parametrize("token", [None, "", "of the environment"])
def test_an_option_that_is_nothing_is_not_given(store, token, monkeypatch):
    point(monkeypatch, store, token or "")
    options = {} if token else {"aws_session_token": token}
    assert fb.load_dataset("s3://bucket/x.parquet", split="train", storage_options=options).num_rows == NUM_ROWS
    assert {headers.get("x-amz-security-token") for headers in store.headers} == {token or None}


@pytest.mark.parametrize("scheme", ["az", "gs", "gs by a key"])
def test_an_endpoint_without_tls_needs_no_other_option(proxy, scheme):
    proxy.upstream.objects["lake/x.parquet"] = BODY
    edit = fault_edits.with_header("last-modified", "Fri, 31 Dec 1999 23:59:59 GMT")
    proxy.faults = [Fault(edit=edit, times=None, method=method) for method in ("GET", "HEAD")]
    key = {"gcs_base_url": proxy.url, "disable_oauth": True} | dict.fromkeys(
        ["client_email", "private_key", "private_key_id"], ""
    )
    options = {
        "az": {"azure_storage_account_name": "lake", "azure_storage_endpoint": proxy.url, "skip_signature": True},
        "gs": {"google_base_url": proxy.url, "skip_signature": True},
        # A structure is passed as JSON.
        "gs by a key": {"google_service_account_key": key},
    }
    ds = fb.load_dataset(f"{scheme[:2]}://lake/x.parquet", split="train", storage_options=options[scheme])
    assert ids(ds) == list(range(NUM_ROWS))


class OfAzure(Objects):
    """Objects of a server that fails if it is asked for the end of one."""

    def ask(self, asked: Asked) -> Answer:
        if asked.shown.get("range", "").startswith("bytes=-"):
            return refusal(500)
        return super().ask(replace(asked, path=asked.path.split("?")[0]))


def test_a_signature_of_azure_is_known_on_any_host():
    with FaultProxy(OfAzure({"c/x.parquet": BODY})) as web:
        ds = fb.load_dataset(f"{web.url}/c/x.parquet?sv=2026-01-01&sp=r&sig=c2VjcmV0", split="train")
        assert ids(ds) == list(range(NUM_ROWS))
        assert {asked.status for asked in web.log} == {206}


def test_what_is_gone_is_not_there(proxy):
    proxy.faults = [Fault(status=410, times=None)]
    with pytest.raises(fb.NotFoundError, match=r"x\.parquet"):
        fb.load_dataset(f"{proxy.url}/x.parquet", split="train")


def test_a_percent_sign_that_stands_for_itself_says_how_to_write_it(proxy):
    with pytest.raises(fb.SettingError, match=r"per%cent\.parquet.*write `%` in a name as `%25`"):
        fb.load_dataset(f"{proxy.url}/per%cent.parquet", split="train")


BASIC = "Basic bWU6czNjcjN0LW9mLWEtc2VydmVy"


class Closed(Objects):
    """Objects for those who say who they are."""

    def ask(self, asked: Asked) -> Answer:
        return super().ask(asked) if asked.headers.get("authorization") == BASIC else refusal(401)


def test_a_web_server_is_told_who_asks(tmp_path):
    with FaultProxy(Closed({"x.parquet": BODY})) as web:
        url, options = f"{web.url}/x.parquet", {"authorization": BASIC}
        ds = fb.load_dataset(url, split="train", storage_options=options)
        assert ids(ds) == list(range(NUM_ROWS))
        ds.save_manifest(tmp_path / "m.forebay")
        saved = fb.load_dataset(str(tmp_path / "m.forebay"), split="train", storage_options=options)
        assert ids(saved) == list(range(NUM_ROWS))
        payload = pickle.dumps(ds)
        assert BASIC.split()[1] not in f"{payload!r} {ds!r} {ds.explain()}"
        assert BASIC.encode().hex() not in repr(payload)
        with pytest.raises(fb.SettingError, match="`authorization` of `http://.*unpickle_with"):
            pickle.loads(payload)
        with fb.unpickle_with(options):
            assert ids(pickle.loads(payload)) == list(range(NUM_ROWS))
        for wrong in ({}, {"authorization": "Basic d3Jvbmc="}):
            with pytest.raises(fb.AccessDeniedError, match=r"`authorization` in `storage_options`") as caught:
                fb.load_dataset(url, split="train", storage_options=wrong)
            assert "signature" not in str(caught.value)


def test_who_asks_is_told_to_one_server_alone(proxy):
    with FaultProxy(Objects({"x.parquet": BODY})) as elsewhere:
        options = {"authorization": BASIC}
        proxy.faults = [Fault(status=302, headers={"Location": f"{elsewhere.url}/x.parquet"}, times=None)]
        assert ids(fb.load_dataset(f"{proxy.url}/x.parquet", split="train", storage_options=options))
        assert {asked.headers.get("authorization") for asked in proxy.log} == {BASIC}
        assert {asked.headers.get("authorization") for asked in elsewhere.log} == {None}
        sources = [f"{server.url}/x.parquet" for server in (proxy, elsewhere)]
        with pytest.raises(fb.SettingError, match="`authorization` is for one server"):
            fb.load_dataset(sources, split="train", storage_options=options)


@pytest.mark.parametrize("userinfo", ["me:s3cr3t", "me"])
def test_a_password_in_a_url_is_refused_with_where_it_belongs(userinfo):
    with pytest.raises(fb.SettingError, match="pass them as `authorization` in `storage_options`: `Basic `") as caught:
        fb.load_dataset(f"https://{userinfo}@host/x.parquet", split="train")
    assert "s3cr3t" not in str(caught.value)


def test_each_store_of_a_dataset_gets_its_own_options(store, tmp_path):
    store.token = "session"
    options = {"aws_endpoint_url": store.url, "aws_access_key_id": "key", "aws_secret_access_key": "s3cr3t-key"}
    options |= {"aws_session_token": "session", "authorization": BASIC, "retry_for": "5 s"}
    with FaultProxy(Closed({"y.parquet": OTHER_BODY})) as web:
        sources = ["s3://bucket/x.parquet", f"{web.url}/y.parquet"]
        ds = fb.load_dataset(sources, split="train", storage_options=options)
        assert ids(ds) == list(range(2 * NUM_ROWS))
        with fb.unpickle_with(options):
            assert ids(pickle.loads(pickle.dumps(ds))) == list(range(2 * NUM_ROWS))
        ds.save_manifest(tmp_path / "m.forebay")
        assert len(fb.load_dataset(str(tmp_path / "m.forebay"), split="train", storage_options=options)) == len(ds)
        named = fb.load_dataset("parquet", data_files=sources, split="train", storage_options=options)
        assert len(named) == len(ds)
        said = r"`aws_sesion_token` is not an option of `s3://bucket`; did you mean .*`aws_session_token`"
        with pytest.raises(fb.SettingError, match=said):
            fb.load_dataset(sources, split="train", storage_options={**options, "aws_sesion_token": "x"})
