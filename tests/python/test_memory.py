"""Memory: an epoch stays within `memory_limit`, whatever the size of the data."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

import hostile
import large_row_groups
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_data import raw_png
from programs import run_python

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
NUM_ROWS = 50_000
ROW_TOKENS = 2048
NOISE = 8 * MIB
"""What threads and sockets take beside the data, on top of the promised fifth."""

# `VmHWM` is set back after opening, so that the peak is that of the epoch.
EPOCH = """
import gc
import pathlib
import sys

import forebay as fb
import torch


def status(name):
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


folder, limit, how, num_threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ds = fb.load_dataset(folder, split="train")
if how != "in order":
    ds = ds.shuffle(1, shuffle_bytes=limit // 2)
if how == "filtered":
    ds = ds.filter("id % 5 < 2")
# A batch, so that code and thread pools are loaded; of a small column, as what a stream held is kept for a while.
for batch in ds.select_columns(["id"]).to_torch(16, memory_limit=limit, num_threads=num_threads):
    break
len(ds)
del batch
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
rows = 0
for batch in ds.to_torch(256, memory_limit=limit, num_threads=num_threads):
    rows += len(batch["id"])
    del batch
print(rows, before, status("VmHWM"))
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    """Rows of tokens, 400 MB decoded."""
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(1)
    for part in range(5):
        num_rows = NUM_ROWS // 5
        values = pa.array(rng.integers(0, 50_000, num_rows * ROW_TOKENS, dtype=np.int32))
        column = pa.FixedSizeListArray.from_arrays(values, ROW_TOKENS)
        ids = pa.array(range(part * num_rows, (part + 1) * num_rows))
        pq.write_table(
            pa.table({"id": ids, "tokens": column}),
            folder / f"part-{part}.parquet",
            row_group_size=1000,
            compression="zstd",
            use_dictionary=False,
            write_page_index=True,
        )
    return folder


def measure(folder: Path, how: str, limit: int) -> tuple[int, int]:
    """Rows of an epoch, and the most memory that it took beside what the process held before."""
    rows, before, peak = map(int, run_python(EPOCH, folder, limit, how, 2, timeout=110).split())
    return rows, peak - before


@pytest.mark.parametrize("how", ["in order", "shuffled", "filtered"])
@pytest.mark.parametrize("limit_mib", [64, 128])
def test_an_epoch_stays_within_the_memory_limit(tokens, how, limit_mib):
    rows, used = measure(tokens, how, limit_mib * MIB)
    assert rows == (NUM_ROWS if how != "filtered" else NUM_ROWS * 2 // 5)
    assert used <= limit_mib * MIB * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


EPOCHS = """
import pathlib
import resource
import sys
import time

import forebay as fb


def resident():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


stream = fb.load_dataset(sys.argv[1], split="train").shuffle(1).batches(256, memory_limit=1 << 30)
start = resident()
for epoch in range(3):
    stream.set_epoch(epoch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for batch in stream:
        del batch
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
held, deadline = resident() - start, time.monotonic() + 60
while resident() - start > held / 2 and time.monotonic() < deadline:
    time.sleep(0.1)
print(held, resident() - start)
"""


def test_memory_is_kept_from_epoch_to_epoch_and_given_back_a_little_later(tokens):
    # A sixteenth of the limit stays.
    *faults, held, left = map(int, run_python(EPOCHS, tokens, timeout=110).split())
    assert max(faults[1:]) < faults[0] / 4, f"page faults of each epoch: {faults}"
    assert left < held / 2, f"{held / MIB:.0f} MiB after the epochs, {left / MIB:.0f} MiB in the end"


FORK = """
import os
import pathlib
import sys

import forebay as fb


def resident():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


ds = fb.load_dataset(sys.argv[1], split="train")
batches = iter(ds.batches(16, memory_limit=4 << 30))
next(batches)
if os.fork() == 0:
    before = resident()
    for _ in range(2):
        # Of its own limit, of which a sixteenth stays.
        ds.gather(range(len(ds)), memory_limit=1 << 30)
    print(resident() - before, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_fork_of_a_process_that_streams_gives_back_what_it_does_not_need(tokens):
    left = int(run_python(FORK, tokens, timeout=110))
    assert left < 150 * MIB, f"{left / MIB:.0f} MiB of the 400 that were read"


ROW_GROUP = 128 * MIB
LIMIT = 16 * MIB
"""An eighth of a row group: that of 2 GiB within 256 MiB, in little."""

# Arrow batches, without torch. `select_columns` spares the first batch the memory that is to be measured.
PASS = """
import gc
import pathlib
import sys
import warnings

import forebay as fb


def status(name):
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


path, how = sys.argv[1], sys.argv[3]
limit, num_threads, batch_size = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
opened = fb.load_dataset(path, split="train")
shuffle_bytes = int(sys.argv[6]) if len(sys.argv) > 6 else limit // 2
# Of windows that do not fit.
warnings.simplefilter("ignore", fb.PerformanceWarning)
ds = opened if how == "in order" else opened.shuffle(1, shuffle_bytes=shuffle_bytes)
if how.startswith("filtered"):
    ds = ds.filter(how.removeprefix("filtered by "))
for batch in opened.select_columns(["id"]).batches(16, memory_limit=limit, num_threads=num_threads):
    break
del batch
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
rows = 0
stream = ds.batches(batch_size, memory_limit=limit, num_threads=num_threads)
for batch in stream:
    rows += batch.num_rows
print(rows, status("VmHWM") - before, int(stream.stats()["peak_memory_bytes"]), int(stream.stats()["rows_evicted"]))
"""


@pytest.fixture(scope="module")
def row_groups(tmp_path_factory) -> dict[str, tuple[Path, int]]:
    """For each kind, an object of one row group with a page index, and its rows."""
    folder = tmp_path_factory.mktemp("row-groups")
    paths = {kind: folder / f"{kind}.parquet" for kind in large_row_groups.KINDS}
    return {kind: (path, large_row_groups.write(path, kind, ROW_GROUP)) for kind, path in paths.items()}


@pytest.mark.parametrize(
    ("kind", "limit_mib", "how", "num_threads", "batch_size"),
    [
        ("tokens", 16, "in order", 1, 64),
        ("tokens", 16, "in order", 2, 512),
        ("tokens", 16, "shuffled", 2, 64),
        # The filter's own column is half of the row group.
        ("tokens", 16, "filtered by tokens[1] % 2 = 0", 2, 64),
        ("images", 16, "in order", 2, 1),
        ("images", 16, "shuffled", 2, 1),
        # What a column takes beside its pages is not an eighth of that of a large row group.
        ("wide", 32, "in order", 2, 64),
        ("wide", 32, "filtered by id % 5 < 2", 1, 64),
    ],
)
def test_a_row_group_of_many_times_the_memory_limit_streams_within_it(
    row_groups, kind, limit_mib, how, num_threads, batch_size
):
    path, num_rows = row_groups[kind]
    limit = limit_mib * MIB
    rows, used, counted, _ = map(int, run_python(PASS, path, limit, how, num_threads, batch_size).split())
    assert rows == num_rows if not how.startswith("filtered") else 0 < rows < num_rows
    assert counted <= limit * 1.02
    assert used <= limit * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


def test_strings_that_a_dictionary_makes_small_are_counted_as_they_come_out(tmp_path):
    # 100 MB of strings in 200 kB: far more than the limit in one page.
    words = [f"{index:04}" * 512 for index in range(97)]
    table = pa.table({"id": range(50_000), "text": [words[index % 97] for index in range(50_000)]})
    pq.write_table(table, tmp_path / "x.parquet", write_page_index=True)
    rows, used, counted, _ = map(int, run_python(PASS, tmp_path / "x.parquet", 32 * MIB, "in order", 2, 64).split())
    assert rows == 50_000
    assert counted <= 32 * MIB * 1.02
    assert used <= 32 * MIB * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


# If they are shuffled, the window does not fit.
@pytest.mark.filterwarnings("ignore::forebay.PerformanceWarning")
@pytest.mark.parametrize("shuffle", [False, True])
def test_computed_rows_that_footers_do_not_tell_the_size_of_stay_within_the_limit(tmp_path, shuffle):
    # Row groups of 0.2 MB of which each makes 32 MB: a fourth of the limit.
    num_rows, limit = 80_000, 128 * MIB
    table = pa.table({"id": range(num_rows), "text": [f"{row:020}" for row in range(num_rows)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=num_rows // 10, write_page_index=True)
    ds = fb.load_dataset(tmp_path, split="train").sql("SELECT id, repeat(text, 200) AS text FROM dataset")
    ds = ds.shuffle(1, shuffle_bytes=2 * MIB) if shuffle else ds
    stream = ds.batches(64, memory_limit=limit, num_threads=8)
    ids = []
    for batch in map(pa.record_batch, stream):
        assert batch["text"][0].as_py() == f"{batch['id'][0].as_py():020}" * 200
        ids += batch["id"].to_pylist()
    assert sorted(ids) == list(range(num_rows))
    assert stream.stats()["peak_memory_bytes"] <= limit * 1.2


PADDED = """
import gc
import pathlib
import sys
import time

import forebay as fb
import torch


def status(name):
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


ds, limit, num_threads = fb.load_dataset(sys.argv[1], split="train"), int(sys.argv[2]), int(sys.argv[3])
for batch in ds.select_columns(["id"]).to_torch(16, memory_limit=limit, num_threads=num_threads):
    break
del batch
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before, rows = status("VmRSS"), 0
stream = ds.to_torch(64, padding=fb.Pad(mask=None), memory_limit=limit, num_threads=num_threads)
for batch in stream:
    rows += len(batch["tokens"])
    # Threads have the time to go as far ahead as they may.
    time.sleep(0.05)
    del batch
print(rows, status("VmHWM") - before, int(stream.stats()["peak_memory_bytes"]))
"""


def test_batches_that_padding_makes_large_stay_within_the_limit_together(tmp_path):
    # A long list in each batch makes 26 MB of padding out of 0.2 MB of tokens.
    num_rows, limit = 1024, 128 * MIB
    lengths = np.where(np.arange(num_rows) % 64 == 0, 50_000, 8)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = pa.array(np.arange(offsets[-1]) % 50_000, pa.int32())
    table = pa.table({"id": range(num_rows), "tokens": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), tokens)})
    pq.write_table(table, tmp_path / "x.parquet", write_page_index=True)
    rows, used, counted = map(int, run_python(PADDED, tmp_path, limit, 8).split())
    assert rows == num_rows
    assert counted <= limit * 1.02
    assert used <= limit * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


def test_a_window_that_does_not_fit_is_read_again_in_the_same_order(row_groups):
    path, num_rows = row_groups["tokens"]
    shuffled = fb.load_dataset(path, split="train").select_columns(["id", "tokens"]).shuffle(3)

    def order(memory_limit):
        stream = shuffled.batches(32, memory_limit=memory_limit)
        ids = np.concatenate([pa.record_batch(batch)["id"].to_numpy() for batch in stream])
        return ids, stream.stats()

    roomy, of_roomy = order(512 * MIB)
    with pytest.warns(fb.PerformanceWarning, match="Raise memory_limit to .* or lower shuffle_bytes to 12 MiB") as said:
        tight, of_tight = order(24 * MIB)
    assert [warning.filename for warning in said] == [__file__]
    assert sorted(roomy) == list(range(num_rows))
    assert (roomy == tight).all()
    assert of_roomy["rows_evicted"] == 0 < of_tight["rows_evicted"]
    assert of_tight["peak_memory_bytes"] <= 24 * MIB * 1.02


# The parts of a row group share its dictionaries.
@pytest.mark.filterwarnings("ignore:row group .* is read in .* parts:forebay.PerformanceWarning")
def test_ordered_categories_keep_their_order_in_little_memory(tmp_path):
    num_rows, grades = 4000, [f"g{number:02}" for number in range(26)]
    rng = np.random.default_rng(0)
    grade = pa.DictionaryArray.from_arrays(
        pa.array(rng.integers(0, len(grades), num_rows), pa.int32()), pa.array(grades), ordered=True
    )
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 1 << 31, num_rows * 256)), 256)
    table = pa.table({"id": range(num_rows), "grade": grade, "tokens": tokens})
    settings = {"row_group_size": 250, "write_page_index": True, "data_page_size": 20_000, "write_batch_size": 10}
    pq.write_table(table, tmp_path / "x.parquet", **settings)
    stream = (
        fb.load_dataset(tmp_path, split="train").shuffle(1, shuffle_bytes=MIB).batches(200, memory_limit=5 * MIB // 2)
    )
    for batch in map(pa.record_batch, stream):
        values = batch["grade"].dictionary.to_pylist()
        assert batch.schema.field("grade").type.ordered
        assert values == sorted(values)
        assert batch["grade"].to_pylist() == table["grade"].take(batch["id"]).to_pylist()


def test_a_batch_of_many_parts_that_does_not_fit_is_told_to_be_smaller(tmp_path):
    num_rows = 16_000
    offsets, tokens = np.arange(num_rows + 1) * 1024, np.random.default_rng(0).integers(0, 50_000, num_rows * 1024)
    table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens))})
    settings = {"write_page_index": True, "data_page_size": 64 << 10, "write_batch_size": 8, "use_dictionary": False}
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2000, **settings)
    shuffled = fb.load_dataset(tmp_path, split="train").shuffle(1, shuffle_bytes=16 * MIB)
    for batch_size in (3000, 3400, 3800, 4500):
        with pytest.raises(fb.MemoryLimitError, match=rf"a batch of {batch_size} rows needs .* smaller batch_size"):
            list(shuffled.batches(batch_size, memory_limit=32 * MIB))


def test_windows_that_fit_but_for_their_row_groups_are_not_told_to_be_smaller_than_they_are(tmp_path):
    num_rows = 20_000
    tokens = pa.array(np.random.default_rng(0).integers(0, 1000, num_rows * 64).astype(np.int32))
    table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(np.arange(num_rows + 1) * 64, pa.int32()), tokens)})
    # Without a page index row groups are read whole.
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2000)
    shuffled = fb.load_dataset(tmp_path, split="train").shuffle(1, shuffle_bytes=675 << 10)
    with pytest.warns(fb.PerformanceWarning) as said:
        assert sum(batch.num_rows for batch in shuffled.batches(32, memory_limit=1400 << 10)) == num_rows
    (again,) = [message for warning in said if "again and again" in (message := str(warning.message))]
    assert "takes more than memory_limit (2 MiB) once it is decoded" in again
    assert "smaller row groups" in again
    assert "page index" in again
    assert "shuffle_bytes to" not in again


@pytest.mark.parametrize(
    ("limit", "num_rows", "kind"),
    [(8 * MIB, 300_000, pa.int64()), (1 * MIB, 60_000, pa.int8()), (8 * MIB, 1_500_000, pa.int8())],
    ids=["all fit", "all fit into the least limit", "the window does not fit"],
)
def test_what_is_planned_of_small_rows_is_within_a_small_limit(tmp_path, limit, num_rows, kind):
    # A planned row takes more than these rows themselves.
    table = pa.table(
        {"id": np.arange(num_rows, dtype=np.int32), "label": pa.array(np.arange(num_rows) % 100).cast(kind)}
    )
    settings = {"write_page_index": True, "data_page_size": 1 << 14, "write_batch_size": 64, "use_dictionary": False}
    pq.write_table(table, tmp_path / "x.parquet", **settings)
    shuffled = fb.load_dataset(tmp_path, split="train").shuffle(1, shuffle_bytes=64 * MIB)
    stream = shuffled.batches(100, memory_limit=limit, num_threads=2)
    ids = np.concatenate([pa.record_batch(batch)["id"].to_numpy() for batch in stream])
    assert (np.sort(ids) == np.arange(num_rows)).all()
    assert stream.stats()["peak_memory_bytes"] <= limit * 1.2


def test_what_is_drawn_ahead_in_windows_of_small_rows_is_counted(tmp_path):
    # Nine bytes for half of the 8 million rows in the windows, beside rows of eight: more than half of the limit.
    num_rows = 9_000_000
    ids = np.arange(num_rows, dtype=np.int32)
    settings = {"write_page_index": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"id": ids, "label": ids}), tmp_path / "x.parquet", row_group_size=1 << 18, **settings)
    limit = 64 * MIB
    rows, used, counted, _ = map(
        int, run_python(PASS, tmp_path / "x.parquet", limit, "shuffled", 2, 4096, 128 * MIB, timeout=110).split()
    )
    assert rows == num_rows
    assert counted <= limit * 1.2
    assert used <= limit * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


ORDER = """
import gc
import pathlib
import sys
import warnings

import forebay as fb


def status(name):
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


ds = fb.load_dataset(sys.argv[1], split="train")
next(iter(ds.batches(1)))
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
# Of windows that do not fit.
warnings.simplefilter("ignore", fb.PerformanceWarning)
stream = ds.shuffle(1).batches(1000, memory_limit=int(sys.argv[2]), num_threads=2)
for _, batch in zip(range(10), stream):
    assert batch.num_rows == 1000
print(status("VmHWM") - before, int(stream.stats()["peak_memory_bytes"]))
"""


@pytest.mark.parametrize("kind", ["of a bit", "of a bit, without a page index", "without columns"])
def test_the_order_of_rows_that_take_less_than_it_is_counted(tmp_path, kind):
    # Ordering them takes 17 bytes a row, of which there are 30 million.
    num_rows, limit = 30_000_000, 64 * MIB
    path = tmp_path / "x.parquet"
    if kind == "without columns":
        path.write_bytes(hostile.without_columns(num_rows))
    else:
        table = pa.table({"is": np.zeros(num_rows, bool)})
        pq.write_table(table, path, row_group_size=num_rows, write_page_index=kind == "of a bit")
    used, counted = map(int, run_python(ORDER, path, limit, timeout=110).split())
    assert counted <= limit * 1.2
    assert used <= limit * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


def test_the_rows_of_a_part_that_the_order_has_left_are_kept_alone(tmp_path):
    # Without a page index row groups are held whole, and two do not fit. A batch takes the end of one, the start of
    # the next.
    write_tokens(tmp_path / "x.parquet", num_rows=4000, row_group_size=1000, write_page_index=False)
    stream = fb.load_dataset(tmp_path, split="train").batches(64, memory_limit=32 * MIB, num_threads=2)
    with pytest.warns(fb.PerformanceWarning):
        assert sum(batch.num_rows for batch in stream) == 4000
    assert stream.stats()["rows_evicted"] == 0
    assert stream.stats()["bytes_fetched"] < 1.1 * (tmp_path / "x.parquet").stat().st_size
    assert stream.stats()["peak_memory_bytes"] <= 32 * MIB * 1.02


def test_a_batch_larger_than_the_memory_limit_is_refused_and_the_error_says_what_would_do(row_groups):
    path, num_rows = row_groups["tokens"]
    ds = fb.load_dataset(path, split="train")
    for how in (ds, ds.shuffle(1)):
        for batch_size in (num_rows, num_rows // 8, (1 << 31) - 1):
            says = r"a batch of \d+ rows needs \d+ bytes.*batch_size"
            with pytest.raises(fb.MemoryLimitError, match=says) as refused:
                list(how.batches(batch_size, memory_limit=LIMIT))
            assert isinstance(refused.value, MemoryError)
    needed = int(str(refused.value).split(" needs ")[1].split()[0])
    assert sum(batch.num_rows for batch in ds.batches(num_rows, memory_limit=needed * 5 // 4)) == num_rows


@pytest.mark.parametrize(("first", "limit"), [(0, 256 * MIB), (20, 4 * MIB)])
def test_batches_of_small_rows_fit_whatever_others_take(tmp_path, first, limit):
    # Twenty large rows, more than is fetched at once, and a batch of as many of their size would be far too large.
    large = pa.table({"row": range(20), "text": [str(row % 10) * MIB for row in range(20)]})
    small = pa.table({"row": range(20, 20_020), "text": [""] * 20_000})
    with pq.ParquetWriter(tmp_path / "x.parquet", large.schema, compression="none", use_dictionary=False) as writer:
        writer.write_table(large)
        writer.write_table(small, row_group_size=1000)
    ds = fb.load_dataset(tmp_path, split="train")
    for how, num_threads in ((ds, 1), (ds, 4), (ds.skip(first), 1)):
        stream = how.batches(4096, memory_limit=limit, num_threads=num_threads)
        stream.load_state_dict(stream.state_dict() | {"position": first if how is ds else 0})
        assert list(chain.from_iterable(pa.record_batch(batch)["row"].to_pylist() for batch in stream)) == list(
            range(first, 20_020)
        )


def test_batches_of_a_third_of_the_limit_stream_within_it(row_groups):
    # 8 KiB a row: the batch that the loop has, the next one, and the rows of that.
    path, num_rows = row_groups["tokens"]
    rows, used, counted, _ = map(int, run_python(PASS, path, 4 * LIMIT, "in order", 2, 2600).split())
    assert rows == num_rows
    assert counted <= 4 * LIMIT * 19 / 16
    assert used <= 4 * LIMIT * 1.2 + NOISE, f"{used / MIB:.0f} MiB"


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_that_does_not_fit_beside_the_one_before_it_is_refused_with_what_would_do(row_groups, shuffle):
    path, num_rows = row_groups["tokens"]
    ds = fb.load_dataset(path, split="train")
    ds = ds.shuffle(1, shuffle_bytes=LIMIT // 2) if shuffle else ds
    # 45 % of the limit.
    stream = ds.batches(900, memory_limit=LIMIT)
    with pytest.raises(fb.MemoryLimitError, match=r"a batch of 900 rows needs \d+ bytes.*batch_size") as refused:
        list(stream)
    assert stream.stats()["peak_memory_bytes"] <= LIMIT * 19 / 16
    needed = int(str(refused.value).split(" needs ")[1].split()[0])
    stream = ds.batches(900, memory_limit=needed)
    kept = list(stream)
    assert sum(batch.num_rows for batch in kept) == num_rows
    assert stream.stats()["peak_memory_bytes"] <= needed * 19 / 16


def test_nothing_is_held_after_the_end_or_a_break(row_groups):
    stream = fb.load_dataset(row_groups["tokens"][0], split="train").shuffle(1).batches(64)
    for batch in stream:
        assert stream.stats()["memory_bytes"] >= pa.record_batch(batch).nbytes
    assert stream.stats()["memory_bytes"] == 0
    for _ in stream:
        break
    assert stream.stats()["memory_bytes"] == 0 < stream.stats()["peak_memory_bytes"]


def test_the_batch_that_the_loop_has_is_counted(row_groups):
    stream = fb.load_dataset(row_groups["tokens"][0], split="train").batches(256, memory_limit=LIMIT)
    for batch in stream:
        assert stream.stats()["memory_bytes"] >= pa.record_batch(batch).nbytes
        break


def write_tokens(path, num_rows, **settings):
    values = np.random.default_rng(5).integers(0, 1 << 31, num_rows * ROW_TOKENS, dtype=np.int32)
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(values), ROW_TOKENS)
    pq.write_table(pa.table({"id": range(num_rows), "tokens": tokens}), path, use_dictionary=False, **settings)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_row_group_without_a_page_index_that_does_not_fit_is_refused_with_what_the_file_needs(tmp_path, shuffle):
    write_tokens(tmp_path / "old.parquet", num_rows=3000, write_page_index=False)
    ds = fb.load_dataset(tmp_path, split="train")
    wanted = (
        r"memory_limit of 16777216 bytes .* row group 0 of `.*old\.parquet` needs (\d+) bytes at once: it has no page "
        r"index.*`write_page_index=True`.*`row_group_size`"
    )
    with pytest.raises(fb.MemoryLimitError, match=wanted):
        list((ds.shuffle(1) if shuffle else ds).batches(16, memory_limit=LIMIT))


def test_a_filter_on_a_row_group_without_a_page_index_that_does_not_fit_is_refused(tmp_path):
    write_tokens(tmp_path / "old.parquet", num_rows=3000, write_page_index=False)
    ds = fb.load_dataset(tmp_path, split="train").filter("tokens[1] % 2 = 0")
    with pytest.raises(fb.MemoryLimitError, match="row group 0 of .*no page index"):
        len(ds.batches(16, memory_limit=LIMIT))
    assert 0 < len(ds) < 3000


def test_pages_that_do_not_fit_are_refused_with_what_the_file_needs(tmp_path):
    blobs = pa.array([np.random.default_rng(row).bytes(MIB) for row in range(24)])
    pq.write_table(pa.table({"blob": blobs}), tmp_path / "x.parquet", write_page_index=True, use_dictionary=False)
    with pytest.raises(fb.MemoryLimitError, match=r"its pages are large.*`data_page_size`, `write_batch_size`"):
        list(fb.load_dataset(tmp_path, split="train").batches(1, memory_limit=LIMIT))


def test_batches_before_a_row_that_does_not_fit_are_delivered(tmp_path):
    small = pa.table({"row": range(10_000), "text": ["x" * 1000] * 10_000})
    large = pa.table({"row": [10_000], "text": ["x" * 40 * MIB]})
    with pq.ParquetWriter(tmp_path / "x.parquet", small.schema, compression="none", use_dictionary=False) as writer:
        writer.write_table(small, row_group_size=100)
        writer.write_table(large)
    stream = fb.load_dataset(tmp_path, split="train").batches(100, memory_limit=32 * MIB, num_threads=4)
    rows = []

    def read():
        for batch in stream:
            rows.extend(pa.record_batch(batch)["row"].to_pylist())

    with pytest.raises(fb.MemoryLimitError, match="row group 100 of"):
        read()
    assert rows == list(range(10_000))
    assert stream.state_dict()["position"] == 10_000


def test_a_missing_page_index_is_warned_of_once_where_it_costs(tmp_path, recwarn):
    write_tokens(tmp_path / "x.parquet", num_rows=2000, row_group_size=1000, write_page_index=False)
    ds = fb.load_dataset(tmp_path, split="train")
    # A row group takes about 24 MiB: its bytes, its levels, its arrays.
    for batch in ds.batches(16, memory_limit=256 * MIB):
        del batch
    assert not recwarn.list
    stream = ds.shuffle(1).batches(16, memory_limit=64 * MIB)
    for _ in range(2):
        for _ in stream:
            break
    for _ in ds.to_torch(16, memory_limit=48 * MIB):
        break
    (warned,) = recwarn.list
    assert issubclass(warned.category, fb.PerformanceWarning)
    assert warned.filename == __file__
    assert "(2 such in the dataset)" in str(warned.message)
    assert "x.parquet" in str(warned.message)
    assert "Rows may be read again" in str(warned.message)
    assert "write_page_index=True" in str(warned.message)


@pytest.mark.parametrize(("method", "num_rows"), [("batches", 2100), ("to_hf", 2200)])
def test_a_missing_page_index_coarsens_no_order_that_is_that_of_the_files(tmp_path, method, num_rows):
    # Datasets that are alike are warned of once.
    write_tokens(tmp_path / "x.parquet", num_rows=num_rows, row_group_size=1000, write_page_index=False)
    ds = fb.load_dataset(tmp_path, split="train")
    rows = ds.batches(16, memory_limit=32 * MIB) if method == "batches" else ds.to_hf(memory_limit=32 * MIB)
    with pytest.warns(fb.PerformanceWarning, match="no page index .* It is read whole by each process") as warned:
        next(iter(rows))
    assert "shuffle" not in str(warned[0].message)


def write_repeated(folder, num_rows, **settings):
    """Writes a gigabyte and more of text that takes little in files: each row group is one span."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, np.int32)), ["a" * MIB])
    table = pa.table({"id": range(num_rows), "text": texts})
    settings = {"store_schema": False, "dictionary_pagesize_limit": 1 << 30} | settings
    pq.write_table(table, folder / "x.parquet", **settings)
    return fb.load_dataset(folder, split="train")


# Datasets that are alike are warned of once.
@pytest.mark.parametrize(
    ("num_rows", "settings", "needed_rows", "window_rows"),
    [
        (2000, {"row_group_size": 1000, "write_page_index": True}, 2000 + 1000, 1000 // 50),
        (5000, {"row_group_size": 500, "write_page_index": True}, 4 * 500, 500 + 1000 // 50),
        (2200, {"row_group_size": 2200}, 2 * 2200, 1),
    ],
)
def test_a_shuffle_that_leaves_rows_near_their_neighbours_is_warned_of(
    tmp_path, num_rows, settings, needed_rows, window_rows
):
    ds = write_repeated(tmp_path, num_rows, **settings)
    is_indexed = "write_page_index" in settings
    begin = (
        "the shuffle" if is_indexed else "row group 0 of .* no page index .* Rows may be read again, and the shuffle"
    )
    says = rf"^{begin} is coarse: .* rows (stay|move by less than ([\d,]+)).* page index.*`shuffle_bytes=(\d+)`"
    with pytest.raises(fb.PerformanceWarning, match=says) as warned:
        next(iter(ds.shuffle(1).batches(8, memory_limit=32 << 30 if is_indexed else 8 << 30)))
    _, moved, needed = re.search(says, str(warned.value)).groups()
    assert int((moved or "1").replace(",", "")) == pytest.approx(window_rows, abs=5)
    needed = int(needed)
    assert needed == pytest.approx(needed_rows * MIB, rel=0.01)
    for shuffle_bytes, is_coarse in ((needed - 1, True), (needed, False)):
        reader = ds.shuffle(1, shuffle_bytes=shuffle_bytes)._make_reader(fb.options.ReadOptions(), reads_all=False)
        assert (reader.coarse() is not None) == is_coarse


def test_a_small_shuffle_that_was_asked_for_is_not_warned_of(tmp_path, recwarn):
    write_tokens(tmp_path / "x.parquet", num_rows=1900, row_group_size=500)
    next(iter(fb.load_dataset(tmp_path, split="train").shuffle(1, shuffle_bytes=MIB).batches(8)))
    assert not recwarn.list


def write_distinct(folder, num_rows=20_000, *, use_dictionary=True):
    """Writes a row group of numbers that do not repeat, of which dictionaries would be four fifths of the bytes."""
    values = np.random.default_rng(8).random((20, num_rows))
    table = pa.table({f"x{number}": column for number, column in enumerate(values)})
    path = folder / f"dictionaries-{use_dictionary}.parquet"
    settings = {"write_page_index": True, "data_page_size": 8 << 10, "write_batch_size": 256}
    pq.write_table(table, path, compression="none", use_dictionary=use_dictionary, **settings)
    return path


@pytest.mark.parametrize("shuffle", [False, True])
def test_dictionaries_are_fetched_once_if_a_fourth_of_the_limit_holds_their_rows(tmp_path, recwarn, shuffle):
    path = write_distinct(tmp_path)
    ds = fb.load_dataset(path, split="train")
    stream = (ds.shuffle(1) if shuffle else ds).batches(1000, memory_limit=48 * MIB)
    assert sum(len(batch) for batch in stream) == 20_000
    assert stream.stats()["bytes_fetched"] <= path.stat().st_size
    assert not recwarn.list


# Datasets that are alike are warned of once.
@pytest.mark.parametrize(("shuffle", "num_rows"), [(False, 20_000), (True, 20_100)])
def test_bytes_that_many_parts_need_are_warned_of(tmp_path, shuffle, num_rows):
    path = write_distinct(tmp_path, num_rows)
    ds = fb.load_dataset(path, split="train")
    stream = (ds.shuffle(1) if shuffle else ds).batches(100, memory_limit=16 * MIB)
    wanted = (
        r"row group 0 of `.*dictionaries-True\.parquet` is read in (\d+) parts .*memory_limit \(16777216 bytes\), "
        r"which fetch (\d+) bytes where (\d+) are wanted: each needs the dictionaries .*`use_dictionary=`"
    )
    with pytest.warns(fb.PerformanceWarning, match=wanted) as warned:
        assert sum(len(batch) for batch in stream) == num_rows
    assert warned[0].filename == __file__
    _, fetched, needed = map(int, re.search(wanted, str(warned[0].message)).groups())
    assert 1.5 * needed <= fetched < 3 * needed
    assert stream.stats()["bytes_fetched"] == pytest.approx(fetched, rel=0.05)


def test_parts_without_dictionaries_are_not_warned_of(tmp_path, recwarn):
    path = write_distinct(tmp_path, use_dictionary=False)
    stream = fb.load_dataset(path, split="train").batches(100, memory_limit=16 * MIB)
    assert sum(len(batch) for batch in stream) == 20_000
    assert stream.stats()["bytes_fetched"] < 1.5 * path.stat().st_size
    assert not recwarn.list


def test_a_page_index_is_not_warned_of(row_groups, recwarn):
    for batch in fb.load_dataset(row_groups["tokens"][0], split="train").shuffle(1).batches(8, memory_limit=LIMIT):
        del batch
        break
    assert not recwarn.list


@pytest.mark.filterwarnings("ignore::forebay.PerformanceWarning")
def test_what_fits_into_less_memory_fits_into_more(tmp_path):
    texts = pa.DictionaryArray.from_arrays(pa.array(np.arange(2000) % 3, pa.int32()), [c * 100_000 for c in "abc"])
    table = pa.table({"id": np.arange(2000), "text": texts})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False, dictionary_pagesize_limit=1 << 30)
    ds = fb.load_dataset(tmp_path, split="train").shuffle(1)
    for limit in (26_000_000, 27_000_000, 60_000_000, 190_000_000, 250_000_000):
        stream = ds.batches(10, memory_limit=limit)
        assert sum(len(batch) for batch in stream) == 2000
        assert stream.stats()["peak_memory_bytes"] <= limit


# Its parts are read from the same bytes.
@pytest.mark.filterwarnings("ignore:row group .* needs .* no page index:forebay.PerformanceWarning")
@pytest.mark.parametrize("shuffle", [False, True])
def test_more_text_than_offsets_count_is_read_in_parts_however_much_memory_there_is(tmp_path, shuffle):
    texts = [letter * MIB for letter in "abc"]
    numbers = np.arange(2100) % 3
    column = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), texts)
    path = tmp_path / "x.parquet"
    settings = {"store_schema": False, "dictionary_pagesize_limit": 1 << 30}
    pq.write_table(pa.table({"row": np.arange(2100), "text": column}), path, **settings)
    ds = fb.load_dataset(path, split="train")
    read = 0
    for batch in map(pa.record_batch, (ds.shuffle(1) if shuffle else ds).batches(50, memory_limit=8 << 30)):
        assert [text.as_py()[0] for text in batch["text"]] == ["abc"[row % 3] for row in batch["row"].to_pylist()]
        read += batch["text"].nbytes
    assert read > 2 << 30


def test_a_page_that_is_larger_than_the_limit_is_no_damage_and_says_what_it_takes(tmp_path):
    column = pa.array([bytes(1_000_000)] * 40, pa.binary())
    path = tmp_path / "page.parquet"
    pq.write_table(pa.table({"x": column}), path, compression="zstd", use_dictionary=False)

    def read(memory_limit):
        stream = fb.load_dataset(str(path), split="train").batches(4, memory_limit=memory_limit)
        return pa.Table.from_batches(pa.record_batch(batch) for batch in stream).column("x")

    with pytest.warns(fb.PerformanceWarning), pytest.raises(fb.MemoryLimitError, match="row group 0 of") as refused:
        read(20 << 20)
    needed = int(re.search(r"needs (\d+) bytes", str(refused.value))[1])
    assert read(needed).combine_chunks() == column


LONG = """
import gc
import pathlib
import sys

import forebay as fb
import torch


def status(name):
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


ds, size = fb.load_dataset(sys.argv[1], split="train"), (int(sys.argv[2]), int(sys.argv[3]))
for batch in ds.select_columns(["id"]).to_torch(1):
    break
del batch
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
for batch in ds.to_torch(1, decode={"image": fb.Image(size)}, num_threads=1):
    assert batch["image"].shape == (1, 3, *size)
print(status("VmHWM") - before)
"""


@pytest.mark.parametrize(
    ("extent", "size"),
    [
        ((1_500_000, 1), (224, 224)),
        ((1, 1_500_000), (224, 224)),
        ((60_000, 1), (16_384, 1)),
        ((30_000, 100), (3000, 9)),
    ],
)
def test_images_of_any_shape_take_what_their_pixels_do(extent, size, tmp_path):
    """An image has two sizes between its own and that of the result, of which one may be much larger than both."""
    width, height = extent
    body = raw_png([bytes(width)] * height, width, height, 8, 0)
    pq.write_table(pa.table({"id": [0], "image": [body]}), tmp_path / "x.parquet")
    used = int(run_python(LONG, tmp_path, *size))
    promised = 10 * width * height + 30 * (width + height) + 8 * size[0] * size[1]
    assert used <= promised + NOISE, f"{used / MIB:.0f} MiB, and {promised / MIB:.0f} MiB are promised"
