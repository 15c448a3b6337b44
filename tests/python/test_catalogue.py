"""The cache of footers and manifests: what they spare, and that nothing they hold is ever believed too much."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import pickle
import shutil
import subprocess
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import data
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import python_command, python_environment, run_python

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3 import Bucket

NUM_OBJECTS = 6
NUM_ROWS = 60


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    """A cache of this test's own."""
    folder = tmp_path_factory.mktemp("own-cache")
    monkeypatch.setenv("FOREBAY_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of objects that changed long ago, so that their footers are kept."""
    data.write_fragments(tmp_path / "d", data.ids_table(NUM_ROWS), num_fragments=NUM_OBJECTS)
    for path in (tmp_path / "d").iterdir():
        os.utime(path, (1, 1))
    return tmp_path / "d"


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def ids(ds: fb.Dataset) -> list[int]:
    return pa.table(ds)["id"].to_pylist()


def num_footers(ds: fb.Dataset) -> int:
    """Returns how many requests for footers it took to open the dataset."""
    return ds.explain()["stages"].get("footers", {"requests": 0})["requests"]


def opened(source: object) -> fb.Dataset:
    return fb.load_dataset(source, split="train")


def test_a_second_opening_is_the_same_dataset(cache, folder):
    cold, warm = opened(folder), opened(folder)
    assert len(entries(cache)) == 1
    assert cold._native.fingerprint == warm._native.fingerprint
    assert ids(cold) == ids(warm) == list(range(NUM_ROWS))


def test_an_object_that_changed_is_seen(folder):
    opened(folder)
    path = min(folder.iterdir())
    table = data.ids_table(5, first=1000)
    pq.write_table(table, path)
    assert set(ids(opened(folder))) >= set(range(1000, 1005))


def test_ten_thousand_files_open_again_without_their_footers(tmp_path):
    num_files = 10_000
    folder = tmp_path / "many"
    data.write_fragments(folder, data.ids_table(1))
    [first] = folder.iterdir()
    body = first.read_bytes()
    paths = [first, *(folder / f"{number}.parquet" for number in range(1, num_files))]
    for path in paths:
        path.write_bytes(body)
        os.utime(path, (1, 1))
    assert (len(cold := opened(folder)), num_footers(cold)) == (num_files, num_files)
    assert (len(warm := opened(folder)), num_footers(warm)) == (num_files, 0)

    pq.write_table(data.ids_table(5, first=1000), paths[1234])
    again = opened(folder)
    assert (len(again), num_footers(again)) == (num_files + 4, 1)
    rows = again.filter("id >= 1000")
    assert ids(rows) == list(range(1000, 1005))


def test_a_file_that_was_rewritten_under_its_old_time_is_read_again(folder):
    """As copies do that keep the times of files: `cp -p`, `rsync -t --inplace`."""
    path = min(folder.iterdir())
    before = path.stat()
    for first in (100, 200, 300):
        pq.write_table(data.ids_table(10, first=first), path)
        os.utime(path, (1, 1))
        ds = opened(folder)
        assert ids(ds)[:10] == list(range(first, first + 10))
        assert ids(ds.filter(f"id >= {first}")) == list(range(first, first + 10))
    assert path.stat().st_ino == before.st_ino
    path.chmod(0o600)
    assert (num_footers(opened(folder)), num_footers(opened(folder))) == (1, 0)


def test_a_file_written_just_now_is_not_kept(tmp_path):
    """It may change again within the same tick of its time."""
    for first in range(0, 50, 10):
        pq.write_table(data.ids_table(10, first=first), tmp_path / "x.parquet")
        assert ids(opened(tmp_path)) == list(range(first, first + 10))


def test_zero_switches_the_cache_off(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_CACHE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    opened(folder)
    assert not (tmp_path / "xdg").exists()
    assert not (tmp_path / "home").exists()
    monkeypatch.delenv("FOREBAY_CACHE")
    opened(folder)
    assert entries(tmp_path / "xdg" / "forebay")


def test_the_cache_may_be_below_home(folder, tmp_path, monkeypatch):
    """A shell puts the folder in the place of `~`; a file of settings does not."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FOREBAY_CACHE", "~/kept")
    opened(folder)
    assert len(entries(tmp_path / "home" / "kept")) == 1
    assert not list((tmp_path / "cwd").iterdir())


def test_a_damaged_cache_warns_once_and_is_made_again(cache, folder):
    sound = opened(folder)
    [entry] = entries(cache)
    body = entry.read_bytes()
    for damaged in (body[: len(body) // 2], b"", b"x" * len(body), body + b"x"):
        entry.write_bytes(damaged)
        with pytest.warns(fb.PerformanceWarning, match="damaged"):
            again = opened(folder)
        assert again._native.fingerprint == sound._native.fingerprint
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert opened(folder)._native.fingerprint == sound._native.fingerprint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_no_cache(cache, folder):
    cache.chmod(0o500)
    assert len(opened(folder)) == NUM_ROWS
    assert not entries(cache)


def test_a_full_disk_is_no_cache(cache, folder):
    """A limit on the size of files fails as a full disk does: in the middle of writing."""
    program = """
        import resource, signal, sys
        import forebay as fb
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        print(len(fb.load_dataset(sys.argv[1], split="train")))
    """
    assert run_python(program, folder).split() == [str(NUM_ROWS)]
    assert not entries(cache)
    opened(folder)
    assert len(entries(cache)) == 1


def test_processes_that_open_at_once_share_a_sound_cache(cache, folder):
    program = """
        import sys
        import forebay as fb
        for _ in range(20):
            ds = fb.load_dataset(sys.argv[1], split="train")
        print(ds._native.fingerprint)
    """
    command = python_command(program, folder)
    running = [subprocess.Popen(command, env=python_environment(), stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert printed == {opened(folder)._native.fingerprint}
    assert len(entries(cache)) == 1


def test_a_manifest_needs_neither_listing_nor_footers(folder, tmp_path):
    ds = opened(folder)
    manifest = tmp_path / "m.forebay"
    ds.filter("id > 5").save_manifest(manifest)
    elsewhere = tmp_path / "moved"
    folder.rename(elsewhere)
    saved = opened(manifest)
    assert saved._native.fingerprint == ds._native.fingerprint
    assert (len(saved), saved.column_names) == (NUM_ROWS, ds.column_names)
    with pytest.raises(fb.NotFoundError):
        list(saved.batches(10))
    elsewhere.rename(folder)
    assert ids(saved) == list(range(NUM_ROWS))
    assert list(fb.load_dataset(manifest)) == ["train"]


def test_an_object_that_changed_since_its_manifest_is_refused(folder, tmp_path):
    opened(folder).save_manifest(tmp_path / "m.forebay")
    pq.write_table(data.ids_table(10, first=1000), min(folder.iterdir()))
    with pytest.raises(fb.ObjectChangedError):
        list(opened(tmp_path / "m.forebay").batches(10))


def test_a_manifest_holds_all_splits(tmp_path):
    data.write_fragments(tmp_path / "train", data.ids_table(30), num_fragments=3)
    data.write_fragments(tmp_path / "test", data.ids_table(7, first=30))
    splits = fb.load_dataset(tmp_path)
    splits.save_manifest(f"file://{tmp_path}/all.forebay")
    saved = fb.load_dataset(tmp_path / "all.forebay")
    assert {name: ids(ds) for name, ds in saved.items()} == {"train": [*range(30)], "test": [*range(30, 37)]}
    assert ids(fb.load_dataset(tmp_path / "all.forebay", split="test")) == [*range(30, 37)]
    with pytest.raises(fb.SettingError, match="it has train, test"):
        fb.load_dataset(tmp_path / "all.forebay", split="validation")


def test_a_manifest_keeps_the_columns_of_folders(tmp_path):
    for lang in ("de", "en"):
        data.write_fragments(tmp_path / "d" / f"lang={lang}", data.ids_table(5))
    ds = opened(tmp_path / "d")
    ds.save_manifest(tmp_path / "m.forebay")
    saved = opened(tmp_path / "m.forebay")
    assert pa.table(saved).equals(pa.table(ds))
    assert set(pa.table(saved)["lang"].to_pylist()) == {"de", "en"}


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:100], lambda b: b[:60] + b"\0" + b[61:], lambda _: b""]
)
def test_a_damaged_manifest_is_an_error_that_names_it(folder, tmp_path, damage):
    path = tmp_path / "m.forebay"
    opened(folder).save_manifest(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(fb.DataError, match=r"m\.forebay"):
        opened(path)


@pytest.mark.parametrize("uri", ["m.parquet", "m.forebay/", "*.forebay"])
def test_a_manifest_has_its_own_ending(folder, tmp_path, uri):
    with pytest.raises(fb.SettingError, match=r"\.forebay"):
        opened(folder).save_manifest(f"{tmp_path}/{uri}")
    with pytest.raises(fb.SettingError, match="uri"):
        opened(folder).save_manifest(7)


class Counting(http.server.SimpleHTTPRequestHandler):
    """Serves files with ranges and counts what is asked for."""

    seen: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        body = Path(self.translate_path(self.path)).read_bytes()
        first, _, last = self.headers.get("Range", f"bytes=0-{len(body) - 1}").removeprefix("bytes=").partition("-")
        start = int(first) if first else max(len(body) - int(last), 0)
        end = min(int(last), len(body) - 1) if first and last else len(body) - 1
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(body)}")
        self.send_header("Content-Length", str(end + 1 - start))
        self.send_header("ETag", f'"{hash(body)}"')
        self.end_headers()
        self.wfile.write(body[start : end + 1])

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server for a folder: its URL, and the paths that were asked for."""
    seen: list[str] = []
    handler = functools.partial(type("Handler", (Counting,), {"seen": seen}), directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(folder) -> Iterator[tuple[str, list[str]]]:
    """A web server for the folder of objects."""
    with serving(folder) as found:
        yield found


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="there is no file system that has folders and takes no files"
)
def test_a_manifest_where_no_file_can_be_is_an_error_and_no_wait(tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    program = """
        import sys
        import forebay as fb

        try:
            fb.load_dataset(sys.argv[1], split="train").save_manifest("/proc/x.forebay")
        except fb.StoreError as error:
            print(error)
    """
    assert "no file can be written there" in run_python(program, tmp_path)
    assert "no file can be written there" in run_python(program.replace("/proc/x", "/proc/self/x"), tmp_path)


def test_a_manifest_of_remote_objects_opens_with_one_request(folder, server):
    url, seen = server
    ds = opened([f"{url}/{path.name}" for path in sorted(folder.iterdir())])
    assert len(seen) == NUM_OBJECTS
    ds.save_manifest(folder / "m.forebay")
    seen.clear()
    for source in (folder / "m.forebay", f"{url}/m.forebay"):
        assert opened(source)._native.fingerprint == ds._native.fingerprint
    assert seen == ["/m.forebay"]


def test_a_copy_in_another_process_makes_no_request(folder, server):
    url, seen = server
    ds = opened([f"{url}/{path.name}" for path in sorted(folder.iterdir())])
    seen.clear()
    copy = pickle.loads(pickle.dumps(ds))
    assert copy._native.fingerprint == ds._native.fingerprint
    assert seen == []
    assert ids(copy) == list(range(NUM_ROWS))
    assert seen


def test_a_store_with_a_listing_has_a_cache(cache, folder, bucket: Bucket):
    url = bucket.upload(folder, "d/")
    cold = fb.load_dataset(url, split="train", storage_options=bucket.storage_options)
    assert len(entries(cache)) == 1
    warm = fb.load_dataset(url, split="train", storage_options=bucket.storage_options)
    assert cold._native.fingerprint == warm._native.fingerprint
    assert ids(warm) == list(range(NUM_ROWS))
    [entry] = entries(cache)
    assert bucket.name.encode() not in entry.read_bytes()


def test_a_manifest_is_saved_to_the_store_of_the_objects(folder, bucket: Bucket):
    url = bucket.upload(folder, "d/")
    options = bucket.storage_options
    ds = fb.load_dataset(url, split="train", storage_options=options)
    ds.save_manifest(f"{bucket.url}/catalogue/d.forebay")
    saved = fb.load_dataset(f"{bucket.url}/catalogue/d.forebay", split="train", storage_options=options)
    assert ids(saved) == list(range(NUM_ROWS))
    body = bucket.client.get_object(Bucket=bucket.name, Key="catalogue/d.forebay")["Body"].read()
    assert body.startswith(b"FBSNAP")
    shutil.rmtree(folder)
    with pytest.raises(fb.NotFoundError):
        fb.load_dataset(f"{bucket.url}/catalogue/other.forebay", split="train", storage_options=options)


def test_a_manifest_holds_no_options(folder, server):
    url, _ = server
    sources = [f"{url}/{path.name}" for path in sorted(folder.iterdir())]
    ds = fb.load_dataset(sources, split="train", storage_options={"user_agent": "s3cr3t"})
    ds.save_manifest(folder / "m.forebay")
    body = (folder / "m.forebay").read_bytes()
    length = int.from_bytes(body[40:48], "little")
    header = pa.input_stream(pa.py_buffer(body[48 : 48 + length]), compression="zstd").read()
    assert json.loads(header)["stores"] == [[{"Http": url}, {}]]
    assert b"s3cr3t" not in header + body
