"""Secrets stay where they belong: not in messages, not in what is written, and in pickles only for our own processes.

Everything secret holds `MARK`, in one spelling or another, so looking for it is enough.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import data
import pyarrow.parquet as pq
import pytest
from gossip import Gossip
from torch.utils.data import DataLoader

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARK = "M4rkedS3cr3t"
TOKEN = f"{MARK}/of+the=session"
NUM_ROWS = 500
SPELLINGS = (MARK, MARK.encode().hex(), MARK.upper(), MARK.lower())


def shows(text: str | bytes) -> bool:
    """Whether anything secret is in it."""
    text = text if isinstance(text, str) else text.decode("latin-1")
    return any(spelling in text for spelling in SPELLINGS)


@pytest.fixture(scope="module")
def gossip() -> Iterator[Gossip]:
    body = io.BytesIO()
    pq.write_table(data.ids_table(NUM_ROWS), body, row_group_size=100)
    with Gossip("corpus/a.parquet", body.getvalue(), TOKEN) as store:
        yield store


@pytest.fixture
def options(gossip: Gossip, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    return {
        "aws_endpoint_url": gossip.url,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": f"AK{MARK}",
        "aws_secret_access_key": f"{MARK}/key+",
        "aws_session_token": TOKEN,
    }


@pytest.fixture
def ds(options: dict[str, str]) -> fb.Dataset:
    return fb.load_dataset("s3://lake/corpus/", split="train", storage_options=options)


def told(error: BaseException) -> str:
    """All that can be seen of an error: its text, its attributes, its causes and their places in the code."""
    causes = []
    seen: BaseException | None = error
    while seen is not None:
        causes.append(f"{seen} {seen!r} {seen.args} {vars(seen)} {getattr(seen, '__notes__', '')}")
        seen = seen.__cause__ or seen.__context__
    printed = "".join(traceback.format_exception(error))
    # Lines of this file that hold secrets are not a message.
    return "\n".join([*causes, *(line for line in printed.splitlines() if not line.startswith("    "))])


def test_what_a_dataset_and_a_stream_show_holds_no_secret(ds: fb.Dataset, caplog: pytest.LogCaptureFixture, capfd: Any):
    caplog.set_level(logging.DEBUG)
    kept = ds.filter("id % 2 = 0").shuffle(seed=1)
    loader = kept.to_torch(50)
    batches = iter(loader)
    next(batches)
    shown = {
        "repr": f"{ds} {ds!r} {loader} {loader!r} {ds._native!r}",
        "explain": f"{kept.explain()}",
        "stats": f"{loader.stats()}",
        "state": json.dumps(loader.state_dict()),
        "fields": f"{[str(value) for value in vars(ds).values()]} {[str(value) for value in vars(loader).values()]}",
        "objects": f"{ds.objects() if hasattr(ds, 'objects') else ''}",
        "logs": caplog.text,
        "printed": "".join(capfd.readouterr()),
    }
    assert [what for what, text in shown.items() if shows(text)] == []


def test_what_is_written_holds_no_secret(ds: fb.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path / "cache"))
    ds.save_manifest(tmp_path / "m.forebay")
    kept = ds.filter("id > 10")
    kept.selection().save(tmp_path / "kept.fbsel")
    len(kept)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert [path.name for path in written if shows(path.read_bytes()) or shows(str(path))] == []


def test_a_pickle_holds_no_secret_and_says_what_is_missing(ds: fb.Dataset, monkeypatch: pytest.MonkeyPatch):
    for pickled in (ds, ds.filter("id < 7"), ds.sql("SELECT id + 1 AS next FROM dataset"), ds.shuffle(1).to_torch(50)):
        payload = pickle.dumps(pickled)
        assert not shows(payload)
        with pytest.raises(fb.SettingError, match="`aws_access_key_id`, `aws_secret_access_key`") as caught:
            pickle.loads(payload)
        assert "s3://lake" in str(caught.value)
        assert "unpickle_with" in str(caught.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"AK{MARK}")
    with pytest.raises(fb.SettingError, match=r"`aws_secret_access_key`, `aws_session_token` of"):
        pickle.loads(payload)


def rows(ds: Any) -> int:
    """Reads everything, so that the store is asked."""
    return sum(len(batch) for batch in ds.batches(100))


def test_the_environment_has_the_secrets_of_a_pickle(ds: fb.Dataset, options: dict[str, str], monkeypatch):
    payload = pickle.dumps(ds)
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"):
        monkeypatch.setenv(name.upper(), options[name])
    assert rows(pickle.loads(payload)) == NUM_ROWS


def test_options_are_given_to_what_is_unpickled(ds: fb.Dataset, options: dict[str, str]):
    payload = pickle.dumps(ds.filter("id < 100"))
    with fb.unpickle_with(options):
        again = pickle.loads(payload)
    assert rows(again) == 100
    with fb.unpickle_with({}):
        anonymous = pickle.loads(pickle.dumps(ds))
    assert len(anonymous) == NUM_ROWS
    with pytest.raises(fb.SettingError, match="aws_acess_key_id"), fb.unpickle_with({"aws_acess_key_id": "x"}):
        pickle.loads(payload)
    for wrong in (["x"], None):
        with pytest.raises(fb.SettingError, match="storage_options: expected a dict"), fb.unpickle_with(wrong):
            pass
    with pytest.raises(fb.SettingError, match="unpickle_with"):
        pickle.loads(payload)


def test_who_asks_for_it_gets_secrets_pickled_and_nobody_reads_them_in_passing(ds: fb.Dataset):
    with fb.pickle_with_secrets():
        payload = pickle.dumps(ds)
    assert MARK.encode() not in payload
    assert MARK.encode().hex().encode() in unpacked(payload)
    assert rows(pickle.loads(payload)) == NUM_ROWS
    assert not shows(unpacked(pickle.dumps(ds)))


def unpacked(payload: bytes) -> bytes:
    """Returns the header of the snapshot in a pickle, which is compressed by zstd."""
    import pyarrow as pa

    start = payload.index(b"\x28\xb5\x2f\xfd")
    stream = pa.CompressedInputStream(pa.BufferReader(payload[start:]), "zstd")
    header = bytearray()
    # Byte by byte: what follows the header is compressed by itself, and no part of the stream.
    with contextlib.suppress(OSError):
        while byte := stream.read(1):
            header += byte
    return bytes(header)


def test_a_copy_is_the_dataset_with_its_secrets(ds: fb.Dataset):
    for copied in (copy.copy(ds), copy.deepcopy(ds), copy.deepcopy({"ds": ds.filter("id >= 0")})["ds"]):
        assert rows(copied) == NUM_ROWS
    assert copy.deepcopy(ds._native) is ds._native


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_are_started_get_the_secrets(ds: fb.Dataset, method: str):
    stream = ds.shuffle(seed=3).to_torch(50)
    loader = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=method)
    assert sum(len(batch["id"]) for batch in loader) == NUM_ROWS


def with_side(side: fb.Dataset, batch: Any) -> dict[str, Any]:
    """A function that reads a dataset of its own."""
    return {"side": [rows(side)] * len(batch["id"])}


def collated(side: fb.Dataset, found: list[Any]) -> list[int]:
    return [rows(side)] * len(found)


def begun(side: fb.Dataset, worker: int) -> None:
    assert rows(side) == NUM_ROWS, worker


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_functions_get_the_secrets_of_datasets_that_these_use(ds: fb.Dataset, method: str):
    pool = fb.PoolOptions(start_method=method, worker_init_fn=partial(begun, ds))
    stream = ds.map(partial(with_side, ds), batched=True, num_proc=1, pool=pool).batches(100)
    assert [batch["side"] for batch in stream] == [[NUM_ROWS] * 100] * 5
    loader = fb.DataLoader(
        ds,
        100,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=partial(collated, ds),
        worker_init_fn=pool.worker_init_fn,
    )
    assert list(loader) == [[NUM_ROWS] * 100] * 5
    assert not shows(pickle.dumps(stream) + pickle.dumps(loader)), "only workers get them"


def azure(gossip: Gossip, **given: str) -> dict[str, str]:
    where = {"azure_storage_account_name": "lake", "azure_endpoint": gossip.url, "azure_allow_http": "true"}
    return where | given


SERVICE_ACCOUNT = {"type": "service_account", "private_key": MARK, "client_email": MARK, "private_key_id": MARK}

STORES: dict[str, tuple[str, Callable[[Gossip], dict[str, str]]]] = {
    "s3": (
        "s3://lake/corpus/",
        lambda gossip: {
            "aws_endpoint_url": gossip.url,
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
            "aws_access_key_id": f"AK{MARK}",
            "aws_secret_access_key": MARK,
            "aws_session_token": f"{MARK}-of-nobody",
        },
    ),
    "azure with a signature": (
        "az://box/corpus/",
        lambda gossip: azure(gossip, azure_storage_sas_token=f"sv=2022-11-02&sp=r&sig={MARK}%3D"),
    ),
    "azure with a token": ("az://box/corpus/", lambda gossip: azure(gossip, azure_storage_token=MARK)),
    "azure with a bad key": ("az://box/x.parquet", lambda gossip: azure(gossip, azure_storage_account_key=f"{MARK}!")),
    "azure with a bad signature": (
        "az://box/x.parquet",
        lambda gossip: azure(gossip, azure_storage_sas_token=f"{MARK}%zz"),
    ),
    "google with a bad account": (
        "gs://lake/x.parquet",
        lambda _: {"google_service_account_key": json.dumps(SERVICE_ACCOUNT)},
    ),
    "google with no account": ("gs://lake/x.parquet", lambda _: {"google_service_account_key": MARK}),
    "google with another value": (
        "gs://lake/x.parquet",
        lambda _: {"google_service_account_key": json.dumps({"private_key": [MARK], "client_email": MARK})},
    ),
    "a proxy": (
        "s3://lake/x.parquet",
        lambda _: {"aws_region": "us-east-1", "proxy_url": f"http://user:{MARK}@host:port"},
    ),
    "an endpoint": (
        "s3://lake/x.parquet",
        lambda gossip: {
            "aws_region": "us-east-1",
            "aws_access_key_id": MARK,
            "aws_secret_access_key": MARK,
            "aws_allow_http": "true",
            "aws_endpoint": gossip.url.replace("://", f"://user:{MARK}@"),
        },
    ),
    "the Hub": (
        "hf://datasets/org/name",
        lambda gossip: {"hf_endpoint": gossip.url, "hf_token": f"hf_{MARK}", "hf_patience": "300 ms"},
    ),
    "a file of the Hub": (
        f"hf://datasets/org/name@{'0' * 40}/x.parquet",
        lambda gossip: {"hf_endpoint": gossip.url, "hf_token": f"hf_{MARK}", "hf_patience": "300 ms"},
    ),
}


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 302, 429, 500, 503])
@pytest.mark.parametrize("store", STORES)
def test_no_refusal_repeats_a_secret(gossip: Gossip, store: str, status: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gossip, "status", status)
    if status == 302:
        monkeypatch.setattr(
            gossip, "location", f"{gossip.url}/elsewhere?X-Amz-Signature={MARK}&X-Amz-Credential={MARK}"
        )
    source, options = STORES[store]
    patience = {} if source.startswith("hf://") else {"retry_for": "300 ms"}
    with pytest.raises(fb.ForebayError) as caught, warnings.catch_warnings(record=True) as warned:
        rows(fb.load_dataset(source, split="train", storage_options=options(gossip) | patience))
    assert not shows(told(caught.value)), told(caught.value)
    # An error travels from workers, too.
    assert not shows(pickle.dumps(caught.value))
    assert not [warning for warning in warned if shows(str(warning.message))]


@pytest.mark.filterwarnings("ignore::forebay.StoreWarning")
@pytest.mark.parametrize("status", [403, 404, 500])
@pytest.mark.parametrize("store", ["a signed URL", "azure"])
def test_no_refusal_repeats_a_part_of_a_signature(
    gossip: Gossip, store: str, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gossip, "status", status)
    # What another test has as an option is hidden everywhere.
    signature = f"signature-{status}-of-{store[-3:]}"
    url = f"{gossip.url}/corpus.parquet?X-Amz-Expires=900&X-Amz-Signature={signature}%2F"
    options = {"retry_for": "300 ms"}
    if store == "azure":
        url = "az://box/corpus/"
        options |= azure(gossip, azure_storage_sas_token=f"sv=2022-11-02&sig={signature}%2F%3D")
    with pytest.raises(fb.ForebayError) as caught:
        fb.load_dataset(url, split="train", storage_options=options)
    assert f"{signature}/" in gossip.refused[-1]
    assert f"{signature}%2F" in gossip.refused[-1]
    assert signature not in told(caught.value), told(caught.value)
    assert "corpus" in str(caught.value)


@pytest.fixture
def service(gossip: Gossip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Sets the store up as a service for credentials, too; returns the file of the token that it is asked with."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(
        gossip,
        "credentials",
        {
            "AccessKeyId": "ASIA-OF-A-SERVICE",
            "SecretAccessKey": "secret-of-a-service",
            "Token": "token/of-a-service=",
            "Expiration": "2100-01-01T00:00:00Z",
        },
    )
    token = tmp_path / "token"
    token.write_text("who-asks")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{gossip.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    return token


@pytest.mark.parametrize("name", ["corpus/", "corpus/a.parquet"])
def test_no_refusal_repeats_credentials_that_came_from_a_service(gossip: Gossip, service: Path, name: str):
    assert service.exists()
    with pytest.raises(fb.AccessDeniedError) as caught:
        fb.load_dataset(f"s3://lake/{name}", split="train", storage_options={"aws_endpoint_url": gossip.url})
    for secret in ("ASIA-OF-A-SERVICE", "token/of-a-service="):
        assert secret in gossip.refused[-1]
        assert secret not in told(caught.value), told(caught.value)


def test_a_token_in_a_file_that_ends_with_a_line_break_is_refused_by_the_name_of_the_variable(
    gossip: Gossip, service: Path
):
    service.write_text("who-asks\n")
    with pytest.raises(fb.SettingError, match="`AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`.*line break") as caught:
        fb.load_dataset("s3://lake/corpus/", split="train", storage_options={"aws_endpoint_url": gossip.url})
    assert "who-asks" not in str(caught.value)


@pytest.mark.parametrize(
    "store", ["s3", "s3 with a key", "azure with a signature", "azure with a token", "a signed URL"]
)
def test_a_redirect_takes_no_secret_to_another_origin(gossip: Gossip, store: str, monkeypatch: pytest.MonkeyPatch):
    signed_url = f"{gossip.url}/x.parquet?X-Amz-Signature={MARK}"
    source, options_of = STORES.get(store.removesuffix(" with a key"), (signed_url, lambda _: {}))
    options = options_of(gossip)
    if store.endswith(" with a key"):
        key = f"{MARK}{'0' * 20}".encode()
        options |= {
            "aws_server_side_encryption": "sse-c",
            "aws_sse_customer_key_base64": base64.b64encode(key).decode(),
        }
    with Gossip("corpus/a.parquet", b"", TOKEN) as elsewhere:
        monkeypatch.setattr(gossip, "status", 307)
        monkeypatch.setattr(gossip, "location", f"{elsewhere.url}/elsewhere")
        with pytest.raises(fb.AccessDeniedError):
            fb.load_dataset(source, split="train", storage_options=options)
        said = "".join(elsewhere.refused).lower()
    assert "/elsewhere" in said
    assert not shows(said), said
    assert not [name for name in ("authorization", "referer", "x-amz-", "x-ms-") if name in said], said


@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize("store", ["s3", "azure with a signature", "azure with a token"])
def test_no_warning_repeats_a_secret(store: str, status: int):
    source, options = STORES[store]
    # A store that nobody has been warned of.
    with Gossip("corpus/a.parquet", b"", TOKEN) as gossip:
        gossip.status = status
        given = options(gossip) | {"retry_for": "300 ms"}
        with pytest.raises(fb.ForebayError), pytest.warns(fb.StoreWarning) as warned:
            fb.load_dataset(source, split="train", storage_options=given)
        assert any(shows(said) for said in gossip.refused)
    assert str(status) in str(warned[0].message)
    assert not [warning for warning in warned if shows(str(warning.message))]


def test_the_store_does_hear_secrets(gossip: Gossip):
    """Otherwise the tests above show nothing."""
    for store in ("s3", "azure with a signature", "azure with a token", "a file of the Hub"):
        gossip.refused.clear()
        source, options = STORES[store]
        with pytest.raises(fb.ForebayError):
            fb.load_dataset(source, split="train", storage_options=options(gossip))
        assert any(shows(said) for said in gossip.refused), store


URIS = [
    "s3://key:{}@bucket/x",
    "s3://key:se/{}@bucket/x.parquet",
    "s3://key:{}/bucket/x",
    "s3://bucket/x.parquet?X-Amz-Signature={}",
    "gs://{}@bucket/x",
    "az://user:{}@account/x",
    "abfss://user:{}@account.dfs.core.windows.net/x",
    "az://box/x.parquet?sv=2022&sig={}",
    "https://user:{}@host/x.parquet",
    "https://user:a/{}@host/x.parquet",
    "https://{}@host/x.parquet",
    "https://host/x.parquet?sig={}",
    "https://host/x.parquet#{}",
    "https://host?{}",
    "hf://user:{}@datasets/a/b",
    "ftp://user:{}@host/x",
    "S3://KEY:{}@BUCKET/x",
    "memory://user:{}@x/y",
]


@pytest.mark.parametrize("uri", URIS)
def test_no_source_with_credentials_is_repeated(uri: str, tmp_path: Path):
    pq.write_table(data.ids_table(10), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    source = uri.format(MARK)
    # One that is signed is asked, and its host is not there.
    options = {"retry_for": "100 ms"} if uri.startswith("https://host/") else None
    attempts: dict[str, Callable[[], object]] = {
        "load": lambda: fb.load_dataset(source, split="train", storage_options=options),
        "load of several": lambda: fb.load_dataset([str(tmp_path), source], split="train", storage_options=options),
        "load of all splits": lambda: fb.load_dataset(source, storage_options=options),
        "manifest": lambda: ds.save_manifest(f"{source}.forebay", storage_options=options),
        "selection": lambda: ds.selection().save(source, storage_options=options),
        "selection of": lambda: fb.Selection.load(source, storage_options=options),
    }
    for name, attempt in attempts.items():
        with pytest.raises(fb.ForebayError) as caught:
            attempt()
        assert not shows(told(caught.value)), f"{name}: {told(caught.value)}"


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
import forebay as fb
options = dict(pair.split("=", 1) for pair in sys.stdin.read().splitlines())
ds = fb.load_dataset("s3://lake/corpus/", split="train", storage_options=options)
print(sum(len(batch) for batch in ds.shuffle(1).batches(50)))
options["aws_session_token"] += "x"
print(sum(len(batch) for batch in fb.load_dataset("s3://lake/corpus/", split="train", storage_options=options)))
"""


def test_a_program_that_logs_everything_and_fails_prints_no_secret(options: dict[str, str]):
    text = "\n".join(f"{name}={value}" for name, value in options.items())
    environment = os.environ | {"RUST_LOG": "trace", "RUST_BACKTRACE": "full", "PYTHONDEVMODE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=text, env=environment, capture_output=True, text=True, check=False
    )
    assert "AccessDeniedError" in run.stderr, run.stderr
    assert str(NUM_ROWS) in run.stdout
    assert not shows(run.stdout + run.stderr), run.stdout + run.stderr
