"""What is handed over can be pushed to the Hub, and read back from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import TOKEN, Hub

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

# Of how huggingface_hub uploads.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with Hub() as hub:
        hub.point(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def ds(tmp_path) -> fb.Dataset:
    table = pa.table({"id": range(100), "label": [n % 2 for n in range(100)], "text": [f"row {n}" for n in range(100)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=20)
    opened = fb.load_dataset(tmp_path / "rows.parquet", split="train")
    return opened.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))


def num_files(hub: Hub, name: str) -> int:
    """Counts the Parquet files of a repository."""
    repo = hub.repos[name]
    return sum(path.endswith(".parquet") for path in repo.commits[repo.sha])


@pytest.mark.parametrize("num_shards", [1, 2])
def test_what_is_handed_over_is_pushed_and_read_back(hub, ds, num_shards):
    wanted = ds.filter("label = 'dog' AND id < 50").shuffle(3)
    wanted.to_hf().push_to_hub("org/pushed", split="train", token=TOKEN, num_shards=num_shards)
    assert num_files(hub, "org/pushed") == num_shards
    back = fb.load_dataset("org/pushed", split="train")
    assert back.features == ds.features
    rows, expected = list(back), list(wanted)
    if num_shards > 1:
        # Each file holds the share of one process.
        rows, expected = (sorted(some, key=lambda row: row["id"]) for some in (rows, expected))
    assert rows == expected


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_there_are_no_more_files_than_rows(hub, ds, num_rows):
    wanted = ds.filter(f"id < {num_rows}")
    wanted.to_hf().push_to_hub("org/few", token=TOKEN)
    assert num_files(hub, "org/few") == max(num_rows, 1)
    back = fb.load_dataset("org/few", split="train")
    assert (back.features, list(back)) == (ds.features, list(wanted))


@pytest.mark.parametrize("num_rows", [0, 3])
@pytest.mark.parametrize("settings", [{"num_shards": 5}, {"num_shards": 200}, {"max_shard_size": "1MB"}], ids=str)
def test_files_without_rows_are_written_where_so_many_are_asked_for(hub, ds, num_rows, settings):
    wanted = ds.filter(f"id < {num_rows}")
    wanted.to_hf().push_to_hub("org/empty", token=TOKEN, **settings)
    assert num_files(hub, "org/empty") == settings.get("num_shards", 1)
    back = fb.load_dataset("org/empty", split="train")
    assert (back.features, list(back)) == (ds.features, list(wanted))


@pytest.mark.parametrize("num_rows", [0, 3])
@pytest.mark.parametrize(
    ("step", "columns"),
    [
        (lambda rows: rows.filter(lambda row: row["id"] == 1), {"id", "label", "text"}),
        (lambda rows: rows.map(lambda row: {"twice": row["id"] * 2}), {"id", "label", "text", "twice"}),
        (lambda rows: rows.map(lambda row: row, remove_columns="text"), {"id", "label"}),
        (lambda rows: rows.map(lambda row: row).filter(lambda _: False), {"id", "label", "text"}),
        (lambda rows: rows.map(lambda row: row).shuffle(1), {"id", "label", "text"}),
    ],
    ids=["filtered", "mapped", "removed", "mapped and filtered", "shuffled"],
)
def test_what_functions_leave_is_pushed_however_little_it_is(hub, ds, num_rows, step, columns):
    rows = step(ds.filter(f"id < {num_rows}").to_hf())
    rows.push_to_hub("org/left", token=TOKEN)
    assert num_files(hub, "org/left") == max(num_rows, 1)
    back = fb.load_dataset("org/left", split="train")
    key = lambda row: row["id"]  # noqa: E731 - each file holds the share of one process
    assert sorted(back, key=key) == sorted(rows, key=key)
    assert set(back.column_names) == (columns if num_rows else columns - {"twice"})


def test_all_splits_are_pushed(hub, ds):
    splits = fb.DatasetDict({"train": ds.filter("id < 2"), "test": ds.filter("id < 0")})
    splits.to_hf().push_to_hub("org/splits", token=TOKEN)
    assert num_files(hub, "org/splits") == 3
    back = fb.load_dataset("org/splits")
    assert {n: list(rows) for n, rows in back.items()} == {n: list(rows) for n, rows in splits.items()}


PAIRS = {"en": "cat", "fr": "chat"}

FEATURES: dict[str, tuple[Any, list[Any]]] = {
    "translation": (datasets.Translation(languages=["fr", "en"]), [PAIRS, None, PAIRS | {"en": None}]),
    "translations": (
        datasets.TranslationVariableLanguages(languages=["en", "fr"]),
        [{"en": "cat", "fr": ["chat", "minou"]}] * 3,
    ),
    "a list of translations": (datasets.List(datasets.Translation(languages=["en", "fr"])), [[PAIRS], [], None]),
    "array": (datasets.Array2D((None, 2), "int32"), [[[1, 2]], None, [[3, 4], [5, 6]]]),
    "image": (datasets.Image(), [np.full((2, 2, 3), value, np.uint8) for value in range(3)]),
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("settings", [{}, {"num_shards": 5}], ids=str)
def test_features_are_pushed_as_those_of_datasets(
    hub: Hub, tmp_path: Path, name: str, settings: dict[str, int]
) -> None:
    feature, values = FEATURES[name]
    features = datasets.Features({"id": datasets.Value("int64"), "it": feature})
    rows = datasets.Dataset.from_dict({"id": list(range(len(values))), "it": values}, features=features)
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    ours = fb.load_dataset(tmp_path / "rows.parquet", split="train")
    theirs = datasets.load_dataset("parquet", data_files=str(tmp_path / "rows.parquet"), split="train", streaming=True)
    found = []
    for who, pushed in (("ours", ours.to_hf()), ("theirs", theirs)):
        pushed.push_to_hub(f"org/{who}", token=TOKEN, **settings)
        assert num_files(hub, f"org/{who}") == settings.get("num_shards", 3 if who == "ours" else 1)
        back = fb.load_dataset(f"org/{who}", split="train")
        assert back.features == features
        found.append(sorted(back, key=lambda row: row["id"]))
    assert found[0] == found[1] == list(ours)
