"""Rows by number: against a full read, in every format, and what they cost."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import TYPE_CHECKING, Any

import data
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 900


def write(folder: Path, table: pa.Table, **options: Any) -> fb.Dataset:
    """Writes a table as 3 objects of several row groups, with small pages, and opens them."""
    folder.mkdir(parents=True, exist_ok=True)
    step = -(-len(table) // 3)
    for number in range(3):
        settings = {"row_group_size": 110, "data_page_size": 256, "write_batch_size": 16} | options
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", **settings)
    return fb.load_dataset(folder, split="train")


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Rows of many types."""
    return data.mixed_table(NUM_ROWS, seed=3)


@pytest.fixture(scope="module", params=[True, False], ids=["page index", "no page index"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> fb.Dataset:
    """All of them."""
    return write(tmp_path_factory.mktemp("mixed"), table, write_page_index=request.param)


def same(got: Any, expected: pa.Table) -> None:
    """Asserts that a batch holds the rows of a table, NaN and all."""
    assert pa.table(got).cast(expected.schema).to_pydict().__repr__() == expected.to_pydict().__repr__()


@pytest.mark.parametrize("seed", range(12))
def test_gathered_rows_are_those_of_a_full_read(ds: fb.Dataset, table: pa.Table, seed: int) -> None:
    rng = random.Random(seed)
    indices = [rng.randrange(-NUM_ROWS, NUM_ROWS) for _ in range(rng.choice([0, 1, 7, 60, 400]))]
    indices += rng.choices(indices, k=5) if indices else []
    same(ds.gather(indices), table.take(pa.array([index % NUM_ROWS for index in indices], pa.int64())))
    kept = ds.filter("id % 5 <> 2")
    rows = [row for row in range(NUM_ROWS) if row % 5 != 2]
    wanted = [rng.randrange(len(rows)) for _ in range(50)]
    same(kept.gather(wanted), table.take([rows[place] for place in wanted]))


SLICES = [
    slice(None),
    slice(5, 9),
    slice(-3, None),
    slice(None, None, -1),
    slice(20, 3, -4),
    slice(0, NUM_ROWS, 97),
    slice(7, 7),
    slice(NUM_ROWS, NUM_ROWS + 9),
]


@pytest.mark.parametrize("key", SLICES, ids=str)
def test_slices_are_those_of_a_list(ds: fb.Dataset, key: slice) -> None:
    assert ds.select_columns("id")[key] == {"id": list(range(NUM_ROWS))[key]}


@pytest.mark.parametrize(
    "key",
    [
        [3, -1, 3],
        (3, -1, 3),
        np.array([3, -1, 3]),
        np.array([3, 899, 3], dtype=np.uint16),
        torch.tensor([3, -1, 3]),
        pa.array([3, -1, 3]),
        pd.Series([3, -1, 3]),
        pl.Series([3, -1, 3]),
        [np.int64(3), -1, torch.tensor(3)],
    ],
    ids=lambda key: type(key).__name__,
)
def test_numbers_come_in_any_array(ds: fb.Dataset, key: Any) -> None:
    assert ds.select_columns("id")[key] == {"id": [3, 899, 3]}


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, pa.array, pd.Series, pl.Series])
def test_a_mask_has_a_boolean_for_each_row(ds: fb.Dataset, make: Any) -> None:
    mask = [row % 100 == 7 for row in range(NUM_ROWS)]
    assert ds.select_columns("id")[make(mask)] == {"id": list(range(7, NUM_ROWS, 100))}
    with pytest.raises(fb.SettingError, match="expected a Boolean for each of 900 rows, got 899"):
        ds[make(mask[1:])]


EMPTY = {
    "list": [],
    "NumPy": np.array([], dtype=int),
    "NumPy, Booleans": np.array([], dtype=bool),
    "PyTorch, Booleans": torch.tensor([], dtype=torch.bool),
    "Arrow, Booleans": pa.array([], pa.bool_()),
    "pandas, Booleans": pd.Series([], dtype="boolean"),
    "Polars, Booleans": pl.Series([], dtype=pl.Boolean),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_mask_is_one_of_no_rows_alone(ds: fb.Dataset, kind: str) -> None:
    few = ds.select_columns("id")
    assert few.filter("id < 0")[EMPTY[kind]] == {"id": []}
    if not kind.endswith("Booleans"):
        assert few[EMPTY[kind]] == {"id": []}
        return
    with pytest.raises(fb.SettingError, match="expected a Boolean for each of 900 rows, got 0"):
        few[EMPTY[kind]]


@pytest.mark.parametrize("key", [17, np.int32(17), torch.tensor(17), np.array(17), -883])
def test_one_number_is_one_row(ds: fb.Dataset, table: pa.Table, key: Any) -> None:
    assert repr(ds[key]) == repr(table.slice(17, 1).to_pylist()[0])


def test_rows_come_in_the_format_of_the_dataset(ds: fb.Dataset) -> None:
    few = ds.select_columns(["id", "lang"])
    row, rows = few.with_format("torch")[3], few.with_format("torch")[[3, 5]]
    assert row["id"].item() == 3
    assert torch.equal(rows["id"], torch.tensor([3, 5]))
    assert few.with_format("arrow")[[3, 5]].column("id").to_pylist() == [3, 5]
    assert few.with_format("arrow")[3].num_rows == 1
    assert few.with_format("pandas")[3:6]["id"].tolist() == [3, 4, 5]
    assert few.with_format("polars")[3:6]["id"].to_list() == [3, 4, 5]
    assert few.with_format("numpy")[-1]["id"] == 899


@pytest.mark.parametrize(
    ("key", "error", "names"),
    [
        (900, fb.RowIndexError, "no row 900: expected -900 to 899"),
        (-901, IndexError, "no row -901"),
        ([0, 900], fb.RowIndexError, "no row 900"),
        (1 << 80, fb.RowIndexError, "no row 1208925819614629174706176"),
        ("no column", fb.ColumnNotFoundError, "no column"),
        (True, fb.SettingError, "True"),
        (1.0, fb.SettingError, "1.0"),
        (None, fb.SettingError, "None"),
        ([1, "x"], fb.SettingError, "'x'"),
        ([1, True], fb.SettingError, "True"),
        ([1, None], fb.SettingError, "None"),
        (np.array([[1, 2]]), fb.SettingError, "\\[1, 2\\]"),
        (np.array([0.5]), fb.SettingError, "0.5"),
        (slice(0, 4, 0), fb.SettingError, "zero"),
        (slice("a", "b"), fb.SettingError, "slice"),
        ({"id": 3}, fb.SettingError, "id"),
    ],
    ids=repr,
)
def test_what_names_no_row_is_refused(ds: fb.Dataset, key: Any, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        ds[key]


def test_a_shuffled_dataset_has_no_row_numbers(ds: fb.Dataset) -> None:
    shuffled = ds.shuffle(seed=1)
    for asked in (shuffled, shuffled.select(shuffled.selection().sample(2, 1))):
        with pytest.raises(fb.SettingError, match="rows by number are those of the dataset before `shuffle`, of which"):
            asked[0]
    assert len(ds.select(ds.selection().sample(2, 1))[:]["id"]) == 2


def test_an_empty_dataset_has_no_rows(ds: fb.Dataset) -> None:
    none = ds.filter("id < 0")
    assert none.select_columns("id")[:] == {"id": []}
    with pytest.raises(fb.RowIndexError, match="has no rows"):
        none[0]


def test_a_loader_reads_each_of_its_batches_at_once(ds: fb.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    gather = fb.Dataset.gather
    monkeypatch.setattr(fb.Dataset, "gather", lambda self, rows: calls.append(len(rows)) or gather(self, rows))
    few = ds.select_columns("id").with_format("torch")
    loader = DataLoader(few, batch_size=64, shuffle=False)
    assert torch.cat([batch["id"] for batch in loader]).tolist() == list(range(NUM_ROWS))
    assert calls == [64] * 14 + [4]
    shuffled = DataLoader(few, batch_size=100, sampler=RandomSampler(few, generator=torch.Generator().manual_seed(1)))
    assert sorted(torch.cat([batch["id"] for batch in shuffled]).tolist()) == list(range(NUM_ROWS))
    calls.clear()
    batches = DataLoader(few, batch_sampler=BatchSampler(SequentialSampler(few), 90, drop_last=False))
    assert len(list(batches)) == 10 == len(calls)


def test_rows_by_number_are_read_without_their_neighbours(tmp_path: Path) -> None:
    rows = 20_000
    payload = np.random.default_rng(1).bytes(rows * 500)
    texts = [payload[row * 500 : row * 500 + 500] for row in range(rows)]
    table = pa.table({"id": range(rows), "payload": pa.array(texts, pa.binary())})
    options = {"use_dictionary": False, "compression": "none", "write_page_index": True}
    pq.write_table(table, tmp_path / "0.parquet", data_page_size=16 << 10, write_batch_size=16, **options)
    ds = fb.load_dataset(tmp_path, split="train")
    numbers = random.Random(2).sample(range(rows), 300)
    got = ds.gather(numbers)
    assert pa.record_batch(got).column("payload").to_pylist() == [texts[number] for number in numbers]
    assert pa.record_batch(got).column("id").to_pylist() == numbers


def test_little_memory_gives_the_same_rows(ds: fb.Dataset, table: pa.Table) -> None:
    indices = list(itertools.islice(itertools.cycle(range(NUM_ROWS - 1, -1, -3)), 700))
    same(ds.gather(indices, memory_limit=200_000), table.take(indices))


QUERIES = [
    "SELECT id, id * 2 AS twice FROM dataset WHERE id % 3 = 0",
    "SELECT id, lang FROM dataset ORDER BY id DESC LIMIT 120",
    "SELECT id, row_number() OVER (PARTITION BY lang ORDER BY id DESC) AS place, id + 1 AS next FROM dataset",
    "SELECT row_number() OVER (ORDER BY id DESC) AS place, id FROM dataset WHERE id % 2 = 0 ORDER BY id % 7, id DESC",
]


def test_columns_are_those_of_their_names_in_any_order(tmp_path: Path) -> None:
    columns = {name: [{"x": first + row} for row in range(40)] for first, name in ((0, "a"), (1000, "b"), (2000, "c"))}
    ds = write(tmp_path, pa.table(columns))
    for names in itertools.permutations(columns):
        some = ds.select_columns(names)
        assert some[[7, 30]] == {name: [columns[name][7], columns[name][30]] for name in names}
        assert some[-1] == {name: columns[name][-1] for name in names}


@pytest.mark.parametrize("sql", QUERIES)
def test_rows_of_a_query_come_by_number(ds: fb.Dataset, sql: str) -> None:
    query = ds.sql(sql)
    whole = pa.table(query)
    numbers = [random.Random(5).randrange(-len(whole), len(whole)) for _ in range(60)]
    expected = whole.take(pa.array([number % len(whole) for number in numbers], pa.int64()))
    assert pa.table(query.gather(numbers)).to_pydict() == expected.to_pydict()
    assert query[3] == whole.slice(3, 1).to_pylist()[0]


@pytest.mark.parametrize("sql", QUERIES)
def test_rows_of_a_query_are_selected(ds: fb.Dataset, sql: str) -> None:
    query = ds.sql(sql)
    whole = pa.table(query)
    numbers = random.Random(6).sample(range(len(whole)), 50)
    for chosen in (query.select(numbers), pickle.loads(pickle.dumps(query.select(numbers)))):
        assert pa.table(chosen).to_pydict() == whole.take(numbers).to_pydict()
        assert chosen[[4, 0]] == whole.take([numbers[4], numbers[0]]).to_pydict()
    some = ds.filter("id % 5 = 0").selection()
    rows = [place for place, number in enumerate(whole.column("id").to_pylist()) if number % 5 == 0]
    assert pa.table(query.select(some)).to_pydict() == whole.take(rows).to_pydict()
    assert query.select(some).selection() == query.selection() & some


def test_rows_of_a_query_keep_the_order_in_which_they_were_selected(ds: fb.Dataset) -> None:
    query = ds.sql("SELECT id FROM dataset ORDER BY id DESC")
    some = ds.filter("id <> 1").selection()
    for numbers in ([-1, -2, -3, -4], [0, 3, 5], [-1, 7, -3]):
        chosen = query.select([*numbers, 11]).select(range(len(numbers)))
        assert chosen[:] == {"id": [query[number]["id"] for number in numbers]}
        expected = [number for number in chosen[:]["id"] if number != 1]
        for again in (chosen, pickle.loads(pickle.dumps(chosen))):
            assert again.select(some)[:]["id"] == expected
            assert pa.table(again.select(some)).to_pydict() == {"id": expected}


def test_states_tell_queries_of_rows_in_another_order_apart(ds: fb.Dataset) -> None:
    first, other = ds.select([7, 3, 5]), ds.select([3, 5, 7])
    side = "SELECT id FROM dataset WHERE id IN (SELECT id FROM side LIMIT 1)"
    for make in (
        lambda rows: rows.sql("SELECT id FROM dataset LIMIT 1"),
        lambda rows: ds.sql(side, tables={"side": rows}),
    ):
        assert (make(first)[:], make(other)[:]) == ({"id": [7]}, {"id": [3]})
        state = make(first).batches(1).state_dict()
        make(first).batches(1).load_state_dict(state)
        with pytest.raises(fb.StateError, match="query"):
            make(other).batches(1).load_state_dict(state)


def test_a_query_has_no_shards_but_shards_have_queries(ds: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="take the shard before `sql`"):
        ds.sql("SELECT id FROM dataset ORDER BY id DESC LIMIT 5").shard(0, 2)
    first = ds.shard(0, 2).sql("SELECT id FROM dataset ORDER BY id DESC LIMIT 2")[:]["id"]
    assert first == [len(ds.shard(0, 2)) - 1, len(ds.shard(0, 2)) - 2]


def test_a_column_by_name_is_that_of_datasets(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    import datasets

    meta = [None if row % 7 == 3 else {"source": f"s{row % 3}", "at": {"line": row}} for row in range(90)]
    table = pa.table({"id": range(90), "name": [f"n{row}" for row in range(90)], "meta": meta})
    ds, theirs = write(tmp_path, table), datasets.Dataset(table)
    for form in (None, "numpy", "torch"):
        ours, others = ds.with_format(form), theirs.with_format(form)
        for key in (0, -1, slice(3, 9), slice(None, None, -20), [5, 2, 5]):
            assert repr(ours["id"][key]) == repr(others["id"][key])
            assert list(ours["name"][key]) == list(others["name"][key])
        assert list(ours["id"]) == list(others["id"])
        assert len(ours["id"]) == len(others["id"]) == 90
    assert ds["name"] == list(theirs["name"]) == ds["name"]
    assert ds["name"] != ds["id"]
    assert ds["name"] != tuple(ds["name"])
    assert 7 in ds["id"]
    assert 90 not in ds["id"]
    assert ds.filter("id % 2 = 0")["id"][:3] == [0, 2, 4]
    assert ds["meta"][4] == meta[4]
    assert ds["meta"]["source"][:] == [row and row["source"] for row in meta]
    assert ds["meta"]["at"]["line"][::30] == [0, 30, 60]


def test_libraries_take_a_column_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"id": range(900), "words": [["a"] * (row % 3) for row in range(900)]})
    ds = write(tmp_path, table)
    # Row by row, each would be a read of its own.
    monkeypatch.setattr(fb.Column, "__getitem__", None)
    assert np.asarray(ds["id"]).tolist() == np.array(ds["id"], "float32", copy=True).tolist() == list(range(900))
    assert np.asarray(ds["id"], "float32").dtype == np.float32
    assert pd.Series(ds["id"]).tolist() == list(range(900))
    assert pl.Series(ds["words"]).to_list() == pa.chunked_array(ds["words"]).to_pylist() == table["words"].to_pylist()
    assert pa.table({"id": ds["id"], "words": ds["words"]}) == table
    assert pa.array(ds["id"], pa.int16()).type == pa.int16()
    assert torch.tensor(list(ds["id"])).sum() == 900 * 899 // 2


def test_a_column_of_a_shuffled_dataset_is_in_its_order(tmp_path: Path) -> None:
    ds = write(tmp_path, pa.table({"id": range(900), "name": [f"n{row}" for row in range(900)]})).shuffle(seed=4)
    expected = [row["id"] for row in ds]
    assert list(ds["id"]) == np.asarray(ds["id"]).tolist() == expected != sorted(expected)
    assert list(ds["name"]) == [f"n{row}" for row in expected]
    with pytest.raises(fb.SettingError, match="^row: a shuffled dataset has another order in each epoch"):
        ds["id"][0]


def test_a_column_reads_no_other_and_nothing_before_it_is_asked(tmp_path: Path) -> None:
    wide = {"source": "x" * 3000}
    table = pa.table({"id": range(900), "meta": [wide | {"line": row} for row in range(900)]})
    ds = write(tmp_path, table, use_dictionary=False, compression="none")
    for column in (ds["id"], ds["meta"]["line"]):
        assert "Column('" in repr(column)
        stream = column._dataset.batches(900)
        assert sum(map(len, stream)) == 900
        assert stream.stats()["bytes_fetched"] < 100_000


def test_a_wrong_name_of_a_column_or_a_field_lists_those_there_are(tmp_path: Path) -> None:
    ds = write(tmp_path, pa.table({"id": range(90), "meta": [{"line": row} for row in range(90)]}))
    with pytest.raises(fb.ColumnNotFoundError, match="^no column `mate`; did you mean `meta`"):
        ds["mate"]
    with pytest.raises(fb.QueryError, match='`"meta"` has no field `li\'ne`; did you mean `line`'):
        ds["meta"]["li'ne"]
    with pytest.raises(fb.QueryError, match='`"id"` is Int64, and has no field `line`'):
        ds["id"]["line"]
    with pytest.raises(fb.RowIndexError, match="90"):
        ds["id"][90]
    with pytest.raises(TypeError, match="unhashable"):
        hash(ds["id"])
