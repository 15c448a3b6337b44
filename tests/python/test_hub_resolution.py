"""Names to files: the same ordered list of every split as the real `datasets` finds on the same Hub."""

from __future__ import annotations

import io
import itertools
import os
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import Hub
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import forebay as fb
from forebay.hub import globs, places, repository
from forebay.hub.client import Client
from forebay.hub.resolve import Wanted, resolve
from forebay.hub.settings import current

datasets = pytest.importorskip("datasets")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hub import Repo

# `datasets` leaves them to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed")


def parquet_bytes(num_rows: int = 3, start: int = 0) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(range(start, start + num_rows), pa.int64())}), sink)
    return sink.getvalue()


BODY = parquet_bytes()
NUMBERS = itertools.count()

UNKNOWN: Any = object()
"""What `datasets` says nothing of."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[Hub]:
    with Hub() as hub, pytest.MonkeyPatch.context() as monkeypatch:
        hub.point(monkeypatch, tmp_path_factory.mktemp("home"))
        datasets.disable_progress_bars()
        yield hub


def make(hub: Hub, paths: list[str], card: str | None = None) -> Repo:
    files = {path: BODY if path.endswith("parquet") else b"{}" for path in paths}
    if card is not None:
        files["README.md"] = f"---\n{card}\n---\nA card.\n".encode()
    return hub.create(f"org/n{next(NUMBERS)}", files)


def below_root(files: Any) -> list[tuple[str, list[str]]]:
    return [(str(split), [re.sub(r"^hf://[^@]+@[^/]+/", "", uri) for uri in uris]) for split, uris in files.items()]


def theirs(repo: Repo, **arguments: Any) -> list[tuple[str, list[str]]] | None:
    """The files as `datasets` finds them; `None` where it finds none."""
    try:
        builder = datasets.load_dataset_builder(repo.id, **arguments)
    except (ValueError, OSError):
        return None
    except AssertionError:
        # Of its own: it takes `data/-00000-of-00001.x` for a sharded name, and finds no split in it.
        return UNKNOWN
    if builder.name != "parquet" or not any(builder.config.data_files.values()):
        return None
    return below_root(builder.config.data_files)


def ours(repo: Repo, name: str | None = None, revision: str | None = None, **arguments: Any) -> Any:
    place = places.parse(repo.id)
    assert place is not None
    try:
        found = resolve(place.at(revision), Wanted(name, **arguments), Client(current(None)))
    except fb.ForebayError:
        return None
    return below_root({split: [uri for uri, _, _ in files] for split, files in found.splits.items()})


def check_same(repo: Repo, **arguments: Any) -> Any:
    expected = theirs(repo, **arguments)
    found = ours(repo, **arguments)
    assert expected is UNKNOWN or found == expected
    return found


LAYOUTS = {
    "sharded": [
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/x.y-00000-of-00001.parquet",
    ],
    "sharded and more": ["data/test-00000-of-00001-abc.parquet", "other/train.parquet", "train/0.parquet"],
    "folders": ["train/b.parquet", "train/a.parquet", "my-dev/0.parquet", "eval_2/x/y.parquet", "testing/z.parquet"],
    "files": ["a/train.parquet", "validation_0.parquet", "x-test.parquet", "trainer.parquet", "dev-train.parquet"],
    "one file": ["anything.parquet"],
    "no split": ["b/2.parquet", "a/10.parquet", "a/2.parquet"],
    "hidden": [".hidden/train.parquet", "__cache__/train.parquet", "a/.x.parquet", "a/_y.parquet", "ok.parquet"],
    "mixed kinds": ["train.parquet", "train.csv", "train.json", "dataset_infos.json", "notes.md"],
    "mostly another kind": ["train/0.csv", "train/1.csv", "train/2.parquet"],
    "other ends": ["train/0.geoparquet", "train/1.gpq", "train/2.parquet.zip"],
    "twice in one split": ["train/train-1/x.parquet", "train-x/0.parquet"],
    "in two splits": ["test/train/x.parquet", "train/y.parquet"],
    "nothing": [".gitattributes"],
    "no data": ["paper.docx", "LICENSE"],
    "strange names": ["data dir/tr[a]in 1.parquet", "ü/train.parquet", "a%20b/test#1.parquet"],
}


WITHOUT_ROWS = {"mostly another kind", "nothing", "no data"}
"""What both refuse."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_gives_the_splits_of_datasets(hub, name):
    found = check_same(make(hub, LAYOUTS[name]))
    assert (found is None) == (name in WITHOUT_ROWS)


NAMES = st.sampled_from(
    ["train", "training", "validation", "valid", "dev", "val", "test", "testing", "eval", "data", "x", "part", "sub"]
)
APART = st.sampled_from(["", "-", "_", ".", " ", "0", "-1", "_2x", "-00000-of-00002", "-00001-of-00002", "__", "A"])
STEMS = st.lists(st.tuples(APART, NAMES, APART).map("".join), min_size=1, max_size=2).map("".join)
PREFIXES = st.sampled_from(["", "", "", "", "", ".", "__", "_"])
FOLDERS = st.one_of(st.just("data"), NAMES, st.tuples(PREFIXES, STEMS).map("".join))
ENDS = st.sampled_from([".parquet"] * 8 + [".csv", ".json", ".gpq", ".txt", "", ".parquet.gz", ".PARQUET"])
FILES = st.tuples(PREFIXES, STEMS, ENDS).map("".join)
PATHS = st.tuples(st.lists(FOLDERS, max_size=3), FILES).map(lambda parts: "/".join([*parts[0], parts[1]]))


def is_sound(paths: list[str]) -> bool:
    """Whether no file is also a folder, and no name is one that a repository cannot have."""
    folders = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/") + 1)}
    return not folders & set(paths) and not any(part in (".", "..") for path in paths for part in path.split("/"))


TREES = st.lists(PATHS, min_size=1, max_size=8, unique=True).filter(is_sound)
# `datasets` compiles hundreds of patterns for each: what is found is not made smaller.
SLOW = settings(max_examples=20, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])


@given(TREES)
@example(["data/a-00000-of-00001-of-00000.parquet", "data/train-00000-of-00001.parquet"])
@SLOW
def test_any_layout_gives_the_splits_of_datasets(hub, paths):
    check_same(make(hub, paths))


PATTERNS = st.one_of(
    st.sampled_from(
        ["**", "*", "*.parquet", "**/*.parquet", "train/*", "data/**", "**/train*", "*/*", "**/.*", "__*/*"]
    ),
    st.sampled_from(
        ["[dt]*/*", "**/[!t]*", "?????.parquet", "data/*-[0-9]*", "missing/*", "**/*.csv", "**/**", "x[", "[]x]*"]
    ),
    PATHS,
)


@given(TREES, st.data())
@SLOW
def test_any_pattern_gives_the_files_of_datasets(hub, paths, data):
    repo = make(hub, paths)
    patterns = st.one_of(PATTERNS, st.sampled_from(paths))
    form = data.draw(
        st.one_of(
            patterns,
            st.lists(patterns, min_size=1, max_size=3),
            st.dictionaries(NAMES, patterns, min_size=1, max_size=2),
        )
    )
    check_same(repo, data_files=form)


NAMED = [
    *("train.parquet", "./train.parquet", ".//train.parquet", "data/./train.parquet", "data/../train.parquet"),
    *("./*", "./**", "./data/*.parquet", "d/./*/x.parquet", ".h/y.parquet", "./.h/*", "train.parquet/", "*/", "**/"),
    *("../train.parquet", "./missing.parquet", "data", "./data", ".", "./", "../x.parquet", "/train.parquet"),
]


@pytest.mark.parametrize("pattern", NAMED)
def test_paths_with_dots_and_strokes_are_those_of_datasets(hub, tmp_path, pattern):
    """In a local folder they are a file system's; the Hub has no files of such names."""
    paths = ["train.parquet", "data/train.parquet", "data/a.parquet", "d/e/x.parquet", ".h/y.parquet"]
    repo = make(hub, paths)
    for number, path in enumerate(paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(parquet_bytes(1, number))
    # A folder that one leaves again need not be there, for us.
    for arguments in ({}, {"data_dir": "data"})[: 1 if "a/.." in pattern else 2]:
        check_same(repo, data_files=pattern, **arguments)
        for named in (pattern, f"{tmp_path}/{pattern}"):
            try:
                builder = datasets.load_dataset_builder(str(tmp_path), data_files=named, **arguments)
                files = builder.config.data_files["train"] if builder.name == "parquet" else []
            except (ValueError, OSError):
                files = []
            if files:
                ds = fb.load_dataset(tmp_path, split="train", data_files=named, **arguments)
                assert [row["id"] for row in ds] == [paths.index(os.path.relpath(file, tmp_path)) for file in files]
            else:
                with pytest.raises((fb.NotFoundError, fb.SettingError)):
                    fb.load_dataset(tmp_path, split="train", data_files=named, **arguments)


@given(TREES, st.data())
@SLOW
def test_any_card_gives_the_configs_of_datasets(hub, paths, data):
    folders = sorted({path.rsplit("/", 1)[0] for path in paths if "/" in path})
    patterns = st.one_of(PATTERNS, st.sampled_from(paths))
    lists = st.one_of(patterns, st.lists(patterns, min_size=1, max_size=2))
    splits = st.lists(st.fixed_dictionaries({"split": NAMES, "path": lists}), min_size=1, max_size=2)
    config = st.fixed_dictionaries(
        {},
        optional={
            "data_files": st.one_of(lists, splits),
            "data_dir": st.sampled_from(folders) if folders else st.nothing(),
            "default": st.booleans(),
        },
    )
    configs = data.draw(st.dictionaries(st.sampled_from(["default", "en", "de"]), config, min_size=1, max_size=3))
    card = "configs: " + repr([{"config_name": name, **said} for name, said in configs.items()])
    repo = make(hub, paths, card.replace("True", "true").replace("False", "false"))
    for name in (None, *configs, "fr"):
        check_same(repo, name=name)


@given(TREES, st.data())
@SLOW
def test_any_folder_gives_the_splits_of_datasets(hub, paths, data):
    folders = sorted({path[:place] for path in paths for place, char in enumerate(path) if char == "/"})
    repo = make(hub, paths)
    for folder in [*folders[:2], "missing"]:
        check_same(repo, data_dir=folder)
        check_same(repo, data_dir=folder, data_files=data.draw(PATTERNS))


@given(st.text("ab-[]!*?^&|~\\.", max_size=8), st.text("ab-[]!^&|~\\.", max_size=5))
@example("[b-a]", "b")
@example("[!b-a]", "c")
@example("[a-]b", "-b")
@example("[]]", "]")
@example("[!]]", "a")
@settings(max_examples=600)
def test_a_pattern_of_one_name_fits_what_fsspec_says(pattern, name):
    from fsspec.utils import glob_translate

    if "**" in pattern:
        return
    assert (globs.compiled(pattern).match(name) is None) == (re.match(glob_translate(pattern), name) is None)


REVISIONS = ["main", "refs/convert/parquet", "v1", "refs/pr/3", "side"]


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_kind_of_revision_is_found(hub, revision):
    repo = make(hub, ["main.parquet"])
    for number, ref in enumerate(["refs/convert/parquet", "refs/tags/v1", "refs/pr/3", "side"]):
        main = repo.sha
        repo.commit({f"default/train/{number}.parquet": BODY}, ref=ref)
        repo.refs["main"] = main
    by_name = check_same(repo, revision=revision)
    assert by_name is not None
    place = places.parse(f"hf://datasets/{repo.id}@{revision}")
    assert place is not None
    found = resolve(place, Wanted(), Client(current(None)))
    assert below_root({split: [uri for uri, _, _ in files] for split, files in found.splits.items()}) == by_name
    assert ours(repo, revision=found.commit) == by_name


@pytest.mark.parametrize("revision", ["main", "refs/pr/3", "v1"])
def test_uris_and_urls_of_the_revision_are_its_own_files(hub, revision):
    paths = ["data/train 1.parquet", "data/train.parquet", "data/test.parquet"]
    repo = make(hub, paths)
    commits = {"main": repo.sha}
    for ref in ("refs/pr/3", "refs/tags/v1"):
        commits[ref.removeprefix("refs/tags/")] = repo.commit(dict.fromkeys([*paths, ref], BODY), ref=ref)
    at = None if revision == "main" else revision
    tree, quoted = f"hf://datasets/{repo.id}@", revision.replace("/", "%2F")
    url = f"{hub.url}/datasets/{repo.id}/resolve"
    for pattern in (
        f"{tree}{quoted}/data/t*",
        {"train": f"{url}/{quoted}/data/train.parquet", "test": f"{url}/{quoted}/data/test.parquet"},
    ):
        assert check_same(repo, data_files=pattern, revision=at) is not None
    commit = commits[revision]
    assert ours(repo, data_files=f"{tree}{commit}/data/train.*", revision=at) == [("train", ["data/train.parquet"])]
    for url_of_file in (
        f"{url}/{commit}/data/train%201.parquet",
        f"{url}/{quoted}/data/train%201.parquet?download=true",
    ):
        assert ours(repo, data_files=url_of_file, revision=at) == [("train", ["data/train 1.parquet"])]
    other = "v1" if revision == "main" else "main"
    for pattern in (f"{tree}{other}/data/*", f"{url}/{other}/data/test.parquet", "hf://datasets/org/other@main/*"):
        with pytest.raises(fb.SettingError, match=r"is not in `datasets/org/.*takes files from anywhere"):
            fb.load_dataset(repo.id, data_files=pattern, revision=at)


def test_splits_may_be_named_by_what_datasets_has_for_them(hub):
    repo = make(hub, ["a.parquet", "b.parquet"])
    named = {datasets.Split.TRAIN: "a.parquet", 2024: ["b.parquet"]}
    for data_files in (named, [{"split": name, "path": path} for name, path in named.items()]):
        assert check_same(repo, data_files=data_files) == [("train", ["a.parquet"]), ("2024", ["b.parquet"])]


@pytest.mark.parametrize("why", ["it has more than are believed", "it comes without sizes"])
def test_files_are_listed_where_a_commit_is_not_believed_to_name_them(hub, monkeypatch, why):
    repo = make(hub, [f"train/{number:02}.parquet" for number in range(7)])
    place = places.parse(f"hf://datasets/{repo.id}")
    assert place is not None
    hub.clear()
    named = repository.look_up(place, Client(current(None))).files
    assert hub.count("api") == 1
    monkeypatch.setattr(hub, "page_size", 2)
    if why == "it comes without sizes":
        monkeypatch.setattr(hub, "tells_sizes", False)
    else:
        monkeypatch.setattr(repository, "MOST_SIBLINGS", 6)
    hub.clear()
    assert repository.look_up(place, Client(current(None))).files == named, "the same sizes and digests"
    assert hub.count("api", "tree/") >= 4, "page by page"
    assert ours(repo) == theirs(repo)


def test_a_bucket_gives_the_splits_of_datasets(hub):
    paths = ["d/train/b.parquet", "d/train/a.parquet", "d/test/c.parquet", "e/other.parquet"]
    hub.create_bucket("org/bucket", dict.fromkeys(paths, BODY))
    theirs = datasets.load_dataset_builder("hf://buckets/org/bucket/d").config.data_files
    place = places.parse("hf://buckets/org/bucket/d")
    assert place is not None
    found = resolve(place, Wanted(), Client(current(None)))
    assert {split: [uri for uri, _, _ in files] for split, files in found.splits.items()} == dict(theirs)


def test_the_hubs_own_parquet_has_configs_and_splits(hub):
    repo = make(hub, ["a.csv"])
    main = repo.sha
    exported = [
        f"{name}/{split}/000{n}.parquet"
        for name in ("en", "default")
        for split in ("train", "partial-x")
        for n in (0, 1)
    ]
    repo.commit(dict.fromkeys(exported, BODY), ref="refs/convert/parquet")
    repo.refs["main"] = main
    place = places.parse(f"{repo.id}@~parquet")
    assert place is not None
    found = resolve(place, Wanted("en"), Client(current(None)))
    assert below_root({split: [uri for uri, _, _ in files] for split, files in found.splits.items()}) == [
        ("train", ["en/train/0000.parquet", "en/train/0001.parquet"]),
        ("x", ["en/partial-x/0000.parquet", "en/partial-x/0001.parquet"]),
    ]
    with pytest.raises(fb.SettingError, match="'fr'.*`en`"):
        resolve(place, Wanted("fr"), Client(current(None)))


EXPORTED = {
    "{}@~parquet": {"train": [0, 1], "x": [2]},
    "hf://datasets/{}@~parquet/en": {"train": [10, 11], "x": [12]},
    "hf://datasets/{}@~parquet/en/train": {"train": [10, 11]},
    "hf://datasets/{}@~parquet/en/train/0001.parquet": {"train": [11]},
    "hf://datasets/{}@~parquet/en/**/*.parquet": {"train": [10, 11], "x": [12]},
    "hf://datasets/{}@~parquet/*/train/0000.parquet": {"train": [0]},
}


def test_files_and_patterns_of_the_hubs_own_parquet_are_found(hub):
    repo = make(hub, ["a.csv"])
    main = repo.sha
    parts = [("train", 0), ("train", 1), ("x", 0)]
    exported = {
        f"{name}/{split}/000{n}.parquet": parquet_bytes(1, first + number)
        for name, first in (("default", 0), ("en", 10))
        for number, (split, n) in enumerate(parts)
    }
    repo.commit(exported, ref="refs/convert/parquet")
    repo.refs["main"] = main

    def rows(**arguments: Any) -> dict[str, list[int]]:
        found = fb.load_dataset(**arguments)
        return {split: [row["id"] for row in of_split] for split, of_split in found.items()}

    for path, expected in EXPORTED.items():
        assert rows(path=path.format(repo.id)) == expected
    everything = f"hf://datasets/{repo.id}@~parquet/**/*.parquet"
    assert rows(path="parquet", data_files=everything) == {"train": [0, 1, 2, 10, 11, 12]}
    # Those of the call take the place of the branch's own configurations.
    assert rows(path=f"{repo.id}@~parquet", data_files="en/x/*") == {"train": [12]}
    assert rows(path=f"{repo.id}@~parquet", data_dir="en/train") == {"train": [10, 11]}
    with pytest.raises(fb.NotFoundError, match=r"no such file or folder: `hf://.*/enn`; did you mean `en`"):
        fb.load_dataset(f"hf://datasets/{repo.id}@~parquet/enn")
    with pytest.raises(fb.DatasetNotFoundError, match="no such revision .*: `refs/convert/parquet`; the Hub makes it"):
        fb.load_dataset(f"{make(hub, ['a.csv']).id}@~parquet")
    with pytest.raises(fb.DatasetNotFoundError, match="`0123abc`; a commit must be named by all of its 40 digits"):
        fb.load_dataset(repo.id, revision="0123abc")
