"""Stores that `fsspec` reads: what they are told, what becomes of their faults, and how they reach other processes."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import fsspec
import pyarrow as pa
import pytest
from fault_proxy import Fault, FaultProxy
from fsspec import AbstractFileSystem
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.local import LocalFileSystem
from hub_data import ids_file
from rows import ids_of
from upstreams import Objects

import forebay as fb
from forebay._lib import redacted
from forebay.file_systems import MOST_THREADS, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_ROWS = 2000
SECRET = "s3cr3t-of-a-file-system"


class Web(HTTPFileSystem):
    """A web server under a name that only `fsspec` knows."""

    protocol = "web"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.replace("web://", "http://", 1)


class Told(LocalFileSystem):
    """Files, and what somebody wants to be told of them."""

    protocol = "told"
    given: ClassVar[dict[str, object]] = {}
    error: ClassVar[BaseException | None] = None
    threads: ClassVar[set[str]] = set()

    def __init__(self, **given: object) -> None:
        super().__init__()
        type(self).given = given

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: object) -> bytes:
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return super().cat_file(path, start, end, **kwargs)


class Listed(LocalFileSystem):
    """Files that are known from listings only, which are cached, as with FTP."""

    protocol = "listed"
    num_listings: ClassVar[int] = 0

    def ls(self, path: str, detail: bool = False, **_: object) -> list[object]:
        path = self._strip_protocol(path)
        if (found := self.dircache.get(path)) is None:
            type(self).num_listings += 1
            found = self.dircache[path] = [super(Listed, self).info(str(entry)) for entry in Path(path).iterdir()]
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **_: object) -> dict[str, object]:
        return AbstractFileSystem.info(self, path)

    def invalidate_cache(self, path: str | None = None) -> None:
        assert path is None
        self.dircache.clear()


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    for cls in (Web, Told, Listed):
        fsspec.register_implementation(cls.protocol, cls, clobber=True)


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(Objects()) as proxy:
        yield proxy


@pytest.fixture
def sources(proxy) -> list[str]:
    """Four objects of a web server, under names that no test before has used."""
    proxy.clear()
    folder = uuid.uuid4().hex
    step = NUM_ROWS // 4
    names = [f"{folder}/part-{number}.parquet" for number in range(4)]
    for number, name in enumerate(names):
        proxy.upstream.objects[name] = ids_file(number * step, (number + 1) * step, row_group_rows=100)
    return [f"{proxy.url.replace('http', 'web')}/{name}" for name in names]


@pytest.fixture
def told(tmp_path) -> str:
    (tmp_path / "a.parquet").write_bytes(ids_file(0, 100, row_group_rows=10))
    Told.error = None
    return f"told://{tmp_path}/"


def load(source: object, **options: object) -> fb.Dataset:
    return fb.load_dataset(source, split="train", storage_options={"retry_for": "20 s"} | options)


def num_threads() -> int:
    return sum(thread.name == "forebay-fsspec" for thread in threading.enumerate())


def wait_for_end(num_left: int) -> None:
    """Waits until no more than `num_left` threads are left."""
    deadline = time.monotonic() + 10
    while num_threads() > num_left and time.monotonic() < deadline:
        # What the core let go of without the GIL is freed when it is called next.
        redacted("")
        time.sleep(0.05)


def ids(rows: object) -> list[int]:
    return pa.table(rows)["id"].to_pylist()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503, times=3),
        Fault(status=500, times=3),
        Fault(cut_after=100, ending="reset", times=3),
        Fault(cut_after=100, ending="close", times=3),
        Fault(cut_after=-1, ending="reset", times=3),
        Fault(outage=0.5),
        Fault(latency=0.2, chance=0.2, times=None),
    ],
    ids=lambda fault: str({name: value for name, value in vars(fault).items() if value != getattr(Fault, name, value)}),
)
@pytest.mark.filterwarnings("ignore::forebay.StoreWarning")
def test_an_epoch_through_faults_is_exact(proxy, sources, fault):
    ds = load(sources)
    proxy.faults = [copy.copy(fault)]
    assert sorted(ids_of(ds.shuffle(1).batches(50))) == list(range(NUM_ROWS))
    assert proxy.num_taken() > 0


@pytest.mark.filterwarnings("ignore::forebay.StoreWarning")
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=503, times=None), fb.StoreTimeoutError),
        (Fault(status=403, times=None), fb.AccessDeniedError),
        (Fault(status=404, times=None), fb.NotFoundError),
        (Fault(status=400, times=None), fb.StoreError),
        (Fault(cut_after=100, ending="stall", times=None), fb.StoreTimeoutError),
    ],
    ids=["503", "403", "404", "400", "stall"],
)
def test_a_fault_that_stays_ends_with_its_error(proxy, sources, fault, error):
    ds = load(sources, retry_for="1 s")
    proxy.faults = [copy.copy(fault)]
    start = time.monotonic()
    with pytest.raises(error, match=r"part-\d\.parquet"):
        ids_of(ds.batches(50))
    assert time.monotonic() - start < 15
    proxy.clear()


def test_an_object_that_was_replaced_is_named(proxy, sources):
    ds = load(sources)
    name = sources[2].split("/", 3)[3]
    proxy.upstream.objects[name] = ids_file(9000, 9500, row_group_rows=100)
    with pytest.raises(fb.ObjectChangedError, match=r"part-2\.parquet"):
        ids_of(ds.batches(50))


def test_an_object_that_was_replaced_is_read_once_the_dataset_is_opened_again(tmp_path):
    """Threads that have ended leave file systems, and so listings, to those that are started later."""
    num_opened, before = 4, Listed.num_listings
    for start in range(0, num_opened * NUM_ROWS, NUM_ROWS):
        for first in range(start, start + NUM_ROWS, 100):
            (tmp_path / f"{first % NUM_ROWS:04}.parquet").write_bytes(ids_file(first, first + 100, row_group_rows=10))
        num_before = num_threads()
        ds = load(f"listed://{tmp_path}/")
        assert sorted(ids_of(ds.shuffle(1).batches(50))) == list(range(start, start + NUM_ROWS))
        del ds
        wait_for_end(num_before)
    assert Listed.num_listings - before <= num_opened * (MOST_THREADS + 1), "not for each read"


def test_without_cached_listings_an_object_that_was_replaced_is_noticed(tmp_path):
    (tmp_path / "a.parquet").write_bytes(ids_file(0, 1000, row_group_rows=10))
    ds = load(f"listed://{tmp_path}/", use_listings_cache=False)
    assert ids_of(ds.batches(50)) == list(range(1000))
    (tmp_path / "a.parquet").write_bytes(ids_file(9000, 10_000, row_group_rows=10))
    with pytest.raises(fb.ObjectChangedError, match=r"a\.parquet"):
        ids_of(ds.batches(50))


def test_what_a_file_system_raised_is_the_cause(told):
    ds = load(told)
    Told.error = NotImplementedError("on Sundays")
    with pytest.raises(fb.StoreError, match=r"a\.parquet.*on Sundays") as caught:
        ids_of(ds.batches(10))
    assert caught.value.__cause__ is Told.error
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again.__cause__, NotImplementedError)


def test_a_cause_that_holds_a_secret_is_replaced(told):
    ds = load(told, password=SECRET)
    Told.error = NotImplementedError(f"not with {SECRET}")
    with pytest.raises(fb.StoreError) as caught:
        ids_of(ds.batches(10))
    assert SECRET not in f"{caught.value}{caught.value.__cause__!r}"


def test_a_cause_that_cannot_be_pickled_leaves_its_words(told):
    class LocalError(NotImplementedError):
        """Of no module, so nobody finds it again."""

    ds = load(told)
    Told.error = LocalError("on Mondays")
    with pytest.raises(fb.StoreError) as caught:
        ids_of(ds.batches(10))
    assert "on Mondays" in str(pickle.loads(pickle.dumps(caught.value)).__cause__)


def test_a_file_system_that_tells_no_sizes_is_named_as_such(told, monkeypatch):
    def info(self: Told, path: str, **kwargs: object) -> dict[str, object]:
        return super(Told, self).info(path, **kwargs) | {"size": None}

    monkeypatch.setattr(Told, "info", info)
    for source in (told, f"{told}a.parquet"):
        with pytest.raises(fb.StoreError, match="does not say how large (it|a.parquet) is"):
            load(source)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(), "not_found"),
        (IsADirectoryError(), "not_found"),
        (PermissionError(), "denied"),
        (TimeoutError(), "stalled"),
        (ConnectionResetError(), "broken"),
        (OSError("who knows"), "broken"),
        (EOFError(), "broken"),
        (KeyError("x"), "final"),
        (zipfile.BadZipFile(), "final"),
        (KeyboardInterrupt(), "final"),
    ],
)
def test_exceptions_are_sorted_by_what_to_do(error, kind):
    assert kind_of(error) == kind


def test_what_kept_a_file_system_from_looking_is_no_absence():
    for cause, kind in [(OSError("reset"), "broken"), (TimeoutError(), "stalled"), (KeyError("x"), "not_found")]:
        error = FileNotFoundError("x")
        error.__cause__ = cause
        assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "not_found"), (403, "denied"), (503, "throttled"), (500, "failed"), (400, "not_found")]
)
def test_a_cause_of_botocore_says_whether_an_object_is_absent(status, kind):
    exceptions = pytest.importorskip("botocore.exceptions")
    answer = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = FileNotFoundError("bucket/a.parquet")
    error.__cause__ = exceptions.ClientError(answer, "HeadObject")
    assert kind_of(error) == kind


def test_an_object_that_a_listing_does_not_have_is_absent():
    error = FileNotFoundError("a.parquet")
    error.__cause__ = StopIteration()
    assert kind_of(error) == "not_found", "as `ftp://` raises it"


@pytest.mark.filterwarnings("ignore::forebay.StoreWarning")
def test_a_thread_that_cannot_be_started_is_started_later(told, monkeypatch):
    monkeypatch.setattr("forebay.file_systems.MOST_THREADS", 1)
    start, num_refused = threading.Thread.start, 0

    def refuse_once(thread):
        nonlocal num_refused
        if thread.name == "forebay-fsspec" and num_refused == 0:
            num_refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    assert ids(load(told, name=uuid.uuid4().hex)) == list(range(100))
    assert num_refused == 1


def test_options_keep_their_types(told):
    given = {"port": 22, "anon": False, "nothing": None, "nested": {"a": [1, 2.5]}, "text": "22"}
    ds = load(told, **given)
    assert ids(ds) == list(range(100))
    assert Told.given == given
    assert Told.threads == {"forebay-fsspec"}


def test_options_of_other_stores_may_have_types_too():
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_skip_signature": True, "retry_for": 0.1}
    with pytest.raises(fb.StoreError):
        fb.load_dataset("s3://bucket/a.parquet", split="train", storage_options=options)


def test_an_option_that_is_no_data_is_refused(told):
    with pytest.raises(fb.SettingError, match="`auth`: expected text, a number.*got object"):
        load(told, auth=object())


def test_an_object_of_an_archive_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("d/a.parquet", ids_file(0, 10))
        archive.writestr("d/b.parquet", ids_file(10, 30))
    inside = f"::file://{tmp_path}/x.zip"
    assert ids(load(f"zip://d/b.parquet{inside}")) == list(range(10, 30))
    assert ids(load(f"zip://d/{inside}")) == list(range(30))
    assert ids(load(f"zip://d/*.parquet{inside}")) == list(range(30))


def test_an_archive_that_is_damaged_is_told_as_such_at_once(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"no archive")
    start = time.monotonic()
    with pytest.raises(fb.StoreError, match="BadZipFile"):
        load(f"zip://*.parquet::file://{tmp_path}/x.zip")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("protocol", ["memory", "local"])
def test_a_name_that_would_begin_another_url_is_refused(protocol, tmp_path):
    folder = f"memory://{uuid.uuid4()}" if protocol == "memory" else f"local://{tmp_path}"
    for number, name in enumerate(["x.parquet", "x.parquet::y.parquet"]):
        fs, path = fsspec.url_to_fs(f"{folder}/")
        fs.makedirs(path, exist_ok=True)
        fs.pipe_file(f"{path}/{name}", ids_file(10 * number, 10 * number + 10))
    with pytest.raises(fb.StoreError, match=r"x\.parquet::y\.parquet` has `::` in its name.*rename it"):
        load(f"{folder}/")
    assert ids(load(f"{folder}/x.parquet")) == list(range(10))


@pytest.mark.parametrize("kind", ["simplecache", "filecache"])
def test_a_cache_in_front_of_a_store_keeps_its_objects(kind, tmp_path):
    body, folder = ids_file(0, 40), f"memory://{uuid.uuid4()}"
    with fsspec.open(f"{folder}/a.parquet", "wb") as file:
        file.write(body)
    kept = tmp_path / "kept"
    ds = fb.load_dataset(f"{kind}::{folder}/", split="train", storage_options={"cache_storage": str(kept)})
    assert sorted(ids_of(ds.shuffle(1).batches(7))) == list(range(40))
    assert body in {path.read_bytes() for path in kept.iterdir()}


@pytest.mark.parametrize("last", [50, 100, 150])
def test_a_replaced_object_is_not_read_from_a_cache_that_can_ask(last, tmp_path):
    (tmp_path / "a.parquet").write_bytes(ids_file(0, 100))
    source, options = f"filecache::local://{tmp_path}/a.parquet", {"cache_storage": f"{tmp_path}/kept"}
    assert ids(load(source, **options)) == list(range(100))
    (tmp_path / "a.parquet").write_bytes(ids_file(0, last))
    assert ids(load(source, **options)) == list(range(last))


@pytest.mark.parametrize("last", [50, 150])
def test_a_cache_that_has_another_object_than_its_store_is_named(last, tmp_path):
    (tmp_path / "a.parquet").write_bytes(ids_file(0, 100))
    source, options = f"simplecache::local://{tmp_path}/a.parquet", {"cache_storage": f"{tmp_path}/kept"}
    assert ids(load(source, **options)) == list(range(100))
    (tmp_path / "a.parquet").write_bytes(ids_file(0, last))
    for kept in (tmp_path / "kept").iterdir():
        os.utime(kept, (1e9, 1e9))
    start = time.monotonic()
    with pytest.raises(fb.ObjectChangedError, match=r"a\.parquet` changed since .* a cache.*remove that file"):
        load(source, **options)
    assert time.monotonic() - start < 5
    shutil.rmtree(tmp_path / "kept")
    assert ids(load(source, **options)) == list(range(last))


def test_a_cached_object_that_is_still_downloaded_is_waited_for(tmp_path):
    body = ids_file(0, 100)
    (tmp_path / "a.parquet").write_bytes(body)
    source, options = f"simplecache::local://{tmp_path}/a.parquet", {"cache_storage": f"{tmp_path}/kept"}
    load(source, **options)
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(body[:-4])
    timer = threading.Timer(0.5, kept.write_bytes, [body])
    timer.start()
    assert ids(load(source, **options)) == list(range(100))
    timer.join()


def test_what_fsspec_does_not_know_is_refused():
    with pytest.raises(fb.SettingError, match=r"^source: no store for `gopher://`, expected a path, .*`s3://`"):
        load("gopher://host/a.parquet")
    with pytest.raises(fb.SettingError, match=r"no store for `github://`.* 'org' and 'repo'"):
        load("github://a.parquet")


@pytest.mark.parametrize("source", ["sftp://user:secret@host/x.parquet", "zip://x.parquet::ftp://user@host/x.zip"])
def test_credentials_in_a_url_are_refused_and_not_repeated(source):
    with pytest.raises(fb.SettingError, match="storage_options") as caught:
        load(source)
    assert "user" not in str(caught.value)


def test_without_fsspec_its_name_is_told(tmp_path):
    program = "import sys; sys.modules['fsspec'] = None; import forebay as fb; fb.load_dataset('memory://a/')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert "SettingError: " in ended.stderr
    assert "pip install fsspec" in ended.stderr


def test_an_explanation_says_who_reads(told):
    ds = load(told)
    assert ds.explain()["stores"]["told:///"]["adapter"] == "fsspec"
    assert "through fsspec, which is slower" in str(ds.explain())


def test_manifests_and_selections_are_written(told):
    folder = f"memory://{uuid.uuid4().hex}"
    ds = load(told)
    ds.save_manifest(f"{folder}/d.forebay")
    assert ids(fb.load_dataset(f"{folder}/d.forebay", split="train")) == list(range(100))
    some = ds.filter("id < 7")
    some.selection().save(f"{folder}/some.fbs")
    assert ids(ds.select(fb.Selection.load(f"{folder}/some.fbs"))) == list(range(7))


CHILD = """
import pickle, sys
import pyarrow as pa
import forebay as fb
with fb.unpickle_with({"password": "given-by-the-child"}):
    ds = pickle.loads(sys.stdin.buffer.read())
print(sum(pa.table(ds)["id"].to_pylist()))
"""


def test_another_process_makes_its_own(tmp_path):
    (tmp_path / "a.parquet").write_bytes(ids_file(0, 100))
    ds = load(f"local://{tmp_path}/", auto_mkdir=False)
    ended = subprocess.run(
        [sys.executable, "-c", CHILD.replace('{"password": "given-by-the-child"}', "{}")],
        input=pickle.dumps(ds),
        capture_output=True,
    )
    assert ended.stdout.decode().split() == [str(sum(range(100)))], ended.stderr.decode()


@pytest.mark.parametrize(
    "options",
    [
        {"auth": ["me", SECRET]},
        {"auth": f"me:{SECRET}"},
        {"login": SECRET},
        {"pwd": SECRET},
        {"dsn": f"smb://host/share?user=me&pw={SECRET}"},
        {"connection_string": f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={SECRET}"},
        {"conn_str": f"AccountName=me;AccountKey={SECRET}"},
        {"account": f"AccountName=me;AccountKey={SECRET}"},
        {"token": {"type": "user", "private_key": SECRET}},
        {"client_kwargs": {"session": [{"basic_auth": ["me", SECRET]}]}},
        {"params": [["sig", SECRET]]},
    ],
)
def test_a_password_is_told_in_every_spelling(told, options):
    ds = load(told, **options)
    assert Told.given == options
    payload = pickle.dumps(ds)
    assert SECRET not in redacted(f"the server knows no {SECRET}")
    with pytest.raises(fb.SettingError, match=f"{next(iter(options))}.*unpickle_with"):
        pickle.loads(payload)


def test_a_pickle_has_no_secrets(told):
    ds = load(told, password=SECRET, client={"token": f"{SECRET}-2"})
    payload = pickle.dumps(ds)
    assert SECRET.encode() not in payload
    with pytest.raises(fb.SettingError, match="password.*unpickle_with"):
        pickle.loads(payload)
    with fb.unpickle_with({"password": "another", "client": {"token": 5}}):
        assert ids(pickle.loads(payload)) == list(range(100))
    assert Told.given == {"password": "another", "client": {"token": 5}}
    with fb.pickle_with_secrets():
        assert ids(pickle.loads(pickle.dumps(ds))) == list(range(100))
    assert Told.given["password"] == SECRET


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_it(method, tmp_path):
    import torch

    (tmp_path / "a.parquet").write_bytes(ids_file(0, 100))
    ds = load(f"local://{tmp_path}/")
    loader = torch.utils.data.DataLoader(
        ds.to_torch(batch_size=10), batch_size=None, num_workers=2, multiprocessing_context=method
    )
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(100))


EXIT = """
import sys, threading, time
import fsspec
from fsspec.implementations.local import LocalFileSystem
import forebay as fb

started = threading.Event()

class Slow(LocalFileSystem):
    protocol = "slow"

    def cat_file(self, path, start=None, end=None, **kwargs):
        if slow:
            started.set()
            time.sleep(0.3)
        return super().cat_file(path, start, end, **kwargs)

slow = False
fsspec.register_implementation("slow", Slow)
ds = fb.load_dataset(sys.argv[1], split="train")
slow = True
batches = iter(ds.batches(10))
threading.Thread(target=lambda: next(batches), daemon=True).start()
started.wait()
print("at the end")
"""


def test_an_exit_in_the_middle_of_a_call_is_quiet_and_soon(told):
    for _ in range(5):
        source = told.replace("told", "slow")
        ended = subprocess.run([sys.executable, "-c", EXIT, source], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "at the end\n", "")


def test_threads_end_with_their_store(told):
    before = num_threads()
    ds = load(told, name=uuid.uuid4().hex)
    assert len(ds) == 100
    assert num_threads() > before
    del ds
    wait_for_end(before)
    assert num_threads() <= before


def test_a_folder_that_is_called_as_a_pattern_is_found_by_its_name():
    folder = f"memory://{uuid.uuid4().hex}"
    for number, name in enumerate(["run [1]/a", "run [1]/k=a?b/b", "run 2/c", "run [2]/d"]):
        with fsspec.open(f"{folder}/{name}.parquet", "wb") as file:
            file.write(ids_file(number, number + 1))
    for name, ids in (("run [1]/", [0, 1]), ("run [1]", [0, 1]), ("run [1]/k=a?b/", [1]), ("run [2]/*", [2])):
        assert sorted(ids_of(fb.load_dataset(f"{folder}/{name}", split="train").batches(9))) == ids, name
    with pytest.raises(fb.NotFoundError, match="none matches it"):
        fb.load_dataset(f"{folder}/run [3]/", split="train")
