"""What the tests take for granted of their proxy, so that a failure of theirs is not the proxy's."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import boto3
import botocore
import fault_edits
import fault_proxy
import pytest
import upstreams
from botocore.config import Config
from botocore.exceptions import ClientError
from fault_proxy import Fault, FaultProxy
from signatures import Signed
from upstreams import Objects, Remote

BODY = bytes(range(256)) * 8
NAME = "folder/an object+1%.parquet"
PATH = "/folder/an%20object%2B1%25.parquet"


@pytest.fixture(scope="module")
def served():
    with FaultProxy(Objects({NAME: BODY})) as proxy:
        yield proxy


@pytest.fixture
def proxy(served):
    served.clear()
    served.seed(0)
    yield served
    served.clear()


def get(proxy, headers=None, method="GET", timeout=5):
    """Makes one request on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout)) as connection:
        connection.request(method, PATH, headers=headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def test_ranges_and_preconditions_are_those_of_http(proxy):
    status, headers, body = get(proxy)
    assert (status, body) == (200, BODY)
    tag = headers["etag"]
    for asked, expected in (("bytes=10-19", BODY[10:20]), ("bytes=-8", BODY[-8:]), ("bytes=2040-9999", BODY[2040:])):
        status, headers, body = get(proxy, {"Range": asked, "If-Match": tag})
        assert (status, body) == (206, expected)
        assert headers["content-range"].endswith(f"/{len(BODY)}")
    assert get(proxy, {"Range": f"bytes={len(BODY)}-"})[0] == 416
    assert get(proxy, {"If-Match": '"other"'})[0] == 412
    assert get(proxy, method="HEAD") == (200, {**get(proxy)[1]}, b"")
    assert proxy.count(method="GET") == 7
    assert proxy.count(where="an object+1%") == 8
    assert proxy.num_bytes() == 10 + 8 + 8 + 2 * len(BODY)


def test_a_server_is_asked_as_the_proxy_was(proxy):
    with FaultProxy(Remote(proxy.url)) as outer:
        assert get(outer, {"Range": "bytes=5-9", "X-Mine": "1"})[2] == BODY[5:10]
        assert get(outer, method="HEAD")[1]["content-length"] == str(len(BODY))
        assert outer.faults == []
    seen = proxy.log[0].headers
    assert (seen["range"], seen["x-mine"], seen["host"]) == ("bytes=5-9", "1", f"127.0.0.1:{outer.port}")


def test_statuses_come_as_often_as_they_are_asked_for(proxy):
    proxy.faults = [Fault(status=503, headers={"Retry-After": "7"}, body=b"slow down", times=2, skip=1)]
    got = [get(proxy) for _ in range(4)]
    assert [status for status, _, _ in got] == [200, 503, 503, 200]
    assert got[1][1]["retry-after"] == "7"
    assert got[1][2] == b"slow down"


def test_chances_are_those_of_the_seed(proxy):
    def pattern(seed):
        proxy.seed(seed)
        proxy.faults = [Fault(status=500, chance=0.5, times=None)]
        return [get(proxy)[0] for _ in range(20)]

    assert pattern(1) == pattern(1) != pattern(2)
    assert set(pattern(1)) == {200, 500}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(cut_after=100), http.client.IncompleteRead),
        (Fault(cut_after=100, ending="reset"), ConnectionResetError),
        (Fault(cut_after=-1), http.client.RemoteDisconnected),
        (Fault(cut_after=-1, ending="reset"), ConnectionResetError),
        (Fault(cut_after=100, ending="stall"), TimeoutError),
        (Fault(cut_after=-1, ending="stall"), TimeoutError),
        (Fault(outage=1.0), ConnectionResetError),
        (Fault(edit=fault_edits.with_header("content-length", "9999")), http.client.IncompleteRead),
    ],
)
def test_connections_end_as_they_are_told_to(proxy, fault, error):
    proxy.faults = [fault]
    with pytest.raises(error):
        get(proxy, timeout=0.3 if error is TimeoutError else 10)
    if fault.outage:
        with pytest.raises(ConnectionRefusedError):
            get(proxy)
        for _ in range(500):
            with contextlib.suppress(ConnectionRefusedError):
                get(proxy)
                break
            threading.Event().wait(0.02)
    assert get(proxy)[2] == BODY


def test_changes_are_those_of_their_names(proxy):
    def changed(edit, asked="bytes=100-199", **more):
        proxy.faults = [Fault(edit=edit, **more)]
        return get(proxy, {"Range": asked})

    part = BODY[100:200]
    flipped = changed(fault_edits.flipped_bit())[2]
    assert sum(a != b for a, b in zip(flipped, part, strict=True)) == 1
    assert changed(fault_edits.shortened(3))[2] == part[:-3]
    assert changed(fault_edits.doubled(4))[2] == part[:4] + part
    assert changed(fault_edits.doubled_within(4))[2] == part[:4] + part[:-4]
    assert changed(fault_edits.shifted_range(2))[1]["content-range"] == f"bytes 102-201/{len(BODY)}"
    assert changed(None, hide=("range",))[:1] == (200,)
    unlimited = changed(fault_edits.with_header("content-length", None))
    assert "content-length" not in unlimited[1]
    assert unlimited[2] == part


def test_a_fault_may_be_of_one_place_or_one_object(proxy):
    proxy.faults = [Fault(status=500, covering=150), Fault(status=501, where="other"), Fault(status=502, method="HEAD")]
    assert get(proxy, {"Range": "bytes=0-149"})[0] == 206
    assert get(proxy, {"Range": "bytes=150-160"})[0] == 500
    assert get(proxy, method="HEAD")[0] == 502
    assert proxy.num_taken() == 2


def test_something_may_happen_before_a_request_is_passed_on(proxy):
    objects = proxy.upstream.objects
    proxy.faults = [Fault(before=lambda: objects.update({NAME: b"new"}))]
    assert get(proxy)[2] == b"new"
    objects[NAME] = BODY


def test_a_slow_link_is_shared_by_all_that_it_takes(proxy):
    proxy.faults = [Fault(bytes_per_second=40_000.0, times=2)]
    threads = [threading.Thread(target=get, args=(proxy,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = time.monotonic()
    assert ended - min(asked.started for asked in proxy.log) >= 2 * len(BODY) / 40_000.0
    assert proxy.most_under_way == 2


def test_the_proxy_is_a_program_too(proxy):
    faults = json.dumps([{"edit": "shortened"}, {"status": 503, "body": "slow"}])
    program = [sys.executable, fault_proxy.__file__, proxy.url, faults]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline().rpartition(":")[2])
        outer = type("Place", (), {"port": port})
        assert get(outer)[2] == BODY[:-1]
        assert get(outer)[::2] == (503, b"slow")
        process.stdin.write("[]\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"requests": 2, "faults": 2, "bytes": len(BODY) + 3}
        assert get(outer)[2] == BODY
        process.stdin.close()
        assert process.wait() == 0


@pytest.fixture(scope="module")
def signed():
    gate = Signed(Objects({f"bucket/{NAME}": BODY}), {"someone": "s3cret", "session": "s3cret"})
    gate.tokens = {"session": "t0ken"}
    with FaultProxy(gate) as proxy:
        yield gate, proxy.url


@pytest.mark.parametrize(
    ("key", "secret", "token", "code"),
    [
        ("someone", "s3cret", None, None),
        ("session", "s3cret", "t0ken", None),
        ("session", "s3cret", None, "InvalidToken"),
        ("someone", "wrong", None, "SignatureDoesNotMatch"),
        ("nobody", "s3cret", None, "InvalidAccessKeyId"),
        (None, None, None, "AccessDenied"),
    ],
)
def test_signatures_are_those_of_botocore(signed, key, secret, token, code):
    gate, url = signed
    unsigned = Config(signature_version=botocore.UNSIGNED) if key is None else Config()
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=unsigned.merge(Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0})),
    )
    if code is None:
        assert client.get_object(Bucket="bucket", Key=NAME, Range="bytes=1-2")["Body"].read() == BODY[1:3]
        gate.expired.add(key)
        with pytest.raises(ClientError, match="ExpiredToken"):
            client.get_object(Bucket="bucket", Key=NAME)
        gate.expired.clear()
    else:
        with pytest.raises(ClientError, match=code):
            client.get_object(Bucket="bucket", Key=NAME)


def test_the_program_needs_the_standard_library_only():
    for module in (fault_proxy, fault_edits, upstreams):
        lines = Path(module.__file__).read_text().splitlines()
        imported = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert imported <= sys.stdlib_module_names | {"__future__", "fault_edits", "upstreams"}
