"""`stats` and `bottleneck`: what a loop waits for."""

from __future__ import annotations

import asyncio
import time

import functions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay import bottleneck

QUIET = {
    "batches": 10,
    "rows": 1000,
    "seconds": 10.0,
    "seconds_waited": 5.0,
    "seconds_waited_for_store": 0.0,
    "seconds_waited_for_memory": 0.0,
    "seconds_waited_for_decoding": 0.0,
    "seconds_waited_for_gathering": 0.0,
    "seconds_fetching": 4.0,
    "seconds_decoding": 2.0,
    "bytes_fetched": 400 << 20,
    "bytes_decoded": 800 << 20,
    "requests": 60,
    "retries_throttled": 0,
    "retries_failed": 0,
    "retries_broken": 0,
    "retries_stalled": 0,
    "peak_memory_bytes": 0,
    "rows_evicted": 0,
}


@pytest.fixture
def ds(tmp_path):
    pq.write_table(pa.table({"id": range(50_000)}), tmp_path / "x.parquet", row_group_size=5000)
    return fb.load_dataset(tmp_path, split="train")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            {"seconds_waited_for_store": 4.2, "seconds_waited_for_decoding": 0.8},
            "the store: 84% of waiting was for bytes",
        ),
        ({"seconds_waited_for_store": 5.0}, "at 100 MiB/s; select fewer columns"),
        ({"seconds_waited_for_store": 5.0, "bytes_fetched": 2 << 20}, "at 512 KiB/s; select fewer columns"),
        (
            {"seconds_waited_for_store": 5.0, "retries_throttled": 30, "retries_broken": 10},
            "at 100 MiB/s; made again: 30 that it refused (429, 503), 10 that broke off, of 100 requests; select fewer "
            "columns, or move closer, or ask it for less at once, by fewer processes; the loop",
        ),
        (
            {"seconds_waited_for_store": 5.0, "retries_stalled": 1},
            "made again: 1 that stalled, of 61 requests; select fewer columns, or move closer; the loop",
        ),
        ({"seconds_waited_for_store": 5.0, "peak_memory_bytes": 1 << 30}, "raise memory_limit"),
        ({"seconds_waited_for_memory": 5.0}, "memory: 100% of waiting was for room within 1,024 MiB; raise"),
        ({"seconds_waited_for_memory": 5.0, "rows_evicted": 1234}, "and 1,234 rows were read again"),
        ({"seconds_waited_for_decoding": 5.0}, "decoding: 100% of waiting was for it, at 400 MiB/s a core"),
        ({"seconds_waited_for_decoding": 5.0, "rows_evicted": 900}, "decoding: 100% of waiting"),
        (
            {"seconds_waited_for_decoding": 5.0, "rows_evicted": 53_000},
            "memory: rows were read 54.0 times, 53,000 of them again for lack of room within 1,024 MiB; raise memory",
        ),
        ({"seconds_waited_for_store": 5.0, "rows_evicted": 1000}, "memory: rows were read 2.0 times"),
        ({"seconds_waited_for_gathering": 5.0}, "gathering: 100%"),
        ({"seconds_waited_for_functions": 4.0, "seconds_waited_for_store": 1.0}, "functions: 80% of waiting was for"),
        ({"seconds_waited_for_functions": 2.0, "seconds_waited_for_store": 1e-6}, "the store: 60% of waiting was"),
        ({"seconds_waited": 0.1}, "the loop itself: it waited for 1.0% of 10.0 s"),
        ({"batches": 0}, "nothing yet"),
    ],
)
def test_the_largest_cause_of_waiting_is_named(seen, said):
    assert said in bottleneck.sentence(QUIET | seen, 1 << 30)


def test_waiting_has_a_cause(ds):
    stream = ds.batches(1000)
    assert stream.bottleneck().startswith("nothing yet")
    for _ in stream:
        pass
    stats = stream.stats()
    causes = sum(value for name, value in stats.items() if name.startswith("seconds_waited_for_"))
    # The loop also waits for the lock that says that there is nothing to wait for.
    assert 0 < causes <= stats["seconds_waited"] <= stats["seconds"]
    assert stats["bytes_decoded"] >= 50_000 * 8
    assert isinstance(stream.bottleneck(), str)


def test_a_loop_that_waits_for_rows_to_be_read_again_waits_for_memory(tmp_path):
    texts = [f"{row:04}" * 512 for row in range(8000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=500, use_dictionary=False)
    stream = fb.load_dataset(tmp_path, split="train").shuffle(1).batches(64, memory_limit=8 << 20)
    with pytest.warns(fb.PerformanceWarning):
        assert sum(batch.num_rows for batch in stream) == 8000
    assert stream.stats()["rows_evicted"] > 8000
    assert "raise memory_limit or lower shuffle_bytes" in stream.bottleneck()


def test_the_time_stops_at_the_end(ds):
    stream = ds.batches(1000)
    for _ in stream:
        pass
    seconds = stream.stats()["seconds"]
    time.sleep(0.02)
    assert stream.stats()["seconds"] == seconds


def test_what_the_loop_has_not_asked_for_is_not_delivered(ds):
    stream = ds.batches(700)
    taken = iter(stream)
    most_ahead = 0
    for number in range(1, 20):
        assert len(next(taken)) == 700
        # Others are there meanwhile, and are taken ahead.
        time.sleep(0.002)
        stats = stream.stats()
        assert (stats["batches"], stats["rows"]) == (number, 700 * number)
        assert stream.state_dict()["position"] == 700 * number
        most_ahead = max(most_ahead, stream._active.stream.stats()["batches"] - number)
    assert most_ahead > 0, "batches that were there were taken"
    taken.close()
    assert stream.stats()["rows"] == 700 * 19


@pytest.mark.parametrize("workers", [{}, {"num_threads": 1}, {"num_threads": 3}, {"num_proc": 1}], ids=str)
def test_what_functions_have_in_hand_is_not_delivered(ds, workers):
    mapped = ds.map(functions.timed, batched=True, pool=fb.PoolOptions(prefetch=2), **workers)
    stream = mapped.to_torch(2500)
    assert stream.bottleneck().startswith("nothing yet")
    seconds = 0.0
    for number, batch in enumerate(stream, 1):
        stats = stream.stats()
        assert (stats["batches"], stats["rows"]) == (number, 2500 * number)
        assert stats["batches"] + stats["batches_ready"] <= 20
        seconds += batch["seconds"][0]
        # The first one is not given to a worker before it is asked for.
        if not workers or number == 1:
            assert seconds <= stats["seconds_waited"]
        if not workers:
            assert seconds <= stats["seconds_waited_for_functions"]
        assert 0 <= stats["seconds_waited_for_functions"] <= stats["seconds_waited"] <= stats["seconds"]
    assert number == 20
    after = stream.stats()
    assert (after["batches"], after["batches_ready"]) == (20, 0)
    assert stream.stats() == after


def test_waiting_for_functions_is_counted_in_an_event_loop(ds):
    async def read():
        return [batch async for batch in stream]

    stream = ds.map(functions.timed, batched=True, num_threads=1).to_torch(2500)
    batches = asyncio.run(read())
    stats = stream.stats()
    assert stats["batches"] == len(batches) == 20
    assert batches[0]["seconds"][0] <= stats["seconds_waited"] <= stats["seconds"]
    assert 0 < stats["seconds_waited_for_functions"] <= stats["seconds_waited"]


def test_no_more_batches_are_taken_than_are_asked_for(ds):
    stream = ds.batches(100)
    native = stream.reader.stream(0, stream._native_share())
    position = 0
    for most_batches, most_bytes, expected in ((2, 1 << 30, 2), (8, 0, 1), (1, 1 << 30, 1), (0, 0, 1)):
        while native.stats()["batches_ready"] < 3:
            time.sleep(0.001)
        taken = native.take(most_batches, most_bytes)
        assert [len(batch) for batch, _, _ in taken] == [100] * expected
        assert [behind for _, behind, _ in taken] == [position + 100 * (index + 1) for index in range(expected)]
        position += 100 * expected
    native.close()


@pytest.mark.parametrize("pause", [0, 0.02])
def test_batches_before_an_error_come_before_it(tmp_path, pause):
    ids = pa.array(range(4000), pa.int64())
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": ids}), path, row_group_size=1000, compression="none", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(3).column(0)
    body = bytearray(path.read_bytes())
    body[column.data_page_offset : column.data_page_offset + 8] = b"\xff" * 8
    path.write_bytes(body)
    stream = fb.load_dataset(tmp_path, split="train").batches(100)
    seen = []

    def read():
        for batch in stream:
            seen.extend(pa.record_batch(batch)["id"].to_pylist())
            time.sleep(pause)

    with pytest.raises(fb.DataError, match="row group 3"):
        read()
    assert seen == list(range(len(seen)))
    assert stream.state_dict()["position"] == stream.stats()["rows"] == len(seen)
    # That is no end: the iterator says so, and another one finds the error again.
    batches = iter(stream)
    with pytest.raises(fb.DataError, match="row group 3"):
        list(batches)
    for _ in range(2):
        with pytest.raises(fb.ClosedError, match="the iteration was ended by `DataError`; load what `state_dict`"):
            next(batches)
    with pytest.raises(fb.DataError, match="row group 3"):
        read()
