"""The first rows of a filter, which are found without a look at all others."""

from __future__ import annotations

import json
import pickle
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_FILES = 30
FILE_ROWS = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of one row group; numbers in no order, and `place`, of which statistics know something."""
    mixed = random.Random(3)
    for file in range(NUM_FILES):
        rows = range(file * FILE_ROWS, (file + 1) * FILE_ROWS)
        columns = {"row": list(rows), "place": [row // 50 for row in rows], "n": [mixed.randrange(100) for _ in rows]}
        pq.write_table(pa.table(columns), tmp_path / f"{file:02}.parquet")
    return tmp_path


def numbers(dataset: fb.Dataset) -> list[int]:
    """Returns the numbers of the rows."""
    return [row["row"] for row in dataset]


def test_rows_behind_are_not_read(folder: Path) -> None:
    kept = fb.load_dataset(folder, split="train").filter("n < 20")
    every = numbers(fb.load_dataset(folder, split="train").filter("n < 20"))
    expected = every[:30]
    for file in range(10, NUM_FILES):
        (folder / f"{file:02}.parquet").unlink()
    assert kept.head(3).num_rows == 3
    assert numbers(kept.take(30)) == expected
    assert numbers(kept.take(40).take(30)) == expected
    rows = iter(kept)
    assert [next(rows)["row"] for _ in range(30)] == expected
    assert next(kept.iter(batch_size=30))["row"] == expected
    assert numbers(kept.sql("SELECT row FROM dataset LIMIT 30")) == expected
    assert (
        numbers(kept.sql("SELECT n, row FROM dataset WHERE place >= 1 LIMIT 10 OFFSET 5"))
        == [row for row in every if row >= 50][5:15]
    )
    found = pa.table(kept.query("SELECT row, n + 1 AS more FROM dataset LIMIT 30"))
    assert found.column("row").to_pylist() == expected
    with pytest.raises(fb.NotFoundError, match=r"[12]\d\.parquet"):
        len(kept)
    with pytest.raises(fb.NotFoundError, match=r"[12]\d\.parquet"):
        kept.skip(5)
    with pytest.raises(fb.NotFoundError, match=r"[12]\d\.parquet"):
        list(rows)


@pytest.mark.parametrize(
    "conditions",
    [["n < 20"], ["n = 7"], ["place >= 25", "n < 50"], ["place < 3 OR n = 1"], ["place >= 40"], ["n < 0"]],
)
def test_they_are_those_of_all(folder: Path, conditions: list[str]) -> None:
    def filtered() -> fb.Dataset:
        dataset = fb.load_dataset(folder, split="train")
        for condition in conditions:
            dataset = dataset.filter(condition)
        return dataset

    known = filtered()
    every = numbers(known)
    assert len(known) == len(every)
    for n in {0, 1, 2, 10, 90, len(every) - 1, len(every), len(every) + 1} - {-1}:
        taken, expected = filtered().take(n), known.take(n)
        assert len(taken) == len(expected) == min(n, len(every))
        assert numbers(taken) == numbers(expected) == every[:n]
        state = json.dumps(taken.shuffle(seed=1).batches(4, rank=0, world_size=1).state_dict())
        assert state == json.dumps(expected.shuffle(seed=1).batches(4, rank=0, world_size=1).state_dict())
        assert numbers(pickle.loads(pickle.dumps(taken))) == every[:n]
        assert numbers(taken.filter("row % 2 = 0")) == [row for row in every[:n] if row % 2 == 0]
        head = pa.record_batch(filtered().head(n))
        assert head.column("row").to_pylist() == every[:n]
    assert numbers(filtered()) == every
    for batch_size in (1, 7, 64, 1000):
        for drop_last in (False, True):
            read = filtered().iter(batch_size=batch_size, drop_last_batch=drop_last)
            expected_batches = [every[start : start + batch_size] for start in range(0, len(every), batch_size)]
            if drop_last:
                expected_batches = [batch for batch in expected_batches if len(batch) == batch_size]
            assert [batch["row"] for batch in read] == expected_batches


def test_a_restricted_dataset_begins_with_its_own_rows(folder: Path) -> None:
    dataset = fb.load_dataset(folder, split="train")
    every = numbers(dataset.filter("n < 20"))
    assert numbers(dataset.skip(1500).filter("n < 20").take(5)) == [row for row in every if row >= 1500][:5]
    assert numbers(dataset.shard(1, 3).filter("n < 20").take(5)) == [row for row in every if row >= 1000][:5]
    backwards = dataset.select(range(2999, -1, -1)).filter("n < 20")
    assert numbers(backwards.take(5)) == every[:-6:-1]
    assert pa.record_batch(backwards.head(5)).column("row").to_pylist() == every[:-6:-1]
    shuffled = dataset.filter("n < 20").shuffle(seed=2)
    assert pa.record_batch(shuffled.head(5)).column("row").to_pylist() == numbers(shuffled)[:5]


def test_bad_values_behind_are_told_when_they_are_looked_at(folder: Path) -> None:
    strict = fb.load_dataset(folder, split="train").filter("1 / (row - 2999) <= 0")
    assert strict.head(2).num_rows == 2
    with pytest.raises(fb.QueryError):
        len(strict)
