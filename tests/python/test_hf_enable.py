"""`forebay.hf.enable`: programs that only know `datasets` read Parquet with Forebay."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from typing import TYPE_CHECKING, Any

import datasets
import dill
import PIL.Image
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from datasets.packaged_modules.parquet.parquet import Parquet
from hf_data import shown, write_rows
from hub import TOKEN, Hub
from hub_data import ids_file, to_bytes
from image_data import encoded
from torch.utils.data import DataLoader

import forebay as fb
from forebay.hf import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("enabled")
    write_rows(made)
    return made


@pytest.fixture(autouse=True)
def _disabled_again() -> Iterator[None]:
    yield
    fb.hf.disable()


def load(folder: Path, **settings: Any) -> Any:
    settings = {"split": "train", "data_files": str(folder / "*.parquet")} | settings
    return datasets.load_dataset("parquet", streaming=True, **settings)


def is_ours(ds: Any) -> bool:
    return type(ds._ex_iterable).__name__ == "ForebayExamplesIterable"


LOADS: dict[str, Callable[[Path], Any]] = {
    "files": load,
    "a folder": lambda folder: datasets.load_dataset(str(folder), split="train", streaming=True),
    "columns": lambda folder: load(folder, columns=["score", "id"]),
    "features": lambda folder: load(
        folder, columns=["id"], features=datasets.Features({"id": datasets.Value("string")})
    ),
    "from_parquet": lambda folder: datasets.IterableDataset.from_parquet(sorted(map(str, folder.glob("*.parquet")))),
    "a split of a dict": lambda folder: load(folder, split=None)["train"],
}


@pytest.mark.parametrize("name", LOADS)
def test_the_rows_and_features_are_those_without_it(folder: Path, name: str) -> None:
    theirs = LOADS[name](folder)
    with fb.hf.enable():
        ours = LOADS[name](folder)
    assert is_ours(ours)
    assert not is_ours(theirs)
    assert (ours.features, str(ours.split)) == (theirs.features, str(theirs.split))
    assert shown(list(ours)) == shown(list(theirs))
    assert shown(list(ours.map(lambda row: row).take(50))) == shown(list(theirs.map(lambda row: row).take(50)))


def test_splits_that_are_added_up_are_read_one_after_another(folder: Path) -> None:
    paths = sorted(map(str, folder.glob("*.parquet")))
    files = {"train": paths[:2], "test": paths[2:]}
    theirs = load(folder, data_files=files, split="test+train")
    with fb.hf.enable():
        ours = load(folder, data_files=files, split="test+train")
    assert shown(list(ours)) == shown(list(theirs))


def test_files_of_a_split_are_read_whatever_their_names_tell(folder: Path, tmp_path: Path) -> None:
    for name in ("train.parquet", "extra.parquet", "test.parquet"):
        pq.write_table(pa.table({"name": [name]}), tmp_path / name)
    files = [str(tmp_path / name) for name in ("train.parquet", "extra.parquet", "test.parquet")]
    expected = list(load(folder, data_files=files))
    with fb.hf.enable():
        ds = load(folder, data_files=files)
    assert is_ours(ds)
    assert list(ds) == expected


def test_it_lasts_until_it_is_undone_however_often_it_was_called(folder: Path) -> None:
    from datasets.packaged_modules.parquet.parquet import Parquet

    before = dict(vars(Parquet))
    fb.hf.enable()
    fb.hf.enable()
    assert fb.hf.is_enabled()
    assert is_ours(load(folder))
    fb.hf.disable()
    assert not fb.hf.is_enabled()
    assert not is_ours(load(folder))
    fb.hf.disable()
    assert dict(vars(Parquet)) == before


def test_it_ends_with_its_block_whatever_happens_there(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), fb.hf.enable():
        raise ZeroDivisionError
    assert not fb.hf.is_enabled()
    assert not is_ours(load(folder))


def test_a_block_within_another_or_after_a_call_leaves_it_enabled(folder: Path) -> None:
    with fb.hf.enable():
        with fb.hf.enable():
            assert is_ours(load(folder))
        assert is_ours(load(folder))
    assert not fb.hf.is_enabled()
    fb.hf.enable()
    with fb.hf.enable():
        pass
    assert fb.hf.is_enabled()
    with fb.hf.enable():
        fb.hf.disable()
        assert not fb.hf.is_enabled()


def test_shuffles_skips_lengths_and_workers_are_those_of_to_hf(folder: Path) -> None:
    fb.hf.enable()
    ds = load(folder)
    ours = fb.from_hf(ds)
    assert len(ds) == 120
    assert [row["id"] for row in ds.shuffle(seed=4)] == [row["id"] for row in ours.shuffle(4)]
    assert [row["id"] for row in ds.skip(100)] == list(range(100, 120))
    loaded = DataLoader(ds.select_columns("id"), batch_size=8, num_workers=2)
    assert sorted(i for batch in loaded for i in batch["id"].tolist()) == list(range(120))


def test_what_forebay_cannot_read_is_read_by_datasets_with_a_warning(folder: Path) -> None:
    fb.hf.enable()
    with pytest.warns(fb.PerformanceWarning, match="reads these files without Forebay: on_bad_files"):
        ds = load(folder, on_bad_files="skip")
    assert not is_ours(ds)
    assert [row["id"] for row in ds] == list(range(120))


def test_options_that_forebay_has_not_are_left_to_datasets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examples(self: Any, splits: Any) -> Any:
        splits.gen_kwargs["files"] = ["https://example.org/a.parquet"]
        return ours(self, splits)

    with fb.hf.enable(), monkeypatch.context() as patched:
        ours = Parquet._get_examples_iterable_for_split
        patched.setattr(Parquet, "_get_examples_iterable_for_split", examples)
        with pytest.warns(fb.PerformanceWarning, match="without Forebay: storage_options: .* headers"):
            ds = load(folder, storage_options={"https": {"headers": {"Authorization": "x"}}})
        assert not is_ours(ds)


@pytest.mark.parametrize("columns", [["id", "nothing"], "id"], ids=str)
def test_columns_that_are_none_are_left_to_datasets_which_refuses_them(folder: Path, columns: Any) -> None:
    with fb.hf.enable(), pytest.warns(fb.PerformanceWarning, match="without Forebay: columns"):
        ds = load(folder, columns=columns)
    assert not is_ours(ds)
    with pytest.raises(ValueError, match="nothing|Expected a list"):
        list(ds)


def test_columns_of_some_files_are_left_to_datasets_which_refuses_them(tmp_path: Path) -> None:
    for name, columns in (("a", {"id": [0]}), ("b", {"id": [1], "more": ["x"]})):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    with fb.hf.enable(), pytest.warns(fb.PerformanceWarning, match="column `more` of some files is not among them"):
        ds = load(tmp_path)
    with pytest.raises(datasets.table.CastError):
        list(ds)


def test_no_columns_are_left_to_datasets_which_has_no_rows_then(folder: Path) -> None:
    with fb.hf.enable(), pytest.warns(fb.PerformanceWarning, match="without Forebay: columns: the list is empty"):
        ds = load(folder, columns=[])
    assert list(ds) == []
    assert [*fb.load_dataset(folder, split="train", columns=[]).take(2)] == [{}, {}]
    with pytest.raises(fb.SettingError, match="columns: the list is empty"):
        fb.from_hf(ds)


def test_filters_keep_their_rows_and_are_left_to_datasets_where_that_is_not_sure(tmp_path: Path) -> None:
    lang = ["de", None, "en", None, "fr", "de"]
    table = pa.table({"id": range(6), "lang": lang, "s": [1.0, math.nan, 5.0, None, math.nan, 7.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    rows = {
        "NULL": ([("lang", "not in", ["de"])], [1, 2, 3, 4]),
        "NaN": ([("s", ">", 4.0)], [2, 5]),
        "expression": (pc.field("s") > 4.0, [2, 5]),
        "not": (~(pc.field("s") > 4.0), [0, 1, 4]),
        "not in": ([("s", "not in", [5.0])], [0, 1, 3, 4, 5]),
    }
    fb.hf.enable()
    for name, (filters, expected) in rows.items():
        if name.startswith("not"):
            with pytest.warns(
                fb.PerformanceWarning, match=r"(?s)without Forebay: filters: .*depends on the row groups"
            ):
                ds = load(tmp_path, filters=filters)
        else:
            ds = load(tmp_path, filters=filters)
            assert is_ours(ds)
        assert [row["id"] for row in ds] == expected, name


def test_other_formats_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id\n1\n2\n")
    fb.hf.enable()
    ds = datasets.load_dataset("csv", data_files=str(tmp_path / "rows.csv"), split="train", streaming=True)
    assert list(ds) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("version", ["4.8.5", "5.3.0", "6.0", "unknown"])
def test_versions_whose_seams_are_not_known_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(datasets, "__version__", version)
    for call in (fb.hf.enable, lambda: versions.import_datasets("`to_hf`")):
        with pytest.raises(fb.VersionError, match=f"needs the package `datasets` .>=5.0,<5.3., got {version}"):
            call()
    assert not fb.hf.is_enabled()


@pytest.mark.parametrize("version", ["5.0.0", "5.1.3", "5.2.0", "5.2.1.dev0"])
def test_versions_whose_seams_are_known_are_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(datasets, "__version__", version)
    assert versions.import_datasets("a test") is datasets


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        fb.VersionError, match=r"`to_hf` needs the package `datasets`.*pip install 'datasets>=5.0,<5.3'"
    ):
        versions.import_datasets("`to_hf`")


def test_a_pickle_holds_the_token_that_was_passed_where_it_holds_other_secrets(
    served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.point(monkeypatch, tmp_path)
    served.create("org/private", {"train.parquet": ids_file(0, 3)}, private=True)
    with fb.hf.enable():
        ours = datasets.load_dataset("org/private", split="train", streaming=True, token=TOKEN)
    assert is_ours(ours)
    steps = (ours, ours.take(2), ours.map(lambda row: row).shuffle(1), ours.with_format("numpy"))
    assert [TOKEN.encode() in dill.dumps(made) for made in steps] == [False] * len(steps)
    with fb.unpickle_with({"hf_token": TOKEN}):
        assert list(pickle.loads(pickle.dumps(ours))) == list(ours)
    with fb.pickle_with_secrets():
        payload = pickle.dumps(ours)
    for again in (pickle.loads(payload), copy.deepcopy(ours)):
        assert again._token_per_repo_id == {"org/private": TOKEN}
        assert list(again) == list(ours)


@pytest.mark.parametrize(
    "read",
    [
        lambda ds: ds.decode()[0]["image"],
        lambda ds: next(iter(ds.decode()))["image"],
        lambda ds: next(iter(ds.decode().batches(1)))["image"][0],
        lambda ds: next(iter(pickle.loads(pickle.dumps(ds.decode().batches(1)))))["image"][0],
        lambda ds: next(iter(ds.to_torch(1, compat="datasets")))["image"][0],
        lambda ds: next(iter(ds.to_hf()))["image"],
        lambda ds: next(iter(ds.to_hf().with_format("torch")))["image"],
        lambda ds: next(iter(ds.shuffle(1).to_hf().map(dict)))["image"],
    ],
)
def test_media_that_rows_name_in_a_private_repository_are_read_with_the_token_that_was_passed(
    served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[fb.Dataset], Any]
) -> None:
    served.point(monkeypatch, tmp_path)
    schema = datasets.Features({"image": datasets.Image()}).arrow_schema
    place = "hf://datasets/org/private@main/images/a.png"
    table = pa.Table.from_pylist([{"image": {"bytes": None, "path": place}}] * 2, schema=schema)
    files = {"train.parquet": to_bytes(table, 2), "images/a.png": encoded(PIL.Image.new("RGB", (4, 3)), "PNG")}
    served.create("org/private", files, private=True)
    ds = fb.load_dataset("org/private", split="train", token=TOKEN)
    for made in (ds.decode(), ds.to_hf(), ds.decode().batches(1)):
        assert TOKEN.encode() not in dill.dumps(made)
    with fb.pickle_with_secrets():
        image = read(ds)
    assert (image.size if isinstance(image, PIL.Image.Image) else image.shape[:0:-1]) == (4, 3)


def test_that_nobody_is_meant_is_pickled(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.point(monkeypatch, tmp_path)
    served.create("org/public", {"train.parquet": ids_file(0, 3)})
    with fb.hf.enable():
        ours = datasets.load_dataset("org/public", split="train", streaming=True, token=False)
    assert pickle.loads(pickle.dumps(ours))._token_per_repo_id == {"org/public": False}


def test_files_whose_types_do_not_go_together_are_left_to_datasets(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": ["3", "4"]}), tmp_path / "b.parquet")
    with fb.hf.enable(), pytest.warns(fb.PerformanceWarning, match="reads these files without Forebay: .*`id`"):
        ds = load(tmp_path)
    assert list(ds.take(2)) == list(load(tmp_path).take(2))
