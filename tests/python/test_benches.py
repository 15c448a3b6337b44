"""The benchmarks measure what they say: readers deliver the same rows, wrong rows are noticed, runs go on.

Their modules have names of their own that tests have too, so each test is a program in their folder.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benches" / "python"

CASES = ("tokens", "tokens-plain", "embeddings", "text", "text-bytes", "tabular")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench-data")


def run(*arguments, fails=False):
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, f"{done.stdout}\n{done.stderr}"
    return done.stderr if fails else done.stdout


def program(code, *arguments, fails=False):
    return run("-W", "error", "-c", code, *arguments, fails=fails)


@pytest.fixture(scope="module")
def checked(folder):
    return [json.loads(line) for line in run("check.py", folder).splitlines() if line.startswith("{")]


@pytest.mark.parametrize("case", CASES)
def test_readers_deliver_the_same_rows(checked, case):
    of_case = [line for line in checked if line["case"] == case]
    assert len(of_case) >= 9
    assert [line for line in of_case if line["failure"]] == []


WRONG = """
import sys
from pathlib import Path
import by_hand, data, expected, measuring
from cases import CASES, Task
import torch

case = CASES[sys.argv[2]]
tiny = data.make(case.data_set, Path(sys.argv[1]), "tiny")
wanted = expected.expected(tiny, case)
task = Task(case, tiny, tiny, 1)

def spoilt(spoil):
    def read(task):
        for number, batch in enumerate(by_hand.pyarrow_scan(task)):
            yield spoil(number, batch)
    return measuring.check(read, task)

def other_rows(number, batch):
    [name] = batch
    return {name: batch[name].roll(1, 1)} if number == 2 else batch

def other_value(number, batch):
    [name] = batch
    changed = batch[name].clone()
    changed[-1, -1] += 1
    return {name: changed} if number == 2 else batch

def fewer(number, batch):
    return {name: column[:-1] for name, column in batch.items()} if number == 1 else batch

assert spoilt(lambda number, batch: batch) == wanted
for spoil in (other_rows, other_value, fewer):
    assert spoilt(spoil) != wanted, spoil
"""


@pytest.mark.parametrize("case", ["tokens", "embeddings"])
def test_a_reader_of_wrong_rows_is_noticed(folder, case):
    program(WRONG, folder, case)


QUICK = """
import json, sys
from pathlib import Path
import report, throughput
from harness import Run
from results import Results

run = Run(Path(sys.argv[1]), 2, 2, is_quick=True, has_decode=False, readers=("forebay", "pyarrow", "polars"))
results = Results(Path(sys.argv[1]) / "results", {"size": "quick"})
log = results.begin("text-bytes", is_resumed=sys.argv[2] == "resume")
had = len(log.seen)
results.finish("text-bytes", throughput.measure(run, log, "text-bytes"), run.failures)
assert results.is_done("text-bytes") and not results.is_done("text")
parts = results.parts("text-bytes")
page = report.page(parts, [report.machine(results.settings)])
print(json.dumps({"had": had, "has": len(log.seen), "failures": run.failures, "page": page}))
"""


def test_a_run_that_was_stopped_goes_on_with_what_it_has(folder):
    first = json.loads(program(QUICK, folder, "anew").splitlines()[-1])
    assert first["had"] == 0
    assert first["failures"] == []
    again = json.loads(program(QUICK, folder, "resume").splitlines()[-1])
    assert again["had"] == again["has"] == first["has"]
    assert again["page"] == first["page"]
    table = first["page"].partition("## Text to offsets and bytes")[2].partition("##")[0]
    for reader in ("forebay, shuffled", "forebay", "pyarrow, batches", "polars, batches"):
        assert f"| {reader} |" in table
    assert "the best by hand, unshuffled" in first["page"]


def test_a_run_does_not_go_on_with_other_settings(folder):
    code = """
import sys
from pathlib import Path
from results import Results
folder = Path(sys.argv[1]) / "other"
Results(folder, {"cores": 2}).begin("tokens", is_resumed=False).once("key", lambda: 1)
Results(folder, {"cores": 4}).begin("tokens", is_resumed=True)
"""
    found = program(code, folder, fails=True)
    assert "cores was 2, is 4" in found
    assert "--resume" in found


def test_a_case_with_failures_is_measured_again(folder):
    code = """
import sys
from pathlib import Path
from results import Results
results = Results(Path(sys.argv[1]) / "failed", {"cores": 2})
log = results.begin("tokens", is_resumed=False)
log.once("one", lambda: 1)
results.finish("tokens", [], ["two failed"])
assert not results.is_done("tokens") and results.is_of_this("tokens")
log = results.begin("tokens", is_resumed=True)
assert log.once("one", lambda: 0) == 1
results.finish("tokens", [], [])
assert results.is_done("tokens")
"""
    program(code, folder)


def test_the_page_is_not_written_from_quick_runs():
    code = """
import run
from pathlib import Path
from results import Results
run.PAGE = Path("must-not-exist")
run._write(Results(Path("/nowhere"), {"size": "quick"}))
"""
    assert "--quick" in program(code, fails=True)


def test_the_page_says_of_which_build_a_case_is(folder):
    code = """
import sys
from pathlib import Path
from published import Published
from report import Bar, Table
from results import Results

folder = Path(sys.argv[1])
published = Published(folder / "published")
for build, cases in (("one", ["tokens", "text"]), ("two", ["text"])):
    results = Results(folder / build, {"cores": 2, "extension": build})
    for case in cases:
        results.begin(case, is_resumed=False)
        parts = [Table(f"{case} of {build}", ["reader", "rows/s"], [["forebay", "7"]]), Bar(f"{case} bar", 2.0, 1.5)]
        results.finish(case, parts, ["text, lance: command: trace\\nIndexError: 7"] if build == "two" else [])
    published.take(results, cases)
print(published.page(["tokens", "text", "scan"]))
"""
    page = program(code, folder)
    assert "Not measured for this page: `scan`." in page
    assert "Failed: text, lance (`IndexError: 7`)." in page
    assert "## tokens of one" in page
    assert "## text of two" in page
    assert "## text of one" not in page
    assert page.count("| text bar | 2.00 |") == 1
    assert "| cores | 2 |" in page
    [of_tokens, of_text] = [line for line in page.splitlines() if line.startswith(("| `tokens` |", "| `text` |"))]
    assert of_tokens.endswith("| one |")
    assert of_text.endswith("| two |")


def test_pages_are_found_where_the_footer_says(folder):
    code = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
import data, limit_probes
for name in ("tokens", "embeddings", "text", "tabular"):
    for path in data.make(name, Path(sys.argv[1]), "tiny").glob("*.parquet"):
        metadata, body = pq.read_metadata(path), path.read_bytes()
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                found = list(limit_probes.pages(body, chunk))
                codec = pa.Codec(chunk.compression.lower())
                sizes = [codec.decompress(page, size, asbytes=False).size for page, size in found]
                headers = chunk.total_compressed_size - sum(page.size for page, _ in found)
                assert headers > 0
                assert sum(sizes) + headers == chunk.total_uncompressed_size
"""
    program(code, folder)


def test_measures_of_an_order_tell_good_from_bad():
    code = """
import numpy as np
import shuffle
rows = np.arange(200_000)
full = shuffle.quality(np.random.default_rng(0).permutation(rows))
none = shuffle.quality(rows)
for name in ("sorted", "periodic", "per_group"):
    assert 0.8 < full[name] < 1.2, full
assert none["sorted"] > 100 and none["per_group"] > 100, none
# Of 200 groups: log2 of the number of distances, less half a bit or so for their triangle.
assert 9 < full["entropy"] < 13 and none["entropy"] < 0.1
assert none["groups"] < 2.5 < 100 < full["groups"]
"""
    program(code)
