"""`Dataset.to_hf`: a real `datasets.IterableDataset`, on which all steps yield what they yield on one of `datasets`."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sqlite3
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import datasets
import dill
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.distributed import split_dataset_by_node
from hf_data import NUM_ROWS, collect, open_rows, shown, write_rows
from huggingface_hub import HfFileSystem
from image_data import encoded
from rows import ids_of
from torch.utils.data import DataLoader

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    # torch warns of more workers than cores, Python of forks beside threads; ours stay in the process that made them.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    # Each worker has a last batch of its own, of which torch does not know.
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_rows(tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def rows(paths: list[str]) -> fb.Dataset:
    return open_rows(paths)


def streamed(paths: list[str], **settings: Any) -> datasets.IterableDataset:
    """What `datasets` makes of the files by itself."""
    return datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True, **settings)


CONFIGURATIONS: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "plain": lambda ds: ds,
    "filtered": lambda ds: ds.filter("id % 5 <> 2"),
    "shuffled": lambda ds: ds.filter("id < 110").shuffle(7, num_lanes=6, window_rows=4),
    "permuted": lambda ds: ds.shuffle(7),
    "queried": lambda ds: ds.sql(
        'SELECT id, id * 2 AS twice, upper(text) AS text, "group" FROM dataset ORDER BY score DESC'
    ),
}


@pytest.fixture(params=CONFIGURATIONS)
def configured(request: pytest.FixtureRequest, rows: fb.Dataset) -> fb.Dataset:
    return CONFIGURATIONS[request.param](rows)


def in_order(ds: fb.Dataset) -> datasets.IterableDataset:
    """The rows of a dataset, in its order, as `datasets` streams them."""
    return datasets.Dataset(pa.table(ds)).to_iterable_dataset()


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {"id2": row["id"] * 2}


def with_double(features: datasets.Features) -> datasets.Features:
    return datasets.Features({**features, "id2": datasets.Value("int64")})


def double_batch(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"id": [i for i in batch["id"] for _ in (0, 1)]}


async def double_later(row: dict[str, Any]) -> dict[str, Any]:
    return double(row)


def numbered(row: dict[str, Any], index: int) -> dict[str, Any]:
    return {"number": index, "id": row["id"]}


def without_times(ds: datasets.IterableDataset) -> datasets.IterableDataset:
    """What can become tensors of torch."""
    return ds.select_columns([name for name in ds.column_names if name != "at"])


def is_even(row: dict[str, Any]) -> bool:
    return row["id"] % 2 == 0


def interleave(ds: datasets.IterableDataset, strategy: str, probabilities: list[float] | None) -> Any:
    other = datasets.Dataset.from_dict({"id": list(range(1000, 1040))}).to_iterable_dataset()
    return datasets.interleave_datasets(
        [ds.select_columns("id"), other], probabilities=probabilities, seed=3, stopping_strategy=strategy
    )


def beside(ds: datasets.IterableDataset) -> Any:
    other = datasets.Dataset.from_dict({"extra": list(range(30))}).to_iterable_dataset()
    return datasets.concatenate_datasets([ds.take(30), other], axis=1)


STRATEGIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")

STEPS: dict[str, Callable[[datasets.IterableDataset], Any]] = {
    "nothing": lambda ds: ds,
    "map": lambda ds: ds.map(double),
    "map in batches": lambda ds: ds.map(double_batch, batched=True, batch_size=7, remove_columns=ds.column_names),
    "map with indices": lambda ds: ds.map(numbered, with_indices=True),
    "map with features": lambda ds: ds.map(double, features=with_double(ds.features)),
    "map tables": lambda ds: ds.with_format("arrow").map(lambda table: table.slice(0, 1), batched=True, batch_size=9),
    "filter": lambda ds: ds.filter(is_even),
    "filter in batches": lambda ds: ds.filter(lambda b: [i % 3 == 0 for i in b["id"]], batched=True, batch_size=8),
    "filter a column": lambda ds: ds.filter(lambda i: i > 40, input_columns="id"),
    "skip": lambda ds: ds.skip(31),
    "skip all": lambda ds: ds.skip(1000),
    "take": lambda ds: ds.take(31),
    "take none": lambda ds: ds.take(0),
    "skip and take": lambda ds: ds.skip(20).take(50).skip(3).take(40),
    "take and skip": lambda ds: ds.take(20).skip(17).take(40),
    "skip what was mapped": lambda ds: ds.map(double).skip(10).take(30),
    "batch": lambda ds: ds.batch(8),
    "batch and drop": lambda ds: ds.batch(7, drop_last_batch=True),
    "batch by column": lambda ds: ds.batch(by_column="group"),
    "repeat": lambda ds: ds.repeat(2),
    "select columns": lambda ds: ds.select_columns(["text", "id"]),
    "select a column": lambda ds: ds.select_columns("id"),
    "remove columns": lambda ds: ds.remove_columns("text"),
    "rename a column": lambda ds: ds.rename_column("id", "number"),
    "rename columns": lambda ds: ds.rename_columns({"id": "number", "text": "words2"}),
    "cast a column": lambda ds: ds.cast_column("id", datasets.Value("string")),
    "cast": lambda ds: ds.select_columns("id").cast(datasets.Features({"id": datasets.Value("float64")})),
    "add a column": lambda ds: ds.add_column("extra", list(range(1000))),
    "one column": lambda ds: ds["id"],
    "reshard": lambda ds: ds.reshard(),
    "epoch 0": lambda ds: (ds.set_epoch(0), ds)[1],
    "concatenate": lambda ds: datasets.concatenate_datasets([ds, ds.take(5)]),
    "concatenate columns": beside,
    **{
        f"interleave, {strategy}, {probabilities}": lambda ds, s=strategy, p=probabilities: interleave(ds, s, p)
        for strategy in STRATEGIES
        for probabilities in (None, [0.3, 0.7])
    },
    **{
        f"rows of {name}": lambda ds, name=name: without_times(ds).with_format(name)
        for name in ("numpy", "torch", "arrow", "pandas", "polars")
    },
    **{
        f"batches of {name}": lambda ds, name=name: without_times(ds).with_format(name).iter(9)
        for name in (None, "numpy", "torch", "arrow", "pandas", "polars")
    },
    "batches, the last dropped": lambda ds: ds.iter(7, drop_last_batch=True),
    "batches of a format": lambda ds: without_times(ds).with_format("torch").batch(6),
    "to_dict": lambda ds: [ds.to_dict()],
    "to_list": lambda ds: ds.to_list(),
    "to_pandas": lambda ds: [ds.to_pandas()],
    "to_polars": lambda ds: [ds.to_polars()],
    "to_pandas in batches": lambda ds: ds.to_pandas(batch_size=11, batched=True),
}


@pytest.mark.parametrize("name", ["plain", "shuffled", "queried"])
@pytest.mark.parametrize("step", STEPS)
def test_every_step_yields_the_rows_that_it_yields_on_a_dataset_of_theirs(
    rows: fb.Dataset, name: str, step: str
) -> None:
    configured = CONFIGURATIONS[name](rows)
    ours, theirs = (STEPS[step](ds) for ds in (configured.to_hf(), in_order(configured)))
    assert shown(list(ours)) == shown(list(theirs))


def test_the_rows_are_those_of_the_streaming_dataset_of_the_files(rows: fb.Dataset, paths: list[str]) -> None:
    ours, theirs = rows.to_hf(), streamed(paths)
    assert isinstance(ours, datasets.IterableDataset)
    assert ours.features == theirs.features
    assert ours.column_names == theirs.column_names
    assert shown(list(ours)) == shown(list(theirs))


# What `datasets` opens, it does not close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_are_mapped_asynchronously(configured: fb.Dataset) -> None:
    ours, theirs = (list(ds.map(double_later)) for ds in (configured.to_hf(), in_order(configured)))
    assert shown(ours) == shown(theirs)
    gc.collect()


@pytest.mark.parametrize("write", ["to_parquet", "to_json", "to_csv"])
def test_rows_are_written_as_those_of_theirs(rows: fb.Dataset, tmp_path: Path, write: str) -> None:
    small = rows.select_columns(["id", "text", "score"])
    for name, ds in (("ours", small.to_hf()), ("theirs", in_order(small))):
        getattr(ds, write)(str(tmp_path / name))
    if write == "to_parquet":
        assert pq.read_table(tmp_path / "ours").equals(pq.read_table(tmp_path / "theirs"))
    else:
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def shuffled_halves(ds: datasets.IterableDataset, probabilities: list[float] | None) -> Any:
    """Any other strategy ends, or begins again, in each of the parts of which `datasets` fills its buffer."""
    halves = [ds.filter(is_even), ds.filter(lambda row: not is_even(row))]
    strategy = "all_exhausted_without_replacement"
    return datasets.interleave_datasets(halves, probabilities, seed=1, stopping_strategy=strategy).shuffle(
        3, buffer_size=4
    )


@pytest.mark.parametrize(
    "step",
    {
        "shuffle": lambda ds: ds.map(double).shuffle(3, buffer_size=20),
        "shuffle before": lambda ds: ds.shuffle(3, buffer_size=20).map(double),
        "shuffle from one shard": lambda ds: ds.map(double).shuffle(3, buffer_size=9, max_buffer_input_shards=1),
        "shuffle of what was skipped": lambda ds: ds.map(double).skip(0).shuffle(3),
        "shuffle of two": lambda ds: datasets.concatenate_datasets([ds.take(60), ds.skip(60)]).shuffle(3),
        "shuffle of two that are interleaved": lambda ds: shuffled_halves(ds, None),
        "shuffle of two that are interleaved at random": lambda ds: shuffled_halves(ds, [0.2, 0.8]),
        "shuffle of an epoch": lambda ds: (ds.map(double).shuffle(3), ds)[0],
    }.items(),
    ids=lambda step: step[0],
)
def test_shuffles_of_datasets_yield_every_row_once(configured: fb.Dataset, step: Any) -> None:
    name, call = step
    for epoch in (0, 2):
        shuffled = call(configured.to_hf())
        shuffled.set_epoch(epoch)
        assert sorted(row["id"] for row in shuffled) == sorted(ids_of(configured.batches(32))), name


@pytest.mark.parametrize("text", ["true", "id % 3 > 0"])
def test_a_shuffle_of_what_was_cut_is_that_of_forebay(rows: fb.Dataset, text: str) -> None:
    kept = rows.filter(text)
    for cut in (
        lambda ds: ds.skip(40),
        lambda ds: ds.take(50),
        lambda ds: ds.skip(20).take(30).skip(3),
        lambda ds: ds.take(0),
    ):
        expected, shuffled = ids_of(cut(kept).shuffle(5).batches(32)), cut(kept.to_hf()).shuffle(5)
        assert len(shuffled) == len(expected)
        seen, states = [], []
        for row in shuffled:
            seen.append(row["id"])
            states.append(shuffled.state_dict())
        assert seen == expected
        for position, state in enumerate(states, 1):
            again = cut(kept.to_hf()).shuffle(5)
            again.load_state_dict(state)
            assert [row["id"] for row in again] == expected[position:]
    # These are other rows in each epoch, and so are the first ones.
    buffered = rows.shuffle(1).to_hf().take(50).shuffle(5)
    assert sorted(row["id"] for row in buffered) == sorted(row["id"] for row in rows.shuffle(1).to_hf().take(50))


def test_a_shuffle_of_the_rows_alone_is_that_of_forebay(rows: fb.Dataset) -> None:
    expected = ids_of(rows.shuffle(5).batches(32))
    assert [row["id"] for row in rows.to_hf().shuffle(5)] == expected
    assert [row["id"] for row in rows.shuffle(1).to_hf().shuffle(seed=5)] == expected
    lanes = {"num_lanes": 6, "window_rows": 4}
    expected = ids_of(rows.shuffle(5, **lanes).batches(32))
    assert [row["id"] for row in rows.shuffle(1, **lanes).to_hf().shuffle(5)] == expected
    drawn = [rows.to_hf().shuffle(generator=np.random.default_rng(seed)).to_list() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(fb.SettingError, match="seed: expected an integer"):
        rows.to_hf().shuffle(seed="1")
    with pytest.raises(fb.SettingError, match="seed: expected 0 to"):
        rows.to_hf().shuffle(-1)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_has_the_order_that_forebay_gives_it(configured: fb.Dataset, epoch: int) -> None:
    stream = configured.batches(32)
    stream.set_epoch(epoch)
    expected = ids_of(stream)
    ours = configured.to_hf()
    ours.set_epoch(epoch)
    assert [row["id"] for row in ours] == expected
    mapped = configured.to_hf().map(double)
    mapped.set_epoch(epoch)
    assert [row["id"] for row in mapped] == expected


def test_what_was_skipped_is_skipped_in_every_epoch(rows: fb.Dataset) -> None:
    shuffled = rows.shuffle(3).to_hf()
    validation, training = shuffled.take(20), shuffled.skip(20)
    kept = {row["id"] for row in validation}
    for epoch in (0, 1, 2):
        training.set_epoch(epoch)
        assert kept.isdisjoint(row["id"] for row in training)


NUM_WORKERS = (0, 1, 2, 3, 5, 8, 16)


@pytest.mark.parametrize("num_workers", NUM_WORKERS)
@pytest.mark.parametrize("name", ["plain", "shuffled"])
def test_workers_divide_the_rows_whatever_their_number(rows: fb.Dataset, name: str, num_workers: int) -> None:
    configured = CONFIGURATIONS[name](rows).select_columns("id")
    loaded = DataLoader(configured.to_hf(), batch_size=8, num_workers=num_workers)
    assert sorted(i for batch in loaded for i in batch["id"].tolist()) == sorted(ids_of(configured.batches(32)))


@pytest.mark.parametrize("strategy", ["auto", "shards", "examples"])
@pytest.mark.parametrize("world_size", range(1, 9))
def test_nodes_divide_the_rows_whatever_their_number(configured: fb.Dataset, world_size: int, strategy: str) -> None:
    shares = [
        [row["id"] for row in split_dataset_by_node(configured.to_hf(), rank, world_size, strategy=strategy)]
        for rank in range(world_size)
    ]
    assert sorted(chain.from_iterable(shares)) == sorted(ids_of(configured.batches(32)))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("num_shards", [1, 2, 5, 100, 192, 300])
def test_shards_divide_the_rows_in_equal_parts(configured: fb.Dataset, num_shards: int, contiguous: bool) -> None:
    shards = [configured.to_hf().shard(num_shards, index, contiguous) for index in range(num_shards)]
    rows = [[row["id"] for row in shard] for shard in shards[:: max(1, num_shards // 20)]]
    assert [len(shard) for shard in shards[:: max(1, num_shards // 20)]] == [len(shard) for shard in rows]
    assert sum(len(shard) for shard in shards) == len(configured)
    if num_shards <= 20:
        assert sorted(chain.from_iterable(rows)) == sorted(ids_of(configured.batches(32)))


@pytest.mark.parametrize(("num_shards", "index"), [(2, 2), (2, -1)])
def test_a_shard_that_is_none_is_refused(rows: fb.Dataset, num_shards: int, index: int) -> None:
    with pytest.raises(fb.SettingError, match=f"index: expected 0 to {num_shards - 1}.*got {index}"):
        rows.to_hf().shard(num_shards, index)


def test_no_shards_are_refused(rows: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="num_shards: expected 1 to"):
        rows.to_hf().shard(0, 0)


@pytest.mark.parametrize("epoch", [-1, 1 << 63, 1.5, True])
def test_an_epoch_that_is_none_is_refused_when_it_is_set(rows: fb.Dataset, epoch: Any) -> None:
    for ds in (rows.to_hf(), rows.to_hf().map(lambda row: row)):
        with pytest.raises(fb.SettingError, match="epoch: expected"):
            ds.set_epoch(epoch)
        ds.set_epoch(np.int64(3))
        assert ds.epoch == 3


def test_nodes_get_the_rows_of_the_ranks_of_a_stream(rows: fb.Dataset) -> None:
    shuffled = rows.shuffle(4, num_lanes=6, window_rows=5)
    for rank in range(3):
        node = split_dataset_by_node(shuffled.to_hf(), rank, 3)
        assert [row["id"] for row in node] == ids_of(shuffled.batches(8, rank=rank, world_size=3))


def test_workers_divide_what_nodes_and_shards_have_divided_before(configured: fb.Dataset) -> None:
    found = []
    for shard in range(2):
        for rank in range(3):
            node = split_dataset_by_node(configured.to_hf().shard(2, shard), rank, 3)
            rows = node._ex_iterable.shard_data_sources(3, rank, contiguous=False)
            found += [row["id"] for w in range(4) for _, row in rows.shard_data_sources(4, w, contiguous=False)]
    assert sorted(found) == sorted(ids_of(configured.batches(32)))


def test_the_length_is_known_until_a_step_changes_it(rows: fb.Dataset) -> None:
    ours = rows.filter("id < 77").to_hf()
    assert len(ours) == ours.num_rows == 77
    assert len(ours.skip(7).take(60)) == 60
    assert len(ours.with_format("torch").rename_column("id", "number").remove_columns("text")) == 77
    assert [len(ours.shuffle(1).shard(2, index)) for index in (0, 1)] == [39, 38]
    assert len(DataLoader(ours, batch_size=10)) == 8
    assert len(ours.map(double)) == len(list(ours.map(double))) == len(ours.decode(False)) == 77
    assert len(ours.decode(num_threads=2)) == 77
    shares = [ours.map(double).shard(2, index) for index in (0, 1)]
    assert [len(share) for share in shares] == [len(list(share)) for share in shares] == [38, 39]
    mapped = ours.map(double)
    buffered = mapped.shuffle(1).map(double)
    assert len(buffered) == len(list(buffered)) == len(buffered.with_format("torch")) == 77
    # `datasets` divides the number of rows that are left out, too, and not as the rows are divided.
    cut = (mapped.skip(5), mapped.take(60), buffered.shard(4, 0))
    batched = (ours.map(lambda rows: rows, batched=True), ours.map(lambda rows: rows, False, None, True))
    for changed in (
        *cut,
        *batched,
        ours.filter(is_even),
        ours.map(double).filter(is_even),
        ours.repeat(2),
        ours.batch(4),
    ):
        with pytest.raises(TypeError, match="'IterableDataset' has no len"):
            len(changed)


def test_nothing_is_evaluated_before_the_first_row(rows: fb.Dataset) -> None:
    filtered = rows.filter("score > 3").shuffle(1)
    ours = filtered.to_hf(split="train").with_format("numpy").skip(3).map(double)
    assert filtered._native.num_rows_known is None
    assert ours.state_dict()["epoch"] == 0
    next(iter(ours))
    assert filtered._native.num_rows_known is not None


def test_the_info_tells_the_split_and_its_rows_where_they_are_known(rows: fb.Dataset) -> None:
    info = rows.to_hf(split="validation")
    assert (str(info.split), info.info.splits["validation"].num_examples) == ("validation", NUM_ROWS)
    assert rows.filter("score > 4").to_hf(split="train").info.splits is None


def test_the_split_is_that_which_was_opened_where_it_is_one(rows: fb.Dataset, paths: list[str], tmp_path: Path) -> None:
    ours, theirs = rows.to_hf(), streamed(paths)
    assert (ours.split, ours.map(double).split) == (theirs.split, theirs.map(double).split)
    assert isinstance(ours.split, datasets.NamedSplit)
    assert ours.info.splits["train"].num_examples == NUM_ROWS
    taken = rows.filter("score > 4").select_columns(["id"]).shuffle(1).to_hf()
    assert (str(taken.split), taken.info.splits) == ("train", None)
    assert fb.from_hf(theirs).to_hf().split == theirs.split
    for name in ("train", "test"):
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / f"{name}.parquet")
    both = fb.load_dataset(tmp_path, split="train+test").to_hf()
    assert (both.split, both.info.splits, len(both)) == (None, None, 4)


def test_splits_become_a_dict_of_splits(paths: list[str]) -> None:
    splits = fb.DatasetDict({"train": open_rows(paths[:2]), "test": open_rows(paths[2:]).shuffle(1)})
    ours = splits.to_hf(num_shards=6)
    assert isinstance(ours, datasets.IterableDatasetDict)
    assert {name: (str(ds.split), len(ds), ds.num_shards) for name, ds in ours.items()} == {
        "train": ("train", 80, 6),
        "test": ("test", 40, 6),
    }
    doubled = ours.map(double)
    assert [row["id2"] for row in doubled["train"]] == list(range(0, 160, 2))


def test_the_format_of_the_dataset_comes_along(rows: fb.Dataset) -> None:
    for name in ("numpy", "torch", "arrow", "pandas", "polars"):
        numbers = rows.remove_columns("at")
        ours, theirs = numbers.with_format(name).to_hf(), in_order(numbers).with_format(name)
        assert shown(next(iter(ours))) == shown(next(iter(theirs)))
    with pytest.raises(fb.SettingError, match="forms"):
        rows.with_format("torch", forms={"text": "ragged"}).to_hf()


@pytest.mark.parametrize("settings", [{"split": 3}, {"split": "a b"}, {"num_shards": 0}, {"memory_limit": 5}], ids=str)
def test_settings_that_cannot_work_are_refused(rows: fb.Dataset, settings: dict[str, Any]) -> None:
    with pytest.raises(fb.SettingError, match=next(iter(settings))):
        rows.to_hf(**settings)


def test_as_many_shards_can_be_had_as_are_asked_for(rows: fb.Dataset) -> None:
    assert rows.to_hf().num_shards == rows.to_hf().n_shards == 192
    assert rows.shuffle(1, num_lanes=5).to_hf().num_shards == 195
    assert rows.to_hf(num_shards=4).num_shards == 4
    assert [rows.to_hf(num_shards=4).shard(3, index).num_shards for index in range(3)] == [2, 1, 1]


def test_an_empty_dataset_yields_nothing(rows: fb.Dataset) -> None:
    empty = rows.filter("id < 0").to_hf()
    assert (len(empty), list(empty), list(empty.iter(3)), list(empty.shard(2, 1))) == (0, [], [], [])
    assert list(DataLoader(empty, batch_size=2, num_workers=2)) == []


def inserted(ds: datasets.IterableDataset) -> Any:
    """Writes rows to a database; returns their number."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return ds.to_sql("rows", connection)


EXPORTS: dict[str, Callable[[datasets.IterableDataset, Path], Any]] = {
    "to_dict": lambda ds, _: ds.to_dict(),
    "to_list": lambda ds, _: ds.to_list(),
    "to_pandas": lambda ds, _: shown(ds.to_pandas()),
    "to_polars": lambda ds, _: shown(ds.to_polars()),
    "to_parquet": lambda ds, path: (ds.to_parquet(str(path)), pq.read_table(path).to_pydict())[1],
    "to_csv": lambda ds, path: (ds.to_csv(str(path)), path.read_text())[1],
    "to_json": lambda ds, path: (ds.to_json(str(path)), path.read_text())[1],
    "to_sql": lambda ds, _: inserted(ds),
}


@pytest.mark.parametrize("num_rows", [0, 3])
@pytest.mark.parametrize("name", EXPORTS)
def test_exports_are_those_of_a_dataset_in_memory_however_few_rows_there_are(
    rows: fb.Dataset, tmp_path: Path, name: str, num_rows: int
) -> None:
    few = rows.filter(f"id < {num_rows}").select_columns(["id", "text", "score"])
    whole = datasets.Dataset(pa.table(few))
    expected = EXPORTS[name](whole, tmp_path / "theirs")
    for ours in (
        few.to_hf(),
        few.to_hf().filter(lambda _: True),
        few.to_hf().with_format("torch"),
        few.to_hf().map(lambda row: row),
    ):
        assert EXPORTS[name](ours, tmp_path / "ours") == expected


def test_exports_in_batches_have_no_batch_of_nothing(rows: fb.Dataset) -> None:
    empty = rows.filter("id < 0").to_hf()
    assert [list(empty.to_pandas(batch_size=5, batched=True)), list(empty.to_dict(5, True))] == [[], []]
    (frame,) = rows.to_hf().to_pandas(batched=True)
    assert len(frame) == NUM_ROWS


def test_columns_of_no_rows_are_those_that_a_function_is_given(rows: fb.Dataset) -> None:
    mapped = rows.filter("id < 0").select_columns(["id", "text"]).to_hf().map(double, remove_columns="text")
    assert mapped.to_dict() == {"id": []}
    theirs = datasets.Dataset.from_dict({"id": [1]}).to_iterable_dataset()
    assert list(datasets.concatenate_datasets([mapped, theirs])) == [{"id": 1}]


def test_rows_without_columns_are_rows(rows: fb.Dataset) -> None:
    bare = rows.filter("id < 7").select_columns([]).to_hf()
    assert (len(bare), list(bare)) == (7, [{}] * 7)


def test_a_type_that_datasets_does_not_know_is_named(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.int32())
    pq.write_table(pa.table({"id": [1], "pairs": pa.array([[("a", 1)]], kind)}), tmp_path / "map.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    with pytest.raises(fb.SchemaError, match="column `pairs` of type `map<string, int32>`.*remove_columns"):
        ds.to_hf()
    assert list(ds.remove_columns("pairs").to_hf()) == [{"id": 1}]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_it_goes_to_processes_however_they_are_started(rows: fb.Dataset, method: str) -> None:
    shuffled = rows.filter("id % 5 <> 2").shuffle(7, num_lanes=6, window_rows=4)
    ours = shuffled.to_hf().rename_column("text", "words2").skip(4)
    expected = [row["id"] for row in ours]
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=collect, args=(ours, results))
    process.start()
    assert results.get(timeout=60) == expected
    process.join()


def test_a_pickled_dataset_is_the_same(configured: fb.Dataset) -> None:
    ours = configured.to_hf().take(50)
    assert pickle.loads(pickle.dumps(ours)).to_list() == ours.to_list()


def written(folder: Path, features: datasets.Features, rows: dict[str, Any]) -> tuple[Any, Any]:
    """Writes rows of some features; returns them as we stream them, and as `datasets` does."""
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(folder / "rows.parquet"))
    ours, theirs = fb.load_dataset(folder, split="train").to_hf(), streamed([str(folder / "rows.parquet")])
    assert ours.features == theirs.features == features
    return ours, theirs


def test_classes_and_arrays_are_those_of_datasets(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "grid": datasets.Array2D((2, 2), "int32"),
        }
    )
    rows = {"label": [0, 1] * 3, "grid": [[[i, 1], [2, 3]] for i in range(6)]}
    ours, theirs = written(tmp_path, features, rows)
    assert shown(list(ours)) == shown(list(theirs))
    assert shown(list(ours.map(dict))) == shown(list(theirs.map(dict)))
    for name in ("torch", "numpy"):
        assert shown(list(ours.with_format(name))) == shown(list(theirs.with_format(name)))


@pytest.mark.parametrize("shape", [(None, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("values", [[[[1, 2]], None, [[3, 4]]], [None, None], [[[1, 2]], [[3, 4]]]], ids=str)
def test_an_array_that_is_missing_is_none(tmp_path: Path, shape: tuple[int | None, int], values: list[Any]) -> None:
    features = datasets.Features({"id": datasets.Value("int64"), "grid": datasets.Array2D(shape, "int32")})
    ours, _ = written(tmp_path, features, {"id": list(range(len(values))), "grid": values})
    assert [row["grid"] for row in ours] == values
    assert [value for batch in ours.iter(2) for value in batch["grid"]] == values
    assert [row["grid"] for row in DataLoader(ours, batch_size=None, num_workers=1)] == values


def test_what_has_to_be_decoded_is_decoded_by_datasets(tmp_path: Path) -> None:
    features = datasets.Features({"id": datasets.Value("int64"), "value": datasets.Json()})
    values = [{"a": [1, "x"]}, 3, None, "text", {"b": {}}]
    ours, theirs = written(tmp_path, features, {"id": list(range(5)), "value": values})
    assert [row["value"] for row in ours] == values
    assert shown(list(ours.map(dict))) == shown(list(theirs.map(dict)))
    text = [ds.cast_column("value", datasets.Json(decode=False)) for ds in (ours, theirs)]
    assert shown(list(text[0])) == shown(list(text[1])) != shown(list(ours))
    both = [datasets.concatenate_datasets([ds, theirs]) for ds in (ours, theirs)]
    assert shown(list(both[0])) == shown(list(both[1]))


def test_images_are_decoded_as_by_datasets(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image()})
    images = [np.full((3, 4, 3), value, np.uint8) for value in range(6)]
    ours, theirs = written(tmp_path, features, {"image": images})
    for name in (None, "torch", "numpy"):
        for here, there in zip(ours.with_format(name), theirs.with_format(name), strict=True):
            assert np.array_equal(np.asarray(here["image"]), np.asarray(there["image"]))


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[fb.Dataset, list[int]]:
    """100 rows with an image, of which that of row 60 is broken, and the widths of those that have been decoded."""
    features = datasets.Features(
        {"id": datasets.Value("int64"), "image": datasets.Image(), "of_row": datasets.Json()},
    )
    values = [encoded(PIL.Image.new("RGB", (row + 1, 1)), "PNG") if row != 60 else b"broken" for row in range(100)]
    images = [{"bytes": value, "path": None} for value in values]
    rows = {"id": list(range(100)), "image": images, "of_row": [{"is": row} for row in range(100)]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet")
    made, decode = [], datasets.Image.decode_example

    def noting(self: datasets.Image, *arguments: Any, **settings: Any) -> PIL.Image.Image:
        image = decode(self, *arguments, **settings)
        made.append(image.width)
        return image

    monkeypatch.setattr(datasets.Image, "decode_example", noting)
    return fb.load_dataset(tmp_path, split="train"), made


@pytest.mark.parametrize(
    ("read", "num_decoded"),
    [
        (lambda ds: iter(ds.to_hf()), 1),
        (lambda ds: iter(ds.to_hf().with_format("torch")), 1),
        (lambda ds: iter(ds.to_hf().skip(5).take(20).shuffle(1)), 1),
        (lambda ds: iter(ds.to_hf().select_columns("image")), 1),
        (lambda ds: ds.to_hf().iter(8), 8),
    ],
)
def test_media_are_decoded_when_their_rows_are_taken(
    pictures: tuple[fb.Dataset, list[int]], read: Callable[[fb.Dataset], Any], num_decoded: int
) -> None:
    ds, made = pictures
    next(read(ds))
    assert len(made) == num_decoded


def test_rows_before_a_broken_medium_are_delivered_and_those_after_it_can_be_skipped_to(
    pictures: tuple[fb.Dataset, list[int]],
) -> None:
    ours = pictures[0].to_hf()
    rows = iter(ours)
    found = list(islice(rows, 60))
    with pytest.raises(fb.DataError, match="in the row at position 60: cannot identify image file"):
        next(rows)
    assert [(row["id"], row["image"].width, row["of_row"]["is"]) for row in found] == [(i, i + 1, i) for i in range(60)]
    assert list(found[0]) == ours.column_names
    assert [row["id"] for row in ours.skip(61)] == list(range(61, 100))


def test_a_pickle_holds_no_token_of_the_process(rows: fb.Dataset) -> None:
    """`datasets` pickles its cache of the Hub, which is one for all that the process reads."""
    cache = HfFileSystem._cache
    cache["of another dataset"] = "hf_s3cr3t"
    try:
        for made in (rows.to_hf(), rows.to_hf().map(lambda row: {"id": row["id"]})):
            pickled = dill.dumps(made)
            assert b"hf_s3cr3t" not in pickled
            assert next(iter(dill.loads(pickled)))["id"] == next(iter(made))["id"]
    finally:
        del cache["of another dataset"]
