"""Rows that cannot be read: an error, or holes that are counted and listed and move nothing."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import random
import re
from typing import TYPE_CHECKING, Any

import functions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fault_proxy import Fault, FaultProxy
from hostile import (
    COLUMNS,
    COMPRESSED_SIZE,
    DATA_OFFSET,
    I32,
    I64,
    LIST,
    METADATA,
    OFFSET_INDEX_LENGTH,
    OFFSET_INDEX_OFFSET,
    ROW_GROUPS,
    STRUCT,
    Items,
    Struct,
    encode,
    join,
    parquet,
    split,
)
from hub_data import ids_file
from programs import run_python
from rows import ids
from torchdata.stateful_dataloader import StatefulDataLoader
from upstreams import Objects

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 2000
ROW_GROUP = 200
PAGE = 10
"""Rows of a page of texts."""
DAMAGED = (2, 3, 7)
"""Row groups that cannot be read: two neighbours and one alone."""

pytestmark = pytest.mark.filterwarnings("ignore::forebay.SkippedRowsWarning")


def write(
    folder: Path, damaged: tuple[int, ...], *, row_group: int = ROW_GROUP, num_rows: int = NUM_ROWS, index: bool = True
) -> Path:
    """Writes a file of which some row groups have no page of texts that is not damaged, which checksums tell."""
    draw = random.Random(5)
    table = pa.table(
        {
            "id": pa.array(range(num_rows), pa.int64()),
            "text": [draw.randbytes(100).hex() for _ in range(num_rows)],
            "tags": pa.array([[str(n)] * (n % 3) for n in range(num_rows)], pa.list_(pa.string())),
            "kind": pa.array(["ab"[n % 2] for n in range(num_rows)]).dictionary_encode(),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "x.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=row_group,
        write_page_checksum=True,
        write_page_index=index,
        data_page_size=2000,
        write_batch_size=PAGE,
        use_dictionary=["kind"],
        compression="none",
    )
    damage(path, [(number, at / 100) for number in damaged for at in range(100)])
    return path


def damage(path: Path, places: list[tuple[int, float]]) -> None:
    """Changes bytes of the texts of row groups, each so far in them."""
    metadata = pq.read_metadata(path)
    body = bytearray(path.read_bytes())
    for number, share in places:
        chunk = metadata.row_group(number).column(1)
        body[chunk.data_page_offset + int(chunk.total_compressed_size * share)] ^= 0xFF
    path.write_bytes(body)


def opened(path: Path) -> fb.Dataset:
    return fb.load_dataset(str(path), split="train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("skipped")


@pytest.fixture(scope="module")
def sound(folder: Path) -> fb.Dataset:
    return opened(write(folder / "sound", ()))


@pytest.fixture(scope="module")
def damaged(folder: Path) -> fb.Dataset:
    return opened(write(folder / "damaged", DAMAGED))


ORDERS = {
    "unshuffled": lambda dataset: dataset,
    "lanes": lambda dataset: dataset.shuffle(1, num_lanes=6, window_rows=20),
    "one permutation": lambda dataset: dataset.shuffle(3),
    "filtered": lambda dataset: dataset.filter("id % 3 <> 0").shuffle(2, num_lanes=5, window_rows=9),
}


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> Any:
    return ORDERS[request.param]


def is_missing(row: int) -> bool:
    """Tells whether a row is of a damaged row group."""
    return row // ROW_GROUP in DAMAGED


def missing_of(dataset: fb.Dataset, holes: list[dict[str, Any]]) -> set[int]:
    """Returns the rows that holes name; each row group is one span."""
    kept: dict[int, list[int]] = {}
    for batch in read(dataset.select_columns("id").batches(100)):
        for row in sorted(batch):
            kept.setdefault(row // ROW_GROUP, []).append(row)
    numbered = {number: sorted(rows) for number, rows in kept.items()}
    return {row for hole in holes for row in numbered[hole["row_group"]][hole["start"] : hole["end"]]}


def skipping(dataset: fb.Dataset, batch_size: int = 32, **options: Any) -> fb.Stream[Any]:
    return dataset.batches(batch_size, **{"on_error": "skip", "max_skipped": NUM_ROWS, **options})


def read(stream: fb.Stream[Any]) -> list[list[int]]:
    return [ids(batch) for batch in stream]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def test_the_first_row_that_cannot_be_read_is_an_error_unless_asked_otherwise(damaged: fb.Dataset) -> None:
    with pytest.raises(fb.DataError, match=rf"row group ({'|'.join(map(str, DAMAGED))}) of"):
        read(damaged.batches(32))


def test_what_can_be_read_keeps_its_place(sound: fb.Dataset, damaged: fb.Dataset, order: Any) -> None:
    stream = skipping(order(damaged))
    got = read(stream)
    missing = missing_of(order(sound), stream.holes)
    expected = [[row for row in batch if row not in missing] for batch in read(order(sound).batches(32))]
    assert got == [batch for batch in expected if batch]
    assert stream.stats()["rows_skipped"] == len(missing) > 300
    assert all(map(is_missing, missing))
    assert {hole["row_group"] for hole in stream.holes} == set(DAMAGED)
    assert all("column `text`" in hole["cause"] and hole["object"].endswith("x.parquet") for hole in stream.holes)


def test_ranks_step_together_and_keep_their_rows(sound: fb.Dataset, damaged: fb.Dataset, order: Any) -> None:
    for rank in range(3):
        expected = read(order(sound).batches(16, rank=rank, world_size=3))
        stream = skipping(order(damaged), 16, rank=rank, world_size=3)
        got = read(stream)
        missing = missing_of(order(sound), stream.holes)
        assert got == [[row for row in batch if row not in missing] for batch in expected]


def test_a_resume_after_any_batch_delivers_exactly_the_rest(damaged: fb.Dataset, order: Any) -> None:
    whole = read(skipping(order(damaged), 64))
    for taken in range(len(whole) + 1):
        stream = skipping(order(damaged), 64)
        batches = iter(stream)
        for expected in whole[:taken]:
            assert ids(next(batches)) == expected
        state = json.loads(json.dumps(stream.state_dict()))
        again = skipping(order(damaged), 64)
        again.load_state_dict(state)
        assert read(again) == whole[taken:]
        assert {hole["row_group"] for hole in again.holes} == set(DAMAGED)


@pytest.mark.parametrize("seed", range(6))
def test_a_row_drawn_twice_is_missing_only_where_it_could_not_be_read(
    sound: fb.Dataset, damaged: fb.Dataset, seed: int
) -> None:
    """Its copies may be of two lanes, of which one reads a damaged page beside it and the other does not."""

    def drawn(dataset: fb.Dataset) -> fb.Dataset:
        return dataset.shuffle(seed, num_lanes=6, window_rows=20, weights="1", num_samples=NUM_ROWS)

    stream = skipping(drawn(damaged), 64)
    whole = read(stream)
    num_missing = NUM_ROWS - len(flat(whole))
    assert stream.stats()["rows_skipped"] == num_missing > 300
    assert sum(hole["end"] - hole["start"] for hole in stream.holes) == num_missing
    expected = list(flat(read(drawn(sound).batches(64))))
    rest = iter(expected)
    assert all(row in rest for row in flat(whole)), "in the order in which they were drawn"
    for taken in range(0, len(whole) + 1, 4):
        stream = skipping(drawn(damaged), 64)
        batches = iter(stream)
        assert [ids(next(batches)) for _ in range(taken)] == whole[:taken]
        again = skipping(drawn(damaged), 64)
        again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert read(again) == whole[taken:]
    # The holes of one epoch are none of another, which has other draws.
    other = stream.state_dict() | {"epoch": 1, "holes": [stream.holes[0] | {"end": NUM_ROWS}]}
    with pytest.raises(fb.StateError, match="holes: expected rows of span"):
        skipping(drawn(damaged), 64).load_state_dict(other)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_a_padding_row_that_cannot_be_read_takes_no_others_with_it(folder: Path, world_size: int) -> None:
    """It is read apart, with all its span, of which each lane reads only a part."""
    path = folder / "padded" / "x.parquet"
    dataset = opened(path if path.exists() else write(path.parent, (2,), num_rows=997))
    for order in (dataset, dataset.shuffle(1, num_lanes=4, window_rows=9)):
        options: dict[str, Any] = {"remainder": "pad", "world_size": world_size}
        streams = [skipping(order, 16, rank=rank, **options) for rank in range(world_size)]
        running = [iter(stream) for stream in streams]
        whole = [[ids(batch) for batch in batches] for batches in running]
        missing = set(range(997)) - {row for batches in whole for row in flat(batches)}
        assert all(row // ROW_GROUP == 2 for row in missing)
        found = {(hole["span"], hole["start"], hole["end"]) for stream in streams for hole in stream.holes}
        assert sum(end - start for _, start, end in found) == len(missing)
        for taken in range(len(whole[0])):
            streams = [skipping(order, 16, rank=rank, **options) for rank in range(world_size)]
            seen = [[ids(next(batches)) for _ in range(taken)] for batches in map(iter, streams)]
            assert seen == [batches[:taken] for batches in whole]
            states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
            rest = []
            for rank in range(world_size):
                again = skipping(order, 16, rank=rank, **options)
                again.load_state_dict(fb.cursor(states))
                rest += read(again)
            assert {row for batch in flat(seen) + rest for row in batch} == set(range(997)) - missing


def test_a_last_pass_without_any_row_is_over_like_another(damaged: fb.Dataset) -> None:
    lost = damaged.select(range(DAMAGED[0] * ROW_GROUP, (DAMAGED[0] + 1) * ROW_GROUP))
    stream = skipping(lost.repeat(2))
    assert read(stream) == []
    later = skipping(lost.repeat(2))
    later.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert len(later) == 0
    assert later.state_dict()["epoch"] == 1


def test_passes_and_steps_have_the_holes_of_each_pass(damaged: fb.Dataset, order: Any) -> None:
    ordered = order(damaged)
    passes = []
    for epoch in range(3):
        stream = skipping(ordered, 64)
        stream.set_epoch(epoch)
        passes += read(stream)
    assert read(skipping(ordered.repeat(3), 64)) == passes
    stopped = skipping(ordered.repeat(3), 64)
    batches = iter(stopped)
    for cut in range(len(passes)):
        if cut % 9 == 0:
            later = skipping(ordered.repeat(3), 64)
            later.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
            assert read(later) == passes[cut:]
        next(batches)
    # Batches of which nothing is left are steps, too.
    stepped = skipping(ordered, 64, steps_per_epoch=12)
    found = []
    for epoch in range(8):
        stepped.set_epoch(epoch)
        found += read(stepped)
    assert found[: len(passes)] == passes


def test_what_a_state_lists_is_not_read_again(sound: fb.Dataset, damaged: fb.Dataset, order: Any) -> None:
    stream = skipping(order(damaged))
    whole = read(stream)
    stream.set_epoch(0)
    state = stream.state_dict() | {"position": 0, "fingerprint": sound.batches(1).state_dict()["fingerprint"]}
    healed = order(sound).batches(32)
    healed.load_state_dict(state)
    # The rows could be read by now, but this is the rest of an epoch that has gone on without them.
    assert [batch for batch in read(healed) if batch] == whole
    assert healed.state_dict()["holes"] == state["holes"]
    healed.set_epoch(1)
    assert "holes" not in healed.state_dict()
    assert len(flat(read(healed))) == order(sound).num_rows


def test_persistent_workers_know_what_a_state_lists(sound: fb.Dataset, damaged: fb.Dataset) -> None:
    stream = skipping(damaged)
    whole = read(stream)
    stream.set_epoch(0)
    state = stream.state_dict() | {"position": 0, "fingerprint": sound.batches(1).state_dict()["fingerprint"]}
    healed = sound.to_torch(32)
    loader = torch.utils.data.DataLoader(healed, batch_size=None, num_workers=2, persistent_workers=True)

    def rows() -> list[list[int]]:
        return [batch["id"].tolist() for batch in loader]

    assert flat(rows()) == list(range(NUM_ROWS))
    for _ in range(2):
        healed.load_state_dict(state)
        assert [batch for batch in rows() if batch] == whole
        # Of that loop alone.
        assert flat(rows()) == list(range(NUM_ROWS))
    healed.load_state_dict(state)
    assert [batch for batch in rows() if batch] == whole
    assert flat([batch["id"].tolist() for batch in healed]) == list(range(NUM_ROWS)), "nor here"


# torchdata calls what newer torch deprecates.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_persistent_workers_know_nothing_of_holes_of_the_epoch_before(damaged: fb.Dataset) -> None:
    stream = damaged.to_torch(100, on_error="skip", max_skipped=NUM_ROWS)
    loader = StatefulDataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    for _ in loader:
        pass
    stream.set_epoch(1)
    running = iter(loader)
    state = fb.cursor(loader.state_dict())
    assert (state["epoch"], state["position"]) == (1, 0)
    assert "holes" not in state
    del running


# torchdata calls what newer torch deprecates.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("steps", [None, 60])
def test_a_worker_that_is_done_with_a_pass_leaves_its_holes_behind(damaged: fb.Dataset, steps: int | None) -> None:
    drawn = damaged.shuffle(1, weights="1.0 + id % 3", num_samples=600)
    ds = drawn if steps else drawn.repeat(2)

    def made() -> tuple[Any, StatefulDataLoader]:
        stream = ds.to_torch(20, on_error="skip", max_skipped=NUM_ROWS, steps_per_epoch=steps)
        return stream, StatefulDataLoader(stream, batch_size=None, num_workers=2)

    whole = [batch["id"].tolist() for batch in made()[1]]
    assert len(whole) == 60
    for cut in (1, 28, 29, 30, 31, 32, 45):
        running = iter(loader := made()[1])
        assert [next(running)["id"].tolist() for _ in range(cut)] == whole[:cut]
        state = fb.cursor(loader.state_dict())
        del running
        stream, _ = made()
        stream.load_state_dict(state)
        assert flat([batch["id"].tolist() for batch in stream]) == flat(whole[cut:]), cut


def test_a_copy_in_mid_loop_has_the_holes_of_its_position(damaged: fb.Dataset) -> None:
    stream = skipping(damaged)
    running = iter(stream)
    while not stream.holes:
        next(running)
    for duplicate in (copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))):
        known = stream.holes
        copied = duplicate(stream)
        assert copied.state_dict()["position"] == stream.state_dict()["position"]
        # The stream reads ahead meanwhile, and finds others.
        assert all(hole in copied.holes for hole in known)
        assert all(hole in stream.holes for hole in copied.holes)


def test_who_changes_what_a_stream_lists_changes_no_stream(damaged: fb.Dataset) -> None:
    stream = skipping(damaged)
    for _ in stream:
        pass
    later = skipping(damaged)
    later.load_state_dict(stream.state_dict())
    for of in (stream, later):
        for hole in (*of.holes, *of.state_dict()["holes"]):
            hole["start"] = -1
        assert of.holes
        assert all(hole["start"] >= 0 for hole in of.holes)


def test_a_position_that_was_chosen_has_no_holes_of_the_iteration_before(damaged: fb.Dataset) -> None:
    """The iteration may not have ended yet: its iterator was left, and somebody holds on to it."""
    stream = skipping(damaged.shuffle(1))
    fresh = stream.state_dict()
    running = iter(stream)
    next(running)
    while not stream.holes:
        next(running)
    inside, found = stream.state_dict(), stream.holes
    stream.set_epoch(1)
    assert stream.holes == []
    assert "holes" not in stream.state_dict()
    stream.load_state_dict(fresh)
    assert stream.state_dict() == fresh
    stream.load_state_dict(inside)
    assert stream.state_dict() == inside
    # Going on with it is where the stream stands again.
    next(running)
    assert stream.state_dict()["position"] > inside["position"]
    assert stream.holes[: len(found)] == found
    stream.set_epoch(1)
    del running
    assert "holes" not in stream.state_dict()


def test_little_memory_changes_nothing(folder: Path) -> None:
    """Row groups are read in parts, and the window does not fit: rows are read in blocks, again and again."""
    whole = opened(write(folder / "large", (), row_group=10_000, num_rows=20_000)).shuffle(7)
    broken = opened(write(folder / "large damaged", (1,), row_group=10_000, num_rows=20_000)).shuffle(7)
    stream = skipping(broken, 100, memory_limit=2 << 20, max_skipped=20_000)
    got = read(stream)
    assert stream.stats()["rows_evicted"] > 0
    expected = flat(read(whole.batches(100)))
    delivered = set(flat(got))
    assert flat(got) == [row for row in expected if row in delivered]
    missing = set(expected) - delivered
    assert 0 < len(missing) < 2000
    assert all(row >= 10_000 for row in missing)
    assert stream.stats()["rows_skipped"] == len(missing)


@pytest.mark.parametrize(("seed", "tenths"), [(0, 2), (2, 2), (1, 8), (2, 7)])
def test_a_resume_with_little_memory_leaves_out_the_same_rows(folder: Path, seed: int, tenths: int) -> None:
    """Rows of a part are read in several blocks, which begin elsewhere after a resume."""
    path = write(folder / f"blocks {seed} {tenths}", (), row_group=4000, num_rows=12_000)
    damage(path, [(0, tenths / 10)])

    def stream() -> fb.Stream[Any]:
        ordered = opened(path).shuffle(seed, num_lanes=1, window_rows=6000)
        return skipping(ordered, 200, memory_limit=1 << 20, max_skipped=4000)

    first = stream()
    batches, states = [], [first.state_dict()]
    for batch in first:
        batches.append(ids(batch))
        states.append(json.loads(json.dumps(first.state_dict())))
    assert first.stats()["rows_evicted"] > 0
    missing = set(range(12_000)) - set(flat(batches))
    assert len(missing) == PAGE == first.stats()["rows_skipped"]
    for cut in range(0, len(batches), 3):
        later = stream()
        later.load_state_dict(states[cut])
        assert read(later) == batches[cut:], cut


@pytest.mark.filterwarnings("ignore:row group .* has no page index:forebay.PerformanceWarning")
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_were_there_before_their_row_group_was_found_damaged_are_no_holes(folder: Path, seed: int) -> None:
    """Nothing tells where its pages begin. Of its rows the first block wants none behind the damaged page."""
    path = write(folder / f"no index {seed}", (), row_group=1000, num_rows=12_000, index=False)
    damage(path, [(4, 0.9)])
    ordered = opened(path).shuffle(seed, num_lanes=1, window_rows=6000)
    stream = skipping(ordered, 200, memory_limit=1 << 20, max_skipped=4000)
    missing = set(range(12_000)) - set(flat(read(stream)))
    assert stream.stats()["rows_evicted"] > 0
    assert 0 < len(missing) <= 1000
    assert stream.stats()["rows_skipped"] == len(missing)
    assert sum(hole["end"] - hole["start"] for hole in stream.holes) == len(missing)


@pytest.mark.parametrize("memory_limit", [2 << 20, 64 << 20])
def test_of_a_damaged_page_its_own_rows_are_missing(folder: Path, order: Any, memory_limit: int) -> None:
    path = folder / "pages" / "x.parquet"
    places = [(1, 0.501), (1, 0.553), (6, 0.001), (6, 0.999)]
    if not path.exists():
        damage(write(path.parent, ()), places)
    pages = {number * ROW_GROUP + int(share * ROW_GROUP) // PAGE * PAGE for number, share in places}
    expected = {row for page in pages for row in range(page, page + PAGE)}
    dataset = order(opened(path))
    kept = set(flat(read(order(opened(path)).select_columns("id").batches(100))))
    for world_size in (1, 3):
        options: dict[str, Any] = {"world_size": world_size, "memory_limit": memory_limit, "remainder": "keep"}
        streams = [skipping(dataset, 7, rank=rank, **options) for rank in range(world_size)]
        rows = [row for stream in streams for row in flat(read(stream))]
        assert len(rows) == len(set(rows))
        assert kept - set(rows) == expected & kept
        # Ranks that read of one page each find it damaged.
        holes = [hole for stream in streams for hole in stream.holes]
        assert missing_of(dataset, holes) == expected & kept
        # But each row is left out of one rank alone.
        assert sum(stream.stats()["rows_skipped"] for stream in streams) == len(expected & kept)


@pytest.mark.parametrize("column", ["text", "short", "tags", "kind", "point"])
@pytest.mark.parametrize("has_checksums", [True, False])
def test_rows_that_can_be_read_by_themselves_are_not_missing(tmp_path: Path, column: str, has_checksums: bool) -> None:
    """Without checksums a page may have a few values that are none, or no end."""
    draw = random.Random(column)
    table = pa.table(
        {
            "id": pa.array(range(1000), pa.int64()),
            "text": [chr(draw.randrange(200, 500)) * draw.randrange(9) for _ in range(1000)],
            "short": [draw.randbytes(draw.randrange(9)) for _ in range(1000)],
            "tags": [[str(n)] * (n % 3) for n in range(1000)],
            "kind": pa.array(["ab"[n % 2] * 9 for n in range(1000)]),
            "point": [{"x": n * 1.5, "name": f"é{n}"} if n % 7 else None for n in range(1000)],
        }
    )
    path = tmp_path / "x.parquet"
    options: dict[str, Any] = {"write_page_index": True, "data_page_size": 400, "write_batch_size": 20}
    options |= {"use_dictionary": ["kind"], "column_encoding": {"short": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table, path, row_group_size=500, write_page_checksum=has_checksums, **options)
    sound = path.read_bytes()
    metadata = pq.read_metadata(path)
    num_damaged = 0
    for number in range(12):
        damaged, other = (0, 1) if number % 2 else (1, 0)
        chunks = map(metadata.row_group(damaged).column, range(7))
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column]
        body = bytearray(sound)
        for chunk in draw.choices(chunks, k=2):
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            body[start + draw.randrange(chunk.total_compressed_size)] ^= 1 << draw.randrange(8)
        path.write_bytes(body)
        dataset = opened(path)
        assert len(dataset.gather(range(other * 500, other * 500 + 500))) == 500
        missing = set()
        for row in range(damaged * 500, damaged * 500 + 500):
            try:
                dataset[row]
            except fb.DataError:
                missing.add(row)
        num_damaged += bool(missing)
        rows, kept = set(range(1000)), {row for row in range(1000) if row % 3 != 1}
        filtered = dataset.filter("id % 3 <> 1").shuffle(3)
        shuffled = (dataset.shuffle(1, num_lanes=2, window_rows=200), dataset.shuffle(2, num_lanes=7))
        for ordered, wanted in [(dataset, rows), *((ordered, rows) for ordered in shuffled), (filtered, kept)]:
            stream = skipping(ordered, 50)
            assert wanted - set(flat(read(stream))) == missing & wanted
            assert stream.stats()["rows_skipped"] == len(missing & wanted)
    assert num_damaged, "some are damaged"


@pytest.mark.parametrize("memory_limit", [1 << 20, 64 << 20])
def test_rows_between_those_of_a_page_that_cannot_be_read_are_there(
    tmp_path: Path, order: Any, memory_limit: int
) -> None:
    """However many rows of the page are read at once: those of another column take more."""
    num_rows = 1200
    bad = {0, num_rows // 2, num_rows - 1}
    texts = [f"{row:05}{'~' if row in bad else '.'}" for row in range(num_rows)]
    table = pa.table({"id": range(num_rows), "text": texts, "heavy": [random.Random(5).randbytes(900)] * num_rows})
    options: dict[str, Any] = {"write_page_index": True, "data_page_size": 1 << 15, "write_batch_size": 20}
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none", **options)
    body = path.read_bytes()
    for row in bad:
        body = body.replace(f"{row:05}~".encode(), f"{row:05}".encode() + b"\xff")
    path.write_bytes(body)
    stream = skipping(order(opened(path)), 50, memory_limit=memory_limit)
    kept = {row for batch in read(order(opened(path)).select_columns("id").batches(100)) for row in batch}
    assert kept - set(flat(read(stream))) == bad & kept


SKIPPING = """
import sys
import warnings

import forebay as fb

warnings.simplefilter("ignore")
try:
    print(sum(1 for batch in fb.load_dataset(sys.argv[1], split="train").batches(10, on_error=sys.argv[2])))
except fb.DataError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_column_without_a_byte_of_its_own_is_an_error(tmp_path: Path, on_error: str) -> None:
    """It claims to begin where the next one does."""
    table = pa.table({"a": range(100), "b": range(100)})
    pages, footer = split(parquet(table, write_page_index=True, use_dictionary=False, compression="none"))
    a, b = footer[ROW_GROUPS][0][COLUMNS]
    at = b[METADATA][DATA_OFFSET]
    a[METADATA][DATA_OFFSET], a[METADATA][COMPRESSED_SIZE] = at, 0
    page = Struct({1: (I64, at), 2: (I32, 0), 3: (I64, 0)})
    index = encode(STRUCT, Struct({1: (LIST, Items(STRUCT, [page]))}))
    a[OFFSET_INDEX_OFFSET], a[OFFSET_INDEX_LENGTH] = len(pages), len(index)
    (tmp_path / "x.parquet").write_bytes(join(pages + index, footer))
    assert run_python(SKIPPING, tmp_path / "x.parquet", on_error).strip().endswith("Error")


@pytest.mark.parametrize(("first", "then"), [*itertools.permutations((2 << 20, 8 << 20, 64 << 20), 2)])
def test_a_state_holds_with_other_memory_and_other_columns(folder: Path, first: int, then: int) -> None:
    """Rows that are not shuffled are cut into what is read at once, which hangs on both."""
    row_group = 10_000
    path = folder / "cut" / "x.parquet"
    if not path.exists():
        write(path.parent, (0,), row_group=row_group, num_rows=2 * row_group)
    damaged = opened(path)
    stream = skipping(damaged, 100, memory_limit=first, max_skipped=2 * row_group)
    batches, num_taken = iter(stream), 0
    while num_taken < 3 or not stream.holes:
        next(batches)
        num_taken += 1
    state = json.loads(json.dumps(stream.state_dict()))

    def rows_of(holes: list[dict[str, Any]]) -> set[int]:
        return {row_group * hole["span"] + row for hole in holes for row in range(hole["start"], hole["end"])}

    known = rows_of(state["holes"])
    assert 0 < len(known) <= row_group
    for columns in (damaged.column_names, ["id"]):
        later = skipping(damaged.select_columns(columns), 100, memory_limit=then, max_skipped=2 * row_group)
        later.load_state_dict(state)
        got = flat(read(later))
        missing = rows_of(later.holes)
        assert got == [row for row in range(state["position"], 2 * row_group) if row not in missing]
        assert missing >= known
        assert "text" in columns or missing == known
        assert later.stats()["rows_skipped"] == len({row for row in missing if row >= state["position"]})


def test_what_is_left_out_is_counted_once_over_ranks_and_resumes(damaged: fb.Dataset, order: Any) -> None:
    ordered = order(damaged)
    for cut in (1, 9, 18, 30, 60):
        num_rows = num_skipped = 0
        first = skipping(ordered, 32)
        batches = iter(first)
        num_rows += sum(len(ids(batch)) for batch in itertools.islice(batches, cut))
        assert first.stats()["rows"] == num_rows
        num_skipped += int(first.stats()["rows_skipped"])
        assert first.state_dict()["position"] == num_rows + num_skipped
        for rank in range(3):
            later = skipping(ordered, 10, rank=rank, world_size=3, remainder="keep")
            later.load_state_dict(json.loads(json.dumps(first.state_dict())))
            num_rows += len(flat(read(later)))
            num_skipped += int(later.stats()["rows_skipped"])
        assert num_rows + num_skipped == ordered.num_rows


@pytest.mark.filterwarnings("error::forebay.SkippedRowsWarning")
def test_no_warning_is_of_rows_that_an_earlier_loop_or_another_rank_left_out(damaged: fb.Dataset) -> None:
    stream = skipping(damaged)
    batches = iter(stream)
    while stream.state_dict()["position"] < (DAMAGED[-1] + 1) * ROW_GROUP:
        next(batches)
    later = skipping(damaged)
    later.load_state_dict(stream.state_dict())
    read(later)
    assert later.holes == stream.holes
    assert later.stats()["rows_skipped"] == 0
    # Every second row of a damaged page is of the other rank, but this one meets all.
    half = skipping(damaged.take(3 * ROW_GROUP), 1, rank=1, world_size=2)
    with pytest.warns(fb.SkippedRowsWarning, match=f"{ROW_GROUP // 2} rows could not be read"):
        read(half)
    assert sum(hole["end"] - hole["start"] for hole in half.holes) == ROW_GROUP


@pytest.fixture(scope="module")
def page_damaged(folder: Path) -> Path:
    path = write(folder / "a page", ())
    damage(path, [(1, 0.501)])
    return path


def test_a_resume_needs_leave_to_skip_again_where_damaged_pages_are_read_again(page_damaged: Path) -> None:
    shuffled = opened(page_damaged).shuffle(1)
    stream = skipping(shuffled)
    read(stream)
    stream.set_epoch(0)
    state = stream.state_dict() | {"position": 320}

    def resumed(**options: Any) -> list[list[int]]:
        again = shuffled.batches(32, **options)
        again.load_state_dict(state)
        return read(again)

    with pytest.raises(fb.DataError, match="column `text` in row group"):
        resumed()
    assert resumed(on_error="skip", max_skipped=PAGE)
    with pytest.raises(fb.SkipLimitError, match=f"skipped {PAGE} rows"):
        resumed(on_error="skip", max_skipped=PAGE - 1)


def test_a_cause_is_said_once_and_without_words_of_the_decoder(page_damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(fb.DataError, match=r"in row group 1 of `[^`]*`: Page CRC checksum mismatch$"):
        read(opened(page_damaged).batches(32))
    stream = skipping(opened(page_damaged))
    read(stream)
    assert [hole["cause"].split("`: ")[1] for hole in stream.holes] == ["Page CRC checksum mismatch"]
    path = write(tmp_path, ())
    lost = opened(path)
    path.unlink()
    with pytest.raises(fb.NotFoundError, match=r"^no such object or folder: `[^`]*x.parquet`$"):
        read(lost.batches(32))


def test_too_many_are_an_error_that_says_how_many_and_why(damaged: fb.Dataset) -> None:
    stream = skipping(damaged, max_skipped=ROW_GROUP)
    with pytest.raises(fb.SkipLimitError, match=r"skipped \d+ rows .* max_skipped \(200\)") as caught:
        read(stream)
    assert isinstance(caught.value, fb.DataError)
    assert "column `text` in row group" in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), fb.SkipLimitError)
    with pytest.raises(fb.SkipLimitError, match=r"max_skipped \(20\)"):
        read(damaged.batches(32, on_error="skip"))


@pytest.mark.parametrize("num_samples", [NUM_ROWS // 10, NUM_ROWS * 10])
def test_a_share_is_of_the_rows_that_an_epoch_draws(damaged: fb.Dataset, num_samples: int) -> None:
    drawn = damaged.shuffle(1, weights="1", num_samples=num_samples)
    whole = skipping(drawn, max_skipped=num_samples)
    num_read = len(flat(read(whole)))
    share = whole.stats()["rows_skipped"] / num_samples
    assert num_read == num_samples - whole.stats()["rows_skipped"]
    assert 0.2 < share < 0.4, "three of ten row groups"
    assert len(flat(read(skipping(drawn, max_skipped=share + 0.01)))) == num_read
    with pytest.raises(fb.SkipLimitError, match=rf"max_skipped \({int(num_samples * 0.2)}\)"):
        read(skipping(drawn, max_skipped=0.2))


def test_an_object_that_is_gone_is_skipped(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / str(number), (), num_rows=400)
    dataset = opened(tmp_path / "*" / "*.parquet")
    (tmp_path / "2" / "x.parquet").unlink()
    stream = skipping(dataset)
    assert len(flat(read(stream))) == 1200
    assert {hole["object"].split("/")[-2] for hole in stream.holes} == {"2"}


OF_AN_OBJECT = 400
REFUSED = "part-2.parquet"
"""The object that a store does not give."""

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "500": ({"status": 500}, "500 Internal Server Error"),
    "404": ({"status": 404}, "404 Not Found"),
    "stalls": ({"cut_after": -1, "ending": "stall"}, "timed out|no answer"),
    "resets": ({"cut_after": -1, "ending": "reset"}, "[Cc]onnection (reset|closed|error)"),
}
"""Of faults that stay: how they are made, and what is said of them."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    objects = {f"part-{n}.parquet": ids_file(n * OF_AN_OBJECT, (n + 1) * OF_AN_OBJECT) for n in range(4)}
    with FaultProxy(Objects(objects)) as proxy:
        yield proxy


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_an_object_that_a_store_does_not_give_is_skipped(proxy: FaultProxy, name: str, is_shuffled: bool) -> None:
    fault, cause = REFUSALS[name]
    urls = [f"{proxy.url}/part-{n}.parquet" for n in range(4)]
    options = {"read_timeout": "400ms", "retry_for": "1s"}
    dataset = fb.load_dataset(urls, split="train", storage_options=options)
    dataset = dataset.shuffle(1) if is_shuffled else dataset
    whole = read(dataset.batches(32))
    proxy.faults = [Fault(times=None, where=REFUSED, **fault)]
    stream = skipping(dataset)
    missing = range(2 * OF_AN_OBJECT, 3 * OF_AN_OBJECT)
    expected = [[row for row in batch if row not in missing] for batch in whole]
    assert read(stream) == [batch for batch in expected if batch]
    assert proxy.num_taken() >= 1
    assert {hole["object"] for hole in stream.holes} == {f"{proxy.url}/{REFUSED}"}
    assert all(re.search(cause, hole["cause"]) for hole in stream.holes), stream.holes
    assert sum(hole["end"] - hole["start"] for hole in stream.holes) == len(missing)
    assert stream.stats()["rows_skipped"] == len(missing)


def test_batches_without_rows_are_tensors_all_the_same(damaged: fb.Dataset) -> None:
    """A rank that has nothing left of a batch gets it empty, so that all take the same number of steps."""
    rank = {"rank": 1, "world_size": 2}
    stream = damaged.to_torch(10, **rank, on_error="skip", max_skipped=0.9, forms={"kind": "dictionary"})
    batches = list(stream)
    assert len(batches) == len(stream) == 100
    empty = [batch for batch in batches if len(batch["id"]) == 0]
    assert len(empty) == 30
    assert all(torch.equal(batch["id"], torch.empty(0, dtype=torch.int64)) and batch["text"] == [] for batch in empty)
    for form in ("numpy", "pandas", "polars", "arrow"):
        assert len(list(skipping(damaged.with_format(form), 20, **rank))) == 50


def test_workers_go_on_without_the_rows(damaged: fb.Dataset, sound: fb.Dataset) -> None:
    def rows(stream: torch.utils.data.IterableDataset[Any]) -> list[list[int]]:
        loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=2)
        return [batch["id"].tolist() for batch in loader]

    columns = ["id", "text"]
    got = rows(damaged.select_columns(columns).to_torch(50, on_error="skip", max_skipped=NUM_ROWS))
    expected = rows(sound.select_columns(columns).to_torch(50))
    assert got == [[row for row in batch if not is_missing(row)] for batch in expected]


def test_states_of_ranks_are_joined(damaged: fb.Dataset) -> None:
    states = []
    for rank in range(2):
        stream = skipping(damaged.shuffle(1, num_lanes=2, window_rows=4), rank=rank, world_size=2)
        read(stream)
        stream.set_epoch(0)
        states.append(stream.state_dict())
    joined = fb.cursor(states)
    spans = {hole["span"] for state in states for hole in state["holes"]}
    assert {hole["span"] for hole in joined["holes"]} == spans
    assert len(spans) > max(len({hole["span"] for hole in state["holes"]}) for state in states)


def test_what_another_pass_lacks_is_not_left_out_of_the_one_that_goes_on(damaged: fb.Dataset) -> None:
    stream = skipping(damaged.shuffle(1, num_lanes=2, window_rows=4))
    before = stream.state_dict()
    stream.set_epoch(1)
    read(stream)
    later = stream.state_dict()
    assert later["epoch"] == 1
    assert later["holes"]
    for states in ([before, later], [later, before]):
        assert fb.cursor(states) == before


@pytest.mark.filterwarnings("default::forebay.SkippedRowsWarning")
def test_a_warning_says_what_is_missing(damaged: fb.Dataset) -> None:
    for stream, number in (
        (skipping(damaged), "600"),
        (skipping(damaged.repeat(2)), "1,200"),
        (damaged.to_torch(100, on_error="skip", max_skipped=0.5), "600"),
        (damaged.to_torch(100, on_error="skip", max_skipped=0.5, steps_per_epoch=50), "1,600"),
    ):
        with pytest.warns(fb.SkippedRowsWarning, match=f"^{number} rows could not be read and were skipped") as told:
            for _ in stream:
                pass
        # Once for all passes, at the loop.
        assert [warned.filename for warned in told] == [__file__]
        assert f"{stream.stats()['rows_skipped']:,.0f}" == number


@pytest.mark.filterwarnings("default::forebay.SkippedRowsWarning")
def test_each_of_endless_passes_ends_with_a_warning(damaged: fb.Dataset) -> None:
    batches = iter(skipping(damaged.repeat(), 500))
    with pytest.warns(fb.SkippedRowsWarning) as told:
        assert len(list(itertools.islice(batches, 9))) == 9
    assert [str(warned.message).split()[0] for warned in told] == ["600", "1,200"]


def test_an_epoch_whose_last_rows_are_missing_is_over_all_the_same(folder: Path) -> None:
    dataset = opened(write(folder / "without its end", (8, 9)))
    stream = skipping(dataset, 100)
    assert len(flat(read(stream))) == NUM_ROWS - 2 * ROW_GROUP
    assert stream.state_dict()["position"] == NUM_ROWS
    later = skipping(dataset, 100)
    later.load_state_dict(stream.state_dict())
    assert len(later) == 0
    assert [len(read(later)) for _ in range(2)] == [0, 16]


@pytest.mark.filterwarnings("default::forebay.SkippedRowsWarning")
def test_what_is_missing_of_rows_that_were_handed_over_is_told_at_their_end(damaged: fb.Dataset) -> None:
    stream = skipping(damaged)
    with pytest.warns(fb.SkippedRowsWarning, match="600 rows could not be read and were skipped"):
        rows = pa.table(stream)["id"].to_pylist()
    assert rows == [row for row in range(NUM_ROWS) if not is_missing(row)]
    assert sorted(hole["row_group"] for hole in stream.holes) == list(DAMAGED)
    assert (stream.stats()["rows_skipped"], stream.stats()["rows"]) == (600, NUM_ROWS - 600)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_error": "ignore"}, "on_error: expected 'raise' or 'skip', got 'ignore'"),
        ({"max_skipped": -1}, "max_skipped"),
        ({"max_skipped": 1.5}, "max_skipped: expected a number of rows or a share below 1, got 1.5"),
        ({"max_skipped": float("nan")}, "max_skipped"),
        ({"max_skipped": "all"}, "max_skipped: expected an integer"),
        ({"max_skipped": 5}, "max_skipped: 5 is about rows that on_error='skip' leaves out"),
        ({"max_skipped": 0.0, "on_error": "raise"}, "max_skipped: 0.0 is about rows"),
    ],
)
def test_settings_that_cannot_work_are_refused(sound: fb.Dataset, options: dict[str, Any], says: str) -> None:
    with pytest.raises(fb.SettingError, match=says):
        sound.batches(1, **options)


@pytest.mark.parametrize(
    "hole",
    [
        {"span": 99, "start": 0, "end": 5},
        {"span": 0, "start": 5, "end": 5},
        {"span": 0, "start": 0, "end": ROW_GROUP + 1},
        {"span": -1, "start": 0, "end": 5},
        {"span": 0, "start": 0},
    ],
)
def test_holes_of_another_order_are_refused(sound: fb.Dataset, hole: dict[str, int]) -> None:
    stream = sound.batches(1)
    listed = hole | {"object": "x", "row_group": 0, "cause": "y"}
    with pytest.raises(fb.StateError):
        stream.load_state_dict(stream.state_dict() | {"holes": [listed]})


def before_failing(stream: Any) -> list[int]:
    """Returns the rows that come before the error."""
    seen: list[int] = []

    def read() -> None:
        for batch in stream:
            seen.extend(ids(batch))

    with pytest.raises(fb.DataError):
        read()
    assert stream.state_dict()["position"] == len(seen)
    return seen


def test_a_state_of_a_batch_before_too_many_are_skipped_has_the_error_before_it(tmp_path: Path) -> None:
    damaged = opened(write(tmp_path, (6,)))
    states = [skipping(damaged).state_dict()]
    last = 6 * ROW_GROUP // 32 * 32
    for num_batches in (last // 32, 0):
        stream = skipping(damaged, max_skipped=10)
        stream.load_state_dict(states[-1])
        batches = iter(stream)
        for _ in range(num_batches):
            next(batches)
            states.append(stream.state_dict())
        with pytest.raises(fb.SkipLimitError, match=f"skipped {ROW_GROUP} rows"):
            next(batches)
        assert states[-1]["position"] == last
        assert not stream.holes


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_batches_before_a_row_that_cannot_be_read_are_delivered(
    tmp_path: Path, is_shuffled: bool, num_threads: int
) -> None:
    whole, damaged = (opened(write(tmp_path / str(number), number)) for number in ((), (6,)))
    if is_shuffled:
        whole, damaged = (ds.shuffle(5, num_lanes=1, window_rows=50) for ds in (whole, damaged))
    batches = [ids(batch) for batch in whole.batches(32)]
    lost = set(range(6 * ROW_GROUP, 7 * ROW_GROUP))
    number = next(number for number, batch in enumerate(batches) if lost & set(batch))
    assert number > 8
    rows = [row for batch in batches[:number] for row in batch]
    for _ in range(5):
        assert before_failing(damaged.batches(32, num_threads=num_threads)) == rows
    mapped = damaged.map(functions.nothing, batched=True, num_threads=2)
    assert before_failing(mapped.batches(32, num_threads=num_threads)) == rows


def test_batches_before_a_row_that_cannot_be_read_are_delivered_in_little_memory(tmp_path: Path) -> None:
    whole, damaged = (
        opened(write(tmp_path / str(number), number, num_rows=20_000, row_group=1000)) for number in ((), (6,))
    )
    settings: dict[str, Any] = {"memory_limit": 2 << 20, "num_threads": 4}
    found = before_failing(damaged.batches(32, **settings))
    assert found == list(range(len(found)))
    assert 5900 <= len(found) < 7000
    assert before_failing(damaged.batches(32, **settings)) == found
    # The windows do not fit, so that rows are read anew in each block, and of the damaged page perhaps none at first.
    whole, damaged = (ds.shuffle(5, num_lanes=1, window_rows=5000) for ds in (whole, damaged))
    order = [row for batch in whole.batches(32) for row in ids(batch)]
    found = before_failing(damaged.batches(32, **settings))
    first = next(place for place, row in enumerate(order) if 6000 <= row < 7000)
    assert found == order[: len(found)]
    assert len(found) >= first // 32 * 32


def test_batches_before_a_value_that_cannot_be_used_are_delivered(tmp_path: Path) -> None:
    rows = [[1] * (number % 5) for number in range(400)]
    rows[333] = [None]
    pq.write_table(pa.table({"id": range(400), "tokens": rows}), tmp_path / "x.parquet", row_group_size=50)
    ds = opened(tmp_path / "x.parquet")
    for _ in range(5):
        assert before_failing(ds.to_torch(10, padding=True, num_threads=4)) == list(range(330))
