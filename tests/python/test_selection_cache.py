"""Selections on disk: the second run starts at once, and whatever is wrong with the cache costs time only."""

from __future__ import annotations

import io
import os
import random
from typing import TYPE_CHECKING

import data
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_proxy import FaultProxy
from programs import run_python
from upstreams import Answer, Asked, Objects

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

SQL = "id % 3 = 1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "selections"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An object of 1000 rows."""
    (tmp_path / "data").mkdir()
    pq.write_table(data.ids_table(1000), tmp_path / "data" / "x.parquet", row_group_size=100)
    os.utime(tmp_path / "data" / "x.parquet", (1, 1))
    return tmp_path / "data"


def opened(folder: Path, sql: str = SQL) -> fb.Dataset:
    """Opens the rows anew and filters them."""
    return fb.load_dataset(folder, split="train").filter(sql)


IN_PLACE = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_is_no_file_is_not_there(cache: Path, folder: Path, kind: str) -> None:
    os.utime(folder / "x.parquet", (1, 1))
    assert len(opened(folder)) == 333
    entries = [path for path in cache.parent.rglob("*") if path.is_file()]
    assert {path.parent.name for path in entries} == {"footers-1", "selections"}
    for path in entries:
        path.unlink()
        IN_PLACE[kind](path)
    # In a process of its own: what waits for a pipe cannot be interrupted.
    program = """
        import sys
        import forebay as fb
        ds = fb.load_dataset(sys.argv[1], split="train").filter(sys.argv[2])
        print(len(ds), ds.explain()["selection_cached"])
    """
    assert run_python(program, folder, SQL).split() == ["333", "0"]
    kept = kind != "a folder"
    assert run_python(program, folder, SQL).split() == ["333", str(int(kept))]
    assert all(path.is_file() and not path.is_symlink() for path in entries) == kept


def test_the_second_run_reads_no_predicate_columns(cache: Path, folder: Path) -> None:
    first = opened(folder)
    facts = first.explain()
    assert (facts["selection_cached"], facts["row_groups_read"], facts["rows_kept"]) == (0, 10, 333)
    assert facts["selection_bytes"] > 0
    second = opened(folder)
    again = second.explain()
    assert (again["selection_cached"], again["selection_bytes"], again["selection_requests"]) == (1, 0, 0)
    assert (again["row_groups_read"], again["rows_kept"]) == (10, 333)
    assert second.selection() == first.selection()
    assert second.select_columns("id")[:]["id"] == list(range(1, 1000, 3))
    assert len(list(cache.iterdir())) == 1


LOOKALIKES = {
    "lists": ("array_has($v, text)", [{"v": ["en", "fr"]}, {"v": ["en, fr"]}, {"v": [""]}, {"v": [None]}]),
    "bytes": ("data = $v", [{"v": bytes(range(20)) + end} for end in (b"a", b"b")]),
    "text": (
        "text <> $a AND data IS NULL OR text = $b",
        [
            {"a": 'p")\n-- $b = Utf8("q', "b": "r"},
            {"a": "p", "b": 'q")\n-- $b = Utf8("r'},
            {"a": 'p"', "b": "r"},
            {"a": 'p\\"', "b": "r"},
        ],
    ),
}


@pytest.mark.parametrize("kind", LOOKALIKES)
def test_values_that_look_alike_are_different(cache: Path, tmp_path: Path, kind: str) -> None:
    texts = ["en", "fr", "en, fr", "", 'q")\n-- $b = Utf8("r', None, "r"]
    data_of = [bytes(range(20)) + end for end in (b"a", b"b", b"c", b"d", b"e", b"f")]
    pq.write_table(pa.table({"id": range(7), "text": texts, "data": [*data_of, None]}), tmp_path / "x.parquet")
    os.utime(tmp_path / "x.parquet", (1, 1))
    sql, values = LOOKALIKES[kind]
    seen = []
    for _ in range(2):
        found = [fb.load_dataset(tmp_path / "x.parquet", split="train").filter(sql, params=params) for params in values]
        seen.append([ds.select_columns("id")[:]["id"] for ds in found])
    assert seen[0] == seen[1]
    if kind == "lists":
        assert seen[0] == [[0, 1], [2], [3], []]
    assert len(list(cache.iterdir())) == len(values)
    streams = [ds.batches(1, rank=0, world_size=1) for ds in found]
    with pytest.raises(fb.StateError):
        streams[0].load_state_dict(streams[1].state_dict())


def test_another_process_uses_it(cache: Path, folder: Path) -> None:
    kept = len(opened(folder))
    assert cache.is_dir()
    program = f"""
        import forebay as fb
        facts = fb.load_dataset({str(folder)!r}, split="train").filter({SQL!r}).explain()
        print(facts["selection_cached"], facts["rows_kept"])
    """
    assert run_python(program).strip() == f"1 {kept}"


def test_what_differs_is_evaluated_anew(cache: Path, folder: Path) -> None:
    len(opened(folder))
    assert len(list(cache.iterdir())) == 1
    for other in (opened(folder, "id % 3 = 2"), opened(folder, f"{SQL} "), opened(folder).shard(0, 2)):
        assert other.explain()["selection_cached"] == 0
    # The same rows, written again: who knows.
    pq.write_table(data.ids_table(1000), folder / "x.parquet", row_group_size=100)
    os.utime(folder / "x.parquet", (1, 1))
    assert opened(folder).explain()["selection_cached"] == 0


class WithoutTags(Objects):
    """Objects without e-tags, as some web servers have them."""

    def ask(self, asked: Asked) -> Answer:
        answer = super().ask(asked)
        answer.headers.pop("etag", None)
        return answer


class SameTags(Objects):
    """Objects with tags of a time and a size, as web servers make them: those of one second are the same."""

    def ask(self, asked: Asked) -> Answer:
        asked.headers.pop("if-match", None)
        answer = super().ask(asked)
        answer.headers["etag"] = '"1"'
        return answer


class WeakTags(Objects):
    """Objects with tags that do not promise equal bytes."""

    def ask(self, asked: Asked) -> Answer:
        answer = super().ask(asked)
        answer.headers["etag"] = 'W/"1"'
        return answer


def lookalike(seed: int) -> tuple[bytes, int]:
    """Returns an object whose footer is that of any other seed, and how many of its rows are 3."""
    values = [0, 9, *random.Random(seed).choices(range(10), k=98)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": values}), sink, use_dictionary=False, compression="none")
    return sink.getvalue(), values.count(3)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("objects", [SameTags, WeakTags])
def test_an_object_elsewhere_is_another(objects: type[Objects]) -> None:
    (one, num_one), (other, num_other) = lookalike(0), lookalike(1)
    assert num_one != num_other
    with FaultProxy(objects({"a/x.parquet": one, "b/x.parquet": other})) as web:
        for path, expected in (("a", num_one), ("b", num_other)):
            ds = fb.load_dataset(f"{web.url}/{path}/x.parquet", split="train").filter("id = 3")
            assert ds[:]["id"] == [3] * expected


@pytest.mark.usefixtures("cache")
def test_a_file_written_over_is_another_though_its_time_is_set_back(tmp_path: Path) -> None:
    for seed in (0, 1):
        body, expected = lookalike(seed)
        (tmp_path / "x.parquet").write_bytes(body)
        os.utime(tmp_path / "x.parquet", (1, 1))
        ds = fb.load_dataset(tmp_path / "x.parquet", split="train").filter("id = 3")
        assert ds[:]["id"] == [3] * expected


def test_a_file_that_was_just_written_has_no_entry(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(lookalike(0)[0])
    assert len(opened(tmp_path / "x.parquet", "id = 3")) > 0
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.parametrize(("objects", "is_kept"), [(Objects, 1), (WithoutTags, 0), (WeakTags, 0)])
def test_objects_without_e_tags_have_none(cache: Path, folder: Path, objects: type[Objects], is_kept: int) -> None:
    body = (folder / "x.parquet").read_bytes()
    with FaultProxy(objects({"x.parquet": body})) as web:
        for was_kept in (0, is_kept):
            facts = fb.load_dataset(f"{web.url}/x.parquet", split="train").filter(SQL).explain()
            assert (facts["selection_cached"], facts["rows_kept"]) == (was_kept, 333)
    assert (len(list(cache.iterdir())) if cache.exists() else 0) == is_kept


def test_what_statistics_decide_takes_no_place(cache: Path, folder: Path) -> None:
    assert len(opened(folder, "id < 300")) == 300
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body[:50] + b"?" + body[51:], lambda _: b""])
def test_a_poisoned_entry_is_said_and_made_again(cache: Path, folder: Path, change) -> None:
    expected = opened(folder).selection()
    [entry] = cache.iterdir()
    entry.write_bytes(change(entry.read_bytes()))
    with pytest.warns(fb.PerformanceWarning, match=f"{entry}.* was damaged"):
        assert opened(folder).selection() == expected
    assert opened(folder).explain()["selection_cached"] == 1


def test_the_first_rows_alone_are_not_kept(cache: Path, folder: Path) -> None:
    assert opened(folder).head(3).num_rows == len(opened(folder).take(3)) == 3
    assert not cache.exists() or list(cache.iterdir()) == []
    assert len(opened(folder)) == 333
    [entry] = cache.iterdir()
    assert opened(folder).take(3).explain()["selection_cached"] == 1
    entry.write_bytes(b"")
    with pytest.warns(fb.PerformanceWarning, match=f"{entry}.* was damaged"):
        assert opened(folder).head(3).num_rows == 3


def test_without_a_place_there_is_no_cache(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in ("0", str(tmp_path / "file")):
        monkeypatch.setenv("FOREBAY_CACHE", place)
        for _ in range(2):
            assert opened(folder).explain()["selection_cached"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]
