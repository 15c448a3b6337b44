"""How requests are made: beside each other, fewer when a store refuses, and as `explain` tells."""

from __future__ import annotations

import contextlib
import http.server
import pickle
import re
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 4000
GROUP_ROWS = 50
FIRST_CONCURRENCY = 64
PAGED_ROWS = 8000


class Server(http.server.ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 512
    daemon_threads = True


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one object after a delay, and refuses requests as long as there are refusals left."""

    protocol_version = "HTTP/1.1"
    body: ClassVar[bytes]
    refusals: ClassVar[list[int]]
    delay: ClassVar[list[float]]
    sent: ClassVar[list[int]]

    def do_GET(self) -> None:
        time.sleep(self.delay[0])
        if self.refusals:
            self.send_response(self.refusals.pop())
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"])
        size = len(self.body)
        first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.sent.append(last + 1 - first)
        self.wfile.write(self.body[first : last + 1])

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def served(body: bytes, **lists: list[Any]) -> Iterator[str]:
    """Serves an object as long as it is entered, with the lists of a `Handler`."""
    handler = type("OfTest", (Handler,), {"body": body, **lists})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x.parquet"
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An object of many row groups, each with a column of its own kilobytes."""
    path = tmp_path / "x.parquet"
    table = pa.table({"id": range(NUM_ROWS), "text": [f"{row:0800}" for row in range(NUM_ROWS)]})
    pq.write_table(table, path, row_group_size=GROUP_ROWS, use_dictionary=False, compression="none")
    return path


@pytest.fixture
def refusals() -> list[int]:
    """Statuses of the next answers, from the last on."""
    return []


@pytest.fixture
def delay() -> list[float]:
    """Seconds before an answer begins."""
    return [0.0]


@pytest.fixture
def url(path: Path, refusals: list[int], delay: list[float]) -> Iterator[str]:
    with served(path.read_bytes(), refusals=refusals, delay=delay, sent=[]) as url:
        yield url


def ids(ds: fb.Dataset) -> list[int]:
    return pa.table(ds.select_columns("id"))["id"].to_pylist()


def known(ds: fb.Dataset) -> dict[str, float]:
    (store,) = ds.explain()["stores"].values()
    return store


@pytest.mark.parametrize("condition", ["id >= 0", "id % 2 = 0", None])
def test_a_head_reads_the_first_rows_and_nothing_behind_them(path, refusals, delay, condition):
    """Also where it is known which rows are kept, and a stream would read ahead."""
    sent = []
    with served(path.read_bytes(), refusals=refusals, delay=delay, sent=sent) as url:
        ds = fb.load_dataset(url, split="train", storage_options={"round_trip_bytes": "0"})
        ds = ds if condition is None else ds.filter(condition)
        assert len(ds) > NUM_ROWS / 3
        sent.clear()
        assert pa.record_batch(ds.head(3))["id"].to_pylist() == ([0, 2, 4] if condition == "id % 2 = 0" else [0, 1, 2])
    assert 0 < sum(sent) < 100_000 < path.stat().st_size / 10


@pytest.mark.parametrize("status", [503, 429])
def test_a_store_that_refuses_for_a_while_is_asked_less_and_everything_arrives(url, refusals, status):
    ds = fb.load_dataset(url, split="train")
    assert known(ds)["concurrency"] == FIRST_CONCURRENCY
    refusals += [status] * 12
    stream = ds.batches(500, rank=0, world_size=1)
    assert [row for batch in stream for row in pa.record_batch(batch)["id"].to_pylist()] == list(range(NUM_ROWS))
    assert stream.stats()["retries"] >= 12
    assert known(ds)["concurrency"] < FIRST_CONCURRENCY


def test_all_that_reads_a_store_shares_what_it_has_shown(url, refusals):
    first, second = fb.load_dataset(url, split="train"), fb.load_dataset(url, split="train")
    refusals += [503] * 5
    assert len(ids(first)) == NUM_ROWS
    assert known(first)["concurrency"] < FIRST_CONCURRENCY
    assert known(second) == known(first)


def test_other_errors_of_a_server_are_no_reason_to_ask_less(url, refusals):
    ds = fb.load_dataset(url, split="train")
    refusals += [500] * 5
    stream = ds.batches(500, rank=0, world_size=1)
    assert sum(batch.num_rows for batch in stream) == NUM_ROWS
    assert stream.stats()["retries"] >= 5
    assert known(ds)["concurrency"] >= FIRST_CONCURRENCY


def test_the_time_to_the_first_byte_is_measured(url, delay):
    ds = fb.load_dataset(url, split="train")
    assert "seconds_to_first_byte" not in known(ds), "one request tells nothing"
    delay[0] = 0.05
    assert len(ids(ds)) == NUM_ROWS
    assert known(ds)["seconds_to_first_byte"] >= 0.05


@pytest.fixture
def paged(tmp_path: Path) -> bytes:
    """An object of 8 MB in small pages, with a number that tells nobody where its rows are."""
    path = tmp_path / "paged.parquet"
    table = pa.table(
        {
            "mixed": [row * 2711 % PAGED_ROWS for row in range(PAGED_ROWS)],
            "text": [f"{row:01000}" for row in range(PAGED_ROWS)],
        }
    )
    pq.write_table(
        table,
        path,
        row_group_size=PAGED_ROWS // 4,
        write_batch_size=16,
        data_page_size=16 << 10,
        use_dictionary=False,
        compression="none",
        write_page_index=True,
    )
    return path.read_bytes()


@pytest.mark.parametrize("where", ["mixed % 2000 = 17", "mixed = 5 OR mixed = 4100", "mixed < 3", "mixed > 7000"])
def test_who_pays_for_bytes_reads_only_pages_that_hold_rows(paged, where):
    sent: list[int] = []
    with served(paged, refusals=[], delay=[0.0], sent=sent) as url:
        found = {}
        for worth in ("64 MiB", "0"):
            ds = fb.load_dataset(url, split="train", storage_options={"round_trip_bytes": worth})
            sent.clear()
            read = ds.filter(where)
            rows = pa.table(read)
            facts = read.explain()
            needed = facts["payload_bytes"] + facts["stages"]["predicates"]["bytes_wanted"]
            found[worth] = (sum(sent), needed, rows["text"].to_pylist())
    (most, _, rows), (least, needed, rows_of_pages) = found["64 MiB"], found["0"]
    assert rows_of_pages == rows
    assert least <= 1.2 * needed
    assert least <= most


def test_a_round_trip_is_worth_a_number_of_bytes(url):
    with pytest.raises(fb.SettingError, match="`round_trip_bytes`: expected a number of bytes such as `0` or `16 MiB`"):
        fb.load_dataset(url, split="train", storage_options={"round_trip_bytes": "much"})


def test_an_analysis_measures_what_was_estimated(path):
    kept = fb.load_dataset(path, split="train").filter("id % 500 = 3 AND text <> ''")
    facts = kept.explain(analyze=True)
    measured = facts["measured"]
    assert measured["rows"] == facts["rows_kept"] == NUM_ROWS // 500
    assert measured["requests"] == facts["payload_requests"]
    assert measured["bytes_wanted"] == facts["payload_bytes"]
    assert measured["bytes_fetched"] == facts["payload_bytes_fetched"]
    assert measured["seconds"] >= measured["seconds_fetching"] > 0
    assert "measured" not in kept.explain()


def test_the_chain_of_requests_does_not_grow_with_row_groups(path):
    ds = fb.load_dataset(path, split="train")
    facts = ds.filter("id % 7 = 3 AND text LIKE '%5'").explain()
    stages = facts["stages"]
    assert stages["footers"]["depth"] == 1
    assert facts["depth"] == sum(stage["depth"] for stage in stages.values()) + 1
    assert facts["depth"] <= 2 + stages["footers"]["depth"] + ("indexes" in stages)
    assert ds.filter("id < 0").explain()["depth"] == 1, "nothing but the footer is read"


def test_time_is_told_by_stage(path):
    facts = fb.load_dataset(path, split="train").filter("id % 7 = 3").explain()
    seconds = facts["seconds"]
    assert set(seconds) == {"listing", "opening", "pruning", "selection", "planning"}
    assert seconds["listing"] <= seconds["opening"]
    assert seconds["pruning"] <= seconds["selection"]
    assert facts["stages"]["predicates"]["seconds"] > 0


def test_what_is_not_known_is_not_told(path):
    kept = fb.load_dataset(path, split="train").filter("id % 7 = 3")
    assert len(kept) > 0
    facts = pickle.loads(pickle.dumps(kept)).explain()
    assert facts["rows_kept"] == len(kept)
    absent = {"row_groups_pruned", "row_groups_read", "row_groups_empty"}
    assert not absent & facts.keys(), "the selection came from elsewhere"
    assert "selection" not in facts["seconds"]
    assert "listing" not in facts["seconds"]
    assert "selection   made elsewhere" in str(facts)


def test_a_query_tells_its_requests_and_time_and_nothing_of_row_groups(path):
    facts = fb.load_dataset(path, split="train").sql("SELECT * FROM dataset ORDER BY id % 100 LIMIT 50").explain()
    assert facts["rows_kept"] == 50
    assert "row_groups_pruned" not in facts
    assert facts["seconds"]["selection"] > 0
    assert re.search(r"selection .*, by a query; .* s\n", str(facts))
    assert facts["selection_requests"] > 0
    assert facts["stages"]["predicates"]["requests"] == facts["selection_requests"]


def test_an_explanation_tells_requests_and_time_in_words(path):
    text = str(fb.load_dataset(path, split="train").filter("id % 500 = 3").explain(analyze=True))
    names = [line.split("  ")[0] for line in text.splitlines()]
    expected = ["rows", "row groups", "opening", "selection", "payload", "depth", "store", "order", "measured"]
    assert names == [*expected, "measured"]
    assert "3 round trips in sequence: 1 for footers, 1 for predicates, 1 for the payload" in text
    assert re.search(r"measured +8 rows, .* in \d+ requests?, of which .* in gaps; 0 retries", text)
