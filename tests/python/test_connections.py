"""What lies between a process and a store: certificates, proxies, and names that have no address."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import ssl
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from fault_proxy import Fault, FaultProxy
from hub_data import ids_file
from lakes import make_certificates
from rows import ids_of
from servers import Tunnel
from upstreams import Objects

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 2000
OBJECT = "bucket/d/a.parquet"
BODY = ids_file(0, NUM_ROWS, row_group_rows=200)
S3 = {"aws_region": "us-east-1", "aws_skip_signature": "true"}
SHORT = {"retry_for": "300ms"}

NOWHERE_NAME = f"{'no-such-host-' * 5}x.invalid"
"""A label has 63 letters at most, so no network is asked for this one, and none keeps the tests waiting."""
NOWHERE = f"http://{NOWHERE_NAME}"
HAS_NO_ADDRESS = "failed to lookup address information"
LONGEST_SECONDS = 10.0
"""For what ends after 0.3, on machines that have other things to do."""

SOMEWHERE_ELSE = "https://localhost:9"
"""Where nobody listens: a proxy alone leads on from there."""

stores = pytest.mark.parametrize("store", ["https", "s3"])


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes what the machine has of these settings away."""
    for name in [name for name in os.environ if name.lower().endswith(("_proxy", "_ca_bundle"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def authority(certificates: tuple[Path, Path, Path]) -> str:
    return str(certificates[0])


@pytest.fixture
def secure_url(secure_web: FaultProxy) -> str:
    """Where an object is by TLS, of an authority that no system trusts."""
    secure_web.upstream.objects[OBJECT] = BODY
    return f"https://localhost:{secure_web.port}"


@pytest.fixture
def tunnel(secure_url: str) -> Iterator[Tunnel]:
    """A proxy that leads there, whatever it is asked for."""
    with Tunnel(int(secure_url.rpartition(":")[2])) as tunnel:
        yield tunnel


def open_at(store: str, url: str, **options: str) -> fb.Dataset:
    """Opens the object at a web server, or at one that is an S3."""
    if store == "s3":
        options = S3 | {"aws_endpoint_url": url} | options
        return fb.load_dataset(f"s3://{OBJECT}", split="train", storage_options=options)
    return fb.load_dataset(f"{url}/{OBJECT}", split="train", storage_options=options)


def given(monkeypatch: pytest.MonkeyPatch, **settings: str) -> dict[str, str]:
    """Sets those in capitals as variables; returns the others, which are options."""
    for name, value in settings.items():
        if name.isupper():
            monkeypatch.setenv(name, value)
    return {name: value for name, value in settings.items() if name.islower()}


def ids(rows: object) -> list[int]:
    return pa.table(rows)["id"].to_pylist()


@stores
def test_a_certificate_of_an_unknown_authority_is_refused(secure_url, store):
    with pytest.raises(fb.StoreError, match="certificate") as caught:
        open_at(store, secure_url)
    assert not isinstance(caught.value, fb.StoreTimeoutError), "it stays as it is, so nobody waits"


@pytest.mark.parametrize(
    ("store", "setting"),
    [
        ("https", "ca_certificate"),
        ("https", "HTTP_CA_CERTIFICATE"),
        ("https", "allow_invalid_certificates"),
        ("https", "HTTP_ALLOW_INVALID_CERTIFICATES"),
        ("https", "REQUESTS_CA_BUNDLE"),
        ("https", "CURL_CA_BUNDLE"),
        ("s3", "REQUESTS_CA_BUNDLE"),
        ("s3", "ca_certificate"),
        ("s3", "AWS_CA_CERTIFICATE"),
        ("s3", "AWS_CA_BUNDLE"),
        ("s3", "allow_invalid_certificates"),
        ("s3", "AWS_ALLOW_INVALID_CERTIFICATES"),
    ],
)
def test_an_option_or_a_variable_makes_a_certificate_good(secure_url, authority, monkeypatch, store, setting):
    value = "true" if "invalid" in setting.lower() else authority
    options = given(monkeypatch, **{setting: value})
    assert ids(open_at(store, secure_url, **options)) == list(range(NUM_ROWS))


def test_a_bundle_may_be_a_folder_and_one_that_is_missing_is_named(secure_url, authority, tmp_path, monkeypatch):
    folder = tmp_path / "authorities"
    folder.mkdir()
    shutil.copy(authority, folder / "ours.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder))
    assert ids(open_at("https", secure_url)) == list(range(NUM_ROWS))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    for store, variable in (
        ("https", "REQUESTS_CA_BUNDLE"),
        ("https", "CURL_CA_BUNDLE"),
        ("https", "HTTP_CA_CERTIFICATE"),
        ("s3", "AWS_CA_BUNDLE"),
        ("s3", "AWS_CA_CERTIFICATE"),
    ):
        with monkeypatch.context() as only:
            only.setenv(variable, str(tmp_path / "none.pem"))
            with pytest.raises(fb.SettingError, match=rf"^environment: `{variable}`: cannot read `.*none\.pem`"):
                open_at(store, secure_url)


@stores
def test_authorities_of_the_system_are_trusted_besides(secure_url, authority, tmp_path, monkeypatch, store):
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    another, _, _ = make_certificates(tmp_path)
    assert ids(open_at(store, secure_url, ca_certificate=str(another))) == list(range(NUM_ROWS))


@stores
@pytest.mark.usefixtures("certificates")
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("subjectAltName=DNS:other.example\nbasicConstraints=CA:FALSE\n", "for another host"),
        ("subjectAltName=DNS:localhost\nbasicConstraints=CA:TRUE\n", "`CA:TRUE`"),
    ],
    ids=["another host", "an authority"],
)
def test_what_is_wrong_with_a_certificate_is_told_at_once(names, said, tmp_path, store):
    authority, certificate, key = make_certificates(tmp_path, names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with (
        FaultProxy(Objects({OBJECT: BODY}), context=context) as web,
        pytest.raises(fb.StoreError, match=f"is not trusted: .*{said}") as caught,
    ):
        open_at(store, f"https://localhost:{web.port}", ca_certificate=str(authority))
    assert not isinstance(caught.value, fb.StoreTimeoutError), "it stays as it is, so nobody waits"
    assert "`ca_certificate`" not in str(caught.value), "it would not help"


@stores
def test_a_machine_without_certificates_of_authorities_is_told_so(secure_url, tmp_path, monkeypatch, store):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with pytest.raises(fb.SettingError, match=r"^environment: .*no certificates of authorities.*`SSL_CERT_FILE`"):
        open_at(store, secure_url)


@stores
@pytest.mark.parametrize(
    ("location", "said"),
    [
        (None, "again and again: 10 redirects"),
        ("file:///etc/passwd", "not a web URL"),
        ("http://127.0.0.1:99999/", "not a web URL"),
    ],
    ids=["itself", "a file", "no port"],
)
def test_a_redirect_that_leads_nowhere_is_told_as_one(location, said, store):
    with FaultProxy(Objects({OBJECT: BODY})) as web:
        web.faults = [Fault(times=None, status=302, headers={"Location": location or f"{web.url}/{OBJECT}"})]
        with pytest.raises(fb.StoreError, match=f"it answers 302 Found.*{said}") as caught:
            open_at(store, web.url)
    assert not isinstance(caught.value, fb.StoreTimeoutError), "nobody waits"


def test_who_is_sent_on_to_tls_trusts_the_authorities_of_the_system(secure_url, authority, monkeypatch):
    sent_on = Fault(times=None, status=307, headers={"Location": f"{secure_url}/{OBJECT}"})
    with FaultProxy(Objects({OBJECT: BODY})) as plain:
        plain.faults = [sent_on]
        with pytest.raises(fb.StoreError, match="certificate"):
            open_at("https", plain.url)
        monkeypatch.setenv("SSL_CERT_FILE", authority)
        assert ids(open_at("https", plain.url)) == list(range(NUM_ROWS))
    assert sent_on.num_taken > 0


@pytest.mark.parametrize(
    ("store", "setting"),
    [
        ("https", "proxy_url"),
        ("https", "HTTPS_PROXY"),
        ("https", "ALL_PROXY"),
        ("https", "HTTP_PROXY_URL"),
        ("s3", "proxy_url"),
        ("s3", "HTTPS_PROXY"),
        ("s3", "ALL_PROXY"),
        ("s3", "AWS_PROXY_URL"),
    ],
)
def test_a_store_is_reached_through_a_tunnel(tunnel, authority, monkeypatch, store, setting):
    options = given(monkeypatch, **{setting: tunnel.url, "ca_certificate": authority})
    assert ids(open_at(store, SOMEWHERE_ELSE, **options)) == list(range(NUM_ROWS))
    assert set(tunnel.names) == {"localhost:9"}


@stores
@pytest.mark.parametrize("settings", [("HTTPS_PROXY", "NO_PROXY"), ("proxy_url", "proxy_excludes")])
@pytest.mark.parametrize("excluded", ["localhost", "other.example, localhost"])
def test_a_tunnel_sees_nothing_of_what_is_excluded(
    tunnel, secure_url, authority, monkeypatch, store, settings, excluded
):
    proxy, excludes = settings
    options = given(monkeypatch, **{proxy: tunnel.url, excludes: excluded, "ca_certificate": authority})
    assert ids(open_at(store, secure_url, **options)) == list(range(NUM_ROWS))
    assert tunnel.names == []
    # Addresses are hosts, too.
    url = secure_url.replace("localhost", "127.0.0.1")
    options = given(monkeypatch, **{proxy: tunnel.url, excludes: "*", "ca_certificate": authority})
    assert ids(open_at(store, url, **options)) == list(range(NUM_ROWS))
    assert tunnel.names == []
    # All that is not excluded goes through it.
    options = given(monkeypatch, **{proxy: tunnel.url, excludes: "other.example", "ca_certificate": authority})
    assert ids(open_at(store, secure_url, **options)) == list(range(NUM_ROWS))
    assert set(tunnel.names) == {secure_url.removeprefix("https://")}


@stores
@pytest.mark.parametrize("settings", [("HTTPS_PROXY", "NO_PROXY"), ("proxy_url", "proxy_excludes")])
def test_what_is_excluded_may_have_a_port(tunnel, secure_url, authority, monkeypatch, store, settings):
    proxy, excludes = settings
    excluded = f"other.example:443,{secure_url.removeprefix('https://')}"
    options = given(monkeypatch, **{proxy: tunnel.url, excludes: excluded, "ca_certificate": authority})
    assert ids(open_at(store, secure_url, **options)) == list(range(NUM_ROWS))
    assert tunnel.names == []
    options = given(monkeypatch, **{proxy: tunnel.url, excludes: "other.example:443", "ca_certificate": authority})
    assert ids(open_at(store, secure_url, **options)) == list(range(NUM_ROWS))
    assert set(tunnel.names) == {secure_url.removeprefix("https://")}


@stores
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("setting", ["proxy_url", "ALL_PROXY"])
def test_a_proxy_that_is_down_is_named(monkeypatch, store, scheme, setting):
    options = given(monkeypatch, **{setting: "http://somebody:s3cr3t@127.0.0.1:9"})
    with pytest.raises(fb.StoreTimeoutError, match=rf"through the proxy `127\.0\.0\.1:9` of `{setting}`") as caught:
        open_at(store, f"{scheme}://far.example", **options, **SHORT)
    assert "s3cr3t" not in str(caught.value)


@stores
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_to_know_who_asks_is_named(tunnel, store, scheme):
    tunnel.is_open = False
    named = rf"through the proxy `{tunnel.url.removeprefix('http://')}` of `proxy_url`, which requires a user name"
    with pytest.raises(fb.StoreError, match=named) as caught:
        open_at(store, f"{scheme}://far.example", proxy_url=tunnel.url)
    assert "407" in str(caught.value)
    # It would not let the next one through, either.
    assert len(tunnel.names) == 1


def test_a_tunnel_is_told_who_asks_and_nobody_else(tunnel, authority):
    url = tunnel.url.replace("//", "//somebody:s3cr3t@")
    assert ids(open_at("s3", SOMEWHERE_ELSE, proxy_url=url, ca_certificate=authority)) == list(range(NUM_ROWS))
    assert tunnel.credentials == {f"Basic {base64.b64encode(b'somebody:s3cr3t').decode()}"}
    with pytest.raises(fb.StoreError) as caught:
        open_at("s3", SOMEWHERE_ELSE, proxy_url="http://somebody:s3cr3t@127.0.0.1:9", **SHORT)
    assert "s3cr3t" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (f"{NOWHERE}/a.parquet", {}),
        ("s3://bucket/d/", S3 | {"aws_endpoint_url": NOWHERE}),
        ("s3://bucket/d/a.parquet", S3 | {"aws_endpoint_url": NOWHERE}),
    ],
    ids=["web", "listing", "object"],
)
def test_a_host_that_has_no_address_is_named(source, options):
    started = time.monotonic()
    with pytest.raises(fb.StoreTimeoutError) as caught:
        fb.load_dataset(source, split="train", storage_options=options | SHORT)
    assert time.monotonic() - started < LONGEST_SECONDS
    for said in (f"`{source}`", NOWHERE_NAME, HAS_NO_ADDRESS):
        assert said in str(caught.value)


AZURE = {"azure_storage_account_name": "lake", "azure_storage_account_key": "c2VjcmV0"}
ACCOUNT = json.dumps({"type": "service_account", "gcs_base_url": "localhost:9000"})


@pytest.mark.parametrize(
    ("store", "name", "value"),
    [
        *(("s3", "aws_endpoint_url", url) for url in ("localhost:9000", "localhost", "", "ftp://host", f"{NOWHERE}\n")),
        ("s3", "AWS_ENDPOINT_URL_S3", "localhost:9000"),
        ("az", "azure_endpoint", "localhost:10000"),
        ("gs", "google_base_url", "localhost:9000"),
        ("gs", "GOOGLE_BASE_URL", "localhost:9000"),
        ("gs", "google_service_account_key", ACCOUNT),
        *(("s3", name, "s3cr3t-\n") for name in ("aws_access_key_id", "aws_session_token", "AWS_SESSION_TOKEN")),
        ("s3", "aws_region", "us-east-1\n"),
        ("az", "azure_storage_token", "s3cr3t-\r"),
        ("gs", "google_bearer_token", "s3cr3t-\n"),
    ],
)
def test_what_makes_no_request_is_refused_by_name(monkeypatch, store, name, value):
    credentials = {"s3": {"aws_access_key_id": "id", "aws_secret_access_key": "s3cr3t"}, "az": AZURE, "gs": {}}[store]
    options = credentials | given(monkeypatch, **{name: value})
    with pytest.raises(fb.SettingError, match=f"`{name}`: (its `gcs_base_url`: )?expected") as caught:
        fb.load_dataset(f"{store}://{OBJECT}", split="train", storage_options=options)
    assert "s3cr3t" not in f"{caught.value}"


@stores
@pytest.mark.parametrize("name", ["timeout", "read_timeout", "connect_timeout"])
def test_a_time_without_a_unit_is_of_seconds(secure_url, authority, monkeypatch, store, name):
    variable = f"{'AWS' if store == 's3' else 'HTTP'}_{name}".upper()
    for setting, value in ((name, "30"), (name, "1m 30s"), (variable, "30")):
        options = given(monkeypatch, **{setting: value})
        assert ids(open_at(store, secure_url, ca_certificate=authority, **options)) == list(range(NUM_ROWS))
    for setting, value in ((name, "soon"), (variable, "0")):
        options = given(monkeypatch, **{setting: value})
        with pytest.raises(fb.SettingError, match=f"`{setting}`: expected a time such as"):
            open_at(store, secure_url, **options)


def test_who_reads_without_credentials_does_so_after_a_pickle(monkeypatch):
    # Without it the machine would be asked for its role, or whatever credentials the environment has would be shown.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with FaultProxy(Objects({OBJECT: BODY})) as web:
        ds = pickle.loads(pickle.dumps(open_at("s3", web.url)))
        assert ids(ds) == list(range(NUM_ROWS))


@pytest.mark.parametrize("setting", ["read_timeout", "HTTP_READ_TIMEOUT"])
def test_an_option_or_a_variable_says_what_a_stall_is(monkeypatch, setting):
    options = given(monkeypatch, **{setting: "400 ms"})
    with FaultProxy(Objects({OBJECT: BODY})) as web:
        web.faults = [Fault(cut_after=-1, ending="stall")]
        started = time.monotonic()
        assert ids(open_at("web", web.url, **options)) == list(range(NUM_ROWS))
        assert web.num_taken() == 1
    assert time.monotonic() - started < LONGEST_SECONDS


def test_an_epoch_whose_store_has_no_address_any_more_ends_and_goes_on_when_it_has_one():
    with FaultProxy(Objects({OBJECT: BODY})) as web:
        ds = open_at("s3", f"http://localhost:{web.port}")
        whole = ids_of(ds.shuffle(5).batches(100))
        batches = iter(stream := ds.shuffle(5).batches(100))
        before = ids_of(next(batches) for _ in range(7))
        state = stream.state_dict()
        batches.close()

        payload = pickle.dumps(ds)
        with fb.unpickle_with({**S3, "aws_endpoint_url": NOWHERE, **SHORT}):
            lost = pickle.loads(payload).shuffle(5).batches(100)
        lost.load_state_dict(state)
        started = time.monotonic()
        with pytest.raises(fb.StoreTimeoutError) as caught:
            next(iter(lost))
        assert time.monotonic() - started < LONGEST_SECONDS
        for said in (f"`s3://{OBJECT}`", NOWHERE_NAME, HAS_NO_ADDRESS):
            assert said in str(caught.value)

        with fb.unpickle_with(S3):
            again = pickle.loads(payload).shuffle(5).batches(100)
        again.load_state_dict(lost.state_dict())
        assert before + ids_of(again) == whole
