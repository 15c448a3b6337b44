"""Epochs that are drawn with replacement: as often as rows weigh, deterministic, elastic, resumable."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import order_model as model
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from harness import resume_failures
from rows import batches_of, ids, ids_of, uneven_groups, write_paged, write_uneven

import forebay
import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NUM_ROWS = 500
BY_ID = "CASE WHEN id % 7 = 0 THEN 0.0 ELSE id END"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("weighed"), NUM_ROWS)


def weigh(row: int) -> float:
    return 0.0 if row % 7 == 0 else float(row)


def drawn(weights: list[float], num_samples: int, seed: int, epoch: int) -> list[int]:
    """Returns the rows of an epoch, sorted, as the documentation defines them."""
    sums = np.cumsum(np.array(weights))
    uniforms = model.uniforms(seed, epoch, "draws", 0, num_samples)
    return sorted(int(np.searchsorted(sums, u * sums[-1], side="right")) for u in uniforms)


CONFIGURATIONS: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "lanes": lambda dataset: dataset.shuffle(1, num_lanes=6, window_rows=20, weights=BY_ID),
    "one permutation": lambda dataset: dataset.shuffle(2, weights=BY_ID, num_samples=700),
    "filtered, fewer": lambda dataset: dataset.filter("id % 3 <> 0").shuffle(
        3, num_lanes=5, window_rows=9, weights=BY_ID, num_samples=90
    ),
    "many of few": lambda dataset: dataset.shuffle(
        4, num_lanes=4, window_rows=11, weights="CASE WHEN id < 4 THEN 1 ELSE 0 END", num_samples=999
    ),
}


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_copies_of_a_row_have_memory_of_their_own(dataset: fb.Dataset, batch_size: int) -> None:
    drawn = dataset.shuffle(5, weights="CASE WHEN id < 9 THEN 100.0 ELSE 1.0 END", num_samples=2000)
    expected = [ids(batch) for batch in drawn.batches(batch_size)]
    assert max(Counter(row for rows in expected for row in rows).values()) > 50
    kept = []
    for number, (batch, rows) in enumerate(zip(drawn.to_torch(batch_size), expected, strict=True)):
        assert batch["id"].tolist() == rows
        if number % 3:
            batch["id"].fill_(-1)
        else:
            kept.append((batch["id"], rows))
    assert all(tensor.tolist() == rows for tensor, rows in kept)


def test_rows_that_are_asked_for_twice_have_memory_of_their_own(dataset: fb.Dataset) -> None:
    rows = dataset.with_format("torch")
    for _ in range(2):
        found = rows[[3, 3, 4, 3]]["id"]
        assert found.tolist() == [3, 3, 4, 3]
        found[0] = -1
        assert found.tolist() == [-1, 3, 4, 3]


@pytest.mark.parametrize(
    "loop",
    {
        "rows": list,
        "batches of rows": lambda weighed: list(weighed.iter(7)),
        "a stream": lambda weighed: list(weighed.batches(7)),
        "a table": pa.table,
    }.items(),
    ids=lambda loop: loop[0],
)
@pytest.mark.parametrize("format", [None, "numpy"])
def test_weights_are_computed_once_for_all_loops(
    dataset: fb.Dataset, loop: tuple[str, Callable[[fb.Dataset], Any]], format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed = dataset.shuffle(1, weights=BY_ID, num_samples=40).with_format(format)
    computed = []
    make_weights = forebay.dataset.make_weights

    def noting(*arguments: Any) -> Any:
        computed.append(arguments)
        return make_weights(*arguments)

    monkeypatch.setattr(forebay.dataset, "make_weights", noting)
    for _ in range(2):
        loop[1](weighed)
    assert len(computed) == 1


@pytest.fixture(params=CONFIGURATIONS)
def configured(request: pytest.FixtureRequest, dataset: fb.Dataset) -> fb.Dataset:
    return CONFIGURATIONS[request.param](dataset)


class Numbered:
    """A stream as the ids of its batches."""

    def __init__(self, stream: fb.Stream[Any]) -> None:
        self._stream = stream
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict

    def __iter__(self) -> Iterator[list[int]]:
        return map(ids, self._stream)


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_has_the_rows_that_were_drawn(dataset: fb.Dataset, epoch: int) -> None:
    stream = dataset.shuffle(9, num_lanes=6, window_rows=20, weights=BY_ID, num_samples=800).batches(64)
    stream.set_epoch(epoch)
    assert len(stream) == 13
    in_order = [row for group in uneven_groups(NUM_ROWS) for row in group]
    expected = drawn([weigh(row) for row in in_order], 800, 9, epoch)
    assert sorted(ids_of(stream)) == sorted(in_order[number] for number in expected)


def test_draws_are_shuffled_as_rows_are(dataset: fb.Dataset) -> None:
    """The model's order over spans that have as many rows as were drawn of them."""
    stream = dataset.shuffle(9, num_lanes=6, window_rows=20, weights=BY_ID, num_samples=800).batches(64)
    groups = uneven_groups(NUM_ROWS)
    in_order = [row for group in groups for row in group]
    numbers = drawn([weigh(row) for row in in_order], 800, 9, 0)
    rows_of = Counter(in_order[number] for number in numbers)
    repeated = [[row for row in group for _ in range(rows_of[row])] for group in groups if group]
    assert ids_of(stream) == model.epoch(repeated, 0, seed=9, num_lanes=6, window_rows=20)


def test_a_resume_after_any_batch_delivers_exactly_the_rest(configured: fb.Dataset) -> None:
    assert resume_failures(lambda: Numbered(configured.batches(23))) == []


def test_world_sizes_share_one_sequence(configured: fb.Dataset) -> None:
    whole = ids_of(configured.batches(24))
    for world_size in (2, 3, 4, 6):
        shares = [
            ids_of(configured.batches(24 // world_size, rank=k, world_size=world_size)) for k in range(world_size)
        ]
        together = [row for step in zip(*shares, strict=True) for row in step]
        assert together == whole[: len(together)]
        assert len(whole) - len(together) < world_size


def test_rows_come_as_often_as_they_weigh(tmp_path: Path) -> None:
    labels = ["rare"] * 20 + ["common"] * 980
    pq.write_table(pa.table({"label": labels, "id": range(1000)}), tmp_path / "x.parquet", row_group_size=100)
    dataset = fb.load_dataset(tmp_path, split="train")
    balanced = dataset.shuffle(5, weights="1.0 / count(*) OVER (PARTITION BY label)", num_samples=10_000)
    found = Counter(label for batch in balanced.batches(100) for label in pa.record_batch(batch)["label"].to_pylist())
    assert found.total() == 10_000
    # Five standard deviations of fair coins.
    assert abs(found["rare"] - 5000) < 250


def test_the_smallest_weights_are_drawn_as_any_others(tmp_path: Path) -> None:
    least = 5e-324
    pq.write_table(pa.table({"id": range(3), "tiny": [least, 0.0, 2 * least]}), tmp_path / "rows.parquet")
    rows = fb.load_dataset(tmp_path, split="train").shuffle(3, weights="tiny", num_samples=9000)
    counts = Counter(ids_of(rows.batches(100)))
    assert counts[1] == 0
    # Six standard deviations of a binomial.
    assert abs(counts[0] - 3000) < 6 * (9000 * 2 / 9) ** 0.5


def test_pages_without_drawn_rows_are_not_read_and_little_memory_changes_nothing(tmp_path: Path) -> None:
    dataset = write_paged(tmp_path)
    few = dataset.shuffle(3, weights="CASE WHEN id % 2000 < 64 THEN 1 ELSE 0 END", num_samples=500)
    stream = few.batches(50)
    rows = ids_of(stream)
    assert len(rows) == 500
    assert all(row % 2000 < 64 for row in rows)
    assert stream.stats()["bytes_fetched"] < 8000 * 1024 / 4
    many = dataset.shuffle(3, weights="1 + id % 5")
    tight = many.batches(100, memory_limit=2 << 20)
    assert batches_of(tight) == batches_of(many.batches(100))
    assert tight.stats()["rows_evicted"] > 0


def test_workers_and_pickles_draw_the_same(configured: fb.Dataset) -> None:
    expected = batches_of(configured.batches(50))
    stream = configured.to_torch(50)
    loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=2)
    assert [batch["id"].tolist() for batch in loader] == expected
    len(configured.batches(50))
    assert batches_of(pickle.loads(pickle.dumps(configured)).batches(50)) == expected


def test_a_state_of_other_weights_is_refused(dataset: fb.Dataset) -> None:
    stream = dataset.shuffle(1, weights="id").batches(10)
    state = json.loads(json.dumps(stream.state_dict()))
    for other in (
        dataset.shuffle(1),
        dataset.shuffle(1, weights="id + 1"),
        dataset.shuffle(1, weights="id", num_samples=NUM_ROWS - 1),
    ):
        with pytest.raises(fb.StateError, match="query"):
            other.batches(10).load_state_dict(state)
    dataset.shuffle(1, weights="id * 1.0 -- the same numbers").batches(10).load_state_dict(state)


def test_what_pads_a_rank_is_read_again(dataset: fb.Dataset) -> None:
    shuffled = dataset.shuffle(1, num_lanes=3, window_rows=9, weights=BY_ID, num_samples=101)
    whole = ids_of(shuffled.batches(50))
    shares = [ids_of(shuffled.batches(50, rank=k, world_size=4, remainder="pad")) for k in range(4)]
    assert Counter(row for share in shares for row in share) == Counter(whole + whole[1:4])


def test_the_columns_that_weigh_need_not_be_read(dataset: fb.Dataset) -> None:
    shuffled = dataset.shuffle(1, weights="length(label) * id", num_samples=60)
    expected = ids_of(shuffled.batches(10))
    assert ids_of(shuffled.select_columns("id").batches(10)) == expected
    renamed = shuffled.rename_column("label", "name").remove_columns("name")
    assert ids_of(renamed.batches(10)) == expected
    kept = ids_of(shuffled.filter("id > 400").batches(10))
    assert kept == ids_of(
        dataset.filter("id > 400").shuffle(1, weights="length(label) * id", num_samples=60).batches(10)
    )
    assert min(kept) > 400
    with pytest.raises(fb.SettingError, match="`ORDER BY` or `select` of row numbers; draw from"):
        len(shuffled.sql("SELECT * FROM dataset ORDER BY label").batches(10))


OWN_ORDER = r"`ORDER BY` or `select` of row numbers; draw from .*`ds\.select\(ordered\.selection\(\)\)`$"


def test_rows_in_an_order_of_their_own_are_refused_as_soon_as_it_is_known(dataset: fb.Dataset) -> None:
    query = "SELECT *, id + 1 AS next FROM dataset ORDER BY id % 10, id LIMIT 60"
    found = dataset.sql(query)
    assert len(found) == 60
    known = (found, found.filter("id > 5"), dataset.select([7, 3]), dataset.select([7, 3]).shard(0, 2))
    for ordered in known:
        len(ordered)
        with pytest.raises(fb.SettingError, match=OWN_ORDER):
            ordered.shuffle(1, weights="id")
        assert len(ordered.shuffle(1).batches(10)), "without weights"

    def drawn() -> fb.Dataset:
        return dataset.sql(query).shuffle(1, weights="id", num_samples=30)

    uses: list[Callable[[], object]] = [
        lambda: len(drawn().batches(10)),
        lambda: next(iter(drawn().batches(10))),
        lambda: len(drawn().to_hf()),
        lambda: next(iter(drawn().to_hf())),
        lambda: drawn().to_torch(10),
        lambda: drawn().explain(),
    ]
    for use in uses:
        with pytest.raises(fb.SettingError, match=OWN_ORDER):
            use()


def test_rows_that_an_order_chose_are_drawn_in_the_order_of_the_dataset(dataset: fb.Dataset) -> None:
    best = dataset.sql("SELECT *, id + 1 AS next FROM dataset ORDER BY id % 10, id LIMIT 60")
    same = dataset.select(best.selection())
    expected = dataset.filter("id % 10 = 0 OR (id % 10 = 1 AND id < 100)")
    wanted = ids_of(expected.shuffle(1, weights="id", num_samples=40).batches(10))
    assert ids_of(same.shuffle(1, weights="id", num_samples=40).batches(10)) == wanted
    again = same.sql("SELECT *, id + 1 AS next FROM dataset")
    assert ids_of(again.shuffle(1, weights="next - 1", num_samples=40).batches(10)) == wanted
    # Orders that leave the rows where they are.
    for unchanged in (dataset.select([3, 7]), dataset.sql("SELECT * FROM dataset ORDER BY id")):
        assert len(unchanged) == len(list(unchanged.shuffle(1, weights="id").to_hf()))


def test_a_shard_is_drawn_from_whatever_follows(dataset: fb.Dataset) -> None:
    shard = dataset.shard(1, 3)
    drawn = shard.shuffle(1, weights="id + 1", num_samples=200)
    expected = ids_of(drawn.batches(10))
    assert set(expected) <= set(ids_of(shard.batches(10)))
    assert ids_of(drawn.select_columns("id").batches(10)) == expected
    assert ids_of(dataset.shuffle(1, weights="id + 1", num_samples=200).shard(1, 3).batches(10)) == expected
    kept = ids_of(drawn.filter("id % 2 = 0").batches(10))
    assert kept == ids_of(shard.filter("id % 2 = 0").shuffle(1, weights="id + 1", num_samples=200).batches(10))


def test_hugging_face_gets_what_was_drawn(dataset: fb.Dataset) -> None:
    shuffled = dataset.shuffle(1, num_lanes=6, window_rows=9, weights=BY_ID, num_samples=300)
    rows = shuffled.to_hf()
    assert len(rows) == 300
    assert [row["id"] for row in rows] == ids_of(shuffled.batches(10))
    shares = [[row["id"] for row in rows.shard(3, index)] for index in range(3)]
    assert Counter(row for share in shares for row in share) == Counter(ids_of(shuffled.batches(10)))
    assert Counter(row["id"] for row in rows.select_columns("id")) == Counter(ids_of(shuffled.batches(10)))


@pytest.mark.parametrize(
    ("weights", "error", "says"),
    [
        ("absent", fb.ColumnNotFoundError, "absent"),
        ("id +", fb.QueryError, "weight"),
        ("label", fb.QueryError, "^weights: `label` is `Utf8`, expected a number for each row"),
        ("DATE '2026-01-01'", fb.QueryError, "is `Date32`, expected a number for each row"),
        ("id > $least", fb.QueryError, r"`\$least` has no value; write its value out$"),
        ("NULL", fb.SettingError, "row 0 has the weight NULL"),
        ("id - 5", fb.SettingError, "row 0 has the weight -5"),
        ("id / 0.0", fb.SettingError, "row 0 has the weight NaN; expected a finite number of 0 or more"),
        ("1 / nullif(id, 0)", fb.SettingError, r"row 0 has the weight NULL; .*; `coalesce\(x, 0\)` is 0 for NULL$"),
        ("0", fb.SettingError, "all 500 rows have weights that add up to 0"),
        ("1; DROP TABLE dataset", fb.QueryError, "Expected: \\)"),
        ("1) AS a, (2", fb.QueryError, "Expected: \\)"),
        (5, fb.SettingError, "weights: expected SQL such as"),
        ([1.0] * 500, fb.SettingError, "got list; numbers from elsewhere are a column of a table: `ds.sql"),
    ],
)
def test_what_is_no_weight_is_refused(dataset: fb.Dataset, weights: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        len(dataset.shuffle(1, weights=weights).batches(10))
    if error is fb.QueryError:
        # At the call, before anything is read.
        with pytest.raises(error, match=says):
            dataset.shuffle(1, weights=weights)


def test_a_weight_that_divides_by_zero_is_refused_with_one_that_does_not(dataset: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match=r"^weights: .*zero.*; `coalesce\(1\.0 / nullif\(x, 0\), 0\)` gives such"):
        len(dataset.shuffle(1, weights="1 / id").batches(10))
    drawn = ids_of(dataset.shuffle(1, weights="coalesce(1.0 / nullif(id, 0), 0)").batches(10))
    assert drawn
    assert 0 not in drawn


def test_a_number_of_draws_that_cannot_be_is_refused(dataset: fb.Dataset) -> None:
    for num_samples in (0, 1 << 32, 1.5):
        with pytest.raises(fb.SettingError, match="num_samples"):
            dataset.shuffle(1, weights="id", num_samples=num_samples)
    with pytest.raises(fb.SettingError, match="only an epoch that is drawn"):
        dataset.shuffle(1, num_samples=5)
    with pytest.raises(fb.SettingError, match="no rows to draw from"):
        len(dataset.filter("id < 0").shuffle(1, weights="id").batches(5))
