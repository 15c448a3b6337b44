"""The negative control: the checks of the order tests find what another loader loses, doubles and shares unevenly.

`datasets` streams the same files with a shuffle, a filter and a state of its own. Where it keeps the promises, the
checks must be silent; where it does not, they must speak.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from data import ids_table, write_fragments
from programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 3000
BATCH_SIZE = 50
CUTS = (1, 10, 25, 45)
FEW = 1000

# In a process of its own: `datasets` prints when its iterators are left.
PROGRAM = f"""
import json, sys, warnings
from pathlib import Path
# Theirs are not our business.
warnings.simplefilter("ignore")
import datasets
from datasets.distributed import split_dataset_by_node
import forebay as fb
from harness import rank_failures, resume_failures
from rows import ids

# It sleeps for five seconds at the end of every epoch of Parquet.
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
datasets.disable_progress_bars()
folder = Path(sys.argv[1])


class Theirs:
    def __init__(self, rank=0, world_size=1, *, is_shuffled=False, is_filtered=False):
        files = [str(path) for path in sorted(folder.glob("*.parquet"))]
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        if is_filtered:
            rows = rows.filter(lambda row: row["id"] < {FEW})
        if is_shuffled:
            rows = rows.shuffle(seed=1, buffer_size=100)
        self.rows = split_dataset_by_node(rows, rank, world_size) if world_size > 1 else rows
        self.state_dict, self.load_state_dict = self.rows.state_dict, self.rows.load_state_dict

    def __iter__(self):
        return (batch["id"] for batch in self.rows.iter({BATCH_SIZE}))


class Ours:
    def __init__(self, rank=0, world_size=1, *, is_shuffled=False, is_filtered=False):
        dataset = fb.load_dataset(folder, split="train")
        if is_filtered:
            dataset = dataset.filter("id < {FEW}")
        if is_shuffled:
            dataset = dataset.shuffle(seed=1, num_lanes=4, window_rows=100)
        self.stream = dataset.batches({BATCH_SIZE}, rank=rank, world_size=world_size)
        self.state_dict, self.load_state_dict = self.stream.state_dict, self.stream.load_state_dict

    def __iter__(self):
        return map(ids, self.stream)


cuts = json.loads(sys.argv[3])
few = [cut for cut in cuts if cut * {BATCH_SIZE} < {FEW}]
loader = {{"ours": Ours, "theirs": Theirs}}[sys.argv[2]]
print(json.dumps({{
    "resumed": resume_failures(loader, cuts),
    "resumed, shuffled": resume_failures(lambda: loader(is_shuffled=True), cuts),
    "resumed, shuffled and filtered": resume_failures(lambda: loader(is_shuffled=True, is_filtered=True), few),
    "ranks": rank_failures(loader, [3]),
    "ranks, filtered": rank_failures(lambda *rank: loader(*rank, is_filtered=True), [2, 3]),
}}))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("control")
    write_fragments(folder, ids_table(NUM_ROWS), num_fragments=3, row_group_rows=100)
    return folder


def failures(corpus: Path, tmp_path: Path, loader: str) -> dict[str, Any]:
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    printed = run_python(PROGRAM, corpus, loader, json.dumps(CUTS), environment=environment)
    return json.loads(printed.splitlines()[-1])


def test_the_checks_find_nothing_in_forebay(corpus: Path, tmp_path: Path) -> None:
    found = failures(corpus, tmp_path, "ours")
    assert len(found) == 5
    assert set(map(str, found.values())) == {"[]"}


def test_the_checks_find_what_another_loader_loses_and_doubles(corpus: Path, tmp_path: Path) -> None:
    found = failures(corpus, tmp_path, "theirs")
    # Unshuffled and unfiltered it keeps its promises, and the checks say so.
    assert found["resumed"] == []
    assert found["ranks"] == []
    # What was in the shuffle buffer is lost, and what the buffer is filled with again was partly delivered.
    resumed = found["resumed, shuffled"] + found["resumed, shuffled and filtered"]
    counts = [re.search(r"(\d+) rows lost, (\d+) doubled", failure) for failure in resumed]
    assert len(counts) >= 3
    assert all(int(count[1]) > 0 for count in counts)
    assert any(int(count[2]) > 0 for count in counts)
    # Ranks take whole files, so that a filter leaves them unequal rows: their steps differ, and training would hang.
    [unequal] = found["ranks, filtered"]
    assert re.fullmatch(r"3 ranks: steps of \[20, 0, 0\]", unequal), unequal
