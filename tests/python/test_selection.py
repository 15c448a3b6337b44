"""Selections as things: saved, combined, sampled, split, evaluated in parts, used with what they belong to."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.options import ReadOptions

if TYPE_CHECKING:
    from pathlib import Path

    from s3 import Bucket

NUM_ROWS = 1200


def write(folder: Path, first: int = 0) -> fb.Dataset:
    """Writes 3 objects of 4 row groups of 100 rows, with pages of about 20 rows, and opens them."""
    folder.mkdir(exist_ok=True)
    for number in range(3):
        rows = range(first + number * 400, first + number * 400 + 400)
        table = pa.table({"id": rows, "mod": [row % 7 for row in rows], "text": [f"text {row}" * 9 for row in rows]})
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=100, write_page_index=True, data_page_size=64, write_batch_size=20)
    return fb.load_dataset(folder, split="train")


@pytest.fixture
def ds(tmp_path: Path) -> fb.Dataset:
    """Rows 0 to 1199."""
    return write(tmp_path / "data")


def ids(ds: fb.Dataset) -> list[int]:
    """The row numbers, as they are streamed."""
    batches = ds.select_columns("id").batches(100, rank=0, world_size=1)
    return [number for batch in batches for number in pa.record_batch(batch).column(0).to_pylist()]


def test_a_selection_is_what_the_filter_keeps(ds: fb.Dataset) -> None:
    selection = ds.filter("mod = 3").selection()
    assert len(selection) == selection.num_rows == len(ids(ds.filter("mod = 3")))
    assert selection.query == ["mod = 3"]
    assert repr(selection) == f"Selection({len(selection)} of 1,200 rows)"
    assert ids(ds.select(selection)) == [row for row in range(NUM_ROWS) if row % 7 == 3]


def test_selections_combine_as_sets_of_rows(ds: fb.Dataset) -> None:
    left, right = ds.filter("mod < 3").selection(), ds.filter("id BETWEEN 250 AND 900").selection()
    a, b = set(ids(ds.select(left))), set(ids(ds.select(right)))
    for combined, expected in [
        (left & right, a & b),
        (left | right, a | b),
        (left - right, a - b),
        (left ^ right, a ^ b),
    ]:
        assert ids(ds.select(combined)) == sorted(expected)
        assert combined.query is None
    assert left & right == ds.filter("mod < 3 AND id BETWEEN 250 AND 900").selection()
    assert left != right
    assert left != "mod < 3"


def test_selecting_filters_and_filtering_selects(ds: fb.Dataset) -> None:
    selection = ds.filter("mod < 3").selection()
    expected = [row for row in range(NUM_ROWS) if row % 7 < 3 and row % 2 == 0]
    assert ids(ds.select(selection).filter("id % 2 = 0")) == expected
    assert ids(ds.filter("id % 2 = 0").select(selection)) == expected
    other = ds.filter("id % 2 = 0").selection()
    assert ids(ds.select(selection).select(other)) == expected


def test_row_groups_outside_of_a_selection_are_not_read_by_filters(ds: fb.Dataset) -> None:
    everywhere = ds.filter("id % 2 = 0")
    within = ds.select(ds.filter("id >= 1100").selection()).filter("id % 2 = 0")
    facts = within.explain()
    assert facts["row_groups_read"] == 1
    assert facts["row_groups_outside"] == 11
    assert facts["selection_bytes"] < everywhere.explain()["selection_bytes"] / 6
    assert facts["rows_kept"] == 50


def test_it_is_saved_and_loaded(ds: fb.Dataset, tmp_path: Path) -> None:
    selection = ds.filter("mod = 3").selection()
    for uri in (tmp_path / "a" / "one.selection", str(tmp_path / "two"), (tmp_path / "three").as_uri()):
        selection.save(uri)
        loaded = fb.Selection.load(uri)
        assert loaded == selection
        assert (loaded.query, loaded.fingerprint) == (selection.query, selection.fingerprint)


def test_it_is_saved_to_a_store(ds: fb.Dataset, bucket: Bucket) -> None:
    selection = ds.filter("mod = 3").selection()
    uri = f"s3://{bucket.name}/kept/rows"
    selection.save(uri, storage_options=bucket.storage_options)
    assert fb.Selection.load(uri, storage_options=bucket.storage_options) == selection
    with pytest.raises(fb.NotFoundError, match="kept/other"):
        fb.Selection.load(f"s3://{bucket.name}/kept/other", storage_options=bucket.storage_options)


def test_it_is_pickled(ds: fb.Dataset) -> None:
    part = ds.filter("mod = 3").shard(1, 3).selection()
    again = pickle.loads(pickle.dumps(part))
    assert (again, again.part, again.query) == (part, (1, 3), ["mod = 3"])


def test_a_damaged_file_is_refused(ds: fb.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    ds.filter("mod = 3").selection().save(path)
    sound = path.read_bytes()
    for body in [b"", b"PAR1", sound[:-1], sound[:40], sound[:60] + b"x" + sound[61:], sound + b"x"]:
        path.write_bytes(body)
        with pytest.raises(fb.SelectionError, match=str(path)):
            fb.Selection.load(path)


def test_rows_of_other_objects_are_refused_by_name(ds: fb.Dataset, tmp_path: Path) -> None:
    other = write(tmp_path / "other", first=5000)
    selection = ds.filter("mod = 3").selection()
    with pytest.raises(fb.SelectionError, match=selection.fingerprint) as refused:
        other.select(selection)
    assert other.selection().fingerprint in str(refused.value)
    with pytest.raises(fb.SelectionError, match="snapshot"):
        selection & other.selection()


def test_it_fits_a_copy_of_the_objects(ds: fb.Dataset, tmp_path: Path) -> None:
    copy = write(tmp_path / "copy")
    selection = ds.filter("mod = 3").selection()
    assert ids(copy.select(selection)) == ids(ds.select(selection))


def test_a_sample_is_of_exactly_n_rows_and_the_same_again(ds: fb.Dataset) -> None:
    kept = ds.filter("mod < 3").selection()
    sample = kept.sample(100, seed=7)
    assert len(sample) == 100
    assert sample & kept == sample
    assert sample == kept.sample(100, seed=7)
    assert sample != kept.sample(100, seed=8)
    assert kept.sample(len(kept)) == kept
    assert len(kept.sample(0)) == 0


def test_a_split_leaks_nothing(ds: fb.Dataset) -> None:
    kept = ds.filter("mod < 3").selection()
    train, validation, test = kept.split([0.8, 0.15, 0.05], seed=7)
    assert [len(part) for part in (train, validation, test)] == [413, 77, 26]
    assert len(train & validation) == len(train & test) == len(validation & test) == 0
    assert train | validation | test == kept
    again = kept.split([0.8, 0.15, 0.05], seed=7)
    assert again == [train, validation, test]
    fractions: Any = (part for part in (0.8, 0.15, 0.05))
    assert kept.split(fractions, seed=7) == again
    assert kept.split(np.array([0.5, 0.5], np.float32)) == kept.split([0.5, 0.5])


def test_shards_are_evaluated_apart_and_merged(ds: fb.Dataset) -> None:
    wanted = ds.filter("id % 3 = 1")
    shards = [wanted.shard(index, 5) for index in range(5)]
    parts = [shard.selection() for shard in shards]
    assert [part.part for part in parts] == [(index, 5) for index in range(5)]
    assert fb.Selection.merge(reversed(parts)) == wanted.selection()
    assert fb.Selection.merge(parts).query == ["id % 3 = 1"]
    whole, first = wanted.explain(), shards[0].explain()
    assert first["selection_bytes"] < whole["selection_bytes"] / 3
    assert [row for shard in shards for row in ids(shard)] == ids(wanted)


def test_more_shards_than_row_groups_warn_of_those_without_rows(tmp_path) -> None:
    pq.write_table(pa.table({"id": range(8)}), tmp_path / "one.parquet")
    one = fb.load_dataset(tmp_path / "one.parquet", split="train")
    assert len(one.shard(0, 4)) == 8
    with pytest.warns(
        fb.PerformanceWarning, match=r"^shard 3 of 4 has no rows, because row groups are not divided; "
    ) as warned:
        assert len(one.shard(3, 4)) == 0
    assert warned[0].filename == __file__
    assert [len(one.select(part)) for part in one.selection().split([0.25] * 4)] == [2, 2, 2, 2]
    assert [len(list(one.to_hf().shard(4, index))) for index in range(4)] == [2, 2, 2, 2]
    assert len(one.filter("id < 0").shard(3, 4)) == 0, "which depends on the filter, so that nobody is warned"


def test_a_selection_made_of_anything_says_what_makes_one() -> None:
    given: Any = "x"
    with pytest.raises(TypeError, match=r"^Selection: selections are made by `ds.selection\(\)` and"):
        fb.Selection(given)


def test_a_part_does_not_pass_for_the_whole(ds: fb.Dataset) -> None:
    parts = [ds.filter("mod = 3").shard(index, 3).selection() for index in range(3)]
    with pytest.raises(fb.SelectionError, match="part 1 of 3"):
        ds.select(parts[1])
    with pytest.raises(fb.SelectionError, match="part 0 of 3"):
        parts[0] | parts[1]
    with pytest.raises(fb.SelectionError, match="part 2 of 3 .* is missing"):
        fb.Selection.merge(parts[:2])
    with pytest.raises(fb.SelectionError, match="mod = 4"):
        fb.Selection.merge([*parts[:2], ds.filter("mod = 4").shard(2, 3).selection()])
    with pytest.raises(fb.SettingError, match="shard 0 of 2 already"):
        ds.shard(0, 2).shard(0, 2)


def test_states_belong_to_a_selection(ds: fb.Dataset) -> None:
    one, two = ds.selection().split([0.5, 0.5], seed=7)
    stream = ds.select(one).shuffle(seed=1).batches(10, rank=0, world_size=1)
    seen = [pa.record_batch(batch).column("id").to_pylist() for batch in stream]
    next(iter(stream))
    state = stream.state_dict()
    resumed = ds.select(one).shuffle(seed=1).batches(10, rank=0, world_size=1)
    resumed.load_state_dict(state)
    assert [pa.record_batch(batch).column("id").to_pylist() for batch in resumed] == seen[1:]
    for other in (ds.select(two), ds, ds.select(one).shard(0, 2)):
        with pytest.raises(fb.StateError, match="query"):
            other.shuffle(seed=1).batches(10, rank=0, world_size=1).load_state_dict(state)


def test_numbers_select_rows_in_their_order(ds: fb.Dataset) -> None:
    kept = ds.filter("mod = 3")
    of_kept = ids(kept)
    numbers = [17, 3, -1, 99, 0]
    chosen = kept.select(numbers)
    expected = [of_kept[number] for number in numbers]
    assert ids(chosen) == expected
    assert len(chosen) == 5
    assert chosen[1]["id"] == expected[1]
    # Numbers count in the order of what was selected before; filters keep it.
    assert ids(chosen.select([4, 0, 2])) == [expected[4], expected[0], expected[2]]
    assert ids(chosen.select([0, 2])) == [expected[0], expected[2]]
    evens = [row for row in expected if row % 2 == 0]
    assert ids(chosen.filter("id % 2 = 0")) == evens
    assert sorted(ids(chosen.shuffle(seed=3))) == sorted(expected)
    assert ids(kept.select(range(5, 40))) == of_kept[5:40]


def test_ranks_share_rows_selected_by_number(ds: fb.Dataset) -> None:
    numbers = list(range(NUM_ROWS - 1, -1, -7))
    chosen = ds.select(numbers)
    per_rank = []
    for rank in range(3):
        batches = chosen.batches(8, rank=rank, world_size=3, remainder="keep")
        per_rank.append([number for batch in batches for number in pa.record_batch(batch).column("id").to_pylist()])
    assert per_rank == [numbers[rank::3] for rank in range(3)]
    stream = chosen.batches(8, rank=0, world_size=1)
    iterator = iter(stream)
    next(iterator), next(iterator)
    state = stream.state_dict()
    with pytest.raises(fb.StateError, match="query"):
        ds.select(numbers[::-1]).batches(8, rank=0, world_size=1).load_state_dict(state)
    resumed = chosen.batches(8, rank=0, world_size=1)
    resumed.load_state_dict(state)
    assert [n for batch in resumed for n in pa.record_batch(batch).column("id").to_pylist()] == numbers[16:]


def test_a_restricted_dataset_is_pickled(ds: fb.Dataset) -> None:
    chosen = ds.filter("mod = 3").select([17, 3, -1])
    again = pickle.loads(pickle.dumps(chosen))
    assert ids(again) == ids(chosen)
    assert again._make_reader(ReadOptions()).state(0, 1) == chosen._make_reader(ReadOptions()).state(0, 1)
    shard = ds.filter("mod = 3").shard(1, 3)
    again = pickle.loads(pickle.dumps(shard))
    assert again.selection() == shard.selection()
    assert again.selection().part == (1, 3)
    assert "shard 1 of 3" in repr(again)


@pytest.mark.parametrize(
    ("rows", "error", "names"),
    [
        ([1, 2, 1], fb.SettingError, "row 1 is named twice"),
        ([5, -1195], fb.SettingError, "row -1195 is named twice"),
        ([1200], fb.RowIndexError, "no row 1200"),
        ([1 << 70], fb.RowIndexError, "no row"),
        (["id"], fb.SettingError, "'id'"),
        ("id", fb.SettingError, "'id'"),
        (None, fb.SettingError, "None"),
        ([0.5], fb.SettingError, "0.5"),
    ],
)
def test_what_names_no_rows_is_refused(ds: fb.Dataset, rows: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        ds.select(rows)  # type: ignore[arg-type]


def test_settings_that_make_no_sense_are_refused(ds: fb.Dataset) -> None:
    selection = ds.selection()
    for call, names in [
        (lambda: selection.sample(1201), "1201 rows are wanted, but the selection has 1200"),
        (lambda: selection.sample(-1), "n: expected 0"),
        (lambda: selection.split([0.5, 0.6]), "add up to 1"),
        (lambda: selection.split(["a"]), "expected numbers"),  # type: ignore[list-item]
        (lambda: selection.split([10**400]), "from 0 to 1"),
        (lambda: selection.save("s3://bucket/folder/"), "names a folder"),
        (lambda: selection.save(7), "expected a path"),  # type: ignore[arg-type]
        (lambda: ds.shard(4, 4), "index"),
        (lambda: ds.shuffle(seed=1).select([1, 2]), "before `shuffle`"),
        (lambda: fb.Selection.merge([ds]), "expected selections"),  # type: ignore[list-item]
    ]:
        with pytest.raises(fb.SettingError, match=names):
            call()
