"""The examples in the docstrings run, and print what they say."""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 1000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus with the columns of the demo's, which the examples use."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = range(NUM_ROWS)
    table = pa.table(
        {
            "crate": [f"crate-{row % 7}" for row in rows],
            "path": [f"src/{row}.rs" for row in rows],
            "language": [("rust", "toml", "markdown")[row % 3] for row in rows],
            "size": [row * 3 for row in rows],
            "licence": ["MIT"] * NUM_ROWS,
            "text": [f"fn main() {{}} // {row}" for row in rows],
            "tokens": pa.array([[row] * 4 for row in rows], pa.list_(pa.int32())),
            "licence_id": [row if row % 3 else None for row in rows],
            "kind": pa.array([("lib", "bin")[row % 2] for row in rows]).dictionary_encode(),
            "published": [dt.date(2026, 1, 1)] * NUM_ROWS,
            "fetched": pa.array([dt.datetime(2026, 11, 21, 10)] * NUM_ROWS, pa.timestamp("us")),
        }
    )
    pq.write_table(table, folder / "train.parquet", row_group_size=100)
    return folder


@pytest.mark.parametrize(
    "module",
    [
        *(
            "columns",
            "dataloader",
            "dataset",
            "features",
            "hf.swap",
            "hf.taken",
            "loader",
            "loading",
            "secrets",
            "selection",
        ),
        *("shaping", "torch"),
    ],
)
def test_examples_print_what_they_say(module: str, corpus: Path) -> None:
    found = importlib.import_module(f"forebay.{module}")
    names = vars(found) | {"corpus": corpus, "forebay": fb, "ds": fb.load_dataset(corpus, split="train")}
    tests = doctest.DocTestFinder().find(found, globs=names)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
    if module == "dataset":
        assert runner.tries > 4, "the examples are still found"
