"""What is handed over can be pushed to the Hub, and read back from it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import TOKEN, Hub

import forebay as fb


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with Hub() as hub:
        hub.point(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def ds(tmp_path) -> fb.Dataset:
    from datasets import ClassLabel

    table = pa.table({"id": range(100), "label": [n % 2 for n in range(100)], "text": [f"row {n}" for n in range(100)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=20)
    opened = fb.load_dataset(tmp_path / "rows.parquet", split="train")
    return opened.cast_column("label", ClassLabel(names=["cat", "dog"]))


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of how huggingface_hub uploads
@pytest.mark.parametrize("num_shards", [1, 2])
def test_what_is_handed_over_is_pushed_and_read_back(hub, ds, num_shards):
    wanted = ds.filter("label = 'dog' AND id < 50").shuffle(3)
    wanted.to_hf().push_to_hub("org/pushed", split="train", token=TOKEN, num_shards=num_shards)
    repo = hub.repos["org/pushed"]
    assert sum(path.endswith(".parquet") for path in repo.commits[repo.sha]) == num_shards
    back = fb.load_dataset("org/pushed", split="train")
    assert back.features == ds.features
    rows, expected = back.take(100), wanted.take(100)
    if num_shards > 1:
        # Each file holds the share of one process.
        rows, expected = (sorted(some, key=lambda row: row["id"]) for some in (rows, expected))
    assert rows == expected
