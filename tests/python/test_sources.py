"""Where Parquet is found: folders, files, globs, lists, servers and stores; its splits and its order."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import tempfile
import threading
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import data_files
from obstore.store import LocalStore, MemoryStore
from programs import run_python

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator


LOADERS = (fb.load_dataset, datasets.load_dataset)

CARD = "---\nconfigs:\n- config_name: default\n  data_files: '**/*.parquet'\n---\n"


def put(folder: Path, *names: str) -> None:
    """Writes objects of three rows, numbered in the order of the names."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"object": [name] * 3, "id": [number * 3 + i for i in range(3)]}), path)


def objects(ds: fb.Dataset) -> list[str]:
    """Names of the objects of a dataset, in the order in which their rows come."""
    return list(dict.fromkeys(pa.table(ds)["object"].to_pylist()))


def test_a_folder_is_read_with_everything_below_it(tmp_path):
    put(tmp_path, "a.parquet", "b/c.parquet", "b/d/e.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert objects(ds) == ["a.parquet", "b/c.parquet", "b/d/e.parquet"]
    assert ds.num_rows == len(ds) == 9


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_may_be_given_with_or_without_a_slash_or_as_a_uri(tmp_path, slash):
    put(tmp_path, "x/a.parquet")
    expected = ["x/a.parquet"]
    assert objects(fb.load_dataset(f"{tmp_path}/x{slash}", split="train")) == expected
    assert objects(fb.load_dataset(f"file://{tmp_path}/x{slash}", split="train")) == expected


def test_a_folder_may_be_relative(tmp_path, monkeypatch):
    put(tmp_path, "x/a.parquet")
    monkeypatch.chdir(tmp_path)
    for source in ("x", "./x", "x/a.parquet", "../" + tmp_path.name + "/x", "x/*.parquet"):
        assert objects(fb.load_dataset(source, split="train")) == ["x/a.parquet"], source


def test_a_single_file_is_a_dataset(tmp_path):
    put(tmp_path, "a.parquet", "b.parquet")
    for source in (tmp_path / "b.parquet", str(tmp_path / "b.parquet"), f"file://{tmp_path}/b.parquet"):
        assert objects(fb.load_dataset(source, split="train")) == ["b.parquet"]


def test_a_file_that_is_named_may_have_any_ending(tmp_path):
    put(tmp_path, "rows.data")
    assert objects(fb.load_dataset(tmp_path / "rows.data", split="train")) == ["rows.data"]


NAMES = ("a-1.parquet", "a-2.parquet", "b-1.parquet", "deep/a-3.parquet", "deep/er/a-4.parquet")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a-1.parquet", "a-2.parquet", "b-1.parquet"]),
        ("a-*.parquet", ["a-1.parquet", "a-2.parquet"]),
        ("?-1.parquet", ["a-1.parquet", "b-1.parquet"]),
        ("a-[13].parquet", ["a-1.parquet"]),
        ("{a,b}-1.parquet", ["a-1.parquet", "b-1.parquet"]),
        ("**/*.parquet", list(NAMES)),
        ("**/a-*.parquet", ["a-1.parquet", "a-2.parquet", "deep/a-3.parquet", "deep/er/a-4.parquet"]),
        ("deep/**", ["deep/a-3.parquet", "deep/er/a-4.parquet"]),
        ("deep/*.parquet", ["deep/a-3.parquet"]),
        ("*/*.parquet", ["deep/a-3.parquet"]),
        ("d*p/er/*", ["deep/er/a-4.parquet"]),
    ],
)
def test_a_glob_matches_as_a_shell_does(tmp_path, pattern, expected):
    put(tmp_path, *NAMES)
    assert objects(fb.load_dataset(f"{tmp_path}/{pattern}", split="train")) == expected
    uri = f"file://{tmp_path}/{pattern.replace('?', '%3F')}"
    assert objects(fb.load_dataset(uri, split="train")) == expected


@pytest.mark.parametrize("pattern", ["*p", "*p/", "d*", "deep/e?", "{deep,wide}"])
def test_a_pattern_of_folders_is_answered_with_that_of_what_is_in_them(tmp_path, pattern):
    put(tmp_path, "deep/er/a.parquet", "deep/er/b.parquet")
    with pytest.raises(fb.NotFoundError, match="patterns match objects, not folders") as caught:
        fb.load_dataset(f"{tmp_path}/{pattern}", split="train")
    better = re.search(r"`([^`]*/\*\*)`", str(caught.value))[1]
    assert objects(fb.load_dataset(better, split="train")) == ["deep/er/a.parquet", "deep/er/b.parquet"]


def test_a_question_mark_in_a_file_uri_is_never_taken_for_the_whole_folder(tmp_path):
    put(tmp_path, *NAMES)
    assert objects(fb.load_dataset(f"file://{tmp_path}/?-1.parquet", split="train")) == ["a-1.parquet", "b-1.parquet"]


def test_a_list_is_read_in_the_order_given(tmp_path):
    put(tmp_path, "z.parquet", "a.parquet", "folder/m.parquet")
    ds = fb.load_dataset([tmp_path / "z.parquet", f"{tmp_path}/folder", f"{tmp_path}/a*.parquet"], split="train")
    assert objects(ds) == ["z.parquet", "folder/m.parquet", "a.parquet"]


def test_hidden_and_underscored_objects_are_ignored(tmp_path):
    put(
        tmp_path,
        "a.parquet",
        ".hidden.parquet",
        "_metadata.parquet",
        "_temporary/b.parquet",
        ".cache/c.parquet",
        "deep/_d.parquet",
        "deep/e_.parquet",
    )
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "README.md").write_text("not Parquet, and not asked for")
    for source in (tmp_path, f"{tmp_path}/**/*.parquet", f"{tmp_path}/**/*parquet"):
        assert objects(fb.load_dataset(source, split="train")) == ["a.parquet", "deep/e_.parquet"]


@pytest.mark.parametrize(
    ("log", "files", "says"),
    [
        ("_delta_log/00000000000000000000.json", "part-{}.parquet", r"a Delta table.*`deltalake\.DeltaTable\("),
        ("metadata/00001-5f3e.metadata.json", "data/part-{}.parquet", r"an Iceberg table.*`\[task\.file\.file_path"),
    ],
)
def test_the_folder_of_a_table_is_refused_and_its_files_are_read_by_name(tmp_path, log, files, says):
    table, names = tmp_path / "table", [files.format(0), files.format(1)]
    put(table, *names)
    (table / log).parent.mkdir()
    (table / log).write_text("{}")
    for refused in (
        lambda: fb.load_dataset(table, split="train"),
        lambda: fb.load_dataset(tmp_path, split="train"),
        lambda: fb.load_dataset([table / names[0], tmp_path], split="train"),
        lambda: fb.load_dataset("parquet", data_dir=str(table), split="train"),
        lambda: fb.load_dataset(tmp_path, data_dir="table", split="train"),
        lambda: fb.load_dataset(f"file://{table}/", split="train"),
    ):
        with pytest.raises(fb.SettingError, match=rf"^source: `.*/table` is {says}"):
            refused()
    named = [str(table / name) for name in names]
    for source in (named, f"{table}/**/*.parquet"):
        assert objects(fb.load_dataset(source, split="train")) == names
    assert objects(fb.load_dataset("parquet", data_files=named[:1], split="train")) == names[:1]
    assert objects(fb.load_dataset(table, data_files="**/*.parquet", split="train")) == names


def test_a_folder_with_metadata_of_its_own_is_no_table(tmp_path):
    put(tmp_path, "data/part-0.parquet")
    (tmp_path / "metadata").mkdir()
    for name in ("info.json", "part-0.metadata.json"):
        (tmp_path / "metadata" / name).write_text("{}")
    assert objects(fb.load_dataset(tmp_path, split="train")) == ["data/part-0.parquet"]


def test_a_folder_without_parquet_says_what_is_there(tmp_path):
    for says in ("the folder is empty", "1 object is there, but", "2 objects are there, but"):
        with pytest.raises(fb.NotFoundError, match=says):
            fb.load_dataset(tmp_path, split="train")
        (tmp_path / f"{len(says)}.txt").touch()


def test_a_file_that_is_removed_is_said_to_be_absent_once(tmp_path):
    put(tmp_path, "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    (tmp_path / "a.parquet").unlink()
    for read in (lambda: list(ds), lambda: fb.Selection.load(tmp_path / "absent")):
        with pytest.raises(fb.NotFoundError, match=r"^no such object or folder: `[^`]*`$"):
            read()


def test_an_underscore_above_the_source_hides_nothing(tmp_path):
    put(tmp_path / "_private" / ".x", "a.parquet")
    assert objects(fb.load_dataset(tmp_path / "_private" / ".x", split="train")) == ["a.parquet"]


def test_objects_come_in_natural_order(tmp_path):
    names = ["part-1.parquet", "part-2.parquet", "part-10.parquet", "part-11.parquet", "part-100.parquet"]
    put(tmp_path, *reversed(names))
    assert objects(fb.load_dataset(tmp_path, split="train")) == names
    assert objects(fb.load_dataset(f"{tmp_path}/part-*.parquet", split="train")) == names


def test_folders_come_in_natural_order_too(tmp_path):
    names = [f"day={day}/part-{part}.parquet" for day in (1, 2, 10) for part in (0, 9, 10)]
    put(tmp_path, *reversed(names))
    assert objects(fb.load_dataset(tmp_path, split="train")) == names


@pytest.mark.parametrize(
    "name",
    [
        "with space.parquet",
        "per%cent.parquet",
        "per%20cent.parquet",
        "ünïcödé-数据.parquet",
        "a+b=c&d.parquet",
        "day=2024-01-01/x.parquet",
        "hash#tag.parquet",
        "semi;colon,comma.parquet",
        "quote'd.parquet",
        "tilde~!$().parquet",
        "emoji 🦀/x.parquet",
    ],
)
def test_names_of_any_letters_are_found_and_read(tmp_path, name):
    put(tmp_path, name)
    sources = [tmp_path, tmp_path / name, f"file://{urllib.parse.quote(str(tmp_path / name))}"]
    for source in sources:
        assert objects(fb.load_dataset(source, split="train")) == [name], source


def test_a_file_whose_name_looks_like_a_glob_is_found_through_its_folder(tmp_path):
    put(tmp_path, "a[1]*.parquet")
    assert objects(fb.load_dataset(tmp_path, split="train")) == ["a[1]*.parquet"]


SPLIT_CASES = {
    "folders": {
        "train": ["train/a.parquet", "train/b.parquet"],
        "validation": ["validation/a.parquet"],
        "test": ["test/a.parquet"],
    },
    "files": {"train": ["train.parquet"], "test": ["test.parquet"]},
    "shards": {
        "train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        "test": ["data/test-00000-of-00001.parquet"],
    },
    "other words": {"train": ["training/a.parquet"], "validation": ["dev/a.parquet"], "test": ["eval/a.parquet"]},
    "words within names": {"train": ["my_train_file.parquet"], "validation": ["val-1.parquet"]},
    "own names": {"train": ["data/train-00000-of-00001.parquet"], "extra": ["data/extra-00000-of-00001.parquet"]},
    "no names": {"train": ["a.parquet", "b/c.parquet"]},
    "part of a word": {"train": ["contest.parquet", "trainer.parquet"]},
}


MORE_LAYOUTS = [
    ["Train.parquet", "TEST.parquet"],
    ["train1/a.parquet", "test2/b.parquet"],
    ["dev-set/a.parquet", "train-set/b.parquet"],
    ["data/train-00000-of-00002-8f1a.parquet", "data/test-00000-of-00001-ab.parquet"],
    ["train/test.parquet", "train/a.parquet"],
    ["train.parquet", "other.parquet"],
    ["test/a.parquet", "b.parquet"],
    ["validation_1/a.parquet", "train 2/a.parquet"],
    ["eval.parquet"],
    ["train.v2.parquet", "valid.v2.parquet"],
    ["mytrain.parquet"],
    ["x/my.train/a.parquet"],
    ["data/train/part-0.parquet", "data/val/part-0.parquet"],
    ["data/train-0-of-2.parquet", "data/odd-0-of-2.parquet"],
    ["data/a.b-00000-of-00001.parquet"],
    ["train/data/test-00000-of-00001.parquet"],
    ["data/train-00000-of-00001.parquet", "test/x.parquet"],
    ["en/train.parquet", "en/test.parquet", "de/train.parquet"],
    ["dev.parquet", "test-dev.parquet", "x.parquet"],
    ["test/train/dev.parquet", "train/a.parquet"],
]


def splits_in_datasets(folder: Path) -> dict[str, list[str]]:
    """What `datasets.load_dataset` would make of a folder."""
    found = data_files.DataFilesDict.from_patterns(data_files.get_data_patterns(str(folder)), str(folder))
    return {str(split): sorted(path.removeprefix(f"{folder}/") for path in files) for split, files in found.items()}


@pytest.mark.parametrize("splits", SPLIT_CASES.values(), ids=SPLIT_CASES)
def test_splits_are_found_in_names(tmp_path, splits):
    put(tmp_path, *(name for names in splits.values() for name in names))
    assert splits_in_datasets(tmp_path) == {name: sorted(names) for name, names in splits.items()}
    found = fb.load_dataset(tmp_path)
    assert isinstance(found, fb.DatasetDict)
    with pytest.raises(KeyError, match=f"no split 'dev/test'; there are {', '.join(found)}"):
        found["dev/test"]
    assert found.get("dev/test") is None
    assert {name: objects(ds) for name, ds in found.items()} == splits
    for name, names in splits.items():
        assert objects(fb.load_dataset(tmp_path, split=name)) == names


@pytest.mark.parametrize("names", MORE_LAYOUTS, ids=" ".join)
def test_splits_are_those_that_hugging_face_finds(tmp_path, names):
    put(tmp_path, *names)
    found = {name: sorted(objects(ds)) for name, ds in fb.load_dataset(tmp_path).items()}
    assert found == splits_in_datasets(tmp_path)


def test_a_file_of_two_splits_is_in_both(tmp_path):
    put(tmp_path, "dev.parquet", "test-dev.parquet")
    both = ["dev.parquet", "test-dev.parquet"]
    assert objects(fb.load_dataset(tmp_path, split="validation")) == both
    assert objects(fb.load_dataset(tmp_path, split="test")) == both[1:]
    together = fb.load_dataset(tmp_path, split="validation+test")
    assert pa.table(together)["id"].to_pylist() == [0, 1, 2, 3, 4, 5, 3, 4, 5]
    fb.load_dataset(tmp_path).save_manifest(tmp_path / "all.forebay")
    assert objects(fb.load_dataset(tmp_path / "all.forebay", split="test")) == both[1:]


def test_splits_come_with_train_first(tmp_path):
    put(tmp_path, "test/a.parquet", "train/a.parquet", "validation/a.parquet")
    assert list(fb.load_dataset(tmp_path)) == ["train", "validation", "test"]


def test_a_name_above_the_source_is_no_split(tmp_path):
    put(tmp_path / "test" / "corpus", "a.parquet")
    assert list(fb.load_dataset(tmp_path / "test" / "corpus")) == ["train"]


def test_several_splits_must_be_chosen_from(tmp_path):
    put(tmp_path, "train/a.parquet", "test/a.parquet")
    with pytest.raises(AttributeError, match=r"several splits.*ds\['train'\]\.sql"):
        fb.load_dataset(tmp_path).sql("SELECT id FROM dataset")


def test_a_named_source_that_is_in_no_split_is_refused(tmp_path):
    put(tmp_path, "train.parquet", "extra.parquet")
    with pytest.raises(fb.SettingError, match=r"extra\.parquet.*does not name a split.*data_files"):
        fb.load_dataset([tmp_path / "train.parquet", tmp_path / "extra.parquet"], split="train")


def test_files_that_are_named_parquet_beside_a_folder_called_so_are_those_named(tmp_path, monkeypatch):
    put(tmp_path, "parquet/a.parquet", "parquet/other/a.parquet", "other/b.parquet", "b.parquet")
    monkeypatch.chdir(tmp_path)
    for files, expected in (
        ({"data_files": "b.parquet"}, "b.parquet"),
        ({"data_dir": "other"}, "other/b.parquet"),
        ({"data_dir": str(tmp_path / "other")}, "other/b.parquet"),
        ({"data_dir": "other", "data_files": "*.parquet"}, "other/b.parquet"),
    ):
        ours, theirs = (made("parquet", split="train", streaming=True, **files) for made in LOADERS)
        assert {row["object"] for row in ours} == {row["object"] for row in theirs} == {expected}


def test_an_unknown_split_lists_those_there_are(tmp_path):
    put(tmp_path, "train/a.parquet", "test/a.parquet")
    with pytest.raises(fb.SettingError, match=r"no split `validation`.*it has train, test") as caught:
        fb.load_dataset(tmp_path, split="validation")
    assert str(tmp_path) in str(caught.value)


def test_columns_can_be_chosen_when_opening(tmp_path):
    put(tmp_path, "a.parquet")
    assert fb.load_dataset(tmp_path, split="train", columns=["id"]).column_names == ["id"]
    assert fb.load_dataset(tmp_path, columns=["id"])["train"].column_names == ["id"]


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """Serves a folder, byte ranges included, and keeps a list of what was asked."""

    protocol_version = "HTTP/1.1"
    root: ClassVar[Path]
    requests: ClassVar[list[tuple[str, str]]]

    def do_GET(self):
        self.requests.append((self.command, self.headers.get("Range", "")))
        path = self.root / urllib.parse.unquote(self.path.split("?")[0]).lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        body = path.read_bytes()
        tag = f'"{hash(body):x}"'
        if self.headers.get("If-Match", tag) != tag:
            self.send_error(412)
            return
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, len(body) - 1
        if asked:
            first = int(asked[1]) if asked[1] else max(len(body) - int(asked[2]), 0)
            last = min(int(asked[2]), last) if asked[1] and asked[2] else last
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", tag)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[first : last + 1])

    do_HEAD = do_GET  # noqa: N815 - the name is the server's

    def log_message(self, *_arguments):
        """Says nothing."""


@pytest.fixture
def requests() -> list[tuple[str, str]]:
    """Method and range of every request that the server got."""
    return []


@pytest.fixture
def web(tmp_path, requests) -> Iterator[str]:
    """The URL of a server of this test's folder."""
    handler = type("Handler", (RangeHandler,), {"root": tmp_path, "requests": requests})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_files_are_read_over_http(tmp_path, web):
    put(tmp_path, "a.parquet", "deep/sp ace.parquet")
    assert objects(fb.load_dataset(f"{web}/a.parquet", split="train")) == ["a.parquet"]
    ds = fb.load_dataset([f"{web}/a.parquet", f"{web}/deep/sp%20ace.parquet"], split="train")
    assert objects(ds) == ["a.parquet", "deep/sp ace.parquet"]
    assert pa.table(ds.filter("id % 2 = 0"))["id"].to_pylist() == [0, 2, 4]


def test_a_file_that_is_not_on_the_server_is_named(web):
    with pytest.raises(fb.NotFoundError, match="absent.parquet"):
        fb.load_dataset(f"{web}/absent.parquet", split="train")


def test_a_folder_on_a_web_server_cannot_be_listed(web):
    with pytest.raises(fb.ForebayError, match="127.0.0.1"):
        fb.load_dataset(f"{web}/", split="train")


def test_opening_asks_once_for_each_footer(tmp_path, web, requests):
    put(tmp_path, *(f"{i}.parquet" for i in range(5)))
    fb.load_dataset([f"{web}/{i}.parquet" for i in range(5)], split="train")
    assert [method for method, _ in requests] == ["GET"] * 5
    assert all(byte_range.startswith("bytes=-") for _, byte_range in requests)


def test_a_local_store_of_obstore_is_a_source(tmp_path):
    put(tmp_path, "part-2.parquet", "part-10.parquet", "_hidden.parquet")
    ds = fb.load_dataset(LocalStore(tmp_path), split="train")
    assert objects(ds) == ["part-2.parquet", "part-10.parquet"]


def test_a_store_that_only_this_process_has_is_refused():
    with pytest.raises(fb.SettingError, match="MemoryStore"):
        fb.load_dataset(MemoryStore(), split="train")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_key_that_begins_with_a_slash_is_refused(scheme):
    with pytest.raises(fb.SettingError, match=f"write `{scheme}://bucket/d/x.parquet`"):
        fb.load_dataset(f"{scheme}://bucket//d/x.parquet", split="train")


@pytest.mark.parametrize("source", [3, None, b"bytes", [1, 2], {"train": 3}])
def test_what_is_no_source_is_refused(source):
    with pytest.raises((fb.SettingError, TypeError)):
        fb.load_dataset(source, split="train")


@pytest.mark.parametrize("source", ["~nobody-of-that-name/x", "x" * 300, "/tmp/" + "x" * 300, "a/b@" + "x" * 300])
def test_what_no_file_is_called_is_a_source_that_is_not_there(source, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "datasets--a--b" / "refs").mkdir(parents=True)
    with pytest.raises(fb.ForebayError):
        fb.load_dataset(source, split="train")


def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.parquet")
    with pytest.raises(fb.SettingError, match="it is a pipe or a device"):
        fb.load_dataset(tmp_path / "x.parquet", split="train")


def test_links_that_lead_back_and_names_of_no_objects_are_passed_over(tmp_path):
    put(tmp_path, "a.parquet", "d/b.parquet")
    (tmp_path / "d" / "up").symlink_to(tmp_path)
    (tmp_path / "own").symlink_to("own")
    for name in (b"\xff.txt", b"new\nline.txt", b"x#1"):
        (tmp_path / os.fsdecode(name)).write_text("x")
    for source in (tmp_path, f"{tmp_path}/**/*.parquet"):
        ds = fb.load_dataset(source, split="train")
        assert objects(ds) == ["a.parquet", "d/b.parquet"]
        assert len(pa.table(ds)) == 6
    # One that would be read is not left out without a word.
    shutil.copy(tmp_path / "a.parquet", tmp_path / os.fsdecode(b"\xff.parquet"))
    with pytest.raises(fb.StoreError, match=r"\.parquet: rename it: "):
        fb.load_dataset(tmp_path, split="train")


@pytest.mark.parametrize("target", ["nowhere", "lost.parquet"])
@pytest.mark.parametrize("card", [None, CARD])
def test_a_link_to_what_is_not_there_is_an_error_if_it_is_wanted(tmp_path, card, target):
    """Of a cache whose files were removed, say: without it there are fewer rows than there were."""
    put(tmp_path, "a.parquet", "d/b.parquet")
    (tmp_path / "d" / "lost.txt").symlink_to("nowhere")
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert objects(fb.load_dataset(tmp_path, split="train")) == ["a.parquet", "d/b.parquet"]
    (tmp_path / "d" / "lost.parquet").symlink_to(target)
    for source in (tmp_path, f"{tmp_path}/**/*.parquet", f"{tmp_path}/d/lost.parquet"):
        with pytest.raises((fb.NotFoundError, fb.StoreError), match=r"/d/lost\.parquet"):
            fb.load_dataset(source, split="train")
    assert objects(fb.load_dataset(f"{tmp_path}/*/b.parquet", split="train")) == ["d/b.parquet"]


# The rights of files mean nothing to root, who becomes somebody else.
AS_ANYBODY = """
    import os
    import sys
    import forebay as fb
    import pyarrow as pa
    # Whatever modules are needed are imported as long as they can be.
    pa.table(fb.load_dataset(sys.argv[1], split="train"))["id"].to_pylist()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    for source in sys.argv[1:]:
        try:
            print(sorted(pa.table(fb.load_dataset(source, split="train"))["id"].to_pylist()))
        except fb.ForebayError as error:
            print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anybody may read, with three files."""
    folder = Path(tempfile.mkdtemp())
    put(folder, "a.parquet", "d/b.parquet", "e/c.parquet")
    (folder / "e" / "README.md").write_text(CARD)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("card", [None, CARD])
@pytest.mark.parametrize("mode", [0o000, 0o644, 0o711])
def test_a_folder_that_may_not_be_read_is_an_error_and_no_rows_are_left_out(open_folder, mode, card):
    """With 644 its names can be listed, and nothing is known of what they name."""
    if card is not None:
        (open_folder / "README.md").write_text(card)
    (open_folder / "d").chmod(mode)
    rows, *refusals = run_python(
        AS_ANYBODY, f"{open_folder}/e", open_folder, f"{open_folder}/**/*.parquet"
    ).splitlines()
    assert rows == "[6, 7, 8]"
    for said in refusals:
        assert "Error: " in said
        assert f"{open_folder}/d" in said
        assert "Permission denied" in said
        assert "credentials" not in said


@pytest.mark.parametrize("card", [None, CARD])
def test_a_folder_of_no_interest_may_be_closed(open_folder, card):
    """As `lost+found` is, where a file system begins."""
    if card is not None:
        (open_folder / "README.md").write_text(card)
    for name in ("lost+found", ".trash", "d/.snapshot"):
        (open_folder / name).mkdir(0o000)
    assert run_python(AS_ANYBODY, f"{open_folder}/e", open_folder).splitlines()[1] == str(list(range(9)))


def test_a_folder_that_no_pattern_reaches_may_be_closed(open_folder):
    (open_folder / "closed").mkdir(0o000)
    (open_folder / "e" / "closed").mkdir(0o000)
    sources = [f"{open_folder}/e/*.parquet", f"{open_folder}/*.parquet", f"{open_folder}/[de]/?.parquet"]
    said = run_python(AS_ANYBODY, *sources).splitlines()
    assert said == ["[6, 7, 8]", "[0, 1, 2]", "[3, 4, 5, 6, 7, 8]"]


def test_a_card_that_may_not_be_read_is_named(open_folder):
    (open_folder / "README.md").touch(0o000)
    _, said = run_python(AS_ANYBODY, f"{open_folder}/e", open_folder).splitlines()
    assert said.startswith(f"AccessDeniedError: permission denied for `{open_folder}/README.md`")


def test_a_folder_that_may_not_be_entered_is_named(open_folder):
    (open_folder / "d").chmod(0o000)
    _, said = run_python(AS_ANYBODY, f"{open_folder}/e", f"{open_folder}/d").splitlines()
    assert said.startswith(f"AccessDeniedError: permission denied for `{open_folder}/d`")


@pytest.mark.parametrize("card", [None, CARD])
def test_linked_folders_are_found_by_patterns_and_by_their_name(tmp_path, card):
    root = tmp_path / "root"
    put(root, "a.parquet")
    put(tmp_path / "elsewhere", "b.parquet")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "up").symlink_to(root)
    (root / "nowhere").symlink_to(tmp_path / "gone")
    if card is not None:
        (root / "README.md").write_text(card)
    found = {"data_files": "linked/*.parquet"}, {"data_dir": "linked"}
    assert [objects(fb.load_dataset(root, split="train", **which)) for which in found] == [["b.parquet"]] * 2
    for which in ({}, {"data_files": "**/*.parquet"}):
        assert sorted(objects(fb.load_dataset(root, split="train", **which))) == ["a.parquet", "b.parquet"]


def test_the_fingerprint_is_of_the_objects_not_of_the_way_to_them(tmp_path):
    put(tmp_path, "a.parquet", "b.parquet")
    sources = [tmp_path, f"{tmp_path}/", f"{tmp_path}/*.parquet"]
    states = [fb.load_dataset(source, split="train").batches(2).state_dict() for source in sources]
    assert states[0] == states[1] == states[2]
