"""The first rows and the others: `take` and `skip` of every kind of dataset are slices of its rows."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from data import write_fragments
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 300


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    table = pa.table({"id": range(NUM_ROWS), "key": [row * 7 % 30 for row in range(NUM_ROWS)]})
    folder = tmp_path_factory.mktemp("rows")
    write_fragments(folder, table, num_fragments=3, row_group_rows=[40, 1, 33])
    return fb.load_dataset(folder, split="train")


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


KINDS: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "whole": lambda ds: ds,
    "filtered": lambda ds: ds.filter("key < 11"),
    "nothing": lambda ds: ds.filter("key < 0"),
    "chosen": lambda ds: ds.select([5, 3, 250, 17]),
    "a shard": lambda ds: ds.shard(1, 3),
    "in another order": lambda ds: ds.sql("SELECT id FROM dataset WHERE key > 3 ORDER BY key DESC, id"),
    "some of a query": lambda ds: ds.sql("SELECT DISTINCT ON (key) * FROM dataset ORDER BY key, id LIMIT 20"),
}
numbers = st.integers(0, NUM_ROWS + 20)


@given(kind=st.sampled_from(sorted(KINDS)), steps=st.lists(st.tuples(st.booleans(), numbers), max_size=4), cut=numbers)
def test_they_are_slices(rows: fb.Dataset, kind: str, steps: list[tuple[bool, int]], cut: int) -> None:
    ds = KINDS[kind](rows)
    expected = ids(ds)
    for is_take, n in steps:
        ds = ds.take(n) if is_take else ds.skip(n)
        expected = expected[:n] if is_take else expected[n:]
    assert ids(ds) == expected
    assert len(ds) == len(expected)
    assert ds.selection().num_rows == len(expected)
    assert ids(pickle.loads(pickle.dumps(ds))) == expected
    # They resume, shuffled too.
    stream = ds.shuffle(2, num_lanes=3, window_rows=16).batches(7)
    whole = [pa.record_batch(batch)["id"].to_pylist() for batch in stream]
    assert sorted(row for batch in whole for row in batch) == sorted(expected)
    stream = ds.shuffle(2, num_lanes=3, window_rows=16).batches(7)
    begun = list(islice(stream, cut % (len(whole) + 1)))
    resumed = ds.shuffle(2, num_lanes=3, window_rows=16).batches(7)
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert [pa.record_batch(batch)["id"].to_pylist() for batch in resumed] == whole[len(begun) :]


KEPT: dict[str, Callable[[fb.Dataset], fb.Dataset]] = KINDS | {
    "runs": lambda ds: ds.filter("id BETWEEN 20 AND 200 OR id > 290"),
    "all": lambda ds: ds.filter("id >= 0"),
    "a selection": lambda ds: ds.select(ds.filter("key < 20").selection()),
}


@given(kind=st.sampled_from(sorted(KEPT)), n=numbers, is_take=st.booleans())
def test_they_are_what_their_row_numbers_select(rows: fb.Dataset, kind: str, n: int, is_take: bool) -> None:
    num_rows = len(KEPT[kind](rows))
    numbers = range(num_rows)[:n] if is_take else range(num_rows)[n:]
    ds = KEPT[kind](rows)
    ds = ds.take(n) if is_take else ds.skip(n)
    if len(numbers) < num_rows:
        selected = KEPT[kind](rows).select(numbers)
        assert (ids(ds), len(ds)) == (ids(selected), len(selected))
        assert ds.batches(7).state_dict() == selected.batches(7).state_dict()


def test_all_rows_are_the_dataset_itself(rows: fb.Dataset) -> None:
    kept = rows.filter("key < 11")
    for ds in (rows, kept):
        assert ds.take(NUM_ROWS) is ds.take(10**12) is ds.skip(0) is ds
    assert rows.take(NUM_ROWS - 1).batches(9).state_dict() != rows.batches(9).state_dict()


def test_formats_and_functions_stay(rows: fb.Dataset) -> None:
    table = rows.with_format("arrow").skip(2).take(3)[:]
    assert table["id"].to_pylist() == [2, 3, 4]
    mapped = rows.take(4).map(lambda batch: {"twice": [2 * row for row in batch["id"]]}, batched=True)
    assert [value for batch in mapped.batches(3) for value in batch["twice"]] == [0, 2, 4, 6]
    assert ids(rows.take(3).repeat(2)) == [0, 1, 2] * 2
    assert sorted(ids(rows.take(3).to_hf())) == [0, 1, 2]


@pytest.mark.parametrize("method", ["take", "skip"])
def test_what_has_no_first_rows_is_refused(rows: fb.Dataset, method: str) -> None:
    for make, words in (
        (lambda: rows.shuffle(1), f"{method}: a shuffled dataset has another order in each epoch"),
        (lambda: rows.repeat(2), f"{method}: a repeated dataset goes through its rows again; {method} before `repeat`"),
        (lambda: rows.repeat(), f"{method} before `repeat`"),
    ):
        with pytest.raises(fb.SettingError, match=words):
            getattr(make(), method)(3)
    for wrong in (-1, 1.5, "3", None, True):
        with pytest.raises(fb.SettingError, match="n: expected"):
            getattr(rows, method)(wrong)


def test_a_slice_of_a_split_does_not_say_whether_filters_come_before(rows: fb.Dataset, tmp_path: Path) -> None:
    write_fragments(tmp_path, pa.table(rows), num_fragments=1, row_group_rows=50)
    with pytest.raises(
        fb.SettingError, match=r"split: `filters` choose the rows of a split, before `train\[:100\]` cuts"
    ):
        fb.load_dataset(tmp_path, split="train[:100]", filters=[("key", "<", 11)])
    cut = fb.load_dataset(tmp_path, split="train[:100]").filter([("key", "<", 11)])
    chosen = fb.load_dataset(tmp_path, split="train", filters=[("key", "<", 11)]).take(100)
    assert (len(cut), len(chosen)) == (sum(row * 7 % 30 < 11 for row in range(100)), 100)
