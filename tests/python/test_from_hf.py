"""`from_hf`: what `datasets` would stream from Parquet becomes a dataset of ours, or the step that cannot is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.distributed import split_dataset_by_node
from hf_data import open_rows, rows_table, shown, write_rows

import forebay as fb
from forebay.hf.taken import _store_options, _uri

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("from-hf")
    write_rows(made)
    return made


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.parquet")))


def streamed(files: Any, **settings: Any) -> Any:
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, **settings)


ROWS: dict[str, Callable[[datasets.IterableDataset], datasets.IterableDataset]] = {
    "all": lambda ds: ds,
    "selected columns": lambda ds: ds.select_columns(["text", "id"]),
    "selected twice": lambda ds: ds.select_columns(["text", "id", "score"]).select_columns(["score", "id"]),
    "removed columns": lambda ds: ds.remove_columns(["text", "at"]).remove_columns("id"),
    "removed of selected": lambda ds: ds.select_columns(["text", "id", "at"]).remove_columns("id"),
    "selected of others": lambda ds: ds.remove_columns("at").select_columns(["text", "id"]),
    "a shard": lambda ds: ds.shard(3, 1),
}


@pytest.mark.parametrize("rows", ROWS)
def test_the_rows_are_those_that_datasets_streams(paths: list[str], rows: str) -> None:
    theirs = ROWS[rows](streamed(paths))
    ours = fb.from_hf(theirs)
    assert isinstance(ours, fb.Dataset)
    assert shown(list(ours)) == shown(list(theirs))


@pytest.mark.parametrize(
    "load",
    {
        "a folder": lambda folder, _: datasets.load_dataset(str(folder), split="train", streaming=True),
        "a glob": lambda folder, _: streamed(str(folder / "*.parquet")),
        "files in another order": lambda _, paths: streamed(paths[::-1]),
        "from_parquet": lambda _, paths: datasets.IterableDataset.from_parquet(paths),
        "columns": lambda _, paths: streamed(paths, columns=["score", "id"]),
        "a batch size": lambda _, paths: streamed(paths, batch_size=5),
    }.items(),
    ids=lambda load: load[0],
)
def test_the_files_are_those_that_were_loaded(folder: Path, paths: list[str], load: Any) -> None:
    theirs = load[1](folder, paths)
    assert shown(list(fb.from_hf(theirs))) == shown(list(theirs))


def test_names_that_say_no_split_or_another_are_read_all_the_same(tmp_path: Path) -> None:
    for name in ("test-1.parquet", "test-2.parquet"):
        pq.write_table(rows_table(10), tmp_path / name)
    theirs = streamed(str(tmp_path / "*.parquet"))
    assert fb.from_hf(theirs).num_rows == 20
    pq.write_table(rows_table(10), tmp_path / "train-1.parquet")
    with pytest.raises(fb.SettingError, match="names of files of one split say test, train|train, test"):
        fb.from_hf(streamed(str(tmp_path / "*.parquet")))


def test_a_dict_of_splits_becomes_one(paths: list[str]) -> None:
    files = {"train": paths[:2], "validation": paths[2:]}
    taken = fb.from_hf(datasets.load_dataset("parquet", data_files=files, streaming=True))
    assert isinstance(taken, fb.DatasetDict)
    assert {name: ds.num_rows for name, ds in taken.items()} == {"train": 80, "validation": 40}


def test_the_format_comes_along(paths: list[str]) -> None:
    theirs = streamed(paths).select_columns(["id", "score"]).with_format("numpy")
    assert type(fb.from_hf(theirs)[:]["id"]).__module__ == "numpy"


def test_what_to_hf_made_comes_back(paths: list[str]) -> None:
    ours = open_rows(paths).filter("id > 7").shuffle(3)
    taken = fb.from_hf(ours.to_hf().select_columns("id"))
    assert [row["id"] for row in taken] == [row["id"] for row in ours]


STEPS: dict[str, Callable[[datasets.IterableDataset], Any]] = {
    "map": lambda ds: ds.map(lambda row: row),
    "filter": lambda ds: ds.filter(lambda row: bool(row)),
    "shuffle": lambda ds: ds.shuffle(1),
    "batch": lambda ds: ds.batch(3),
    "rename_columns": lambda ds: ds.rename_column("id", "number").remove_columns("text"),
    "add_column": lambda ds: ds.add_column("extra", list(range(1000))),
    "take": lambda ds: ds.take(3),
    "skip": lambda ds: ds.skip(3),
    "repeat": lambda ds: ds.repeat(2),
    "reshard": lambda ds: ds.reshard(),
    "interleave_datasets": lambda ds: datasets.interleave_datasets([ds, ds]),
    "concatenate_datasets": lambda ds: datasets.concatenate_datasets([ds, ds]),
    "split_dataset_by_node": lambda ds: split_dataset_by_node(ds, 0, 2),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_cannot_be_taken_over_is_named(paths: list[str], step: str) -> None:
    with pytest.raises(fb.SettingError, match=f"dataset: `{step}` was called on it.*pass the dataset before that step"):
        fb.from_hf(STEPS[step](streamed(paths)))


def test_steps_on_what_to_hf_made_are_named(paths: list[str]) -> None:
    ours = open_rows(paths).to_hf()
    for step in ("take", "skip"):
        with pytest.raises(fb.SettingError, match="dataset: `(take|skip)` was called"):
            fb.from_hf(STEPS[step](ours))
    with pytest.raises(fb.SettingError, match="dataset: `shard` was called"):
        fb.from_hf(ours.shard(2, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: datasets.Dataset.from_dict({"a": [1]}), "expected a `datasets.IterableDataset`, got Dataset"),
        (lambda _: 3, "got int"),
        (lambda _: datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset(), "expected one of Parquet files"),
        (lambda paths: streamed(paths, on_bad_files="skip"), "on_bad_files: expected 'error', got 'skip'"),
        (
            lambda paths: streamed(paths).cast_column("id", datasets.Value("string")),
            "column `id` is `int64` in the files, expected `string`",
        ),
    ],
)
def test_what_is_not_a_stream_of_parquet_is_refused(paths: list[str], make: Any, message: str) -> None:
    with pytest.raises(fb.SettingError, match=message):
        fb.from_hf(make(paths))


def test_features_that_are_not_those_of_the_files_are_refused(paths: list[str]) -> None:
    features = datasets.Features({"id": datasets.Value("string"), "text": datasets.Value("string")})
    with pytest.raises(fb.SettingError, match="column `id` is `int64` in the files, expected `string`.*cast"):
        fb.from_hf(streamed(paths, columns=["id", "text"], features=features))


def test_files_in_files_are_refused() -> None:
    with pytest.raises(fb.SettingError, match="lies in another file"):
        _uri("zip://rows.parquet::https://example.org/rows.zip")
    assert _uri("gcs://bucket/rows.parquet") == "gs://bucket/rows.parquet"
    assert _uri("s3://bucket/rows.parquet") == "s3://bucket/rows.parquet"


def test_options_of_fsspec_are_translated_or_refused() -> None:
    given = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": "http://localhost"}, "token": None}
    expected = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_endpoint": "http://localhost"}
    assert _store_options(given) == _store_options({"s3": given}) == expected
    with pytest.raises(fb.SettingError, match="does not know requester_pays of `fsspec`"):
        _store_options({"key": "a", "requester_pays": True})


def test_filters_that_are_none_are_refused_not_forgotten(paths: list[str]) -> None:
    with pytest.raises(fb.SettingError, match="filter"):
        fb.from_hf(streamed(paths, filters=[("id", "~", 10)]))


def test_filters_are_taken_over_where_they_can_be_translated(paths: list[str]) -> None:
    pytest.importorskip("forebay.filters")
    theirs = streamed(paths, filters=[("id", "<", 10), ("group", "!=", 1)])
    assert shown(list(fb.from_hf(theirs))) == shown(list(theirs))


def test_files_that_are_gone_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    theirs = streamed(str(tmp_path / "rows.parquet"))
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(fb.NotFoundError, match="rows.parquet"):
        fb.from_hf(theirs)
