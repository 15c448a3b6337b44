"""Parts of an epoch: divided however often, they are the epoch, and no part has two rows more than another."""

from __future__ import annotations

from itertools import chain

import pytest
from data import ids_table, write_fragments
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay.hf.examples import LEAST_MEMORY, Source
from forebay.hf.parts import Part
from forebay.options import ReadOptions

divisions = st.lists(st.integers(1, 7), max_size=3)


def divided(part: Part, counts: list[int], in_runs: bool) -> list[Part]:
    """Divides a part, then all that it was divided into."""
    if not counts:
        return [part]
    shards = [part.shard(counts[0], index, in_runs=in_runs) for index in range(counts[0])]
    return [inner for shard in shards for inner in divided(shard, counts[1:], in_runs)]


@given(st.integers(0, 3000), divisions, st.booleans(), st.sampled_from([1, 5, 192]))
def test_all_parts_together_are_the_epoch(num_rows: int, counts: list[int], in_runs: bool, num_shards: int) -> None:
    parts = divided(Part(num_shards), counts, in_runs)
    positions = [part.positions(num_rows) for part in parts]
    assert sorted(chain.from_iterable(positions)) == list(range(num_rows))
    # As many shards as there were, whoever holds them; those that hold none have no rows.
    assert sum(part.num_shards for part in parts) == num_shards
    assert all(len(found) == 0 for part, found in zip(parts, positions, strict=True) if part.num_shards == 0)


@given(st.integers(0, 3000), st.integers(1, 192), st.booleans())
def test_shards_differ_by_one_row(num_rows: int, num_shards: int, in_runs: bool) -> None:
    lengths = [len(part.positions(num_rows)) for part in divided(Part(), [num_shards], in_runs)]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 3000), st.integers(1, 24), st.integers(1, 8), st.booleans(), st.integers(0, 50))
def test_shards_of_an_evened_part_are_of_one_size(
    num_rows: int, num_shards: int, num_workers: int, in_runs: bool, num_skipped: int
) -> None:
    whole = Part().skip(num_skipped)
    shards = divided(whole.evened(num_shards), [num_shards], in_runs)
    positions = [list(shard.positions(num_rows)) for shard in shards]
    left = list(whole.positions(num_rows))
    assert sorted(chain.from_iterable(positions)) == left[: len(left) // num_shards * num_shards]
    # So have their workers, each of which has a last batch of its own.
    workers = [divided(shard, [num_workers], in_runs) for shard in shards]
    assert len({tuple(len(part.positions(num_rows)) for part in parts) for parts in workers}) == 1
    assert all(shard.is_less_than(str(whole)) for shard in shards[: num_shards > 1])
    assert all(shard.evened(7) == shard for shard in divided(whole, [2], in_runs)), "it is divided already"


@given(st.integers(0, 60), st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=4))
def test_skips_and_takes_are_slices(num_rows: int, steps: list[tuple[bool, int]]) -> None:
    part, expected = Part(), list(range(num_rows))
    for is_skip, n in steps:
        part = part.skip(n) if is_skip else part.take(n)
        expected = expected[n:] if is_skip else expected[:n]
    assert list(part.positions(num_rows)) == expected
    shards = divided(part, [3, 2], in_runs=False)
    assert sorted(chain.from_iterable(shard.positions(num_rows) for shard in shards)) == expected


def test_a_part_tells_what_it_is() -> None:
    whole = Part()
    assert (whole.is_whole, whole.is_divided, whole.is_fixed) == (True, False, False)
    assert (whole.skip(3).is_whole, whole.skip(3).is_divided, whole.skip(3).is_fixed) == (False, False, True)
    for in_runs in (True, False):
        shard = whole.shard(3, 1, in_runs=in_runs)
        assert (shard.is_whole, shard.is_divided, shard.is_fixed) == (False, True, False)
        assert shard.fraction == pytest.approx(1 / 3)
    assert len({str(part) for part in (*divided(whole, [3], True), *divided(whole, [3], False), whole.take(2))}) == 7


def test_a_part_has_memory_in_proportion_but_not_too_little(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fragments(tmp_path, ids_table(100), num_fragments=1)
    limits = []
    make = fb.Dataset._make_reader

    def noting(self: fb.Dataset, read: ReadOptions, **settings: bool) -> object:
        limits.append(read.memory_limit)
        return make(self, read, **settings)

    monkeypatch.setattr(fb.Dataset, "_make_reader", noting)
    for limit in (8 << 30, 64 << 20):
        source = Source(fb.load_dataset(tmp_path, split="train"), ReadOptions(memory_limit=limit))
        for part in (Part(), Part().shard(4, 1, in_runs=True), Part().shard(192, 1, in_runs=False)):
            source.reader(part)
            source.reader(part)
    assert limits == [8 << 30, 2 << 30, LEAST_MEMORY, 64 << 20]
